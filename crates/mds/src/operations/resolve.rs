//! What happens to operations in the background, after failures, and before something may be called durable.

use super::Distributed;
use super::state::{Bug, Open, PATIENCE, ROOT_AGE, encode_record};
use crate::signal::StopSignal;
use crate::tables::{FINISHED, OPERATIONS, op_key};
use nacre_env::clock::Instant;
use nacre_types::{Fid, Status, StatusResult, TransNo};
use nacre_wire::peer::{OPERATIONS_MAX, OpId, Operation, PeerReply, PeerRequest};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;

/// Time between two looks.
pub(super) const TICK: Duration = Duration::from_millis(250);
/// How long clients wait for what other MDTs know of operations before a restart.
const GREETING_PATIENCE: Duration = Duration::from_secs(5);

/// Body of the thread that sees to operations over several MDTs. It begins at once: clients are let in after its first look.
pub fn resolve(distributed: &Weak<Distributed>, signal: &StopSignal) {
    loop {
        let Some(strong) = distributed.upgrade() else { return };
        strong.resolve_once();
        drop(strong);
        if signal.wait(TICK) {
            return;
        }
    }
}

impl Distributed {
    /// Does what is due. Failures are tried again the next time.
    pub fn resolve_once(&self) {
        self.look_at_root();
        self.learn_seed();
        self.greet_new_peers();
        self.ask_for_outcomes();
        self.apply_everywhere();
        self.forget_what_is_durable();
    }

    /// Learns the layout that the root has for the whole file system.
    fn look_at_root(&self) {
        let age = ROOT_AGE;
        let is_due = self.operations.state.lock().root_seen.is_none_or(|seen| seen.elapsed() >= age);
        if self.index == 0 || !is_due || !self.operations.has_peers() {
            return;
        }
        let seen = self
            .inode_elsewhere(&Fid::ROOT)
            .and_then(|root| self.layouts.note_root(&root.ok_or(Status::ENOENT)?));
        match seen {
            Ok(()) => self.operations.state.lock().root_seen = Some(Instant::now()),
            Err(status) => log::debug!("MDT{:04x} does not see the root: {status}", self.index),
        }
    }

    /// Learns, before the first name is put here, with what the file system hashes names.
    fn learn_seed(&self) {
        if self.index == 0 || self.operations.state.lock().seed_learned {
            return;
        }
        let learned = self.operations.ask(0, PeerRequest::HashSeed).and_then(|reply| match reply {
            PeerReply::HashSeed(seed) => self.records.adopt_seed(seed),
            _ => Err(Status::EPROTO),
        });
        match learned {
            Ok(()) => self.operations.state.lock().seed_learned = true,
            Err(status) => log::debug!("MDT{:04x} does not learn the seed of names: {status}", self.index),
        }
    }

    /// Asks the others, once, what this MDT had a part in: its log may have lost that. Done in the order in which it was done the
    /// first time, as far as those who answer know.
    fn greet_new_peers(&self) {
        let peers: Vec<u16> = self.operations.peers.read().keys().copied().collect();
        let mut again: BTreeMap<(u64, OpId), Operation> = BTreeMap::new();
        let mut answered = Vec::new();
        for mdt in peers {
            if self.operations.state.lock().greeted.contains(&mdt) {
                continue;
            }
            match self.greet(mdt) {
                Ok(operations) => {
                    again.extend(
                        operations.into_iter().map(|operation| ((operation.stamp, operation.id), operation)),
                    );
                    answered.push(mdt);
                }
                Err(status) => log::debug!("MDT{mdt:04x} does not tell what is to be done again: {status}"),
            }
        }
        if self.operations.has(Bug::DoesNothingAgain) {
            again.clear();
        }
        for operation in again.values() {
            if let Err(status) = self.apply(operation) {
                log::error!("MDT{:04x}: {} cannot be done again: {status}", self.index, operation.id);
                return;
            }
        }
        if !answered.is_empty() {
            self.operations.state.lock().greeted.extend(answered);
            self.operations.changed.notify_all();
        }
    }

    /// All operations that another MDT and this one have a part in.
    fn greet(&self, mdt: u16) -> StatusResult<Vec<Operation>> {
        let (mut all, mut after) = (Vec::new(), None);
        loop {
            let request = PeerRequest::Hello { mdt: self.index, after };
            let PeerReply::Greeting { operations, finished } = self.operations.ask(mdt, request)? else {
                return Err(Status::EPROTO);
            };
            self.learn_finished(&finished)?;
            match operations.last() {
                Some(last) => after = Some(last.id),
                None => return Ok(all),
            }
            all.extend(operations);
        }
    }

    /// Operations before these are durable everywhere: those that are still known here need not be.
    fn learn_finished(&self, finished: &[OpId]) -> StatusResult<()> {
        self.forget_operations(&[], finished).map(drop)
    }

    /// The same for what other MDTs want changed: what this one has lost comes before. Without the thread nobody would ask.
    pub fn await_own_greetings(&self) {
        if self.operations.began.elapsed() < GREETING_PATIENCE && self.resolver.lock().is_some() {
            self.await_greetings();
        }
    }

    /// Waits until every other MDT was asked what is to be done again, for a while at most after the start: one that is away may have
    /// nothing, and nobody is kept out for it. Not after a stop in order, which leaves nothing to be done again.
    pub fn await_greetings(&self) {
        if self.operations.has_all {
            return;
        }
        let deadline = self.operations.began + GREETING_PATIENCE;
        let peers: Vec<u16> = self.operations.peers.read().keys().copied().collect();
        let mut state = self.operations.state.lock();
        while !peers.iter().all(|mdt| state.greeted.contains(mdt)) && Instant::now() < deadline {
            nacre_env::blocking(|| self.operations.changed.wait_for(&mut state, TICK));
        }
    }

    pub fn ask_for_outcomes(&self) {
        let late: Vec<OpId> = {
            let state = self.operations.state.lock();
            let late = state.prepared.iter().filter(|(_, prepared)| prepared.since.elapsed() >= PATIENCE);
            late.map(|(op, _)| *op).collect()
        };
        for op in late {
            if self.signal.is_stopping() {
                return;
            }
            let outcome = match self.operations.is_no_other(op.mdt) {
                // Nobody can have decided it, and nobody ever will.
                true => self.abort(&op).map(|_| {
                    log::warn!(
                        "MDT{:04x}: {op} is given up: the file system has no MDT{:04x}",
                        self.index,
                        op.mdt
                    )
                }),
                false => self.learn_outcome(op),
            };
            if let Err(status) = outcome {
                log::debug!("MDT{:04x}: {op} is still not decided: {status}", self.index);
            }
        }
    }

    /// Operations that are coordinated here, with the participants that have not committed their parts.
    fn unapplied(&self) -> Vec<(Arc<Operation>, Vec<u16>)> {
        let state = self.operations.state.lock();
        let own = state.open.iter().filter(|(id, _)| id.mdt == self.index && !state.undecided.contains(id));
        own.map(|(_, open)| (open.operation.clone(), self.missing_parts(open))).collect()
    }

    /// The other MDTs that an operation has a part on.
    fn others<'a>(&self, operation: &'a Operation) -> impl Iterator<Item = u16> + use<'a> {
        let own = self.index;
        operation.parts.iter().map(|part| part.mdt).filter(move |mdt| *mdt != own)
    }

    /// Other MDTs that have not committed their parts of an operation that is coordinated here.
    fn missing_parts(&self, open: &Open) -> Vec<u16> {
        self.others(&open.operation).filter(|mdt| !open.applied.contains(mdt)).collect()
    }

    fn apply_everywhere(&self) {
        let mut away = BTreeSet::new();
        for (operation, missing) in self.unapplied() {
            for mdt in missing {
                if self.signal.is_stopping() {
                    return;
                }
                // Each question to one that is away takes its time.
                if away.contains(&mdt) {
                    continue;
                }
                if let Err(status) = self.apply_at(mdt, &operation) {
                    log::debug!("MDT{mdt:04x} has not committed its part of {} yet: {status}", operation.id);
                    away.insert(mdt);
                }
            }
        }
    }

    /// Operations coordinated here whose parts are all on disk need not be known any more.
    fn forget_what_is_durable(&self) {
        let synced = self.store.last_committed();
        let done: Vec<Arc<Operation>> = {
            let state = self.operations.state.lock();
            // What waits for its commit may still not happen, and has no transaction yet.
            let is_decided = |id: &OpId| id.mdt == self.index && !state.undecided.contains(id);
            let own = state.open.iter().filter(|(id, open)| is_decided(id) && open.transno <= synced);
            own.filter(|(_, open)| self.missing_parts(open).is_empty())
                .map(|(_, open)| open.operation.clone())
                .collect()
        };
        // One sync makes all durable that an MDT has committed, and one that is away is asked once.
        let mut synced: BTreeMap<u16, bool> = BTreeMap::new();
        let mut is_durable = |operation: &Arc<Operation>| {
            self.others(operation).all(|mdt| {
                *synced.entry(mdt).or_insert_with(|| {
                    let sync = PeerRequest::Sync { op: operation.id };
                    !self.signal.is_stopping() && self.operations.ask(mdt, sync).is_ok()
                })
            })
        };
        let durable: Vec<Arc<Operation>> =
            done.into_iter().filter(|operation| is_durable(operation)).collect();
        if let Err(status) = self.forget_durable(&durable) {
            log::debug!("MDT{:04x}: operations that are durable are not forgotten yet: {status}", self.index);
        }
    }

    fn forget_durable(&self, durable: &[Arc<Operation>]) -> StatusResult<()> {
        let mut others = BTreeSet::new();
        for operation in durable {
            others.extend(self.others(operation));
        }
        let leaving = durable.iter().map(|operation| operation.id).collect();
        let own = (self.index, self.operations.boot);
        let below = self.operations.state.lock().first_unfinished(own, &leaving);
        for mdt in others {
            let theirs = durable.iter().filter(|operation| operation.part(mdt).is_some());
            let ops: Vec<OpId> = theirs.map(|operation| operation.id).collect();
            for ops in ops.chunks(OPERATIONS_MAX) {
                self.operations.ask(mdt, PeerRequest::Forget { ops: ops.to_vec(), below })?;
            }
        }
        let ops: Vec<OpId> = leaving.into_iter().collect();
        if ops.is_empty() { Ok(()) } else { self.forget_operations(&ops, &[below]).map(drop) }
    }

    /// Operations are durable everywhere; those before the marks in `finished` are never done again. The records of the latter go, in the
    /// transaction that notes the marks: if the log loses this, it has the records again. Others stay known: a request to do them may still
    /// be on its way.
    pub(super) fn forget_operations(&self, ops: &[OpId], finished: &[OpId]) -> StatusResult<PeerReply> {
        if ops.is_empty() && finished.is_empty() {
            return Ok(PeerReply::Done);
        }
        let _noting = self.operations.noting.lock();
        let (finished, over) = {
            let state = self.operations.state.lock();
            let is_new = |below: &&OpId| state.finished.get(&below.mdt).is_none_or(|known| known < *below);
            let finished: Vec<OpId> = finished.iter().filter(is_new).copied().collect();
            let is_over = |op: &&OpId| {
                state.is_finished(op) || finished.iter().any(|below| below.mdt == op.mdt && *op < below)
            };
            let over: Vec<OpId> = state.open.keys().chain(ops).filter(is_over).copied().collect();
            (finished, over)
        };
        let mut tx = self.records.begin();
        tx.batch().set_releasing(true);
        for op in &over {
            tx.batch().delete(OPERATIONS, op_key(op).as_slice());
        }
        for below in &finished {
            tx.batch().put(FINISHED, &below.mdt.to_be_bytes(), &encode_record(below));
        }
        self.commits.commit(&mut tx)?;
        self.operations.change(|state| {
            ops.iter().for_each(|op| state.settle(op));
            over.iter().for_each(|op| state.close(op));
            state.finished.extend(finished.iter().map(|below| (below.mdt, *below)));
        });
        Ok(PeerReply::Done)
    }

    /// Makes what is committed here durable, the part of an operation among it; the coordinator, all its parts.
    ///
    /// # Errors
    /// `EAGAIN` if the coordinator was not asked yet what is to be done again; `EINTR`, `ESHUTDOWN`; what a store or another MDT says.
    pub fn sync_operation(&self, op: &OpId) -> StatusResult<PeerReply> {
        self.await_commit_of(op)?;
        let open = {
            let state = self.operations.state.lock();
            if op.mdt != self.index && !state.greeted.contains(&op.mdt) {
                return Err(Status::EAGAIN);
            }
            state.open.get(op).map(|open| open.operation.clone())
        };
        self.records.sync_all()?;
        // One that is not known any more is durable everywhere.
        if let Some(operation) = open.filter(|_| op.mdt == self.index) {
            self.sync_parts(&operation)?;
        }
        Ok(PeerReply::Done)
    }

    /// Waits while it is not decided whether an operation happens.
    ///
    /// # Errors
    /// `EINTR`, `ESHUTDOWN`.
    fn await_commit_of(&self, op: &OpId) -> StatusResult<()> {
        let operations = &self.operations;
        let mut state = operations.state.lock();
        while state.undecided.contains(op) {
            if self.signal.is_stopping() {
                return Err(Status::ESHUTDOWN);
            }
            if nacre_env::interrupted() {
                return Err(Status::EINTR);
            }
            nacre_env::blocking(|| operations.changed.wait_for(&mut state, TICK));
        }
        Ok(())
    }

    /// Has all other parts of an operation that is coordinated here made durable.
    fn sync_parts(&self, operation: &Arc<Operation>) -> StatusResult<()> {
        for mdt in self.others(operation) {
            let is_applied = {
                let state = self.operations.state.lock();
                state.open.get(&operation.id).is_none_or(|open| open.applied.contains(&mdt))
            };
            if !is_applied {
                self.apply_at(mdt, operation)?;
            }
            self.operations.ask(mdt, PeerRequest::Sync { op: operation.id })?;
        }
        Ok(())
    }

    /// Has the operations that have a part here up to a transaction made durable on all their MDTs.
    ///
    /// # Errors
    /// `EINTR`, `ESHUTDOWN`; what a store says.
    pub fn settle_operations(&self, upto: TransNo) -> StatusResult<()> {
        if self.operations.unsettled.load(Ordering::Acquire) == 0 {
            return Ok(());
        }
        let ops: Vec<OpId> = {
            let state = self.operations.state.lock();
            state.unsettled.iter().take_while(|(transno, _)| *transno <= upto).map(|(_, op)| *op).collect()
        };
        for op in &ops {
            loop {
                let settled = match op.mdt == self.index {
                    true => self.sync_operation(op),
                    false => self.operations.ask(op.mdt, PeerRequest::Sync { op: *op }),
                };
                match settled {
                    Ok(_) => break,
                    Err(status @ (Status::EINTR | Status::ESHUTDOWN | Status::EIO)) => return Err(status),
                    Err(status) => log::debug!("MDT{:04x}: {op} is not durable yet: {status}", self.index),
                }
                if nacre_env::interrupted() {
                    return Err(Status::EINTR);
                }
                if self.signal.is_stopping() {
                    return Err(Status::ESHUTDOWN);
                }
                let operations = &self.operations;
                nacre_env::blocking(|| operations.changed.wait_for(&mut operations.state.lock(), TICK));
            }
        }
        self.operations.change(|state| ops.iter().for_each(|op| state.settle(op)));
        Ok(())
    }
}
