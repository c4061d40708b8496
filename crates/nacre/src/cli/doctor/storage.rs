//! Disks and local file systems below targets.

use super::{Change, Finding, Machine, Subject, median};
use crate::cli::status::size;
use crate::instance::Instance;
use nacre_env::clock::Instant;
use nacre_types::TargetId;
use rustix::fs::{Mode, OFlags};
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

const AREA: &str = "disk";
/// Syncs that are timed; the median counts.
const SYNCS: usize = 11;
/// Data of one timed sync in bytes.
const SYNC_BYTES: usize = 4096;
/// Sync latency above which a disk without moving parts is slow.
const SYNC_SLOW: Duration = Duration::from_millis(5);
/// Sync latency below which no medium is known that has stored the data: a cache acknowledges it.
const SYNC_CACHED: Duration = Duration::from_micros(30);
/// Percentages of free space and inodes below which a disk is nearly full, and full.
const FREE_LOW: u64 = 10;
const FREE_LEAST: u64 = 2;

/// A disk, or local file system, with the targets on it.
struct Disk {
    targets: Vec<TargetId>,
    /// A directory of a target, or the device itself.
    path: PathBuf,
    /// Major and minor number of the device.
    number: (u32, u32),
    is_device: bool,
}

/// Examines the disks of a file system's targets on this host.
pub fn examine(machine: &Machine, subject: &Subject) -> Vec<Finding> {
    let Some(instance) = &subject.instance else { return Vec::new() };
    let mut findings = Vec::new();
    for disk in disks(instance).into_values() {
        findings.extend(queue(machine, &disk));
        if !disk.is_device {
            findings.extend(file_system(machine, &disk));
            findings.extend(space(&disk));
            findings.extend(sync_latency(machine, &disk));
        }
    }
    findings
}

/// Returns the disks by device number.
fn disks(instance: &Instance) -> BTreeMap<u64, Disk> {
    let mut disks: BTreeMap<u64, Disk> = BTreeMap::new();
    let mut add = |device: u64, target: TargetId, path: PathBuf, is_device: bool| {
        let number = (rustix::fs::major(device), rustix::fs::minor(device));
        let new = || Disk { targets: Vec::new(), path, number, is_device };
        disks.entry(device).or_insert_with(new).targets.push(target);
    };
    for target in instance.targets() {
        let dir = instance.target_dir(target);
        if let Ok(found) = fs::metadata(&dir) {
            add(found.dev(), target, dir, false);
        }
        // A store on a raw device is a symbolic link to it.
        let device = instance.objects_dir(target).join("objects");
        if let Ok(found) = fs::metadata(&device)
            && found.file_type().is_block_device()
        {
            add(found.rdev(), target, device, true);
        }
    }
    disks
}

impl Disk {
    /// Returns the targets as `OST0000, OST0001`, the first few of many.
    fn names(&self) -> String {
        const SHOWN: usize = 4;
        let names: Vec<String> = self.targets.iter().take(SHOWN).map(TargetId::to_string).collect();
        match self.targets.len().saturating_sub(SHOWN) {
            0 => names.join(", "),
            more => format!("{} and {more} more", names.join(", ")),
        }
    }

    /// Returns the kernel's directory of the whole device; `None` for file systems without one.
    fn sys(&self, machine: &Machine) -> Option<PathBuf> {
        let link = format!("/sys/dev/block/{}:{}", self.number.0, self.number.1);
        let dir = fs::canonicalize(machine.path(&link)).ok()?;
        // A partition has no queue; its parent has.
        match dir.join("queue").exists() {
            true => Some(dir),
            false => dir.parent().map(Path::to_owned).filter(|parent| parent.join("queue").exists()),
        }
    }

    fn is_rotational(&self, machine: &Machine) -> bool {
        self.sys(machine).is_some_and(|dir| value(&dir.join("queue/rotational")).as_deref() == Some("1"))
    }
}

fn value(path: &Path) -> Option<String> {
    fs::read_to_string(path).ok().map(|text| text.trim().to_owned())
}

/// Examines the queue of a device: scheduler, write cache, discard.
fn queue(machine: &Machine, disk: &Disk) -> Vec<Finding> {
    let Some(dir) = disk.sys(machine) else { return Vec::new() };
    let name = dir.file_name().map_or_else(String::new, |name| name.to_string_lossy().into_owned());
    let read = |leaf: &str| value(&dir.join("queue").join(leaf));
    let is_rotational = read("rotational").as_deref() == Some("1");
    let mut findings = Vec::new();
    if let Some(text) = read("scheduler") {
        findings.push(scheduler(&dir, &name, &text, is_rotational, &disk.names()));
    }
    if let Some(cache) = read("write_cache") {
        findings.push(Finding::ok(AREA, format!("{name} ({}): write cache is '{cache}'", disk.names())));
    }
    if !is_rotational && read("discard_max_bytes").as_deref() == Some("0") {
        findings.push(Finding::note(
            AREA,
            format!("{name} ({}) supports no discard: 'nacre trim' has no effect there", disk.names()),
        ));
    }
    findings
}

pub(super) fn scheduler(dir: &Path, name: &str, text: &str, is_rotational: bool, targets: &str) -> Finding {
    let all: Vec<&str> = text.split(' ').map(|word| word.trim_matches(['[', ']'])).collect();
    let current =
        text.split(' ').find(|word| word.starts_with('[')).map_or(text, |word| word.trim_matches(['[', ']']));
    let better: &[&str] = if is_rotational { &["mq-deadline", "bfq"] } else { &["none"] };
    let found = format!("{name} ({targets}): I/O scheduler is '{current}'");
    match better.iter().find(|word| all.contains(word)) {
        Some(word) if !better.contains(&current) => {
            let what = if is_rotational { "a disk with moving parts" } else { "flash or a virtual disk" };
            Finding::warning(AREA, format!("{found}; '{word}' is faster on {what}"))
                .change(Change::Write { path: dir.join("queue/scheduler"), value: (*word).to_owned() })
        }
        _ => Finding::ok(AREA, found),
    }
}

/// Examines type and options of a local file system.
fn file_system(machine: &Machine, disk: &Disk) -> Vec<Finding> {
    let kind = nacre_common::place::file_system(&disk.path).unwrap_or_else(|_| "unknown".to_owned());
    let place = format!("{} ({})", disk.path.display(), disk.names());
    let mut findings = Vec::new();
    match kind.as_str() {
        "tmpfs" | "ramfs" => findings.push(
            Finding::warning(AREA, format!("{place} is on {kind}: all files are lost when this host stops"))
                .remedy("for data that matters, create the file system in a directory on a disk"),
        ),
        "overlay" => findings.push(
            Finding::warning(AREA, format!("{place} is on an overlay: files are lost with the container"))
                .remedy("use a volume of the host"),
        ),
        "nfs" | "nfs4" | "cifs" | "fuse.nacre" | "lustre" => findings.push(
            Finding::warning(
                AREA,
                format!("{place} is on {kind}, a network file system: slow, and locks may not hold"),
            )
            .remedy("use a local disk"),
        ),
        _ => findings.push(Finding::ok(AREA, format!("{place} is on {kind}"))),
    }
    let options = options(machine, disk.number);
    let has = |option: &str| options.iter().any(|found| found == option);
    if has("nobarrier") || has("barrier=0") {
        findings.push(
            Finding::error(
                AREA,
                format!("{place} is mounted without barriers: a power loss destroys synced data"),
            )
            .remedy("remount without 'nobarrier'"),
        );
    }
    if kind == "ext4" && !has_journal(machine, disk) {
        findings.push(
            Finding::warning(
                AREA,
                format!("{place} is on ext4 without a journal: it needs a repair after each crash"),
            )
            .remedy("unmount it, then tune2fs -O has_journal DEVICE"),
        );
    }
    findings
}

/// Returns the mount options of a device: those of the mount and those of the file system.
fn options(machine: &Machine, (major, minor): (u32, u32)) -> Vec<String> {
    let table = machine.read("/proc/self/mountinfo").unwrap_or_default();
    let device = format!("{major}:{minor}");
    let mounts = table.lines().filter(|line| line.split(' ').nth(2) == Some(device.as_str()));
    let words = mounts.flat_map(|line| line.split(' ').nth(5).into_iter().chain(line.rsplit(' ').next()));
    words.flat_map(|list| list.split(',')).map(str::to_owned).collect()
}

fn has_journal(machine: &Machine, disk: &Disk) -> bool {
    let link = format!("/sys/dev/block/{}:{}", disk.number.0, disk.number.1);
    let Ok(dir) = fs::canonicalize(machine.path(&link)) else { return true };
    let Some(name) = dir.file_name().and_then(|name| name.to_str()) else { return true };
    // Threads of a journal have a directory named DEVICE-INODE; without jbd2 in the kernel nothing is known.
    let journals = machine.list("/proc/fs/jbd2");
    journals.is_empty() || journals.iter().any(|journal| journal.split('-').next() == Some(name))
}

fn space(disk: &Disk) -> Vec<Finding> {
    let Ok(stat) = rustix::fs::statvfs(&disk.path) else { return Vec::new() };
    let place = format!("{} ({})", disk.path.display(), disk.names());
    let share = |free: u64, total: u64| (free * 100).checked_div(total);
    let mut findings = Vec::new();
    let mut add = |what: &str, free: String, percent: u64| {
        let text = format!("{place}: {free} {what} free, {percent} %");
        findings.push(match percent {
            percent if percent < FREE_LEAST => Finding::error(AREA, text)
                .remedy("free some now: 'nacre rebalance', 'nacre target drain', or remove files"),
            percent if percent < FREE_LOW => {
                Finding::warning(AREA, text).remedy("'nacre rebalance' moves data to other OSTs")
            }
            _ => Finding::ok(AREA, text),
        });
    };
    if let Some(percent) = share(stat.f_bavail, stat.f_blocks) {
        add("space", size(stat.f_bavail.saturating_mul(stat.f_frsize)), percent);
    }
    // File systems that create inodes as needed report none.
    if let Some(percent) = share(stat.f_favail, stat.f_files) {
        add("inodes", stat.f_favail.to_string(), percent);
    }
    findings
}

fn sync_latency(machine: &Machine, disk: &Disk) -> Option<Finding> {
    let kind = nacre_common::place::file_system(&disk.path).unwrap_or_default();
    if matches!(kind.as_str(), "tmpfs" | "ramfs") {
        return None;
    }
    let place = format!("{} ({})", disk.path.display(), disk.names());
    Some(match median_sync(&disk.path) {
        Err(error) => Finding::note(AREA, format!("{place}: cannot measure a sync: {error}")),
        Ok(took) => {
            let text = format!("{place}: a sync of 4 KiB takes {:.2} ms", took.as_secs_f64() * 1e3);
            match took {
                took if took < SYNC_CACHED => {
                    Finding::warning(AREA, format!("{text}, less than any medium: a cache acknowledges it"))
                        .remedy(
                            "in a virtual machine: let the host pass flushes on (cache=none or writethrough)",
                        )
                }
                took if took > SYNC_SLOW && !disk.is_rotational(machine) => {
                    Finding::warning(AREA, format!("{text}: slow for flash")).remedy(
                        "put MDTs on flash with power-loss protection, or on another disk than busy OSTs",
                    )
                }
                _ => Finding::ok(AREA, text),
            }
        }
    })
}

/// Returns the median time of a write with fdatasync to a new file without a name in `dir`.
fn median_sync(dir: &Path) -> io::Result<Duration> {
    let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
    let file = File::from(rustix::fs::open(dir, flags, Mode::RUSR | Mode::WUSR)?);
    file.write_all_at(&[1; SYNC_BYTES], 0)?;
    file.sync_all()?;
    let mut times = Vec::with_capacity(SYNCS);
    for number in 0..SYNCS {
        let start = Instant::now();
        file.write_all_at(&[number as u8; SYNC_BYTES], 0)?;
        file.sync_data()?;
        times.push(start.elapsed());
    }
    Ok(median(times))
}
