//! Choice of OSTs: round-robin while they are about equally full, weighted by free space otherwise. Pure.
//! `docs/operations/pools.md` describes it for administrators.
//!
//! - OSTs that are full or take no new objects are left out; so are, while there are enough others, OSTs
//!   without available object ids, OSTs that other components of the file use, and degraded OSTs, with these
//!   criteria given up in this order. The OST requested as the first one is left out only if it is full or
//!   does not answer.
//! - Round-robin: one rotation for each pool over its OSTs, alternating between servers. From time to time it
//!   restarts at a random place, so that many metadata servers do not march in step.
//! - Weighted: a draw with chances in proportion to weights, which are the free space minus a penalty that an
//!   OST (and its server) gets when it is chosen and that decreases while others are.

use super::rotation::{Penalties, Rotation};
use fastrand::Rng;
use nacre_layout::PoolName;
use std::collections::HashMap;
use std::time::Duration;

/// State of an OST that the choice depends on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Candidate {
    /// Index of the OST.
    pub index: u16,
    /// Id of its server: equal numbers are the same server.
    pub server: u64,
    /// Free bytes for new data; `None` if unknown.
    pub available: Option<u64>,
    /// Used bytes of the total.
    pub used: Option<u64>,
    /// Takes no new objects: it lacks space or inodes, or an administrator has excluded it.
    pub full: bool,
    /// Deactivated by an administrator; then it is `full` too.
    pub inactive: bool,
    /// Has failed recently, or does not answer.
    pub down: bool,
    /// Unresponsive; then it is `down` too.
    pub away: bool,
    /// Works, but slowly: set by an administrator.
    pub degraded: bool,
    /// Has precreated object ids available.
    pub ready: bool,
}

impl Candidate {
    /// Returns true if it takes data and has this many bytes free, as far as that is known.
    pub fn has_free(&self, bytes: u64) -> bool {
        !self.full && self.available.is_none_or(|available| available >= bytes)
    }
}

/// Parameters for the choice of OSTs; administrators may change them at any time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Qos {
    /// Difference of free space in percent up to which OSTs are used round-robin; 100: always
    /// (`qos_threshold_rr`).
    pub threshold_rr_pct: u8,
    /// Age at which the free space of an OST is read again (`qos_maxage`).
    pub statfs_age: Duration,
    /// Weight of free space against the spreading of files, in percent (`qos_prio_free`).
    pub prio_free_pct: u8,
}

/// Requested OSTs.
#[derive(Clone, Copy, Debug)]
pub struct Wanted<'a> {
    /// Number of OSTs; all if there are fewer.
    pub count: u16,
    /// Index of the first OST.
    pub first: Option<u16>,
    /// OSTs that other components of the file use.
    pub used: &'a [u16],
    /// Pool that the candidates are from.
    pub pool: Option<PoolName>,
}

/// State from one choice to the next: rotations and penalties.
pub struct Chooser {
    rotations: HashMap<Option<PoolName>, Rotation>,
    penalties: Penalties,
    random: Rng,
}

impl Chooser {
    /// Builds the initial state; `seed` makes two choosers differ.
    pub fn new(seed: u64) -> Chooser {
        Chooser { rotations: HashMap::new(), penalties: Penalties::default(), random: Rng::with_seed(seed) }
    }

    /// Returns the places in `candidates` (sorted by index) of up to `wanted.count` OSTs in stripe order,
    /// none twice; fewer if fewer are usable. `now_ms` is a monotonic clock in milliseconds.
    ///
    /// If only OSTs that are down are left, it chooses among those, so that the caller tries them.
    pub fn choose(
        &mut self,
        candidates: &[Candidate],
        wanted: &Wanted<'_>,
        qos: &Qos,
        now_ms: u64,
    ) -> Vec<usize> {
        let usable = usable(candidates, wanted);
        let count = usize::from(wanted.count).min(usable.len());
        if count == 0 {
            return Vec::new();
        }
        if let Some(first) = wanted.first {
            // From the requested one on in the order of indexes.
            let start = usable.iter().position(|&i| candidates[i].index >= first).unwrap_or(0);
            return (0..count).map(|i| usable[(start + i) % usable.len()]).collect();
        }
        let known: Option<Vec<u64>> = usable.iter().map(|&i| candidates[i].available).collect();
        match known {
            Some(space) if !is_even(&space, qos.threshold_rr_pct) => {
                self.penalties.draw(candidates, &usable, count, qos.prio_free_pct, now_ms, &mut self.random)
            }
            _ => {
                let turns = interleaved(candidates, usable);
                let rotation = self.rotations.entry(wanted.pool).or_default();
                rotation.take(&turns, count, &mut self.random)
            }
        }
    }

    /// Removes the rotations of pools that do not exist any more.
    pub fn retain_pools(&mut self, exists: impl Fn(&PoolName) -> bool) {
        self.rotations.retain(|pool, _| pool.is_none_or(|pool| exists(&pool)));
    }
}

/// Returns the places of usable OSTs, in the order of indexes: the narrowest set that has enough.
fn usable(candidates: &[Candidate], wanted: &Wanted<'_>) -> Vec<usize> {
    let up = |c: &Candidate| !c.full && !c.down;
    let apart = |c: &Candidate| up(c) && !wanted.used.contains(&c.index);
    let sets: [&dyn Fn(&Candidate) -> bool; 5] = [
        &|c| apart(c) && c.ready && !c.degraded,
        &|c| apart(c) && !c.degraded,
        &|c| up(c) && c.ready && !c.degraded,
        &|c| up(c) && !c.degraded,
        &|c| up(c),
    ];
    // A request for an OST by its index waits for it, as long as the OST can allocate objects at all.
    let is_named = |c: &Candidate| wanted.first == Some(c.index) && up(c);
    let places = |fits: &dyn Fn(&Candidate) -> bool| -> Vec<usize> {
        (0..candidates.len()).filter(|&i| fits(&candidates[i]) || is_named(&candidates[i])).collect()
    };
    let count = usize::from(wanted.count);
    // A caller that specifies the first OST relies on its neighbours.
    let skip = if wanted.first.is_some() { 2 } else { 0 };
    for fits in sets.into_iter().skip(skip) {
        let found = places(fits);
        if found.len() >= count {
            return found;
        }
    }
    match places(&up) {
        none if none.is_empty() => places(&|c| !c.full),
        all => all,
    }
}

fn is_even(space: &[u64], within_pct: u8) -> bool {
    let (min, max) = (space.iter().min().copied().unwrap_or(0), space.iter().max().copied().unwrap_or(0));
    let floor = u128::from(max) * u128::from(100u8.saturating_sub(within_pct));
    floor <= u128::from(min) * 100
}

/// Returns the same places, alternating between servers as evenly as their numbers allow.
fn interleaved(candidates: &[Candidate], places: Vec<usize>) -> Vec<usize> {
    let mut servers: Vec<(u64, Vec<usize>)> = Vec::new();
    for &place in &places {
        let server = candidates[place].server;
        match servers.iter_mut().find(|(known, _)| *known == server) {
            Some((_, of_server)) => of_server.push(place),
            None => servers.push((server, vec![place])),
        }
    }
    if servers.len() < 2 {
        return places;
    }
    // Each place is at the middle of its share of the round.
    let mut turns: Vec<(u64, usize)> = Vec::with_capacity(places.len());
    for (_, of_server) in &servers {
        let share = (1u64 << 32) / of_server.len() as u64;
        turns.extend(of_server.iter().enumerate().map(|(i, place)| (share * i as u64 + share / 2, *place)));
    }
    turns.sort_unstable();
    turns.into_iter().map(|(_, place)| place).collect()
}

#[cfg(test)]
mod tests;
