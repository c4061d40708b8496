//! The bounded form of the targets of cargo-fuzz, which tests of the crates include: the function of a target reads
//! valid encodings, the kept corpus, and mutations of both.
//!
//! With `NACRE_WRITE_CORPUS=1` it first writes the valid encodings into the corpus, as `valid-NUMBER`. Other files
//! there are former findings.

use fastrand::Rng;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::{Path, PathBuf};
use std::{env, fs};

/// Words that count, measure or select something are often wrong at these values.
const EDGES: [u64; 8] = [0, 1, 0x7f, 0xff, 0xffff, 1 << 31, u32::MAX as u64, u64::MAX];
/// Longest input, as for cargo-fuzz.
const LONGEST: usize = 8192;

/// Calls `read` with all of `valid`, the corpus of `target`, and `rounds` mutations of them.
///
/// # Panics
/// If `read` does, after the input has been printed in hexadecimal; if there is no corpus.
pub fn exercise(target: &str, valid: &[Vec<u8>], rounds: usize, read: impl Fn(&[u8])) {
    let corpus = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus").join(target);
    if env::var_os("NACRE_WRITE_CORPUS").is_some() {
        write(&corpus, valid);
    }
    let mut seeds: Vec<Vec<u8>> = files(&corpus).iter().map(|path| fs::read(path).expect("a file")).collect();
    assert!(!seeds.is_empty(), "{} is empty: NACRE_WRITE_CORPUS=1", corpus.display());
    seeds.extend_from_slice(valid);
    let checked = |bytes: &[u8]| {
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| read(bytes))) {
            let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
            eprintln!("input of {target}: {hex}");
            resume_unwind(panic);
        }
    };
    seeds.iter().for_each(|seed| checked(seed));
    let mut random = Rng::with_seed(1);
    for _ in 0..rounds {
        checked(&mutated(&mut random, &seeds));
    }
}

fn files(corpus: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(corpus).into_iter().flatten();
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.expect("an entry").path()).collect();
    paths.sort();
    paths
}

fn write(corpus: &Path, valid: &[Vec<u8>]) {
    fs::create_dir_all(corpus).expect("a directory");
    let is_written = |path: &&PathBuf| path.to_string_lossy().contains("/valid-");
    files(corpus).iter().filter(is_written).for_each(|path| fs::remove_file(path).expect("a file"));
    for (number, bytes) in valid.iter().enumerate() {
        fs::write(corpus.join(format!("valid-{number:03}")), bytes).expect("written");
    }
}

fn mutated(random: &mut Rng, seeds: &[Vec<u8>]) -> Vec<u8> {
    let pick = |random: &mut Rng| &seeds[random.usize(..seeds.len())];
    let mut bytes = pick(random).clone();
    for _ in 0..=random.usize(..4) {
        let at = random.usize(..bytes.len() + 1);
        let width = random.usize(..16).min(bytes.len() - at);
        match random.u8(..8) {
            0 => bytes.truncate(at),
            1 => bytes.insert(at, random.u8(..)),
            2 => drop(bytes.drain(at..at + width)),
            3 => bytes.extend_from_within(at..at + width),
            4 => {
                let edge = EDGES[random.usize(..EDGES.len())].to_le_bytes();
                let width = (1 << random.usize(..4)).min(bytes.len() - at);
                bytes[at..at + width].copy_from_slice(&edge[..width]);
            }
            5 => {
                let other = pick(random);
                bytes.truncate(at);
                bytes.extend_from_slice(&other[random.usize(..other.len() + 1)..]);
            }
            6 => bytes.iter_mut().skip(at).take(1).for_each(|byte| *byte ^= 1 << random.u8(..8)),
            _ => bytes.iter_mut().skip(at).take(1).for_each(|byte| *byte = random.u8(..)),
        }
    }
    bytes.truncate(LONGEST);
    bytes
}
