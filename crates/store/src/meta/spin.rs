//! Adaptive spinning: taking a lock that is held for a microsecond or two.
//!
//! A lock of the store is held for a copy, and occasionally for a page fault. A waiter does better to spin
//! that long than to sleep: the sleep and the wake-up across CPUs cost 20 to 50 us. `parking_lot` spins for
//! less than a microsecond.

use std::hint::spin_loop;

/// Attempts before a thread sleeps; 4 to 9 us in all.
const LOOKS: usize = 50;
/// Processor pauses between two attempts.
const PAUSES: usize = 4;

/// Returns the result of `look`, tried for a while, or else that of `wait`.
#[inline]
pub(crate) fn spin_then_block<G>(look: impl Fn() -> Option<G>, wait: impl FnOnce() -> G) -> G {
    match look() {
        Some(guard) => guard,
        None => look_again(look).unwrap_or_else(wait),
    }
}

#[cold]
fn look_again<G>(look: impl Fn() -> Option<G>) -> Option<G> {
    (0..LOOKS).find_map(|_| {
        (0..PAUSES).for_each(|_| spin_loop());
        look()
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use nacre_env::sync::Mutex;

    #[test]
    fn a_lock_that_stays_held_is_waited_for() {
        let lock = Mutex::new(1);
        let held = lock.lock();
        nacre_env::thread::scope(|scope| {
            let (waits, is_waiting) = nacre_env::sync::mpsc::channel();
            let lock = &lock;
            let taken = scope.spawn(move || {
                let wait = || {
                    waits.send(()).expect("listened to");
                    lock.lock()
                };
                *spin_then_block(|| lock.try_lock(), wait)
            });
            is_waiting.recv().expect("the looks end");
            drop(held);
            assert_eq!(taken.join().expect("no panic"), 1);
        });
        assert_eq!(*spin_then_block(|| lock.try_lock(), || unreachable!("it is free")), 1);
    }
}
