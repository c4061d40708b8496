//! File locks that programs of this mount hold: recorded so that they can be replayed at an MDT that has
//! restarted, before another client gets a conflicting lock (`docs/protocol/recovery.md`). [`HeldLocks`]
//! decides; this module adds its mutex, its form on the wire, and the errors that lost locks cause.

use crate::requests::mdt::replay_is_given_up;
use nacre_env::sync::Mutex;
use nacre_lock::flock::held::{CallId, Change, End, HeldLocks};
use nacre_lock::flock::{Access, Family, Owner};
use nacre_lock::{Extent, ResourceId, flock};
use nacre_rpc::MdsEndpoint;
use nacre_types::{ClientUuid, Cred, Fid, ProcessIdentity, Status, StatusResult};
use nacre_wire::mds::{
    FileLock, LockFamily, LockMode, LockOwner, MdsReply, MdsRequest, ProcessLock, REPLAYED_LOCKS_MAX,
};
use std::sync::atomic::{AtomicBool, Ordering};

/// Files that are named in the log when their locks are lost; beyond that, only the number is logged.
const NAMED_MAX: usize = 16;

/// See the [module documentation](self).
pub(crate) struct FileLocks {
    client: ClientUuid,
    /// Host on which process ids are valid.
    host: ProcessIdentity,
    held: Mutex<HeldLocks>,
    /// Some owner has lost locks, so writes have to check.
    has_lost: AtomicBool,
}

impl FileLocks {
    pub fn new(client: ClientUuid) -> FileLocks {
        FileLocks {
            client,
            host: nacre_env::own_process(),
            held: Mutex::default(),
            has_lost: AtomicBool::new(false),
        }
    }

    /// Returns the lock with its process's number among all mounts of this host.
    pub fn of_process(&self, lock: &FileLock) -> ProcessLock {
        ProcessLock { lock: *lock, process: self.host.number_of(lock.pid) }
    }

    /// Records that a lock call is about to be sent, see [`HeldLocks::begin`].
    pub fn begin(&self, fid: &Fid, lock: &FileLock, through: u64) -> StatusResult<CallId> {
        let resource = ResourceId::of_fid(fid);
        self.with(|held| held.begin(&resource, self.change(&self.of_process(lock)), through))
    }

    /// Records the result of a lock call, see [`HeldLocks::end`].
    pub fn end(&self, fid: &Fid, call: CallId, result: StatusResult<()>) -> End {
        self.with(|held| held.end(&ResourceId::of_fid(fid), call, result))
    }

    /// Checks that the owner that writes through this open file has not lost a lock on it.
    ///
    /// # Errors
    /// `EIO` if it has.
    pub fn check_write(&self, fid: &Fid, through: u64, owner: Option<LockOwner>) -> StatusResult<()> {
        if !self.has_lost.load(Ordering::Acquire) {
            return Ok(());
        }
        let owner = owner.map(|owner| self.owner(owner));
        if self.held.lock().is_lost(&ResourceId::of_fid(fid), through, owner) {
            Err(Status::EIO)
        } else {
            Ok(())
        }
    }

    /// Replays the held locks at an MDT that has restarted.
    ///
    /// # Errors
    /// If the connection is lost meanwhile or the thread interrupted: everything has to be replayed again
    /// then.
    pub fn replay(&self, mdt_index: u16, endpoint: &dyn MdsEndpoint) -> StatusResult<()> {
        let files = self.held.lock().replay(|resource| resource.fid().mdt_index() == mdt_index);
        let system = Cred::system();
        for (resource, locks) in files {
            let fid = resource.fid();
            for locks in locks.chunks(REPLAYED_LOCKS_MAX) {
                let locks: Vec<ProcessLock> = locks.iter().map(told).collect();
                let request = MdsRequest::ReplayFileLocks { fid, locks: locks.clone() };
                let refused = match endpoint.call(&system, &request).map(|answer| answer.reply) {
                    Ok(MdsReply::RefusedLocks(refused)) => refused,
                    Err(status) if replay_is_given_up(status) => return Err(status),
                    Err(Status::ENOENT) => locks,
                    answer => {
                        log::warn!("file locks on {fid} were not brought back: {answer:?}");
                        locks
                    }
                };
                if !refused.is_empty() {
                    log::error!(
                        "MDT{mdt_index:04x} has not taken back {} file locks on {fid}: {LOST_WORDS}",
                        refused.len()
                    );
                    refused.iter().for_each(|lock| self.refused(&resource, lock));
                }
            }
        }
        Ok(())
    }

    fn refused(&self, resource: &ResourceId, lock: &ProcessLock) {
        if let Change::Set(lock) = self.change(lock) {
            self.with(|held| held.refused(resource, &lock));
        }
    }

    /// Records that an MDT has evicted this client, and with it dropped all locks of its programs.
    pub fn lose(&self, mdt_index: u16) {
        let lost = self.with(|held| held.lose(|resource| resource.fid().mdt_index() == mdt_index));
        for (resource, count) in lost.iter().take(NAMED_MAX) {
            log::error!(
                "MDT{mdt_index:04x} has dropped this client: {count} file locks on {} are lost: {LOST_WORDS}",
                resource.fid()
            );
        }
        if lost.len() > NAMED_MAX {
            log::error!("MDT{mdt_index:04x}: locks on {} more files are lost", lost.len() - NAMED_MAX);
        }
    }

    fn with<R>(&self, work: impl FnOnce(&mut HeldLocks) -> R) -> R {
        let mut held = self.held.lock();
        let result = work(&mut held);
        self.has_lost.store(held.has_lost(), Ordering::Release);
        result
    }

    fn owner(&self, owner: LockOwner) -> Owner {
        Owner { client: self.client, number: owner.0 }
    }

    /// Converts a call to the change that the engine knows.
    fn change(&self, lock: &ProcessLock) -> Change {
        let ProcessLock { lock, process } = lock;
        let (family, extent) = match lock.family {
            LockFamily::Range => (Family::Range, Extent { start: lock.start, last: lock.last }),
            LockFamily::File => (Family::File, Extent::WHOLE),
        };
        let owner = self.owner(lock.owner);
        let access = match lock.mode {
            LockMode::Unlock => return Change::Unlock(family, owner, extent),
            LockMode::Read => Access::Read,
            LockMode::Write => Access::Write,
        };
        Change::Set(flock::FileLock { family, owner, access, extent, pid: lock.pid, process: *process })
    }
}

/// Log text that says what lost locks mean for programs.
const LOST_WORDS: &str =
    "their holders get EIO when they write the file or lock it, until they have unlocked or closed it";

/// Converts a held lock to its form on the wire.
fn told(lock: &flock::FileLock) -> ProcessLock {
    let family = match lock.family {
        Family::Range => LockFamily::Range,
        Family::File => LockFamily::File,
    };
    let mode = match lock.access {
        Access::Read => LockMode::Read,
        Access::Write => LockMode::Write,
    };
    let Extent { start, last } = lock.extent;
    let held = FileLock { family, owner: LockOwner(lock.owner.number), mode, start, last, pid: lock.pid };
    ProcessLock { lock: held, process: lock.process }
}
