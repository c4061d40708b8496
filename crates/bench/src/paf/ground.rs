//! The store or directory under test: a directory of any file system, or an object store.

mod directory;
mod objects;
mod refuse;

use std::fs;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

use super::ageing::Files;
use super::computed;
use crate::buffer::Buffer;
use crate::error::Error;
use nacre_common::frag::{FileFigures, FreeFigures, Unit};
use nacre_store::object::simulated::AnyMedium;

pub(super) use directory::DirectoryGround;
pub(super) use objects::ObjectGround;

/// One transfer of the whole measured file.
#[derive(Debug, Clone, Copy)]
pub(super) struct Timed {
    /// Time from open until the data is durable, or has been read, in seconds.
    pub(super) seconds: f64,
    /// Every transfer bypassed the page cache.
    pub(super) direct: bool,
}

/// Identity of a run, as stored with its files.
#[derive(Debug, Clone)]
pub(super) struct Owner {
    /// A random number in hexadecimal.
    pub(super) id: String,
    /// Directory of its results.
    pub(super) output: String,
}

/// A place for numbered files and for a measured one. Only files of the run itself are ever removed.
pub(super) trait Ground: Sync {
    /// Returns its description for people.
    fn label(&self) -> String;

    /// Returns the free space in bytes.
    fn room(&self) -> Result<u64, Error>;

    /// Returns the existing numbered files. A file that is not of this run is an error.
    fn files(&self) -> Result<Files, Error>;

    /// Creates a file of this size in bytes with data from `seed`. Stops in the middle with
    /// [`Error::Interrupted`].
    fn write(&self, number: u64, bytes: u64, seed: u64) -> Result<(), Error>;

    /// Removes files.
    fn remove(&self, numbers: &[u64]) -> Result<(), Error>;

    /// Makes all changes durable, removals included.
    fn settle(&self) -> Result<(), Error>;

    /// Waits until the space of removed files is free, where that happens after the removal.
    fn await_room(&self) -> Result<(), Error>;

    /// Rewrites the measured file in transfers of the buffer's size, until it is durable.
    fn measure_write(&self, bytes: u64, buffer: &mut Buffer) -> Result<Timed, Error>;

    /// Reads the measured file, and compares it with what was written.
    fn measure_read(&self, bytes: u64, buffer: &mut Buffer) -> Result<Timed, Error>;

    /// Removes the measured file, if it exists.
    fn remove_measured(&self) -> Result<(), Error>;

    /// Measures the fragmentation of the files and of the free space, as far as the store reports it.
    fn shape(&self, unit: Unit) -> (Option<FileFigures>, Option<FreeFigures>);

    /// Returns whether the time of a simulated disk is computed from the extents of the measured file,
    /// instead of being waited for.
    fn is_computed(&self) -> bool {
        false
    }

    /// Removes what is left of the run itself, after its files.
    fn leave(&self) -> Result<(), Error>;
}

/// Opens the place at `target` for this run alone: empty, or as an earlier process of the same run has left
/// it. Changes nothing unless it is usable. For a NacreFS mount, `below` are the directories of its objects.
/// A `medium` is simulated below a store on a device; for other places the time of a disk is computed.
///
/// # Errors
///
/// A sentence with the reason.
pub(super) fn open(
    target: &Path,
    owner: &Owner,
    below: Vec<PathBuf>,
    medium: Option<AnyMedium>,
) -> Result<Box<dyn Ground>, Error> {
    let found = fs::metadata(target).map_err(Error::io("look at", target))?;
    let shown = target.display();
    if found.file_type().is_block_device() {
        return Err(refuse::device(target));
    }
    if !found.is_dir() {
        return Err(Error::Usage(format!(
            "{shown} is not a directory: name one, or that of an object store"
        )));
    }
    if objects::is_store(target)? {
        return Ok(Box::new(ObjectGround::open(target, medium)?));
    }
    let disk = medium.and_then(computed::disk_of);
    if medium.is_some() && disk.is_none() {
        return Err(Error::Usage(format!(
            "{shown} is no object store: of a directory the time of a simulated disk (disk:...) can be worked out; name the directory of an OST that is \
             stopped for another medium"
        )));
    }
    Ok(Box::new(DirectoryGround::open(target, owner, below, disk)?))
}

/// Returns the error for a directory that is not empty.
fn not_empty(target: &Path, what: &str) -> Error {
    Error::Usage(format!(
        "{} is not empty ({what}): name an empty directory, nothing was changed",
        target.display()
    ))
}

/// Writes the offset of a transfer into its first bytes, so that a reader can check it.
pub(super) fn stamp(block: &mut [u8], offset: u64) {
    block[..8].copy_from_slice(&(offset ^ STAMP).to_le_bytes());
}

/// Checks that a transfer is the one written at this offset.
pub(super) fn check(block: &[u8], offset: u64, label: &str) -> Result<(), Error> {
    if block[..8] == (offset ^ STAMP).to_le_bytes() {
        return Ok(());
    }
    let reason = format!("the measured file has other data at offset {offset} than was written");
    Err(Error::Server { what: label.to_owned(), reason })
}

const STAMP: u64 = 0x7061_663a_3030_2e30;
