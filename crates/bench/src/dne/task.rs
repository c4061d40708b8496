//! One task: creates, stats, reads and removes files in one directory, through one mount.

use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use rustix::fs::{AtFlags, Mode, OFlags, StatxFlags};
use serde::{Deserialize, Serialize};

use crate::error::Error;
use crate::team::{self, Barrier, Span, now_ns};

/// One phase.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Phase {
    Create,
    Stat,
    Read,
    Unlink,
}

impl Phase {
    pub(super) const ALL: [Phase; 4] = [Phase::Create, Phase::Stat, Phase::Read, Phase::Unlink];

    /// Returns the name in the talks' tables.
    pub(super) fn label(self) -> &'static str {
        match self {
            Phase::Create => "create",
            Phase::Stat => "stat",
            Phase::Read => "read",
            Phase::Unlink => "unlink",
        }
    }
}

/// Order to all tasks; each takes its own part by its rank.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Order {
    pub(super) phase: Phase,
    /// Directory of each task in the name space.
    pub(super) directories: Vec<PathBuf>,
    /// Distance in ranks to the task whose files a task uses for stats, reads and removals.
    pub(super) distance: usize,
    /// Number of the round, which makes names new: for a name that existed before, the kernel sends one more
    /// request.
    pub(super) round: u64,
    /// Number of files of each task.
    pub(super) files: u64,
    /// Size of a new file in bytes; also the bytes read from it.
    pub(super) bytes: usize,
}

/// Setup of a task.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Setup {
    pub(super) rank: usize,
    /// All mounts, assigned to tasks round-robin.
    pub(super) mounts: Vec<PathBuf>,
}

/// Serves the team until it ends.
pub(crate) fn serve(setup: &str) -> Result<(), Error> {
    let setup: Setup = serde_json::from_str(setup).map_err(Error::usage)?;
    team::serve(|order, barrier| run(&setup, &order, barrier))
}

/// Returns the rank of the task that created the files to stat, read and remove: another one, so that with
/// several mounts the client that created the files does not serve them from its caches.
fn owner(setup: &Setup, order: &Order) -> usize {
    let distance = if order.phase == Phase::Create { 0 } else { order.distance };
    (setup.rank + distance) % order.directories.len().max(1)
}

fn run(setup: &Setup, order: &Order, barrier: &mut Barrier) -> Result<Span, Error> {
    let owner = owner(setup, order);
    let mount = &setup.mounts[setup.rank % setup.mounts.len()];
    let path = mount.join(&order.directories[owner]);
    let directory =
        rustix::fs::open(&path, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
            .map_err(Error::io("open", &path))?;
    let names: Vec<CString> = (0..order.files)
        .map(|number| {
            // Hyphens rather than dots: crush takes some dotted names for temporary files and hashes them to
            // one MDT.
            let name = format!("file.mdtest-{owner}-{}-{number}", order.round);
            CString::new(name.into_bytes()).map_err(|_| Error::Usage("a name has a zero byte".to_owned()))
        })
        .collect::<Result<_, _>>()?;
    let mut data = vec![0x5a; order.bytes.max(1)];
    barrier.wait()?;
    let start_ns = now_ns();
    for name in &names {
        let done = match order.phase {
            Phase::Create => {
                let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::CLOEXEC;
                rustix::fs::openat(&directory, name, flags, Mode::from_raw_mode(0o644)).and_then(|file| {
                    match order.bytes {
                        0 => Ok(()),
                        bytes => rustix::io::write(&file, &data[..bytes]).map(drop),
                    }
                })
            }
            Phase::Stat => {
                // Asks the server even if the kernel has cached attributes.
                let flags = AtFlags::STATX_FORCE_SYNC;
                rustix::fs::statx(&directory, name, flags, StatxFlags::BASIC_STATS).map(drop)
            }
            Phase::Read => {
                rustix::fs::openat(&directory, name, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
                    .and_then(|file| rustix::io::read(&file, &mut data[..]).map(drop))
            }
            Phase::Unlink => rustix::fs::unlinkat(&directory, name, AtFlags::empty()),
        };
        done.map_err(|errno| {
            let path = path.join(std::ffi::OsStr::from_bytes(name.to_bytes()));
            Error::Io { action: order.phase.label(), path, source: errno.into() }
        })?;
    }
    Ok(Span { start_ns, end_ns: now_ns(), items: order.files })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_made_by_one_task_and_used_by_the_one_before() {
        let directories = vec![PathBuf::new(); 3];
        let order = |phase| Order {
            phase,
            directories: directories.clone(),
            distance: 1,
            round: 0,
            files: 1,
            bytes: 0,
        };
        let setup = |rank| Setup { rank, mounts: Vec::new() };
        let owners = |phase| (0..3).map(|rank| owner(&setup(rank), &order(phase))).collect::<Vec<_>>();
        assert_eq!(owners(Phase::Create), [0, 1, 2]);
        assert_eq!(owners(Phase::Unlink), [1, 2, 0]);
    }
}
