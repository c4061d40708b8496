//! State of open files: sizes, layouts, unreported and unsynced changes.

pub(crate) mod folios;
pub(crate) mod group;
pub(crate) mod guards;
pub(crate) mod head;
pub(crate) mod opened;
pub(crate) mod options;
pub(crate) mod ranges;
pub(crate) mod size;
pub(crate) mod written;

use crate::caller::Caller;
use crate::file::folios::Folios;
use crate::file::group::Group;
use crate::file::head::Head;
use crate::file::opened::Opened;
use crate::file::ranges::RangeLocks;
use crate::file::size::Size;
use crate::file::written::Written;
use crate::jobs::JobCell;
use crate::read_ahead::blocks::Blocks;
use crate::read_ahead::reader::Reader;
use crate::validity::Validity;
use crate::write_back::table::Table;
use nacre_env::sync::{Condvar, Mutex};
use nacre_layout::{Layout, StripeObject};
use nacre_types::{Attr, AttrFlags, Fid, OpenHandle, Owners, Status, Timestamp, TransNo, attr};
use nacre_wire::mds::{DataUpdate, LockFamily, LockOwner, OpenFlags};
use nacre_wire::oss::{Charge, ObjectAttr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

/// `relatime` stores a new access time at least this often, in seconds.
const RELATIME_SECONDS: i64 = 24 * 3600;
/// Numbers updates of file data in the order in which they are made; see [`DataUpdate::order`].
static UPDATES: AtomicU64 = AtomicU64::new(1);

/// Size and space of a file, with the state of changes for which they were found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct KnownSize {
    pub size: u64,
    /// Space in units of 512 bytes.
    pub blocks: u64,
    /// [`FileInner::changes`] from before the size was fetched.
    pub changes: Option<u64>,
    /// [`FileInner::size_stamp`] from before the size was fetched.
    pub stamp: u32,
}

/// An open request to an MDT, with the credentials it was made with.
#[derive(Clone, Copy)]
pub(crate) struct Asked {
    pub fid: Fid,
    pub flags: OpenFlags,
    pub opener: Caller,
}

/// What all opens of one file share at this client.
pub(crate) struct FileState {
    pub fid: Fid,
    pub node: u64,
    inner: Mutex<FileInner>,
    /// Windows of written data that has not reached its objects.
    pub dirty: Table,
    /// Grows whenever a lock on data of the file is granted or released: information obtained under earlier
    /// locks is then invalid.
    pub lock_era: AtomicU64,
    /// True while [`FileInner::group`] is set, so that most operations need not look there.
    pub grouped: AtomicBool,
    /// Opens that request locks on exactly the ranges they use.
    pub unexpanded: AtomicU32,
    /// Pages that the kernel requests or drops.
    pub folios: Mutex<Folios>,
    /// Wakes threads that wait for a byte range or for the layout.
    pub changed: Condvar,
    /// The job that last opened or wrote the file, while jobs are named.
    pub job: JobCell,
    /// Owners that have set locks and have not closed the file since, each with the open that it used last.
    /// Held while locks that end with an open are released.
    pub lockers: Mutex<Vec<((LockFamily, LockOwner), OpenHandle)>>,
}

impl FileState {
    pub fn new(fid: Fid, node: u64) -> FileState {
        FileState {
            fid,
            node,
            inner: Mutex::new(FileInner::default()),
            dirty: Table::default(),
            lock_era: AtomicU64::new(0),
            grouped: AtomicBool::new(false),
            unexpanded: AtomicU32::new(0),
            folios: Mutex::default(),
            changed: Condvar::new(),
            job: JobCell::default(),
            lockers: Mutex::default(),
        }
    }

    /// Returns the payer of space that a write uses. `is_exempt`: no quota applies to the writer.
    pub fn charge(&self, is_exempt: bool) -> Charge {
        Charge { owners: self.lock().owners, is_exempt, place: None }
    }

    pub fn lock(&self) -> nacre_env::sync::MutexGuard<'_, FileInner> {
        self.inner.lock()
    }
}

/// An object with unsynced data.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct DirtyObject {
    pub ost_index: u16,
    pub object: Fid,
    /// The OST's durability epoch before the first of these writes.
    pub epoch: u64,
}

/// State of a file when one open froze it for its exclusive use.
#[derive(Clone, Debug)]
pub(crate) struct Frozen {
    pub handle: OpenHandle,
    /// Layout of the file; `None` if there are no objects.
    pub layout: Option<Arc<Layout>>,
    /// Sizes and times of the objects.
    pub seen: Glimpse,
}

/// Number and kinds of opens of a file by this client.
#[derive(Default)]
pub(crate) struct Users {
    /// Opens whose close was not sent to the MDT.
    pub opens: u32,
    /// Opens for writing.
    pub writers: u32,
    /// Opens to execute the file.
    pub executors: u32,
    /// Opens of which a descriptor was closed; mostly the last descriptor, whose release is on its way.
    pub closing: u32,
    /// Those among `closing` with `fcntl` locks that may end with them.
    pub leaving_locks: u32,
    /// Opens that have ended, with all their locks.
    pub ended: u64,
    /// True if some open used the kernel's page cache. Stays set, since cached pages outlive the open.
    pub cached: bool,
    /// True if a program here has requested an `fcntl` lock, so closes have to release such locks.
    pub range_locked: bool,
}

/// Which party has the time of the last change of data.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum ModifyTime {
    /// The objects or the MDT, whichever has the later time: this client has written nothing.
    #[default]
    Elsewhere,
    /// This client, which wrote at this time and has to report it to the MDT.
    Here(Timestamp),
    /// The MDT, which got a time since the last write: its time is more current than the objects'.
    Told,
}

impl ModifyTime {
    /// Returns the time to report to the MDT, if any.
    pub fn to_tell(self) -> Option<Timestamp> {
        match self {
            ModifyTime::Here(time) => Some(time),
            ModifyTime::Elsewhere | ModifyTime::Told => None,
        }
    }
}

/// What is to be reported to the MDT about a file.
#[derive(Default)]
pub(crate) struct News {
    /// True if size and space have to be reported to the MDT.
    pub data_changed: bool,
    /// True while a report about the file is on its way to the MDT, see [`FileState::tell`]. A close waits
    /// for a size report that was sent while the file stays open: if the MDT processed the close first, it
    /// would take the last writer, whose close carries no size, for one that wrote nothing. A change of times
    /// and a close wait for each other: the times in the close are older.
    pub telling: bool,
    pub mtime: ModifyTime,
    /// Time of a read that is to be stored.
    pub atime: Option<Timestamp>,
    /// The stored access time is so old that the next read refreshes it.
    pub atime_is_old: bool,
    /// Written objects that were not reported to the MDT yet.
    pub written: Written,
}

/// A loss of written data of a file.
#[derive(Clone, Copy)]
pub(crate) struct Loss {
    /// Number of the loss, from 1: opens that have reported an earlier one, or none (0), report it.
    number: u32,
    status: Status,
}

/// Data that is not durable yet, and losses.
#[derive(Default)]
pub(crate) struct Unsynced {
    /// Objects written since the last sync.
    pub dirty: Vec<DirtyObject>,
    /// True if other clients or earlier opens may have left objects unsynced.
    pub dirty_unknown: bool,
    /// The last loss of written data; each open reports it once.
    pub loss: Option<Loss>,
}

/// State under the lock of the file. The lock is held briefly, never over a request.
#[derive(Default)]
pub(crate) struct FileInner {
    pub layout: Option<Arc<Layout>>,
    /// Proof that `layout` is valid.
    pub layout_validity: Validity,
    /// Set while one open has frozen the file: no other open takes a byte range.
    pub frozen: Option<Frozen>,
    /// The group that has the file, under its group lock.
    pub group: Option<Group>,
    /// What is known of a first component on the MDT.
    pub head: Head,
    /// True while a request to the MDT for objects is in flight.
    pub layout_pending: bool,
    pub size: Size,
    pub users: Users,
    pub news: News,
    pub unsynced: Unsynced,
    /// Last transaction that changed the inode.
    pub transno: TransNo,
    /// Stamp of the size as the MDT last reported it ([`Attr::size_stamp`]).
    pub size_stamp: u32,
    /// True if there are set-id bits or capabilities, which writes by users other than root drop.
    pub privileged: bool,
    /// Payer of the space.
    pub owners: Owners,
    pub ranges: RangeLocks,
    /// Data read ahead. A thread that changes data invalidates its range here before it releases the byte
    /// range.
    pub ahead: Blocks,
}

impl FileInner {
    /// Takes over attributes from the MDT; `lease` is the one they were requested under.
    pub fn learn(&mut self, attr: &Attr, lease: u64, size_is_exact: bool) {
        // Replies may overtake each other.
        if TransNo(attr.version) >= self.transno {
            self.size_stamp = attr.size_stamp;
        }
        self.transno = self.transno.max(TransNo(attr.version));
        self.owners = Owners::from(attr);
        self.privileged = attr.mode & (attr::S_ISUID | attr::S_ISGID) != 0
            || attr.flags.contains(AttrFlags::HAS_CAPABILITY);
        if size_is_exact {
            self.size.learn(attr.size, attr.blocks, lease);
        }
    }

    /// Takes over a layout that an MDT returned as valid, unless the known one is newer: replies may
    /// overtake each other. While it is valid, objects are only added, and a lock that was granted later has
    /// the newer layout.
    pub fn learn_layout(&mut self, layout: Option<Arc<Layout>>, validity: Validity) {
        if let (Validity::Lock(known), Validity::Lock(new)) = (self.layout_validity, validity)
            && new < known
        {
            return;
        }
        let older = |known: &Arc<Layout>| {
            let reaches = |new: &Arc<Layout>| new.has_objects() && new.generation >= known.generation;
            known.has_objects() && !layout.as_ref().is_some_and(reaches)
        };
        if self.layout_validity == validity && self.layout.as_ref().is_some_and(older) {
            return;
        }
        self.layout = layout;
        self.layout_validity = validity;
    }

    /// Drops the layout: the file may have other objects, with another content.
    pub fn forget_layout(&mut self) {
        self.layout = None;
        self.layout_validity = Validity::None;
        self.head = Head::Settled;
        self.size = Size::default();
        self.ahead.clear();
        // The next sync covers all objects. Those that are still the file's keep the epoch of their first write.
        self.unsynced.dirty_unknown = true;
        self.news.written.forget();
    }

    /// Computes from the stored times whether the next read has to refresh the access time (`relatime`).
    pub fn learn_times(&mut self, attr: &Attr, now: Timestamp) {
        let stale = attr.atime <= attr.mtime
            || attr.atime <= attr.ctime
            || now.sec.saturating_sub(attr.atime.sec) >= RELATIME_SECONDS;
        self.news.atime_is_old = stale;
    }

    /// Records a read.
    pub fn on_read(&mut self, now: impl FnOnce() -> Timestamp) {
        if std::mem::take(&mut self.news.atime_is_old) {
            self.news.atime = Some(now());
        }
    }

    /// Records a write of `[offset, end)` under locks that were held in `era`: other clients cannot truncate
    /// it while they are held.
    pub fn on_written_beside(&mut self, offset: u64, end: u64, now: Timestamp, era: u64) {
        self.size.on_written_beside(end, era);
        self.on_written(offset, end, now);
    }

    /// Records a write of `[offset, end)` under the exclusive lease with this number; `era`: that of locks from before.
    pub fn on_written_alone(&mut self, offset: u64, end: u64, now: Timestamp, lease: u64, era: u64) {
        self.size.note_lower_bound(end, lease, era);
        self.on_written(offset, end, now);
    }

    /// Records a write of `[offset, end)`.
    fn on_written(&mut self, offset: u64, end: u64, now: Timestamp) {
        self.ahead.invalidate(offset, end);
        self.size.on_written(offset, end);
        self.news.mtime = ModifyTime::Here(now);
        self.news.data_changed = true;
        self.news.atime_is_old = true;
    }

    /// Records a write of which only a part succeeded. Pieces behind the failure may have arrived: from here
    /// on only the objects know the size.
    pub fn on_written_in_part(&mut self, offset: u64, end: u64) {
        self.ahead.invalidate(offset, end);
        self.size.on_written_in_part(offset);
        self.news.data_changed = true;
    }

    /// Records that the size was set.
    pub fn on_truncated(&mut self, size: u64, lease: u64, changed: bool) {
        self.ahead.invalidate(size, u64::MAX);
        self.size.on_truncated(size, lease);
        self.news.data_changed |= changed;
        if size == 0 {
            // The MDT forgets them too.
            self.news.written.forget();
            let is_written = |layout: &&mut Arc<Layout>| layout.is_written();
            self.layout.as_mut().filter(is_written).map(|layout| Arc::make_mut(layout).forget_written());
        }
    }

    /// Returns true if the known layout has objects.
    pub fn has_objects(&self) -> bool {
        self.layout.as_ref().is_some_and(|layout| layout.has_objects())
    }

    /// Returns the space used, as far as it is known without a request: from a reply, or because this client
    /// wrote every byte.
    pub fn known_blocks(&self) -> Option<u64> {
        self.size.known_blocks(self.layout.as_deref())
    }

    /// Records that an object is about to be written.
    pub fn mark_dirty(&mut self, stripe: &StripeObject, epoch: u64) {
        self.mark_dirty_object(stripe.ost_index, stripe.object, epoch);
    }

    /// Does the same for an object of which only the FID is known.
    pub fn mark_dirty_object(&mut self, ost_index: u16, object: Fid, epoch: u64) {
        if !self.unsynced.dirty.iter().any(|dirty| dirty.object == object && dirty.ost_index == ost_index) {
            self.unsynced.dirty.push(DirtyObject { ost_index, object, epoch });
        }
    }

    /// Returns the number of the last loss, 0 before the first.
    fn losses(&self) -> u32 {
        self.unsynced.loss.map_or(0, |loss| loss.number)
    }

    /// Records that written data is lost or may be.
    pub fn record_error(&mut self, status: Status) {
        let number = self.losses().wrapping_add(1).max(1);
        self.unsynced.loss = Some(Loss { number, status });
    }

    /// Returns what to report to the MDT; it counts as reported after [`FileInner::was_told`]. A size that
    /// may have changed since it was found is left out and stays to be reported.
    pub fn update_to_tell(&self, size: Option<KnownSize>) -> DataUpdate {
        let true_still = |size: &KnownSize| size.changes.is_some() && size.changes == self.changes();
        let size_blocks = size.filter(true_still).map(|size| (size.size, size.blocks));
        // Taken under the lock of the state, so that the order is that of the reported values.
        let order = UPDATES.fetch_add(1, Ordering::Relaxed);
        let size_stamp = size.map_or(0, |size| size.stamp);
        DataUpdate {
            size_blocks,
            mtime: self.news.mtime.to_tell(),
            atime: self.news.atime,
            order,
            size_stamp,
        }
    }

    /// Records that the MDT has applied an update whose size was true after these `changes`; later changes
    /// stay to be reported.
    pub fn was_told(&mut self, update: &DataUpdate, changes: Option<u64>) {
        if update.size_blocks.is_some() && changes == self.changes() {
            self.news.data_changed = false;
        }
        let is_newer = |time: Timestamp| Some(time) != update.mtime;
        if update.mtime.is_some() && !self.news.mtime.to_tell().is_some_and(is_newer) {
            self.news.mtime = ModifyTime::Told;
        }
        if self.news.atime == update.atime {
            self.news.atime = None;
        }
    }

    /// Returns a number that identifies all changes of data so far; `None` while a change is in progress.
    pub fn changes(&self) -> Option<u64> {
        (!self.ranges.being_changed()).then(|| self.ranges.generation())
    }
}

/// Returns the time for changes.
pub(crate) fn now() -> Timestamp {
    Timestamp::from(nacre_env::clock::wall())
}

/// One open of a file.
pub(crate) struct OpenFile {
    pub handle: OpenHandle,
    pub file: Arc<FileState>,
    pub flags: OpenFlags,
    /// Credentials that the file was opened with.
    pub opener: Caller,
    /// True if every write is to be durable when it returns.
    pub sync: bool,
    /// Offset of the next read if the reader continues sequentially.
    pub next_read: AtomicU64,
    /// Bytes read sequentially so far; bounds the read-ahead hint.
    pub run: AtomicU64,
    /// Offset up to which the OSTs were asked to have data ready.
    pub ready_to: AtomicU64,
    /// Pattern of its reads, for read-ahead.
    pub reader: Mutex<Reader>,
    /// Offset of the next write if the writer continues sequentially; the largest number before the first
    /// write.
    pub next_write: AtomicU64,
    /// Number of the last loss that a sync of this open has reported, or that happened before it.
    pub loss_seen: AtomicU32,
    /// Number of the last loss that a close of one of its descriptors has reported.
    pub loss_seen_at_close: AtomicU32,
    /// True if reads and writes use the kernel's page cache.
    pub cached: AtomicBool,
    /// True if reads leave the access time alone.
    pub keeps_access_time: AtomicBool,
    /// True if a descriptor was closed.
    pub closing: AtomicBool,
    /// True if the open is counted in [`Users::leaving_locks`].
    pub leaves_locks: AtomicBool,
    /// The group that it belongs to; 0 for none.
    pub group: AtomicU64,
    /// True if the open is counted in [`FileState::unexpanded`].
    pub unexpanded: AtomicBool,
    /// True if a program has taken a lease, which may have been broken since.
    pub leased: AtomicBool,
    /// The file's bytes, if they came with the reply to the open.
    pub data: Option<Opened>,
}

impl OpenFile {
    pub fn new(
        handle: OpenHandle,
        file: Arc<FileState>,
        flags: OpenFlags,
        sync: bool,
        opener: Caller,
    ) -> OpenFile {
        let seen = {
            let mut inner = file.lock();
            inner.users.opens += 1;
            inner.losses()
        };
        OpenFile {
            handle,
            file,
            flags,
            opener,
            sync,
            next_read: AtomicU64::new(0),
            run: AtomicU64::new(0),
            ready_to: AtomicU64::new(0),
            reader: Mutex::default(),
            next_write: AtomicU64::new(u64::MAX),
            loss_seen: AtomicU32::new(seen),
            loss_seen_at_close: AtomicU32::new(seen),
            cached: AtomicBool::new(false),
            keeps_access_time: AtomicBool::new(false),
            closing: AtomicBool::new(false),
            leaves_locks: AtomicBool::new(false),
            unexpanded: AtomicBool::new(false),
            group: AtomicU64::new(0),
            leased: AtomicBool::new(false),
            data: None,
        }
    }

    /// Returns the request to replay at the MDT after a restart.
    pub fn asked(&self) -> Asked {
        Asked { fid: self.file.fid, flags: self.flags, opener: self.opener }
    }

    pub fn writable(&self) -> bool {
        self.flags.contains(OpenFlags::WRITE)
    }

    /// Sets whether locks may be expanded, see [`Data::expand_locks`](crate::data::Data::expand_locks).
    pub(crate) fn expand_locks(&self, expand: bool) {
        match (self.unexpanded.swap(!expand, Ordering::AcqRel), !expand) {
            (false, true) => drop(self.file.unexpanded.fetch_add(1, Ordering::AcqRel)),
            (true, false) => drop(self.file.unexpanded.fetch_sub(1, Ordering::AcqRel)),
            _ => {}
        }
    }

    /// Fills `buffer`, whose range is before the end of the file, with bytes that came with the open; false
    /// if the client has another lease by then, or the file was changed. The caller holds the range.
    pub fn reads_opened(&self, lease: u64, at: u64, buffer: &mut [u8]) -> bool {
        self.data.as_ref().is_some_and(|opened| opened.read(&self.file, lease, at, buffer))
    }

    /// Checks for a loss that no sync of this open has reported yet, whatever a close has: a program that starts
    /// another closes the copy of its descriptor, and does not see the result.
    ///
    /// # Errors
    /// The status of the loss, once.
    pub fn check_error(&self) -> Result<(), Status> {
        let Some(Loss { number, status }) = self.file.lock().unsynced.loss else { return Ok(()) };
        if self.loss_seen.swap(number, Ordering::Relaxed) == number { Ok(()) } else { Err(status) }
    }

    /// Checks for a loss that neither a sync nor a close of this open has reported yet.
    ///
    /// # Errors
    /// The status of the loss, once.
    pub fn check_error_at_close(&self) -> Result<(), Status> {
        let Some(Loss { number, status }) = self.file.lock().unsynced.loss else { return Ok(()) };
        let is_synced = self.loss_seen.load(Ordering::Relaxed) == number;
        let is_closed = self.loss_seen_at_close.swap(number, Ordering::Relaxed) == number;
        if is_synced || is_closed { Ok(()) } else { Err(status) }
    }
}

/// Size, space and times of a file according to its objects.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Glimpse {
    pub size: u64,
    /// Space in units of 512 bytes.
    pub blocks: u64,
    /// Time of the last change of data, if there was one.
    pub mtime: Option<Timestamp>,
}

impl Glimpse {
    pub(crate) fn add(&mut self, attr: &ObjectAttr) {
        self.blocks += attr.blocks;
        self.mtime = self.mtime.max(attr.mtime);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::file::ranges::Use;

    #[test]
    fn a_size_that_is_no_longer_sure_is_not_told_and_remains_to_be_told() {
        let mut inner =
            FileInner { news: News { data_changed: true, ..News::default() }, ..FileInner::default() };
        let known = |inner: &FileInner| KnownSize { size: 5, blocks: 8, changes: inner.changes(), stamp: 0 };

        let before = known(&inner);
        let tell = |inner: &mut FileInner, size: Option<KnownSize>| {
            let update = inner.update_to_tell(size);
            inner.was_told(&update, size.and_then(|size| size.changes));
            update
        };

        let ticket = inner.ranges.try_take(0, 10, Use::Exclusive).expect("free");
        let during = known(&inner);
        assert_eq!(tell(&mut inner, Some(before)).size_blocks, None, "a write goes on");
        inner.ranges.release(ticket);
        for old in [before, during] {
            assert_eq!(tell(&mut inner, Some(old)).size_blocks, None, "a write went on");
            assert!(inner.news.data_changed);
        }
        let ticket = inner.ranges.try_take(0, 10, Use::Shared).expect("free");
        let after = known(&inner);
        let (first, second) = (tell(&mut inner, Some(after)), tell(&mut inner, None));
        assert_eq!(first.size_blocks, Some((5, 8)));
        assert!(!inner.news.data_changed && second.order > first.order);
        inner.ranges.release(ticket);
    }
}
