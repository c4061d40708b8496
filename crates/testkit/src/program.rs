//! Programs with deadlines.

use std::ffi::OsStr;
use std::io::Read;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use crate::wait;
use rustix::process::{Pid, Signal};

/// Timeout for a program that has no reason to take long.
pub const LIMIT: Duration = Duration::from_secs(120);

/// Output and exit status of a program.
#[derive(Debug, Clone)]
pub struct Outcome {
    /// The command line, for messages.
    pub command: String,
    /// Exit status.
    pub status: ExitStatus,
    /// Standard output; bytes that are not UTF-8 are replaced.
    pub stdout: String,
    /// Standard error, likewise.
    pub stderr: String,
}

impl Outcome {
    /// Returns the exit code; 128 + n after signal n.
    pub fn code(&self) -> i32 {
        self.status.code().unwrap_or_else(|| 128 + self.status.signal().unwrap_or(0))
    }

    /// Returns `self` if the exit code is 0.
    ///
    /// # Panics
    ///
    /// Otherwise, with the output of the program.
    #[track_caller]
    pub fn success(self) -> Outcome {
        assert_eq!(self.code(), 0, "{self}");
        self
    }

    /// Returns `self` if the exit code is `code`.
    ///
    /// # Panics
    ///
    /// Otherwise, with the output of the program.
    #[track_caller]
    pub fn fails_with(self, code: i32) -> Outcome {
        assert_eq!(self.code(), code, "expected exit code {code}: {self}");
        self
    }
}

impl std::fmt::Display for Outcome {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (out, err) = (shorten(&self.stdout), shorten(&self.stderr));
        write!(f, "`{}` ended with {}\nstdout: {out}\nstderr: {err}", self.command, self.status)
    }
}

/// Returns the last lines of an output that is too long for a message.
fn shorten(text: &str) -> String {
    const LINES: usize = 60;
    let lines: Vec<&str> = text.lines().collect();
    let skipped = lines.len().saturating_sub(LINES);
    let tail = lines[skipped..].join("\n");
    if skipped == 0 { tail } else { format!("[{skipped} lines before these]\n{tail}") }
}

/// Runs `program` with `arguments` in the current directory for at most [`LIMIT`].
///
/// # Panics
///
/// If it cannot be started or does not end in time; then it is killed, with its children.
#[track_caller]
pub fn run<A: AsRef<OsStr>>(program: impl AsRef<OsStr>, arguments: impl IntoIterator<Item = A>) -> Outcome {
    let mut command = Command::new(program);
    command.args(arguments);
    run_command(command, LIMIT)
}

/// Runs a shell script in `directory` with the parameters `$1` and so on. Stops at the first command that
/// fails.
///
/// # Panics
///
/// As [`run`].
#[track_caller]
pub fn shell<A: AsRef<OsStr>>(
    directory: &Path,
    script: &str,
    parameters: impl IntoIterator<Item = A>,
) -> Outcome {
    let mut command = Command::new("bash");
    command.args(["-euo", "pipefail", "-c", script, "bash"]).args(parameters).current_dir(directory);
    run_command(command, LIMIT)
}

/// Runs `command` for at most `limit`, without standard input.
///
/// # Panics
///
/// If it cannot be started or does not end in time; then it is killed, with its children.
#[track_caller]
pub fn run_command(mut command: Command, limit: Duration) -> Outcome {
    let line = format!("{command:?}");
    // A process group of its own, so that its children can be killed with it.
    command.process_group(0).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap_or_else(|error| panic!("{line}: {error}"));
    let stdout = collect(child.stdout.take());
    let stderr = collect(child.stderr.take());
    let status = wait::within(limit, || child.try_wait().expect("our own child can be waited for"));
    let text = |thread: std::thread::JoinHandle<Vec<u8>>| {
        let bytes = thread.join().expect("reading a pipe does not panic");
        String::from_utf8_lossy(&bytes).into_owned()
    };
    let Some(status) = status else {
        let state = describe(&child);
        kill_group(&mut child);
        // A process in another group keeps the pipes open.
        let said = |thread: std::thread::JoinHandle<Vec<u8>>| {
            let is_over = wait::within(Duration::from_secs(2), || thread.is_finished().then_some(()));
            is_over.map(|()| text(thread)).unwrap_or_default()
        };
        panic!("{line} was not over after {limit:?} ({state})\n{}{}", said(stdout), said(stderr));
    };
    Outcome { command: line, status, stdout: text(stdout), stderr: text(stderr) }
}

fn collect(pipe: Option<impl Read + Send + 'static>) -> std::thread::JoinHandle<Vec<u8>> {
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        if let Some(mut pipe) = pipe {
            // The output before an error is still useful; the exit code reports the failure.
            let _ = pipe.read_to_end(&mut bytes);
        }
        bytes
    })
}

/// Describes a process that hangs: its state, and where its threads sleep in the kernel. Of a process in
/// another state only the state is read: other files in /proc block for a process that hangs in exec.
fn describe(child: &Child) -> String {
    let process = format!("/proc/{}", child.id());
    let status = std::fs::read_to_string(format!("{process}/status")).unwrap_or_default();
    let mut state = status.lines().find(|line| line.starts_with("State")).unwrap_or("no state").to_owned();
    if !state.contains("S (sleeping)") {
        return state;
    }
    for thread in std::fs::read_dir(format!("{process}/task")).into_iter().flatten().flatten() {
        let stack = std::fs::read_to_string(thread.path().join("stack")).unwrap_or_default();
        state.push_str(&format!("\nthread {}:\n{stack}", thread.file_name().to_string_lossy()));
    }
    state
}

/// Sends a signal to a process; a process that has ended is not an error.
pub fn signal(pid: u32, signal: Signal) {
    if let Some(pid) = Pid::from_raw(pid as i32) {
        let _ = rustix::process::kill_process(pid, signal);
    }
}

fn kill_group(child: &mut Child) {
    // The group is the child's own and exists until the child is reaped.
    let _ = rustix::process::kill_process_group(Pid::from_child(child), Signal::KILL);
    // A process in uninterruptible sleep does not end, so the wait has a timeout.
    let _ = wait::within(Duration::from_secs(2), || child.try_wait().ok().flatten());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn output_and_exit_code_are_kept() {
        let outcome = shell(Path::new("/"), "echo \"$1\"; echo err >&2; exit 3", ["out"]).fails_with(3);
        assert_eq!((outcome.stdout.as_str(), outcome.stderr.as_str()), ("out\n", "err\n"));
        assert!(outcome.to_string().contains("err"));
        run("true", [""; 0]).success();
    }

    #[test]
    #[should_panic(expected = "was not over after")]
    fn a_program_that_hangs_is_killed_and_named() {
        let mut command = Command::new("sleep");
        command.arg("1000");
        run_command(command, Duration::from_millis(50));
    }
}
