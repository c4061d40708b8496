//! Enumeration of workloads, as ACE does it: all short sequences of operations on a few names.
//!
//! Pruning: of sequences that differ only by a permutation of directories or of names one is left; an operation
//! that would fail is left out; what a sequence needs exists before, synced; a persistence operation is neither
//! first nor after another one, and each workload ends with one.

use super::tree::{INITIAL_BYTES, Inode, Tree, directory_of};
use crate::operation::Path;
use crate::program::byte_of_write;
use std::fmt;
use std::sync::Arc;

/// Number of directories in the root, and of names in each.
const DIRECTORIES: u8 = 2;
const NAMES: u8 = 3;

/// An operation of a workload, with the name of a system call; sizes are constants of the tree. `fdatasync` is
/// `fsync`: clients have one call for both.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Action {
    Create(Path),
    Write(Path),
    Append(Path),
    Overwrite(Path),
    Truncate(Path),
    Punch(Path),
    Link(Path, Path),
    Rename(Path, Path),
    Unlink(Path),
    Mkdir(Path),
    Rmdir(Path),
    SetXattr(Path),
    Fsync(Path),
    FsyncDir(Path),
    Sync,
}

impl Action {
    /// Returns true if it makes something durable and changes nothing.
    pub(crate) fn is_persistence(&self) -> bool {
        matches!(self, Action::Fsync(_) | Action::FsyncDir(_) | Action::Sync)
    }

    /// Returns true if it writes bytes, by [`crate::program::Program`].
    fn writes(&self) -> bool {
        matches!(self, Action::Write(_) | Action::Append(_) | Action::Overwrite(_))
    }

    fn paths(&self) -> Vec<&Path> {
        match self {
            Action::Link(from, to) | Action::Rename(from, to) => vec![from, to],
            Action::Sync => Vec::new(),
            Action::Create(path)
            | Action::Write(path)
            | Action::Append(path)
            | Action::Overwrite(path)
            | Action::Truncate(path)
            | Action::Punch(path)
            | Action::Unlink(path)
            | Action::Mkdir(path)
            | Action::Rmdir(path)
            | Action::SetXattr(path)
            | Action::Fsync(path)
            | Action::FsyncDir(path) => vec![path],
        }
    }
}

/// What exists before a workload begins.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Existing {
    pub(crate) path: Path,
    pub(crate) directory: bool,
}

/// A workload. Its text has what exists before in brackets, then the operations.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Workload {
    /// Synced files and directories, parents first.
    pub(crate) existing: Vec<Existing>,
    /// Operations, one after the other.
    pub(crate) actions: Vec<Action>,
}

impl fmt::Display for Workload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[")?;
        for (at, Existing { path, directory }) in self.existing.iter().enumerate() {
            let space = if at > 0 { " " } else { "" };
            write!(f, "{space}{path}{}", if *directory { "/" } else { "" })?;
        }
        f.write_str("]")?;
        for action in &self.actions {
            let paths: Vec<String> = action.paths().iter().map(ToString::to_string).collect();
            let text = format!("{action:?}");
            write!(f, " {} {};", text.split('(').next().unwrap_or_default(), paths.join(" "))?;
        }
        Ok(())
    }
}

impl Workload {
    /// Returns the trees before the first operation and after each; `None` if one would fail.
    pub(crate) fn trees(&self) -> Option<Vec<Tree>> {
        let mut tree = Tree::default();
        let mut writes = 0;
        for Existing { path, directory } in &self.existing {
            writes += u8::from(!directory);
            let byte = byte_of_write(0, writes);
            let bytes = Arc::new(if *directory { Vec::new() } else { vec![byte; INITIAL_BYTES as usize] });
            if !tree.add(path, Inode { directory: *directory, bytes, xattr: None }) {
                return None;
            }
        }
        let mut trees = vec![tree];
        for (number, action) in (1..).zip(&self.actions) {
            let mut tree = trees.last()?.clone();
            writes += u8::from(action.writes());
            let byte = if action.writes() { byte_of_write(0, writes) } else { number };
            if !tree.apply(action, byte) {
                return None;
            }
            trees.push(tree);
        }
        Some(trees)
    }

    /// Returns the workload with each persistence operation that may end it; as it is if it ends with one.
    pub(crate) fn ended(&self) -> Vec<Workload> {
        let Some(tree) = self.trees().and_then(|trees| trees.last().cloned()) else { return Vec::new() };
        if self.actions.last().is_some_and(Action::is_persistence) {
            return vec![self.clone()];
        }
        self.syncs(&tree).into_iter().map(|end| self.and(end)).collect()
    }

    fn and(&self, action: Action) -> Workload {
        let mut longer = self.clone();
        longer.actions.push(action);
        longer
    }

    fn knows(&self, path: &Path) -> bool {
        let is_existing = self.existing.iter().any(|existing| existing.path == *path);
        is_existing || self.actions.iter().any(|action| action.paths().contains(&path))
    }

    /// Returns the persistence operations for what the workload has touched.
    fn syncs(&self, tree: &Tree) -> Vec<Action> {
        let mut syncs = Vec::new();
        for path in tree.names.keys().filter(|path| self.knows(path)) {
            match (tree.has(path, false), path.0.len()) {
                (true, _) => syncs.push(Action::Fsync(path.clone())),
                (false, 1) => syncs.push(Action::FsyncDir(path.clone())),
                _ => {}
            }
        }
        syncs.push(Action::Sync);
        syncs
    }

    /// Returns the directories in the root that the workload uses, and one more.
    fn directories(&self) -> Vec<Path> {
        let all: Vec<Path> = (0..DIRECTORIES).map(|number| Path(vec![number])).collect();
        let used = all.iter().filter(|path| self.knows(path)).count();
        all.into_iter().take(used + 1).collect()
    }

    /// Returns the names in these directories that the workload uses, and one more in each.
    fn leaves(&self) -> Vec<Path> {
        let of = |directory: Path| {
            let all: Vec<Path> = (0..NAMES).map(|name| Path(vec![directory.0[0], name])).collect();
            let used = all.iter().filter(|path| self.knows(path)).count();
            all.into_iter().take(used + 1)
        };
        self.directories().into_iter().flat_map(of).collect()
    }

    /// Returns the workload with another operation, for which `kinds` exist: paths, and whether each is a
    /// directory. `None` if it cannot succeed.
    fn extend(&self, action: Action, kinds: &[(&Path, bool)]) -> Option<Workload> {
        let mut longer = self.clone();
        let above: Vec<Path> = action.paths().into_iter().filter_map(directory_of).collect();
        let above = above.iter().map(|path| (path, true));
        let mut needed: Vec<(&Path, bool)> = above.chain(kinds.iter().copied()).collect();
        needed.sort();
        needed.dedup();
        for (path, directory) in needed {
            if !self.knows(path) {
                longer.existing.push(Existing { path: path.clone(), directory });
            }
        }
        longer.existing.sort_by(|one, other| one.path.cmp(&other.path));
        longer.actions.push(action);
        longer.trees().map(|_| longer)
    }

    /// Returns all workloads with one more operation.
    fn longer(&self) -> Vec<Workload> {
        let mut found = Vec::new();
        for path in self.leaves() {
            found.extend(self.extend(Action::Create(path.clone()), &[]));
            found.extend(self.extend(Action::Mkdir(path.clone()), &[]));
            found.extend(self.extend(Action::Rmdir(path.clone()), &[(&path, true)]));
            let on_file: [fn(Path) -> Action; 7] = [
                Action::Write,
                Action::Append,
                Action::Overwrite,
                Action::Truncate,
                Action::Punch,
                Action::SetXattr,
                Action::Unlink,
            ];
            let of_file = |make: fn(Path) -> Action| self.extend(make(path.clone()), &[(&path, false)]);
            found.extend(on_file.into_iter().filter_map(of_file));
            found.extend(self.moves(&path));
        }
        for path in self.directories() {
            found.extend(self.extend(Action::Mkdir(path.clone()), &[]));
            found.extend(self.extend(Action::Rmdir(path.clone()), &[(&path, true)]));
            found.extend(self.extend(Action::SetXattr(path.clone()), &[(&path, true)]));
            let to = Path(vec![1 - path.0[0]]);
            let rename = || Action::Rename(path.clone(), to.clone());
            found.extend(self.extend(rename(), &[(&path, true)]));
            if !self.knows(&to) {
                found.extend(self.extend(rename(), &[(&path, true), (&to, true)]));
            }
        }
        if self.actions.last().is_some_and(|last| !last.is_persistence()) {
            found.extend(self.ended());
        }
        found.dedup();
        found
    }

    /// Returns the workloads with a link or rename of the name `from`.
    fn moves(&self, from: &Path) -> Vec<Workload> {
        let mut found = Vec::new();
        let mut used = self.clone();
        // So that a further name counts as the next one, and so does a further directory.
        used.actions.extend(directory_of(from).into_iter().map(Action::FsyncDir));
        used.actions.push(Action::Unlink(from.clone()));
        for to in used.leaves().iter().filter(|to| *to != from) {
            found.extend(self.extend(Action::Link(from.clone(), to.clone()), &[(from, false)]));
            for directory in [false, true] {
                let rename = || Action::Rename(from.clone(), to.clone());
                found.extend(self.extend(rename(), &[(from, directory)]));
                if !self.knows(to) {
                    found.extend(self.extend(rename(), &[(from, directory), (to, directory)]));
                }
            }
        }
        let mut once: Vec<Workload> = Vec::new();
        for workload in found {
            if !once.contains(&workload) {
                once.push(workload);
            }
        }
        once
    }
}

/// Returns all workloads of `length` operations. Only those whose first two operations have a number that is
/// `part.0` modulo `part.1`, for a share of the work; shorter ones are counted alike.
pub fn workloads(length: usize, part: (usize, usize)) -> Vec<Workload> {
    let mut all = vec![Workload::default()];
    for at in 0..length {
        all = all.iter().flat_map(Workload::longer).collect();
        if at == length.min(2) - 1 {
            let is_mine = |(number, _): &(usize, Workload)| number % part.1 == part.0;
            all = all.into_iter().enumerate().filter(is_mine).map(|(_, workload)| workload).collect();
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(length: usize, part: (usize, usize)) -> Vec<String> {
        workloads(length, part).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn workloads_that_differ_by_names_or_directories_alone_are_enumerated_once() {
        let one = texts(1, (0, 1));
        assert_eq!(one.len(), 25);
        let renames: Vec<&String> = one.iter().filter(|text| text.contains("] Rename /a/a ")).collect();
        assert_eq!(renames.len(), 8, "files or directories, within or across, onto nothing or something");
        assert!(one.contains(&"[/a/] Create /a/a;".to_owned()));
        let two = texts(2, (0, 1));
        assert!(two.contains(&"[] Mkdir /a; Create /a/a;".to_owned()));
        assert!(!two.iter().any(|text| text.contains("] Create /a/b;")));
        let different: std::collections::HashSet<&String> = two.iter().collect();
        assert_eq!(different.len(), two.len());
    }

    #[test]
    fn shares_are_all_workloads_together() {
        let mut shares = [texts(2, (0, 2)), texts(2, (1, 2))].concat();
        let mut all = texts(2, (0, 1));
        shares.sort();
        all.sort();
        assert_eq!(shares, all);
    }
}
