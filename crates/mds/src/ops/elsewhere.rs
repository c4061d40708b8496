//! Names and inodes that do not lie on one MDT: the same operations as on one, with what is needed gathered from several. See
//! `docs/design/dne.md`.

use super::create::{ACL_DEFAULT, Wanted};
use super::rename::Move;
use crate::mds::Mds;
use crate::names::Place;
use crate::operations::{Gathered, encoded};
use crate::ops::new_shard;
use crate::service::Caller;
use crate::shards::{named_in, shards_of};
use crate::tables::OrphanKind;
use nacre_ondisk::InodeRecord;
use nacre_types::perm;
use nacre_types::{Attr, AttrFlags, Fid, FileKind, Status, StatusResult};
use nacre_wire::mds::{MdsAnswer, MdsReply, NewFile, RenameFlags};
use nacre_wire::peer::{Name, Update};

/// How often names may change under an operation before it gives up.
const ATTEMPTS: usize = 100;

fn name_at(place: Place<'_>) -> Name {
    Name { parent: place.parent, name: place.name.to_vec() }
}

/// A name as an inode knows it, in a directory or a shard of one.
fn name_in(directory: &InodeRecord, name: &[u8]) -> Name {
    Name { parent: named_in(directory), name: name.to_vec() }
}

/// Where a name is stored: with a directory or a shard.
fn stored_at(home: &Fid, name: &[u8]) -> Name {
    Name { parent: *home, name: name.to_vec() }
}

/// Removes the shards of what is to be removed.
///
/// # Errors
/// `ENOTEMPTY` if it is a directory with names.
fn drop_shards(gathered: &Gathered<'_>, victim: &InodeRecord) -> StatusResult<Vec<Update>> {
    if !victim.attr.is_dir() {
        return Ok(Vec::new());
    }
    if victim.entries() != 0 {
        return Err(Status::ENOTEMPTY);
    }
    let Some(layout) = shards_of(victim)? else { return Ok(Vec::new()) };
    let drop = |fid: &Fid| match gathered.inode(fid)?.entries() {
        0 => Ok(Update::DropShard { fid: *fid }),
        _ => Err(Status::ENOTEMPTY),
    };
    // It may be one of its own.
    layout.inodes().iter().filter(|fid| **fid != victim.attr.fid).map(drop).collect()
}

/// What a program sees of an inode that has lost a name.
fn without_a_name(record: &InodeRecord, now: nacre_types::Timestamp) -> Attr {
    let nlink = if record.attr.is_dir() { 0 } else { record.attr.nlink.saturating_sub(1) };
    Attr { nlink, ctime: now, ..record.shown() }
}

/// Whether this may be made on another MDT than its name is on.
pub(super) fn check_elsewhere(new: &NewFile<'_>) -> StatusResult<()> {
    match new {
        NewFile::Directory | NewFile::Striped { .. } | NewFile::ChosenDirectory { .. } => Ok(()),
        _ => Err(Status::WRONG_TARGET),
    }
}

impl Mds {
    /// Gathers names together with what they lead to, and the shards of what the last one leads to, which is to be removed.
    fn gather_with_leads(&self, caller: &Caller<'_>, names: &[(Fid, &[u8])]) -> StatusResult<Gathered<'_>> {
        caller.turn.give_up();
        let mut wanted = Vec::new();
        // What the names here lead to can be told without asking anybody; if that is not so any more, it is found out below.
        for (parent, name) in names.iter().filter(|(parent, _)| parent.mdt_index() == self.index) {
            wanted.extend(self.find_name(parent, self.hash(name), name)?.map(|found| found.fid));
        }
        if let Some(removed) = wanted.last().copied()
            && removed.mdt_index() == self.index
            && let Some(record) = self.find_inode(&removed)?
        {
            wanted.extend(shards_of(&record)?.into_iter().flat_map(|layout| layout.inodes()));
        }
        for _ in 0..ATTEMPTS {
            let gathered = self.gather(&wanted, names)?;
            let leads = names.iter().filter_map(|(parent, name)| gathered.name(parent, name));
            let mut leads: Vec<Fid> = leads.map(|lead| lead.fid).collect();
            let removed = names.last().and_then(|(parent, name)| gathered.name(parent, name));
            if let Some(Ok(removed)) = removed.map(|removed| gathered.inode(&removed.fid)) {
                leads.extend(shards_of(&removed)?.into_iter().flat_map(|layout| layout.inodes()));
            }
            if leads.iter().all(|fid| gathered.has(fid)) {
                return Ok(gathered);
            }
            drop(gathered);
            wanted = leads;
        }
        Err(Status::EAGAIN)
    }

    /// Makes a directory whose inode lies on another MDT.
    pub(super) fn create_elsewhere(
        &self,
        caller: &Caller<'_>,
        parent: &Fid,
        name: &[u8],
        wanted: &Wanted<'_>,
    ) -> StatusResult<MdsAnswer> {
        let mut fids = vec![wanted.fid];
        fids.extend(wanted.shards.iter().flat_map(|layout| &layout.shards));
        caller.turn.give_up();
        let gathered = self.gather(&fids, &[(*parent, name)])?;
        let directory = gathered.home(parent, name)?;
        self.check_access(&directory, caller.cred(), perm::WRITE | perm::EXEC)?;
        let is_there = gathered.name(parent, name).is_some();
        if is_there || fids.iter().any(|fid| gathered.inode(fid).is_ok()) {
            return Err(Status::EEXIST);
        }
        if self.space.is_full() {
            return Err(Status::ENOSPC);
        }
        let now = self.now();
        let mut record = self.new_record(caller, &directory, wanted, now)?;
        let default_acl = self.inherit(&directory, wanted, &mut record)?;
        record.parent = named_in(&directory);
        record.name = name.to_vec();
        let xattrs: Vec<_> = default_acl.into_iter().map(|value| (ACL_DEFAULT.to_vec(), value)).collect();
        let mut updates = vec![
            Update::PutName { at: stored_at(parent, name), fid: wanted.fid, kind: wanted.kind },
            Update::Directory { fid: *parent, entries: 1, subdirs: 1 },
        ];
        if let Some(layout) = &wanted.shards {
            record.attr.flags |= AttrFlags::STRIPED;
            record.lmv = layout.encode();
            for (place, fid) in layout.shards.iter().enumerate() {
                let record = new_shard(&record, fid, layout.encode_shard(place as u32));
                updates.push(Update::NewInode { fid: *fid, record, xattrs: xattrs.clone() });
            }
        }
        updates.push(Update::NewInode { fid: wanted.fid, record: encoded(&record), xattrs });
        let mut parent = directory.shown();
        (parent.mtime, parent.ctime, parent.nlink) = (now, now, parent.nlink + 1);
        let reply = MdsReply::Created { attr: record.shown(), created: true, layout: None, parent };
        self.execute(caller, gathered, updates, (now, reply))
    }

    /// Removes a name that leads to another MDT.
    pub(super) fn unlink_elsewhere(
        &self,
        caller: &Caller<'_>,
        parent: &Fid,
        name: &[u8],
        directory: bool,
    ) -> StatusResult<MdsAnswer> {
        let gathered = self.gather_with_leads(caller, &[(*parent, name)])?;
        let dir = gathered.home(parent, name)?;
        self.check_access(&dir, caller.cred(), perm::EXEC)?;
        let lead = gathered.name(parent, name).ok_or(Status::ENOENT)?;
        let victim = gathered.inode(&lead.fid)?;
        self.check_removal(caller, &dir, &victim, directory)?;
        let mut updates = drop_shards(&gathered, &victim)?;
        let now = self.now();
        updates.extend([
            Update::DeleteName { at: stored_at(parent, name) },
            Update::Directory { fid: *parent, entries: -1, subdirs: -i64::from(victim.attr.is_dir()) },
            Update::DropName { fid: lead.fid, at: name_in(&dir, name) },
        ]);
        let reply = MdsReply::Removed { fid: lead.fid, attr: Some(without_a_name(&victim, now)) };
        self.execute(caller, gathered, updates, (now, reply))
    }

    /// Gives an inode a name on another MDT.
    pub(super) fn link_elsewhere(
        &self,
        caller: &Caller<'_>,
        fid: &Fid,
        parent: &Fid,
        name: &[u8],
    ) -> StatusResult<MdsAnswer> {
        caller.turn.give_up();
        let gathered = self.gather(&[*fid], &[(*parent, name)])?;
        let (record, directory) = (gathered.inode(fid)?, gathered.home(parent, name)?);
        let is_there = gathered.name(parent, name).is_some();
        self.check_link(caller, &directory, &record, is_there)?;
        if record.attr.flags.contains(AttrFlags::ORPHAN) {
            // Its own MDT knows whether it never had a name.
            self.check_local(fid)?;
            if self.orphan_kind(fid)? != Some(OrphanKind::Unnamed) {
                return Err(Status::ENOENT);
            }
        }
        if self.space.is_full() {
            return Err(Status::ENOSPC);
        }
        let now = self.now();
        let updates = vec![
            Update::AddName { fid: *fid, at: name_in(&directory, name) },
            Update::PutName { at: stored_at(parent, name), fid: *fid, kind: record.attr.kind() },
            Update::Directory { fid: *parent, entries: 1, subdirs: 0 },
        ];
        let mut attr = record.shown();
        attr.flags -= AttrFlags::ORPHAN;
        (attr.nlink, attr.ctime) = (attr.nlink + 1, now);
        self.execute(caller, gathered, updates, (now, MdsReply::Attr(attr)))
    }

    /// Moves a name where directories or inodes lie on several MDTs.
    pub(super) fn rename_elsewhere(
        &self,
        caller: &Caller<'_>,
        from: (Fid, &[u8]),
        to: (Fid, &[u8]),
        flags: RenameFlags,
    ) -> StatusResult<MdsAnswer> {
        let mut tree = None;
        loop {
            let gathered = self.gather_with_leads(caller, &[from, to])?;
            let (from_dir, to_dir) = (gathered.home(&from.0, from.1)?, gathered.home(&to.0, to.1)?);
            self.check_access(&from_dir, caller.cred(), perm::EXEC)?;
            self.check_access(&to_dir, caller.cred(), perm::EXEC)?;
            let source = gathered.name(&from.0, from.1).ok_or(Status::ENOENT)?;
            let target = gathered.name(&to.0, to.1);
            let is_dir = |kind: FileKind| kind == FileKind::Directory;
            let moves_directory = is_dir(source.kind) || target.is_some_and(|target| is_dir(target.kind));
            if named_in(&from_dir) != named_in(&to_dir) && moves_directory && tree.is_none() {
                drop(gathered);
                tree = Some(self.still_tree()?);
                continue;
            }
            let source = gathered.inode(&source.fid)?;
            let target = target.map(|found| gathered.inode(&found.fid)).transpose()?;
            let from = Place { parent: named_in(&from_dir), name: from.1 };
            let to = Place { parent: named_in(&to_dir), name: to.1 };
            let m = Move { from, to, from_hash: 0, to_hash: 0, from_dir, to_dir, source, target };
            if !self.check_move(caller, &m, flags)? {
                return Ok(self.answer(MdsReply::Removed { fid: Fid::ZERO, attr: None }));
            }
            let now = self.now();
            let (updates, reply) = match flags.contains(RenameFlags::EXCHANGE) {
                true => (exchange_of(&m), MdsReply::Removed { fid: Fid::ZERO, attr: None }),
                false => {
                    let removed = m.target.as_ref().map(|target| without_a_name(target, now));
                    let fid = m.target.as_ref().map_or(Fid::ZERO, |target| target.attr.fid);
                    let mut updates = match &m.target {
                        Some(target) => drop_shards(&gathered, target)?,
                        None => Vec::new(),
                    };
                    updates.extend(move_of(&m));
                    (updates, MdsReply::Removed { fid, attr: removed })
                }
            };
            return self.execute(caller, gathered, updates, (now, reply));
        }
    }
}

/// What a rename changes that may replace something.
fn move_of(m: &Move<'_>) -> Vec<Update> {
    let (from, to) = (name_at(m.from), name_at(m.to));
    let (fid, kind) = (m.source.attr.fid, m.source.attr.kind());
    let moved = i64::from(m.source.attr.is_dir());
    let replaced = m.target.as_ref().map_or(0, |target| i64::from(target.attr.is_dir()));
    let mut updates = Vec::new();
    if let Some(target) = &m.target {
        updates.push(Update::DropName { fid: target.attr.fid, at: to.clone() });
    }
    updates.extend([
        Update::MoveName { fid, from, to },
        Update::DeleteName { at: stored_at(&m.from_dir.attr.fid, m.from.name) },
        Update::PutName { at: stored_at(&m.to_dir.attr.fid, m.to.name), fid, kind },
        Update::Directory { fid: m.from_dir.attr.fid, entries: -1, subdirs: -moved },
        Update::Directory {
            fid: m.to_dir.attr.fid,
            entries: i64::from(m.target.is_none()),
            subdirs: moved - replaced,
        },
    ]);
    updates
}

/// What an exchange of two names changes.
fn exchange_of(m: &Move<'_>) -> Vec<Update> {
    let Some(target) = &m.target else { return Vec::new() };
    let (from, to) = (name_at(m.from), name_at(m.to));
    let (from_dir, to_dir) = (m.from_dir.attr.fid, m.to_dir.attr.fid);
    let (first, second) = (&m.source.attr, &target.attr);
    let moved = i64::from(second.is_dir()) - i64::from(first.is_dir());
    vec![
        Update::MoveName { fid: first.fid, from: from.clone(), to: to.clone() },
        Update::MoveName { fid: second.fid, from: to, to: from },
        Update::PutName { at: stored_at(&to_dir, m.to.name), fid: first.fid, kind: first.kind() },
        Update::PutName { at: stored_at(&from_dir, m.from.name), fid: second.fid, kind: second.kind() },
        Update::Directory { fid: from_dir, entries: 0, subdirs: moved },
        Update::Directory { fid: to_dir, entries: 0, subdirs: -moved },
    ]
}
