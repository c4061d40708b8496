use super::*;
use nacre_layout::user::{self, Foreign};
use nacre_types::limits::LINK_MAX;
use nacre_types::{SetAttr, SetAttrValid};
use nacre_wire::mds::{LIST_INODES_MAX, LockRange, XattrFlags};

#[test]
fn a_file_is_found_under_its_name_with_the_attributes_it_was_made_with() {
    let f = Fixture::new();
    let made = f.file(Fid::ROOT, "a").expect("made");
    assert_eq!((made.mode, made.nlink, made.size), (0o100644, 1, 0));
    assert_eq!(f.lookup(Fid::ROOT, "a"), Ok(Some(made)));
    assert_eq!(f.stat(made.fid), Ok(made));
    assert_eq!(f.lookup(Fid::ROOT, "b"), Ok(None));
    assert_eq!(f.lookup(made.fid, "b"), Err(Status::ENOTDIR));
    assert_eq!(f.lookup(Fid::ROOT, &"x".repeat(256)), Err(Status::ENAMETOOLONG));
    assert_eq!(f.file(Fid::ROOT, "a"), Err(Status::EEXIST));
    f.check();
}

#[test]
fn everything_is_there_after_a_restart() {
    let f = Fixture::new();
    let dir = f.dir(Fid::ROOT, "d").expect("made");
    let file = f.file(dir.fid, "f").expect("made");
    let f = f.restart();
    assert_eq!(f.lookup(dir.fid, "f"), Ok(Some(file)));
    assert_eq!(f.lookup(dir.fid, "..").map(|a| a.map(|a| a.fid)), Ok(Some(Fid::ROOT)));
    assert_eq!(f.lookup(dir.fid, ".").map(|a| a.map(|a| a.fid)), Ok(Some(dir.fid)));
    f.check();
}

#[test]
fn directories_count_their_subdirectories_and_show_a_stable_size() {
    let f = Fixture::new();
    let before = f.stat(Fid::ROOT).expect("the root");
    let dir = f.dir(Fid::ROOT, "d").expect("made");
    f.file(Fid::ROOT, "f").expect("made");
    let after = f.stat(Fid::ROOT).expect("the root");
    assert_eq!((dir.nlink, after.nlink), (2, before.nlink + 1));
    assert_eq!((after.size, after.blocks), (before.size, before.blocks));
    assert!(after.mtime > before.mtime && after.ctime > before.ctime && after.version > before.version);
    assert_eq!(f.rmdir(Fid::ROOT, "d").expect("removed").expect("attributes").nlink, 0);
    assert_eq!(f.stat(Fid::ROOT).expect("the root").nlink, before.nlink);
    assert_eq!(f.stat(dir.fid), Err(Status::ENOENT));
    f.check();
}

#[test]
fn removal_is_refused_as_posix_says() {
    let f = Fixture::new();
    let dir = f.dir(Fid::ROOT, "d").expect("made");
    f.file(dir.fid, "f").expect("made");
    assert_eq!(f.rmdir(Fid::ROOT, "d"), Err(Status::ENOTEMPTY));
    assert_eq!(f.unlink(Fid::ROOT, "d"), Err(Status::EISDIR));
    assert_eq!(f.rmdir(dir.fid, "f"), Err(Status::ENOTDIR));
    assert_eq!(f.rmdir(dir.fid, "."), Err(Status::EINVAL));
    assert_eq!(f.rmdir(dir.fid, ".."), Err(Status::ENOTEMPTY));
    assert_eq!(f.unlink(dir.fid, "none"), Err(Status::ENOENT));
    assert_eq!(f.unlink(dir.fid, &"x".repeat(256)), Err(Status::ENAMETOOLONG));
    f.unlink(dir.fid, "f").expect("removed");
    f.rmdir(Fid::ROOT, "d").expect("removed");
    // It might have been a removed shard: the client then checks whether the directory exists.
    assert_eq!(f.file(dir.fid, "late"), Err(Status::WRONG_SHARD));
    f.check();
}

#[test]
fn links_share_an_inode_until_the_last_is_gone() {
    let f = Fixture::new();
    let dir = f.dir(Fid::ROOT, "d").expect("made");
    let file = f.file(Fid::ROOT, "a").expect("made");
    let link =
        |parent, name: &str| f.attr(&MdsRequest::Link { fid: file.fid, parent, name: name.as_bytes() });
    assert_eq!(link(dir.fid, "b").expect("linked").nlink, 2);
    assert_eq!(link(Fid::ROOT, "c").expect("linked").nlink, 3);
    assert_eq!(link(Fid::ROOT, "a"), Err(Status::EEXIST));
    let to_dir = MdsRequest::Link { fid: dir.fid, parent: Fid::ROOT, name: b"e" };
    assert_eq!(f.attr(&to_dir), Err(Status::EPERM));
    // The first name is removed; another one replaces it.
    assert_eq!(f.unlink(Fid::ROOT, "a").expect("removed").expect("left").nlink, 2);
    let mut links = Vec::new();
    for index in 0.. {
        match f.run(&MdsRequest::FidToLink { fid: file.fid, index }) {
            Ok(MdsReply::Link { parent, name }) => links.push((parent, name)),
            Err(Status::ENODATA) => break,
            other => panic!("{other:?}"),
        }
    }
    links.sort();
    assert_eq!(links, vec![(Fid::ROOT, b"c".to_vec()), (dir.fid, b"b".to_vec())]);
    f.unlink(dir.fid, "b").expect("removed");
    assert_eq!(f.unlink(Fid::ROOT, "c").expect("removed").expect("attributes").nlink, 0);
    assert_eq!(f.stat(file.fid), Err(Status::ENOENT));
    f.check();
}

#[test]
fn foreign_directories_have_no_entries_and_can_be_removed() {
    let f = Fixture::new();
    let parent = f.dir(Fid::ROOT, "parent").expect("made").fid;
    let dir = f.dir(parent, "foreign").expect("made").fid;
    let foreign = Foreign { kind: 0xda05, flags: 1, text: b"elsewhere".to_vec() };
    let value = user::encode_foreign_directory(&foreign);
    let set = |fid, value: &[u8], flags| {
        f.run(&MdsRequest::SetXattr { fid, name: b"lustre.lmv", value, flags }).map(drop)
    };
    let get = |fid, name: &'static [u8]| match f.run(&MdsRequest::GetXattr { fid, name }) {
        Ok(MdsReply::Bytes(bytes)) => Ok(bytes),
        Ok(other) => panic!("{other:?}"),
        Err(status) => Err(status),
    };
    let none = XattrFlags::empty();
    assert_eq!(set(dir, &value[..20], none), Err(Status::EINVAL));
    assert_eq!(set(parent, &value, none), Err(Status::ENOTEMPTY));
    assert_eq!(set(Fid::ROOT, &value, none), Err(Status::ENOTEMPTY));
    assert_eq!(set(dir, b"something of a backup", none), Ok(()), "is ignored");
    assert_eq!(get(dir, b"lustre.lmv"), Err(Status::ENODATA));
    assert_eq!(set(dir, &value, XattrFlags::CREATE), Ok(()));
    assert_eq!((set(dir, &value, none), set(dir, &value, XattrFlags::CREATE)), (Ok(()), Err(Status::EEXIST)));
    for name in [&b"lustre.lmv"[..], b"trusted.lmv"] {
        assert_eq!(get(dir, name), Ok(value.clone()));
    }
    assert_eq!(get(dir, b"lustre.lov"), Err(Status::ENODATA));
    assert_eq!(f.file(dir, "a"), Err(Status::ENODATA));
    assert_eq!(f.dir(dir, "a").map(drop), Err(Status::ENODATA));
    let list = MdsRequest::ReadDir {
        fid: dir,
        cookie: 0,
        max_bytes: 4096,
        plus: false,
        locks: LockRange::default(),
    };
    assert_eq!(f.run(&list).map(drop), Err(Status::ENODATA));
    let file = f.file(parent, "file").expect("made").fid;
    let link = MdsRequest::Link { fid: file, parent: dir, name: b"l" };
    assert_eq!(f.run(&link).map(drop), Err(Status::ENODATA));
    assert_eq!(set(file, &value, none), Err(Status::ENOTDIR));
    f.rmdir(parent, "foreign").expect("removed");
    let again = f.dir(parent, "foreign").expect("made").fid;
    assert_eq!(set(again, &value, none), Ok(()));
    f.check();
}

#[test]
fn paths_are_told_at_once_and_files_removed_by_their_fid() {
    let f = Fixture::new();
    let mut dir = Fid::ROOT;
    for name in ["a", "b", "c"] {
        dir = f.dir(dir, name).expect("made").fid;
    }
    let file = f.file(dir, "file").expect("made").fid;
    f.attr(&MdsRequest::Link { fid: file, parent: Fid::ROOT, name: b"other" }).expect("linked");
    let path = |fid, index| match f.run(&MdsRequest::FidToPath { fid, index }) {
        Ok(MdsReply::Path { top, path }) => {
            assert_eq!(top, Fid::ROOT);
            Ok(String::from_utf8(path).expect("ASCII"))
        }
        Ok(other) => panic!("{other:?}"),
        Err(status) => Err(status),
    };
    assert_eq!((path(file, 0), path(file, 1)), (Ok("a/b/c/file".into()), Ok("other".into())));
    assert_eq!((path(dir, 0), path(Fid::ROOT, 0)), (Ok("a/b/c".into()), Ok(String::new())));
    assert_eq!(
        (path(file, 2), path(Fid::new(dir.seq, 999, 0), 0)),
        (Err(Status::ENODATA), Err(Status::ENOENT))
    );
    let remove = |fid| f.run(&MdsRequest::RemoveFid { fid });
    for left in [1, 0] {
        let Ok(MdsReply::Removed { fid, attr: Some(attr) }) = remove(file) else { panic!("removed") };
        assert_eq!((fid, attr.nlink), (file, left));
    }
    assert_eq!((remove(file), remove(dir)), (Err(Status::ENOENT), Err(Status::EISDIR)));
    assert_eq!(remove(Fid::ROOT), Err(Status::EBUSY));
    f.check();
}

#[test]
fn a_file_has_at_most_link_max_names() {
    let f = Fixture::new();
    let file = f.file(Fid::ROOT, "0").expect("made");
    for i in 1..LINK_MAX {
        let name = i.to_string();
        f.run(&MdsRequest::Link { fid: file.fid, parent: Fid::ROOT, name: name.as_bytes() }).expect("linked");
    }
    let more = MdsRequest::Link { fid: file.fid, parent: Fid::ROOT, name: b"more" };
    assert_eq!(f.run(&more), Err(Status::EMLINK));
}

#[test]
fn symlinks_keep_their_target_and_its_length() {
    let f = Fixture::new();
    let link = f.symlink(Fid::ROOT, "l", "../some/where").expect("made");
    assert_eq!((link.mode, link.size), (0o120777, 13));
    let target = f.run(&MdsRequest::ReadLink { fid: link.fid });
    assert_eq!(target, Ok(MdsReply::Bytes(b"../some/where".to_vec())));
    assert_eq!(f.run(&MdsRequest::ReadLink { fid: Fid::ROOT }), Err(Status::EINVAL));
    assert_eq!(f.symlink(Fid::ROOT, "m", &"x".repeat(4096)), Err(Status::ENAMETOOLONG));
    assert_eq!(f.symlink(Fid::ROOT, "m", ""), Err(Status::ENOENT));
    assert!(f.symlink(Fid::ROOT, "m", &"x".repeat(4095)).is_ok());
    f.check();
}

#[test]
fn a_listing_in_pages_gives_every_name_once() {
    let f = Fixture::new();
    let dir = f.dir(Fid::ROOT, "d").expect("made").fid;
    let mut names: Vec<String> = (0..500).map(|i| format!("file{i}")).collect();
    for name in &names {
        f.file(dir, name).expect("made");
    }
    names.sort();
    for max_bytes in [200, 1000, 4096, 1 << 20] {
        let mut listed = f.names(dir, max_bytes);
        listed.sort();
        assert_eq!(listed, names, "{max_bytes}");
    }
    let tiny =
        MdsRequest::ReadDir { fid: dir, cookie: 0, max_bytes: 20, plus: false, locks: LockRange::default() };
    assert_eq!(f.run(&tiny), Err(Status::EINVAL));
    f.check();
}

#[test]
fn names_removed_while_a_directory_is_listed_do_not_hide_others() {
    let f = Fixture::new();
    let dir = f.dir(Fid::ROOT, "d").expect("made").fid;
    for i in 0..300 {
        f.file(dir, &format!("f{i}")).expect("made");
    }
    let (mut cookie, mut seen) = (0, 0);
    loop {
        let reply = f.run(&MdsRequest::ReadDir {
            fid: dir,
            cookie,
            max_bytes: 500,
            plus: false,
            locks: LockRange::default(),
        });
        let Ok(MdsReply::Directory(page)) = reply else { panic!("{reply:?}") };
        for entry in page.entries() {
            cookie = entry.cookie;
            seen += 1;
            f.unlink(dir, std::str::from_utf8(entry.name).expect("ASCII")).expect("removed");
        }
        if page.end {
            break;
        }
    }
    assert_eq!(seen, 300);
    f.rmdir(Fid::ROOT, "d").expect("empty");
    f.check();
}

#[test]
fn times_follow_what_is_done() {
    let f = Fixture::new();
    let file = f.file(Fid::ROOT, "a").expect("made");
    let set = |valid, set: SetAttr| {
        f.attr(&MdsRequest::SetAttr { fid: file.fid, set: SetAttr { valid, ..set } }).expect("set")
    };
    let past = nacre_types::Timestamp::new(-5, 7);
    let touched = set(SetAttrValid::MTIME, SetAttr { mtime: past, ..SetAttr::default() });
    assert_eq!(touched.mtime, past);
    assert!(touched.ctime > file.ctime && touched.atime == file.atime && touched.btime == file.btime);
    let moded = set(SetAttrValid::MODE, SetAttr { mode: 0o600, ..SetAttr::default() });
    assert!(moded.ctime > touched.ctime && moded.mtime == past && moded.mode == 0o100600);
    let linked = f.attr(&MdsRequest::Link { fid: file.fid, parent: Fid::ROOT, name: b"b" }).expect("linked");
    assert!(linked.ctime > moded.ctime && linked.mtime == past);
    let left = f.unlink(Fid::ROOT, "b").expect("removed").expect("left");
    assert!(left.ctime > linked.ctime);
    f.check();
}

#[test]
fn fids_that_were_not_given_out_are_refused() {
    let f = Fixture::new();
    let file = f.file(Fid::ROOT, "a").expect("made");
    let create = |fid, new, mode| {
        f.run(&MdsRequest::Create {
            parent: Fid::ROOT,
            name: b"b",
            fid,
            new,
            mode,
            umask: 0,
            open: None,
            exclusive: true,
        })
    };
    let make = |fid| create(fid, NewFile::Directory, 0o755);
    assert_eq!(make(file.fid), Err(Status::EEXIST));
    assert_eq!(make(Fid::new(file.fid.seq + 1, 1, 0)), Err(Status::EINVAL));
    assert_eq!(make(Fid::ROOT), Err(Status::EINVAL));
    let elsewhere = Fid::new(Fid::first_sequence_of_mdt(1), 1, 0);
    // A directory may be on another MDT; there is none.
    assert_eq!(make(elsewhere), Err(Status::ENODEV));
    let a_file = create(elsewhere, NewFile::Node { rdev: 0 }, FileKind::Regular.mode_bits() | 0o644);
    assert_eq!(a_file, Err(Status::WRONG_TARGET));
    assert_eq!(f.stat(elsewhere), Err(Status::WRONG_TARGET));
    f.check();
}

#[test]
fn many_names_are_looked_up_at_once_by_those_who_may_search() {
    let f = Fixture::new();
    let dir = f.dir(Fid::ROOT, "dir").expect("made").fid;
    let (b, a) = (f.file(dir, "b").expect("made"), f.file(dir, "a").expect("made"));
    let names = [b"b\0none\0..\0\0a\0".as_slice(), &[b'x'; 300]].concat();
    let request = MdsRequest::LookupMany { parent: dir, names: &names, locks: LockRange::default() };
    let Ok(MdsReply::Directory(page)) = f.run(&request) else { panic!("answered") };
    let found: Vec<_> = page.entries().map(|entry| (entry.name, entry.attr)).collect();
    assert_eq!(found, [(b"b".as_slice(), Some(b)), (b"a".as_slice(), Some(a))]);
    assert!(page.public);
    let request = MdsRequest::LookupMany { parent: a.fid, names: &names, locks: LockRange::default() };
    assert_eq!(f.run(&request), Err(Status::ENOTDIR));
    let closed = f.create_as(&f.cred, Fid::ROOT, "closed", NewFile::Directory, 0o040700).expect("made");
    let request = MdsRequest::LookupMany { parent: closed.fid, names: &names, locks: LockRange::default() };
    assert_eq!(f.run_as(&user(5, 5, &[]), &request), Err(Status::EACCES));
}

#[test]
fn inodes_are_listed_by_fid_in_the_order_asked_for_without_those_that_are_gone() {
    let f = Fixture::new();
    let made: Vec<Attr> =
        (0..5).map(|number| f.file(Fid::ROOT, &format!("f{number}")).expect("made")).collect();
    f.unlink(Fid::ROOT, "f2").expect("removed");
    let list =
        |fids: Vec<Fid>| f.run(&MdsRequest::ListInodes { fids, layouts: false, locks: LockRange::default() });
    let asked: Vec<Fid> = made.iter().rev().map(|attr| attr.fid).collect();
    let Ok(MdsReply::Directory(page)) = list(asked) else { panic!("a page") };
    let found: Vec<(Fid, Option<u32>)> =
        page.entries().map(|entry| (entry.fid, entry.attr.map(|attr| attr.nlink))).collect();
    let expected: Vec<_> = [4, 3, 1, 0].map(|number: usize| (made[number].fid, Some(1))).to_vec();
    assert_eq!((found, page.end), (expected, true));
    assert_eq!(list(vec![Fid::ROOT; LIST_INODES_MAX + 1]), Err(Status::EINVAL));
    let elsewhere = Fid::new(Fid::first_sequence_of_mdt(1), 5, 0);
    assert_eq!(list(vec![elsewhere]), Err(Status::WRONG_TARGET));
    f.check();
}
