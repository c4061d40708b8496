//! The lock manager of one target: who holds what, who waits, who is called back.
//!
//! It owns resources, locks and the clients' counts. It does no I/O, reads no clock and waits for nobody: messages and the
//! time come in as calls, answers are return values, and what else has to be sent is pushed as [`Effect`]s.
//!
//! ```text
//!   enqueue --free--> granted --somebody wants it--> called back --cancel, convert--> gone or smaller
//!      |                 ^                               |
//!      +--conflict--> waiting                            +--deadline--> client evicted, all its locks gone
//! ```
//!
//! Invariants:
//! - no two granted locks conflict, except that a lock of the target itself may be taken on behalf of a client and then
//!   stands beside that client's own and others on its behalf: a client orders its own operations;
//! - a request waits only for granted locks and for earlier requests that it conflicts with (first come, first served
//!   among those who conflict; others may pass), and one on behalf of a client that was called back only for granted
//!   locks: what it does may be what those who wait are waiting for;
//! - every granted lock that a waiting request conflicts with has been called back, unless it belongs to the target itself,
//!   and has a deadline, unless it belongs to a group;
//! - a resource exists while it has locks, waiters or glimpses.
//!
//! Messages may be repeated, delayed and lost. Everything here may be called twice; callbacks are sent again until they
//! are answered. A lock that the server keeps although its client has none (the cancel was lost, or a repeated enqueue came
//! after it) goes away when the client is called back for it: it cancels what it does not know.
//!
//! Source: Lustre reference 4.1 to 4.4.

mod contention;
mod glimpse;
mod grow;
mod queue;
mod recovery;
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
use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;
use std::time::Duration;
use timeouts::{Called, Timer};

/// Times and bounds of a [`LockServer`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ServerConfig {
    /// Time that a client has to answer a callback or a glimpse before it is evicted; begins again with each activity under
    /// the lock.
    pub callback_timeout: Duration,
    /// After this time without an answer a callback is sent again.
    pub callback_retry: Duration,
    /// Time after which a client that was called back is evicted however active it is.
    pub callback_total_max: Duration,
    /// Locks that one client may hold or wait for.
    pub locks_per_client_max: usize,
    /// Locks in all.
    pub locks_max: usize,
    /// Conflicts within [`ServerConfig::contention_window`] that make a resource contended.
    pub contention_events: usize,
    /// See [`ServerConfig::contention_events`].
    pub contention_window: Duration,
    /// Time that a resource stays contended.
    pub contention_time: Duration,
}

impl Default for ServerConfig {
    fn default() -> Self {
        ServerConfig {
            // Lustre waits 20 s for the answer to a callback and 100 s for the cancel; between them there is activity.
            callback_timeout: Duration::from_secs(20),
            callback_retry: Duration::from_secs(2),
            callback_total_max: Duration::from_secs(600),
            // About 500 bytes a lock with its resource: 64 MB for a client, 512 MB in all.
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
        // A retry at once would never end.
        ServerConfig { callback_retry: self.callback_retry.max(Duration::from_millis(1)), ..self }
    }
}

/// Number of a glimpse callback; its answer carries it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct GlimpseId(pub u64);

/// What the owner of a [`LockServer`] has to send.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Effect {
    /// Completion callback: a request that waited is granted. For [`Peer::LOCAL`]: wake the thread that waits.
    Completion {
        /// To whom.
        peer: Peer,
        /// Which lock.
        handle: LockHandle,
        /// What it is now.
        grant: LockGrant,
    },
    /// Blocking callback: somebody wants what this client holds.
    Callback {
        /// To whom.
        peer: Peer,
        /// Which lock.
        handle: LockHandle,
        /// Its resource.
        resource: ResourceId,
        /// What the others want.
        wanted: Wanted,
    },
    /// Glimpse callback: the holder says which size and times it knows, and keeps the lock.
    Glimpse {
        /// To whom.
        peer: Peer,
        /// Which lock.
        handle: LockHandle,
        /// Its resource.
        resource: ResourceId,
        /// To be returned with the answer.
        glimpse: GlimpseId,
    },
    /// The end of a glimpse that had to ask: the answer to its enqueue.
    Glimpsed {
        /// To whom.
        peer: Peer,
        /// The handle of the enqueue; no lock has it.
        handle: LockHandle,
        /// What is known; merge it with the attributes of the object itself.
        lvb: Lvb,
    },
    /// The client was late. The engine has forgotten it; drop its export and whatever else it has here.
    Evict {
        /// Whom.
        peer: Peer,
    },
}

/// Counters since the start.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ServerStats {
    /// Locks granted, at once or later.
    pub granted: u64,
    /// Requests that had to wait.
    pub waited: u64,
    /// Blocking callbacks, without repetitions.
    pub callbacks: u64,
    /// Glimpse callbacks, without repetitions.
    pub glimpses: u64,
    /// Requests refused because the resource was contended.
    pub contended: u64,
    /// Clients evicted because they were late.
    pub evictions: u64,
}

/// A lock or a request for one.
#[derive(Debug)]
struct Lock {
    peer: Peer,
    handle: LockHandle,
    resource: u32,
    /// What was asked for, extents aligned to pages. While the lock waits, this is what it stands for.
    requested: Need,
    optional: InodeBits,
    no_expansion: bool,
    /// The client on whose behalf the target itself locks: its own locks do not conflict.
    on_behalf_of: Option<ClientUuid>,
    /// What is held; `None` while it waits.
    granted: Option<Need>,
    called: Option<Called>,
}

#[derive(Debug)]
struct Resource {
    id: ResourceId,
    granted: Holdings,
    /// Requests in the order of their arrival.
    waiting: Vec<u32>,
    lvb: Option<Lvb>,
    contention: Option<Box<Contention>>,
    glimpses: Vec<GlimpseId>,
}

#[derive(Debug, Default)]
struct Client {
    generation: u64,
    /// How many of its locks are called back.
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
    /// A server without locks. While it is `recovering`, clients of its last run replay theirs and nothing else is
    /// granted; [`LockServer::end_recovery`] ends that.
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

    /// A client connects afresh; locks of an earlier generation are dropped. A connect that is not newer than what is known
    /// (the connection broke, or the message came twice) changes nothing.
    pub fn on_connect(&mut self, now: Instant, peer: Peer, effects: &mut Vec<Effect>) {
        if self.clients.get(&peer.client).is_some_and(|known| known.generation >= peer.generation) {
            return;
        }
        self.on_disconnect(now, peer.client, effects);
        self.clients.insert(peer.client, Client { generation: peer.generation, ..Client::default() });
    }

    /// A client leaves, or is dropped for reasons of the owner's: its locks and requests go, others may get theirs.
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

    /// True if the sender is connected under this generation; only then may anything that it sends have an effect.
    pub fn is_current(&self, peer: Peer) -> bool {
        self.clients.get(&peer.client).is_some_and(|known| known.generation == peer.generation)
    }

    /// True if the value block of an object is not known here. Then the caller reads size and times of the object, under the
    /// same mutex that guards this engine, and passes them with the enqueue.
    pub fn needs_lvb(&self, resource: &ResourceId) -> bool {
        self.by_id.get(resource).is_none_or(|key| self.resources[*key].lvb.is_none())
    }

    /// The value block of an object, while it has locks.
    pub fn lvb(&self, resource: &ResourceId) -> Option<Lvb> {
        self.resources[*self.by_id.get(resource)?].lvb
    }

    /// The object has changed: `change` gets its value block to work on. A write raises size and times, a truncate sets
    /// them. Does nothing if the object has no locks: then the next enqueue brings a new block.
    pub fn update_lvb(&mut self, resource: &ResourceId, change: impl FnOnce(&mut Lvb)) {
        if let Some(key) = self.by_id.get(resource)
            && let Some(lvb) = &mut self.resources[*key].lvb
        {
            change(lvb);
        }
    }

    /// A client asks for a lock. Handles packed for early cancellation go to [`LockServer::on_cancel`] first. `lvb` counts
    /// only for objects whose block is not known, see [`LockServer::needs_lvb`].
    ///
    /// A repeated request gets the same answer as long as its lock is there.
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

    /// The target itself needs a lock for an operation; the answer as for [`LockServer::on_enqueue`]. Locks of the client
    /// `on_behalf_of` do not stand in the way: it learns from the answer to its operation what has changed. While that
    /// client is called back for something, the request waits only for granted locks, not behind other requests: what it
    /// does may be the very flush that they wait for. What the client holds itself need not wait for the end of a recovery
    /// either. Released by [`LockServer::on_cancel`] with [`Peer::LOCAL`].
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

    /// A handle for a lock of the target itself.
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
            // Requests that wait have called nobody back yet, so what stands under a replayed lock passes them.
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
                // It may have got in past some who wait.
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

    /// True if the client has a lock that allows this without any other.
    fn holds_anyway(&self, client: Option<ClientUuid>, id: &ResourceId, need: &Need) -> bool {
        client.is_some_and(|client| {
            let known = self.clients.get(&client);
            known.is_some_and(|known| self.is_held(Peer { client, generation: known.generation }, id, need))
        })
    }

    /// Answers to requests that are refused whatever others hold, or that came before.
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

    /// A client gives up locks or requests, or locks that it had early. Handles that are not known are passed over: the
    /// message may have come twice.
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

    /// A client is to give up all that it holds although nobody waits for it: what it may see has changed.
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

    /// What a client holds under a handle; `None` if the lock waits or is not there.
    pub fn granted(&self, peer: Peer, handle: LockHandle) -> Option<Need> {
        self.locks[self.find(peer, handle)?].granted
    }

    /// True if some lock of the client allows `need` on the resource: what it sends may be believed.
    pub fn is_held(&self, peer: Peer, resource: &ResourceId, need: &Need) -> bool {
        let Some(key) = self.by_id.get(resource) else { return false };
        self.held_by(peer, resource, need).is_some()
            || self.is_held_in_parts(&self.resources[*key].granted, peer, need)
    }

    /// A lock of the client that allows all of `need`.
    pub fn held_by(&self, peer: Peer, resource: &ResourceId, need: &Need) -> Option<LockHandle> {
        let key = self.by_id.get(resource)?;
        let usable = |key: u32| {
            let lock = &self.locks[key];
            lock.peer == peer && lock.granted.is_some_and(|granted| granted.serves(need))
        };
        let found = self.resources[*key].granted.serving(need, usable)?;
        Some(self.locks[found].handle)
    }

    /// True if several locks of the client together allow `need`: a client gathers what it wrote under each of them.
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

    /// Locks and requests of a client.
    pub fn client_locks(&self, client: &ClientUuid) -> usize {
        self.clients.get(client).map_or(0, |known| known.locks.len())
    }

    /// Locks and requests in all.
    pub fn locks(&self) -> usize {
        self.locks.len()
    }

    /// Resources in memory.
    pub fn resources(&self) -> usize {
        self.resources.len()
    }

    /// Times and bounds.
    pub fn config(&self) -> &ServerConfig {
        &self.config
    }

    /// Changes times and bounds. Deadlines that run already stay as they are.
    pub fn set_config(&mut self, config: ServerConfig) {
        self.config = config.checked();
    }

    /// Counters since the start.
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

    /// The resource with this name, made if it is not there.
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

    /// Takes a lock or a request away; its entry at the client is gone already. The caller reprocesses the resource.
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

    /// Forgets a resource on which nothing is held or waited for, unless clients fight over it or may be about to.
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

/// Extents are locked in whole pages.
fn aligned(need: Need) -> Need {
    match need.policy {
        Policy::Extent(extent) => Need { policy: Policy::Extent(extent.aligned_to_pages()), ..need },
        Policy::Bits(_) => need,
    }
}

#[cfg(test)]
mod tests;
