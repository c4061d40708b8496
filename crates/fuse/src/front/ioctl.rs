//! Native ioctls, ioctls of other file systems that have a sensible answer (for Lustre's see
//! [`super::lustre`]), and the call of native ioctls for `lfs`.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

use nacre_client::{
    Caller, Client, Created, InodeKind, LeaseKind, NewFile, SeekKind, SwapConditions, VersionFlush,
};
use nacre_layout::{DirDefault, DirFlags, DirHash, Inherit};
use nacre_types::ioctl::{
    Advise, DirUse, FILES_MAX, FidToPath, FileCall, FileOperation, FilesOn, FilesWanted, LIST_MAX,
    MakeDirectory, MigrateFiles, MountInfo, PATH_MAX, POOLS_MAX, PathToFid, Payload, PoolList, PoolMembers,
    RemoveFid, SCAN_BYTES_MAX, ScanDirectory, SizeOnMdt, TargetList, TargetStatfs,
};
use nacre_types::lustre::{Ladvise, ProjectCall, QuotaCall, SwapCall};
use nacre_types::{Attr, AttrFlags, Fid, FileKind, SetAttr, SetAttrValid, Status, StatusResult, TargetKind};

use super::lustre::{self, files, quota};
use super::names::Names;
use crate::reply::Reply;
use crate::request::Ioctl;

/// Inode flags (`lsattr`), of which one is supported. The kernel asks for 4 bytes whatever the number says.
const GET_FLAGS: u32 = 0x8008_6601;
const SET_FLAGS: u32 = 0x4008_6602;
/// Extended inode flags and the project: 28 bytes, flags at 0 and project at 12.
const GET_XATTR: u32 = 0x801c_581f;
const SET_XATTR: u32 = 0x401c_5820;
const XATTR_BYTES: usize = 28;
const XATTR_PROJECT: usize = 12;
/// Permission bits.
const MODE_BITS: u32 = 0o7777;
/// New inodes in a directory inherit its project: as inode flag (`FS_PROJINHERIT_FL`) and as extended flag
/// (`FS_XFLAG_PROJINHERIT`).
const FLAG_PROJECT_INHERIT: u32 = 0x2000_0000;
pub(super) const XFLAG_PROJECT_INHERIT: u32 = 0x200;

/// Calls a native ioctl on an open file or directory of a mount; the answer replaces `payload`.
///
/// # Errors
/// `ENOTTY` if the file is on another file system; the mount's error; `EBADMSG` for an answer that cannot be
/// decoded.
pub fn call<T: Payload>(file: BorrowedFd<'_>, payload: &mut T) -> io::Result<()> {
    let mut bytes = payload.to_bytes();
    // SAFETY: the number encodes `T::SIZE`, the length of `bytes`, which is all that the kernel reads and
    // writes.
    let result = unsafe { libc::ioctl(file.as_raw_fd(), T::COMMAND as libc::Ioctl, bytes.as_mut_ptr()) };
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    *payload = T::from_bytes(&bytes).ok_or_else(|| io::Error::from(rustix::io::Errno::BADMSG))?;
    Ok(())
}

/// An ioctl with the context for its answer.
pub(super) struct Asked<'a> {
    pub(super) client: &'a Client,
    pub(super) names: &'a Names,
    pub(super) caller: &'a Caller,
    pub(super) call: &'a Ioctl<'a>,
    /// Inode of the open file.
    pub(super) fid: Fid,
    /// Every close of a descriptor causes a request.
    pub(super) closes_are_told: bool,
}

impl Asked<'_> {
    fn question<T: Payload>(&self) -> StatusResult<T> {
        T::from_bytes(self.call.data).ok_or(Status::EINVAL)
    }

    /// Answers with as much of `bytes` as fits the caller's buffer.
    pub(super) fn answer_with_room(&self, bytes: &[u8], reply: &mut Reply<'_>) {
        reply.ioctl(0, &bytes[..bytes.len().min(self.call.out_size as usize)]);
    }

    /// Answers with all of `bytes`.
    fn answer(&self, bytes: &[u8], reply: &mut Reply<'_>) -> StatusResult<()> {
        if bytes.len() > self.call.out_size as usize {
            return Err(Status::EINVAL);
        }
        reply.ioctl(0, bytes);
        Ok(())
    }
}

pub(super) fn u32_at(data: &[u8], at: usize) -> StatusResult<u32> {
    let bytes = data.get(at..).and_then(|rest| rest.first_chunk()).ok_or(Status::EINVAL)?;
    Ok(u32::from_le_bytes(*bytes))
}

/// Returns the inheritance of a project from flags that may contain only `known`.
pub(super) fn inherit_of(flags: u32, known: u32) -> StatusResult<SetAttrValid> {
    match flags {
        0 => Ok(SetAttrValid::NO_PROJECT_INHERIT),
        flags if flags == known => Ok(SetAttrValid::PROJECT_INHERIT),
        _ => Err(Status::EOPNOTSUPP),
    }
}

/// Returns the requested layout of a new directory.
fn request_of(ask: &MakeDirectory) -> Option<DirDefault> {
    let flags = DirFlags::from_bits(ask.hash & !0xffff)?;
    let hash = match ask.hash as u16 {
        0 => None,
        number => Some(DirHash::from_number(number)?),
    };
    let index = ask.mdts.first().map_or(-1, |mdt| i32::from(*mdt));
    let mdts = if ask.mdts.len() > 1 { ask.mdts.clone() } else { Vec::new() };
    let max_inherit = Inherit(ask.max_inherit);
    let requested =
        DirDefault { count: ask.count, index, hash, flags, max_inherit, mdts, ..DirDefault::default() };
    // The decoder of the stored form detects numbers out of range.
    let is_sound = (requested.mdts.is_empty() || requested.mdts.len() as i32 == requested.count)
        && DirDefault::decode(&requested.encode()).as_ref() == Ok(&requested);
    is_sound.then_some(requested)
}

/// Answers an ioctl.
///
/// # Errors
/// `ENOTTY` for one that neither this file system nor Lustre has.
pub(super) fn answer(asked: &Asked<'_>, reply: &mut Reply<'_>) -> StatusResult<()> {
    let Asked { client, caller, call, fid, .. } = asked;
    let bytes = match call.cmd {
        MountInfo::COMMAND => {
            let info = client.config.mount_info();
            MountInfo { fsname: info.fsname, instance: info.instance }.to_bytes()
        }
        PathToFid::COMMAND => PathToFid { fid: *fid }.to_bytes(),
        FidToPath::COMMAND => {
            let mut ask: FidToPath = asked.question()?;
            ask.path = asked.names.path_of(caller, ask.fid, ask.link)?;
            if ask.path.len() > PATH_MAX {
                return Err(Status::ENAMETOOLONG);
            }
            ask.to_bytes()
        }
        TargetList::COMMAND => target_list(client, asked.question()?).to_bytes(),
        TargetStatfs::COMMAND => {
            let mut ask: TargetStatfs = asked.question()?;
            let space = client.requests.target_statfs(ask.target)?;
            ask.block_size = space.block_size;
            ask.blocks = [space.blocks, space.blocks_free, space.blocks_available];
            ask.files = [space.files, space.files_free];
            ask.state = space.state;
            ask.to_bytes()
        }
        PoolList::COMMAND => pool_list(client, asked.question()?).to_bytes(),
        PoolMembers::COMMAND => pool_members(client, asked.question()?)?.to_bytes(),
        Advise::COMMAND => {
            let ask: Advise = asked.question()?;
            let Advise { advice, mode, flags, start, end } = ask;
            files::advise_one(asked, &Ladvise { advice, mode, flags, start, end })?;
            ask.to_bytes()
        }
        SizeOnMdt::COMMAND => {
            let attr = client.inodes.mdt_attr(*fid)?;
            SizeOnMdt { size: attr.size, blocks: attr.blocks, source: attr.size_source }.to_bytes()
        }
        ScanDirectory::COMMAND => {
            let mut ask: ScanDirectory = asked.question()?;
            client.listings.check_listing(caller, call.fh)?;
            let page = client.pages.scan(caller, *fid, ask.cookie, SCAN_BYTES_MAX, ask.wanted)?;
            (ask.end, ask.entries) = (page.end, page.bytes);
            ask.to_bytes()
        }
        _ => return answer_on_files(asked, reply),
    };
    asked.answer(&bytes, reply)
}

/// Answers ioctls on the data of a file, and on sets of files.
fn answer_on_files(asked: &Asked<'_>, reply: &mut Reply<'_>) -> StatusResult<()> {
    let bytes = match asked.call.cmd {
        FileCall::COMMAND => {
            let mut ask: FileCall = asked.question()?;
            ask.values[0] = file_call(asked, &ask)?;
            ask.to_bytes()
        }
        RemoveFid::COMMAND => {
            let ask: RemoveFid = asked.question()?;
            let outcome = asked.client.names.remove_fid(asked.caller, ask.fid);
            // Some names may be removed even if not all are.
            asked.names.expire();
            outcome?;
            Vec::new()
        }
        MakeDirectory::COMMAND => {
            make_directory_on(asked, &asked.question()?)?;
            Vec::new()
        }
        ProjectCall::COMMAND => files::project_call(asked, asked.question()?)?.to_bytes(),
        DirUse::COMMAND => {
            let total = asked.client.dir_use(asked.caller, asked.fid)?;
            DirUse { counts: total.counts, is_complete: total.is_complete }.to_bytes()
        }
        QuotaCall::COMMAND => quota::quota_call(asked, asked.question()?)?.to_bytes(),
        FilesOn::COMMAND => files_on(asked, asked.question()?)?.to_bytes(),
        MigrateFiles::COMMAND => migrate_files(asked, asked.question()?)?.to_bytes(),
        _ => return answer_foreign(asked, reply),
    };
    asked.answer(&bytes, reply)
}

/// Answers ioctls of other file systems.
fn answer_foreign(asked: &Asked<'_>, reply: &mut Reply<'_>) -> StatusResult<()> {
    let data = asked.call.data;
    match asked.call.cmd {
        GET_FLAGS => {
            let attr = asked.client.inodes.getattr(asked.fid)?;
            let mut bytes = [0; 8];
            bytes[..4].copy_from_slice(&inherit_flag(&attr, FLAG_PROJECT_INHERIT).to_le_bytes());
            asked.answer_with_room(&bytes, reply);
        }
        GET_XATTR => {
            let attr = asked.client.inodes.getattr(asked.fid)?;
            let mut bytes = [0; XATTR_BYTES];
            bytes[..4].copy_from_slice(&inherit_flag(&attr, XFLAG_PROJECT_INHERIT).to_le_bytes());
            bytes[XATTR_PROJECT..XATTR_PROJECT + 4].copy_from_slice(&attr.projid.to_le_bytes());
            asked.answer_with_room(&bytes, reply);
        }
        SET_FLAGS => {
            let valid = inherit_of(u32_at(data, 0)?, FLAG_PROJECT_INHERIT)?;
            set_project(asked, asked.fid, SetAttr { valid, ..SetAttr::default() })?;
            reply.ioctl(0, &[]);
        }
        SET_XATTR => {
            let valid = inherit_of(u32_at(data, 0)?, XFLAG_PROJECT_INHERIT)? | SetAttrValid::PROJID;
            let projid = u32_at(data, XATTR_PROJECT)?;
            set_project(asked, asked.fid, SetAttr { valid, projid, ..SetAttr::default() })?;
            reply.ioctl(0, &[]);
        }
        _ => return lustre::answer(asked, reply),
    }
    Ok(())
}

/// Returns the flag `known` if new inodes in a directory inherit its project.
pub(super) fn inherit_flag(attr: &Attr, known: u32) -> u32 {
    known * u32::from(attr.flags.contains(AttrFlags::PROJECT_INHERIT))
}

/// Sets a project or its inheritance, unless nothing would change.
pub(super) fn set_project(asked: &Asked<'_>, fid: Fid, set: SetAttr) -> StatusResult<()> {
    let attr = asked.client.inodes.getattr(fid)?;
    let inherits = attr.flags.contains(AttrFlags::PROJECT_INHERIT);
    let same_flag = set.valid.contains(SetAttrValid::PROJECT_INHERIT) == inherits;
    if same_flag && (!set.valid.contains(SetAttrValid::PROJID) || set.projid == attr.projid) {
        return Ok(());
    }
    asked.client.names.setattr(asked.caller, fid, set).map(|_| ())
}

/// Returns the flush to do before the data version is read, by the flags of the ioctl.
pub(super) fn flush_of(flags: u32) -> VersionFlush {
    match flags {
        0 => VersionFlush::Nothing,
        1 => VersionFlush::Dirty,
        _ => VersionFlush::Everything,
    }
}

/// Returns targets of a kind from an index on, and which of them are deactivated.
fn target_list(client: &Client, mut ask: TargetList) -> TargetList {
    let targets = client.requests.targets().into_iter();
    let wanted = targets.filter(|target| target.kind == ask.kind && target.index >= ask.from);
    ask.indexes = wanted.map(|target| target.index).take(LIST_MAX).collect();
    let is_inactive = |index: &u16| {
        ask.kind == TargetKind::Ost
            && client.requests.ost_endpoint(*index).is_some_and(|ost| !ost.is_active())
    };
    ask.inactive = ask.indexes.iter().copied().filter(is_inactive).collect();
    ask
}

fn pool_list(client: &Client, mut ask: PoolList) -> PoolList {
    let pools = client.requests.pools();
    let names = pools.iter().skip(ask.from as usize).take(POOLS_MAX);
    ask.names = names.map(|pool| pool.name.to_string()).collect();
    ask
}

fn pool_members(client: &Client, mut ask: PoolMembers) -> StatusResult<PoolMembers> {
    let pools = client.requests.pools();
    let pool = pools.iter().find(|pool| pool.name.as_str() == ask.pool).ok_or(Status::ENOENT)?;
    ask.indexes = pool.osts.iter().skip(ask.from as usize).take(LIST_MAX).copied().collect();
    Ok(ask)
}

/// Creates a directory for which the caller specifies MDTs.
fn make_directory_on(asked: &Asked<'_>, ask: &MakeDirectory) -> StatusResult<()> {
    if ask.name.is_empty() || ask.name.contains(&0) || ask.name.contains(&b'/') {
        return Err(Status::EINVAL);
    }
    let mode = FileKind::Directory.mode_bits() | ask.mode & MODE_BITS;
    let what = Created { new: NewFile::Directory, mode, umask: ask.umask };
    let requested = request_of(ask).ok_or(Status::EINVAL)?;
    if ask.migrates {
        let outcome = asked.client.names.migrate(asked.caller, (asked.fid, &ask.name[..]), &requested);
        expire_moved(asked.names, outcome.as_ref().err());
        return outcome;
    }
    make_or_restripe(asked, &ask.name, &what, &requested, ask.restripes)
}

/// Creates a directory; if it exists and `restripes` is set, spreads it over other MDTs.
pub(super) fn make_or_restripe(
    asked: &Asked<'_>,
    name: &[u8],
    what: &Created<'_>,
    requested: &DirDefault,
    restripes: bool,
) -> StatusResult<()> {
    let Asked { client, names, caller, fid: parent, .. } = asked;
    match client.names.make_directory(caller, (*parent, name), what, requested) {
        Err(Status::EEXIST) if restripes => {}
        made => {
            client.inodes.forget(made?.node, 1);
            // The kernel may have cached that the name does not exist.
            names.expire();
            return Ok(());
        }
    }
    let found = client.names.lookup(caller, *parent, name)?.map_err(|_| Status::ENOENT)?;
    let outcome = match found.attr.is_dir() {
        true => client.names.restripe(caller, found.attr.fid, requested),
        false => Err(Status::EEXIST),
    };
    client.inodes.forget(found.node, 1);
    outcome
}

fn files_on(asked: &Asked<'_>, mut ask: FilesOn) -> StatusResult<FilesOn> {
    let (names, caller, count_max) = (&asked.client.names, asked.caller, FILES_MAX as u32);
    let inodes_on = |of| names.inodes_on(caller, of, ask.after, count_max);
    let found = match ask.wanted {
        FilesWanted::Objects(ost) => names.files_on(caller, ost, ask.after, count_max)?,
        FilesWanted::Directories(mdt) => inodes_on((mdt, InodeKind::Directories))?,
        FilesWanted::Files { mdt, named_on } => inodes_on((mdt, InodeKind::NamedOn(named_on)))?,
    };
    (ask.fids, ask.next) = (found.0, found.1.unwrap_or(Fid::ZERO));
    Ok(ask)
}

/// Expires names after a migration without an answer, which may have taken effect. For a confirmed migration
/// the client has already invalidated the kernel's caches, and a refused one changes nothing.
fn expire_moved(names: &Names, failure: Option<&Status>) {
    if failure.is_some_and(|status| !matches!(*status, Status::EPERM | Status::EINVAL | Status::EALREADY)) {
        names.expire();
    }
}

fn migrate_files(asked: &Asked<'_>, mut ask: MigrateFiles) -> StatusResult<MigrateFiles> {
    let outcomes = asked.client.names.migrate_files(asked.caller, &ask.fids, ask.mdt);
    expire_moved(asked.names, outcomes.as_ref().err());
    ask.outcomes =
        outcomes?.iter().map(|outcome| outcome.err().map_or(0, |status| status.errno() as u16)).collect();
    Ok(ask)
}

/// Runs an operation on the data of the open file; returns the answer.
fn file_call(asked: &Asked<'_>, ask: &FileCall) -> StatusResult<u64> {
    let (client, caller, fh) = (asked.client, asked.caller, asked.call.fh);
    match ask.operation {
        FileOperation::DataVersion if ask.flags > 2 => Err(Status::EINVAL),
        FileOperation::DataVersion => client.data.data_version(fh, flush_of(ask.flags)),
        FileOperation::Swap => {
            let lease = (ask.flags & FileCall::LEASED != 0).then_some(fh);
            let conditions = swap_conditions(ask.flags.into(), ask.values, lease);
            client.data.swap_layouts(caller, asked.fid, ask.other, &conditions).map(|()| 0)
        }
        FileOperation::SeekData => client.data.seek(fh, ask.values[0], SeekKind::Data),
        FileOperation::SeekHole => client.data.seek(fh, ask.values[0], SeekKind::Hole),
        FileOperation::Size => client.data.size_of(fh),
        FileOperation::Copy => client.data.copy_to(caller, fh, ask.other, (ask.values[0], ask.values[1])),
        FileOperation::Lease => {
            let kind = match ask.flags {
                0 => Some(LeaseKind::None),
                1 => Some(LeaseKind::Read),
                2 => Some(LeaseKind::Write),
                3 => Some(LeaseKind::Frozen),
                FileCall::ASK_LEASE => None,
                _ => return Err(Status::EINVAL),
            };
            client.opens.open_lease(caller, fh, kind).map(|before| before as u64)
        }
    }
}

/// Returns the conditions of a layout swap, from the flags that native calls and Lustre's have in common.
pub(super) fn swap_conditions(flags: u64, versions: [u64; 2], lease: Option<u64>) -> SwapConditions {
    let expected = |flag, version| (flags & flag != 0).then_some(version);
    let [first, second] = versions;
    SwapConditions {
        versions: (expected(SwapCall::CHECK_FIRST, first), expected(SwapCall::CHECK_SECOND, second)),
        keep_times: flags & SwapCall::KEEP_MTIME != 0,
        lease,
    }
}
