//! The bytes of an object that are in the log, and their places: the newest version of each.

use nacre_types::Timestamp;
use std::collections::BTreeMap;
use std::ops::Range;

/// The bytes of one write in the log.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Record {
    /// Place in the log, in bytes since the creation of the cache. A record with a larger one is newer.
    pub at: u64,
    /// Length in bytes.
    pub len: u32,
    /// CRC-32C of the bytes.
    pub crc: u32,
    /// Offset in the object.
    pub offset: u64,
    /// Block at which its batch begins.
    pub batch: u64,
}

/// A part of a record that no newer one covers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Piece {
    /// Offset of the first byte in the object.
    pub start: u64,
    /// Offset after the last byte.
    pub end: u64,
    /// Record that it is a part of.
    pub record: Record,
    /// The disk has it too, durably.
    pub is_clean: bool,
}

impl Piece {
    pub fn len(&self) -> u64 {
        self.end - self.start
    }

    /// Returns the part of the piece inside a range.
    fn clip(mut self, range: &Range<u64>) -> Piece {
        self.start = self.start.max(range.start);
        self.end = self.end.min(range.end);
        self
    }
}

/// Dirty bytes that batches lost: block at which the batch begins, and number.
pub(super) type Lost = Vec<(u64, u64)>;

/// The pieces of an object in the log.
#[derive(Default, Debug)]
pub(super) struct Pieces {
    by_start: BTreeMap<u64, Piece>,
    /// Time of the newest write.
    pub mtime: Timestamp,
}

impl Pieces {
    pub fn is_empty(&self) -> bool {
        self.by_start.is_empty()
    }

    pub fn iter(&self) -> impl Iterator<Item = &Piece> {
        self.by_start.values()
    }

    /// Returns the number of bytes that the disk lacks.
    pub fn dirty_bytes(&self) -> u64 {
        self.iter().filter(|piece| !piece.is_clean).map(Piece::len).sum()
    }

    /// Returns the pieces that touch a range, cut to it, in order.
    pub fn within(&self, range: Range<u64>) -> Vec<Piece> {
        self.touching(&range).map(|piece| piece.clip(&range)).collect()
    }

    fn touching<'a>(&'a self, range: &Range<u64>) -> impl Iterator<Item = &'a Piece> + use<'a> {
        let before = self.by_start.range(..range.start).next_back();
        let (start, end) = (range.start, range.end.max(range.start));
        before
            .into_iter()
            .chain(self.by_start.range(start..end))
            .map(|(_, piece)| piece)
            .filter(move |piece| piece.end > start)
    }

    /// Whether any byte of a range is in the log.
    pub fn touches(&self, range: Range<u64>) -> bool {
        self.touching(&range).next().is_some()
    }

    /// Whether all bytes of a range are in the log.
    pub fn covers(&self, range: Range<u64>) -> bool {
        let mut at = range.start;
        for piece in self.touching(&range) {
            if piece.start > at {
                return false;
            }
            at = piece.end;
        }
        at >= range.end
    }

    /// Inserts a record; newer pieces keep their place.
    pub fn insert(&mut self, record: Record, lost: &mut Lost) {
        let range = record.offset..record.offset + u64::from(record.len);
        let newer: Vec<Range<u64>> = self
            .within(range.clone())
            .iter()
            .filter(|piece| piece.record.at > record.at)
            .map(|piece| piece.start..piece.end)
            .collect();
        let mut start = range.start;
        for gap_end in newer.iter().map(|newer| newer.start).chain([range.end]) {
            if start < gap_end {
                self.remove(start..gap_end, lost);
                self.by_start.insert(start, Piece { start, end: gap_end, record, is_clean: false });
            }
            let Some(next) = newer.iter().find(|newer| newer.start == gap_end) else { break };
            lost.push((record.batch, next.end - next.start));
            start = next.end;
        }
    }

    /// Removes a range.
    pub fn remove(&mut self, range: Range<u64>, lost: &mut Lost) {
        let touched: Vec<Piece> = self.touching(&range).copied().collect();
        for piece in touched {
            self.by_start.remove(&piece.start);
            let inside = piece.clip(&range);
            if !piece.is_clean {
                lost.push((piece.record.batch, inside.len()));
            }
            if piece.start < inside.start {
                self.by_start.insert(piece.start, Piece { end: inside.start, ..piece });
            }
            if piece.end > inside.end {
                self.by_start.insert(inside.end, Piece { start: inside.end, ..piece });
            }
        }
    }

    /// Notes that the disk has these bytes, as far as no newer ones replaced them.
    pub fn clean(&mut self, written: &Piece, lost: &mut Lost) {
        let range = written.start..written.end;
        let same: Vec<Piece> = self
            .touching(&range)
            .filter(|piece| piece.record.at == written.record.at && !piece.is_clean)
            .copied()
            .collect();
        for piece in same {
            let inside = piece.clip(&range);
            self.remove(inside.start..inside.end, lost);
            self.by_start.insert(inside.start, Piece { is_clean: true, ..inside });
        }
    }

    /// Drops everything in the log before `at`.
    pub fn forget_before(&mut self, at: u64) {
        self.by_start.retain(|_, piece| piece.record.at >= at);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn record(number: u64, offset: u64, len: u32) -> Record {
        Record { at: number * 4096, len, crc: 0, offset, batch: number }
    }

    proptest! {
        /// Records in any order, against one number per byte; and each batch loses exactly the bytes that it
        /// does not have any more.
        #[test]
        fn the_newest_record_of_each_byte_is_kept(
            records in prop::collection::vec((0u64..40, 1u32..20, any::<bool>()), 1..30),
            order in prop::collection::vec(any::<u16>(), 30),
        ) {
            let mut sequence: Vec<usize> = (0..records.len()).collect();
            sequence.sort_by_key(|i| order[*i] / 8192);
            let (mut pieces, mut lost) = (Pieces::default(), Lost::new());
            let mut model = [None::<(u64, bool)>; 64];
            let mut live = vec![0u64; records.len()];
            for i in sequence {
                let (offset, len, cleans) = records[i];
                let new = record(i as u64, offset, len);
                live[i] += u64::from(len);
                pieces.insert(new, &mut lost);
                for slot in &mut model[offset as usize..][..len as usize] {
                    if slot.is_none_or(|(number, _)| number < i as u64) {
                        *slot = Some((i as u64, false));
                    }
                }
                if cleans {
                    let (start, end) = (offset, offset + u64::from(len));
                    pieces.clean(&Piece { start, end, record: new, is_clean: false }, &mut lost);
                    for slot in model.iter_mut().flatten().filter(|(number, _)| *number == i as u64) {
                        slot.1 = true;
                    }
                }
            }
            for (batch, bytes) in lost {
                live[batch as usize] -= bytes;
            }
            let mut found = [None::<(u64, bool)>; 64];
            for piece in pieces.iter() {
                found[piece.start as usize..piece.end as usize].fill(Some((piece.record.batch, piece.is_clean)));
            }
            prop_assert_eq!(found, model);
            for (i, live) in live.iter().enumerate() {
                let there = model.iter().flatten().filter(|slot| **slot == (i as u64, false)).count();
                prop_assert_eq!(*live, there as u64);
            }
            for start in 0..60u64 {
                let range = start..start + 4;
                let slots = &model[start as usize..][..4];
                prop_assert_eq!(pieces.covers(range.clone()), slots.iter().all(Option::is_some));
                prop_assert_eq!(pieces.touches(range), slots.iter().any(Option::is_some));
            }
        }
    }

    #[test]
    fn a_range_that_is_forgotten_leaves_its_neighbours() {
        let (mut pieces, mut lost) = (Pieces::default(), Lost::new());
        pieces.insert(record(1, 0, 100), &mut lost);
        pieces.remove(40..60, &mut lost);
        assert_eq!(lost, [(1, 20)]);
        let ranges: Vec<(u64, u64)> = pieces.iter().map(|piece| (piece.start, piece.end)).collect();
        assert_eq!(ranges, [(0, 40), (60, 100)]);
        assert_eq!(pieces.within(30..70).iter().map(Piece::len).collect::<Vec<_>>(), [10, 10]);
        assert_eq!(pieces.dirty_bytes(), 80);
        pieces.forget_before(4097);
        assert!(pieces.is_empty());
    }
}
