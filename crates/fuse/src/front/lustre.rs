//! Lustre's ioctls, for programs written for Lustre. Numbers and structures: `nacre_types::lustre`.
//!
//! Ioctls whose number encodes their size arrive with their data. The others pass pointers to further data,
//! which is read and written in the memory of the caller ([`memory`]).

mod directories;
pub(super) mod files;
mod layout;
mod memory;
mod names;
pub(super) mod quota;

use nacre_client::Client;
use nacre_types::ioctl::Payload;
use nacre_types::lustre::{self, ByValue, ObdIoctl, ObdStatfs};
use nacre_types::{SetAttr, SetAttrValid, Status, StatusResult, TargetId, TargetKind, Timestamp};

use super::ioctl::Asked;
use crate::reply::Reply;
use memory::Memory;

/// Features of the connection to the MDT, in Lustre's bits (`OBD_CONNECT_*`): grants, versions, ACLs,
/// attributes, FIDs, 64-bit hashes, large ACLs, checksums.
const CONNECT_FLAGS: u64 = 0x41_6000_03a8;
/// Target kinds in [`lustre::OBD_STATFS`].
const STATFS_MDT: u32 = 1;
const STATFS_OST: u32 = 2;
/// Bytes of `hsm_user_state` and `hsm_current_action`: all zero for a file without an archive copy.
const HSM_STATE_LEN: usize = 32;
const HSM_ACTION_LEN: usize = 24;

impl Asked<'_> {
    fn memory(&self) -> StatusResult<Memory> {
        Memory::of(self.caller, self.call)
    }

    /// Returns a number in the data of the request.
    fn number(&self, at: usize) -> StatusResult<u64> {
        let bytes = self.call.data.get(at..).and_then(|rest| rest.first_chunk());
        bytes.map(|bytes| u64::from_le_bytes(*bytes)).ok_or(Status::EINVAL)
    }

    fn obd(&self, memory: &Memory) -> StatusResult<ObdIoctl> {
        let address = memory.argument();
        let length = ObdIoctl::length(&memory.read_vec(address, 8)?).ok_or(Status::EINVAL)?;
        ObdIoctl::from_bytes(&memory.read_vec(address, length)?).ok_or(Status::EINVAL)
    }
}

/// Answers an ioctl of Lustre.
///
/// # Errors
/// `ENOTTY` for an ioctl that Lustre does not have either.
pub(super) fn answer(asked: &Asked<'_>, reply: &mut Reply<'_>) -> StatusResult<()> {
    let call = asked.call;
    let result = match call.cmd {
        lustre::LOV_SETSTRIPE | lustre::LOV_SETSTRIPE_NEW => layout::set_stripe(asked)?,
        lustre::LOV_GETSTRIPE | lustre::LOV_GETSTRIPE_NEW => layout::get_stripe(asked)?,
        lustre::MDC_GETFILESTRIPE
        | lustre::MDC_GETFILEINFO_V1
        | lustre::MDC_GETFILEINFO_V2
        | lustre::MDC_GETINFO_V1
        | lustre::MDC_GETINFO_V2 => layout::file_info(asked)?,
        lustre::MDC_LOOKUP => names::look_up_name(asked)?,
        lustre::FID2PATH => names::path_of_fid(asked)?,
        lustre::GETPARENT => return names::parent_of_inode(asked, reply),
        lustre::LMV_SETSTRIPE => directories::make_directory(asked)?,
        lustre::MIGRATE => directories::migrate(asked)?,
        lustre::LMV_GETSTRIPE => return directories::directory_layout(asked, reply),
        lustre::LMV_SET_DEFAULT_STRIPE => directories::set_directory_default(asked)?,
        lustre::UNLOCK_FOREIGN => names::unlock_foreign(asked)?,
        lustre::OBD_STATFS => obd_statfs(asked)?,
        lustre::GETOBDCOUNT => count_targets(asked)?,
        lustre::PATH2FID => {
            let memory = asked.memory()?;
            memory.write(memory.argument(), &asked.fid.to_le_bytes())?;
            0
        }
        lustre::DATA_VERSION => return files::data_version(asked, reply),
        lustre::SWAP_LAYOUTS => files::swap_layouts(asked)?,
        lustre::SET_LEASE => {
            let word = asked.number(0)?;
            files::set_lease(asked, u64::from(word as u32), (word >> 32) as u32)?
        }
        lustre::GET_LEASE => files::get_lease(asked)?,
        lustre::LADVISE => files::advise(asked)?,
        lustre::RMFID => files::remove_fids(asked)?,
        lustre::PROJECT => files::project(asked)?,
        lustre::QUOTACTL => return quota::quota(asked, reply),
        // The kernel refuses an argument that is no valid address; this one happens to be valid.
        lustre::GROUP_LOCK => files::group_lock(asked, call.arg)?,
        lustre::GROUP_UNLOCK => files::group_unlock(asked, call.arg)?,
        lustre::SETFLAGS | lustre::CLRFLAGS => files::change_flags(asked)?,
        lustre::FID2MDTIDX => mdt_of(asked)?,
        lustre::FUTIMES_3 => set_times(asked)?,
        ByValue::COMMAND => {
            let passed = ByValue::from_bytes(call.data).ok_or(Status::EINVAL)?;
            by_value(asked, passed)?
        }
        _ => return fixed_answer(asked, reply),
    };
    reply.ioctl(result, &[]);
    Ok(())
}

/// Answers ioctls whose answer fits the size in their number.
fn fixed_answer(asked: &Asked<'_>, reply: &mut Reply<'_>) -> StatusResult<()> {
    let fid = asked.fid;
    let bytes = match asked.call.cmd {
        lustre::GETVERSION => (fid.seq as u32).to_le_bytes().to_vec(),
        lustre::GETFLAGS => files::descriptor_flags(asked).to_le_bytes().to_vec(),
        lustre::GET_MDTIDX => u32::from(fid.mdt_index()).to_le_bytes().to_vec(),
        lustre::GET_CONNECT_FLAGS => CONNECT_FLAGS.to_le_bytes().to_vec(),
        lustre::HSM_STATE_GET => vec![0; HSM_STATE_LEN],
        lustre::HSM_ACTION => vec![0; HSM_ACTION_LEN],
        lustre::GETDTNAME => instance_name(asked.client, "clilov"),
        lustre::GETMDNAME => instance_name(asked.client, "clilmv"),
        lustre::GETUUID => {
            let mut bytes = asked.client.config.mount_info().instance.into_bytes();
            bytes.resize(lustre::OBD_UUID_LEN, 0);
            bytes
        }
        command if lustre::WITHOUT_COUNTERPART.contains(&command) => return Err(Status::EOPNOTSUPP),
        _ => return Err(Status::ENOTTY),
    };
    // No more bytes than needed: callers have a buffer for the name only, not for the size in the number.
    asked.answer_with_room(&bytes, reply);
    Ok(())
}

fn instance_name(client: &Client, side: &str) -> Vec<u8> {
    let info = client.config.mount_info();
    let mut name = format!("{}-{side}-{}", info.fsname, info.instance).into_bytes();
    name.truncate(lustre::OBD_UUID_LEN - 1);
    name.push(0);
    name
}

fn obd_statfs(asked: &Asked<'_>) -> StatusResult<i32> {
    let memory = asked.memory()?;
    let question = asked.obd(&memory)?;
    let (kind, index) = question.number(0).zip(question.number(1)).ok_or(Status::EINVAL)?;
    let [(space_at, space_len), (uuid_at, uuid_len)] = question.room;
    if (space_len as usize, uuid_len as usize) != (lustre::OBD_STATFS_LEN, lustre::OBD_UUID_LEN) {
        return Err(Status::EINVAL);
    }
    let index = u16::try_from(index).map_err(|_| Status::ENODEV)?;
    let (target, word) = match kind {
        kind if kind & STATFS_MDT != 0 => (TargetId::mdt(index), "MDT"),
        kind if kind & STATFS_OST != 0 => (TargetId::ost(index), "OST"),
        _ => return Err(Status::ENODEV),
    };
    let known = asked.client.requests.targets();
    let same_kind = |other: &&TargetId| other.kind == target.kind;
    if !known.contains(&target) {
        // Tools count up from 0: an error distinguishes a gap, which they skip, from the end.
        let behind = known.iter().filter(same_kind).all(|other| other.index < index);
        return Err(if behind { Status::ENODEV } else { Status::EAGAIN });
    }
    let mut uuid = format!("{}-{word}{index:04x}_UUID", asked.client.config.mount_info().fsname).into_bytes();
    uuid.resize(lustre::OBD_UUID_LEN, 0);
    memory.write(uuid_at, &uuid)?;
    let space = asked.client.requests.target_statfs(target)?;
    let space = ObdStatfs {
        block_size: space.block_size,
        blocks: [space.blocks, space.blocks_free, space.blocks_available],
        files: [space.files, space.files_free],
        state: space.state,
    };
    memory.write(space_at, &space.to_bytes())?;
    Ok(0)
}

fn count_targets(asked: &Asked<'_>) -> StatusResult<i32> {
    let memory = asked.memory()?;
    let asked_for = memory.read_vec(memory.argument(), 4)?;
    let kind = if asked_for == [0; 4] { TargetKind::Ost } else { TargetKind::Mdt };
    let count = asked.client.requests.targets().iter().filter(|target| target.kind == kind).count();
    memory.write(memory.argument(), &(count as u32).to_le_bytes())?;
    Ok(0)
}

fn mdt_of(asked: &Asked<'_>) -> StatusResult<i32> {
    let index = lustre::fid_in(asked.call.data, 0).ok_or(Status::EINVAL)?.mdt_index();
    match asked.client.requests.targets().contains(&TargetId::mdt(index)) {
        true => Ok(i32::from(index)),
        false => Err(Status::ENOENT),
    }
}

/// Sets access and modification time; the change time is that of the call, as always.
fn set_times(asked: &Asked<'_>) -> StatusResult<i32> {
    if !asked.client.inodes.getattr(asked.fid)?.is_regular() {
        return Err(Status::EINVAL);
    }
    let time = |at| {
        Ok(Timestamp::new(asked.number(at)? as i64, asked.number(at + 8)?.min(u64::from(u32::MAX)) as u32))
    };
    let valid = SetAttrValid::ATIME | SetAttrValid::MTIME;
    let set = SetAttr { valid, atime: time(0)?, mtime: time(16)?, ..SetAttr::default() };
    asked.client.names.setattr(asked.caller, asked.fid, set)?;
    Ok(0)
}

/// Answers an ioctl that the preload library forwards.
fn by_value(asked: &Asked<'_>, passed: ByValue) -> StatusResult<i32> {
    match passed.command {
        lustre::SET_LEASE_OLD => files::set_lease(asked, passed.value, 0),
        lustre::GROUP_LOCK => files::group_lock(asked, passed.value),
        lustre::GROUP_UNLOCK => files::group_unlock(asked, passed.value),
        // There are no security contexts to flush.
        lustre::FLUSHCTX => Ok(0),
        _ => Err(Status::EOPNOTSUPP),
    }
}
