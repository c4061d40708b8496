//! The locks that programs take on files: `fcntl` on ranges of bytes and `flock` on whole files. The two never conflict
//! with each other.
//!
//! It owns who holds what, who waits, and finds circles of waiting `fcntl` callers over all clients. Like the other
//! engines it is told what happens and says what is to be sent; the answer to a call that had to wait is a
//! [`Completion`].
//!
//! - A conflict is with locks that are held; who waits is served in order of arrival as soon as nobody who holds is in the
//!   way. A stream of readers can hold up a writer, as on a local file system.
//! - An owner never conflicts with itself: a new lock replaces what it had on the same bytes; neighbours of the same mode
//!   are joined.
//! - A file is in memory while it has locks or waiters.
//! - A server that has restarted *recovers*: clients bring back what they held ([`FileLocks::on_replay`], and [`held`] for
//!   their side), and nothing else is granted. Calls that wait do so until the recovery is over, and then in the order in
//!   which their programs asked.
//! - Setting and unlocking must be run once and in each owner's order: the reply cache of the session sees to that. What is
//!   repeated under the same [`WaitId`] by a client that is still in the same call may come twice.
//! - A circle is one of processes: a process that waits through one mount of a host for what it holds through another is
//!   part of it, though the kernel gives it another owner's number on each ([`FileLock::process`]).
//!
//! Source: fcntl(2), flock(2).

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

/// Who holds a lock: clients number their owners (processes, or open files for `flock`).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Owner {
    /// The mount.
    pub client: ClientUuid,
    /// Its own number for the owner.
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

/// What a file lock allows.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Access {
    /// Shared.
    Read,
    /// Exclusive.
    Write,
}

/// A lock on a file, held or wanted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FileLock {
    /// Which family.
    pub family: Family,
    /// Whose.
    pub owner: Owner,
    /// What for.
    pub access: Access,
    /// Which bytes; the whole file for all families but [`Family::Range`].
    pub extent: Extent,
    /// Process that asked, for `F_GETLK`.
    pub pid: u32,
    /// The same process for circles: one number through all mounts of its host, 0 if it is not known.
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

/// Name of a call that may wait, chosen by its client and not used by another of its calls.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct WaitId(pub u64);

/// A call that waits, and its place among others that wait.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Turn {
    /// Which call.
    pub id: WaitId,
    /// When its program asked, by any clock. Only calls that have waited for the end of a recovery are put into this order.
    pub asked: u64,
}

/// What became of a request to set a lock.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SetOutcome {
    /// The lock is held.
    Done,
    /// Others are in the way: a [`Completion`] will follow.
    Waiting,
}

/// The answer to a call that waited: the lock is held, or EDEADLK.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Completion {
    /// To whom.
    pub client: ClientUuid,
    /// Which call.
    pub wait: WaitId,
    /// How it ended.
    pub result: StatusResult<()>,
}

/// Bounds of [`FileLocks`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FlockConfig {
    /// Locks on one file, against owners who split ranges without end.
    pub locks_per_file_max: usize,
    /// Locks and calls that wait, of one client.
    pub locks_per_client_max: usize,
    /// Calls that wait, in all.
    pub waits_max: usize,
}

impl Default for FlockConfig {
    fn default() -> Self {
        // Guesses; a lock takes about 150 bytes.
        FlockConfig { locks_per_file_max: 65_536, locks_per_client_max: 131_072, waits_max: 1_048_576 }
    }
}

/// See the [module documentation](self).
#[derive(Debug)]
pub struct FileLocks {
    config: FlockConfig,
    files: Slab<File>,
    by_id: WordMap<ResourceId, u32>,
    /// Locks and waits of each client that has any.
    of_clients: WordMap<ClientUuid, usize>,
    waits: Slab<Wait>,
    by_wait: WordMap<(ClientUuid, WaitId), u32>,
    /// Waits of owners of byte ranges, to find circles.
    waiting_owners: WordMap<Owner, Vec<u32>>,
    /// The same by process, of those that are known.
    waiting_processes: WordMap<u64, Vec<u32>>,
    is_recovering: bool,
}

impl FileLocks {
    /// A table without locks; while it `is_recovering`, clients of the last run bring theirs back.
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

    /// Sets a lock. With `wait`, a conflict makes the call wait under that name; without, it is an error. `completions` gets
    /// the calls of others that can go on, as the new lock may be weaker than the one that it replaces.
    ///
    /// # Errors
    /// `RECOVERING` without `wait` as long as that lasts; `EAGAIN` on a conflict without `wait`; `EDEADLK` if waiting would never end; `ENOLCK` at a bound; `EINVAL` for a
    /// range that ends before it starts. As on Linux, an owner that changes the mode of an `flock` gives up the old lock
    /// first and does not get it back if the new one cannot be had.
    pub fn on_set(
        &mut self,
        resource: &ResourceId,
        lock: &FileLock,
        wait: Option<Turn>,
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

    /// A client of the last run brings back a lock that it held; `may_restore` as long as it has not done so with all.
    ///
    /// # Errors
    /// `ESTALE` if it is too late for that, or another client says that it holds what excludes this.
    pub fn on_replay(
        &mut self,
        resource: &ResourceId,
        lock: &FileLock,
        may_restore: bool,
    ) -> StatusResult<()> {
        let lock = &normal(lock)?;
        let key = self.file_for(resource);
        let file = &self.files[key];
        // The client may be here for the second time, as it lost the connection the first time.
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

    /// The end of recovery: all clients of the last run have replayed their locks or are given up. Waiting requests are granted as usual again.
    pub fn end_recovery(&mut self, completions: &mut Vec<Completion>) {
        if !std::mem::take(&mut self.is_recovering) {
            return;
        }
        let mut turns: Vec<(u64, u32)> =
            self.waits.iter().map(|(key, wait)| (wait.turn.asked, key)).collect();
        turns.sort_unstable();
        let queued: Vec<_> = turns
            .into_iter()
            .map(|(_, key)| {
                let (lock, turn) = (self.waits[key].lock, self.waits[key].turn);
                let file = self.end_wait(key);
                (file, self.files[file].id, lock, turn)
            })
            .collect();
        for (_, resource, lock, turn) in &queued {
            let result = match self.on_set(resource, lock, Some(*turn), completions) {
                Ok(SetOutcome::Waiting) => continue,
                Ok(SetOutcome::Done) => Ok(()),
                Err(status) => Err(status),
            };
            completions.push(Completion { client: lock.owner.client, wait: turn.id, result });
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
    /// `ENOLCK` if it would split a lock and the file has as many as it may; `EINVAL` for a range that ends before it starts.
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

    /// The first lock, by offset, that keeps `lock` from being set (`F_GETLK`).
    pub fn conflict(&self, resource: &ResourceId, lock: &FileLock) -> Option<FileLock> {
        let lock = normal(lock).ok()?;
        let file = &self.files[*self.by_id.get(resource)?];
        file.blockers(&lock).min_by_key(|held| (held.extent.start, held.owner))
    }

    /// A call does not want to wait any longer (a signal). True if it was waiting, so that it ends with EINTR; false if not: its
    /// lock may have been set, and a completion be on its way.
    pub fn on_cancel_wait(&mut self, client: ClientUuid, wait: WaitId) -> bool {
        let Some(&key) = self.by_wait.get(&(client, wait)) else { return false };
        let file = self.end_wait(key);
        self.drop_if_unused(file);
        true
    }

    /// A client has closed a file, or is gone from it for other reasons: all that it holds and waits for there goes.
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

    /// A client is gone: all that it holds and waits for goes.
    pub fn release_client(&mut self, client: ClientUuid, completions: &mut Vec<Completion>) {
        let all: Vec<u32> = self.files.iter().map(|(key, _)| key).collect();
        for key in all {
            self.release_in(key, client, completions);
        }
    }

    /// Locks of a file, in no particular order.
    pub fn locks_of(&self, resource: &ResourceId) -> Vec<FileLock> {
        let file = self.by_id.get(resource).map(|key| &self.files[*key]);
        file.map(|file| file.locks().collect()).unwrap_or_default()
    }

    /// Files in memory.
    pub fn files(&self) -> usize {
        self.files.len()
    }

    /// Calls that wait.
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

    /// Sets a lock that nobody is in the way of.
    fn set(&mut self, key: u32, lock: &FileLock) -> StatusResult<()> {
        // A lock in the middle of another mode splits it: two more.
        let needed = if self.files[key].splits(lock.family, lock.owner, lock.extent) { 2 } else { 1 };
        if self.room(key, lock.owner.client) < needed {
            return Err(Status::ENOLCK);
        }
        self.change(key, lock.owner.client, |file| file.set(lock));
        Ok(())
    }

    /// How many locks more a client may have on a file.
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

    /// A client has `after` locks or waits somewhere where it had `before`.
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

/// All families but ranges lock the whole file.
fn normal(lock: &FileLock) -> StatusResult<FileLock> {
    match lock.family {
        Family::Range if lock.extent.start > lock.extent.last => Err(Status::EINVAL),
        Family::Range => Ok(*lock),
        Family::File => Ok(FileLock { extent: Extent::WHOLE, ..*lock }),
    }
}

#[cfg(test)]
mod tests;
