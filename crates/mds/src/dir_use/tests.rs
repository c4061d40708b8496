use super::*;
use nacre_types::FileKind;

fn fid(oid: u32) -> Fid {
    Fid::new(0x2_0000_0401, oid, 0)
}

fn record(oid: u32, parent: Fid, kind: FileKind) -> InodeRecord {
    let mut record = InodeRecord { parent, name: b"n".to_vec(), ..InodeRecord::default() };
    (record.attr.fid, record.attr.mode) = (fid(oid), kind.mode_bits() | 0o644);
    (record.attr.size, record.attr.blocks) = (100, 8);
    record
}

fn place(oid: u32, parent: Fid, kind: FileKind) -> Place {
    Place::of(&record(oid, parent, kind)).expect("it has a place")
}

fn sums(dirs: &DirUse, fid: Fid) -> (u64, u64, u64, u64, u64) {
    let DirCounts { files, directories, others, bytes, blocks } =
        dirs.below(&[fid], &Fid::ZERO, usize::MAX).expect("it is on").counts;
    (files, directories, others, bytes, blocks)
}

fn add(dirs: &DirUse, oid: u32, parent: Fid, kind: FileKind) {
    dirs.change(&fid(oid), None, Some(&place(oid, parent, kind)));
}

#[test]
fn the_sums_of_a_directory_contain_those_below_it() {
    let dirs = DirUse::new();
    add(&dirs, 1, Fid::ROOT, FileKind::Directory);
    add(&dirs, 2, fid(1), FileKind::Regular);
    add(&dirs, 3, fid(1), FileKind::Symlink);
    add(&dirs, 4, Fid::ROOT, FileKind::Regular);
    assert_eq!(sums(&dirs, Fid::ROOT), (2, 1, 1, 200, 24));
    assert_eq!(sums(&dirs, fid(1)), (1, 0, 1, 100, 16));
    assert_eq!(sums(&dirs, fid(2)), (0, 0, 0, 0, 0), "a file");
    // The directory moves into another one.
    add(&dirs, 5, Fid::ROOT, FileKind::Directory);
    let (old, new) = (place(1, Fid::ROOT, FileKind::Directory), place(1, fid(5), FileKind::Directory));
    dirs.change(&fid(1), Some(&old), Some(&new));
    assert_eq!(sums(&dirs, fid(5)), (1, 1, 1, 100, 16));
    assert_eq!(sums(&dirs, Fid::ROOT), (2, 2, 1, 200, 24));
}

#[test]
fn a_change_in_place_keeps_the_directory_and_what_is_below_it() {
    let dirs = DirUse::new();
    add(&dirs, 1, Fid::ROOT, FileKind::Directory);
    add(&dirs, 2, fid(1), FileKind::Regular);
    let old = place(1, Fid::ROOT, FileKind::Directory);
    dirs.change(&fid(1), Some(&old), Some(&Place { kind: Kind::Former, ..old }));
    assert_eq!(sums(&dirs, Fid::ROOT), (1, 0, 0, 100, 8), "a directory under replacement is uncounted");
    let old = place(2, fid(1), FileKind::Regular);
    dirs.change(&fid(2), Some(&old), Some(&Place { bytes: 7, blocks: 1, ..old }));
    assert_eq!(sums(&dirs, Fid::ROOT), (1, 0, 0, 7, 1));
}

#[test]
fn empty_directories_take_no_memory() {
    let dirs = DirUse::new();
    for oid in 1..5000 {
        add(&dirs, oid, fid(oid + 1), FileKind::Regular);
    }
    for oid in 1..5000 {
        dirs.change(&fid(oid), Some(&place(oid, fid(oid + 1), FileKind::Regular)), None);
    }
    let entries = dirs.entries.lock();
    assert!(entries.is_empty() && entries.capacity() <= KEEP, "{}", entries.capacity());
}

#[test]
fn roots_shards_and_inodes_without_names_are_in_no_directory() {
    let mut root = record(1, Fid::ROOT, FileKind::Directory);
    root.attr.fid = Fid::ROOT;
    assert_eq!(Place::of(&root), None);
    assert_eq!(Place::of(&record(1, Fid::ZERO, FileKind::Regular)), None);
    let shard = InodeRecord { lmv: vec![1], ..record(1, fid(2), FileKind::Directory) };
    assert_eq!(Place::of(&shard), None);
    assert!(Place::of(&record(1, fid(2), FileKind::Directory)).is_some());
}

#[test]
fn sums_of_impossible_sizes_end_at_the_largest_number() {
    let dirs = DirUse::new();
    let huge = |oid| Place { bytes: u64::MAX, ..place(oid, Fid::ROOT, FileKind::Regular) };
    dirs.change(&fid(1), None, Some(&huge(1)));
    dirs.change(&fid(2), None, Some(&huge(2)));
    assert_eq!(sums(&dirs, Fid::ROOT), (2, 0, 0, u64::MAX, 16));
    dirs.change(&fid(1), Some(&huge(1)), None);
    dirs.change(&fid(2), Some(&huge(2)), None);
    assert_eq!(sums(&dirs, Fid::ROOT), (0, 0, 0, 0, 0));
}

#[test]
fn parts_of_a_list_have_each_directory_once() {
    let dirs = DirUse::new();
    // 3000 directories in the root, with a directory and a file in each.
    for oid in 1..=3000 {
        add(&dirs, oid, Fid::ROOT, FileKind::Directory);
        add(&dirs, 10_000 + oid, fid(oid), FileKind::Directory);
        add(&dirs, 20_000 + oid, fid(oid), FileKind::Regular);
    }
    for found_max in [7, 1000, 3001, 100_000] {
        let (mut all, mut total) = (BTreeSet::new(), DirCounts::default());
        let (mut asked, mut after) = (vec![Fid::ROOT], Fid::ZERO);
        for _ in 0..20_000 {
            let below = dirs.below(&asked, &after, found_max).expect("it is on");
            assert!(below.found.len() <= found_max);
            total.add(&below.counts);
            for dir in &below.found {
                assert!(all.insert(*dir), "{dir} is there twice");
            }
            asked = asked.into_iter().chain(below.found).skip(below.done).collect();
            after = below.after;
            if asked.is_empty() {
                break;
            }
        }
        assert_eq!((all.len(), total.directories, total.files), (6000, 6000, 3000), "{found_max}");
    }
}

#[test]
fn a_count_that_is_switched_off_answers_nothing_and_begins_again() {
    let dirs = DirUse::new();
    add(&dirs, 1, Fid::ROOT, FileKind::Regular);
    dirs.complete();
    dirs.reset(false);
    assert_eq!(dirs.below(&[Fid::ROOT], &Fid::ZERO, 9), Err(Status::EOPNOTSUPP));
    assert!(!dirs.is_on() && !dirs.is_complete() && dirs.entries.lock().is_empty());
    dirs.reset(true);
    assert_eq!(sums(&dirs, Fid::ROOT), (0, 0, 0, 0, 0));
}
