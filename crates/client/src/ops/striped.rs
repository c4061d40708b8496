//! Directories whose names lie in shards on several MDTs: which shard a name is asked for, and the directory seen as one.
//!
//! A directory is taken for whole until an MDT says otherwise; then the list of its shards is fetched, and kept. A list that has become
//! old does no harm: a shard refuses names that are not its own, and the list is fetched again.
//!
//! Bounds: lists of [`DIRS_MAX`] directories, of up to 2000 shards each.

use crate::caller::Caller;
use crate::client::Client;
use crate::ops::namespace::{Created, Found};
use nacre_layout::dir_hash::DirHash;
use nacre_layout::dir_layout::{DirFlags, DirLayout};
use nacre_types::{Attr, AttrFlags, Fid, Status, StatusResult};
use nacre_wire::mds::{MdsRequest, NewFile};
use parking_lot::RwLock;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Lists that are kept; then all go. A guess: a few hundred KiB.
const DIRS_MAX: usize = 1024;
/// How often a list may turn out to be old in one operation.
const ATTEMPTS: usize = 16;

/// The lists of shards that a client knows.
#[derive(Default)]
pub(crate) struct ShardLists {
    dirs: RwLock<HashMap<Fid, Arc<DirLayout>>>,
    /// Length of `dirs`, so that where nothing is striped nothing is locked.
    count: AtomicUsize,
}

impl ShardLists {
    /// The shards of a directory, if it is known to have some.
    pub fn get(&self, dir: Fid) -> Option<Arc<DirLayout>> {
        if self.count.load(Ordering::Acquire) == 0 {
            return None;
        }
        self.dirs.read().get(&dir).cloned()
    }

    fn set(&self, dir: Fid, layout: Option<Arc<DirLayout>>) {
        let mut dirs = self.dirs.write();
        match layout {
            Some(layout) => {
                if dirs.len() >= DIRS_MAX {
                    dirs.clear();
                }
                dirs.insert(dir, layout);
            }
            None => drop(dirs.remove(&dir)),
        }
        self.count.store(dirs.len(), Ordering::Release);
    }

    /// A directory is gone.
    pub fn forget(&self, dir: Fid) {
        if self.count.load(Ordering::Acquire) != 0 {
            self.set(dir, None);
        }
    }
}

/// What a new directory with shards is to be like.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Striping<'a> {
    /// How names are spread, as Lustre numbers it; 0: as usual.
    pub hash: u32,
    /// MDT of each shard; the directory itself lies on the first.
    pub mdts: &'a [u16],
    /// It is never split by itself.
    pub is_fixed: bool,
    /// Somebody has chosen the MDTs, which takes the right to.
    pub is_chosen: bool,
}

impl Client {
    /// Where a name of a directory is stored, as far as is known.
    pub(crate) fn home(&self, dir: Fid, name: &[u8]) -> Fid {
        if matches!(name, b"" | b"." | b"..") {
            return dir;
        }
        let Some(layout) = self.shard_lists.get(dir) else { return dir };
        layout.shard_of(name).map_or(dir, |place| layout.shards[place])
    }

    /// Asks with the FID of the directory or shard that a name is stored with.
    ///
    /// # Errors
    /// What `ask` gives; what the MDT says of its shards.
    pub(crate) fn at_home<T>(
        &self,
        dir: Fid,
        name: &[u8],
        mut ask: impl FnMut(Fid) -> StatusResult<T>,
    ) -> StatusResult<T> {
        for _ in 0..ATTEMPTS {
            match ask(self.home(dir, name)) {
                Err(Status::WRONG_SHARD) => self.learn_shards(dir).map(drop)?,
                outcome => return outcome,
            }
        }
        Err(Status::EAGAIN)
    }

    /// Fetches the list of a directory's shards; `None` if it is whole.
    ///
    /// # Errors
    /// What the MDT answers; `EPROTO` for a list that makes no sense.
    pub(crate) fn learn_shards(&self, dir: Fid) -> StatusResult<Option<Arc<DirLayout>>> {
        let request = MdsRequest::GetXattr { fid: dir, name: b"trusted.lmv" };
        let layout = match self.call_system(dir, &request) {
            Ok(answer) => Some(DirLayout::decode(&answer.bytes()?).map_err(|_| Status::EPROTO)?),
            Err(Status::ENODATA) => None,
            Err(status) => return Err(status),
        };
        let layout = layout.map(Arc::new);
        self.shard_lists.set(dir, layout.clone());
        Ok(layout)
    }

    /// The directory itself, or its shards, as far as is known.
    pub(crate) fn parts_of(&self, dir: Fid) -> Vec<Fid> {
        self.shard_lists.get(dir).map_or_else(|| vec![dir], |layout| layout.shards.clone())
    }

    /// Attributes of a directory with what its shards add: subdirectories, and the times of the latest changes.
    ///
    /// # Errors
    /// What an MDT answers.
    pub(crate) fn with_shards(&self, attr: Attr) -> StatusResult<Attr> {
        if !attr.flags.contains(AttrFlags::STRIPED) {
            return Ok(attr);
        }
        for attempt in 0..ATTEMPTS {
            let known = self.shard_lists.get(attr.fid).filter(|_| attempt == 0);
            let layout = match known {
                Some(layout) => Some(layout),
                None => self.learn_shards(attr.fid)?,
            };
            let Some(layout) = layout else { return Ok(attr) };
            match self.sum_of(attr, &layout) {
                // The list is old, or the directory is gone.
                Err(Status::ENOENT) => {}
                outcome => return outcome,
            }
        }
        Err(Status::ENOENT)
    }

    fn sum_of(&self, mut attr: Attr, layout: &DirLayout) -> StatusResult<Attr> {
        for &fid in &layout.shards {
            let shard = self.call_system(fid, &MdsRequest::GetAttr { fid })?.attr()?;
            attr.nlink = attr.nlink.saturating_add(shard.nlink.saturating_sub(2));
            attr.atime = attr.atime.max(shard.atime);
            attr.mtime = attr.mtime.max(shard.mtime);
            attr.ctime = attr.ctime.max(shard.ctime);
        }
        Ok(attr)
    }

    /// Makes a directory whose names lie in shards. Counts as one lookup.
    ///
    /// # Errors
    /// As [`Client::create_on`]; `EINVAL` for a hash or MDTs that there are not, none, or too many shards on one.
    pub(crate) fn create_striped(
        &self,
        caller: &Caller,
        (parent, name): (Fid, &[u8]),
        (mode, umask): (u32, u32),
        striping: &Striping<'_>,
    ) -> StatusResult<Found> {
        let known = |mdt: &u16| usize::from(*mdt) < self.mdts.len();
        let first =
            *striping.mdts.first().filter(|_| striping.mdts.iter().all(known)).ok_or(Status::EINVAL)?;
        let shards =
            striping.mdts.iter().map(|mdt| self.fresh_fid(*mdt)).collect::<StatusResult<Vec<Fid>>>()?;
        let hash = match striping.hash {
            0 => DirHash::Crush,
            number => u16::try_from(number).ok().and_then(DirHash::from_number).ok_or(Status::EINVAL)?,
        };
        let mut layout = DirLayout::new(hash, first, shards);
        layout.flags.set(DirFlags::FIXED, striping.is_fixed);
        let mut mdts = striping.mdts.to_vec();
        mdts.sort_unstable();
        layout.flags.set(DirFlags::OVERSTRIPED, mdts.windows(2).any(|pair| pair[0] == pair[1]));
        let lmv = layout.encode();
        let new = NewFile::Striped { lmv: &lmv, chosen: striping.is_chosen };
        let what = Created { new, mode, umask };
        let found = self.create_on(caller, (parent, name), &what, Some(first))?;
        self.shard_lists.set(found.attr.fid, Some(Arc::new(layout)));
        Ok(found)
    }
}
