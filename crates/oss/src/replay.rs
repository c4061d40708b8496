//! Replay of changes that this target acknowledged and lost with its host, by the clients that made them.
//!
//! Clients keep acknowledged changes until these are durable ([`changes`](crate::changes)), and send the lost ones after
//! a restart ([`IoLock::Replay`]). All are executed in the order of their numbers, whichever client sends them: the
//! target executes one when each client of its last run has sent its next one, has ended its replay, or was given up.
//! Requests that read or change data wait until then.

use crate::changes::Changes;
use nacre_dlm::LockService;
use nacre_env::sync::{Condvar, Mutex};
use nacre_rpc::Export;
use nacre_types::{ClientUuid, Status, StatusResult, TransNo};
use nacre_wire::lock::IoLock;
use nacre_wire::oss::OssRequest;
use std::collections::BTreeMap;
use std::time::Duration;

/// Interval at which a waiting request checks for interrupts and for clients that were given up.
const TICK: Duration = Duration::from_millis(100);

#[derive(Default)]
struct Order {
    /// The next change of each client that has sent one, and the number of the request.
    heads: BTreeMap<ClientUuid, (TransNo, u64)>,
    /// Requests so far.
    requests: u64,
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
    client: ClientUuid,
    request: u64,
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        let mut order = self.replays.order.lock();
        order.is_busy = false;
        order.leave(&self.client, self.request);
        self.replays.changed.notify_all();
    }
}

impl Order {
    /// Removes the change of a client, unless it has sent another request since.
    fn leave(&mut self, client: &ClientUuid, request: u64) {
        if self.heads.get(client).is_some_and(|(_, newest)| *newest == request) {
            self.heads.remove(client);
        }
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
        let _order = self.order.lock();
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
            order.requests += 1;
            let request = order.requests;
            order.heads.insert(client, (number, request));
            self.changed.notify_all();
            loop {
                let first = order.heads.iter().map(|(client, (number, _))| (*number, *client)).min();
                let is_newest = order.heads.get(&client).is_some_and(|(_, newest)| *newest == request);
                let awaited = locks.awaited();
                let refused = if !changes.is_lacking() || !awaited.contains(&client) {
                    Some(Status::EPERM)
                } else if !is_newest {
                    // The client has connected again and sent it once more.
                    Some(Status::EVICTED)
                } else {
                    may_wait(export, is_stopping).err()
                };
                if let Some(status) = refused {
                    order.leave(&client, request);
                    self.changed.notify_all();
                    return Err(status);
                }
                let is_complete = awaited.iter().all(|client| order.heads.contains_key(client));
                if !order.is_busy && is_complete && first == Some((number, client)) {
                    order.is_busy = true;
                    return Ok(Turn { replays: self, client, request });
                }
                self.changed.wait_for(&mut order, TICK);
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
