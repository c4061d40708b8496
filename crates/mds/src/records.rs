//! The records of an MDT: inodes and names as they are stored, read through the memory of inodes; and what the MDT stores of itself.
//!
//! Positions of names in their directories are a hash with a seed that nobody outside can foresee, the same on all MDTs of a file system, so
//! that a name keeps its position when it moves to another one.

use crate::cache::InodeCache;
use crate::error::MdsError;
use crate::moving::progress::Moving;
use crate::shards::{named_in, place_of};
use crate::tables::{
    ACL_DEFAULT, DIRENTS, INODES, LINKS, META, META_KEY, ORPHANS, OrphanKind, XATTRS, dirent_key,
    split_link_key, xattr_key,
};
use crate::tx::Tx;
use nacre_env::sync::Mutex;
use nacre_layout::dir_layout::Home;
use nacre_layout::user;
use nacre_ondisk::{DirentRecord, InodeRecord, MdtRecord, XattrRecord};
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

/// Path of the store of the MDT in `dir`.
pub(crate) fn store_path(dir: &Path) -> PathBuf {
    dir.join(STORE_DIR)
}

/// Reads the MDT's own record.
///
/// # Errors
/// If the store holds no MDT or the record is damaged.
pub(crate) fn read_record(store: &MetaStore, dir: &Path) -> Result<MdtRecord, MdsError> {
    let found = store.get(META, META_KEY, |value| value.map(MdtRecord::decode))?;
    match found {
        None => Err(MdsError::NotFormatted(dir.to_owned())),
        Some(Err(source)) => Err(MdsError::Damaged { what: "MDT", source }),
        Some(Ok(record)) => Ok(record),
    }
}

/// What a name leads to.
pub(crate) enum Lead {
    /// There is no such name.
    Nowhere,
    /// An inode of this MDT.
    Here(Attr),
    /// An inode of another one.
    Elsewhere(Fid),
}

/// See the [module documentation](self).
pub(crate) struct Records {
    index: u16,
    /// How far names have moved.
    moving: Arc<Moving>,
    store: Arc<MetaStore>,
    cache: InodeCache,
    /// The MDT record as it is stored.
    own: Mutex<MdtRecord>,
    /// First sequence not given out; a copy of the one in `own`.
    next_sequence: AtomicU64,
    hash_seed: AtomicU64,
    /// Names are hashed with the seed from now on, so it stays.
    has_names: Mutex<bool>,
    /// Directories that got another place so far.
    tree_moves: AtomicU64,
}

impl Records {
    /// The records in `store`, of which about `cached_inodes` are kept in memory.
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
        }
    }

    /// What an error of the store means to a client; told to the log too, since it is not the client's fault.
    pub fn store_failed(&self, error: &MetaError) -> Status {
        if !matches!(error, MetaError::NoSpace | MetaError::Closed) {
            log::error!("MDT{:04x}: {error}", self.index);
        }
        error.status()
    }

    /// Refuses FIDs that live on another MDT.
    pub fn check_local(&self, fid: &Fid) -> StatusResult<()> {
        if fid.mdt_index() == self.index { Ok(()) } else { Err(Status::WRONG_TARGET) }
    }

    /// An inode's record, if it exists.
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

    /// An inode's record.
    ///
    /// # Errors
    /// `ENOENT` if it is gone, `WRONG_TARGET` if it lives elsewhere.
    pub fn inode(&self, fid: &Fid) -> StatusResult<Arc<InodeRecord>> {
        self.find_inode(fid)?.ok_or(Status::ENOENT)
    }

    /// A directory's record.
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

    /// A transaction has stored an inode, or removed it.
    pub fn note_committed(&self, fid: &Fid, record: Option<Arc<InodeRecord>>) {
        self.cache.replace(fid, record);
    }

    /// A directory has another place from now on.
    pub fn note_tree_moved(&self) {
        self.tree_moves.fetch_add(1, Ordering::AcqRel);
    }

    /// How many directories got another place so far: what was found out about places before does not count any more.
    pub fn tree_moves(&self) -> u64 {
        self.tree_moves.load(Ordering::Acquire)
    }

    /// What a name stands for.
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

    /// What a name in a directory or shard of this MDT leads to.
    ///
    /// # Errors
    /// `ENOENT` if there is none.
    pub fn lead_here(&self, home: &Fid, name: &[u8]) -> StatusResult<Fid> {
        self.check_local(home)?;
        let found = self.find_name(home, self.hash(name), name)?;
        found.map(|found| found.fid).ok_or(Status::ENOENT)
    }

    /// Whether a name is, or would be, stored with this directory or shard.
    ///
    /// # Errors
    /// `WRONG_SHARD` if it is with another one, or if that is not known here ([`crate::moving::Moves::learn_moved`]); `EUCLEAN`.
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

    /// A directory or shard that names are looked for in.
    ///
    /// # Errors
    /// As [`Records::directory`], and `WRONG_SHARD` if there is none: it may be a shard that was given up.
    pub fn with_names(&self, fid: &Fid) -> StatusResult<Arc<InodeRecord>> {
        self.directory(fid).map_err(|status| match status {
            Status::ENOENT => Status::WRONG_SHARD,
            other => other,
        })
    }

    /// The record of the directory or shard that a name is, or would be, stored with.
    ///
    /// # Errors
    /// As [`Records::with_names`] and [`Records::check_home`].
    pub fn home_of(&self, fid: &Fid, name: &[u8]) -> StatusResult<Arc<InodeRecord>> {
        let record = self.with_names(fid)?;
        self.check_home(&record, name)?;
        Ok(record)
    }

    /// Name number `index` of an inode beyond the first, in no particular order.
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

    /// Name number `index` of an inode, the one in its record first.
    ///
    /// # Errors
    /// `ENODATA` if there is none.
    pub fn link_of(&self, fid: &Fid, index: u32) -> StatusResult<(Fid, Vec<u8>)> {
        let record = self.inode(fid)?;
        let link = match index {
            // The root and orphans have none.
            0 if record.name.is_empty() => None,
            0 => Some((record.parent, record.name.clone())),
            _ => self.extra_link(fid, index - 1)?,
        };
        link.ok_or(Status::ENODATA)
    }

    /// Why an inode has no name; `None` if it has one.
    pub fn orphan_kind(&self, fid: &Fid) -> StatusResult<Option<OrphanKind>> {
        self.store
            .get(ORPHANS, &fid.to_key(), |value| value.and_then(OrphanKind::decode))
            .map_err(|error| self.store_failed(&error))
    }

    /// The stored value of an extended attribute.
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

    /// The default ACL of a directory, if it has one.
    pub fn default_acl(&self, fid: &Fid) -> StatusResult<Option<Acl>> {
        match self.stored_xattr(fid, ACL_DEFAULT)? {
            None => Ok(None),
            Some(value) => Acl::parse_xattr(&value).map_err(|_| {
                log::error!("default ACL of {fid} is damaged");
                Status::EUCLEAN
            }),
        }
    }

    /// A transaction.
    pub fn begin(&self) -> Tx {
        // At most the number that the commit will get, and above every earlier change of a locked inode.
        Tx::new(self.store.last_transno().0 + 1)
    }

    /// Makes the log durable up to a transaction.
    pub fn sync(&self, upto: TransNo) -> StatusResult<()> {
        if upto > self.store.last_committed() {
            nacre_env::blocking(|| self.store.sync(upto)).map_err(|error| self.store_failed(&error))?;
        }
        Ok(())
    }

    /// Makes durable all that is committed.
    pub fn sync_all(&self) -> StatusResult<()> {
        self.sync(self.store.last_transno())
    }

    /// Takes a sequence that nobody has with the transaction that `commit` commits.
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

    /// Whether a FID of this MDT may be that of a new inode.
    pub fn check_own_fid(&self, fid: &Fid) -> StatusResult<()> {
        let given_out = self.next_sequence.load(Ordering::Acquire);
        match fid.seq < SEQ_NORMAL || fid.seq >= given_out || fid.oid == 0 || fid.ver != 0 {
            true => Err(Status::EINVAL),
            false => Ok(()),
        }
    }

    /// What names are hashed with.
    pub fn hash_seed(&self) -> u64 {
        self.hash_seed.load(Ordering::Relaxed)
    }

    /// Position of a name in its directory.
    pub fn hash(&self, name: &[u8]) -> u64 {
        nacre_types::name::name_hash(self.hash_seed(), name)
    }

    /// Somebody may put a name here from now on.
    pub fn begin_names(&self) {
        *self.has_names.lock() = true;
    }

    /// Hashes names with this seed, if there are none yet.
    ///
    /// # Errors
    /// What the store says.
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

    /// Stores that the run has ended in order, and with how many inodes, if that is known.
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
