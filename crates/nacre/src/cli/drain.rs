//! `nacre target drain`: moves all inodes of an MDT to the other MDTs.
//!
//! The MDT lists its inodes with names, and the directories of which it has a shard. Directories move first,
//! each as `lfs migrate -m -d` moves it, to MDTs with free space; then files move to the MDT of their names,
//! many in one request. The command keeps no state: what has moved is not on the MDT any more, so a restarted
//! command continues where the interrupted one stopped.

use super::TargetDrainArgs;
use crate::failure::{EXIT_FAILURE, Failure, Result};
use crate::lfs::migrate::directory::{MigrateRequest, migrate_one};
use crate::lfs::mounted::{self, Mounted};
use crate::progress::Progress;
use nacre_env::clock::Instant;
use nacre_layout::dir_layout::DirFlags;
use nacre_layout::{DirLayout, user};
use nacre_types::ioctl::{FilesWanted, MIGRATED_MAX};
use nacre_types::{Fid, TargetId, TargetKind};
use rustix::io::Errno;
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

/// State bits of targets that take no inodes: read-only, no new inodes, no space, no inodes (`OS_STATFS_*`).
const STATE_CLOSED: u32 = 0x02 | 0x04 | 0x20 | 0x40;
/// State bit: the target takes no new directories, or objects.
const STATE_NO_CREATE: u32 = 0x04;
/// Rounds over the remaining inodes: directories that held shards of others may be visible only then.
const ROUNDS: usize = 3;
/// Longest time until all mounts know that the MDT takes nothing new.
const CLOSED_WITHIN: Duration = Duration::from_secs(5);
const LOOK_AGAIN: Duration = Duration::from_millis(50);
/// Parallel requests: group commit of the MDTs makes the changes of several durable with one flush.
const THREADS: usize = 8;
/// Longest time to retry a file that counts as open: its close may still be on the way to the MDT.
const CLOSED_AFTER: Duration = Duration::from_secs(1);
/// Most remaining files to print; all are counted.
const SHOWN_MAX: usize = 20;
/// An MDT with nine tenths of the best one's free space counts as equally good.
const AS_GOOD: (u64, u64) = (9, 10);

/// Runs the command.
pub fn run(args: &TargetDrainArgs) -> Result<i32> {
    let mount = Mounted::open(&args.mount_point)
        .map_err(Failure::because(format!("use {} as a mount", args.mount_point.display())))?;
    let index = index_of(&args.target)?;
    if index == 0 {
        return Err(Failure::new(
            "MDT0000 holds the root directory, which cannot move: empty another MDT, or move what is below the root with 'lfs migrate -m'",
        ));
    }
    close(&mount, TargetId::mdt(index))?;
    let root = mount.root().map_err(Failure::because("find the mount point"))?;
    let others = targets_of(&mount, index)?;
    let mut drain = Drain { mount: &mount, root, index, others, turn: 0, moved: 0, left: BTreeMap::new() };
    let mut progress = Progress::new(false);
    for _ in 0..ROUNDS {
        let before = drain.moved;
        drain.round(&mut progress)?;
        if drain.left.is_empty() || drain.moved == before {
            break;
        }
    }
    drop(progress);
    let left = &drain.left;
    println!("moved {} inodes from MDT{index:04x}; {} left", drain.moved, left.len());
    for (path, error) in left.iter().take(SHOWN_MAX) {
        println!("  {}: {error}", path.display());
    }
    Ok(if left.is_empty() { 0 } else { EXIT_FAILURE })
}

/// Parses `MDT0001`, with or without the file system's name in front, or a number.
fn index_of(text: &str) -> Result<u16> {
    let name = text.strip_suffix("_UUID").unwrap_or(text);
    let found = match name.rsplit_once("MDT") {
        Some((_, digits)) => u16::from_str_radix(digits, 16).ok(),
        None => name.parse().ok(),
    };
    found.ok_or_else(|| {
        Failure::usage(format!("'{text}' is no MDT: give its name, as in MDT0001, or its index"))
    })
}

/// Closes a target for new entries: directories on an MDT, objects on an OST.
///
/// # Errors
/// If it still takes some after [`CLOSED_WITHIN`].
pub(super) fn close(mount: &Mounted, target: TargetId) -> Result<()> {
    let is_closed = || {
        let rows = mount.targets_with_space().map_err(Failure::because("ask for the space of targets"))?;
        let row = rows.into_iter().find(|row| row.target == target);
        let row = row.ok_or_else(|| Failure::new(format!("there is no {target}")))?;
        Ok(row.space.is_some_and(|space| space.state & STATE_NO_CREATE != 0))
    };
    if is_closed()? {
        return Ok(());
    }
    let kind = if target.kind == TargetKind::Ost { "obdfilter" } else { "mdt" };
    let name = format!("{kind}.{}-{target}.no_create", mount.fsname());
    let words = ["set_param", "-n", &format!("{name}=1")].map(OsString::from);
    let code = crate::lctl::main(&words);
    let deadline = Instant::now() + CLOSED_WITHIN;
    while code == 0 && Instant::now() < deadline {
        if is_closed()? {
            return Ok(());
        }
        nacre_env::thread::sleep(LOOK_AGAIN);
    }
    Err(Failure::new(format!(
        "{target} still takes what is new: run 'lctl set_param {name}=1' on its host first"
    )))
}

/// Returns the other MDTs that take new inodes and have about as much free space as the best.
fn targets_of(mount: &Mounted, index: u16) -> Result<Vec<u16>> {
    let rows = mount.targets_with_space().map_err(Failure::because("ask for the space of targets"))?;
    let room = |row: &mounted::TargetRow| {
        let space = row.space.filter(|space| space.state & STATE_CLOSED == 0)?;
        Some((row.target.index, space.blocks_available.saturating_mul(u64::from(space.block_size))))
    };
    let others = rows.iter().filter(|row| row.target.kind == TargetKind::Mdt && row.target.index != index);
    let rooms: Vec<(u16, u64)> = others.filter_map(room).collect();
    let most = rooms.iter().map(|(_, bytes)| *bytes).max();
    let most =
        most.ok_or_else(|| Failure::new("no other MDT takes anything new: add one with 'nacre target add'"))?;
    let is_good =
        |bytes: u64| u128::from(bytes) * u128::from(AS_GOOD.1) >= u128::from(most) * u128::from(AS_GOOD.0);
    Ok(rooms.into_iter().filter(|(_, bytes)| is_good(*bytes)).map(|(index, _)| index).collect())
}

struct Drain<'a> {
    mount: &'a Mounted,
    root: PathBuf,
    index: u16,
    /// MDTs that get the directories, round-robin.
    others: Vec<u16>,
    turn: usize,
    moved: u64,
    /// Inodes that the last round has left, and why.
    left: BTreeMap<PathBuf, String>,
}

impl Drain<'_> {
    /// Moves the inodes that the MDT has at present.
    fn round(&mut self, progress: &mut Progress) -> Result<()> {
        self.left.clear();
        self.move_directories(progress)?;
        let mdts = self.mount.targets().map_err(Failure::because("ask for the MDTs"))?;
        let mdts = mdts.iter().filter(|row| row.target.kind == TargetKind::Mdt);
        for mdt in mdts.map(|row| row.target.index) {
            let files = self.all_of(FilesWanted::Files { mdt: self.index, named_on: mdt })?;
            match mdt == self.index {
                true => files.iter().for_each(|fid| self.leave(fid, "its name is still there")),
                false => self.move_files(&files, mdt, progress),
            }
        }
        Ok(())
    }

    /// Returns all inodes of a kind that the MDT has at present.
    fn all_of(&self, wanted: FilesWanted) -> Result<Vec<Fid>> {
        let (mut all, mut after) = (Vec::new(), Some(Fid::ZERO));
        while let Some(from) = after {
            let page = self.mount.files_on(wanted, from);
            let (fids, next) =
                page.map_err(Failure::because(format!("ask what is on MDT{:04x}", self.index)))?;
            all.extend(fids);
            after = next;
        }
        Ok(all)
    }

    /// Moves the directories, round-robin over the other MDTs.
    fn move_directories(&mut self, progress: &mut Progress) -> Result<()> {
        let mut fids = self.all_of(FilesWanted::Directories(self.index))?;
        // A directory with several shards on the MDT is listed several times.
        fids.sort_unstable();
        fids.dedup();
        let first = self.turn;
        self.turn += fids.len();
        let in_turn: Vec<(usize, Fid)> = (first..).zip(fids).collect();
        let (mount, root, others) = (self.mount, &self.root, &self.others);
        let outcomes = side_by_side(&in_turn, |(turn, fid)| {
            // A directory that has lost its names meanwhile will be destroyed.
            let path = root.join(mount.paths_of(fid, Some(0)).ok()?.first()?);
            let outcome = migrate_one(&request_for(&path, *turn, others), &path);
            Some((path, outcome))
        });
        for (path, outcome) in outcomes.into_iter().flatten() {
            match outcome {
                Ok(true) => self.moved += 1,
                Ok(false) => drop(self.left.insert(path, "its name is still there".to_owned())),
                Err(error) if is_gone(&error) => {}
                Err(error) => drop(self.left.insert(path, reason_of(&error))),
            }
        }
        self.show(progress);
        Ok(())
    }

    /// Moves files to the MDT of their names.
    fn move_files(&mut self, files: &[Fid], mdt: u16, progress: &mut Progress) {
        let groups: Vec<&[Fid]> = files.chunks(MIGRATED_MAX).collect();
        // Batches bound the results in memory, with a progress line between them.
        for groups in groups.chunks(THREADS * 8) {
            let outcomes = side_by_side(groups, |group| self.move_group(group, mdt));
            for (fid, outcome) in outcomes.into_iter().flatten() {
                match outcome {
                    Ok(()) => self.moved += 1,
                    Err(error) if is_gone(&error) => {}
                    Err(error) => self.leave(&fid, &reason_of(&error)),
                }
            }
            self.show(progress);
        }
    }

    /// Moves files in one request, and retries open ones that may just have been closed.
    fn move_group(&self, files: &[Fid], mdt: u16) -> Vec<(Fid, io::Result<()>)> {
        let deadline = Instant::now() + CLOSED_AFTER;
        let (mut outcomes, mut open) = (Vec::new(), files.to_vec());
        loop {
            let found = self.mount.migrate_files(&open, mdt).unwrap_or_else(|error| {
                let errno = Errno::from_io_error(&error).unwrap_or(Errno::IO);
                open.iter().map(|_| Err(io::Error::from(errno))).collect()
            });
            let is_over = Instant::now() >= deadline;
            let may_close = |outcome: &io::Result<()>| {
                let errno = outcome.as_ref().err().and_then(Errno::from_io_error);
                matches!(errno, Some(Errno::BUSY | Errno::AGAIN)) && !is_over
            };
            let (again, done): (Vec<_>, Vec<_>) =
                open.into_iter().zip(found).partition(|(_, outcome)| may_close(outcome));
            outcomes.extend(done);
            if again.is_empty() {
                return outcomes;
            }
            open = again.into_iter().map(|(fid, _)| fid).collect();
            nacre_env::thread::sleep(LOOK_AGAIN);
        }
    }

    fn show(&self, progress: &mut Progress) {
        progress.show(&format!("{} inodes moved", self.moved));
    }

    /// Notes an inode that stays; one that has lost its names meanwhile will be destroyed.
    fn leave(&mut self, fid: &Fid, reason: &str) {
        let path = self.mount.paths_of(fid, Some(0)).ok().and_then(|paths| paths.into_iter().next());
        if let Some(path) = path {
            self.left.insert(self.root.join(path), reason.to_owned());
        }
    }
}

/// Returns the layout for a directory after the move: as many shards as before, if the other MDTs can take
/// them.
fn request_for(path: &Path, turn: usize, others: &[u16]) -> MigrateRequest {
    let stored = mounted::directory_layout(path).ok().flatten();
    let stored = stored.filter(|stored| !user::is_foreign_directory(stored));
    let shards =
        stored.and_then(|stored| DirLayout::decode(&stored).ok()).map_or(1, |list| list.shards.len());
    let count = shards.min(5 * others.len());
    let mdts: Vec<u16> = others.iter().copied().cycle().skip(turn % others.len()).take(count).collect();
    let hash = if count > others.len() { DirFlags::OVERSTRIPED.bits() } else { 0 };
    MigrateRequest { mdts, count: count as i32, hash, only_directories: true, is_verbose: false }
}

fn is_gone(error: &io::Error) -> bool {
    Errno::from_io_error(error) == Some(Errno::NOENT)
}

fn reason_of(error: &io::Error) -> String {
    match Errno::from_io_error(error) {
        Some(Errno::BUSY) => "it is open".to_owned(),
        Some(Errno::MLINK) => "it has more than 1000 names".to_owned(),
        _ => error.to_string(),
    }
}

/// Runs `work` for each item, several in parallel; returns the results in order of completion.
fn side_by_side<T: Sync, R: Send>(items: &[T], work: impl Fn(&T) -> R + Sync) -> Vec<R> {
    let next = AtomicUsize::new(0);
    let one = || {
        let mine = || items.get(next.fetch_add(1, Ordering::Relaxed));
        std::iter::from_fn(mine).map(&work).collect::<Vec<R>>()
    };
    nacre_env::thread::scope(|scope| {
        let workers: Vec<_> = (0..THREADS.min(items.len())).map(|_| scope.spawn(one)).collect();
        let results = workers
            .into_iter()
            .map(|worker| worker.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
        results.flatten().collect()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_mdt_is_named_as_lctl_and_lfs_name_it() {
        let index = |text: &str| index_of(text).ok();
        assert_eq!(
            ["MDT0001", "nacre-MDT000a", "nacre-MDT0002_UUID", "3"].map(index),
            [1, 10, 2, 3].map(Some)
        );
        assert_eq!(["", "OST0001", "MDTx", "-1"].map(index), [None; 4]);
    }
}
