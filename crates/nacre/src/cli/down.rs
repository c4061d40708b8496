//! `nacre down`: unmounts and stops, clients first.

use super::DownArgs;
use crate::control::{self, Answer, Request};
use crate::failure::{Failure, Result};
use crate::instance::Instance;
use crate::process::{MOUNT, NODE, RunDir, is_stopped, why_silent};
use crate::progress::Progress;
use crate::{mounts, named};
use nacre_env::clock::Instant;
use nacre_store::object::block::device_of;
use nacre_store::object::nxd::cache_of;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::time::Duration;

/// Longest time until the kernel has torn down the rings of an ended process, and the poll interval.
const RINGS_LIMIT: Duration = Duration::from_secs(5);
const RINGS_POLL: Duration = Duration::from_millis(5);

/// Runs the command.
pub fn run(args: &DownArgs) -> Result<i32> {
    let instance = named::directory(&args.dir)?;
    let run = RunDir::new(instance.run_dir());
    let names = names_in_order(&run);
    let mut progress = Progress::new(false);
    // First: a stopped process would block the end of the others, and half of the file system would run.
    names.iter().try_for_each(|name| check_not_stopped(&run, name))?;
    for name in &names {
        progress.show(&format!("stopping {name}"));
        stop(&run, name, args.force, Duration::from_secs(args.timeout))?;
    }
    drop(progress);
    if !names.is_empty() {
        await_devices(&instance);
    }
    clear_stale_mount(&run)?;
    if names.is_empty() {
        println!(
            "file system '{}' in {} was not running",
            instance.superblock.fsname,
            instance.dir.display()
        );
    } else {
        println!("file system '{}' in {} is down", instance.superblock.fsname, instance.dir.display());
    }
    Ok(0)
}

/// Stops all processes of a directory.
///
/// # Errors
/// The first one that does not end; the later ones keep running.
pub(super) fn stop_all(run: &RunDir, force: bool, limit: Duration) -> Result<()> {
    names_in_order(run).iter().try_for_each(|name| stop(run, name, force, limit))
}

/// Returns all running processes in the order of their stop: clients before servers, metadata before objects,
/// the configuration last.
fn names_in_order(run: &RunDir) -> Vec<String> {
    let mut names = run.running();
    names.sort_by_key(|name| match name.as_str() {
        MOUNT | NODE => 0,
        name if name.starts_with("mdt") => 1,
        name if name.starts_with("ost") => 2,
        _ => 3,
    });
    names
}

/// Refuses a process that a signal has stopped: it cannot even end until it is continued.
fn check_not_stopped(run: &RunDir, name: &str) -> Result<()> {
    match run.pid(name).filter(|pid| is_stopped(*pid)) {
        Some(pid) => Err(Failure::new(format!("{name} (pid {pid}) is not responding: {}", why_silent(pid)))),
        None => Ok(()),
    }
}

/// Stops one process: by a request, and by a signal if it does not answer.
fn stop(run: &RunDir, name: &str, force: bool, limit: Duration) -> Result<()> {
    check_not_stopped(run, name)?;
    let process = run.watch(name);
    match control::ask(&run.socket(name), &Request::Stop { force }) {
        Ok(Answer::Error { message, .. }) => return Err(Failure::new(message)),
        Ok(_) => {}
        Err(_) => run.terminate(name),
    }
    // It releases its lock before its files, and open files keep the file system busy that contains the
    // directory.
    if run.wait_stopped(name, limit) && process.is_none_or(|process| process.wait_ended(limit)) {
        return Ok(());
    }
    // It may have ended meanwhile.
    let Some(pid) = run.pid(name) else { return Ok(()) };
    Err(Failure::new(format!(
        "{name} (pid {pid}) has not stopped after {} s: {} (its log is {})",
        limit.as_secs(),
        why_silent(pid),
        run.log(name).display()
    )))
}

/// Waits until no process has the devices of the targets open: the kernel tears down the rings of a process
/// after its end, and they hold references to files that are devices of targets.
fn await_devices(instance: &Instance) {
    let deadline = Instant::now() + RINGS_LIMIT;
    let devices = instance.targets().into_iter().map(|target| instance.objects_dir(target));
    let paths = devices.flat_map(|dir| [device_of(&dir), cache_of(&dir).ok().flatten()]).flatten();
    for path in paths.filter(|path| path.is_file()) {
        while is_open_elsewhere(&path) && Instant::now() < deadline {
            nacre_env::thread::sleep(RINGS_POLL);
        }
    }
}

/// Returns whether any other descriptor has a file open: the kernel grants a write lease only on a file that
/// no other has open.
fn is_open_elsewhere(path: &Path) -> bool {
    let Ok(file) = File::open(path) else { return false };
    // SAFETY: the call takes a number and writes no memory of this process; the close of the file releases
    // the lease.
    let leased = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_SETLEASE, libc::F_WRLCK) };
    leased != 0 && io::Error::last_os_error().raw_os_error() == Some(libc::EAGAIN)
}

/// Unmounts the dead mount of a killed process at its recorded mount point.
fn clear_stale_mount(run: &RunDir) -> Result<()> {
    let Some(mount_point) = crate::node::recorded_mount_point(run) else {
        return Ok(());
    };
    if mounts::is_dead_mount_point(&mount_point) {
        super::mount_point::clear_dead(&mount_point)?;
    }
    Ok(())
}
