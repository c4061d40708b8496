//! The records of an MDT: inodes and names in the store, read through the cache of inodes; and the MDT's own
//! record.
//!
//! The position of a name in its directory is a hash with an unpredictable seed, the same on all MDTs of a
//! file system, so that a name keeps its position when it moves to another MDT.

use crate::cache::InodeCache;
use crate::error::MdsError;
use crate::moving::progress::Moving;
use crate::shards::{named_in, place_of};
use crate::tables::{
    ACL_DEFAULT, DIRENTS, INODES, LINKS, META, META_KEY, ORPHANS, OrphanKind, RUNS_KEY, XATTRS, dirent_key,
    split_link_key, xattr_key,
};
use crate::tx::Tx;
use crate::undurable::{Needs, Undurable};
use nacre_env::sync::Mutex;
use nacre_layout::dir_layout::Home;
use nacre_layout::user;
use nacre_ondisk::{DirentRecord, InodeRecord, MdtRecord, RunsRecord, XattrRecord};
use nacre_store::{MetaError, MetaStore};
use nacre_types::acl::Acl;
use nacre_types::fid::SEQ_NORMAL;
use nacre_types::{Attr, Fid, Status, StatusResult, TransNo};
use std::ops::{Bound, ControlFlow};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Directory of the store inside the target's directory.
const STORE_DIR: &str = "meta";

/// Returns the path of the store of the MDT in `dir`.
pub(crate) fn store_path(dir: &Path) -> PathBuf {
    dir.join(STORE_DIR)
}

/// Reads the MDT's own record.
///
/// # Errors
/// If the store has no MDT or the record is damaged.
pub(crate) fn read_record(store: &MetaStore, dir: &Path) -> Result<MdtRecord, MdsError> {
    let found = store.get(META, META_KEY, |value| value.map(MdtRecord::decode))?;
    match found {
        None => Err(MdsError::NotFormatted(dir.to_owned())),
        Some(Err(source)) => Err(MdsError::Damaged { what: "MDT", source }),
        Some(Ok(record)) => Ok(record),
    }
}

/// Reads the record of earlier runs; `None` if there is none, or it is damaged.
///
/// # Errors
/// If the store has failed.
pub(crate) fn read_runs(store: &MetaStore) -> Result<Option<RunsRecord>, MetaError> {
    store.get(META, RUNS_KEY, |value| value.and_then(|value| RunsRecord::decode(value).ok()))
}

/// What a name refers to.
pub(crate) enum Resolved {
    /// The name does not exist.
    Nowhere,
    /// An inode of this MDT.
    Here(Attr),
    /// An inode of another MDT.
    Elsewhere(Fid),
}

/// See the [module documentation](self).
pub(crate) struct Records {
    index: u16,
    /// Progress of moving names.
    moving: Arc<Moving>,
    store: Arc<MetaStore>,
    cache: InodeCache,
    /// The stored MDT record.
    own: Mutex<MdtRecord>,
    /// First unassigned sequence; a copy of the value in `own`.
    next_sequence: AtomicU64,
    hash_seed: AtomicU64,
    /// True if names are hashed with the seed, which is then final.
    has_names: Mutex<bool>,
    /// Number of moves of directories in this run.
    tree_moves: AtomicU64,
    undurable: Undurable,
}

impl Records {
    /// Builds the access to the records in `store`, with a cache of about `cached_inodes`.
    pub fn new(store: Arc<MetaStore>, own: MdtRecord, cached_inodes: usize, moving: Arc<Moving>) -> Records {
        Records {
            index: own.index,
            moving,
            store,
            cache: InodeCache::new(cached_inodes),
            next_sequence: AtomicU64::new(own.next_sequence),
            hash_seed: AtomicU64::new(own.hash_seed),
            own: Mutex::new(own),
            has_names: Mutex::new(false),
            tree_moves: AtomicU64::new(0),
            undurable: Undurable::default(),
        }
    }

    /// Returns the status of a store error for a client; also logs the error, since the client did not cause
    /// it.
    pub fn store_failed(&self, error: &MetaError) -> Status {
        if !matches!(error, MetaError::NoSpace | MetaError::Closed) {
            log::error!("MDT{:04x}: {error}", self.index);
        }
        error.status()
    }

    /// Refuses FIDs of other MDTs.
    pub fn check_local(&self, fid: &Fid) -> StatusResult<()> {
        if fid.mdt_index() == self.index { Ok(()) } else { Err(Status::WRONG_TARGET) }
    }

    /// Returns an inode's record, if it exists.
    pub fn find_inode(&self, fid: &Fid) -> StatusResult<Option<Arc<InodeRecord>>> {
        let ticket = match self.cache.get(fid) {
            Ok(record) => return Ok(Some(record)),
            Err(ticket) => ticket,
        };
        let found = self
            .store
            .get(INODES, &fid.to_key(), |value| value.map(|bytes| InodeRecord::decode(*fid, bytes)))
            .map_err(|error| self.store_failed(&error))?;
        match found {
            None => self.check_local(fid).map(|()| None),
            Some(Ok(record)) => {
                let record = Arc::new(record);
                self.cache.fill(fid, &record, ticket);
                Ok(Some(record))
            }
            Some(Err(error)) => {
                log::error!("inode record of {fid}: {error}");
                Err(Status::EUCLEAN)
            }
        }
    }

    /// Returns an inode's record.
    ///
    /// # Errors
    /// `ENOENT` if it does not exist, `WRONG_TARGET` if it belongs to another MDT.
    pub fn inode(&self, fid: &Fid) -> StatusResult<Arc<InodeRecord>> {
        self.find_inode(fid)?.ok_or(Status::ENOENT)
    }

    /// Returns a directory's record.
    ///
    /// # Errors
    /// As [`Records::inode`], and `ENOTDIR`.
    pub fn directory(&self, fid: &Fid) -> StatusResult<Arc<InodeRecord>> {
        let record = self.inode(fid)?;
        if !record.attr.is_dir() {
            return Err(Status::ENOTDIR);
        }
        if user::is_foreign_directory(&record.body) { Err(Status::ENODATA) } else { Ok(record) }
    }

    /// Updates the cache after a transaction has stored or removed an inode.
    pub fn note_committed(&self, fid: &Fid, record: Option<Arc<InodeRecord>>) {
        self.cache.replace(fid, record);
    }

    /// Counts a move of a directory.
    pub fn note_tree_moved(&self) {
        self.tree_moves.fetch_add(1, Ordering::AcqRel);
    }

    /// Returns the number of moves of directories: results about positions in the tree are invalid once it
    /// changes.
    pub fn tree_moves(&self) -> u64 {
        self.tree_moves.load(Ordering::Acquire)
    }

    /// Returns the entry of a name.
    pub fn find_name(&self, directory: &Fid, hash: u64, name: &[u8]) -> StatusResult<Option<DirentRecord>> {
        let key = dirent_key(directory, hash, name);
        let found = self
            .store
            .get(DIRENTS, key.as_slice(), |value| value.map(DirentRecord::decode))
            .map_err(|error| self.store_failed(&error))?;
        found.transpose().map_err(|error| {
            log::error!("a name in {directory}: {error}");
            Status::EUCLEAN
        })
    }

    /// Returns the inode of a name in a directory or shard of this MDT.
    ///
    /// # Errors
    /// `ENOENT` if the name does not exist.
    pub fn resolve_local(&self, home: &Fid, name: &[u8]) -> StatusResult<Fid> {
        self.check_local(home)?;
        let found = self.find_name(home, self.hash(name), name)?;
        found.map(|found| found.fid).ok_or(Status::ENOENT)
    }

    /// Checks that a name is, or would be, stored in this directory or shard.
    ///
    /// # Errors
    /// `WRONG_SHARD` if it belongs to another one, or if that is unknown here
    /// ([`crate::moving::Moves::learn_moved`]); `EUCLEAN`.
    pub fn check_home(&self, record: &InodeRecord, name: &[u8]) -> StatusResult<()> {
        let Some(shard) = place_of(record)? else { return Ok(()) };
        let position = self.hash(name);
        let is_here = match shard.home(name, position) {
            Home::Here => true,
            Home::Elsewhere => false,
            Home::IfMoved { from } => self.moving.has_moved(&named_in(record), shard.version, from, position),
        };
        if is_here { Ok(()) } else { Err(Status::WRONG_SHARD) }
    }

    /// Returns a directory or shard for a lookup of names.
    ///
    /// # Errors
    /// As [`Records::directory`], and `WRONG_SHARD` if it does not exist: it may be a removed shard.
    pub fn with_names(&self, fid: &Fid) -> StatusResult<Arc<InodeRecord>> {
        self.directory(fid).map_err(|status| match status {
            Status::ENOENT => Status::WRONG_SHARD,
            other => other,
        })
    }

    /// Returns the record of a directory or shard if a name is, or would be, stored in it.
    ///
    /// # Errors
    /// As [`Records::with_names`] and [`Records::check_home`].
    pub fn home_of(&self, fid: &Fid, name: &[u8]) -> StatusResult<Arc<InodeRecord>> {
        let record = self.with_names(fid)?;
        self.check_home(&record, name)?;
        Ok(record)
    }

    /// Returns name number `index` of an inode beyond the first, in no particular order.
    pub fn extra_link(&self, fid: &Fid, index: u32) -> StatusResult<Option<(Fid, Vec<u8>)>> {
        let (mut found, mut seen) = (None, 0);
        let prefix = fid.to_key();
        self.store
            .scan(LINKS, &prefix, Bound::Unbounded, &mut |key, _| {
                if seen == index {
                    found = split_link_key(key).map(|(_, parent, name)| (parent, name.to_vec()));
                    return ControlFlow::Break(());
                }
                seen += 1;
                ControlFlow::Continue(())
            })
            .map_err(|error| self.store_failed(&error))?;
        Ok(found)
    }

    /// Returns name number `index` of an inode, the one in its record first.
    ///
    /// # Errors
    /// `ENODATA` if there is none.
    pub fn link_of(&self, fid: &Fid, index: u32) -> StatusResult<(Fid, Vec<u8>)> {
        let record = self.inode(fid)?;
        let link = match index {
            // The root and orphans have no name.
            0 if record.name.is_empty() => None,
            0 => Some((record.parent, record.name.clone())),
            _ => self.extra_link(fid, index - 1)?,
        };
        link.ok_or(Status::ENODATA)
    }

    /// Returns why an inode has no name; `None` if it has one.
    pub fn orphan_kind(&self, fid: &Fid) -> StatusResult<Option<OrphanKind>> {
        self.store
            .get(ORPHANS, &fid.to_key(), |value| value.and_then(OrphanKind::decode))
            .map_err(|error| self.store_failed(&error))
    }

    /// Returns the stored value of an extended attribute.
    pub fn stored_xattr(&self, fid: &Fid, name: &[u8]) -> StatusResult<Option<Vec<u8>>> {
        let found = self
            .store
            .get(XATTRS, xattr_key(fid, name).as_slice(), |value| {
                value.map(|bytes| XattrRecord::decode(bytes).map(|record| record.value.to_vec()))
            })
            .map_err(|error| self.store_failed(&error))?;
        found.transpose().map_err(|error| {
            log::error!("an extended attribute of {fid}: {error}");
            Status::EUCLEAN
        })
    }

    /// Returns the default ACL of a directory, if it has one.
    pub fn default_acl(&self, fid: &Fid) -> StatusResult<Option<Acl>> {
        match self.stored_xattr(fid, ACL_DEFAULT)? {
            None => Ok(None),
            Some(value) => Acl::parse_xattr(&value).map_err(|_| {
                log::error!("default ACL of {fid} is damaged");
                Status::EUCLEAN
            }),
        }
    }

    /// Begins a transaction.
    pub fn begin(&self) -> Tx {
        // At most the transno of the commit, and above every earlier change of a locked inode.
        Tx::new(self.store.last_transno().0 + 1)
    }

    /// Makes the log durable up to a transno.
    pub fn sync(&self, upto: TransNo) -> StatusResult<()> {
        if upto > self.store.last_committed() {
            nacre_env::blocking(|| self.store.sync(upto)).map_err(|error| self.store_failed(&error))?;
        }
        Ok(())
    }

    /// Records what a transaction that is committed changed, for [`Records::sync_what_is_needed`].
    pub fn note_undurable(&self, fid: &Fid, transno: TransNo, is_new: bool) {
        self.undurable.note(fid, transno, is_new, self.store.last_committed());
    }

    /// Makes durable what a transaction over several MDTs depends on: inodes that it changes as a whole, and
    /// directories of which it changes names.
    pub fn sync_what_is_needed<'f>(
        &self,
        fids: impl IntoIterator<Item = &'f Fid>,
        directories: impl IntoIterator<Item = &'f Fid>,
    ) -> StatusResult<()> {
        let whole = fids.into_iter().map(|fid| self.undurable.needed(fid, Needs::Everything));
        let named = directories.into_iter().map(|fid| self.undurable.needed(fid, Needs::Existence));
        self.sync(whole.chain(named).max().unwrap_or(TransNo(0)))
    }

    /// Makes all commits durable.
    pub fn sync_all(&self) -> StatusResult<()> {
        self.sync(self.store.last_transno())
    }

    /// Assigns an unused sequence, in the transaction that `commit` commits.
    pub fn take_sequence<T>(&self, commit: impl FnOnce(Tx, u64) -> StatusResult<T>) -> StatusResult<T> {
        let mut own = self.own.lock();
        let sequence = own.next_sequence;
        let next = MdtRecord { next_sequence: sequence + 1, ..*own };
        let mut tx = self.begin();
        tx.batch().put(META, META_KEY, &next.encode());
        let outcome = commit(tx, sequence)?;
        *own = next;
        self.next_sequence.store(next.next_sequence, Ordering::Release);
        Ok(outcome)
    }

    /// Checks that a FID of this MDT may be that of a new inode.
    pub fn check_own_fid(&self, fid: &Fid) -> StatusResult<()> {
        let given_out = self.next_sequence.load(Ordering::Acquire);
        match fid.seq < SEQ_NORMAL || fid.seq >= given_out || fid.oid == 0 || fid.ver != 0 {
            true => Err(Status::EINVAL),
            false => Ok(()),
        }
    }

    /// Returns the seed for the hash of names.
    pub fn hash_seed(&self) -> u64 {
        self.hash_seed.load(Ordering::Relaxed)
    }

    /// Returns the position of a name in its directory.
    pub fn hash(&self, name: &[u8]) -> u64 {
        nacre_types::name::name_hash(self.hash_seed(), name)
    }

    /// Makes the seed final, before the first name is stored.
    pub fn begin_names(&self) {
        *self.has_names.lock() = true;
    }

    /// Sets the seed for the hash of names, if there are no names yet.
    ///
    /// # Errors
    /// Those of the store.
    pub fn adopt_seed(&self, seed: u64) -> StatusResult<()> {
        let mut has_names = self.has_names.lock();
        if *has_names || seed == self.hash_seed() {
            return Ok(());
        }
        self.store
            .scan(DIRENTS, &[], Bound::Unbounded, &mut |_, _| {
                *has_names = true;
                ControlFlow::Break(())
            })
            .map_err(|error| self.store_failed(&error))?;
        if *has_names {
            return Ok(());
        }
        let mut own = self.own.lock();
        let next = MdtRecord { hash_seed: seed, ..*own };
        let mut tx = self.begin();
        tx.batch().put(META, META_KEY, &next.encode());
        let transno = self.store.commit(tx.batch()).map_err(|error| self.store_failed(&error))?;
        self.sync(transno)?;
        *own = next;
        self.hash_seed.store(seed, Ordering::Relaxed);
        Ok(())
    }

    /// Records that this run has all acknowledged changes: clients have replayed those that it lacked.
    ///
    /// # Errors
    /// `EIO` if the store has failed.
    pub fn record_whole(&self) -> StatusResult<()> {
        let mut runs = read_runs(&self.store).map_err(|error| self.store_failed(&error))?.unwrap_or_default();
        runs.boot_id = nacre_env::own_process().boot;
        let mut tx = self.begin();
        tx.batch().set_releasing(true);
        tx.batch().put(META, RUNS_KEY, &runs.encode());
        // A log that loses this record may have lost replayed changes as well.
        self.store.commit(tx.batch()).map(drop).map_err(|error| self.store_failed(&error))
    }

    /// Records the clean end of the run, with the number of inodes if it is known, and closes the store.
    ///
    /// # Errors
    /// If the store cannot be closed cleanly.
    pub fn close(&self, inodes: Option<u64>) -> Result<(), MdsError> {
        let mut tx = Tx::new(0);
        tx.batch().set_releasing(true);
        {
            let mut own = self.own.lock();
            (own.clean, own.inodes) = (true, inodes);
            tx.batch().put(META, META_KEY, &own.encode());
        }
        self.store.commit(tx.batch())?;
        self.store.close()?;
        Ok(())
    }
}
