//! The blocking hook: a thread notifies its owner before it blocks.
//!
//! A pool that keeps one thread per CPU ready (see architecture, "one CPU per request") must know when a
//! thread cannot take the next request, or that request would wait behind a disk or a remote server. The
//! layer that blocks wraps the wait in [`blocking`]; the pool that owns the thread has installed a
//! [`BlockingHook`]. On threads without a hook the cost is one thread-local read.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use crate::activity::{Cause, Waiting};
use crate::interrupt;
use std::panic::Location;

/// Reaction of a thread's owner when the thread starts and stops waiting.
///
/// Both methods run on the waiting thread. They must not block themselves and must not call [`blocking`].
pub trait BlockingHook {
    /// Runs before the wait: the thread will not take further requests until [`BlockingHook::exit`].
    fn enter(&self);
    /// Runs after the wait.
    fn exit(&self);
}

thread_local! {
    static HOOK: RefCell<Option<Rc<dyn BlockingHook>>> = const { RefCell::new(None) };
    static DEPTH: Cell<u32> = const { Cell::new(0) };
}

/// Removes the hook of this thread when dropped.
#[must_use = "the hook is removed when the guard is dropped"]
pub struct HookGuard {
    previous: Option<Rc<dyn BlockingHook>>,
}

impl Drop for HookGuard {
    fn drop(&mut self) {
        let previous = self.previous.take();
        // A thread that is shutting down has no hook left to restore.
        let _ = HOOK.try_with(|hook| *hook.borrow_mut() = previous);
    }
}

/// Installs `hook` for the current thread until the guard is dropped, which restores the previous hook.
pub fn install_hook(hook: Rc<dyn BlockingHook>) -> HookGuard {
    HookGuard { previous: HOOK.with(|slot| slot.borrow_mut().replace(hook)) }
}

/// Runs `work`, which may block (disk, network, a lock that is held elsewhere for long).
///
/// Calls the thread's hook before and after, even if `work` panics. Nested calls only count: the outermost
/// one calls the hook. While `work` runs, an interrupt of the thread's request arrives as a signal that ends
/// system calls with `EINTR`, see [`crate::interrupt`].
///
/// The wait shows up in [`crate::activity`], by its place in the source unless a cause is named there.
#[track_caller]
pub fn blocking<R>(work: impl FnOnce() -> R) -> R {
    let _section = Section::enter(Location::caller());
    work()
}

/// True while the current thread is inside [`blocking`].
pub fn is_blocking() -> bool {
    DEPTH.get() > 0
}

struct Section {
    hook: Option<Rc<dyn BlockingHook>>,
    _waiting: Option<Waiting>,
}

impl Section {
    fn enter(place: &'static Location<'static>) -> Section {
        let depth = DEPTH.get();
        DEPTH.set(depth + 1);
        if depth > 0 {
            return Section { hook: None, _waiting: None };
        }
        let hook = HOOK.with(|hook| hook.borrow().clone());
        if let Some(hook) = &hook {
            hook.enter();
        }
        interrupt::set_blocking(true);
        Section { hook, _waiting: Some(Waiting::enter(Cause::Place(place))) }
    }
}

impl Drop for Section {
    fn drop(&mut self) {
        let depth = DEPTH.get() - 1;
        DEPTH.set(depth);
        if depth == 0 {
            interrupt::set_blocking(false);
            if let Some(hook) = self.hook.take() {
                hook.exit();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Default)]
    struct Counter {
        entered: Cell<u32>,
        left: Cell<u32>,
    }

    impl BlockingHook for Counter {
        fn enter(&self) {
            self.entered.set(self.entered.get() + 1);
        }
        fn exit(&self) {
            self.left.set(self.left.get() + 1);
        }
    }

    #[test]
    fn nested_sections_tell_the_hook_once() {
        let counter = Rc::new(Counter::default());
        let guard = install_hook(counter.clone());
        let value = blocking(|| {
            assert!(is_blocking());
            blocking(|| blocking(|| 7))
        });
        assert_eq!(value, 7);
        assert_eq!((counter.entered.get(), counter.left.get()), (1, 1));
        drop(guard);
        blocking(|| ());
        assert_eq!(counter.entered.get(), 1, "a removed hook is not called");
    }

    #[test]
    fn a_panic_leaves_the_section() {
        let counter = Rc::new(Counter::default());
        let _guard = install_hook(counter.clone());
        let outcome = std::panic::catch_unwind(|| blocking(|| panic!("inside a section, on purpose")));
        assert!(outcome.is_err());
        assert!(!is_blocking());
        assert_eq!((counter.entered.get(), counter.left.get()), (1, 1));
    }

    #[test]
    fn a_thread_without_hook_just_works() {
        assert_eq!(blocking(|| 1), 1);
    }
}
