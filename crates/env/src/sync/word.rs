//! A futex: a word in memory that threads wait on. Cheaper than a condition variable where the word is the
//! whole state.

use std::panic::Location;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use rustix::thread::futex::{self, Flags, Timespec};

use crate::clock::Instant;
use crate::sim;

/// Sleeps while `word` is `expected`, until a wake-up, a signal, or `limit`. The caller has to read the word
/// again.
#[track_caller]
pub fn wait(word: &AtomicU32, expected: u32, limit: Duration) {
    if sim::is_here() {
        // No other thread runs between the check and the wait.
        if word.load(Ordering::Acquire) == expected {
            let until = (Instant::now() + limit).to_std();
            sim::wait(word.as_ptr().addr(), Some(until), Location::caller());
        }
        return;
    }
    let limit = Timespec::try_from(limit).ok();
    // All results (woken, changed, timed out, signal) are correct.
    let _ = futex::wait(word, Flags::PRIVATE, expected, limit.as_ref());
}

/// Wakes one thread that sleeps on `word`.
#[track_caller]
pub fn wake_one(word: &AtomicU32) {
    if sim::is_here() {
        sim::notify(word.as_ptr().addr(), false);
        return;
    }
    // A wake-up of a valid word cannot fail.
    let _ = futex::wake(word, Flags::PRIVATE, 1);
}
