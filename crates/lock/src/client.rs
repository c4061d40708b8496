//! Lock cache of one client at one target: a lock stays cached until a conflicting request of another client.
//!
//! It owns the client's locks, their references, and the list of unused ones. It does no I/O and reads no
//! clock: threads that need a lock, messages from the target and the time come in as calls; what has to be
//! sent, written out, dropped or woken is pushed as [`Effect`]s.
//!
//! ```text
//!   acquire --> asking --granted--> granted, used <--> granted, unused (LRU)
//!                  |                     |                   |
//!                  |                callback            callback, LRU full or too old, early cancel
//!                  |                     v                   v
//!                  |             no new users; last     leaving: what it covers is written out and dropped
//!                  |             user releases ------->      |
//!                  v                                         +--> cancel sent, or converted and granted
//!               refused
//! ```
//!
//! Invariants:
//! - a lock is matched only while it is granted and has had no blocking callback; a reference keeps it until
//!   the reference is released, or until the client is evicted ([`LockClient::is_valid`]);
//! - a cancel or conversion is sent only after the owner has confirmed that nothing is cached any more under
//!   what is given up ([`LockClient::on_flushed`]);
//! - a handle that was reserved for a request which may bring a lock ([`LockClient::reserve`]) becomes a lock
//!   only if no callback for it came before the answer;
//! - handles are never used twice, so a message about an unknown handle is about a removed lock: the
//!   answer is a cancel. That also recovers from lost and repeated messages.

mod intent;
mod lru;
mod messages;
mod recovery;
mod reserved;
mod unused;

use crate::bits::InodeBits;
use crate::extent::Extent;
use crate::hash::WordMap;
use crate::holdings::Holdings;
use crate::mode::Mode;
use crate::resource::{Enqueue, EnqueueFlags, LockHandle, Lvb, Need, Policy, Refusal, ResourceId, Wanted};
use crate::slab::Slab;
use lru::{Link, Lru};
use nacre_env::clock::Instant;
use reserved::Reserved;
use std::collections::BTreeSet;
use std::ops::ControlFlow;
use std::time::Duration;
pub use unused::EarlyCancel;

/// Bounds and times of a [`LockClient`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ClientConfig {
    /// Unused locks that stay cached (Lustre: `lru_size`).
    pub lru_size: usize,
    /// Time after which an unused lock is given up (Lustre: `lru_max_age`).
    pub lru_max_age: Duration,
    /// Time after which a request that has not been granted is resent. Its first answer, "waiting", may be
    /// old; the resend finds a grant whose completion callback was lost.
    pub resend_after: Duration,
    /// Downgrade write locks that conflict only with readers to read locks, instead of giving them up.
    pub downgrade: bool,
    /// Keep those bits of an inode lock that no waiting request conflicts with.
    pub keep_parts: bool,
}

impl Default for ClientConfig {
    fn default() -> Self {
        ClientConfig {
            // Far below the server's limit for a client, so that locks in use fit in addition.
            lru_size: 32 * 1024,
            // As in Lustre.
            lru_max_age: Duration::from_secs(600),
            resend_after: Duration::from_secs(5),
            downgrade: true,
            keep_parts: true,
        }
    }
}

/// Actions for the owner of a [`LockClient`]. Messages carry the generation of the connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Effect {
    /// Send this request; the answer goes to [`LockClient::on_outcome`].
    SendEnqueue(Enqueue),
    /// Send a cancel, and resend it if the connection breaks before the answer. If it is lost nevertheless,
    /// the next callback for the lock brings another.
    SendCancel(LockHandle),
    /// Send a conversion; it needs no answer either.
    SendConvert {
        /// Lock to convert.
        handle: LockHandle,
        /// Mode that stays.
        mode: Mode,
        /// Part that stays covered.
        policy: Policy,
    },
    /// Send the answer to a repeated callback: the lock is still used, or flushed, which may wait for another target.
    /// Needs no answer, and no resend.
    SendBusy(LockHandle),
    /// Replay a lock to a server that has restarted; the answer goes to [`LockClient::on_replay_outcome`].
    SendReplay {
        /// Lock to replay.
        handle: LockHandle,
        /// Resource of the lock.
        resource: ResourceId,
        /// The lock as it was granted.
        need: Need,
    },
    /// All locks are replayed: report this to the server until it has confirmed.
    SendReplayDone,
    /// The lock is granted: wake the threads that wait for it. They hold their references already.
    Ready {
        /// Lock that is granted.
        handle: LockHandle,
    },
    /// The lock is refused: wake the threads that wait for it; their references are released.
    Failed {
        /// Lock that is refused.
        handle: LockHandle,
        /// Reason of the refusal.
        refusal: Refusal,
    },
    /// A glimpse ended without a lock: wake the threads that wait for it.
    Glimpsed {
        /// Handle of the request.
        handle: LockHandle,
        /// Size and times as the server and the writers know them.
        lvb: Lvb,
    },
    /// Write out dirty data under the lock, then drop what is cached under it, then call
    /// [`LockClient::on_flushed`]. Bytes that other locks cover may stay ([`LockClient::uncovered`]). With
    /// `keep`, only the rest of the lock is given up: inode bits that are not in `keep`; or, for a write lock
    /// that becomes a read lock, nothing is dropped, only written out.
    Flush {
        /// Lock to give up.
        handle: LockHandle,
        /// Resource of the lock.
        resource: ResourceId,
        /// The lock as it is held.
        need: Need,
        /// The part that stays; `None` if the lock is given up as a whole.
        keep: Option<Need>,
    },
    /// The lock is lost: drop what is cached under it, and count dirty data as lost (`EIO` at the next fsync
    /// or close of the files that it belongs to). Users of the lock find it invalid.
    Discard {
        /// Lock that is lost.
        handle: LockHandle,
        /// Resource of the lock.
        resource: ResourceId,
        /// The lock as it was held.
        need: Need,
    },
    /// The server does not accept the locks that this client replays: call [`LockClient::on_evicted`] and
    /// connect as a new client.
    Reconnect,
}

/// The answer to [`LockClient::acquire`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Acquire {
    /// A suitable lock is held; the caller has a reference to it.
    Held(LockHandle),
    /// The server was asked. [`Effect::Ready`], [`Effect::Failed`] or [`Effect::Glimpsed`] with this handle
    /// will follow; the caller has a reference, to be released also if it stops waiting.
    Pending(LockHandle),
    /// The server has reported the resource contended: do the I/O without a lock of this client.
    Contended,
}

/// Counters since the start of the cache.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ClientStats {
    /// Needs that a cached lock served.
    pub matched: u64,
    /// Enqueues, without resends.
    pub enqueued: u64,
    /// Blocking callbacks received, with resends.
    pub callbacks: u64,
    /// Locks given up, for any reason.
    pub cancelled: u64,
    /// Locks that were converted instead: fewer bits or a weaker mode.
    pub converted: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    /// Requested and not granted; to be resent at this time.
    Asking(Instant),
    Granted,
    /// Dirty data is being written out and the cache dropped; the content is what stays of the lock.
    Leaving(Option<Need>),
}

#[derive(Debug)]
struct Lock {
    handle: LockHandle,
    resource: u32,
    /// The request; once granted, what is held.
    need: Need,
    optional: InodeBits,
    flags: EnqueueFlags,
    state: State,
    users: u32,
    /// Needs of waiting requests; set by a blocking callback.
    wanted: Option<Wanted>,
    lvb: Option<Lvb>,
    link: Link,
}

impl Lock {
    fn request(&self, id: ResourceId) -> Enqueue {
        Enqueue {
            handle: self.handle,
            resource: id,
            need: self.need,
            optional: self.optional,
            flags: self.flags,
        }
    }
}

#[derive(Debug)]
struct Resource {
    id: ResourceId,
    /// Granted locks, including those that are being revoked.
    granted: Holdings,
    asking: Vec<u32>,
    /// Locks under which data is being written out and dropped.
    leaving: Vec<u32>,
    /// Number of locks in any state.
    locks: u32,
}

/// See the [module documentation](self).
#[derive(Debug)]
pub struct LockClient {
    config: ClientConfig,
    connected: bool,
    handles: u64,
    locks: Slab<Lock>,
    by_handle: WordMap<LockHandle, u32>,
    reserved: Reserved,
    resources: Slab<Resource>,
    by_id: WordMap<ResourceId, u32>,
    lru: Lru,
    /// Requests that are not granted, by the time of their next resend.
    resend: BTreeSet<(Instant, u32)>,
    /// Locks whose replay has not been answered.
    replaying: BTreeSet<LockHandle>,
    replay_again: Option<Instant>,
    contended: WordMap<ResourceId, Instant>,
    /// Cancels that could not be sent for lack of a connection.
    unsent: Vec<LockHandle>,
    stats: ClientStats,
}

impl LockClient {
    /// Creates a cache without locks and without a connection: requests are sent when
    /// [`LockClient::on_connected`] is called.
    pub fn new(config: ClientConfig) -> LockClient {
        LockClient {
            config,
            connected: false,
            handles: 0,
            locks: Slab::default(),
            by_handle: WordMap::default(),
            reserved: Reserved::default(),
            resources: Slab::default(),
            by_id: WordMap::default(),
            lru: Lru::default(),
            resend: BTreeSet::new(),
            replaying: BTreeSet::new(),
            replay_again: None,
            contended: WordMap::default(),
            unsent: Vec::new(),
            stats: ClientStats::default(),
        }
    }

    /// Creates a cache whose handles come after `first`: two caches of one client at one target must not use
    /// the same handles.
    pub fn with_handles_after(config: ClientConfig, first: LockHandle) -> LockClient {
        LockClient { handles: first.0, ..LockClient::new(config) }
    }

    /// Returns a lock for `need`: a cached one, one that another thread is requesting already, or a new
    /// request. The caller gets a reference and returns it with [`LockClient::release`].
    pub fn acquire(
        &mut self,
        now: Instant,
        resource: &ResourceId,
        need: &Need,
        optional: InodeBits,
        flags: EnqueueFlags,
        effects: &mut Vec<Effect>,
    ) -> Acquire {
        if let Some(handle) = self.match_lock(resource, need) {
            return Acquire::Held(handle);
        }
        if flags.deny_on_contention && self.contended.get(resource).is_some_and(|until| *until > now) {
            return Acquire::Contended;
        }
        if let Some(handle) = self.join(resource, need, flags) {
            return Acquire::Pending(handle);
        }
        self.handles += 1;
        let handle = LockHandle(self.handles);
        let place = self.resource_for(resource, &need.policy);
        let due = now + self.config.resend_after;
        let lock = Lock {
            handle,
            resource: place,
            need: *need,
            optional,
            flags,
            state: State::Asking(due),
            users: 1,
            wanted: None,
            lvb: None,
            link: Link::default(),
        };
        if self.connected && self.replaying.is_empty() {
            effects.push(Effect::SendEnqueue(lock.request(*resource)));
        }
        let key = self.locks.insert(lock);
        self.by_handle.insert(handle, key);
        self.resources[place].locks += 1;
        self.resources[place].asking.push(key);
        self.resend.insert((due, key));
        self.stats.enqueued += 1;
        Acquire::Pending(handle)
    }

    /// Returns a reference to a cached lock that serves `need`, if there is one. Never asks the server.
    pub fn match_lock(&mut self, resource: &ResourceId, need: &Need) -> Option<LockHandle> {
        let key = self.serving(resource, need)?;
        self.lru.remove(&mut self.locks, key);
        self.locks[key].users += 1;
        self.stats.matched += 1;
        Some(self.locks[key].handle)
    }

    /// Returns a reference to this very lock, and what it covers, if it may be used.
    pub fn hold(&mut self, handle: LockHandle) -> Option<Need> {
        let key = *self.by_handle.get(&handle)?;
        if !self.is_usable(handle) {
            return None;
        }
        self.lru.remove(&mut self.locks, key);
        self.locks[key].users += 1;
        self.stats.matched += 1;
        Some(self.locks[key].need)
    }

    /// True if a cached lock serves `need`: a caller that holds the mutex around this engine may use what is
    /// cached.
    pub fn is_covered(&self, resource: &ResourceId, need: &Need) -> bool {
        self.serving(resource, need).is_some()
    }

    /// Returns what the cached lock that serves `need` was granted for.
    pub fn cached(&self, resource: &ResourceId, need: &Need) -> Option<Need> {
        self.serving(resource, need).map(|key| self.locks[key].need)
    }

    /// True if a lock of this client, even one being revoked or given up, excludes the changes by others that
    /// `need` would exclude, or is a group lock that is being given up: other holders are members of the same
    /// group. A caller that caches something on this answer has to ensure that the flush of that lock drops
    /// it.
    pub fn is_still_held(&self, resource: &ResourceId, need: &Need) -> bool {
        let Some(&place) = self.by_id.get(resource) else { return false };
        let resource = &self.resources[place];
        let serves =
            |held: &Need| held.serves(need) || (held.mode == Mode::Group && need.mode != Mode::Group);
        resource.granted.serving(need, |key| self.locks[key].need.serves(need)).is_some()
            || resource.leaving.iter().any(|key| serves(&self.locks[*key].need))
    }

    /// Gives up what this client holds on the resource in `mode`, as if a conflicting request waited for all
    /// of it: at once, or when the last reference is released. Returns the locks that are being given up, for
    /// the caller to wait for.
    pub fn surrender(
        &mut self,
        resource: &ResourceId,
        mode: Mode,
        effects: &mut Vec<Effect>,
    ) -> Vec<LockHandle> {
        let Some(&place) = self.by_id.get(resource) else { return Vec::new() };
        let mut found: Vec<u32> = Vec::new();
        let everything = match mode {
            Mode::Group => return Vec::new(),
            _ => Need::extent(Mode::Ex, Extent::WHOLE),
        };
        let _ = self.resources[place].granted.conflicting(&everything, &mut |key| {
            found.push(key);
            ControlFlow::Continue(())
        });
        found.retain(|key| self.locks[*key].need.mode == mode);
        let leaving =
            self.resources[place].leaving.iter().copied().filter(|key| self.locks[*key].need.mode == mode);
        let handles = found.iter().copied().chain(leaving).map(|key| self.locks[key].handle).collect();
        for key in found {
            let lock = &mut self.locks[key];
            lock.wanted = Some(Wanted::by(&everything));
            if lock.users == 0 {
                self.give_up(key, effects);
            }
        }
        handles
    }

    /// Returns the number of locks on the resource, in any state.
    pub fn locks_on(&self, resource: &ResourceId) -> usize {
        self.by_id.get(resource).map_or(0, |place| self.resources[*place].locks as usize)
    }

    /// True if the client holds, or is giving up, a lock of this mode on the resource.
    pub fn has_mode(&self, resource: &ResourceId, mode: Mode) -> bool {
        let Some(&place) = self.by_id.get(resource) else { return false };
        let (resource, mut found) = (&self.resources[place], false);
        let _ = resource.granted.conflicting(&Need::extent(Mode::Ex, Extent::WHOLE), &mut |key| {
            found |= self.locks[key].need.mode == mode;
            if found { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        });
        found || resource.leaving.iter().any(|key| self.locks[*key].need.mode == mode)
    }

    /// Releases a reference. A pending request without references is cancelled; an unused lock stays cached
    /// unless it has had a blocking callback. References to locks that were lost may be released, too.
    pub fn release(&mut self, now: Instant, handle: LockHandle, effects: &mut Vec<Effect>) {
        let Some(&key) = self.by_handle.get(&handle) else { return };
        let lock = &mut self.locks[key];
        lock.users = lock.users.saturating_sub(1);
        if lock.users > 0 {
            return;
        }
        match lock.state {
            State::Asking(_) => {
                self.remove(key);
                self.send(effects, Effect::SendCancel(handle));
            }
            // A group lock is held on purpose, not cached. It is never marked as wanted.
            State::Granted if lock.wanted.is_some() || lock.need.mode == Mode::Group => {
                self.give_up(key, effects);
            }
            State::Granted => {
                self.lru.push(&mut self.locks, key, now);
                self.shrink_to_size(effects);
            }
            State::Leaving(_) => {}
        }
    }

    /// True if the lock is still held: false after an eviction, even for holders of a reference.
    pub fn is_valid(&self, handle: LockHandle) -> bool {
        self.held(handle).is_some()
    }

    /// True if what is cached under the lock may be used right now: it is granted and has had no blocking
    /// callback.
    pub fn is_usable(&self, handle: LockHandle) -> bool {
        let Some(lock) = self.by_handle.get(&handle).map(|key| &self.locks[*key]) else { return false };
        lock.state == State::Granted && lock.wanted.is_none()
    }

    /// Returns the cached lock that serves `need`, without a reference to it.
    pub fn serving_handle(&self, resource: &ResourceId, need: &Need) -> Option<LockHandle> {
        self.serving(resource, need).map(|key| self.locks[key].handle)
    }

    /// True if the lock exists, granted or requested.
    pub fn knows(&self, handle: LockHandle) -> bool {
        self.by_handle.contains_key(&handle)
    }

    /// Returns what is held under a handle.
    pub fn held(&self, handle: LockHandle) -> Option<Need> {
        let lock = &self.locks[*self.by_handle.get(&handle)?];
        (!matches!(lock.state, State::Asking(_))).then_some(lock.need)
    }

    /// Returns the size and times of the object as this client knows them under the lock.
    pub fn lvb(&self, handle: LockHandle) -> Option<Lvb> {
        self.locks[*self.by_handle.get(&handle)?].lvb
    }

    /// Updates the known size and times after a change under the lock: an extending write raises the known
    /// minimum size, a truncate sets it.
    pub fn update_lvb(&mut self, handle: LockHandle, change: impl FnOnce(&mut Lvb)) {
        if let Some(key) = self.by_handle.get(&handle) {
            change(self.locks[*key].lvb.get_or_insert_default());
        }
    }

    /// Returns the number of locks in any state.
    pub fn locks(&self) -> usize {
        self.locks.len()
    }

    /// Returns the number of cached locks without references.
    pub fn unused(&self) -> usize {
        self.lru.len()
    }

    /// Returns the counters since the start of the cache.
    pub fn stats(&self) -> ClientStats {
        self.stats
    }

    fn serving(&self, resource: &ResourceId, need: &Need) -> Option<u32> {
        let place = *self.by_id.get(resource)?;
        let usable = |key: u32| self.locks[key].wanted.is_none() && self.locks[key].need.serves(need);
        self.resources[place].granted.serving(need, usable)
    }

    /// Joins a pending request that would serve `need`, unless it has had a blocking callback already.
    fn join(&mut self, resource: &ResourceId, need: &Need, flags: EnqueueFlags) -> Option<LockHandle> {
        let place = *self.by_id.get(resource)?;
        let serves = |key: &u32| {
            let lock = &self.locks[*key];
            lock.wanted.is_none() && !lock.flags.glimpse && lock.flags == flags && lock.need.serves(need)
        };
        let key = self.resources[place].asking.iter().copied().find(|key| serves(key))?;
        self.locks[key].users += 1;
        Some(self.locks[key].handle)
    }

    /// Starts to give up an unused lock, or the part of it that waiting requests need.
    fn give_up(&mut self, key: u32, effects: &mut Vec<Effect>) {
        self.lru.remove(&mut self.locks, key);
        let lock = &mut self.locks[key];
        let need = lock.need;
        let keep = lock.wanted.and_then(|wanted| downgraded(&need, &wanted, &self.config));
        if lock.state == State::Granted {
            let resource = &mut self.resources[lock.resource];
            resource.granted.remove(need.mode, &need.policy, key);
            resource.leaving.push(key);
        }
        lock.state = State::Leaving(keep);
        let resource = self.resources[lock.resource].id;
        effects.push(Effect::Flush { handle: lock.handle, resource, need, keep });
    }

    /// Removes a lock in any state.
    fn remove(&mut self, key: u32) {
        self.lru.remove(&mut self.locks, key);
        let Some(lock) = self.locks.remove(key) else { return };
        self.by_handle.remove(&lock.handle);
        let resource = &mut self.resources[lock.resource];
        match lock.state {
            State::Asking(due) => {
                self.resend.remove(&(due, key));
                resource.asking.retain(|other| *other != key);
            }
            State::Granted => resource.granted.remove(lock.need.mode, &lock.need.policy, key),
            State::Leaving(_) => resource.leaving.retain(|other| *other != key),
        }
        resource.locks -= 1;
        if resource.locks == 0 {
            let id = resource.id;
            self.by_id.remove(&id);
            self.resources.remove(lock.resource);
        }
        if !matches!(lock.state, State::Asking(_)) {
            self.stats.cancelled += 1;
        }
    }

    fn resource_for(&mut self, id: &ResourceId, policy: &Policy) -> u32 {
        if let Some(&place) = self.by_id.get(id) {
            return place;
        }
        let granted = Holdings::for_type_of(policy);
        let place = self.resources.insert(Resource {
            id: *id,
            granted,
            asking: Vec::new(),
            leaving: Vec::new(),
            locks: 0,
        });
        self.by_id.insert(*id, place);
        place
    }

    /// Sends a message that needs no answer. Without a connection cancels are kept for later, so that the
    /// server does not count removed locks; a callback recovers the other messages.
    fn send(&mut self, effects: &mut Vec<Effect>, effect: Effect) {
        match effect {
            effect if self.connected => effects.push(effect),
            Effect::SendCancel(handle) => self.unsent.push(handle),
            _ => {}
        }
    }
}

/// Returns what a holder may keep although others need `wanted`: inode bits that no waiting request needs;
/// else a read lock instead of a write lock, if that is weak enough.
fn downgraded(need: &Need, wanted: &Wanted, config: &ClientConfig) -> Option<Need> {
    if let (Policy::Bits(bits), Policy::Bits(others)) = (need.policy, wanted.policy) {
        let left = bits.without(others);
        if config.keep_parts && !left.is_empty() {
            return Some(Need { policy: Policy::Bits(left), ..*need });
        }
    }
    let weak_enough = !wanted.conflicts_with(Mode::Pr, &need.policy);
    (config.downgrade && matches!(need.mode, Mode::Ex | Mode::Pw) && weak_enough)
        .then_some(Need { mode: Mode::Pr, ..*need })
}

#[cfg(test)]
mod tests;
