//! The experiments: the claim of each talk, the commands that test it, and the figures that decide whether it
//! holds here.

mod cray;
mod lad17;
mod lug17;
mod seagate;
mod whamcloud;

use crate::stats::Bound;

/// One of the talks that the file system starts from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Talk {
    Lad17,
    Lug17,
    Cray,
    Whamcloud,
    Seagate,
}

impl Talk {
    pub(super) const ALL: [Talk; 5] = [Talk::Lad17, Talk::Lug17, Talk::Cray, Talk::Whamcloud, Talk::Seagate];

    pub(super) fn title(self) -> &'static str {
        match self {
            Talk::Lad17 => "LAD'17, Intel: Lustre from 2.9 to 2.10",
            Talk::Lug17 => "LUG'17, Intel: client I/O in parallel",
            Talk::Cray => "Cray 2019: flash for shared applications",
            Talk::Whamcloud => "Whamcloud 2019: optimizations for flash",
            Talk::Seagate => "Seagate 2017: fragmentation and capacity",
        }
    }
}

/// Words that are all in the name of a row.
pub(super) type Words = &'static [&'static str];

/// A figure that decides a claim.
#[derive(Debug, Clone, Copy)]
pub(super) struct Check {
    /// The claim, as the end of a sentence about the figure.
    pub(super) says: &'static str,
    /// The row under test.
    pub(super) row: Words,
    /// Divisor of the row: another row, or its baseline.
    pub(super) by: Option<Words>,
    pub(super) bound: Bound,
}

/// Value of a row in a chart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Value {
    /// The ratio to the baseline; 1 for the baseline itself.
    Ratio,
    /// The figure itself.
    Figure,
}

/// A chart of rows: a value for each place and series, selected by the words of both.
#[derive(Debug, Clone, Copy)]
pub(super) struct Chart {
    pub(super) title: &'static str,
    pub(super) value: Value,
    /// Places are on a scale, and joined by lines.
    pub(super) is_scale: bool,
    pub(super) places: &'static [(&'static str, Words)],
    pub(super) lines: &'static [(&'static str, Words)],
}

/// Resources that an experiment requires.
#[derive(Debug, Clone, Copy)]
pub(super) struct Needs {
    /// Available memory, also in the directory in memory, for the sizes of the catalogue, in MiB.
    pub(super) memory_mib: u64,
    /// Free space on the disk of the output directory, in MiB.
    pub(super) disk_mib: u64,
    pub(super) is_root: bool,
}

/// A command with its approximate run time on two CPUs.
#[derive(Debug, Clone, Copy)]
pub(super) struct Run {
    /// Arguments of the program; `{dir}` is a new directory in memory, `{disk}` one on the disk of the output
    /// directory, `{cpus:N}` and `{mib:N}` are sizes ([`super::scale`]).
    pub(super) words: &'static str,
    pub(super) seconds: u64,
}

/// An experiment.
#[derive(Debug, Clone, Copy)]
pub(super) struct Experiment {
    pub(super) name: &'static str,
    pub(super) talk: Talk,
    pub(super) title: &'static str,
    /// Claim of the talk.
    pub(super) claim: &'static str,
    /// Commands and their configuration.
    pub(super) shape: &'static str,
    /// What is simulated, if anything.
    pub(super) simulated: Option<&'static str>,
    /// Condition under which a write or change counts as done.
    pub(super) durability: &'static str,
    /// Bottleneck of the figures in a profile (November 2026, 2 CPUs); shown where a claim does not hold.
    pub(super) profile: Option<&'static str>,
    pub(super) needs: Needs,
    pub(super) quick: Run,
    pub(super) full: Run,
    pub(super) checks: &'static [Check],
    pub(super) charts: &'static [Chart],
}

const fn own(says: &'static str, row: Words, bound: Bound) -> Check {
    Check { says, row, by: None, bound }
}

const SERVICE: &str = "each metadata operation takes 2 ms, one at a time for each MDT";

const FABRIC: &str = "a fabric of 250 MB/s and 0.2 ms each way for each endpoint";

/// Returns all experiments, by talk.
pub(super) fn experiments() -> impl Iterator<Item = &'static Experiment> {
    [lad17::EXPERIMENTS, lug17::EXPERIMENTS, cray::EXPERIMENTS, whamcloud::EXPERIMENTS, seagate::EXPERIMENTS]
        .into_iter()
        .flatten()
}
