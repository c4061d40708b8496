//! What all parts of a client share.

use crate::config::ClientConfig;
use crate::flocks::FileLocks;
use crate::handles::HandleTable;
use crate::jobs::Jobs;
use crate::layouts::Layouts;
use crate::lease::Lease;
use crate::node::NodeTable;
use crate::objects::Objects;
use crate::read_ahead::blocks::Memory;
use crate::requests::Requests;
use crate::shards::Shards;
use crate::shards::absent::Absences;
use crate::tasks::Tasks;
use crate::tunables::Tunables;
use nacre_rpc::{MdsEndpoint, OssEndpoint};
use nacre_types::StatusResult;
use std::collections::BTreeMap;
use std::sync::Arc;

/// State and parts from which each further part takes what it needs when it is created.
pub(crate) struct Base {
    pub config: Arc<ClientConfig>,
    pub lease: Arc<Lease>,
    pub nodes: Arc<NodeTable>,
    pub handles: Arc<HandleTable>,
    pub flocks: Arc<FileLocks>,
    pub tunables: Arc<Tunables>,
    pub jobs: Arc<Jobs>,
    pub tasks: Arc<Tasks>,
    pub memory: Arc<Memory>,
    pub absences: Arc<Absences>,
    pub requests: Arc<Requests>,
    pub layouts: Arc<Layouts>,
    pub objects: Arc<Objects>,
    pub shards: Arc<Shards>,
}

impl Base {
    /// Creates the shared parts.
    ///
    /// # Errors
    /// As [`Requests::new`].
    pub fn new(
        config: ClientConfig,
        lease: Arc<Lease>,
        mdts: Vec<Arc<dyn MdsEndpoint>>,
        osts: BTreeMap<u16, Arc<dyn OssEndpoint>>,
    ) -> StatusResult<Base> {
        let (nodes, tasks) = (Arc::new(NodeTable::new()), Tasks::of_process());
        let (tunables, memory) = (Arc::new(Tunables::of_host()), Arc::<Memory>::default());
        let absences = Arc::<Absences>::default();
        let requests = Requests::new(mdts, osts, lease.clone(), nodes.clone(), tasks.clone())?;
        Ok(Base {
            layouts: Layouts::new(requests.clone(), lease.clone(), nodes.clone(), memory.clone()),
            objects: Objects::new(requests.clone(), lease.clone(), tunables.clone(), tasks.clone()),
            shards: Shards::new(requests.clone(), lease.clone(), absences.clone()),
            flocks: Arc::new(FileLocks::new(config.instance)),
            handles: Arc::new(HandleTable::new()),
            jobs: Arc::default(),
            config: Arc::new(config),
            lease,
            nodes,
            tunables,
            tasks,
            memory,
            absences,
            requests,
        })
    }
}
