//! The parts of a server that depend on the [leaves](crate::leaves), and on each other in this order. The
//! parts that serve requests share them.

use crate::commit::Commits;
use crate::config::MdsConfig;
use crate::layouts::Layouts;
use crate::leaves::Leaves;
use crate::mdlocks::ClientLocks;
use crate::perform::Performer;
use crate::placement::Placement;
use crate::staging::Staging;
use crate::transactions::{Coordinator, Participant, TreeLock};
use nacre_types::TransNo;
use std::sync::Arc;

/// See the [module documentation](self).
pub(crate) struct Core {
    pub placement: Arc<Placement>,
    pub layouts: Arc<Layouts>,
    pub client_locks: Arc<ClientLocks>,
    pub staging: Arc<Staging>,
    pub commits: Arc<Commits>,
    pub participant: Arc<Participant>,
    pub coordinator: Arc<Coordinator>,
    pub tree: Arc<TreeLock>,
    pub performer: Arc<Performer>,
}

impl Core {
    pub fn new(leaves: &Arc<Leaves>, config: &MdsConfig, boot_transno: TransNo) -> Core {
        let layouts = Arc::new(Layouts::new(leaves, config));
        let client_locks = Arc::new(ClientLocks::new(leaves, &layouts));
        let staging = Arc::new(Staging::new(leaves));
        let commits = Arc::new(Commits::new(leaves, boot_transno, &client_locks));
        let participant = Arc::new(Participant::new(leaves, &client_locks, &commits, &staging));
        let coordinator = Arc::new(Coordinator::new(leaves, &commits, &participant));
        Core {
            performer: Arc::new(Performer::new(leaves, &staging, &commits, &coordinator)),
            placement: Arc::new(Placement::new(config.default_hash)),
            tree: Arc::new(TreeLock::new(leaves)),
            layouts,
            client_locks,
            staging,
            commits,
            participant,
            coordinator,
        }
    }
}
