//! Names found, made, moved and removed.

use nacre_client::{Caller, Created, NewFile, RenameFlags};
use nacre_types::{Fid, FileKind, Status, StatusResult, perm};

use super::data::to_open;
use super::{Front, caller, done};
use crate::reply::Reply;
use crate::request::Request;

impl Front {
    pub(super) fn create_open(
        &self,
        request: &Request<'_>,
        name: &[u8],
        what: &Created<'_>,
        flags: u32,
        kill_suid_gid: bool,
        reply: &mut Reply<'_>,
    ) -> StatusResult<()> {
        let (caller, parent) = (caller(request), self.fid(request.node_id)?);
        let (open, sync) = to_open(flags, kill_suid_gid);
        let exclusive = flags as i32 & libc::O_EXCL != 0;
        let (found, opened) =
            self.client.opens.create_open(&caller, parent, name, what, (open, sync), exclusive)?;
        reply.created(&self.entry(&found), &self.opened(&opened, open, flags)?);
        Ok(())
    }

    pub(super) fn tmpfile(
        &self,
        request: &Request<'_>,
        flags: u32,
        mode: u32,
        umask: u32,
        reply: &mut Reply<'_>,
    ) -> StatusResult<()> {
        let (caller, parent) = (caller(request), self.fid(request.node_id)?);
        let (open, sync) = to_open(flags, false);
        let (found, opened) =
            self.client.opens.tmpfile(&caller, parent, regular(mode), umask, (open, sync))?;
        reply.created(&self.entry(&found), &self.opened(&opened, open, flags)?);
        Ok(())
    }

    pub(super) fn create(
        &self,
        request: &Request<'_>,
        name: &[u8],
        what: &Created<'_>,
        reply: &mut Reply<'_>,
    ) -> StatusResult<()> {
        let parent = self.fid(request.node_id)?;
        reply.entry(&self.entry(&self.client.names.create(&caller(request), parent, name, what)?));
        Ok(())
    }

    pub(super) fn link(
        &self,
        request: &Request<'_>,
        node_id: u64,
        new_name: &[u8],
        reply: &mut Reply<'_>,
    ) -> StatusResult<()> {
        let (caller, linked) = (caller(request), self.fid(node_id)?);
        self.check_protected(&caller, linked)?;
        let found = self.client.names.link(&caller, linked, self.fid(request.node_id)?, new_name)?;
        reply.entry(&self.entry(&found));
        Ok(())
    }

    pub(super) fn unlink(
        &self,
        request: &Request<'_>,
        name: &[u8],
        directory: bool,
        reply: &mut Reply<'_>,
    ) -> StatusResult<()> {
        let parent = self.fid(request.node_id)?;
        done(self.client.names.unlink(&caller(request), parent, name, directory), reply)
    }

    pub(super) fn rename(
        &self,
        request: &Request<'_>,
        name: &[u8],
        new_parent: u64,
        new_name: &[u8],
        flags: u32,
        reply: &mut Reply<'_>,
    ) -> StatusResult<()> {
        let flags = rename_flags(flags)?;
        let (to, from) = ((self.fid(new_parent)?, new_name), (self.fid(request.node_id)?, name));
        if !self.client.names.rename(&caller(request), from, to, flags)? {
            self.expire_names();
        }
        reply.ok();
        Ok(())
    }

    pub(super) fn readlink(&self, request: &Request<'_>, reply: &mut Reply<'_>) -> StatusResult<()> {
        reply.bytes(&self.client.inodes.readlink(self.fid(request.node_id)?)?);
        Ok(())
    }

    /// With `fs.protected_hardlinks` only who may read and write a file, or owns it, gives it names. The kernel sees to it
    /// elsewhere; of a FUSE file it does not know the rights. What is no regular file it refuses itself.
    fn check_protected(&self, caller: &Caller, fid: Fid) -> StatusResult<()> {
        if caller.uid == 0 || !hard_links_are_protected() {
            return Ok(());
        }
        let attr = self.client.inodes.getattr(fid)?;
        if attr.uid == caller.uid || !attr.is_regular() {
            return Ok(());
        }
        match self.client.inodes.access(caller, fid, perm::READ | perm::WRITE) {
            Err(Status::EACCES) => Err(Status::EPERM),
            verdict => verdict,
        }
    }

    pub(super) fn lookup(
        &self,
        request: &Request<'_>,
        name: &[u8],
        reply: &mut Reply<'_>,
    ) -> StatusResult<()> {
        let fid = self.fid(request.node_id)?;
        // Asked by those who hold a file handle: the inode need not be a directory.
        if name == b"." {
            reply.entry(&self.entry(&self.client.inodes.lookup_self(fid)?));
            return Ok(());
        }
        match self.client.names.lookup(&caller(request), fid, name)? {
            Ok(found) => reply.entry(&self.entry(&found)),
            Err(absent) => {
                let timeout = self.entry_timeout(absent.public && absent.keep);
                if timeout.is_zero() {
                    return Err(Status::ENOENT);
                }
                reply.entry(&self.absent(timeout));
            }
        }
        Ok(())
    }
}

/// A regular file.
pub(super) fn node(mode: u32, umask: u32) -> Created<'static> {
    Created { new: NewFile::Node { rdev: 0 }, mode: regular(mode), umask }
}

pub(super) fn directory(mode: u32, umask: u32) -> Created<'static> {
    Created { new: NewFile::Directory, mode: FileKind::Directory.mode_bits() | mode & 0o7777, umask }
}

pub(super) fn symlink(target: &[u8]) -> Created<'_> {
    Created { new: NewFile::Symlink { target }, mode: FileKind::Symlink.mode_bits() | 0o777, umask: 0 }
}

/// What the host says now: administrators change it while it runs.
fn hard_links_are_protected() -> bool {
    std::fs::read("/proc/sys/fs/protected_hardlinks").is_ok_and(|text| text.first() == Some(&b'1'))
}

fn regular(mode: u32) -> u32 {
    FileKind::Regular.mode_bits() | mode & 0o7777
}

/// # Errors
/// `EINVAL` for flags that we do not have (whiteouts).
fn rename_flags(flags: u32) -> StatusResult<RenameFlags> {
    let mut known = RenameFlags::empty();
    known.set(RenameFlags::NOREPLACE, flags & libc::RENAME_NOREPLACE != 0);
    known.set(RenameFlags::EXCHANGE, flags & libc::RENAME_EXCHANGE != 0);
    let rest = flags & !(libc::RENAME_NOREPLACE | libc::RENAME_EXCHANGE);
    if rest == 0 { Ok(known) } else { Err(Status::EINVAL) }
}
