//! The participant in distributed transactions of other MDTs.

use super::state::{
    Bug, Prepared, cause_of, decode_prepared, encode_finished, encode_prepared, encode_transaction, named,
    wants_of,
};
use crate::commit::Commits;
use crate::leaves::Leaves;
use crate::locks::{Reach, unless_interrupted};
use crate::mdlocks::ClientLocks;
use crate::plan::encoded;
use crate::replay;
use crate::staging::Staging;
use crate::tables::{FINISHED, PREPARED, TRANSACTIONS, op_key};
use crate::tx::Tx;
use nacre_env::activity::blocking_for;
use nacre_env::clock::Instant;
use nacre_env::fault::{self, Point};
use nacre_rpc::Export;
use nacre_types::{Fid, FileKind, Status, StatusResult, Timestamp, TransNo};
use nacre_wire::peer::{Found, Name, Part, PeerReply, PeerRequest, Transaction, TransactionId, Update};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

/// Interval of checks whether the server stops.
const POLL: Duration = Duration::from_millis(100);

/// See the [module documentation](self).
pub(crate) struct Participant {
    leaves: Arc<Leaves>,
    client_locks: Arc<ClientLocks>,
    commits: Arc<Commits>,
    staging: Arc<Staging>,
}

/// Clients whose locks on the changed inodes are revoked.
#[derive(Clone, Copy)]
pub(super) enum Holders<'a> {
    /// None: they have not reconnected yet.
    None,
    /// All but the client that requested the change.
    AllBut(Option<&'a Export>),
}

/// Marks a transaction that a thread prepares or applies, which excludes other threads from it.
struct UnderWay<'a>(&'a Participant, TransactionId);

impl<'a> UnderWay<'a> {
    fn begin(participant: &'a Participant, op: TransactionId) -> StatusResult<UnderWay<'a>> {
        let transactions = &participant.leaves.transactions;
        let mut state = transactions.state.lock();
        while !state.under_way.insert(op) {
            if participant.leaves.signal.is_stopping() {
                return Err(Status::ESHUTDOWN);
            }
            unless_interrupted()?;
            blocking_for(cause_of(&op), || transactions.changed.wait_for(&mut state, POLL));
        }
        Ok(UnderWay(participant, op))
    }
}

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        self.0.leaves.transactions.state.lock().under_way.remove(&self.1);
        self.0.leaves.transactions.changed.notify_all();
    }
}

impl Participant {
    pub fn new(
        leaves: &Arc<Leaves>,
        client_locks: &Arc<ClientLocks>,
        commits: &Arc<Commits>,
        staging: &Arc<Staging>,
    ) -> Participant {
        Participant {
            leaves: leaves.clone(),
            client_locks: client_locks.clone(),
            commits: commits.clone(),
            staging: staging.clone(),
        }
    }

    /// Forgets transactions that are durable on all participants, and those of their coordinator before
    /// `below`.
    ///
    /// # Errors
    /// `EAGAIN` before the coordinator was asked which transactions are to be redone; those of the store.
    pub fn forget(&self, ops: &[TransactionId], below: &TransactionId) -> StatusResult<PeerReply> {
        // It may be among the transactions that are about to be redone: its record prevents a second
        // application.
        if !self.leaves.transactions.state.lock().greeted.contains(&below.mdt) {
            return Err(Status::EAGAIN);
        }
        self.forget_transactions(ops, &[*below])
    }

    pub fn found(&self, fid: &Fid) -> StatusResult<Found> {
        let record = self.leaves.records.find_inode(fid)?.map(|record| encoded(&record));
        Ok(Found { fid: *fid, record })
    }

    pub fn prepare(&self, op: TransactionId, fids: &[Fid], names: &[Name]) -> StatusResult<PeerReply> {
        if self.leaves.signal.is_stopping() {
            return Err(Status::ESHUTDOWN);
        }
        if self.leaves.transactions.is_no_other(op.mdt) {
            log::warn!(
                "MDT{:04x}: {op} is refused: the file system has no MDT{:04x}",
                self.leaves.index,
                op.mdt
            );
            return Err(Status::EPROTO);
        }
        fids.iter()
            .chain(names.iter().map(|name| &name.parent))
            .try_for_each(|fid| self.leaves.records.check_local(fid))?;
        let _under_way = UnderWay::begin(self, op)?;
        if !self.leaves.transactions.state.lock().prepared.contains_key(&op) {
            let goes_on = || match self.leaves.transactions.state.lock().called_off.contains(&op) {
                true => Err(Status::EINTR),
                false => unless_interrupted(),
            };
            let kept = {
                let wants = wants_of(fids, names.iter().map(named));
                self.leaves.locks.keep(&wants, Reach::Part, &goes_on)?
            };
            self.leaves.records.sync_what_is_needed(fids, names.iter().map(|name| &name.parent))?;
            let mut tx = self.leaves.records.begin();
            tx.batch().put(PREPARED, op_key(&op).as_slice(), &encode_prepared(fids, names));
            self.commits.commit(&mut tx)?;
            let prepared = Prepared { kept, since: Instant::now() };
            self.leaves.transactions.state.lock().prepared.insert(op, prepared);
            fault::crash(Point::MdsPrepared);
        }
        let parents: BTreeSet<&Fid> = names.iter().map(|name| &name.parent).collect();
        let all = fids.iter().chain(parents.into_iter().filter(|parent| !fids.contains(parent)));
        let found = all.map(|fid| self.found(fid)).collect::<StatusResult<Vec<Found>>>()?;
        let lead = |name: &Name| -> StatusResult<Option<(Fid, FileKind)>> {
            let found = self.leaves.records.find_name(
                &name.parent,
                self.leaves.records.hash(&name.name),
                &name.name,
            )?;
            Ok(found.map(|found| (found.fid, found.kind)))
        };
        let names = names.iter().map(lead).collect::<StatusResult<Vec<_>>>()?;
        let clock = self.leaves.transactions.state.lock().clock;
        Ok(PeerReply::Prepared { found, names, clock })
    }

    /// Applies the part of a transaction that its coordinator has committed, or whose part here was lost.
    /// `coordinated`: transno of the coordinator's part in its store, 0 if unknown.
    ///
    /// # Errors
    /// If the part is not committed.
    pub fn apply(&self, transaction: &Transaction, coordinated: TransNo) -> StatusResult<PeerReply> {
        let id = transaction.id;
        let _under_way = UnderWay::begin(self, id)?;
        let kept = {
            let mut state = self.leaves.transactions.state.lock();
            let is_done = state.open.contains_key(&id) || state.is_finished(&id);
            if is_done && !self.leaves.transactions.has(Bug::AppliesTwice) {
                let transno = state.open.get_mut(&id).map_or(TransNo(0), |open| {
                    open.coordinated = open.coordinated.max(coordinated);
                    open.place
                });
                return Ok(PeerReply::Applied { transno });
            }
            state.clock = state.clock.max(transaction.stamp);
            // Its locks stay until it is committed.
            let kept = state.prepared.remove(&id);
            state.leaving.extend(kept.iter().map(|prepared| prepared.kept.ticket()));
            kept
        };
        let ticket = kept.as_ref().map(|prepared| prepared.kept.ticket());
        self.leaves.records.begin_names();
        let export = self.leaves.clients.export_of(&transaction.client);
        // Locks of clients of the last run end with their reconnect. A wait for these clients would deadlock:
        // the transaction may concern inodes that they reopen, and is applied before the server listens.
        let holders = match self.leaves.mdlocks.is_recovering() {
            true => Holders::None,
            false => Holders::AllBut(export.as_deref()),
        };
        let outcome = self.commit_part(&Arc::new(transaction.clone()), coordinated, holders, || {});
        if let (Err(_), Some(kept)) = (&outcome, kept) {
            self.leaves.transactions.state.lock().prepared.insert(id, kept);
        }
        if let Some(ticket) = ticket {
            self.leaves.transactions.state.lock().leaving.remove(&ticket);
        }
        outcome.map(|transno| PeerReply::Applied { transno })
    }

    /// Commits this MDT's part of a transaction, with the record of the transaction. `decided` runs under the
    /// latches, at the moment of the decision, and thus before any request that sees the changes.
    ///
    /// # Errors
    /// If the part is not committed.
    pub(super) fn commit_part(
        &self,
        transaction: &Arc<Transaction>,
        coordinated: TransNo,
        holders: Holders<'_>,
        decided: impl FnOnce(),
    ) -> StatusResult<TransNo> {
        let Leaves { index, store, locks, transactions, records, .. } = &*self.leaves;
        let part = transaction.part(*index).ok_or(Status::EPROTO)?;
        let id = transaction.id;
        let is_own = id.mdt == *index;
        // May take long; a sync of everything waits for recorded transactions, so it is recorded later.
        self.revoke_for(part, transaction.now, holders)?;
        // Other transactions may change the directories up to this point.
        let latched = locks.latch_all(part.updates.iter().filter_map(inode_of));
        let mut tx = records.begin();
        self.staging.stage(&mut tx, part, transaction.now)?;
        if !(is_own && transactions.has(Bug::ForgetsWhatItDecides)) {
            tx.batch().put(
                TRANSACTIONS,
                op_key(&id).as_slice(),
                &encode_transaction(transaction, coordinated),
            );
        }
        match is_own {
            true => replay::mark(tx.batch()),
            false => tx.batch().delete(PREPARED, op_key(&id).as_slice()),
        }
        // Recorded before the commit, so that it is never reported durable in between.
        transactions.note_open(transaction, TransNo(store.last_transno().0 + 1), coordinated);
        let committed = self.commits.commit_called_back(&mut tx);
        let transno = committed.inspect_err(|_| transactions.retract(&id))?;
        debug_assert!(transno <= store.last_transno(), "a part is committed that the store does not have");
        decided();
        drop(latched);
        transactions.note_open(transaction, transno, coordinated);
        transactions.note_place(&transaction.id, transno);
        Ok(transno)
    }

    /// Applies decided transactions of other MDTs on names of a directory before it is listed: a client that
    /// knows that a name has left another directory must find it here.
    ///
    /// # Errors
    /// `EINTR`, `ESHUTDOWN`.
    pub fn await_names(&self, directory: &Fid) -> StatusResult<()> {
        for ticket in self.leaves.locks.parts_on_names(directory) {
            while self.is_to_be_awaited(ticket)? && !self.leaves.locks.rest_for(directory, ticket)? {}
        }
        Ok(())
    }

    /// Applies the transaction with this ticket if it is decided. Returns true if that is unknown, as its
    /// coordinator is unreachable, or if another thread applies it.
    fn is_to_be_awaited(&self, ticket: u64) -> StatusResult<bool> {
        let op = {
            let state = self.leaves.transactions.state.lock();
            let found = state.prepared.iter().find(|(_, prepared)| prepared.kept.ticket() == ticket);
            match found {
                Some((op, _)) => *op,
                // A transaction that only waits for its ticket is undecided: its coordinator waits for this
                // MDT.
                None => return Ok(state.leaving.contains(&ticket)),
            }
        };
        let found = match self.ask_outcome(op) {
            Ok(found) => found,
            // A transaction that is not decided yet comes after this listing.
            Err(Status::EAGAIN | Status::EPROTO) => return Ok(false),
            Err(status @ (Status::EINTR | Status::ESHUTDOWN)) => return Err(status),
            Err(status) => {
                log::debug!("MDT{:04x}: {op} is not decided: {status}", self.leaves.index);
                return Ok(true);
            }
        };
        match self.settle_outcome(op, found.as_ref()) {
            Err(status @ (Status::EINTR | Status::ESHUTDOWN)) => Err(status),
            // For example a full store: the listing shows the names as they are here.
            Err(status) => {
                log::warn!(
                    "MDT{:04x}: {op} is decided and cannot be done here now: {status}",
                    self.leaves.index
                );
                Ok(false)
            }
            Ok(()) => Ok(false),
        }
    }

    /// Asks for the outcome of a transaction that is prepared here, and applies or aborts it.
    ///
    /// # Errors
    /// `EAGAIN` while it is undecided; those of its coordinator or the store.
    pub(super) fn learn_outcome(&self, op: TransactionId) -> StatusResult<()> {
        let found = self.ask_outcome(op)?;
        self.settle_outcome(op, found.as_ref())
    }

    /// Asks the coordinator; returns the transaction if it is committed.
    fn ask_outcome(&self, op: TransactionId) -> StatusResult<Option<Transaction>> {
        match self.leaves.transactions.ask(op.mdt, PeerRequest::Outcome { op })? {
            PeerReply::Transactions(found) => Ok(found.into_iter().next()),
            _ => Err(Status::EPROTO),
        }
    }

    fn settle_outcome(&self, op: TransactionId, found: Option<&Transaction>) -> StatusResult<()> {
        match found {
            Some(transaction) => self.apply(transaction, TransNo(0)),
            None => self.abort(&op),
        }
        .map(drop)
    }

    /// Aborts a transaction.
    pub fn abort(&self, op: &TransactionId) -> StatusResult<PeerReply> {
        self.leaves.transactions.state.lock().called_off.insert(*op);
        let under_way = UnderWay::begin(self, *op);
        self.leaves.transactions.state.lock().called_off.remove(op);
        let _under_way = under_way?;
        let Some(kept) = self.leaves.transactions.state.lock().prepared.remove(op) else {
            return Ok(PeerReply::Done);
        };
        let mut tx = self.leaves.records.begin();
        tx.batch().delete(PREPARED, op_key(op).as_slice());
        let outcome = self.drop_data_of(op, &mut tx).and_then(|()| self.commits.commit(&mut tx));
        if let Err(status) = outcome {
            self.leaves.transactions.state.lock().prepared.insert(*op, kept);
            return Err(status);
        }
        Ok(PeerReply::Done)
    }

    /// Stores data of a file that is to move here. The sender, its current MDT, has locked the file.
    pub fn put_data(
        &self,
        op: TransactionId,
        fid: Fid,
        offset: u64,
        bytes: &[u8],
        size: Option<u64>,
    ) -> StatusResult<PeerReply> {
        self.leaves.records.check_local(&fid)?;
        let _under_way = UnderWay::begin(self, op)?;
        let is_prepared = self.leaves.transactions.state.lock().prepared.contains_key(&op);
        if !is_prepared
            || !self.prepared_fids(&op)?.contains(&fid)
            || self.leaves.records.find_inode(&fid)?.is_some()
        {
            return Err(Status::ESTALE);
        }
        let (store, failed) = (&self.leaves.data.store, |error| self.leaves.data.failed(&error));
        match self.leaves.data.records() {
            Some(records) => {
                records.check_room(bytes.len() as u64).map_err(failed)?;
                let mut edit = records.edit(fid).map_err(failed)?;
                edit.write(offset, bytes).map_err(failed)?;
                size.map_or(Ok(()), |size| edit.set_size(size)).map_err(failed)?;
                let mut tx = self.leaves.records.begin();
                edit.stage(tx.batch());
                self.commits.commit(&mut tx)?;
                drop(edit);
            }
            None => {
                if store.write(fid, offset, bytes).map_err(failed)? != bytes.len() {
                    return Err(Status::ENOSPC);
                }
                size.map_or(Ok(()), |size| store.truncate(fid, size).map(drop)).map_err(failed)?;
            }
        }
        if size.is_some() {
            self.leaves.data.sync_apart(fid).map_err(failed)?;
            self.leaves.records.sync_all()?;
        }
        Ok(PeerReply::Done)
    }

    /// Returns the inodes that a prepared transaction has locked, from its record.
    fn prepared_fids(&self, op: &TransactionId) -> StatusResult<Vec<Fid>> {
        self.leaves
            .store
            .get(PREPARED, op_key(op).as_slice(), |value| value.and_then(decode_prepared))
            .map(|prepared| prepared.map(|(fids, _)| fids).unwrap_or_default())
            .map_err(|error| self.leaves.records.store_failed(&error))
    }

    /// Removes data of files whose move was aborted.
    fn drop_data_of(&self, op: &TransactionId, tx: &mut Tx) -> StatusResult<()> {
        for fid in self.prepared_fids(op)? {
            if self.leaves.records.find_inode(&fid)?.is_none() {
                let has_data = self.leaves.data.store.attr(fid).map(|attr| attr.mtime.is_some());
                if has_data.map_err(|error| self.leaves.data.failed(&error))? {
                    let dropped = self.leaves.data.drop_brought(tx, fid);
                    dropped.map_err(|error| self.leaves.data.failed(&error))?;
                }
            }
        }
        Ok(())
    }

    /// Forgets transactions that are durable on all participants; those before the marks in `finished` are
    /// never redone. The records of the latter are removed in the transaction that stores the marks: if the
    /// log loses it, the records are back. Other transactions stay known, as a request to apply them may
    /// still be in transit.
    pub(super) fn forget_transactions(
        &self,
        ops: &[TransactionId],
        finished: &[TransactionId],
    ) -> StatusResult<PeerReply> {
        if ops.is_empty() && finished.is_empty() {
            return Ok(PeerReply::Done);
        }
        let _noting = self.leaves.transactions.noting.lock();
        let (finished, over) = {
            let state = self.leaves.transactions.state.lock();
            let is_new =
                |below: &&TransactionId| state.finished.get(&below.mdt).is_none_or(|known| known < *below);
            let finished: Vec<TransactionId> = finished.iter().filter(is_new).copied().collect();
            let is_over = |op: &&TransactionId| {
                state.is_finished(op) || finished.iter().any(|below| below.mdt == op.mdt && *op < below)
            };
            let over: Vec<TransactionId> = state.open.keys().chain(ops).filter(is_over).copied().collect();
            (finished, over)
        };
        let mut tx = self.leaves.records.begin();
        tx.batch().set_releasing(true);
        for op in &over {
            tx.batch().delete(TRANSACTIONS, op_key(op).as_slice());
        }
        for below in &finished {
            tx.batch().put(FINISHED, &below.mdt.to_be_bytes(), &encode_finished(below));
        }
        self.commits.commit(&mut tx)?;
        self.leaves.transactions.change(|state| {
            ops.iter().for_each(|op| state.settle(op));
            over.iter().for_each(|op| state.close(op));
            state.finished.extend(finished.iter().map(|below| (below.mdt, *below)));
        });
        Ok(PeerReply::Done)
    }

    /// Revokes clients' locks on what a part changes. They get no new ones: the inodes are locked.
    ///
    /// # Errors
    /// As for [`ClientLocks::call_back`].
    fn revoke_for(&self, part: &Part, now: Timestamp, holders: Holders<'_>) -> StatusResult<()> {
        let Holders::AllBut(export) = holders else { return Ok(()) };
        if !self.leaves.mdlocks.has_locks() {
            return Ok(());
        }
        let mut tx = self.leaves.records.begin();
        self.staging.stage(&mut tx, part, now)?;
        self.client_locks.call_back(&tx, export)
    }
}

/// Returns the inode that an update changes, or whose names it changes; `None` if there is none.
pub(super) fn inode_of(update: &Update) -> Option<&Fid> {
    Some(match update {
        Update::PutName { at, .. } | Update::DeleteName { at } | Update::Retarget { at, .. } => &at.parent,
        Update::Directory { fid, .. }
        | Update::NewInode { fid, .. }
        | Update::AddName { fid, .. }
        | Update::MoveName { fid, .. }
        | Update::DropName { fid, .. }
        | Update::DropShard { fid }
        | Update::Mirror { fid, .. }
        | Update::SetShards { fid, .. }
        | Update::NamesOut { fid, .. }
        | Update::NamesIn { fid, .. }
        | Update::InodeIn { fid, .. }
        | Update::InodeOut { fid }
        | Update::NewParent { fid, .. }
        | Update::Replaced { fid, .. } => fid,
        Update::KeepAnswer { .. } | Update::LogChange { .. } => return None,
    })
}
