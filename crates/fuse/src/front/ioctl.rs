//! Native ioctls, those of other file systems that have a sensible answer, and the way for `lfs` to call the former.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

use nacre_types::ioctl::{
    FidToPath, LIST_MAX, MountInfo, PATH_MAX, POOLS_MAX, PathToFid, Payload, PoolList, PoolMembers,
    TargetList, TargetStatfs,
};
use nacre_types::{SetAttr, SetAttrValid, Status, StatusResult};

use super::{Front, caller};
use crate::reply::Reply;
use crate::request::{Ioctl, Request};

/// Inode flags (`lsattr`): we have none. The kernel asks for 4 bytes whatever the number says.
const GET_FLAGS: u32 = 0x8008_6601;
const SET_FLAGS: u32 = 0x4008_6602;
/// Extended inode flags and the project: 28 bytes, flags at 0 and project at 12.
const GET_XATTR: u32 = 0x801c_581f;
const SET_XATTR: u32 = 0x401c_5820;
const XATTR_BYTES: usize = 28;
const XATTR_PROJECT: usize = 12;

/// Calls a native ioctl on an open file or directory of a mount; the answer takes the place of `payload`.
///
/// # Errors
/// `ENOTTY` if the file is on another file system; what the mount answers; `EBADMSG` for an answer that makes no sense.
pub fn call<T: Payload>(file: BorrowedFd<'_>, payload: &mut T) -> io::Result<()> {
    let mut bytes = payload.to_bytes();
    // SAFETY: the number encodes `T::SIZE`, the length of `bytes`, which is all that the kernel reads and writes.
    let result = unsafe { libc::ioctl(file.as_raw_fd(), T::COMMAND as libc::Ioctl, bytes.as_mut_ptr()) };
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    *payload = T::from_bytes(&bytes).ok_or_else(|| io::Error::from_raw_os_error(libc::EBADMSG))?;
    Ok(())
}

fn question<T: Payload>(call: &Ioctl<'_>) -> StatusResult<T> {
    T::from_bytes(call.data).ok_or(Status::EINVAL)
}

fn answer<T: Payload>(payload: &T, call: &Ioctl<'_>, reply: &mut Reply<'_>) -> StatusResult<()> {
    let bytes = payload.to_bytes();
    if bytes.len() > call.out_size as usize {
        return Err(Status::EINVAL);
    }
    reply.ioctl(0, &bytes);
    Ok(())
}

impl Front {
    pub(super) fn ioctl(
        &self,
        request: &Request<'_>,
        call: &Ioctl<'_>,
        reply: &mut Reply<'_>,
    ) -> StatusResult<()> {
        match call.cmd {
            MountInfo::COMMAND => {
                let info = self.client.mount_info();
                answer(&MountInfo { fsname: info.fsname, instance: info.instance }, call, reply)
            }
            PathToFid::COMMAND => answer(&PathToFid { fid: self.fid(request.node_id)? }, call, reply),
            FidToPath::COMMAND => {
                let mut ask: FidToPath = question(call)?;
                ask.path = self.client.fid_to_path(&caller(request), ask.fid, ask.link)?;
                if ask.path.len() > PATH_MAX {
                    return Err(Status::ENAMETOOLONG);
                }
                answer(&ask, call, reply)
            }
            TargetList::COMMAND => {
                let mut ask: TargetList = question(call)?;
                let targets = self.client.targets().into_iter();
                let wanted = targets.filter(|target| target.kind == ask.kind && target.index >= ask.from);
                ask.indexes = wanted.map(|target| target.index).take(LIST_MAX).collect();
                answer(&ask, call, reply)
            }
            TargetStatfs::COMMAND => {
                let mut ask: TargetStatfs = question(call)?;
                let space = self.client.target_statfs(ask.target)?;
                ask.block_size = space.block_size;
                ask.blocks = [space.blocks, space.blocks_free, space.blocks_available];
                ask.files = [space.files, space.files_free];
                ask.state = space.state;
                answer(&ask, call, reply)
            }
            PoolList::COMMAND => {
                let ask: PoolList = question(call)?;
                answer(&self.pool_list(ask), call, reply)
            }
            PoolMembers::COMMAND => {
                let ask: PoolMembers = question(call)?;
                answer(&self.pool_members(ask)?, call, reply)
            }
            _ => self.foreign_ioctl(request, call, reply),
        }
    }

    fn pool_list(&self, mut ask: PoolList) -> PoolList {
        let pools = self.client.pools();
        let names = pools.iter().skip(ask.from as usize).take(POOLS_MAX);
        ask.names = names.map(|pool| pool.name.to_string()).collect();
        ask
    }

    fn pool_members(&self, mut ask: PoolMembers) -> StatusResult<PoolMembers> {
        let pools = self.client.pools();
        let pool = pools.iter().find(|pool| pool.name.as_str() == ask.pool).ok_or(Status::ENOENT)?;
        ask.indexes = pool.osts.iter().skip(ask.from as usize).take(LIST_MAX).copied().collect();
        Ok(ask)
    }

    fn foreign_ioctl(
        &self,
        request: &Request<'_>,
        call: &Ioctl<'_>,
        reply: &mut Reply<'_>,
    ) -> StatusResult<()> {
        match call.cmd {
            GET_FLAGS => reply.ioctl(0, &[0; 8][..(call.out_size as usize).min(8)]),
            SET_FLAGS if call.data.iter().all(|&byte| byte == 0) => reply.ioctl(0, &[]),
            SET_FLAGS => return Err(Status::EOPNOTSUPP),
            GET_XATTR => {
                let mut bytes = [0; XATTR_BYTES];
                let project = self.client.getattr(self.fid(request.node_id)?)?.projid;
                bytes[XATTR_PROJECT..XATTR_PROJECT + 4].copy_from_slice(&project.to_le_bytes());
                reply.ioctl(0, &bytes[..(call.out_size as usize).min(XATTR_BYTES)]);
            }
            SET_XATTR => {
                let bytes: &[u8; XATTR_BYTES] = call.data.first_chunk().ok_or(Status::EINVAL)?;
                let [f0, f1, f2, f3, ..] = *bytes;
                if [f0, f1, f2, f3] != [0; 4] {
                    return Err(Status::EOPNOTSUPP);
                }
                let mut project = [0; 4];
                project.copy_from_slice(&bytes[XATTR_PROJECT..XATTR_PROJECT + 4]);
                let projid = u32::from_le_bytes(project);
                let set = SetAttr { valid: SetAttrValid::PROJID, projid, ..SetAttr::default() };
                self.client.setattr(&caller(request), self.fid(request.node_id)?, set)?;
                reply.ioctl(0, &[]);
            }
            _ => return Err(Status::ENOTTY),
        }
        Ok(())
    }
}
