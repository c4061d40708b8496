//! Open files and their data. Reads and writes pass between the transport's buffer and the client without a
//! copy.

use std::sync::Arc;

use nacre_client::{
    Caller, Client, Created, FallocateKind, LockFamily, LockOwner, NewFile, OpenFlags, OpenedFile, Reader,
    SeekKind, WriteOptions,
};
use nacre_types::{Fid, Status, StatusResult};
use rustix::fs::{FallocateFlags, OFlags};

use super::names::{Named, Names};
use super::open_mode::{CacheMode, OpenCase, open_flags};
use super::{LockScope, done, gone};
use crate::abi;
use crate::reply::{Opened, Reply};
use crate::request::{CopyFileRange, Read, Write};

/// Open for execution (`FMODE_EXEC` among the flags of open(2)).
const OPEN_TO_EXECUTE: OFlags = OFlags::from_bits_retain(0x20);

const PUNCH_HOLE: u32 = FallocateFlags::PUNCH_HOLE.bits();
const KEEP_SIZE: u32 = FallocateFlags::KEEP_SIZE.bits();
const ZERO_RANGE: u32 = FallocateFlags::ZERO_RANGE.bits();

/// Mode of an open.
#[derive(Clone, Copy)]
pub(super) struct Opening {
    /// Flags of open(2).
    flags: OFlags,
    /// Drop set-id bits.
    kill_priv: bool,
}

impl Opening {
    pub(super) fn new(flags: u32, kill_priv: bool) -> Opening {
        Opening { flags: OFlags::from_bits_retain(flags), kill_priv }
    }

    /// Returns the required rights and the effects on the file.
    fn rights(self) -> OpenFlags {
        let mut open = match self.flags & OFlags::ACCMODE {
            OFlags::WRONLY => OpenFlags::WRITE,
            OFlags::RDWR => OpenFlags::READ | OpenFlags::WRITE,
            // The right to execute does not imply the right to read.
            _ if self.flags.contains(OPEN_TO_EXECUTE) => OpenFlags::EXEC,
            _ => OpenFlags::READ,
        };
        open.set(OpenFlags::TRUNCATE, self.flags.contains(OFlags::TRUNC));
        open.set(OpenFlags::APPEND, self.flags.contains(OFlags::APPEND));
        open.set(OpenFlags::KILL_PRIV, self.kill_priv);
        open
    }

    /// Returns true if each write has to be durable.
    fn is_sync(self) -> bool {
        self.flags.contains(OFlags::DSYNC)
    }
}

/// Returns the operation of `fallocate` with `mode`.
pub(super) fn to_fallocate(mode: u32) -> StatusResult<FallocateKind> {
    Ok(match mode {
        0 => FallocateKind::Allocate,
        KEEP_SIZE => FallocateKind::AllocateKeepSize,
        mode if mode == PUNCH_HOLE | KEEP_SIZE => FallocateKind::Punch,
        ZERO_RANGE => FallocateKind::Zero,
        mode if mode == ZERO_RANGE | KEEP_SIZE => FallocateKind::ZeroKeepSize,
        _ => return Err(Status::EOPNOTSUPP),
    })
}

/// Open files of a mount, and locks on them.
pub(super) struct Files {
    pub(super) client: Arc<Client>,
    cache: CacheMode,
    locks: LockScope,
}

impl Files {
    pub(super) fn new(client: Arc<Client>, cache: CacheMode, locks: LockScope) -> Files {
        Files { client, cache, locks }
    }

    /// Returns true if every close of a descriptor causes a request.
    pub(super) fn closes_are_told(&self) -> bool {
        self.locks == LockScope::Cluster
    }

    /// Reads into the transport's buffer. The kernel sends a lock owner for a program's read that bypasses
    /// the page cache; without one it fills pages.
    pub(super) fn read(&self, read: &Read, reply: &mut Reply<'_>) -> StatusResult<()> {
        let flags = OFlags::from_bits_retain(read.flags);
        let buffer = reply.read_buffer(read.size as usize);
        let reader = match read.lock_owner {
            None => Reader::Pages,
            Some(_) if flags.contains(OFlags::NONBLOCK) => Reader::Hurried,
            Some(_) => Reader::Program,
        };
        self.client.opens.keep_access_time(read.fh, flags.contains(OFlags::NOATIME))?;
        let bytes = self.client.data.read(read.fh, read.offset, buffer, reader)?;
        reply.read_done(bytes);
        Ok(())
    }

    pub(super) fn write(
        &self,
        caller: &Caller,
        write: &Write<'_>,
        reply: &mut Reply<'_>,
    ) -> StatusResult<()> {
        let flags = OFlags::from_bits_retain(write.flags);
        // The kernel's write-back has fixed offsets, whatever the flags of the handle.
        let options = WriteOptions {
            append: flags.contains(OFlags::APPEND) && !write.from_cache,
            sync: flags.contains(OFlags::DSYNC),
            kill_priv: write.kill_suid_gid,
            from_cache: write.from_cache,
            through_cache: write.lock_owner.is_none() && !write.from_cache,
            direct: flags.contains(OFlags::DIRECT),
            hurried: flags.contains(OFlags::NONBLOCK),
            owner: write.lock_owner.map(LockOwner),
            is_exempt: false,
        };
        let bytes = self.client.data.write(caller, write.fh, write.offset, write.data, options)?;
        reply.written(bytes as u32);
        Ok(())
    }

    pub(super) fn open(
        &self,
        caller: &Caller,
        fid: Fid,
        opening: Opening,
        reply: &mut Reply<'_>,
    ) -> StatusResult<()> {
        let opened = self.client.opens.open(caller, fid, opening.rights(), opening.is_sync());
        reply.opened(&self.opened(&opened.map_err(gone)?, opening)?);
        Ok(())
    }

    /// Creates and opens a file.
    pub(super) fn create(
        &self,
        names: &Names,
        caller: &Caller,
        at: Named<'_>,
        what: &Created<'_>,
        opening: Opening,
        reply: &mut Reply<'_>,
    ) -> StatusResult<()> {
        let open = (opening.rights(), opening.is_sync());
        let exclusive = opening.flags.contains(OFlags::EXCL) || what.new == NewFile::Unnamed;
        let (found, opened) =
            self.client.opens.create_open(caller, at.parent, at.name, what, open, exclusive)?;
        reply.created(&names.entry(&found), &self.opened(&opened, opening)?);
        Ok(())
    }

    pub(super) fn lseek(&self, fh: u64, offset: u64, whence: u32, reply: &mut Reply<'_>) -> StatusResult<()> {
        let kind = match whence as i32 {
            libc::SEEK_DATA => SeekKind::Data,
            libc::SEEK_HOLE => SeekKind::Hole,
            _ => return Err(Status::EINVAL),
        };
        reply.lseek(self.client.data.seek(fh, offset, kind)?);
        Ok(())
    }

    pub(super) fn copy_file_range(
        &self,
        caller: &Caller,
        copy: &CopyFileRange,
        reply: &mut Reply<'_>,
    ) -> StatusResult<()> {
        let (from, to) = ((copy.fh_in, copy.offset_in), (copy.fh_out, copy.offset_out));
        reply.copied(self.client.data.copy_range(caller, from, to, copy.len)?);
        Ok(())
    }

    pub(super) fn flush(
        &self,
        caller: &Caller,
        fh: u64,
        owner: LockOwner,
        reply: &mut Reply<'_>,
    ) -> StatusResult<()> {
        let outcome = self.client.data.flush(fh);
        if self.closes_are_told() && self.client.opens.may_hold_range_locks(fh) {
            self.unlock(caller, fh, LockFamily::Range, owner)?;
            self.client.opens.forget_locker(fh, owner)?;
        }
        done(outcome, reply)
    }

    pub(super) fn release(&self, caller: &Caller, fh: u64, reply: &mut Reply<'_>) -> StatusResult<()> {
        let unlocked = self.unlock_all(caller, fh);
        self.client.opens.release(fh)?;
        done(unlocked, reply)
    }

    /// Returns the kernel's options for an open file.
    fn opened(&self, opened: &OpenedFile, opening: Opening) -> StatusResult<Opened> {
        let rights = opening.rights();
        let case = OpenCase {
            write_only: !rights.intersects(OpenFlags::READ | OpenFlags::EXEC),
            read_only: !rights.contains(OpenFlags::WRITE),
            direct: opening.flags.contains(OFlags::DIRECT),
            executed: rights.contains(OpenFlags::EXEC),
            size: opened.attr.size,
            exclusive: self.client.lease.exclusive(),
            local_locks: self.locks == LockScope::Local,
        };
        let flags = open_flags(self.cache, &case);
        if !flags.contains(abi::OpenFlags::DIRECT_IO) {
            self.client.opens.note_cached(opened.handle)?;
        }
        Ok(Opened { fh: opened.handle, flags, backing_id: 0 })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn open_flags_say_which_rights_are_needed() {
        let open = |flags: OFlags| {
            let opening = Opening { flags, kill_priv: false };
            (opening.rights(), opening.is_sync())
        };
        assert_eq!(open(OFlags::RDONLY), (OpenFlags::READ, false));
        assert_eq!(open(OFlags::RDONLY | OPEN_TO_EXECUTE), (OpenFlags::EXEC, false));
        let (flags, sync) = open(OFlags::RDWR | OFlags::TRUNC | OFlags::APPEND | OFlags::SYNC);
        assert_eq!(flags, OpenFlags::READ | OpenFlags::WRITE | OpenFlags::TRUNCATE | OpenFlags::APPEND);
        assert!(sync);
    }

    #[test]
    fn unknown_fallocate_modes_are_refused() {
        assert_eq!(
            to_fallocate(PUNCH_HOLE),
            Err(Status::EOPNOTSUPP),
            "a hole without KEEP_SIZE does not exist"
        );
        assert_eq!(to_fallocate(FallocateFlags::COLLAPSE_RANGE.bits()), Err(Status::EOPNOTSUPP));
        assert_eq!(to_fallocate(PUNCH_HOLE | KEEP_SIZE), Ok(FallocateKind::Punch));
    }
}
