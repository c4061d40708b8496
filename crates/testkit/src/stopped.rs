//! Processes that do not answer.

use crate::{Cluster, program, wait};
use rustix::process::Signal;
use std::fs;

/// A process that is stopped; it goes on with the end of this, also if the test ends early: closing a file waits for the mount
/// that it is on.
#[derive(Debug)]
pub struct Stopped(u32);

impl Stopped {
    /// Stops a process and waits until the last of its threads has: until then they work as before.
    ///
    /// # Panics
    ///
    /// When it does not stop.
    pub fn begin(cluster: &Cluster, pid: u32) -> Stopped {
        let stopped = Stopped(pid);
        cluster.signal(pid, Signal::STOP);
        wait::until(wait::SOON, "all threads are stopped", || {
            let threads = fs::read_dir(format!("/proc/{pid}/task")).expect("it runs");
            let mut states =
                threads.filter_map(|thread| fs::read_to_string(thread.ok()?.path().join("stat")).ok());
            states
                .all(|stat| stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('T')))
                .then_some(())
        });
        stopped
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        program::signal(self.0, Signal::CONT);
    }
}
