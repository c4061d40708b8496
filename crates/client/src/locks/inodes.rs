//! Locks on inodes at one MDT, under which the kernel and this client may cache names and attributes while
//! there are other clients.
//!
//! They come with the replies to lookups and to getattrs (intents), on the inode that was found and on the
//! content of the directory that was searched. They are kept until another client is about to change what
//! they cover. Then the kernel's copies are dropped and the lock is cancelled, by a thread of its own, which
//! never waits for other threads: all names expire at once, attributes are dropped without their pages.
//!
//! # Why nothing outdated stays cached
//!
//! - A reply is cached only if its lock came with it, or if the same lock was held when the request was sent
//!   and when the reply came: handles are never used twice, so it was held all the time.
//! - No reference to a lock is held while a request to the MDT is in flight: the MDT may be waiting for that
//!   very lock.
//! - Replies on their way into the kernel when their lock is cancelled are dropped there as well: the kernel
//!   compares the epoch of names and the version of attributes with those at the time of the request. An
//!   inode that it does not know yet has no version; then the drop is repeated until the kernel knows the
//!   inode, or has forgotten it ([`InodeSpace::leave`]).

use crate::locks::{Holder, Locks};
use nacre_env::activity;
use nacre_env::clock::Instant;
use nacre_env::sync::{Condvar, Mutex};
use nacre_lock::client::{ClientConfig, ClientStats, Effect, LockClient};
use nacre_lock::{InodeBits, LockHandle, Mode, Need, ResourceId};
use nacre_types::{Cred, Fid};
use nacre_wire::lock::{HANDLES_MAX, LockMessage, LockRequest};
use nacre_wire::mds::{LockRange, MdsRequest};
use std::collections::HashSet;
use std::sync::{Arc, Weak};
use std::time::Duration;

/// Bits of a lock on an inode.
const INODE: InodeBits =
    InodeBits::UPDATE.union(InodeBits::PERM).union(InodeBits::XATTR).union(InodeBits::LOOKUP);
/// Time between two tries to drop an inode whose attributes are on their way into the kernel, which does not
/// report their arrival.
pub(crate) const RETRY: Duration = Duration::from_micros(200);

/// Cancels for which no operation waits are sent once this many have gathered, or once a second.
const CANCELS_GATHERED: usize = 256;

/// A lock that is being cancelled.
struct Leaving {
    handle: LockHandle,
    node: u64,
    /// True if names are cached under it.
    names: bool,
    since: Instant,
}

#[derive(Default)]
struct Work {
    leaving: Vec<Leaving>,
    cancels: Vec<LockHandle>,
    /// True if there is work to be done at once.
    is_due: bool,
}

struct State {
    engine: LockClient,
    work: Work,
    /// Locks under which the kernel caches names.
    with_names: HashSet<LockHandle>,
    is_started: bool,
    is_stopped: bool,
}

/// A lock in the reply to an intent.
pub(crate) struct Granted {
    /// The inode that it is on.
    pub fid: Fid,
    /// Handle of the lock; 0 if none was granted.
    pub handle: LockHandle,
}

/// Locks under which a reply may be cached.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Held {
    /// The lock on the content of the directory.
    pub directory: Option<LockHandle>,
    /// The lock on the inode.
    pub inode: Option<LockHandle>,
}

/// See the [module documentation](self).
pub(crate) struct InodeSpace {
    mdt_index: u16,
    locks: Weak<Locks>,
    state: Mutex<State>,
    changed: Condvar,
}

fn need(bits: InodeBits) -> Need {
    Need::bits(Mode::Pr, bits)
}

impl InodeSpace {
    pub fn new(mdt_index: u16, locks: Weak<Locks>) -> InodeSpace {
        // A part of the bits of a lock on an inode would be useless.
        let config = ClientConfig { downgrade: false, keep_parts: false, ..ClientConfig::default() };
        let mut engine = LockClient::new(config);
        engine.on_connected(Instant::now(), &mut Vec::new());
        let state = State {
            engine,
            work: Work::default(),
            with_names: HashSet::new(),
            is_started: false,
            is_stopped: false,
        };
        InodeSpace { mdt_index, locks, state: Mutex::new(state), changed: Condvar::new() }
    }

    /// Reserves a handle for the lock on a directory, followed by one for the lock on an inode, for a
    /// request. [`InodeSpace::settle`] or [`InodeSpace::forget`] ends the reservation.
    pub fn reserve(&self) -> LockHandle {
        self.state.lock().engine.reserve_many(2)
    }

    /// Reserves handles for the locks of a page, that of the directory first. [`InodeSpace::forget`] ends the
    /// reservation.
    pub fn reserve_page(&self, count: u32) -> LockRange {
        LockRange { first: self.state.lock().engine.reserve_many(u64::from(count)), count }
    }

    /// Ends the reservation that begins with this handle: the request has failed, or all its locks were
    /// adopted.
    pub fn forget(&self, first: LockHandle) {
        self.state.lock().engine.forget_reserved(first);
    }

    /// Adopts the locks that came with a page as unused locks of this client.
    pub fn adopt_page(
        self: &Arc<Self>,
        range: LockRange,
        directory: Option<Granted>,
        inodes: impl Iterator<Item = Granted>,
    ) {
        let is_new = |granted: &Granted| {
            granted.handle.0.checked_sub(range.first.0).is_some_and(|place| place < u64::from(range.count))
        };
        let directory = directory.into_iter().map(|granted| (granted, InodeBits::UPDATE));
        let all = directory.chain(inodes.map(|granted| (granted, INODE)));
        let (now, mut effects) = (Instant::now(), Vec::new());
        let mut state = self.state.lock();
        for (granted, bits) in all.filter(|(granted, _)| is_new(granted)) {
            let resource = ResourceId::of_fid(&granted.fid);
            if state.engine.adopt(granted.handle, &resource, &need(bits), &mut effects) {
                state.engine.release(now, granted.handle, &mut effects);
            }
        }
        self.perform(&mut state, effects);
        drop(state);
        if let Some(locks) = self.locks.upgrade() {
            locks.clock.wake();
        }
    }

    /// Calls `remember`, which enters information covered by a lock where a flush finds it, unless a blocking
    /// callback for the lock has arrived. False if one has.
    pub fn confirm(&self, handle: LockHandle, remember: impl FnOnce()) -> bool {
        let state = self.state.lock();
        let usable = state.engine.is_usable(handle);
        if usable {
            remember();
        }
        usable
    }

    /// Handles the reply to a request. `remember` gets the locks under which the reply may be cached, and
    /// enters it where a flush finds it: no flush begins before it returns.
    pub fn settle<R>(
        self: &Arc<Self>,
        first: LockHandle,
        directory: Option<Granted>,
        inode: Option<Granted>,
        remember: impl FnOnce(Held) -> R,
    ) -> R {
        let mut effects = Vec::new();
        let mut state = self.state.lock();
        let (directory, new_directory) =
            state.engine_adopt(first, directory, InodeBits::UPDATE, &mut effects);
        let (inode, new_inode) = state.engine_adopt(next(first), inode, INODE, &mut effects);
        state.engine.forget_reserved(first);
        let result = remember(Held { directory, inode });
        for (held, is_new) in [(directory, new_directory), (inode, new_inode)] {
            if let Some(handle) = held.filter(|_| is_new) {
                state.engine.release(Instant::now(), handle, &mut effects);
            }
        }
        self.perform(&mut state, effects);
        drop(state);
        if (new_directory || new_inode)
            && let Some(locks) = self.locks.upgrade()
        {
            locks.clock.wake();
        }
        result
    }

    /// Returns the lock under which names in a directory may be cached, if there is one.
    pub fn on_names(&self, directory: Fid) -> Option<LockHandle> {
        let resource = ResourceId::of_fid(&directory);
        self.state.lock().engine.serving_handle(&resource, &need(InodeBits::UPDATE))
    }

    /// True if the lock is held and not revoked.
    pub fn is_usable(&self, handle: LockHandle) -> bool {
        self.state.lock().engine.is_usable(handle)
    }

    /// Records that the kernel is about to cache a name under this lock. False if it must not.
    pub fn keep_name(&self, handle: LockHandle) -> bool {
        let mut state = self.state.lock();
        let usable = state.engine.is_usable(handle);
        if usable {
            state.with_names.insert(handle);
        }
        usable
    }

    /// Cancels the locks of an inode that this client has removed: no operation will use them.
    pub fn on_removed(self: &Arc<Self>, fid: Fid) {
        let resource = ResourceId::of_fid(&fid);
        let mut state = self.state.lock();
        let everything = Need::bits(Mode::Ex, INODE);
        let cancels = state.engine.early_cancels(&resource, &everything, usize::MAX);
        if cancels.is_empty() {
            return;
        }
        // Not urgent, so the cancels gather.
        for cancel in cancels {
            state.with_names.remove(&cancel.handle);
            state.work.cancels.push(cancel.handle);
        }
        if state.work.cancels.len() >= CANCELS_GATHERED {
            self.wake(&mut state);
        }
        drop(state);
        if let Some(locks) = self.locks.upgrade() {
            locks.clock.wake();
        }
    }

    /// Handles a message of the MDT. Returns without waiting.
    pub fn on_message(self: &Arc<Self>, message: LockMessage) {
        // No operation waits for a lock here, and inodes are not glimpsed.
        if let LockMessage::Blocking { handle, wanted } = message {
            self.step(|engine, effects| engine.on_callback(handle, &wanted, effects));
        }
    }

    /// Drives the engine's time-outs.
    pub fn on_tick(self: &Arc<Self>) {
        let mut effects = Vec::new();
        let mut state = self.state.lock();
        state.engine.on_tick(Instant::now(), &mut effects);
        self.perform(&mut state, effects);
        if !state.work.cancels.is_empty() {
            self.wake(&mut state);
        }
    }

    /// Returns the number of locks in any state.
    pub fn lock_count(&self) -> usize {
        self.state.lock().engine.locks()
    }

    /// Returns the number of cached locks.
    pub fn unused_count(&self) -> usize {
        self.state.lock().engine.unused()
    }

    /// Returns the counters since the start.
    pub fn stats(&self) -> ClientStats {
        self.state.lock().engine.stats()
    }

    /// Returns the bounds of the cache of locks.
    pub fn config(&self) -> ClientConfig {
        self.state.lock().engine.config()
    }

    /// Sets how many locks are kept, at most.
    pub fn set_lru_size(self: &Arc<Self>, count: usize) {
        self.step(|engine, effects| engine.set_lru_size(count, effects));
    }

    /// Sets how long locks are kept, at most.
    pub fn set_lru_max_age(&self, age: Duration) {
        self.state.lock().engine.set_lru_max_age(age);
    }

    /// Cancels every lock.
    pub fn drop_unused(self: &Arc<Self>) {
        self.step(|engine, effects| engine.drop_unused(effects));
    }

    /// Stops the thread.
    pub fn stop(&self) {
        self.state.lock().is_stopped = true;
        self.changed.notify_all();
    }

    /// Handles the loss of all locks. Returns once nothing is cached under them.
    pub fn lose(self: &Arc<Self>) {
        let mut lost = Vec::new();
        {
            let mut state = self.state.lock();
            let mut effects = Vec::new();
            state.engine.on_evicted(&mut effects);
            for effect in effects {
                if let Effect::Discard { handle, resource, .. } = effect {
                    lost.push(leaving(handle, &resource, true));
                }
            }
            state.with_names.clear();
            state.work = Work::default();
            state.engine.on_connected(Instant::now(), &mut Vec::new());
        }
        if let Some(locks) = self.locks.upgrade() {
            while !lost.is_empty() {
                lost = leave(&locks, lost).1;
                if !lost.is_empty() {
                    nacre_env::thread::sleep(RETRY);
                }
            }
        }
    }

    fn step(self: &Arc<Self>, event: impl FnOnce(&mut LockClient, &mut Vec<Effect>)) {
        let mut effects = Vec::new();
        let mut state = self.state.lock();
        event(&mut state.engine, &mut effects);
        self.perform(&mut state, effects);
    }

    /// Queues the engine's effects for the thread.
    fn perform(self: &Arc<Self>, state: &mut State, effects: Vec<Effect>) {
        let mut any = false;
        for effect in effects {
            match effect {
                Effect::Flush { handle, resource, .. } => {
                    let names = state.with_names.remove(&handle);
                    state.work.leaving.push(leaving(handle, &resource, names));
                    any = true;
                }
                Effect::SendCancel(handle) => {
                    state.work.cancels.push(handle);
                    any = true;
                }
                // Locks are never enqueued, converted or replayed here, and no flush waits for another target.
                _ => {}
            }
        }
        if any {
            self.wake(state);
        }
    }

    fn wake(self: &Arc<Self>, state: &mut State) {
        state.work.is_due = true;
        if !state.is_started && !state.is_stopped {
            let space = Arc::downgrade(self);
            match nacre_env::thread::Builder::new().name("inode-locks".into()).spawn(move || run(&space)) {
                Ok(_) => state.is_started = true,
                // The MDT repeats its callback.
                Err(error) => log::warn!("no thread to release locks: {error}"),
            }
        }
        self.changed.notify_all();
    }

    /// Waits for work; `None` after [`InodeSpace::stop`].
    fn next_work(&self) -> Option<Work> {
        let mut state = self.state.lock();
        loop {
            if state.is_stopped {
                return None;
            }
            if state.work.is_due {
                return Some(std::mem::take(&mut state.work));
            }
            // A timeout, so that the thread also ends if the client is dropped without a call of
            // [`InodeSpace::stop`].
            self.changed.wait_for(&mut state, Duration::from_secs(10));
            if self.locks.strong_count() == 0 {
                return None;
            }
        }
    }

    /// Waits a little, or until there is new work.
    fn rest(&self) {
        self.changed.wait_for(&mut self.state.lock(), RETRY);
    }

    /// Records that nothing is cached under the locks `gone`; the locks `left` are tried again. Returns the
    /// locks to cancel.
    fn on_left(self: &Arc<Self>, gone: &[LockHandle], left: Vec<Leaving>) -> Vec<LockHandle> {
        let mut effects = Vec::new();
        let mut state = self.state.lock();
        for handle in gone {
            state.engine.on_flushed(Instant::now(), *handle, &mut effects);
        }
        state.work.is_due |= !left.is_empty();
        state.work.leaving.extend(left);
        let cancelled = |effect| match effect {
            Effect::SendCancel(handle) => Some(handle),
            _ => None,
        };
        effects.into_iter().filter_map(cancelled).collect()
    }

    fn send_cancels(&self, holder: &dyn Holder, handles: &[LockHandle]) {
        let Some(mdt) = holder.mdt(self.mdt_index) else { return };
        for handles in handles.chunks(HANDLES_MAX) {
            let request = LockRequest::Cancel { handles: handles.to_vec() };
            // The next callback for the lock leads to another cancel.
            if let Err(status) = mdt.call(&Cred::system(), &MdsRequest::Locks { request }) {
                log::debug!("MDT{:04x}: giving up locks: {status}", self.mdt_index);
            }
        }
    }
}

impl State {
    /// Adopts a lock from a reply, with a reference to it if it is new.
    fn engine_adopt(
        &mut self,
        reserved: LockHandle,
        granted: Option<Granted>,
        bits: InodeBits,
        effects: &mut Vec<Effect>,
    ) -> (Option<LockHandle>, bool) {
        match granted {
            Some(granted) if granted.handle == reserved => {
                let resource = ResourceId::of_fid(&granted.fid);
                let is_new = self.engine.adopt(reserved, &resource, &need(bits), effects);
                (is_new.then_some(reserved), is_new)
            }
            other => {
                let held = other.map(|granted| granted.handle);
                (held.filter(|handle| self.engine.is_usable(*handle)), false)
            }
        }
    }
}

fn next(handle: LockHandle) -> LockHandle {
    LockHandle(handle.0 + 1)
}

fn leaving(handle: LockHandle, resource: &ResourceId, names: bool) -> Leaving {
    Leaving { handle, node: resource.fid().inode_number(), names, since: Instant::now() }
}

/// Drops what is cached under locks; returns the locks for which that is done, and those whose inodes are on
/// their way into the kernel.
fn leave(locks: &Locks, leaving: Vec<Leaving>) -> (Vec<LockHandle>, Vec<Leaving>) {
    let (Some(kernel), Some(holder)) = (locks.kernel.get(), locks.holder()) else {
        return (leaving.iter().map(|lock| lock.handle).collect(), Vec::new());
    };
    if leaving.iter().any(|lock| lock.names) {
        kernel.expire_names();
    }
    let (mut gone, mut left) = (Vec::with_capacity(leaving.len()), Vec::new());
    for mut lock in leaving {
        if holder.reaches_kernel(lock.node, lock.since, &|node| kernel.drop_attributes(node)) {
            gone.push(lock.handle);
        } else {
            lock.names = false;
            left.push(lock);
        }
    }
    (gone, left)
}

/// Describes the release of locks, by the first of them.
fn releasing(work: &Work) -> activity::Operation {
    let first = work.leaving.first().map(|leaving| leaving.handle).or(work.cancels.first().copied());
    activity::Operation {
        target: None,
        name: "release",
        fid: None,
        lock: first.map_or(0, |handle| handle.0),
        origin: activity::Origin::Own,
    }
}

/// Body of the thread that drops what is cached under locks, and cancels them.
fn run(space: &Weak<InodeSpace>) {
    loop {
        let Some(space) = space.upgrade() else { return };
        let Some(mut work) = space.next_work() else { return };
        let Some(locks) = space.locks.upgrade() else { return };
        let Some(holder) = locks.holder() else { return };
        let _running = activity::begin(releasing(&work));
        let (gone, left) = leave(&locks, std::mem::take(&mut work.leaving));
        let is_early = gone.is_empty() && work.cancels.is_empty() && !left.is_empty();
        work.cancels.extend(space.on_left(&gone, left));
        space.send_cancels(&*holder, &work.cancels);
        if is_early {
            space.rest();
        }
    }
}
