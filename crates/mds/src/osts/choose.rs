//! Choosing OSTs: in turn while they are about equally full, by free space otherwise. Pure. Source: reference 4.6;
//! `docs/operations/pools.md` says it for administrators.
//!
//! - What is full or takes no new objects is left out; so is, while there are enough others, what has no object ids ready, what
//!   other components of the file use, and what is degraded, given up in this order. The OST that is asked for as the first one is
//!   left out only if it is full or does not answer.
//! - In turn: one rotation for each pool over its OSTs, those of different servers alternating. Every so often it begins
//!   anew anywhere, so that many metadata servers do not march in step.
//! - By free space: a draw with chances in proportion to weights, which are the free space less a penalty that an OST (and its
//!   server) gets when it is chosen and works off while others are.

use super::turns::{Penalties, Rotation};
use fastrand::Rng;
use nacre_layout::PoolName;
use std::collections::HashMap;
use std::time::Duration;

/// What the choice needs to know of an OST.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Candidate {
    /// Its index.
    pub index: u16,
    /// Which server it is on: equal numbers are the same one.
    pub server: u64,
    /// Free bytes for new data; `None` if not known yet.
    pub available: Option<u64>,
    /// Bytes in use of those that there are.
    pub used: Option<u64>,
    /// Takes no new objects: it lacks space or inodes, or an operator said so.
    pub full: bool,
    /// An operator has taken it out of use; then it is `full` too.
    pub inactive: bool,
    /// Failed lately, or does not answer.
    pub down: bool,
    /// Does not answer; then it is `down` too.
    pub away: bool,
    /// Works, but slowly: an operator said so.
    pub degraded: bool,
    /// Has object ids ready.
    pub ready: bool,
}

impl Candidate {
    /// True if it takes data and has so many bytes free, as far as that is known.
    pub fn has_free(&self, bytes: u64) -> bool {
        !self.full && self.available.is_none_or(|available| available >= bytes)
    }
}

/// How OSTs are chosen; administrators may change it at any time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Qos {
    /// Difference of free space in percent up to which OSTs are used in turn; 100: always (`qos_threshold_rr`).
    pub threshold_rr_pct: u8,
    /// Age from which the free space of an OST is asked for again (`qos_maxage`).
    pub statfs_age: Duration,
    /// How much free space counts against spreading files, in percent (`qos_prio_free`).
    pub prio_free_pct: u8,
}

/// A wish for OSTs.
#[derive(Clone, Copy, Debug)]
pub struct Wanted<'a> {
    /// How many; as many as there are if there are fewer.
    pub count: u16,
    /// The first one.
    pub first: Option<u16>,
    /// Those that other components of the file use.
    pub used: &'a [u16],
    /// The pool that the candidates are from.
    pub pool: Option<PoolName>,
}

/// What is remembered from one choice to the next.
pub struct Chooser {
    rotations: HashMap<Option<PoolName>, Rotation>,
    penalties: Penalties,
    random: Rng,
}

impl Chooser {
    /// Without memories; `seed` makes two of them differ.
    pub fn new(seed: u64) -> Chooser {
        Chooser { rotations: HashMap::new(), penalties: Penalties::default(), random: Rng::with_seed(seed) }
    }

    /// Places in `candidates` (sorted by index) of up to `wanted.count` OSTs in stripe order, none twice; fewer if fewer can
    /// be used. `now_ms` is any clock that does not go back.
    ///
    /// If nothing but OSTs that are down is left, those are chosen, so that the caller tries them.
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
            // From the wanted one on in the order of indexes.
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

    /// Forgets the turns of pools that are gone.
    pub fn retain_pools(&mut self, exists: impl Fn(&PoolName) -> bool) {
        self.rotations.retain(|pool, _| pool.is_none_or(|pool| exists(&pool)));
    }
}

/// Places of those that may be chosen now, in the order of indexes: the narrowest set that has enough.
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
    // An OST that is asked for by its index is waited for, as long as it can give objects at all.
    let is_named = |c: &Candidate| wanted.first == Some(c.index) && up(c);
    let places = |fits: &dyn Fn(&Candidate) -> bool| -> Vec<usize> {
        (0..candidates.len()).filter(|&i| fits(&candidates[i]) || is_named(&candidates[i])).collect()
    };
    let count = usize::from(wanted.count);
    // Who names the first one has neighbours in mind.
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

/// The same places, those of different servers alternating as evenly as their numbers allow.
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
    // Each one's turn is at the middle of its share of the round.
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
