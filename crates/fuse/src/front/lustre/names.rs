//! Names of inodes and inodes of names.

use nacre_types::lustre::{self, fid_in};
use nacre_types::{Status, StatusResult};

use super::layout::{MAGIC_FOREIGN, attr_of_name};
use crate::front::ioctl::{Asked, u32_at};
use crate::reply::Reply;

/// `getinfo_fid2path`: FID, record, number of the link, size of the path buffer; the path follows.
const FID2PATH_HEADER: usize = 32;
const FID2PATH_LINK: usize = 24;
const FID2PATH_ROOM: usize = 28;
/// Longest path with its NUL, in bytes.
const PATH_ROOM_MAX: usize = 4096;
/// `getparent`: FID, number of the link, size of the name buffer; the name follows.
const PARENT_HEADER: usize = 24;
const PARENT_LINK: usize = 16;
/// The layout of a directory as an attribute.
const LMV: &[u8] = b"lustre.lmv";

/// Fails if the name does not exist.
pub(super) fn look_up_name(asked: &Asked<'_>) -> StatusResult<i32> {
    let question = asked.obd(&asked.memory()?)?;
    let name = question.name().ok_or(Status::EINVAL)?;
    attr_of_name(asked, name).map(|_| 0)
}

/// Returns the path through one of the links; increments the number of the link if there is another.
pub(super) fn path_of_fid(asked: &Asked<'_>) -> StatusResult<i32> {
    let memory = asked.memory()?;
    let address = memory.argument();
    let mut header = memory.read_vec(address, FID2PATH_HEADER)?;
    let fid = fid_in(&header, 0).ok_or(Status::EINVAL)?;
    let (link, room) = (u32_at(&header, FID2PATH_LINK)?, u32_at(&header, FID2PATH_ROOM)? as usize);
    if room > PATH_ROOM_MAX {
        return Err(Status::ENAMETOOLONG);
    }
    let links = asked.client.inodes.getattr(fid).map_or(1, |attr| if attr.is_dir() { 1 } else { attr.nlink });
    // After the last link, Lustre shows the first one again; programs detect the end by the unchanged number.
    let shown = if link < links { link } else { 0 };
    let mut path = asked
        .names
        .path_of(asked.caller, fid, shown)
        .map_err(|status| if status == Status::EXDEV { Status::ENOENT } else { status })?;
    path.push(0);
    if path.len() > room {
        return Err(Status::EOVERFLOW);
    }
    let next = if link + 1 < links { link + 1 } else { link };
    header[FID2PATH_LINK..FID2PATH_ROOM].copy_from_slice(&next.to_le_bytes());
    memory.write(address, &[header, path].concat())?;
    Ok(0)
}

/// Returns the directory of one of the links, and the name in it if the caller passes a buffer.
pub(super) fn parent_of_inode(asked: &Asked<'_>, reply: &mut Reply<'_>) -> StatusResult<()> {
    let mut header = asked.call.data.get(..PARENT_HEADER).ok_or(Status::EINVAL)?.to_vec();
    let (link, room) = (u32_at(&header, PARENT_LINK)?, u32_at(&header, PARENT_LINK + 4)? as usize);
    let (parent, mut name) = asked.client.inodes.parent_of(asked.caller, asked.fid, link)?;
    header[..16].copy_from_slice(&parent.to_le_bytes());
    name.push(0);
    if room > 0 {
        if name.len() > room {
            return Err(Status::EOVERFLOW);
        }
        let memory = asked.memory()?;
        let behind = memory.argument().checked_add(PARENT_HEADER as u64).ok_or(Status::EFAULT)?;
        memory.write(behind, &name)?;
    }
    reply.ioctl(0, &header);
    Ok(())
}

/// Allows the removal of a foreign file or directory; fails for all others.
pub(super) fn unlock_foreign(asked: &Asked<'_>) -> StatusResult<i32> {
    let is_dir = asked.client.inodes.getattr(asked.fid)?.is_dir();
    let (name, magic) = match is_dir {
        true => (LMV, lustre::LMV_MAGIC_FOREIGN),
        false => (b"lustre.lov".as_slice(), MAGIC_FOREIGN),
    };
    match asked.client.inodes.getxattr(asked.caller, asked.fid, name) {
        Ok(layout) if u32_at(&layout, 0) == Ok(magic) => Ok(0),
        Ok(_) | Err(Status::ENODATA) => Err(Status::EOPNOTSUPP),
        Err(status) => Err(status),
    }
}
