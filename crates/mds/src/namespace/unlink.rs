//! Removal of names.

use super::NameSpace;
use crate::plan::{self, Removal};
use crate::shards::shards_of;
use crate::suspend::Caller;
use crate::tx::now;
use nacre_types::limits::NAME_MAX;
use nacre_types::{Fid, Status, StatusResult};
use nacre_wire::mds::MdsAnswer;

impl NameSpace {
    pub fn unlink(
        &self,
        caller: &Caller<'_>,
        parent: &Fid,
        name: &[u8],
        directory: bool,
    ) -> StatusResult<MdsAnswer> {
        check_removable(name, directory)?;
        let names = [(*parent, name)];
        let working_set = self.core.performer.lock_and_read(caller, &names, &[])?;
        let (home, victim) = (working_set.home(0)?, working_set.target_of(0)?);
        let shards = working_set.shards_of(victim.as_deref())?;
        let (victim, now) = (victim.as_ref(), now());
        let removal = Removal {
            home: &home,
            name,
            victim: victim.map(|victim| &**victim),
            shards: &shards,
            as_directory: directory,
        };
        let plan = plan::remove(caller.cred(), &removal, now)?;
        self.core.performer.perform(caller, working_set, plan, &[&home, victim.unwrap_or(&home)], now)
    }

    /// Removes the first name of a file, in one step with its lookup.
    pub fn remove_fid(&self, caller: &Caller<'_>, fid: &Fid) -> StatusResult<MdsAnswer> {
        if *fid == Fid::ROOT {
            return Err(Status::EBUSY);
        }
        loop {
            let seen = self.leaves.records.inode(fid)?;
            if seen.attr.is_dir() {
                return Err(Status::EISDIR);
            }
            if seen.name.is_empty() {
                return Err(Status::ENOENT);
            }
            // The client continues by name if the name is on another MDT.
            let dir = self.leaves.records.directory(&seen.parent)?;
            let home = match shards_of(&dir)? {
                // A request by name finds the shard.
                Some(shards) if shards.change().is_some() => return Err(Status::WRONG_TARGET),
                Some(shards) => shards.shard_of(&seen.name).map_or(Fid::ZERO, |place| shards.shards[place]),
                None => seen.parent,
            };
            self.leaves.records.check_local(&home)?;
            let names = [(home, &seen.name[..])];
            let working_set = self.core.performer.lock_named(caller, &names, &[*fid])?;
            let victim = working_set.inode(fid)?;
            if (victim.parent, &victim.name) != (seen.parent, &seen.name) {
                continue;
            }
            let (dir, now) = (working_set.home(0)?, now());
            let removal = Removal {
                home: &dir,
                name: &seen.name,
                victim: Some(&victim),
                shards: &[],
                as_directory: false,
            };
            let plan = plan::remove(caller.cred(), &removal, now)?;
            return self.core.performer.perform(caller, working_set, plan, &[&dir, &victim], now);
        }
    }
}

/// Refuses names that can never be removed, see unlink(2) and rmdir(2).
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
