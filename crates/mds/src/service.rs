//! The requests of the protocol, one by one.

use crate::mds::Mds;
use crate::ops::readdir::{Details, Listing};
use crate::ops::relayout::Swap;
use crate::tenants::shown_to;
use crate::turn::Turn;
use nacre_env::clock::Instant;
use nacre_rpc::{Call, Export, MdsService, Moment, ReplySlot};
use nacre_types::{ClientUuid, Fid, Standing, Status, StatusResult};
use nacre_wire::connect::RunStart;
use nacre_wire::mds::{LeaseGrant, MdsAnswer, MdsReply, MdsRequest};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// What every operation knows of its caller.
#[derive(Clone, Copy)]
pub(crate) struct Caller<'a> {
    pub client: ClientUuid,
    pub export: &'a Export,
    pub call: &'a Call<'a>,
    pub request: &'a MdsRequest<'a>,
    /// What is kept for the request while it waits for clients.
    pub turn: &'a Turn,
    /// What the client may be, if that is bounded.
    pub standing: Option<&'a Standing>,
}

impl<'a> Caller<'a> {
    /// The caller's credentials.
    pub fn cred(&self) -> &'a nacre_types::Cred {
        self.call.cred
    }

    /// True if the client acts for some users only, so that what it says of itself is to be checked.
    pub fn is_bounded(&self) -> bool {
        self.standing.is_some_and(|standing| !standing.is_trusted())
    }
}

impl MdsService for Mds {
    fn connect(&self, export: &Arc<Export>) -> StatusResult<LeaseGrant> {
        if export.is_server {
            return Ok(LeaseGrant { exclusive: false, epoch: 0 });
        }
        self.admit(export)?;
        let grant = self.connect_client(export)?;
        // They may have changed meanwhile.
        if let Err(status) = self.admit(export) {
            self.drop_client(&export.client);
            return Err(status);
        }
        self.stats().join(export);
        Ok(grant)
    }

    fn disconnect(&self, client: ClientUuid) {
        self.drop_client(&client);
    }

    fn handle(&self, export: &Export, call: &Call<'_>, request: &MdsRequest<'_>) -> StatusResult<MdsAnswer> {
        if self.stopping.load(Ordering::Relaxed) {
            return Err(Status::ESHUTDOWN);
        }
        if let MdsRequest::Peer(peer) = request {
            let start = Instant::now();
            self.simulation.serve(request);
            let answer = self.serve_peer(export, peer);
            self.stats().count_service(request, start);
            return answer;
        }
        if export.is_server && matches!(request, MdsRequest::Ping) {
            // It has no lease; that it is answered says that it is known.
            return Ok(self.answer(MdsReply::Lease(LeaseGrant { exclusive: false, epoch: 0 })));
        }
        if export.has_ended() {
            // It comes late, from a life that is over; the client may be back.
            return Err(Status::EVICTED);
        }
        self.clients.check(&export.client)?;
        self.note_request(&export.client, request);
        match export.standing() {
            None => self.serve(export, call, request, None),
            Some(standing) => self.serve_tenant(export, call, request, &standing),
        }
    }

    fn stored_answer(
        &self,
        export: &Export,
        request: &MdsRequest<'_>,
        slot: &ReplySlot,
    ) -> Option<StatusResult<MdsAnswer>> {
        let mut answer = self.find_stored_answer(slot)?;
        if let Ok(answer) = &mut answer {
            // What was given in the last life is not kept.
            self.add_capabilities(export, request, answer);
        }
        let standing = self.clients.export_of(&slot.client).and_then(|export| export.standing());
        Some(match standing {
            None => answer,
            Some(standing) => answer.map(|answer| shown_to(&standing, answer)),
        })
    }
}

impl Mds {
    pub(crate) fn serve(
        &self,
        export: &Export,
        call: &Call<'_>,
        request: &MdsRequest<'_>,
        standing: Option<&Standing>,
    ) -> StatusResult<MdsAnswer> {
        let start = Instant::now();
        self.simulation.serve(request);
        self.hold.pass(Moment::Before, request);
        let turn = Turn::of(request);
        let caller = Caller { client: export.client, export, call, request, turn: &turn, standing };
        let answer = self.run(&caller, request);
        self.stats().count_service(request, start);
        let mut answer = answer?;
        self.add_capabilities(export, request, &mut answer);
        self.stats().count(export, call.job.as_ref(), request, start);
        self.hold.pass(Moment::After, request);
        Ok(answer)
    }

    /// The files that a client has open, one entry for each handle.
    pub fn open_files(&self, client: &ClientUuid) -> Vec<Fid> {
        self.opens.handles_of(client).into_iter().map(|(fid, _)| fid).collect()
    }

    /// What this run began with.
    fn run_start(&self) -> RunStart {
        let boot_id = nacre_env::own_process().boot;
        RunStart { run: self.boot_count, newest: self.boot_transno.0, boot_id }
    }

    pub(crate) fn run_through(
        &self,
        caller: &Caller<'_>,
        request: &MdsRequest<'_>,
    ) -> StatusResult<MdsAnswer> {
        if let MdsRequest::Create { parent, .. } | MdsRequest::Link { parent, .. } = request {
            self.moving.await_turn(parent);
        }
        match self.run_once(caller, request) {
            // Names may have come to this shard without its knowing.
            Err(Status::WRONG_SHARD) if self.learn_moved(request)? => self.run_once(caller, request),
            outcome => outcome,
        }
    }

    /// Where data of a file goes, and what became of it.
    fn serve_data(&self, caller: &Caller<'_>, request: &MdsRequest<'_>) -> StatusResult<MdsAnswer> {
        match request {
            MdsRequest::Close { fid, handle, update, written } => {
                self.close(caller, fid, *handle, (update, written))
            }
            MdsRequest::UpdateData { fid, update, exact, written } => {
                self.update_data(caller, fid, (update, written), *exact)
            }
            MdsRequest::CloseWrite { fid, handle, update, data } => {
                self.close_with_data(caller, fid, *handle, (update, data))
            }
            MdsRequest::LayoutIntent { fid, start, end } => self.layout_intent(caller, fid, (*start, *end)),
            MdsRequest::LayoutAccess { fid, range, lock } => self.layout_access(caller, fid, *range, *lock),
            MdsRequest::SwapLayouts { first, second, versions, keep_times, lease } => {
                let (files, versions) = ([*first, *second], [versions.0, versions.1]);
                self.swap_layouts(caller, &Swap { files, versions, keep_times: *keep_times, lease: *lease })
            }
            _ => Err(Status::EPROTO),
        }
    }

    fn serve_xattrs(&self, caller: &Caller<'_>, request: &MdsRequest<'_>) -> StatusResult<MdsAnswer> {
        match request {
            MdsRequest::GetXattr { fid, name } => self.get_xattr(caller, fid, name),
            MdsRequest::ListXattr { fid } => self.list_xattr(caller, fid),
            MdsRequest::SetXattr { fid, name, value, flags } => {
                self.set_xattr(caller, fid, name, value, *flags)
            }
            MdsRequest::RemoveXattr { fid, name } => self.remove_xattr(caller, fid, name),
            _ => Err(Status::EPROTO),
        }
    }

    fn run_once(&self, caller: &Caller<'_>, request: &MdsRequest<'_>) -> StatusResult<MdsAnswer> {
        match request {
            MdsRequest::Statfs => Ok(self.answer(MdsReply::Statfs(self.statfs()))),
            MdsRequest::AllocateSequence => self.allocate_sequence(caller),
            MdsRequest::Lookup { parent, name } => self.lookup(caller, parent, name),
            MdsRequest::GetAttr { fid } => self.get_attr(fid),
            MdsRequest::SetAttr { fid, set } => self.set_attr(caller, fid, set),
            MdsRequest::Create { .. } => self.create(caller, request),
            MdsRequest::Link { fid, parent, name } => self.link(caller, fid, parent, name),
            MdsRequest::Unlink { parent, name, directory } => self.unlink(caller, parent, name, *directory),
            MdsRequest::Rename { from_parent, from_name, to_parent, to_name, flags } => {
                self.rename(caller, (*from_parent, from_name), (*to_parent, to_name), *flags)
            }
            MdsRequest::Open { fid, handle, flags, lock } => {
                self.open_file(caller, fid, (*handle, *flags), *lock)
            }
            MdsRequest::LayoutIntent { .. }
            | MdsRequest::LayoutAccess { .. }
            | MdsRequest::SwapLayouts { .. }
            | MdsRequest::Close { .. }
            | MdsRequest::CloseWrite { .. }
            | MdsRequest::UpdateData { .. } => self.serve_data(caller, request),
            MdsRequest::OpenLease { fid, handle, kind } => self.open_lease(caller, fid, *handle, *kind),
            MdsRequest::FilesOn { ost_index, after, count_max } => {
                self.files_on(caller, *ost_index, after, *count_max)
            }
            MdsRequest::Peer(request) => self.serve_peer(caller.export, request),
            MdsRequest::Restripe { fid, wish } => self.restripe(caller, fid, wish),
            MdsRequest::Migrate { fid, to, lmv } => self.migrate(caller, fid, to, lmv),
            MdsRequest::MigrateFiles { moves } => self.migrate_files(caller, moves),
            MdsRequest::Inodes { after, count_max, kind } => self.inodes(caller, after, *count_max, *kind),
            MdsRequest::GetLayout { fid } => self.get_layout(fid),
            MdsRequest::Capabilities { fid, wanted } => self.capabilities_of(caller, fid, *wanted),
            MdsRequest::SetLayout { fid, wish } => self.set_layout(caller, fid, wish),
            MdsRequest::GetDefaultLayout { fid } => self.get_default_layout(fid),
            MdsRequest::ReadDir { fid, cookie, max_bytes, plus, locks } => {
                let details = if *plus { Details::Attributes } else { Details::Names };
                let (fid, cookie, max_bytes, locks) = (*fid, *cookie, *max_bytes, *locks);
                self.read_dir(caller.export, &Listing { fid, cookie, max_bytes, details, locks })
            }
            MdsRequest::Scan { fid, cookie, max_bytes, layouts } => {
                self.scan(caller, fid, *cookie, *max_bytes, *layouts)
            }
            MdsRequest::ListInodes { fids, layouts, locks } => {
                self.list_inodes(caller.export, fids, *layouts, *locks)
            }
            MdsRequest::LookupMany { parent, names, locks } => {
                self.lookup_many(caller, parent, names, *locks)
            }
            MdsRequest::ReadLink { fid } => self.read_link(fid),
            MdsRequest::GetXattr { .. }
            | MdsRequest::ListXattr { .. }
            | MdsRequest::SetXattr { .. }
            | MdsRequest::RemoveXattr { .. } => self.serve_xattrs(caller, request),
            MdsRequest::Access { fid, mask } => self.access(caller, fid, *mask),
            MdsRequest::Commit { upto } => self.commit_upto(*upto),
            MdsRequest::FidToLink { fid, index } => self.fid_to_link(fid, *index),
            MdsRequest::FidToPath { fid, index } => self.fid_to_path(caller, fid, *index),
            MdsRequest::RemoveFid { fid } => self.remove_fid(caller, fid),
            MdsRequest::SetLock { .. }
            | MdsRequest::LockFile { .. }
            | MdsRequest::ReplayFileLocks { .. }
            | MdsRequest::GetLock { .. } => self.serve_file_locks(caller, request),
            MdsRequest::RunStart => Ok(self.answer(MdsReply::RunStart(self.run_start()))),
            MdsRequest::Ping => Ok(self.answer(MdsReply::Lease(self.lease_of(&caller.client)?))),
            MdsRequest::Intent { fid, name, handle } => self.intend(caller, fid, *name, *handle),
            MdsRequest::Locks { request } => Ok(self.answer(self.serve_locks(caller, request)?)),
            MdsRequest::LeaseReleased { epoch } => self.lease_released(&caller.client, *epoch),
        }
    }
}
