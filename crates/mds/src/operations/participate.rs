//! The side that another MDT asks.

use super::Distributed;
use super::coordinate::inode_of;
use super::state::{
    Bug, PATIENCE, Prepared, decode_prepared, encode_prepared, encode_record, named, wants_of,
};
use crate::locks::{Reach, unless_interrupted};
use crate::plan::encoded;
use crate::tables::{OPERATIONS, PREPARED, op_key};
use crate::tx::Tx;
use nacre_env::clock::Instant;
use nacre_types::{Fid, FileKind, Status, StatusResult, TransNo};
use nacre_wire::Encode;
use nacre_wire::peer::{Found, Name, OPERATIONS_MAX, OpId, Operation, PeerReply, PeerRequest};
use std::collections::BTreeSet;
use std::ops::Bound;
use std::sync::Arc;
use std::time::Duration;

/// Operations in one answer to a greeting take about so many bytes; one always fits.
const GREETING_BYTES: usize = 256 << 10;

/// How often a wait looks whether the server stops.
const POLL: Duration = Duration::from_millis(100);

/// Marks an operation that a thread prepares or applies; nobody else does meanwhile.
struct UnderWay<'a>(&'a Distributed, OpId);

impl<'a> UnderWay<'a> {
    fn begin(distributed: &'a Distributed, op: OpId) -> StatusResult<UnderWay<'a>> {
        let operations = &distributed.operations;
        let mut state = operations.state.lock();
        while !state.under_way.insert(op) {
            if distributed.signal.is_stopping() {
                return Err(Status::ESHUTDOWN);
            }
            unless_interrupted()?;
            nacre_env::blocking(|| operations.changed.wait_for(&mut state, POLL));
        }
        Ok(UnderWay(distributed, op))
    }
}

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        self.0.operations.state.lock().under_way.remove(&self.1);
        self.0.operations.changed.notify_all();
    }
}

impl Distributed {
    /// Forgets operations that are durable everywhere, and their coordinator's before `below`.
    ///
    /// # Errors
    /// `EAGAIN` before that was asked what is to be done again; what the store says.
    pub fn forget(&self, ops: &[OpId], below: &OpId) -> StatusResult<PeerReply> {
        // It may be among what is about to be done again: that it is known keeps it from being done twice.
        if !self.operations.state.lock().greeted.contains(&below.mdt) {
            return Err(Status::EAGAIN);
        }
        self.forget_operations(ops, &[*below])
    }

    pub fn found(&self, fid: &Fid) -> StatusResult<Found> {
        let record = self.records.find_inode(fid)?.map(|record| encoded(&record));
        Ok(Found { fid: *fid, record })
    }

    pub fn prepare(&self, op: OpId, fids: &[Fid], names: &[Name]) -> StatusResult<PeerReply> {
        if self.signal.is_stopping() {
            return Err(Status::ESHUTDOWN);
        }
        if self.operations.is_no_other(op.mdt) {
            log::warn!("MDT{:04x}: {op} is refused: the file system has no MDT{:04x}", self.index, op.mdt);
            return Err(Status::EPROTO);
        }
        fids.iter()
            .chain(names.iter().map(|name| &name.parent))
            .try_for_each(|fid| self.records.check_local(fid))?;
        let _under_way = UnderWay::begin(self, op)?;
        if !self.operations.state.lock().prepared.contains_key(&op) {
            let goes_on = || match self.operations.state.lock().called_off.contains(&op) {
                true => Err(Status::EINTR),
                false => unless_interrupted(),
            };
            let kept = {
                let wants = wants_of(fids, names.iter().map(named));
                self.locks.keep(&wants, Reach::Part, &goes_on)?
            };
            let mut tx = self.records.begin();
            tx.batch().put(PREPARED, op_key(&op).as_slice(), &encode_prepared(fids, names));
            self.commits.commit(&mut tx)?;
            let prepared = Prepared { kept, since: Instant::now() };
            self.operations.state.lock().prepared.insert(op, prepared);
        }
        let parents: BTreeSet<&Fid> = names.iter().map(|name| &name.parent).collect();
        let all = fids.iter().chain(parents.into_iter().filter(|parent| !fids.contains(parent)));
        let found = all.map(|fid| self.found(fid)).collect::<StatusResult<Vec<Found>>>()?;
        let lead = |name: &Name| -> StatusResult<Option<(Fid, FileKind)>> {
            let found = self.records.find_name(&name.parent, self.records.hash(&name.name), &name.name)?;
            Ok(found.map(|found| (found.fid, found.kind)))
        };
        let names = names.iter().map(lead).collect::<StatusResult<Vec<_>>>()?;
        let clock = self.operations.state.lock().clock;
        Ok(PeerReply::Prepared { found, names, clock })
    }

    /// Commits the part of an operation that was committed by its coordinator, or of one whose part here was lost.
    pub fn apply(&self, operation: &Operation) -> StatusResult<PeerReply> {
        let id = operation.id;
        let part = operation.part(self.index).ok_or(Status::EPROTO)?;
        let _under_way = UnderWay::begin(self, id)?;
        let kept = {
            let mut state = self.operations.state.lock();
            let is_done = state.open.contains_key(&id) || state.is_finished(&id);
            if is_done && !self.operations.has(Bug::AppliesTwice) {
                return Ok(PeerReply::Done);
            }
            state.clock = state.clock.max(operation.stamp);
            // What it locks stays locked until it is committed.
            let kept = state.prepared.remove(&id);
            state.leaving.extend(kept.iter().map(|prepared| prepared.kept.turn()));
            kept
        };
        let turn = kept.as_ref().map(|prepared| prepared.kept.turn());
        self.records.begin_names();
        let noted = Arc::new(operation.clone());
        let outcome = (|| {
            // Clients of the last run have nothing of it that outlives their return. To wait for them would be to wait for each other:
            // this may be what they open again, and comes before the server listens.
            let is_replay = self.mdlocks.is_recovering();
            let export = self.clients.export_of(&operation.client);
            self.call_back_for(part, operation.now, export.as_deref(), is_replay)?;
            let _latched = self.locks.latch_all(part.updates.iter().filter_map(inode_of));
            let mut tx = self.records.begin();
            self.staging.stage(&mut tx, part, operation.now)?;
            tx.batch().put(OPERATIONS, op_key(&id).as_slice(), &encode_record(operation));
            tx.batch().delete(PREPARED, op_key(&id).as_slice());
            let transno = TransNo(self.store.last_transno().0 + 1);
            self.operations.note_open(&noted, transno);
            self.commits.commit_called_back(&mut tx)
        })();
        let outcome = match outcome {
            Ok(transno) => {
                self.operations.note_open(&noted, transno);
                Ok(PeerReply::Done)
            }
            Err(status) => {
                self.operations.retract(&id);
                if let Some(kept) = kept {
                    self.operations.state.lock().prepared.insert(id, kept);
                }
                Err(status)
            }
        };
        if let Some(turn) = turn {
            self.operations.state.lock().leaving.remove(&turn);
        }
        outcome
    }

    /// Has what other MDTs have decided about names of a directory happen here too, before it is listed: who has seen, or was told, that a name
    /// has left another directory is to find it here.
    ///
    /// # Errors
    /// `EINTR`, `ESHUTDOWN`.
    pub fn await_names(&self, directory: &Fid) -> StatusResult<()> {
        for turn in self.locks.parts_on_names(directory) {
            while self.is_to_be_awaited(turn)? && !self.locks.rest_for(directory, turn)? {}
        }
        Ok(())
    }

    /// Does the operation with this turn if it is decided. True if that is not known, as its coordinator is away, or another thread does it now.
    fn is_to_be_awaited(&self, turn: u64) -> StatusResult<bool> {
        let op = {
            let state = self.operations.state.lock();
            let found = state.prepared.iter().find(|(_, prepared)| prepared.kept.turn() == turn);
            match found {
                Some((op, _)) => *op,
                // One that only stands in line is not decided: its coordinator waits for this MDT.
                None => return Ok(state.leaving.contains(&turn)),
            }
        };
        let found = match self.ask_outcome(op) {
            Ok(found) => found,
            // What is not decided now comes after this listing.
            Err(Status::EAGAIN | Status::EPROTO) => return Ok(false),
            Err(status @ (Status::EINTR | Status::ESHUTDOWN)) => return Err(status),
            Err(status) => {
                log::debug!("MDT{:04x}: {op} is not decided: {status}", self.index);
                return Ok(true);
            }
        };
        match self.settle_outcome(op, found.as_ref()) {
            Err(status @ (Status::EINTR | Status::ESHUTDOWN)) => Err(status),
            // A full store, say: names are shown as they are here.
            Err(status) => {
                log::warn!("MDT{:04x}: {op} is decided and cannot be done here now: {status}", self.index);
                Ok(false)
            }
            Ok(()) => Ok(false),
        }
    }

    /// Asks what became of an operation that is prepared here, and does it or gives it up.
    ///
    /// # Errors
    /// `EAGAIN` while it is not decided; what its coordinator, or the store, says.
    pub(super) fn learn_outcome(&self, op: OpId) -> StatusResult<()> {
        let found = self.ask_outcome(op)?;
        self.settle_outcome(op, found.as_ref())
    }

    /// The operation, if it happens.
    fn ask_outcome(&self, op: OpId) -> StatusResult<Option<Operation>> {
        match self.operations.ask(op.mdt, PeerRequest::Outcome { op })? {
            PeerReply::Operations(found) => Ok(found.into_iter().next()),
            _ => Err(Status::EPROTO),
        }
    }

    fn settle_outcome(&self, op: OpId, found: Option<&Operation>) -> StatusResult<()> {
        match found {
            Some(operation) => self.apply(operation),
            None => self.abort(&op),
        }
        .map(drop)
    }

    /// An operation does not happen.
    pub fn abort(&self, op: &OpId) -> StatusResult<PeerReply> {
        self.operations.state.lock().called_off.insert(*op);
        let under_way = UnderWay::begin(self, *op);
        self.operations.state.lock().called_off.remove(op);
        let _under_way = under_way?;
        let Some(kept) = self.operations.state.lock().prepared.remove(op) else { return Ok(PeerReply::Done) };
        let mut tx = self.records.begin();
        tx.batch().delete(PREPARED, op_key(op).as_slice());
        let outcome = self.drop_data_of(op, &mut tx).and_then(|()| self.commits.commit(&mut tx));
        if let Err(status) = outcome {
            self.operations.state.lock().prepared.insert(*op, kept);
            return Err(status);
        }
        Ok(PeerReply::Done)
    }

    /// Takes data of a file that is to come here. Who tells of it has locked the file, which is not there yet.
    pub fn put_data(
        &self,
        op: OpId,
        fid: Fid,
        (offset, bytes): (u64, &[u8]),
        size: Option<u64>,
    ) -> StatusResult<PeerReply> {
        self.records.check_local(&fid)?;
        let _under_way = UnderWay::begin(self, op)?;
        let is_prepared = self.operations.state.lock().prepared.contains_key(&op);
        if !is_prepared
            || !self.prepared_fids(&op)?.contains(&fid)
            || self.records.find_inode(&fid)?.is_some()
        {
            return Err(Status::ESTALE);
        }
        let (store, failed) = (&self.data.store, |error| self.data.failed(&error));
        match self.data.records() {
            Some(records) => {
                records.check_room(bytes.len() as u64).map_err(failed)?;
                let mut edit = records.edit(fid).map_err(failed)?;
                edit.write(offset, bytes).map_err(failed)?;
                size.map_or(Ok(()), |size| edit.set_size(size)).map_err(failed)?;
                let mut tx = self.records.begin();
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
            self.data.sync_apart(fid).map_err(failed)?;
            self.records.sync_all()?;
        }
        Ok(PeerReply::Done)
    }

    /// What an operation that is prepared here has locked, as it is stored.
    fn prepared_fids(&self, op: &OpId) -> StatusResult<Vec<Fid>> {
        self.store
            .get(PREPARED, op_key(op).as_slice(), |value| value.and_then(decode_prepared))
            .map(|prepared| prepared.map(|(fids, _)| fids).unwrap_or_default())
            .map_err(|error| self.records.store_failed(&error))
    }

    /// Data that came for a file which does not come.
    fn drop_data_of(&self, op: &OpId, tx: &mut Tx) -> StatusResult<()> {
        for fid in self.prepared_fids(op)? {
            if self.records.find_inode(&fid)?.is_none() {
                let has_data = self.data.store.attr(fid).map(|attr| attr.mtime.is_some());
                if has_data.map_err(|error| self.data.failed(&error))? {
                    let dropped = self.data.drop_brought(tx, fid);
                    dropped.map_err(|error| self.data.failed(&error))?;
                }
            }
        }
        Ok(())
    }

    /// Operations that an MDT has a part in, as far as they are not durable everywhere, as many as fit into a message.
    pub fn operations_of(&self, mdt: u16, after: Option<&OpId>) -> PeerReply {
        let state = self.operations.state.lock();
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        // What waits for its commit may still not happen.
        let decided =
            state.open.range((from, Bound::Unbounded)).filter(|(id, _)| !state.undecided.contains(id));
        let theirs = decided.map(|(_, open)| &open.operation);
        let mut room = GREETING_BYTES;
        let fits = |operation: &&Arc<Operation>| {
            let is_first = room == GREETING_BYTES;
            let left = room.checked_sub(operation.to_bytes().len());
            room = left.unwrap_or(0);
            is_first || left.is_some()
        };
        let theirs = theirs.filter(|operation| operation.part(mdt).is_some());
        let operations: Vec<Operation> = theirs
            .take(OPERATIONS_MAX)
            .take_while(fits)
            .map(|operation| Operation::clone(operation))
            .collect();
        PeerReply::Greeting { operations, finished: state.finished.values().copied().collect() }
    }

    pub fn outcome(&self, op: &OpId) -> StatusResult<PeerReply> {
        let state = self.operations.state.lock();
        if state.undecided.contains(op) {
            return Err(Status::EAGAIN);
        }
        let found = state.open.get(op).map(|open| Operation::clone(&open.operation));
        Ok(PeerReply::Operations(found.into_iter().collect()))
    }

    pub fn lock_tree(&self, op: OpId) -> StatusResult<PeerReply> {
        let operations = &self.operations;
        let mut state = operations.state.lock();
        let mut asked = Instant::now();
        while let Some(holder) = state.tree.filter(|holder| *holder != op) {
            if asked.elapsed() >= PATIENCE {
                drop(state);
                self.ask_for_tree(&holder);
                (state, asked) = (operations.state.lock(), Instant::now());
                continue;
            }
            if self.signal.is_stopping() {
                return Err(Status::ESHUTDOWN);
            }
            if nacre_env::interrupted() {
                return Err(Status::EINTR);
            }
            nacre_env::blocking(|| operations.changed.wait_for(&mut state, POLL));
        }
        state.tree = Some(op);
        Ok(PeerReply::Done)
    }

    /// The holder of the tree may have given it back without being heard.
    fn ask_for_tree(&self, holder: &OpId) {
        let outcome = match holder.mdt == self.index {
            true => self.outcome(holder),
            false => self.operations.ask(holder.mdt, PeerRequest::Outcome { op: *holder }),
        };
        if outcome.is_ok() {
            self.unlock_tree(holder);
        }
    }

    /// An MDT has started: what it held before it does not know any more.
    pub fn free_tree_of(&self, mdt: u16) {
        let mut state = self.operations.state.lock();
        if state.tree.is_some_and(|holder| holder.mdt == mdt) {
            state.tree = None;
            self.operations.changed.notify_all();
        }
    }

    pub fn unlock_tree(&self, op: &OpId) -> PeerReply {
        let mut state = self.operations.state.lock();
        if state.tree.as_ref() == Some(op) {
            state.tree = None;
            self.operations.changed.notify_all();
        }
        PeerReply::Done
    }
}
