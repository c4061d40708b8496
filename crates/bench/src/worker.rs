//! Processes that do the work.
//!
//! A worker is an instance of this program, started with a hidden sub-command, the phase and a [`Work`] as
//! JSON. It prints `ready` on its standard output when it is prepared, starts at the first line on its
//! standard input, and prints a [`Done`] as JSON. Threads of one process would share a file descriptor table
//! and an address space, whose locks would be part of the figures.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::error::Error;
use crate::machine::{self, CpuTime};
use crate::options::word;
use crate::piped::Piped;
use crate::sample::Samples;
use crate::work::{Done, Work};

/// The program itself, to call its own sub-commands of `bench`.
#[derive(Debug, Clone)]
pub struct Myself {
    program: PathBuf,
}

impl Myself {
    /// Finds the running executable.
    ///
    /// # Errors
    ///
    /// When /proc is not mounted.
    pub fn new() -> Result<Myself, Error> {
        let program = std::env::current_exe().map_err(Error::io("find", "/proc/self/exe"))?;
        Ok(Myself { program })
    }

    /// Returns a command that calls sub-command `name`.
    pub fn command(&self, name: &str) -> Command {
        let mut command = Command::new(&self.program);
        command.args(["bench", name]);
        command
    }

    /// Returns the path of the running executable.
    pub fn program(&self) -> &Path {
        &self.program
    }
}

/// Phases of the hidden sub-command `worker`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Phase {
    /// Creates the files that every repetition needs.
    Prepare,
    /// Runs one repetition.
    Run,
    /// Removes the files again.
    Clean,
}

impl Phase {
    fn name(self) -> String {
        word(self)
    }
}

/// Runs one phase of the work, given as JSON, in a worker, and prints the result.
///
/// # Errors
///
/// Those of the work, and JSON that is not a work.
pub fn serve(phase: Phase, work: &str) -> Result<(), Error> {
    let work: Work = serde_json::from_str(work).map_err(Error::usage)?;
    let done = match phase {
        Phase::Prepare => work.prepare().map(|()| None)?,
        Phase::Clean => work.clean().map(|()| None)?,
        Phase::Run => Some(work.run(|| {
            println!("ready");
            let mut line = String::new();
            // At the end of input the parent has ended; then the run is short and its result is lost.
            let _ = std::io::stdin().read_line(&mut line);
        })?),
    };
    if let Some(done) = done {
        println!("{}", serde_json::to_string(&done).expect("two numbers are JSON"));
    }
    Ok(())
}

/// Result of one repetition of all workers together.
#[derive(Debug, Clone, Copy)]
pub struct Measured {
    /// Operations per second, summed over the workers.
    pub rate: f64,
    /// CPU time of the whole machine per operation, in microseconds.
    pub cpu_us: f64,
    /// CPU time of the processes that serve the file system per operation, in microseconds.
    pub daemon_us: f64,
}

/// The repetitions of one job.
#[derive(Debug, Clone, Default)]
pub struct Series {
    /// Operations per second, summed over the workers.
    pub rates: Samples,
    /// CPU time of the whole machine per operation, in microseconds.
    pub cpu_us: Samples,
    /// CPU time of the serving processes per operation, in microseconds; empty if they are unknown.
    pub daemon_us: Samples,
}

impl Series {
    /// Adds a repetition of `job`.
    pub fn push(&mut self, job: &Job, measured: Measured) {
        self.rates.push(measured.rate);
        self.cpu_us.push(measured.cpu_us);
        if !job.daemons.is_empty() {
            self.daemon_us.push(measured.daemon_us);
        }
    }
}

/// Work of several concurrent workers, repeated.
#[derive(Debug, Clone)]
pub struct Job {
    /// Name in tables.
    pub label: String,
    /// One work per worker.
    pub works: Vec<Work>,
    /// The kernel's caches are dropped before each repetition (root only).
    pub cold: bool,
    /// Processes that serve the file system, whose CPU time is counted separately.
    pub daemons: Vec<u32>,
}

impl Job {
    /// Creates a job of `processes` workers that do `work`, each with its own number.
    pub fn new(label: impl Into<String>, work: &Work, processes: usize) -> Job {
        let workers = processes.max(1);
        let works = (0..workers).map(|worker| Work { worker, workers, ..work.clone() }).collect();
        Job { label: label.into(), works, cold: false, daemons: Vec::new() }
    }

    /// Creates the files that every repetition needs.
    ///
    /// # Errors
    ///
    /// Those of the workers.
    pub fn prepare(&self, myself: &Myself) -> Result<(), Error> {
        self.phase(myself, Phase::Prepare)
    }

    /// Removes the files of `prepare`.
    ///
    /// # Errors
    ///
    /// Those of the workers.
    pub fn clean(&self, myself: &Myself) -> Result<(), Error> {
        self.phase(myself, Phase::Clean)
    }

    /// Runs one repetition.
    ///
    /// # Errors
    ///
    /// Those of the workers.
    pub fn run(&self, myself: &Myself) -> Result<Measured, Error> {
        let mut workers: Vec<Running> = Vec::new();
        for work in &self.works {
            workers.push(Running::start(myself, Phase::Run, work)?);
        }
        for worker in &mut workers {
            worker.expect_ready()?;
        }
        if self.cold {
            machine::drop_caches()?;
        }
        let daemons_us = || self.daemons.iter().filter_map(|&pid| machine::process_cpu_us(pid)).sum::<f64>();
        let (before, daemons_before) = (CpuTime::now(), daemons_us());
        for worker in &mut workers {
            worker.go()?;
        }
        let mut operations = 0;
        let mut rate = 0.0;
        for worker in workers {
            let done = worker.finish()?;
            operations += done.operations;
            rate += done.operations as f64 / (done.elapsed_ns.max(1) as f64 / 1e9);
        }
        let busy_us = CpuTime::now().busy_us - before.busy_us;
        let operations = operations.max(1) as f64;
        Ok(Measured {
            rate,
            cpu_us: busy_us as f64 / operations,
            daemon_us: (daemons_us() - daemons_before) / operations,
        })
    }

    fn phase(&self, myself: &Myself, phase: Phase) -> Result<(), Error> {
        let started: Result<Vec<Running>, Error> =
            self.works.iter().map(|work| Running::start(myself, phase, work)).collect();
        for worker in started? {
            worker.end()?;
        }
        Ok(())
    }
}

/// Returns the order of `count` subjects in a round: every other round is reversed, so that all see the same
/// machine and its drift cancels.
pub(crate) fn turns(round: usize, count: usize) -> impl Iterator<Item = usize> {
    (0..count).map(move |turn| if round.is_multiple_of(2) { turn } else { count - 1 - turn })
}

/// Runs `jobs` in alternation, `repetitions` times; returns one series of results per job.
///
/// # Errors
///
/// The first error of any worker; files are removed before it is returned.
pub fn interleave(myself: &Myself, jobs: &[Job], repetitions: usize) -> Result<Vec<Series>, Error> {
    let mut results = vec![Series::default(); jobs.len()];
    let outcome: Result<(), Error> = (|| {
        for job in jobs {
            job.prepare(myself)?;
        }
        for round in 0..repetitions.max(1) {
            for index in turns(round, jobs.len()) {
                let measured = jobs[index].run(myself)?;
                results[index].push(&jobs[index], measured);
            }
        }
        Ok(())
    })();
    let cleaned: Result<Vec<()>, Error> = jobs.iter().map(|job| job.clean(myself)).collect();
    outcome?;
    cleaned?;
    Ok(results)
}

/// A worker process, killed on drop.
struct Running(Piped);

impl Running {
    fn start(myself: &Myself, phase: Phase, work: &Work) -> Result<Running, Error> {
        let work = serde_json::to_string(work)
            .map_err(|_| Error::Usage("paths of measured directories must be UTF-8".to_owned()))?;
        Piped::start(myself.command("worker").args([&phase.name(), &work])).map(Running)
    }

    fn expect_ready(&mut self) -> Result<(), Error> {
        match self.0.line()?.as_str() {
            "ready" => Ok(()),
            other => Err(Error::Worker(format!("said {other:?} instead of ready"))),
        }
    }

    fn go(&mut self) -> Result<(), Error> {
        self.0.tell("go")?;
        self.0.hang_up();
        Ok(())
    }

    fn finish(mut self) -> Result<Done, Error> {
        let line = self.0.line()?;
        let done = serde_json::from_str(&line)
            .map_err(|error| Error::Worker(format!("answer {line:?} is not understood: {error}")))?;
        self.end()?;
        Ok(done)
    }

    fn end(mut self) -> Result<(), Error> {
        self.0.hang_up();
        match self.0.wait()? {
            status if status.success() => Ok(()),
            status => Err(Error::Worker(format!("ended with {status}, see its message above"))),
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // No effect on a process that has ended and been waited for.
        self.0.kill();
        let _ = self.0.wait();
    }
}
