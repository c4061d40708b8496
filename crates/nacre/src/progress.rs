//! Progress of long work: one line that is overwritten on a terminal, nothing on a pipe.

use std::io::{self, IsTerminal, Write};

/// A line on standard error; cleared when dropped.
pub struct Progress {
    terminal: bool,
    quiet: bool,
    shown: bool,
}

impl Progress {
    /// Returns a line that is shown only if standard error is a terminal and `quiet` is false.
    pub fn new(quiet: bool) -> Progress {
        Progress { terminal: !quiet && io::stderr().is_terminal(), quiet, shown: false }
    }

    /// Replaces the line.
    pub fn show(&mut self, text: &str) {
        if self.terminal {
            self.shown = true;
            let _ = write!(io::stderr(), "\r\x1b[K{text}");
        }
    }

    /// Reports the reason for a delay, on a pipe too.
    pub fn tell(&mut self, text: &str) {
        if self.terminal {
            self.show(text);
        } else if !self.quiet {
            eprintln!("nacre: {text}");
        }
    }
}

impl Progress {
    /// Clears the line.
    pub fn clear(&mut self) {
        if std::mem::take(&mut self.shown) {
            let _ = write!(io::stderr(), "\r\x1b[K");
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.clear();
    }
}
