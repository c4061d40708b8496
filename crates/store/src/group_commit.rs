//! Group commit: one flush for many callers.
//!
//! A caller leads a flush, or waits for the flush under way and then for the next one, which covers it. When
//! a flush ends, the callers that it served return with more work a moment later; a caller that waited
//! meanwhile would flush for itself alone, and the many would wait for that: half of all flushes would serve
//! one caller. So the next flush waits for the companions of the last one, for a part of the time that a
//! flush takes; the last of them to arrive begins it.
//!
//! Each caller sleeps on its own, and is woken once, when it is served: it needs no lock to continue.

use nacre_env::clock::Instant;
use nacre_env::sync::{Mutex, MutexGuard};
use nacre_env::thread::{self, Thread};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Maximum wait for others, as a divisor of a flush's time: a caller whose companions have left waits this
/// much longer at worst.
const WAIT_PART: u32 = 4;
/// A flush that took longer does not predict the next one.
const MOST_TAKES: Duration = Duration::from_millis(40);
/// Flushes that take less are not waited for: a wake-up takes as long.
const LEAST_WAIT: Duration = Duration::from_micros(20);

/// See the [module documentation](self).
#[derive(Default)]
pub(crate) struct GroupCommit {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    is_running: bool,
    /// Callers that wait for another caller's flush, in order of arrival.
    waiting: Vec<Arc<Waiter>>,
    /// Callers present at the end of the last flush: served by it, or waiting for the next.
    companions: usize,
    /// Duration of recent flushes.
    takes: Duration,
    /// Flushes begun so far.
    begun: u64,
    /// A waiting caller begins a flush if its companions do not arrive in time.
    is_watched: bool,
}

/// A caller that sleeps.
struct Waiter {
    upto: u64,
    thread: Thread,
    is_served: AtomicBool,
}

impl State {
    /// Returns the time to wait for companions.
    fn commit_delay(&self) -> Duration {
        let most = self.takes / WAIT_PART;
        if most < LEAST_WAIT { Duration::ZERO } else { most }
    }

    /// Whether one of `present` callers may begin a flush.
    fn is_gathered(&self, present: usize) -> bool {
        !self.is_running && (present >= self.companions || self.commit_delay().is_zero())
    }

    fn remove(&mut self, waiter: &Arc<Waiter>) {
        self.waiting.retain(|other| !Arc::ptr_eq(other, waiter));
    }
}

impl GroupCommit {
    /// Returns when `reached` returns `upto` or more; flushes for that, or waits for other callers' flushes.
    /// One flush runs at a time.
    ///
    /// # Errors
    /// The error of `flush` for this caller; others try themselves.
    pub(crate) fn until<E>(
        &self,
        upto: u64,
        reached: impl Fn() -> u64,
        flush: impl Fn() -> Result<(), E>,
    ) -> Result<(), E> {
        let mut state = self.state.lock();
        if reached() >= upto {
            return Ok(());
        }
        if !state.is_gathered(state.waiting.len() + 1) && self.wait(&mut state, upto, &reached) {
            return Ok(());
        }
        self.lead(state, &reached, &flush)
    }

    /// Waits until another caller has flushed (true), or this caller must.
    fn wait(&self, state: &mut MutexGuard<'_, State>, upto: u64, reached: &impl Fn() -> u64) -> bool {
        let waiter = Arc::new(Waiter { upto, thread: thread::current(), is_served: AtomicBool::new(false) });
        state.waiting.push(waiter.clone());
        // Deadline of this caller's watch, and the number of flushes begun for which it is valid.
        let mut watch: Option<(Instant, u64)> = None;
        loop {
            watch = watch.filter(|(_, before)| *before == state.begun);
            if reached() >= upto {
                state.remove(&waiter);
                if watch.is_some() {
                    state.is_watched = false;
                }
                // This caller may have been woken to lead, or was the watcher: another one takes over.
                if !state.is_running && !state.is_watched {
                    state.waiting.first().inspect(|next| next.thread.unpark());
                }
                return true;
            }
            let now = Instant::now();
            if state.is_gathered(state.waiting.len()) || watch.is_some_and(|(until, _)| until <= now) {
                state.remove(&waiter);
                return false;
            }
            if !state.is_running && !state.is_watched {
                state.is_watched = true;
                watch = Some((now + state.commit_delay(), state.begun));
            }
            nacre_env::sync::unlocked(state, || match watch {
                Some((until, _)) => thread::park_timeout(until - now),
                None => thread::park(),
            });
            if waiter.is_served.load(Ordering::Acquire) {
                return true;
            }
        }
    }

    /// Flushes, and wakes the callers that it served and the first one that still waits.
    fn lead<E>(
        &self,
        mut state: MutexGuard<'_, State>,
        reached: &impl Fn() -> u64,
        flush: &impl Fn() -> Result<(), E>,
    ) -> Result<(), E> {
        state.is_running = true;
        state.is_watched = false;
        state.begun += 1;
        let began = Instant::now();
        let result = nacre_env::sync::unlocked(&mut state, flush);
        state.takes = (state.takes * 3 + began.elapsed().min(MOST_TAKES)) / 4;
        // Waiting callers came before it began and are served, or came later.
        state.companions = state.waiting.len() + usize::from(result.is_ok());
        state.is_running = false;
        let reached = reached();
        let (served, others) =
            std::mem::take(&mut state.waiting).into_iter().partition(|waiter| waiter.upto <= reached);
        state.waiting = others;
        let served: Vec<Arc<Waiter>> = served;
        served.iter().for_each(|waiter| waiter.is_served.store(true, Ordering::Release));
        let next = state.waiting.first().cloned();
        drop(state);
        // The caller that leads next first: the disk is idle until then.
        next.iter().chain(&served).for_each(|waiter| waiter.thread.unpark());
        result
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nacre_env::sync::mpsc;
    use std::sync::atomic::AtomicU64;

    /// A log to append to and flush, with companions of the last flush and its duration.
    struct Log {
        group_commit: GroupCommit,
        appended: AtomicU64,
        durable: AtomicU64,
        flushes: AtomicU64,
    }

    impl Log {
        fn new(companions: usize, takes: Duration) -> Log {
            let state = Mutex::new(State { companions, takes, ..State::default() });
            Log {
                group_commit: GroupCommit { state },
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
            self.group_commit.until(upto, || self.durable.load(Ordering::SeqCst), flush).expect("flushed");
        }
    }

    #[test]
    fn callers_who_come_back_are_served_by_one_flush_and_not_by_two() {
        let log = Log::new(8, Duration::from_secs(3_600_000));
        nacre_env::thread::scope(|scope| {
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
        assert_eq!(log.group_commit.state.lock().companions, 1);
        assert_eq!(log.durable.load(Ordering::SeqCst), 1);
    }

    #[test]
    fn one_who_is_served_by_others_while_he_watches_leaves_nobody_behind() {
        let log = Log::new(3, Duration::from_millis(400));
        let flush = || {
            log.flushes.fetch_add(1, Ordering::SeqCst);
            log.durable.store(2, Ordering::SeqCst);
            Ok::<(), ()>(())
        };
        let wait_for = |upto| log.group_commit.until(upto, || log.durable.load(Ordering::SeqCst), flush);
        let are_waiting = |count| {
            while log.group_commit.state.lock().waiting.len() < count {
                nacre_env::thread::yield_now();
            }
        };
        nacre_env::thread::scope(|scope| {
            let first = scope.spawn(|| wait_for(1));
            are_waiting(1);
            let second = scope.spawn(|| wait_for(2));
            are_waiting(2);
            // As when a checkpoint makes the first one's transaction durable. The third caller does not
            // arrive.
            log.durable.store(1, Ordering::SeqCst);
            assert_eq!(first.join().expect("ended"), Ok(()));
            assert_eq!(second.join().expect("ended"), Ok(()));
        });
        assert_eq!(log.flushes.load(Ordering::SeqCst), 1);
    }

    #[test]
    fn one_who_was_to_go_on_and_is_served_by_others_leaves_nobody_behind() {
        let together = GroupCommit::default();
        let durable = AtomicU64::new(0);
        let reached = || durable.load(Ordering::SeqCst);
        let all = || {
            durable.store(3, Ordering::SeqCst);
            Ok::<(), ()>(())
        };
        let (ended, ends) = mpsc::channel();
        nacre_env::thread::scope(|scope| {
            let (together, reached, all) = (&together, &reached, &all);
            let are_waiting = |count| {
                while together.state.lock().waiting.len() < count {
                    nacre_env::thread::yield_now();
                }
            };
            let first = || {
                for upto in [2, 3] {
                    let ended = ended.clone();
                    scope.spawn(move || {
                        together.until(upto, reached, all).expect("flushed");
                        ended.send(upto).expect("waited for");
                    });
                    are_waiting(upto as usize - 1);
                }
                durable.store(1, Ordering::SeqCst);
                Ok::<(), ()>(())
            };
            // As when a checkpoint makes the second one's transaction durable after this flush has checked.
            let after_first = || {
                durable.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |now| {
                    Some(now.max(u64::from(now > 0) * 2))
                })
            };
            together.until(1, || after_first().expect("always some"), first).expect("flushed");
            let mut others: Vec<u64> =
                (0..2).map(|_| ends.recv_timeout(Duration::from_secs(20)).expect("nobody is left")).collect();
            others.sort_unstable();
            assert_eq!(others, [2, 3]);
        });
    }

    #[test]
    fn an_error_is_told_to_who_flushed_and_others_try_for_themselves() {
        let together = GroupCommit::default();
        let is_done = AtomicU64::new(0);
        let done = || is_done.load(Ordering::SeqCst);
        let (began, begins) = mpsc::channel();
        nacre_env::thread::scope(|scope| {
            let first = scope.spawn(|| {
                let fail = || {
                    began.send(()).expect("waited for");
                    while together.state.lock().waiting.is_empty() {
                        nacre_env::thread::yield_now();
                    }
                    Err("no")
                };
                together.until(1, done, fail)
            });
            begins.recv().expect("begun");
            let work = || {
                is_done.store(1, Ordering::SeqCst);
                Ok::<(), &str>(())
            };
            assert_eq!(together.until(1, done, work), Ok(()));
            assert_eq!(first.join().expect("ended"), Err("no"));
        });
    }
}
