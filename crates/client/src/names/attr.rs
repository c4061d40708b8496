//! Attributes set.

use crate::caller::Caller;
use crate::file::FileState;
use crate::file::group::Who;
use crate::inodes::dot_lustre::virtual_attr;
use crate::names::Names;
use nacre_types::{Attr, Fid, OpenHandle, SetAttr, SetAttrValid, Status, StatusResult};
use nacre_wire::mds::MdsRequest;

const TIMES: SetAttrValid = SetAttrValid::MTIME.union(SetAttrValid::MTIME_NOW);
const ACCESS_TIMES: SetAttrValid = SetAttrValid::ATIME.union(SetAttrValid::ATIME_NOW);

impl Names {
    /// Changes attributes; gives them afterwards, and whether everybody could search the directory before but cannot
    /// now (then names in it must not stay cached).
    ///
    /// # Errors
    /// `EPERM`, `EACCES`; for a size also `EFBIG`, `EISDIR` and what OSTs answer.
    pub fn setattr(&self, caller: &Caller, fid: Fid, set: SetAttr) -> StatusResult<(Attr, bool)> {
        self.setattr_through(caller, fid, None, set)
    }

    /// The same through the open `handle`.
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
        if virtual_attr(fid).is_some() {
            return Err(Status::EPERM);
        }
        if set.valid.contains(SetAttrValid::SIZE) {
            let who = handle.map_or(Who::Name, |handle| Who::Open(OpenHandle(handle)));
            let (attr, lease) = self.data.truncate(caller, fid, set, who)?;
            return Ok((self.sizes.complete_attr(attr, lease)?, false));
        }
        let node = fid.inode_number();
        let file = self.nodes.file(node);
        let sets_times = set.valid.intersects(TIMES | ACCESS_TIMES);
        let turn =
            file.as_deref().filter(|_| sets_times).map(FileState::tell_unless_interrupted).transpose()?;
        if sets_times {
            self.data.wait_for_closes(fid)?;
        }
        let answer = match self.requests.call(caller, fid, &MdsRequest::SetAttr { fid, set }) {
            Ok(answer) => answer,
            Err(status) => return Ok((self.inodes.set_removed(caller, fid, &set, status)?, false)),
        };
        let lease = answer.lease;
        let attr = answer.attr()?;
        let was_public = self.nodes.note(node, &attr, lease.into()).is_none_or(|old| old.public);
        if let Some(file) = &file {
            let mut inner = file.lock();
            // A time that was set counts, not the time of writes before that.
            if set.valid.intersects(TIMES) {
                inner.news.mtime = None;
                inner.news.mtime_told = true;
            }
            if set.valid.intersects(ACCESS_TIMES) {
                inner.news.atime = None;
            }
        }
        drop(turn);
        let is_public = nacre_types::perm::searchable_by_all(&attr);
        if attr.is_dir() && !is_public {
            self.shards.forget_absences(fid);
        }
        let closed = attr.is_dir() && was_public && !is_public;
        Ok((self.sizes.complete_attr(attr, lease)?, closed))
    }
}
