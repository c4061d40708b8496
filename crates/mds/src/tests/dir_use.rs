//! Inodes and space below directories, compared with a walk.

use super::*;
use fastrand::Rng;
use nacre_types::{DirCounts, SetAttr, SetAttrValid};
use nacre_wire::dir_use::{DirUseReply, DirUseRequest};
use nacre_wire::mds::RenameFlags;

fn request(dir: Fid) -> MdsRequest<'static> {
    MdsRequest::DirUse(DirUseRequest { dirs: vec![dir], after: Fid::ZERO, lists: false })
}

fn reply_of(f: &Fixture, dir: Fid) -> StatusResult<DirUseReply> {
    match f.run(&request(dir))? {
        MdsReply::DirUse(reply) => Ok(reply),
        other => panic!("{other:?}"),
    }
}

/// Returns the sums, when all inodes are counted.
fn counted(f: &Fixture, dir: Fid) -> DirCounts {
    let mut counts = DirCounts::default();
    eventually("the count", || {
        let reply = reply_of(f, dir).expect("it is on");
        counts = reply.counts;
        reply.is_complete
    });
    counts
}

/// Returns what a program finds below a directory. A file counts at its first name.
fn walked(f: &Fixture, dir: Fid) -> DirCounts {
    let mut counts = DirCounts::default();
    for name in f.names(dir, 4096) {
        let attr = f.lookup(dir, &name).expect("found").expect("there");
        if attr.is_dir() {
            counts.directories += 1;
            counts.add(&walked(f, attr.fid));
            continue;
        }
        let record = f.mds.leaves.records.inode(&attr.fid).expect("a record");
        if !record.is_first_link(&dir, name.as_bytes()) {
            continue;
        }
        counts.blocks += attr.blocks;
        match attr.is_regular() {
            true => (counts.files, counts.bytes) = (counts.files + 1, counts.bytes + attr.size),
            false => counts.others += 1,
        }
    }
    counts
}

/// Does something at random with names `n0` to `n7` in one of the directories that ever were.
fn act(f: &Fixture, dice: &mut Rng, dirs: &mut Vec<Fid>, open: &mut Vec<(Fid, OpenHandle)>) {
    let dir = |dice: &mut Rng, dirs: &[Fid]| dirs[dice.usize(..dirs.len())];
    let (parent, other) = (dir(dice, dirs), dir(dice, dirs));
    let (name, to) = (format!("n{}", dice.u64(..8)), format!("n{}", dice.u64(..8)));
    let found = f.lookup(parent, &name).ok().flatten();
    match dice.u64(..12) {
        0 => dirs.extend(f.dir(parent, &name).map(|attr| attr.fid)),
        // Operations that are impossible are refused.
        1 | 2 => _ = f.file(parent, &name),
        3 => _ = f.symlink(parent, &name, "elsewhere"),
        4 => _ = f.unlink(parent, &name),
        5 => _ = f.rmdir(parent, &name),
        6 | 7 => {
            let Some(attr) = found.filter(Attr::is_regular) else { return };
            let set = SetAttr { valid: SetAttrValid::SIZE, size: dice.u64(..9000), ..SetAttr::default() };
            _ = f.run(&MdsRequest::SetAttr { fid: attr.fid, set });
        }
        8 => {
            let Some(attr) = found else { return };
            _ = f.run(&MdsRequest::Link { fid: attr.fid, parent: other, name: to.as_bytes() });
        }
        9 => {
            let Some(attr) = found.filter(Attr::is_regular) else { return };
            open.extend(f.open(attr.fid, OpenFlags::READ).map(|handle| (attr.fid, handle)));
        }
        10 if !open.is_empty() => {
            let (fid, handle) = open.swap_remove(dice.usize(..open.len()));
            _ = f.close(fid, handle);
        }
        _ => {
            let flags = if dice.u64(..4) == 0 { RenameFlags::EXCHANGE } else { RenameFlags::empty() };
            _ = f.run(&MdsRequest::Rename {
                from_parent: parent,
                from_name: name.as_bytes(),
                to_parent: other,
                to_name: to.as_bytes(),
                flags,
            });
        }
    }
}

#[test]
fn sums_equal_a_walk_after_random_operations_restarts_and_crashes() {
    for seed in 0..6 {
        let (mut dice, mut f) = (Rng::with_seed(seed), Fixture::new());
        let mut dirs = vec![Fid::ROOT];
        for round in 0..6 {
            let mut open = Vec::new();
            for step in 0..300 {
                act(&f, &mut dice, &mut dirs, &mut open);
                if step % 50 == 0 {
                    assert_eq!(counted(&f, Fid::ROOT), walked(&f, Fid::ROOT), "seed {seed}");
                }
            }
            for dir in dirs.iter().filter(|dir| f.stat(**dir).is_ok()) {
                assert_eq!(counted(&f, *dir), walked(&f, *dir), "seed {seed}: {dir}");
            }
            f = if round % 2 == 0 { f.restart() } else { f.crash() };
        }
        assert_eq!(counted(&f, Fid::ROOT), walked(&f, Fid::ROOT), "seed {seed}, at the end");
        f.check();
    }
}

#[test]
fn commits_while_the_reader_runs_count_once() {
    let mut f = Fixture::new();
    for number in 0..40 {
        let dir = f.dir(Fid::ROOT, &format!("d{number}")).expect("made").fid;
        for file in 0..100 {
            f.file(dir, &format!("f{file}")).expect("made");
        }
    }
    f = f.restart();
    let mut dice = Rng::with_seed(7);
    for step in 0..3000 {
        if step % 700 == 0 {
            f.mds.set_counts_directories(false);
            f.mds.set_counts_directories(true);
        }
        let dir = f.lookup(Fid::ROOT, &format!("d{}", dice.u64(..40))).expect("found").expect("there").fid;
        let name = format!("f{}", dice.u64(..120));
        match dice.bool() {
            true => _ = f.file(dir, &name),
            false => _ = f.unlink(dir, &name),
        }
    }
    assert_eq!(counted(&f, Fid::ROOT), walked(&f, Fid::ROOT));
}

#[test]
fn a_count_that_is_switched_off_is_refused_and_begins_again_when_it_is_on() {
    let f = Fixture::new();
    let dir = f.dir(Fid::ROOT, "d").expect("made").fid;
    f.file(dir, "a").expect("made");
    assert_eq!(counted(&f, Fid::ROOT).files, 1);
    f.mds.set_counts_directories(false);
    assert!(!f.mds.counts_directories());
    assert_eq!(reply_of(&f, dir), Err(Status::EOPNOTSUPP));
    f.file(dir, "b").expect("made");
    f.mds.set_counts_directories(true);
    assert_eq!(counted(&f, dir).files, 2);
    assert_eq!(counted(&f, Fid::ROOT), walked(&f, Fid::ROOT));
}

#[test]
fn files_without_names_are_in_no_directory() {
    let f = Fixture::new();
    let file = f.file(Fid::ROOT, "open").expect("made").fid;
    let handle = f.open(file, OpenFlags::READ).expect("open");
    f.unlink(Fid::ROOT, "open").expect("removed");
    assert_eq!(counted(&f, Fid::ROOT), DirCounts::default());
    f.close(file, handle).expect("closed");
    let unnamed =
        f.create_as(&f.cred, Fid::ROOT, "", NewFile::Unnamed, FileKind::Regular.mode_bits() | 0o600);
    assert!(unnamed.is_ok(), "{unnamed:?}");
    assert_eq!(counted(&f, Fid::ROOT), DirCounts::default());
}
