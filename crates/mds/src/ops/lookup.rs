//! Looking up names.

use crate::mds::Mds;
use crate::service::Caller;
use nacre_ondisk::InodeRecord;
use nacre_types::limits::NAME_MAX;
use nacre_types::{Attr, Fid, Status, StatusResult, perm};
use nacre_wire::dir::DIR_PAGE_MAX;
use nacre_wire::mds::{DirEntry, DirPage, LOOKUP_MANY_MAX, ListedLayout, MdsAnswer, MdsReply};

/// How often a name may change its inode under a lookup before it gives up.
const ATTEMPTS: usize = 100;

impl Mds {
    pub(crate) fn lookup(&self, caller: &Caller<'_>, parent: &Fid, name: &[u8]) -> StatusResult<MdsAnswer> {
        let directory = self.directory(parent)?;
        self.check_access(&directory, caller.cred(), perm::EXEC)?;
        if name.len() > NAME_MAX {
            return Err(Status::ENAMETOOLONG);
        }
        let public = perm::searchable_by_all(&directory.attr);
        let attr = self.find_attr(&directory, name)?;
        Ok(self.answer(MdsReply::Entry { attr, public }))
    }

    /// Looks many names up, each ended by NUL; those that are not there are left out.
    pub(crate) fn lookup_many(
        &self,
        caller: &Caller<'_>,
        parent: &Fid,
        names: &[u8],
    ) -> StatusResult<MdsAnswer> {
        let directory = self.directory(parent)?;
        self.check_access(&directory, caller.cred(), perm::EXEC)?;
        let public = perm::searchable_by_all(&directory.attr);
        let mut page = DirPage { bytes: Vec::new(), end: true, public };
        for name in names.split(|&byte| byte == 0).take(LOOKUP_MANY_MAX) {
            if matches!(name, b"" | b"." | b"..") || name.len() > NAME_MAX {
                continue;
            }
            let cookie = self.hash(name);
            let Some(found) = self.find_name(&directory.attr.fid, cookie, name)? else { continue };
            let Some(record) = self.find_inode(&found.fid)? else { continue };
            let attr = Some(self.told(&record)?);
            let layout = ListedLayout::None;
            let entry = DirEntry { cookie, fid: found.fid, kind: found.kind, name, attr, layout };
            if !page.push(&entry, DIR_PAGE_MAX as u32) {
                break;
            }
        }
        Ok(self.answer(MdsReply::Directory(page)))
    }

    fn find_attr(&self, directory: &InodeRecord, name: &[u8]) -> StatusResult<Option<Attr>> {
        match name {
            b"" => return Err(Status::ENOENT),
            b"." => return Ok(Some(directory.shown())),
            b".." => return Ok(Some(self.inode(&directory.parent)?.shown())),
            _ => {}
        }
        let hash = self.hash(name);
        for _ in 0..ATTEMPTS {
            let Some(found) = self.find_name(&directory.attr.fid, hash, name)? else { return Ok(None) };
            match self.find_inode(&found.fid)? {
                Some(record) => return self.told(&record).map(Some),
                // Removed between the two reads; the name is gone by now or names something else.
                None => std::thread::yield_now(),
            }
        }
        log::error!("a name in {} has no inode: run a check", directory.attr.fid);
        Err(Status::EUCLEAN)
    }
}
