//! Pairing of a cache and its store: the superblock of the cache names the store, a mark in the store's
//! directory the cache.

use super::log::{read_superblock, write_superblock};
use super::{LogDamage, LogSurvey, NxdOptions};
use crate::object::block::device::BlockDevice;
use crate::object::block::{found_on, wipe};
use crate::object::file::directory::{draw_identity, path_error};
use crate::object::{ObjectError, Result};
use nacre_ondisk::nxd::{NxdError, NxdMark, NxdSuperblock};
use nacre_types::Timestamp;
use rustix::fs::{self, Mode, OFlags};
use rustix::io::Errno;
use rustix::time::{ClockId, clock_gettime};
use std::io;
use std::path::{Path, PathBuf};

/// Name of the mark in the directory of a store.
pub const MARK: &str = "nxd";
/// Temporary name of the mark.
pub(in crate::object) const MARK_NEW: &str = "nxd.new";
/// Smallest device in bytes.
const SIZE_MIN: u64 = 1 << 20;

/// Reason why a cache cannot be used, or a store cannot be used without it.
#[derive(Debug, thiserror::Error)]
pub enum CacheProblem {
    /// The operating system returned an error.
    #[error("{0}")]
    Io(#[source] io::Error),
    /// Its data does not match its checksums.
    #[error("data in its log is damaged")]
    Damaged,
    /// Synced data in it cannot be read.
    #[error(
        "{blocks} blocks of its log from {at_device} on were durable and cannot be read, and {objects} objects have data in it behind them; \
         nothing was changed: 'nacre check' says more, and 'nacre target uncache' with --force goes on without what is lost"
    )]
    Lost {
        /// Number of blocks.
        blocks: u64,
        /// Place of the first of them on the device, in bytes.
        at_device: u64,
        /// Objects after them, of those that are counted.
        objects: usize,
    },
    /// It is full, and write-back does not empty it.
    #[error("it is full, and nothing could be written back")]
    Full,
    /// It has no superblock of a cache, or another version.
    #[error("{0}")]
    Superblock(#[source] NxdError),
    /// The mark of the store cannot be read.
    #[error("the mark of the store cannot be read: {0}")]
    Mark(#[source] NxdError),
    /// It has the signature of another system's data.
    #[error("it holds {0}; nothing was overwritten")]
    Signature(&'static str),
    /// It belongs to another store.
    #[error("it belongs to another store")]
    OtherStore,
    /// It is missing, and it is needed.
    #[error(
        "up to {bytes} bytes of small writes since {since} seconds after 1970 are only there, not in the store; without it they are lost"
    )]
    Needed {
        /// Maximum bytes that can be lost.
        bytes: u64,
        /// Time at which the store was last complete, in seconds since 1970.
        since: i64,
    },
    /// It is shorter or longer than at its creation.
    #[error("it has {found} bytes, but had {expected} when it was made")]
    Size {
        /// Size found, in bytes.
        found: u64,
        /// Size at its creation.
        expected: u64,
    },
    /// It is too small for a cache.
    #[error("it has {0} bytes, less than {SIZE_MIN}")]
    TooSmall(u64),
    /// A change failed at a point where only reopening the store helps.
    #[error("it failed earlier; nothing is changed before the store is opened again")]
    Failed,
}

impl CacheProblem {
    pub(super) fn lost(survey: &LogSurvey) -> CacheProblem {
        let first = survey.damage.iter().find_map(|damage| match damage {
            LogDamage::Batches { at_device, .. } => Some(*at_device),
            _ => None,
        });
        let (blocks, at_device) = (survey.lost_blocks, first.unwrap_or(0));
        CacheProblem::Lost { blocks, at_device, objects: survey.hidden.len() }
    }
}

pub(super) fn problem(device: &str, problem: CacheProblem) -> ObjectError {
    ObjectError::Cache { device: device.to_owned(), problem }
}

fn read_mark(dir: &Path) -> Result<Option<NxdMark>> {
    let path = dir.join(MARK);
    match std::fs::read(&path) {
        Ok(bytes) => match NxdMark::decode(&bytes) {
            Ok(mark) => Ok(Some(mark)),
            Err(error) => Err(problem(&path.display().to_string(), CacheProblem::Mark(error))),
        },
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(source) => Err(ObjectError::Path { action: "read", path, source }),
    }
}

/// Writes a mark, durable on return.
pub(super) fn write_mark(dir: &Path, mark: &NxdMark) -> Result<()> {
    let write = || -> rustix::io::Result<()> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let fd = fs::open(dir, flags, Mode::empty())?;
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC | OFlags::CLOEXEC;
        let file = fs::openat(&fd, MARK_NEW, flags, Mode::RUSR | Mode::WUSR)?;
        let bytes = mark.encode();
        let mut rest = bytes.as_slice();
        while !rest.is_empty() {
            match rustix::io::write(&file, rest)? {
                0 => return Err(Errno::IO),
                written => rest = &rest[written..],
            }
        }
        fs::fsync(&file)?;
        fs::renameat(&fd, MARK_NEW, &fd, MARK)?;
        fs::fsync(&fd)
    };
    nacre_env::blocking(write).map_err(|error| path_error("write the mark of the cache in", dir, error))
}

/// Returns the device of the cache of the store in a directory, if it has one.
///
/// # Errors
/// [`ObjectError::Cache`] if the mark cannot be read.
pub fn cache_of(dir: &Path) -> Result<Option<PathBuf>> {
    Ok(read_mark(dir)?.map(|mark| PathBuf::from(mark.device)))
}

/// Checks that the store in a directory may be used without its cache: there is none, or the store contains
/// all its data.
///
/// # Errors
/// [`ObjectError::Cache`] with [`CacheProblem::Needed`].
pub fn check_without(dir: &Path) -> Result<()> {
    match read_mark(dir)? {
        Some(mark) if mark.is_dirty => Err(needed(&mark)),
        _ => Ok(()),
    }
}

/// Checks that a device may become a cache: it is large enough, and holds no other data.
///
/// # Errors
/// [`ObjectError::Cache`] with the obstacle; those of the device.
pub fn check_unused(device: &dyn BlockDevice) -> Result<()> {
    let (name, size) = (device.info().name, device.size());
    let fail = |cause| Err(problem(&name, cause));
    if size < SIZE_MIN {
        return fail(CacheProblem::TooSmall(size));
    }
    match read_superblock(device).map_err(|error| problem(&name, CacheProblem::Io(error)))? {
        Ok(_) => fail(CacheProblem::OtherStore),
        Err(NxdError::Foreign) => match found_on(device)? {
            Some(signature) => fail(CacheProblem::Signature(signature)),
            None => Ok(()),
        },
        Err(error) => fail(CacheProblem::Superblock(error)),
    }
}

/// Surveys the log of the cache of the store in a directory; `None` if the device is not that cache.
///
/// # Errors
/// As [`LogSurvey::of`] and [`cache_of`].
pub fn survey_in(dir: &Path, device: &dyn BlockDevice) -> Result<Option<LogSurvey>> {
    let Some(mark) = read_mark(dir)? else { return Ok(None) };
    match superblock_of(device)? {
        Ok(found) if (found.cache, found.store) == (mark.cache, mark.store) => {
            LogSurvey::of(device).map(Some)
        }
        _ => Ok(None),
    }
}

fn superblock_of(device: &dyn BlockDevice) -> Result<std::result::Result<NxdSuperblock, NxdError>> {
    read_superblock(device).map_err(|error| problem(&device.info().name, CacheProblem::Io(error)))
}

/// Removes the cache from the store in a directory, which the caller has locked: durable on return. If its
/// device is given, it is wiped, so that it is free for another use; returns whether it was. With `give_up`
/// also a cache with data that the store lacks: until it is removed, the mark records that.
///
/// # Errors
/// [`ObjectError::Cache`] with [`CacheProblem::Needed`] if the store is not complete without it; nothing was
/// changed then.
pub fn remove(dir: &Path, device: Option<&dyn BlockDevice>, give_up: bool) -> Result<bool> {
    let Some(mark) = read_mark(dir)? else { return Ok(false) };
    if mark.is_dirty {
        let needed = needed(&mark);
        if !give_up {
            return Err(needed);
        }
        log::error!("{}: used without its cache as ordered: {needed}", dir.display());
    }
    // The device first: with the mark and without its superblock no data in it is ever taken for newer than
    // the store's.
    let is_own = |found: NxdSuperblock| (found.cache, found.store) == (mark.cache, mark.store);
    let own = device.filter(|device| superblock_of(*device).is_ok_and(|found| found.is_ok_and(is_own)));
    if let Some(device) = own {
        wipe(device).map_err(|error| problem(&device.info().name, CacheProblem::Io(error)))?;
    }
    let take = || {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let fd = fs::open(dir, flags, Mode::empty())?;
        fs::unlinkat(&fd, MARK, fs::AtFlags::empty())?;
        fs::fsync(&fd)
    };
    nacre_env::blocking(take).map_err(|error| path_error("take the mark of the cache from", dir, error))?;
    Ok(own.is_some())
}

/// Returns the time of the clock of file systems below, which advances by ticks: with a finer one, the time
/// of an object would decrease when a write to the disk follows a cached one.
pub(super) fn now() -> Timestamp {
    let time = clock_gettime(ClockId::RealtimeCoarse);
    Timestamp::new(time.tv_sec, time.tv_nsec as u32)
}

fn needed(mark: &NxdMark) -> ObjectError {
    problem(&mark.device, CacheProblem::Needed { bytes: mark.size, since: mark.changed.sec })
}

/// Determines whether a cache and a store belong together, and pairs them if neither has anything to lose.
pub(super) fn pair(
    dir: &Path,
    device: &dyn BlockDevice,
    options: &NxdOptions,
) -> Result<(NxdSuperblock, NxdMark)> {
    let (name, size) = (device.info().name, device.size());
    if size < SIZE_MIN {
        return Err(problem(&name, CacheProblem::TooSmall(size)));
    }
    let mark = read_mark(dir)?;
    let found = read_superblock(device).map_err(|error| problem(&name, CacheProblem::Io(error)))?;
    if let (Some(mark), Ok(found)) = (&mark, &found)
        && (found.cache, found.store) == (mark.cache, mark.store)
    {
        if found.size != size {
            return Err(problem(&name, CacheProblem::Size { found: size, expected: found.size }));
        }
        return Ok((*found, mark.clone()));
    }
    if options.read_only {
        return Err(problem(&name, CacheProblem::OtherStore));
    }
    if let Some(mark) = mark.as_ref().filter(|mark| mark.is_dirty) {
        if !options.force {
            let is_other = found.is_ok();
            return Err(if is_other { problem(&name, CacheProblem::OtherStore) } else { needed(mark) });
        }
        log::error!("{}: used without its cache as ordered: {}", dir.display(), needed(mark));
    }
    if !options.force {
        check_unused(device)?;
    }
    let store = match mark {
        Some(mark) => mark.store,
        None => draw_identity(dir)?,
    };
    let cache = draw_identity(dir)?;
    // The mark first: a device with a superblock and without a mark would be taken for another store's.
    let mark = NxdMark { cache, store, is_dirty: false, changed: now(), size, device: name.clone() };
    write_mark(dir, &mark)?;
    let superblock = NxdSuperblock { cache, store, size, counter: 1, epoch: 0, tail: 0, durable: 0 };
    write_superblock(device, &superblock)
        .and_then(|()| device.flush())
        .map_err(|error| problem(&name, CacheProblem::Io(error)))?;
    Ok((superblock, mark))
}
