//! `nacre debug`: what a stuck request waits for, slow operations, and the state and recent events of processes.

mod gather;
mod text;

use crate::control::{Answer, Request};
use crate::debug::chain;
use crate::debug::{Question, SlowShot};
use crate::failure::{Failure, Result};
use gather::{Found, Gathered};
use nacre_env::fault;
use std::path::{Path, PathBuf};

const EXAMPLE: &str = "\
Example: nacre debug waits /srv/fs                 what each request of the last second and before waits for
         nacre debug waits /mnt/nacre --older 10s --json
         nacre debug slow /srv/fs                  requests that took long, and where their time went
         nacre debug dump mdt0000 /srv/fs          the state of one process
         nacre debug events mount /srv/fs --save   recent events of one process";

/// Shows what requests wait for, slow operations, and the state of processes.
///
/// Asks the processes of this host that belong to the file system: servers and mounts. Only their owner and root
/// may ask. Their answers contain names of files as FIDs only, and no keys.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLE)]
pub struct DebugArgs {
    #[command(subcommand)]
    command: DebugCommand,
}

#[derive(Debug, clap::Subcommand)]
enum DebugCommand {
    /// Shows requests that wait, and the chain of what they wait for to its end
    Waits {
        /// Directory or mount point of the file system [default: the one that runs here]
        dir: Option<PathBuf>,
        /// Requests that are older than this
        #[arg(long, value_name = "TIME", default_value = "1s")]
        older: humantime::Duration,
        /// Also show requests that are part of the chains of others
        #[arg(long)]
        all: bool,
        /// Print as JSON
        #[arg(long)]
        json: bool,
    },
    /// Shows operations that took longer than the parameter slow_operation_ms, with the time spent in each stage
    Slow {
        /// Directory or mount point of the file system [default: the one that runs here]
        dir: Option<PathBuf>,
        /// Print as JSON
        #[arg(long)]
        json: bool,
    },
    /// Shows connections, locks, clients, changed parameters and threads of a process
    Dump {
        /// Process, as 'nacre status' names it: node, mgs, mdt0000, ost0000, mount; or a process id
        process: String,
        /// Directory or mount point of the file system [default: the one that runs here]
        dir: Option<PathBuf>,
        /// Print as JSON
        #[arg(long)]
        json: bool,
    },
    /// Shows recent events of a process, the oldest first
    Events {
        /// Process, as 'nacre status' names it: node, mgs, mdt0000, ost0000, mount; or a process id
        process: String,
        /// Directory or mount point of the file system [default: the one that runs here]
        dir: Option<PathBuf>,
        /// Save the events in the run directory, as a panic does, and print the name of the file
        #[arg(long, conflicts_with = "clear")]
        save: bool,
        /// Remove the events and the log of slow operations
        #[arg(long)]
        clear: bool,
    },
    /// Lists the points at which faults can be made with 'lctl set_param fail_loc=...', in builds for tests
    Faults,
}

/// Runs the command.
///
/// # Errors
/// If no process of the file system runs here, or the named one does not answer.
pub fn run(args: &DebugArgs) -> Result<i32> {
    match &args.command {
        DebugCommand::Waits { dir, older, all, json } => waits(dir.as_deref(), (*older).into(), *all, *json),
        DebugCommand::Slow { dir, json } => slow(dir.as_deref(), *json),
        DebugCommand::Dump { process, dir, json } => dump(process, dir.as_deref(), *json),
        DebugCommand::Events { process, dir, save, clear } => events(process, dir.as_deref(), *save, *clear),
        DebugCommand::Faults => faults(),
    }
}

fn waits(dir: Option<&Path>, older: std::time::Duration, all: bool, json: bool) -> Result<i32> {
    let gathered = Gathered::of(dir)?;
    let processes = gathered.processes();
    let stuck = chain::stuck(&processes, crate::debug::millis(older), all);
    if json {
        print_json(&serde_json::json!({ "processes": processes, "requests": stuck }))?;
    } else {
        print!("{}", text::waits(&processes, &stuck));
    }
    Ok(0)
}

fn slow(dir: Option<&Path>, json: bool) -> Result<i32> {
    let gathered = Gathered::of(dir)?;
    let mut rows: Vec<(String, SlowShot)> = Vec::new();
    for (found, answer) in gathered.ask(Question::Slow) {
        match answer {
            Ok(Answer::Slow { operations }) => {
                rows.extend(operations.into_iter().map(|slow| (found.label(), slow)))
            }
            _ => eprintln!("{}: {}", found.label(), found.trouble()),
        }
    }
    rows.sort_by_key(|(_, slow)| slow.at_ms);
    if json {
        let rows: Vec<_> = rows
            .iter()
            .map(|(process, slow)| serde_json::json!({ "process": process, "slow": slow }))
            .collect();
        print_json(&rows)?;
    } else {
        print!("{}", text::slow(&rows));
    }
    Ok(0)
}

fn dump(process: &str, dir: Option<&Path>, json: bool) -> Result<i32> {
    let gathered = Gathered::of(dir)?;
    let found = gathered.find(process)?;
    let Answer::Debug(state) = found.expect(Question::State)? else { return Err(found.unexpected()) };
    let params = found.params();
    if json {
        print_json(&serde_json::json!({ "state": state, "parameters": params }))?;
    } else {
        print!("{}", text::dump(&state, &params));
    }
    Ok(0)
}

fn events(process: &str, dir: Option<&Path>, save: bool, clear: bool) -> Result<i32> {
    let gathered = Gathered::of(dir)?;
    let found = gathered.find(process)?;
    let question = match (save, clear) {
        (true, _) => Question::Save,
        (_, true) => Question::Clear,
        _ => Question::Events,
    };
    match found.expect(question)? {
        Answer::Events { lines } => lines.iter().for_each(|line| println!("{line}")),
        Answer::Saved { path } => println!("{}", path.display()),
        Answer::Done => {}
        _ => return Err(found.unexpected()),
    }
    Ok(0)
}

fn faults() -> Result<i32> {
    if !fault::ENABLED {
        return Err(Failure::new(fault::ABSENT));
    }
    fault::list().for_each(|(number, name, what)| println!("{number:#06x} {name:<26} {what}"));
    Ok(0)
}

fn print_json(value: &impl serde::Serialize) -> Result<()> {
    let text = serde_json::to_string_pretty(value).map_err(Failure::because("write JSON"))?;
    println!("{text}");
    Ok(())
}

/// Asks all processes of this host the question, for `lctl`.
pub fn ask_all(question: Question) -> Vec<(String, Answer)> {
    let gathered = Gathered::on_host();
    let answers = gathered.ask(question);
    answers.into_iter().filter_map(|(found, answer)| Some((found.label(), answer.ok()?))).collect()
}

impl Found {
    /// Asks the process; a refusal is an error.
    fn expect(&self, question: Question) -> Result<Answer> {
        match self.ask(&Request::Debug { question }) {
            Ok(Answer::Error { message, .. }) => Err(Failure::new(format!("{}: {message}", self.label()))),
            Ok(answer) => Ok(answer),
            Err(error) => {
                Err(Failure::new(format!("{} does not answer ({error}): {}", self.label(), self.trouble())))
            }
        }
    }

    fn unexpected(&self) -> Failure {
        Failure::new(format!("{} gave an answer of another kind: it runs another version", self.label()))
    }
}
