//! Run directories in use on this host, so that `nacre status`, `nacre umount` and `lctl` find processes
//! without a directory argument.
//!
//! One small file for each run directory, in a directory of this user; every command that reads the registry
//! removes entries of processes that have ended.

use crate::failure::{Failure, Result};
use crate::instance::{SUPERBLOCK, make_dir, random_uuid, write_private};
use crate::process::RunDir;
use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// Returns the directory of this user's entries: `/run/nacre` for root, else `nacre` in the user's runtime
/// directory, else one in `/tmp`; `None` if there is none yet.
///
/// A directory that others can write to is never used: an entry there could name a socket of theirs.
fn base() -> Option<PathBuf> {
    let uid = rustix::process::geteuid().as_raw();
    if uid == 0 {
        return Some(PathBuf::from("/run/nacre")).filter(|base| is_private(base, 0));
    }
    match user_dir(uid) {
        Some(dir) => Some(dir.join("nacre")).filter(|base| is_private(base, uid)),
        None => in_tmp(Path::new("/tmp"), uid),
    }
}

/// Returns the directory of this user's entries, created if missing.
///
/// # Errors
/// If it cannot be created, or is open to others.
pub fn make_base() -> Result<PathBuf> {
    let uid = rustix::process::geteuid().as_raw();
    if let Some(base) = base() {
        return Ok(base);
    }
    let base = match user_dir(uid) {
        _ if uid == 0 => PathBuf::from("/run/nacre"),
        Some(dir) => dir.join("nacre"),
        None => return make_in_tmp(Path::new("/tmp"), uid),
    };
    make_dir(&base, 0o700)?;
    match is_private(&base, uid) {
        true => Ok(base),
        false => Err(Failure::new(format!(
            "{} belongs to another user or can be written to by others: remove it",
            base.display()
        ))),
    }
}

/// Returns the user's runtime directory. A service or `su` may leave the variable unset, or that of another
/// user.
fn user_dir(uid: u32) -> Option<PathBuf> {
    let given = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from).filter(|dir| dir.is_absolute());
    let usual = PathBuf::from(format!("/run/user/{uid}"));
    given.into_iter().chain([usual]).find(|dir| is_private(dir, uid))
}

/// Returns true for a directory (no link to one) that belongs to the user and that no other user can read or
/// write.
fn is_private(dir: &Path, uid: u32) -> bool {
    fs::symlink_metadata(dir)
        .is_ok_and(|found| found.is_dir() && found.uid() == uid && found.mode() & 0o077 == 0)
}

/// Returns the user's directory in `/tmp`, whatever other users have created there.
fn in_tmp(tmp: &Path, uid: u32) -> Option<PathBuf> {
    let name = format!("nacre-{uid}");
    let is_ours =
        |found: &str| found.strip_prefix(&name).is_some_and(|rest| rest.is_empty() || rest.starts_with('-'));
    let entries = fs::read_dir(tmp).ok()?.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    let mut names: Vec<String> = entries.filter(|found| is_ours(found)).collect();
    names.sort();
    names.into_iter().map(|name| tmp.join(name)).find(|dir| is_private(dir, uid))
}

/// Creates it. A name that another user has taken is skipped.
fn make_in_tmp(tmp: &Path, uid: u32) -> Result<PathBuf> {
    let random = random_uuid()?.iter().take(8).map(|byte| format!("{byte:02x}")).collect::<String>();
    let names = [format!("nacre-{uid}"), format!("nacre-{uid}-{random}")];
    for name in names {
        let dir = tmp.join(name);
        match fs::DirBuilder::new().mode(0o700).create(&dir) {
            Ok(()) => return Ok(dir),
            Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(Failure::because(format!("make directory {}", dir.display()))(error)),
        }
    }
    in_tmp(tmp, uid).ok_or_else(|| Failure::new(format!("no directory of this user in {}", tmp.display())))
}

fn name_of(path: &Path) -> String {
    let mut hasher = DefaultHasher::new();
    path.hash(&mut hasher);
    format!("{:016x}", hasher.finish())
}

/// Registers the run directory of a process. The process holds its lock already ([`RunDir::lock`]), so that
/// the entry does not count as unused.
///
/// # Errors
/// If the entry cannot be written.
pub fn add(run: &RunDir) -> Result<()> {
    add_to(&make_base()?, run)
}

fn add_to(base: &Path, run: &RunDir) -> Result<()> {
    let entry = base.join(name_of(&run.path)).with_extension("dir");
    let _turn = lock_registry(base)?;
    if read(&entry).is_some_and(|known| known.path == run.path) {
        return Ok(());
    }
    // Replaced atomically: other processes read it without the lock.
    let new = entry.with_extension("new");
    write_private(&new, run.path.as_os_str().as_bytes())?;
    fs::rename(&new, &entry).map_err(Failure::because(format!("write {}", entry.display())))
}

/// Reads the run directory that an entry names.
fn read(entry: &Path) -> Option<RunDir> {
    let text = fs::read(entry).ok()?;
    Some(RunDir::new(PathBuf::from(std::ffi::OsString::from_vec(text))))
}

/// Returns true for an entry that is kept although no process runs: its file system exists, and may be named
/// by its mount point.
fn is_lasting(run: &RunDir) -> bool {
    run.path.parent().is_some_and(|dir| dir.join(SUPERBLOCK).exists())
}

/// Removes the entry of a run directory in which no process runs, unless one has just started.
fn remove_unused(base: &Path, entry: &Path) {
    // An entry that cannot be removed is tried again next time.
    if let Ok(_turn) = lock_registry(base)
        && read(entry).is_some_and(|run| run.running().is_empty() && !is_lasting(&run))
    {
        let _ = fs::remove_file(entry);
    }
}

/// Takes the lock for changes of the registry; it is released with the value.
fn lock_registry(base: &Path) -> Result<fs::File> {
    let path = base.join("lock");
    let fail = || Failure::because(format!("lock {}", path.display()));
    let mut options = fs::OpenOptions::new();
    let file = options.create(true).append(true).mode(0o600).open(&path).map_err(fail())?;
    file.lock().map_err(fail())?;
    Ok(file)
}

/// Returns the run directory of a mount that has no file system directory on this host. Its log is in a log
/// directory, as runtime directories do not survive a restart of the host.
///
/// # Errors
/// If the directory above it cannot be created.
pub fn mount_run_dir(mount_point: &Path) -> Result<RunDir> {
    let run = RunDir::new(make_base()?.join(format!("mount-{}", name_of(mount_point))));
    Ok(match log_dir() {
        Some(dir) => run.with_log(dir.join(log_name(mount_point))),
        None => run,
    })
}

/// Returns the directory for logs of mounts, created if missing: `$NACRE_LOG_DIR`, else `/var/log/nacre` for
/// root, else in the user's state directory.
fn log_dir() -> Option<PathBuf> {
    let given = |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|dir| dir.is_absolute());
    let in_home = || given("HOME").map(|home| home.join(".local/state"));
    let dir = match given("NACRE_LOG_DIR") {
        Some(dir) => dir,
        None if rustix::process::geteuid().is_root() => PathBuf::from("/var/log/nacre"),
        None => given("XDG_STATE_HOME").or_else(in_home)?.join("nacre"),
    };
    make_dir(&dir, 0o700).is_ok().then_some(dir)
}

/// Returns the name of the log of a mount: its path with dashes, other characters as their bytes.
fn log_name(mount_point: &Path) -> String {
    const LENGTH_MAX: usize = 200;
    let mut name = String::new();
    for &byte in mount_point.as_os_str().as_bytes().strip_prefix(b"/").unwrap_or_default() {
        match byte {
            b'/' => name.push('-'),
            b'.' | b'_' => name.push(char::from(byte)),
            byte if byte.is_ascii_alphanumeric() => name.push(char::from(byte)),
            byte => name.push_str(&format!("%{byte:02x}")),
        }
    }
    if name.len() > LENGTH_MAX {
        name = format!("{}-{}", &name[..LENGTH_MAX], name_of(mount_point));
    }
    format!("mount-{name}.log")
}

/// Returns all run directories in which a process runs.
pub fn running() -> Vec<RunDir> {
    known().into_iter().filter(|run| !run.running().is_empty()).collect()
}

/// Returns those, and those of file systems of this host that ran since the host was started.
pub fn known() -> Vec<RunDir> {
    base().map_or_else(Vec::new, |base| known_in(&base))
}

fn known_in(base: &Path) -> Vec<RunDir> {
    let Ok(entries) = fs::read_dir(base) else {
        return Vec::new();
    };
    let mut found = Vec::new();
    for path in entries.filter_map(|entry| Some(entry.ok()?.path())) {
        if path.extension().is_none_or(|extension| extension != "dir") {
            continue;
        }
        let Some(run) = read(&path) else { continue };
        if is_lasting(&run) || !run.running().is_empty() {
            found.push(run);
        } else {
            remove_unused(base, &path);
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
        let is_found = || known_in(&base).iter().any(|found| found.path == run.path);
        let is_over = AtomicBool::new(false);
        nacre_env::thread::scope(|scope| {
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

    #[test]
    fn a_name_in_tmp_that_somebody_else_has_taken_is_left_to_them() {
        let tmp = tempfile::tempdir().expect("a directory");
        let uid = rustix::process::geteuid().as_raw();
        let name = format!("nacre-{uid}");
        assert_eq!(in_tmp(tmp.path(), uid), None);
        let usual = make_in_tmp(tmp.path(), uid).expect("made");
        assert_eq!((usual.clone(), in_tmp(tmp.path(), uid)), (tmp.path().join(&name), Some(usual.clone())));
        // Open to others, a link, or a file: each is refused.
        for squat in ["mode", "link", "file"] {
            let _ = fs::remove_dir(&usual).or_else(|_| fs::remove_file(&usual));
            match squat {
                "mode" => fs::DirBuilder::new().mode(0o755).create(&usual).expect("made"),
                "link" => std::os::unix::fs::symlink("/", &usual).expect("made"),
                _ => fs::write(&usual, "").expect("made"),
            }
            assert!(!is_private(&usual, uid), "{squat}");
            let other = make_in_tmp(tmp.path(), uid).expect("another one");
            assert!(other != usual && is_private(&other, uid), "{squat}");
            assert_eq!(in_tmp(tmp.path(), uid), Some(other.clone()), "{squat}: it is found again");
            fs::remove_dir(other).expect("empty");
        }
        assert!(!is_private(tmp.path(), uid + 1));
    }

    #[test]
    fn logs_of_mounts_have_names_of_their_own() {
        let name = |path: &str| log_name(Path::new(path));
        assert_eq!(name("/mnt/nacre"), "mount-mnt-nacre.log");
        assert_ne!(name("/mnt/a-b"), name("/mnt/a/b"));
        let long = "/d".repeat(200);
        assert!(name(&long).len() < 255 && name(&long) != name(&format!("{long}e")));
    }

    #[test]
    fn a_file_system_is_known_until_it_is_gone() {
        let scratch = tempfile::tempdir().expect("a directory");
        let base = scratch.path().join("base");
        make_dir(&base, 0o700).expect("made");
        let dir = scratch.path().join("fs");
        make_dir(&dir.join("run"), 0o700).expect("made");
        fs::write(dir.join(SUPERBLOCK), "").expect("written");
        add_to(&base, &RunDir::new(dir.join("run"))).expect("added");
        assert_eq!(known_in(&base).len(), 1);
        fs::remove_dir_all(&dir).expect("removed");
        assert!(known_in(&base).is_empty());
    }
}
