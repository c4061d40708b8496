use super::*;
use nacre_layout::layout::STRIPE_COUNT_ALL;
use nacre_layout::{Layout, LayoutSpec, user as user_md};
use nacre_types::{AttrFlags, SizeSource};

impl Fixture {
    fn intent(&self, fid: Fid) -> StatusResult<Arc<Layout>> {
        match self.run(&MdsRequest::LayoutIntent { fid, start: 0, end: 4096 })? {
            MdsReply::Layout(Some(layout)) => Ok(layout),
            other => panic!("{other:?}"),
        }
    }

    fn stripe(&self, fid: Fid, spec: LayoutSpec) -> StatusResult<Attr> {
        self.attr(&MdsRequest::SetLayout { fid, spec })
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
    assert_eq!(spec, Ok(MdsReply::DefaultLayout(Some(two))));
    let own = f.file(sub, "own").expect("made").fid;
    let all =
        LayoutSpec { stripe_count: Some(STRIPE_COUNT_ALL), first_ost: Some(2), ..LayoutSpec::default() };
    let striped = f.stripe(own, all).expect("set");
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
    f.mds.set_default_layout(three);
    let Ok(MdsReply::Bytes(shown)) = f.run(&get) else { panic!("the root shows it") };
    assert_eq!(user_md::decode_spec(&shown), Ok(three));
    let file = f.file(Fid::ROOT, "f").expect("made").fid;
    assert_eq!(indexes(&f.intent(file).expect("objects")).len(), 3);
    f.mds.set_default_layout(LayoutSpec::default());
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
    let set = MdsRequest::SetLayout { fid, spec: LayoutSpec::default() };
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
fn when_every_ost_is_full_there_is_no_space() {
    let f = Fixture::with_osts(0);
    let full = FakeOst::new();
    full.statfs.lock().blocks_available = 0;
    f.mds.set_osts(vec![(0, full.clone() as Arc<dyn OssEndpoint>)]).expect("set");
    let mut count = 0;
    eventually("the refusal", || {
        count += 1;
        let fid = f.file(Fid::ROOT, &count.to_string()).expect("made").fid;
        f.intent(fid) == Err(Status::ENOSPC)
    });
    // An OST that refuses reservations counts as full as soon as its stock is used up.
    let g = Fixture::with_osts(1);
    // Only an OST that has been in touch can run full; before that its refusals mean that it is out of reach.
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
    // Ids that were in stock already may be used up first.
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
    none.mds.set_osts(vec![(3, FakeOst::new() as Arc<dyn OssEndpoint>)]).expect("set");
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
    // Also what only the log knows since a restart.
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
    // An OST that is gone holds nobody up.
    let fid = f.file(Fid::ROOT, "d").expect("made").fid;
    f.intent(fid).expect("objects");
    f.osts.iter().for_each(|ost| *ost.fail.lock() = Some(Status::EIO));
    f.unlink(Fid::ROOT, "d").expect("removed");
    let before = std::time::Instant::now();
    f.answer(&f.cred, &MdsRequest::Commit { upto: nacre_types::TransNo(u64::MAX) }).expect("durable");
    assert!(before.elapsed() < std::time::Duration::from_secs(4));
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
    assert_eq!(user_md::decode_spec(&get(dir).expect("set")), Ok(spec));
    let file = f.file(dir, "f").expect("made").fid;
    let layout = f.intent(file).expect("objects");
    let bytes = get(file).expect("has a layout");
    assert_eq!(user_md::decode_layout(&bytes).as_ref(), Ok(&*layout));
    // A wish for a file with data is refused; a copy of another file's layout is not an error.
    assert_eq!(set(file, &user_md::encode_spec(&file, &spec)), Err(Status::EALREADY));
    assert!(set(file, &bytes).is_ok());
    let copy = f.file(Fid::ROOT, "copy").expect("made").fid;
    set(copy, &bytes).expect("set");
    assert_eq!(indexes(&f.intent(copy).expect("objects")).len(), 2);
    assert_eq!(set(copy, b"nonsense"), Err(Status::EINVAL));
    f.run(&MdsRequest::RemoveXattr { fid: dir, name: b"lustre.lov" }).expect("removed");
    assert_eq!(get(dir), Err(Status::ENODATA));
    f.check();
}
