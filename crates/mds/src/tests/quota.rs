//! Use by owner on an MDT, and requests to the quota master.

use super::*;
use fastrand::Rng;
use nacre_env::clock::Instant;
use nacre_layout::{LayoutRequest, LayoutSpec};
use nacre_ondisk::InodeRecord;
use nacre_types::{Owners, QuotaId, QuotaKind, QuotaLimits, QuotaResource, SetAttr, SetAttrValid};
use nacre_wire::mds::RenameFlags;
use nacre_wire::quota::{QuotaChange, QuotaReply, QuotaRequest, QuotaState};
use std::collections::BTreeMap;

const USERS: [u32; 4] = [0, 1000, 1001, 1002];

fn user_id(id: u32) -> QuotaId {
    QuotaId { kind: QuotaKind::User, id }
}

impl Fixture {
    fn quota(&self, request: QuotaRequest) -> StatusResult<QuotaReply> {
        self.quota_as(&self.cred, request)
    }

    fn quota_as(&self, cred: &Cred, request: QuotaRequest) -> StatusResult<QuotaReply> {
        match self.run_as(cred, &MdsRequest::Quota(request))? {
            MdsReply::Quota(reply) => Ok(reply),
            other => panic!("{other:?}"),
        }
    }

    fn state_of(&self, id: QuotaId) -> QuotaState {
        match self.quota(QuotaRequest::Get { id, pool: String::new(), is_default: false }) {
            Ok(QuotaReply::State(state)) => state,
            other => panic!("{other:?}"),
        }
    }

    fn limit_inodes(&self, id: QuotaId, limits: QuotaLimits) -> StatusResult<QuotaReply> {
        let change = QuotaChange::Limits { space: None, inodes: Some(limits) };
        self.quota(QuotaRequest::Set { id, pool: String::new(), is_default: false, change })
    }

    fn give(&self, fid: Fid, uid: u32) -> StatusResult<Attr> {
        let set = SetAttr { valid: SetAttrValid::UID, uid, ..SetAttr::default() };
        self.attr(&MdsRequest::SetAttr { fid, set })
    }

    /// Returns inodes and bytes by user, according to the records.
    fn read_all(&self) -> BTreeMap<u32, (u64, u64)> {
        let mut found: BTreeMap<u32, (u64, u64)> = BTreeMap::new();
        let store = &self.mds.leaves.store;
        store
            .scan(crate::tables::INODES, &[], std::ops::Bound::Unbounded, &mut |key, value| {
                let fid = Fid::from_key(key.first_chunk().expect("a FID"));
                let record = InodeRecord::decode(fid, value).expect("a record");
                let of = found.entry(record.attr.uid).or_default();
                let has_data = record.attr.flags.contains(nacre_types::AttrFlags::HAS_OBJECTS);
                *of = (of.0 + 1, of.1 + if has_data { record.attr.blocks * 512 } else { 0 });
                std::ops::ControlFlow::Continue(())
            })
            .expect("read");
        found
    }

    fn check_counts(&self) {
        eventually("all inodes are counted", || self.mds.leaves.quotas.book().is_complete());
        let expected = self.read_all();
        for uid in USERS {
            let of = |resource| self.mds.leaves.quotas.book().used(resource, user_id(uid)).0;
            let found = (of(QuotaResource::Inodes), of(QuotaResource::Space));
            assert_eq!(found, expected.get(&uid).copied().unwrap_or_default(), "user {uid}");
        }
    }
}

/// Changes names and owners at random.
fn change_some(f: &Fixture, random: &mut Rng, count: usize) {
    for _ in 0..count {
        let name = format!("f{}", random.u8(..12));
        let other = format!("f{}", random.u8(..12));
        // Most of these fail, as the names exist or not.
        let _ = match random.u8(..8) {
            0 | 1 => f.file(Fid::ROOT, &name).map(drop),
            2 => f.dir(Fid::ROOT, &name).map(drop),
            3 => f.symlink(Fid::ROOT, &name, "x").map(drop),
            4 => f.unlink(Fid::ROOT, &name).map(drop),
            5 => f.rmdir(Fid::ROOT, &name).map(drop),
            6 => {
                let flags = RenameFlags::empty();
                let (from_name, to_name) = (name.as_bytes(), other.as_bytes());
                let (from_parent, to_parent) = (Fid::ROOT, Fid::ROOT);
                f.run(&MdsRequest::Rename { from_parent, from_name, to_parent, to_name, flags }).map(drop)
            }
            _ => match f.lookup(Fid::ROOT, &name) {
                Ok(Some(attr)) => f.give(attr.fid, USERS[random.usize(..USERS.len())]).map(drop),
                _ => Ok(()),
            },
        };
    }
}

#[test]
fn inodes_count_for_their_owners_through_changes_stops_and_crashes() {
    let mut f = Fixture::new();
    let mut random = Rng::with_seed(7);
    for round in 0..12 {
        change_some(&f, &mut random, 120);
        f.check_counts();
        f = match round % 3 {
            0 => f.restart(),
            1 => f.crash(),
            _ => f,
        };
        // Some while the inodes are counted again.
        change_some(&f, &mut random, 40);
        f.check_counts();
    }
}

#[test]
fn data_on_the_mdt_counts_with_the_report_of_its_size() {
    let f = Fixture::new();
    let directory = data::directory(&f);
    let (file, handle, _) = data::create(&f, directory, "small", OpenFlags::WRITE);
    f.give(file.fid, 1000).expect("changed");
    f.run(&data::closing(&file, handle, data::wrote(5000, 1), 0, &[1; 5000])).expect("closed");
    let used = || f.state_of(user_id(1000)).space.used;
    assert_eq!(used(), 8192);
    f.check_counts();
    f.give(file.fid, 1001).expect("changed");
    assert_eq!((used(), f.state_of(user_id(1001)).space.used), (0, 8192));
    f.unlink(directory, "small").expect("removed");
    assert_eq!(f.state_of(user_id(1001)).space.used, 0);
    f.check_counts();
}

#[test]
fn limits_of_inodes_survive_a_crash_and_refuse_what_exceeds_them() {
    let f = Fixture::new();
    let parent = f.dir(Fid::ROOT, "open").expect("made").fid;
    let all = SetAttr { valid: SetAttrValid::MODE, mode: 0o777, ..SetAttr::default() };
    f.attr(&MdsRequest::SetAttr { fid: parent, set: all }).expect("changed");
    f.limit_inodes(user_id(1000), QuotaLimits { soft: 0, hard: 5 }).expect("set");
    let f = f.crash();
    eventually("the limit is in force", || {
        f.state_of(user_id(1000)).inodes.limits.hard == 5 && f.mds.leaves.quotas.book().has_limits()
    });
    let mine = user(1000, 100, &[]);
    let make = |cred: &Cred, name: &str| {
        let mode = FileKind::Regular.mode_bits() | 0o644;
        f.create_as(cred, parent, name, NewFile::Node { rdev: 0 }, mode).map(drop)
    };
    for number in 0..5 {
        assert_eq!(make(&mine, &format!("f{number}")), Ok(()));
    }
    assert_eq!(make(&mine, "more"), Err(Status::EDQUOT));
    let other_group = SetAttr { valid: SetAttrValid::GID, gid: 7, ..SetAttr::default() };
    let own = f.lookup(parent, "f0").expect("read").expect("there").fid;
    let changed = f.run_as(&user(1000, 100, &[7]), &MdsRequest::SetAttr { fid: own, set: other_group });
    assert!(changed.is_ok(), "a file of the user gets another group, which has no limit: {changed:?}");
    assert_eq!(make(&user(1001, 101, &[]), "theirs"), Ok(()));
    assert_eq!(make(&f.cred, "roots"), Ok(()));
    let theirs = f.lookup(parent, "theirs").expect("read").expect("there").fid;
    f.give(theirs, 1000).expect("root may exceed limits of others");
    assert_eq!(f.state_of(user_id(1000)).inodes.used, 6);
    f.limit_inodes(user_id(1000), QuotaLimits { soft: 0, hard: 8 }).expect("set");
    assert_eq!(make(&mine, "more"), Ok(()));
}

#[test]
fn requests_about_limits_are_for_root_and_questions_for_their_subjects() {
    let f = Fixture::new();
    let mine = user(1000, 100, &[7]);
    let get =
        |kind, id| QuotaRequest::Get { id: QuotaId { kind, id }, pool: String::new(), is_default: false };
    for (kind, id) in
        [(QuotaKind::User, 1000), (QuotaKind::Group, 100), (QuotaKind::Group, 7), (QuotaKind::Project, 5)]
    {
        assert!(f.quota_as(&mine, get(kind, id)).is_ok(), "{kind:?} {id}");
    }
    for (kind, id) in [(QuotaKind::User, 1001), (QuotaKind::Group, 101), (QuotaKind::User, 0)] {
        assert_eq!(f.quota_as(&mine, get(kind, id)), Err(Status::EPERM), "{kind:?} {id}");
    }
    let id = user_id(1000);
    let set = |limits| QuotaRequest::Set {
        id,
        pool: String::new(),
        is_default: false,
        change: QuotaChange::Limits { space: Some(limits), inodes: None },
    };
    let limits = QuotaLimits { soft: 1, hard: 2 };
    assert_eq!(f.quota_as(&mine, set(limits)), Err(Status::EPERM));
    assert_eq!(f.quota_as(&mine, QuotaRequest::Next { from: id, pool: String::new() }), Err(Status::EPERM));
    let grace = QuotaRequest::SetGrace { kind: QuotaKind::User, space_s: Some(5), inodes_s: None };
    assert_eq!(f.quota_as(&mine, grace.clone()), Err(Status::EPERM));
    assert_eq!(f.quota(set(QuotaLimits { soft: 3, hard: 2 })), Err(Status::EINVAL));
    let unknown = QuotaRequest::Get { id, pool: "none".to_owned(), is_default: false };
    assert_eq!(f.quota(unknown), Err(Status::ENOENT));
    let nowhere = QuotaRequest::Target { id, is_mdt: false, index: 99 };
    assert_eq!(f.quota(nowhere), Err(Status::ENODEV));
    assert_eq!(f.quota(grace), Ok(QuotaReply::Grace { space_s: 5, inodes_s: 7 * 24 * 3600 }));
    assert!(f.quota(set(limits)).is_ok());
    let f = f.crash();
    assert_eq!(f.state_of(id).space.limits, limits);
    let asked = QuotaRequest::Grace { kind: QuotaKind::User };
    assert_eq!(f.quota(asked), Ok(QuotaReply::Grace { space_s: 5, inodes_s: 7 * 24 * 3600 }));
}

#[test]
fn an_ost_learns_new_owners_of_objects_also_after_a_crash() {
    let f = Fixture::new();
    let file = f.file(Fid::ROOT, "file").expect("made").fid;
    let requested = LayoutRequest::Plain(LayoutSpec { stripe_count: Some(1), ..LayoutSpec::default() });
    f.attr(&MdsRequest::SetLayout { fid: file, requested }).expect("set");
    let layout = match f.run(&MdsRequest::LayoutIntent { fid: file, start: 0, end: 1 }) {
        Ok(MdsReply::Layout(Some(layout))) => layout,
        other => panic!("{other:?}"),
    };
    let objects: Vec<Fid> = layout.objects().map(|object| object.object).collect();
    assert!(!objects.is_empty());
    *f.osts[0].fail.lock() = Some(Status::EIO);
    f.give(file, 1000).expect("changed");
    let f = f.crash();
    *f.osts[0].fail.lock() = None;
    let owners = Owners { uid: 1000, gid: 0, projid: 0 };
    let expected: Vec<(Fid, Owners)> = objects.iter().map(|object| (*object, owners)).collect();
    eventually("the OST knows", || *f.osts[0].owned.lock() == expected);
}

#[test]
fn a_target_that_does_not_answer_delays_one_round_a_little_and_takes_part_again_later() {
    let f = Fixture::new();
    let (ost, master) = (f.osts[0].clone(), f.mds.quota_master.clone().expect("MDT0000"));
    let asked = || ost.rounds_asked.load(Ordering::Relaxed);
    *ost.rounds.lock() = Rounds::Silent;
    let start = Instant::now();
    (0..10).for_each(|_| master.round_all());
    let took = start.elapsed();
    assert!(took < Duration::from_millis(900), "the timeout of a slow target is 1 s: {took:?}");
    let before = asked();
    assert!(before <= 2, "rounds leave it out, {before} requests");
    *ost.rounds.lock() = Rounds::Answered;
    eventually("rounds ask it again", || {
        let before = asked();
        master.round_all();
        asked() > before
    });
}

#[test]
fn a_file_goes_to_no_owner_whose_limit_of_space_it_exceeds() {
    let f = Fixture::new();
    let directory = data::directory(&f);
    let (file, handle, _) = data::create(&f, directory, "small", OpenFlags::WRITE);
    let mine = user(1000, 100, &[7]);
    f.give(file.fid, 1000).expect("changed");
    f.run(&data::closing(&file, handle, data::wrote(5000, 1), 0, &[1; 5000])).expect("closed");
    let limit = |hard| {
        let change = QuotaChange::Limits { space: Some(QuotaLimits { soft: 0, hard }), inodes: None };
        let id = QuotaId { kind: QuotaKind::Group, id: 7 };
        f.quota(QuotaRequest::Set { id, pool: String::new(), is_default: false, change }).expect("set")
    };
    let give = |cred: &Cred, gid| {
        let set = SetAttr { valid: SetAttrValid::GID, gid, ..SetAttr::default() };
        f.run_as(cred, &MdsRequest::SetAttr { fid: file.fid, set }).map(drop)
    };
    // The file has 8 KiB.
    limit(4096);
    assert_eq!(give(&mine, 7), Err(Status::EDQUOT));
    assert_eq!(give(&mine, 100), Ok(()), "its limits stay as they are");
    limit(8192);
    assert_eq!(give(&mine, 7), Ok(()));
    assert_eq!(give(&mine, 100), Ok(()));
    limit(4096);
    assert_eq!(give(&f.cred, 7), Ok(()), "root is exempt");
}
