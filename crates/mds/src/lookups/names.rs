//! Lookups of names.

use super::Lookups;
use super::listing::check_range;
use crate::locks::Want;
use crate::plan::check_access;
use crate::records::Resolved;
use crate::shards::is_former;
use crate::suspend::Caller;
use nacre_lock::LockHandle;
use nacre_ondisk::InodeRecord;
use nacre_types::limits::NAME_MAX;
use nacre_types::{Fid, Status, StatusResult, perm};
use nacre_wire::dir::{ATTR_BYTES, DIR_PAGE_MAX, LOCK_BYTES};
use nacre_wire::mds::{DirEntry, DirPage, LOOKUP_MANY_MAX, ListedLayout, LockRange, MdsAnswer, MdsReply};
use std::sync::Arc;

/// How often a name may change its inode during a lookup before the lookup fails.
const ATTEMPTS: usize = 100;

impl Lookups {
    pub fn lookup(&self, caller: &Caller<'_>, parent: &Fid, name: &[u8]) -> StatusResult<MdsAnswer> {
        let directory = match name {
            b"." | b".." => self.leaves.records.directory(parent)?,
            _ => self.leaves.records.with_names(parent)?,
        };
        // `..` needs no search permission: its answer comes from the inode, like all names of an inode.
        if name != b".." {
            check_access(&directory, caller.cred(), perm::EXEC)?;
        }
        if name.len() > NAME_MAX {
            return Err(Status::ENAMETOOLONG);
        }
        let public = perm::searchable_by_all(&directory.attr);
        let attr = match self.resolve_in(directory, name)? {
            Resolved::Nowhere => None,
            Resolved::Here(attr) => Some(attr),
            Resolved::Elsewhere(fid) => {
                let (names, directory) = (None, LockHandle(0));
                return Ok(self.core.commits.answer(MdsReply::Remote { fid, public, names, directory }));
            }
        };
        Ok(self.core.commits.answer(MdsReply::Entry { attr, public }))
    }

    /// Looks up many names, each terminated by NUL; names that do not exist are left out. `locks` is as for a
    /// listing.
    pub fn lookup_many(
        &self,
        caller: &Caller<'_>,
        parent: &Fid,
        names: &[u8],
        locks: LockRange,
    ) -> StatusResult<MdsAnswer> {
        check_range(locks)?;
        let with_locks = locks.count > 0;
        let directory = self.leaves.records.with_names(parent)?;
        check_access(&directory, caller.cred(), perm::EXEC)?;
        let public = perm::searchable_by_all(&directory.attr);
        let mut page = DirPage { end: true, public, ..DirPage::default() };
        let later_bytes = if with_locks { ATTR_BYTES + LOCK_BYTES } else { 0 };
        let room = (DIR_PAGE_MAX - later_bytes * LOOKUP_MANY_MAX) as u32;
        for name in names.split(|&byte| byte == 0).take(LOOKUP_MANY_MAX) {
            if matches!(name, b"" | b"." | b"..") || name.len() > NAME_MAX {
                continue;
            }
            self.leaves.locks.await_decision(&Want::Name(directory.attr.fid, name))?;
            self.leaves.records.check_home(&directory, name)?;
            let cookie = self.leaves.records.hash(name);
            let Some(found) = self.leaves.records.find_name(&directory.attr.fid, cookie, name)? else {
                if self.changed_since(&directory)?.is_some() {
                    return Err(Status::WRONG_SHARD);
                }
                continue;
            };
            let is_here = found.fid.mdt_index() == self.leaves.index;
            let attr = match is_here {
                // Read with its lock.
                true if with_locks => None,
                true => self
                    .leaves
                    .records
                    .find_inode(&found.fid)?
                    .map(|record| self.core.layouts.told(&record))
                    .transpose()?,
                // Clients request them from that MDT.
                false => None,
            };
            if attr.is_none() && is_here && !with_locks {
                continue;
            }
            let (lock, layout) = (LockHandle(0), ListedLayout::None);
            let entry = DirEntry { cookie, fid: found.fid, kind: found.kind, name, attr, lock, layout };
            if !page.push(&entry, room) {
                break;
            }
        }
        if with_locks {
            page = self.core.client_locks.page_with_locks(
                caller.export,
                page,
                Some((&directory, true)),
                locks,
            )?;
        }
        Ok(self.core.commits.answer(MdsReply::Directory(page)))
    }

    /// Returns the current record of a directory or shard, if names may have moved into it or out of it since
    /// `seen` was read.
    fn changed_since(&self, seen: &InodeRecord) -> StatusResult<Option<Arc<InodeRecord>>> {
        self.leaves.locks.await_decision(&Want::Still(seen.attr.fid))?;
        let now = self.leaves.records.with_names(&seen.attr.fid)?;
        Ok(Some(now).filter(|now| now.lmv != seen.lmv))
    }

    fn resolve_in(&self, mut directory: Arc<InodeRecord>, name: &[u8]) -> StatusResult<Resolved> {
        let is_here = |fid: &Fid| fid.mdt_index() == self.leaves.index;
        match name {
            b"" => return Err(Status::ENOENT),
            b"." => return Ok(Resolved::Here(directory.shown())),
            b".." if is_here(&directory.parent) => {
                let parent = self.leaves.records.inode(&directory.parent)?;
                // Its name refers to the directory that replaces it.
                return match is_former(&parent) {
                    true if is_here(&parent.parent) => {
                        Ok(Resolved::Here(self.leaves.records.inode(&parent.parent)?.shown()))
                    }
                    true => Ok(Resolved::Elsewhere(parent.parent)),
                    false => Ok(Resolved::Here(parent.shown())),
                };
            }
            b".." => return Ok(Resolved::Elsewhere(directory.parent)),
            _ => {}
        }
        self.leaves.records.check_home(&directory, name)?;
        let hash = self.leaves.records.hash(name);
        for _ in 0..ATTEMPTS {
            self.leaves.locks.await_decision(&Want::Name(directory.attr.fid, name))?;
            let Some(found) = self.leaves.records.find_name(&directory.attr.fid, hash, name)? else {
                let Some(now) = self.changed_since(&directory)? else { return Ok(Resolved::Nowhere) };
                self.leaves.records.check_home(&now, name)?;
                directory = now;
                continue;
            };
            if !is_here(&found.fid) {
                return Ok(Resolved::Elsewhere(found.fid));
            }
            match self.leaves.records.find_inode(&found.fid)? {
                Some(record) => return self.core.layouts.told(&record).map(Resolved::Here),
                // Removed between the two reads; by the next read the name is removed or refers to another
                // inode.
                None => nacre_env::thread::yield_now(),
            }
        }
        log::error!("a name in {} has no inode: run a check", directory.attr.fid);
        Err(Status::EUCLEAN)
    }
}
