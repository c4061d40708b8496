//! The parts of the work: each runs on one path for one round.

use std::ffi::OsString;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::fio;
use super::flushes::{self, Counter, Flushes};
use crate::error::Error;
use crate::report::Unit;
use crate::worker::Myself;
use crate::{ior, machine, mdtest, programs};

/// Size of a file in the hard part of mdtest, and of a record in that of IOR: those of the IO500 benchmark,
/// multiples of no block size.
const HARD_FILE_BYTES: u64 = 3_901;
const HARD_RECORD_BYTES: u64 = 47_008;

/// A selectable part of the work.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum, Serialize, Deserialize)]
pub(crate) enum Part {
    /// Empty files, a directory for each task
    MdtestEasy,
    /// Files of 3,901 bytes, all in one directory
    MdtestHard,
    /// tar, find, rm and git
    Programs,
    /// The fio program: sequential and random, O_DIRECT
    Fio,
    /// A file for each task, records of 1 MiB
    IorEasy,
    /// Records of 47,008 bytes, of all tasks in one file
    IorHard,
    /// Appends with fsync, and the flushes of the device
    Fsync,
}

impl Part {
    pub(crate) const ALL: [Part; 7] = [
        Part::MdtestEasy,
        Part::MdtestHard,
        Part::Programs,
        Part::Fio,
        Part::IorEasy,
        Part::IorHard,
        Part::Fsync,
    ];

    /// Returns the name for use in sentences.
    pub(crate) fn label(self) -> &'static str {
        match self {
            Part::MdtestEasy => "mdtest easy",
            Part::MdtestHard => "mdtest hard",
            Part::Programs => "programs",
            Part::Fio => "fio",
            Part::IorEasy => "IOR easy",
            Part::IorHard => "IOR hard",
            Part::Fsync => "append and fsync",
        }
    }
}

/// Order to run one part on one path.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Order {
    pub(super) part: Part,
    /// Mount point or directory.
    pub(super) path: PathBuf,
    /// Device and inode of the path at the start: different ones mean that it is not mounted any more.
    pub(super) identity: Option<Identity>,
    /// Empty directory to work in.
    pub(super) work: PathBuf,
    /// Number of files of each task of mdtest.
    pub(super) files: u64,
    /// Number of tasks, and sizes of fio and IOR.
    pub(super) sizes: fio::Sizes,
    /// Directory of the programs' [`crate::programs::Source`].
    pub(super) source: Option<PathBuf>,
    /// Device whose flushes are counted.
    pub(super) counter: Option<Counter>,
}

/// Device and inode of a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Identity {
    pub(super) device: u64,
    pub(super) inode: u64,
}

impl Identity {
    /// Reads the identity of what is at `path`.
    pub(super) fn of(path: &Path) -> Option<Identity> {
        std::fs::metadata(path).ok().map(|found| Identity { device: found.dev(), inode: found.ino() })
    }
}

impl Order {
    /// Returns whether another file system is at the path.
    pub(super) fn has_changed(&self) -> bool {
        Identity::of(&self.path) != self.identity
    }

    /// Runs the part with the caches dropped first; calls `push` with the name, the unit and the value of
    /// each figure, and the machine's CPU time per operation in microseconds where it is known. Counted
    /// flushes are added to `flushes`.
    pub(super) fn perform(
        &self,
        myself: &Myself,
        flushes: &mut Flushes,
        mut push: impl FnMut(&str, Unit, f64, Option<f64>),
    ) -> Result<(), Error> {
        drop_caches()?;
        let part = self.part;
        match part {
            Part::MdtestEasy | Part::MdtestHard => {
                for figure in mdtest::figures(&self.mdtest(), myself)? {
                    let name = format!("{} {}", part.label(), figure.name);
                    push(&name, Unit::OpsPerSecond, figure.rate, Some(figure.cpu_us));
                }
            }
            Part::Programs => {
                if let Some(source) = &self.source {
                    programs::round_on(&self.work, source, |name, seconds| {
                        push(name, Unit::Seconds, seconds, None);
                    })?;
                }
            }
            Part::Fio => fio::round_on(&self.work, self.sizes, push)?,
            Part::IorEasy | Part::IorHard => {
                for words in ["-w -k -e", "-r -C"] {
                    // Reads must reach the file system, not the kernel's cache.
                    drop_caches()?;
                    for (access, rate) in ior::bandwidths(&self.ior(words), myself)? {
                        push(&format!("{} {access}", part.label()), Unit::BytesPerSecond, rate, None);
                    }
                }
            }
            Part::Fsync => {
                let each_ms = flushes::append(&self.work, self.counter.as_ref(), flushes)?;
                push("append 4 KiB, fsync", Unit::Milliseconds, each_ms, None);
            }
        }
        Ok(())
    }

    fn mdtest(&self) -> Vec<OsString> {
        let (tasks, files) = (self.sizes.tasks, self.files);
        let shape = match self.part {
            Part::MdtestHard => format!("-w {HARD_FILE_BYTES} -e {HARD_FILE_BYTES}"),
            _ => "-u".to_owned(),
        };
        words(&format!("-F -P {tasks} -n {files} {shape} -d"), &self.work.join("mdtest"))
    }

    fn ior(&self, access: &str) -> Vec<OsString> {
        let fio::Sizes { tasks, size_mib, .. } = self.sizes;
        let shape = match self.part {
            Part::IorHard => {
                let records = (size_mib << 20).div_ceil(HARD_RECORD_BYTES);
                format!("-t {HARD_RECORD_BYTES} -b {HARD_RECORD_BYTES} -s {records}")
            }
            _ => format!("-F -t 1m -b {size_mib}m"),
        };
        words(&format!("-N {tasks} {shape} {access} -o"), &self.work.join("ior"))
    }
}

/// Splits a command line and appends a path.
fn words(line: &str, path: &Path) -> Vec<OsString> {
    line.split(' ').map(OsString::from).chain([path.as_os_str().to_owned()]).collect()
}

fn drop_caches() -> Result<(), Error> {
    machine::drop_caches()
}

/// Empties the directory of a path for the next part. Failures are ignored: the next part reports them.
pub(super) fn clear(work: &Path) {
    for entry in std::fs::read_dir(work).into_iter().flatten().flatten() {
        let path = entry.path();
        let is_directory = entry.file_type().is_ok_and(|kind| kind.is_dir());
        let _ = if is_directory { std::fs::remove_dir_all(path) } else { std::fs::remove_file(path) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_is_empty_for_the_next_part() {
        let dir = tempfile::tempdir().expect("a directory");
        std::fs::create_dir_all(dir.path().join("a/b")).expect("made");
        std::fs::write(dir.path().join("a/b/c"), "x").expect("written");
        std::fs::write(dir.path().join("file"), "x").expect("written");
        clear(dir.path());
        assert_eq!(std::fs::read_dir(dir.path()).expect("there").count(), 0);
        clear(&dir.path().join("none"));
    }
}
