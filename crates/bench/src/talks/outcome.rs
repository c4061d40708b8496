//! Results of an experiment, as stored, and their evaluation.

use std::path::Path;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::catalogue::{Check, Experiment, Words};
pub use super::load::Load;
use crate::error::Error;
use crate::machine::Machine;
use crate::report::{Against, Report, Row, Unit};
use crate::sample::Samples;
use crate::stats::{Bound, Interval, Verdict, decide, interval};

/// Version of the format; files of other versions are rejected.
const FORM: u32 = 1;

/// Result of one experiment of a run.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Outcome {
    /// Name of the experiment.
    pub experiment: String,
    /// Arguments of its command.
    pub command: Vec<String>,
    /// Run time in seconds.
    pub seconds: f64,
    /// Load of other processes; results of older versions have none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub load: Option<Load>,
    /// Its figures; `None` if it was left out.
    pub report: Option<Report>,
    /// Reason why it was left out.
    pub skipped: Option<String>,
}

/// All experiments of a run: the content of `results.json`.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Results {
    form: u32,
    /// Version of the program.
    pub version: String,
    /// Commit that the program was built from, 12 hexadecimal digits; empty if it was built outside of a
    /// checkout.
    #[serde(default)]
    pub commit: String,
    /// Start of the run: 2026-11-24T12:00:00Z.
    pub date: String,
    /// Machine of the run.
    pub machine: Machine,
    /// `quick` or `full`.
    pub mode: String,
    /// Results in the order of the catalogue.
    pub outcomes: Vec<Outcome>,
}

impl Results {
    pub(crate) fn new(date: String, mode: &str) -> Results {
        let version = env!("CARGO_PKG_VERSION").to_owned();
        Results {
            form: FORM,
            version,
            commit: env!("NACRE_COMMIT").to_owned(),
            date,
            machine: Machine::look(),
            mode: mode.to_owned(),
            outcomes: Vec::new(),
        }
    }

    /// Reads a file of results.
    ///
    /// # Errors
    ///
    /// If it cannot be read, has other content, or another version of the format.
    pub fn load(path: &Path) -> Result<Results, Error> {
        let text = std::fs::read_to_string(path).map_err(Error::io("read", path))?;
        let wrong = |why: String| Error::Usage(format!("{}: {why}", path.display()));
        let value: Value =
            serde_json::from_str(&text).map_err(|error| wrong(format!("is no JSON: {error}")))?;
        match value.get("form").and_then(Value::as_u64) {
            Some(form) if form == u64::from(FORM) => {}
            Some(form) => {
                return Err(wrong(format!(
                    "holds results of form {form}, and this version reads form {FORM}: compare with the version that wrote it"
                )));
            }
            None => return Err(wrong("holds no results of 'nacre bench talks'".to_owned())),
        }
        serde_json::from_value(value).map_err(|error| wrong(format!("is damaged: {error}")))
    }

    pub(crate) fn of(&self, experiment: &str) -> Option<&Outcome> {
        self.outcomes.iter().find(|outcome| outcome.experiment == experiment)
    }

    /// Adds an outcome, replacing an earlier one of the same experiment.
    pub(crate) fn put(&mut self, outcome: Outcome) {
        self.outcomes.retain(|known| known.experiment != outcome.experiment);
        self.outcomes.push(outcome);
    }
}

/// Result of a check.
#[derive(Debug, Clone)]
pub(super) struct Found {
    pub(super) says: &'static str,
    pub(super) bound: Bound,
    pub(super) verdict: Verdict,
    pub(super) interval: Interval,
    pub(super) runs: usize,
}

/// Returns the only row with these words in its name.
pub(super) fn row_with(report: &Report, words: Words) -> Option<&Row> {
    report.rows.iter().find(|row| words.iter().all(|word| row.name.contains(word)))
}

fn ratios(report: &Report, check: &Check) -> Option<Samples> {
    let row = row_with(report, check.row)?;
    match check.by {
        Some(other) => Some(row.samples.ratio(&row_with(report, other)?.samples)),
        None => row.ratios(),
    }
}

/// Evaluates the checks of an experiment; those whose rows this run did not take are left out.
pub(super) fn found(experiment: &Experiment, report: &Report) -> Vec<Found> {
    let of = |check: &Check| {
        let ratios = ratios(report, check)?;
        let verdict = decide(&ratios, check.bound);
        let (says, bound, runs) = (check.says, check.bound, ratios.count());
        Some(Found { says, bound, verdict, interval: interval(&ratios), runs })
    };
    experiment.checks.iter().filter_map(of).collect()
}

/// Combines all checks; undecided without any.
pub(super) fn verdict(found: &[Found]) -> Verdict {
    let all = found.iter().map(|found| found.verdict).reduce(Verdict::and);
    all.unwrap_or(Verdict::Undecided)
}

/// Converts the results of `nacre paf run --json` or `nacre paf backends --json` to rows: each state and
/// transfer size against the first state.
pub(super) fn of_paf(text: &str) -> Result<Report, String> {
    let value: Value = serde_json::from_str(text).map_err(|error| error.to_string())?;
    let mut report = Report::new(value["title"].as_str().unwrap_or("Populated and fragmented"));
    report.notes = notes_of(&value).map(str::to_owned).collect();
    let Some(lines) = value["lines"].as_array() else {
        add_paf(&mut report, "", &value)?;
        return Ok(report);
    };
    for line in lines {
        let name = line["name"].as_str().unwrap_or("?");
        if let Some(why) = line["left_out"].as_str() {
            report.notes.push(format!("{name} is left out: {why}"));
            continue;
        }
        report.notes.extend(notes_of(&line["results"]).map(|note| format!("{name}: {note}")));
        add_paf(&mut report, &format!("{name}: "), &line["results"])?;
    }
    if report.rows.is_empty() {
        return Err(report.notes.join("; "));
    }
    Ok(report)
}

fn notes_of(value: &Value) -> impl Iterator<Item = &str> {
    value["notes"].as_array().into_iter().flatten().filter_map(Value::as_str)
}

/// Adds the rows of one run, with `prefix` in front of their names.
fn add_paf(report: &mut Report, prefix: &str, value: &Value) -> Result<(), String> {
    let lines = value["results"].as_array().ok_or("it has no results")?;
    let samples = |line: &Value, what: &str| -> Samples {
        line[what].as_array().into_iter().flatten().filter_map(Value::as_f64).collect()
    };
    let first = lines.first().map(|line| line["paf"].clone()).unwrap_or_default();
    for what in ["write", "read"] {
        for line in lines {
            let (state, xfer) = (line["paf"].as_str().unwrap_or("?"), line["xfer"].as_u64().unwrap_or(0));
            let name = format!("{prefix}{state}, {what}, {}", nacre_common::size::show(xfer));
            let mut row = Row::new(name, Unit::BytesPerSecond, samples(line, what));
            let base = lines.iter().find(|one| one["paf"] == first && one["xfer"] == line["xfer"]);
            if let Some(base) = base.filter(|_| line["paf"] != first) {
                row.against = Some(Against::of(first.as_str().unwrap_or("?"), samples(base, what)));
            }
            report.rows.push(row);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::talks::catalogue::experiments;

    fn report(ours: [f64; 5]) -> Report {
        let mut report = Report::new("x");
        let mut row = Row::new(
            "PFL, file per process, sequential write",
            Unit::BytesPerSecond,
            ours.into_iter().collect(),
        );
        let plain = Row::new("", Unit::BytesPerSecond, [100.0; 5].into_iter().collect());
        row.against = Some(Against::new("plain", plain));
        report.rows.push(row);
        report
    }

    #[test]
    fn a_claim_is_decided_by_its_rows_and_those_that_are_missing_are_left_out() {
        let pfl = experiments().find(|one| one.name == "lad17-pfl").expect("there");
        for (ours, expected) in [
            ([104.0, 103.0, 105.0, 104.0, 103.0], Verdict::Shown),
            ([80.0, 81.0, 82.0, 80.0, 79.0], Verdict::NotShown),
            ([80.0, 120.0, 99.0, 97.0, 110.0], Verdict::Undecided),
        ] {
            let found = found(pfl, &report(ours));
            assert_eq!(found.len(), 1, "there is no row of reads");
            assert_eq!(verdict(&found), expected, "{ours:?}");
        }
        assert_eq!(verdict(&[]), Verdict::Undecided);
    }

    #[test]
    fn a_check_may_divide_one_row_by_another() {
        let mut report = Report::new("x");
        for (name, value) in [("one PFL, 4 KiB writes", 50.0), ("all on the disks, 4 KiB writes", 5.0)] {
            report.rows.push(Row::new(name, Unit::OpsPerSecond, [value; 3].into_iter().collect()));
        }
        let check = Check {
            says: "",
            row: &["one PFL"],
            by: Some(&["all on the disks"]),
            bound: Bound::AtLeast(10.0),
        };
        assert_eq!(ratios(&report, &check).expect("both").median(), 10.0);
    }

    #[test]
    fn results_of_paf_become_rows_against_the_empty_state() {
        let text = r#"{"title":"t","notes":["n"],"results":[
            {"paf":"PaF:00.00","capacity":0,"fragment":0,"xfer":1048576,"write":[10.0,12.0],"read":[20.0]},
            {"paf":"PaF:10.30","capacity":10,"fragment":30,"xfer":1048576,"write":[5.0,6.0],"read":[10.0]}]}"#;
        let report = of_paf(text).expect("results");
        assert_eq!(report.rows.len(), 4);
        let row = row_with(&report, &["PaF:10.30", "write"]).expect("there");
        assert_eq!((row.ratio(), row.name.as_str()), (Some(0.5), "PaF:10.30, write, 1 MiB"));
        assert!(row_with(&report, &["PaF:00.00", "read"]).expect("there").against.is_none());
        assert!(of_paf("{}").is_err() && of_paf("x").is_err());
        let lines = format!(
            r#"{{"title":"t","notes":[],"lines":[
            {{"name":"ext4","results":{text}}},{{"name":"xfs","left_out":"mkfs.xfs: none"}}]}}"#
        );
        let report = of_paf(&lines).expect("results");
        let row = row_with(&report, &["ext4: PaF:10.30, read"]).expect("there");
        assert_eq!((row.ratio(), report.rows.len()), (Some(0.5), 4));
        assert_eq!(report.notes, ["ext4: n", "xfs is left out: mkfs.xfs: none"]);
        let none = r#"{"lines":[{"name":"xfs","left_out":"mkfs.xfs: none"}]}"#;
        assert!(of_paf(none).expect_err("nothing").contains("mkfs.xfs: none"));
    }

    #[test]
    fn files_that_hold_no_results_or_those_of_another_form_are_refused_in_one_sentence() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("results.json");
        let mut results = Results::new("2026-11-24T00:00:00Z".to_owned(), "quick");
        results.put(Outcome {
            experiment: "lad17-pfl".to_owned(),
            command: vec!["bench".to_owned()],
            seconds: 1.5,
            load: None,
            report: Some(report([1.0; 5])),
            skipped: None,
        });
        let text = serde_json::to_string(&results).expect("JSON");
        std::fs::write(&path, &text).expect("written");
        let back = Results::load(&path).expect("read");
        assert_eq!(back.of("lad17-pfl").and_then(|one| one.report.as_ref()).expect("there").rows.len(), 1);
        for (wrong, says) in [
            (text.replace("\"form\":1", "\"form\":9"), "form 9"),
            ("{\"a\":1}".to_owned(), "no results"),
            ("nonsense".to_owned(), "no JSON"),
            ("{\"form\":1}".to_owned(), "damaged"),
        ] {
            std::fs::write(&path, wrong).expect("written");
            let said = Results::load(&path).expect_err(says).to_string();
            assert!(said.contains(says), "{said}");
        }
    }
}
