//! The granted locks of one resource, indexed so that conflicts are found quickly.

use crate::bits::{INODE_BITS, InodeBits};
use crate::extent::Extent;
use crate::mode::{MODES, Mode};
use crate::resource::{Need, Policy};
use crate::tree::IntervalTree;
use std::ops::ControlFlow;

/// Visitor that is called with the key of each lock; `Break` ends the walk.
pub(crate) type Visit<'a> = &'a mut dyn FnMut(u32) -> ControlFlow<()>;

/// Number of locks on an inode from which their bits are counted; a scan of fewer is as fast.
const COUNTED_FROM: usize = 16;

/// Number of locks that hold each bit in each mode.
type Counts = [[u32; INODE_BITS]; MODES];

/// See the [module documentation](self).
#[derive(Debug)]
pub(crate) enum Holdings {
    /// One tree per mode that occurs; on most resources one or two.
    Extents(Vec<(Mode, IntervalTree)>),
    /// All locks, and counts that show the absence of conflicts among many locks without a scan.
    Bits { locks: Vec<(u32, Mode, InodeBits)>, counts: Option<Box<Counts>> },
}

fn count(counts: &mut Counts, mode: Mode, bits: InodeBits) {
    bits.indices().for_each(|index| counts[mode.index()][index] += 1);
}

impl Holdings {
    /// Creates an empty set for a resource of the type that this policy belongs to.
    pub(crate) fn for_type_of(policy: &Policy) -> Holdings {
        match policy {
            Policy::Extent(_) => Holdings::Extents(Vec::new()),
            Policy::Bits(_) => Holdings::Bits { locks: Vec::new(), counts: None },
        }
    }

    /// True if this resource can have locks with this policy.
    pub(crate) fn fits(&self, policy: &Policy) -> bool {
        matches!(
            (self, policy),
            (Holdings::Extents(_), Policy::Extent(_)) | (Holdings::Bits { .. }, Policy::Bits(_))
        )
    }

    pub(crate) fn is_empty(&self) -> bool {
        match self {
            Holdings::Extents(trees) => trees.iter().all(|(_, tree)| tree.is_empty()),
            Holdings::Bits { locks, .. } => locks.is_empty(),
        }
    }

    /// Adds a lock. The policy must fit.
    pub(crate) fn insert(&mut self, mode: Mode, policy: &Policy, key: u32) {
        match (self, policy) {
            (Holdings::Extents(trees), Policy::Extent(extent)) => {
                let place = trees.iter().position(|(held, _)| *held == mode).unwrap_or_else(|| {
                    trees.push((mode, IntervalTree::default()));
                    trees.len() - 1
                });
                trees[place].1.insert(*extent, key);
            }
            (Holdings::Bits { locks, counts }, Policy::Bits(bits)) => {
                locks.push((key, mode, *bits));
                if let Some(counts) = counts {
                    count(counts, mode, *bits);
                } else if locks.len() >= COUNTED_FROM {
                    let mut all = Box::<Counts>::default();
                    locks.iter().for_each(|(_, held, bits)| count(&mut all, *held, *bits));
                    *counts = Some(all);
                }
            }
            _ => debug_assert!(false, "callers look at `fits` first"),
        }
    }

    /// Removes a lock; the arguments are those of [`Holdings::insert`].
    pub(crate) fn remove(&mut self, mode: Mode, policy: &Policy, key: u32) {
        match (self, policy) {
            (Holdings::Extents(trees), Policy::Extent(extent)) => {
                if let Some((_, tree)) = trees.iter_mut().find(|(held, _)| *held == mode) {
                    tree.remove(*extent, key);
                }
            }
            (Holdings::Bits { locks, counts }, Policy::Bits(bits)) => {
                if let Some(place) = locks.iter().position(|(held, ..)| *held == key) {
                    locks.swap_remove(place);
                    if let Some(counts) = counts {
                        bits.indices().for_each(|index| counts[mode.index()][index] -= 1);
                    }
                }
                if locks.is_empty() {
                    *counts = None;
                }
            }
            _ => debug_assert!(false, "what was inserted did fit"),
        }
    }

    /// Visits locks whose mode and part conflict with `need`. A group need visits all group locks, whatever
    /// their group: the caller compares the groups.
    pub(crate) fn conflicting(&self, need: &Need, visit: Visit<'_>) -> ControlFlow<()> {
        let in_the_way = |held: Mode| {
            held == Mode::Group && need.mode == Mode::Group || !need.mode.compatible().contains(held)
        };
        match (self, &need.policy) {
            (Holdings::Extents(trees), Policy::Extent(extent)) => {
                for (_, tree) in trees.iter().filter(|(held, _)| in_the_way(*held)) {
                    tree.overlapping(extent, &mut |key, _| visit(key))?;
                }
            }
            (Holdings::Bits { locks, counts }, Policy::Bits(bits)) => {
                let any = |counts: &Counts| {
                    let mut modes = Mode::ALL.into_iter().filter(|held| in_the_way(*held));
                    modes.any(|held| bits.indices().any(|index| counts[held.index()][index] > 0))
                };
                if counts.as_deref().is_some_and(|counts| !any(counts)) {
                    return ControlFlow::Continue(());
                }
                for (key, held, held_bits) in locks {
                    if in_the_way(*held) && bits.overlaps(*held_bits) {
                        visit(*key)?;
                    }
                }
            }
            _ => {}
        }
        ControlFlow::Continue(())
    }

    /// Finds the first lock that `usable` accepts among those whose mode and part serve `need`. The caller
    /// compares the groups.
    pub(crate) fn serving(&self, need: &Need, mut usable: impl FnMut(u32) -> bool) -> Option<u32> {
        let mut found = None;
        match (self, &need.policy) {
            (Holdings::Extents(trees), Policy::Extent(extent)) => {
                let probe = Extent { start: extent.start, last: extent.start };
                for (_, tree) in trees.iter().filter(|(held, _)| held.serves(need.mode)) {
                    let walk = tree.overlapping(&probe, &mut |key, held| {
                        if held.contains(extent) && usable(key) {
                            found = Some(key);
                            return ControlFlow::Break(());
                        }
                        ControlFlow::Continue(())
                    });
                    if walk.is_break() {
                        break;
                    }
                }
            }
            (Holdings::Bits { locks, .. }, Policy::Bits(bits)) => {
                let mut serving = locks
                    .iter()
                    .filter(|(_, held, held_bits)| held.serves(need.mode) && held_bits.contains(*bits));
                found = serving.find(|(key, ..)| usable(*key)).map(|(key, ..)| *key);
            }
            _ => {}
        }
        found
    }

    /// Trees of the locks of an object; empty for an inode.
    pub(crate) fn trees(&self) -> &[(Mode, IntervalTree)] {
        match self {
            Holdings::Extents(trees) => trees,
            Holdings::Bits { .. } => &[],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn conflicts_of_many_inode_locks_are_those_of_a_list(
            steps in prop::collection::vec((0usize..MODES - 1, 1u8..0x80, any::<bool>()), 1..120),
            probe in (0usize..MODES - 1, 1u8..0x80),
        ) {
            let bits = |bits| InodeBits::from_bits(bits).expect("seven bits");
            let mut holdings = Holdings::for_type_of(&Policy::Bits(InodeBits::ALL));
            let mut list: Vec<(u32, Need)> = Vec::new();
            for (key, (mode, held, add)) in steps.into_iter().enumerate() {
                let need = Need::bits(Mode::ALL[mode], bits(held));
                if add || list.is_empty() {
                    holdings.insert(need.mode, &need.policy, key as u32);
                    list.push((key as u32, need));
                } else {
                    let (key, need) = list.remove(usize::from(held) % list.len());
                    holdings.remove(need.mode, &need.policy, key);
                }
                let need = Need::bits(Mode::ALL[probe.0], bits(probe.1));
                let mut found = Vec::new();
                let _ = holdings.conflicting(&need, &mut |key| {
                    found.push(key);
                    ControlFlow::Continue(())
                });
                found.sort();
                let expected: Vec<u32> = list
                    .iter()
                    .filter(|(_, held)| held.conflicts_with(&need))
                    .map(|(key, _)| *key)
                    .collect();
                prop_assert_eq!(found, expected);
                prop_assert_eq!(holdings.is_empty(), list.is_empty());
            }
        }
    }
}
