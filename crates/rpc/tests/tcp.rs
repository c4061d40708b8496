//! Endpoints and servers over real sockets on the loopback interface.

#[path = "support/services.rs"]
mod services;

use nacre_rpc::tcp::{TcpMds, TcpMgs, TcpOss};
use nacre_rpc::{IoCall, MdsEndpoint, MgsEndpoint, OssEndpoint, ServerConfig, run_all};
use nacre_types::{Cred, Fid, Status};
use nacre_wire::mds::{MdsReply, MdsRequest};
use nacre_wire::mgs::{MgsReply, MgsRequest};
use nacre_wire::oss::{Bulk, OssReply, OssRequest};
use services::*;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

fn read(oid: u32, len: usize) -> OssRequest {
    OssRequest::plain_read(Fid::new(9, oid, 0), 0, len as u32)
}

fn write(oid: u32) -> OssRequest {
    OssRequest::plain_write(Fid::new(9, oid, 0), 0)
}

#[test]
fn all_three_services_answer() {
    let services = Services::default();
    let server = services.serve(any_port(), ServerConfig::default());
    let nids = [nid(server.addrs()[0])];
    let (mds, grant) =
        TcpMds::connect(0, &nids, &identity(1), &quick(), Arc::new(Events::default())).expect("mds");
    assert!(grant.exclusive);
    let cred = Cred::new(1, 2);
    let reply = mds.call(&cred, &MdsRequest::GetXattr { fid: Fid::ROOT, name: b"user.x" }).expect("answer");
    assert_eq!(reply.reply, MdsReply::Bytes(b"user.x".to_vec()));
    assert_eq!(
        mds.call(&cred, &MdsRequest::Lookup { parent: Fid::ROOT, name: b"absent" }),
        Err(Status::ENOENT)
    );
    let mgs = TcpMgs::new(&nids, &identity(1), &quick()).expect("mgs");
    let request = MgsRequest::GetConfig { fsname: "nacre".into(), newer_than: 0, wait_ms: 0 };
    assert!(matches!(mgs.call(&request), Ok(MgsReply::Config { config, .. }) if config.version == 3));
    let oss = TcpOss::new(0, &nids, &identity(1), &quick()).expect("oss");
    assert_ne!(oss.durability_epoch(), 0);
    for len in [0, 1, 100, 16 << 10, 17 << 10, 1 << 20, 4 << 20] {
        let data = pattern(len, len as u8);
        assert_eq!(oss.call(&write(2), Bulk::Send(&data)), Ok(OssReply::written(len as u32)), "{len}");
        let mut back = vec![0xee; len + 3];
        assert_eq!(
            oss.call(&read(2, len), Bulk::Receive(&mut back)),
            Ok(OssReply::Read(len as u32)),
            "{len}"
        );
        assert!(back[..len] == data[..] && back[len..] == [0xee; 3], "{len}");
        services.oss.objects.lock().unwrap().clear();
    }
    drop((mds, mgs, oss));
    server.stop();
    assert_eq!(server.connection_count(), 0);
}

#[test]
fn many_requests_in_flight_put_their_data_into_the_right_buffers() {
    let services = Services::default();
    let server = services.serve(any_port(), ServerConfig::default());
    let oss = Arc::new(TcpOss::new(0, &[nid(server.addrs()[0])], &identity(1), &quick()).expect("oss"));
    const LEN: usize = 70_000;
    for oid in 0..64 {
        let data = pattern(LEN, oid as u8);
        assert_eq!(oss.call(&write(oid), Bulk::Send(&data)), Ok(OssReply::written(LEN as u32)));
    }
    let threads: Vec<_> = (0..2)
        .map(|_| {
            let oss = oss.clone();
            nacre_env::thread::spawn(move || {
                for _ in 0..20 {
                    let mut buffers: Vec<Vec<u8>> = (0..64).map(|_| vec![0; LEN]).collect();
                    let calls = buffers
                        .iter_mut()
                        .enumerate()
                        .map(|(oid, buffer)| IoCall {
                            endpoint: oss.as_ref(),
                            request: read(oid as u32, LEN),
                            bulk: Bulk::Receive(buffer),
                        })
                        .collect();
                    for result in run_all(calls) {
                        assert_eq!(result, Ok(OssReply::Read(LEN as u32)));
                    }
                    for (oid, buffer) in buffers.iter().enumerate() {
                        assert!(*buffer == pattern(LEN, oid as u8), "object {oid}");
                    }
                }
            })
        })
        .collect();
    for thread in threads {
        thread.join().expect("reader");
    }
    assert_eq!(oss.stats().in_flight, 0);
}

#[test]
fn a_waiting_request_does_not_hold_up_others_and_replies_come_out_of_order() {
    let services = Services::default();
    let server = services.serve(any_port(), ServerConfig::default());
    let oss = TcpOss::new(0, &[nid(server.addrs()[0])], &identity(1), &quick()).expect("oss");
    for oid in 0..8 {
        oss.call(&write(oid), Bulk::Send(&pattern(1000, oid as u8))).expect("write");
    }
    nacre_env::thread::scope(|scope| {
        let closed = services.oss.gate.close();
        let reader = scope.spawn(|| {
            let mut buffers: Vec<Vec<u8>> = (0..8).map(|_| vec![0; 1000]).collect();
            let calls = buffers
                .iter_mut()
                .enumerate()
                .map(|(oid, buffer)| IoCall {
                    endpoint: &oss,
                    request: read(oid as u32, 1000),
                    bulk: Bulk::Receive(buffer),
                })
                .collect();
            assert!(run_all(calls).iter().all(|result| *result == Ok(OssReply::Read(1000))));
            for (oid, buffer) in buffers.iter().enumerate() {
                assert!(*buffer == pattern(1000, oid as u8));
            }
        });
        eventually("four requests wait", || services.oss.gate.waiting.load(Ordering::SeqCst) == 4);
        let mut buffer = vec![0; 1000];
        assert_eq!(oss.call(&read(2, 1000), Bulk::Receive(&mut buffer)), Ok(OssReply::Read(1000)));
        drop(closed);
        reader.join().expect("reader");
    });
}

#[test]
fn a_second_client_brings_a_callback_and_leaving_disconnects() {
    let services = Services::default();
    let server = services.serve(any_port(), ServerConfig::default());
    let nids = [nid(server.addrs()[0])];
    let events = Arc::new(Events::default());
    let (first, _) = TcpMds::connect(0, &nids, &identity(1), &quick(), events.clone()).expect("first");
    let export = services.mds.exports.lock().unwrap()[&identity(1).client].clone();
    let grant = nacre_wire::mds::LeaseGrant { exclusive: false, epoch: 9 };
    export.callbacks.lease_changed(grant);
    eventually("the callback", || events.grants.lock().unwrap().contains(&grant));
    first.post(&Cred::system(), &create(b"posted"));
    first.disconnect(Duration::from_secs(5));
    assert_eq!(services.mds.created.lock().unwrap()[&b"posted"[..]], 1);
    assert_eq!(services.mds.disconnects.load(Ordering::SeqCst), 1);
    assert_eq!(first.call(&Cred::system(), &MdsRequest::Ping), Err(Status::ESHUTDOWN));
}
