//! Running operations, their waits, and the events of the last moments, for `nacre debug`.
//!
//! A thread that serves a request calls [`begin`]; requests that the same thread serves on behalf of that one
//! (a call to a server in the same process) nest. Around a wait, [`waiting`] names the cause; a wait in
//! [`crate::blocking`] without one counts by its place in the source. So a request knows at each moment what it
//! waits for, and at its end where its time went. Requests that took long are kept in a log, the last events in a
//! [ring](events).
//!
//! The record of a thread is behind a mutex that only readers of the state contend for. A request costs two
//! readings of the clock and an entry of the ring. In a simulation nothing is recorded.

mod cause;
pub mod events;
mod slow;

pub use cause::{Cause, STAGES, Stage};
pub use slow::{SLOW_MAX, SlowOperation, clear_slow, set_slow_after, slow, slow_after};

use std::marker::PhantomData;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use nacre_types::{ClientUuid, Fid, Nid, Status, TargetId};

use crate::clock::Instant;
use crate::sim;
use crate::sync::Mutex;
use events::What;

/// Operations of one thread that nest at most; deeper ones are counted only.
const DEPTH_MAX: usize = 4;
/// Pause after which a wait of an operation for the same is a new wait: loops wait in intervals, to check for
/// interrupts, and a busy machine does not run the thread at once.
const PAUSE: Duration = Duration::from_millis(50);

/// Number of an operation in its process: never 0, and of one thread's operation only.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct OperationId(pub u64);

impl OperationId {
    /// No operation.
    pub const NONE: OperationId = OperationId(0);
}

/// Origin of an operation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Origin {
    /// A system call of a program of this host.
    Program {
        /// Process id.
        pid: u32,
        /// User id.
        uid: u32,
    },
    /// A request of a client.
    Client {
        /// Identity of the client.
        client: ClientUuid,
        /// Address of the client.
        nid: Nid,
        /// Id of the request, 0 for a call inside the process.
        xid: u64,
    },
    /// Work of the process itself.
    Own,
}

/// Description of an operation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Operation {
    /// Target that serves it; `None` for a mount.
    pub target: Option<TargetId>,
    /// Name of the operation.
    pub name: &'static str,
    /// Inode or object that it is about.
    pub fid: Option<Fid>,
    /// Lock that it is about, as its client named it; 0 for none.
    pub lock: u64,
    /// Origin of the request.
    pub origin: Origin,
}

/// Time spent in each stage, in nanoseconds.
pub type Spent = [u64; STAGES];

#[derive(Clone, Copy, Debug)]
struct Frame {
    id: OperationId,
    operation: Operation,
    since: Instant,
    spent: Spent,
    status: Status,
    /// Wait of the thread that the operation is part of.
    outer: Option<Wait>,
}

#[derive(Clone, Copy, Debug)]
struct Wait {
    cause: Cause,
    since: Instant,
    /// Time up to which the wait is accounted.
    counted: Instant,
}

#[derive(Default)]
struct State {
    frames: [Option<Frame>; DEPTH_MAX],
    depth: usize,
    count: u32,
    wait: Option<Wait>,
    /// The last wait, and its end.
    last: Option<(Wait, Instant)>,
    /// Operation of another thread that this one works for.
    serves: OperationId,
}

impl State {
    fn account(&mut self, wait: &Wait, now: Instant) {
        let ns = u64::try_from(now.saturating_duration_since(wait.counted).as_nanos()).unwrap_or(u64::MAX);
        let stage = wait.cause.stage() as usize;
        for frame in self.frames.iter_mut().flatten() {
            frame.spent[stage] = frame.spent[stage].saturating_add(ns);
        }
    }

    /// Returns the operation that the thread works for.
    fn current(&self) -> OperationId {
        match self.depth.min(DEPTH_MAX).checked_sub(1).and_then(|top| self.frames[top].as_ref()) {
            Some(frame) => frame.id,
            None => self.serves,
        }
    }
}

struct Thread {
    number: u32,
    tid: i32,
    name: String,
    state: Mutex<State>,
}

static THREADS: Mutex<Vec<Arc<Thread>>> = Mutex::new(Vec::new());

/// Registration of the calling thread, until it ends.
struct Registered(Arc<Thread>);

impl Registered {
    fn new() -> Registered {
        static NUMBERS: AtomicU32 = AtomicU32::new(1);
        // SAFETY: gettid takes no arguments and accesses no memory of the program.
        let tid = unsafe { libc::gettid() };
        let thread = Arc::new(Thread {
            number: NUMBERS.fetch_add(1, Ordering::Relaxed),
            tid,
            name: crate::thread::current().name().unwrap_or_default().to_owned(),
            state: Mutex::default(),
        });
        THREADS.lock().push(thread.clone());
        Registered(thread)
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        THREADS.lock().retain(|thread| !Arc::ptr_eq(thread, &self.0));
    }
}

thread_local! {
    static OWN: Registered = Registered::new();
}

/// Runs `work` with the state of this thread; `None` in a simulation, or if the thread is shutting down.
#[inline]
fn with_own<R>(work: impl FnOnce(&Thread, &mut State) -> R) -> Option<R> {
    if sim::is_any() {
        return None;
    }
    OWN.try_with(|own| work(&own.0, &mut own.0.state.lock())).ok()
}

/// A running operation of this thread; it ends when dropped.
#[must_use = "the operation ends when the guard is dropped"]
pub struct Running {
    id: OperationId,
    /// Bound to its thread.
    thread: PhantomData<*const ()>,
}

/// Starts an operation of this thread.
pub fn begin(operation: Operation) -> Running {
    let id = with_own(|thread, state| {
        state.count = state.count.wrapping_add(1).max(1);
        let id = OperationId(u64::from(thread.number) << 32 | u64::from(state.count));
        let (now, outer) = (Instant::now(), state.wait.take());
        state.last = None;
        if let Some(wait) = &outer {
            state.account(wait, now);
        }
        if let Some(place) = state.frames.get_mut(state.depth) {
            *place = Some(Frame { id, operation, since: now, spent: [0; STAGES], status: Status::OK, outer });
        }
        state.depth += 1;
        id
    });
    Running { id: id.unwrap_or_default(), thread: PhantomData }
}

impl Running {
    /// Sets what is known only after the request was read.
    pub fn describe(&self, name: &'static str, fid: Option<Fid>) {
        self.change(|frame| {
            frame.operation.name = name;
            frame.operation.fid = fid.or(frame.operation.fid);
        });
    }

    /// Records the result.
    pub fn ended<T>(&self, result: &nacre_types::StatusResult<T>) {
        if let Err(status) = result {
            self.change(|frame| frame.status = *status);
        }
    }

    fn change(&self, change: impl FnOnce(&mut Frame)) {
        with_own(|_, state| {
            if let Some(frame) = state.frames.iter_mut().flatten().find(|frame| frame.id == self.id) {
                change(frame);
            }
        });
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if self.id == OperationId::NONE {
            return;
        }
        let now = Instant::now();
        let ended = with_own(|thread, state| {
            state.depth = state.depth.saturating_sub(1);
            state.last = None;
            let frame = state.frames.get_mut(state.depth)?.take()?;
            state.wait = frame.outer.map(|wait| Wait { counted: now, ..wait });
            Some((thread.number, frame))
        });
        let Some(Some((number, frame))) = ended else { return };
        let took = now.saturating_duration_since(frame.since);
        events::note_at(now, number, What::Ended { operation: frame.operation, status: frame.status, took });
        slow::consider(&frame.operation, frame.status, took, &frame.spent);
    }
}

/// Runs `work`, in which this thread waits for `cause`.
#[inline]
pub fn waiting<R>(cause: Cause, work: impl FnOnce() -> R) -> R {
    let _waiting = Waiting::enter(cause);
    work()
}

/// Runs `work` as [`crate::blocking`] does, and names the cause of the wait.
#[inline]
#[track_caller]
pub fn blocking_for<R>(cause: Cause, work: impl FnOnce() -> R) -> R {
    crate::blocking(|| waiting(cause, work))
}

/// A wait of this thread, until it is dropped.
pub(crate) struct Waiting {
    outer: Option<Wait>,
    is_recorded: bool,
}

impl Waiting {
    pub(crate) fn enter(cause: Cause) -> Waiting {
        let entered = with_own(|_, state| {
            let (now, outer) = (Instant::now(), state.wait);
            let is_named = outer.is_some_and(|outer| !matches!(outer.cause, Cause::Place(_)));
            if is_named && matches!(cause, Cause::Place(_)) {
                return None;
            }
            if let Some(outer) = &outer {
                state.account(outer, now);
            }
            let since = match &state.last {
                Some((last, ended))
                    if last.cause == cause && now.saturating_duration_since(*ended) < PAUSE =>
                {
                    last.since
                }
                _ => now,
            };
            state.wait = Some(Wait { cause, since, counted: now });
            Some(outer)
        });
        match entered.flatten() {
            Some(outer) => Waiting { outer, is_recorded: true },
            None => Waiting { outer: None, is_recorded: false },
        }
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        if !self.is_recorded {
            return;
        }
        let now = Instant::now();
        let ended = with_own(|thread, state| {
            let wait = state.wait.take();
            state.wait = self.outer.map(|outer| Wait { counted: now, ..outer });
            let wait = wait?;
            state.account(&wait, now);
            state.last = Some((wait, now));
            Some((thread.number, wait))
        });
        if let Some(Some((number, wait))) = ended {
            let took = now.saturating_duration_since(wait.since);
            // Shorter ones would displace everything else.
            if took >= events::WAIT_MIN {
                events::note_at(now, number, What::Waited { cause: wait.cause, took });
            }
        }
    }
}

/// Returns the operation that this thread works for.
pub fn current() -> OperationId {
    with_own(|_, state| state.current()).unwrap_or_default()
}

/// Marks this thread as working for an operation of another thread, until the guard is dropped.
pub fn serve(operation: OperationId) -> Serving {
    let before = with_own(|_, state| std::mem::replace(&mut state.serves, operation));
    Serving { before: before.unwrap_or_default() }
}

/// See [`serve`].
#[must_use = "the thread works for the operation until the guard is dropped"]
pub struct Serving {
    before: OperationId,
}

impl Drop for Serving {
    fn drop(&mut self) {
        with_own(|_, state| state.serves = self.before);
    }
}

/// An operation at the moment of the question.
#[derive(Clone, Debug)]
pub struct RunningOperation {
    /// Number of the operation.
    pub id: OperationId,
    /// Its description.
    pub operation: Operation,
    /// Time since its start.
    pub age: Duration,
    /// Time spent in each stage.
    pub spent: Spent,
}

/// A thread at the moment of the question.
#[derive(Clone, Debug)]
pub struct ThreadState {
    /// Name of the thread.
    pub name: String,
    /// The kernel's id of the thread.
    pub tid: i32,
    /// Its operations, the outermost first.
    pub operations: Vec<RunningOperation>,
    /// Its wait, and for how long.
    pub wait: Option<(Cause, Duration)>,
    /// Operation of another thread that it works for.
    pub serves: OperationId,
}

/// Returns the state of all threads that have served a request or waited.
pub fn threads() -> Vec<ThreadState> {
    let threads = THREADS.lock().clone();
    let now = Instant::now();
    threads.iter().map(|thread| state_of(thread, now)).collect()
}

fn state_of(thread: &Thread, now: Instant) -> ThreadState {
    let state = thread.state.lock();
    let mut operations: Vec<RunningOperation> = state
        .frames
        .iter()
        .flatten()
        .map(|frame| RunningOperation {
            id: frame.id,
            operation: frame.operation,
            age: now.saturating_duration_since(frame.since),
            spent: frame.spent,
        })
        .collect();
    // The wait under way is not accounted yet.
    if let Some(wait) = &state.wait {
        let ns = u64::try_from(now.saturating_duration_since(wait.counted).as_nanos()).unwrap_or(u64::MAX);
        let stage = wait.cause.stage() as usize;
        operations.iter_mut().for_each(|one| one.spent[stage] = one.spent[stage].saturating_add(ns));
    }
    ThreadState {
        name: thread.name.clone(),
        tid: thread.tid,
        operations,
        wait: state.wait.map(|wait| (wait.cause, now.saturating_duration_since(wait.since))),
        serves: state.serves,
    }
}

#[cfg(test)]
mod tests;
