//! Counters of a target, including the requests in progress.
//!
//! Threads count in shards, so that two CPUs do not contend for a cache line.

mod brw;
mod peers;

pub(crate) use brw::{BrwStats, Transfer};
use nacre_env::clock::Instant;
use nacre_env::sync::{Condvar, Mutex};
use nacre_params::stats::thread_number;
use nacre_params::{Event, EventStats};
pub use peers::PeerStats;
pub(crate) use peers::{JOB_EVENTS, job_rows};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

/// Kinds of requests, named like the rows of Lustre's `obdfilter.*.stats`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[repr(usize)]
pub enum Operation {
    /// Reads; the amount is bytes.
    Read = 0,
    /// Writes; the amount is bytes.
    Write,
    /// Reads of attributes.
    GetAttr,
    /// Changes of sizes.
    Truncate,
    /// Space allocated, freed or zeroed; the amount is bytes.
    Fallocate,
    /// Searches for data or holes.
    Seek,
    /// Syncs of an object or of all, and writes that were durable before their reply.
    Sync,
    /// Queries of free space.
    Statfs,
    /// Reservations of object ids; the amount is ids.
    Precreate,
    /// Searches for orphans.
    DestroyOrphans,
    /// Objects destroyed; the amount is objects.
    Destroy,
    /// Pings.
    Ping,
    /// Requests and returns of grants.
    Grant,
    /// Messages about locks.
    Locks,
    /// Evictions requested by an MDT.
    Evict,
    /// Advice about cached data.
    Advise,
    /// Quota rounds, and changes of owners.
    Quota,
    /// Questions of checks in use about objects.
    Info,
}

impl Operation {
    /// All kinds.
    pub const ALL: [Operation; 18] = [
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
        Operation::Locks,
        Operation::Evict,
        Operation::Advise,
        Operation::Quota,
        Operation::Info,
    ];

    /// Returns name and unit of the row in Lustre's `stats`.
    pub(crate) const fn row(self) -> Event {
        let (name, unit) = match self {
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
            Operation::Locks => ("ldlm", "reqs"),
            Operation::Evict => ("evict", "reqs"),
            Operation::Advise => ("ladvise", "reqs"),
            Operation::Quota => ("quotactl", "reqs"),
            Operation::Info => ("get_info", "reqs"),
        };
        Event { name, unit }
    }
}

impl Operation {
    /// Returns the row of Lustre's service for such requests.
    pub(crate) const fn service_row(self) -> Event {
        let name = match self {
            Operation::Read => "ost_read",
            Operation::Write => "ost_write",
            Operation::GetAttr => "ost_getattr",
            Operation::Truncate => "ost_punch",
            Operation::Fallocate => "ost_fallocate",
            Operation::Seek => "ost_seek",
            Operation::Sync => "ost_sync",
            Operation::Statfs => "ost_statfs",
            Operation::Precreate => "ost_create",
            Operation::DestroyOrphans => "ost_destroy_orphans",
            Operation::Destroy => "ost_destroy",
            Operation::Ping => "obd_ping",
            Operation::Grant => "ost_set_info",
            Operation::Locks => "ldlm_extent_enqueue",
            Operation::Evict => "ost_evict",
            Operation::Advise => "ost_ladvise",
            Operation::Quota => "ost_quotactl",
            Operation::Info => "ost_get_info",
        };
        Event { name, unit: "usecs" }
    }
}

/// Lustre's services of object servers, and the requests of each.
pub const SERVICES: [(&str, &[&str]); 3] = [
    (
        "ost",
        &[
            "ost_getattr",
            "ost_sync",
            "ost_statfs",
            "ost_destroy",
            "ost_set_info",
            "ost_get_info",
            "ost_evict",
            "ost_quotactl",
            "ldlm_extent_enqueue",
            "obd_ping",
        ],
    ),
    ("ost_create", &["ost_create", "ost_destroy_orphans"]),
    ("ost_io", &["ost_read", "ost_write", "ost_punch", "ost_fallocate", "ost_seek", "ost_ladvise"]),
];

const KINDS: usize = Operation::ALL.len();

/// Rows of the services, in the order of [`Operation::ALL`].
const SERVICE_EVENTS: &[Event] = &{
    let mut events = [Event { name: "", unit: "" }; KINDS];
    let mut index = 0;
    while index < KINDS {
        events[index] = Operation::ALL[index].service_row();
        index += 1;
    }
    events
};

/// Rows of `stats`, in the order of [`Operation::ALL`].
const EVENTS: &[Event] = &{
    let mut events = [Event { name: "", unit: "" }; KINDS];
    let mut index = 0;
    while index < KINDS {
        events[index] = Operation::ALL[index].row();
        index += 1;
    }
    events
};

/// Number of shards for the requests in progress; a power of two.
const SHARDS: usize = 16;

/// Aligned to 128 bytes because CPUs prefetch cache lines in pairs.
#[derive(Default)]
#[repr(align(128))]
struct Shard {
    in_progress: AtomicU64,
}

/// Counters of a target.
pub(crate) struct Counters {
    /// Successful requests, with their amounts.
    pub succeeded: EventStats,
    /// Times of all requests, in microseconds.
    pub services: EventStats,
    failed: [AtomicU64; KINDS],
    shards: [Shard; SHARDS],
    /// Set by a stop: new requests are refused, and each request that ends notifies the stop.
    is_stopping: AtomicBool,
    ended: Mutex<()>,
    changed: Condvar,
}

impl Default for Counters {
    fn default() -> Counters {
        Counters {
            succeeded: EventStats::new(EVENTS),
            services: EventStats::with_times(SERVICE_EVENTS),
            failed: [const { AtomicU64::new(0) }; KINDS],
            shards: Default::default(),
            is_stopping: AtomicBool::new(false),
            ended: Mutex::new(()),
            changed: Condvar::new(),
        }
    }
}

/// A request in progress; counted until it is dropped.
pub(crate) struct InProgress<'a> {
    counters: &'a Counters,
    shard: &'a Shard,
    began: Instant,
}

impl Counters {
    /// Counts a request as in progress; `None` if the service is stopping.
    pub(crate) fn enter(&self) -> Option<InProgress<'_>> {
        let shard = &self.shards[thread_number() % SHARDS];
        // Sequentially consistent with the flag: either the stop sees this request, or the request sees the
        // flag.
        shard.in_progress.fetch_add(1, Ordering::SeqCst);
        let request = InProgress { counters: self, shard, began: Instant::now() };
        (!self.is_stopping.load(Ordering::SeqCst)).then_some(request)
    }

    /// Refuses new requests and waits until those in progress have ended, for at most `timeout`; the error
    /// is the number of those still running.
    pub(crate) fn stop(&self, timeout: Duration) -> Result<(), u64> {
        self.is_stopping.store(true, Ordering::SeqCst);
        let until = Instant::now() + timeout;
        let mut ended = self.ended.lock();
        while self.in_progress() > 0 {
            if self.changed.wait_until(&mut ended, until).timed_out() {
                let count = self.in_progress();
                return if count == 0 { Ok(()) } else { Err(count) };
            }
        }
        Ok(())
    }

    /// Returns whether new requests are refused.
    pub(crate) fn is_stopping(&self) -> bool {
        self.is_stopping.load(Ordering::SeqCst)
    }

    /// Returns the number of requests in progress.
    pub(crate) fn in_progress(&self) -> u64 {
        // A request is added to and removed from the same shard, so the sum is never negative.
        self.shards.iter().map(|shard| shard.in_progress.load(Ordering::SeqCst)).sum()
    }

    /// Returns the number of failed requests of a kind.
    pub(crate) fn failed(&self, operation: Operation) -> u64 {
        self.failed[operation as usize].load(Ordering::Relaxed)
    }
}

impl InProgress<'_> {
    /// Counts the outcome: the amount of a successful request, `None` for a failed one.
    pub(crate) fn count(&self, operation: Operation, outcome: Option<u64>) {
        self.counters.services.count_since(operation as usize, self.began);
        match outcome {
            Some(amount) => self.counters.succeeded.count(operation as usize, amount),
            None => {
                self.counters.failed[operation as usize].fetch_add(1, Ordering::Relaxed);
            }
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
    fn what_succeeds_and_what_fails_is_counted_apart_over_all_threads() {
        let counters = Counters::default();
        nacre_env::thread::scope(|scope| {
            for thread in 1..=4u64 {
                let counters = &counters;
                scope.spawn(move || {
                    for _ in 0..100 {
                        let request = counters.enter().expect("not stopping");
                        request.count(Operation::Write, Some(thread * 10));
                        request.count(Operation::Read, None);
                    }
                });
            }
        });
        let written = counters.succeeded.row(Operation::Write as usize);
        assert_eq!((written.samples, written.sum, written.min, written.max), (400, 10_000, 10, 40));
        assert_eq!((counters.failed(Operation::Write), counters.failed(Operation::Read)), (0, 400));
        assert_eq!(counters.succeeded.row(Operation::Read as usize).samples, 0);
        assert_eq!(counters.in_progress(), 0);
    }

    #[test]
    fn stopping_waits_for_requests_in_progress_and_refuses_new_ones() {
        let counters = Counters::default();
        let request = counters.enter().unwrap();
        assert_eq!(counters.stop(Duration::ZERO), Err(1));
        assert!(counters.enter().is_none());
        nacre_env::thread::scope(|scope| {
            let stopping = scope.spawn(|| counters.stop(Duration::from_secs(60)));
            drop(request);
            assert_eq!(stopping.join().unwrap(), Ok(()));
        });
    }
}
