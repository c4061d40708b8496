//! Changes of an inode's attributes, extended attributes, ACLs and defaults.

mod setattr;
mod system;
mod xattr;

use crate::core::Core;
use crate::layout_changes::LayoutChanges;
use crate::leaves::Leaves;
use crate::lookups::Lookups;
use std::sync::Arc;

/// See the [module documentation](self).
pub(crate) struct Attributes {
    leaves: Arc<Leaves>,
    core: Arc<Core>,
    layout_changes: Arc<LayoutChanges>,
    lookups: Arc<Lookups>,
}

impl Attributes {
    pub fn new(
        leaves: &Arc<Leaves>,
        core: &Arc<Core>,
        lookups: &Arc<Lookups>,
        layout_changes: &Arc<LayoutChanges>,
    ) -> Attributes {
        Attributes {
            leaves: leaves.clone(),
            core: core.clone(),
            layout_changes: layout_changes.clone(),
            lookups: lookups.clone(),
        }
    }
}
