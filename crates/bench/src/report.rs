//! Tables for people and JSON for programs.

use std::fmt::Write as _;

use serde::{Deserialize, Serialize};

use crate::machine::Machine;
use crate::sample::Samples;

/// Unit of a figure; decides how it is printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Unit {
    /// Operations per second.
    #[serde(rename = "op/s")]
    OpsPerSecond,
    /// Bytes per second, printed as MB/s (10^6).
    #[serde(rename = "B/s")]
    BytesPerSecond,
    /// Bytes, printed as MiB.
    #[serde(rename = "B")]
    Bytes,
    /// Seconds.
    #[serde(rename = "s")]
    Seconds,
    /// Milliseconds.
    #[serde(rename = "ms")]
    Milliseconds,
}

impl Unit {
    /// Returns true if more is better.
    pub(crate) fn is_rate(self) -> bool {
        matches!(self, Unit::OpsPerSecond | Unit::BytesPerSecond)
    }

    pub(crate) fn print(self, value: f64) -> String {
        match self {
            Unit::OpsPerSecond if value >= 1e6 => format!("{:.2}M op/s", value / 1e6),
            Unit::OpsPerSecond if value >= 1e4 => format!("{:.1}K op/s", value / 1e3),
            Unit::OpsPerSecond => format!("{value:.0} op/s"),
            Unit::BytesPerSecond => format!("{:.0} MB/s", value / 1e6),
            Unit::Bytes => format!("{:.1} MiB", value / f64::from(1 << 20)),
            Unit::Seconds => format!("{value:.2} s"),
            Unit::Milliseconds => format!("{value:.2} ms"),
        }
    }

    /// Formats the number without its unit.
    pub(crate) fn print_bare(self, value: f64) -> String {
        self.print(value).split(' ').next().unwrap_or_default().to_owned()
    }
}

/// One line of a report: a figure, optionally with a baseline and a target.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Row {
    /// Operation that was measured.
    pub name: String,
    /// Unit of `samples` and `against`.
    pub unit: Unit,
    /// One value per run.
    pub samples: Samples,
    /// CPU time of the whole machine per operation (per MiB for throughput) in microseconds; empty if not
    /// measured.
    pub cpu_us: Samples,
    /// CPU time of the processes that serve the file system, in the same unit; empty if not measured.
    pub daemon_us: Samples,
    /// Baseline of the comparison.
    pub against: Option<Against>,
    /// Target of the ratio to `against`, or of the value itself without a baseline.
    pub target: Option<Target>,
}

/// The baseline of a comparison.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Against {
    /// Name of the baseline.
    pub label: String,
    /// Values of runs that alternated with those of the row, in the row's unit.
    pub samples: Samples,
    /// CPU time of its serving processes per operation (per MiB for throughput) in microseconds; empty if not
    /// measured.
    pub daemon_us: Samples,
}

impl Against {
    /// Creates a baseline without CPU times.
    pub fn of(label: impl Into<String>, samples: Samples) -> Against {
        Against { label: label.into(), samples, daemon_us: Samples::new() }
    }

    /// Creates a baseline from the figures of `row`.
    pub fn new(label: impl Into<String>, row: Row) -> Against {
        Against { label: label.into(), samples: row.samples, daemon_us: row.daemon_us }
    }
}

/// A target for a row.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub enum Target {
    /// At least this ratio.
    RatioAtLeast(f64),
    /// At least this value, in the row's unit.
    AtLeast(f64),
    /// At most this value, in the row's unit.
    AtMost(f64),
}

impl Row {
    /// Creates a row without comparison.
    pub fn new(name: impl Into<String>, unit: Unit, samples: Samples) -> Row {
        let name = name.into();
        let (cpu_us, daemon_us) = (Samples::new(), Samples::new());
        Row { name, unit, samples, cpu_us, daemon_us, against: None, target: None }
    }

    /// Returns the ratios to `against`, run by run.
    pub fn ratios(&self) -> Option<Samples> {
        self.against.as_ref().map(|other| self.samples.ratio(&other.samples))
    }

    /// Returns the median of the ratios to `against`, if there is one.
    pub fn ratio(&self) -> Option<f64> {
        self.ratios().map(|ratios| ratios.median())
    }

    /// Returns whether the target is met; `None` without a target.
    pub fn meets_target(&self) -> Option<bool> {
        match self.target? {
            Target::RatioAtLeast(bound) => self.ratio().map(|ratio| ratio >= bound),
            Target::AtLeast(bound) => Some(self.samples.median() >= bound),
            Target::AtMost(bound) => Some(self.samples.median() <= bound),
        }
    }

    /// Returns the verdict: a target that the median misses but some run meets is marked as possibly missed
    /// by noise alone.
    fn verdict(&self) -> &'static str {
        let within = match self.target {
            Some(Target::RatioAtLeast(bound)) => self.ratios().is_some_and(|ratios| ratios.max() >= bound),
            Some(Target::AtLeast(bound)) => self.samples.max() >= bound,
            Some(Target::AtMost(bound)) => self.samples.min() <= bound,
            None => false,
        };
        match self.meets_target() {
            Some(true) => "met",
            Some(false) if within => "missed, in the spread",
            Some(false) => "MISSED",
            None => "not measured",
        }
    }

    fn cells(&self) -> [String; 7] {
        let spread = |samples: &Samples| {
            format!("[{}..{}]", self.unit.print_bare(samples.min()), self.unit.print_bare(samples.max()))
        };
        let micros = |samples: &Samples| match samples.count() {
            0 => String::new(),
            _ => format!("{:.1}", samples.median()),
        };
        let against = self.against.as_ref().map_or(String::new(), |other| {
            format!("{} {} {}", other.label, self.unit.print(other.samples.median()), spread(&other.samples))
        });
        let theirs = self.against.as_ref().map_or(String::new(), |other| micros(&other.daemon_us));
        let daemons = match (micros(&self.daemon_us), theirs) {
            (ours, theirs) if theirs.is_empty() => ours,
            (ours, theirs) => format!("{ours} / {theirs}"),
        };
        let ratio = self.ratios().map_or(String::new(), |ratios| {
            format!("{:.2} [{:.2}..{:.2}]", ratios.median(), ratios.min(), ratios.max())
        });
        let target = match self.target {
            Some(Target::RatioAtLeast(bound)) => format!(">= {bound:.2} {}", self.verdict()),
            Some(Target::AtLeast(bound)) => format!(">= {} {}", self.unit.print(bound), self.verdict()),
            Some(Target::AtMost(bound)) => format!("<= {} {}", self.unit.print(bound), self.verdict()),
            None => String::new(),
        };
        [
            self.name.clone(),
            format!("{} {}", self.unit.print(self.samples.median()), spread(&self.samples)),
            micros(&self.cpu_us),
            daemons,
            against,
            ratio,
            target,
        ]
    }
}

/// Formats a Markdown table that is legible as plain text, the first line as its heading; a line may have
/// fewer cells than that.
pub(crate) fn markdown(lines: &[Vec<String>], is_right: bool) -> String {
    let columns = lines.first().map_or(0, Vec::len);
    let width = |column: usize| {
        lines.iter().filter_map(|line| line.get(column)).map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let mut text = String::new();
    for (index, line) in lines.iter().enumerate() {
        let cell = |(cell, &width): (&String, &usize)| match is_right {
            true => format!("{cell:>width$}"),
            false => format!("{cell:width$}"),
        };
        let cells: Vec<String> = line.iter().zip(&widths).map(cell).collect();
        let _ = writeln!(text, "| {} |", cells.join(" | "));
        if index == 0 {
            let rule = |&width: &usize| match is_right {
                true => format!("{}:", "-".repeat(width.saturating_sub(1))),
                false => "-".repeat(width),
            };
            let _ = writeln!(text, "| {} |", widths.iter().map(rule).collect::<Vec<_>>().join(" | "));
        }
    }
    text
}

/// The results of one command.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Report {
    /// Subject of the figures.
    pub title: String,
    /// Machine that they were taken on.
    pub machine: Machine,
    /// The figures.
    pub rows: Vec<Row>,
    /// Notes for readers, e.g. what was left out and why.
    pub notes: Vec<String>,
    /// Figures in other forms, each a heading and a Markdown table.
    pub tables: Vec<String>,
}

impl Report {
    /// Creates an empty report with the properties of this machine.
    pub fn new(title: impl Into<String>) -> Report {
        let (rows, notes, tables) = (Vec::new(), Vec::new(), Vec::new());
        Report { title: title.into(), machine: Machine::look(), rows, notes, tables }
    }

    /// Formats a Markdown table that is legible as plain text, without empty columns.
    pub fn table(&self) -> String {
        let headings = ["what", "median [spread]", "CPU us/op", "of daemons", "against", "ratio", "target"];
        let mut lines: Vec<[String; 7]> = vec![headings.map(str::to_owned)];
        lines.extend(self.rows.iter().map(Row::cells));
        let used: Vec<usize> =
            (0..headings.len()).filter(|&column| lines[1..].iter().any(|l| !l[column].is_empty())).collect();
        let mut text = format!("{}\n{}\n\n", self.title, self.machine);
        // All figures may be in other tables.
        if !self.rows.is_empty() {
            let cells = |line: &[String; 7]| used.iter().map(|&column| line[column].clone()).collect();
            text.push_str(&markdown(&lines.iter().map(cells).collect::<Vec<_>>(), false));
        }
        for note in &self.notes {
            let _ = writeln!(text, "note: {note}");
        }
        for table in &self.tables {
            let _ = write!(text, "\n{table}");
        }
        text
    }

    /// Formats one JSON object, with every run.
    pub fn json(&self) -> String {
        serde_json::to_string(self).expect("a report has no keys other than strings")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(values: [f64; 3]) -> Row {
        Row::new("create", Unit::OpsPerSecond, values.into_iter().collect())
    }

    #[test]
    fn a_row_against_another_knows_its_ratio_and_verdict() {
        let mut row = row([50.0, 100.0, 150.0]);
        let bound: Samples = [100.0, 200.0, 200.0].into_iter().collect();
        row.against = Some(Against { label: "null".into(), samples: bound, daemon_us: Samples::new() });
        row.target = Some(Target::RatioAtLeast(0.6));
        assert_eq!(row.ratio(), Some(0.5));
        assert_eq!(row.meets_target(), Some(false));
        assert_eq!(row.verdict(), "missed, in the spread");
        row.target = Some(Target::RatioAtLeast(0.8));
        assert_eq!(row.verdict(), "MISSED");
        row.target = Some(Target::RatioAtLeast(0.5));
        assert_eq!(row.meets_target(), Some(true));
        row.target = Some(Target::AtLeast(120.0));
        assert_eq!(row.verdict(), "missed, in the spread");
        row.target = Some(Target::AtMost(120.0));
        assert_eq!(row.verdict(), "met");
    }

    #[test]
    fn tables_leave_empty_columns_out_and_json_keeps_every_run() {
        let mut report = Report::new("title");
        report.rows.push(row([20_000.0, 10_000.0, 30_000.0]));
        let table = report.table();
        assert!(table.contains("| create | 20.0K op/s [10.0K..30.0K] |"), "{table}");
        assert!(!table.contains("against"), "{table}");
        let json: serde_json::Value = serde_json::from_str(&report.json()).expect("own output is JSON");
        assert_eq!(json["rows"][0]["samples"][1], 10_000.0);
        assert_eq!(json["rows"][0]["unit"], "op/s");
    }
}
