//! The recovery window after a restart, in which clients of the last run reconnect and reopen their files.

use nacre_env::sync::Mutex;
use nacre_types::{ClientUuid, Fid, ProcessIdentity};
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};

/// Clients of an earlier run that may reconnect, with their processes if those ran on this host.
pub type Expected = HashMap<ClientUuid, Option<ProcessIdentity>>;

/// Clients and orphans of an earlier run that are not settled yet.
struct State {
    /// Clients that have not reopened all their handles yet.
    awaited: Expected,
    /// Orphans found at the start, or since; those that no client has reopened at the end are destroyed.
    orphans: Vec<Fid>,
    over: bool,
}

/// See the [module documentation](self).
pub(crate) struct Recovery {
    state: Mutex<State>,
    /// True until recovery ends, so that later requests take no lock.
    recovering: AtomicBool,
}

impl Recovery {
    /// Begins recovery for these clients; `orphans` are inodes without names.
    pub fn new(awaited: Expected, orphans: Vec<Fid>) -> Recovery {
        let state = State { awaited, orphans, over: false };
        Recovery { state: Mutex::new(state), recovering: AtomicBool::new(true) }
    }

    /// Returns false once no client is awaited.
    pub fn is_under_way(&self) -> bool {
        self.recovering.load(Ordering::Relaxed)
    }

    /// Returns the number of awaited clients.
    pub fn awaited(&self) -> usize {
        self.state.lock().awaited.len()
    }

    /// Returns the awaited clients whose processes are known.
    pub fn processes(&self) -> Vec<(ClientUuid, ProcessIdentity)> {
        let state = self.state.lock();
        state.awaited.iter().filter_map(|(client, process)| Some((*client, (*process)?))).collect()
    }

    /// Records that a client of the last run has replayed everything or was given up. Returns orphans to be
    /// destroyed.
    pub fn stop_awaiting(&self, client: &ClientUuid) -> Vec<Fid> {
        if !self.is_under_way() {
            return Vec::new();
        }
        self.state.lock().awaited.remove(client);
        self.end_if_complete()
    }

    /// Returns true if one of the awaited clients `is_back`: it is about to open its handles again.
    pub fn is_reopening(&self, is_back: impl Fn(&ClientUuid) -> bool) -> bool {
        self.is_under_way() && self.state.lock().awaited.keys().any(is_back)
    }

    /// Returns true until all clients of the last run have replayed their opens.
    pub fn is_awaiting_clients(&self) -> bool {
        self.is_under_way() && !self.state.lock().over
    }

    /// Returns true if a client of the last run that has not reconnected may have an inode open which has
    /// just lost its last name: it stays until all have replayed.
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

    /// Returns the orphans once no client is awaited: those that no client has reopened are to be destroyed.
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
