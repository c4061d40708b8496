//! Objects that were destroyed a short while ago: a change that arrives after the order to destroy its object must not
//! create the object again.
//!
//! A client sends a change again if the connection broke; meanwhile the file may have been removed.

use nacre_env::sync::Mutex;
use nacre_types::Fid;
use std::collections::{HashSet, VecDeque};
use std::ops::Range;

/// Number of objects remembered, at about 60 bytes each. Estimate: changes are sent again for as long as a server is
/// away, a minute or two; files removed meanwhile are fewer at the rate of one MDT.
const REMEMBERED_MAX: usize = 65_536;

#[derive(Default)]
struct Remembered {
    objects: HashSet<Fid>,
    /// The same objects and forgotten ones, in the order of their destruction.
    order: VecDeque<Fid>,
}

/// See the [module documentation](self).
#[derive(Default)]
pub(crate) struct Destroyed {
    remembered: Mutex<Remembered>,
}

impl Destroyed {
    /// Remembers objects that are about to be destroyed.
    pub fn note(&self, objects: &[Fid]) {
        let mut remembered = self.remembered.lock();
        let Remembered { objects: known, order } = &mut *remembered;
        order.extend(objects.iter().copied().filter(|object| known.insert(*object)));
        for oldest in order.drain(..order.len().saturating_sub(REMEMBERED_MAX)) {
            known.remove(&oldest);
        }
    }

    /// Forgets the ids of a sequence that are given out, possibly for the second time: an MDT that lost its last
    /// changes allocates their ids again.
    pub fn forget(&self, sequence: u64, ids: Range<u32>) {
        let mut remembered = self.remembered.lock();
        if !remembered.objects.is_empty() {
            let is_kept = |object: &Fid| object.seq != sequence || !ids.contains(&object.oid);
            remembered.objects.retain(is_kept);
            remembered.order.retain(is_kept);
        }
    }

    /// Returns true if the object was destroyed.
    pub fn contains(&self, object: &Fid) -> bool {
        self.remembered.lock().objects.contains(object)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn object(oid: u32) -> Fid {
        Fid::new(7, oid, 0)
    }

    #[test]
    fn the_oldest_objects_are_forgotten_and_ids_given_out_again() {
        let destroyed = Destroyed::default();
        destroyed.note(&[object(1), object(2), object(1)]);
        assert!(
            destroyed.contains(&object(1))
                && destroyed.contains(&object(2))
                && !destroyed.contains(&object(3))
        );
        destroyed.forget(7, 2..9);
        destroyed.forget(8, 0..9);
        assert!(destroyed.contains(&object(1)) && !destroyed.contains(&object(2)));
        destroyed.note(&(10..10 + REMEMBERED_MAX as u32).map(object).collect::<Vec<_>>());
        assert!(!destroyed.contains(&object(1)) && destroyed.contains(&object(10)));
        let remembered = destroyed.remembered.lock();
        assert_eq!((remembered.objects.len(), remembered.order.len()), (REMEMBERED_MAX, REMEMBERED_MAX));
    }
}
