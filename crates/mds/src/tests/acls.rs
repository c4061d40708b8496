use super::*;
use nacre_types::acl::{Acl, AclEntry, AclTag};
use nacre_types::{AttrFlags, SetAttr, SetAttrValid};
use nacre_wire::mds::XattrFlags;

const ACCESS: &str = "system.posix_acl_access";
const DEFAULT: &str = "system.posix_acl_default";

/// Owner rwx, user 7 as given, group r-x, mask rwx, other as given.
fn acl(user: u8, other: u8) -> Acl {
    let entry = |tag, perm, id| AclEntry { tag, perm, id };
    Acl::from_entries(vec![
        entry(AclTag::UserObj, 7, 0),
        entry(AclTag::User, user, 7),
        entry(AclTag::GroupObj, 5, 0),
        entry(AclTag::Mask, 7, 0),
        entry(AclTag::Other, other, 0),
    ])
    .expect("valid")
}

impl Fixture {
    fn set_acl(&self, cred: &Cred, fid: Fid, name: &str, value: &[u8]) -> StatusResult<Attr> {
        let flags = XattrFlags::empty();
        attr_of(self.run_as(cred, &MdsRequest::SetXattr { fid, name: name.as_bytes(), value, flags })?)
    }

    fn get_acl(&self, fid: Fid, name: &str) -> StatusResult<Option<Acl>> {
        match self.run(&MdsRequest::GetXattr { fid, name: name.as_bytes() })? {
            MdsReply::Bytes(value) => Acl::parse_xattr(&value),
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn an_access_acl_decides_and_shows_its_mask_in_the_mode() {
    let f = Fixture::new();
    let file = f.file(Fid::ROOT, "f").expect("made").fid;
    let attr = f.set_acl(&f.cred, file, ACCESS, &acl(6, 0).to_xattr()).expect("set");
    assert_eq!(attr.mode & 0o777, 0o770);
    assert!(attr.flags.contains(AttrFlags::HAS_ACL));
    let access = |cred: &Cred, mask| f.run_as(cred, &MdsRequest::Access { fid: file, mask }).map(|_| ());
    assert_eq!(access(&user(7, 7, &[]), 6), Ok(()));
    assert_eq!(access(&user(7, 7, &[]), 1), Err(Status::EACCES));
    assert_eq!(access(&user(8, 8, &[]), 4), Err(Status::EACCES));
    // chmod sets the mask.
    let set = SetAttr { valid: SetAttrValid::MODE, mode: 0o740, ..SetAttr::default() };
    f.run(&MdsRequest::SetAttr { fid: file, set }).expect("set");
    assert_eq!(access(&user(7, 7, &[]), 4), Ok(()));
    assert_eq!(access(&user(7, 7, &[]), 2), Err(Status::EACCES));
    let f = f.restart();
    assert_eq!(f.get_acl(file, ACCESS).map(|acl| acl.map(|acl| acl.mask())), Ok(Some(4)));
    let removed = f.attr(&MdsRequest::RemoveXattr { fid: file, name: ACCESS.as_bytes() }).expect("removed");
    assert!(!removed.flags.contains(AttrFlags::HAS_ACL));
    assert_eq!(f.get_acl(file, ACCESS), Err(Status::ENODATA));
    f.check();
}

#[test]
fn an_acl_that_the_mode_can_say_is_not_stored() {
    let f = Fixture::new();
    let file = f.file(Fid::ROOT, "f").expect("made").fid;
    let entry = |tag, perm| AclEntry { tag, perm, id: 0 };
    let minimal = Acl::from_entries(vec![
        entry(AclTag::UserObj, 6),
        entry(AclTag::GroupObj, 2),
        entry(AclTag::Other, 1),
    ])
    .expect("valid");
    let attr = f.set_acl(&f.cred, file, ACCESS, &minimal.to_xattr()).expect("set");
    assert_eq!((attr.mode & 0o777, attr.flags), (0o621, AttrFlags::empty()));
    assert_eq!(f.get_acl(file, ACCESS), Err(Status::ENODATA));
}

#[test]
fn a_default_acl_is_inherited_in_place_of_the_umask() {
    let f = Fixture::new();
    let dir = f.dir(Fid::ROOT, "d").expect("made").fid;
    f.set_acl(&f.cred, dir, DEFAULT, &acl(7, 5).to_xattr()).expect("set");
    // The fixture's umask is 022; group and other would lose their write bit by it.
    let file = f
        .create_as(&f.cred, dir, "f", NewFile::Node { rdev: 0 }, FileKind::Regular.mode_bits() | 0o666)
        .expect("made");
    assert_eq!(file.mode & 0o777, 0o664);
    assert!(file.flags.contains(AttrFlags::HAS_ACL));
    let inherited = f.get_acl(file.fid, ACCESS).expect("has one").expect("has one");
    assert_eq!((inherited.named_user(7), inherited.mask(), inherited.other()), (Some(7), 6, 4));
    let sub = f.create_as(&f.cred, dir, "s", NewFile::Directory, 0o777).expect("made");
    assert!(sub.flags.contains(AttrFlags::HAS_DEFAULT_ACL | AttrFlags::HAS_ACL));
    assert_eq!(f.get_acl(sub.fid, DEFAULT), Ok(Some(acl(7, 5))));
    let link = f.symlink(dir, "l", "x").expect("made");
    assert_eq!((link.mode & 0o777, link.flags), (0o777, AttrFlags::empty()));
    f.unlink(dir, "f").expect("removed");
    f.rmdir(dir, "s").expect("removed");
    f.check();
}

#[test]
fn acls_are_refused_where_they_make_no_sense() {
    let f = Fixture::new();
    let file = f.file(Fid::ROOT, "f").expect("made").fid;
    let link = f.symlink(Fid::ROOT, "l", "f").expect("made").fid;
    let value = acl(7, 0).to_xattr();
    assert_eq!(f.set_acl(&f.cred, link, ACCESS, &value), Err(Status::EOPNOTSUPP));
    assert_eq!(f.set_acl(&f.cred, file, DEFAULT, &value), Err(Status::EACCES));
    assert_eq!(f.set_acl(&user(7, 7, &[]), file, ACCESS, &value), Err(Status::EPERM));
    assert_eq!(f.set_acl(&f.cred, file, ACCESS, &value[..value.len() - 3]), Err(Status::EINVAL));
    assert_eq!(f.set_acl(&f.cred, file, ACCESS, &[9, 0, 0, 0]), Err(Status::EOPNOTSUPP));
}

#[test]
fn names_in_a_directory_with_an_acl_may_not_be_cached_for_all() {
    let f = Fixture::new();
    let dir = f.dir(Fid::ROOT, "d").expect("made").fid;
    let public = || match f.run(&MdsRequest::Lookup { parent: dir, name: b"x" }) {
        Ok(MdsReply::Entry { public, .. }) => public,
        other => panic!("{other:?}"),
    };
    assert!(public());
    f.set_acl(&f.cred, dir, ACCESS, &acl(0, 7).to_xattr()).expect("set");
    assert!(!public());
    assert_eq!(
        f.run_as(&user(7, 7, &[]), &MdsRequest::Lookup { parent: dir, name: b"x" }),
        Err(Status::EACCES)
    );
}
