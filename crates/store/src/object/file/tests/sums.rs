//! A store with checksums of data.

use super::*;
use crate::object::{Fallocate, ObjectProblem};
use std::os::unix::fs::FileExt;

const MIB: usize = 1 << 20;

fn with_sums(settle_ms: u64) -> FileStoreOptions {
    FileStoreOptions { checksums: true, settle_ms, ..options(DirectIo::LargeWrites) }
}

fn opened(dir: &Path) -> FileStore {
    made(dir, 3_600_000)
}

fn made(dir: &Path, settle_ms: u64) -> FileStore {
    let store = FileStore::open(dir, with_sums(settle_ms)).expect("opened");
    store.reserve(SEQUENCE, 1).expect("reserved");
    store
}

/// Opens the file of the only object.
fn file_of(dir: &Path) -> std::fs::File {
    let mut files = Vec::new();
    for below in std::fs::read_dir(dir.join("objects")).expect("listed") {
        for file in std::fs::read_dir(below.expect("listed").path()).expect("listed") {
            let file = file.expect("listed");
            if file.metadata().expect("stat").len() > 0 {
                files.push(file.path());
            }
        }
    }
    assert_eq!(files.len(), 1);
    std::fs::OpenOptions::new().read(true).write(true).open(&files[0]).expect("opened")
}

fn flip(dir: &Path, at: u64) {
    let (file, mut byte) = (file_of(dir), [0]);
    file.read_exact_at(&mut byte, at).expect("read");
    file.write_all_at(&[byte[0] ^ 4], at).expect("written");
}

fn damaged(store: &FileStore) -> Vec<u64> {
    let report = store.verify(false, &mut |_| ()).expect("checked");
    let offset = |problem: &ObjectProblem| match problem {
        ObjectProblem::Sum { offset, .. } => *offset,
        other => panic!("{other}"),
    };
    report.problems.iter().map(offset).collect()
}

fn try_read(store: &FileStore, offset: usize, len: usize) -> Result<Vec<u8>> {
    let mut buffer = vec![0; len];
    let read = store.read(fid(1), offset as u64, &mut buffer, 0)?;
    buffer.truncate(read);
    Ok(buffer)
}

#[test]
fn store_with_checksums_conforms() {
    for settle_ms in [1, 3_600_000] {
        let dir = tempfile::tempdir().unwrap();
        conformance::run(dir.path(), &|dir| Box::new(FileStore::open(dir, with_sums(settle_ms)).unwrap()));
    }
}

#[test]
fn a_flipped_bit_is_an_error_where_it_is_and_is_named_by_a_check() {
    let dir = tempfile::tempdir().unwrap();
    let data: Vec<u8> = (0..3 * MIB + 1000).map(|at| (at / 100 % 251) as u8).collect();
    opened(dir.path()).write(fid(1), 0, &data).expect("written");
    let store = opened(dir.path());
    assert_eq!((damaged(&store), try_read(&store, 0, 4 * MIB).expect("read") == data), (Vec::new(), true));
    drop(store);
    let places = [5u64, MIB as u64 + 4096 * 7 + 1, 3 * MIB as u64 + 999];
    places.iter().for_each(|at| flip(dir.path(), *at));
    let store = opened(dir.path());
    let blocks: Vec<u64> = places.iter().map(|at| at / 4096 * 4096).collect();
    assert_eq!(damaged(&store), blocks);
    for at in &blocks {
        // Also where a read covers only another part of the block.
        for (offset, len) in [(*at as usize, 100), (*at as usize + 500, 1), (0, 4 * MIB)] {
            let error = try_read(&store, offset, len).expect_err("damaged");
            assert!(matches!(error, ObjectError::Sum { .. }), "{error}");
            assert_eq!(error.status(), nacre_types::Status::EIO);
        }
    }
    assert_eq!(try_read(&store, 4096, MIB).expect("not damaged"), data[4096..4096 + MIB]);
    // A partially written block stays damaged, a block written as a whole is repaired.
    store.write(fid(1), 0, &[1; 10]).expect_err("the rest of the block is damaged");
    store.write(fid(1), 0, &[1; 4096]).expect("written");
    store.write(fid(1), blocks[1] + 4096, &[2; 4096]).expect("written beside it");
    drop(store);
    let store = opened(dir.path());
    assert_eq!(damaged(&store), blocks[1..]);
    assert_eq!(try_read(&store, 0, 4096).expect("well"), [1; 4096]);
    store.truncate(fid(1), 0).expect("emptied");
    assert_eq!(damaged(&store), Vec::<u64>::new());
    store.destroy(&[fid(1)]).expect("destroyed");
}

#[test]
fn what_is_cut_punched_and_overwritten_keeps_matching() {
    let dir = tempfile::tempdir().unwrap();
    let store = made(dir.path(), 1);
    let mut model = vec![0u8; 6 * MIB];
    let mut random = fastrand::Rng::with_seed(1);
    let mut below = |bound: usize| random.usize(..bound);
    for round in 0..400 {
        let (at, len) = (below(model.len()), 1 + below(if round % 3 == 0 { 2 * MIB } else { 9000 }));
        match below(5) {
            0 => {
                let end = (at + len).min(model.len());
                store.fallocate(fid(1), Fallocate::Punch, at as u64, (end - at) as u64).expect("punched");
                model[at..end].fill(0);
            }
            1 if round % 10 == 0 => {
                store.truncate(fid(1), at as u64).expect("cut");
                model[at..].fill(0);
            }
            _ => {
                let end = (at + len).min(model.len());
                let data: Vec<u8> = (at..end).map(|at| (at * 31 + round) as u8).collect();
                store.write(fid(1), at as u64, &data).expect("written");
                model[at..end].copy_from_slice(&data);
            }
        }
        if round % 20 == 0 {
            let found = try_read(&store, 0, model.len()).expect("read");
            assert!(found == model[..found.len()], "round {round}");
        }
    }
    drop(store);
    let store = opened(dir.path());
    assert_eq!(damaged(&store), Vec::<u64>::new());
    let found = try_read(&store, 0, model.len()).expect("read");
    assert!(found == model[..found.len()]);
}

#[test]
fn readers_beside_writers_meet_no_damage() {
    let dir = tempfile::tempdir().unwrap();
    let store = made(dir.path(), 1);
    store.write(fid(1), 0, &vec![1; 2 * MIB]).expect("written");
    nacre_env::thread::scope(|scope| {
        for writer in 0..2 {
            let store = &store;
            scope.spawn(move || {
                for round in 0..150 {
                    let at = (round * 37 + writer * 91) % 500 * 4096;
                    store.write(fid(1), at as u64, &vec![round as u8; 5000]).expect("written");
                }
            });
        }
        for _ in 0..150 {
            try_read(&store, 4096 * 3, MIB).expect("no damage");
        }
    });
}

#[test]
fn a_store_stays_what_it_was_made() {
    for checksums in [false, true] {
        let dir = tempfile::tempdir().unwrap();
        let requested = |checksums| FileStoreOptions { checksums, ..with_sums(1) };
        drop(FileStore::open(dir.path(), requested(checksums)).expect("made"));
        drop(FileStore::open(dir.path(), requested(!checksums)).expect("opened"));
        assert_eq!(has_checksums(dir.path()), checksums);
    }
}

/// Names the store's directory in the environment of the victim.
const VICTIM_DIR: &str = "NACRE_TEST_SUMS";

/// Overwrites an object until it is killed, if it was started for that.
#[test]
fn victim() {
    let Some(dir) = std::env::var_os(VICTIM_DIR) else { return };
    let store = made(Path::new(&dir), 1);
    for round in 0usize.. {
        let at = round * 77_777 % (3 * MIB);
        store.write(fid(1), at as u64, &vec![round as u8; 20_000]).expect("written");
        if round % 7 == 0 {
            store.truncate(fid(1), (round * 31 % (3 * MIB)) as u64).expect("cut");
        }
        println!("{round}");
    }
}

#[test]
fn a_kill_makes_no_checksum_wrong() {
    use std::io::BufRead;
    let dir = tempfile::tempdir().unwrap();
    for lines in [3, 200, 900] {
        let mut victim = std::process::Command::new(std::env::current_exe().expect("this program"))
            .args(["--exact", "object::file::tests::sums::victim", "--nocapture"])
            .env(VICTIM_DIR, dir.path())
            .stdout(std::process::Stdio::piped())
            .spawn()
            .expect("started");
        let output = std::io::BufReader::new(victim.stdout.take().expect("a pipe")).lines();
        let is_number =
            |line: &std::io::Result<String>| line.as_ref().is_ok_and(|line| line.parse::<u32>().is_ok());
        assert_eq!(output.filter(is_number).take(lines).count(), lines);
        victim.kill().expect("killed");
        victim.wait().expect("ended");
        let store = opened(dir.path());
        assert_eq!(damaged(&store), Vec::<u64>::new());
        try_read(&store, 0, 4 * MIB).expect("no damage");
    }
}
