//! Decodes bytes into a [`Request`]. Every length is checked; malformed requests are an errno for the kernel.

use super::{
    CopyFileRange, ForgetList, InitRequest, Ioctl, Operation, Read, ReadDir, Request, SetAttr, SetTime,
    SetXattr, Write,
};
use crate::abi::*;
use rustix::io::Errno;

/// A request as delivered by a transport: header, first argument structure, and everything after that.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Raw<'a> {
    pub header: InHeader,
    /// At least the argument structure of the opcode; may be longer (io_uring has a fixed area).
    pub argument: &'a [u8],
    /// Names and data.
    pub payload: &'a [u8],
}

/// Returns true if requests of this kind have no reply.
pub(crate) fn takes_no_reply(code: u32) -> bool {
    matches!(code, opcode::FORGET | opcode::BATCH_FORGET | opcode::INTERRUPT | opcode::NOTIFY_REPLY)
}

/// Returns true if the reply is large, so that it is built in the payload area of the buffer.
///
/// Requests of these kinds have no large payload themselves, so the transport lends the area to the reply.
pub(crate) fn replies_in_bulk(code: u32) -> bool {
    matches!(
        code,
        opcode::READ
            | opcode::READDIR
            | opcode::READDIRPLUS
            | opcode::READLINK
            | opcode::GETXATTR
            | opcode::LISTXATTR
            | opcode::IOCTL
    )
}

/// Returns the size of the first argument structure of a request code; `None` for unknown codes.
pub(crate) fn argument_size(code: u32, setxattr_ext: bool) -> Option<usize> {
    Some(match code {
        opcode::LOOKUP | opcode::READLINK | opcode::SYMLINK | opcode::UNLINK | opcode::RMDIR => 0,
        opcode::STATFS | opcode::REMOVEXATTR | opcode::DESTROY => 0,
        opcode::FORGET => size_of::<ForgetIn>(),
        opcode::GETATTR => size_of::<GetAttrIn>(),
        opcode::SETATTR => size_of::<SetAttrIn>(),
        opcode::MKNOD => size_of::<MkNodIn>(),
        opcode::MKDIR => size_of::<MkDirIn>(),
        opcode::RENAME => size_of::<RenameIn>(),
        opcode::LINK => size_of::<LinkIn>(),
        opcode::OPEN | opcode::OPENDIR => size_of::<OpenIn>(),
        opcode::READ | opcode::READDIR | opcode::READDIRPLUS => size_of::<ReadIn>(),
        opcode::WRITE => size_of::<WriteIn>(),
        opcode::RELEASE | opcode::RELEASEDIR => size_of::<ReleaseIn>(),
        opcode::FSYNC | opcode::FSYNCDIR => size_of::<FsyncIn>(),
        opcode::SETXATTR if setxattr_ext => size_of::<SetXattrIn>(),
        opcode::SETXATTR => size_of::<SetXattrCompatIn>(),
        opcode::GETXATTR | opcode::LISTXATTR => size_of::<GetXattrIn>(),
        opcode::FLUSH => size_of::<FlushIn>(),
        opcode::INIT => size_of::<InitIn>(),
        opcode::GETLK | opcode::SETLK | opcode::SETLKW => size_of::<LkIn>(),
        opcode::ACCESS => size_of::<AccessIn>(),
        opcode::CREATE | opcode::TMPFILE => size_of::<CreateIn>(),
        opcode::INTERRUPT => size_of::<InterruptIn>(),
        opcode::BMAP => size_of::<BmapIn>(),
        opcode::IOCTL => size_of::<IoctlIn>(),
        opcode::POLL => size_of::<PollIn>(),
        opcode::NOTIFY_REPLY => size_of::<NotifyRetrieveIn>(),
        opcode::BATCH_FORGET => size_of::<BatchForgetIn>(),
        opcode::FALLOCATE => size_of::<FallocateIn>(),
        opcode::RENAME2 => size_of::<Rename2In>(),
        opcode::LSEEK => size_of::<LseekIn>(),
        opcode::COPY_FILE_RANGE | opcode::COPY_FILE_RANGE_64 => size_of::<CopyFileRangeIn>(),
        opcode::SYNCFS => size_of::<SyncFsIn>(),
        opcode::STATX => size_of::<StatxIn>(),
        _ => return None,
    })
}

/// Parses a request.
///
/// # Errors
///
/// The errno to answer with: ENOSYS for unknown codes, EIO for truncated requests, EINVAL for invalid names.
pub(crate) fn parse<'a>(raw: &Raw<'a>, setxattr_ext: bool) -> Result<Request<'a>, Errno> {
    let header = &raw.header;
    let (payload, parent_group) = split_extensions(raw.payload, header)?;
    let body = Body { argument: raw.argument, payload };
    Ok(Request {
        unique: header.unique,
        opcode: header.opcode,
        node_id: header.nodeid,
        uid: header.uid,
        gid: header.gid,
        pid: header.pid,
        parent_group,
        op: body.operation(header.opcode, setxattr_ext)?,
    })
}

/// Splits the extensions off the end of the payload and reads the supported one.
fn split_extensions<'a>(payload: &'a [u8], header: &InHeader) -> Result<(&'a [u8], Option<u32>), Errno> {
    let length = usize::from(header.total_extlen) * 8;
    if length == 0 {
        return Ok((payload, None));
    }
    let start = payload.len().checked_sub(length).ok_or(Errno::IO)?;
    let (payload, mut extensions) = payload.split_at(start);
    let mut parent_group = None;
    while let Some(ext) = ExtHeader::read_from(extensions) {
        let size = ext.size as usize;
        let body = extensions.get(size_of::<ExtHeader>()..size).ok_or(Errno::IO)?;
        if ext.typ == EXT_GROUPS && read_u32(body, 0)? >= 1 {
            parent_group = Some(read_u32(body, 4)?);
        }
        // Extensions are padded to 8 bytes; the last one may end the request without padding.
        extensions = extensions.get(size.next_multiple_of(8)..).unwrap_or_default();
    }
    Ok((payload, parent_group))
}

fn read_u32(bytes: &[u8], at: usize) -> Result<u32, Errno> {
    let field = bytes.get(at..at + 4).and_then(|field| field.try_into().ok());
    field.map(u32::from_ne_bytes).ok_or(Errno::IO)
}

/// Splits `bytes` at the first NUL.
fn split_nul(bytes: &[u8]) -> Result<(&[u8], &[u8]), Errno> {
    let end = bytes.iter().position(|&byte| byte == 0).ok_or(Errno::IO)?;
    Ok((&bytes[..end], &bytes[end + 1..]))
}

fn check_name(name: &[u8]) -> Result<&[u8], Errno> {
    if name.is_empty() || name.contains(&b'/') { Err(Errno::INVAL) } else { Ok(name) }
}

struct Body<'a> {
    argument: &'a [u8],
    payload: &'a [u8],
}

impl<'a> Body<'a> {
    fn arg<T: Wire>(&self) -> Result<T, Errno> {
        T::read_from(self.argument).ok_or(Errno::IO)
    }

    /// Returns the only name of the payload.
    fn name(&self) -> Result<&'a [u8], Errno> {
        check_name(split_nul(self.payload)?.0)
    }

    /// Returns an extended attribute's name, which may contain slashes, and the rest.
    fn xattr_name(&self) -> Result<(&'a [u8], &'a [u8]), Errno> {
        let (name, rest) = split_nul(self.payload)?;
        if name.is_empty() { Err(Errno::INVAL) } else { Ok((name, rest)) }
    }

    /// Returns two names in the payload.
    fn names(&self) -> Result<(&'a [u8], &'a [u8]), Errno> {
        let (first, rest) = split_nul(self.payload)?;
        Ok((check_name(first)?, check_name(split_nul(rest)?.0)?))
    }

    fn data(&self, size: u32) -> Result<&'a [u8], Errno> {
        self.payload.get(..size as usize).ok_or(Errno::IO)
    }

    fn operation(&self, code: u32, setxattr_ext: bool) -> Result<Operation<'a>, Errno> {
        match code {
            opcode::LOOKUP..=opcode::LINK => self.namespace_operation(code),
            opcode::RENAME2 | opcode::CREATE | opcode::TMPFILE => self.namespace_operation(code),
            opcode::SETXATTR..=opcode::REMOVEXATTR => self.xattr_operation(code, setxattr_ext),
            opcode::OPEN..=opcode::FSYNC | opcode::FLUSH => self.file_operation(code),
            opcode::OPENDIR..=opcode::FSYNCDIR | opcode::READDIRPLUS => self.directory_operation(code),
            opcode::GETLK | opcode::SETLK | opcode::SETLKW => self.lock_operation(code),
            _ => self.other_operation(code),
        }
    }

    fn namespace_operation(&self, code: u32) -> Result<Operation<'a>, Errno> {
        Ok(match code {
            opcode::LOOKUP => Operation::Lookup { name: self.name()? },
            opcode::FORGET => Operation::Forget { nlookup: self.arg::<ForgetIn>()?.nlookup },
            opcode::GETATTR => {
                let arg: GetAttrIn = self.arg()?;
                Operation::GetAttr { fh: (arg.getattr_flags & GETATTR_FH != 0).then_some(arg.fh) }
            }
            opcode::SETATTR => Operation::SetAttr(set_attr(&self.arg()?)),
            opcode::READLINK => Operation::ReadLink,
            opcode::SYMLINK => {
                let (name, rest) = split_nul(self.payload)?;
                Operation::Symlink { name: check_name(name)?, target: split_nul(rest)?.0 }
            }
            opcode::MKNOD => {
                let arg: MkNodIn = self.arg()?;
                Operation::MkNod { name: self.name()?, mode: arg.mode, rdev: arg.rdev, umask: arg.umask }
            }
            opcode::MKDIR => {
                let arg: MkDirIn = self.arg()?;
                Operation::MkDir { name: self.name()?, mode: arg.mode, umask: arg.umask }
            }
            opcode::UNLINK => Operation::Unlink { name: self.name()? },
            opcode::RMDIR => Operation::RmDir { name: self.name()? },
            opcode::RENAME => {
                let (name, new_name) = self.names()?;
                Operation::Rename { name, new_parent: self.arg::<RenameIn>()?.newdir, new_name, flags: 0 }
            }
            opcode::RENAME2 => {
                let arg: Rename2In = self.arg()?;
                let (name, new_name) = self.names()?;
                Operation::Rename { name, new_parent: arg.newdir, new_name, flags: arg.flags }
            }
            opcode::LINK => {
                Operation::Link { node_id: self.arg::<LinkIn>()?.oldnodeid, new_name: self.name()? }
            }
            opcode::CREATE => {
                let arg: CreateIn = self.arg()?;
                Operation::Create {
                    name: self.name()?,
                    flags: arg.flags,
                    mode: arg.mode,
                    umask: arg.umask,
                    kill_suid_gid: arg.open_flags & OPEN_KILL_SUIDGID != 0,
                }
            }
            opcode::TMPFILE => {
                // A name is sent too (always "/"), without a meaning.
                let arg: CreateIn = self.arg()?;
                Operation::TmpFile { flags: arg.flags, mode: arg.mode, umask: arg.umask }
            }
            _ => return Err(Errno::NOSYS),
        })
    }

    fn file_operation(&self, code: u32) -> Result<Operation<'a>, Errno> {
        Ok(match code {
            opcode::OPEN => {
                let arg: OpenIn = self.arg()?;
                Operation::Open { flags: arg.flags, kill_suid_gid: arg.open_flags & OPEN_KILL_SUIDGID != 0 }
            }
            opcode::READ => {
                let arg: ReadIn = self.arg()?;
                Operation::Read(Read {
                    fh: arg.fh,
                    offset: arg.offset,
                    size: arg.size,
                    flags: arg.flags,
                    lock_owner: (arg.read_flags & READ_LOCKOWNER != 0).then_some(arg.lock_owner),
                })
            }
            opcode::WRITE => {
                let arg: WriteIn = self.arg()?;
                Operation::Write(Write {
                    fh: arg.fh,
                    offset: arg.offset,
                    data: self.data(arg.size)?,
                    flags: arg.flags,
                    lock_owner: (arg.write_flags & WRITE_LOCKOWNER != 0).then_some(arg.lock_owner),
                    from_cache: arg.write_flags & WRITE_CACHE != 0,
                    kill_suid_gid: arg.write_flags & WRITE_KILL_SUIDGID != 0,
                })
            }
            opcode::STATFS => Operation::StatFs,
            opcode::RELEASE => {
                let arg: ReleaseIn = self.arg()?;
                Operation::Release {
                    fh: arg.fh,
                    flags: arg.flags,
                    flush: arg.release_flags & RELEASE_FLUSH != 0,
                    flock_unlock: arg.release_flags & RELEASE_FLOCK_UNLOCK != 0,
                    lock_owner: arg.lock_owner,
                }
            }
            opcode::FSYNC => {
                let arg: FsyncIn = self.arg()?;
                Operation::Fsync { fh: arg.fh, datasync: arg.fsync_flags & FSYNC_FDATASYNC != 0 }
            }
            opcode::FLUSH => {
                let arg: FlushIn = self.arg()?;
                Operation::Flush { fh: arg.fh, lock_owner: arg.lock_owner }
            }
            _ => return Err(Errno::NOSYS),
        })
    }

    fn directory_operation(&self, code: u32) -> Result<Operation<'a>, Errno> {
        Ok(match code {
            opcode::OPENDIR => Operation::OpenDir { flags: self.arg::<OpenIn>()?.flags },
            opcode::READDIR | opcode::READDIRPLUS => {
                let arg: ReadIn = self.arg()?;
                let part = ReadDir { fh: arg.fh, offset: arg.offset, size: arg.size };
                if code == opcode::READDIR { Operation::ReadDir(part) } else { Operation::ReadDirPlus(part) }
            }
            opcode::RELEASEDIR => {
                let arg: ReleaseIn = self.arg()?;
                Operation::ReleaseDir { fh: arg.fh, flags: arg.flags }
            }
            opcode::FSYNCDIR => {
                let arg: FsyncIn = self.arg()?;
                Operation::FsyncDir { fh: arg.fh, datasync: arg.fsync_flags & FSYNC_FDATASYNC != 0 }
            }
            _ => return Err(Errno::NOSYS),
        })
    }

    fn xattr_operation(&self, code: u32, setxattr_ext: bool) -> Result<Operation<'a>, Errno> {
        Ok(match code {
            opcode::SETXATTR => {
                let arg = if setxattr_ext {
                    self.arg::<SetXattrIn>()?
                } else {
                    let short: SetXattrCompatIn = self.arg()?;
                    SetXattrIn { size: short.size, flags: short.flags, ..SetXattrIn::default() }
                };
                let (name, rest) = self.xattr_name()?;
                Operation::SetXattr(SetXattr {
                    name,
                    value: rest.get(..arg.size as usize).ok_or(Errno::IO)?,
                    flags: arg.flags,
                    kill_sgid: arg.setxattr_flags & SETXATTR_ACL_KILL_SGID != 0,
                })
            }
            opcode::GETXATTR => {
                Operation::GetXattr { name: self.xattr_name()?.0, size: self.arg::<GetXattrIn>()?.size }
            }
            opcode::LISTXATTR => Operation::ListXattr { size: self.arg::<GetXattrIn>()?.size },
            opcode::REMOVEXATTR => Operation::RemoveXattr { name: self.xattr_name()?.0 },
            _ => return Err(Errno::NOSYS),
        })
    }

    fn lock_operation(&self, code: u32) -> Result<Operation<'a>, Errno> {
        let arg: LkIn = self.arg()?;
        let (fh, owner, lock) = (arg.fh, arg.owner, arg.lk);
        let flock = arg.lk_flags & LK_FLOCK != 0;
        Ok(match code {
            opcode::GETLK => Operation::GetLk { fh, owner, lock, flock },
            _ => Operation::SetLk { fh, owner, lock, flock, wait: code == opcode::SETLKW },
        })
    }

    fn other_operation(&self, code: u32) -> Result<Operation<'a>, Errno> {
        Ok(match code {
            opcode::INIT => self.init()?,
            opcode::ACCESS => Operation::Access { mask: self.arg::<AccessIn>()?.mask },
            opcode::INTERRUPT => Operation::Interrupt { unique: self.arg::<InterruptIn>()?.unique },
            opcode::BMAP => {
                let arg: BmapIn = self.arg()?;
                Operation::Bmap { block: arg.block, blocksize: arg.blocksize }
            }
            opcode::DESTROY => Operation::Destroy,
            opcode::IOCTL => {
                let arg: IoctlIn = self.arg()?;
                Operation::Ioctl(Ioctl {
                    fh: arg.fh,
                    flags: arg.flags,
                    cmd: arg.cmd,
                    arg: arg.arg,
                    data: self.data(arg.in_size)?,
                    out_size: arg.out_size,
                })
            }
            opcode::POLL => {
                let arg: PollIn = self.arg()?;
                let wakeup = (arg.flags & POLL_SCHEDULE_NOTIFY != 0).then_some(arg.kh);
                Operation::Poll { fh: arg.fh, wakeup, events: arg.events }
            }
            opcode::NOTIFY_REPLY => {
                let arg: NotifyRetrieveIn = self.arg()?;
                Operation::NotifyReply { offset: arg.offset, data: self.data(arg.size)? }
            }
            opcode::BATCH_FORGET => {
                let count = self.arg::<BatchForgetIn>()?.count as usize;
                let length = count.checked_mul(size_of::<ForgetOne>()).ok_or(Errno::IO)?;
                let bytes = self.payload.get(..length).ok_or(Errno::IO)?;
                Operation::BatchForget { forgets: ForgetList { bytes } }
            }
            opcode::FALLOCATE => {
                let arg: FallocateIn = self.arg()?;
                Operation::FAllocate { fh: arg.fh, offset: arg.offset, length: arg.length, mode: arg.mode }
            }
            opcode::LSEEK => {
                let arg: LseekIn = self.arg()?;
                Operation::LSeek { fh: arg.fh, offset: arg.offset, whence: arg.whence }
            }
            opcode::COPY_FILE_RANGE | opcode::COPY_FILE_RANGE_64 => {
                Operation::CopyFileRange(copy_file_range(&self.arg()?))
            }
            opcode::SYNCFS => Operation::SyncFs,
            opcode::STATX => {
                let arg: StatxIn = self.arg()?;
                let fh = (arg.getattr_flags & GETATTR_FH != 0).then_some(arg.fh);
                Operation::Statx { fh, flags: arg.sx_flags, mask: arg.sx_mask }
            }
            _ => return Err(Errno::NOSYS),
        })
    }

    fn init(&self) -> Result<Operation<'a>, Errno> {
        let arg: InitIn = self.arg()?;
        let mut flags = u64::from(arg.flags);
        if flags & InitFlags::INIT_EXT.bits() != 0
            && let Some(more) = InitInExt::read_from(self.payload)
        {
            flags |= u64::from(more.flags2) << 32;
        }
        Ok(Operation::Init(InitRequest {
            major: arg.major,
            minor: arg.minor,
            max_readahead: arg.max_readahead,
            flags: InitFlags::from_bits_retain(flags),
        }))
    }
}

fn set_attr(arg: &SetAttrIn) -> SetAttr {
    let valid = SetAttrValid::from_bits_retain(arg.valid);
    let time = |set, now, seconds: u64, nanoseconds| {
        if valid.contains(now) {
            Some(SetTime::Now)
        } else {
            valid.contains(set).then_some(SetTime::At { seconds: seconds as i64, nanoseconds })
        }
    };
    SetAttr {
        fh: valid.contains(SetAttrValid::FH).then_some(arg.fh),
        mode: valid.contains(SetAttrValid::MODE).then_some(arg.mode),
        uid: valid.contains(SetAttrValid::UID).then_some(arg.uid),
        gid: valid.contains(SetAttrValid::GID).then_some(arg.gid),
        size: valid.contains(SetAttrValid::SIZE).then_some(arg.size),
        atime: time(SetAttrValid::ATIME, SetAttrValid::ATIME_NOW, arg.atime, arg.atimensec),
        mtime: time(SetAttrValid::MTIME, SetAttrValid::MTIME_NOW, arg.mtime, arg.mtimensec),
        ctime: valid
            .contains(SetAttrValid::CTIME)
            .then_some(SetTime::At { seconds: arg.ctime as i64, nanoseconds: arg.ctimensec }),
        lock_owner: valid.contains(SetAttrValid::LOCKOWNER).then_some(arg.lock_owner),
        kill_suid_gid: valid.contains(SetAttrValid::KILL_SUIDGID),
        valid,
    }
}

fn copy_file_range(arg: &CopyFileRangeIn) -> CopyFileRange {
    CopyFileRange {
        fh_in: arg.fh_in,
        offset_in: arg.off_in,
        node_id_out: arg.nodeid_out,
        fh_out: arg.fh_out,
        offset_out: arg.off_out,
        len: arg.len,
        flags: arg.flags,
    }
}
