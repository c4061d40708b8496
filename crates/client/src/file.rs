//! State of open files.

pub(crate) mod folios;
pub(crate) mod group;
pub(crate) mod head;
pub(crate) mod opened;
pub(crate) mod options;
pub(crate) mod ranges;
pub(crate) mod size;
pub(crate) mod turns;
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
use crate::warrant::Warrant;
use crate::write_back::table::Table;
use nacre_env::sync::{Condvar, Mutex};
use nacre_layout::{Layout, StripeObject};
use nacre_types::{Attr, AttrFlags, Fid, OpenHandle, Status, Timestamp, TransNo, attr};
use nacre_wire::mds::{DataUpdate, LockFamily, LockOwner, OpenFlags};
use nacre_wire::oss::ObjectAttr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

/// `relatime` stores a new access time at least this often, in seconds.
const RELATIME_SECONDS: i64 = 24 * 3600;
/// Numbers updates of file data in the order in which they are made; see [`DataUpdate::order`].
static UPDATES: AtomicU64 = AtomicU64::new(1);

/// Size and space of a file, and when they were true.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct KnownSize {
    pub size: u64,
    /// In units of 512 bytes.
    pub blocks: u64,
    /// [`FileInner::changes`] before they were found out.
    pub changes: Option<u64>,
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
    /// Written data that has not reached its objects.
    pub dirty: Table,
    /// Grows whenever a lock on data of the file comes or goes: what was known under the locks of before counts no more.
    pub lock_era: AtomicU64,
    /// [`FileInner::group`] is there: so that most operations need not look.
    pub grouped: AtomicBool,
    /// Opens that want locks on just what they use.
    pub unexpanded: AtomicU32,
    /// Pages that the kernel asks for or drops.
    pub folios: Mutex<Folios>,
    /// Wakes those who wait for a byte range or for the layout.
    pub changed: Condvar,
    /// The job that last opened or wrote the file, while jobs are named.
    pub job: JobCell,
    /// Owners that have set locks and have not closed the file since, each with the open that it used last. Held while locks that go with an open
    /// are given back.
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

    pub fn lock(&self) -> nacre_env::sync::MutexGuard<'_, FileInner> {
        self.inner.lock()
    }
}

/// An object with data that was not synced.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct DirtyObject {
    pub ost_index: u16,
    pub object: Fid,
    /// The OST's durability epoch before the first of these writes.
    pub epoch: u64,
}

/// A file that one open has to itself, as it was when that began.
#[derive(Clone, Debug)]
pub(crate) struct Frozen {
    pub handle: OpenHandle,
    /// `None` if there are no objects.
    pub layout: Option<Arc<Layout>>,
    /// What its objects said.
    pub seen: Glimpse,
}

/// How many use a file here, and how.
#[derive(Default)]
pub(crate) struct Users {
    /// Opens of which the MDT has not been told that they ended.
    pub opens: u32,
    /// Opens for writing.
    pub writers: u32,
    /// Opens to execute the file.
    pub executors: u32,
    /// Opens of which a descriptor was closed; mostly the last one, whose release is on its way.
    pub closing: u32,
    /// Those of them with `fcntl` locks that may go with their end.
    pub leaving_locks: u32,
    /// Some open was for the kernel's page cache. Stays so, since what is cached outlives it.
    pub cached: bool,
    /// Somebody here has asked for an `fcntl` lock, so closes have to give such locks back.
    pub range_locked: bool,
}

/// The holder of the time of the last change of data.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum ModifyTime {
    /// The objects or the MDT, whichever has the later time: nothing was written here.
    #[default]
    Elsewhere,
    /// This client, which wrote then; the MDT is to be told.
    Here(Timestamp),
    /// The MDT, which got a time since the last write: it knows better than the objects.
    Told,
}

impl ModifyTime {
    /// What the MDT is to be told.
    pub fn to_tell(self) -> Option<Timestamp> {
        match self {
            ModifyTime::Here(time) => Some(time),
            ModifyTime::Elsewhere | ModifyTime::Told => None,
        }
    }
}

/// What the MDT does not know of a file yet.
#[derive(Default)]
pub(crate) struct News {
    /// The MDT has to be told size and space.
    pub data_changed: bool,
    /// Something of the file is on its way to the MDT, see [`FileState::tell`]. A close waits for a size that is being told while
    /// the file stays open: an MDT that hears of the close first would take a last writer without a word for one that wrote
    /// nothing. Times that are set wait for a close and the other way round: those of the close are older.
    pub telling: bool,
    pub mtime: ModifyTime,
    /// Time of a read, if it is to be stored.
    pub atime: Option<Timestamp>,
    /// The stored access time is so old that the next read refreshes it.
    pub atime_is_old: bool,
    /// Written objects that are not reported to the MDT yet.
    pub written: Written,
}

/// Written data of a file was lost.
#[derive(Clone, Copy)]
pub(crate) struct Loss {
    /// Counts from 1: opens that have reported an earlier one, or none (0), report it.
    number: u32,
    status: Status,
}

/// What is not durable yet, and what was lost.
#[derive(Default)]
pub(crate) struct Unsynced {
    /// Objects written since the last sync.
    pub dirty: Vec<DirtyObject>,
    /// Others, or earlier opens, may have left objects unsynced.
    pub dirty_unknown: bool,
    /// The last loss of written data; each open reports it once.
    pub loss: Option<Loss>,
}

/// The state proper. Short locks only, never over a request.
#[derive(Default)]
pub(crate) struct FileInner {
    pub layout: Option<Arc<Layout>>,
    /// What says that `layout` is true.
    pub layout_warrant: Warrant,
    /// The open that has frozen the file: no other one takes a byte range.
    pub frozen: Option<Frozen>,
    /// The group that has the file.
    pub group: Option<Group>,
    /// Whether it has a first component on the MDT.
    pub head: Head,
    /// Somebody asks the MDT for objects right now.
    pub layout_pending: bool,
    pub size: Size,
    pub users: Users,
    pub news: News,
    pub unsynced: Unsynced,
    /// Last transaction that changed the inode.
    pub transno: TransNo,
    /// Set-id bits or capabilities are there, to be dropped by writes of others than root.
    pub privileged: bool,
    pub ranges: RangeLocks,
    /// Data read ahead. A thread that changes data takes its range out before giving up the range.
    pub ahead: Blocks,
}

impl FileInner {
    /// Takes over attributes that the MDT just gave; `lease` is what they were asked for under.
    pub fn learn(&mut self, attr: &Attr, lease: u64, size_is_exact: bool) {
        self.transno = self.transno.max(TransNo(attr.version));
        self.privileged = attr.mode & (attr::S_ISUID | attr::S_ISGID) != 0
            || attr.flags.contains(AttrFlags::HAS_CAPABILITY);
        if size_is_exact {
            self.size.learn(attr.size, attr.blocks, lease);
        }
    }

    /// Takes over a layout that an MDT just gave under a warrant, unless what is known is newer: answers may overtake each other.
    /// Under one warrant objects come and do not go, and a lock that was made later says more.
    pub fn learn_layout(&mut self, layout: Option<Arc<Layout>>, warrant: Warrant) {
        if let (Warrant::Lock(known), Warrant::Lock(new)) = (self.layout_warrant, warrant)
            && new < known
        {
            return;
        }
        let older = |known: &Arc<Layout>| {
            let reaches = |new: &Arc<Layout>| new.has_objects() && new.generation >= known.generation;
            known.has_objects() && !layout.as_ref().is_some_and(reaches)
        };
        if self.layout_warrant == warrant && self.layout.as_ref().is_some_and(older) {
            return;
        }
        self.layout = layout;
        self.layout_warrant = warrant;
    }

    /// The file may have other objects now, with another content.
    pub fn forget_layout(&mut self) {
        self.layout = None;
        self.layout_warrant = Warrant::None;
        self.head = Head::Settled;
        self.size = Size::default();
        self.ahead.clear();
        // What is not synced on them is, whichever file they belong to now; the next sync takes all.
        self.unsynced.dirty.clear();
        self.unsynced.dirty_unknown = true;
        self.news.written.forget();
    }

    /// Arms `relatime` from the stored times.
    pub fn learn_times(&mut self, attr: &Attr, now: Timestamp) {
        let stale = attr.atime <= attr.mtime
            || attr.atime <= attr.ctime
            || now.sec.saturating_sub(attr.atime.sec) >= RELATIME_SECONDS;
        self.news.atime_is_old = stale;
    }

    /// A read happened.
    pub fn on_read(&mut self, now: impl FnOnce() -> Timestamp) {
        if std::mem::take(&mut self.news.atime_is_old) {
            self.news.atime = Some(now());
        }
    }

    /// `[offset, end)` was written under locks that were there in `era`: others cannot cut it off while they are held.
    pub fn on_written_beside(&mut self, offset: u64, end: u64, now: Timestamp, era: u64) {
        self.size.on_written_beside(end, era);
        self.on_written(offset, end, now);
    }

    /// `[offset, end)` was written.
    pub fn on_written(&mut self, offset: u64, end: u64, now: Timestamp) {
        self.ahead.invalidate(offset, end);
        self.size.on_written(offset, end);
        self.news.mtime = ModifyTime::Here(now);
        self.news.data_changed = true;
        self.news.atime_is_old = true;
    }

    /// Only a part of `[offset, end)` could be written. Pieces behind the failure may have arrived: only the objects know
    /// the size now.
    pub fn on_written_in_part(&mut self, offset: u64, end: u64) {
        self.ahead.invalidate(offset, end);
        self.size.on_written_in_part(offset);
        self.news.data_changed = true;
    }

    /// The size was set.
    pub fn on_truncated(&mut self, size: u64, lease: u64, changed: bool) {
        self.ahead.invalidate(size, u64::MAX);
        self.size.on_truncated(size, lease);
        self.news.data_changed |= changed;
        if size == 0 {
            // So does the MDT.
            self.news.written.forget();
            let is_written = |layout: &&mut Arc<Layout>| layout.is_written();
            self.layout.as_mut().filter(is_written).map(|layout| Arc::make_mut(layout).forget_written());
        }
    }

    /// Space used, as far as it can be told without asking: known, or implied because every byte was written here.
    pub fn known_blocks(&self) -> Option<u64> {
        self.size.known_blocks(self.layout.as_deref())
    }

    /// Notes that an object is about to be written.
    pub fn mark_dirty(&mut self, stripe: &StripeObject, epoch: u64) {
        self.mark_dirty_object(stripe.ost_index, stripe.object, epoch);
    }

    /// The same of an object of which only the name is known.
    pub fn mark_dirty_object(&mut self, ost_index: u16, object: Fid, epoch: u64) {
        if !self.unsynced.dirty.iter().any(|dirty| dirty.object == object && dirty.ost_index == ost_index) {
            self.unsynced.dirty.push(DirtyObject { ost_index, object, epoch });
        }
    }

    /// Number of the last loss, 0 before the first.
    fn losses(&self) -> u32 {
        self.unsynced.loss.map_or(0, |loss| loss.number)
    }

    /// Notes that written data is lost or may be.
    pub fn record_error(&mut self, status: Status) {
        let number = self.losses().wrapping_add(1).max(1);
        self.unsynced.loss = Some(Loss { number, status });
    }

    /// What the MDT is to be told; the state counts as told after [`FileInner::was_told`]. A size that somebody may have changed
    /// since it was found out is left away: it is still to be told.
    pub fn update_to_tell(&self, size: Option<KnownSize>) -> DataUpdate {
        let true_still = |size: &KnownSize| size.changes.is_some() && size.changes == self.changes();
        let size_blocks = size.filter(true_still).map(|size| (size.size, size.blocks));
        // Under the lock of the state, so that the order is that of what is told.
        let order = UPDATES.fetch_add(1, Ordering::Relaxed);
        DataUpdate { size_blocks, mtime: self.news.mtime.to_tell(), atime: self.news.atime, order }
    }

    /// The MDT knows of an update with a size that was true after these `changes`; what has changed since is still to be told.
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

    /// Stands for all changes of data so far; `None` while one is going on.
    pub fn changes(&self) -> Option<u64> {
        (!self.ranges.being_changed()).then(|| self.ranges.generation())
    }
}

/// The time that changes get.
pub(crate) fn now() -> Timestamp {
    Timestamp::from(nacre_env::clock::wall())
}

/// One open of a file.
pub(crate) struct OpenFile {
    pub handle: OpenHandle,
    pub file: Arc<FileState>,
    pub flags: OpenFlags,
    /// Credentials of the open.
    pub opener: Caller,
    /// Every write is to be durable when it returns.
    pub sync: bool,
    /// Where the next read begins if the reader goes on as before.
    pub next_read: AtomicU64,
    /// Bytes read in a row so far; bounds the read-ahead hint.
    pub run: AtomicU64,
    /// The OSTs were asked to have everything up to here ready.
    pub ready_to: AtomicU64,
    /// What its reads look like, for reading ahead.
    pub reader: Mutex<Reader>,
    /// Where the next write begins if the writer goes on as before; the largest number before the first one.
    pub next_write: AtomicU64,
    /// Number of the last loss that this open has reported, or that was before it.
    pub loss_seen: AtomicU32,
    /// Reads and writes go through the kernel's page cache.
    pub cached: AtomicBool,
    /// Reads leave the access time alone.
    pub keeps_access_time: AtomicBool,
    /// A descriptor was closed.
    pub closing: AtomicBool,
    /// Counted in [`Users::leaving_locks`].
    pub leaves_locks: AtomicBool,
    /// The group that it belongs to; 0: none.
    pub group: AtomicU64,
    /// Counted in [`FileState::unexpanded`].
    pub unexpanded: AtomicBool,
    /// A program has taken a lease, which somebody may have broken since.
    pub leased: AtomicBool,
    /// The file's bytes, if they came with the open.
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

    /// What its MDT is to open again after a restart.
    pub fn asked(&self) -> Asked {
        Asked { fid: self.file.fid, flags: self.flags, opener: self.opener }
    }

    pub fn writable(&self) -> bool {
        self.flags.contains(OpenFlags::WRITE)
    }

    /// See [`Data::expand_locks`](crate::data::Data::expand_locks).
    pub(crate) fn expand_locks(&self, expand: bool) {
        match (self.unexpanded.swap(!expand, Ordering::AcqRel), !expand) {
            (false, true) => drop(self.file.unexpanded.fetch_add(1, Ordering::AcqRel)),
            (true, false) => drop(self.file.unexpanded.fetch_sub(1, Ordering::AcqRel)),
            _ => {}
        }
    }

    /// Fills `buffer`, which lies before the end of the file, with what came with the open; false if the client has another lease than this
    /// by now, or the file was changed. The caller holds the range.
    pub fn reads_opened(&self, lease: u64, at: u64, buffer: &mut [u8]) -> bool {
        self.data.as_ref().is_some_and(|opened| opened.read(&self.file, lease, at, buffer))
    }

    /// A failure that this open has not reported yet.
    ///
    /// # Errors
    /// The failure, once.
    pub fn check_error(&self) -> Result<(), Status> {
        let Some(Loss { number, status }) = self.file.lock().unsynced.loss else { return Ok(()) };
        if self.loss_seen.swap(number, Ordering::Relaxed) == number { Ok(()) } else { Err(status) }
    }
}

/// What the objects of a file say about it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Glimpse {
    pub size: u64,
    /// In units of 512 bytes.
    pub blocks: u64,
    /// Last change of data, if there was one.
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
        let known = |inner: &FileInner| KnownSize { size: 5, blocks: 8, changes: inner.changes() };

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
