use std::fs;
use std::os::unix::fs::MetadataExt;
use std::time::Duration;

use nacre_fuse::Transport;
use nacre_fuse::nullfs::{NullFs, NullOptions};

use crate::support::*;

#[test]
fn names_and_attributes_live_on_both_transports() {
    for transport in transports() {
        let mount = Mount::new(transport, NullFs::new(NullOptions::default()));
        let name = match mount.session.transport() {
            Transport::Uring => "io_uring",
            Transport::Dev => "/dev/fuse",
        };
        assert_eq!(mount.session.transport().to_string(), name);
        let (file, directory) = (mount.path("file"), mount.path("dir"));
        fs::write(&file, vec![1u8; 3_000_000]).expect("write");
        assert_eq!(fs::metadata(&file).expect("stat").size(), 3_000_000);
        assert_eq!(fs::read(&file).expect("read").len(), 3_000_000);
        fs::create_dir(&directory).expect("mkdir");
        fs::write(directory.join("below"), b"x").expect("write below");
        assert_eq!(fs::remove_dir(&directory).expect_err("not empty").raw_os_error(), Some(libc::ENOTEMPTY));
        fs::remove_file(directory.join("below")).expect("unlink");
        fs::remove_dir(&directory).expect("rmdir");
        fs::File::options().write(true).open(&file).expect("open").set_len(10).expect("truncate");
        assert_eq!(fs::metadata(&file).expect("stat").size(), 10);
        assert_eq!(fs::metadata(mount.path("none")).expect_err("absent").raw_os_error(), Some(libc::ENOENT));
        let mut names: Vec<_> = fs::read_dir(mount.root())
            .expect("list")
            .map(|entry| entry.expect("entry").file_name().into_string().expect("text"))
            .collect();
        names.sort();
        assert_eq!(names, ["file", "many"]);
        mount.session.unmount(nacre_fuse::Unmount::Clean).expect("unmount");
        assert!(mount.session.has_ended());
    }
}

#[test]
fn a_huge_directory_is_listed_completely() {
    for transport in transports() {
        for plus in [true, false] {
            let null = std::sync::Arc::new(NullFs::new(NullOptions::default()));
            let mount = Mount::with(transport, null, |config| config.protocol.readdirplus = plus);
            let mut seen = vec![false; 100_000];
            for entry in fs::read_dir(mount.path("many")).expect("list") {
                let name = entry.expect("entry").file_name().into_string().expect("text");
                let index: usize = name[1..].parse().expect("a number");
                assert!(!std::mem::replace(&mut seen[index], true), "{name} came twice");
            }
            assert!(seen.iter().all(|&seen| seen));
        }
    }
}

#[test]
fn forgotten_inodes_are_dropped() {
    for transport in transports() {
        let null = std::sync::Arc::new(NullFs::new(NullOptions::default()));
        let before = null.node_count();
        let mount = Mount::with(transport, null.clone(), |_| {});
        for index in 0..500 {
            let path = mount.path(&format!("f{index}"));
            fs::write(&path, b"").expect("create");
            fs::remove_file(&path).expect("unlink");
        }
        mount.session.unmount(nacre_fuse::Unmount::Clean).expect("unmount");
        // FORGETs of unlinked inodes are sent at their eviction, at the latest before the unmount; the few
        // that the kernel drops with the connection do not matter.
        assert!(null.node_count() < before + 50, "{} inodes are left", null.node_count());
    }
}

#[test]
fn attributes_are_asked_for_only_after_their_time() {
    for transport in transports() {
        let count = std::sync::Arc::new(std::sync::atomic::AtomicUsize::new(0));
        let counter = count.clone();
        let hook: nacre_fuse::nullfs::RequestHook = std::sync::Arc::new(move |request| {
            if matches!(request.op, nacre_fuse::Operation::GetAttr { .. }) {
                counter.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
            }
        });
        for (timeout, expected) in [(Duration::from_secs(3600), 0), (Duration::ZERO, 100)] {
            let options =
                NullOptions { attr_timeout: timeout, hook: Some(hook.clone()), ..NullOptions::default() };
            let mount = Mount::new(transport, NullFs::new(options));
            fs::write(mount.path("file"), b"").expect("create");
            fs::metadata(mount.path("file")).expect("stat");
            count.store(0, std::sync::atomic::Ordering::SeqCst);
            for _ in 0..100 {
                fs::metadata(mount.path("file")).expect("stat");
            }
            assert_eq!(count.load(std::sync::atomic::Ordering::SeqCst), expected);
        }
    }
}
