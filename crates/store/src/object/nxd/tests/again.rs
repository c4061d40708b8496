//! Entries of the log that must not be seen again.

use super::*;

#[test]
fn what_lay_behind_a_batch_that_was_lost_never_comes_back() {
    let dir = tempfile::tempdir().expect("a directory");
    let device = Arc::new(MemoryDevice::new(4 << 20));
    let store = in_memory(dir.path(), &device, &quiet());
    store.write(fid(1), 0, &[1; 4096]).expect("written");
    store.sync(fid(1)).expect("synced");
    store.write(fid(1), 0, &[2; 4096]).expect("written");
    store.write(fid(2), 0, &[9; 4096]).expect("written");
    drop(store);
    // A power cut: of two batches of 16 sectors the first is lost and the second is not.
    let mut sectors = 0;
    let device = Arc::new(device.after_power_cut(&mut |versions| {
        sectors += 1;
        if (1..=16).contains(&sectors) { 0 } else { versions - 1 }
    }));
    let store = in_memory(dir.path(), &device, &quiet());
    assert_eq!(contents(&store, fid(1)), [1; 4096]);
    assert_eq!(contents(&store, fid(2)), [0; 4096]);
    // One of the same length replaces the first.
    store.write(fid(1), 0, &[3; 4096]).expect("written");
    drop(store);
    let store = in_memory(dir.path(), &device, &quiet());
    assert_eq!(contents(&store, fid(1)), [3; 4096]);
    assert_eq!(contents(&store, fid(2)), [0; 4096]);
}

#[test]
fn what_was_written_back_and_changed_since_does_not_come_back_while_the_log_still_has_it() {
    let dir = tempfile::tempdir().expect("a directory");
    let device = Arc::new(MemoryDevice::new(4 << 20));
    let store = in_memory(dir.path(), &device, &quiet());
    store.write(fid(2), 0, &[2; 4096]).expect("written");
    store.write(fid(1), 0, &[1; 4096]).expect("written");
    // The older one cannot be written back, so the tail stays where it is.
    let data_of_the_first = 2 * crate::object::block::device::BLOCK;
    device.flip_bit(data_of_the_first, 0);
    assert!(store.flush_now().is_err());
    assert_eq!(contents(store.store(), fid(1)), [1; 4096]);
    assert_eq!(store.cache_stats().dirty, 4096);
    store.write(fid(1), 0, &vec![5; 40_000]).expect("written");
    device.flip_bit(data_of_the_first, 0);
    drop(store);
    let store = in_memory(dir.path(), &device, &quiet());
    assert!(contents(&store, fid(1)) == [5; 40_000]);
    assert_eq!(contents(&store, fid(2)), [2; 4096]);
    store.flush_now().expect("written back");
    assert!(!store.cache_stats().is_needed);
}

#[test]
fn bytes_of_an_object_that_is_gone_are_not_those_of_the_next_of_its_name() {
    let dir = tempfile::tempdir().expect("a directory");
    let device = Arc::new(MemoryDevice::new(4 << 20));
    let store = in_memory(dir.path(), &device, &quiet());
    store.write(fid(1), 0, &[1; 4096]).expect("written");
    store.write(fid(2), 0, &[2; 8192]).expect("written");
    drop(store);
    // As after a power cut that lost one object, and the end of another one, but not the log.
    let inner = block_store(dir.path());
    inner.destroy(&[fid(1)]).expect("destroyed");
    inner.truncate(fid(2), 5000).expect("cut");
    drop(inner);
    let store = in_memory(dir.path(), &device, &quiet());
    assert_eq!(store.attr(fid(1)).expect("attr").mtime, None);
    assert_eq!(contents(&store, fid(2)), [2; 5000]);
    drop(store);
    // And the log has dropped them permanently.
    let inner = block_store(dir.path());
    inner.write(fid(1), 0, &[7; 4096]).expect("written");
    inner.truncate(fid(2), 8192).expect("extended");
    drop(inner);
    let store = in_memory(dir.path(), &device, &quiet());
    assert_eq!(contents(&store, fid(1)), [7; 4096]);
    assert_eq!(contents(&store, fid(2)), [&[2; 5000][..], &[0; 3192]].concat());
}
