//! Killed processes and power cuts.
//!
//! A power cut is simulated from two copies of the files: one from a moment when everything was durable
//! (right after a sync), one from later. Any mixture of sectors of the log that differ is a state the medium
//! may be in.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};

use super::{Model, contents, random_batch, tiny_options};
use crate::meta::{Batch, MetaStore, MetaStoreOptions, Table, TransNo};
use fastrand::Rng;

const CHILD_DIR: &str = "NACRE_STORE_CRASH_TEST_DIR";
/// Set if the child commits by one thread and syncs each batch except the newest.
const CHILD_SYNCS: &str = "NACRE_STORE_CRASH_TEST_SYNCS";
const SECTOR: usize = 512;
const LOGS: [&str; 2] = ["wal.0", "wal.1"];

/// Not a test of its own: body of the child that the next test kills. Without the variable it does nothing.
#[test]
fn child_commits_until_killed() {
    let Ok(dir) = std::env::var(CHILD_DIR) else { return };
    let options = MetaStoreOptions { commit_interval_ms: 20, ..tiny_options() };
    let store = MetaStore::open(Path::new(&dir), options).unwrap();
    let syncs = std::env::var_os(CHILD_SYNCS).is_some();
    nacre_env::thread::scope(|scope| {
        for thread in 0..if syncs { 1 } else { 2u8 } {
            let store = &store;
            let number =
                |value: Option<&[u8]>| value.map_or(0, |v| u64::from_le_bytes(v.try_into().unwrap()));
            let first = store.get(Table(9 + thread), b"round", number).unwrap();
            scope.spawn(move || {
                let mut batch = Batch::new();
                for round in first.. {
                    batch.clear();
                    batch.put(Table(thread), &round.to_be_bytes(), &round.to_le_bytes().repeat(9));
                    batch.put(Table(thread), &[&[7; 16][..], &round.to_be_bytes()].concat(), b"entry");
                    batch.put(Table(9 + thread), b"round", &round.to_le_bytes());
                    let transno = store.commit(&batch).unwrap();
                    // One write call, so that the parent never reads half a line.
                    std::io::Write::write_all(
                        &mut std::io::stderr(),
                        format!("ack {thread} {round}\n").as_bytes(),
                    )
                    .unwrap();
                    if syncs {
                        store.sync(transno).unwrap();
                    }
                }
            });
        }
    });
}

#[test]
fn everything_acknowledged_survives_kill_nine() {
    kill_after(&[1, 40, 700, 2500], false);
}

#[test]
fn what_was_committed_and_not_yet_synced_by_one_who_syncs_alone_survives_kill_nine() {
    // Most of these records were written by direct I/O.
    kill_after(&[3, 12, 40, 90], true);
}

/// Kills the child repeatedly, each time after as many batches as `counts` gives, reported as committed.
fn kill_after(counts: &[u64], syncs: bool) {
    let dir = tempfile::tempdir().unwrap();
    let mut acked = [None; 2];
    for &lines in counts {
        let mut command = Command::new(std::env::current_exe().unwrap());
        if syncs {
            command.env(CHILD_SYNCS, "1");
        }
        let mut child = command
            .args(["--exact", "meta::tests::crash::child_commits_until_killed", "--nocapture"])
            .env(CHILD_DIR, dir.path())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut errors = BufReader::new(child.stderr.take().unwrap());
        let mut line = String::new();
        let mut count = 0;
        while errors.read_line(&mut line).unwrap() > 0 {
            let words: Vec<&str> = line.split_whitespace().collect();
            if let ["ack", thread, round] = words[..] {
                acked[thread.parse::<usize>().unwrap()] = Some(round.parse::<u64>().unwrap());
                count += 1;
                if count == lines {
                    child.kill().unwrap();
                }
            }
            line.clear();
        }
        child.wait().unwrap();
        assert!(count >= lines, "the child ended by itself after {count} lines");
        check_acknowledged(dir.path(), &acked);
    }
}

fn check_acknowledged(dir: &Path, acked: &[Option<u64>; 2]) {
    let store = MetaStore::open(dir, tiny_options()).unwrap();
    for (thread, acked) in acked.iter().enumerate() {
        let Some(acked) = *acked else { continue };
        let table = Table(thread as u8);
        for round in 0..=acked {
            let expected = round.to_le_bytes().repeat(9);
            assert!(
                store.get(table, &round.to_be_bytes(), |v| v == Some(&expected[..])).unwrap(),
                "round {round}"
            );
            let entry = [&[7; 16][..], &round.to_be_bytes()].concat();
            assert!(store.get(table, &entry, |v| v == Some(&b"entry"[..])).unwrap());
        }
        // A batch is whole or absent: batches after the last line read are consistent too.
        let last = store.get(Table(9 + thread as u8), b"round", |v| v.unwrap().to_vec()).unwrap();
        let last = u64::from_le_bytes(last.try_into().unwrap());
        assert!(last >= acked);
        assert!(store.get(table, &last.to_be_bytes(), |v| v.is_some()).unwrap());
        assert!(store.get(table, &(last + 1).to_be_bytes(), |v| v.is_none()).unwrap());
    }
}

pub(super) fn copy_store(from: &Path, to: &Path) {
    std::fs::create_dir_all(to.join("base")).unwrap();
    for file in ["superblock", "wal.0", "wal.1", "base/data.mdb"] {
        std::fs::copy(from.join(file), to.join(file)).unwrap();
    }
}

/// The models after each transaction, and the directories with the durable and the latest files.
struct History {
    states: Vec<Model>,
    durable: TransNo,
    dir: tempfile::TempDir,
}

impl History {
    fn durable_dir(&self) -> std::path::PathBuf {
        self.dir.path().join("durable")
    }

    fn latest_dir(&self) -> std::path::PathBuf {
        self.dir.path().join("latest")
    }

    /// Opens `crashed` and checks that it is a prefix of the history that lacks no durable transaction.
    fn check(&self, crashed: &Path, what: &str) -> TransNo {
        let store =
            MetaStore::open(crashed, tiny_options()).unwrap_or_else(|error| panic!("{what}: {error}"));
        let reached = store.last_transno();
        assert!(reached >= self.durable, "{what}: {reached:?} lacks durable {:?}", self.durable);
        assert_eq!(contents(&store), self.states[reached.0 as usize], "{what}");
        // The store is usable after the cut, and a second opening sees the change.
        let mut batch = Batch::new();
        batch.put(Table(3), b"after", what.as_bytes());
        assert_eq!(store.commit(&batch).unwrap(), TransNo(reached.0 + 1));
        drop(store);
        let store = MetaStore::open(crashed, tiny_options()).unwrap();
        assert!(store.get(Table(3), b"after", |v| v == Some(what.as_bytes())).unwrap());
        assert_eq!(contents(&store).len(), self.states[reached.0 as usize].len() + 1);
        reached
    }
}

/// Commits `before` batches with a checkpoint among them, syncs, commits `after` more, which stay in the log.
fn record_history(seed: u64, before: usize, after: usize) -> History {
    let dir = tempfile::tempdir().unwrap();
    let live = dir.path().join("live");
    let store = MetaStore::open(
        &live,
        MetaStoreOptions { overlay_bytes: 1 << 20, wal_segment_bytes: 512 << 10, ..tiny_options() },
    )
    .unwrap();
    let (mut rng, mut batch, mut model) = (Rng::with_seed(seed), Batch::new(), Model::new());
    let mut states = vec![Model::new()];
    let mut commit = |count: usize, states: &mut Vec<Model>| {
        for _ in 0..count {
            random_batch(&mut rng, &mut batch, &mut model);
            let transno = store.commit(&batch).unwrap();
            states.push(model.clone());
            assert_eq!(transno.0 as usize + 1, states.len());
        }
    };
    commit(before / 2, &mut states);
    store.checkpoint().unwrap();
    commit(before - before / 2, &mut states);
    store.sync(store.last_transno()).unwrap();
    let durable = store.last_committed();
    let history = History { states: Vec::new(), durable, dir };
    copy_store(&live, &history.durable_dir());
    commit(after, &mut states);
    copy_store(&live, &history.latest_dir());
    // If the second part had moved into the base, a cut that takes it from the log would prove nothing.
    assert_eq!(store.last_committed(), durable);
    History { states, ..history }
}

/// Returns the files of a crash in which each changed sector of the log reached the medium with the given
/// probability (of 8).
fn cut_power(history: &History, rng: &mut Rng, chance: u64) -> tempfile::TempDir {
    let crashed = tempfile::tempdir().unwrap();
    copy_store(&history.durable_dir(), crashed.path());
    for log in LOGS {
        let mut bytes = std::fs::read(history.durable_dir().join(log)).unwrap();
        let latest = std::fs::read(history.latest_dir().join(log)).unwrap();
        for (old, new) in bytes.chunks_mut(SECTOR).zip(latest.chunks(SECTOR)) {
            if rng.u64(..8) < chance {
                old.copy_from_slice(new);
            }
        }
        std::fs::write(crashed.path().join(log), bytes).unwrap();
    }
    crashed
}

#[test]
fn power_cut_leaves_a_prefix_with_everything_durable() {
    let mut partial = 0;
    for seed in 0..12 {
        let history = record_history(seed, 40 + seed as usize * 13, 60);
        let mut rng = Rng::with_seed(seed + 1000);
        for chance in [0, 1, 4, 6, 7, 7, 8] {
            let crashed = cut_power(&history, &mut rng, chance);
            let reached = history.check(crashed.path(), &format!("seed {seed} chance {chance}"));
            let all = history.states.len() as u64 - 1;
            match chance {
                0 => assert_eq!(reached, history.durable),
                8 => assert_eq!(reached.0, all),
                _ => partial += u64::from(reached > history.durable && reached.0 < all),
            }
        }
    }
    assert!(partial > 5, "only {partial} cuts fell between durable and latest: the test proves little");
}

#[test]
fn log_cut_at_any_byte_leaves_the_whole_records_before() {
    let history = record_history(77, 20, 6);
    let latest: Vec<Vec<u8>> =
        LOGS.map(|log| std::fs::read(history.latest_dir().join(log)).unwrap()).to_vec();
    let durable: Vec<Vec<u8>> =
        LOGS.map(|log| std::fs::read(history.durable_dir().join(log)).unwrap()).to_vec();
    let (log, first) = (0..2)
        .find_map(|log| Some((log, latest[log].iter().zip(&durable[log]).position(|(a, b)| a != b)?)))
        .expect("the second part is somewhere");
    let last = latest[log].iter().zip(&durable[log]).rposition(|(a, b)| a != b).unwrap() + 1;
    let mut reached = history.durable;
    // Every byte near the ends, every few bytes elsewhere.
    let cuts =
        (first..last).filter(|cut| cut - first < 100 || last - cut < 100 || cut % 13 == 0).chain([last]);
    for cut in cuts {
        let crashed = tempfile::tempdir().unwrap();
        copy_store(&history.durable_dir(), crashed.path());
        let bytes = [&latest[log][..cut], &durable[log][cut..]].concat();
        std::fs::write(crashed.path().join(LOGS[log]), bytes).unwrap();
        let store = MetaStore::open(crashed.path(), tiny_options()).unwrap();
        assert!(store.last_transno() >= reached, "a longer log never holds less");
        reached = store.last_transno();
        assert_eq!(contents(&store), history.states[reached.0 as usize], "cut at {cut}");
    }
    assert_eq!(reached.0 as usize, history.states.len() - 1);
}

#[test]
fn flipped_bit_in_the_durable_log_never_passes_unnoticed_unless_it_is_in_the_last_group() {
    let history = record_history(5, 30, 30);
    let mut rng = Rng::with_seed(4);
    let (mut corrupt, mut shorter) = (0, 0);
    for _ in 0..150 {
        let crashed = tempfile::tempdir().unwrap();
        copy_store(&history.latest_dir(), crashed.path());
        let path = crashed.path().join(LOGS[rng.usize(..2)]);
        let mut bytes = std::fs::read(&path).unwrap();
        let used = bytes.iter().rposition(|&byte| byte != 0).unwrap() + 1;
        let at = rng.usize(..used);
        bytes[at] ^= 1 << rng.u64(..8);
        std::fs::write(&path, bytes).unwrap();
        match MetaStore::open(crashed.path(), tiny_options()) {
            Err(error) => {
                assert!(error.to_string().starts_with("metadata store damaged"), "{error}");
                corrupt += 1;
            }
            Ok(store) => {
                let reached = store.last_transno();
                assert!(reached >= history.durable, "durable transactions vanished without a word");
                assert_eq!(contents(&store), history.states[reached.0 as usize]);
                shorter += u64::from((reached.0 as usize) < history.states.len() - 1);
            }
        }
    }
    assert!(corrupt > 10 && shorter > 10, "{corrupt} {shorter}");
}

#[test]
fn recovery_that_is_itself_cut_short_can_be_repeated() {
    let history = record_history(21, 100, 50);
    let crashed = tempfile::tempdir().unwrap();
    copy_store(&history.latest_dir(), crashed.path());
    // A recovery writes the base first. If it is cut there, the log is unchanged and the base new.
    {
        let store = MetaStore::open(crashed.path(), tiny_options()).unwrap();
        assert!(store.stats().replayed > 0);
    }
    for log in LOGS {
        std::fs::copy(history.latest_dir().join(log), crashed.path().join(log)).unwrap();
    }
    let store = MetaStore::open(crashed.path(), tiny_options()).unwrap();
    assert_eq!(store.stats().replayed, 0);
    assert_eq!(contents(&store), *history.states.last().unwrap());
}
