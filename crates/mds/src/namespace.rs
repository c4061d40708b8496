//! Changes of names: create, link, unlink and rename.

mod create;
mod link;
mod rename;
mod unlink;

pub(crate) use create::Making;

use crate::core::Core;
use crate::leaves::Leaves;
use crate::open_files::OpenFiles;
use std::sync::Arc;

/// See the [module documentation](self).
pub(crate) struct NameSpace {
    leaves: Arc<Leaves>,
    core: Arc<Core>,
    files: Arc<OpenFiles>,
}

impl NameSpace {
    pub fn new(leaves: &Arc<Leaves>, core: &Arc<Core>, files: &Arc<OpenFiles>) -> NameSpace {
        NameSpace { leaves: leaves.clone(), core: core.clone(), files: files.clone() }
    }
}
