//! Comparison of results of several versions: figures that improved or regressed beyond the noise.
//!
//! Rows with a baseline, whose runs alternated with it, are compared by their ratios to it, which are stable
//! when the machine is not; other rows by the figures.

use std::fmt::Write as _;
use std::path::PathBuf;

use serde::Serialize;

use crate::chart::{self, Form, Panel};
use crate::error::Error;
use crate::report::{Row, Unit};
use crate::sample::Samples;
use crate::stats::{Change, change, interval};
use crate::talks::Results;

/// `nacre bench compare`
#[derive(Debug, clap::Args)]
#[command(after_help = "Example: nacre bench compare bench/results/0.1.0-*.json talks/results.json --gate")]
pub struct CompareArguments {
    /// Results (results.json) of 'nacre bench talks', the oldest first
    #[arg(required = true, num_args = 2..)]
    files: Vec<PathBuf>,
    /// Exit with 1 if a figure of the last file is worse than in the first
    #[arg(long)]
    gate: bool,
    /// Show figures that are the same, and those that one file lacks
    #[arg(long)]
    all: bool,
    /// Print JSON instead of a table
    #[arg(long)]
    json: bool,
}

/// `nacre bench history`
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Example: nacre bench history bench/results/*.json --figure 'create, unique' --html history.html"
)]
pub struct HistoryArguments {
    /// Results (results.json) of 'nacre bench talks', in any order
    #[arg(required = true)]
    files: Vec<PathBuf>,
    /// Only figures whose names contain this
    #[arg(long, default_value = "")]
    figure: String,
    /// Also write a page with a chart of each figure there
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
}

/// Value of a figure in one file.
#[derive(Debug, Clone)]
struct Value {
    samples: Samples,
    is_ratio: bool,
    unit: Unit,
}

impl Value {
    fn of(row: &Row) -> Value {
        match row.ratios().filter(|ratios| ratios.count() > 0) {
            Some(samples) => Value { samples, is_ratio: true, unit: row.unit },
            None => Value { samples: row.samples.clone(), is_ratio: false, unit: row.unit },
        }
    }

    fn shown(&self) -> String {
        let found = interval(&self.samples);
        let [median, low, high] = [found.median, found.low, found.high].map(|value| match self.is_ratio {
            true => format!("{value:.2}"),
            false => self.unit.print(value),
        });
        format!("{median}{} [{low}..{high}]", if self.is_ratio { " x" } else { "" })
    }
}

/// A figure over all compared files.
#[derive(Debug, Serialize)]
struct Line {
    experiment: String,
    figure: String,
    /// Change from the first file to the last; `None` unless both have the figure.
    change: Option<Change>,
    /// Formatted values, a dash where a file lacks the figure.
    values: Vec<String>,
    #[serde(skip)]
    medians: Vec<Option<f64>>,
    #[serde(skip)]
    spreads: Vec<(f64, f64)>,
}

fn value(results: &Results, experiment: &str, figure: &str) -> Option<Value> {
    let report = results.of(experiment)?.report.as_ref()?;
    report.rows.iter().find(|row| row.name == figure).map(Value::of)
}

/// Returns every figure of any file, in order of first appearance.
fn lines(all: &[Results]) -> Vec<Line> {
    let mut names: Vec<(String, String)> = Vec::new();
    for results in all {
        for outcome in &results.outcomes {
            for row in outcome.report.iter().flat_map(|report| &report.rows) {
                let name = (outcome.experiment.clone(), row.name.clone());
                if !names.contains(&name) {
                    names.push(name);
                }
            }
        }
    }
    let line = |(experiment, figure): (String, String)| {
        let values: Vec<Option<Value>> =
            all.iter().map(|results| value(results, &experiment, &figure)).collect();
        let change = match (values.first(), values.last()) {
            (Some(Some(old)), Some(Some(new))) if old.is_ratio == new.is_ratio => {
                Some(change(&old.samples, &new.samples, old.unit.is_rate()))
            }
            _ => None,
        };
        let spread = |value: &Option<Value>| {
            value.as_ref().map_or((0.0, 0.0), |value| {
                let found = interval(&value.samples);
                (found.low, found.high)
            })
        };
        Line {
            experiment,
            figure,
            change,
            medians: values.iter().map(|value| value.as_ref().map(|value| value.samples.median())).collect(),
            spreads: values.iter().map(spread).collect(),
            values: values.iter().map(|value| value.as_ref().map_or("-".to_owned(), Value::shown)).collect(),
        }
    };
    names.into_iter().map(line).collect()
}

fn label(results: &Results) -> String {
    format!("{} {}", results.version, results.date.split('T').next().unwrap_or_default())
}

/// Returns the reason why these files cannot be compared, if there is one.
fn mismatch(all: &[Results]) -> Option<String> {
    let first = all.first()?;
    let odd = all.iter().find(|one| one.mode != first.mode)?;
    Some(format!("one file is of a {} run and another of a {} run: their sizes differ", first.mode, odd.mode))
}

pub(crate) fn load(files: &[PathBuf]) -> Result<Vec<Results>, Error> {
    files.iter().map(|path| Results::load(path)).collect()
}

/// Compares the last of some results with the first: one sentence, and a Markdown table of the figures that
/// changed.
///
/// # Errors
///
/// If the runs are of different kinds.
pub(crate) fn generations(all: &[Results]) -> Result<(String, String), Error> {
    if let Some(why) = mismatch(all) {
        return Err(Error::Usage(why));
    }
    let lines = lines(all);
    let count = |change| lines.iter().filter(|line| line.change == Some(change)).count();
    let sentence = format!(
        "Against {}, {} of {} figures that both have are better by more than the noise, {} are worse, and {} are the same.",
        all.first().map(label).unwrap_or_default(),
        count(Change::Better),
        lines.iter().filter(|line| line.change.is_some()).count(),
        count(Change::Worse),
        count(Change::Same),
    );
    Ok((sentence, table(all, &lines, false)))
}

/// Prints results next to each other. Returns false if the gate fails.
///
/// # Errors
///
/// If a file has no results, or those of another kind of run.
pub fn compare(arguments: &CompareArguments) -> Result<bool, Error> {
    let all = load(&arguments.files)?;
    if let Some(why) = mismatch(&all) {
        return Err(Error::Usage(why));
    }
    let lines = lines(&all);
    let worse = lines.iter().filter(|line| line.change == Some(Change::Worse)).count();
    if arguments.json {
        let json = serde_json::to_string_pretty(&lines).map_err(Error::usage)?;
        println!("{json}");
    } else {
        print!("{}", table(&all, &lines, arguments.all));
    }
    Ok(!(arguments.gate && worse > 0))
}

fn table(all: &[Results], lines: &[Line], with_same: bool) -> String {
    let labels: Vec<String> = all.iter().map(label).collect();
    let mut text = format!("| experiment | figure | {} | change |\n", labels.join(" | "));
    let _ = writeln!(text, "{}|", "| --- ".repeat(all.len() + 3));
    let (mut same, mut single) = (0, 0);
    for line in lines {
        let change = match line.change {
            Some(Change::Better) => "better",
            Some(Change::Worse) => "WORSE",
            Some(Change::Same) if !with_same => {
                same += 1;
                continue;
            }
            Some(Change::Same) => "within the noise",
            None if !with_same => {
                single += 1;
                continue;
            }
            None => "not in both",
        };
        let _ = writeln!(
            text,
            "| {} | {} | {} | {change} |",
            line.experiment,
            line.figure,
            line.values.join(" | ")
        );
    }
    if same > 0 {
        let _ = writeln!(text, "\n{same} figures are the same within the noise (--all shows them)");
    }
    if single > 0 {
        let _ = writeln!(text, "\n{single} figures are in one of the files only (--all shows them)");
    }
    let machines: Vec<&str> = all.iter().map(|one| one.machine.cpu.as_str()).collect();
    if machines.iter().any(|cpu| *cpu != machines[0]) {
        text.push_str("\nnote: the machines differ: only ratios ('x') can be compared\n");
    }
    text
}

/// Prints figures over versions.
///
/// # Errors
///
/// If a file has no results, or the page cannot be written.
pub fn history(arguments: &HistoryArguments) -> Result<(), Error> {
    let mut all = load(&arguments.files)?;
    all.sort_by(|one, other| one.date.cmp(&other.date));
    let mut lines = lines(&all);
    lines.retain(|line| line.figure.contains(&arguments.figure));
    let text = table(&all, &lines, true);
    print!("{text}");
    if let Some(path) = &arguments.html {
        let panels: Vec<Panel> = lines.iter().map(|line| panel(&all, line)).collect();
        let page = chart::page("Figures over versions", &[], &panels, &text);
        std::fs::write(path, page).map_err(Error::io("write", path))?;
    }
    Ok(())
}

fn panel(all: &[Results], line: &Line) -> Panel {
    let there: Vec<usize> = (0..all.len()).filter(|at| line.medians[*at].is_some()).collect();
    Panel {
        title: format!("{}: {}", line.experiment, line.figure),
        unit: if line.values.iter().any(|value| value.contains(" x [")) { "x" } else { "" },
        form: Form::Lines,
        places: there.iter().map(|at| label(&all[*at])).collect(),
        lines: vec![("median".to_owned(), there.iter().filter_map(|at| line.medians[*at]).collect())],
        spreads: vec![there.iter().map(|at| line.spreads[*at]).collect()],
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::{Against, Report};
    use crate::talks::outcome::Outcome;

    fn results(date: &str, ratio: f64, seconds: f64) -> Results {
        let mut results = Results::new(date.to_owned(), "quick");
        let mut report = Report::new("x");
        let samples = |value: f64| -> Samples {
            [0.99, 1.0, 1.01, 1.0, 1.0].map(|noise| noise * value).into_iter().collect()
        };
        let mut row = Row::new("PFL, write", Unit::BytesPerSecond, samples(100.0 * ratio));
        row.against = Some(Against::new("plain", Row::new("", Unit::BytesPerSecond, samples(100.0))));
        report.rows.extend([row, Row::new("time to come up", Unit::Seconds, samples(seconds))]);
        let (experiment, command) = ("lad17-pfl".to_owned(), Vec::new());
        results.put(Outcome {
            experiment,
            command,
            seconds: 1.0,
            load: None,
            report: Some(report),
            skipped: None,
        });
        results
    }

    #[test]
    fn what_changed_by_more_than_the_noise_is_named_with_its_direction() {
        let all = [results("2026-01-01T00:00:00Z", 1.0, 2.0), results("2026-02-01T00:00:00Z", 0.7, 1.0)];
        let lines = lines(&all);
        assert_eq!(
            lines.iter().map(|line| line.change).collect::<Vec<_>>(),
            [Some(Change::Worse), Some(Change::Better)]
        );
        let text = table(&all, &lines, false);
        assert!(text.contains("| lad17-pfl | PFL, write | 1.00 x [") && text.contains("WORSE"), "{text}");
        let (sentence, _) = generations(&all).expect("of one kind");
        assert!(sentence.contains("1 of 2 figures") && sentence.contains("1 are worse"), "{sentence}");
        let same = [all[0].clone(), results("2026-03-01T00:00:00Z", 1.02, 2.0)];
        let text = table(&same, &super::lines(&same), false);
        assert!(text.contains("2 figures are the same"), "{text}");
    }

    #[test]
    fn a_gate_closes_on_what_is_worse_and_runs_of_other_kinds_are_refused() {
        let dir = tempfile::tempdir().expect("a directory");
        let write = |name: &str, results: &Results| {
            let path = dir.path().join(name);
            std::fs::write(&path, serde_json::to_string(results).expect("JSON")).expect("written");
            path
        };
        let (old, new) =
            (results("2026-01-01T00:00:00Z", 1.0, 2.0), results("2026-02-01T00:00:00Z", 0.7, 2.0));
        let mut full = new.clone();
        full.mode = "full".to_owned();
        let files = [write("old", &old), write("new", &new), write("full", &full)];
        let with = |first: usize, last: usize, gate| CompareArguments {
            files: vec![files[first].clone(), files[last].clone()],
            gate,
            all: false,
            json: true,
        };
        assert!(!compare(&with(0, 1, true)).expect("compared"));
        assert!(
            compare(&with(0, 1, false)).expect("compared") && compare(&with(1, 0, true)).expect("compared")
        );
        assert!(compare(&with(0, 2, true)).expect_err("other sizes").to_string().contains("sizes differ"));
        let html = dir.path().join("page");
        let arguments =
            HistoryArguments { files: files[..2].to_vec(), figure: String::new(), html: Some(html.clone()) };
        history(&arguments).expect("drawn");
        assert_eq!(std::fs::read_to_string(html).expect("there").matches("<figure>").count(), 2);
    }
}
