//! Programs: they carry operations out through a client, as the kernel would: paths by lookups, the rest by
//! FID.

use crate::history::{Call, History, Reply};
use crate::invariants::sizes;
use crate::mount::root;
use crate::moves;
use crate::operation::{ALL_PARTS, Operation, Path, Place, Region, SLOTS, name};
use nacre_client::{
    Client, Created, FileLock, LockFamily, LockMode, LockOwner, NewFile, OpenFlags, Reader, RenameFlags,
    WriteOptions, XattrFlags,
};
use nacre_layout::DirDefault;
use nacre_types::{Fid, SetAttr, SetAttrValid, Status};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// Bytes of a page of a listing.
const PAGE_BYTES: u32 = 4096;
/// Entries of a directory at most; a listing that does not end would never return.
const ENTRIES_MAX: usize = 1000;

/// Bytes of a part of a file that is locked.
const PART_BYTES: u64 = 4096;

type Result<T> = std::result::Result<T, Status>;

/// A program of a client, one call at a time.
pub(crate) struct Program {
    pub(crate) number: usize,
    pub(crate) client: Arc<Client>,
    pub(crate) history: Arc<History>,
    /// Open files: inode and handle.
    slots: [Option<(Fid, u64)>; SLOTS as usize],
    /// Number of writes so far.
    pub(crate) writes: u8,
    /// File locks that it has set and not released: inode, handle and region.
    locked: Vec<(Fid, u64, Region)>,
}

fn file(attr: &nacre_types::Attr) -> Reply {
    Reply::Found { fid: attr.fid, directory: attr.is_dir() }
}

/// Returns what the `write`th write of a program consists of, from 1: neighbouring writes differ, and no write looks
/// like a hole.
pub(crate) fn byte_of_write(program: usize, write: u8) -> u8 {
    (write.wrapping_mul(7).wrapping_add(program as u8 * 83)) | 1
}

/// Returns the first and the last byte of parts of a file.
fn bytes_of(first: u8, last: u8) -> (u64, u64) {
    (u64::from(first) * PART_BYTES, u64::from(last) * PART_BYTES + PART_BYTES - 1)
}

/// Returns the name of an extended attribute.
pub(crate) fn xattr(number: u8) -> Vec<u8> {
    format!("user.{number}").into_bytes()
}

impl Program {
    pub(crate) fn new(number: usize, client: Arc<Client>, history: Arc<History>) -> Program {
        Program { number, client, history, slots: [None; SLOTS as usize], writes: 0, locked: Vec::new() }
    }

    fn call(&self, call: Call, run: impl FnOnce(&Client) -> Result<Reply>) -> Result<Reply> {
        // As the front door does: conditions between client and servers are I/O errors for programs.
        let run = || run(&self.client).map_err(|status| if status.0 < 4096 { status } else { Status::EIO });
        self.history.record(self.number, call, run)
    }

    /// Looks a name up.
    pub(crate) fn lookup(&self, parent: Fid, name: Vec<u8>) -> Result<(Fid, bool)> {
        let call = Call::Lookup { parent, name: name.clone() };
        let reply = self.call(call, |client| match client.names.lookup(&root(), parent, &name) {
            Ok(Ok(found)) => {
                client.inodes.forget(found.node, 1);
                Ok(file(&found.attr))
            }
            // What the name led to was removed meanwhile: the kernel makes no difference.
            Ok(Err(_)) | Err(Status::ENOENT) => Ok(Reply::Absent),
            Err(status) => Err(status),
        })?;
        match reply {
            Reply::Found { fid, directory } => Ok((fid, directory)),
            _ => Err(Status::ENOENT),
        }
    }

    /// Finds the inode at `path`.
    fn find(&self, path: &Path) -> Result<(Fid, bool)> {
        let mut at = (Fid::ROOT, true);
        for number in &path.0 {
            if !at.1 {
                return Err(Status::ENOTDIR);
            }
            at = self.lookup(at.0, name(*number))?;
        }
        Ok(at)
    }

    /// Finds the directory of `path`, and returns it with the last name.
    fn parent(&self, path: &Path) -> Result<(Fid, Vec<u8>)> {
        let (last, above) = path.0.split_last().ok_or(Status::EBUSY)?;
        match self.find(&Path(above.to_vec()))? {
            (fid, true) => Ok((fid, name(*last))),
            (_, false) => Err(Status::ENOTDIR),
        }
    }

    /// Returns the open file of a slot: inode and handle.
    pub(crate) fn slot(&self, slot: u8) -> Result<(Fid, u64)> {
        self.slots[usize::from(slot % SLOTS)].ok_or(Status::EBADF)
    }

    /// Carries an operation out. An operation that is not possible at present does nothing.
    pub(crate) fn run(&mut self, operation: &Operation) {
        // Results are in the history.
        let _ = match operation {
            Operation::Open { slot, path, create, exclusive, truncate } => {
                self.open(*slot, path, (*create, *exclusive, *truncate))
            }
            Operation::Close { slot } => self.close(*slot),
            Operation::Write { slot, offset, len, sync } => self.write(*slot, Some(*offset), *len, *sync),
            Operation::Append { slot, len } => self.write(*slot, None, *len, false),
            Operation::Read { slot, offset, len } => self.read(*slot, *offset, *len),
            Operation::Truncate { path, size } => self.truncate(path, *size),
            Operation::Stat { path } => self.find(path).and_then(|(fid, _)| self.stat(fid)),
            Operation::Mkdir { path, place } => self.mkdir(path, *place),
            Operation::Rmdir { path } => self.unlink(path, true),
            Operation::Unlink { path } => self.unlink(path, false),
            Operation::Link { from, to } => self.link(from, to),
            Operation::Rename { from, to } => self.rename(from, to),
            Operation::List { path } => match self.find(path) {
                Ok((fid, true)) => self.list(fid).map(|_| ()),
                _ => Ok(()),
            },
            Operation::SetXattr { path, name, value } => self.set_xattr(path, *name, *value),
            Operation::GetXattr { path, name } => self.get_xattr(path, *name),
            Operation::Fsync { slot } => self.fsync(*slot),
            Operation::FsyncDir { path } => self.fsync_dir(path),
            Operation::Sleep { ms } => {
                nacre_env::thread::sleep(Duration::from_millis((*ms).into()));
                Ok(())
            }
            Operation::Lock { slot, region, mode, wait } => self.lock(*slot, *region, *mode, *wait),
            // By the place of the client: the program has no other client yet.
            Operation::Remount => Ok(()),
            Operation::Relocate { slot, stripes } => self.slot(*slot).and_then(|(fid, handle)| {
                let moved = |client: &Client| moves::relocate(client, fid, handle, *stripes);
                self.call(Call::Relocate { fid }, |client| moved(client).map(|()| Reply::Done)).map(drop)
            }),
            Operation::Restripe { path, shards } => self.find(path).and_then(|(fid, is_dir)| {
                let begun = |client: &Client| moves::restripe(client, fid, *shards).map(|()| Reply::Done);
                if is_dir { self.call(Call::Restripe { fid }, begun).map(drop) } else { Ok(()) }
            }),
            Operation::Migrate { path, mdt, shards } => self.parent(path).and_then(|(parent, name)| {
                let call = Call::Migrate { parent, name: name.clone() };
                let begun = |client: &Client| moves::migrate(client, (parent, &name), *mdt, *shards);
                self.call(call, |client| begun(client).map(|()| Reply::Done)).map(drop)
            }),
        };
    }

    fn open(&mut self, slot: u8, path: &Path, how: (bool, bool, bool)) -> Result<()> {
        let _ = self.close(slot);
        // As the kernel does, once more with lookups that trust no cache.
        let opened = match self.try_open(path, how) {
            Err(Status::ESTALE) => self.try_open(path, how)?,
            opened => opened?,
        };
        self.slots[usize::from(slot % SLOTS)] = Some(opened);
        Ok(())
    }

    /// Opens as the kernel does: an existing file by FID; otherwise by a create, which may find a file made
    /// meanwhile.
    fn try_open(&self, path: &Path, (create, exclusive, truncate): (bool, bool, bool)) -> Result<(Fid, u64)> {
        let (parent, name) = self.parent(path)?;
        match self.lookup(parent, name.clone()) {
            Ok(_) if create && exclusive => Err(Status::EEXIST),
            Ok((_, true)) => Err(Status::EISDIR),
            Ok((fid, false)) => Ok((fid, self.open_fid(fid, truncate)?)),
            Err(Status::ENOENT) if create => self.create(parent, name, exclusive),
            Err(status) => Err(status),
        }
    }

    fn create(&self, parent: Fid, name: Vec<u8>, exclusive: bool) -> Result<(Fid, u64)> {
        let call = Call::Open { parent, name: name.clone(), exclusive };
        let what = Created { new: NewFile::Node { rdev: 0 }, mode: 0o100_644, umask: 0o022 };
        let flags = (OpenFlags::READ | OpenFlags::WRITE, false);
        let mut handle = 0;
        let reply = self.call(call, |client| {
            let (found, opened) =
                client.opens.create_open(&root(), parent, &name, &what, flags, exclusive)?;
            client.inodes.forget(found.node, 1);
            handle = opened.handle;
            Ok(Reply::Opened { fid: found.attr.fid, created: opened.created })
        })?;
        match reply {
            Reply::Opened { fid, .. } => Ok((fid, handle)),
            _ => Err(Status::EIO),
        }
    }

    /// Opens a file and returns the handle.
    pub(crate) fn open_fid(&self, fid: Fid, truncate: bool) -> Result<u64> {
        let truncation = if truncate { OpenFlags::TRUNCATE } else { OpenFlags::empty() };
        let flags = OpenFlags::READ | OpenFlags::WRITE | truncation;
        let mut handle = 0;
        self.call(Call::OpenFid { fid, truncate }, |client| {
            handle = client.opens.open(&root(), fid, flags, false)?.handle;
            Ok(Reply::Done)
        })?;
        Ok(handle)
    }

    fn close(&mut self, slot: u8) -> Result<()> {
        let (fid, handle) = self.slot(slot)?;
        let holds = |wanted: &dyn Fn(&(Fid, u64, Region)) -> bool| self.locked.iter().any(wanted);
        let has_parts = holds(&|(locked, _, region)| *locked == fid && *region != Region::File);
        if has_parts && holds(&|(_, through, region)| *through == handle && *region == Region::File) {
            // A close releases them in two steps, which are no single one of the model.
            let _ = self.lock(slot, ALL_PARTS, LockMode::Unlock, false);
        }
        let (fid, handle) = self.slots[usize::from(slot % SLOTS)].take().ok_or(Status::EBADF)?;
        self.locked.retain(|(locked, through, region)| match region {
            Region::File => *through != handle,
            Region::Parts(..) => *locked != fid,
        });
        self.close_handle(fid, handle)
    }

    /// Closes an open file, as close(2) does: flush, then release, each with the locks that end with it.
    pub(crate) fn close_handle(&self, fid: Fid, handle: u64) -> Result<()> {
        let unlock = |client: &Client, family, owner| {
            let (mode, pid) = (LockMode::Unlock, std::process::id());
            let lock = FileLock { family, owner, mode, start: 0, last: u64::MAX, pid };
            client.opens.set_lock(&root(), handle, lock, false)
        };
        let reply = self.call(Call::Close { fid, handle }, |client| {
            let flushed = client.data.flush(handle);
            let unlocked = match client.opens.may_hold_range_locks(handle) {
                true => unlock(client, LockFamily::Range, self.owner())
                    .and_then(|()| client.opens.forget_locker(handle, self.owner())),
                false => Ok(()),
            };
            let all = client.opens.unlock_with_open(handle, |family, owner| unlock(client, family, owner));
            client.opens.release(handle)?;
            flushed.and(unlocked).and(all).map(|()| Reply::Done)
        });
        reply.map(drop)
    }

    /// Returns the owner of locks on parts of files: the program.
    fn owner(&self) -> LockOwner {
        LockOwner(self.number as u64 + 1)
    }

    fn lock(&mut self, slot: u8, region: Region, mode: LockMode, wait: bool) -> Result<()> {
        let (fid, handle) = self.slot(slot)?;
        let (family, owner, (start, last)) = match region {
            Region::File => (LockFamily::File, LockOwner(handle << 8), (0, u64::MAX)),
            Region::Parts(first, last) => (LockFamily::Range, self.owner(), bytes_of(first, last)),
        };
        // A program that holds none can wait: it is in no deadlock.
        let wait = wait && self.locked.is_empty();
        let lock = FileLock { family, owner, mode, start, last, pid: std::process::id() };
        let reply = self.call(Call::Lock { fid, handle, region, mode }, |client| {
            if mode != LockMode::Unlock {
                client.opens.note_locker(handle, family, owner)?;
            }
            client.opens.set_lock(&root(), handle, lock, wait).map(|()| Reply::Done)
        });
        if mode != LockMode::Unlock {
            // After another failure it may have been set.
            if reply != Err(Status::EAGAIN) {
                self.locked.push((fid, handle, region));
            }
        } else if reply.is_ok() {
            self.locked.retain(|(locked, through, held)| match (held, region) {
                (Region::File, Region::File) => *through != handle,
                (Region::Parts(first, end), Region::Parts(from, to)) => {
                    *locked != fid || *first < from || *end > to
                }
                _ => true,
            });
        }
        reply.map(drop)
    }

    /// Closes all open files.
    pub(crate) fn end(&mut self) {
        for slot in 0..SLOTS {
            let _ = self.close(slot);
        }
    }

    fn write(&mut self, slot: u8, offset: Option<u64>, len: u32, sync: bool) -> Result<()> {
        let (fid, handle) = self.slot(slot)?;
        self.writes = self.writes.wrapping_add(1);
        let byte = byte_of_write(self.number, self.writes);
        let data = vec![byte; len as usize];
        let call = match offset {
            Some(offset) => Call::Write { fid, offset, len, byte, sync },
            None => Call::Append { fid, len, byte },
        };
        let options = WriteOptions { append: offset.is_none(), sync, ..WriteOptions::default() };
        let reply = self.call(call, |client| {
            let written = client.data.write(&root(), handle, offset.unwrap_or(0), &data, options)?;
            Ok(Reply::Written(written as u32))
        });
        reply.map(drop)
    }

    fn read(&self, slot: u8, offset: u64, len: u32) -> Result<()> {
        let (fid, handle) = self.slot(slot)?;
        self.read_handle(fid, handle, offset, len)
    }

    /// Reads from an open file.
    pub(crate) fn read_handle(&self, fid: Fid, handle: u64, offset: u64, len: u32) -> Result<()> {
        let reply = self.call(Call::Read { fid, offset, len }, |client| {
            let mut bytes = vec![0xee; len as usize];
            let read = client.data.read(handle, offset, &mut bytes, Reader::Program)?;
            bytes.truncate(read);
            Ok(Reply::Bytes(bytes))
        });
        reply.map(drop)
    }

    fn truncate(&self, path: &Path, size: u64) -> Result<()> {
        let set = SetAttr { valid: SetAttrValid::SIZE, size, ..SetAttr::default() };
        let truncate = || {
            let (fid, false) = self.find(path)? else { return Err(Status::EISDIR) };
            self.call(Call::Truncate { fid, size }, |client| {
                client.names.setattr(&root(), fid, set).map(|_| Reply::Done)
            })
        };
        match truncate() {
            // As the kernel does.
            Err(Status::ESTALE) => truncate().map(drop),
            reply => reply.map(drop),
        }
    }

    /// Returns attributes.
    pub(crate) fn stat(&self, fid: Fid) -> Result<()> {
        let reply = self.call(Call::Stat { fid }, |client| {
            let attr = client.inodes.getattr(fid)?;
            Ok(Reply::Attributes { directory: attr.is_dir(), size: attr.size, nlink: attr.nlink })
        });
        reply.map(drop)
    }

    fn mkdir(&self, path: &Path, place: Place) -> Result<()> {
        let (parent, name) = self.parent(path)?;
        let what = Created { new: NewFile::Directory, mode: 0o040_755, umask: 0o022 };
        let striped = place == Place::Striped;
        let reply = self.call(Call::Mkdir { parent, name: name.clone(), striped }, |client| {
            let found = match place {
                Place::Default => client.names.create(&root(), parent, &name, &what)?,
                Place::Mdt(mdt) => {
                    let default = DirDefault { index: mdt.into(), ..DirDefault::default() };
                    client.names.make_directory(&root(), (parent, &name), &what, &default)?
                }
                Place::Striped => {
                    let default = DirDefault { count: -1, index: 0, ..DirDefault::default() };
                    client.names.make_directory(&root(), (parent, &name), &what, &default)?
                }
            };
            client.inodes.forget(found.node, 1);
            Ok(file(&found.attr))
        });
        reply.map(drop)
    }

    fn unlink(&self, path: &Path, directory: bool) -> Result<()> {
        let (parent, name) = self.parent(path)?;
        let reply = self.call(Call::Unlink { parent, name: name.clone(), directory }, |client| {
            client.names.unlink(&root(), parent, &name, directory).map(|()| Reply::Done)
        });
        reply.map(drop)
    }

    fn link(&self, from: &Path, to: &Path) -> Result<()> {
        let (fid, false) = self.find(from)? else { return Err(Status::EPERM) };
        let (parent, name) = self.parent(to)?;
        let reply = self.call(Call::Link { fid, parent, name: name.clone() }, |client| {
            let found = client.names.link(&root(), fid, parent, &name)?;
            client.inodes.forget(found.node, 1);
            Ok(Reply::Done)
        });
        reply.map(drop)
    }

    fn rename(&self, from: &Path, to: &Path) -> Result<()> {
        let (from, to) = (self.parent(from)?, self.parent(to)?);
        let reply = self.call(Call::Rename { from: from.clone(), to: to.clone() }, |client| {
            let (from, to) = ((from.0, &from.1[..]), (to.0, &to.1[..]));
            client.names.rename(&root(), from, to, RenameFlags::empty()).map(|_| Reply::Done)
        });
        reply.map(drop)
    }

    /// Lists a directory.
    pub(crate) fn list(&self, fid: Fid) -> Result<BTreeMap<Vec<u8>, u64>> {
        let reply = self.call(Call::List { fid }, |client| {
            let handle = client.listings.opendir(&root(), fid)?;
            let (mut names, mut offset) = (BTreeMap::new(), 0);
            let listed = loop {
                let before = offset;
                let read = client.listings.readdir(handle, offset, PAGE_BYTES, false, &mut |entry| {
                    offset = entry.next;
                    if entry.name != b"." && entry.name != b".." {
                        names.insert(entry.name.to_vec(), entry.node);
                    }
                    true
                });
                match read {
                    Ok(()) if offset == before || names.len() > ENTRIES_MAX => break Ok(()),
                    Ok(()) => {}
                    Err(status) => break Err(status),
                }
            };
            client.listings.releasedir(handle);
            listed.map(|()| Reply::Names(names))
        })?;
        match reply {
            Reply::Names(names) => Ok(names),
            _ => Err(Status::EIO),
        }
    }

    fn set_xattr(&self, path: &Path, name: u8, value: u8) -> Result<()> {
        let (fid, _) = self.find(path)?;
        let reply = self.call(Call::SetXattr { fid, name, value }, |client| {
            let flags = XattrFlags::empty();
            client.names.setxattr(&root(), fid, &xattr(name), &[value], flags).map(|_| Reply::Done)
        });
        reply.map(drop)
    }

    fn get_xattr(&self, path: &Path, name: u8) -> Result<()> {
        let (fid, _) = self.find(path)?;
        self.get_xattr_of(fid, name)
    }

    fn get_xattr_of(&self, fid: Fid, name: u8) -> Result<()> {
        let reply = self.call(Call::GetXattr { fid, name }, |client| {
            let value = client.inodes.getxattr(&root(), fid, &xattr(name))?;
            Ok(Reply::Xattr(value.first().copied().unwrap_or(0)))
        });
        reply.map(drop)
    }

    fn fsync(&self, slot: u8) -> Result<()> {
        let (fid, handle) = self.slot(slot)?;
        let reply = self.call(Call::Fsync { fid }, |client| client.data.fsync(handle).map(|()| Reply::Done));
        reply.map(drop)
    }

    fn fsync_dir(&self, path: &Path) -> Result<()> {
        let (fid, true) = self.find(path)? else { return Err(Status::ENOTDIR) };
        let reply = self.call(Call::FsyncDir { fid }, |client| {
            let handle = client.listings.opendir(&root(), fid)?;
            let synced = client.listings.fsyncdir(handle);
            client.listings.releasedir(handle);
            synced.map(|()| Reply::Done)
        });
        reply.map(drop)
    }

    /// Reads the whole tree below a directory.
    ///
    /// # Errors
    /// A file whose sizes differ.
    pub(crate) fn audit(&self, directory: Fid) -> std::result::Result<(), String> {
        let _ = self.stat(directory);
        let Ok(names) = self.list(directory) else { return Ok(()) };
        for name in names.into_keys() {
            match self.lookup(directory, name) {
                Ok((fid, true)) => self.audit(fid)?,
                Ok((fid, false)) => self.audit_file(fid)?,
                Err(_) => {}
            }
        }
        Ok(())
    }

    fn audit_file(&self, fid: Fid) -> std::result::Result<(), String> {
        let _ = self.stat(fid);
        let _ = self.get_xattr_of(fid, 0);
        if let Ok(handle) = self.open_fid(fid, false) {
            let _ = self.read_handle(fid, handle, 0, 1 << 20);
            let _ = self.close_handle(fid, handle);
        }
        sizes::check(&self.client, fid)
    }
}
