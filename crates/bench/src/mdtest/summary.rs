//! Rates of all phases and iterations, in the form of mdtest's summary and as JSON.

use std::fmt::Write as _;

use serde::Serialize;

use super::plan::Kind;
use super::task::Phase;
use crate::team::Span;

/// Rows of the table in order.
const ROWS: [(Phase, &str); 9] = [
    (Phase::Create(Kind::Directory), "Directory creation"),
    (Phase::Stat(Kind::Directory), "Directory stat"),
    (Phase::Remove(Kind::Directory), "Directory removal"),
    (Phase::Create(Kind::File), "File creation"),
    (Phase::Stat(Kind::File), "File stat"),
    (Phase::Read, "File read"),
    (Phase::Remove(Kind::File), "File removal"),
    (Phase::TreeCreate, "Tree creation"),
    (Phase::TreeRemove, "Tree removal"),
];

/// One phase in one iteration, all tasks together.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub(super) struct Result {
    /// Number of operations.
    pub(super) items: u64,
    /// Time from the first task's start to the last one's end, in seconds.
    pub(super) seconds: f64,
    /// CPU time that the whole machine spent during the phase, in microseconds.
    pub(super) busy_us: u64,
}

impl Result {
    /// Aggregates the spans of the tasks, with the machine's CPU time.
    pub(super) fn of(spans: &[Span], busy_us: u64) -> Result {
        // Idle tasks, such as all but the first for a common tree, are not timed.
        let busy = || spans.iter().filter(|span| span.items > 0);
        let start = busy().map(|span| span.start_ns).min().unwrap_or(0);
        let end = busy().map(|span| span.end_ns).max().unwrap_or(0);
        let items = spans.iter().map(|span| span.items).sum();
        Result { items, seconds: (end - start) as f64 / 1e9, busy_us }
    }

    /// Returns operations per second; 0 if there were none.
    pub(super) fn rate(&self) -> f64 {
        if self.items == 0 { 0.0 } else { self.items as f64 / self.seconds.max(1e-9) }
    }
}

/// A row: a phase over all iterations.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Row {
    operation: &'static str,
    results: Vec<Result>,
    max: f64,
    min: f64,
    mean: f64,
    std_dev: f64,
}

impl Row {
    fn new(operation: &'static str, results: Vec<Result>) -> Row {
        let rates: Vec<f64> = results.iter().map(Result::rate).collect();
        let max = rates.iter().copied().fold(0.0, f64::max);
        let min = rates.iter().copied().reduce(f64::min).unwrap_or(0.0);
        let (mean, std_dev) = mean_and_deviation(&rates);
        Row { operation, results, max, min, mean, std_dev }
    }
}

/// Returns mean and standard deviation of a sample (n - 1), as mdtest does; 0 for a single value.
fn mean_and_deviation(values: &[f64]) -> (f64, f64) {
    if values.is_empty() {
        return (0.0, 0.0);
    }
    let mean = values.iter().sum::<f64>() / values.len() as f64;
    let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
    let degrees = values.len() as f64 - 1.0;
    (mean, if degrees > 0.0 { (squares / degrees).sqrt() } else { 0.0 })
}

/// Returns all rows: those of `kinds`, with zeros for phases that were not run, and those of the tree.
pub(super) fn rows(kinds: &[Kind], results: &[(Phase, Result)]) -> Vec<Row> {
    let shown = |phase: Phase| match phase {
        Phase::Create(kind) | Phase::Stat(kind) | Phase::Remove(kind) => kinds.contains(&kind),
        Phase::Read => kinds.contains(&Kind::File),
        Phase::TreeCreate | Phase::TreeRemove => true,
    };
    let of = |wanted: Phase| {
        results.iter().filter(move |(phase, _)| *phase == wanted).map(|(_, result)| *result).collect()
    };
    ROWS.into_iter()
        .filter(|(phase, _)| shown(*phase))
        .map(|(phase, name)| Row::new(name, of(phase)))
        .collect()
}

/// Formats the table.
pub(super) fn table(rows: &[Row], iterations: u64) -> String {
    let mut text = format!("SUMMARY rate (in ops/sec): (of {iterations} iterations)\n");
    text.push_str("   Operation                     Max            Min           Mean        Std Dev\n");
    text.push_str("   ---------                     ---            ---           ----        -------\n");
    for row in rows {
        let Row { operation, max, min, mean, std_dev, .. } = row;
        let _ = writeln!(text, "   {operation:<22}{max:>15.3}{min:>15.3}{mean:>15.3}{std_dev:>15.3}");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_phase_lasts_from_the_first_start_to_the_last_end() {
        let span = |start_ns, end_ns, items| Span { start_ns, end_ns, items };
        let result =
            Result::of(&[span(1_000_000_000, 2_000_000_000, 10), span(1_500_000_000, 3_000_000_000, 10)], 7);
        assert_eq!(result, Result { items: 20, seconds: 2.0, busy_us: 7 });
        assert_eq!(result.rate(), 10.0);
        let alone = Result::of(&[span(5, 1_000_000_005, 3), span(1, 2, 0)], 0);
        assert_eq!(alone.rate(), 3.0);
        assert_eq!(Result::of(&[span(1, 2, 0)], 0).rate(), 0.0);
    }

    #[test]
    fn deviation_is_that_of_a_sample() {
        let (mean, deviation) = mean_and_deviation(&[17_607.220, 16_615.711]);
        assert_eq!((format!("{mean:.3}"), format!("{deviation:.3}")), ("17111.465".into(), "701.103".into()));
        assert_eq!(mean_and_deviation(&[3.0]), (3.0, 0.0));
    }

    #[test]
    fn the_table_has_mdtests_form() {
        let result = |items, seconds| Result { items, seconds, busy_us: 0 };
        let results = [
            (Phase::TreeCreate, result(2, 0.02)),
            (Phase::Create(Kind::File), result(35_214, 2.0)),
            (Phase::Create(Kind::File), result(33_231, 2.0)),
        ];
        let text = table(&rows(&[Kind::File], &results), 2);
        let golden = "\
SUMMARY rate (in ops/sec): (of 2 iterations)
   Operation                     Max            Min           Mean        Std Dev
   ---------                     ---            ---           ----        -------
   File creation               17607.000      16615.500      17111.250        701.096
   File stat                       0.000          0.000          0.000          0.000
   File read                       0.000          0.000          0.000          0.000
   File removal                    0.000          0.000          0.000          0.000
   Tree creation                 100.000        100.000        100.000          0.000
   Tree removal                    0.000          0.000          0.000          0.000
";
        assert_eq!(text, golden);
    }
}
