//! Connected clients and their leases.

use crate::config::MdsConfig;
use crate::recovery::Expected;
use nacre_env::clock::Instant;
use nacre_env::sync::{Condvar, Mutex, RwLock};
use nacre_lock::{Effect, Grant, LeaseEngine};
use nacre_rpc::Export;
use nacre_types::{ClientUuid, ProcessIdentity, Status, StatusResult};
use nacre_wire::mds::LeaseGrant;
use std::cell::Cell;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

/// Interval of checks for an interrupt, and for dead clients, while a client waits for admission.
const POLL: Duration = Duration::from_millis(50);
/// See the [module documentation](self).
pub struct Clients {
    lease: Mutex<LeaseEngine>,
    changed: Condvar,
    exports: RwLock<HashMap<ClientUuid, Arc<Export>>>,
    /// Changes whenever a client is removed, so that a thread can cache that its client is connected.
    generation: AtomicU64,
    release_timeout_ms: AtomicU64,
    /// True if `exports` has more than one; read at each request.
    are_several: AtomicBool,
}

thread_local! {
    /// Client that this thread served last, and the generation at that time.
    static SERVED: Cell<(u64, ClientUuid)> = const { Cell::new((0, ClientUuid([0; 16]))) };
}

/// Generations of all servers of a process come from one counter, so that a thread never confuses them.
static GENERATIONS: AtomicU64 = AtomicU64::new(1);

fn next_generation() -> u64 {
    GENERATIONS.fetch_add(1, Ordering::Relaxed)
}

pub(crate) fn wire(grant: Grant) -> LeaseGrant {
    LeaseGrant { exclusive: grant.exclusive, epoch: grant.epoch }
}

impl Clients {
    /// Builds the state at the start of run number `boot_count`.
    pub fn new(config: &MdsConfig, boot_count: u64, known: &Expected) -> Clients {
        let uuids: Vec<ClientUuid> = known.keys().copied().collect();
        let deadline = Instant::now() + config.recovery_window;
        // Epochs of one run are far fewer than 2^32.
        let first_epoch = boot_count << 32;
        Clients {
            lease: Mutex::new(LeaseEngine::new(first_epoch, config.release_timeout, &uuids, deadline)),
            changed: Condvar::new(),
            exports: RwLock::default(),
            generation: AtomicU64::new(next_generation()),
            release_timeout_ms: AtomicU64::new(
                u64::try_from(config.release_timeout.as_millis()).unwrap_or(u64::MAX),
            ),
            are_several: AtomicBool::new(false),
        }
    }

    /// Wakes all threads that wait here.
    pub fn wake(&self) {
        self.changed.notify_all();
    }

    /// Refuses clients that were evicted or never connected.
    pub fn check(&self, client: &ClientUuid) -> StatusResult<()> {
        let generation = self.generation.load(Ordering::Acquire);
        if SERVED.get() == (generation, *client) {
            return Ok(());
        }
        if !self.exports.read().contains_key(client) {
            return Err(Status::EVICTED);
        }
        SERVED.set((generation, *client));
        Ok(())
    }

    /// Returns the export of a client if it is connected.
    pub fn export_of(&self, client: &ClientUuid) -> Option<Arc<Export>> {
        self.exports.read().get(client).cloned()
    }

    /// Returns true if more than one client is connected.
    pub fn are_several(&self) -> bool {
        self.are_several.load(Ordering::Acquire)
    }

    /// Returns the exports of all connected clients.
    pub fn exports(&self) -> Vec<Arc<Export>> {
        self.exports.read().values().cloned().collect()
    }

    /// Adds a client that connects.
    pub fn add(&self, export: &Arc<Export>) {
        let mut exports = self.exports.write();
        exports.insert(export.client, export.clone());
        self.are_several.store(exports.len() > 1, Ordering::Release);
    }

    /// Removes a client; returns its export.
    pub fn forget(&self, client: &ClientUuid) -> Option<Arc<Export>> {
        let mut exports = self.exports.write();
        let export = exports.remove(client);
        self.are_several.store(exports.len() > 1, Ordering::Release);
        drop(exports);
        self.generation.store(next_generation(), Ordering::Release);
        export
    }

    /// Returns the processes of clients on this host.
    pub fn processes(&self) -> Vec<(ClientUuid, ProcessIdentity)> {
        let exports = self.exports.read();
        exports.values().filter_map(|export| Some((export.client, export.process?))).collect()
    }

    /// Sets the end of the recovery window for clients of the last run.
    pub fn expect_until(&self, deadline: Instant) {
        self.lease.lock().expect_until(deadline);
    }

    /// Passes one event to the lease engine; returns its effects.
    pub fn step(&self, event: impl FnOnce(&mut LeaseEngine, &mut Vec<Effect>)) -> Vec<Effect> {
        let mut effects = Vec::new();
        event(&mut self.lease.lock(), &mut effects);
        effects
    }

    /// Returns the clients that hold the lease exclusive, or have not released it yet.
    pub fn lease_holders(&self) -> Vec<ClientUuid> {
        self.lease.lock().holders()
    }

    /// Returns the lease of a client, for a ping.
    pub fn lease_of(&self, client: &ClientUuid) -> StatusResult<LeaseGrant> {
        self.lease.lock().grant_of(client).map(wire).ok_or(Status::EVICTED)
    }

    /// Returns the lease of a client, or `None` after a short wait. Before the wait it calls `goes_on` with
    /// the number of clients of the last run that are expected.
    pub fn wait_for_grant(
        &self,
        client: &ClientUuid,
        goes_on: impl FnOnce(usize) -> StatusResult<()>,
    ) -> StatusResult<Option<LeaseGrant>> {
        let mut lease = self.lease.lock();
        if let Some(grant) = lease.grant_of(client) {
            return Ok(Some(wire(grant)));
        }
        goes_on(lease.expected())?;
        self.changed.wait_for(&mut lease, POLL);
        Ok(None)
    }

    /// Returns how long a client has to drop its caches after a blocking callback.
    pub fn release_timeout(&self) -> Duration {
        Duration::from_millis(self.release_timeout_ms.load(Ordering::Relaxed))
    }

    /// Sets that time for later callbacks.
    pub fn set_release_timeout(&self, timeout: Duration) {
        let timeout_ms = u64::try_from(timeout.as_millis()).unwrap_or(u64::MAX);
        self.release_timeout_ms.store(timeout_ms, Ordering::Relaxed);
        self.lease.lock().set_release_timeout(timeout);
    }
}
