//! Directories whose names lie in shards are kept alike with their shards.

use super::{Distributed, Gathered};
use crate::locks::{Locked, Want};
use crate::plan::encoded;
use crate::shards::shards_of;
use crate::tables::ACL_DEFAULT;
use crate::turn::Caller;
use crate::tx::Tx;
use nacre_ondisk::InodeRecord;
use nacre_types::{Fid, Status, StatusResult};
use nacre_wire::mds::{MdsAnswer, MdsReply};
use nacre_wire::peer::Update;

/// What is locked while owner, rights, times or defaults of an inode are changed: of a directory, its shards too.
pub(crate) enum Held<'a> {
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
    pub fn take_latest_times(&self, record: &mut InodeRecord) -> StatusResult<()> {
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

impl Distributed {
    /// Locks an inode to change owner, rights, times or defaults.
    ///
    /// # Errors
    /// `ENOENT`; what other MDTs answer.
    pub fn lock_alike(&self, caller: &Caller<'_>, fid: &Fid) -> StatusResult<Held<'_>> {
        loop {
            let locked = caller.turn.lock(&self.locks, [Want::Whole(*fid)])?;
            let seen = self.records.inode(fid)?;
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
    pub fn finish_held(
        &self,
        caller: &Caller<'_>,
        held: Held<'_>,
        tx: Tx,
        reply: MdsReply,
    ) -> StatusResult<MdsAnswer> {
        let Held::Everywhere(fid, gathered) = held else { return self.commits.finish(caller, tx, reply) };
        let changed =
            tx.cached().iter().find_map(|(changed, record)| record.as_ref().filter(|_| *changed == fid));
        let Some(changed) = changed else { return Ok(self.commits.answer(reply)) };
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
