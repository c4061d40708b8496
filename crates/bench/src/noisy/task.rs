//! The two kinds of tasks: one stream, and small random writers.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::PathBuf;

use fastrand::Rng;
use serde::{Deserialize, Serialize};

use crate::buffer::{Buffer, O_DIRECT};
use crate::error::Error;
use crate::team::{self, Barrier, now_ns};

/// Size of a small write in bytes.
pub(super) const SMALL_BYTES: usize = 4096;
/// Size of one write of the stream in bytes.
const STREAM_BYTES: usize = 1 << 20;
/// Number of files of each small writer.
const FILES: usize = 16;
/// Size of each in bytes; a quarter of Cray's sizes, 32 KiB to 8 MiB, are smaller.
const FILE_BYTES: u64 = 256 << 10;

/// Role of a task.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) enum Role {
    /// Writes a new file sequentially.
    Stream,
    /// Writes 4 KiB at random offsets of existing files.
    Small {
        /// Seed of the offsets.
        seed: u64,
    },
}

/// Order to a task.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Order {
    /// Directory of the stream's files.
    pub(super) stream: PathBuf,
    /// Directory of the small writers' files.
    pub(super) small: PathBuf,
    /// Whether small writers run in this scene.
    pub(super) with_small: bool,
    /// Duration of the stream in seconds; small writers continue a quarter longer, until the stream has been
    /// flushed.
    pub(super) seconds: f64,
}

/// Result of a task.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(super) struct Done {
    pub(super) bytes: u64,
    pub(super) elapsed_ns: u64,
    /// Latency of each small write in microseconds.
    pub(super) latencies_us: Vec<u32>,
}

/// Serves the team until it ends.
pub(crate) fn serve(setup: &str) -> Result<(), Error> {
    let role: Role = serde_json::from_str(setup).map_err(Error::usage)?;
    team::serve(|order: Order, barrier| match role {
        Role::Stream => stream(&order, barrier),
        Role::Small { seed } => small(&order, seed, barrier),
    })
}

fn stream(order: &Order, barrier: &mut Barrier) -> Result<Done, Error> {
    let path = order.stream.join("stream");
    let file = File::create_new(&path).map_err(Error::io("create", &path))?;
    let mut buffer = Buffer::new(STREAM_BYTES);
    barrier.wait()?;
    let start = now_ns();
    let end = start + (order.seconds * 1e9) as u64;
    let mut bytes = 0;
    while now_ns() < end {
        file.write_all_at(buffer.slice(), bytes).map_err(Error::io("write", &path))?;
        bytes += STREAM_BYTES as u64;
    }
    // Data that is still held back does not count as written.
    file.sync_all().map_err(Error::io("fsync", &path))?;
    let elapsed_ns = now_ns() - start;
    drop(file);
    std::fs::remove_file(&path).map_err(Error::io("remove", &path))?;
    Ok(Done { bytes, elapsed_ns, latencies_us: Vec::new() })
}

fn small(order: &Order, seed: u64, barrier: &mut Barrier) -> Result<Done, Error> {
    if !order.with_small {
        barrier.wait()?;
        return Ok(Done::default());
    }
    let path = |number: usize| order.small.join(format!("small.{seed}.{number}"));
    let mut buffer = Buffer::new(SMALL_BYTES);
    let mut files = Vec::new();
    for number in 0..FILES {
        let path = path(number);
        std::fs::write(&path, vec![1; FILE_BYTES as usize]).map_err(Error::io("write", &path))?;
        // Each write is one request to the server: write-back gathers nothing.
        let file = OpenOptions::new().write(true).custom_flags(O_DIRECT).open(&path);
        files.push(file.map_err(Error::io("open", &path))?);
    }
    files.iter().try_for_each(File::sync_all).map_err(Error::io("fsync", &order.small))?;
    let mut random = Rng::with_seed(seed);
    let mut latencies_us = Vec::new();
    barrier.wait()?;
    let start = now_ns();
    let end = start + (order.seconds * 1.25e9) as u64;
    let mut before = start;
    while before < end {
        let number = random.usize(..FILES);
        let offset = random.u64(..FILE_BYTES / SMALL_BYTES as u64) * SMALL_BYTES as u64;
        files[number].write_all_at(buffer.slice(), offset).map_err(Error::io("write", path(number)))?;
        let after = now_ns();
        latencies_us.push(u32::try_from((after - before) / 1000).unwrap_or(u32::MAX));
        before = after;
    }
    let bytes = latencies_us.len() as u64 * SMALL_BYTES as u64;
    drop(files);
    (0..FILES).try_for_each(|number| {
        std::fs::remove_file(path(number)).map_err(Error::io("remove", path(number)))
    })?;
    Ok(Done { bytes, elapsed_ns: before - start, latencies_us })
}
