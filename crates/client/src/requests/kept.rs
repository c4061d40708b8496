//! Changes that an MDT has acknowledged and that a power loss of its host may still undo.
//!
//! An MDT acknowledges a change when it is in its log, which survives the end of the process and becomes
//! durable within a second. The client keeps each change until it is durable. If the host of the MDT loses power
//! before that, the next run of the MDT begins with an older state: [`RunStart`] shows which changes it lacks. The
//! client replays them; `fsync` and `close` of the inodes of those that cannot be replayed fail, once.

use nacre_env::sync::Mutex;
use nacre_types::{Cred, Fid, TransNo};
use nacre_wire::connect::RunStart;
use nacre_wire::mds::{MdsAnswer, MdsReply, MdsRequest, OpenFlags};
use nacre_wire::replay::ReplayedChange;
use std::collections::{HashSet, VecDeque};
use std::sync::atomic::{AtomicUsize, Ordering};

/// Bytes of kept changes from which on the MDT is asked to make them durable. An MDT does that every second anyway, so
/// this is reached at some 100,000 changes a second only.
const KEPT_BYTES_MAX: usize = 64 << 20;
/// Lost changes that are recorded until an `fsync` or `close` reports them.
const LOST_MAX: usize = 1 << 16;

#[derive(Default)]
struct Changes {
    /// The current run of the MDT, once it is known.
    run: Option<RunStart>,
    /// Nearly in the order of their transnos: threads enter them after the answer.
    all: VecDeque<ReplayedChange>,
    bytes: usize,
}

impl Changes {
    fn push(&mut self, change: ReplayedChange) {
        self.bytes += change.len_bytes();
        self.all.push_back(change);
    }

    /// Removes changes that are durable.
    fn trim(&mut self, committed: TransNo) {
        while let Some(first) = self.all.front()
            && first.transno <= committed
        {
            self.bytes -= first.len_bytes();
            self.all.pop_front();
        }
    }
}

/// Changes that one MDT has acknowledged and may lose.
#[derive(Default)]
pub(crate) struct Kept {
    changes: Mutex<Changes>,
    /// Inodes whose changes are lost, until that is reported.
    lost: Mutex<HashSet<Fid>>,
    lost_count: AtomicUsize,
}

/// What follows from a new change.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Noted {
    Kept,
    /// The MDT should be asked to make its changes durable, because there are too many to keep.
    Full,
    /// The MDT has restarted without it since.
    Lost,
}

impl Kept {
    /// Records an acknowledged change; `committed` is the last durable transaction.
    pub fn note(&self, change: ReplayedChange, committed: TransNo) -> Noted {
        let transno = change.transno;
        let mut changes = self.changes.lock();
        changes.trim(committed);
        changes.push(change);
        match &changes.run {
            Some(run) if run.has_lost(transno) => Noted::Lost,
            _ if changes.bytes > KEPT_BYTES_MAX => Noted::Full,
            _ => Noted::Kept,
        }
    }

    /// Records that the MDT has begun this run, and takes the changes that it lacks, in their order. What it has is
    /// durable.
    pub fn begin_run(&self, start: RunStart) -> Vec<ReplayedChange> {
        let mut changes = self.changes.lock();
        let newest = start.losses.last().copied().unwrap_or_default();
        let (mut lost, mut later) = (Vec::new(), Changes::default());
        for change in std::mem::take(&mut *changes).all {
            match start.has_lost(change.transno) {
                true => lost.push(change),
                false if change.transno > newest => later.push(change),
                false => {}
            }
        }
        *changes = Changes { run: Some(start), ..later };
        lost.sort_by_key(|change| change.transno);
        lost.dedup_by_key(|change| change.transno);
        lost
    }

    /// Enters changes again whose replay did not end.
    pub fn restore(&self, changes: impl Iterator<Item = ReplayedChange>) {
        let mut kept = self.changes.lock();
        changes.for_each(|change| kept.push(change));
    }

    /// Records that a change is lost, since it cannot be replayed, for an `fsync` or `close` of its inodes.
    pub fn lose(&self, change: &ReplayedChange) {
        let mut lost = self.lost.lock();
        for fid in changed_by(change) {
            if lost.len() < LOST_MAX {
                lost.insert(fid);
            }
        }
        self.lost_count.store(lost.len(), Ordering::Release);
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

    /// Returns the number of kept changes and their bytes.
    #[cfg(test)]
    pub fn count(&self) -> (usize, usize) {
        let changes = self.changes.lock();
        (changes.all.len(), changes.bytes)
    }
}

/// Returns the change to be kept for a request that changed something; `None` if it need not be replayed: what a
/// close reports can be found again from the objects, sequences are skipped after a power loss, and exchanges and moves
/// are durable when they are answered.
pub(super) fn kept_of(cred: &Cred, request: &MdsRequest<'_>, answer: &MdsAnswer) -> Option<ReplayedChange> {
    let is_replayed = !matches!(
        request,
        MdsRequest::Close { .. }
            | MdsRequest::UpdateData { .. }
            | MdsRequest::AllocateSequence
            | MdsRequest::SwapLayouts { .. }
            | MdsRequest::Migrate { .. }
            | MdsRequest::MigrateFiles { .. }
    );
    is_replayed.then(|| ReplayedChange::new(cred, request, answer))
}

/// Returns the inodes that a change concerns, as far as `fsync` promises to keep it.
fn changed_by(change: &ReplayedChange) -> impl Iterator<Item = Fid> + use<> {
    use nacre_wire::Decode;
    let request = MdsRequest::from_bytes(&change.request.0);
    let reply = MdsReply::from_bytes(&change.reply.0);
    let (first, second) = match (request, reply) {
        (Ok(request), Ok(reply)) => fids_of(&request, &reply),
        _ => (None, None),
    };
    first.into_iter().chain(second)
}

fn fids_of(request: &MdsRequest<'_>, reply: &MdsReply) -> (Option<Fid>, Option<Fid>) {
    match request {
        MdsRequest::SetAttr { fid, .. }
        | MdsRequest::LayoutIntent { fid, .. }
        | MdsRequest::LayoutAccess { fid, .. }
        | MdsRequest::SetLayout { fid, .. }
        | MdsRequest::SetXattr { fid, .. }
        | MdsRequest::RemoveXattr { fid, .. }
        | MdsRequest::CloseWrite { fid, .. } => (Some(*fid), None),
        // Objects of a file on an MDT have its FID, up to the version.
        MdsRequest::DataChange { object, .. } => (Some(Fid { ver: 0, ..*object }), None),
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
        _ => (None, None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nacre_types::attr::Attr;
    use nacre_types::{FileKind, SetAttr};
    use nacre_wire::connect::RUN_GAP;

    fn fid(oid: u32) -> Fid {
        Fid::new(7, oid, 0)
    }

    fn change(oid: u32, transno: u64) -> ReplayedChange {
        let attr = Attr { fid: fid(oid), mode: FileKind::Regular.mode_bits(), ..Attr::default() };
        let answer = MdsAnswer { transno: TransNo(transno), ..MdsReply::Attr(attr).into() };
        let request = MdsRequest::SetAttr { fid: fid(oid), set: SetAttr::default() };
        kept_of(&Cred::system(), &request, &answer).expect("kept")
    }

    fn start(losses: &[u64], replayed: u64) -> RunStart {
        let losses = losses.iter().copied().map(TransNo).collect();
        RunStart { run: 3, boot_id: [1; 16], losses, replayed: TransNo(replayed) }
    }

    fn noted(changes: &[(u32, u64)]) -> Kept {
        let kept = Kept::default();
        assert!(kept.begin_run(start(&[], 0)).is_empty());
        for (oid, transno) in changes {
            assert_eq!(kept.note(change(*oid, *transno), TransNo(0)), Noted::Kept);
        }
        kept
    }

    fn transnos(changes: &[ReplayedChange]) -> Vec<u64> {
        changes.iter().map(|change| change.transno.0).collect()
    }

    #[test]
    fn a_new_run_gets_the_changes_that_it_lacks_in_their_order() {
        let kept = noted(&[(1, 11), (3, 13), (2, 12), (1, 14)]);
        assert_eq!(transnos(&kept.begin_run(start(&[12], 0))), [13, 14]);
        assert!(kept.begin_run(start(&[12], 0)).is_empty(), "they are taken once");
        assert_eq!(kept.count(), (0, 0), "what the run began with is durable");
    }

    #[test]
    fn changes_that_were_replayed_before_another_crash_are_not_replayed_again() {
        let kept = noted(&[(1, 11), (2, 12), (3, 13)]);
        let lost = kept.begin_run(start(&[10], 0));
        kept.restore(lost.into_iter());
        assert_eq!(transnos(&kept.begin_run(start(&[10, 11 + RUN_GAP], 12))), [13]);
    }

    #[test]
    fn changes_of_the_current_run_stay() {
        let kept = noted(&[(1, 11), (2, 11 + RUN_GAP)]);
        assert_eq!(transnos(&kept.begin_run(start(&[10], 0))), [11]);
        assert_eq!(kept.note(change(2, 12 + RUN_GAP), TransNo(0)), Noted::Kept);
        assert!(kept.begin_run(start(&[10], 0)).is_empty());
        assert_eq!(kept.count().0, 2);
    }

    #[test]
    fn an_answer_that_is_entered_after_the_recovery_is_found_to_be_lost() {
        let kept = noted(&[]);
        assert!(kept.begin_run(start(&[10], 0)).is_empty());
        assert_eq!(kept.note(change(1, 11), TransNo(0)), Noted::Lost);
        assert_eq!(kept.note(change(1, 10), TransNo(0)), Noted::Kept);
    }

    #[test]
    fn inodes_of_changes_that_cannot_be_replayed_are_reported_once() {
        let kept = noted(&[]);
        kept.lose(&change(1, 11));
        kept.lose(&change(1, 12));
        assert_eq!([1, 2, 1].map(|oid| kept.take_lost(&fid(oid))), [true, false, false]);
    }

    #[test]
    fn what_is_durable_is_dropped_and_the_rest_is_bounded() {
        let kept = noted(&[(1, 11), (2, 12)]);
        assert_eq!(kept.note(change(3, 13), TransNo(12)), Noted::Kept);
        assert_eq!(kept.count(), (1, change(3, 13).len_bytes()));
        let mut large = change(4, 14);
        large.request.0.resize(KEPT_BYTES_MAX, 0);
        assert_eq!(kept.note(large, TransNo(12)), Noted::Full);
        assert_eq!(kept.note(change(5, 15), TransNo(14)), Noted::Kept);
        assert_eq!(kept.count().0, 1);
    }
}
