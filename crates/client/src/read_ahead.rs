//! Read-ahead of the client: data that a reader will probably request next is fetched into memory before.
//!
//! [`reader`] decides what to fetch, [`blocks`] keeps it, and this module moves data and keeps both valid. A
//! fetch runs on the client's own threads ([`crate::tasks`]); the reader continues as soon as its own bytes
//! have arrived.
//!
//! # Invariants
//!
//! - A block is served only under the exclusive lease, or the locks, under which it was created
//!   ([`ReadAhead::may_cache`]).
//! - A writer removes its range from the list after it has written and before it releases the range. So a
//!   block that is found under a reader's range holds everything written there before, whenever its fetch
//!   ran.
//! - A block enters the list before dirty data of its range is flushed, and is fetched after that: a write in
//!   between removes it again.
//! - Fetches hold no byte range, so that they cannot delay a writer; their failures are not reported, the
//!   reader tries on its own.
//! - Blocks of all files together take at most `max_read_ahead_mb`, fetched or not.
//!
//! # Where it is used
//!
//! Only for objects in other processes: in the client's own process a read is a function call, and the cost
//! is that of the disk, from which the server reads ahead when a read carries the hint (`ahead`).

pub(crate) mod blocks;
pub(crate) mod reader;
pub(crate) mod stats;

use crate::base::Base;
use crate::config::ClientConfig;
use crate::data_locks::DataLocks;
use crate::file::{FileInner, FileState, OpenFile};
use crate::lease::Lease;
use crate::objects::Objects;
use crate::objects::transfer::ReadHow;
use crate::read_ahead::blocks::{Block, Memory, Origin, Served};
use crate::read_ahead::reader::{Limits, Pattern, Plan};
use crate::read_ahead::stats::{AheadStats, Counter};
use crate::requests::Requests;
use crate::tasks::Tasks;
use crate::tunables::Tunables;
use crate::write_back::WriteBack;
use nacre_env::sync::Mutex;
use nacre_layout::Layout;
use nacre_lock::Mode;
use nacre_types::{Status, StatusResult};
use nacre_wire::lock::IoLock;
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};

/// Bytes of one fetch: the largest transfer of one request.
const RPC_BYTES: u64 = 1 << 20;
/// Blocks that one thread requests at once, at most; they count as fetched when the last one is.
const BATCH: usize = 8;
/// Distance behind a sequential reader from which on data will not be read any more: pieces of one read
/// arrive in any order.
const PASSED_BYTES: u64 = 4 << 20;

#[derive(Default)]
struct Queue {
    fetches: VecDeque<Fetch>,
    /// Threads that are fetching.
    active: u32,
}

/// Blocks of one file to be fetched together.
struct Fetch {
    layout: Arc<Layout>,
    blocks: Vec<Arc<Block>>,
    /// Bytes beyond the fetch that the OSTs are to have ready, see
    /// [`crate::ClientConfig::read_ahead_bytes_max`].
    hint: u32,
    /// Lock that excludes other clients.
    lock: IoLock,
}

/// Marks data that is valid under the locks of an era of the file ([`FileState::lock_era`]), rather than
/// under a lease.
const UNDER_LOCKS: u64 = 1 << 63;

/// Returns the lock that the fetch of a block names, from the lease or the locks under which the block will
/// be valid.
fn lock_under(lease: u64) -> IoLock {
    if lease & UNDER_LOCKS == 0 { IoLock::Lease } else { IoLock::Held }
}

/// Read-ahead of all files of a client.
pub struct ReadAhead {
    memory: Arc<Memory>,
    queue: Mutex<Queue>,
    requests: Arc<Requests>,
    objects: Arc<Objects>,
    write_back: Arc<WriteBack>,
    locks: Arc<DataLocks>,
    lease: Arc<Lease>,
    config: Arc<ClientConfig>,
    tunables: Arc<Tunables>,
    tasks: Arc<Tasks>,
    /// Handle to this, for fetches on other threads than the reader's.
    me: Weak<ReadAhead>,
}

impl ReadAhead {
    pub(crate) fn new(base: &Base, write_back: Arc<WriteBack>, locks: Arc<DataLocks>) -> Arc<ReadAhead> {
        Arc::new_cyclic(|me| ReadAhead {
            memory: base.memory.clone(),
            queue: Mutex::default(),
            requests: base.requests.clone(),
            objects: base.objects.clone(),
            write_back,
            locks,
            lease: base.lease.clone(),
            config: base.config.clone(),
            tunables: base.tunables.clone(),
            tasks: base.tasks.clone(),
            me: me.clone(),
        })
    }

    /// Returns a number that stands for the lease or the locks under which data of a file may be cached, if
    /// it may: no other client changes it, and its size is known. The only place that decides this.
    pub(crate) fn may_cache(&self, file: &FileState, inner: &FileInner) -> Option<u64> {
        let lease = self.lease.number();
        if lease != 0 {
            return inner.size.is_of(self.lease.number()).then_some(lease);
        }
        let era = file.lock_era.load(Ordering::Acquire);
        (inner.size.is_floor(era)).then_some(UNDER_LOCKS | era)
    }

    /// Returns the counters of read-ahead.
    pub fn read_ahead_stats(&self) -> &AheadStats {
        &self.memory.stats
    }

    /// Returns [`ReadAhead::read_ahead_stats`] as `lctl` shows them.
    pub fn read_ahead_report(&self) -> String {
        self.memory.stats.text(nacre_params::stats::now_ns())
    }

    /// Returns the bytes read ahead, in flight or waiting for their reader.
    pub fn read_ahead_bytes(&self) -> u64 {
        self.memory.used()
    }

    /// Records a read that is about to begin, and starts to fetch the data that will follow. Called without
    /// the range.
    pub(crate) fn plan_ahead(&self, open: &OpenFile, offset: u64, len: u64) {
        let tunables = &self.tunables;
        if len == 0 || tunables.max_read_ahead_async_active() == 0 || tunables.read_ahead_bytes() == 0 {
            return;
        }
        let stats = self.read_ahead_stats();
        let (size, layout, lease) = {
            let inner = open.file.lock();
            let Some(lease) = self.may_cache(&open.file, &inner) else { return };
            if inner.size.bytes == 0 {
                stats.add(Counter::ZeroLength);
                return;
            }
            // A layout that lacks objects before the end is outdated.
            let knows = |layout: &&Arc<Layout>| layout.is_instantiated(0, inner.size.bytes);
            let Some(layout) = inner.layout.as_ref().filter(knows).cloned() else { return };
            (inner.size.bytes, layout, lease)
        };
        if offset >= size || !self.requests.is_far(&layout) {
            return;
        }
        let limits = Limits {
            rpc_bytes: RPC_BYTES,
            window_bytes: tunables.window_bytes(),
            whole_bytes: tunables.whole_bytes(),
        };
        let plan = open.reader.lock().on_read(offset, len, size, &limits);
        if plan.pattern == Pattern::Random {
            stats.add(Counter::NotConsecutive);
        } else if limits.window_bytes == 0 {
            stats.add(Counter::ZeroWindow);
        }
        if plan.reset {
            open.file.lock().ahead.forget(open.handle.0, u64::MAX);
        }
        if plan.count > 0 {
            self.start_ahead(open, layout, &plan, offset, lease);
        }
    }

    fn start_ahead(&self, open: &OpenFile, layout: Arc<Layout>, plan: &Plan, offset: u64, lease: u64) {
        let (stats, owner) = (self.read_ahead_stats(), open.handle.0);
        let limit = self.write_back.read_ahead_room();
        let origin = Origin { owner, lease, memory: &self.memory, limit };
        let mut made = Vec::new();
        let beside = lease & UNDER_LOCKS != 0;
        let covered = |range: &Range<u64>| !beside || self.locks.is_covered(&layout, range.clone(), Mode::Pr);
        let ranges: Vec<Range<u64>> = plan.ranges().take_while(covered).collect();
        {
            let mut inner = open.file.lock();
            // Otherwise the file has got other objects meanwhile.
            if !inner.layout.as_ref().is_some_and(|known| Arc::ptr_eq(known, &layout)) {
                return;
            }
            if plan.pattern == Pattern::Sequential {
                inner.ahead.forget(owner, offset.saturating_sub(PASSED_BYTES));
            }
            for bounds in ranges {
                if !inner.ahead.make(bounds, RPC_BYTES, &origin, &mut made) {
                    stats.add(Counter::MaxIssue);
                    stats.add(Counter::FailedToReachEnd);
                    break;
                }
            }
        }
        let (Some(first), Some(last)) = (made.first(), made.last()) else { return };
        if self.write_back.settle(&open.file, first.start, last.end).is_err() {
            let mut inner = open.file.lock();
            made.iter().for_each(|block| inner.ahead.remove(block));
            return;
        }
        if plan.to_end {
            stats.add(Counter::ToEnd);
        }
        made.iter().for_each(|block| block.enqueue());
        let hint = if plan.pattern == Pattern::Sequential { self.config.read_ahead_bytes_max } else { 0 };
        let mut queue = self.queue.lock();
        for blocks in made.chunks(BATCH) {
            let lock = lock_under(lease);
            queue.fetches.push_back(Fetch { layout: layout.clone(), blocks: blocks.to_vec(), hint, lock });
        }
        if queue.active < self.tunables.max_read_ahead_async_active() {
            queue.active += 1;
            drop(queue);
            self.start_fetching();
        }
    }

    fn start_fetching(&self) {
        let me = self.me.clone();
        let started = self.tasks.submit(move || {
            if let Some(read_ahead) = me.upgrade() {
                read_ahead.fetch_queued();
            }
        });
        if !started {
            // Readers themselves fetch queued blocks when they reach them.
            let mut queue = self.queue.lock();
            queue.active -= 1;
            queue.fetches.clear();
        }
    }

    fn fetch_queued(&self) {
        loop {
            let fetch = {
                let mut queue = self.queue.lock();
                let Some(mut fetch) = queue.fetches.pop_front() else {
                    queue.active -= 1;
                    return;
                };
                // Fetches that a reader queued in several steps are sent together.
                while let Some(next) = queue.fetches.front()
                    && Arc::ptr_eq(&next.layout, &fetch.layout)
                    && next.lock == fetch.lock
                    && fetch.blocks.len() + next.blocks.len() <= BATCH
                    && let Some(next) = queue.fetches.pop_front()
                {
                    fetch.blocks.extend(next.blocks);
                }
                fetch
            };
            let pages = self.fetch(&fetch);
            self.read_ahead_stats().add_bytes(Counter::Async, pages);
        }
    }

    /// Fetches those blocks that no other thread fetches, and returns their bytes.
    fn fetch(&self, fetch: &Fetch) -> u64 {
        // A block of which this is the last holder was removed from its file's list: no reader would use it.
        let wanted = |block: &&Arc<Block>| Arc::strong_count(block) > 1 && block.begin();
        let blocks: Vec<_> = fetch.blocks.iter().filter(wanted).collect();
        let memory = &self.memory;
        let mut buffers: Vec<_> = blocks.iter().map(|block| memory.buffer(block.len())).collect();
        let mut parts: Vec<_> =
            blocks.iter().zip(&mut buffers).map(|(block, buffer)| (block.start, &mut buffer[..])).collect();
        let outcome = self.objects.read_parts(
            &fetch.layout,
            &mut parts,
            ReadHow { ahead: fetch.hint, lock: fetch.lock },
        );
        if let Err(failure) = &outcome {
            log::debug!("{} blocks could not be read ahead: {failure}", blocks.len());
        }
        let mut bytes = 0;
        for (block, buffer) in blocks.into_iter().zip(buffers) {
            bytes += block.end - block.start;
            block.finish(outcome.is_ok().then_some(buffer));
        }
        bytes
    }

    /// Copies data that was read ahead to the beginning of `buffer`, and returns how much that was. Called
    /// under the range.
    ///
    /// # Errors
    /// `EINTR` if the caller was interrupted.
    pub(crate) fn take_ahead(
        &self,
        open: &OpenFile,
        layout: &Arc<Layout>,
        offset: u64,
        buffer: &mut [u8],
    ) -> StatusResult<usize> {
        let (stats, mut done) = (self.read_ahead_stats(), 0);
        while done < buffer.len() {
            let at = offset + done as u64;
            let Some(block) = self.block_at(&open.file, at) else { break };
            let copy = |from: &[u8], to: &mut [u8]| self.objects.copy(from, to);
            let mut served = block.serve(at, &mut buffer[done..], copy);
            if served == Served::NotBegun {
                let lock = lock_under(block.lease);
                self.fetch(&Fetch { layout: layout.clone(), blocks: vec![block.clone()], hint: 0, lock });
                open.reader.lock().on_wait();
                served = block.serve(at, &mut buffer[done..], copy);
            }
            match served {
                Served::Copied(bytes) => done += bytes,
                Served::CopiedLate(bytes) => {
                    open.reader.lock().on_wait();
                    done += bytes;
                }
                Served::Interrupted => return Err(Status::EINTR),
                Served::NotBegun | Served::Nothing => {
                    open.file.lock().ahead.remove(&block);
                    break;
                }
            }
            if block.is_used_up() {
                open.file.lock().ahead.remove(&block);
            }
        }
        stats.add_bytes(Counter::Hits, done as u64);
        if done < buffer.len() && self.requests.is_far(layout) {
            let mut reader = open.reader.lock();
            stats.add_bytes(Counter::Misses, (buffer.len() - done) as u64);
            if reader.is_inside(offset + done as u64) {
                stats.add_bytes(Counter::MissInside, (buffer.len() - done) as u64);
                reader.on_miss_inside();
            }
        }
        Ok(done)
    }

    fn block_at(&self, file: &FileState, offset: u64) -> Option<Arc<Block>> {
        let mut inner = file.lock();
        if inner.ahead.is_empty() {
            return None;
        }
        let lease = self.may_cache(file, &inner);
        let block = inner.ahead.find(offset)?;
        if lease != Some(block.lease) {
            inner.ahead.clear();
            return None;
        }
        Some(block.clone())
    }
}
