//! File locks of programs: `fcntl` on ranges of bytes and `flock` on whole files. The two never conflict with
//! each other.
//!
//! It owns held locks and waiting calls, and detects deadlocks of waiting `fcntl` callers across all clients.
//! Like the other engines it gets events and returns what is to be sent; the answer to a call that had to
//! wait is a [`Completion`].
//!
//! - A call conflicts only with held locks; waiting calls are served in order of arrival as soon as no held
//!   lock conflicts. A stream of readers can hold up a writer, as on a local file system.
//! - An owner never conflicts with itself: a new lock replaces what the owner had on the same bytes;
//!   neighbours of the same mode are joined.
//! - A file is in memory while it has locks or waiting calls.
//! - A server that has restarted *recovers*: clients replay the locks that they held
//!   ([`FileLocks::on_replay`], and [`held`] for their side), and nothing else is granted. Calls wait until
//!   the recovery is over, and are then served in the order in which their programs asked.
//! - Setting and unlocking must run once and in each owner's order: the reply cache of the session ensures
//!   that. A client that is still in the same call may repeat it under the same [`WaitId`].
//! - A deadlock is a cycle of processes: a process that waits through one mount of a host for what it holds
//!   through another is part of it, though the kernel gives it another owner number on each mount
//!   ([`FileLock::process`]).

mod file;
pub mod held;
mod waiting;

use crate::extent::Extent;
use crate::hash::WordMap;
use crate::resource::ResourceId;
use crate::slab::Slab;
use file::File;
use nacre_types::{ClientUuid, Status, StatusResult};
use waiting::Wait;

/// Holder of a lock: clients number their owners (processes, or open files for `flock`).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Owner {
    /// Mount of the owner.
    pub client: ClientUuid,
    /// The mount's number for the owner.
    pub number: u64,
}

/// Kinds of file locks.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Family {
    /// Byte ranges (`fcntl`).
    Range,
    /// The whole file (`flock`).
    File,
}

/// Access that a file lock allows.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Access {
    /// Shared lock.
    Read,
    /// Exclusive lock.
    Write,
}

/// A file lock, held or requested.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FileLock {
    /// Kind of the lock.
    pub family: Family,
    /// Holder of the lock.
    pub owner: Owner,
    /// Shared or exclusive.
    pub access: Access,
    /// Locked bytes; the whole file for all families but [`Family::Range`].
    pub extent: Extent,
    /// Process that asked, for `F_GETLK`.
    pub pid: u32,
    /// The same process for deadlock detection: one number on all mounts of its host, 0 if it is not known.
    pub process: u64,
}

impl FileLock {
    fn conflicts_with(&self, other: &FileLock) -> bool {
        self.family == other.family
            && self.owner != other.owner
            && (self.access == Access::Write || other.access == Access::Write)
            && self.extent.overlaps(&other.extent)
    }
}

/// Name of a call that may wait, chosen by its client; unique among that client's calls.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct WaitId(pub u64);

/// A waiting call, and its order among others.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct WaitTicket {
    /// Name of the call.
    pub id: WaitId,
    /// Time when its program asked, by any clock. Orders only calls that have waited for the end of a
    /// recovery.
    pub asked: u64,
}

/// Result of a request to set a lock.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SetOutcome {
    /// The lock is held.
    Done,
    /// Other locks conflict: a [`Completion`] will follow.
    Waiting,
}

/// The answer to a call that waited: the lock is held, or `EDEADLK`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Completion {
    /// Client to answer.
    pub client: ClientUuid,
    /// Name of the call.
    pub wait: WaitId,
    /// Result of the call.
    pub result: StatusResult<()>,
}

/// Bounds of [`FileLocks`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FlockConfig {
    /// Locks on one file; bounds owners that split ranges without end.
    pub locks_per_file_max: usize,
    /// Locks and waiting calls of one client.
    pub locks_per_client_max: usize,
    /// Waiting calls of all clients.
    pub waits_max: usize,
}

impl Default for FlockConfig {
    fn default() -> Self {
        // Estimates; a lock takes about 150 bytes.
        FlockConfig { locks_per_file_max: 65_536, locks_per_client_max: 131_072, waits_max: 1_048_576 }
    }
}

/// See the [module documentation](self).
#[derive(Debug)]
pub struct FileLocks {
    config: FlockConfig,
    files: Slab<File>,
    by_id: WordMap<ResourceId, u32>,
    /// Number of locks and waits of each client that has any.
    of_clients: WordMap<ClientUuid, usize>,
    waits: Slab<Wait>,
    by_wait: WordMap<(ClientUuid, WaitId), u32>,
    /// Waits by owner of byte ranges, for deadlock detection.
    waiting_owners: WordMap<Owner, Vec<u32>>,
    /// The same by process, as far as that is known.
    waiting_processes: WordMap<u64, Vec<u32>>,
    is_recovering: bool,
}

impl FileLocks {
    /// Creates a table without locks; while it `is_recovering`, clients of the last run replay theirs.
    pub fn new(config: FlockConfig, is_recovering: bool) -> FileLocks {
        FileLocks {
            config,
            is_recovering,
            waiting_processes: WordMap::default(),
            files: Slab::default(),
            by_id: WordMap::default(),
            of_clients: WordMap::default(),
            waits: Slab::default(),
            by_wait: WordMap::default(),
            waiting_owners: WordMap::default(),
        }
    }

    /// Sets a lock. With `wait`, a conflict makes the call wait under that name; without, it is an error.
    /// `completions` gets waiting calls that succeed because the new lock is weaker than the one that it
    /// replaces.
    ///
    /// # Errors
    /// `RECOVERING` without `wait` during recovery; `EAGAIN` on a conflict without `wait`; `EDEADLK`
    /// if the wait would complete a cycle; `ENOLCK` at a bound; `EINVAL` for a range that ends before it
    /// starts. As on Linux, an owner that changes the mode of an `flock` gives up the old lock first and does
    /// not get it back if the new one is refused.
    pub fn on_set(
        &mut self,
        resource: &ResourceId,
        lock: &FileLock,
        wait: Option<WaitTicket>,
        completions: &mut Vec<Completion>,
    ) -> StatusResult<SetOutcome> {
        let lock = &normal(lock)?;
        if let Some(wait) = wait
            && self.by_wait.contains_key(&(lock.owner.client, wait.id))
        {
            return Ok(SetOutcome::Waiting);
        }
        if self.is_recovering {
            let wait = wait.ok_or(Status::RECOVERING)?;
            if !self.may_wait(lock.owner.client) {
                return Err(Status::ENOLCK);
            }
            let key = self.file_for(resource);
            self.begin_wait(key, lock, wait);
            return Ok(SetOutcome::Waiting);
        }
        let key = self.file_for(resource);
        if lock.family != Family::Range && self.files[key].gives_up_for(lock) {
            self.change(key, lock.owner.client, |file| file.unlock(lock.family, lock.owner, lock.extent));
            self.serve(key, completions);
        }
        if self.files[key].blockers(lock).next().is_none() {
            let result = self.set(key, lock).map(|()| SetOutcome::Done);
            self.serve(key, completions);
            self.end_circles(lock, completions);
            self.drop_if_unused(key);
            return result;
        }
        let refusal = match wait {
            None => Some(Status::EAGAIN),
            Some(_) if !self.may_wait(lock.owner.client) => Some(Status::ENOLCK),
            Some(_) if lock.family == Family::Range && self.would_deadlock(key, lock) => {
                Some(Status::EDEADLK)
            }
            Some(_) => None,
        };
        if let Some(wait) = wait.filter(|_| refusal.is_none()) {
            self.begin_wait(key, lock, wait);
            return Ok(SetOutcome::Waiting);
        }
        self.drop_if_unused(key);
        Err(refusal.unwrap_or(Status::EAGAIN))
    }

    /// Restores a lock that a client of the last run replays; `may_restore` until it has replayed all of
    /// them.
    ///
    /// # Errors
    /// `ESTALE` if it is too late for that, or the lock conflicts with one that another client has
    /// replayed.
    pub fn on_replay(
        &mut self,
        resource: &ResourceId,
        lock: &FileLock,
        may_restore: bool,
    ) -> StatusResult<()> {
        let lock = &normal(lock)?;
        let key = self.file_for(resource);
        let file = &self.files[key];
        // The client may replay for the second time, if it lost the connection the first time.
        let result = if file.covers(lock) {
            Ok(())
        } else if !self.is_recovering || !may_restore || file.blockers(lock).next().is_some() {
            Err(Status::ESTALE)
        } else {
            self.set(key, lock)
        };
        self.drop_if_unused(key);
        result
    }

    /// Ends the recovery: all clients of the last run have replayed their locks or are given up. Waiting
    /// requests are granted as usual again.
    pub fn end_recovery(&mut self, completions: &mut Vec<Completion>) {
        if !std::mem::take(&mut self.is_recovering) {
            return;
        }
        let mut turns: Vec<(u64, u32)> =
            self.waits.iter().map(|(key, wait)| (wait.ticket.asked, key)).collect();
        turns.sort_unstable();
        let queued: Vec<_> = turns
            .into_iter()
            .map(|(_, key)| {
                let (lock, ticket) = (self.waits[key].lock, self.waits[key].ticket);
                let file = self.end_wait(key);
                (file, self.files[file].id, lock, ticket)
            })
            .collect();
        for (_, resource, lock, ticket) in &queued {
            let result = match self.on_set(resource, lock, Some(*ticket), completions) {
                Ok(SetOutcome::Waiting) => continue,
                Ok(SetOutcome::Done) => Ok(()),
                Err(status) => Err(status),
            };
            completions.push(Completion { client: lock.owner.client, wait: ticket.id, result });
        }
        for (file, resource, ..) in queued {
            if self.by_id.get(&resource) == Some(&file) {
                self.drop_if_unused(file);
            }
        }
    }

    /// True until [`FileLocks::end_recovery`].
    pub fn is_recovering(&self) -> bool {
        self.is_recovering
    }

    /// Unlocks a part of what an owner holds.
    ///
    /// # Errors
    /// `ENOLCK` if it would split a lock and the file is at its limit of locks; `EINVAL` for a range
    /// that ends before it starts.
    pub fn on_unlock(
        &mut self,
        resource: &ResourceId,
        family: Family,
        owner: Owner,
        extent: Extent,
        completions: &mut Vec<Completion>,
    ) -> StatusResult<()> {
        if extent.start > extent.last {
            return Err(Status::EINVAL);
        }
        let Some(&key) = self.by_id.get(resource) else { return Ok(()) };
        if self.files[key].splits(family, owner, extent) && self.room(key, owner.client) == 0 {
            return Err(Status::ENOLCK);
        }
        self.change(key, owner.client, |file| file.unlock(family, owner, extent));
        self.serve(key, completions);
        self.drop_if_unused(key);
        Ok(())
    }

    /// Returns the first lock, by offset, that conflicts with `lock` (`F_GETLK`).
    pub fn conflict(&self, resource: &ResourceId, lock: &FileLock) -> Option<FileLock> {
        let lock = normal(lock).ok()?;
        let file = &self.files[*self.by_id.get(resource)?];
        file.blockers(&lock).min_by_key(|held| (held.extent.start, held.owner))
    }

    /// Ends the wait of a call after a signal. True if it was waiting, so that it ends with `EINTR`; false if
    /// not: its lock may have been set, and a completion may be under way.
    pub fn on_cancel_wait(&mut self, client: ClientUuid, wait: WaitId) -> bool {
        let Some(&key) = self.by_wait.get(&(client, wait)) else { return false };
        let file = self.end_wait(key);
        self.drop_if_unused(file);
        true
    }

    /// Removes all locks and waits of a client on a file, after a close or for other reasons.
    pub fn release_file(
        &mut self,
        resource: &ResourceId,
        client: ClientUuid,
        completions: &mut Vec<Completion>,
    ) {
        if let Some(&key) = self.by_id.get(resource) {
            self.release_in(key, client, completions);
        }
    }

    /// Removes all locks and waits of a client.
    pub fn release_client(&mut self, client: ClientUuid, completions: &mut Vec<Completion>) {
        let all: Vec<u32> = self.files.iter().map(|(key, _)| key).collect();
        for key in all {
            self.release_in(key, client, completions);
        }
    }

    /// Returns the locks of a file, in no particular order.
    pub fn locks_of(&self, resource: &ResourceId) -> Vec<FileLock> {
        let file = self.by_id.get(resource).map(|key| &self.files[*key]);
        file.map(|file| file.locks().collect()).unwrap_or_default()
    }

    /// Returns the number of files in memory.
    pub fn files(&self) -> usize {
        self.files.len()
    }

    /// Returns the number of waiting calls.
    pub fn waiting(&self) -> usize {
        self.waits.len()
    }

    fn release_in(&mut self, key: u32, client: ClientUuid, completions: &mut Vec<Completion>) {
        let own = |wait: &u32| self.waits[*wait].lock.owner.client == client;
        let waits: Vec<u32> = self.files[key].waiting.iter().copied().filter(own).collect();
        for wait in waits {
            self.end_wait(wait);
        }
        self.change(key, client, |file| file.unlock_client(client));
        self.serve(key, completions);
        self.drop_if_unused(key);
    }

    /// Sets a lock that has no conflicts.
    fn set(&mut self, key: u32, lock: &FileLock) -> StatusResult<()> {
        // A lock in the middle of another mode splits it, which adds two locks.
        let needed = if self.files[key].splits(lock.family, lock.owner, lock.extent) { 2 } else { 1 };
        if self.room(key, lock.owner.client) < needed {
            return Err(Status::ENOLCK);
        }
        self.change(key, lock.owner.client, |file| file.set(lock));
        Ok(())
    }

    /// Returns how many more locks a client may have on a file.
    fn room(&self, key: u32, client: ClientUuid) -> usize {
        let of_file = self.config.locks_per_file_max.saturating_sub(self.files[key].len());
        of_file.min(self.room_of(client))
    }

    fn room_of(&self, client: ClientUuid) -> usize {
        let has = self.of_clients.get(&client).copied().unwrap_or_default();
        self.config.locks_per_client_max.saturating_sub(has)
    }

    fn may_wait(&self, client: ClientUuid) -> bool {
        self.waits.len() < self.config.waits_max && self.room_of(client) > 0
    }

    /// Changes what a client holds on a file.
    fn change(&mut self, key: u32, client: ClientUuid, change: impl FnOnce(&mut File)) {
        let file = &mut self.files[key];
        let before = file.len();
        change(file);
        let after = file.len();
        self.count(client, before, after);
    }

    /// Updates the count of a client that had `before` locks or waits somewhere and has `after` there.
    fn count(&mut self, client: ClientUuid, before: usize, after: usize) {
        let has = self.of_clients.entry(client).or_default();
        debug_assert!(*has + after >= before, "all that a client has was counted");
        *has = (*has + after).saturating_sub(before);
        if *has == 0 {
            self.of_clients.remove(&client);
        }
    }

    fn file_for(&mut self, resource: &ResourceId) -> u32 {
        if let Some(&key) = self.by_id.get(resource) {
            return key;
        }
        let key = self.files.insert(File::new(*resource));
        self.by_id.insert(*resource, key);
        key
    }

    fn drop_if_unused(&mut self, key: u32) {
        if let Some(file) = self.files.get(key)
            && file.len() == 0
            && file.waiting.is_empty()
        {
            let id = file.id;
            self.by_id.remove(&id);
            self.files.remove(key);
        }
    }
}

/// Normalises the range: all families but ranges lock the whole file.
fn normal(lock: &FileLock) -> StatusResult<FileLock> {
    match lock.family {
        Family::Range if lock.extent.start > lock.extent.last => Err(Status::EINVAL),
        Family::Range => Ok(*lock),
        Family::File => Ok(FileLock { extent: Extent::WHOLE, ..*lock }),
    }
}

#[cfg(test)]
mod tests;
