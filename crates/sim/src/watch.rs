//! Media that report their writes and flushes: a device, and the service of an OST.

use nacre_rpc::{Call, Export, OssService, ReadCall};
use nacre_store::object::block::device::{
    BlockDevice, DeviceInfo, DeviceStats, Fetch, MemoryDevice, ReadOp, WriteOp,
};
use nacre_types::StatusResult;
use nacre_wire::mds::Statfs;
use nacre_wire::oss::{Bulk, OssReply, OssRequest};
use std::io;
use std::sync::Arc;

/// What learns of the writes and flushes of the objects of a disk.
pub(crate) trait Watcher: Send + Sync {
    /// Called before objects change.
    fn note_write(&self);
    /// Called before changes become durable.
    fn note_flush(&self);
}

/// A device whose flushes are persistence points.
pub(crate) struct WatchedDevice {
    pub(crate) inner: Arc<MemoryDevice>,
    pub(crate) watcher: Arc<dyn Watcher>,
}

impl BlockDevice for WatchedDevice {
    fn read(&self, batch: &mut [ReadOp<'_>]) -> io::Result<()> {
        self.inner.read(batch)
    }

    fn fetcher(&self) -> Option<Box<dyn Fetch>> {
        self.inner.fetcher()
    }

    fn write(&self, batch: &[WriteOp<'_>]) -> io::Result<()> {
        self.watcher.note_write();
        self.inner.write(batch)
    }

    fn flush(&self) -> io::Result<()> {
        self.watcher.note_flush();
        self.inner.flush()
    }

    fn discard(&self, offset: u64, len: u64) -> io::Result<()> {
        self.watcher.note_write();
        self.inner.discard(offset, len)
    }

    fn size(&self) -> u64 {
        self.inner.size()
    }

    fn info(&self) -> DeviceInfo {
        self.inner.info()
    }

    fn stats(&self) -> DeviceStats {
        self.inner.stats()
    }
}

/// A service over slot files: a request to sync is a persistence point, as the files are flushed one by one.
pub(crate) struct WatchedOss {
    pub(crate) inner: Arc<dyn OssService>,
    pub(crate) watcher: Arc<dyn Watcher>,
}

impl OssService for WatchedOss {
    fn connect(&self, export: &Arc<Export>) -> StatusResult<()> {
        self.inner.connect(export)
    }

    fn disconnect(&self, export: &Export) {
        self.inner.disconnect(export);
    }

    fn space(&self) -> StatusResult<Statfs> {
        self.inner.space()
    }

    fn handle(
        &self,
        export: &Export,
        call: &Call<'_>,
        request: &OssRequest,
        bulk: Bulk<'_>,
    ) -> StatusResult<OssReply> {
        match request {
            OssRequest::Sync { .. } => self.watcher.note_flush(),
            OssRequest::Read { .. } | OssRequest::GetAttr { .. } | OssRequest::Locks { .. } => {}
            _ => self.watcher.note_write(),
        }
        self.inner.handle(export, call, request, bulk)
    }

    fn reads_at_once(&self) -> usize {
        self.inner.reads_at_once()
    }

    fn handle_reads(&self, export: &Export, reads: &mut [ReadCall<'_>]) {
        self.inner.handle_reads(export, reads);
    }
}
