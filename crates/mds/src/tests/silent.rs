//! OSTs that have just become unresponsive.

use super::*;
use nacre_layout::{Layout, LayoutRequest, LayoutSpec};
use std::time::Duration;

/// Longer than an OST counts as responsive after an answer: the condition is the passing of that time itself.
const A_MOMENT: Duration = Duration::from_millis(100);

/// Two OSTs with ids in stock.
fn two() -> Fixture {
    let f = Fixture::with_osts(2);
    for ost in &f.osts {
        let ids = |request: &OssRequest| matches!(request, OssRequest::Precreate { .. });
        eventually("ids in stock", || ost.served.lock().iter().any(ids));
    }
    f
}

fn fall_silent(f: &Fixture, ost: usize) {
    *f.osts[ost].fail.lock() = Some(Status::ETIMEDOUT);
    nacre_env::thread::sleep(A_MOMENT);
}

fn layout(f: &Fixture, fid: Fid) -> Arc<Layout> {
    match f.run(&MdsRequest::GetLayout { fid }) {
        Ok(MdsReply::Layout(Some(layout))) => layout,
        other => panic!("{other:?}"),
    }
}

fn indexes(layout: &Layout) -> Vec<u16> {
    layout.objects().map(|object| object.ost_index).collect()
}

/// Creates a file with objects and without data, on this many OSTs from OST 1 on.
fn striped(f: &Fixture, name: &str, count: u16) -> Fid {
    let fid = f.file(Fid::ROOT, name).expect("made").fid;
    let spec = LayoutSpec { stripe_count: Some(count), first_ost: Some(1), ..LayoutSpec::default() };
    f.attr(&MdsRequest::SetLayout { fid, requested: LayoutRequest::Plain(spec) }).expect("set");
    assert_eq!(indexes(&layout(f, fid))[0], 1);
    fid
}

#[test]
fn an_ost_with_ids_in_stock_that_has_fallen_silent_gets_no_new_file() {
    let f = two();
    fall_silent(&f, 1);
    for number in 0..20 {
        let fid = f.file(Fid::ROOT, &number.to_string()).expect("made").fid;
        assert_eq!(indexes(&f.intent(fid).expect("objects")), [0]);
    }
    f.check();
}

#[test]
fn where_no_ost_answers_a_file_gets_objects_all_the_same() {
    let f = two();
    fall_silent(&f, 0);
    fall_silent(&f, 1);
    let fid = f.file(Fid::ROOT, "f").expect("made").fid;
    assert_eq!(indexes(&f.intent(fid).expect("objects")).len(), 1);
    let given = striped(&f, "given", 1);
    let handle = f.open(given, OpenFlags::WRITE).expect("opened");
    assert_eq!(indexes(&layout(&f, given)), [1], "there is nowhere to go");
    f.close(given, handle).expect("closed");
}

#[test]
fn a_file_without_data_leaves_a_silent_ost_when_it_is_opened_for_writing() {
    let f = two();
    let [empty, wide, written] =
        [("empty", 1), ("wide", 2), ("written", 1)].map(|(name, n)| striped(&f, name, n));
    let object = layout(&f, written).components[0].objects[0].object;
    let handle = f.open(written, OpenFlags::WRITE).expect("opened");
    let request =
        MdsRequest::Close { fid: written, handle, update: Default::default(), written: vec![object] };
    f.run(&request).expect("closed");
    let old: Vec<Fid> = [empty, wide]
        .iter()
        .flat_map(|fid| layout(&f, *fid).objects().map(|o| o.object).collect::<Vec<_>>())
        .collect();
    fall_silent(&f, 1);
    let read = f.open(empty, OpenFlags::READ).expect("opened");
    assert_eq!(indexes(&layout(&f, empty)), [1], "who reads needs none");
    let other = f.open(empty, OpenFlags::WRITE).expect("opened");
    assert_eq!(indexes(&layout(&f, empty)), [1], "somebody has it open");
    [read, other].into_iter().for_each(|handle| drop(f.close(empty, handle).expect("closed")));
    for fid in [empty, wide, written] {
        let handle = f.open(fid, OpenFlags::WRITE).expect("opened");
        f.close(fid, handle).expect("closed");
    }
    let all = [empty, wide, written].map(|fid| indexes(&layout(&f, fid)));
    assert_eq!(all, [vec![0], vec![0], vec![1]]);
    *f.osts[1].fail.lock() = None;
    let is_gone = |object: &Fid| f.osts.iter().any(|ost| ost.destroyed.lock().contains(object));
    eventually("the old objects are destroyed", || old.iter().all(is_gone));
    f.check();
}
