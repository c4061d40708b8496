//! What only programs that were made for Lustre ask.

use crate::caller::Caller;
use crate::client::{Answer, Client};
use crate::ops::lock::Closes;
use crate::ops::xattr::LUSTRE_LOV;
use nacre_layout::{LayoutForm, user};
use nacre_types::{Caps, Fid, Status, StatusResult};
use nacre_wire::mds::{LeaseKind, MdsReply, MdsRequest, OpenFlags};
use std::sync::atomic::Ordering;
use std::time::Duration;

/// How long the release of a descriptor that was closed may take to arrive before a lease is refused: a process that was just started
/// has copies of descriptors until it runs its own program.
const CLOSE_PATIENCE: Duration = Duration::from_secs(1);

impl Client {
    /// One of the names of an inode and the directory that it is in: link number `link` from 0.
    ///
    /// # Errors
    /// `EPERM` without the right to read and search everything, as it may be in a private directory; `ENODATA` past the last link;
    /// `ENOENT` if it is gone.
    pub fn parent_of(&self, caller: &Caller, fid: Fid, link: u32) -> StatusResult<(Fid, Vec<u8>)> {
        if !self.may_search_all(caller) {
            return Err(Status::EPERM);
        }
        match self.call(caller, fid, &MdsRequest::FidToLink { fid, index: link })?.reply {
            MdsReply::Link { parent, name } => Ok((parent, name)),
            _ => Err(Status::EPROTO),
        }
    }

    /// True if the caller may read and search everything, and so learn where a FID is.
    pub fn may_search_all(&self, caller: &Caller) -> bool {
        let full = caller.full_cred().full.unwrap_or_default();
        full.caps.contains(Caps::DAC_READ_SEARCH)
    }

    /// Takes a lease for an open file that has none. `closes_are_told`: the kernel says when a descriptor is closed ([`Client::flush`]).
    ///
    /// # Errors
    /// `EPERM` for a write lease on a file that is not open for writing, and a read lease on one that is not open for reading; `EBUSY` if
    /// there is one already, and as for [`Client::open_lease`].
    pub fn take_lease(
        &self,
        caller: &Caller,
        handle: u64,
        kind: LeaseKind,
        closes_are_told: bool,
    ) -> StatusResult<()> {
        let open = self.handles.file(handle)?;
        let needed = if kind == LeaseKind::Read { OpenFlags::READ } else { OpenFlags::WRITE };
        if !open.flags.contains(needed) {
            return Err(Status::EPERM);
        }
        if open.leased.swap(true, Ordering::AcqRel) {
            return Err(Status::EBUSY);
        }
        let taken = match self.open_lease(caller, handle, Some(kind)) {
            // What is in the way may be an open of this mount whose descriptor was closed before.
            Err(Status::EBUSY) => {
                let closes = if closes_are_told { Closes::Told(Some(&open)) } else { Closes::Untold };
                let waited = self.await_closes(open.file.fid, &closes, CLOSE_PATIENCE);
                let heard = waited.and_then(|_| self.mdt(open.file.fid)?.endpoint.wait_for_posts());
                heard.and_then(|()| self.open_lease(caller, handle, Some(kind)).map(drop))
            }
            taken => taken.map(drop),
        };
        taken.inspect_err(|_| open.leased.store(false, Ordering::Release))
    }

    /// Gives up the lease that [`Client::take_lease`] has taken. Says what was left of it: none if somebody has broken it.
    ///
    /// # Errors
    /// `ENOLCK` if none was taken; as for [`Client::open_lease`].
    pub fn end_lease(&self, caller: &Caller, handle: u64) -> StatusResult<LeaseKind> {
        let open = self.handles.file(handle)?;
        if !open.leased.swap(false, Ordering::AcqRel) {
            return Err(Status::ENOLCK);
        }
        self.open_lease(caller, handle, Some(LeaseKind::None))
    }

    /// True if the open file has a lease, also one that was broken since.
    ///
    /// # Errors
    /// `EBADF`.
    pub fn has_lease(&self, handle: u64) -> StatusResult<bool> {
        Ok(self.handles.file(handle)?.leased.load(Ordering::Acquire))
    }

    /// Removes the first name of a file by that name. Who moves another file there at the same instant loses that one, as with `rm`.
    fn remove_named(&self, caller: &Caller, fid: Fid) -> StatusResult<Answer> {
        let (parent, name) = self.parent_of(caller, fid, 0)?;
        self.at_home(parent, &name, |home| {
            let found =
                match self.call(caller, home, &MdsRequest::Lookup { parent: home, name: &name })?.reply {
                    MdsReply::Entry { attr, .. } => attr.map(|attr| attr.fid),
                    MdsReply::Remote { fid, .. } => Some(fid),
                    _ => return Err(Status::EPROTO),
                };
            if found != Some(fid) {
                return Err(Status::ENOENT);
            }
            self.call(caller, home, &MdsRequest::Unlink { parent: home, name: &name, directory: false })
        })
    }

    /// Removes all names of a file that is known by its FID, each only if it is the file's.
    ///
    /// # Errors
    /// `EPERM` without the right to read and search everything; `EISDIR`, `EBUSY` of the root; `ENOENT`; those of [`Client::unlink`].
    /// Names that were removed before stay removed.
    pub fn remove_fid(&self, caller: &Caller, fid: Fid) -> StatusResult<()> {
        if !self.may_search_all(caller) {
            return Err(Status::EPERM);
        }
        loop {
            let parent = self.parent_of(caller, fid, 0);
            let answer = match self.call(caller, fid, &MdsRequest::RemoveFid { fid }) {
                // The name lies on another MDT.
                Err(Status::WRONG_TARGET | Status::WRONG_SHARD) => self.remove_named(caller, fid)?,
                answer => answer?,
            };
            let MdsReply::Removed { attr, .. } = &answer.reply else { return Err(Status::EPROTO) };
            let is_last = attr.as_ref().is_none_or(|attr| attr.nlink == 0);
            self.note_removed(answer)?;
            // The kernel sees to that only where it removes a name itself.
            if let (Some(kernel), Ok((parent, _))) = (self.kernel.get(), parent) {
                kernel.drop_attributes(parent.inode_number());
                kernel.drop_attributes(fid.inode_number());
            }
            if is_last {
                return Ok(());
            }
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

    /// The layout of a file or a directory's own default layout in Lustre's binary form, as Lustre's programs expect it: with an
    /// object for each stripe that it names, or composite.
    ///
    /// # Errors
    /// `ENODATA` if there is none: also for a file of one striping before its first write.
    pub fn layout_bytes(&self, caller: &Caller, fid: Fid, is_dir: bool) -> StatusResult<Vec<u8>> {
        let bytes = self.own_xattr(caller, fid, LUSTRE_LOV)?;
        let is_wish =
            || user::decode_layout(&bytes).is_ok_and(|l| l.form == LayoutForm::Plain && !l.has_objects());
        if !is_dir && is_wish() { Err(Status::ENODATA) } else { Ok(bytes) }
    }
}
