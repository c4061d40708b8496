//! How fragmented files and free space of a file system are: `nacre frag`.
//!
//! Two figures from 0 to 1, both with a unit `U` (1 MiB unless said otherwise), the size of one large transfer:
//!
//! - of files: `1 - R0 / R`. `R` is how many transfers of at most `U` bytes it takes to read all files, none of them across the
//!   end of an extent, and `R0` how many it would take if each file lay in one piece. So it is the part of the transfers that
//!   only fragmentation causes. Small files in one piece count nothing, since no layout could read them in fewer.
//! - of free space: `1 - W * U / F`. `F` is the free space in bytes and `W` how many whole units fit into its extents. So it is
//!   the part of the free space that a large write cannot use without being cut. Counted by bytes and not by extents, so that
//!   a thousand crumbs beside one large extent weigh no more than they hold.
//!
//! Where an extent ends is what the file system says (FIEMAP, GETFSMAP), or the map of a store that has a device for itself: a device may
//! move blocks underneath.

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

/// Why nothing can be told.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A system call on a path failed.
    #[error("{action} {}: {source}", path.display())]
    Io {
        /// What was attempted, a verb.
        action: &'static str,
        /// On what.
        path: PathBuf,
        /// Why it failed.
        source: io::Error,
    },
    /// An object store refused.
    #[error(transparent)]
    Objects(#[from] ObjectError),
    /// There is nothing of the kind there.
    #[error("{0}")]
    Usage(String),
}

impl Error {
    /// For `map_err`: names what was attempted on which path.
    fn io(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Error {
        let path = path.to_owned();
        move |source| Error::Io { action, path, source }
    }
}

/// What `nacre frag` is about: one line of its report.
#[derive(Debug, Clone)]
pub struct Subject {
    /// What it is called, such as `OST0001`.
    pub name: String,
    /// A file, a directory whose files are meant, that of the objects of a store, or that of a store that has a device for itself.
    pub path: PathBuf,
    /// What its files are called: `file` or `object`.
    pub kind: &'static str,
}

/// How things are to be measured.
#[derive(Debug, Clone, Copy)]
pub struct Unit {
    /// Bytes of a large transfer.
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

/// Extents of sizes from one power of two up to the next.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Bucket {
    /// Smallest size (or count) in it: a power of two.
    pub from: u64,
    /// How many.
    pub count: u64,
    /// Their bytes.
    pub bytes: u64,
}

/// A histogram by powers of two; buckets without anything are left out.
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

/// Files, and the pieces that they are in.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct FileFigures {
    /// Files with data on the device.
    pub files: u64,
    /// Bytes of their extents.
    pub bytes: u64,
    /// Extents.
    pub extents: u64,
    /// Transfers that reading all of them takes.
    pub transfers: u64,
    /// Transfers that it would take if each lay in one piece.
    pub transfers_least: u64,
    /// See the [module](self).
    pub fragmentation: f64,
    /// Files by how many extents they have.
    pub extents_per_file: Histogram,
    /// Extents by their bytes.
    pub extent_sizes: Histogram,
    /// Files with the most extents, with their number, at most [`WORST`].
    pub worst: Vec<(String, u64)>,
}

/// Most files that are listed by name.
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

/// Transfers if what follows on each other in the file did so on the device. Holes end a transfer in any layout.
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

/// Free space, and the pieces that it is in.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct FreeFigures {
    /// Free bytes.
    pub bytes: u64,
    /// Free extents.
    pub extents: u64,
    /// Bytes of the largest one.
    pub largest: u64,
    /// See the [module](self).
    pub fragmentation: f64,
    /// Free extents by their bytes.
    pub extent_sizes: Histogram,
}

impl FreeFigures {
    /// Of these extents.
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

/// What is known of one subject.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Report {
    /// What it is called.
    pub name: String,
    /// Where it lies.
    pub path: PathBuf,
    /// Type of the local file system, such as `ext4`, or what stands in its place.
    pub file_system: String,
    /// What its files are called.
    pub kind: String,
    /// Bytes of a large transfer.
    pub unit: u64,
    /// Files; `None` if the file system does not say where they lie.
    pub files: Option<FileFigures>,
    /// Why not.
    pub files_unknown: Option<String>,
    /// Free space of the whole file system; `None` if it cannot be read.
    pub free: Option<FreeFigures>,
    /// Why not.
    pub free_unknown: Option<String>,
}

/// Where extents come from: what a back end with a map of its own implements beside [`walk::Tree`].
trait Extents {
    /// Calls `visit` with the name and the extents of each file that has data.
    fn files(&self, visit: &mut dyn FnMut(&str, &[Extent])) -> Result<(), Error>;
    /// Free extents in the order of the device.
    fn free(&self) -> Result<Vec<Extent>, Error>;
}

/// Looks at one subject.
///
/// # Errors
///
/// If it cannot be read at all. A file system that does not tell where things lie is no error: the report says so.
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

/// The sentence for what a file system does not tell; anything else stays an error.
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

/// Free space of the file systems of directories, each once, if it can be read of all.
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

/// Files below directories but those of one name, if their file systems say where they lie.
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
