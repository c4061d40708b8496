//! What only programs that were made for Lustre ask.

use crate::caller::Caller;
use crate::client::Client;
use nacre_layout::{LayoutForm, user};
use nacre_types::{Caps, Fid, Status, StatusResult};
use nacre_wire::mds::{MdsReply, MdsRequest};

impl Client {
    /// One of the names of an inode and the directory that it is in: link number `link` from 0.
    ///
    /// # Errors
    /// `EPERM` without the right to read and search everything, as it may be in a private directory; `ENODATA` past the last link;
    /// `ENOENT` if it is gone.
    pub fn parent_of(&self, caller: &Caller, fid: Fid, link: u32) -> StatusResult<(Fid, Vec<u8>)> {
        let full = caller.full_cred().full.unwrap_or_default();
        if !full.caps.contains(Caps::DAC_READ_SEARCH) {
            return Err(Status::EPERM);
        }
        match self.call_system(fid, &MdsRequest::FidToLink { fid, index: link })?.reply {
            MdsReply::Link { parent, name } => Ok((parent, name)),
            _ => Err(Status::EPROTO),
        }
    }

    /// Gives an open file the objects that its first byte needs, if it is open for writing and has none: programs that write ask
    /// for the layout first, and Lustre has one by then.
    ///
    /// # Errors
    /// Those of a first write.
    pub fn give_objects(&self, handle: u64) -> StatusResult<()> {
        match self.handles.file(handle) {
            Ok(open) if open.writable() => self.use_layout_for_writing(&open.file, 0, 1).map(drop),
            _ => Ok(()),
        }
    }

    /// The layout of a file or the default layout of a directory in Lustre's binary form, as Lustre's programs expect it: with an
    /// object for each stripe that it names, or composite.
    ///
    /// # Errors
    /// `ENODATA` if there is none: also for a file of one striping before its first write.
    pub fn layout_bytes(&self, caller: &Caller, fid: Fid, is_dir: bool) -> StatusResult<Vec<u8>> {
        let bytes = self.getxattr(caller, fid, b"lustre.lov")?;
        let is_wish =
            || user::decode_layout(&bytes).is_ok_and(|l| l.form == LayoutForm::Plain && !l.has_objects());
        if !is_dir && is_wish() { Err(Status::ENODATA) } else { Ok(bytes) }
    }
}
