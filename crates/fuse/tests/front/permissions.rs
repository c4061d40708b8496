//! Permissions, although the kernel checks none.

use super::support::{on_servers, shell_as};
use std::ffi::{CStr, CString};
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt};

const STRANGER: u32 = 54_321;

fn chmod(path: &std::path::Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("root may");
}

#[test]
fn names_cached_while_a_directory_was_open_to_all_are_not_walked_after_it_was_closed() {
    on_servers(1, |servers| {
        let mount = servers.mount();
        let dir = mount.path("dir");
        fs::create_dir(&dir).expect("made");
        chmod(&dir, 0o755);
        fs::write(dir.join("file"), b"readable").expect("written");
        chmod(&dir.join("file"), 0o644);
        let (code, text) = shell_as(STRANGER, &[], &mount.dir, "cat dir/file");
        assert_eq!((code, text.as_str()), (0, "readable"));
        chmod(&dir, 0o700);
        let (code, text) = shell_as(STRANGER, &[], &mount.dir, "cat dir/file");
        assert!(code != 0 && text.contains("Permission denied"), "{text}");
        assert_eq!(fs::read(dir.join("file")).expect("the owner may"), b"readable");
        chmod(&dir, 0o755);
        assert_eq!(shell_as(STRANGER, &[], &mount.dir, "cat dir/file").0, 0);
    });
}

#[test]
fn supplementary_groups_count() {
    on_servers(1, |servers| {
        let mount = servers.mount();
        let path = mount.path("shared");
        fs::write(&path, b"for the group").expect("written");
        std::os::unix::fs::chown(&path, Some(0), Some(4_000)).expect("root may");
        chmod(&path, 0o640);
        assert_ne!(shell_as(STRANGER, &[], &mount.dir, "cat shared").0, 0);
        assert_ne!(shell_as(STRANGER, &[4_001], &mount.dir, "cat shared").0, 0);
        assert_eq!(shell_as(STRANGER, &[4_001, 4_000], &mount.dir, "cat shared").0, 0);
        assert_ne!(shell_as(STRANGER, &[4_000], &mount.dir, "echo x > shared").0, 0);
    });
}

#[test]
fn set_id_bits_are_dropped_by_a_strangers_write_and_kept_by_roots() {
    on_servers(1, |servers| {
        let mount = servers.mount();
        let path = mount.path("program");
        fs::write(&path, b"x").expect("written");
        chmod(&path, 0o6777);
        fs::write(&path, b"y").expect("written");
        assert_eq!(fs::metadata(&path).expect("there").mode() & 0o7777, 0o6777, "root keeps them");
        assert_eq!(shell_as(STRANGER, &[], &mount.dir, "echo z >> program").0, 0);
        assert_eq!(fs::metadata(&path).expect("there").mode() & 0o7777, 0o777);
        chmod(&path, 0o6777);
        assert_eq!(shell_as(STRANGER, &[], &mount.dir, "truncate -s 0 program").0, 0);
        assert_eq!(fs::metadata(&path).expect("there").mode() & 0o7777, 0o777);
    });
}

/// Returns the mode as a program gets it that asks for nothing else, so that the kernel decides whether to
/// send a request.
fn mode_alone(path: &std::path::Path) -> u32 {
    let path = CString::new(path.as_os_str().as_bytes()).expect("no NUL in it");
    // SAFETY: statx is plain old data, for which zeros are a value.
    let mut found: libc::statx = unsafe { std::mem::zeroed() };
    // SAFETY: path ends in NUL, and found is as large as the kernel expects.
    let code = unsafe { libc::statx(libc::AT_FDCWD, path.as_ptr(), 0, libc::STATX_MODE, &mut found) };
    assert_eq!(code, 0, "{}", std::io::Error::last_os_error());
    u32::from(found.stx_mode) & 0o7777
}

#[test]
fn dropped_set_id_bits_are_gone_from_the_kernels_memory_too() {
    on_servers(1, |servers| {
        let mount = servers.mount();
        let path = mount.path("program");
        fs::write(&path, b"x").expect("written");
        for script in ["echo z >> program", "echo z > program", "fallocate -l 100 program"] {
            chmod(&path, 0o6777);
            assert_eq!(mode_alone(&path), 0o6777);
            assert_eq!(shell_as(STRANGER, &[], &mount.dir, script).0, 0);
            assert_eq!(mode_alone(&path), 0o777, "{script}");
        }
        chmod(&path, 0o6777);
        let status = std::process::Command::new("fallocate").args(["-l", "200"]).arg(&path).status();
        assert!(status.expect("fallocate is part of util-linux").success());
        assert_eq!(mode_alone(&path), 0o6777, "root keeps them");
    });
}

#[test]
fn an_acl_changes_the_mode_that_the_kernel_remembers() {
    on_servers(1, |servers| {
        let mount = servers.mount();
        let path = mount.path("file");
        fs::write(&path, b"x").expect("written");
        chmod(&path, 0o640);
        assert_eq!(mode_alone(&path), 0o640);
        assert_eq!(set_acl(&path, &[(1, 7), (4, 5), (0x20, 1)]), 0);
        assert_eq!(mode_alone(&path), 0o751);
    });
}

/// Sets the access ACL with `(tag, rights)` entries for owner, group and others.
fn set_acl(path: &std::path::Path, entries: &[(u16, u16)]) -> i32 {
    let mut value = 2u32.to_le_bytes().to_vec();
    for (tag, rights) in entries {
        value.extend(tag.to_le_bytes());
        value.extend(rights.to_le_bytes());
        value.extend(u32::MAX.to_le_bytes());
    }
    set_xattr(path, c"system.posix_acl_access", &value)
}

fn set_xattr(path: &std::path::Path, name: &CStr, value: &[u8]) -> i32 {
    let path = CString::new(path.as_os_str().as_bytes()).expect("no NUL in it");
    // SAFETY: both strings end in NUL, and value is as long as said.
    unsafe { libc::setxattr(path.as_ptr(), name.as_ptr(), value.as_ptr().cast(), value.len(), 0) }
}

#[test]
fn file_capabilities_go_when_a_stranger_changes_the_file() {
    on_servers(1, |servers| {
        let mount = servers.mount();
        let path = mount.path("program");
        fs::write(&path, b"x").expect("written");
        chmod(&path, 0o777);
        // Version 2, effective, CAP_SETUID permitted.
        let mut value = 0x0200_0001u32.to_le_bytes().to_vec();
        value.extend((1u32 << 7).to_le_bytes());
        value.extend([0; 12]);
        let rewrite = "dd if=/dev/zero of=program bs=1 count=1 conv=notrunc status=none";
        for script in
            ["echo z >> program", "fallocate -l 100 program", "exec 3<>program; echo z >&3", rewrite]
        {
            assert_eq!(set_xattr(&path, c"security.capability", &value), 0);
            let listed = |name| shell_as(0, &[], &mount.dir, "getfattr -m- program").1.contains(name);
            assert!(listed("security.capability"), "{script}");
            let (code, text) = shell_as(STRANGER, &[], &mount.dir, script);
            assert_eq!(code, 0, "{script}: {text}");
            assert!(!listed("security.capability"), "{script}");
            assert_ne!(shell_as(STRANGER, &[], &mount.dir, "setfattr -x security.capability program").0, 0);
        }
    });
}

#[test]
fn access_asks_for_the_real_user_and_not_for_the_effective_one() {
    on_servers(1, |servers| {
        let mount = servers.mount();
        let path = mount.path("secret");
        fs::write(&path, b"x").expect("written");
        chmod(&path, 0o600);
        let ids: [(libc::uid_t, libc::uid_t, bool); 2] = [(0, STRANGER, true), (STRANGER, 0, false)];
        for (real, effective, allowed) in ids {
            let path = CString::new(path.as_os_str().as_bytes()).expect("no NUL in it");
            let granted = nacre_env::thread::spawn(move || {
                // SAFETY: the raw call changes the ids of this thread alone, which ends here.
                let code = unsafe { libc::syscall(libc::SYS_setresuid, real, effective, 0) };
                assert_eq!(code, 0, "{}", std::io::Error::last_os_error());
                // SAFETY: path ends in NUL.
                unsafe { libc::access(path.as_ptr(), libc::R_OK) == 0 }
            });
            assert_eq!(granted.join().expect("no panic"), allowed, "real {real}, effective {effective}");
        }
    });
}

#[test]
fn new_files_belong_to_their_maker_and_honour_the_umask() {
    on_servers(1, |servers| {
        let mount = servers.mount();
        chmod(&mount.dir, 0o1777);
        assert_eq!(shell_as(STRANGER, &[], &mount.dir, "umask 027; touch mine; mkdir own").0, 0);
        let meta = fs::metadata(mount.path("mine")).expect("there");
        assert_eq!((meta.uid(), meta.gid(), meta.mode() & 0o777), (STRANGER, STRANGER, 0o640));
        assert_eq!(fs::metadata(mount.path("own")).expect("there").mode() & 0o777, 0o750);
        let (code, text) = shell_as(STRANGER + 1, &[], &mount.dir, "rm -f mine");
        assert!(code != 0 && text.contains("not permitted"), "the sticky bit protects it: {text}");
    });
}

#[test]
fn labels_of_selinux_are_not_supported_so_that_programs_ask_only_once() {
    on_servers(1, |servers| {
        let mount = servers.mount();
        let path = mount.path("file");
        fs::write(&path, b"x").expect("written");
        let script = "getfattr -n security.selinux file || setfattr -n security.selinux -v label file";
        let (code, text) = shell_as(0, &[], &mount.dir, script);
        assert!(code != 0 && text.matches("Operation not supported").count() == 2, "{text}");
        assert_eq!(set_xattr(&path, c"security.label", b"kept"), 0);
        let listed = shell_as(0, &[], &mount.dir, "getfattr -m- file").1;
        assert!(listed.contains("security.label") && listed.contains("lustre.lov"), "{listed}");
    });
}
