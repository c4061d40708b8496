//! Replay of changes that this target acknowledged and lost with its host, by the clients that made them.
//!
//! Clients keep acknowledged changes until these are durable ([`changes`](crate::changes)), and send the lost ones after
//! a restart ([`IoLock::Replay`]). All are executed in the order of their numbers, whichever client sends them: the
//! target executes one when each client of its last run has sent its next one, has ended its replay, or was given up.
//! Requests that read or change data wait until then.

use crate::changes::Changes;
use nacre_dlm::{Heads, LockService, Ticket};
use nacre_env::sync::{Condvar, Mutex};
use nacre_rpc::Export;
use nacre_types::{Status, StatusResult, TransNo};
use nacre_wire::lock::IoLock;
use nacre_wire::oss::OssRequest;
use std::time::Duration;

/// Interval at which a waiting request checks for interrupts and for clients that were given up.
const TICK: Duration = Duration::from_millis(100);

#[derive(Default)]
struct Order {
    /// The next change of each client that has sent one.
    heads: Heads,
    /// True while a change is executed.
    is_busy: bool,
}

/// Order of replayed changes.
#[derive(Default)]
pub(crate) struct Replays {
    order: Mutex<Order>,
    changed: Condvar,
}

/// The turn of a change; it ends when this is dropped.
pub(crate) struct Turn<'a> {
    replays: &'a Replays,
    ticket: Ticket,
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        let mut order = self.replays.order.lock();
        order.is_busy = false;
        order.heads.leave(&self.ticket);
        self.replays.changed.notify_all();
    }
}

/// Returns the number of a replayed change.
pub(crate) fn number_of(request: &OssRequest) -> Option<TransNo> {
    match request {
        OssRequest::Write { lock, .. }
        | OssRequest::Truncate { lock, .. }
        | OssRequest::Fallocate { lock, .. } => replayed_by(*lock),
        _ => None,
    }
}

/// Returns the number of the change that is replayed under this lock.
pub(crate) fn replayed_by(lock: IoLock) -> Option<TransNo> {
    match lock {
        IoLock::Replay(number) => Some(number),
        _ => None,
    }
}

/// True for requests that see or change data, or make it durable: they wait for lost changes.
pub(crate) fn awaits_replay(request: &OssRequest) -> bool {
    matches!(
        request,
        OssRequest::Write { .. }
            | OssRequest::Read { .. }
            | OssRequest::GetAttr { .. }
            | OssRequest::Truncate { .. }
            | OssRequest::Fallocate { .. }
            | OssRequest::Seek { .. }
            | OssRequest::Sync { .. }
            | OssRequest::DataVersion { .. }
            | OssRequest::DestroyOrphans { .. }
            | OssRequest::Examine { .. }
            | OssRequest::ListObjects { .. }
    ) && number_of(request).is_none()
}

impl Replays {
    /// Wakes requests that wait: a client is not awaited any more.
    pub fn wake(&self) {
        self.order.lock().heads.wake_first();
        self.changed.notify_all();
    }

    /// Waits until no client of the last run may replay changes; `is_stopping` ends the wait.
    ///
    /// # Errors
    /// `EINTR`, `ESHUTDOWN`, `EVICTED`; those of the index.
    pub fn await_end(
        &self,
        changes: &Changes,
        locks: &LockService,
        export: &Export,
        is_stopping: &dyn Fn() -> bool,
    ) -> StatusResult<()> {
        nacre_env::blocking(|| {
            let mut order = self.order.lock();
            while locks.is_recovering() || order.is_busy {
                may_wait(export, is_stopping)?;
                self.changed.wait_for(&mut order, TICK);
            }
            changes.end_replay().map_err(|error| error.status())
        })
    }

    /// Waits for the turn of a change of a client.
    ///
    /// # Errors
    /// `EPERM` for a client that has ended its replay, was given up, or was not there before; `EINTR`; `ESHUTDOWN`;
    /// `EVICTED`.
    pub fn await_turn(
        &self,
        number: TransNo,
        changes: &Changes,
        locks: &LockService,
        export: &Export,
        is_stopping: &dyn Fn() -> bool,
    ) -> StatusResult<Turn<'_>> {
        let client = export.client;
        nacre_env::blocking(|| {
            let mut order = self.order.lock();
            let ticket = order.heads.enter(client, number);
            loop {
                let awaited = locks.awaited();
                let refused = if !changes.is_lacking() || !awaited.contains(&client) {
                    Some(Status::EPERM)
                } else if !order.heads.advance(&ticket, number) {
                    // The client has sent it again on another connection, and remains a client.
                    Some(Status::EINTR)
                } else {
                    may_wait(export, is_stopping).err()
                };
                if let Some(status) = refused {
                    order.heads.leave(&ticket);
                    return Err(status);
                }
                if !order.is_busy && order.heads.is_first(&ticket, &awaited) {
                    order.is_busy = true;
                    return Ok(Turn { replays: self, ticket });
                }
                ticket.woken.wait_for(&mut order, TICK);
            }
        })
    }
}

fn may_wait(export: &Export, is_stopping: &dyn Fn() -> bool) -> StatusResult<()> {
    if is_stopping() {
        return Err(Status::ESHUTDOWN);
    }
    if export.has_ended() {
        return Err(Status::EVICTED);
    }
    if nacre_env::interrupted() { Err(Status::EINTR) } else { Ok(()) }
}

#[cfg(test)]
mod tests;
