//! What only programs that were made for Lustre ask.

use crate::caller::Caller;
use crate::names::Names;
use crate::requests::mdt::Answer;
use nacre_types::{Fid, Status, StatusResult};
use nacre_wire::mds::{MdsReply, MdsRequest};

impl Names {
    /// Removes the first name of a file by that name. Who moves another file there at the same instant loses that one, as with `rm`.
    fn remove_named(&self, caller: &Caller, fid: Fid) -> StatusResult<Answer> {
        let (parent, name) = self.inodes.parent_of(caller, fid, 0)?;
        self.shards.at_home(parent, &name, |home| {
            let found = match self
                .requests
                .call(caller, home, &MdsRequest::Lookup { parent: home, name: &name })?
                .reply
            {
                MdsReply::Entry { attr, .. } => attr.map(|attr| attr.fid),
                MdsReply::Remote { fid, .. } => Some(fid),
                _ => return Err(Status::EPROTO),
            };
            if found != Some(fid) {
                return Err(Status::ENOENT);
            }
            self.requests.call(
                caller,
                home,
                &MdsRequest::Unlink { parent: home, name: &name, directory: false },
            )
        })
    }

    /// Removes all names of a file that is known by its FID, each only if it is the file's.
    ///
    /// # Errors
    /// `EPERM` without the right to read and search everything; `EISDIR`, `EBUSY` of the root; `ENOENT`; those of [`Names::unlink`].
    /// Names that were removed before stay removed.
    pub fn remove_fid(&self, caller: &Caller, fid: Fid) -> StatusResult<()> {
        if !caller.may_search_all() {
            return Err(Status::EPERM);
        }
        loop {
            let parent = self.inodes.parent_of(caller, fid, 0);
            let answer = match self.requests.call(caller, fid, &MdsRequest::RemoveFid { fid }) {
                // The name lies on another MDT.
                Err(Status::WRONG_TARGET | Status::WRONG_SHARD) => self.remove_named(caller, fid)?,
                answer => answer?,
            };
            let MdsReply::Removed { attr, .. } = &answer.reply else { return Err(Status::EPROTO) };
            let is_last = attr.as_ref().is_none_or(|attr| attr.nlink == 0);
            self.note_removed(answer)?;
            // The kernel sees to that only where it removes a name itself.
            if let (Some(kernel), Ok((parent, _))) = (self.lease.kernel(), parent) {
                kernel.drop_attributes(parent.inode_number());
                kernel.drop_attributes(fid.inode_number());
            }
            if is_last {
                return Ok(());
            }
        }
    }
}
