//! A process of this program that is controlled by lines over its standard input and output.

use crate::error::Error;
use crate::group;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitStatus, Stdio};
use std::time::Duration;

/// A running process, to be ended before the drop.
#[derive(Debug)]
pub(crate) struct Piped {
    child: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
}

impl Piped {
    /// Starts `command`; it inherits standard error.
    ///
    /// # Errors
    /// When it cannot be started.
    pub(crate) fn start(command: &mut Command) -> Result<Piped, Error> {
        let started = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::inherit()).spawn();
        let mut child = started.map_err(Error::io("start", command.get_program()))?;
        let input = child.stdin.take();
        let output = BufReader::new(child.stdout.take().expect("standard output was asked to be a pipe"));
        Ok(Piped { child, input, output })
    }

    /// Returns its process id.
    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// Sends a line.
    ///
    /// # Errors
    /// When the process has ended.
    pub(crate) fn tell(&mut self, line: &str) -> Result<(), Error> {
        let input = self.input.as_mut().ok_or_else(ended)?;
        input.write_all(format!("{line}\n").as_bytes()).map_err(|_| ended())
    }

    /// Receives a line, without its end.
    ///
    /// # Errors
    /// When the process has ended.
    pub(crate) fn line(&mut self) -> Result<String, Error> {
        let mut line = String::new();
        match self.output.read_line(&mut line) {
            Ok(0) | Err(_) => Err(ended()),
            Ok(_) => Ok(line.trim_end().to_owned()),
        }
    }

    /// Closes the process's standard input.
    pub(crate) fn hang_up(&mut self) {
        self.input = None;
    }

    /// Returns whether the process ends within `timeout`.
    pub(crate) fn ends_within(&mut self, timeout: Duration) -> bool {
        group::has_ended(&mut self.child, timeout)
    }

    /// Kills the process.
    pub(crate) fn kill(&mut self) {
        let _ = self.child.kill();
    }

    /// Waits for the process to end.
    ///
    /// # Errors
    /// When it cannot be waited for.
    pub(crate) fn wait(&mut self) -> Result<ExitStatus, Error> {
        self.child.wait().map_err(|error| Error::Worker(error.to_string()))
    }
}

fn ended() -> Error {
    Error::Worker("a process of the bench ended early, see its message above".to_owned())
}
