//! Check of an MDT in use (Lustre's LFSCK): walks its inodes, then records that belong to none, then the objects that it
//! has allocated on OSTs, in bounded steps at a bounded rate.
//!
//! A look takes no locks, so what it finds may only be a change under way. Each finding is looked at again under the
//! lock of its inode, where changes are excluded, and reported if it is still there. A repair of what has one right
//! answer takes place under the same lock; everything else is left to a check of the stopped file system.
//!
//! The thread walks for two purposes: continuously, at a low rate, and at a higher one when an administrator orders it
//! ([`Scrub::start`]). Its position is stored, so both continue after a restart.

mod look;
mod objects;

use crate::check::Kind;
use crate::core::Core;
use crate::leaves::Leaves;
use crate::signal::StopSignal;
use crate::tables::{INODES, LINKS, META, ORPHANS, SCRUB_KEY, XATTRS};
use nacre_env::clock::Instant;
use nacre_env::sync::Mutex;
use nacre_ondisk::ScrubRecord;
use nacre_store::{Batch, Table};
use nacre_types::{Fid, Status, StatusResult, Timestamp};
use std::collections::{BTreeMap, VecDeque};
use std::ops::{Bound, ControlFlow};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Inodes, records or objects of one step.
const STEP: usize = 64;
/// Findings that are kept with their descriptions.
const KEPT_MAX: usize = 1000;
/// Interval at which an idle thread checks whether it is to start.
const IDLE: Duration = Duration::from_millis(500);
/// Pause between two continuous walks.
const REST: Duration = Duration::from_secs(600);
/// Time after which an attended order ends without a question for its state by the command that has given it.
const ATTENDED: Duration = Duration::from_secs(15);
/// Interval at which the position is stored.
const STORED_EVERY: Duration = Duration::from_secs(5);
/// Pause after a step that failed.
const AFTER_FAILURE: Duration = Duration::from_secs(1);
/// Time in which another target has to answer.
const ANSWER_MAX: Duration = Duration::from_secs(3);

/// Part of a walk.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Phase {
    /// Inodes, in the order of their FIDs, with names, layouts and objects.
    #[default]
    Inodes,
    /// Records of inodes that may not exist.
    Leftovers,
    /// Objects on OSTs that may belong to no file.
    Objects,
}

/// A confirmed problem.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Finding {
    /// What is wrong.
    pub kind: Kind,
    /// Inode or object concerned.
    pub fid: Fid,
    /// Description, a sentence for an administrator.
    pub text: String,
    /// It was repaired.
    pub is_repaired: bool,
}

/// What a walk does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Order {
    /// Repairs what can be repaired in use.
    pub repair: bool,
    /// Inodes per second, 0 for as many as possible.
    pub rate: u64,
    /// Begins at the first inode, not where the last walk has stopped.
    pub from_start: bool,
    /// Ends when the command that has given it has ended ([`Scrub::attend`]).
    pub is_attended: bool,
}

/// Walk of the walk.
#[derive(Clone, Debug, Default)]
pub struct ScrubStatus {
    /// True while an order is carried out.
    pub is_ordered: bool,
    /// Number of orders that were carried out or stopped in this run.
    pub orders: u64,
    /// True if the last order was carried out to the end.
    pub is_complete: bool,
    /// Part of the walk under way.
    pub phase: Phase,
    /// Last inode or object.
    pub position: Fid,
    /// Inodes, records and objects looked at since the walk began.
    pub checked: u64,
    /// Number of inodes of the MDT, if it is known.
    pub inodes: Option<u64>,
    /// What could not be looked at because another target did not answer.
    pub skipped: u64,
    /// Walks completed in this run.
    pub passes: u64,
    /// Time at which the last complete walk ended.
    pub completed: Option<Timestamp>,
    /// Number of findings by kind, and how many of them are repaired, of the walk under way.
    pub counts: BTreeMap<Kind, (u64, u64)>,
    /// The same of the last complete walk.
    pub last_counts: BTreeMap<Kind, (u64, u64)>,
    /// Latest findings.
    pub findings: VecDeque<Finding>,
}

impl ScrubStatus {
    /// Returns the number of problems that are left, according to the last complete walk and the one under way.
    pub fn left(&self) -> u64 {
        let left =
            |counts: &BTreeMap<Kind, (u64, u64)>| counts.values().map(|(found, done)| found - done).sum();
        let (now, last): (u64, u64) = (left(&self.counts), left(&self.last_counts));
        now.max(last)
    }
}

#[derive(Default)]
struct Walk {
    order: Option<Order>,
    status: ScrubStatus,
    /// Key after which the walk continues, by its phase: a FID, a table and a key, an OST and an object.
    cursor: Vec<u8>,
    /// Number of the walk: an order begins another one, which looks again at what a step under way looks at.
    number: u64,
    /// Number of the walk that the step under way belongs to.
    stepping: u64,
    /// Time at which the position was stored, and that position.
    stored: Option<(Instant, Vec<u8>)>,
    /// Last time at which the command that has given the order asked for the state.
    attended: Option<Instant>,
    /// End of the last complete walk.
    rested: Option<Instant>,
}

/// See the [module documentation](self).
pub struct Scrub {
    leaves: Arc<Leaves>,
    core: Arc<Core>,
    state: Mutex<Walk>,
    /// Rate of the continuous walk in inodes per second, 0 for none.
    rate: AtomicU64,
}

impl Scrub {
    pub(crate) fn new(leaves: &Arc<Leaves>, core: &Arc<Core>, rate: u64) -> Scrub {
        let (leaves, core) = (leaves.clone(), core.clone());
        let mut state = Walk::default();
        let stored =
            leaves.store.get(META, SCRUB_KEY, |value| value.and_then(|it| ScrubRecord::decode(it).ok()));
        if let Ok(Some(ScrubRecord { phase, cursor })) = stored {
            state.status.phase = match phase {
                0 => Phase::Inodes,
                1 => Phase::Leftovers,
                _ => Phase::Objects,
            };
            state.cursor = cursor;
        }
        Scrub { leaves, core, state: Mutex::new(state), rate: AtomicU64::new(rate) }
    }

    /// Returns the rate of the continuous walk in inodes per second; 0 if it is off.
    pub fn rate(&self) -> u64 {
        self.rate.load(Ordering::Relaxed)
    }

    /// Sets that rate.
    pub fn set_rate(&self, inodes_per_second: u64) {
        self.rate.store(inodes_per_second, Ordering::Relaxed);
    }

    /// Begins an ordered walk, or changes the one under way. It looks at everything once.
    pub fn start(&self, order: Order) {
        self.state.lock().start(order);
    }

    /// Ends an ordered walk; the next one continues there.
    pub fn stop(&self) {
        self.state.lock().end_order();
    }

    /// Returns the state of the walk to the command that has given the order, and extends the order.
    pub fn attend(&self) -> ScrubStatus {
        self.state.lock().attended = Some(Instant::now());
        self.status()
    }

    /// Returns the state of the walk.
    pub fn status(&self) -> ScrubStatus {
        let mut status = self.state.lock().status.clone();
        status.inodes = self.leaves.space.known_inodes();
        status
    }

    /// Walks until the server stops.
    pub(crate) fn run(&self, signal: &StopSignal) {
        loop {
            let (order, is_resting) = {
                let mut state = self.state.lock();
                let is_left = state.attended.is_none_or(|asked| asked.elapsed() > ATTENDED);
                // Under the same lock: an order that comes now must not be ended.
                if state.order.is_some_and(|order| order.is_attended && is_left) {
                    state.end_order();
                }
                (state.order, state.rested.is_some_and(|since| since.elapsed() < REST))
            };
            let rate = order.map_or(self.rate(), |order| order.rate);
            let is_on = order.is_some() || rate > 0 && !is_resting;
            // Clients that reconnect may hold what looks lost.
            if !is_on || self.leaves.mdlocks.is_recovering() {
                if signal.wait(IDLE) {
                    return;
                }
                continue;
            }
            let begin = Instant::now();
            let done = self.step(order.is_some_and(|order| order.repair));
            self.store_position(false);
            let pause = match done {
                Ok(done) if rate > 0 => {
                    Duration::from_secs_f64(done as f64 / rate as f64).saturating_sub(begin.elapsed())
                }
                Ok(_) => Duration::ZERO,
                Err(status) => {
                    log::debug!("MDT{:04x}: a step of the check failed: {status}", self.leaves.index);
                    AFTER_FAILURE
                }
            };
            if signal.wait(pause) {
                self.store_position(true);
                return;
            }
        }
    }

    /// Looks at the next inodes, records or objects; returns their number, at least 1.
    fn step(&self, repair: bool) -> StatusResult<u64> {
        let (phase, cursor) = {
            let mut state = self.state.lock();
            state.stepping = state.number;
            (state.status.phase, state.cursor.clone())
        };
        let done = match phase {
            Phase::Inodes => self.step_inodes(&cursor, repair)?,
            Phase::Leftovers => self.step_leftovers(&cursor, repair)?,
            Phase::Objects => self.step_objects(&cursor, repair)?,
        };
        let count = done.count.max(1);
        self.state.lock().advance(phase, done);
        Ok(count)
    }

    fn step_inodes(&self, cursor: &[u8], repair: bool) -> StatusResult<Done> {
        let (found, next) = self.keys_after(INODES, cursor, true)?;
        let mut files = Vec::new();
        let mut count = found.len() as u64;
        for (key, value) in found {
            let Ok(key) = <[u8; 16]>::try_from(&key[..]) else { continue };
            count += self.examine(Fid::from_key(&key), &value, repair, &mut files)?;
        }
        self.examine_objects(&files, repair)?;
        Ok(Done { count, next })
    }

    fn step_leftovers(&self, cursor: &[u8], repair: bool) -> StatusResult<Done> {
        const TABLES: [Table; 3] = [XATTRS, LINKS, ORPHANS];
        let (number, after) = cursor.split_first().map_or((0, &[][..]), |(number, after)| (*number, after));
        let Some(table) = TABLES.get(usize::from(number)).copied() else {
            return Ok(Done { count: 0, next: None });
        };
        let (found, next) = self.keys_after(table, after, false)?;
        for (key, _) in &found {
            self.examine_leftover(table, key, repair)?;
        }
        let next = match next {
            Some(key) => [&[number][..], &key].concat(),
            None => vec![number + 1],
        };
        Ok(Done { count: found.len() as u64, next: Some(next) })
    }

    /// Returns the next entries of a table, and the key to continue after; without that at the end of the table.
    fn keys_after(
        &self,
        table: Table,
        after: &[u8],
        with_values: bool,
    ) -> StatusResult<(Entries, Option<Vec<u8>>)> {
        let mut found = Entries::new();
        let from = if after.is_empty() { Bound::Unbounded } else { Bound::Excluded(after) };
        let scanned = self.leaves.store.scan(table, &[], from, &mut |key, value| {
            found.push((key.to_vec(), if with_values { value.to_vec() } else { Vec::new() }));
            if found.len() < STEP { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        });
        if let Err(error) = scanned {
            let text = format!("table {} cannot be read: {error}", table.0);
            self.report(Kind::Store, Fid::ZERO, text, false);
            // What can be read behind it is not known: the next phase continues.
            return Ok((found, None));
        }
        let next = if found.len() == STEP { found.last().map(|(key, _)| key.clone()) } else { None };
        Ok((found, next))
    }

    /// Reports a confirmed problem.
    fn report(&self, kind: Kind, fid: Fid, text: String, is_repaired: bool) {
        let index = self.leaves.index;
        match is_repaired {
            true => log::warn!("MDT{index:04x}: repaired: {fid} {text}"),
            false => log::error!("MDT{index:04x}: damage: {fid} {text}"),
        }
        self.state.lock().add(Finding { kind, fid, text, is_repaired });
    }

    /// Runs requests to another target for a limited time: one that is down holds up neither the stop of this target nor
    /// the clients that wait for a locked inode.
    ///
    /// # Errors
    /// `ETIMEDOUT`; `ESHUTDOWN`; those of `ask`.
    fn within<R>(&self, ask: impl FnOnce() -> StatusResult<R>) -> StatusResult<R> {
        if self.leaves.signal.is_stopping() {
            return Err(Status::ESHUTDOWN);
        }
        match nacre_env::until(Instant::now() + ANSWER_MAX, ask) {
            Err(Status::EINTR) => Err(Status::ETIMEDOUT),
            outcome => outcome,
        }
    }

    fn skip(&self, status: Status) {
        log::debug!("MDT{:04x}: the check leaves something out: {status}", self.leaves.index);
        self.state.lock().status.skipped += 1;
    }

    /// Stores the position, so that a walk continues there after a restart.
    pub(crate) fn store_position(&self, now: bool) {
        let record = {
            let mut state = self.state.lock();
            let is_due = match &state.stored {
                None => true,
                Some((at, cursor)) => (now || at.elapsed() >= STORED_EVERY) && *cursor != state.cursor,
            };
            if !is_due {
                return;
            }
            state.stored = Some((Instant::now(), state.cursor.clone()));
            ScrubRecord { phase: state.status.phase as u8, cursor: state.cursor.clone() }
        };
        let mut batch = Batch::new();
        batch.set_releasing(true);
        batch.put(META, SCRUB_KEY, &record.encode());
        if let Err(error) = self.leaves.store.commit(&batch) {
            log::debug!("MDT{:04x}: position of the check: {error}", self.leaves.index);
        }
    }
}

/// Keys and values.
type Entries = Vec<(Vec<u8>, Vec<u8>)>;

/// Result of a step.
struct Done {
    /// Inodes, names, records or objects looked at.
    count: u64,
    /// Position to continue at in the same phase; `None` at its end.
    next: Option<Vec<u8>>,
}

impl Walk {
    fn start(&mut self, order: Order) {
        if order.from_start || self.order.is_none() && self.status.is_complete {
            self.status.phase = Phase::Inodes;
            self.cursor.clear();
        }
        if self.order.is_none() {
            self.status.counts.clear();
            self.status.findings.clear();
            (self.status.checked, self.status.skipped) = (0, 0);
        }
        self.number += 1;
        (self.status.is_ordered, self.status.is_complete) = (true, false);
        self.attended = Some(Instant::now());
        self.order = Some(order);
    }

    fn end_order(&mut self) {
        if self.order.take().is_some() {
            self.status.orders += 1;
            self.status.is_ordered = false;
        }
    }

    /// Moves on after a step, unless an order came meanwhile.
    fn advance(&mut self, phase: Phase, done: Done) {
        if self.stepping != self.number {
            return;
        }
        self.status.checked += done.count;
        match (done.next, phase) {
            (Some(next), _) => self.cursor = next,
            (None, Phase::Inodes) => self.enter(Phase::Leftovers),
            (None, Phase::Leftovers) => self.enter(Phase::Objects),
            (None, Phase::Objects) => self.complete(),
        }
        if let Some(fid) = self.cursor.first_chunk::<16>() {
            self.status.position = Fid::from_key(fid);
        }
    }

    /// Keeps a finding, unless the walk that an order has begun meanwhile finds it again.
    fn add(&mut self, finding: Finding) {
        if self.stepping != self.number && !finding.is_repaired {
            return;
        }
        let count = self.status.counts.entry(finding.kind).or_default();
        *count = (count.0 + 1, count.1 + u64::from(finding.is_repaired));
        if self.status.findings.len() == KEPT_MAX {
            self.status.findings.pop_front();
        }
        self.status.findings.push_back(finding);
    }

    fn enter(&mut self, phase: Phase) {
        self.status.phase = phase;
        self.cursor.clear();
    }

    fn complete(&mut self) {
        self.enter(Phase::Inodes);
        let status = &mut self.status;
        status.passes += 1;
        status.completed = Some(Timestamp::from(nacre_env::clock::wall()));
        status.last_counts = std::mem::take(&mut status.counts);
        if self.order.take().is_some() {
            status.orders += 1;
            (status.is_ordered, status.is_complete) = (false, true);
        } else {
            status.checked = 0;
        }
        self.rested = Some(Instant::now());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_step_has_found_before_an_order_does_not_spare_the_order_that_step() {
        let mut walk = Walk::default();
        let finding = |is_repaired| Finding {
            kind: Kind::Store,
            fid: Fid::ZERO,
            text: "damaged".to_owned(),
            is_repaired,
        };
        walk.add(finding(false));
        assert_eq!(walk.status.counts[&Kind::Store], (1, 0));
        walk.advance(Phase::Inodes, Done { count: 3, next: Some(vec![1]) });
        assert_eq!((walk.status.checked, &walk.cursor[..]), (3, &[1][..]));
        walk.start(Order { repair: false, rate: 0, from_start: true, is_attended: false });
        // The step under way ends.
        walk.add(finding(false));
        walk.advance(Phase::Inodes, Done { count: 3, next: Some(vec![2]) });
        assert_eq!((walk.status.checked, walk.status.counts.len(), walk.cursor.len()), (0, 0, 0));
        // The next one belongs to the order.
        walk.stepping = walk.number;
        walk.add(finding(false));
        walk.advance(Phase::Inodes, Done { count: 3, next: Some(vec![2]) });
        assert_eq!((walk.status.checked, walk.status.findings.len(), &walk.cursor[..]), (3, 1, &[2][..]));
    }
}
