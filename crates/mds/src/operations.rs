//! Operations over several MDTs.
//!
//! `docs/design/dne.md` has the protocol and what may fail. The coordinator's side of a request is in [`coordinate`], the other
//! side in [`participate`], what happens after failures and in the background in [`resolve`], and what is known of operations in [`state`].

mod alike;
mod coordinate;
mod elsewhere;
mod participate;
mod peers;
mod resolve;
pub(crate) mod state;

pub(crate) use coordinate::Gathered;
pub(crate) use elsewhere::ShardLists;

use crate::clients::Clients;
use crate::commit::Commits;
use crate::data::DataPart;
use crate::layouts::Layouts;
use crate::leaves::Leaves;
use crate::locks::LockTable;
use crate::mdlocks::ClientLocks;
use crate::operations::state::Operations;
use crate::records::Records;
use crate::signal::StopSignal;
use crate::staging::Staging;
use nacre_dlm::LockService;
use nacre_env::sync::Mutex;
use nacre_env::thread::JoinHandle;
use nacre_rpc::Hold;
use nacre_store::MetaStore;
use std::sync::Arc;

/// See the [module documentation](self).
pub(crate) struct Distributed {
    index: u16,
    store: Arc<MetaStore>,
    locks: Arc<LockTable>,
    mdlocks: Arc<LockService>,
    /// A request that a test wants held.
    hold: Arc<Hold>,
    signal: Arc<StopSignal>,
    operations: Arc<Operations>,
    records: Arc<Records>,
    layouts: Arc<Layouts>,
    data: Arc<DataPart>,
    client_locks: Arc<ClientLocks>,
    commits: Arc<Commits>,
    staging: Arc<Staging>,
    clients: Arc<Clients>,
    /// Held by renames that give a directory another parent, so that the check for cycles sees a still tree.
    move_directory: Mutex<()>,
    /// The thread that sees to operations over several MDTs.
    resolver: Mutex<Option<JoinHandle<()>>>,
}

impl Distributed {
    pub fn new(
        leaves: &Leaves,
        layouts: &Arc<Layouts>,
        client_locks: &Arc<ClientLocks>,
        commits: &Arc<Commits>,
        staging: &Arc<Staging>,
    ) -> Distributed {
        Distributed {
            index: leaves.index,
            store: leaves.store.clone(),
            locks: leaves.locks.clone(),
            mdlocks: leaves.mdlocks.clone(),
            hold: leaves.hold.clone(),
            signal: leaves.signal.clone(),
            operations: leaves.operations.clone(),
            records: leaves.records.clone(),
            layouts: layouts.clone(),
            data: leaves.data.clone(),
            client_locks: client_locks.clone(),
            commits: commits.clone(),
            staging: staging.clone(),
            clients: leaves.clients.clone(),
            move_directory: Mutex::new(()),
            resolver: Mutex::new(None),
        }
    }
}
