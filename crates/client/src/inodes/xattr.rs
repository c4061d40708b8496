//! Extended attributes of inodes, and layouts in their binary form.

use crate::caller::Caller;
use crate::inodes::Inodes;
use crate::inodes::dot_lustre::virtual_attr;
use nacre_layout::{LayoutForm, user};
use nacre_types::{AttrFlags, FailureResult, Fid, Status, StatusResult};
use nacre_wire::mds::MdsRequest;

pub(crate) const ACL_ACCESS: &[u8] = b"system.posix_acl_access";
pub(crate) const CAPABILITY: &[u8] = b"security.capability";
const ACL_DEFAULT: &[u8] = b"system.posix_acl_default";
/// The attribute listed for an inode that has a layout and nothing else: the layout of a file or the default
/// of a directory.
pub(crate) const LUSTRE_LOV: &[u8] = b"lustre.lov";
const LAYOUT_ALONE: &[u8] = b"lustre.lov\0";

/// Flags of inodes with other names in their list.
const LISTED: AttrFlags = AttrFlags::HAS_ACL
    .union(AttrFlags::HAS_DEFAULT_ACL)
    .union(AttrFlags::HAS_XATTRS)
    .union(AttrFlags::HAS_CAPABILITY);

/// Returns the flag of an inode for which the attribute exists; `None` if flags do not decide that (or a
/// caller without read permission must get another error).
fn needed_flag(name: &[u8]) -> Option<AttrFlags> {
    match name {
        ACL_ACCESS => Some(AttrFlags::HAS_ACL),
        ACL_DEFAULT => Some(AttrFlags::HAS_DEFAULT_ACL),
        CAPABILITY => Some(AttrFlags::HAS_CAPABILITY),
        _ if name.starts_with(b"security.") => Some(AttrFlags::HAS_XATTRS),
        _ => None,
    }
}

impl Inodes {
    /// Returns the layout of a file or a directory's own default layout in Lustre's binary form, as Lustre's
    /// programs expect it: with an object for each stripe that it names, or composite.
    ///
    /// # Errors
    /// `ENODATA` if there is none: also for a file of one striping before its first write.
    pub fn layout_bytes(&self, caller: &Caller, fid: Fid, is_dir: bool) -> StatusResult<Vec<u8>> {
        self.requests.faults.edge("get the layout", || {
            let bytes = self.own_xattr(caller, fid, LUSTRE_LOV)?;
            let is_request =
                || user::decode_layout(&bytes).is_ok_and(|l| l.form == LayoutForm::Plain && !l.has_objects());
            if !is_dir && is_request() { Err(Status::ENODATA.into()) } else { Ok(bytes) }
        })
    }

    /// Returns the value of an extended attribute; inodes that were removed have none. Kernels request some
    /// on every write and every `ls -l`; those that do not exist cost no request while the lease is
    /// exclusive.
    ///
    /// # Errors
    /// `ENODATA` if it does not exist; `EACCES`; `EOPNOTSUPP` for an unknown name space.
    pub fn getxattr(&self, caller: &Caller, fid: Fid, name: &[u8]) -> StatusResult<Vec<u8>> {
        self.requests.faults.edge("getxattr", || {
            match self.own_xattr(caller, fid, name) {
                // Files that are created in a directory without a default of its own get that of the root,
                // and so it shows that one, as on Lustre. Lists of attributes leave it out.
                Err(failure)
                    if failure == Status::ENODATA
                        && name == LUSTRE_LOV
                        && fid != self.root.fid()
                        && self.getattr(fid).is_ok_and(|a| a.is_dir()) =>
                {
                    self.own_xattr(caller, self.root.fid(), name)
                }
                answer => answer,
            }
        })
    }

    /// Does the same without the inherited default that a directory shows if it has none of its own.
    pub(super) fn own_xattr(&self, caller: &Caller, fid: Fid, name: &[u8]) -> FailureResult<Vec<u8>> {
        if virtual_attr(fid).is_some() {
            return Err(Status::ENODATA.into());
        }
        if let (Some(needed), Some(flags)) = (needed_flag(name), self.flags_of(fid))
            && !flags.contains(needed)
        {
            return Err(Status::ENODATA.into());
        }
        if is_layout(name) {
            self.layouts.decide_head_of(fid)?;
        }
        match self.requests.call(caller, fid, &MdsRequest::GetXattr { fid, name }) {
            Ok(answer) => answer.bytes(),
            Err(failure) => self.nodes.removed_or(fid, failure).and(Err(Status::ENODATA.into())),
        }
    }

    /// Returns the names of the extended attributes that the caller may see, each terminated by NUL. Newer
    /// programs that list files request this for each; inodes that have at most a layout cost no request
    /// while the lease is exclusive.
    ///
    /// # Errors
    /// The error of the MDT.
    pub fn listxattr(&self, caller: &Caller, fid: Fid) -> StatusResult<Vec<u8>> {
        self.requests.faults.edge("listxattr", || {
            if virtual_attr(fid).is_some() {
                return Ok(Vec::new());
            }
            if let Some(flags) = self.flags_of(fid)
                && !flags.intersects(LISTED)
                && self.nodes.removed(fid.inode_number()).is_none()
            {
                let has_layout = flags.contains(AttrFlags::HAS_LAYOUT) || self.layouts.holds_head(fid);
                let names: &[u8] = if has_layout { LAYOUT_ALONE } else { b"" };
                return Ok(names.to_vec());
            }
            match self.requests.call(caller, fid, &MdsRequest::ListXattr { fid }) {
                Ok(answer) => answer.bytes(),
                Err(failure) => self.nodes.removed_or(fid, failure).map(|_| Vec::new()),
            }
        })
    }
}

/// True for the names under which a file's layout is shown and changed.
pub(crate) fn is_layout(name: &[u8]) -> bool {
    name.starts_with(b"lustre.lov") || name == b"trusted.lov"
}
