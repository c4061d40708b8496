//! The client's side: locks that programs of a mount hold, for their replay to a server that has restarted.
//!
//! A call is recorded before it is sent ([`HeldLocks::begin`]) and when it is answered ([`HeldLocks::end`]).
//! In between it may have taken effect or not, so a replay restores what is held in either case: nothing
//! where an unlock is under way, the weaker lock where one is exchanged for a weaker one, and no `flock` that
//! is being converted, which its owner gives up first. The call itself is resent after the replay and decides
//! the rest.
//!
//! An answer of the server's last run does not count in the next one: a call that was under way during a
//! replay is repeated, which changes nothing if the server has run it since. The same holds for a call that
//! another one of its owner on the same bytes has overtaken, as the order in which the server ran them is
//! unknown.
//!
//! Locks that the server has dropped (an eviction, or a replay that came too late) are *lost*: their owner
//! gets an error for each further lock, and for writes through its open file, until it has unlocked them.

use super::file::File;
use super::{Access, Family, FileLock, Owner};
use crate::extent::Extent;
use crate::hash::WordMap;
use crate::resource::ResourceId;
use nacre_types::{Status, StatusResult};

/// Change that a call requests.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Change {
    /// Set a lock.
    Set(FileLock),
    /// Remove all locks of the owner in the range.
    Unlock(Family, Owner, Extent),
}

impl Change {
    fn place(&self) -> (Family, Owner, Extent) {
        match self {
            Change::Set(lock) => (lock.family, lock.owner, lock.extent),
            Change::Unlock(family, owner, extent) => (*family, *owner, *extent),
        }
    }

    fn overlaps(&self, other: &Change) -> bool {
        let ((family, owner, extent), (its_family, its_owner, its_extent)) = (self.place(), other.place());
        family == its_family && owner == its_owner && extent.overlaps(&its_extent)
    }
}

/// Number of a call under way.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CallId(u64);

/// Fate of an answered call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum End {
    /// The call ends with this result.
    Over(StatusResult<()>),
    /// The answer does not count: the call is still under way and is to be resent.
    Again,
}

#[derive(Debug)]
struct Call {
    id: CallId,
    change: Change,
    is_doubtful: bool,
    /// Write locks that a replay restored as read locks although the call may fail.
    weakened: Vec<FileLock>,
}

/// A file with locks or calls under way.
#[derive(Debug)]
struct Known {
    held: File,
    lost: File,
    calls: Vec<Call>,
    /// Number of the open file through which each owner asked last.
    through: Vec<(Family, Owner, u64)>,
}

impl Known {
    fn new(id: ResourceId) -> Known {
        Known { held: File::new(id), lost: File::new(id), calls: Vec::new(), through: Vec::new() }
    }

    fn has_lost(&self, family: Family, owner: Owner) -> bool {
        self.lost.has_any(family, owner)
    }

    /// Reduces `held` to what is held whether or not a call succeeds.
    fn make_certain(held: &mut File, change: &Change) -> Vec<FileLock> {
        match change {
            Change::Unlock(family, owner, extent) => held.unlock(*family, *owner, *extent),
            Change::Set(lock) if lock.family != Family::Range => {
                if held.gives_up_for(lock) {
                    held.unlock(lock.family, lock.owner, lock.extent);
                }
            }
            Change::Set(lock) if lock.access == Access::Read => {
                // A call that only weakens a lock cannot be refused.
                let cannot_fail = held.covers(lock);
                let mut pieces = held.pieces(lock.family, lock.owner, lock.extent);
                pieces.retain(|piece| piece.access == Access::Write);
                pieces.iter().for_each(|piece| held.set(&FileLock { access: Access::Read, ..*piece }));
                return if cannot_fail { Vec::new() } else { pieces };
            }
            Change::Set(_) => {}
        }
        Vec::new()
    }

    /// Forgets the open file of an owner without locks and calls.
    fn forget_if_idle(&mut self, family: Family, owner: Owner) {
        let is_own = |call: &Call| {
            let (its_family, its_owner, _) = call.change.place();
            (its_family, its_owner) == (family, owner)
        };
        if !self.held.has_any(family, owner)
            && !self.has_lost(family, owner)
            && !self.calls.iter().any(is_own)
        {
            self.through.retain(|(its_family, its_owner, _)| (*its_family, *its_owner) != (family, owner));
        }
    }

    fn is_unused(&self) -> bool {
        self.held.len() == 0 && self.lost.len() == 0 && self.calls.is_empty()
    }
}

/// See the [module documentation](self).
#[derive(Debug, Default)]
pub struct HeldLocks {
    files: WordMap<ResourceId, Known>,
    calls: u64,
    /// Number of files with lost locks.
    lost: usize,
}

impl HeldLocks {
    /// Records that a program requests a change through the open file with this number.
    ///
    /// # Errors
    /// `EIO` for a lock if its owner has lost one on the file.
    pub fn begin(&mut self, resource: &ResourceId, change: Change, through: u64) -> StatusResult<CallId> {
        self.calls += 1;
        let id = CallId(self.calls);
        let (family, owner, extent) = change.place();
        let lost = self.lost_after(resource, |known| {
            if matches!(change, Change::Unlock(..)) {
                known.lost.unlock(family, owner, extent);
            }
            let refused = matches!(change, Change::Set(_)) && known.has_lost(family, owner);
            if !refused {
                known.calls.push(Call { id, change, is_doubtful: false, weakened: Vec::new() });
                known
                    .through
                    .retain(|(its_family, its_owner, _)| (*its_family, *its_owner) != (family, owner));
                known.through.push((family, owner, through));
            }
            refused
        });
        if lost { Err(Status::EIO) } else { Ok(id) }
    }

    /// Ends a call that is answered, or will get no answer.
    pub fn end(&mut self, resource: &ResourceId, id: CallId, result: StatusResult<()>) -> End {
        self.lost_after(resource, |known| {
            let Some(place) = known.calls.iter().position(|call| call.id == id) else {
                return End::Over(result);
            };
            let call = &mut known.calls[place];
            let change = call.change;
            if result.is_ok() && std::mem::take(&mut call.is_doubtful) {
                return End::Again;
            }
            let call = known.calls.remove(place);
            match (result, change) {
                (Ok(()), Change::Set(lock)) => known.held.set(&lock),
                (Ok(()), Change::Unlock(family, owner, extent)) => known.held.unlock(family, owner, extent),
                (Err(status), change) => {
                    call.weakened.iter().for_each(|lock| known.lost.set(lock));
                    // A refusal changes nothing, except for a conversion that gave up the old lock first.
                    let refused =
                        matches!(status, Status::EAGAIN | Status::EDEADLK | Status::ENOLCK | Status::EINVAL);
                    if !refused || change.place().0 != Family::Range {
                        Known::make_certain(&mut known.held, &change);
                    }
                }
            }
            let overtaken = known.calls.iter_mut().filter(|other| other.change.overlaps(&change));
            overtaken.for_each(|other| other.is_doubtful = true);
            let (family, owner, _) = change.place();
            known.forget_if_idle(family, owner);
            match change {
                Change::Set(_) if result.is_ok() && known.has_lost(family, owner) => {
                    End::Over(Err(Status::EIO))
                }
                _ => End::Over(result),
            }
        })
    }

    /// Returns the locks to replay to a server that has restarted, by file. All calls under way on such files
    /// are repeated.
    pub fn replay(&mut self, belongs: impl Fn(&ResourceId) -> bool) -> Vec<(ResourceId, Vec<FileLock>)> {
        let mut replayed = Vec::new();
        for (id, known) in self.files.iter_mut().filter(|(id, _)| belongs(id)) {
            for call in &mut known.calls {
                call.is_doubtful = true;
                call.weakened.extend(Known::make_certain(&mut known.held, &call.change));
            }
            let locks: Vec<FileLock> = known.held.locks().collect();
            if !locks.is_empty() {
                replayed.push((*id, locks));
            }
        }
        replayed
    }

    /// Records as lost a replayed lock that the server has refused.
    pub fn refused(&mut self, resource: &ResourceId, lock: &FileLock) {
        self.lost_after(resource, |known| {
            known.held.unlock(lock.family, lock.owner, lock.extent);
            known.lost.set(lock);
        });
    }

    /// Marks all locks as lost after an eviction. Returns the files with the number of their locks.
    pub fn lose(&mut self, belongs: impl Fn(&ResourceId) -> bool) -> Vec<(ResourceId, usize)> {
        let mut lost = Vec::new();
        for (id, known) in self.files.iter_mut().filter(|(id, _)| belongs(id)) {
            known.calls.iter_mut().for_each(|call| call.is_doubtful = true);
            // A lock that is being unlocked is not lost.
            for call in &known.calls {
                if let Change::Unlock(family, owner, extent) = call.change {
                    known.held.unlock(family, owner, extent);
                }
            }
            let locks: Vec<FileLock> = known.held.locks().collect();
            if locks.is_empty() {
                continue;
            }
            self.lost += usize::from(known.lost.len() == 0);
            for lock in &locks {
                known.held.unlock(lock.family, lock.owner, lock.extent);
                known.lost.set(lock);
            }
            lost.push((*id, locks.len()));
        }
        lost
    }

    /// True if an owner has lost locks on any file.
    pub fn has_lost(&self) -> bool {
        self.lost > 0
    }

    /// True if the writer through this open file has lost a lock on the file; `owner` is the writer, if
    /// known.
    pub fn is_lost(&self, resource: &ResourceId, through: u64, owner: Option<Owner>) -> bool {
        let Some(known) = self.files.get(resource).filter(|known| known.lost.len() > 0) else { return false };
        owner.is_some_and(|owner| known.has_lost(Family::Range, owner))
            || known
                .through
                .iter()
                .any(|(family, owner, number)| *number == through && known.has_lost(*family, *owner))
    }

    /// Returns the number of files with locks or calls under way.
    pub fn files(&self) -> usize {
        self.files.len()
    }

    /// Changes a file, and updates the number of those with lost locks.
    fn lost_after<R>(&mut self, resource: &ResourceId, work: impl FnOnce(&mut Known) -> R) -> R {
        let known = self.files.entry(*resource).or_insert_with(|| Known::new(*resource));
        let before = known.lost.len() > 0;
        let result = work(known);
        let after = known.lost.len() > 0;
        if known.is_unused() {
            self.files.remove(resource);
        }
        self.lost = self.lost + usize::from(after) - usize::from(before);
        result
    }
}

#[cfg(test)]
mod tests;
