//! Versions of object data: the version differs after every change, and stays the same without one.
//!
//! On the first query the version of an object is the time of its last change in nanoseconds, which survives
//! a restart. From then on its changes are counted, because a file system may give two changes the same time:
//! the version is that time plus the count. Objects without a query are not counted, so until the first query
//! a write costs one load of a flag. Stores whose times distinguish all changes need none of this
//! ([`nacre_store::object::Abilities::version_in`]). A count that is dropped from the full table restarts
//! with the time of the last change.

use nacre_env::sync::Mutex;
use nacre_types::{Fid, Timestamp};
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};

/// Most objects whose changes are counted; about 3 MiB. Only a scan of the whole file system queries more.
const COUNTED_MAX: usize = 65_536;

#[derive(Clone, Copy)]
struct Counted {
    base: u64,
    changes: u64,
}

/// See the [module documentation](self).
#[derive(Default)]
pub(crate) struct Versions {
    counted: Mutex<HashMap<Fid, Counted>>,
    any: AtomicBool,
}

impl Versions {
    /// Starts to count the changes of an object. To be called before its attributes are read for
    /// [`Versions::of`].
    pub fn watch(&self, object: Fid) {
        let mut counted = self.counted.lock();
        if counted.len() >= COUNTED_MAX && !counted.contains_key(&object) {
            counted.clear();
        }
        counted.entry(object).or_insert(Counted { base: 0, changes: 0 });
        self.any.store(true, Ordering::SeqCst);
    }

    /// Returns the version of a watched object whose last change was at this time.
    pub fn of(&self, object: Fid, changed: Option<Timestamp>) -> u64 {
        let now = changed.map_or(0, Timestamp::nanoseconds);
        let mut counted = self.counted.lock();
        let Some(known) = counted.get_mut(&object) else { return now };
        if known.base == 0 {
            known.base = now;
        }
        known.base.wrapping_add(known.changes)
    }

    /// Counts a change of an object.
    pub fn note_change(&self, object: Fid) {
        if !self.any.load(Ordering::SeqCst) {
            return;
        }
        if let Some(known) = self.counted.lock().get_mut(&object) {
            known.changes += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_that_get_the_same_time_are_told_apart() {
        let (versions, object) = (Versions::default(), Fid::ost_object(0, 7));
        let time = Some(Timestamp::new(5, 6));
        versions.note_change(object);
        versions.watch(object);
        let first = versions.of(object, time);
        assert_eq!(first, 5_000_000_006);
        versions.watch(object);
        assert_eq!(versions.of(object, time), first, "nothing has changed");
        versions.note_change(object);
        assert_ne!(versions.of(object, time), first);
    }

    #[test]
    fn an_object_without_data_has_a_version_that_its_first_write_changes() {
        let (versions, object) = (Versions::default(), Fid::ost_object(0, 7));
        versions.watch(object);
        assert_eq!(versions.of(object, None), 0);
        versions.note_change(object);
        assert_ne!(versions.of(object, Some(Timestamp::new(5, 6))), 0);
    }
}
