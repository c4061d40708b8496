//! Processes of a simulation: identities of threads, which a simulation can pause, and whose wall clock it
//! can set.

use super::{Here, here};
use nacre_types::ProcessIdentity;
use std::time::Duration;

/// Number of a process in its simulation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct ProcessNumber(usize);

impl ProcessNumber {
    pub(super) fn index(self) -> usize {
        self.0
    }
}

/// A process; the first of a simulation is that of threads without one.
pub(super) struct Process {
    identity: Option<ProcessIdentity>,
    has_ended: bool,
    /// Simulated time until which none of its threads runs.
    paused_until: Duration,
    /// Difference in seconds of its wall clock to that of the simulation.
    wall_shift_s: i64,
}

impl Process {
    /// Returns the process of threads without one.
    pub(super) fn outside() -> Process {
        Process { identity: None, has_ended: false, paused_until: Duration::ZERO, wall_shift_s: 0 }
    }

    pub(super) fn paused_until(&self) -> Duration {
        self.paused_until
    }
}

impl Here {
    fn process<R>(&self, look: impl FnOnce(&Process) -> R) -> R {
        let state = self.simulation.state.lock();
        look(&state.processes[state.threads[self.thread].process.0])
    }

    /// Returns the difference of its process's wall clock in seconds.
    pub(super) fn wall_shift_s(&self) -> i64 {
        self.process(|process| process.wall_shift_s)
    }
}

fn change(process: ProcessNumber, change: impl FnOnce(&mut Process, Duration)) {
    if let Some(here) = here() {
        let mut state = here.simulation.state.lock();
        let time = state.time;
        if let Some(process) = state.processes.get_mut(process.0) {
            change(process, time);
        }
    }
}

/// Adds a process without threads; `None` outside of a simulation.
pub fn add_process(identity: ProcessIdentity) -> Option<ProcessNumber> {
    let here = here()?;
    let mut state = here.simulation.state.lock();
    state.processes.push(Process { identity: Some(identity), ..Process::outside() });
    Some(ProcessNumber(state.processes.len() - 1))
}

/// Runs `work` on this thread as a part of `process`. Threads that it starts belong to the process.
pub fn act_as<R>(process: ProcessNumber, work: impl FnOnce() -> R) -> R {
    struct Back(Here, ProcessNumber);
    impl Drop for Back {
        fn drop(&mut self) {
            self.0.simulation.state.lock().threads[self.0.thread].process = self.1;
        }
    }
    let _back = here().map(|here| {
        let mut state = here.simulation.state.lock();
        let before = std::mem::replace(&mut state.threads[here.thread].process, process);
        drop(state);
        Back(here, before)
    });
    work()
}

/// Makes [`crate::has_ended`] return true for a process. Its threads continue, if it has any.
pub fn end_process(process: ProcessNumber) {
    change(process, |process, _| process.has_ended = true);
}

/// Stops all threads of a process for `time`, as SIGSTOP does; zero ends a pause.
pub fn pause_process(process: ProcessNumber, time: Duration) {
    change(process, |process, now| process.paused_until = now.saturating_add(time));
}

/// Sets the wall clock of a process, as a difference in seconds to that of the simulation.
pub fn shift_wall(process: ProcessNumber, seconds: i64) {
    change(process, |process, _| process.wall_shift_s = seconds);
}

/// Returns the identity of this thread's process; `None` for a thread without one, and outside of simulations.
pub(crate) fn identity() -> Option<ProcessIdentity> {
    here()?.process(|process| process.identity)
}

/// Returns whether a process has ended; `None` for a thread without a process, and outside of simulations.
pub(crate) fn is_ended(identity: &ProcessIdentity) -> Option<bool> {
    let here = here()?;
    here.process(|own| own.identity)?;
    let state = here.simulation.state.lock();
    Some(state.processes.iter().any(|known| known.identity.as_ref() == Some(identity) && known.has_ended))
}
