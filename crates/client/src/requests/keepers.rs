//! Changes that OSTs may lose, by OST, and the thread that has them made durable.

use crate::objects::kept::{Keeping, Kept};
use nacre_env::sync::{Condvar, Mutex, RwLock};
use nacre_rpc::{OssEndpoint, Recovery};
use nacre_types::{Status, StatusResult};
use std::collections::BTreeMap;
use std::sync::{Arc, Weak};
use std::time::Duration;

/// How often the age of kept changes is checked while there are some.
const CHECK_EVERY: Duration = Duration::from_secs(1);
/// How long the thread waits for one OST, as others may have changes too.
const SYNC_MAX: Duration = Duration::from_secs(10);

#[derive(Default)]
struct Work {
    is_running: bool,
    is_stopped: bool,
    /// There may be kept changes.
    has_any: bool,
}

/// The changes of one OST, and its endpoint.
type Ost = (Arc<Kept>, Arc<dyn OssEndpoint>);

/// See the [module documentation](self).
pub(crate) struct Keepers {
    osts: RwLock<BTreeMap<u16, Ost>>,
    work: Mutex<Work>,
    changed: Condvar,
    /// Handle to this, for the thread.
    me: Weak<Keepers>,
}

impl Keepers {
    pub fn new() -> Arc<Keepers> {
        Arc::new_cyclic(|me| Keepers {
            osts: RwLock::default(),
            work: Mutex::default(),
            changed: Condvar::new(),
            me: me.clone(),
        })
    }

    /// Adds the set of an OST with this endpoint.
    pub fn add(&self, ost_index: u16, endpoint: &Arc<dyn OssEndpoint>) -> Arc<Kept> {
        let me = self.me.clone();
        let on_first = move || me.upgrade().iter().for_each(|keepers| keepers.wake());
        let new = || (Arc::new(Kept::new(Box::new(on_first))), endpoint.clone());
        self.osts.write().entry(ost_index).or_insert_with(new).0.clone()
    }

    /// Ends the thread.
    pub fn stop(&self) {
        self.work.lock().is_stopped = true;
        self.changed.notify_all();
    }

    /// Returns the OSTs that may lose changes.
    pub fn osts_with_any(&self) -> Vec<u16> {
        let osts = self.osts.read();
        osts.iter().filter(|(_, (kept, _))| kept.has_any()).map(|(index, _)| *index).collect()
    }

    /// Restores what an OST has lost, see [`Kept::replay`].
    ///
    /// # Errors
    /// Those after which it has to be called again.
    pub fn replay(&self, ost_index: u16, endpoint: &dyn OssEndpoint, recovery: Recovery) -> StatusResult<()> {
        let kept = self.osts.read().get(&ost_index).map(|(kept, _)| kept.clone());
        kept.map_or(Ok(()), |kept| kept.replay(ost_index, endpoint, recovery))
    }

    /// Wakes or starts the thread.
    fn wake(self: &Arc<Keepers>) {
        let mut work = self.work.lock();
        work.has_any = true;
        self.changed.notify_all();
        if work.is_running || work.is_stopped {
            return;
        }
        let this = self.clone();
        let run = move || while this.sync_old() {};
        match nacre_env::thread::Builder::new().name("kept".into()).spawn(run) {
            Ok(_) => work.is_running = true,
            // Writers have changes made durable when there are too many.
            Err(error) => log::warn!("no thread for changes that are not durable: {error}"),
        }
    }

    /// Waits a while, then has old changes made durable. False if the thread is to end.
    fn sync_old(&self) -> bool {
        let mut work = self.work.lock();
        while !work.has_any && !work.is_stopped {
            self.changed.wait(&mut work);
        }
        if !work.is_stopped {
            self.changed.wait_for(&mut work, CHECK_EVERY);
        }
        if work.is_stopped {
            return false;
        }
        work.has_any = false;
        drop(work);
        let all: Vec<(u16, Ost)> =
            self.osts.read().iter().map(|(index, ost)| (*index, ost.clone())).collect();
        for (index, (kept, inner)) in &all {
            match (Keeping { inner: &**inner, kept }).sync_old(SYNC_MAX) {
                Ok(()) | Err(Status::ETIMEDOUT | Status::ESHUTDOWN) => {}
                Err(status) => log::warn!("making changes durable at OST{index:04x}: {status}"),
            }
        }
        let mut work = self.work.lock();
        work.has_any |= all.iter().any(|(_, (kept, _))| kept.has_any());
        !work.is_stopped
    }
}
