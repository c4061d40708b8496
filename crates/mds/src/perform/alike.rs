//! Changes of one inode's attributes. Attributes of a striped directory are replicated to its shards.

use super::Performer;
use crate::locks::{Locked, Want};
use crate::plan::{Amendment, encoded};
use crate::shards::shards_of;
use crate::suspend::Caller;
use crate::transactions::Gathered;
use crate::tx::Tx;
use nacre_ondisk::InodeRecord;
use nacre_types::{Fid, Status, StatusResult};
use nacre_wire::mds::{MdsAnswer, MdsReply};
use nacre_wire::peer::Update;
use std::sync::Arc;

/// Locks for a change of owner, rights, times, defaults or extended attributes of an inode.
pub(crate) enum Held<'a> {
    /// The inode alone, locked until this is dropped.
    Alone { _locked: Locked<'a> },
    /// A directory and its shards, locked on their MDTs.
    Everywhere(Gathered<'a>),
}

impl Held<'_> {
    /// Returns the existing shards of a locked directory: all of them get the directory's attributes.
    ///
    /// # Errors
    /// `EUCLEAN` for a damaged list of shards.
    pub fn shards_of(&self, record: &InodeRecord) -> StatusResult<Vec<Arc<InodeRecord>>> {
        let Held::Everywhere(gathered) = self else { return Ok(Vec::new()) };
        let shards = shards_of(record)?.map(|layout| layout.inodes()).unwrap_or_default();
        Ok(shards.iter().filter_map(|fid| gathered.inode(fid).ok()).collect())
    }
}

impl Performer {
    /// Locks an inode alone, to change attributes that its shards do not have.
    ///
    /// # Errors
    /// `EINTR`, `ESHUTDOWN`.
    pub fn lock_alone(&self, caller: &Caller<'_>, fid: &Fid) -> StatusResult<Held<'_>> {
        Ok(Held::Alone { _locked: caller.suspended.lock(&self.leaves.locks, [Want::Whole(*fid)])? })
    }

    /// Locks an inode, and the shards of a directory, to change owner, rights, times or defaults.
    ///
    /// # Errors
    /// `ENOENT`; those of other MDTs.
    pub fn lock_alike(&self, caller: &Caller<'_>, fid: &Fid) -> StatusResult<Held<'_>> {
        loop {
            let held = self.lock_alone(caller, fid)?;
            let seen = self.leaves.records.inode(fid)?;
            let Some(layout) = shards_of(&seen)? else { return Ok(held) };
            if layout.former == *fid {
                // The change applies to the directory that replaces it.
                return Err(Status::ESTALE);
            }
            // Shards on MDTs with smaller indexes have to be locked first.
            drop(held);
            caller.suspended.give_up();
            let mut fids = layout.inodes();
            fids.push(*fid);
            let gathered = self.coordinator.gather(&fids, &[])?;
            // The progress of moving names does not matter here.
            if shards_of(&*gathered.inode(fid)?)?.as_ref() == Some(&layout) {
                return Ok(Held::Everywhere(gathered));
            }
        }
    }

    /// Carries out the plan for a locked inode; for a directory, on all MDTs. `tx` may have other changes for
    /// an inode that is locked alone.
    ///
    /// # Errors
    /// If the change is not committed.
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
