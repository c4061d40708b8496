//! Random operations of several mounts in the same directories. The result of each depends on the others; at
//! the end all mounts see the same consistent tree.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use fastrand::Rng;
use rustix::fs::CWD;

use super::dirs::{Maker, Striping};
use super::worker::{Outcome, flags_of, roll_flags};

const FILES: usize = 6;
const DIRS: usize = 3;

/// Permitted errors of an operation on names that others change. `ESTALE`: the kernel does not find a
/// directory in a new place during a rename (SEMANTICS).
const ALLOWED: [i32; 7] =
    [libc::ENOENT, libc::EEXIST, libc::ENOTDIR, libc::EISDIR, libc::ENOTEMPTY, libc::EINVAL, libc::ESTALE];

pub struct Shared {
    root: PathBuf,
    /// Permanent directories, below `root`.
    staying: Vec<String>,
    worker: usize,
    files: usize,
    maker: Maker,
}

impl Shared {
    pub fn new(root: PathBuf, staying: &[&str], worker: usize, maker: Maker) -> Shared {
        let staying = staying.iter().map(|name| (*name).to_owned()).collect();
        Shared { root, staying, worker, files: 0, maker }
    }

    /// Returns one of the permanent directories, or a subdirectory that may or may not exist.
    fn dir(&self, random: &mut Rng) -> PathBuf {
        let mut path = self.root.join(&self.staying[random.usize(..self.staying.len())]);
        while random.usize(..3) == 0 {
            path.push(dir_name(random));
        }
        path
    }

    fn any(&self, random: &mut Rng) -> PathBuf {
        let name = if random.usize(..3) == 0 { dir_name(random) } else { file_name(random) };
        self.dir(random).join(name)
    }

    /// Runs one operation and returns its description and outcome.
    pub fn step(&mut self, random: &mut Rng) -> (String, Outcome) {
        let path = self.any(random);
        let (what, done) = match random.usize(..12) {
            0..3 => {
                let path = self.dir(random).join(file_name(random));
                self.files += 1;
                let content = format!("{}-{}", self.worker, self.files);
                let made = OpenOptions::new().write(true).create_new(true).open(&path);
                (format!("create {path:?}"), made.and_then(|mut file| file.write_all(content.as_bytes())))
            }
            3 | 4 => {
                let (parent, name) = (self.dir(random), dir_name(random));
                let requested = Striping::roll(random, self.maker.mdts);
                // An existing one may be restriped by this, one command at a time.
                let made = self.maker.make(&parent, &name, requested);
                let made = made.or_else(|error| ignore(error, libc::EBUSY));
                let made = made.or_else(|error| ignore(error, libc::EALREADY));
                (format!("mkdir {name} in {parent:?} {requested:?}"), made)
            }
            5 => (format!("unlink {path:?}"), fs::remove_file(&path)),
            6 => (format!("rmdir {path:?}"), fs::remove_dir(&path)),
            7 => {
                let (from, to) = (self.dir(random).join(file_name(random)), path);
                // Directories have no hard links.
                let is_file = fs::symlink_metadata(&from).is_ok_and(|found| found.is_file());
                let linked = if is_file { fs::hard_link(&from, &to) } else { Ok(()) };
                let linked = linked.or_else(|error| ignore(error, libc::EPERM));
                (format!("link {from:?} to {to:?}"), linked)
            }
            8 => (format!("read {path:?}"), read(&path)),
            9 => (format!("list {path:?}"), list(&path)),
            _ => {
                let (to, flags) = (self.any(random), roll_flags(random));
                let renamed = rustix::fs::renameat_with(CWD, &path, CWD, &to, flags_of(flags));
                (format!("rename {path:?} to {to:?} {flags:?}"), renamed.map_err(io::Error::from))
            }
        };
        let outcome = match &done {
            Err(error) if !error.raw_os_error().is_some_and(|number| ALLOWED.contains(&number)) => {
                Err(format!("{what}: {error}"))
            }
            _ => Ok(()),
        };
        (format!("{what}: {done:?}"), outcome)
    }
}

/// Ignores an error: a name that was a file a moment ago may be a directory now, which has no hard links.
fn ignore(error: io::Error, number: i32) -> io::Result<()> {
    if error.raw_os_error() == Some(number) { Ok(()) } else { Err(error) }
}

fn file_name(random: &mut Rng) -> String {
    format!("f{}", random.usize(..FILES))
}

fn dir_name(random: &mut Rng) -> String {
    format!("d{}", random.usize(..DIRS))
}

/// Checks that a file has its whole content or, between its creation and its first write, none.
fn read(path: &Path) -> io::Result<()> {
    let content = fs::read_to_string(path)?;
    let is_whole = content.is_empty() || content.split_once('-').is_some();
    if is_whole { Ok(()) } else { Err(io::Error::other(format!("the content is {content:?}"))) }
}

fn list(path: &Path) -> io::Result<()> {
    let mut names = BTreeSet::new();
    for entry in fs::read_dir(path)? {
        let name = entry?.file_name();
        if !names.insert(name.clone()) {
            return Err(io::Error::other(format!("{name:?} is listed twice")));
        }
    }
    Ok(())
}

/// Attributes of an inode on which all mounts must agree.
#[derive(Debug, PartialEq, Eq)]
struct Seen {
    number: u64,
    links: u64,
    mode: u32,
    content: String,
}

/// Reads a tree and checks its counts of links.
fn gather(root: &Path) -> Outcome<BTreeMap<PathBuf, Seen>> {
    let mut all = BTreeMap::new();
    let mut links: BTreeMap<u64, (u64, u64)> = BTreeMap::new();
    let mut open = vec![root.to_owned()];
    while let Some(dir) = open.pop() {
        let failed = |error: io::Error| format!("{}: {error}", dir.display());
        list(&dir).map_err(failed)?;
        let mut subdirs = 0;
        for entry in fs::read_dir(&dir).map_err(failed)? {
            let path = entry.map_err(failed)?.path();
            let failed = |error: io::Error| format!("{}: {error}", path.display());
            let found = fs::symlink_metadata(&path).map_err(failed)?;
            let mut content = String::new();
            if found.is_dir() {
                subdirs += 1;
                open.push(path.clone());
            } else {
                content = fs::read_to_string(&path).map_err(failed)?;
                if content.split_once('-').is_none() {
                    return Err(format!("{} has {content:?} in it", path.display()));
                }
                links.entry(found.ino()).or_insert((found.nlink(), 0)).1 += 1;
            }
            let (number, links, mode) = (found.ino(), found.nlink(), found.mode());
            let seen = Seen { number, links, mode, content };
            all.insert(path.strip_prefix(root).expect("below").to_owned(), seen);
        }
        let shown = fs::metadata(&dir).map_err(failed)?.nlink();
        if shown != 2 + subdirs {
            return Err(format!("{} has {shown} links and {subdirs} subdirectories", dir.display()));
        }
    }
    match links.iter().find(|(_, (shown, found))| shown != found) {
        Some((number, (shown, found))) => Err(format!("inode {number} has {found} names and says {shown}")),
        None => Ok(all),
    }
}

/// Checks that all views show the same tree, and each inode its own content.
pub fn check(views: &[PathBuf]) -> Outcome {
    let first = gather(&views[0])?;
    for view in &views[1..] {
        let other = gather(view)?;
        let differs = first.iter().find(|(path, seen)| other.get(*path) != Some(*seen));
        if let Some((path, seen)) = differs {
            let other = other.get(path);
            return Err(format!("{path:?} is {seen:?}, but {other:?} through {}", view.display()));
        }
        if other.len() != first.len() {
            return Err(format!("{} names, but {} through {}", first.len(), other.len(), view.display()));
        }
    }
    let files = first.values().filter(|seen| !seen.content.is_empty());
    let pairs: BTreeSet<(u64, &str)> = files.map(|seen| (seen.number, seen.content.as_str())).collect();
    let contents: BTreeSet<&str> = pairs.iter().map(|(_, content)| *content).collect();
    let numbers: BTreeSet<u64> = pairs.iter().map(|(number, _)| *number).collect();
    match pairs.len() == contents.len() && pairs.len() == numbers.len() {
        true => Ok(()),
        false => Err(format!("contents and inodes do not belong together: {pairs:?}")),
    }
}
