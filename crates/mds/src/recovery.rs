//! The time after a restart in which clients of the last run come back and open again what they had open.

use nacre_env::sync::Mutex;
use nacre_types::{ClientUuid, Fid, ProcessIdentity};
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};

/// Clients of an earlier run that may come back, with their processes if those ran on this host.
pub type Expected = HashMap<ClientUuid, Option<ProcessIdentity>>;

/// What is left to do for clients and orphans of an earlier run.
struct State {
    /// Clients that have not re-opened all their handles yet.
    awaited: Expected,
    /// Inodes without names found at the start, or since; those still closed at the end are destroyed.
    orphans: Vec<Fid>,
    over: bool,
}

/// See the [module documentation](self).
pub(crate) struct Recovery {
    state: Mutex<State>,
    /// Not over, so that most requests take no lock.
    recovering: AtomicBool,
}

impl Recovery {
    /// Waits for these clients; `orphans` are inodes without names.
    pub fn new(awaited: Expected, orphans: Vec<Fid>) -> Recovery {
        let state = State { awaited, orphans, over: false };
        Recovery { state: Mutex::new(state), recovering: AtomicBool::new(true) }
    }

    /// False once nobody is awaited any more.
    pub fn is_under_way(&self) -> bool {
        self.recovering.load(Ordering::Relaxed)
    }

    /// How many clients are awaited.
    pub fn awaited(&self) -> usize {
        self.state.lock().awaited.len()
    }

    /// Clients that are awaited and whose processes are known.
    pub fn processes(&self) -> Vec<(ClientUuid, ProcessIdentity)> {
        let state = self.state.lock();
        state.awaited.iter().filter_map(|(client, process)| Some((*client, (*process)?))).collect()
    }

    /// A client of the last run has nothing to bring back any more. Gives orphans to be destroyed.
    pub fn stop_awaiting(&self, client: &ClientUuid) -> Vec<Fid> {
        if !self.is_under_way() {
            return Vec::new();
        }
        self.state.lock().awaited.remove(client);
        self.end_if_complete()
    }

    /// True while it is not known what clients of the last run have open.
    pub fn is_awaiting_clients(&self) -> bool {
        self.is_under_way() && !self.state.lock().over
    }

    /// True if a client of the last run that is not back yet may have an inode open, which has just lost its last name: it stays until
    /// all are back.
    pub fn keeps(&self, fid: &Fid) -> bool {
        if !self.is_under_way() {
            return false;
        }
        let mut state = self.state.lock();
        if !state.over {
            state.orphans.push(*fid);
        }
        !state.over
    }

    /// Gives inodes without names once nobody is awaited any more: those that nobody has re-opened are to be destroyed.
    pub fn end_if_complete(&self) -> Vec<Fid> {
        let mut state = self.state.lock();
        if !state.awaited.is_empty() || state.over {
            return Vec::new();
        }
        state.over = true;
        self.recovering.store(false, Ordering::Relaxed);
        std::mem::take(&mut state.orphans)
    }
}
