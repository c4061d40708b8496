//! Batches of reads, which are one call of the store.

use crate::arguments::{check_bulk, check_object};
use crate::describe::described;
use crate::outcome::Refusal;
use crate::service::{ObjectServer, extent};
use crate::stats::{InProgress, Operation, Transfer};
use nacre_env::activity;
use nacre_env::clock::Instant;
use nacre_rpc::{Direction, Export, OssService, ReadCall};
use nacre_store::object::transfers::{self, Pieces};
use nacre_store::object::{ObjectError, ReadRequest};
use nacre_types::{JobId, Status, StatusResult};
use nacre_wire::lock::IoLock;
use nacre_wire::oss::{Bulk, OssReply, OssRequest};

/// A read of a batch that has been admitted.
struct Begun<'a, 'r> {
    in_progress: InProgress<'a>,
    transfer: (Transfer<'a>, Option<Transfer<'a>>),
    job: Option<(JobId, Instant)>,
    request: &'r OssRequest,
    result: &'r mut StatusResult<OssReply>,
}

impl ObjectServer {
    /// See [`OssService::handle_reads`].
    pub(crate) fn read_batch(&self, export: &Export, reads: &mut [ReadCall<'_>]) {
        let start = Instant::now();
        let first =
            reads.first().map(|first| described(self.target_id(), export, &first.call, first.request));
        let _running = first.map(activity::begin);
        if let Some(Err(status)) = reads.first().map(|first| self.await_replay(export, first.request)) {
            reads.iter_mut().for_each(|read| read.result = Err(status));
            return;
        }
        let mut begun: Vec<Begun<'_, '_>> = Vec::with_capacity(reads.len());
        let mut asked: Vec<ReadRequest<'_>> = Vec::with_capacity(reads.len());
        for ReadCall { call, request, buffer, result } in reads {
            if request.waits_for_locks() {
                *result = self.handle(export, call, request, Bulk::Receive(buffer));
                continue;
            }
            let Some(in_progress) = self.counters.enter() else {
                *result = Err(Status::ESHUTDOWN);
                continue;
            };
            let allowed = self.check_capability(export, request, call.capability.as_ref());
            match allowed.and_then(|()| self.check_read(export, request, buffer)) {
                Ok(read) => {
                    let (offset, bytes) = (read.offset, read.buffer.len() as u64);
                    let transfer = self.begin_transfer(export, Direction::Read, offset, bytes);
                    let job = call.job.map(|job| (job, start));
                    begun.push(Begun { in_progress, transfer, job, request, result });
                    asked.push(read);
                }
                Err(status) => {
                    in_progress.count(Operation::Read, None);
                    *result = Err(status);
                }
            }
        }
        let mut failures: Vec<(usize, ObjectError)> = Vec::new();
        self.target.store.read_all(&mut asked, &mut |number, error| failures.push((number, error)));
        for (number, asked) in asked.iter().enumerate() {
            assert!(
                asked.read <= asked.buffer.len(),
                "the length was checked, and no more than that is read"
            );
            let written = matches!(begun[number].request, OssRequest::Read { written: true, .. });
            if let Err(error) = self.check_there(asked.object, written && asked.read < asked.buffer.len()) {
                failures.push((number, error));
            }
        }
        // The first failure of each read is reported.
        failures.sort_by_key(|(number, _)| *number);
        failures.dedup_by_key(|(number, _)| *number);
        let mut failures = failures.into_iter().peekable();
        for (number, (begun, asked)) in begun.into_iter().zip(&asked).enumerate() {
            let Begun { in_progress, transfer, job, request, result } = begun;
            transfers::restore(Pieces { reads: asked.pieces, writes: 0 });
            drop(transfer);
            *result = match failures.next_if(|(failed, _)| *failed == number) {
                Some((_, error)) => {
                    in_progress.count(Operation::Read, None);
                    Err(self.refused(request, Refusal::Store(error)))
                }
                None => {
                    let read = asked.read as u64;
                    in_progress.count(Operation::Read, Some(read));
                    self.count_for(export, job, request, Operation::Read, read);
                    Ok(OssReply::Read(asked.read as u32))
                }
            };
        }
    }

    /// Validates a read and returns the request to the store.
    fn check_read<'b>(
        &self,
        export: &Export,
        request: &OssRequest,
        buffer: &'b mut [u8],
    ) -> StatusResult<ReadRequest<'b>> {
        if export.has_ended() {
            return Err(Status::EVICTED);
        }
        let OssRequest::Read { object, offset, len, lock, .. } = request else { return Err(Status::EPROTO) };
        check_object(*object, self.target.index)?;
        check_bulk(*len as usize)?;
        let Some(buffer) = buffer.get_mut(..*len as usize) else { return Err(Status::EINVAL) };
        debug_assert!(*lock != IoLock::Server, "this one does not wait");
        // The check leaves no lock to hold: only the target takes one, and its reads are not in batches.
        self.lock_read(export, *lock, *object, extent(*offset, u64::from(*len)))?;
        Ok(ReadRequest::new(*object, *offset, buffer))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nacre_rpc::{Call, NoCallbacks};
    use nacre_store::object::{BlockStore, BlockStoreOptions, ObjectStore};
    use nacre_types::{ClientUuid, Cred, Fid, Nid};
    use std::sync::Arc;
    use std::time::Duration;

    const BLOCK: u64 = 4096;

    fn object(oid: u32) -> Fid {
        Fid::ost_object(3, oid)
    }

    /// Creates a service over a device, with two objects of 64 blocks, each with content of its own.
    fn service(dir: &tempfile::TempDir) -> ObjectServer {
        let options = BlockStoreOptions { create: true, size: 256 << 20, ..BlockStoreOptions::default() };
        let store = BlockStore::open(&dir.path().join("ost"), options).expect("made");
        for oid in 1..=2 {
            let data: Vec<u8> = (0..64 * BLOCK).map(|at| (at / BLOCK) as u8 ^ (oid as u8) << 6).collect();
            store.write(object(oid), 0, &data).expect("written");
        }
        ObjectServer::new(Arc::new(store), 3)
    }

    /// Runs reads as a batch and returns their results and buffers.
    fn read_all(server: &ObjectServer, requests: &[OssRequest]) -> Vec<(StatusResult<OssReply>, Vec<u8>)> {
        let export = Export::new(ClientUuid([1; 16]), Nid::Lo, None, Arc::new(NoCallbacks));
        let cred = Cred::system();
        let mut buffers = vec![vec![0xee; 16384]; requests.len()];
        let calls = requests.iter().zip(&mut buffers).map(|(request, buffer)| ReadCall {
            call: Call::new(&cred),
            request,
            buffer,
            result: Err(Status::EPROTO),
        });
        let mut calls: Vec<ReadCall<'_>> = calls.collect();
        server.handle_reads(&export, &mut calls);
        let results: Vec<_> = calls.into_iter().map(|call| call.result).collect();
        results.into_iter().zip(buffers).collect()
    }

    #[test]
    fn reads_that_come_together_are_checked_answered_and_counted_each_for_itself() {
        let dir = tempfile::tempdir().expect("a directory");
        let server = service(&dir);
        assert!(server.reads_at_once() > 1);
        let plain = OssRequest::plain_read;
        let mut requests: Vec<OssRequest> =
            (0..20).map(|block| plain(object(1 + block % 2), u64::from(block * 3) * BLOCK, 4096)).collect();
        let odd = [
            plain(object(1), 63 * BLOCK, 16384),
            plain(object(2), 5 * BLOCK + 100, 5000),
            plain(object(9), 0, 4096),
            plain(object(0), 0, 4096),
            plain(object(1), 0, 20_000),
            OssRequest::Read {
                object: object(1),
                offset: 0,
                len: 4096,
                ahead: 0,
                lock: IoLock::Held,
                written: false,
            },
            OssRequest::Read {
                object: object(1),
                offset: 0,
                len: 4096,
                ahead: 0,
                lock: IoLock::Server,
                written: false,
            },
        ];
        requests.extend(odd);
        let answers = read_all(&server, &requests);
        for (block, (result, buffer)) in answers[..20].iter().enumerate() {
            let expected = (block * 3) as u8 ^ ((1 + block % 2) as u8) << 6;
            assert_eq!(*result, Ok(OssReply::Read(4096)), "block {block}");
            assert!(buffer[..4096].iter().all(|byte| *byte == expected), "block {block}");
        }
        let results: Vec<_> = answers[20..].iter().map(|(result, _)| result.clone()).collect();
        assert_eq!(results[..3], [4096, 5000, 0].map(|read| Ok(OssReply::Read(read))));
        assert!(answers[21].1[..3996].iter().all(|byte| *byte == 5 ^ 0x80));
        assert!(results[3..6].iter().all(Result::is_err), "{results:?}");
        assert_eq!(results[4], Err(Status::EINVAL), "no room for all of it");
        assert_eq!(results[6], Ok(OssReply::Read(4096)), "it waits for its lock by itself");
        let row = server.stats().row(Operation::Read as usize);
        assert_eq!((row.samples, row.max), (24, 5000));
        assert_eq!(server.failed(Operation::Read), 3);
        let shown = server.brw_stats();
        // Each object is in one piece: no read of a batch is counted as a fragment of another.
        assert!(
            shown.contains(
                "disk fragmented I/Os   ios   % cum % |  ios         % cum %\n1:\t\t        23 100 100"
            ),
            "{shown}"
        );
        server.stop(Duration::ZERO).expect("stopped");
        let late = read_all(&server, &requests[..3]);
        assert!(late.iter().all(|(result, _)| *result == Err(Status::ESHUTDOWN)));
    }
}
