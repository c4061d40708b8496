//! Options that sub-commands share, and conversions between words and options.

use std::ffi::OsString;

use crate::error::Error;
use crate::report::Report;
use crate::worker::Job;

/// Options of all measuring sub-commands.
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
    /// Prints a report, or passes the error on.
    pub(crate) fn show(&self, report: Result<Report, Error>) -> Result<(), Error> {
        self.print(&report?);
        Ok(())
    }

    /// Prints the report in the requested form.
    pub fn print(&self, report: &Report) {
        match self.json {
            true => println!("{}", report.json()),
            false => print!("{}", report.table()),
        }
    }
}

/// Returns the name of a value on the command line.
pub(crate) fn word(value: impl clap::ValueEnum) -> String {
    value.to_possible_value().map_or_else(String::new, |known| known.get_name().to_owned())
}

/// Parses `words` as the arguments of sub-command `name`, for benches that include figures of others.
///
/// # Errors
///
/// Words that the sub-command does not accept.
pub(crate) fn from_words<A: clap::Args>(name: &'static str, words: &[OsString]) -> Result<A, Error> {
    let words = std::iter::once(OsString::from(name)).chain(words.iter().cloned());
    let matches = A::augment_args(clap::Command::new(name)).try_get_matches_from(words);
    matches.and_then(|matches| A::from_arg_matches(&matches)).map_err(Error::usage)
}

/// Pins worker `i` to CPU `i` modulo their number.
pub(crate) fn pin(job: &mut Job) {
    let cpus = nacre_env::online_cpus();
    for (index, work) in job.works.iter_mut().enumerate() {
        work.cpu = cpus.get(index % cpus.len()).copied();
    }
}
