//! `nacre bench layouts`: cost and gain of layouts.
//!
//! Each part starts a file system of its own in memory and compares two kinds of files in alternating runs:
//! progressive files with plain ones, data on the MDT with data on an OST, files with data with empty ones, a
//! large migration and a rebalance with a copy and with foreground work alone, files of many components or
//! stripes with a file of one stripe. A part whose layout the program under test refuses is left out with a
//! note.

mod many;
mod programs;
mod rebalance;

use std::path::{Path, PathBuf};

use crate::client::SIMULATE;
use crate::error::Error;
use crate::instance::{Instance, InstanceOptions, NacreProgram};
use crate::limits::row_of;
use crate::options::Common;
use crate::report::{Against, Report, Target};
use crate::work::{Operation, Work};
use crate::worker::{Job, Myself, interleave};

/// Number of object targets of the file systems.
const OSTS: usize = 4;
/// The layout of the LAD'17 talk up to files of some hundred MiB.
const PROGRESSIVE: &[&str] =
    &["-E", "4M", "-c", "1", "-E", "64M", "-c", "2", "-E", "256M", "-c", "4", "-E", "-1", "-c", "-1"];
/// The same layout with a stripe size for each component, as in that talk.
const TUNED: &[&str] = &[
    "-E", "4M", "-c", "1", "-S", "1M", "-E", "64M", "-c", "2", "-S", "2M", "-E", "256M", "-c", "4", "-S",
    "16M", "-E", "-1", "-c", "-1", "-S", "32M",
];
/// The baseline of progressive layouts.
const PLAIN: &[&str] = &["-c", "-1"];
/// A layout with the first component on the MDT.
const ON_MDT: &[&str] = &["-E", "64K", "-L", "mdt", "-E", "-1", "-c", "1"];
const ON_OST: &[&str] = &["-c", "1"];
/// Sizes in bytes of the files that show the default layout, each alone and all together.
const DEFAULT_SIZES: [usize; 5] = [4 << 10, 32 << 10, 64 << 10, 100 << 10, 512 << 10];
const DEFAULT_BYTES: u64 = 128 << 20;
/// Size of a small file in bytes; users have measured other file systems with it.
const SMALL_BYTES: usize = 3901;

/// A part of the report.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Part {
    /// Progressive files against plain ones, with and without a stripe size for each component.
    Pfl,
    /// The same over a simulated fabric.
    Fabric,
    /// Data on the MDT against data on an OST.
    Dom,
    /// Files of many sizes with the default layout of a new file system against plain ones.
    Default,
    /// Files with 3,901 bytes against empty ones.
    Small,
    /// `lfs getstripe -r` and `lfs find`.
    List,
    /// Files of many components and files of many stripes.
    Many,
    /// `lfs migrate` against a copy.
    Migrate,
    /// `nacre rebalance` against a copy, and what foreground work loses during it.
    Rebalance,
}

impl Part {
    const ALL: [Part; 9] = [
        Part::Pfl,
        Part::Fabric,
        Part::Dom,
        Part::Default,
        Part::Small,
        Part::List,
        Part::Many,
        Part::Migrate,
        Part::Rebalance,
    ];
}

/// `nacre bench layouts`
#[derive(Debug, clap::Args)]
#[command(after_help = "Example: nacre bench layouts --part pfl,list --runs 5")]
pub struct LayoutsArguments {
    /// Directory in memory (tmpfs), so that no disk bounds the figures; needs 2 GiB
    #[arg(long, default_value = "/dev/shm")]
    memory_dir: PathBuf,
    /// Parts; all by default
    #[arg(long = "part", value_delimiter = ',')]
    parts: Vec<Part>,
    /// Size of each large file in MiB; each of two processes has one
    #[arg(long, default_value_t = 128)]
    size_mib: u64,
    /// Files to list, find and stat
    #[arg(long, default_value_t = 100_000)]
    files: u64,
    /// Files that each process creates with data
    #[arg(long, default_value_t = 2_000)]
    small_files: u64,
    /// Components of the file of many
    #[arg(long, default_value_t = 500)]
    components: u64,
    /// Stripes of the file of many
    #[arg(long, default_value_t = 2_000)]
    stripes: u64,
    /// Limits of the rebalance during foreground work, in MiB/s; by default that of the rebalance itself
    #[arg(long = "rate", value_delimiter = ',')]
    rates: Vec<u64>,
    /// The program that starts file systems.
    #[command(flatten)]
    nacre: NacreProgram,
    /// How the figures are taken and printed.
    #[command(flatten)]
    pub common: Common,
}

/// Takes all figures.
///
/// # Errors
///
/// When a file system does not start or work on it fails; it is stopped first.
pub fn measure(arguments: &LayoutsArguments, myself: &Myself) -> Result<Report, Error> {
    let program = arguments.nacre.find()?;
    let mut run = LayoutsRun { arguments, myself, program, report: Report::new("Layouts, 4 OSTs in memory") };
    let parts = if arguments.parts.is_empty() { Part::ALL.to_vec() } else { arguments.parts.clone() };
    for part in parts {
        eprintln!("bench layouts: {part:?}");
        match part {
            Part::Pfl => run.progressive(false)?,
            Part::Fabric => run.progressive(true)?,
            Part::Dom => run.on_mdt()?,
            Part::Default => run.by_default()?,
            Part::Small => run.small()?,
            Part::List => run.list()?,
            Part::Many => run.many()?,
            Part::Migrate => run.migrate()?,
            Part::Rebalance => run.rebalance()?,
        }
    }
    Ok(run.report)
}

struct LayoutsRun<'a> {
    arguments: &'a LayoutsArguments,
    myself: &'a Myself,
    program: PathBuf,
    report: Report,
}

/// The same work on two directories of one file system, which is compared.
struct Pair<'a> {
    label: String,
    ours: &'a Path,
    against: (&'a str, &'a Path),
    target: Option<f64>,
}

impl LayoutsRun<'_> {
    fn instance(&self, separate: bool, fabric: bool) -> Result<Instance, Error> {
        let mount_options = if fabric { vec![SIMULATE.to_owned()] } else { Vec::new() };
        let options = InstanceOptions { osts: OSTS, separate, mount_options, ..InstanceOptions::default() };
        Instance::start(&self.program, &self.arguments.memory_dir, "bench-layouts", options)
    }

    /// Creates a directory with this layout; adds a note and returns nothing if the program refuses it.
    fn directory(
        &mut self,
        instance: &Instance,
        name: &str,
        layout: &[&str],
    ) -> Result<Option<PathBuf>, Error> {
        let directory = instance.work_directory(name)?;
        match instance.setstripe(&directory, layout) {
            Ok(()) => Ok(Some(directory)),
            Err(Error::Server { reason, .. }) => {
                self.report.notes.push(format!("'{}' is left out: {reason}", layout.join(" ")));
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    /// Adds one row of `pair`: `make` turns each directory into a job.
    fn compare(&mut self, pair: &Pair<'_>, make: impl Fn(&Path) -> Job) -> Result<(), Error> {
        let jobs = [make(pair.ours), make(pair.against.1)];
        let results = interleave(self.myself, &jobs, self.arguments.common.runs)?;
        let mut row = row_of(&jobs[0], &results[0]);
        row.name.clone_from(&pair.label);
        row.against = Some(Against::new(pair.against.0, row_of(&jobs[1], &results[1])));
        row.target = pair.target.map(Target::RatioAtLeast);
        self.report.rows.push(row);
        Ok(())
    }

    /// Measures large files of two processes, one each and a common one, written with fsync, and read after
    /// the kernel's caches were dropped.
    fn progressive(&mut self, fabric: bool) -> Result<(), Error> {
        let instance = self.instance(fabric, fabric)?;
        let Some(plain) = self.directory(&instance, "plain", PLAIN)? else { return Ok(()) };
        let Some(pfl) = self.directory(&instance, "pfl", PROGRESSIVE)? else { return Ok(()) };
        let Some(tuned) = self.directory(&instance, "tuned", TUNED)? else { return Ok(()) };
        let prefix = if fabric { "simulated fabric: " } else { "" };
        let sides = [("PFL", (!fabric).then_some(0.98)), ("tuned PFL", fabric.then_some(1.0))];
        for shared in [false, true] {
            let shape = if shared { "shared file" } else { "file per process" };
            for operation in [Operation::SeqWrite, Operation::SeqRead] {
                let job = |path: &Path| {
                    let mut work = Work::io(operation, path, 1 << 20, self.arguments.size_mib.max(1) << 20);
                    (work.sync, work.shared) = (operation == Operation::SeqWrite, shared);
                    let mut job = Job::new("", &work, 2);
                    job.cold = operation == Operation::SeqRead;
                    job
                };
                let jobs = [job(&plain), job(&pfl), job(&tuned)];
                let results = interleave(self.myself, &jobs, self.arguments.common.runs)?;
                for (index, (layout, target)) in sides.iter().enumerate() {
                    let mut row = row_of(&jobs[index + 1], &results[index + 1]);
                    row.name = format!("{prefix}{layout}, {shape}, {}", operation.label());
                    row.against = Some(Against::new("plain -c -1", row_of(&jobs[0], &results[0])));
                    row.target = target.map(Target::RatioAtLeast);
                    self.report.rows.push(row);
                }
            }
        }
        Ok(())
    }

    /// Measures files of 4 KiB: create, stat, read, remove.
    fn on_mdt(&mut self) -> Result<(), Error> {
        let arguments = self.arguments;
        for separate in [false, true] {
            let instance = self.instance(separate, false)?;
            let Some(ours) = self.directory(&instance, "mdt", ON_MDT)? else { return Ok(()) };
            let Some(ost) = self.directory(&instance, "ost", ON_OST)? else { return Ok(()) };
            let shape = if separate { "separate" } else { "one process" };
            for (operation, cold, what, target) in [
                (Operation::Create, false, "create + 4 KiB", Some(2.0)),
                (Operation::StatUncached, false, "stat", None),
                (Operation::Open, true, "open + read 4 KiB, cold", Some(2.0)),
                (Operation::Unlink, false, "unlink", None),
            ] {
                let pair = Pair {
                    label: format!("data on MDT, {shape}, {what}"),
                    ours: &ours,
                    against: ("on an OST", &ost),
                    target,
                };
                self.compare(&pair, |path| {
                    let mut job = small_job(arguments, operation, path, 4096, 1);
                    job.cold = cold;
                    job.works.iter_mut().for_each(|work| work.once = cold);
                    job
                })?;
            }
        }
        Ok(())
    }

    /// Measures files with the default layout, by size: create with one write each, read, remove.
    fn by_default(&mut self) -> Result<(), Error> {
        let arguments = self.arguments;
        for separate in [false, true] {
            let instance = self.instance(separate, false)?;
            let ours = instance.work_directory("default")?;
            let Some(plain) = self.directory(&instance, "plain", ON_OST)? else { return Ok(()) };
            let shape = if separate { "separate" } else { "one process" };
            for bytes in DEFAULT_SIZES {
                for (operation, cold, what) in [
                    (Operation::Create, false, "create"),
                    (Operation::Open, true, "open + read, cold"),
                    (Operation::Unlink, false, "unlink"),
                ] {
                    let pair = Pair {
                        label: format!("default, {shape}, {} KiB, {what}", bytes >> 10),
                        ours: &ours,
                        against: ("plain -c 1", &plain),
                        target: Some(0.98),
                    };
                    self.compare(&pair, |path| {
                        let mut job = small_job(arguments, operation, path, bytes, 1);
                        job.cold = cold;
                        for work in &mut job.works {
                            work.once = cold;
                            work.files = work.files.min(DEFAULT_BYTES / bytes as u64);
                        }
                        job
                    })?;
                }
            }
        }
        Ok(())
    }

    /// Measures creates by two processes in one directory, with data and without.
    fn small(&mut self) -> Result<(), Error> {
        let instance = self.instance(false, false)?;
        let (full, empty) = (instance.work_directory("full")?, instance.work_directory("empty")?);
        let pair = Pair {
            label: format!("create with {SMALL_BYTES} bytes, shared directory, 2 processes"),
            ours: &full,
            against: ("empty files", &empty),
            target: Some(0.5),
        };
        let arguments = self.arguments;
        self.compare(&pair, |path| {
            let bytes = if path == full { SMALL_BYTES } else { 0 };
            let mut job = small_job(arguments, Operation::Create, path, bytes, 2);
            job.works.iter_mut().for_each(|work| work.shared = true);
            job
        })
    }
}

/// Returns a job on small files of this size, by this number of processes.
fn small_job(
    arguments: &LayoutsArguments,
    operation: Operation,
    path: &Path,
    bytes: usize,
    processes: usize,
) -> Job {
    let mut work = Work::meta(operation, path);
    work.files = arguments.small_files.max(1);
    work.block_bytes = bytes;
    work.seconds = arguments.common.seconds;
    Job::new("", &work, processes)
}
