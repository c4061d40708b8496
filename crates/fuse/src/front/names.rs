//! Names found, made, moved and removed.

use nacre_client::{Caller, Created, NewFile, RenameFlags};
use nacre_types::{Fid, FileKind, Status, StatusResult, perm};

use super::data::to_open;
use super::{Front, caller, unsupported};
use crate::reply::Reply;
use crate::request::{Operation, Request};

impl Front {
    pub(super) fn name_operation(&self, request: &Request<'_>, reply: &mut Reply<'_>) -> StatusResult<()> {
        let caller = caller(request);
        let fid = || self.fid(request.node_id);
        match request.op {
            Operation::Lookup { name } => return self.lookup(request, name, reply),
            Operation::Create { name, flags, mode, umask, kill_suid_gid } => {
                let (open, sync) = to_open(flags, kill_suid_gid);
                let what = Created { new: NewFile::Node { rdev: 0 }, mode: regular(mode), umask };
                let exclusive = flags as i32 & libc::O_EXCL != 0;
                let (found, opened) =
                    self.client.opens.create_open(&caller, fid()?, name, &what, (open, sync), exclusive)?;
                reply.created(&self.entry(&found), &self.opened(&opened, open, flags)?);
            }
            Operation::TmpFile { flags, mode, umask } => {
                let (open, sync) = to_open(flags, false);
                let (found, opened) =
                    self.client.opens.tmpfile(&caller, fid()?, regular(mode), umask, (open, sync))?;
                reply.created(&self.entry(&found), &self.opened(&opened, open, flags)?);
            }
            Operation::MkDir { name, mode, umask } => {
                let mode = FileKind::Directory.mode_bits() | mode & 0o7777;
                let what = Created { new: NewFile::Directory, mode, umask };
                reply.entry(&self.entry(&self.client.names.create(&caller, fid()?, name, &what)?));
            }
            Operation::MkNod { name, mode, rdev, umask } => {
                let what = Created::node(mode, rdev, umask)?;
                reply.entry(&self.entry(&self.client.names.create(&caller, fid()?, name, &what)?));
            }
            Operation::Symlink { name, target } => {
                let mode = FileKind::Symlink.mode_bits() | 0o777;
                let what = Created { new: NewFile::Symlink { target }, mode, umask: 0 };
                reply.entry(&self.entry(&self.client.names.create(&caller, fid()?, name, &what)?));
            }
            Operation::Link { node_id, new_name } => {
                let linked = self.fid(node_id)?;
                self.check_protected(&caller, linked)?;
                let found = self.client.names.link(&caller, linked, fid()?, new_name)?;
                reply.entry(&self.entry(&found));
            }
            Operation::Unlink { name } => {
                self.client.names.unlink(&caller, fid()?, name, false)?;
                reply.ok();
            }
            Operation::RmDir { name } => {
                self.client.names.unlink(&caller, fid()?, name, true)?;
                reply.ok();
            }
            Operation::Rename { name, new_parent, new_name, flags } => {
                let flags = rename_flags(flags)?;
                let to = (self.fid(new_parent)?, new_name);
                if !self.client.names.rename(&caller, (fid()?, name), to, flags)? {
                    self.expire_names();
                }
                reply.ok();
            }
            Operation::ReadLink => reply.bytes(&self.client.inodes.readlink(fid()?)?),
            _ => return unsupported(),
        }
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

    fn lookup(&self, request: &Request<'_>, name: &[u8], reply: &mut Reply<'_>) -> StatusResult<()> {
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
