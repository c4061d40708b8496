//! Calls that wait for file locks, and circles among them.

use super::{Completion, Family, FileLock, FileLocks, Owner, WaitId};
use nacre_types::{Status, StatusResult};
use std::collections::BTreeSet;

/// A call that waits.
#[derive(Debug)]
pub(super) struct Wait {
    file: u32,
    pub(super) lock: FileLock,
    id: WaitId,
}

impl FileLocks {
    pub(super) fn begin_wait(&mut self, file: u32, lock: &FileLock, id: WaitId) {
        let key = self.waits.insert(Wait { file, lock: *lock, id });
        self.by_wait.insert((lock.owner.client, id), key);
        self.files[file].waiting.push(key);
        if lock.family == Family::Range {
            self.waiting_owners.entry(lock.owner).or_default().push(key);
        }
    }

    /// Forgets a wait; says on which file it was.
    pub(super) fn end_wait(&mut self, key: u32) -> u32 {
        let Wait { file, lock, id } = &self.waits[key];
        let (file, owner) = (*file, lock.owner);
        self.by_wait.remove(&(owner.client, *id));
        self.files[file].waiting.retain(|other| *other != key);
        if let Some(waits) = self.waiting_owners.get_mut(&owner) {
            waits.retain(|other| *other != key);
            if waits.is_empty() {
                self.waiting_owners.remove(&owner);
            }
        }
        self.waits.remove(key);
        file
    }

    /// Something may have become free on a file: serves those who wait, in order.
    pub(super) fn serve(&mut self, file: u32, completions: &mut Vec<Completion>) {
        let mut owners: Vec<Owner> = Vec::new();
        let mut place = 0;
        while let Some(&key) = self.files[file].waiting.get(place) {
            let Wait { lock, id, .. } = &self.waits[key];
            let (lock, id) = (*lock, *id);
            if self.files[file].blockers(&lock).next().is_some() {
                place += 1;
                continue;
            }
            let result = self.set(file, &lock);
            self.complete(key, id, &lock, result, completions);
            owners.push(lock.owner);
            // The new lock may be weaker than what it replaces, which lets in others who came before.
            place = 0;
        }
        for owner in owners {
            self.end_circles(owner, completions);
        }
    }

    /// An owner has a new lock. If it has several threads, another one may be waiting for somebody who now waits for this
    /// lock: that wait ends with an error.
    pub(super) fn end_circles(&mut self, owner: Owner, completions: &mut Vec<Completion>) {
        for key in self.waiting_owners.get(&owner).cloned().unwrap_or_default() {
            let Wait { file, lock, id } = &self.waits[key];
            let (file, lock, id) = (*file, *lock, *id);
            if self.would_deadlock(file, &lock) {
                self.complete(key, id, &lock, Err(Status::EDEADLK), completions);
            }
        }
    }

    fn complete(
        &mut self,
        key: u32,
        wait: WaitId,
        lock: &FileLock,
        result: StatusResult<()>,
        completions: &mut Vec<Completion>,
    ) {
        self.end_wait(key);
        completions.push(Completion { client: lock.owner.client, wait, result });
    }

    /// True if somebody whom the lock's owner would wait for waits, directly or not, for that owner.
    pub(super) fn would_deadlock(&self, file: u32, lock: &FileLock) -> bool {
        let (mut seen, mut ahead) = (BTreeSet::new(), vec![(file, *lock)]);
        while let Some((file, wanted)) = ahead.pop() {
            for held in self.files[file].blockers(&wanted) {
                if held.owner == lock.owner {
                    return true;
                }
                if seen.insert(held.owner) {
                    let waits = self.waiting_owners.get(&held.owner).into_iter().flatten();
                    ahead.extend(waits.map(|key| (self.waits[*key].file, self.waits[*key].lock)));
                }
            }
        }
        false
    }
}
