//! Changes that an MDT has answered and that its host's power loss may still take back.
//!
//! An MDT answers a change when it is in its log, which survives the end of the process and becomes durable within a
//! second. If the host goes down before that, the next run of the MDT begins with an older state, and the change is gone
//! although its caller goes on. The client keeps which inodes it has changed since what it knows to be durable; when it
//! meets another run ([`RunStart`]), it finds out what that run did not begin with. `fsync` and `close` of those inodes
//! then fail, once.

use nacre_env::sync::Mutex;
use nacre_types::Fid;
use nacre_wire::connect::RunStart;
use nacre_wire::mds::{MdsReply, MdsRequest, OpenFlags};
use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicUsize, Ordering};

/// Parts of the record, so that threads rarely meet; a power of two.
const SHARDS: usize = 16;
/// Changed inodes that one part remembers before the MDT is asked to make them durable. An MDT does that every second by
/// itself, so this is reached at 65,000 changes a second only.
const SHARD_MAX: usize = 4096;
/// Lost changes that are remembered until an `fsync` or `close` reports them.
const LOST_MAX: usize = SHARDS * SHARD_MAX;

/// What one MDT has answered and may lose.
#[derive(Default)]
pub(crate) struct Unsynced {
    /// The run of the MDT that answers now, once it is known.
    run: Mutex<Option<RunStart>>,
    /// The last transaction that changed each inode.
    changed: [Mutex<HashMap<Fid, u64>>; SHARDS],
    /// Inodes whose changes are gone, until that was told.
    lost: Mutex<HashSet<Fid>>,
    lost_count: AtomicUsize,
}

impl Unsynced {
    /// The MDT has answered that transaction `transno` changed these inodes. True if it should be asked to make its
    /// changes durable: too many are to be remembered.
    pub fn note(&self, fids: impl Iterator<Item = Fid>, transno: u64, last_committed: u64) -> bool {
        let mut is_full = false;
        for fid in fids {
            let mut changed = self.changed[shard_of(&fid)].lock();
            if changed.len() >= SHARD_MAX {
                changed.retain(|_, changed_by| *changed_by > last_committed);
                is_full |= changed.len() >= SHARD_MAX;
            }
            let changed_by = changed.entry(fid).or_default();
            *changed_by = transno.max(*changed_by);
        }
        is_full
    }

    /// The MDT answers in this run from now on. Gives how many changed inodes it has lost something of;
    /// `None` if it did so before.
    pub fn begin_run(&self, start: RunStart, last_committed: u64) -> Option<usize> {
        let before = self.run.lock().replace(start);
        let kept = kept_by(before, start, last_committed)?;
        let mut lost = self.lost.lock();
        let before = lost.len();
        for shard in &self.changed {
            // What it began with is durable.
            for (fid, changed_by) in shard.lock().drain() {
                if changed_by > kept && lost.len() < LOST_MAX {
                    lost.insert(fid);
                }
            }
        }
        self.lost_count.store(lost.len(), Ordering::Release);
        Some(lost.len() - before)
    }

    /// True if something was lost that this client had changed of an inode; once.
    pub fn take_lost(&self, fid: &Fid) -> bool {
        if self.lost_count.load(Ordering::Acquire) == 0 {
            return false;
        }
        let mut lost = self.lost.lock();
        let was_lost = lost.remove(fid);
        self.lost_count.store(lost.len(), Ordering::Release);
        was_lost
    }
}

fn shard_of(fid: &Fid) -> usize {
    fid.oid as usize & (SHARDS - 1)
}

/// The newest transaction of earlier runs that counts in a new one; `None` if the run is not a new one.
fn kept_by(before: Option<RunStart>, start: RunStart, last_committed: u64) -> Option<u64> {
    match before {
        Some(before) if before.run == start.run => None,
        // Runs that this client has not met may have reached numbers that it knows for other changes. While the host was
        // up they have lost nothing.
        Some(before) if before.run + 1 != start.run && before.boot_id != start.boot_id => {
            Some(last_committed.min(start.newest))
        }
        _ => Some(start.newest),
    }
}

/// The inodes that a request changes in a way that `fsync` promises to keep: not the note of a file's size, which is found
/// out again from its objects.
pub(super) fn changed_by<'a>(request: &'a MdsRequest<'_>, reply: &'a MdsReply) -> impl Iterator<Item = Fid> {
    let (first, second) = match request {
        MdsRequest::SetAttr { fid, .. }
        | MdsRequest::LayoutIntent { fid, .. }
        | MdsRequest::LayoutAccess { fid, .. }
        | MdsRequest::SetLayout { fid, .. }
        | MdsRequest::SetXattr { fid, .. }
        | MdsRequest::RemoveXattr { fid, .. }
        | MdsRequest::CloseWrite { fid, .. } => (Some(*fid), None),
        MdsRequest::Open { fid, flags, .. } if flags.contains(OpenFlags::TRUNCATE) => (Some(*fid), None),
        MdsRequest::Create { parent, .. } => match reply {
            MdsReply::Created { attr, .. } | MdsReply::Attr(attr) => (Some(*parent), Some(attr.fid)),
            _ => (Some(*parent), None),
        },
        MdsRequest::Link { fid, parent, .. } => (Some(*parent), Some(*fid)),
        MdsRequest::Unlink { parent, .. } => match reply {
            MdsReply::Removed { fid, .. } => (Some(*parent), Some(*fid)),
            _ => (Some(*parent), None),
        },
        MdsRequest::Rename { from_parent, to_parent, .. } => (Some(*from_parent), Some(*to_parent)),
        MdsRequest::SwapLayouts { first, second, .. } => (Some(*first), Some(*second)),
        _ => (None, None),
    };
    first.into_iter().chain(second)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fid(oid: u32) -> Fid {
        Fid::new(7, oid, 0)
    }

    fn start(run: u64, newest: u64, boot: u8) -> RunStart {
        RunStart { run, newest, boot_id: [boot; 16] }
    }

    fn noted(changes: &[(u32, u64)]) -> Unsynced {
        let unsynced = Unsynced::default();
        assert_eq!(unsynced.begin_run(start(3, 10, 1), 0), Some(0));
        for (oid, transno) in changes {
            assert!(!unsynced.note([fid(*oid)].into_iter(), *transno, 0));
        }
        unsynced
    }

    #[test]
    fn what_a_run_did_not_begin_with_is_lost_and_told_once() {
        let unsynced = noted(&[(1, 11), (2, 12), (3, 13), (1, 14)]);
        assert_eq!(unsynced.begin_run(start(3, 10, 1), 0), None, "the same run");
        assert_eq!(unsynced.begin_run(start(4, 12, 2), 0), Some(2));
        assert_eq!([1, 2, 3, 4].map(|oid| unsynced.take_lost(&fid(oid))), [true, false, true, false]);
        assert!(!unsynced.take_lost(&fid(1)));
        // The numbers are used again.
        assert!(!unsynced.note([fid(5)].into_iter(), 13, 0));
        assert_eq!(unsynced.begin_run(start(5, 13, 3), 0), Some(0));
    }

    #[test]
    fn a_process_that_ended_has_lost_nothing_however_often() {
        let unsynced = noted(&[(1, 11)]);
        assert_eq!(unsynced.begin_run(start(4, 11, 1), 0), Some(0));
        assert!(!unsynced.note([fid(1)].into_iter(), 12, 0));
        assert_eq!(unsynced.begin_run(start(9, 200, 1), 0), Some(0));
    }

    #[test]
    fn after_runs_on_other_boots_that_were_missed_only_what_was_committed_counts() {
        let unsynced = noted(&[(1, 11), (2, 12)]);
        assert_eq!(unsynced.begin_run(start(6, 200, 2), 11), Some(1));
        assert!(unsynced.take_lost(&fid(2)) && !unsynced.take_lost(&fid(1)));
    }

    #[test]
    fn the_record_is_bounded_by_what_is_not_durable() {
        let unsynced = Unsynced::default();
        let count = (SHARDS * SHARD_MAX) as u32;
        let is_full =
            |oid: u32, committed: u64| unsynced.note([fid(oid)].into_iter(), u64::from(oid) + 1, committed);
        assert!((0..count).all(|oid| !is_full(oid, 0)));
        assert!(is_full(count, 0), "it asks for a commit");
        assert!(!is_full(count + 16, u64::from(count)), "what is durable need not be remembered");
        assert!(unsynced.changed[0].lock().len() < 4);
    }
}
