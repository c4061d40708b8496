//! File locks: which program holds what, as far as the history tells.

use crate::operation::Region;
use nacre_client::LockMode;
use nacre_types::Status;
use std::collections::BTreeMap;

/// Holder of a lock.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Hash)]
pub(crate) struct Holder {
    /// Program.
    pub(crate) worker: usize,
    /// Open file.
    pub(crate) handle: u64,
}

/// What is locked: the whole file, or one of its parts, which have nothing to do with each other.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Hash)]
enum Place {
    File,
    Part(u8),
}

#[derive(Clone, Copy, Debug, Hash)]
struct Held {
    is_exclusive: bool,
    /// False if it may be lost.
    is_sure: bool,
}

/// Locks of a file.
#[derive(Clone, Debug, Default, Hash)]
pub(crate) struct Locks {
    held: BTreeMap<(Place, Holder), Held>,
}

fn places(region: Region) -> Vec<Place> {
    match region {
        Region::File => vec![Place::File],
        Region::Parts(first, last) => (first..=last).map(Place::Part).collect(),
    }
}

/// Returns the holder as far as it counts in a region: parts belong to programs.
fn holder_in(region: Region, holder: Holder) -> Holder {
    match region {
        Region::File => holder,
        Region::Parts(..) => Holder { handle: 0, ..holder },
    }
}

impl Locks {
    /// Applies a call that sets or releases a lock; `is_sure` unless servers may drop its client at any time.
    ///
    /// # Errors
    /// Why the answer is wrong.
    pub(crate) fn apply(
        &mut self,
        holder: Holder,
        region: Region,
        mode: LockMode,
        result: Result<(), Status>,
        is_sure: bool,
    ) -> Result<(), String> {
        let holder = holder_in(region, holder);
        if mode == LockMode::Unlock {
            for place in places(region) {
                self.held.remove(&(place, holder));
            }
            return result.map_err(|_| "a release expected".to_owned());
        }
        let is_exclusive = mode == LockMode::Write;
        let excluded = |place: Place, ((at, other), held): (&(Place, Holder), &Held)| {
            *at == place && *other != holder && (is_exclusive || held.is_exclusive)
        };
        for place in places(region) {
            let conflict = self.held.iter().find(|held| held.1.is_sure && excluded(place, *held));
            match (result, conflict) {
                (Ok(()), None) => {
                    self.held.retain(|key, held| !excluded(place, (key, held)));
                    self.held.insert((place, holder), Held { is_exclusive, is_sure });
                }
                (Ok(()), Some((by, _))) => return Err(format!("no lock expected: {by:?} has one")),
                (Err(Status::EAGAIN), Some(_)) => return self.refuse(region, holder),
                (Err(Status::EAGAIN), None) if self.held.iter().any(|held| excluded(place, held)) => {
                    return self.refuse(region, holder);
                }
                // `flock` does not change a lock in one step: one that waits may come between.
                (Err(Status::EAGAIN), None) if region == Region::File && self.has(place, holder) => {
                    return self.refuse(region, holder);
                }
                (Err(Status::EAGAIN), None) => {}
                (Err(_), _) => return Err("a lock or EAGAIN expected".to_owned()),
            }
        }
        result.map_err(|_| "a lock expected: no other excludes it".to_owned())
    }

    fn has(&self, place: Place, holder: Holder) -> bool {
        self.held.contains_key(&(place, holder))
    }

    /// Applies a refusal, after which the former lock of a `flock` may be gone.
    fn refuse(&mut self, region: Region, holder: Holder) -> Result<(), String> {
        if region == Region::File {
            self.doubt(|_, other| other == holder);
        }
        Ok(())
    }

    /// Releases the locks that end when a program closes an open file.
    pub(crate) fn close(&mut self, holder: Holder) {
        self.held.retain(|(place, other), _| !ends(*place, *other, holder));
    }

    /// As [`Locks::close`], if it is not known whether they were released.
    pub(crate) fn close_perhaps(&mut self, holder: Holder) {
        self.doubt(|place, other| ends(place, other, holder));
    }

    /// Applies a call that failed because of a fault.
    pub(crate) fn set_perhaps(&mut self, holder: Holder, region: Region, mode: LockMode) {
        let holder = holder_in(region, holder);
        self.doubt(|place, other| other == holder && places(region).contains(&place));
        let is_exclusive = mode == LockMode::Write;
        for place in places(region).into_iter().filter(|_| mode != LockMode::Unlock) {
            let held = self.held.entry((place, holder)).or_insert(Held { is_exclusive, is_sure: false });
            held.is_exclusive |= is_exclusive;
        }
    }

    /// Applies an incident after which each lock may be lost.
    pub(crate) fn lose(&mut self) {
        self.doubt(|_, _| true);
    }

    fn doubt(&mut self, chosen: impl Fn(Place, Holder) -> bool) {
        for ((place, holder), held) in &mut self.held {
            held.is_sure &= !chosen(*place, *holder);
        }
    }
}

fn ends(place: Place, other: Holder, closed: Holder) -> bool {
    match place {
        Place::File => other == closed,
        Place::Part(_) => other.worker == closed.worker,
    }
}
