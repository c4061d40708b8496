//! `nacre target drain`: moves what lies on an MDT to the others.
//!
//! The MDT says which inodes with names it has, and of which directories it has a shard. Directories move first, each as `lfs migrate -m -d`
//! moves it, to MDTs that have room; then files go where their names are. Nothing is remembered anywhere: what has moved is not on the MDT any
//! more, so a command that was ended and is started again goes on where it was.

use super::TargetDrainArgs;
use crate::failure::{EXIT_FAILURE, Failure, Result};
use crate::lfs::migrate::directory::{Wish, migrate_one};
use crate::lfs::mounted::{self, Mounted};
use crate::progress::Progress;
use nacre_layout::{DirLayout, user};
use nacre_types::{Fid, TargetId, TargetKind};
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// State bits of targets that get nothing: read-only, no new inodes, no space, no inodes (`OS_STATFS_*`).
const STATE_CLOSED: u32 = 0x02 | 0x04 | 0x20 | 0x40;
/// Takes no new directories.
const STATE_NO_CREATE: u32 = 0x04;
/// Rounds over what is there: directories that held shards of others may be seen only then.
const ROUNDS: usize = 3;
/// How long mounts may take to hear that the MDT takes nothing new.
const CLOSED_WITHIN: Duration = Duration::from_secs(5);
const LOOK_AGAIN: Duration = Duration::from_millis(50);
/// What is left is printed up to so many; all are counted.
const SHOWN_MAX: usize = 20;
/// An MDT with nine tenths of the room of the best one is as good.
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
    close(&mount, index)?;
    let root = mount.root().map_err(Failure::because("find the mount point"))?;
    let mut drain =
        Drain { mount: &mount, root, index, targets: targets_of(&mount, index)?, turn: 0, moved: 0 };
    let mut progress = Progress::new(false);
    let mut left = BTreeMap::new();
    for _ in 0..ROUNDS {
        let before = drain.moved;
        left = drain.round(&mut progress)?;
        if left.is_empty() || drain.moved == before {
            break;
        }
    }
    drop(progress);
    println!("moved {} inodes from MDT{index:04x}; {} left", drain.moved, left.len());
    for (path, error) in left.iter().take(SHOWN_MAX) {
        println!("  {}: {error}", path.display());
    }
    Ok(if left.is_empty() { 0 } else { EXIT_FAILURE })
}

/// `MDT0001`, with or without the name of the file system before it, or a number.
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

fn state_of(mount: &Mounted, index: u16) -> Result<Option<u32>> {
    let rows = mount.targets_with_space().map_err(Failure::because("ask for the space of targets"))?;
    let row = rows.into_iter().find(|row| row.target == TargetId::mdt(index));
    let row = row.ok_or_else(|| Failure::new(format!("there is no MDT{index:04x}")))?;
    Ok(row.space.map(|space| space.state))
}

/// Has the MDT take nothing new.
fn close(mount: &Mounted, index: u16) -> Result<()> {
    let is_closed = || Ok(state_of(mount, index)?.is_some_and(|state| state & STATE_NO_CREATE != 0));
    if is_closed()? {
        return Ok(());
    }
    let name = format!("mdt.{}-MDT{index:04x}.no_create", mount.fsname());
    let words = ["set_param", "-n", &format!("{name}=1")].map(OsString::from);
    let code = crate::lctl::main(&words);
    let deadline = Instant::now() + CLOSED_WITHIN;
    while code == 0 && Instant::now() < deadline {
        if is_closed()? {
            return Ok(());
        }
        std::thread::sleep(LOOK_AGAIN);
    }
    Err(Failure::new(format!(
        "MDT{index:04x} still takes new directories: run 'lctl set_param {name}=1' on its host first"
    )))
}

/// The other MDTs that take something new, those with about as much room as the best one.
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
    /// MDTs that get what moves, in turn.
    targets: Vec<u16>,
    turn: usize,
    moved: u64,
}

impl Drain<'_> {
    /// Moves what is there; gives what is left, and why.
    fn round(&mut self, progress: &mut Progress) -> Result<BTreeMap<PathBuf, String>> {
        let (mut left, mut files) = (BTreeMap::new(), Vec::new());
        let mut after = Some(Fid::ZERO);
        while let Some(from) = after {
            let found = self.mount.files_on(TargetId::mdt(self.index), from);
            let (fids, next) =
                found.map_err(Failure::because(format!("ask what is on MDT{:04x}", self.index)))?;
            for fid in fids {
                // What has lost its names meanwhile goes by itself.
                let Ok(paths) = self.mount.paths_of(&fid, Some(0)) else { continue };
                let Some(path) = paths.first().map(|path| self.root.join(path)) else { continue };
                match path.symlink_metadata() {
                    Ok(found) if found.is_dir() => self.move_directory(&path, progress, &mut left),
                    Ok(_) => files.push(path),
                    Err(_) => {}
                }
            }
            after = next;
        }
        for path in files {
            let wish = self.wish(self.targets_in_turn(2));
            self.note(&path, migrate_one(&wish, &path), progress, &mut left);
        }
        Ok(left)
    }

    /// So many of the others, from the one whose turn it is.
    fn targets_in_turn(&self, count: usize) -> Vec<u16> {
        self.targets.iter().copied().cycle().skip(self.turn).take(count).collect()
    }

    fn wish(&self, mdts: Vec<u16>) -> Wish {
        let count = mdts.len() as i32;
        Wish { mdts, count, hash: 0, only_directories: true, is_verbose: false }
    }

    fn move_directory(&mut self, path: &Path, progress: &mut Progress, left: &mut BTreeMap<PathBuf, String>) {
        let stored = mounted::directory_layout(path).ok().flatten();
        let stored = stored.filter(|stored| !user::is_foreign_directory(stored));
        let shards =
            stored.and_then(|stored| DirLayout::decode(&stored).ok()).map_or(1, |list| list.shards.len());
        let mdts = match shards {
            1 => self.targets_in_turn(1),
            // As many shards as before, if the others may have them.
            count => self.targets_in_turn(count.min(5 * self.targets.len())),
        };
        self.turn = (self.turn + 1) % self.targets.len();
        let mut wish = self.wish(mdts);
        if wish.count > self.targets.len() as i32 {
            wish.hash |= nacre_layout::dir_layout::DirFlags::OVERSTRIPED.bits();
        }
        self.note(path, migrate_one(&wish, path), progress, left);
    }

    fn note(
        &mut self,
        path: &Path,
        outcome: io::Result<bool>,
        progress: &mut Progress,
        left: &mut BTreeMap<PathBuf, String>,
    ) {
        match outcome {
            Ok(true) => {
                self.moved += 1;
                progress.show(&format!("{} inodes moved", self.moved));
            }
            Ok(false) => drop(left.insert(path.to_owned(), "its name is still there".to_owned())),
            Err(error) if error.raw_os_error() == Some(libc::ENOENT) => {}
            Err(error) => {
                let reason = match error.raw_os_error() {
                    Some(libc::EBUSY) => "it is open".to_owned(),
                    Some(libc::EMLINK) => "it has more than 1000 names".to_owned(),
                    _ => error.to_string(),
                };
                left.insert(path.to_owned(), reason);
            }
        }
    }
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
