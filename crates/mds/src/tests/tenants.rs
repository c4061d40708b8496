//! Clients restricted by their keys and by nodemaps.

use super::*;
use crate::tx::now;
use nacre_types::acl::{Acl, AclEntry, AclTag};
use nacre_types::attr::{S_ISGID, S_ISUID};
use nacre_types::nodemap::Nodemaps;
use nacre_types::{Identity, KeyId, SetAttr, SetAttrValid};
use nacre_wire::dir_use::DirUseRequest;
use nacre_wire::mds::{
    ClosingData, DataUpdate, FileLock, InodeKind, LeaseKind, LockFamily, LockMode, LockOwner, RenameFlags,
    XattrFlags,
};

fn key(roles: &str) -> Identity {
    Identity::new("nacre", KeyId(0xab), roles.parse().expect("roles"), "host")
}

fn export_with(identity: Identity) -> Arc<Export> {
    let (callbacks, client) = (Arc::new(Noted::default()), ClientUuid([9; 16]));
    Arc::new(Export::new(client, tcp_nid(), None, callbacks).of_key(Some(Arc::new(identity))))
}

fn nodemaps(texts: &[&str]) -> Arc<Nodemaps> {
    let maps = texts.iter().map(|text| Arc::new(text.parse().expect("a nodemap")));
    Arc::new(Nodemaps { active: true, maps: maps.collect() })
}

impl Fixture {
    /// Builds a fixture in whose root all users may create files.
    fn shared() -> Fixture {
        let f = Fixture::new();
        let set = SetAttr { mode: 0o777, valid: SetAttrValid::MODE, ..SetAttr::default() };
        f.run(&MdsRequest::SetAttr { fid: Fid::ROOT, set }).expect("set");
        f
    }

    /// Disconnects the client, and connects one with this key.
    fn becomes(&mut self, identity: Identity) {
        self.mds.disconnect(self.export.client);
        self.export = export_with(identity);
        self.mds.connect(&self.export).expect("connects");
    }

    fn open_as(&self, cred: &Cred, fid: Fid, flags: OpenFlags) -> StatusResult<OpenHandle> {
        let handle = self.handle();
        self.run_as(cred, &MdsRequest::Open { fid, handle, flags, lock: LockHandle(0) }).map(|_| handle)
    }

    fn made_by(&self, cred: &Cred, name: &str, mode: u32) -> Attr {
        self.create_as(cred, Fid::ROOT, name, NewFile::Node { rdev: 0 }, mode).expect("made")
    }

    fn list_as(&self, cred: &Cred, fid: Fid) -> StatusResult<Vec<Attr>> {
        let locks = LockRange::default();
        let request = MdsRequest::ReadDir { fid, cookie: 0, max_bytes: 65536, plus: true, locks };
        match self.run_as(cred, &request)? {
            MdsReply::Directory(page) => Ok(page.entries().filter_map(|entry| entry.attr).collect()),
            other => panic!("{other:?}"),
        }
    }
}

/// Credentials without groups, as in a client's first request.
fn one() -> Cred {
    Cred::new(1000, 100)
}

fn size(size: u64, valid: SetAttrValid) -> SetAttr {
    SetAttr { size, valid: valid | SetAttrValid::SIZE, ..SetAttr::default() }
}

fn layout_access(fid: Fid, range: Option<(u64, u64)>) -> MdsRequest<'static> {
    MdsRequest::LayoutAccess { fid, range, lock: LockHandle(0), owners: Owners::default() }
}

#[test]
fn root_of_a_host_is_nobody_whatever_it_says() {
    let mut f = Fixture::new();
    let (secret, open) = (f.made_by(&f.cred, "secret", 0o600).fid, f.made_by(&f.cred, "open", 0o644).fid);
    let dir = f.dir(Fid::ROOT, "public").expect("made").fid;
    let set = SetAttr { mode: 0o777, valid: SetAttrValid::MODE, ..SetAttr::default() };
    f.run(&MdsRequest::SetAttr { fid: dir, set }).expect("set");
    f.becomes(key("client"));
    for root in [Cred::system(), Cred::new(0, 0)] {
        let refused = |request: &MdsRequest<'_>, status| {
            assert_eq!(f.run_as(&root, request).err(), Some(status), "{request:?}");
        };
        assert_eq!(f.open_as(&root, secret, OpenFlags::READ), Err(Status::EACCES));
        assert_eq!(f.open_as(&root, open, OpenFlags::WRITE), Err(Status::EACCES));
        f.open_as(&root, open, OpenFlags::READ).expect("everybody may");
        refused(&MdsRequest::SetAttr { fid: open, set }, Status::EPERM);
        let set = SetAttr { uid: 0, valid: SetAttrValid::UID, ..SetAttr::default() };
        refused(&MdsRequest::SetAttr { fid: open, set }, Status::EPERM);
        refused(&MdsRequest::Unlink { parent: Fid::ROOT, name: b"open", directory: false }, Status::EACCES);
        refused(&MdsRequest::RemoveFid { fid: open }, Status::EACCES);
        for name in [&b"trusted.a"[..], b"security.a", b"security.capability"] {
            let (value, flags) = (&b"v"[..], XattrFlags::empty());
            refused(&MdsRequest::SetXattr { fid: open, name, value, flags }, Status::EPERM);
        }
        let device = f.create_as(&root, dir, "device", NewFile::Node { rdev: 0x0801 }, 0o060_666);
        assert_eq!(device.err(), Some(Status::EPERM));
        refused(&MdsRequest::FilesOn { ost_index: 0, after: Fid::ZERO, count_max: 9 }, Status::EPERM);
        let kind = InodeKind::Directories;
        refused(&MdsRequest::Inodes { after: Fid::ZERO, count_max: 9, kind }, Status::EPERM);
        refused(&MdsRequest::MigrateFiles { moves: vec![(open, f.fid())] }, Status::EPERM);
        refused(&MdsRequest::Migrate { fid: open, to: f.fid(), lmv: &[] }, Status::EPERM);
        refused(&MdsRequest::Restripe { fid: dir, requested: &[] }, Status::EPERM);
        refused(&MdsRequest::FidToPath { fid: open, index: 0 }, Status::EPERM);
        refused(&MdsRequest::FidToLink { fid: open, index: 0 }, Status::EPERM);
        refused(&MdsRequest::SetLayout { fid: open, requested: Default::default() }, Status::EACCES);
        let (first, second) = (open, secret);
        let (versions, keep_times, lease) = ((None, None), false, None);
        refused(&MdsRequest::SwapLayouts { first, second, versions, keep_times, lease }, Status::EACCES);
        let name = format!("made{}", root.full.is_some());
        let made = f.create_as(&root, dir, &name, NewFile::Node { rdev: 0 }, 0o644).expect("made");
        assert_eq!((made.uid, made.gid), (65534, 65534));
    }
}

#[test]
fn a_host_acts_for_its_users_with_the_groups_that_the_server_knows() {
    let mut f = Fixture::shared();
    let shared = f.made_by(&f.cred, "shared", 0o640).fid;
    let set = SetAttr { gid: 7, valid: SetAttrValid::GID, ..SetAttr::default() };
    f.run(&MdsRequest::SetAttr { fid: shared, set }).expect("given");
    let dir = f.dir(Fid::ROOT, "public").expect("made").fid;
    let set = SetAttr { mode: 0o777, valid: SetAttrValid::MODE, ..SetAttr::default() };
    f.run(&MdsRequest::SetAttr { fid: dir, set }).expect("set");
    f.becomes(key("client"));
    // The client is not asked for the user's groups.
    f.open_as(&one(), shared, OpenFlags::READ).expect("the database says so");
    assert_eq!(f.open_as(&user(1001, 7, &[7]), shared, OpenFlags::READ), Err(Status::EACCES));
    let gid = |cred: &Cred, name: &str| {
        let made = f.create_as(cred, dir, name, NewFile::Node { rdev: 0 }, 0o644).expect("made");
        (made.uid, made.gid)
    };
    assert_eq!(gid(&Cred::new(1000, 7), "a"), (1000, 7));
    assert_eq!(gid(&Cred::new(1000, 0), "b"), (1000, 100));
    assert_eq!(gid(&Cred::new(4000, 7), "c"), (4000, 65534));
    f.mds.tenants.set_trusts_client_groups(true);
    assert_eq!(gid(&user(4000, 9, &[]), "d"), (4000, 9));
    assert_eq!(f.open_as(&Cred::new(1001, 101), shared, OpenFlags::READ), Err(Status::NEED_CREDENTIALS));
    f.open_as(&user(1001, 101, &[7]), shared, OpenFlags::READ).expect("the client says so");
    assert_eq!(f.open_as(&user(0, 0, &[7]), shared, OpenFlags::READ), Err(Status::EACCES));
}

#[test]
fn a_user_with_a_key_is_that_user_alone() {
    let mut f = Fixture::shared();
    let own = f.made_by(&user(1000, 100, &[]), "own", 0o600);
    assert_eq!(own.uid, 1000);
    let others = f.made_by(&user(1001, 101, &[]), "others", 0o600).fid;
    f.becomes(Identity { uid: Some(1000), ..key("client") });
    for claimed in [Cred::system(), user(1001, 101, &[101]), Cred::new(1000, 0)] {
        f.open_as(&claimed, own.fid, OpenFlags::READ | OpenFlags::WRITE).expect("its own");
        assert_eq!(f.open_as(&claimed, others, OpenFlags::READ), Err(Status::EACCES));
        let made = f.made_by(&claimed, &format!("by{}{}", claimed.uid, claimed.gid), 0o600);
        assert_eq!((made.uid, made.gid), (1000, 100));
    }
}

#[test]
fn a_user_with_a_key_gets_sums_of_directories_that_it_may_read_and_of_those_below() {
    let mut f = Fixture::shared();
    let dir =
        |parent, name, mode| f.create_as(&f.cred, parent, name, NewFile::Directory, mode).expect("made").fid;
    let private = dir(Fid::ROOT, "private", 0o711);
    let public = dir(private, "public", 0o755);
    let deep = dir(public, "deep", 0o700);
    let set = SetAttr { mode: 0o711, valid: SetAttrValid::MODE, ..SetAttr::default() };
    f.run(&MdsRequest::SetAttr { fid: Fid::ROOT, set }).expect("set");
    f.becomes(Identity { uid: Some(1000), ..key("client") });
    let sums = |f: &Fixture, dirs: &[Fid]| {
        let request = DirUseRequest { dirs: dirs.to_vec(), after: Fid::ZERO, lists: false };
        match f.run_as(&Cred::system(), &MdsRequest::DirUse(request))? {
            MdsReply::DirUse(reply) => Ok(reply.done),
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(sums(&f, &[public, deep]), Ok(2));
    for dirs in [&[Fid::ROOT][..], &[private], &[public, private], &[f.fid()]] {
        assert_eq!(sums(&f, dirs), Err(Status::EACCES), "{dirs:?}");
    }
    f.becomes(key("client+admin"));
    assert_eq!(sums(&f, &[Fid::ROOT, private]), Ok(2));
}

#[test]
fn an_administrator_is_who_it_says() {
    let mut f = Fixture::shared();
    let secret = f.made_by(&user(1001, 101, &[]), "secret", 0o600).fid;
    f.becomes(key("client+admin"));
    f.open_as(&f.cred, secret, OpenFlags::READ).expect("root");
    f.run(&MdsRequest::FidToPath { fid: secret, index: 0 }).expect("root");
    assert_eq!(f.made_by(&Cred::system(), "made", 0o600).uid, 0);
}

#[test]
fn what_a_client_says_that_it_may_is_not_believed() {
    let mut f = Fixture::shared();
    let foreign = f.made_by(&user(1001, 101, &[]), "foreign", 0o600).fid;
    let readable = f.made_by(&user(1001, 101, &[]), "readable", 0o644).fid;
    let private =
        f.create_as(&user(1001, 101, &[]), Fid::ROOT, "private", NewFile::Directory, 0o711).expect("made");
    f.becomes(key("client"));
    let handle = OpenHandle(77);
    for cred in [one(), Cred::system()] {
        let refused = |request: &MdsRequest<'_>, status| {
            assert_eq!(f.run_as(&cred, request).err(), Some(status), "{request:?}");
        };
        for flags in [OpenFlags::REPLAY, OpenFlags::CREATED, OpenFlags::REPLAY | OpenFlags::CREATED] {
            for right in [OpenFlags::READ, OpenFlags::WRITE, OpenFlags::TRUNCATE, OpenFlags::EXEC] {
                assert_eq!(
                    f.open_as(&cred, foreign, flags | right),
                    Err(Status::EACCES),
                    "{flags:?} {right:?}"
                );
            }
        }
        for valid in [SetAttrValid::empty(), SetAttrValid::OPEN_FOR_WRITE] {
            refused(&MdsRequest::SetAttr { fid: readable, set: size(0, valid) }, Status::EACCES);
        }
        assert_eq!(f.list_as(&cred, private.fid), Err(Status::EACCES));
        let update =
            DataUpdate { size_blocks: Some((5, 8)), mtime: Some(Default::default()), ..Default::default() };
        let before = f.stat(readable).expect("there");
        let data = ClosingData { object: readable, offset: 0, bytes: b"x" };
        let reader = f.open_as(&cred, readable, OpenFlags::READ).expect("everybody may");
        for handle in [handle, reader] {
            refused(&MdsRequest::CloseWrite { fid: readable, handle, update, data }, Status::EBADF);
        }
        for exact in [false, true] {
            let update = MdsRequest::UpdateData { fid: readable, update, exact, written: vec![readable] };
            assert_eq!(f.run_as(&cred, &update), Ok(MdsReply::Attr(before)));
        }
        let close = MdsRequest::Close { fid: readable, handle: reader, update, written: vec![readable] };
        assert_eq!(f.run_as(&cred, &close), Ok(MdsReply::Attr(before)));
        let lock = FileLock {
            family: LockFamily::File,
            owner: LockOwner(1),
            mode: LockMode::Write,
            start: 0,
            last: u64::MAX,
            pid: 1,
        };
        refused(&MdsRequest::SetLock { fid: foreign, lock, wait: false }, Status::EBADF);
        refused(&MdsRequest::GetLock { fid: foreign, lock }, Status::EBADF);
        refused(
            &MdsRequest::OpenLease { fid: foreign, handle, kind: Some(LeaseKind::Frozen) },
            Status::EACCES,
        );
    }
}

#[test]
fn a_user_of_a_host_does_all_that_users_do() {
    let mut f = Fixture::shared();
    let home =
        f.create_as(&user(1000, 100, &[]), Fid::ROOT, "home", NewFile::Directory, 0o700).expect("made").fid;
    f.becomes(key("client"));
    let (fid, handle) = (f.fid(), f.handle());
    let request = MdsRequest::Create {
        parent: home,
        name: b"file",
        fid,
        new: NewFile::Node { rdev: 0 },
        mode: 0o400,
        umask: 0,
        open: Some((handle, OpenFlags::READ | OpenFlags::WRITE)),
        exclusive: true,
    };
    f.run_as(&one(), &request).expect("made and open, though its mode lets nobody write");
    // Requests that the client library sends on its own are sent as root.
    let system = Cred::system();
    f.run_as(&system, &MdsRequest::LayoutIntent { fid, start: 0, end: 1 << 20 }).expect("for its data");
    let update = DataUpdate { size_blocks: Some((5, 8)), ..DataUpdate::default() };
    let told = MdsRequest::UpdateData { fid, update, exact: false, written: Vec::new() };
    assert_eq!(attr_of(f.run_as(&system, &told).expect("told")).expect("attributes").size, 5);
    let truncate = MdsRequest::SetAttr { fid, set: size(3, SetAttrValid::OPEN_FOR_WRITE) };
    assert_eq!(attr_of(f.run_as(&one(), &truncate).expect("cut")).expect("attributes").size, 3);
    let size_blocks = Some((9, 8));
    let update = f.up_to_date(fid, DataUpdate { size_blocks, ..DataUpdate::default() });
    let close = MdsRequest::Close { fid, handle, update, written: Vec::new() };
    assert_eq!(attr_of(f.run_as(&system, &close).expect("closed")).expect("attributes").size, 9);
    assert_eq!(f.list_as(&one(), home).expect("listed").len(), 1);
    f.run_as(&system, &MdsRequest::Lookup { parent: home, name: b".." }).expect("the directory above");
    let (from_parent, to_parent, flags) = (home, home, RenameFlags::empty());
    let rename = MdsRequest::Rename { from_parent, from_name: b"file", to_parent, to_name: b"other", flags };
    f.run_as(&one(), &rename).expect("renamed");
    f.run_as(&one(), &MdsRequest::Unlink { parent: home, name: b"other", directory: false })
        .expect("removed");
    f.check();
}

#[test]
fn handles_come_back_after_a_restart_for_those_who_may_have_them() {
    let mut f = Fixture::shared();
    let mine = f.made_by(&user(1000, 100, &[]), "mine", 0o400).fid;
    let shared = f.made_by(&user(1001, 101, &[]), "shared", 0o644).fid;
    let foreign = f.made_by(&user(1001, 101, &[]), "foreign", 0o600).fid;
    f.becomes(key("client"));
    let f = f.restart();
    let again = OpenFlags::REPLAY;
    f.open_as(&one(), mine, again | OpenFlags::READ | OpenFlags::WRITE).expect("the owner's");
    f.open_as(&one(), shared, again | OpenFlags::READ).expect("everybody's");
    assert_eq!(f.open_as(&one(), shared, again | OpenFlags::WRITE), Err(Status::EACCES));
    assert_eq!(f.open_as(&one(), foreign, again | OpenFlags::READ), Err(Status::EACCES));
    f.check();
}

#[test]
fn set_id_bits_go_from_what_a_bounded_client_may_write() {
    let mut f = Fixture::shared();
    let programs: Vec<Fid> = ["opened", "cut", "truncated"]
        .iter()
        .map(|name| {
            let fid = f.made_by(&f.cred, name, 0o777).fid;
            let set = SetAttr { mode: 0o6777, valid: SetAttrValid::MODE, ..SetAttr::default() };
            f.run(&MdsRequest::SetAttr { fid, set }).expect("set");
            fid
        })
        .collect();
    f.becomes(key("client"));
    f.open_as(&one(), programs[0], OpenFlags::WRITE).expect("everybody may");
    f.run_as(&one(), &MdsRequest::SetAttr { fid: programs[1], set: size(0, SetAttrValid::empty()) })
        .expect("cut");
    f.open_as(&one(), programs[2], OpenFlags::READ | OpenFlags::TRUNCATE).expect("cut");
    for fid in programs {
        assert_eq!(f.stat(fid).expect("there").mode & (S_ISUID | S_ISGID), 0);
    }
}

#[test]
fn a_key_that_may_read_only_changes_nothing() {
    let mut f = Fixture::shared();
    let file = f.made_by(&user(1000, 100, &[]), "file", 0o644).fid;
    let dir =
        f.create_as(&user(1000, 100, &[]), Fid::ROOT, "dir", NewFile::Directory, 0o777).expect("made").fid;
    for roles in ["client", "client+admin"] {
        f.becomes(Identity { read_only: true, ..key(roles) });
        let cred = user(1000, 100, &[]);
        let read = f.open_as(&cred, file, OpenFlags::READ).expect("it may read");
        f.list_as(&cred, dir).expect("it may read");
        f.run_as(&cred, &layout_access(file, None)).expect("read");
        let before = f.stat(file).expect("there");
        let update = DataUpdate { size_blocks: Some((5, 8)), atime: Some(now()), ..DataUpdate::default() };
        let set = SetAttr { mode: 0o600, valid: SetAttrValid::MODE, ..SetAttr::default() };
        let (value, flags) = (&b"v"[..], XattrFlags::empty());
        let (parent, name) = (dir, &b"new"[..]);
        for request in [
            MdsRequest::SetAttr { fid: file, set },
            MdsRequest::Link { fid: file, parent, name },
            MdsRequest::Unlink { parent: Fid::ROOT, name: b"file", directory: false },
            MdsRequest::Rename {
                from_parent: Fid::ROOT,
                from_name: b"file",
                to_parent: dir,
                to_name: name,
                flags: RenameFlags::empty(),
            },
            MdsRequest::Open { fid: file, handle: f.handle(), flags: OpenFlags::WRITE, lock: LockHandle(0) },
            MdsRequest::Open {
                fid: file,
                handle: f.handle(),
                flags: OpenFlags::READ | OpenFlags::TRUNCATE,
                lock: LockHandle(0),
            },
            MdsRequest::LayoutIntent { fid: file, start: 0, end: 1 },
            layout_access(file, Some((0, 1))),
            MdsRequest::SetLayout { fid: dir, requested: Default::default() },
            MdsRequest::SetXattr { fid: file, name: b"user.a", value, flags },
            MdsRequest::RemoveXattr { fid: file, name: b"user.a" },
            MdsRequest::RemoveFid { fid: file },
            MdsRequest::CloseWrite {
                fid: file,
                handle: read,
                update,
                data: ClosingData { object: file, offset: 0, bytes: b"x" },
            },
            MdsRequest::OpenLease { fid: file, handle: read, kind: Some(LeaseKind::Frozen) },
            MdsRequest::Restripe { fid: dir, requested: &[] },
            MdsRequest::Migrate { fid: file, to: f.fid(), lmv: &[] },
            MdsRequest::MigrateFiles { moves: vec![(file, f.fid())] },
            MdsRequest::SwapLayouts {
                first: file,
                second: dir,
                versions: (None, None),
                keep_times: false,
                lease: None,
            },
            MdsRequest::AllocateSequence,
        ] {
            assert_eq!(f.run_as(&cred, &request).err(), Some(Status::EROFS), "{request:?}");
        }
        assert_eq!(f.create_as(&cred, dir, "new", NewFile::Directory, 0o755).err(), Some(Status::EROFS));
        let told = MdsRequest::UpdateData { fid: file, update, exact: true, written: Vec::new() };
        assert_eq!(f.run_as(&cred, &told), Ok(MdsReply::Attr(before)), "{roles}");
        let close = MdsRequest::Close { fid: file, handle: read, update, written: Vec::new() };
        assert_eq!(f.run_as(&cred, &close), Ok(MdsReply::Attr(before)), "{roles}");
    }
}

#[test]
fn ids_are_those_of_the_client_in_all_that_it_says_and_sees() {
    let mut f = Fixture::shared();
    let dir =
        f.create_as(&user(1000, 100, &[]), Fid::ROOT, "dir", NewFile::Directory, 0o777).expect("made").fid;
    let file =
        f.create_as(&user(1000, 100, &[]), dir, "file", NewFile::Node { rdev: 0 }, 0o644).expect("made").fid;
    f.mds
        .tenants
        .set_nodemaps(&nodemaps(&["m key=00000000000000ab uid=30:1000 gid=31:100 gid=33:7 projid=5:50"]));
    f.becomes(key("client"));
    let cred = Cred::new(30, 31);
    let ids = |attr: &Attr| (attr.uid, attr.gid);
    assert_eq!(
        ids(&attr_of(f.run_as(&cred, &MdsRequest::GetAttr { fid: file }).expect("told")).expect("attributes")),
        (30, 31)
    );
    assert_eq!(f.list_as(&cred, dir).expect("listed").iter().map(ids).collect::<Vec<_>>(), [(30, 31)]);
    let made = f.create_as(&cred, dir, "made", NewFile::Node { rdev: 0 }, 0o644).expect("made");
    assert_eq!(ids(&made), (30, 31));
    let valid = SetAttrValid::GID | SetAttrValid::PROJID;
    let set =
        MdsRequest::SetAttr { fid: file, set: SetAttr { gid: 33, projid: 5, valid, ..SetAttr::default() } };
    let changed = attr_of(f.run_as(&cred, &set).expect("of its own groups")).expect("attributes");
    assert_eq!((changed.gid, changed.projid), (33, 5));
    let entry = |tag, perm, id| AclEntry { tag, perm, id };
    let entries = |uid, gid| {
        vec![
            entry(AclTag::UserObj, 6, 0),
            entry(AclTag::User, 4, uid),
            entry(AclTag::GroupObj, 4, 0),
            entry(AclTag::Group, 4, gid),
            entry(AclTag::Mask, 4, 0),
            entry(AclTag::Other, 0, 0),
        ]
    };
    let acl = |uid, gid| Acl::from_entries(entries(uid, gid)).expect("an ACL").to_xattr();
    let (name, flags) = (&b"system.posix_acl_access"[..], XattrFlags::empty());
    let value = acl(30, 33);
    f.run_as(&cred, &MdsRequest::SetXattr { fid: file, name, value: &value, flags }).expect("set");
    assert_eq!(f.run_as(&cred, &MdsRequest::GetXattr { fid: file, name }), Ok(MdsReply::Bytes(value)));
    // The id as stored.
    f.becomes(key("client+mds"));
    let stored = f.stat(file).expect("there");
    assert_eq!((stored.uid, stored.gid, stored.projid), (1000, 7, 50));
    assert_eq!(f.run(&MdsRequest::GetXattr { fid: file, name }), Ok(MdsReply::Bytes(acl(1000, 7))));
    f.check();
}

#[test]
fn nodemaps_take_effect_on_clients_that_are_there() {
    let mut f = Fixture::shared();
    let secret = f.made_by(&f.cred, "secret", 0o600).fid;
    f.becomes(key("client"));
    assert_eq!(f.open_as(&Cred::system(), secret, OpenFlags::READ), Err(Status::EACCES));
    f.mds.tenants.set_nodemaps(&nodemaps(&["m key=00000000000000ab admin=1"]));
    f.open_as(&Cred::system(), secret, OpenFlags::READ).expect("root is root now");
    f.mds.tenants.set_nodemaps(&nodemaps(&["m key=00000000000000ab admin=1 readonly_mount=1"]));
    assert_eq!(f.open_as(&Cred::system(), secret, OpenFlags::WRITE), Err(Status::EROFS));
    f.mds.tenants.set_nodemaps(&nodemaps(&["m key=00000000000000ab banned=1"]));
    assert_eq!(f.run(&MdsRequest::Statfs), Err(Status::EVICTED));
    assert_eq!(f.mds.connect(&export_with(key("client"))).err(), Some(Status::EACCES));
    f.mds.tenants.set_nodemaps(&nodemaps(&[]));
    f.mds.tenants.set_nodemaps(&Arc::new(Nodemaps::default()));
    f.mds.connect(&export_with(key("client"))).expect("it is not banned any more");
}

/// Two tenants, `/projects/a` and `/projects/b`, each with a file that has the same name as the other's.
struct Projects {
    f: Fixture,
    projects: Fid,
    a: Fid,
    in_a: Fid,
    deep: Fid,
    in_deep: Fid,
    b: Fid,
    in_b: Fid,
}

impl Projects {
    fn new() -> Projects {
        let f = Fixture::shared();
        let projects = f.dir(Fid::ROOT, "projects").expect("made").fid;
        let (a, b) = (f.dir(projects, "a").expect("made").fid, f.dir(projects, "b").expect("made").fid);
        let (in_a, in_b) = (f.file(a, "file").expect("made").fid, f.file(b, "file").expect("made").fid);
        let deep = f.dir(a, "deep").expect("made").fid;
        let in_deep = f.file(deep, "file").expect("made").fid;
        let mut all = Projects { f, projects, a, in_a, deep, in_deep, b, in_b };
        all.enter();
        all
    }

    /// Connects the tenant of `a`, with all the rights that a key can have.
    fn enter(&mut self) {
        let root = Some("/projects/a".to_owned());
        self.f.becomes(Identity { root, ..key("client+admin") });
    }

    /// Runs `work` as an administrator, and reconnects the tenant.
    fn by_administrator(&mut self, work: impl FnOnce(&Projects)) {
        self.f.becomes(key("client+admin"));
        work(self);
        self.enter();
    }

    fn sees(&self, fid: Fid) -> bool {
        match self.f.stat(fid) {
            Ok(_) => true,
            Err(Status::ENOENT) => false,
            other => panic!("{other:?}"),
        }
    }

    fn rename(&self, from: (Fid, &str), to: (Fid, &str)) -> StatusResult<MdsReply> {
        self.f.run(&MdsRequest::Rename {
            from_parent: from.0,
            from_name: from.1.as_bytes(),
            to_parent: to.0,
            to_name: to.1.as_bytes(),
            flags: RenameFlags::empty(),
        })
    }

    fn path(&self, fid: Fid, index: u32) -> StatusResult<(Fid, Vec<u8>)> {
        match self.f.run(&MdsRequest::FidToPath { fid, index })? {
            MdsReply::Path { top, path } => Ok((top, path)),
            other => panic!("{other:?}"),
        }
    }
}

/// Returns all requests that name an inode, with this one in each of its places; the other inodes are `own`.
fn all_requests(f: &Fixture, fid: Fid, own: (Fid, Fid)) -> Vec<MdsRequest<'static>> {
    [questions(f, fid, own.0), changes(f, fid), changes_of_two(fid, own)].concat()
}

fn questions(f: &Fixture, fid: Fid, own: Fid) -> Vec<MdsRequest<'static>> {
    let name = &b"file"[..];
    let (handle, lock, locks) = (f.handle(), LockHandle(0), LockRange::default());
    let file_lock = FileLock {
        family: LockFamily::File,
        owner: LockOwner(1),
        mode: LockMode::Write,
        start: 0,
        last: u64::MAX,
        pid: 1,
    };
    let replay = MdsRequest::Locks {
        request: nacre_wire::lock::LockRequest::Replay {
            handle: LockHandle(9),
            resource: nacre_lock::ResourceId::of_fid(&fid),
            need: nacre_lock::Need::bits(nacre_lock::Mode::Pr, nacre_lock::InodeBits::LAYOUT),
        },
    };
    vec![
        MdsRequest::Lookup { parent: fid, name },
        MdsRequest::Lookup { parent: fid, name: b"." },
        MdsRequest::Lookup { parent: fid, name: b".." },
        MdsRequest::Open { fid, handle, flags: OpenFlags::READ, lock },
        MdsRequest::Open { fid, handle, flags: OpenFlags::READ | OpenFlags::REPLAY, lock },
        MdsRequest::LayoutAccess { fid, range: None, lock, owners: Owners::default() },
        MdsRequest::GetLayout { fid },
        MdsRequest::GetDefaultLayout { fid },
        MdsRequest::ReadDir { fid, cookie: 0, max_bytes: 4096, plus: true, locks },
        MdsRequest::Scan { fid, cookie: 0, max_bytes: 4096, layouts: true },
        MdsRequest::LookupMany { parent: fid, names: b"file\0", locks },
        MdsRequest::ReadLink { fid },
        MdsRequest::GetXattr { fid, name: b"trusted.lma" },
        MdsRequest::ListXattr { fid },
        MdsRequest::Access { fid, mask: 0 },
        MdsRequest::FidToLink { fid, index: 0 },
        MdsRequest::FidToPath { fid, index: 0 },
        MdsRequest::SetLock { fid, lock: file_lock, wait: false },
        MdsRequest::GetLock { fid, lock: file_lock },
        MdsRequest::Intent { fid, name: Some(name), handle: LockHandle(5) },
        MdsRequest::Intent { fid, name: None, handle: LockHandle(5) },
        MdsRequest::OpenLease { fid, handle, kind: None },
        MdsRequest::DirUse(DirUseRequest { dirs: vec![own, fid], after: Fid::ZERO, lists: true }),
        replay,
    ]
}

fn changes(f: &Fixture, fid: Fid) -> Vec<MdsRequest<'static>> {
    let (handle, update) = (f.handle(), DataUpdate::default());
    let set = SetAttr { mode: 0o777, valid: SetAttrValid::MODE, ..SetAttr::default() };
    let create = |new, open| MdsRequest::Create {
        parent: fid,
        name: if new == NewFile::Unnamed { b"" } else { b"made" },
        fid: f.fid(),
        new,
        mode: 0o644,
        umask: 0,
        open,
        exclusive: false,
    };
    vec![
        MdsRequest::SetAttr { fid, set },
        create(NewFile::Directory, None),
        create(NewFile::Node { rdev: 0 }, Some((handle, OpenFlags::READ))),
        create(NewFile::Unnamed, Some((handle, OpenFlags::WRITE))),
        MdsRequest::Unlink { parent: fid, name: b"file", directory: false },
        MdsRequest::UpdateData { fid, update, exact: true, written: Vec::new() },
        MdsRequest::LayoutIntent { fid, start: 0, end: 1 },
        MdsRequest::SetLayout { fid, requested: Default::default() },
        MdsRequest::SetXattr { fid, name: b"user.a", value: b"v", flags: XattrFlags::empty() },
        MdsRequest::RemoveXattr { fid, name: b"user.a" },
        MdsRequest::RemoveFid { fid },
        MdsRequest::Restripe { fid, requested: &[] },
        MdsRequest::Migrate { fid, to: f.fid(), lmv: &[] },
        MdsRequest::MigrateFiles { moves: vec![(fid, f.fid())] },
    ]
}

fn changes_of_two(fid: Fid, (own, own_file): (Fid, Fid)) -> Vec<MdsRequest<'static>> {
    let flags = RenameFlags::empty();
    let rename = |from_parent, to_parent| MdsRequest::Rename {
        from_parent,
        from_name: b"file",
        to_parent,
        to_name: b"moved",
        flags,
    };
    let swap = |first, second| MdsRequest::SwapLayouts {
        first,
        second,
        versions: (None, None),
        keep_times: false,
        lease: None,
    };
    vec![
        MdsRequest::Link { fid, parent: own, name: b"linked" },
        MdsRequest::Link { fid: own_file, parent: fid, name: b"linked" },
        rename(fid, own),
        rename(own, fid),
        swap(fid, own_file),
        swap(own_file, fid),
    ]
}

#[test]
fn a_tenant_sees_its_directory_as_the_root_and_nothing_above_it() {
    let mut all = Projects::new();
    let f = &all.f;
    assert_eq!(f.stat(Fid::ROOT).expect("its own root").fid, all.a);
    assert_eq!(f.lookup(all.a, "..").expect("found").expect("there").fid, all.a);
    assert_eq!(f.lookup(all.deep, "..").expect("found").expect("there").fid, all.a);
    assert!(f.names(all.a, 4096).iter().all(|name| ["file", "deep"].contains(&name.as_str())));
    assert_eq!(all.path(all.in_deep, 0), Ok((all.a, b"deep/file".to_vec())));
    assert_eq!(all.path(all.a, 0), Ok((all.a, Vec::new())));
    assert_eq!(f.run(&MdsRequest::FidToLink { fid: all.a, index: 0 }), Err(Status::ENODATA));
    let link = f.run(&MdsRequest::FidToLink { fid: all.in_a, index: 0 });
    assert_eq!(link, Ok(MdsReply::Link { parent: all.a, name: b"file".to_vec() }));
    all.by_administrator(|all| {
        assert_eq!(all.path(all.in_a, 0), Ok((Fid::ROOT, b"projects/a/file".to_vec())));
    });
}

#[test]
fn what_is_not_below_the_root_of_a_tenant_is_not_there_for_any_request() {
    let all = Projects::new();
    let f = &all.f;
    let nobodys = f.fid();
    for fid in [Fid::ROOT, all.projects, all.b, all.in_b, nobodys] {
        for request in all_requests(f, fid, (all.a, all.in_a)) {
            assert_eq!(f.run(&request), Err(Status::ENOENT), "{fid} {request:?}");
        }
    }
    for fid in [all.projects, all.b, all.in_b] {
        assert!(!all.sees(fid), "{fid}");
    }
    let (layouts, locks) = (true, LockRange::default());
    let fids = vec![all.in_b, all.in_a, all.projects, all.deep];
    let Ok(MdsReply::Directory(page)) = f.run(&MdsRequest::ListInodes { fids, layouts, locks }) else {
        panic!("a page")
    };
    assert_eq!(page.entries().map(|entry| entry.fid).collect::<Vec<_>>(), [all.in_a, all.deep]);
    let kind = InodeKind::Directories;
    assert_eq!(f.run(&MdsRequest::Inodes { after: Fid::ZERO, count_max: 9, kind }), Err(Status::EPERM));
    assert_eq!(
        f.run(&MdsRequest::FilesOn { ost_index: 0, after: Fid::ZERO, count_max: 9 }),
        Err(Status::EPERM)
    );
    // None of it was executed.
    f.mds.disconnect(f.export.client);
    assert_eq!(all.f.mds.leaves.records.inode(&all.in_b).expect("there").attr.nlink, 1);
    all.f.check();
}

#[test]
fn what_moves_out_of_a_tenants_directory_or_into_it_goes_and_comes_at_once() {
    let mut all = Projects::new();
    assert!(all.sees(all.in_deep) && !all.sees(all.in_b));
    all.by_administrator(|all| {
        all.rename((all.a, "deep"), (all.b, "deep")).expect("moved out");
        all.rename((all.b, "file"), (all.a, "from_b")).expect("moved in");
    });
    assert!(!all.sees(all.deep) && !all.sees(all.in_deep) && all.sees(all.in_b));
    // The directories above belong to another tenant.
    all.by_administrator(|all| {
        all.rename((all.b, "deep"), (all.a, "deep")).expect("moved back");
        all.rename((Fid::ROOT, "projects"), (Fid::ROOT, "renamed")).expect("renamed");
    });
    assert_eq!(all.f.stat(Fid::ROOT), Err(Status::ENOENT), "its root is looked for by its path");
    all.by_administrator(|all| {
        all.rename((Fid::ROOT, "renamed"), (Fid::ROOT, "projects")).expect("renamed");
    });
    assert!(all.sees(all.in_deep));
}

#[test]
fn a_file_with_names_in_two_tenants_is_of_both_and_its_other_name_is_not_shown() {
    let mut all = Projects::new();
    let link = MdsRequest::Link { fid: all.in_b, parent: all.a, name: b"shared" };
    all.by_administrator(|all| drop(all.f.run(&link).expect("linked")));
    assert!(all.sees(all.in_b) && !all.sees(all.b));
    let paths: Vec<_> = (0..3).map(|index| all.path(all.in_b, index)).collect();
    assert!(
        paths.contains(&Ok((all.a, b"shared".to_vec()))) && paths.contains(&Err(Status::ENOENT)),
        "{paths:?}"
    );
    assert!(!format!("{paths:?}").contains("projects"));
}

#[test]
fn a_file_that_a_tenant_has_open_stays_its_own_until_it_is_closed() {
    let all = Projects::new();
    let handle = all.f.open(all.in_a, OpenFlags::READ).expect("open");
    all.f.unlink(all.a, "file").expect("removed");
    assert!(all.sees(all.in_a));
    all.f.close(all.in_a, handle).expect("closed");
    assert!(!all.sees(all.in_a));
    all.f.check();
}
