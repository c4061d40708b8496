use super::*;
use nacre_types::attr::{S_ISGID, S_ISUID};
use nacre_types::{SetAttr, SetAttrValid, Timestamp, perm};

fn set(valid: SetAttrValid) -> SetAttr {
    SetAttr { valid, ..SetAttr::default() }
}

impl Fixture {
    fn set_as(&self, cred: &Cred, fid: Fid, set: SetAttr) -> StatusResult<Attr> {
        attr_of(self.run_as(cred, &MdsRequest::SetAttr { fid, set })?)
    }

    fn chmod(&self, cred: &Cred, fid: Fid, mode: u32) -> StatusResult<u32> {
        let change = SetAttr { mode, ..set(SetAttrValid::MODE) };
        self.set_as(cred, fid, change).map(|attr| attr.mode & 0o7777)
    }

    fn chown(&self, cred: &Cred, fid: Fid, uid: Option<u32>, gid: Option<u32>) -> StatusResult<Attr> {
        let mut change = SetAttr { uid: uid.unwrap_or(0), gid: gid.unwrap_or(0), ..SetAttr::default() };
        change.valid.set(SetAttrValid::UID, uid.is_some());
        change.valid.set(SetAttrValid::GID, gid.is_some());
        self.set_as(cred, fid, change)
    }

    /// A directory of user 1 group 1 with this mode.
    fn dir_of_one(&self, mode: u32) -> Fid {
        let fid = self.create_as(&self.cred, Fid::ROOT, "one", NewFile::Directory, 0o700).expect("made").fid;
        self.chown(&self.cred, fid, Some(1), Some(1)).expect("given");
        self.chmod(&self.cred, fid, mode).expect("set");
        fid
    }
}

#[test]
fn every_right_of_a_directory_is_needed_for_what_it_is_for() {
    // Owner, group member, other; rights of each with each mode.
    let creds = [user(1, 9, &[]), user(2, 9, &[1]), user(3, 3, &[])];
    for (class, cred) in creds.iter().enumerate() {
        for bits in 0..8u32 {
            let f = Fixture::new();
            let dir = f.dir_of_one(0o777);
            let file = f.create_as(cred, dir, "there", NewFile::Node { rdev: 0 }, 0o644).expect("made");
            f.chmod(&f.cred, dir, bits << (3 * (2 - class))).expect("set");
            let may = |mask: u32| bits & mask == mask;
            let expect = |allowed: bool, result: StatusResult<MdsReply>| {
                let wanted = if allowed { None } else { Some(Status::EACCES) };
                assert_eq!(result.err(), wanted, "class {class}, bits {bits}");
            };
            let name = b"there";
            expect(may(1), f.run_as(cred, &MdsRequest::Lookup { parent: dir, name }));
            expect(may(4), f.run_as(cred, &MdsRequest::Access { fid: dir, mask: perm::READ }));
            let link = MdsRequest::Link { fid: file.fid, parent: dir, name: b"second" };
            expect(may(3), f.run_as(cred, &link));
            let unlink = MdsRequest::Unlink { parent: dir, name, directory: false };
            expect(may(3), f.run_as(cred, &unlink));
        }
    }
}

#[test]
fn credentials_are_asked_for_only_when_they_decide() {
    let f = Fixture::new();
    let lazy = Cred::new(7, 7);
    let file = f.file(Fid::ROOT, "open").expect("made").fid;
    let open = |fid, flags| MdsRequest::Open { fid, handle: f.handle(), flags, lock: LockHandle(0) };
    assert!(f.run_as(&lazy, &open(file, OpenFlags::READ)).is_ok());
    f.chmod(&f.cred, file, 0o640).expect("set");
    assert_eq!(f.run_as(&lazy, &open(file, OpenFlags::READ)), Err(Status::NEED_CREDENTIALS));
    assert!(f.run_as(&user(7, 7, &[0]), &open(file, OpenFlags::READ)).is_ok());
    assert_eq!(f.run_as(&user(7, 7, &[]), &open(file, OpenFlags::READ)), Err(Status::EACCES));
    // Root owns it, so its capabilities do not matter yet.
    assert!(f.run_as(&Cred::new(0, 0), &open(file, OpenFlags::READ)).is_ok());
    f.chmod(&f.cred, file, 0o000).expect("set");
    assert_eq!(f.run_as(&Cred::new(0, 0), &open(file, OpenFlags::READ)), Err(Status::NEED_CREDENTIALS));
    assert_eq!(f.run_as(&f.cred, &open(file, OpenFlags::EXEC)), Err(Status::EACCES));
}

#[test]
fn only_owners_change_modes_and_set_group_id_needs_the_group() {
    let f = Fixture::new();
    let owner = user(1, 1, &[5]);
    let dir = f.dir_of_one(0o755);
    let file = f.create_as(&owner, dir, "f", NewFile::Node { rdev: 0 }, 0o644).expect("made").fid;
    assert_eq!(f.chmod(&user(2, 1, &[]), file, 0o777), Err(Status::EPERM));
    assert_eq!(f.chmod(&owner, file, 0o6755), Ok(0o6755));
    f.chown(&f.cred, file, None, Some(8)).expect("given");
    assert_eq!(f.chmod(&owner, file, 0o6755), Ok(0o4755), "the owner is not in group 8");
    assert_eq!(f.chmod(&f.cred, file, 0o2755), Ok(0o2755));
    assert_eq!(f.chmod(&owner, dir, 0o1777), Ok(0o1777));
}

#[test]
fn giving_a_file_away_needs_rights_and_drops_set_id_bits() {
    let f = Fixture::new();
    let owner = user(1, 1, &[5]);
    let dir = f.dir_of_one(0o755);
    let file = f.create_as(&owner, dir, "f", NewFile::Node { rdev: 0 }, 0o755).expect("made").fid;
    assert_eq!(f.chown(&owner, file, Some(2), None), Err(Status::EPERM));
    assert_eq!(f.chown(&owner, file, None, Some(6)), Err(Status::EPERM));
    assert_eq!(f.chown(&user(2, 5, &[]), file, None, Some(5)), Err(Status::EPERM));
    for cred in [&owner, &f.cred] {
        f.chmod(&f.cred, file, 0o6755).expect("set");
        let attr = f.chown(cred, file, Some(1), Some(5)).expect("own group");
        assert_eq!((attr.uid, attr.gid, attr.mode & 0o7777), (1, 5, 0o755));
    }
    // Set-group-id without group execution is no privilege and stays; directories keep it.
    f.chmod(&f.cred, file, 0o2644).expect("set");
    assert_eq!(f.chown(&f.cred, file, None, Some(1)).expect("set").mode & S_ISGID, S_ISGID);
    f.chmod(&f.cred, dir, 0o2755).expect("set");
    assert_eq!(f.chown(&f.cred, dir, None, Some(4)).expect("set").mode & S_ISGID, S_ISGID);
    f.chmod(&f.cred, file, 0o4755).expect("set");
    let killed = f.set_as(&f.cred, file, set(SetAttrValid::KILL_PRIV)).expect("set");
    assert_eq!(killed.mode & S_ISUID, 0);
    // For callers outside the group it does not stay.
    for (cred, kept) in [(user(9, 4, &[]), S_ISGID), (user(9, 9, &[4]), S_ISGID), (user(9, 9, &[]), 0)] {
        f.chown(&f.cred, file, None, Some(4)).expect("set");
        f.chmod(&f.cred, file, 0o2644).expect("set");
        // A caller that changes owner and group to none without the file open also removes a right.
        assert_eq!(f.set_as(&cred, file, set(SetAttrValid::KILL_PRIV)), Err(Status::EPERM));
        let written = SetAttrValid::KILL_PRIV | SetAttrValid::OPEN_FOR_WRITE;
        let killed = f.set_as(&cred, file, set(written)).expect("set");
        assert_eq!(killed.mode & S_ISGID, kept);
    }
}

/// The kernel sends the same for `chown(-1, -1)` and before users other than the owner write or allocate.
#[test]
fn a_change_of_nothing_is_let_pass_for_those_who_may_be_about_to_write() {
    let f = Fixture::new();
    let (owner, other) = (user(1, 1, &[]), user(9, 9, &[]));
    let dir = f.dir_of_one(0o755);
    let file = f.create_as(&owner, dir, "f", NewFile::Node { rdev: 0 }, 0o755).expect("made").fid;
    let nothing = || set(SetAttrValid::CTIME | SetAttrValid::KILL_PRIV);
    let bits = |mode: u32| {
        f.chmod(&f.cred, file, mode).expect("set");
        f.set_as(&other, file, nothing()).map(|attr| attr.mode & 0o7777)
    };
    assert_eq!(bits(0o4755), Err(Status::EPERM));
    assert_eq!(bits(0o4757), Ok(0o4757), "what a write takes away its client says with it");
    let handle = f.open(file, OpenFlags::WRITE).expect("by somebody of the same client");
    assert_eq!(bits(0o4755), Ok(0o4755));
    f.close(file, handle).expect("closed");
    assert_eq!(bits(0o4755), Err(Status::EPERM));
    assert_eq!(bits(0o755), Ok(0o755), "nothing to take away");
    f.chmod(&f.cred, file, 0o4755).expect("set");
    assert_eq!(f.set_as(&owner, file, nothing()).map(|attr| attr.mode & 0o7777), Ok(0o755));
}

#[test]
fn times_can_be_set_by_owners_and_touched_by_writers() {
    let f = Fixture::new();
    let dir = f.dir_of_one(0o777);
    let file = f.create_as(&user(1, 1, &[]), dir, "f", NewFile::Node { rdev: 0 }, 0o666).expect("made").fid;
    f.chmod(&f.cred, file, 0o666).expect("set");
    let other = user(2, 2, &[]);
    let exact = SetAttr { mtime: Timestamp::new(1, 0), ..set(SetAttrValid::MTIME) };
    assert_eq!(f.set_as(&other, file, exact), Err(Status::EPERM));
    let both_now = set(SetAttrValid::ATIME_NOW | SetAttrValid::MTIME_NOW);
    assert!(f.set_as(&other, file, both_now).is_ok());
    let one_now = set(SetAttrValid::ATIME_NOW);
    assert_eq!(f.set_as(&other, file, one_now), Err(Status::EPERM));
    f.chmod(&f.cred, file, 0o644).expect("set");
    assert_eq!(f.set_as(&other, file, both_now), Err(Status::EACCES));
    assert_eq!(f.set_as(&user(1, 1, &[]), file, exact).expect("the owner").mtime, Timestamp::new(1, 0));
}

#[test]
fn set_group_id_directories_hand_their_group_down() {
    let f = Fixture::new();
    let dir = f.dir_of_one(0o2777);
    let stranger = user(9, 9, &[]);
    let sub = f.create_as(&stranger, dir, "sub", NewFile::Directory, 0o755).expect("made");
    assert_eq!((sub.gid, sub.mode & S_ISGID), (1, S_ISGID));
    let plain = f.create_as(&stranger, dir, "plain", NewFile::Node { rdev: 0 }, 0o644).expect("made");
    assert_eq!((plain.uid, plain.gid), (9, 1));
    let sgid = |name, cred: &Cred, mode| {
        f.create_as(cred, dir, name, NewFile::Node { rdev: 0 }, mode).expect("made").mode & S_ISGID
    };
    assert_eq!(sgid("a", &stranger, 0o2755), 0, "a stranger must not make programs of the group");
    assert_eq!(sgid("b", &user(9, 9, &[1]), 0o2755), S_ISGID);
    assert_eq!(sgid("c", &stranger, 0o2644), S_ISGID, "without execution it is no privilege");
    let link = f.symlink(dir, "l", "x").expect("made");
    assert_eq!(link.gid, 1);
}

#[test]
fn device_files_need_a_capability_and_pipes_do_not() {
    let f = Fixture::new();
    let dir = f.dir_of_one(0o777);
    let anybody = user(9, 9, &[]);
    let make = |name, kind: FileKind, rdev| {
        f.create_as(&anybody, dir, name, NewFile::Node { rdev }, kind.mode_bits() | 0o644)
    };
    assert_eq!(make("b", FileKind::BlockDevice, 0x801), Err(Status::EPERM));
    assert_eq!(make("c", FileKind::CharDevice, 0x103), Err(Status::EPERM));
    assert!(make("white", FileKind::CharDevice, 0).is_ok());
    assert_eq!(make("p", FileKind::Fifo, 7).map(|attr| attr.rdev), Ok(0));
    assert!(make("s", FileKind::Socket, 0).is_ok());
    assert_eq!(make("d", FileKind::Directory, 0), Err(Status::EPERM));
    let node = NewFile::Node { rdev: 0x103 };
    let device = f.create_as(&f.cred, dir, "null", node, FileKind::CharDevice.mode_bits() | 0o666);
    assert_eq!(device.map(|attr| attr.rdev), Ok(0x103));
    f.check();
}

#[test]
fn moving_a_directory_to_another_parent_needs_write_permission_on_it() {
    let f = Fixture::new();
    let dir = f.dir_of_one(0o777);
    let sub = f.create_as(&f.cred, dir, "sub", NewFile::Directory, 0o755).expect("made").fid;
    let to = f.create_as(&f.cred, dir, "to", NewFile::Directory, 0o777).expect("made").fid;
    f.chmod(&f.cred, to, 0o777).expect("set");
    let rename = |to_parent| MdsRequest::Rename {
        from_parent: dir,
        from_name: b"sub",
        to_parent,
        to_name: b"moved",
        flags: nacre_wire::mds::RenameFlags::empty(),
    };
    let anybody = user(9, 9, &[]);
    assert_eq!(f.run_as(&anybody, &rename(to)), Err(Status::EACCES));
    f.chmod(&f.cred, sub, 0o757).expect("set");
    assert!(f.run_as(&anybody, &rename(to)).is_ok());
    f.check();
}
