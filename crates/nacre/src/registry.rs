//! Which run directories are in use on this host, so that `nacre status`, `nacre umount` and `lctl` find processes without
//! being told a directory.
//!
//! One small file for each run directory, in a directory of this user; entries of processes that are gone are removed by
//! whoever sees them.

use crate::failure::{Failure, Result};
use crate::instance::{make_dir, write_private};
use crate::process::RunDir;
use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// Directory of this user's entries: `/run/nacre` for root, else below `$XDG_RUNTIME_DIR`, else in `/tmp`.
fn base() -> PathBuf {
    let uid = rustix::process::geteuid().as_raw();
    if uid == 0 {
        return PathBuf::from("/run/nacre");
    }
    match std::env::var_os("XDG_RUNTIME_DIR") {
        Some(dir) if Path::new(&dir).is_dir() => Path::new(&dir).join("nacre"),
        _ => PathBuf::from(format!("/tmp/nacre-{uid}")),
    }
}

fn name_of(path: &Path) -> String {
    let mut hasher = DefaultHasher::new();
    path.hash(&mut hasher);
    format!("{:016x}", hasher.finish())
}

fn checked_base() -> Result<PathBuf> {
    let base = base();
    make_dir(&base, 0o700)?;
    let owner =
        fs::symlink_metadata(&base).map_err(Failure::because(format!("look at {}", base.display())))?;
    if !owner.is_dir() || owner.uid() != rustix::process::geteuid().as_raw() {
        return Err(Failure::new(format!("{} belongs to another user: remove it", base.display())));
    }
    Ok(base)
}

/// Makes the run directory of a process known. The process has its lock already ([`RunDir::lock`]), so that nobody takes the
/// entry for one that is not used.
///
/// # Errors
/// If the entry cannot be written.
pub fn add(run: &RunDir) -> Result<()> {
    add_to(&checked_base()?, run)
}

fn add_to(base: &Path, run: &RunDir) -> Result<()> {
    let entry = base.join(name_of(&run.path)).with_extension("dir");
    let _turn = take_turn(base)?;
    if read(&entry).is_some_and(|known| known.path == run.path) {
        return Ok(());
    }
    // Whole at any time: others read it without a turn.
    let new = entry.with_extension("new");
    write_private(&new, run.path.as_os_str().as_bytes())?;
    fs::rename(&new, &entry).map_err(Failure::because(format!("write {}", entry.display())))
}

/// The run directory that an entry names.
fn read(entry: &Path) -> Option<RunDir> {
    let text = fs::read(entry).ok()?;
    Some(RunDir::new(PathBuf::from(std::ffi::OsString::from_vec(text))))
}

/// Removes the entry of a run directory in which nothing runs, unless something has just begun to.
fn remove_unused(base: &Path, entry: &Path) {
    // What cannot be removed is looked at again next time.
    if let Ok(_turn) = take_turn(base)
        && read(entry).is_some_and(|run| run.running().is_empty())
    {
        let _ = fs::remove_file(entry);
    }
}

/// Waits until nobody else changes the entries; the turn ends with the value.
fn take_turn(base: &Path) -> Result<fs::File> {
    let path = base.join("lock");
    let fail = || Failure::because(format!("lock {}", path.display()));
    let mut options = fs::OpenOptions::new();
    let file = options.create(true).append(true).mode(0o600).open(&path).map_err(fail())?;
    file.lock().map_err(fail())?;
    Ok(file)
}

/// Run directory of a mount that has no file system directory on this host.
///
/// # Errors
/// If the directory above it cannot be made.
pub fn mount_run_dir(mount_point: &Path) -> Result<RunDir> {
    Ok(RunDir::new(checked_base()?.join(format!("mount-{}", name_of(mount_point)))))
}

/// All run directories in which a process runs.
pub fn running() -> Vec<RunDir> {
    running_in(&base())
}

fn running_in(base: &Path) -> Vec<RunDir> {
    let Ok(entries) = fs::read_dir(base) else {
        return Vec::new();
    };
    let mut found = Vec::new();
    for path in entries.filter_map(|entry| Some(entry.ok()?.path())) {
        if path.extension().is_none_or(|extension| extension != "dir") {
            continue;
        }
        let Some(run) = read(&path) else { continue };
        if run.running().is_empty() {
            remove_unused(base, &path);
        } else {
            found.push(run);
        }
    }
    found.sort_by(|a, b| a.path.cmp(&b.path));
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicBool, Ordering};

    #[test]
    fn what_runs_is_found_while_more_of_it_is_started_and_what_ran_is_forgotten() {
        let scratch = tempfile::tempdir().expect("a directory");
        let base = scratch.path().join("base");
        make_dir(&base, 0o700).expect("made");
        let run = RunDir::new(scratch.path().join("run"));
        let lock = run.lock("mgs").expect("free");
        add_to(&base, &run).expect("added");
        let is_found = || running_in(&base).iter().any(|found| found.path == run.path);
        let is_over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                (0..500).for_each(|_| add_to(&base, &run).expect("added again"));
                is_over.store(true, Ordering::Relaxed);
            });
            while !is_over.load(Ordering::Relaxed) {
                assert!(is_found());
            }
        });
        drop(lock);
        assert!(!is_found());
        let entries = fs::read_dir(&base).expect("there").filter_map(|entry| Some(entry.ok()?.path()));
        assert_eq!(entries.filter(|path| path.extension().is_some()).count(), 0);
    }
}
