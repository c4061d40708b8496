//! The layout for the time of an operation: what is known, what keeps it true, and asking the MDT.
//!
//! Alone, the lease says that nobody else changes a layout; this client's own changes take the whole file
//! ([`crate::file::ranges`]) and have it forgotten. With other clients a lock on the layout does ([`crate::locks::layouts`]), to which an
//! operation holds a reference ([`LayoutUse`]) from before its first request to an OST until after its last. While it has
//! one it asks the MDT nothing about the file.

pub(crate) mod head;

use crate::file::{FileInner, FileState};
use crate::lease::Lease;
use crate::locks::layouts::{Adopted, LayoutSpace};
use crate::node::NodeTable;
use crate::read_ahead::blocks::Memory;
use crate::requests::Requests;
use crate::warrant::Warrant;
use nacre_layout::Layout;
use nacre_lock::{InodeBits, LockHandle};
use nacre_types::{Explain, FailureResult, Fid, Status, StatusResult};
use nacre_wire::mds::{MdsReply, MdsRequest};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Time after which an MDT that has no lock to give, because it waits for its clients after a restart, is asked again.
const ASK_AGAIN: Duration = Duration::from_millis(20);

/// A layout that stays true until this is dropped.
pub(crate) struct LayoutUse {
    layout: Option<Arc<Layout>>,
    lock: Option<(Arc<LayoutSpace>, LockHandle)>,
}

impl LayoutUse {
    /// The layout; `None` if nothing is stored of one.
    pub fn layout(&self) -> Option<&Arc<Layout>> {
        self.layout.as_ref()
    }

    /// The layout of a write.
    ///
    /// # Errors
    /// `EIO` if there is none.
    pub fn for_writing(&self) -> FailureResult<&Arc<Layout>> {
        self.layout.as_ref().ok_or(Status::EIO).explain(|context| context.cause("the file has no layout"))
    }

    /// The layout if it has objects.
    pub fn with_objects(&self) -> Option<&Arc<Layout>> {
        self.layout.as_ref().filter(|layout| layout.has_objects())
    }
}

impl From<Arc<Layout>> for LayoutUse {
    /// A layout that something else keeps true: the lease, or a lock that is not given up yet.
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

/// Counts how often this client has changed layouts: had objects made for a file, or replaced them. An answer of an MDT that was on its
/// way meanwhile may be older than such a change, also where nothing is known of the file any more because it was closed. Files share
/// counters; then one is asked for once more without need.
pub(crate) struct Relayouts([AtomicU64; Relayouts::COUNTERS]);

impl Relayouts {
    const COUNTERS: usize = 1024;

    fn counter(&self, fid: Fid) -> &AtomicU64 {
        &self.0[(fid.seq ^ u64::from(fid.oid)) as usize % Relayouts::COUNTERS]
    }

    /// How often the layout of a file was changed, with those of others.
    pub fn count(&self, fid: Fid) -> u64 {
        self.counter(fid).load(Ordering::Acquire)
    }

    /// The layout was changed, and who has the file open here knows it. To be said before the file is closed.
    pub fn note(&self, fid: Fid) {
        self.counter(fid).fetch_add(1, Ordering::AcqRel);
    }
}

impl Default for Relayouts {
    fn default() -> Relayouts {
        Relayouts([const { AtomicU64::new(0) }; Relayouts::COUNTERS])
    }
}

/// The lock on the layout that an open was asked for with, and the one that came; handles 0 stand for none.
#[derive(Clone, Copy, Default)]
pub(crate) struct OpenedLock {
    pub reserved: LockHandle,
    pub came: LockHandle,
}

/// One try to get a layout.
enum Tried {
    Done(LayoutUse),
    /// After this time again.
    Again(Duration),
}

/// What is known of the layouts of open files, and what keeps it true.
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

    /// The layout as it is, with all components: what lies behind one that is not known counts for the size.
    ///
    /// # Errors
    /// `EINTR`; what the MDT answers.
    pub(crate) fn use_layout(&self, file: &FileState) -> FailureResult<LayoutUse> {
        self.use_layout_that(file, |layout| layout.is_complete())
    }

    /// The layout that is known here if it is true as a whole, or `enough` with what stays true of it; otherwise the MDT's.
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

    /// The same as far as it is known here.
    fn known_layout(&self, file: &FileState, enough: &impl Fn(&Layout) -> bool) -> Option<LayoutUse> {
        let (layout, warrant) = {
            let inner = file.lock();
            (inner.layout.clone(), inner.layout_warrant)
        };
        let is_enough = layout.as_ref().is_some_and(|layout| layout.has_objects() && enough(layout));
        match warrant {
            Warrant::Lease(number) if number == self.lease.number() => Some(LayoutUse { layout, lock: None }),
            Warrant::Lock(handle) => {
                let space = self.layout_space(file.fid);
                let bits = space.hold(handle)?;
                let held = LayoutUse { layout, lock: Some((space, handle)) };
                (is_enough || bits.contains(InodeBits::COMPONENTS)).then_some(held)
            }
            _ => None,
        }
    }

    /// The layout that is known here, if it is `ready`; nobody is asked.
    pub(crate) fn layout_in_hand(
        &self,
        file: &FileState,
        ready: impl Fn(&Layout) -> bool,
    ) -> Option<LayoutUse> {
        let known = self.known_layout(file, &ready)?;
        known.layout.as_ref().is_some_and(|layout| ready(layout)).then_some(known)
    }

    /// A layout that has objects for `[start, end)` as far as the file can reach; asks the MDT for them if need be. Several
    /// writers that need them at once ask once.
    ///
    /// # Errors
    /// `ENODATA` if all of it lies behind the last component; `EINTR`; what the MDT answers.
    pub(crate) fn use_layout_for_writing(
        &self,
        file: &FileState,
        start: u64,
        end: u64,
    ) -> FailureResult<LayoutUse> {
        // Behind the end that is known here somebody may have added components.
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

    /// Asks the MDT for the layout, with a range for one that has objects there, and for a lock on it unless this client is
    /// alone.
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
            inner.learn_layout(layout, Warrant::Lease(lease));
            if range.is_some() {
                self.relayouts.note(fid);
            }
            return Ok(Tried::Done(LayoutUse { layout: inner.layout.clone(), lock: None }));
        }
        let space = self.layout_space(fid);
        let reserved = space.reserve();
        let answer = self
            .requests
            .call_system(fid, &MdsRequest::LayoutAccess { fid, range, lock: reserved })
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
                inner.learn_layout(layout, Warrant::Lock(handle));
                let is_known = inner.layout_warrant == Warrant::Lock(handle);
                let layout = inner.layout.clone();
                drop(inner);
                let held = LayoutUse { layout, lock };
                // What is known came under a newer lock, whose layout this reference does not stand for.
                Ok(if is_known { Tried::Done(held) } else { Tried::Again(Duration::from_millis(1)) })
            }
            Adopted::Gone => Ok(Tried::Again(Duration::from_millis(1))),
            Adopted::None => Ok(Tried::Again(ASK_AGAIN)),
        }
    }

    /// This client has asked for another layout of a file without objects: what is known counts no more.
    ///
    /// # Errors
    /// As for [`Layouts::use_layout`].
    pub(crate) fn ask_layout_again(&self, file: &FileState) -> FailureResult<()> {
        file.lock().layout_warrant = Warrant::None;
        self.use_layout(file).map(drop)
    }

    /// A name for a lock that an open may bring, unless this client is alone.
    pub(crate) fn reserve_layout_lock(&self, fid: Fid) -> LockHandle {
        if self.lease.exclusive() { LockHandle(0) } else { self.layout_space(fid).reserve() }
    }

    /// The open has failed.
    pub(crate) fn forget_layout_lock(&self, fid: Fid, reserved: LockHandle) {
        if reserved != LockHandle(0) {
            self.layout_space(fid).forget(reserved);
        }
    }

    /// An open has brought this layout, and perhaps a lock. It was asked for under this lease, and after so many changes of it, if those
    /// of this file were counted.
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
                inner.learn_layout(layout, Warrant::Lease(lease));
            } else if inner.layout.is_none() {
                // It says what was true once: the first operation asks.
                inner.learn_layout(layout, Warrant::None);
            }
            return;
        }
        let space = self.layout_space(file.fid);
        if let Adopted::Held(handle, layout) = space.adopt(reserved, file.fid, came, layout.as_ref()) {
            file.lock().learn_layout(layout, Warrant::Lock(handle));
            space.release(handle);
        }
    }

    /// What is known of a file's objects and of their content is not true any more.
    pub(crate) fn forget_layout(&self, file: &FileState) {
        file.lock().forget_layout();
        file.lock_era.fetch_add(1, Ordering::AcqRel);
        self.memory.shrink();
    }

    /// True if nobody else can give objects to components of a file that have none, nor add components.
    pub(crate) fn holds_components(&self, file: &FileState) -> bool {
        let warrant = file.lock().layout_warrant;
        matches!(warrant, Warrant::Lock(handle) if self.layout_space(file.fid).holds_components(handle))
    }
}

/// Waits before something is tried again; short times only, which are waited out.
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
