//! Calls that wait for file locks, and deadlock detection among them.

use super::{Completion, Family, FileLock, FileLocks, WaitTicket};
use crate::hash::WordMap;
use nacre_types::Status;
use std::collections::BTreeSet;

/// A waiting call.
#[derive(Debug)]
pub(super) struct Wait {
    file: u32,
    pub(super) lock: FileLock,
    pub(super) ticket: WaitTicket,
}

/// True if the same process may be behind both: as one owner, or through two mounts of a host.
fn is_same(first: &FileLock, second: &FileLock) -> bool {
    let is_known = first.process != 0 && first.owner.client != second.owner.client;
    first.owner == second.owner || (is_known && first.process == second.process)
}

impl FileLocks {
    pub(super) fn begin_wait(&mut self, file: u32, lock: &FileLock, ticket: WaitTicket) {
        let key = self.waits.insert(Wait { file, lock: *lock, ticket });
        self.by_wait.insert((lock.owner.client, ticket.id), key);
        self.count(lock.owner.client, 0, 1);
        self.files[file].waiting.push(key);
        if lock.family == Family::Range {
            self.waiting_owners.entry(lock.owner).or_default().push(key);
            if lock.process != 0 {
                self.waiting_processes.entry(lock.process).or_default().push(key);
            }
        }
    }

    /// Removes a wait; returns the file that it was on.
    pub(super) fn end_wait(&mut self, key: u32) -> u32 {
        let Wait { file, lock, ticket } = &self.waits[key];
        let (file, owner, process) = (*file, lock.owner, lock.process);
        self.by_wait.remove(&(owner.client, ticket.id));
        self.files[file].waiting.retain(|other| *other != key);
        forget(&mut self.waiting_owners, &owner, key);
        forget(&mut self.waiting_processes, &process, key);
        self.waits.remove(key);
        self.count(owner.client, 1, 0);
        file
    }

    /// Locks on a file may have been released: serves waiting calls in order.
    pub(super) fn serve(&mut self, file: u32, completions: &mut Vec<Completion>) {
        if self.is_recovering {
            return;
        }
        let mut granted: Vec<FileLock> = Vec::new();
        let mut place = 0;
        while let Some(&key) = self.files[file].waiting.get(place) {
            let Wait { lock, ticket, .. } = &self.waits[key];
            let (lock, id) = (*lock, ticket.id);
            if self.files[file].blockers(&lock).next().is_some() {
                place += 1;
                continue;
            }
            // The wait ends before the lock counts: a client may be at the limit for both together.
            self.end_wait(key);
            let result = self.set(file, &lock);
            completions.push(Completion { client: lock.owner.client, wait: id, result });
            granted.push(lock);
            // The new lock may be weaker than what it replaces, so earlier calls may succeed.
            place = 0;
        }
        for lock in granted {
            self.end_circles(&lock, completions);
        }
    }

    /// Returns the waiting calls of an owner, and those of the same process through other mounts.
    fn waits_of(&self, lock: &FileLock) -> Vec<u32> {
        let own = self.waiting_owners.get(&lock.owner).into_iter().flatten();
        let others = self.waiting_processes.get(&lock.process).into_iter().flatten();
        let others = others.filter(|key| self.waits[**key].lock.owner.client != lock.owner.client);
        own.chain(others).copied().collect()
    }

    /// Ends waits that a new lock of an owner turns into deadlocks. If the owner's process has several
    /// threads, another one may be waiting for an owner that waits for this lock from now on: that wait ends
    /// with an error.
    pub(super) fn end_circles(&mut self, granted: &FileLock, completions: &mut Vec<Completion>) {
        for key in self.waits_of(granted) {
            let Wait { file, lock, ticket } = &self.waits[key];
            let (file, lock, id) = (*file, *lock, ticket.id);
            if self.would_deadlock(file, &lock) {
                self.end_wait(key);
                let result = Err(Status::EDEADLK);
                completions.push(Completion { client: lock.owner.client, wait: id, result });
            }
        }
    }

    /// Detects deadlocks: true if a process that the lock's process would wait for waits, directly or not,
    /// for that process.
    pub(super) fn would_deadlock(&self, file: u32, lock: &FileLock) -> bool {
        let (mut seen, mut ahead) = (BTreeSet::new(), vec![(file, *lock)]);
        while let Some((file, wanted)) = ahead.pop() {
            for held in self.files[file].blockers(&wanted) {
                if is_same(&held, lock) {
                    return true;
                }
                if seen.insert((held.owner, held.process)) {
                    let waits = self.waits_of(&held).into_iter();
                    ahead.extend(waits.map(|key| (self.waits[key].file, self.waits[key].lock)));
                }
            }
        }
        false
    }
}

/// Removes one entry of a list, and the list with its last entry.
fn forget<K: Eq + std::hash::Hash>(lists: &mut WordMap<K, Vec<u32>>, of: &K, key: u32) {
    if let Some(list) = lists.get_mut(of) {
        list.retain(|other| *other != key);
        if list.is_empty() {
            lists.remove(of);
        }
    }
}
