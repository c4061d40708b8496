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

/// Where a new directory is to lie.
#[derive(Debug, Clone, Copy)]
pub enum Wish {
    Nowhere,
    On(usize),
    /// So many shards, of this hash, the first on that MDT.
    Spread(usize, u32, usize),
    /// More shards than there are MDTs.
    Overspread(usize),
}

impl Wish {
    pub fn roll(random: &mut Rng, mdts: usize) -> Wish {
        match random.usize(..16) {
            0..5 => Wish::Nowhere,
            5..9 => Wish::On(random.usize(..mdts)),
            9 => Wish::Overspread(mdts + 1 + random.usize(..mdts)),
            _ => {
                Wish::Spread(2 + random.usize(..mdts - 1), 1 + random.usize(..4) as u32, random.usize(..mdts))
            }
        }
    }
}

/// Makes directories.
#[derive(Clone)]
pub struct Maker {
    /// Of the run.
    pub run: PathBuf,
    pub mdts: usize,
    /// Directories get other numbers of shards too (`NACRE_MODEL_RESTRIPES=1`), with which the model has findings that are open (ROADMAP).
    pub restripes: bool,
    /// Files and directories get other MDTs too (`NACRE_MODEL_MIGRATES=1`): the same holds for that.
    pub migrates: bool,
}

impl Maker {
    pub fn make(&self, parent: &Path, name: &str, wish: Wish) -> io::Result<()> {
        let spreads = matches!(wish, Wish::Spread(..) | Wish::Overspread(_));
        if spreads && !self.restripes && parent.join(name).is_dir() {
            // It would be spread anew.
            return Err(io::Error::from_raw_os_error(libc::EEXIST));
        }
        match wish {
            Wish::Nowhere => fs::create_dir(parent.join(name)),
            Wish::On(mdt) => ask(parent, name, 0, mdt, 0),
            Wish::Spread(count, hash, first) => ask(parent, name, count, first, hash),
            Wish::Overspread(count) => {
                let path = parent.join(name);
                self.lfs(&["mkdir", "-C", &count.to_string()], &path)
            }
        }
    }

    /// Spreads the names of a directory that is there.
    pub fn restripe(&self, path: &Path, count: usize) -> Result<(), String> {
        match self.lfs(&["setdirstripe", "-c", &count.to_string()], path) {
            // It has so many, its names are still on their way, or all other MDTs are away.
            Err(error) if matches!(error.raw_os_error(), Some(libc::EEXIST | libc::EBUSY | libc::EAGAIN)) => {
                Ok(())
            }
            outcome => outcome.map_err(|error| error.to_string()),
        }
    }

    /// Moves a file, or a directory without what is in it, to MDTs.
    pub fn migrate(&self, path: &Path, mdts: &str) -> Result<(), String> {
        match self.lfs(&["migrate", "-d", "-m", mdts], path) {
            // Somebody has it open, or it has many names.
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

/// As `lfs mkdir` does, without a process.
fn ask(parent: &Path, name: &str, count: usize, first: usize, hash: u32) -> io::Result<()> {
    const HEAD: usize = 576;
    let mut name = name.as_bytes().to_vec();
    name.push(0);
    let mut wish = vec![0u8; 48];
    for (at, word) in [(0, LMV_MAGIC), (4, count as u32), (8, first as u32), (12, hash)] {
        wish[at..at + 4].copy_from_slice(&word.to_le_bytes());
    }
    let mut bytes = vec![0u8; HEAD];
    for field in [&name, &wish] {
        bytes.extend_from_slice(field);
        bytes.resize(bytes.len().next_multiple_of(8), 0);
    }
    let words = [(0, bytes.len()), (4, 0x0001_0004), (476, 0o755), (512, name.len()), (528, wish.len())];
    for (at, word) in words {
        bytes[at..at + 4].copy_from_slice(&(word as u32).to_le_bytes());
    }
    let parent = File::open(parent)?;
    // SAFETY: the first word says how long the buffer is.
    match unsafe { libc::ioctl(parent.as_raw_fd(), LMV_SETSTRIPE as libc::Ioctl, bytes.as_mut_ptr()) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}
