//! Written data that has not reached its objects yet.
//!
//! While this client is the only one, or under locks, a stream of writes is copied into windows of its
//! objects ([`table`]) and acknowledged; threads of the client ([`writers`]) send full windows at once,
//! others when they are old, when memory is short, or when an operation needs the objects to be up to date
//! ([`WriteBack::settle`]). Reads of dirty bytes alone are copies ([`serve`]). Reasons and arithmetic:
//! decision 0007.
//!
//! # Invariants
//!
//! - Dirty data belongs to a file that is open; the release of an open waits for it. So the MDT never gets a
//!   size whose bytes are not on their objects, and objects of removed files are not written.
//! - Data becomes dirty only under a byte range that was taken while the lease was exclusive, or under a
//!   lock. Releasing the lease takes all ranges of a file first, and a lock is flushed when no operation uses
//!   it any more, so nothing becomes dirty after the last flush.
//! - Every window has space that its OST has granted ([`budget`]): acknowledged data never finds the disk
//!   full.
//! - Data is dropped only when an OST rejected it; each open of the file reports it once, and if all were
//!   closed by then, the next one does ([`untold`]).

pub(crate) mod budget;
pub(crate) mod head;
pub(crate) mod memory;
pub(crate) mod pool;
pub(crate) mod send;
pub(crate) mod serve;
pub(crate) mod spans;
pub(crate) mod table;
pub(crate) mod tunables;
pub(crate) mod untold;
pub(crate) mod writers;

use crate::base::Base;
use crate::file::options::WriteOptions;
use crate::file::{FileState, OpenFile};
use crate::jobs::Jobs;
use crate::layouts::Layouts;
use crate::node::NodeTable;
use crate::objects::Objects;
use crate::objects::transfer::Placed;
use crate::read_ahead::blocks::Memory;
use crate::requests::Requests;
use crate::tunables::Tunables;
use crate::write_back::budget::{Budget, Claim};
use crate::write_back::pool::{Pool, WINDOW_BYTES};
use crate::write_back::table::{Fill, Key, Scope, Table, Taken, Window};
use crate::write_back::tunables::{Counters, WriteBackTunables};
use crate::write_back::untold::Untold;
use crate::write_back::writers::Queue;
use nacre_env::clock::Instant;
use nacre_env::sync::{Condvar, Mutex, RwLock};
use nacre_layout::{Layout, StripeObject, chunks, object_ranges};
use nacre_types::limits::FILE_SIZE_MAX;
use nacre_types::{Failure, FailureResult, Status, TargetId};
use nacre_wire::oss::{Bulk, OssReply, OssRequest};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};

/// A write to an MDT that ends below this is one to a small file: as much as one record there holds.
const SMALL_BYTES: u64 = 32 << 10;
/// A write that begins at most this far from the end of the last one through the same open continues a
/// stream: several processes that write interleaved records leave gaps for each other.
const STREAM_SLACK: u64 = WINDOW_BYTES;

/// Write-back of a client: settings, memory, budgets, threads.
pub struct WriteBack {
    pub settings: WriteBackTunables,
    pub(crate) counters: Counters,
    pool: Arc<Pool>,
    pub(crate) untold: Untold,
    /// Identity of this client at OSTs.
    client_id: u64,
    budgets: RwLock<BTreeMap<u16, Arc<Budget>>>,
    queue: Mutex<Queue>,
    work: Condvar,
    room: Condvar,
    room_waiters: AtomicUsize,
    requests: Arc<Requests>,
    layouts: Arc<Layouts>,
    objects: Arc<Objects>,
    nodes: Arc<NodeTable>,
    jobs: Arc<Jobs>,
    tunables: Arc<Tunables>,
    memory: Arc<Memory>,
    /// Handle to this, for the threads.
    me: Weak<WriteBack>,
}

impl WriteBack {
    pub(crate) fn new(base: &Base) -> Arc<WriteBack> {
        let mut id = [0; 8];
        id.copy_from_slice(&base.config.instance.0[..8]);
        Arc::new_cyclic(|me| WriteBack {
            settings: WriteBackTunables::default(),
            counters: Counters::default(),
            pool: Arc::default(),
            untold: Untold::default(),
            client_id: u64::from_le_bytes(id),
            budgets: RwLock::default(),
            queue: Mutex::default(),
            work: Condvar::new(),
            room: Condvar::new(),
            room_waiters: AtomicUsize::new(0),
            requests: base.requests.clone(),
            layouts: base.layouts.clone(),
            objects: base.objects.clone(),
            nodes: base.nodes.clone(),
            jobs: base.jobs.clone(),
            tunables: base.tunables.clone(),
            memory: base.memory.clone(),
            me: me.clone(),
        })
    }

    /// True if caching a write that may be cached pays off: it continues a stream, or joins dirty data.
    ///
    /// A single write of a small file goes straight to its object: it would have to be sent anyway, a moment
    /// later and by a thread that has to be woken. On a remote MDT it is held back for the close, which no
    /// caller waits for.
    pub(crate) fn wants_cache(
        &self,
        open: &OpenFile,
        layout: &Layout,
        Placed { at, data }: Placed<'_>,
        options: WriteOptions,
    ) -> bool {
        let len = data.len() as u64;
        let before = open.next_write.swap(at + len, Ordering::Relaxed);
        if options.direct || options.from_cache || !self.settings.is_enabled() {
            return false;
        }
        let is_stream = before != u64::MAX && at.abs_diff(before) <= STREAM_SLACK;
        if self.tunables.is_large_write(len) {
            let wanted = self.settings.idle_per_cent();
            let is_worth_it = || self.objects.write_pace.is_slow() || self.objects.idle.per_cent() >= wanted;
            return is_stream && wanted <= 100 && is_worth_it();
        }
        let is_small =
            layout.object_on_mdt().is_some() && at + len <= SMALL_BYTES && !self.requests.is_embedded();
        if is_stream || is_small {
            return true;
        }
        !open.file.dirty.is_clean() && open.file.dirty.has_room(layout, at, len)
    }

    /// Copies the beginning of `data` into windows, as far as they have space, and returns how much that was;
    /// the caller writes the rest in another way. The caller holds its range exclusively.
    pub(crate) fn cache_write(
        &self,
        file: &Arc<FileState>,
        layout: &Layout,
        Placed { at, data }: Placed<'_>,
        alone: bool,
    ) -> usize {
        let mut rest = data;
        for chunk in chunks(layout, at, data.len() as u64) {
            let Some(stripe) = chunk.object else { break };
            let (mine, _) = rest.split_at(chunk.len as usize);
            let taken = self.cache_chunk(file, stripe, Placed { at: chunk.object_offset, data: mine }, alone);
            rest = &rest[taken..];
            if taken < mine.len() {
                break;
            }
        }
        data.len() - rest.len()
    }

    fn cache_chunk(
        &self,
        file: &Arc<FileState>,
        stripe: StripeObject,
        Placed { mut at, data }: Placed<'_>,
        alone: bool,
    ) -> usize {
        let mut rest = data;
        while !rest.is_empty() {
            let in_window = (WINDOW_BYTES - at % WINDOW_BYTES) as usize;
            let (piece, after) = rest.split_at(rest.len().min(in_window));
            if !self.cache_piece(file, stripe, Placed { at, data: piece }, alone) {
                break;
            }
            at += piece.len() as u64;
            rest = after;
        }
        data.len() - rest.len()
    }

    fn cache_piece(
        &self,
        file: &Arc<FileState>,
        stripe: StripeObject,
        Placed { at, data: piece }: Placed<'_>,
        alone: bool,
    ) -> bool {
        let key = Key { object: stripe.object, number: at / WINDOW_BYTES };
        let start = (at - key.offset()) as usize;
        debug_assert!(start + piece.len() <= WINDOW_BYTES as usize, "the caller has cut it");
        let mut fresh: Option<Window> = None;
        let window = loop {
            match file.dirty.begin_fill(key, &mut fresh) {
                Fill::Into(window) => break window,
                Fill::NeedsWindow => match self.new_window(stripe) {
                    Some(window) => fresh = Some(window),
                    None => return false,
                },
            }
        };
        if let Some(unused) = fresh {
            unused.budget.give_back(false);
        } else if !file.dirty.listed.load(Ordering::Relaxed) {
            self.list(file);
        }
        // SAFETY: a window has WINDOW_BYTES, of which `start + piece.len()` is at most that. It stays where
        // it is until `end_fill`. No other thread accesses these bytes: writers hold their ranges
        // exclusively, and the table sends a window, or copies from it, only when no thread fills it.
        unsafe { self.objects.copy_raw(piece.as_ptr(), window.add(start), piece.len()) };
        if file.dirty.end_fill(key, start as u32..(start + piece.len()) as u32, alone) {
            self.queue(file, stripe.ost_index, key);
        }
        true
    }

    /// Allocates a window for data of an OST; waits for space. `None` if there is no grant, no memory, or the
    /// caller was interrupted.
    fn new_window(&self, stripe: StripeObject) -> Option<Window> {
        let ost_index = stripe.ost_index;
        let budget = self.budget(ost_index);
        let tunables = &self.settings;
        let incarnation = self.requests.ost(ost_index).ok()?.incarnation();
        let mut has_waited = false;
        loop {
            let now = Instant::now();
            match budget.claim(budget.max_bytes(tunables.max_dirty_per_ost()), now) {
                Claim::Taken => match self.pool.take(self.dirty_room(WINDOW_BYTES)) {
                    Some(buffer) => return Some(Window::new(buffer, budget, stripe, now, incarnation)),
                    None => budget.give_back(false),
                },
                Claim::NoGrant => match self.ask_grant(&budget) {
                    true => continue,
                    false => return None,
                },
                Claim::Full => {}
            }
            if !has_waited {
                self.counters.waits.fetch_add(1, Ordering::Relaxed);
                has_waited = true;
            }
            if !self.make_room(ost_index) {
                return None;
            }
        }
    }

    /// Requests a grant from an OST; true if it is enough to continue.
    fn ask_grant(&self, budget: &Budget) -> bool {
        let Some(held) = budget.begin_ask(Instant::now()) else { return false };
        // Twice what may be dirty, so that the next request comes only after as much has been written.
        let want = 2 * budget.max_bytes(self.settings.max_dirty_per_ost());
        let total = self.tell_grant(budget.ost_index, held, want);
        budget.end_ask(held, total, Instant::now());
        total.is_some_and(|total| total >= WINDOW_BYTES)
    }

    fn tell_grant(&self, ost_index: u16, held: u64, want: u64) -> Option<u64> {
        let request = OssRequest::Grant { client: self.client_id, held, want };
        match self.requests.ost(ost_index).ok()?.call(&request, Bulk::None) {
            Ok(OssReply::Granted(total)) => Some(total),
            _ => None,
        }
    }

    /// Returns grants that have not been used for a while, or all unused ones `at_once`; otherwise OSTs keep
    /// them until they have not received a request of this client for two minutes. Waits for unreachable
    /// servers. True if some are left.
    pub fn return_grants(&self, at_once: bool) -> bool {
        let mut left = false;
        for budget in self.budgets() {
            let now = Instant::now();
            if budget.begin_return(now, at_once) {
                self.tell_grant(budget.ost_index, 0, 0);
                budget.end_ask(0, None, now);
            }
            left |= budget.has_grant();
        }
        left
    }

    /// Flushes every byte of `[start, end)` that was written here to its object. To be called before a
    /// request to the objects about that range; a caller that needs the answer to stay true holds the range.
    ///
    /// # Errors
    /// `EINTR`; the error of an OST.
    pub(crate) fn settle(&self, file: &FileState, start: u64, end: u64) -> FailureResult<()> {
        if file.dirty.is_clean() {
            return Ok(());
        }
        let scope = scope_of(file, start, end);
        self.settle_scope(file, &scope)
    }

    /// Does the same for a scope.
    ///
    /// # Errors
    /// As there.
    pub(crate) fn settle_scope(&self, file: &FileState, scope: &Scope) -> FailureResult<()> {
        let born = Table::now();
        let mut outcome = Ok(());
        loop {
            match file.dirty.take(scope, born, None) {
                Taken::Clean => return outcome,
                Taken::Jobs(jobs) => match self.send(file, jobs) {
                    Err(failure) if failure == Status::EINTR => return Err(failure),
                    sent => outcome = outcome.and(sent),
                },
                Taken::Busy if nacre_env::interrupted() => return Err(Status::EINTR.into()),
                Taken::Busy => file.dirty.wait(),
            }
        }
    }

    /// As [`WriteBack::settle_scope`] if no caller waits for the outcome: failures go to the log, and to
    /// opens as losses.
    pub(crate) fn settle_unheard(&self, file: &FileState, scope: &Scope) {
        if !file.dirty.is_clean()
            && let Err(failure) = self.settle_scope(file, scope)
        {
            self.requests.faults.log(failure.explain(|context| context.action("write back").fid(file.fid)));
        }
    }

    /// Drops dirty data of `[start, end)`, which the caller holds exclusively, and waits for requests in
    /// flight there.
    ///
    /// # Errors
    /// `EINTR` if the caller was interrupted.
    pub(crate) fn discard(&self, file: &FileState, start: u64, end: u64) -> FailureResult<()> {
        if file.dirty.is_clean() {
            return Ok(());
        }
        let scope = scope_of(file, start, end);
        while !file.dirty.discard(&scope) {
            if nacre_env::interrupted() {
                return Err(Status::EINTR.into());
            }
            file.dirty.wait();
        }
        self.room_was_made();
        Ok(())
    }

    /// Flushes dirty data of all files to their objects; waits for unreachable servers. Failures are recorded
    /// with their files.
    pub fn write_back_all(&self) {
        for file in self.nodes.open_files() {
            self.settle_unheard(&file, &Scope::All);
        }
    }

    /// Drops dirty data of all files after `target` has evicted this client, as other clients may have
    /// changed the same files since. Each open of such a file reports it once.
    pub fn lose_dirty_data(&self, target: TargetId) {
        for file in self.nodes.open_files() {
            self.lose_dirty_of(&file, Scope::All, target);
        }
    }

    /// As [`WriteBack::lose_dirty_data`], for a part of one file.
    pub(crate) fn lose_dirty_of(&self, file: &FileState, scope: Scope, target: TargetId) {
        if file.dirty.is_clean_in(&scope) {
            return;
        }
        // An eviction drops the data of a file once, so no line is suppressed.
        let lost = Failure::from(Status::EIO).explain(|context| {
            let cause = "its lock was lost when the target evicted this client";
            context.action("write back").fid(file.fid).target(target).cause(cause)
        });
        log::error!("{lost}");
        file.lock().record_error(Status::EIO);
        // A request in flight cannot be undone.
        file.dirty.discard(&scope);
        self.room_was_made();
    }

    /// Keeps a failure that this open has not reported for the next open.
    pub(crate) fn keep_error(&self, open: &OpenFile) {
        let file = &*open.file;
        if let Err(status) = open.check_error_at_close()
            && open.writable()
        {
            self.untold.keep(file.node, status);
        }
    }
}

fn scope_of(file: &FileState, start: u64, end: u64) -> Scope {
    if start == 0 && end >= FILE_SIZE_MAX {
        return Scope::All;
    }
    let Some(layout) = file.lock().layout.clone() else { return Scope::All };
    let ranges = object_ranges(&layout, start, end.min(FILE_SIZE_MAX));
    Scope::Ranges(ranges.map(|range| (range.stripe.object, range.start, range.end)).collect())
}
