use std::fs::File;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::sync::Arc;

use nacre_fuse::nullfs::{NullFs, NullOptions};
use nacre_fuse::{Error, Session, SessionConfig, Unmount};

use crate::support::*;

fn null() -> NullFs {
    NullFs::new(NullOptions::default())
}

fn is_mounted(path: &Path) -> bool {
    let table = std::fs::read_to_string("/proc/self/mountinfo").expect("mount table");
    table.lines().any(|line| line.split(' ').nth(4) == path.to_str())
}

#[test]
fn an_open_file_makes_a_clean_unmount_busy() {
    for transport in transports() {
        let mount = Mount::new(transport, null());
        let file = File::create(mount.path("file")).expect("create");
        assert!(matches!(mount.session.unmount(Unmount::Clean), Err(Error::Busy(_))));
        assert!(!mount.session.has_ended());
        assert!(file.metadata().is_ok(), "still served");
        drop(file);
        mount.session.unmount(Unmount::Clean).expect("unmount");
        assert!(!is_mounted(mount.root()));
        mount.session.unmount(Unmount::Clean).expect("once more does no harm");
    }
}

#[test]
fn a_lazy_unmount_serves_open_files_to_their_end() {
    for transport in transports() {
        let mount = Mount::new(transport, null());
        let mut file = File::create(mount.path("file")).expect("create");
        mount.session.unmount(Unmount::Lazy).expect("unmount");
        assert!(!is_mounted(mount.root()));
        std::io::Write::write_all(&mut file, b"more").expect("still served");
        assert!(!mount.session.has_ended());
        drop(file);
        in_time("the end", move || mount.session.join().expect("join"));
    }
}

/// A process in another mount namespace that has `file` open until it is dropped.
struct Elsewhere(std::process::Child);

impl Elsewhere {
    fn open(mount: &Mount, file: &str) -> Elsewhere {
        // Copies of other tests' mounts must not outlive them.
        let script = r#"
            findmnt -rn -t fuse.nacretest -o TARGET | grep -vxF "$1" | xargs -r umount -l
            exec 3<"$1/$2"
            echo open
            read -r _
        "#;
        let mut child = std::process::Command::new("unshare")
            .args(["--mount", "bash", "-c", script, "bash"])
            .args([mount.root().as_os_str(), file.as_ref()])
            .stdin(std::process::Stdio::piped())
            .stdout(std::process::Stdio::piped())
            .spawn()
            .expect("start");
        let mut line = String::new();
        let stdout = child.stdout.as_mut().expect("a pipe");
        std::io::BufRead::read_line(&mut std::io::BufReader::new(stdout), &mut line).expect("read");
        assert_eq!(line, "open\n");
        Elsewhere(child)
    }
}

impl Drop for Elsewhere {
    fn drop(&mut self) {
        // It reads its input to the end.
        drop(self.0.stdin.take());
        let _ = self.0.wait();
    }
}

/// Runs `test` over each transport with a mount of which another mount namespace has a file open.
fn with_an_open_file_elsewhere(test: fn(Mount, Elsewhere)) {
    if !is_root() {
        eprintln!("SKIPPED: needs root");
        return;
    }
    for transport in transports() {
        let mount = Mount::new(transport, null());
        File::create(mount.path("file")).expect("create");
        let elsewhere = Elsewhere::open(&mount, "file");
        test(mount, elsewhere);
    }
}

#[test]
fn a_copy_in_another_mount_namespace_keeps_the_session_until_it_is_cut_off() {
    with_an_open_file_elsewhere(|mount, elsewhere| {
        for _ in 0..2 {
            let error = mount.session.unmount(Unmount::Clean).expect_err("still in use");
            assert!(matches!(error, Error::Elsewhere(_)), "{error}");
            assert!(!is_mounted(mount.root()));
            assert!(!mount.session.has_ended());
        }
        mount.session.unmount(Unmount::Force).expect("cut off");
        assert!(mount.session.has_ended());
        drop(elsewhere);
    });
}

#[test]
fn a_session_whose_last_copy_goes_ends_by_itself() {
    with_an_open_file_elsewhere(|mount, elsewhere| {
        assert!(matches!(mount.session.unmount(Unmount::Clean), Err(Error::Elsewhere(_))));
        drop(elsewhere);
        in_time("the end", move || mount.session.unmount(Unmount::Clean).expect("nobody has it"));
    });
}

#[test]
fn an_unmount_from_outside_ends_the_session() {
    for transport in transports() {
        let mount = Mount::new(transport, null());
        let path = c_path(mount.root());
        // SAFETY: the string ends with NUL.
        assert_eq!(unsafe { libc::umount2(path.as_ptr(), 0) }, 0);
        in_time("the end", move || {
            mount.session.join().expect("join");
            assert_eq!(mount.session.thread_count(), 0);
        });
    }
}

#[test]
fn an_ended_session_closes_its_descriptors() {
    let ours = || {
        let entries = std::fs::read_dir("/proc/self/fd").expect("descriptors");
        let links = entries.filter_map(|entry| std::fs::read_link(entry.ok()?.path()).ok());
        links.filter(|link| link == Path::new("/dev/fuse")).count()
    };
    // Other tests have mounts of their own at the same time: run alone, in a process of its own.
    const ALONE: &str = "NACRE_FUSE_TEST_ALONE";
    if std::env::var_os(ALONE).is_none() {
        let status = std::process::Command::new(std::env::current_exe().expect("own path"))
            .args(["--exact", "life::an_ended_session_closes_its_descriptors"])
            .env(ALONE, "1")
            .status()
            .expect("start the test again");
        assert!(status.success());
        return;
    }
    for transport in transports() {
        for how in [Unmount::Clean, Unmount::Force] {
            let mount = Mount::new(transport, null());
            std::fs::write(mount.path("file"), b"x").expect("write");
            assert!(ours() >= 1);
            mount.session.unmount(how).expect("unmount");
            assert_eq!(ours(), 0);
        }
    }
}

/// Creates a mount whose daemon is dead, as after a crash.
fn make_stale(path: &Path, subtype: &str) {
    let device = File::options().read(true).write(true).open("/dev/fuse").expect("device");
    let data = format!("fd={},rootmode=40000,user_id=0,group_id=0", device.as_raw_fd());
    let data = std::ffi::CString::new(data).expect("no NUL");
    let kind = std::ffi::CString::new(format!("fuse.{subtype}")).expect("no NUL");
    let target = c_path(path);
    // SAFETY: all are strings that end with NUL.
    let result =
        unsafe { libc::mount(c"crashed".as_ptr(), target.as_ptr(), kind.as_ptr(), 0, data.as_ptr().cast()) };
    assert_eq!(result, 0, "{}", std::io::Error::last_os_error());
    drop(device);
    assert_eq!(std::fs::metadata(path).expect_err("dead").raw_os_error(), Some(libc::ENOTCONN));
}

#[test]
fn our_own_dead_mount_is_cleared_and_a_foreign_one_is_not() {
    for transport in transports() {
        let directory = tempfile::tempdir().expect("scratch directory");
        make_stale(directory.path(), "nacretest");
        let mut config = SessionConfig::new(directory.path());
        config.transport = transport;
        config.mount.subtype = "nacretest".into();
        let session = Session::mount(config.clone(), Arc::new(null())).expect("cleared and mounted");
        assert!(std::fs::metadata(directory.path().join("many")).is_ok());
        drop(session);

        make_stale(directory.path(), "foreign");
        let error = Session::mount(config, Arc::new(null())).err().expect("refused");
        let path = c_path(directory.path());
        // SAFETY: the string ends with NUL.
        assert_eq!(unsafe { libc::umount2(path.as_ptr(), libc::MNT_DETACH) }, 0);
        assert!(matches!(&error, Error::Stale(_, source) if source == "crashed"), "{error}");
    }
}

#[test]
fn a_live_mount_is_not_mounted_over() {
    for transport in transports() {
        let mount = Mount::new(transport, null());
        let error =
            Session::mount(SessionConfig::new(mount.root()), Arc::new(null())).err().expect("refused");
        assert!(matches!(error, Error::InUse(..)), "{error}");
        assert!(std::fs::metadata(mount.path("many")).is_ok(), "the first one lives");
    }
}

#[test]
fn the_mount_table_shows_source_type_and_options() {
    for transport in transports() {
        let mount = Mount::with(transport, Arc::new(null()), |config| {
            config.mount.source = "0@lo:/na,cre".into();
            config.mount.read_only = true;
            config.mount.nodev = true;
        });
        let table = std::fs::read_to_string("/proc/self/mountinfo").expect("mount table");
        let line =
            table.lines().find(|line| line.split(' ').nth(4) == mount.root().to_str()).expect("a line");
        assert!(line.contains(" - fuse.nacretest 0@lo:/na,cre "), "{line}");
        assert!(line.contains(" ro,nosuid,nodev"), "{line}");
        assert!(line.contains("allow_other"), "{line}");
        let error = File::create(mount.path("file")).expect_err("read only");
        assert_eq!(error.raw_os_error(), Some(libc::EROFS));
    }
}

#[test]
fn two_hundred_mounts_come_and_go() {
    for transport in transports() {
        for _ in 0..100 {
            let mount = Mount::new(transport, null());
            assert!(std::fs::metadata(mount.path("many")).is_ok());
        }
    }
}
