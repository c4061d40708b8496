//! Resolves a file system that a user names by its directory or by its mount point.

use crate::failure::{Failure, Result};
use crate::instance::{Instance, absolute};
use crate::process::RunDir;
use crate::start::Start;
use crate::{mounts, node, registry};
use std::path::Path;

/// File system that a path names.
pub enum Named {
    /// A file system in a directory of this host.
    Directory(Instance),
    /// A mount of a file system on other hosts: run directory of its process.
    Mount(RunDir),
}

/// Resolves a path: a directory of a file system, or a mount point of one, mounted or not.
///
/// # Errors
/// If it is neither.
pub fn find(path: &Path) -> Result<Named> {
    let point = absolute(path)?;
    let mounted = mounts::find_mount(&point).ok().flatten();
    if let Some(mount) = mounted.filter(|mount| mounts::is_same_place(&point, &mount.mount_point)) {
        let is_it = |run: &RunDir| node::recorded_mount_point(run).as_ref() == Some(&mount.mount_point);
        return match registry::known().into_iter().find(is_it) {
            Some(run) => Ok(instance_of(&run).map_or(Named::Mount(run), Named::Directory)),
            None => Err(Failure::new(format!(
                "{} is a mount of {} whose process belongs to another user: run this as that user or as root",
                path.display(),
                mount.source
            ))),
        };
    }
    let refused = match Instance::open_existing(path) {
        Ok(instance) => return Ok(Named::Directory(instance)),
        Err(failure) => failure,
    };
    let is_its = |instance: &Instance| {
        let start = Start::load(&instance.dir).ok().flatten();
        let mount = start.and_then(|start| start.mount);
        mount.is_some_and(|mount| mount == point || point.canonicalize().is_ok_and(|point| point == mount))
    };
    match registry::known().iter().filter_map(instance_of).find(is_its) {
        Some(instance) => Ok(Named::Directory(instance)),
        None => Err(refused),
    }
}

/// Like [`find`], for commands that need the directory.
///
/// # Errors
/// If the path names none, or a mount of a file system on other hosts.
pub fn directory(path: &Path) -> Result<Instance> {
    match find(path)? {
        Named::Directory(instance) => Ok(instance),
        Named::Mount(_) => Err(Failure::new(format!(
            "{} is a mount of a file system that is served elsewhere: run this there, or unmount it with 'nacre umount'",
            path.display()
        ))),
    }
}

/// Returns the instance that a process runs in; `None` for a mount of a file system on other hosts.
pub fn instance_of(run: &RunDir) -> Option<Instance> {
    Instance::open(run.path.parent()?).ok().flatten()
}
