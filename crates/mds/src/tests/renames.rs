use super::*;
use crate::locks::Want;
use nacre_wire::mds::RenameFlags;
use std::rc::Rc;

impl Fixture {
    pub fn rename(
        &self,
        from: (Fid, &str),
        to: (Fid, &str),
        flags: RenameFlags,
    ) -> StatusResult<Option<Attr>> {
        removed(self.run(&MdsRequest::Rename {
            from_parent: from.0,
            from_name: from.1.as_bytes(),
            to_parent: to.0,
            to_name: to.1.as_bytes(),
            flags,
        })?)
    }

    fn mv(&self, from: (Fid, &str), to: (Fid, &str)) -> StatusResult<Option<Attr>> {
        self.rename(from, to, RenameFlags::empty())
    }
}

#[test]
fn a_rename_moves_the_name_and_replaces_a_file() {
    let f = Fixture::new();
    let dir = f.dir(Fid::ROOT, "d").expect("made").fid;
    let a = f.file(Fid::ROOT, "a").expect("made");
    let b = f.file(dir, "b").expect("made");
    assert_eq!(f.mv((Fid::ROOT, "a"), (dir, "b")).map(|r| r.map(|r| (r.fid, r.nlink))), Ok(Some((b.fid, 0))));
    assert_eq!(f.lookup(Fid::ROOT, "a"), Ok(None));
    let moved = f.lookup(dir, "b").expect("looks").expect("there");
    assert!(moved.fid == a.fid && moved.ctime > a.ctime && moved.mtime == a.mtime);
    assert_eq!(f.stat(b.fid).map(|attr| attr.nlink), Ok(0), "it can be opened for a moment");
    assert_eq!(f.mv((Fid::ROOT, "none"), (dir, "x")), Err(Status::ENOENT));
    f.check();
}

#[test]
fn renaming_one_name_of_an_inode_onto_another_does_nothing() {
    let f = Fixture::new();
    let a = f.file(Fid::ROOT, "a").expect("made");
    f.run(&MdsRequest::Link { fid: a.fid, parent: Fid::ROOT, name: b"b" }).expect("linked");
    assert_eq!(f.mv((Fid::ROOT, "a"), (Fid::ROOT, "b")), Ok(None));
    assert_eq!(f.mv((Fid::ROOT, "a"), (Fid::ROOT, "a")), Ok(None));
    assert_eq!(f.stat(a.fid).expect("there").nlink, 2);
    f.mv((Fid::ROOT, "b"), (Fid::ROOT, "c")).expect("moved");
    f.mv((Fid::ROOT, "a"), (Fid::ROOT, "d")).expect("moved");
    assert_eq!(f.stat(a.fid).expect("there").nlink, 2);
    f.check();
}

#[test]
fn a_directory_cannot_move_into_itself() {
    let f = Fixture::new();
    let a = f.dir(Fid::ROOT, "a").expect("made").fid;
    let b = f.dir(a, "b").expect("made").fid;
    let c = f.dir(b, "c").expect("made").fid;
    assert_eq!(f.mv((Fid::ROOT, "a"), (c, "x")), Err(Status::EINVAL));
    assert_eq!(f.mv((Fid::ROOT, "a"), (a, "x")), Err(Status::EINVAL));
    assert_eq!(f.mv((b, "c"), (Fid::ROOT, "a")), Err(Status::ENOTEMPTY));
    assert_eq!(f.rename((b, "c"), (Fid::ROOT, "a"), RenameFlags::EXCHANGE), Err(Status::EINVAL));
    assert_eq!(f.mv((b, "c"), (Fid::ROOT, "c")), Ok(None));
    assert_eq!(f.lookup(c, "..").map(|a| a.map(|a| a.fid)), Ok(Some(Fid::ROOT)));
    f.check();
}

#[test]
fn kinds_must_match_and_directories_must_be_empty() {
    let f = Fixture::new();
    let d = f.dir(Fid::ROOT, "d").expect("made").fid;
    let e = f.dir(Fid::ROOT, "e").expect("made");
    f.file(Fid::ROOT, "f").expect("made");
    f.file(d, "inside").expect("made");
    assert_eq!(f.mv((Fid::ROOT, "d"), (Fid::ROOT, "f")), Err(Status::ENOTDIR));
    assert_eq!(f.mv((Fid::ROOT, "f"), (Fid::ROOT, "d")), Err(Status::EISDIR));
    assert_eq!(f.mv((Fid::ROOT, "e"), (Fid::ROOT, "d")), Err(Status::ENOTEMPTY));
    let before = f.stat(Fid::ROOT).expect("the root").nlink;
    assert_eq!(f.mv((Fid::ROOT, "d"), (Fid::ROOT, "e")).map(|r| r.map(|r| r.fid)), Ok(Some(e.fid)));
    assert_eq!(f.stat(Fid::ROOT).expect("the root").nlink, before - 1);
    assert_eq!(f.mv((Fid::ROOT, "."), (Fid::ROOT, "x")), Err(Status::EBUSY));
    f.check();
}

#[test]
fn noreplace_and_exchange_do_what_they_say() {
    let f = Fixture::new();
    let d = f.dir(Fid::ROOT, "d").expect("made");
    let sub = f.dir(d.fid, "sub").expect("made");
    let a = f.file(Fid::ROOT, "a").expect("made");
    let noreplace = f.rename((Fid::ROOT, "a"), (d.fid, "sub"), RenameFlags::NOREPLACE);
    assert_eq!(noreplace, Err(Status::EEXIST));
    assert_eq!(f.rename((Fid::ROOT, "a"), (d.fid, "x"), RenameFlags::EXCHANGE), Err(Status::ENOENT));
    assert_eq!(f.rename((Fid::ROOT, "a"), (d.fid, "sub"), RenameFlags::all()), Err(Status::EINVAL));
    assert_eq!(f.rename((Fid::ROOT, "a"), (d.fid, "sub"), RenameFlags::EXCHANGE), Ok(None));
    assert_eq!(f.lookup(Fid::ROOT, "a").map(|r| r.map(|r| r.fid)), Ok(Some(sub.fid)));
    assert_eq!(f.lookup(d.fid, "sub").map(|r| r.map(|r| r.fid)), Ok(Some(a.fid)));
    assert_eq!((f.stat(d.fid).expect("there").nlink, f.stat(Fid::ROOT).expect("there").nlink), (2, 4));
    assert_eq!(f.rename((Fid::ROOT, "a"), (d.fid, "new"), RenameFlags::NOREPLACE), Ok(None));
    f.check();
}

#[test]
fn replacing_an_open_file_keeps_it_until_it_is_closed() {
    let f = Fixture::new();
    f.file(Fid::ROOT, "a").expect("made");
    let b = f.file(Fid::ROOT, "b").expect("made").fid;
    let handle = f.open(b, OpenFlags::READ).expect("opens");
    f.mv((Fid::ROOT, "a"), (Fid::ROOT, "b")).expect("moved");
    assert_eq!(f.stat(b).expect("open").nlink, 0);
    assert_eq!(f.close(b, handle), Ok(MdsReply::Done));
    assert_eq!(f.stat(b), Err(Status::ENOENT));
    f.check();
}

#[test]
fn sticky_directories_protect_names_from_being_moved_or_replaced() {
    let f = Fixture::new();
    let (alice, bob) = (user(1, 1, &[]), user(2, 2, &[]));
    let dir = f.create_as(&f.cred, Fid::ROOT, "t", NewFile::Directory, 0o1777).expect("made").fid;
    let set =
        nacre_types::SetAttr { valid: nacre_types::SetAttrValid::MODE, mode: 0o1777, ..Default::default() };
    f.run(&MdsRequest::SetAttr { fid: dir, set }).expect("set");
    let node = NewFile::Node { rdev: 0 };
    f.create_as(&alice, dir, "a", node, 0o666).expect("made");
    f.create_as(&bob, dir, "b", node, 0o666).expect("made");
    let rename = |cred: &Cred, from: &str, to: &str| {
        f.run_as(
            cred,
            &MdsRequest::Rename {
                from_parent: dir,
                from_name: from.as_bytes(),
                to_parent: dir,
                to_name: to.as_bytes(),
                flags: RenameFlags::empty(),
            },
        )
    };
    assert_eq!(rename(&bob, "a", "x"), Err(Status::EPERM));
    assert_eq!(rename(&bob, "b", "a"), Err(Status::EPERM));
    let unlink = MdsRequest::Unlink { parent: dir, name: b"a", directory: false };
    assert_eq!(f.run_as(&bob, &unlink), Err(Status::EPERM));
    assert!(rename(&bob, "b", "y").is_ok());
    assert!(f.run_as(&alice, &unlink).is_ok());
    f.check();
}

/// A rename that waits for clients keeps its names. It waited for the lock of the tree with them, and another rename
/// had that lock and waited for one of the names.
#[test]
fn a_rename_that_has_waited_for_clients_keeps_no_name_while_it_waits_for_the_tree() {
    let f = Fixture::new();
    let [above, other] = ["above", "other"].map(|name| f.dir(Fid::ROOT, name).expect("made").fid);
    let moved = f.dir(above, "dir").expect("made").fid;
    let (ended, ends) = mpsc::channel();
    f.mds.hold.set("locked Rename").expect("a request");
    let (mds, export, cred, done) = (f.mds.clone(), f.export.clone(), f.cred.clone(), ended.clone());
    nacre_env::thread::spawn(move || {
        let request = MdsRequest::Rename {
            from_parent: above,
            from_name: b"dir",
            to_parent: other,
            to_name: b"dir",
            flags: RenameFlags::empty(),
        };
        let _ = done.send(mds.handle(&export, &Call::new(&cred), &request).map(drop));
    });
    eventually("it keeps its names", || f.mds.hold.text() == "held locked Rename");
    let (mds, (waits, waiting)) = (f.mds.clone(), mpsc::channel());
    nacre_env::thread::spawn(move || {
        let _still = mds.core.tree.still().expect("free");
        let _hook = nacre_env::install_hook(Rc::new(Tell(waits)));
        let _ = ended.send(mds.leaves.locks.lock(&[Want::Name(above, b"dir")]).map(drop));
    });
    waiting.recv().expect("it waits for a name");
    f.mds.hold.release();
    let limit = std::time::Duration::from_secs(10);
    assert_eq!([(); 2].map(|()| ends.recv_timeout(limit)), [Ok(Ok(())); 2]);
    assert_eq!(f.lookup(other, "dir").map(|found| found.map(|attr| attr.fid)), Ok(Some(moved)));
    f.check();
}
