//! Operations of a metadata target, counted by kind: `mdt.*.md_stats`.

use nacre_params::{Event, EventStats, JobStats};
use nacre_rpc::{Export, Exports};
use nacre_types::JobId;
use nacre_wire::mds::{MdsRequest, NewFile};
use std::sync::Arc;
use std::time::Instant;

const fn timed(name: &'static str) -> Event {
    Event { name, unit: "usecs" }
}

/// Rows in the order of the text, with Lustre's names.
const EVENTS: &[Event] = &[
    timed("open"),
    timed("close"),
    timed("mknod"),
    timed("link"),
    timed("unlink"),
    timed("mkdir"),
    timed("rmdir"),
    timed("rename"),
    timed("getattr"),
    timed("setattr"),
    timed("getxattr"),
    timed("setxattr"),
    timed("statfs"),
    timed("sync"),
    timed("samedir_rename"),
    timed("crossdir_rename"),
];

const fn row(name: &str) -> usize {
    Event::index_of(EVENTS, name)
}

/// Which row a request belongs to, if any.
fn row_of(request: &MdsRequest<'_>) -> Option<usize> {
    Some(match request {
        MdsRequest::Create {
            new: NewFile::Directory | NewFile::Striped { .. } | NewFile::ChosenDirectory { .. },
            ..
        } => const { row("mkdir") },
        MdsRequest::Create { open: Some(_), .. } | MdsRequest::Open { .. } => const { row("open") },
        MdsRequest::Create { .. } => const { row("mknod") },
        MdsRequest::Close { .. } | MdsRequest::CloseWrite { .. } => const { row("close") },
        MdsRequest::Link { .. } => const { row("link") },
        MdsRequest::Unlink { directory: true, .. } => const { row("rmdir") },
        MdsRequest::Unlink { .. } => const { row("unlink") },
        MdsRequest::Rename { .. } => const { row("rename") },
        MdsRequest::GetAttr { .. }
        | MdsRequest::Lookup { .. }
        | MdsRequest::LookupMany { .. }
        | MdsRequest::Intent { .. } => const { row("getattr") },
        MdsRequest::SetAttr { .. } => const { row("setattr") },
        MdsRequest::GetXattr { .. } | MdsRequest::ListXattr { .. } => const { row("getxattr") },
        MdsRequest::SetXattr { .. } | MdsRequest::RemoveXattr { .. } => const { row("setxattr") },
        MdsRequest::Statfs => const { row("statfs") },
        MdsRequest::Commit { .. } => const { row("sync") },
        _ => return None,
    })
}

/// The second row of a rename.
fn rename_row(request: &MdsRequest<'_>) -> Option<usize> {
    match request {
        MdsRequest::Rename { from_parent, to_parent, .. } if from_parent == to_parent => {
            Some(const { row("samedir_rename") })
        }
        MdsRequest::Rename { .. } => Some(const { row("crossdir_rename") }),
        _ => None,
    }
}

/// Counters of a metadata target.
pub struct MdsStats {
    all: EventStats,
    jobs: JobStats,
    exports: Exports<EventStats>,
}

impl MdsStats {
    pub(crate) fn new() -> MdsStats {
        MdsStats { all: EventStats::new(EVENTS), jobs: JobStats::new(EVENTS), exports: Exports::default() }
    }

    /// A client connects: what it asks is counted with its address too.
    pub(crate) fn join(&self, export: &Arc<Export>) {
        self.exports.join(export, || EventStats::new(EVENTS));
    }

    /// Counts a request that began at `start` and succeeded.
    pub(crate) fn count(
        &self,
        export: &Export,
        job: Option<&JobId>,
        request: &MdsRequest<'_>,
        start: Instant,
    ) {
        let Some(row) = row_of(request) else { return };
        let took_us = start.elapsed().as_micros() as u64;
        let also = rename_row(request);
        for stats in [Some(&self.all), export.counters::<EventStats>()].into_iter().flatten() {
            stats.count(row, took_us);
            also.iter().for_each(|row| stats.count(*row, took_us));
        }
        match (job, also) {
            (Some(job), Some(also)) => self.jobs.count(job, &[(row, took_us), (also, took_us)]),
            (Some(job), None) => self.jobs.count(job, &[(row, took_us)]),
            (None, _) => {}
        }
    }

    /// Requests by the job that they are for; `mdt.*.job_stats`.
    pub fn jobs(&self) -> &JobStats {
        &self.jobs
    }

    /// Requests by the address that they came from; `mdt.*.exports.*`.
    pub fn exports(&self) -> &Exports<EventStats> {
        &self.exports
    }

    /// The text of `mdt.*.md_stats`.
    pub fn text(&self) -> String {
        self.all.text()
    }

    /// Counts from zero again.
    pub fn clear(&self) {
        self.all.clear();
    }
}
