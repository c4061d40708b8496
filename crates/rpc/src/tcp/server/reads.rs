//! Batches of small reads of one connection: they run together, so that the medium gets one submission, and
//! are answered together, so that the client wakes once.
//!
//! A read that finds fewer than [`BATCHES_MAX`] batches in flight starts one, with the reads that have
//! arrived after it. Others queue, and the thread that ends a batch takes the whole queue: the busier the
//! medium, the larger the batches, and no read waits while the medium is idle. Reads that may wait for locks
//! are not batched: one of them would delay answers that the holder of its lock needs first.

use super::clients::Client;
use super::dispatch::{Work, encode_result, guarded, job_of, reply_header};
use crate::api::{Call, OssService, ReadCall};
use nacre_types::limits::SHORT_IO_BYTES;
use nacre_types::{JobId, Status};
use nacre_wire::Decode;
use nacre_wire::frame::{FrameKind, Header};
use nacre_wire::oss::{OssCall, OssReply, OssRequest};
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

/// Largest read in a batch, in bytes: larger ones keep a medium busy alone.
const READ_MAX: usize = SHORT_IO_BYTES;
/// Reads in a batch at most, so that its answers fit the number of requests in flight on a connection.
const READS_MAX: usize = 32;
/// Alignment of each read's memory, in bytes, which every block device accepts.
const ALIGN: usize = 4096;

/// Batches of a connection in flight: one is answered while the medium works on another.
const BATCHES_MAX: usize = 2;
/// Queued reads at most. Further ones run alone, which slows down a client that sends too many.
const LINE_MAX: usize = 128;

/// Queue of reads of a connection.
#[derive(Default)]
pub(super) struct Line {
    waiting: VecDeque<Gathered>,
    /// Batches in flight.
    batches: usize,
}

/// A read of a batch.
pub(super) struct Gathered {
    header: Header,
    sent: OssCall<OssRequest>,
    job: Option<JobId>,
    /// Range of its data in the batch's memory.
    data: Range<usize>,
}

/// Returns true if a request may run in a batch.
fn may_join(request: &OssRequest) -> bool {
    matches!(request, OssRequest::Read { len, .. } if (1..=READ_MAX).contains(&(*len as usize)))
        && !request.waits_for_locks()
}

impl Work<'_> {
    /// Handles a read that may run in a batch. Returns false if it has to run alone.
    pub(super) fn join_reads(
        &mut self,
        service: &dyn OssService,
        client: &Arc<Client>,
        header: &Header,
        sent: &OssCall<OssRequest>,
        job: Option<JobId>,
    ) -> bool {
        let most = service.reads_at_once().min(READS_MAX);
        if most < 2 || !may_join(&sent.request) {
            return false;
        }
        let mut line = self.connection.reads.lock();
        if line.waiting.len() >= LINE_MAX {
            return false;
        }
        line.waiting.push_back(Gathered { header: *header, sent: sent.clone(), job, data: 0..0 });
        self.gather_arrived(&mut line);
        if line.batches >= BATCHES_MAX {
            // The thread that ends a batch takes it.
            return true;
        }
        if line.waiting.len() == 1 && line.batches == 0 {
            // No other read to share with: handled as any other request.
            line.waiting.clear();
            line.batches += 1;
            drop(line);
            self.run_one(header, service, client, sent, job);
            line = self.connection.reads.lock();
        } else {
            line.batches += 1;
        }
        while !line.waiting.is_empty() {
            let count = line.waiting.len().min(most);
            let mut batch = std::mem::take(&mut self.gathered);
            batch.clear();
            batch.extend(line.waiting.drain(..count));
            drop(line);
            self.gathered = batch;
            self.run_reads(service, client);
            line = self.connection.reads.lock();
        }
        line.batches -= 1;
        true
    }

    /// Queues the reads that have already arrived.
    fn gather_arrived(&self, line: &mut Line) {
        // Another thread may be receiving: then nothing has arrived that this thread could take.
        let Some(mut inbox) = self.connection.inbox.try_lock() else { return };
        while line.waiting.len() < LINE_MAX {
            let Some((header, body)) = inbox.peek() else { return };
            // Invalid frames are handled where frames are received one by one.
            let is_ours = header.kind == FrameKind::Request && header.target == self.session.target;
            if !is_ours || header.check_body(body).is_err() {
                return;
            }
            let decoded = job_of(&header, body)
                .and_then(|(body, job)| OssCall::<OssRequest>::from_bytes(body).map(|sent| (sent, job)));
            let Some((sent, job)) = decoded.ok().filter(|(sent, _)| may_join(&sent.request)) else { return };
            inbox.take_peeked(&header);
            line.waiting.push_back(Gathered { header, sent, job, data: 0..0 });
        }
    }

    /// Runs the batch and answers it.
    fn run_reads(&mut self, service: &dyn OssService, client: &Arc<Client>) {
        let mut gathered = std::mem::take(&mut self.gathered);
        let mut end = 0;
        for read in &mut gathered {
            let OssRequest::Read { len, .. } = &read.sent.request else { continue };
            read.data = end..end + *len as usize;
            end = read.data.end.next_multiple_of(ALIGN);
        }
        let Ok(mut rest) = self.bulk.reserve(end) else {
            let results = vec![Err(Status::ENOMEM); gathered.len()];
            self.answer_reads(&gathered, &results);
            gathered.clear();
            self.gathered = gathered;
            return;
        };
        let mut calls = Vec::with_capacity(gathered.len());
        for read in &gathered {
            let (room, later) = rest.split_at_mut(read.data.len().next_multiple_of(ALIGN));
            rest = later;
            calls.push(ReadCall {
                call: Call::new(&self.system)
                    .for_job(read.job)
                    .allowed_by(read.sent.capability)
                    .numbered(read.header.xid),
                request: &read.sent.request,
                buffer: room.split_at_mut(read.data.len()).0,
                // Result that is left after a panic.
                result: Err(Status::EIO),
            });
        }
        let _ = guarded(|| {
            service.handle_reads(&client.export, &mut calls);
            Ok(())
        });
        let results: Vec<_> = calls.into_iter().map(|call| call.result).collect();
        self.interrupt.end();
        self.answer_reads(&gathered, &results);
        let is_evicted = |result| matches!(result, &Err(Status::EVICTED));
        for (read, _) in gathered.iter().zip(&results).filter(|(_, result)| is_evicted(*result)) {
            self.reply.clear();
            self.answer_client(&read.header, client, Status::EVICTED, 0);
        }
        gathered.clear();
        self.gathered = gathered;
    }

    /// Sends all answers in one send, except those to dropped clients.
    fn answer_reads(&mut self, gathered: &[Gathered], results: &[Result<OssReply, Status>]) {
        let bulk = self.bulk.filled(gathered.iter().map(|read| read.data.end).max().unwrap_or(0));
        // Headers and bodies one after the other; the end of each, and its data.
        let mut heads = std::mem::take(&mut self.reply);
        heads.clear();
        let mut ends = Vec::with_capacity(gathered.len());
        let mut body = Vec::new();
        for (read, result) in gathered.iter().zip(results) {
            if matches!(result, Err(Status::EVICTED)) {
                continue;
            }
            body.clear();
            let status = encode_result(result, &mut body);
            let got = match result {
                Ok(OssReply::Read(got)) => (*got as usize).min(read.data.len()),
                _ => 0,
            };
            let data = bulk.get(read.data.start..read.data.start + got).unwrap_or_default();
            match reply_header(self.session, &read.header, status, &body, data) {
                Ok(header) => {
                    heads.extend_from_slice(&header.to_bytes());
                    heads.extend_from_slice(&body);
                    ends.push((heads.len(), data));
                }
                Err(header) => {
                    heads.extend_from_slice(&header.to_bytes());
                    ends.push((heads.len(), &[]));
                }
            }
        }
        let mut parts = Vec::with_capacity(2 * ends.len());
        let mut start = 0;
        for (end, data) in ends {
            parts.push(heads.get(start..end).unwrap_or_default());
            parts.push(data);
            start = end;
        }
        if !parts.is_empty() {
            self.connection.send_parts(&parts);
        }
        self.reply = heads;
    }
}
