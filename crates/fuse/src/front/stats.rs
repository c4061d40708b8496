//! Requests of programs to the mount, counted by kind: `llite.*.stats`.

use super::extents::{ExtentsStats, Way};
use crate::reply::{Reply, State};
use crate::request::{Operation, Read, Request};
use nacre_env::clock::Instant;
use nacre_params::{Event, EventStats};

const fn timed(name: &'static str) -> Event {
    Event { name, unit: "usecs" }
}

const fn sized(name: &'static str) -> Event {
    Event { name, unit: "bytes" }
}

/// Rows in the order of the text; names as in Lustre's `llite.*.stats`, and in addition `lookup` and
/// `readlink`, which are not requests in Lustre.
const EVENTS: &[Event] = &[
    sized("read_bytes"),
    sized("write_bytes"),
    timed("read"),
    timed("write"),
    timed("ioctl"),
    timed("open"),
    timed("close"),
    timed("seek"),
    timed("fsync"),
    timed("readdir"),
    timed("setattr"),
    timed("truncate"),
    timed("flock"),
    timed("getattr"),
    timed("fallocate"),
    timed("create"),
    timed("lookup"),
    timed("link"),
    timed("unlink"),
    timed("symlink"),
    timed("readlink"),
    timed("mkdir"),
    timed("rmdir"),
    timed("mknod"),
    timed("rename"),
    timed("statfs"),
    timed("setxattr"),
    timed("getxattr"),
    timed("listxattr"),
    timed("removexattr"),
    timed("inode_permission"),
];

const fn row(name: &str) -> usize {
    Event::index_of(EVENTS, name)
}

/// Returns the row of a request, if it is counted.
fn row_of(operation: &Operation<'_>) -> Option<usize> {
    Some(match operation {
        Operation::Read { .. } => const { row("read") },
        Operation::Write(_) => const { row("write") },
        Operation::Ioctl(_) => const { row("ioctl") },
        Operation::Open { .. } => const { row("open") },
        Operation::Release { .. } => const { row("close") },
        Operation::LSeek { .. } => const { row("seek") },
        Operation::Fsync { .. } | Operation::FsyncDir { .. } => const { row("fsync") },
        Operation::ReadDir { .. } | Operation::ReadDirPlus { .. } => const { row("readdir") },
        Operation::SetAttr(set) if set.size.is_some() => const { row("truncate") },
        Operation::SetAttr(_) => const { row("setattr") },
        Operation::SetLk { .. } | Operation::GetLk { .. } => const { row("flock") },
        Operation::GetAttr { .. } | Operation::Statx { .. } => const { row("getattr") },
        Operation::FAllocate { .. } => const { row("fallocate") },
        Operation::Create { .. } | Operation::TmpFile { .. } => const { row("create") },
        Operation::Lookup { .. } => const { row("lookup") },
        Operation::Link { .. } => const { row("link") },
        Operation::Unlink { .. } => const { row("unlink") },
        Operation::Symlink { .. } => const { row("symlink") },
        Operation::ReadLink => const { row("readlink") },
        Operation::MkDir { .. } => const { row("mkdir") },
        Operation::RmDir { .. } => const { row("rmdir") },
        Operation::MkNod { .. } => const { row("mknod") },
        Operation::Rename { .. } => const { row("rename") },
        Operation::StatFs => const { row("statfs") },
        Operation::SetXattr { .. } => const { row("setxattr") },
        Operation::GetXattr { .. } => const { row("getxattr") },
        Operation::ListXattr { .. } => const { row("listxattr") },
        Operation::RemoveXattr { .. } => const { row("removexattr") },
        Operation::Access { .. } => const { row("inode_permission") },
        _ => return None,
    })
}

/// Counters of a mount.
pub struct FrontStats {
    events: EventStats,
    extents: ExtentsStats,
}

impl FrontStats {
    pub(super) fn new() -> FrontStats {
        FrontStats { events: EventStats::with_times(EVENTS), extents: ExtentsStats::default() }
    }

    /// Returns the statistics of reads and writes by size and position.
    pub fn extents(&self) -> &ExtentsStats {
        &self.extents
    }

    /// Counts a request that began at `start` and succeeded; failed ones do not count.
    pub(super) fn count(&self, request: &Request<'_>, reply: &Reply<'_>, start: Instant) {
        let Some(index) = row_of(&request.op) else { return };
        self.events.count_since(index, start);
        match (&request.op, reply.state()) {
            (Operation::Read(Read { offset, .. }), State::Small(length) | State::Bulk(length)) => {
                self.extents.count(Way::Read, request.pid, request.node_id, *offset, length as u64);
                self.events.count(const { row("read_bytes") }, length as u64);
            }
            (Operation::Write(write), _) => {
                let length = write.data.len() as u64;
                self.extents.count(Way::Write, request.pid, request.node_id, write.offset, length);
                self.events.count(const { row("write_bytes") }, length);
            }
            _ => {}
        }
    }

    /// Returns the requests by kind.
    pub fn events(&self) -> &EventStats {
        &self.events
    }

    /// Returns the text of `llite.*.stats`.
    pub fn text(&self) -> String {
        self.events.text()
    }

    /// Resets the counters.
    pub fn clear(&self) {
        self.events.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_have_their_rows_and_those_of_the_channel_none() {
        assert!(row_of(&Operation::StatFs).is_some() && row_of(&Operation::ReadLink).is_some());
        assert_eq!(row_of(&Operation::Destroy), None);
    }
}
