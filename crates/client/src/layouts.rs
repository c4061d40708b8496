//! The layout during an operation: the known one, the proof that it is valid, and requests for it to the MDT.
//!
//! While this client is the only one, the lease guarantees that no other client changes a layout; its own
//! changes take the byte range of the whole file ([`crate::file::ranges`]) and invalidate the known layout.
//! With other clients a lock on the layout guarantees it ([`crate::locks::layouts`]): an operation holds a
//! reference to the lock ([`LayoutUse`]) from before its first request to an OST until after its last. While
//! it has one it sends the MDT no request about the file.

pub(crate) mod head;

use crate::file::{FileInner, FileState};
use crate::lease::Lease;
use crate::locks::layouts::{Adopted, LayoutSpace};
use crate::node::NodeTable;
use crate::read_ahead::blocks::Memory;
use crate::requests::Requests;
use crate::validity::Validity;
use nacre_layout::Layout;
use nacre_lock::{InodeBits, LockHandle};
use nacre_types::{Explain, FailureResult, Fid, Status, StatusResult};
use nacre_wire::mds::{MdsReply, MdsRequest};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Time after which a request is repeated to an MDT that grants no lock because it waits for its clients
/// after a restart.
const ASK_AGAIN: Duration = Duration::from_millis(20);

/// A layout that stays valid until this is dropped.
pub(crate) struct LayoutUse {
    layout: Option<Arc<Layout>>,
    lock: Option<(Arc<LayoutSpace>, LockHandle)>,
}

impl LayoutUse {
    /// Returns the layout; `None` if none is stored.
    pub fn layout(&self) -> Option<&Arc<Layout>> {
        self.layout.as_ref()
    }

    /// Returns the layout for a write.
    ///
    /// # Errors
    /// `EIO` if there is none.
    pub fn for_writing(&self) -> FailureResult<&Arc<Layout>> {
        self.layout.as_ref().ok_or(Status::EIO).explain(|context| context.cause("the file has no layout"))
    }

    /// Returns the layout if it has objects.
    pub fn with_objects(&self) -> Option<&Arc<Layout>> {
        self.layout.as_ref().filter(|layout| layout.has_objects())
    }
}

impl From<Arc<Layout>> for LayoutUse {
    /// Wraps a layout that something else keeps valid: the lease, or a lock that is not released yet.
    fn from(layout: Arc<Layout>) -> LayoutUse {
        LayoutUse { layout: Some(layout), lock: None }
    }
}

impl Drop for LayoutUse {
    fn drop(&mut self) {
        if let Some((space, handle)) = self.lock.take() {
            space.release(handle);
        }
    }
}

/// Counts how often this client has changed layouts: had objects allocated for a file, or replaced them. A
/// reply of an MDT that was on its way meanwhile may be older than such a change, also for a file that is not
/// known any more because it was closed. Files share counters; a collision only costs an unnecessary request.
pub(crate) struct Relayouts([AtomicU64; Relayouts::COUNTERS]);

impl Relayouts {
    const COUNTERS: usize = 1024;

    fn counter(&self, fid: Fid) -> &AtomicU64 {
        &self.0[(fid.seq ^ u64::from(fid.oid)) as usize % Relayouts::COUNTERS]
    }

    /// Returns how often the layout of a file was changed, and those of files that share its counter.
    pub fn count(&self, fid: Fid) -> u64 {
        self.counter(fid).load(Ordering::Acquire)
    }

    /// Records a change of the layout, which the opens of the file here know of. To be called before the file
    /// is closed.
    pub fn note(&self, fid: Fid) {
        self.counter(fid).fetch_add(1, Ordering::AcqRel);
    }
}

impl Default for Relayouts {
    fn default() -> Relayouts {
        Relayouts([const { AtomicU64::new(0) }; Relayouts::COUNTERS])
    }
}

/// The handle of the layout lock requested with an open, and that of the lock in the reply; 0 stands for
/// none.
#[derive(Clone, Copy, Default)]
pub(crate) struct OpenedLock {
    pub reserved: LockHandle,
    pub came: LockHandle,
}

/// Result of one try to get a layout.
enum Tried {
    Done(LayoutUse),
    /// Try again after this time.
    Again(Duration),
}

/// The known layouts of open files, and the proof that they are valid.
pub struct Layouts {
    requests: Arc<Requests>,
    lease: Arc<Lease>,
    nodes: Arc<NodeTable>,
    memory: Arc<Memory>,
    pub(crate) relayouts: Relayouts,
}

impl Layouts {
    pub(crate) fn new(
        requests: Arc<Requests>,
        lease: Arc<Lease>,
        nodes: Arc<NodeTable>,
        memory: Arc<Memory>,
    ) -> Arc<Layouts> {
        Arc::new(Layouts { requests, lease, nodes, memory, relayouts: Relayouts::default() })
    }

    fn layout_space(&self, fid: Fid) -> Arc<LayoutSpace> {
        self.lease.locks().layouts(fid.mdt_index())
    }

    /// Returns the current layout with all components: data in a component that is not known counts for the
    /// size.
    ///
    /// # Errors
    /// `EINTR`; the error of the MDT.
    pub(crate) fn use_layout(&self, file: &FileState) -> FailureResult<LayoutUse> {
        self.use_layout_that(file, |layout| layout.is_complete())
    }

    /// Returns the known layout if it is valid as a whole, or `enough` with the part that stays valid;
    /// otherwise requests it from the MDT.
    fn use_layout_that(
        &self,
        file: &FileState,
        enough: impl Fn(&Layout) -> bool,
    ) -> FailureResult<LayoutUse> {
        loop {
            if let Some(known) = self.known_layout(file, &enough) {
                return Ok(known);
            }
            match self.ask_layout(file, None)? {
                Tried::Done(held) => return Ok(held),
                Tried::Again(after) => pause(after)?,
            }
        }
    }

    /// Does the same without a request.
    fn known_layout(&self, file: &FileState, enough: &impl Fn(&Layout) -> bool) -> Option<LayoutUse> {
        let (layout, validity) = {
            let inner = file.lock();
            (inner.layout.clone(), inner.layout_validity)
        };
        let is_enough = layout.as_ref().is_some_and(|layout| layout.has_objects() && enough(layout));
        match validity {
            Validity::Lease(number) if number == self.lease.number() => {
                Some(LayoutUse { layout, lock: None })
            }
            Validity::Lock(handle) => {
                let space = self.layout_space(file.fid);
                let bits = space.hold(handle)?;
                let held = LayoutUse { layout, lock: Some((space, handle)) };
                (is_enough || bits.contains(InodeBits::COMPONENTS)).then_some(held)
            }
            _ => None,
        }
    }

    /// Returns the known layout, if it is `ready`; sends no request.
    pub(crate) fn layout_in_hand(
        &self,
        file: &FileState,
        ready: impl Fn(&Layout) -> bool,
    ) -> Option<LayoutUse> {
        let known = self.known_layout(file, &ready)?;
        known.layout.as_ref().is_some_and(|layout| ready(layout)).then_some(known)
    }

    /// Returns a layout that has objects for `[start, end)` as far as the file can reach; requests them from
    /// the MDT if necessary. If several writers need them at once, one sends the request.
    ///
    /// # Errors
    /// `ENODATA` if the whole range is behind the last component; `EINTR`; the error of the MDT.
    pub(crate) fn use_layout_for_writing(
        &self,
        file: &FileState,
        start: u64,
        end: u64,
    ) -> FailureResult<LayoutUse> {
        // Another client may have added components behind the known end.
        let has_room = |layout: &Layout| start < layout.end() && layout.is_instantiated(start, end);
        let ready = |inner: &mut FileInner| match &inner.layout {
            Some(layout) if has_room(layout) => Some(true),
            _ if inner.layout_pending => None,
            _ => {
                inner.layout_pending = true;
                Some(false)
            }
        };
        loop {
            if file.wait_for(ready)? {
                let held = self.use_layout_that(file, has_room)?;
                if held.layout.as_ref().is_some_and(|layout| has_room(layout)) {
                    return Ok(held);
                }
                continue;
            }
            let tried = self.ask_layout(file, Some((start, end)));
            {
                let mut inner = file.lock();
                inner.layout_pending = false;
                if inner.ranges.waiters > 0 {
                    file.changed.notify_all();
                }
            }
            match tried? {
                Tried::Done(held) => match &held.layout {
                    Some(layout) if layout.is_instantiated(start, end) => {
                        self.nodes.note_layout(file.node);
                        return Ok(held);
                    }
                    _ => return Err(Status::EPROTO.into()),
                },
                Tried::Again(after) => pause(after)?,
            }
        }
    }

    /// Requests the layout from the MDT, with a range for one that has objects there, and a lock on it unless
    /// this client is the only one.
    fn ask_layout(&self, file: &FileState, range: Option<(u64, u64)>) -> FailureResult<Tried> {
        let fid = file.fid;
        let lease = self.lease.number();
        let changes = self.relayouts.count(fid);
        if lease != 0 {
            let request = match range {
                Some((start, end)) => MdsRequest::LayoutIntent { fid, start, end },
                None => MdsRequest::GetLayout { fid },
            };
            let answer = self.requests.call_system(fid, &request)?;
            let MdsReply::Layout(layout) = answer.reply else { return Err(Status::EPROTO.into()) };
            let mut inner = file.lock();
            inner.transno = inner.transno.max(answer.transno);
            if changes != self.relayouts.count(fid) || lease != self.lease.number() {
                return Ok(Tried::Again(Duration::ZERO));
            }
            inner.learn_layout(layout, Validity::Lease(lease));
            if range.is_some() {
                self.relayouts.note(fid);
            }
            return Ok(Tried::Done(LayoutUse { layout: inner.layout.clone(), lock: None }));
        }
        let space = self.layout_space(fid);
        let reserved = space.reserve();
        let owners = file.lock().owners;
        let answer = self
            .requests
            .call_system(fid, &MdsRequest::LayoutAccess { fid, range, lock: reserved, owners })
            .inspect_err(|_| space.forget(reserved))?;
        let MdsReply::LockedLayout { layout, lock } = answer.reply else {
            space.forget(reserved);
            return Err(Status::EPROTO.into());
        };
        let transno = answer.transno;
        match space.adopt(reserved, fid, lock, layout.as_ref()) {
            Adopted::Held(handle, layout) => {
                let lock = Some((space, handle));
                let mut inner = file.lock();
                inner.transno = inner.transno.max(transno);
                inner.learn_layout(layout, Validity::Lock(handle));
                let is_known = inner.layout_validity == Validity::Lock(handle);
                let layout = inner.layout.clone();
                drop(inner);
                let held = LayoutUse { layout, lock };
                // The known layout came under a newer lock, which this reference does not hold.
                Ok(if is_known { Tried::Done(held) } else { Tried::Again(Duration::from_millis(1)) })
            }
            Adopted::Gone => Ok(Tried::Again(Duration::from_millis(1))),
            Adopted::None => Ok(Tried::Again(ASK_AGAIN)),
        }
    }

    /// Requests the layout again, after this client has set another one for a file without objects.
    ///
    /// # Errors
    /// As for [`Layouts::use_layout`].
    pub(crate) fn ask_layout_again(&self, file: &FileState) -> FailureResult<()> {
        file.lock().layout_validity = Validity::None;
        self.use_layout(file).map(drop)
    }

    /// Reserves a handle for a lock that may come with the reply to an open, unless this client is the only
    /// one.
    pub(crate) fn reserve_layout_lock(&self, fid: Fid) -> LockHandle {
        if self.lease.exclusive() { LockHandle(0) } else { self.layout_space(fid).reserve() }
    }

    /// Ends the reservation after the open has failed.
    pub(crate) fn forget_layout_lock(&self, fid: Fid, reserved: LockHandle) {
        if reserved != LockHandle(0) {
            self.layout_space(fid).forget(reserved);
        }
    }

    /// Adopts the layout, and perhaps a lock, from the reply to an open. The open was sent under this lease,
    /// after this number of changes of the layout if the file's were counted.
    pub(crate) fn adopt_layout_lock(
        &self,
        file: &FileState,
        OpenedLock { reserved, came }: OpenedLock,
        layout: Option<Arc<Layout>>,
        lease: u64,
        changes: Option<u64>,
    ) {
        if reserved == LockHandle(0) {
            let mut inner = file.lock();
            let is_new = changes == Some(self.relayouts.count(file.fid));
            if lease != 0 && is_new && lease == self.lease.number() {
                inner.learn_layout(layout, Validity::Lease(lease));
            } else if inner.layout.is_none() {
                // The layout may be outdated: the first operation requests it.
                inner.learn_layout(layout, Validity::None);
            }
            return;
        }
        let space = self.layout_space(file.fid);
        if let Adopted::Held(handle, layout) = space.adopt(reserved, file.fid, came, layout.as_ref()) {
            file.lock().learn_layout(layout, Validity::Lock(handle));
            space.release(handle);
        }
    }

    /// Drops what is known of a file's objects and of their content.
    pub(crate) fn forget_layout(&self, file: &FileState) {
        file.lock().forget_layout();
        file.lock_era.fetch_add(1, Ordering::AcqRel);
        self.memory.shrink();
    }

    /// True if no other client can give objects to components of a file that have none, or add components.
    pub(crate) fn holds_components(&self, file: &FileState) -> bool {
        let validity = file.lock().layout_validity;
        matches!(validity, Validity::Lock(handle) if self.layout_space(file.fid).holds_components(handle))
    }
}

/// Waits before a retry; for short times only, during which it is not interrupted.
///
/// # Errors
/// `EINTR` if the caller was interrupted before.
pub(crate) fn pause(time: Duration) -> StatusResult<()> {
    if nacre_env::interrupted() {
        return Err(Status::EINTR);
    }
    if !time.is_zero() {
        nacre_env::blocking(|| nacre_env::thread::sleep(time));
    }
    Ok(())
}
