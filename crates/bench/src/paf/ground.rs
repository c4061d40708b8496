//! What is populated: a directory of any file system, or an object store.

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
    /// From the first opening until the data is durable, or has been read.
    pub(super) seconds: f64,
    /// Every transfer went around the page cache.
    pub(super) direct: bool,
}

/// Who a run is, as is kept beside its files.
#[derive(Debug, Clone)]
pub(super) struct Owner {
    /// A random number in hexadecimal.
    pub(super) id: String,
    /// Where its results are.
    pub(super) output: String,
}

/// A place for files with numbers, and for one that is measured. Only what a run has made itself is ever removed.
pub(super) trait Ground: Sync {
    /// What it is, for people.
    fn label(&self) -> String;

    /// Bytes that can still be written.
    fn room(&self) -> Result<u64, Error>;

    /// The files with numbers that are there. What this run has not made is an error.
    fn files(&self) -> Result<Files, Error>;

    /// Makes a file of so many bytes, data from `seed`. Gives up in the middle with [`Error::Interrupted`].
    fn write(&self, number: u64, bytes: u64, seed: u64) -> Result<(), Error>;

    /// Removes files.
    fn remove(&self, numbers: &[u64]) -> Result<(), Error>;

    /// Makes everything durable, removals included.
    fn settle(&self) -> Result<(), Error>;

    /// Waits until the space of removed files is there, where that comes later than the removal.
    fn await_room(&self) -> Result<(), Error>;

    /// Writes the measured file anew in transfers of the buffer's size, until it is durable.
    fn measure_write(&self, bytes: u64, buffer: &mut Buffer) -> Result<Timed, Error>;

    /// Reads it, and checks that it is what was written.
    fn measure_read(&self, bytes: u64, buffer: &mut Buffer) -> Result<Timed, Error>;

    /// Removes it, if it is there.
    fn remove_measured(&self) -> Result<(), Error>;

    /// How fragmented the files and the free space are, as far as can be told.
    fn shape(&self, unit: Unit) -> (Option<FileFigures>, Option<FreeFigures>);

    /// Whether the time of a simulated disk is worked out from where the measured file lies, instead of being waited for.
    fn is_computed(&self) -> bool {
        false
    }

    /// Takes away what is left of the run itself, when its files are gone.
    fn leave(&self) -> Result<(), Error>;
}

/// The place at `target`, for this run alone: empty, or as an earlier process of the same run has left it. Changes nothing
/// unless it can be used. Its objects are in the directories `below`, if it is a mount of ours. A `medium` is simulated
/// below a store on a device; of other places the time of a disk is computed.
///
/// # Errors
///
/// A sentence that says why it cannot.
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

/// The sentence for a directory that holds something.
fn not_empty(target: &Path, what: &str) -> Error {
    Error::Usage(format!(
        "{} is not empty ({what}): name an empty directory, nothing was changed",
        target.display()
    ))
}

/// Writes where a transfer belongs into its first bytes, so that a reader can tell.
pub(super) fn stamp(block: &mut [u8], offset: u64) {
    block[..8].copy_from_slice(&(offset ^ STAMP).to_le_bytes());
}

/// Whether a transfer is the one that was written there.
pub(super) fn check(block: &[u8], offset: u64, label: &str) -> Result<(), Error> {
    if block[..8] == (offset ^ STAMP).to_le_bytes() {
        return Ok(());
    }
    let reason = format!("the measured file has other data at offset {offset} than was written");
    Err(Error::Server { what: label.to_owned(), reason })
}

const STAMP: u64 = 0x7061_663a_3030_2e30;
