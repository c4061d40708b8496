//! `nacre down`: unmounts and stops, clients first.

use super::DownArgs;
use crate::control::{self, Answer, Request};
use crate::failure::{Failure, Result};
use crate::instance::Instance;
use crate::mounts;
use crate::process::{MOUNT, NODE, RunDir};
use crate::progress::Progress;
use std::time::Duration;

/// Runs the command.
pub fn run(args: &DownArgs) -> Result<i32> {
    let instance = Instance::open_existing(&args.dir)?;
    let run = RunDir::new(instance.run_dir());
    let mut names = run.running();
    // Clients before servers, metadata before objects, the configuration last.
    names.sort_by_key(|name| match name.as_str() {
        MOUNT | NODE => 0,
        name if name.starts_with("mdt") => 1,
        name if name.starts_with("ost") => 2,
        _ => 3,
    });
    let mut progress = Progress::new(false);
    for name in &names {
        progress.show(&format!("stopping {name}"));
        stop(&run, name, args.force, Duration::from_secs(args.timeout))?;
    }
    drop(progress);
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

/// Stops one process: asks it, and sends a signal if it does not answer.
fn stop(run: &RunDir, name: &str, force: bool, limit: Duration) -> Result<()> {
    match control::ask(&run.socket(name), &Request::Stop { force }) {
        Ok(Answer::Error { message, .. }) => return Err(Failure::new(message)),
        Ok(_) => {}
        Err(_) => run.terminate(name),
    }
    if run.wait_stopped(name, limit) {
        return Ok(());
    }
    let pid = run.pid(name).unwrap_or_default();
    Err(Failure::new(format!(
        "{name} (pid {pid}) has not stopped after {} s: see {}",
        limit.as_secs(),
        run.log(name).display()
    )))
}

/// A process that was killed leaves a dead mount where it said that it mounts.
fn clear_stale_mount(run: &RunDir) -> Result<()> {
    let Some(mount_point) = crate::node::recorded_mount_point(run) else {
        return Ok(());
    };
    if mounts::is_dead_mount_point(&mount_point) {
        super::up::clear_dead(&mount_point)?;
    }
    Ok(())
}
