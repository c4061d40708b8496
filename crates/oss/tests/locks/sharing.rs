//! Clients that share an object.

use crate::support::*;
use nacre_lock::{Extent, Mode, Need, Outcome, ResourceId};
use nacre_rpc::OssService;
use nacre_types::{Fid, Status};
use nacre_wire::lock::{IoLock, LockMessage, LockRequest};
use nacre_wire::oss::{Bulk, Charge, FallocateKind, OssReply, OssRequest, SeekKind};

const ONE: [u8; PAGE as usize] = [1; PAGE as usize];

fn size_at(grant: nacre_lock::LockGrant) -> u64 {
    grant.lvb.expect("objects have sizes").size_bytes
}

#[test]
fn what_a_client_holds_it_writes_and_reads_and_others_learn_the_size_with_their_grant() {
    let target = Target::new();
    let (writer, reader) = (target.client(1), target.client(2));
    assert_eq!(size_at(writer.lock(1, Mode::Pw, pages(0, 4))), 0);
    writer.write(1, &ONE[..100], IoLock::Held).unwrap();
    assert_eq!(writer.read(1, IoLock::Held).unwrap(), ONE[..100]);
    assert_eq!(size_at(reader.lock(1, Mode::Pr, pages(8, 1))), PAGE + 100);
    writer.write(0, &ONE, IoLock::Held).unwrap();
    assert_eq!(size_at(reader.lock(2, Mode::Pr, pages(8, 1))), PAGE + 100, "a write below the end");
    reader.cancel(1);
    reader.cancel(2);
    writer.lock(2, Mode::Pw, Extent { start: 0x1000_0000, last: Extent::EOF });
    writer.truncate(0x1000_0000, IoLock::Held).unwrap();
    assert_eq!(size_at(reader.lock(3, Mode::Pr, pages(8, 1))), 0x1000_0000);
}

#[test]
fn what_a_client_does_not_hold_is_refused() {
    let target = Target::new();
    let (first, second) = (target.client(1), target.client(2));
    let zero = |client: &Client, offset, len| {
        let (object, kind, lock) = (object(), FallocateKind::Zero, IoLock::Held);
        client.call(
            OssRequest::Fallocate { object, kind, offset, len, lock, written: false, charge: Charge::ROOT },
            Bulk::None,
        )
    };
    first.lock(1, Mode::Pr, pages(0, 4));
    assert_eq!(first.write(1, &ONE, IoLock::Held), Err(Status::EIO), "held to read");
    assert!(first.read(1, IoLock::Held).is_ok());
    assert_eq!(first.read(4, IoLock::Held), Err(Status::EIO));
    assert_eq!(second.read(1, IoLock::Held), Err(Status::EIO));
    second.lock(1, Mode::Pw, pages(6, 2));
    assert!(zero(&second, 6 * PAGE + 5, PAGE).is_ok());
    assert_eq!(zero(&second, 6 * PAGE + 5, 2 * PAGE), Err(Status::EIO));
    assert_eq!(second.truncate(7 * PAGE, IoLock::Held), Err(Status::EIO), "not held to the end");
    second.cancel(1);
    assert_eq!(second.write(6, &ONE, IoLock::Held), Err(Status::EIO), "given up");
}

#[test]
pub fn a_write_that_the_target_locks_calls_the_reader_back_and_waits_for_its_cancel() {
    let target = Target::new();
    let (reader, writer) = (target.client(1), target.client(2));
    reader.lock(1, Mode::Pr, pages(0, 1));
    reader.lock(2, Mode::Pr, pages(1, 1));
    nacre_env::thread::scope(|scope| {
        let write = scope.spawn(|| writer.write(0, &ONE, IoLock::Server));
        reader.next_is_blocking(1);
        assert!(!write.is_finished());
        assert_eq!(reader.read(0, IoLock::Held).unwrap(), [], "nothing is written yet");
        reader.cancel(1);
        assert_eq!(write.join().unwrap(), Ok(OssReply::written(PAGE as u32)));
    });
    assert_eq!(reader.pending(), 0, "the other page was not asked for");
    assert_eq!(target.server.locks().lock_count(), 1);
    assert_eq!(reader.read(0, IoLock::Server).unwrap(), ONE);
}

#[test]
fn a_flush_that_the_target_locks_is_not_held_up_by_the_request_that_waits_for_it() {
    let target = Target::new();
    let (writer, reader) = (target.client(1), target.client(2));
    writer.lock(1, Mode::Pw, pages(0, 8));
    assert_eq!(reader.enqueue(1, Mode::Pr, pages(2, 1)), Ok(OssReply::Locked(Outcome::Waiting)));
    writer.next_is_blocking(1);
    writer.write(2, &ONE, IoLock::Server).unwrap();
    writer.write(3, &ONE, IoLock::Held).unwrap();
    writer.cancel(1);
    let LockMessage::Completion { outcome: Outcome::Granted(grant), .. } = reader.next() else {
        panic!("it is free")
    };
    assert_eq!(size_at(grant), 4 * PAGE);
    assert_eq!(reader.read(2, IoLock::Held).unwrap(), ONE);
}

#[test]
pub fn a_truncate_calls_back_only_what_it_cuts() {
    let target = Target::new();
    let (reader, cutter) = (target.client(1), target.client(2));
    cutter.write(9, &ONE, IoLock::Lease).unwrap();
    reader.lock(1, Mode::Pr, pages(0, 2));
    reader.lock(2, Mode::Pr, pages(4, 2));
    nacre_env::thread::scope(|scope| {
        let cut = scope.spawn(|| cutter.truncate(3 * PAGE, IoLock::Server));
        reader.next_is_blocking(2);
        reader.cancel(2);
        assert!(matches!(cut.join().unwrap(), Ok(OssReply::Attr(attr)) if attr.size == 3 * PAGE));
    });
    assert_eq!(reader.pending(), 0);
    assert_eq!(size_at(reader.lock(3, Mode::Pr, pages(0, 1))), 3 * PAGE);
}

#[test]
fn looking_for_data_waits_for_who_writes_behind() {
    let target = Target::new();
    let (writer, seeker) = (target.client(1), target.client(2));
    writer.lock(1, Mode::Pw, pages(5, 1));
    nacre_env::thread::scope(|scope| {
        let seek = scope.spawn(|| {
            let (object, kind, lock) = (object(), SeekKind::Data, IoLock::Server);
            seeker.call(OssRequest::Seek { object, offset: 0, kind, lock, written: false }, Bulk::None)
        });
        writer.next_is_blocking(1);
        writer.write(5, &ONE, IoLock::Held).unwrap();
        writer.cancel(1);
        assert_eq!(seek.join().unwrap(), Ok(OssReply::Position(5 * PAGE)));
    });
}

#[test]
pub fn a_glimpse_sees_what_a_writer_has_not_written_out_yet() {
    let target = Target::new();
    let (writer, looker) = (target.client(1), target.client(2));
    writer.lock(1, Mode::Pw, Extent::WHOLE);
    writer.write(0, &ONE, IoLock::Held).unwrap();
    nacre_env::thread::scope(|scope| {
        let look = scope.spawn(|| looker.attr(true));
        writer.answer_glimpse(70_000);
        let attr = look.join().unwrap().unwrap();
        assert_eq!(attr.size, 70_000);
        assert!(attr.mtime.is_some() && attr.blocks > 0);
    });
    assert_eq!(looker.attr(false).unwrap().size, PAGE);
    assert_eq!(writer.attr(true).unwrap().size, PAGE, "it knows what it has");
    assert!(writer.write(1, &ONE, IoLock::Held).is_ok(), "it has kept its lock");
    writer.cancel(1);
    assert_eq!(looker.attr(true).unwrap().size, 2 * PAGE);
    let nothing = OssRequest::GetAttr { object: Fid::ost_object(3, 99), glimpse: true };
    assert_eq!(looker.call(nothing, Bulk::None), Ok(OssReply::Attr(Default::default())));
}

#[test]
fn nothing_of_a_client_that_an_mdt_drops_counts_any_more() {
    let target = Target::new();
    let (dropped, other, mdt) = (target.client(1), target.client(2), target.client(3));
    dropped.lock(1, Mode::Pw, Extent::WHOLE);
    dropped.write(0, &ONE, IoLock::Held).unwrap();
    let want = 8 << 20;
    let granted = dropped.call(OssRequest::Grant { client: 77, held: 0, want }, Bulk::None);
    assert!(matches!(granted, Ok(OssReply::Granted(bytes)) if bytes > 0));
    assert_eq!(other.enqueue(1, Mode::Pw, pages(0, 1)), Ok(OssReply::Locked(Outcome::Waiting)));
    let client = dropped.export.client;
    assert_eq!(mdt.call(OssRequest::Evict { client }, Bulk::None), Ok(OssReply::Done));
    assert!(matches!(other.next(), LockMessage::Completion { outcome: Outcome::Granted(_), .. }));
    assert_eq!(target.server.granted_bytes(), 0);
    for lock in [IoLock::Lease, IoLock::Held, IoLock::Server] {
        assert_eq!(dropped.write(0, &ONE, lock), Err(Status::EVICTED));
        assert_eq!(dropped.read(0, lock), Err(Status::EVICTED));
    }
    assert_eq!(dropped.attr(false), Err(Status::EVICTED));
    assert_eq!(dropped.enqueue(2, Mode::Pr, pages(0, 1)), Err(Status::EVICTED));
    assert_eq!(mdt.call(OssRequest::Evict { client }, Bulk::None), Ok(OssReply::Done), "told twice");
    let back = target.client(1);
    assert!(back.write(5, &ONE, IoLock::Lease).is_ok());
}

#[test]
fn locks_on_what_is_no_object_of_this_target_are_refused() {
    let target = Target::new();
    let client = target.client(1);
    let ask = |resource| {
        let need = Need::extent(Mode::Pr, Extent::WHOLE);
        let handle = nacre_lock::LockHandle(1);
        client.locks(LockRequest::Replay { handle, resource, need })
    };
    assert_eq!(ask(ResourceId([0, 0, 0, 0])), Err(Status::EINVAL));
    let name = ResourceId::of_fid(&object()).with_name_hash(5);
    assert_eq!(ask(name), Err(Status::EINVAL));
    assert_eq!(ask(ResourceId::of_fid(&Fid::ost_object(4, 1))), Err(Status::WRONG_TARGET));
    assert_eq!(target.server.locks().resource_count(), 0);
}

#[test]
fn a_client_that_leaves_lets_others_in() {
    let target = Target::new();
    let (leaves, stays) = (target.client(1), target.client(2));
    leaves.lock(1, Mode::Pw, Extent::WHOLE);
    assert_eq!(stays.enqueue(1, Mode::Pr, pages(0, 1)), Ok(OssReply::Locked(Outcome::Waiting)));
    target.server.disconnect(&leaves.export);
    assert!(matches!(stays.next(), LockMessage::Completion { outcome: Outcome::Granted(_), .. }));
}

#[test]
pub fn a_target_that_stops_does_not_wait_for_those_who_wait_for_locks() {
    let target = Target::new();
    let (holder, waiter) = (target.client(1), target.client(2));
    holder.lock(1, Mode::Pw, Extent::WHOLE);
    nacre_env::thread::scope(|scope| {
        let read = scope.spawn(|| waiter.read(0, IoLock::Server));
        holder.next_is_blocking(1);
        target.server.stop(std::time::Duration::from_secs(30)).unwrap();
        assert_eq!(read.join().unwrap(), Err(Status::ESHUTDOWN));
    });
}
