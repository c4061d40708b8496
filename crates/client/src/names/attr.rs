//! Changes of attributes and extended attributes.

use crate::caller::Caller;
use crate::data::closes::wait_for_closes;
use crate::file::group::Who;
use crate::file::{FileState, ModifyTime};
use crate::inodes::dot_lustre::virtual_attr;
use crate::inodes::xattr::{ACL_ACCESS, CAPABILITY, is_layout};
use crate::names::Names;
use crate::requests::mdt::Answer;
use nacre_types::{Attr, FailureResult, Fid, OpenHandle, SetAttr, SetAttrValid, Status, StatusResult, perm};
use nacre_wire::mds::{MdsRequest, XattrFlags};

const TIMES: SetAttrValid = SetAttrValid::MTIME.union(SetAttrValid::MTIME_NOW);
const ACCESS_TIMES: SetAttrValid = SetAttrValid::ATIME.union(SetAttrValid::ATIME_NOW);

/// True for the names of the default for new directories.
fn is_dir_default(name: &[u8]) -> bool {
    matches!(name, b"lustre.dmv" | b"trusted.dmv")
}

/// Name under which components are deleted from a file with their objects.
const COMPONENTS_GO: &[u8] = b"lustre.lov.del";

impl Names {
    /// Changes attributes; returns them, and whether everybody could search the directory before but cannot
    /// after the change (then names in it must not stay cached).
    ///
    /// # Errors
    /// `EPERM`, `EACCES`; for a size also `EFBIG`, `EISDIR` and the errors of OSTs.
    pub fn setattr(&self, caller: &Caller, fid: Fid, set: SetAttr) -> StatusResult<(Attr, bool)> {
        self.setattr_through(caller, fid, None, set)
    }

    /// Does the same through the open `handle`.
    ///
    /// # Errors
    /// As for [`Names::setattr`].
    pub fn setattr_through(
        &self,
        caller: &Caller,
        fid: Fid,
        handle: Option<u64>,
        set: SetAttr,
    ) -> StatusResult<(Attr, bool)> {
        self.requests.faults.edge_on("set attributes", fid, || {
            if virtual_attr(fid).is_some() {
                return Err(Status::EPERM.into());
            }
            if set.valid.contains(SetAttrValid::SIZE) {
                let who = handle.map_or(Who::Name, |handle| Who::Open(OpenHandle(handle)));
                let (attr, lease) = self.data.truncate(caller, fid, set, who)?;
                return match self.sizes.complete_attr(attr, lease) {
                    // Another client has removed the file since it was truncated.
                    Err(failure) if failure.status() == Status::ENOENT => Ok((attr, false)),
                    completed => Ok((completed?, false)),
                };
            }
            let node = fid.inode_number();
            let file = self.nodes.file(node);
            let sets_times = set.valid.intersects(TIMES | ACCESS_TIMES);
            let turn =
                file.as_deref().filter(|_| sets_times).map(FileState::tell_unless_interrupted).transpose()?;
            if sets_times {
                wait_for_closes(&self.requests, &self.nodes, fid)?;
            }
            let answer = match self.requests.call(caller, fid, &MdsRequest::SetAttr { fid, set }) {
                Ok(answer) => answer,
                Err(failure) => return Ok((self.nodes.set_removed(caller, fid, &set, failure)?, false)),
            };
            let lease = answer.lease;
            let attr = answer.attr()?;
            let was_public = self.nodes.note(node, &attr, lease.into()).is_none_or(|old| old.public);
            if let Some(file) = &file {
                let mut inner = file.lock();
                // A time that was set wins over the time of earlier writes.
                if set.valid.intersects(TIMES) {
                    inner.news.mtime = ModifyTime::Told;
                }
                if set.valid.intersects(ACCESS_TIMES) {
                    inner.news.atime = None;
                }
            }
            drop(turn);
            let is_public = perm::searchable_by_all(&attr);
            if attr.is_dir() && !is_public {
                self.shards.forget_absences(fid);
            }
            let closed = attr.is_dir() && was_public && !is_public;
            Ok((self.sizes.complete_attr(attr, lease)?, closed))
        })
    }

    /// Sets an extended attribute. True if everybody could search the directory before but cannot after the
    /// change.
    ///
    /// # Errors
    /// `EEXIST`, `ENODATA` according to `flags`; `EPERM`, `EACCES`, `ENOSPC`, `E2BIG`, `EOPNOTSUPP`.
    pub fn setxattr(
        &self,
        caller: &Caller,
        fid: Fid,
        name: &[u8],
        value: &[u8],
        flags: XattrFlags,
    ) -> StatusResult<bool> {
        self.requests.faults.edge("setxattr", || {
            if is_layout(name)
                && let Some(file) = self.nodes.file(fid.inode_number())
            {
                // A file with data keeps its layout.
                self.write_back.close_head(&file, 0)?;
                self.write_back.settle(&file, 0, u64::MAX)?;
            }
            let request = MdsRequest::SetXattr { fid, name, value, flags };
            let closed = match name {
                COMPONENTS_GO => self.data.replacing(&[fid], || self.change_xattr(caller, fid, &request))?,
                _ => self.change_xattr(caller, fid, &request)?,
            };
            if matches!(name, b"lustre.lov" | b"trusted.lov")
                && let Some(file) = self.nodes.file(fid.inode_number())
            {
                // The file may have begun on the MDT before. One that has objects elsewhere is unchanged,
                // with the data held back for them.
                self.layouts.ask_layout_again(&file)?;
            }
            if is_dir_default(name) {
                self.placement.forget(fid);
            }
            if name == ACL_ACCESS {
                // The first three entries of an access ACL are the mode.
                self.data.mode_changed(fid);
            }
            Ok(closed)
        })
    }

    /// Removes an extended attribute. True if everybody could search the directory before but cannot after
    /// the change.
    ///
    /// # Errors
    /// `ENODATA`, `EPERM`, `EACCES`, `EOPNOTSUPP`.
    pub fn removexattr(&self, caller: &Caller, fid: Fid, name: &[u8]) -> StatusResult<bool> {
        self.requests.faults.edge("removexattr", || {
            let request = MdsRequest::RemoveXattr { fid, name };
            if name == CAPABILITY {
                // The kernel has checked the caller's permission, or removes the attribute itself because the
                // caller writes to the file.
                let answer = self.requests.call_system(fid, &request)?;
                return self.xattr_changed(fid, answer);
            }
            let result = self.change_xattr(caller, fid, &request);
            if is_dir_default(name) {
                self.placement.forget(fid);
            }
            result
        })
    }

    fn change_xattr(&self, caller: &Caller, fid: Fid, request: &MdsRequest<'_>) -> FailureResult<bool> {
        let answer = self.requests.call(caller, fid, request)?;
        self.xattr_changed(fid, answer)
    }

    fn xattr_changed(&self, fid: Fid, answer: Answer) -> FailureResult<bool> {
        let lease = answer.lease;
        let attr = answer.attr()?;
        let was_public =
            self.nodes.note(fid.inode_number(), &attr, lease.into()).is_none_or(|old| old.public);
        self.nodes.learn(&attr, lease);
        let is_public = perm::searchable_by_all(&attr);
        if attr.is_dir() && !is_public {
            self.shards.forget_absences(fid);
        }
        Ok(attr.is_dir() && was_public && !is_public)
    }
}
