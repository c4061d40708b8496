//! The phases of one task of mdtest.

use std::ffi::{CStr, OsStr};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use fastrand::Rng;
use rustix::fs::{Mode, OFlags};
use serde::{Deserialize, Serialize};

use super::plan::{Kind, Plan};
use crate::error::Error;
use crate::team::{self, Barrier, Span, now_ns};

/// Flags to open files. mdtest 4 opens them for writing, too, even to read them, and creates them without
/// O_EXCL.
const OPEN: OFlags = OFlags::RDWR.union(OFlags::CLOEXEC);

/// Setup of a task.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Setup {
    pub(super) plan: Plan,
    pub(super) rank: u64,
    pub(super) tasks: u64,
    /// Distance in ranks to the task whose items a task stats; twice that for reads, three times for
    /// removals.
    pub(super) stride: u64,
    /// Seed of the order of stats; `None` for the order of creation.
    pub(super) seed: Option<u64>,
    pub(super) write_bytes: usize,
    pub(super) read_bytes: usize,
    pub(super) sync: bool,
}

/// One phase of an iteration.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Phase {
    TreeCreate,
    TreeRemove,
    Create(Kind),
    Stat(Kind),
    Read,
    Remove(Kind),
}

#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(super) struct Order {
    pub(super) phase: Phase,
    pub(super) iteration: u64,
}

/// Serves the team until it ends.
pub(crate) fn serve(setup: &str) -> Result<(), Error> {
    let setup: Setup = serde_json::from_str(setup).map_err(Error::usage)?;
    team::serve(|order, barrier| run(&setup, order, barrier))
}

fn run(setup: &Setup, order: Order, barrier: &mut Barrier) -> Result<Span, Error> {
    let of = |distance: u64| (setup.rank + distance * setup.stride) % setup.tasks;
    let paths = |distance: u64, kind| setup.plan.paths(order.iteration, of(distance), kind);
    match order.phase {
        Phase::TreeCreate | Phase::TreeRemove => tree(setup, order, barrier),
        Phase::Create(Kind::Directory) => each(barrier, &paths(0, Kind::Directory)?, |path| {
            rustix::fs::mkdir(path, Mode::from_raw_mode(0o755)).map_err(failed("create directory", path))
        }),
        Phase::Create(Kind::File) => {
            let mut bytes = vec![0; setup.write_bytes];
            Rng::with_seed(setup.rank).fill(&mut bytes);
            each(barrier, &paths(0, Kind::File)?, |path| create(path, &bytes, setup.sync))
        }
        Phase::Stat(kind) => {
            let mut paths = paths(1, kind)?;
            if let Some(seed) = setup.seed {
                Rng::with_seed(seed + setup.rank).shuffle(&mut paths);
            }
            each(barrier, &paths, |path| rustix::fs::stat(path).map(drop).map_err(failed("stat", path)))
        }
        Phase::Read => {
            let mut bytes = vec![0; setup.read_bytes];
            each(barrier, &paths(2, Kind::File)?, |path| read(path, &mut bytes))
        }
        Phase::Remove(Kind::Directory) => each(barrier, &paths(3, Kind::Directory)?, |path| {
            rustix::fs::rmdir(path).map_err(failed("remove directory", path))
        }),
        Phase::Remove(Kind::File) => each(barrier, &paths(3, Kind::File)?, |path| {
            rustix::fs::unlink(path).map_err(failed("remove", path))
        }),
    }
}

/// Times `act` on all paths, from the barrier of all tasks on.
fn each<T: AsRef<CStr>>(
    barrier: &mut Barrier,
    paths: &[T],
    mut act: impl FnMut(&CStr) -> Result<(), Error>,
) -> Result<Span, Error> {
    barrier.wait()?;
    let start_ns = now_ns();
    paths.iter().try_for_each(|path| act(path.as_ref()))?;
    Ok(Span { start_ns, end_ns: now_ns(), items: paths.len() as u64 })
}

fn failed(action: &'static str, path: &CStr) -> impl FnOnce(rustix::io::Errno) -> Error {
    let path = PathBuf::from(OsStr::from_bytes(path.to_bytes()));
    move |errno| Error::Io { action, path, source: errno.into() }
}

/// Creates or removes the tree of this task, or the common one, which the first task does.
fn tree(setup: &Setup, order: Order, barrier: &mut Barrier) -> Result<Span, Error> {
    let directories = if setup.plan.keeps_tree(setup.rank) {
        setup.plan.tree(order.iteration, setup.rank)
    } else {
        Vec::new()
    };
    barrier.wait()?;
    let start_ns = now_ns();
    if order.phase == Phase::TreeCreate {
        for directory in &directories {
            std::fs::create_dir(directory).map_err(Error::io("create directory", directory))?;
        }
    } else {
        for directory in directories.iter().rev() {
            std::fs::remove_dir(directory).map_err(Error::io("remove directory", directory))?;
        }
    }
    Ok(Span { start_ns, end_ns: now_ns(), items: directories.len() as u64 })
}

fn create(path: &CStr, bytes: &[u8], sync: bool) -> Result<(), Error> {
    let flags = OFlags::CREATE | OPEN;
    let file = rustix::fs::open(path, flags, Mode::from_raw_mode(0o664)).map_err(failed("create", path))?;
    let mut rest = bytes;
    while !rest.is_empty() {
        let written = rustix::io::write(&file, rest).map_err(failed("write", path))?;
        rest = &rest[written..];
    }
    if sync {
        rustix::fs::fsync(&file).map_err(failed("fsync", path))?;
    }
    Ok(())
}

fn read(path: &CStr, bytes: &mut [u8]) -> Result<(), Error> {
    let file = rustix::fs::open(path, OPEN, Mode::empty()).map_err(failed("open", path))?;
    let mut read = 0;
    while read < bytes.len() {
        match rustix::io::read(&file, &mut bytes[read..]).map_err(failed("read", path))? {
            0 => {
                let text = path.to_string_lossy();
                return Err(Error::Usage(format!(
                    "{text} has {read} bytes, not {}: change -e or -w",
                    bytes.len()
                )));
            }
            count => read += count,
        }
    }
    Ok(())
}
