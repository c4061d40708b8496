//! The kernel's caches of a file system with one mount, then two.

use super::support::on_servers;
use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

#[test]
fn a_second_mount_sees_the_first_ones_files_and_changes_them_back() {
    on_servers(2, |servers| {
        let one = servers.mount();
        fs::write(one.path("file"), b"first").expect("written");
        fs::create_dir(one.path("dir")).expect("made");
        assert!(fs::metadata(one.path("absent")).is_err(), "its absence is cached now");
        assert!(one.client.lease.exclusive());
        let two = servers.mount();
        assert!(!one.client.lease.exclusive() && !two.client.lease.exclusive());
        assert_eq!(fs::read(two.path("file")).expect("read"), b"first");
        fs::write(two.path("absent"), b"now here").expect("written");
        assert_eq!(fs::read(one.path("absent")).expect("no longer absent"), b"now here");
        fs::write(two.path("file"), b"second, and longer").expect("written");
        assert_eq!(fs::read(one.path("file")).expect("read"), b"second, and longer");
        fs::set_permissions(two.path("file"), fs::Permissions::from_mode(0o600)).expect("owner");
        assert_eq!(fs::metadata(one.path("file")).expect("there").mode() & 0o777, 0o600);
        fs::rename(two.path("file"), two.path("dir/moved")).expect("moved");
        assert!(fs::metadata(one.path("file")).is_err());
        assert!(fs::metadata(one.path("dir/moved")).is_ok());
    });
}

#[test]
fn an_open_file_of_the_first_mount_has_its_true_size_on_the_second() {
    on_servers(2, |servers| {
        let one = servers.mount();
        let file = File::create(one.path("file")).expect("made");
        file.write_all_at(&[1; 300_000], 0).expect("written");
        let two = servers.mount();
        assert_eq!(fs::metadata(two.path("file")).expect("there").len(), 300_000);
        file.write_all_at(&[2; 10], 300_000).expect("written");
        assert_eq!(fs::metadata(two.path("file")).expect("there").len(), 300_010);
        assert_eq!(fs::read(two.path("file")).expect("read").len(), 300_010);
        drop(file);
        assert_eq!(fs::metadata(two.path("file")).expect("there").len(), 300_010);
    });
}

#[test]
fn a_busy_mount_lets_go_of_its_lease() {
    on_servers(2, |servers| {
        let servers = Arc::new(servers);
        let one = Arc::new(servers.mount());
        let stop = Arc::new(AtomicBool::new(false));
        let workers: Vec<_> = (0..4)
            .map(|number| {
                let (one, stop) = (one.clone(), stop.clone());
                nacre_env::thread::spawn(move || {
                    let mut rounds = 0u32;
                    while !stop.load(Ordering::Relaxed) {
                        let path = one.path(&format!("busy{number}"));
                        fs::write(&path, vec![number; 20_000]).expect("written");
                        assert_eq!(fs::read(&path).expect("read"), vec![number; 20_000]);
                        let file = OpenOptions::new().append(true).open(&path).expect("opened");
                        file.write_all_at(b"x", 0).expect("written");
                        fs::remove_file(&path).expect("removed");
                        rounds += 1;
                    }
                    rounds
                })
            })
            .collect();
        for round in 0..5 {
            let two = servers.mount();
            fs::write(two.path("other"), format!("{round}")).expect("written");
            assert_eq!(fs::read_to_string(one.path("other")).expect("read"), format!("{round}"));
            assert!(two.is_served() && one.is_served());
        }
        stop.store(true, Ordering::Relaxed);
        for worker in workers {
            assert!(worker.join().expect("no failure") > 0);
        }
    });
}

#[test]
fn pages_cached_by_one_mount_are_dropped_when_the_other_has_written() {
    on_servers(1, |servers| {
        let one = servers.mount();
        fs::write(one.path("file"), vec![b'a'; 50_000]).expect("written");
        assert_eq!(fs::read(one.path("file")).expect("read"), vec![b'a'; 50_000]);
        let two = servers.mount();
        let file = OpenOptions::new().write(true).open(two.path("file")).expect("opened");
        file.write_all_at(&[b'b'; 50_000], 0).expect("written");
        drop(file);
        assert!(fs::read(one.path("file")).expect("read") == vec![b'b'; 50_000], "same size, other data");
    });
}

#[test]
fn a_file_replaced_by_the_other_mount_is_found_under_its_name() {
    on_servers(1, |servers| {
        let (one, two) = (servers.mount(), servers.mount());
        for round in 0..50u32 {
            fs::write(two.path("new"), round.to_string()).expect("written");
            fs::rename(two.path("new"), two.path("file")).expect("moved");
            assert_eq!(fs::read_to_string(one.path("file")).expect("read"), round.to_string());
            assert_eq!(fs::metadata(one.path("file")).expect("there").nlink(), 1);
        }
    });
}

#[test]
fn the_lease_becomes_exclusive_again_when_the_other_mount_leaves() {
    on_servers(1, |servers| {
        let one = servers.mount();
        let two = servers.mount();
        fs::write(two.path("file"), b"theirs").expect("written");
        assert_eq!(fs::read(one.path("file")).expect("read"), b"theirs");
        drop(two);
        let deadline = nacre_env::clock::Instant::now() + std::time::Duration::from_secs(10);
        while !one.client.lease.exclusive() {
            assert!(nacre_env::clock::Instant::now() < deadline, "still shared with nobody");
            nacre_env::thread::yield_now();
        }
        assert_eq!(fs::read(one.path("file")).expect("read"), b"theirs");
        fs::write(one.path("file"), b"ours").expect("written");
        assert_eq!(fs::read(one.path("file")).expect("read"), b"ours");
    });
}
