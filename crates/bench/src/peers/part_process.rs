//! One part on one path, in a process of its own.
//!
//! An unresponsive file system may block a process in the kernel, where no signal reaches it. That process is
//! the turn's, not the bench's: after a timeout the bench abandons it and continues with the other paths.

use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::flushes::Flushes;
use super::parts::{self, Order};
use crate::error::Error;
use crate::report::Unit;
use crate::worker::Myself;
use crate::{group, stop};

/// A figure of one part on one path.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Figure {
    pub(super) name: String,
    pub(super) unit: Unit,
    pub(super) value: f64,
    /// CPU time of the machine per operation in microseconds, where it is known.
    pub(super) cpu_us: Option<f64>,
}

/// How a turn ended.
#[derive(Debug)]
pub(super) enum End {
    /// Everything was measured.
    Done,
    /// Another file system is at the path.
    Gone,
    /// The turn exceeded its time limit.
    Hung,
    /// The part failed for this reason.
    Failed(String),
}

/// A line of output of the turn's process.
#[derive(Debug, Serialize, Deserialize)]
enum Line {
    Figure(Figure),
    Flushes(Flushes),
    Done,
    Gone,
    Failed(String),
}

/// Runs a turn in its process: executes the order in `setup` (JSON), and prints lines of JSON.
///
/// # Errors
///
/// A setup that is not an order; failures of the part are printed as a line.
pub(crate) fn serve(setup: &str, myself: &Myself) -> Result<(), Error> {
    let order: Order = serde_json::from_str(setup).map_err(Error::usage)?;
    // The directory below a mount point must not be measured in place of the mount.
    if order.has_changed() {
        say(&Line::Gone);
        return Ok(());
    }
    let mut flushes = Flushes::default();
    let done = order.perform(myself, &mut flushes, |name, unit, value, cpu_us| {
        say(&Line::Figure(Figure { name: name.to_owned(), unit, value, cpu_us }));
    });
    say(&Line::Flushes(flushes));
    // Files that a failed part has left would disturb the next one.
    parts::clear(&order.work);
    say(&match done {
        Err(_) if order.has_changed() => Line::Gone,
        Err(error) => Line::Failed(error.to_string()),
        Ok(()) => Line::Done,
    });
    Ok(())
}

fn say(line: &Line) {
    println!("{}", serde_json::to_string(line).expect("names and finite numbers are JSON"));
}

/// Starts a turn from the bench: its process executes `order`, and `push` is called with each figure as it
/// arrives. Counted flushes are added to `flushes`.
///
/// # Errors
///
/// `Interrupted`, and a process that cannot be started.
pub(super) fn take(
    order: &Order,
    myself: &Myself,
    limit: Duration,
    flushes: &mut Flushes,
    mut push: impl FnMut(Figure),
) -> Result<End, Error> {
    let setup =
        serde_json::to_string(order).map_err(|_| Error::Usage("paths of peers must be UTF-8".to_owned()))?;
    let mut command = myself.command("task");
    command.args(["peers", &setup]).stdin(Stdio::null()).stdout(Stdio::piped());
    // An abandoned process must not keep the bench's own output open.
    command.stderr(Stdio::piped());
    let mut child = group::start(&mut command).map_err(Error::io("start", myself.program()))?;
    let lines = lines_of(&mut child);
    pass_on_errors(&mut child);
    let deadline = Instant::now() + limit;
    loop {
        match lines.recv_timeout(group::LOOK) {
            Ok(Line::Figure(figure)) => push(figure),
            Ok(Line::Flushes(more)) => flushes.add(more),
            Ok(Line::Done) => return Ok(ended(child, End::Done)),
            Ok(Line::Gone) => return Ok(ended(child, End::Gone)),
            Ok(Line::Failed(why)) => return Ok(ended(child, End::Failed(why))),
            Err(RecvTimeoutError::Disconnected) => {
                let why = "its process ended early, see its message above".to_owned();
                return Ok(ended(child, End::Failed(why)));
            }
            Err(RecvTimeoutError::Timeout) if stop::asked() => {
                group::end(&mut child);
                return Err(Error::Interrupted);
            }
            Err(RecvTimeoutError::Timeout) if Instant::now() >= deadline => {
                return Ok(ended(child, End::Hung));
            }
            Err(RecvTimeoutError::Timeout) => {}
        }
    }
}

/// Ends the process, whose output is complete.
fn ended(mut child: Child, end: End) -> End {
    group::kill(&mut child);
    end
}

/// Receives the lines of a process on a thread, which may outlive the turn: it waits for the end of the pipe.
fn lines_of(child: &mut Child) -> Receiver<Line> {
    let (sender, receiver) = channel();
    if let Some(output) = child.stdout.take() {
        std::thread::spawn(move || {
            for text in BufReader::new(output).lines() {
                let Some(line) = text.ok().and_then(|text| serde_json::from_str(&text).ok()) else { return };
                if sender.send(line).is_err() {
                    return;
                }
            }
        });
    }
    receiver
}

/// Copies the standard error of a process, on a thread as above.
fn pass_on_errors(child: &mut Child) {
    if let Some(mut errors) = child.stderr.take() {
        std::thread::spawn(move || std::io::copy(&mut errors, &mut std::io::stderr()));
    }
}

/// Removes the directory `work` of a path in a process of its own; returns whether it is removed within
/// `limit`.
pub(super) fn remove(work: &PathBuf, limit: Duration) -> bool {
    let mut command = std::process::Command::new("rm");
    command.arg("-rf").arg("--").arg(work).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let Ok(mut child) = group::start(&mut command) else { return false };
    let is_gone = group::has_ended(&mut child, limit);
    group::kill(&mut child);
    is_gone
}
