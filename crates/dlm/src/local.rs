//! Locks and glimpses of the target itself, for the duration of one operation.

use crate::exports::peer_of;
use crate::service::{LockOwner, LockService, State};
use nacre_env::activity::{Cause, blocking_for, current};
use nacre_env::clock::Instant;
use nacre_env::sync::Condvar;
use nacre_lock::{
    Enqueue, EnqueueFlags, InodeBits, LockHandle, Lvb, Mode, Need, Outcome, Peer, Policy, Refusal, ResourceId,
};
use nacre_rpc::Export;
use nacre_types::{ClientUuid, Status, StatusResult};
use nacre_wire::lock::LockMessage;
use std::sync::Arc;
use std::time::Duration;

/// Interval between checks for an interrupt while a thread waits.
const POLL: Duration = Duration::from_millis(50);

/// A thread of the target that waits for a lock or for the end of a glimpse.
pub(crate) struct LocalWait {
    client: Option<ClientUuid>,
    /// Result of the wait: for a glimpse, what the writers know.
    outcome: Option<StatusResult<Lvb>>,
    woken: Arc<Condvar>,
}

impl LocalWait {
    pub(crate) fn wake(&self) {
        self.woken.notify_all();
    }

    fn end(&mut self, outcome: StatusResult<Lvb>) {
        if self.outcome.is_none() {
            self.outcome = Some(outcome);
            self.wake();
        }
    }
}

impl State {
    /// Ends a thread's wait for a lock that the engine has granted.
    pub(crate) fn end_wait(&mut self, message: LockMessage) {
        if let LockMessage::Completion { handle, outcome } = message
            && let Some(wait) = self.waits.get_mut(&handle)
        {
            let lvb = match outcome {
                Outcome::Glimpsed(lvb) => lvb,
                _ => Lvb::default(),
            };
            wait.end(Ok(lvb));
        }
    }

    /// Ends all waits on behalf of a client that was removed.
    pub(crate) fn fail_waits_of(&mut self, client: &ClientUuid) {
        for wait in self.waits.values_mut().filter(|wait| wait.client == Some(*client)) {
            wait.end(Err(Status::EVICTED));
        }
    }

    fn begin_wait(&mut self, handle: LockHandle, client: Option<ClientUuid>) {
        self.waits.insert(handle, LocalWait { client, outcome: None, woken: Arc::default() });
    }
}

/// A lock of the target itself; released when dropped.
#[must_use = "the lock is released when the guard is dropped"]
pub struct LocalLock<'a> {
    service: &'a LockService,
    handle: LockHandle,
}

impl Drop for LocalLock<'_> {
    fn drop(&mut self) {
        self.service.cancel_local(self.handle);
    }
}

/// Result of a request under the mutex.
enum Asked {
    Done(Lvb),
    Waits(LockHandle),
}

impl LockService {
    /// Takes a lock for an operation of the target, and waits until it is granted. Locks of the client
    /// `on_behalf_of`, and others on its behalf, do not conflict; while one of its locks is being revoked,
    /// waiting requests of others do not conflict either. Several locks are taken in the order of their
    /// resources.
    ///
    /// # Errors
    /// `EVICTED` if the client was removed, `EINTR`, `ESHUTDOWN`; `EINVAL` if the part does not fit the
    /// resource.
    pub fn lock_local(
        &self,
        resource: &ResourceId,
        need: Need,
        on_behalf_of: Option<&Export>,
    ) -> StatusResult<LocalLock<'_>> {
        let (handle, asked) = self.act(|state, effects| {
            let client = on_behalf_of.map(|export| export.client);
            check(state, on_behalf_of)?;
            let request = local_request(state.engine.local_handle(), resource, need);
            let outcome = state.engine.on_local_enqueue(Instant::now(), &request, client, None, effects);
            state.holders.insert(request.handle, current());
            Ok((request.handle, asked(state, request.handle, client, outcome)?))
        })?;
        if let Asked::Waits(handle) = asked {
            self.await_local(handle)?;
        }
        Ok(LocalLock { service: self, handle })
    }

    /// True if [`LockService::lock_local`] would get the lock without waiting. Revokes nothing.
    ///
    /// # Errors
    /// As for [`LockService::lock_local`].
    pub fn is_free(
        &self,
        resource: &ResourceId,
        need: Need,
        on_behalf_of: Option<&Export>,
    ) -> StatusResult<bool> {
        let (handle, outcome) = self.act(|state, effects| {
            let client = on_behalf_of.map(|export| export.client);
            check(state, on_behalf_of)?;
            let mut request = local_request(state.engine.local_handle(), resource, need);
            request.flags.no_wait = true;
            let outcome = state.engine.on_local_enqueue(Instant::now(), &request, client, None, effects);
            Ok((request.handle, outcome))
        })?;
        match outcome {
            Outcome::Granted(_) => {
                self.cancel_local(handle);
                Ok(true)
            }
            Outcome::Refused(Refusal::WouldBlock | Refusal::Recovering) => Ok(false),
            _ => Err(Status::EINVAL),
        }
    }

    /// Takes a lock for an operation that a client does under a lock of its own, if it has one that allows
    /// `need`. So the next holder of the client's lock waits until the operation has ended, even if the
    /// client has been evicted meanwhile. Does not wait, except for the client's replay after a restart.
    ///
    /// # Errors
    /// `EIO` if the client has no such lock; `EVICTED`, `EINTR`, `ESHUTDOWN`.
    pub fn lock_held(
        &self,
        export: &Export,
        resource: &ResourceId,
        need: Need,
    ) -> StatusResult<LocalLock<'_>> {
        let (handle, asked) = loop {
            let asked = self.act(|state, effects| {
                let Some(need) = use_held(state, export, resource, &need)? else { return Ok(None) };
                let client = Some(export.client);
                let request = local_request(state.engine.local_handle(), resource, need);
                let outcome = state.engine.on_local_enqueue(Instant::now(), &request, client, None, effects);
                state.holders.insert(request.handle, current());
                Ok(Some((request.handle, asked(state, request.handle, client, outcome)?)))
            })?;
            match asked {
                Some(asked) => break asked,
                None => self.await_replay(&export.client)?,
            }
        };
        if let Asked::Waits(handle) = asked {
            self.await_local(handle)?;
        }
        Ok(LocalLock { service: self, handle })
    }

    /// Checks that a client that reads has a lock that allows `need`. The deadlines of its locks there that
    /// are being revoked are extended. Waits for the client's replay after a restart.
    ///
    /// # Errors
    /// `EIO` if the client has no such lock; `EVICTED`, `EINTR`, `ESHUTDOWN`.
    pub fn check_held(&self, export: &Export, resource: &ResourceId, need: Need) -> StatusResult<()> {
        while use_held(&mut self.state(), export, resource, &need)?.is_none() {
            self.await_replay(&export.client)?;
        }
        Ok(())
    }

    /// Returns size and times of an object, including what writing clients have not written out yet, except
    /// the client that asks: it knows its own part.
    ///
    /// # Errors
    /// Those of [`LockOwner::lvb`]; `EVICTED`, `EINTR`, `ESHUTDOWN`.
    pub fn glimpse(
        &self,
        owner: &dyn LockOwner,
        resource: &ResourceId,
        except: &Export,
    ) -> StatusResult<Lvb> {
        let asked = loop {
            let asked = self.act(|state, effects| {
                check(state, Some(except))?;
                let (handle, client) = (state.engine.local_handle(), Some(except.client));
                match state.engine.on_local_glimpse(Instant::now(), handle, resource, client, effects) {
                    Outcome::Refused(Refusal::Recovering) => Ok(None),
                    outcome => asked(state, handle, client, outcome).map(Some),
                }
            })?;
            match asked {
                Some(asked) => break asked,
                None => self.await_recovery()?,
            }
        };
        let known = match asked {
            Asked::Done(lvb) => lvb,
            Asked::Waits(handle) => self.await_local(handle)?,
        };
        Ok(owner.lvb(resource)?.unwrap_or_default().merged(&known))
    }

    fn cancel_local(&self, handle: LockHandle) {
        self.act(|state, effects| {
            state.holders.remove(&handle);
            state.engine.on_cancel(Instant::now(), Peer::LOCAL, &[handle], effects);
        });
    }

    /// Sleeps until the engine has answered. If the wait ends otherwise, the request is cancelled.
    fn await_local(&self, handle: LockHandle) -> StatusResult<Lvb> {
        let cause = Cause::OwnLock { server: self.number(), handle: handle.0 };
        let outcome = blocking_for(cause, || {
            let mut state = self.state();
            loop {
                let Some(wait) = state.waits.get_mut(&handle) else { return Err(Status::EIO) };
                if let Some(outcome) = wait.outcome.take() {
                    return outcome;
                }
                let woken = wait.woken.clone();
                if state.is_stopping {
                    return Err(Status::ESHUTDOWN);
                }
                if nacre_env::interrupted() {
                    return Err(Status::EINTR);
                }
                woken.wait_for(&mut state, POLL);
            }
        });
        self.act(|state, effects| {
            state.waits.remove(&handle);
            if outcome.is_err() {
                state.holders.remove(&handle);
                state.engine.on_cancel(Instant::now(), Peer::LOCAL, &[handle], effects);
            }
        });
        outcome
    }

    fn await_recovery(&self) -> StatusResult<()> {
        self.await_recovery_while(|state| state.engine.is_recovering())
    }

    /// Waits until the client has replayed its locks.
    fn await_replay(&self, client: &ClientUuid) -> StatusResult<()> {
        self.await_recovery_while(|state| state.is_awaited(client))
    }

    fn await_recovery_while(&self, is_going_on: impl Fn(&State) -> bool) -> StatusResult<()> {
        blocking_for(Cause::Recovery, || {
            let mut state = self.state();
            while is_going_on(&state) {
                if state.is_stopping {
                    return Err(Status::ESHUTDOWN);
                }
                if nacre_env::interrupted() {
                    return Err(Status::EINTR);
                }
                self.recovery_changed.wait_for(&mut state, POLL);
            }
            Ok(())
        })
    }
}

/// Returns what the client's own lock allows: `need`, or the same as a member of a group that shares with
/// other members. Counts as activity under the lock. `None` if the client may still replay a lock.
fn use_held(
    state: &mut State,
    export: &Export,
    resource: &ResourceId,
    need: &Need,
) -> StatusResult<Option<Need>> {
    check(state, Some(export))?;
    let peer = peer_of(export);
    let held = match (state.engine.is_held(peer, resource, need), &need.policy) {
        (true, _) => Some(*need),
        (false, Policy::Extent(extent)) => {
            let group = state.engine.group_held(peer, resource, extent);
            group.map(|group| Need { mode: Mode::Group, group, ..*need })
        }
        (false, Policy::Bits(_)) => None,
    };
    match (&held, &need.policy) {
        (Some(_), Policy::Extent(extent)) => state.engine.on_io(Instant::now(), peer, resource, extent),
        (None, _) if !state.is_awaited(&export.client) => return Err(Status::EIO),
        _ => {}
    }
    Ok(held)
}

/// Refuses a request on behalf of a removed client, or of a service that stops.
fn check(state: &State, export: Option<&Export>) -> StatusResult<()> {
    if state.is_stopping {
        return Err(Status::ESHUTDOWN);
    }
    if export.is_some_and(Export::has_ended) { Err(Status::EVICTED) } else { Ok(()) }
}

fn local_request(handle: LockHandle, resource: &ResourceId, need: Need) -> Enqueue {
    // The lock lasts as long as the operation, so it covers no more than that.
    let flags = EnqueueFlags { no_expansion: true, ..EnqueueFlags::default() };
    Enqueue { handle, resource: *resource, need, optional: InodeBits::NONE, flags }
}

/// Handles the engine's answer to the target itself; a wait starts under the mutex under which it was found
/// necessary.
fn asked(
    state: &mut State,
    handle: LockHandle,
    client: Option<ClientUuid>,
    outcome: Outcome,
) -> StatusResult<Asked> {
    match outcome {
        Outcome::Granted(_) => Ok(Asked::Done(Lvb::default())),
        Outcome::Glimpsed(lvb) => Ok(Asked::Done(lvb)),
        Outcome::Waiting => {
            state.begin_wait(handle, client);
            Ok(Asked::Waits(handle))
        }
        Outcome::Refused(_) => Err(Status::EINVAL),
    }
}
