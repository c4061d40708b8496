//! Dispatch of the protocol's requests.

use crate::filesets::fids_of;
use crate::layout_changes::Swap;
use crate::locks::{Reach, Want, unless_interrupted};
use crate::lookups::Listing;
use crate::mds::Mds;
use crate::namespace::Making;
use crate::sessions::is_of_recovery;
use crate::stats::service_name;
use crate::suspend::{ATTEMPTS, Caller, Suspended, names_of};
use crate::tenants::shown_to;
use crate::tx::Tx;
use nacre_env::activity::{self, Operation, Origin};
use nacre_env::clock::Instant;
use nacre_env::fault::{self, Point};
use nacre_lock::LockHandle;
use nacre_rpc::{Call, Export, MdsService, MdsWelcome, Moment, ReplySlot};
use nacre_types::{ClientUuid, Fid, Rights, Standing, Status, StatusResult, TargetId, TransNo};
use nacre_wire::connect::RunStart;
use nacre_wire::mds::MdsRequest::*;
use nacre_wire::mds::{LeaseGrant, MdsAnswer, MdsReply, MdsRequest};
use nacre_wire::peer::{PeerReply, PeerRequest};
use nacre_wire::replay::ReplayedChange;
use std::sync::Arc;
use std::time::Duration;

/// Longest wait for the destruction of objects when everything is to be made durable.
const DESTROY_TIMEOUT: Duration = Duration::from_secs(5);

impl MdsService for Mds {
    fn connect(&self, export: &Arc<Export>) -> StatusResult<MdsWelcome> {
        if export.is_server {
            // What it changes is in transactions, whose names it repeats.
            let lease = LeaseGrant { exclusive: false, epoch: 0 };
            return Ok(MdsWelcome { lease, is_remembered: true });
        }
        self.tenants.admit(export)?;
        let welcome = self.sessions.connect_client(export)?;
        // The nodemaps may have changed since the connect.
        if let Err(status) = self.tenants.admit(export) {
            self.sessions.drop_client(&export.client);
            return Err(status);
        }
        self.stats.join(export);
        Ok(welcome)
    }

    fn disconnect(&self, client: ClientUuid) {
        self.sessions.disconnect(&client);
    }

    fn handle(&self, export: &Export, call: &Call<'_>, request: &MdsRequest<'_>) -> StatusResult<MdsAnswer> {
        let running = activity::begin(self.operation(export, call, request));
        let answer = self.admit(export, call, request);
        running.ended(&answer);
        answer
    }

    fn stored_answer(
        &self,
        export: &Export,
        request: &MdsRequest<'_>,
        slot: &ReplySlot,
    ) -> Option<StatusResult<MdsAnswer>> {
        // Another MDT may yet return the transaction with the answer.
        if let Err(status) = self.await_replay(request) {
            return Some(Err(status));
        }
        let mut answer = self.find_stored_answer(slot)?;
        // Capabilities are not part of the stored answer.
        self.capabilities.add_to(export, request, &mut answer);
        let standing = self.leaves.clients.export_of(&slot.client).and_then(|export| export.standing());
        Some(Ok(match standing {
            None => answer,
            Some(standing) => shown_to(&standing, answer),
        }))
    }
}

impl Mds {
    /// Describes a request for reports of what waits.
    fn operation(&self, export: &Export, call: &Call<'_>, request: &MdsRequest<'_>) -> Operation {
        Operation {
            target: Some(TargetId::mdt(self.leaves.index)),
            name: service_name(request),
            fid: fids_of(request)[0].copied(),
            lock: 0,
            origin: Origin::Client { client: export.client, nid: export.nid, xid: call.xid },
        }
    }

    /// Checks that a client may be served at present, and serves it.
    fn admit(&self, export: &Export, call: &Call<'_>, request: &MdsRequest<'_>) -> StatusResult<MdsAnswer> {
        if self.leaves.signal.is_stopping() {
            return Err(Status::ESHUTDOWN);
        }
        if let MdsRequest::Peer(peer) = request {
            let start = Instant::now();
            self.simulation.serve(request);
            let answer = self.serve_peer(export, peer);
            self.stats.count_service(request, start);
            return answer;
        }
        if export.is_server && matches!(request, MdsRequest::Ping) {
            // A server without a lease; the answer confirms that it is known.
            return Ok(self.core.commits.answer(MdsReply::Lease(LeaseGrant { exclusive: false, epoch: 0 })));
        }
        if export.has_ended() {
            // The request is from an earlier life of the client, which may have reconnected.
            return Err(Status::EVICTED);
        }
        self.leaves.clients.check(&export.client)?;
        self.sessions.note_request(&export.client, request);
        self.await_replay(request)?;
        if let MdsRequest::Replay { changes } = request {
            return self.replay(export, changes);
        }
        match export.standing() {
            None => self.serve(export, call, request, None),
            Some(standing) => self.tenants.serve(export, call, request, &standing, |call, request| {
                self.serve(export, call, request, Some(&standing))
            }),
        }
    }

    /// Waits with a request, unless it is part of a recovery, until lost changes are replayed; with one that modifies
    /// something, also until handles are open again. The replay may need what another MDT asks for.
    fn await_replay(&self, request: &MdsRequest<'_>) -> StatusResult<()> {
        if is_of_recovery(request) || matches!(request, MdsRequest::RecoveryDone | MdsRequest::Peer(_)) {
            return Ok(());
        }
        self.replayer.await_all()?;
        if request.is_modifying() {
            self.replayer.await_reopened()?;
        }
        Ok(())
    }

    /// Returns the stored answer of an earlier run, after reopening the handle that its request opened.
    pub(crate) fn find_stored_answer(&self, slot: &ReplySlot) -> Option<MdsAnswer> {
        let (answer, opened) = self.core.commits.find_stored_answer(slot)?;
        if let Some(opened) = opened {
            self.files.open_again(&slot.client, &opened);
        }
        Some(answer)
    }

    /// Serves a client's request, and counts it.
    fn serve(
        &self,
        export: &Export,
        call: &Call<'_>,
        request: &MdsRequest<'_>,
        standing: Option<&Standing>,
    ) -> StatusResult<MdsAnswer> {
        let start = Instant::now();
        self.simulation.serve(request);
        self.hold.pass(Moment::Before, request);
        let suspended = Suspended::of(request);
        let caller = Caller { client: export.client, export, call, request, suspended: &suspended, standing };
        let answer = self.sharing.run(export, call, request, || self.run(&caller, request));
        self.stats.count_service(request, start);
        let mut answer = answer.inspect_err(|status| self.faults.note(export, request, *status))?;
        self.capabilities.add_to(export, request, &mut answer);
        self.stats.count(export, call.job.as_ref(), request, start);
        self.hold.pass(Moment::After, request);
        Ok(answer)
    }

    /// Executes a request, and repeats it after each stop.
    fn run(&self, caller: &Caller<'_>, request: &MdsRequest<'_>) -> StatusResult<MdsAnswer> {
        for _ in 0..ATTEMPTS {
            let outcome = self.run_through(caller, request);
            match caller.suspended.take_stopped() {
                Some(tx) => self.suspend(caller, request, &tx)?,
                None => return outcome,
            }
        }
        caller.suspended.stop_no_more();
        self.run_through(caller, request)
    }

    /// Keeps the names and inodes of a stopped operation, and revokes the clients' locks that stopped it.
    fn suspend(&self, caller: &Caller<'_>, request: &MdsRequest<'_>, tx: &Tx) -> StatusResult<()> {
        caller.suspended.give_up();
        let mut wants = names_of(request);
        for (fid, _) in tx.cached() {
            let is_parent = wants.iter().any(|want| matches!(want, Want::Name(parent, _) if parent == fid));
            if !is_parent && self.leaves.records.find_inode(fid)?.is_some() {
                wants.push(Want::Whole(*fid));
            }
        }
        caller.suspended.keep(self.leaves.locks.keep(&wants, Reach::Here, &unless_interrupted)?);
        self.core.client_locks.call_back(tx, Some(caller.export))?;
        self.hold.pass(Moment::Locked, request);
        fault::delay(Point::MdsLocked);
        Ok(())
    }

    fn run_through(&self, caller: &Caller<'_>, request: &MdsRequest<'_>) -> StatusResult<MdsAnswer> {
        if let MdsRequest::Create { parent, .. } | MdsRequest::Link { parent, .. } = request {
            self.moving.await_permit(parent);
        }
        match self.run_once(caller, request) {
            // Names may have moved to this shard without its knowledge.
            Err(Status::WRONG_SHARD) if self.moves.learn_moved(request)? => self.run_once(caller, request),
            outcome => outcome,
        }
    }

    /// Returns the values from the start of this run.
    fn run_start(&self, client: &ClientUuid) -> StatusResult<RunStart> {
        let boot_id = nacre_env::own_process().boot;
        let (losses, replayed) = (self.leaves.replays.losses().to_vec(), self.replayer.replayed(client)?);
        Ok(RunStart { run: self.boot_count, boot_id, losses, replayed })
    }

    /// Executes lost changes of a client again, each as the client's standing permits.
    fn replay(&self, export: &Export, changes: &[ReplayedChange]) -> StatusResult<MdsAnswer> {
        self.replayer.replay(export, changes, &self.capabilities, &|call, request| match export.standing() {
            None => self.serve(export, call, request, None),
            Some(standing) => self.tenants.serve(export, call, request, &standing, |call, request| {
                self.serve(export, call, request, Some(&standing))
            }),
        })
    }

    /// Assigns an unused sequence.
    fn allocate_sequence(&self, caller: &Caller<'_>) -> StatusResult<MdsAnswer> {
        let records = &self.leaves.records;
        let finish = |tx, sequence| self.core.commits.finish(caller, tx, MdsReply::Sequence(sequence));
        let answer = records.take_sequence(finish)?;
        // After a power cut another client would get the same one, and both would create inodes with the same
        // FIDs. A client needs a sequence once in many thousand creates.
        records.sync(answer.transno)?;
        Ok(answer)
    }

    fn capabilities_of(&self, caller: &Caller<'_>, fid: &Fid, wanted: Rights) -> StatusResult<MdsAnswer> {
        let capabilities = self.capabilities.of(caller, fid, wanted)?;
        Ok(MdsAnswer { capabilities, ..self.core.commits.answer(MdsReply::Done) })
    }

    fn intend(
        &self,
        caller: &Caller<'_>,
        fid: &Fid,
        name: Option<&[u8]>,
        handle: LockHandle,
    ) -> StatusResult<MdsAnswer> {
        Ok(self.core.commits.answer(self.core.client_locks.intend(caller, fid, name, handle)?))
    }

    fn lease_of(&self, caller: &Caller<'_>) -> StatusResult<MdsAnswer> {
        let lease = self.leaves.clients.lease_of(&caller.client)?;
        Ok(self.core.commits.answer(MdsReply::Lease(lease)))
    }

    fn path_of(&self, caller: &Caller<'_>, fid: &Fid, index: u32) -> StatusResult<MdsAnswer> {
        self.lookups.fid_to_path(fid, index, self.filesets.top_of(caller.standing)?)
    }

    fn commit_upto(&self, upto: TransNo) -> StatusResult<MdsAnswer> {
        let all = upto == TransNo(u64::MAX);
        let upto = upto.min(self.leaves.store.last_transno());
        self.leaves.records.sync(upto)?;
        self.resolver.settle_transactions(upto)?;
        if all {
            nacre_env::blocking(|| self.osts.drain(DESTROY_TIMEOUT));
            // OSTs may be on the same disk.
            self.space.refresh();
        }
        Ok(self.core.commits.answer(MdsReply::Done))
    }

    /// Serves another metadata server.
    ///
    /// # Errors
    /// `EPERM` if the client is not a metadata server.
    pub(crate) fn serve_peer(&self, export: &Export, request: &PeerRequest) -> StatusResult<MdsAnswer> {
        if !export.is_server {
            return Err(Status::EPERM);
        }
        let reply = match request {
            PeerRequest::Hello { mdt, after } => {
                self.core.tree.free_of(*mdt);
                self.leaves.transactions.transactions_of(*mdt, after.as_ref())
            }
            PeerRequest::Prepare { op, fids, names, replays } => {
                self.resolver.await_own_greetings();
                if !replays {
                    self.replayer.await_all()?;
                }
                self.core.participant.prepare(*op, fids, names)?
            }
            PeerRequest::Apply { transaction, transno } => {
                self.resolver.await_own_greetings();
                self.core.participant.apply(transaction, *transno)?
            }
            PeerRequest::Abort { op } => self.core.participant.abort(op)?,
            PeerRequest::Outcome { op } => self.leaves.transactions.outcome(op)?,
            PeerRequest::Sync { op } => {
                // What is not applied again yet is not durable.
                self.replayer.await_restored()?;
                self.resolver.sync_transaction(op)?
            }
            PeerRequest::Forget { ops, below } => self.core.participant.forget(ops, below)?,
            PeerRequest::Record { fid } => PeerReply::Record(self.core.participant.found(fid)?),
            PeerRequest::ResolveName { at } => {
                PeerReply::Fid(self.leaves.records.resolve_local(&at.parent, &at.name)?)
            }
            PeerRequest::LockTree { op } => self.core.tree.lock(*op)?,
            PeerRequest::UnlockTree { op } => self.core.tree.unlock(op),
            PeerRequest::QuotaRound { round } => PeerReply::Quota(self.leaves.quotas.book().round(round)),
            PeerRequest::AdmitSpace { id, bytes } => {
                self.leaves.quotas.admit_space_here(*id, *bytes)?;
                PeerReply::Done
            }
            PeerRequest::HashSeed => PeerReply::HashSeed(self.leaves.records.hash_seed()),
            PeerRequest::Moved { fid } => self.moves.moved_of(fid)?,
            PeerRequest::NewFid => PeerReply::Fid(self.moves.new_fid()?),
            PeerRequest::PutData { op, fid, offset, bytes, size } => {
                self.core.participant.put_data(*op, *fid, *offset, &bytes.0, *size)?
            }
            PeerRequest::Split { fid } => {
                self.leaves.records.check_local(fid)?;
                self.moving.note_grown(*fid);
                PeerReply::Done
            }
        };
        Ok(self.core.commits.answer(MdsReply::Peer(reply)))
    }

    /// Executes a request of a client's recovery; `Replay` is executed before this.
    fn run_recovery(&self, caller: &Caller<'_>, request: &MdsRequest<'_>) -> StatusResult<MdsAnswer> {
        match request {
            MdsRequest::RunStart => {
                Ok(self.core.commits.answer(MdsReply::RunStart(self.run_start(&caller.client)?)))
            }
            RecoveryDone => Ok(self.core.commits.answer(MdsReply::Done)),
            _ => Err(Status::EPROTO),
        }
    }

    /// Executes a request about what the MDT records of changes and use.
    fn run_account(&self, caller: &Caller<'_>, request: &MdsRequest<'_>) -> StatusResult<MdsAnswer> {
        match request {
            Changelog(request) => self.changelogs.serve(caller, request),
            Quota(request) => self.quota_master.as_ref().ok_or(Status::WRONG_TARGET)?.serve(caller, request),
            DirUse(request) => self.dir_sums.serve(caller, request),
            _ => Err(Status::EPROTO),
        }
    }

    fn run_once(&self, caller: &Caller<'_>, request: &MdsRequest<'_>) -> StatusResult<MdsAnswer> {
        match request {
            Statfs => Ok(self.core.commits.answer(MdsReply::Statfs(self.statfs()))),
            AllocateSequence => self.allocate_sequence(caller),
            Lookup { parent, name } => self.lookups.lookup(caller, parent, name),
            GetAttr { fid } => self.lookups.get_attr(fid),
            SetAttr { fid, set } => self.attrs.set_attr(caller, fid, set),
            &Create { ref parent, name, ref fid, ref new, mode, umask, open, exclusive } => {
                self.names.create(caller, &Making { parent, name, fid, new, mode, umask, open, exclusive })
            }
            Link { fid, parent, name } => self.names.link(caller, fid, parent, name),
            Unlink { parent, name, directory } => self.names.unlink(caller, parent, name, *directory),
            Rename { from_parent, from_name, to_parent, to_name, flags } => {
                self.names.rename(caller, (*from_parent, from_name), (*to_parent, to_name), *flags)
            }
            Open { fid, handle, flags, lock } => self.files.open_file(caller, fid, *handle, *flags, *lock),
            Close { fid, handle, update, written } => self.files.close(caller, fid, *handle, update, written),
            CloseWrite { fid, handle, update, data } => {
                self.files.close_with_data(caller, fid, *handle, update, data)
            }
            UpdateData { fid, update, exact, written } => {
                self.files.update_data(caller, fid, update, written, *exact)
            }
            OpenLease { fid, handle, kind } => self.files.open_lease(caller, fid, *handle, *kind),
            LayoutIntent { fid, start, end } => self.relayout.layout_intent(caller, fid, *start..*end),
            LayoutAccess { .. } => self.relayout.layout_access(caller, request),
            SwapLayouts { first, second, versions, keep_times, lease } => self
                .relayout
                .swap_layouts(caller, &Swap::of([*first, *second], *versions, *keep_times, *lease)),
            GetLayout { fid } => self.lookups.get_layout(fid),
            SetLayout { fid, requested } => self.relayout.set_layout(caller, fid, requested),
            GetDefaultLayout { fid } => self.lookups.get_default_layout(fid),
            Capabilities { fid, wanted } => self.capabilities_of(caller, fid, *wanted),
            FilesOn { ost_index: ost, after, count_max: n } => self.lookups.files_on(caller, *ost, after, *n),
            Inodes { after, count_max, kind } => self.lookups.inodes(caller, after, *count_max, *kind),
            Peer(request) => self.serve_peer(caller.export, request),
            Restripe { fid, requested } => self.moves.restripe(caller, fid, requested),
            Migrate { fid, to, lmv } => self.moves.migrate(caller, fid, to, lmv),
            MigrateFiles { moves } => self.moves.migrate_files(caller, moves),
            ReadDir { fid, cookie, max_bytes, plus, locks } => {
                self.lookups.read_dir(caller.export, &Listing::of(*fid, *cookie, *max_bytes, *plus, *locks))
            }
            Scan { fid, cookie, max_bytes, layouts } => {
                self.lookups.scan(caller, fid, *cookie, *max_bytes, *layouts)
            }
            ListInodes { fids, layouts, locks } => self.lookups.list_inodes(caller, fids, *layouts, *locks),
            LookupMany { parent, names, locks } => self.lookups.lookup_many(caller, parent, names, *locks),
            ReadLink { fid } => self.lookups.read_link(fid),
            GetXattr { fid, name } => self.attrs.get_xattr(caller, fid, name),
            ListXattr { fid } => self.attrs.list_xattr(caller, fid),
            SetXattr { fid, name, value, flags } => self.attrs.set_xattr(caller, fid, name, value, *flags),
            RemoveXattr { fid, name } => self.attrs.remove_xattr(caller, fid, name),
            Access { fid, mask } => self.lookups.access(caller, fid, *mask),
            Commit { upto } => self.commit_upto(*upto),
            FidToLink { fid, index } => self.lookups.fid_to_link(fid, *index),
            FidToPath { fid, index } => self.path_of(caller, fid, *index),
            RemoveFid { fid } => self.names.remove_fid(caller, fid),
            SetLock { fid, lock, wait } => self.sessions.set_lock(caller, fid, lock, *wait),
            LockFile { fid, lock, wait, asked_ns } => self.sessions.lock(caller, fid, lock, *wait, *asked_ns),
            ReplayFileLocks { fid, locks } => self.sessions.replay_file_locks(caller, fid, locks),
            GetLock { fid, lock } => self.sessions.get_lock(caller, fid, lock),
            Changelog(_) | Quota(_) | DirUse(_) => self.run_account(caller, request),
            RunStart | RecoveryDone | Replay { .. } | DataChange { .. } => self.run_recovery(caller, request),
            Ping => self.lease_of(caller),
            Intent { fid, name, handle } => self.intend(caller, fid, *name, *handle),
            Locks { request } => Ok(self.core.commits.answer(self.sessions.serve_locks(caller, request)?)),
            LeaseReleased { epoch } => self.sessions.lease_released(&caller.client, *epoch),
            LeaseBusy { epoch } => Ok(self.sessions.lease_busy(&caller.client, *epoch)),
        }
    }
}
