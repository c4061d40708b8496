//! Files opened and closed.

pub(crate) mod closing;
pub(crate) mod leases;
pub(crate) mod locks;

use crate::base::Base;
use crate::caller::Caller;
use crate::config::ClientConfig;
use crate::data::Data;
use crate::data_locks::DataLocks;
use crate::file::group::Who;
use crate::file::ranges::Use;
use crate::file::{Asked, FileState, ModifyTime, OpenFile, now};
use crate::flocks::FileLocks;
use crate::handles::HandleTable;
use crate::inodes::dot_lustre::check_may_name;
use crate::inodes::{Found, Inodes};
use crate::jobs::{JobSource, Jobs};
use crate::layouts::{Layouts, OpenedLock};
use crate::lease::Lease;
use crate::names::Created;
use crate::node::{NodeTable, node_of};
use crate::objects::Objects;
use crate::requests::Requests;
use crate::requests::mdt::{open_again, open_again_is_given_up};
use crate::shards::Shards;
use crate::shards::absent::Absences;
use crate::sizes::Sizes;
use crate::write_back::WriteBack;
use crate::write_back::table::Scope;
use nacre_env::{JobGuard, enter_job};
use nacre_layout::Layout;
use nacre_rpc::MdsEndpoint;
use nacre_types::{Attr, AttrFlags, FailureResult, Fid, OpenHandle, SizeSource, Status, StatusResult, perm};
use nacre_wire::mds::{DataUpdate, MdsReply, MdsRequest, NewFile, OpenFlags};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// A file that was opened.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OpenedFile {
    /// Number for reads, writes and the close.
    pub handle: u64,
    /// Attributes at the open.
    pub attr: Attr,
    /// The file was made by this open.
    pub created: bool,
}

/// An open that an MDT is asked for.
struct Asking {
    asked: Asked,
    handle: OpenHandle,
    /// [`Mdt::recoveries`] before that.
    ///
    /// [`Mdt::recoveries`]: crate::client::Mdt::recoveries
    recoveries: u64,
}

/// Tells, with its end, those who wait for a close that the MDT hears of it.
struct Closing<'a>(&'a OpenFile);

struct Opening {
    opener: Caller,
    handle: OpenHandle,
    flags: OpenFlags,
    sync: bool,
    /// Lease under which the MDT was asked.
    lease: u64,
    /// What [`Relayouts::count`] was before that, if it was asked.
    changes: Option<u64>,
    /// The lock on the layout that was asked for, and the one that came.
    lock: OpenedLock,
    created: bool,
    /// The file's bytes, if they came with the answer and nobody here had it open before, with [`OpenedBytes::changes`](crate::file::opened::OpenedBytes::changes) of then.
    data: Option<(Vec<u8>, u64)>,
}

/// First part of the name under which Lustre makes a file without a name: ".", four control characters, a word.
const VOLATILE: &[u8] = b".\x0c\x13\x14\x12:VOLATILE:";
/// Word before the FID of the file beside which one without a name is to be.
const BESIDE: &[u8] = b":beside=";

/// Where a file without a name is to be.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Volatile {
    /// The MDT, as Lustre's tools say it.
    pub mdt: Option<u16>,
    /// The file whose data it is for, as our own say it.
    pub beside: Option<Fid>,
}

/// Files that are open, as MDTs know them.
pub struct Opens {
    requests: Arc<Requests>,
    layouts: Arc<Layouts>,
    objects: Arc<Objects>,
    shards: Arc<Shards>,
    write_back: Arc<WriteBack>,
    locks: Arc<DataLocks>,
    sizes: Arc<Sizes>,
    inodes: Arc<Inodes>,
    data: Arc<Data>,
    nodes: Arc<NodeTable>,
    handles: Arc<HandleTable>,
    flocks: Arc<FileLocks>,
    lease: Arc<Lease>,
    jobs: Arc<Jobs>,
    absences: Arc<Absences>,
    config: Arc<ClientConfig>,
}

impl Opens {
    pub(crate) fn new(
        base: &Base,
        write_back: Arc<WriteBack>,
        locks: Arc<DataLocks>,
        sizes: Arc<Sizes>,
        inodes: Arc<Inodes>,
        data: Arc<Data>,
    ) -> Opens {
        Opens {
            requests: base.requests.clone(),
            layouts: base.layouts.clone(),
            objects: base.objects.clone(),
            shards: base.shards.clone(),
            write_back,
            locks,
            sizes,
            inodes,
            data,
            nodes: base.nodes.clone(),
            handles: base.handles.clone(),
            flocks: base.flocks.clone(),
            lease: base.lease.clone(),
            jobs: base.jobs.clone(),
            absences: base.absences.clone(),
            config: base.config.clone(),
        }
    }

    /// Has this thread work for the job of a caller, until the guard is dropped. `handle` is the open file that it is about,
    /// if any. `None`, and nothing is done, while jobs are not named.
    pub fn enter_job(&self, caller: &Caller, handle: Option<u64>, source: JobSource) -> Option<JobGuard> {
        if !self.jobs.is_enabled() {
            return None;
        }
        let own = match source {
            JobSource::Kernel => None,
            source => self.jobs.job_of(caller, source == JobSource::Call),
        };
        let of_file = || self.handles.file(handle?).ok()?.file.job.get();
        Some(enter_job(own.or_else(of_file)))
    }

    /// Opens a regular file. `sync`: every write is durable when it returns.
    ///
    /// # Errors
    /// `EACCES`, `EISDIR`, `ESTALE`; what OSTs answer when the file is cut.
    pub fn open(&self, caller: &Caller, fid: Fid, flags: OpenFlags, sync: bool) -> StatusResult<OpenedFile> {
        self.requests.faults.edge_on("open", fid, || {
            let node = node_of(fid)?;
            // The kernel refuses to open a running program for writing, but finds out about O_RDONLY | O_TRUNC too late.
            if flags.contains(OpenFlags::TRUNCATE)
                && !flags.contains(OpenFlags::WRITE)
                && self.nodes.file(node).is_some_and(|file| file.lock().users.executors > 0)
            {
                return Err(Status::ETXTBSY.into());
            }
            let asking = self.ask_to_open(caller, fid, flags);
            let handle = asking.handle;
            let unopened = self.nodes.file(node).is_none().then(|| self.data.opened.changes());
            let (reserved, changes) =
                (self.layouts.reserve_layout_lock(fid), Some(self.layouts.relayouts.count(fid)));
            let opened =
                self.requests.call(caller, fid, &MdsRequest::Open { fid, handle, flags, lock: reserved });
            let answer = opened.inspect_err(|failure| {
                self.layouts.forget_layout_lock(fid, reserved);
                self.was_refused(&asking, failure.status());
            })?;
            let MdsReply::Opened { attr, layout, data, lock } = answer.reply else {
                self.was_refused(&asking, Status::EPROTO);
                return Err(Status::EPROTO.into());
            };
            self.was_granted(&asking, fid)?;
            if flags.contains(OpenFlags::KILL_PRIV | OpenFlags::TRUNCATE) {
                self.data.mode_changed(fid);
            }
            let data = data.zip(unopened).filter(|_| answer.lease != 0);
            let (lock, lease) = (OpenedLock { reserved, came: lock }, answer.lease);
            let opening =
                Opening { opener: *caller, handle, flags, sync, lease, changes, lock, created: false, data };
            self.attach_open(attr, layout, opening)
        })
    }

    /// Makes a file and opens it, or opens the one that is there unless `exclusive`. Counts as one lookup. With an empty
    /// name the file has none (`O_TMPFILE`).
    ///
    /// # Errors
    /// `EEXIST`, `EISDIR`, and as [`Names::create`](crate::names::Names::create) and [`Opens::open`].
    pub fn create_open(
        &self,
        caller: &Caller,
        parent: Fid,
        name: &[u8],
        what: &Created<'_>,
        open: (OpenFlags, bool),
        exclusive: bool,
    ) -> StatusResult<(Found, OpenedFile)> {
        if let Some(volatile) = volatile(name).filter(|_| what.new != NewFile::Unnamed) {
            // Lustre's way to make a file without a name. The kernel looks this one up in vain the next time.
            let what = Created { new: NewFile::Unnamed, ..*what };
            let shards = self.shards.parts_of(parent);
            let on_mdt = shards.into_iter().find(|shard| Some(shard.mdt_index()) == volatile.mdt);
            let parent = volatile.beside.or(on_mdt).unwrap_or(parent);
            return self.create_open(caller, parent, b"", &what, open, true);
        }
        self.requests.faults.edge("create", || {
            check_may_name(parent, name)?;
            self.shards.at_home(parent, name, |home| {
                self.create_open_at(caller, (home, name), what, open, exclusive)
            })
        })
    }

    fn create_open_at(
        &self,
        caller: &Caller,
        (parent, name): (Fid, &[u8]),
        what: &Created<'_>,
        open: (OpenFlags, bool),
        exclusive: bool,
    ) -> FailureResult<(Found, OpenedFile)> {
        let fid = self.requests.fresh_fid(parent.mdt_index())?;
        let changes = self.layouts.relayouts.count(fid);
        let (flags, sync) = open;
        let asking = self.ask_to_open(caller, fid, flags);
        let handle = asking.handle;
        let request = MdsRequest::Create {
            parent,
            name,
            fid,
            new: what.new,
            mode: what.mode,
            umask: what.umask,
            open: Some((handle, flags)),
            exclusive,
        };
        let watch = self.inodes.watch_names(parent);
        let _putting = self.absences.putting(parent, name);
        let answer = self.requests.call(caller, parent, &request);
        let answer = answer.inspect_err(|failure| self.was_refused(&asking, failure.status()))?;
        let lease = answer.lease;
        let MdsReply::Created { attr, created, layout, parent } = answer.reply else {
            self.was_refused(&asking, Status::EPROTO);
            return Err(Status::EPROTO.into());
        };
        self.was_granted(&asking, attr.fid)?;
        self.nodes.note(parent.fid.inode_number(), &parent, lease.into());
        let node = node_of(attr.fid).inspect_err(|_| self.close_unused(attr.fid, handle))?;
        let changes = Some(changes).filter(|_| attr.fid == fid);
        let lock = OpenedLock::default();
        let opening =
            Opening { opener: *caller, handle, flags, sync, lease, changes, lock, created, data: None };
        let opened = self.attach_open(attr, layout, opening)?;
        self.nodes.remember(node, &opened.attr, lease.into(), 1);
        let public = perm::searchable_by_all(&parent);
        let mut keep = self.inodes.keep_of(lease);
        keep.name |= public && watch.still();
        let found = Found { node, attr: opened.attr, public, keep };
        Ok((found, opened))
    }

    /// A file without a name in the file system of directory `parent`.
    ///
    /// # Errors
    /// As [`Opens::create_open`].
    pub fn tmpfile(
        &self,
        caller: &Caller,
        parent: Fid,
        mode: u32,
        umask: u32,
        open: (OpenFlags, bool),
    ) -> StatusResult<(Found, OpenedFile)> {
        let what = Created { new: NewFile::Unnamed, mode, umask };
        self.create_open(caller, parent, b"", &what, open, true)
    }

    /// Enters an open that the MDT granted; gives it back if it cannot be completed.
    fn attach_open(
        &self,
        attr: Attr,
        layout: Option<Arc<Layout>>,
        mut opening: Opening,
    ) -> FailureResult<OpenedFile> {
        let (fid, node) = (attr.fid, attr.fid.inode_number());
        let file = self.nodes.attach(node, || FileState::new(fid, node));
        let data = opening.data.take();
        let data =
            data.and_then(|(bytes, changes)| self.data.opened.keep(&file, bytes, changes, opening.lease));
        let outcome = self
            .attributes_of_open(attr, &mut opening)
            .and_then(|attr| self.complete_open(&file, attr, layout, &opening));
        match outcome {
            Ok(attr) => {
                let open = OpenFile {
                    data,
                    ..OpenFile::new(opening.handle, file, opening.flags, opening.sync, opening.opener)
                };
                open.file.job.note();
                if let Some(status) = self.write_back.untold.take(node) {
                    open.file.lock().record_error(status);
                }
                self.handles.insert_file(Arc::new(open));
                Ok(OpenedFile { handle: opening.handle.0, attr, created: opening.created })
            }
            Err(status) => {
                self.nodes.detach(node);
                self.close_unused(fid, opening.handle);
                Err(status)
            }
        }
    }

    /// The attributes that came with an open, unless the file may have got objects here while the answer was on its way: it may have
    /// been written and closed since, and of that nothing would be known any more. To be called when the file is attached.
    fn attributes_of_open(&self, mut attr: Attr, opening: &mut Opening) -> FailureResult<Attr> {
        let fid = attr.fid;
        if opening.changes != Some(self.layouts.relayouts.count(fid)) {
            opening.changes = None;
            let answer = self.requests.call_system(fid, &MdsRequest::GetAttr { fid })?;
            opening.lease = answer.lease;
            attr = answer.attr()?;
        }
        if !opening.created {
            self.nodes.note(fid.inode_number(), &attr, opening.lease.into());
        }
        Ok(attr)
    }

    fn complete_open(
        &self,
        file: &FileState,
        mut attr: Attr,
        layout: Option<Arc<Layout>>,
        opening: &Opening,
    ) -> FailureResult<Attr> {
        let writes = opening.flags.contains(OpenFlags::WRITE);
        let cut = opening.flags.contains(OpenFlags::TRUNCATE) && !opening.created;
        self.layouts.adopt_layout_lock(file, opening.lock, layout, opening.lease, opening.changes);
        let (size_known, has_objects) = {
            let mut inner = file.lock();
            self.sizes.show_told_of(&inner, &mut attr);
            let ours = inner.size.is_of(self.lease.number());
            let exact = !ours && attr.size_source == SizeSource::Exact;
            inner.learn(&attr, opening.lease, exact);
            if opening.created && writes {
                self.layouts.note_made(&mut inner, opening.lease);
            }
            inner.unsynced.dirty_unknown |=
                !ours && !opening.created && attr.flags.contains(AttrFlags::HAS_OBJECTS);
            if self.config.relatime && !inner.news.atime_is_old {
                inner.learn_times(&attr, now());
            }
            (ours || exact, inner.layout.as_ref().is_some_and(|layout| layout.has_objects()))
        };
        if cut {
            self.cut_at_open(file, &attr, opening.lease)?;
            attr.size = 0;
            attr.blocks = 0;
        } else if !size_known && has_objects {
            self.sizes.refresh_size(file)?;
        } else if !size_known {
            file.lock().learn(&attr, opening.lease, true);
        }
        if writes || cut {
            self.data.opened.note_change();
        }
        if writes {
            // What was fetched before this open says nothing of what it will write.
            self.requests.changes.fetch_add(1, Ordering::Release);
            file.lock().users.writers += 1;
        }
        let ready = if writes { self.prepare_stores(file) } else { Ok(()) };
        let outcome = match ready {
            // Who made the file need not ask what is in it.
            Ok(()) if cut || (opening.created && attr.size_source == SizeSource::Exact) => Ok(attr),
            Ok(()) => self.sizes.complete_attr(attr, opening.lease),
            Err(status) => Err(status),
        };
        match &outcome {
            Ok(_) if opening.flags.contains(OpenFlags::EXEC) => file.lock().users.executors += 1,
            Err(_) if writes => file.lock().users.writers -= 1,
            _ => {}
        }
        outcome
    }

    /// What is open for writing may be mapped and stored to, of which nobody is told: no page may be left that is only under
    /// a lock for reading. Those that come from now on are locked for writing.
    fn prepare_stores(&self, file: &FileState) -> FailureResult<()> {
        if self.lease.exclusive() || file.folios.lock().hull().is_none() {
            return Ok(());
        }
        let layout = file.lock().layout.clone();
        layout.map_or(Ok(()), |layout| self.locks.give_up_read_locks(&layout))
    }

    /// The MDT has recorded size 0 and the time, and gave these attributes; now the objects go.
    fn cut_at_open(&self, file: &FileState, attr: &Attr, lease: u64) -> FailureResult<()> {
        self.write_back.close_head(file, 0)?;
        let (range, ()) = file.take_range(Who::Name, Use::Exclusive, |_| (0, u64::MAX, ()))?;
        if file.lock().layout.as_ref().is_some_and(|layout| layout.has_objects()) {
            self.data.resize_objects(file, 0)?;
        }
        // What an earlier close is telling is old now.
        self.nodes.forget_told(file.node);
        range.finish(|inner| {
            inner.on_truncated(0, lease, true);
            // To be told again, since what such a close tells may reach the MDT later than this open.
            inner.news.mtime = ModifyTime::Here(attr.mtime);
        });
        Ok(())
    }

    /// Reads and writes of an open go through the kernel's page cache. To be told before the first of them.
    ///
    /// # Errors
    /// `EBADF`.
    pub fn note_cached(&self, handle: u64) -> StatusResult<()> {
        let open = self.handles.file(handle)?;
        open.cached.store(true, Ordering::Relaxed);
        open.file.lock().users.cached = true;
        Ok(())
    }

    /// Whether reads of an open count as accesses from now on (`O_NOATIME`: they do not).
    ///
    /// # Errors
    /// `EBADF`.
    pub fn keep_access_time(&self, handle: u64, keeps: bool) -> StatusResult<()> {
        let open = self.handles.file(handle)?;
        if open.keeps_access_time.load(Ordering::Relaxed) != keeps {
            open.keeps_access_time.store(keeps, Ordering::Relaxed);
        }
        Ok(())
    }

    /// The last descriptor of an open is closed: the MDT gets the handle back and, from the last writer, the size.
    ///
    /// # Errors
    /// `EBADF`. Failures to tell the size are logged: the MDT then asks the objects.
    pub fn release(&self, handle: u64) -> StatusResult<()> {
        self.requests.faults.edge("release", || {
            let open = self.handles.take_file(handle)?;
            let _closing = Closing(&open);
            let (file, writes) = (&*open.file, open.writable());
            if file.frozen_by(&open).is_some() {
                // The MDT hears of it with the close.
                self.data.thaw(file);
            }
            if open.group.swap(0, Ordering::AcqRel) != 0 {
                self.locks.drop_member(file, open.handle);
            }
            open.expand_locks(true);
            // Nobody waits for this: the descriptor is closed already. The handle stays the MDT's until the data is where it
            // belongs, so that the size it is told is true and the objects are there.
            let closing = self.data_for_close(&open);
            if closing.is_none() {
                self.settle_at_close(&open);
            }
            file.wait_until_told();
            let tell = {
                let mut inner = file.lock();
                inner.ahead.forget(handle, u64::MAX);
                if writes {
                    inner.users.writers -= 1;
                }
                inner.users.executors -= u32::from(open.flags.contains(OpenFlags::EXEC));
                // Who wrote nothing says what it knows, but asks nobody: the MDT remembers what was exact before.
                let knows = inner.size.is_of(self.lease.number()) && inner.known_blocks().is_some();
                writes && inner.users.writers == 0 && (inner.news.data_changed || knows)
            };
            if let Some(closing) = closing {
                self.requests.changes.fetch_add(1, Ordering::Release);
                if self.close_with(&open, closing) {
                    self.write_back.keep_error(&open);
                    self.nodes.detach(file.node);
                    return Ok(());
                }
                self.settle_at_close(&open);
            }
            let size = if tell {
                self.sizes
                    .size_blocks(file)
                    .map_err(|failure| {
                        self.requests.faults.log(
                            failure
                                .explain(|context| context.action("get the size at the close").fid(file.fid)),
                        )
                    })
                    .ok()
            } else {
                None
            };
            let turn = file.tell();
            let (update, written) = {
                let mut inner = file.lock();
                (inner.update_to_tell(size), inner.news.written.take())
            };
            self.nodes.note_told(file.node, &update, self.lease.number());
            self.requests.changes.fetch_add(1, Ordering::Release);
            self.post_close(file.fid, open.handle, update, written);
            // Not before: a thread that finds no error to report in the state has to find it among the reported ones.
            file.lock().was_told(&update, size.and_then(|size| size.changes));
            drop(turn);
            self.nodes.detach(file.node);
            Ok(())
        })
    }

    /// An MDT is about to be asked to open a file: until that has ended one way or the other, a recovery opens it too.
    fn ask_to_open(&self, caller: &Caller, fid: Fid, flags: OpenFlags) -> Asking {
        let asked = Asked { fid, flags, opener: *caller };
        let asking =
            Asking { asked, handle: self.handles.fresh(), recoveries: self.requests.recoveries(fid) };
        self.handles.insert_pending(asking.handle, asked);
        asking
    }

    /// An open was answered with an error, or not at all.
    fn was_refused(&self, asking: &Asking, status: Status) {
        match status {
            // Nobody has waited for the outcome.
            Status::EINTR | Status::ETIMEDOUT => self.close_unused(asking.asked.fid, asking.handle),
            _ => self.let_go(asking.asked.fid, asking.handle, asking.recoveries),
        }
    }

    /// The MDT has no file open by a handle, as far as it was heard since there were so many recoveries: one since may have opened it all the
    /// same. Whichever found the handle in the table has counted before.
    pub(crate) fn let_go(&self, fid: Fid, handle: OpenHandle, recoveries: u64) {
        self.handles.remove_pending(handle);
        if self.requests.recoveries(fid) != recoveries {
            self.close_unused(fid, handle);
        }
    }

    /// The MDT has opened `fid`. The answer may be one of before a restart, and a recovery since may have known of another file, or of one that
    /// was not there yet.
    ///
    /// # Errors
    /// `ESTALE` if the file has gone meanwhile: a name that others have removed while nobody knew of this open. `EINTR`.
    fn was_granted(&self, asking: &Asking, fid: Fid) -> FailureResult<()> {
        let Asked { flags, opener, .. } = asking.asked;
        if fid != asking.asked.fid {
            self.handles.insert_pending(asking.handle, Asked { fid, flags, opener });
        }
        if self.requests.recoveries(fid) == asking.recoveries {
            return Ok(());
        }
        let again = self.requests.call(&opener, fid, &open_again(fid, asking.handle, flags));
        again.map(drop).map_err(|failure| match failure.status() {
            Status::ENOENT => {
                self.handles.remove_pending(asking.handle);
                Status::ESTALE.into()
            }
            _ => {
                self.close_unused(fid, asking.handle);
                failure
            }
        })
    }

    /// Closes what no program has got.
    fn close_unused(&self, fid: Fid, handle: OpenHandle) {
        self.post_close(fid, handle, DataUpdate::default(), Vec::new());
    }

    /// Tells the MDT of a close. A recovery from now on does not open the file for this handle.
    fn post_close(&self, fid: Fid, handle: OpenHandle, update: DataUpdate, written: Vec<Fid>) {
        self.handles.remove_pending(handle);
        if let Ok(mdt) = self.requests.mdt(fid) {
            let request = MdsRequest::Close { fid, handle, update, written };
            mdt.endpoint.post(&nacre_types::Cred::system(), &request);
        }
    }

    /// Has what an open wrote arrive, before it is closed.
    fn settle_at_close(&self, open: &OpenFile) {
        let file = &*open.file;
        self.write_back.settle_unheard(file, &Scope::All);
        self.write_back.keep_error(open);
    }

    /// Files and directories that are open now, those included that the kernel closes without waiting.
    pub fn open_count(&self) -> usize {
        self.handles.count()
    }

    /// Sets the file locks of this mount's programs again at an MDT that has restarted and forgot them, over `endpoint`: before it is told
    /// that this client has brought back all its locks.
    ///
    /// # Errors
    /// As [`Opens::reopen_handles`].
    pub fn replay_file_locks(&self, mdt_index: u16, endpoint: &dyn MdsEndpoint) -> StatusResult<()> {
        self.flocks.replay(mdt_index, endpoint)
    }

    /// An MDT has dropped this client: file locks there are lost, which their holders learn as `EIO`.
    pub fn lose_file_locks(&self, mdt_index: u16) {
        self.flocks.lose(mdt_index);
    }

    /// Opens all handles of an MDT again over `endpoint`, after it restarted and forgot them, those included that are just being opened or
    /// closed. Handles that the MDT refuses are logged; I/O goes on, since objects are named by the layout.
    ///
    /// # Errors
    /// If the connection is lost meanwhile or the thread interrupted: what is left is to be opened then, before anything else is asked for.
    pub fn reopen_handles(&self, mdt_index: u16, endpoint: &dyn MdsEndpoint) -> StatusResult<()> {
        // Before the list is made: who is not on it finds out by this.
        if let Some(mdt) = self.requests.mdts.get(usize::from(mdt_index)) {
            mdt.recoveries.fetch_add(1, Ordering::AcqRel);
        }
        for (handle, Asked { fid, flags, opener }) in self.handles.opens() {
            if fid.mdt_index() != mdt_index {
                continue;
            }
            match endpoint.call(&opener.cred(), &open_again(fid, handle, flags)) {
                Ok(_) => {}
                Err(status) if open_again_is_given_up(status) => return Err(status),
                Err(status) => log::warn!("handle {} of {fid} could not be opened again: {status}", handle.0),
            }
        }
        Ok(())
    }
}

impl Drop for Closing<'_> {
    fn drop(&mut self) {
        let mut inner = self.0.file.lock();
        inner.users.opens -= 1;
        inner.users.closing -= u32::from(self.0.closing.load(Ordering::Relaxed));
        inner.users.leaving_locks -= u32::from(self.0.leaves_locks.load(Ordering::Relaxed));
        drop(inner);
        self.0.file.changed.notify_all();
    }
}

/// What a name says that stands for no name; `None` for all others. Source: reference 3.4: the MDT and a
/// random number in hexadecimal follow.
pub(crate) fn volatile(name: &[u8]) -> Option<Volatile> {
    let rest = name.strip_prefix(VOLATILE)?;
    let mdt = rest.get(..4).and_then(|digits| std::str::from_utf8(digits).ok());
    let mdt = mdt.and_then(|digits| u16::from_str_radix(digits, 16).ok());
    let at = rest.windows(BESIDE.len()).position(|window| window == BESIDE);
    let fid = at.and_then(|at| std::str::from_utf8(&rest[at + BESIDE.len()..]).ok());
    Some(Volatile { mdt, beside: fid.and_then(|text| text.parse().ok()) })
}
