//! Locks that programs take on files: `flock` on the whole file, `fcntl` on byte ranges; and those that clients take for the
//! time of an append. The kinds never conflict.
//!
//! They live in memory: after a restart clients set theirs again. Source: fcntl(2), flock(2).

use crate::cache::FidMap;
use nacre_types::{ClientUuid, Fid, Status, StatusResult};
use nacre_wire::mds::{FileLock, LockFamily, LockMode, LockOwner};
use parking_lot::{Condvar, Mutex};
use std::collections::{HashMap, HashSet};
use std::time::Duration;

/// Time between two looks for an interrupt while a lock is waited for.
const POLL: Duration = Duration::from_millis(20);
/// Locks on one file, against a client that splits ranges without end. Guess.
const LOCKS_PER_FILE_MAX: usize = 65536;

/// Who holds a lock: owners are numbers of their client's own.
type Holder = (ClientUuid, LockOwner);

#[derive(Clone, Copy, Debug, PartialEq)]
struct Held {
    client: ClientUuid,
    lock: FileLock,
}

impl Held {
    fn holder(&self) -> Holder {
        (self.client, self.lock.owner)
    }

    fn conflicts_with(&self, holder: Holder, wanted: &FileLock) -> bool {
        self.lock.family == wanted.family
            && self.holder() != holder
            && self.lock.start <= wanted.last
            && wanted.start <= self.lock.last
            && (self.lock.mode == LockMode::Write || wanted.mode == LockMode::Write)
    }
}

#[derive(Default)]
struct State {
    files: FidMap<Vec<Held>>,
    /// Byte-range locks that are waited for, to find circles.
    waiting: HashMap<Holder, (Fid, FileLock)>,
    stopped: bool,
}

/// See the [module documentation](self).
pub struct FileLocks {
    state: Mutex<State>,
    changed: Condvar,
}

impl State {
    fn blocker(&self, fid: &Fid, holder: Holder, wanted: &FileLock) -> Option<Held> {
        self.files.get(fid)?.iter().find(|held| held.conflicts_with(holder, wanted)).copied()
    }

    /// True if somebody whom `holder` would wait for waits, directly or not, for `holder`.
    fn would_deadlock(&self, fid: &Fid, holder: Holder, wanted: &FileLock) -> bool {
        let (mut seen, mut todo) = (HashSet::new(), vec![(*fid, holder, *wanted)]);
        while let Some((fid, waiter, lock)) = todo.pop() {
            for held in self.files.get(&fid).into_iter().flatten() {
                if !held.conflicts_with(waiter, &lock) {
                    continue;
                }
                let next = held.holder();
                if next == holder {
                    return true;
                }
                if seen.insert(next)
                    && let Some((fid, lock)) = self.waiting.get(&next)
                {
                    todo.push((*fid, next, *lock));
                }
            }
        }
        false
    }

    /// Makes the holder's locks on the range what `lock` says; other parts of its locks stay.
    fn apply(&mut self, fid: &Fid, client: ClientUuid, lock: &FileLock) -> StatusResult<()> {
        let locks = self.files.entry(*fid).or_default();
        let holder = (client, lock.owner);
        let mut split = Vec::new();
        locks.retain_mut(|held| {
            let mine = held.holder() == holder && held.lock.family == lock.family;
            if !mine || held.lock.last < lock.start || lock.last < held.lock.start {
                return true;
            }
            let before = held.lock;
            if before.last > lock.last {
                let rest = FileLock { start: lock.last + 1, ..before };
                split.push(Held { client, lock: rest });
            }
            // A lock that starts at 0 leaves nothing before it.
            held.lock.last = lock.start.saturating_sub(1);
            before.start < lock.start
        });
        locks.append(&mut split);
        if lock.mode != LockMode::Unlock {
            if locks.len() >= LOCKS_PER_FILE_MAX {
                return Err(Status::ENOLCK);
            }
            locks.push(Held { client, lock: *lock });
        }
        if locks.is_empty() {
            self.files.remove(fid);
        }
        Ok(())
    }
}

impl FileLocks {
    /// A table without locks.
    pub fn new() -> FileLocks {
        FileLocks { state: Mutex::default(), changed: Condvar::new() }
    }

    /// Lets everybody who waits give up: the server stops.
    pub fn wake(&self) {
        self.state.lock().stopped = true;
        self.changed.notify_all();
    }

    /// Sets or releases a lock.
    ///
    /// # Errors
    /// `EAGAIN` on a conflict without `wait`; `EDEADLK` if waiting would never end, `EINTR`, `EINVAL` for a range
    /// that ends before it starts, `ENOLCK`.
    pub fn set(&self, fid: &Fid, client: ClientUuid, lock: &FileLock, wait: bool) -> StatusResult<()> {
        if lock.start > lock.last {
            return Err(Status::EINVAL);
        }
        let holder = (client, lock.owner);
        let mut state = self.state.lock();
        if lock.mode == LockMode::Unlock || state.blocker(fid, holder, lock).is_none() {
            let result = state.apply(fid, client, lock);
            // Releasing, and turning a write lock into a read lock, may let others in.
            self.changed.notify_all();
            return result;
        }
        if !wait {
            return Err(Status::EAGAIN);
        }
        if lock.family != LockFamily::Range {
            // As flock(2) says, a conversion gives up the old lock before it waits; two of them would deadlock otherwise.
            state.apply(fid, client, &FileLock { mode: LockMode::Unlock, ..*lock })?;
            self.changed.notify_all();
        } else if state.would_deadlock(fid, holder, lock) {
            return Err(Status::EDEADLK);
        }
        drop(state);
        nacre_env::blocking(|| self.wait_for(fid, client, lock))
    }

    fn wait_for(&self, fid: &Fid, client: ClientUuid, lock: &FileLock) -> StatusResult<()> {
        let holder = (client, lock.owner);
        let mut state = self.state.lock();
        if lock.family == LockFamily::Range {
            state.waiting.insert(holder, (*fid, *lock));
        }
        let result = loop {
            if state.blocker(fid, holder, lock).is_none() {
                break state.apply(fid, client, lock);
            }
            if lock.family == LockFamily::Range && state.would_deadlock(fid, holder, lock) {
                break Err(Status::EDEADLK);
            }
            if nacre_env::interrupted() {
                break Err(Status::EINTR);
            }
            if state.stopped {
                break Err(Status::ESHUTDOWN);
            }
            self.changed.wait_for(&mut state, POLL);
        };
        state.waiting.remove(&holder);
        self.changed.notify_all();
        result
    }

    /// The first lock that keeps `lock` from being set.
    pub fn conflict(&self, fid: &Fid, client: ClientUuid, lock: &FileLock) -> Option<FileLock> {
        let state = self.state.lock();
        let holder = (client, lock.owner);
        let locks = state.files.get(fid)?;
        let first = locks.iter().filter(|held| held.conflicts_with(holder, lock));
        first.min_by_key(|held| held.lock.start).map(|held| held.lock)
    }

    /// Releases what a client holds on a file: it has closed it.
    pub fn release_file(&self, fid: &Fid, client: &ClientUuid) {
        let mut state = self.state.lock();
        if let Some(locks) = state.files.get_mut(fid) {
            locks.retain(|held| held.client != *client);
            if locks.is_empty() {
                state.files.remove(fid);
            }
            self.changed.notify_all();
        }
    }

    /// Releases all that a client holds.
    pub fn release_client(&self, client: &ClientUuid) {
        let mut state = self.state.lock();
        state.files.retain(|_, locks| {
            locks.retain(|held| held.client != *client);
            !locks.is_empty()
        });
        self.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    const FILE: Fid = Fid::new(1, 1, 0);
    const A: ClientUuid = ClientUuid([1; 16]);
    const B: ClientUuid = ClientUuid([2; 16]);

    fn range(owner: u64, mode: LockMode, start: u64, last: u64) -> FileLock {
        FileLock { family: LockFamily::Range, owner: LockOwner(owner), mode, start, last, pid: 9 }
    }

    fn whole(owner: u64, mode: LockMode) -> FileLock {
        FileLock { family: LockFamily::File, owner: LockOwner(owner), mode, start: 0, last: u64::MAX, pid: 9 }
    }

    #[test]
    fn ranges_split_and_only_overlapping_ones_conflict() {
        let locks = FileLocks::new();
        assert_eq!(locks.set(&FILE, A, &range(1, LockMode::Write, 0, 99), false), Ok(()));
        assert_eq!(locks.set(&FILE, A, &range(1, LockMode::Unlock, 40, 59), false), Ok(()));
        assert_eq!(locks.set(&FILE, B, &range(1, LockMode::Write, 40, 59), false), Ok(()));
        assert_eq!(locks.set(&FILE, B, &range(1, LockMode::Read, 59, 60), false), Err(Status::EAGAIN));
        let found = locks.conflict(&FILE, B, &range(1, LockMode::Read, 0, u64::MAX)).expect("A holds some");
        assert_eq!((found.start, found.last), (0, 39));
        assert_eq!(locks.set(&FILE, A, &range(1, LockMode::Unlock, 0, u64::MAX), false), Ok(()));
        assert_eq!(locks.conflict(&FILE, B, &range(1, LockMode::Write, 0, u64::MAX)), None);
    }

    #[test]
    fn flock_and_fcntl_do_not_see_each_other_and_readers_share() {
        let locks = FileLocks::new();
        assert_eq!(locks.set(&FILE, A, &whole(1, LockMode::Write), false), Ok(()));
        assert_eq!(locks.set(&FILE, B, &range(1, LockMode::Write, 0, 9), false), Ok(()));
        assert_eq!(locks.set(&FILE, B, &whole(1, LockMode::Read), false), Err(Status::EAGAIN));
        assert_eq!(locks.set(&FILE, A, &whole(1, LockMode::Read), false), Ok(()));
        assert_eq!(locks.set(&FILE, B, &whole(1, LockMode::Read), false), Ok(()));
        locks.release_client(&A);
        assert_eq!(locks.set(&FILE, B, &whole(1, LockMode::Write), false), Ok(()));
    }

    #[test]
    fn a_waiter_gets_the_lock_when_it_is_released_and_a_circle_is_refused() {
        let locks = Arc::new(FileLocks::new());
        locks.set(&FILE, A, &range(1, LockMode::Write, 0, 0), false).expect("free");
        locks.set(&FILE, B, &range(2, LockMode::Write, 1, 1), false).expect("free");
        let waiter = {
            let locks = locks.clone();
            std::thread::spawn(move || locks.set(&FILE, B, &range(2, LockMode::Write, 0, 0), true))
        };
        while locks.state.lock().waiting.is_empty() {
            std::thread::yield_now();
        }
        assert_eq!(locks.set(&FILE, A, &range(1, LockMode::Write, 1, 1), true), Err(Status::EDEADLK));
        locks.release_file(&FILE, &A);
        assert_eq!(waiter.join().expect("no panic"), Ok(()));
        assert!(locks.conflict(&FILE, A, &range(1, LockMode::Write, 0, 1)).is_some());
    }

    #[test]
    fn a_range_that_ends_before_it_starts_is_invalid() {
        let locks = FileLocks::new();
        assert_eq!(locks.set(&FILE, A, &range(1, LockMode::Read, 5, 4), false), Err(Status::EINVAL));
    }
}
