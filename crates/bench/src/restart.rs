//! `nacre bench restart`: how long a program waits when servers are killed and started again.
//!
//! One thread creates files and asks for the attributes of old ones, another one overwrites blocks of a file and syncs
//! each. The MDT is killed, and then all OSTs at once, while both threads work; `nacre up` starts what was killed. Every
//! call counts: the figure of interest is the longest.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use crate::error::Error;
use crate::instance::{Instance, InstanceOptions, NacreProgram};
use crate::options::Common;
use crate::report::{Report, Row, Target, Unit};
use crate::sample::Samples;

/// Limit of the longest call, in seconds.
const PAUSE_S: f64 = 2.0;
/// Files in each directory.
const PER_DIRECTORY: u64 = 10_000;
/// Size of a write, in bytes.
const BLOCK: usize = 64 << 10;
/// Blocks of the file that is overwritten.
const BLOCKS: u64 = 100;

/// `nacre bench restart`
#[derive(Debug, clap::Args)]
#[command(after_help = "Example: nacre bench restart --files 1000000 --runs 3 --seconds 3")]
pub struct RestartArguments {
    /// Directory on a disk; needs 1 GiB for a million files
    #[arg(long, default_value = "/var/tmp")]
    dir: PathBuf,
    /// Files in the file system
    #[arg(long, default_value_t = 100_000)]
    files: u64,
    /// OSTs; all are killed at once
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u16).range(1..))]
    osts: u16,
    /// The program that starts file systems.
    #[command(flatten)]
    nacre: NacreProgram,
    /// How the figures are taken and printed; `--seconds` is the time before and after each kill.
    #[command(flatten)]
    pub common: Common,
}

/// A call of a program that has ended.
struct Call {
    start: Instant,
    took: Duration,
}

/// Does `work` and reports it.
fn timed<R>(calls: &Sender<Call>, work: impl FnOnce() -> R) -> R {
    let start = Instant::now();
    let result = work();
    // The receiver outlives the threads.
    let _ = calls.send(Call { start, took: start.elapsed() });
    result
}

/// Ended calls of one thread.
struct Calls(Receiver<Call>);

impl Calls {
    /// Waits until a call has ended that began after `until`, and returns the longest one that ended since `from`, in
    /// seconds.
    fn longest_s(&self, from: Instant, until: Instant) -> Result<f64, Error> {
        let mut longest = Duration::ZERO;
        loop {
            let call = self.0.recv().map_err(|_| Error::Server {
                what: "work on the file system".to_owned(),
                reason: "it has failed".to_owned(),
            })?;
            if call.start + call.took >= from {
                longest = longest.max(call.took);
            }
            if call.start > until {
                return Ok(longest.as_secs_f64());
            }
        }
    }
}

/// Seconds of one run.
struct Run {
    /// Longest calls while nothing was killed: names, data.
    quiet: [f64; 2],
    /// Longest call on names when the MDT was killed, and the time until it ran again.
    mdt: [f64; 2],
    /// Longest synced write when the OSTs were killed, and the time until they ran again.
    osts: [f64; 2],
}

/// Takes all figures.
///
/// # Errors
///
/// When a file system does not start or work on it fails; it is stopped first.
pub fn measure(arguments: &RestartArguments) -> Result<Report, Error> {
    let program = arguments.nacre.find()?;
    let options =
        InstanceOptions { osts: arguments.osts.into(), separate: true, ..InstanceOptions::default() };
    let instance = Instance::start(&program, &arguments.dir, "bench-restart", options)?;
    eprintln!("bench restart: {} files", arguments.files);
    for number in 0..arguments.files {
        let path = file(instance.mount(), number);
        if number % PER_DIRECTORY == 0 {
            let directory = path.parent().unwrap_or(instance.mount());
            std::fs::create_dir(directory).map_err(Error::io("create directory", directory))?;
        }
        create(&path)?;
    }
    let (mount, stop) = (instance.process("mount")?, AtomicBool::new(false));
    let runs = std::thread::scope(|scope| {
        let ((names_sender, names_calls), (data_sender, data_calls)) = (channel(), channel());
        let names = scope.spawn(|| use_names(arguments, &instance, names_sender, &stop));
        let data = scope.spawn(|| use_data(&instance, data_sender, &stop));
        let calls = [names_calls, data_calls].map(Calls);
        let runs = (0..arguments.common.runs.max(1)).map(|_| run_once(arguments, &instance, &calls));
        let runs = runs.collect::<Result<Vec<Run>, Error>>();
        stop.store(true, Ordering::SeqCst);
        if runs.is_err() {
            // Calls may wait for a server that is not started again: they end with the mount.
            kill(mount)?;
        }
        for thread in [names, data] {
            let end = thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            end.unwrap_or_else(|error| eprintln!("bench restart: {error}"));
        }
        runs
    })?;
    Ok(report_of(arguments, &runs))
}

/// Returns the path of one of the files that the file system has.
fn file(mount: &Path, number: u64) -> PathBuf {
    mount.join(format!("d{}/f{}", number / PER_DIRECTORY, number % PER_DIRECTORY))
}

fn create(path: &Path) -> Result<(), Error> {
    let made = OpenOptions::new().write(true).create_new(true).open(path);
    made.map(drop).map_err(Error::io("create", path))
}

fn use_names(
    arguments: &RestartArguments,
    instance: &Instance,
    calls: Sender<Call>,
    stop: &AtomicBool,
) -> Result<(), Error> {
    let directory = instance.work_directory("names")?;
    let mut number = 0_u64;
    while !stop.load(Ordering::SeqCst) {
        timed(&calls, || create(&directory.join(number.to_string())))?;
        // Files far apart, most of which were used long ago.
        let old = file(instance.mount(), number * 7919 % arguments.files.max(1));
        timed(&calls, || std::fs::metadata(&old)).map_err(Error::io("stat", &old))?;
        number += 1;
    }
    Ok(())
}

fn use_data(instance: &Instance, calls: Sender<Call>, stop: &AtomicBool) -> Result<(), Error> {
    let path = instance.work_directory("data")?.join("file");
    let file = File::create(&path).map_err(Error::io("create", &path))?;
    let mut number = 0_u64;
    while !stop.load(Ordering::SeqCst) {
        let offset = number % BLOCKS * BLOCK as u64;
        let block = [number as u8; BLOCK];
        let write = || file.write_all_at(&block, offset).and_then(|()| file.sync_data());
        timed(&calls, write).map_err(Error::io("write", &path))?;
        number += 1;
    }
    Ok(())
}

fn run_once(arguments: &RestartArguments, instance: &Instance, calls: &[Calls; 2]) -> Result<Run, Error> {
    let calm = Duration::from_secs_f64(arguments.common.seconds.max(0.1));
    let longest = |from: Instant, until: Instant| -> Result<[f64; 2], Error> {
        let [names, data] = calls;
        Ok([names.longest_s(from, until)?, data.longest_s(from, until)?])
    };
    let restart = |names: &[String]| -> Result<([f64; 2], f64), Error> {
        let processes =
            names.iter().map(|name| instance.process(name)).collect::<Result<Vec<u32>, Error>>()?;
        let start = Instant::now();
        processes.into_iter().try_for_each(kill)?;
        instance.up()?;
        let up_s = start.elapsed().as_secs_f64();
        Ok((longest(start, Instant::now() + calm)?, up_s))
    };
    let begin = Instant::now();
    let quiet = longest(begin, begin + calm)?;
    let ([mdt, _], mdt_up) = restart(&["mdt0000".to_owned()])?;
    let osts: Vec<String> = (0..arguments.osts).map(|ost| format!("ost{ost:04x}")).collect();
    let ([_, osts], osts_up) = restart(&osts)?;
    Ok(Run { quiet, mdt: [mdt, mdt_up], osts: [osts, osts_up] })
}

fn kill(process: u32) -> Result<(), Error> {
    let killed =
        i32::try_from(process).ok().and_then(Pid::from_raw).map(|pid| kill_process(pid, Signal::KILL));
    match killed {
        Some(Ok(())) => Ok(()),
        _ => Err(Error::Server {
            what: format!("process {process}"),
            reason: "it cannot be killed".to_owned(),
        }),
    }
}

fn report_of(arguments: &RestartArguments, runs: &[Run]) -> Report {
    let (files, osts) = (arguments.files, arguments.osts);
    let mut report =
        Report::new(format!("Servers of {files} files, with {osts} OSTs, are killed and started again"));
    let mut add = |name: &str, target: Option<Target>, of: &dyn Fn(&Run) -> f64| {
        let mut samples = Samples::new();
        runs.iter().for_each(|run| samples.push(of(run)));
        report.rows.push(Row { target, ..Row::new(name.to_owned(), Unit::Seconds, samples) });
    };
    let pause = || Some(Target::AtMost(PAUSE_S));
    add("longest create or stat before", None, &|run| run.quiet[0]);
    add("longest create or stat, MDT killed", pause(), &|run| run.mdt[0]);
    add("until the MDT ran again", None, &|run| run.mdt[1]);
    add("longest write and sync before", None, &|run| run.quiet[1]);
    add("longest write and sync, all OSTs killed", pause(), &|run| run.osts[0]);
    add("until the OSTs ran again", None, &|run| run.osts[1]);
    report
}
