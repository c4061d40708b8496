//! State of a metadata target, for reports of what waits.

use crate::mds::Mds;
use crate::transactions::TransactionReport;
use nacre_dlm::LockReport;
use nacre_env::clock::Instant;
use nacre_rpc::Export;
use nacre_types::ClientUuid;
use std::sync::Arc;

/// Transactions in one report at most.
const TRANSACTIONS_MAX: usize = 1000;

/// State of a metadata target.
pub struct MdsReport {
    /// Locks on inodes; `None` if the lock server does not answer.
    pub locks: Option<LockReport>,
    /// Clients that hold the lease exclusive, or have not released it yet.
    pub lease_holders: Vec<ClientUuid>,
    /// Connected clients and MDTs.
    pub exports: Vec<Arc<Export>>,
    /// Transactions over several MDTs that are not decided.
    pub transactions: Vec<TransactionReport>,
    /// Committed transactions that are not durable on all MDTs yet.
    pub unsettled: usize,
}

impl Mds {
    /// Returns the state of the target.
    pub fn report(&self) -> MdsReport {
        let (transactions, unsettled) = self.leaves.transactions.report(Instant::now(), TRANSACTIONS_MAX);
        MdsReport {
            locks: LockReport::of(&self.leaves.mdlocks),
            lease_holders: self.leaves.clients.lease_holders(),
            exports: self.leaves.clients.exports(),
            transactions,
            unsettled,
        }
    }
}
