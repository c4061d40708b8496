//! Execution of replayed changes.

use super::layout::{self, LostLayout};
use super::{Returned, Scope, TICK, Turn};
use crate::capabilities::Capabilities;
use crate::core::Core;
use crate::leaves::Leaves;
use crate::open_files::OpenFiles;
use crate::stats::service_name;
use crate::suspend::{Caller, Suspended};
use crate::tables::REPLAYED;
use nacre_dlm::Ticket;
use nacre_env::clock::Instant;
use nacre_ondisk::OpenedRecord;
use nacre_rpc::{Call, Export};
use nacre_types::{ClientUuid, Fid, OpenHandle, Status, StatusResult, TransNo};
use nacre_wire::Decode;
use nacre_wire::mds::{MdsAnswer, MdsReply, MdsRequest, OpenFlags};
use nacre_wire::replay::ReplayedChange;
use std::sync::Arc;
use std::time::Duration;

/// Executes a request as the client's standing permits.
type Run<'a> = &'a dyn Fn(&Call<'_>, &MdsRequest<'_>) -> StatusResult<MdsAnswer>;

/// See the [module documentation](super).
pub(crate) struct Replayer {
    leaves: Arc<Leaves>,
    core: Arc<Core>,
    files: Arc<OpenFiles>,
    /// End of the time in which other servers are awaited: they may have lost power too.
    deadline: Instant,
}

/// Removes a request from the order when it ends.
struct Queued<'a>(&'a Replayer, Ticket);

impl Drop for Queued<'_> {
    fn drop(&mut self) {
        self.0.leaves.replays.leave(&self.1);
    }
}

impl Replayer {
    /// Builds the replay of a run that awaits other servers for `window`.
    pub fn new(leaves: &Arc<Leaves>, core: &Arc<Core>, files: &Arc<OpenFiles>, window: Duration) -> Replayer {
        let deadline = Instant::now() + window;
        Replayer { leaves: leaves.clone(), core: core.clone(), files: files.clone(), deadline }
    }

    /// Returns the newest lost change of a client that has been replayed.
    ///
    /// # Errors
    /// Those of the store.
    pub fn replayed(&self, client: &ClientUuid) -> StatusResult<TransNo> {
        let found = self.leaves.store.get(REPLAYED, &client.0, |value| {
            let value: [u8; 8] = value?.try_into().ok()?;
            Some(TransNo(u64::from_le_bytes(value)))
        });
        found.map(Option::unwrap_or_default).map_err(|error| self.leaves.records.store_failed(&error))
    }

    /// Executes changes of a client in their turn, and makes them durable.
    ///
    /// # Errors
    /// `EPROTO` for changes out of order; `EPERM` for a client that has ended its replay, or was not there before; those after which the client has to send all of them again.
    pub fn replay(
        &self,
        export: &Export,
        changes: &[ReplayedChange],
        capabilities: &Capabilities,
        run: Run<'_>,
    ) -> StatusResult<MdsAnswer> {
        if !changes.is_sorted_by(|one, next| one.transno < next.transno) {
            return Err(Status::EPROTO);
        }
        let client = export.client;
        if !self.leaves.replays.is_entitled(&client) {
            return Err(Status::EPERM);
        }
        let replayed = self.replayed(&client)?;
        let Some(first) = changes.first() else {
            return Ok(self.core.commits.answer(MdsReply::Outcomes(Vec::new())));
        };
        let queued = Queued(self, self.leaves.replays.enter(client, first.transno));
        self.await_parts(export)?;
        let mut outcomes = Vec::with_capacity(changes.len());
        for change in changes {
            if change.transno <= replayed || !self.leaves.replays.is_lost(change.transno) {
                outcomes.push(None);
                continue;
            }
            let refused = loop {
                self.await_turn(export, &queued.1, change.transno)?;
                let outcome = match self.leaves.replays.has_applied(change.transno) {
                    true => Ok(()),
                    false => self.execute(export, change, capabilities, run),
                };
                self.leaves.replays.end();
                self.leaves.mdlocks.note_progress();
                match outcome {
                    Err(status @ (Status::ESHUTDOWN | Status::EINTR | Status::EVICTED)) => {
                        return Err(status);
                    }
                    // A server that it needs is down.
                    Err(Status::ETIMEDOUT) if Instant::now() < self.deadline => self.leaves.replays.wait(),
                    outcome => break outcome.err(),
                }
            };
            outcomes.push(refused);
            self.leaves.replays.count(refused.is_some());
            if let Some(status) = refused {
                let request = MdsRequest::from_bytes(&change.request.0);
                log::warn!(
                    "MDT{:04x}: a lost {} of client {client} (transaction {}) cannot be replayed: {status}",
                    self.leaves.index,
                    request.as_ref().map_or("change", service_name),
                    change.transno.0
                );
                log::debug!("{request:?}");
            }
        }
        self.leaves.records.sync_all()?;
        Ok(self.core.commits.answer(MdsReply::Outcomes(outcomes)))
    }

    fn await_turn(&self, export: &Export, ticket: &Ticket, transno: TransNo) -> StatusResult<()> {
        let replays = &self.leaves.replays;
        nacre_env::activity::blocking_for(nacre_env::activity::Cause::Recovery, || {
            loop {
                match replays.next(ticket, transno, &self.leaves.mdlocks.awaited(), TICK) {
                    Turn::Own => return Ok(()),
                    Turn::Restored(part) => {
                        if !self.apply_restored(part) {
                            replays.wait();
                        }
                    }
                    Turn::Wait => {}
                    // The client has sent it again on another connection, and remains a client.
                    Turn::Replaced => return Err(Status::EINTR),
                }
                self.may_wait(export)?;
            }
        })
    }

    /// Waits until the other MDTs have returned the parts of transactions that this one has lost: a change may need one
    /// that came before it.
    fn await_parts(&self, export: &Export) -> StatusResult<()> {
        nacre_env::activity::blocking_for(nacre_env::activity::Cause::Recovery, || {
            while !self.leaves.transactions.has_all_parts() && Instant::now() < self.deadline {
                self.may_wait(export)?;
                // The client is not the one that is late.
                self.leaves.mdlocks.note_progress();
                self.leaves.replays.wait();
            }
            Ok(())
        })
    }

    fn may_wait(&self, export: &Export) -> StatusResult<()> {
        if self.leaves.signal.is_stopping() {
            return Err(Status::ESHUTDOWN);
        }
        if nacre_env::interrupted() {
            return Err(Status::EINTR);
        }
        if export.has_ended() {
            return Err(Status::EVICTED);
        }
        Ok(())
    }

    /// Waits until all lost changes have been replayed, as far as clients of the last run return in time: until then
    /// no client sees a state without them.
    ///
    /// # Errors
    /// `EINTR`, `ESHUTDOWN`.
    pub fn await_all(&self) -> StatusResult<()> {
        if self.leaves.replays.are_over() {
            return Ok(());
        }
        self.await_end(&|| self.leaves.replays.are_pending(self.leaves.mdlocks.is_recovering()))
    }

    /// Waits until all clients have replayed their locks, and those that are back have opened their handles again. A
    /// request that began earlier would hold an inode and wait for a layout lock, whose client releases no lock before
    /// the end of its recovery; and the client's open would wait for the inode.
    ///
    /// # Errors
    /// `EINTR`, `ESHUTDOWN`.
    pub fn await_reopened(&self) -> StatusResult<()> {
        if !self.leaves.recovery.is_under_way() {
            return Ok(());
        }
        let is_back = |client: &ClientUuid| self.leaves.clients.export_of(client).is_some();
        self.await_end(&|| self.leaves.mdlocks.is_recovering() || self.leaves.recovery.is_reopening(is_back))
    }

    /// Waits until all returned parts of distributed transactions are applied.
    ///
    /// # Errors
    /// `EINTR`, `ESHUTDOWN`.
    pub fn await_restored(&self) -> StatusResult<()> {
        if self.leaves.replays.are_over() {
            return Ok(());
        }
        self.await_end(&|| self.leaves.replays.has_restored())
    }

    fn await_end(&self, are_pending: &dyn Fn() -> bool) -> StatusResult<()> {
        if !are_pending() {
            return Ok(());
        }
        nacre_env::activity::blocking_for(nacre_env::activity::Cause::Recovery, || {
            while are_pending() {
                self.apply_due();
                crate::locks::unless_interrupted()?;
                if self.leaves.signal.is_stopping() {
                    return Err(Status::ESHUTDOWN);
                }
                self.leaves.replays.wait();
            }
            Ok(())
        })
    }

    /// Applies the parts of distributed transactions that precede all changes that clients may replay.
    pub fn apply_due(&self) {
        while let Some(part) = self.leaves.replays.next_restored(&self.leaves.mdlocks.awaited()) {
            if !self.apply_restored(part) {
                return;
            }
        }
    }

    /// Applies a returned part; returns false if it has to be applied again later.
    fn apply_restored(&self, part: Returned) -> bool {
        let (id, transno) = (part.transaction.id, part.transno());
        let applied = self.core.participant.apply(&part.transaction, TransNo(0));
        match &applied {
            Ok(_) if id.mdt == self.leaves.index => self.leaves.replays.note_applied(transno),
            Ok(_) | Err(Status::EINTR | Status::ESHUTDOWN) => {}
            Err(status) => {
                log::error!("MDT{:04x}: {id} cannot be done again yet: {status}", self.leaves.index)
            }
        }
        self.leaves.replays.end_restored(part, applied.is_err());
        applied.is_ok()
    }

    fn execute(
        &self,
        export: &Export,
        change: &ReplayedChange,
        capabilities: &Capabilities,
        run: Run<'_>,
    ) -> StatusResult<()> {
        let request = MdsRequest::from_bytes(&change.request.0).map_err(|_| Status::EPROTO)?;
        let reply = MdsReply::from_bytes(&change.reply.0).map_err(|_| Status::EPROTO)?;
        let call = Call::new(&change.cred);
        let _scope = Scope::enter(reply.clone(), export.client, change.transno);
        match (request, &reply) {
            (
                MdsRequest::LayoutIntent { fid, .. } | MdsRequest::LayoutAccess { fid, .. },
                MdsReply::Layout(Some(layout)) | MdsReply::LockedLayout { layout: Some(layout), .. },
            ) => {
                let suspended = Suspended::default();
                let request = MdsRequest::GetLayout { fid };
                let caller = Caller {
                    client: export.client,
                    export,
                    call: &call,
                    request: &request,
                    suspended: &suspended,
                    standing: None,
                };
                let lost = LostLayout { fid: &fid, layout, proof: change.capabilities.as_ref() };
                layout::restore(&self.leaves, &self.core, capabilities, &caller, &lost, reply.clone())
                    .map(drop)
            }
            (
                request @ MdsRequest::Create { parent, name, .. },
                MdsReply::Created { attr, created: true, .. } | MdsReply::Attr(attr),
            ) => match self.is_there(&parent, name, &attr.fid)? {
                // A part of a transaction has restored it.
                true => Ok(()),
                false => run(&call, &without_open(request)).map(drop),
            },
            (MdsRequest::Create { open: Some((handle, flags)), .. }, MdsReply::Created { attr, .. })
            | (MdsRequest::Open { handle, flags, .. }, MdsReply::Opened { attr, .. }) => {
                let again = MdsRequest::Open { fid: attr.fid, handle, flags, lock: Default::default() };
                let outcome = run(&call, &again).map(drop);
                self.forget_open(&export.client, attr.fid, handle);
                outcome
            }
            (request @ MdsRequest::CloseWrite { fid, handle, .. }, _) => {
                let opened = OpenedRecord { fid, handle, flags: OpenFlags::WRITE.bits() };
                self.files.open_again(&export.client, &opened);
                let outcome = run(&call, &request).map(drop);
                self.forget_open(&export.client, fid, handle);
                outcome
            }
            (MdsRequest::DataChange { object, change }, _) => self
                .leaves
                .data
                .change_again(object, &change)
                .map_err(|error| self.leaves.data.failed(&error)),
            (MdsRequest::Replay { .. } | MdsRequest::Peer(_), _) => Err(Status::EPROTO),
            (request, _) => run(&call, &request).map(drop),
        }
    }

    /// Returns true if an inode exists here, or a name leads to it.
    fn is_there(&self, parent: &Fid, name: &[u8], fid: &Fid) -> StatusResult<bool> {
        let records = &self.leaves.records;
        if fid.mdt_index() == self.leaves.index {
            return Ok(records.find_inode(fid)?.is_some());
        }
        let found = records.find_name(parent, records.hash(name), name)?;
        Ok(found.is_some_and(|found| found.fid == *fid))
    }

    /// Forgets a handle that a replayed change has opened: the client opens again what it still has open.
    fn forget_open(&self, client: &ClientUuid, fid: Fid, handle: OpenHandle) {
        self.leaves.opens.remove(&fid, client, handle);
    }
}

/// Returns a create without its open.
fn without_open(request: MdsRequest<'_>) -> MdsRequest<'_> {
    match request {
        MdsRequest::Create { parent, name, fid, new, mode, umask, .. } => {
            MdsRequest::Create { parent, name, fid, new, mode, umask, open: None, exclusive: true }
        }
        other => other,
    }
}
