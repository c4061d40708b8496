//! `nacre bench ior`: data over processes, with the options and the tables of IOR.
//!
//! Every task opens, transfers and closes, in a file of its own or in a common one; reads follow writes and
//! cover the task's own data or another task's. Works on any file system; Lustre's options stripe the files
//! where they are supported.

mod options;
mod plan;
mod table;
mod task;

use std::ffi::OsString;
use std::path::Path;
use std::time::{Duration, Instant};

use serde::Serialize;

use crate::error::Error;
use crate::machine::Machine;
use crate::options::from_words;
use crate::place;
use crate::team::Team;
use crate::worker::Myself;
use nacre_common::size;
use plan::{Plan, Reorder};
use table::{Line, Summary};
use task::{Access, Order, Setup, Times};

pub use options::IorArguments;
pub(crate) use task::serve;

/// The result of a run.
#[derive(Debug, Serialize)]
struct Outcome<'a> {
    program: &'static str,
    command: String,
    machine: Machine,
    options: &'a [(&'static str, String)],
    results: &'a [Line],
    summary: &'a [Summary],
}

/// Measures and prints.
///
/// # Errors
///
/// Options that make no sense, errors of the file system, and data that differs from what was written.
pub(crate) fn run(arguments: &IorArguments, myself: &Myself) -> Result<(), Error> {
    let run = Run::new(arguments)?;
    let json = run.json;
    let shown = run.describe()?;
    if !json {
        println!("nacre bench ior: coordinated test of parallel I/O");
        println!("Command line        : {}\n\nOptions: ", place::command_line());
        shown.iter().for_each(|(name, value)| println!("{name:<20}: {value}"));
        print!("\nResults: \n\n{}", table::HEADING);
    }
    let lines = run.repetitions(myself, |line| {
        if !json {
            print!("{}", line.row());
        }
    })?;
    let summaries: Vec<Summary> =
        ["write", "read"].into_iter().filter_map(|name| Summary::new(name, &run.plan, &lines)).collect();
    if json {
        let (program, command, machine) = ("ior", place::command_line(), Machine::look());
        let outcome =
            Outcome { program, command, machine, options: &shown, results: &lines, summary: &summaries };
        println!("{}", serde_json::to_string(&outcome).map_err(Error::usage)?);
    } else {
        print!("{}", table::summary(&summaries, &run.plan, run.shown()));
    }
    match lines.iter().map(Line::errors).sum::<u64>() {
        0 => Ok(()),
        errors => Err(Error::Worker(format!("{errors} transfer(s) did not bring what was written"))),
    }
}

/// Runs a command line without printing, for other benches. Returns `write` or `read` with bytes per second,
/// in the order of the phases.
///
/// # Errors
///
/// Those of the command.
pub(crate) fn bandwidths(words: &[OsString], myself: &Myself) -> Result<Vec<(&'static str, f64)>, Error> {
    let arguments: IorArguments = from_words("ior", words)?;
    let lines = Run::new(&arguments)?.repetitions(myself, |_| {})?;
    Ok(lines.iter().map(Line::bandwidth).collect())
}

/// A run with checked options.
pub(crate) struct Run<'a> {
    arguments: &'a IorArguments,
    plan: Plan,
    reorder: Reorder,
    setup: Setup,
    json: bool,
}

impl<'a> Run<'a> {
    /// Checks the options.
    fn new(arguments: &'a IorArguments) -> Result<Run<'a>, Error> {
        let directives = arguments.directives()?;
        let plan = arguments.plan()?;
        let reorder = arguments.reorder(&plan)?;
        let path = std::path::absolute(&arguments.file).map_err(Error::io("find", &arguments.file))?;
        let setup = Setup {
            plan,
            rank: 0,
            path,
            direct: arguments.direct,
            sync: arguments.sync,
            barriers: arguments.barriers,
            seed: arguments.data_seed(),
            deadline_s: arguments.deadline_s,
            striping: directives.striping,
            multi_file: arguments.multi_file,
        };
        if arguments.use_existing && !setup.striping.is_empty() {
            return Err(Error::Usage("a file that exists (-E) has its stripes already".to_owned()));
        }
        Ok(Run { arguments, plan, reorder, setup, json: arguments.json || directives.json })
    }

    /// Returns the head of the output.
    fn describe(&self) -> Result<Vec<(&'static str, String)>, Error> {
        let (plan, arguments) = (&self.plan, self.arguments);
        let directory = self.setup.path.parent().unwrap_or(Path::new("/"));
        let mut all = vec![
            ("api", "POSIX".to_owned()),
            ("test filename", self.setup.path.display().to_string()),
            ("FS", place::capacity(directory)?),
            ("access", if plan.file_per_task { "file-per-process" } else { "single-shared-file" }.to_owned()),
            ("type", "independent".to_owned()),
            ("segments", plan.segments.to_string()),
            ("ordering in a file", if plan.random.is_some() { "random" } else { "sequential" }.to_owned()),
            (
                "ordering inter file",
                match self.reorder {
                    Reorder::None => "no tasks offsets".to_owned(),
                    Reorder::Constant(_) => "constant task offset".to_owned(),
                    Reorder::Random(_) => "random task offset".to_owned(),
                },
            ),
        ];
        if let Reorder::Constant(distance) = self.reorder {
            all.push(("task offset", distance.to_string()));
        }
        all.extend([
            ("nodes", "1".to_owned()),
            ("tasks", plan.tasks.to_string()),
            ("clients per node", plan.tasks.to_string()),
            ("repetitions", arguments.repetitions.to_string()),
            ("xfersize", size::show(plan.transfer)),
            ("blocksize", size::show(plan.block)),
            ("aggregate filesize", size::show(plan.bytes())),
        ]);
        if let Some(seed) = self.setup.seed {
            all.push(("data seed", seed.to_string()));
        }
        if arguments.deadline_s > 0 {
            all.push(("stonewallingTime", arguments.deadline_s.to_string()));
        }
        if !self.setup.striping.is_empty() {
            let requested = &self.setup.striping;
            let text = |value: Option<String>| value.unwrap_or_else(|| "default".to_owned());
            all.push(("stripe count", text(requested.count.map(|count| count.to_string()))));
            all.push(("stripe size", text(requested.size.map(|bytes| size::show(u64::from(bytes))))));
        }
        Ok(all)
    }

    fn shown(&self) -> table::Shown {
        let (reorder, distance, reorder_random) = match self.reorder {
            Reorder::None => (0, 1, 0),
            Reorder::Constant(distance) => (1, distance, 0),
            Reorder::Random(_) => (0, 1, 1),
        };
        let (repetitions, seed) = (self.arguments.repetitions, self.arguments.reorder_seed);
        table::Shown { repetitions, reorder, distance, reorder_random, seed }
    }

    /// Runs all repetitions; calls `each` with every line as it is ready.
    fn repetitions(&self, myself: &Myself, mut each: impl FnMut(&Line)) -> Result<Vec<Line>, Error> {
        let setups: Vec<Setup> =
            (0..self.plan.tasks).map(|rank| Setup { rank, ..self.setup.clone() }).collect();
        let mut team = Team::start(myself, "ior", &setups, self.arguments.pin)?;
        let begun = Instant::now();
        let limit = Duration::from_secs(self.arguments.minutes_max.saturating_mul(60));
        let mut lines = Vec::new();
        for repetition in 0..self.arguments.repetitions {
            if !limit.is_zero() && begun.elapsed() >= limit {
                break;
            }
            std::thread::sleep(Duration::from_secs(self.arguments.delay_s));
            self.repetition(&mut team, repetition, |line| {
                each(&line);
                lines.push(line);
            })?;
        }
        Ok(lines)
    }

    fn repetition(&self, team: &mut Team, repetition: u64, mut push: impl FnMut(Line)) -> Result<(), Error> {
        let arguments = self.arguments;
        let own = Reorder::None.ranks(self.plan.tasks);
        let all = self.plan.block / self.plan.transfer * self.plan.segments;
        let mut counts = vec![all; self.plan.tasks as usize];
        let transfer =
            |team: &mut Team, access, ranks: &[u64], counts: &[u64]| -> Result<Vec<Times>, Error> {
                let (ranks, counts) = (ranks.to_vec(), counts.to_vec());
                team.run(&Order::Transfer { access, repetition, ranks, counts })
            };
        if arguments.writes() {
            if !arguments.use_existing {
                let _: Vec<Times> = team.run(&Order::Remove { repetition })?;
            }
            let times = transfer(team, Access::Write, &own, &counts)?;
            push(Line::new(Access::Write, &self.plan, &times, repetition));
            self.check_size(repetition, &times)?;
            // Data that was not written because of a deadline cannot be read.
            counts = times.iter().map(|times| times.transfers).collect();
        }
        if arguments.check_write {
            let others = Reorder::Constant(if self.reorder == Reorder::None { 0 } else { 1 });
            let times = transfer(team, Access::Check, &others.ranks(self.plan.tasks), &counts)?;
            let wrong: u64 = times.iter().map(|times| times.errors).sum();
            if wrong > 0 {
                return Err(Error::Worker(format!("{wrong} transfer(s) were not written as they should be")));
            }
        }
        if arguments.reads() {
            let access = if arguments.check_read { Access::Check } else { Access::Read };
            let times = transfer(team, access, &self.reorder.ranks(self.plan.tasks), &counts)?;
            push(Line::new(access, &self.plan, &times, repetition));
        }
        if !arguments.keep {
            let _: Vec<Times> = team.run(&Order::Remove { repetition })?;
        }
        Ok(())
    }

    /// Checks that files have the size that was written.
    fn check_size(&self, repetition: u64, times: &[Times]) -> Result<(), Error> {
        let whole = self.plan.block / self.plan.transfer * self.plan.segments;
        if times.iter().any(|times| times.transfers < whole) {
            // A deadline ended the phase early.
            return Ok(());
        }
        let ranks = if self.plan.file_per_task { self.plan.tasks } else { 1 };
        for rank in 0..ranks {
            let path = task::file_name(&self.setup, repetition, rank);
            let found = std::fs::metadata(&path).map_err(Error::io("stat", &path))?.len();
            let expected = self.plan.file_bytes();
            // An existing file may have been longer.
            if found < expected || (found > expected && !self.arguments.use_existing) {
                let path = path.display();
                return Err(Error::Worker(format!("{path} has {found} bytes after {expected} were written")));
            }
        }
        Ok(())
    }
}
