//! Attributes and permissions.

use crate::caller::Caller;
use crate::client::Client;
use crate::file::FileState;
use crate::locks::groups::Who;
use crate::ops::dot_lustre::virtual_attr;
use nacre_types::{Attr, Fid, OpenHandle, SetAttr, SetAttrValid, Status, StatusResult};
use nacre_wire::mds::MdsRequest;

const TIMES: SetAttrValid = SetAttrValid::MTIME.union(SetAttrValid::MTIME_NOW);
const ACCESS_TIMES: SetAttrValid = SetAttrValid::ATIME.union(SetAttrValid::ATIME_NOW);

impl Client {
    /// Attributes of an inode; needs no permission. One that this client removed has no links but is there until the kernel
    /// forgets it.
    ///
    /// # Errors
    /// `ENOENT` or `ESTALE` if it is gone; what servers answer.
    pub fn getattr(&self, fid: Fid) -> StatusResult<Attr> {
        self.stat(fid).map(|(attr, _)| attr)
    }

    /// As [`Client::getattr`], and whether the attributes may be cached until this client says otherwise.
    ///
    /// # Errors
    /// As for [`Client::getattr`].
    pub fn stat(&self, fid: Fid) -> StatusResult<(Attr, bool)> {
        let ask = || self.ask_for_attributes(fid);
        if fid == self.root() { self.stat_root(ask) } else { ask() }
    }

    fn ask_for_attributes(&self, fid: Fid) -> StatusResult<(Attr, bool)> {
        if let Some(attr) = virtual_attr(fid) {
            return Ok((attr, false));
        }
        if self.asks_with_locks() {
            return match self.ask_with_locks(None, fid, None) {
                Ok(answered) => {
                    let attr = answered.attr.ok_or(Status::EPROTO)?;
                    let (attr, is_sure) = self.complete_attr_to_keep(attr, 0)?;
                    Ok((attr, is_sure && answered.keeps_attr()))
                }
                Err(status) => Ok((self.removed(fid, status)?, false)),
            };
        }
        let answer = match self.call_system(fid, &MdsRequest::GetAttr { fid }) {
            Ok(answer) => answer,
            Err(status) => return Ok((self.removed(fid, status)?, false)),
        };
        let lease = answer.lease;
        let attr = answer.attr()?;
        self.nodes.note(fid.inode_number(), &attr, lease.into());
        let (attr, is_sure) = self.complete_attr_to_keep(attr, lease)?;
        Ok((attr, is_sure && self.keep_of(lease).attr))
    }

    /// Changes attributes; gives them afterwards, and whether everybody could search the directory before but cannot
    /// now (then names in it must not stay cached).
    ///
    /// # Errors
    /// `EPERM`, `EACCES`; for a size also `EFBIG`, `EISDIR` and what OSTs answer.
    pub fn setattr(&self, caller: &Caller, fid: Fid, set: SetAttr) -> StatusResult<(Attr, bool)> {
        self.setattr_through(caller, fid, None, set)
    }

    /// The same by who has the file open under `handle`.
    ///
    /// # Errors
    /// As for [`Client::setattr`].
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
            let (attr, lease) = self.truncate(caller, fid, set, who)?;
            return Ok((self.complete_attr(attr, lease)?, false));
        }
        let node = fid.inode_number();
        let file = self.nodes.file(node);
        let sets_times = set.valid.intersects(TIMES | ACCESS_TIMES);
        let turn =
            file.as_deref().filter(|_| sets_times).map(FileState::tell_unless_interrupted).transpose()?;
        if sets_times {
            self.wait_for_closes(fid)?;
        }
        let answer = match self.call(caller, fid, &MdsRequest::SetAttr { fid, set }) {
            Ok(answer) => answer,
            Err(status) => return Ok((self.set_removed(caller, fid, &set, status)?, false)),
        };
        let lease = answer.lease;
        let attr = answer.attr()?;
        let was_public = self.nodes.note(node, &attr, lease.into()).is_none_or(|old| old.public);
        if let Some(file) = &file {
            let mut inner = file.lock();
            // A time that was set counts, not the time of writes before that.
            if set.valid.intersects(TIMES) {
                inner.mtime = None;
                inner.mtime_told = true;
            }
            if set.valid.intersects(ACCESS_TIMES) {
                inner.atime = None;
            }
        }
        drop(turn);
        let is_public = nacre_types::perm::searchable_by_all(&attr);
        if attr.is_dir() && !is_public {
            self.forget_absences(fid);
        }
        let closed = attr.is_dir() && was_public && !is_public;
        Ok((self.complete_attr(attr, lease)?, closed))
    }

    /// Waits until the MDT knows what closes of an inode have told it: times that are set from now on are newer.
    ///
    /// # Errors
    /// `EINTR`, `ESHUTDOWN`.
    pub(crate) fn wait_for_closes(&self, fid: Fid) -> StatusResult<()> {
        if self.nodes.is_being_told(fid.inode_number()) {
            self.mdt(fid)?.endpoint.wait_for_posts()?;
            self.nodes.forget_told(fid.inode_number());
        }
        Ok(())
    }

    /// Checks that the caller has all rights in `mask` (see `nacre_types::perm`).
    ///
    /// # Errors
    /// `EACCES`.
    pub fn access(&self, caller: &Caller, fid: Fid, mask: u8) -> StatusResult<()> {
        if let Some(verdict) = self.access_virtual(caller, fid, mask) {
            return verdict;
        }
        let answer = match self.call(caller, fid, &MdsRequest::Access { fid, mask }) {
            Ok(answer) => answer,
            Err(status) => return self.access_removed(caller, fid, mask, status).map(drop),
        };
        let lease = answer.lease;
        self.note(&answer.attr()?, lease);
        Ok(())
    }
}
