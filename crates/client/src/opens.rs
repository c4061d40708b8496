//! Opens and closes of files.

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
use nacre_lock::LockHandle;
use nacre_rpc::MdsEndpoint;
use nacre_types::{Attr, AttrFlags, FailureResult, Fid, OpenHandle, SizeSource, Status, StatusResult, perm};
use nacre_wire::mds::{DataUpdate, MdsReply, MdsRequest, NewFile, OpenFlags};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// A file that was opened.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OpenedFile {
    /// Number that names the open in reads, writes and the close.
    pub handle: u64,
    /// Attributes at the open.
    pub attr: Attr,
    /// True if this open created the file.
    pub created: bool,
}

/// A file that is open at its MDT without a program that has it open. It lasts until [`Opens::end_hold`].
#[must_use]
#[derive(Debug)]
pub struct Held {
    fid: Fid,
    handle: OpenHandle,
}

/// An open whose request is in flight.
struct Asking {
    asked: Asked,
    handle: OpenHandle,
    /// [`Mdt::recoveries`](crate::requests::mdt::Mdt::recoveries) before the request.
    recoveries: u64,
}

/// Guard whose end wakes threads that wait until a close has been sent to the MDT.
struct Closing<'a>(&'a OpenFile);

struct Opening {
    opener: Caller,
    handle: OpenHandle,
    flags: OpenFlags,
    sync: bool,
    /// Lease under which the request was sent.
    lease: u64,
    /// [`Relayouts::count`] before the request, if it was read.
    changes: Option<u64>,
    /// The lock on the layout that was requested, and the one in the reply.
    lock: OpenedLock,
    created: bool,
    /// The file's bytes, if they came with the reply and no open here had the file before, with
    /// [`OpenedBytes::changes`](crate::file::opened::OpenedBytes::changes) from before the request.
    data: Option<(Vec<u8>, u64)>,
}

/// First part of the name under which Lustre creates a file without a name: ".", four control characters, a
/// word.
const VOLATILE: &[u8] = b".\x0c\x13\x14\x12:VOLATILE:";
/// Word before the FID of the file on whose MDT a file without a name is created.
const BESIDE: &[u8] = b":beside=";

/// Where a file without a name is to be created.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Volatile {
    /// The MDT, as Lustre's tools name it.
    pub mdt: Option<u16>,
    /// The file whose data it is for, as this project's tools name it.
    pub beside: Option<Fid>,
}

/// Open files, at the MDTs and here.
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

    /// Makes this thread work for the job of a caller, until the guard is dropped. `handle` is the open file
    /// concerned, if any. `None`, and nothing is done, while jobs are not named.
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
    /// `EACCES`, `EISDIR`, `ESTALE`; the errors of OSTs when the file is truncated.
    pub fn open(&self, caller: &Caller, fid: Fid, flags: OpenFlags, sync: bool) -> StatusResult<OpenedFile> {
        self.requests.faults.edge_on("open", fid, || {
            let node = node_of(fid)?;
            // The kernel refuses to open a running program for writing, but checks O_RDONLY | O_TRUNC too
            // late.
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

    /// Opens a regular file at its MDT alone, without a right to its data: it exists from then on, though its names may
    /// be removed.
    ///
    /// # Errors
    /// `ENOENT` or `ESTALE` if it is gone.
    pub fn hold(&self, caller: &Caller, fid: Fid) -> StatusResult<Held> {
        self.requests.faults.edge_on("hold", fid, || {
            let asking = self.ask_to_open(caller, fid, OpenFlags::empty());
            let Asking { handle, asked: Asked { flags, .. }, .. } = asking;
            let request = MdsRequest::Open { fid, handle, flags, lock: LockHandle(0) };
            let opened = self.requests.call(caller, fid, &request);
            opened.inspect_err(|failure| self.was_refused(&asking, failure.status()))?;
            self.was_granted(&asking, fid)?;
            Ok(Held { fid, handle })
        })
    }

    /// Closes a file that was held.
    pub fn end_hold(&self, held: Held) {
        self.close_unused(held.fid, held.handle);
    }

    /// Creates a file and opens it, or opens the existing one unless `exclusive`. Counts as one lookup. With
    /// an empty name the file has none (`O_TMPFILE`).
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
            // Lustre's way to create a file without a name. The kernel's next lookup of this name finds
            // nothing.
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

    /// Enters an open that the MDT granted; closes it if it cannot be completed.
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

    /// Returns the attributes that came with an open, unless the file may have got objects here while the
    /// reply was on its way: it may have been written and closed since, and have left no state here. To be
    /// called when the file is attached.
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
            // The layout is not known if the MDT granted no lock with it.
            (ours || exact, attr.flags.contains(AttrFlags::HAS_OBJECTS) || inner.has_objects())
        };
        if cut {
            self.cut_at_open(file, &attr, opening.lease)?;
            attr.size = 0;
            attr.blocks = 0;
        } else if !size_known && has_objects {
            // A lost object, or one on an OST out of use, is an error for reads and writes of its part alone.
            self.sizes.refresh_size_to(file, 0)?;
        } else if !size_known {
            file.lock().learn(&attr, opening.lease, true);
        }
        if writes || cut {
            self.data.opened.note_change();
        }
        if writes {
            // Information fetched before this open does not cover its writes.
            self.requests.changes.fetch_add(1, Ordering::Release);
            file.lock().users.writers += 1;
        }
        let ready = if writes { self.prepare_stores(file) } else { Ok(()) };
        let outcome = match ready {
            // The creator of the file needs no request for its content.
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

    /// Prepares an open for writing, whose pages may be mapped and stored to without a notification: no page
    /// may be left that is only under a read lock. Pages cached later are locked for writing.
    fn prepare_stores(&self, file: &FileState) -> FailureResult<()> {
        if self.lease.exclusive() || file.folios.lock().hull().is_none() {
            return Ok(());
        }
        let layout = file.lock().layout.clone();
        layout.map_or(Ok(()), |layout| self.locks.give_up_read_locks(&layout))
    }

    /// Truncates the objects after the MDT has recorded size 0 and the time, and returned these attributes.
    fn cut_at_open(&self, file: &FileState, attr: &Attr, lease: u64) -> FailureResult<()> {
        self.write_back.close_head(file, 0)?;
        let (range, ()) = file.take_range(Who::Name, Use::Exclusive, |_| (0, u64::MAX, ()))?;
        if attr.flags.contains(AttrFlags::HAS_OBJECTS) || file.lock().has_objects() {
            self.data.resize_objects(file, 0)?;
        }
        // Values of an earlier close on its way are outdated.
        self.nodes.forget_told(file.node);
        range.finish(|inner| {
            inner.on_truncated(0, lease, true);
            // To be reported again, since such a close may reach the MDT later than this open.
            inner.news.mtime = ModifyTime::Here(attr.mtime);
        });
        Ok(())
    }

    /// Records that reads and writes of an open go through the kernel's page cache. To be called before the
    /// first of them.
    ///
    /// # Errors
    /// `EBADF` if the handle is not that of an open file.
    pub fn note_cached(&self, handle: u64) -> StatusResult<()> {
        let open = self.handles.file(handle)?;
        open.cached.store(true, Ordering::Relaxed);
        open.file.lock().users.cached = true;
        Ok(())
    }

    /// Sets whether reads of an open leave the access time alone (`O_NOATIME`).
    ///
    /// # Errors
    /// `EBADF` if the handle is not that of an open file.
    pub fn keep_access_time(&self, handle: u64, keeps: bool) -> StatusResult<()> {
        let open = self.handles.file(handle)?;
        if open.keeps_access_time.load(Ordering::Relaxed) != keeps {
            open.keeps_access_time.store(keeps, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Handles the close of the last descriptor of an open: closes the handle at the MDT and reports the size
    /// if this was the last writer.
    ///
    /// # Errors
    /// `EBADF`. Failures to report the size are logged: the MDT then requests it from the objects.
    pub fn release(&self, handle: u64) -> StatusResult<()> {
        self.requests.faults.edge("release", || {
            let open = self.handles.take_file(handle)?;
            let _closing = Closing(&open);
            let (file, writes) = (&*open.file, open.writable());
            self.end_freeze_and_group(&open);
            // No program waits for this: the descriptor is closed already. The MDT keeps the handle until the
            // data is on its objects, so that the reported size is true and the objects exist.
            let closing = self.data_for_close(&open);
            if closing.is_none() && !self.settle_at_close(&open) {
                return Ok(());
            }
            file.wait_until_told();
            let tell = {
                let mut inner = file.lock();
                inner.ahead.forget(handle, u64::MAX);
                if writes {
                    inner.users.writers -= 1;
                }
                inner.users.executors -= u32::from(open.flags.contains(OpenFlags::EXEC));
                // An open that wrote nothing reports a known size, but sends no request for it: the MDT
                // remembers the last exact one.
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
                if !self.settle_at_close(&open) {
                    return Ok(());
                }
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
            // Not earlier: a thread that finds no report due in the state has to find it among the recorded
            // reports.
            file.lock().was_told(&update, size.and_then(|size| size.changes));
            drop(turn);
            self.nodes.detach(file.node);
            Ok(())
        })
    }

    /// Prepares a request to open a file: until its outcome is known, a recovery re-opens it too.
    fn ask_to_open(&self, caller: &Caller, fid: Fid, flags: OpenFlags) -> Asking {
        let asked = Asked { fid, flags, opener: *caller };
        let asking =
            Asking { asked, handle: self.handles.fresh(), recoveries: self.requests.recoveries(fid) };
        self.handles.insert_pending(asking.handle, asked);
        asking
    }

    /// Handles an open that failed, or got no reply.
    fn was_refused(&self, asking: &Asking, status: Status) {
        match status {
            // The thread did not wait for the outcome.
            Status::EINTR | Status::ETIMEDOUT => self.close_unused(asking.asked.fid, asking.handle),
            _ => self.let_go(asking.asked.fid, asking.handle, asking.recoveries),
        }
    }

    /// Removes a handle under which the MDT has no file open, as of the time with this number of recoveries:
    /// a later recovery may have opened it nevertheless, and is counted before it reads the table of handles.
    pub(crate) fn let_go(&self, fid: Fid, handle: OpenHandle, recoveries: u64) {
        self.handles.remove_pending(handle);
        if self.requests.recoveries(fid) != recoveries {
            self.close_unused(fid, handle);
        }
    }

    /// Enters that the MDT has opened `fid`. The reply may be from before a restart, and a recovery since may
    /// have re-opened another file, or one that did not exist yet.
    ///
    /// # Errors
    /// `ESTALE` if the file was removed meanwhile: another client removed its name while no MDT knew of this
    /// open. `EINTR`.
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

    /// Closes an open that no program got.
    fn close_unused(&self, fid: Fid, handle: OpenHandle) {
        self.post_close(fid, handle, DataUpdate::default(), Vec::new());
    }

    /// Sends a close to the MDT. A recovery from then on does not open the file for this handle.
    fn post_close(&self, fid: Fid, handle: OpenHandle, update: DataUpdate, written: Vec<Fid>) {
        self.handles.remove_pending(handle);
        if let Ok(mdt) = self.requests.mdt(fid) {
            let request = MdsRequest::Close { fid, handle, update, written };
            mdt.endpoint.post(&nacre_types::Cred::system(), &request);
        }
    }

    /// Ends what an open holds for other opens: a freeze, a group lock, limits to locks.
    fn end_freeze_and_group(&self, open: &OpenFile) {
        let file = &*open.file;
        if file.frozen_by(open).is_some() {
            // The close ends the freeze at the MDT.
            self.data.thaw(file);
        }
        if open.group.swap(0, Ordering::AcqRel) != 0 {
            self.locks.drop_member(file, open.handle);
        }
        open.expand_locks(true);
    }

    /// Flushes the writes of an open, before it is closed. Only the end of the mount interrupts a close: then false if
    /// data is left, and the file stays open, for [`WriteBack::write_back_all`].
    fn settle_at_close(&self, open: &OpenFile) -> bool {
        let file = &*open.file;
        self.write_back.settle_unheard(file, &Scope::All);
        if nacre_env::interrupted() && !file.dirty.is_clean() {
            return false;
        }
        self.write_back.keep_error(open);
        true
    }

    /// Returns how many files and directories are open, including those that the kernel closes without
    /// waiting.
    pub fn open_count(&self) -> usize {
        self.handles.count()
    }

    /// Replays the file locks of this mount's programs over `endpoint` at an MDT that has restarted: before
    /// the MDT gets the message that this client has replayed all its locks.
    ///
    /// # Errors
    /// As [`Opens::reopen_handles`].
    pub fn replay_file_locks(&self, mdt_index: u16, endpoint: &dyn MdsEndpoint) -> StatusResult<()> {
        self.flocks.replay(mdt_index, endpoint)
    }

    /// Handles an eviction by an MDT: file locks there are lost, which their holders see as `EIO`.
    pub fn lose_file_locks(&self, mdt_index: u16) {
        self.flocks.lose(mdt_index);
    }

    /// Re-opens all handles of an MDT over `endpoint` after it restarted, including those that are being
    /// opened or closed. Handles that the MDT rejects are logged; I/O continues, since the layout names the
    /// objects.
    ///
    /// # Errors
    /// If the connection is lost meanwhile or the thread interrupted: the rest has to be re-opened then,
    /// before any other request.
    pub fn reopen_handles(&self, mdt_index: u16, endpoint: &dyn MdsEndpoint) -> StatusResult<()> {
        // Before the list is made: an open that is not in it detects the recovery by this count.
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
        inner.users.ended += 1;
        drop(inner);
        self.0.file.changed.notify_all();
    }
}

/// Parses a name that Lustre uses for a file without a name: the prefix, the MDT and a random number in
/// hexadecimal; `None` for all others.
pub(crate) fn volatile(name: &[u8]) -> Option<Volatile> {
    let rest = name.strip_prefix(VOLATILE)?;
    let mdt = rest.get(..4).and_then(|digits| std::str::from_utf8(digits).ok());
    let mdt = mdt.and_then(|digits| u16::from_str_radix(digits, 16).ok());
    let at = rest.windows(BESIDE.len()).position(|window| window == BESIDE);
    let fid = at.and_then(|at| std::str::from_utf8(&rest[at + BESIDE.len()..]).ok());
    Some(Volatile { mdt, beside: fid.and_then(|text| text.parse().ok()) })
}
