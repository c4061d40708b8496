//! Programs in process groups of their own, so that their descendants end with them.

use std::os::unix::process::CommandExt;
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process_group};

/// Interval of polling a child.
pub(crate) const LOOK: Duration = Duration::from_millis(50);
/// Timeout for a group to end after SIGINT.
const END_TIMEOUT: Duration = Duration::from_secs(20);
/// Timeout for a killed process to end: one that waits for a file system in the kernel may never end.
const KILL_TIMEOUT: Duration = Duration::from_secs(5);

/// Starts `command` as the leader of a new process group.
///
/// # Errors
///
/// Those of the system.
pub(crate) fn start(command: &mut Command) -> std::io::Result<Child> {
    command.process_group(0).spawn()
}

/// Ends the group of `child`: by SIGINT, then by SIGKILL.
pub(crate) fn end(child: &mut Child) {
    signal(child, Signal::INT);
    has_ended(child, END_TIMEOUT);
    kill(child);
}

/// Kills the group of `child`; a process that waits in the kernel may survive.
pub(crate) fn kill(child: &mut Child) {
    signal(child, Signal::KILL);
    has_ended(child, KILL_TIMEOUT);
}

fn signal(child: &Child, signal: Signal) {
    if let Some(group) = i32::try_from(child.id()).ok().and_then(Pid::from_raw) {
        let _ = kill_process_group(group, signal);
    }
}

/// Returns whether `child` ends within `timeout`.
pub(crate) fn has_ended(child: &mut Child, timeout: Duration) -> bool {
    let deadline = Instant::now() + timeout;
    loop {
        if child.try_wait().is_ok_and(|status| status.is_some()) {
            return true;
        }
        if Instant::now() >= deadline {
            return false;
        }
        std::thread::sleep(LOOK);
    }
}
