//! The sub-commands of `nacre bench`.

use std::path::PathBuf;

use crate::backends::{self, BackendsArguments};
use crate::client::{self, ClientArguments};
use crate::dne::{self, DneArguments};
use crate::error::Error;
use crate::history::{self, CompareArguments, HistoryArguments};
use crate::ior::{self, IorArguments};
use crate::layouts::{self, LayoutsArguments};
use crate::limits::{Limits, row_of};
use crate::mdt::{self, MdtArguments};
use crate::mdtest::{self, MdtestArguments};
use crate::noisy::{self, NoisyArguments};
use crate::null::{self, NullArguments, ServeArguments};
use crate::options::{Common, pin};
use crate::peers::{self, PeersArguments};
use crate::programs::{self, ProgramsArguments};
use crate::records::{self, RecordsArguments};
use crate::report::{Against, Report};
use crate::restart::{self, RestartArguments};
use crate::slice::{self, SliceArguments};
use crate::small::{self, SmallArguments};
use crate::split::{self, SplitArguments};
use crate::stop;
use crate::survey::{self, ServeOstArguments, SurveyArguments};
use crate::talks::{self, TalksArguments};
use crate::work::{Operation, Work};
use crate::worker::{Job, Myself, Phase, interleave, serve};

/// A sub-command of `nacre bench`.
#[derive(Debug, clap::Subcommand)]
pub enum Command {
    /// What this machine can do without any file system of ours: memory, system calls, sockets, disk
    #[command(after_help = "Example: nacre bench limits --dir /srv/disk --json")]
    Limits(LimitsArguments),
    /// FUSE file systems that do nothing: the ceiling of every FUSE file system, over each transport
    FuseNull(NullArguments),
    /// Names and attributes on any mounted path
    #[command(after_help = "Example: nacre bench meta /mnt/nacre --against /mnt/other -n 2 --shared")]
    Meta(MetaArguments),
    /// Data on any mounted path
    #[command(after_help = "Example: nacre bench io /mnt/nacre --against /srv/disk")]
    Io(IoArguments),
    /// tar, find, rm and git on any mounted path
    #[command(after_help = "Example: nacre bench programs /mnt/nacre --against /mnt/other --runs 3")]
    Programs(ProgramsArguments),
    /// The client's I/O engine with its features off and on, over loopback and over a simulated fabric
    Client(ClientArguments),
    /// Fields of an ocean model as records of a Fortran direct-access file, by calls and time per call
    Records(RecordsArguments),
    /// The same work on any mounted paths in alternating runs: names, programs, data, durability, memory
    Peers(Box<PeersArguments>),
    /// The engine of an MDT alone: no network, no FUSE; its memory and opening times with many inodes
    Mdt(MdtArguments),
    /// Names and attributes over processes, with the options and the summary of mdtest
    Mdtest(MdtestArguments),
    /// Data over processes, with the options and the tables of IOR
    Ior(Box<IorArguments>),
    /// Names on 1, 2, 4 and 8 MDTs: CPU time per operation, and rates with simulated service times
    DneScaling(DneArguments),
    /// Names and small files by back end of the targets: ext4, xfs, btrfs, a block store
    Backends(BackendsArguments),
    /// How long creates in a large directory wait while its names move to more MDTs
    DneSplit(SplitArguments),
    /// How long programs wait when servers are killed and started again
    Restart(RestartArguments),
    /// A stream next to writers of 4 KiB at random, on OSTs with simulated service times, together and apart
    Noisy(NoisyArguments),
    /// Random writes of 4 KiB on simulated disks and flash, with and without a cache of small writes and data on the MDT
    SmallIo(SmallArguments),
    /// What layouts cost and gain: PFL, data on the MDT, many components and stripes, lfs over many files, migration
    Layouts(LayoutsArguments),
    /// Bandwidth of objects by layer: object store, OST over the network, client; or over time, with trims
    Survey(Box<SurveyArguments>),
    /// The experiments of five talks on Lustre in one run, with one report of the results
    Talks(TalksArguments),
    /// Results of several versions compared: figures that improved or regressed beyond the noise
    Compare(CompareArguments),
    /// A figure over versions
    History(HistoryArguments),
    /// The figures of docs/performance.md, each against its bound, in one run
    Slice(SliceArguments),
    /// One phase of one worker process
    #[command(hide = true)]
    Worker {
        /// Phase of the work
        #[arg(value_enum)]
        phase: Phase,
        /// The work as JSON
        work: String,
    },
    /// One process of a team
    #[command(hide = true)]
    Task {
        /// CPU to run on
        #[arg(long)]
        cpu: Option<usize>,
        /// Kind of the task
        #[arg(value_enum)]
        kind: TaskKind,
        /// Setup of the task, as JSON
        setup: String,
    },
    /// Serves a file system that does nothing until it is unmounted
    #[command(hide = true)]
    NullServer(ServeArguments),
    /// Serves an OST that belongs to no file system until standard input ends
    #[command(hide = true)]
    SurveyOst(ServeOstArguments),
    /// Answers small messages on a loopback port until standard input ends
    #[command(hide = true)]
    EchoServer,
}

/// Kinds of teams whose tasks are processes of this program.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum TaskKind {
    /// `bench mdtest`
    Mdtest,
    /// `bench ior`
    Ior,
    /// `bench noisy`
    Noisy,
    /// `bench mdt --inodes`
    Mdt,
    /// `bench dne-scaling`
    Dne,
    /// `bench peers`
    Peers,
}

/// Paths under test, and number of workers.
#[derive(Debug, Clone, clap::Args)]
pub struct Subjects {
    /// Directory to work in
    path: PathBuf,
    /// Take every figure also on this directory, in alternating runs, and show the ratio to it
    #[arg(long, value_name = "PATH")]
    against: Option<PathBuf>,
    /// Worker processes
    #[arg(short = 'n', long, default_value_t = 1)]
    processes: usize,
    /// Keep worker i on the i-th CPU
    #[arg(long)]
    pin: bool,
    /// Empty the kernel's caches before each run (root only)
    #[arg(long)]
    cold: bool,
}

/// `nacre bench limits`
#[derive(Debug, clap::Args)]
pub struct LimitsArguments {
    /// Directory on the disk to measure
    #[arg(long, default_value = ".")]
    dir: PathBuf,
    /// Size of the file on the disk in MiB
    #[arg(long, default_value_t = 512)]
    size_mib: u64,
    #[command(flatten)]
    common: Common,
}

/// `nacre bench meta`
#[derive(Debug, clap::Args)]
pub struct MetaArguments {
    #[command(flatten)]
    subjects: Subjects,
    /// Operations; all by default
    #[arg(long = "op", value_delimiter = ',')]
    operations: Vec<Operation>,
    /// Files of each worker
    #[arg(long, default_value_t = 2000)]
    files: u64,
    /// Bytes that a new file gets, and that opening a file reads
    #[arg(long, default_value_t = 0)]
    bytes: usize,
    /// All workers in one directory
    #[arg(long)]
    shared: bool,
    #[command(flatten)]
    common: Common,
}

/// `nacre bench io`
#[derive(Debug, clap::Args)]
pub struct IoArguments {
    #[command(flatten)]
    subjects: Subjects,
    /// Operations; all by default
    #[arg(long = "op", value_delimiter = ',')]
    operations: Vec<Operation>,
    /// Size of one read or write in KiB
    #[arg(long, default_value_t = 1024)]
    block_kib: usize,
    /// Size of one read or write in bytes, if it is not a whole number of KiB
    #[arg(long, conflicts_with = "block_kib")]
    block_bytes: Option<usize>,
    /// Sequential work of all workers on one file, their blocks assigned round-robin
    #[arg(long)]
    shared: bool,
    /// Size of each worker's file in MiB
    #[arg(long, default_value_t = 256)]
    size_mib: u64,
    /// O_DIRECT
    #[arg(long)]
    direct: bool,
    /// fsync before the clock stops
    #[arg(long)]
    fsync: bool,
    #[command(flatten)]
    common: Common,
}

/// Executes `command` and returns the exit code: 0, 1 with a message on standard error, or 130 after Ctrl-C.
pub fn run(command: Command) -> i32 {
    match run_inner(command) {
        Ok(()) => 0,
        Err(Error::Interrupted) => stop::CODE,
        Err(error) => {
            eprintln!("bench: {error}");
            1
        }
    }
}

fn run_inner(command: Command) -> Result<(), Error> {
    let myself = Myself::new()?;
    match command {
        Command::Worker { phase, work } => serve(phase, &work),
        Command::Task { cpu, kind, setup } => task(cpu, kind, &setup, &myself),
        Command::Noisy(arguments) => arguments.common.show(noisy::measure(&arguments, &myself)),
        Command::SmallIo(arguments) => arguments.common.show(small::measure(&arguments, &myself)),
        Command::Layouts(arguments) => arguments.common.show(layouts::measure(&arguments, &myself)),
        Command::Ior(arguments) => ior::run(&arguments, &myself),
        Command::DneScaling(arguments) => arguments.common.show(dne::measure(&arguments, &myself)),
        Command::Backends(arguments) => arguments.common.show(backends::measure(&arguments, &myself)),
        Command::DneSplit(arguments) => arguments.common.show(split::measure(&arguments)),
        Command::Restart(arguments) => arguments.common.show(restart::measure(&arguments)),
        Command::Survey(arguments) => arguments.common.show(survey::measure(&arguments, &myself)),
        Command::Mdt(arguments) => arguments.common.show(mdt::measure(&arguments, &myself)),
        Command::Mdtest(arguments) => mdtest::run(&arguments, &myself),
        Command::NullServer(arguments) => null::serve(&arguments),
        Command::SurveyOst(arguments) => survey::serve_ost(&arguments),
        Command::EchoServer => null::serve_echo(),
        Command::Limits(arguments) => {
            let common = &arguments.common;
            let limits = Limits {
                repetitions: common.runs,
                seconds: common.seconds,
                file_bytes: arguments.size_mib.max(1) << 20,
            };
            common.print(&limits.measure(&myself, &arguments.dir)?);
            Ok(())
        }
        Command::FuseNull(arguments) => arguments.common.show(null::measure(&arguments, &myself)),
        Command::Slice(arguments) => arguments.common.show(slice::measure(&arguments, &myself)),
        Command::Talks(arguments) => talks::run(&arguments),
        Command::Compare(arguments) => match history::compare(&arguments)? {
            true => Ok(()),
            false => Err(Error::Usage("a figure is worse than it was".to_owned())),
        },
        Command::History(arguments) => history::history(&arguments),
        Command::Client(arguments) => arguments.common.show(client::measure(&arguments, &myself)),
        Command::Records(arguments) => arguments.common.show(records::measure(&arguments)),
        Command::Peers(arguments) => peers::run(&arguments, &myself),
        Command::Programs(arguments) => arguments.common.show(programs::measure(&arguments)),
        Command::Meta(arguments) => meta(&arguments, &myself),
        Command::Io(arguments) => io(&arguments, &myself),
    }
}

fn task(cpu: Option<usize>, kind: TaskKind, setup: &str, myself: &Myself) -> Result<(), Error> {
    if let Some(cpu) = cpu {
        nacre_env::pin_to_cpu(cpu).map_err(Error::io("pin to a CPU", "/proc/self"))?;
    }
    match kind {
        TaskKind::Mdtest => mdtest::serve(setup),
        TaskKind::Noisy => noisy::serve(setup),
        TaskKind::Mdt => mdt::serve(setup),
        TaskKind::Dne => dne::serve(setup),
        TaskKind::Ior => ior::serve(setup),
        TaskKind::Peers => peers::serve(setup, myself),
    }
}

fn meta(arguments: &MetaArguments, myself: &Myself) -> Result<(), Error> {
    let operations = chosen(&arguments.operations, &Operation::META, false)?;
    let works = operations.into_iter().map(|operation| {
        let mut work = Work::meta(operation, &arguments.subjects.path);
        work.files = arguments.files;
        work.shared = arguments.shared;
        work.block_bytes = arguments.bytes;
        work
    });
    measure("Metadata", works.collect(), &arguments.subjects, &arguments.common, myself)
}

fn io(arguments: &IoArguments, myself: &Myself) -> Result<(), Error> {
    let operations = chosen(&arguments.operations, &Operation::IO, true)?;
    let block_bytes = arguments.block_bytes.unwrap_or(arguments.block_kib << 10).max(1);
    // Rounded down to a whole number of blocks.
    let file_bytes = ((arguments.size_mib << 20) / block_bytes as u64).max(1) * block_bytes as u64;
    let works = operations.into_iter().map(|operation| {
        let path = &arguments.subjects.path;
        let mut work = Work::io(operation, path, block_bytes, file_bytes);
        work.shared = arguments.shared;
        work.direct = arguments.direct;
        work.sync = arguments.fsync;
        work
    });
    measure("Data", works.collect(), &arguments.subjects, &arguments.common, myself)
}

fn chosen(requested: &[Operation], all: &[Operation], io: bool) -> Result<Vec<Operation>, Error> {
    if let Some(wrong) = requested.iter().find(|operation| operation.is_io() != io) {
        let other = if io { "meta" } else { "io" };
        return Err(Error::Usage(format!("{} is measured by `bench {other}`", wrong.label())));
    }
    Ok(if requested.is_empty() { all.to_vec() } else { requested.to_vec() })
}

fn measure(
    what: &str,
    works: Vec<Work>,
    subjects: &Subjects,
    common: &Common,
    myself: &Myself,
) -> Result<(), Error> {
    let processes = subjects.processes.max(1);
    let mut report = Report::new(format!("{what} on {}, {processes} process(es)", subjects.path.display()));
    for mut work in works {
        work.seconds = common.seconds;
        let job_on = |path: &PathBuf| {
            let mut job =
                Job::new(work.operation.label(), &Work { path: path.clone(), ..work.clone() }, processes);
            job.cold = subjects.cold;
            if subjects.pin {
                pin(&mut job);
            }
            job
        };
        let mut jobs = vec![job_on(&subjects.path)];
        jobs.extend(subjects.against.as_ref().map(job_on));
        let results = interleave(myself, &jobs, common.runs)?;
        let mut row = row_of(&jobs[0], &results[0]);
        if let (Some(path), Some(result)) = (&subjects.against, results.get(1)) {
            row.against = Some(Against::new(path.display().to_string(), row_of(&jobs[1], result)));
        }
        report.rows.push(row);
    }
    common.print(&report);
    Ok(())
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Program {
        #[command(subcommand)]
        command: Command,
    }

    #[test]
    fn the_command_line_is_consistent() {
        <Program as clap::CommandFactory>::command().debug_assert();
    }

    #[test]
    fn operations_are_kept_to_their_sub_command() {
        let words = ["bench", "meta", "/tmp", "--op", "create,stat-uncached", "-n", "2"];
        match Program::try_parse_from(words).map(|program| program.command) {
            Ok(Command::Meta(arguments)) => {
                assert_eq!(arguments.operations, [Operation::Create, Operation::StatUncached]);
                assert_eq!(arguments.subjects.processes, 2);
            }
            _ => panic!("not understood"),
        }
        assert!(chosen(&[Operation::SeqRead], &Operation::META, false).is_err());
        assert_eq!(chosen(&[], &Operation::IO, true).expect("all").len(), Operation::IO.len());
    }
}
