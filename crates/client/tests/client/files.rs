//! Tests of open files: errors, durability, permissions and concurrency.

use super::*;
use nacre_client::{FileLock, LockFamily, LockMode, LockOwner};
use nacre_types::{SetAttr, SetAttrValid, Status, Timestamp};
use std::os::unix::fs::MetadataExt;

#[test]
fn reading_a_file_that_was_never_written_asks_no_ost() {
    let world = World::new(65536, 2);
    let client = world.client();
    let (_, handle) = create(&client, "empty");
    assert_eq!(read(&client, handle, 0, 100), b"");
    assert_eq!(world.mds.intents.load(Ordering::Relaxed), 0, "no objects were made");
    assert_eq!(world.osts[0].reads.load(Ordering::Relaxed), 0);
}

#[test]
fn a_failed_write_tells_its_error_and_leaves_the_rest_readable() {
    let world = World::new(65536, 2);
    let client = world.client();
    client.write_back.settings.set_enabled(false);
    let (_, handle) = create(&client, "file");
    assert_eq!(write(&client, handle, 0, &[1; 100]), Ok(100));
    *world.osts[0].fail_write.lock().expect("no panic") = Some(Status::EIO);
    assert_eq!(write(&client, handle, 10, &[2; 10]), Err(Status::EIO));
    assert_eq!(read(&client, handle, 0, 200), [1; 100]);
    *world.osts[1].fail_write.lock().expect("no panic") = Some(Status::ENOSPC);
    assert_eq!(write(&client, handle, 0, &[3; 100_000]), Ok(65536), "what arrived counts");
    assert_eq!(client.data.fsync(handle), Ok(()), "a write error was told by the write");
}

#[test]
fn what_finds_no_space_is_tried_again_once_removed_files_are_gone() {
    let world = World::new(65536, 1);
    let client = world.client();
    *world.mds.fail_create.lock().expect("no panic") = Some(Status::ENOSPC);
    let (_, handle) = create(&client, "file");
    *world.osts[0].fail_write.lock().expect("no panic") = Some(Status::ENOSPC);
    let before = world.mds.commits.load(Ordering::Relaxed);
    assert_eq!(write(&client, handle, 0, &[1; 100]), Ok(100));
    assert_eq!(world.mds.commits.load(Ordering::Relaxed), before + 1, "the MDT was asked to make room");
}

#[test]
fn lost_data_is_reported_once_by_each_open_file() {
    let world = World::new(65536, 1);
    let client = world.client();
    let (fid, first) = create(&client, "file");
    let second = open(&client, fid, READ_WRITE);
    assert_eq!(write(&client, first, 0, b"data"), Ok(4));
    world.osts[0].epoch.fetch_add(1, Ordering::Relaxed);
    assert_eq!(client.data.fsync(first), Err(Status::EIO));
    assert_eq!(client.data.fsync(first), Ok(()));
    assert_eq!(client.data.flush(second), Err(Status::EIO));
    assert_eq!(client.data.flush(second), Ok(()));
    let late = open(&client, fid, READ_WRITE);
    assert_eq!(client.data.fsync(late), Ok(()), "opened afterwards");
}

#[test]
fn synced_data_survives_a_power_failure_without_error() {
    let world = World::new(65536, 1);
    let client = world.client();
    let (_, handle) = create(&client, "file");
    assert_eq!(write(&client, handle, 0, b"data"), Ok(4));
    assert_eq!(client.data.fsync(handle), Ok(()));
    world.osts[0].epoch.fetch_add(1, Ordering::Relaxed);
    assert_eq!(client.data.fsync(handle), Ok(()));
    assert_eq!(client.data.flush(handle), Ok(()));
}

#[test]
fn append_and_fsync_cost_one_object_sync_and_no_commit_once_the_file_is_committed() {
    let world = World::new(65536, 1);
    let client = world.client();
    let (_, handle) = create(&client, "log");
    append(&client, handle, b"first").expect("written");
    client.data.fsync(handle).expect("synced");
    let before = (world.osts[0].syncs.load(Ordering::Relaxed), world.mds.commits.load(Ordering::Relaxed));
    for _ in 0..10 {
        append(&client, handle, b"more").expect("written");
        client.data.fsync(handle).expect("synced");
    }
    client.data.fsync(handle).expect("nothing is dirty");
    assert_eq!(world.osts[0].syncs.load(Ordering::Relaxed), before.0 + 10);
    assert_eq!(world.mds.commits.load(Ordering::Relaxed), before.1);
}

#[test]
fn the_first_fsync_of_a_file_written_earlier_syncs_all_its_objects() {
    let world = World::new(65536, 3);
    let client = world.client();
    let (fid, handle) = create(&client, "file");
    write(&client, handle, 0, &[1; 200_000]).expect("written");
    client.opens.release(handle).expect("open");
    let handle = open(&client, fid, READ_WRITE);
    client.data.fsync(handle).expect("synced");
    assert!(world.osts.iter().all(|ost| ost.syncs.load(Ordering::Relaxed) == 1));
}

#[test]
fn a_time_that_was_set_survives_the_close() {
    let world = World::new(65536, 1);
    let client = world.client();
    let (fid, handle) = create(&client, "file");
    write(&client, handle, 0, b"data").expect("written");
    let mtime = Timestamp::new(12345, 678);
    let set = SetAttr { valid: SetAttrValid::MTIME, mtime, ..SetAttr::default() };
    client.names.setattr(&root(), fid, set).expect("set");
    assert_eq!(client.inodes.getattr(fid).expect("there").mtime, mtime);
    client.opens.release(handle).expect("open");
    assert_eq!(client.inodes.getattr(fid).expect("there").mtime, mtime);
}

#[test]
fn writing_moves_the_time_of_change_and_reading_the_time_of_access() {
    let world = World::new(65536, 1);
    let client = world.client();
    let (fid, handle) = create(&client, "file");
    let before = client.inodes.getattr(fid).expect("there");
    write(&client, handle, 0, b"data").expect("written");
    client.opens.release(handle).expect("open");
    let written = client.inodes.getattr(fid).expect("there");
    assert!(written.mtime > before.mtime);
    let handle = open(&client, fid, OpenFlags::READ);
    read(&client, handle, 0, 4);
    client.opens.release(handle).expect("open");
    assert!(client.inodes.getattr(fid).expect("there").atime >= written.mtime);
}

#[test]
fn set_id_bits_go_with_the_first_write_of_somebody_else() {
    let world = World::new(65536, 1);
    let client = world.client();
    let (fid, handle) = create(&client, "program");
    let set = SetAttr { valid: SetAttrValid::MODE, mode: 0o4755, ..SetAttr::default() };
    client.names.setattr(&root(), fid, set).expect("set");
    write(&client, handle, 0, b"x").expect("written");
    assert_eq!(client.inodes.getattr(fid).expect("there").mode & 0o7777, 0o4755);
    let options = WriteOptions { kill_priv: true, ..WriteOptions::default() };
    client.data.write(&root(), handle, 0, b"y", options).expect("written");
    assert_eq!(client.inodes.getattr(fid).expect("there").mode & 0o7777, 0o755);
}

#[test]
fn groups_and_capabilities_are_looked_up_when_the_server_needs_them() {
    let world = World::new(65536, 1);
    let client = world.client();
    let (fid, _) = create(&client, "file");
    let set = SetAttr { valid: SetAttrValid::MODE, mode: 0o600, ..SetAttr::default() };
    client.names.setattr(&root(), fid, set).expect("set");
    let stranger = Caller { uid: 4242, gid: 4242, pid: u32::MAX - 1 };
    assert_eq!(client.inodes.access(&stranger, fid, 4), Err(Status::EACCES));
    // A process has its capabilities when it acts for its own user, and none for another one.
    let borrowed = Caller { uid: 4242, gid: 4242, pid: std::process::id() };
    assert_eq!(client.inodes.access(&borrowed, fid, 4), Err(Status::EACCES));
    let set = SetAttr { valid: SetAttrValid::UID, uid: 4242, ..SetAttr::default() };
    client.names.setattr(&root(), fid, set).expect("set");
    let own = std::fs::metadata("/proc/self").expect("there").uid();
    let privileged = Caller { uid: own, gid: 4242, pid: std::process::id() };
    let capable = std::fs::read_to_string("/proc/self/status").is_ok_and(|text| {
        text.lines().any(|line| line.starts_with("CapEff:") && !line.ends_with("0000000000000000"))
    });
    let expected = if capable { Ok(()) } else { Err(Status::EACCES) };
    assert_eq!(client.inodes.access(&privileged, fid, 4), expected);
}

#[test]
fn appends_of_many_threads_never_overlap() {
    let world = World::new(65536, 3);
    let client = world.client();
    let (fid, _) = create(&client, "log");
    nacre_env::thread::scope(|scope| {
        for byte in 1..=4u8 {
            let client = client.clone();
            scope.spawn(move || {
                let handle = open(&client, fid, READ_WRITE);
                for _ in 0..50 {
                    assert_eq!(append(&client, handle, &[byte; 3000]), Ok(3000));
                }
                client.opens.release(handle).expect("open");
            });
        }
    });
    let handle = open(&client, fid, OpenFlags::READ);
    let all = read(&client, handle, 0, 4 * 50 * 3000 + 1);
    assert_eq!(all.len(), 4 * 50 * 3000);
    assert!(all.chunks(3000).all(|record| record.iter().all(|&byte| byte == record[0])));
}

#[test]
fn overlapping_writes_are_atomic_for_readers() {
    let world = World::new(65536, 4);
    let client = world.client();
    let (_, handle) = create(&client, "file");
    const LEN: usize = 300_000;
    write(&client, handle, 0, &[0; LEN]).expect("written");
    nacre_env::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            for byte in 1..30 {
                write(&client, handle, 0, &[byte; LEN]).expect("written");
            }
        });
        while !writer.is_finished() {
            let seen = read(&client, handle, 0, LEN);
            assert!(seen.iter().all(|&byte| byte == seen[0]), "half of a write was seen");
        }
    });
}

#[test]
fn one_layout_is_made_for_many_first_writers() {
    let world = World::new(65536, 2);
    let client = world.client();
    let (_, handle) = create(&client, "file");
    nacre_env::thread::scope(|scope| {
        for i in 0..8 {
            let client = &client;
            scope.spawn(move || write(client, handle, i * 100_000, &[1; 100]).expect("written"));
        }
    });
    assert_eq!(world.mds.intents.load(Ordering::Relaxed), 1);
}

#[test]
fn limits_are_refused_and_not_wrapped() {
    let world = World::new(65536, 2);
    let client = world.client();
    let (fid, handle) = create(&client, "file");
    assert_eq!(write(&client, handle, u64::MAX, b"x"), Err(Status::EFBIG));
    assert_eq!(write(&client, handle, i64::MAX as u64, b"x"), Err(Status::EFBIG));
    let set = SetAttr { valid: SetAttrValid::SIZE, size: u64::MAX, ..SetAttr::default() };
    assert_eq!(client.names.setattr(&root(), fid, set).map(drop), Err(Status::EFBIG));
    assert_eq!(read(&client, handle, u64::MAX, 10), b"");
    let reader = open(&client, fid, OpenFlags::READ);
    assert_eq!(write(&client, reader, 0, b"x"), Err(Status::EBADF));
    assert_eq!(client.opens.release(9999), Err(Status::EBADF));
}

/// Returns times and size of a file.
fn shown(client: &Client, fid: Fid) -> (Timestamp, Timestamp, Timestamp, u64, u64) {
    let attr = client.inodes.getattr(fid).expect("it is there");
    (attr.atime, attr.mtime, attr.ctime, attr.size, attr.blocks)
}

#[test]
fn what_stat_shows_of_a_written_file_stays_while_its_close_is_on_its_way() {
    let world = World::new(65536, 2);
    let client = world.client();
    let (fid, handle) = create(&client, "file");
    write(&client, handle, 0, &[1; 100_000]).expect("written");
    let (_, mtime, ctime, size, _) = shown(&client, fid);
    assert_eq!((mtime, size), (ctime, 100_000));

    // The kernel reports a close at some later time, and programs continue meanwhile: checked at the close
    // itself, ...
    let (asking, seen) = (client.clone(), Arc::new(std::sync::Mutex::new(None)));
    let inside = seen.clone();
    *world.mds.at_close.lock().expect("no panic") = Some(Box::new(move || {
        inside.lock().expect("no panic").get_or_insert(shown(&asking, fid));
    }));
    let late = open(&client, fid, READ_WRITE);
    client.opens.release(handle).expect("was open");
    let during = seen.lock().expect("no panic").take().expect("the close came by");
    assert_eq!((during.1, during.2, during.3), (mtime, ctime, size), "while the file stays open");
    *world.mds.at_close.lock().expect("no panic") = None;

    // ... and while the MDT has not got it.
    write(&client, late, 100_000, b"more").expect("written");
    let (_, mtime, ctime, size, _) = shown(&client, fid);
    *world.mds.held_closes.lock().expect("no panic") = Some(Vec::new());
    client.opens.release(late).expect("was open");
    let under_way = shown(&client, fid);
    assert_eq!((under_way.1, under_way.2, under_way.3), (mtime, ctime, size));
    let again = open(&client, fid, OpenFlags::READ);
    assert_eq!(shown(&client, fid), under_way, "opened once more");
    assert_eq!(read(&client, again, 99_999, 10), b"\x01more");
    let under_way = shown(&client, fid);
    world.mds.let_closes_arrive();
    assert_eq!(shown(&client, fid), under_way, "the MDT knows");
    client.opens.release(again).expect("was open");
    assert_eq!(shown(&client, fid), under_way);
}

#[test]
fn times_that_are_set_after_a_close_are_not_undone_by_it() {
    let world = World::new(65536, 1);
    let client = world.client();
    for is_still_open in [false, true] {
        let (fid, handle) = create(&client, if is_still_open { "open" } else { "closed" });
        write(&client, handle, 0, b"data").expect("written");
        let other = is_still_open.then(|| open(&client, fid, READ_WRITE));
        *world.mds.held_closes.lock().expect("no panic") = Some(Vec::new());
        client.opens.release(handle).expect("was open");
        let old = Timestamp::new(1_000_000, 7);
        let set = SetAttr { valid: SetAttrValid::MTIME, mtime: old, ..SetAttr::default() };
        let (attr, _) = client.names.setattr(&root(), fid, set).expect("root may");
        assert_eq!(attr.mtime, old);
        world.mds.let_closes_arrive();
        if let Some(other) = other {
            client.opens.release(other).expect("was open");
        }
        assert_eq!(client.inodes.getattr(fid).expect("it is there").mtime, old);
    }
}

/// Checks a file that another thread has open and that gets its first objects, and is closed, while the reply
/// to an open of it is on its way.
fn is_read_by_who_opened_it_meanwhile(world: &World, client: &Arc<Client>, name: &'static str, len: usize) {
    let (fid, handle) = create(client, name);
    let bytes: Vec<u8> = (0..len).map(|at| (at / 100 % 250) as u8 + 1).collect();
    let writer = (client.clone(), bytes.clone());
    *world.mds.after_open.lock().expect("no panic") = Some(Box::new(move || {
        let (client, bytes) = writer;
        for (piece, at) in bytes.chunks(4 << 10).zip((0..).step_by(4 << 10)) {
            assert_eq!(write(&client, handle, at, piece), Ok(piece.len()));
        }
        client.opens.release(handle).expect("open");
    }));
    let reader = open(client, fid, OpenFlags::READ);
    assert_eq!(client.inodes.getattr(fid).expect("there").size, bytes.len() as u64);
    let found = read(client, reader, 0, 100_000);
    assert!(
        found == bytes,
        "{name}, {len} bytes: {} of them, {:?}, heads {}",
        found.len(),
        &found[..8.min(found.len())],
        world.data.is_some()
    );
    client.opens.release(reader).expect("open");
}

#[test]
fn an_open_whose_answer_is_late_finds_what_was_written_meanwhile() {
    for len in [8, 20_000, 80_000] {
        for world in [World::new(65536, 2), World::with_heads(65536, 2)] {
            let client = world.client();
            is_read_by_who_opened_it_meanwhile(&world, &client, "alone", len);
            let _other = world.client();
            is_read_by_who_opened_it_meanwhile(&world, &client, "beside another", len);
        }
    }
}

/// The kernel reports the end of an open file late, and may have given its number to the next one by then.
#[test]
fn the_late_end_of_an_open_file_leaves_the_locks_of_the_next_one_with_its_number() {
    let world = World::new(65536, 1);
    let client = world.client();
    let (fid, first) = create(&client, "file");
    let next = open(&client, fid, READ_WRITE);
    let unlocked = |handle| {
        let mut owners = Vec::new();
        let unlock = |_, LockOwner(owner)| {
            owners.push(owner);
            Ok(())
        };
        client.opens.unlock_with_open(handle, unlock).expect("open");
        owners
    };
    let family = LockFamily::Range;
    for owner in [7, 8] {
        client.opens.note_locker(first, family, LockOwner(owner)).expect("open");
    }
    client.opens.note_locker(next, family, LockOwner(7)).expect("open");
    assert_eq!(unlocked(first), [8]);
    assert_eq!((unlocked(first), unlocked(next)), (Vec::new(), vec![7]));
    // A process that closes a descriptor releases its locks on the file, through whichever open it locked.
    client.opens.note_locker(next, family, LockOwner(9)).expect("open");
    client.opens.note_locker(next, LockFamily::File, LockOwner(9)).expect("open");
    client.opens.forget_locker(first, LockOwner(9)).expect("open");
    assert_eq!(unlocked(next), [9], "the other family stays until the open file ends");
}

#[test]
fn an_object_that_was_written_to_and_is_lost_is_an_error_until_the_file_is_emptied_and_one_never_written_a_hole()
 {
    let world = World::new(65536, 2);
    let client = world.client();
    client.write_back.settings.set_enabled(false);
    let (fid, handle) = create(&client, "file");
    assert_eq!(write(&client, handle, 65536, &[1; 10]), Ok(10));
    assert_eq!(write(&client, handle, 3 * 65536, &[2; 10]), Ok(10));
    client.opens.release(handle).expect("closed");
    let handle = open(&client, fid, READ_WRITE);
    assert_eq!(read(&client, handle, 0, 100), [0; 100], "the first object was never written");
    assert_eq!(read(&client, handle, 65536, 20)[..10], [1; 10]);
    assert_eq!(write(&client, handle, 5, &[3; 5]), Ok(5));
    client.opens.release(handle).expect("closed");
    world.osts[0].lose_all();
    let handle = open(&client, fid, READ_WRITE);
    assert_eq!(client.data.read(handle, 0, &mut [0; 10], Reader::Program), Err(Status::OBJECT_LOST));
    assert_eq!(write(&client, handle, 20, &[3; 5]), Err(Status::OBJECT_LOST), "it would stand among zeros");
    assert_eq!(read(&client, handle, 65536, 20)[..10], [1; 10], "the other one is there");
    let set = SetAttr { valid: SetAttrValid::SIZE, size: 0, ..SetAttr::default() };
    client.names.setattr(&root(), fid, set).expect("emptied");
    assert_eq!(write(&client, handle, 0, &[4; 5]), Ok(5));
    assert_eq!(read(&client, handle, 0, 10), [4; 5]);
    client.opens.release(handle).expect("closed");
}

#[test]
fn what_an_open_has_written_that_lasts_is_told_with_the_close_of_another_one() {
    let world = World::new(65536, 1);
    let first = world.client();
    let (fid, handle) = create(&first, "file");
    assert_eq!(write(&first, handle, 0, &[1; 10]), Ok(10));
    first.data.fsync(handle).expect("synced");
    assert!(!world.mds.is_written(fid));
    let open = open(&first, fid, READ_WRITE);
    first.opens.release(open).expect("closed");
    assert!(world.mds.is_written(fid), "any close tells it");
}

/// The lock was refused: its wait for opens that end found none left.
#[test]
fn a_lock_is_granted_although_the_open_with_another_one_ends_after_the_answer() {
    for family in [LockFamily::Range, LockFamily::File] {
        let world = World::new(65536, 1);
        let client = world.client();
        let (fid, first) = create(&client, "file");
        let second = open(&client, fid, READ_WRITE);
        let lock = move |client: &Client, handle: u64, mode: LockMode| {
            let owner = LockOwner(handle + 100);
            let lock = FileLock { family, owner, mode, start: 0, last: 9, pid: 1 };
            if mode != LockMode::Unlock {
                client.opens.note_locker(handle, family, owner).expect("open");
            }
            client.opens.set_lock(&root(), handle, lock, false)
        };
        assert_eq!(lock(&client, first, LockMode::Write), Ok(()));
        // As the kernel reports close(2), and later the end of the open file.
        client.data.flush(first).expect("open");
        client.opens.forget_locker(first, LockOwner(7)).expect("open");
        let ending = client.clone();
        *world.mds.at_lock.lock().expect("no panic") = Some(Box::new(move || {
            let unlock = |_, _| lock(&ending, first, LockMode::Unlock);
            ending.opens.unlock_with_open(first, unlock).expect("open");
            ending.opens.release(first).expect("open");
            Err(Status::EAGAIN)
        }));
        assert_eq!(lock(&client, second, LockMode::Write), Ok(()), "{family:?}");
    }
}
