//! Inodes below directories on several MDTs, also while names and inodes move.

use super::*;
use nacre_types::DirCounts;
use nacre_wire::dir_use::{DirUseReply, DirUseRequest};

impl World {
    /// Compares the sums below each directory with those of the namespace.
    pub(super) fn check_sums(&self, tree: &Tree) {
        let mdts = || (0..self.count()).filter_map(|mdt| self.net.get(mdt));
        eventually("the count", || mdts().all(|mds| mds.leaves.dir_use.is_complete()));
        for (dir, entries) in tree.iter().filter(|(dir, entries)| **dir == Fid::ROOT || entries.len() > 1) {
            let found = self.sums(*dir);
            let mut expected = DirCounts::default();
            for file in self.below(tree, *dir, &mut expected.directories) {
                let mds = self.net.get(file.mdt_index()).expect("alive");
                let first = mds.leaves.records.inode(&file).expect("a record").parent;
                expected.files += u64::from(first == *dir || self.is_below(tree, *dir, first));
            }
            let counts = (found.files, found.directories, found.others);
            assert_eq!(counts, (expected.files, expected.directories, 0), "{dir} {entries:?}");
        }
    }

    /// Returns the files below a directory, and counts the directories.
    fn below(&self, tree: &Tree, dir: Fid, dirs: &mut u64) -> BTreeSet<Fid> {
        let mut files = BTreeSet::new();
        for entry in tree[&dir].values() {
            if entry.is_dir {
                *dirs += 1;
                files.extend(self.below(tree, entry.fid, dirs));
            } else {
                files.insert(entry.fid);
            }
        }
        files
    }

    /// Returns true if a directory, or one that replaces it, is below another one.
    fn is_below(&self, tree: &Tree, dir: Fid, lower: Fid) -> bool {
        let mut at = lower;
        while at != Fid::ROOT && !at.is_zero() {
            if at == dir && tree.contains_key(&at) {
                return true;
            }
            let mds = self.net.get(at.mdt_index()).expect("alive");
            at = mds.leaves.records.inode(&at).expect("a directory").parent;
        }
        at == dir
    }

    /// Returns the sums of all MDTs, asked in small parts.
    fn sums(&self, top: Fid) -> DirCounts {
        let mut total = DirCounts::default();
        let mut pending: Vec<(Vec<Fid>, Fid)> = (0..self.count()).map(|_| (vec![top], Fid::ZERO)).collect();
        while let Some(mdt) = pending.iter().position(|(dirs, _)| !dirs.is_empty()) {
            let (dirs, after) = pending[mdt].clone();
            let request = MdsRequest::DirUse(DirUseRequest { dirs: dirs.clone(), after, lists: true });
            let Ok(MdsReply::DirUse(reply)) = self.run(mdt as u16, &request) else { panic!("sums") };
            let DirUseReply { counts, dirs: found, done, after, .. } = reply;
            total.add(&counts);
            let rest = dirs.into_iter().chain(found.iter().copied()).skip(done as usize).collect();
            pending[mdt] = (rest, after);
            for (_, (others, _)) in pending.iter_mut().enumerate().filter(|(other, _)| *other != mdt) {
                others.extend(&found);
            }
        }
        total
    }
}
