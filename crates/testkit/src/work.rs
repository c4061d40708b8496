//! Concurrent work in a directory under test.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// Creates, writes, renames, reads, links and removes names in a directory until `stop` is set, and returns
/// the names that are left: one of every `keeps.0` rounds, up to `keeps.1` names. The content of each is its
/// first name, which differs from it in the first letter.
///
/// # Panics
///
/// If a call fails, or a result is not the expected one.
pub fn work_in(
    dir: &Path,
    worker: usize,
    keeps: (usize, usize),
    stop: &AtomicBool,
    done: &AtomicUsize,
) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    for round in 0.. {
        if stop.load(Ordering::Relaxed) {
            break;
        }
        let name = |kind: &str| format!("{kind}{worker}-{round}");
        let path = |kind: &str| dir.join(name(kind));
        fs::write(path("a"), name("a")).expect("written");
        assert!(fs::metadata(path("b")).is_err());
        fs::rename(path("a"), path("b")).expect("renamed");
        assert_eq!(fs::read_to_string(path("b")).expect("read"), name("a"));
        fs::hard_link(path("b"), path("c")).expect("linked");
        fs::remove_file(path("b")).expect("removed");
        fs::create_dir(path("d")).expect("made");
        match round % keeps.0 {
            0 if names.len() < keeps.1 => drop(names.insert(name("c"))),
            _ => fs::remove_file(path("c")).expect("removed"),
        }
        fs::remove_dir(path("d")).expect("removed");
        done.fetch_add(1, Ordering::Relaxed);
    }
    names
}
