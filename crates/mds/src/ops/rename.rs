//! Moving names. Source: rename(2), POSIX.1-2017 rename().

use super::create::check_same_project;
use crate::locks::Want;
use crate::mds::Mds;
use crate::names::Place;
use crate::service::Caller;
use crate::shards::{is_striped, named_in};
use crate::tx::Tx;
use nacre_ondisk::{DirentRecord, InodeRecord};
use nacre_types::limits::NAME_MAX;
use nacre_types::{Attr, Fid, Status, StatusResult, Timestamp, perm};
use nacre_wire::mds::{MdsAnswer, MdsReply, RenameFlags};
use std::sync::Arc;

/// Depth of the tree beyond which a path to the root counts as damage.
const DEPTH_MAX: usize = 1 << 20;

/// Everything a rename has looked up under its locks.
pub(super) struct Move<'a> {
    /// Name and directory, of which `from_dir` may be a shard.
    pub from: Place<'a>,
    pub to: Place<'a>,
    pub from_hash: u64,
    pub to_hash: u64,
    /// What the names are stored with.
    pub from_dir: Arc<InodeRecord>,
    pub to_dir: Arc<InodeRecord>,
    pub source: Arc<InodeRecord>,
    pub target: Option<Arc<InodeRecord>>,
}

impl Mds {
    pub(crate) fn rename(
        &self,
        caller: &Caller<'_>,
        from: (Fid, &[u8]),
        to: (Fid, &[u8]),
        flags: RenameFlags,
    ) -> StatusResult<MdsAnswer> {
        if flags == RenameFlags::NOREPLACE | RenameFlags::EXCHANGE {
            return Err(Status::EINVAL);
        }
        check_movable(from.1, Status::EBUSY)?;
        let taken = if flags.contains(RenameFlags::NOREPLACE) { Status::EEXIST } else { Status::EBUSY };
        check_movable(to.1, taken)?;
        let (from_hash, to_hash) = (self.hash(from.1), self.hash(to.1));
        let is_here = |fid: &Fid| fid.mdt_index() == self.index;
        loop {
            if !is_here(&from.0) || !is_here(&to.0) {
                return self.rename_elsewhere(caller, from, to, flags);
            }
            let source = self.find_name(&from.0, from_hash, from.1)?;
            let target = self.find_name(&to.0, to_hash, to.1)?;
            let is_remote =
                |found: &Option<DirentRecord>| found.as_ref().is_some_and(|found| !is_here(&found.fid));
            if is_remote(&source) || is_remote(&target) {
                return self.rename_elsewhere(caller, from, to, flags);
            }
            // The tree above the two directories must not change while it is checked for a cycle.
            let moves_directory = |found: &Option<DirentRecord>| {
                found.as_ref().is_some_and(|found| found.kind == nacre_types::FileKind::Directory)
            };
            let changes_tree = from.0 != to.0 && (moves_directory(&source) || moves_directory(&target));
            let still = if changes_tree { Some(self.still_tree()?) } else { None };
            let lead = |found: &Option<DirentRecord>| found.as_ref().map(|found| Want::Whole(found.fid));
            let names = [Want::Name(from.0, from.1), Want::Name(to.0, to.1)];
            let leads = [lead(&source), lead(&target)];
            let locked = self.lock_for(caller, names.iter().chain(leads.iter().flatten()))?;
            let from_dir = self.home_of(&from.0, from.1)?;
            let to_dir = self.home_of(&to.0, to.1)?;
            self.check_access(&from_dir, caller.cred(), perm::EXEC)?;
            self.check_access(&to_dir, caller.cred(), perm::EXEC)?;
            if self.find_name(&from.0, from_hash, from.1)? != source
                || self.find_name(&to.0, to_hash, to.1)? != target
            {
                continue;
            }
            let source = self.inode(&source.ok_or(Status::ENOENT)?.fid)?;
            let target = target.map(|found| self.inode(&found.fid)).transpose()?;
            if target.as_ref().is_some_and(|target| is_striped(target)) {
                drop(locked);
                drop(still);
                return self.rename_elsewhere(caller, from, to, flags);
            }
            let from = Place { parent: named_in(&from_dir), name: from.1 };
            let to = Place { parent: named_in(&to_dir), name: to.1 };
            let wanted = Move { from, to, from_hash, to_hash, from_dir, to_dir, source, target };
            return self.rename_locked(caller, wanted, flags);
        }
    }

    fn rename_locked(&self, caller: &Caller<'_>, m: Move<'_>, flags: RenameFlags) -> StatusResult<MdsAnswer> {
        let exchange = flags.contains(RenameFlags::EXCHANGE);
        if !self.check_move(caller, &m, flags)? {
            return Ok(self.answer(MdsReply::Removed { fid: Fid::ZERO, attr: None }));
        }
        let now = self.now();
        let mut tx = self.begin();
        let reply = match exchange {
            true => self.exchange(&mut tx, &m, now),
            false => self.move_over(&mut tx, &m, now)?,
        };
        self.finish(caller, tx, reply)
    }

    /// Whether a rename may happen; false if nothing is to be done.
    pub(super) fn check_move(
        &self,
        caller: &Caller<'_>,
        m: &Move<'_>,
        flags: RenameFlags,
    ) -> StatusResult<bool> {
        let exchange = flags.contains(RenameFlags::EXCHANGE);
        if m.target.is_some() && flags.contains(RenameFlags::NOREPLACE) {
            return Err(Status::EEXIST);
        }
        if m.target.is_none() && exchange {
            return Err(Status::ENOENT);
        }
        self.check_no_cycle(m, exchange)?;
        if m.target.as_ref().is_some_and(|target| target.attr.fid == m.source.attr.fid) {
            // Two names of one inode, or the same name twice: POSIX wants nothing to happen.
            return Ok(false);
        }
        self.check_rename(caller, m, exchange).map(|()| true)
    }

    /// A directory must not come to lie inside itself.
    fn check_no_cycle(&self, m: &Move<'_>, exchange: bool) -> StatusResult<()> {
        if m.source.attr.is_dir() && self.is_inside(&m.to.parent, &m.source.attr.fid)? {
            return Err(Status::EINVAL);
        }
        let Some(target) = &m.target else { return Ok(()) };
        if target.attr.is_dir() && self.is_inside(&m.from.parent, &target.attr.fid)? {
            return Err(if exchange { Status::EINVAL } else { Status::ENOTEMPTY });
        }
        Ok(())
    }

    /// True if directory `inner` is `outer` or lies below it.
    fn is_inside(&self, inner: &Fid, outer: &Fid) -> StatusResult<bool> {
        let mut fid = *inner;
        for _ in 0..DEPTH_MAX {
            if fid == *outer {
                return Ok(true);
            }
            if fid == Fid::ROOT {
                return Ok(false);
            }
            fid = self.parent_of(&fid)?;
        }
        log::error!("the directories above {inner} form a circle: run a check");
        Err(Status::EUCLEAN)
    }

    fn check_rename(&self, caller: &Caller<'_>, m: &Move<'_>, exchange: bool) -> StatusResult<()> {
        let cred = caller.cred();
        let source_is_dir = m.source.attr.is_dir();
        self.check_removal(caller, &m.from_dir, &m.source, source_is_dir)?;
        match &m.target {
            None => self.check_access(&m.to_dir, cred, perm::WRITE)?,
            Some(target) if exchange => {
                self.check_removal(caller, &m.to_dir, target, target.attr.is_dir())?;
            }
            Some(target) => self.check_removal(caller, &m.to_dir, target, source_is_dir)?,
        }
        if m.from.parent != m.to.parent {
            // The `..` of a directory that changes its parent is written.
            if source_is_dir {
                self.check_access(&m.source, cred, perm::WRITE)?;
            }
            if let Some(target) = m.target.as_ref().filter(|target| exchange && target.attr.is_dir()) {
                self.check_access(target, cred, perm::WRITE)?;
            }
        }
        check_same_project(&m.to_dir.attr, &m.source.attr)?;
        if let Some(target) = m.target.as_ref().filter(|_| exchange) {
            check_same_project(&m.from_dir.attr, &target.attr)?;
        }
        match &m.target {
            Some(target) if !exchange && target.attr.is_dir() && target.entries() != 0 => {
                Err(Status::ENOTEMPTY)
            }
            _ => Ok(()),
        }
    }

    fn move_over(&self, tx: &mut Tx, m: &Move<'_>, now: Timestamp) -> StatusResult<MdsReply> {
        let source_is_dir = m.source.attr.is_dir();
        let mut removed: Option<Attr> = None;
        if let Some(target) = &m.target {
            if target.attr.is_dir() {
                self.destroy_inode(tx, target)?;
                removed = Some(Attr { nlink: 0, ctime: now, ..target.shown() });
            } else {
                removed = Some(self.drop_name(tx, InodeRecord::clone(target), m.to, now)?);
            }
        }
        let mut source = InodeRecord::clone(&m.source);
        source.attr.ctime = now;
        self.move_name(tx, &mut source, m.from, m.to);
        tx.delete_dirent(&m.from_dir.attr.fid, m.from_hash, m.from.name);
        tx.put_dirent(&m.to_dir.attr.fid, m.to_hash, m.to.name, source.attr.fid, source.attr.kind());
        tx.put_inode(source);
        let replaces_dir = m.target.as_ref().is_some_and(|target| target.attr.is_dir());
        let from_change = Change { entries: -1, subdirs: -i64::from(source_is_dir) };
        let to_change = Change {
            entries: i64::from(m.target.is_none()),
            subdirs: i64::from(source_is_dir) - i64::from(replaces_dir),
        };
        put_directories(tx, m, from_change, to_change, now);
        let fid = m.target.as_ref().map_or(Fid::ZERO, |target| target.attr.fid);
        Ok(MdsReply::Removed { fid, attr: removed })
    }

    fn exchange(&self, tx: &mut Tx, m: &Move<'_>, now: Timestamp) -> MdsReply {
        let Some(target) = &m.target else { return MdsReply::Removed { fid: Fid::ZERO, attr: None } };
        let mut first = InodeRecord::clone(&m.source);
        let mut second = InodeRecord::clone(target);
        first.attr.ctime = now;
        second.attr.ctime = now;
        self.move_name(tx, &mut first, m.from, m.to);
        self.move_name(tx, &mut second, m.to, m.from);
        tx.put_dirent(&m.to_dir.attr.fid, m.to_hash, m.to.name, first.attr.fid, first.attr.kind());
        tx.put_dirent(&m.from_dir.attr.fid, m.from_hash, m.from.name, second.attr.fid, second.attr.kind());
        let moved = i64::from(second.attr.is_dir()) - i64::from(first.attr.is_dir());
        tx.put_inode(first);
        tx.put_inode(second);
        let from_change = Change { entries: 0, subdirs: moved };
        put_directories(tx, m, from_change, Change { entries: 0, subdirs: -moved }, now);
        MdsReply::Removed { fid: Fid::ZERO, attr: None }
    }
}

/// How a directory changes.
#[derive(Clone, Copy)]
struct Change {
    entries: i64,
    subdirs: i64,
}

fn put_directories(tx: &mut Tx, m: &Move<'_>, from: Change, to: Change, now: Timestamp) {
    let changed = |dir: &InodeRecord, change: Change| {
        let mut dir = dir.clone();
        dir.attr.mtime = now;
        dir.attr.ctime = now;
        dir.attr.size = dir.attr.size.saturating_add_signed(change.entries);
        dir.attr.nlink = dir.attr.nlink.saturating_add_signed(change.subdirs as i32);
        dir
    };
    if m.from_dir.attr.fid == m.to_dir.attr.fid {
        let both = Change { entries: from.entries + to.entries, subdirs: from.subdirs + to.subdirs };
        tx.put_inode(changed(&m.from_dir, both));
    } else {
        tx.put_inode(changed(&m.from_dir, from));
        tx.put_inode(changed(&m.to_dir, to));
    }
}

fn check_movable(name: &[u8], dots: Status) -> StatusResult<()> {
    match name {
        b"" => Err(Status::ENOENT),
        b"." | b".." => Err(dots),
        name if name.len() > NAME_MAX => Err(Status::ENAMETOOLONG),
        name if name.iter().any(|&b| b == b'/' || b == 0) => Err(Status::EINVAL),
        _ => Ok(()),
    }
}
