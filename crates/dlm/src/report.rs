//! State of a lock service, for reports of what waits.

use crate::service::LockService;
use nacre_env::activity::OperationId;
use nacre_env::clock::Instant;
use nacre_lock::LockHandle;
use nacre_lock::server::{LockWait, waits};
use nacre_rpc::Export;
use nacre_types::ClientUuid;
use std::sync::Arc;
use std::time::Duration;

/// Longest wait for the mutex of the engine: a report must not hang on what it reports.
const PATIENCE: Duration = Duration::from_secs(1);

/// State of a lock service.
pub struct LockReport {
    /// Number of the lock server in this process, as [`nacre_env::activity::Cause::OwnLock`] has it.
    pub server: u64,
    /// Name of the target.
    pub name: String,
    /// Requests that wait.
    pub waits: Vec<LockWait>,
    /// Operations that hold locks of the target itself, or wait for them.
    pub holders: Vec<(LockHandle, OperationId)>,
    /// Clients.
    pub exports: Vec<Arc<Export>>,
    /// Clients of the last run that have not replayed their locks yet.
    pub awaited: Vec<ClientUuid>,
    /// Granted locks and requests.
    pub locks: usize,
    /// Resources in memory.
    pub resources: usize,
}

impl LockReport {
    /// Returns the state of a service; `None` if its mutex is held for long.
    pub fn of(service: &LockService) -> Option<LockReport> {
        let state = service.try_state(PATIENCE)?;
        Some(LockReport {
            server: service.number(),
            name: service.name().to_owned(),
            waits: waits(&state.engine, Instant::now()),
            holders: state.holders.iter().map(|(handle, holder)| (*handle, *holder)).collect(),
            exports: state.exports.values().map(|known| known.export.clone()).collect(),
            awaited: state.awaited_clients(),
            locks: state.engine.locks(),
            resources: state.engine.resources(),
        })
    }
}
