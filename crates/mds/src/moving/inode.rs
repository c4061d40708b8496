//! Inodes that move to another MDT. A FID says its MDT, so they get another FID, and their names lead there.
//!
//! A file, or whatever else has no names in it, moves as one operation over the homes of its names and both MDTs. A directory begins with
//! such an operation, too, which puts another one in its place; its names move afterwards, in steps ([`super::step`]). The design:
//! `docs/design/dne.md`.

use crate::locks::Want;
use crate::mds::Mds;
use crate::operations::{Gathered, encoded};
use crate::ops::new_shard;
use crate::service::Caller;
use crate::shards::{is_former, shards_of};
use crate::tables::{LINKS, XATTRS, split_link_key, split_xattr_key};
use nacre_layout::dir_hash::DirHash;
use nacre_layout::dir_layout::DirLayout;
use nacre_layout::{StripeObject, user};
use nacre_ondisk::{InodeRecord, XattrRecord};
use nacre_types::fid::SEQ_NORMAL;
use nacre_types::{AttrFlags, Fid, Status, StatusResult, perm};
use nacre_wire::Encode;
use nacre_wire::mds::{MdsAnswer, MdsReply};
use nacre_wire::peer::{LEADS_MAX, Name, PeerReply, PeerRequest, RecordBytes, Update, XATTRS_MAX};
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::ops::{Bound, ControlFlow};
use std::sync::Arc;

/// How often names may change meanwhile before it gives up.
const ATTEMPTS: usize = 100;
/// Data goes to the other MDT in pieces of so many bytes.
const PIECE: usize = 64 << 10;
/// An operation is one message and one record: what moves with an inode may have so many bytes together.
const OPERATION_MAX: usize = 960 << 10;

/// Names and values of extended attributes.
type Xattrs = Vec<(Vec<u8>, Vec<u8>)>;

/// A name of an inode, and where it may be stored.
struct Lead {
    name: Name,
    homes: Vec<Fid>,
}

/// Everything that moves, locked.
struct Moving<'a> {
    gathered: Gathered<'a>,
    record: Arc<InodeRecord>,
    /// Names as the inode knows them, and where they are stored.
    names: Vec<(Name, Fid)>,
}

impl Mds {
    /// Gives an inode another FID, and with that another MDT.
    ///
    /// # Errors
    /// `EPERM` without the right to choose MDTs, or to who does not own it; `EBUSY` for the root, for a file that somebody has open, and for
    /// a directory whose names move; `EALREADY` if that is its MDT; `EMLINK` for a file with more than [`LEADS_MAX`] names; `EEXIST` if there is such a FID;
    /// `E2BIG` if its names and extended attributes are too long together; `ENOSPC` if nothing new is to come to that MDT; `ENODEV` if there is none.
    pub(crate) fn migrate(
        &self,
        caller: &Caller<'_>,
        fid: &Fid,
        to: &Fid,
        lmv: &[u8],
    ) -> StatusResult<MdsAnswer> {
        self.may_choose_mdts(caller)?;
        self.check_local(fid)?;
        self.check_future(to)?;
        self.await_decision(&Want::Still(*fid))?;
        let Some(seen) = self.find_inode(fid)?.filter(|record| !is_former(record)) else {
            // It may have moved by the same request, whose answer was lost.
            return match self.record_anywhere(to)? {
                Some(_) => Ok(self.answer(MdsReply::Done)),
                None => Err(Status::ENOENT),
            };
        };
        perm::owner_or_capable(&seen.attr, caller.cred()).or(Status::EPERM)?;
        if *fid == Fid::ROOT {
            return Err(Status::EBUSY);
        }
        match seen.attr.is_dir() && !user::is_foreign_directory(&seen.body) {
            true => self.replace_directory(&seen, to, lmv)?,
            false => self.move_inode(&seen, to)?,
        }
        Ok(self.answer(MdsReply::Done))
    }

    /// Whether a FID may be that of an inode that comes, from here or another MDT.
    fn check_future(&self, fid: &Fid) -> StatusResult<()> {
        if fid.mdt_index() == self.index {
            return self.check_own_fid(fid);
        }
        if fid.seq < SEQ_NORMAL || fid.oid == 0 || fid.ver != 0 {
            return Err(Status::EINVAL);
        }
        // One that has no room says so.
        match self.operations.ask(fid.mdt_index(), PeerRequest::NewFid)? {
            PeerReply::Fid(_) => Ok(()),
            _ => Err(Status::EPROTO),
        }
    }

    /// Moves what has no names in it.
    fn move_inode(&self, seen: &InodeRecord, to: &Fid) -> StatusResult<()> {
        let fid = seen.attr.fid;
        if to.mdt_index() == self.index {
            return Err(Status::EALREADY);
        }
        let Moving { gathered, record, names } = self.gather_to_move(&fid, &[*to])?;
        if gathered.inode(to).is_ok() {
            return Err(Status::EEXIST);
        }
        let is_file = record.attr.is_regular();
        if self.opens.is_open(&fid) || (is_file && self.is_awaiting_clients()) {
            return Err(Status::EBUSY);
        }
        if is_file {
            // Then nobody reads or writes it any more, and all that was written is in its objects.
            self.call_back_layout(&fid, true, None)?;
        }
        let mut moved = InodeRecord::clone(&*self.settled(&record)?);
        moved.attr.fid = *to;
        moved.data_generation = 0;
        self.carry_data(&gathered, &record, &mut moved)?;
        let links = names.iter().skip(1).map(|(name, _)| name.clone()).collect();
        let kind = moved.attr.kind();
        let mut updates = vec![Update::InodeIn {
            fid: *to,
            record: encoded(&moved),
            xattrs: self.xattrs_of(&record)?,
            links,
        }];
        updates.extend(names.into_iter().map(|(name, home)| relead(&home, name, *to, kind)));
        updates.push(Update::InodeOut { fid });
        if updates.iter().map(|update| update.to_bytes().len()).sum::<usize>() > OPERATION_MAX {
            return Err(Status::E2BIG);
        }
        // Objects that were made lately are known to be in use as soon as this MDT has it on disk; so its part comes first.
        self.execute_own(gathered, updates)
    }

    /// Puts another directory in the place of one. Its names begin to move there.
    fn replace_directory(&self, seen: &InodeRecord, to: &Fid, lmv: &[u8]) -> StatusResult<()> {
        let fid = seen.attr.fid;
        let next = match lmv {
            [] => DirLayout::new(hash_of(seen)?, to.mdt_index(), vec![*to]),
            lmv => self.check_new_shards(to, lmv)?,
        };
        let old = match shards_of(seen)? {
            Some(list) => list,
            // One that has had shards before gets lists with other versions.
            None => DirLayout {
                version: seen.attr.version as u32,
                ..DirLayout::new(DirHash::Crush, self.index, vec![fid])
            },
        };
        let list = old.replaced_by(fid, &next).ok_or(Status::EBUSY)?;
        let others = [&list.inodes()[..], &[*to]].concat();
        let Moving { gathered, record, names } = self.gather_to_move(&fid, &others)?;
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
            // They go, and with them what they know of the last change.
            (attr.mtime, attr.ctime) = (attr.mtime.max(shard.attr.mtime), attr.ctime.max(shard.attr.ctime));
        }
        let handed = self.handed_to_shards(&record)?;
        let mut updates = Vec::with_capacity(list.shards.len() + 3);
        for (place, shard) in (0..).zip(&list.shards).filter(|(_, shard)| **shard != fid && *shard != to) {
            let lmv = list.encode_shard(place);
            updates.push(match next.shards.contains(shard) {
                true => {
                    let record = new_shard(&master, shard, lmv);
                    Update::NewInode { fid: *shard, record, xattrs: handed.clone() }
                }
                false => Update::SetShards { fid: *shard, lmv: RecordBytes(lmv), is_master: false },
            });
        }
        let xattrs = self.xattrs_of(&record)?;
        updates.push(Update::InodeIn { fid: *to, record: encoded(&master), xattrs, links: Vec::new() });
        let kind = master.attr.kind();
        updates.extend(names.into_iter().map(|(name, home)| relead(&home, name, *to, kind)));
        updates.push(Update::Replaced { fid, by: *to, lmv: RecordBytes(master.lmv) });
        self.execute_own(gathered, updates)
    }

    /// Locks an inode with the homes of its names, and others.
    fn gather_to_move(&self, fid: &Fid, others: &[Fid]) -> StatusResult<Moving<'_>> {
        for _ in 0..ATTEMPTS {
            let seen = self.inode(fid)?;
            let leads = self.leads_to(&seen)?;
            let fids: Vec<Fid> = others.iter().chain([fid]).copied().collect();
            let places =
                leads.iter().flat_map(|lead| lead.homes.iter().map(|home| (*home, &lead.name.name[..])));
            let places: Vec<(Fid, &[u8])> = places.collect();
            // Little is left to be made durable then while all is locked.
            self.sync_store(self.store.last_transno())?;
            let gathered = self.gather(&fids, &places)?;
            let record = gathered.inode(fid)?;
            let is_same = record.attr.version == seen.attr.version;
            let stored_at = |lead: &Lead| {
                let leads_here =
                    |home: &&Fid| gathered.name(home, &lead.name.name).is_some_and(|found| found.fid == *fid);
                lead.homes.iter().find(leads_here).map(|home| (lead.name.clone(), *home))
            };
            let names: Option<Vec<(Name, Fid)>> = leads.iter().map(stored_at).collect();
            if let Some(names) = names.filter(|_| is_same) {
                return Ok(Moving { gathered, record, names });
            }
        }
        Err(Status::EAGAIN)
    }

    /// The names of an inode, the first one first, and the homes where they may be stored.
    fn leads_to(&self, record: &InodeRecord) -> StatusResult<Vec<Lead>> {
        if record.parent.is_zero() || record.attr.flags.contains(AttrFlags::ORPHAN) {
            return Err(Status::ENOENT);
        }
        let mut names = vec![Name { parent: record.parent, name: record.name.clone() }];
        let scanned = self.store.scan(LINKS, &record.attr.fid.to_key(), Bound::Unbounded, &mut |key, _| {
            if let Some((_, parent, name)) = split_link_key(key) {
                names.push(Name { parent, name: name.to_vec() });
            }
            if names.len() > LEADS_MAX { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        });
        scanned.map_err(|error| self.store_failed(&error))?;
        if names.len() > LEADS_MAX {
            return Err(Status::EMLINK);
        }
        // Many names of a file are often in few directories.
        let mut lists: HashMap<Fid, Option<DirLayout>> = HashMap::new();
        let lead = |name: Name| {
            let list = match lists.entry(name.parent) {
                Entry::Occupied(known) => known.into_mut(),
                Entry::Vacant(unknown) => {
                    let directory = self.record_anywhere(&name.parent)?.ok_or(Status::EAGAIN)?;
                    unknown.insert(shards_of(&directory)?)
                }
            };
            let homes = match list {
                None => vec![name.parent],
                Some(list) => {
                    let places = list.old_shard_of(&name.name).into_iter().chain(list.shard_of(&name.name));
                    places.map(|place| list.shards[place]).collect()
                }
            };
            Ok(Lead { name, homes })
        };
        names.into_iter().map(lead).collect()
    }

    /// All extended attributes of an inode that have records of their own.
    fn xattrs_of(&self, record: &InodeRecord) -> StatusResult<Xattrs> {
        let (mut found, mut bytes, mut damaged) = (Xattrs::new(), 0, false);
        let scanned =
            self.store.scan(XATTRS, &record.attr.fid.to_key(), Bound::Unbounded, &mut |key, value| {
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
        scanned.map_err(|error| self.store_failed(&error))?;
        if damaged {
            log::error!("an extended attribute of {} is damaged: run a check", record.attr.fid);
            return Err(Status::EUCLEAN);
        }
        if found.len() > XATTRS_MAX || bytes > OPERATION_MAX { Err(Status::E2BIG) } else { Ok(found) }
    }

    /// Has the layout of a file say its new FID, and copies what of its data lies here. Nobody writes to it.
    fn carry_data(
        &self,
        gathered: &Gathered<'_>,
        record: &InodeRecord,
        moved: &mut InodeRecord,
    ) -> StatusResult<()> {
        let to = moved.attr.fid;
        let flags = record.attr.flags;
        if !record.attr.is_regular()
            || !flags.contains(AttrFlags::HAS_LAYOUT)
            || user::is_foreign(&record.body)
        {
            return Ok(());
        }
        if !flags.contains(AttrFlags::HAS_OBJECTS) {
            let wish = user::decode_wish(&record.body).map_err(|_| Status::EUCLEAN)?;
            moved.body = user::encode_wish(&to, &wish);
            return Ok(());
        }
        let mut layout = user::decode_layout(&record.body).map_err(|error| {
            log::error!("layout of {}: {error}", record.attr.fid);
            Status::EUCLEAN
        })?;
        let on_mdt = layout.object_on_mdt().copied();
        if let Some(object) = on_mdt {
            self.send_data(gathered, object.object, to)?;
            let own = layout.components.first_mut().and_then(|component| component.objects.first_mut());
            if let Some(own) = own {
                *own = StripeObject::on_mdt(to);
            }
        }
        moved.body = user::encode_layout(&to, &layout);
        Ok(())
    }

    /// Copies an object here to one of a file that is to be on another MDT.
    fn send_data(&self, gathered: &Gathered<'_>, object: Fid, to: Fid) -> StatusResult<()> {
        let failed = |error| self.data_failed(&error);
        let attr = self.data.store.attr(object).map_err(failed)?;
        if attr.mtime.is_none() {
            return Ok(());
        }
        let mut piece = vec![0; PIECE];
        let mut offset = 0;
        loop {
            let wanted = PIECE.min(usize::try_from(attr.size - offset).unwrap_or(PIECE));
            let mut done = 0;
            while done < wanted {
                let read = self.data.store.read(object, offset + done as u64, &mut piece[done..wanted], 0);
                match read.map_err(failed)? {
                    0 => break,
                    read => done += read,
                }
            }
            if done < wanted {
                log::error!("object {object} ends before its size: run a check");
                return Err(Status::EUCLEAN);
            }
            let end = offset + wanted as u64;
            let size = (end >= attr.size).then_some(attr.size);
            let is_hole = piece[..wanted].iter().all(|byte| *byte == 0);
            if size.is_some() || !is_hole {
                let bytes = RecordBytes(if is_hole { Vec::new() } else { piece[..wanted].to_vec() });
                let request = PeerRequest::PutData { op: gathered.op(), fid: to, offset, bytes, size };
                self.operations.ask(to.mdt_index(), request)?;
            }
            if size.is_some() {
                return Ok(());
            }
            offset = end;
        }
    }
}

/// How names of a directory are spread.
fn hash_of(record: &InodeRecord) -> StatusResult<DirHash> {
    let hash = shards_of(record)?.and_then(|list| DirHash::from_number(list.hash));
    Ok(hash.unwrap_or(DirHash::Crush))
}

fn relead(home: &Fid, name: Name, fid: Fid, kind: nacre_types::FileKind) -> Update {
    Update::Relead { at: Name { parent: *home, name: name.name }, fid, kind }
}
