//! LDLM server of one target: grants locks, queues conflicting requests and revokes locks that are in their
//! way.
//!
//! It owns resources, locks and the clients' counts. It does no I/O, reads no clock and never blocks:
//! messages and the time come in as calls, answers are return values, and all other messages are pushed as
//! [`Effect`]s.
//!
//! ```text
//!   enqueue --free--> granted --a conflicting request--> being revoked --cancel, convert--> gone or smaller
//!      |                 ^                                    |
//!      +--conflict--> waiting                                 +--deadline--> client evicted, its locks gone
//! ```
//!
//! Invariants:
//! - no two granted locks conflict, with one exception: a lock that the target itself takes on behalf of a
//!   client does not conflict with that client's locks or with others on its behalf, as a client orders its
//!   own operations;
//! - a request waits only for granted locks and for earlier requests that it conflicts with (first come,
//!   first served among those that conflict; others may pass). A request on behalf of a client that holds a
//!   lock under revocation waits only for granted locks: its operation may be what the waiting requests
//!   depend on;
//! - every granted lock that a waiting request conflicts with has had a blocking callback, unless it belongs
//!   to the target itself, and has a deadline, unless it is a group lock;
//! - a resource exists while it has locks, waiting requests or glimpses.
//!
//! Messages may be repeated, delayed and lost. Every call may be repeated; callbacks are resent until they
//! are answered. A lock that the server keeps although its client has none (the cancel was lost, or a
//! repeated enqueue came after it) is removed by the next blocking callback: a client cancels locks that it
//! does not know.

mod contention;
mod glimpse;
mod grow;
mod queue;
mod recovery;
mod report;
mod timeouts;

use crate::bits::InodeBits;
use crate::extent::Extent;
use crate::hash::WordMap;
use crate::holdings::Holdings;
use crate::mode::Mode;
use crate::resource::{
    Enqueue, LockGrant, LockHandle, Lvb, Need, Outcome, Peer, Policy, Refusal, ResourceId, Wanted,
};
use crate::slab::Slab;
use contention::Contention;
use glimpse::PendingGlimpse;
use nacre_env::clock::Instant;
use nacre_types::ClientUuid;
pub use report::{Blocker, LockWait, WAITS_MAX, waits};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;
use std::time::Duration;
use timeouts::{Called, Timer};

/// Times and bounds of a [`LockServer`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ServerConfig {
    /// Time in which a client has to answer a callback or a glimpse before it is evicted; restarts with each
    /// activity under the lock.
    pub callback_timeout: Duration,
    /// Time without an answer after which a callback is resent.
    pub callback_retry: Duration,
    /// Time after which the holder of a revoked lock is evicted however active it is.
    pub callback_total_max: Duration,
    /// Locks and waiting requests that one client may have.
    pub locks_per_client_max: usize,
    /// Locks and waiting requests of all clients.
    pub locks_max: usize,
    /// Conflicts within [`ServerConfig::contention_window`] that make a resource contended.
    pub contention_events: usize,
    /// Length of time in which conflicts are counted, see [`ServerConfig::contention_events`].
    pub contention_window: Duration,
    /// Time that a resource stays contended.
    pub contention_time: Duration,
}

impl Default for ServerConfig {
    fn default() -> Self {
        ServerConfig {
            // Lustre waits 20 s for the answer to a callback and 100 s for the cancel; in between there is
            // activity.
            callback_timeout: Duration::from_secs(20),
            callback_retry: Duration::from_secs(2),
            callback_total_max: crate::lease::BUSY_MAX,
            // About 500 bytes per lock with its resource: 64 MB for a client, 512 MB for all.
            locks_per_client_max: 128 * 1024,
            locks_max: 1024 * 1024,
            contention_events: 16,
            contention_window: Duration::from_secs(4),
            contention_time: Duration::from_secs(30),
        }
    }
}

impl ServerConfig {
    fn checked(self) -> ServerConfig {
        // Several answers fit into the timeout. A retry interval of 0 would keep the timer loop running forever.
        let retry = self.callback_retry.min(self.callback_timeout / 4).max(Duration::from_millis(1));
        ServerConfig { callback_retry: retry, ..self }
    }
}

/// Number of a glimpse callback; its answer carries it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct GlimpseId(pub u64);

/// Actions for the owner of a [`LockServer`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Effect {
    /// Completion callback: a waiting request is granted. For [`Peer::LOCAL`]: wake the thread that waits.
    Completion {
        /// Client to notify.
        peer: Peer,
        /// Lock that is granted.
        handle: LockHandle,
        /// The lock as granted.
        grant: LockGrant,
    },
    /// Blocking callback: a request conflicts with a lock of this client.
    Callback {
        /// Client to notify.
        peer: Peer,
        /// Lock to give up, in part or as a whole.
        handle: LockHandle,
        /// Resource of the lock.
        resource: ResourceId,
        /// Needs of the conflicting requests.
        wanted: Wanted,
    },
    /// Glimpse callback: the holder answers with the size and times it knows, and keeps the lock.
    Glimpse {
        /// Client to ask.
        peer: Peer,
        /// Lock that makes the client a possible writer.
        handle: LockHandle,
        /// Resource of the lock.
        resource: ResourceId,
        /// Number that the answer carries.
        glimpse: GlimpseId,
    },
    /// The end of a glimpse that had to ask writers: the answer to its enqueue.
    Glimpsed {
        /// Client that asked.
        peer: Peer,
        /// Handle of the enqueue; it names no lock.
        handle: LockHandle,
        /// Size and times known to the writers; merge them with the attributes of the object itself.
        lvb: Lvb,
    },
    /// The client missed a deadline. The engine has forgotten it; drop its export and everything else that it
    /// has on this target.
    Evict {
        /// Client to evict.
        peer: Peer,
    },
}

/// Counters since the start of the server.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ServerStats {
    /// Locks granted, at once or after waiting.
    pub granted: u64,
    /// Requests that had to wait.
    pub waited: u64,
    /// Blocking callbacks, without resends.
    pub callbacks: u64,
    /// Glimpse callbacks, without resends.
    pub glimpses: u64,
    /// Requests refused because the resource was contended.
    pub contended: u64,
    /// Clients evicted because they missed a deadline.
    pub evictions: u64,
}

/// A granted lock or a waiting request.
#[derive(Debug)]
struct Lock {
    peer: Peer,
    handle: LockHandle,
    resource: u32,
    /// The request, extents aligned to pages. Counts while the request waits.
    requested: Need,
    optional: InodeBits,
    no_expansion: bool,
    /// The client on whose behalf the target itself locks: that client's own locks do not conflict.
    on_behalf_of: Option<ClientUuid>,
    /// The lock as granted; `None` while the request waits.
    granted: Option<Need>,
    called: Option<Called>,
}

#[derive(Debug)]
struct Resource {
    id: ResourceId,
    granted: Holdings,
    /// Waiting requests in the order of their arrival.
    waiting: Vec<u32>,
    lvb: Option<Lvb>,
    contention: Option<Box<Contention>>,
    glimpses: Vec<GlimpseId>,
}

#[derive(Debug, Default)]
struct Client {
    generation: u64,
    /// Number of its locks that are being revoked.
    called_back: usize,
    locks: WordMap<LockHandle, u32>,
    glimpses: WordMap<LockHandle, GlimpseId>,
}

/// See the [module documentation](self).
#[derive(Debug)]
pub struct LockServer {
    config: ServerConfig,
    recovering: bool,
    locks: Slab<Lock>,
    resources: Slab<Resource>,
    by_id: WordMap<ResourceId, u32>,
    clients: WordMap<ClientUuid, Client>,
    timers: BTreeSet<(Instant, Timer)>,
    glimpses: BTreeMap<GlimpseId, PendingGlimpse>,
    glimpses_started: u64,
    local_handles: u64,
    stats: ServerStats,
}

impl LockServer {
    /// Creates a server without locks. While it is `recovering`, clients of its last run replay their locks
    /// and nothing else is granted; [`LockServer::end_recovery`] ends that.
    pub fn new(config: ServerConfig, recovering: bool) -> LockServer {
        let mut clients = WordMap::default();
        clients.insert(Peer::LOCAL.client, Client::default());
        LockServer {
            config: config.checked(),
            recovering,
            locks: Slab::default(),
            resources: Slab::default(),
            by_id: WordMap::default(),
            clients,
            timers: BTreeSet::new(),
            glimpses: BTreeMap::new(),
            glimpses_started: 0,
            local_handles: 0,
            stats: ServerStats::default(),
        }
    }

    /// Connects a client under a new generation; its locks of earlier ones are dropped. A connect that is not
    /// newer than the known one (the connection broke, or the message was repeated) changes nothing.
    pub fn on_connect(&mut self, now: Instant, peer: Peer, effects: &mut Vec<Effect>) {
        if self.clients.get(&peer.client).is_some_and(|known| known.generation >= peer.generation) {
            return;
        }
        self.on_disconnect(now, peer.client, effects);
        self.clients.insert(peer.client, Client { generation: peer.generation, ..Client::default() });
    }

    /// Removes a client that disconnects, or that the owner drops for a reason of its own: its locks and
    /// requests are removed, and waiting requests of others may be granted.
    pub fn on_disconnect(&mut self, now: Instant, client: ClientUuid, effects: &mut Vec<Effect>) {
        if client == Peer::LOCAL.client {
            return;
        }
        let Some(gone) = self.clients.remove(&client) else { return };
        for glimpse in gone.glimpses.into_values() {
            self.drop_glimpse(glimpse);
        }
        let mut locks: Vec<(LockHandle, u32)> = gone.locks.into_iter().collect();
        locks.sort();
        let mut touched: Vec<u32> = locks.iter().map(|(_, key)| self.locks[*key].resource).collect();
        for (_, key) in locks {
            self.remove_lock(now, key, effects);
        }
        touched.sort();
        touched.dedup();
        for resource in touched {
            self.reprocess(now, resource, Vec::new(), effects);
        }
    }

    /// True if the sender is connected under this generation; only then may its messages have an effect.
    pub fn is_current(&self, peer: Peer) -> bool {
        self.clients.get(&peer.client).is_some_and(|known| known.generation == peer.generation)
    }

    /// True if the value block of an object is not in memory. Then the caller reads size and times of the
    /// object, under the mutex that guards this engine, and passes them with the enqueue.
    pub fn needs_lvb(&self, resource: &ResourceId) -> bool {
        self.by_id.get(resource).is_none_or(|key| self.resources[*key].lvb.is_none())
    }

    /// Returns the value block of an object, while it has locks.
    pub fn lvb(&self, resource: &ResourceId) -> Option<Lvb> {
        self.resources[*self.by_id.get(resource)?].lvb
    }

    /// Updates the value block of an object that has changed, by `change`. A write raises size and times, a
    /// truncate sets them. Does nothing if the object has no locks: the next enqueue brings a new block.
    pub fn update_lvb(&mut self, resource: &ResourceId, change: impl FnOnce(&mut Lvb)) {
        if let Some(key) = self.by_id.get(resource)
            && let Some(lvb) = &mut self.resources[*key].lvb
        {
            change(lvb);
        }
    }

    /// Handles a client's request for a lock. Handles packed for early cancellation go to
    /// [`LockServer::on_cancel`] first. `lvb` counts only for objects whose block is not known, see
    /// [`LockServer::needs_lvb`].
    ///
    /// A repeated request gets the same answer as long as its lock exists.
    pub fn on_enqueue(
        &mut self,
        now: Instant,
        peer: Peer,
        request: &Enqueue,
        lvb: Option<Lvb>,
        effects: &mut Vec<Effect>,
    ) -> Outcome {
        if peer.is_local() {
            return Outcome::Refused(Refusal::Stale);
        }
        self.enqueue(now, peer, request, None, lvb, effects)
    }

    /// Requests a lock for an operation of the target itself; the outcome is as for
    /// [`LockServer::on_enqueue`]. Locks of the client `on_behalf_of` do not conflict: the reply to its
    /// operation carries what has changed. While a lock of that client is being revoked, the request waits
    /// only for granted locks, not behind other requests: its operation may be the flush that they wait for.
    /// A request for what the client holds itself need not wait for the end of recovery either. Released by
    /// [`LockServer::on_cancel`] with [`Peer::LOCAL`].
    pub fn on_local_enqueue(
        &mut self,
        now: Instant,
        request: &Enqueue,
        on_behalf_of: Option<ClientUuid>,
        lvb: Option<Lvb>,
        effects: &mut Vec<Effect>,
    ) -> Outcome {
        self.enqueue(now, Peer::LOCAL, request, on_behalf_of, lvb, effects)
    }

    /// Returns a new handle for a lock of the target itself.
    pub fn local_handle(&mut self) -> LockHandle {
        self.local_handles += 1;
        LockHandle(self.local_handles)
    }

    fn enqueue(
        &mut self,
        now: Instant,
        peer: Peer,
        request: &Enqueue,
        on_behalf_of: Option<ClientUuid>,
        lvb: Option<Lvb>,
        effects: &mut Vec<Effect>,
    ) -> Outcome {
        if let Some(outcome) = self.answer_without_lock(now, peer, request) {
            return outcome;
        }
        let requested = aligned(request.need);
        let resource = match self.resource_for(&request.resource, &requested.policy) {
            Ok(resource) => resource,
            Err(refusal) => return Outcome::Refused(refusal),
        };
        if self.resources[resource].lvb.is_none() && matches!(requested.policy, Policy::Extent(_)) {
            self.resources[resource].lvb = lvb;
        }
        let blocked = if self.recovering {
            // Waiting requests have revoked nothing yet, so a request covered by a replayed lock passes them.
            !self.holds_anyway(on_behalf_of, &request.resource, &requested)
                || self.has_granted_conflict(resource, &requested, on_behalf_of)
        } else {
            self.is_blocked(resource, &requested, on_behalf_of, usize::MAX)
        };
        if blocked && request.flags.no_wait {
            self.drop_if_unused(now, resource);
            return Outcome::Refused(Refusal::WouldBlock);
        }
        if blocked && request.flags.glimpse {
            return self.start_glimpse(now, peer, request.handle, resource, None, effects);
        }
        let lock = Lock {
            peer,
            handle: request.handle,
            resource,
            requested,
            optional: request.optional,
            no_expansion: request.flags.no_expansion,
            on_behalf_of,
            granted: None,
            called: None,
        };
        let key = self.insert_lock(lock);
        if !blocked {
            let grant = self.grant(key);
            if requested.mode == Mode::Group {
                // It may have passed waiting requests that now conflict with it.
                self.reprocess(now, resource, vec![key], effects);
            }
            return Outcome::Granted(grant);
        }
        self.stats.waited += 1;
        self.resources[resource].waiting.push(key);
        if !self.recovering {
            self.call_back_for(now, key, effects);
        }
        Outcome::Waiting
    }

    /// True if a granted lock of the client allows this already.
    fn holds_anyway(&self, client: Option<ClientUuid>, id: &ResourceId, need: &Need) -> bool {
        client.is_some_and(|client| {
            let known = self.clients.get(&client);
            known.is_some_and(|known| self.is_held(Peer { client, generation: known.generation }, id, need))
        })
    }

    /// Answers requests that are refused whatever is held, and repeated ones.
    fn answer_without_lock(&mut self, now: Instant, peer: Peer, request: &Enqueue) -> Option<Outcome> {
        let refused = |refusal| Some(Outcome::Refused(refusal));
        let Some(client) = self.clients.get(&peer.client).filter(|known| known.generation == peer.generation)
        else {
            return refused(Refusal::Stale);
        };
        // Size and times of an inode come with its lock; only objects are glimpsed.
        let fits = match request.need.policy {
            Policy::Bits(_) => !request.flags.glimpse,
            Policy::Extent(_) => request.optional.is_empty(),
        };
        if request.handle.0 == 0 || !request.need.is_valid() || !fits {
            return refused(Refusal::Invalid);
        }
        if let Some(&key) = client.locks.get(&request.handle) {
            let lock = &self.locks[key];
            if self.resources[lock.resource].id != request.resource || lock.requested != aligned(request.need)
            {
                return refused(Refusal::Invalid);
            }
            let granted = lock.granted.map(|need| self.grant_of(lock.resource, need));
            return Some(granted.map_or(Outcome::Waiting, Outcome::Granted));
        }
        if client.glimpses.contains_key(&request.handle) {
            return Some(Outcome::Waiting);
        }
        if self.recovering && (request.flags.glimpse || request.flags.no_wait) {
            return refused(Refusal::Recovering);
        }
        if !peer.is_local()
            && (client.locks.len() + client.glimpses.len() >= self.config.locks_per_client_max
                || self.locks.len() >= self.config.locks_max)
        {
            return refused(Refusal::TooMany);
        }
        if request.flags.deny_on_contention
            && let Some(for_ms) = self.contended_ms(now, &request.resource)
        {
            self.stats.contended += 1;
            return refused(Refusal::Contended { for_ms });
        }
        None
    }

    /// Cancels locks or requests that a client gives up, also early cancels. Unknown handles are skipped: the
    /// message may be a repetition.
    pub fn on_cancel(&mut self, now: Instant, peer: Peer, handles: &[LockHandle], effects: &mut Vec<Effect>) {
        let mut touched = Vec::new();
        for handle in handles {
            let Some(client) = self.clients.get_mut(&peer.client) else { return };
            if client.generation != peer.generation {
                return;
            }
            if let Some(glimpse) = client.glimpses.remove(handle) {
                self.drop_glimpse(glimpse);
            } else if let Some(key) = client.locks.remove(handle) {
                touched.push(self.locks[key].resource);
                self.remove_lock(now, key, effects);
            }
        }
        touched.sort();
        touched.dedup();
        for resource in touched {
            self.reprocess(now, resource, Vec::new(), effects);
        }
    }

    /// Revokes all locks of a client although no request waits for them: its access rights have changed.
    pub fn on_recall(&mut self, now: Instant, client: &ClientUuid, effects: &mut Vec<Effect>) {
        let Some(known) = self.clients.get(client) else { return };
        let mut locks: Vec<(LockHandle, u32)> =
            known.locks.iter().map(|(handle, key)| (*handle, *key)).collect();
        locks.sort();
        for (_, key) in locks {
            if let Some(held) = self.locks[key].granted {
                self.call_back(now, key, &Wanted::by(&Need { mode: Mode::Ex, ..held }), effects);
            }
        }
    }

    /// Returns what a client holds under a handle; `None` if the request waits or is unknown.
    pub fn granted(&self, peer: Peer, handle: LockHandle) -> Option<Need> {
        self.locks[self.find(peer, handle)?].granted
    }

    /// True if locks of the client allow `need` on the resource, so that its report of changes there may be
    /// trusted.
    pub fn is_held(&self, peer: Peer, resource: &ResourceId, need: &Need) -> bool {
        let Some(key) = self.by_id.get(resource) else { return false };
        self.held_by(peer, resource, need).is_some()
            || self.is_held_in_parts(&self.resources[*key].granted, peer, need)
    }

    /// Returns a lock of the client that allows all of `need`.
    pub fn held_by(&self, peer: Peer, resource: &ResourceId, need: &Need) -> Option<LockHandle> {
        let key = self.by_id.get(resource)?;
        let usable = |key: u32| {
            let lock = &self.locks[key];
            lock.peer == peer && lock.granted.is_some_and(|granted| granted.serves(need))
        };
        let found = self.resources[*key].granted.serving(need, usable)?;
        Some(self.locks[found].handle)
    }

    /// True if several locks of the client together allow `need`: a client reports in one message what it
    /// wrote under each of them.
    fn is_held_in_parts(&self, granted: &Holdings, peer: Peer, need: &Need) -> bool {
        let Policy::Extent(extent) = need.policy else { return false };
        let mut parts: Vec<Extent> = Vec::new();
        for (_, tree) in granted.trees().iter().filter(|(mode, _)| mode.serves(need.mode)) {
            let _ = tree.overlapping(&extent, &mut |key, held| {
                if self.locks[key].peer == peer {
                    parts.push(held);
                }
                ControlFlow::Continue(())
            });
        }
        parts.sort();
        let mut next = extent.start;
        for part in parts.iter().filter(|part| part.last >= extent.start) {
            if part.start > next {
                return false;
            }
            match part.last {
                last if last >= extent.last => return true,
                last => next = next.max(last + 1),
            }
        }
        false
    }

    /// Returns the number of locks and requests of a client.
    pub fn client_locks(&self, client: &ClientUuid) -> usize {
        self.clients.get(client).map_or(0, |known| known.locks.len())
    }

    /// Returns the number of locks and requests of all clients.
    pub fn locks(&self) -> usize {
        self.locks.len()
    }

    /// Describes pairs of granted locks that exclude each other, of which there are none: for tests.
    pub fn conflicts(&self) -> Vec<String> {
        let held = |lock: &Lock| lock.granted.map(|need| (lock.resource, need));
        let all: Vec<&Lock> = self.locks.iter().map(|(_, lock)| lock).collect();
        let mut found = Vec::new();
        for (at, one) in all.iter().enumerate() {
            for other in &all[at + 1..] {
                let (Some((resource, need)), Some((same, with))) = (held(one), held(other)) else { continue };
                let is_for = |lock: &Lock, of: &Lock| lock.on_behalf_of == Some(of.peer.client);
                let may = one.peer.client == other.peer.client || is_for(one, other) || is_for(other, one);
                if resource == same && need.conflicts_with(&with) && !may {
                    found.push(format!("{:?}: {need:?} and {with:?}", self.resources[resource].id));
                }
            }
        }
        found
    }

    /// Returns the number of resources in memory.
    pub fn resources(&self) -> usize {
        self.resources.len()
    }

    /// Returns the times and bounds.
    pub fn config(&self) -> &ServerConfig {
        &self.config
    }

    /// Changes times and bounds. Running deadlines stay as they are.
    pub fn set_config(&mut self, config: ServerConfig) {
        self.config = config.checked();
    }

    /// Returns the counters since the start.
    pub fn stats(&self) -> ServerStats {
        self.stats
    }

    fn find(&self, peer: Peer, handle: LockHandle) -> Option<u32> {
        let client = self.clients.get(&peer.client)?;
        if client.generation != peer.generation {
            return None;
        }
        client.locks.get(&handle).copied()
    }

    /// Returns the resource with this name; creates it if it does not exist.
    fn resource_for(&mut self, id: &ResourceId, policy: &Policy) -> Result<u32, Refusal> {
        if let Some(&key) = self.by_id.get(id) {
            return if self.resources[key].granted.fits(policy) { Ok(key) } else { Err(Refusal::Invalid) };
        }
        let key = self.resources.insert(Resource {
            id: *id,
            granted: Holdings::for_type_of(policy),
            waiting: Vec::new(),
            lvb: None,
            contention: None,
            glimpses: Vec::new(),
        });
        self.by_id.insert(*id, key);
        Ok(key)
    }

    fn insert_lock(&mut self, lock: Lock) -> u32 {
        let (client, handle) = (lock.peer.client, lock.handle);
        let key = self.locks.insert(lock);
        if let Some(known) = self.clients.get_mut(&client) {
            known.locks.insert(handle, key);
        }
        key
    }

    /// Removes a lock or a request whose entry at the client is removed already. The caller reprocesses the
    /// resource.
    fn remove_lock(&mut self, now: Instant, key: u32, effects: &mut Vec<Effect>) {
        self.end_callback(key);
        let Some(lock) = self.locks.remove(key) else { return };
        let resource = &mut self.resources[lock.resource];
        match lock.granted {
            Some(held) => resource.granted.remove(held.mode, &held.policy, key),
            None => resource.waiting.retain(|waiter| *waiter != key),
        }
        self.glimpsed_lock_is_gone(now, lock.resource, lock.peer, lock.handle, effects);
    }

    /// Removes a resource without locks and waiting requests, unless it is contended or may soon be.
    fn drop_if_unused(&mut self, now: Instant, key: u32) {
        let Some(resource) = self.resources.get(key) else { return };
        let contended = |contention: &Contention| contention.counts_until(now, &self.config).is_some();
        if resource.granted.is_empty()
            && resource.waiting.is_empty()
            && resource.glimpses.is_empty()
            && !resource.contention.as_deref().is_some_and(contended)
        {
            let id = resource.id;
            self.by_id.remove(&id);
            self.resources.remove(key);
        }
    }
}

/// Aligns extents to whole pages.
fn aligned(need: Need) -> Need {
    match need.policy {
        Policy::Extent(extent) => Need { policy: Policy::Extent(extent.aligned_to_pages()), ..need },
        Policy::Bits(_) => need,
    }
}

#[cfg(test)]
mod tests;
