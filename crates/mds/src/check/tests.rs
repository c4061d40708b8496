mod kinds;

use super::*;
use crate::tables::{CHANGE_USERS, CHANGES, DIRENTS, INODES, XATTRS, change_key, dirent_key, xattr_key};
use crate::tables::{PREPARED, TRANSACTIONS, op_key};
use crate::tests::{Fixture, config};
use crate::transactions::state::encode_transaction;
use nacre_store::Batch;
use nacre_types::{ClientUuid, Timestamp, TransNo};
use nacre_wire::peer::Transaction;

/// Breaks the store of a small tree with `damage`, checks, repairs, and checks again.
fn damage_and_repair(damage: impl FnOnce(&MetaStore, Fid, Fid, &mut Batch), expected: &str) {
    let f = Fixture::new();
    let dir = f.dir(Fid::ROOT, "d").expect("made").fid;
    let file = f.file(dir, "f").expect("made").fid;
    f.mds.stop().expect("stops");
    let Fixture { dir: temp, mds, .. } = f;
    drop(mds);
    let store = MetaStore::open(&store_path(temp.path()), config().store).expect("opens");
    let mut batch = Batch::new();
    damage(&store, dir, file, &mut batch);
    store.commit(&batch).expect("commits");
    store.close().expect("closes");
    drop(store);
    let check = |repair| check_dir(temp.path(), &config(), repair, &mut |_| {}).expect("checks");
    let report = check(false);
    assert!(report.problems.iter().any(|p| p.text.contains(expected)), "{:#?}", report.problems);
    assert!(report.is_damaged());
    assert!(!check(true).is_damaged());
    assert!(check(false).problems.is_empty(), "{:#?}", check(false).problems);
}

fn edit(store: &MetaStore, batch: &mut Batch, fid: Fid, change: impl FnOnce(&mut InodeRecord)) {
    let mut record = store
        .get(INODES, &fid.to_key(), |v| InodeRecord::decode(fid, v.expect("exists")))
        .expect("reads")
        .expect("decodes");
    change(&mut record);
    let mut bytes = Vec::new();
    record.encode(&mut bytes);
    batch.put(INODES, &fid.to_key(), &bytes);
}

fn seed(store: &MetaStore) -> u64 {
    read_record(store, Path::new("")).expect("a record").hash_seed
}

#[test]
fn wrong_counts_are_corrected() {
    damage_and_repair(|s, dir, _, b| edit(s, b, dir, |r| r.attr.size = 9), "says 9 entries, has 1");
    damage_and_repair(|s, dir, _, b| edit(s, b, dir, |r| r.attr.nlink = 5), "has 5 links, should have 2");
    damage_and_repair(|s, _, file, b| edit(s, b, file, |r| r.attr.nlink = 2), "has 2 links, should have 1");
}

#[test]
fn an_inode_that_does_not_know_its_name_learns_it() {
    damage_and_repair(
        |s, _, file, b| edit(s, b, file, |r| r.name = b"other".to_vec()),
        "does not know its names",
    );
}

#[test]
fn a_name_without_inode_is_removed() {
    damage_and_repair(|_, _, file, b| b.delete(INODES, &file.to_key()), "names an inode that does not exist");
}

#[test]
fn files_and_directories_without_names_go_to_lost_and_found() {
    let delete = |s: &MetaStore, parent: Fid, name: &[u8], b: &mut Batch| {
        let hash = nacre_types::name::name_hash(seed(s), name);
        b.delete(DIRENTS, dirent_key(&parent, hash, name).as_slice());
    };
    damage_and_repair(|s, dir, _, b| delete(s, dir, b"f", b), "has lost its name");
    damage_and_repair(|s, _, _, b| delete(s, Fid::ROOT, b"d", b), "has lost its name");
}

#[test]
fn leftovers_and_unlisted_orphans_are_cleared() {
    let gone = Fid::new(0x2_0000_0401, 0x1234, 0);
    damage_and_repair(
        |_, _, _, b| b.put(XATTRS, xattr_key(&gone, b"user.x").as_slice(), &[1]),
        "does not exist but has an extended attribute",
    );
    damage_and_repair(
        |s, _, file, b| edit(s, b, file, |r| r.attr.flags |= AttrFlags::ORPHAN),
        "is on the list of inodes without names but has one",
    );
}

/// Returns the directory of a stopped MDT to whose store `change` was applied.
fn stopped(change: impl FnOnce(&mut Batch)) -> tempfile::TempDir {
    let f = Fixture::new();
    f.mds.stop().expect("stops");
    let Fixture { dir, mds, .. } = f;
    drop(mds);
    let store = MetaStore::open(&store_path(dir.path()), config().store).expect("opens");
    let mut batch = Batch::new();
    change(&mut batch);
    store.commit(&batch).expect("commits");
    store.close().expect("closes");
    dir
}

#[test]
fn what_nobody_will_decide_is_told_and_removed_and_nothing_else() {
    let op = |mdt| TransactionId { mdt, boot: 3, number: 4 };
    // The record of the locked inodes has no effect here.
    let first = stopped(|b| {
        for mdt in [1, 2] {
            b.put(PREPARED, op_key(&op(mdt)).as_slice(), b"");
        }
    });
    let second = stopped(|_| ());
    let decided = stopped(|b| {
        let (client, now) = (ClientUuid([9; 16]), Timestamp::default());
        let transaction = Transaction { id: op(1), stamp: 1, client, now, parts: Vec::new() };
        b.put(TRANSACTIONS, op_key(&op(1)).as_slice(), &encode_transaction(&transaction, TransNo(0)));
    });
    let find = |other: &tempfile::TempDir, all: Option<&[u16]>, repair| {
        let dirs = [&first, other].map(tempfile::TempDir::path).map(Path::to_owned);
        let dirs: Vec<(PathBuf, u16)> = dirs.into_iter().zip([0, 1]).collect();
        let found = abandoned_transactions(&dirs, all, &config(), repair).expect("readable");
        found.into_iter().map(|found| (found.mdt, found.text, found.is_removed)).collect::<Vec<_>>()
    };
    let text = |coordinator: u16| {
        format!(
            "distributed transaction {} is prepared and has no coordinator: MDT{coordinator:04x} does not exist or has no record of it",
            op(coordinator)
        )
    };
    assert_eq!(find(&second, None, true), [], "nobody knows what there is");
    assert_eq!(find(&second, Some(&[0, 1, 2]), true), [], "MDT 2 may have either");
    assert_eq!(find(&decided, Some(&[0, 1]), false), [(0, text(2), false)], "MDT 1 has decided");
    assert_eq!(find(&second, Some(&[0, 1]), true), [(0, text(1), true), (0, text(2), true)]);
    assert_eq!(find(&second, Some(&[0, 1]), false), []);
}

#[test]
fn damage_in_the_changelog_is_reported() {
    let f = Fixture::new();
    f.mds
        .administrate_changelog(&nacre_wire::changelog::ChangelogRequest::Register {
            name: String::new(),
            mask: nacre_types::ChangeMask::NONE,
        })
        .expect("registered");
    f.file(Fid::ROOT, "a").expect("made");
    f.file(Fid::ROOT, "b").expect("made");
    f.mds.stop().expect("stops");
    let Fixture { dir: temp, mds, .. } = f;
    drop(mds);
    check(temp.path(), &[]);
    let store = MetaStore::open(&store_path(temp.path()), config().store).expect("opens");
    let mut batch = Batch::new();
    batch.put(CHANGES, &change_key(2), b"\x01\xff");
    batch.put(CHANGES, &change_key(1 << 40), b"\x02");
    batch.put(CHANGE_USERS, &1u32.to_be_bytes(), b"");
    batch.put(CHANGE_USERS, &7u32.to_be_bytes(), &user().encode());
    store.commit(&batch).expect("commits");
    store.close().expect("closes");
    drop(store);
    check(
        temp.path(),
        &[
            "changelog record 1099511627776 is damaged",
            "changelog record 1099511627776 is outside the range",
            "changelog record 2 is damaged",
            "changelog user cl1 has a damaged record",
            "changelog user cl7 was never registered",
        ],
    );

    fn user() -> nacre_ondisk::ChangeUserRecord {
        nacre_ondisk::ChangeUserRecord {
            name: "x".to_owned(),
            mask: nacre_types::ChangeMask::NONE,
            cleared: 0,
            active_s: 0,
        }
    }

    fn check(dir: &Path, expected: &[&str]) {
        let report = check_dir(dir, &config(), false, &mut |_| {}).expect("checks");
        let found: Vec<&str> = report.problems.iter().map(|problem| problem.text.as_str()).collect();
        assert_eq!(found.len(), expected.len(), "{found:#?}");
        for text in expected {
            assert!(found.iter().any(|found| found.starts_with(text)), "{text}: {found:#?}");
        }
    }
}
