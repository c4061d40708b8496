//! Counters of a target, and the count of requests in progress.
//!
//! Threads count in shards of their own, so that two CPUs do not fight over a cache line.

mod brw;

pub(crate) use brw::BrwStats;
use parking_lot::{Condvar, Mutex};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// Kinds of requests, named like the rows of Lustre's `obdfilter.*.stats`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[repr(usize)]
pub enum Operation {
    /// Reads; the amount is bytes.
    Read = 0,
    /// Writes; the amount is bytes.
    Write,
    /// Attributes asked for.
    GetAttr,
    /// Sizes set.
    Truncate,
    /// Space allocated, freed or zeroed; the amount is bytes.
    Fallocate,
    /// Data or holes looked for.
    Seek,
    /// Syncs of an object or of all, and writes that were durable before their reply.
    Sync,
    /// Space asked for.
    Statfs,
    /// Ids reserved; the amount is ids.
    Precreate,
    /// Orphans looked for.
    DestroyOrphans,
    /// Objects destroyed; the amount is objects.
    Destroy,
    /// Signs of life.
    Ping,
    /// Grants asked for and given back.
    Grant,
}

impl Operation {
    /// All kinds.
    pub const ALL: [Operation; 13] = [
        Operation::Read,
        Operation::Write,
        Operation::GetAttr,
        Operation::Truncate,
        Operation::Fallocate,
        Operation::Seek,
        Operation::Sync,
        Operation::Statfs,
        Operation::Precreate,
        Operation::DestroyOrphans,
        Operation::Destroy,
        Operation::Ping,
        Operation::Grant,
    ];

    /// Name and unit of the row in Lustre's `stats`.
    pub const fn row(self) -> (&'static str, &'static str) {
        match self {
            Operation::Read => ("read_bytes", "bytes"),
            Operation::Write => ("write_bytes", "bytes"),
            Operation::GetAttr => ("getattr", "reqs"),
            Operation::Truncate => ("punch", "reqs"),
            Operation::Fallocate => ("prealloc", "reqs"),
            Operation::Seek => ("seek", "reqs"),
            Operation::Sync => ("sync", "reqs"),
            Operation::Statfs => ("statfs", "reqs"),
            Operation::Precreate => ("create", "reqs"),
            Operation::DestroyOrphans => ("destroy_orphans", "reqs"),
            Operation::Destroy => ("destroy", "reqs"),
            Operation::Ping => ("ping", "reqs"),
            Operation::Grant => ("set_info", "reqs"),
        }
    }
}

/// Requests of one kind since the service started.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Tally {
    /// Requests that succeeded.
    pub count: u64,
    /// Requests that failed.
    pub errors: u64,
    /// Sum of their amounts (bytes, ids or objects, see [`Operation`]).
    pub sum: u64,
    /// Smallest amount, 0 if there was no request.
    pub min: u64,
    /// Largest amount.
    pub max: u64,
}

/// A snapshot of all counters of a target.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct OssStats {
    tallies: [Tally; Operation::ALL.len()],
    /// Requests in progress now.
    pub in_progress: u64,
}

impl OssStats {
    /// The tally of one kind.
    pub fn of(&self, operation: Operation) -> Tally {
        self.tallies[operation as usize]
    }
}

/// Shards of the counters; a power of two.
const SHARDS: usize = 16;

#[derive(Default)]
struct Counter {
    count: AtomicU64,
    errors: AtomicU64,
    sum: AtomicU64,
    /// Complement of the smallest amount, so that 0 means none yet.
    inverse_min: AtomicU64,
    max: AtomicU64,
}

/// On cache lines of its own; 128 because CPUs fetch lines in pairs.
#[derive(Default)]
#[repr(align(128))]
struct Shard {
    counters: [Counter; Operation::ALL.len()],
    in_progress: AtomicU64,
}

/// The counters themselves.
#[derive(Default)]
pub(crate) struct Counters {
    shards: [Shard; SHARDS],
    /// New requests are refused, and those that end say so.
    is_stopping: AtomicBool,
    ended: Mutex<()>,
    changed: Condvar,
}

fn shard_index() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    thread_local! {
        static INDEX: usize = NEXT.fetch_add(1, Ordering::Relaxed) % SHARDS;
    }
    // A thread that is being torn down counts in the first shard.
    INDEX.try_with(|index| *index).unwrap_or(0)
}

/// A request in progress; counted until it is dropped.
pub(crate) struct InProgress<'a> {
    counters: &'a Counters,
    shard: &'a Shard,
}

impl Counters {
    /// Counts a request as being in progress; `None` if the service stops.
    pub(crate) fn enter(&self) -> Option<InProgress<'_>> {
        let shard = &self.shards[shard_index()];
        // Ordered with the flag: either who stops the service sees this request, or the request sees the flag.
        shard.in_progress.fetch_add(1, Ordering::SeqCst);
        let request = InProgress { counters: self, shard };
        (!self.is_stopping.load(Ordering::SeqCst)).then_some(request)
    }

    /// Lets no more requests in and waits until those in progress have ended, or `patience` is over; then their number
    /// is the error.
    pub(crate) fn stop(&self, patience: Duration) -> Result<(), u64> {
        self.is_stopping.store(true, Ordering::SeqCst);
        let until = Instant::now() + patience;
        let mut ended = self.ended.lock();
        while self.in_progress() > 0 {
            if self.changed.wait_until(&mut ended, until).timed_out() {
                let count = self.in_progress();
                return if count == 0 { Ok(()) } else { Err(count) };
            }
        }
        Ok(())
    }

    /// Requests in progress.
    pub(crate) fn in_progress(&self) -> u64 {
        // Requests leave through the shard by which they came, so no sum is ever negative.
        self.shards.iter().map(|shard| shard.in_progress.load(Ordering::SeqCst)).sum()
    }

    pub(crate) fn snapshot(&self) -> OssStats {
        let mut stats = OssStats { in_progress: self.in_progress(), ..OssStats::default() };
        for (index, tally) in stats.tallies.iter_mut().enumerate() {
            let mut inverse_min = 0;
            for shard in &self.shards {
                let counter = &shard.counters[index];
                tally.count += counter.count.load(Ordering::Relaxed);
                tally.errors += counter.errors.load(Ordering::Relaxed);
                tally.sum += counter.sum.load(Ordering::Relaxed);
                inverse_min = inverse_min.max(counter.inverse_min.load(Ordering::Relaxed));
                tally.max = tally.max.max(counter.max.load(Ordering::Relaxed));
            }
            tally.min = if inverse_min == 0 { 0 } else { !inverse_min };
        }
        stats
    }
}

impl InProgress<'_> {
    /// Counts the outcome: the amount of a request that succeeded.
    pub(crate) fn count(&self, operation: Operation, outcome: Option<u64>) {
        let counter = &self.shard.counters[operation as usize];
        let Some(amount) = outcome else {
            counter.errors.fetch_add(1, Ordering::Relaxed);
            return;
        };
        counter.count.fetch_add(1, Ordering::Relaxed);
        counter.sum.fetch_add(amount, Ordering::Relaxed);
        if !amount > counter.inverse_min.load(Ordering::Relaxed) {
            counter.inverse_min.fetch_max(!amount, Ordering::Relaxed);
        }
        if amount > counter.max.load(Ordering::Relaxed) {
            counter.max.fetch_max(amount, Ordering::Relaxed);
        }
    }
}

impl Drop for InProgress<'_> {
    fn drop(&mut self) {
        self.shard.in_progress.fetch_sub(1, Ordering::SeqCst);
        if self.counters.is_stopping.load(Ordering::SeqCst) {
            let _ended = self.counters.ended.lock();
            self.counters.changed.notify_all();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_of_all_threads_add_up() {
        let counters = Counters::default();
        assert_eq!(counters.snapshot(), OssStats::default());
        std::thread::scope(|scope| {
            for thread in 1..=4u64 {
                let counters = &counters;
                scope.spawn(move || {
                    for _ in 0..100 {
                        let request = counters.enter().unwrap();
                        request.count(Operation::Write, Some(thread * 10));
                        request.count(Operation::Read, None);
                    }
                });
            }
        });
        let stats = counters.snapshot();
        assert_eq!(
            stats.of(Operation::Write),
            Tally { count: 400, errors: 0, sum: 10_000, min: 10, max: 40 }
        );
        assert_eq!(stats.of(Operation::Read), Tally { errors: 400, ..Tally::default() });
        assert_eq!(stats.in_progress, 0);
    }

    #[test]
    fn stopping_waits_for_requests_in_progress_and_refuses_new_ones() {
        let counters = Counters::default();
        let request = counters.enter().unwrap();
        assert_eq!(counters.stop(Duration::ZERO), Err(1));
        assert!(counters.enter().is_none());
        std::thread::scope(|scope| {
            let stopping = scope.spawn(|| counters.stop(Duration::from_secs(60)));
            drop(request);
            assert_eq!(stopping.join().unwrap(), Ok(()));
        });
    }
}
