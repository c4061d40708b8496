//! Moves of inodes to another MDT. A FID determines its MDT, so a moved inode gets another FID, and its names
//! are changed to refer to it.
//!
//! Files and other inodes without names in them move in one distributed transaction over the MDTs of their
//! names and both MDTs ([`super::files`]). A directory begins with such a transaction, too, which replaces it
//! by another directory; its names move afterwards, in steps ([`super::step`]). `docs/design/dne.md` has the
//! design.

use super::Moves;
use crate::changelog::events;
use crate::locks::Want;
use crate::new_shards::{check_new_shards, handed_to_shards, new_shard};
use crate::plan::encoded;
use crate::shards::holds_names;
use crate::shards::{is_former, shards_of};
use crate::suspend::Caller;
use crate::tables::{LINKS, XATTRS, split_link_key, split_xattr_key};
use crate::transactions::Gathered;
use crate::transactions::ShardLists;
use nacre_layout::dir_hash::DirHash;
use nacre_layout::dir_layout::DirLayout;
use nacre_ondisk::{InodeRecord, XattrRecord};
use nacre_types::fid::SEQ_NORMAL;
use nacre_types::{AttrFlags, Fid, Status, StatusResult, perm};
use nacre_wire::mds::{MdsAnswer, MdsReply};
use nacre_wire::peer::{LEADS_MAX, Name, PeerReply, PeerRequest, RecordBytes, Update, XATTRS_MAX};
use std::ops::{Bound, ControlFlow};
use std::sync::Arc;

/// How often names may change during a move before it fails.
pub(super) const ATTEMPTS: usize = 100;
/// A transaction is one message and one record: limit for all that moves with an inode, in bytes.
pub(super) const OPERATION_MAX: usize = 960 << 10;

/// Names and values of extended attributes.
pub(super) type Xattrs = Vec<(Vec<u8>, Vec<u8>)>;

/// A name of an inode, and the directories or shards where it may be stored.
struct NameLocation {
    name: Name,
    homes: Vec<Fid>,
}

/// A locked inode that is to move.
pub(super) struct Leaving {
    pub record: Arc<InodeRecord>,
    /// Names in the inode's record, and the directory or shard that stores each.
    pub names: Vec<(Name, Fid)>,
}

impl Moves {
    /// Gives an inode another FID, and thereby another MDT.
    ///
    /// # Errors
    /// `EPERM` without the right to choose MDTs, or for callers that do not own it; `EBUSY` for the root, for
    /// an open file, and for a directory whose names move; `EALREADY` if that is its MDT; `EMLINK` for a file
    /// with more than [`LEADS_MAX`] names; `EEXIST` if an inode has the new FID; `E2BIG` if its names and
    /// extended attributes are too long together; `ENOSPC` if that MDT accepts no new inodes; `ENODEV` if it
    /// does not exist.
    pub fn migrate(&self, caller: &Caller<'_>, fid: &Fid, to: &Fid, lmv: &[u8]) -> StatusResult<MdsAnswer> {
        self.core.placement.may_choose_mdts(caller)?;
        self.check_future(to)?;
        if let Some(seen) = self.seen_to_leave(caller, fid, to)? {
            match holds_names(&seen) {
                true => self.replace_directory(&seen, to, lmv)?,
                false => self.move_files(&[(*fid, *to)]).pop().unwrap_or(Err(Status::ENOENT))?,
            }
        }
        Ok(self.core.commits.answer(MdsReply::Done))
    }

    /// Returns the record of the inode to move; `None` if it has moved already.
    ///
    /// # Errors
    /// `ENOENT`; `EPERM` for a caller that does not own it; `EBUSY` for the root.
    pub(super) fn seen_to_leave(
        &self,
        caller: &Caller<'_>,
        fid: &Fid,
        to: &Fid,
    ) -> StatusResult<Option<Arc<InodeRecord>>> {
        self.leaves.records.check_local(fid)?;
        self.leaves.locks.await_decision(&Want::Still(*fid))?;
        let Some(seen) = self.leaves.records.find_inode(fid)?.filter(|record| !is_former(record)) else {
            // The same request, whose answer was lost, may have moved it.
            return self.core.coordinator.record_anywhere(to)?.map(|_| None).ok_or(Status::ENOENT);
        };
        perm::owner_or_capable(&seen.attr, caller.cred()).or(Status::EPERM)?;
        if *fid == Fid::ROOT { Err(Status::EBUSY) } else { Ok(Some(seen)) }
    }

    /// Checks that a FID may be that of an inode which moves to its MDT, and that this MDT has free space.
    pub(super) fn check_future(&self, fid: &Fid) -> StatusResult<()> {
        check_coming(fid)?;
        if fid.mdt_index() == self.leaves.index {
            return self.leaves.records.check_own_fid(fid);
        }
        match self.leaves.transactions.ask(fid.mdt_index(), PeerRequest::NewFid)? {
            PeerReply::Fid(_) => Ok(()),
            _ => Err(Status::EPROTO),
        }
    }

    /// Replaces a directory by another one. The names begin to move there.
    fn replace_directory(&self, seen: &InodeRecord, to: &Fid, lmv: &[u8]) -> StatusResult<()> {
        let fid = seen.attr.fid;
        let next = match lmv {
            [] => DirLayout::new(hash_of(seen)?, to.mdt_index(), vec![*to]),
            lmv => check_new_shards(&self.leaves.records, to, lmv)?,
        };
        let old = match shards_of(seen)? {
            Some(list) => list,
            // A directory that had shards before gets lists with other versions.
            None => DirLayout {
                version: seen.attr.version as u32,
                ..DirLayout::new(DirHash::Crush, self.leaves.index, vec![fid])
            },
        };
        let list = old.replaced_by(fid, &next).ok_or(Status::EBUSY)?;
        let others = [&list.inodes()[..], &[*to]].concat();
        let (gathered, Leaving { record, names }) = self.gather_directory(&fid, &others)?;
        if record.lmv != seen.lmv {
            return Err(Status::EBUSY);
        }
        let fresh = || next.shards.iter().chain([to]);
        if fresh().any(|fid| gathered.inode(fid).is_ok()) {
            return Err(Status::EEXIST);
        }
        let mut master = InodeRecord { lmv: list.encode(), ..InodeRecord::clone(&record) };
        let attr = &mut master.attr;
        (attr.fid, attr.size, attr.nlink) = (*to, 0, 2);
        attr.flags |= AttrFlags::STRIPED;
        for shard in &old.shards {
            let Ok(shard) = gathered.inode(shard) else {
                log::error!("{fid} has lost a shard: run a check");
                return Err(Status::EUCLEAN);
            };
            // Shards are removed, and with them their times of the last change.
            (attr.mtime, attr.ctime) = (attr.mtime.max(shard.attr.mtime), attr.ctime.max(shard.attr.ctime));
        }
        let handed = handed_to_shards(&self.leaves.records, &record)?;
        let mut updates = Vec::with_capacity(list.shards.len() + 3);
        for (place, shard) in (0..).zip(&list.shards).filter(|(_, shard)| **shard != fid && *shard != to) {
            let lmv = list.encode_shard(place);
            updates.push(match next.shards.contains(shard) {
                true => {
                    let record = encoded(&new_shard(&master, shard, lmv));
                    Update::NewInode { fid: *shard, record, xattrs: handed.clone() }
                }
                false => Update::SetShards { fid: *shard, lmv: RecordBytes(lmv), is_master: false },
            });
        }
        let xattrs = self.xattrs_of(&record)?;
        updates.push(Update::InodeIn { fid: *to, record: encoded(&master), xattrs, links: Vec::new() });
        updates.extend(self.logged(&record, *to));
        let kind = master.attr.kind();
        updates.extend(names.into_iter().map(|(name, home)| retarget(&home, name, *to, kind)));
        updates.push(Update::Replaced { fid, by: *to, lmv: RecordBytes(master.lmv) });
        self.core.coordinator.execute_own(gathered, updates)
    }

    /// Locks a directory with the directories or shards of its names, and others.
    fn gather_directory(&self, fid: &Fid, others: &[Fid]) -> StatusResult<(Gathered<'_>, Leaving)> {
        for _ in 0..ATTEMPTS {
            let (gathered, mut found) = self.gather_to_move(&[*fid], others)?;
            match found.pop().unwrap_or(Err(Status::ENOENT)) {
                Err(Status::EAGAIN) => {}
                found => return Ok((gathered, found?)),
            }
        }
        Err(Status::EAGAIN)
    }

    /// Locks inodes with the directories or shards of their names, and others. Returns `EAGAIN` for an inode
    /// whose names have changed meanwhile, or for which the inodes before it leave no space in the
    /// transaction.
    pub(super) fn gather_to_move(
        &self,
        fids: &[Fid],
        others: &[Fid],
    ) -> StatusResult<(Gathered<'_>, Vec<StatusResult<Leaving>>)> {
        let (mut lists, mut room) = (ShardLists::new(), LEADS_MAX);
        let mut look = |fid: &Fid| {
            let seen = self.leaves.records.inode(fid)?;
            let locations = self.name_locations(&seen, &mut lists)?;
            room = room.checked_sub(locations.len()).ok_or(Status::EAGAIN)?;
            Ok((seen, locations))
        };
        let seen: Vec<StatusResult<(Arc<InodeRecord>, Vec<NameLocation>)>> =
            fids.iter().map(&mut look).collect();
        let to_lock = || seen.iter().flatten();
        let all: Vec<Fid> = others.iter().copied().chain(to_lock().map(|(seen, _)| seen.attr.fid)).collect();
        let locations = to_lock().flat_map(|(_, locations)| locations);
        let places = locations.flat_map(|lead| lead.homes.iter().map(|home| (*home, &lead.name.name[..])));
        let places: Vec<(Fid, &[u8])> = places.collect();
        // This leaves little to sync while all inodes are locked.
        self.leaves.records.sync_all()?;
        let gathered = self.core.coordinator.gather(&all, &places)?;
        let as_seen = |(seen, locations): (Arc<InodeRecord>, Vec<NameLocation>)| {
            let fid = seen.attr.fid;
            let record = gathered.inode(&fid)?;
            let stored_at = |lead: NameLocation| {
                let leads_here =
                    |home: &&Fid| gathered.name(home, &lead.name.name).is_some_and(|found| found.fid == fid);
                let home = lead.homes.iter().find(leads_here).copied()?;
                Some((lead.name, home))
            };
            let names: Option<Vec<(Name, Fid)>> = locations.into_iter().map(stored_at).collect();
            let is_same = record.attr.version == seen.attr.version;
            names.filter(|_| is_same).map(|names| Leaving { record, names }).ok_or(Status::EAGAIN)
        };
        let found = seen.into_iter().map(|seen| seen.and_then(as_seen)).collect();
        Ok((gathered, found))
    }

    /// Returns the names of an inode, the first name first, and the directories or shards where they may be
    /// stored.
    fn name_locations(
        &self,
        record: &InodeRecord,
        lists: &mut ShardLists,
    ) -> StatusResult<Vec<NameLocation>> {
        if record.parent.is_zero() || record.attr.flags.contains(AttrFlags::ORPHAN) {
            return Err(Status::ENOENT);
        }
        let mut names = vec![Name { parent: record.parent, name: record.name.clone() }];
        let scanned =
            self.leaves.store.scan(LINKS, &record.attr.fid.to_key(), Bound::Unbounded, &mut |key, _| {
                if let Some((_, parent, name)) = split_link_key(key) {
                    names.push(Name { parent, name: name.to_vec() });
                }
                if names.len() > LEADS_MAX { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
            });
        scanned.map_err(|error| self.leaves.records.store_failed(&error))?;
        if names.len() > LEADS_MAX {
            return Err(Status::EMLINK);
        }
        let lead = |name: Name| {
            let homes = self.core.coordinator.homes_of(&name.parent, &name.name, lists)?;
            Ok(NameLocation { name, homes })
        };
        names.into_iter().map(lead).collect()
    }

    /// Returns the update that records the move of an inode in the changelog, if a user wants it.
    pub(super) fn logged(&self, record: &InodeRecord, to: Fid) -> Option<Update> {
        let change = events::of_migration(record.attr.fid, to, record.parent, &record.name);
        self.leaves.changelog.update(None, &change)
    }

    /// Returns all extended attributes of an inode that have records of their own.
    pub(super) fn xattrs_of(&self, record: &InodeRecord) -> StatusResult<Xattrs> {
        let (mut found, mut bytes, mut damaged) = (Xattrs::new(), 0, false);
        let scanned =
            self.leaves.store.scan(XATTRS, &record.attr.fid.to_key(), Bound::Unbounded, &mut |key, value| {
                match split_xattr_key(key).zip(XattrRecord::decode(value).ok()) {
                    Some(((_, name), XattrRecord { value })) => {
                        bytes += name.len() + value.len();
                        found.push((name.to_vec(), value.to_vec()));
                    }
                    None => damaged = true,
                }
                let is_full = found.len() > XATTRS_MAX || bytes > OPERATION_MAX;
                if is_full { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
            });
        scanned.map_err(|error| self.leaves.records.store_failed(&error))?;
        if damaged {
            log::error!("an extended attribute of {} is damaged: run a check", record.attr.fid);
            return Err(Status::EUCLEAN);
        }
        if found.len() > XATTRS_MAX || bytes > OPERATION_MAX { Err(Status::E2BIG) } else { Ok(found) }
    }
}

/// Checks that an inode may have this FID at all.
pub(super) fn check_coming(fid: &Fid) -> StatusResult<()> {
    if fid.seq < SEQ_NORMAL || fid.oid == 0 || fid.ver != 0 { Err(Status::EINVAL) } else { Ok(()) }
}

/// Returns the hash of a directory's names.
fn hash_of(record: &InodeRecord) -> StatusResult<DirHash> {
    let hash = shards_of(record)?.and_then(|list| DirHash::from_number(list.hash));
    Ok(hash.unwrap_or(DirHash::Crush))
}

pub(super) fn retarget(home: &Fid, name: Name, fid: Fid, kind: nacre_types::FileKind) -> Update {
    Update::Retarget { at: Name { parent: *home, name: name.name }, fid, kind }
}
