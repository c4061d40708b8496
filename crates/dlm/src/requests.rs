//! Requests of clients.

use crate::exports::peer_of;
use crate::service::{LockOwner, LockService};
use nacre_env::clock::Instant;
use nacre_lock::server::GlimpseId;
use nacre_lock::{Enqueue, LockHandle, Need, Outcome, Policy, Refusal, ResourceId};
use nacre_rpc::Export;
use nacre_types::{Status, StatusResult};
use nacre_wire::lock::LockRequest;
use std::sync::atomic::Ordering;

impl LockService {
    /// Runs one request of a client. Returns the outcome of an enqueue or a replay, `None` for all others.
    /// Never waits for other clients.
    ///
    /// # Errors
    /// `EVICTED` if the export has ended or was never connected; `EINVAL` for an invalid conversion; the
    /// owner's error for an enqueue that it refuses.
    pub fn handle(
        &self,
        owner: &dyn LockOwner,
        export: &Export,
        request: &LockRequest,
    ) -> StatusResult<Option<Outcome>> {
        if export.has_ended() {
            return Err(Status::EVICTED);
        }
        let peer = peer_of(export);
        match request {
            LockRequest::Enqueue { request, cancels } => {
                self.enqueue(owner, export, request, cancels).and_then(known_client).map(Some)
            }
            LockRequest::Replay { handle, resource, need } => {
                self.replay(owner, export, *handle, resource, need).and_then(known_client).map(Some)
            }
            LockRequest::Cancel { handles } => {
                self.act(|state, effects| {
                    state.cancels += 1;
                    state.engine.on_cancel(Instant::now(), peer, handles, effects);
                });
                Ok(None)
            }
            LockRequest::Convert { handle, mode, policy } => {
                let converted = self.act(|state, effects| {
                    state.engine.on_convert(Instant::now(), peer, *handle, *mode, policy, effects)
                });
                match converted {
                    Ok(()) => Ok(None),
                    Err(Refusal::Stale) => Err(Status::EVICTED),
                    Err(_) => Err(Status::EINVAL),
                }
            }
            LockRequest::GlimpseAnswer { glimpse, handle, lvb } => {
                let (now, glimpse) = (Instant::now(), GlimpseId(*glimpse));
                self.act(|state, effects| {
                    state.engine.on_glimpse_answer(now, peer, glimpse, *handle, *lvb, effects);
                });
                Ok(None)
            }
            LockRequest::Busy { handle } => {
                self.act(|state, _| state.engine.on_activity(Instant::now(), peer, *handle));
                Ok(None)
            }
            LockRequest::ReplayDone => {
                self.end_replay_of(&export.client);
                Ok(None)
            }
        }
    }

    /// Requests a lock on behalf of a client, as [`LockRequest::Enqueue`] does.
    ///
    /// # Errors
    /// See [`LockService::handle`].
    pub fn enqueue(
        &self,
        owner: &dyn LockOwner,
        export: &Export,
        request: &Enqueue,
        cancels: &[LockHandle],
    ) -> StatusResult<Outcome> {
        self.prepare(owner, export, &request.resource, &request.need)?;
        let (now, peer) = (Instant::now(), peer_of(export));
        self.act(|state, effects| {
            state.engine.on_cancel(now, peer, cancels, effects);
            let lvb = match request.need.policy {
                Policy::Extent(_) => self.lvb_for(state, owner, &request.resource)?,
                Policy::Bits(_) => None,
            };
            Ok(state.engine.on_enqueue(now, peer, request, lvb, effects))
        })
    }

    fn replay(
        &self,
        owner: &dyn LockOwner,
        export: &Export,
        handle: LockHandle,
        resource: &ResourceId,
        need: &Need,
    ) -> StatusResult<Outcome> {
        self.prepare(owner, export, resource, need)?;
        self.act(|state, _| {
            // A client that is not awaited was dropped before the restart, and others may have changed what
            // it cached.
            if !state.is_awaited(&export.client) && state.engine.granted(peer_of(export), handle).is_none() {
                return Ok(Outcome::Refused(Refusal::ReplayRefused));
            }
            let lvb = self.lvb_for(state, owner, resource)?;
            Ok(state.engine.on_replay(peer_of(export), handle, resource, need, lvb))
        })
    }

    /// Does the slow work before the mutex is taken: has the owner record the client, and reads attributes
    /// into memory.
    fn prepare(
        &self,
        owner: &dyn LockOwner,
        export: &Export,
        resource: &ResourceId,
        need: &Need,
    ) -> StatusResult<()> {
        let (known, needs_lvb) = {
            let state = self.state();
            let known = state.exports.get(&export.client).cloned();
            let is_object = matches!(need.policy, Policy::Extent(_));
            (known, is_object && state.engine.needs_lvb(resource))
        };
        let known = known.filter(|known| known.export.generation == export.generation);
        let known = known.ok_or(Status::EVICTED)?;
        if !known.is_noted.load(Ordering::Acquire) {
            owner.on_first_lock(export)?;
            known.is_noted.store(true, Ordering::Release);
        }
        if needs_lvb {
            owner.lvb(resource)?;
        }
        Ok(())
    }
}

/// Translates the engine's refusal of unknown clients into the one status for them.
fn known_client(outcome: Outcome) -> StatusResult<Outcome> {
    if outcome == Outcome::Refused(Refusal::Stale) { Err(Status::EVICTED) } else { Ok(outcome) }
}
