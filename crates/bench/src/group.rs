//! Programs in a process group of their own, so that what they have started ends with them.

use std::os::unix::process::CommandExt;
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process_group};

/// Time between two looks at a child.
pub(crate) const LOOK: Duration = Duration::from_millis(50);
/// Time for a group to end by itself.
const END_PATIENCE: Duration = Duration::from_secs(20);
/// Time for a killed process to be gone: one that waits for a file system in the kernel may stay for ever.
const KILL_PATIENCE: Duration = Duration::from_secs(5);

/// Starts `command` as the first process of a new group.
///
/// # Errors
///
/// Those of the system.
pub(crate) fn start(command: &mut Command) -> std::io::Result<Child> {
    command.process_group(0).spawn()
}

/// Ends the group of `child`: by SIGINT, and by SIGKILL what that does not end.
pub(crate) fn end(child: &mut Child) {
    signal(child, Signal::INT);
    has_ended(child, END_PATIENCE);
    kill(child);
}

/// Ends the group of `child` at once; it may stay behind if it waits in the kernel.
pub(crate) fn kill(child: &mut Child) {
    signal(child, Signal::KILL);
    has_ended(child, KILL_PATIENCE);
}

fn signal(child: &Child, signal: Signal) {
    if let Some(group) = i32::try_from(child.id()).ok().and_then(Pid::from_raw) {
        let _ = kill_process_group(group, signal);
    }
}

/// Whether `child` ends within `patience`.
pub(crate) fn has_ended(child: &mut Child, patience: Duration) -> bool {
    let deadline = Instant::now() + patience;
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
