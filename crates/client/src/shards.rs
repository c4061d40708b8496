//! Directories whose names are in shards on several MDTs: which shard to ask for a name, and the directory as
//! one whole.
//!
//! A directory counts as unsharded until an MDT reports otherwise; then the list of its shards is fetched and
//! cached. An outdated list does no harm: a shard rejects names that are not its own, and the list is fetched
//! again. While names move, the shard that a name moves from is asked first: it knows whether the name has
//! left it.
//!
//! Bounds: lists of [`DIRS_MAX`] directories, of up to 2000 shards each.

pub(crate) mod absent;

use crate::layouts::pause;
use crate::lease::Lease;
use crate::requests::Requests;
use crate::shards::absent::Absences;
use crate::validity::Validity;
use nacre_env::clock::Instant;
use nacre_env::sync::RwLock;
use nacre_layout::dir_hash::DirHash;
use nacre_layout::dir_layout::DirLayout;
use nacre_types::{Attr, AttrFlags, Explain, Failure, FailureResult, Fid, Status, StatusResult, TransNo};
use nacre_wire::mds::MdsRequest;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, AtomicUsize, Ordering};
use std::time::Duration;

/// Lists that are cached; when the cache is full it is emptied. A guess: a few hundred KiB.
const DIRS_MAX: usize = 1024;
/// How often a list may turn out to be outdated in one operation.
const ATTEMPTS: usize = 100;
/// Tries that follow each other without a pause.
const TRIES_AT_ONCE: usize = 4;
/// Age at which a list is fetched again if names moved when it was fetched: until then a request for a name
/// that has left its shard is sent twice.
const MOVING_AGE: Duration = Duration::from_secs(1);

/// A list as it was fetched.
#[derive(Clone)]
struct CachedShards {
    layout: Arc<DirLayout>,
    at: Instant,
    /// Version of the directory's attributes before the fetch, if it is known.
    version: Option<u64>,
}

/// The lists of shards that a client knows.
#[derive(Default)]
pub(crate) struct ShardLists {
    dirs: RwLock<HashMap<Fid, CachedShards>>,
    /// Length of `dirs`, so that no lock is taken while no directory is sharded.
    count: AtomicUsize,
}

/// Where names of directories are stored, and which names are known to be absent.
pub struct Shards {
    requests: Arc<Requests>,
    lease: Arc<Lease>,
    absences: Arc<Absences>,
    pub(crate) lists: ShardLists,
    /// How names are spread over MDTs if the request does not specify it, a [`DirHash`]'s number.
    default_hash: AtomicU16,
}

impl Shards {
    pub(crate) fn new(requests: Arc<Requests>, lease: Arc<Lease>, absences: Arc<Absences>) -> Arc<Shards> {
        Arc::new(Shards {
            requests,
            lease,
            absences,
            lists: ShardLists::default(),
            default_hash: AtomicU16::new(DirHash::default().number()),
        })
    }

    /// Makes everything durable that this client changed in the namespace of the MDT of `fid`.
    ///
    /// # Errors
    /// The error of the MDT; `EIO` once if it has lost a change of this client in the directory.
    pub fn sync_namespace(&self, fid: Fid) -> StatusResult<()> {
        self.requests.faults.edge("sync", || {
            let parts = self.parts_of(fid);
            for &part in &parts {
                let upto = TransNo(self.requests.mdt(part)?.last_transno.load(Ordering::Relaxed));
                self.requests.commit(part, upto)?;
            }
            self.requests.commit_elsewhere()?;
            // Checked after the commit, which has connected to the server's current run.
            let mut lost = false;
            for part in parts.iter().chain([&fid]) {
                lost |= self.requests.take_lost(part);
            }
            if !lost {
                return Ok(());
            }
            Err(Status::EIO)
                .explain(|context| context.fid(fid).cause("its MDT has lost changes that it had answered"))
        })
    }

    /// Drops negative entries of a directory whose search permission has changed, or that is removed.
    pub(crate) fn forget_absences(&self, dir: Fid) {
        self.parts_of(dir).into_iter().for_each(|part| self.absences.forget(part));
    }

    /// True if the name is known to be absent, in a directory that everybody may search. Then the kernel may
    /// cache that until it is invalidated.
    pub(crate) fn is_absent(&self, dir: Fid, name: &[u8]) -> bool {
        match self.absences.validity(dir, name) {
            None | Some(Validity::None) => false,
            Some(Validity::Lock(handle)) => self.lease.inodes(dir).keep_name(handle),
            Some(validity) => self.lease.is_in_force(validity, dir),
        }
    }

    /// Sets how names of new directories are spread over MDTs if the request does not specify it.
    pub fn set_default_hash(&self, hash: DirHash) {
        self.default_hash.store(hash.number(), Ordering::Relaxed);
    }

    pub(crate) fn default_hash(&self) -> DirHash {
        DirHash::from_number(self.default_hash.load(Ordering::Relaxed)).unwrap_or_default()
    }

    /// Returns where a name of a directory is stored, as far as is known; while names move, where it will be.
    pub(crate) fn home(&self, dir: Fid, name: &[u8]) -> Fid {
        let (first, then) = self.homes(dir, name);
        then.unwrap_or(first)
    }

    /// Returns where a name of a directory is stored, as far as is known, and while names move, where it is
    /// if it has left that shard.
    fn homes(&self, dir: Fid, name: &[u8]) -> (Fid, Option<Fid>) {
        if matches!(name, b"" | b"." | b"..") {
            return (dir, None);
        }
        let Some(layout) = self.lists.get(dir) else { return (dir, None) };
        let shard = |place: usize| layout.shards[place];
        let new = layout.shard_of(name).map_or(dir, shard);
        layout.old_shard_of(name).map_or((new, None), |old| (shard(old), Some(new)))
    }

    /// Calls `ask` with the FID of the directory or shard that a name is stored in.
    ///
    /// # Errors
    /// The error of `ask`; the error of the MDT in a request for its shards; `EINTR` while lists repeatedly
    /// turn out to be outdated.
    pub(crate) fn at_home<T>(
        &self,
        dir: Fid,
        name: &[u8],
        mut ask: impl FnMut(Fid) -> FailureResult<T>,
    ) -> FailureResult<T> {
        for attempt in 0..ATTEMPTS {
            let (first, then) = self.homes(dir, name);
            let mut outcome = ask(first);
            if let Some(then) = then.filter(|_| is_wrong_shard(&outcome)) {
                outcome = ask(then);
                if self.lists.is_due(dir) {
                    self.learn_shards(dir).map_err(dir_gone)?;
                }
            }
            match outcome {
                outcome if !is_wrong_shard(&outcome) => return outcome,
                _ => self.learn_shards(dir).map(drop).map_err(dir_gone)?,
            }
            rest_before(attempt + 1)?;
        }
        Err(Status::EAGAIN.into())
    }

    /// Does the same with the shards of two names, of any directories.
    ///
    /// # Errors
    /// As [`Shards::at_home`].
    pub(crate) fn at_homes<T>(
        &self,
        first: (Fid, &[u8]),
        second: (Fid, &[u8]),
        mut ask: impl FnMut(Fid, Fid) -> FailureResult<T>,
    ) -> FailureResult<T> {
        // Whichever of the two lists is outdated, both are fetched again.
        self.at_home(first.0, first.1, |first_home| {
            let (home, then) = self.homes(second.0, second.1);
            let mut outcome = ask(first_home, home);
            if let Some(then) = then.filter(|_| is_wrong_shard(&outcome)) {
                outcome = ask(first_home, then);
            }
            if is_wrong_shard(&outcome) && first.0 != second.0 {
                self.learn_shards(second.0).map_err(dir_gone)?;
            }
            outcome
        })
    }

    /// Fetches the list of a directory's shards; `None` if it has none.
    ///
    /// # Errors
    /// The error of the MDT; `EPROTO` for an invalid list.
    pub(crate) fn learn_shards(&self, dir: Fid) -> FailureResult<Option<Arc<DirLayout>>> {
        let request = MdsRequest::GetXattr { fid: dir, name: b"trusted.lmv" };
        let layout = match self.requests.call_system(dir, &request) {
            Ok(answer) => Some(DirLayout::decode(&answer.bytes()?).map_err(|_| Status::EPROTO)?),
            Err(failure) if failure == Status::ENODATA => None,
            Err(failure) => return Err(failure),
        };
        let layout = layout.map(Arc::new);
        let before = self.lists.get(dir);
        if before.as_ref().map(|list| list.version) != layout.as_ref().map(|list| list.version) {
            // Negative entries refer to the previous shards.
            self.forget_absences(dir);
            self.lists.set(dir, layout.clone());
            self.forget_absences(dir);
            if let Some(kernel) = self.lease.kernel() {
                kernel.drop_attributes(dir.inode_number());
            }
        } else {
            self.lists.set(dir, layout.clone());
        }
        Ok(layout)
    }

    /// Returns the directory itself, or its shards, as far as is known.
    pub(crate) fn parts_of(&self, dir: Fid) -> Vec<Fid> {
        self.lists.get(dir).map_or_else(|| vec![dir], |layout| layout.shards.clone())
    }

    /// Returns attributes of a directory combined with those of its shards: subdirectories, and the times of
    /// the latest changes.
    ///
    /// # Errors
    /// The error of an MDT; `EINTR` while its shards keep changing.
    pub(crate) fn with_shards(&self, attr: Attr) -> FailureResult<Attr> {
        if !attr.flags.contains(AttrFlags::STRIPED) {
            return Ok(attr);
        }
        for attempt in 0..ATTEMPTS {
            let known = self.lists.get_of(&attr).filter(|_| attempt == 0);
            let layout = match known {
                Some(layout) => Some(layout),
                None => {
                    let layout = self.learn_shards(attr.fid)?;
                    self.lists.confirm(&attr);
                    layout
                }
            };
            let Some(layout) = layout else { return Ok(attr) };
            match self.sum_of(attr, &layout) {
                // The list is outdated, or the directory is removed.
                Err(failure) if failure == Status::ENOENT => rest_before(attempt + 1)?,
                outcome => return outcome,
            }
        }
        Err(Status::ENOENT.into())
    }

    fn sum_of(&self, mut attr: Attr, layout: &DirLayout) -> FailureResult<Attr> {
        // The master may be one of its own shards.
        let master = attr.fid;
        for fid in layout.shards.iter().copied().filter(|fid| *fid != master) {
            let shard = self.requests.call_system(fid, &MdsRequest::GetAttr { fid })?.attr()?;
            attr.nlink = attr.nlink.saturating_add(shard.nlink.saturating_sub(2));
            attr.atime = attr.atime.max(shard.atime);
            attr.mtime = attr.mtime.max(shard.mtime);
            attr.ctime = attr.ctime.max(shard.ctime);
        }
        Ok(attr)
    }
}

impl ShardLists {
    /// Returns the shards of a directory, if it is known to have some.
    pub fn get(&self, dir: Fid) -> Option<Arc<DirLayout>> {
        if self.count.load(Ordering::Acquire) == 0 {
            return None;
        }
        self.dirs.read().get(&dir).map(|kept| kept.layout.clone())
    }

    /// Does the same, if the directory has not changed since the list was fetched.
    fn get_of(&self, attr: &Attr) -> Option<Arc<DirLayout>> {
        let dirs = self.dirs.read();
        dirs.get(&attr.fid).filter(|kept| kept.version == Some(attr.version)).map(|kept| kept.layout.clone())
    }

    /// True if names of a directory moved when its list was fetched, and that was a while ago.
    fn is_due(&self, dir: Fid) -> bool {
        let dirs = self.dirs.read();
        dirs.get(&dir).is_some_and(|kept| kept.layout.change().is_some() && kept.at.elapsed() >= MOVING_AGE)
    }

    /// Records the version of the directory's attributes from before the fetch of its list.
    fn confirm(&self, attr: &Attr) {
        if let Some(kept) = self.dirs.write().get_mut(&attr.fid) {
            kept.version = Some(attr.version);
        }
    }

    pub(crate) fn set(&self, dir: Fid, layout: Option<Arc<DirLayout>>) {
        let mut dirs = self.dirs.write();
        match layout {
            Some(layout) => {
                if dirs.len() >= DIRS_MAX {
                    dirs.clear();
                }
                dirs.insert(dir, CachedShards { layout, at: Instant::now(), version: None });
            }
            None => drop(dirs.remove(&dir)),
        }
        self.count.store(dirs.len(), Ordering::Release);
    }

    /// Drops the list of a removed directory.
    pub fn forget(&self, dir: Fid) {
        if self.count.load(Ordering::Acquire) != 0 {
            self.set(dir, None);
        }
    }
}

/// Waits before try `attempt`, from 1. The parts of a change reach its MDTs one after the other, which on a
/// busy machine takes longer than some tries: the first ones follow at once, the others after a pause. One
/// outdated list is normal, so the first try succeeds even for an interrupted caller.
///
/// # Errors
/// `EINTR` from the second on.
fn rest_before(attempt: usize) -> StatusResult<()> {
    let rest = match attempt {
        0 | 1 => return Ok(()),
        2..=TRIES_AT_ONCE => Duration::ZERO,
        _ => Duration::from_millis(1 << (attempt - TRIES_AT_ONCE).min(6)),
    };
    pause(rest)
}

/// Maps the error for a directory that is removed: it may have moved, so that another inode has its name. The
/// kernel walks the path once more then; "no such file" would be taken for a missing entry.
fn dir_gone(failure: Failure) -> Failure {
    if failure == Status::ENOENT { Status::ESTALE.into() } else { failure }
}

fn is_wrong_shard<T>(outcome: &FailureResult<T>) -> bool {
    outcome.as_ref().is_err_and(|failure| *failure == Status::WRONG_SHARD)
}

#[cfg(test)]
mod tests {
    use super::*;
    use nacre_env::InterruptTarget;

    #[test]
    fn who_was_interrupted_is_let_go_before_the_second_try_and_does_not_rest() {
        let guard = InterruptTarget::install();
        let target = guard.target();
        target.begin(1);
        assert_eq!(rest_before(2), Ok(()), "nobody has interrupted it yet");
        assert!(target.raise(1));
        assert_eq!(rest_before(1), Ok(()), "one list that is old is usual");
        let began = Instant::now();
        for attempt in 2..ATTEMPTS {
            assert_eq!(rest_before(attempt), Err(Status::EINTR), "{attempt}");
        }
        assert!(began.elapsed() < Duration::from_secs(2), "all rests are six seconds");
        target.end();
    }
}
