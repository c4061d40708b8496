//! Changes that an MDT has acknowledged and that a power loss of its host may still undo.
//!
//! An MDT acknowledges a change when it is in its log, which survives the end of the process and becomes
//! durable within a second. If the host loses power before that, the next run of the MDT begins with an older
//! state, and the change is lost although its caller continues. The client records which inodes it has
//! changed beyond the last transaction known to be durable; when it connects to another run ([`RunStart`]),
//! it determines which of the changes that run began without. `fsync` and `close` of those inodes then fail,
//! once.

use nacre_env::sync::Mutex;
use nacre_types::Fid;
use nacre_wire::connect::RunStart;
use nacre_wire::mds::{MdsReply, MdsRequest, OpenFlags};
use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicUsize, Ordering};

/// Parts of the record, so that threads rarely contend; a power of two.
const SHARDS: usize = 16;
/// Changed inodes in one part from which on the MDT is asked to make them durable. An MDT does that every
/// second anyway, so this is reached at 65,000 changes a second only.
const SHARD_MAX: usize = 4096;
/// Lost changes that are kept until an `fsync` or `close` reports them.
const LOST_MAX: usize = SHARDS * SHARD_MAX;

/// Changes that one MDT has acknowledged and may lose.
#[derive(Default)]
pub(crate) struct Unsynced {
    /// The current run of the MDT, once it is known.
    run: Mutex<Option<RunStart>>,
    /// The last transaction that changed each inode.
    changed: [Mutex<HashMap<Fid, u64>>; SHARDS],
    /// Inodes whose changes are lost, until that is reported.
    lost: Mutex<HashSet<Fid>>,
    lost_count: AtomicUsize,
}

impl Unsynced {
    /// Records that the MDT has acknowledged transaction `transno`, which changed these inodes. True if the
    /// MDT should be asked to make its changes durable, because there are too many to record.
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

    /// Records that the MDT has begun this run. Returns of how many changed inodes it has lost a change;
    /// `None` if the run is not new.
    pub fn begin_run(&self, start: RunStart, last_committed: u64) -> Option<usize> {
        let before = self.run.lock().replace(start);
        let kept = kept_by(before, start, last_committed)?;
        let mut lost = self.lost.lock();
        let before = lost.len();
        for shard in &self.changed {
            // The state at its start is durable.
            for (fid, changed_by) in shard.lock().drain() {
                if changed_by > kept && lost.len() < LOST_MAX {
                    lost.insert(fid);
                }
            }
        }
        self.lost_count.store(lost.len(), Ordering::Release);
        Some(lost.len() - before)
    }

    /// True, once, if a change of this client to an inode was lost.
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

/// Returns the newest transaction of earlier runs that counts in a new one; `None` if the run is not a new
/// one.
fn kept_by(before: Option<RunStart>, start: RunStart, last_committed: u64) -> Option<u64> {
    match before {
        Some(before) if before.run == start.run => None,
        // Runs that this client has not seen may have reused transaction numbers that it knows for other
        // changes. While the host was up they have lost nothing.
        Some(before) if before.run + 1 != start.run && before.boot_id != start.boot_id => {
            Some(last_committed.min(start.newest))
        }
        _ => Some(start.newest),
    }
}

/// Returns the inodes that a request changes in a way that `fsync` promises to keep: not a report of a file's
/// size, which can be found again from its objects.
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
        // The new run uses the numbers again.
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
