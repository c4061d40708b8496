//! Locks under which clients cache inodes are revoked before a change.

use super::*;
use crate::locks::{Reach, Want};
use nacre_lock::LockHandle;
use nacre_types::{SetAttr, SetAttrValid};
use nacre_wire::lock::{LockMessage, LockRequest};
use nacre_wire::mds::{DataUpdate, DirEntry, DirPage};
use std::sync::OnceLock;
use std::sync::atomic::AtomicBool;

/// A client that caches, and cancels revoked locks if it `answers`.
#[derive(Default)]
pub(super) struct Cacher {
    mds: OnceLock<std::sync::Weak<Mds>>,
    export: OnceLock<Arc<Export>>,
    called_back: Mutex<Vec<LockHandle>>,
    answers: AtomicBool,
    next: AtomicU64,
}

impl ClientCallbacks for Cacher {
    fn lease_changed(&self, _: LeaseGrant) {}

    fn lock_message(&self, message: LockMessage) {
        let LockMessage::Blocking { handle, .. } = message else { panic!("{message:?}") };
        self.called_back.lock().push(handle);
        if self.answers.load(Ordering::Relaxed) {
            self.cancel(handle);
        }
    }
}

impl Cacher {
    /// Connects in addition to the fixture's client, which releases its exclusive lease.
    pub fn connect(f: &Fixture, number: u8) -> Arc<Cacher> {
        let cacher = Arc::new(Cacher { answers: AtomicBool::new(true), ..Cacher::default() });
        let export = Arc::new(Export::new(ClientUuid([number; 16]), tcp_nid(), None, cacher.clone()));
        let (mds, connecting) = (f.mds.clone(), export.clone());
        let thread = nacre_env::thread::spawn(move || mds.connect(&connecting));
        eventually("the second client is in", || {
            let _ = f.run(&MdsRequest::LeaseReleased { epoch: u64::MAX });
            thread.is_finished()
        });
        assert_eq!(thread.join().expect("no panic").map(|grant| grant.lease.exclusive), Ok(false));
        assert!(cacher.mds.set(Arc::downgrade(&f.mds)).is_ok() && cacher.export.set(export).is_ok());
        cacher
    }

    pub fn run(&self, request: &MdsRequest<'_>) -> StatusResult<MdsReply> {
        let mds = self.mds.get().and_then(std::sync::Weak::upgrade).expect("the server is there");
        let export = self.export.get().expect("set");
        mds.handle(export, &Call::new(&Cred::system()), request).map(|answer| answer.reply)
    }

    fn cancel(&self, handle: LockHandle) {
        let request = LockRequest::Cancel { handles: vec![handle] };
        self.run(&MdsRequest::Locks { request }).expect("a cancel");
    }

    /// Sends an intent; returns the locks on the directory and on the inode, and the inode.
    fn intend(
        &self,
        fid: Fid,
        name: Option<&'static str>,
    ) -> (Option<LockHandle>, Option<LockHandle>, Option<Attr>) {
        let handle = LockHandle(self.next.fetch_add(2, Ordering::Relaxed) + 1);
        let name = name.map(str::as_bytes);
        let reply = self.run(&MdsRequest::Intent { fid, name, handle }).expect("answered");
        let MdsReply::Intent { attr, directory, inode, .. } = reply else { panic!("{reply:?}") };
        let some = |handle: LockHandle| Some(handle).filter(|handle| handle.0 != 0);
        (some(directory), some(inode), attr)
    }

    /// Caches the attributes of an inode.
    pub fn caches(&self, fid: Fid) {
        assert!(self.intend(fid, None).1.is_some());
    }

    /// Stops answering callbacks.
    pub fn falls_silent(&self) {
        self.answers.store(false, Ordering::Relaxed);
    }

    pub fn called_back(&self) -> Vec<LockHandle> {
        std::mem::take(&mut self.called_back.lock())
    }
}

pub(super) fn chmod(fid: Fid, mode: u32) -> MdsRequest<'static> {
    let set = SetAttr { valid: SetAttrValid::MODE, mode, ..SetAttr::default() };
    MdsRequest::SetAttr { fid, set }
}

#[test]
fn a_change_waits_until_the_client_that_caches_has_let_go() {
    let f = Fixture::new();
    let fid = f.file(Fid::ROOT, "a").expect("made").fid;
    let other = Cacher::connect(&f, 2);
    other.answers.store(false, Ordering::Relaxed);
    let handle = other.intend(fid, None).1.expect("granted");
    nacre_env::thread::scope(|scope| {
        let change = scope.spawn(|| f.attr(&chmod(fid, 0o600)));
        eventually("the callback", || other.called_back() == [handle]);
        assert_eq!(f.stat(fid).expect("there").mode & 0o777, 0o644, "until then nobody sees the change");
        assert!(!change.is_finished());
        other.cancel(handle);
        assert_eq!(change.join().expect("no panic").expect("changed").mode & 0o777, 0o600);
    });
    assert_eq!(f.mds.mdlocks.lock_count(), 0);
}

#[test]
fn a_client_drops_what_it_caches_when_its_nodemap_changes() {
    let f = Fixture::new();
    let fid = f.file(Fid::ROOT, "a").expect("made").fid;
    let other = Cacher::connect(&f, 2);
    let nodemaps = |uids: &str| {
        let map = format!("m range=127.0.0.1@tcp {uids}").parse().expect("a nodemap");
        Arc::new(nacre_types::Nodemaps { active: true, maps: vec![Arc::new(map)] })
    };
    for (uids, is_recalled) in [("uid=5:0", true), ("uid=5:0", false), ("uid=6:0", true)] {
        let handle = other.intend(fid, None).1.expect("granted");
        f.mds.tenants.set_nodemaps(&nodemaps(uids));
        assert_eq!(other.called_back() == [handle], is_recalled, "{uids}");
        assert_eq!(f.mds.mdlocks.lock_count(), usize::from(!is_recalled));
    }
}

#[test]
fn the_client_that_asks_for_a_change_keeps_its_locks() {
    let f = Fixture::new();
    let fid = f.file(Fid::ROOT, "a").expect("made").fid;
    let (first, second) = (Cacher::connect(&f, 2), Cacher::connect(&f, 3));
    assert!(first.intend(fid, None).1.is_some() && second.intend(fid, None).1.is_some());
    first.run(&chmod(fid, 0o600)).expect("changed");
    assert_eq!((first.called_back().len(), second.called_back().len()), (0, 1));
    assert_eq!(f.mds.mdlocks.lock_count(), 1);
    f.run(&chmod(fid, 0o640)).expect("changed");
    assert_eq!((first.called_back().len(), second.called_back().len()), (1, 0));
}

#[test]
fn a_client_that_has_a_lock_already_is_told_which() {
    let f = Fixture::new();
    let dir = f.dir(Fid::ROOT, "d").expect("made").fid;
    let fid = f.file(dir, "a").expect("made").fid;
    let other = Cacher::connect(&f, 2);
    let of_dir = other.intend(dir, None).1;
    let of_file = other.intend(fid, None).1;
    assert!(of_dir.is_some() && of_file.is_some());
    let (directory, inode, _) = other.intend(dir, Some("a"));
    assert_eq!((directory, inode), (of_dir, of_file));
    assert_eq!(f.mds.mdlocks.lock_count(), 2);
}

#[test]
fn a_file_that_is_written_to_is_not_kept_and_whoever_begins_to_write_is_called_back_too() {
    let f = Fixture::new();
    let fid = f.file(Fid::ROOT, "a").expect("made").fid;
    let other = Cacher::connect(&f, 2);
    let handle = other.intend(fid, None).1.expect("nobody writes to it");
    let fresh = OpenHandle(900);
    other
        .run(&MdsRequest::Open { fid, handle: fresh, flags: OpenFlags::WRITE, lock: LockHandle(0) })
        .expect("open");
    assert_eq!(other.called_back(), [], "it has no data yet");
    other.run(&MdsRequest::LayoutIntent { fid, start: 0, end: 1 }).expect("objects");
    assert_eq!(other.called_back(), [handle]);
    assert_eq!(other.intend(fid, None).1, None, "its size is with its objects");
    let update = DataUpdate { size_blocks: Some((1, 8)), ..DataUpdate::default() };
    other.run(&MdsRequest::UpdateData { fid, update, exact: true, written: Vec::new() }).expect("told");
    assert_eq!(other.intend(fid, None).1, None, "it is still open");
    let update = f.up_to_date(fid, update);
    other.run(&MdsRequest::Close { fid, handle: fresh, update, written: Vec::new() }).expect("closed");
    let handle = other.intend(fid, None).1.expect("nobody writes to it any more");
    let again = OpenHandle(901);
    other
        .run(&MdsRequest::Open { fid, handle: again, flags: OpenFlags::WRITE, lock: LockHandle(0) })
        .expect("open");
    assert_eq!(other.called_back(), [handle], "another writer would not be noticed");
}

#[test]
fn a_client_that_does_not_let_go_is_evicted_and_the_change_goes_on() {
    let f = Fixture::new();
    let fid = f.file(Fid::ROOT, "a").expect("made").fid;
    let other = Cacher::connect(&f, 2);
    f.mds.sessions.set_release_timeout(Duration::from_millis(100));
    other.answers.store(false, Ordering::Relaxed);
    other.intend(fid, None);
    assert_eq!(f.attr(&chmod(fid, 0o600)).expect("changed").mode & 0o777, 0o600);
    eventually("the eviction", || other.run(&MdsRequest::Ping) == Err(Status::EVICTED));
    eventually("the lease", || {
        matches!(f.run(&MdsRequest::Ping), Ok(MdsReply::Lease(LeaseGrant { exclusive: true, .. })))
    });
}

#[test]
fn names_and_their_absence_are_called_back_when_they_come_and_go() {
    let f = Fixture::new();
    let dir = f.dir(Fid::ROOT, "d").expect("made").fid;
    let other = Cacher::connect(&f, 2);
    let (absent, no_inode, attr) = other.intend(dir, Some("a"));
    assert!(absent.is_some() && no_inode.is_none() && attr.is_none());
    let fid = f.file(dir, "a").expect("made").fid;
    assert_eq!(other.called_back(), absent.as_slice());
    let (there, inode, attr) = other.intend(dir, Some("a"));
    assert_eq!(attr.map(|attr| attr.fid), Some(fid));
    f.file(dir, "b").expect("made");
    assert_eq!(other.called_back(), there.as_slice(), "what is known of the file stays");
    f.unlink(dir, "a").expect("removed");
    assert_eq!(other.called_back(), inode.as_slice());
}

#[test]
fn a_directory_that_is_fought_over_is_not_kept_for_a_while() {
    let f = Fixture::new();
    let dir = f.dir(Fid::ROOT, "d").expect("made").fid;
    let other = Cacher::connect(&f, 2);
    let hour = Duration::from_secs(3600);
    f.mds.mdlocks.change_config(|config| (config.contention_window, config.contention_time) = (hour, hour));
    let mut granted = 0;
    for number in 0..40 {
        granted += usize::from(other.intend(dir, Some("x")).0.is_some());
        f.file(dir, &format!("f{number}")).expect("made");
    }
    assert_eq!(other.called_back().len(), granted);
    assert_eq!(granted, f.mds.mdlocks.config().contention_events, "then its changes cost no callback");
}

#[test]
fn an_answer_that_is_an_error_leaves_no_lock() {
    let f = Fixture::new();
    let other = Cacher::connect(&f, 2);
    let handle = LockHandle(1);
    let ask = |fid, name| other.run(&MdsRequest::Intent { fid, name, handle });
    assert_eq!(ask(f.fid(), None), Err(Status::ENOENT));
    assert_eq!(ask(f.file(Fid::ROOT, "a").expect("made").fid, Some(&b"b"[..])), Err(Status::ENOTDIR));
    assert_eq!(ask(Fid::ROOT, Some(&b".."[..])), Err(Status::EINVAL));
    let last = MdsRequest::Intent { fid: Fid::ROOT, name: None, handle: LockHandle(u64::MAX) };
    assert_eq!(other.run(&last), Err(Status::EINVAL));
    assert_eq!(f.mds.mdlocks.lock_count(), 0);
}

#[test]
fn after_a_restart_changes_wait_until_clients_of_before_have_dropped_what_they_cached() {
    let f = Fixture::new();
    let fid = f.file(Fid::ROOT, "a").expect("made").fid;
    let other = Cacher::connect(&f, 2);
    assert!(other.intend(fid, None).1.is_some());
    let Fixture { dir, mds, .. } = f;
    mds.stop().expect("stops");
    drop(mds);
    let mds = Mds::open(dir.path(), config(), Default::default()).expect("starts");
    let (back, _) = export(2, tcp_nid());
    mds.connect(&back).expect("let in");
    let run = |request| mds.handle(&back, &Call::new(&Cred::system()), &request).map(|answer| answer.reply);
    let mode = || match run(MdsRequest::GetAttr { fid }) {
        Ok(MdsReply::Attr(attr)) => attr.mode & 0o777,
        other => panic!("{other:?}"),
    };
    nacre_env::thread::scope(|scope| {
        let change = scope.spawn(|| run(chmod(fid, 0o600)));
        eventually("the change waits", || mds.mdlocks.lock_count() == 1);
        assert_eq!(mode(), 0o644);
        run(MdsRequest::Locks { request: LockRequest::ReplayDone }).expect("heard");
        change.join().expect("no panic").expect("changed");
        assert_eq!(mode(), 0o600);
    });
    mds.stop().expect("stops");
}

/// Returns a page of names with the lock on them, and for each the lock on its inode if it came with
/// attributes.
fn listed(page: &DirPage) -> (Option<LockHandle>, Vec<(String, Option<LockHandle>)>) {
    let some = |handle: LockHandle| Some(handle).filter(|handle| handle.0 != 0);
    let name = |entry: &DirEntry<'_>| String::from_utf8_lossy(entry.name).into_owned();
    let entries = page.entries().map(|entry| {
        assert_eq!(entry.attr.is_some(), entry.lock.0 != 0, "attributes without a lock are worth nothing");
        (name(&entry), some(entry.lock))
    });
    let mut entries: Vec<_> = entries.collect();
    entries.sort();
    (some(page.lock), entries)
}

impl Cacher {
    fn page(&self, request: impl FnOnce(LockRange) -> MdsRequest<'static>) -> DirPage {
        let first = LockHandle(self.next.fetch_add(100, Ordering::Relaxed) + 1);
        let reply = self.run(&request(LockRange { first, count: 100 })).expect("answered");
        let MdsReply::Directory(page) = reply else { panic!("{reply:?}") };
        page
    }

    fn list(&self, fid: Fid, plus: bool) -> DirPage {
        self.page(|locks| MdsRequest::ReadDir { fid, cookie: 0, max_bytes: 1 << 16, plus, locks })
    }
}

#[test]
fn a_page_brings_locks_on_its_names_and_inodes_and_each_is_called_back_by_its_own_change() {
    let f = Fixture::new();
    let dir = f.dir(Fid::ROOT, "d").expect("made").fid;
    let files = ["a", "b", "c"].map(|name| f.file(dir, name).expect("made").fid);
    let other = Cacher::connect(&f, 2);
    let (names, entries) = listed(&other.list(dir, true));
    let names = names.expect("granted");
    let locks: Vec<LockHandle> = entries.iter().map(|(_, lock)| lock.expect("granted")).collect();
    assert_eq!((locks.len(), f.mds.mdlocks.lock_count()), (3, 4));
    assert_eq!(listed(&other.list(dir, true)), (Some(names), entries.clone()), "what it has already");
    let many = other.page(|locks| MdsRequest::LookupMany { parent: dir, names: b"c\0none\0a\0", locks });
    assert_eq!(listed(&many), (Some(names), vec![entries[0].clone(), entries[2].clone()]));
    let fids = files[..2].to_vec();
    let inodes = other.page(|locks| MdsRequest::ListInodes { fids, layouts: false, locks });
    assert_eq!(inodes.entries().map(|entry| entry.lock).collect::<Vec<_>>(), locks[..2]);
    assert_eq!(inodes.lock, LockHandle(0));
    assert_eq!(f.mds.mdlocks.lock_count(), 4);
    f.run(&chmod(files[0], 0o600)).expect("changed");
    assert_eq!(other.called_back(), [locks[0]]);
    f.file(dir, "e").expect("made");
    assert_eq!(other.called_back(), [names], "what is known of the files stays");
    f.unlink(dir, "b").expect("removed");
    assert_eq!(other.called_back(), [locks[1]]);
    let (names, entries) = listed(&other.list(dir, false));
    assert!(names.is_some() && entries.iter().all(|(_, lock)| lock.is_none()), "{entries:?}");
}

#[test]
fn a_page_brings_no_lock_on_what_others_write_or_change() {
    let f = Fixture::new();
    let dir = f.dir(Fid::ROOT, "d").expect("made").fid;
    let [written, plain] = ["a", "b"].map(|name| f.file(dir, name).expect("made").fid);
    let other = Cacher::connect(&f, 2);
    let handle = OpenHandle(900);
    f.run(&MdsRequest::Open { fid: written, handle, flags: OpenFlags::WRITE, lock: LockHandle(0) })
        .expect("open");
    f.run(&MdsRequest::LayoutIntent { fid: written, start: 0, end: 1 }).expect("objects");
    let has_lock =
        |page: &DirPage| listed(page).1.into_iter().map(|(_, lock)| lock.is_some()).collect::<Vec<_>>();
    assert_eq!(has_lock(&other.list(dir, true)), [false, true]);
    // A change of the other file waits for this client: no new lock is granted on it, and the request does
    // not wait.
    other.answers.store(false, Ordering::Relaxed);
    nacre_env::thread::scope(|scope| {
        let change = scope.spawn(|| f.run(&chmod(plain, 0o600)));
        let mut held = Vec::new();
        eventually("the callback", || {
            held = other.called_back();
            !held.is_empty()
        });
        held.iter().for_each(|handle| other.cancel(*handle));
        change.join().expect("no panic").expect("changed");
    });
    other.answers.store(true, Ordering::Relaxed);
    let kept = f.mds.leaves.locks.keep(&[Want::Whole(plain)], Reach::Here, &|| Ok(())).expect("kept");
    assert_eq!(has_lock(&other.list(dir, true)), [false, false]);
    drop(kept);
    assert_eq!(has_lock(&other.list(dir, true)), [false, true]);
    // Names that have changed since they were read, or are about to, come without the lock on them, and so
    // without any lock.
    let seen = f.mds.leaves.records.inode(&dir).expect("there");
    f.file(dir, "c").expect("made");
    let export = other.export.get().expect("set");
    assert_eq!(f.mds.core.client_locks.lock_on_names(export, &seen, LockHandle(5000)), Ok(LockHandle(0)));
    let kept = f.mds.leaves.locks.keep(&[Want::Name(dir, b"b")], Reach::Here, &|| Ok(())).expect("kept");
    assert_eq!(listed(&other.list(dir, true)).0, None);
    assert_eq!(has_lock(&other.list(dir, true)), [false, false, false]);
    drop(kept);
    let bad = LockRange { first: LockHandle(u64::MAX), count: 2 };
    let request = MdsRequest::ReadDir { fid: dir, cookie: 0, max_bytes: 4096, plus: true, locks: bad };
    assert_eq!(other.run(&request), Err(Status::EINVAL));
}

#[test]
fn pages_with_locks_have_room_for_what_comes_with_them() {
    let f = Fixture::new();
    let dir = f.dir(Fid::ROOT, "d").expect("made").fid;
    for number in 0..40 {
        f.file(dir, &format!("f{number}")).expect("made");
    }
    let other = Cacher::connect(&f, 2);
    let (mut cookie, mut found) = (0, 0);
    for max_bytes in [500, 600, 4096].into_iter().cycle() {
        let page = other.page(|locks| MdsRequest::ReadDir { fid: dir, cookie, max_bytes, plus: true, locks });
        assert!(page.bytes.len() <= max_bytes as usize && page.entries().all(|entry| entry.lock.0 != 0));
        found += page.entries().count();
        let Some(last) = page.entries().last().filter(|_| !page.end) else { break };
        cookie = last.cookie;
    }
    assert_eq!(found, 40);
}
