//! Hard links, and finding the names of an inode.

use super::create::check_same_project;
use crate::locks::Want;
use crate::mds::Mds;
use crate::names::Place;
use crate::service::Caller;
use crate::shards::{is_former, named_in};
use crate::tables::{ORPHANS, OrphanKind};
use nacre_ondisk::InodeRecord;
use nacre_types::limits::LINK_MAX;
use nacre_types::name::check_name;
use nacre_types::{AttrFlags, Fid, Status, StatusResult, perm};
use nacre_wire::mds::{MdsAnswer, MdsReply};

/// Directories between a file and the root at most; deeper ones have no path that a program could use.
const DEPTH_MAX: usize = 2048;

impl Mds {
    pub(crate) fn link(
        &self,
        caller: &Caller<'_>,
        fid: &Fid,
        parent: &Fid,
        name: &[u8],
    ) -> StatusResult<MdsAnswer> {
        check_name(name)?;
        if fid.mdt_index() != self.index || parent.mdt_index() != self.index {
            return self.link_elsewhere(caller, fid, parent, name);
        }
        let _locked = self.lock_for(caller, &[Want::Whole(*fid), Want::Name(*parent, name)])?;
        let record = self.inode(fid)?;
        let directory = self.home_of(parent, name)?;
        let hash = self.hash(name);
        let is_there = self.find_name(parent, hash, name)?.is_some();
        self.check_link(caller, &directory, &record, is_there)?;
        let orphan = record.attr.flags.contains(AttrFlags::ORPHAN);
        if orphan && self.orphan_kind(fid)? != Some(OrphanKind::Unnamed) {
            return Err(Status::ENOENT);
        }
        if self.space.is_full() {
            return Err(Status::ENOSPC);
        }
        let now = self.now();
        let mut tx = self.begin();
        let mut record = InodeRecord::clone(&record);
        if orphan {
            record.attr.flags -= AttrFlags::ORPHAN;
            tx.batch().delete(ORPHANS, &fid.to_key());
        }
        record.attr.ctime = now;
        self.add_name(&mut tx, &mut record, Place { parent: named_in(&directory), name });
        tx.put_dirent(parent, hash, name, *fid, record.attr.kind());
        let mut directory = InodeRecord::clone(&directory);
        directory.attr.mtime = now;
        directory.attr.ctime = now;
        directory.attr.size += 1;
        tx.put_inode(directory);
        let record = tx.put_inode(record);
        self.finish(caller, tx, MdsReply::Attr(record.shown()))
    }

    /// Whether an inode may get a name in a directory.
    pub(super) fn check_link(
        &self,
        caller: &Caller<'_>,
        directory: &InodeRecord,
        record: &InodeRecord,
        is_there: bool,
    ) -> StatusResult<()> {
        self.check_access(directory, caller.cred(), perm::EXEC)?;
        if is_there {
            return Err(Status::EEXIST);
        }
        self.check_access(directory, caller.cred(), perm::WRITE)?;
        if record.attr.is_dir() {
            return Err(Status::EPERM);
        }
        check_same_project(&directory.attr, &record.attr)?;
        if record.attr.nlink >= LINK_MAX { Err(Status::EMLINK) } else { Ok(()) }
    }

    pub(super) fn orphan_kind(&self, fid: &Fid) -> StatusResult<Option<OrphanKind>> {
        self.store
            .get(ORPHANS, &fid.to_key(), |value| value.and_then(OrphanKind::decode))
            .map_err(|error| self.store_failed(&error))
    }

    pub(crate) fn fid_to_link(&self, fid: &Fid, index: u32) -> StatusResult<MdsAnswer> {
        let (parent, name) = self.link_of(fid, index)?;
        Ok(self.answer(MdsReply::Link { parent, name }))
    }

    pub(crate) fn link_of(&self, fid: &Fid, index: u32) -> StatusResult<(Fid, Vec<u8>)> {
        let record = self.inode(fid)?;
        let link = match index {
            // The root and orphans have none.
            0 if record.name.is_empty() => None,
            0 => Some((record.parent, record.name.clone())),
            _ => self.extra_link(fid, index - 1)?,
        };
        link.ok_or(Status::ENODATA)
    }

    /// A path up to the root that the caller sees. Directories may be moved meanwhile: it tells what was found on the way.
    pub(crate) fn fid_to_path(&self, caller: &Caller<'_>, fid: &Fid, index: u32) -> StatusResult<MdsAnswer> {
        let root = self.top_of(caller.standing)?;
        let mut names: Vec<Vec<u8>> = Vec::new();
        let (mut top, mut index) = (*fid, index);
        // Another MDT goes on where a directory lies there.
        while top != root && top != Fid::ROOT && (names.is_empty() || top.mdt_index() == self.index) {
            if names.len() == DEPTH_MAX {
                return Err(Status::ENAMETOOLONG);
            }
            let record = self.inode(&top)?;
            if is_former(&record) {
                // The one in its place has its name.
                top = record.parent;
                if top.mdt_index() != self.index {
                    break;
                }
                continue;
            }
            let (parent, name) = self.link_of(&top, index)?;
            names.push(name);
            (top, index) = (parent, 0);
        }
        names.reverse();
        Ok(self.answer(MdsReply::Path { top, path: names.join(&b'/') }))
    }
}
