//! One task of ior: opens its file, transfers, closes.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::plan::Plan;
use crate::buffer::{Buffer, O_DIRECT};
use crate::error::Error;
use crate::machine;
use crate::pattern;
use crate::striping::Striping;
use crate::team::{self, Barrier, now_ns};

/// Setup of a task.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Setup {
    pub(super) plan: Plan,
    pub(super) rank: u64,
    /// The file, or the prefix of the names of the tasks' files.
    pub(super) path: PathBuf,
    pub(super) direct: bool,
    /// Calls fsync after the last write.
    pub(super) sync: bool,
    /// Barriers of all tasks between open, transfers and close.
    pub(super) barriers: bool,
    /// Seed of the data, which depends on its offset; without a seed all data is the same.
    pub(super) seed: Option<u64>,
    /// Deadline of a phase in seconds; 0 for none.
    pub(super) deadline_s: u64,
    pub(super) striping: Striping,
    /// A different name for each repetition.
    pub(super) multi_file: bool,
}

/// Direction of transfers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Access {
    Write,
    Read,
    /// A read with comparison of the data.
    Check,
}

/// Order to all tasks.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) enum Order {
    Remove {
        repetition: u64,
    },
    Transfer {
        access: Access,
        repetition: u64,
        /// Rank of the task whose data each task works on.
        ranks: Vec<u64>,
        /// Number of transfers of each task's data.
        counts: Vec<u64>,
    },
}

/// Start and end of each step by the host's clock, and what was transferred.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Times {
    pub(super) open_ns: (u64, u64),
    pub(super) access_ns: (u64, u64),
    pub(super) close_ns: (u64, u64),
    pub(super) transfers: u64,
    /// Transfers whose data differed from what was written.
    pub(super) errors: u64,
}

/// Returns the name of a task's file.
pub(super) fn file_name(setup: &Setup, repetition: u64, rank: u64) -> PathBuf {
    let mut name = setup.path.clone().into_os_string();
    if setup.multi_file {
        name.push(format!(".{repetition}"));
    }
    if setup.plan.file_per_task {
        name.push(format!(".{rank:08}"));
    }
    name.into()
}

/// Serves the team until it ends.
pub(crate) fn serve(setup: &str) -> Result<(), Error> {
    let setup: Setup = serde_json::from_str(setup).map_err(Error::usage)?;
    let mut buffer = Buffer::new(setup.plan.transfer as usize);
    pattern::fill(buffer.slice(), 0, setup.rank, 0);
    team::serve(|order, barrier| match order {
        Order::Remove { repetition } => remove(&setup, repetition),
        Order::Transfer { access, repetition, ranks, counts } => {
            let index = setup.rank as usize;
            let rank = *ranks.get(index).ok_or_else(|| Error::Usage("no rank for this task".to_owned()))?;
            let count = counts.get(rank as usize).copied().unwrap_or(0);
            transfer(&setup, access, repetition, rank, count, &mut buffer, barrier)
        }
    })
}

fn remove(setup: &Setup, repetition: u64) -> Result<Times, Error> {
    let path = file_name(setup, repetition, setup.rank);
    if setup.plan.file_per_task || setup.rank == 0 {
        machine::remove_file(&path)?;
    }
    Ok(Times::default())
}

fn transfer(
    setup: &Setup,
    access: Access,
    repetition: u64,
    rank: u64,
    count: u64,
    buffer: &mut Buffer,
    barrier: &mut Barrier,
) -> Result<Times, Error> {
    let path = file_name(setup, repetition, rank);
    let mut times = Times::default();
    barrier.wait()?;
    times.open_ns.0 = now_ns();
    let file = open(setup, access, &path, barrier)?;
    times.open_ns.1 = now_ns();
    if setup.barriers {
        barrier.wait()?;
    }
    times.access_ns.0 = now_ns();
    move_data(setup, access, rank, count, &file, &path, buffer, &mut times)?;
    if setup.sync && access == Access::Write {
        file.sync_all().map_err(Error::io("fsync", &path))?;
    }
    times.access_ns.1 = now_ns();
    if setup.barriers {
        barrier.wait()?;
    }
    times.close_ns.0 = now_ns();
    drop(file);
    times.close_ns.1 = now_ns();
    Ok(times)
}

/// Opens the file; the first task to write creates it. A file with stripes is created by one task before the
/// others open it.
fn open(setup: &Setup, access: Access, path: &Path, barrier: &mut Barrier) -> Result<File, Error> {
    let flags = if setup.direct { O_DIRECT } else { 0 };
    let writes = access == Access::Write;
    let open = || {
        OpenOptions::new()
            .read(true)
            .write(writes)
            .create(writes)
            .truncate(false)
            .custom_flags(flags)
            .open(path)
            .map_err(Error::io("open", path))
    };
    if !writes || setup.striping.is_empty() {
        return open();
    }
    let makes = setup.plan.file_per_task || setup.rank == 0;
    let made = match makes {
        true => Some(setup.striping.create(path, flags).map_err(Error::io("create striped file", path))?),
        false => None,
    };
    if !setup.plan.file_per_task {
        barrier.wait()?;
    }
    made.map_or_else(open, Ok)
}

fn move_data(
    setup: &Setup,
    access: Access,
    rank: u64,
    count: u64,
    file: &File,
    path: &Path,
    buffer: &mut Buffer,
    times: &mut Times,
) -> Result<(), Error> {
    let file_number = if setup.plan.file_per_task { rank } else { 0 };
    let deadline = match setup.deadline_s {
        0 => u64::MAX,
        seconds => times.access_ns.0.saturating_add(seconds.saturating_mul(1_000_000_000)),
    };
    for offset in setup.plan.offsets(rank).take(usize::try_from(count).unwrap_or(usize::MAX)) {
        let bytes = buffer.slice();
        match access {
            Access::Write => {
                if let Some(seed) = setup.seed {
                    pattern::fill(bytes, seed, file_number, offset);
                }
                file.write_all_at(bytes, offset).map_err(Error::io("write", path))?;
            }
            Access::Read => file.read_exact_at(bytes, offset).map_err(Error::io("read", path))?,
            Access::Check => {
                // Stale content must not be taken for data that was read.
                bytes.fill(0);
                file.read_exact_at(bytes, offset).map_err(Error::io("read", path))?;
                if let Some(wrong) = pattern::mismatch(bytes, setup.seed.unwrap_or(0), file_number, offset) {
                    if times.errors == 0 {
                        eprintln!("bench: wrong data at offset {wrong} of {}", path.display());
                    }
                    times.errors += 1;
                }
            }
        }
        times.transfers += 1;
        if deadline != u64::MAX && now_ns() >= deadline {
            break;
        }
    }
    Ok(())
}
