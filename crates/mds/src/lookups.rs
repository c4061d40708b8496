//! Reads: names, directories page by page, attributes, layouts.

mod attr;
mod inodes;
mod listing;
mod names;

pub(crate) use listing::Listing;

use crate::core::Core;
use crate::leaves::Leaves;
use std::sync::Arc;

/// See the [module documentation](self).
pub(crate) struct Lookups {
    leaves: Arc<Leaves>,
    core: Arc<Core>,
}

impl Lookups {
    pub fn new(leaves: &Arc<Leaves>, core: &Arc<Core>) -> Lookups {
        Lookups { leaves: leaves.clone(), core: core.clone() }
    }
}
