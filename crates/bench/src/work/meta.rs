//! Operations on names and attributes.

use std::ffi::{CStr, CString};
use std::fs;
use std::os::fd::{IntoRawFd, OwnedFd};

use rustix::fs::{AtFlags, Mode, OFlags, StatxFlags};
use rustix::io::Errno;

use super::{Done, Operation, Work, timed};
use crate::error::Error;

pub(super) fn prepare(work: &Work) -> Result<(), Error> {
    match work.operation {
        Operation::Create | Operation::Unlink => Ok(()),
        _ => {
            let base = base(work)?;
            names(work).iter().try_for_each(|name| create(work, &base, name))
        }
    }
}

pub(super) fn run(work: &Work, at_start: impl FnOnce()) -> Result<Done, Error> {
    let names = names(work);
    let base = base(work)?;
    let nth = |index: u64| names.get(index as usize);
    let around = |index: u64| &names[index as usize % names.len()];
    match work.operation {
        Operation::Create => {
            at_start();
            let done = timed(work.limit(), 16, |index| visit(nth(index), |name| create(work, &base, name)))?;
            names.iter().take(done.operations as usize).try_for_each(|name| unlink(work, &base, name))?;
            Ok(done)
        }
        Operation::Unlink => {
            names.iter().try_for_each(|name| create(work, &base, name))?;
            at_start();
            let done = timed(work.limit(), 16, |index| visit(nth(index), |name| unlink(work, &base, name)))?;
            names.iter().skip(done.operations as usize).try_for_each(|name| unlink(work, &base, name))?;
            Ok(done)
        }
        Operation::StatCached => {
            names.iter().try_for_each(|name| stat(work, &base, name, AtFlags::empty()))?;
            at_start();
            timed(work.limit(), 64, |index| stat(work, &base, around(index), AtFlags::empty()).map(|()| true))
        }
        Operation::StatUncached => {
            at_start();
            timed(work.limit(), 16, |index| {
                stat(work, &base, around(index), AtFlags::STATX_FORCE_SYNC).map(|()| true)
            })
        }
        Operation::Open => {
            at_start();
            timed(work.limit(), 16, |index| match work.once {
                true => visit(nth(index), |name| open(work, &base, name)),
                false => open(work, &base, around(index)).map(|()| true),
            })
        }
        Operation::Readdir | Operation::List => {
            at_start();
            list(work)
        }
        _ => Err(Error::Usage(format!("{:?} is no metadata operation", work.operation))),
    }
}

/// Opens the directory that names are relative to: an absolute path would add a walk through other file
/// systems to each figure, longer for one mount than for another.
fn base(work: &Work) -> Result<fs::File, Error> {
    let directory = work.directory();
    fs::File::open(&directory).map_err(Error::io("open", &directory))
}

/// Lists the directory in whole passes, so that opening and the end of the listing count in their proportion.
fn list(work: &Work) -> Result<Done, Error> {
    let directory = work.directory();
    let mut entries = 0;
    let mut done = timed(work.limit(), 1, |_| {
        for entry in fs::read_dir(&directory).map_err(Error::io("list", &directory))? {
            let entry = entry.map_err(Error::io("list", &directory))?;
            if work.operation == Operation::List {
                let metadata = entry.metadata().map_err(Error::io("stat", &directory))?;
                std::hint::black_box(metadata);
            }
            entries += 1;
        }
        Ok(true)
    })?;
    done.operations = entries;
    Ok(done)
}

fn names(work: &Work) -> Vec<CString> {
    (0..work.files.max(1))
        .map(|index| CString::new(format!("f{}-{index}", work.worker)).expect("digits are no zero bytes"))
        .collect()
}

fn visit(name: Option<&CString>, act: impl FnOnce(&CString) -> Result<(), Error>) -> Result<bool, Error> {
    match name {
        Some(name) => act(name).map(|()| true),
        None => Ok(false),
    }
}

/// Returns a closure for `map_err` that names the attempted action and the directory.
fn failed(action: &'static str, work: &Work) -> impl FnOnce(Errno) -> Error {
    Error::io(action, work.directory())
}

/// Fails unless every byte was transferred.
fn whole(count: usize, work: &Work) -> Result<(), Errno> {
    if count == work.block_bytes { Ok(()) } else { Err(Errno::IO) }
}

fn create(work: &Work, base: &fs::File, name: &CStr) -> Result<(), Error> {
    let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::CLOEXEC;
    let file = rustix::fs::openat(base, name, flags, Mode::from_raw_mode(0o644))
        .map_err(failed("create file in", work))?;
    if work.block_bytes > 0 {
        let written = rustix::io::write(&file, &vec![0x5a_u8; work.block_bytes]);
        written.and_then(|count| whole(count, work)).map_err(failed("write to file in", work))?;
    }
    close(file, work)
}

fn open(work: &Work, base: &fs::File, name: &CStr) -> Result<(), Error> {
    let file = rustix::fs::openat(base, name, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
        .map_err(failed("open file in", work))?;
    if work.block_bytes > 0 {
        let read = rustix::io::read(&file, &mut vec![0_u8; work.block_bytes][..]);
        read.and_then(|count| whole(count, work)).map_err(failed("read file in", work))?;
    }
    close(file, work)
}

/// Closes a file with a check: a file system may report a failed write only here.
fn close(file: OwnedFd, work: &Work) -> Result<(), Error> {
    // SAFETY: the descriptor has no other owner.
    match unsafe { libc::close(file.into_raw_fd()) } {
        0 => Ok(()),
        _ => Err(Error::io("close file in", work.directory())(std::io::Error::last_os_error())),
    }
}

fn unlink(work: &Work, base: &fs::File, name: &CStr) -> Result<(), Error> {
    rustix::fs::unlinkat(base, name, AtFlags::empty()).map_err(failed("unlink file in", work))
}

fn stat(work: &Work, base: &fs::File, name: &CStr, flags: AtFlags) -> Result<(), Error> {
    let flags = flags | AtFlags::SYMLINK_NOFOLLOW;
    let found = rustix::fs::statx(base, name, flags, StatxFlags::BASIC_STATS);
    std::hint::black_box(found.map_err(failed("stat file in", work))?);
    Ok(())
}
