//! Placement of directories on MDTs: which users may choose it, and the hash of names where none is
//! specified.

use crate::suspend::Caller;
use nacre_layout::DirDefault;
use nacre_layout::dir_hash::DirHash;
use nacre_ondisk::InodeRecord;
use nacre_types::perm::Verdict;
use nacre_types::{AttrFlags, Caps, Fid, Status, StatusResult, perm};
use std::sync::atomic::{AtomicI64, AtomicU16, Ordering};

/// See the [module documentation](self).
pub struct Placement {
    /// Group that may create directories on other MDTs; 0: administrators alone, -1: all users
    /// (`mdt.*.enable_remote_dir_gid`).
    remote_dir_gid: AtomicI64,
    /// Hash of names where none is specified, as the number of a [`DirHash`]; the configuration may change it
    /// at any time.
    default_hash: AtomicU16,
}

impl Placement {
    pub(crate) fn new(default_hash: DirHash) -> Placement {
        Placement { remote_dir_gid: AtomicI64::new(0), default_hash: AtomicU16::new(default_hash.number()) }
    }

    /// Returns the group that may create directories on other MDTs or on several; 0: administrators alone,
    /// -1: all users.
    pub fn remote_dir_gid(&self) -> i64 {
        self.remote_dir_gid.load(Ordering::Relaxed)
    }

    /// Sets [`Placement::remote_dir_gid`].
    pub fn set_remote_dir_gid(&self, gid: i64) {
        self.remote_dir_gid.store(gid, Ordering::Relaxed);
    }

    /// Sets the hash for directories that get shards later without a specified one (`lod.*.mdt_hash`).
    pub fn set_default_hash(&self, hash: DirHash) {
        self.default_hash.store(hash.number(), Ordering::Relaxed);
    }

    /// Returns the hash of names where none is specified.
    pub(crate) fn default_hash(&self) -> DirHash {
        DirHash::from_number(self.default_hash.load(Ordering::Relaxed)).unwrap_or_default()
    }

    /// Checks that the caller may choose MDTs: administrators and members of one group
    /// (`mdt.*.enable_remote_dir_gid`).
    ///
    /// # Errors
    /// `EPERM`.
    pub(crate) fn may_choose_mdts(&self, caller: &Caller<'_>) -> StatusResult<()> {
        let allowed = self.remote_dir_gid();
        if allowed == -1 {
            return Ok(());
        }
        let verdict = match perm::capable(caller.cred(), Caps::SYS_ADMIN) {
            Verdict::Denied if allowed != 0 => {
                u32::try_from(allowed).map_or(Verdict::Denied, |gid| perm::in_group(caller.cred(), gid))
            }
            verdict => verdict,
        };
        verdict.or(Status::EPERM)
    }
}

/// Returns the default that a new directory inherits from its parent: `Some(None)` if the parent's ends at
/// this level; `None` if the parent has none to inherit. The root's default applies to the whole file system
/// and is not copied: it is read at the root.
///
/// # Errors
/// `EUCLEAN` if it is damaged.
pub(crate) fn inherited_default(parent: &InodeRecord) -> StatusResult<Option<Option<DirDefault>>> {
    match parent.default_lmv.is_empty() || parent.attr.fid == Fid::ROOT {
        true => Ok(None),
        false => Ok(Some(stored_default(parent)?.inherited())),
    }
}

/// Decodes the stored default of a directory, which is not empty.
///
/// # Errors
/// `EUCLEAN` if it is damaged.
fn stored_default(record: &InodeRecord) -> StatusResult<DirDefault> {
    DirDefault::decode(&record.default_lmv).map_err(|error| {
        log::error!("the default of {} for new directories: {error}", record.attr.fid);
        Status::EUCLEAN
    })
}

/// Stores a default in the record of a directory, or removes it.
pub(crate) fn put_default(record: &mut InodeRecord, default: Option<DirDefault>) {
    record.attr.flags.set(AttrFlags::HAS_DIR_DEFAULT, default.is_some());
    record.default_lmv = default.map_or_else(Vec::new, |default| default.encode());
}
