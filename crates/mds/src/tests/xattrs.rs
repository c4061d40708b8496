use super::*;
use nacre_types::AttrFlags;
use nacre_wire::mds::XattrFlags;

impl Fixture {
    fn set_x(
        &self,
        cred: &Cred,
        fid: Fid,
        name: &str,
        value: &[u8],
        flags: XattrFlags,
    ) -> StatusResult<Attr> {
        attr_of(self.run_as(cred, &MdsRequest::SetXattr { fid, name: name.as_bytes(), value, flags })?)
    }

    fn get_x(&self, cred: &Cred, fid: Fid, name: &str) -> StatusResult<Vec<u8>> {
        match self.run_as(cred, &MdsRequest::GetXattr { fid, name: name.as_bytes() })? {
            MdsReply::Bytes(bytes) => Ok(bytes),
            other => panic!("{other:?}"),
        }
    }

    fn list_x(&self, cred: &Cred, fid: Fid) -> Vec<String> {
        match self.run_as(cred, &MdsRequest::ListXattr { fid }) {
            Ok(MdsReply::Bytes(bytes)) => {
                let text = String::from_utf8(bytes).expect("ASCII");
                text.split_terminator('\0').map(str::to_owned).collect()
            }
            other => panic!("{other:?}"),
        }
    }

    fn remove_x(&self, cred: &Cred, fid: Fid, name: &str) -> StatusResult<Attr> {
        attr_of(self.run_as(cred, &MdsRequest::RemoveXattr { fid, name: name.as_bytes() })?)
    }
}

const ANY: XattrFlags = XattrFlags::empty();

#[test]
fn values_are_kept_listed_and_removed() {
    let f = Fixture::new();
    let fid = f.file(Fid::ROOT, "f").expect("made").fid;
    let before = f.stat(fid).expect("there");
    let after = f.set_x(&f.cred, fid, "user.a", b"1", ANY).expect("set");
    assert!(after.ctime > before.ctime && after.flags == AttrFlags::HAS_XATTRS);
    f.set_x(&f.cred, fid, "user.empty", b"", ANY).expect("set");
    f.set_x(&f.cred, fid, "user.big", &[7; 65536], ANY).expect("set");
    let f = f.restart();
    assert_eq!(f.get_x(&f.cred, fid, "user.a"), Ok(b"1".to_vec()));
    assert_eq!(f.get_x(&f.cred, fid, "user.empty"), Ok(Vec::new()));
    assert_eq!(f.get_x(&f.cred, fid, "user.big").map(|v| v.len()), Ok(65536));
    assert_eq!(f.list_x(&f.cred, fid), ["user.a", "user.big", "user.empty"]);
    assert_eq!(f.set_x(&f.cred, fid, "user.a", b"2", XattrFlags::CREATE), Err(Status::EEXIST));
    assert_eq!(f.set_x(&f.cred, fid, "user.b", b"2", XattrFlags::REPLACE), Err(Status::ENODATA));
    assert_eq!(f.set_x(&f.cred, fid, "user.b", &[0; 65537], ANY), Err(Status::E2BIG));
    assert_eq!(f.set_x(&f.cred, fid, &format!("user.{}", "x".repeat(251)), b"", ANY), Err(Status::ERANGE));
    for name in ["user.a", "user.big"] {
        assert!(f.remove_x(&f.cred, fid, name).expect("removed").flags.contains(AttrFlags::HAS_XATTRS));
    }
    assert_eq!(f.remove_x(&f.cred, fid, "user.empty").expect("removed").flags, AttrFlags::empty());
    assert_eq!(f.remove_x(&f.cred, fid, "user.empty"), Err(Status::ENODATA));
    f.set_x(&f.cred, fid, "user.left", b"over", ANY).expect("set");
    f.unlink(Fid::ROOT, "f").expect("removed");
    f.check();
}

#[test]
fn each_name_space_has_its_rules() {
    let f = Fixture::new();
    let plain = user(1, 1, &[]);
    let fid = f.create_as(&f.cred, Fid::ROOT, "f", NewFile::Node { rdev: 0 }, 0o644).expect("made").fid;
    let link = f.symlink(Fid::ROOT, "l", "f").expect("made").fid;
    assert_eq!(f.set_x(&f.cred, link, "user.a", b"", ANY), Err(Status::EPERM));
    assert_eq!(f.get_x(&f.cred, link, "user.a"), Err(Status::ENODATA));
    assert!(f.set_x(&f.cred, link, "trusted.a", b"", ANY).is_ok());
    assert_eq!(f.set_x(&plain, fid, "user.a", b"", ANY), Err(Status::EACCES));
    assert_eq!(f.set_x(&plain, fid, "trusted.a", b"", ANY), Err(Status::EPERM));
    assert_eq!(f.set_x(&plain, fid, "security.a", b"", ANY), Err(Status::EPERM));
    assert_eq!(f.set_x(&plain, fid, "system.other", b"", ANY), Err(Status::EOPNOTSUPP));
    assert_eq!(f.set_x(&f.cred, fid, "user.", b"", ANY), Err(Status::EOPNOTSUPP));
    f.set_x(&f.cred, fid, "trusted.a", b"t", ANY).expect("set");
    f.set_x(&f.cred, fid, "security.a", b"s", ANY).expect("set");
    assert_eq!(f.get_x(&plain, fid, "trusted.a"), Err(Status::ENODATA));
    assert_eq!(f.get_x(&plain, fid, "security.a"), Ok(b"s".to_vec()));
    assert_eq!(f.list_x(&plain, fid), ["security.a"]);
    assert_eq!(f.list_x(&f.cred, fid), ["security.a", "trusted.a"]);
}

#[test]
fn file_capabilities_have_a_flag_and_go_when_the_file_is_given_away() {
    let f = Fixture::new();
    let fid = f.file(Fid::ROOT, "f").expect("made").fid;
    let set = f.set_x(&f.cred, fid, "security.capability", b"caps", ANY).expect("set");
    assert_eq!(set.flags, AttrFlags::HAS_CAPABILITY);
    let chown = nacre_types::SetAttr { valid: nacre_types::SetAttrValid::UID, uid: 5, ..Default::default() };
    let given = f.attr(&MdsRequest::SetAttr { fid, set: chown }).expect("given");
    assert_eq!(given.flags, AttrFlags::empty());
    assert_eq!(f.get_x(&f.cred, fid, "security.capability"), Err(Status::ENODATA));
    f.check();
}

#[test]
fn sticky_directories_take_user_attributes_from_their_owner_only() {
    let f = Fixture::new();
    let dir = f.create_as(&user(0, 0, &[]), Fid::ROOT, "t", NewFile::Directory, 0o777).expect("made").fid;
    let mode =
        nacre_types::SetAttr { valid: nacre_types::SetAttrValid::MODE, mode: 0o1777, ..Default::default() };
    f.run(&MdsRequest::SetAttr { fid: dir, set: mode }).expect("set");
    assert_eq!(f.set_x(&user(2, 2, &[]), dir, "user.a", b"", ANY), Err(Status::EPERM));
    assert!(f.set_x(&f.cred, dir, "user.a", b"", ANY).is_ok());
}

#[test]
fn lustres_own_attributes_show_fid_and_names() {
    let f = Fixture::new();
    let fid = f.file(Fid::ROOT, "f").expect("made").fid;
    f.run(&MdsRequest::Link { fid, parent: Fid::ROOT, name: b"g" }).expect("linked");
    let lma = f.get_x(&f.cred, fid, "trusted.lma").expect("there");
    assert_eq!((&lma[..8], &lma[8..]), (&[0u8; 8][..], &fid.to_le_bytes()[..]));
    let link = f.get_x(&f.cred, fid, "trusted.link").expect("there");
    assert_eq!(&link[..8], &[0xdf, 0xf1, 0xea, 0x11, 2, 0, 0, 0]);
    assert_eq!(&link[24..26], &[0, 19]);
    assert_eq!(&link[26..42], &Fid::ROOT.to_key());
    assert_eq!(link[42], b'f');
    assert_eq!(link.len(), 24 + 2 * 19);
    assert_eq!(f.get_x(&user(1, 1, &[]), fid, "trusted.lma"), Err(Status::ENODATA));
    assert!(f.set_x(&f.cred, fid, "trusted.lma", b"restored", ANY).is_ok(), "restoring a backup is ignored");
    assert_eq!(f.get_x(&f.cred, fid, "trusted.lma"), Ok(lma));
    assert!(
        f.remove_x(&f.cred, fid, "trusted.link").is_ok(),
        "and so is making a copy's names those of the original"
    );
    assert!(f.get_x(&f.cred, fid, "trusted.link").is_ok());
    // A copy's attributes may include a default for directories; a file has none.
    for name in ["trusted.lmv", "lustre.lmv", "trusted.dmv", "trusted.hsm", "trusted.som"] {
        assert_eq!(f.get_x(&f.cred, fid, name), Err(Status::ENODATA), "{name}");
        assert!(f.set_x(&f.cred, fid, name, b"x", ANY).is_ok(), "{name}");
        assert_eq!(f.get_x(&f.cred, fid, name), Err(Status::ENODATA), "{name}");
        // Layouts need the right to write, the others an administrator.
        let refused = if name == "lustre.lmv" { Status::EACCES } else { Status::EPERM };
        assert_eq!(f.set_x(&user(1, 1, &[]), fid, name, b"x", ANY), Err(refused), "{name}");
    }
    assert_eq!(f.set_x(&f.cred, fid, "lustre.lov.other", b"x", ANY), Err(Status::EINVAL));
    assert_eq!(f.get_x(&f.cred, fid, "lustre.lov.add"), Err(Status::ENODATA));
}

#[test]
fn lists_show_layouts_and_not_what_every_inode_has() {
    let f = Fixture::with_osts(1);
    let fid = f.file(Fid::ROOT, "f").expect("made").fid;
    assert_eq!(f.list_x(&f.cred, fid), [""; 0]);
    f.intent(fid).expect("objects");
    for cred in [&f.cred, &user(1, 1, &[])] {
        assert_eq!(f.list_x(cred, fid), ["lustre.lov"]);
    }
    for name in ["trusted.lov", "trusted.lma", "trusted.link"] {
        assert!(f.get_x(&f.cred, fid, name).is_ok(), "{name} can be read");
    }
}
