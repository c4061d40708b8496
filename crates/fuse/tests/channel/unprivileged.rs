//! Mounts by ordinary users, through fusermount3.

use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use nacre_fuse::nullfs::{NullFs, NullOptions};
use nacre_fuse::{Error, Session, SessionConfig, Transport, Unmount};

use crate::support::*;

/// Mount point, in the environment of the child that runs as an ordinary user.
const CHILD: &str = "NACRE_FUSE_TEST_UNPRIVILEGED";

fn tools_are_there() -> bool {
    let missing: Vec<_> = ["fusermount3", "setpriv", "unshare", "mknod"]
        .into_iter()
        .filter(|tool| {
            let path = std::env::var_os("PATH").unwrap_or_default();
            !std::env::split_paths(&path).any(|directory| directory.join(tool).exists())
        })
        .collect();
    if missing.is_empty() && !transports().is_empty() {
        return true;
    }
    let message = format!("SKIPPED: this test needs root, /dev/fuse and {missing:?}");
    assert!(std::env::var_os("CI").is_none(), "{message}");
    eprintln!("{message}");
    false
}

#[test]
fn root_can_mount_through_the_helper() {
    if !tools_are_there() {
        return;
    }
    for transport in transports() {
        let null = Arc::new(NullFs::new(NullOptions::default()));
        let mount = Mount::with(transport, null, |config| config.mount.force_fusermount = true);
        std::fs::write(mount.path("file"), b"x").expect("write");
        mount.session.unmount(Unmount::Clean).expect("unmount");
    }
}

/// Runs the test of this name in `inside` again as user nobody, in a mount namespace where all users may open
/// `/dev/fuse`.
fn as_nobody(test: &str, mode: &str) {
    if let Some(mount_point) = std::env::var_os(CHILD) {
        return inside(Path::new(&mount_point));
    }
    if !tools_are_there() {
        return;
    }
    let scratch = tempfile::tempdir().expect("scratch directory");
    // The test program may be in a directory that user nobody cannot search: use a copy.
    let program = scratch.path().join("test");
    std::fs::copy(std::env::current_exe().expect("own path"), &program).expect("copy");
    // Copies of other tests' mounts must not outlive them.
    let script = format!(
        "set -e; findmnt -rn -t fuse.nacretest -o TARGET | xargs -r umount -l; cd {0}; mkdir mnt; chmod 755 . test; chown 65534:65534 mnt; \
         mknod fuse c 10 229; chmod {mode} fuse; mount --bind fuse /dev/fuse; \
         exec setpriv --reuid 65534 --regid 65534 --clear-groups ./test --exact {test} --nocapture",
        scratch.path().display()
    );
    let output = Command::new("unshare")
        .args(["--mount", "sh", "-c", &script])
        .env(CHILD, scratch.path().join("mnt"))
        .env("NACRE_FUSE_TEST_MODE", mode)
        .output()
        .expect("start");
    let text =
        String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && text.contains("1 passed"), "{text}");
}

fn inside(mount_point: &Path) {
    assert!(!is_root());
    let null = || Arc::new(NullFs::new(NullOptions::default()));
    let config = SessionConfig::new(mount_point);
    if std::env::var("NACRE_FUSE_TEST_MODE").as_deref() == Ok("600") {
        let error = Session::mount(config, null()).err().expect("refused");
        assert!(matches!(error, Error::DeviceDenied(_)), "{error}");
        return;
    }
    let mut everybody = config.clone();
    everybody.mount.allow_other = Some(true);
    let error = Session::mount(everybody, null()).err().expect("refused without user_allow_other");
    assert!(matches!(error, Error::AllowOtherDenied), "{error}");

    let session = Session::mount(config.clone(), null()).expect("mount");
    println!("transport {}", session.transport());
    assert!(matches!(session.transport(), Transport::Uring | Transport::Dev));
    std::fs::write(mount_point.join("file"), b"x").expect("write");
    let file = std::fs::File::open(mount_point.join("file")).expect("open");
    assert!(matches!(session.unmount(Unmount::Clean), Err(Error::Busy(_))));
    drop(file);
    session.unmount(Unmount::Clean).expect("unmount");

    let session = Session::mount(config, null()).expect("mount again");
    let file = std::fs::File::open(mount_point.join("many")).expect("open");
    in_time("a forced unmount", move || session.unmount(Unmount::Force).expect("unmount"));
    drop(file);
}

#[test]
fn an_ordinary_user_mounts_through_the_helper() {
    as_nobody("unprivileged::an_ordinary_user_mounts_through_the_helper", "666");
}

#[test]
fn an_ordinary_user_without_the_device_is_told_so() {
    as_nobody("unprivileged::an_ordinary_user_without_the_device_is_told_so", "600");
}
