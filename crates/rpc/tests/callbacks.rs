//! Messages that servers send to clients unasked.

#[path = "support/proxy.rs"]
mod proxy;
#[path = "support/services.rs"]
mod services;

use nacre_rpc::tcp::TcpMds;
use nacre_rpc::{Export, MdsEndpoint, ServerConfig};
use nacre_wire::mds::LeaseGrant;
use proxy::{Harm, Proxy, Way};
use services::*;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Repeats a message until it arrives, as services do.
fn tell_until_heard(export: &Export, events: &Events, number: u64) {
    eventually("the message arrives", || {
        export.callbacks.lock_message(message(number));
        numbers(events).contains(&number)
    });
}

#[test]
fn a_metadata_client_hears_of_locks_and_leases_in_order() {
    let services = Services::default();
    let server = services.serve(any_port(), ServerConfig::default());
    let proxy = Proxy::start(server.addrs()[0]);
    let events = Arc::new(Events::default());
    let (mds, _) =
        TcpMds::connect(0, &[nid(proxy.addr)], &identity(1), &quick(), events.clone()).expect("connect");
    let export = services.mds.exports.lock().unwrap()[&identity(1).client].clone();
    tell_until_heard(&export, &events, 0);
    // More than a socket takes at once: a burst must not disconnect the client.
    for number in 1..20_000 {
        export.callbacks.lock_message(message(number));
    }
    let grant = LeaseGrant { exclusive: false, epoch: 9 };
    export.callbacks.lease_changed(grant);
    eventually("the last one", || events.grants.lock().unwrap().contains(&grant));
    let mut heard = numbers(&events);
    heard.dedup();
    assert!(heard.into_iter().eq(0..20_000), "each once, in order");
    assert_eq!(events.losses.load(Ordering::SeqCst), 0);
    // A message lost with its connection arrives when it is repeated, and the client learns of the lost
    // connection.
    proxy.plan(Way::ToClient, 10, Harm::Cut, false);
    export.callbacks.lock_message(message(30_000));
    eventually("the connection is lost", || proxy.happened() == 1);
    assert!(!numbers(&events).contains(&30_000));
    tell_until_heard(&export, &events, 30_000);
    assert_eq!(events.losses.load(Ordering::SeqCst), 1);
    drop(mds);
    assert_eq!(events.losses.load(Ordering::SeqCst), 1, "who leaves wants to hear nothing");
}

#[test]
fn a_client_knows_how_far_the_clock_of_its_server_is_ahead() {
    let services = Services::default();
    let server = services.serve(any_port(), ServerConfig::default());
    let events = Arc::new(Events::default());
    let (mds, _) =
        TcpMds::connect(0, &[nid(server.addrs()[0])], &identity(1), &quick(), events).expect("connect");
    let mut clock = None;
    eventually("a ping is answered", || {
        clock = mds.import().and_then(|import| import.clock);
        clock.is_some()
    });
    let clock = clock.expect("measured");
    // Both have the same clock.
    assert!(clock.ahead_us.unsigned_abs() <= clock.within_us + 2, "{clock:?}");
}
