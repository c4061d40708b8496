//! Directories whose names lie in shards: made, and kept alike with their shards.

use crate::locks::Locked;
use crate::locks::Want;
use crate::mds::Mds;
use crate::operations::{Gathered, MIRRORED, encoded};
use crate::service::Caller;
use crate::shards::shards_of;
use crate::tables::ACL_DEFAULT;
use crate::tx::Tx;
use nacre_layout::dir_default::PER_MDT_MAX;
use nacre_layout::dir_hash::DirHash;
use nacre_layout::dir_layout::{DirFlags, DirLayout};
use nacre_ondisk::InodeRecord;
use nacre_types::{AttrFlags, Fid, Status, StatusResult};
use nacre_wire::mds::{MdsAnswer, MdsReply};
use nacre_wire::peer::Update;
use std::collections::BTreeMap;

/// What is locked while owner, rights, times or defaults of an inode are changed: of a directory, its shards too.
pub(super) enum Held<'a> {
    /// The inode alone.
    Alone {
        /// Until it is dropped.
        _locked: Locked<'a>,
    },
    /// A directory and its shards.
    Everywhere(Fid, Gathered<'a>),
}

impl Held<'_> {
    /// Gives a directory the latest of its and its shards' times: all of them are about to get what it has.
    ///
    /// # Errors
    /// `EUCLEAN` for a list of shards that is damaged.
    pub(super) fn take_latest_times(&self, record: &mut InodeRecord) -> StatusResult<()> {
        let Held::Everywhere(_, gathered) = self else { return Ok(()) };
        let shards = shards_of(record)?.map(|layout| layout.inodes()).unwrap_or_default();
        // One that is not there any more has no times.
        for shard in shards.iter().filter_map(|fid| gathered.inode(fid).ok()) {
            record.attr.atime = record.attr.atime.max(shard.attr.atime);
            record.attr.mtime = record.attr.mtime.max(shard.attr.mtime);
        }
        Ok(())
    }
}

/// The record of a shard of a directory, without names.
pub(crate) fn new_shard(master: &InodeRecord, fid: &Fid, lmv: Vec<u8>) -> InodeRecord {
    let mut shard = InodeRecord { parent: master.attr.fid, name: Vec::new(), lmv, ..master.clone() };
    let attr = &mut shard.attr;
    (attr.fid, attr.size, attr.nlink) = (*fid, 0, 2);
    attr.flags &= MIRRORED;
    shard
}

impl Mds {
    /// Extended attributes of a directory that its shards have too.
    ///
    /// # Errors
    /// What the store says.
    pub(crate) fn handed_to_shards(&self, record: &InodeRecord) -> StatusResult<Vec<(Vec<u8>, Vec<u8>)>> {
        if !record.attr.flags.contains(AttrFlags::HAS_DEFAULT_ACL) {
            return Ok(Vec::new());
        }
        let acl = self.default_acl(&record.attr.fid)?;
        Ok(acl.into_iter().map(|acl| (ACL_DEFAULT.to_vec(), acl.to_xattr())).collect())
    }

    /// Whether these can be the shards of a new directory.
    ///
    /// # Errors
    /// `EINVAL`.
    pub(crate) fn check_new_shards(&self, fid: &Fid, lmv: &[u8]) -> StatusResult<DirLayout> {
        let layout = DirLayout::decode(lmv).map_err(|_| Status::EINVAL)?;
        let impossible = DirFlags::all() - DirFlags::OVERSTRIPED - DirFlags::FIXED;
        if layout.flags.intersects(impossible)
            || DirHash::from_number(layout.hash).is_none()
            || layout.master_mdt != fid.mdt_index()
            || layout.shards.contains(fid)
        {
            return Err(Status::EINVAL);
        }
        let mut counts: BTreeMap<u16, i32> = BTreeMap::new();
        for shard in &layout.shards {
            if shard.mdt_index() == self.index {
                self.check_own_fid(shard)?;
            }
            let count = counts.entry(shard.mdt_index()).or_default();
            *count += 1;
            if *count > PER_MDT_MAX {
                return Err(Status::EINVAL);
            }
        }
        Ok(layout)
    }

    /// Locks an inode to change owner, rights, times or defaults.
    ///
    /// # Errors
    /// `ENOENT`; what other MDTs answer.
    pub(super) fn lock_alike(&self, caller: &Caller<'_>, fid: &Fid) -> StatusResult<Held<'_>> {
        loop {
            let locked = self.lock_for(caller, [Want::Whole(*fid)])?;
            let seen = self.inode(fid)?;
            let Some(layout) = shards_of(&seen)? else { return Ok(Held::Alone { _locked: locked }) };
            if layout.former == *fid {
                // What is said of it now is said of the one in its place.
                return Err(Status::ESTALE);
            }
            // Those of other MDTs may have to be locked first.
            drop(locked);
            caller.turn.give_up();
            let mut fids = layout.inodes();
            fids.push(*fid);
            let gathered = self.gather(&fids, &[])?;
            // How far names have moved is of no account.
            if shards_of(&*gathered.inode(fid)?)?.as_ref() == Some(&layout) {
                return Ok(Held::Everywhere(*fid, gathered));
            }
        }
    }

    /// Commits what was staged for an inode that is held: of a directory, on all MDTs.
    ///
    /// # Errors
    /// If it does not happen.
    pub(super) fn finish_held(
        &self,
        caller: &Caller<'_>,
        held: Held<'_>,
        tx: Tx,
        reply: MdsReply,
    ) -> StatusResult<MdsAnswer> {
        let Held::Everywhere(fid, gathered) = held else { return self.finish(caller, tx, reply) };
        let changed =
            tx.cached().iter().find_map(|(changed, record)| record.as_ref().filter(|_| *changed == fid));
        let Some(changed) = changed else { return Ok(self.answer(reply)) };
        let record = encoded(changed);
        let xattrs: Vec<_> = tx
            .default_acl
            .iter()
            .map(|acl| (ACL_DEFAULT.to_vec(), acl.clone().unwrap_or_default()))
            .collect();
        let mirror = |fid: Fid| Update::Mirror { fid, record: record.clone(), xattrs: xattrs.clone() };
        let shards = shards_of(changed)?.map(|layout| layout.inodes()).unwrap_or_default();
        let shards = shards.into_iter().filter(|shard| *shard != fid);
        let updates = shards.chain([fid]).map(mirror).collect();
        self.execute(caller, gathered, updates, (changed.attr.ctime, reply))
    }
}
