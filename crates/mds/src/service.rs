//! The requests of the protocol, one by one.

use crate::mds::Mds;
use crate::ops::readdir::Details;
use crate::ops::relayout::Swap;
use crate::turn::Turn;
use nacre_rpc::{Call, Export, MdsService, Moment, ReplySlot};
use nacre_types::{ClientUuid, Fid, Status, StatusResult};
use nacre_wire::mds::{LeaseGrant, MdsAnswer, MdsReply, MdsRequest};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

/// What every operation knows of its caller.
#[derive(Clone, Copy)]
pub(crate) struct Caller<'a> {
    pub client: ClientUuid,
    pub export: &'a Export,
    pub call: &'a Call<'a>,
    pub request: &'a MdsRequest<'a>,
    /// What is kept for the request while it waits for clients.
    pub turn: &'a Turn,
}

impl<'a> Caller<'a> {
    /// The caller's credentials.
    pub fn cred(&self) -> &'a nacre_types::Cred {
        self.call.cred
    }
}

impl MdsService for Mds {
    fn connect(&self, export: &Arc<Export>) -> StatusResult<LeaseGrant> {
        if export.is_server {
            return Ok(LeaseGrant { exclusive: false, epoch: 0 });
        }
        let grant = self.connect_client(export)?;
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
            self.simulation.serve(request);
            return self.serve_peer(export, peer);
        }
        if export.is_server && matches!(request, MdsRequest::Ping) {
            // It has no lease; that it is answered says that it is known.
            return Ok(self.answer(MdsReply::Lease(LeaseGrant { exclusive: false, epoch: 0 })));
        }
        self.clients.check(&export.client)?;
        self.note_request(&export.client, request);
        let start = Instant::now();
        self.simulation.serve(request);
        self.hold.pass(Moment::Before, request);
        let turn = Turn::of(request);
        let caller = Caller { client: export.client, export, call, request, turn: &turn };
        let answer = self.run(&caller, request)?;
        self.stats().count(export, call.job.as_ref(), request, start);
        self.hold.pass(Moment::After, request);
        Ok(answer)
    }

    fn stored_answer(&self, slot: &ReplySlot) -> Option<StatusResult<MdsAnswer>> {
        self.find_stored_answer(slot)
    }
}

impl Mds {
    /// The files that a client has open, one entry for each handle.
    pub fn open_files(&self, client: &ClientUuid) -> Vec<Fid> {
        self.opens.handles_of(client).into_iter().map(|(fid, _)| fid).collect()
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
            MdsRequest::Close { fid, handle, update } => self.close(caller, fid, *handle, update),
            MdsRequest::CloseWrite { fid, handle, update, data } => {
                self.close_with_data(caller, fid, *handle, (update, data))
            }
            MdsRequest::UpdateData { fid, update, exact } => self.update_data(caller, fid, update, *exact),
            MdsRequest::LayoutIntent { fid, start, end } => self.layout_intent(caller, fid, (*start, *end)),
            MdsRequest::LayoutAccess { fid, range, lock } => self.layout_access(caller, fid, *range, *lock),
            MdsRequest::SwapLayouts { first, second, versions, keep_times, lease } => {
                let (files, versions) = ([*first, *second], [versions.0, versions.1]);
                self.swap_layouts(caller, &Swap { files, versions, keep_times: *keep_times, lease: *lease })
            }
            MdsRequest::OpenLease { fid, handle, kind } => self.open_lease(caller, fid, *handle, *kind),
            MdsRequest::FilesOn { ost_index, after, count_max } => {
                self.files_on(caller, *ost_index, after, *count_max)
            }
            MdsRequest::Peer(request) => self.serve_peer(caller.export, request),
            MdsRequest::Restripe { fid, wish } => self.restripe(caller, fid, wish),
            MdsRequest::Migrate { fid, to, lmv } => self.migrate(caller, fid, to, lmv),
            MdsRequest::Inodes { after, count_max } => self.inodes(caller, after, *count_max),
            MdsRequest::GetLayout { fid } => self.get_layout(fid),
            MdsRequest::SetLayout { fid, wish } => self.set_layout(caller, fid, wish),
            MdsRequest::GetDefaultLayout { fid } => self.get_default_layout(fid),
            MdsRequest::ReadDir { fid, cookie, max_bytes, plus } => {
                let details = if *plus { Details::Attributes } else { Details::Names };
                self.read_dir(fid, *cookie, *max_bytes, details)
            }
            MdsRequest::Scan { fid, cookie, max_bytes, layouts } => {
                self.scan(caller, fid, *cookie, *max_bytes, *layouts)
            }
            MdsRequest::ListInodes { fids, layouts } => self.list_inodes(fids, *layouts),
            MdsRequest::LookupMany { parent, names } => self.lookup_many(caller, parent, names),
            MdsRequest::ReadLink { fid } => self.read_link(fid),
            MdsRequest::GetXattr { fid, name } => self.get_xattr(caller, fid, name),
            MdsRequest::ListXattr { fid } => self.list_xattr(caller, fid),
            MdsRequest::SetXattr { fid, name, value, flags } => {
                self.set_xattr(caller, fid, name, value, *flags)
            }
            MdsRequest::RemoveXattr { fid, name } => self.remove_xattr(caller, fid, name),
            MdsRequest::Access { fid, mask } => self.access(caller, fid, *mask),
            MdsRequest::Commit { upto } => self.commit_upto(*upto),
            MdsRequest::FidToLink { fid, index } => self.fid_to_link(fid, *index),
            MdsRequest::FidToPath { fid, index } => self.fid_to_path(fid, *index),
            MdsRequest::RemoveFid { fid } => self.remove_fid(caller, fid),
            MdsRequest::SetLock { fid, lock, wait } => self.set_lock(caller, fid, lock, *wait),
            MdsRequest::GetLock { fid, lock } => self.get_lock(caller, fid, lock),
            MdsRequest::Ping => Ok(self.answer(MdsReply::Lease(self.lease_of(&caller.client)?))),
            MdsRequest::Intent { fid, name, handle } => self.intend(caller, fid, *name, *handle),
            MdsRequest::Locks { request } => Ok(self.answer(self.serve_locks(caller, request)?)),
            MdsRequest::LeaseReleased { epoch } => {
                Ok(self.answer(MdsReply::Lease(self.lease_released(&caller.client, *epoch)?)))
            }
        }
    }
}
