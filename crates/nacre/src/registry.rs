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
    let base = checked_base()?;
    let entry = base.join(name_of(&run.path)).with_extension("dir");
    let _turn = take_turn(&base)?;
    write_private(&entry, run.path.as_os_str().as_bytes())
}

/// Removes the entry of a run directory in which nothing runs, unless something has just begun to.
fn remove_unused(entry: &Path, run: &RunDir) {
    // What cannot be removed is looked at again next time.
    if let Ok(_turn) = take_turn(&base())
        && run.running().is_empty()
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
    let Ok(entries) = fs::read_dir(base()) else {
        return Vec::new();
    };
    let mut found = Vec::new();
    for path in entries.filter_map(|entry| Some(entry.ok()?.path())) {
        if path.extension().is_none_or(|extension| extension != "dir") {
            continue;
        }
        let Ok(text) = fs::read(&path) else { continue };
        let run = RunDir::new(PathBuf::from(std::ffi::OsString::from_vec(text)));
        if run.running().is_empty() {
            remove_unused(&path, &run);
        } else {
            found.push(run);
        }
    }
    found.sort_by(|a, b| a.path.cmp(&b.path));
    found
}
