//! Statistics of a few noisy runs: a confidence interval of the median, and whether a claim holds.
//!
//! The interval is a percentile bootstrap: medians of samples drawn from the runs with replacement, without
//! the tails. The draws follow from a fixed seed, so that the same runs always give the same verdict.

use fastrand::Rng;
use serde::{Deserialize, Serialize};

use crate::sample::Samples;

/// Number of samples drawn for an interval.
const DRAWS: usize = 2000;
/// Share of the drawn medians outside of an interval, both tails together.
const LEFT_OUT: f64 = 0.05;
/// Number of runs below which nothing is decided.
pub(crate) const RUNS_MIN: usize = 3;
const SEED: u64 = 0x6e61_6372_6531;

/// Confidence interval of the median.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Interval {
    /// Median of the runs.
    pub median: f64,
    /// Lower end.
    pub low: f64,
    /// Upper end.
    pub high: f64,
}

/// Computes the 95 % interval of the median; for fewer than [`RUNS_MIN`] runs it spans all values.
pub(crate) fn interval(samples: &Samples) -> Interval {
    let values = samples.values();
    let median = samples.median();
    if values.len() < RUNS_MIN {
        return Interval { median, low: samples.min(), high: samples.max() };
    }
    let mut random = Rng::with_seed(SEED);
    let mut medians: Vec<f64> = (0..DRAWS)
        .map(|_| {
            let drawn = (0..values.len()).map(|_| values[random.usize(..values.len())]);
            drawn.collect::<Samples>().median()
        })
        .collect();
    medians.sort_by(f64::total_cmp);
    let at = |part: f64| medians[((DRAWS - 1) as f64 * part).round() as usize];
    Interval { median, low: at(LEFT_OUT / 2.0), high: at(1.0 - LEFT_OUT / 2.0) }
}

/// A claim about a figure.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub enum Bound {
    /// The figure is at least this.
    AtLeast(f64),
    /// The figure is at most this.
    AtMost(f64),
}

/// Result of a test of a claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    /// The whole interval is within the bound.
    Shown,
    /// The whole interval is outside the bound.
    NotShown,
    /// The noise is larger than the distance of the figure to the bound, or there are too few runs.
    Undecided,
}

impl Verdict {
    /// Returns the verdict in words.
    pub fn name(self) -> &'static str {
        match self {
            Verdict::Shown => "shown",
            Verdict::NotShown => "not shown",
            Verdict::Undecided => "not decidable here",
        }
    }

    /// Combines the verdicts of claims made together: all have to be shown, and one that is not is enough to
    /// refute.
    pub(crate) fn and(self, other: Verdict) -> Verdict {
        match (self, other) {
            (Verdict::NotShown, _) | (_, Verdict::NotShown) => Verdict::NotShown,
            (Verdict::Undecided, _) | (_, Verdict::Undecided) => Verdict::Undecided,
            (Verdict::Shown, Verdict::Shown) => Verdict::Shown,
        }
    }
}

/// Tests runs against a bound.
pub(crate) fn decide(samples: &Samples, bound: Bound) -> Verdict {
    if samples.count() < RUNS_MIN {
        return Verdict::Undecided;
    }
    let Interval { low, high, .. } = interval(samples);
    let (all, none) = match bound {
        Bound::AtLeast(least) => (low >= least, high < least),
        Bound::AtMost(most) => (high <= most, low > most),
    };
    match (all, none) {
        (true, _) => Verdict::Shown,
        (_, true) => Verdict::NotShown,
        _ => Verdict::Undecided,
    }
}

/// Change of a figure between two series of runs that did not alternate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Change {
    /// Better by more than the noise.
    Better,
    /// Worse by more than the noise.
    Worse,
    /// The intervals overlap, or are nearer to each other than [`NOISE_MIN`].
    Same,
}

/// Relative change of two medians that counts as noise: shared machines vary by this from one hour to the
/// next.
pub(crate) const NOISE_MIN: f64 = 0.10;

/// Compares medians by their intervals. `more_is_better` is the direction of the figure.
pub(crate) fn change(old: &Samples, new: &Samples, more_is_better: bool) -> Change {
    if old.count() < RUNS_MIN || new.count() < RUNS_MIN || old.median() <= 0.0 {
        return Change::Same;
    }
    let (old, new) = (interval(old), interval(new));
    let ratio = new.median / old.median;
    if (ratio - 1.0).abs() < NOISE_MIN {
        return Change::Same;
    }
    match (new.low > old.high, new.high < old.low) {
        (true, _) if more_is_better => Change::Better,
        (_, true) if !more_is_better => Change::Better,
        (false, false) => Change::Same,
        _ => Change::Worse,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns runs around `truth` with approximately normal noise in percent.
    fn runs(random: &mut Rng, truth: f64, noise: f64, count: usize) -> Samples {
        let unit = |random: &mut Rng| random.u64(..1 << 32) as f64 / (1u64 << 32) as f64;
        let normal = |random: &mut Rng| (0..12).map(|_| unit(random)).sum::<f64>() - 6.0;
        (0..count).map(|_| truth * (1.0 + noise / 100.0 * normal(random))).collect()
    }

    /// Returns the number of trials in a hundred with this verdict.
    fn rate(truth: f64, noise: f64, count: usize, bound: Bound, wanted: Verdict) -> usize {
        let mut random = Rng::with_seed(7);
        let trials = (0..400).map(|_| decide(&runs(&mut random, truth, noise, count), bound));
        trials.filter(|verdict| *verdict == wanted).count() / 4
    }

    #[test]
    fn an_interval_holds_the_median_and_lies_within_the_runs() {
        let samples: Samples = [3.0, 1.0, 2.0, 5.0, 4.0].into_iter().collect();
        let Interval { median, low, high } = interval(&samples);
        assert_eq!(median, 3.0);
        assert!((1.0..=2.0).contains(&low) && (4.0..=5.0).contains(&high), "{low} {high}");
        assert_eq!(interval(&samples), interval(&samples));
        let two: Samples = [1.0, 2.0].into_iter().collect();
        assert_eq!(interval(&two), Interval { median: 1.0, low: 1.0, high: 2.0 });
    }

    #[test]
    fn the_interval_of_a_median_holds_the_truth_nine_times_out_of_ten() {
        let mut random = Rng::with_seed(3);
        for count in [5, 9] {
            let held = (0..400).filter(|_| {
                let found = interval(&runs(&mut random, 100.0, 10.0, count));
                (found.low..=found.high).contains(&100.0)
            });
            assert!(held.count() >= 360, "{count} runs");
        }
    }

    #[test]
    fn what_is_not_so_is_seldom_shown_and_what_is_clear_is_found() {
        let least = Bound::AtLeast(2.0);
        // False alarms: just short of the bound, at three levels of noise.
        for noise in [2.0, 10.0, 30.0] {
            assert!(rate(1.98, noise, 5, least, Verdict::Shown) <= 6, "{noise} %");
            assert!(rate(2.02, noise, 5, least, Verdict::NotShown) <= 6, "{noise} %");
        }
        // Detection: a distance of four times the noise.
        assert!(rate(2.8, 10.0, 5, least, Verdict::Shown) >= 95);
        assert!(rate(1.4, 10.0, 5, least, Verdict::NotShown) >= 95);
        assert!(rate(1.4, 10.0, 5, Bound::AtMost(2.0), Verdict::Shown) >= 95);
        // Noise larger than the effect leaves the verdict open.
        assert!(rate(2.1, 30.0, 5, least, Verdict::Undecided) >= 70);
        assert_eq!(rate(9.0, 1.0, 2, least, Verdict::Undecided), 100);
    }

    #[test]
    fn several_claims_hold_together_or_not() {
        use Verdict::{NotShown, Shown, Undecided};
        assert_eq!(Shown.and(Shown), Shown);
        assert_eq!(Shown.and(Undecided), Undecided);
        assert_eq!(NotShown.and(Undecided), NotShown);
    }

    #[test]
    fn a_change_is_one_beyond_the_noise_and_knows_its_direction() {
        let mut random = Rng::with_seed(5);
        let mut of = |truth| runs(&mut random, truth, 3.0, 5);
        let (old, same, up, down) = (of(100.0), of(101.0), of(140.0), of(70.0));
        assert_eq!(change(&old, &same, true), Change::Same);
        assert_eq!([change(&old, &up, true), change(&old, &up, false)], [Change::Better, Change::Worse]);
        assert_eq!([change(&old, &down, true), change(&old, &down, false)], [Change::Worse, Change::Better]);
        assert_eq!(change(&old, &[1.0, 1.0].into_iter().collect(), true), Change::Same);
        let mut alarms = 0;
        for _ in 0..400 {
            let (one, other) = (runs(&mut random, 100.0, 10.0, 5), runs(&mut random, 100.0, 10.0, 5));
            alarms += usize::from(change(&one, &other, true) != Change::Same);
        }
        assert!(alarms <= 12, "{alarms} of 400");
    }
}
