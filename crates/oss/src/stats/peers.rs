//! Counts of an object target for each client address and for each job.

use super::{BrwStats, EVENTS, Operation};
use nacre_params::{Event, EventStats};
use nacre_wire::lock::LockRequest;

/// Counters of the clients at one address: `obdfilter.*.exports.NID.*`.
pub struct PeerStats {
    /// Successful requests, by [`Operation`].
    pub stats: EventStats,
    /// Messages about locks.
    pub ldlm_stats: EventStats,
    pub(crate) brw: BrwStats,
}

const LDLM_EVENTS: &[Event] = &[
    Event { name: "ldlm_enqueue", unit: "reqs" },
    Event { name: "ldlm_cancel", unit: "reqs" },
    Event { name: "ldlm_convert", unit: "reqs" },
    Event { name: "ldlm_replay", unit: "reqs" },
    Event { name: "ldlm_gl_callback", unit: "reqs" },
    Event { name: "ldlm_bl_callback", unit: "reqs" },
];

impl PeerStats {
    pub(crate) fn new() -> PeerStats {
        PeerStats {
            stats: EventStats::new(EVENTS),
            ldlm_stats: EventStats::new(LDLM_EVENTS),
            brw: BrwStats::default(),
        }
    }

    pub(crate) fn count_lock(&self, request: &LockRequest) {
        let row = match request {
            LockRequest::Enqueue { .. } => const { Event::index_of(LDLM_EVENTS, "ldlm_enqueue") },
            LockRequest::Cancel { .. } => const { Event::index_of(LDLM_EVENTS, "ldlm_cancel") },
            LockRequest::Convert { .. } => const { Event::index_of(LDLM_EVENTS, "ldlm_convert") },
            LockRequest::Replay { .. } | LockRequest::ReplayDone => {
                const { Event::index_of(LDLM_EVENTS, "ldlm_replay") }
            }
            LockRequest::Busy { .. } => const { Event::index_of(LDLM_EVENTS, "ldlm_bl_callback") },
            LockRequest::GlimpseAnswer { .. } => const { Event::index_of(LDLM_EVENTS, "ldlm_gl_callback") },
        };
        self.ldlm_stats.count(row, 1);
    }

    /// Returns reads and writes: the text of `brw_stats`.
    pub fn brw_stats(&self) -> String {
        self.brw.text()
    }

    /// Clears the counts of [`PeerStats::brw_stats`].
    pub fn clear_brw_stats(&self) {
        self.brw.clear();
    }

    /// Clears all counts.
    pub fn clear(&self) {
        self.stats.clear();
        self.ldlm_stats.clear();
        self.brw.clear();
    }
}

const fn timed(name: &'static str) -> Event {
    Event { name, unit: "usecs" }
}

/// Rows of `obdfilter.*.job_stats`, under Lustre's names.
pub(crate) const JOB_EVENTS: &[Event] = &[
    Event { name: "read_bytes", unit: "bytes" },
    Event { name: "write_bytes", unit: "bytes" },
    timed("read"),
    timed("write"),
    timed("getattr"),
    timed("setattr"),
    timed("punch"),
    timed("sync"),
    timed("destroy"),
    timed("create"),
    timed("statfs"),
    timed("get_info"),
    timed("set_info"),
    timed("quotactl"),
    timed("prealloc"),
];

const fn job_row(name: &str) -> usize {
    Event::index_of(JOB_EVENTS, name)
}

/// Returns the row for the time of an operation, and the row for its bytes. Pings and locks are not counted
/// for jobs.
pub(crate) fn job_rows(operation: Operation) -> Option<(usize, Option<usize>)> {
    Some(match operation {
        Operation::Read => const { (job_row("read"), Some(job_row("read_bytes"))) },
        Operation::Write => const { (job_row("write"), Some(job_row("write_bytes"))) },
        Operation::GetAttr => const { (job_row("getattr"), None) },
        Operation::Truncate => const { (job_row("punch"), None) },
        Operation::Fallocate => const { (job_row("prealloc"), None) },
        Operation::Seek => const { (job_row("get_info"), None) },
        Operation::Sync => const { (job_row("sync"), None) },
        Operation::Statfs => const { (job_row("statfs"), None) },
        Operation::Precreate => const { (job_row("create"), None) },
        Operation::DestroyOrphans | Operation::Destroy => const { (job_row("destroy"), None) },
        Operation::Grant => const { (job_row("set_info"), None) },
        Operation::Quota => const { (job_row("quotactl"), None) },
        Operation::Info => const { (job_row("get_info"), None) },
        Operation::Ping | Operation::Locks | Operation::Evict | Operation::Advise => return None,
    })
}
