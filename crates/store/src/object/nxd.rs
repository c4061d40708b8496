//! A cache of small writes in front of a store on a disk: they go to a log on a flash device, and to the disk
//! later, in the order of the disk.
//!
//! [`Nxd`] is an [`ObjectStore`] around another one. The format, and the reasons why a crash at any point
//! keeps all guarantees, are in `docs/formats/nxd.md`. In short:
//!
//! - existence, size and space of an object are always those of the store below: a small write reserves its
//!   range there before it goes to the log. So write-back never lacks space, and only bytes and times have
//!   two places;
//! - the newest version of a byte is in the log if a piece in memory covers it, else on the disk;
//! - before the bytes below cached ones are changed in another way, the cached ones are written back, the
//!   disk is synced, and a *forget* entry for them is made durable in the log: [`settle`](Cache::settle);
//! - the tail of the log moves when all entries before it are durable on the disk; pieces stay in memory
//!   until it has moved, so that all entries that a crash could revive are known.

mod flush;
mod log;
mod ops;
mod pair;
mod pieces;
mod settings;
mod survey;
#[cfg(test)]
mod tests;
mod walk;

pub(in crate::object) use pair::MARK_NEW;
pub use pair::{CacheProblem, MARK, cache_of, check_unused, check_without, remove, survey_in};
pub use settings::{NxdMode, NxdOptions, NxdSettings, NxdStats};
pub use survey::{LogDamage, LogSurvey, ObjectRange};

use super::block::device::BlockDevice;
use super::{ObjectError, ObjectStore, Result};
use ::log::{error, info, warn};
use flush::Flusher;
use log::{Item, Log, Promise};
use nacre_env::clock::Instant;
use nacre_env::sync::{Mutex, RwLock};
use nacre_ondisk::nxd::{NXD_ENTRIES_MAX, NxdEntry, NxdMark, NxdSuperblock};
use nacre_types::{Fid, Timestamp};
use pair::{now, pair, problem, write_mark};
use pieces::{Lost, Piece, Pieces, Record};
use settings::Counters;
use std::collections::{BTreeMap, HashMap};
use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};
use std::ops::{Deref, Range};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use walk::Found;

/// Number of locks that objects share.
const STRIPES: usize = 256;
/// Changed objects that a stripe records.
const UNSYNCED_MAX: usize = 1024;
/// Time for which a change waits for space in the log before it fails.
const ROOM_WAIT: Duration = Duration::from_secs(60);

/// See the [module documentation](self). Dropping it stops its thread; the log keeps its content.
pub struct Nxd {
    core: Arc<Cache>,
    flusher: Flusher,
}

impl Deref for Nxd {
    type Target = Cache;

    fn deref(&self) -> &Cache {
        &self.core
    }
}

/// State of a stream of small writes.
#[derive(Clone, Copy, Default)]
struct Stream {
    next: u64,
    joined: u32,
}

/// State shared by threads that use the same objects. Locks are taken in the order of the fields.
#[derive(Default)]
struct Stripe {
    /// Held shared to read, add pieces or write elsewhere; exclusively to change bytes below pieces or to
    /// remove pieces: so the log keeps the entries that a reader found.
    gate: RwLock<()>,
    /// Held shared by writes to the disk, exclusively by write-back, which sets the time of the object.
    disk: RwLock<()>,
    /// The object under write-back, and its time.
    writing: Mutex<Option<(Fid, Timestamp)>>,
    /// Incremented with each change of `writing`.
    write_backs: AtomicU64,
    objects: Mutex<HashMap<Fid, Pieces>>,
    streams: Mutex<HashMap<Fid, Stream>>,
    unsynced: Mutex<Unsynced>,
}

/// Objects changed in place below since the last sync of the disk, each with the number of its last change.
#[derive(Default)]
struct Unsynced {
    objects: HashMap<Fid, u64>,
    /// There were too many: any object may have changed.
    is_any: bool,
    changes: u64,
}

impl Unsynced {
    fn note(&mut self, object: Fid) {
        self.changes += 1;
        if self.objects.len() < UNSYNCED_MAX || self.objects.contains_key(&object) {
            self.objects.insert(object, self.changes);
        } else {
            self.is_any = true;
        }
    }

    fn has(&self, object: Fid) -> bool {
        self.is_any || self.objects.contains_key(&object)
    }

    /// Notes that changes up to `changes` are durable.
    fn synced(&mut self, changes: u64) {
        self.objects.retain(|_, change| *change > changes);
        self.is_any &= self.changes > changes;
    }

    /// Notes the same for this object.
    fn synced_one(&mut self, object: Fid, changes: u64) {
        if self.objects.get(&object).is_some_and(|change| *change <= changes) {
            self.objects.remove(&object);
        }
    }
}

/// State shared by the threads of a cache.
pub struct Cache {
    dir: PathBuf,
    inner: Arc<dyn ObjectStore>,
    log: Log,
    name: String,
    stripes: Vec<Stripe>,
    hasher: BuildHasherDefault<DefaultHasher>,
    settings: RwLock<NxdSettings>,
    /// Mark in the directory of the store; locked while data is appended, so that it stays correct.
    mark: RwLock<NxdMark>,
    is_closed: AtomicBool,
    /// The log lacks a change that was made: all later changes are refused.
    is_failed: AtomicBool,
    failures: AtomicU64,
    started: Instant,
    /// Time of the last transfer, in milliseconds since `started`.
    last_use: AtomicU64,
    counters: Counters,
    alarm: Arc<flush::Alarm>,
    /// Held by a round of write-back, one at a time.
    rounds: Mutex<()>,
}

/// The log had no space; nothing was changed.
struct Full;

/// An error of a store, or a full log.
enum Stop {
    Full,
    Error(ObjectError),
}

impl From<ObjectError> for Stop {
    fn from(error: ObjectError) -> Stop {
        Stop::Error(error)
    }
}

impl From<Full> for Stop {
    fn from(_: Full) -> Stop {
        Stop::Full
    }
}

impl Nxd {
    /// Puts the cache on `device` in front of `store`, whose directory is `dir`. Pairs the two if neither
    /// holds anything that could be lost. After a crash the log is replayed.
    ///
    /// # Errors
    /// [`ObjectError::Cache`] if they do not belong together.
    pub fn open(
        dir: &Path,
        store: Arc<dyn ObjectStore>,
        device: Arc<dyn BlockDevice>,
        options: &NxdOptions,
    ) -> Result<Nxd> {
        let name = device.info().name;
        let (superblock, mark) = pair(dir, &*device, options)?;
        let (log, objects, count) = read_log(device, superblock, options.salvage)?;
        let core = Cache {
            dir: dir.to_owned(),
            inner: store,
            log,
            name,
            stripes: (0..STRIPES).map(|_| Stripe::default()).collect(),
            hasher: BuildHasherDefault::default(),
            settings: RwLock::new(options.settings.checked()),
            mark: RwLock::new(mark),
            is_closed: AtomicBool::new(false),
            is_failed: AtomicBool::new(false),
            failures: AtomicU64::new(0),
            started: Instant::now(),
            last_use: AtomicU64::new(0),
            counters: Counters::default(),
            alarm: Arc::default(),
            rounds: Mutex::new(()),
        };
        core.counters.replayed.store(count, Ordering::Relaxed);
        core.take_in(objects, options.read_only)?;
        let core = Arc::new(core);
        let flusher = match options.read_only {
            true => Flusher::none(&core),
            false => Flusher::start(&core)?,
        };
        Ok(Nxd { core, flusher })
    }
}

impl Drop for Nxd {
    fn drop(&mut self) {
        self.flusher.stop();
    }
}

/// Reads a log: returns the log, the newest version of each byte in it, and its entries. With `salvage` all
/// that can be read, without damaged bytes, whatever the consequences.
fn read_log(
    device: Arc<dyn BlockDevice>,
    superblock: NxdSuperblock,
    salvage: bool,
) -> Result<(Log, BTreeMap<Fid, Pieces>, u64)> {
    let name = device.info().name;
    let failed = |error| problem(&name, CacheProblem::Io(error));
    let (mut objects, mut lost) = (BTreeMap::new(), Lost::new());
    let mut survey = LogSurvey::new(superblock);
    let log = Log::new(device, superblock);
    let mut damaged_at = Vec::new();
    let end = log.read_back(&mut |found| {
        survey.note(found);
        if let Found::Batch { batch, damaged } = found {
            damaged_at.extend(damaged.iter().map(|number| (batch.position, batch.entries[*number])));
            batch.entries.iter().for_each(|entry| read_entry(&mut objects, entry, batch.position, &mut lost));
        }
    });
    survey.finish(&end.map_err(failed)?);
    for damage in &survey.damage {
        error!("{name}: {damage}");
    }
    if survey.is_refused() && !salvage {
        return Err(problem(&name, CacheProblem::lost(&survey)));
    }
    if salvage {
        for (position, entry) in damaged_at {
            drop_record(&mut objects, position, &entry, &mut lost);
        }
    }
    log.begin().map_err(failed)?;
    log.lose(&lost);
    Ok((log, objects, survey.entries))
}

/// Assigns an entry of the log to its object; entries arrive in order.
fn read_entry(objects: &mut BTreeMap<Fid, Pieces>, entry: &NxdEntry, batch: u64, lost: &mut Lost) {
    match *entry {
        NxdEntry::Data { object, offset, len, at, crc, mtime } => {
            let at = batch * super::block::device::BLOCK + u64::from(at);
            let pieces = objects.entry(object).or_default();
            pieces.insert(Record { at, len, crc, offset, batch }, lost);
            pieces.mtime = pieces.mtime.max(mtime);
        }
        NxdEntry::Forget { object, offset, end } => {
            if let Some(pieces) = objects.get_mut(&object) {
                pieces.remove(offset..end, lost);
            }
        }
    }
}

/// Removes the remaining bytes of an entry.
fn drop_record(objects: &mut BTreeMap<Fid, Pieces>, batch: u64, entry: &NxdEntry, lost: &mut Lost) {
    let NxdEntry::Data { object, offset, len, at, .. } = *entry else { return };
    let Some(pieces) = objects.get_mut(&object) else { return };
    let at = batch * super::block::device::BLOCK + u64::from(at);
    for piece in pieces.within(offset..offset + u64::from(len)) {
        if piece.record.at == at {
            pieces.remove(piece.start..piece.end, lost);
        }
    }
}

impl Cache {
    fn stripe(&self, object: Fid) -> &Stripe {
        &self.stripes[self.stripe_number(object)]
    }

    fn stripe_number(&self, object: Fid) -> usize {
        self.hasher.hash_one(object) as usize % STRIPES
    }

    /// Returns the store below.
    pub fn store(&self) -> &dyn ObjectStore {
        &*self.inner
    }

    fn cache_error(&self, cause: CacheProblem) -> ObjectError {
        problem(&self.name, cause)
    }

    fn io_error(&self, error: std::io::Error) -> ObjectError {
        match error.kind() {
            std::io::ErrorKind::InvalidData => self.cache_error(CacheProblem::Damaged),
            _ => self.cache_error(CacheProblem::Io(error)),
        }
    }

    /// Takes over the content of the log. Bytes of objects that do not exist, or beyond their end, belong to
    /// changes that were not durable: no reader may ever see them again.
    fn take_in(&self, objects: BTreeMap<Fid, Pieces>, read_only: bool) -> Result<()> {
        let (mut lost, mut forget) = (Lost::new(), Vec::new());
        for (object, mut pieces) in objects {
            if pieces.is_empty() {
                continue;
            }
            let attr = self.inner.attr(object)?;
            let size = if attr.mtime.is_some() { attr.size } else { 0 };
            if pieces.touches(size..u64::MAX) {
                pieces.remove(size..u64::MAX, &mut lost);
                forget.push(Item::Forget { object, offset: size, end: u64::MAX });
            }
            if !pieces.is_empty() {
                self.stripe(object).objects.lock().insert(object, pieces);
            }
        }
        self.log.lose(&lost);
        if forget.is_empty() || read_only {
            return Ok(());
        }
        info!("{}: {} objects have ends in the cache that were not durable", self.name, forget.len());
        let batches = forget.len().div_ceil(NXD_ENTRIES_MAX) as u64;
        let promise = match self.log.promise(batches) {
            Some(promise) => promise,
            None => {
                // All of it is written back, which frees space.
                while self.round(&flush::Pace::Fast)? {}
                self.log.promise(batches).ok_or_else(|| self.cache_error(CacheProblem::Full))?
            }
        };
        self.append_forgotten(forget, promise)
    }

    /// Appends forget entries, durable on return.
    fn append_forgotten(&self, mut items: Vec<Item>, promise: Promise<'_>) -> Result<()> {
        while !items.is_empty() {
            let rest = items.split_off(items.len().min(NXD_ENTRIES_MAX));
            self.log.append(items).map_err(|error| self.io_error(error.io()))?;
            items = rest;
        }
        drop(promise);
        self.log.flush().map_err(|error| self.io_error(error))
    }

    fn check_open(&self) -> Result<()> {
        if self.is_closed.load(Ordering::Relaxed) {
            return Err(ObjectError::Closed);
        }
        if self.is_failed.load(Ordering::Relaxed) {
            return Err(self.cache_error(CacheProblem::Failed));
        }
        self.log.heal().map_err(|error| self.io_error(error))
    }

    fn note_use(&self) {
        self.last_use.store(self.started.elapsed().as_millis() as u64, Ordering::Relaxed);
    }

    fn touches(&self, object: Fid, range: Range<u64>) -> bool {
        self.stripe(object).objects.lock().get(&object).is_some_and(|pieces| pieces.touches(range))
    }

    /// Repeats `work` until it finds space in the log.
    fn with_room<T>(&self, mut work: impl FnMut() -> std::result::Result<T, Stop>) -> Result<T> {
        let end = Instant::now() + ROOM_WAIT;
        loop {
            let (seen, ..) = self.log.extent();
            match work() {
                Ok(value) => return Ok(value),
                Err(Stop::Error(error)) => return Err(error),
                Err(Stop::Full) => {}
            }
            self.alarm.ring();
            if !self.log.wait_for_room(seen, end) {
                return Err(self.cache_error(CacheProblem::Full));
            }
        }
    }

    /// Makes the disk the owner of a range of an object, and the log forget it. The caller holds the gate of
    /// the stripe exclusively.
    ///
    /// The order makes it safe: the disk has the bytes, durably, before the log forgets them, and the log has
    /// forgotten them, durably, before the disk may change.
    fn settle(&self, stripe: &Stripe, object: Fid, range: Range<u64>) -> std::result::Result<(), Stop> {
        let pieces = match stripe.objects.lock().get(&object) {
            Some(pieces) if range.start < range.end => pieces.within(range.clone()),
            _ => return Ok(()),
        };
        if pieces.is_empty() {
            return Ok(());
        }
        let promise = self.log.promise(1).ok_or(Full)?;
        let dirty: Vec<Piece> = pieces.iter().filter(|piece| !piece.is_clean).copied().collect();
        if !dirty.is_empty() {
            self.log.flush().map_err(|error| self.io_error(error))?;
            self.write_back(stripe, object, &dirty)?;
            self.inner.sync(object)?;
            self.clean(stripe, object, &dirty);
        }
        let item = Item::Forget { object, offset: range.start, end: range.end };
        self.append_forgotten(vec![item], promise)?;
        self.drop_pieces(stripe, object, range);
        self.counters.settled.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    /// Makes the disk durable.
    fn sync_below(&self) -> Result<()> {
        let changes: Vec<u64> = self.stripes.iter().map(|stripe| stripe.unsynced.lock().changes).collect();
        self.inner.sync_all()?;
        for (stripe, changes) in self.stripes.iter().zip(changes) {
            stripe.unsynced.lock().synced(changes);
        }
        Ok(())
    }

    fn clean(&self, stripe: &Stripe, object: Fid, written: &[Piece]) {
        let mut lost = Lost::new();
        if let Some(pieces) = stripe.objects.lock().get_mut(&object) {
            written.iter().for_each(|piece| pieces.clean(piece, &mut lost));
        }
        self.log.lose(&lost);
    }

    fn drop_pieces(&self, stripe: &Stripe, object: Fid, range: Range<u64>) {
        let mut lost = Lost::new();
        let mut objects = stripe.objects.lock();
        if let Some(pieces) = objects.get_mut(&object) {
            pieces.remove(range, &mut lost);
            if pieces.is_empty() {
                objects.remove(&object);
            }
        }
        drop(objects);
        self.log.lose(&lost);
    }

    /// Writes pieces of an object to the disk, neighbours at once, and keeps its time. They are in order. The
    /// caller holds the gate of the stripe exclusively, or the gate shared and the disk exclusively.
    fn write_back(&self, stripe: &Stripe, object: Fid, pieces: &[Piece]) -> Result<()> {
        let attr = self.inner.attr(object)?;
        let Some(below) = attr.mtime else { return Ok(()) };
        let own = stripe.objects.lock().get(&object).map_or(below, |pieces| pieces.mtime);
        let mtime = below.max(own);
        let set = |value| {
            *stripe.writing.lock() = value;
            stripe.write_backs.fetch_add(1, Ordering::SeqCst);
        };
        set(Some((object, mtime)));
        let result = self.write_runs(object, pieces).and_then(|()| match self.inner.abilities().mtime {
            Some(below) => below.set_mtime(object, mtime),
            None => Ok(()),
        });
        set(None);
        result
    }

    fn write_runs(&self, object: Fid, pieces: &[Piece]) -> Result<()> {
        let records: Vec<Record> = pieces.iter().map(|piece| piece.record).collect();
        let data = self.log.read(&records).map_err(|error| self.io_error(error))?;
        let (mut run, mut start) = (Vec::new(), 0);
        for (at, (piece, data)) in pieces.iter().zip(&data).enumerate() {
            if run.is_empty() {
                start = piece.start;
            }
            let skip = (piece.start - piece.record.offset) as usize;
            run.extend_from_slice(&data[skip..skip + piece.len() as usize]);
            if pieces.get(at + 1).is_none_or(|next| next.start != piece.end) {
                self.write_run(object, start, &run)?;
                run.clear();
            }
        }
        Ok(())
    }

    fn write_run(&self, object: Fid, mut offset: u64, mut data: &[u8]) -> Result<()> {
        let mut has_synced = false;
        while !data.is_empty() {
            match self.inner.write_promised(object, offset, data) {
                Ok(written) if written > 0 => {
                    self.counters.flush_writes.fetch_add(1, Ordering::Relaxed);
                    self.counters.flushed_bytes.fetch_add(written as u64, Ordering::Relaxed);
                    offset += written as u64;
                    data = &data[written..];
                }
                // Stores that write elsewhere regain the old space by a sync.
                Ok(_) | Err(ObjectError::NoSpace) if !has_synced => {
                    has_synced = true;
                    self.inner.sync_all()?;
                }
                Ok(_) => return Err(ObjectError::NoSpace),
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Appends forget entries for objects that were just destroyed, and drops their pieces. Their stripes are
    /// locked.
    fn forget_destroyed(&self, objects: &[Fid], promise: Promise<'_>) -> Result<()> {
        let item = |object: &Fid| Item::Forget { object: *object, offset: 0, end: u64::MAX };
        if let Err(error) = self.append_forgotten(objects.iter().map(item).collect(), promise) {
            // A new object of the same name would get their bytes after a crash.
            self.is_failed.store(true, Ordering::SeqCst);
            return Err(error);
        }
        for object in objects {
            self.drop_pieces(self.stripe(*object), *object, 0..u64::MAX);
        }
        Ok(())
    }

    /// Records in the directory of the store that the cache is needed.
    fn mark_dirty(&self) -> Result<()> {
        let mut mark = self.mark.write();
        if !mark.is_dirty {
            let next = NxdMark { is_dirty: true, changed: now(), device: self.name.clone(), ..mark.clone() };
            write_mark(&self.dir, &next)?;
            *mark = next;
        }
        Ok(())
    }

    /// Records that the cache is not needed, if the log is empty.
    fn mark_clean(&self) -> Result<()> {
        let mut mark = self.mark.write();
        let (start, end, _) = self.log.extent();
        if mark.is_dirty && start == end {
            let next = NxdMark { is_dirty: false, changed: now(), ..mark.clone() };
            write_mark(&self.dir, &next)?;
            *mark = next;
            info!("{}: the cache holds nothing that the store does not hold", self.name);
        }
        Ok(())
    }

    /// Returns the settings in force.
    pub fn settings(&self) -> NxdSettings {
        *self.settings.read()
    }

    /// Changes the settings, for writes that begin from now on.
    pub fn set_settings(&self, settings: NxdSettings) {
        *self.settings.write() = settings.checked();
        self.alarm.ring();
    }

    /// Returns the device of the cache.
    pub fn device(&self) -> &dyn BlockDevice {
        self.log.device()
    }

    /// Returns the counters.
    pub fn cache_stats(&self) -> NxdStats {
        let (start, end, ring) = self.log.extent();
        let block = super::block::device::BLOCK;
        let mut stats = self.counters.read();
        stats.mode = self.settings().mode;
        (stats.size, stats.used) = (ring * block, (end - start) * block);
        stats.dirty = self.log.live_bytes();
        stats.batches = self.log.batches.load(Ordering::Relaxed);
        stats.flushes = self.log.flushes.load(Ordering::Relaxed);
        stats.is_needed = self.mark.read().is_dirty;
        stats.sync_failures = self.failures.load(Ordering::Relaxed);
        stats
    }

    fn note_flush_failure(&self, error: &ObjectError) {
        self.counters.flush_failures.fetch_add(1, Ordering::Relaxed);
        warn!("{}: could not write back: {error}", self.name);
    }
}
