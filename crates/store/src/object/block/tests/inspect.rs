//! Inspection of a store without changing it.

use super::*;
use crate::object::block::inspect::Inspector;
use std::os::unix::fs::FileExt;

/// Returns the bytes of all files of a store.
fn image(dir: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(dir).expect("listed") {
        let path = entry.expect("listed").path();
        match path.is_dir() {
            true => files.extend(image(&path)),
            false => files.push((path.clone(), std::fs::read(&path).expect("read"))),
        }
    }
    files.sort();
    files
}

fn inspected<T>(dir: &Path, look: impl FnOnce(&Inspector) -> T) -> T {
    let scratch = tempfile::tempdir().expect("a directory");
    look(&Inspector::open(dir, scratch.path()).expect("opens"))
}

#[test]
fn a_store_is_shown_as_it_is_and_not_changed() {
    let dir = tempfile::tempdir().expect("a directory");
    let dir = dir.path().join("ost");
    let options = BlockStoreOptions { size: 16 << 20, label: "x-OST0000".to_owned(), ..options() };
    let store = BlockStore::open(&dir, options).expect("made");
    store.reserve(fid(1).seq, 100).expect("reserved");
    store.write(fid(1), 0, &[1; 3000]).expect("written");
    store.write(fid(2), 8192, &[2; 300_000]).expect("written");
    store
        .fallocate(fid(3), crate::object::Fallocate::Allocate { keep_size: false }, 0, 65536)
        .expect("set aside");
    let extents = store.objects.extents(fid(2)).expect("read").expect("known");
    let free = store.space().expect("space").free;
    store.close().expect("closed");
    let scratch = tempfile::tempdir().expect("a directory");
    let used = Inspector::open(&dir, scratch.path()).err().expect("somebody uses it");
    assert!(matches!(used, ObjectError::InUse { .. }), "{used}");
    drop(store);
    let before = image(&dir);

    let found = inspected(&dir, |inspector| inspector.store().expect("read"));
    assert!(found.damage.is_empty() && found.is_clean, "{found:?}");
    assert_eq!(found.label.label, "x-OST0000");
    assert_eq!((found.objects, found.inline, found.maps, found.sequences), (3, 1, 3, 1));
    assert_eq!((found.total_bytes - found.used_bytes, found.free.bytes), (free, free));
    assert_eq!(found.blocks_to_recover, 0);

    let object = inspected(&dir, |inspector| inspector.object(fid(2)).expect("read").expect("there"));
    let places: Vec<_> =
        object.pieces.iter().map(|piece| (piece.logical, piece.physical, piece.len)).collect();
    let known: Vec<_> = extents.iter().map(|extent| (extent.logical, extent.physical, extent.len)).collect();
    assert_eq!(places, known);
    assert_eq!(object.pieces[0].checksums[0], medium::block_crc(&[2; 4096]));
    assert!(object.damage.is_empty() && object.head.size == 308_192);
    let aside = inspected(&dir, |inspector| inspector.object(fid(3)).expect("read").expect("there"));
    assert!(aside.pieces.iter().all(|piece| piece.checksums.is_empty()), "{aside:?}");
    assert!(inspected(&dir, |inspector| inspector.object(fid(9)).expect("read")).is_none());
    assert!(image(&dir) == before, "nothing was changed");
}

#[test]
fn damage_is_named() {
    let dir = tempfile::tempdir().expect("a directory");
    let dir = dir.path().join("ost");
    let store = BlockStore::open(&dir, BlockStoreOptions { size: 16 << 20, ..options() }).expect("made");
    store.reserve(fid(1).seq, 100).expect("reserved");
    store.write(fid(1), 0, &[7; 100_000]).expect("written");
    let at = store.objects.extents(fid(1)).expect("read").expect("known")[0].physical;
    drop(store);
    let device = std::fs::OpenOptions::new().write(true).open(dir.join("data")).expect("opened");
    device.write_all_at(&[8], at + 5 * BLOCK + 9).expect("flipped");
    device.write_all_at(&[0; 512], 0).expect("no label");
    let before = image(&dir);
    let object = inspected(&dir, |inspector| inspector.object(fid(1)).expect("read").expect("there"));
    let damaged: Vec<_> = object.pieces.iter().flat_map(|piece| piece.damaged.clone()).collect();
    assert_eq!(damaged, [(5 * BLOCK, false)]);
    assert_eq!(object.damage.len(), 1);
    let found = inspected(&dir, |inspector| inspector.store().expect("read"));
    assert!(found.labels[0].is_err() && found.labels[1].is_ok());
    assert_eq!(found.damage.len(), 1, "{:?}", found.damage);
    assert!(image(&dir) == before, "not mended either");
    drop(device);
    let device = std::fs::OpenOptions::new().write(true).open(dir.join("data")).expect("opened");
    device.set_len(8 << 20).expect("cut");
    let found = inspected(&dir, |inspector| inspector.store().expect("read"));
    assert!(found.damage.iter().any(|text| text.contains("but had 16777216")), "{:?}", found.damage);
}
