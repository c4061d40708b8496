//! Background threads of a store: periodic sync, scrub and defragmentation.

use super::Core;
use super::ahead::Ahead;
use super::stop::Stop;
use super::volume::Volume;
use crate::object::{ObjectError, Result};
use nacre_env::thread::JoinHandle;
use std::sync::Arc;
use std::time::Duration;

/// Background threads of a store.
pub(super) struct Upkeep {
    stop: Arc<Stop>,
    threads: Vec<JoinHandle<()>>,
}

impl Upkeep {
    /// Creates an upkeep without threads.
    pub(super) fn none() -> Upkeep {
        Upkeep { stop: Arc::default(), threads: Vec::new() }
    }

    pub(super) fn start(core: &Arc<Core>, commit_interval_ms: u64) -> Result<Upkeep> {
        let mut upkeep = Upkeep { stop: Arc::default(), threads: Vec::new() };
        if commit_interval_ms > 0 {
            let (core, stop) = (core.clone(), upkeep.stop.clone());
            let interval = Duration::from_millis(commit_interval_ms);
            upkeep.spawn(&core.clone(), "ost-commit", move || {
                commit_now_and_then(core.objects.volume(), &core.ahead, &stop, interval);
            })?;
        }
        let (scrubbed, stop) = (core.clone(), upkeep.stop.clone());
        upkeep.spawn(core, "ost-scrub", move || scrubbed.scrub.run(&scrubbed.objects, &stop))?;
        let (core, stop) = (core.clone(), upkeep.stop.clone());
        upkeep.spawn(&core.clone(), "ost-defrag", move || core.defrag.run(&core.objects, &stop))?;
        Ok(upkeep)
    }

    fn spawn(&mut self, core: &Core, name: &str, body: impl FnOnce() + Send + 'static) -> Result<()> {
        let spawned = nacre_env::thread::Builder::new().name(name.to_owned()).spawn(body);
        let fail =
            |source| ObjectError::Path { action: "start a thread for", path: core.dir().to_owned(), source };
        match spawned.map_err(fail) {
            Ok(thread) => {
                self.threads.push(thread);
                Ok(())
            }
            Err(error) => {
                self.stop();
                Err(error)
            }
        }
    }

    pub(super) fn stop(&mut self) {
        self.stop.set();
        for thread in self.threads.drain(..) {
            if thread.join().is_err() {
                log::error!("a thread of an object store has panicked");
            }
        }
    }
}

fn commit_now_and_then(volume: &Volume, ahead: &Ahead, stop: &Stop, interval: Duration) {
    let mut clock = 0;
    while !stop.wait(interval) {
        clock = volume.space().close_idle_windows(clock);
        ahead.close_idle();
        // A sync of the index alone would leave unflushed data, and space in quarantine.
        let is_due = volume.index().last_transno() > volume.index().last_committed()
            || volume.medium().is_dirty()
            || volume.space().quarantined() > 0;
        if is_due && let Err(error) = volume.complete(volume.generation()) {
            log::error!("{}: changes could not be made durable: {error}", volume.dir().display());
        }
    }
}
