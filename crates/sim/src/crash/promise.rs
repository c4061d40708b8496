//! What may be left after a power cut of all hosts (`docs/SEMANTICS.md`).
//!
//! Names, attributes and extended attributes are those of one moment: an MDT has one log. That moment is not
//! before the last promise: `fsync` of a file (its attributes, and the names to reach it), of a directory (its
//! entries), `sync`, and a second without changes. Data is synced by `fsync` and `sync` alone: each byte, and
//! the size, is that of one of the versions since.

use super::capture::Moment;
use super::observe::{Content, Found, Observed};
use super::tree::{Tree, directory_of};
use super::workload::Action;
use crate::operation::Path;
use std::collections::BTreeMap;
use std::ops::Range;

/// A workload with the trees before its first action and after each.
pub(crate) struct Story<'a> {
    pub(crate) actions: &'a [Action],
    pub(crate) trees: &'a [Tree],
    /// Sizes at which a part of a file ends that is stored elsewhere: a write across them may be there in part.
    pub(crate) seams: &'a [u64],
}

/// Attributes of a file, and its names with the directories that lead to them.
type Reach = (Option<u8>, Vec<(Path, Option<usize>)>);

fn reach(tree: &Tree, inode: usize) -> Option<Reach> {
    let xattr = tree.inodes.get(inode)?.xattr;
    let names = tree.names.iter().filter(|(_, other)| **other == inode);
    let with_directory = |path: &Path| (path.clone(), directory_of(path).and_then(|above| tree.find(&above)));
    Some((xattr, names.map(|(path, _)| with_directory(path)).collect()))
}

/// Returns the entries of a directory by their last names.
fn entries(tree: &Tree, directory: usize) -> Option<BTreeMap<Option<u8>, usize>> {
    let (path, _) = tree.names.iter().find(|(_, inode)| **inode == directory)?;
    Some(tree.entries(path).map(|(name, inode)| (name.0.last().copied(), inode)).collect())
}

impl Story<'_> {
    /// Checks what a client has found.
    ///
    /// # Errors
    /// What is wrong.
    pub(crate) fn check(&self, moment: Moment, observed: &Observed) -> Result<(), String> {
        let least = self.least(moment);
        let mut problem = None;
        for state in (least..=moment.began).rev() {
            match self.check_state(state, moment, observed) {
                Ok(()) => return Ok(()),
                Err(wrong) => drop(problem.get_or_insert(wrong)),
            }
        }
        let problem = problem.unwrap_or_default();
        Err(format!("none of the states {least} to {} is there; not the last, as {problem}", moment.began))
    }

    /// Returns true if no name or attribute may be lost.
    pub(crate) fn is_settled(&self, moment: Moment) -> bool {
        let is_synced = self.actions[..moment.ended].last() == Some(&Action::Sync);
        moment.is_idle || is_synced && moment.began == moment.ended
    }

    /// Returns the first state whose names and attributes may be left.
    fn least(&self, moment: Moment) -> usize {
        if moment.is_idle {
            return moment.ended;
        }
        let promises = self.actions[..moment.ended].iter().enumerate();
        promises.map(|(number, action)| self.promised(number + 1, action)).max().unwrap_or(0)
    }

    /// Returns the first state from which on what an action has synced is as after the action.
    fn promised(&self, after: usize, action: &Action) -> usize {
        let now = &self.trees[after];
        match action {
            Action::Sync => after,
            Action::Fsync(path) => self.unchanged(after, |tree| reach(tree, now.find(path)?)),
            Action::FsyncDir(path) => self.unchanged(after, |tree| entries(tree, now.find(path)?)),
            _ => 0,
        }
    }

    fn unchanged<T: PartialEq>(&self, after: usize, look: impl Fn(&Tree) -> Option<T>) -> usize {
        let now = look(&self.trees[after]);
        (0..after).rev().find(|state| look(&self.trees[*state]) != now).map_or(0, |state| state + 1)
    }

    /// Returns the versions of a file since its last sync.
    fn versions(&self, inode: usize, moment: Moment) -> Vec<&[u8]> {
        let syncs = |(number, action): (usize, &Action)| match action {
            Action::Sync => Some(number + 1),
            Action::Fsync(path) if self.trees[number + 1].find(path) == Some(inode) => Some(number + 1),
            _ => None,
        };
        let synced = self.actions[..moment.ended].iter().enumerate().filter_map(syncs).max().unwrap_or(0);
        let trees = self.trees[synced..=moment.began].iter();
        let mut versions: Vec<&[u8]> =
            trees.filter_map(|tree| tree.inodes.get(inode)).map(|inode| &inode.bytes[..]).collect();
        versions.dedup();
        versions
    }

    fn check_state(&self, state: usize, moment: Moment, observed: &Observed) -> Result<(), String> {
        let tree = &self.trees[state];
        if let Some(path) = tree.names.keys().find(|path| !observed.contains_key(path)) {
            return Err(format!("{path} is missing"));
        }
        let mut fids = BTreeMap::new();
        for (path, found) in observed {
            let inode = tree.find(path).ok_or_else(|| format!("{path} is there"))?;
            let expected = &tree.inodes[inode];
            if found.directory != expected.directory {
                return Err(format!("{path} is another kind of file"));
            }
            if *fids.entry(inode).or_insert(found.fid) != found.fid {
                return Err(format!("{path} is not the same file as its other names"));
            }
            if found.xattr != expected.xattr {
                return Err(format!("{path} has the attribute {:?}, not {:?}", found.xattr, expected.xattr));
            }
            let links = tree.links(inode);
            if found.links as usize != links {
                return Err(format!("{path} has {} links, not {links}", found.links));
            }
            if !found.directory {
                let content = self.check_content(found, &self.versions(inode, moment));
                content.map_err(|problem| format!("{path}: {problem}"))?;
            }
        }
        let mut different: Vec<_> = fids.values().collect();
        different.sort();
        different.dedup();
        if different.len() != fids.len() {
            return Err("two files are one".to_owned());
        }
        Ok(())
    }

    fn check_content(&self, found: &Found, versions: &[&[u8]]) -> Result<(), String> {
        let Content { bytes, lost } = found.content.as_ref().map_err(Clone::clone)?;
        let size = bytes.len() as u64;
        if found.size != size {
            return Err(format!("{} bytes by its attributes, {size} when read", found.size));
        }
        let sizes: Vec<u64> = versions.iter().map(|bytes| bytes.len() as u64).collect();
        let (least, most) = (sizes.iter().min(), sizes.iter().max());
        let is_seam = self.seams.contains(&size) && least <= Some(&size) && Some(&size) <= most;
        if !sizes.contains(&size) && !is_seam {
            return Err(format!("{size} bytes, not any of {sizes:?}"));
        }
        // The object that had data may be lost with what was not synced.
        let is_synced = |range: &&Range<u64>| {
            let part = |version: &&[u8]| {
                version.get(range.start as usize..(range.end as usize).min(version.len())).map(<[u8]>::to_vec)
            };
            versions.windows(2).all(|two| part(&two[0]) == part(&two[1]))
        };
        if let Some(range) = lost.iter().find(is_synced) {
            return Err(format!("reads of {range:?} fail, where everything was synced"));
        }
        let is_lost = |at: usize| lost.iter().any(|range| range.contains(&(at as u64)));
        let is_allowed = |(at, byte): (usize, &u8)| {
            versions.iter().any(|version| version.get(at).copied().unwrap_or(0) == *byte) || is_lost(at)
        };
        match bytes.iter().enumerate().position(|byte| !is_allowed(byte)) {
            Some(at) => Err(format!("byte {at} is {}, which no version since its sync has", bytes[at])),
            None => Ok(()),
        }
    }
}
