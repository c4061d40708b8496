//! Extended attributes.

use nacre_client::XattrFlags;
use nacre_types::{Status, StatusResult};

use super::{Front, caller, gone};
use crate::reply::Reply;
use crate::request::{Operation, Request};

/// SELinux's label. Where SELinux runs, the kernel answers for it without asking us. Where it does not, there is none, and
/// "not supported" lets `ls -l` ask once instead of once for each file; Lustre's clients answer the same.
const SELINUX: &[u8] = b"security.selinux";

impl Front {
    pub(super) fn xattr_operation(&self, request: &Request<'_>, reply: &mut Reply<'_>) -> StatusResult<()> {
        let (fid, caller) = (self.fid(request.node_id)?, caller(request));
        match request.op {
            Operation::GetXattr { name: SELINUX, .. }
            | Operation::SetXattr { name: SELINUX, .. }
            | Operation::RemoveXattr { name: SELINUX } => Err(Status::EOPNOTSUPP),
            Operation::GetXattr { name, size } => {
                answer(&self.client.inodes.getxattr(&caller, fid, name).map_err(gone)?, size, reply)
            }
            Operation::ListXattr { size } => {
                answer(&self.client.inodes.listxattr(&caller, fid).map_err(gone)?, size, reply)
            }
            Operation::SetXattr { name, value, flags, kill_sgid } => {
                let mut wish = XattrFlags::empty();
                wish.set(XattrFlags::CREATE, flags & libc::XATTR_CREATE as u32 != 0);
                wish.set(XattrFlags::REPLACE, flags & libc::XATTR_REPLACE as u32 != 0);
                wish.set(XattrFlags::KILL_SGID, kill_sgid);
                if self.client.names.setxattr(&caller, fid, name, value, wish).map_err(gone)? {
                    self.expire_names();
                }
                reply.ok();
                Ok(())
            }
            Operation::RemoveXattr { name } => {
                if self.client.names.removexattr(&caller, fid, name).map_err(gone)? {
                    self.expire_names();
                }
                reply.ok();
                Ok(())
            }
            _ => Err(Status::ENOSYS),
        }
    }
}

fn answer(value: &[u8], size: u32, reply: &mut Reply<'_>) -> StatusResult<()> {
    match size {
        0 => reply.xattr_size(value.len() as u32),
        _ if value.len() > size as usize => return Err(Status::ERANGE),
        _ => reply.bytes(value),
    }
    Ok(())
}
