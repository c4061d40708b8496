//! Files without a specification, in a file system whose default begins on the MDT: their first data decides.

use super::Fixture;
use super::data::{closing, content, create, wrote};
use crate::first_layout;
use crate::tests::attr_of;
use nacre_layout::{Extent, Layout, LayoutRequest, LayoutSpec, Pattern};
use nacre_types::{Attr, AttrFlags, Fid, SizeSource, Status, TransNo};
use nacre_wire::mds::{DataUpdate, HEAD_DATA_MAX, MdsReply, MdsRequest, OpenFlags};

/// A file system with the default layout of a new one.
fn fixture() -> Fixture {
    let f = Fixture::with_osts(4);
    f.run(&MdsRequest::SetLayout { fid: Fid::ROOT, requested: first_layout() }).expect("set");
    f
}

fn intent(f: &Fixture, attr: &Attr, end: u64) -> Layout {
    match f.run(&MdsRequest::LayoutIntent { fid: attr.fid, start: 0, end }).expect("given") {
        MdsReply::Layout(Some(layout)) => (*layout).clone(),
        other => panic!("{other:?}"),
    }
}

/// Returns the ends of components, and the number of objects of each.
fn shape(layout: &Layout) -> Vec<(u64, usize)> {
    assert!(layout.is_sound());
    layout.components.iter().map(|c| (c.extent.end, c.objects.len())).collect()
}

const KIB: u64 = 1 << 10;
const GIB: u64 = 1 << 30;

#[test]
fn a_file_has_a_head_if_what_is_asked_for_first_ends_within_what_a_close_carries() {
    let f = fixture();
    let (small, handle, layout) = create(&f, Fid::ROOT, "small", OpenFlags::WRITE);
    let open = layout.expect("told to who may hold data back");
    assert!(open.has_open_head() && open.components[0].pattern == Pattern::Mdt);
    assert!(!small.flags.contains(AttrFlags::HAS_OBJECTS));
    let layout = intent(&f, &small, HEAD_DATA_MAX);
    assert_eq!(layout.object_on_mdt().map(|object| object.object), Some(small.fid));
    assert_eq!(shape(&layout), [(64 * KIB, 1), (GIB, 0), (Extent::EOF, 0)]);
    assert_eq!(shape(&intent(&f, &small, 65 * KIB)), [(64 * KIB, 1), (GIB, 1), (Extent::EOF, 0)]);
    f.close(small.fid, handle).expect("closed");
    let (large, ..) = create(&f, Fid::ROOT, "large", OpenFlags::WRITE);
    let layout = intent(&f, &large, HEAD_DATA_MAX + 1);
    assert_eq!(shape(&layout), [(GIB, 1), (Extent::EOF, 0)]);
    assert!(layout.object_on_mdt().is_none() && layout.components[0].extent.start == 0);
    assert_eq!(shape(&intent(&f, &large, 10)), [(GIB, 1), (Extent::EOF, 0)], "it is decided");
    let (huge, ..) = create(&f, Fid::ROOT, "huge", OpenFlags::WRITE);
    assert_eq!(shape(&intent(&f, &huge, GIB + 1)), [(GIB, 1), (Extent::EOF, 4)]);
    f.check();
}

#[test]
fn data_that_comes_with_the_close_makes_the_head_in_the_same_transaction() {
    let f = fixture();
    let (attr, handle, _) = create(&f, Fid::ROOT, "f", OpenFlags::WRITE);
    assert_eq!(f.stat(attr.fid).expect("there").size_source, SizeSource::Objects, "its writer knows better");
    let closed = f.run(&closing(&attr, handle, wrote(5, 5), 0, b"bytes")).expect("closed");
    let closed = attr_of(closed).expect("attributes");
    assert_eq!((closed.size, closed.size_source), (5, SizeSource::Exact));
    assert!(closed.flags.contains(AttrFlags::HAS_LAYOUT | AttrFlags::HAS_OBJECTS));
    let f = f.crash();
    assert_eq!(content(&f, attr.fid), b"bytes");
    assert_eq!(f.stat(attr.fid).expect("there").size, 5);
    f.check();
}

#[test]
fn data_of_a_close_is_refused_once_the_head_was_left_out() {
    let f = fixture();
    let (attr, handle, _) = create(&f, Fid::ROOT, "f", OpenFlags::WRITE);
    intent(&f, &attr, 100 * KIB);
    let refused = f.run(&closing(&attr, handle, wrote(5, 5), 0, b"bytes"));
    assert_eq!(refused.err(), Some(Status::EAGAIN));
    assert_eq!(content(&f, attr.fid), b"");
    f.close(attr.fid, handle).expect("open still");
    f.check();
}

#[test]
fn a_file_that_stays_empty_is_as_in_a_file_system_that_asks_for_nothing() {
    let f = fixture();
    let (empty, handle, _) = create(&f, Fid::ROOT, "empty", OpenFlags::WRITE);
    let nothing = DataUpdate { size_blocks: Some((0, 0)), ..DataUpdate::default() };
    let close = MdsRequest::Close { fid: empty.fid, handle, update: nothing, written: Vec::new() };
    assert_eq!(f.answer(&f.cred, &close).expect("closed").transno, TransNo(0), "no transaction");
    let stat = f.stat(empty.fid).expect("there");
    assert_eq!((stat.size, stat.size_source), (0, SizeSource::Exact));
    assert!(!stat.flags.intersects(AttrFlags::HAS_LAYOUT | AttrFlags::HAS_OBJECTS));
    let (lost, ..) = create(&f, Fid::ROOT, "lost", OpenFlags::WRITE);
    let f = f.crash();
    assert_eq!(f.stat(lost.fid).expect("there").size_source, SizeSource::Exact);
    let handle = f.open(lost.fid, OpenFlags::WRITE).expect("opened");
    f.close(lost.fid, handle).expect("closed");
    f.check();
}

#[test]
fn the_default_of_the_root_counts_when_it_is_needed_and_that_of_a_directory_when_a_file_is_made() {
    let f = fixture();
    let dir = f.dir(Fid::ROOT, "d").expect("made").fid;
    let own = f.dir(Fid::ROOT, "own").expect("made").fid;
    f.run(&MdsRequest::SetLayout { fid: own, requested: first_layout() }).expect("set");
    // A requested head is used, whatever is written.
    let (asked, ..) = create(&f, own, "f", OpenFlags::WRITE);
    assert_eq!(shape(&intent(&f, &asked, 100 * KIB)), [(64 * KIB, 1), (GIB, 1), (Extent::EOF, 0)]);
    let (silent, ..) = create(&f, dir, "f", OpenFlags::WRITE);
    assert_eq!(shape(&intent(&f, &silent, 100 * KIB)), [(GIB, 1), (Extent::EOF, 0)]);
    let wide = LayoutRequest::Plain(LayoutSpec { stripe_count: Some(2), ..LayoutSpec::default() });
    f.run(&MdsRequest::SetLayout { fid: Fid::ROOT, requested: wide }).expect("set");
    let (plain, ..) = create(&f, dir, "plain", OpenFlags::WRITE);
    assert_eq!(
        shape(&intent(&f, &plain, 1)),
        [(Extent::EOF, 2)],
        "also in directories that were there before"
    );
    f.check();
}
