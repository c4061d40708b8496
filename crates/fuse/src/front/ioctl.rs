//! Native ioctls, those of other file systems that have a sensible answer (Lustre's: [`super::lustre`]), and the way for `lfs` to
//! call the former.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

use nacre_client::{Caller, Created, InodeKind, LeaseKind, NewFile, SeekKind, SwapConditions, VersionFlush};
use nacre_layout::{DirDefault, DirFlags, DirHash, Inherit};
use nacre_types::ioctl::{
    Advise, FILES_MAX, FidToPath, FileCall, FileOperation, FilesOn, FilesWanted, LIST_MAX, MakeDirectory,
    MigrateFiles, MountInfo, PATH_MAX, POOLS_MAX, PathToFid, Payload, PoolList, PoolMembers, RemoveFid,
    SCAN_BYTES_MAX, ScanDirectory, SizeOnMdt, TargetList, TargetStatfs,
};
use nacre_types::lustre::{Ladvise, ProjectCall};
use nacre_types::{AttrFlags, Fid, FileKind, SetAttr, SetAttrValid, Status, StatusResult, TargetKind};

use super::{Front, caller};
use crate::reply::Reply;
use crate::request::{Ioctl, Request};

/// Inode flags (`lsattr`), of which we have one. The kernel asks for 4 bytes whatever the number says.
const GET_FLAGS: u32 = 0x8008_6601;
const SET_FLAGS: u32 = 0x4008_6602;
/// Extended inode flags and the project: 28 bytes, flags at 0 and project at 12.
const GET_XATTR: u32 = 0x801c_581f;
const SET_XATTR: u32 = 0x401c_5820;
const XATTR_BYTES: usize = 28;
const XATTR_PROJECT: usize = 12;
/// Permission bits.
const MODE_BITS: u32 = 0o7777;
/// What is made in a directory gets its project: as inode flag (`FS_PROJINHERIT_FL`) and as extended one
/// (`FS_XFLAG_PROJINHERIT`).
const FLAG_PROJECT_INHERIT: u32 = 0x2000_0000;
pub(super) const XFLAG_PROJECT_INHERIT: u32 = 0x200;

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

fn u32_at(data: &[u8], at: usize) -> StatusResult<u32> {
    let bytes = data.get(at..).and_then(|rest| rest.first_chunk()).ok_or(Status::EINVAL)?;
    Ok(u32::from_le_bytes(*bytes))
}

/// What flags that may contain only `known` say of the inheritance of a project.
pub(super) fn inherit_of(flags: u32, known: u32) -> StatusResult<SetAttrValid> {
    match flags {
        0 => Ok(SetAttrValid::NO_PROJECT_INHERIT),
        flags if flags == known => Ok(SetAttrValid::PROJECT_INHERIT),
        _ => Err(Status::EOPNOTSUPP),
    }
}

/// What a program wishes for a new directory.
fn wish_of(ask: &MakeDirectory) -> Option<DirDefault> {
    let flags = DirFlags::from_bits(ask.hash & !0xffff)?;
    let hash = match ask.hash as u16 {
        0 => None,
        number => Some(DirHash::from_number(number)?),
    };
    let index = ask.mdts.first().map_or(-1, |mdt| i32::from(*mdt));
    let mdts = if ask.mdts.len() > 1 { ask.mdts.clone() } else { Vec::new() };
    let max_inherit = Inherit(ask.max_inherit);
    let wish =
        DirDefault { count: ask.count, index, hash, flags, max_inherit, mdts, ..DirDefault::default() };
    // Numbers out of range are found by what reads the form of the disk.
    let is_sound = (wish.mdts.is_empty() || wish.mdts.len() as i32 == wish.count)
        && DirDefault::decode(&wish.encode()).as_ref() == Ok(&wish);
    is_sound.then_some(wish)
}

impl Front {
    /// Sets a project or its inheritance, unless nothing would change.
    pub(super) fn set_project(&self, request: &Request<'_>, fid: Fid, set: SetAttr) -> StatusResult<()> {
        let attr = self.client.inodes.getattr(fid)?;
        let inherits = attr.flags.contains(AttrFlags::PROJECT_INHERIT);
        let same_flag = set.valid.contains(SetAttrValid::PROJECT_INHERIT) == inherits;
        if same_flag && (!set.valid.contains(SetAttrValid::PROJID) || set.projid == attr.projid) {
            return Ok(());
        }
        self.client.names.setattr(&caller(request), fid, set).map(|_| ())
    }

    pub(super) fn ioctl(
        &self,
        request: &Request<'_>,
        call: &Ioctl<'_>,
        reply: &mut Reply<'_>,
    ) -> StatusResult<()> {
        match call.cmd {
            MountInfo::COMMAND => {
                let info = self.client.config.mount_info();
                answer(&MountInfo { fsname: info.fsname, instance: info.instance }, call, reply)
            }
            PathToFid::COMMAND => answer(&PathToFid { fid: self.fid(request.node_id)? }, call, reply),
            FidToPath::COMMAND => {
                let mut ask: FidToPath = question(call)?;
                ask.path = self.path_of(&caller(request), ask.fid, ask.link)?;
                if ask.path.len() > PATH_MAX {
                    return Err(Status::ENAMETOOLONG);
                }
                answer(&ask, call, reply)
            }
            TargetList::COMMAND => {
                let ask: TargetList = question(call)?;
                answer(&self.target_list(ask), call, reply)
            }
            TargetStatfs::COMMAND => {
                let mut ask: TargetStatfs = question(call)?;
                let space = self.client.requests.target_statfs(ask.target)?;
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
            Advise::COMMAND => {
                let ask: Advise = question(call)?;
                let Advise { advice, mode, flags, start, end } = ask;
                let one = Ladvise { advice, mode, flags, start, end };
                self.advise_one((self.fid(request.node_id)?, call.fh), &one)?;
                answer(&ask, call, reply)
            }
            SizeOnMdt::COMMAND => {
                let attr = self.client.inodes.mdt_attr(self.fid(request.node_id)?)?;
                let (size, blocks, source) = (attr.size, attr.blocks, attr.size_source);
                answer(&SizeOnMdt { size, blocks, source }, call, reply)
            }
            ScanDirectory::COMMAND => {
                let mut ask: ScanDirectory = question(call)?;
                let fid = self.fid(request.node_id)?;
                self.client.listings.check_listing(&caller(request), call.fh)?;
                let page =
                    self.client.pages.scan(&caller(request), fid, ask.cookie, SCAN_BYTES_MAX, ask.wanted)?;
                (ask.end, ask.entries) = (page.end, page.bytes);
                answer(&ask, call, reply)
            }
            _ => self.data_ioctl(request, call, reply),
        }
    }

    /// Targets of a kind from an index on, and which of them are out of use.
    fn target_list(&self, mut ask: TargetList) -> TargetList {
        let targets = self.client.requests.targets().into_iter();
        let wanted = targets.filter(|target| target.kind == ask.kind && target.index >= ask.from);
        ask.indexes = wanted.map(|target| target.index).take(LIST_MAX).collect();
        let is_inactive = |index: &u16| {
            ask.kind == TargetKind::Ost
                && self.client.requests.ost_endpoint(*index).is_some_and(|ost| !ost.is_active())
        };
        ask.inactive = ask.indexes.iter().copied().filter(is_inactive).collect();
        ask
    }

    fn pool_list(&self, mut ask: PoolList) -> PoolList {
        let pools = self.client.requests.pools();
        let names = pools.iter().skip(ask.from as usize).take(POOLS_MAX);
        ask.names = names.map(|pool| pool.name.to_string()).collect();
        ask
    }

    fn pool_members(&self, mut ask: PoolMembers) -> StatusResult<PoolMembers> {
        let pools = self.client.requests.pools();
        let pool = pools.iter().find(|pool| pool.name.as_str() == ask.pool).ok_or(Status::ENOENT)?;
        ask.indexes = pool.osts.iter().skip(ask.from as usize).take(LIST_MAX).copied().collect();
        Ok(ask)
    }

    /// Those about the data of files.
    fn data_ioctl(&self, request: &Request<'_>, call: &Ioctl<'_>, reply: &mut Reply<'_>) -> StatusResult<()> {
        match call.cmd {
            FileCall::COMMAND => {
                let mut ask: FileCall = question(call)?;
                ask.values[0] = self.file_call(request, call.fh, &ask)?;
                answer(&ask, call, reply)
            }
            RemoveFid::COMMAND => {
                let ask: RemoveFid = question(call)?;
                let outcome = self.client.names.remove_fid(&caller(request), ask.fid);
                // Some names may be gone even if not all are.
                self.expire_names();
                outcome?;
                reply.ioctl(0, &[]);
                Ok(())
            }
            MakeDirectory::COMMAND => {
                self.make_directory_on(request, &question(call)?)?;
                reply.ioctl(0, &[]);
                Ok(())
            }
            ProjectCall::COMMAND => {
                let fid = self.fid(request.node_id)?;
                answer(&self.project_call(request, fid, question(call)?)?, call, reply)
            }
            FilesOn::COMMAND => answer(&self.files_on(request, question(call)?)?, call, reply),
            MigrateFiles::COMMAND => answer(&self.migrate_files(request, question(call)?)?, call, reply),
            _ => self.foreign_ioctl(request, call, reply),
        }
    }

    /// Makes a directory for which the caller has wishes about MDTs.
    fn make_directory_on(&self, request: &Request<'_>, ask: &MakeDirectory) -> StatusResult<()> {
        if ask.name.is_empty() || ask.name.contains(&0) || ask.name.contains(&b'/') {
            return Err(Status::EINVAL);
        }
        let parent = self.fid(request.node_id)?;
        let mode = FileKind::Directory.mode_bits() | ask.mode & MODE_BITS;
        let what = Created { new: NewFile::Directory, mode, umask: ask.umask };
        let wish = wish_of(ask).ok_or(Status::EINVAL)?;
        let place = (parent, &ask.name[..]);
        if ask.migrates {
            let outcome = self.client.names.migrate(&caller(request), place, &wish);
            self.expire_moved(outcome.as_ref().err());
            return outcome;
        }
        self.make_or_restripe(&caller(request), place, &what, &wish, ask.restripes)
    }

    /// Makes a directory, or if it is there already and that is wanted, spreads it over other MDTs.
    pub(super) fn make_or_restripe(
        &self,
        caller: &Caller,
        (parent, name): (Fid, &[u8]),
        what: &Created<'_>,
        wish: &DirDefault,
        restripes: bool,
    ) -> StatusResult<()> {
        match self.client.names.make_directory(caller, (parent, name), what, wish) {
            Err(Status::EEXIST) if restripes => {}
            made => {
                self.client.inodes.forget(made?.node, 1);
                // The kernel may know that the name does not exist.
                self.expire_names();
                return Ok(());
            }
        }
        let found = self.client.names.lookup(caller, parent, name)?.map_err(|_| Status::ENOENT)?;
        let outcome = match found.attr.is_dir() {
            true => self.client.names.restripe(caller, found.attr.fid, wish),
            false => Err(Status::EEXIST),
        };
        self.client.inodes.forget(found.node, 1);
        outcome
    }

    fn files_on(&self, request: &Request<'_>, mut ask: FilesOn) -> StatusResult<FilesOn> {
        let (caller, count_max) = (caller(request), FILES_MAX as u32);
        let inodes_on = |of| self.client.names.inodes_on(&caller, of, ask.after, count_max);
        let found = match ask.wanted {
            FilesWanted::Objects(ost) => self.client.names.files_on(&caller, ost, ask.after, count_max)?,
            FilesWanted::Directories(mdt) => inodes_on((mdt, InodeKind::Directories))?,
            FilesWanted::Files { mdt, named_on } => inodes_on((mdt, InodeKind::NamedOn(named_on)))?,
        };
        (ask.fids, ask.next) = (found.0, found.1.unwrap_or(Fid::ZERO));
        Ok(ask)
    }

    /// What was to move and may have, as its answer was lost: what has moved for sure the client has had the kernel forget, and what a
    /// caller may not do changes nothing.
    fn expire_moved(&self, failure: Option<&Status>) {
        if failure.is_some_and(|status| !matches!(*status, Status::EPERM | Status::EINVAL | Status::EALREADY))
        {
            self.expire_names();
        }
    }

    fn migrate_files(&self, request: &Request<'_>, mut ask: MigrateFiles) -> StatusResult<MigrateFiles> {
        let outcomes = self.client.names.migrate_files(&caller(request), &ask.fids, ask.mdt);
        self.expire_moved(outcomes.as_ref().err());
        ask.outcomes =
            outcomes?.iter().map(|outcome| outcome.err().map_or(0, |status| status.errno() as u16)).collect();
        Ok(ask)
    }

    /// An operation on the data of the file that handle `fh` has open; gives the answer.
    fn file_call(&self, request: &Request<'_>, fh: u64, ask: &FileCall) -> StatusResult<u64> {
        let caller = caller(request);
        match ask.operation {
            FileOperation::DataVersion => {
                let flush = match ask.flags {
                    0 => VersionFlush::Nothing,
                    1 => VersionFlush::Dirty,
                    2 => VersionFlush::Everything,
                    _ => return Err(Status::EINVAL),
                };
                self.client.data.data_version(fh, flush)
            }
            FileOperation::Swap => {
                let expected = |flag, value| (ask.flags & flag != 0).then_some(value);
                let conditions = SwapConditions {
                    versions: (
                        expected(FileCall::FIRST, ask.values[0]),
                        expected(FileCall::SECOND, ask.values[1]),
                    ),
                    keep_times: ask.flags & FileCall::KEEP_TIMES != 0,
                    lease: expected(FileCall::LEASED, fh),
                };
                let fid = self.fid(request.node_id)?;
                self.client.data.swap_layouts(&caller, fid, ask.other, &conditions).map(|()| 0)
            }
            FileOperation::SeekData => self.client.data.seek(fh, ask.values[0], SeekKind::Data),
            FileOperation::SeekHole => self.client.data.seek(fh, ask.values[0], SeekKind::Hole),
            FileOperation::Size => self.client.data.size_of(fh),
            FileOperation::Copy => {
                self.client.data.copy_to(&caller, fh, ask.other, (ask.values[0], ask.values[1]))
            }
            FileOperation::Lease => {
                let kind = match ask.flags {
                    0 => Some(LeaseKind::None),
                    1 => Some(LeaseKind::Read),
                    2 => Some(LeaseKind::Write),
                    3 => Some(LeaseKind::Frozen),
                    FileCall::ASK_LEASE => None,
                    _ => return Err(Status::EINVAL),
                };
                self.client.opens.open_lease(&caller, fh, kind).map(|before| before as u64)
            }
        }
    }

    fn foreign_ioctl(
        &self,
        request: &Request<'_>,
        call: &Ioctl<'_>,
        reply: &mut Reply<'_>,
    ) -> StatusResult<()> {
        match call.cmd {
            GET_FLAGS => {
                let attr = self.client.inodes.getattr(self.fid(request.node_id)?)?;
                let inherit = attr.flags.contains(AttrFlags::PROJECT_INHERIT);
                let mut bytes = [0; 8];
                bytes[..4].copy_from_slice(&(FLAG_PROJECT_INHERIT * u32::from(inherit)).to_le_bytes());
                reply.ioctl(0, &bytes[..(call.out_size as usize).min(8)]);
            }
            SET_FLAGS => {
                let valid = inherit_of(u32_at(call.data, 0)?, FLAG_PROJECT_INHERIT)?;
                let fid = self.fid(request.node_id)?;
                self.set_project(request, fid, SetAttr { valid, ..SetAttr::default() })?;
                reply.ioctl(0, &[]);
            }
            GET_XATTR => {
                let mut bytes = [0; XATTR_BYTES];
                let attr = self.client.inodes.getattr(self.fid(request.node_id)?)?;
                let inherit = attr.flags.contains(AttrFlags::PROJECT_INHERIT);
                bytes[..4].copy_from_slice(&(XFLAG_PROJECT_INHERIT * u32::from(inherit)).to_le_bytes());
                bytes[XATTR_PROJECT..XATTR_PROJECT + 4].copy_from_slice(&attr.projid.to_le_bytes());
                reply.ioctl(0, &bytes[..(call.out_size as usize).min(XATTR_BYTES)]);
            }
            SET_XATTR => {
                let inherit = inherit_of(u32_at(call.data, 0)?, XFLAG_PROJECT_INHERIT)?;
                let projid = u32_at(call.data, XATTR_PROJECT)?;
                let valid = inherit | SetAttrValid::PROJID;
                let fid = self.fid(request.node_id)?;
                self.set_project(request, fid, SetAttr { valid, projid, ..SetAttr::default() })?;
                reply.ioctl(0, &[]);
            }
            _ => return self.lustre_ioctl(request, call, reply),
        }
        Ok(())
    }
}
