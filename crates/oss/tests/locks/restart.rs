//! Locks over a restart of the target.

use crate::support::*;
use nacre_lock::{Mode, Outcome, Refusal};
use nacre_rpc::OssService;
use nacre_types::ProcessIdentity;
use nacre_wire::lock::{IoLock, LockMessage, LockRequest};
use nacre_wire::oss::{Bulk, OssReply, OssRequest};

const ONE: [u8; PAGE as usize] = [1; PAGE as usize];

fn is_granted(reply: &OssReply) -> bool {
    matches!(reply, OssReply::Locked(Outcome::Granted(_)))
}

#[test]
pub fn a_client_that_had_locks_brings_them_back_before_others_get_any() {
    let target = Target::new();
    target.client(1).lock(7, Mode::Pw, pages(0, 4));
    target.client(2);
    let target = target.restart();
    assert!(target.server.locks().is_recovering());
    let (holder, other) = (target.client(1), target.client(2));
    nacre_env::thread::scope(|scope| {
        let read = scope.spawn(|| other.read(1, IoLock::Server));
        assert!(is_granted(&holder.replay(7, Mode::Pw, pages(0, 4)).unwrap()));
        // The holder may write back before all clients have replayed their locks.
        holder.write(1, &ONE, IoLock::Held).unwrap();
        assert!(!read.is_finished());
        assert_eq!(holder.locks(LockRequest::ReplayDone), Ok(OssReply::Done));
        holder.next_is_blocking(7);
        holder.cancel(7);
        assert_eq!(read.join().unwrap().unwrap(), ONE);
    });
}

#[test]
fn nobody_is_waited_for_who_left_was_dropped_or_never_had_a_lock() {
    let target = Target::new();
    let (left, dropped, idle) = (target.client(1), target.client(2), target.client(3));
    left.lock(1, Mode::Pr, pages(0, 1));
    dropped.lock(1, Mode::Pr, pages(0, 1));
    idle.write(5, &ONE, IoLock::Server).unwrap();
    target.server.disconnect(&left.export);
    let client = dropped.export.client;
    idle.call(OssRequest::Evict { client }, Bulk::None).unwrap();
    drop((left, dropped, idle));
    let target = target.restart();
    assert!(!target.server.locks().is_recovering());
    let dropped = target.client(2);
    let refused = OssReply::Locked(Outcome::Refused(Refusal::ReplayRefused));
    assert_eq!(dropped.replay(1, Mode::Pr, pages(0, 1)), Ok(refused), "others have been there since");
}

#[test]
fn nobody_is_waited_for_whose_process_has_ended() {
    let target = Target::new();
    let gone = ProcessIdentity { pid: i32::MAX as u32, ..nacre_env::own_process() };
    target.client_of(1, Some(gone)).lock(1, Mode::Pw, pages(0, 1));
    let target = target.restart();
    until("it is given up", || !target.server.locks().is_recovering());
    target.client(2).lock(1, Mode::Pw, pages(0, 1));
    let target = target.restart();
    assert!(target.server.locks().is_recovering(), "the second one is awaited now");
    let other = target.client(2);
    assert!(is_granted(&other.replay(1, Mode::Pw, pages(0, 1)).unwrap()));
    assert_eq!(other.locks(LockRequest::ReplayDone), Ok(OssReply::Done));
    assert!(!target.server.locks().is_recovering(), "the first one is not remembered");
}

#[test]
fn a_client_that_says_goodbye_instead_of_coming_back_ends_the_recovery() {
    let target = Target::new();
    target.client(1).lock(1, Mode::Pw, pages(0, 1));
    let target = target.restart();
    let (back, other) = (target.client(1), target.client(2));
    assert_eq!(other.enqueue(1, Mode::Pw, pages(0, 1)), Ok(OssReply::Locked(Outcome::Waiting)));
    target.server.disconnect(&back.export);
    assert!(matches!(other.next(), LockMessage::Completion { outcome: Outcome::Granted(_), .. }));
}
