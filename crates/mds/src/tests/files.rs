use super::*;
use nacre_types::{AttrFlags, SetAttr, SetAttrValid, SizeSource, Timestamp};
use nacre_wire::mds::{DataUpdate, FileLock, LockMode, LockOwner, RenameFlags};

fn wrote(size: u64) -> DataUpdate {
    DataUpdate { size_blocks: Some((size, size.div_ceil(512))), order: 1, ..DataUpdate::default() }
}

impl Fixture {
    fn write_intent(&self, fid: Fid) {
        self.run(&MdsRequest::LayoutIntent { fid, start: 0, end: 1 }).expect("objects");
    }

    fn close_with(&self, fid: Fid, handle: OpenHandle, update: DataUpdate) -> Attr {
        let update = self.up_to_date(fid, update);
        attr_of(self.run(&MdsRequest::Close { fid, handle, update, written: Vec::new() }).expect("closes"))
            .expect("attributes")
    }
}

#[test]
fn an_unlinked_open_file_lives_until_its_last_close() {
    let f = Fixture::new();
    let fid = f.file(Fid::ROOT, "a").expect("made").fid;
    let first = f.open(fid, OpenFlags::READ).expect("opens");
    let second = f.open(fid, OpenFlags::WRITE).expect("opens");
    f.write_intent(fid);
    f.unlink(Fid::ROOT, "a").expect("removed");
    let attr = f.stat(fid).expect("open");
    assert!(attr.nlink == 0 && attr.flags.contains(AttrFlags::ORPHAN));
    let link = MdsRequest::Link { fid, parent: Fid::ROOT, name: b"b" };
    assert_eq!(f.run(&link), Err(Status::ENOENT));
    assert_eq!(f.close_with(fid, second, wrote(5)).size, 5);
    assert_eq!(f.close(fid, first), Ok(MdsReply::Done));
    assert_eq!(f.stat(fid), Err(Status::ENOENT));
    assert_eq!(f.close(fid, first), Err(Status::EBADF));
    let ost = f.osts[0].clone();
    eventually("the object's destruction", || ost.destroyed.lock().len() == 1);
    f.check();
}

#[test]
fn a_file_without_name_can_be_linked_once_or_goes_at_its_close() {
    let f = Fixture::new();
    let make = |handle| {
        let fid = f.fid();
        let request = MdsRequest::Create {
            parent: Fid::ROOT,
            name: b"",
            fid,
            new: NewFile::Unnamed,
            mode: 0o600,
            umask: 0,
            open: Some((handle, OpenFlags::WRITE | OpenFlags::CREATED)),
            exclusive: true,
        };
        let attr = f.attr(&request).expect("made");
        assert_eq!((attr.nlink, attr.fid), (0, fid));
        fid
    };
    let (kept, lost) = (make(f.handle()), make(f.handle()));
    let attr = f.attr(&MdsRequest::Link { fid: kept, parent: Fid::ROOT, name: b"k" }).expect("linked");
    assert!(attr.nlink == 1 && !attr.flags.contains(AttrFlags::ORPHAN));
    assert_eq!(f.close(lost, OpenHandle(2)), Ok(MdsReply::Done));
    assert_eq!(f.stat(lost), Err(Status::ENOENT));
    f.close(kept, OpenHandle(1)).expect("closes");
    assert_eq!(f.lookup(Fid::ROOT, "k").map(|a| a.map(|a| a.fid)), Ok(Some(kept)));
    f.check();
}

#[test]
fn the_size_is_in_the_objects_while_somebody_writes_and_exact_afterwards() {
    let f = Fixture::new();
    let fid = f.file(Fid::ROOT, "a").expect("made").fid;
    let handle = f.open(fid, OpenFlags::WRITE).expect("opens");
    assert_eq!(f.stat(fid).expect("there").size_source, SizeSource::Exact, "no object, no doubt");
    f.write_intent(fid);
    assert_eq!(f.stat(fid).expect("there").size_source, SizeSource::Objects);
    let told = f
        .attr(&MdsRequest::UpdateData { fid, update: wrote(7), exact: false, written: Vec::new() })
        .expect("told");
    assert_eq!((told.size, told.size_source), (7, SizeSource::Objects));
    let mtime = Timestamp::new(1_900_000_000, 1);
    let closed = f.close_with(fid, handle, DataUpdate { mtime: Some(mtime), ..wrote(9) });
    assert_eq!((closed.size, closed.size_source, closed.mtime), (9, SizeSource::Exact, mtime));
    // Opened again for writing without a write: uncertain, then exact again.
    let handle = f.open(fid, OpenFlags::WRITE).expect("opens");
    assert_eq!(f.stat(fid).expect("there").size_source, SizeSource::Objects);
    let closed = f.close_with(fid, handle, DataUpdate::default());
    assert_eq!((closed.size, closed.size_source), (9, SizeSource::Exact));
    f.check();
}

#[test]
fn a_close_that_was_overtaken_by_later_news_changes_neither_size_nor_time() {
    let f = Fixture::new();
    let fid = f.file(Fid::ROOT, "a").expect("made").fid;
    let (early, late) =
        (f.open(fid, OpenFlags::WRITE).expect("opens"), f.open(fid, OpenFlags::WRITE).expect("opens"));
    f.write_intent(fid);
    let (past, now) = (Timestamp::new(1_900_000_000, 0), Timestamp::new(1_900_000_001, 0));
    f.close_with(fid, late, DataUpdate { mtime: Some(now), order: 2, ..wrote(9) });
    let closed = f.close_with(fid, early, DataUpdate { mtime: Some(past), order: 1, ..wrote(5) });
    assert_eq!((closed.size, closed.size_source, closed.mtime), (9, SizeSource::Exact, now));
    // The next period of writing restarts the order, after a restart of the client or the server.
    let handle = f.open(fid, OpenFlags::WRITE).expect("opens");
    let closed = f.close_with(fid, handle, DataUpdate { order: 1, ..wrote(5) });
    assert_eq!((closed.size, closed.size_source), (5, SizeSource::Exact));
    f.check();
}

#[test]
fn two_clients_that_write_leave_the_size_to_the_objects_until_one_asks_them() {
    let f = Fixture::new();
    let fid = f.file(Fid::ROOT, "a").expect("made").fid;
    let mine = f.open(fid, OpenFlags::WRITE).expect("opens");
    f.write_intent(fid);
    let (other, _) = export(9, tcp_nid());
    // Admitted without a wait: the first client releases its lease.
    let mds = f.mds.clone();
    let (joined, theirs) = nacre_env::thread::scope(|scope| {
        let thread = scope.spawn(|| mds.connect(&other));
        eventually("the release", || f.run(&MdsRequest::LeaseReleased { epoch: u64::MAX }).is_ok());
        while !thread.is_finished() {
            let _ = f.run(&MdsRequest::LeaseReleased { epoch: u64::MAX });
        }
        (thread.join().expect("no panic"), OpenHandle(1))
    });
    drop(mds);
    assert!(!joined.expect("let in").lease.exclusive);
    let call = |request: &MdsRequest<'_>| f.mds.handle(&other, &Call::new(&f.cred), request);
    call(&MdsRequest::Open { fid, handle: theirs, flags: OpenFlags::WRITE, lock: LockHandle(0) })
        .expect("opens");
    f.close_with(fid, mine, wrote(10));
    let update = f.up_to_date(fid, wrote(20));
    call(&MdsRequest::Close { fid, handle: theirs, update, written: Vec::new() }).expect("closes");
    assert_eq!(f.stat(fid).expect("there").size_source, SizeSource::Objects);
    let update = f.up_to_date(fid, wrote(20));
    let told =
        f.attr(&MdsRequest::UpdateData { fid, update, exact: true, written: Vec::new() }).expect("told");
    assert_eq!((told.size, told.size_source), (20, SizeSource::Exact));
    // An older glimpse of the objects arrives too late.
    let update = DataUpdate { mtime: Some(Timestamp::new(1_900_000_000, 0)), ..wrote(15) };
    let late =
        f.attr(&MdsRequest::UpdateData { fid, update, exact: true, written: Vec::new() }).expect("told");
    assert_eq!((late.size, late.mtime, late.ctime), (20, told.mtime, told.ctime));
    f.check();
}

#[test]
fn a_writer_that_dies_leaves_the_size_to_the_objects() {
    let mut f = Fixture::new();
    let fid = f.file(Fid::ROOT, "a").expect("made").fid;
    let (other, _) = export(9, Nid::Lo);
    f.mds.disconnect(f.export.client);
    f.mds.connect(&other).expect("alone");
    let call = |request: &MdsRequest<'_>| f.mds.handle(&other, &Call::new(&f.cred), request);
    call(&MdsRequest::Open { fid, handle: OpenHandle(1), flags: OpenFlags::WRITE, lock: LockHandle(0) })
        .expect("opens");
    call(&MdsRequest::LayoutIntent { fid, start: 0, end: 1 }).expect("objects");
    f.mds.disconnect(other.client);
    assert_eq!(call(&MdsRequest::GetAttr { fid }), Err(Status::EVICTED));
    // Its earlier life has ended.
    (f.export, _) = export(1, Nid::Lo);
    f.mds.connect(&f.export).expect("alone");
    assert_eq!(f.stat(fid).expect("there").size_source, SizeSource::Objects);
    f.check();
}

#[test]
fn truncation_sets_size_and_times_and_is_checked() {
    let f = Fixture::new();
    let file = f.file(Fid::ROOT, "a").expect("made");
    let size = |fid, size, extra| {
        let set = SetAttr { valid: SetAttrValid::SIZE | extra, size, ..SetAttr::default() };
        MdsRequest::SetAttr { fid, set }
    };
    let cut = f.attr(&size(file.fid, 100, SetAttrValid::empty())).expect("set");
    assert!(cut.size == 100 && cut.mtime > file.mtime && cut.size_source == SizeSource::Exact);
    assert_eq!(f.run(&size(Fid::ROOT, 1, SetAttrValid::empty())), Err(Status::EISDIR));
    assert_eq!(f.run(&size(file.fid, u64::MAX, SetAttrValid::empty())), Err(Status::EFBIG));
    let stranger = user(5, 5, &[]);
    assert_eq!(f.run_as(&stranger, &size(file.fid, 1, SetAttrValid::empty())), Err(Status::EACCES));
    assert!(f.run_as(&stranger, &size(file.fid, 1, SetAttrValid::OPEN_FOR_WRITE)).is_ok());
    f.write_intent(file.fid);
    let open = MdsRequest::Open {
        fid: file.fid,
        handle: f.handle(),
        flags: OpenFlags::WRITE | OpenFlags::TRUNCATE,
        lock: LockHandle(0),
    };
    let opened = f.attr(&open).expect("opens");
    assert_eq!((opened.size, opened.size_source), (0, SizeSource::Objects));
    f.check();
}

#[test]
fn an_open_create_opens_what_is_there_unless_it_is_exclusive() {
    let f = Fixture::new();
    let there = f.file(Fid::ROOT, "a").expect("made");
    f.dir(Fid::ROOT, "d").expect("made");
    f.symlink(Fid::ROOT, "l", "a").expect("made");
    let open = |name: &'static str, exclusive| MdsRequest::Create {
        parent: Fid::ROOT,
        name: name.as_bytes(),
        fid: f.fid(),
        new: NewFile::Node { rdev: 0 },
        mode: 0o644,
        umask: 0,
        open: Some((f.handle(), OpenFlags::READ | OpenFlags::WRITE)),
        exclusive,
    };
    match f.run(&open("a", false)) {
        Ok(MdsReply::Created { attr, created: false, .. }) => assert_eq!(attr.fid, there.fid),
        other => panic!("{other:?}"),
    }
    assert_eq!(f.run(&open("a", true)), Err(Status::EEXIST));
    assert_eq!(f.run(&open("d", false)), Err(Status::EISDIR));
    assert_eq!(f.run(&open("l", false)), Err(Status::ESTALE));
    let stranger = user(5, 5, &[]);
    assert_eq!(f.run_as(&stranger, &open("a", false)), Err(Status::EACCES));
    assert!(matches!(f.run(&open("new", false)), Ok(MdsReply::Created { created: true, .. })));
    f.check();
}

#[test]
fn locks_go_with_the_last_close_of_their_client() {
    let f = Fixture::new();
    let fid = f.file(Fid::ROOT, "a").expect("made").fid;
    let handle = f.open(fid, OpenFlags::WRITE).expect("opens");
    let lock = |owner, mode| FileLock {
        family: nacre_wire::mds::LockFamily::Range,
        owner: LockOwner(owner),
        mode,
        start: 0,
        last: u64::MAX,
        pid: 77,
    };
    f.run(&MdsRequest::SetLock { fid, lock: lock(1, LockMode::Write), wait: false }).expect("free");
    let other = MdsRequest::SetLock { fid, lock: lock(2, LockMode::Read), wait: false };
    assert_eq!(f.run(&other), Err(Status::EAGAIN));
    let seen = f.run(&MdsRequest::GetLock { fid, lock: lock(2, LockMode::Read) });
    assert_eq!(seen, Ok(MdsReply::Lock(Some(lock(1, LockMode::Write)))));
    f.close(fid, handle).expect("closes");
    assert_eq!(f.run(&other), Ok(MdsReply::Done));
}

#[test]
fn a_truncation_that_was_not_finished_leaves_the_size_to_the_objects() {
    let f = Fixture::new();
    let fid = f.file(Fid::ROOT, "a").expect("made").fid;
    let handle = f.open(fid, OpenFlags::WRITE).expect("opens");
    f.write_intent(fid);
    f.close_with(fid, handle, wrote(10));
    let handle = f.open(fid, OpenFlags::WRITE).expect("opens");
    let set = SetAttr { valid: SetAttrValid::SIZE, size: 3, ..SetAttr::default() };
    f.run(&MdsRequest::SetAttr { fid, set }).expect("recorded");
    // The client that truncated the file never reported that the objects were truncated.
    let closed = f.close_with(fid, handle, DataUpdate::default());
    assert_eq!(closed.size_source, SizeSource::Objects);
    f.check();
}

#[test]
fn a_full_mdt_refuses_to_create_but_not_to_remove() {
    let f = Fixture::new();
    let fid = f.file(Fid::ROOT, "a").expect("made").fid;
    f.mds.stop().expect("stops");
    let Fixture { dir, mds, export, .. } = f;
    drop(mds);
    let full = crate::MdsConfig { reserve_bytes: Some(u64::MAX), ..config() };
    let mds = Mds::open(dir.path(), full, Vec::new()).expect("starts");
    mds.connect(&export).expect("connects");
    let cred = Cred::system();
    let run = |request: &MdsRequest<'_>| mds.handle(&export, &Call::new(&cred), request).map(|a| a.reply);
    let Ok(MdsReply::Sequence(sequence)) = run(&MdsRequest::AllocateSequence) else { panic!("a sequence") };
    let create = MdsRequest::Create {
        parent: Fid::ROOT,
        name: b"b",
        fid: Fid::new(sequence, 1, 0),
        new: NewFile::Directory,
        mode: 0o755,
        umask: 0,
        open: None,
        exclusive: true,
    };
    assert_eq!(run(&create), Err(Status::ENOSPC));
    assert_eq!(run(&MdsRequest::Link { fid, parent: Fid::ROOT, name: b"c" }), Err(Status::ENOSPC));
    let Ok(MdsReply::Statfs(statfs)) = run(&MdsRequest::Statfs) else { panic!("space") };
    assert_eq!((statfs.blocks_available, statfs.files_free, statfs.state), (0, 0, 0x20));
    assert!(run(&MdsRequest::Unlink { parent: Fid::ROOT, name: b"a", directory: false }).is_ok());
}

#[test]
fn inodes_are_counted_and_counted_again_after_a_crash() {
    let f = Fixture::new();
    let shown = |f: &Fixture| match f.run(&MdsRequest::Statfs) {
        Ok(MdsReply::Statfs(statfs)) => statfs.files - statfs.files_free,
        other => panic!("{other:?}"),
    };
    assert_eq!(shown(&f), 1, "the root");
    let dir = f.dir(Fid::ROOT, "d").expect("made").fid;
    for name in 0..20 {
        f.file(dir, &name.to_string()).expect("made");
    }
    assert_eq!(shown(&f), 22);
    f.unlink(dir, "3").expect("removed");
    assert_eq!(shown(&f), 21);
    let f = f.restart();
    assert_eq!(shown(&f), 21);
    let f = f.crash();
    eventually("they are counted", || shown(&f) == 21);
    f.file(dir, "new").expect("made");
    assert_eq!(shown(&f), 22);
    f.check();
}

/// An interrupted client closes a handle without knowing whether its open has run, with the FID that it
/// knows.
#[test]
fn a_handle_that_is_given_back_before_its_open_runs_is_never_open() {
    let f = Fixture::new();
    let fid = f.file(Fid::ROOT, "a").expect("made").fid;
    let flags = OpenFlags::READ | OpenFlags::WRITE;
    let handle = f.handle();
    assert_eq!(f.close(fid, handle), Err(Status::EBADF));
    let open = MdsRequest::Open { fid, handle, flags, lock: LockHandle(0) };
    assert_eq!(f.run(&open).err(), Some(Status::EBADF));
    f.unlink(Fid::ROOT, "a").expect("removed");
    assert_eq!(f.stat(fid), Err(Status::ENOENT), "nobody has it open");

    let create = |name: &'static str, fid, handle, new| MdsRequest::Create {
        parent: Fid::ROOT,
        name: name.as_bytes(),
        fid,
        new,
        mode: FileKind::Regular.mode_bits() | 0o600,
        umask: 0,
        open: Some((handle, flags | OpenFlags::CREATED)),
        exclusive: false,
    };
    let file = NewFile::Node { rdev: 0 };
    for (name, new) in [("b", file), ("", NewFile::Unnamed)] {
        let (fresh, handle) = (f.fid(), f.handle());
        assert_eq!(f.close(fresh, handle), Err(Status::EBADF));
        assert_eq!(f.run(&create(name, fresh, handle, new)).err(), Some(Status::EBADF));
    }
    assert_eq!(f.lookup(Fid::ROOT, "b"), Ok(None));
    // The name existed: the opened file is another one than the client knows.
    let (there, fresh, handle) = (f.file(Fid::ROOT, "c").expect("made").fid, f.fid(), f.handle());
    assert!(f.run(&create("c", fresh, handle, file)).is_ok());
    f.unlink(Fid::ROOT, "c").expect("removed");
    assert!(f.stat(there).is_ok(), "open");
    assert_eq!(f.close(fresh, handle), Ok(MdsReply::Done));
    assert_eq!(f.stat(there), Err(Status::ENOENT));
    // Other handles are unaffected.
    let fid = f.file(Fid::ROOT, "d").expect("made").fid;
    let handle = f.open(fid, flags).expect("opens");
    assert!(f.close(fid, handle).is_ok());
    f.check();
}

#[test]
fn what_was_written_to_is_recorded_with_the_layout_goes_with_it_and_is_forgotten_with_the_data() {
    let f = Fixture::with_osts(2);
    let made = |name: &str| {
        let fid = f.file(Fid::ROOT, name).expect("made").fid;
        f.run(&MdsRequest::LayoutIntent { fid, start: 0, end: 1 }).expect("objects");
        fid
    };
    let written = |fid: Fid| match f.run(&MdsRequest::GetLayout { fid }) {
        Ok(MdsReply::Layout(Some(layout))) => {
            layout.objects().map(|stripe| stripe.written).collect::<Vec<_>>()
        }
        other => panic!("{other:?}"),
    };
    let object = |fid: Fid| match f.run(&MdsRequest::GetLayout { fid }) {
        Ok(MdsReply::Layout(Some(layout))) => layout.objects().next().expect("one").object,
        other => panic!("{other:?}"),
    };
    let xattr = |fid: Fid| f.run(&MdsRequest::GetXattr { fid, name: b"lustre.lov" }).expect("there");
    let (one, two) = (made("one"), made("two"));
    let shown = xattr(one);
    let close = |fid: Fid, objects: Vec<Fid>| {
        let handle = f.open(fid, OpenFlags::WRITE).expect("opens");
        f.run(&MdsRequest::Close { fid, handle, update: wrote(5), written: objects }).expect("closes");
    };
    close(one, vec![object(two)]);
    assert_eq!(written(one), [false], "that is no object of its");
    close(one, vec![object(one)]);
    assert_eq!((written(one), written(two), xattr(one)), (vec![true], vec![false], shown));
    // A swap moves the record of written objects with them, and adds those that it finds written.
    let attr = nacre_wire::oss::ObjectAttr { size: 5, blocks: 8, mtime: Some(Timestamp::new(1, 0)) };
    for ost in &f.osts {
        ost.data.lock().insert(object(two), (attr, 1));
    }
    let (versions, keep_times, lease) = ((None, None), false, None);
    f.run(&MdsRequest::SwapLayouts { first: one, second: two, versions, keep_times, lease })
        .expect("swapped");
    assert_eq!((written(one), written(two)), (vec![true], vec![true]));
    let f = f.crash();
    let empty = SetAttr { valid: SetAttrValid::SIZE, size: 0, ..SetAttr::default() };
    let layout = |fid| match f.run(&MdsRequest::GetLayout { fid }) {
        Ok(MdsReply::Layout(Some(layout))) => layout.is_written(),
        other => panic!("{other:?}"),
    };
    f.attr(&MdsRequest::SetAttr { fid: one, set: SetAttr { size: 3, ..empty } }).expect("cut");
    assert!(layout(one) && layout(two), "it is kept on disk, and by a cut that leaves something");
    f.attr(&MdsRequest::SetAttr { fid: one, set: empty }).expect("emptied");
    f.open(two, OpenFlags::WRITE | OpenFlags::TRUNCATE).expect("emptied");
    assert!(!layout(one) && !layout(two));
    f.check();
}

#[test]
fn a_size_from_before_a_truncation_leaves_the_size_to_the_objects() {
    let f = Fixture::new();
    let fid = f.file(Fid::ROOT, "a").expect("made").fid;
    let handle = f.open(fid, OpenFlags::WRITE).expect("opens");
    f.write_intent(fid);
    let of_the_writer = f.up_to_date(fid, wrote(70_000));
    let set = SetAttr { size: 5, valid: SetAttrValid::SIZE, ..SetAttr::default() };
    let cut = f.attr(&MdsRequest::SetAttr { fid, set }).expect("cut");
    assert_ne!(cut.size_stamp, of_the_writer.size_stamp);
    let close = MdsRequest::Close { fid, handle, update: of_the_writer, written: Vec::new() };
    let closed = attr_of(f.run(&close).expect("closes")).expect("attributes");
    assert_eq!((closed.size, closed.size_source), (5, SizeSource::Objects));
    let told = |size, size_stamp| {
        let update = DataUpdate { size_stamp, ..wrote(size) };
        f.attr(&MdsRequest::UpdateData { fid, update, exact: true, written: Vec::new() }).expect("told")
    };
    let exact = told(5, closed.size_stamp);
    assert_eq!((exact.size, exact.size_source), (5, SizeSource::Exact));
    // Two truncations whose objects were cut in the other order: the later report cannot know either.
    assert_eq!(told(9, closed.size_stamp).size_source, SizeSource::Exact, "a glimpse that comes late");
    let first = f.attr(&MdsRequest::SetAttr { fid, set }).expect("cut");
    let second = f.attr(&MdsRequest::SetAttr { fid, set: SetAttr { size: 9, ..set } }).expect("cut");
    let known = told(9, second.size_stamp);
    assert_eq!((known.size, known.size_source), (9, SizeSource::Exact));
    let update = DataUpdate { size_stamp: first.size_stamp, ..wrote(5) };
    let late = f.attr(&MdsRequest::UpdateData { fid, update, exact: false, written: Vec::new() });
    assert_eq!(late.expect("told").size_source, SizeSource::Objects);
    let first = f.attr(&MdsRequest::SetAttr { fid, set }).expect("cut");
    let second = f.attr(&MdsRequest::SetAttr { fid, set: SetAttr { size: 9, ..set } }).expect("cut");
    for (size, size_stamp) in [(5, first.size_stamp), (9, second.size_stamp)] {
        let update = DataUpdate { size_stamp, ..wrote(size) };
        let told = f.attr(&MdsRequest::UpdateData { fid, update, exact: false, written: Vec::new() });
        assert_eq!(
            told.expect("told").size_source,
            SizeSource::Objects,
            "the first report was the later one"
        );
    }
    // A client that has the file open to write meanwhile, and writes nothing.
    let known = f.attr(&MdsRequest::SetAttr { fid, set }).expect("cut");
    assert_eq!(told(5, known.size_stamp).size_source, SizeSource::Exact);
    let handle = f.open(fid, OpenFlags::WRITE).expect("opens");
    let update = DataUpdate { size_stamp: known.size_stamp, ..wrote(9) };
    f.attr(&MdsRequest::UpdateData { fid, update, exact: false, written: Vec::new() }).expect("told");
    let close = MdsRequest::Close { fid, handle, update: DataUpdate::default(), written: Vec::new() };
    let closed = attr_of(f.run(&close).expect("closes")).expect("attributes");
    assert_eq!(closed.size_source, SizeSource::Objects);
    f.check();
}

#[test]
fn a_file_that_was_looked_up_can_be_opened_although_a_rename_has_replaced_it() {
    let f = Fixture::new();
    let old = f.file(Fid::ROOT, "a").expect("made").fid;
    f.file(Fid::ROOT, "b").expect("made");
    f.rename((Fid::ROOT, "b"), (Fid::ROOT, "a"), RenameFlags::empty()).expect("renamed");
    let handle = f.open(old, OpenFlags::READ).expect("it was found under its name");
    f.close(old, handle).expect("closed");
    assert_eq!(f.open(old, OpenFlags::READ), Err(Status::ENOENT), "the last close destroys it");
    let unused = f.file(Fid::ROOT, "c").expect("made").fid;
    f.rename((Fid::ROOT, "a"), (Fid::ROOT, "c"), RenameFlags::empty()).expect("renamed");
    eventually("the replaced file is removed", || f.stat(unused).is_err());
    let removed = f.file(Fid::ROOT, "d").expect("made").fid;
    f.unlink(Fid::ROOT, "d").expect("removed");
    assert_eq!(f.open(removed, OpenFlags::READ), Err(Status::ENOENT), "its name is gone");
    f.check();
}
