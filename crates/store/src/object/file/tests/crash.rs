//! Kills of the process that writes.
//!
//! The test starts itself again as the victim: a separate process, which finds the directory in its
//! environment.

use super::*;
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

/// Names the store's directory in the victim's environment.
const VICTIM_DIR: &str = "NACRE_TEST_OBJECT_STORE";

/// Returns the bytes of object `oid` in its `round`.
fn content(oid: u32, round: u32) -> Vec<u8> {
    let len = 1000 + (oid * 7919 + round * 104_729) % 60_000;
    let seed = oid.wrapping_mul(31).wrapping_add(round);
    (0..len).map(|i| (i.wrapping_mul(seed | 1) >> 3) as u8 | 1).collect()
}

/// Writes, destroys and reports completed operations; runs until it is killed.
#[test]
fn victim() {
    let Some(dir) = std::env::var_os(VICTIM_DIR) else { return };
    let store = open(Path::new(&dir));
    let first = store.reserve(SEQUENCE, 20_000).unwrap().start;
    for round in 0.. {
        for i in 0..50 {
            let oid = first + (round * 50 + i) % 15_000;
            store.write(fid(oid), 0, &content(oid, 0)).unwrap();
            if i % 5 == 0 {
                store.sync(fid(oid)).unwrap();
            }
            println!("+{oid}");
            if oid > first + 60 {
                let doomed = oid - 40;
                println!("?{doomed}");
                store.destroy(&[fid(doomed)]).unwrap();
                println!("-{doomed}");
            }
        }
    }
}

#[test]
fn a_killed_writer_leaves_everything_it_was_told_is_done() {
    let dir = tempfile::tempdir().unwrap();
    let mut alive = std::collections::HashSet::new();
    let mut doubtful = std::collections::HashSet::new();
    for lines in [5, 150, 700, 1500] {
        let mut victim = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "object::file::tests::crash::victim", "--nocapture"])
            .env(VICTIM_DIR, dir.path())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut output = BufReader::new(victim.stdout.take().unwrap()).lines();
        let mut note = |line: String| {
            let Ok(oid) = line.get(1..).unwrap_or("").parse::<u32>() else { return };
            match line.as_bytes()[0] {
                b'+' => drop(alive.insert(oid)),
                b'?' => drop(doubtful.insert(oid)),
                b'-' => {
                    alive.remove(&oid);
                    doubtful.remove(&oid);
                }
                _ => {}
            }
        };
        for line in output.by_ref().take(lines) {
            note(line.unwrap());
        }
        let second = FileStore::open(dir.path(), FileStoreOptions::default());
        assert!(matches!(second, Err(ObjectError::InUse { .. })), "the victim has the store for itself");
        victim.kill().unwrap();
        // Reports before its death count too; a line that was cut off does not.
        output.map_while(|line| line.ok()).for_each(&mut note);
        victim.wait().unwrap();

        let store = open(dir.path());
        for &oid in alive.iter().filter(|oid| !doubtful.contains(oid)) {
            assert!(read(&store, fid(oid), 100_000) == content(oid, 0), "object {oid}");
        }
        for &oid in &doubtful {
            let data = read(&store, fid(oid), 100_000);
            assert!(data.is_empty() || data == content(oid, 0), "object {oid} is whole or gone");
        }
        let report = store.verify(false, &mut |_| {}).unwrap();
        assert!(report.is_clean(), "{report:?}");
        let reserved = store.last_reserved(SEQUENCE).unwrap();
        assert_eq!(reserved % 20_000, 0);
        for slot in 0..store.slots.end() {
            if store.slots.is_free(slot) {
                assert_eq!(std::fs::metadata(store.slots.path(slot)).map_or(0, |file| file.len()), 0);
            }
        }
    }
    assert!(!alive.is_empty());
}
