//! Byte ranges of one file that are being read, written or truncated.
//!
//! POSIX requires reads and writes to be atomic with respect to each other. Overlapping ones exclude each
//! other here, disjoint ones run in parallel. The caller does the waiting.

/// How a range is used.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Use {
    /// Shared with other readers.
    Shared,
    /// Without any other user.
    Exclusive,
}

#[derive(Clone, Copy, Debug)]
struct Held {
    start: u64,
    end: u64,
    mode: Use,
    ticket: u64,
}

/// The ranges in use: as many as requests in flight on one file, so a list is enough.
#[derive(Default, Debug)]
pub struct RangeLocks {
    held: Vec<Held>,
    next_ticket: u64,
    /// Exclusive ranges taken so far.
    exclusive_taken: u64,
    /// Threads that wait for a range to be released.
    pub waiters: u32,
}

impl RangeLocks {
    /// Takes `[start, end)` if it is free and returns the ticket for [`RangeLocks::release`].
    pub fn try_take(&mut self, start: u64, end: u64, mode: Use) -> Option<u64> {
        let conflict = |held: &Held| {
            held.start < end && start < held.end && (mode == Use::Exclusive || held.mode == Use::Exclusive)
        };
        if self.held.iter().any(conflict) {
            return None;
        }
        self.next_ticket += 1;
        self.exclusive_taken += u64::from(mode == Use::Exclusive);
        self.held.push(Held { start, end, mode, ticket: self.next_ticket });
        Some(self.next_ticket)
    }

    /// Releases a range.
    pub fn release(&mut self, ticket: u64) {
        if let Some(position) = self.held.iter().position(|held| held.ticket == ticket) {
            self.held.swap_remove(position);
        }
    }

    /// Records a change that was made without a range.
    pub fn note_change(&mut self) {
        self.exclusive_taken += 1;
    }

    /// Returns the number of exclusive uses: between two equal results no such use began.
    pub fn generation(&self) -> u64 {
        self.exclusive_taken
    }

    /// True if no range is in use.
    pub fn is_idle(&self) -> bool {
        self.held.is_empty()
    }

    /// True while some range is in exclusive use.
    pub fn being_changed(&self) -> bool {
        self.held.iter().any(|held| held.mode == Use::Exclusive)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn readers_share_and_writers_exclude_only_what_they_touch() {
        let mut locks = RangeLocks::default();
        let first = locks.try_take(0, 10, Use::Shared).expect("free");
        let second = locks.try_take(5, 20, Use::Shared).expect("shared with the first");
        assert_eq!(locks.try_take(9, 11, Use::Exclusive), None);
        let writer = locks.try_take(20, 30, Use::Exclusive).expect("disjoint");
        assert_eq!(locks.try_take(29, 40, Use::Shared), None);
        locks.release(first);
        locks.release(second);
        assert!(locks.try_take(0, 20, Use::Exclusive).is_some());
        locks.release(writer);
        assert!(locks.being_changed());
        assert_eq!(locks.generation(), 2);
    }
}
