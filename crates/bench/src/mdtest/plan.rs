//! The directories and items of a run, and their names. Pure.

use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::error::Error;

/// Items of a tree, at most: a larger number is a typing error.
const ITEMS_MAX: u64 = 1 << 32;

/// Kind of items: files or directories.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Kind {
    Directory,
    File,
}

/// The shape of the tree that every task has, or that all share.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Plan {
    /// Directories of the trees, assigned to tasks round-robin.
    pub(super) directories: Vec<PathBuf>,
    /// Number of levels below the root of the tree.
    pub(super) depth: u32,
    /// Number of directories in each directory above the last level.
    pub(super) branch: u64,
    /// Items are in directories of the last level only.
    pub(super) leaf_only: bool,
    /// One tree per task rather than a common one.
    pub(super) unique: bool,
    /// Items of one task in each directory that has any.
    pub(super) items_per_directory: u64,
}

impl Plan {
    /// Spreads `items` of each task over the tree, or uses `items_per_directory` unchanged.
    pub(super) fn with_items(
        mut self,
        items: Option<u64>,
        items_per_directory: Option<u64>,
    ) -> Result<Plan, Error> {
        for directory in &mut self.directories {
            let absolute = std::path::absolute(&*directory);
            *directory = absolute.map_err(Error::io("find", &*directory))?;
        }
        self.branch = self.branch.max(1);
        let too_many =
            || Error::Usage("the tree has too many directories or items: lower -z, -b, -n or -I".to_owned());
        let inhabited = self.checked_inhabited().filter(|&count| count <= ITEMS_MAX).ok_or_else(too_many)?;
        self.items_per_directory = match (items, items_per_directory) {
            (Some(_), Some(_)) => return Err(Error::Usage("give -n or -I, not both".to_owned())),
            (Some(items), None) => items / inhabited,
            (None, Some(each)) => each,
            (None, None) => 0,
        };
        if items.is_some_and(|items| items > 0 && self.items_per_directory == 0) {
            return Err(Error::Usage(format!(
                "fewer items than the {inhabited} directories that are to have some"
            )));
        }
        inhabited
            .checked_mul(self.items_per_directory)
            .filter(|&count| count <= ITEMS_MAX)
            .ok_or_else(too_many)?;
        Ok(self)
    }

    /// Returns the number of directories of a tree, 1 + b + b^2 and so on; `None` on overflow.
    fn checked_directories(&self) -> Option<u64> {
        (0..=self.depth).try_fold(0u64, |sum, level| sum.checked_add(self.branch.checked_pow(level)?))
    }

    fn checked_inhabited(&self) -> Option<u64> {
        let all = self.checked_directories()?;
        if self.leaf_only { self.branch.checked_pow(self.depth) } else { Some(all) }
    }

    /// Returns the number of directories of one tree.
    fn tree_len(&self) -> u64 {
        self.checked_directories().expect("checked when the plan was made")
    }

    /// Returns the first directory with items, and the number of directories with items.
    fn inhabited(&self) -> (u64, u64) {
        let count = self.checked_inhabited().expect("checked when the plan was made");
        (self.tree_len() - count, count)
    }

    /// Returns the number of items of one task.
    pub(super) fn items(&self) -> u64 {
        self.inhabited().1 * self.items_per_directory
    }

    /// Returns the roots of an iteration's trees, one per directory.
    pub(super) fn tops(&self, iteration: u64) -> impl Iterator<Item = PathBuf> {
        self.directories.iter().map(move |directory| directory.join(format!("test-dir.{iteration}-0")))
    }

    fn top(&self, iteration: u64, rank: u64) -> PathBuf {
        let at = rank as usize % self.directories.len();
        self.tops(iteration).nth(at).expect("there is a directory")
    }

    /// Returns whether task `rank` creates and removes a tree: its own, or the common one of all tasks in the
    /// same directory.
    pub(super) fn keeps_tree(&self, rank: u64) -> bool {
        self.unique || rank < self.directories.len() as u64
    }

    /// Returns all directories of the tree of task `rank`, parents before children.
    pub(super) fn tree(&self, iteration: u64, rank: u64) -> Vec<PathBuf> {
        let tree = if self.unique { format!("mdtest_tree.{rank}") } else { "mdtest_tree".to_owned() };
        let mut all: Vec<PathBuf> = Vec::new();
        for number in 0..self.tree_len() {
            // Numbered level by level, so a directory's parent has this number.
            let parent = number.checked_sub(1).map(|before| all[(before / self.branch) as usize].clone());
            all.push(parent.unwrap_or_else(|| self.top(iteration, rank)).join(format!("{tree}.{number}")));
        }
        all
    }

    /// Returns the paths of all items that task `rank` creates.
    pub(super) fn paths(&self, iteration: u64, rank: u64, kind: Kind) -> Result<Vec<CString>, Error> {
        let (first, _) = self.inhabited();
        let name = match kind {
            Kind::Directory => "dir.mdtest",
            Kind::File => "file.mdtest",
        };
        let mut paths = Vec::with_capacity(self.items() as usize);
        for (at, directory) in self.tree(iteration, rank).into_iter().skip(first as usize).enumerate() {
            for item in 0..self.items_per_directory {
                let number = at as u64 * self.items_per_directory + item;
                let path = directory.join(format!("{name}.{rank}.{number}"));
                let path = CString::new(path.as_os_str().as_bytes())
                    .map_err(|_| Error::Usage("a path has a zero byte in it".to_owned()))?;
                paths.push(path);
            }
        }
        Ok(paths)
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn tree(directories: &[&str]) -> Plan {
        let directories = directories.iter().map(PathBuf::from).collect();
        let (depth, branch, leaf_only, unique) = (0, 1, false, false);
        Plan { directories, depth, branch, leaf_only, unique, items_per_directory: 0 }
    }

    fn plan(depth: u32, branch: u64, leaf_only: bool, items: Option<u64>, each: Option<u64>) -> Plan {
        let plan = Plan { depth, branch, leaf_only, unique: true, ..tree(&["/d"]) };
        plan.with_items(items, each).expect("a plan")
    }

    #[test]
    fn items_are_spread_over_all_directories_or_over_the_leaves() {
        let all = plan(2, 3, false, Some(30), None);
        assert_eq!((all.tree_len(), all.items_per_directory, all.items()), (13, 2, 26));
        let leaves = plan(2, 3, true, Some(30), None);
        assert_eq!((leaves.tree_len(), leaves.items_per_directory, leaves.items()), (13, 3, 27));
        let each = plan(1, 1, true, None, Some(10));
        assert_eq!((each.tree_len(), each.items()), (2, 10));
    }

    #[test]
    fn names_lie_in_their_directories_and_none_is_given_twice() {
        let plan = plan(2, 2, true, None, Some(2));
        let tree = plan.tree(1, 3);
        assert_eq!(tree[0], Path::new("/d/test-dir.1-0/mdtest_tree.3.0"));
        assert_eq!(tree[6], tree[2].join("mdtest_tree.3.6"));
        let mut paths = plan.paths(1, 3, Kind::File).expect("paths");
        assert_eq!(paths.len(), 8);
        assert!(paths[7].to_str().expect("text").starts_with(tree[6].to_str().expect("text")));
        assert!(paths[7].to_bytes().ends_with(b"/file.mdtest.3.7"));
        paths.dedup();
        assert_eq!(paths.len(), 8);
    }

    #[test]
    fn a_tree_for_all_has_no_number_of_a_task() {
        let shared = Plan { unique: false, ..plan(0, 1, false, Some(1), None) };
        assert_eq!(shared.tree(0, 0), shared.tree(0, 5));
        assert_ne!(
            shared.paths(0, 0, Kind::File).expect("paths"),
            shared.paths(0, 5, Kind::File).expect("paths")
        );
    }

    #[test]
    fn tasks_take_directories_in_turn_and_the_first_in_each_keeps_the_tree() {
        let shared = tree(&["/a", "/b"]).with_items(Some(1), None).expect("a plan");
        let tops: Vec<PathBuf> = (0..3).map(|rank| shared.tree(4, rank)[0].clone()).collect();
        assert_eq!(tops[0], Path::new("/a/test-dir.4-0/mdtest_tree.0"));
        assert_eq!(tops[1], Path::new("/b/test-dir.4-0/mdtest_tree.0"));
        assert_eq!(tops[2], tops[0]);
        assert_eq!([0, 1, 2].map(|rank| shared.keeps_tree(rank)), [true, true, false]);
        assert!(Plan { unique: true, ..shared }.keeps_tree(2));
    }

    #[test]
    fn wishes_that_cannot_be_met_are_refused() {
        let try_plan =
            |depth, branch, items, each| Plan { depth, branch, ..tree(&["/d"]) }.with_items(items, each);
        assert!(try_plan(60, 10, Some(1), None).is_err(), "too many directories");
        assert!(try_plan(2, 10, Some(10), None).is_err(), "fewer items than directories");
        assert!(try_plan(0, 1, Some(10), Some(10)).is_err(), "both");
        assert!(try_plan(3, 100, None, Some(u64::MAX)).is_err(), "too many items");
    }
}
