//! Which object ids were given out.

use super::{Core, OBJECTS, SEQUENCES};
use crate::meta::Batch;
use crate::object::{ORPHANS_MAX, ObjectError, Result};
use nacre_env::sync::MutexGuard;
use nacre_ondisk::object::SequenceRecord;
use nacre_types::Fid;
use std::ops::{Bound, ControlFlow, Range};

impl Core {
    pub(super) fn sequence(&self, sequence: u64) -> Result<u32> {
        match self.index.get(SEQUENCES, &sequence.to_be_bytes(), |value| value.map(SequenceRecord::decode))? {
            None => Ok(0),
            Some(Ok(record)) => Ok(record.last_reserved),
            Some(Err(_)) => {
                Err(ObjectError::IndexDamaged { what: "the record of a sequence cannot be read" })
            }
        }
    }

    pub(super) fn put_sequence(&self, sequence: u64, last_reserved: u32) -> Result<()> {
        let mut batch = Batch::new();
        batch.put(SEQUENCES, &sequence.to_be_bytes(), &SequenceRecord { last_reserved }.encode());
        let transno = self.index.commit(&batch)?;
        nacre_env::blocking(|| self.index.sync(transno))?;
        Ok(())
    }

    /// Keeps others from reserving; they may wait for a sync.
    pub(super) fn lock_reservations(&self) -> MutexGuard<'_, ()> {
        self.reserving.try_lock().unwrap_or_else(|| nacre_env::blocking(|| self.reserving.lock()))
    }

    pub(super) fn reserve_ids(&self, sequence: u64, count: u32) -> Result<Range<u32>> {
        let _lock = self.lock_reservations();
        let last = self.sequence(sequence)?;
        let new_last = last.saturating_add(count).min(u32::MAX - 1);
        if count > 0 && new_last == last {
            return Err(ObjectError::SequenceFull(sequence));
        }
        if new_last > last {
            self.put_sequence(sequence, new_last)?;
        }
        Ok(last + 1..new_last + 1)
    }

    /// Objects of a sequence above `last_used`; `None` if there are more than can be orphans.
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

    pub(super) fn destroy_above(&self, sequence: u64, last_used: u32) -> Result<u32> {
        let Some(first) = last_used.checked_add(1) else { return Err(ObjectError::SequenceFull(sequence)) };
        let _lock = self.lock_reservations();
        match self.orphans(sequence, first)? {
            None => log::error!(
                "{}: more than {ORPHANS_MAX} objects of sequence {sequence:#x} lie above the last used id {last_used}: \
                 nothing is destroyed",
                self.dir.display()
            ),
            Some(orphans) if orphans.is_empty() => {}
            Some(orphans) => {
                let count = self.destroy_all(&orphans)?;
                log::info!("{}: destroyed {count} orphans of sequence {sequence:#x}", self.dir.display());
            }
        }
        let mut last = self.sequence(sequence)?;
        if last_used > last {
            if last > 0 {
                log::error!(
                    "{}: objects of sequence {sequence:#x} were given to files up to {last_used}, and this target knows of {last} \
                     only: it was restored from an older copy. 'nacre check' names the files whose data is lost",
                    self.dir.display()
                );
            }
            last = last_used;
            self.put_sequence(sequence, last)?;
        }
        last.checked_add(1).filter(|&next| next < u32::MAX).ok_or(ObjectError::SequenceFull(sequence))
    }

    /// Ends objects, durably.
    pub(super) fn destroy_all(&self, objects: &[Fid]) -> Result<u64> {
        let mut count = 0;
        for object in objects {
            count += u64::from(self.end(*object)?);
        }
        // Also if nothing was there: a resend must not be confirmed before the first one's removal is durable.
        nacre_env::blocking(|| self.index.sync(self.index.last_transno()))?;
        Ok(count)
    }
}
