//! Locks on the layouts of files at one MDT: under them reads and writes go to the objects that a layout
//! names.
//!
//! A lock comes with an open or with the layout, and every operation that reads or writes holds a reference
//! to it meanwhile ([`crate::layouts`]). It has two parts: that the objects which the layout names stay the
//! file's (`LAYOUT`), and that no objects are added (`COMPONENTS`). When `COMPONENTS` is revoked, `LAYOUT` is
//! kept: the known layout stays true as far as it reaches. When `LAYOUT` is revoked, no new operation begins,
//! the existing references end, and then everything on the old objects is released: held-back data is
//! written, locks on the objects are cancelled and the kernel's pages under them dropped. So locks on
//! objects, and what is cached under them, exist only while there is a lock on the layout that names the
//! objects.
//!
//! # Why there is no deadlock
//!
//! The MDT waits for references while it holds the inode in its table, so an operation with a reference sends
//! the MDT no request that needs the table, and waits only for OSTs. Requests of the kernel that hold pages
//! are recorded before they wait for a layout ([`super::folios`]), so a thread that drops pages leaves them
//! out.

use crate::locks::{Holder, Locks, MESSAGE_THREADS};
use crate::tasks::Tasks;
use nacre_env::clock::Instant;
use nacre_env::sync::{Condvar, Mutex};
use nacre_layout::Layout;
use nacre_lock::client::{ClientConfig, Effect, LockClient};
use nacre_lock::{InodeBits, LockHandle, Mode, Need, Policy, ResourceId, Wanted};
use nacre_rpc::MdsEndpoint;
use nacre_types::{Cred, Fid, Status, StatusResult};
use nacre_wire::lock::{LockMessage, LockRequest};
use nacre_wire::mds::{MdsReply, MdsRequest};
use std::collections::HashMap;
use std::sync::{Arc, Weak};
use std::time::Duration;

/// Bits of a lock that comes with a reply.
const WHOLE: InodeBits = InodeBits::LAYOUT.union(InodeBits::COMPONENTS);
/// Handles of these locks come after this one, those of locks on inodes before it: no client ever takes that
/// many.
const FIRST: LockHandle = LockHandle(1 << 62);
/// Time between two checks for an interrupt during a wait.
const POLL: Duration = Duration::from_millis(10);

/// True if a lock of an MDT is one on a layout.
pub(crate) fn is_of_layout(handle: LockHandle) -> bool {
    handle > FIRST
}

struct State {
    engine: LockClient,
    /// The newest layout known under each lock.
    layouts: HashMap<LockHandle, Arc<Layout>>,
    /// The file that each lock is on.
    files: HashMap<LockHandle, Fid>,
}

/// State of a lock named in a reply.
#[derive(Debug)]
pub(crate) enum Adopted {
    /// The lock is held, and the caller has a reference. With the newest layout known under it: other replies
    /// may have overtaken this one.
    Held(LockHandle, Option<Arc<Layout>>),
    /// The lock was revoked while the reply was on its way: the request has to be repeated.
    Gone,
    /// The MDT cannot grant a lock at the moment.
    None,
}

/// See the [module documentation](self).
pub(crate) struct LayoutSpace {
    mdt_index: u16,
    locks: Weak<Locks>,
    state: Mutex<State>,
    /// Signalled when a lock is cancelled or lost.
    gone: Condvar,
    /// Threads for messages without reply.
    messages: Tasks,
}

impl LayoutSpace {
    pub fn new(mdt_index: u16, locks: Weak<Locks>) -> LayoutSpace {
        let config = ClientConfig { downgrade: false, ..ClientConfig::default() };
        let mut engine = LockClient::with_handles_after(config, FIRST);
        engine.on_connected(Instant::now(), &mut Vec::new());
        let state = State { engine, layouts: HashMap::new(), files: HashMap::new() };
        let messages = Tasks::new(MESSAGE_THREADS);
        LayoutSpace { mdt_index, locks, state: Mutex::new(state), gone: Condvar::new(), messages }
    }

    /// Reserves a handle for a lock, for a request. [`LayoutSpace::adopt`] or [`LayoutSpace::forget`] ends
    /// the reservation.
    pub fn reserve(&self) -> LockHandle {
        self.state.lock().engine.reserve()
    }

    /// Ends a reservation after the request has failed.
    pub fn forget(&self, reserved: LockHandle) {
        self.state.lock().engine.forget_reserved(reserved);
    }

    /// Handles the reply to a request, with this layout and under this lock.
    pub fn adopt(
        self: &Arc<Self>,
        reserved: LockHandle,
        fid: Fid,
        granted: LockHandle,
        layout: Option<&Arc<Layout>>,
    ) -> Adopted {
        let held = self.step(|state, effects| {
            if granted == reserved {
                let resource = ResourceId::of_fid(&fid);
                let need = Need::bits(Mode::Pr, WHOLE);
                if !state.engine.adopt(reserved, &resource, &need, effects) {
                    return Err(Adopted::Gone);
                }
                state.files.insert(granted, fid);
                return Ok(granted);
            }
            state.engine.forget_reserved(reserved);
            if granted == LockHandle(0) {
                return Err(Adopted::None);
            }
            if state.engine.hold(granted).is_some() {
                return Ok(granted);
            }
            // The lock is being cancelled, or its reply has yet to arrive; otherwise that reply was lost, and
            // this client does not have the lock.
            if !state.engine.knows(granted) && !state.engine.is_reserved(granted) {
                effects.push(Effect::SendCancel(granted));
            }
            Err(Adopted::Gone)
        });
        match held {
            Ok(handle) => {
                let newest = self.note_layout(handle, layout);
                if let Some(locks) = self.locks.upgrade() {
                    locks.clock.wake();
                }
                Adopted::Held(handle, newest)
            }
            Err(none) => none,
        }
    }

    /// Records a layout that came under a lock to which the caller has a reference, and returns the newest
    /// one: replies may overtake each other, but objects are not removed while the lock is held.
    fn note_layout(&self, handle: LockHandle, layout: Option<&Arc<Layout>>) -> Option<Arc<Layout>> {
        let mut state = self.state.lock();
        let age = |layout: &Arc<Layout>| (layout.generation, layout.objects().count());
        let with_objects = layout.filter(|layout| layout.has_objects());
        match (state.layouts.get(&handle), with_objects) {
            (Some(known), None) => return Some(known.clone()),
            (Some(known), Some(layout)) if age(known) > age(layout) => return Some(known.clone()),
            (_, Some(layout)) => drop(state.layouts.insert(handle, layout.clone())),
            (None, None) => {}
        }
        layout.cloned()
    }

    /// Takes a reference to a lock, if it may be used, and returns what it covers.
    pub fn hold(&self, handle: LockHandle) -> Option<InodeBits> {
        match self.state.lock().engine.hold(handle)?.policy {
            Policy::Bits(bits) => Some(bits),
            Policy::Extent(_) => None,
        }
    }

    /// Releases a reference.
    pub fn release(self: &Arc<Self>, handle: LockHandle) {
        self.step(|state, effects| state.engine.release(Instant::now(), handle, effects));
    }

    /// True if the lock may be used, and guarantees that no objects are added.
    pub fn holds_components(&self, handle: LockHandle) -> bool {
        let state = self.state.lock();
        let bits = state.engine.held(handle).map(|need| need.policy);
        let has = matches!(bits, Some(Policy::Bits(bits)) if bits.contains(InodeBits::COMPONENTS));
        has && state.engine.is_usable(handle)
    }

    /// Handles a message of the MDT. Returns without waiting.
    pub fn on_message(self: &Arc<Self>, message: LockMessage) {
        if let LockMessage::Blocking { handle, wanted } = message {
            self.step(|state, effects| state.engine.on_callback(handle, &wanted, effects));
        }
    }

    /// Cancels all locks on the layout of a file, and waits until none is left.
    ///
    /// # Errors
    /// `EINTR` if the caller was interrupted.
    pub fn give_up(self: &Arc<Self>, fid: Fid) -> StatusResult<()> {
        let wanted = Wanted::by(&Need::bits(Mode::Ex, WHOLE));
        let of_file = |state: &State| -> Vec<LockHandle> {
            state.files.iter().filter(|(_, file)| **file == fid).map(|(handle, _)| *handle).collect()
        };
        loop {
            self.step(|state, effects| {
                let handles = of_file(state);
                handles.iter().for_each(|handle| state.engine.give_up_for(*handle, &wanted, effects));
            });
            let mut state = self.state.lock();
            if of_file(&state).is_empty() {
                return Ok(());
            }
            if nacre_env::interrupted() {
                return Err(Status::EINTR);
            }
            nacre_env::blocking(|| self.gone.wait_for(&mut state, POLL));
        }
    }

    /// Stops the threads.
    pub fn stop(&self) {
        self.messages.stop();
    }

    /// Drives the engine's time-outs.
    pub fn on_tick(self: &Arc<Self>) {
        self.step(|state, effects| state.engine.on_tick(Instant::now(), effects));
    }

    /// Returns the number of locks in any state.
    pub fn lock_count(&self) -> usize {
        self.state.lock().engine.locks()
    }

    /// Replays all locks to an MDT that has restarted, on this thread. Those that it rejects are lost.
    ///
    /// # Errors
    /// The error of the MDT.
    pub fn replay(self: &Arc<Self>, endpoint: &dyn MdsEndpoint) -> StatusResult<()> {
        let mut effects = Vec::new();
        self.state.lock().engine.on_restarted(Instant::now(), &mut effects);
        for effect in effects {
            let Effect::SendReplay { handle, resource, need } = effect else { continue };
            let request = MdsRequest::Locks { request: LockRequest::Replay { handle, resource, need } };
            let MdsReply::Locked(outcome) = endpoint.call(&Cred::system(), &request)?.reply else {
                return Err(Status::EPROTO);
            };
            let mut more = Vec::new();
            self.state.lock().engine.on_replay_outcome(Instant::now(), handle, &outcome, &mut more);
            if more.contains(&Effect::Reconnect) {
                log::warn!("MDT{:04x} does not take back locks on layouts", self.mdt_index);
                self.lose();
                return Ok(());
            }
            self.perform(more);
        }
        Ok(())
    }

    /// Handles the loss of all locks: the next read or write requests a layout again.
    pub fn lose(self: &Arc<Self>) {
        let mut effects = Vec::new();
        {
            let mut state = self.state.lock();
            state.engine.on_evicted(&mut effects);
            state.layouts.clear();
            state.files.clear();
            state.engine.on_connected(Instant::now(), &mut Vec::new());
            self.gone.notify_all();
        }
        let Some(holder) = self.locks.upgrade().and_then(|locks| locks.holder()) else { return };
        for effect in effects {
            if let Effect::Discard { resource, .. } = effect {
                holder.forget_layout(resource.fid());
            }
        }
    }

    fn step<R>(self: &Arc<Self>, event: impl FnOnce(&mut State, &mut Vec<Effect>) -> R) -> R {
        let mut effects = Vec::new();
        let result = event(&mut self.state.lock(), &mut effects);
        self.perform(effects);
        result
    }

    /// Performs the engine's effects on threads that may wait.
    fn perform(self: &Arc<Self>, effects: Vec<Effect>) {
        let Some(locks) = self.locks.upgrade() else { return };
        for effect in effects {
            let (space, is_flush) = (self.clone(), matches!(effect, Effect::Flush { .. }));
            let work = move || {
                if let Some(holder) = space.locks.upgrade().and_then(|locks| locks.holder()) {
                    space.work_off(&*holder, effect);
                }
            };
            let pool = if is_flush { &locks.layout_flushes } else { &self.messages };
            if !pool.submit(work) {
                log::debug!("a lock on a layout is not released: the client ends");
            }
        }
    }

    fn work_off(self: &Arc<Self>, holder: &dyn Holder, effect: Effect) {
        match effect {
            Effect::Flush { handle, resource, keep, .. } => {
                if keep.is_none() {
                    let layout = self.state.lock().layouts.remove(&handle);
                    holder.leave_objects(resource.fid(), layout.as_deref());
                } else {
                    // Another client may extend the file where no lock on an object excludes it.
                    holder.locks_changed(resource.fid().inode_number());
                }
                let mut effects = Vec::new();
                {
                    let mut state = self.state.lock();
                    state.engine.on_flushed(Instant::now(), handle, &mut effects);
                    if !state.engine.knows(handle) {
                        state.files.remove(&handle);
                        self.gone.notify_all();
                    }
                }
                for effect in effects {
                    self.work_off(holder, effect);
                }
            }
            Effect::SendCancel(handle) => self.send(holder, LockRequest::Cancel { handles: vec![handle] }),
            Effect::SendConvert { handle, mode, policy } => {
                self.send(holder, LockRequest::Convert { handle, mode, policy });
            }
            Effect::SendBusy(handle) => self.send(holder, LockRequest::Busy { handle }),
            // Locks are never enqueued here.
            _ => {}
        }
    }

    fn send(&self, holder: &dyn Holder, request: LockRequest) {
        let Some(mdt) = holder.mdt(self.mdt_index) else { return };
        // The next callback for the lock leads to another cancel.
        if let Err(status) = mdt.call(&Cred::system(), &MdsRequest::Locks { request }) {
            log::debug!("MDT{:04x}: giving up a lock on a layout: {status}", self.mdt_index);
        }
    }
}
