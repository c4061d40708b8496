//! How fragmented files and free space of a file system are: `nacre frag`.
//!
//! Two figures from 0 to 1, both with a unit `U` (1 MiB by default), the size of one large transfer:
//!
//! - of files: `1 - R0 / R`. `R` is the number of transfers of at most `U` bytes that read all files, none of
//!   them across the end of an extent, and `R0` their number if each file were one extent: the share of
//!   transfers that only fragmentation causes. Small files of one extent add nothing, since no layout could
//!   read them in fewer.
//! - of free space: `1 - W * U / F`. `F` is the free space in bytes and `W` the number of whole units that
//!   fit into its extents: the share of the free space that a large write cannot use without being split. It
//!   is weighted by bytes, not by extents, so that a thousand tiny extents next to a large one weigh no more
//!   than they hold.
//!
//! The file system reports where an extent ends (FIEMAP, GETFSMAP), or the map of a store that has a device
//! for itself does: a device may still remap blocks underneath.

mod show;
mod store;
mod walk;

use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use nacre_store::object::ObjectError;
use nacre_store::object::block::is_block_store;
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use crate::extents::{self, Extent};

/// Why fragmentation could not be determined.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A system call on a path failed.
    #[error("{action} {}: {source}", path.display())]
    Io {
        /// Attempted action, a verb.
        action: &'static str,
        /// Path of the file or directory.
        path: PathBuf,
        /// Error of the system.
        source: io::Error,
    },
    /// An object store reported an error.
    #[error(transparent)]
    Objects(#[from] ObjectError),
    /// The path has no files or objects of this kind.
    #[error("{0}")]
    Usage(String),
}

impl Error {
    /// Returns a closure for `map_err` that names the attempted action and the path.
    fn io(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Error {
        let path = path.to_owned();
        move |source| Error::Io { action, path, source }
    }
}

/// A subject of `nacre frag`: one line of its report.
#[derive(Debug, Clone)]
pub struct Subject {
    /// Name of the subject, such as `OST0001`.
    pub name: String,
    /// A file, a directory that stands for its files, the objects directory of a store, or the directory of a
    /// store that has a device for itself.
    pub path: PathBuf,
    /// Term for its files: `file` or `object`.
    pub kind: &'static str,
}

/// The unit of measurement.
#[derive(Debug, Clone, Copy)]
pub struct Unit {
    /// Size of a large transfer in bytes.
    pub bytes: u64,
}

impl Unit {
    /// 1 MiB.
    pub const USUAL: u64 = 1 << 20;

    /// Reads a size such as `1M`.
    ///
    /// # Errors
    ///
    /// A sentence for the user.
    pub fn parse(text: &str) -> Result<Unit, String> {
        match crate::size::parse(text)? {
            bytes @ 512.. => Ok(Unit { bytes }),
            _ => Err(format!("'{text}' is too small for a unit: give 512 bytes or more, such as 1M")),
        }
    }
}

/// Values from one power of two up to the next.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Bucket {
    /// Smallest value (a size or a count) of the bucket: a power of two.
    pub from: u64,
    /// Number of values.
    pub count: u64,
    /// Sum of their bytes.
    pub bytes: u64,
}

/// A histogram by powers of two; empty buckets are left out.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Histogram(pub Vec<Bucket>);

impl Histogram {
    fn add(&mut self, value: u64, bytes: u64) {
        let from = 1 << value.max(1).ilog2();
        let at = self.0.partition_point(|bucket| bucket.from < from);
        if self.0.get(at).is_none_or(|bucket| bucket.from != from) {
            self.0.insert(at, Bucket { from, count: 0, bytes: 0 });
        }
        self.0[at].count += 1;
        self.0[at].bytes += bytes;
    }
}

/// Figures of files and their extents.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct FileFigures {
    /// Files with data on the device.
    pub files: u64,
    /// Sum of the lengths of their extents.
    pub bytes: u64,
    /// Number of extents.
    pub extents: u64,
    /// Transfers that read all files.
    pub transfers: u64,
    /// Transfers that would read all files if each were one extent.
    pub transfers_least: u64,
    /// Share of transfers that fragmentation causes, 0 to 1; see the [module](self).
    pub fragmentation: f64,
    /// Files by number of extents.
    pub extents_per_file: Histogram,
    /// Extents by length.
    pub extent_sizes: Histogram,
    /// The most fragmented files with their numbers of extents, at most [`WORST`].
    pub worst: Vec<(String, u64)>,
}

/// Number of files that are listed by name, at most.
const WORST: usize = 5;

impl FileFigures {
    /// Counts one file.
    fn add(&mut self, name: &str, extents: &[Extent], unit: Unit) {
        let bytes: u64 = extents.iter().map(|extent| extent.length).sum();
        if bytes == 0 {
            return;
        }
        let count = extents.len() as u64;
        self.files += 1;
        self.bytes += bytes;
        self.extents += count;
        self.transfers += extents.iter().map(|extent| extent.length.div_ceil(unit.bytes)).sum::<u64>();
        self.transfers_least += in_one_piece(extents, unit);
        self.fragmentation = 1.0 - self.transfers_least as f64 / self.transfers as f64;
        self.extents_per_file.add(count, bytes);
        for extent in extents {
            self.extent_sizes.add(extent.length, extent.length);
        }
        if count > 1 {
            let at = self.worst.partition_point(|(_, more)| *more >= count);
            self.worst.insert(at, (name.to_owned(), count));
            self.worst.truncate(WORST);
        }
    }
}

/// Returns the number of transfers if extents contiguous in the file were contiguous on the device. A hole
/// ends a transfer in any layout.
fn in_one_piece(extents: &[Extent], unit: Unit) -> u64 {
    let mut transfers = 0;
    let (mut run, mut end) = (0u64, None);
    for extent in extents {
        if end.is_some_and(|end| end != extent.logical) {
            transfers += run.div_ceil(unit.bytes);
            run = 0;
        }
        run += extent.length;
        end = Some(extent.logical + extent.length);
    }
    transfers + run.div_ceil(unit.bytes)
}

/// Figures of free space and its extents.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct FreeFigures {
    /// Sum of free bytes.
    pub bytes: u64,
    /// Number of free extents.
    pub extents: u64,
    /// Length of the largest extent in bytes.
    pub largest: u64,
    /// Share of free space that large writes cannot use whole, 0 to 1; see the [module](self).
    pub fragmentation: f64,
    /// Free extents by length.
    pub extent_sizes: Histogram,
}

impl FreeFigures {
    /// Computes the figures of these extents.
    fn of(extents: &[Extent], unit: Unit) -> FreeFigures {
        let mut figures = FreeFigures::default();
        let mut usable = 0;
        for extent in extents {
            figures.bytes += extent.length;
            figures.extents += 1;
            figures.largest = figures.largest.max(extent.length);
            figures.extent_sizes.add(extent.length, extent.length);
            usable += extent.length / unit.bytes * unit.bytes;
        }
        if figures.bytes > 0 {
            figures.fragmentation = 1.0 - usable as f64 / figures.bytes as f64;
        }
        figures
    }
}

/// The result for one subject.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Report {
    /// Name of the subject.
    pub name: String,
    /// Its path.
    pub path: PathBuf,
    /// Type of the local file system, such as `ext4`, or the name of the back end in its place.
    pub file_system: String,
    /// Term for its files: `file` or `object`.
    pub kind: String,
    /// Size of a large transfer in bytes.
    pub unit: u64,
    /// Figures of files; `None` if the file system does not report extents.
    pub files: Option<FileFigures>,
    /// Reason why `files` is `None`.
    pub files_unknown: Option<String>,
    /// Free space of the whole file system; `None` if it cannot be read.
    pub free: Option<FreeFigures>,
    /// Reason why `free` is `None`.
    pub free_unknown: Option<String>,
}

/// Source of extents: [`walk::Tree`], or a back end with a map of its own.
trait Extents {
    /// Calls `visit` with the name and the extents of each file that has data.
    fn files(&self, visit: &mut dyn FnMut(&str, &[Extent])) -> Result<(), Error>;
    /// Returns the free extents in the order of the device.
    fn free(&self) -> Result<Vec<Extent>, Error>;
}

/// Measures one subject.
///
/// # Errors
///
/// If the subject cannot be read at all. A file system that does not report extents is not an error: the
/// report has the reason.
pub fn look(subject: &Subject, unit: Unit) -> Result<Report, Error> {
    if is_block_store(&subject.path) {
        return store::look(subject, unit);
    }
    let tree = walk::Tree::open(&subject.path)?;
    let mut report = Report {
        name: subject.name.clone(),
        path: subject.path.clone(),
        file_system: crate::place::file_system(&subject.path).map_err(Error::io("look at", &subject.path))?,
        kind: subject.kind.to_owned(),
        unit: unit.bytes,
        files: None,
        files_unknown: None,
        free: None,
        free_unknown: None,
    };
    let mut files = FileFigures::default();
    match tree.files(&mut |name, extents| files.add(name, extents, unit)) {
        Ok(()) => report.files = Some(files),
        Err(error) => {
            report.files_unknown = Some(unknown(error, &report.file_system, "where its files lie")?);
        }
    }
    match tree.free() {
        Ok(free) => report.free = Some(FreeFigures::of(&free, unit)),
        Err(error) => {
            report.free_unknown = Some(unknown(error, &report.file_system, "where its free space lies")?);
        }
    }
    Ok(report)
}

/// Returns the reason for figures that a file system does not report; any other error is passed through.
fn unknown(error: Error, file_system: &str, what: &str) -> Result<String, Error> {
    let Error::Io { source, .. } = &error else { return Err(error) };
    match Errno::from_io_error(source) {
        Some(Errno::OPNOTSUPP | Errno::NOTTY | Errno::NOSYS | Errno::INVAL) => {
            Ok(format!("{file_system} does not report {what}"))
        }
        Some(Errno::PERM | Errno::ACCESS) => Ok(format!("only root may ask for {what}")),
        _ => Err(error),
    }
}

/// Measures the free space of the file systems of directories, each once. `None` unless it can be read from
/// all.
pub fn free_of(directories: &[&Path], unit: Unit) -> Option<FreeFigures> {
    let mut devices = Vec::new();
    let mut all = Vec::new();
    for directory in directories {
        let file = File::open(directory).ok()?;
        let device = file.metadata().ok()?.dev();
        if !devices.contains(&device) {
            devices.push(device);
            all.extend(extents::free(&file).ok()?);
        }
    }
    Some(FreeFigures::of(&all, unit))
}

/// Measures the files below directories, except those named `without`. `None` if a file system does not
/// report extents.
pub fn files_of(directories: &[&Path], without: &str, unit: Unit) -> Option<FileFigures> {
    let mut figures = FileFigures::default();
    let mut add = |name: &str, extents: &[Extent]| {
        if name != without {
            figures.add(name, extents, unit);
        }
    };
    for directory in directories {
        walk::Tree::open(directory).ok()?.files(&mut add).ok()?;
    }
    Some(figures)
}

pub use show::text;
pub use store::{report_of, shape_of};

#[cfg(test)]
mod tests;
