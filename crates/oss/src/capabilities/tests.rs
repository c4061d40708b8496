//! Each request with each kind of capability, from clients and from other peers.

use super::*;
use crate::service::ObjectServer;
use nacre_lock::{Enqueue, EnqueueFlags, Extent, InodeBits, LockHandle, Mode, Need, Policy, ResourceId};
use nacre_rpc::{Call, NoCallbacks, OssService, ReadCall};
use nacre_store::object::{FileStore, FileStoreOptions};
use nacre_types::{ClientUuid, Cred, Fid, Identity, KeyId, Nid, Rights};
use nacre_wire::lock::{IoLock, LockRequest};
use nacre_wire::oss::{Advice, Bulk, Charge, FallocateKind, OssReply, SeekKind};
use std::time::SystemTime;

const OBJECT: Fid = Fid::ost_object(3, 1);
const OTHER: Fid = Fid::ost_object(3, 2);
const HOLDER: KeyId = KeyId(5);

struct World {
    server: ObjectServer,
    keys: Arc<CapabilityKeys>,
    _dir: tempfile::TempDir,
}

fn world() -> World {
    let dir = tempfile::tempdir().expect("a directory");
    let store = FileStore::open(&dir.path().join("ost"), FileStoreOptions::create()).expect("made");
    let server = ObjectServer::new(Arc::new(store), 3);
    let keys = Arc::new(CapabilityKeys::default());
    server.ask_for_capabilities(keys.clone());
    World { server, keys, _dir: dir }
}

fn export(roles: Option<Roles>) -> Arc<Export> {
    static CLIENTS: std::sync::atomic::AtomicU8 = std::sync::atomic::AtomicU8::new(1);
    let client = ClientUuid([CLIENTS.fetch_add(1, std::sync::atomic::Ordering::Relaxed); 16]);
    let identity = roles.map(|roles| Arc::new(Identity::new("nacre", HOLDER, roles, "test")));
    Arc::new(Export::new(client, Nid::Lo, None, Arc::new(NoCallbacks)).of_key(identity))
}

fn now_s() -> u64 {
    nacre_env::clock::wall().duration_since(SystemTime::UNIX_EPOCH).expect("after 1970").as_secs()
}

impl World {
    fn sign(&self, holder: KeyId, object: Fid, rights: Rights, expires_s: u64) -> Capability {
        let signer = self.keys.signer(holder, rights, expires_s, now_s()).expect("there are keys");
        signer.sign(&object)
    }

    fn run(
        &self,
        export: &Arc<Export>,
        request: &OssRequest,
        capability: Option<Capability>,
    ) -> StatusResult<OssReply> {
        let cred = Cred::system();
        let call = Call::new(&cred).allowed_by(capability);
        let mut buffer = [0; 4096];
        let bulk = match request {
            OssRequest::Write { .. } => Bulk::Send(b"data"),
            OssRequest::Read { .. } => Bulk::Receive(&mut buffer),
            _ => Bulk::None,
        };
        self.server.handle(export, &call, request, bulk)
    }
}

fn enqueue(mode: Mode, number: u64) -> OssRequest {
    let need = Need { mode, policy: Policy::Extent(Extent::WHOLE), group: u64::from(mode == Mode::Group) };
    let request = Enqueue {
        handle: LockHandle(number),
        resource: ResourceId::of_fid(&OBJECT),
        need,
        optional: InodeBits::NONE,
        flags: EnqueueFlags::default(),
    };
    OssRequest::Locks { request: LockRequest::Enqueue { request, cancels: Vec::new() } }
}

const ANY: Rights = Rights::all();
const DATA: Rights = Rights::READ.union(Rights::WRITE);

/// Returns client requests about [`OBJECT`], each with the rights of which it needs one.
fn about_an_object() -> Vec<(OssRequest, Rights)> {
    let (object, lock, written) = (OBJECT, IoLock::Lease, false);
    let (offset, len) = (0, 4096);
    let replay = LockRequest::Replay {
        handle: LockHandle(9),
        resource: ResourceId::of_fid(&OBJECT),
        need: Need { mode: Mode::Pw, policy: Policy::Extent(Extent::WHOLE), group: 0 },
    };
    vec![
        (OssRequest::plain_write(object, 0), Rights::WRITE),
        (OssRequest::plain_read(object, 0, 4096), Rights::READ),
        (OssRequest::GetAttr { object, glimpse: false }, ANY),
        (OssRequest::GetAttr { object, glimpse: true }, ANY),
        (OssRequest::Truncate { object, size: 4, lock, written, charge: Charge::ROOT }, Rights::WRITE),
        (
            OssRequest::Fallocate {
                object,
                kind: FallocateKind::Punch,
                offset,
                len,
                lock,
                written,
                charge: Charge::ROOT,
            },
            Rights::WRITE,
        ),
        (OssRequest::Seek { object, offset, kind: SeekKind::Data, lock, written }, DATA),
        (OssRequest::Advise { object, offset, len, advice: Advice::WillRead }, DATA),
        (OssRequest::DataVersion { object }, ANY),
        (enqueue(Mode::Ex, 1), Rights::WRITE),
        (enqueue(Mode::Pw, 2), Rights::WRITE),
        (enqueue(Mode::Cw, 3), Rights::WRITE),
        (enqueue(Mode::Pr, 4), DATA),
        (enqueue(Mode::Cr, 5), DATA),
        (enqueue(Mode::Group, 6), DATA),
        (OssRequest::Locks { request: replay }, ANY),
    ]
}

/// Returns client requests that concern no object.
fn about_none() -> Vec<OssRequest> {
    vec![
        OssRequest::Sync { object: None },
        OssRequest::Sync { object: Some(Fid::ost_object(0, 1)) },
        OssRequest::Statfs,
        OssRequest::Ping,
        OssRequest::Grant { client: 1, held: 0, want: 0 },
        OssRequest::Locks { request: LockRequest::Cancel { handles: vec![LockHandle(77)] } },
        OssRequest::Locks { request: LockRequest::ReplayDone },
    ]
}

#[test]
fn a_client_is_let_at_an_object_by_a_capability_for_it_and_by_nothing_else() {
    let world = world();
    world.keys.set([(2, 0, [2; 32]), (1, 0, [1; 32])]);
    let later = now_s() + 600;
    let attributes = Rights::ATTRIBUTES;
    let own = |rights| Some(world.sign(HOLDER, OBJECT, rights, later));
    let mut damaged = world.sign(HOLDER, OBJECT, ANY, later);
    damaged.tag[15] ^= 1;
    let forgotten = CapabilityKeys::default();
    forgotten.set([(3, 0, [3; 32])]);
    let of_other_epoch = forgotten.signer(HOLDER, ANY, later, now_s()).expect("a key").sign(&OBJECT);
    let bad: [(&str, Option<Capability>); 6] = [
        ("none", None),
        ("another client's", Some(world.sign(KeyId(6), OBJECT, ANY, later))),
        ("another object's", Some(world.sign(HOLDER, OTHER, ANY, later))),
        ("one that has ended", Some(world.sign(HOLDER, OBJECT, ANY, now_s() - 1))),
        ("a damaged one", Some(damaged)),
        ("one of an unknown epoch", Some(of_other_epoch)),
    ];
    for (request, needed) in about_an_object() {
        // Each uses a client of its own, so that no request waits for the locks of another.
        for rights in [attributes, attributes | Rights::READ, attributes | Rights::WRITE, ANY] {
            let client = export(Some(Roles::CLIENT | Roles::ADMIN));
            world.server.connect(&client).expect("connected");
            let result = world.run(&client, &request, own(rights));
            match rights.intersects(needed) {
                true => assert_ne!(result, Err(Status::NO_CAPABILITY), "{request:?} with {rights:?}"),
                false => assert_eq!(result, Err(Status::NO_CAPABILITY), "{request:?} with {rights:?}"),
            }
            world.server.disconnect(&client);
        }
        let client = export(Some(Roles::CLIENT));
        for (what, capability) in &bad {
            let result = world.run(&client, &request, *capability);
            assert_eq!(result, Err(Status::NO_CAPABILITY), "{request:?} with {what}");
        }
    }
    let client = export(Some(Roles::CLIENT));
    world.server.connect(&client).expect("connected");
    for request in about_none() {
        assert_ne!(world.run(&client, &request, None), Err(Status::NO_CAPABILITY), "{request:?}");
    }
}

#[test]
fn servers_open_peers_and_file_systems_without_keys_need_none() {
    let world = world();
    let all = || about_an_object().into_iter().map(|(request, _)| request).chain(about_none());
    let works_for = |roles: Option<Roles>| {
        for request in all() {
            let client = export(roles);
            world.server.connect(&client).expect("connected");
            assert_ne!(
                world.run(&client, &request, None),
                Err(Status::NO_CAPABILITY),
                "{roles:?} {request:?}"
            );
            world.server.disconnect(&client);
        }
    };
    works_for(Some(Roles::CLIENT));
    world.keys.set([(1, 0, [1; 32])]);
    works_for(Some(Roles::MDS));
    works_for(Some(Roles::MDS | Roles::CLIENT));
    works_for(None);
}

#[test]
fn reads_that_come_together_are_let_in_one_by_one() {
    let world = world();
    world.keys.set([(1, 0, [1; 32])]);
    let (later, client) = (now_s() + 600, export(Some(Roles::CLIENT)));
    let (read, write) = (OssRequest::plain_read(OBJECT, 0, 4), OssRequest::plain_write(OBJECT, 0));
    let capability = world.sign(HOLDER, OBJECT, ANY, later);
    assert_eq!(world.run(&client, &write, Some(capability)), Ok(OssReply::written(4)));
    let (cred, mut buffers) = (Cred::system(), [[0; 4]; 3]);
    let given = [Some(capability), None, Some(world.sign(HOLDER, OTHER, ANY, later))];
    let calls = buffers.iter_mut().zip(given).map(|(buffer, capability)| ReadCall {
        call: Call::new(&cred).allowed_by(capability),
        request: &read,
        buffer,
        result: Err(Status::EIO),
    });
    let mut calls: Vec<ReadCall<'_>> = calls.collect();
    world.server.handle_reads(&client, &mut calls);
    let results: Vec<_> = calls.into_iter().map(|call| call.result).collect();
    assert_eq!(results, [Ok(OssReply::Read(4)), Err(Status::NO_CAPABILITY), Err(Status::NO_CAPABILITY)]);
    assert_eq!(buffers, [*b"data", [0; 4], [0; 4]]);
}

#[test]
fn servers_whose_clocks_differ_by_an_hour_count_by_that_of_the_management_server() {
    for (of_mdt, of_ost) in [(3600, 0), (0, 3600), (0, 0)] {
        let world = world();
        world.keys.set([(1, 0, [1; 32])]);
        let mdt = CapabilityKeys::default();
        mdt.set([(1, 0, [1; 32])]);
        // Clocks of the two hosts before their first reply from the management server.
        mdt.clock().set(now_s() - of_mdt);
        world.keys.clock().set(now_s() + of_ost);
        let sign = || {
            let now_s = mdt.clock().now_s();
            Some(mdt.signer(HOLDER, ANY, now_s + 600, now_s).expect("a key").sign(&OBJECT))
        };
        let client = export(Some(Roles::CLIENT));
        world.server.connect(&client).expect("connected");
        let read = |capability| world.run(&client, &OssRequest::plain_read(OBJECT, 0, 10), capability);
        let before = sign();
        assert_eq!(read(before) == Err(Status::NO_CAPABILITY), of_mdt + of_ost > 0);
        let at_mgs = now_s() + 7 * 3600;
        mdt.clock().set(at_mgs);
        world.keys.clock().set(at_mgs);
        assert_ne!(read(sign()), Err(Status::NO_CAPABILITY));
        assert_eq!(read(before), Err(Status::NO_CAPABILITY), "it has ended since");
    }
}
