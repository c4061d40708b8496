//! Extended attributes.

use nacre_client::XattrFlags;
use nacre_types::{Status, StatusResult};

use super::{Front, caller, gone};
use crate::reply::Reply;
use crate::request::Request;

/// SELinux's label. Where SELinux runs, the kernel answers for it without asking us. Where it does not, there is none, and
/// "not supported" lets `ls -l` ask once instead of once for each file; Lustre's clients answer the same.
const SELINUX: &[u8] = b"security.selinux";

impl Front {
    pub(super) fn getxattr(
        &self,
        request: &Request<'_>,
        name: &[u8],
        size: u32,
        reply: &mut Reply<'_>,
    ) -> StatusResult<()> {
        let fid = self.fid(request.node_id)?;
        check_name(name)?;
        answer(&self.client.inodes.getxattr(&caller(request), fid, name).map_err(gone)?, size, reply)
    }

    pub(super) fn listxattr(
        &self,
        request: &Request<'_>,
        size: u32,
        reply: &mut Reply<'_>,
    ) -> StatusResult<()> {
        let fid = self.fid(request.node_id)?;
        answer(&self.client.inodes.listxattr(&caller(request), fid).map_err(gone)?, size, reply)
    }

    pub(super) fn setxattr(
        &self,
        request: &Request<'_>,
        name: &[u8],
        value: &[u8],
        flags: u32,
        kill_sgid: bool,
        reply: &mut Reply<'_>,
    ) -> StatusResult<()> {
        let fid = self.fid(request.node_id)?;
        check_name(name)?;
        let mut wish = XattrFlags::empty();
        wish.set(XattrFlags::CREATE, flags & libc::XATTR_CREATE as u32 != 0);
        wish.set(XattrFlags::REPLACE, flags & libc::XATTR_REPLACE as u32 != 0);
        wish.set(XattrFlags::KILL_SGID, kill_sgid);
        if self.client.names.setxattr(&caller(request), fid, name, value, wish).map_err(gone)? {
            self.expire_names();
        }
        reply.ok();
        Ok(())
    }

    pub(super) fn removexattr(
        &self,
        request: &Request<'_>,
        name: &[u8],
        reply: &mut Reply<'_>,
    ) -> StatusResult<()> {
        let fid = self.fid(request.node_id)?;
        check_name(name)?;
        if self.client.names.removexattr(&caller(request), fid, name).map_err(gone)? {
            self.expire_names();
        }
        reply.ok();
        Ok(())
    }
}

fn check_name(name: &[u8]) -> StatusResult<()> {
    if name == SELINUX { Err(Status::EOPNOTSUPP) } else { Ok(()) }
}

fn answer(value: &[u8], size: u32, reply: &mut Reply<'_>) -> StatusResult<()> {
    match size {
        0 => reply.xattr_size(value.len() as u32),
        _ if value.len() > size as usize => return Err(Status::ERANGE),
        _ => reply.bytes(value),
    }
    Ok(())
}
