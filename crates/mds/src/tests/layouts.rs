use super::*;
use nacre_layout::layout::STRIPE_COUNT_ALL;
use nacre_layout::{
    ComponentFlags, ComponentSpec, Extent, Layout, LayoutRequest, LayoutSpec, user as user_md,
};
use nacre_types::{AttrFlags, SizeSource};

impl Fixture {
    pub(super) fn intent(&self, fid: Fid) -> StatusResult<Arc<Layout>> {
        self.intent_for(fid, 0, 4096)
    }

    fn intent_for(&self, fid: Fid, start: u64, end: u64) -> StatusResult<Arc<Layout>> {
        match self.run(&MdsRequest::LayoutIntent { fid, start, end })? {
            MdsReply::Layout(Some(layout)) => Ok(layout),
            other => panic!("{other:?}"),
        }
    }

    fn stripe(&self, fid: Fid, spec: LayoutSpec) -> StatusResult<Attr> {
        self.requested(fid, LayoutRequest::Plain(spec))
    }

    fn requested(&self, fid: Fid, requested: LayoutRequest) -> StatusResult<Attr> {
        self.attr(&MdsRequest::SetLayout { fid, requested })
    }

    fn layout(&self, fid: Fid) -> Layout {
        match self.run(&MdsRequest::GetLayout { fid }) {
            Ok(MdsReply::Layout(Some(layout))) => Layout::clone(&layout),
            other => panic!("{other:?}"),
        }
    }
}

fn indexes(layout: &Layout) -> Vec<u16> {
    layout.objects().map(|object| object.ost_index).collect()
}

#[test]
fn the_first_write_gets_objects_with_ids_that_are_used_once() {
    let f = Fixture::new();
    let mut seen = std::collections::HashSet::new();
    for i in 0..200 {
        let fid = f.file(Fid::ROOT, &i.to_string()).expect("made").fid;
        assert_eq!(f.run(&MdsRequest::GetLayout { fid }), Ok(MdsReply::Layout(None)));
        let layout = f.intent(fid).expect("objects");
        assert_eq!(indexes(&layout), [0]);
        assert!(seen.insert(layout.components[0].objects[0].object));
        assert_eq!(f.intent(fid), Ok(layout), "the second write gets the same");
    }
    // Far fewer requests than files.
    assert!(f.osts[0].calls.load(Ordering::Relaxed) < 20);
    let ost = f.osts[0].clone();
    let f = f.restart();
    let fid = f.file(Fid::ROOT, "after").expect("made").fid;
    assert!(seen.insert(f.intent(fid).expect("objects").components[0].objects[0].object));
    let calls = ost.orphan_calls.lock().clone();
    assert_eq!(calls.len(), 2);
    assert_eq!(calls[1].1, 200, "what was reserved above the last id in use belongs to nobody");
    f.check();
}

#[test]
fn files_follow_their_own_wish_then_their_directorys_then_the_roots() {
    let f = Fixture::with_osts(4);
    let dir = f.dir(Fid::ROOT, "d").expect("made").fid;
    f.stripe(dir, LayoutSpec { stripe_count: Some(2), ..LayoutSpec::default() }).expect("set");
    f.stripe(Fid::ROOT, LayoutSpec { stripe_size: Some(1 << 20), ..LayoutSpec::default() }).expect("set");
    let file = f.file(dir, "f").expect("made");
    assert!(file.flags.contains(AttrFlags::HAS_LAYOUT) && !file.flags.contains(AttrFlags::HAS_OBJECTS));
    let layout = f.intent(file.fid).expect("objects");
    assert_eq!((layout.components[0].stripe_size, indexes(&layout).len()), (1 << 20, 2));
    let sub = f.dir(dir, "sub").expect("made").fid;
    let spec = f.run(&MdsRequest::GetDefaultLayout { fid: sub });
    let two = LayoutSpec { stripe_count: Some(2), ..LayoutSpec::default() };
    assert_eq!(spec, Ok(MdsReply::DefaultLayout(Some(LayoutRequest::Plain(two)))));
    let own = f.file(sub, "own").expect("made").fid;
    let all =
        LayoutSpec { stripe_count: Some(STRIPE_COUNT_ALL), first_ost: Some(2), ..LayoutSpec::default() };
    let striped = f.stripe(own, all.clone()).expect("set");
    assert!(
        striped.flags.contains(AttrFlags::HAS_OBJECTS),
        "a file that is striped by name has objects at once"
    );
    assert_eq!((striped.size, striped.size_source), (0, SizeSource::Exact));
    assert_eq!(indexes(&f.intent(own).expect("objects")), [2, 3, 0, 1]);
    assert_eq!(f.stripe(own, all), Err(Status::EALREADY));
    f.stripe(dir, LayoutSpec::default()).expect("removed");
    assert_eq!(f.run(&MdsRequest::GetDefaultLayout { fid: dir }), Ok(MdsReply::DefaultLayout(None)));
    f.check();
}

#[test]
fn the_file_systems_default_holds_from_the_moment_it_is_set_and_the_root_shows_it() {
    let f = Fixture::with_osts(4);
    let get = MdsRequest::GetXattr { fid: Fid::ROOT, name: b"lustre.lov" };
    assert_eq!(f.run(&get), Err(Status::ENODATA));
    let three = LayoutSpec { stripe_count: Some(3), ..LayoutSpec::default() };
    f.mds.layouts.set_default_layout(three.clone());
    let Ok(MdsReply::Bytes(shown)) = f.run(&get) else { panic!("the root shows it") };
    assert_eq!(user_md::decode_spec(&shown), Ok(three));
    let file = f.file(Fid::ROOT, "f").expect("made").fid;
    assert_eq!(indexes(&f.intent(file).expect("objects")).len(), 3);
    f.mds.layouts.set_default_layout(LayoutSpec::default());
    let file = f.file(Fid::ROOT, "g").expect("made").fid;
    assert_eq!(indexes(&f.intent(file).expect("objects")).len(), 1);
    f.check();
}

#[test]
fn wishes_that_cannot_be_met_are_refused() {
    let f = Fixture::with_osts(2);
    let fid = f.file(Fid::ROOT, "f").expect("made").fid;
    let bad = |spec| f.stripe(fid, spec) == Err(Status::EINVAL);
    assert!(bad(LayoutSpec { first_ost: Some(7), ..LayoutSpec::default() }));
    assert!(bad(LayoutSpec { stripe_size: Some(1000), ..LayoutSpec::default() }));
    assert!(bad(LayoutSpec { stripe_count: Some(3000), ..LayoutSpec::default() }));
    let stranger = user(5, 5, &[]);
    let set = MdsRequest::SetLayout { fid, requested: LayoutRequest::default() };
    assert_eq!(f.run_as(&stranger, &set), Err(Status::EACCES));
    let symlink = f.symlink(Fid::ROOT, "l", "f").expect("made").fid;
    assert_eq!(f.stripe(symlink, LayoutSpec::default()), Err(Status::EINVAL));
    assert_eq!(f.run(&MdsRequest::LayoutIntent { fid, start: 1 << 63, end: u64::MAX }), Err(Status::EFBIG));
}

#[test]
fn an_ost_that_fails_is_passed_over_and_a_full_one_too() {
    let f = Fixture::with_osts(2);
    *f.osts[0].fail.lock() = Some(Status::EIO);
    for i in 0..100 {
        let fid = f.file(Fid::ROOT, &i.to_string()).expect("made").fid;
        f.intent(fid).expect("objects");
    }
}

#[test]
fn an_ost_out_of_use_gets_no_objects_is_not_waited_for_and_hears_of_what_was_destroyed_when_it_is_back() {
    let f = Fixture::with_osts(2);
    let on_both = LayoutSpec { stripe_count: Some(2), ..LayoutSpec::default() };
    let both = f.file(Fid::ROOT, "both").expect("made").fid;
    f.stripe(both, on_both).expect("set");
    let object = f.layout(both).objects().find(|object| object.ost_index == 1).expect("one").object;
    let osts = &f.mds.osts;
    assert_eq!((osts.is_active(1), osts.is_active(2)), (Ok(true), Err(Status::ENODEV)));
    osts.set_active(1, false).expect("set");
    for i in 0..10 {
        let fid = f.file(Fid::ROOT, &i.to_string()).expect("made").fid;
        assert_eq!(indexes(&f.intent(fid).expect("objects")), [0]);
    }
    let exact = f.file(Fid::ROOT, "exact").expect("made").fid;
    let on_it = LayoutSpec { osts: vec![1], stripe_count: Some(1), ..LayoutSpec::default() };
    assert_eq!(f.stripe(exact, on_it), Err(Status::EREMOTEIO));
    f.unlink(Fid::ROOT, "both").expect("removed");
    let begin = nacre_env::clock::Instant::now();
    let timeout = std::time::Duration::from_secs(60);
    assert!(osts.evict(&[nacre_types::ClientUuid([7; 16])], timeout).is_empty());
    osts.drain(timeout);
    assert!(begin.elapsed() < timeout / 2, "nobody waits for it");
    assert!(f.osts[1].destroyed.lock().is_empty());
    osts.set_active(1, true).expect("set");
    eventually("the destruction", || f.osts[1].destroyed.lock().contains(&object));
    let evicted = |request: &OssRequest| matches!(request, OssRequest::Evict { .. });
    assert!(f.osts[1].served.lock().iter().any(evicted), "and of clients that were dropped");
    assert_eq!(
        (osts.set_create_count_max(0, 20_001), osts.set_create_count_max(0, 0)),
        (Err(Status::ERANGE), Ok(()))
    );
    eventually("the other gets all", || {
        let fid = f.file(Fid::ROOT, "x").expect("made").fid;
        let on = indexes(&f.intent(fid).expect("objects"));
        f.unlink(Fid::ROOT, "x").expect("removed");
        on == [1]
    });
    f.check();
}

#[test]
fn when_every_ost_is_full_there_is_no_space() {
    let f = Fixture::with_osts(0);
    let full = FakeOst::new();
    full.statfs.lock().blocks_available = 0;
    f.mds.osts.set(vec![(0, full.clone() as Arc<dyn OssEndpoint>)]).expect("set");
    let mut count = 0;
    eventually("the refusal", || {
        count += 1;
        let fid = f.file(Fid::ROOT, &count.to_string()).expect("made").fid;
        f.intent(fid) == Err(Status::ENOSPC)
    });
    // An OST that refuses precreations counts as full as soon as its stock is used up.
    let g = Fixture::with_osts(1);
    // Only an OST that has answered before can be full; otherwise refusals mean that it is unreachable.
    eventually("a stock of ids", || {
        count += 1;
        let fid = g.file(Fid::ROOT, &count.to_string()).expect("made").fid;
        g.intent(fid).is_ok()
    });
    *g.osts[0].fail.lock() = Some(Status::ENOSPC);
    eventually("the refusal", || {
        count += 1;
        let fid = g.file(Fid::ROOT, &count.to_string()).expect("made").fid;
        g.intent(fid) == Err(Status::ENOSPC)
    });
}

#[test]
fn without_any_ost_in_reach_a_write_fails_in_time() {
    let f = Fixture::with_osts(1);
    *f.osts[0].fail.lock() = Some(Status::EIO);
    let fid = f.file(Fid::ROOT, "f").expect("made").fid;
    // Ids in stock may be used up first.
    let mut result = Ok(());
    for i in 0..100_000 {
        let fresh = f.file(Fid::ROOT, &format!("g{i}")).expect("made").fid;
        result = f.intent(fresh).map(|_| ());
        if result.is_err() {
            break;
        }
    }
    assert_eq!(result, Err(Status::EIO));
    assert_eq!(f.stat(fid).expect("there").flags, AttrFlags::empty());
    let none = Fixture::with_osts(0);
    let fid = none.file(Fid::ROOT, "f").expect("made").fid;
    assert_eq!(none.intent(fid), Err(Status::EIO));
    none.mds.osts.set(vec![(3, FakeOst::new() as Arc<dyn OssEndpoint>)]).expect("set");
    assert_eq!(indexes(&none.intent(fid).expect("objects")), [3]);
}

#[test]
fn objects_of_removed_files_are_destroyed_even_after_a_restart() {
    let f = Fixture::new();
    let fid = f.file(Fid::ROOT, "f").expect("made").fid;
    let object = f.intent(fid).expect("objects").components[0].objects[0].object;
    *f.osts[0].fail.lock() = Some(Status::EIO);
    f.unlink(Fid::ROOT, "f").expect("removed");
    let ost = f.osts[0].clone();
    let f = f.restart();
    assert!(ost.destroyed.lock().is_empty());
    *ost.fail.lock() = None;
    eventually("the destruction", || ost.destroyed.lock().iter().eq([&object]));
    f.check();
}

#[test]
fn making_everything_durable_waits_for_the_objects_of_removed_files_to_go() {
    let f = Fixture::with_osts(2);
    let mut objects = Vec::new();
    for name in ["a", "b", "c"] {
        let fid = f.file(Fid::ROOT, name).expect("made").fid;
        objects.push(f.intent(fid).expect("objects").components[0].objects[0].object);
        f.unlink(Fid::ROOT, name).expect("removed");
    }
    f.answer(&f.cred, &MdsRequest::Commit { upto: nacre_types::TransNo(u64::MAX) }).expect("durable");
    let mut destroyed: Vec<Fid> = f.osts.iter().flat_map(|ost| ost.destroyed.lock().clone()).collect();
    destroyed.sort_unstable();
    objects.sort_unstable();
    assert_eq!(destroyed, objects);
    // Also objects that only the log has since a restart.
    let fid = f.file(Fid::ROOT, "late").expect("made").fid;
    let object = f.intent(fid).expect("objects").components[0].objects[0].object;
    f.osts.iter().for_each(|ost| *ost.fail.lock() = Some(Status::EIO));
    f.unlink(Fid::ROOT, "late").expect("removed");
    let osts = f.osts.clone();
    let f = f.restart();
    osts.iter().for_each(|ost| *ost.fail.lock() = None);
    eventually("the destruction", || {
        f.answer(&f.cred, &MdsRequest::Commit { upto: nacre_types::TransNo(u64::MAX) }).expect("durable");
        osts.iter().any(|ost| ost.destroyed.lock().contains(&object))
    });
    // An unreachable OST delays no request.
    let fid = f.file(Fid::ROOT, "d").expect("made").fid;
    f.intent(fid).expect("objects");
    f.osts.iter().for_each(|ost| *ost.fail.lock() = Some(Status::EIO));
    f.unlink(Fid::ROOT, "d").expect("removed");
    let before = nacre_env::clock::Instant::now();
    f.answer(&f.cred, &MdsRequest::Commit { upto: nacre_types::TransNo(u64::MAX) }).expect("durable");
    assert!(before.elapsed() < std::time::Duration::from_secs(20), "not until it is back");
}

#[test]
fn lustres_layout_attribute_reads_and_sets_striping() {
    let f = Fixture::with_osts(2);
    let dir = f.dir(Fid::ROOT, "d").expect("made").fid;
    let get = |fid| match f.run(&MdsRequest::GetXattr { fid, name: b"lustre.lov" }) {
        Ok(MdsReply::Bytes(bytes)) => Ok(bytes),
        Ok(other) => panic!("{other:?}"),
        Err(status) => Err(status),
    };
    let set = |fid, value: &[u8]| {
        f.attr(&MdsRequest::SetXattr {
            fid,
            name: b"lustre.lov",
            value,
            flags: nacre_wire::mds::XattrFlags::empty(),
        })
    };
    assert_eq!(get(dir), Err(Status::ENODATA));
    let spec = LayoutSpec { stripe_count: Some(2), ..LayoutSpec::default() };
    set(dir, &user_md::encode_spec(&dir, &spec)).expect("set");
    assert_eq!(user_md::decode_spec(&get(dir).expect("set")).as_ref(), Ok(&spec));
    let file = f.file(dir, "f").expect("made").fid;
    let layout = f.intent(file).expect("objects");
    let bytes = get(file).expect("has a layout");
    assert_eq!(user_md::decode_layout(&bytes).as_ref(), Ok(&*layout));
    // A file with objects keeps its layout; programs that copy attributes after the data must not fail for
    // it.
    let wider = user_md::encode_spec(&file, &LayoutSpec { stripe_count: Some(1), ..spec.clone() });
    assert!(set(file, &wider).is_ok() && set(file, &bytes).is_ok());
    assert_eq!(get(file).as_ref(), Ok(&bytes));
    let exclusive = MdsRequest::SetXattr {
        fid: file,
        name: b"lustre.lov",
        value: &wider,
        flags: nacre_wire::mds::XattrFlags::CREATE,
    };
    assert_eq!(f.attr(&exclusive), Err(Status::EEXIST), "who wants to know is told");
    let copy = f.file(Fid::ROOT, "copy").expect("made").fid;
    set(copy, &bytes).expect("set");
    assert_eq!(indexes(&f.intent(copy).expect("objects")).len(), 2);
    assert_eq!(set(copy, b"nonsense"), Err(Status::EINVAL));
    assert_eq!(set(copy, &bytes[..30]), Err(Status::ERANGE));
    f.run(&MdsRequest::RemoveXattr { fid: copy, name: b"lustre.lov" }).expect("nothing happens");
    assert!(f.layout(copy).has_objects());
    f.run(&MdsRequest::RemoveXattr { fid: dir, name: b"lustre.lov" }).expect("removed");
    assert_eq!(get(dir), Err(Status::ENODATA));
    set(dir, &user_md::encode_spec(&dir, &spec)).expect("set");
    set(dir, b"").expect("an empty value removes");
    set(dir, b"").expect("what is not there");
    assert_eq!(get(dir), Err(Status::ENODATA));
    f.check();
}

#[test]
fn a_file_with_a_foreign_layout_never_gets_objects() {
    let f = Fixture::with_osts(2);
    let fid = f.file(Fid::ROOT, "f").expect("made").fid;
    let flags = nacre_wire::mds::XattrFlags::empty();
    let set = |fid, value: &[u8]| f.attr(&MdsRequest::SetXattr { fid, name: b"lustre.lov", value, flags });
    let foreign = user_md::Foreign { kind: 0xda05, flags: 7, text: b"PUUID:CUUID".to_vec() };
    let value = user_md::encode_foreign(&foreign);
    assert_eq!(set(fid, &value[..20]), Err(Status::EINVAL));
    set(fid, &value).expect("set");
    assert_eq!(f.intent(fid).err(), Some(Status::EBADF));
    let f = f.restart();
    let set = |fid, value: &[u8]| f.attr(&MdsRequest::SetXattr { fid, name: b"lustre.lov", value, flags });
    assert_eq!(
        f.run(&MdsRequest::GetXattr { fid, name: b"lustre.lov" }),
        Ok(MdsReply::Bytes(value.clone())),
        "byte for byte"
    );
    assert_eq!(f.requested(fid, LayoutRequest::default()).err(), Some(Status::EALREADY), "it stays");
    set(fid, &value).expect("ignored");
    let size = |size| {
        let set = nacre_types::SetAttr { valid: nacre_types::SetAttrValid::SIZE, size, ..Default::default() };
        f.attr(&MdsRequest::SetAttr { fid, set }).map(|attr| attr.size)
    };
    assert_eq!((size(0), size(5)), (Ok(0), Err(Status::EBADF)));
    let dir = f.dir(Fid::ROOT, "d").expect("made").fid;
    assert_eq!(set(dir, &value).err(), Some(Status::EINVAL));
    let used = f.file(dir, "used").expect("made").fid;
    f.intent(used).expect("objects");
    set(used, &value).expect("ignored");
    assert!(f.layout(used).has_objects());
    let gone = f.file(dir, "gone").expect("made").fid;
    set(gone, &value).expect("set");
    f.unlink(dir, "gone").expect("removed");
    f.check();
}

const MIB: u64 = 1 << 20;

/// Builds components with these ends and stripe counts.
fn composite(parts: &[(u64, u16)]) -> LayoutRequest {
    let mut start = 0;
    let component = |&(end, count): &(u64, u16)| {
        let extent = Extent { start, end };
        start = end;
        let spec = LayoutSpec { stripe_count: Some(count), ..LayoutSpec::default() };
        ComponentSpec { extent, flags: ComponentFlags::default(), spec }
    };
    LayoutRequest::Composite(parts.iter().map(component).collect())
}

fn pfl() -> LayoutRequest {
    composite(&[(MIB, 1), (4 * MIB, 2), (Extent::EOF, STRIPE_COUNT_ALL)])
}

fn counts(layout: &Layout) -> Vec<usize> {
    layout.components.iter().map(|component| component.objects.len()).collect()
}

#[test]
fn components_get_objects_when_somebody_first_writes_at_or_behind_them() {
    let f = Fixture::with_osts(4);
    let fid = f.file(Fid::ROOT, "f").expect("made").fid;
    let attr = f.requested(fid, pfl()).expect("set");
    assert!(attr.flags.contains(AttrFlags::HAS_OBJECTS), "the first component has objects at once");
    assert_eq!((attr.size, attr.size_source), (0, SizeSource::Exact));
    let begun = f.layout(fid);
    assert_eq!((counts(&begun), begun.generation), (vec![1, 0, 0], 4));
    // Data in the first component needs nothing more, including its last byte.
    assert_eq!(counts(&f.intent_for(fid, 0, MIB).expect("there")), [1, 0, 0]);
    assert_eq!(f.layout(fid).generation, 4);
    let second = f.intent_for(fid, MIB - 1, MIB + 1).expect("objects");
    assert_eq!((counts(&second), second.generation), (vec![1, 2, 0], 5));
    assert_eq!(second.components[0], begun.components[0], "what has objects keeps them");
    let used: std::collections::HashSet<u16> = indexes(&second).into_iter().collect();
    assert_eq!(used.len(), 3, "components use other OSTs than their neighbours");
    // Far behind: all components before it get objects as well.
    let other = f.file(Fid::ROOT, "g").expect("made").fid;
    f.requested(other, pfl()).expect("set");
    let all = f.intent_for(other, 100 * MIB, 100 * MIB + 1).expect("objects");
    assert_eq!((counts(&all), all.generation), (vec![1, 2, 4], 5));
    let mut objects: Vec<Fid> = all.objects().chain(second.objects()).map(|o| o.object).collect();
    objects.sort_unstable();
    objects.dedup();
    assert_eq!(objects.len(), 10, "no object belongs to two");
    let f = f.restart();
    assert_eq!(f.layout(other), *all);
    f.unlink(Fid::ROOT, "f").expect("removed");
    f.unlink(Fid::ROOT, "g").expect("removed");
    f.answer(&f.cred, &MdsRequest::Commit { upto: nacre_types::TransNo(u64::MAX) }).expect("durable");
    let mut destroyed: Vec<Fid> = f.osts.iter().flat_map(|ost| ost.destroyed.lock().clone()).collect();
    destroyed.sort_unstable();
    assert_eq!(destroyed, objects);
    f.check();
}

#[test]
fn composite_defaults_are_inherited_from_directory_parent_and_root() {
    let f = Fixture::with_osts(4);
    let dir = f.dir(Fid::ROOT, "d").expect("made").fid;
    f.requested(dir, pfl()).expect("set");
    let sub = f.dir(dir, "sub").expect("made").fid;
    assert_eq!(f.run(&MdsRequest::GetDefaultLayout { fid: sub }), Ok(MdsReply::DefaultLayout(Some(pfl()))));
    let file = f.file(sub, "f").expect("made").fid;
    let shown = f.layout(file);
    assert_eq!((counts(&shown), shown.generation), (vec![0, 0, 0], 3), "objects come with the first write");
    assert_eq!(counts(&f.intent(file).expect("objects")), [1, 0, 0]);
    // The root's default is looked up on use.
    let plain = f.file(Fid::ROOT, "before").expect("made").fid;
    f.requested(Fid::ROOT, composite(&[(2 * MIB, 1), (Extent::EOF, 3)])).expect("set");
    assert_eq!(counts(&f.intent_for(plain, 0, 3 * MIB).expect("objects")), [1, 3]);
    // A file with a specification of its own is not split; its directory completes the open fields.
    let own = f.file(dir, "own").expect("made").fid;
    f.stripe(own, LayoutSpec { stripe_size: Some(65536), ..LayoutSpec::default() }).expect("set");
    assert_eq!((counts(&f.layout(own)), f.layout(own).components[0].stripe_size), (vec![1], 65536));
    let wide = f.dir(Fid::ROOT, "wide").expect("made").fid;
    f.stripe(wide, LayoutSpec { stripe_count: Some(3), ..LayoutSpec::default() }).expect("set");
    let own = f.file(wide, "own").expect("made").fid;
    f.stripe(own, LayoutSpec { stripe_size: Some(65536), ..LayoutSpec::default() }).expect("set");
    assert_eq!(counts(&f.layout(own)), [3]);
    f.requested(dir, LayoutRequest::default()).expect("removed");
    assert_eq!(f.run(&MdsRequest::GetDefaultLayout { fid: dir }), Ok(MdsReply::DefaultLayout(None)));
    f.check();
}

#[test]
fn a_file_ends_where_its_last_component_ends() {
    let f = Fixture::with_osts(2);
    let fid = f.file(Fid::ROOT, "f").expect("made").fid;
    f.requested(fid, composite(&[(MIB, 1), (2 * MIB, 1)])).expect("set");
    assert_eq!(f.intent_for(fid, 2 * MIB, 2 * MIB + 1), Err(Status::ENODATA));
    assert_eq!(counts(&f.intent_for(fid, MIB, 9 * MIB).expect("the part inside")), [1, 1]);
    let set = |size| {
        let valid = nacre_types::SetAttrValid::SIZE;
        f.attr(&MdsRequest::SetAttr { fid, set: nacre_types::SetAttr { valid, size, ..Default::default() } })
    };
    assert_eq!(set(2 * MIB + 1).err(), Some(Status::ENODATA));
    assert_eq!(set(2 * MIB).expect("all of it").size, 2 * MIB);
}

#[test]
fn composite_wishes_that_cannot_be_met_are_refused() {
    let f = Fixture::with_osts(2);
    let fid = f.file(Fid::ROOT, "f").expect("made").fid;
    let with = |change: fn(&mut Vec<ComponentSpec>)| {
        let LayoutRequest::Composite(mut parts) = pfl() else { panic!("composite") };
        change(&mut parts);
        f.requested(fid, LayoutRequest::Composite(parts)).err()
    };
    assert_eq!(with(|parts| parts.clear()), Some(Status::EINVAL));
    assert_eq!(with(|parts| parts[0].extent.start = MIB / 2), Some(Status::EINVAL));
    assert_eq!(with(|parts| parts[1].extent.start = 2 * MIB), Some(Status::EINVAL));
    assert_eq!(with(|parts| parts[1].spec.first_ost = Some(7)), Some(Status::EINVAL));
    assert_eq!(with(|parts| parts[2].spec.stripe_size = Some(1000)), Some(Status::EINVAL));
    assert_eq!(counts(&f.intent(fid).expect("still plain")), [1]);
    assert_eq!(f.requested(fid, pfl()).err(), Some(Status::EALREADY));
}

#[test]
fn many_components_on_few_osts_get_their_objects_at_once() {
    let f = Fixture::with_osts(1);
    let fid = f.file(Fid::ROOT, "f").expect("made").fid;
    let parts: Vec<(u64, u16)> = (1..=500).map(|i| (i * MIB, 1)).collect();
    f.requested(fid, composite(&parts)).expect("set");
    let layout = f.intent_for(fid, 0, 500 * MIB).expect("objects");
    assert!(layout.objects().count() == 500 && layout.components.iter().all(|c| c.is_instantiated()));
    assert_eq!(
        f.requested(Fid::ROOT, composite(&(1..=700).map(|i| (i * MIB, 1)).collect::<Vec<_>>())).err(),
        Some(Status::EINVAL)
    );
    f.check();
}

#[test]
fn lustres_attribute_shows_and_sets_components() {
    let f = Fixture::with_osts(2);
    let get = |fid| match f.run(&MdsRequest::GetXattr { fid, name: b"lustre.lov" }) {
        Ok(MdsReply::Bytes(bytes)) => bytes,
        other => panic!("{other:?}"),
    };
    let set = |fid, value: &[u8]| {
        let flags = nacre_wire::mds::XattrFlags::empty();
        f.attr(&MdsRequest::SetXattr { fid, name: b"lustre.lov", value, flags })
    };
    let dir = f.dir(Fid::ROOT, "d").expect("made").fid;
    set(dir, &user_md::encode_request(&Fid::ZERO, &pfl())).expect("set");
    assert_eq!(user_md::decode_request(&get(dir)), Ok(pfl()));
    let file = f.file(dir, "f").expect("made").fid;
    let shown = user_md::decode_layout(&get(file)).expect("a layout");
    assert_eq!(shown.components.iter().map(|c| c.id).collect::<Vec<_>>(), [1, 2, 3]);
    let layout = f.intent_for(file, 0, 2 * MIB).expect("objects");
    assert_eq!(user_md::decode_layout(&get(file)).as_ref(), Ok(&*layout));
    // A copy gets the same shape and objects of its own; with existing data the value is ignored.
    let copy = f.file(Fid::ROOT, "copy").expect("made").fid;
    set(copy, &get(file)).expect("set");
    assert_eq!(counts(&f.layout(copy)), [1, 0, 0]);
    assert!(
        f.layout(copy).objects().all(|object| layout.objects().all(|other| other.object != object.object))
    );
    set(copy, &get(file)).expect("ignored");
}

#[test]
fn components_are_added_at_the_end_and_taken_away_while_they_have_no_objects() {
    let f = Fixture::with_osts(2);
    let fid = f.file(Fid::ROOT, "f").expect("made").fid;
    let edit = |fid, name: &[u8], value: &[u8]| {
        let flags = nacre_wire::mds::XattrFlags::empty();
        f.attr(&MdsRequest::SetXattr { fid, name, value, flags }).map(|_| ())
    };
    let LayoutRequest::Composite(parts) = pfl() else { panic!("composite") };
    let add = |fid, parts: &[ComponentSpec]| edit(fid, b"lustre.lov.add", &user_md::encode_added(parts));
    let delete = |selector| edit(fid, b"lustre.lov.del", &user_md::encode_selector(selector));
    assert_eq!(add(fid, &parts[1..]), Err(Status::EINVAL), "the file is plain");
    f.requested(fid, composite(&[(MIB, 1)])).expect("set");
    assert_eq!(f.intent_for(fid, MIB, MIB + 1), Err(Status::ENODATA));
    assert_eq!(add(fid, &parts[2..]), Err(Status::EINVAL), "a gap");
    assert_eq!(add(fid, &parts[..1]), Err(Status::EINVAL), "an overlap");
    add(fid, &parts[1..]).expect("added");
    let layout = f.layout(fid);
    assert_eq!(layout.components.iter().map(|c| c.id).collect::<Vec<_>>(), [1, 2, 3]);
    assert_eq!((counts(&layout), layout.generation), (vec![1, 0, 0], 4));
    assert_eq!(add(fid, &parts[1..]), Err(Status::EINVAL), "it reaches to the end of the file");
    assert_eq!(delete(user_md::Selector::Id(2)), Err(Status::EINVAL), "not the last");
    delete(user_md::Selector::Id(3)).expect("deleted");
    assert_eq!((f.layout(fid).end(), f.layout(fid).generation), (4 * MIB, 5));
    assert_eq!(counts(&f.intent_for(fid, MIB, 2 * MIB).expect("objects")), [1, 2]);
    delete(user_md::Selector::Id(2)).expect("deleted with its objects");
    assert_eq!(counts(&f.layout(fid)), [1]);
    add(fid, &parts[1..2]).expect("added again");
    assert_eq!(counts(&f.intent_for(fid, MIB, 2 * MIB).expect("objects")), [1, 2]);
    assert_eq!(delete(user_md::Selector::WithoutObjects), Err(Status::EINVAL), "there is none");
    add(fid, &parts[2..]).expect("added again");
    delete(user_md::Selector::WithoutObjects).expect("deleted");
    assert_eq!(counts(&f.layout(fid)), [1, 2]);
    // A file that was never written.
    let dir = f.dir(Fid::ROOT, "d").expect("made").fid;
    f.requested(dir, composite(&[(MIB, 1)])).expect("set");
    assert_eq!(add(dir, &parts[1..]), Err(Status::EINVAL), "not for directories");
    let empty = f.file(dir, "empty").expect("made").fid;
    add(empty, &parts[1..]).expect("added");
    assert_eq!(counts(&f.intent_for(empty, 0, 5 * MIB).expect("objects")), [1, 2, 2]);
    let flags = edit(fid, b"lustre.lov.set.flags", &user_md::encode_selector(user_md::Selector::Id(1)));
    assert_eq!(flags, Err(Status::EINVAL));
    f.check();
}
