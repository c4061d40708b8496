//! Return of emptied files to the free slots.
//!
//! A destroyed object's file is emptied at once, so that its space is free when the call returns. The slot
//! may be reused only when the emptying is durable (and the removal of the record too), or a power cut could
//! show old bytes under a new owner. One thread ensures that in the background, for many slots at a time. The
//! same thread creates files in advance when few are free.

use super::local::SlotFile;
use super::slots::Slots;
use super::space::Reserve;
use crate::meta::MetaStore;
use nacre_env::clock::Instant;
use nacre_env::sync::{Condvar, Mutex};
use nacre_env::thread::JoinHandle;
use rustix::fs::OFlags;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

/// Time for which freed slots wait for more, so that one flush of the disk serves many.
const GATHER: Duration = Duration::from_millis(100);
/// Number of freed slots at which the wait ends.
const GATHER_MAX: usize = 1024;
/// Number of files up to which each is flushed alone; for more, the whole file system is flushed.
const SINGLE_MAX: usize = 8;
/// Files that a store creates in advance after opening: each costs up to a millisecond of CPU time on some
/// file systems, which should not delay the first use of a new store.
const SPARE_FIRST: u32 = 32;

#[derive(Default)]
struct Queue {
    pending: Vec<u32>,
    /// Slots that the thread is processing.
    in_work: usize,
    /// A caller waits: do not gather.
    is_urgent: bool,
    /// Few free files are left: create more.
    wants_spare: bool,
    is_stopping: bool,
}

enum Work {
    Release(Vec<u32>),
    MakeSpare,
}

/// Returns emptied files to the free slots.
pub struct Releaser {
    slots: Arc<Slots>,
    index: Arc<MetaStore>,
    reserve: Arc<Reserve>,
    queue: Mutex<Queue>,
    changed: Condvar,
    /// Maximum number of free files that are created in advance.
    spare_files: u32,
    /// Current number of free files to create in advance: grows each time that half of them were taken.
    spare_now: AtomicU32,
    /// Slots lost until the next start because their emptying failed.
    lost: AtomicU64,
}

impl Releaser {
    pub(super) fn new(
        slots: Arc<Slots>,
        index: Arc<MetaStore>,
        reserve: Arc<Reserve>,
        spare_files: u32,
    ) -> Releaser {
        Releaser {
            slots,
            index,
            reserve,
            queue: Mutex::new(Queue { wants_spare: spare_files > 0, ..Queue::default() }),
            spare_files,
            spare_now: AtomicU32::new(spare_files.min(SPARE_FIRST)),
            changed: Condvar::new(),
            lost: AtomicU64::new(0),
        }
    }

    pub(super) fn slots(&self) -> &Slots {
        &self.slots
    }

    /// Starts the thread.
    pub(super) fn start(self: &Arc<Self>) -> std::io::Result<JoinHandle<()>> {
        let releaser = self.clone();
        nacre_env::thread::Builder::new().name("ost-release".into()).spawn(move || releaser.run())
    }

    /// Empties the file of a slot whose owner was destroyed, and queues it to be made durable.
    pub(super) fn release(&self, slot: u32, file: &SlotFile) {
        if let Err(error) = nacre_env::blocking(|| file.empty()) {
            self.lose(slot, error);
            return;
        }
        self.reserve.look_again();
        let mut queue = self.queue.lock();
        queue.pending.push(slot);
        if queue.pending.len() == 1 || queue.pending.len() == GATHER_MAX {
            self.changed.notify_all();
        }
    }

    /// Withdraws a slot that cannot be emptied: it is not reused before the next start, which tries again.
    pub(super) fn lose(&self, slot: u32, error: rustix::io::Errno) {
        self.lost.fetch_add(1, Ordering::Relaxed);
        log::error!("cannot empty {}: {error}; the next start tries again", self.slots.path(slot).display());
    }

    /// Notes that a slot was taken and `free_left` remain: creates more if these are few.
    pub(super) fn note_taken(&self, free_left: u32) {
        let now = self.spare_now.load(Ordering::Relaxed);
        // Only one of the calls on the way down hits the mark, so that few touch the lock.
        if now > 0 && free_left == now / 2 {
            self.spare_now.store(now.saturating_mul(2).min(self.spare_files), Ordering::Relaxed);
            self.queue.lock().wants_spare = true;
            self.changed.notify_all();
        }
    }

    /// Waits until every slot released before the call is free.
    pub(super) fn drain(&self) {
        let mut queue = self.queue.lock();
        while !queue.pending.is_empty() || queue.in_work > 0 {
            queue.is_urgent = true;
            self.changed.notify_all();
            self.changed.wait(&mut queue);
        }
    }

    /// Waits until the space of all objects destroyed so far is reusable, in every state that a power cut can
    /// leave. False if the deadline passed before. Space that only the next start can free is not waited for.
    pub fn drain_until(&self, deadline: Instant) -> bool {
        let mut queue = self.queue.lock();
        while !queue.pending.is_empty() || queue.in_work > 0 {
            queue.is_urgent = true;
            self.changed.notify_all();
            if self.changed.wait_until(&mut queue, deadline).timed_out() {
                return queue.pending.is_empty() && queue.in_work == 0;
            }
        }
        true
    }

    /// Stops the thread when the queue is empty.
    pub(super) fn stop(&self) {
        self.queue.lock().is_stopping = true;
        self.changed.notify_all();
    }

    /// Returns the number of slots that are not free yet, and of those lost until the next start.
    pub(super) fn pending(&self) -> u64 {
        let queue = self.queue.lock();
        (queue.pending.len() + queue.in_work) as u64 + self.lost()
    }

    /// Returns the number of slots whose emptying failed.
    pub(super) fn lost(&self) -> u64 {
        self.lost.load(Ordering::Relaxed)
    }

    fn run(&self) {
        while let Some(work) = self.next() {
            match work {
                Work::Release(slots) => self.finish(&slots),
                Work::MakeSpare => self.make_spare(),
            }
        }
    }

    fn finish(&self, slots: &[u32]) {
        match self.persist(slots) {
            Ok(()) => self.slots.give_back(slots),
            Err(error) => {
                self.lost.fetch_add(slots.len() as u64, Ordering::Relaxed);
                log::error!(
                    "cannot make {} freed files durable: {error}; the next start tries again",
                    slots.len()
                );
            }
        }
        self.queue.lock().in_work = 0;
        self.changed.notify_all();
    }

    fn make_spare(&self) {
        let is_enough = || {
            let queue = self.queue.lock();
            queue.is_stopping || queue.is_urgent
        };
        if let Err(error) = self.slots.make_spare(self.spare_now.load(Ordering::Relaxed), is_enough) {
            // New objects create their own, and report to their clients if they cannot.
            log::info!("no files could be made in advance: {error}");
        }
    }

    fn next(&self) -> Option<Work> {
        let mut queue = self.queue.lock();
        while queue.pending.is_empty() {
            queue.is_urgent = false;
            if queue.is_stopping {
                return None;
            }
            if std::mem::take(&mut queue.wants_spare) {
                return Some(Work::MakeSpare);
            }
            self.changed.wait(&mut queue);
        }
        let until = Instant::now() + GATHER;
        while queue.pending.len() < GATHER_MAX && !queue.is_urgent && !queue.is_stopping && !queue.wants_spare
        {
            if self.changed.wait_until(&mut queue, until).timed_out() {
                break;
            }
        }
        let slots = std::mem::take(&mut queue.pending);
        queue.in_work = slots.len();
        Some(Work::Release(slots))
    }

    fn persist(&self, slots: &[u32]) -> crate::object::Result<()> {
        // The removal of the records first: a slot must have no owner in any state that a power cut can
        // leave.
        self.index.sync(self.index.last_transno())?;
        let fail = |error: rustix::io::Errno| crate::object::ObjectError::Path {
            action: "flush freed files below",
            path: self.slots.root().to_owned(),
            source: error.into(),
        };
        if slots.len() > SINGLE_MAX {
            return self.slots.tree().sync_all().map_err(fail);
        }
        for &slot in slots {
            let file = self.slots.open_file(slot, OFlags::empty()).map_err(fail)?;
            file.sync().map_err(fail)?;
            // The last owner may never have been synced, and then the name is not durable either.
            self.slots.sync_name(slot).map_err(fail)?;
        }
        Ok(())
    }
}
