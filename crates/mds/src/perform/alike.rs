//! Changes of one inode's attributes. Directories whose names lie in shards are kept alike with their shards.

use super::Performer;
use crate::locks::{Locked, Want};
use crate::operations::Gathered;
use crate::plan::{Amendment, encoded};
use crate::shards::shards_of;
use crate::turn::Caller;
use crate::tx::Tx;
use nacre_ondisk::InodeRecord;
use nacre_types::{Fid, Status, StatusResult};
use nacre_wire::mds::{MdsAnswer, MdsReply};
use nacre_wire::peer::Update;
use std::sync::Arc;

/// What is locked while owner, rights, times, defaults or extended attributes of an inode are changed.
pub(crate) enum Held<'a> {
    /// The inode alone, until this is dropped.
    Alone { _locked: Locked<'a> },
    /// A directory and its shards.
    Everywhere(Gathered<'a>),
}

impl Held<'_> {
    /// The shards of a directory that is held, as far as they are there: all of them get what the directory has.
    ///
    /// # Errors
    /// `EUCLEAN` for a list of shards that is damaged.
    pub fn shards_of(&self, record: &InodeRecord) -> StatusResult<Vec<Arc<InodeRecord>>> {
        let Held::Everywhere(gathered) = self else { return Ok(Vec::new()) };
        let shards = shards_of(record)?.map(|layout| layout.inodes()).unwrap_or_default();
        Ok(shards.iter().filter_map(|fid| gathered.inode(fid).ok()).collect())
    }
}

impl Performer {
    /// Locks an inode alone, to change what its shards do not have.
    ///
    /// # Errors
    /// `EINTR`, `ESHUTDOWN`.
    pub fn lock_alone(&self, caller: &Caller<'_>, fid: &Fid) -> StatusResult<Held<'_>> {
        Ok(Held::Alone { _locked: caller.turn.lock(&self.leaves.locks, [Want::Whole(*fid)])? })
    }

    /// Locks an inode to change owner, rights, times or defaults: of a directory, its shards too.
    ///
    /// # Errors
    /// `ENOENT`; what other MDTs answer.
    pub fn lock_alike(&self, caller: &Caller<'_>, fid: &Fid) -> StatusResult<Held<'_>> {
        loop {
            let held = self.lock_alone(caller, fid)?;
            let seen = self.leaves.records.inode(fid)?;
            let Some(layout) = shards_of(&seen)? else { return Ok(held) };
            if layout.former == *fid {
                // What is said of it now is said of the one in its place.
                return Err(Status::ESTALE);
            }
            // Those of other MDTs may have to be locked first.
            drop(held);
            caller.turn.give_up();
            let mut fids = layout.inodes();
            fids.push(*fid);
            let gathered = self.coordinator.gather(&fids, &[])?;
            // How far names have moved is of no account.
            if shards_of(&*gathered.inode(fid)?)?.as_ref() == Some(&layout) {
                return Ok(Held::Everywhere(gathered));
            }
        }
    }

    /// Carries out what is planned for an inode that is held: of a directory, on all MDTs. `tx` may have more for an inode that is held alone.
    ///
    /// # Errors
    /// If it does not happen.
    pub fn amend(
        &self,
        caller: &Caller<'_>,
        held: Held<'_>,
        mut tx: Tx,
        amendment: Amendment<'_>,
    ) -> StatusResult<MdsAnswer> {
        let Held::Everywhere(gathered) = held else {
            let record = self.staging.stage_amendment(&mut tx, amendment);
            return self.commits.finish(caller, tx, MdsReply::Attr(record.shown()));
        };
        debug_assert!(tx.is_empty(), "the coordinator's part is staged from the updates");
        let Amendment { record, xattrs, .. } = amendment;
        let (fid, now) = (record.attr.fid, record.attr.ctime);
        let shards = shards_of(&record)?.map(|layout| layout.inodes()).unwrap_or_default();
        let record = tx.put_inode(record);
        let bytes = encoded(&record);
        let xattrs: Vec<_> = xattrs
            .into_iter()
            .map(|change| (change.name.to_vec(), change.value.unwrap_or_default().into_owned()))
            .collect();
        let mirror = |fid: Fid| Update::Mirror { fid, record: bytes.clone(), xattrs: xattrs.clone() };
        let others = shards.into_iter().filter(|shard| *shard != fid);
        let updates = others.chain([fid]).map(mirror).collect();
        self.coordinator.execute(caller, gathered, updates, now, MdsReply::Attr(record.shown()))
    }
}
