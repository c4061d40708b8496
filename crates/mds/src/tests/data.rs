//! Data of files on the MDT: when a file is placed there, and when the data is removed.

use super::Fixture;
use crate::tests::attr_of;
use crate::tests::mdlocks::Cacher;
use crate::tx::now;
use nacre_layout::{ComponentFlags, ComponentSpec, Extent, Layout, LayoutRequest, LayoutSpec, Pattern};
use nacre_rpc::ReplySlot;
use nacre_types::{Attr, AttrFlags, Fid, OpenHandle, SizeSource, Status};
use nacre_types::{Timestamp, TransNo, Xid};
use nacre_wire::mds::{ClosingData, DataUpdate, MdsAnswer, MdsReply, MdsRequest, NewFile, OpenFlags};

const MIB: u64 = 1 << 20;

/// Specification: a MiB on the MDT, the rest on an OST.
fn requested() -> LayoutRequest {
    let part = |start, end, spec| ComponentSpec {
        extent: Extent { start, end },
        flags: ComponentFlags::default(),
        spec,
    };
    LayoutRequest::Composite(vec![
        part(0, MIB, LayoutSpec::ON_MDT),
        part(MIB, Extent::EOF, LayoutSpec::default()),
    ])
}

/// Creates a directory whose files begin on the MDT.
pub(super) fn directory(f: &Fixture) -> Fid {
    let dir = f.dir(Fid::ROOT, "d").expect("made").fid;
    f.run(&MdsRequest::SetLayout { fid: dir, requested: requested() }).expect("set");
    dir
}

/// Creates a file and opens it.
pub(super) fn create(
    f: &Fixture,
    dir: Fid,
    name: &str,
    flags: OpenFlags,
) -> (Attr, OpenHandle, Option<Layout>) {
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
    // The creator gets the exact size; other clients are sent to the data while it may write.
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
    let plain = LayoutRequest::Plain(LayoutSpec { stripe_count: Some(1), ..LayoutSpec::default() });
    let set = |requested: &LayoutRequest| {
        f.run(&MdsRequest::SetLayout { fid: attr.fid, requested: requested.clone() })
    };
    attr_of(set(&plain).expect("set")).expect("attributes");
    let MdsReply::Layout(Some(layout)) = f.run(&MdsRequest::GetLayout { fid: attr.fid }).expect("there")
    else {
        panic!("a layout")
    };
    assert_eq!(layout.components[0].pattern, Pattern::Raid0);
    let (full, _, _) = create(&f, dir, "full", OpenFlags::WRITE);
    f.mds.data_store().write(full.fid, 0, b"x").expect("written");
    let refused = f.run(&MdsRequest::SetLayout { fid: full.fid, requested: plain });
    assert_eq!(refused.err(), Some(Status::EALREADY));
    f.check();
}

/// Builds a client's update after a write.
pub(super) fn wrote(size: u64, seconds: i64) -> DataUpdate {
    let mtime = Some(Timestamp::new(seconds, 0));
    DataUpdate { size_blocks: Some((size, 0)), mtime, atime: None, order: 1, size_stamp: 0 }
}

/// Builds a close with these bytes at `offset`.
pub(super) fn closing<'a>(
    attr: &Attr,
    handle: OpenHandle,
    update: DataUpdate,
    offset: u64,
    bytes: &'a [u8],
) -> MdsRequest<'a> {
    let data = ClosingData { object: attr.fid, offset, bytes };
    MdsRequest::CloseWrite { fid: attr.fid, handle, update, data }
}

pub(super) fn content(f: &Fixture, fid: Fid) -> Vec<u8> {
    let mut bytes = vec![0; 100];
    let read = f.mds.data_store().read(fid, 0, &mut bytes, 0).expect("readable");
    bytes.truncate(read);
    bytes
}

#[test]
fn data_size_and_times_of_a_close_are_one_transaction() {
    let f = Fixture::with_osts(1);
    let dir = directory(&f);
    let told = std::sync::Arc::new(nacre_env::sync::Mutex::new(Vec::new()));
    let watched = told.clone();
    f.mds.watch_data(Box::new(move |object, bytes| watched.lock().push((object, bytes))));
    let (attr, handle, _) = create(&f, dir, "f", OpenFlags::WRITE);
    let before =
        f.answer(&f.cred, &MdsRequest::Commit { upto: TransNo(0) }).expect("answered").last_committed;
    let soon = now().sec + 100;
    let MdsAnswer { transno, reply, .. } =
        f.answer(&f.cred, &closing(&attr, handle, wrote(8, soon), 3, b"bytes")).expect("closed");
    let closed = attr_of(reply).expect("attributes");
    assert_eq!((closed.size, closed.blocks, closed.mtime.sec), (8, 8, soon));
    assert_eq!(closed.size_source, SizeSource::Exact);
    assert!(before <= transno && transno.0 > 0);
    assert_eq!(content(&f, attr.fid), b"\0\0\0bytes");
    assert_eq!(*told.lock(), [(attr.fid, 5)], "who serves the data knows of it");
    assert_eq!(f.close(attr.fid, handle).err(), Some(Status::EBADF), "the handle went with it");
    f.check();
}

#[test]
fn data_of_a_close_is_refused_whole_where_it_cannot_be_taken() {
    let f = Fixture::with_osts(1);
    let dir = directory(&f);
    let (attr, handle, _) = create(&f, dir, "f", OpenFlags::WRITE);
    let refused = |request: MdsRequest<'_>| f.run(&request).err();
    let update = wrote(5, 5);
    assert_eq!(refused(closing(&attr, OpenHandle(999), update, 0, b"bytes")), Some(Status::EBADF));
    assert_eq!(refused(closing(&attr, handle, update, u64::MAX, b"bytes")), Some(Status::EINVAL));
    assert_eq!(refused(closing(&attr, handle, update, MIB - 4, b"bytes")), Some(Status::EINVAL));
    assert_eq!(refused(closing(&attr, handle, update, 0, &[1; 40_000])), Some(Status::EINVAL));
    let other = Attr { fid: f.fid(), ..attr };
    let data = ClosingData { object: other.fid, offset: 0, bytes: b"bytes" };
    let strange = MdsRequest::CloseWrite { fid: attr.fid, handle, update, data };
    assert_eq!(refused(strange), Some(Status::EAGAIN), "not this file's object");
    f.run(&MdsRequest::LayoutIntent { fid: attr.fid, start: 0, end: MIB + 1 }).expect("given");
    assert_eq!(
        refused(closing(&attr, handle, update, 0, b"bytes")),
        Some(Status::EAGAIN),
        "there are others"
    );
    assert_eq!(content(&f, attr.fid), b"");
    f.close(attr.fid, handle).expect("open still");
    let (attr, handle, _) = create(&f, dir, "shared", OpenFlags::WRITE);
    let _other = Cacher::connect(&f, 2);
    assert_eq!(refused(closing(&attr, handle, update, 0, b"bytes")), Some(Status::EAGAIN), "not alone");
    f.check();
}

#[test]
fn data_of_a_removed_file_goes_with_its_last_close() {
    let f = Fixture::with_osts(1);
    let dir = directory(&f);
    let (attr, handle, _) = create(&f, dir, "f", OpenFlags::WRITE);
    f.unlink(dir, "f").expect("removed");
    f.run(&closing(&attr, handle, wrote(5, 5), 0, b"bytes")).expect("closed");
    assert_eq!(f.stat(attr.fid).err(), Some(Status::ENOENT));
    assert!(f.mds.data_store().attr(attr.fid).expect("readable").mtime.is_none());
    f.check();
}

/// Only the creation of an empty file is stored; its object determines its size, also after a crash.
#[test]
fn the_size_of_a_file_here_is_that_of_its_object_unless_somebody_writes() {
    let f = Fixture::with_osts(1);
    let dir = directory(&f);
    let (empty, handle, _) = create(&f, dir, "empty", OpenFlags::WRITE);
    let nothing = DataUpdate { size_blocks: Some((0, 0)), ..DataUpdate::default() };
    let close = MdsRequest::Close { fid: empty.fid, handle, update: nothing, written: Vec::new() };
    assert_eq!(f.answer(&f.cred, &close).expect("closed").transno, TransNo(0), "no transaction");
    let stat = f.stat(empty.fid).expect("there");
    assert_eq!((stat.size, stat.blocks, stat.size_source), (0, 0, SizeSource::Exact));
    assert_eq!((stat.mtime, stat.ctime), (empty.mtime, empty.ctime));

    let (lost, _, _) = create(&f, dir, "lost", OpenFlags::WRITE);
    f.mds.data_store().write(lost.fid, 0, b"seven b").expect("written");
    assert_eq!(f.stat(lost.fid).expect("there").size_source, SizeSource::Objects, "the writer knows");
    let f = f.crash();
    let stat = f.lookup(dir, "lost").expect("found").expect("there");
    assert_eq!((stat.size, stat.blocks, stat.size_source), (7, 8, SizeSource::Exact));
    assert!(stat.mtime > lost.mtime);
    let handle = f.open(lost.fid, OpenFlags::WRITE).expect("opened");
    assert_eq!(f.stat(lost.fid).expect("there").size_source, SizeSource::Objects);
    f.close(lost.fid, handle).expect("closed");
    let after = f.stat(lost.fid).expect("there");
    assert_eq!((after.size, after.mtime, after.size_source), (7, stat.mtime, SizeSource::Exact));
    f.check();
}

/// Times that were set are not replaced by those of the object.
#[test]
fn an_open_that_writes_nothing_leaves_the_times_alone() {
    use nacre_types::{SetAttr, SetAttrValid};
    let f = Fixture::with_osts(1);
    let dir = directory(&f);
    let (attr, handle, _) = create(&f, dir, "f", OpenFlags::WRITE);
    f.run(&closing(&attr, handle, wrote(5, now().sec), 0, b"bytes")).expect("closed");
    let old = Timestamp::new(1_000_000_000, 0);
    let set = SetAttr { valid: SetAttrValid::MTIME, mtime: old, ..SetAttr::default() };
    f.run(&MdsRequest::SetAttr { fid: attr.fid, set }).expect("set");
    let handle = f.open(attr.fid, OpenFlags::WRITE).expect("opened");
    f.close(attr.fid, handle).expect("closed");
    assert_eq!(f.stat(attr.fid).expect("there").mtime, old);
}

/// A close whose answer was lost is resent to the next run of the server, which recognises it.
#[test]
fn a_close_with_data_that_is_sent_again_after_a_restart_ran_once() {
    let f = Fixture::with_osts(1);
    let dir = directory(&f);
    let (attr, handle, _) = create(&f, dir, "f", OpenFlags::WRITE);
    let slot = ReplySlot { client: f.export.client, tag: 3, xid: Xid(40) };
    let close = closing(&attr, handle, wrote(5, 5), 0, b"bytes");
    f.with_slot(slot, &close).expect("closed");
    let f = f.crash();
    let known = f.mds.find_stored_answer(&slot).expect("known");
    assert_eq!(attr_of(known.reply).expect("attributes").size, 5);
    assert_eq!(content(&f, attr.fid), b"bytes");
    // A resend after the reply was dropped finds no handle, and does nothing.
    f.mds.data_store().write(attr.fid, 0, b"newer").expect("written");
    let close = closing(&attr, handle, wrote(5, 5), 0, b"bytes");
    assert_eq!(f.run(&close).err(), Some(Status::EBADF));
    assert_eq!(content(&f, attr.fid), b"newer");
    f.check();
}

/// A client's write may arrive after the file was removed: it was resent after a restart, or the file was
/// only truncated and never opened.
#[test]
fn what_comes_late_for_a_file_that_is_gone_makes_no_data() {
    let f = Fixture::with_osts(1);
    let dir = directory(&f);
    let (attr, handle, _) = create(&f, dir, "f", OpenFlags::WRITE);
    f.mds.data_store().write(attr.fid, 0, b"small").expect("written");
    f.close(attr.fid, handle).expect("closed");
    f.unlink(dir, "f").expect("removed");
    let late = |f: &Fixture| {
        let store = f.mds.data_store();
        let outcomes = [
            store.write(attr.fid, 0, b"late").map(drop),
            store.truncate(attr.fid, 5000).map(drop),
            store.write(attr.fid, 100_000, b"late and far").map(drop),
        ];
        for outcome in outcomes {
            assert_eq!(outcome.map_err(|error| error.status()), Err(Status::ESTALE));
        }
        assert!(store.attr(attr.fid).expect("readable").mtime.is_none());
    };
    late(&f);
    let f = f.crash();
    late(&f);
    f.check();
}

#[test]
fn what_is_written_while_the_file_goes_goes_too() {
    let f = Fixture::with_osts(1);
    let dir = directory(&f);
    for round in 0..200_u32 {
        let (attr, handle, _) = create(&f, dir, "f", OpenFlags::WRITE);
        f.close(attr.fid, handle).expect("closed");
        let store = f.mds.data_store();
        let begin = std::sync::Barrier::new(2);
        nacre_env::thread::scope(|scope| {
            scope.spawn(|| {
                begin.wait();
                match store.truncate(attr.fid, u64::from(round) + 1) {
                    Ok(_) => {}
                    Err(error) => assert_eq!(error.status(), Status::ESTALE),
                }
            });
            begin.wait();
            f.unlink(dir, "f").expect("removed");
        });
        assert!(store.attr(attr.fid).expect("readable").mtime.is_none(), "round {round}");
    }
    f.check();
}

#[test]
fn an_empty_file_that_has_taken_the_layout_of_another_one_can_be_written_when_that_is_gone() {
    let f = Fixture::with_osts(1);
    let dir = directory(&f);
    let files = ["a", "b"].map(|name| {
        let (attr, handle, _) = create(&f, dir, name, OpenFlags::WRITE);
        f.close(attr.fid, handle).expect("closed");
        attr.fid
    });
    let swap = MdsRequest::SwapLayouts {
        first: files[0],
        second: files[1],
        versions: (None, None),
        keep_times: true,
        lease: None,
    };
    f.run(&swap).expect("swapped");
    f.unlink(dir, "b").expect("removed");
    let MdsReply::Layout(Some(layout)) = f.run(&MdsRequest::GetLayout { fid: files[0] }).expect("there")
    else {
        panic!("a layout")
    };
    let object = layout.object_on_mdt().expect("on the MDT").object;
    assert_eq!(object, files[1]);
    f.mds.data_store().write(object, 0, b"data").expect("written");
    f.check();
}
