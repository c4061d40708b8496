//! Limit on the reads and writes in flight to one target (`max_rpcs_in_flight`).

use nacre_env::clock::Instant;
use nacre_env::sync::{Condvar, Mutex};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// A semaphore: a thread that finds it full waits.
#[derive(Default)]
pub(crate) struct Gate {
    inside: AtomicU32,
    waiting: AtomicU32,
    turn: Mutex<()>,
    left: Condvar,
}

impl Gate {
    /// Enters if fewer than `max` are inside.
    pub(crate) fn try_enter(&self, max: u32) -> bool {
        let more = |inside: u32| (inside < max).then(|| inside + 1);
        self.inside.fetch_update(Ordering::SeqCst, Ordering::SeqCst, more).is_ok()
    }

    /// Enters regardless of how many are inside.
    pub(crate) fn enter(&self) {
        self.inside.fetch_add(1, Ordering::SeqCst);
    }

    /// Enters, and waits up to `limit` for a free place.
    pub(crate) fn enter_within(&self, max: u32, limit: Duration) -> bool {
        let until = Instant::now() + limit;
        let mut turn = self.turn.lock();
        self.waiting.fetch_add(1, Ordering::SeqCst);
        // Checked after the waiter has registered, so that no exit between the two is missed.
        let entered = loop {
            if self.try_enter(max) {
                break true;
            }
            if self.left.wait_until(&mut turn, until).timed_out() {
                break self.try_enter(max);
            }
        };
        self.waiting.fetch_sub(1, Ordering::SeqCst);
        entered
    }

    /// Leaves, and wakes a waiting thread.
    pub(crate) fn leave(&self) {
        self.inside.fetch_sub(1, Ordering::SeqCst);
        if self.waiting.load(Ordering::SeqCst) > 0 {
            let _turn = self.turn.lock();
            self.left.notify_one();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_more_than_allowed_are_inside() {
        let gate = Gate::default();
        assert!(gate.try_enter(2) && gate.try_enter(2) && !gate.try_enter(2));
        assert!(gate.try_enter(3), "a larger limit counts at once");
        gate.leave();
        assert!(!gate.enter_within(2, Duration::from_millis(1)));
    }

    #[test]
    fn who_waits_goes_in_when_somebody_leaves() {
        let gate = Gate::default();
        let most = AtomicU32::new(0);
        let now = AtomicU32::new(0);
        nacre_env::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..500 {
                        while !gate.enter_within(2, Duration::from_secs(10)) {}
                        most.fetch_max(now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                        now.fetch_sub(1, Ordering::SeqCst);
                        gate.leave();
                    }
                });
            }
        });
        assert!((1..=2).contains(&most.into_inner()));
        assert_eq!(gate.inside.into_inner(), 0);
    }
}
