//! State of a metadata target, for reports of what waits.

use crate::mds::Mds;
use nacre_dlm::LockReport;
use nacre_env::clock::Instant;
use nacre_rpc::Export;
use nacre_types::ClientUuid;
use nacre_wire::peer::TransactionId;
use std::sync::Arc;
use std::time::Duration;

/// Transactions in one report at most.
const TRANSACTIONS_MAX: usize = 1000;

/// A transaction over several MDTs, as this one sees it.
#[derive(Clone, Debug)]
pub struct TransactionReport {
    /// The transaction.
    pub id: TransactionId,
    /// True for a part that another MDT is about to decide; false for one coordinated here.
    pub is_prepared: bool,
    /// Ticket of the entries that it keeps here, 0 for none.
    pub ticket: u64,
    /// Time since it was prepared.
    pub age: Duration,
}

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
            locks: self.leaves.mdlocks.report(),
            lease_holders: self.leaves.clients.lease_holders(),
            exports: self.leaves.clients.exports(),
            transactions,
            unsettled,
        }
    }
}
