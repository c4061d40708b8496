//! Interrupts: the caller of a request that a thread serves cancels it.
//!
//! A thread that serves requests has one [`InterruptTarget`] for its whole life, so a request costs no
//! allocation: [`InterruptTarget::begin`] and [`InterruptTarget::end`] are one atomic store each. Another
//! thread (the reader of the FUSE device) calls [`InterruptTarget::raise`] with the request's number. The
//! serving thread detects it in two ways:
//!
//! - code that waits in a loop polls [`interrupted`] and gives up with `EINTR`;
//! - a system call inside [`crate::blocking`] ends with `EINTR`, because the thread gets a signal. The signal
//!   may arrive between the check and the system call, so it is resent every few milliseconds until the
//!   thread has polled [`interrupted`] (and got `true`), or the request has ended.
//!
//! Callers that limit their waiting time set a deadline for their own waits with [`until`].

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use crate::clock::Instant;

use crate::sync::{Condvar, Mutex};

/// Interval between signals to a thread that has not noticed its interrupt.
const RESEND_INTERVAL: Duration = Duration::from_millis(5);

/// The signal that ends system calls. Its default action is to be ignored, so a stray one does no harm.
const KICK_SIGNAL: libc::c_int = libc::SIGURG;

thread_local! {
    static TARGET: RefCell<Option<Arc<InterruptTarget>>> = const { RefCell::new(None) };
    /// Time from which waits of this thread end as if interrupted.
    static LIMIT: Cell<Option<Instant>> = const { Cell::new(None) };
}

/// State of the interrupts for one thread.
#[derive(Debug)]
pub struct InterruptTarget {
    thread: libc::pid_t,
    /// Number of the running request, 0 for none.
    current: AtomicU64,
    /// Number of the last interrupted request.
    raised: AtomicU64,
    /// Number of the last request that noticed its interrupt.
    noticed: AtomicU64,
    blocking: AtomicBool,
    /// True if the thread has to leave its current system call, with or without a request.
    kicked: AtomicBool,
    /// True after the thread has ended (or dropped its target): its thread id must not be signalled any more.
    gone: Mutex<bool>,
}

/// Ends the thread's role as a target when dropped.
#[must_use = "the thread is no longer a target when the guard is dropped"]
pub struct TargetGuard {
    target: Arc<InterruptTarget>,
}

impl TargetGuard {
    /// Returns the target, to be shared with the threads that raise interrupts.
    pub fn target(&self) -> &Arc<InterruptTarget> {
        &self.target
    }
}

impl Drop for TargetGuard {
    fn drop(&mut self) {
        self.target.end();
        *self.target.gone.lock() = true;
        let _ = TARGET.try_with(|slot| slot.borrow_mut().take());
    }
}

impl InterruptTarget {
    /// Makes the current thread a target until the guard is dropped, and makes the kick signal end system
    /// calls.
    pub fn install() -> TargetGuard {
        install_signal_handler();
        // SAFETY: gettid takes no arguments and accesses no memory of the program.
        let thread = unsafe { libc::gettid() };
        let target = Arc::new(InterruptTarget {
            thread,
            current: AtomicU64::new(0),
            raised: AtomicU64::new(0),
            noticed: AtomicU64::new(0),
            blocking: AtomicBool::new(false),
            kicked: AtomicBool::new(false),
            gone: Mutex::new(false),
        });
        TARGET.with(|slot| *slot.borrow_mut() = Some(target.clone()));
        TargetGuard { target }
    }

    /// Starts a request with this `number` (not 0, never reused).
    pub fn begin(&self, number: u64) {
        self.current.store(number, Ordering::SeqCst);
    }

    /// Ends the thread's request: later interrupts for it have no effect.
    pub fn end(&self) {
        self.current.store(0, Ordering::Release);
    }

    /// Returns the number of the running request, 0 for none.
    pub fn current(&self) -> u64 {
        self.current.load(Ordering::SeqCst)
    }

    /// True while the thread is inside [`crate::blocking`].
    pub fn is_blocking(&self) -> bool {
        self.blocking.load(Ordering::SeqCst)
    }

    /// Interrupts request `number` if this thread is serving it; returns whether it was.
    pub fn raise(self: &Arc<Self>, number: u64) -> bool {
        if number == 0 || self.current() != number {
            return false;
        }
        self.raised.store(number, Ordering::SeqCst);
        self.signal();
        true
    }

    /// True if the running request has been interrupted.
    pub fn is_raised(&self) -> bool {
        let raised = self.raised.load(Ordering::SeqCst);
        raised != 0 && raised == self.current()
    }

    /// Makes the thread leave its current system call, even outside of a request; resent until
    /// [`InterruptTarget::acknowledge_kick`] or the end of the thread.
    pub fn kick(self: &Arc<Self>) {
        self.kicked.store(true, Ordering::SeqCst);
        self.signal();
    }

    /// Sends signals while they are needed. In a simulation no wait is a system call.
    fn signal(self: &Arc<Self>) {
        if !crate::sim::is_here() {
            resender().watch(self.clone());
        }
    }

    /// Ends the resending of kicks: the thread has noticed one.
    pub fn acknowledge_kick(&self) {
        self.kicked.store(false, Ordering::SeqCst);
    }

    /// True if the running request was interrupted. Also records for the sender that the thread has noticed.
    fn check(&self) -> bool {
        let raised = self.raised.load(Ordering::SeqCst);
        if raised == 0 || raised != self.current.load(Ordering::Relaxed) {
            return false;
        }
        self.noticed.store(raised, Ordering::SeqCst);
        true
    }

    /// Sends the signal if it is still needed; `false` when nothing is left to do for this target.
    fn send_if_wanted(&self) -> bool {
        let gone = self.gone.lock();
        if *gone {
            return false;
        }
        let raised = self.raised.load(Ordering::SeqCst);
        let request =
            raised != 0 && raised == self.current() && raised != self.noticed.load(Ordering::SeqCst);
        let kicked = self.kicked.load(Ordering::SeqCst);
        if kicked || (request && self.is_blocking()) {
            // SAFETY: tgkill with the process's own id and the id of a thread that cannot have ended, because
            // it sets `gone` under the lock that is held here; a handler for the signal is installed.
            unsafe { libc::syscall(libc::SYS_tgkill, libc::getpid(), self.thread, KICK_SIGNAL) };
        }
        kicked || request
    }
}

/// True if the request that the current thread serves was interrupted.
///
/// `false` on threads that are not targets. A wait that sees `true` should give up with `EINTR`; the answer
/// stays `true` until the request ends. Within [`until`] also `true` after the deadline.
pub fn interrupted() -> bool {
    TARGET.with(|slot| slot.borrow().as_ref().is_some_and(|target| target.check())) || is_late()
}

/// True within [`until`] after the deadline: no caller has interrupted the request, but further waiting is
/// pointless.
pub fn is_late() -> bool {
    time_limit().is_some_and(|at| Instant::now() >= at)
}

/// Returns the deadline within [`until`]: a system call that is to end then has it as a time-out.
pub fn time_limit() -> Option<Instant> {
    LIMIT.get()
}

/// Runs `work` with a deadline: [`interrupted`] is `true` from `at` on, so that its waits give up. No signal
/// is sent, so a single long system call is not ended. Of nested deadlines the earliest counts.
pub fn until<R>(at: Instant, work: impl FnOnce() -> R) -> R {
    struct Before(Option<Instant>);
    impl Drop for Before {
        fn drop(&mut self) {
            LIMIT.set(self.0);
        }
    }
    let before = Before(LIMIT.get());
    LIMIT.set(Some(before.0.map_or(at, |earlier| earlier.min(at))));
    work()
}

/// Returns the target of the current thread, if it has one: for code that moves its work to other threads.
pub fn interrupt_target() -> Option<Arc<InterruptTarget>> {
    TARGET.with(|slot| slot.borrow().clone())
}

pub(crate) fn set_blocking(on: bool) {
    TARGET.with(|slot| {
        if let Some(target) = slot.borrow().as_ref() {
            target.blocking.store(on, Ordering::SeqCst);
        }
    });
}

extern "C" fn on_kick(_signal: libc::c_int) {}

fn install_signal_handler() {
    static INSTALLED: OnceLock<()> = OnceLock::new();
    INSTALLED.get_or_init(|| {
        // SAFETY: sigaction is plain data; zeroes mean no flags (so no SA_RESTART) and an empty mask. The
        // handler does nothing, so it is safe at any point of the program.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = on_kick as extern "C" fn(libc::c_int) as libc::sighandler_t;
            libc::sigemptyset(&mut action.sa_mask);
            libc::sigaction(KICK_SIGNAL, &action, std::ptr::null_mut());
        }
    });
}

/// The thread that resends signals. It sleeps without a timeout while there is no thread to signal.
struct Resender {
    waiting: Mutex<HashMap<usize, Arc<InterruptTarget>>>,
    more: Condvar,
}

impl Resender {
    fn watch(&self, target: Arc<InterruptTarget>) {
        if !target.send_if_wanted() {
            return;
        }
        let key = Arc::as_ptr(&target) as usize;
        self.waiting.lock().insert(key, target);
        self.more.notify_one();
    }

    fn run(&self) {
        let mut waiting = self.waiting.lock();
        loop {
            while waiting.is_empty() {
                self.more.wait(&mut waiting);
            }
            self.more.wait_for(&mut waiting, RESEND_INTERVAL);
            waiting.retain(|_, target| target.send_if_wanted());
        }
    }
}

fn resender() -> &'static Resender {
    static RESENDER: OnceLock<&'static Resender> = OnceLock::new();
    RESENDER.get_or_init(|| {
        let resender: &'static Resender =
            Box::leak(Box::new(Resender { waiting: Mutex::new(HashMap::new()), more: Condvar::new() }));
        // Without the thread the first signal is still sent; only a lost one would not be resent.
        let _ = crate::thread::Builder::new().name("interrupts".into()).spawn(|| resender.run());
        resender
    })
}

#[cfg(test)]
mod tests;
