//! Which bytes of a window are dirty.

/// Disjoint ranges `[start, end)` in order, none of which touches the next one.
#[derive(Default, Debug, Clone, PartialEq, Eq)]
pub(crate) struct Spans(Vec<(u32, u32)>);

impl Spans {
    /// Adds `[start, end)`, merging it with what it overlaps or touches.
    pub fn insert(&mut self, start: u32, end: u32) {
        if start >= end {
            return;
        }
        let first = self.0.partition_point(|span| span.1 < start);
        let last = self.0.partition_point(|span| span.0 <= end);
        let merged = self.0[first..last]
            .iter()
            .fold((start, end), |merged, span| (merged.0.min(span.0), merged.1.max(span.1)));
        self.0.splice(first..last, [merged]);
    }

    /// Removes `[start, end)`.
    pub fn remove(&mut self, start: u32, end: u32) {
        if start >= end {
            return;
        }
        let first = self.0.partition_point(|span| span.1 <= start);
        let last = self.0.partition_point(|span| span.0 < end);
        if first >= last {
            return;
        }
        let head = (self.0[first].0, start);
        let tail = (end, self.0[last - 1].1);
        self.0.splice(first..last, [head, tail].into_iter().filter(|span| span.0 < span.1));
    }

    /// Iterates over the ranges, in order.
    pub fn iter(&self) -> impl Iterator<Item = (u32, u32)> + '_ {
        self.0.iter().copied()
    }

    /// Returns where the last range ends; 0 if there is none.
    pub fn end(&self) -> u32 {
        self.0.last().map_or(0, |span| span.1)
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the number of bytes in all ranges.
    pub fn bytes(&self) -> u64 {
        self.0.iter().map(|span| u64::from(span.1 - span.0)).sum()
    }

    /// True if every byte of `[start, end)` is in a range.
    pub fn contains(&self, start: u32, end: u32) -> bool {
        let first = self.0.partition_point(|span| span.1 < end);
        start >= end || self.0.get(first).is_some_and(|span| span.0 <= start)
    }

    /// True if there is one range and it ends at `end`: a stream has passed it.
    pub fn is_run_to(&self, end: u32) -> bool {
        matches!(self.0.as_slice(), [one] if one.1 == end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn neighbours_become_one_range() {
        let mut spans = Spans::default();
        spans.insert(10, 20);
        spans.insert(30, 40);
        spans.insert(20, 30);
        assert_eq!(spans.iter().collect::<Vec<_>>(), [(10, 40)]);
        assert!(spans.is_run_to(40) && !spans.is_run_to(41));
        spans.remove(15, 16);
        assert_eq!((spans.iter().count(), spans.bytes()), (2, 29));
    }

    proptest! {
        #[test]
        fn ranges_are_what_a_bit_for_each_byte_would_be(
            steps in proptest::collection::vec((any::<bool>(), 0u32..64, 0u32..64), 0..40)
        ) {
            let (mut spans, mut bits) = (Spans::default(), [false; 128]);
            for (add, start, len) in steps {
                let end = start + len;
                if add { spans.insert(start, end) } else { spans.remove(start, end) }
                bits[start as usize..end as usize].fill(add);
                let mut seen = [false; 128];
                let mut previous = None;
                for (start, end) in spans.iter() {
                    prop_assert!(start < end && previous.is_none_or(|previous| previous < start));
                    previous = Some(end);
                    seen[start as usize..end as usize].fill(true);
                }
                prop_assert_eq!(&seen[..], &bits[..]);
                let is_all = bits[start as usize..end as usize].iter().all(|bit| *bit);
                prop_assert_eq!(spans.contains(start, end), is_all);
                prop_assert!(!spans.contains(start, 129));
                prop_assert_eq!(spans.bytes(), bits.iter().filter(|bit| **bit).count() as u64);
            }
        }
    }
}
