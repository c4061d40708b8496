//! Starts programs from a process that has no file of any mount open.
//!
//! A descriptor that is not inherited is closed in the new process in the middle of exec, and closing a file
//! of a FUSE file system waits for its server. A test that has files open and restarts the server from its
//! own process would deadlock. So a shell that was started earlier runs the program.

use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use crate::run::Run;

/// Reads a count and that many words, each ended by a zero byte; runs them as a command; prints the exit
/// code. Standard output and standard error of the command go to `$1`.
const SCRIPT: &str = r#"
while IFS= read -r -d '' count; do
    words=()
    for ((i = 0; i < count; i++)); do IFS= read -r -d '' word; words+=("$word"); done
    "${words[@]}" >"$1" 2>&1 </dev/null
    echo $?
done
"#;

/// The shell. It ends when its standard input is closed, at the latest with the run.
#[derive(Debug)]
pub(super) struct Launcher {
    child: Child,
    input: Option<ChildStdin>,
    codes: Receiver<i32>,
    output: PathBuf,
}

impl Launcher {
    pub(super) fn start(run: &Run) -> Launcher {
        let output = run.directory().join("launcher.log");
        let mut command: Command = run.command("bash");
        command.args(["-c", SCRIPT, "bash"]).arg(&output).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().expect("bash starts");
        let input = child.stdin.take();
        let lines =
            BufReader::new(child.stdout.take().expect("standard output was asked to be a pipe")).lines();
        let (sender, codes) = channel();
        std::thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                // The receiver may have timed out.
                let _ = sender.send(line.trim().parse().unwrap_or(-1));
            }
        });
        Launcher { child, input, codes, output }
    }

    /// Runs a program to its end.
    ///
    /// # Panics
    ///
    /// If its exit code is not 0, with its output, or it takes longer than `limit`.
    #[track_caller]
    pub(super) fn run(&mut self, words: &[&OsStr], limit: Duration) {
        let mut message = format!("{}\0", words.len()).into_bytes();
        for word in words {
            message.extend_from_slice(word.as_bytes());
            message.push(0);
        }
        let input = self.input.as_mut().expect("it runs until it is dropped");
        input.write_all(&message).expect("the launcher reads");
        let code = self.codes.recv_timeout(limit);
        let said = std::fs::read_to_string(&self.output).unwrap_or_default();
        match code {
            Ok(0) => {}
            Ok(code) => panic!("{words:?} ended with exit code {code}:\n{said}"),
            Err(_) => panic!("{words:?} was not over after {limit:?}:\n{said}"),
        }
    }
}

impl Drop for Launcher {
    fn drop(&mut self) {
        self.input = None;
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
