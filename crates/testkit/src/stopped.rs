//! Processes that are stopped, and so unresponsive.

use crate::{Cluster, program, wait};
use rustix::process::Signal;
use std::fs;

/// A process stopped by a signal. It is resumed when this is dropped, also if the test fails: closing a file
/// waits for the process of its mount.
#[derive(Debug)]
pub struct Stopped(u32);

impl Stopped {
    /// Stops a process and waits until all its threads have stopped: until then they work as before.
    ///
    /// # Panics
    ///
    /// If it does not stop.
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
