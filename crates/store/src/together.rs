//! One flush for many callers.
//!
//! Whoever wants something durable either flushes, or waits for the flush that is under way and then for the next, which covers him. When a
//! flush ends, those whom it served come back with more work a moment later; a caller who has waited meanwhile would flush for
//! himself alone, and the many would wait for him: half of all flushes would serve one. So who is about to flush waits for those who were
//! there last time, for a small part of the time that a flush takes.

use parking_lot::{Condvar, Mutex};
use std::time::{Duration, Instant};

/// The part of a flush's time that is waited for others, at most: so much longer a caller waits at worst whose companions have left.
const WAIT_PART: u32 = 8;
/// Flushes that take less are not waited for: waking up somebody takes as long.
const LEAST_WAIT: Duration = Duration::from_micros(20);

/// See the [module documentation](self).
#[derive(Default)]
pub(crate) struct Together {
    state: Mutex<State>,
    /// A flush has ended.
    ended: Condvar,
    /// As many wait as the next flush waits for.
    gathered: Condvar,
}

#[derive(Default)]
struct State {
    is_running: bool,
    /// Callers who wait for a flush of others.
    waiting: usize,
    /// Callers who were there when the last flush ended: served by it, or waiting for the next.
    companions: usize,
    /// How long a flush takes, lately.
    takes: Duration,
}

impl Together {
    /// Returns when `is_done` says so; flushes for that, or lets others do it. One flush runs at a time.
    ///
    /// # Errors
    /// What `flush` gives to this caller; others try for themselves.
    pub(crate) fn until<E>(
        &self,
        is_done: impl Fn() -> bool,
        flush: impl Fn() -> Result<(), E>,
    ) -> Result<(), E> {
        let mut state = self.state.lock();
        while !is_done() {
            if state.is_running {
                state.waiting += 1;
                if state.waiting + 1 >= state.companions {
                    self.gathered.notify_one();
                }
                self.ended.wait(&mut state);
                continue;
            }
            state.is_running = true;
            let most = state.takes / WAIT_PART;
            if most >= LEAST_WAIT {
                let until = Instant::now() + most;
                while state.waiting + 1 < state.companions {
                    if self.gathered.wait_until(&mut state, until).timed_out() {
                        break;
                    }
                }
            }
            let began = Instant::now();
            let result = parking_lot::MutexGuard::unlocked(&mut state, &flush);
            state.takes = (state.takes * 3 + began.elapsed()) / 4;
            // Who waits now came before it began, and is served, or since.
            state.companions = state.waiting + 1;
            // All are woken up, and count again if they wait again.
            state.waiting = 0;
            state.is_running = false;
            self.ended.notify_all();
            result?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
    use std::sync::mpsc;

    /// Something that is appended to and flushed, with callers who were there last time and a flush that took so long.
    struct Log {
        together: Together,
        appended: AtomicU64,
        durable: AtomicU64,
        flushes: AtomicU64,
    }

    impl Log {
        fn new(companions: usize, takes: Duration) -> Log {
            let state = Mutex::new(State { companions, takes, ..State::default() });
            Log {
                together: Together { state, ..Together::default() },
                appended: AtomicU64::new(0),
                durable: AtomicU64::new(0),
                flushes: AtomicU64::new(0),
            }
        }

        fn append_and_sync(&self) {
            let upto = self.appended.fetch_add(1, Ordering::SeqCst) + 1;
            let flush = || {
                self.durable.fetch_max(self.appended.load(Ordering::SeqCst), Ordering::SeqCst);
                self.flushes.fetch_add(1, Ordering::SeqCst);
                Ok::<(), ()>(())
            };
            self.together.until(|| self.durable.load(Ordering::SeqCst) >= upto, flush).expect("flushed");
        }
    }

    #[test]
    fn callers_who_come_back_are_served_by_one_flush_and_not_by_two() {
        let log = Log::new(8, Duration::from_secs(3600));
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| (0..40).for_each(|_| log.append_and_sync()));
            }
        });
        assert_eq!(log.flushes.load(Ordering::SeqCst), 40);
        assert_eq!(log.durable.load(Ordering::SeqCst), 320);
    }

    #[test]
    fn a_caller_whose_companions_have_left_goes_on_alone() {
        let log = Log::new(4, Duration::from_millis(80));
        log.append_and_sync();
        assert_eq!(log.together.state.lock().companions, 1);
        assert_eq!(log.durable.load(Ordering::SeqCst), 1);
    }

    #[test]
    fn an_error_is_told_to_who_flushed_and_others_try_for_themselves() {
        let together = Together::default();
        let is_done = AtomicBool::new(false);
        let done = || is_done.load(Ordering::SeqCst);
        let (began, begins) = mpsc::channel();
        std::thread::scope(|scope| {
            let first = scope.spawn(|| {
                let fail = || {
                    began.send(()).expect("waited for");
                    while together.state.lock().waiting == 0 {
                        std::thread::yield_now();
                    }
                    Err("no")
                };
                together.until(done, fail)
            });
            begins.recv().expect("begun");
            let work = || {
                is_done.store(true, Ordering::SeqCst);
                Ok::<(), &str>(())
            };
            assert_eq!(together.until(done, work), Ok(()));
            assert_eq!(first.join().expect("ended"), Err("no"));
        });
    }
}
