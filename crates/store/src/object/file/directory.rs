//! The directory of a file store: its header, its lock, and its creation.
//!
//! `superblock` is written last when a store is created. A directory that contains only the remains of an
//! unfinished creation counts as empty.

use super::options::FileStoreOptions;
use super::{local, ops};
use crate::exclusive::Exclusive;
use crate::object::nxd::{MARK, MARK_NEW};
use crate::object::{ObjectError, Result};
use nacre_env::twice;
use nacre_ondisk::object::{OBJECT_LABEL_MAX, ObjectDirectoryError, ObjectDirectoryHeader};
use nacre_types::Timestamp;
use rustix::fs::{self, Mode, OFlags};
use rustix::io::Errno;
use std::ffi::OsString;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

/// Name of the header's file.
const HEADER: &str = "superblock";
/// Temporary name of the header's file.
const HEADER_NEW: &str = "superblock.new";
/// Name of the index's directory.
pub(in crate::object) const INDEX: &str = "index";
/// Name of the directory above the slot files.
pub(super) const OBJECTS: &str = "objects";
/// Name of a directory that the object server keeps next to the store's own: the clients that have locks. The
/// store leaves it alone.
pub const LOCK_CLIENTS: &str = "lock_clients";
/// File in which the server of the target records whether it is on flash.
pub const CLASS: &str = "class";
/// File that exists while an added target is not registered yet. Only its name is known here.
pub const JOINING: &str = "joining";
/// File with the address at which a target in a directory of its own is served. Only its name is known here.
pub const ADDRESS: &str = "address";
/// Directory in the root of a disk with ext4.
pub(in crate::object) const LOST_AND_FOUND: &str = "lost+found";
/// Temporary files of `joining` and `address` that a kill may leave.
const UNFINISHED: [&str; 2] = ["joining.new", "address.new"];

/// A directory that this process has locked for itself. Dropping it releases the lock.
pub(super) struct Directory {
    fd: Exclusive,
    /// Header; `None` until [`Directory::finish`] of a store that is being created.
    pub(super) header: Option<ObjectDirectoryHeader>,
    /// Copies of the header that could not be read.
    pub(super) damaged: Vec<PathBuf>,
}

pub(in crate::object) fn path_error(action: &'static str, path: &Path, error: Errno) -> ObjectError {
    ObjectError::Path { action, path: path.to_owned(), source: error.into() }
}

/// Locks the directory of a store for this process, and creates it if asked to.
pub(in crate::object) fn take(dir: &Path, create: bool, read_only: bool) -> Result<Exclusive> {
    if create {
        match fs::mkdir(dir, Mode::RWXU) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(error) => return Err(path_error("make", dir, error)),
        }
    }
    let flags = OFlags::DIRECTORY | OFlags::RDONLY | OFlags::CLOEXEC;
    let fd = match fs::open(dir, flags, Mode::empty()) {
        Ok(fd) => fd,
        Err(Errno::NOENT) => return Err(ObjectError::Missing { dir: dir.to_owned() }),
        Err(error) => return Err(path_error("open", dir, error)),
    };
    let fd = if read_only { Exclusive::share(fd) } else { Exclusive::take(fd) };
    let fd = fd.map_err(|error| path_error("lock", dir, error))?;
    fd.ok_or_else(|| ObjectError::InUse { dir: dir.to_owned() })
}

/// Prepares a directory without a store for one, if it `is_empty` and creation was requested.
pub(in crate::object) fn prepare(dir: &Path, is_empty: bool, create: bool) -> Result<()> {
    if !is_empty {
        return Err(ObjectError::Foreign { dir: dir.to_owned() });
    }
    if !create {
        return Err(ObjectError::Missing { dir: dir.to_owned() });
    }
    fs::chmod(dir, Mode::RWXU).map_err(|error| path_error("protect", dir, error))
}

impl Directory {
    /// Opens and locks `dir`, creating it if `options` ask for it, and checks that it is a store or can
    /// become one.
    pub(super) fn open(dir: &Path, options: &FileStoreOptions) -> Result<Directory> {
        let fd = take(dir, options.create, options.read_only)?;
        let found = read_header(dir)?;
        if let Some(found) = found.as_ref().filter(|_| !options.read_only) {
            restore_copy(dir, HEADER, found);
        }
        let damaged = found.iter().flat_map(|found| found.damaged.clone()).collect();
        let header = found.map(|found| found.value);
        match &header {
            Some(header) => check_label(dir, &header.label, &options.label)?,
            None => prepare(dir, is_empty(&fd, dir)?, options.create)?,
        }
        Ok(Directory { fd, header, damaged })
    }

    /// Writes the header: the store is complete.
    pub(super) fn finish(&mut self, dir: &Path, header: ObjectDirectoryHeader) -> Result<()> {
        let write = || {
            let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC | OFlags::CLOEXEC;
            let file = fs::openat(&self.fd, HEADER_NEW, flags, Mode::RUSR | Mode::WUSR)?;
            ops::write_all(file.as_fd(), 0, &header.encode())?;
            fs::fsync(&file)?;
            fs::renameat(&self.fd, HEADER_NEW, &self.fd, HEADER)?;
            fs::fsync(&self.fd)?;
            twice::write_copy(dir, HEADER, &header.encode())
                .map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))
        };
        write().map_err(|error| path_error("write the superblock in", dir, error))?;
        self.header = Some(header);
        Ok(())
    }

    /// Returns the names in the directory that do not belong to a store.
    pub(super) fn strays(&self, dir: &Path) -> Result<Vec<std::path::PathBuf>> {
        strays(&self.fd, dir, HEADER, &[&[HEADER_NEW, INDEX, OBJECTS][..], &UNFINISHED])
    }
}

/// Returns a header for a new store.
pub(super) fn new_header(dir: &Path, label: &str, checksums: bool) -> Result<ObjectDirectoryHeader> {
    let uuid = draw_identity(dir)?;
    Ok(ObjectDirectoryHeader {
        uuid,
        created: Timestamp::from(nacre_env::clock::wall()),
        label: label.to_owned(),
        checksums,
    })
}

/// Returns a random identity for the store in `dir`.
pub(in crate::object) fn draw_identity(dir: &Path) -> Result<[u8; 16]> {
    let mut uuid = [0u8; 16];
    // SAFETY: the kernel writes at most `uuid.len()` bytes into `uuid`, which outlives the call.
    let drawn = unsafe { libc::getrandom(uuid.as_mut_ptr().cast(), uuid.len(), 0) };
    if drawn != uuid.len() as isize {
        return Err(path_error("draw an identity for", dir, Errno::IO));
    }
    Ok(uuid)
}

/// Whether a label is printable ASCII of limited length.
pub(in crate::object) fn is_label(label: &str) -> bool {
    label.len() <= OBJECT_LABEL_MAX && label.bytes().all(|b| b.is_ascii_graphic())
}

/// Checks that a store belongs to the requested target, if one was requested.
pub(in crate::object) fn check_label(dir: &Path, found: &str, wanted: &str) -> Result<()> {
    if wanted.is_empty() || found == wanted {
        return Ok(());
    }
    Err(ObjectError::OtherTarget { dir: dir.to_owned(), found: found.to_owned(), wanted: wanted.to_owned() })
}

/// Whether a store was created with checksums of data; false if there is no store.
pub fn has_checksums(dir: &Path) -> bool {
    read_header(dir).ok().flatten().is_some_and(|found| found.value.checksums)
}

fn read_header(dir: &Path) -> Result<Option<twice::Found<ObjectDirectoryHeader>>> {
    let format = twice::Format {
        decode: |bytes, path| {
            let dir = path.parent().unwrap_or(path).to_owned();
            ObjectDirectoryHeader::decode(bytes).map_err(|source| ObjectError::Header { dir, source })
        },
        unreadable: |error, path| ObjectError::Path { action: "read", path: path.to_owned(), source: error },
        is_final: |error| {
            matches!(error, ObjectError::Header { source: ObjectDirectoryError::Version { .. }, .. })
        },
    };
    twice::read(dir, HEADER, &format)
}

/// Makes the two copies of a file equal. An error is ignored: the store works with one copy.
pub(in crate::object) fn restore_copy<T>(dir: &Path, name: &str, found: &twice::Found<T>) {
    if let Err(error) = twice::restore(dir, name, found) {
        log::warn!("cannot write the copy of {name} in {}: {error}", dir.display());
    }
}

/// Returns the names in a directory, without `.` and `..`.
pub(in crate::object) fn names(fd: impl AsFd, path: &Path) -> Result<Vec<Vec<u8>>> {
    local::names(fd).map_err(|error| path_error("list", path, error))
}

/// Returns the names in the directory of a target that are not its superblock's, not one of `own`, and not those of
/// the object server, a cache of small writes, or ext4.
pub(in crate::object) fn strays(
    fd: impl AsFd,
    dir: &Path,
    header: &str,
    own: &[&[&str]],
) -> Result<Vec<PathBuf>> {
    let common = [LOCK_CLIENTS, CLASS, JOINING, ADDRESS, MARK, MARK_NEW, LOST_AND_FOUND];
    let is_known = |name: &[u8]| {
        name == header.as_bytes()
            || twice::is_copy_of(header, name)
            || own.iter().copied().flatten().chain(&common).any(|known| known.as_bytes() == name)
    };
    let names = names(fd, dir)?.into_iter().filter(|name| !is_known(name));
    Ok(names.map(|name| dir.join(OsString::from_vec(name))).collect())
}

/// Whether nothing in the directory could be user data: only remains of an unfinished creation.
fn is_empty(fd: impl AsFd, dir: &Path) -> Result<bool> {
    for name in names(fd, dir)? {
        match name.as_slice() {
            b"lost+found" | b"superblock.new" | b"superblock.copy.new" | b"index" => {}
            b"objects" => {
                let objects = dir.join(OBJECTS);
                let flags = OFlags::DIRECTORY | OFlags::RDONLY | OFlags::CLOEXEC;
                let fd = fs::open(&objects, flags, Mode::empty())
                    .map_err(|error| path_error("open", &objects, error))?;
                for index in names(&fd, &objects)? {
                    let below = objects.join(std::ffi::OsStr::new(&*String::from_utf8_lossy(&index)));
                    let fd = fs::open(&below, flags, Mode::empty())
                        .map_err(|error| path_error("open", &below, error))?;
                    if !names(&fd, &below)?.is_empty() {
                        return Ok(false);
                    }
                }
            }
            _ => return Ok(false),
        }
    }
    Ok(true)
}
