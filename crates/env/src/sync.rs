//! Locks, condition variables and channels: those of `parking_lot` and the standard library, which in a
//! thread of a simulation ([`crate::sim`]) involve its scheduler.
//!
//! A thread of a simulation never sleeps in a lock: it tries, and yields to the others until it succeeds. So
//! the real lock protects its data there, too, and needs no second state. Outside of simulations each call
//! costs one load of a flag.

pub mod mpsc;
pub mod word;

use std::fmt;
use std::panic::Location;
use std::time::Duration;

pub use parking_lot::{MappedMutexGuard, MutexGuard, ReentrantMutexGuard, RwLockReadGuard, RwLockWriteGuard};

use crate::clock::Instant;
use crate::sim;

/// A mutex without poisoning.
#[derive(Default)]
pub struct Mutex<T: ?Sized>(parking_lot::Mutex<T>);

impl<T> Mutex<T> {
    /// Creates an unlocked mutex around `value`.
    pub const fn new(value: T) -> Mutex<T> {
        Mutex(parking_lot::Mutex::new(value))
    }

    /// Returns the protected value.
    pub fn into_inner(self) -> T {
        self.0.into_inner()
    }
}

impl<T: ?Sized> Mutex<T> {
    /// Waits until the mutex is free, and locks it.
    #[inline]
    #[track_caller]
    pub fn lock(&self) -> MutexGuard<'_, T> {
        if sim::is_any()
            && let Some(guard) = sim::take(|| self.0.try_lock())
        {
            return guard;
        }
        self.0.lock()
    }

    /// Locks the mutex if it is free.
    #[inline]
    pub fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        self.0.try_lock()
    }

    /// Locks the mutex if it becomes free within `time`.
    #[inline]
    #[track_caller]
    pub fn try_lock_for(&self, time: Duration) -> Option<MutexGuard<'_, T>> {
        if sim::is_any()
            && let Some(guard) = sim::take_within(|| self.0.try_lock(), time)
        {
            return guard;
        }
        self.0.try_lock_for(time)
    }

    /// True if a thread holds the mutex.
    #[inline]
    pub fn is_locked(&self) -> bool {
        self.0.is_locked()
    }

    /// Returns the protected value of a mutex that is not shared.
    #[inline]
    pub fn get_mut(&mut self) -> &mut T {
        self.0.get_mut()
    }
}

impl<T: ?Sized + fmt::Debug> fmt::Debug for Mutex<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Unlocks the mutex of `guard` while `work` runs, and locks it again.
#[track_caller]
pub fn unlocked<T: ?Sized, R>(guard: &mut MutexGuard<'_, T>, work: impl FnOnce() -> R) -> R {
    let mutex = MutexGuard::mutex(guard);
    MutexGuard::unlocked(guard, || {
        let result = work();
        // Locking it again would sleep: another thread of the simulation may hold it.
        if sim::is_any() {
            sim::take(|| (!mutex.is_locked()).then_some(()));
        }
        result
    })
}

/// A lock of many readers or one writer, without poisoning.
#[derive(Default)]
pub struct RwLock<T: ?Sized>(parking_lot::RwLock<T>);

impl<T> RwLock<T> {
    /// Creates an unlocked lock around `value`.
    pub const fn new(value: T) -> RwLock<T> {
        RwLock(parking_lot::RwLock::new(value))
    }

    /// Returns the protected value.
    pub fn into_inner(self) -> T {
        self.0.into_inner()
    }
}

impl<T: ?Sized> RwLock<T> {
    /// Waits until there is no writer, and locks for reading.
    #[inline]
    #[track_caller]
    pub fn read(&self) -> RwLockReadGuard<'_, T> {
        if sim::is_any()
            && let Some(guard) = sim::take(|| self.0.try_read())
        {
            return guard;
        }
        self.0.read()
    }

    /// Locks for reading even if a writer waits: for a thread that may hold a read lock already.
    #[inline]
    #[track_caller]
    pub fn read_recursive(&self) -> RwLockReadGuard<'_, T> {
        if sim::is_any()
            && let Some(guard) = sim::take(|| self.0.try_read_recursive())
        {
            return guard;
        }
        self.0.read_recursive()
    }

    /// Waits until no thread holds the lock, and locks for writing.
    #[inline]
    #[track_caller]
    pub fn write(&self) -> RwLockWriteGuard<'_, T> {
        if sim::is_any()
            && let Some(guard) = sim::take(|| self.0.try_write())
        {
            return guard;
        }
        self.0.write()
    }

    /// Locks for reading if there is no writer.
    #[inline]
    pub fn try_read(&self) -> Option<RwLockReadGuard<'_, T>> {
        self.0.try_read()
    }

    /// Locks for reading if there is no writer, even if one waits.
    #[inline]
    pub fn try_read_recursive(&self) -> Option<RwLockReadGuard<'_, T>> {
        self.0.try_read_recursive()
    }

    /// Locks for writing if no thread holds the lock.
    #[inline]
    pub fn try_write(&self) -> Option<RwLockWriteGuard<'_, T>> {
        self.0.try_write()
    }

    /// Returns the protected value of a lock that is not shared.
    #[inline]
    pub fn get_mut(&mut self) -> &mut T {
        self.0.get_mut()
    }
}

impl<T: ?Sized + fmt::Debug> fmt::Debug for RwLock<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A mutex that its holder may lock again.
#[derive(Debug, Default)]
pub struct ReentrantMutex<T>(parking_lot::ReentrantMutex<T>);

impl<T> ReentrantMutex<T> {
    /// Creates an unlocked mutex around `value`.
    pub const fn new(value: T) -> ReentrantMutex<T> {
        ReentrantMutex(parking_lot::ReentrantMutex::new(value))
    }

    /// Waits until no other thread holds the mutex, and locks it.
    #[inline]
    #[track_caller]
    pub fn lock(&self) -> ReentrantMutexGuard<'_, T> {
        if sim::is_any()
            && let Some(guard) = sim::take(|| self.0.try_lock())
        {
            return guard;
        }
        self.0.lock()
    }
}

/// A mutex without a value, locked and unlocked by separate calls.
pub struct Latch(parking_lot::RawMutex);

impl Latch {
    /// Creates an unlocked latch.
    #[must_use]
    pub const fn new() -> Latch {
        Latch(<parking_lot::RawMutex as parking_lot::lock_api::RawMutex>::INIT)
    }

    /// Locks the latch if it is free.
    #[inline]
    pub fn try_lock(&self) -> bool {
        parking_lot::lock_api::RawMutex::try_lock(&self.0)
    }

    /// Waits until the latch is free, and locks it.
    #[inline]
    #[track_caller]
    pub fn lock(&self) {
        if sim::is_any() && sim::take(|| self.try_lock().then_some(())).is_some() {
            return;
        }
        parking_lot::lock_api::RawMutex::lock(&self.0);
    }

    /// Locks the latch if it becomes free within `time`.
    #[inline]
    #[track_caller]
    pub fn try_lock_for(&self, time: Duration) -> bool {
        if sim::is_any()
            && let Some(taken) = sim::take_within(|| self.try_lock().then_some(()), time)
        {
            return taken.is_some();
        }
        parking_lot::lock_api::RawMutexTimed::try_lock_for(&self.0, time)
    }

    /// Unlocks the latch.
    ///
    /// # Safety
    ///
    /// The caller holds the latch.
    #[inline]
    pub unsafe fn unlock(&self) {
        // SAFETY: as the caller guarantees.
        unsafe { parking_lot::lock_api::RawMutex::unlock(&self.0) }
    }
}

impl Default for Latch {
    fn default() -> Latch {
        Latch::new()
    }
}

impl fmt::Debug for Latch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if parking_lot::lock_api::RawMutex::is_locked(&self.0) { "taken" } else { "free" })
    }
}

/// Result of a wait with a time limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WaitTimeoutResult(bool);

impl WaitTimeoutResult {
    /// True if the limit passed before a notification.
    #[must_use]
    pub fn timed_out(&self) -> bool {
        self.0
    }
}

/// A condition variable. As usual, a wait may end without a notification.
#[derive(Debug, Default)]
pub struct Condvar(parking_lot::Condvar);

impl Condvar {
    /// Creates a condition without waiting threads.
    #[must_use]
    pub const fn new() -> Condvar {
        Condvar(parking_lot::Condvar::new())
    }

    /// Returns the scheduler's name of the condition.
    fn key(&self) -> usize {
        std::ptr::from_ref(self).addr()
    }

    /// Waits in a simulation until notified or `deadline`; `None` outside of one.
    #[track_caller]
    fn simulated<T: ?Sized>(&self, guard: &mut MutexGuard<'_, T>, deadline: Option<Instant>) -> Option<bool> {
        let at = Location::caller();
        if !sim::is_here() {
            return None;
        }
        Some(unlocked(guard, || sim::wait(self.key(), deadline.map(Instant::to_std), at)))
    }

    /// Unlocks the mutex of `guard`, waits for a notification, and locks it again.
    #[inline]
    #[track_caller]
    pub fn wait<T: ?Sized>(&self, guard: &mut MutexGuard<'_, T>) {
        if !sim::is_any() || self.simulated(guard, None).is_none() {
            self.0.wait(guard);
        }
    }

    /// Waits like [`Condvar::wait`], until `deadline` at most.
    #[inline]
    #[track_caller]
    pub fn wait_until<T: ?Sized>(
        &self,
        guard: &mut MutexGuard<'_, T>,
        deadline: Instant,
    ) -> WaitTimeoutResult {
        if sim::is_any()
            && let Some(is_late) = self.simulated(guard, Some(deadline))
        {
            return WaitTimeoutResult(is_late);
        }
        WaitTimeoutResult(self.0.wait_until(guard, deadline.to_std()).timed_out())
    }

    /// Waits like [`Condvar::wait`], for `time` at most.
    #[inline]
    #[track_caller]
    pub fn wait_for<T: ?Sized>(&self, guard: &mut MutexGuard<'_, T>, time: Duration) -> WaitTimeoutResult {
        if sim::is_any()
            && let Some(is_late) = self.simulated(guard, Instant::now().checked_add(time))
        {
            return WaitTimeoutResult(is_late);
        }
        WaitTimeoutResult(self.0.wait_for(guard, time).timed_out())
    }

    /// Waits while `is_busy` is true, for `time` at most.
    #[track_caller]
    pub fn wait_while_for<T: ?Sized>(
        &self,
        guard: &mut MutexGuard<'_, T>,
        mut is_busy: impl FnMut(&mut T) -> bool,
        time: Duration,
    ) -> WaitTimeoutResult {
        let deadline = Instant::now().checked_add(time);
        let mut is_late = false;
        while is_busy(guard) && !is_late {
            match deadline {
                Some(deadline) => is_late = self.wait_until(guard, deadline).timed_out(),
                None => self.wait(guard),
            }
        }
        WaitTimeoutResult(is_late && is_busy(guard))
    }

    /// Wakes one of the waiting threads.
    #[inline]
    #[track_caller]
    pub fn notify_one(&self) {
        if sim::is_any() {
            sim::notify(self.key(), false);
        }
        self.0.notify_one();
    }

    /// Wakes all waiting threads.
    #[inline]
    #[track_caller]
    pub fn notify_all(&self) {
        if sim::is_any() {
            sim::notify(self.key(), true);
        }
        self.0.notify_all();
    }
}
