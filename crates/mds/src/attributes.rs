//! Changes of what an inode says of itself: attributes, extended attributes, ACLs, defaults.

mod acl;
pub(crate) mod dir_default;
pub(crate) mod setattr;
mod system;
mod xattr;

use crate::commit::Commits;
use crate::layout_changes::LayoutChanges;
use crate::layouts::Layouts;
use crate::leaves::Leaves;
use crate::locks::LockTable;
use crate::lookups::Lookups;
use crate::opens::OpenTable;
use crate::operations::Distributed;
use crate::placement::Placement;
use crate::records::Records;
use crate::space::SpaceGuard;
use nacre_store::MetaStore;
use std::sync::Arc;

/// See the [module documentation](self).
pub(crate) struct Attributes {
    store: Arc<MetaStore>,
    locks: Arc<LockTable>,
    space: Arc<SpaceGuard>,
    opens: Arc<OpenTable>,
    records: Arc<Records>,
    layouts: Arc<Layouts>,
    commits: Arc<Commits>,
    distributed: Arc<Distributed>,
    placement: Arc<Placement>,
    layout_changes: Arc<LayoutChanges>,
    lookups: Arc<Lookups>,
}

impl Attributes {
    pub fn new(
        leaves: &Leaves,
        (layouts, commits, lookups): (&Arc<Layouts>, &Arc<Commits>, &Arc<Lookups>),
        (distributed, placement, layout_changes): (&Arc<Distributed>, &Arc<Placement>, &Arc<LayoutChanges>),
    ) -> Attributes {
        Attributes {
            store: leaves.store.clone(),
            locks: leaves.locks.clone(),
            space: leaves.space.clone(),
            opens: leaves.opens.clone(),
            records: leaves.records.clone(),
            layouts: layouts.clone(),
            commits: commits.clone(),
            distributed: distributed.clone(),
            placement: placement.clone(),
            layout_changes: layout_changes.clone(),
            lookups: lookups.clone(),
        }
    }
}
