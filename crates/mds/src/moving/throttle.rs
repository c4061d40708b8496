//! Throttle for creates in shards that names move out of: as many creates as moves, so that a change ends
//! however fast names are created.
//!
//! New names have positions that are evenly distributed, so at first most are where nothing has moved yet.
//! With `n` names at the beginning, `c` created and `m` moved in a second all are moved after `n / c * (e^(c
//! / m) - 1)` seconds: 1.7 times `n / m` if `c` is no larger than `m`, and in practice never if it is ten
//! times as large.

use nacre_env::clock::Instant;
use nacre_env::sync::{Condvar, Mutex};
use nacre_types::Fid;
use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

/// Longest wait for the next step: half of the longest acceptable delay of a create. Without a step in that
/// time another MDT may be unreachable, and no create waits until there is a step again.
const WAIT_MAX: Duration = Duration::from_millis(50);

/// Shards that names move out of, and how many names may be created there before the next step.
#[derive(Default)]
pub(super) struct CreateThrottle {
    left: Mutex<HashMap<Fid, usize>>,
    /// Length of `left`, so that most requests take no lock.
    count: AtomicUsize,
    stepped: Condvar,
}

impl CreateThrottle {
    /// Records that a step has passed this many names of a shard: as many may be created there before the
    /// next step.
    pub fn on_step(&self, shard: Fid, names: usize) {
        self.change(|left| left.insert(shard, names.max(1)));
    }

    /// Records that names no longer move out of a shard.
    pub fn on_end(&self, shard: Fid) {
        self.change(|left| left.remove(&shard));
    }

    fn change(&self, change: impl FnOnce(&mut HashMap<Fid, usize>) -> Option<usize>) {
        let mut left = self.left.lock();
        change(&mut left);
        self.count.store(left.len(), Ordering::Release);
        self.stepped.notify_all();
    }

    /// Waits before a name is created in a directory or shard, with nothing locked.
    pub fn wait(&self, shard: &Fid) {
        if self.count.load(Ordering::Acquire) != 0 {
            nacre_env::blocking(|| self.wait_for_step(shard));
        }
    }

    fn wait_for_step(&self, shard: &Fid) {
        let deadline = Instant::now() + WAIT_MAX;
        let mut left = self.left.lock();
        while let Some(names) = left.get_mut(shard) {
            if *names > 0 {
                *names -= 1;
                return;
            }
            if self.stepped.wait_until(&mut left, deadline).timed_out() {
                left.remove(shard);
                self.count.store(left.len(), Ordering::Release);
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fid(oid: u32) -> Fid {
        Fid::new(nacre_types::fid::SEQ_NORMAL, oid, 0)
    }

    #[test]
    fn as_many_names_are_made_as_move_and_the_next_waits_for_a_step() {
        let turns = CreateThrottle::default();
        turns.wait(&fid(1));
        turns.on_step(fid(1), 2);
        turns.wait(&fid(2));
        turns.wait(&fid(1));
        turns.wait(&fid(1));
        assert_eq!(turns.left.lock().get(&fid(1)), Some(&0));
        nacre_env::thread::scope(|scope| {
            let waits = scope.spawn(|| turns.wait(&fid(1)));
            turns.on_step(fid(1), 5);
            waits.join().expect("no panic");
        });
        // It has used one of the five, or had waited too long on a busy machine.
        assert!(matches!(turns.left.lock().get(&fid(1)), Some(4 | 5)));
    }

    #[test]
    fn nobody_waits_for_steps_that_do_not_come() {
        let turns = CreateThrottle::default();
        turns.on_step(fid(1), 1);
        turns.wait(&fid(1));
        let start = Instant::now();
        turns.wait(&fid(1));
        assert!(start.elapsed() >= WAIT_MAX);
        assert_eq!(turns.count.load(Ordering::Acquire), 0, "the next one is not held up");
        turns.on_step(fid(1), 1);
        turns.on_end(fid(1));
        turns.wait(&fid(1));
        assert_eq!(turns.count.load(Ordering::Acquire), 0);
    }
}
