//! The rules without a store: cases, and random operations against a plain POSIX name space.

mod attributes;
mod model;
mod world;

use super::*;
use model::Posix;
use nacre_types::acl::{AclEntry, AclTag};
use nacre_types::{Caps, FileKind, FullCred, SetAttr, Status};
use nacre_wire::mds::XattrFlags;
use std::collections::BTreeMap;
use world::{Shape, World};

/// Operations of a run; `NACRE_PLAN_OPERATIONS` sets another number.
const OPERATIONS: usize = 20_000;
/// Number of operations after which a run restarts from an empty tree, with another seed.
const LIFE: usize = 2_000;

/// Number of an inode, the same in all worlds and in the model; the root is 0.
pub(super) type Id = usize;

/// One operation, by a caller.
#[derive(Debug, Clone)]
pub(super) enum Step {
    Make { dir: Id, name: Vec<u8>, kind: FileKind, mode: u32, umask: u32 },
    Link { id: Id, dir: Id, name: Vec<u8> },
    Remove { dir: Id, name: Vec<u8>, as_directory: bool },
    Rename { from: (Id, Vec<u8>), to: (Id, Vec<u8>), flags: nacre_wire::mds::RenameFlags },
    SetAttr { id: Id, set: SetAttr },
    SetXattr { id: Id, name: &'static [u8], value: Vec<u8>, flags: XattrFlags },
    RemoveXattr { id: Id, name: &'static [u8] },
    SetAcl { id: Id, is_default: bool, acl: Option<Rights> },
}

/// An ACL in digits; one with rights of a user has a mask.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Rights {
    pub owner: u32,
    /// A user, the user's rights and the mask.
    pub user: Option<(u32, u32, u32)>,
    pub group: u32,
    pub other: u32,
}

impl Rights {
    /// Encodes the ACL in the kernel's form.
    pub fn to_xattr(self) -> Vec<u8> {
        let entry = |tag, perm: u32, id| AclEntry { tag, perm: perm as u8, id };
        let mut entries = vec![entry(AclTag::UserObj, self.owner, 0)];
        entries.extend(self.user.map(|(uid, perm, _)| entry(AclTag::User, perm, uid)));
        entries.push(entry(AclTag::GroupObj, self.group, 0));
        entries.extend(self.user.map(|(.., mask)| entry(AclTag::Mask, mask, 0)));
        entries.push(entry(AclTag::Other, self.other, 0));
        Acl::from_entries(entries).expect("in order").to_xattr()
    }
}

/// Visible state of an inode.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Seen {
    pub kind: FileKind,
    pub mode: u32,
    pub uid: u32,
    pub gid: u32,
    /// Number of names; of a directory: 2 plus its subdirectories, where they are in one place.
    pub nlink: u32,
    /// Size in bytes; 0 for inodes that are not regular files.
    pub size: u64,
    pub atime: i64,
    pub mtime: i64,
    /// Extended attributes, ACLs among them.
    pub xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
}

/// Credentials of the operations: root, two users of the same group, and a user without capabilities that is
/// root by number only.
pub(super) fn users() -> [Cred; 4] {
    let user = |uid, gid, groups: &[u32], caps| Cred {
        uid,
        gid,
        full: Some(FullCred { groups: groups.to_vec(), caps }),
    };
    [
        Cred::system(),
        user(1000, 1000, &[50], Caps::empty()),
        user(1001, 1001, &[50], Caps::empty()),
        user(0, 0, &[], Caps::empty()),
    ]
}

fn step(random: &mut fastrand::Rng, posix: &Posix) -> Step {
    use nacre_wire::mds::RenameFlags;
    let directories = posix.directories();
    let name = |random: &mut fastrand::Rng| vec![b'a' + random.u8(0..6)];
    // Mostly directories that exist, sometimes any inode.
    let id = |random: &mut fastrand::Rng| match random.u8(0..10) {
        0 => random.usize(0..posix.len()),
        _ => directories[random.usize(0..directories.len())],
    };
    match random.u8(0..34) {
        0..8 => {
            let kinds = [FileKind::Directory, FileKind::Directory, FileKind::Regular, FileKind::Symlink];
            let modes = [0o777, 0o755, 0o1777, 0o2775, 0o2011, 0o700, 0o6755];
            let kind = kinds[random.usize(0..kinds.len())];
            let mode = modes[random.usize(0..modes.len())];
            let umask = [0, 0o022, 0o077][random.usize(0..3)];
            Step::Make { dir: id(random), name: name(random), kind, mode, umask }
        }
        8..10 => Step::Link { id: random.usize(0..posix.len()), dir: id(random), name: name(random) },
        10..14 => Step::Remove { dir: id(random), name: name(random), as_directory: random.bool() },
        20..34 => attributes::step(random, posix),
        _ => {
            let flags = [RenameFlags::empty(), RenameFlags::NOREPLACE, RenameFlags::EXCHANGE];
            let flags = flags[random.usize(0..4).min(2)];
            Step::Rename { from: (id(random), name(random)), to: (id(random), name(random)), flags }
        }
    }
}

#[test]
fn random_operations_have_the_outcomes_of_posix_on_one_mdt_and_on_several() {
    let wanted = std::env::var("NACRE_PLAN_OPERATIONS").ok().and_then(|text| text.parse().ok());
    let operations: usize = wanted.unwrap_or(OPERATIONS);
    let users = users();
    let (mut done, mut seed, mut refused) = (0, 0, 0);
    while done < operations {
        let mut random = fastrand::Rng::with_seed(seed);
        let mut posix = Posix::new();
        let mut worlds = [Shape::OneMdt, Shape::Spread].map(World::new);
        for number in 0..LIFE.min(operations - done) {
            let cred = &users[random.usize(0..users.len())];
            let step = step(&mut random, &posix);
            let expected = posix.take(cred, &step);
            refused += usize::from(expected.is_err());
            for world in &mut worlds {
                let found = world.take(cred, &step);
                assert_eq!(found, expected, "seed {seed}, operation {number}, {:?}: {step:?}", world.shape());
            }
            if number % 50 == 0 {
                for world in &mut worlds {
                    assert_eq!(world.tree(), posix.tree(), "seed {seed}, operation {number}");
                }
            }
        }
        done += LIFE;
        seed += 1;
    }
    let happened = operations - refused;
    assert!(
        happened > operations / 10 && refused > operations / 10,
        "{happened} happened, {refused} did not"
    );
}

fn record(kind: FileKind, mode: u32, uid: u32) -> InodeRecord {
    let fid = Fid { seq: nacre_types::fid::SEQ_NORMAL, oid: uid + mode + kind.mode_bits(), ver: 0 };
    let attr = Attr { fid, mode: kind.mode_bits() | mode, uid, gid: uid, nlink: 2, ..Attr::default() };
    InodeRecord { attr, ..InodeRecord::default() }
}

#[test]
fn a_removal_is_refused_by_the_first_rule_that_forbids_it() {
    let [root, alice, ..] = users();
    let (dir, file) = (FileKind::Directory, FileKind::Regular);
    let victim = record(file, 0o644, 1001);
    let mut full = record(dir, 0o755, 1000);
    full.attr.size = 1;
    for (cred, home, victim, as_directory, outcome) in [
        (&alice, record(dir, 0o766, 1001), Some(&victim), false, Err(Status::EACCES)),
        (&alice, record(dir, 0o755, 1001), None, false, Err(Status::ENOENT)),
        (&alice, record(dir, 0o755, 1001), Some(&victim), false, Err(Status::EACCES)),
        (&alice, record(dir, 0o1777, 1001), Some(&victim), false, Err(Status::EPERM)),
        (&alice, record(dir, 0o777, 1001), Some(&victim), true, Err(Status::ENOTDIR)),
        (&alice, record(dir, 0o777, 1001), Some(&full), false, Err(Status::EISDIR)),
        (&alice, record(dir, 0o777, 1001), Some(&full), true, Err(Status::ENOTEMPTY)),
        (&alice, record(dir, 0o777, 1001), Some(&victim), false, Ok(())),
        (&root, record(dir, 0o1000, 1001), Some(&victim), false, Ok(())),
    ] {
        let removal = Removal { home: &home, name: b"n", victim, shards: &[], as_directory };
        let found = remove(cred, &removal, Timestamp::default()).map(drop);
        assert_eq!(found, outcome, "{home:?} {victim:?}");
    }
}

#[test]
fn a_directory_goes_only_when_all_its_shards_are_empty_and_they_go_with_it() {
    let root = Cred::system();
    let home = record(FileKind::Directory, 0o755, 7);
    let victim = record(FileKind::Directory, 0o755, 8);
    let mut shards = [9, 10].map(|uid| std::sync::Arc::new(record(FileKind::Directory, 0o755, uid)));
    let plan_of = |shards: &[std::sync::Arc<InodeRecord>]| {
        let removal = Removal { home: &home, name: b"n", victim: Some(&victim), shards, as_directory: true };
        remove(&root, &removal, Timestamp::default()).map(|plan| {
            plan.changes.iter().filter(|change| matches!(change, Change::DropShard { .. })).count()
        })
    };
    assert_eq!(plan_of(&shards), Ok(2));
    std::sync::Arc::make_mut(&mut shards[1]).attr.size = 1;
    assert_eq!(plan_of(&shards), Err(Status::ENOTEMPTY));
}

#[test]
fn a_link_is_refused_to_directories_over_the_limit_and_across_projects() {
    let root = Cred::system();
    let mut home = record(FileKind::Directory, 0o755, 7);
    home.attr.flags |= nacre_types::AttrFlags::PROJECT_INHERIT;
    let file = record(FileKind::Regular, 0o644, 8);
    let mut many = file.clone();
    many.attr.nlink = nacre_types::limits::LINK_MAX;
    let mut other = file.clone();
    other.attr.projid = 5;
    for (record, is_taken, outcome) in [
        (&record(FileKind::Directory, 0o755, 9), false, Err(Status::EPERM)),
        (&many, false, Err(Status::EMLINK)),
        (&other, false, Err(Status::EXDEV)),
        (&file, true, Err(Status::EEXIST)),
        (&file, false, Ok(())),
    ] {
        let linking = Linking { record, home: &home, name: b"n", is_taken };
        assert_eq!(link(&root, &linking, Timestamp::default()).map(drop), outcome);
    }
}

#[test]
fn changes_are_the_same_after_a_way_over_the_network() {
    let home = record(FileKind::Directory, 0o755, 7);
    let (source, target) = (record(FileKind::Regular, 0o644, 8), record(FileKind::Regular, 0o644, 9));
    for flags in [nacre_wire::mds::RenameFlags::empty(), nacre_wire::mds::RenameFlags::EXCHANGE] {
        let m = Move {
            from_home: &home,
            from_name: b"from",
            to_home: &home,
            to_name: b"to",
            source: Some(&source),
            target: Some(&target),
            shards: &[],
            flags,
        };
        let plan = rename(&Cred::system(), &m, Cycles::default(), Timestamp::default());
        let plan = plan.expect("allowed").expect("something happens");
        let updates = plan.updates();
        let back: Vec<String> =
            updates.iter().map(|update| format!("{:?}", Change::of(update).expect("a change"))).collect();
        let sent: Vec<String> = plan.changes.iter().map(|change| format!("{change:?}")).collect();
        assert_eq!(back, sent);
    }
}
