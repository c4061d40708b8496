//! Clients that are given up, and what object servers hear of it.

use super::*;
use nacre_types::ProcessIdentity;

/// Whom an OST was told to drop.
fn evicted(ost: &FakeOst) -> Vec<ClientUuid> {
    let served = ost.served.lock();
    let evicted = |request: &OssRequest| match request {
        OssRequest::Evict { client } => Some(*client),
        _ => None,
    };
    served.iter().filter_map(evicted).collect()
}

fn ready(f: &Fixture) {
    for ost in &f.osts {
        let ids = |request: &OssRequest| matches!(request, OssRequest::Precreate { .. });
        eventually("ids in stock", || ost.served.lock().iter().any(ids));
    }
}

#[test]
fn osts_drop_a_client_before_another_gets_its_lease() {
    let f = Fixture::with_osts(2);
    f.mds.set_release_timeout(Duration::from_millis(100));
    assert_eq!(f.mds.release_timeout(), Duration::from_millis(100));
    let (second, _) = export(2, tcp_nid());
    assert_eq!(f.mds.connect(&second).map(|grant| grant.exclusive), Ok(true));
    for ost in &f.osts {
        assert_eq!(evicted(ost), [f.export.client]);
    }
    assert_eq!(f.run(&MdsRequest::Ping), Err(Status::EVICTED));
}

#[test]
fn an_ost_that_is_away_holds_others_up_for_a_while_and_hears_of_it_first() {
    let f = Fixture::with_osts(2);
    ready(&f);
    f.mds.set_release_timeout(Duration::from_millis(100));
    {
        let mut fail = f.osts[1].fail.lock();
        *fail = Some(Status::ETIMEDOUT);
        f.osts[1].served.lock().clear();
    }
    let began = Instant::now();
    let (second, _) = export(2, tcp_nid());
    assert_eq!(f.mds.connect(&second).map(|grant| grant.exclusive), Ok(true));
    let waited = began.elapsed();
    assert!(waited >= Duration::from_secs(5) && waited < Duration::from_secs(30), "{waited:?}");
    assert_eq!(evicted(&f.osts[0]), [f.export.client]);
    *f.osts[1].fail.lock() = None;
    eventually("the OST hears of it", || !f.osts[1].served.lock().is_empty());
    let first = f.osts[1].served.lock()[0].clone();
    assert_eq!(first, OssRequest::Evict { client: f.export.client });
}

#[test]
fn osts_hear_of_a_client_that_died_but_not_of_one_that_left() {
    let running = nacre_env::own_process();
    let ended = ProcessIdentity { started: running.started + 1, ..running };
    let f = Fixture::new();
    f.mds.disconnect(f.export.client);
    let dead = export_of(5, ended);
    f.mds.connect(&dead).expect("alone");
    f.mds.connect(&export_of(6, running)).expect("let in");
    eventually("the OST hears of it", || evicted(&f.osts[0]) == [dead.client]);
}
