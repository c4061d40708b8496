//! The changelog: a record of each change of names, attributes and data, in the transaction of the change, for
//! registered users (Lustre's changelogs; `docs/decisions/0025-changelogs.md`).
//!
//! Records get their index and time in [`Changelog::assign`], right before the commit. Commits run in parallel,
//! so a later index may commit first: readers see records below the lowest index whose commit is under way.

pub(crate) mod events;
mod service;
pub(crate) mod settings;

pub(crate) use service::ChangelogService;

use crate::error::MdsError;
use crate::suspend::Caller;
use crate::tables::{CHANGE_USERS, CHANGES, CHANGES_HEAD_KEY, META, change_key};
use crate::tx::{Tx, now};
use nacre_env::sync::{Mutex, MutexGuard};
use nacre_ondisk::changelog::ChangeOrigin;
use nacre_ondisk::{ChangeRecord, ChangeUserRecord, ChangesHeadRecord};
use nacre_store::{MetaError, MetaStore};
use nacre_types::{ChangeMask, Timestamp};
use nacre_wire::peer::{RecordBytes, Update};
use settings::Settings;
use smallvec::SmallVec;
use std::collections::BTreeMap;
use std::ops::{Bound, ControlFlow};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// Indexes that are reserved in the head at once: a restart looks for the newest record below the limit.
const RESERVED: u64 = 1024;
/// Indexes before the limit at which more are reserved; more than commits are ever under way.
const RESERVE_EARLY: u64 = 512;

/// See the [module documentation](self).
pub struct Changelog {
    store: Arc<MetaStore>,
    /// Types that a user wants; 0 without users.
    wanted: AtomicU32,
    /// The stored head. Locked before `state`, and during each commit that changes it.
    head: Mutex<ChangesHeadRecord>,
    state: Mutex<State>,
    settings: Settings,
}

struct State {
    users: BTreeMap<u32, ChangeUserRecord>,
    /// Types for users without a mask of their own.
    mask: ChangeMask,
    /// Smallest index that is not purged.
    first: u64,
    /// Index of the next record.
    next: u64,
    /// Index at which no record may be stored yet.
    limit: u64,
    /// Time of the newest record, or of a read since.
    newest: Timestamp,
    /// Bytes of all records.
    bytes: u64,
    /// Bytes of the purged ones.
    purged_bytes: u64,
    /// First index and time of each commit under way.
    under_way: SmallVec<[(u64, Timestamp); 8]>,
}

/// What a reader may see.
struct Visible {
    first: u64,
    newest: u64,
    /// Time up to which no other record will appear.
    settled: Timestamp,
}

impl State {
    /// Returns the types that the users want together.
    fn wanted(&self) -> ChangeMask {
        let of = |user: &ChangeUserRecord| if user.mask.is_empty() { self.mask } else { user.mask };
        self.users.values().map(of).fold(ChangeMask::NONE, ChangeMask::union)
    }

    /// Returns the index up to which no user needs records.
    fn needless(&self) -> u64 {
        self.users.values().map(|user| user.cleared).min().unwrap_or(self.next - 1)
    }

    fn visible(&mut self) -> Visible {
        let (newest, settled) = match self.under_way.iter().min() {
            Some(&(index, time)) => (index - 1, just_before(time)),
            None => {
                // Later records are later than this read.
                self.newest = self.newest.max(now());
                (self.next - 1, self.newest)
            }
        };
        Visible { first: self.first, newest, settled }
    }
}

fn just_before(time: Timestamp) -> Timestamp {
    match time.nsec {
        0 => Timestamp::new(time.sec - 1, 999_999_999),
        nsec => Timestamp::new(time.sec, nsec - 1),
    }
}

/// Records of a transaction that is about to commit. Readers see them once this is dropped.
pub(crate) struct Assigned<'a> {
    changelog: &'a Changelog,
    first: u64,
    /// The head and its new limit, if the transaction stores one.
    head: Option<(MutexGuard<'a, ChangesHeadRecord>, u64)>,
}

impl Assigned<'_> {
    /// Records that the transaction is committed.
    pub fn committed(mut self) {
        if let Some((mut head, limit)) = self.head.take() {
            head.limit = limit;
            self.changelog.state.lock().limit = limit;
        }
    }
}

impl Drop for Assigned<'_> {
    fn drop(&mut self) {
        let mut state = self.changelog.state.lock();
        state.under_way.retain(|(first, _)| *first != self.first);
    }
}

/// Reads the head and the users.
fn stored(store: &MetaStore) -> Result<(ChangesHeadRecord, BTreeMap<u32, ChangeUserRecord>), MdsError> {
    let damaged = |source| MdsError::Damaged { what: "changelog", source };
    let head = store.get(META, CHANGES_HEAD_KEY, |value| value.map(ChangesHeadRecord::decode))?;
    let head = head.unwrap_or(Ok(ChangesHeadRecord { last_user: 0, first: 1, limit: 1 })).map_err(damaged)?;
    let (mut users, mut failed) = (BTreeMap::new(), None);
    store.scan(CHANGE_USERS, &[], Bound::Unbounded, &mut |key, value| {
        match (<[u8; 4]>::try_from(key), ChangeUserRecord::decode(value)) {
            (Ok(id), Ok(user)) => drop(users.insert(u32::from_be_bytes(id), user)),
            (_, Err(error)) => failed = Some(error),
            (Err(_), _) => failed = Some(nacre_ondisk::DecodeError::Field("key")),
        }
        ControlFlow::Continue(())
    })?;
    failed.map_or(Ok((head, users)), |error| Err(damaged(error)))
}

impl Changelog {
    /// Reads the changelog of a store.
    ///
    /// # Errors
    /// If it is damaged.
    pub(crate) fn open(store: &Arc<MetaStore>) -> Result<Changelog, MdsError> {
        let (head, users) = stored(store)?;
        let mut state = State {
            users,
            mask: ChangeMask::DEFAULT,
            first: head.first,
            next: head.first,
            limit: head.limit,
            newest: Timestamp::default(),
            bytes: 0,
            purged_bytes: 0,
            under_way: SmallVec::new(),
        };
        let of = |index: u64| {
            store.get(CHANGES, &change_key(index), |value| {
                value.and_then(|bytes| {
                    Some((ChangeRecord::decode(bytes).ok()?, bytes.len() as u64))
                        .map(|(record, len)| (record.time, record.before, len))
                })
            })
        };
        for index in (head.first..head.limit).rev() {
            if let Some((time, before, len)) = of(index)? {
                (state.next, state.newest, state.bytes) = (index + 1, time, before + len);
                break;
            }
        }
        state.purged_bytes = state.bytes;
        for index in head.first..state.next {
            if let Some((_, before, _)) = of(index)? {
                state.purged_bytes = before;
                break;
            }
        }
        let wanted = AtomicU32::new(state.wanted().bits());
        Ok(Changelog {
            store: store.clone(),
            wanted,
            head: Mutex::new(head),
            state: Mutex::new(state),
            settings: Settings::default(),
        })
    }

    /// Returns the types that are recorded: none without users.
    pub(crate) fn wanted(&self) -> ChangeMask {
        ChangeMask::from_bits(self.wanted.load(Ordering::Relaxed))
    }

    /// Adds a record to a caller's transaction, if a user wants its type.
    pub(crate) fn note(&self, caller: &Caller<'_>, tx: &mut Tx, record: &ChangeRecord<'_>) {
        if self.wanted().contains(record.kind) {
            let origin = Some(origin_of(caller));
            tx.log_change(|out| ChangeRecord { origin, ..*record }.encode(out));
        }
    }

    /// Adds a record of a change by the server itself.
    pub(crate) fn note_own(&self, tx: &mut Tx, record: &ChangeRecord<'_>) {
        if self.wanted().contains(record.kind) {
            tx.log_change(|out| record.encode(out));
        }
    }

    /// Returns the update that adds a record to the coordinator's changelog, if a user wants its type.
    pub(crate) fn update(&self, caller: Option<&Caller<'_>>, record: &ChangeRecord<'_>) -> Option<Update> {
        if !self.wanted().contains(record.kind) {
            return None;
        }
        let mut bytes = Vec::new();
        ChangeRecord { origin: caller.map(origin_of), ..*record }.encode(&mut bytes);
        Some(Update::LogChange { record: RecordBytes(bytes) })
    }

    /// Gives the records of a transaction their indexes and puts them into its batch. The caller commits it while
    /// it holds the result. `None` without records.
    pub(crate) fn assign(&self, tx: &mut Tx) -> Option<Assigned<'_>> {
        if !tx.has_changes() {
            return None;
        }
        let mut state = self.state.lock();
        let mut head = None;
        if state.next + RESERVE_EARLY > state.limit {
            drop(state);
            let stored = self.head.lock();
            state = self.state.lock();
            if state.next + RESERVE_EARLY > state.limit {
                let limit = state.next + RESERVE_EARLY + RESERVED;
                let next = ChangesHeadRecord { limit, ..*stored };
                tx.batch().put(META, CHANGES_HEAD_KEY, &next.encode());
                head = Some((stored, limit));
            }
        }
        // The last user may have been removed since.
        if state.users.is_empty() {
            return None;
        }
        let first = state.next;
        let time = now().max(state.newest.next());
        let State { next, bytes, newest, .. } = &mut *state;
        *newest = time;
        tx.put_changes(|record, batch| {
            ChangeRecord::stamp(record, *newest, *bytes);
            batch.put(CHANGES, &change_key(*next), record);
            *bytes += record.len() as u64;
            *next += 1;
            // Times of the next record of the same transaction.
            *newest = newest.next();
        });
        state.under_way.push((first, time));
        Some(Assigned { changelog: self, first, head })
    }

    /// Returns the limits for idle users.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Returns the bytes of all records.
    pub fn size(&self) -> u64 {
        let state = self.state.lock();
        state.bytes - state.purged_bytes
    }

    /// Returns the types for users without a mask of their own (`mdd.*.changelog_mask`).
    pub fn mask(&self) -> ChangeMask {
        self.state.lock().mask
    }

    /// Sets [`Changelog::mask`].
    pub fn set_mask(&self, mask: ChangeMask) {
        let mut state = self.state.lock();
        state.mask = mask;
        self.wanted.store(state.wanted().bits(), Ordering::Relaxed);
    }

    /// Returns the types that are recorded now (`mdd.*.changelog_current_mask`): those of the MDT without users.
    pub fn current_mask(&self) -> ChangeMask {
        self.wanted()
    }

    /// Changes the set of users after its commit.
    fn change_users(&self, change: impl FnOnce(&mut BTreeMap<u32, ChangeUserRecord>)) {
        let mut state = self.state.lock();
        change(&mut state.users);
        self.wanted.store(state.wanted().bits(), Ordering::Relaxed);
    }

    /// Returns the bytes before the first record from an index on.
    fn bytes_before(&self, first: u64, next: u64) -> Result<Option<u64>, MetaError> {
        for index in first..next {
            let before = self.store.get(CHANGES, &change_key(index), |value| {
                value.and_then(|bytes| ChangeRecord::decode(bytes).ok()).map(|record| record.before)
            })?;
            if before.is_some() {
                return Ok(before);
            }
        }
        Ok(None)
    }
}

fn origin_of(caller: &Caller<'_>) -> ChangeOrigin {
    let cred = caller.cred();
    ChangeOrigin { uid: cred.uid, gid: cred.gid, nid: caller.export.nid, job: caller.call.job }
}
