//! An MDT with many inodes: its memory, and the time to open it after a clean stop and after a kill.
//!
//! Each step is a process of its own, so that its memory is that of the step: one fills the MDT through its
//! engine and stops it, one opens it, looks up names all over it, creates more and is killed, and one opens
//! what that left.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use fastrand::Rng;
use nacre_types::Fid;
use nacre_types::fid::OIDS_PER_SEQUENCE;
use serde::{Deserialize, Serialize};

use super::engine::{Engine, name_of};
use super::{MdtArguments, timed};
use crate::error::Error;
use crate::machine::{drop_caches, own_anonymous_bytes, resident_bytes};
use crate::report::{Report, Row, Target, Unit};
use crate::sample::Samples;
use crate::team::{self, Team};
use crate::worker::Myself;

/// Limit of the time to open an MDT, in seconds.
const OPEN_SECONDS: f64 = 5.0;
/// Random lookups after opening.
const LOOKS: u64 = 100_000;
/// Files created before the kill: some tens of MiB of log.
const LATE_FILES: u32 = 50_000;
/// Rounds, at most: the names of each have their own letter.
const ROUNDS_MAX: usize = 26;
/// Interval of sampling memory.
const WATCH: Duration = Duration::from_millis(200);
/// Memory of one inode record in the cache, in bytes: the record itself, its name, its entries in two tables.
const CACHED_INODE_BYTES: u64 = 512;
/// Memory of an MDT regardless of its cache, in bytes: the store's overlay twice, the copy that a checkpoint
/// sorts, buffers.
const FIXED_BYTES: u64 = 192 << 20;

/// Setup of a process.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Setup {
    dir: PathBuf,
    cached_inodes: usize,
    inodes: u64,
    entries: u64,
    threads: usize,
}

/// A step, one per process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
enum Step {
    /// Creates the MDT, fills it, and stops it.
    Fill,
    /// Opens it, looks up names, creates files whose names have this number; then the process is killed.
    Use(usize),
    /// Opens it and stops it.
    Open,
}

/// Results of a step; 0 for what it does not measure.
#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize)]
struct Found {
    open_seconds: f64,
    fill_rate: f64,
    fill_cpu_us: f64,
    stop_seconds: f64,
    look_rate: f64,
    look_cpu_us: f64,
    /// Peak of anonymous memory in bytes.
    anonymous_bytes: u64,
    /// Peak of resident memory in bytes, pages of files included.
    resident_bytes: u64,
}

/// Serves the bench until it ends.
pub(crate) fn serve(setup: &str) -> Result<(), Error> {
    let setup: Setup = serde_json::from_str(setup).map_err(Error::usage)?;
    team::serve(|step: Step, _| {
        let memory = Memory::default();
        let mut found = Found::default();
        std::thread::scope(|scope| {
            scope.spawn(|| memory.watch());
            let result = match step {
                Step::Fill => fill(&setup, &mut found),
                Step::Use(round) => look_and_make(&setup, round, &mut found),
                Step::Open => open(&setup, &mut found).and_then(Engine::stop),
            };
            memory.is_over.store(true, Ordering::Relaxed);
            result
        })?;
        found.anonymous_bytes = memory.anonymous.load(Ordering::Relaxed);
        found.resident_bytes = memory.resident.load(Ordering::Relaxed);
        Ok(found)
    })
}

/// Peak memory of this process.
#[derive(Default)]
struct Memory {
    is_over: AtomicBool,
    anonymous: AtomicU64,
    resident: AtomicU64,
}

impl Memory {
    fn watch(&self) {
        loop {
            let is_over = self.is_over.load(Ordering::Relaxed);
            self.anonymous.fetch_max(own_anonymous_bytes(), Ordering::Relaxed);
            self.resident.fetch_max(resident_bytes(std::process::id()).unwrap_or(0), Ordering::Relaxed);
            if is_over {
                return;
            }
            std::thread::sleep(WATCH);
        }
    }
}

/// Returns the directory of inode number `inode`, and its number in there.
fn place_of(setup: &Setup, inode: u64) -> (u64, u32) {
    (inode / setup.entries, (inode % setup.entries) as u32)
}

/// Returns the FID of a directory: directories have the first FIDs of the first sequence.
fn directory_fid(first: u64, number: u64) -> Fid {
    Fid::new(first, number as u32 + 1, 0)
}

fn fill(setup: &Setup, found: &mut Found) -> Result<(), Error> {
    let engine = Engine::make(&setup.dir, setup.cached_inodes)?;
    let first = engine.sequence()?;
    let directories = setup.inodes.div_ceil(setup.entries);
    for number in 0..directories {
        engine.make_directory(format!("d{number}").as_bytes(), directory_fid(first, number))?;
    }
    let next = AtomicU64::new(0);
    let act = |_| {
        let (mut made, mut sequence, mut oid) = (0, 0, 0);
        // A thread fills its directories one by one.
        loop {
            let directory = next.fetch_add(1, Ordering::Relaxed);
            if directory >= directories {
                return Ok(made);
            }
            let count = setup.entries.min(setup.inodes - directory * setup.entries);
            for number in 0..count as u32 {
                if oid % (OIDS_PER_SEQUENCE - 1) == 0 {
                    (sequence, oid) = (engine.sequence()?, 0);
                }
                oid += 1;
                let parent = directory_fid(first, directory);
                engine.make_file(parent, &name_of(0, number), Fid::new(sequence, oid, 0))?;
                made += 1;
            }
        }
    };
    let measured = timed("fill", setup.threads, || engine.commit(), act)?;
    found.fill_rate = measured.ops as f64 / measured.seconds;
    found.fill_cpu_us = measured.cpu_us / measured.ops as f64;
    let start = Instant::now();
    engine.stop()?;
    found.stop_seconds = start.elapsed().as_secs_f64();
    Ok(())
}

/// Opens the MDT; the time ends with the reply to a lookup.
fn open(setup: &Setup, found: &mut Found) -> Result<Engine, Error> {
    let start = Instant::now();
    let engine = Engine::open(&setup.dir, setup.cached_inodes)?;
    engine.look_up(Fid::ROOT, b"d0")?;
    found.open_seconds = start.elapsed().as_secs_f64();
    Ok(engine)
}

fn look_and_make(setup: &Setup, round: usize, found: &mut Found) -> Result<(), Error> {
    let engine = open(setup, found)?;
    let first = engine.look_up(Fid::ROOT, b"d0")?.seq;
    let measured = timed(
        "lookup",
        setup.threads,
        || Ok(()),
        |thread| {
            let mut random = Rng::with_seed(thread as u64);
            for _ in 0..LOOKS {
                let (directory, number) = place_of(setup, random.u64(..setup.inodes));
                engine.look_up(directory_fid(first, directory), &name_of(0, number))?;
            }
            Ok(LOOKS)
        },
    )?;
    found.look_rate = measured.ops as f64 / measured.seconds;
    found.look_cpu_us = measured.cpu_us / measured.ops as f64;
    let sequence = engine.sequence()?;
    for number in 0..LATE_FILES {
        engine.make_file(Fid::ROOT, &name_of(round, number), Fid::new(sequence, number + 1, 0))?;
    }
    // No destructor tidies up before the kill.
    std::mem::forget(engine);
    Ok(())
}

/// Runs all steps.
pub(super) fn measure(
    arguments: &MdtArguments,
    myself: &Myself,
    place: &Path,
    inodes: u64,
) -> Result<Report, Error> {
    let setup = Setup {
        dir: place.join("mdt"),
        cached_inodes: arguments.cached_inodes,
        inodes: inodes.max(1),
        entries: arguments.entries.clamp(1, u64::from(u32::MAX)),
        threads: nacre_env::cpu_count().min(2),
    };
    let run = |step: Step| -> Result<Found, Error> {
        eprintln!("bench mdt: {step:?}");
        if arguments.cold && step != Step::Fill {
            drop_caches()?;
        }
        let mut team = Team::start(myself, "mdt", std::slice::from_ref(&setup), false)?;
        let found = team.run::<Found>(&step)?.first().copied().unwrap_or_default();
        if matches!(step, Step::Use(_)) {
            team.kill();
        }
        Ok(found)
    };
    let filled = run(Step::Fill)?;
    let (mut after_stop, mut after_kill) = (Vec::new(), Vec::new());
    for round in 0..arguments.common.runs.clamp(1, ROUNDS_MAX) {
        after_stop.push(run(Step::Use(round))?);
        after_kill.push(run(Step::Open)?);
    }
    let disk = size_of(&setup.dir)?;
    Ok(report_of(&setup, filled, &after_stop, &after_kill, disk, arguments.cold))
}

/// Returns the disk usage below a directory in bytes.
fn size_of(dir: &Path) -> Result<u64, Error> {
    use std::os::unix::fs::MetadataExt;
    let mut bytes = 0;
    for entry in std::fs::read_dir(dir).map_err(Error::io("read", dir))? {
        let path = entry.map_err(Error::io("read", dir))?.path();
        let metadata = std::fs::symlink_metadata(&path).map_err(Error::io("stat", &path))?;
        bytes += if metadata.is_dir() { size_of(&path)? } else { metadata.blocks() * 512 };
    }
    Ok(bytes)
}

fn report_of(
    setup: &Setup,
    filled: Found,
    after_stop: &[Found],
    after_kill: &[Found],
    disk: u64,
    cold: bool,
) -> Report {
    let mut report = Report::new(format!(
        "An MDT with {} inodes, {} in each directory, {} in its cache{}",
        setup.inodes,
        setup.entries,
        setup.cached_inodes,
        if cold { ", opened with empty caches" } else { "" }
    ));
    let row = |name: &str, unit, found: &[Found], of: fn(&Found) -> f64| {
        Row::new(name, unit, found.iter().map(of).collect::<Samples>())
    };
    let bound = setup.cached_inodes as u64 * CACHED_INODE_BYTES + FIXED_BYTES;
    let memory = |what: &str, found: &[Found]| {
        let anonymous = |found: &Found| found.anonymous_bytes as f64;
        let mut own = row(&format!("memory of its own, {what}"), Unit::Bytes, found, anonymous);
        own.target = Some(Target::AtMost(bound as f64));
        let all = row(&format!("resident with pages of the base, {what}"), Unit::Bytes, found, |found| {
            found.resident_bytes as f64
        });
        [own, all]
    };
    let opened = |what: &str, found: &[Found]| {
        let mut row = row(&format!("opens {what}"), Unit::Seconds, found, |found| found.open_seconds);
        row.target = Some(Target::AtMost(OPEN_SECONDS));
        row
    };
    let mut rate = row("create while filled", Unit::OpsPerSecond, &[filled], |found| found.fill_rate);
    rate.cpu_us.push(filled.fill_cpu_us);
    let mut look =
        row("stat by name, in no order, after it was opened", Unit::OpsPerSecond, after_stop, |found| {
            found.look_rate
        });
    look.cpu_us = after_stop.iter().map(|found| found.look_cpu_us).collect();
    report.rows.push(rate);
    report.rows.push(row("stops", Unit::Seconds, &[filled], |found| found.stop_seconds));
    report.rows.push(opened("after a stop", after_stop));
    report.rows.push(opened("after a kill", after_kill));
    report.rows.push(look);
    report.rows.extend(memory("filled", &[filled]));
    report.rows.extend(memory("used after a stop", after_stop));
    report.rows.extend(memory("opened after a kill", after_kill));
    report.rows.push(Row::new("on disk", Unit::Bytes, [disk as f64].into_iter().collect()));
    report.notes.push(format!(
        "the bound of memory is {CACHED_INODE_BYTES} bytes for each cached inode and {} MiB for the store's recent changes; \
         pages of the base are the kernel's cache of a file, which it takes back when it needs them",
        FIXED_BYTES >> 20
    ));
    report
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_mdt_is_filled_used_and_found_again_after_a_kill() {
        let place = tempfile::tempdir().expect("a directory");
        let setup = Setup {
            dir: place.path().join("mdt"),
            cached_inodes: 1000,
            inodes: 2500,
            entries: 1000,
            threads: 2,
        };
        let mut found = Found::default();
        fill(&setup, &mut found).expect("fills");
        assert!(found.fill_rate > 0.0 && found.stop_seconds > 0.0);
        let engine = open(&setup, &mut found).expect("opens");
        let first = engine.look_up(Fid::ROOT, b"d0").expect("is there").seq;
        let (directory, number) = place_of(&setup, 2499);
        assert_eq!((directory, number), (2, 499));
        engine.look_up(directory_fid(first, directory), &name_of(0, number)).expect("the last one");
        engine.look_up(directory_fid(first, directory), &name_of(0, number + 1)).expect_err("no more");
        engine.stop().expect("stops");
        assert!(size_of(&setup.dir).expect("is there") > 1 << 20);
    }

    #[test]
    fn the_report_says_what_misses() {
        let setup = Setup { dir: PathBuf::new(), cached_inodes: 1 << 20, inodes: 1, entries: 1, threads: 1 };
        let found = |open_seconds| Found { open_seconds, anonymous_bytes: 1 << 30, ..Found::default() };
        let report = report_of(&setup, found(0.0), &[found(1.0)], &[found(6.0)], 0, true);
        let row = |name: &str| report.rows.iter().find(|row| row.name == name).expect("a row");
        assert_eq!(row("opens after a stop").meets_target(), Some(true));
        assert_eq!(row("opens after a kill").meets_target(), Some(false));
        assert_eq!(row("memory of its own, filled").meets_target(), Some(false));
    }
}
