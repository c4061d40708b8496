//! Locks of this client at its targets: what lets it cache while it is not the only client. Those on inodes, at MDTs, are in
//! [`inodes`]; everything else here is about data.
//!
//! [`layouts`] has those on layouts. While the lease is exclusive nothing here is used. Otherwise every read and write of an open file takes locks on the
//! bytes of the objects that it touches ([`DataLocks::cover`](crate::data_locks::DataLocks::cover)) and keeps them until somebody else wants them. Then what
//! they cover is written out and dropped ([`crate::data_locks::flush`]), here and from the kernel's page cache ([`crate::file::folios`]), and they are
//! given up. `docs/design/locks.md` has the whole protocol.
//!
//! # Invariants
//!
//! - Locks of one operation are taken in the order of the objects in the layout, after the operation's byte range
//!   ([`crate::file::ranges`]) and before any request for data; so no two operations of any clients wait for each other.
//! - A page that the kernel may let a program store to is under a write lock: data that is read into the page cache of a
//!   file that is open for writing here is locked for writing, and opening a file for writing gives up its read locks.
//! - What is on its way out waits for nobody who may wait for a lock: flushes have threads of their own, they take no byte
//!   range, and requests of the kernel that they depend on are urgent ([`crate::file::folios`]).

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
use nacre_env::clock::Instant;
use nacre_env::sync::RwLock;
use nacre_layout::Layout;
use nacre_lock::client::{ClientConfig, ClientStats, Effect};
use nacre_lock::{LockHandle, Lvb, Need, ResourceId};
use nacre_rpc::{MdsEndpoint, OssEndpoint};
use nacre_types::{Capability, Fid, ObjectNeed, StatusResult, TargetId, TargetKind};
use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

/// Threads that write out and drop. Each of them waits for OSTs and for requests of the kernel that run, never for another one.
const FLUSH_THREADS: usize = 16;
/// Threads that give up all that lies on the objects of a file. They wait for those before.
const LAYOUT_FLUSH_THREADS: usize = 8;
/// Threads that send what needs no answer.
const MESSAGE_THREADS: usize = 2;

/// Counters of one target's locks, for `ldlm.namespaces.*`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct LockCounts {
    /// Locks in any state.
    pub locks: usize,
    /// Locks that are cached and not used.
    pub unused: usize,
    /// Needs that a cached lock served.
    pub matched: u64,
    /// Requests, without repetitions.
    pub enqueued: u64,
    /// Callbacks that came.
    pub callbacks: u64,
    /// Locks given up.
    pub cancelled: u64,
}

/// Who uses and caches data under these locks. Called on threads that may wait.
pub(crate) trait Holder: Send + Sync {
    /// The way to an OST.
    fn ost(&self, index: u16) -> Option<&dyn OssEndpoint>;
    /// The way to an MDT.
    fn mdt(&self, index: u16) -> Option<&dyn MdsEndpoint>;
    /// See [`nacre_rpc::OssEvents::capability`].
    fn capability(&self, need: &ObjectNeed, refused: Option<&Capability>)
    -> StatusResult<Option<Capability>>;
    /// A lock on an object is given up: what was written under it goes out, what is cached under it goes away.
    fn flush_object(&self, home: &Home, object: Fid, need: &Need);
    /// Locks on objects of an OST are gone: what was cached under them goes.
    fn drop_lost(&self, ost_index: u16, lost: Vec<LostLock>);
    /// Gives up everything of a file that lies on the objects of this layout. Nobody reads or writes there any more.
    fn leave_objects(&self, fid: Fid, layout: Option<&Layout>);
    /// What is known of a file's objects is not true any more.
    fn forget_layout(&self, fid: Fid);
    /// Which locks there are on a file has changed.
    fn locks_changed(&self, node: u64);
    /// Size and time of an object as far as this client has not written them out.
    fn known_of(&self, node: u64, object: Fid) -> Lvb;
    /// Has `drop` reach an inode in the kernel, see [`crate::node::NodeTable::reaches_kernel`].
    fn reaches_kernel(&self, node: u64, since: Instant, drop: &dyn Fn(u64) -> bool) -> bool;
}

/// See the [module documentation](self). Exists before the client, because endpoints need somebody to call back.
pub struct Locks {
    spaces: RwLock<BTreeMap<u16, Arc<Namespace>>>,
    /// By MDT.
    inodes: RwLock<BTreeMap<u16, Arc<InodeSpace>>>,
    /// By MDT.
    layouts: RwLock<BTreeMap<u16, Arc<LayoutSpace>>>,
    /// Who caches on this client's word.
    pub(crate) kernel: OnceLock<Arc<dyn KernelCaches>>,
    holder: OnceLock<Weak<dyn Holder>>,
    me: Weak<Locks>,
    flushes: Tasks,
    layout_flushes: Tasks,
    messages: Tasks,
    clock: Clock,
}

impl Locks {
    /// No locks yet.
    pub(crate) fn new() -> Arc<Locks> {
        Arc::new_cyclic(|me| Locks {
            spaces: RwLock::default(),
            inodes: RwLock::default(),
            layouts: RwLock::default(),
            kernel: OnceLock::new(),
            holder: OnceLock::new(),
            me: me.clone(),
            flushes: Tasks::new(FLUSH_THREADS),
            layout_flushes: Tasks::new(LAYOUT_FLUSH_THREADS),
            messages: Tasks::new(MESSAGE_THREADS),
            clock: Clock::default(),
        })
    }

    /// The client is there.
    pub(crate) fn attach<H: Holder + 'static>(self: &Arc<Locks>, holder: &Arc<H>) {
        let holder: Weak<H> = Arc::downgrade(holder);
        let _ = self.holder.set(holder);
        self.clock.attach(self);
    }

    /// Ends threads.
    pub(crate) fn stop(&self) {
        self.clock.stop();
        self.inode_spaces().iter().for_each(|space| space.stop());
        self.layout_flushes.stop();
        self.flushes.stop();
        self.messages.stop();
    }

    fn holder(&self) -> Option<Arc<dyn Holder>> {
        self.holder.get()?.upgrade()
    }

    /// The locks at one OST.
    pub(crate) fn space(&self, ost_index: u16) -> Arc<Namespace> {
        if let Some(space) = self.spaces.read().get(&ost_index) {
            return space.clone();
        }
        let mut spaces = self.spaces.write();
        spaces.entry(ost_index).or_insert_with(|| Arc::new(Namespace::new(ost_index))).clone()
    }

    /// All of them.
    pub(crate) fn spaces(&self) -> Vec<Arc<Namespace>> {
        self.spaces.read().values().cloned().collect()
    }

    /// The locks at one MDT.
    pub(crate) fn inodes(self: &Arc<Locks>, mdt_index: u16) -> Arc<InodeSpace> {
        if let Some(space) = self.inodes.read().get(&mdt_index) {
            return space.clone();
        }
        let mut spaces = self.inodes.write();
        let new = || Arc::new(InodeSpace::new(mdt_index, Arc::downgrade(self)));
        spaces.entry(mdt_index).or_insert_with(new).clone()
    }

    /// The locks on layouts at one MDT.
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

    /// An MDT has restarted: locks on layouts, under which I/O goes on, are brought back through `endpoint`.
    ///
    /// # Errors
    /// What it answers.
    pub fn replay_layouts(self: &Arc<Locks>, mdt_index: u16, endpoint: &dyn MdsEndpoint) -> StatusResult<()> {
        self.layouts(mdt_index).replay(endpoint)
    }

    /// An MDT has dropped this client: what is known of layouts counts no more.
    pub fn lose_layouts(self: &Arc<Locks>, mdt_index: u16) {
        self.layouts(mdt_index).lose();
    }

    fn inode_spaces(&self) -> Vec<Arc<InodeSpace>> {
        self.inodes.read().values().cloned().collect()
    }

    /// What is cached of an MDT's inodes is to be forgotten: it has restarted, or dropped this client. Returns when it is.
    pub fn lose_inodes(self: &Arc<Locks>, mdt_index: u16) {
        self.inodes(mdt_index).lose();
    }

    /// Bounds of the cache of locks at a target.
    fn config(self: &Arc<Locks>, target: TargetId) -> ClientConfig {
        match target.kind {
            TargetKind::Mdt => self.inodes(target.index).config(),
            _ => self.space(target.index).config(),
        }
    }

    /// Most unused locks that are kept at a target; `ldlm.namespaces.*.lru_size`.
    pub fn lru_size(self: &Arc<Locks>, target: TargetId) -> usize {
        self.config(target).lru_size
    }

    /// Sets [`Locks::lru_size`]; what is over it is given up at once.
    pub fn set_lru_size(self: &Arc<Locks>, target: TargetId, count: usize) {
        match target.kind {
            TargetKind::Mdt => self.inodes(target.index).set_lru_size(count),
            _ => self.space(target.index).set_lru_size(self, count),
        }
    }

    /// Time after which an unused lock is given up; `ldlm.namespaces.*.lru_max_age`.
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

    /// Gives up all locks at a target that no operation uses right now (`lru_size=clear`).
    pub fn drop_unused(self: &Arc<Locks>, target: TargetId) {
        match target.kind {
            TargetKind::Mdt => self.inodes(target.index).drop_unused(),
            _ => self.space(target.index).drop_unused(self),
        }
    }

    /// Counters of one target.
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

    /// There is a new lock on data of a file.
    fn lock_came(&self, node: u64) {
        if let Some(holder) = self.holder() {
            holder.locks_changed(node);
        }
    }

    /// Has the kernel drop what it caches of a file, soon: the caller may be one that its requests wait for.
    pub(crate) fn forget_pages(&self, node: u64) {
        let Some(kernel) = self.kernel.get().cloned() else { return };
        self.flushes.submit(move || {
            kernel.drop_inode(node);
        });
    }

    /// Has something done by a thread that may wait.
    fn later(&self, space: &Arc<Namespace>, effect: Effect) {
        let (weak, space) = (self.me.clone(), space.clone());
        let pool = if matches!(effect, Effect::Flush { .. }) { &self.flushes } else { &self.messages };
        let done = pool.submit(move || {
            let Some(locks) = weak.upgrade() else { return };
            let Some(holder) = locks.holder() else { return };
            match effect {
                Effect::Flush { handle, resource, need, .. } => {
                    if let Some(home) = space.home(&resource) {
                        holder.flush_object(&home, resource.fid(), &need);
                    }
                    space.on_flushed(&locks, handle, &resource);
                }
                // An eviction drops what was cached by itself.
                Effect::Discard { .. } => {}
                other => {
                    if let Some(endpoint) = holder.ost(space.ost_index) {
                        space.send(&locks, endpoint, other);
                    }
                }
            }
        });
        if !done {
            log::debug!("a lock is not given up: the client ends");
        }
    }

    /// An OST asks what this client knows of an object.
    fn glimpsed(
        &self,
        space: &Arc<Namespace>,
        glimpse: u64,
        handle: LockHandle,
        resource: Option<ResourceId>,
    ) {
        let (weak, space) = (self.holder.get().cloned(), space.clone());
        self.messages.submit(move || {
            let Some(holder) = weak.and_then(|weak| weak.upgrade()) else { return };
            let lvb = resource.map(|resource| {
                space
                    .home(&resource)
                    .map_or(Lvb::default(), |home| holder.known_of(home.node, resource.fid()))
            });
            if let Some(endpoint) = holder.ost(space.ost_index) {
                space::answer_glimpse(endpoint, glimpse, handle, lvb);
            }
        });
    }
}
