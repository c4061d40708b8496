//! The figures of docs/performance.md: the file system against its bounds on this machine, in one run.
//!
//! Every ratio comes from runs that alternate with those of the bound. The bounds:
//!
//! - the FUSE channel: the same null file system on the `fuser` crate;
//! - the file system in one process: a null file system on the same channel, and the disk alone;
//! - the file system in separate processes: a null file system that makes one round trip over loopback TCP
//!   for each request, and one stream over loopback TCP.

use std::path::{Path, PathBuf};
use std::time::Instant;

use crate::error::Error;
use crate::instance::{Instance, InstanceOptions, NacreProgram};
use crate::limits::{Kind, row_of, stream_bytes_per_second};
use crate::null::{EchoServer, Flavour, NullMount, Scratch};
use crate::options::Common;
use crate::report::{Against, Report, Row, Target, Unit};
use crate::sample::Samples;
use crate::work::{Operation, Work};
use crate::worker::{Job, Myself, Series, interleave};

/// Number of entries of the directory that is listed.
const LIST_FILES: u64 = 100_000;
/// Size of the files that are written and read, in bytes.
const FILE_BYTES: u64 = 1 << 30;
/// Size of one read or write, in bytes.
const BLOCK_BYTES: usize = 1 << 20;
/// Limit of the resident memory of an idle file system in one process, mount included, in bytes.
const RESIDENT_BYTES_MAX: f64 = 100.0 * 1024.0 * 1024.0;

/// Number of file systems that are created to measure the start, at most.
const START_RUNS_MAX: usize = 3;
/// Limit of the time until an embedded file system is up, in seconds.
const START_SECONDS_MAX: f64 = 1.0;

/// A part of the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Part {
    /// The FUSE channel against `fuser`.
    Channel,
    /// Names and attributes in one process against a null file system.
    Meta,
    /// Data in one process against the disk.
    Data,
    /// Separate processes against round trips and a stream of TCP.
    Separate,
    /// Time to start, and memory when idle.
    Memory,
}

/// `nacre bench slice`
#[derive(Debug, clap::Args)]
pub struct SliceArguments {
    /// Directory on the disk to use; needs 6 GiB
    #[arg(long, default_value = ".")]
    dir: PathBuf,
    /// Directory in memory (tmpfs), for figures that the disk must not bound; needs 2 GiB
    #[arg(long, default_value = "/dev/shm")]
    memory_dir: PathBuf,
    /// Parts of the table; all by default
    #[arg(long = "part", value_delimiter = ',')]
    parts: Vec<Part>,
    /// The program that starts file systems.
    #[command(flatten)]
    nacre: NacreProgram,
    /// The fuser_null example; by default next to this executable, where `cargo build --examples` puts it
    #[arg(long, value_name = "PROGRAM")]
    fuser: Option<PathBuf>,
    /// Worker processes for names and attributes
    #[arg(short = 'n', long, default_value_t = 1)]
    processes: usize,
    /// How the figures are taken and printed.
    #[command(flatten)]
    pub common: Common,
}

/// Takes all figures.
///
/// # Errors
///
/// When a file system does not start or work on one fails; everything started is stopped first.
pub fn measure(arguments: &SliceArguments, myself: &Myself) -> Result<Report, Error> {
    let mut run = SliceRun {
        arguments,
        myself,
        program: arguments.nacre.find()?,
        scratch: Scratch::new()?,
        report: Report::new("NacreFS against its bounds"),
    };
    let all = [Part::Channel, Part::Meta, Part::Data, Part::Separate, Part::Memory];
    let chosen = if arguments.parts.is_empty() { all.to_vec() } else { arguments.parts.clone() };
    for part in chosen {
        eprintln!("bench slice: {part:?}");
        match part {
            Part::Channel => run.channel()?,
            Part::Meta => run.meta()?,
            Part::Data => run.data()?,
            Part::Separate => run.separate()?,
            Part::Memory => run.memory()?,
        }
    }
    Ok(run.report)
}

struct SliceRun<'a> {
    arguments: &'a SliceArguments,
    myself: &'a Myself,
    program: PathBuf,
    scratch: Scratch,
    report: Report,
}

/// Returns the target of the ratio to the bound, from the design: the file system's own work may cost this
/// share of the kernel's and the transport's.
const fn target_of(part: Part, operation: Operation) -> f64 {
    match (part, operation) {
        (Part::Channel, _) | (_, Operation::StatCached) => 1.0,
        (Part::Separate, Operation::Create) | (_, Operation::List) => 0.5,
        (_, Operation::StatUncached) => 0.75,
        (_, Operation::SeqWrite) if matches!(part, Part::Data) => 0.7,
        (_, Operation::SeqRead) if matches!(part, Part::Data) => 0.8,
        _ => 0.6,
    }
}

impl SliceRun<'_> {
    fn null(&self, name: &str, flavour: Flavour, echo: Option<&EchoServer>) -> Result<NullMount, Error> {
        let point = self.scratch.directory(name)?;
        let rpc = echo.map(EchoServer::address);
        NullMount::start(self.myself, flavour, &point, rpc, self.arguments.fuser.as_deref())
    }

    fn meta_work(&self, operation: Operation, path: &Path) -> Work {
        let mut work = Work::meta(operation, path);
        work.seconds = self.arguments.common.seconds;
        work.files = match operation {
            Operation::List => LIST_FILES,
            Operation::Create | Operation::Unlink => 20_000,
            _ => 2_000,
        };
        work
    }

    fn io_work(&self, operation: Operation, path: &Path) -> Work {
        Work::io(operation, path, BLOCK_BYTES, FILE_BYTES)
    }

    /// Adds one row: `ours` against `bound`.
    fn compare(&mut self, mut ours: Job, bound: Job, target: impl Into<Option<f64>>) -> Result<(), Error> {
        let bound_label = bound.label.clone();
        ours.label = format!("{}, {}", ours.label, ours.works[0].operation.label());
        let jobs = [ours, bound];
        let results = interleave(self.myself, &jobs, self.arguments.common.runs)?;
        let mut row = row_of(&jobs[0], &results[0]);
        row.against = Some(Against::new(bound_label, row_of(&jobs[1], &results[1])));
        row.target = target.into().map(Target::RatioAtLeast);
        self.report.rows.push(row);
        Ok(())
    }

    fn channel(&mut self) -> Result<(), Error> {
        let fuser = match self.null("fuser", Flavour::Fuser, None) {
            Ok(mount) => mount,
            Err(error) => {
                self.report.notes.push(format!("the comparison with fuser was left out: {error}"));
                return Ok(());
            }
        };
        let ours = self.null("ours", Flavour::Auto, None)?;
        for operation in [Operation::StatUncached, Operation::SeqRead] {
            let job = |label: &str, path: &Path| match operation {
                Operation::StatUncached => {
                    Job::new(label, &self.meta_work(operation, path), self.arguments.processes)
                }
                _ => Job::new(label, &self.io_work(operation, path), 1),
            };
            let mut pair = (job("null, our channel", ours.point()), job("fuser", fuser.point()));
            (pair.0.daemons, pair.1.daemons) = (vec![ours.process()], vec![fuser.process()]);
            self.compare(pair.0, pair.1, target_of(Part::Channel, operation))?;
        }
        Ok(())
    }

    fn instance(&self, directory: &Path, name: &str, osts: usize, separate: bool) -> Result<Instance, Error> {
        let options = InstanceOptions { osts, separate, ..InstanceOptions::default() };
        Instance::start(&self.program, directory, name, options)
    }

    fn meta(&mut self) -> Result<(), Error> {
        let instance = self.instance(&self.arguments.dir, "slice-meta", 4, false)?;
        let null = self.null("null", Flavour::Auto, None)?;
        let directory = instance.work_directory("meta")?;
        let operations = [
            Operation::Create,
            Operation::Unlink,
            Operation::StatUncached,
            Operation::StatCached,
            Operation::List,
        ];
        for operation in operations {
            let processes = if operation == Operation::List { 1 } else { self.arguments.processes };
            let job = |label: &str, path: &Path| Job::new(label, &self.meta_work(operation, path), processes);
            let (mut ours, mut bound) = (job("one process", &directory), job("null", null.point()));
            (ours.daemons, bound.daemons) = (instance.processes()?, vec![null.process()]);
            self.compare(ours, bound, target_of(Part::Meta, operation))?;
        }
        Ok(())
    }

    fn data(&mut self) -> Result<(), Error> {
        let instance = self.instance(&self.arguments.dir, "slice-data", 4, false)?;
        let directory = instance.work_directory("data")?;
        instance.stripe(&directory, 4)?;
        let disk = self.arguments.dir.join("slice-disk");
        std::fs::create_dir_all(&disk).map_err(Error::io("create directory", &disk))?;
        for operation in [Operation::SeqWrite, Operation::SeqRead] {
            let mut ours = Job::new("one process, 4 OSTs", &self.io_work(operation, &directory), 1);
            let mut bound = Job::new("disk, O_DIRECT", &self.io_work(operation, &disk), 1);
            bound.works[0].direct = true;
            for job in [&mut ours, &mut bound] {
                job.works[0].sync = operation == Operation::SeqWrite;
                job.cold = operation == Operation::SeqRead;
            }
            ours.daemons = instance.processes()?;
            self.compare(ours, bound, target_of(Part::Data, operation))?;
        }
        std::fs::remove_dir_all(&disk).map_err(Error::io("remove", &disk))
    }

    fn separate(&mut self) -> Result<(), Error> {
        let instance = self.instance(&self.arguments.memory_dir, "slice-separate", 2, true)?;
        let directory = instance.work_directory("d")?;
        let echo = EchoServer::start(self.myself)?;
        let null = self.null("null-rpc", Flavour::Auto, Some(&echo))?;
        let job = |label: &str, path: &Path| {
            Job::new(label, &self.meta_work(Operation::Create, path), self.arguments.processes)
        };
        let (mut ours, mut bound) =
            (job("separate", &directory), job("null with one RPC per request", null.point()));
        (ours.daemons, bound.daemons) = (instance.processes()?, vec![null.process()]);
        self.compare(ours, bound, target_of(Part::Separate, Operation::Create))?;
        for operation in [Operation::SeqWrite, Operation::SeqRead] {
            let mut work = self.io_work(operation, &directory);
            work.file_bytes = FILE_BYTES / 2;
            work.direct = true;
            // A new file in memory is bounded by the page allocation of the server's host: see the row after
            // these.
            work.over = true;
            let mut job = Job::new(format!("separate, {}", operation.label()), &work, 1);
            job.daemons = instance.processes()?;
            let row = self.against_stream(&job)?;
            self.report.rows.push(row);
        }
        self.separate_new_file(&instance, &directory)
    }

    /// Compares a new file, whose pages the server's host has to allocate first, with the same without any
    /// server.
    fn separate_new_file(&mut self, instance: &Instance, directory: &Path) -> Result<(), Error> {
        let memory = self.arguments.memory_dir.join("slice-memory");
        std::fs::create_dir_all(&memory).map_err(Error::io("create directory", &memory))?;
        let job = |label: &str, path: &Path| {
            let mut work = self.io_work(Operation::SeqWrite, path);
            work.file_bytes = FILE_BYTES / 2;
            Job::new(label, &work, 1)
        };
        let (mut ours, bound) = (job("separate, new file", directory), job("memory file system", &memory));
        ours.daemons = instance.processes()?;
        self.compare(ours, bound, None)?;
        std::fs::remove_dir_all(&memory).map_err(Error::io("remove", &memory))
    }

    /// Measures throughput in runs that alternate with those of one TCP stream.
    fn against_stream(&self, job: &Job) -> Result<Row, Error> {
        let seconds = self.arguments.common.seconds;
        let (mut ours, mut streams) = (Series::default(), Samples::new());
        job.prepare(self.myself)?;
        let outcome: Result<(), Error> = (0..self.arguments.common.runs.max(1)).try_for_each(|round| {
            // Every other round in reverse order, as in `interleave`.
            if round % 2 == 1 {
                streams.push(stream_bytes_per_second(Kind::Tcp, 1, seconds)?);
            }
            ours.push(job, job.run(self.myself)?);
            if round % 2 == 0 {
                streams.push(stream_bytes_per_second(Kind::Tcp, 1, seconds)?);
            }
            Ok(())
        });
        job.clean(self.myself)?;
        outcome?;
        let mut row = row_of(job, &ours);
        row.against = Some(Against::of("one loopback TCP stream", streams));
        row.target = Some(Target::RatioAtLeast(target_of(Part::Separate, job.works[0].operation)));
        Ok(row)
    }

    fn memory(&mut self) -> Result<(), Error> {
        for (name, separate) in [("one process", false), ("separate processes", true)] {
            let (mut first, mut second, mut resident) = (Samples::new(), Samples::new(), Samples::new());
            for _ in 0..self.arguments.common.runs.clamp(1, START_RUNS_MAX) {
                let start = Instant::now();
                let instance = self.instance(&self.arguments.dir, "slice-memory", 4, separate)?;
                first.push(start.elapsed().as_secs_f64());
                resident.push(instance.resident_bytes()? as f64);
                instance.down()?;
                let start = Instant::now();
                instance.up()?;
                second.push(start.elapsed().as_secs_f64());
            }
            let mut add = |what: &str, unit, samples, bound| {
                let mut row = Row::new(format!("{what}, {name}, 4 OSTs"), unit, samples);
                row.target = (!separate).then_some(Target::AtMost(bound));
                self.report.rows.push(row);
            };
            add("starts, newly created", Unit::Seconds, first, START_SECONDS_MAX);
            add("comes up again", Unit::Seconds, second, START_SECONDS_MAX);
            add("resident memory, idle", Unit::Bytes, resident, RESIDENT_BYTES_MAX);
        }
        Ok(())
    }
}
