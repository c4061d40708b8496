//! I/O on open files: reads, writes, truncation, copies, syncs; and reports of lost data.

pub(crate) mod closes;
pub(crate) mod read;
pub(crate) mod replace;
pub(crate) mod space;
pub(crate) mod write;

use crate::base::Base;
use crate::config::ClientConfig;
use crate::data_locks::DataLocks;
use crate::file::opened::OpenedBytes;
use crate::file::{DirtyObject, FileState, OpenFile};
use crate::flocks::FileLocks;
use crate::handles::HandleTable;
use crate::inodes::Inodes;
use crate::layouts::{LayoutUse, Layouts};
use crate::lease::Lease;
use crate::node::NodeTable;
use crate::objects::Objects;
use crate::read_ahead::ReadAhead;
use crate::requests::{Requests, target_of};
use crate::sizes::Sizes;
use crate::tunables::Tunables;
use crate::write_back::WriteBack;
use nacre_types::{Failure, FailureResult, Fid, Status, StatusResult, TargetId, TransNo};
use nacre_wire::oss::OssRequest;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// See the [module documentation](self).
pub struct Data {
    requests: Arc<Requests>,
    layouts: Arc<Layouts>,
    objects: Arc<Objects>,
    write_back: Arc<WriteBack>,
    locks: Arc<DataLocks>,
    sizes: Arc<Sizes>,
    read_ahead: Arc<ReadAhead>,
    inodes: Arc<Inodes>,
    nodes: Arc<NodeTable>,
    handles: Arc<HandleTable>,
    flocks: Arc<FileLocks>,
    lease: Arc<Lease>,
    config: Arc<ClientConfig>,
    tunables: Arc<Tunables>,
    /// Bytes of small files that came with replies to opens.
    pub(crate) opened: OpenedBytes,
}

impl Data {
    pub(crate) fn new(
        base: &Base,
        write_back: Arc<WriteBack>,
        locks: Arc<DataLocks>,
        sizes: Arc<Sizes>,
        read_ahead: Arc<ReadAhead>,
        inodes: Arc<Inodes>,
    ) -> Arc<Data> {
        Arc::new(Data {
            requests: base.requests.clone(),
            layouts: base.layouts.clone(),
            objects: base.objects.clone(),
            write_back,
            locks,
            sizes,
            read_ahead,
            inodes,
            nodes: base.nodes.clone(),
            handles: base.handles.clone(),
            flocks: base.flocks.clone(),
            lease: base.lease.clone(),
            config: base.config.clone(),
            tunables: base.tunables.clone(),
            opened: OpenedBytes::default(),
        })
    }

    /// Makes an open file durable: the objects written since the last sync, and the file's inode on its MDT
    /// if its last change is not durable yet.
    ///
    /// # Errors
    /// `EIO` once for each open if data was lost since it was written; the error of a server.
    pub fn fsync(&self, handle: u64) -> StatusResult<()> {
        let open = self.handles.file(handle)?;
        self.requests.faults.edge_on("fsync", open.file.fid, || {
            // A program that syncs after each write gains nothing from write-back: its next write counts as
            // the first of a stream.
            open.next_write.store(u64::MAX, Ordering::Relaxed);
            self.fsync_open(&open)
        })
    }

    fn fsync_open(&self, open: &OpenFile) -> FailureResult<()> {
        let settled = self.write_back.settle(&open.file, 0, u64::MAX);
        let outcome =
            settled.and_then(|()| self.sync_objects(&open.file)).and_then(|()| self.commit_file(&open.file));
        self.note_lost(&open.file);
        open.check_error().map_err(Failure::logged).and(outcome)
    }

    /// Makes each open of a file report an error if the MDT has lost changes of the file.
    fn note_lost(&self, file: &FileState) {
        if self.requests.take_lost(&file.fid) {
            self.note_loss(file, TargetId::mdt(file.fid.mdt_index()));
        }
    }

    /// Records that a target has lost acknowledged data of a file: each open reports it, and the log has it.
    fn note_loss(&self, file: &FileState, target: TargetId) {
        file.lock().record_error(Status::EIO);
        self.requests.faults.log(Failure::from(Status::EIO).explain(|context| {
            let cause = "the target has lost what it had answered, as if its host had lost power";
            context.action("sync").fid(file.fid).target(target).cause(cause)
        }));
    }

    /// Syncs dirty objects. Those that could not be synced stay dirty.
    fn sync_objects(&self, file: &FileState) -> FailureResult<()> {
        let used = {
            let inner = file.lock();
            let is_clean = inner.unsynced.dirty.is_empty() && !inner.unsynced.dirty_unknown;
            drop(inner);
            if is_clean { None } else { Some(self.layouts.use_layout(file)?) }
        };
        let dirty = self.take_dirty(file, used.as_ref());
        if dirty.is_empty() {
            return Ok(());
        }
        let request = |one: &DirtyObject| (one.ost_index, OssRequest::Sync { object: Some(one.object) });
        let outcome = match dirty.as_slice() {
            [one] => self.requests.on_object("sync", one.ost_index, &request(one).1).map(drop),
            many => self.requests.on_objects("sync", || many.iter().map(request)).map(drop),
        };
        let lost = dirty.iter().find(|one| self.requests.epoch_of(one.ost_index) != one.epoch);
        if let Some(lost) = lost {
            self.note_loss(file, target_of(lost.ost_index));
            file.lock().news.written.forget();
        }
        let mut inner = file.lock();
        if outcome.is_err() {
            for one in dirty {
                inner.mark_dirty_object(one.ost_index, one.object, self.requests.epoch_of(one.ost_index));
            }
        }
        outcome
    }

    fn take_dirty(&self, file: &FileState, used: Option<&LayoutUse>) -> Vec<DirtyObject> {
        let mut inner = file.lock();
        // Earlier opens may have left anything unsynced, so the first sync takes all objects.
        let all = used.filter(|_| inner.unsynced.dirty_unknown).and_then(LayoutUse::layout);
        // Without a layout in use no object was looked for.
        inner.unsynced.dirty_unknown &= used.is_none();
        let mut dirty = std::mem::take(&mut inner.unsynced.dirty);
        drop(inner);
        if let Some(layout) = all {
            dirty.retain(|one| layout.objects().any(|stripe| stripe.object == one.object));
        }
        for stripe in all.iter().flat_map(|layout| layout.objects()) {
            if !dirty.iter().any(|one| one.object == stripe.object) {
                let epoch = self.requests.epoch_of(stripe.ost_index);
                dirty.push(DirtyObject { ost_index: stripe.ost_index, object: stripe.object, epoch });
            }
        }
        dirty
    }

    /// Serves the close of a descriptor. No data is written here; programs that never sync get the error for
    /// lost data here.
    ///
    /// # Errors
    /// `EIO` once for each open if data was lost since it was written.
    pub fn flush(&self, handle: u64) -> StatusResult<()> {
        let open = self.handles.file(handle)?;
        self.note_lost(&open.file);
        {
            let mut inner = open.file.lock();
            inner.users.closing += u32::from(!open.closing.swap(true, Ordering::Relaxed));
            let is_lost = |one: &&DirtyObject| self.requests.epoch_of(one.ost_index) != one.epoch;
            let lost = inner.unsynced.dirty.iter().find(is_lost).map(|one| target_of(one.ost_index));
            if let Some(target) = lost {
                inner.news.written.forget();
                for one in &mut inner.unsynced.dirty {
                    one.epoch = self.requests.epoch_of(one.ost_index);
                }
                drop(inner);
                self.note_loss(&open.file, target);
            }
        }
        open.check_error_at_close()
    }

    /// Makes durable what this client has changed and servers may lose with their hosts: after an unmount no client
    /// could replay it. Waits for servers that are unreachable, as long as they may have lost something. To be called
    /// after [`WriteBack::write_back_all`].
    ///
    /// # Errors
    /// The first failure.
    pub fn sync_own(&self) -> StatusResult<()> {
        self.requests.faults.edge("sync for the unmount", || {
            let osts = self.requests.keepers.osts_with_any();
            let outcome = self
                .requests
                .on_objects("sync", || osts.iter().map(|index| (*index, OssRequest::Sync { object: None })))
                .map(drop);
            (0..self.requests.mdts.len() as u16).fold(outcome, |outcome, index| {
                let place = Fid::new(Fid::first_sequence_of_mdt(index), 1, 0);
                let mdt = self.requests.mdt(place)?;
                mdt.learn_committed();
                outcome.and(self.requests.commit(place, TransNo(mdt.last_transno.load(Ordering::Relaxed))))
            })
        })
    }

    /// Makes the whole file system durable: all OSTs, then all MDTs.
    ///
    /// # Errors
    /// The first failure, after all were tried.
    pub fn sync_all(&self) -> StatusResult<()> {
        self.requests.faults.edge("sync all", || {
            self.write_back.write_back_all();
            let osts: Vec<u16> = self.requests.osts.iter().map(|(index, _)| index).collect();
            let outcome = self
                .requests
                .on_objects("sync", || osts.iter().map(|index| (*index, OssRequest::Sync { object: None })))
                .map(drop);
            (0..self.requests.mdts.len()).fold(outcome, |outcome, index| {
                let fid = Fid::new(Fid::first_sequence_of_mdt(index as u16), 1, 0);
                outcome.and(self.requests.commit(fid, TransNo(u64::MAX)))
            })
        })
    }
}
