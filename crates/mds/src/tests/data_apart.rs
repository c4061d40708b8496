//! An MDT that stores data of files in a separate object store.

use super::data::{closing, content, create, directory, wrote};
use super::{DATA_DIR, Fixture, Noted, attr_of, check_dir, config, data_store, eventually};
use crate::tables::DESTROYS;
use crate::tx::now;
use crate::{Mds, MdsConfig, MdsError};
use nacre_rpc::Export;
use nacre_store::MetaStore;
use nacre_store::object::ObjectStore;
use nacre_types::{AttrFlags, ClientUuid, Fid, Nid, SizeSource, Status, TransNo};
use nacre_wire::mds::{MdsReply, MdsRequest, OpenFlags};
use nacre_wire::peer::{PeerRequest, RecordBytes, TransactionId};
use std::ops::{Bound, ControlFlow};
use std::path::Path;
use std::sync::Arc;

fn is_there(f: &Fixture, object: Fid) -> bool {
    f.mds.data_store().attr(object).expect("readable").mtime.is_some()
}

/// Stops the server, and returns the objects in its store for data.
fn objects_after(f: Fixture) -> Vec<Fid> {
    f.mds.stop().expect("stops");
    let Fixture { dir, mds, .. } = f;
    drop(mds);
    check_dir(dir.path());
    let store = data_store(dir.path(), false);
    let report = store.verify(false, &mut |_| {}).expect("readable");
    assert!(report.problems.is_empty(), "{:?}", report.problems);
    let mut found = Vec::new();
    store.for_each_object(&mut |object| found.push(object)).expect("readable");
    found
}

#[test]
fn data_that_comes_with_a_close_is_in_the_store_of_its_own() {
    let f = Fixture::with_data_apart();
    let dir = directory(&f);
    let (attr, handle, _) = create(&f, dir, "f", OpenFlags::WRITE);
    let soon = now().sec + 100;
    let closed = f.run(&closing(&attr, handle, wrote(8, soon), 3, b"bytes")).expect("closed");
    let closed = attr_of(closed).expect("attributes");
    assert_eq!((closed.size, closed.blocks, closed.mtime.sec), (8, 8, soon));
    assert_eq!(closed.size_source, SizeSource::Exact);
    assert_eq!(content(&f, attr.fid), b"\0\0\0bytes");
    let f = f.crash();
    assert_eq!(content(&f, attr.fid), b"\0\0\0bytes");
    assert_eq!(f.stat(attr.fid).expect("there").size, 8);
    assert_eq!(objects_after(f.restart()), [attr.fid]);
}

/// The first data of a file whose layout is undecided: the layout is stored before the data, so that no crash
/// leaves data that no file names.
#[test]
fn a_file_names_its_object_before_that_has_the_first_data() {
    let f = Fixture::with_data_apart();
    f.run(&MdsRequest::SetLayout { fid: Fid::ROOT, requested: crate::first_layout() }).expect("set");
    let (attr, handle, _) = create(&f, Fid::ROOT, "f", OpenFlags::WRITE);
    assert!(!f.stat(attr.fid).expect("there").flags.contains(AttrFlags::HAS_OBJECTS), "not decided");
    // The close fails at the point where the object would get the data.
    f.mds.data_store().close().expect("closed");
    let failed = f.run(&closing(&attr, handle, wrote(5, 5), 0, b"bytes")).err();
    assert!(failed.is_some());
    assert!(f.stat(attr.fid).expect("there").flags.contains(AttrFlags::HAS_OBJECTS));
    let f = f.crash();
    let stat = f.stat(attr.fid).expect("there");
    assert_eq!((stat.size, stat.size_source), (0, SizeSource::Exact));
    // The same close is sent again, for a handle that the client has reopened.
    let handle = f.open(attr.fid, OpenFlags::WRITE).expect("opened");
    f.run(&closing(&attr, handle, wrote(5, 5), 0, b"bytes")).expect("closed");
    assert_eq!(content(&f, attr.fid), b"bytes");
    assert_eq!(objects_after(f), [attr.fid]);
}

#[test]
fn data_of_a_removed_file_goes_also_if_the_server_dies_in_between() {
    let f = Fixture::with_data_apart();
    let dir = directory(&f);
    let make = |name: &str| {
        let (attr, handle, _) = create(&f, dir, name, OpenFlags::WRITE);
        f.mds.data_store().write(attr.fid, 0, &[7; 100_000]).expect("written");
        f.close(attr.fid, handle).expect("closed");
        attr.fid
    };
    let (kept, gone) = (make("kept"), make("gone"));
    let free = f.mds.data_store().space().expect("known").free;
    f.unlink(dir, "gone").expect("removed");
    // A sync of everything does all deferred work.
    f.run(&MdsRequest::Commit { upto: TransNo(u64::MAX) }).expect("durable");
    assert!(!is_there(&f, gone));
    assert_eq!(f.mds.data_store().space().expect("known").free, free + 102_400);
    // Only the log has this object when the server dies.
    f.mds.osts.stop();
    f.unlink(dir, "kept").expect("removed");
    assert!(is_there(&f, kept), "the thread that destroys has ended");
    let f = f.crash();
    eventually("the data goes", || !is_there(&f, kept));
    assert_eq!(objects_after(f), []);
}

/// After a power loss the store for data may have objects of files that the metadata has lost.
#[test]
fn data_of_files_that_were_lost_goes_when_the_server_starts_and_no_other() {
    let f = Fixture::with_data_apart();
    let dir = directory(&f);
    let make = |name: &str| {
        let (attr, handle, _) = create(&f, dir, name, OpenFlags::WRITE);
        f.mds.data_store().write(attr.fid, 0, name.as_bytes()).expect("written");
        f.close(attr.fid, handle).expect("closed");
        attr.fid
    };
    let (mine, open) = (make("mine"), make("open"));
    // An open file without a name keeps its data until no client has it open.
    f.open(open, OpenFlags::READ).expect("opened");
    f.unlink(dir, "open").expect("removed");
    let store = f.mds.data_store();
    assert_eq!(crate::unowned::destroy_unowned(&f.mds.leaves.store, &*store).expect("readable"), 0);
    drop(store);
    let lost = f.fid();
    let version = Fid { ver: 3, ..mine };
    let f = f.crash_and(|dir| {
        let store = data_store(dir, false);
        store.write(lost, 0, b"of a file that was lost").expect("written");
        store.write(version, 0, b"of a swap that was lost").expect("written");
    });
    assert!(!is_there(&f, lost) && !is_there(&f, version), "before anybody is served");
    assert_eq!(content(&f, mine), b"mine");
    // A clean stop loses nothing, so there is no search for orphans.
    let stray = Fid { ver: 4, ..mine };
    f.mds.data_store().write(stray, 0, b"stray").expect("written, as there is the file");
    let f = f.restart();
    f.run(&MdsRequest::Commit { upto: TransNo(u64::MAX) }).expect("durable");
    assert!(is_there(&f, stray));
}

/// Copies a directory in the state after a power loss at this moment: nothing in it changes meanwhile.
fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).expect("made");
    for entry in std::fs::read_dir(from).expect("listed") {
        let entry = entry.expect("listed");
        let to = to.join(entry.file_name());
        match entry.file_type().expect("known").is_dir() {
            true => copy(&entry.path(), &to),
            false => drop(std::fs::copy(entry.path(), to).expect("copied")),
        }
    }
}

/// Creates one file before and one after a copy of one of the two stores, and starts again with that copy.
fn after_a_power_cut_that_lost(part: &str) -> (Fixture, [Fid; 2]) {
    let f = Fixture::with_data_apart();
    let dir = directory(&f);
    let make = |name: &str| {
        let (attr, handle, _) = create(&f, dir, name, OpenFlags::WRITE);
        f.run(&closing(&attr, handle, wrote(5000, 5), 0, &[7; 5000])).expect("closed");
        f.mds.data_store().sync_all().expect("durable");
        f.run(&MdsRequest::Commit { upto: TransNo(u64::MAX) }).expect("durable");
        attr.fid
    };
    let first = make("first");
    let aside = tempfile::tempdir().expect("a directory");
    copy(&f.dir.path().join(part), aside.path());
    let second = make("second");
    let Fixture { dir, osts, export, mds, .. } = f;
    drop(mds);
    let store = crate::records::store_path(dir.path());
    eventually("the store is closed", || MetaStore::open(&store, config().store).is_ok());
    drop(data_store(dir.path(), false));
    std::fs::remove_dir_all(dir.path().join(part)).expect("lost");
    copy(aside.path(), &dir.path().join(part));
    (Fixture::start(dir, osts, export), [first, second])
}

#[test]
fn a_power_cut_that_loses_metadata_leaves_no_data_behind() {
    let (f, [first, second]) = after_a_power_cut_that_lost("meta");
    assert_eq!(f.stat(second).err(), Some(Status::ENOENT));
    assert!(!is_there(&f, second), "before anybody can make the file anew");
    assert_eq!(content(&f, first), [7; 100]);
    assert_eq!(objects_after(f), [first]);
}

/// The second file was not synced: its name may exist without its data, which then reads as zeros or ends
/// early.
#[test]
fn a_power_cut_that_loses_data_leaves_files_whole() {
    let (f, [first, second]) = after_a_power_cut_that_lost(DATA_DIR);
    assert_eq!((content(&f, first), content(&f, second)), (vec![7; 100], Vec::new()));
    assert_eq!(f.stat(second).expect("there").size, 5000);
    let handle = f.open(second, OpenFlags::WRITE).expect("opened");
    f.mds.data_store().write(second, 0, b"anew").expect("written");
    f.close(second, handle).expect("closed");
    assert_eq!(content(&f, second), b"anew");
    assert_eq!(objects_after(f), [first, second]);
}

#[test]
fn bytes_of_statfs_are_those_of_the_store_and_a_full_one_still_takes_names() {
    let f = Fixture::with_data_apart();
    // New files still have their first data here, whenever the MDT measures its free space.
    f.mds.set_dom_threshold(0);
    let dir = directory(&f);
    let statfs = || match f.run(&MdsRequest::Statfs).expect("told") {
        MdsReply::Statfs(statfs) => statfs,
        other => panic!("{other:?}"),
    };
    let before = statfs();
    assert_eq!(before.blocks * u64::from(before.block_size), (16 << 20) - 2 * 4096);
    let (attr, large, _) = create(&f, dir, "large", OpenFlags::WRITE);
    let store = f.mds.data_store();
    let mut at = 0;
    // Space promised by grants is refused, too.
    while store.write_promised(attr.fid, at, &[1; 4096]).is_ok() {
        at += 4096;
    }
    assert!(at > 15 << 20, "{at}");
    assert!(statfs().blocks_available < before.blocks_available / 50);
    let inodes = |statfs: nacre_wire::mds::Statfs| statfs.files - statfs.files_free;
    assert_eq!(inodes(statfs()), inodes(before) + 1);
    let (full, handle, _) = create(&f, dir, "full", OpenFlags::WRITE);
    let refused = f.run(&closing(&full, handle, wrote(5000, 5), 0, &[2; 5000])).err();
    assert_eq!(refused, Some(Status::ENOSPC), "the data, not the name");
    f.close(attr.fid, large).expect("closed");
    f.unlink(dir, "large").expect("removed");
    f.run(&MdsRequest::Commit { upto: TransNo(u64::MAX) }).expect("durable");
    eventually("the space comes back", || store.write(full.fid, 0, &[2; 5000]).is_ok());
}

/// A client's write may arrive after the file was removed.
#[test]
fn what_comes_late_for_a_file_that_is_gone_makes_no_data() {
    let f = Fixture::with_data_apart();
    let dir = directory(&f);
    let (attr, handle, _) = create(&f, dir, "f", OpenFlags::WRITE);
    f.mds.data_store().write(attr.fid, 0, b"small").expect("written");
    f.close(attr.fid, handle).expect("closed");
    f.unlink(dir, "f").expect("removed");
    f.run(&MdsRequest::Commit { upto: TransNo(u64::MAX) }).expect("durable");
    let store = f.mds.data_store();
    for (at, bytes) in [(0, &b"late"[..]), (100_000, &[1; 8192])] {
        let refused = store.write(attr.fid, at, bytes).map_err(|error| error.status());
        assert_eq!(refused, Err(Status::ESTALE));
    }
    assert_eq!(store.truncate(attr.fid, 5000).map_err(|error| error.status()), Err(Status::ESTALE));
    drop(store);
    assert_eq!(objects_after(f), []);
}

#[test]
fn an_empty_file_that_has_taken_the_layout_of_another_one_can_be_written_when_that_is_gone() {
    let f = Fixture::with_data_apart();
    let dir = directory(&f);
    let files = ["a", "b"].map(|name| {
        let (attr, handle, _) = create(&f, dir, name, OpenFlags::WRITE);
        f.close(attr.fid, handle).expect("closed");
        attr.fid
    });
    let (versions, keep_times, lease) = ((None, None), true, None);
    let swap = MdsRequest::SwapLayouts { first: files[0], second: files[1], versions, keep_times, lease };
    f.run(&swap).expect("swapped");
    for object in files {
        assert_eq!(f.mds.data_store().attr(object).expect("readable").size, 0);
    }
    f.unlink(dir, "b").expect("removed");
    f.mds.data_store().write(files[1], 0, b"data").expect("it is the other one's now");
    let f = f.crash();
    f.run(&MdsRequest::Commit { upto: TransNo(u64::MAX) }).expect("durable");
    assert_eq!(content(&f, files[1]), b"data");
    assert_eq!(objects_after(f), [files[1]]);
}

#[test]
fn the_store_is_neither_left_out_nor_put_beside_another_mdt() {
    let f = Fixture::with_data_apart();
    f.mds.stop().expect("stops");
    let Fixture { dir, mds, .. } = f;
    drop(mds);
    let refused = Mds::open(dir.path(), config(), Vec::new()).err().expect("it has a store of its own");
    assert!(matches!(refused, MdsError::DataPlace(_)), "{refused}");
    let plain = tempfile::tempdir().expect("a directory");
    Mds::format(plain.path(), &MdsConfig { data_apart: false, ..config() }).expect("formats");
    let store = std::sync::Arc::new(data_store(dir.path(), false));
    let refused = Mds::open_with(plain.path(), config(), Vec::new(), Some(store)).err().expect("it has none");
    assert!(matches!(refused, MdsError::DataPlace(_)), "{refused}");
    assert!(dir.path().join(DATA_DIR).exists());
}

/// After a power loss only the object's own file could create it again.
#[test]
fn objects_are_durable_before_they_change_their_files() {
    let f = Fixture::with_data_apart();
    let dir = directory(&f);
    let files = ["a", "b"].map(|name| {
        let (attr, handle, _) = create(&f, dir, name, OpenFlags::WRITE);
        f.mds.data_store().write(attr.fid, 0, &[7; 5000]).expect("written");
        f.close(attr.fid, handle).expect("closed");
        attr.fid
    });
    let syncs = || f.mds.data_store().abilities().device_store.expect("on a device").index_syncs();
    let before = syncs();
    let (versions, keep_times, lease) = ((None, None), true, None);
    let swap = MdsRequest::SwapLayouts { first: files[0], second: files[1], versions, keep_times, lease };
    f.run(&swap).expect("swapped");
    assert!(syncs() > before);
}

/// The same file is moved again right after the first attempt was aborted: its data must not be removed with
/// that of the first.
#[test]
fn data_that_was_brought_for_nothing_goes_at_once() {
    let f = Fixture::with_data_apart();
    let server = Export::new(ClientUuid([9; 16]), Nid::Lo, None, Arc::new(Noted::default())).of_server();
    let ask = |request: PeerRequest| f.mds.serve_peer(&server, &request).expect("done");
    let fid = f.fid();
    let op = |number: u64| TransactionId { mdt: 1, boot: 1, number };
    let bring = |op: TransactionId, bytes: &[u8]| {
        ask(PeerRequest::Prepare { op, fids: vec![fid], names: Vec::new(), replays: false });
        let bytes = RecordBytes(bytes.to_vec());
        ask(PeerRequest::PutData { op, fid, offset: 0, size: Some(bytes.0.len() as u64), bytes });
    };
    bring(op(1), &[1; 100_000]);
    ask(PeerRequest::Abort { op: op(1) });
    assert!(!is_there(&f, fid));
    let mut waiting = 0;
    let count = &mut |_: &[u8], _: &[u8]| {
        waiting += 1;
        ControlFlow::Continue(())
    };
    f.mds.leaves.store.scan(DESTROYS, &[], Bound::Unbounded, count).expect("readable");
    assert_eq!(waiting, 0, "nothing is left that would take what comes");
    bring(op(2), &[2; 5000]);
    f.run(&MdsRequest::Commit { upto: TransNo(u64::MAX) }).expect("durable");
    let mut bytes = [0; 5000];
    assert_eq!(f.mds.data_store().read(fid, 0, &mut bytes, 0).expect("readable"), 5000);
    assert_eq!(bytes, [2; 5000]);
}
