//! `nacre bench records`: 2-D fields as records of a direct-access file, as HYCOM's routines zaiowr and
//! zaiord write and read them.
//!
//! The talk on client I/O parallelization (LUG 2017) uses this ocean model, written in Fortran, as its
//! application, and shows calls, time and time per call of both routines before and after its work. The
//! program that does the I/O is compiled at the start of the measurement ([`program`]).

mod program;
#[cfg(test)]
mod tests;

use std::path::{Path, PathBuf};

use crate::client::{FABRIC, Features, OSTS, Parallel, SIMULATE};
use crate::error::Error;
use crate::instance::{Instance, InstanceOptions, NacreProgram};
use crate::machine;
use crate::options::Common;
use crate::report::{Against, Report, Row, Unit};
use crate::sample::Samples;
use crate::stop;
use crate::worker::turns;
use program::{Language, Program, Run, Timer};

/// Words of a record are a multiple of this, as in HYCOM.
const BLOCK_WORDS: u64 = 4096;
/// Words of the smallest record, 128 KiB: libgfortran buffers smaller ones, and the C version has no buffer.
const RECORD_WORDS_MIN: u64 = 32_768;
/// Words of the largest record: libgfortran splits those of 2 GiB.
const RECORD_WORDS_MAX: u64 = 1 << 28;
const WORD_BYTES: u64 = 4;

/// The client before the work of the talk. The kernel's and the client's read-ahead and write-back are on in
/// both: a Fortran program cannot turn them off.
const OFF: Features = Features { parallel: Parallel::Off, asynchronous: true, endpoints: 1 };

/// `nacre bench records`
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Example: nacre bench records /mnt/nacre --against /srv/disk --runs 3
         nacre bench records --writes 242 --fields 121 --runs 5
Without PATH the file system is one of its own in memory, with parallel I/O off and on over a simulated fabric.")]
pub struct RecordsArguments {
    /// Directory to work in
    #[arg(conflicts_with = "nacre")]
    path: Option<PathBuf>,
    /// Take every figure also on this directory, in alternating runs, and show the ratio to it
    #[arg(long, value_name = "PATH", requires = "path")]
    against: Option<PathBuf>,
    /// Points of a field in the first direction
    #[arg(long, default_value_t = 1500)]
    idm: u64,
    /// Points of a field in the second direction
    #[arg(long, default_value_t = 1100)]
    jdm: u64,
    /// Records that are written; a whole number of archives
    #[arg(long, default_value_t = 726)]
    writes: u64,
    /// Records that are read
    #[arg(long, default_value_t = 99)]
    reads: u64,
    /// Records of an archive; a new archive replaces the last but one
    #[arg(long, default_value_t = 121)]
    fields: u64,
    /// fsync each archive before it is closed
    #[arg(long)]
    fsync: bool,
    /// Drop the kernel's caches before records are read (root only); always done without PATH
    #[arg(long)]
    cold: bool,
    /// Language of the program; Fortran where gfortran is installed, else C
    #[arg(long)]
    language: Option<Language>,
    /// Directory in memory (tmpfs) for the file system without PATH
    #[arg(long, default_value = "/dev/shm", conflicts_with = "path")]
    memory_dir: PathBuf,
    /// Setting of parallel I/O to compare with off
    #[arg(long, default_value = "on", conflicts_with = "path")]
    parallel: Parallel,
    /// Endpoints per server with it; one without
    #[arg(long, default_value_t = 4, conflicts_with = "path")]
    endpoints: usize,
    /// The program that starts file systems.
    #[command(flatten)]
    nacre: NacreProgram,
    /// How the figures are taken and printed.
    #[command(flatten)]
    pub common: Common,
}

impl RecordsArguments {
    fn record_words(&self) -> u64 {
        self.idm.saturating_mul(self.jdm).next_multiple_of(BLOCK_WORDS)
    }

    fn record_bytes(&self) -> u64 {
        self.record_words() * WORD_BYTES
    }

    fn check(&self) -> Result<(), Error> {
        let points = self.idm.saturating_mul(self.jdm);
        if !(RECORD_WORDS_MIN - BLOCK_WORDS < points && points <= RECORD_WORDS_MAX) {
            return Err(Error::Usage(format!(
                "a field of {points} points gives no record of 128 KiB to 1 GiB: choose another --idm or --jdm"
            )));
        }
        if self.writes == 0 || self.reads == 0 || self.fields == 0 || !self.writes.is_multiple_of(self.fields)
        {
            return Err(Error::Usage(format!(
                "--writes {} is no whole number of archives of --fields {}: choose a multiple, and at least one read",
                self.writes, self.fields
            )));
        }
        Ok(())
    }

    /// Returns the arguments of the program.
    fn words(&self, is_write: bool, directory: &Path) -> Vec<std::ffi::OsString> {
        let (mode, calls) = if is_write { ("write", self.writes) } else { ("read", self.reads) };
        let numbers = [self.idm, self.jdm, calls, self.fields, u64::from(self.fsync)];
        let first = [mode.into(), directory.as_os_str().to_owned()];
        first.into_iter().chain(numbers.map(|number| number.to_string().into())).collect()
    }
}

/// Takes all figures.
///
/// # Errors
///
/// When there is no compiler, the program fails, or the file system does not start; `Interrupted`. Created
/// files are removed first.
pub fn measure(arguments: &RecordsArguments) -> Result<Report, Error> {
    arguments.check()?;
    stop::listen();
    let program = Program::build(arguments.language)?;
    let mut report = match &arguments.path {
        Some(path) => on_paths(arguments, &program, path)?,
        None => on_instance(arguments, &program)?,
    };
    let RecordsArguments { idm, jdm, fields, .. } = arguments;
    report.title = format!(
        "{}: {idm} x {jdm} points, records of {} bytes, archives of {fields} records",
        report.title,
        arguments.record_bytes()
    );
    report.notes.push(format!("the program is in {}", program.name()));
    report.notes.push(match arguments.fsync {
        true => {
            "durable: each archive is synced (fsync) before it is closed; \"write and close\" includes it"
                .to_owned()
        }
        false => {
            "not durable: there is no fsync at close, as in HYCOM; \"write and close\" includes the close"
                .to_owned()
        }
    });
    Ok(report)
}

fn on_paths(arguments: &RecordsArguments, program: &Program, path: &Path) -> Result<Report, Error> {
    let paths: Vec<&Path> = std::iter::once(path).chain(arguments.against.as_deref()).collect();
    let scratch = paths.iter().map(|path| scratch_in(path)).collect::<Result<Vec<_>, Error>>()?;
    let mut results = vec![Figures::default(); paths.len()];
    for index in (0..arguments.common.runs.max(1)).flat_map(|round| turns(round, paths.len())) {
        results[index].push(one_run(arguments, program, scratch[index].path(), arguments.cold)?);
    }
    let mut report = Report::new(format!("Records on {}", path.display()));
    let names: Vec<String> = paths.iter().map(|path| path.display().to_string()).collect();
    let base = names.get(1).map(|name| (name.as_str(), &results[1]));
    report.rows = results[0].rows(None, arguments.record_bytes(), base);
    report.tables.push(timers(&names.iter().map(String::as_str).zip(&results).collect::<Vec<_>>()));
    if !arguments.cold {
        report.notes.push("records may be read from the kernel's caches: --cold empties them".to_owned());
    }
    Ok(report)
}

fn scratch_in(path: &Path) -> Result<tempfile::TempDir, Error> {
    std::fs::read_dir(path).map_err(Error::io("look into", path))?;
    let made = tempfile::Builder::new().prefix("nacre-records-").tempdir_in(path);
    made.map_err(Error::io("create a directory in", path))
}

fn on_instance(arguments: &RecordsArguments, program: &Program) -> Result<Report, Error> {
    let nacre = arguments.nacre.find()?;
    let options = InstanceOptions {
        osts: OSTS,
        separate: true,
        mount_options: vec![SIMULATE.to_owned()],
        ..InstanceOptions::default()
    };
    let instance = Instance::start(&nacre, &arguments.memory_dir, "bench-records", options)?;
    let directory = instance.work_directory("d")?;
    instance.stripe(&directory, OSTS)?;
    let on = Features { parallel: arguments.parallel, endpoints: arguments.endpoints.max(1), ..OFF };
    let on_name = format!("parallel {}", on.parallel.name());
    let settings = [("parallel off", OFF), (on_name.as_str(), on)];
    let mut results = vec![Figures::default(); settings.len()];
    for index in (0..arguments.common.runs.max(1)).flat_map(|round| turns(round, settings.len())) {
        settings[index].1.apply(&instance)?;
        results[index].push(one_run(arguments, program, &directory, true)?);
    }
    let mut report =
        Report::new(format!("Records, separate processes, {OSTS} OSTs in memory, over a {FABRIC}"));
    report.rows = results[0].rows(Some("parallel off"), arguments.record_bytes(), None);
    let base = Some(("parallel off", &results[0]));
    report.rows.extend(results[1].rows(Some(&on_name), arguments.record_bytes(), base));
    report.tables.push(timers(&settings.iter().map(|(name, _)| *name).zip(&results).collect::<Vec<_>>()));
    for (name, features) in settings {
        report.notes.push(format!("\"{name}\" is {}", features.label()));
    }
    Ok(report)
}

/// Writes all archives and reads from the first one.
fn one_run(
    arguments: &RecordsArguments,
    program: &Program,
    directory: &Path,
    is_cold: bool,
) -> Result<Run, Error> {
    let write = program.run(&arguments.words(true, directory))?;
    if is_cold {
        machine::drop_caches()?;
    }
    let read = program.run(&arguments.words(false, directory))?;
    for archive in ["archv1.a", "archv2.a"].map(|name| directory.join(name)) {
        machine::remove_file(&archive)?;
    }
    Ok(Run { write, read })
}

/// Figures of several runs of one subject.
#[derive(Debug, Clone, Default)]
struct Figures {
    runs: Vec<Run>,
}

impl Figures {
    fn push(&mut self, run: Run) {
        self.runs.push(run);
    }

    fn samples(&self, of: impl Fn(&Run) -> f64) -> Samples {
        self.runs.iter().map(of).collect()
    }

    /// Returns the rows of the calls' bandwidth; `setting` names the setting of the client, if there is one.
    fn rows(&self, setting: Option<&str>, record_bytes: u64, base: Option<(&str, &Figures)>) -> Vec<Row> {
        let row = |index: usize, name: &str| {
            let samples = |figures: &Figures| figures.samples(|run| run.rates(record_bytes)[index]);
            let name = setting.map_or(name.to_owned(), |setting| format!("simulated: {name}, {setting}"));
            let mut row = Row::new(name, Unit::BytesPerSecond, samples(self));
            row.against = base.map(|(label, base)| Against::of(label, samples(base)));
            row
        };
        ["write", "write and close", "read"]
            .into_iter()
            .enumerate()
            .map(|(index, name)| row(index, name))
            .collect()
    }
}

/// Formats the report of HYCOM's timers: medians of all runs.
fn timers(subjects: &[(&str, &Figures)]) -> String {
    let mut text =
        "Timers (medians, in seconds)\n\n| | routine | calls | time | time/call | longest call |\n\
                    | --- | --- | --- | --- | --- | --- |\n"
            .to_owned();
    for (name, figures) in subjects {
        for (index, routine) in ["zaiowr", "zaiocl after writing", "zaiord", "zaiopn"].into_iter().enumerate()
        {
            let median = |of: fn(Timer) -> f64| figures.samples(|run| of(run.timers()[index])).median();
            let calls = figures.runs.first().map_or(0, |run| run.timers()[index].calls);
            let (time_s, longest_s) = (median(|timer| timer.total_s), median(|timer| timer.longest_s));
            text += &format!(
                "| {name} | {routine} | {calls} | {time_s:.4} | {:.6} | {longest_s:.6} |\n",
                time_s / calls.max(1) as f64
            );
        }
    }
    text
}
