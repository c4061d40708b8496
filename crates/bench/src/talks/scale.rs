//! Sizes for the machine.
//!
//! The catalogue is written for two CPUs. In the arguments of a run `{cpus:N}` is N for every two CPUs, and
//! `{mib:N}` is N MiB, halved where memory or disk is short and doubled where there is plenty.

use super::catalogue::{Experiment, Needs, Run};

/// Available resources.
#[derive(Debug, Clone, Copy)]
pub(super) struct Supply {
    pub(super) cpus: u64,
    /// Available memory, or free space in the directory in memory if that is less, in MiB.
    pub(super) memory_mib: u64,
    /// Free space on the disk of the output directory, in MiB.
    pub(super) disk_mib: u64,
}

/// A run with fixed sizes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Sized {
    /// Arguments of the program; with `{dir}` and `{disk}` as in [`Run`].
    pub(super) words: String,
    /// Approximate run time in seconds.
    pub(super) seconds: u64,
    pub(super) memory_mib: u64,
    pub(super) disk_mib: u64,
}

/// Number of times that sizes are halved, at most; smaller ones give no meaningful figures.
const HALVINGS: u32 = 2;
/// Number of times that sizes are doubled, at most, in long runs.
const DOUBLINGS: u32 = 2;
/// Divisor of the available memory: the share that a run larger than the catalogue's takes, at most.
const SPARE: u64 = 2;
/// CPUs up to which work grows, in short runs and in long ones: more tasks take longer to start.
const CPUS_MAX: (u64, u64) = (8, 64);

/// Returns the largest form of `run` that fits `supply`; the smallest one if none does.
pub(super) fn fit(experiment: &Experiment, run: &Run, supply: Supply) -> Sized {
    let is_short = std::ptr::eq(run, &experiment.quick);
    let scales = run.words.contains("{mib:");
    let doublings = if is_short || !scales { 0 } else { DOUBLINGS };
    let halvings = if scales { HALVINGS } else { 0 };
    let sized = |halvings: u32, doublings: u32| {
        let scaled = |mib: u64| (mib << doublings) >> halvings;
        let Needs { memory_mib, disk_mib, .. } = experiment.needs;
        Sized {
            words: filled(run.words, "{mib:", scaled).unwrap_or_else(|| run.words.to_owned()),
            // An upper bound: parts with a fixed duration do not grow with sizes.
            seconds: run.seconds << doublings,
            memory_mib: scaled(memory_mib),
            disk_mib: scaled(disk_mib),
        }
    };
    let larger = (1..=doublings).rev().map(|times| (sized(0, times), SPARE));
    let smaller = (0..=halvings).map(|times| (sized(times, 0), 1));
    let fits = |(one, spare): &(Sized, u64)| {
        one.memory_mib * spare <= supply.memory_mib && one.disk_mib * spare <= supply.disk_mib
    };
    let found = larger.chain(smaller).find(fits).map(|(one, _)| one);
    let mut one = found.unwrap_or_else(|| sized(halvings, 0));
    let cpus_max = if is_short { CPUS_MAX.0 } else { CPUS_MAX.1 };
    let pairs = (supply.cpus.min(cpus_max) / 2).max(1);
    one.words = filled(&one.words, "{cpus:", |each| each * pairs).unwrap_or(one.words);
    one
}

/// Replaces each `{name:N}` by `of(N)`; `None` for a malformed placeholder, which a test of the catalogue
/// detects.
fn filled(words: &str, begin: &str, of: impl Fn(u64) -> u64) -> Option<String> {
    let mut parts = words.split(begin);
    let mut text = parts.next()?.to_owned();
    for part in parts {
        let (number, rest) = part.split_once('}')?;
        text.push_str(&of(number.parse().ok()?).to_string());
        text.push_str(rest);
    }
    Some(text)
}

/// Selects the form of each experiment to run in `hours`: the short one by default, and the long one of as
/// many as there is time for, the quickest first. `seconds_of` is the run time of a form here.
pub(super) fn forms<'a>(
    experiments: &[&'a Experiment],
    hours: f64,
    seconds_of: impl Fn(&Experiment, &Run) -> u64,
) -> Vec<&'a Run> {
    let mut chosen: Vec<&Run> = experiments.iter().map(|one| &one.quick).collect();
    let more = |index: usize| {
        let one = experiments[index];
        seconds_of(one, &one.full).saturating_sub(seconds_of(one, &one.quick))
    };
    let mut left_s = hours * 3600.0;
    left_s -= experiments.iter().map(|one| seconds_of(one, &one.quick) as f64).sum::<f64>();
    let mut order: Vec<usize> = (0..experiments.len()).collect();
    order.sort_by_key(|&index| more(index));
    for index in order {
        if more(index) as f64 > left_s {
            break;
        }
        left_s -= more(index) as f64;
        chosen[index] = &experiments[index].full;
    }
    chosen
}

#[cfg(test)]
mod tests {
    use super::super::catalogue::experiments;
    use super::*;

    const PLENTY: Supply = Supply { cpus: 2, memory_mib: 1 << 20, disk_mib: 1 << 20 };

    fn named(name: &str) -> &'static Experiment {
        experiments().find(|one| one.name == name).expect("it is in the catalogue")
    }

    #[test]
    fn every_place_holder_of_the_catalogue_is_filled() {
        for one in experiments() {
            for run in [&one.quick, &one.full] {
                for cpus in [1, 2, 64] {
                    let words = fit(one, run, Supply { cpus, ..PLENTY }).words;
                    let left = words.replace("{dir}", "").replace("{disk}", "");
                    assert!(!left.contains('{') && !left.contains('}'), "{words}");
                }
            }
        }
    }

    #[test]
    fn sizes_follow_memory_and_short_runs_do_not_grow() {
        let one = named("lad17-pfl");
        let size = |run: &Run, memory_mib: u64| {
            let sized = fit(one, run, Supply { memory_mib, ..PLENTY });
            let words: Vec<&str> = sized.words.split(' ').collect();
            let at = words.iter().position(|word| *word == "--size-mib").expect("it has a size");
            (words[at + 1].parse::<u64>().expect("a number"), sized.memory_mib)
        };
        let needed = one.needs.memory_mib;
        let (short, _) = size(&one.quick, needed);
        assert_eq!(size(&one.quick, needed * 100), (short, needed));
        assert_eq!(size(&one.quick, needed - 1), (short / 2, needed / 2));
        assert_eq!(size(&one.quick, needed / 4), (short / 4, needed / 4));
        assert_eq!(
            size(&one.quick, 0),
            (short / 4, needed / 4),
            "what does not fit is told by what it needs"
        );
        let (long, _) = size(&one.full, needed);
        assert_eq!(size(&one.full, needed * 4 - 1), (long, needed));
        assert_eq!(size(&one.full, needed * 4), (long * 2, needed * 2), "half of the memory stays free");
        assert_eq!(size(&one.full, needed * 100), (long * 4, needed * 4));
    }

    #[test]
    fn tasks_follow_the_cpus() {
        let one = named("lad17-dne");
        let tasks = |cpus: u64| {
            let words = fit(one, &one.quick, Supply { cpus, ..PLENTY }).words;
            let (_, rest) = words.split_once("--tasks ").expect("it has tasks");
            rest.split(' ').next().and_then(|word| word.parse::<u64>().ok()).expect("a number")
        };
        let few = tasks(2);
        assert_eq!((tasks(1), tasks(3), tasks(8), tasks(500)), (few, few, few * 4, few * 4));
    }

    #[test]
    fn hours_are_given_to_long_forms_the_quickest_first() {
        let all: Vec<&Experiment> = experiments().collect();
        let seconds_of = |_: &Experiment, run: &Run| run.seconds;
        let long = |hours: f64| {
            let chosen = forms(&all, hours, seconds_of);
            let is_long = |(one, run): (&&Experiment, &&Run)| std::ptr::eq(*run, &one.full);
            let taken: u64 = chosen.iter().map(|run| run.seconds).sum();
            (all.iter().zip(&chosen).filter(|pair| is_long(*pair)).count(), taken)
        };
        assert_eq!(long(0.0).0, 0);
        let (some, taken) = long(1.0);
        assert!(some > 0 && some < all.len() && taken <= 3600, "{some}, {taken} s");
        let (more, _) = long(2.0);
        assert!(more > some);
        assert_eq!(long(1e3).0, all.len());
    }
}
