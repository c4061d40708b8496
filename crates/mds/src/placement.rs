//! Where directories go: who may say so, and how their names are spread where nobody does.

use crate::turn::Caller;
use nacre_layout::DirDefault;
use nacre_layout::dir_hash::DirHash;
use nacre_ondisk::InodeRecord;
use nacre_types::perm::Verdict;
use nacre_types::{AttrFlags, Caps, Fid, Status, StatusResult, perm};
use std::sync::atomic::{AtomicI64, AtomicU16, Ordering};

/// See the [module documentation](self).
pub struct Placement {
    /// The group that may make directories on other MDTs; 0: administrators alone, -1: everybody (`mdt.*.enable_remote_dir_gid`).
    remote_dir_gid: AtomicI64,
    /// How names are spread where nobody says how, a [`DirHash`]'s number; the configuration may change it at any time.
    default_hash: AtomicU16,
}

impl Placement {
    pub(crate) fn new(default_hash: DirHash) -> Placement {
        Placement { remote_dir_gid: AtomicI64::new(0), default_hash: AtomicU16::new(default_hash.number()) }
    }

    /// The group that may make directories on other MDTs or on several; 0: administrators alone, -1: everybody.
    pub fn remote_dir_gid(&self) -> i64 {
        self.remote_dir_gid.load(Ordering::Relaxed)
    }

    /// Changes [`Placement::remote_dir_gid`].
    pub fn set_remote_dir_gid(&self, gid: i64) {
        self.remote_dir_gid.store(gid, Ordering::Relaxed);
    }

    /// Spreads names of directories that get shards in this way from now on where nobody says how (`lod.*.mdt_hash`).
    pub fn set_default_hash(&self, hash: DirHash) {
        self.default_hash.store(hash.number(), Ordering::Relaxed);
    }

    /// How names are spread where nobody says how.
    pub(crate) fn default_hash(&self) -> DirHash {
        DirHash::from_number(self.default_hash.load(Ordering::Relaxed)).unwrap_or_default()
    }

    /// Whether the caller may say on which MDTs something is to be: administrators and members of one group
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

/// What a new directory gets of its parent's default, `Some(None)` for nothing of it; `None` if there is none to be handed down. The root's
/// stands for the whole file system and is followed where it is.
///
/// # Errors
/// `EUCLEAN` if it is damaged.
pub(crate) fn inherited_default(parent: &InodeRecord) -> StatusResult<Option<Option<DirDefault>>> {
    match parent.default_lmv.is_empty() || parent.attr.fid == Fid::ROOT {
        true => Ok(None),
        false => Ok(Some(stored_default(parent)?.inherited())),
    }
}

/// The default that a directory has stored, which is not empty.
///
/// # Errors
/// `EUCLEAN` if it is damaged.
fn stored_default(record: &InodeRecord) -> StatusResult<DirDefault> {
    DirDefault::decode(&record.default_lmv).map_err(|error| {
        log::error!("the default of {} for new directories: {error}", record.attr.fid);
        Status::EUCLEAN
    })
}

/// Stores a default with a directory, or none.
pub(crate) fn put_default(record: &mut InodeRecord, default: Option<DirDefault>) {
    record.attr.flags.set(AttrFlags::HAS_DIR_DEFAULT, default.is_some());
    record.default_lmv = default.map_or_else(Vec::new, |default| default.encode());
}
