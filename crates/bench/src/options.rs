//! Options that sub-commands share, and how words become options.

use std::ffi::OsString;

use crate::error::Error;
use crate::report::Report;
use crate::worker::Job;

/// What all measuring sub-commands share.
#[derive(Debug, Clone, clap::Args)]
pub struct Common {
    /// Runs of each measurement; the median is shown
    #[arg(long, default_value_t = 5)]
    pub runs: usize,
    /// Duration of a timed run in seconds
    #[arg(long, default_value_t = 0.5)]
    pub seconds: f64,
    /// Print JSON with every run instead of a table
    #[arg(long)]
    pub json: bool,
}

impl Common {
    /// Prints a report, if there is one.
    pub(crate) fn show(&self, report: Result<Report, Error>) -> Result<(), Error> {
        self.print(&report?);
        Ok(())
    }

    /// Prints in the form that was wished for.
    pub fn print(&self, report: &Report) {
        match self.json {
            true => println!("{}", report.json()),
            false => print!("{}", report.table()),
        }
    }
}

/// The word that a value has on the command line.
pub(crate) fn word(value: impl clap::ValueEnum) -> String {
    value.to_possible_value().map_or_else(String::new, |known| known.get_name().to_owned())
}

/// The arguments of sub-command `name` in `words`, for benches that take figures of others in.
///
/// # Errors
///
/// Words that the sub-command does not know.
pub(crate) fn from_words<A: clap::Args>(name: &'static str, words: &[OsString]) -> Result<A, Error> {
    let words = std::iter::once(OsString::from(name)).chain(words.iter().cloned());
    let matches = A::augment_args(clap::Command::new(name)).try_get_matches_from(words);
    matches.and_then(|matches| A::from_arg_matches(&matches)).map_err(Error::usage)
}

/// Keeps worker `i` on the `i`-th CPU, round and round.
pub(crate) fn pin(job: &mut Job) {
    let cpus = nacre_env::online_cpus();
    for (index, work) in job.works.iter_mut().enumerate() {
        work.cpu = cpus.get(index % cpus.len()).copied();
    }
}
