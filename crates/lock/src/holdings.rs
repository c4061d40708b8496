//! The locks that are held on one resource, arranged so that conflicts are found quickly.

use crate::bits::{INODE_BITS, InodeBits};
use crate::extent::Extent;
use crate::mode::{MODES, Mode};
use crate::resource::{Need, Policy};
use crate::tree::IntervalTree;
use std::ops::ControlFlow;

/// Calls of a visitor: the key of a lock; breaking ends the walk.
pub(crate) type Visit<'a> = &'a mut dyn FnMut(u32) -> ControlFlow<()>;

/// Locks on an inode from which on their bits are counted: fewer are looked at one by one just as quickly.
const COUNTED_FROM: usize = 16;

/// How many locks hold each bit in each mode.
type Counts = [[u32; INODE_BITS]; MODES];

/// See the [module documentation](self).
#[derive(Debug)]
pub(crate) enum Holdings {
    /// One tree per mode that occurs; in most resources one or two.
    Extents(Vec<(Mode, IntervalTree)>),
    /// All locks, and counts, so that the absence of conflicts among many is seen without a walk.
    Bits { locks: Vec<(u32, Mode, InodeBits)>, counts: Option<Box<Counts>> },
}

fn count(counts: &mut Counts, mode: Mode, bits: InodeBits) {
    bits.indices().for_each(|index| counts[mode.index()][index] += 1);
}

impl Holdings {
    /// Nothing held, on a resource of the type that this policy is for.
    pub(crate) fn for_type_of(policy: &Policy) -> Holdings {
        match policy {
            Policy::Extent(_) => Holdings::Extents(Vec::new()),
            Policy::Bits(_) => Holdings::Bits { locks: Vec::new(), counts: None },
        }
    }

    /// True if locks with this policy can be held here.
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

    /// Takes a lock out again; the arguments are those of [`Holdings::insert`].
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

    /// Visits locks whose modes and parts stand in the way of `need`. Group locks are visited for a group need whatever
    /// their group is: the caller knows it.
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

    /// The first lock that `usable` accepts among those whose mode and part serve `need`. The caller looks at groups.
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

    /// The trees of an object's locks; none for an inode.
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
