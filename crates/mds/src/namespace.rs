//! Changes of names: what is made, linked, removed and renamed.

mod create;
mod ground;
mod link;
mod rename;
mod unlink;

pub(crate) use ground::At;

use crate::commit::Commits;
use crate::layouts::Layouts;
use crate::leaves::Leaves;
use crate::locks::LockTable;
use crate::open_files::OpenFiles;
use crate::opens::OpenTable;
use crate::operations::Distributed;
use crate::placement::Placement;
use crate::records::Records;
use crate::space::SpaceGuard;
use crate::staging::Staging;
use nacre_store::MetaStore;
use std::sync::Arc;

/// See the [module documentation](self).
pub(crate) struct NameSpace {
    index: u16,
    store: Arc<MetaStore>,
    locks: Arc<LockTable>,
    space: Arc<SpaceGuard>,
    opens: Arc<OpenTable>,
    records: Arc<Records>,
    layouts: Arc<Layouts>,
    commits: Arc<Commits>,
    staging: Arc<Staging>,
    distributed: Arc<Distributed>,
    files: Arc<OpenFiles>,
    placement: Arc<Placement>,
}

impl NameSpace {
    pub fn new(
        leaves: &Leaves,
        (layouts, commits, staging): (&Arc<Layouts>, &Arc<Commits>, &Arc<Staging>),
        (distributed, files, placement): (&Arc<Distributed>, &Arc<OpenFiles>, &Arc<Placement>),
    ) -> NameSpace {
        NameSpace {
            index: leaves.index,
            store: leaves.store.clone(),
            locks: leaves.locks.clone(),
            space: leaves.space.clone(),
            opens: leaves.opens.clone(),
            records: leaves.records.clone(),
            layouts: layouts.clone(),
            commits: commits.clone(),
            staging: staging.clone(),
            distributed: distributed.clone(),
            files: files.clone(),
            placement: placement.clone(),
        }
    }

    #[cfg(test)]
    pub fn staging(&self) -> &Staging {
        &self.staging
    }
}
