//! Files that begin on the MDT if their first data is small.

use super::*;
use nacre_types::{SetAttr, SetAttrValid, Status};
use std::sync::atomic::Ordering::Relaxed;

const KIB: u64 = 1 << 10;

/// Returns whether a file has a head according to the MDT, and how often the MDT was asked for objects.
fn told(world: &World, fid: Fid) -> (bool, u64) {
    let layout = world.mds.layout(fid).expect("it has objects");
    (layout.object_on_mdt().is_some(), world.mds.intents.load(Relaxed))
}

fn data_objects(world: &World) -> Vec<Fid> {
    world.data.as_ref().expect("there").names()
}

fn pieces(world: &World, count: u64) -> (Arc<Client>, Fid, u64, Vec<u8>) {
    let client = world.client();
    let (fid, handle) = create(&client, "f");
    let bytes: Vec<u8> = (0..count * 4 * KIB).map(|at| (at / 100 % 250) as u8 + 1).collect();
    for (piece, at) in bytes.chunks(4 << 10).zip((0..).step_by(4 << 10)) {
        assert_eq!(write(&client, handle, at, piece), Ok(piece.len()));
    }
    (client, fid, handle, bytes)
}

#[test]
fn a_small_file_goes_with_its_close_and_asks_for_nothing() {
    let world = World::with_heads(65536, 2);
    let (client, fid, handle, bytes) = pieces(&world, 8);
    assert_eq!((world.mds.intents.load(Relaxed), data_objects(&world)), (0, vec![]), "it is held back");
    assert!(read(&client, handle, 0, 100_000) == bytes);
    client.opens.release(handle).expect("open");
    assert_eq!((told(&world, fid), data_objects(&world)), ((true, 0), vec![fid]));
    assert!(world.osts.iter().all(|ost| ost.names().is_empty()));
    assert_eq!(client.inodes.getattr(fid).expect("there").size, bytes.len() as u64);
    let handle = open(&client, fid, OpenFlags::READ);
    assert!(read(&client, handle, 0, 100_000) == bytes);
}

#[test]
fn a_file_that_grows_before_anything_is_stored_has_no_head() {
    let world = World::with_heads(65536, 2);
    let (client, fid, handle, bytes) = pieces(&world, 9);
    assert_eq!((told(&world, fid), data_objects(&world)), ((false, 1), vec![]));
    assert!(read(&client, handle, 0, 100_000) == bytes);
    client.opens.release(handle).expect("open");
    assert!(read(&client, open(&client, fid, OpenFlags::READ), 0, 100_000) == bytes);
    assert_eq!(told(&world, fid), (false, 1), "nobody asks twice");
}

#[test]
fn what_is_written_at_once_or_cut_to_a_size_decides_by_its_end() {
    let world = World::with_heads(65536, 1);
    let client = world.client();
    let made = |name: &str, act: &dyn Fn(Fid, u64)| {
        let (fid, handle) = create(&client, name);
        act(fid, handle);
        client.opens.release(handle).expect("open");
        world.mds.layout(fid).expect("objects").object_on_mdt().is_some()
    };
    let wrote = |at: u64, len: usize| {
        move |handle: u64, client: &Client| assert_eq!(write(client, handle, at, &vec![7; len]), Ok(len))
    };
    let cut = |fid, size| {
        let valid = SetAttrValid::SIZE | SetAttrValid::OPEN_FOR_WRITE;
        client.names.setattr(&root(), fid, SetAttr { valid, size, ..SetAttr::default() }).expect("cut");
    };
    assert!(made("at once", &|_, handle| wrote(0, 32 << 10)(handle, &client)));
    assert!(!made("too much", &|_, handle| wrote(0, (32 << 10) + 1)(handle, &client)));
    assert!(!made("behind", &|_, handle| wrote(100 * KIB, 1)(handle, &client)));
    assert!(made("cut", &|fid, _| cut(fid, 10 * KIB)));
    assert!(!made("cut beyond", &|fid, _| cut(fid, 100 * KIB)));
    assert!(!made("written and cut beyond", &|fid, handle| {
        wrote(0, 100)(handle, &client);
        cut(fid, 100 * KIB);
        assert!(read(&client, handle, 0, 200)[..100] == [7; 100]);
    }));
    assert!(made("appended", &|_, handle| {
        assert_eq!(append(&client, handle, &[1; 1000]), Ok(1000));
        assert_eq!(append(&client, handle, &[2; 1000]), Ok(1000));
    }));
}

#[test]
fn the_first_stored_byte_decides_also_for_what_grows_later() {
    let world = World::with_heads(65536, 1);
    let (client, fid, handle, mut bytes) = pieces(&world, 1);
    client.data.fsync(handle).expect("synced");
    assert_eq!((told(&world, fid), data_objects(&world)), ((true, 1), vec![fid]));
    bytes.extend(vec![9; 200_000]);
    assert_eq!(write(&client, handle, 4 * KIB, &[9; 200_000]), Ok(200_000));
    assert_eq!(told(&world, fid), (true, 2));
    client.opens.release(handle).expect("open");
    assert!(read(&client, open(&client, fid, OpenFlags::READ), 0, 300_000) == bytes);
}

#[test]
fn somebody_who_comes_finds_what_was_held_back() {
    let world = World::with_heads(65536, 1);
    let (client, fid, handle, bytes) = pieces(&world, 2);
    let other = world.client();
    assert_eq!((told(&world, fid).0, data_objects(&world)), (true, vec![fid]));
    let theirs = open(&other, fid, READ_WRITE);
    assert!(read(&other, theirs, 0, 100_000) == bytes);
    assert_eq!(write(&other, theirs, 100_000, b"end"), Ok(3));
    assert!(read(&client, handle, 100_000, 10) == b"end");
    client.opens.release(handle).expect("open");
}

#[test]
fn a_close_that_may_not_bring_data_is_as_any_other() {
    let world = World::with_heads(65536, 1);
    world.mds.refuses_data.store(true, Relaxed);
    let (client, fid, handle, bytes) = pieces(&world, 2);
    client.opens.release(handle).expect("open");
    assert_eq!((told(&world, fid), data_objects(&world)), ((true, 1), vec![fid]));
    assert_eq!(client.inodes.getattr(fid).expect("there").size, bytes.len() as u64);
    assert!(read(&client, open(&client, fid, OpenFlags::READ), 0, 100_000) == bytes);
}

#[test]
fn data_that_finds_no_room_on_its_way_elsewhere_is_an_error_of_the_write_that_sent_it() {
    let world = World::with_heads(65536, 1);
    let (client, _, handle, _) = pieces(&world, 8);
    *world.osts[0].fail_write.lock().expect("no panic") = Some(Status::EIO);
    assert_eq!(write(&client, handle, 32 * KIB, &[1; 4096]), Err(Status::EIO));
    assert_eq!(
        client.data.fsync(handle),
        Err(Status::EIO),
        "and is told once more, as it was answered before"
    );
    assert_eq!(client.data.fsync(handle), Ok(()));
    client.opens.release(handle).expect("open");
}

#[test]
fn without_room_to_hold_data_back_the_first_write_asks() {
    let world = World::with_heads(65536, 1);
    world.data.as_ref().expect("there").ungranted.store(u64::MAX, Relaxed);
    let (client, fid, handle, bytes) = pieces(&world, 1);
    assert_eq!((told(&world, fid), data_objects(&world)), ((true, 1), vec![fid]));
    assert!(read(&client, handle, 0, 100_000) == bytes);
    client.opens.release(handle).expect("open");
}
