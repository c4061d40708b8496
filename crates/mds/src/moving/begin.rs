//! Beginning of a change: the new shards of a directory, on request or because it has grown.

use super::Moves;
use crate::new_shards::{handed_to_shards, new_shard};
use crate::plan::encoded;
use crate::shards::shards_of;
use crate::suspend::Caller;
use crate::transactions::Gathered;
use crate::tx::{Tx, now};
use nacre_layout::dir_default::PER_MDT_MAX;
use nacre_layout::dir_hash::DirHash;
use nacre_layout::dir_layout::{DirFlags, DirLayout};
use nacre_layout::{DirChange, DirDefault};
use nacre_ondisk::InodeRecord;
use nacre_types::{Fid, Status, StatusResult, perm};
use nacre_wire::mds::{MdsAnswer, MdsReply};
use nacre_wire::peer::{PeerReply, PeerRequest, RecordBytes, Update};
use std::collections::BTreeSet;

/// Requested shards of a directory.
struct Wanted {
    count: usize,
    hash: Option<DirHash>,
    is_fixed: bool,
    /// Automatic split: fewer shards suffice if some MDTs accept no new inodes.
    is_by_itself: bool,
    /// MDTs for new shards, the preferred ones first.
    mdts: Vec<u16>,
}

/// A list of shards whose names are to move.
struct Change {
    list: DirLayout,
    /// Shards in it that are to be created.
    fresh: Vec<Fid>,
}

impl Moves {
    /// Changes the number of shards of a directory.
    ///
    /// # Errors
    /// `EPERM` without the right to choose MDTs, for callers that do not own the directory, and where it is
    /// disabled; `ENOTDIR`; `EINVAL`; `EBUSY` while its names move; `EALREADY` if it already has these
    /// shards.
    pub fn restripe(&self, caller: &Caller<'_>, fid: &Fid, requested: &[u8]) -> StatusResult<MdsAnswer> {
        self.core.placement.may_choose_mdts(caller)?;
        let record = self.leaves.records.directory(fid)?;
        perm::owner_or_capable(&record.attr, caller.cred()).or(Status::EPERM)?;
        if !self.leaves.moving.limits().may_restripe {
            return Err(Status::EPERM);
        }
        let requested = DirDefault::decode(requested).map_err(|_| Status::EINVAL)?;
        let wanted = Wanted {
            count: usize::try_from(requested.count).map_err(|_| Status::EINVAL)?,
            hash: requested.hash,
            is_fixed: requested.flags.contains(DirFlags::FIXED),
            is_by_itself: false,
            mdts: requested.mdts.clone(),
        };
        let change = self.change_to(&record, &wanted)?;
        let (gathered, updates) = self.begin_of(fid, &record, change)?;
        self.core.coordinator.execute(caller, gathered, updates, now(), MdsReply::Done)
    }

    /// Splits directories that have grown.
    pub(super) fn split_grown(&self) {
        let grown = self.leaves.moving.take_grown();
        for fid in grown {
            let outcome = match fid.mdt_index() == self.leaves.index {
                true => self.split(&fid),
                false => self.leaves.transactions.ask(fid.mdt_index(), PeerRequest::Split { fid }).map(drop),
            };
            if let Err(status) = outcome {
                log::debug!("MDT{:04x}: {fid} is not split: {status}", self.leaves.index);
            }
        }
    }

    fn split(&self, fid: &Fid) -> StatusResult<()> {
        let limits = self.leaves.moving.limits();
        let record = self.leaves.records.directory(fid)?;
        let list = shards_of(&record)?;
        let is_still =
            list.as_ref().is_none_or(|list| list.change().is_none() && !list.flags.contains(DirFlags::FIXED));
        let used: BTreeSet<u16> = list.iter().flat_map(|list| &list.shards).map(Fid::mdt_index).collect();
        let now = list.as_ref().map_or(1, |list| list.shards.len());
        let mut mdts: Vec<u16> = self.leaves.transactions.all_mdts();
        mdts.retain(|mdt| !used.contains(mdt));
        // The MDT of the directory first, then those with the next indexes.
        mdts.sort_by_key(|mdt| mdt.wrapping_sub(self.leaves.index));
        let free = mdts.len() - usize::from(list.is_none());
        if !limits.splits || !limits.may_restripe || !is_still || free == 0 {
            return Ok(());
        }
        let more = usize::try_from(limits.split_delta).unwrap_or(usize::MAX).clamp(1, free);
        let wanted = Wanted { count: now + more, hash: None, is_fixed: false, is_by_itself: true, mdts };
        let change = self.change_to(&record, &wanted)?;
        log::info!("MDT{:04x}: {fid} has many names and gets {more} more shards", self.leaves.index);
        let (gathered, updates) = self.begin_of(fid, &record, change)?;
        self.core.coordinator.execute_own(gathered, updates)
    }

    /// Returns the list for moving names of a directory to the requested shards.
    fn change_to(&self, record: &InodeRecord, wanted: &Wanted) -> StatusResult<Change> {
        let fid = record.attr.fid;
        let list = shards_of(record)?;
        if list.as_ref().is_some_and(|list| list.change().is_some()) {
            return Err(Status::EBUSY);
        }
        let of_list = || DirHash::from_number(list.as_ref()?.hash);
        let hash = wanted.hash.or_else(of_list).unwrap_or_else(|| self.core.placement.default_hash());
        let new = |count: usize, beside: &[Fid]| self.new_shards(count, beside, wanted);
        let (list, fresh) = match (list, wanted.count) {
            (None, 0 | 1) => return Err(Status::EALREADY),
            (None, count) => {
                // A directory that had shards before gets lists with other versions.
                let version = record.attr.version as u32;
                let whole = DirLayout { version, ..DirLayout::new(hash, self.leaves.index, vec![fid]) };
                let fresh = new(count, &[])?;
                if fresh.len() < 2 {
                    return Err(Status::ENOSPC);
                }
                (whole.moving_to(hash, &fresh), fresh)
            }
            (Some(list), 0 | 1) => (list.moving_to(hash, &[fid]), Vec::new()),
            (Some(list), count) if count > list.shards.len() => {
                let fresh = new(count - list.shards.len(), &list.shards)?;
                if fresh.is_empty() {
                    return Err(Status::ENOSPC);
                }
                (list.growing(hash, &fresh), fresh)
            }
            (Some(list), count) if count < list.shards.len() => (list.shrinking(hash, count), Vec::new()),
            (Some(list), _) if list.hash == hash.number() => return Err(Status::EALREADY),
            (Some(list), count) => {
                let fresh = new(count, &[])?;
                (list.moving_to(hash, &fresh), fresh)
            }
        };
        let mut list = list.ok_or(Status::EINVAL)?;
        list.flags |= if wanted.is_fixed { DirFlags::FIXED } else { DirFlags::empty() };
        Ok(Change { list, fresh })
    }

    /// Returns FIDs for shards on these MDTs, first on those with the fewest.
    fn new_shards(&self, count: usize, beside: &[Fid], wanted: &Wanted) -> StatusResult<Vec<Fid>> {
        let (mut all, mut mdts) = (beside.to_vec(), wanted.mdts.clone());
        let mut fresh = Vec::with_capacity(count.min(nacre_layout::dir_layout::SHARDS_MAX));
        while fresh.len() < count {
            let has = |mdt: u16| all.iter().filter(|fid| fid.mdt_index() == mdt).count();
            let best = mdts.iter().copied().min_by_key(|mdt| has(*mdt)).ok_or(Status::EINVAL)?;
            if has(best) >= PER_MDT_MAX as usize {
                return Err(Status::EINVAL);
            }
            match self.new_fid_on(best) {
                Ok(fid) => {
                    fresh.push(fid);
                    all.push(fid);
                }
                Err(Status::ENOSPC) if wanted.is_by_itself => {}
                Err(Status::ENODEV) => return Err(Status::EINVAL),
                Err(status) => return Err(status),
            }
            // Two shards on one MDT are no gain, so only users request them.
            if wanted.is_by_itself {
                mdts.retain(|mdt| *mdt != best);
                if mdts.is_empty() {
                    break;
                }
            }
        }
        Ok(fresh)
    }

    fn new_fid_on(&self, mdt: u16) -> StatusResult<Fid> {
        if mdt == self.leaves.index {
            return self.new_fid();
        }
        match self.leaves.transactions.ask(mdt, PeerRequest::NewFid)? {
            PeerReply::Fid(fid) if fid.mdt_index() == mdt => Ok(fid),
            _ => Err(Status::EPROTO),
        }
    }

    /// Returns an unused FID of this MDT.
    ///
    /// # Errors
    /// `ENOSPC` if this MDT accepts no new inodes; those of the store.
    pub fn new_fid(&self) -> StatusResult<Fid> {
        if self.leaves.space.is_full() || self.leaves.space.is_no_create() {
            return Err(Status::ENOSPC);
        }
        let mut fids = self.fids.lock();
        if fids.0 == 0 || fids.1 == u32::MAX {
            *fids = (self.own_sequence()?, 0);
        }
        fids.1 += 1;
        Ok(Fid::new(fids.0, fids.1, 0))
    }

    /// Returns a sequence for FIDs that this server assigns.
    fn own_sequence(&self) -> StatusResult<u64> {
        self.leaves.records.take_sequence(|mut tx: Tx, sequence| {
            // Other MDTs use it at once: it must not be assigned again after a power loss.
            self.leaves.records.sync(self.core.commits.commit(&mut tx)?)?;
            Ok(sequence)
        })
    }

    /// Locks what a change needs, and returns the updates that begin it.
    fn begin_of(
        &self,
        fid: &Fid,
        seen: &InodeRecord,
        change: Change,
    ) -> StatusResult<(Gathered<'_>, Vec<Update>)> {
        let Change { list, fresh } = change;
        let fids = [&list.shards[..], &[*fid]].concat();
        let gathered = self.core.coordinator.gather(&fids, &[])?;
        let record = gathered.inode(fid)?;
        let is_there = |shard: &&Fid| gathered.inode(shard).is_ok();
        if record.lmv != seen.lmv || fresh.iter().any(|shard| is_there(&shard)) {
            return Err(Status::EBUSY);
        }
        if !list.shards.iter().filter(|shard| !fresh.contains(shard)).all(|shard| is_there(&shard)) {
            log::error!("{fid} has lost a shard: run a check");
            return Err(Status::EUCLEAN);
        }
        let xattrs = handed_to_shards(&self.leaves.records, &record)?;
        let mut updates = Vec::with_capacity(fids.len());
        for (place, shard) in (0..).zip(&list.shards).filter(|(_, shard)| *shard != fid) {
            let lmv = list.encode_shard(place);
            updates.push(match fresh.contains(shard) {
                true => {
                    let record = encoded(&new_shard(&record, shard, lmv));
                    Update::NewInode { fid: *shard, record, xattrs: xattrs.clone() }
                }
                false => Update::SetShards { fid: *shard, lmv: RecordBytes(lmv), is_master: false },
            });
        }
        let lmv = RecordBytes(list.encode());
        updates.push(Update::SetShards { fid: *fid, lmv, is_master: true });
        Ok((gathered, updates))
    }

    /// Ends a change if all names have moved; returns false otherwise.
    pub(super) fn end_change(&self, fid: &Fid, list: &DirLayout) -> StatusResult<()> {
        for place in list.old_places() {
            let shard = &list.shards[place as usize];
            if self.moved_anywhere(shard)? != (list.version, nacre_layout::dir_layout::MOVED_ALL) {
                return Ok(());
            }
        }
        let fids = [&list.inodes()[..], &[*fid]].concat();
        let gathered = self.core.coordinator.gather(&fids, &[])?;
        if shards_of(&*gathered.inode(fid)?)?.as_ref() != Some(list) {
            return Ok(());
        }
        let (settled, _) = list.settled();
        let left = list.inodes().into_iter().filter(|inode| !settled.shards.contains(inode));
        let mut updates = Vec::with_capacity(fids.len());
        for shard in left.filter(|shard| shard != fid) {
            if gathered.inode(&shard)?.entries() != 0 {
                log::error!("shard {shard} of {fid} has names that have not moved: run a check");
                return Err(Status::EUCLEAN);
            }
            updates.push(Update::DropShard { fid: shard });
        }
        let is_whole = settled.shards == [*fid];
        for (place, shard) in (0..).zip(&settled.shards).filter(|_| !is_whole) {
            let lmv = RecordBytes(settled.encode_shard(place));
            updates.push(Update::SetShards { fid: *shard, lmv, is_master: false });
        }
        let lmv = RecordBytes(if is_whole { Vec::new() } else { settled.encode() });
        updates.push(Update::SetShards { fid: *fid, lmv, is_master: true });
        let how = list.change().map_or("", |change| match change {
            DirChange::Split => " (split)",
            DirChange::Merge => " (merge)",
            DirChange::Migration => "",
        });
        log::info!("MDT{:04x}: the names of {fid} have moved{how}", self.leaves.index);
        self.core.coordinator.execute_own(gathered, updates)
    }
}
