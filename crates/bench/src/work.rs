//! The workload: operations on files of any mounted path.
//!
//! A [`Work`] has three phases, each run by a process of its own: [`Work::prepare`] once, [`Work::run`] for
//! each repetition, [`Work::clean`] at the end. Only the operations themselves are timed; files that they
//! require or leave (such as those that an unlink removes) are created and removed outside the timed part.

mod io;
mod meta;

use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::error::Error;

/// One kind of operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Operation {
    /// Create an empty file and close it.
    Create,
    /// Attributes of a file that this client has just accessed.
    StatCached,
    /// Attributes of a file, directly from the file system (AT_STATX_FORCE_SYNC).
    StatUncached,
    /// Open for reading and close.
    Open,
    /// Names of a directory; one operation is one entry.
    Readdir,
    /// Names and attributes of a directory (`ls -l`); one operation is one entry.
    List,
    /// Remove a file.
    Unlink,
    /// Write a new file sequentially.
    SeqWrite,
    /// Read a file sequentially.
    SeqRead,
    /// Write blocks at random offsets of a file without holes.
    RandWrite,
    /// Read blocks at random offsets.
    RandRead,
    /// Append a block to a file, then fdatasync.
    AppendSync,
}

impl Operation {
    /// Operations on names and attributes, in the order of the table.
    pub const META: [Operation; 7] = [
        Operation::Create,
        Operation::StatCached,
        Operation::StatUncached,
        Operation::Open,
        Operation::Readdir,
        Operation::List,
        Operation::Unlink,
    ];
    /// Operations on data, in the order of the table.
    pub const IO: [Operation; 5] = [
        Operation::SeqWrite,
        Operation::SeqRead,
        Operation::RandWrite,
        Operation::RandRead,
        Operation::AppendSync,
    ];

    /// Returns the name in tables.
    pub fn label(self) -> &'static str {
        match self {
            Operation::Create => "create+close",
            Operation::StatCached => "stat, cached",
            Operation::StatUncached => "stat, uncached",
            Operation::Open => "open+close",
            Operation::Readdir => "readdir (entries)",
            Operation::List => "ls -l (entries)",
            Operation::Unlink => "unlink",
            Operation::SeqWrite => "sequential write",
            Operation::SeqRead => "sequential read",
            Operation::RandWrite => "random write",
            Operation::RandRead => "random read",
            Operation::AppendSync => "append+fdatasync",
        }
    }

    /// Returns whether a figure counts bytes rather than operations.
    pub fn counts_bytes(self) -> bool {
        matches!(self, Operation::SeqWrite | Operation::SeqRead)
    }

    /// Returns whether it is an operation on data rather than names.
    pub fn is_io(self) -> bool {
        Operation::IO.contains(&self)
    }
}

/// The work of one worker process.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Work {
    /// Operation that is repeated.
    pub operation: Operation,
    /// Existing directory for the files.
    pub path: PathBuf,
    /// Number of this worker, from 0; part of the names of its files.
    pub worker: usize,
    /// Number of workers.
    pub workers: usize,
    /// All workers share one directory instead of one each; sequential data goes to a common file, its blocks
    /// assigned round-robin.
    pub shared: bool,
    /// CPU to run on; `None`: chosen by the scheduler.
    pub cpu: Option<usize>,
    /// Time after which the timed part ends, in seconds; sequential work ends at the end of the file instead.
    pub seconds: f64,
    /// Metadata: number of files of each worker.
    pub files: u64,
    /// Metadata: each file is opened at most once, so that no content is cached.
    pub once: bool,
    /// Data: size of one read or write in bytes. Metadata: size of a file that is created, or read when it is
    /// opened.
    pub block_bytes: usize,
    /// Data: size of the file in bytes, a multiple of `block_bytes`.
    pub file_bytes: u64,
    /// Data: open with O_DIRECT.
    pub direct: bool,
    /// Data: fsync before the clock stops.
    pub sync: bool,
    /// Data: fdatasync after each write.
    pub each_durable: bool,
    /// Data: sequential writes overwrite an existing file, instead of creating one.
    pub over: bool,
    /// Data: random access is advised (`POSIX_FADV_RANDOM`), so that the kernel requests only what each call
    /// reads, without read-ahead.
    pub no_read_ahead: bool,
}

/// Result of a timed part.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Done {
    /// Number of operations.
    pub operations: u64,
    /// Duration in nanoseconds.
    pub elapsed_ns: u64,
}

impl Work {
    /// Returns metadata work with defaults: 2,000 files, half a second.
    pub fn meta(operation: Operation, path: impl Into<PathBuf>) -> Work {
        Work {
            operation,
            path: path.into(),
            worker: 0,
            workers: 1,
            shared: false,
            cpu: None,
            seconds: 0.5,
            files: 2_000,
            once: false,
            block_bytes: 0,
            file_bytes: 0,
            direct: false,
            sync: false,
            each_durable: false,
            over: false,
            no_read_ahead: false,
        }
    }

    /// Returns data work with defaults: half a second of blocks of `block_bytes` in a file of `file_bytes`.
    pub fn io(operation: Operation, path: impl Into<PathBuf>, block_bytes: usize, file_bytes: u64) -> Work {
        let mut work = Work::meta(operation, path);
        work.block_bytes = block_bytes;
        work.file_bytes = file_bytes;
        work
    }

    /// Creates the files that every repetition needs.
    ///
    /// # Errors
    ///
    /// Errors of the file system.
    pub fn prepare(&self) -> Result<(), Error> {
        self.pin()?;
        let directory = self.directory();
        fs::create_dir_all(&directory).map_err(Error::io("create directory", &directory))?;
        if self.operation.is_io() { io::prepare(self) } else { meta::prepare(self) }
    }

    /// Runs one repetition; returns operations and time.
    ///
    /// # Errors
    ///
    /// Errors of the file system.
    pub fn run(&self, at_start: impl FnOnce()) -> Result<Done, Error> {
        self.pin()?;
        if self.operation.is_io() { io::run(self, at_start) } else { meta::run(self, at_start) }
    }

    /// Removes the files of [`Work::prepare`].
    ///
    /// # Errors
    ///
    /// Errors of the file system.
    pub fn clean(&self) -> Result<(), Error> {
        let directory = self.directory();
        match fs::remove_dir_all(&directory) {
            // Workers that share a directory remove it concurrently.
            Err(error) if error.kind() != std::io::ErrorKind::NotFound && !self.shared => {
                Err(Error::io("remove", &directory)(error))
            }
            _ => Ok(()),
        }
    }

    /// Returns the directory of this worker.
    pub fn directory(&self) -> PathBuf {
        match self.shared {
            true => self.path.join("bench-shared"),
            false => self.path.join(format!("bench-{}", self.worker)),
        }
    }

    /// Returns whether all workers share one file.
    fn shares_file(&self) -> bool {
        self.shared && matches!(self.operation, Operation::SeqWrite | Operation::SeqRead)
    }

    fn pin(&self) -> Result<(), Error> {
        match self.cpu {
            Some(cpu) => nacre_env::pin_to_cpu(cpu).map_err(Error::io("pin worker to CPU for", &self.path)),
            None => Ok(()),
        }
    }

    fn limit(&self) -> Duration {
        Duration::from_secs_f64(self.seconds.clamp(0.001, 3600.0))
    }
}

/// Calls `step` with 0, 1, 2.. until it returns that it is at its end or the time is over; reads the clock
/// every `stride` calls, since reading it costs more than some operations.
fn timed(
    limit: Duration,
    stride: u64,
    mut step: impl FnMut(u64) -> Result<bool, Error>,
) -> Result<Done, Error> {
    let start = Instant::now();
    let mut operations = 0;
    while step(operations)? {
        operations += 1;
        if operations.is_multiple_of(stride) && start.elapsed() >= limit {
            break;
        }
    }
    Ok(Done { operations, elapsed_ns: start.elapsed().as_nanos() as u64 })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn every_phase(mut work: Work) -> Done {
        work.seconds = 0.01;
        work.prepare().expect("prepare");
        let mut started = false;
        let done = work.run(|| started = true).expect("run");
        assert!(started, "the start signal is awaited");
        work.clean().expect("clean");
        assert_eq!(fs::read_dir(&work.path).expect("directory stays").count(), 0, "{:?}", work.operation);
        done
    }

    #[test]
    fn metadata_work_counts_and_leaves_nothing() {
        let dir = tempfile::tempdir().expect("temporary directory");
        for operation in Operation::META {
            let mut work = Work::meta(operation, dir.path());
            work.files = 20;
            let done = every_phase(work);
            assert!(done.operations > 0 && done.elapsed_ns > 0, "{operation:?}");
        }
    }

    #[test]
    fn data_work_covers_the_file_and_leaves_nothing() {
        let dir = tempfile::tempdir().expect("temporary directory");
        for operation in Operation::IO {
            let work = Work::io(operation, dir.path(), 4096, 64 << 10);
            let done = every_phase(work);
            assert!(done.operations > 0, "{operation:?}");
            if operation.counts_bytes() {
                assert_eq!(done.operations, 16, "{operation:?} touches each block once");
            }
        }
    }

    #[test]
    fn workers_that_share_a_file_write_all_of_it() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let mut work = Work::io(Operation::SeqWrite, dir.path(), 47_008, 10 * 47_008);
        (work.shared, work.workers) = (true, 2);
        let second = Work { worker: 1, ..work.clone() };
        for worker in [&work, &second] {
            worker.prepare().expect("prepare");
        }
        // The second starts after the first; the last to start truncates the file for all.
        let done = work.run(|| assert_eq!(second.run(|| {}).expect("run").operations, 10)).expect("run");
        assert_eq!(done.operations, 10);
        let bytes = fs::read(work.directory().join("data")).expect("there");
        assert_eq!(bytes.len(), 20 * 47_008);
        assert!(bytes.iter().all(|&byte| byte == 0x5a));
        work.clean().expect("clean");
    }

    #[test]
    fn files_that_are_opened_once_end_the_run() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let mut work = Work::meta(Operation::Open, dir.path());
        (work.files, work.once, work.seconds) = (20, true, 60.0);
        work.prepare().expect("prepare");
        assert_eq!(work.run(|| {}).expect("run").operations, 20);
        work.clean().expect("clean");
    }

    #[test]
    fn errors_name_the_path() {
        let error = Work::meta(Operation::Create, "/proc/no-such").prepare().expect_err("no such place");
        assert!(error.to_string().contains("/proc/no-such"), "{error}");
    }
}
