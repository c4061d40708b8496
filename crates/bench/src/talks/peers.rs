//! The section of the page that compares the file system with others: results of `nacre bench peers`.

use std::fmt::Write as _;
use std::path::Path;

use super::outcome::{Outcome, Results};
use crate::chart::escape;
use crate::error::Error;
use crate::peers::EXPERIMENT;
use crate::report::Report;

/// Loads the outcome in a file written by `bench peers --out`.
///
/// # Errors
///
/// If it cannot be read or has other content.
pub(super) fn load(path: &Path) -> Result<Outcome, Error> {
    let outcome = Results::load(path)?.of(EXPERIMENT).cloned();
    let found = outcome.filter(|outcome| outcome.report.is_some());
    found.ok_or_else(|| {
        let path = path.display();
        Error::Usage(format!(
            "{path} holds no figures of other file systems: write it with 'bench peers --out'"
        ))
    })
}

/// Formats the tables and notes of the report as HTML.
pub(super) fn peers_section(report: &Report) -> String {
    let mut html = format!(
        "<section id=\"peers\"><h2>Against others</h2>\n<p>{}; {}</p>\n",
        escape(&report.title),
        escape(&report.machine.to_string())
    );
    report.tables.iter().for_each(|table| html.push_str(&table_of(table)));
    html.push_str("<ul>\n");
    for note in &report.notes {
        let _ = writeln!(html, "<li>{}</li>", escape(note));
    }
    html.push_str("</ul></section>\n");
    html
}

/// Converts headings and a Markdown table to HTML.
pub(super) fn table_of(text: &str) -> String {
    let is_rule = |line: &&str| line.chars().all(|letter| "|- ".contains(letter));
    let (lines, heading): (Vec<&str>, Vec<&str>) =
        text.lines().filter(|line| !line.is_empty()).partition(|line| line.starts_with('|'));
    let mut html = format!("<h3>{}</h3>\n<div class=\"wide\"><table>\n", escape(&heading.join(" ")));
    for (index, line) in lines.into_iter().filter(|line| !is_rule(line)).enumerate() {
        let (begin, end) = if index == 0 { ("<th scope=\"col\">", "</th>") } else { ("<td>", "</td>") };
        let cells =
            line.trim_matches('|').split('|').map(|cell| format!("{begin}{}{end}", escape(cell.trim())));
        let _ = writeln!(html, "<tr>{}</tr>", cells.collect::<String>());
    }
    html.push_str("</table></div>\n");
    html
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_and_notes_are_shown_and_nothing_in_them_is_taken_for_html() {
        let mut report = Report::new("nacre against <b>");
        report
            .tables
            .push("Side by side\n\n| figure | a |\n| ------ | - |\n| create | 5 op/s [4..6] |\n".to_owned());
        report.notes.push("b: /mnt/b disappeared & is gone".to_owned());
        let html = peers_section(&report);
        assert!(
            html.contains("<h2>Against others</h2>") && html.contains("nacre against &lt;b&gt;"),
            "{html}"
        );
        assert!(
            html.contains("<h3>Side by side</h3>")
                && html.contains("<tr><th scope=\"col\">figure</th><th scope=\"col\">a</th></tr>")
        );
        assert!(html.contains("<tr><td>create</td><td>5 op/s [4..6]</td></tr>"), "{html}");
        assert!(html.contains("<li>b: /mnt/b disappeared &amp; is gone</li>") && !html.contains("---"));
    }

    #[test]
    fn a_file_of_other_results_is_refused() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("results.json");
        let mut results = Results::new("2026-11-24T00:00:00Z".to_owned(), "quick");
        let write = |results: &Results| {
            std::fs::write(&path, serde_json::to_string(results).expect("JSON")).expect("written");
        };
        write(&results);
        let said = load(&path).expect_err("no figures").to_string();
        assert!(said.contains("bench peers --out"), "{said}");
        let (experiment, report) = (EXPERIMENT.to_owned(), Some(Report::new("t")));
        results.put(Outcome {
            experiment,
            command: Vec::new(),
            seconds: 0.0,
            report,
            load: None,
            skipped: None,
        });
        write(&results);
        assert!(load(&path).is_ok_and(|outcome| outcome.report.is_some()));
    }
}
