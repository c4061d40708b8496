//! Moves a file's data to other objects while the file stays in use: `lfs migrate`, `nacre rebalance`.
//!
//! The data is copied into a volatile file (one without a name) that has the new layout, and synced; then the
//! two files swap their objects, unless the data version shows that the data has changed meanwhile. The
//! volatile file, which has the old objects afterwards, is destroyed when its descriptor is closed, so that
//! nothing is left behind however this process ends.

use super::mounted::{ask_file, project_of_open, set_project_of_open};
use nacre_env::clock::Instant;
use nacre_types::Fid;
use nacre_types::ioctl::{FileCall, FileOperation, PathToFid};
use rustix::fs::{Mode, OFlags, XattrFlags};
use rustix::io::Errno;
use std::ffi::OsString;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// Bytes copied by one call, so that a signal interrupts the copy soon.
const PIECE_BYTES: u64 = 16 << 20;
/// Bytes copied by one call under a rate limit, for an even rate.
const LIMITED_PIECE_BYTES: u64 = 1 << 20;

/// Handling of concurrent writers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Manner {
    /// Optimistic first: if another process writes, the first copy is discarded, and a second one blocks
    /// writers.
    Block,
    /// Optimistic only: the move fails if another process writes. Processes may have the file open for
    /// writing.
    Try,
    /// Under a lease: the move fails if another process writes, or has the file open for writing.
    GiveUp,
}

/// Parameters of a move.
pub struct Order<'a> {
    /// The new layout in the binary form of `lustre.lov`.
    pub layout: &'a [u8],
    /// Directory of the volatile file: the file's own, unless the file itself has no name.
    pub directory: Option<&'a Path>,
    /// Handling of concurrent writers.
    pub manner: Manner,
    /// Rate limit in bytes per second.
    pub bytes_per_second: Option<u64>,
    /// Called often, with the bytes copied and the total.
    pub progress: &'a mut dyn FnMut(u64, u64),
    /// Checks the objects of the volatile file before the copy starts.
    pub accept: &'a dyn Fn(&[u8]) -> bool,
}

/// Failure to move a file: the step, and its error.
#[derive(Debug)]
pub struct Stopped {
    /// Step that failed, a verb phrase.
    pub action: &'static str,
    /// Error of the step.
    pub error: io::Error,
}

impl Stopped {
    fn at(action: &'static str) -> impl Fn(io::Error) -> Stopped {
        move |error| Stopped { action, error }
    }

    /// Returns true if a retry may succeed: another process was using the file.
    pub fn is_for_now(&self) -> bool {
        matches!(Errno::from_io_error(&self.error), Some(Errno::BUSY | Errno::AGAIN))
    }
}

/// State of a move.
struct Move<'a, 'o> {
    source: OwnedFd,
    target: OwnedFd,
    target_fid: Fid,
    order: &'o mut Order<'a>,
    began: Instant,
    paid_bytes: u64,
}

/// Moves the data of a regular file; returns its size in bytes.
///
/// # Errors
/// See [`Stopped`]: `EBUSY` if another process uses the file, `EINVAL` if it is not a regular file, `EXDEV`
/// if the new objects are not accepted; those of the system calls.
pub fn relocate(path: &Path, order: &mut Order<'_>) -> Result<u64, Stopped> {
    // Read-only: a descriptor open for writing would affect the known size and times of the file.
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY;
    let source = rustix::fs::open(path, flags, Mode::empty());
    let source = source.map_err(io::Error::from).map_err(Stopped::at("open"))?;
    let file = std::fs::File::from(source);
    let metadata = file.metadata().map_err(Stopped::at("stat"))?;
    if !metadata.is_file() {
        return Err(Stopped { action: "migrate", error: io::Error::from(Errno::INVAL) });
    }
    let source = OwnedFd::from(file);
    let target = make_target(path, &source, &metadata, order)?;
    let target_fid = ask_file(&target, &PathToFid::default()).map_err(Stopped::at("ask for the FID"))?.fid;
    let mut moving = Move { source, target, target_fid, order, began: Instant::now(), paid_bytes: 0 };
    match moving.order.manner {
        Manner::Block => moving.blocking(),
        Manner::Try => moving.copy_and_swap(0),
        Manner::GiveUp => moving.giving_up(),
    }
}

/// Returns a unique name for the creation of a volatile file, on the MDT of the file that it is for.
fn volatile_name(beside: Fid) -> OsString {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let (process, count) = (std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
    let mdt = beside.mdt_index();
    OsString::from(format!(".\x0c\x13\x14\x12:VOLATILE:{mdt:04X}:{process:X}.{count:X}:beside={beside}"))
}

/// Creates the volatile file, next to the file that is moved.
fn make_target(
    path: &Path,
    source: &OwnedFd,
    metadata: &std::fs::Metadata,
    order: &Order<'_>,
) -> Result<OwnedFd, Stopped> {
    let failed = Stopped::at("create a volatile file");
    let own = || path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let directory = order.directory.unwrap_or_else(own);
    let fid = ask_file(source, &PathToFid::default()).map_err(&failed)?.fid;
    let flags = OFlags::CREATE | OFlags::EXCL | OFlags::RDWR | OFlags::CLOEXEC;
    let target = rustix::fs::open(directory.join(volatile_name(fid)), flags, Mode::RUSR | Mode::WUSR)
        .map_err(io::Error::from)
        .map_err(&failed)?;
    let own = rustix::fs::fstat(&target).map_err(io::Error::from).map_err(&failed)?;
    if (own.st_uid, own.st_gid) != (metadata.uid(), metadata.gid()) {
        std::os::unix::fs::fchown(&target, Some(metadata.uid()), Some(metadata.gid()))
            .map_err(Stopped::at("change the owner of the volatile file"))?;
    }
    // The volatile file inherits the project of the directory, and files of different projects cannot be
    // swapped.
    let project = project_of_open(source).map_err(Stopped::at("ask for the project"))?;
    if project_of_open(&target).map_err(&failed)? != project {
        set_project_of_open(&target, project).map_err(Stopped::at("set the project of the volatile file"))?;
    }
    // A user who may not choose a layout fails here, and gets no other layout instead.
    rustix::fs::fsetxattr(&target, "lustre.lov", order.layout, XattrFlags::empty())
        .map_err(io::Error::from)
        .map_err(Stopped::at("set the layout of the volatile file"))?;
    let mut layout = vec![0; 65536];
    let len = rustix::fs::fgetxattr(&target, "lustre.lov", &mut layout[..])
        .map_err(io::Error::from)
        .map_err(Stopped::at("read the layout of the volatile file"))?;
    if !(order.accept)(&layout[..len]) {
        return Err(Stopped { action: "allocate objects", error: io::Error::from(Errno::XDEV) });
    }
    Ok(target)
}

impl Move<'_, '_> {
    /// Copies while other processes continue; if they write, copies once more while they wait.
    fn blocking(&mut self) -> Result<u64, Stopped> {
        match self.copy_and_swap(0) {
            Err(stopped) if stopped.is_for_now() => {}
            outcome => return outcome,
        }
        self.lease(3).map_err(Stopped::at("exclude other writers"))?;
        let outcome = self.copy_and_swap(FileCall::LEASED);
        // The close would release the lease in any case; an explicit release shortens the wait of other
        // processes.
        let _ = self.lease(0);
        outcome
    }

    fn giving_up(&mut self) -> Result<u64, Stopped> {
        self.lease(1).map_err(Stopped::at("take a lease"))?;
        self.copy_and_swap(FileCall::LEASED)
    }

    fn copy_and_swap(&mut self, leased: u32) -> Result<u64, Stopped> {
        let version = self.data_version().map_err(Stopped::at("ask for the data version"))?;
        let size = self.ask(FileOperation::Size, 0).map_err(Stopped::at("ask for the size"))?;
        let copied = self.copy(size).map_err(Stopped::at("copy"));
        if self.order.manner == Manner::GiveUp
            && !self.is_leased().map_err(Stopped::at("ask for the lease"))?
        {
            return Err(Stopped { action: "migrate", error: io::Error::from(Errno::BUSY) });
        }
        copied?;
        rustix::fs::fsync(&self.target).map_err(io::Error::from).map_err(Stopped::at("sync"))?;
        let swap = FileCall {
            operation: FileOperation::Swap,
            flags: FileCall::FIRST | FileCall::KEEP_TIMES | leased,
            other: self.target_fid,
            values: [version, 0],
        };
        ask_file(&self.source, &swap).map_err(Stopped::at("swap layouts"))?;
        Ok(size)
    }

    /// Copies data and skips holes.
    fn copy(&mut self, size: u64) -> io::Result<()> {
        let most = if self.order.bytes_per_second.is_some() { LIMITED_PIECE_BYTES } else { PIECE_BYTES };
        rustix::fs::ftruncate(&self.target, 0)?;
        let mut at = 0;
        while at < size {
            let start = match self.ask(FileOperation::SeekData, at) {
                Ok(start) => start,
                Err(error) if Errno::from_io_error(&error) == Some(Errno::NXIO) => break,
                Err(error) => return Err(error),
            };
            let end = match self.ask(FileOperation::SeekHole, start) {
                Ok(end) => end.min(size),
                // The file was truncated: the data version will show it.
                Err(error) if Errno::from_io_error(&error) == Some(Errno::NXIO) => break,
                Err(error) => return Err(error),
            };
            at = start;
            while at < end {
                let got = self.copy_piece(at, most.min(end - at))?;
                if got == 0 {
                    // The file was truncated.
                    return Err(io::Error::from(Errno::AGAIN));
                }
                at += got;
                self.pay(got);
                (self.order.progress)(at, size);
            }
        }
        rustix::fs::ftruncate(&self.target, size)?;
        (self.order.progress)(size, size);
        Ok(())
    }

    /// Sleeps as long as the rate limit requires.
    fn pay(&mut self, bytes: u64) {
        self.paid_bytes += bytes;
        let Some(rate) = self.order.bytes_per_second else { return };
        let due = Duration::from_secs_f64(self.paid_bytes as f64 / rate.max(1) as f64);
        if let Some(early) = due.checked_sub(self.began.elapsed()) {
            nacre_env::thread::sleep(early);
        }
    }

    /// Queries the source with a value. The ordinary system calls would wait for writes that the frozen file
    /// blocks.
    fn ask(&self, operation: FileOperation, value: u64) -> io::Result<u64> {
        let ask = FileCall { operation, flags: 0, other: Fid::ZERO, values: [value, 0] };
        Ok(ask_file(&self.source, &ask)?.values[0])
    }

    fn copy_piece(&self, offset: u64, len: u64) -> io::Result<u64> {
        let ask = FileCall {
            operation: FileOperation::Copy,
            flags: 0,
            other: self.target_fid,
            values: [offset, len],
        };
        Ok(ask_file(&self.source, &ask)?.values[0])
    }

    fn data_version(&self) -> io::Result<u64> {
        let operation = FileOperation::DataVersion;
        let ask = FileCall { operation, flags: 1, other: Fid::ZERO, values: [0; 2] };
        Ok(ask_file(&self.source, &ask)?.values[0])
    }

    fn lease(&self, kind: u32) -> io::Result<()> {
        let operation = FileOperation::Lease;
        ask_file(&self.source, &FileCall { operation, flags: kind, other: Fid::ZERO, values: [0; 2] })
            .map(drop)
    }

    /// Returns true while the lease is unbroken. Taking it again would detect a break too late.
    fn is_leased(&self) -> io::Result<bool> {
        let ask = FileCall {
            operation: FileOperation::Lease,
            flags: FileCall::ASK_LEASE,
            other: Fid::ZERO,
            values: [0; 2],
        };
        Ok(ask_file(&self.source, &ask)?.values[0] != 0)
    }
}
