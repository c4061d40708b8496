//! The use that one target has counted, by id, and its slices.

use nacre_env::clock::Instant;
use nacre_env::sync::{Condvar, Mutex, RwLock};
use nacre_types::{Owners, QuotaId, QuotaKind, QuotaResource, Status, StatusResult};
use nacre_wire::quota::{QUOTA_ENTRIES_MAX, QuotaReport, QuotaRound, QuotaUse};
use std::collections::HashMap;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

/// Rounds after which a need for a larger slice counts as refused if the master has not answered it: other targets may
/// have to release theirs before.
const ANSWERED_AFTER: u64 = 50;
/// Time for which further needs are refused at once after a refusal.
const REFUSED_FOR: Duration = Duration::from_secs(1);
/// Silence of the master after which a target admits what exceeds a slice: an MDT that is down must not stop jobs.
const SILENCE_MAX: Duration = Duration::from_secs(10);
/// Value of a floor that does not matter any more.
const COUNTED: i64 = i64::MIN;
/// Interval at which a waiting request checks for an interrupt.
const POLL: Duration = Duration::from_millis(100);

/// Use of one resource by one id at this target.
#[derive(Debug)]
pub struct Account {
    id: QuotaId,
    used: AtomicI64,
    /// Least use that is assumed until everything is counted: that of the last run with all changes since; [`COUNTED`]
    /// afterwards.
    floor: AtomicI64,
    /// Use up to which more is admitted, if `has_slice`.
    limit: AtomicU64,
    has_slice: AtomicBool,
    /// A larger slice is needed.
    wants: AtomicBool,
    /// How often the master has left the slice as it is although a larger one was needed.
    refusals: AtomicU64,
    /// Time of the last refusal, as long as nothing has changed since.
    refused: Mutex<Option<Instant>>,
    is_refused: AtomicBool,
    /// Changed since the last report.
    is_changed: AtomicBool,
    /// Number of the last report in which it was new.
    reported: AtomicU64,
}

impl Account {
    fn new(id: QuotaId, is_complete: bool) -> Account {
        Account {
            id,
            used: AtomicI64::new(0),
            floor: AtomicI64::new(if is_complete { COUNTED } else { 0 }),
            limit: AtomicU64::new(u64::MAX),
            has_slice: AtomicBool::new(false),
            wants: AtomicBool::new(false),
            refusals: AtomicU64::new(0),
            refused: Mutex::default(),
            is_refused: AtomicBool::new(false),
            is_changed: AtomicBool::new(false),
            reported: AtomicU64::new(0),
        }
    }

    /// Returns the use.
    pub fn used(&self) -> u64 {
        let used = self.used.load(Ordering::Relaxed).max(self.floor.load(Ordering::Relaxed));
        u64::try_from(used).unwrap_or(0)
    }

    fn add(&self, change: i64) {
        if change == 0 {
            return;
        }
        self.assume(change);
        self.count(change);
        if change < 0 {
            self.forget_refusal();
        }
    }

    /// Changes the use that is assumed until everything is counted.
    fn assume(&self, change: i64) {
        if self.floor.load(Ordering::Relaxed) != COUNTED {
            self.floor.fetch_add(change, Ordering::Relaxed);
            self.is_changed.store(true, Ordering::Relaxed);
        }
    }

    /// Counts what was there before.
    fn count(&self, change: i64) {
        self.used.fetch_add(change, Ordering::Relaxed);
        if !self.is_changed.load(Ordering::Relaxed) {
            self.is_changed.store(true, Ordering::Relaxed);
        }
    }

    /// Records that there is nothing left: for a while no further request is made.
    fn refuse(&self) {
        *self.refused.lock() = Some(Instant::now());
        self.is_refused.store(true, Ordering::Relaxed);
        self.wants.store(false, Ordering::Relaxed);
    }

    fn forget_refusal(&self) {
        if self.is_refused.load(Ordering::Relaxed) {
            self.is_refused.store(false, Ordering::Relaxed);
        }
    }

    fn is_refused(&self) -> bool {
        self.is_refused.load(Ordering::Relaxed)
            && self.refused.lock().is_some_and(|since| since.elapsed() < REFUSED_FOR)
    }

    fn give(&self, limit: u64) {
        let before = self.limit.swap(limit, Ordering::Relaxed);
        let had_slice = self.has_slice.swap(true, Ordering::Relaxed);
        if limit > before {
            self.wants.store(false, Ordering::Relaxed);
            self.forget_refusal();
        } else if limit == before && had_slice {
            self.refusals.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// The accounts that pay for a file: those of its user, group and project.
#[derive(Clone, Debug)]
pub struct Payers {
    accounts: Arc<[Arc<Account>; 3]>,
    /// Which of them limits apply to.
    is_limited: [bool; 3],
}

impl Payers {
    /// Restricts limits to the accounts that a file gets from these owners: it counts for the others already.
    #[must_use]
    pub fn gained_from(mut self, old: Option<Owners>) -> Payers {
        if let Some(old) = old {
            let pairs = old.ids().into_iter().zip(self.owners().ids());
            self.is_limited.iter_mut().zip(pairs).for_each(|(limited, (old, new))| *limited = old != new);
        }
        self
    }

    fn limited(&self) -> impl Iterator<Item = &Arc<Account>> {
        self.accounts.iter().zip(self.is_limited).filter_map(|(account, limited)| limited.then_some(account))
    }

    /// Adds to the use of each.
    pub fn add(&self, change: i64) {
        self.accounts.iter().for_each(|account| account.add(change));
    }

    /// Counts use that was there before the start.
    pub fn count(&self, use_before: i64) {
        self.accounts.iter().for_each(|account| account.count(use_before));
    }

    /// Returns the ids.
    pub fn owners(&self) -> Owners {
        let [user, group, project] = &*self.accounts;
        Owners { uid: user.id.id, gid: group.id.id, projid: project.id.id }
    }
}

/// Whether more may be used.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Admission {
    /// Far from all limits.
    Free,
    /// Within the limits, but what clients hold back may not be.
    Near,
    /// It exceeds the slice of this id.
    Over(QuotaId),
}

/// An account as stored for the next run; one that was never stored has neither a use nor a slice.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Saved {
    /// The id.
    pub id: QuotaId,
    /// The resource.
    pub resource: QuotaResource,
    /// Use.
    pub used: u64,
    /// Slice; `u64::MAX` for one without a limit.
    pub limit: Option<u64>,
}

impl Saved {
    /// Returns true if it has to be stored; `before` is what was stored last.
    pub fn is_news(&self, before: Option<&Saved>) -> bool {
        before.map_or(self.used > 0 || self.limit.is_some(), |before| before != self)
    }
}

#[derive(Debug, Default)]
struct Rounds {
    count: u64,
    last: Option<Instant>,
    /// Number of the newest report.
    number: u64,
}

type Accounts = HashMap<QuotaId, Arc<Account>>;

/// See the [module documentation](self).
#[derive(Debug)]
pub struct Book {
    run: u64,
    began: Instant,
    accounts: [RwLock<Accounts>; 2],
    /// Payers of the last change, by resource.
    recent: [Mutex<Option<Payers>>; 2],
    defaults: [[AtomicU64; 3]; 2],
    rounds: Mutex<Rounds>,
    turned: Condvar,
    is_complete: AtomicBool,
    /// True once there was a slice or a default: until then nothing is limited.
    had_limits: AtomicBool,
}

impl Book {
    /// Creates an empty book for a new run of a target.
    pub fn begin() -> Book {
        // The standard library's hasher gets its keys from the system.
        Book::new(RandomState::new().build_hasher().finish() | 1)
    }

    /// Creates an empty book. `run`: a number that differs for each run of the target, not 0.
    pub(crate) fn new(run: u64) -> Book {
        assert_ne!(run, 0, "0 stands for an unknown run");
        Book {
            run,
            began: Instant::now(),
            accounts: Default::default(),
            recent: Default::default(),
            defaults: [(); 2].map(|()| [(); 3].map(|()| AtomicU64::new(u64::MAX))),
            rounds: Mutex::default(),
            turned: Condvar::default(),
            is_complete: AtomicBool::new(false),
            had_limits: AtomicBool::new(false),
        }
    }

    fn table(&self, resource: QuotaResource) -> &RwLock<Accounts> {
        &self.accounts[resource as usize]
    }

    fn account(&self, resource: QuotaResource, id: QuotaId) -> Arc<Account> {
        if let Some(account) = self.table(resource).read().get(&id) {
            return account.clone();
        }
        let is_complete = self.is_complete();
        self.table(resource)
            .write()
            .entry(id)
            .or_insert_with(|| Arc::new(Account::new(id, is_complete)))
            .clone()
    }

    /// Returns the accounts of a resource that pay for a file.
    pub fn payers(&self, resource: QuotaResource, owners: Owners) -> Payers {
        let accounts = Arc::new(owners.ids().map(|id| self.account(resource, id)));
        Payers { accounts, is_limited: [true; 3] }
    }

    /// Adds to the use of a resource by the owners of a file.
    pub fn add(&self, resource: QuotaResource, owners: Owners, change: i64) {
        // Mostly files of one owner after the other change; their accounts are found without three look-ups.
        let Some(mut recent) = self.recent[resource as usize].try_lock() else {
            return self.payers(resource, owners).add(change);
        };
        if let Some(payers) = recent.as_ref().filter(|payers| payers.owners() == owners) {
            return payers.add(change);
        }
        recent.insert(self.payers(resource, owners)).add(change);
    }

    /// Counts use that was there before the start.
    pub fn count(&self, resource: QuotaResource, owners: Owners, use_before: i64) {
        self.payers(resource, owners).count(use_before);
    }

    /// Records a change of use that the count of what was there before will include.
    pub fn assume(&self, resource: QuotaResource, owners: Owners, change: i64) {
        self.payers(resource, owners).accounts.iter().for_each(|account| account.assume(change));
    }

    /// Returns the use of a resource by an id, and its slice if it has a limit.
    pub fn used(&self, resource: QuotaResource, id: QuotaId) -> (u64, Option<u64>) {
        let found = self.table(resource).read().get(&id).cloned();
        let used = found.as_ref().map_or(0, |account| account.used());
        let limit = found.map_or_else(|| self.default_of(resource, id), |it| self.limit_of(resource, &it));
        (used, Some(limit).filter(|limit| *limit != u64::MAX))
    }

    /// Returns the slice of an id without one of its own; root has no default limits.
    fn default_of(&self, resource: QuotaResource, id: QuotaId) -> u64 {
        if id.id == 0 {
            return u64::MAX;
        }
        self.defaults[resource as usize][id.kind as usize].load(Ordering::Relaxed)
    }

    fn limit_of(&self, resource: QuotaResource, account: &Account) -> u64 {
        match account.has_slice.load(Ordering::Relaxed) {
            true => account.limit.load(Ordering::Relaxed),
            false => self.default_of(resource, account.id),
        }
    }

    /// Returns true if there may be limits.
    pub fn has_limits(&self) -> bool {
        self.had_limits.load(Ordering::Relaxed)
    }

    /// Returns true if a limit applies to one of the payers.
    pub fn is_limited(&self, resource: QuotaResource, payers: &Payers) -> bool {
        self.has_limits() && payers.limited().any(|account| self.limit_of(resource, account) != u64::MAX)
    }

    /// Whether `amount` more may be used, while clients hold back up to `held_back`.
    pub fn admission(
        &self,
        resource: QuotaResource,
        payers: &Payers,
        amount: u64,
        held_back: u64,
    ) -> Admission {
        let mut admission = Admission::Free;
        for account in payers.limited() {
            let limit = self.limit_of(resource, account);
            if limit == u64::MAX {
                continue;
            }
            let then = account.used().saturating_add(amount);
            if then.saturating_add(held_back) <= limit {
                continue;
            }
            if !account.is_refused() {
                account.wants.store(true, Ordering::Relaxed);
            }
            if then > limit {
                return Admission::Over(account.id);
            }
            admission = Admission::Near;
        }
        admission
    }

    /// Returns true if the use of a payer is above its limit by more than `slack`.
    pub fn exceeds(&self, resource: QuotaResource, payers: &Payers, slack: u64) -> bool {
        let is_above =
            |account: &Arc<Account>| account.used() > self.limit_of(resource, account).saturating_add(slack);
        self.has_limits() && payers.limited().any(is_above)
    }

    /// Waits until the master has answered the need for a larger slice. `recount` makes the use exact before the
    /// outcome is decided.
    ///
    /// # Errors
    /// `EDQUOT` if the limit is reached; `EINTR`.
    pub fn wait(
        &self,
        resource: QuotaResource,
        payers: &Payers,
        amount: u64,
        recount: impl Fn(),
    ) -> StatusResult<()> {
        let start = self.rounds.lock().count;
        let refusals = |account: &Account| account.refusals.load(Ordering::Relaxed);
        let before = payers.accounts.each_ref().map(|account| refusals(account));
        let mut is_recounted = false;
        loop {
            let Admission::Over(id) = self.admission(resource, payers, amount, 0) else { return Ok(()) };
            let rounds = self.rounds.lock();
            if rounds.last.unwrap_or(self.began).elapsed() >= SILENCE_MAX {
                return Ok(());
            }
            let mut accounts = payers.accounts.iter().zip(before);
            let account = accounts.find(|(account, _)| account.id == id);
            let has_answer =
                account.is_some_and(|(account, before)| account.is_refused() || refusals(account) != before);
            if has_answer || rounds.count >= start + ANSWERED_AFTER {
                drop(rounds);
                if is_recounted {
                    account.into_iter().for_each(|(account, _)| account.refuse());
                    return Err(Status::EDQUOT);
                }
                recount();
                is_recounted = true;
                continue;
            }
            if nacre_env::interrupted() {
                return Err(Status::EINTR);
            }
            let mut rounds = rounds;
            nacre_env::blocking(|| _ = self.turned.wait_for(&mut rounds, POLL));
        }
    }

    /// Takes over a message of the master, and reports what has changed.
    pub fn round(&self, round: &QuotaRound) -> QuotaReport {
        let is_known = round.run == self.run;
        for (resource, kinds) in QuotaResource::ALL.iter().zip(&round.defaults) {
            for (kind, limit) in QuotaKind::ALL.iter().zip(kinds) {
                let before =
                    self.defaults[*resource as usize][*kind as usize].swap(*limit, Ordering::Relaxed);
                if *limit > before {
                    let accounts = self.table(*resource).read();
                    let concerned = accounts.values().filter(|account| account.id.kind == *kind);
                    concerned.for_each(|account| account.forget_refusal());
                }
            }
        }
        let has_limits =
            !round.slices.is_empty() || round.defaults.iter().flatten().any(|limit| *limit != u64::MAX);
        if has_limits {
            self.had_limits.store(true, Ordering::Relaxed);
        }
        for slice in round.slices.iter().filter(|_| is_known) {
            self.account(slice.resource, slice.id).give(slice.limit);
        }
        let mut rounds = self.rounds.lock();
        rounds.count += 1;
        rounds.last = Some(Instant::now());
        rounds.number += 1;
        let mut report = QuotaReport {
            run: self.run,
            number: rounds.number,
            is_complete: self.is_complete(),
            ..QuotaReport::default()
        };
        self.list(if is_known { round.seen } else { 0 }, &mut report);
        self.turned.notify_all();
        report
    }

    fn list(&self, seen: u64, report: &mut QuotaReport) {
        for resource in QuotaResource::ALL {
            for account in self.table(resource).read().values() {
                let is_new = account.is_changed.swap(false, Ordering::Relaxed);
                // A request that still waits asks again after the round.
                let wants = account.wants.swap(false, Ordering::Relaxed);
                if !is_new && !wants && account.reported.load(Ordering::Relaxed) <= seen {
                    continue;
                }
                if report.uses.len() == QUOTA_ENTRIES_MAX {
                    account.is_changed.store(true, Ordering::Relaxed);
                    account.wants.store(wants, Ordering::Relaxed);
                    report.has_more = true;
                    continue;
                }
                if is_new {
                    account.reported.store(report.number, Ordering::Relaxed);
                }
                report.uses.push(QuotaUse { id: account.id, resource, used: account.used(), wants });
            }
        }
    }

    /// Records that everything is counted: the use of the last run does not matter any more.
    pub fn complete(&self) {
        self.is_complete.store(true, Ordering::Release);
        for account in
            self.accounts.iter().flat_map(|table| table.read().values().cloned().collect::<Vec<_>>())
        {
            account.floor.store(COUNTED, Ordering::Relaxed);
            account.is_changed.store(true, Ordering::Relaxed);
        }
    }

    /// Returns true if everything is counted.
    pub fn is_complete(&self) -> bool {
        self.is_complete.load(Ordering::Acquire)
    }

    /// Returns all accounts, for [`Book::restore`] in the next run.
    pub fn saved(&self) -> Vec<Saved> {
        let mut saved = Vec::new();
        for resource in QuotaResource::ALL {
            for account in self.table(resource).read().values() {
                let has_slice = account.has_slice.load(Ordering::Relaxed);
                let limit = has_slice.then(|| account.limit.load(Ordering::Relaxed));
                saved.push(Saved { id: account.id, resource, used: account.used(), limit });
            }
        }
        saved
    }

    /// Takes over the accounts of the last run. Their use counts as the least until everything is counted.
    pub fn restore(&self, saved: &[Saved]) {
        for Saved { id, resource, used, limit } in saved {
            let account = self.account(*resource, *id);
            account.floor.store(i64::try_from(*used).unwrap_or(i64::MAX), Ordering::Relaxed);
            if let Some(limit) = limit {
                account.give(*limit);
                self.had_limits.store(true, Ordering::Relaxed);
            }
        }
    }

    /// Takes over the accounts of the last run, whose uses are exact.
    pub fn adopt(&self, saved: &[Saved]) {
        self.restore(saved);
        for Saved { id, resource, used, .. } in saved {
            let account = self.account(*resource, *id);
            account.floor.store(COUNTED, Ordering::Relaxed);
            account.used.store(i64::try_from(*used).unwrap_or(i64::MAX), Ordering::Relaxed);
            account.is_changed.store(true, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nacre_env::sim;
    use nacre_wire::quota::QuotaSlice;

    const MINE: Owners = Owners { uid: 7, gid: 8, projid: 0 };
    const USER: QuotaId = QuotaId { kind: QuotaKind::User, id: 7 };
    const SPACE: QuotaResource = QuotaResource::Space;

    fn round_with(limit: u64) -> QuotaRound {
        QuotaRound {
            run: 1,
            slices: vec![QuotaSlice { id: USER, resource: SPACE, limit }],
            defaults: [[u64::MAX; 3]; 2],
            ..QuotaRound::default()
        }
    }

    #[test]
    fn a_report_has_what_changed_since_the_one_that_the_master_has_seen() {
        let book = Book::new(1);
        book.add(SPACE, MINE, 100);
        let first = book.round(&QuotaRound { defaults: [[u64::MAX; 3]; 2], ..QuotaRound::default() });
        assert_eq!((first.uses.len(), first.number), (3, 1));
        let again = book.round(&QuotaRound { run: 1, ..round_with(u64::MAX) });
        assert_eq!(again.uses.len(), 3, "the reply may have been lost");
        let seen = QuotaRound { seen: again.number, ..round_with(u64::MAX) };
        assert!(book.round(&seen).uses.is_empty());
        book.add(SPACE, MINE, -50);
        let used: Vec<u64> = book.round(&seen).uses.iter().map(|of| of.used).collect();
        assert_eq!(used, [50, 50, 50]);
    }

    #[test]
    fn a_slice_admits_up_to_its_end_and_warns_when_held_back_data_might_not_fit() {
        let book = Book::new(1);
        book.round(&round_with(100));
        let payers = book.payers(SPACE, MINE);
        assert_eq!(book.admission(SPACE, &payers, 100, 0), Admission::Free);
        assert_eq!(book.admission(SPACE, &payers, 90, 20), Admission::Near);
        assert_eq!(book.admission(SPACE, &payers, 101, 0), Admission::Over(USER));
        payers.add(60);
        assert_eq!(book.admission(SPACE, &payers, 41, 0), Admission::Over(USER));
        assert!(!book.exceeds(SPACE, &payers, 0));
        payers.add(60);
        assert!(book.exceeds(SPACE, &payers, 19) && !book.exceeds(SPACE, &payers, 20));
        let others = book.payers(SPACE, Owners { uid: 9, ..MINE });
        assert_eq!(book.admission(SPACE, &others, 1 << 40, 1 << 40), Admission::Free);
    }

    #[test]
    fn slices_for_another_run_are_ignored_and_everything_is_reported() {
        let book = Book::new(2);
        book.add(SPACE, MINE, 1);
        assert_eq!(book.round(&QuotaRound { seen: 99, ..round_with(100) }).uses.len(), 3);
        assert_eq!(book.used(SPACE, USER), (1, None));
    }

    #[test]
    fn the_use_of_the_last_run_counts_until_everything_is_counted() {
        let book = Book::new(2);
        book.restore(&[Saved { id: USER, resource: SPACE, used: 90, limit: Some(100) }]);
        let payers = book.payers(SPACE, MINE);
        payers.add(5);
        assert_eq!(book.used(SPACE, USER), (95, Some(100)), "with what has changed since");
        assert_eq!(book.admission(SPACE, &payers, 20, 0), Admission::Over(USER));
        payers.count(15);
        book.complete();
        assert_eq!(book.used(SPACE, USER), (20, Some(100)));
        assert_eq!(book.admission(SPACE, &payers, 20, 0), Admission::Free);
    }

    #[test]
    fn a_writer_waits_for_the_answer_of_the_master_and_later_ones_are_refused_at_once() {
        let book = Arc::new(Book::new(1));
        book.round(&round_with(10));
        let waiting = book.clone();
        let writer = nacre_env::thread::spawn(move || {
            let payers = waiting.payers(SPACE, MINE);
            waiting.wait(SPACE, &payers, 11, || {})
        });
        while !book.account(SPACE, USER).wants.load(Ordering::Relaxed) {
            nacre_env::thread::yield_now();
        }
        while !writer.is_finished() {
            // The same slice again is a refusal.
            book.round(&round_with(10));
            nacre_env::thread::yield_now();
        }
        assert_eq!(writer.join().expect("no panic"), Err(Status::EDQUOT));
        let payers = book.payers(SPACE, MINE);
        assert_eq!(book.wait(SPACE, &payers, 11, || {}), Err(Status::EDQUOT), "without a round");
        book.round(&round_with(20));
        assert_eq!(book.wait(SPACE, &payers, 11, || {}), Ok(()));
    }

    #[test]
    fn a_master_that_has_been_silent_for_long_keeps_no_writer_waiting() {
        let options = sim::Options { seed: 1, limit: Duration::from_secs(60) };
        let waited = sim::run(options, || {
            let book = Book::new(1);
            book.round(&round_with(10));
            let payers = book.payers(SPACE, MINE);
            let wait = || {
                let began = Instant::now();
                (book.wait(SPACE, &payers, 11, || {}), began.elapsed() >= Duration::from_secs(1))
            };
            (wait(), wait())
        });
        assert_eq!(waited.result, ((Ok(()), true), (Ok(()), false)));
    }

    #[test]
    fn a_recount_that_finds_less_use_admits_the_write() {
        let book = Book::new(1);
        book.round(&round_with(10));
        let payers = book.payers(SPACE, MINE);
        payers.add(10);
        book.account(SPACE, USER).refuse();
        assert_eq!(book.wait(SPACE, &payers, 5, || payers.add(-5)), Ok(()));
    }

    #[test]
    fn ids_without_a_slice_have_the_default_of_their_kind() {
        let book = Book::new(1);
        let mut round = round_with(u64::MAX);
        round.defaults[SPACE as usize][QuotaKind::Group as usize] = 50;
        book.round(&round);
        let payers = book.payers(SPACE, MINE);
        let group = QuotaId { kind: QuotaKind::Group, id: 8 };
        assert_eq!(book.admission(SPACE, &payers, 51, 0), Admission::Over(group));
        assert_eq!(book.used(SPACE, group), (0, Some(50)));
    }
}
