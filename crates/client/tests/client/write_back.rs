//! Held-back data: what the OSTs and programs see of it.

use super::*;
use nacre_types::{SetAttr, SetAttrValid, Status, TargetId};
use std::time::Duration;

const MIB: usize = 1 << 20;

fn writes(world: &World) -> u64 {
    world.osts.iter().map(|ost| ost.writes.load(Ordering::Relaxed)).sum()
}

/// Creates a client that does not write data out by age.
fn patient(world: &World) -> Arc<Client> {
    let client = world.client();
    client.write_back.settings.set_age(Duration::from_secs(3600));
    client
}

fn pattern(len: usize, seed: usize) -> Vec<u8> {
    (0..len).map(|at| (at * 31 + at / 251 + seed) as u8).collect()
}

/// Writes `data` in pieces of `step` bytes.
fn stream(client: &Client, handle: u64, data: &[u8], step: usize) {
    for (index, piece) in data.chunks(step).enumerate() {
        assert_eq!(write(client, handle, (index * step) as u64, piece), Ok(piece.len()));
    }
}

fn truncate(client: &Client, fid: Fid, size: u64) {
    let set = SetAttr { valid: SetAttrValid::SIZE, size, ..SetAttr::default() };
    client.names.setattr(&root(), fid, set).expect("the size can be set");
}

#[test]
fn a_stream_of_small_writes_becomes_few_requests_and_reads_as_written() {
    let world = World::new(MIB as u32, 2);
    let client = patient(&world);
    let (_, handle) = create(&client, "file");
    let data = pattern(5 * MIB + 123, 1);
    stream(&client, handle, &data, 4096);
    assert_eq!(client.data.fsync(handle), Ok(()));
    assert!(writes(&world) <= 8, "{} requests", writes(&world));
    assert_eq!(client.write_back.write_back_stats().dirty_bytes, 0);
    assert!(read(&client, handle, 0, data.len() + 1) == data);
}

#[test]
fn a_single_write_goes_straight_to_its_object() {
    let world = World::new(MIB as u32, 1);
    let client = patient(&world);
    let (_, handle) = create(&client, "file");
    write(&client, handle, 0, b"small").expect("written");
    assert_eq!((writes(&world), client.write_back.write_back_stats().buffer_bytes), (1, 0));
}

#[test]
fn a_log_that_is_synced_after_each_record_is_not_held_back() {
    let world = World::new(MIB as u32, 1);
    let client = patient(&world);
    let (_, handle) = create(&client, "log");
    for index in 0..5 {
        append(&client, handle, b"record").expect("written");
        assert_eq!((writes(&world), client.write_back.write_back_stats().buffer_bytes), (index + 1, 0));
        client.data.fsync(handle).expect("synced");
    }
}

#[test]
fn reads_see_what_is_held_back_and_interleaved_writers_share_windows() {
    let world = World::new(MIB as u32, 2);
    let client = patient(&world);
    let (fid, first) = create(&client, "file");
    let second = open(&client, fid, READ_WRITE);
    let record = 47_008;
    let data = pattern(60 * record, 2);
    for (index, piece) in data.chunks(record).enumerate() {
        let handle = if index % 2 == 0 { first } else { second };
        assert_eq!(write(&client, handle, (index * record) as u64, piece), Ok(record));
    }
    assert!(client.write_back.write_back_stats().dirty_bytes > 0);
    let middle = read(&client, second, 100_000, 5_000);
    assert!(middle == data[100_000..105_000]);
    assert!(read(&client, first, 0, data.len()) == data);
}

#[test]
fn reads_of_dirty_data_alone_are_copies_and_others_have_it_sent() {
    let world = World::new(MIB as u32, 2);
    let client = patient(&world);
    let (_, handle) = create(&client, "file");
    let mut data = pattern(2 * MIB + 300_000, 5);
    // From here on the data is dirty, beyond the end of a stripe.
    let tail = 2 * MIB - 50_000;
    stream(&client, handle, &data[..tail], 100_000);
    client.data.fsync(handle).expect("synced");
    for (index, piece) in data[tail..].chunks(50_000).enumerate() {
        write(&client, handle, (tail + index * 50_000) as u64, piece).expect("written");
    }
    let reads = || world.osts.iter().map(|ost| ost.reads.load(Ordering::Relaxed)).sum::<u64>();
    let before = reads();
    let check = |data: &[u8], start: usize, len: usize| {
        let end = data.len().min(start + len);
        assert!(read(&client, handle, start as u64, len) == data[start..end], "{len} at {start}");
    };
    let middle = 2 * MIB + 7;
    check(&data, middle, 290_000);
    check(&data, middle + 289_000, 50_000);
    data[middle + 5..middle + 8].copy_from_slice(b"new");
    write(&client, handle, middle as u64 + 5, b"new").expect("written");
    check(&data, middle, 20);
    assert_eq!(reads(), before, "no read reached an OST");
    assert!(client.write_back.write_back_stats().dirty_bytes >= 300_000);
    check(&data, tail - 10, 200_000);
    assert!(reads() > before, "a part of it is not dirty");
}

#[test]
fn the_size_is_right_while_data_is_held_back_and_the_mdt_gets_it_after_the_data() {
    let world = World::new(MIB as u32, 2);
    let client = patient(&world);
    let (fid, handle) = create(&client, "file");
    stream(&client, handle, &pattern(300_000, 3), 10_000);
    let attr = client.inodes.getattr(fid).expect("known");
    assert_eq!((attr.size, attr.blocks), (300_000, 300_000_u64.next_multiple_of(4096) / 512));
    assert!(client.write_back.write_back_stats().dirty_bytes > 0);
    client.opens.release(handle).expect("open");
    assert_eq!(
        client.write_back.write_back_stats().buffer_bytes,
        0,
        "nothing is dirty of files that nobody has open"
    );
    assert_eq!(client.inodes.getattr(fid).expect("known").size, 300_000);
}

#[test]
fn what_is_cut_off_is_never_written() {
    let world = World::new(MIB as u32, 1);
    let client = patient(&world);
    let (fid, handle) = create(&client, "file");
    let data = pattern(200_000, 4);
    stream(&client, handle, &data, 10_000);
    truncate(&client, fid, 50_001);
    truncate(&client, fid, 120_000);
    let mut expected = data[..50_001].to_vec();
    expected.resize(120_000, 0);
    assert!(read(&client, handle, 0, 200_000) == expected);
    truncate(&client, fid, 0);
    client.data.fsync(handle).expect("synced");
    assert_eq!(client.inodes.getattr(fid).expect("known").size, 0);
}

#[test]
fn a_refusal_of_data_that_was_answered_is_told_once_by_each_open() {
    let world = World::new(MIB as u32, 1);
    let client = patient(&world);
    let (fid, first) = create(&client, "file");
    let second = open(&client, fid, READ_WRITE);
    stream(&client, first, &[7; 30_000], 10_000);
    *world.osts[0].fail_write.lock().expect("no panic") = Some(Status::EIO);
    assert_eq!(client.data.fsync(first), Err(Status::EIO));
    assert_eq!(client.data.fsync(first), Ok(()));
    assert_eq!(client.data.flush(second), Err(Status::EIO));
    assert_eq!(client.data.flush(second), Ok(()));
    // The close may have been that of a program which was started, and which had a copy of the descriptor.
    assert_eq!(client.data.fsync(second), Err(Status::EIO));
    assert_eq!((client.data.fsync(second), client.data.flush(second)), (Ok(()), Ok(())));
    assert_eq!(client.write_back.write_back_stats().failures, 1);
    stream(&client, first, &[8; 30_000], 10_000);
    assert_eq!(client.data.fsync(first), Ok(()), "the file can be used as before");
}

#[test]
fn a_loss_after_the_last_close_is_told_to_the_next_open() {
    let world = World::new(MIB as u32, 1);
    let client = patient(&world);
    let (fid, handle) = create(&client, "file");
    stream(&client, handle, &[7; 30_000], 10_000);
    *world.osts[0].fail_write.lock().expect("no panic") = Some(Status::EIO);
    assert_eq!(client.data.flush(handle), Ok(()), "close does not wait");
    client.opens.release(handle).expect("open");
    let (first, second) = (open(&client, fid, READ_WRITE), open(&client, fid, READ_WRITE));
    assert_eq!((client.data.fsync(first), client.data.fsync(first)), (Err(Status::EIO), Ok(())));
    assert_eq!(client.data.flush(second), Ok(()), "it was told");
    client.opens.release(first).expect("open");
    client.opens.release(second).expect("open");
    assert_eq!(client.data.flush(open(&client, fid, READ_WRITE)), Ok(()));
}

#[test]
fn an_interrupted_sync_leaves_the_data_to_be_sent_later() {
    let world = World::new(MIB as u32, 1);
    let client = patient(&world);
    let (_, handle) = create(&client, "file");
    let data = pattern(60_000, 9);
    stream(&client, handle, &data, 10_000);
    let held = client.write_back.write_back_stats().dirty_bytes;
    *world.osts[0].fail_write.lock().expect("no panic") = Some(Status::EINTR);
    assert_eq!(client.data.fsync(handle), Err(Status::EINTR));
    assert_eq!(client.write_back.write_back_stats().dirty_bytes, held, "nothing is lost");
    assert_eq!((client.data.fsync(handle), client.data.flush(handle)), (Ok(()), Ok(())), "nor told as lost");
    assert!(held > 0 && client.write_back.write_back_stats().dirty_bytes == 0);
    assert!(read(&client, handle, 0, data.len()) == data);
}

/// The end of a mount interrupts closes. `cp` and an unmount at once lost the rest of the file.
#[test]
fn data_of_a_close_that_is_interrupted_is_written_before_the_end_of_the_mount() {
    let world = World::new(MIB as u32, 1);
    let client = patient(&world);
    let (fid, handle) = create(&client, "file");
    stream(&client, handle, &[7; 20_000], 10_000);
    *world.osts[0].fail_write.lock().expect("no panic") = Some(Status::EINTR);
    let guard = nacre_env::InterruptTarget::install();
    guard.target().begin(1);
    guard.target().raise(1);
    assert_eq!(client.opens.release(handle), Ok(()));
    drop(guard);
    client.write_back.write_back_all();
    assert_eq!(client.write_back.write_back_stats().buffer_bytes, 0);
    let next = world.client();
    let handle = open(&next, fid, READ_WRITE);
    assert!(read(&next, handle, 0, 30_000) == [7; 20_000]);
}

#[test]
fn a_client_that_was_given_up_forgets_what_it_held_back_and_says_so_once() {
    let world = World::new(MIB as u32, 1);
    let client = patient(&world);
    let (_, handle) = create(&client, "file");
    let (_, clean) = create(&client, "clean");
    stream(&client, handle, &pattern(60_000, 10), 10_000);
    let sent = writes(&world);
    client.write_back.lose_dirty_data(TargetId::mdt(0));
    assert_eq!(client.write_back.write_back_stats().dirty_bytes, 0);
    assert_eq!((client.data.fsync(handle), client.data.fsync(handle)), (Err(Status::EIO), Ok(())));
    assert_eq!((writes(&world), client.data.fsync(clean)), (sent, Ok(())));
}

#[test]
fn without_a_grant_nothing_is_held_back() {
    let world = World::new(MIB as u32, 1);
    world.osts[0].ungranted.store(u64::MAX, Ordering::Relaxed);
    let client = patient(&world);
    let (_, handle) = create(&client, "file");
    stream(&client, handle, &pattern(50_000, 5), 10_000);
    assert_eq!((writes(&world), client.write_back.write_back_stats().dirty_bytes), (5, 0));
    *world.osts[0].fail_write.lock().expect("no panic") = Some(Status::EDQUOT);
    assert_eq!(write(&client, handle, 50_000, b"more"), Err(Status::EDQUOT), "told by the write itself");
}

#[test]
fn memory_for_dirty_data_is_bounded_and_grants_go_back() {
    let world = World::new(MIB as u32, 2);
    let client = patient(&world);
    client.write_back.settings.set_max_dirty(3 * MIB as u64, 2 * MIB as u64);
    let (_, handle) = create(&client, "file");
    let data = pattern(20 * MIB, 6);
    for (index, piece) in data.chunks(50_000).enumerate() {
        write(&client, handle, index as u64 * 50_000, piece).expect("written");
        assert!(client.write_back.write_back_stats().buffer_bytes <= 3 * MIB as u64);
    }
    assert!(read(&client, handle, 0, data.len()) == data);
    assert!(world.osts[0].granted.load(Ordering::Relaxed) > 0);
    client.opens.release(handle).expect("open");
    assert!(!client.write_back.return_grants(true));
    assert_eq!(world.osts[0].granted.load(Ordering::Relaxed), 0);
}

#[test]
fn many_files_with_a_little_dirty_data_each_do_not_block_one_another() {
    let world = World::new(MIB as u32, 1);
    let client = patient(&world);
    client.write_back.settings.set_max_dirty(2 * MIB as u64, 2 * MIB as u64);
    let handles: Vec<u64> = (0..20).map(|n| create(&client, &format!("f{n}")).1).collect();
    for round in 0..5 {
        for &handle in &handles {
            write(&client, handle, round * 3_000, &[round as u8; 3_000]).expect("written");
        }
    }
    for &handle in &handles {
        let found = read(&client, handle, 0, 15_000);
        assert!((0..5).all(|n| found[n * 3_000..(n + 1) * 3_000] == [n as u8; 3_000]));
    }
}

#[test]
fn old_data_is_written_out_by_itself() {
    let world = World::new(MIB as u32, 1);
    let client = world.client();
    client.write_back.settings.set_age(Duration::from_millis(20));
    let (_, handle) = create(&client, "file");
    stream(&client, handle, &pattern(30_000, 7), 10_000);
    let deadline = nacre_env::clock::Instant::now() + Duration::from_secs(30);
    while client.write_back.write_back_stats().dirty_bytes > 0 {
        assert!(nacre_env::clock::Instant::now() < deadline, "nothing was written out");
        nacre_env::thread::yield_now();
    }
    assert_eq!(client.data.fsync(handle), Ok(()));
}

#[test]
fn around_the_cache_means_on_the_ost() {
    let world = World::new(MIB as u32, 1);
    let client = patient(&world);
    let (_, handle) = create(&client, "file");
    stream(&client, handle, &[1; 60_000], 10_000);
    let direct = WriteOptions { direct: true, ..WriteOptions::default() };
    client.data.write(&root(), handle, 20_000, &[2; 10_000], direct).expect("written");
    let durable = WriteOptions { sync: true, ..WriteOptions::default() };
    client.data.write(&root(), handle, 30_000, &[3; 10_000], durable).expect("written");
    assert_eq!(
        client.write_back.write_back_stats().dirty_bytes,
        0,
        "the window that they lie in was settled first"
    );
    let found = read(&client, handle, 0, 60_000);
    assert!(found[20_000..30_000] == [2; 10_000] && found[30_000..40_000] == [3; 10_000]);
    assert!(found[..20_000] == [1; 20_000] && found[40_000..] == [1; 20_000]);
}

#[test]
fn a_second_client_finds_everything_on_the_osts() {
    let world = World::new(MIB as u32, 2);
    let client = patient(&world);
    let (fid, handle) = create(&client, "file");
    let data = pattern(3 * MIB, 8);
    stream(&client, handle, &data, 20_000);
    let other = world.client();
    let theirs = open(&other, fid, OpenFlags::READ);
    assert!(read(&other, theirs, 0, data.len()) == data);
    write(&client, handle, 0, b"at once").expect("written");
    assert_eq!(
        client.write_back.write_back_stats().buffer_bytes,
        0,
        "nothing is held back while there are two"
    );
    assert_eq!(read(&other, theirs, 0, 7), b"at once");
}
