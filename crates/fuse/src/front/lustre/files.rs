//! Ioctls on the data of an open file: versions, layout swaps, leases, advice; and removal by FID, and
//! projects.

use nacre_client::node::fid_of;
use nacre_client::{Advice, Client, LeaseKind, LockedAhead};
use nacre_types::lustre::{
    self, DataVersionCall, LADVISE_ASYNC, LADVISE_BYTES, LADVISE_HEADER, LADVISE_RESULT, LADVISE_UNSET,
    Ladvise, LadviseHeader, ProjectCall, SwapCall, fid_in,
};
use nacre_types::{Fid, SetAttr, SetAttrValid, Status, StatusResult};

use super::layout;
use super::memory::OpenFile;
use crate::front::ioctl::{
    Asked, XFLAG_PROJECT_INHERIT, flush_of, inherit_flag, inherit_of, set_project, swap_conditions,
};
use crate::reply::Reply;

/// Flags of [`lustre::DATA_VERSION`].
const VERSION_AFTER_WRITES: u32 = 1;
const VERSION_ALONE: u32 = 2;
/// Modes of leases.
const LEASE_READ: u64 = 1;
const LEASE_WRITE: u64 = 2;
const LEASE_GIVE_UP: u64 = 4;
/// Advice numbers; those from 3 on concern locks and read-ahead of the mount.
const WILL_READ: u16 = 1;
const DONT_NEED: u16 = 2;
const LOCK_NO_EXPAND: u16 = 3;
const LOCK_AHEAD: u16 = 4;
const ADVICE_LAST: u16 = 5;
/// Modes of locks that are requested ahead.
const MODE_READ: u16 = 1;
const MODE_WRITE: u16 = 2;
/// Bytes of a FID, and the offset in it where an error is returned.
const FID_BYTES: usize = 16;
const FID_ERROR: usize = 12;

/// Returns a lease in the form for programs.
fn number_of(kind: LeaseKind) -> i32 {
    match kind {
        LeaseKind::None => 0,
        LeaseKind::Read => LEASE_READ as i32,
        LeaseKind::Write | LeaseKind::Frozen => LEASE_WRITE as i32,
    }
}

/// Returns the data version of the open file. The flags are an input, although the number does not say so.
pub(super) fn data_version(asked: &Asked<'_>, reply: &mut Reply<'_>) -> StatusResult<()> {
    let memory = asked.memory()?;
    let bytes = memory.read_vec(memory.argument(), DataVersionCall::SIZE)?;
    let mut call = DataVersionCall::from_bytes(&bytes).ok_or(Status::EINVAL)?;
    call.flags &= VERSION_AFTER_WRITES | VERSION_ALONE;
    if !asked.client.inodes.getattr(asked.fid)?.is_regular() {
        return Err(Status::ENOTTY);
    }
    call.version = asked.client.data.data_version(asked.call.fh, flush_of(call.flags))?;
    reply.ioctl(0, &call.to_bytes());
    Ok(())
}

/// Swaps the layouts of the open file and of another file that the caller has open. Both must be open for
/// writing.
pub(super) fn swap_layouts(asked: &Asked<'_>) -> StatusResult<i32> {
    let call = SwapCall::from_bytes(asked.call.data).ok_or(Status::EINVAL)?;
    if call.flags & !SwapCall::KNOWN != 0 {
        return Err(Status::EINVAL);
    }
    // Lustre takes the group lock for the swap, and a descriptor is in one group at a time.
    if call.gid != 0 && asked.client.locks.group_of(asked.call.fh)? != 0 {
        return Err(Status::EINVAL);
    }
    let closes = call.flags & SwapCall::CLOSE != 0;
    if closes && !asked.client.opens.has_lease(asked.call.fh)? {
        return Err(Status::ENOLCK);
    }
    let memory = asked.memory()?;
    let own = memory.own_file()?;
    let other = memory.file(call.fd)?;
    if !own.is_writable || !other.is_writable {
        return Err(Status::EPERM);
    }
    let other = fid_of_file(asked.client, &own, &other)?;
    if other == asked.fid {
        return Ok(0);
    }
    let conditions = swap_conditions(call.flags, call.versions, closes.then_some(asked.call.fh));
    asked.client.data.swap_layouts(asked.caller, asked.fid, other, &conditions)?;
    if closes {
        // The swap was conditional on the lease; a break after it needs no report.
        asked.client.opens.end_lease(asked.caller, asked.call.fh).map(drop)?;
    }
    Ok(0)
}

/// Returns the FID of another file that the caller has open on this file system.
fn fid_of_file(client: &Client, own: &OpenFile, other: &OpenFile) -> StatusResult<Fid> {
    if own.device != other.device {
        return Err(if other.is_ours { Status::EXDEV } else { Status::EINVAL });
    }
    let fid = fid_of(other.inode).ok_or(Status::ESTALE)?;
    if client.inodes.getattr(fid)?.is_regular() { Ok(fid) } else { Err(Status::EINVAL) }
}

/// Takes a lease, or releases it and returns its kind: 0 if it was broken.
pub(super) fn set_lease(asked: &Asked<'_>, mode: u64, flags: u32) -> StatusResult<i32> {
    // The flags request changes of mirrors, which do not exist here.
    if flags != 0 {
        return Err(Status::EOPNOTSUPP);
    }
    let wanted = match mode {
        LEASE_READ => Some(LeaseKind::Read),
        LEASE_WRITE => Some(LeaseKind::Write),
        LEASE_GIVE_UP => None,
        _ => return Err(Status::EINVAL),
    };
    if !asked.client.inodes.getattr(asked.fid)?.is_regular() {
        return Err(Status::ENOTTY);
    }
    let (caller, fh) = (asked.caller, asked.call.fh);
    match wanted {
        Some(kind) => asked.client.opens.take_lease(caller, fh, kind, asked.closes_are_told).map(|()| 0),
        None => asked.client.opens.end_lease(caller, fh).map(number_of),
    }
}

/// Returns the lease of the open file.
pub(super) fn get_lease(asked: &Asked<'_>) -> StatusResult<i32> {
    if !asked.client.inodes.getattr(asked.fid)?.is_regular() {
        return Err(Status::ENOTTY);
    }
    asked.client.opens.open_lease(asked.caller, asked.call.fh, None).map(number_of)
}

/// Adds the open file to a group. Does not wait with `O_NONBLOCK`, as far as that flag is visible.
pub(super) fn group_lock(asked: &Asked<'_>, gid: u64) -> StatusResult<i32> {
    if !asked.client.inodes.getattr(asked.fid)?.is_regular() {
        return Err(Status::ENOTTY);
    }
    let own = asked.memory().and_then(|memory| memory.own_file());
    let no_wait = own.is_ok_and(|file| file.is_nonblocking);
    asked.client.locks.join_group(asked.call.fh, gid, no_wait).map(|()| 0)
}

/// Removes the open file from its group.
pub(super) fn group_unlock(asked: &Asked<'_>, gid: u64) -> StatusResult<i32> {
    if !asked.client.inodes.getattr(asked.fid)?.is_regular() {
        return Err(Status::ENOTTY);
    }
    asked.client.locks.leave_group(asked.call.fh, gid).map(|()| 0)
}

/// Returns the flags of the descriptor.
pub(super) fn descriptor_flags(asked: &Asked<'_>) -> u32 {
    // Directories belong to no group.
    let is_member = asked.client.locks.group_of(asked.call.fh).is_ok_and(|gid| gid != 0);
    lustre::FLAG_GROUP_LOCKED * u32::from(is_member)
}

/// Applies a program's advice on ranges of the open file: all of it, or up to the first error.
pub(super) fn advise(asked: &Asked<'_>) -> StatusResult<i32> {
    let memory = asked.memory()?;
    let bytes = memory.read_vec(memory.argument(), LADVISE_HEADER)?;
    let header = LadviseHeader::from_bytes(&bytes).ok_or(Status::EINVAL)?;
    let start = memory.argument().checked_add(LADVISE_HEADER as u64).ok_or(Status::EFAULT)?;
    let bytes = memory.read_vec(start, LADVISE_BYTES * header.count as usize)?;
    for (place, one) in bytes.chunks_exact(LADVISE_BYTES).enumerate() {
        let one = Ladvise::from_bytes(one).ok_or(Status::EINVAL)?;
        if header.flags & !LADVISE_ASYNC != 0 {
            return Err(Status::EINVAL);
        }
        let result = advise_one(asked, &one)?;
        if one.advice == LOCK_AHEAD {
            let at = start + (place * LADVISE_BYTES + LADVISE_RESULT) as u64;
            memory.write(at, &result.to_le_bytes())?;
        }
    }
    Ok(0)
}

/// Applies one piece of advice; returns the result of a lock request.
pub(in crate::front) fn advise_one(asked: &Asked<'_>, one: &Ladvise) -> StatusResult<u32> {
    let known = if one.advice == LOCK_NO_EXPAND { LADVISE_ASYNC | LADVISE_UNSET } else { LADVISE_ASYNC };
    if u64::from(one.flags) & !known != 0 {
        return Err(Status::EINVAL);
    }
    let no_wait = u64::from(one.flags) & LADVISE_ASYNC != 0;
    let advice = match (one.advice, one.mode) {
        (WILL_READ, _) => Advice::WillRead,
        (DONT_NEED, _) => Advice::DontNeed,
        (LOCK_NO_EXPAND, _) => {
            let expand = u64::from(one.flags) & LADVISE_UNSET != 0;
            return asked.client.data.expand_locks(asked.call.fh, expand).map(|()| 0);
        }
        (LOCK_AHEAD, MODE_READ | MODE_WRITE) => {
            let write = one.mode == MODE_WRITE;
            let found = asked.client.data.lock_ahead(asked.call.fh, (one.start, one.end), write, no_wait)?;
            // A caller that waited has the lock, whatever existed before.
            return Ok(match found {
                LockedAhead::Different if no_wait => 1,
                LockedAhead::Same if no_wait => 2,
                _ => 0,
            });
        }
        (LOCK_AHEAD, _) => return Err(Status::EINVAL),
        (number, _) if number == 0 || number > ADVICE_LAST => return Err(Status::EINVAL),
        _ => return Err(Status::EOPNOTSUPP),
    };
    asked.client.data.advise(asked.fid, advice, one.start, one.end).map(|()| 0)
}

/// Removes files by FID. The result of each replaces the version in its FID.
pub(super) fn remove_fids(asked: &Asked<'_>) -> StatusResult<i32> {
    let memory = asked.memory()?;
    let start = memory.argument();
    let header = memory.read_vec(start, lustre::FID_ARRAY_HEADER)?;
    let count = lustre::fid_array_count(&header).ok_or(Status::EINVAL)?;
    if count > lustre::FID_ARRAY_MAX {
        return Err(Status::E2BIG);
    }
    let start = start.checked_add(lustre::FID_ARRAY_HEADER as u64).ok_or(Status::EFAULT)?;
    let mut bytes = memory.read_vec(start, FID_BYTES * count as usize)?;
    let caller = asked.caller;
    for one in bytes.chunks_exact_mut(FID_BYTES) {
        let fid = fid_in(one, 0).ok_or(Status::EINVAL)?;
        let error = match asked.client.names.remove_fid(caller, fid) {
            Ok(()) => 0,
            // A user who may not find files by FID gets no information about them.
            Err(Status::EPERM) if !caller.may_search_all() => return Err(Status::EPERM),
            Err(status) => -status.errno(),
        };
        one[FID_ERROR..].copy_from_slice(&error.to_le_bytes());
    }
    asked.names.expire();
    memory.write(start, &bytes)?;
    Ok(0)
}

/// Sets or shows the project of a name in the directory, or of the open inode itself. The name also reaches
/// inodes whose open would have side effects.
pub(super) fn project(asked: &Asked<'_>) -> StatusResult<i32> {
    let call = ProjectCall::from_bytes(asked.call.data).ok_or(Status::EINVAL)?;
    let call = project_call(asked, call)?;
    if call.kind == ProjectCall::GET {
        let memory = asked.memory()?;
        memory.write(memory.argument(), &call.to_bytes()[..ProjectCall::HEADER])?;
    }
    Ok(0)
}

/// Does the same for the native call.
pub(in crate::front) fn project_call(asked: &Asked<'_>, mut call: ProjectCall) -> StatusResult<ProjectCall> {
    let attr = match call.name.as_slice() {
        b"" => asked.client.inodes.getattr(asked.fid)?,
        name => layout::attr_of_name(asked, name)?,
    };
    match call.kind {
        ProjectCall::SET => {
            let valid = inherit_of(call.xflags, XFLAG_PROJECT_INHERIT)? | SetAttrValid::PROJID;
            let set = SetAttr { valid, projid: call.id, ..SetAttr::default() };
            set_project(asked, attr.fid, set)?;
        }
        ProjectCall::GET => {
            (call.id, call.xflags) = (attr.projid, inherit_flag(&attr, XFLAG_PROJECT_INHERIT));
        }
        _ => return Err(Status::EINVAL),
    }
    Ok(call)
}

/// Changes flags of the descriptor. None can be set: the flag of a group lock belongs to the lock, and
/// neither locks nor direct I/O can be disabled.
pub(super) fn change_flags(asked: &Asked<'_>) -> StatusResult<i32> {
    let flags = asked.number(0)? as u32;
    match flags {
        flags if flags & lustre::FLAG_GROUP_LOCKED != 0 => Err(Status::EINVAL),
        0 => Ok(0),
        _ if asked.call.cmd == lustre::CLRFLAGS => Ok(0),
        _ => Err(Status::EOPNOTSUPP),
    }
}
