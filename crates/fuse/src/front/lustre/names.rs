//! Names of inodes and inodes of names.

use nacre_client::{Created, NewFile, XattrFlags};
use nacre_types::attr::{FileKind, S_ISVTX};
use nacre_types::lustre::{self, fid_in, name_in};
use nacre_types::{Status, StatusResult, TargetId, TargetKind};

use super::Asked;
use crate::front::{Front, caller};
use crate::reply::Reply;

/// `getinfo_fid2path`: FID, record, number of the link, room for the path; the path follows.
const FID2PATH_HEADER: usize = 32;
const FID2PATH_LINK: usize = 24;
const FID2PATH_ROOM: usize = 28;
/// Longest path with its NUL.
const PATH_ROOM_MAX: usize = 4096;
/// `getparent`: FID, number of the link, room for the name; the name follows.
const PARENT_HEADER: usize = 24;
const PARENT_LINK: usize = 16;
/// `lmv_user_md` and its fields.
const LMV_MAGIC: u32 = 0x0CD3_0CD0;
const LMV_MAGIC_SPECIFIC: u32 = 0x0CD4_0CD0;
const LMV_FIRST_MDT: usize = 8;
/// The layout of a directory as attribute.
const LMV: &[u8] = b"lustre.lmv";
/// Where a program says for how many parts of a directory it has room, and how long each is.
const LMV_COUNT: usize = 4;
const LMV_PART: usize = 24;
/// "Any MDT".
const MDT_ANY: u32 = u32::MAX;

fn u32_at(bytes: &[u8], at: usize) -> StatusResult<u32> {
    let bytes = bytes.get(at..).and_then(|rest| rest.first_chunk());
    bytes.map(|bytes| u32::from_le_bytes(*bytes)).ok_or(Status::EINVAL)
}

impl Front {
    /// Fails if the name does not exist.
    pub(super) fn look_up_name(&self, asked: &Asked<'_>) -> StatusResult<i32> {
        let question = asked.obd(&asked.memory()?)?;
        let name = question.name().ok_or(Status::EINVAL)?;
        self.attr_of_name(asked.request, asked.fid, name).map(|_| 0)
    }

    /// The path through one of the links; the number of the link is counted on if there is another.
    pub(super) fn path_of_fid(&self, asked: &Asked<'_>) -> StatusResult<i32> {
        let memory = asked.memory()?;
        let address = memory.argument();
        let mut header = memory.read_vec(address, FID2PATH_HEADER)?;
        let fid = fid_in(&header, 0).ok_or(Status::EINVAL)?;
        let (link, room) = (u32_at(&header, FID2PATH_LINK)?, u32_at(&header, FID2PATH_ROOM)? as usize);
        if room > PATH_ROOM_MAX {
            return Err(Status::ENAMETOOLONG);
        }
        let mut path = self.client.fid_to_path(&caller(asked.request), fid, link)?;
        path.push(0);
        if path.len() > room {
            return Err(Status::EOVERFLOW);
        }
        let links = self.client.getattr(fid).map_or(1, |attr| if attr.is_dir() { 1 } else { attr.nlink });
        let next = if link + 1 < links { link + 1 } else { link };
        header[FID2PATH_LINK..FID2PATH_ROOM].copy_from_slice(&next.to_le_bytes());
        memory.write(address, &[header, path].concat())?;
        Ok(0)
    }

    /// The directory of one of the links, and the name there if there is room for it.
    pub(super) fn parent_of_inode(&self, asked: &Asked<'_>, reply: &mut Reply<'_>) -> StatusResult<()> {
        let mut header = asked.call.data.get(..PARENT_HEADER).ok_or(Status::EINVAL)?.to_vec();
        let (link, room) = (u32_at(&header, PARENT_LINK)?, u32_at(&header, PARENT_LINK + 4)? as usize);
        let (parent, mut name) = self.client.parent_of(&caller(asked.request), asked.fid, link)?;
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

    /// The layout of a foreign directory. No other is spread over MDTs, and none has a default for that.
    pub(super) fn directory_layout(&self, asked: &Asked<'_>) -> StatusResult<i32> {
        let layout = self.client.getxattr(&caller(asked.request), asked.fid, LMV)?;
        let room = u32_at(asked.call.data, LMV_COUNT)? as usize;
        let memory = asked.memory()?;
        // Lustre counts the text in units of what is told of an MDT's part.
        let parts = layout.len().div_ceil(LMV_PART);
        if room < parts {
            let at = memory.argument().checked_add(LMV_COUNT as u64).ok_or(Status::EFAULT)?;
            memory.write(at, &(parts as u32).to_le_bytes())?;
            return Err(Status::E2BIG);
        }
        memory.write(memory.argument(), &layout)?;
        Ok(0)
    }

    /// Whether this may be removed as a foreign file or directory: it is one.
    pub(super) fn unlock_foreign(&self, asked: &Asked<'_>) -> StatusResult<i32> {
        let is_dir = self.client.getattr(asked.fid)?.is_dir();
        let (name, magic) = match is_dir {
            true => (LMV, lustre::LMV_MAGIC_FOREIGN),
            false => (b"lustre.lov".as_slice(), super::layout::MAGIC_FOREIGN),
        };
        match self.client.getxattr(&caller(asked.request), asked.fid, name) {
            Ok(layout) if u32_at(&layout, 0) == Ok(magic) => Ok(0),
            Ok(_) | Err(Status::ENODATA) => Err(Status::EOPNOTSUPP),
            Err(status) => Err(status),
        }
    }

    /// Makes a directory for which the caller has wishes about MDTs: there is one.
    pub(super) fn make_directory(&self, asked: &Asked<'_>) -> StatusResult<i32> {
        let memory = asked.memory()?;
        let question = asked.obd(&memory)?;
        let name = name_in(&question.inline[0]).ok_or(Status::EINVAL)?;
        let wish = &question.inline[1];
        let is_foreign = match u32_at(wish, 0)? {
            lustre::LMV_MAGIC_FOREIGN => true,
            LMV_MAGIC | LMV_MAGIC_SPECIFIC => false,
            _ => return Err(Status::EINVAL),
        };
        let mdt = match u32_at(wish, LMV_FIRST_MDT)? {
            _ if is_foreign => asked.fid.mdt_index(),
            MDT_ANY => asked.fid.mdt_index(),
            first => u16::try_from(first).map_err(|_| Status::EINVAL)?,
        };
        // With one MDT there is nothing to spread over.
        let is_mdt = |target: &&TargetId| target.kind == TargetKind::Mdt;
        let is_spread = !is_foreign && !matches!(u32_at(wish, LMV_COUNT)?, 0 | 1);
        if is_spread && self.client.targets().iter().filter(is_mdt).count() > 1 {
            return Err(Status::EOPNOTSUPP);
        }
        let mode = FileKind::Directory.mode_bits() | question.kind & (0o777 | S_ISVTX);
        let what = Created { new: NewFile::Directory, mode, umask: memory.umask() };
        let caller = caller(asked.request);
        let made = self.client.create_on(&caller, (asked.fid, name), &what, Some(mdt))?;
        self.client.forget(made.node, 1);
        if is_foreign
            && let Err(status) = self.client.setxattr(&caller, made.attr.fid, LMV, wish, XattrFlags::CREATE)
        {
            // Nobody is to find a plain directory in its place.
            if let Err(status) = self.client.unlink(&caller, asked.fid, name, true) {
                log::warn!("a directory that was to be foreign stays as a plain one: {status}");
            }
            return Err(status);
        }
        // The kernel may know that the name does not exist.
        self.expire_names();
        Ok(0)
    }
}
