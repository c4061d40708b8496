//! Capabilities that clients get to use objects.

use super::*;
use nacre_keys::{CapabilityKeys, Verified};
use nacre_types::{Identity, KeyId, ObjectNeed, Rights, Roles, SetAttr, SetAttrValid};
use nacre_wire::mds::FileCapabilities;
use std::time::SystemTime;

const HOLDER: KeyId = KeyId(5);
const ATTRIBUTES: Rights = Rights::ATTRIBUTES;

fn of_identity(identity: Option<Identity>) -> (Fixture, Arc<CapabilityKeys>) {
    let dir = tempfile::tempdir().expect("a directory");
    Mds::format(dir.path(), &config()).expect("formats");
    let plain = Export::new(ClientUuid([1; 16]), tcp_nid(), None, Arc::new(Noted::default()));
    let export = Arc::new(plain.of_key(identity.map(Arc::new)));
    let f = Fixture::start(dir, vec![FakeOst::new()], export);
    let keys = Arc::new(CapabilityKeys::default());
    keys.set([(7, 0, [7; 32])]);
    f.mds.capabilities.sign_with(keys.clone());
    (f, keys)
}

/// A client that acts for any user, including root.
fn client() -> Identity {
    Identity::new("nacre", HOLDER, Roles::CLIENT | Roles::ADMIN, "test")
}

/// Returns the capabilities in an answer.
fn given(f: &Fixture, cred: &Cred, request: &MdsRequest<'_>) -> Option<FileCapabilities> {
    f.answer(cred, request).expect("answered").capabilities.map(|given| *given)
}

/// Returns the rights in an answer's capabilities.
fn rights(f: &Fixture, request: &MdsRequest<'_>) -> Option<Rights> {
    given(f, &f.cred, request).map(|given| given.rights)
}

/// Creates a file with objects that no client has open.
fn file(f: &Fixture) -> Fid {
    let fid = f.file(Fid::ROOT, "f").expect("made").fid;
    f.intent(fid).expect("objects");
    fid
}

fn renewal(fid: Fid) -> MdsRequest<'static> {
    MdsRequest::Capabilities { fid, wanted: Rights::empty() }
}

#[test]
fn a_capability_gives_what_the_opens_of_its_client_do_for_as_long_as_they_last() {
    let (f, _) = of_identity(Some(client()));
    let fid = file(&f);
    let with_layout = [
        MdsRequest::GetLayout { fid },
        MdsRequest::LayoutIntent { fid, start: 0, end: 1 },
        MdsRequest::LayoutAccess { fid, range: None, lock: LockHandle(0), owners: Owners::default() },
        renewal(fid),
    ];
    let all_give = |expected: Rights| {
        for request in &with_layout {
            assert_eq!(rights(&f, request), Some(expected), "{request:?}");
        }
    };
    all_give(ATTRIBUTES);
    let open = |flags| {
        let handle = f.handle();
        let request = MdsRequest::Open { fid, handle, flags, lock: LockHandle(0) };
        (handle, rights(&f, &request))
    };
    let (reader, granted) = open(OpenFlags::READ);
    assert_eq!(granted, Some(ATTRIBUTES | Rights::READ));
    let (writer, granted) = open(OpenFlags::WRITE);
    assert_eq!(granted, Some(Rights::all()));
    // The rights from the open stay, regardless of later changes of the permissions.
    let set = SetAttr { valid: SetAttrValid::MODE, mode: 0, ..SetAttr::default() };
    f.run(&MdsRequest::SetAttr { fid, set }).expect("changed");
    all_give(Rights::all());
    f.close(fid, reader).expect("closed");
    all_give(ATTRIBUTES | Rights::WRITE);
    // Opens of another client give this client no rights.
    f.mds.leaves.opens.add(fid, ClientUuid([2; 16]), f.handle(), OpenFlags::READ, false);
    all_give(ATTRIBUTES | Rights::WRITE);
    f.close(fid, writer).expect("closed");
    all_give(ATTRIBUTES);
    let set = SetAttr { mode: 0o111, ..set };
    f.run(&MdsRequest::SetAttr { fid, set }).expect("changed");
    let (executor, granted) = open(OpenFlags::EXEC);
    assert_eq!(granted, Some(ATTRIBUTES | Rights::READ));
    f.close(fid, executor).expect("closed");
    f.check();
}

#[test]
fn capabilities_are_those_that_object_servers_accept() {
    let (f, keys) = of_identity(Some(client()));
    let fid = file(&f);
    f.mds.capabilities.set_expire_s(30).expect("in range");
    let now_s =
        nacre_env::clock::wall().duration_since(SystemTime::UNIX_EPOCH).expect("after 1970").as_secs();
    let given = given(&f, &f.cred, &renewal(fid)).expect("there are objects");
    let objects: Vec<Fid> = f.intent(fid).expect("objects").objects().map(|object| object.object).collect();
    assert_eq!(given.objects.iter().map(|(object, _)| *object).collect::<Vec<_>>(), objects);
    assert_eq!((given.fid, given.epoch, given.life_s), (fid, 7, 30));
    assert!((now_s + 30..now_s + 40).contains(&given.expires_s));
    for &(object, tag) in &given.objects {
        let FileCapabilities { rights, epoch, expires_s, .. } = given;
        let capability = nacre_types::Capability { rights, epoch, expires_s, tag };
        let need = ObjectNeed { object, any_of: ATTRIBUTES };
        let check = |holder| keys.check(holder, &need, Some(&capability), now_s, &Verified::default());
        assert!(check(HOLDER).is_ok() && check(KeyId(6)).is_err());
    }
    for out_of_range in [0, 29, 86_401, u64::MAX] {
        assert_eq!(f.mds.capabilities.set_expire_s(out_of_range), Err(Status::ERANGE));
    }
    assert_eq!(f.mds.capabilities.expire_s(), 30);
    f.check();
}

#[test]
fn what_is_done_by_name_needs_the_permission_of_who_does_it() {
    let (f, _) = of_identity(Some(client()));
    let fid = file(&f);
    let owner =
        SetAttr { valid: SetAttrValid::UID | SetAttrValid::MODE, uid: 5, mode: 0o640, ..SetAttr::default() };
    f.run(&MdsRequest::SetAttr { fid, set: owner }).expect("changed");
    let wanted = |uid, wanted| {
        let request = MdsRequest::Capabilities { fid, wanted };
        given(&f, &user(uid, 9, &[]), &request).map(|given| given.rights)
    };
    assert_eq!(wanted(5, Rights::WRITE), Some(ATTRIBUTES | Rights::WRITE));
    assert_eq!(wanted(5, Rights::READ | Rights::WRITE), Some(Rights::all()));
    assert_eq!(wanted(6, Rights::READ | Rights::WRITE), Some(ATTRIBUTES));
    assert_eq!(wanted(6, Rights::empty()), Some(ATTRIBUTES));
    let gone = f.fid();
    assert_eq!(f.run(&renewal(gone)), Err(Status::ENOENT));
    f.check();
}

#[test]
fn only_clients_that_need_capabilities_get_some() {
    let server = Identity::new("nacre", HOLDER, Roles::CLIENT | Roles::MDS, "test");
    for identity in [None, Some(server)] {
        let (f, _) = of_identity(identity);
        let fid = file(&f);
        assert_eq!(rights(&f, &renewal(fid)), None);
        assert_eq!(rights(&f, &MdsRequest::GetLayout { fid }), None);
    }
    let (f, keys) = of_identity(Some(client()));
    let fid = f.file(Fid::ROOT, "empty").expect("made").fid;
    assert_eq!(rights(&f, &renewal(fid)), None, "without objects there is nothing to sign");
    let fid = file(&f);
    keys.set([]);
    assert_eq!(rights(&f, &renewal(fid)), None, "nor without keys");
}

#[test]
fn an_answer_of_the_last_life_brings_capabilities_of_this_one() {
    let (f, _) = of_identity(Some(client()));
    let fid = f.file(Fid::ROOT, "f").expect("made").fid;
    let slot = ReplySlot { client: f.export.client, tag: 3, xid: nacre_types::Xid(9) };
    let request = MdsRequest::LayoutIntent { fid, start: 0, end: 1 };
    let first = f.with_slot(slot, &request).expect("objects");
    let f = f.restart();
    let keys = Arc::new(CapabilityKeys::default());
    keys.set([(8, 0, [8; 32])]);
    f.mds.capabilities.sign_with(keys);
    let stored = f.mds.stored_answer(&f.export, &request, &slot).expect("stored").expect("it succeeded");
    assert_eq!(stored.reply, first.reply);
    let (first, stored) = (first.capabilities.expect("signed"), stored.capabilities.expect("signed again"));
    assert_eq!((first.epoch, stored.epoch), (7, 8));
    f.check();
}
