//! The quota master: limits, the uses of all targets, and the division of what is left.

use nacre_types::quota::{GRACE_DEFAULT_S, GRACE_NOTIFY_S};
use nacre_types::{QuotaId, QuotaKind, QuotaLimits, QuotaResource};
use nacre_wire::quota::{
    QUOTA_ENTRIES_MAX, QuotaReport, QuotaResourceState, QuotaRound, QuotaSlice, QuotaState,
};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};

/// What is left of a limit, below which only targets that need more get a part: bytes, and inodes.
const SCARCE: [u64; 2] = [64 << 20, 1024];
/// Least part that a target gets of what is left: bytes, and inodes. One part that serves a request is better than
/// several that do not.
const UNIT: [u64; 2] = [4 << 20, 64];

/// Time in seconds for which space that was admitted for a change of owner counts, until the OSTs have the new owner and
/// have reported it.
const PROMISE_S: u64 = 3;
/// Promises that are kept; the oldest are dropped beyond.
const PROMISES_MAX: usize = 4096;

/// A target that counts use.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Target {
    /// True for an MDT.
    pub is_mdt: bool,
    /// Index.
    pub index: u16,
}

/// What limits belong to.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Key {
    /// Pool of OSTs; empty for the whole file system.
    pub pool: String,
    /// Kind of ids.
    pub kind: QuotaKind,
    /// The id; `None` for ids without limits of their own.
    pub id: Option<u32>,
}

/// Limits of an id, and the ends of its grace times.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Limit {
    /// Limits by resource.
    pub limits: [QuotaLimits; 2],
    /// Times in seconds since the epoch at which the graces end, by resource; 0 where the soft limit is not exceeded.
    pub grace_ends_s: [u64; 2],
    /// True if the defaults apply, and this only has the ends of grace times.
    pub is_default: bool,
}

impl Limit {
    /// Returns what may be used of a resource at a time: the hard limit, or the soft one after its grace;
    /// `u64::MAX` without any.
    fn in_force(&self, resource: QuotaResource, now_s: u64) -> u64 {
        let QuotaLimits { soft, hard } = self.limits[resource as usize];
        let ends_s = self.grace_ends_s[resource as usize];
        let hard = if hard == 0 { u64::MAX } else { hard };
        if soft != 0 && ends_s != 0 && ends_s <= now_s { hard.min(soft) } else { hard }
    }
}

/// Space that an id was admitted for a file that changes its owner, until the targets report it.
#[derive(Clone, Copy, Debug)]
struct Promise {
    id: QuotaId,
    bytes: u64,
    until_s: u64,
}

#[derive(Clone, Copy, Debug, Default)]
struct Use {
    used: u64,
    wants: bool,
    /// Slice that the target has acknowledged; `None` for the default of its kind.
    slice: Option<u64>,
    /// Slice to be sent.
    next: Option<u64>,
    /// Largest slice that was sent and not acknowledged.
    sent: Option<u64>,
}

impl Use {
    /// Returns the use that the target may admit at present. `default`: slice of ids without one.
    fn in_force(&self, default: u64) -> u64 {
        let slice = self.slice.unwrap_or(default).max(self.next.max(self.sent).unwrap_or(0));
        slice.max(self.used)
    }
}

#[derive(Clone, Debug, Default)]
struct Known {
    run: u64,
    seen: u64,
    is_complete: bool,
    uses: BTreeMap<(QuotaResource, QuotaId), Use>,
}

/// How many rounds are due.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Rounds {
    /// None: there are no limits.
    None,
    /// Regular ones.
    Regular,
    /// One at once: a target waits for an answer.
    AtOnce,
}

/// See the [module documentation](self).
#[derive(Debug, Default)]
pub struct Ledger {
    limits: BTreeMap<Key, Limit>,
    /// Seconds by kind and resource; 0 for the default.
    graces: [[u64; 2]; 3],
    pools: HashMap<String, BTreeSet<u16>>,
    targets: BTreeMap<Target, Known>,
    /// Ids whose division may have to change.
    due: BTreeSet<(QuotaResource, QuotaId)>,
    /// Slices of ids without one, by resource and kind.
    defaults: [[Option<u64>; 3]; 2],
    /// Keys whose records have changed.
    changed: BTreeSet<Key>,
    /// Space of files that have just changed their owner, the oldest first.
    promised: VecDeque<Promise>,
    had_limits: bool,
}

/// A limit on the sum of the uses at some targets.
struct Constraint<'a> {
    limit: u64,
    pool: Option<&'a BTreeSet<u16>>,
}

impl Constraint<'_> {
    fn concerns(&self, target: Target) -> bool {
        self.pool.is_none_or(|pool| !target.is_mdt && pool.contains(&target.index))
    }
}

impl Key {
    /// Returns what has to be divided anew when a target comes.
    fn due(&self) -> impl Iterator<Item = (QuotaResource, QuotaId)> + use<> {
        let id = self.id.map(|id| QuotaId { kind: self.kind, id });
        id.into_iter().flat_map(|id| QuotaResource::ALL.map(|resource| (resource, id)))
    }
}

fn counts(resource: QuotaResource, target: Target) -> bool {
    resource == QuotaResource::Space || target.is_mdt
}

fn global(kind: QuotaKind, id: Option<u32>) -> Key {
    Key { pool: String::new(), kind, id }
}

impl Ledger {
    /// Creates a ledger with stored limits and grace times.
    pub fn new(limits: impl IntoIterator<Item = (Key, Limit)>, graces: [[u64; 2]; 3]) -> Ledger {
        let mut ledger = Ledger { limits: limits.into_iter().collect(), graces, ..Ledger::default() };
        ledger.all_due();
        ledger
    }

    /// Sets the targets and the OSTs of each pool.
    pub fn set_targets(&mut self, targets: &[Target], pools: HashMap<String, BTreeSet<u16>>) {
        let mut is_new = self.pools != pools;
        self.pools = pools;
        self.targets.retain(|target, _| targets.contains(target));
        for target in targets {
            is_new |= !self.targets.contains_key(target);
            self.targets.entry(*target).or_default();
        }
        if is_new {
            self.all_due();
        }
    }

    /// Marks all ids that have a use.
    fn all_due(&mut self) {
        let ids = self.targets.values().flat_map(|known| known.uses.keys().copied());
        self.due.extend(ids.collect::<Vec<_>>());
        self.due.extend(self.limits.keys().flat_map(Key::due));
    }

    /// Returns true if there is any limit.
    pub fn has_limits(&self) -> bool {
        self.limits.values().any(|limit| limit.limits.iter().any(QuotaLimits::is_limited))
    }

    /// Returns true if a target that answers has yet to learn of a slice.
    pub fn has_news(&self) -> bool {
        self.targets.values().any(|known| known.run != 0 && known.uses.values().any(|of| of.next.is_some()))
    }

    /// Returns how many rounds are due.
    pub fn rounds(&self) -> Rounds {
        let waits = |known: &Known| known.uses.values().any(|of| of.wants || of.next.is_some());
        if !self.has_limits() && !self.had_limits {
            Rounds::None
        } else if self.targets.values().any(waits) {
            Rounds::AtOnce
        } else {
            Rounds::Regular
        }
    }

    /// Returns the limits that apply to an id, and whether they are the defaults.
    fn limit_of(&self, pool: &str, id: QuotaId) -> (Limit, bool) {
        let key = Key { pool: pool.to_owned(), kind: id.kind, id: Some(id.id) };
        let own = self.limits.get(&key);
        if let Some(own) = own.filter(|own| !own.is_default) {
            return (*own, false);
        }
        // As in Lustre, defaults do not apply to root.
        let default = self.limits.get(&Key { id: None, ..key }).filter(|_| id.id != 0);
        let limits = default.map_or_else(Default::default, |default| default.limits);
        let grace_ends_s = own.map_or([0; 2], |own| own.grace_ends_s);
        (Limit { limits, grace_ends_s, is_default: true }, default.is_some() || own.is_some())
    }

    /// Returns the grace time in seconds.
    pub fn grace_s(&self, kind: QuotaKind, resource: QuotaResource) -> u64 {
        match self.graces[kind as usize][resource as usize] {
            0 => GRACE_DEFAULT_S,
            grace => grace,
        }
    }

    /// Returns all grace times as they are to be stored.
    pub fn graces(&self) -> [[u64; 2]; 3] {
        self.graces
    }

    /// Sets a grace time in seconds.
    pub fn set_grace(&mut self, kind: QuotaKind, resource: QuotaResource, grace_s: u64) {
        self.graces[kind as usize][resource as usize] = grace_s;
    }

    /// Returns the limits stored for a key.
    pub fn stored(&self, key: &Key) -> Option<Limit> {
        self.limits.get(key).copied()
    }

    /// Sets or removes limits.
    pub fn set(&mut self, key: Key, limit: Option<Limit>) {
        self.had_limits |= self.has_limits();
        match limit {
            Some(limit) => drop(self.limits.insert(key, limit)),
            None => drop(self.limits.remove(&key)),
        }
        self.all_due();
    }

    /// Takes the keys whose records have changed by the passage of time or use.
    pub fn take_changed(&mut self) -> Vec<(Key, Option<Limit>)> {
        let changed = std::mem::take(&mut self.changed);
        changed.into_iter().map(|key| (key.clone(), self.stored(&key))).collect()
    }

    /// Returns use and limits of an id.
    pub fn state(&self, pool: &str, id: QuotaId) -> QuotaState {
        let (limit, is_default) = self.limit_of(pool, id);
        let members = (!pool.is_empty()).then(|| self.pools.get(pool)).flatten();
        let of = |resource: QuotaResource| {
            let constraint = Constraint { limit: 0, pool: members };
            let known = self.targets.iter().filter(|(target, _)| constraint.concerns(**target));
            let used = known.filter_map(|(_, known)| known.uses.get(&(resource, id)).map(|of| of.used)).sum();
            QuotaResourceState {
                used,
                limits: limit.limits[resource as usize],
                grace_ends_s: limit.grace_ends_s[resource as usize],
            }
        };
        QuotaState {
            id,
            space: of(QuotaResource::Space),
            inodes: of(QuotaResource::Inodes),
            is_default,
            is_complete: self.targets.values().all(|known| known.run != 0 && known.is_complete),
        }
    }

    /// Admits space of a file that an id gets from another owner, in the whole file system. Returns false if the use that
    /// the targets have reported does not leave it. `now_s`: seconds since the epoch.
    pub fn admit_space(&mut self, id: QuotaId, bytes: u64, now_s: u64) -> bool {
        let limit = self.limit_of("", id).0.in_force(QuotaResource::Space, now_s);
        if limit == u64::MAX {
            return true;
        }
        let is_over = |promise: &Promise| promise.until_s <= now_s;
        while self.promised.front().is_some_and(is_over) || self.promised.len() >= PROMISES_MAX {
            self.promised.pop_front();
        }
        let of_id = self.promised.iter().filter(|promise| promise.id == id);
        let used = self.state("", id).space.used;
        let then = of_id.fold(used.saturating_add(bytes), |sum, promise| sum.saturating_add(promise.bytes));
        if then > limit {
            return false;
        }
        self.promised.push_back(Promise { id, bytes, until_s: now_s.saturating_add(PROMISE_S) });
        true
    }

    /// Returns use and slice of an id at a target; `None` for an unknown one.
    pub fn state_at(&self, target: Target, id: QuotaId) -> Option<QuotaState> {
        let known = self.targets.get(&target)?;
        let of = |resource: QuotaResource| {
            let found = known.uses.get(&(resource, id)).copied().unwrap_or_default();
            let limits = QuotaLimits { soft: 0, hard: found.slice.unwrap_or(u64::MAX) };
            QuotaResourceState { used: found.used, limits, grace_ends_s: 0 }
        };
        Some(QuotaState {
            id,
            space: of(QuotaResource::Space),
            inodes: of(QuotaResource::Inodes),
            is_default: false,
            is_complete: known.run != 0 && known.is_complete,
        })
    }

    /// Returns the owners of each kind that matter most, in the whole file system: up to `count` with most space, as
    /// many with most inodes, and as many that exceed a soft limit. Largest space first.
    pub fn largest(&self, count: usize) -> Vec<QuotaState> {
        let mut used: HashMap<QuotaId, [u64; 2]> = HashMap::new();
        for ((resource, id), of) in self.targets.values().flat_map(|known| &known.uses) {
            let sum = &mut used.entry(*id).or_default()[*resource as usize];
            *sum = sum.saturating_add(of.used);
        }
        // An owner keeps its place while others with the same use come and go.
        let mut all: Vec<(QuotaId, [u64; 2])> = used.into_iter().collect();
        let mut chosen: BTreeSet<QuotaId> = BTreeSet::new();
        for resource in QuotaResource::ALL {
            all.sort_by_key(|(id, used)| (Reverse(used[resource as usize]), *id));
            for kind in QuotaKind::ALL {
                let of_kind = all.iter().filter(|(id, used)| id.kind == kind && used[resource as usize] > 0);
                chosen.extend(of_kind.take(count).map(|(id, _)| *id));
            }
        }
        for kind in QuotaKind::ALL {
            let exceeds = |limit: &Limit| limit.grace_ends_s.iter().any(|end_s| *end_s != 0);
            let of_kind = self
                .limits
                .iter()
                .filter(|(key, limit)| key.pool.is_empty() && key.kind == kind && exceeds(limit));
            chosen.extend(of_kind.filter_map(|(key, _)| Some(QuotaId { kind, id: key.id? })).take(count));
        }
        let mut states: Vec<QuotaState> = chosen.into_iter().map(|id| self.state("", id)).collect();
        states.sort_by_key(|state| (state.id.kind, Reverse(state.space.used), state.id));
        states
    }

    /// Returns the smallest id at or above `from` that has usage or limits.
    pub fn next(&self, pool: &str, from: QuotaId) -> Option<QuotaId> {
        let used = self
            .targets
            .values()
            .flat_map(|known| known.uses.iter().filter(|(_, of)| of.used > 0).map(|((_, id), _)| *id));
        let limited = self.limits.iter().filter(|(key, limit)| key.pool == pool && !limit.is_default);
        let limited = limited.filter_map(|(key, _)| Some(QuotaId { kind: key.kind, id: key.id? }));
        used.chain(limited).filter(|id| id.kind == from.kind && *id >= from).min()
    }

    /// Returns the message for a target.
    pub fn round_for(&mut self, target: Target) -> QuotaRound {
        let defaults = self.defaults.map(|kinds| kinds.map(|limit| limit.unwrap_or(u64::MAX)));
        let Some(known) = self.targets.get_mut(&target) else { return QuotaRound::default() };
        let pending = known.uses.iter_mut().filter_map(|((resource, id), of)| {
            let limit = of.next?;
            of.sent = of.sent.max(Some(limit));
            Some(QuotaSlice { id: *id, resource: *resource, limit })
        });
        let slices = pending.take(QUOTA_ENTRIES_MAX).collect();
        QuotaRound { seen: known.seen, run: known.run, slices, defaults }
    }

    /// Takes over the report for a message. Returns true if the target has more to report.
    pub fn report(&mut self, target: Target, sent: &QuotaRound, report: &QuotaReport) -> bool {
        let Some(known) = self.targets.get_mut(&target) else { return false };
        if known.run != report.run {
            // It may have the slices of its last run, or those that were sent last, or none.
            known.run = report.run;
            for (key, of) in &mut known.uses {
                let slice = of.slice.max(of.sent);
                (of.used, of.slice, of.sent, of.next) = (0, slice, None, of.next.or(slice));
                self.due.insert(*key);
            }
            self.due.extend(self.limits.keys().flat_map(Key::due));
        } else {
            for slice in &sent.slices {
                let Some(of) = known.uses.get_mut(&(slice.resource, slice.id)) else { continue };
                (of.slice, of.sent) = (Some(slice.limit), None);
                // What it has released may be given to others.
                self.due.insert((slice.resource, slice.id));
                // A newer one may have been decided meanwhile.
                of.next = of.next.filter(|next| *next != slice.limit);
            }
        }
        known.seen = report.number;
        known.is_complete = report.is_complete;
        for of in known.uses.values_mut() {
            of.wants = false;
        }
        for reported in &report.uses {
            let key = (reported.resource, reported.id);
            let of = known.uses.entry(key).or_default();
            if of.used != reported.used || reported.wants || of.slice.is_none() {
                self.due.insert(key);
            }
            (of.used, of.wants) = (reported.used, reported.wants);
        }
        report.has_more
    }

    /// Divides what is left of the limits of all ids that are due. `now_s`: seconds since the epoch.
    pub fn divide(&mut self, now_s: u64) {
        self.set_defaults();
        self.watch_graces(now_s);
        let due = std::mem::take(&mut self.due);
        for (resource, id) in due {
            self.divide_one(resource, id, now_s);
        }
        if !self.has_limits() && self.targets.values().all(|it| it.uses.values().all(|of| of.next.is_none()))
        {
            self.had_limits = false;
        }
    }

    fn set_defaults(&mut self) {
        for resource in QuotaResource::ALL {
            let count = self.targets.keys().filter(|target| counts(resource, **target)).count().max(1) as u64;
            for kind in QuotaKind::ALL {
                let limit = self.limits.get(&global(kind, None)).map(|limit| limit.limits[resource as usize]);
                let limit = limit.map(|limit| if limit.hard != 0 { limit.hard } else { limit.soft });
                let slice = limit.filter(|limit| *limit != 0).map(|limit| limit / (4 * count));
                self.defaults[resource as usize][kind as usize] = slice;
            }
        }
    }

    /// Starts and ends grace times.
    fn watch_graces(&mut self, now_s: u64) {
        let mut ids = self.due.clone();
        let running = self.limits.iter().filter(|(_, limit)| limit.grace_ends_s != [0; 2]);
        ids.extend(running.flat_map(|(key, _)| key.due()));
        let pools: Vec<String> = self.pools.keys().cloned().chain([String::new()]).collect();
        for (resource, id) in ids {
            for pool in &pools {
                self.watch_grace(pool, resource, id, now_s);
            }
        }
    }

    fn watch_grace(&mut self, pool: &str, resource: QuotaResource, id: QuotaId, now_s: u64) {
        let (limit, is_default) = self.limit_of(pool, id);
        let state = self.state(pool, id);
        let used = if resource == QuotaResource::Space { state.space.used } else { state.inodes.used };
        let (soft, ends_s) = (limit.limits[resource as usize].soft, limit.grace_ends_s[resource as usize]);
        let is_over = soft != 0 && used > soft;
        let ends_then = match (is_over, ends_s) {
            (false, _) => 0,
            (true, 0) => match self.grace_s(id.kind, resource) {
                GRACE_NOTIFY_S => u64::MAX,
                grace => now_s.saturating_add(grace).max(1),
            },
            (true, running) => running,
        };
        let has_expired = ends_s != 0 && ends_s <= now_s;
        if has_expired {
            self.due.insert((resource, id));
        }
        if ends_then == ends_s {
            return;
        }
        let key = Key { pool: pool.to_owned(), kind: id.kind, id: Some(id.id) };
        let mut stored = Limit { is_default, ..self.stored(&key).unwrap_or_default() };
        stored.grace_ends_s[resource as usize] = ends_then;
        match stored.is_default && stored.grace_ends_s == [0; 2] {
            true => drop(self.limits.remove(&key)),
            false => drop(self.limits.insert(key.clone(), stored)),
        }
        self.changed.insert(key);
        self.due.insert((resource, id));
    }

    fn divide_one(&mut self, resource: QuotaResource, id: QuotaId, now_s: u64) {
        let effective = |limit: &Limit| limit.in_force(resource, now_s);
        let mut constraints = vec![Constraint { limit: effective(&self.limit_of("", id).0), pool: None }];
        if resource == QuotaResource::Space {
            for (name, members) in &self.pools {
                let limit = effective(&self.limit_of(name, id).0);
                constraints.push(Constraint { limit, pool: Some(members) });
            }
        }
        constraints.retain(|constraint| constraint.limit != u64::MAX);
        let default = self.defaults[resource as usize][id.kind as usize];
        let key = (resource, id);
        let mut uses: Vec<(Target, Use)> = Vec::new();
        for (target, known) in self.targets.iter().filter(|(target, _)| counts(resource, **target)) {
            uses.push((*target, known.uses.get(&key).copied().unwrap_or_default()));
        }
        if is_settled(&uses, &constraints, default) {
            return;
        }
        let wanted: Vec<u64> =
            uses.iter().map(|(target, of)| wanted(resource, *target, of, &uses, &constraints)).collect();
        // First what shrinks, which is in force until its target has acknowledged it; then what grows.
        for shrinks in [true, false] {
            for place in 0..uses.len() {
                let (target, of) = uses[place];
                let current = of.next.or(of.slice);
                if current.is_none() && wanted[place] == u64::MAX && default.is_none() {
                    continue;
                }
                let is_less = current.is_none_or(|current| wanted[place] < current);
                if is_less != shrinks || (current == Some(wanted[place]) && !of.wants) {
                    continue;
                }
                let room = constraints.iter().filter(|it| it.concerns(target)).map(|constraint| {
                    let others = uses.iter().enumerate().filter(|(other, _)| *other != place);
                    let others = others.filter(|(_, (target, _))| constraint.concerns(*target));
                    let taken = others.fold(0u64, |sum, (_, (_, of))| {
                        sum.saturating_add(of.in_force(default.unwrap_or(0)))
                    });
                    constraint.limit.saturating_sub(taken)
                });
                let room = room.min().unwrap_or(u64::MAX);
                let next = match shrinks && current.is_some() {
                    true => wanted[place],
                    false => wanted[place].min(room).max(current.unwrap_or(0)),
                };
                // The same slice again tells a target that waits that there is no more, once nothing that others
                // release is on its way.
                let is_final = |(other, (_, of)): (usize, &(Target, Use))| {
                    other == place || of.next.max(of.sent).is_none_or(|next| Some(next) >= of.slice)
                };
                let refuses = of.wants && uses.iter().enumerate().all(is_final);
                if current != Some(next) || refuses {
                    uses[place].1.next = Some(next);
                }
            }
        }
        for (target, of) in uses {
            let known = self.targets.get_mut(&target);
            let known = known.filter(|known| of.next.is_some() && known.run != 0);
            if let Some(known) = known {
                known.uses.entry(key).or_default().next = of.next;
            }
        }
    }
}

/// Returns true if all targets have slices that none wants to be larger and that fit the limits.
fn is_settled(uses: &[(Target, Use)], constraints: &[Constraint<'_>], default: Option<u64>) -> bool {
    let fits = |constraint: &Constraint<'_>| {
        let members = uses.iter().filter(|(target, _)| constraint.concerns(*target));
        let sum = members.fold(0u64, |sum, (_, of)| sum.saturating_add(of.in_force(default.unwrap_or(0))));
        sum <= constraint.limit
    };
    let has_its_slice = |(target, of): &(Target, Use)| {
        let is_limited = constraints.iter().any(|constraint| constraint.concerns(*target));
        let slice = of.next.or(of.slice);
        // One that has used up its slice may have been refused more before there was more.
        !of.wants && slice.is_some_and(|slice| (slice != u64::MAX) == is_limited && of.used < slice)
    };
    uses.iter().all(has_its_slice) && constraints.iter().all(fits)
}

/// Returns the slice that a target should have.
fn wanted(
    resource: QuotaResource,
    target: Target,
    of: &Use,
    uses: &[(Target, Use)],
    constraints: &[Constraint<'_>],
) -> u64 {
    let mut room = u64::MAX;
    for constraint in constraints.iter().filter(|constraint| constraint.concerns(target)) {
        let members = || uses.iter().filter(|(target, _)| constraint.concerns(*target)).map(|(_, of)| of);
        let left = constraint.limit.saturating_sub(members().map(|of| of.used).sum());
        let all = members().count().max(1) as u64;
        let wanting = members().filter(|of| of.wants).count() as u64;
        let share = match (left < SCARCE[resource as usize], of.wants) {
            _ if all == 1 => left,
            (true, true) => (left / wanting.max(1)).max(UNIT[resource as usize]),
            (true, false) if wanting > 0 => 0,
            (false, true) => left / (2 * wanting.max(1)),
            (_, false) => left / (4 * all),
        };
        room = room.min(share);
    }
    if !constraints.iter().any(|constraint| constraint.concerns(target)) {
        return u64::MAX;
    }
    match of.next.or(of.slice) {
        // The slice does not follow what the target had to accept: it shows by how much that is too much.
        Some(current) if room == 0 && of.used > current => current,
        _ => of.used.saturating_add(room),
    }
}

#[cfg(test)]
mod tests;
