//! The report as text for people.

use std::fmt::Write as _;

use super::{FileFigures, FreeFigures, Histogram, Report};
use crate::place::binary;

/// Width of the longest bar.
const BAR: f64 = 40.0;

/// Formats the report for people.
pub fn text(report: &Report) -> String {
    let mut text = format!("{}  {} ({})\n", report.name, report.path.display(), report.file_system);
    match (&report.files, &report.files_unknown) {
        (Some(files), _) => files_text(&mut text, files, report),
        (None, why) => {
            let _ = writeln!(text, "  {}s: {}", report.kind, why.as_deref().unwrap_or("not known"));
        }
    }
    match (&report.free, &report.free_unknown) {
        (Some(free), _) => free_text(&mut text, free),
        (None, why) => {
            let _ = writeln!(text, "  free space: {}", why.as_deref().unwrap_or("not known"));
        }
    }
    text
}

fn files_text(text: &mut String, files: &FileFigures, report: &Report) {
    let kind = report.kind.as_str();
    let _ = writeln!(
        text,
        "  {} {kind}s with {} in {} extents, {:.2} each; fragmentation {:.4}",
        files.files,
        binary(files.bytes, "B"),
        files.extents,
        files.extents as f64 / files.files.max(1) as f64,
        files.fragmentation
    );
    let _ = writeln!(
        text,
        "  read by {} transfers of up to {}, {} if each lay in one piece",
        files.transfers,
        binary(report.unit, "B"),
        files.transfers_least
    );
    if files.files > 0 {
        let _ = writeln!(text, "  extents of {} {kind}:", if kind == "object" { "an" } else { "a" });
        histogram(text, &files.extents_per_file, |from| {
            if from == 1 { "1".to_owned() } else { format!("{from}..{}", from * 2 - 1) }
        });
        let _ = writeln!(text, "  sizes of their extents:");
        histogram(text, &files.extent_sizes, sizes);
    }
    if !files.worst.is_empty() {
        let _ = writeln!(text, "  most extents:");
        for (name, extents) in &files.worst {
            let _ = writeln!(text, "  {extents:>14}  {name}");
        }
    }
}

fn free_text(text: &mut String, free: &FreeFigures) {
    let _ = writeln!(
        text,
        "  free: {} in {} extents, the largest of {}; fragmentation {:.4}",
        binary(free.bytes, "B"),
        free.extents,
        binary(free.largest, "B"),
        free.fragmentation
    );
    histogram(text, &free.extent_sizes, sizes);
}

fn sizes(from: u64) -> String {
    format!("{}..", binary(from, "B").replace(".0 ", " "))
}

fn histogram(text: &mut String, histogram: &Histogram, name: impl Fn(u64) -> String) {
    let all: u64 = histogram.0.iter().map(|bucket| bucket.bytes).sum();
    for bucket in &histogram.0 {
        let part = bucket.bytes as f64 / all.max(1) as f64;
        let bar = "#".repeat((part * BAR).round() as usize);
        let line = format!(
            "  {:>14}  {:>9}  {:>10}  {:>5.1} %  {bar}",
            name(bucket.from),
            bucket.count,
            binary(bucket.bytes, "B"),
            part * 100.0
        );
        let _ = writeln!(text, "{}", line.trim_end());
    }
}
