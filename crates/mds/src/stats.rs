//! Operations of a metadata target, counted by kind: `mdt.*.md_stats`.

use nacre_params::{Event, EventStats};
use nacre_wire::mds::{MdsRequest, NewFile};
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
        MdsRequest::Create { new: NewFile::Directory, .. } => const { row("mkdir") },
        MdsRequest::Create { open: Some(_), .. } | MdsRequest::Open { .. } => const { row("open") },
        MdsRequest::Create { .. } => const { row("mknod") },
        MdsRequest::Close { .. } => const { row("close") },
        MdsRequest::Link { .. } => const { row("link") },
        MdsRequest::Unlink { directory: true, .. } => const { row("rmdir") },
        MdsRequest::Unlink { .. } => const { row("unlink") },
        MdsRequest::Rename { .. } => const { row("rename") },
        MdsRequest::GetAttr { .. } | MdsRequest::Lookup { .. } | MdsRequest::LookupMany { .. } => {
            const { row("getattr") }
        }
        MdsRequest::SetAttr { .. } => const { row("setattr") },
        MdsRequest::GetXattr { .. } | MdsRequest::ListXattr { .. } => const { row("getxattr") },
        MdsRequest::SetXattr { .. } | MdsRequest::RemoveXattr { .. } => const { row("setxattr") },
        MdsRequest::Statfs => const { row("statfs") },
        MdsRequest::Commit { .. } => const { row("sync") },
        _ => return None,
    })
}

/// Counters of a metadata target.
pub struct MdsStats(EventStats);

impl MdsStats {
    pub(crate) fn new() -> MdsStats {
        MdsStats(EventStats::new(EVENTS))
    }

    /// Counts a request that began at `start` and succeeded.
    pub(crate) fn count(&self, request: &MdsRequest<'_>, start: Instant) {
        let Some(row_of_request) = row_of(request) else { return };
        self.0.count_since(row_of_request, start);
        if let MdsRequest::Rename { from_parent, to_parent, .. } = request {
            let same = if from_parent == to_parent {
                const { row("samedir_rename") }
            } else {
                const { row("crossdir_rename") }
            };
            self.0.count_since(same, start);
        }
    }

    /// The text of `mdt.*.md_stats`.
    pub fn text(&self) -> String {
        self.0.text()
    }

    /// Counts from zero again.
    pub fn clear(&self) {
        self.0.clear();
    }
}
