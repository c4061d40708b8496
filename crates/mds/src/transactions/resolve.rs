//! Resolution of transactions in the background, after failures, and before transnos are reported committed;
//! and discovery of other MDTs: at the start, when one joins, and when a request names an unknown one.

use super::state::{Bug, Open, Peers, ROOT_AGE, TICK, TIMEOUT, cause_of};
use super::{Coordinator, Participant};
use crate::error::MdsError;
use crate::layouts::Layouts;
use crate::leaves::Leaves;
use crate::replay::Replayer;
use crate::signal::StopSignal;
use nacre_env::activity::blocking_for;
use nacre_env::clock::Instant;
use nacre_env::sync::Mutex;
use nacre_env::thread::JoinHandle;
use nacre_types::{Fid, Status, StatusResult, TransNo};
use nacre_wire::peer::{PeerReply, PeerRequest, TRANSACTIONS_MAX, Transaction, TransactionId};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};

/// See the [module documentation](self).
pub(crate) struct Resolver {
    leaves: Arc<Leaves>,
    layouts: Arc<Layouts>,
    participant: Arc<Participant>,
    coordinator: Arc<Coordinator>,
    replayer: Arc<Replayer>,
    /// Runs while there are other MDTs, or transactions are prepared here.
    thread: Mutex<Option<JoinHandle<()>>>,
}

/// Body of the thread that resolves distributed transactions. Its first pass runs at once: clients are
/// admitted after it.
fn resolve(resolver: &Weak<Resolver>, signal: &StopSignal) {
    loop {
        let Some(strong) = resolver.upgrade() else { return };
        strong.resolve_once();
        drop(strong);
        if signal.wait(TICK) {
            return;
        }
    }
}

impl Resolver {
    pub fn new(
        leaves: &Arc<Leaves>,
        layouts: &Arc<Layouts>,
        participant: &Arc<Participant>,
        coordinator: &Arc<Coordinator>,
        replayer: &Arc<Replayer>,
    ) -> Resolver {
        Resolver {
            leaves: leaves.clone(),
            layouts: layouts.clone(),
            participant: participant.clone(),
            coordinator: coordinator.clone(),
            replayer: replayer.clone(),
            thread: Mutex::new(None),
        }
    }

    /// Sets the other MDTs. A thread exchanges state with new ones.
    ///
    /// # Errors
    /// If a thread cannot be started.
    pub fn set_peers(self: &Arc<Self>, peers: Peers) -> Result<(), MdsError> {
        self.leaves.transactions.set_peers(peers);
        let mut running = self.thread.lock();
        // Prepared transactions have to be committed or aborted even if no other MDT is left.
        let is_needed = self.leaves.transactions.has_peers() || self.leaves.transactions.has_prepared();
        if running.is_none() && is_needed && !self.leaves.signal.is_stopping() {
            let (weak, signal) = (Arc::downgrade(self), self.leaves.signal.clone());
            let body = move || resolve(&weak, &signal);
            let thread = nacre_env::thread::Builder::new().name("mds-resolve".into()).spawn(body);
            *running = Some(thread.map_err(MdsError::Thread)?);
        }
        Ok(())
    }

    /// Waits for the end of the thread; returns false if it has panicked.
    pub fn join(&self) -> bool {
        // Not under the lock: the thread may be about to look up unknown MDTs, and set them.
        let thread = self.thread.lock().take();
        thread.is_none_or(|thread| thread.join().is_ok())
    }

    /// Waits until this MDT has what it needs from MDT 0 before it accepts the first name: the seed for the
    /// hash of names, and the defaults of the root for the whole file system. Returns false if it does not
    /// have them by `deadline`.
    pub fn await_acquaintance(&self, deadline: Instant) -> bool {
        let mut state = self.leaves.transactions.state.lock();
        while self.leaves.index != 0 && !(state.seed_learned && state.root_seen.is_some()) {
            if Instant::now() >= deadline || self.leaves.signal.is_stopping() {
                return false;
            }
            nacre_env::blocking(|| self.leaves.transactions.changed.wait_for(&mut state, TICK));
        }
        true
    }

    /// Does all due work. Failed work is retried the next time.
    pub fn resolve_once(&self) {
        self.look_at_root();
        self.learn_seed();
        self.greet_new_peers();
        self.replayer.apply_due();
        self.ask_for_outcomes();
        self.apply_everywhere();
        self.forget_what_is_durable();
    }

    /// Reads the root's default layout for the whole file system.
    fn look_at_root(&self) {
        let age = ROOT_AGE;
        let is_due = self.leaves.transactions.state.lock().root_seen.is_none_or(|seen| seen.elapsed() >= age);
        if self.leaves.index == 0 || !is_due || !self.leaves.transactions.has_peers() {
            return;
        }
        let seen = self
            .coordinator
            .inode_elsewhere(&Fid::ROOT)
            .and_then(|root| self.layouts.note_root(&root.ok_or(Status::ENOENT)?));
        match seen {
            Ok(()) => self.leaves.transactions.state.lock().root_seen = Some(Instant::now()),
            Err(status) => log::debug!("MDT{:04x} does not see the root: {status}", self.leaves.index),
        }
    }

    /// Learns the file system's seed for the hash of names, before the first name is stored here.
    fn learn_seed(&self) {
        if self.leaves.index == 0 || self.leaves.transactions.state.lock().seed_learned {
            return;
        }
        let learned = self.leaves.transactions.ask(0, PeerRequest::HashSeed).and_then(|reply| match reply {
            PeerReply::HashSeed(seed) => self.leaves.records.adopt_seed(seed),
            _ => Err(Status::EPROTO),
        });
        match learned {
            Ok(()) => self.leaves.transactions.state.lock().seed_learned = true,
            Err(status) => {
                log::debug!("MDT{:04x} does not learn the seed of names: {status}", self.leaves.index)
            }
        }
    }

    /// Asks each other MDT once for the transactions in which this one took part: its log may have lost them.
    /// They are redone in the order of their stamps, as far as the answering MDTs know them.
    fn greet_new_peers(&self) {
        let peers: Vec<u16> = self.leaves.transactions.peers.read().keys().copied().collect();
        let mut again: BTreeMap<(u64, TransactionId), (Transaction, TransNo)> = BTreeMap::new();
        let mut answered = Vec::new();
        for mdt in peers {
            if self.leaves.transactions.state.lock().greeted.contains(&mdt) {
                continue;
            }
            match self.greet(mdt) {
                Ok(returned) => {
                    for (transaction, transno) in returned {
                        let place = again.entry((transaction.stamp, transaction.id));
                        let (_, known) = place.or_insert((transaction, transno));
                        *known = transno.max(*known);
                    }
                    answered.push(mdt);
                }
                Err(status) => log::debug!("MDT{mdt:04x} cannot fetch transactions to replay: {status}"),
            }
        }
        if self.leaves.transactions.has(Bug::DoesNothingAgain) {
            again.clear();
        }
        for (transaction, transno) in again.into_values() {
            // It may have a place among the changes that clients replay.
            let Some(transaction) = self.leaves.replays.restore(transno, transaction) else { continue };
            if let Err(status) = self.participant.apply(&transaction, TransNo(0)) {
                log::error!(
                    "MDT{:04x}: {} cannot be done again: {status}",
                    self.leaves.index,
                    transaction.id
                );
                return;
            }
        }
        self.replayer.apply_due();
        if !answered.is_empty() {
            self.leaves.transactions.state.lock().greeted.extend(answered);
            self.leaves.transactions.changed.notify_all();
        }
    }

    /// Returns all transactions in which another MDT and this one take part, with the transnos that their parts had
    /// here; 0 where that is not known.
    fn greet(&self, mdt: u16) -> StatusResult<Vec<(Transaction, TransNo)>> {
        let (mut all, mut after) = (Vec::new(), None);
        loop {
            let request = PeerRequest::Hello { mdt: self.leaves.index, after };
            let PeerReply::Greeting { transactions, mut transnos, finished } =
                self.leaves.transactions.ask(mdt, request)?
            else {
                return Err(Status::EPROTO);
            };
            transnos.resize(transactions.len(), TransNo(0));
            self.learn_finished(&finished)?;
            match transactions.last() {
                Some(last) => after = Some(last.id),
                None => return Ok(all),
            }
            all.extend(transactions.into_iter().zip(transnos));
        }
    }

    /// Forgets transactions before these, which are durable on all participants.
    fn learn_finished(&self, finished: &[TransactionId]) -> StatusResult<()> {
        self.participant.forget_transactions(&[], finished).map(drop)
    }

    /// Waits for the greetings before updates of other MDTs are applied: transactions that this MDT has lost
    /// come first. Without the thread no greetings are sent, so there is nothing to wait for.
    pub fn await_own_greetings(&self) {
        if self.leaves.transactions.may_lack_parts() && self.thread.lock().is_some() {
            self.leaves.transactions.await_greetings();
        }
    }

    pub fn ask_for_outcomes(&self) {
        let late: Vec<TransactionId> = {
            let state = self.leaves.transactions.state.lock();
            let late = state.prepared.iter().filter(|(_, prepared)| prepared.since.elapsed() >= TIMEOUT);
            late.map(|(op, _)| *op).collect()
        };
        for op in late {
            if self.leaves.signal.is_stopping() {
                return;
            }
            let outcome = match self.leaves.transactions.is_no_other(op.mdt) {
                // No coordinator can have decided it, and none ever will.
                true => self.participant.abort(&op).map(|_| {
                    log::warn!(
                        "MDT{:04x}: {op} is abandoned: the file system has no MDT{:04x}",
                        self.leaves.index,
                        op.mdt
                    )
                }),
                false => self.participant.learn_outcome(op),
            };
            if let Err(status) = outcome {
                log::debug!("MDT{:04x}: {op} is still not decided: {status}", self.leaves.index);
            }
        }
    }

    /// Returns the transactions coordinated here, with the participants that have not committed their parts.
    fn unapplied(&self) -> Vec<(Arc<Transaction>, Vec<u16>)> {
        let state = self.leaves.transactions.state.lock();
        let own =
            state.open.iter().filter(|(id, _)| id.mdt == self.leaves.index && !state.undecided.contains(id));
        own.map(|(_, open)| (open.transaction.clone(), self.missing_parts(open))).collect()
    }

    /// Returns the other MDTs with a part in a transaction.
    fn others<'a>(&self, transaction: &'a Transaction) -> impl Iterator<Item = u16> + use<'a> {
        let own = self.leaves.index;
        transaction.parts.iter().map(|part| part.mdt).filter(move |mdt| *mdt != own)
    }

    /// Returns the participants that have not committed their parts of a transaction coordinated here.
    fn missing_parts(&self, open: &Open) -> Vec<u16> {
        self.others(&open.transaction).filter(|mdt| !open.applied.contains_key(mdt)).collect()
    }

    fn apply_everywhere(&self) {
        let mut away = BTreeSet::new();
        for (transaction, missing) in self.unapplied() {
            for mdt in missing {
                if self.leaves.signal.is_stopping() {
                    return;
                }
                // Each request to an unreachable MDT takes time until its timeout.
                if away.contains(&mdt) {
                    continue;
                }
                if let Err(status) = self.coordinator.apply_at(mdt, &transaction) {
                    log::debug!(
                        "MDT{mdt:04x} has not committed its part of {} yet: {status}",
                        transaction.id
                    );
                    away.insert(mdt);
                }
            }
        }
    }

    /// True while other MDTs may return transactions that this coordinator has lost with its host: they are not open
    /// here, and would count as finished.
    fn may_get_lost_ones_back(&self) -> bool {
        let replays = &self.leaves.replays;
        replays.has_restored() || replays.may_lack() && !self.leaves.transactions.has_greeted_all()
    }

    /// Forgets transactions coordinated here whose parts are all durable.
    fn forget_what_is_durable(&self) {
        if self.may_get_lost_ones_back() {
            return;
        }
        let synced = self.leaves.store.last_committed();
        let done: Vec<Arc<Transaction>> = {
            let state = self.leaves.transactions.state.lock();
            // A transaction that waits for its commit may still abort, and has no transno yet.
            let is_decided =
                |id: &TransactionId| id.mdt == self.leaves.index && !state.undecided.contains(id);
            let own = state.open.iter().filter(|(id, open)| is_decided(id) && open.transno <= synced);
            own.filter(|(_, open)| self.missing_parts(open).is_empty())
                .map(|(_, open)| open.transaction.clone())
                .collect()
        };
        // One sync makes all commits of an MDT durable, and an unreachable one is asked once.
        let mut synced: BTreeMap<u16, bool> = BTreeMap::new();
        let mut is_durable = |transaction: &Arc<Transaction>| {
            self.others(transaction).all(|mdt| {
                *synced.entry(mdt).or_insert_with(|| {
                    let sync = PeerRequest::Sync { op: transaction.id };
                    !self.leaves.signal.is_stopping() && self.leaves.transactions.ask(mdt, sync).is_ok()
                })
            })
        };
        let durable: Vec<Arc<Transaction>> =
            done.into_iter().filter(|transaction| is_durable(transaction)).collect();
        if let Err(status) = self.forget_durable(&durable) {
            log::debug!(
                "MDT{:04x}: transactions that are durable are not forgotten yet: {status}",
                self.leaves.index
            );
        }
    }

    fn forget_durable(&self, durable: &[Arc<Transaction>]) -> StatusResult<()> {
        let mut others = BTreeSet::new();
        for transaction in durable {
            others.extend(self.others(transaction));
        }
        let leaving = durable.iter().map(|transaction| transaction.id).collect();
        let below = self.leaves.transactions.state.lock().first_unfinished(
            self.leaves.index,
            self.leaves.transactions.boot,
            &leaving,
        );
        for mdt in others {
            let theirs = durable.iter().filter(|transaction| transaction.part(mdt).is_some());
            let ops: Vec<TransactionId> = theirs.map(|transaction| transaction.id).collect();
            for ops in ops.chunks(TRANSACTIONS_MAX) {
                self.leaves.transactions.ask(mdt, PeerRequest::Forget { ops: ops.to_vec(), below })?;
            }
        }
        let ops: Vec<TransactionId> = leaving.into_iter().collect();
        if ops.is_empty() { Ok(()) } else { self.participant.forget_transactions(&ops, &[below]).map(drop) }
    }

    /// Makes all commits here durable, including the part of a transaction; on the coordinator, all its
    /// parts.
    ///
    /// # Errors
    /// `EAGAIN` if the coordinator was not asked yet which transactions are to be redone; `EINTR`,
    /// `ESHUTDOWN`; those of a store or another MDT.
    pub fn sync_transaction(&self, op: &TransactionId) -> StatusResult<PeerReply> {
        self.await_commit_of(op)?;
        let open = {
            let state = self.leaves.transactions.state.lock();
            if op.mdt != self.leaves.index && !state.greeted.contains(&op.mdt) {
                return Err(Status::EAGAIN);
            }
            state.open.get(op).map(|open| open.transaction.clone())
        };
        self.leaves.records.sync_all()?;
        // An unknown transaction is durable on all participants.
        if let Some(transaction) = open.filter(|_| op.mdt == self.leaves.index) {
            self.sync_parts(&transaction)?;
        }
        Ok(PeerReply::Done)
    }

    /// Waits while a transaction is undecided.
    ///
    /// # Errors
    /// `EINTR`, `ESHUTDOWN`.
    fn await_commit_of(&self, op: &TransactionId) -> StatusResult<()> {
        let transactions = &self.leaves.transactions;
        let mut state = transactions.state.lock();
        while state.undecided.contains(op) {
            if self.leaves.signal.is_stopping() {
                return Err(Status::ESHUTDOWN);
            }
            if nacre_env::interrupted() {
                return Err(Status::EINTR);
            }
            blocking_for(cause_of(op), || transactions.changed.wait_for(&mut state, TICK));
        }
        Ok(())
    }

    /// Makes all other parts of a transaction coordinated here durable.
    fn sync_parts(&self, transaction: &Arc<Transaction>) -> StatusResult<()> {
        for mdt in self.others(transaction) {
            let is_applied = {
                let state = self.leaves.transactions.state.lock();
                state.open.get(&transaction.id).is_none_or(|open| open.applied.contains_key(&mdt))
            };
            if !is_applied {
                self.coordinator.apply_at(mdt, transaction)?;
            }
            self.leaves.transactions.ask(mdt, PeerRequest::Sync { op: transaction.id })?;
        }
        Ok(())
    }

    /// Makes the distributed transactions with a part here up to transno `upto` durable on all their MDTs.
    ///
    /// # Errors
    /// `EINTR`, `ESHUTDOWN`; those of a store.
    pub fn settle_transactions(&self, upto: TransNo) -> StatusResult<()> {
        if self.leaves.transactions.unsettled.load(Ordering::Acquire) == 0 {
            return Ok(());
        }
        let ops: Vec<TransactionId> = {
            let state = self.leaves.transactions.state.lock();
            state.unsettled.iter().take_while(|(transno, _)| *transno <= upto).map(|(_, op)| *op).collect()
        };
        for op in &ops {
            loop {
                let settled = match op.mdt == self.leaves.index {
                    true => self.sync_transaction(op),
                    false => self.leaves.transactions.ask(op.mdt, PeerRequest::Sync { op: *op }),
                };
                match settled {
                    Ok(_) => break,
                    Err(status @ (Status::EINTR | Status::ESHUTDOWN | Status::EIO)) => return Err(status),
                    Err(status) => {
                        log::debug!("MDT{:04x}: {op} is not durable yet: {status}", self.leaves.index)
                    }
                }
                if nacre_env::interrupted() {
                    return Err(Status::EINTR);
                }
                if self.leaves.signal.is_stopping() {
                    return Err(Status::ESHUTDOWN);
                }
                let transactions = &self.leaves.transactions;
                nacre_env::blocking(|| transactions.changed.wait_for(&mut transactions.state.lock(), TICK));
            }
        }
        self.leaves.transactions.change(|state| ops.iter().for_each(|op| state.settle(op)));
        Ok(())
    }
}
