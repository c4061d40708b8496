//! Locks that programs take on files: `flock` on the whole file, `fcntl` on byte ranges.
//!
//! `nacre_lock::flock` decides, under one mutex; in this module threads wait for it. Each waiting thread
//! sleeps on a condition variable of its own, so a release wakes exactly the threads whose locks it grants.
//!
//! Locks live in memory. After a restart clients replay the locks that they held, in the same recovery window
//! as their other locks, and no new lock is granted before it ends: waiting calls are queued, others get an
//! error and ask again, so that they occupy no threads.

use nacre_env::activity::{Cause, waiting};
use nacre_env::sync::{Condvar, Mutex};
use nacre_lock::ResourceId;
use nacre_lock::flock::{
    self, Access, Completion, Family, FlockConfig, Owner, SetOutcome, WaitId, WaitTicket,
};
use nacre_lock::{Extent, flock::FileLocks as Engine};
use nacre_types::{ClientUuid, Fid, Status, StatusResult};
use nacre_wire::mds::{FileLock, LockFamily, LockMode, LockOwner, ProcessLock};
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Interval of checks for an interrupt while a thread waits for a lock.
const POLL: Duration = Duration::from_millis(20);

/// A waiting thread.
struct Waiter {
    client: ClientUuid,
    fid: Fid,
    result: Option<StatusResult<()>>,
    woken: Arc<Condvar>,
}

struct State {
    engine: Engine,
    waiters: HashMap<WaitId, Waiter>,
    waits_begun: u64,
    stopped: bool,
}

/// See the [module documentation](self).
pub struct FileLocks {
    state: Mutex<State>,
    /// Copy of the engine's state, readable without the mutex.
    is_recovering: AtomicBool,
}

impl State {
    fn complete(&mut self, completions: &[Completion]) {
        for completion in completions {
            self.end(completion.wait, completion.result);
        }
    }

    fn end(&mut self, wait: WaitId, result: StatusResult<()>) {
        if let Some(waiter) = self.waiters.get_mut(&wait) {
            waiter.result.get_or_insert(result);
            waiter.woken.notify_one();
        }
    }

    /// Wakes the threads whose waits the engine has dropped without an event, with the reason.
    fn end_all(&mut self, gone: impl Fn(&Waiter) -> bool, why: Status) {
        for waiter in self.waiters.values_mut().filter(|waiter| gone(waiter)) {
            waiter.result.get_or_insert(Err(why));
            waiter.woken.notify_one();
        }
    }

    fn begin_wait(&mut self, fid: &Fid, client: ClientUuid, wait: WaitId) -> Arc<Condvar> {
        let woken = Arc::new(Condvar::new());
        let waiter = Waiter { client, fid: *fid, result: None, woken: woken.clone() };
        self.waiters.insert(wait, waiter);
        woken
    }
}

impl FileLocks {
    /// Builds a table without locks; while it `is_recovering`, clients replay the locks of the last run.
    pub fn new(is_recovering: bool) -> FileLocks {
        let state = State {
            engine: Engine::new(FlockConfig::default(), is_recovering),
            waiters: HashMap::new(),
            waits_begun: 0,
            stopped: false,
        };
        FileLocks { state: Mutex::new(state), is_recovering: AtomicBool::new(is_recovering) }
    }

    /// Returns true until [`FileLocks::end_recovery`].
    pub fn is_recovering(&self) -> bool {
        self.is_recovering.load(Ordering::Acquire)
    }

    /// Ends recovery: all clients of the last run have replayed their locks or were given up. Waiting
    /// requests are granted as usual from here on.
    pub fn end_recovery(&self) {
        let mut completions = Vec::new();
        let mut state = self.state.lock();
        state.engine.end_recovery(&mut completions);
        state.complete(&completions);
        self.is_recovering.store(false, Ordering::Release);
    }

    /// Replays locks of a client; returns those that it has lost. `may_restore` until the client reports that
    /// it has replayed all.
    pub fn replay(
        &self,
        fid: &Fid,
        client: ClientUuid,
        locks: &[ProcessLock],
        may_restore: bool,
    ) -> Vec<ProcessLock> {
        let resource = ResourceId::of_fid(fid);
        let mut state = self.state.lock();
        let mut is_refused = |lock: &&ProcessLock| {
            wanted(client, lock)
                .is_some_and(|held| state.engine.on_replay(&resource, &held, may_restore).is_err())
        };
        locks.iter().filter(|lock| is_refused(lock)).copied().collect()
    }

    /// Ends all waits, because the server stops.
    pub fn wake(&self) {
        let mut state = self.state.lock();
        state.stopped = true;
        for waiter in state.waiters.values() {
            waiter.woken.notify_one();
        }
    }

    /// Sets or releases a lock. With `wait` it returns when the lock is held; the wait can be interrupted. As
    /// on Linux, a request for an `flock` in another mode first releases the lock that the caller has, and
    /// leaves none if the new one is refused.
    ///
    /// `asked`: time of the program's call, which orders waiting calls from before a restart.
    ///
    /// # Errors
    /// `EAGAIN` on a conflict without `wait`, or `RECOVERING`; `EDEADLK` for a deadlock, `EINTR`, `EINVAL`
    /// for a range that ends before it starts, `ENOLCK`; `EVICTED` if the client was dropped meanwhile,
    /// `EBADF` if it closed the file, `ESHUTDOWN`.
    pub fn set(
        &self,
        fid: &Fid,
        client: ClientUuid,
        lock: &ProcessLock,
        wait: bool,
        asked: u64,
    ) -> StatusResult<()> {
        let resource = ResourceId::of_fid(fid);
        let mut completions = Vec::new();
        let mut state = self.state.lock();
        let Some(wanted) = wanted(client, lock) else {
            let lock = &lock.lock;
            let (family, owner) = (family(lock.family), owner(client, lock));
            let extent = match family {
                Family::Range => Extent { start: lock.start, last: lock.last },
                Family::File => Extent::WHOLE,
            };
            let result = state.engine.on_unlock(&resource, family, owner, extent, &mut completions);
            state.complete(&completions);
            return result;
        };
        let wait = wait.then(|| {
            state.waits_begun += 1;
            WaitTicket { id: WaitId(state.waits_begun), asked }
        });
        let outcome = state.engine.on_set(&resource, &wanted, wait, &mut completions);
        let woken = match (outcome, wait) {
            (Ok(SetOutcome::Waiting), Some(ticket)) => {
                Some((state.begin_wait(fid, client, ticket.id), ticket.id))
            }
            _ => None,
        };
        state.complete(&completions);
        drop(state);
        match woken {
            None => outcome.map(drop),
            Some((woken, wait)) => nacre_env::blocking(|| self.wait_for(fid, &wanted, wait, &woken)),
        }
    }

    fn wait_for(
        &self,
        fid: &Fid,
        wanted: &flock::FileLock,
        wait: WaitId,
        woken: &Condvar,
    ) -> StatusResult<()> {
        let client = wanted.owner.client;
        let mut state = self.state.lock();
        let result = loop {
            if let Some(result) = state.waiters.get(&wait).and_then(|waiter| waiter.result) {
                break result;
            }
            let why = match (nacre_env::interrupted(), state.stopped) {
                (true, _) => Some(Status::EINTR),
                (false, true) => Some(Status::ESHUTDOWN),
                (false, false) => None,
            };
            if let Some(why) = why {
                // The engine completed nothing, or there would be a result.
                state.engine.on_cancel_wait(client, wait);
                break Err(why);
            }
            let holder = state.engine.conflict(&ResourceId::of_fid(fid), wanted);
            let (client, pid) = holder.map_or_else(Default::default, |it| (it.owner.client, it.pid));
            let cause = Cause::FileLock { fid: *fid, client, pid };
            waiting(cause, || woken.wait_for(&mut state, POLL));
        };
        state.waiters.remove(&wait);
        result
    }

    /// Returns the first lock that conflicts with `lock`.
    ///
    /// # Errors
    /// `RECOVERING`.
    pub fn conflict(&self, fid: &Fid, client: ClientUuid, lock: &FileLock) -> StatusResult<Option<FileLock>> {
        let Some(wanted) = wanted(client, &ProcessLock { lock: *lock, process: 0 }) else { return Ok(None) };
        let state = self.state.lock();
        if state.engine.is_recovering() {
            return Err(Status::RECOVERING);
        }
        let found = state.engine.conflict(&ResourceId::of_fid(fid), &wanted);
        Ok(found.map(|found| FileLock {
            family: lock.family,
            owner: LockOwner(found.owner.number),
            mode: match found.access {
                Access::Read => LockMode::Read,
                Access::Write => LockMode::Write,
            },
            start: found.extent.start,
            last: found.extent.last,
            pid: found.pid,
        }))
    }

    /// Releases the locks of a client on a file that it has closed.
    pub fn release_file(&self, fid: &Fid, client: &ClientUuid) {
        let mut completions = Vec::new();
        let mut state = self.state.lock();
        state.engine.release_file(&ResourceId::of_fid(fid), *client, &mut completions);
        state.complete(&completions);
        state.end_all(|waiter| waiter.client == *client && waiter.fid == *fid, Status::EBADF);
    }

    /// Releases all locks of a removed client and ends its waits.
    pub fn release_client(&self, client: &ClientUuid) {
        let mut completions = Vec::new();
        let mut state = self.state.lock();
        state.engine.release_client(*client, &mut completions);
        state.complete(&completions);
        state.end_all(|waiter| waiter.client == *client, Status::EVICTED);
    }
}

fn family(family: LockFamily) -> Family {
    match family {
        LockFamily::Range => Family::Range,
        LockFamily::File => Family::File,
    }
}

fn owner(client: ClientUuid, lock: &FileLock) -> Owner {
    Owner { client, number: lock.owner.0 }
}

/// Converts a lock to the engine's type; `None` for a release.
fn wanted(client: ClientUuid, lock: &ProcessLock) -> Option<flock::FileLock> {
    let ProcessLock { lock, process } = lock;
    let access = match lock.mode {
        LockMode::Read => Access::Read,
        LockMode::Write => Access::Write,
        LockMode::Unlock => return None,
    };
    let extent = Extent { start: lock.start, last: lock.last };
    Some(flock::FileLock {
        family: family(lock.family),
        owner: owner(client, lock),
        access,
        extent,
        pid: lock.pid,
        process: *process,
    })
}

#[cfg(test)]
mod tests;
