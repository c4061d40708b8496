//! Figures of all paths in columns, and as rows of pairs.

use std::fmt::Write as _;

use super::Peer;
use crate::report::{Against, Row, Unit, markdown};
use crate::sample::Samples;

/// Explanation of the tables.
pub(super) const LEGEND: [&str; 4] = [
    "figures are medians of alternating rounds, in brackets the spread; in parentheses CPU time of the whole machine per operation",
    "a ratio above 1 is better for the first path, whether more or less is better for the figure",
    "cold means that the kernel's caches were emptied; what a file system keeps in its own processes stays",
    "durability is counted: flushes of the block device below for each fsync of an appended 4 KiB; figures of writes are not \
     comparable between one that is durable and one that is not",
];

/// Results by figure and path.
#[derive(Debug)]
pub(super) struct Figures {
    names: Vec<String>,
    /// Paths that are no candidates for the best of the others.
    bounds: Vec<bool>,
    lines: Vec<Line>,
}

#[derive(Debug)]
struct Line {
    name: String,
    unit: Unit,
    /// Results of each path.
    samples: Vec<Samples>,
    cpu_us: Vec<Samples>,
}

impl Figures {
    /// Creates an empty set for paths with these names; `bounds` marks those that are no candidates for the
    /// best of the others.
    pub(super) fn new(names: &[String], bounds: &[bool]) -> Figures {
        Figures { names: names.to_vec(), bounds: bounds.to_vec(), lines: Vec::new() }
    }

    /// Adds a result of a round on path `index`.
    pub(super) fn push(&mut self, name: &str, unit: Unit, index: usize, value: f64, cpu_us: Option<f64>) {
        let at = self.lines.iter().position(|line| line.name == name).unwrap_or_else(|| {
            let none = vec![Samples::new(); self.names.len()];
            self.lines.push(Line { name: name.to_owned(), unit, samples: none.clone(), cpu_us: none });
            self.lines.len() - 1
        });
        self.lines[at].samples[index].push(value);
        if let Some(cpu_us) = cpu_us {
            self.lines[at].cpu_us[index].push(cpu_us);
        }
    }

    /// Returns a row for each figure and pair of the first path with another, for `compare` and the page of
    /// the talks; a figure that only one path has is a row without comparison.
    pub(super) fn rows(&self) -> Vec<Row> {
        self.lines.iter().flat_map(|line| self.rows_of(line)).collect()
    }

    fn rows_of(&self, line: &Line) -> Vec<Row> {
        let row = |index: usize, name: String| {
            let mut row = Row::new(name, line.unit, line.samples[index].clone());
            row.cpu_us = line.cpu_us[index].clone();
            row
        };
        let has = |index: &usize| line.samples[*index].count() > 0;
        let alone = |index: usize| row(index, format!("{}, {}", line.name, self.names[index]));
        let others = (1..self.names.len()).filter(has);
        if !has(&0) {
            return others.map(alone).collect();
        }
        let pair = |other: usize| {
            let (subject, label) = (&self.names[0], &self.names[other]);
            let mut pair = row(0, format!("{}, {subject} to {label}", line.name));
            pair.against = Some(Against::new(label, row(other, String::new())));
            pair
        };
        let pairs: Vec<Row> = others.map(pair).collect();
        if pairs.is_empty() { vec![alone(0)] } else { pairs }
    }

    fn candidates(&self) -> impl Iterator<Item = usize> {
        (1..self.names.len()).filter(|&index| !self.bounds[index])
    }

    /// Formats a table with one column per path, and the ratios of the first to each other path and to the
    /// best of these.
    pub(super) fn table(&self) -> String {
        let (subject, others) = (&self.names[0], &self.names[1..]);
        let mut headings = vec!["figure".to_owned()];
        headings.extend(self.names.iter().cloned());
        headings.extend(others.iter().map(|name| format!("{subject} / {name}")));
        let has_best = self.candidates().count() > 1;
        if has_best {
            headings.push(format!("{subject} / best of the others"));
        }
        let mut lines = vec![headings];
        for line in &self.lines {
            let mut cells = vec![line.name.clone()];
            cells.extend((0..self.names.len()).map(|index| line.cell(index)));
            cells.extend((1..self.names.len()).map(|other| line.ratio(other).map_or(dash(), shown)));
            if has_best {
                let best = line.best(self.candidates()).and_then(|best| Some((best, line.ratio(best)?)));
                cells.push(best.map_or(dash(), |(best, ratio)| format!("{ratio:.2} ({})", self.names[best])));
            }
            lines.push(cells);
        }
        format!("Side by side\n\n{}", shown_table(&lines))
    }
}

impl Line {
    fn cell(&self, index: usize) -> String {
        let samples = &self.samples[index];
        if samples.count() == 0 {
            return dash();
        }
        let mut text = self.unit.print(samples.median());
        if samples.count() > 1 {
            let _ = write!(
                text,
                " [{}..{}]",
                self.unit.print_bare(samples.min()),
                self.unit.print_bare(samples.max())
            );
        }
        if self.cpu_us[index].count() > 0 {
            let _ = write!(text, " ({:.0} us)", self.cpu_us[index].median());
        }
        text
    }

    /// Returns how many times better the first path is than `other`: the median over rounds.
    fn ratio(&self, other: usize) -> Option<f64> {
        let (ours, theirs) = (&self.samples[0], &self.samples[other]);
        let ratios = if self.unit.is_rate() { ours.ratio(theirs) } else { theirs.ratio(ours) };
        (ratios.count() > 0).then(|| ratios.median())
    }

    /// Returns the best of some paths.
    fn best(&self, of: impl Iterator<Item = usize>) -> Option<usize> {
        let measured = of.filter(|&index| self.samples[index].count() > 0);
        measured.max_by(|&a, &b| {
            let order = self.samples[a].median().total_cmp(&self.samples[b].median());
            if self.unit.is_rate() { order } else { order.reverse() }
        })
    }
}

fn dash() -> String {
    "-".to_owned()
}

fn shown(ratio: f64) -> String {
    format!("{ratio:.2}")
}

/// Describes each path and states whether an fsync on it is durable.
pub(super) fn description(peers: &[&Peer]) -> String {
    let mut lines = vec![["path", "version", "file system", "fsync"].map(str::to_owned).to_vec()];
    for peer in peers {
        let durable = match &peer.counter {
            Ok(_) => peer.flushes.verdict(),
            Err(why) => format!("not counted: {why}"),
        };
        let kind = peer.file_system.clone();
        let version = peer.version.clone().unwrap_or_else(dash);
        lines.push(vec![peer.name.clone(), version, kind, durable]);
    }
    format!("What was measured\n\n{}", shown_table(&lines))
}

/// Formats a table of lines, the first of which is the heading.
fn shown_table(lines: &[Vec<String>]) -> String {
    // A vertical bar would start another cell.
    let cell = |cell: &String| cell.replace('|', "/").replace('\n', " ");
    let lines: Vec<Vec<String>> = lines.iter().map(|line| line.iter().map(cell).collect()).collect();
    markdown(&lines, false)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figures() -> Figures {
        let names = ["ours", "slow", "fast"].map(str::to_owned);
        let mut figures = Figures::new(&names, &[false; 3]);
        for (index, rates) in
            [[100.0, 120.0, 110.0], [50.0, 60.0, 55.0], [200.0, 240.0, 220.0]].iter().enumerate()
        {
            for rate in rates {
                figures.push("create", Unit::OpsPerSecond, index, *rate, Some(7.0));
            }
        }
        for (index, seconds) in [2.0, 8.0].iter().enumerate() {
            figures.push("untar", Unit::Seconds, index, *seconds, None);
        }
        figures.push("read", Unit::BytesPerSecond, 2, 5e6, None);
        figures
    }

    #[test]
    fn the_first_path_is_set_against_each_other_and_the_best() {
        let table = figures().table();
        let line = |name: &str| -> Vec<String> {
            let line = table.lines().find(|line| line.starts_with(&format!("| {name} "))).expect("a line");
            line.trim_matches('|').split('|').map(|cell| cell.trim().to_owned()).collect()
        };
        let [heading, create, untar, read] = ["figure", "create", "untar", "read"].map(line);
        assert_eq!(heading[4..], ["ours / slow", "ours / fast", "ours / best of the others"]);
        assert_eq!(create[1], "110 op/s [100..120] (7 us)");
        assert_eq!(create[4..], ["2.00", "0.50", "0.50 (fast)"]);
        assert_eq!(untar[1..], ["2.00 s", "8.00 s", "-", "4.00", "-", "4.00 (slow)"], "less time is better");
        assert_eq!(read[1..], ["-", "-", "5 MB/s", "-", "-", "-"]);
    }

    #[test]
    fn a_bound_is_shown_and_is_not_the_best() {
        let mut figures = figures();
        figures.names.push("ceiling".to_owned());
        figures.bounds.push(true);
        for line in &mut figures.lines {
            line.samples.push([1e9].into_iter().collect());
            line.cpu_us.push(Samples::new());
        }
        let table = figures.table();
        assert!(table.contains("ours / ceiling") && table.contains("0.50 (fast)"), "{table}");
        assert!(!table.contains("(ceiling)"), "{table}");
    }

    #[test]
    fn rows_are_pairs_of_runs_that_alternated() {
        let rows = figures().rows();
        let names: Vec<&str> = rows.iter().map(|row| row.name.as_str()).collect();
        assert_eq!(
            names,
            ["create, ours to slow", "create, ours to fast", "untar, ours to slow", "read, fast"]
        );
        assert_eq!((rows[0].ratio(), rows[1].ratio()), (Some(2.0), Some(0.5)));
        assert_eq!(rows[2].against.as_ref().map(|other| other.label.as_str()), Some("slow"));
        assert_eq!(rows[0].cpu_us.count(), 3);
        assert!(rows[3].against.is_none());
    }

    #[test]
    fn a_path_alone_has_no_ratios() {
        let mut figures = Figures::new(&["one".to_owned()], &[false]);
        figures.push("create", Unit::OpsPerSecond, 0, 1.0, None);
        assert_eq!(figures.rows()[0].name, "create, one");
        assert!(!figures.table().contains('/') || !figures.table().contains("best"));
    }

    #[test]
    fn bars_and_line_ends_in_a_cell_do_not_break_the_table() {
        let lines = [vec!["a|b".to_owned(), "c".to_owned()], vec!["d\ne".to_owned(), "f".to_owned()]];
        assert_eq!(shown_table(&lines), "| a/b | c |\n| --- | - |\n| d e | f |\n");
    }
}
