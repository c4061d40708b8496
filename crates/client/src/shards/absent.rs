//! Negative entries: names that are known to be absent without a request, for the lookup before every create.
//!
//! A directory that was found empty contains from then on only what this client creates there, as long as its
//! lease or its lock on the directory excludes other clients. So the names it creates are recorded, as
//! hashes, and every other name is absent. A name that was removed stays recorded: a lookup of it is sent to
//! the MDT, which does no harm.
//!
//! Bounds: [`DIRS_MAX`] directories, of which the oldest is dropped; one with more than [`NAMES_MAX`] names
//! is dropped too.

use crate::validity::Validity;
use nacre_env::sync::Mutex;
use nacre_types::Fid;
use nacre_types::limits::NAME_MAX;
use std::collections::{HashSet, VecDeque};
use std::hash::{BuildHasher, BuildHasherDefault, RandomState};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// Directories recorded at a time; a guess: programs that unpack or build fill a few at a time.
const DIRS_MAX: usize = 64;
/// Names recorded of one directory: 4 MiB.
const NAMES_MAX: usize = 1 << 18;

/// The keys are hashes already.
type Hashes = HashSet<u64, BuildHasherDefault<crate::node::IdHasher>>;

/// A directory of which all names are known.
struct Known {
    dir: Fid,
    validity: Validity,
    names: Hashes,
}

/// Directories of a client of which all names are known.
#[derive(Default)]
pub(crate) struct Absences {
    dirs: Mutex<VecDeque<Known>>,
    /// Length of `dirs`, so that most operations take no lock.
    count: AtomicUsize,
    /// Requests that create a name somewhere: those that have begun, and those that have ended.
    begun: AtomicU64,
    ended: AtomicU64,
    hasher: RandomState,
}

/// Number of such requests before a directory is examined.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Look(u64);

/// A request in flight that creates a name somewhere.
#[must_use = "it lasts until it is dropped"]
pub(crate) struct Putting<'a>(&'a Absences);

impl Drop for Putting<'_> {
    fn drop(&mut self) {
        self.0.ended.fetch_add(1, Ordering::SeqCst);
    }
}

impl Absences {
    /// Begins the examination of a directory: `None` while this client creates names anywhere.
    pub fn look(&self) -> Option<Look> {
        let ended = self.ended.load(Ordering::SeqCst);
        (self.begun.load(Ordering::SeqCst) == ended).then_some(Look(ended))
    }

    /// Records that a directory which everybody may search was found empty; ignored if this client has
    /// created a name anywhere since `look`.
    pub fn on_found_empty(&self, look: Option<Look>, dir: Fid, validity: Validity) {
        let mut dirs = self.dirs.lock();
        // Before `look` is checked: a thread that begins to create a name afterwards sees it, waits for the
        // lock, and finds the directory.
        self.count.store(dirs.len() + 1, Ordering::SeqCst);
        if look.is_some_and(|Look(begun)| self.begun.load(Ordering::SeqCst) == begun) {
            enter(&mut dirs, dir, validity);
        }
        self.count.store(dirs.len(), Ordering::SeqCst);
    }

    /// Records a directory that everybody may search and this client has just created, before any other
    /// thread knows of it.
    pub fn on_empty(&self, dir: Fid, validity: Validity) {
        let mut dirs = self.dirs.lock();
        enter(&mut dirs, dir, validity);
        self.count.store(dirs.len(), Ordering::SeqCst);
    }

    /// Records that this client is about to create a name in a directory; the request has ended when the
    /// result is dropped.
    pub fn putting(&self, dir: Fid, name: &[u8]) -> Putting<'_> {
        self.begun.fetch_add(1, Ordering::SeqCst);
        self.on_name(dir, name);
        Putting(self)
    }

    fn on_name(&self, dir: Fid, name: &[u8]) {
        if self.count.load(Ordering::SeqCst) == 0 {
            return;
        }
        let hash = self.hasher.hash_one(name);
        let mut dirs = self.dirs.lock();
        let Some(place) = dirs.iter().position(|known| known.dir == dir) else { return };
        dirs[place].names.insert(hash);
        if dirs[place].names.len() > NAMES_MAX {
            dirs.remove(place);
            self.count.store(dirs.len(), Ordering::SeqCst);
        }
    }

    /// Drops a directory whose search permission has changed, or that is removed.
    pub fn forget(&self, dir: Fid) {
        if self.count.load(Ordering::Acquire) == 0 {
            return;
        }
        let mut dirs = self.dirs.lock();
        dirs.retain(|known| known.dir != dir);
        self.count.store(dirs.len(), Ordering::SeqCst);
    }

    /// Returns the proof that the name is not in the directory, if that is known.
    pub(crate) fn validity(&self, dir: Fid, name: &[u8]) -> Option<Validity> {
        if self.count.load(Ordering::Acquire) == 0 || name.len() > NAME_MAX || name == b".." {
            return None;
        }
        let dirs = self.dirs.lock();
        let known = dirs.iter().find(|known| known.dir == dir)?;
        (!known.names.contains(&self.hasher.hash_one(name))).then_some(known.validity)
    }
}

/// Enters a directory without names.
fn enter(dirs: &mut VecDeque<Known>, dir: Fid, validity: Validity) {
    // A directory that is known already keeps its recorded names.
    let is_known = |known: &Known| known.dir == dir && known.validity == validity;
    if validity == Validity::None || dirs.iter().any(is_known) {
        return;
    }
    dirs.retain(|known| known.dir != dir);
    if dirs.len() == DIRS_MAX {
        dirs.pop_front();
    }
    dirs.push_back(Known { dir, validity, names: Hashes::default() });
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dir(number: u32) -> Fid {
        Fid::new(0x2_0000_0400, number, 0)
    }

    #[test]
    fn only_what_was_put_there_is_asked_for() {
        let known = Absences::default();
        assert_eq!(known.validity(dir(1), b"a"), None);
        known.on_empty(dir(1), Validity::Lease(3));
        known.on_name(dir(1), b"a");
        known.on_name(dir(2), b"b");
        known.on_empty(dir(1), Validity::Lease(3));
        assert_eq!(known.validity(dir(1), b"a"), None, "it is there since the first look");
        assert_eq!(known.validity(dir(1), b"b"), Some(Validity::Lease(3)));
        assert_eq!(known.validity(dir(2), b"c"), None);
        assert_eq!(known.validity(dir(1), b".."), None);
        assert_eq!(known.validity(dir(1), &[b'x'; NAME_MAX + 1]), None, "such a name is an error");
        known.on_empty(dir(1), Validity::Lease(4));
        assert_eq!(known.validity(dir(1), b"a"), Some(Validity::Lease(4)), "it was empty again");
        known.forget(dir(1));
        assert_eq!(known.validity(dir(1), b"b"), None);
        known.on_empty(dir(3), Validity::None);
        assert_eq!(known.validity(dir(3), b"a"), None, "nothing keeps others out");
    }

    #[test]
    fn a_look_beside_a_create_counts_for_nothing() {
        let known = Absences::default();
        let looks: [fn(&Absences) -> Option<Look>; 2] = [
            |known| {
                let _putting = known.putting(dir(1), b"a");
                known.look()
            },
            |known| {
                let look = known.look();
                drop(known.putting(dir(1), b"a"));
                look
            },
        ];
        for look in looks {
            let look = look(&known);
            known.on_found_empty(look, dir(1), Validity::Lease(1));
            assert_eq!(known.validity(dir(1), b"a"), None);
        }
        // Nor is the directory known for a moment to a thread that looks a name up meanwhile.
        let done = std::sync::atomic::AtomicBool::new(false);
        nacre_env::thread::scope(|scope| {
            scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    assert_eq!(known.validity(dir(1), b"a"), None);
                }
            });
            for _ in 0..20_000 {
                let look = known.look();
                drop(known.putting(dir(1), b"a"));
                known.on_found_empty(look, dir(1), Validity::Lease(1));
            }
            done.store(true, Ordering::Relaxed);
        });
        known.on_found_empty(known.look(), dir(1), Validity::Lease(1));
        drop(known.putting(dir(1), b"a"));
        assert_eq!(known.validity(dir(1), b"a"), None);
        assert_eq!(known.validity(dir(1), b"b"), Some(Validity::Lease(1)));
    }

    #[test]
    fn memory_is_bounded() {
        let known = Absences::default();
        for number in 0..=DIRS_MAX as u32 {
            known.on_empty(dir(number + 1), Validity::Lease(1));
        }
        assert_eq!(known.validity(dir(1), b"a"), None, "the oldest went");
        for number in 0..=NAMES_MAX as u64 {
            known.on_name(dir(2), &number.to_le_bytes());
        }
        assert_eq!(known.validity(dir(2), b"a"), None, "too many");
        assert_eq!(known.validity(dir(3), b"a"), Some(Validity::Lease(1)));
    }
}
