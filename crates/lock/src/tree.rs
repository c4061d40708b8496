//! Interval tree: finds the intervals that overlap a range, and the next one above an offset.
//!
//! A treap (a search tree by start whose shape is a heap of random priorities) that keeps the greatest end
//! below each node, in one array. Insertion, removal, "does anything overlap" and "what starts next" cost
//! O(log n), a list of k overlapping intervals O(k + log n). Intervals may overlap each other, and the same
//! interval may be in the tree several times under different keys.

use crate::extent::Extent;
use std::ops::ControlFlow;

const NIL: u32 = u32::MAX;

#[derive(Clone, Copy, Debug)]
struct Node {
    start: u64,
    last: u64,
    /// Greatest `last` in the subtree.
    last_max: u64,
    key: u32,
    priority: u32,
    left: u32,
    right: u32,
}

impl Node {
    fn order(&self) -> (u64, u32) {
        (self.start, self.key)
    }

    fn extent(&self) -> Extent {
        Extent { start: self.start, last: self.last }
    }
}

/// See the [module documentation](self).
#[derive(Debug)]
pub(crate) struct IntervalTree {
    nodes: Vec<Node>,
    free: Vec<u32>,
    root: u32,
    /// Source of priorities that keep the tree flat; the same in every run.
    random: fastrand::Rng,
}

impl Default for IntervalTree {
    fn default() -> Self {
        IntervalTree { nodes: Vec::new(), free: Vec::new(), root: NIL, random: fastrand::Rng::with_seed(0) }
    }
}

impl IntervalTree {
    /// Returns the number of intervals.
    pub(crate) fn len(&self) -> usize {
        self.nodes.len() - self.free.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.root == NIL
    }

    /// Adds an interval. The pair of start and key must not be in the tree.
    pub(crate) fn insert(&mut self, extent: Extent, key: u32) {
        let node = Node {
            start: extent.start,
            last: extent.last,
            last_max: extent.last,
            key,
            priority: self.random.u32(..),
            left: NIL,
            right: NIL,
        };
        let index = match self.free.pop() {
            Some(index) => {
                self.nodes[index as usize] = node;
                index
            }
            None => {
                self.nodes.push(node);
                (self.nodes.len() - 1) as u32
            }
        };
        self.root = self.insert_below(self.root, index);
    }

    /// Removes an interval; returns false if it was not in the tree.
    pub(crate) fn remove(&mut self, extent: Extent, key: u32) -> bool {
        let before = self.free.len();
        self.root = self.remove_below(self.root, (extent.start, key));
        self.free.len() > before
    }

    /// Calls `visit` for each interval that overlaps `extent`, in ascending order of starts, until it breaks.
    pub(crate) fn overlapping(
        &self,
        extent: &Extent,
        visit: &mut impl FnMut(u32, Extent) -> ControlFlow<()>,
    ) -> ControlFlow<()> {
        self.overlapping_below(self.root, extent, visit)
    }

    /// Calls `visit` for every interval in descending order of starts, until it breaks.
    pub(crate) fn descending(
        &self,
        visit: &mut impl FnMut(u32, Extent) -> ControlFlow<()>,
    ) -> ControlFlow<()> {
        self.descending_below(self.root, visit)
    }

    /// Returns the smallest start above `offset`.
    pub(crate) fn first_start_above(&self, offset: u64) -> Option<u64> {
        let (mut index, mut found) = (self.root, None);
        while index != NIL {
            let node = &self.nodes[index as usize];
            if node.start > offset {
                found = Some(node.start);
                index = node.left;
            } else {
                index = node.right;
            }
        }
        found
    }

    fn last_max(&self, index: u32) -> u64 {
        if index == NIL { 0 } else { self.nodes[index as usize].last_max }
    }

    fn update(&mut self, index: u32) {
        let Node { last, left, right, .. } = self.nodes[index as usize];
        self.nodes[index as usize].last_max = last.max(self.last_max(left)).max(self.last_max(right));
    }

    fn insert_below(&mut self, index: u32, new: u32) -> u32 {
        if index == NIL {
            return new;
        }
        let (node, added) = (self.nodes[index as usize], self.nodes[new as usize]);
        if added.priority > node.priority {
            let (left, right) = self.split(index, added.order());
            self.nodes[new as usize].left = left;
            self.nodes[new as usize].right = right;
            self.update(new);
            return new;
        }
        if added.order() < node.order() {
            let left = self.insert_below(node.left, new);
            self.nodes[index as usize].left = left;
        } else {
            let right = self.insert_below(node.right, new);
            self.nodes[index as usize].right = right;
        }
        self.update(index);
        index
    }

    /// Splits a subtree into the intervals before `order` and the rest.
    fn split(&mut self, index: u32, order: (u64, u32)) -> (u32, u32) {
        if index == NIL {
            return (NIL, NIL);
        }
        let node = self.nodes[index as usize];
        if node.order() < order {
            let (left, right) = self.split(node.right, order);
            self.nodes[index as usize].right = left;
            self.update(index);
            (index, right)
        } else {
            let (left, right) = self.split(node.left, order);
            self.nodes[index as usize].left = right;
            self.update(index);
            (left, index)
        }
    }

    /// Joins two subtrees; all of `left` comes before all of `right`.
    fn merge(&mut self, left: u32, right: u32) -> u32 {
        if left == NIL {
            return right;
        }
        if right == NIL {
            return left;
        }
        let (a, b) = (self.nodes[left as usize], self.nodes[right as usize]);
        let top = if a.priority > b.priority {
            let joined = self.merge(a.right, right);
            self.nodes[left as usize].right = joined;
            left
        } else {
            let joined = self.merge(left, b.left);
            self.nodes[right as usize].left = joined;
            right
        };
        self.update(top);
        top
    }

    fn remove_below(&mut self, index: u32, order: (u64, u32)) -> u32 {
        if index == NIL {
            return NIL;
        }
        let node = self.nodes[index as usize];
        match order.cmp(&node.order()) {
            std::cmp::Ordering::Equal => {
                self.free.push(index);
                return self.merge(node.left, node.right);
            }
            std::cmp::Ordering::Less => {
                let left = self.remove_below(node.left, order);
                self.nodes[index as usize].left = left;
            }
            std::cmp::Ordering::Greater => {
                let right = self.remove_below(node.right, order);
                self.nodes[index as usize].right = right;
            }
        }
        self.update(index);
        index
    }

    fn overlapping_below(
        &self,
        index: u32,
        extent: &Extent,
        visit: &mut impl FnMut(u32, Extent) -> ControlFlow<()>,
    ) -> ControlFlow<()> {
        if index == NIL || self.nodes[index as usize].last_max < extent.start {
            return ControlFlow::Continue(());
        }
        let node = &self.nodes[index as usize];
        self.overlapping_below(node.left, extent, visit)?;
        if node.start > extent.last {
            return ControlFlow::Continue(());
        }
        if node.last >= extent.start {
            visit(node.key, node.extent())?;
        }
        self.overlapping_below(node.right, extent, visit)
    }

    fn descending_below(
        &self,
        index: u32,
        visit: &mut impl FnMut(u32, Extent) -> ControlFlow<()>,
    ) -> ControlFlow<()> {
        if index == NIL {
            return ControlFlow::Continue(());
        }
        let node = &self.nodes[index as usize];
        self.descending_below(node.right, visit)?;
        visit(node.key, node.extent())?;
        self.descending_below(node.left, visit)
    }

    /// Returns the depth of the deepest node, for tests.
    #[cfg(test)]
    fn depth(&self, index: u32) -> usize {
        if index == NIL {
            return 0;
        }
        let node = &self.nodes[index as usize];
        1 + self.depth(node.left).max(self.depth(node.right))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn overlapping(tree: &IntervalTree, extent: Extent) -> Vec<u32> {
        let mut found = Vec::new();
        let _ = tree.overlapping(&extent, &mut |key, _| {
            found.push(key);
            ControlFlow::Continue(())
        });
        found
    }

    #[test]
    fn ten_thousand_ordered_intervals_stay_flat() {
        let mut tree = IntervalTree::default();
        for key in 0..10_000u32 {
            let start = u64::from(key) * 4096;
            tree.insert(Extent { start, last: start + 4095 }, key);
        }
        assert!(tree.depth(tree.root) < 48, "depth {}", tree.depth(tree.root));
        assert_eq!(overlapping(&tree, Extent { start: 4095, last: 4096 }), [0, 1]);
        assert_eq!(tree.first_start_above(4096), Some(8192));
        assert_eq!(tree.first_start_above(10_000 * 4096), None);
    }

    proptest! {
        #[test]
        fn the_tree_knows_what_a_list_knows(
            steps in prop::collection::vec((0u64..64, 0u64..32, 0u32..24, any::<bool>()), 1..200),
            probe in (0u64..80, 0u64..40),
        ) {
            let mut tree = IntervalTree::default();
            let mut list: Vec<(Extent, u32)> = Vec::new();
            for (start, length, key, add) in steps {
                let extent = Extent { start, last: start + length };
                let known = list.iter().position(|(held, k)| held.start == start && *k == key);
                match (add, known) {
                    (true, None) => {
                        tree.insert(extent, key);
                        list.push((extent, key));
                    }
                    (false, Some(place)) => {
                        prop_assert!(tree.remove(extent, key));
                        list.remove(place);
                    }
                    (false, None) => prop_assert!(!tree.remove(extent, key)),
                    (true, Some(_)) => {}
                }
                prop_assert_eq!(tree.len(), list.len());
                prop_assert_eq!(tree.is_empty(), list.is_empty());
            }
            let extent = Extent { start: probe.0, last: probe.0 + probe.1 };
            list.sort_by_key(|(held, key)| (held.start, *key));
            let expected: Vec<u32> =
                list.iter().filter(|(held, _)| held.overlaps(&extent)).map(|(_, key)| *key).collect();
            prop_assert_eq!(overlapping(&tree, extent), expected);
            let above = list.iter().map(|(held, _)| held.start).filter(|start| *start > probe.0).min();
            prop_assert_eq!(tree.first_start_above(probe.0), above);
            let mut down = Vec::new();
            let _ = tree.descending(&mut |key, held| {
                down.push((held.start, key));
                ControlFlow::Continue(())
            });
            let expected: Vec<_> = list.iter().rev().map(|(held, key)| (held.start, *key)).collect();
            prop_assert_eq!(down, expected);
        }
    }
}
