//! Operations of a metadata target, counted by kind: `mdt.*.md_stats`.

use nacre_env::clock::Instant;
use nacre_params::{Event, EventStats, JobStats};
use nacre_rpc::{Export, Exports};
use nacre_types::JobId;
use nacre_wire::mds::{MdsRequest, NewFile};
use std::sync::Arc;

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

/// Lustre's services of metadata servers, and the requests of each.
pub const SERVICES: [(&str, &[&str]); 4] = [
    (
        "mdt",
        &[
            "mds_getattr",
            "mds_getattr_lock",
            "mds_reint_setattr",
            "mds_reint_create",
            "mds_reint_link",
            "mds_reint_unlink",
            "mds_reint_rename",
            "mds_reint_open",
            "mds_reint_setxattr",
            "mds_reint_migrate",
            "mds_getxattr",
            "mds_statfs",
            "mds_sync",
            "mds_get_info",
            "mds_swap_layouts",
            "mds_rmfid",
            "ldlm_ibits_enqueue",
            "ldlm_flock_enqueue",
            "obd_ping",
        ],
    ),
    ("mdt_out", &["out_update"]),
    ("mdt_readpage", &["mds_readpage", "mds_close"]),
    ("mdt_seqs", &["seq_query"]),
];

/// The rows of services.
const SERVICE_EVENTS: &[Event] = &{
    let mut events = [timed(""); 23];
    let (mut service, mut count) = (0, 0);
    while service < SERVICES.len() {
        let mut row = 0;
        while row < SERVICES[service].1.len() {
            events[count] = timed(SERVICES[service].1[row]);
            count += 1;
            row += 1;
        }
        service += 1;
    }
    assert!(count == events.len(), "as many rows as the services have");
    events
};

/// Returns Lustre's name of a request.
pub(crate) fn service_name(request: &MdsRequest<'_>) -> &'static str {
    SERVICE_EVENTS[service_row(request)].name
}

/// Returns the row of a service for a request.
fn service_row(request: &MdsRequest<'_>) -> usize {
    const fn of(name: &str) -> usize {
        Event::index_of(SERVICE_EVENTS, name)
    }
    match request {
        MdsRequest::GetAttr { .. } | MdsRequest::Access { .. } | MdsRequest::ReadLink { .. } => {
            const { of("mds_getattr") }
        }
        MdsRequest::Lookup { .. } | MdsRequest::LookupMany { .. } | MdsRequest::ListInodes { .. } => {
            const { of("mds_getattr_lock") }
        }
        MdsRequest::SetAttr { .. } | MdsRequest::UpdateData { .. } => const { of("mds_reint_setattr") },
        MdsRequest::Create { open: Some(_), .. } | MdsRequest::Open { .. } | MdsRequest::OpenLease { .. } => {
            const { of("mds_reint_open") }
        }
        MdsRequest::Create { .. } => const { of("mds_reint_create") },
        MdsRequest::Link { .. } => const { of("mds_reint_link") },
        MdsRequest::Unlink { .. } => const { of("mds_reint_unlink") },
        MdsRequest::Rename { .. } => const { of("mds_reint_rename") },
        MdsRequest::Restripe { .. } | MdsRequest::Migrate { .. } | MdsRequest::MigrateFiles { .. } => {
            const { of("mds_reint_migrate") }
        }
        MdsRequest::SetXattr { .. } | MdsRequest::RemoveXattr { .. } | MdsRequest::SetLayout { .. } => {
            const { of("mds_reint_setxattr") }
        }
        MdsRequest::GetXattr { .. }
        | MdsRequest::ListXattr { .. }
        | MdsRequest::GetLayout { .. }
        | MdsRequest::Capabilities { .. }
        | MdsRequest::GetDefaultLayout { .. } => const { of("mds_getxattr") },
        MdsRequest::Statfs => const { of("mds_statfs") },
        MdsRequest::Commit { .. } => const { of("mds_sync") },
        MdsRequest::SwapLayouts { .. } => const { of("mds_swap_layouts") },
        MdsRequest::RemoveFid { .. } => const { of("mds_rmfid") },
        MdsRequest::Intent { .. }
        | MdsRequest::LayoutIntent { .. }
        | MdsRequest::LayoutAccess { .. }
        | MdsRequest::Locks { .. } => const { of("ldlm_ibits_enqueue") },
        MdsRequest::SetLock { .. }
        | MdsRequest::LockFile { .. }
        | MdsRequest::ReplayFileLocks { .. }
        | MdsRequest::GetLock { .. } => const { of("ldlm_flock_enqueue") },
        MdsRequest::Ping
        | MdsRequest::LeaseReleased { .. }
        | MdsRequest::LeaseBusy { .. }
        | MdsRequest::RunStart
        | MdsRequest::Replay { .. }
        | MdsRequest::DataChange { .. }
        | MdsRequest::RecoveryDone => const { of("obd_ping") },
        MdsRequest::Peer(_) => const { of("out_update") },
        MdsRequest::ReadDir { .. } | MdsRequest::Scan { .. } => const { of("mds_readpage") },
        MdsRequest::Close { .. } | MdsRequest::CloseWrite { .. } => const { of("mds_close") },
        MdsRequest::AllocateSequence => const { of("seq_query") },
        MdsRequest::FidToLink { .. }
        | MdsRequest::FidToPath { .. }
        | MdsRequest::FilesOn { .. }
        | MdsRequest::Changelog(_)
        | MdsRequest::Quota(_)
        | MdsRequest::DirUse(_)
        | MdsRequest::Inodes { .. } => const { of("mds_get_info") },
    }
}

/// Returns the row of a request, if it has one.
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

/// Returns the second row of a rename.
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
    services: EventStats,
    jobs: JobStats,
    exports: Exports<EventStats>,
}

impl MdsStats {
    pub(crate) fn new() -> MdsStats {
        MdsStats {
            all: EventStats::new(EVENTS),
            services: EventStats::with_times(SERVICE_EVENTS),
            jobs: JobStats::new(EVENTS),
            exports: Exports::default(),
        }
    }

    /// Registers a client: its requests are also counted by its address.
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

    /// Counts a request that began at `start`, with any result, for its service.
    pub(crate) fn count_service(&self, request: &MdsRequest<'_>, start: Instant) {
        self.services.count_since(service_row(request), start);
    }

    /// Returns the requests by their names in Lustre, see [`SERVICES`].
    pub fn services(&self) -> &EventStats {
        &self.services
    }

    /// Returns the operations that succeeded by kind; `mdt.*.md_stats`.
    pub fn operations(&self) -> &EventStats {
        &self.all
    }

    /// Returns the requests by jobid; `mdt.*.job_stats`.
    pub fn jobs(&self) -> &JobStats {
        &self.jobs
    }

    /// Returns the requests by the address of their client; `mdt.*.exports.*`.
    pub fn exports(&self) -> &Exports<EventStats> {
        &self.exports
    }

    /// Returns the text of `mdt.*.md_stats`.
    pub fn text(&self) -> String {
        self.all.text()
    }

    /// Resets the counters.
    pub fn clear(&self) {
        self.all.clear();
    }
}
