//! Workloads whose results can be checked whatever happens to the servers meanwhile.

use super::deck::{Deck, Progress};
use super::register::{self, Kind, Operation};
use fastrand::Rng;
use nacre_testkit::{exerciser, program, text};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// Time limit of a program: longer than all faults that may hit one run of it.
const LIMIT: Duration = Duration::from_secs(300);

/// Size of all files after which they are removed, in bytes, although the OST to be filled is not full: while it is
/// away, new files are on others.
const FILLED_BYTES: usize = 1 << 30;

type Step<T = ()> = Result<T, String>;

fn failed(what: &str) -> impl Fn(std::io::Error) -> String {
    move |error| format!("{what}: {error}")
}

/// Lets operations of the other mounts come between: without it, one mount keeps the lock for long, and the histories
/// of an hour do not fit into memory. Nothing waits for it.
fn pause(random: &mut Rng) {
    std::thread::sleep(Duration::from_millis(random.u64(..4)));
}

/// Reads and writes a value at the beginning of a file, in one call each.
pub fn registers(deck: &Deck, progress: &Progress, paths: &[PathBuf], id: u64) -> Vec<(usize, Operation)> {
    let mut random = Rng::with_seed(id);
    let open = |path: &PathBuf| OpenOptions::new().read(true).write(true).open(path).expect("opens");
    let files: Vec<File> = paths.iter().map(open).collect();
    let mut history = Vec::new();
    deck.repeat(progress, |number| {
        let which = random.usize(..files.len());
        let begin = Instant::now();
        let (kind, value) = if random.u8(..4) == 0 {
            let value = id << 40 | (number + 1);
            files[which].write_all_at(&value.to_le_bytes(), 0).map_err(failed("write a register"))?;
            (Kind::Write, value)
        } else {
            let mut bytes = [0; 8];
            files[which].read_exact_at(&mut bytes, 0).map_err(failed("read a register"))?;
            (Kind::Read, u64::from_le_bytes(bytes))
        };
        history.push((which, Operation { kind, value, begin, end: Instant::now() }));
        pause(&mut random);
        Ok(())
    });
    history
}

/// Replaces a file by rename, and reads it by name.
pub fn names(deck: &Deck, progress: &Progress, paths: &[PathBuf], id: u64) -> Vec<(usize, Operation)> {
    let mut random = Rng::with_seed(id);
    let mut history = Vec::new();
    deck.repeat(progress, |number| {
        let which = random.usize(..paths.len());
        let begin = Instant::now();
        let (kind, value) = if random.u8(..4) == 0 {
            let value = id << 40 | (number + 1);
            let new = paths[which].with_extension(format!("new{id}"));
            fs::write(&new, value.to_le_bytes()).map_err(failed("write the new file"))?;
            fs::rename(&new, &paths[which]).map_err(failed("replace a file"))?;
            (Kind::Write, value)
        } else {
            let bytes = fs::read(&paths[which]).map_err(failed("read a file that is replaced"))?;
            let bytes: [u8; 8] = bytes.try_into().map_err(|bytes| format!("replaced file has {bytes:?}"))?;
            (Kind::Read, u64::from_le_bytes(bytes))
        };
        history.push((which, Operation { kind, value, begin, end: Instant::now() }));
        Ok(())
    });
    history
}

/// Checks what all clients have seen of the registers.
pub fn check_registers(start: Instant, histories: Vec<Vec<(usize, Operation)>>) -> Step<usize> {
    let mut by_register: BTreeMap<usize, Vec<Operation>> = BTreeMap::new();
    for (which, operation) in histories.into_iter().flatten() {
        by_register.entry(which).or_default().push(operation);
    }
    by_register.iter().try_for_each(|(which, operations)| {
        match register::contradiction(start, operations) {
            None => Ok(()),
            Some(why) => Err(format!("register {which}: {why}")),
        }
    })?;
    Ok(by_register.values().map(Vec::len).sum())
}

/// Appends lines to a file of several writers; returns how many were acknowledged.
pub fn appends(deck: &Deck, progress: &Progress, path: &Path, id: u64) -> u64 {
    let mut random = Rng::with_seed(id);
    let mut file = OpenOptions::new().append(true).open(path).expect("opens");
    let mut done = 0;
    deck.repeat(progress, |number| {
        let line = format!("{id} {number} {}\n", "x".repeat(random.usize(..400)));
        // One call: another writer's line may follow each.
        match file.write(line.as_bytes()) {
            Ok(len) if len == line.len() => done = number + 1,
            Ok(len) => return Err(format!("{len} of {} bytes appended", line.len())),
            Err(error) => return Err(format!("append: {error}")),
        }
        pause(&mut random);
        Ok(())
    });
    done
}

/// Checks that a file has each writer's lines in their order, once, and no others.
pub fn check_appends(path: &Path, done: &[(u64, u64)]) -> Step {
    let content = fs::read_to_string(path).map_err(failed("read the lines"))?;
    let mut next: BTreeMap<u64, u64> = BTreeMap::new();
    for line in content.lines() {
        let mut words = line.split(' ').map(str::parse::<u64>);
        let (Some(Ok(writer)), Some(Ok(number))) = (words.next(), words.next()) else {
            return Err(format!("torn line {line:?}"));
        };
        let expected = next.entry(writer).or_default();
        if number != *expected {
            return Err(format!("line {number} of writer {writer} where {expected} should be"));
        }
        *expected += 1;
    }
    match done.iter().find(|(writer, count)| next.get(writer).copied().unwrap_or_default() != *count) {
        None => Ok(()),
        Some((writer, count)) => {
            Err(format!("writer {writer} appended {count} lines, not {:?}", next.get(writer)))
        }
    }
}

/// What a client did with names that all clients try to create and to remove: numbers that it created and removed.
#[derive(Default)]
pub struct Names {
    made: BTreeSet<u64>,
    removed: BTreeSet<u64>,
    /// All below it were tried.
    tried: u64,
}

/// Number of a name that stays.
fn stays(number: u64) -> bool {
    number.is_multiple_of(4)
}

/// How far removals are behind.
const BEHIND: u64 = 8;

/// Creates names that the other clients create too; removes most of them.
pub fn unique(deck: &Deck, progress: &Progress, dir: &Path) -> Names {
    let mut names = Names::default();
    let path = |number: u64| dir.join(format!("n{number}"));
    deck.repeat(progress, |number| {
        match File::create_new(path(number)) {
            Ok(_) => drop(names.made.insert(number)),
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
            // Another client may have created and removed it: then it is created again, and that counts.
            Err(error) => return Err(format!("create: {error}")),
        }
        if let Some(old) = number.checked_sub(BEHIND).filter(|old| !stays(*old)) {
            match fs::remove_file(path(old)) {
                Ok(()) => drop(names.removed.insert(old)),
                Err(error) if error.kind() == ErrorKind::NotFound => {}
                Err(error) => return Err(format!("remove: {error}")),
            }
        }
        names.tried = number + 1;
        Ok(())
    });
    names
}

/// Checks that each name that stays was created by exactly one client, and that creates and removals of the others are
/// as many as the names that are left say.
pub fn check_unique(dir: &Path, all: &[Names]) -> Step<u64> {
    let listed = fs::read_dir(dir).map_err(failed("list the names"))?;
    let left: BTreeSet<String> = listed
        .map(|entry| entry.map(|entry| entry.file_name().to_string_lossy().into_owned()))
        .collect::<Result<_, _>>()
        .map_err(failed("list the names"))?;
    let tried = all.iter().map(|names| names.tried + 1).max().unwrap_or_default();
    for number in 0..tried {
        let made = all.iter().filter(|names| names.made.contains(&number)).count();
        let removed = all.iter().filter(|names| names.removed.contains(&number)).count();
        let is_left = left.contains(&format!("n{number}"));
        if made != removed + usize::from(is_left) || (stays(number) && made > 1) {
            return Err(format!(
                "name {number} was created {made} times and removed {removed} times, left: {is_left}"
            ));
        }
    }
    Ok(tried)
}

fn bash(dir: &Path, script: &str, arguments: &[&str]) -> Step<String> {
    let mut command = Command::new("bash");
    command.args(["-euo", "pipefail", "-c", script, "bash"]).args(arguments).current_dir(dir);
    let outcome = program::run_command(command, LIMIT);
    if outcome.code() == 0 { Ok(outcome.stdout) } else { Err(outcome.to_string()) }
}

/// Builds a small program again and again, and runs it.
pub fn build(deck: &Deck, progress: &Progress, dir: &Path) {
    let script = r#"
        for n in $(seq 6); do echo "int part$n(int x) { return x * $n + $1; }" > part$n.c; done
        { for n in $(seq 6); do echo "int part$n(int);"; done
          echo '#include <stdio.h>'
          echo "int main(void) { int x = 0; $(for n in $(seq 6); do echo "x += part$n(x);"; done) printf(\"%d\\n\", x); }"
        } > main.c
        printf 'OBJECTS := $(patsubst %%.c,%%.o,$(wildcard *.c))\nprogram: $(OBJECTS)\n\tcc -o $@ $^\n%%.o: %%.c\n\tcc -c -o $@ $<\n' > Makefile
        make -s -j2 program && ./program && rm -f ./*.o ./*.c program Makefile && ls -A
    "#;
    deck.repeat(progress, |number| {
        let expected = (1..=6).fold(0_i64, |x, n| x + x * n + number as i64);
        match bash(dir, script, &[&number.to_string()])? {
            printed if printed.trim() == expected.to_string() => Ok(()),
            printed => Err(format!("the program printed {printed:?}, not {expected}")),
        }
    });
}

/// Adds rows to a database from one mount after the other; returns how many were committed.
pub fn database(deck: &Deck, progress: &Progress, dirs: &[PathBuf]) -> u64 {
    let mut committed = 0;
    deck.repeat(progress, |number| {
        let dir = &dirs[number as usize % dirs.len()];
        let script = r#"sqlite3 -bail db "PRAGMA busy_timeout=60000; BEGIN IMMEDIATE;
            INSERT INTO t VALUES($1, randomblob(3000)); COMMIT;" >/dev/null"#;
        bash(dir, script, &[&number.to_string()])?;
        committed = number + 1;
        Ok(())
    });
    committed
}

pub fn check_database(dir: &Path, committed: u64) -> Step {
    let script = r#"sqlite3 db "PRAGMA integrity_check; SELECT count(*) FROM t;""#;
    let found = bash(dir, script, &[])?;
    if found == format!("ok\n{committed}\n") {
        Ok(())
    } else {
        Err(format!("database: {found:?}, {committed} rows"))
    }
}

/// Runs the exerciser with a new seed each time: random reads, writes, maps, holes, truncations of one file.
pub fn exercise(deck: &Deck, progress: &Progress, path: &Path, seed: u64) {
    deck.repeat(progress, |number| {
        let run = || exerciser::Exercise::new(seed * 1000 + number, 150).run(path);
        // The panic's message is in the output.
        std::panic::catch_unwind(run).map_err(|_| "the exerciser found a difference".to_owned())?;
        fs::remove_file(path).map_err(failed("remove the file"))
    });
}

/// Runs fsx with a new seed each time.
pub fn fsx(deck: &Deck, progress: &Progress, tool: &Path, dir: &Path) {
    deck.repeat(progress, |number| {
        let (seed, file) = ((number + 1).to_string(), dir.join("file"));
        let mut command = Command::new(tool);
        command.args(["-q", "-N", "400", "-S", &seed, text(&file)]).current_dir(dir);
        let outcome = program::run_command(command, LIMIT);
        if outcome.code() == 0 { Ok(()) } else { Err(format!("fsx: {outcome}")) }
    });
}

/// Content of file `number`.
fn content(number: u64, bytes: usize) -> Vec<u8> {
    let mut content = vec![0; bytes];
    exerciser::fill(&mut Rng::with_seed(number), &mut content);
    content
}

/// Fills an OST with synced files until no space is left, reads them all, and removes them. The OST may lose power: what
/// was synced stays, and only that is checked.
pub fn fill(deck: &Deck, progress: &Progress, dir: &Path) {
    let mut synced: BTreeMap<u64, usize> = BTreeMap::new();
    let mut written_bytes = 0;
    let mut random = Rng::with_seed(9);
    let path = |number: u64| dir.join(format!("f{number}"));
    deck.repeat(progress, |number| {
        let bytes = random.usize(1..6 << 20);
        let cuts = deck.cuts.load(Ordering::SeqCst);
        let written = fs::write(path(number), content(number, bytes));
        let written = written.and_then(|()| File::open(path(number))?.sync_all());
        written_bytes += bytes;
        let is_full = match written {
            Ok(()) if deck.cuts.load(Ordering::SeqCst) != cuts => false,
            Ok(()) => {
                synced.insert(number, bytes);
                false
            }
            // What was not synced may be lost with the power of the OST, or its disk.
            Err(error) if error.raw_os_error() == Some(libc::EIO) => false,
            Err(error) if error.kind() == ErrorKind::StorageFull => true,
            Err(error) => return Err(format!("write: {error}")),
        };
        if is_full || written_bytes > FILLED_BYTES {
            written_bytes = 0;
            for (number, bytes) in std::mem::take(&mut synced) {
                let found = deck.read(|| fs::read(path(number))).map_err(failed("read a synced file"))?;
                if found != content(number, bytes) {
                    return Err(format!("synced file {number} has other content"));
                }
            }
            for entry in fs::read_dir(dir).map_err(failed("list"))? {
                fs::remove_file(entry.map_err(failed("list"))?.path()).map_err(failed("remove"))?;
            }
        }
        Ok(())
    });
}
