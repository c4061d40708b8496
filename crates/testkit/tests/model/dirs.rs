//! Directories on chosen MDTs.

use std::fs::{self, File};
use std::io;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::process::Command;

use fastrand::Rng;
use nacre_testkit::run::MARK;
use nacre_testkit::{binary, program};

const LMV_SETSTRIPE: u32 = 0xc030_66f0;
const LMV_MAGIC: u32 = 0x0CD3_0CD0;

/// Requested placement of a new directory.
#[derive(Debug, Clone, Copy)]
pub enum Striping {
    Nowhere,
    On(usize),
    /// Number of shards, their hash, and the MDT of the first.
    Spread(usize, u32, usize),
    /// More shards than there are MDTs.
    Overspread(usize),
}

impl Striping {
    pub fn roll(random: &mut Rng, mdts: usize) -> Striping {
        match random.usize(..16) {
            0..5 => Striping::Nowhere,
            5..9 => Striping::On(random.usize(..mdts)),
            9 => Striping::Overspread(mdts + 1 + random.usize(..mdts)),
            _ => Striping::Spread(
                2 + random.usize(..mdts - 1),
                1 + random.usize(..4) as u32,
                random.usize(..mdts),
            ),
        }
    }
}

/// Creates directories.
#[derive(Clone)]
pub struct Maker {
    /// Directory of the run.
    pub run: PathBuf,
    pub mdts: usize,
    /// Change the numbers of shards of directories too (`NACRE_MODEL_RESTRIPES=1`); the model has open
    /// findings with it (ROADMAP).
    pub restripes: bool,
    /// Move files and directories between MDTs too (`NACRE_MODEL_MIGRATES=1`); with open findings as well.
    pub migrates: bool,
}

impl Maker {
    pub fn make(&self, parent: &Path, name: &str, requested: Striping) -> io::Result<()> {
        let spreads = matches!(requested, Striping::Spread(..) | Striping::Overspread(_));
        if spreads && !self.restripes && parent.join(name).is_dir() {
            // The command would restripe it.
            return Err(io::Error::from_raw_os_error(libc::EEXIST));
        }
        match requested {
            Striping::Nowhere => fs::create_dir(parent.join(name)),
            Striping::On(mdt) => ask(parent, name, 0, mdt, 0),
            Striping::Spread(count, hash, first) => ask(parent, name, count, first, hash),
            Striping::Overspread(count) => {
                let path = parent.join(name);
                self.lfs(&["mkdir", "-C", &count.to_string()], &path)
            }
        }
    }

    /// Changes the number of shards of an existing directory.
    pub fn restripe(&self, path: &Path, count: usize) -> Result<(), String> {
        match self.lfs(&["setdirstripe", "-c", &count.to_string()], path) {
            // It has this number already, its names are still moving, or all other MDTs are down.
            Err(error) if matches!(error.raw_os_error(), Some(libc::EEXIST | libc::EBUSY | libc::EAGAIN)) => {
                Ok(())
            }
            outcome => outcome.map_err(|error| error.to_string()),
        }
    }

    /// Moves a file, or a directory without its entries, to MDTs.
    pub fn migrate(&self, path: &Path, mdts: &str) -> Result<(), String> {
        match self.lfs(&["migrate", "-d", "-m", mdts], path) {
            // It is open, or has too many names.
            Err(error) if matches!(error.raw_os_error(), Some(libc::EBUSY | libc::EMLINK)) => Ok(()),
            outcome => outcome.map_err(|error| format!("migrate: {error}")),
        }
    }

    fn lfs(&self, words: &[&str], path: &Path) -> io::Result<()> {
        let mut command = Command::new(binary::nacre());
        command.env(MARK, &self.run).arg("lfs").args(words).arg(path);
        match program::run_command(command, program::LIMIT).code() {
            0 => Ok(()),
            code => Err(io::Error::from_raw_os_error(code)),
        }
    }
}

/// Creates a directory as `lfs mkdir` does, without a process.
fn ask(parent: &Path, name: &str, count: usize, first: usize, hash: u32) -> io::Result<()> {
    const HEAD: usize = 576;
    let mut name = name.as_bytes().to_vec();
    name.push(0);
    let mut requested = vec![0u8; 48];
    for (at, word) in [(0, LMV_MAGIC), (4, count as u32), (8, first as u32), (12, hash)] {
        requested[at..at + 4].copy_from_slice(&word.to_le_bytes());
    }
    let mut bytes = vec![0u8; HEAD];
    for field in [&name, &requested] {
        bytes.extend_from_slice(field);
        bytes.resize(bytes.len().next_multiple_of(8), 0);
    }
    let words = [(0, bytes.len()), (4, 0x0001_0004), (476, 0o755), (512, name.len()), (528, requested.len())];
    for (at, word) in words {
        bytes[at..at + 4].copy_from_slice(&(word as u32).to_le_bytes());
    }
    let parent = File::open(parent)?;
    // SAFETY: the first word encodes the length of the buffer.
    match unsafe { libc::ioctl(parent.as_raw_fd(), LMV_SETSTRIPE as libc::Ioctl, bytes.as_mut_ptr()) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}
