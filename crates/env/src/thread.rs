//! Threads: the standard library's, started and waited for through the scheduler in a thread of a simulation ([`crate::sim`]).

use std::io;
use std::thread;
pub use std::thread::{Result, ThreadId, available_parallelism, panicking};
use std::time::Duration;

use crate::clock::Instant;
use crate::sim;

/// Sleeps for `time`.
#[inline]
#[track_caller]
pub fn sleep(time: Duration) {
    if sim::is_here() {
        sim::sleep_until(Instant::now().checked_add(time).map(Instant::to_std));
    } else {
        thread::sleep(time);
    }
}

/// Lets other threads run.
#[inline]
#[track_caller]
pub fn yield_now() {
    if !(sim::is_any() && sim::give_way()) {
        thread::yield_now();
    }
}

/// A thread that can be woken when it has parked.
#[derive(Clone, Debug)]
pub struct Thread {
    real: thread::Thread,
    simulated: Option<sim::Child>,
}

impl Thread {
    /// The thread's identity in this process.
    #[inline]
    pub fn id(&self) -> ThreadId {
        self.real.id()
    }

    /// The thread's name, if it has one.
    pub fn name(&self) -> Option<&str> {
        self.real.name()
    }

    /// Wakes the thread, or lets its next park end at once.
    #[inline]
    #[track_caller]
    pub fn unpark(&self) {
        match &self.simulated {
            Some(thread) => thread.unpark(),
            None => self.real.unpark(),
        }
    }
}

/// The calling thread.
#[inline]
#[must_use]
pub fn current() -> Thread {
    Thread { real: thread::current(), simulated: if sim::is_any() { sim::current() } else { None } }
}

/// Waits until another thread unparks this one. As everywhere, it may end without that.
#[inline]
#[track_caller]
pub fn park() {
    if !(sim::is_any() && sim::park(None)) {
        thread::park();
    }
}

/// The same for no longer than `time`.
#[inline]
#[track_caller]
pub fn park_timeout(time: Duration) {
    if !(sim::is_any() && sim::park(Some(time))) {
        thread::park_timeout(time);
    }
}

/// A thread that can be waited for.
#[derive(Debug)]
pub struct JoinHandle<T> {
    real: thread::JoinHandle<T>,
    simulated: Option<sim::Child>,
}

impl<T> JoinHandle<T> {
    /// Waits for the thread's end.
    ///
    /// # Errors
    ///
    /// What the thread panicked with.
    #[track_caller]
    pub fn join(self) -> Result<T> {
        if let Some(child) = &self.simulated {
            child.wait();
        }
        self.real.join()
    }

    /// Whether the thread has ended.
    pub fn is_finished(&self) -> bool {
        match &self.simulated {
            Some(child) => child.has_ended(),
            None => self.real.is_finished(),
        }
    }

    /// The thread.
    pub fn thread(&self) -> Thread {
        Thread { real: self.real.thread().clone(), simulated: self.simulated.clone() }
    }
}

/// How a thread is to be started.
#[derive(Debug)]
pub struct Builder {
    real: thread::Builder,
    name: String,
}

impl Default for Builder {
    fn default() -> Builder {
        Builder::new()
    }
}

impl Builder {
    /// A thread without a name and with the usual stack.
    #[must_use]
    pub fn new() -> Builder {
        Builder { real: thread::Builder::new(), name: String::new() }
    }

    /// The thread's name.
    #[must_use]
    pub fn name(self, name: String) -> Builder {
        Builder { real: self.real.name(name.clone()), name }
    }

    /// Bytes of the thread's stack.
    #[must_use]
    pub fn stack_size(self, bytes: usize) -> Builder {
        Builder { real: self.real.stack_size(bytes), ..self }
    }

    /// Starts the thread.
    ///
    /// # Errors
    ///
    /// The kernel's.
    #[track_caller]
    pub fn spawn<F, T>(self, work: F) -> io::Result<JoinHandle<T>>
    where
        F: FnOnce() -> T + Send + 'static,
        T: Send + 'static,
    {
        let Some(child) = sim::child(&self.name, None) else {
            return Ok(JoinHandle { real: self.real.spawn(work)?, simulated: None });
        };
        let inside = child.clone();
        match self.real.spawn(move || inside.run(work)) {
            Ok(real) => {
                sim::give_way();
                Ok(JoinHandle { real, simulated: Some(child) })
            }
            Err(error) => {
                child.is_not_started();
                Err(error)
            }
        }
    }

    /// Starts the thread in `scope`.
    ///
    /// # Errors
    ///
    /// The kernel's.
    #[track_caller]
    pub fn spawn_scoped<'scope, 'env, F, T>(
        self,
        scope: Scope<'scope, 'env>,
        work: F,
    ) -> io::Result<ScopedJoinHandle<'scope, T>>
    where
        F: FnOnce() -> T + Send + 'scope,
        T: Send + 'scope,
    {
        let Some(child) = sim::child(&self.name, scope.simulated) else {
            return Ok(ScopedJoinHandle { real: self.real.spawn_scoped(scope.real, work)?, simulated: None });
        };
        let inside = child.clone();
        match self.real.spawn_scoped(scope.real, move || inside.run(work)) {
            Ok(real) => Ok(ScopedJoinHandle { real, simulated: Some(child) }),
            Err(error) => {
                child.is_not_started();
                Err(error)
            }
        }
    }
}

/// Starts a thread.
///
/// # Panics
///
/// The kernel refuses.
#[track_caller]
pub fn spawn<F, T>(work: F) -> JoinHandle<T>
where
    F: FnOnce() -> T + Send + 'static,
    T: Send + 'static,
{
    Builder::new().spawn(work).expect("a thread can be started")
}

/// Threads that end before [`scope`] does.
#[derive(Clone, Copy, Debug)]
pub struct Scope<'scope, 'env: 'scope> {
    real: &'scope thread::Scope<'scope, 'env>,
    simulated: Option<sim::ScopeId>,
}

/// A thread of a [`Scope`] that can be waited for.
#[derive(Debug)]
pub struct ScopedJoinHandle<'scope, T> {
    real: thread::ScopedJoinHandle<'scope, T>,
    simulated: Option<sim::Child>,
}

impl<T> ScopedJoinHandle<'_, T> {
    /// Waits for the thread's end.
    ///
    /// # Errors
    ///
    /// What the thread panicked with.
    #[track_caller]
    pub fn join(self) -> Result<T> {
        if let Some(child) = &self.simulated {
            child.wait();
        }
        self.real.join()
    }

    /// Whether the thread has ended.
    pub fn is_finished(&self) -> bool {
        match &self.simulated {
            Some(child) => child.has_ended(),
            None => self.real.is_finished(),
        }
    }

    /// The thread.
    pub fn thread(&self) -> Thread {
        Thread { real: self.real.thread().clone(), simulated: self.simulated.clone() }
    }
}

impl<'scope, 'env> Scope<'scope, 'env> {
    /// Starts a thread.
    ///
    /// # Panics
    ///
    /// The kernel refuses.
    #[track_caller]
    pub fn spawn<F, T>(self, work: F) -> ScopedJoinHandle<'scope, T>
    where
        F: FnOnce() -> T + Send + 'scope,
        T: Send + 'scope,
    {
        Builder::new().spawn_scoped(self, work).expect("a thread can be started")
    }
}

/// Runs `work`, which may start threads that borrow from its surroundings, and waits for their end.
#[track_caller]
pub fn scope<'env, F, T>(work: F) -> T
where
    F: for<'scope> FnOnce(Scope<'scope, 'env>) -> T,
{
    /// The real scope waits for its threads without the scheduler, also after a panic: here they are waited for first.
    struct End(Option<sim::ScopeId>);
    impl Drop for End {
        fn drop(&mut self) {
            if let Some(scope) = self.0 {
                sim::wait_for_scope(scope);
            }
        }
    }
    let simulated = sim::scope();
    thread::scope(|real| {
        let _end = End(simulated);
        work(Scope { real, simulated })
    })
}
