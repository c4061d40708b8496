//! Bytes of open files: read, written, cut, copied, made durable.

pub(crate) mod advise;
pub(crate) mod closes;
pub(crate) mod opened;
pub(crate) mod read;
pub(crate) mod replace;
pub(crate) mod space;
pub(crate) mod sync;
pub(crate) mod write;

use crate::base::Base;
use crate::config::ClientConfig;
use crate::data_locks::DataLocks;
use crate::flocks::FileLocks;
use crate::handles::HandleTable;
use crate::inodes::Inodes;
use crate::layouts::Layouts;
use crate::lease::Lease;
use crate::node::NodeTable;
use crate::objects::Objects;
use crate::read_ahead::ReadAhead;
use crate::requests::Requests;
use crate::sizes::Sizes;
use crate::tunables::Tunables;
use crate::write_back::WriteBack;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

/// See the [module documentation](self).
pub struct Data {
    requests: Arc<Requests>,
    layouts: Arc<Layouts>,
    objects: Arc<Objects>,
    write_back: Arc<WriteBack>,
    locks: Arc<DataLocks>,
    sizes: Arc<Sizes>,
    read_ahead: Arc<ReadAhead>,
    inodes: Arc<Inodes>,
    nodes: Arc<NodeTable>,
    handles: Arc<HandleTable>,
    flocks: Arc<FileLocks>,
    lease: Arc<Lease>,
    config: Arc<ClientConfig>,
    tunables: Arc<Tunables>,
    /// Opens for writing and cuts of files: between two equal numbers no file began to be changed here.
    pub(crate) data_changes: AtomicU64,
    /// Bytes of files that came with opens.
    opened_bytes: Arc<AtomicU64>,
}

impl Data {
    pub(crate) fn new(
        base: &Base,
        write_back: Arc<WriteBack>,
        locks: Arc<DataLocks>,
        sizes: Arc<Sizes>,
        read_ahead: Arc<ReadAhead>,
        inodes: Arc<Inodes>,
    ) -> Arc<Data> {
        Arc::new(Data {
            requests: base.requests.clone(),
            layouts: base.layouts.clone(),
            objects: base.objects.clone(),
            write_back,
            locks,
            sizes,
            read_ahead,
            inodes,
            nodes: base.nodes.clone(),
            handles: base.handles.clone(),
            flocks: base.flocks.clone(),
            lease: base.lease.clone(),
            config: base.config.clone(),
            tunables: base.tunables.clone(),
            data_changes: AtomicU64::new(0),
            opened_bytes: Arc::default(),
        })
    }
}
