//! An object service that is wrong in one way.

use super::{Bug, Turn};
use nacre_env::sync::Mutex;
use nacre_lock::{LockGrant, Outcome};
use nacre_oss::ObjectServer;
use nacre_rpc::{Call, Export, OssService, ReadCall};
use nacre_types::{Fid, StatusResult};
use nacre_wire::lock::{IoLock, LockRequest};
use nacre_wire::mds::Statfs;
use nacre_wire::oss::{Bulk, OssReply, OssRequest};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Bytes of data that count as large.
const LARGE: usize = 4096;

/// See the [module documentation](self).
pub(crate) struct PlantedOss {
    inner: Arc<ObjectServer>,
    bug: Bug,
    turn: Turn,
    reads: Mutex<BTreeMap<(Fid, u64, u32), Vec<u8>>>,
}

impl PlantedOss {
    pub(crate) fn new(inner: Arc<ObjectServer>, bug: Bug) -> PlantedOss {
        PlantedOss { inner, bug, turn: Turn::default(), reads: Mutex::default() }
    }

    fn write(
        &self,
        export: &Export,
        call: &Call<'_>,
        request: &OssRequest,
        data: &[u8],
    ) -> StatusResult<OssReply> {
        let run = |request: &OssRequest, data| self.inner.handle(export, call, request, Bulk::Send(data));
        let all = OssReply::written(data.len() as u32);
        match self.bug {
            Bug::DataReplayForgotten
                if matches!(request, OssRequest::Write { lock: IoLock::Replay(_), .. }) =>
            {
                Ok(all)
            }
            Bug::WriteForgotten if self.turn.is_each(5) => Ok(all),
            Bug::WriteCutShort if data.len() > LARGE => run(request, &data[..data.len() / 2]).map(|_| all),
            Bug::WriteShifted if self.turn.is_each(7) => {
                let mut shifted = request.clone();
                if let OssRequest::Write { offset, .. } = &mut shifted {
                    *offset += 512;
                }
                run(&shifted, data)
            }
            _ => run(request, data),
        }
    }

    fn read(
        &self,
        export: &Export,
        call: &Call<'_>,
        request: &OssRequest,
        buffer: &mut [u8],
    ) -> StatusResult<OssReply> {
        let OssRequest::Read { object, offset, len, .. } = *request else {
            return self.inner.handle(export, call, request, Bulk::Receive(buffer));
        };
        if let Some(known) = self.reads.lock().get(&(object, offset, len)) {
            let count = known.len().min(buffer.len());
            buffer[..count].copy_from_slice(&known[..count]);
            return Ok(OssReply::Read(count as u32));
        }
        let reply = self.inner.handle(export, call, request, Bulk::Receive(buffer))?;
        if let (Bug::ReadRemembered, OssReply::Read(count)) = (self.bug, &reply) {
            self.reads.lock().insert((object, offset, len), buffer[..*count as usize].to_vec());
        }
        Ok(reply)
    }
}

impl OssService for PlantedOss {
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
        match (self.bug, request, bulk) {
            (_, OssRequest::Write { .. }, Bulk::Send(data)) => self.write(export, call, request, data),
            (_, OssRequest::Read { .. }, Bulk::Receive(buffer)) => self.read(export, call, request, buffer),
            (Bug::TruncateForgotten, OssRequest::Truncate { object, .. }, bulk) => {
                let attr = OssRequest::GetAttr { object: *object, glimpse: false };
                self.inner.handle(export, call, &attr, bulk)
            }
            (Bug::SyncSkipped, OssRequest::Sync { .. }, _) => Ok(OssReply::Done),
            (Bug::LocksForAll, OssRequest::Locks { request: LockRequest::Enqueue { request, .. } }, _) => {
                Ok(OssReply::Locked(Outcome::Granted(LockGrant { need: request.need, lvb: None })))
            }
            (Bug::DestroyForgotten, OssRequest::Destroy { .. }, _) => Ok(OssReply::Done),
            (_, request, bulk) => self.inner.handle(export, call, request, bulk),
        }
    }

    fn reads_at_once(&self) -> usize {
        1
    }

    fn handle_reads(&self, export: &Export, reads: &mut [ReadCall<'_>]) {
        for read in reads {
            read.result = self.handle(export, &read.call, read.request, Bulk::Receive(read.buffer));
        }
    }
}
