//! The two methods of allocation among usable OSTs: a rotation (round-robin), and a draw weighted by free
//! space with penalties.

use super::choose::Candidate;
use fastrand::Rng;
use std::collections::BTreeMap;

/// Allocations after which a rotation restarts at a random place: this number, rounded down to a multiple of
/// the OSTs ...
const RESEED_MIN: usize = 2000;
/// ... plus this number for each OST.
const RESEED_PER_OST: usize = 30;
/// Time without a choice in which half of an OST's penalty decays, in milliseconds (`qos_maxage` of 5 s, and
/// an eighth of the idle time).
const DECAY_MS: u64 = 8 * 5000;
/// Halvings after which the penalty is 0.
const DECAYS_MAX: u64 = 32;

/// State of the rotation over the OSTs of a pool.
#[derive(Default)]
pub struct Rotation {
    /// Place at which the next allocation begins, counted from the last restart.
    start: usize,
    /// Grows so that stripe counts that divide the number of OSTs do not always begin at the same OST.
    offset: usize,
    /// Allocations until the next restart.
    left: usize,
}

impl Rotation {
    /// Returns the next `count` of `turns`, which has at least as many.
    pub fn take(&mut self, turns: &[usize], count: usize, random: &mut Rng) -> Vec<usize> {
        let osts = turns.len();
        if self.left == 0 {
            self.start = random.usize(..osts);
            self.left = (RESEED_MIN / osts + RESEED_PER_OST) * osts;
        } else if self.start >= osts {
            self.start %= osts;
            if count > 1 && osts % count != 1 {
                self.offset = (self.offset + 1) % osts;
            }
        }
        self.left -= 1;
        let first = self.start + self.offset;
        self.start += count;
        (0..count).map(|i| turns[(first + i) % osts]).collect()
    }
}

#[derive(Clone, Copy, Default)]
struct Penalty {
    bytes: u128,
    /// Time of the last choice.
    at_ms: u64,
}

impl Penalty {
    fn decayed(self, now_ms: u64) -> u128 {
        match now_ms.saturating_sub(self.at_ms) / DECAY_MS {
            halvings @ 0..DECAYS_MAX => self.bytes >> halvings,
            _ => 0,
        }
    }
}

/// Penalties of recently chosen OSTs and servers.
#[derive(Default)]
pub struct Penalties {
    osts: BTreeMap<u16, Penalty>,
    servers: BTreeMap<u64, Penalty>,
}

/// An OST in a draw.
struct Entry {
    place: usize,
    space: u128,
    /// Penalty in bytes for one object, of the OST and of its server.
    per_object: u128,
    server: u64,
    server_per_object: u128,
    drawn: bool,
}

impl Penalties {
    /// Draws `count` of `usable`, none twice, each with a chance proportional to its weight.
    pub fn draw(
        &mut self,
        candidates: &[Candidate],
        usable: &[usize],
        count: usize,
        prio_free_pct: u8,
        now_ms: u64,
        random: &mut Rng,
    ) -> Vec<usize> {
        let mut entries = entries(candidates, usable, prio_free_pct);
        let mut chosen = Vec::with_capacity(count);
        for _ in 0..count {
            let weights: Vec<u128> =
                entries.iter().map(|entry| self.weight(candidates, entry, now_ms)).collect();
            let total: u128 = weights.iter().sum();
            let left: Vec<usize> = (0..entries.len()).filter(|&at| !entries[at].drawn).collect();
            let at = match total {
                // All weights are used up by penalties: any of them is drawn.
                0 => left[random.usize(..left.len())],
                total => {
                    let mut point = random.u128(..total);
                    let hit = left.iter().copied().find(|&at| {
                        let inside = point < weights[at];
                        point = point.saturating_sub(weights[at]);
                        inside
                    });
                    hit.unwrap_or(left[0])
                }
            };
            entries[at].drawn = true;
            chosen.push(entries[at].place);
            self.note(candidates, &entries, at, now_ms);
        }
        chosen
    }

    /// Returns the weight, at least 1 where there is space, so that no OST starves.
    fn weight(&self, candidates: &[Candidate], entry: &Entry, now_ms: u64) -> u128 {
        if entry.drawn || entry.space == 0 {
            return 0;
        }
        let of = |penalty: Option<&Penalty>| penalty.map_or(0, |penalty| penalty.decayed(now_ms));
        let penalty = of(self.osts.get(&candidates[entry.place].index)) + of(self.servers.get(&entry.server));
        entry.space.saturating_sub(penalty).max(1)
    }

    /// Records a choice: the chosen OST gets a penalty, those of the others decrease by a unit.
    fn note(&mut self, candidates: &[Candidate], entries: &[Entry], at: usize, now_ms: u64) {
        let chosen = &entries[at];
        let mut servers: BTreeMap<u64, u128> = BTreeMap::new();
        for entry in entries {
            servers.insert(entry.server, entry.server_per_object);
        }
        let own = self.osts.entry(candidates[chosen.place].index).or_default();
        own.bytes = own.decayed(now_ms) / 2 + chosen.per_object * entries.len() as u128;
        own.at_ms = now_ms;
        let server = self.servers.entry(chosen.server).or_default();
        server.bytes = server.decayed(now_ms) / 2 + chosen.server_per_object * servers.len() as u128;
        server.at_ms = now_ms;
        for entry in entries {
            if let Some(penalty) = self.osts.get_mut(&candidates[entry.place].index) {
                penalty.bytes = penalty.bytes.saturating_sub(entry.per_object);
            }
        }
        for (server, per_object) in servers {
            if let Some(penalty) = self.servers.get_mut(&server) {
                penalty.bytes = penalty.bytes.saturating_sub(per_object);
            }
        }
    }
}

fn entries(candidates: &[Candidate], usable: &[usize], prio_free_pct: u8) -> Vec<Entry> {
    let spread = u128::from(100 - prio_free_pct.min(100));
    let space = |place: usize| u128::from(candidates[place].available.unwrap_or(0));
    // The share of free space that counts for spreading, halved, divided by the number of alternatives.
    let per_object = |space: u128, others: usize| space * spread / 200 / others.max(1) as u128;
    let mut servers: BTreeMap<u64, (u128, usize)> = BTreeMap::new();
    for &place in usable {
        let of_server = servers.entry(candidates[place].server).or_default();
        of_server.0 += space(place);
        of_server.1 += 1;
    }
    let entry = |&place: &usize| {
        let server = candidates[place].server;
        let (sum, count) = servers[&server];
        Entry {
            place,
            space: space(place),
            per_object: per_object(space(place), usable.len() - 1),
            server,
            server_per_object: match servers.len() {
                1 => 0,
                several => per_object(sum / count as u128, several - 1) / 2,
            },
            drawn: false,
        }
    };
    usable.iter().map(entry).collect()
}
