//! Durability of fsync, counted rather than trusted: flushes that a block device has executed.
//!
//! A completed write may be in the volatile cache of a device; only a flush brings it to the medium. So an
//! fsync without a flush of the device below has made nothing durable. The kernel counts flushes of a whole
//! device, those of other users included: it should hold the data of one file system only.

use std::io::Write;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::Instant;

use serde::{Deserialize, Serialize};

use crate::error::Error;

/// Number of writes with fsync in a round.
const FSYNCS: u64 = 20;
/// Size of each in bytes.
const BYTES: usize = 4096;
/// Index of the flushes in the statistics of a device (Linux 5.5 and later).
const FLUSHES: usize = 15;
/// Flushes per fsync from which it counts as durable: a missing flush is always seen, and flushes of others
/// may be counted, too.
const DURABLE: f64 = 0.95;

/// The block device below a path.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Counter {
    /// Its directory in /sys.
    directory: PathBuf,
}

/// Counted fsyncs and flushes.
#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize)]
pub(crate) struct Flushes {
    fsyncs: u64,
    flushes: u64,
}

impl Flushes {
    pub(super) fn add(&mut self, more: Flushes) {
        self.fsyncs += more.fsyncs;
        self.flushes += more.flushes;
    }

    /// Returns the verdict so far.
    pub(super) fn verdict(&self) -> String {
        if self.fsyncs == 0 {
            return "not counted: no fsync was measured".to_owned();
        }
        let ratio = self.flushes as f64 / self.fsyncs as f64;
        let verdict = if ratio >= DURABLE { "durable" } else { "NOT durable" };
        format!("{verdict}: {ratio:.1} flushes per fsync")
    }
}

impl Counter {
    /// Finds the device of the file system of `path`.
    ///
    /// # Errors
    ///
    /// The reason why nothing can be counted.
    pub(super) fn below(path: &Path) -> Result<Counter, String> {
        let device = std::fs::metadata(path).map_err(|error| error.to_string())?.dev();
        Counter::of_number(device)
            .ok_or_else(|| "its device is not known, name it with --device".to_owned())?
            .checked()
    }

    /// Opens the counter of a block device.
    ///
    /// # Errors
    ///
    /// The reason why nothing can be counted.
    pub(super) fn of_device(device: &Path) -> Result<Counter, String> {
        let name = device.display();
        let found = std::fs::metadata(device).map_err(|error| format!("{name}: {error}"))?;
        if !found.file_type().is_block_device() {
            return Err(format!("{name} is no block device"));
        }
        let counter = Counter::of_number(found.rdev());
        counter.ok_or_else(|| format!("{name} is not in /sys"))?.checked()
    }

    fn of_number(device: u64) -> Option<Counter> {
        let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
        let directory = std::fs::canonicalize(format!("/sys/dev/block/{major}:{minor}")).ok()?;
        // Only the whole device has a count of flushes, not a partition.
        let directory = match directory.join("partition").exists() {
            true => directory.parent()?.to_owned(),
            false => directory,
        };
        Some(Counter { directory })
    }

    fn checked(self) -> Result<Counter, String> {
        let name = self.directory.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let cache = std::fs::read_to_string(self.directory.join("queue/write_cache")).unwrap_or_default();
        if cache.trim() != "write back" {
            return Err(format!("{name} has no volatile cache, so the kernel sends it no flushes"));
        }
        self.now().map(|_| self).ok_or_else(|| format!("the kernel counts no flushes of {name}"))
    }

    fn now(&self) -> Option<u64> {
        flushes_in(&std::fs::read_to_string(self.directory.join("stat")).ok()?)
    }
}

/// Parses the number of flushes in the statistics of a device.
fn flushes_in(text: &str) -> Option<u64> {
    text.split_whitespace().nth(FLUSHES)?.parse().ok()
}

/// Appends to a new file in `directory` with an fsync after each write; returns the milliseconds of one. The
/// flushes that `counter` counted during this are added to `flushes`.
pub(super) fn append(
    directory: &Path,
    counter: Option<&Counter>,
    flushes: &mut Flushes,
) -> Result<f64, Error> {
    let path = directory.join("appended");
    let mut file = std::fs::File::create(&path).map_err(Error::io("create", &path))?;
    let bytes = [0x5a; BYTES];
    let mut step =
        || file.write_all(&bytes).and_then(|()| file.sync_all()).map_err(Error::io("fsync", &path));
    // The first one also makes the file's name and earlier writes durable.
    step()?;
    let before = counter.and_then(Counter::now);
    let start = Instant::now();
    for _ in 0..FSYNCS {
        step()?;
    }
    let elapsed_ms = start.elapsed().as_secs_f64() * 1e3;
    if let (Some(before), Some(after)) = (before, counter.and_then(Counter::now)) {
        flushes.add(Flushes { fsyncs: FSYNCS, flushes: after.saturating_sub(before) });
    }
    Ok(elapsed_ms / FSYNCS as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flushes_are_the_sixteenth_number_of_the_statistics() {
        let line = "  89 0 4296 7 1174 12 9664 60 0 80 82 11 12 13 14 40 15\n";
        assert_eq!(flushes_in(line), Some(40));
        assert_eq!(flushes_in("1 2 3 4 5 6 7 8 9 10 11"), None, "an older kernel");
        assert_eq!(flushes_in(""), None);
    }

    #[test]
    fn an_fsync_without_a_flush_is_not_durable() {
        let verdict = |fsyncs, flushes| Flushes { fsyncs, flushes }.verdict();
        assert_eq!(verdict(60, 61), "durable: 1.0 flushes per fsync");
        assert_eq!(verdict(60, 2), "NOT durable: 0.0 flushes per fsync");
        assert_eq!(verdict(60, 30), "NOT durable: 0.5 flushes per fsync");
        assert!(verdict(0, 0).starts_with("not counted"));
    }

    #[test]
    fn what_is_no_device_is_named() {
        let said = Counter::of_device(Path::new("/dev/null")).expect_err("no block device");
        assert_eq!(said, "/dev/null is no block device");
        assert!(Counter::of_device(Path::new("/dev/none")).expect_err("missing").contains("/dev/none: "));
        assert!(Counter::below(Path::new("/proc")).expect_err("no device").contains("--device"));
    }

    #[test]
    fn an_append_takes_time_also_where_nothing_is_counted() {
        let dir = tempfile::tempdir().expect("a directory");
        let mut flushes = Flushes::default();
        assert!(append(dir.path(), None, &mut flushes).expect("appended") > 0.0);
        assert!(flushes.verdict().starts_with("not counted"));
        let bytes = std::fs::metadata(dir.path().join("appended")).expect("there").len();
        assert_eq!(bytes, (FSYNCS + 1) * BYTES as u64);
    }
}
