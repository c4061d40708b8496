//! The tree of names and files that a sequence of actions leaves.

use super::workload::Action;
use crate::operation::Path;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Bytes of a file that exists at the beginning.
pub(crate) const INITIAL_BYTES: u32 = 10_000;
/// Write behind the end: it leaves a hole, and ends behind the part of a file that may be on an MDT.
pub(crate) const WRITE: (u64, u32) = (62_000, 6000);
/// Bytes of an append.
pub(crate) const APPEND_BYTES: u32 = 3000;
/// Write within the data, not aligned.
pub(crate) const OVERWRITE: (u64, u32) = (2000, 5000);
/// Size of a truncation in bytes.
pub(crate) const TRUNCATE_BYTES: u64 = 5000;
/// Hole of a punch: offset and length.
pub(crate) const PUNCH: (u64, u64) = (3000, 6000);

/// A file or directory.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Inode {
    pub(crate) directory: bool,
    pub(crate) bytes: Arc<Vec<u8>>,
    /// Value of the extended attribute.
    pub(crate) xattr: Option<u8>,
}

/// See the [module documentation](self). Positions of inodes stay the same from one tree to the next.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Tree {
    pub(crate) names: BTreeMap<Path, usize>,
    pub(crate) inodes: Vec<Inode>,
}

/// Returns the directory of a path; `None` for a directory in the root.
pub(crate) fn directory_of(path: &Path) -> Option<Path> {
    (path.0.len() > 1).then(|| Path(path.0[..path.0.len() - 1].to_vec()))
}

impl Tree {
    /// Returns the position of the inode at `path`.
    pub(crate) fn find(&self, path: &Path) -> Option<usize> {
        self.names.get(path).copied()
    }

    /// Returns true if there is a file, or with `directory` a directory.
    pub(crate) fn has(&self, path: &Path, directory: bool) -> bool {
        self.find(path).is_some_and(|inode| self.inodes[inode].directory == directory)
    }

    /// Returns the entries of the directory at `path`.
    pub(crate) fn entries<'a>(&'a self, path: &'a Path) -> impl Iterator<Item = (&'a Path, usize)> {
        let is_below = |(name, _): &(&Path, &usize)| directory_of(name).as_ref() == Some(path);
        self.names.iter().filter(is_below).map(|(name, inode)| (name, *inode))
    }

    /// Returns the count of links of an inode.
    pub(crate) fn links(&self, inode: usize) -> usize {
        let paths = self.names.iter().filter(|(_, other)| **other == inode);
        if !self.inodes[inode].directory {
            return paths.count();
        }
        let below = paths.flat_map(|(path, _)| self.entries(path));
        2 + below.filter(|(_, other)| self.inodes[*other].directory).count()
    }

    /// Adds a name with a new inode. Returns false if the name exists, or has no directory.
    pub(crate) fn add(&mut self, path: &Path, inode: Inode) -> bool {
        if !self.is_free(path) {
            return false;
        }
        self.names.insert(path.clone(), self.inodes.len());
        self.inodes.push(inode);
        true
    }

    fn is_free(&self, path: &Path) -> bool {
        !self.names.contains_key(path) && directory_of(path).is_none_or(|above| self.has(&above, true))
    }

    fn file(&mut self, path: &Path) -> Option<&mut Inode> {
        let inode = self.find(path)?;
        Some(&mut self.inodes[inode]).filter(|inode| !inode.directory)
    }

    /// Carries an action out; `byte` is what it writes, or the value of an attribute. Returns false, with the
    /// tree in any state, if the action would fail or change nothing.
    pub(crate) fn apply(&mut self, action: &Action, byte: u8) -> bool {
        match action {
            Action::Create(path) => self.add(path, Inode::default()),
            Action::Mkdir(path) => self.add(path, Inode { directory: true, ..Inode::default() }),
            Action::Write(path) => self.edit(path, |bytes| fill(bytes, WRITE, byte)),
            Action::Append(path) => self.edit(path, |bytes| {
                let end = bytes.len() as u64;
                fill(bytes, (end, APPEND_BYTES), byte)
            }),
            Action::Overwrite(path) => self.edit(path, |bytes| {
                bytes.len() as u64 >= OVERWRITE.0 + u64::from(OVERWRITE.1) && fill(bytes, OVERWRITE, byte)
            }),
            Action::Truncate(path) => self.edit(path, |bytes| {
                let changes = bytes.len() as u64 != TRUNCATE_BYTES;
                bytes.resize(TRUNCATE_BYTES as usize, 0);
                changes
            }),
            Action::Punch(path) => self.edit(path, |bytes| {
                let end = bytes.len().min((PUNCH.0 + PUNCH.1) as usize);
                bytes.get_mut(PUNCH.0 as usize..end).map(|hole| hole.fill(0)).is_some()
            }),
            Action::SetXattr(path) => self.find(path).is_some_and(|inode| {
                self.inodes[inode].xattr = Some(byte);
                true
            }),
            Action::Link(from, to) => {
                let file = self.find(from).filter(|inode| !self.inodes[*inode].directory);
                let is_free = self.is_free(to);
                file.filter(|_| is_free).is_some_and(|inode| self.names.insert(to.clone(), inode).is_none())
            }
            Action::Rename(from, to) => self.rename(from, to),
            Action::Unlink(path) => self.has(path, false) && self.names.remove(path).is_some(),
            Action::Rmdir(path) => {
                let is_empty = self.has(path, true) && self.entries(path).next().is_none();
                is_empty && self.names.remove(path).is_some()
            }
            Action::Fsync(path) => self.has(path, false),
            Action::FsyncDir(path) => self.has(path, true),
            Action::Sync => true,
        }
    }

    fn edit(&mut self, path: &Path, edit: impl FnOnce(&mut Vec<u8>) -> bool) -> bool {
        self.file(path).is_some_and(|file| edit(Arc::make_mut(&mut file.bytes)))
    }

    fn rename(&mut self, from: &Path, to: &Path) -> bool {
        let Some(moved) = self.find(from) else { return false };
        let directory = self.inodes[moved].directory;
        let allowed = match self.find(to) {
            None => self.is_free(to),
            Some(there) => there != moved && self.has(to, directory) && self.entries(to).next().is_none(),
        };
        if !allowed || directory && from.0.len() != to.0.len() {
            return false;
        }
        let below: Vec<_> = self.entries(from).map(|(path, inode)| (path.clone(), inode)).collect();
        for (path, inode) in below {
            self.names.remove(&path);
            self.names.insert(Path([&to.0[..], &path.0[from.0.len()..]].concat()), inode);
        }
        self.names.remove(from);
        self.names.insert(to.clone(), moved);
        true
    }
}

/// Writes a range, which may extend the data.
fn fill(bytes: &mut Vec<u8>, (offset, len): (u64, u32), byte: u8) -> bool {
    let (from, to) = (offset as usize, offset as usize + len as usize);
    if bytes.len() < to {
        bytes.resize(to, 0);
    }
    bytes[from..to].fill(byte);
    true
}
