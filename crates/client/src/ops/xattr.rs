//! Extended attributes.

use crate::caller::Caller;
use crate::client::{Answer, Client};
use crate::ops::dot_lustre::virtual_attr;
use nacre_types::{AttrFlags, Fid, Status, StatusResult, perm};
use nacre_wire::mds::{MdsRequest, XattrFlags};

const ACL_ACCESS: &[u8] = b"system.posix_acl_access";
const CAPABILITY: &[u8] = b"security.capability";
const ACL_DEFAULT: &[u8] = b"system.posix_acl_default";
/// What is listed of an inode that has a layout and nothing else.
/// The layout of a file or the default of a directory.
pub(super) const LUSTRE_LOV: &[u8] = b"lustre.lov";
const LAYOUT_ALONE: &[u8] = b"lustre.lov\0";

/// What brings other names into a list.
const LISTED: AttrFlags = AttrFlags::HAS_ACL
    .union(AttrFlags::HAS_DEFAULT_ACL)
    .union(AttrFlags::HAS_XATTRS)
    .union(AttrFlags::HAS_CAPABILITY);

/// What must be stored for the attribute to exist; `None` if that cannot be told from flags (or a caller without read
/// permission must be told something else).
fn needed_flag(name: &[u8]) -> Option<AttrFlags> {
    match name {
        ACL_ACCESS => Some(AttrFlags::HAS_ACL),
        ACL_DEFAULT => Some(AttrFlags::HAS_DEFAULT_ACL),
        CAPABILITY => Some(AttrFlags::HAS_CAPABILITY),
        _ if name.starts_with(b"security.") => Some(AttrFlags::HAS_XATTRS),
        _ => None,
    }
}

/// True for the names under which a file's layout is shown and changed.
fn is_layout(name: &[u8]) -> bool {
    name.starts_with(b"lustre.lov") || name == b"trusted.lov"
}

/// True for the names of what new directories get.
fn is_dir_default(name: &[u8]) -> bool {
    matches!(name, b"lustre.dmv" | b"trusted.dmv")
}

/// Takes components with their objects from a file.
const COMPONENTS_GO: &[u8] = b"lustre.lov.del";

impl Client {
    /// Value of an extended attribute; inodes that were removed have none. Kernels ask for some on every write and every
    /// `ls -l`; those that do not exist cost no request while the lease is exclusive.
    ///
    /// # Errors
    /// `ENODATA` if it does not exist; `EACCES`; `EOPNOTSUPP` for a name space that we do not have.
    pub fn getxattr(&self, caller: &Caller, fid: Fid, name: &[u8]) -> StatusResult<Vec<u8>> {
        match self.own_xattr(caller, fid, name) {
            // Files that are made in a directory without a default of its own get that of the root, and so it shows that one, as on
            // Lustre. Lists of attributes leave it out.
            Err(Status::ENODATA)
                if name == LUSTRE_LOV
                    && fid != self.root()
                    && self.getattr(fid).is_ok_and(|a| a.is_dir()) =>
            {
                self.own_xattr(caller, self.root(), name)
            }
            answer => answer,
        }
    }

    /// The same without the default that a directory shows for lack of its own.
    pub(super) fn own_xattr(&self, caller: &Caller, fid: Fid, name: &[u8]) -> StatusResult<Vec<u8>> {
        if virtual_attr(fid).is_some() {
            return Err(Status::ENODATA);
        }
        if let (Some(needed), Some(flags)) = (needed_flag(name), self.flags_of(fid))
            && !flags.contains(needed)
        {
            return Err(Status::ENODATA);
        }
        if is_layout(name) {
            self.decide_head_of(fid)?;
        }
        match self.call(caller, fid, &MdsRequest::GetXattr { fid, name }) {
            Ok(answer) => answer.bytes(),
            Err(status) => self.removed(fid, status).and(Err(Status::ENODATA)),
        }
    }

    /// Names of the extended attributes that the caller may see, each ended by NUL. Newer programs that list files ask this
    /// for each; inodes that have at most a layout cost no request while the lease is exclusive.
    ///
    /// # Errors
    /// What the MDT answers.
    pub fn listxattr(&self, caller: &Caller, fid: Fid) -> StatusResult<Vec<u8>> {
        if virtual_attr(fid).is_some() {
            return Ok(Vec::new());
        }
        if let Some(flags) = self.flags_of(fid)
            && !flags.intersects(LISTED)
            && self.nodes.removed(fid.inode_number()).is_none()
        {
            let has_layout = flags.contains(AttrFlags::HAS_LAYOUT) || self.holds_head(fid);
            let names: &[u8] = if has_layout { LAYOUT_ALONE } else { b"" };
            return Ok(names.to_vec());
        }
        match self.call(caller, fid, &MdsRequest::ListXattr { fid }) {
            Ok(answer) => answer.bytes(),
            Err(status) => self.removed(fid, status).map(|_| Vec::new()),
        }
    }

    /// Sets an extended attribute. True if everybody could search the directory before but cannot now.
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
        if is_layout(name)
            && let Some(file) = self.nodes.file(fid.inode_number())
        {
            // A file with data keeps its layout.
            self.close_head(&file, 0)?;
            self.settle(&file, 0, u64::MAX)?;
        }
        let request = MdsRequest::SetXattr { fid, name, value, flags };
        let closed = match name {
            COMPONENTS_GO => self.replacing(&[fid], || self.change_xattr(caller, fid, &request))?,
            _ => self.change_xattr(caller, fid, &request)?,
        };
        if matches!(name, b"lustre.lov" | b"trusted.lov")
            && let Some(file) = self.nodes.file(fid.inode_number())
        {
            // It may have begun on the MDT before. One that has objects elsewhere has stayed as it was, with what is held back
            // for them.
            self.ask_layout_again(&file)?;
        }
        if is_dir_default(name) {
            self.placement.forget(fid);
        }
        if name == ACL_ACCESS {
            // Its first three entries are the mode.
            self.mode_changed(fid);
        }
        Ok(closed)
    }

    /// Removes an extended attribute. True if everybody could search the directory before but cannot now.
    ///
    /// # Errors
    /// `ENODATA`, `EPERM`, `EACCES`, `EOPNOTSUPP`.
    pub fn removexattr(&self, caller: &Caller, fid: Fid, name: &[u8]) -> StatusResult<bool> {
        let request = MdsRequest::RemoveXattr { fid, name };
        if name == CAPABILITY {
            // The kernel has checked that the caller may, or takes it off itself because the caller writes to the file.
            let answer = self.call_system(fid, &request)?;
            return self.xattr_changed(fid, answer);
        }
        let result = self.change_xattr(caller, fid, &request);
        if is_dir_default(name) {
            self.placement.forget(fid);
        }
        result
    }

    fn change_xattr(&self, caller: &Caller, fid: Fid, request: &MdsRequest<'_>) -> StatusResult<bool> {
        let answer = self.call(caller, fid, request)?;
        self.xattr_changed(fid, answer)
    }

    fn xattr_changed(&self, fid: Fid, answer: Answer) -> StatusResult<bool> {
        let lease = answer.lease;
        let attr = answer.attr()?;
        let was_public =
            self.nodes.note(fid.inode_number(), &attr, lease.into()).is_none_or(|old| old.public);
        self.note(&attr, lease);
        let is_public = perm::searchable_by_all(&attr);
        if attr.is_dir() && !is_public {
            self.forget_absences(fid);
        }
        Ok(attr.is_dir() && was_public && !is_public)
    }
}
