//! The experiments: what each talk says, what is run for it, and which figures decide whether it is so here.

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

/// Words that the name of a row contains, all of them.
pub(super) type Words = &'static [&'static str];

/// One figure that decides.
#[derive(Debug, Clone, Copy)]
pub(super) struct Check {
    /// What is claimed, as the end of a sentence about the figure.
    pub(super) says: &'static str,
    /// The row.
    pub(super) row: Words,
    /// What the row is divided by: another one, or what it ran against by turns.
    pub(super) by: Option<Words>,
    pub(super) bound: Bound,
}

/// What a chart shows of a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Value {
    /// The ratio to what it ran against; 1 for a row that is what others are compared with.
    Ratio,
    /// The figure.
    Figure,
}

/// A chart of rows: a value for each place and line, found by the words of both.
#[derive(Debug, Clone, Copy)]
pub(super) struct Chart {
    pub(super) title: &'static str,
    pub(super) value: Value,
    /// Places that lie on a scale are joined by lines.
    pub(super) is_scale: bool,
    pub(super) places: &'static [(&'static str, Words)],
    pub(super) lines: &'static [(&'static str, Words)],
}

/// What an experiment needs of the machine.
#[derive(Debug, Clone, Copy)]
pub(super) struct Needs {
    /// Available in memory, and in the directory in memory, for the sizes of the catalogue.
    pub(super) memory_mib: u64,
    /// Free on the disk of the output directory.
    pub(super) disk_mib: u64,
    pub(super) is_root: bool,
}

/// A command and about how long it takes on two CPUs.
#[derive(Debug, Clone, Copy)]
pub(super) struct Run {
    /// What follows the program; `{dir}` is a new directory in memory, `{disk}` one on the disk of the output directory,
    /// `{cpus:N}` and `{mib:N}` are sizes ([`super::scale`]).
    pub(super) words: &'static str,
    pub(super) seconds: u64,
}

/// An experiment.
#[derive(Debug, Clone, Copy)]
pub(super) struct Experiment {
    pub(super) name: &'static str,
    pub(super) talk: Talk,
    pub(super) title: &'static str,
    /// What the talk says.
    pub(super) claim: &'static str,
    /// What runs, and how.
    pub(super) shape: &'static str,
    /// What is simulated, if anything is.
    pub(super) simulated: Option<&'static str>,
    /// When what is written or changed counts as done.
    pub(super) durability: &'static str,
    /// What bounded the figures when they were profiled (November 2026, 2 CPUs); shown where a claim is not.
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

/// All experiments, by talk.
pub(super) fn experiments() -> impl Iterator<Item = &'static Experiment> {
    [lad17::EXPERIMENTS, lug17::EXPERIMENTS, cray::EXPERIMENTS, whamcloud::EXPERIMENTS, seagate::EXPERIMENTS]
        .into_iter()
        .flatten()
}
