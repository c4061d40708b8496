//! The thread that counts the objects of a store at a start, and recounts those that are written.

use crate::objects::ObjectAccounts;
use nacre_env::sync::{Condvar, Mutex};
use nacre_env::thread::JoinHandle;
use nacre_types::StatusResult;
use std::io;
use std::sync::Arc;
use std::time::Duration;

/// Interval of regular work.
const TICK: Duration = Duration::from_secs(1);
/// Pause after a failure of the store.
const REST: Duration = Duration::from_secs(10);

#[derive(Default)]
struct Stop {
    is_set: Mutex<bool>,
    changed: Condvar,
}

impl Stop {
    /// Waits for `time`; returns true after the stop.
    fn wait(&self, time: Duration) -> bool {
        let mut is_set = self.is_set.lock();
        if !*is_set {
            self.changed.wait_for(&mut is_set, time);
        }
        *is_set
    }
}

/// See the [module documentation](self). Dropping it stops the thread.
pub struct Upkeep {
    stop: Arc<Stop>,
    thread: Option<JoinHandle<()>>,
}

impl Upkeep {
    /// Starts the thread for the accounts of a target with this name.
    ///
    /// # Errors
    /// If the thread cannot be started.
    pub fn start(target: String, accounts: Arc<ObjectAccounts>) -> io::Result<Upkeep> {
        let stop = Arc::<Stop>::default();
        let signal = stop.clone();
        let body = move || run(&target, &accounts, &signal);
        let thread = nacre_env::thread::Builder::new().name("quota-upkeep".into()).spawn(body)?;
        Ok(Upkeep { stop, thread: Some(thread) })
    }
}

impl Drop for Upkeep {
    fn drop(&mut self) {
        *self.stop.is_set.lock() = true;
        self.stop.changed.notify_all();
        if self.thread.take().is_some_and(|thread| thread.join().is_err()) {
            log::error!("the thread quota-upkeep has panicked");
        }
    }
}

fn run(target: &str, accounts: &ObjectAccounts, stop: &Stop) {
    let log = |outcome: StatusResult<()>| match outcome {
        Ok(()) => TICK,
        Err(status) => {
            log::error!("{target}: use by owner cannot be counted: {status}");
            REST
        }
    };
    let mut pause = Duration::ZERO;
    while !stop.wait(pause) {
        pause = match accounts.count_some() {
            Ok(true) => Duration::ZERO,
            Ok(false) => break,
            Err(status) => log(Err(status)),
        };
    }
    accounts.book().complete();
    while !stop.wait(pause) {
        pause = log(accounts.tick());
    }
}
