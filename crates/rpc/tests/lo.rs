//! Object targets in the process of their client.

#[path = "support/services.rs"]
mod services;

use nacre_rpc::{ClientCallbacks, LoOss, OssEndpoint, OssEvents, Recovery};
use nacre_types::{Status, StatusResult};
use nacre_wire::mds::LeaseGrant;
use nacre_wire::oss::{Bulk, OssReply, OssRequest};
use services::*;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, Weak};

fn run(oss: &dyn OssEndpoint, request: &OssRequest) -> StatusResult<OssReply> {
    oss.call(request, Bulk::Send(b"data"))
}

const WRITTEN: StatusResult<OssReply> = Ok(OssReply::written(4));

#[test]
fn an_evicted_client_writes_nothing_of_its_former_life() {
    let oss = Arc::new(FakeOss::default());
    let events = Arc::new(Events::default());
    let client = identity(1).client;
    let endpoint = LoOss::with_events(oss.clone(), client, events.clone()).expect("endpoint");
    oss.export_of(client).callbacks.lock_message(message(5));
    assert_eq!(numbers(&events), [5]);
    assert_eq!(run(&endpoint, &write_of_life(2, 1)), WRITTEN);
    oss.evict(client);
    assert_eq!(run(&endpoint, &write_of_life(2, 1)), Err(Status::EVICTED));
    assert_eq!(run(&endpoint, &write_of_life(2, 1)), Err(Status::EVICTED));
    assert_eq!(run(&endpoint, &write_of_life(2, 3)), Err(Status::EVICTED));
    assert_eq!(endpoint.incarnation(), 2);
    assert_eq!(run(&endpoint, &write_of_life(2, 2)), WRITTEN);
    oss.evict(client);
    assert_eq!(run(&endpoint, &write_of_life(2, 0)), WRITTEN);
    assert_eq!(endpoint.incarnation(), 3);
    assert_eq!(*events.recoveries.lock().unwrap(), [Recovery::Evicted; 2]);
    drop(endpoint);
    assert!(oss.exports.lock().unwrap().is_empty());
}

#[test]
fn threads_that_meet_an_eviction_together_recover_once() {
    let oss = Arc::new(FakeOss::default());
    let events = Arc::new(Events::default());
    let client = identity(1).client;
    let endpoint = LoOss::with_events(oss.clone(), client, events.clone()).expect("endpoint");
    nacre_env::thread::scope(|scope| {
        let closed = oss.write_gate.close();
        let writers: Vec<_> = (0..8)
            .map(|number| {
                let endpoint = &endpoint;
                scope.spawn(move || {
                    (number % 2, run(endpoint, &write_of_life(1 + 2 * number as u32, number % 2)))
                })
            })
            .collect();
        eventually("all are there", || oss.write_gate.waiting.load(Ordering::SeqCst) == 8);
        oss.evict(client);
        drop(closed);
        for writer in writers {
            let (incarnation, result) = writer.join().expect("writer");
            assert_eq!(result, if incarnation == 0 { WRITTEN } else { Err(Status::EVICTED) });
        }
    });
    assert_eq!(*events.recoveries.lock().unwrap(), [Recovery::Evicted]);
    assert_eq!(oss.objects.lock().unwrap().len(), 4);
    assert_eq!(oss.connects.load(Ordering::SeqCst), 2);
}

/// Fails at first, then uses both the endpoint that it is passed and the one that all callers use.
#[derive(Default)]
struct Thorough {
    endpoint: OnceLock<Weak<LoOss>>,
    calls: AtomicU64,
    told: Mutex<Vec<u64>>,
}

impl ClientCallbacks for Thorough {
    fn lease_changed(&self, _: LeaseGrant) {}
}

impl OssEvents for Thorough {
    fn reconnected(&self, endpoint: &dyn OssEndpoint, _: Recovery) -> StatusResult<()> {
        self.told.lock().unwrap().push(endpoint.incarnation());
        if self.calls.fetch_add(1, Ordering::SeqCst) == 0 {
            return Err(Status::EIO);
        }
        let usual = self.endpoint.get().and_then(Weak::upgrade).expect("it is in use");
        for endpoint in [endpoint, usual.as_ref()] {
            assert_eq!(run(endpoint, &write_of_life(2, endpoint.incarnation())), WRITTEN);
            assert_eq!(run(endpoint, &write_of_life(2, 1)), Err(Status::EVICTED));
        }
        Ok(())
    }
}

#[test]
fn a_recovery_that_fails_is_tried_again_in_a_new_life() {
    let oss = Arc::new(FakeOss::default());
    let events = Arc::new(Thorough::default());
    let client = identity(1).client;
    let endpoint = Arc::new(LoOss::with_events(oss.clone(), client, events.clone()).expect("endpoint"));
    events.endpoint.set(Arc::downgrade(&endpoint)).expect("once");
    oss.evict(client);
    assert_eq!(run(endpoint.as_ref(), &write_of_life(2, 0)), WRITTEN);
    assert_eq!(*events.told.lock().unwrap(), [2, 3]);
    assert_eq!(endpoint.incarnation(), 3);
    assert_eq!(run(endpoint.as_ref(), &write_of_life(2, 2)), Err(Status::EVICTED));
    assert_eq!(run(endpoint.as_ref(), &write_of_life(2, 3)), WRITTEN);
    assert_eq!(oss.exports.lock().unwrap().len(), 1);
}

#[test]
fn a_target_out_of_use_can_be_asked_without_taking_it_into_use() {
    let oss = Arc::new(FakeOss::default());
    let endpoint = LoOss::connect(oss, identity(1).client, Arc::new(Events::default())).expect("endpoint");
    endpoint.set_active(false).expect("set");
    assert_eq!(endpoint.call(&OssRequest::Ping, Bulk::None), Err(Status::EIO));
    assert!(endpoint.call_out_of_use(&OssRequest::Ping).is_ok());
    assert_eq!(endpoint.call(&OssRequest::Ping, Bulk::None), Err(Status::EIO));
}
