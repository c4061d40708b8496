//! The threads that write dirty data out.
//!
//! They are started when there is work: at most one per CPU. A full window is put in their queue; a running
//! thread takes the next one when it has finished, so a stream wakes a thread only when none is running. An
//! idle thread sleeps until the oldest dirty data is due.

use crate::file::FileState;
use crate::tunables::ParallelIo;
use crate::write_back::WriteBack;
use crate::write_back::budget::Budget;
use crate::write_back::table::{Key, POLL, Scope, Table, Taken};
use crate::write_back::tunables::{OstWriteBack, WriteBackStats};
use nacre_env::clock::Instant;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// How often threads check for grants and memory to return, while there are some.
const TIDY_EVERY: Duration = Duration::from_secs(5);
/// Unused buffers that are kept when nothing is dirty, in bytes.
const KEEP_BYTES: u64 = 4 << 20;
/// Fraction of the age by which old data may be late.
const SLACK: u32 = 8;
/// Windows that a thread sends at once, at most.
const BATCH: usize = 4;

#[derive(Default)]
pub(crate) struct Queue {
    /// Full windows that wait for a thread.
    full: VecDeque<Full>,
    /// Files with dirty data, by the time at which it began.
    dirty: VecDeque<(Arc<FileState>, Instant)>,
    threads: usize,
    idle: usize,
    /// True if some thread sleeps with a time-out.
    timed: bool,
    /// When to check for grants and memory to return.
    tidy_at: Option<Instant>,
    is_stopping: bool,
}

impl Queue {
    /// Removes files whose data was sent by other threads from the front of the list.
    fn forget_clean(&mut self) {
        while let Some((file, since)) = self.dirty.pop_front_if(|(file, _)| file.dirty.is_clean()) {
            file.dirty.listed.store(false, Ordering::Release);
            // A thread that filled a window meanwhile has seen the file as listed.
            if file.dirty.oldest().is_some() && !file.dirty.listed.swap(true, Ordering::AcqRel) {
                self.dirty.push_front((file, since));
                return;
            }
        }
    }
}

/// A window that is to be sent.
struct Full {
    file: Arc<FileState>,
    ost_index: u16,
    key: Key,
}

/// Next work of a thread.
enum Work {
    Full(Arc<FileState>, Vec<Key>),
    Old(Arc<FileState>),
    Tidy,
}

impl WriteBack {
    pub(crate) fn budget(&self, ost_index: u16) -> Arc<Budget> {
        if let Some(budget) = self.budgets.read().get(&ost_index) {
            return budget.clone();
        }
        self.budgets.write().entry(ost_index).or_insert_with(|| Arc::new(Budget::new(ost_index))).clone()
    }

    pub(crate) fn budgets(&self) -> Vec<Arc<Budget>> {
        self.budgets.read().values().cloned().collect()
    }

    /// Queues a full window.
    pub(crate) fn queue(&self, file: &Arc<FileState>, ost_index: u16, key: Key) {
        let mut queue = self.queue.lock();
        queue.full.push_back(Full { file: file.clone(), ost_index, key });
        self.wake(&mut queue);
    }

    /// Lists a file that has dirty data and is not listed yet.
    pub(crate) fn list(&self, file: &Arc<FileState>) {
        if file.dirty.listed.swap(true, Ordering::AcqRel) {
            return;
        }
        let mut queue = self.queue.lock();
        queue.dirty.push_back((file.clone(), Instant::now()));
        if !queue.timed && queue.threads == queue.idle {
            self.wake(&mut queue);
        }
    }

    /// Wakes or starts a thread.
    fn wake(&self, queue: &mut Queue) {
        if queue.idle > 0 {
            self.work.notify_one();
            return;
        }
        if queue.threads >= self.settings.threads() || queue.is_stopping {
            return;
        }
        let Some(this) = self.me.upgrade() else { return };
        let spawned = nacre_env::thread::Builder::new().name("write-back".into()).spawn(move || this.serve());
        match spawned {
            Ok(_) => queue.threads += 1,
            // The data waits for a thread that flushes it.
            Err(error) => log::warn!("no thread for writing data out: {error}"),
        }
    }

    /// Waits for work. `None` if the thread is to end.
    fn next(&self) -> Option<Work> {
        let mut queue = self.queue.lock();
        loop {
            if queue.is_stopping || queue.threads > self.settings.threads() {
                queue.threads -= 1;
                // The work that this thread was woken for is left to another one.
                self.work.notify_one();
                return None;
            }
            if let Some(Full { file, key, .. }) = queue.full.pop_front() {
                let mut keys = vec![key];
                while keys.len() < BATCH
                    && let Some(next) = queue.full.pop_front_if(|next| Arc::ptr_eq(&next.file, &file))
                {
                    keys.push(next.key);
                }
                return Some(Work::Full(file, keys));
            }
            let now = Instant::now();
            queue.forget_clean();
            let due = queue.dirty.front().map(|(_, since)| *since + self.settings.age());
            if due.is_some_and(|due| due <= now)
                && let Some((file, _)) = queue.dirty.pop_front()
            {
                return Some(Work::Old(file));
            }
            if queue.tidy_at.is_some_and(|at| at <= now) {
                queue.tidy_at = None;
                return Some(Work::Tidy);
            }
            queue.idle += 1;
            // Files that are written one after the other become due one after the other: one wake-up serves
            // several.
            let due = due.map(|due| due.max(now + self.settings.age() / SLACK));
            let until = due.into_iter().chain(queue.tidy_at).min();
            match until {
                Some(until) if !queue.timed => {
                    queue.timed = true;
                    self.work.wait_until(&mut queue, until);
                    queue.timed = false;
                }
                _ => self.work.wait(&mut queue),
            }
            queue.idle -= 1;
        }
    }

    /// Takes a full window of an OST out of the queue: a thread that waits for memory there must not wait for
    /// another OST, which may be unreachable.
    fn pop_full(&self, ost_index: u16) -> Option<Full> {
        let mut queue = self.queue.lock();
        let position = queue.full.iter().position(|full| full.ost_index == ost_index)?;
        queue.full.remove(position)
    }

    /// Takes the file with the oldest data out of the list.
    fn pop_dirty(&self) -> Option<Arc<FileState>> {
        self.queue.lock().dirty.pop_front().map(|(file, _)| file)
    }

    /// Wakes threads that wait for memory, after data was sent or dropped.
    pub(crate) fn room_was_made(&self) {
        if self.room_waiters.load(Ordering::Acquire) > 0 {
            // A thread that is about to wait holds the lock.
            drop(self.queue.lock());
            self.room.notify_all();
        }
    }

    fn wait_for_room(&self) {
        self.room_waiters.fetch_add(1, Ordering::AcqRel);
        let mut queue = self.queue.lock();
        nacre_env::blocking(|| self.room.wait_for(&mut queue, POLL));
        drop(queue);
        self.room_waiters.fetch_sub(1, Ordering::AcqRel);
    }

    fn tidy_later(&self) {
        self.queue.lock().tidy_at.get_or_insert_with(|| Instant::now() + TIDY_EVERY);
    }

    /// Stops the threads. Dirty data stays dirty.
    pub(crate) fn stop(&self) {
        let mut queue = self.queue.lock();
        queue.is_stopping = true;
        queue.full.clear();
        queue.dirty.clear();
        drop(queue);
        self.work.notify_all();
    }

    /// Body of a thread that writes dirty data out.
    fn serve(&self) {
        while let Some(work) = self.next() {
            match work {
                Work::Full(file, keys) => {
                    let jobs = keys.into_iter().filter_map(|key| file.dirty.take_one(key)).collect();
                    let _ = self.send(&file, jobs);
                    self.tidy_later();
                }
                Work::Old(file) => {
                    let now = Instant::now();
                    self.write_old(&file, now.checked_sub(self.settings.age()).unwrap_or(now));
                    self.tidy_later();
                }
                Work::Tidy => {
                    let is_used = self.pool.used_bytes() > 0;
                    if !is_used {
                        self.pool.trim(KEEP_BYTES);
                    }
                    if self.return_grants(false) || is_used {
                        self.tidy_later();
                    }
                }
            }
        }
    }

    /// Writes data of an OST out, or waits for other threads to do so. False if the caller was interrupted,
    /// or there is nothing to write.
    pub(crate) fn make_room(&self, ost_index: u16) -> bool {
        if let Some(Full { file, key, .. }) = self.pop_full(ost_index) {
            if let Some(job) = file.dirty.take_one(key) {
                let _ = self.send(&file, vec![job]);
            }
            return !nacre_env::interrupted();
        }
        if let Some(file) = self.pop_dirty() {
            if !self.write_old(&file, Instant::now()) {
                self.wait_for_room();
            }
            return !nacre_env::interrupted();
        }
        if self.pool.used_bytes() == 0 || nacre_env::interrupted() {
            return false;
        }
        self.wait_for_room();
        true
    }

    /// Sends what became dirty in a file before `limit`; the file was taken out of the list. False if nothing
    /// could be sent at the moment.
    fn write_old(&self, file: &Arc<FileState>, limit: Instant) -> bool {
        file.dirty.listed.swap(false, Ordering::AcqRel);
        let mut has_sent = false;
        if let Taken::Jobs(jobs) = file.dirty.take(&Scope::All, Table::now(), Some(limit)) {
            // Failures are recorded with the file.
            let _ = self.send(file, jobs);
            has_sent = true;
        }
        if file.dirty.oldest().is_some() {
            self.list(file);
        }
        has_sent
    }

    /// Returns statistics of write-back to one OST.
    pub fn ost_write_back(&self, ost_index: u16) -> OstWriteBack {
        let budget = self.budget(ost_index);
        OstWriteBack {
            max_dirty_bytes: budget.max_bytes(self.settings.max_dirty_per_ost()),
            dirty_bytes: budget.claimed_bytes(),
            grant_bytes: budget.granted_bytes(),
        }
    }

    /// Sets how many bytes of memory may hold dirty data of one OST; below 1 MiB nothing is cached for it.
    pub fn set_ost_max_dirty(&self, ost_index: u16, bytes: u64) {
        self.budget(ost_index).set_max_bytes(bytes);
    }

    /// Returns statistics of write-back.
    pub fn write_back_stats(&self) -> WriteBackStats {
        let counters = &self.counters;
        let read = |counter: &std::sync::atomic::AtomicU64| counter.load(Ordering::Relaxed);
        WriteBackStats {
            dirty_bytes: self.nodes.open_files().iter().map(|file| file.dirty.bytes()).sum(),
            buffer_bytes: self.pool.used_bytes(),
            in_flight_bytes: read(&counters.in_flight_bytes),
            grant_bytes: self.budgets().iter().map(|budget| budget.granted_bytes()).sum(),
            rpcs: read(&counters.rpcs),
            full_rpcs: read(&counters.full_rpcs),
            sent_bytes: read(&counters.sent_bytes),
            waits: read(&counters.waits),
            failures: read(&counters.failures),
        }
    }

    /// Sets whether work is divided (`llite.*.parallel_io`), and with it how many threads write dirty data
    /// out.
    pub fn set_parallel_io(&self, setting: ParallelIo) {
        self.tunables.set_parallel_io(setting);
        let threads = if setting == ParallelIo::Off { 1 } else { nacre_env::cpu_count().max(1) };
        self.settings.set_threads(threads);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::write_back::pool::Pool;
    use crate::write_back::table::Window;
    use nacre_layout::StripeObject;
    use nacre_types::Fid;

    #[test]
    fn files_whose_data_was_sent_by_others_are_forgotten_and_dirty_ones_are_not() {
        let file = |number| Arc::new(FileState::new(Fid::new(9, number, 0), u64::from(number)));
        let (clean, dirty) = (file(1), file(2));
        let pool = Arc::new(Pool::default());
        let buffer = pool.take(1 << 20).expect("memory");
        let mut window =
            Some(Window::new(buffer, Arc::new(Budget::new(0)), StripeObject::default(), Instant::now(), 0));
        let key = Key { object: dirty.fid, number: 0 };
        dirty.dirty.begin_fill(key, &mut window);
        dirty.dirty.end_fill(key, 0..5, true);
        let mut queue = Queue::default();
        for file in [&clean, &dirty, &clean] {
            file.dirty.listed.store(true, Ordering::Release);
            queue.dirty.push_back((file.clone(), Instant::now()));
        }
        queue.forget_clean();
        assert_eq!(queue.dirty.len(), 2, "what is behind a dirty one waits for its turn");
        assert!(!clean.dirty.listed.load(Ordering::Acquire) && dirty.dirty.listed.load(Ordering::Acquire));
    }

    #[test]
    fn a_close_takes_what_is_one_run_of_bytes_in_the_only_window() {
        let table = Table::default();
        let object = Fid::new(9, 1, 0);
        let pool = Arc::new(Pool::default());
        let fill = |object, number, span: std::ops::Range<u32>| {
            let buffer = pool.take(64 << 20).expect("memory");
            let mut window = Some(Window::new(
                buffer,
                Arc::new(Budget::new(0)),
                StripeObject::default(),
                Instant::now(),
                0,
            ));
            let key = Key { object, number };
            table.begin_fill(key, &mut window);
            table.end_fill(key, span, true);
        };
        assert!(table.take_sole(object, 100).is_none(), "nothing is dirty");
        fill(object, 0, 10..90);
        assert!(table.take_sole(Fid::new(9, 2, 0), 100).is_none(), "another object");
        assert!(table.take_sole(object, 89).is_none(), "too long");
        let job = table.take_sole(object, 90).expect("all there is");
        assert!(table.take_sole(object, 90).is_none() && !table.is_clean(), "it is under way");
        table.put_back(job);
        fill(object, 0, 91..95);
        assert!(table.take_sole(object, 100).is_none(), "two runs");
        fill(object, 0, 90..91);
        assert!(table.take_sole(object, 100).is_some_and(|job| job.window.spans.end() == 95));
        table.sent(Key { object, number: 0 });
        fill(object, 0, 0..5);
        fill(object, 1, 0..5);
        assert!(table.take_sole(object, 100).is_none(), "two windows");
    }
}
