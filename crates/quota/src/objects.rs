//! Space by owner of the objects of a store.
//!
//! Each object has a record with its owners and the bytes that are counted for them. While an object is written, its
//! entry in memory counts each write in full, so that the use is never too low; from time to time, and when the object
//! has been idle, the entry is set to what the store says. The record of an object with an entry is marked as active:
//! after a crash its space is read again. All other records are exact, so a start only adds them up.

use crate::book::{Admission, Book, Payers, Saved};
use nacre_env::sync::{Mutex, MutexGuard};
use nacre_types::{Fid, ObjectPlace, Owners, QuotaId, QuotaResource, StatusResult};
use std::collections::hash_map::Entry as Slot;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

const SHARDS: usize = 64;
/// Bytes written to an object after which its space is read.
const RECOUNT_BYTES: u64 = 16 << 20;
/// Calls of [`ObjectAccounts::tick`] without a write after which the entry of an object is dropped.
const IDLE_TICKS: u8 = 2;
/// Records that a start counts at a time.
const COUNTED_AT_ONCE: usize = 1024;
const SPACE: QuotaResource = QuotaResource::Space;

/// What is stored about an object.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ObjectRecord {
    /// Owners of its file.
    pub owners: Owners,
    /// Bytes that are counted for them.
    pub counted: u64,
    /// True if `counted` may be out of date.
    pub is_active: bool,
    /// Place of the object in its file, if a writer has reported it.
    pub place: Option<ObjectPlace>,
}

/// Owners of an object, and its place in its file, as a request has them.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Owned {
    /// Owners of its file.
    pub owners: Owners,
    /// Place of the object; `None` leaves what is known.
    pub place: Option<ObjectPlace>,
}

/// The store of the objects and of their records.
pub trait Objects: Send + Sync {
    /// Returns the record of an object.
    ///
    /// # Errors
    /// Those of the store.
    fn record(&self, object: Fid) -> StatusResult<Option<ObjectRecord>>;

    /// Stores the record of an object.
    ///
    /// # Errors
    /// Those of the store.
    fn put(&self, object: Fid, record: &ObjectRecord) -> StatusResult<()>;

    /// Removes the record of a destroyed object.
    ///
    /// # Errors
    /// Those of the store.
    fn remove(&self, object: Fid) -> StatusResult<()>;

    /// Returns the space of an object in bytes; 0 if it does not exist.
    ///
    /// # Errors
    /// Those of the store.
    fn used_bytes(&self, object: Fid) -> StatusResult<u64>;

    /// Returns up to `max` records after an object, in the order of the FIDs.
    ///
    /// # Errors
    /// Those of the store.
    fn records_after(&self, object: Fid, max: usize) -> StatusResult<Vec<(Fid, ObjectRecord)>>;

    /// Makes all records durable.
    ///
    /// # Errors
    /// Those of the store.
    fn sync(&self) -> StatusResult<()>;

    /// Stores accounts for the next run.
    ///
    /// # Errors
    /// Those of the store.
    fn save(&self, accounts: &[Saved]) -> StatusResult<()>;
}

/// An object that has been written lately.
#[derive(Debug)]
struct Entry {
    payers: Payers,
    place: Option<ObjectPlace>,
    /// Bytes according to the store.
    counted: u64,
    /// Bytes written since.
    done: u64,
    /// Bytes of writes in progress.
    flying: u64,
    /// Changed whenever `counted` is set.
    version: u64,
    is_recount_due: bool,
    idle_ticks: u8,
}

impl Entry {
    fn set(&mut self, used: u64, done: u64) {
        self.payers.add(signed(used) - signed(self.counted) - signed(done));
        self.counted = used;
        self.done -= done;
        self.version += 1;
    }
}

#[derive(Debug, Default)]
struct Shard {
    entries: HashMap<Fid, Entry>,
    /// Objects that are counted already although the count at the start has not come to them.
    early: HashSet<Fid>,
}

/// Space that is charged for a write in progress, for [`ObjectAccounts::end`].
#[derive(Debug)]
#[must_use = "the space is charged until the write ends"]
pub struct Counted {
    object: Fid,
    bytes: u64,
    payers: Payers,
}

impl Counted {
    /// Returns the accounts that pay.
    pub fn payers(&self) -> &Payers {
        &self.payers
    }
}

/// See the [module documentation](self).
pub struct ObjectAccounts {
    book: Arc<Book>,
    objects: Box<dyn Objects>,
    shards: [Mutex<Shard>; SHARDS],
    /// The last object that the count at the start has come to.
    cursor: Mutex<Fid>,
    is_counted: AtomicBool,
    /// What was saved last.
    saved: Mutex<HashMap<(QuotaResource, QuotaId), Saved>>,
}

fn signed(bytes: u64) -> i64 {
    i64::try_from(bytes).unwrap_or(i64::MAX)
}

impl ObjectAccounts {
    /// Creates accounts for the objects of a store, of which none is counted yet: see [`ObjectAccounts::count_all`].
    pub fn new(book: Arc<Book>, objects: Box<dyn Objects>) -> ObjectAccounts {
        ObjectAccounts {
            book,
            objects,
            shards: std::array::from_fn(|_| Mutex::default()),
            cursor: Mutex::new(Fid::ZERO),
            is_counted: AtomicBool::new(false),
            saved: Mutex::default(),
        }
    }

    /// Returns the book of the target.
    pub fn book(&self) -> &Arc<Book> {
        &self.book
    }

    fn shard(&self, object: &Fid) -> MutexGuard<'_, Shard> {
        let hash = (object.seq.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40) as usize ^ object.oid as usize;
        self.shards[hash % SHARDS].lock()
    }

    /// Returns whether the count at the start has come to an object; remembers it if not, since the caller counts it.
    fn is_passed(&self, shard: &mut Shard, object: Fid) -> bool {
        if self.is_counted.load(Ordering::Acquire) || object <= *self.cursor.lock() {
            return true;
        }
        !shard.early.insert(object)
    }

    /// Returns the entry of an object, created if it has none. `owned`: that of an object without a record;
    /// `is_new`: it has no data yet.
    fn entry<'a>(
        &self,
        shard: &'a mut Shard,
        object: Fid,
        owned: Owned,
        is_new: bool,
    ) -> StatusResult<&'a mut Entry> {
        if !shard.entries.contains_key(&object) {
            let known = self.objects.record(object)?;
            let record = match known {
                Some(record) => record,
                None => ObjectRecord {
                    owners: owned.owners,
                    counted: if is_new { 0 } else { self.objects.used_bytes(object)? },
                    is_active: false,
                    place: None,
                },
            };
            let place = record.place.or(owned.place);
            if !record.is_active {
                self.objects.put(object, &ObjectRecord { is_active: true, place, ..record })?;
            }
            let is_passed = self.is_passed(shard, object);
            let payers = self.book.payers(SPACE, record.owners);
            if known.is_none() || !is_passed {
                payers.count(signed(record.counted));
            }
            let entry = Entry {
                payers,
                place,
                counted: record.counted,
                done: 0,
                flying: 0,
                version: 0,
                is_recount_due: record.is_active,
                idle_ticks: 0,
            };
            shard.entries.insert(object, entry);
        }
        match shard.entries.entry(object) {
            Slot::Occupied(entry) => Ok(entry.into_mut()),
            Slot::Vacant(_) => unreachable!("it was inserted under the same lock"),
        }
    }

    /// Charges a write of `bytes` that is about to begin.
    ///
    /// # Errors
    /// Those of the store.
    pub fn begin(&self, object: Fid, owned: Owned, is_new: bool, bytes: u64) -> StatusResult<Counted> {
        let mut shard = self.shard(&object);
        let entry = self.entry(&mut shard, object, owned, is_new)?;
        entry.flying += bytes;
        entry.idle_ticks = 0;
        entry.payers.add(signed(bytes));
        Ok(Counted { object, bytes, payers: entry.payers.clone() })
    }

    /// Ends a write, whether it succeeded or not.
    pub fn end(&self, counted: Counted) {
        let Counted { object, bytes, payers } = counted;
        let is_recount_due = {
            let mut shard = self.shard(&object);
            // Without an entry, the object was destroyed meanwhile.
            let Some(entry) = shard.entries.get_mut(&object).filter(|entry| entry.flying >= bytes) else {
                payers.add(-signed(bytes));
                return;
            };
            entry.flying -= bytes;
            entry.done += bytes;
            entry.done >= RECOUNT_BYTES
        };
        if is_recount_due {
            self.recount(object);
        }
    }

    /// Takes the charge of a write back that does not take place.
    pub fn cancel(&self, counted: Counted) {
        let Counted { object, bytes, payers } = counted;
        let mut shard = self.shard(&object);
        match shard.entries.get_mut(&object).filter(|entry| entry.flying >= bytes) {
            Some(entry) => {
                entry.flying -= bytes;
                entry.payers.add(-signed(bytes));
            }
            None => payers.add(-signed(bytes)),
        }
    }

    /// Returns true if a limit applies to a write.
    pub fn is_limited(&self, counted: &Counted) -> bool {
        self.book.is_limited(SPACE, &counted.payers)
    }

    /// Returns whether a write may use more. The write itself is charged already.
    pub fn admission(&self, counted: &Counted, held_back: u64) -> Admission {
        self.book.admission(SPACE, &counted.payers, 0, held_back)
    }

    /// Returns true if the use of a payer, this write included, is above its limit by more than `slack` bytes.
    pub fn exceeds(&self, counted: &Counted, slack: u64) -> bool {
        self.book.exceeds(SPACE, &counted.payers, slack)
    }

    /// Waits until there is space for a write that is not charged, or certainly none.
    ///
    /// # Errors
    /// `EDQUOT`; `EINTR`.
    pub fn wait(&self, payers: &Payers, bytes: u64) -> StatusResult<()> {
        self.book.wait(SPACE, payers, bytes, || self.recount_all())
    }

    /// Sets an entry to what the store says about its object, except for writes that end meanwhile.
    fn recount(&self, object: Fid) {
        let before = |shard: &mut Shard| {
            let entry = shard.entries.get_mut(&object)?;
            entry.is_recount_due = false;
            Some((entry.done, entry.version))
        };
        let Some((done, version)) = before(&mut self.shard(&object)) else { return };
        let used = self.objects.used_bytes(object);
        let mut shard = self.shard(&object);
        let entry = shard.entries.get_mut(&object).filter(|entry| entry.version == version);
        match (entry, used) {
            (Some(entry), Ok(used)) => entry.set(used, done),
            // The store logs its failures; the entry stays too high rather than too low.
            (Some(entry), Err(_)) => entry.is_recount_due = true,
            (None, _) => {}
        }
    }

    fn recount_all(&self) {
        for shard in &self.shards {
            let is_due = |entry: &Entry| entry.done > 0 || entry.is_recount_due;
            let due: Vec<Fid> = {
                let shard = shard.lock();
                shard.entries.iter().filter(|(_, entry)| is_due(entry)).map(|(object, _)| *object).collect()
            };
            due.into_iter().for_each(|object| self.recount(object));
        }
    }

    /// Records the space of an object after a change of its size or space.
    ///
    /// # Errors
    /// Those of the store.
    pub fn changed(&self, object: Fid, owned: Owned, used: u64) -> StatusResult<()> {
        let mut shard = self.shard(&object);
        if used == 0 && !shard.entries.contains_key(&object) && self.objects.record(object)?.is_none() {
            return Ok(());
        }
        let entry = self.entry(&mut shard, object, owned, false)?;
        let done = entry.done;
        entry.set(used, done);
        // A write may have ended between the change and now.
        entry.is_recount_due = true;
        entry.idle_ticks = 0;
        Ok(())
    }

    /// Records that objects were destroyed.
    ///
    /// # Errors
    /// Those of the store.
    pub fn destroyed(&self, objects: &[Fid]) -> StatusResult<()> {
        for object in objects {
            let mut shard = self.shard(object);
            if let Some(entry) = shard.entries.remove(object) {
                entry.payers.add(-signed(entry.counted) - signed(entry.done));
            } else if let Some(record) = self.objects.record(*object)? {
                if self.is_passed(&mut shard, *object) {
                    self.book.add(SPACE, record.owners, -signed(record.counted));
                }
            } else {
                continue;
            }
            // Under the lock: a late write would take a record that is left for what is counted.
            self.objects.remove(*object)?;
        }
        Ok(())
    }

    /// Records that objects of a sequence above an id were destroyed.
    ///
    /// # Errors
    /// Those of the store.
    pub fn destroyed_above(&self, sequence: u64, last_used: u32) -> StatusResult<()> {
        let mut after = Fid::new(sequence, last_used, u32::MAX);
        loop {
            let found = self.objects.records_after(after, COUNTED_AT_ONCE)?;
            let gone: Vec<Fid> =
                found.iter().map(|(fid, _)| *fid).filter(|fid| fid.seq == sequence).collect();
            self.destroyed(&gone)?;
            match gone.last() {
                Some(last) if gone.len() == COUNTED_AT_ONCE => after = *last,
                _ => return Ok(()),
            }
        }
    }

    /// Returns the recorded owners and place of an object; `None` if it has no record.
    ///
    /// # Errors
    /// Those of the store.
    pub fn owned(&self, object: Fid) -> StatusResult<Option<Owned>> {
        if let Some(entry) = self.shard(&object).entries.get(&object) {
            return Ok(Some(Owned { owners: entry.payers.owners(), place: entry.place }));
        }
        let record = self.objects.record(object)?;
        Ok(record.map(|record| Owned { owners: record.owners, place: record.place }))
    }

    /// Changes the owners of objects, and the places where they are given, durably.
    ///
    /// # Errors
    /// Those of the store.
    pub fn set_owners(&self, objects: impl IntoIterator<Item = (Fid, Owned)>) -> StatusResult<()> {
        for (object, owned) in objects {
            let mut shard = self.shard(&object);
            let entry = self.entry(&mut shard, object, owned, false)?;
            entry.idle_ticks = 0;
            entry.place = owned.place.or(entry.place);
            let bytes = signed(entry.counted) + signed(entry.done) + signed(entry.flying);
            let payers = self.book.payers(SPACE, owned.owners);
            entry.payers.add(-bytes);
            payers.add(bytes);
            entry.payers = payers;
            let (owners, counted, place) = (owned.owners, entry.counted, entry.place);
            self.objects.put(object, &ObjectRecord { owners, counted, is_active: true, place })?;
        }
        self.objects.sync()
    }

    /// Counts what the store has, a part at a time; returns true while there is more.
    ///
    /// # Errors
    /// Those of the store.
    pub fn count_some(&self) -> StatusResult<bool> {
        if self.is_counted.load(Ordering::Acquire) {
            return Ok(false);
        }
        let after = *self.cursor.lock();
        let found = self.objects.records_after(after, COUNTED_AT_ONCE)?;
        for (object, record) in &found {
            let mut shard = self.shard(object);
            if !shard.early.remove(object) {
                let mut counted = record.counted;
                if record.is_active {
                    counted = self.objects.used_bytes(*object)?;
                    self.objects.put(*object, &ObjectRecord { counted, is_active: false, ..*record })?;
                }
                self.book.count(SPACE, record.owners, signed(counted));
            }
            *self.cursor.lock() = *object;
        }
        if found.len() == COUNTED_AT_ONCE {
            return Ok(true);
        }
        // Each shard, so that no thread that saw the old state is still in one.
        self.is_counted.store(true, Ordering::Release);
        for shard in &self.shards {
            shard.lock().early = HashSet::new();
        }
        Ok(false)
    }

    /// Regular work: recounts objects that were written, drops the entries of idle ones, and saves the accounts.
    ///
    /// # Errors
    /// Those of the store.
    pub fn tick(&self) -> StatusResult<()> {
        self.recount_all();
        for shard in &self.shards {
            self.drop_idle(&mut shard.lock())?;
        }
        self.save()
    }

    fn drop_idle(&self, shard: &mut Shard) -> StatusResult<()> {
        let mut outcome = Ok(());
        shard.entries.retain(|object, entry| {
            entry.idle_ticks += 1;
            let is_busy = entry.flying > 0 || entry.done > 0 || entry.is_recount_due;
            if is_busy || entry.idle_ticks < IDLE_TICKS {
                entry.idle_ticks = if is_busy { 0 } else { entry.idle_ticks };
                return true;
            }
            let owners = entry.payers.owners();
            let (counted, place) = (entry.counted, entry.place);
            let record = ObjectRecord { owners, counted, is_active: false, place };
            let stored = self.objects.put(*object, &record);
            let is_stored = stored.is_ok();
            outcome = outcome.and(stored);
            !is_stored
        });
        outcome
    }

    /// Saves the accounts that have changed.
    fn save(&self) -> StatusResult<()> {
        let mut saved = self.saved.lock();
        let mut changed = self.book.saved();
        changed.retain(|now| now.is_news(saved.get(&(now.resource, now.id))));
        if changed.is_empty() {
            return Ok(());
        }
        self.objects.save(&changed)?;
        saved.extend(changed.into_iter().map(|now| ((now.resource, now.id), now)));
        Ok(())
    }

    /// Drops all entries, for a clean stop. The caller has ended all writes.
    ///
    /// # Errors
    /// Those of the store.
    pub fn stop(&self) -> StatusResult<()> {
        (0..IDLE_TICKS).try_for_each(|_| self.tick())
    }
}

#[cfg(test)]
mod tests;
