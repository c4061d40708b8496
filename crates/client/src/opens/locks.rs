//! File locks, which all mounts share.

use crate::caller::Caller;
use crate::data::closes::{Closes, await_closes};
use crate::file::FileState;
use crate::opens::Opens;
use nacre_env::clock::Instant;
use nacre_lock::flock::held::End;
use nacre_types::{Failure, FailureResult, Fid, OpenHandle, Status, StatusResult};
use nacre_wire::mds::{FileLock, LockFamily, LockMode, LockOwner, MdsReply, MdsRequest};
use std::sync::atomic::Ordering;
use std::time::{Duration, SystemTime};

/// How long a release may take to arrive after its descriptor was closed. Short, since a lock request without
/// waiting has to return soon.
const RELEASE_TIMEOUT: Duration = Duration::from_millis(100);
/// First and longest pause between requests to an MDT that waits for clients of its last run.
const RECOVERY_PAUSE: (Duration, Duration) = (Duration::from_millis(10), Duration::from_millis(200));

impl Opens {
    /// Sets or releases a lock through open file `handle`; with `wait` waits until it is granted.
    ///
    /// # Errors
    /// `EBADF`; `EAGAIN` if there is a conflicting lock and `wait` is false; `EINTR`; `EDEADLK`; `ENOLCK`;
    /// `EIO` for a lock if its owner has lost others on the file, as the MDT had evicted this client, and has
    /// not unlocked them yet.
    pub fn set_lock(&self, caller: &Caller, handle: u64, lock: FileLock, wait: bool) -> StatusResult<()> {
        self.requests.faults.edge("set lock", || {
            let fid = self.fid_of_handle(handle)?;
            if lock.family == LockFamily::Range
                && lock.mode != LockMode::Unlock
                && let Some(file) = self.nodes.file(fid.inode_number())
            {
                // Before the request: a lock that was granted although the reply got lost must be released
                // too.
                file.lock().users.range_locked = true;
            }
            let asked = nacre_env::clock::wall().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
            let asked_ns = u64::try_from(asked.as_nanos()).unwrap_or(u64::MAX);
            let request = MdsRequest::LockFile { fid, lock: self.flocks.of_process(&lock), wait, asked_ns };
            let call = self.flocks.begin(&fid, &lock, handle)?;
            loop {
                let ended = self.ended_opens(fid);
                let outcome = match self.ask_for_lock(caller, fid, &request) {
                    // The conflicting lock may belong to a descriptor that was closed before.
                    Err(failure) if failure == Status::EAGAIN => {
                        match self.await_unlocks(fid, lock.family, ended) {
                            Ok(true) => self.ask_for_lock(caller, fid, &request),
                            Ok(false) => Err(failure),
                            Err(status) => Err(status.into()),
                        }
                    }
                    outcome => outcome,
                };
                let outcome = outcome.map(drop).map_err(|failure| self.requests.faults.log(failure));
                if let End::Over(result) = self.flocks.end(&fid, call, outcome) {
                    return result.map_err(Failure::logged);
                }
            }
        })
    }

    /// Sends a lock request to the MDT, and repeats it while the MDT waits for clients of its last run.
    fn ask_for_lock(&self, caller: &Caller, fid: Fid, request: &MdsRequest<'_>) -> FailureResult<MdsReply> {
        let mut pause = RECOVERY_PAUSE.0;
        loop {
            match self.requests.call(caller, fid, request) {
                Err(failure) if failure == Status::RECOVERING => {}
                outcome => return outcome.map(|answer| answer.reply),
            }
            let until = Instant::now() + pause;
            nacre_env::blocking(|| {
                while Instant::now() < until {
                    if nacre_env::interrupted() {
                        return Err(Status::EINTR);
                    }
                    nacre_env::thread::sleep(RECOVERY_PAUSE.0);
                }
                Ok(())
            })?;
            pause = (pause * 2).min(RECOVERY_PAUSE.1);
        }
    }

    /// Returns how many opens of a file in use have ended.
    fn ended_opens(&self, fid: Fid) -> u64 {
        self.nodes.file(fid.inode_number()).map_or(0, |file| file.lock().users.ended)
    }

    /// Waits until locks that end with an open file are released, if its descriptors may be closed already;
    /// false if there are none, and no open has ended since there were `ended`.
    fn await_unlocks(&self, fid: Fid, family: LockFamily, ended: u64) -> StatusResult<bool> {
        // The end came between the MDT's answer and this call.
        if self.ended_opens(fid) != ended {
            return Ok(true);
        }
        let leaves = |file: &FileState| file.lock().users.leaving_locks > 0;
        let may_come = family == LockFamily::File
            || self.nodes.file(fid.inode_number()).is_some_and(|file| leaves(&file));
        Ok(may_come && await_closes(&self.requests, &self.nodes, fid, &Closes::Told(None), RELEASE_TIMEOUT)?)
    }

    /// Records that `owner` is about to set locks through an open file.
    ///
    /// The kernel reports the end of an open file late, and may have given its number as an owner to the next
    /// one by then: locks that this one sets from then on do not end with the earlier one.
    ///
    /// # Errors
    /// `EBADF` if the handle is not that of an open file.
    pub fn note_locker(&self, handle: u64, family: LockFamily, owner: LockOwner) -> StatusResult<()> {
        let open = self.handles.file(handle)?;
        let mut lockers = open.file.lockers.lock();
        lockers.retain(|(locker, _)| *locker != (family, owner));
        lockers.push(((family, owner), open.handle));
        Ok(())
    }

    /// Records that `owner` has closed a descriptor of an open file, which releases all `fcntl` locks that it
    /// held on the file.
    ///
    /// # Errors
    /// `EBADF` if the handle is not that of an open file.
    pub fn forget_locker(&self, handle: u64, owner: LockOwner) -> StatusResult<()> {
        let open = self.handles.file(handle)?;
        let mut lockers = open.file.lockers.lock();
        lockers.retain(|(locker, _)| *locker != (LockFamily::Range, owner));
        let leaves = |((family, _), through): &((LockFamily, LockOwner), OpenHandle)| {
            *family == LockFamily::Range && *through == open.handle
        };
        let leaves = lockers.iter().any(leaves);
        drop(lockers);
        if leaves && !open.leaves_locks.swap(true, Ordering::Relaxed) {
            open.file.lock().users.leaving_locks += 1;
        }
        Ok(())
    }

    /// Calls `unlock` to release the locks that end with an open file: `flock`s, and those of open file
    /// descriptions (`F_OFD_SETLK`), whose end the kernel reports in no other way. Processes have released
    /// theirs, each when it closed its descriptor. Meanwhile no other thread sets locks for these owners.
    ///
    /// # Errors
    /// `EBADF`; the first of `unlock`.
    pub fn unlock_with_open(
        &self,
        handle: u64,
        mut unlock: impl FnMut(LockFamily, LockOwner) -> StatusResult<()>,
    ) -> StatusResult<()> {
        let open = self.handles.file(handle)?;
        let mut lockers = open.file.lockers.lock();
        let own = lockers.extract_if(.., |(_, through)| *through == open.handle).collect::<Vec<_>>();
        own.into_iter().try_for_each(|((family, owner), _)| unlock(family, owner))
    }

    /// True if closing a descriptor of the open file may have to release `fcntl` locks. Most files never have
    /// one, so most closes need no request.
    pub fn may_hold_range_locks(&self, handle: u64) -> bool {
        self.handles.file(handle).is_ok_and(|open| open.file.lock().users.range_locked)
    }

    /// Returns a lock that conflicts with `lock`, if there is one.
    ///
    /// # Errors
    /// The error of the MDT.
    pub fn get_lock(&self, caller: &Caller, fid: Fid, lock: FileLock) -> StatusResult<Option<FileLock>> {
        self.requests.faults.edge("get lock", || {
            let ask = || match self.ask_for_lock(caller, fid, &MdsRequest::GetLock { fid, lock })? {
                MdsReply::Lock(conflict) => Ok(conflict),
                _ => Err(Failure::from(Status::EPROTO)),
            };
            let ended = self.ended_opens(fid);
            match ask()? {
                Some(_) if self.await_unlocks(fid, lock.family, ended)? => ask(),
                conflict => Ok(conflict),
            }
        })
    }

    /// Returns the FID of an open file or directory.
    ///
    /// # Errors
    /// `EBADF` if the handle is not that of one.
    pub fn fid_of_handle(&self, handle: u64) -> StatusResult<Fid> {
        match self.handles.file(handle) {
            Ok(open) => Ok(open.file.fid),
            Err(_) => Ok(self.handles.dir(handle)?.fid),
        }
    }

    /// True if the handle is an open for writing.
    pub fn is_writable(&self, handle: u64) -> bool {
        self.handles.file(handle).is_ok_and(|open| open.writable())
    }
}
