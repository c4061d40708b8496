//! Attributes and permissions.

use crate::caller::Caller;
use crate::inodes::Inodes;
use crate::inodes::dot_lustre::virtual_attr;
use nacre_types::{Attr, Fid, Status, StatusResult};
use nacre_wire::mds::MdsRequest;

impl Inodes {
    /// Attributes of an inode; needs no permission. One that this client removed has no links but is there until the kernel
    /// forgets it.
    ///
    /// # Errors
    /// `ENOENT` or `ESTALE` if it is gone; what servers answer.
    pub fn getattr(&self, fid: Fid) -> StatusResult<Attr> {
        self.stat(fid).map(|(attr, _)| attr)
    }

    /// As [`Inodes::getattr`], and whether the attributes may be cached until this client says otherwise.
    ///
    /// # Errors
    /// As for [`Inodes::getattr`].
    pub fn stat(&self, fid: Fid) -> StatusResult<(Attr, bool)> {
        let ask = || self.ask_for_attributes(fid);
        if fid == self.root() { self.stat_root(ask) } else { ask() }
    }

    fn ask_for_attributes(&self, fid: Fid) -> StatusResult<(Attr, bool)> {
        if let Some(attr) = virtual_attr(fid) {
            return Ok((attr, false));
        }
        if !self.lease.exclusive() {
            return match self.ask_with_locks(None, fid, None) {
                Ok(answered) => {
                    let attr = answered.attr.ok_or(Status::EPROTO)?;
                    let (attr, is_sure) = self.sizes.complete_attr_to_keep(attr, 0)?;
                    Ok((attr, is_sure && answered.keeps_attr()))
                }
                Err(status) => Ok((self.removed(fid, status)?, false)),
            };
        }
        let answer = match self.requests.call_system(fid, &MdsRequest::GetAttr { fid }) {
            Ok(answer) => answer,
            Err(status) => return Ok((self.removed(fid, status)?, false)),
        };
        let lease = answer.lease;
        let attr = answer.attr()?;
        self.nodes.note(fid.inode_number(), &attr, lease.into());
        let (attr, is_sure) = self.sizes.complete_attr_to_keep(attr, lease)?;
        Ok((attr, is_sure && self.keep_of(lease).attr))
    }

    /// Checks that the caller has all rights in `mask` (see `nacre_types::perm`).
    ///
    /// # Errors
    /// `EACCES`.
    pub fn access(&self, caller: &Caller, fid: Fid, mask: u8) -> StatusResult<()> {
        if let Some(verdict) = self.access_virtual(caller, fid, mask) {
            return verdict;
        }
        let answer = match self.requests.call(caller, fid, &MdsRequest::Access { fid, mask }) {
            Ok(answer) => answer,
            Err(status) => return self.access_removed(caller, fid, mask, status).map(drop),
        };
        let lease = answer.lease;
        self.nodes.learn(&answer.attr()?, lease);
        Ok(())
    }

    /// Attributes as the MDT has them: size, space and times of data may be out of date.
    ///
    /// # Errors
    /// What the MDT answers.
    pub fn mdt_attr(&self, fid: Fid) -> StatusResult<Attr> {
        self.requests.call_system(fid, &MdsRequest::GetAttr { fid })?.attr()
    }
}
