//! Figures of a process at one moment, and of all processes of a file system.

use crate::families::{self, Family};
use crate::jobs::JobTotals;
use nacre_params::TIME_ROWS;
use serde::{Deserialize, Serialize};
use std::borrow::Cow;
use std::collections::BTreeMap;

/// Upper bounds of the rows of [`Times`], in seconds; a last row has all longer times. Every second row of
/// the counters: half as much text, and neighbours differ by a factor of four.
pub const TIME_BOUNDS_S: [f64; 11] = {
    let mut bounds = [0.0; 11];
    let mut row = 0;
    while row < bounds.len() {
        bounds[row] = (1u64 << (FIRST_ROW + STEP * row)) as f64 / 1e6;
        row += 1;
    }
    bounds
};
/// The first bound is 16 microseconds, the last one 16.8 seconds.
const FIRST_ROW: usize = 4;
const STEP: usize = 2;

/// A histogram of times.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Times {
    /// Events by row, see [`TIME_BOUNDS_S`].
    pub counts: Vec<u64>,
    /// Sum of the times in seconds.
    pub sum_s: f64,
}

impl Times {
    /// Converts the histogram of a counter. `sum_us` is the sum of its times.
    pub fn of(rows: &[u64; TIME_ROWS], sum_us: u64) -> Times {
        let mut counts = vec![0; TIME_BOUNDS_S.len() + 1];
        for (row, count) in rows.iter().enumerate() {
            let place = row.saturating_sub(FIRST_ROW).div_ceil(STEP).min(TIME_BOUNDS_S.len());
            counts[place] += count;
        }
        Times { counts, sum_s: sum_us as f64 / 1e6 }
    }

    /// Returns the number of events.
    pub fn count(&self) -> u64 {
        self.counts.iter().fold(0, |sum, count| sum.saturating_add(*count))
    }
}

/// Value of a row.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Value {
    /// Of a counter or gauge.
    Number(f64),
    /// Of a histogram.
    Times(Times),
}

/// A row of a family: the values of its labels, and its value.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Row(pub Vec<Cow<'static, str>>, pub Value);

/// Rows by the names of their families.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Sample {
    rows: BTreeMap<Cow<'static, str>, Vec<Row>>,
}

impl Sample {
    /// Adds a number to the family `name` of [`families::FAMILIES`].
    pub fn put(&mut self, name: &'static str, labels: &[&str], value: f64) {
        let labels = labels.iter().map(|label| Cow::Owned((*label).to_owned())).collect();
        self.add(name, labels, Value::Number(value));
    }

    /// Adds a number with a label and a fixed one.
    pub fn put_kind(&mut self, name: &'static str, label: &str, kind: &'static str, value: f64) {
        self.add(name, vec![Cow::Owned(label.to_owned()), Cow::Borrowed(kind)], Value::Number(value));
    }

    /// Adds a histogram with a label and a fixed one.
    pub fn put_times(&mut self, name: &'static str, label: &str, kind: &'static str, times: Times) {
        self.add(name, vec![Cow::Owned(label.to_owned()), Cow::Borrowed(kind)], Value::Times(times));
    }

    fn add(&mut self, name: &'static str, labels: Vec<Cow<'static, str>>, value: Value) {
        debug_assert!(
            families::find(name).is_some_and(|family| family.labels.len() == labels.len()),
            "{name} has no such family or labels: {labels:?}"
        );
        self.rows.entry(Cow::Borrowed(name)).or_default().push(Row(labels, value));
    }

    /// Returns the rows of a family with as many labels as the family has: a process of another version may
    /// have sent others.
    pub fn rows(&self, family: &'static Family) -> impl Iterator<Item = &Row> {
        let rows = self.rows.get(family.name).map_or(&[][..], Vec::as_slice);
        rows.iter().filter(|row| row.0.len() == family.labels.len())
    }

    /// Returns the number of the row with these labels.
    pub fn number(&self, name: &str, labels: &[&str]) -> Option<f64> {
        let rows = self.rows.get(name)?;
        match rows.iter().find(|row| row.0.iter().eq(labels))?.1 {
            Value::Number(number) => Some(number),
            Value::Times(_) => None,
        }
    }
}

/// What a process says about itself.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ProcessSample {
    /// `node`, `mgs`, `mdt0000`, `ost0000`, `mount`.
    pub name: String,
    /// Names of the targets that it serves, `OST0000`.
    pub targets: Vec<String>,
    /// Its figures.
    pub sample: Sample,
    /// Its jobs, the busiest first.
    pub jobs: Vec<JobTotals>,
}

/// All processes of a file system at one moment.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Snapshot {
    /// Milliseconds since 1970.
    pub at_ms: u64,
    /// Name of the file system.
    pub fsname: String,
    /// Processes that answered.
    pub processes: Vec<ProcessSample>,
    /// Processes that should run and did not answer, with their targets.
    pub missing: Vec<(String, Vec<String>)>,
    /// Jobs of all processes; the last one stands for the rest, if there is one.
    pub jobs: Vec<JobTotals>,
    /// Names of owners by kind and number, where the reader has looked them up.
    #[serde(skip)]
    pub owner_names: BTreeMap<(String, String), String>,
    /// Time to gather this, in seconds.
    pub took_s: f64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn histograms_keep_every_event_in_a_row_with_a_bound_above_it() {
        let rows: [u64; TIME_ROWS] = std::array::from_fn(|row| 1 << row);
        let times = Times::of(&rows, 3_000_000);
        assert_eq!(times.count(), (1 << TIME_ROWS) - 1);
        assert_eq!(times.counts[0], 0b1_1111, "up to 16 microseconds");
        assert_eq!(times.counts[1], 0b110_0000, "up to 64 microseconds");
        assert_eq!(times.counts[11], 1 << 25, "above the last bound");
        assert_eq!((TIME_BOUNDS_S[0], TIME_BOUNDS_S[10], times.sum_s), (16e-6, 16.777_216, 3.0));
    }

    #[test]
    fn samples_pass_through_json_and_rows_of_other_versions_are_left_out() {
        let mut sample = Sample::default();
        sample.put("nacre_target_up", &["OST0000"], 1.0);
        sample.put_times(
            "nacre_request_duration_seconds",
            "OST0000",
            "ost_read",
            Times { counts: vec![1, 2], sum_s: 0.5 },
        );
        let text = serde_json::to_string(&sample).expect("plain data");
        assert_eq!(serde_json::from_str::<Sample>(&text).expect("what was written"), sample);
        let other: Sample =
            serde_json::from_str(r#"{"nacre_target_up":[[["a","b"],1],[["OST0001"],0]],"nosuch":[[[],1]]}"#)
                .expect("well-formed");
        let family = families::find("nacre_target_up").expect("it is known");
        assert_eq!(other.rows(family).count(), 1);
        assert_eq!(other.number("nacre_target_up", &["OST0001"]), Some(0.0));
    }
}
