//! A full disk: a small tmpfs of its own.

use super::*;
use crate::object::Fallocate;
use std::ffi::CString;

/// A tmpfs that is unmounted when dropped. `None` without the right to mount.
pub(super) struct SmallDisk {
    pub(super) dir: tempfile::TempDir,
}

impl SmallDisk {
    pub(super) fn mount(size: &str) -> Option<SmallDisk> {
        let dir = tempfile::tempdir().unwrap();
        let options = CString::new(format!("size={size}")).unwrap();
        match rustix::mount::mount(
            "tmpfs",
            dir.path(),
            "tmpfs",
            rustix::mount::MountFlags::empty(),
            &*options,
        ) {
            Ok(()) => Some(SmallDisk { dir }),
            Err(Errno::PERM) => None,
            Err(error) => panic!("mount: {error}"),
        }
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = rustix::mount::unmount(self.dir.path(), rustix::mount::UnmountFlags::DETACH);
    }
}

fn fill(store: &FileStore, oids: std::ops::Range<u32>) -> Vec<Fid> {
    let mut written = Vec::new();
    for oid in oids {
        match store.write(fid(oid), 0, &[1; 1 << 20]) {
            Ok(bytes) if bytes == 1 << 20 => written.push(fid(oid)),
            Ok(_) => return written,
            Err(ObjectError::NoSpace) => return written,
            Err(error) => panic!("{error}"),
        }
    }
    panic!("the disk never filled up");
}

#[test]
fn stores_that_share_a_disk_tell_its_room_once_between_them() {
    let Some(disk) = SmallDisk::mount("24m") else { return };
    let alone = FileStore::open(&disk.dir.path().join("ost"), FileStoreOptions::create()).unwrap();
    let whole = alone.space().unwrap();
    alone.close().unwrap();
    drop(alone);
    let options = FileStoreOptions { sharers: 2, ..FileStoreOptions::create() };
    let half = FileStore::open(&disk.dir.path().join("ost"), options).unwrap().space().unwrap();
    assert_eq!(half.total, whole.total / 2);
    assert!(half.available.abs_diff(whole.available / 2) < 1 << 20, "{whole:?} {half:?}");
}

#[test]
fn a_full_disk_refuses_new_bytes_takes_overwrites_and_recovers_by_destroying() {
    let Some(disk) = SmallDisk::mount("24m") else { return };
    let store = FileStore::open(&disk.dir.path().join("ost"), FileStoreOptions::create()).unwrap();
    let objects = fill(&store, 1..100);
    assert!(objects.len() > 4, "only {} MiB fit", objects.len());
    let space = store.space().unwrap();
    assert!(
        space.available < 1 << 20 && space.free >= 1 << 20,
        "the reserve of a sixteenth is left: {space:?}"
    );
    assert!(store.stats().refused_full > 0);

    store.write(objects[0], 4096, &[2; 1 << 19]).expect("an overwrite needs no space");
    assert!(matches!(store.write(objects[0], 1 << 20, &[2; 1 << 20]), Err(ObjectError::NoSpace)));
    let all = Fallocate::Allocate { keep_size: false };
    assert!(matches!(store.fallocate(fid(900), all, 0, 1 << 20), Err(ObjectError::NoSpace)));
    assert_eq!(store.attr(fid(900)).unwrap().mtime, None, "a refused change makes no object");
    store.truncate(objects[0], 2 << 20).expect("growing takes no space");
    store.fallocate(objects[1], Fallocate::Punch, 0, 1 << 20).expect("freeing works");
    store.truncate(objects[2], 0).expect("cutting works");
    store.write(objects[1], 0, &[3; 1 << 20]).expect("there is room again");

    let again = fill(&store, 200..300);
    assert_eq!(store.destroy(&objects).unwrap(), objects.len() as u64);
    store.write(fid(300), 0, &[4; 4 << 20]).expect("there is room again");
    store.destroy(&again).unwrap();
    assert!(store.verify(true, &mut |_| {}).unwrap().is_clean());
}

#[test]
fn a_disk_filled_by_others_to_the_last_byte_can_still_be_emptied() {
    let Some(disk) = SmallDisk::mount("24m") else { return };
    let store = FileStore::open(&disk.dir.path().join("ost"), FileStoreOptions::create()).unwrap();
    store.write(fid(1), 0, &[1; 4 << 20]).unwrap();
    let ballast = disk.dir.path().join("ballast");
    let mut size = 16 << 20;
    let file = std::fs::File::create(&ballast).unwrap();
    while size >= 4096 {
        // As much as fits, in ever smaller pieces.
        let at = file.metadata().unwrap().len();
        if rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), at, size).is_err() {
            size /= 2;
        }
    }
    store.reserve.look_again();
    assert!(matches!(store.write(fid(2), 0, b"x"), Err(ObjectError::NoSpace)));
    assert_eq!(store.destroy(&[fid(1)]).unwrap(), 1);
    store.write(fid(2), 0, b"x").expect("there is room again");
}

#[test]
fn the_default_reserve_leaves_small_disks_usable() {
    let mib = 1u64 << 20;
    assert_eq!(default_reserve(64 * mib), 4 * mib);
    assert_eq!(default_reserve(300 * mib), 16 * mib);
    assert_eq!(default_reserve(960 * mib), 40 * mib);
    assert_eq!(default_reserve(4096 * mib), 64 * mib);
    assert_eq!(default_reserve(100 << 30), 1 << 30);
    assert_eq!(default_reserve(100 << 40), 1 << 30);
    assert_eq!(default_reserve(0), 0);
}
