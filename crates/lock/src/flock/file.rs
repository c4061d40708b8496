//! Locks and waiting calls of one file.

use super::{Access, Family, FileLock, Owner};
use crate::extent::Extent;
use crate::resource::ResourceId;
use crate::slab::Slab;
use crate::tree::IntervalTree;
use nacre_types::ClientUuid;
use std::collections::BTreeMap;
use std::ops::ControlFlow;

/// Locks by family, owner and first byte. Those of one owner and family do not overlap.
type Owned = BTreeMap<(Family, Owner, u64), u32>;

/// See the [module documentation](self).
#[derive(Debug)]
pub(super) struct File {
    pub(super) id: ResourceId,
    locks: Slab<FileLock>,
    owned: Owned,
    /// The same by range, one tree for each access that occurs in a family.
    places: Vec<(Family, Access, IntervalTree)>,
    /// Waiting calls in the order of their arrival.
    pub(super) waiting: Vec<u32>,
}

impl File {
    pub(super) fn new(id: ResourceId) -> File {
        File { id, locks: Slab::default(), owned: Owned::new(), places: Vec::new(), waiting: Vec::new() }
    }

    /// Returns the number of locks.
    pub(super) fn len(&self) -> usize {
        self.locks.len()
    }

    pub(super) fn locks(&self) -> impl Iterator<Item = FileLock> {
        self.locks.iter().map(|(_, lock)| *lock)
    }

    /// Returns the locks that conflict with `lock`.
    pub(super) fn blockers(&self, lock: &FileLock) -> impl Iterator<Item = FileLock> {
        let mut found = Vec::new();
        let in_the_way = self.places.iter().filter(|(family, access, _)| {
            *family == lock.family && (*access == Access::Write || lock.access == Access::Write)
        });
        for (_, _, tree) in in_the_way {
            let _ = tree.overlapping(&lock.extent, &mut |key, _| {
                if self.locks[key].conflicts_with(lock) {
                    found.push(self.locks[key]);
                }
                ControlFlow::Continue(())
            });
        }
        found.into_iter()
    }

    /// True if the owner holds the file in another mode, which it gives up before it requests the new one.
    pub(super) fn gives_up_for(&self, lock: &FileLock) -> bool {
        let held = self.owned.get(&(lock.family, lock.owner, 0));
        held.is_some_and(|key| self.locks[*key].access != lock.access)
    }

    /// True if a lock of the owner extends beyond the range on both sides.
    pub(super) fn splits(&self, family: Family, owner: Owner, extent: Extent) -> bool {
        let before = self.owned.range((family, owner, 0)..(family, owner, extent.start)).next_back();
        before.is_some_and(|(_, key)| self.locks[*key].extent.last > extent.last)
    }

    /// Sets `lock`: replaces what its owner had on the range and joins neighbours of the same access.
    pub(super) fn set(&mut self, lock: &FileLock) {
        let mut joined = *lock;
        let near =
            Extent { start: lock.extent.start.saturating_sub(1), last: lock.extent.last.saturating_add(1) };
        for key in self.owned_in(lock.family, lock.owner, near) {
            let held = self.locks[key];
            if held.access == lock.access {
                joined.extent = joined.extent.hull(&held.extent);
                self.remove(key);
            }
        }
        self.unlock(lock.family, lock.owner, lock.extent);
        self.insert(joined);
    }

    /// Removes the owner's locks from the range.
    pub(super) fn unlock(&mut self, family: Family, owner: Owner, extent: Extent) {
        for key in self.owned_in(family, owner, extent) {
            let held = self.locks[key];
            self.remove(key);
            if held.extent.start < extent.start {
                self.insert(FileLock { extent: Extent { last: extent.start - 1, ..held.extent }, ..held });
            }
            if held.extent.last > extent.last {
                self.insert(FileLock { extent: Extent { start: extent.last + 1, ..held.extent }, ..held });
            }
        }
    }

    /// Removes all locks of a client.
    pub(super) fn unlock_client(&mut self, client: ClientUuid) {
        for family in [Family::Range, Family::File] {
            let (first, last) = (Owner { client, number: 0 }, Owner { client, number: u64::MAX });
            let range = (family, first, 0)..=(family, last, u64::MAX);
            let keys: Vec<u32> = self.owned.range(range).map(|(_, key)| *key).collect();
            keys.into_iter().for_each(|key| self.remove(key));
        }
    }

    /// True if the owner holds anything.
    pub(super) fn has_any(&self, family: Family, owner: Owner) -> bool {
        self.owned.range((family, owner, 0)..=(family, owner, u64::MAX)).next().is_some()
    }

    /// Returns the owner's locks within a range, clipped to it, in order.
    pub(super) fn pieces(&self, family: Family, owner: Owner, extent: Extent) -> Vec<FileLock> {
        let keys = self.owned_in(family, owner, extent);
        keys.into_iter()
            .map(|key| {
                let held = self.locks[key];
                let (start, last) = (held.extent.start.max(extent.start), held.extent.last.min(extent.last));
                FileLock { extent: Extent { start, last }, ..held }
            })
            .collect()
    }

    /// True if the owner holds the lock's whole range with at least its access.
    pub(super) fn covers(&self, lock: &FileLock) -> bool {
        let mut next = Some(lock.extent.start);
        for piece in self.pieces(lock.family, lock.owner, lock.extent) {
            if next != Some(piece.extent.start)
                || (lock.access == Access::Write && piece.access == Access::Read)
            {
                return false;
            }
            if piece.extent.last == lock.extent.last {
                return true;
            }
            next = piece.extent.last.checked_add(1);
        }
        false
    }

    /// Returns the owner's locks that overlap the range.
    fn owned_in(&self, family: Family, owner: Owner, extent: Extent) -> Vec<u32> {
        let before = self.owned.range((family, owner, 0)..(family, owner, extent.start)).next_back();
        let before = before.filter(|(_, key)| self.locks[**key].extent.last >= extent.start);
        let inside = self.owned.range((family, owner, extent.start)..=(family, owner, extent.last));
        before.into_iter().chain(inside).map(|(_, key)| *key).collect()
    }

    fn insert(&mut self, lock: FileLock) {
        let key = self.locks.insert(lock);
        self.owned.insert((lock.family, lock.owner, lock.extent.start), key);
        let same = |(family, access, _): &(Family, Access, IntervalTree)| {
            *family == lock.family && *access == lock.access
        };
        let place = self.places.iter().position(same).unwrap_or_else(|| {
            self.places.push((lock.family, lock.access, IntervalTree::default()));
            self.places.len() - 1
        });
        self.places[place].2.insert(lock.extent, key);
    }

    fn remove(&mut self, key: u32) {
        let Some(lock) = self.locks.remove(key) else { return };
        self.owned.remove(&(lock.family, lock.owner, lock.extent.start));
        for (family, access, tree) in &mut self.places {
            if *family == lock.family && *access == lock.access {
                tree.remove(lock.extent, key);
            }
        }
    }
}
