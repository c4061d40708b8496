//! A host of servers that loses power: what clients on other hosts have changed and not synced.

use nacre_testkit::hosts::Hosts;
use nacre_testkit::requirements::{have, have_root};
use nacre_testkit::run::Run;
use nacre_testkit::{errno, text, wait};
use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// Host of all servers.
const SERVERS: usize = 0;
/// First host with a mount that lives.
const CLIENT: usize = 1;

/// A file system whose servers are on one host and have an ext4 file system of their own, and a mount on another host.
struct Site {
    hosts: Hosts,
    /// The image of the disk of the servers, and the number of power cuts.
    disk: Mutex<(PathBuf, u32)>,
    /// Last, so that the hosts are gone before its check for what is left.
    run: Run,
}

/// Returns bytes that differ everywhere.
fn content(seed: u64, len: usize) -> Vec<u8> {
    let word = |number: u64| (number ^ seed << 32).wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes();
    (0..len.div_ceil(8) as u64).flat_map(word).take(len).collect()
}

impl Site {
    /// Starts a site with one MDT; `None` if that is not possible. Nothing is made durable for a long time.
    fn new(clients: usize) -> Option<Site> {
        Site::with_mdts(clients, "1")
    }

    fn with_mdts(clients: usize, mdts: &str) -> Option<Site> {
        let programs = ["/dev/fuse", "unshare", "nsenter", "ip", "findmnt", "mkfs.ext4", "losetup"];
        if !have(&programs) || !have_root() {
            return None;
        }
        let run = Run::new();
        let hosts = Hosts::new(&run, 1 + clients);
        let disk = Mutex::new((run.directory().join("disk0"), 0));
        let site = Site { hosts, disk, run };
        let script = format!("truncate -s 2G {0}; mkfs.ext4 -q {0}", text(&site.image()));
        site.hosts.shell(&site.run, SERVERS, &script).success();
        site.run.make("fs");
        site.mount_disk();
        let (data, mount, address) = (site.data(), site.mount_point(SERVERS), site.hosts.address(SERVERS));
        let targets = ["--mdts", mdts, "--osts", "2", "--separate", "--listen", &address];
        site.nacre(SERVERS, &[&["up", text(&data), "--mount", text(&mount)][..], &targets].concat());
        site.set(SERVERS, "osd-file.*.commit_interval_ms=60000");
        for client in CLIENT..=clients {
            let token = site.nacre(SERVERS, &["key", "token", "--role", "admin", text(&data)]);
            let source = format!("{address}:/nacre");
            let mount = site.run.make(&format!("mnt{client}"));
            site.nacre(client, &["mount", "--token", token.trim(), &source, text(&mount)]);
            site.set(client, "osc.*.max_kept_age=600");
        }
        Some(site)
    }

    fn data(&self) -> PathBuf {
        self.run.directory().join("fs")
    }

    fn mount_point(&self, host: usize) -> PathBuf {
        self.run.directory().join(format!("mnt{host}"))
    }

    /// Returns a path on the first mount that lives, for this process.
    fn at(&self, name: &str) -> PathBuf {
        self.at_of(CLIENT, name)
    }

    fn at_of(&self, client: usize, name: &str) -> PathBuf {
        self.hosts.path(client, &self.mount_point(client).join(name))
    }

    fn nacre(&self, host: usize, words: &[&str]) -> String {
        self.hosts.nacre(&self.run, host, words).success().stdout
    }

    fn set(&self, host: usize, setting: &str) {
        self.nacre(host, &["lctl", "set_param", "-n", setting]);
    }

    fn image(&self) -> PathBuf {
        self.disk.lock().expect("no panic").0.clone()
    }

    fn mount_disk(&self) {
        let script = format!("mount -o loop {} {}", text(&self.image()), text(&self.data()));
        self.hosts.shell(&self.run, SERVERS, &script).success();
    }

    /// Cuts the power of the host of the servers, and starts it again with what was on its disk at that moment.
    fn cut(&self) {
        let before = self.image();
        self.hosts.lose_power(&self.run, SERVERS, || {
            let mut disk = self.disk.lock().expect("no panic");
            disk.1 += 1;
            disk.0 = self.run.directory().join(format!("disk{}", disk.1));
            let script = format!("cp --sparse=always {} {}", text(&before), text(&disk.0));
            self.hosts.shell(&self.run, SERVERS, &script).success();
        });
        let script = format!("umount {}", text(&self.data()));
        // Files of killed processes may be in use for a moment longer, as seen under load.
        wait::until(wait::SOON, "the disk is not in use", || {
            self.hosts.shell(&self.run, SERVERS, &script).status.success().then_some(())
        });
        fs::remove_file(before).expect("removed");
        self.mount_disk();
        self.nacre(SERVERS, &["up", text(&self.data())]);
    }

    /// Stops the site; returns what a check of the stopped file system prints.
    fn stop(self) -> String {
        for client in CLIENT..self.hosts.count() {
            let script = format!("umount {}", text(&self.mount_point(client)));
            self.hosts.shell(&self.run, client, &script).success();
        }
        let data = self.data();
        self.nacre(SERVERS, &["down", text(&data)]);
        self.hosts.nacre(&self.run, SERVERS, &["check", text(&data)]).stdout
    }
}

#[test]
fn what_clients_on_other_hosts_have_written_survives_a_power_cut_without_sync() {
    let Some(site) = Site::new(1) else { return };
    fs::create_dir(site.at("d")).expect("made");
    fs::write(site.at("d/synced"), content(1, 3 << 20)).expect("written");
    File::open(site.at("d/synced")).and_then(|file| file.sync_all()).expect("fsync");

    // Overwritten, extended and cut after the sync, and new.
    let changed = OpenOptions::new().write(true).open(site.at("d/synced")).expect("opened");
    changed.write_all_at(&content(2, 100_000), 1 << 20).expect("written");
    changed.write_all_at(&content(3, 100_000), 4 << 20).expect("written");
    changed.set_len((4 << 20) + 50_000).expect("cut");
    for number in 0..100 {
        fs::write(site.at(&format!("d/{number}")), content(number, 20_000)).expect("written");
    }
    let mut open = File::create(site.at("d/open")).expect("made");
    open.write_all(&content(7, 20 << 20)).expect("written");
    fs::rename(site.at("d/0"), site.at("d/renamed")).expect("renamed");
    fs::remove_file(site.at("d/1")).expect("removed");
    for _ in 0..2 {
        site.cut();
        let mut expected = content(1, 3 << 20);
        expected.resize((4 << 20) + 50_000, 0);
        expected[1 << 20..][..100_000].copy_from_slice(&content(2, 100_000));
        expected[4 << 20..].copy_from_slice(&content(3, 50_000));
        assert!(fs::read(site.at("d/synced")).expect("read") == expected);
        assert!(fs::read(site.at("d/open")).expect("read") == content(7, 20 << 20));
        assert!(fs::read(site.at("d/renamed")).expect("read") == content(0, 20_000));
        for number in 2..100 {
            let found = fs::read(site.at(&format!("d/{number}"))).expect("read");
            assert!(found == content(number, 20_000), "{number}");
        }
        assert!(!site.at("d/0").exists() && !site.at("d/1").exists());
    }
    changed.sync_all().and_then(|()| open.sync_all()).expect("nothing is lost");
    drop((changed, open));
    let check = site.stop();
    assert!(check.contains("no damage"), "{check}");
}

/// Length of a record that a writer writes.
const RECORD: usize = 4096;

/// Writes records into its slots of a shared file, one file each, and names, until told to stop; returns their number.
fn write_records(site: &Site, writer: usize, is_over: &AtomicBool, written: &AtomicUsize) -> usize {
    let shared = OpenOptions::new().write(true).open(site.at_of(writer, "d/shared")).expect("opened");
    let mut count = 0;
    while !is_over.load(Ordering::Relaxed) {
        let record = record_of(writer, count);
        shared.write_all_at(&record, slot_of(writer, count)).expect("written");
        fs::write(site.at_of(writer, &format!("d/new{writer}-{count}")), &record).expect("written");
        fs::rename(
            site.at_of(writer, &format!("d/new{writer}-{count}")),
            site.at_of(writer, &format!("d/{writer}-{count}")),
        )
        .expect("renamed");
        count += 1;
        written.fetch_add(1, Ordering::Relaxed);
    }
    shared.sync_all().expect("nothing is lost");
    count
}

fn record_of(writer: usize, number: usize) -> Vec<u8> {
    content((number * 10 + writer) as u64, RECORD)
}

fn slot_of(writer: usize, number: usize) -> u64 {
    ((number * 2 + writer - CLIENT) * RECORD) as u64
}

/// No client is there that could replay it.
#[test]
fn what_a_mount_has_written_survives_a_power_cut_after_its_end_without_sync() {
    let Some(site) = Site::new(1) else { return };
    let len = |number: u64| 1 + number as usize * 30_000;
    let path = |number: u64| site.at(&format!("d/{number}"));
    fs::create_dir(site.at("d")).expect("made");
    for number in 0..20 {
        fs::write(path(number), content(number, len(number))).expect("written");
    }
    let (mount, source) = (site.mount_point(CLIENT), format!("{}:/nacre", site.hosts.address(SERVERS)));
    site.nacre(CLIENT, &["umount", text(&mount)]);
    site.cut();
    site.nacre(CLIENT, &["mount", &source, text(&mount)]);
    for number in 0..20 {
        let found = fs::read(path(number)).unwrap_or_else(|error| panic!("{number} is lost: {error}"));
        assert!(found == content(number, len(number)), "{number}");
    }
    let check = site.stop();
    assert!(check.contains("no damage"), "{check}");
}

#[test]
fn programs_on_several_hosts_go_on_over_a_power_cut_of_all_servers() {
    let Some(site) = Site::new(2) else { return };
    fs::create_dir(site.at("d")).expect("made");
    let shared = site.mount_point(CLIENT).join("d/shared");
    site.nacre(CLIENT, &["lfs", "setstripe", "-c", "2", "-S", "64k", text(&shared)]);
    let (is_over, written) = (AtomicBool::new(false), AtomicUsize::new(0));
    let counts = std::thread::scope(|scope| {
        let (site, is_over, written) = (&site, &is_over, &written);
        let writers = [CLIENT, CLIENT + 1];
        let writers =
            writers.map(|writer| scope.spawn(move || write_records(site, writer, is_over, written)));
        let more = |count: usize| {
            let goal = written.load(Ordering::Relaxed) + count;
            let is_reached = || (written.load(Ordering::Relaxed) >= goal).then_some(());
            wait::until(wait::SOON, "the writers go on", is_reached);
        };
        for _ in 0..2 {
            more(200);
            site.cut();
        }
        more(50);
        is_over.store(true, Ordering::Relaxed);
        writers.map(|writer| writer.join().expect("no panic"))
    });
    let status = site.nacre(SERVERS, &["lctl", "get_param", "-n", "mdt.*.recovery_status"]);
    assert!(status.contains("completed_clients: 2/"), "{status}");
    for reader in [CLIENT, CLIENT + 1] {
        let shared = fs::read(site.at_of(reader, "d/shared")).expect("read");
        for (writer, count) in (CLIENT..).zip(counts) {
            for number in 0..count {
                let record = record_of(writer, number);
                let at = slot_of(writer, number) as usize;
                assert!(shared[at..at + RECORD] == record, "record {number} of {writer}, seen by {reader}");
                let own = fs::read(site.at_of(reader, &format!("d/{writer}-{number}"))).expect("read");
                assert!(own == record, "file {number} of {writer}, seen by {reader}");
            }
        }
        assert_eq!(
            fs::read_dir(site.at_of(reader, "d")).expect("read").count(),
            1 + counts.iter().sum::<usize>()
        );
    }
    let check = site.stop();
    assert!(check.contains("no damage"), "{check}");
}

/// Shows as well that the first test loses something.
#[test]
fn fsync_reports_what_a_client_has_not_kept() {
    let Some(site) = Site::new(1) else { return };
    site.set(CLIENT, "osc.*.max_kept_mb=0");
    let kept = File::create(site.at("kept")).expect("made");
    kept.write_all_at(&content(1, 1 << 20), 0).and_then(|()| kept.sync_all()).expect("written");
    let lost = File::create(site.at("lost")).expect("made");
    // More than the client holds back: the rest is in the memory of the host of the OST.
    lost.write_all_at(&content(2, 40 << 20), 0).expect("written");
    site.cut();
    assert_eq!(errno(lost.sync_all()), libc::EIO);
    lost.sync_all().expect("reported once");
    assert!(fs::read(site.at("lost")).expect("read") != content(2, 40 << 20));
    assert!(fs::read(site.at("kept")).expect("read") == content(1, 1 << 20));
    drop((kept, lost));
    site.stop();
}

/// Each MDT gave it 10 s of its own, one after the other.
#[test]
fn a_mount_waits_once_for_one_that_was_alone_and_whose_host_has_died() {
    let Some(site) = Site::with_mdts(1, "3") else { return };
    let here = site.mount_point(SERVERS);
    site.hosts.shell(&site.run, SERVERS, &format!("umount {}", text(&here))).success();
    // It leaves after `umount` has returned.
    let is_there = || {
        let is_its = |pair: &[String]| pair == ["--mount", text(&here)];
        site.run.processes().iter().any(|(_, words)| words.windows(2).any(is_its))
    };
    wait::until(wait::SOON, "the mount is alone", || (!is_there()).then_some(()));
    fs::write(site.at("alone"), "written").expect("written");
    File::open(site.at("alone")).and_then(|file| file.sync_all()).expect("fsync");
    site.hosts.lose_power(&site.run, CLIENT, || ());
    let began = Instant::now();
    let source = format!("{}:/nacre", site.hosts.address(SERVERS));
    let token = site.nacre(SERVERS, &["key", "token", "--role", "admin", text(&site.data())]);
    site.nacre(SERVERS, &["mount", "--token", token.trim(), &source, text(&here)]);
    let waited = began.elapsed();
    assert!(waited < Duration::from_secs(16), "{waited:?}");
    let found = site.hosts.path(SERVERS, &here.join("alone"));
    assert_eq!(fs::read(found).expect("read"), b"written");
    let check = site.stop();
    assert!(check.contains("no damage"), "{check}");
}
