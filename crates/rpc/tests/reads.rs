//! Batches of small reads.

#[path = "support/services.rs"]
mod services;

use nacre_rpc::tcp::{Server, Targets, TcpOss};
use nacre_rpc::{Call, Export, OssEndpoint, OssService, ReadCall, ServerConfig, Started};
use nacre_types::{Fid, Status, StatusResult};
use nacre_wire::lock::IoLock;
use nacre_wire::oss::{Bulk, OssReply, OssRequest};
use services::*;
use std::sync::{Arc, Condvar, Mutex};

const BLOCK: u64 = 4096;
/// Offset whose read fails, and one whose read panics.
const BAD: u64 = 3 * BLOCK;
const FATAL: u64 = 1000 * BLOCK;
/// Offset of short reads.
const SHORT: u64 = 5 * BLOCK;

/// Records the batches. One request blocks its thread, which receives for all, until the gate opens.
#[derive(Default)]
struct Together {
    batches: Mutex<Vec<usize>>,
    alone: Mutex<usize>,
    /// The request has started; the request may end.
    gate: Mutex<(bool, bool)>,
    changed: Condvar,
}

fn byte_of(offset: u64) -> u8 {
    (offset / BLOCK % 251) as u8 + 1
}

fn fill(request: &OssRequest, buffer: &mut [u8]) -> StatusResult<OssReply> {
    let OssRequest::Read { offset, .. } = request else { return Err(Status::EPROTO) };
    let len = if *offset == SHORT { 100 } else { buffer.len() };
    buffer[..len].fill(byte_of(*offset));
    if *offset == BAD { Err(Status::EIO) } else { Ok(OssReply::Read(len as u32)) }
}

impl OssService for Together {
    fn handle(
        &self,
        _: &Export,
        _: &Call<'_>,
        request: &OssRequest,
        bulk: Bulk<'_>,
    ) -> StatusResult<OssReply> {
        match bulk {
            Bulk::Receive(buffer) => {
                *self.alone.lock().unwrap() += 1;
                fill(request, buffer)
            }
            _ => {
                let mut gate = self.gate.lock().unwrap();
                gate.0 = true;
                self.changed.notify_all();
                drop(self.changed.wait_while(gate, |gate| !gate.1).unwrap());
                Ok(OssReply::Done)
            }
        }
    }

    fn reads_at_once(&self) -> usize {
        32
    }

    fn handle_reads(&self, _: &Export, reads: &mut [ReadCall<'_>]) {
        self.batches.lock().unwrap().push(reads.len());
        for read in reads {
            let OssRequest::Read { offset, .. } = read.request else { unreachable!("only reads") };
            assert_ne!(*offset, FATAL, "a fault in the service");
            read.result = fill(read.request, read.buffer);
        }
    }
}

/// Sends all requests while the server is busy with another one; returns their results and data.
fn run_together(
    service: &Together,
    oss: &TcpOss,
    requests: &[OssRequest],
) -> Vec<(StatusResult<OssReply>, Vec<u8>)> {
    nacre_env::pin_to_cpu(nacre_env::online_cpus()[0]).expect("a CPU of ours");
    *service.gate.lock().unwrap() = (false, false);
    let wait = |started: Started<'_>| match started {
        Started::Finished(result) => result,
        Started::InFlight(wait) => wait(),
    };
    let busy = OssRequest::Sync { object: None };
    let len = |request: &OssRequest| match request {
        OssRequest::Read { len, .. } => *len as usize,
        _ => 0,
    };
    let mut buffers: Vec<Vec<u8>> = requests.iter().map(|request| vec![0; len(request)]).collect();
    // SAFETY: all started requests are waited for below.
    let first = unsafe { oss.start(&busy, Bulk::None) };
    let gate = service.gate.lock().unwrap();
    drop(service.changed.wait_while(gate, |gate| !gate.0).unwrap());
    let begin = |(request, buffer)| {
        let bulk: &mut Vec<u8> = buffer;
        // SAFETY: as above; the buffers outlive the request.
        unsafe { oss.start(request, Bulk::Receive(bulk)) }
    };
    let started: Vec<Started<'_>> = requests.iter().zip(&mut buffers).map(begin).collect();
    service.gate.lock().unwrap().1 = true;
    service.changed.notify_all();
    assert_eq!(wait(first), Ok(OssReply::Done));
    let results: Vec<_> = started.into_iter().map(wait).collect();
    results.into_iter().zip(buffers).collect()
}

fn serve() -> (Arc<Together>, Server, TcpOss) {
    let service = Arc::new(Together::default());
    let targets = Targets::new().with_ost(0, service.clone());
    let server = Server::bind(&[any_port()], targets, ServerConfig::default()).expect("a free port");
    let oss = TcpOss::new(0, &[nid(server.addrs()[0])], &identity(1), &quick()).expect("oss");
    (service, server, oss)
}

fn read(number: u64, len: u32) -> OssRequest {
    OssRequest::plain_read(Fid::new(9, 2, 0), number * BLOCK, len)
}

#[test]
fn small_reads_that_wait_already_run_together_and_each_gets_its_own_answer() {
    let (service, _server, oss) = serve();
    let locked = OssRequest::Read {
        object: Fid::new(9, 2, 0),
        offset: 70 * BLOCK,
        len: 4096,
        ahead: 0,
        lock: IoLock::Server,
        written: false,
    };
    // Fewer than a client may have in flight, or one would wait for the request that blocks the server.
    let mut requests: Vec<OssRequest> =
        [0, 3, 5].into_iter().map(|number| read(number, 4096 - 100 * number as u32)).collect();
    // Neither large reads nor reads that may wait for a lock delay others.
    requests.extend([read(60, 64 << 10), locked]);
    requests.extend((20..23).map(|number| read(number, 16384)));
    let answers = run_together(&service, &oss, &requests);
    // On a busy machine the kernel may deliver the requests in parts.
    let (batches, alone) = (service.batches.lock().unwrap().clone(), *service.alone.lock().unwrap());
    assert_eq!(batches.iter().sum::<usize>() + alone, requests.len(), "{batches:?}");
    assert!(!batches.is_empty() && batches.len() <= 2 && alone <= 5, "{batches:?}, {alone} alone");
    for (request, (result, buffer)) in requests.iter().zip(answers) {
        let OssRequest::Read { offset, len, .. } = *request else { unreachable!("only reads") };
        let expected = match offset {
            BAD => Err(Status::EIO),
            SHORT => Ok(OssReply::Read(100)),
            _ => Ok(OssReply::Read(len)),
        };
        assert_eq!(result, expected, "at {offset}");
        let there = if let Ok(OssReply::Read(there)) = result { there as usize } else { 0 };
        assert!(buffer[..there].iter().all(|byte| *byte == byte_of(offset)), "at {offset}");
    }
    assert!(oss.call(&read(3000, 4096), Bulk::Receive(&mut [0; 4096])).is_ok(), "it goes on");
    assert_eq!(*service.alone.lock().unwrap(), alone + 1, "who is alone waits for nobody");
}

#[test]
fn a_fault_in_a_batch_costs_its_reads_and_not_the_connection() {
    let (service, server, oss) = serve();
    let requests: Vec<OssRequest> = [1, 2, 1000, 4].into_iter().map(|number| read(number, 4096)).collect();
    let answers = run_together(&service, &oss, &requests);
    assert!(answers.iter().all(|(result, _)| matches!(result, Ok(OssReply::Read(4096)) | Err(Status::EIO))));
    assert!(answers.iter().any(|(result, _)| *result == Err(Status::EIO)), "of the batch at least");
    let again = run_together(&service, &oss, &requests[..2]);
    assert!(again.iter().all(|(result, _)| *result == Ok(OssReply::Read(4096))));
    assert!(!service.batches.lock().unwrap().is_empty());
    assert_eq!(server.connection_count(), 1);
}
