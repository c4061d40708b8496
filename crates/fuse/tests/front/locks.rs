//! File locks that two mounts share.

use super::support::on_servers;
use nacre_fuse::front::{FrontOptions, LockScope};
use std::fs::{File, OpenOptions};
use std::os::fd::AsRawFd;

fn flock(file: &File, operation: i32) -> Result<(), i32> {
    // SAFETY: plain numbers.
    match unsafe { libc::flock(file.as_raw_fd(), operation) } {
        0 => Ok(()),
        _ => Err(std::io::Error::last_os_error().raw_os_error().unwrap_or(0)),
    }
}

fn fcntl(file: &File, kind: i32, start: i64, len: i64) -> Result<(), i32> {
    // SAFETY: flock is plain data, all zeroes are valid.
    let mut lock: libc::flock = unsafe { std::mem::zeroed() };
    (lock.l_type, lock.l_start, lock.l_len) = (kind as i16, start, len);
    // SAFETY: the structure lives through the call.
    match unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_SETLK, &lock) } {
        0 => Ok(()),
        _ => Err(std::io::Error::last_os_error().raw_os_error().unwrap_or(0)),
    }
}

#[test]
fn locks_of_one_mount_are_seen_by_the_other() {
    on_servers(1, |servers| {
        let options = FrontOptions { locks: LockScope::Cluster, ..FrontOptions::default() };
        let (one, two) = (servers.mount_with(options), servers.mount_with(options));
        let first = File::create(one.path("file")).expect("made");
        let second = OpenOptions::new().write(true).open(two.path("file")).expect("opened");
        assert_eq!(flock(&first, libc::LOCK_EX), Ok(()));
        assert_eq!(flock(&second, libc::LOCK_EX | libc::LOCK_NB), Err(libc::EAGAIN));
        assert_eq!(flock(&first, libc::LOCK_UN), Ok(()));
        assert_eq!(flock(&second, libc::LOCK_EX | libc::LOCK_NB), Ok(()));
        assert_eq!(fcntl(&first, libc::F_WRLCK, 0, 10), Ok(()), "the two kinds do not meet");
        assert_eq!(fcntl(&second, libc::F_WRLCK, 5, 10), Err(libc::EAGAIN));
        assert_eq!(fcntl(&second, libc::F_WRLCK, 10, 10), Ok(()));
        drop(first);
        let deadline = nacre_env::clock::Instant::now() + std::time::Duration::from_secs(10);
        while fcntl(&second, libc::F_WRLCK, 0, 30).is_err() {
            assert!(nacre_env::clock::Instant::now() < deadline, "locks go with the last close");
            nacre_env::thread::yield_now();
        }
    });
}

#[test]
fn a_lock_is_free_when_the_close_of_its_file_has_returned() {
    on_servers(1, |servers| {
        let options = FrontOptions { locks: LockScope::Cluster, ..FrontOptions::default() };
        let mount = servers.mount_with(options);
        let mut held = File::create(mount.path("file")).expect("made");
        assert_eq!(flock(&held, libc::LOCK_EX), Ok(()));
        for _ in 0..300 {
            let next = File::open(mount.path("file")).expect("opened");
            assert_eq!(flock(&next, libc::LOCK_EX | libc::LOCK_NB), Err(libc::EAGAIN));
            drop(std::mem::replace(&mut held, next));
            assert_eq!(flock(&held, libc::LOCK_EX | libc::LOCK_NB), Ok(()));
        }
    });
}

#[test]
fn who_waits_for_a_lock_gets_it_when_it_is_given_back() {
    on_servers(1, |servers| {
        let options = FrontOptions { locks: LockScope::Cluster, ..FrontOptions::default() };
        let (one, two) = (servers.mount_with(options), servers.mount_with(options));
        let first = File::create(one.path("file")).expect("made");
        let second = OpenOptions::new().write(true).open(two.path("file")).expect("opened");
        assert_eq!(flock(&first, libc::LOCK_EX), Ok(()));
        let waiter = nacre_env::thread::spawn(move || flock(&second, libc::LOCK_EX));
        assert_eq!(flock(&first, libc::LOCK_UN), Ok(()));
        assert_eq!(waiter.join().expect("no panic"), Ok(()));
    });
}

#[test]
fn who_waits_for_a_lock_can_be_killed() {
    on_servers(1, |servers| {
        let options = FrontOptions { locks: LockScope::Cluster, ..FrontOptions::default() };
        let mount = servers.mount_with(options);
        let holder = File::create(mount.path("file")).expect("made");
        assert_eq!(flock(&holder, libc::LOCK_EX), Ok(()));
        let mut waiter = std::process::Command::new("flock")
            .arg(mount.path("file"))
            .arg("true")
            .spawn()
            .expect("flock is part of util-linux");
        // It sleeps in the kernel as soon as its request is in flight.
        let status = format!("/proc/{}/wchan", waiter.id());
        let deadline = nacre_env::clock::Instant::now() + std::time::Duration::from_secs(10);
        while !std::fs::read_to_string(&status).is_ok_and(|place| place.contains("request_wait_answer")) {
            assert!(nacre_env::clock::Instant::now() < deadline, "it never waited");
            nacre_env::thread::yield_now();
        }
        waiter.kill().expect("ours");
        assert!(!waiter.wait().expect("ours").success());
        assert_eq!(flock(&holder, libc::LOCK_UN), Ok(()));
        assert_eq!(flock(&holder, libc::LOCK_EX | libc::LOCK_NB), Ok(()), "nothing was left behind");
    });
}
