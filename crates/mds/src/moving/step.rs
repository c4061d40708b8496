//! Steps of a change: each moves the next names of one old shard, in one distributed transaction.

use super::Moves;
use crate::shards::{named_in, place_of, shards_of};
use crate::tables::{DIRENTS, MOVES, dirent_key, split_dirent_key};
use crate::transactions::state::Bug;
use nacre_layout::dir_layout::{DirLayout, DirShard, MOVED_ALL};
use nacre_ondisk::{DirentRecord, InodeRecord};
use nacre_types::{Fid, FileKind, Status, StatusResult};
use nacre_wire::peer::{MOVED_MAX, MovedName, Update};
use std::collections::BTreeMap;
use std::ops::{Bound, ControlFlow};

/// Names that a step reads, most of which may stay.
const STEP_LOOKS: usize = 4096;
/// Names that a step moves to a directory that replaces theirs: their inodes change too, so all of them are
/// locked, in addition to the shards.
const STEP_INODES: usize = 96;

/// The next names of an old shard.
#[derive(Default, PartialEq, Eq, Debug)]
struct Batch {
    /// Names that leave, by place of their new shard.
    leaving: BTreeMap<u32, Vec<MovedName>>,
    /// Position before which all names leave or stay.
    upto: u64,
    /// Number of names before that position.
    passed: usize,
}

/// A name that was read.
struct Read {
    position: u64,
    /// Place of the new shard; `None` if the name stays.
    to: Option<u32>,
    name: MovedName,
}

/// A directory under replacement, and the one that replaces it.
#[derive(Clone, Copy)]
struct Replaced {
    former: Fid,
    by: Fid,
}

impl Batch {
    /// Returns those of the names that may move together: whole positions, and only names that are `allowed`
    /// to go to their places.
    fn of(reads: Vec<Read>, is_all: bool, allowed: impl Fn(u32, &MovedName) -> bool) -> Batch {
        let stop = reads.iter().find(|read| read.to.is_some_and(|to| !allowed(to, &read.name)));
        let upto = match (stop, reads.last()) {
            (Some(stop), _) => stop.position,
            (None, Some(last)) if !is_all => last.position,
            (None, _) => MOVED_ALL,
        };
        let mut batch = Batch { upto, ..Batch::default() };
        for read in reads.into_iter().take_while(|read| read.position < upto) {
            batch.passed += 1;
            if let Some(to) = read.to {
                batch.leaving.entry(to).or_default().push(read.name);
            }
        }
        batch
    }
}

impl Moves {
    /// Continues the recorded change of a directory or shard; returns true if there is more to do at once.
    ///
    /// # Errors
    /// Those of the store or another MDT.
    pub(super) fn move_on(&self, fid: &Fid) -> StatusResult<bool> {
        let Some(record) = self.leaves.records.find_inode(fid)? else {
            let mut tx = self.leaves.records.begin();
            tx.batch().delete(MOVES, &fid.to_key());
            return self.core.commits.commit(&mut tx).map(|_| false);
        };
        if let Ok(Some(shard)) = place_of(&record)
            && shard.is_moving()
        {
            return self.move_batch(fid, &record, &shard).map(|()| true);
        }
        if let Some(list) = shards_of(&record)?.filter(|list| list.change().is_some() && list.former != *fid)
        {
            self.end_change(fid, &list)?;
        }
        Ok(false)
    }

    /// Moves the next names of an old shard.
    fn move_batch(&self, fid: &Fid, seen: &InodeRecord, shard: &DirShard) -> StatusResult<()> {
        let (list, replaced) = self.list_of(seen, shard)?;
        let most = self.leaves.moving.step_names();
        let most = if replaced.is_some() { most.min(STEP_INODES) } else { most };
        let (reads, is_all) = self.next_names(fid, shard, most)?;
        let leaving = || reads.iter().filter_map(|read| Some((read.to?, read.name.fid)));
        let mut wanted: Vec<Fid> =
            leaving().filter_map(|(to, _)| list.shards.get(to as usize).copied()).collect();
        wanted.extend(leaving().map(|(_, lead)| lead).filter(|_| replaced.is_some()));
        wanted.push(*fid);
        wanted.sort_unstable();
        wanted.dedup();
        drop((reads, is_all));
        // This leaves little to sync while the shard is locked.
        self.leaves.records.sync_all()?;
        let gathered = self.core.coordinator.gather(&wanted, &[])?;
        let record = gathered.inode(fid)?;
        if record.lmv != seen.lmv {
            return Ok(());
        }
        // Names created or removed since the first read count as they are at this read.
        let (reads, is_all) = self.next_names(fid, shard, most)?;
        let target = |to: u32| list.shards.get(to as usize).filter(|fid| gathered.inode(fid).is_ok());
        let is_locked = |name: &MovedName| replaced.is_none() || gathered.has(&name.fid);
        let batch = Batch::of(reads, is_all, |to, name| target(to).is_some() && is_locked(name));
        if batch.upto <= shard.moved() {
            // A name was added whose new shard was not locked, or more names share a position than fit a
            // step.
            return Err(Status::EAGAIN);
        }
        let mut updates = Vec::with_capacity(1 + batch.leaving.len());
        let all = || batch.leaving.values().flatten();
        let subdirs = all().filter(|moved| moved.kind == FileKind::Directory).count() as u32;
        let names = all().map(|moved| moved.name.clone()).collect();
        updates.push(Update::NamesOut { fid: *fid, upto: batch.upto, subdirs, names });
        for (to, names) in batch.leaving.iter() {
            let fid = *target(*to).ok_or(Status::EUCLEAN)?;
            updates.push(Update::NamesIn { fid, names: names.clone() });
        }
        let replaced = replaced.filter(|_| !self.leaves.transactions.has(Bug::TellsNoInodes));
        if let Some(Replaced { former: from, by: to }) = replaced {
            let told = |moved: &MovedName| {
                let (fid, name) = (moved.fid, moved.name.clone());
                gathered.inode(&fid).is_ok().then_some(Update::NewParent { fid, name, from, to })
            };
            updates.extend(all().filter_map(told));
        }
        self.core.coordinator.execute_own(gathered, updates)?;
        self.leaves.moving.note_step(*fid, batch.upto, batch.passed);
        Ok(())
    }

    /// Returns the list that a shard belongs to, and the directory that replaces it, if there is one.
    fn list_of(&self, record: &InodeRecord, shard: &DirShard) -> StatusResult<(DirLayout, Option<Replaced>)> {
        let master = self.core.coordinator.record_anywhere(&named_in(record))?.ok_or(Status::ENOENT)?;
        let list = shards_of(&master)?.filter(|list| list.version == shard.version);
        // That MDT may not have committed its part of the change yet.
        let list = list.ok_or(Status::EAGAIN)?;
        let former = Some(list.former).filter(|former| *former == master.attr.fid);
        Ok((list, former.map(|former| Replaced { former, by: master.parent })))
    }

    /// Returns the names after those that have moved, up to a step's number, and whether these are all.
    fn next_names(&self, fid: &Fid, shard: &DirShard, most: usize) -> StatusResult<(Vec<Read>, bool)> {
        let from = dirent_key(fid, shard.moved(), b"");
        let (mut reads, mut leaving, mut is_all, mut damaged) = (Vec::new(), 0, true, false);
        // Names with the same position move in one step.
        let mut last = None;
        let take = &mut |key: &[u8], value: &[u8]| {
            let entry = split_dirent_key(key).zip(DirentRecord::decode(value).ok());
            let Some(((_, position, name), found)) = entry else {
                damaged = true;
                return ControlFlow::Break(());
            };
            let is_full = leaving >= most || reads.len() >= STEP_LOOKS;
            if is_full && last != Some(position) || leaving >= MOVED_MAX {
                is_all = false;
            }
            last = Some(position);
            let to = shard.leaves_for(name);
            leaving += usize::from(to.is_some());
            let name = MovedName { name: name.to_vec(), fid: found.fid, kind: found.kind };
            reads.push(Read { position, to, name });
            if is_all { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        };
        self.leaves
            .store
            .scan(DIRENTS, &fid.to_key(), Bound::Included(from.as_slice()), take)
            .map_err(|error| self.leaves.records.store_failed(&error))?;
        if damaged {
            log::error!("a name in {fid} is damaged: run a check");
            return Err(Status::EUCLEAN);
        }
        Ok((reads, is_all))
    }
}
