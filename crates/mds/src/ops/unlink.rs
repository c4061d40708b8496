//! Removing names.

use crate::locks::Want;
use crate::mds::Mds;
use crate::names::Place;
use crate::service::Caller;
use crate::shards::{is_striped, named_in, shards_of};
use nacre_ondisk::InodeRecord;
use nacre_types::limits::NAME_MAX;
use nacre_types::{Fid, Status, StatusResult, perm};
use nacre_wire::mds::{MdsAnswer, MdsReply};
use std::sync::Arc;

impl Mds {
    pub(crate) fn unlink(
        &self,
        caller: &Caller<'_>,
        parent: &Fid,
        name: &[u8],
        directory: bool,
    ) -> StatusResult<MdsAnswer> {
        check_removable(name, directory)?;
        let hash = self.hash(name);
        let mut child = None;
        loop {
            let wants = [Some(Want::Name(*parent, name)), child];
            let mut locked = self.lock_for(caller, wants.iter().flatten())?;
            let dir = self.home_of(parent, name)?;
            self.check_access(&dir, caller.cred(), perm::EXEC)?;
            let found = self.find_name(parent, hash, name)?.ok_or(Status::ENOENT)?;
            if found.fid.mdt_index() != self.index {
                drop(locked);
                return self.unlink_elsewhere(caller, parent, name, directory);
            }
            let lead = Want::Whole(found.fid);
            if !locked.add(&lead) {
                child = Some(lead);
                continue;
            }
            let victim = self.inode(&found.fid)?;
            self.check_removal(caller, &dir, &victim, directory)?;
            if is_striped(&victim) {
                drop(locked);
                return self.unlink_elsewhere(caller, parent, name, directory);
            }
            return self.remove(caller, &dir, &victim, name, hash);
        }
    }

    /// Removes the first name of a file, found and removed in one step.
    pub(crate) fn remove_fid(&self, caller: &Caller<'_>, fid: &Fid) -> StatusResult<MdsAnswer> {
        if *fid == Fid::ROOT {
            return Err(Status::EBUSY);
        }
        loop {
            let seen = self.inode(fid)?;
            if seen.attr.is_dir() {
                return Err(Status::EISDIR);
            }
            if seen.name.is_empty() {
                return Err(Status::ENOENT);
            }
            // The client goes on by name where the name lies elsewhere.
            let dir = self.directory(&seen.parent)?;
            let home = match shards_of(&dir)? {
                // A request by name finds it.
                Some(shards) if shards.change().is_some() => return Err(Status::WRONG_TARGET),
                Some(shards) => shards.shard_of(&seen.name).map_or(Fid::ZERO, |place| shards.shards[place]),
                None => seen.parent,
            };
            self.check_local(&home)?;
            let _locked = self.locks.lock(&[Want::Name(home, &seen.name), Want::Whole(*fid)])?;
            let victim = self.inode(fid)?;
            if (victim.parent, &victim.name) != (seen.parent, &seen.name) {
                continue;
            }
            let dir = self.home_of(&home, &victim.name)?;
            self.check_access(&dir, caller.cred(), perm::EXEC)?;
            self.check_removal(caller, &dir, &victim, false)?;
            return self.remove(caller, &dir, &victim, &victim.name, self.hash(&victim.name));
        }
    }

    /// Whether the caller may take `victim` out of `dir`, and whether it is of the kind that it wants to remove.
    pub(super) fn check_removal(
        &self,
        caller: &Caller<'_>,
        dir: &InodeRecord,
        victim: &InodeRecord,
        as_directory: bool,
    ) -> StatusResult<()> {
        self.check_access(dir, caller.cred(), perm::WRITE)?;
        perm::check_sticky(&dir.attr, &victim.attr, caller.cred())?;
        match (as_directory, victim.attr.is_dir()) {
            (true, false) => Err(Status::ENOTDIR),
            (false, true) => Err(Status::EISDIR),
            _ => Ok(()),
        }
    }

    fn remove(
        &self,
        caller: &Caller<'_>,
        dir: &Arc<InodeRecord>,
        victim: &Arc<InodeRecord>,
        name: &[u8],
        hash: u64,
    ) -> StatusResult<MdsAnswer> {
        let now = self.now();
        let place = Place { parent: named_in(dir), name };
        let mut tx = self.begin();
        tx.batch().set_releasing(true);
        let mut parent = InodeRecord::clone(dir);
        parent.attr.mtime = now;
        parent.attr.ctime = now;
        parent.attr.size = parent.attr.size.saturating_sub(1);
        tx.delete_dirent(&dir.attr.fid, hash, place.name);
        let mut attr = if victim.attr.is_dir() {
            if victim.entries() != 0 {
                return Err(Status::ENOTEMPTY);
            }
            parent.attr.nlink = parent.attr.nlink.saturating_sub(1);
            self.destroy_inode(&mut tx, victim)?;
            victim.shown()
        } else {
            self.drop_name(&mut tx, InodeRecord::clone(victim), place, now)?
        };
        if victim.attr.is_dir() {
            attr.nlink = 0;
            attr.ctime = now;
        }
        tx.put_inode(parent);
        self.finish(caller, tx, MdsReply::Removed { fid: victim.attr.fid, attr: Some(attr) })
    }
}

/// Names that can never be removed. Source: unlink(2), rmdir(2).
fn check_removable(name: &[u8], directory: bool) -> StatusResult<()> {
    match name {
        b"" => Err(Status::ENOENT),
        b"." if directory => Err(Status::EINVAL),
        b".." if directory => Err(Status::ENOTEMPTY),
        b"." | b".." => Err(Status::EISDIR),
        name if name.len() > NAME_MAX => Err(Status::ENAMETOOLONG),
        _ => Ok(()),
    }
}
