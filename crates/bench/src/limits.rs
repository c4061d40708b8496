//! Ceilings of the machine without any NacreFS file system: the bounds of every other figure.

mod memory;
mod network;

use std::path::Path;

pub use network::{Kind, Placement, round_trips_per_second, stream_bytes_per_second};

use crate::error::Error;
use crate::report::{Report, Row, Unit};
use crate::sample::Samples;
use crate::work::{Operation, Work};
use crate::worker::{Job, Myself, Series, interleave};

/// Parameters of the measurement.
#[derive(Debug, Clone)]
pub struct Limits {
    /// Number of runs of each measurement.
    pub repetitions: usize,
    /// Duration of one run in seconds.
    pub seconds: f64,
    /// Size of the file on the disk in bytes; a multiple of 1 MiB.
    pub file_bytes: u64,
}

impl Limits {
    /// Measures memory, system calls, sockets, and the disk under `directory`.
    ///
    /// # Errors
    ///
    /// Errors of sockets and files.
    pub fn measure(&self, myself: &Myself, directory: &Path) -> Result<Report, Error> {
        let mut report = Report::new("Limits of this machine");
        let mut add = |name: &str, unit, measure: &mut dyn FnMut() -> Result<f64, Error>| {
            let samples: Result<Samples, Error> = (0..self.repetitions.max(1)).map(|_| measure()).collect();
            report.rows.push(Row::new(name, unit, samples?));
            Ok::<(), Error>(())
        };
        let bytes = Unit::BytesPerSecond;
        let ops = Unit::OpsPerSecond;
        let seconds = self.seconds;
        add("memcpy, 256 MiB", bytes, &mut || Ok(memory::copy_bytes_per_second(256 << 20, seconds)))?;
        add("memcpy, 1 MiB", bytes, &mut || Ok(memory::copy_bytes_per_second(1 << 20, seconds)))?;
        add("system call (getppid)", ops, &mut || Ok(memory::system_calls_per_second(seconds)))?;
        for kind in [Kind::Tcp, Kind::Unix] {
            for place in Placement::ALL {
                let name = format!("{kind}, 128-byte round trips, {place}");
                add(&name, ops, &mut || round_trips_per_second(kind, place, seconds))?;
            }
            for streams in [1, 2] {
                let name = format!("{kind}, 1 MiB messages, {streams} stream(s)");
                add(&name, bytes, &mut || stream_bytes_per_second(kind, streams, seconds))?;
            }
        }
        report.rows.extend(self.disk(myself, directory)?);
        report.notes.push(format!("disk: {}", directory.display()));
        Ok(report)
    }

    fn disk(&self, myself: &Myself, directory: &Path) -> Result<Vec<Row>, Error> {
        let file_bytes = self.file_bytes;
        let io = |operation, block_bytes| {
            let mut work = Work::io(operation, directory, block_bytes, file_bytes);
            work.seconds = self.seconds;
            work.direct = true;
            work
        };
        let mut append = io(Operation::AppendSync, 4096);
        append.direct = false;
        let mut written = io(Operation::SeqWrite, 1 << 20);
        written.sync = true;
        let plans = [
            ("disk, O_DIRECT, sequential write + fsync, 1 MiB", written, 1),
            ("disk, O_DIRECT, sequential read, 1 MiB", io(Operation::SeqRead, 1 << 20), 1),
            ("disk, O_DIRECT, random read, 4 KiB, depth 1", io(Operation::RandRead, 4096), 1),
            ("disk, O_DIRECT, random read, 4 KiB, depth 32", io(Operation::RandRead, 4096), 32),
            ("disk, O_DIRECT, random write, 4 KiB, depth 1", io(Operation::RandWrite, 4096), 1),
            ("disk, 4 KiB append + fdatasync, 1 process", append.clone(), 1),
            ("disk, 4 KiB append + fdatasync, 2 processes", append, 2),
        ];
        let mut rows = Vec::new();
        for (name, work, processes) in plans {
            let mut job = Job::new(name, &work, processes);
            for work in &mut job.works {
                work.file_bytes = (file_bytes / processes as u64).max(1 << 20) >> 20 << 20;
            }
            let results = interleave(myself, std::slice::from_ref(&job), self.repetitions)?;
            rows.push(row_of(&job, &results[0]));
        }
        Ok(rows)
    }
}

/// Returns the row of a job's results, in bytes for sequential work and in operations otherwise.
pub(crate) fn row_of(job: &Job, series: &Series) -> Row {
    let work = &job.works[0];
    let mut row = Row::new(job.label.clone(), Unit::OpsPerSecond, series.rates.clone());
    (row.cpu_us, row.daemon_us) = (series.cpu_us.clone(), series.daemon_us.clone());
    if work.operation.counts_bytes() {
        let per_mib = f64::from(1 << 20) / work.block_bytes as f64;
        row.unit = Unit::BytesPerSecond;
        row.samples = series.rates.scaled(work.block_bytes as f64);
        (row.cpu_us, row.daemon_us) = (row.cpu_us.scaled(per_mib), row.daemon_us.scaled(per_mib));
    }
    row
}
