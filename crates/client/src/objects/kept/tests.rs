//! Kept changes of a client at an OST that can lose them.

use super::*;
use nacre_rpc::Tunable;
use std::sync::atomic::{AtomicU64, Ordering};

/// An OST that numbers changes.
#[derive(Default)]
struct Ost {
    host_epoch: AtomicU64,
    numbers: AtomicU64,
    committed: AtomicU64,
    requests: Mutex<Vec<OssRequest>>,
    /// Answer to replays of the change with this number.
    refused: Mutex<Option<(u64, Status)>>,
    fails_to_sync: std::sync::atomic::AtomicBool,
    tunables: Arc<Tunables>,
}

fn new_ost() -> Ost {
    Ost { host_epoch: AtomicU64::new(7), ..Ost::default() }
}

impl OssEndpoint for Ost {
    fn call(&self, request: &OssRequest, bulk: Bulk<'_>) -> StatusResult<OssReply> {
        self.requests.lock().push(request.clone());
        let (lock, reply) = match (request, bulk) {
            (OssRequest::Write { lock, .. }, Bulk::Send(data)) => {
                (*lock, OssReply::written(data.len() as u32))
            }
            (OssRequest::Truncate { lock, .. }, _) => (*lock, OssReply::Attr(Default::default())),
            (OssRequest::Sync { .. }, _) if self.fails_to_sync.load(Ordering::Relaxed) => {
                return Err(Status::EIO);
            }
            _ => return Ok(OssReply::Done),
        };
        if let IoLock::Replay(number) = lock {
            let refused = *self.refused.lock();
            return match refused.filter(|(refused, _)| *refused == number.0) {
                Some((_, status)) => Err(status),
                None => Ok(reply),
            };
        }
        let number = self.numbers.fetch_add(1, Ordering::Relaxed) + 1;
        Ok(reply.logged(TransNo(number), TransNo(self.committed.load(Ordering::Relaxed))))
    }

    fn tunables(&self) -> Option<&Arc<Tunables>> {
        Some(&self.tunables)
    }

    fn durability_epoch(&self) -> u64 {
        self.host_epoch.load(Ordering::Relaxed)
    }
}

struct World {
    ost: Ost,
    kept: Kept,
}

fn world() -> World {
    World { ost: new_ost(), kept: Kept::new(Box::new(|| {})) }
}

fn object(oid: u32) -> Fid {
    Fid::ost_object(3, oid)
}

impl World {
    fn call(&self, request: &OssRequest, data: Option<&[u8]>) -> OssReply {
        Keeping { inner: &self.ost, kept: &self.kept }.call(request, data).expect("answered")
    }

    fn write(&self, oid: u32, data: &[u8]) {
        let reply = self.call(&OssRequest::plain_write(object(oid), 0), Some(data));
        assert_eq!(reply, OssReply::written(data.len() as u32), "the reply itself");
    }

    fn sync(&self, oid: Option<u32>) {
        self.call(&OssRequest::Sync { object: oid.map(object) }, None);
    }

    /// The host of the OST is booted.
    fn boot(&self) {
        self.ost.host_epoch.fetch_add(1, Ordering::Relaxed);
        self.ost.requests.lock().clear();
    }

    fn reconnect(&self) -> StatusResult<()> {
        self.kept.replay(3, &self.ost, Recovery::ServerRestarted)
    }

    fn replayed(&self) -> Vec<u64> {
        let number = |request: &OssRequest| match request {
            OssRequest::Write { lock: IoLock::Replay(number), .. }
            | OssRequest::Truncate { lock: IoLock::Replay(number), .. } => Some(number.0),
            _ => None,
        };
        self.ost.requests.lock().iter().filter_map(number).collect()
    }

    fn epoch(&self) -> u64 {
        self.kept.epoch(&self.ost)
    }
}

#[test]
fn what_is_not_durable_is_replayed_in_its_order_when_the_host_was_booted() {
    let world = world();
    let epoch = world.epoch();
    world.write(1, b"one");
    let cut = OssRequest::Truncate {
        object: object(1),
        size: 2,
        lock: IoLock::Held,
        written: false,
        charge: nacre_wire::oss::Charge::ROOT,
    };
    world.call(&cut, None);
    world.write(2, b"two");
    assert_eq!(world.reconnect(), Ok(()));
    assert_eq!(world.replayed(), [0; 0], "the process of the OST alone was started again");
    world.boot();
    assert_eq!(world.reconnect(), Ok(()));
    assert_eq!((world.replayed(), world.epoch()), (vec![1, 2, 3], epoch));
    assert_eq!(world.kept.count().0, 3, "nothing is durable yet");
    world.boot();
    assert_eq!(world.reconnect(), Ok(()));
    assert_eq!(world.replayed(), [1, 2, 3]);
}

#[test]
fn what_is_durable_is_forgotten() {
    let world = world();
    [1, 2, 1, 3].iter().for_each(|oid| world.write(*oid, b"data"));
    world.sync(Some(1));
    assert_eq!(world.kept.count().0, 2);
    world.ost.committed.store(2, Ordering::Relaxed);
    world.write(4, b"data");
    assert_eq!(world.kept.count().0, 2);
    let durably = OssRequest::Write {
        object: object(4),
        offset: 9,
        sync: true,
        granted: false,
        lock: IoLock::Held,
        incarnation: 0,
        written: false,
        charge: nacre_wire::oss::Charge::ROOT,
    };
    world.call(&durably, Some(b"data"));
    assert_eq!(world.kept.count().0, 1, "the one of object 3");
    world.sync(None);
    assert_eq!(world.kept.count(), (0, 0));
}

#[test]
fn a_loss_that_is_not_replayed_is_reported_once() {
    let world = world();
    let epoch = world.epoch();
    [1, 2, 3].iter().for_each(|oid| world.write(*oid, b"data"));
    world.boot();
    *world.ost.refused.lock() = Some((2, Status::ENOSPC));
    assert_eq!((world.epoch(), world.reconnect()), (epoch, Ok(())));
    assert_eq!((world.replayed(), world.kept.count().0), (vec![1, 2, 3], 2));
    let after = world.epoch();
    assert_ne!(after, epoch);
    world.boot();
    *world.ost.refused.lock() = Some((3, Status::ENOENT));
    assert_eq!(world.reconnect(), Ok(()));
    assert_eq!((world.epoch(), world.kept.count().0), (after, 1), "a destroyed object is no loss");
}

#[test]
fn a_replay_that_breaks_off_begins_again() {
    let world = world();
    let epoch = world.epoch();
    [1, 2, 3].iter().for_each(|oid| world.write(*oid, b"data"));
    world.boot();
    *world.ost.refused.lock() = Some((2, Status::ENOTCONN));
    assert_eq!(world.reconnect(), Err(Status::ENOTCONN));
    *world.ost.refused.lock() = None;
    assert_eq!(world.reconnect(), Ok(()));
    assert_eq!((world.replayed(), world.epoch()), (vec![1, 2, 1, 2, 3], epoch));
}

#[test]
fn a_writer_has_changes_made_durable_when_there_are_too_many() {
    let world = world();
    let epoch = world.epoch();
    world.ost.tunables.set(Tunable::MaxKeptMb, 1).expect("in range");
    let data = vec![1; 600 << 10];
    world.write(1, &data);
    world.write(2, &data);
    assert_eq!(world.kept.count(), (0, 0));
    world.ost.fails_to_sync.store(true, Ordering::Relaxed);
    [1, 2, 3].iter().for_each(|oid| world.write(*oid, &data));
    assert_eq!(world.kept.count().0, 1);
    world.boot();
    assert_eq!(world.reconnect(), Ok(()));
    assert_eq!(world.replayed(), [5]);
    assert_ne!(world.epoch(), epoch, "two were let go");
}

#[test]
fn without_the_parameter_and_after_an_eviction_losses_are_reported_as_such() {
    let off = world();
    let epoch = off.epoch();
    off.ost.tunables.set(Tunable::MaxKeptMb, 0).expect("in range");
    off.write(1, b"data");
    assert_eq!(off.kept.count().0, 0);
    off.boot();
    assert_eq!(off.reconnect(), Ok(()));
    assert_ne!(off.epoch(), epoch);

    let evicted = world();
    let epoch = evicted.epoch();
    evicted.write(1, b"data");
    assert_eq!(evicted.kept.replay(3, &evicted.ost, Recovery::Evicted), Ok(()));
    assert_eq!((evicted.epoch(), evicted.kept.count().0), (epoch, 0), "the OST has it still");
    evicted.boot();
    assert_eq!(evicted.reconnect(), Ok(()));
    assert_ne!(evicted.epoch(), epoch);
}

#[test]
fn a_change_whose_reply_arrives_after_the_replay_is_sent_again() {
    let world = world();
    let request = OssRequest::plain_write(object(1), 0);
    let before = world.kept.before(&world.ost, &request).expect("a change");
    let old = world.ost.call(&request, Bulk::Send(b"data")).expect("answered");
    world.boot();
    assert_eq!(world.reconnect(), Ok(()));
    let keeping = Keeping { inner: &world.ost, kept: &world.kept };
    let reply = keeping.finish(before, &request, Some(b"data"), old);
    assert_eq!(reply, Ok(OssReply::written(4)));
    assert_eq!((world.ost.requests.lock().len(), world.kept.count().0), (1, 1));
    assert_eq!(world.ost.numbers.load(Ordering::Relaxed), 2);
}
