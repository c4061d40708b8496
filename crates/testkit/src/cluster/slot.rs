//! Limits the file systems that run at a time, over all test programs on the machine.

use std::cell::Cell;
use std::fs::{DirBuilder, File};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{FlockOperation, flock};

use crate::wait;

/// Tests wait for a part of their time, so two file systems leave CPU time of two CPUs. More than these slow each other
/// down until deadlines pass.
const SLOTS: usize = 3;
/// Timeout for a slot: longer than any test may take.
const TIMEOUT: Duration = Duration::from_secs(1800);

thread_local! {
    static HELD: Cell<usize> = const { Cell::new(0) };
}

/// Returns the directory with the lock files by which test programs of this user share the machine: the same one for
/// all runs, though each has a `/tmp` of its own.
pub(super) fn directory() -> PathBuf {
    let user = rustix::process::getuid().as_raw();
    let directory = Path::new("/var/tmp").join(format!("nacre-test-slots-{user}"));
    let made = DirBuilder::new().mode(0o700).recursive(true).create(&directory);
    made.unwrap_or_else(|error| panic!("create {}: {error}", directory.display()));
    directory
}

/// Permission to run file systems, as many as the test needs.
#[derive(Debug)]
pub(super) struct Slot {
    _lock: Option<File>,
}

impl Slot {
    pub(super) fn take() -> Slot {
        let held = HELD.replace(HELD.get() + 1);
        if held > 0 {
            return Slot { _lock: None };
        }
        let directory = directory();
        let files: Vec<File> = (0..SLOTS)
            .map(|number| File::create(directory.join(number.to_string())).expect("the directory is ours"))
            .collect();
        let number = wait::until(TIMEOUT, "another test's file system has ended", || {
            files.iter().position(|file| flock(file, FlockOperation::NonBlockingLockExclusive).is_ok())
        });
        Slot { _lock: files.into_iter().nth(number) }
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        HELD.set(HELD.get().saturating_sub(1));
    }
}
