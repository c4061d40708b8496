//! Projects of inodes, their inheritance, and pages for programs that read every entry.

use super::*;
use nacre_layout::{LayoutRequest, LayoutSpec};
use nacre_types::{AttrFlags, SetAttr, SetAttrValid};
use nacre_wire::mds::{ListedLayout, RenameFlags};

impl Fixture {
    fn set_project(&self, cred: &Cred, fid: Fid, valid: SetAttrValid, projid: u32) -> StatusResult<Attr> {
        let set = SetAttr { valid, projid, ..SetAttr::default() };
        attr_of(self.run_as(cred, &MdsRequest::SetAttr { fid, set })?)
    }

    fn inherited(&self, fid: Fid, projid: u32) {
        let valid = SetAttrValid::PROJID | SetAttrValid::PROJECT_INHERIT;
        self.set_project(&self.cred, fid, valid, projid).expect("set");
    }
}

#[test]
fn new_entries_get_the_project_of_a_directory_that_says_so() {
    let f = Fixture::new();
    let dir = f.dir(Fid::ROOT, "d").expect("made").fid;
    f.set_project(&f.cred, dir, SetAttrValid::PROJID, 42).expect("set");
    assert_eq!(f.file(dir, "before").expect("made").projid, 0, "an id alone is not inherited");
    f.inherited(dir, 42);
    let file = f.file(dir, "file").expect("made");
    assert_eq!((file.projid, file.flags.contains(AttrFlags::PROJECT_INHERIT)), (42, false));
    let sub = f.dir(dir, "sub").expect("made");
    assert_eq!((sub.projid, sub.flags.contains(AttrFlags::PROJECT_INHERIT)), (42, true));
    assert_eq!(f.symlink(dir, "link", "file").expect("made").projid, 42);
    let f = f.restart();
    assert_eq!(f.file(sub.fid, "deep").expect("made").projid, 42);
    let cleared = f.set_project(&f.cred, dir, SetAttrValid::NO_PROJECT_INHERIT, 0).expect("set");
    assert_eq!((cleared.projid, cleared.flags.contains(AttrFlags::PROJECT_INHERIT)), (42, false));
    assert_eq!(f.file(dir, "after").expect("made").projid, 0);
    f.check();
}

#[test]
fn projects_are_set_by_owners_and_inherited_by_directories_only() {
    let f = Fixture::new();
    let dir = f.dir(Fid::ROOT, "d").expect("made").fid;
    let file = f.file(dir, "f").expect("made").fid;
    for valid in [SetAttrValid::PROJID, SetAttrValid::PROJECT_INHERIT, SetAttrValid::NO_PROJECT_INHERIT] {
        assert_eq!(f.set_project(&user(5, 5, &[]), dir, valid, 1), Err(Status::EPERM), "{valid:?}");
    }
    let ignored = f.set_project(&f.cred, file, SetAttrValid::PROJECT_INHERIT, 1).expect("ignored on a file");
    assert!(!ignored.flags.contains(AttrFlags::PROJECT_INHERIT));
    f.check();
}

#[test]
fn names_do_not_cross_the_border_of_an_inherited_project() {
    let f = Fixture::new();
    let inside = f.dir(Fid::ROOT, "inside").expect("made").fid;
    f.inherited(inside, 7);
    let file = f.file(Fid::ROOT, "file").expect("made").fid;
    let link = MdsRequest::Link { fid: file, parent: inside, name: b"link" };
    assert_eq!(f.run(&link), Err(Status::EXDEV));
    let none = RenameFlags::empty();
    assert_eq!(f.rename((Fid::ROOT, "file"), (inside, "file"), none), Err(Status::EXDEV));
    f.file(inside, "own").expect("made");
    f.rename((inside, "own"), (Fid::ROOT, "own"), none).expect("the way out is free");
    f.rename((Fid::ROOT, "own"), (inside, "own"), none).expect("its project is the directory's");
    let swap = f.rename((inside, "own"), (Fid::ROOT, "file"), RenameFlags::EXCHANGE);
    assert_eq!(swap, Err(Status::EXDEV));
    f.set_project(&f.cred, file, SetAttrValid::PROJID, 7).expect("set");
    f.rename((Fid::ROOT, "file"), (inside, "file"), none).expect("the same project");
    f.check();
}

#[test]
fn a_scan_has_attributes_and_layouts_of_every_entry() {
    let f = Fixture::new();
    let dir = f.dir(Fid::ROOT, "d").expect("made").fid;
    let mut expected = Vec::new();
    for i in 0..50 {
        let file = f.file(dir, &format!("f{i}")).expect("made");
        if i % 2 == 0 {
            let requested =
                LayoutRequest::Plain(LayoutSpec { stripe_count: Some(1), ..LayoutSpec::default() });
            f.attr(&MdsRequest::SetLayout { fid: file.fid, requested }).expect("set");
        }
        expected.push((format!("f{i}"), f.stat(file.fid).expect("there"), i % 2 == 0));
    }
    for (max_bytes, layouts) in [(700, true), (400, false), (1 << 20, true), (180, true)] {
        let (mut found, mut cookie) = (Vec::new(), 0);
        loop {
            let reply = f.run(&MdsRequest::Scan { fid: dir, cookie, max_bytes, layouts });
            let Ok(MdsReply::Directory(page)) = reply else { panic!("{reply:?}") };
            assert!(page.bytes.len() <= max_bytes as usize);
            for entry in page.entries() {
                let name = String::from_utf8_lossy(entry.name).into_owned();
                let listed = match entry.layout {
                    ListedLayout::Bytes(bytes) => bytes.len() == 32 + 24,
                    ListedLayout::TooLong => max_bytes == 180,
                    ListedLayout::None => false,
                };
                let requested = expected.iter().any(|(other, _, requested)| *other == name && *requested);
                assert_eq!(listed, layouts && requested, "{name}");
                found.push((name, entry.attr.expect("of this MDT"), requested));
                cookie = entry.cookie;
            }
            if page.end {
                break;
            }
        }
        found.sort_by_key(|(name, ..)| name[1..].parse::<u32>().expect("a number"));
        assert_eq!(found, expected);
    }
    f.check();
}

#[test]
fn a_scan_needs_permission_to_search() {
    let f = Fixture::new();
    let scan = |fid| MdsRequest::Scan { fid, cookie: 0, max_bytes: 4096, layouts: true };
    let closed = f.create_as(&f.cred, Fid::ROOT, "closed", NewFile::Directory, 0o040744).expect("made");
    assert_eq!(f.run_as(&user(5, 5, &[]), &scan(closed.fid)), Err(Status::EACCES));
    let file = f.file(Fid::ROOT, "f").expect("made");
    assert_eq!(f.run(&scan(file.fid)), Err(Status::ENOTDIR));
    f.check();
}
