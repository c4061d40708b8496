//! What is measured: operations on files of any mounted path.
//!
//! A [`Work`] has three phases, each run by a process of its own: [`Work::prepare`] once, [`Work::run`] for each
//! repetition, [`Work::clean`] at the end. Only the part of `run` that is meant is timed; what it needs or leaves
//! behind (the files that an unlink removes) is made and removed outside the time.

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
    /// Make an empty file and close it.
    Create,
    /// Attributes of a file that this client has just seen.
    StatCached,
    /// Attributes of a file, straight from the file system (AT_STATX_FORCE_SYNC).
    StatUncached,
    /// Open for reading and close.
    Open,
    /// Names of a directory; one operation is one entry.
    Readdir,
    /// Names and attributes of a directory (`ls -l`); one operation is one entry.
    List,
    /// Remove a file.
    Unlink,
    /// A new file from its start to its end.
    SeqWrite,
    /// A file from its start to its end.
    SeqRead,
    /// Blocks at random places of a file that has data everywhere.
    RandWrite,
    /// Blocks at random places.
    RandRead,
    /// A block at the end of a file, then fdatasync.
    AppendSync,
}

impl Operation {
    /// Operations on names and attributes, in the order in which a table shows them.
    pub const META: [Operation; 7] = [
        Operation::Create,
        Operation::StatCached,
        Operation::StatUncached,
        Operation::Open,
        Operation::Readdir,
        Operation::List,
        Operation::Unlink,
    ];
    /// Operations on data, in the order in which a table shows them.
    pub const IO: [Operation; 5] = [
        Operation::SeqWrite,
        Operation::SeqRead,
        Operation::RandWrite,
        Operation::RandRead,
        Operation::AppendSync,
    ];

    /// For tables.
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

    /// Whether a figure counts bytes rather than operations.
    pub fn counts_bytes(self) -> bool {
        matches!(self, Operation::SeqWrite | Operation::SeqRead)
    }

    /// Whether it is about data rather than names.
    pub fn is_io(self) -> bool {
        Operation::IO.contains(&self)
    }
}

/// What one worker process does.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Work {
    /// What is repeated.
    pub operation: Operation,
    /// Existing directory in which files are made.
    pub path: PathBuf,
    /// Which of the workers this is, from 0; part of the names of its files.
    pub worker: usize,
    /// How many workers there are.
    pub workers: usize,
    /// All workers use one directory rather than each its own; sequential data goes to one file, block by block in turn.
    pub shared: bool,
    /// CPU to stay on; `None`: wherever the scheduler puts it.
    pub cpu: Option<usize>,
    /// Time after which the timed part ends, in seconds; sequential work ends at the end of the file instead.
    pub seconds: f64,
    /// Metadata: files of each worker.
    pub files: u64,
    /// Metadata: each file is opened once at most, so that none has been read before.
    pub once: bool,
    /// Data: bytes of one read or write. Metadata: bytes of a file that is made, or read when it is opened.
    pub block_bytes: usize,
    /// Data: size of the file in bytes, a multiple of `block_bytes`.
    pub file_bytes: u64,
    /// Data: O_DIRECT.
    pub direct: bool,
    /// Data: fsync before the clock stops.
    pub sync: bool,
    /// Data: fdatasync after each write.
    pub each_durable: bool,
    /// Data: sequential writes go over a file that is there, instead of making a new one.
    pub over: bool,
    /// Data: the kernel is told that the file is read at random (`POSIX_FADV_RANDOM`), so that it asks for what each call
    /// wants and reads nothing ahead.
    pub no_read_ahead: bool,
}

/// What a timed part did.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Done {
    /// How many operations.
    pub operations: u64,
    /// In how many nanoseconds.
    pub elapsed_ns: u64,
}

impl Work {
    /// Metadata work with defaults: 2,000 files, half a second.
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

    /// Data work with defaults: half a second of blocks of `block_bytes` in a file of `file_bytes`.
    pub fn io(operation: Operation, path: impl Into<PathBuf>, block_bytes: usize, file_bytes: u64) -> Work {
        let mut work = Work::meta(operation, path);
        work.block_bytes = block_bytes;
        work.file_bytes = file_bytes;
        work
    }

    /// Makes the files that every repetition needs.
    ///
    /// # Errors
    ///
    /// Whatever the file system says.
    pub fn prepare(&self) -> Result<(), Error> {
        self.pin()?;
        let directory = self.directory();
        fs::create_dir_all(&directory).map_err(Error::io("create directory", &directory))?;
        if self.operation.is_io() { io::prepare(self) } else { meta::prepare(self) }
    }

    /// One repetition; returns what was done in which time.
    ///
    /// # Errors
    ///
    /// Whatever the file system says.
    pub fn run(&self, at_start: impl FnOnce()) -> Result<Done, Error> {
        self.pin()?;
        if self.operation.is_io() { io::run(self, at_start) } else { meta::run(self, at_start) }
    }

    /// Removes what [`Work::prepare`] made.
    ///
    /// # Errors
    ///
    /// Whatever the file system says.
    pub fn clean(&self) -> Result<(), Error> {
        let directory = self.directory();
        match fs::remove_dir_all(&directory) {
            // Workers that share a directory remove it together.
            Err(error) if error.kind() != std::io::ErrorKind::NotFound && !self.shared => {
                Err(Error::io("remove", &directory)(error))
            }
            _ => Ok(()),
        }
    }

    /// The directory that this worker works in.
    pub fn directory(&self) -> PathBuf {
        match self.shared {
            true => self.path.join("bench-shared"),
            false => self.path.join(format!("bench-{}", self.worker)),
        }
    }

    /// Whether all workers work on one file.
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

/// Calls `step` with 0, 1, 2.. until it says that it is at its end or the time is over; looks at the clock every
/// `stride` calls, as looking costs more than some operations.
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
        // The second starts after the first has; who starts last empties the file for all.
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
