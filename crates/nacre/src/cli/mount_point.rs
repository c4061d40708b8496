//! Mount points: their preparation before a mount, and their removal after it.

use crate::control::{self, Answer, Request};
use crate::failure::{Failure, Result};
use crate::process::{BEGUN_LIMIT, RunDir, why_silent};
use crate::{holders, mounts, path as paths};
use nacre_env::clock::Instant;
use rustix::io::Errno;
use std::fs;
use std::io::ErrorKind;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

/// Prepares an empty mount point: creates a missing directory, unmounts a dead NacreFS mount. Returns true if
/// it was missing.
pub fn prepare(path: &Path) -> Result<bool> {
    if mounts::is_dead_mount_point(path) {
        return clear_dead(path).map(|()| false);
    }
    match fs::metadata(path) {
        Ok(_) => check(path, None).map(|()| false),
        Err(error) if error.kind() == ErrorKind::NotFound => {
            fs::create_dir(path).map_err(|error| cannot_be_made(path, &error))?;
            Ok(true)
        }
        // The daemon died after the check above.
        Err(error) if Errno::from_io_error(&error).is_some_and(mounts::says_dead) => {
            clear_dead(path).map(|()| false)
        }
        Err(error) => Err(Failure::because(format!("look at {}", path.display()))(error)),
    }
}

fn cannot_be_made(path: &Path, error: &std::io::Error) -> Failure {
    Failure::new(format!("the mount point {} cannot be made: {error}", path.display()))
}

/// Checks that a file system can be mounted there, or could be once `dir` is created; changes nothing.
///
/// # Errors
/// If it is not a directory, cannot become one, or is in use.
pub fn check(path: &Path, dir: Option<&Path>) -> Result<()> {
    if dir == Some(path) {
        return Err(Failure::usage(format!(
            "{} cannot be mounted on itself: give another directory to --mount",
            path.display()
        )));
    }
    if mounts::is_dead_mount_point(path) {
        return Ok(());
    }
    match fs::metadata(path) {
        Ok(found) if found.is_dir() => {}
        Ok(_) => return Err(Failure::new(format!("{} is not a directory: mount on one", path.display()))),
        Err(error) if error.kind() == ErrorKind::NotFound => {
            let parent = path.parent().unwrap_or(path);
            if dir == Some(parent) {
                return Ok(());
            }
            let found = fs::metadata(parent).map_err(|error| cannot_be_made(path, &error))?;
            let writable =
                rustix::fs::access(parent, rustix::fs::Access::WRITE_OK | rustix::fs::Access::EXEC_OK);
            return match writable {
                Err(error) => Err(cannot_be_made(path, &error.into())),
                Ok(()) if found.is_dir() => Ok(()),
                Ok(()) => Err(cannot_be_made(path, &ErrorKind::NotADirectory.into())),
            };
        }
        Err(error) if Errno::from_io_error(&error).is_some_and(mounts::says_dead) => return Ok(()),
        Err(error) => return Err(Failure::because(format!("look at {}", path.display()))(error)),
    }
    let real = path.canonicalize().map_err(Failure::because(format!("look at {}", path.display())))?;
    if mounts::is_mount_point(&real).map_err(Failure::because("read the mount table"))? {
        return Err(Failure::new(format!(
            "{} is in use: something is mounted there already",
            path.display()
        )));
    }
    Ok(())
}

/// Unmounts a mount that a killed NacreFS process has left; leaves any other mount alone.
pub fn clear_dead(path: &Path) -> Result<()> {
    let ours = mounts::mounted_on(path).map_err(Failure::because("read the mount table"))?.is_some();
    if !ours {
        return Err(Failure::new(format!(
            "a mount on {} is dead and not one of NacreFS: unmount it first",
            path.display()
        )));
    }
    detach(path, true)
}

/// Unmounts: directly as root, else with fusermount3.
pub fn detach(mount_point: &Path, lazy: bool) -> Result<()> {
    if rustix::process::geteuid().is_root() {
        let flags = match lazy {
            true => rustix::mount::UnmountFlags::DETACH,
            false => rustix::mount::UnmountFlags::empty(),
        };
        return rustix::mount::unmount(mount_point, flags).map_err(|error| match error {
            rustix::io::Errno::BUSY => busy(mount_point),
            error => Failure::because(format!("unmount {}", mount_point.display()))(error),
        });
    }
    let program = paths::find_program("fusermount3").ok_or_else(|| {
        Failure::new("fusermount3 is needed to unmount without root: install the package fuse3")
    })?;
    let how = if lazy { "-uz" } else { "-u" };
    let output = Command::new(program)
        .arg(how)
        .arg(mount_point)
        .output()
        .map_err(Failure::because("run fusermount3"))?;
    if output.status.success() {
        return Ok(());
    }
    let text = String::from_utf8_lossy(&output.stderr);
    if text.contains("busy") {
        return Err(busy(mount_point));
    }
    Err(Failure::new(format!("{} was not unmounted: {}", mount_point.display(), text.trim())))
}

/// Returns the failure of a busy mount, with the programs that use it.
pub fn busy(mount_point: &Path) -> Failure {
    let users = holders::device_of(mount_point).map(holders::of_device).unwrap_or_default();
    Failure::new(format!(
        "{} is busy, {}: close files and leave directories in it, then try again",
        mount_point.display(),
        holders::named(&users)
    ))
}

/// Returns whether the running process has lost its mount (unmounted by another program) and so was about to
/// end; waits for that end.
///
/// # Errors
/// If it runs without a mount for longer than a clean stop takes.
pub(super) fn ends_by_itself(run: &RunDir, name: &str, mount_point: &Path) -> Result<bool> {
    const TIMEOUT: Duration = Duration::from_secs(60);
    /// A file that is just being closed is not worth a scan of all processes.
    const USE_TIMEOUT: Duration = Duration::from_secs(1);
    let start = Instant::now();
    while let Some(pid) = run.pid(name) {
        // Only a request shows that a process has another mount point, or is still starting.
        let answer = control::ask_for(&run.socket(name), &Request::Status, control::STATUS_LIMIT);
        let mount = match answer {
            Ok(Answer::Status(status)) => status.mount,
            Err(error) if control::is_silence(&error) && run.pid(name).is_some() => {
                return Err(Failure::new(format!(
                    "{name} (pid {pid}) is not responding: {}",
                    why_silent(pid)
                )));
            }
            _ => None,
        };
        if let Some(mount) = &mount {
            if mounts::is_mount_point(&mount.mount_point).map_err(Failure::because("read the mount table"))? {
                return Ok(false);
            }
            let users = mount.device.filter(|_| start.elapsed() > USE_TIMEOUT).map(holders::of_device);
            if let Some(users) = users.filter(|users| !users.is_empty()) {
                return Err(Failure::new(format!(
                    "{} was unmounted, and its process (pid {pid}) continues as it is {}: end them, or use 'nacre down --force'",
                    mount.mount_point.display(),
                    holders::named(&users)
                )));
            }
        }
        if start.elapsed() > TIMEOUT {
            return Err(Failure::new(format!(
                "it runs without a mount on {}: stop it with 'nacre down' and start it again",
                mount_point.display()
            )));
        }
        nacre_env::thread::sleep(Duration::from_millis(20));
    }
    Ok(true)
}

/// Returns whether process `name` runs and has its mount on `mount_point`.
///
/// # Errors
/// If its mount is on another directory, or it does not end without one.
pub fn is_mounted(run: &RunDir, name: &str, mount_point: &Path) -> Result<bool> {
    if !run.runs(name, BEGUN_LIMIT) || ends_by_itself(run, name, mount_point)? {
        return Ok(false);
    }
    let answer = control::ask_for(&run.socket(name), &Request::Status, control::STATUS_LIMIT);
    if let Ok(Answer::Status(status)) = answer
        && let Some(mount) = status.mount
        && mount.mount_point != mount_point
        && mount.mount_point != mount_point.canonicalize().unwrap_or_else(|_| mount_point.to_path_buf())
    {
        return Err(Failure::new(format!(
            "it is already running and mounted on {}",
            mount.mount_point.display()
        )));
    }
    Ok(true)
}
