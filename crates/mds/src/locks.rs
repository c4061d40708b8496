//! Locks on inodes and on names: an operation holds those of everything it changes from its first read to its
//! answer.
//!
//! Inodes share a fixed table of *latches* by hash. A thread holds a latch for the tens of microseconds that
//! it takes to read an inode, decide and commit. Latches are taken in the order of the table. The inode that
//! a name refers to is known only under the latch of its directory, so an operation that needs the child too
//! [adds](Locked::add) it, and if that would break the order and the latch is busy, restarts with both.
//!
//! An operation that takes longer, as it waits for other MDTs or for clients, [keeps](LockTable::keep)
//! entries under the latches: an inode as a whole, or one name of a directory. An operation that finds under
//! the latch that another one keeps what it needs releases the latch and waits for its turn. So operations on
//! other names of the directory continue, and the directory itself does not change while an operation keeps
//! one of its names.
//!
//! Tickets give turns one order for the whole table: an operation that needs several entries requests all of
//! them at once, and waits only for operations with earlier tickets. No thread waits while it holds a latch.
//! So there is no deadlock here, and no operation starves.

use nacre_env::activity::{Cause, OperationId, blocking_for, current};
use nacre_env::sync::{Condvar, Latch, Mutex};
use nacre_types::{Fid, Status, StatusResult};
use std::cell::UnsafeCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

/// Number of latches in the table; a power of two. Collisions only cost waiting. Estimate: many times the
/// threads of a server.
const LOCKS: usize = 2048;
/// Number of gates, at which threads wait for the release of kept entries; a power of two.
const GATES: usize = 64;
/// Most latches that one operation on this MDT holds: rename has two directories, the moved inode and the one
/// it replaces.
const HELD_MAX: usize = 16;

/// Time in which operations that wait for no other server or client have ended: they take tens of
/// microseconds.
const SHORT: Duration = Duration::from_micros(200);
/// Interval of checks for an interrupt while a thread waits for its turn.
const POLL: Duration = Duration::from_millis(50);

/// An inode or name that an operation needs.
#[derive(Clone, Copy, Debug)]
pub enum Want<'a> {
    /// An inode as a whole: it may change, or be removed.
    Whole(Fid),
    /// An inode without changes of its own. Names in it may change.
    Still(Fid),
    /// A name in a directory that does not change otherwise.
    Name(Fid, &'a [u8]),
}

impl Want<'_> {
    /// Returns the FID of the inode.
    pub fn fid(&self) -> &Fid {
        match self {
            Want::Whole(fid) | Want::Still(fid) | Want::Name(fid, _) => fid,
        }
    }

    /// Returns true if two of different operations exclude each other.
    fn excludes(&self, other: &Want<'_>) -> bool {
        self.fid() == other.fid()
            && match (self, other) {
                (Want::Whole(_), _) | (_, Want::Whole(_)) => true,
                (Want::Name(_, name), Want::Name(_, other)) => name == other,
                _ => false,
            }
    }

    /// Returns true if an operation that keeps `self` may do what needs `other`.
    fn covers(&self, other: &Want<'_>) -> bool {
        self.fid() == other.fid()
            && match (self, other) {
                (Want::Whole(_), _) | (_, Want::Still(_)) => true,
                (Want::Name(_, name), Want::Name(_, other)) => name == other,
                _ => false,
            }
    }
}

/// An entry that an operation keeps, or waits for.
struct Entry {
    /// Ticket: its order among all operations.
    ticket: u64,
    /// The operation, while its thread is in it.
    holder: OperationId,
    fid: Fid,
    /// Name in the directory; `None` for the inode as a whole.
    name: Option<Box<[u8]>>,
    reach: Reach,
}

/// Scope of an operation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Reach {
    /// Local: on this MDT alone; nothing is visible before its commit.
    Here,
    /// Coordinator: on several MDTs, and this one decides. It is committed with the commit here, but may be
    /// incomplete elsewhere as long as any of its entries is kept.
    Several,
    /// Participant: on several MDTs, and another one decides; what is kept here may be committed there.
    Part,
}

impl Entry {
    fn want(&self) -> Want<'_> {
        match &self.name {
            Some(name) => Want::Name(self.fid, name),
            None => Want::Whole(self.fid),
        }
    }
}

/// One latch on a cache line of its own, to avoid false sharing, with the kept entries of its inodes. A raw
/// lock, since the entries are read and changed under it.
#[repr(align(64))]
struct Slot {
    latch: Latch,
    /// Operation that took the latch last, for reports of long waits.
    holder: AtomicU64,
    /// Entries, accessed only under the latch.
    kept: UnsafeCell<Vec<Entry>>,
}

// SAFETY: only the holder of the latch accesses `kept`.
unsafe impl Sync for Slot {}

impl Slot {
    /// Waits for the latch. Its holder may be waiting for a client, whose answer another thread has to
    /// receive: so a long wait is declared as blocking.
    fn wait(&self, operation: OperationId) {
        if !self.latch.try_lock_for(SHORT) {
            let holder = OperationId(self.holder.load(Ordering::Relaxed));
            blocking_for(Cause::Latch { holder }, || self.latch.lock());
        }
        self.holder.store(operation.0, Ordering::Relaxed);
    }
}

/// Counts releases, so that a thread that checks and then waits misses none.
#[derive(Default)]
struct Gate {
    passed: Mutex<u64>,
    changed: Condvar,
}

/// See the [module documentation](self).
pub struct LockTable {
    slots: Box<[Slot]>,
    gates: Box<[Gate]>,
    /// The next ticket.
    next: AtomicU64,
    /// Number of distributed transactions that keep entries, or wait for them.
    over_several: AtomicUsize,
    /// Number of threads that wait for their turn.
    waiting: AtomicUsize,
    stopped: AtomicBool,
}

/// Latches that a thread holds; released when dropped.
pub struct Locked<'a> {
    table: &'a LockTable,
    held: [usize; HELD_MAX],
    len: usize,
    /// Ticket of this thread, if it had to wait, or has one.
    ticket: Option<u64>,
    /// Released after the latches.
    _kept: Option<LongLock>,
}

/// Latches of any number of inodes; released when dropped.
pub struct Latched<'a> {
    table: &'a LockTable,
    /// Slots in the order of the table.
    held: Vec<usize>,
}

/// Entries of an operation that needs no thread while it waits for the decision of another MDT, or for
/// clients. Released when dropped.
pub struct LongLock {
    table: Arc<LockTable>,
    ticket: u64,
    slots: Vec<usize>,
    reach: Reach,
}

impl LongLock {
    /// Returns its ticket.
    pub fn ticket(&self) -> u64 {
        self.ticket
    }
}

impl Drop for LongLock {
    fn drop(&mut self) {
        for &slot in &self.slots {
            let mut latched = self.table.latch_slots(vec![slot]);
            latched.entries(slot).retain(|entry| entry.ticket != self.ticket);
        }
        if self.reach != Reach::Here {
            self.table.over_several.fetch_sub(1, Ordering::SeqCst);
        }
        for &slot in &self.slots {
            self.table.open_gate(slot);
        }
    }
}

impl Drop for Locked<'_> {
    fn drop(&mut self) {
        // SAFETY: callers of `push` locked each, and only this unlocks it.
        self.held[..self.len].iter().for_each(|&slot| unsafe { self.table.slots[slot].latch.unlock() });
    }
}

impl Drop for Latched<'_> {
    fn drop(&mut self) {
        // SAFETY: each was locked when this was built, and only this unlocks it.
        self.held.iter().for_each(|&slot| unsafe { self.table.slots[slot].latch.unlock() });
    }
}

impl Latched<'_> {
    /// Returns the kept entries of a slot whose latch is held.
    fn entries(&mut self, slot: usize) -> &mut Vec<Entry> {
        assert!(self.held.binary_search(&slot).is_ok(), "the latch is held");
        // SAFETY: this value alone holds the latch, and is borrowed for the lifetime of the result.
        unsafe { &mut *self.table.slots[slot].kept.get() }
    }
}

fn slot_of(fid: &Fid) -> usize {
    let mixed =
        (fid.seq ^ (u64::from(fid.oid) << 32) ^ u64::from(fid.oid)).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    (mixed >> 40) as usize & (LOCKS - 1)
}

/// Returns an error if the request of this thread was interrupted.
pub fn unless_interrupted() -> StatusResult<()> {
    if nacre_env::interrupted() { Err(Status::EINTR) } else { Ok(()) }
}

impl LockTable {
    /// Builds a table with nothing locked.
    pub fn new() -> LockTable {
        let slot =
            || Slot { latch: Latch::new(), holder: AtomicU64::new(0), kept: UnsafeCell::new(Vec::new()) };
        LockTable {
            slots: (0..LOCKS).map(|_| slot()).collect(),
            gates: (0..GATES).map(|_| Gate::default()).collect(),
            next: AtomicU64::new(1),
            over_several: AtomicUsize::new(0),
            waiting: AtomicUsize::new(0),
            stopped: AtomicBool::new(false),
        }
    }

    /// Waits while a distributed transaction keeps `of`, since it may be half applied.
    ///
    /// # Errors
    /// As for [`LockTable::lock`].
    pub fn await_decision(self: &Arc<Self>, of: &Want<'_>) -> StatusResult<()> {
        if self.over_several.load(Ordering::SeqCst) == 0 {
            return Ok(());
        }
        let locked = self.latch(&[*of]);
        let entries = locked.entries(slot_of(of.fid()));
        if !entries.iter().any(|entry| entry.reach != Reach::Here && entry.want().excludes(of)) {
            return Ok(());
        }
        drop(locked);
        self.keep(&[*of], Reach::Here, &unless_interrupted).map(drop)
    }

    /// Waits for the thread that is changing an inode. After this, the record in memory has every commit that
    /// a reader has seen in the store.
    pub fn await_commit(&self, fid: &Fid) {
        let latch = &self.slots[slot_of(fid)].latch;
        if !latch.try_lock() {
            self.waiting.fetch_add(1, Ordering::Relaxed);
            self.slots[slot_of(fid)].wait(current());
            self.waiting.fetch_sub(1, Ordering::Relaxed);
        }
        // SAFETY: the latch was locked above.
        unsafe { latch.unlock() };
    }

    /// Ends all waits for a turn.
    pub fn stop(&self) {
        self.stopped.store(true, Ordering::SeqCst);
        for slot in 0..GATES {
            self.open_gate(slot);
        }
    }

    fn gate_of(&self, slot: usize) -> &Gate {
        &self.gates[slot & (GATES - 1)]
    }

    fn open_gate(&self, slot: usize) {
        let gate = self.gate_of(slot);
        *gate.passed.lock() += 1;
        gate.changed.notify_all();
    }

    fn latch(&self, wants: &[Want<'_>]) -> Locked<'_> {
        assert!(wants.len() <= HELD_MAX, "an operation wants {} inodes", wants.len());
        let mut wanted = [usize::MAX; HELD_MAX];
        for (slot, want) in wanted.iter_mut().zip(wants) {
            *slot = slot_of(want.fid());
        }
        let wanted = &mut wanted[..wants.len()];
        wanted.sort_unstable();
        let mut locked = Locked { table: self, held: [0; HELD_MAX], len: 0, ticket: None, _kept: None };
        let operation = current();
        for &slot in &*wanted {
            if !locked.holds(slot) {
                self.slots[slot].wait(operation);
                locked.push(slot);
            }
        }
        locked
    }

    fn latch_slots(&self, mut held: Vec<usize>) -> Latched<'_> {
        held.sort_unstable();
        held.dedup();
        let operation = current();
        held.iter().for_each(|&slot| self.slots[slot].wait(operation));
        Latched { table: self, held }
    }

    /// Latches inodes, which excludes all other operations from them while no thread waits. Entries kept of
    /// them are ignored.
    pub fn latch_all<'a>(&self, fids: impl Iterator<Item = &'a Fid>) -> Latched<'_> {
        self.latch_slots(fids.map(slot_of).collect())
    }

    /// Locks what an operation needs, once it is its turn.
    ///
    /// # Errors
    /// `EINTR`, `ESHUTDOWN`, both only where other operations keep some of it.
    ///
    /// # Panics
    /// If `wants` has more elements than an operation may need.
    pub fn lock(self: &Arc<Self>, wants: &[Want<'_>]) -> StatusResult<Locked<'_>> {
        let locked = self.latch(wants);
        if wants.iter().all(|want| locked.may(want)) {
            return Ok(locked);
        }
        drop(locked);
        let kept = self.keep(wants, Reach::Here, &unless_interrupted)?;
        let mut locked = self.latch(wants);
        locked.ticket = Some(kept.ticket);
        locked._kept = Some(kept);
        Ok(locked)
    }

    /// Locks one element if no operation keeps it and its latch is free within a short time; never waits for
    /// a turn.
    pub fn try_lock(&self, want: &Want<'_>) -> Option<Locked<'_>> {
        let slot = slot_of(want.fid());
        if !self.slots[slot].latch.try_lock_for(SHORT) {
            return None;
        }
        let mut locked = Locked { table: self, held: [0; HELD_MAX], len: 0, ticket: None, _kept: None };
        locked.push(slot);
        locked.may(want).then_some(locked)
    }

    /// Locks like [`LockTable::lock`] for an operation that keeps some of it already. `None` if other
    /// operations keep the rest: then the caller has to request everything at once.
    pub fn lock_under(&self, wants: &[Want<'_>], kept: &LongLock) -> Option<Locked<'_>> {
        let mut locked = self.latch(wants);
        locked.ticket = Some(kept.ticket);
        wants.iter().all(|want| locked.may(want)).then_some(locked)
    }

    /// Keeps all of this, once it is its turn, until the result is dropped. Inodes that others may read
    /// meanwhile are not kept. While it waits, it calls `goes_on` repeatedly.
    ///
    /// # Errors
    /// `ESHUTDOWN`; errors of `goes_on`. Then nothing is kept.
    pub fn keep(
        self: &Arc<Self>,
        wants: &[Want<'_>],
        reach: Reach,
        goes_on: &dyn Fn() -> StatusResult<()>,
    ) -> StatusResult<LongLock> {
        let kept = self.queue(wants, reach);
        self.waiting.fetch_add(1, Ordering::Relaxed);
        let outcome = self.await_ticket(wants, &kept, goes_on);
        self.waiting.fetch_sub(1, Ordering::Relaxed);
        outcome.map(|()| kept)
    }

    /// Returns the number of threads that wait for their turn.
    pub fn waiting(&self) -> usize {
        self.waiting.load(Ordering::Relaxed)
    }

    fn await_ticket(
        &self,
        wants: &[Want<'_>],
        kept: &LongLock,
        goes_on: &dyn Fn() -> StatusResult<()>,
    ) -> StatusResult<()> {
        let mut timeout = SHORT;
        loop {
            let mut latched = self.latch_slots(kept.slots.clone());
            let in_the_way = wants.iter().find_map(|want| {
                let mut entries = latched.entries(slot_of(want.fid())).iter();
                let is_earlier = |entry: &&Entry| entry.ticket < kept.ticket && entry.want().excludes(want);
                let found = entries.find(is_earlier)?;
                Some(Cause::Turn { fid: found.fid, holder: found.holder, ticket: found.ticket })
            });
            let Some(cause @ Cause::Turn { fid, .. }) = in_the_way else { return Ok(()) };
            let slot = slot_of(&fid);
            // A release changes the counter afterwards.
            let seen = *self.gate_of(slot).passed.lock();
            drop(latched);
            goes_on()?;
            if self.stopped.load(Ordering::SeqCst) {
                return Err(Status::ESHUTDOWN);
            }
            self.pass_gate(slot, seen, timeout, cause);
            timeout = POLL;
        }
    }

    fn pass_gate(&self, slot: usize, seen: u64, timeout: Duration, cause: Cause) {
        let gate = self.gate_of(slot);
        let mut passed = gate.passed.lock();
        if *passed != seen {
            return;
        }
        if timeout <= SHORT {
            gate.changed.wait_for(&mut passed, timeout);
        } else {
            blocking_for(cause, || gate.changed.wait_for(&mut passed, timeout));
        }
    }

    /// Takes one ticket for everything at the same moment.
    fn queue(self: &Arc<Self>, wants: &[Want<'_>], reach: Reach) -> LongLock {
        let mut latched = self.latch_all(wants.iter().map(Want::fid));
        let ticket = self.next.fetch_add(1, Ordering::Relaxed);
        let holder = current();
        for want in wants {
            let name = match want {
                Want::Whole(_) => None,
                Want::Name(_, name) => Some(Box::from(*name)),
                Want::Still(_) => continue,
            };
            latched.entries(slot_of(want.fid())).push(Entry {
                ticket,
                holder,
                fid: *want.fid(),
                name,
                reach,
            });
        }
        if reach != Reach::Here {
            self.over_several.fetch_add(1, Ordering::SeqCst);
        }
        let slots = latched.held.clone();
        drop(latched);
        LongLock { table: self.clone(), ticket, slots, reach }
    }

    /// Restores the entries of a participant from before a restart, when no other operation has started.
    pub fn keep_again(self: &Arc<Self>, wants: &[Want<'_>]) -> LongLock {
        self.queue(wants, Reach::Part)
    }

    /// Returns the tickets of participants in distributed transactions that keep names of a directory.
    pub fn parts_on_names(&self, directory: &Fid) -> Vec<u64> {
        if self.over_several.load(Ordering::SeqCst) == 0 {
            return Vec::new();
        }
        let mut latched = self.latch_all(std::iter::once(directory));
        let entries = latched.entries(slot_of(directory)).iter();
        let is_one =
            |entry: &&Entry| entry.fid == *directory && entry.reach == Reach::Part && entry.name.is_some();
        let mut turns: Vec<u64> = entries.filter(is_one).map(|entry| entry.ticket).collect();
        turns.dedup();
        turns
    }

    /// Waits for a short time, or until an entry of a directory is released; returns true if the operation
    /// with this ticket keeps none of its entries.
    ///
    /// # Errors
    /// `EINTR`, `ESHUTDOWN`.
    pub fn rest_for(&self, directory: &Fid, ticket: u64) -> StatusResult<bool> {
        let slot = slot_of(directory);
        let seen = *self.gate_of(slot).passed.lock();
        if !self.parts_on_names(directory).contains(&ticket) {
            return Ok(true);
        }
        unless_interrupted()?;
        if self.stopped.load(Ordering::SeqCst) {
            return Err(Status::ESHUTDOWN);
        }
        self.waiting.fetch_add(1, Ordering::Relaxed);
        let cause = Cause::Turn { fid: *directory, holder: OperationId::NONE, ticket };
        self.pass_gate(slot, seen, POLL, cause);
        self.waiting.fetch_sub(1, Ordering::Relaxed);
        Ok(false)
    }
}

impl Locked<'_> {
    fn holds(&self, slot: usize) -> bool {
        self.held[..self.len].contains(&slot)
    }

    /// Records that `slot` was locked.
    fn push(&mut self, slot: usize) {
        self.held[self.len] = slot;
        self.len += 1;
    }

    /// Returns the kept entries of a slot whose latch is held.
    fn entries(&self, slot: usize) -> &[Entry] {
        debug_assert!(self.holds(slot));
        // SAFETY: the latch is held, so no other thread changes it.
        unsafe { &*self.table.slots[slot].kept.get() }
    }

    /// Returns true if no other operation keeps `want` of a latched inode, or has waited longer for it.
    fn may(&self, want: &Want<'_>) -> bool {
        let entries = self.entries(slot_of(want.fid()));
        if entries.is_empty() {
            return true;
        }
        let is_own = |entry: &&Entry| Some(entry.ticket) == self.ticket;
        let since = entries.iter().filter(is_own).find(|entry| entry.want().covers(want));
        let since = since.map_or(u64::MAX, |entry| entry.ticket);
        let others = entries.iter().filter(|entry| Some(entry.ticket) != self.ticket && entry.ticket < since);
        !others.into_iter().any(|entry| entry.want().excludes(want))
    }

    /// Returns true if an unfinished operation keeps a latched inode, or a name in it: the inode is about to
    /// change.
    pub fn is_locked_long(&self, fid: &Fid) -> bool {
        self.entries(slot_of(fid)).iter().any(|entry| entry.fid == *fid && Some(entry.ticket) != self.ticket)
    }

    /// Locks one more inode. Returns `false` if that could deadlock, or the inode is kept: the caller then
    /// drops everything, locks all together and reads again.
    pub fn add(&mut self, want: &Want<'_>) -> bool {
        let slot = slot_of(want.fid());
        if !self.holds(slot) {
            let in_order = self.held[..self.len].iter().all(|held| *held < slot);
            let lock = &self.table.slots[slot];
            if in_order {
                lock.wait(current());
            } else if !lock.latch.try_lock() {
                return false;
            }
            self.push(slot);
        }
        self.may(want)
    }
}

#[cfg(test)]
mod tests;
