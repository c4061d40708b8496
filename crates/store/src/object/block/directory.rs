//! The directory of a block store: its identity, its device, the index.
//!
//! `superblock` is written last when a store is created. A directory that contains only the remains of an
//! unfinished creation counts as empty; the file of the data does not.

use super::options::BlockStoreOptions;
use crate::exclusive::Exclusive;
use crate::object::file::directory::{
    LOST_AND_FOUND, check_label, names, path_error, prepare, restore_copy, strays, take,
};
use crate::object::{ObjectError, Result};
use nacre_env::twice;
use nacre_ondisk::block::{BLOCK_LABEL_LEN, BlockLabel, BlockLabelError};
use rustix::fs::{self, Mode, OFlags};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use super::label::DeviceProblem;

/// Name of the file with the label.
const HEADER: &str = "superblock";
/// Name of the index's directory.
pub(super) const INDEX: &str = "index";
/// File with the path of the device, relative to the directory or absolute.
const DEVICE: &str = "device";
/// The file used as the device if none is named.
pub(super) const OWN_DEVICE: &str = "data";
/// Temporary names of files that are being written.
const UNFINISHED: [&str; 5] =
    ["superblock.new", "superblock.copy.new", "device.new", "joining.new", "address.new"];

/// Whether this is the directory of a block store.
pub fn is_block_store(dir: &Path) -> bool {
    dir.join(DEVICE).exists()
}

/// Returns the path of the device of the block store in a directory; `None` if there is none.
pub fn device_of(dir: &Path) -> Option<PathBuf> {
    is_block_store(dir).then(|| read_device(dir).ok()).flatten().map(|device| dir.join(device))
}

/// A directory that this process has locked for itself. Dropping it releases the lock.
pub(super) struct Directory {
    fd: Exclusive,
    /// `None` until [`Directory::finish`] of a store that is being created.
    pub(super) label: Option<BlockLabel>,
    /// Path of the device.
    pub(super) device: PathBuf,
    /// Copies of the label that could not be read.
    pub(super) damaged: Vec<PathBuf>,
}

impl Directory {
    /// Opens and locks `dir`, creating it if `options` ask for it, and checks that it is a store or can
    /// become one.
    pub(super) fn open(dir: &Path, options: &BlockStoreOptions) -> Result<Directory> {
        let fd = take(dir, options.create, options.read_only)?;
        let found = read_label(dir)?;
        if let Some(found) = found.as_ref().filter(|_| !options.read_only) {
            restore_copy(dir, HEADER, found);
        }
        let damaged = found.iter().flat_map(|found| found.damaged.clone()).collect();
        let label = found.map(|found| found.value);
        let mut directory = Directory { fd, label, device: PathBuf::new(), damaged };
        match &directory.label {
            Some(label) => {
                check_label(dir, &label.label, &options.label)?;
                directory.device = read_device(dir)?;
            }
            None => {
                prepare(dir, directory.is_empty(dir)?, options.create)?;
                directory.device = options.device.clone().unwrap_or_else(|| PathBuf::from(OWN_DEVICE));
            }
        }
        Ok(directory)
    }

    /// Writes the path of the device and the label: the store is complete.
    pub(super) fn finish(&mut self, dir: &Path, label: BlockLabel) -> Result<()> {
        self.write_file(dir, DEVICE, self.device.as_os_str().as_bytes())?;
        self.write_file(dir, HEADER, &label.encode())?;
        self.label = Some(label);
        self.write_copy(dir)
    }

    fn write_copy(&self, dir: &Path) -> Result<()> {
        let Some(label) = &self.label else { return Ok(()) };
        let fail =
            |source| ObjectError::Path { action: "write the superblock in", path: dir.to_owned(), source };
        twice::write_copy(dir, HEADER, &label.encode()).map_err(fail)
    }

    /// Replaces the label: the device has another size.
    pub(super) fn set_label(&mut self, dir: &Path, label: &BlockLabel) -> Result<()> {
        self.write_file(dir, HEADER, &label.encode())?;
        self.label = Some(label.clone());
        self.write_copy(dir)
    }

    fn write_file(&self, dir: &Path, name: &str, bytes: &[u8]) -> Result<()> {
        let new = format!("{name}.new");
        let write = || {
            let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC | OFlags::CLOEXEC;
            let file = fs::openat(&self.fd, &*new, flags, Mode::RUSR | Mode::WUSR)?;
            let mut rest = bytes;
            while !rest.is_empty() {
                rest = &rest[rustix::io::write(&file, rest)?..];
            }
            fs::fsync(&file)?;
            fs::renameat(&self.fd, &*new, &self.fd, name)?;
            fs::fsync(&self.fd)
        };
        write().map_err(|error| path_error("write the superblock in", dir, error))
    }

    /// Returns the names in the directory that do not belong to a store.
    pub(super) fn strays(&self, dir: &Path) -> Result<Vec<PathBuf>> {
        strays(&self.fd, dir, HEADER, &[&[INDEX, DEVICE, OWN_DEVICE][..], &UNFINISHED])
    }

    /// Whether only remains of an unfinished creation are there.
    fn is_empty(&self, dir: &Path) -> Result<bool> {
        let left = [LOST_AND_FOUND, INDEX, DEVICE, OWN_DEVICE];
        let names = names(&self.fd, dir)?;
        Ok(names.iter().all(|name| left.iter().chain(&UNFINISHED).any(|left| left.as_bytes() == name)))
    }
}

fn read_label(dir: &Path) -> Result<Option<twice::Found<BlockLabel>>> {
    let format = twice::Format {
        decode: |bytes, path| {
            let decoded = match bytes.len() {
                BLOCK_LABEL_LEN => BlockLabel::decode(bytes),
                _ => Err(BlockLabelError::Foreign),
            };
            let device = path.display().to_string();
            decoded.map_err(|error| ObjectError::Device { device, problem: DeviceProblem::Label(error) })
        },
        unreadable: |error, path| ObjectError::Path { action: "read", path: path.to_owned(), source: error },
        is_final: |error| {
            matches!(
                error,
                ObjectError::Device { problem: DeviceProblem::Label(BlockLabelError::Version { .. }), .. }
            )
        },
    };
    twice::read(dir, HEADER, &format)
}

fn read_device(dir: &Path) -> Result<PathBuf> {
    let path = dir.join(DEVICE);
    let bytes = std::fs::read(&path).map_err(|source| ObjectError::Path { action: "read", path, source })?;
    let end = bytes.iter().position(|byte| *byte == b'\n').unwrap_or(bytes.len());
    Ok(PathBuf::from(std::ffi::OsStr::from_bytes(&bytes[..end])))
}
