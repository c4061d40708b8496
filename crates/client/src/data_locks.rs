//! Locks on data of files: taken for one operation, kept by groups, and released with all that is cached
//! under them.

pub(crate) mod cover;
pub(crate) mod flush;
pub(crate) mod groups;

use crate::base::Base;
use crate::handles::HandleTable;
use crate::layouts::Layouts;
use crate::lease::Lease;
use crate::node::NodeTable;
use crate::requests::Requests;
use crate::write_back::WriteBack;
use std::sync::Arc;

/// Locks that exclude other clients from data while it is used or cached here.
pub struct DataLocks {
    requests: Arc<Requests>,
    layouts: Arc<Layouts>,
    write_back: Arc<WriteBack>,
    nodes: Arc<NodeTable>,
    lease: Arc<Lease>,
    handles: Arc<HandleTable>,
}

impl DataLocks {
    pub(crate) fn new(base: &Base, write_back: Arc<WriteBack>) -> Arc<DataLocks> {
        Arc::new(DataLocks {
            requests: base.requests.clone(),
            layouts: base.layouts.clone(),
            write_back,
            nodes: base.nodes.clone(),
            lease: base.lease.clone(),
            handles: base.handles.clone(),
        })
    }
}
