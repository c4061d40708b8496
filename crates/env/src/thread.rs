//! Threads: the standard library's, which in a thread of a simulation ([`crate::sim`]) are started and joined
//! through its scheduler.

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

/// Yields to other threads.
#[inline]
#[track_caller]
pub fn yield_now() {
    if !(sim::is_any() && sim::give_way()) {
        thread::yield_now();
    }
}

/// A handle to wake a parked thread.
#[derive(Clone, Debug)]
pub struct Thread {
    real: thread::Thread,
    simulated: Option<sim::Child>,
}

impl Thread {
    /// Returns the thread's identity in this process.
    #[inline]
    pub fn id(&self) -> ThreadId {
        self.real.id()
    }

    /// Returns the thread's name, if it has one.
    pub fn name(&self) -> Option<&str> {
        self.real.name()
    }

    /// Wakes the thread, or makes its next park return at once.
    #[inline]
    #[track_caller]
    pub fn unpark(&self) {
        match &self.simulated {
            Some(thread) => thread.unpark(),
            None => self.real.unpark(),
        }
    }
}

/// Returns the calling thread.
#[inline]
#[must_use]
pub fn current() -> Thread {
    Thread { real: thread::current(), simulated: if sim::is_any() { sim::current() } else { None } }
}

/// Waits until another thread unparks this one. As usual, it may return without that.
#[inline]
#[track_caller]
pub fn park() {
    if !(sim::is_any() && sim::park(None)) {
        thread::park();
    }
}

/// Parks like [`park`], for `time` at most.
#[inline]
#[track_caller]
pub fn park_timeout(time: Duration) {
    if !(sim::is_any() && sim::park(Some(time))) {
        thread::park_timeout(time);
    }
}

/// Handle to join a thread.
#[derive(Debug)]
pub struct JoinHandle<T> {
    real: thread::JoinHandle<T>,
    simulated: Option<sim::Child>,
}

impl<T> JoinHandle<T> {
    /// Waits for the thread's end and returns its result.
    ///
    /// # Errors
    ///
    /// The value that the thread panicked with.
    #[track_caller]
    pub fn join(self) -> Result<T> {
        if let Some(child) = &self.simulated {
            child.wait();
        }
        self.real.join()
    }

    /// True if the thread has ended.
    pub fn is_finished(&self) -> bool {
        match &self.simulated {
            Some(child) => child.has_ended(),
            None => self.real.is_finished(),
        }
    }

    /// Returns the thread.
    pub fn thread(&self) -> Thread {
        Thread { real: self.real.thread().clone(), simulated: self.simulated.clone() }
    }
}

/// Settings of a thread to be started.
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
    /// Creates settings without a name and with the default stack size.
    #[must_use]
    pub fn new() -> Builder {
        Builder { real: thread::Builder::new(), name: String::new() }
    }

    /// Sets the thread's name.
    #[must_use]
    pub fn name(self, name: String) -> Builder {
        Builder { real: self.real.name(name.clone()), name }
    }

    /// Sets the size of the thread's stack in bytes.
    #[must_use]
    pub fn stack_size(self, bytes: usize) -> Builder {
        Builder { real: self.real.stack_size(bytes), ..self }
    }

    /// Starts the thread.
    ///
    /// # Errors
    ///
    /// If the kernel cannot create the thread.
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
    /// If the kernel cannot create the thread.
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
/// If the kernel cannot create the thread.
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

/// Handle to join a thread of a [`Scope`].
#[derive(Debug)]
pub struct ScopedJoinHandle<'scope, T> {
    real: thread::ScopedJoinHandle<'scope, T>,
    simulated: Option<sim::Child>,
}

impl<T> ScopedJoinHandle<'_, T> {
    /// Waits for the thread's end and returns its result.
    ///
    /// # Errors
    ///
    /// The value that the thread panicked with.
    #[track_caller]
    pub fn join(self) -> Result<T> {
        if let Some(child) = &self.simulated {
            child.wait();
        }
        self.real.join()
    }

    /// True if the thread has ended.
    pub fn is_finished(&self) -> bool {
        match &self.simulated {
            Some(child) => child.has_ended(),
            None => self.real.is_finished(),
        }
    }

    /// Returns the thread.
    pub fn thread(&self) -> Thread {
        Thread { real: self.real.thread().clone(), simulated: self.simulated.clone() }
    }
}

impl<'scope, 'env> Scope<'scope, 'env> {
    /// Starts a thread.
    ///
    /// # Panics
    ///
    /// If the kernel cannot create the thread.
    #[track_caller]
    pub fn spawn<F, T>(self, work: F) -> ScopedJoinHandle<'scope, T>
    where
        F: FnOnce() -> T + Send + 'scope,
        T: Send + 'scope,
    {
        Builder::new().spawn_scoped(self, work).expect("a thread can be started")
    }
}

/// Runs `work`, which may start threads that borrow from its surroundings, and waits for their ends.
#[track_caller]
pub fn scope<'env, F, T>(work: F) -> T
where
    F: for<'scope> FnOnce(Scope<'scope, 'env>) -> T,
{
    /// The real scope joins its threads outside the scheduler, even after a panic, so they are joined here
    /// first.
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
