//! Open files and their data. Reads and writes go between the transport's buffer and the client without a copy.

use nacre_client::{
    FallocateKind, LockFamily, LockOwner, OpenFlags, OpenedFile, Reader, SeekKind, WriteOptions,
};
use nacre_types::{Status, StatusResult};

use super::open_mode::{OpenCase, open_flags};
use super::{Front, LockScope, caller, done, gone};
use crate::abi;
use crate::reply::{Opened, Reply};
use crate::request::{CopyFileRange, Request, Write};

/// The kernel opens the file to execute it (`FMODE_EXEC` among the flags of open(2)).
const OPEN_TO_EXECUTE: u32 = 0x20;

const PUNCH_HOLE: u32 = libc::FALLOC_FL_PUNCH_HOLE as u32;
const KEEP_SIZE: u32 = libc::FALLOC_FL_KEEP_SIZE as u32;
const ZERO_RANGE: u32 = libc::FALLOC_FL_ZERO_RANGE as u32;

/// How a file is opened, from the flags of open(2); and whether each write is to be durable.
pub(super) fn to_open(flags: u32, kill_suid_gid: bool) -> (OpenFlags, bool) {
    let mut open = match flags as i32 & libc::O_ACCMODE {
        libc::O_WRONLY => OpenFlags::WRITE,
        libc::O_RDWR => OpenFlags::READ | OpenFlags::WRITE,
        // Who may execute need not be allowed to read.
        _ if flags & OPEN_TO_EXECUTE != 0 => OpenFlags::EXEC,
        _ => OpenFlags::READ,
    };
    for (bit, flag) in [(libc::O_TRUNC, OpenFlags::TRUNCATE), (libc::O_APPEND, OpenFlags::APPEND)] {
        open.set(flag, flags as i32 & bit != 0);
    }
    open.set(OpenFlags::KILL_PRIV, kill_suid_gid);
    (open, flags as i32 & libc::O_DSYNC != 0)
}

/// What `fallocate` with `mode` does.
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

impl Front {
    /// Reads into the transport's buffer. The kernel names a lock owner when a program reads around the page cache; otherwise it
    /// fills pages.
    pub(super) fn read(
        &self,
        fh: u64,
        offset: u64,
        size: u32,
        flags: i32,
        has_owner: bool,
        reply: &mut Reply<'_>,
    ) -> StatusResult<()> {
        let buffer = reply.read_buffer(size as usize);
        let reader = match has_owner {
            false => Reader::Pages,
            true if flags & libc::O_NONBLOCK != 0 => Reader::Hurried,
            true => Reader::Program,
        };
        self.client.opens.keep_access_time(fh, flags & libc::O_NOATIME != 0)?;
        let bytes = self.client.data.read(fh, offset, buffer, reader)?;
        reply.read_done(bytes);
        Ok(())
    }

    pub(super) fn write(
        &self,
        request: &Request<'_>,
        write: &Write<'_>,
        reply: &mut Reply<'_>,
    ) -> StatusResult<()> {
        let flags = write.flags as i32;
        // The kernel's own write-back has settled on its offsets, whatever the handle's flags.
        let options = WriteOptions {
            append: flags & libc::O_APPEND != 0 && !write.from_cache,
            sync: flags & libc::O_DSYNC != 0,
            kill_priv: write.kill_suid_gid,
            from_cache: write.from_cache,
            through_cache: write.lock_owner.is_none() && !write.from_cache,
            direct: flags & libc::O_DIRECT != 0,
            hurried: flags & libc::O_NONBLOCK != 0,
            owner: write.lock_owner.map(LockOwner),
        };
        let bytes = self.client.data.write(&caller(request), write.fh, write.offset, write.data, options)?;
        reply.written(bytes as u32);
        Ok(())
    }

    pub(super) fn open(
        &self,
        request: &Request<'_>,
        flags: u32,
        kill_suid_gid: bool,
        reply: &mut Reply<'_>,
    ) -> StatusResult<()> {
        let fid = self.fid(request.node_id)?;
        let (open, sync) = to_open(flags, kill_suid_gid);
        let opened = self.client.opens.open(&caller(request), fid, open, sync).map_err(gone)?;
        reply.opened(&self.opened(&opened, open, flags)?);
        Ok(())
    }

    pub(super) fn lseek(&self, fh: u64, offset: u64, whence: i32, reply: &mut Reply<'_>) -> StatusResult<()> {
        let kind = match whence {
            libc::SEEK_DATA => SeekKind::Data,
            libc::SEEK_HOLE => SeekKind::Hole,
            _ => return Err(Status::EINVAL),
        };
        reply.lseek(self.client.data.seek(fh, offset, kind)?);
        Ok(())
    }

    pub(super) fn copy_file_range(
        &self,
        request: &Request<'_>,
        copy: &CopyFileRange,
        reply: &mut Reply<'_>,
    ) -> StatusResult<()> {
        let (from, to) = ((copy.fh_in, copy.offset_in), (copy.fh_out, copy.offset_out));
        reply.copied(self.client.data.copy_range(&caller(request), from, to, copy.len)?);
        Ok(())
    }

    pub(super) fn flush(
        &self,
        request: &Request<'_>,
        fh: u64,
        lock_owner: u64,
        reply: &mut Reply<'_>,
    ) -> StatusResult<()> {
        let outcome = self.client.data.flush(fh);
        if self.options.locks == LockScope::Cluster && self.client.opens.may_hold_range_locks(fh) {
            self.unlock(request, fh, LockFamily::Range, LockOwner(lock_owner))?;
            self.client.opens.forget_locker(fh, LockOwner(lock_owner))?;
        }
        done(outcome, reply)
    }

    pub(super) fn release(&self, request: &Request<'_>, fh: u64, reply: &mut Reply<'_>) -> StatusResult<()> {
        let unlocked = self.unlock_all(request, fh);
        self.client.opens.release(fh)?;
        done(unlocked, reply)
    }

    /// What the kernel is told about an open file.
    pub(super) fn opened(&self, opened: &OpenedFile, open: OpenFlags, flags: u32) -> StatusResult<Opened> {
        let case = OpenCase {
            write_only: !open.intersects(OpenFlags::READ | OpenFlags::EXEC),
            read_only: !open.contains(OpenFlags::WRITE),
            direct: flags as i32 & libc::O_DIRECT != 0,
            executed: open.contains(OpenFlags::EXEC),
            size: opened.attr.size,
            exclusive: self.client.lease.exclusive(),
            local_locks: self.options.locks == LockScope::Local,
        };
        let flags = open_flags(self.options.cache, &case);
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
        let open = |flags: i32| to_open(flags as u32, false);
        assert_eq!(open(libc::O_RDONLY), (OpenFlags::READ, false));
        assert_eq!(open(libc::O_RDONLY | 0x20), (OpenFlags::EXEC, false));
        let (flags, sync) = open(libc::O_RDWR | libc::O_TRUNC | libc::O_APPEND | libc::O_SYNC);
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
        assert_eq!(to_fallocate(libc::FALLOC_FL_COLLAPSE_RANGE as u32), Err(Status::EOPNOTSUPP));
        assert_eq!(to_fallocate(PUNCH_HOLE | KEEP_SIZE), Ok(FallocateKind::Punch));
    }
}
