//! Data of files on the MDT: when a file gets its place there, and when the data goes.

use super::Fixture;
use crate::tests::attr_of;
use nacre_layout::{ComponentFlags, ComponentSpec, Extent, Layout, LayoutSpec, Pattern, Wish};
use nacre_store::object::ObjectStore;
use nacre_types::{Attr, AttrFlags, Fid, OpenHandle, SizeSource, Status};
use nacre_wire::mds::{MdsReply, MdsRequest, NewFile, OpenFlags};

const MIB: u64 = 1 << 20;

/// A MiB on the MDT, the rest on an OST.
fn wish() -> Wish {
    let part = |start, end, spec| ComponentSpec {
        extent: Extent { start, end },
        flags: ComponentFlags::default(),
        spec,
    };
    Wish::Composite(vec![part(0, MIB, LayoutSpec::ON_MDT), part(MIB, Extent::EOF, LayoutSpec::default())])
}

/// A directory whose files begin on the MDT.
fn directory(f: &Fixture) -> Fid {
    let dir = f.dir(Fid::ROOT, "d").expect("made").fid;
    f.run(&MdsRequest::SetLayout { fid: dir, wish: wish() }).expect("set");
    dir
}

/// Makes a file and opens it.
fn create(f: &Fixture, dir: Fid, name: &str, flags: OpenFlags) -> (Attr, OpenHandle, Option<Layout>) {
    let handle = f.handle();
    let request = MdsRequest::Create {
        parent: dir,
        name: name.as_bytes(),
        fid: f.fid(),
        new: NewFile::Node { rdev: 0 },
        mode: 0o644,
        umask: 0,
        open: Some((handle, flags)),
        exclusive: true,
    };
    match f.run(&request).expect("made") {
        MdsReply::Created { attr, layout, .. } => (attr, handle, layout.map(|layout| (*layout).clone())),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_file_made_to_be_written_has_its_place_at_once_and_others_with_their_first_write() {
    let f = Fixture::with_osts(1);
    let dir = directory(&f);
    let (attr, handle, layout) = create(&f, dir, "written", OpenFlags::WRITE);
    let layout = layout.expect("opened");
    assert_eq!(layout.object_on_mdt().map(|object| object.object), Some(attr.fid));
    assert!(layout.is_instantiated(0, MIB) && !layout.is_instantiated(0, MIB + 1));
    // The creator is told what it is; who asks while it may write is sent to the data.
    assert_eq!(attr.size_source, SizeSource::Exact);
    assert_eq!(f.stat(attr.fid).expect("there").size_source, SizeSource::Objects);
    f.close(attr.fid, handle).expect("closed");
    assert_eq!(f.stat(attr.fid).expect("there").size_source, SizeSource::Exact);
    let (read, ..) = create(&f, dir, "read", OpenFlags::READ);
    assert!(!read.flags.contains(AttrFlags::HAS_OBJECTS));
    let asked = f.run(&MdsRequest::LayoutIntent { fid: read.fid, start: 0, end: 1 }).expect("given");
    let MdsReply::Layout(Some(layout)) = asked else { panic!("{asked:?}") };
    assert!(layout.object_on_mdt().is_some() && layout.objects().count() == 1, "no OST is needed for it");
    let further = f.run(&MdsRequest::LayoutIntent { fid: read.fid, start: 0, end: MIB + 1 }).expect("given");
    let MdsReply::Layout(Some(layout)) = further else { panic!("{further:?}") };
    assert_eq!(layout.objects().filter(|object| !object.is_on_mdt()).count(), 1);
    f.check();
}

#[test]
fn the_data_goes_with_the_last_name_or_the_last_close() {
    let f = Fixture::with_osts(1);
    let dir = directory(&f);
    let store = f.mds.data_store();
    let there = |fid: Fid| store.attr(fid).expect("readable").mtime.is_some();
    let (closed, handle, _) = create(&f, dir, "closed", OpenFlags::WRITE);
    store.write(closed.fid, 0, b"small").expect("written");
    f.close(closed.fid, handle).expect("closed");
    let (open, handle, _) = create(&f, dir, "open", OpenFlags::WRITE);
    store.write(open.fid, 0, &[1; 100_000]).expect("written");
    f.unlink(dir, "closed").expect("removed");
    f.unlink(dir, "open").expect("removed");
    assert_eq!((there(closed.fid), there(open.fid)), (false, true));
    f.close(open.fid, handle).expect("closed");
    assert!(!there(open.fid));
    drop(store);
    f.check();
}

#[test]
fn a_file_without_data_can_be_striped_anew_and_one_with_data_cannot() {
    let f = Fixture::with_osts(1);
    let dir = directory(&f);
    let (attr, _, _) = create(&f, dir, "f", OpenFlags::WRITE);
    let plain = Wish::Plain(LayoutSpec { stripe_count: Some(1), ..LayoutSpec::default() });
    let set = |wish: &Wish| f.run(&MdsRequest::SetLayout { fid: attr.fid, wish: wish.clone() });
    attr_of(set(&plain).expect("set")).expect("attributes");
    let MdsReply::Layout(Some(layout)) = f.run(&MdsRequest::GetLayout { fid: attr.fid }).expect("there")
    else {
        panic!("a layout")
    };
    assert_eq!(layout.components[0].pattern, Pattern::Raid0);
    let (full, _, _) = create(&f, dir, "full", OpenFlags::WRITE);
    f.mds.data_store().write(full.fid, 0, b"x").expect("written");
    let refused = f.run(&MdsRequest::SetLayout { fid: full.fid, wish: plain });
    assert_eq!(refused.err(), Some(Status::EALREADY));
    f.check();
}
