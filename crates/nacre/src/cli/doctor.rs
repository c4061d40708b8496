//! `nacre doctor`: examines this host, and a file system on it, for what makes file systems slow or unsafe.
//!
//! Each check reads what the kernel or the file system shows, and returns findings: what was found, the
//! evidence, and the command that changes it.

mod host;
mod network;
mod parameters;
mod service;
mod storage;
mod throughput;

use crate::cli::status::Overview;
use crate::failure::{EXIT_FAILURE, Result};
use crate::instance::Instance;
use crate::named::{self, Named};
use crate::output::print_json;
use crate::process::RunDir;
use crate::registry;
use clap::Args;
use serde::Serialize;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Examines this host, and a file system on it, for what makes it slow or unsafe
///
/// Reads kernel, FUSE, limits, CPUs, clocks of this host and of servers, network, disks, keys and changed
/// parameters, and times a few syncs on each disk. Each finding has its evidence and the command that changes it.
#[derive(Debug, Args)]
#[command(after_help = "\
Exit code: 0 nothing worse than a note, 1 otherwise.

Example: nacre doctor /srv/fs --fix")]
pub struct DoctorArgs {
    /// Directory or mount point of a file system [default: all that run here]
    path: Option<PathBuf>,
    /// Also show checks that found nothing wrong
    #[arg(long)]
    all: bool,
    /// Carry out the changes that are safe: they lose no data and interrupt nothing
    #[arg(long)]
    fix: bool,
    /// Also write and read 64 MiB on each OST through the mount, and compare the OSTs
    #[arg(long)]
    measure: bool,
    /// Print as JSON
    #[arg(long)]
    json: bool,
}

/// How much a finding matters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    /// As it should be.
    Ok,
    /// Worth knowing; no action needed.
    Note,
    /// Costs speed, or will cause trouble.
    Warning,
    /// Something does not work, or data is at risk.
    Error,
}

impl Level {
    fn word(self) -> &'static str {
        match self {
            Level::Ok => "ok",
            Level::Note => "note",
            Level::Warning => "warning",
            Level::Error => "ERROR",
        }
    }
}

/// A change of this host that is safe: it loses no data and interrupts nothing, and the next boot undoes it
/// or it is a permission.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    /// Writes a value to a file of the kernel.
    Write { path: PathBuf, value: String },
    /// Removes the rights of group and others from a file.
    Private { path: PathBuf },
}

impl Change {
    fn command(&self) -> String {
        match self {
            Change::Write { path, value } => format!("echo {value} > {}", path.display()),
            Change::Private { path } => format!("chmod go= {}", path.display()),
        }
    }

    fn apply(&self) -> io::Result<()> {
        match self {
            Change::Write { path, value } => std::fs::write(path, value),
            Change::Private { path } => {
                use std::os::unix::fs::PermissionsExt;
                let mode = std::fs::metadata(path)?.permissions().mode();
                std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode & !0o077))
            }
        }
    }
}

/// One finding.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// How much it matters.
    pub level: Level,
    /// What was examined: `fuse`, `disk`, and so on.
    pub area: &'static str,
    /// What was found, with its evidence, as a sentence.
    pub text: String,
    /// Command, or advice, that changes it.
    pub remedy: Option<String>,
    /// True if `--fix` carries the remedy out.
    pub is_safe: bool,
    #[serde(skip)]
    change: Option<Change>,
}

impl Finding {
    fn new(level: Level, area: &'static str, text: impl Into<String>) -> Finding {
        Finding { level, area, text: text.into(), remedy: None, is_safe: false, change: None }
    }

    fn ok(area: &'static str, text: impl Into<String>) -> Finding {
        Finding::new(Level::Ok, area, text)
    }

    fn note(area: &'static str, text: impl Into<String>) -> Finding {
        Finding::new(Level::Note, area, text)
    }

    fn warning(area: &'static str, text: impl Into<String>) -> Finding {
        Finding::new(Level::Warning, area, text)
    }

    fn error(area: &'static str, text: impl Into<String>) -> Finding {
        Finding::new(Level::Error, area, text)
    }

    fn remedy(mut self, remedy: impl Into<String>) -> Finding {
        self.remedy = Some(remedy.into());
        self
    }

    fn change(mut self, change: Change) -> Finding {
        self.remedy = Some(change.command());
        self.is_safe = true;
        self.change = Some(change);
        self
    }
}

/// Returns the median of times; zero without any.
fn median(mut times: Vec<Duration>) -> Duration {
    times.sort();
    times.get(times.len() / 2).copied().unwrap_or_default()
}

/// Files of the kernel and of the system's configuration, below a root that tests replace.
pub struct Machine {
    root: PathBuf,
}

impl Machine {
    fn real() -> Machine {
        Machine { root: PathBuf::from("/") }
    }

    fn path(&self, path: &str) -> PathBuf {
        self.root.join(path.trim_start_matches('/'))
    }

    /// Returns a file's text without surrounding blanks; `None` if it cannot be read.
    fn read(&self, path: &str) -> Option<String> {
        std::fs::read_to_string(self.path(path)).ok().map(|text| text.trim().to_owned())
    }

    fn number(&self, path: &str) -> Option<u64> {
        self.read(path)?.parse().ok()
    }

    /// Returns the names in a directory in order; none if it cannot be read.
    fn list(&self, path: &str) -> Vec<String> {
        let entries = std::fs::read_dir(self.path(path)).into_iter().flatten().flatten();
        let mut names: Vec<String> =
            entries.filter_map(|entry| entry.file_name().into_string().ok()).collect();
        names.sort();
        names
    }
}

/// The file system to examine.
struct Subject {
    overview: Overview,
    /// Its directory on this host, if it has one.
    instance: Option<Instance>,
    /// Where its processes here run.
    run: RunDir,
}

impl Subject {
    fn of(path: &Path) -> Result<Subject> {
        Ok(match named::find(path)? {
            Named::Directory(instance) => Subject::of_instance(instance),
            Named::Mount(run) => Subject::of_run(run),
        })
    }

    fn of_instance(instance: Instance) -> Subject {
        let run = RunDir::new(instance.run_dir());
        Subject { overview: Overview::of(&instance), instance: Some(instance), run }
    }

    fn of_run(run: RunDir) -> Subject {
        Subject { overview: Overview::of_run_dir(&run), instance: None, run }
    }

    /// Returns the file systems that run here.
    fn all() -> Vec<Subject> {
        let of = |run: RunDir| {
            let instance = run.path.parent().and_then(|dir| Instance::open(dir).ok().flatten());
            match instance {
                Some(instance) => Subject::of_instance(instance),
                None => Subject::of_run(run),
            }
        };
        registry::running().into_iter().map(of).collect()
    }
}

/// Runs the command.
pub fn run(args: &DoctorArgs) -> Result<i32> {
    let subjects = match &args.path {
        Some(path) => vec![Subject::of(path)?],
        None => Subject::all(),
    };
    let mut findings = examine(&Machine::real(), &subjects);
    if args.measure {
        findings.extend(subjects.iter().flat_map(throughput::examine));
    }
    if args.fix {
        findings.iter_mut().for_each(fix);
    }
    if args.json {
        print_json(&findings)?;
    } else {
        print(&findings, args.all);
    }
    let worst = findings.iter().map(|finding| finding.level).max().unwrap_or(Level::Ok);
    Ok(if worst >= Level::Warning { EXIT_FAILURE } else { 0 })
}

fn examine(machine: &Machine, subjects: &[Subject]) -> Vec<Finding> {
    let mut findings = host::examine(machine);
    for subject in subjects {
        findings.extend(service::examine(machine, subject));
        findings.extend(parameters::examine(subject));
        findings.extend(network::examine(machine, subject));
        findings.extend(storage::examine(machine, subject));
    }
    findings
}

/// Carries out the change of a finding, if it has one, and records the outcome in it.
fn fix(finding: &mut Finding) {
    let Some(change) = finding.change.take() else { return };
    match change.apply() {
        Ok(()) => {
            finding.text = format!("{} (changed now: {})", finding.text, change.command());
            (finding.level, finding.remedy, finding.is_safe) = (Level::Ok, None, false);
        }
        Err(error) => {
            finding.remedy = Some(format!("{} ('--fix' could not: {error})", change.command()));
            finding.is_safe = false;
        }
    }
}

/// Prints findings, the worst first; `all` includes what is as it should be.
fn print(findings: &[Finding], all: bool) {
    let mut shown: Vec<&Finding> =
        findings.iter().filter(|finding| all || finding.level > Level::Ok).collect();
    shown.sort_by_key(|finding| std::cmp::Reverse(finding.level));
    for finding in &shown {
        println!("{:<8} {:<11} {}", finding.level.word(), finding.area, finding.text);
        if let Some(remedy) = &finding.remedy {
            println!("{:<20} -> {remedy}{}", "", if finding.is_safe { "    (or --fix)" } else { "" });
        }
    }
    let well = findings.iter().filter(|finding| finding.level == Level::Ok).count();
    let count = |level: Level| findings.iter().filter(|finding| finding.level == level).count();
    println!(
        "{} errors, {} warnings, {} notes; {well} checks found nothing wrong{}",
        count(Level::Error),
        count(Level::Warning),
        count(Level::Note),
        if all { "" } else { " (--all shows them)" }
    );
}

#[cfg(test)]
mod tests;
