//! Interrupts that came before the thread that read their request has begun it.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// Notes kept at most; the oldest go first.
const NOTES_MAX: usize = 64;
/// A request that was read is begun within microseconds; older notes are for requests that were answered before.
const NOTE_LIFETIME: Duration = Duration::from_secs(2);

#[derive(Debug, Default)]
pub(super) struct PendingInterrupts {
    count: AtomicUsize,
    notes: Mutex<VecDeque<(u64, Instant)>>,
}

impl PendingInterrupts {
    pub fn add(&self, unique: u64) {
        let now = Instant::now();
        let mut notes = self.notes.lock();
        notes.retain(|(_, since)| now.duration_since(*since) < NOTE_LIFETIME);
        if notes.len() == NOTES_MAX {
            notes.pop_front();
        }
        notes.push_back((unique, now));
        self.count.store(notes.len(), Ordering::SeqCst);
    }

    /// Is there a note for this request? It is taken away. One load when there are no notes at all.
    pub fn take(&self, unique: u64) -> bool {
        if self.count.load(Ordering::SeqCst) == 0 {
            return false;
        }
        let now = Instant::now();
        let mut notes = self.notes.lock();
        let before = notes.iter().any(|(number, _)| *number == unique);
        notes.retain(|(number, since)| *number != unique && now.duration_since(*since) < NOTE_LIFETIME);
        self.count.store(notes.len(), Ordering::SeqCst);
        before
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_note_is_found_once() {
        let pending = PendingInterrupts::default();
        assert!(!pending.take(4));
        pending.add(4);
        pending.add(6);
        assert!(!pending.take(8));
        assert!(pending.take(4));
        assert!(!pending.take(4));
        assert!(pending.take(6));
    }

    #[test]
    fn notes_are_bounded() {
        let pending = PendingInterrupts::default();
        for unique in 1..=1000 {
            pending.add(unique);
        }
        assert_eq!(pending.notes.lock().len(), NOTES_MAX);
        assert!(!pending.take(1), "the oldest went");
        assert!(pending.take(1000));
    }
}
