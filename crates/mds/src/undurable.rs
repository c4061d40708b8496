//! Changes that are not durable yet, by inode.
//!
//! A transaction over several MDTs may become durable on another MDT before what it depends on is durable here. If
//! this MDT then lost power, and no client replayed the loss, names there would refer to inodes that were never made.
//! So an MDT makes durable what such a transaction depends on before it takes part in it, as Lustre commits on sharing.

use crate::cache::FidMap;
use nacre_env::sync::Mutex;
use nacre_types::{Fid, TransNo};

/// Newest changes of an inode.
#[derive(Clone, Copy, Default)]
struct Change {
    /// Any change; 0 for none.
    any: TransNo,
    /// Its creation; 0 for none.
    creation: TransNo,
}

#[derive(Default)]
struct Generation {
    changes: FidMap<Change>,
    newest: TransNo,
}

/// See the [module documentation](self).
#[derive(Default)]
pub(crate) struct Undurable {
    /// The young generation and the old one, which is dropped when all of it is durable.
    generations: Mutex<(Generation, Generation)>,
}

/// What a transaction needs of an inode.
#[derive(Clone, Copy)]
pub(crate) enum Needs {
    /// All changes: it changes the inode as a whole.
    Everything,
    /// Its creation: it changes names in the directory.
    Existence,
}

impl Undurable {
    /// Records that a transaction changed an inode, or created it.
    pub fn note(&self, fid: &Fid, transno: TransNo, is_new: bool, last_committed: TransNo) {
        let (young, old) = &mut *self.generations.lock();
        if old.newest <= last_committed {
            std::mem::swap(young, old);
            young.changes.clear();
        }
        young.newest = young.newest.max(transno);
        let change = young.changes.entry(*fid).or_default();
        change.any = change.any.max(transno);
        if is_new {
            change.creation = transno;
        }
    }

    /// Returns the transno that must be durable before a transaction that needs this of an inode; 0 for none.
    pub fn needed(&self, fid: &Fid, needs: Needs) -> TransNo {
        let (young, old) = &*self.generations.lock();
        let changes = [young, old].into_iter().filter_map(|generation| generation.changes.get(fid));
        let newest = changes.map(|change| match needs {
            Needs::Everything => change.any,
            Needs::Existence => change.creation,
        });
        newest.max().unwrap_or(TransNo(0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_are_known_until_they_are_durable() {
        let undurable = Undurable::default();
        let (directory, file) = (Fid::new(7, 1, 0), Fid::new(7, 2, 0));
        undurable.note(&directory, TransNo(5), true, TransNo(4));
        undurable.note(&directory, TransNo(6), false, TransNo(4));
        undurable.note(&file, TransNo(6), true, TransNo(4));
        let needed = |fid, needs| undurable.needed(fid, needs).0;
        assert_eq!(needed(&directory, Needs::Existence), 5);
        assert_eq!(needed(&directory, Needs::Everything), 6);
        undurable.note(&file, TransNo(9), false, TransNo(5));
        assert_eq!(needed(&directory, Needs::Everything), 6, "the second change is not durable");
        for transno in 10..13 {
            undurable.note(&file, TransNo(transno), false, TransNo(transno - 1));
        }
        assert_eq!((needed(&directory, Needs::Everything), needed(&file, Needs::Everything)), (0, 12));
    }
}
