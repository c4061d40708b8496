//! Allocated object ids, as recorded in the index of a store.

use super::{ORPHANS_MAX, ObjectError, ObjectProblem, ObjectVerifyReport, Result};
use crate::meta::{Batch, MetaStore, Table};
use nacre_env::sync::{Mutex, MutexGuard};
use nacre_ondisk::DecodeError;
use nacre_ondisk::object::SequenceRecord;
use nacre_types::Fid;
use std::collections::{HashMap, HashSet};
use std::ops::{Bound, ControlFlow, Range};
use std::path::Path;

/// Object records: FID in key form -> the store's record of an object.
pub(super) const OBJECTS: Table = Table(1);
/// Sequence records: sequence, big-endian -> [`SequenceRecord`].
pub(super) const SEQUENCES: Table = Table(2);

/// Returns the largest id of a sequence that was allocated; 0 if none was.
pub(super) fn last_reserved(index: &MetaStore, sequence: u64) -> Result<u32> {
    match index.get(SEQUENCES, &sequence.to_be_bytes(), |value| value.map(SequenceRecord::decode))? {
        None => Ok(0),
        Some(Ok(record)) => Ok(record.last_reserved),
        Some(Err(_)) => Err(ObjectError::IndexDamaged { what: "the record of a sequence cannot be read" }),
    }
}

/// Serialises changes of the sequences.
#[derive(Default)]
pub(super) struct Sequences {
    turn: Mutex<()>,
}

impl Sequences {
    /// Keeps other threads from reserving; they may wait for a sync.
    pub(super) fn lock<'a>(&'a self, index: &'a MetaStore) -> LockedSequences<'a> {
        let turn = self.turn.try_lock().unwrap_or_else(|| nacre_env::blocking(|| self.turn.lock()));
        LockedSequences { index, _turn: turn }
    }

    /// Checks the records, and compares the `largest` ids that objects of each sequence have with those
    /// allocated; these are raised if `repair` is set.
    pub(super) fn verify(
        &self,
        index: &MetaStore,
        largest: HashMap<u64, u32>,
        repair: bool,
        report: &mut ObjectVerifyReport,
    ) -> Result<()> {
        let mut bad = HashSet::new();
        let mut count = 0;
        index.scan(SEQUENCES, &[], Bound::Unbounded, &mut |key, value| {
            count += 1;
            let error = match SequenceRecord::decode(value) {
                Err(error) => error,
                Ok(_) if key.len() != 8 => DecodeError::Field("key"),
                Ok(_) => return ControlFlow::Continue(()),
            };
            report.add(ObjectProblem::Record { key: key.to_vec(), error }, false);
            bad.insert(key.to_vec());
            ControlFlow::Continue(())
        })?;
        report.sequences = count;
        for (sequence, largest) in largest {
            if bad.contains(&sequence.to_be_bytes()[..]) {
                continue;
            }
            let sequences = self.lock(index);
            let last_reserved = last_reserved(index, sequence)?;
            if largest > last_reserved {
                if repair {
                    sequences.put(sequence, largest)?;
                }
                let object = Fid::new(sequence, largest, 0);
                report.add(ObjectProblem::AboveReserved { object, last_reserved }, repair);
            }
        }
        Ok(())
    }
}

/// The sequences of a store, locked for changes.
pub(super) struct LockedSequences<'a> {
    index: &'a MetaStore,
    _turn: MutexGuard<'a, ()>,
}

impl LockedSequences<'_> {
    fn put(&self, sequence: u64, last_reserved: u32) -> Result<()> {
        let mut batch = Batch::new();
        batch.put(SEQUENCES, &sequence.to_be_bytes(), &SequenceRecord { last_reserved }.encode());
        let transno = self.index.commit(&batch)?;
        nacre_env::blocking(|| self.index.sync(transno))?;
        Ok(())
    }

    /// See [`Ids::reserve`](super::Ids::reserve).
    pub(super) fn reserve(&self, sequence: u64, count: u32) -> Result<Range<u32>> {
        let last = last_reserved(self.index, sequence)?;
        let new_last = last.saturating_add(count).min(u32::MAX - 1);
        if count > 0 && new_last == last {
            return Err(ObjectError::SequenceFull(sequence));
        }
        if new_last > last {
            self.put(sequence, new_last)?;
        }
        Ok(last + 1..new_last + 1)
    }

    /// Returns the objects of a sequence from an id on; `None` if there are more than can be orphans.
    fn orphans(&self, sequence: u64, first: u32) -> Result<Option<Vec<Fid>>> {
        let mut orphans = Vec::new();
        let from = Fid::new(sequence, first, 0).to_key();
        self.index.scan(OBJECTS, &sequence.to_be_bytes(), Bound::Included(&from), &mut |key, _| {
            orphans.extend(key.try_into().ok().map(Fid::from_key));
            if orphans.len() as u64 > ORPHANS_MAX {
                ControlFlow::Break(())
            } else {
                ControlFlow::Continue(())
            }
        })?;
        Ok(Some(orphans).filter(|orphans| orphans.len() as u64 <= ORPHANS_MAX))
    }

    /// See [`Ids::destroy_orphans`](super::Ids::destroy_orphans), of the store in `dir`.
    pub(super) fn destroy_orphans(
        &self,
        sequence: u64,
        last_used: u32,
        dir: &Path,
        destroy: impl FnOnce(&[Fid]) -> Result<u64>,
    ) -> Result<u32> {
        let Some(first) = last_used.checked_add(1) else { return Err(ObjectError::SequenceFull(sequence)) };
        match self.orphans(sequence, first)? {
            None => log::error!(
                "{}: more than {ORPHANS_MAX} objects of sequence {sequence:#x} lie above the last used id {last_used}: \
                 nothing is destroyed",
                dir.display()
            ),
            Some(orphans) if orphans.is_empty() => {}
            Some(orphans) => {
                let count = destroy(&orphans)?;
                log::info!("{}: destroyed {count} orphans of sequence {sequence:#x}", dir.display());
            }
        }
        let mut last = last_reserved(self.index, sequence)?;
        if last_used > last {
            if last > 0 {
                log::error!(
                    "{}: objects of sequence {sequence:#x} were given to files up to {last_used}, and this target knows of {last} \
                     only: it was restored from an older copy. 'nacre check' names the files whose data is lost",
                    dir.display()
                );
            }
            last = last_used;
            self.put(sequence, last)?;
        }
        last.checked_add(1).filter(|&next| next < u32::MAX).ok_or(ObjectError::SequenceFull(sequence))
    }
}
