//! Medians and spreads.

use serde::{Deserialize, Serialize};

/// The results of several runs of one measurement.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Samples(Vec<f64>);

impl Samples {
    /// Creates an empty set.
    pub fn new() -> Samples {
        Samples(Vec::new())
    }

    /// Adds a run. Values that are not finite are dropped: they come from runs without any operation.
    pub fn push(&mut self, value: f64) {
        if value.is_finite() {
            self.0.push(value);
        }
    }

    /// Returns the median, the lower of two middle values; 0 without runs.
    pub fn median(&self) -> f64 {
        let mut sorted = self.0.clone();
        sorted.sort_by(f64::total_cmp);
        match sorted.len() {
            0 => 0.0,
            count => sorted[(count - 1) / 2],
        }
    }

    /// Returns the smallest value; 0 without runs.
    pub fn min(&self) -> f64 {
        self.0.iter().copied().min_by(f64::total_cmp).unwrap_or(0.0)
    }

    /// Returns the largest value; 0 without runs.
    pub fn max(&self) -> f64 {
        self.0.iter().copied().max_by(f64::total_cmp).unwrap_or(0.0)
    }

    /// Returns the values in the order of the runs.
    pub fn values(&self) -> &[f64] {
        &self.0
    }

    /// Returns the number of runs.
    pub fn count(&self) -> usize {
        self.0.len()
    }

    /// Returns the values multiplied by `factor`.
    pub fn scaled(&self, factor: f64) -> Samples {
        self.0.iter().map(|value| value * factor).collect()
    }

    /// Divides by `other`, run by run: for alternating runs, so that the n-th of both saw the same machine.
    pub fn ratio(&self, other: &Samples) -> Samples {
        let mut ratios = Samples::new();
        for (ours, theirs) in self.0.iter().zip(&other.0) {
            ratios.push(ours / theirs);
        }
        ratios
    }
}

impl FromIterator<f64> for Samples {
    fn from_iter<I: IntoIterator<Item = f64>>(values: I) -> Samples {
        let mut samples = Samples::new();
        values.into_iter().for_each(|value| samples.push(value));
        samples
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn median_is_the_middle_of_the_sorted_runs() {
        let samples: Samples = [5.0, 1.0, 9.0, 2.0, 3.0].into_iter().collect();
        assert_eq!(samples.median(), 3.0);
        assert_eq!((samples.min(), samples.max(), samples.count()), (1.0, 9.0, 5));
        assert_eq!([4.0, 2.0].into_iter().collect::<Samples>().median(), 2.0);
        assert_eq!(Samples::new().median(), 0.0);
    }

    #[test]
    fn ratios_pair_runs_and_leave_out_empty_ones() {
        let ours: Samples = [2.0, 6.0, 8.0].into_iter().collect();
        let theirs: Samples = [1.0, 2.0, 0.0].into_iter().collect();
        let ratio = ours.ratio(&theirs);
        assert_eq!(ratio.count(), 2);
        assert_eq!(ratio.median(), 2.0);
    }
}
