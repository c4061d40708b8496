//! Counts that follow commits: use by owner ([`Quotas`]), and use below directories ([`DirUse`]).
//!
//! Each commit adds the differences between the old and the new records of its inodes. What the counts do not have
//! at the start of a run is read from all records in the background, once for both: a commit counts for inodes that
//! the reader has passed.

use crate::dir_use::{DirUse, Place};
use crate::error::MdsError;
use crate::quota::{Cost, Quotas, is_same_cost};
use crate::records::Records;
use crate::signal::StopSignal;
use crate::tables::INODES;
use crate::tx::Tx;
use nacre_env::sync::{RwLock, RwLockReadGuard};
use nacre_env::thread::JoinHandle;
use nacre_ondisk::InodeRecord;
use nacre_quota::Book;
use nacre_store::{MetaError, MetaStore};
use nacre_types::{Fid, Owners};
use smallvec::SmallVec;
use std::ops::{Bound, ControlFlow};
use std::sync::Arc;

/// Inodes that one step of the reader reads.
const COUNT_STEP: usize = 1024;

/// How far the reader has come.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Passed {
    /// All inodes up to this one are counted.
    Upto(Option<Fid>),
    /// Everything is counted.
    All,
    /// Nothing is counted.
    Off,
}

impl Passed {
    fn has(self, fid: &Fid) -> bool {
        match self {
            Passed::All => true,
            Passed::Upto(last) => last.is_some_and(|last| *fid <= last),
            Passed::Off => false,
        }
    }
}

/// Progress of both counts.
struct Progress {
    owners: Passed,
    dirs: Passed,
}

impl Progress {
    /// Returns the inode after which the reader continues; `None` if there is nothing to read.
    fn next(&self) -> Option<Option<Fid>> {
        let upto = |passed: Passed| match passed {
            Passed::Upto(last) => Some(last),
            Passed::All | Passed::Off => None,
        };
        upto(self.owners).into_iter().chain(upto(self.dirs)).min()
    }
}

/// A value before and after a commit.
type Pair<T> = (Option<T>, Option<T>);

/// The change of one inode. Values that stay the same are equal or missing.
struct Change {
    fid: Fid,
    costs: Pair<Cost>,
    places: Pair<Place>,
}

impl Change {
    fn of(fid: Fid, old: Option<&InodeRecord>, new: Option<&InodeRecord>) -> Change {
        let is_same = |same: fn(&InodeRecord, &InodeRecord) -> bool| {
            old.zip(new).is_some_and(|(old, new)| same(old, new))
        };
        // Costs are found in layouts, which take a while to decode.
        let costs = match is_same(is_same_cost) {
            true => (None, None),
            false => (old.map(Cost::of), new.map(Cost::of)),
        };
        let places = match is_same(is_same_place) {
            true => (None, None),
            false => (old.and_then(Place::of), new.and_then(Place::of)),
        };
        Change { fid, costs, places }
    }

    fn is_none(&self) -> bool {
        self.costs.0 == self.costs.1 && self.places.0 == self.places.1
    }
}

/// See the [module documentation](self).
pub(crate) struct Counting {
    index: u16,
    store: Arc<MetaStore>,
    quotas: Arc<Quotas>,
    dirs: Arc<DirUse>,
    progress: RwLock<Progress>,
}

/// Changes of a transaction, which take effect with its commit.
#[must_use = "the changes are counted after the commit"]
pub(crate) struct Uncommitted<'a> {
    counting: &'a Counting,
    changes: SmallVec<[Change; 2]>,
    /// Neither the reader nor an administrator's switch comes between the commit and its count.
    progress: Option<RwLockReadGuard<'a, Progress>>,
}

impl Uncommitted<'_> {
    /// Returns the files with objects that get other owners.
    pub fn moved(&self) -> impl Iterator<Item = (Fid, Owners)> + '_ {
        self.changes.iter().filter_map(|change| {
            let (old, new) = (change.costs.0?, change.costs.1?);
            (old.owners != new.owners).then_some((change.fid, new.owners))
        })
    }

    /// Counts the changes, which are committed.
    pub fn commit(self) {
        let Some(progress) = &self.progress else { return };
        for Change { fid, costs: (old, new), places } in &self.changes {
            if old != new {
                let how = if progress.owners.has(fid) { Book::add } else { Book::assume };
                self.counting.quotas.change(how, old.as_ref(), -1);
                self.counting.quotas.change(how, new.as_ref(), 1);
            }
            if places.0 != places.1 && progress.dirs.has(fid) {
                self.counting.dirs.change(fid, places.0.as_ref(), places.1.as_ref());
            }
        }
    }
}

impl Counting {
    /// Builds the counts of a run. Those of directories are read at each start.
    pub fn new(store: &Arc<MetaStore>, index: u16, quotas: &Arc<Quotas>, dirs: &Arc<DirUse>) -> Counting {
        let owners = if quotas.book().is_complete() { Passed::All } else { Passed::Upto(None) };
        let progress = RwLock::new(Progress { owners, dirs: Passed::Upto(None) });
        Counting { index, store: store.clone(), quotas: quotas.clone(), dirs: dirs.clone(), progress }
    }

    /// Collects what a transaction changes, before its commit.
    pub fn begin(&self, tx: &Tx, records: &Records) -> Uncommitted<'_> {
        let mut changes: SmallVec<[Change; 2]> = SmallVec::new();
        for (place, (fid, new)) in tx.cached().iter().enumerate() {
            // The last record of an inode counts.
            if tx.cached()[place + 1..].iter().any(|(later, _)| later == fid) {
                continue;
            }
            // A damaged record must not keep its inode from being repaired or removed; the next count is right.
            let old = if tx.is_new(fid) { None } else { records.find_inode(fid).unwrap_or_default() };
            let change = Change::of(*fid, old.as_deref(), new.as_deref());
            if !change.is_none() {
                changes.push(change);
            }
        }
        let progress = (!changes.is_empty()).then(|| self.progress.read());
        Uncommitted { counting: self, changes, progress }
    }

    /// Switches the counts of directories; returns true if inodes are to be read for them.
    pub fn set_dirs_on(&self, on: bool) -> bool {
        let mut progress = self.progress.write();
        if on != (progress.dirs == Passed::Off) {
            return false;
        }
        progress.dirs = if on { Passed::Upto(None) } else { Passed::Off };
        self.dirs.reset(on);
        on
    }

    /// Reads what is not counted yet, in steps that delay no request for long. Returns the reading thread.
    ///
    /// # Errors
    /// If the thread cannot be started.
    pub fn start(self: &Arc<Self>, signal: &Arc<StopSignal>) -> Result<Option<JoinHandle<()>>, MdsError> {
        if self.progress.read().next().is_none() {
            return Ok(None);
        }
        let (weak, signal) = (Arc::downgrade(self), signal.clone());
        let count = move || {
            while let Some(counting) = weak.upgrade()
                && !signal.is_stopping()
            {
                match counting.step() {
                    Ok(true) => {}
                    Ok(false) => return,
                    Err(error) => {
                        log::error!("MDT{:04x}: inodes cannot be counted: {error}", counting.index);
                        return;
                    }
                }
            }
        };
        let builder = nacre_env::thread::Builder::new().name("mds-count".into());
        builder.spawn(count).map(Some).map_err(MdsError::Thread)
    }

    /// Counts the next inodes; returns true if there are more.
    fn step(&self) -> Result<bool, MetaError> {
        let mut guard = self.progress.write();
        let progress = &mut *guard;
        let Some(from) = progress.next() else { return Ok(false) };
        let key = from.map(|last| last.to_key());
        let from_key = key.as_ref().map_or(Bound::Unbounded, |key| Bound::Excluded(key.as_slice()));
        let (mut seen, mut last) = (0, from);
        self.store.scan(INODES, &[], from_key, &mut |key, value| {
            let Some(fid) = key.first_chunk::<16>().map(Fid::from_key) else {
                return ControlFlow::Continue(());
            };
            // `nacre check` reports damaged records.
            if let Ok(record) = InodeRecord::decode(fid, value) {
                self.count(progress, &record);
            }
            (seen, last) = (seen + 1, Some(fid));
            if seen < COUNT_STEP { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        })?;
        if seen == COUNT_STEP {
            for passed in [&mut progress.owners, &mut progress.dirs] {
                if let Passed::Upto(upto) = passed {
                    *upto = (*upto).max(last);
                }
            }
            return Ok(true);
        }
        if let Passed::Upto(_) = progress.owners {
            progress.owners = Passed::All;
            self.quotas.book().complete();
        }
        if let Passed::Upto(_) = progress.dirs {
            progress.dirs = Passed::All;
            self.dirs.complete();
        }
        Ok(false)
    }

    /// Counts an inode where it is not counted yet.
    fn count(&self, progress: &Progress, record: &InodeRecord) {
        let fid = &record.attr.fid;
        let lacks = |passed: Passed| matches!(passed, Passed::Upto(_)) && !passed.has(fid);
        if lacks(progress.owners) {
            self.quotas.change(Book::count, Some(&Cost::of(record)), 1);
        }
        if lacks(progress.dirs) {
            self.dirs.change(fid, None, Place::of(record).as_ref());
        }
    }
}

/// Returns true if two records of an inode certainly have the same place: no list of shards is decoded for it.
fn is_same_place(old: &InodeRecord, new: &InodeRecord) -> bool {
    old.parent == new.parent
        && match new.attr.is_dir() {
            true => old.lmv == new.lmv && old.attr.flags == new.attr.flags,
            false => (old.attr.size, old.attr.blocks) == (new.attr.size, new.attr.blocks),
        }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: Fid = Fid::new(0x2_0000_0401, 1, 0);
    const B: Fid = Fid::new(0x2_0000_0401, 2, 0);

    #[test]
    fn the_reader_continues_where_the_slower_count_is() {
        let next = |owners, dirs| Progress { owners, dirs }.next();
        assert_eq!(next(Passed::All, Passed::Off), None);
        assert_eq!(next(Passed::All, Passed::Upto(Some(A))), Some(Some(A)));
        assert_eq!(next(Passed::Upto(Some(B)), Passed::Upto(Some(A))), Some(Some(A)));
        assert_eq!(next(Passed::Upto(Some(B)), Passed::Upto(None)), Some(None));
    }

    #[test]
    fn a_commit_counts_for_inodes_that_the_reader_has_passed() {
        assert!(Passed::All.has(&A) && !Passed::Off.has(&A) && !Passed::Upto(None).has(&A));
        assert!(Passed::Upto(Some(A)).has(&A) && !Passed::Upto(Some(A)).has(&B));
    }
}
