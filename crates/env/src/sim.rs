//! Simulation: one running thread at a time, chosen by a seed, and a clock that advances when all of them
//! wait.
//!
//! [`run`] makes the calling thread the first of a simulation; threads that it starts through
//! [`crate::thread`] belong to it. A thread passes the baton to another one where it waits ([`crate::sync`],
//! sleeps, joins), and at random where it takes a lock or notifies. If all wait, the clock advances to the
//! first deadline. The same seed gives the same steps, as long as the code under test makes no decision on
//! input outside the simulation: the order of a hash map with random keys, addresses, the kernel's clock.
//! Files are the kernel's; a read or a sync is not a step.
//!
//! Threads outside of simulations pay one load of a flag for each call of the seams.

use std::cell::RefCell;
use std::fmt;
use std::panic::Location;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use parking_lot::{Condvar, Mutex, MutexGuard};

mod process;

pub use process::{ProcessNumber, act_as, add_process, end_process, pause_process, shift_wall};
pub(crate) use process::{identity, is_ended};

use process::Process;

use crate::cpu::Pinned;

/// Simulated duration of each read of the clock, so that a loop that polls it ends.
const LOOK: Duration = Duration::from_nanos(100);
/// Wall clock at the start of simulations, in seconds since 1970.
const BEGIN: Duration = Duration::from_secs(1_800_000_000);
/// Inverse probability of a switch to another thread where the running one need not wait.
const PREEMPT: u32 = 4;
/// Number of steps in a trace; each takes 32 bytes.
const STEPS_MAX: usize = 1 << 20;

/// Number of simulations that run in this process.
static SIMULATIONS: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    static HERE: RefCell<Option<Here>> = const { RefCell::new(None) };
}

/// Settings of a simulation.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Seed of all choices of the scheduler.
    pub seed: u64,
    /// Simulated time after which the simulation counts as hung.
    pub limit: Duration,
}

/// A switch to another thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step {
    /// Number of the thread that continues, in the order of their starts; 0 is the first.
    pub thread: u32,
    /// Code location where it waited.
    pub at: &'static Location<'static>,
    /// Simulated time since the start.
    pub time: Duration,
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} thread {} at {}", self.time, self.thread, self.at)
    }
}

/// Result of a simulation.
#[derive(Debug)]
pub struct Outcome<R> {
    /// Return value of the first thread.
    pub result: R,
    /// Steps of the simulation, up to a million.
    pub steps: Vec<Step>,
    /// Simulated duration.
    pub time: Duration,
    /// Names of threads that had not ended when the first one did. They never run again.
    pub left: Vec<String>,
}

/// Position of a thread in a simulation.
#[derive(Clone)]
struct Here {
    simulation: Arc<Simulation>,
    thread: usize,
}

struct Simulation {
    seed: u64,
    limit: Duration,
    begin: Instant,
    state: Mutex<State>,
}

struct State {
    random: fastrand::Rng,
    time: Duration,
    running: usize,
    threads: Vec<Thread>,
    processes: Vec<Process>,
    /// Memory for the list of threads that can run.
    ready: Vec<usize>,
    /// Time before which no deadline of a wait passes.
    no_deadline_before: Duration,
    scopes: u32,
    steps: Vec<Step>,
    failure: Option<String>,
}

struct Thread {
    name: String,
    scope: Option<ScopeId>,
    process: ProcessNumber,
    status: Status,
    /// True if the wait ended by its deadline.
    is_late: bool,
    /// True if it was unparked since it last parked.
    has_token: bool,
    at: &'static Location<'static>,
    baton: Arc<Condvar>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Status {
    /// Runs, or is ready to run.
    Ready,
    /// Tried to take a resource that another thread holds, and retries after another thread has run.
    Refused {
        until: Option<Duration>,
    },
    /// Waits for a notification.
    Waiting {
        key: Key,
        until: Option<Duration>,
    },
    Ended,
}

/// Event that a thread waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Key {
    /// A notification of the condition at this address.
    Condition(usize),
    /// The end of this thread.
    End(usize),
    /// Unparking of this thread, which has parked.
    Token(usize),
    /// The ends of all threads of this scope.
    Scope(ScopeId),
    /// No event, only the deadline.
    Time,
}

/// A scope of threads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ScopeId(u32);

/// True if a simulation runs anywhere in this process.
#[inline]
pub(crate) fn is_any() -> bool {
    SIMULATIONS.load(Ordering::Relaxed) != 0
}

fn here() -> Option<Here> {
    HERE.try_with(|here| here.borrow().clone()).ok().flatten()
}

/// True if this thread belongs to a simulation.
#[inline]
pub fn is_here() -> bool {
    is_any() && here().is_some()
}

/// Returns the seed of this thread's simulation and its number there, for other sources of randomness; `None`
/// outside of simulations.
pub fn number_here() -> Option<(u64, u32)> {
    if !is_any() {
        return None;
    }
    here().map(|here| (here.simulation.seed, here.thread as u32))
}

/// Describes the threads of this simulation that have not ended: where each waits, and for what.
pub fn describe() -> String {
    here().map_or_else(String::new, |here| here.simulation.state.lock().describe())
}

/// Runs `work` as the first thread of a simulation.
///
/// # Panics
///
/// If all threads wait for each other, the time limit is exceeded, or `work` panics.
#[track_caller]
pub fn run<R>(options: Options, work: impl FnOnce() -> R) -> Outcome<R> {
    let simulation = Arc::new(Simulation::new(options));
    let result = {
        let _first = First::new(simulation.clone(), Location::caller());
        work()
    };
    let mut state = simulation.state.lock();
    let left = state.threads.iter().skip(1).filter(|thread| thread.status != Status::Ended);
    Outcome {
        result,
        left: left.map(|thread| thread.name.clone()).collect(),
        time: state.time,
        steps: std::mem::take(&mut state.steps),
    }
}

/// The role of a simulation's first thread, until this is dropped.
#[must_use = "the simulation ends when this is dropped"]
pub struct First {
    enter: Enter,
    /// One thread runs at a time: waking the next one on another CPU takes longer than most of them run.
    _pinned: Option<Pinned>,
}

impl First {
    #[track_caller]
    fn new(simulation: Arc<Simulation>, at: &'static Location<'static>) -> First {
        assert!(here().is_none(), "a thread is in one simulation at a time");
        let thread = simulation.add(String::from("first"), None, at);
        let pinned = Pinned::new();
        First { enter: Enter::new(Here { simulation, thread }), _pinned: pinned }
    }
}

impl fmt::Debug for First {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.enter)
    }
}

/// Makes the calling thread the first of a simulation until the result is dropped; `None` if it is in one
/// already.
#[track_caller]
pub fn enter(options: Options) -> Option<First> {
    here().is_none().then(|| First::new(Arc::new(Simulation::new(options)), Location::caller()))
}

/// Makes the thread a member of a simulation until this is dropped.
#[derive(Debug)]
struct Enter;

impl Enter {
    fn new(here: Here) -> Enter {
        SIMULATIONS.fetch_add(1, Ordering::Relaxed);
        HERE.set(Some(here));
        Enter
    }
}

impl Drop for Enter {
    fn drop(&mut self) {
        debug_assert!(here().is_some(), "a thread leaves a simulation by itself");
        HERE.set(None);
        SIMULATIONS.fetch_sub(1, Ordering::Relaxed);
    }
}

pub(crate) fn now() -> Option<Instant> {
    here().map(|here| here.simulation.begin + here.simulation.look())
}

pub(crate) fn wall() -> Option<SystemTime> {
    here().map(|here| {
        let time = UNIX_EPOCH + BEGIN + here.simulation.look();
        let shift_s = here.wall_shift_s();
        let shift = Duration::from_secs(shift_s.unsigned_abs());
        if shift_s < 0 { time - shift } else { time + shift }
    })
}

/// Retries `attempt` until it succeeds and returns its result; `None` outside of a simulation.
#[track_caller]
pub(crate) fn take<G>(attempt: impl FnMut() -> Option<G>) -> Option<G> {
    let at = Location::caller();
    here().and_then(|here| here.take(attempt, None, at))
}

/// Retries `attempt` for `time`; `Some(None)` if it has not succeeded by then.
#[track_caller]
pub(crate) fn take_within<G>(attempt: impl FnMut() -> Option<G>, time: Duration) -> Option<Option<G>> {
    let at = Location::caller();
    here().map(|here| {
        let until = here.simulation.state.lock().time.saturating_add(time);
        here.take(attempt, Some(until), at)
    })
}

/// Waits for a notification of the condition at `address`. Returns whether `deadline` passed first.
pub(crate) fn wait(address: usize, deadline: Option<Instant>, at: &'static Location<'static>) -> bool {
    here().is_some_and(|here| here.wait(Key::Condition(address), deadline, at))
}

#[track_caller]
pub(crate) fn sleep_until(deadline: Option<Instant>) {
    if let Some(here) = here() {
        here.wait(Key::Time, deadline, Location::caller());
    }
}

/// Wakes one thread that waits for the condition at `address`, or all.
#[track_caller]
pub(crate) fn notify(address: usize, all: bool) {
    if let Some(here) = here() {
        here.simulation.state.lock().wake(Key::Condition(address), all);
        here.maybe_give_way(Location::caller());
    }
}

/// Lets another thread run; false outside of a simulation.
#[track_caller]
pub(crate) fn give_way() -> bool {
    let at = Location::caller();
    here().is_some_and(|here| {
        here.hand_on(Status::Ready, true, at);
        true
    })
}

/// Returns this thread; `None` outside of a simulation.
pub(crate) fn current() -> Option<Child> {
    here().map(Child)
}

/// Waits until this thread is unparked, or for `time`; false outside of a simulation.
#[track_caller]
pub(crate) fn park(time: Option<Duration>) -> bool {
    let Some(here) = here() else { return false };
    let (has_token, now) = {
        let mut state = here.simulation.state.lock();
        let now = state.time;
        (std::mem::take(&mut state.threads[here.thread].has_token), now)
    };
    if !has_token {
        let until = time.map(|time| now.saturating_add(time));
        here.hand_on(Status::Waiting { key: Key::Token(here.thread), until }, true, Location::caller());
        here.simulation.state.lock().threads[here.thread].has_token = false;
    }
    true
}

/// Registers a thread that this one is about to start; `None` outside of a simulation.
#[track_caller]
pub(crate) fn child(name: &str, scope: Option<ScopeId>) -> Option<Child> {
    let here = here()?;
    let thread = here.simulation.add(name.to_owned(), scope, Location::caller());
    Some(Child(Here { simulation: here.simulation, thread }))
}

/// Creates a scope; `None` outside of a simulation.
pub(crate) fn scope() -> Option<ScopeId> {
    here().map(|here| {
        let mut state = here.simulation.state.lock();
        state.scopes += 1;
        ScopeId(state.scopes)
    })
}

/// Waits for the ends of all threads of `scope`.
#[track_caller]
pub(crate) fn wait_for_scope(scope: ScopeId) {
    let Some(here) = here() else { return };
    while here.simulation.state.lock().is_used(scope) {
        here.wait(Key::Scope(scope), None, Location::caller());
    }
}

/// A thread of a simulation, as its parent knows it.
#[derive(Clone)]
pub(crate) struct Child(Here);

impl Child {
    /// Runs `work` as this thread.
    pub(crate) fn run<T>(self, work: impl FnOnce() -> T) -> T {
        struct End(Option<Enter>, Here);
        impl Drop for End {
            fn drop(&mut self) {
                drop(self.0.take());
                self.1.simulation.end(self.1.thread);
            }
        }
        self.0.simulation.wait_for_baton(self.0.thread);
        let _end = End(Some(Enter::new(self.0.clone())), self.0);
        work()
    }

    /// Removes a thread that the kernel failed to start.
    pub(crate) fn is_not_started(&self) {
        self.0.simulation.state.lock().threads[self.0.thread].status = Status::Ended;
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.0.simulation.state.lock().threads[self.0.thread].status == Status::Ended
    }

    /// Wakes the thread if it has parked, or makes its next park return at once.
    #[track_caller]
    pub(crate) fn unpark(&self) {
        {
            let mut state = self.0.simulation.state.lock();
            state.threads[self.0.thread].has_token = true;
            state.wake(Key::Token(self.0.thread), true);
        }
        if let Some(here) = here() {
            here.maybe_give_way(Location::caller());
        }
    }

    /// Waits for the thread's end.
    #[track_caller]
    pub(crate) fn wait(&self) {
        while !self.has_ended() {
            match here() {
                Some(here) => here.wait(Key::End(self.0.thread), None, Location::caller()),
                // Joined from outside, after the simulation: the thread never runs again.
                None => return,
            };
        }
    }
}

impl fmt::Debug for Child {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "simulated thread {}", self.0.thread)
    }
}

impl Here {
    fn take<G>(
        &self,
        mut attempt: impl FnMut() -> Option<G>,
        until: Option<Duration>,
        at: &'static Location<'static>,
    ) -> Option<G> {
        self.maybe_give_way(at);
        // Only the first refusal shows that this thread has made progress since others were refused.
        let mut has_gone_on = true;
        loop {
            if let Some(taken) = attempt() {
                return Some(taken);
            }
            if self.hand_on(Status::Refused { until }, has_gone_on, at) {
                return attempt();
            }
            has_gone_on = false;
        }
    }

    fn wait(&self, key: Key, deadline: Option<Instant>, at: &'static Location<'static>) -> bool {
        let until = deadline.map(|deadline| deadline.saturating_duration_since(self.simulation.begin));
        self.hand_on(Status::Waiting { key, until }, true, at)
    }

    fn maybe_give_way(&self, at: &'static Location<'static>) {
        let is_preempted = self.simulation.state.lock().random.u32(..PREEMPT) == 0;
        if is_preempted {
            self.hand_on(Status::Ready, true, at);
        }
    }

    /// Passes the baton, and waits until it returns. Returns whether the wait ended by its deadline.
    fn hand_on(&self, status: Status, has_gone_on: bool, at: &'static Location<'static>) -> bool {
        let mut state = self.simulation.state.lock();
        assert_eq!(state.running, self.thread, "the running thread has the baton");
        if has_gone_on {
            state.retry_refused();
        }
        if let Some(until) = status.until() {
            state.no_deadline_before = state.no_deadline_before.min(until);
        }
        let me = &mut state.threads[self.thread];
        (me.status, me.at, me.is_late) = (status, at, false);
        self.simulation.choose(&mut state);
        self.simulation.take_baton(&mut state, self.thread);
        state.threads[self.thread].is_late
    }
}

impl Simulation {
    fn new(options: Options) -> Simulation {
        Simulation {
            seed: options.seed,
            limit: options.limit,
            begin: Instant::now(),
            state: Mutex::new(State {
                random: fastrand::Rng::with_seed(options.seed),
                time: Duration::ZERO,
                running: 0,
                threads: Vec::new(),
                processes: vec![Process::outside()],
                ready: Vec::new(),
                no_deadline_before: Duration::MAX,
                scopes: 0,
                steps: Vec::new(),
                failure: None,
            }),
        }
    }

    fn add(&self, name: String, scope: Option<ScopeId>, at: &'static Location<'static>) -> usize {
        let mut state = self.state.lock();
        let baton = Arc::new(Condvar::new());
        // Threads belong to the process of the one that starts them.
        let process = state.threads.get(state.running).map_or(ProcessNumber::default(), |own| own.process);
        state.threads.push(Thread {
            name,
            scope,
            process,
            status: Status::Ready,
            is_late: false,
            has_token: false,
            at,
            baton,
        });
        state.threads.len() - 1
    }

    fn look(&self) -> Duration {
        let mut state = self.state.lock();
        state.time += LOOK;
        state.time
    }

    fn wait_for_baton(&self, thread: usize) {
        self.take_baton(&mut self.state.lock(), thread);
    }

    fn take_baton(&self, state: &mut MutexGuard<'_, State>, thread: usize) {
        let baton = state.threads[thread].baton.clone();
        while state.running != thread {
            baton.wait(state);
        }
        if thread == 0
            && let Some(failure) = state.failure.take()
        {
            panic!("simulation with seed {}: {failure}", self.seed);
        }
    }

    /// Passes the baton to a thread that can run. If all wait forever, the first one gets it, with the
    /// reason.
    fn choose(&self, state: &mut MutexGuard<'_, State>) {
        let next = match state.next(self.limit) {
            Ok(next) => next,
            Err(failure) => {
                state.failure = Some(failure);
                0
            }
        };
        if next == state.running {
            return;
        }
        state.running = next;
        let step = Step { thread: next as u32, at: state.threads[next].at, time: state.time };
        if state.steps.len() < STEPS_MAX {
            state.steps.push(step);
        }
        state.threads[next].baton.notify_one();
    }

    fn end(&self, thread: usize) {
        let mut state = self.state.lock();
        state.retry_refused();
        state.threads[thread].status = Status::Ended;
        state.wake(Key::End(thread), true);
        if let Some(scope) = state.threads[thread].scope
            && !state.is_used(scope)
        {
            state.wake(Key::Scope(scope), true);
        }
        self.choose(&mut state);
    }
}

impl State {
    /// Returns a thread that can run, after advancing the clock to its time.
    fn next(&mut self, limit: Duration) -> Result<usize, String> {
        loop {
            self.wake_late();
            let mut ready = std::mem::take(&mut self.ready);
            ready.clear();
            let is_ready =
                |thread: &Thread| thread.status == Status::Ready && self.paused_until(thread) <= self.time;
            let all = self.threads.iter().enumerate();
            ready.extend(all.filter(|(_, thread)| is_ready(thread)).map(|(index, _)| index));
            let chosen = (!ready.is_empty()).then(|| ready[self.random.usize(..ready.len())]);
            self.ready = ready;
            if let Some(chosen) = chosen {
                return Ok(chosen);
            }
            let next = self.threads.iter().filter_map(|thread| match thread.status {
                Status::Ready => Some(self.paused_until(thread)),
                status => status.until(),
            });
            let Some(until) = next.min() else {
                return Err(format!("all threads wait for each other:{}", self.describe()));
            };
            if until > limit {
                return Err(format!("not over after {limit:?}:{}", self.describe()));
            }
            self.time = self.time.max(until);
        }
    }

    /// Returns the end of the pause of a thread's process.
    fn paused_until(&self, thread: &Thread) -> Duration {
        self.processes[thread.process.index()].paused_until()
    }

    /// Ends the waits whose deadline has passed.
    fn wake_late(&mut self) {
        if self.time < self.no_deadline_before {
            return;
        }
        self.no_deadline_before = Duration::MAX;
        for thread in &mut self.threads {
            match thread.status.until() {
                Some(until) if until <= self.time => (thread.status, thread.is_late) = (Status::Ready, true),
                Some(until) => self.no_deadline_before = self.no_deadline_before.min(until),
                None => {}
            }
        }
    }

    fn retry_refused(&mut self) {
        for thread in &mut self.threads {
            if matches!(thread.status, Status::Refused { .. }) {
                thread.status = Status::Ready;
            }
        }
    }

    fn wake(&mut self, key: Key, all: bool) {
        let waits = |thread: &Thread| matches!(thread.status, Status::Waiting { key: its, .. } if its == key);
        let count = self.threads.iter().filter(|thread| waits(thread)).count();
        if count == 0 {
            return;
        }
        let chosen = self.random.usize(..count);
        for (at, thread) in self.threads.iter_mut().filter(|thread| waits(thread)).enumerate() {
            if all || at == chosen {
                thread.status = Status::Ready;
            }
        }
    }

    fn is_used(&self, scope: ScopeId) -> bool {
        self.threads.iter().any(|thread| thread.scope == Some(scope) && thread.status != Status::Ended)
    }

    fn describe(&self) -> String {
        let live = self.threads.iter().enumerate().filter(|(_, thread)| thread.status != Status::Ended);
        live.map(|(index, thread)| {
            format!("\n  {index} {:?} at {}: {:?}", thread.name, thread.at, thread.status)
        })
        .collect()
    }
}

impl Status {
    fn until(self) -> Option<Duration> {
        match self {
            Status::Refused { until } | Status::Waiting { until, .. } => until,
            Status::Ready | Status::Ended => None,
        }
    }
}

#[cfg(test)]
mod tests;
