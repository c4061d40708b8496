//! Capabilities for objects: signed by MDTs for this client, stored by object, for the endpoints of OSTs to
//! send along.
//!
//! Capabilities come with layouts, last for minutes, and are renewed by file: in the background at half of
//! their life, by the request that needs one when none is valid. An MDT grants what this client's opens of
//! the file allow, so an entry here belongs to no user: the MDT has checked each open, and the kernel lets no
//! user access the open of another one. For operations by name, without an open, capabilities are requested
//! with the credentials of the caller ([`CapabilityTable::act_for`]).

use crate::caller::Caller;
use crate::file::FileState;
use crate::requests::Requests;
use nacre_env::clock::Instant;
use nacre_env::sync::{Mutex, MutexGuard};
use nacre_types::{Capability, FailureResult, Fid, ObjectNeed, Rights, Status};
use nacre_wire::mds::{FileCapabilities, MdsRequest};
use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

const SHARDS: usize = 32;
/// Objects in a shard from which on it is searched for unused ones.
const SHARD_OBJECTS: usize = 2048;
/// How long a new capability is kept at least, since its file may be about to be used.
const KEPT_AT_LEAST: Duration = Duration::from_secs(10);
/// Bound of the queue of background renewals. Capabilities of other files are renewed by the request that
/// needs one.
const SOON_MAX: usize = 256;
/// Locks that keep two threads from renewing the same file at once; files share them.
const RENEWAL_LOCKS: usize = 64;
/// Interval at which a thread that waits for another's renewal checks for an interrupt.
const POLL: Duration = Duration::from_millis(10);

#[derive(Clone, Copy)]
struct Entry {
    file: Fid,
    capability: Capability,
    came: Instant,
    life: Duration,
}

impl Entry {
    /// True if it is about to expire: the last tenth is a margin for the transfer and for clocks.
    fn has_ended(&self) -> bool {
        self.came.elapsed() >= self.life - self.life / 10
    }

    /// True if it is time to renew it.
    fn is_due(&self) -> bool {
        self.came.elapsed() >= self.life / 2
    }

    /// True if it has one of the needed rights, and is not the one that was `refused`.
    fn serves(&self, any_of: Rights, refused: Option<&Capability>) -> bool {
        self.capability.allows(any_of) && !self.has_ended() && refused != Some(&self.capability)
    }
}

#[derive(Default)]
struct Shard {
    objects: HashMap<Fid, Entry>,
    /// Number of objects from which on unused ones are dropped.
    sweep_at: usize,
}

/// Files to be renewed, and whether a thread is doing it.
#[derive(Default)]
struct Soon {
    files: VecDeque<Fid>,
    is_running: bool,
}

/// See the [module documentation](self).
#[derive(Default)]
pub(crate) struct CapabilityTable {
    /// True once an MDT has granted a capability: until then none are needed.
    is_used: AtomicBool,
    shards: [Mutex<Shard>; SHARDS],
    turns: Box<[Mutex<()>]>,
    soon: Mutex<Soon>,
    /// Callers that are operating on a file by name, with the file.
    acting: Mutex<Vec<(Fid, Caller)>>,
}

/// Guard of [`CapabilityTable::act_for`].
#[must_use = "it ends when this is dropped"]
pub(crate) struct Acting<'a> {
    table: &'a CapabilityTable,
    who: (Fid, Caller),
}

impl Drop for Acting<'_> {
    fn drop(&mut self) {
        let mut acting = self.table.acting.lock();
        if let Some(place) = acting.iter().position(|other| *other == self.who) {
            acting.swap_remove(place);
        }
    }
}

impl CapabilityTable {
    pub fn new() -> CapabilityTable {
        CapabilityTable {
            turns: (0..RENEWAL_LOCKS).map(|_| Mutex::default()).collect(),
            ..CapabilityTable::default()
        }
    }

    fn shard(&self, object: &Fid) -> &Mutex<Shard> {
        &self.shards[object.oid as usize % SHARDS]
    }

    fn entry(&self, object: &Fid) -> Option<Entry> {
        self.shard(object).lock().objects.get(object).copied()
    }

    /// Enters capabilities from a reply. `is_open`: files whose capabilities are not dropped.
    fn note(&self, given: &FileCapabilities, is_open: impl Fn(&Fid) -> bool) {
        self.is_used.store(true, Ordering::Release);
        let (came, life) = (Instant::now(), Duration::from_secs(given.life_s.into()));
        let FileCapabilities { fid, rights, epoch, expires_s, .. } = *given;
        for &(object, tag) in &given.objects {
            let new =
                Entry { file: fid, capability: Capability { rights, epoch, expires_s, tag }, came, life };
            let mut shard = self.shard(&object).lock();
            let gives_less = |old: &Entry| {
                let both = (old.capability.rights, rights);
                old.file == fid && both.0 != both.1 && both.0.contains(both.1) && !old.is_due()
            };
            // It may be the reply to an older request than that from before an open.
            if !shard.objects.get(&object).is_some_and(gives_less) {
                shard.objects.insert(object, new);
            }
            if shard.objects.len() > shard.sweep_at.max(SHARD_OBJECTS) {
                shard.objects.retain(|_, entry| !entry.has_ended() || is_open(&entry.file));
                if shard.objects.len() > SHARD_OBJECTS / 2 {
                    shard
                        .objects
                        .retain(|_, entry| entry.came.elapsed() < KEPT_AT_LEAST || is_open(&entry.file));
                }
                shard.sweep_at = 2 * shard.objects.len();
            }
        }
    }

    /// Makes capabilities for the file be requested with the credentials of `caller`, which need not have it
    /// open, until the guard is dropped.
    pub fn act_for(&self, file: Fid, caller: &Caller) -> Acting<'_> {
        let who = (file, *caller);
        self.acting.lock().push(who);
        Acting { table: self, who }
    }

    fn actor(&self, file: Fid) -> Option<Caller> {
        self.acting.lock().iter().find(|(acted_on, _)| *acted_on == file).map(|(_, caller)| *caller)
    }

    /// Waits until no other thread renews this file.
    fn lock_renewal(&self, file: Fid) -> FailureResult<MutexGuard<'_, ()>> {
        let turn = &self.turns[file.oid as usize % RENEWAL_LOCKS];
        if let Some(mine) = turn.try_lock() {
            return Ok(mine);
        }
        nacre_env::blocking(|| {
            loop {
                if nacre_env::interrupted() {
                    return Err(Status::EINTR.into());
                }
                if let Some(mine) = turn.try_lock_for(POLL) {
                    return Ok(mine);
                }
            }
        })
    }
}

impl Requests {
    /// Enters capabilities from a reply of an MDT.
    pub(crate) fn note_capabilities(&self, given: &FileCapabilities) {
        self.capabilities.note(given, |file| self.nodes.file(file.inode_number()).is_some());
    }

    /// Returns the capability to send with a request to an OST. See [`nacre_rpc::OssEvents::capability`].
    ///
    /// # Errors
    /// `EINTR`; the failure of the request to the MDT.
    pub(crate) fn capability(
        &self,
        need: &ObjectNeed,
        refused: Option<&Capability>,
    ) -> FailureResult<Option<Capability>> {
        if !self.capabilities.is_used.load(Ordering::Acquire) && refused.is_none() {
            return Ok(None);
        }
        let known = self.capabilities.entry(&need.object);
        if let Some(known) = known.filter(|known| known.serves(need.any_of, refused)) {
            if known.is_due() {
                self.renew_soon(known.file);
            }
            return Ok(Some(known.capability));
        }
        let Some(file) = known.map(|known| known.file).or_else(|| self.file_with(&need.object)) else {
            return Ok(None);
        };
        let _turn = self.capabilities.lock_renewal(file)?;
        let good = |entry: &Entry| entry.serves(need.any_of, refused);
        // Another thread may have renewed it meanwhile.
        if let Some(known) = self.capabilities.entry(&need.object).filter(good) {
            return Ok(Some(known.capability));
        }
        match self.ask_for_capabilities(file, need.any_of) {
            Ok(()) => Ok(self.capabilities.entry(&need.object).filter(good).map(|entry| entry.capability)),
            // There are no rights to a file that does not exist.
            Err(failure) if matches!(failure.status(), Status::ENOENT | Status::ESTALE) => Ok(None),
            Err(status) => Err(status),
        }
    }

    /// Returns the file of an object without a capability from its layout: the layout was known, or the MDT
    /// itself has written the first data, as that of a close.
    fn file_with(&self, object: &Fid) -> Option<Fid> {
        let has_it = |file: &FileState| {
            let layout = file.lock().layout.clone();
            layout.is_some_and(|layout| layout.objects().any(|known| known.object == *object))
        };
        let open = self.nodes.open_files().into_iter().find(|file| has_it(file)).map(|file| file.fid);
        // Objects on MDTs have the FID of their file, with a version of their own.
        open.or_else(|| (!object.is_idif()).then_some(Fid { ver: 0, ..*object }))
    }

    /// Requests from the MDT what this client may do with a file, and enters it.
    fn ask_for_capabilities(&self, fid: Fid, any_of: Rights) -> FailureResult<()> {
        let answer = match self.capabilities.actor(fid) {
            Some(caller) => self.call(&caller, fid, &MdsRequest::Capabilities { fid, wanted: any_of }),
            None => self.call_system(fid, &MdsRequest::Capabilities { fid, wanted: Rights::empty() }),
        };
        answer.map(drop)
    }

    /// Queues a file whose capabilities a thread renews before they expire.
    fn renew_soon(&self, file: Fid) {
        let mut soon = self.capabilities.soon.lock();
        if soon.files.len() >= SOON_MAX || soon.files.contains(&file) {
            return;
        }
        soon.files.push_back(file);
        if std::mem::replace(&mut soon.is_running, true) {
            return;
        }
        drop(soon);
        let weak = self.me.clone();
        let begun = self.tasks.submit(move || {
            if let Some(requests) = weak.upgrade() {
                requests.renew_those_due();
            }
        });
        if !begun {
            *self.capabilities.soon.lock() = Soon::default();
        }
    }

    fn renew_those_due(&self) {
        loop {
            let mut soon = self.capabilities.soon.lock();
            let Some(&file) = soon.files.front() else {
                soon.is_running = false;
                return;
            };
            drop(soon);
            if let Err(status) = self.ask_for_capabilities(file, Rights::empty()) {
                log::debug!("capabilities of {file} are asked for when they are needed: {status}");
            }
            // Only afterwards: while it is queued it is not queued again.
            self.capabilities.soon.lock().files.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: Fid = Fid::new(0x2_0000_0400, 7, 0);

    fn given(rights: Rights, life_s: u32, objects: impl Iterator<Item = u32>) -> FileCapabilities {
        let objects = objects.map(|oid| (Fid::ost_object(0, oid), [rights.bits(); 16])).collect();
        FileCapabilities { fid: FILE, rights, epoch: 1, expires_s: 9, life_s, objects }
    }

    fn rights(table: &CapabilityTable, oid: u32) -> Option<Rights> {
        table.entry(&Fid::ost_object(0, oid)).map(|entry| entry.capability.rights)
    }

    #[test]
    fn what_gives_less_replaces_only_what_is_due() {
        let table = CapabilityTable::new();
        let all = Rights::all();
        table.note(&given(all, 600, 1..2), |_| true);
        table.note(&given(Rights::READ, 600, 1..2), |_| true);
        assert_eq!(rights(&table, 1), Some(all), "the answer may be older than an open");
        table.note(&given(Rights::WRITE, 0, 2..3), |_| true);
        table.note(&given(Rights::READ, 600, 2..3), |_| true);
        assert_eq!(rights(&table, 2), Some(Rights::READ));
        table.note(&given(all, 600, 2..3), |_| true);
        assert_eq!(rights(&table, 2), Some(all));
        let entry = table.entry(&Fid::ost_object(0, 2)).expect("noted");
        assert!(entry.serves(Rights::WRITE, None) && !entry.serves(Rights::WRITE, Some(&entry.capability)));
        let ended = Entry { life: Duration::ZERO, ..entry };
        assert!(ended.is_due() && !ended.serves(Rights::WRITE, None));
    }

    #[test]
    fn what_is_open_is_kept_however_much_there_is() {
        let table = CapabilityTable::new();
        let open = FileCapabilities { fid: Fid { oid: 8, ..FILE }, ..given(Rights::all(), 0, 1..100) };
        let is_open = |file: &Fid| file.oid == 8;
        table.note(&open, is_open);
        let many = 100..(SHARDS * SHARD_OBJECTS * 3) as u32;
        table.note(&given(Rights::READ, 0, many), is_open);
        assert!((1..100).all(|oid| rights(&table, oid).is_some()));
        let kept: usize = table.shards.iter().map(|shard| shard.lock().objects.len()).sum();
        assert!(kept <= SHARDS * (SHARD_OBJECTS + 1), "{kept}");
    }

    #[test]
    fn who_acts_by_name_is_known_as_long_as_that_lasts() {
        let table = CapabilityTable::new();
        let caller = |uid| Caller { uid, gid: 0, pid: 0 };
        let first = table.act_for(FILE, &caller(5));
        let second = table.act_for(FILE, &caller(5));
        drop(first);
        assert_eq!(table.actor(FILE), Some(caller(5)));
        drop(second);
        assert_eq!(table.actor(FILE), None);
    }
}
