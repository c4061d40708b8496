//! Locks of this client at its targets, under which it may cache while it is not the only client. Those on
//! inodes, at MDTs, are in [`inodes`]; everything else here concerns data.
//!
//! [`layouts`] has those on layouts. While the lease is exclusive no locks are used. Otherwise every read and
//! write of an open file takes locks on the bytes of the objects that it touches
//! ([`DataLocks::cover`](crate::data_locks::DataLocks::cover)) and keeps them until another client requests a
//! conflicting one. Then the data they cover is written back and dropped ([`crate::data_locks::flush`]), here
//! and from the kernel's page cache ([`crate::file::folios`]), and the locks are cancelled.
//! `docs/design/locks.md` has the whole protocol.
//!
//! # Invariants
//!
//! - Locks of one operation are taken in the order of the objects in the layout, after the operation's byte
//!   range ([`crate::file::ranges`]) and before any request for data; so no two operations of any clients
//!   wait for each other.
//! - A page that the kernel may let a program store to is under a write lock: data that is read into the page
//!   cache of a file that is open for writing here is locked for writing, and opening a file for writing
//!   cancels its read locks.
//! - Write-back under a lock that is being cancelled never waits for a thread that may wait for a lock:
//!   flushes have threads of their own, they take no byte range, and requests of the kernel that they depend
//!   on are urgent ([`crate::file::folios`]).

pub(crate) mod clock;
pub(crate) mod events;
pub(crate) mod inodes;
pub(crate) mod layouts;
pub(crate) mod space;

use crate::kernel::KernelCaches;
use crate::locks::clock::Clock;
use crate::locks::inodes::InodeSpace;
use crate::locks::layouts::LayoutSpace;
use crate::locks::space::{Home, LostLock, Namespace};
use crate::tasks::Tasks;
use nacre_env::activity;
use nacre_env::clock::Instant;
use nacre_env::fault::{self, Point};
use nacre_env::sync::RwLock;
use nacre_layout::Layout;
use nacre_lock::client::{ClientConfig, ClientStats, Effect};
use nacre_lock::{LockHandle, Lvb, Need, ResourceId};
use nacre_rpc::{MdsEndpoint, OssEndpoint, Recovery};
use nacre_types::{Capability, Fid, ObjectNeed, StatusResult, TargetId, TargetKind};
use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

/// Threads that write back and drop data under locks of one OST. Each of them waits for that OST and for running
/// requests of the kernel, never for another flush thread. An OST that is down holds up no locks of others.
const FLUSH_THREADS: usize = 16;
/// Threads that drop pages of the kernel.
const DROP_THREADS: usize = 16;
/// Threads that write back and drop everything on the objects of a file. They wait for the flush threads.
const LAYOUT_FLUSH_THREADS: usize = 8;
/// Threads that send messages without reply to one target.
const MESSAGE_THREADS: usize = 2;

/// Counters of one target's locks, for `ldlm.namespaces.*`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct LockCounts {
    /// Locks in any state.
    pub locks: usize,
    /// Locks that are cached and not used.
    pub unused: usize,
    /// Lock requests of operations that a cached lock served.
    pub matched: u64,
    /// Lock requests to the server, without resends.
    pub enqueued: u64,
    /// Callbacks received.
    pub callbacks: u64,
    /// Locks cancelled.
    pub cancelled: u64,
}

/// The part of the client that uses and caches data under these locks. Called on threads that may wait.
pub(crate) trait Holder: Send + Sync {
    /// Returns the endpoint of an OST.
    fn ost(&self, index: u16) -> Option<&dyn OssEndpoint>;
    /// Returns the endpoint of an MDT.
    fn mdt(&self, index: u16) -> Option<&dyn MdsEndpoint>;
    /// Returns a capability for an object, see [`nacre_rpc::OssEvents::capability`].
    fn capability(&self, need: &ObjectNeed, refused: Option<&Capability>)
    -> StatusResult<Option<Capability>>;
    /// Writes back data that was written under a lock on an object, and drops what is cached under it, as the
    /// lock is about to be cancelled.
    fn flush_object(&self, home: &Home, object: Fid, need: &Need);
    /// Replays changes that an OST has lost with its host, before other requests continue.
    ///
    /// # Errors
    /// Those after which it has to be called again.
    fn replay_data(&self, ost_index: u16, endpoint: &dyn OssEndpoint, recovery: Recovery)
    -> StatusResult<()>;
    /// Drops what was cached under lost locks on objects of an OST.
    fn drop_lost(&self, ost_index: u16, lost: Vec<LostLock>);
    /// Writes back and drops everything of a file that is on the objects of this layout. No operation reads
    /// or writes there any more.
    fn leave_objects(&self, fid: Fid, layout: Option<&Layout>);
    /// Drops the known layout of a file, which is outdated.
    fn forget_layout(&self, fid: Fid);
    /// Handles a change of the set of locks on a file.
    fn locks_changed(&self, node: u64);
    /// Returns size and time of an object as far as this client has not written them back.
    fn known_of(&self, node: u64, object: Fid) -> Lvb;
    /// Calls `drop` for an inode in the kernel, see [`crate::node::NodeTable::reaches_kernel`].
    fn reaches_kernel(&self, node: u64, since: Instant, drop: &dyn Fn(u64) -> bool) -> bool;
}

/// Describes the revocation of a lock of this client.
fn revoking(target: TargetId, handle: LockHandle, resource: &ResourceId) -> activity::Operation {
    activity::Operation {
        target: Some(target),
        name: "revoke",
        fid: Some(resource.fid()),
        lock: handle.0,
        origin: activity::Origin::Own,
    }
}

/// See the [module documentation](self). Created before the client, because endpoints need a receiver of
/// callbacks.
pub struct Locks {
    spaces: RwLock<BTreeMap<u16, Arc<Namespace>>>,
    /// Locks on inodes by MDT index.
    inodes: RwLock<BTreeMap<u16, Arc<InodeSpace>>>,
    /// Locks on layouts by MDT index.
    layouts: RwLock<BTreeMap<u16, Arc<LayoutSpace>>>,
    /// The kernel's caches, which this client has to invalidate.
    pub(crate) kernel: OnceLock<Arc<dyn KernelCaches>>,
    holder: OnceLock<Weak<dyn Holder>>,
    me: Weak<Locks>,
    drops: Tasks,
    layout_flushes: Tasks,
    clock: Clock,
}

impl Locks {
    /// Creates an empty set of locks.
    pub(crate) fn new() -> Arc<Locks> {
        Arc::new_cyclic(|me| Locks {
            spaces: RwLock::default(),
            inodes: RwLock::default(),
            layouts: RwLock::default(),
            kernel: OnceLock::new(),
            holder: OnceLock::new(),
            me: me.clone(),
            drops: Tasks::new(DROP_THREADS),
            layout_flushes: Tasks::new(LAYOUT_FLUSH_THREADS),
            clock: Clock::default(),
        })
    }

    /// Connects the locks to the client, once that exists.
    pub(crate) fn attach<H: Holder + 'static>(self: &Arc<Locks>, holder: &Arc<H>) {
        let holder: Weak<H> = Arc::downgrade(holder);
        let _ = self.holder.set(holder);
        self.clock.attach(self);
    }

    /// Stops all threads.
    pub(crate) fn stop(&self) {
        self.clock.stop();
        self.inode_spaces().iter().for_each(|space| space.stop());
        self.layout_flushes.stop();
        self.layout_spaces().iter().for_each(|space| space.stop());
        self.spaces().iter().for_each(|space| space.stop());
        self.drops.stop();
    }

    fn holder(&self) -> Option<Arc<dyn Holder>> {
        self.holder.get()?.upgrade()
    }

    /// Returns the locks at one OST.
    pub(crate) fn space(&self, ost_index: u16) -> Arc<Namespace> {
        if let Some(space) = self.spaces.read().get(&ost_index) {
            return space.clone();
        }
        let mut spaces = self.spaces.write();
        spaces.entry(ost_index).or_insert_with(|| Arc::new(Namespace::new(ost_index))).clone()
    }

    /// Returns the locks at all OSTs.
    pub(crate) fn spaces(&self) -> Vec<Arc<Namespace>> {
        self.spaces.read().values().cloned().collect()
    }

    /// Returns the locks on inodes at one MDT.
    pub(crate) fn inodes(self: &Arc<Locks>, mdt_index: u16) -> Arc<InodeSpace> {
        if let Some(space) = self.inodes.read().get(&mdt_index) {
            return space.clone();
        }
        let mut spaces = self.inodes.write();
        let new = || Arc::new(InodeSpace::new(mdt_index, Arc::downgrade(self)));
        spaces.entry(mdt_index).or_insert_with(new).clone()
    }

    /// Returns the locks on layouts at one MDT.
    pub(crate) fn layouts(self: &Arc<Locks>, mdt_index: u16) -> Arc<LayoutSpace> {
        if let Some(space) = self.layouts.read().get(&mdt_index) {
            return space.clone();
        }
        let mut spaces = self.layouts.write();
        let new = || Arc::new(LayoutSpace::new(mdt_index, Arc::downgrade(self)));
        spaces.entry(mdt_index).or_insert_with(new).clone()
    }

    fn layout_spaces(&self) -> Vec<Arc<LayoutSpace>> {
        self.layouts.read().values().cloned().collect()
    }

    /// Replays locks on layouts, under which I/O continues, through `endpoint` to an MDT that has restarted.
    ///
    /// # Errors
    /// The error of the MDT.
    pub fn replay_layouts(self: &Arc<Locks>, mdt_index: u16, endpoint: &dyn MdsEndpoint) -> StatusResult<()> {
        self.layouts(mdt_index).replay(endpoint)
    }

    /// Invalidates the known layouts after an MDT has evicted this client.
    pub fn lose_layouts(self: &Arc<Locks>, mdt_index: u16) {
        self.layouts(mdt_index).lose();
    }

    fn inode_spaces(&self) -> Vec<Arc<InodeSpace>> {
        self.inodes.read().values().cloned().collect()
    }

    /// Drops what is cached of an MDT's inodes, because it has restarted or evicted this client. Returns once
    /// it is dropped.
    pub fn lose_inodes(self: &Arc<Locks>, mdt_index: u16) {
        self.inodes(mdt_index).lose();
    }

    /// Returns the bounds of the cache of locks at a target.
    fn config(self: &Arc<Locks>, target: TargetId) -> ClientConfig {
        match target.kind {
            TargetKind::Mdt => self.inodes(target.index).config(),
            _ => self.space(target.index).config(),
        }
    }

    /// Returns how many unused locks are kept at a target, at most; `ldlm.namespaces.*.lru_size`.
    pub fn lru_size(self: &Arc<Locks>, target: TargetId) -> usize {
        self.config(target).lru_size
    }

    /// Sets [`Locks::lru_size`]; locks beyond it are cancelled at once.
    pub fn set_lru_size(self: &Arc<Locks>, target: TargetId, count: usize) {
        match target.kind {
            TargetKind::Mdt => self.inodes(target.index).set_lru_size(count),
            _ => self.space(target.index).set_lru_size(self, count),
        }
    }

    /// Returns the age at which an unused lock is cancelled; `ldlm.namespaces.*.lru_max_age`.
    pub fn lru_max_age(self: &Arc<Locks>, target: TargetId) -> Duration {
        self.config(target).lru_max_age
    }

    /// Sets [`Locks::lru_max_age`].
    pub fn set_lru_max_age(self: &Arc<Locks>, target: TargetId, age: Duration) {
        match target.kind {
            TargetKind::Mdt => self.inodes(target.index).set_lru_max_age(age),
            _ => self.space(target.index).set_lru_max_age(age),
        }
    }

    /// Cancels all locks at a target that no operation uses at the moment (`lru_size=clear`).
    pub fn drop_unused(self: &Arc<Locks>, target: TargetId) {
        match target.kind {
            TargetKind::Mdt => self.inodes(target.index).drop_unused(),
            _ => self.space(target.index).drop_unused(self),
        }
    }

    /// Returns the counters of one target.
    pub fn counts(self: &Arc<Locks>, target: TargetId) -> LockCounts {
        let (locks, unused, stats) = match target.kind {
            TargetKind::Mdt => {
                let space = self.inodes(target.index);
                (space.lock_count(), space.unused_count(), space.stats())
            }
            _ => {
                let space = self.space(target.index);
                (space.lock_count(), space.unused_count(), space.stats())
            }
        };
        let ClientStats { matched, enqueued, callbacks, cancelled, .. } = stats;
        LockCounts { locks, unused, matched, enqueued, callbacks, cancelled }
    }

    /// Handles the grant of a new lock on data of a file.
    fn lock_came(&self, node: u64) {
        if let Some(holder) = self.holder() {
            holder.locks_changed(node);
        }
    }

    /// Makes the kernel drop the cached pages of a file, asynchronously: requests of the kernel may wait for
    /// the calling thread.
    pub(crate) fn forget_pages(&self, node: u64) {
        let Some(kernel) = self.kernel.get().cloned() else { return };
        self.drops.submit(move || {
            kernel.drop_inode(node);
        });
    }

    /// Performs an effect on a thread that may wait.
    fn later(&self, space: &Arc<Namespace>, effect: Effect) {
        let weak = self.me.clone();
        let pool = if matches!(effect, Effect::Flush { .. }) { &space.flushes } else { &space.messages };
        let space = space.clone();
        let done = pool.submit(move || {
            let Some(locks) = weak.upgrade() else { return };
            let Some(holder) = locks.holder() else { return };
            match effect {
                Effect::Flush { handle, resource, need, .. } => {
                    let target = TargetId::ost(space.ost_index);
                    let _running = activity::begin(revoking(target, handle, &resource));
                    fault::delay(Point::ClientRevoke);
                    if let Some(home) = space.home(&resource) {
                        holder.flush_object(&home, resource.fid(), &need);
                    }
                    space.on_flushed(&locks, handle, &resource);
                }
                // An eviction itself drops what was cached.
                Effect::Discard { .. } => {}
                other => {
                    if let Some(endpoint) = holder.ost(space.ost_index) {
                        space.send(&locks, endpoint, other);
                    }
                }
            }
        });
        if !done {
            log::debug!("a lock is not released: the client ends");
        }
    }

    /// Answers a glimpse: an OST requests what this client knows of an object.
    fn glimpsed(
        &self,
        space: &Arc<Namespace>,
        glimpse: u64,
        handle: LockHandle,
        resource: Option<ResourceId>,
    ) {
        let (weak, at) = (self.holder.get().cloned(), space.clone());
        space.messages.submit(move || {
            let Some(holder) = weak.and_then(|weak| weak.upgrade()) else { return };
            let lvb = resource.map(|resource| {
                at.home(&resource).map_or(Lvb::default(), |home| holder.known_of(home.node, resource.fid()))
            });
            if let Some(endpoint) = holder.ost(at.ost_index) {
                space::answer_glimpse(endpoint, glimpse, handle, lvb);
            }
        });
    }
}
