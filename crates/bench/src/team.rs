//! Processes that run phases together.
//!
//! A [`Team`] is a set of processes of this program, started with the hidden sub-command `task`. Each
//! receives orders line by line on its standard input (JSON), and answers on its standard output. Inside a
//! phase the tasks meet at barriers as often as they need ([`Barrier`]): the last to arrive releases all.
//! Barriers go through pipes and their coordinator, this process, so that the death of a task ends the
//! others' wait with an error. The tasks read times themselves, after their release from a barrier, from a
//! clock that all processes of a host share ([`now_ns`]).

use std::io::{BufRead, Write};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::error::Error;
use crate::piped::Piped;
use crate::worker::Myself;

const AT_BARRIER: &str = "barrier";
const GO_ON: &str = "go";
const DONE: &str = "done ";

/// Returns the host's monotonic clock in nanoseconds, the same in all its processes.
pub fn now_ns() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// A task's side of the team's barriers.
#[derive(Debug)]
pub struct Barrier(());

impl Barrier {
    /// Waits until every task of the team has called this as often as this one.
    ///
    /// # Errors
    ///
    /// When the coordinating process has ended, or another task has.
    pub fn wait(&mut self) -> Result<(), Error> {
        say(AT_BARRIER)?;
        match hear()?.as_deref() {
            Some(GO_ON) => Ok(()),
            _ => Err(Error::Worker("the team has ended".to_owned())),
        }
    }
}

/// Serves the orders to a task with `act` until there are no more.
///
/// # Errors
///
/// Those of `act`, and lines that are not orders.
pub fn serve<O: DeserializeOwned, A: Serialize>(
    mut act: impl FnMut(O, &mut Barrier) -> Result<A, Error>,
) -> Result<(), Error> {
    let mut barrier = Barrier(());
    while let Some(line) = hear()? {
        let order = serde_json::from_str(&line).map_err(Error::usage)?;
        let answer = act(order, &mut barrier)?;
        say(&format!("{DONE}{}", json(&answer)?))?;
    }
    Ok(())
}

/// A task's work in a phase, with its times by the host's clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Span {
    /// Start in nanoseconds of the host's clock.
    pub start_ns: u64,
    /// End in nanoseconds of the host's clock.
    pub end_ns: u64,
    /// Number of files or directories.
    pub items: u64,
}

fn say(line: &str) -> Result<(), Error> {
    let mut output = std::io::stdout().lock();
    writeln!(output, "{line}").and_then(|()| output.flush()).map_err(|error| Error::Worker(error.to_string()))
}

/// Receives the next line, without its end; `None` at the end of the input.
fn hear() -> Result<Option<String>, Error> {
    let mut line = String::new();
    match std::io::stdin().lock().read_line(&mut line) {
        Ok(0) => Ok(None),
        Ok(_) => Ok(Some(line.trim_end().to_owned())),
        Err(error) => Err(Error::Worker(error.to_string())),
    }
}

fn json(value: &impl Serialize) -> Result<String, Error> {
    serde_json::to_string(value).map_err(|_| Error::Usage("paths must be UTF-8".to_owned()))
}

/// A team at its coordinator; all tasks end on drop.
#[derive(Debug)]
pub struct Team {
    tasks: Vec<Task>,
}

impl Team {
    /// Starts one task for each of `setups` of the given `kind` ([`crate::cli`]). With `pin`, task i runs on
    /// CPU i modulo their number.
    ///
    /// # Errors
    ///
    /// When a process cannot be started.
    pub fn start<S: Serialize>(myself: &Myself, kind: &str, setups: &[S], pin: bool) -> Result<Team, Error> {
        let cpus = nacre_env::online_cpus();
        let cpu = |rank: usize| pin.then(|| cpus.get(rank % cpus.len().max(1)).copied()).flatten();
        let tasks = setups
            .iter()
            .enumerate()
            .map(|(rank, setup)| Task::start(myself, kind, &json(setup)?, cpu(rank)))
            .collect::<Result<_, Error>>()?;
        Ok(Team { tasks })
    }

    /// Sends all tasks the same order, serves their barriers, and returns their answers in the order of the
    /// tasks.
    ///
    /// # Errors
    ///
    /// When a task fails; its own message is on standard error.
    pub fn run<A: DeserializeOwned>(&mut self, order: &impl Serialize) -> Result<Vec<A>, Error> {
        self.run_watched(order, || {})
    }

    /// Like [`Team::run`]; `at_barrier` is called whenever all tasks wait at a barrier, before they are
    /// released.
    ///
    /// # Errors
    ///
    /// Those of [`Team::run`].
    pub fn run_watched<A: DeserializeOwned>(
        &mut self,
        order: &impl Serialize,
        mut at_barrier: impl FnMut(),
    ) -> Result<Vec<A>, Error> {
        let order = json(order)?;
        for task in &mut self.tasks {
            task.busy = true;
            task.process.tell(&order)?;
        }
        loop {
            let lines =
                self.tasks.iter_mut().map(|task| task.process.line()).collect::<Result<Vec<_>, Error>>()?;
            if lines.iter().all(|line| line == AT_BARRIER) {
                at_barrier();
                self.tasks.iter_mut().try_for_each(|task| task.process.tell(GO_ON))?;
                continue;
            }
            let answers = lines.iter().map(|line| answer(line)).collect::<Result<_, Error>>()?;
            self.tasks.iter_mut().for_each(|task| task.busy = false);
            return Ok(answers);
        }
    }

    /// Kills all tasks as a crash would, without cleanup of their open files.
    pub fn kill(mut self) {
        self.tasks.iter_mut().for_each(|task| task.process.kill());
    }
}

fn answer<A: DeserializeOwned>(line: &str) -> Result<A, Error> {
    let text = line.strip_prefix(DONE).ok_or_else(|| Error::Worker(format!("said {line:?} out of turn")))?;
    serde_json::from_str(text)
        .map_err(|error| Error::Worker(format!("answer {text:?} is not understood: {error}")))
}

#[derive(Debug)]
struct Task {
    process: Piped,
    /// The task has an order without an answer yet.
    busy: bool,
}

impl Task {
    fn start(myself: &Myself, kind: &str, setup: &str, cpu: Option<usize>) -> Result<Task, Error> {
        let mut command = myself.command("task");
        command.args(cpu.map(|cpu| format!("--cpu={cpu}"))).args([kind, setup]);
        Ok(Task { process: Piped::start(&mut command)?, busy: false })
    }
}

impl Drop for Task {
    fn drop(&mut self) {
        // An idle task ends with its input. One with an unfinished order, which has failed on another task,
        // is killed.
        self.process.hang_up();
        if self.busy {
            self.process.kill();
        }
        let _ = self.process.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_told_from_words_out_of_turn() {
        assert_eq!(answer::<u32>("done 7").expect("an answer"), 7);
        assert!(answer::<u32>("barrier").is_err());
        assert!(answer::<u32>("done x").is_err());
    }

    #[test]
    fn the_clock_advances() {
        let before = now_ns();
        while now_ns() == before {}
    }
}
