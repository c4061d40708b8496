//! `nacre bench layouts`: what layouts cost and gain.
//!
//! Each part starts a file system of its own in memory and takes figures of two kinds of files in runs that alternate:
//! progressive files against plain ones, data on the MDT against data on an OST, files with data against empty ones, a large
//! migration and a rebalance against a copy and others' work without it, files of many components or stripes against one of a single stripe. A part whose layout is refused
//! by the program under test is left out with a note.

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

/// Object targets of the file systems.
const OSTS: usize = 4;
/// The layout of the LAD'17 talk as far as files of some hundred MiB reach.
const PROGRESSIVE: &[&str] =
    &["-E", "4M", "-c", "1", "-E", "64M", "-c", "2", "-E", "256M", "-c", "4", "-E", "-1", "-c", "-1"];
/// The same with a stripe size for each component, as in that talk.
const TUNED: &[&str] = &[
    "-E", "4M", "-c", "1", "-S", "1M", "-E", "64M", "-c", "2", "-S", "2M", "-E", "256M", "-c", "4", "-S",
    "16M", "-E", "-1", "-c", "-1", "-S", "32M",
];
/// What they are compared with.
const PLAIN: &[&str] = &["-c", "-1"];
/// The head of a file on the MDT.
const ON_MDT: &[&str] = &["-E", "64K", "-L", "mdt", "-E", "-1", "-c", "1"];
const ON_OST: &[&str] = &["-c", "1"];
/// Bytes of the files that show what the default layout does, and of all of them together.
const DEFAULT_SIZES: [usize; 5] = [4 << 10, 32 << 10, 64 << 10, 100 << 10, 512 << 10];
const DEFAULT_BYTES: u64 = 128 << 20;
/// Bytes of a small file; a size that users have measured other file systems with.
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
    /// Files of many components and of many stripes.
    Many,
    /// `lfs migrate` against a copy.
    Migrate,
    /// `nacre rebalance` against a copy, and what others lose beside it.
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
    /// Files that are listed, found and looked at
    #[arg(long, default_value_t = 100_000)]
    files: u64,
    /// Files of each process that are made with data
    #[arg(long, default_value_t = 2_000)]
    small_files: u64,
    /// Components of a file of many
    #[arg(long, default_value_t = 500)]
    components: u64,
    /// Stripes of a file of many
    #[arg(long, default_value_t = 2_000)]
    stripes: u64,
    /// Limits of the rebalance beside which others work, in MiB/s; its own default if none is given
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
/// When a file system does not come up or work on it fails; it is taken down first.
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

/// Work on two directories of one file system, which is compared.
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

    /// A directory with this layout; a note and nothing if the program refuses it.
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

    /// One row of `pair`, each side with what `make` makes of its directory.
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

    /// Large files of two processes, one for each and one for both, written with fsync, and read after the kernel's caches
    /// were emptied.
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

    /// Files of 4 KiB: made, looked at, read, removed.
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

    /// Files for which nobody asks for a layout, by their sizes: made with one write each, read, removed.
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

    /// Two processes make files in one directory: with data and without.
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

/// Work on small files, each with so many bytes, by so many processes.
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
