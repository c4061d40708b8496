//! The changelog: each change has exactly its record, in order, for registered users.

use super::*;
use nacre_ondisk::ChangeRecord;
use nacre_rpc::ReplySlot;
use nacre_types::{ChangeKind, ChangeMask, SetAttr, SetAttrValid, Timestamp, Xid};
use nacre_wire::changelog::{CHANGES_BYTES_MAX, ChangeUser, ChangelogReply, ChangelogRequest};
use nacre_wire::mds::{RenameFlags, XattrFlags};

/// A record without the parts that differ from run to run.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Seen {
    kind: ChangeKind,
    flags: u16,
    fid: Fid,
    at: Option<(Fid, String)>,
    source: Option<(Fid, Fid, String)>,
}

fn seen(kind: ChangeKind, flags: u16, fid: Fid, at: Option<(Fid, &str)>) -> Seen {
    let at = at.map(|(parent, name)| (parent, name.to_owned()));
    Seen { kind, flags, fid, at, source: None }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn seen_in(bytes: &[u8]) -> Seen {
    let record = ChangeRecord::decode(bytes).expect("a record");
    Seen {
        kind: record.kind,
        flags: record.flags,
        fid: record.target,
        at: record.at.map(|at| (at.parent, text(at.name))),
        source: record.source.map(|source| (source.fid, source.at.parent, text(source.at.name))),
    }
}

impl Fixture {
    fn changelog(&self, request: ChangelogRequest) -> StatusResult<ChangelogReply> {
        match self.run(&MdsRequest::Changelog(request))? {
            MdsReply::Changelog(reply) => Ok(reply),
            other => panic!("{other:?}"),
        }
    }

    fn register(&self, name: &str, mask: &str) -> StatusResult<ChangeUser> {
        let mask = match mask {
            "" => ChangeMask::NONE,
            mask => ChangeMask::parse(mask, ChangeMask::DEFAULT).expect("a mask"),
        };
        match self.changelog(ChangelogRequest::Register { name: name.to_owned(), mask })? {
            ChangelogReply::User(user) => Ok(user),
            other => panic!("{other:?}"),
        }
    }

    fn clear(&self, user: &str, upto: u64) -> StatusResult<()> {
        self.changelog(ChangelogRequest::Clear { user: user.to_owned(), upto }).map(drop)
    }

    /// Returns a page of records, and the index and time up to which there are no others.
    fn page(&self, after: u64, bytes_max: u32) -> (Vec<(u64, Vec<u8>)>, u64, Timestamp) {
        match self.changelog(ChangelogRequest::Read { after, bytes_max }) {
            Ok(ChangelogReply::Changes { records, upto, settled }) => {
                (records.into_iter().map(|(index, bytes)| (index, bytes.0)).collect(), upto, settled)
            }
            other => panic!("{other:?}"),
        }
    }

    /// Returns all records after an index.
    fn changes(&self, after: u64) -> Vec<(u64, Seen)> {
        let (records, ..) = self.page(after, CHANGES_BYTES_MAX);
        records.into_iter().map(|(index, bytes)| (index, seen_in(&bytes))).collect()
    }

    fn indexes(&self) -> Vec<u64> {
        self.changes(0).into_iter().map(|(index, _)| index).collect()
    }

    /// Returns the records of `work` alone.
    fn during(&self, work: impl FnOnce()) -> Vec<Seen> {
        let (_, upto, _) = self.page(0, CHANGES_BYTES_MAX);
        work();
        self.changes(upto).into_iter().map(|(_, seen)| seen).collect()
    }

    fn move_name(&self, from: (Fid, &str), to: (Fid, &str), flags: RenameFlags) {
        let request = MdsRequest::Rename {
            from_parent: from.0,
            from_name: from.1.as_bytes(),
            to_parent: to.0,
            to_name: to.1.as_bytes(),
            flags,
        };
        self.run(&request).expect("renamed");
    }

    fn set(&self, fid: Fid, set: SetAttr) {
        self.run(&MdsRequest::SetAttr { fid, set }).expect("set");
    }
}

#[test]
fn nothing_is_recorded_while_no_user_is_registered() {
    let f = Fixture::new();
    f.file(Fid::ROOT, "a").expect("made");
    f.register("", "").expect("registered");
    f.changelog(ChangelogRequest::Deregister { user: "cl1".to_owned() }).expect("deregistered");
    f.file(Fid::ROOT, "b").expect("made");
    assert_eq!(f.register("", "").expect("registered").id, 2, "numbers are not reused");
    assert_eq!(f.changes(0), []);
    assert_eq!(f.mds.changelog.size(), 0);
    f.check();
}

#[test]
fn each_operation_on_names_has_exactly_its_record() {
    let f = Fixture::new();
    f.register("", "").expect("registered");
    let root = Fid::ROOT;
    let (mut file, mut dir, mut link) = (Fid::ZERO, Fid::ZERO, Fid::ZERO);
    let made = f.during(|| {
        file = f.file(root, "file").expect("made").fid;
        dir = f.dir(root, "dir").expect("made").fid;
        link = f.symlink(dir, "link", "target").expect("made").fid;
        f.create_as(&f.cred, dir, "pipe", NewFile::Node { rdev: 0 }, FileKind::Fifo.mode_bits() | 0o644)
            .expect("made");
        f.run(&MdsRequest::Link { fid: file, parent: dir, name: b"second" }).expect("linked");
        f.file(root, "file").expect_err("exists");
        f.unlink(root, "absent").expect_err("absent");
    });
    let pipe = f.lookup(dir, "pipe").expect("answered").expect("there").fid;
    assert_eq!(
        made,
        [
            seen(ChangeKind::Create, 0, file, Some((root, "file"))),
            seen(ChangeKind::Mkdir, 0, dir, Some((root, "dir"))),
            seen(ChangeKind::SoftLink, 0, link, Some((dir, "link"))),
            seen(ChangeKind::Mknod, 0, pipe, Some((dir, "pipe"))),
            seen(ChangeKind::HardLink, 0, file, Some((dir, "second"))),
        ]
    );
    let removed = f.during(|| {
        f.unlink(root, "file").expect("removed");
        f.unlink(dir, "second").expect("removed");
        f.unlink(dir, "pipe").expect("removed");
        f.unlink(dir, "link").expect("removed");
        f.rmdir(root, "dir").expect("removed");
    });
    assert_eq!(
        removed,
        [
            seen(ChangeKind::Unlink, 0, file, Some((root, "file"))),
            seen(ChangeKind::Unlink, 1, file, Some((dir, "second"))),
            seen(ChangeKind::Unlink, 1, pipe, Some((dir, "pipe"))),
            seen(ChangeKind::Unlink, 1, link, Some((dir, "link"))),
            seen(ChangeKind::Rmdir, 1, dir, Some((root, "dir"))),
        ]
    );
    f.check();
}

#[test]
fn renames_have_both_names_and_what_they_replaced() {
    let f = Fixture::new();
    f.register("", "").expect("registered");
    let root = Fid::ROOT;
    let dir = f.dir(root, "dir").expect("made").fid;
    let [a, b, c] = ["a", "b", "c"].map(|name| f.file(root, name).expect("made").fid);
    let renamed = |flags, target, from: (Fid, &str), fid, to: (Fid, &str)| Seen {
        source: Some((fid, from.0, from.1.to_owned())),
        ..seen(ChangeKind::Rename, flags, target, Some(to))
    };
    let found = f.during(|| {
        f.move_name((root, "a"), (dir, "x"), RenameFlags::empty());
        f.move_name((root, "b"), (dir, "x"), RenameFlags::empty());
        f.move_name((root, "c"), (dir, "x"), RenameFlags::EXCHANGE);
    });
    assert_eq!(
        found,
        [
            renamed(0, Fid::ZERO, (root, "a"), a, (dir, "x")),
            renamed(1, a, (root, "b"), b, (dir, "x")),
            renamed(4, b, (root, "c"), c, (dir, "x")),
        ]
    );
    f.check();
}

#[test]
fn changes_of_attributes_have_the_first_type_that_describes_them() {
    let f = Fixture::new();
    f.register("", "").expect("registered");
    let file = f.file(Fid::ROOT, "file").expect("made").fid;
    let valid = |valid| SetAttr { valid, mode: 0o600, ..SetAttr::default() };
    let found = f.during(|| {
        f.set(file, valid(SetAttrValid::MODE));
        f.set(file, valid(SetAttrValid::UID | SetAttrValid::GID));
        f.set(file, valid(SetAttrValid::SIZE));
        f.set(file, valid(SetAttrValid::ATIME | SetAttrValid::MTIME));
        f.set(file, valid(SetAttrValid::ATIME));
        let (name, value, flags) = (b"user.a", b"value", XattrFlags::empty());
        f.run(&MdsRequest::SetXattr { fid: file, name, value, flags }).expect("set");
        f.run(&MdsRequest::RemoveXattr { fid: file, name }).expect("removed");
    });
    let kinds: Vec<_> = found.iter().map(|seen| (seen.kind, seen.flags)).collect();
    assert_eq!(
        kinds,
        [
            (ChangeKind::SetAttr, 0x14),
            (ChangeKind::SetAttr, 0x64),
            (ChangeKind::Truncate, 0xc),
            (ChangeKind::Mtime, 7),
            // Not an ATIME record, which is not in the default mask.
            (ChangeKind::Ctime, 5),
            (ChangeKind::SetXattr, 0),
            (ChangeKind::SetXattr, 0),
        ]
    );
    f.check();
}

#[test]
fn a_close_is_recorded_if_the_file_may_have_changed() {
    let f = Fixture::new();
    f.register("", "").expect("registered");
    let file = f.file(Fid::ROOT, "file").expect("made").fid;
    let open_and_close = |flags| {
        let handle = f.open(file, flags).expect("opened");
        f.close(file, handle).expect("closed");
    };
    assert_eq!(f.during(|| open_and_close(OpenFlags::READ)), []);
    assert_eq!(f.during(|| open_and_close(OpenFlags::WRITE)), [seen(ChangeKind::Close, 2, file, None)]);
    let truncated = f.during(|| open_and_close(OpenFlags::WRITE | OpenFlags::TRUNCATE));
    assert_eq!(
        truncated,
        [seen(ChangeKind::Truncate, 0xe, file, None), seen(ChangeKind::Close, 2, file, None)]
    );
    f.register("opens", "+OPEN +GXATR").expect("registered");
    let read = f.during(|| open_and_close(OpenFlags::READ));
    assert_eq!(read, [seen(ChangeKind::Open, 1, file, None), seen(ChangeKind::Close, 1, file, None)]);
    let attribute = MdsRequest::GetXattr { fid: file, name: b"trusted.lma" };
    assert_eq!(
        f.during(|| drop(f.run(&attribute).expect("read"))),
        [seen(ChangeKind::GetXattr, 0, file, None)]
    );
    f.check();
}

#[test]
fn users_get_the_types_that_they_or_the_mdt_want() {
    let f = Fixture::new();
    f.register("unlinks", "UNLNK").expect("registered");
    f.file(Fid::ROOT, "a").expect("made");
    f.unlink(Fid::ROOT, "a").expect("removed");
    let kinds = || f.changes(0).into_iter().map(|(_, seen)| seen.kind).collect::<Vec<_>>();
    assert_eq!(kinds(), [ChangeKind::Unlink]);
    f.register("", "").expect("registered");
    f.mds.changelog.set_mask(ChangeMask::parse("MKDIR", ChangeMask::DEFAULT).expect("a mask"));
    f.file(Fid::ROOT, "b").expect("made");
    f.dir(Fid::ROOT, "c").expect("made");
    assert_eq!(kinds(), [ChangeKind::Unlink, ChangeKind::Mkdir]);
    assert_eq!(f.register("unlinks", "").expect_err("taken"), Status::EEXIST);
    assert_eq!(f.register("1x", "").expect_err("no name"), Status::EINVAL);
    f.check();
}

#[test]
fn records_are_there_in_order_after_a_crash_and_indexes_continue() {
    let mut f = Fixture::new();
    f.register("", "").expect("registered");
    let mut expected = Vec::new();
    for round in 0..3 {
        for number in 0..700 {
            f.file(Fid::ROOT, &format!("{round}-{number}")).expect("made");
            expected.push(format!("{round}-{number}"));
        }
        let size = f.mds.changelog.size();
        f = f.crash();
        assert_eq!(f.mds.changelog.size(), size);
    }
    let found = f.changes(0);
    let names: Vec<String> = found.iter().map(|(_, seen)| seen.at.clone().expect("a name").1).collect();
    assert_eq!(names, expected);
    assert_eq!(f.indexes(), (1..=2100).collect::<Vec<u64>>());
    let times: Vec<Timestamp> = f
        .page(0, CHANGES_BYTES_MAX)
        .0
        .iter()
        .map(|(_, bytes)| ChangeRecord::decode(bytes).expect("a record").time)
        .collect();
    assert!(times.is_sorted_by(|a, b| a < b));
    f.check();
}

#[test]
fn what_a_reader_has_seen_is_durable() {
    let f = Fixture::new();
    f.register("", "").expect("registered");
    f.file(Fid::ROOT, "a").expect("made");
    assert_eq!(f.changes(0).len(), 1);
    let store = &f.mds.leaves.store;
    assert_eq!(store.last_committed(), store.last_transno());
}

#[test]
fn a_resend_does_not_produce_a_second_record() {
    let f = Fixture::new();
    f.register("", "").expect("registered");
    let slot = ReplySlot { client: f.export.client, tag: 3, xid: Xid(10) };
    let request = MdsRequest::Create {
        parent: Fid::ROOT,
        name: b"a",
        fid: f.fid(),
        new: NewFile::Node { rdev: 0 },
        mode: 0o644,
        umask: 0,
        open: None,
        exclusive: true,
    };
    f.with_slot(slot, &request).expect("made");
    let f = f.crash();
    assert!(f.mds.find_stored_answer(&slot).is_some(), "the resend is answered from it");
    assert_eq!(f.indexes(), [1]);
    f.check();
}

#[test]
fn records_are_purged_up_to_what_all_users_have_cleared() {
    let f = Fixture::new();
    f.register("", "").expect("registered");
    f.register("slow", "").expect("registered");
    for number in 0..3000 {
        f.file(Fid::ROOT, &number.to_string()).expect("made");
    }
    f.clear("cl1", 2500).expect("cleared");
    assert_eq!(f.indexes().first(), Some(&1), "the other user has not read them");
    f.clear("slow", 1200).expect("cleared");
    eventually("the purge is done", || f.indexes().first() == Some(&1201));
    f.clear("slow", 1000).expect("no news");
    assert_eq!(f.clear("cl1", 3001), Err(Status::EINVAL));
    assert_eq!(f.clear("cl9", 1), Err(Status::ENOENT));
    f.changelog(ChangelogRequest::Deregister { user: "cl2-slow".to_owned() }).expect("deregistered");
    eventually("the purge is done", || f.indexes().first() == Some(&2501));
    f.clear("cl1", 0).expect("cleared");
    eventually("the purge is done", || f.indexes().is_empty());
    assert_eq!(f.mds.changelog.size(), 0);
    // Numbers continue, also after a restart without any record.
    let f = f.restart();
    f.file(Fid::ROOT, "more").expect("made");
    assert_eq!(f.indexes(), [3001]);
    f.check();
}

#[test]
fn pages_end_at_their_limit_and_continue() {
    let f = Fixture::new();
    f.register("", "").expect("registered");
    for number in 0..50 {
        f.file(Fid::ROOT, &number.to_string()).expect("made");
    }
    let (mut after, mut found) = (0, Vec::new());
    loop {
        let (records, upto, settled) = f.page(after, 400);
        let Some((last, bytes)) = records.last() else { break };
        assert!(records.len() < 10);
        let is_last = *last == 50;
        let time = ChangeRecord::decode(bytes).expect("a record").time;
        assert!(if is_last { settled >= time } else { settled == time });
        found.extend(records.iter().map(|(index, _)| *index));
        after = upto;
    }
    assert_eq!(found, (1..=50).collect::<Vec<u64>>());
}

#[test]
fn idle_users_are_deregistered_and_others_stay() {
    let f = Fixture::new();
    let settings = f.mds.changelog.settings();
    settings.set_min_gc_interval_s(1);
    f.register("behind", "").expect("registered");
    f.register("reader", "").expect("registered");
    for number in 0..20 {
        f.file(Fid::ROOT, &number.to_string()).expect("made");
    }
    f.clear("reader", 0).expect("cleared");
    settings.set_collects(false);
    settings.set_max_idle_indexes(10);
    f.mds.changelogs.tick();
    let names = || f.mds.changelog.users().1.into_iter().map(|user| user.name).collect::<Vec<_>>();
    assert_eq!(names(), ["behind", "reader"]);
    settings.set_collects(true);
    eventually("the idle user is gone", || names() == ["reader"]);
    eventually("the purge is done", || f.indexes().is_empty());
    // A log that is too large costs the user that is furthest behind its registration, whatever the interval.
    f.file(Fid::ROOT, "more").expect("made");
    settings.set_min_gc_interval_s(3600);
    settings.set_max_mb(1);
    for number in 0..12_000 {
        f.file(Fid::ROOT, &format!("{number}-{}", "x".repeat(60))).expect("made");
        if names().is_empty() {
            break;
        }
    }
    eventually("the log is bounded", || names().is_empty());
    eventually("the purge is done", || f.mds.changelog.size() == 0);
    f.check();
}

#[test]
fn only_administrators_of_the_file_system_may_use_it() {
    let f = Fixture::new();
    for request in [
        ChangelogRequest::Register { name: String::new(), mask: ChangeMask::NONE },
        ChangelogRequest::Read { after: 0, bytes_max: 1000 },
        ChangelogRequest::Users,
    ] {
        let request = MdsRequest::Changelog(request);
        assert_eq!(f.run_as(&user(1000, 100, &[]), &request), Err(Status::EPERM));
    }
    f.register("", "").expect("registered");
}

#[test]
fn records_name_the_program_that_made_the_change() {
    let f = Fixture::new();
    f.register("", "").expect("registered");
    let cred = Cred { uid: 7, gid: 8, ..f.cred.clone() };
    f.create_as(&cred, Fid::ROOT, "a", NewFile::Node { rdev: 0 }, 0o644).expect("made");
    let (records, ..) = f.page(0, CHANGES_BYTES_MAX);
    let record = ChangeRecord::decode(&records[0].1).expect("a record");
    let origin = record.origin.expect("a program");
    assert_eq!((origin.uid, origin.gid, origin.nid, origin.job), (7, 8, Nid::Lo, None));
}
