//! Handles reserved for locks that replies in flight may bring, in ranges: a request asks for one lock or for
//! those of a whole page.

use crate::resource::LockHandle;
use std::collections::{BTreeMap, HashMap};

/// State of a reserved handle.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Fate {
    /// No reply has named it, and no callback for it has come.
    Open,
    /// A blocking callback came before the reply.
    CalledBack,
    /// A reply has made it a lock.
    Adopted,
    /// It is not, or not any more, reserved.
    Unknown,
}

#[derive(Debug)]
struct Range {
    count: u64,
    /// States other than [`Fate::Open`].
    fates: HashMap<LockHandle, Fate>,
}

/// Ranges by their first handles; they do not overlap.
#[derive(Debug, Default)]
pub(super) struct Reserved(BTreeMap<LockHandle, Range>);

impl Reserved {
    pub(super) fn add(&mut self, first: LockHandle, count: u64) {
        self.0.insert(first, Range { count, fates: HashMap::new() });
    }

    pub(super) fn remove(&mut self, first: LockHandle) {
        self.0.remove(&first);
    }

    pub(super) fn clear(&mut self) {
        self.0.clear();
    }

    fn range(&mut self, handle: LockHandle) -> Option<&mut Range> {
        let (first, range) = self.0.range_mut(..=handle).next_back()?;
        (handle.0 - first.0 < range.count).then_some(range)
    }

    pub(super) fn contains(&self, handle: LockHandle) -> bool {
        let range = self.0.range(..=handle).next_back();
        range.is_some_and(|(first, range)| handle.0 - first.0 < range.count)
    }

    /// Records a blocking callback for the handle. True if its request may still bring the lock.
    pub(super) fn call_back(&mut self, handle: LockHandle) -> bool {
        let Some(range) = self.range(handle) else { return false };
        *range.fates.entry(handle).or_insert(Fate::CalledBack) == Fate::CalledBack
    }

    /// Marks a handle that a reply names as adopted; returns its state before that.
    pub(super) fn adopt(&mut self, handle: LockHandle) -> Fate {
        let Some(range) = self.range(handle) else { return Fate::Unknown };
        let fate = range.fates.get(&handle).copied().unwrap_or(Fate::Open);
        if fate == Fate::Open {
            range.fates.insert(handle, Fate::Adopted);
        }
        if range.count == 1 {
            self.remove(handle);
        }
        fate
    }
}
