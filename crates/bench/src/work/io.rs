//! Operations on data.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::PathBuf;

use super::{Done, Operation, Work, timed};
use crate::buffer::{Buffer, O_DIRECT};
use crate::error::Error;
use fastrand::Rng;
use rustix::fs::Advice;

pub(super) fn prepare(work: &Work) -> Result<(), Error> {
    check(work)?;
    match work.operation {
        Operation::SeqWrite | Operation::AppendSync if !work.over => Ok(()),
        // One of the workers that share a file creates it.
        _ if work.shares_file() && work.worker != 0 => Ok(()),
        _ => {
            let mut buffer = Buffer::new(work.block_bytes.max(1 << 20));
            let path = file(work);
            let file = File::create(&path).map_err(Error::io("create", &path))?;
            let mut offset = 0;
            let file_bytes = work.file_bytes * if work.shares_file() { work.workers as u64 } else { 1 };
            while offset < file_bytes {
                let length = (file_bytes - offset).min(buffer.slice().len() as u64) as usize;
                let block = &buffer.slice()[..length];
                file.write_all_at(block, offset).map_err(Error::io("write", &path))?;
                offset += length as u64;
            }
            file.sync_all().map_err(Error::io("fsync", &path))
        }
    }
}

pub(super) fn run(work: &Work, at_start: impl FnOnce()) -> Result<Done, Error> {
    check(work)?;
    let path = file(work);
    let mut buffer = Buffer::new(work.block_bytes);
    let writes = !matches!(work.operation, Operation::SeqRead | Operation::RandRead);
    let fresh = matches!(work.operation, Operation::SeqWrite | Operation::AppendSync) && !work.over;
    if fresh && !work.shares_file() && path.exists() {
        std::fs::remove_file(&path).map_err(Error::io("remove", &path))?;
    }
    let open = || {
        OpenOptions::new()
            .read(!writes)
            .write(writes)
            .create(fresh)
            .truncate(false)
            .custom_flags(if work.direct { O_DIRECT } else { 0 })
            .open(&path)
            .map_err(Error::io("open", &path))
    };
    let blocks = work.file_bytes / work.block_bytes as u64;
    let file = open()?;
    if work.no_read_ahead {
        rustix::fs::fadvise(&file, 0, None, Advice::Random).map_err(Error::io("advise", &path))?;
    }
    if fresh && work.shares_file() {
        // Another worker may have it open already, but none has begun to write.
        file.set_len(0).map_err(Error::io("truncate", &path))?;
    }
    at_start();
    let start = std::time::Instant::now();
    let mut random = Rng::with_seed(work.worker as u64);
    // Sequential work runs to the end of the file, however long that takes.
    let (limit, stride) = match work.operation {
        Operation::SeqWrite | Operation::SeqRead => (std::time::Duration::MAX, u64::MAX),
        Operation::AppendSync => (work.limit(), 1),
        _ if work.each_durable => (work.limit(), 1),
        _ => (work.limit(), 16),
    };
    let mut done = timed(limit, stride, |index| {
        let block = match work.operation {
            Operation::SeqWrite | Operation::SeqRead if index == blocks => return Ok(false),
            Operation::RandRead | Operation::RandWrite => random.u64(..blocks),
            _ => index,
        };
        let place = if work.shares_file() { block * work.workers as u64 + work.worker as u64 } else { block };
        let offset = place * work.block_bytes as u64;
        if writes {
            file.write_all_at(buffer.slice(), offset).map_err(Error::io("write", &path))?;
        } else {
            file.read_exact_at(buffer.slice(), offset).map_err(Error::io("read", &path))?;
        }
        if work.operation == Operation::AppendSync || work.each_durable {
            file.sync_data().map_err(Error::io("fdatasync", &path))?;
        }
        Ok(true)
    })?;
    if work.sync {
        file.sync_all().map_err(Error::io("fsync", &path))?;
    }
    done.elapsed_ns = start.elapsed().as_nanos() as u64;
    Ok(done)
}

fn check(work: &Work) -> Result<(), Error> {
    let block = work.block_bytes as u64;
    if block == 0 || !work.file_bytes.is_multiple_of(block) || work.file_bytes == 0 {
        let file = work.file_bytes;
        return Err(Error::Usage(format!(
            "a file of {file} bytes is no whole number of {block}-byte blocks"
        )));
    }
    Ok(())
}

fn file(work: &Work) -> PathBuf {
    match work.shares_file() {
        true => work.directory().join("data"),
        false => work.directory().join(format!("data{}", work.worker)),
    }
}
