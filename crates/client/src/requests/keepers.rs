//! Changes that OSTs may lose, by OST, and the thread that has them made durable.

use crate::objects::kept::Kept;
use crate::requests::Requests;
use nacre_env::sync::{Condvar, Mutex, RwLock};
use nacre_rpc::{OssEndpoint, Recovery};
use nacre_types::{Status, StatusResult};
use nacre_wire::oss::OssRequest;
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

/// See the [module documentation](self).
#[derive(Default)]
pub(crate) struct Keepers {
    osts: RwLock<BTreeMap<u16, Arc<Kept>>>,
    work: Mutex<Work>,
    changed: Condvar,
}

impl Keepers {
    /// Adds the set of an OST; `requests` has this.
    pub fn add(&self, ost_index: u16, requests: &Weak<Requests>) -> Arc<Kept> {
        let requests = requests.clone();
        let on_first = move || {
            if let Some(requests) = requests.upgrade() {
                Keepers::wake(&requests);
            }
        };
        let kept = Arc::new(Kept::new(Box::new(on_first)));
        self.osts.write().entry(ost_index).or_insert(kept).clone()
    }

    /// Ends the thread.
    pub fn stop(&self) {
        self.work.lock().is_stopped = true;
        self.changed.notify_all();
    }

    /// Restores what an OST has lost, see [`Kept::replay`].
    ///
    /// # Errors
    /// Those after which it has to be called again.
    pub fn replay(&self, ost_index: u16, endpoint: &dyn OssEndpoint, recovery: Recovery) -> StatusResult<()> {
        let kept = self.osts.read().get(&ost_index).cloned();
        kept.map_or(Ok(()), |kept| kept.replay(ost_index, endpoint, recovery))
    }

    /// Wakes or starts the thread.
    fn wake(requests: &Arc<Requests>) {
        let this = &requests.keepers;
        let mut work = this.work.lock();
        work.has_any = true;
        this.changed.notify_all();
        if work.is_running || work.is_stopped {
            return;
        }
        let requests = requests.clone();
        let run = move || while requests.keepers.sync_old(&requests) {};
        match nacre_env::thread::Builder::new().name("kept".into()).spawn(run) {
            Ok(_) => work.is_running = true,
            // Writers have changes made durable when there are too many.
            Err(error) => log::warn!("no thread for changes that are not durable: {error}"),
        }
    }

    /// Waits a while, then has old changes made durable. False if the thread is to end.
    fn sync_old(&self, requests: &Requests) -> bool {
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
        let all: Vec<(u16, Arc<Kept>)> =
            self.osts.read().iter().map(|(index, kept)| (*index, kept.clone())).collect();
        for (index, kept) in all.iter().filter(|(_, kept)| kept.has_any()) {
            let Some(endpoint) = requests.osts.get(*index) else { continue };
            let age = endpoint.tunables().map_or(Duration::MAX, |tunables| tunables.kept_age_max());
            if !kept.is_due(age) {
                continue;
            }
            match endpoint.call_within(&OssRequest::Sync { object: None }, SYNC_MAX) {
                Ok(_) | Err(Status::ETIMEDOUT | Status::ESHUTDOWN) => {}
                Err(status) => log::warn!("making changes durable at OST{index:04x}: {status}"),
            }
        }
        let mut work = self.work.lock();
        work.has_any |= all.iter().any(|(_, kept)| kept.has_any());
        !work.is_stopped
    }
}
