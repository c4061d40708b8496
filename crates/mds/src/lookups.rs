//! What is there: names, directories page by page, attributes, layouts.

mod attr;
mod inodes;
mod listing;
mod names;

pub(crate) use listing::Listing;

use crate::commit::Commits;
use crate::layouts::Layouts;
use crate::leaves::Leaves;
use crate::locks::LockTable;
use crate::mdlocks::ClientLocks;
use crate::operations::Distributed;
use crate::records::Records;
use crate::space::SpaceGuard;
use nacre_store::MetaStore;
use std::sync::Arc;

/// See the [module documentation](self).
pub(crate) struct Lookups {
    index: u16,
    store: Arc<MetaStore>,
    locks: Arc<LockTable>,
    space: Arc<SpaceGuard>,
    records: Arc<Records>,
    layouts: Arc<Layouts>,
    client_locks: Arc<ClientLocks>,
    commits: Arc<Commits>,
    distributed: Arc<Distributed>,
}

impl Lookups {
    pub fn new(
        leaves: &Leaves,
        layouts: &Arc<Layouts>,
        client_locks: &Arc<ClientLocks>,
        commits: &Arc<Commits>,
        distributed: &Arc<Distributed>,
    ) -> Lookups {
        Lookups {
            index: leaves.index,
            store: leaves.store.clone(),
            locks: leaves.locks.clone(),
            space: leaves.space.clone(),
            records: leaves.records.clone(),
            layouts: layouts.clone(),
            client_locks: client_locks.clone(),
            commits: commits.clone(),
            distributed: distributed.clone(),
        }
    }
}
