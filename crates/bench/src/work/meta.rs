//! Operations on names and attributes.

use std::ffi::CString;
use std::fs;
use std::io;
use std::os::fd::AsRawFd;

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
            names.iter().try_for_each(|name| stat(work, &base, name, 0))?;
            at_start();
            timed(work.limit(), 64, |index| stat(work, &base, around(index), 0).map(|()| true))
        }
        Operation::StatUncached => {
            at_start();
            timed(work.limit(), 16, |index| {
                stat(work, &base, around(index), libc::AT_STATX_FORCE_SYNC).map(|()| true)
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

/// Opens the directory that names are relative to: a path from the root would make a walk through other file systems part
/// of each figure, longer for one mount than for the other.
fn base(work: &Work) -> Result<fs::File, Error> {
    let directory = work.directory();
    fs::File::open(&directory).map_err(Error::io("open", &directory))
}

/// Whole passes over the directory, so that opening and the end of the listing count in their proportion.
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

fn check(result: i32, action: &'static str, work: &Work) -> Result<i32, Error> {
    match result {
        -1 => Err(Error::io(action, work.directory())(io::Error::last_os_error())),
        _ => Ok(result),
    }
}

fn create(work: &Work, base: &fs::File, name: &CString) -> Result<(), Error> {
    // SAFETY: `name` ends in a zero byte and lives across the call.
    let fd = unsafe {
        libc::openat(
            base.as_raw_fd(),
            name.as_ptr(),
            libc::O_CREAT | libc::O_EXCL | libc::O_WRONLY | libc::O_CLOEXEC,
            0o644,
        )
    };
    let fd = check(fd, "create file in", work)?;
    if work.block_bytes > 0 {
        let bytes = vec![0x5a_u8; work.block_bytes];
        // SAFETY: `bytes` is valid for reads of its length.
        let written = unsafe { libc::write(fd, bytes.as_ptr().cast(), bytes.len()) };
        check(if written == bytes.len() as isize { 0 } else { -1 }, "write to file in", work)?;
    }
    close(fd, work)
}

fn open(work: &Work, base: &fs::File, name: &CString) -> Result<(), Error> {
    // SAFETY: `name` ends in a zero byte and lives across the call.
    let fd = unsafe { libc::openat(base.as_raw_fd(), name.as_ptr(), libc::O_RDONLY | libc::O_CLOEXEC) };
    let fd = check(fd, "open file in", work)?;
    if work.block_bytes > 0 {
        let mut bytes = vec![0_u8; work.block_bytes];
        // SAFETY: `bytes` is valid for writes of its length.
        let read = unsafe { libc::read(fd, bytes.as_mut_ptr().cast(), bytes.len()) };
        check(if read == bytes.len() as isize { 0 } else { -1 }, "read file in", work)?;
    }
    close(fd, work)
}

fn close(fd: i32, work: &Work) -> Result<(), Error> {
    // SAFETY: `fd` was opened by the caller, who uses it no more.
    check(unsafe { libc::close(fd) }, "close file in", work).map(drop)
}

fn unlink(work: &Work, base: &fs::File, name: &CString) -> Result<(), Error> {
    // SAFETY: `name` ends in a zero byte and lives across the call.
    check(unsafe { libc::unlinkat(base.as_raw_fd(), name.as_ptr(), 0) }, "unlink file in", work).map(drop)
}

fn stat(work: &Work, base: &fs::File, name: &CString, flags: i32) -> Result<(), Error> {
    let mut buffer = std::mem::MaybeUninit::<libc::statx>::uninit();
    // SAFETY: `name` ends in a zero byte, `buffer` is as large as the kernel's struct, both live across the call.
    let result = unsafe {
        libc::statx(
            base.as_raw_fd(),
            name.as_ptr(),
            flags | libc::AT_SYMLINK_NOFOLLOW,
            libc::STATX_BASIC_STATS,
            buffer.as_mut_ptr(),
        )
    };
    check(result, "stat file in", work)?;
    std::hint::black_box(&buffer);
    Ok(())
}
