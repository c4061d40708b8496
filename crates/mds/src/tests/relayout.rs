//! Layout locks are revoked before a change; files exchange their objects; leases.

use super::mdlocks::Cacher;
use super::*;
use nacre_layout::user::{Selector, encode_selector};
use nacre_layout::{ComponentFlags, ComponentSpec, Extent, Layout, LayoutRequest, LayoutSpec};
use nacre_lock::InodeBits;
use nacre_types::{SetAttr, SetAttrValid};
use nacre_wire::mds::{LeaseKind, XattrFlags};

/// Requests a layout and a lock on it; returns both.
fn access(
    client: &Cacher,
    fid: Fid,
    range: Option<(u64, u64)>,
    name: u64,
) -> (Option<Arc<Layout>>, LockHandle) {
    match client.run(&MdsRequest::LayoutAccess {
        fid,
        range,
        lock: LockHandle(name),
        owners: Owners::default(),
    }) {
        Ok(MdsReply::LockedLayout { layout, lock }) => (layout, lock),
        other => panic!("{other:?}"),
    }
}

fn swap(first: Fid, second: Fid) -> MdsRequest<'static> {
    MdsRequest::SwapLayouts { first, second, versions: (None, None), keep_times: false, lease: None }
}

/// Creates a file with a first component of 1 MiB and another one behind it.
fn composite(f: &Fixture, name: &str) -> Fid {
    let fid = f.file(Fid::ROOT, name).expect("made").fid;
    let part = |start, end| ComponentSpec {
        extent: Extent { start, end },
        flags: ComponentFlags::default(),
        spec: LayoutSpec { stripe_count: Some(1), ..LayoutSpec::default() },
    };
    let requested = LayoutRequest::Composite(vec![part(0, 1 << 20), part(1 << 20, Extent::EOF)]);
    f.attr(&MdsRequest::SetLayout { fid, requested }).expect("set");
    fid
}

fn objects(f: &Fixture, fid: Fid) -> Vec<Fid> {
    match f.run(&MdsRequest::GetLayout { fid }) {
        Ok(MdsReply::Layout(Some(layout))) => layout.objects().map(|object| object.object).collect(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn whoever_gives_objects_keeps_its_lock_and_others_lose_only_that_none_come() {
    let f = Fixture::with_osts(2);
    let fid = composite(&f, "a");
    let (one, two) = (Cacher::connect(&f, 2), Cacher::connect(&f, 3));
    let (layout, held) = access(&one, fid, None, 1);
    assert_eq!((layout.expect("known").objects().count(), held), (1, LockHandle(1)));
    assert_eq!(access(&two, fid, None, 1).1, LockHandle(1));
    assert_eq!(access(&one, fid, None, 2).1, LockHandle(1), "the one that it has already");
    let (layout, held) = access(&one, fid, Some((1 << 20, 2 << 20)), 3);
    assert_eq!((layout.expect("known").objects().count(), held), (2, LockHandle(1)));
    assert_eq!((one.called_back(), two.called_back()), (vec![], vec![LockHandle(1)]));
    // Changes of attributes leave layout locks alone.
    let set = SetAttr { valid: SetAttrValid::MODE, mode: 0o600, ..SetAttr::default() };
    f.attr(&MdsRequest::SetAttr { fid, set }).expect("changed");
    assert_eq!(one.called_back(), []);
}

#[test]
fn an_open_brings_a_lock_on_the_layout() {
    let f = Fixture::new();
    let fid = f.file(Fid::ROOT, "a").expect("made").fid;
    let other = Cacher::connect(&f, 2);
    let open = MdsRequest::Open { fid, handle: OpenHandle(9), flags: OpenFlags::READ, lock: LockHandle(5) };
    let Ok(MdsReply::Opened { lock, .. }) = other.run(&open) else { panic!("opens") };
    assert_eq!(lock, LockHandle(5));
    f.run(&MdsRequest::LayoutIntent { fid, start: 0, end: 1 }).expect("objects");
    assert_eq!(other.called_back(), [LockHandle(5)]);
}

#[test]
fn swapped_files_have_each_others_objects_also_after_a_restart() {
    let f = Fixture::with_osts(2);
    let (a, b) = (composite(&f, "a"), composite(&f, "b"));
    let other = Cacher::connect(&f, 2);
    let (held_a, held_b) = (access(&other, a, None, 1).1, access(&other, b, None, 2).1);
    let before = [objects(&f, a), objects(&f, b)];
    assert_eq!(f.run(&swap(a, b)), Ok(MdsReply::Done));
    assert_eq!(other.called_back(), [held_a, held_b]);
    assert_eq!([objects(&f, b), objects(&f, a)], before);
    let f = f.crash();
    assert_eq!([objects(&f, b), objects(&f, a)], before);
    f.check();
}

#[test]
fn sizes_go_with_the_objects_and_times_as_wanted() {
    let f = Fixture::with_osts(1);
    let (a, b) = (composite(&f, "a"), composite(&f, "b"));
    let object = objects(&f, a)[0];
    let attr = ObjectAttr { size: 77, blocks: 8, mtime: None };
    f.osts[0].data.lock().insert(object, (attr, 5));
    let old = [f.stat(a).expect("there"), f.stat(b).expect("there")];
    let keep = MdsRequest::SwapLayouts {
        first: a,
        second: b,
        versions: (Some(5), Some(0)),
        keep_times: true,
        lease: None,
    };
    f.run(&keep).expect("swapped");
    let new = [f.stat(a).expect("there"), f.stat(b).expect("there")];
    assert_eq!([(new[0].size, new[0].blocks), (new[1].size, new[1].blocks)], [(0, 0), (77, 8)]);
    assert_eq!([new[0].mtime, new[1].mtime], [old[0].mtime, old[1].mtime]);
    f.run(&swap(a, b)).expect("swapped");
    assert_eq!(f.stat(a).expect("there").mtime, old[1].mtime);
}

#[test]
fn a_swap_that_must_not_be_changes_nothing() {
    let f = Fixture::with_osts(1);
    let (a, b) = (composite(&f, "a"), composite(&f, "b"));
    let before = [objects(&f, a), objects(&f, b)];
    let dir = f.dir(Fid::ROOT, "d").expect("made").fid;
    assert_eq!(f.run(&swap(a, a)), Err(Status::EINVAL));
    assert_eq!(f.run(&swap(a, dir)), Err(Status::EISDIR));
    assert_eq!(f.run(&swap(a, f.fid())), Err(Status::ENOENT));
    assert_eq!(f.run_as(&user(5, 5, &[]), &swap(a, b)), Err(Status::EACCES));
    let expecting =
        |versions| MdsRequest::SwapLayouts { first: a, second: b, versions, keep_times: false, lease: None };
    assert_eq!(f.run(&expecting((Some(1), None))), Err(Status::EAGAIN));
    assert_eq!(f.run(&expecting((None, Some(1)))), Err(Status::EAGAIN));
    *f.osts[0].fail.lock() = Some(Status::EIO);
    assert_eq!(f.run(&swap(a, b)), Err(Status::EIO), "what is there cannot be found out");
    *f.osts[0].fail.lock() = None;
    let set = SetAttr { valid: SetAttrValid::UID, uid: 7, ..SetAttr::default() };
    f.attr(&MdsRequest::SetAttr { fid: b, set }).expect("changed");
    assert_eq!(f.run(&swap(a, b)), Err(Status::EPERM));
    assert_eq!([objects(&f, a), objects(&f, b)], before);
    f.check();
}

#[test]
fn a_swap_under_a_lease_needs_it() {
    let f = Fixture::with_osts(1);
    let (a, b) = (composite(&f, "a"), composite(&f, "b"));
    let (own, theirs) = (f.handle(), f.handle());
    let open = |handle, flags| MdsRequest::Open { fid: a, handle, flags, lock: LockHandle(0) };
    let lease = |kind| MdsRequest::OpenLease { fid: a, handle: own, kind };
    f.run(&open(own, OpenFlags::READ)).expect("opens");
    assert_eq!(f.run(&lease(Some(LeaseKind::Read))), Ok(MdsReply::OpenLease(LeaseKind::None)));
    let under = MdsRequest::SwapLayouts {
        first: a,
        second: b,
        versions: (None, None),
        keep_times: true,
        lease: Some(own),
    };
    assert_eq!(f.run(&under), Ok(MdsReply::Done));
    assert_eq!(f.run(&lease(None)), Ok(MdsReply::OpenLease(LeaseKind::Read)), "it is asked, and stays");
    f.run(&open(theirs, OpenFlags::WRITE)).expect("opens");
    assert_eq!(f.run(&under), Err(Status::EBUSY));
    assert_eq!(f.run(&lease(Some(LeaseKind::Read))), Err(Status::EBUSY));
    assert_eq!(f.run(&lease(None)), Ok(MdsReply::OpenLease(LeaseKind::None)));
}

#[test]
fn of_a_frozen_file_nobody_gets_a_lock_on_the_layout_or_objects() {
    let f = Fixture::with_osts(1);
    let fid = composite(&f, "a");
    let other = Cacher::connect(&f, 2);
    let held = access(&other, fid, None, 1).1;
    let own = f.handle();
    f.run(&MdsRequest::Open { fid, handle: own, flags: OpenFlags::READ, lock: LockHandle(0) })
        .expect("opens");
    let lease = |kind| MdsRequest::OpenLease { fid, handle: own, kind: Some(kind) };
    f.run(&lease(LeaseKind::Frozen)).expect("frozen");
    assert_eq!(other.called_back(), [held]);
    assert_eq!(access(&other, fid, None, 2).1, LockHandle(0));
    let (layout, lock) = access(&other, fid, Some((1 << 20, 2 << 20)), 3);
    assert_eq!((layout.expect("known").objects().count(), lock), (1, LockHandle(0)));
    assert_eq!(other.run(&swap(fid, composite(&f, "b"))), Err(Status::EBUSY));
    f.run(&lease(LeaseKind::None)).expect("given up");
    assert_eq!(access(&other, fid, None, 4).1, LockHandle(4));
}

#[test]
fn a_component_that_goes_takes_its_objects_along() {
    let f = Fixture::with_osts(2);
    let fid = composite(&f, "a");
    f.run(&MdsRequest::LayoutIntent { fid, start: 1 << 20, end: 2 << 20 }).expect("objects");
    let before = objects(&f, fid);
    let value = encode_selector(Selector::Id(2));
    let flags = XattrFlags::empty();
    f.run(&MdsRequest::SetXattr { fid, name: b"lustre.lov.del", value: &value, flags }).expect("deleted");
    assert_eq!(objects(&f, fid), before[..1]);
    eventually("the object is destroyed", || {
        f.osts.iter().any(|ost| ost.destroyed.lock().contains(&before[1]))
    });
    f.check();
}

/// Specification: the first MiB on the MDT, the rest on an OST.
fn request_on_mdt() -> LayoutRequest {
    let part = |start, end, spec| ComponentSpec {
        extent: Extent { start, end },
        flags: ComponentFlags::default(),
        spec,
    };
    LayoutRequest::Composite(vec![
        part(0, 1 << 20, LayoutSpec::ON_MDT),
        part(1 << 20, Extent::EOF, LayoutSpec::default()),
    ])
}

fn on_mdt(f: &Fixture, name: &str) -> Fid {
    let fid = f.file(Fid::ROOT, name).expect("made").fid;
    f.attr(&MdsRequest::SetLayout { fid, requested: request_on_mdt() }).expect("set");
    f.run(&MdsRequest::LayoutIntent { fid, start: 0, end: 1 }).expect("a place");
    fid
}

#[test]
fn data_on_the_mdt_changes_hands_with_its_version_and_size() {
    let f = Fixture::with_osts(1);
    let (a, b) = (on_mdt(&f, "a"), composite(&f, "b"));
    let store = f.mds.data_store();
    store.write(a, 0, b"data").expect("written");
    let version = store.abilities().version_in(&store.attr(a).expect("there")).expect("it is known");
    let expecting = |first, versions| MdsRequest::SwapLayouts {
        first,
        second: if first == a { b } else { a },
        versions,
        keep_times: false,
        lease: None,
    };
    assert_eq!(f.run(&expecting(a, (Some(version - 1), None))), Err(Status::EAGAIN));
    f.run(&expecting(a, (Some(version), Some(0)))).expect("swapped");
    assert_eq!((objects(&f, b), f.stat(b).expect("there").size), (vec![a], 4));
    f.run(&expecting(b, (Some(version), Some(0)))).expect("swapped back");
    assert_eq!((objects(&f, a), f.stat(a).expect("there").size), (vec![a], 4));
    drop(store);
    f.check();
}

#[test]
fn a_file_that_gave_its_object_away_gets_another_one() {
    let f = Fixture::with_osts(1);
    let file = on_mdt(&f, "a");
    let mut given = Vec::new();
    for round in 0..4 {
        f.mds.data_store().write(objects(&f, file)[0], 0, b"x").expect("written");
        given.extend(objects(&f, file));
        let other = f.file(Fid::ROOT, &round.to_string()).expect("made").fid;
        f.run(&swap(file, other)).expect("swapped");
        assert_eq!(objects(&f, other), given[round..]);
        // The specification left with the object.
        f.attr(&MdsRequest::SetLayout { fid: file, requested: request_on_mdt() }).expect("set");
        f.run(&MdsRequest::LayoutIntent { fid: file, start: 0, end: 1 }).expect("a place");
        assert!(!given.contains(&objects(&f, file)[0]));
    }
    f.check();
}

#[test]
fn a_component_behind_the_mdt_goes_and_what_is_on_the_mdt_stays() {
    let f = Fixture::with_osts(1);
    let fid = on_mdt(&f, "a");
    f.mds.data_store().write(fid, 0, b"data").expect("written");
    f.run(&MdsRequest::LayoutIntent { fid, start: 1 << 20, end: 2 << 20 }).expect("objects");
    let value = encode_selector(Selector::Id(2));
    let flags = XattrFlags::empty();
    f.run(&MdsRequest::SetXattr { fid, name: b"lustre.lov.del", value: &value, flags }).expect("deleted");
    assert_eq!((objects(&f, fid), f.stat(fid).expect("there").size), (vec![fid], 4));
    f.check();
}

#[test]
fn files_on_an_ost_are_found_page_by_page() {
    let f = Fixture::with_osts(2);
    let on =
        |first_ost| LayoutRequest::Plain(LayoutSpec { first_ost: Some(first_ost), ..LayoutSpec::default() });
    let mut expected: Vec<Fid> = Vec::new();
    for number in 0..20 {
        let fid = f.file(Fid::ROOT, &number.to_string()).expect("made").fid;
        let requested = on(u16::from(number % 3 == 0));
        f.attr(&MdsRequest::SetLayout { fid, requested }).expect("set");
        if number % 3 == 0 {
            expected.push(fid);
        }
    }
    let (mut found, mut after) = (Vec::new(), Some(Fid::ZERO));
    while let Some(from) = after {
        let ask = MdsRequest::FilesOn { ost_index: 1, after: from, count_max: 3 };
        let Ok(MdsReply::Files { fids, next }) = f.run(&ask) else { panic!("files") };
        assert!(fids.len() <= 3);
        found.extend(fids);
        after = next;
    }
    assert_eq!(found, expected);
    let ask = MdsRequest::FilesOn { ost_index: 1, after: Fid::ZERO, count_max: 3 };
    assert_eq!(f.run_as(&user(5, 5, &[]), &ask), Err(Status::EPERM));
}

#[test]
fn locks_on_layouts_are_brought_back_after_a_restart_and_others_are_not() {
    let f = Fixture::new();
    let fid = composite(&f, "a");
    let other = Cacher::connect(&f, 2);
    let held = access(&other, fid, None, 1).1;
    let Fixture { dir, mds, osts, .. } = f;
    mds.stop().expect("stops");
    drop(mds);
    let endpoints = osts.iter().map(|ost| (0, ost.clone() as Arc<dyn OssEndpoint>)).collect();
    let mds = Mds::open(dir.path(), config(), endpoints).expect("starts");
    let (back, _) = export(2, tcp_nid());
    mds.connect(&back).expect("let in");
    let run = |request| mds.handle(&back, &Call::new(&Cred::system()), &request).map(|answer| answer.reply);
    let replay = |bits| {
        let need = nacre_lock::Need::bits(nacre_lock::Mode::Pr, bits);
        let resource = nacre_lock::ResourceId::of_fid(&fid);
        let request = nacre_wire::lock::LockRequest::Replay { handle: held, resource, need };
        run(MdsRequest::Locks { request })
    };
    assert_eq!(replay(InodeBits::UPDATE), Err(Status::EOPNOTSUPP));
    let both = InodeBits::LAYOUT.union(InodeBits::COMPONENTS);
    let outcome = replay(both);
    assert!(matches!(outcome, Ok(MdsReply::Locked(nacre_lock::Outcome::Granted(_)))), "{outcome:?}");
}
