//! The endpoints of a target: load and health.

use super::conn::Conn;
use crate::config::ClientConfig;
use crate::import::{EndpointState, EndpointStats};
use crate::shape::Fabric;
use nacre_env::clock::Instant;
use nacre_env::sync::Mutex;
use nacre_session::Backoff;
use nacre_types::Nid;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Largest number of endpoints per NID (`conns_per_peer`).
pub(crate) const LANES_MAX: usize = 16;
/// CPUs that have their own connections at endpoints beyond the first of a NID, which carry large transfers
/// only.
const CPUS_MAX: usize = 4;

/// Connection of an endpoint that a request uses.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Way {
    /// The one whose server thread runs on this CPU, if both are on one host: no wake-up crosses CPUs.
    Near,
    /// One whose server thread runs on another CPU, for work worth a second CPU.
    Across,
}

impl Way {
    pub(crate) fn other(self) -> Way {
        match self {
            Way::Near => Way::Across,
            Way::Across => Way::Near,
        }
    }
}

/// Place of a connection: an endpoint and one of its slots.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Place {
    pub(crate) end: usize,
    pub(crate) slot: usize,
}

/// Counters of a slot of an endpoint. Mostly used by one CPU.
#[derive(Default)]
#[repr(align(128))]
pub(crate) struct Load {
    pub(crate) connects: AtomicU64,
    pub(crate) requests: AtomicU64,
    pub(crate) failures: AtomicU64,
    pub(crate) sent_bytes: AtomicU64,
    pub(crate) received_bytes: AtomicU64,
    pub(crate) in_flight: AtomicU64,
    pub(crate) queued_bytes: AtomicU64,
}

struct Slot {
    conn: Mutex<Option<Arc<Conn>>>,
    load: Arc<Load>,
}

struct Health {
    retry_at: Instant,
    backoff: Backoff,
}

/// An endpoint: one of `conns_per_peer` ways to one NID. It has a connection per CPU for threads on that CPU,
/// and one to each CPU for threads on others ([`Way::Across`]); they are opened on first use.
pub(crate) struct End {
    pub(crate) nid: Nid,
    lane: usize,
    cpus: usize,
    slots: Vec<Slot>,
    /// Left out until `health.retry_at`.
    down: AtomicBool,
    /// It has failed since its last answer.
    doubtful: AtomicBool,
    health: Mutex<Health>,
    /// A thread is connecting it.
    pub(crate) connecting: AtomicBool,
    pub(crate) fabric: Option<Arc<Fabric>>,
}

impl End {
    fn new(nid: Nid, lane: usize, number: usize, config: &ClientConfig) -> End {
        let all = nacre_env::possible_cpu_count().max(1);
        let cpus = if lane == 0 { all } else { all.min(CPUS_MAX) };
        let slot = || Slot { conn: Mutex::new(None), load: Arc::default() };
        let backoff = Backoff::new(config.backoff_min, config.backoff_max);
        End {
            nid,
            lane,
            cpus,
            slots: (0..2 * cpus).map(|_| slot()).collect(),
            down: AtomicBool::new(false),
            doubtful: AtomicBool::new(false),
            health: Mutex::new(Health { retry_at: Instant::now(), backoff }),
            connecting: AtomicBool::new(false),
            fabric: config.shape.map(|shape| Arc::new(Fabric::new(shape, number))),
        }
    }

    /// Returns all endpoints that a target can have: the first of each NID, then the second of each, and so
    /// on.
    pub(crate) fn all_of(nids: &[Nid], lanes: usize, config: &ClientConfig) -> Vec<End> {
        let reachable = || nids.iter().filter(|nid| matches!(nid, Nid::Tcp(_)));
        (0..lanes)
            .flat_map(|lane| reachable().map(move |nid| (lane, *nid)))
            .enumerate()
            .map(|(number, (lane, nid))| End::new(nid, lane, number, config))
            .collect()
    }

    /// Returns the number of CPUs with connections.
    pub(crate) fn cpus(&self) -> usize {
        self.cpus
    }

    pub(crate) fn slot_of(&self, way: Way, cpu: usize) -> usize {
        match way {
            Way::Near => cpu % self.cpus,
            Way::Across => self.cpus + (cpu + 1) % self.cpus,
        }
    }

    /// Returns the slot for large transfers over a network.
    pub(crate) fn slot_apart(&self) -> usize {
        self.cpus
    }

    /// Returns the connection in a slot, if it is open.
    pub(crate) fn open_conn(&self, slot: usize) -> Option<Arc<Conn>> {
        self.slots.get(slot)?.conn.lock().as_ref().filter(|conn| !conn.is_closed()).cloned()
    }

    pub(crate) fn has_open(&self, slot: usize) -> bool {
        self.slots
            .get(slot)
            .is_some_and(|slot| slot.conn.lock().as_ref().is_some_and(|conn| !conn.is_closed()))
    }

    pub(crate) fn put(&self, slot: usize, conn: Arc<Conn>) {
        if let Some(slot) = self.slots.get(slot) {
            *slot.conn.lock() = Some(conn);
        }
    }

    pub(crate) fn load(&self, slot: usize) -> Arc<Load> {
        self.slots.get(slot).map(|slot| slot.load.clone()).unwrap_or_default()
    }

    /// Returns its connections.
    pub(crate) fn conns(&self) -> impl Iterator<Item = Arc<Conn>> + '_ {
        self.slots.iter().filter_map(|slot| slot.conn.lock().clone())
    }

    /// Takes all connections out.
    pub(crate) fn take_conns(&self) -> impl Iterator<Item = Arc<Conn>> + '_ {
        self.slots.iter().filter_map(|slot| slot.conn.lock().take())
    }

    fn sum(&self, of: impl Fn(&Load) -> &AtomicU64) -> u64 {
        self.slots.iter().map(|slot| of(&slot.load).load(Ordering::Relaxed)).sum()
    }

    /// Returns its load: bytes in flight, then requests.
    pub(crate) fn business(&self) -> (u64, u64) {
        (self.sum(|load| &load.queued_bytes), self.sum(|load| &load.in_flight))
    }

    /// Leaves the endpoint out for a while, longer each time: it did not connect, or lost a connection.
    pub(crate) fn fail(&self, slot: usize) {
        self.load(slot).failures.fetch_add(1, Ordering::Relaxed);
        let mut health = self.health.lock();
        self.doubtful.store(true, Ordering::Relaxed);
        if !self.down.swap(true, Ordering::AcqRel) || health.retry_at <= Instant::now() {
            let pause = health.backoff.next_pause();
            health.retry_at = Instant::now() + pause;
        }
    }

    /// Marks the endpoint as connected.
    pub(crate) fn revive(&self) {
        self.down.store(false, Ordering::Release);
    }

    /// Notes an answered request, so that the next failure counts as the first.
    pub(crate) fn answered(&self) {
        if self.doubtful.load(Ordering::Relaxed) && self.doubtful.swap(false, Ordering::Relaxed) {
            self.health.lock().backoff.reset();
        }
    }

    pub(crate) fn is_down(&self) -> bool {
        self.down.load(Ordering::Acquire)
    }

    /// Returns true if the pause after the last failure is over.
    pub(crate) fn may_retry(&self) -> bool {
        self.health.lock().retry_at <= Instant::now()
    }

    pub(crate) fn stats(&self) -> EndpointStats {
        let state = if self.is_down() {
            EndpointState::Down
        } else if self.conns().any(|conn| !conn.is_closed()) {
            EndpointState::Up
        } else {
            EndpointState::Idle
        };
        let (queued_bytes, in_flight) = self.business();
        EndpointStats {
            nid: self.nid,
            lane: self.lane,
            state,
            connects: self.sum(|load| &load.connects),
            requests: self.sum(|load| &load.requests),
            failures: self.sum(|load| &load.failures),
            sent_bytes: self.sum(|load| &load.sent_bytes),
            received_bytes: self.sum(|load| &load.received_bytes),
            in_flight,
            queued_bytes,
        }
    }
}
