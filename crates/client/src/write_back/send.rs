//! Sends dirty windows.

use crate::file::FileState;
use crate::objects::transfer::{Notes, Placed, Touched, WriteHow};
use crate::objects::{LARGE_BYTES, placed};
use crate::requests::target_of;
use crate::write_back::WriteBack;
use crate::write_back::pool::WINDOW_BYTES;
use crate::write_back::table::Job;
use nacre_env::clock::Instant;
use nacre_env::fault::{self, Point};
use nacre_layout::Layout;
use nacre_rpc::IoCall;
use nacre_types::{Explain, Failure, FailureResult, Status, StatusResult};
use nacre_wire::lock::IoLock;
use nacre_wire::oss::{Bulk, Charge, OssRequest};
use std::sync::atomic::Ordering;

/// A contiguous piece of a window: what one request writes.
#[derive(Clone, Copy)]
struct Piece {
    job: usize,
    start: u32,
    end: u32,
}

impl WriteBack {
    pub(crate) fn sent_with_close(&self, file: &FileState, job: Job) {
        let key = job.key;
        job.window.budget.give_back(true);
        // Before another thread takes a colder buffer.
        drop(job);
        file.dirty.sent(key);
        self.room_was_made();
    }

    /// Sends windows that were taken out of the file's table, several at a time, and returns them to it: as
    /// sent, or as still dirty if the caller was interrupted. Returns the first failure; it is also recorded
    /// for every open.
    pub(crate) fn send(&self, file: &FileState, jobs: Vec<Job>) -> FailureResult<()> {
        let _job = self.jobs.enter_job_of(file);
        // No data is sent to a head before the MDT has decided that the file has it.
        let decided = self.layouts.decide_head(file, 0);
        let decided = decided
            .map_err(|failure| self.requests.faults.log(failure.explain(|context| context.fid(file.fid))));
        let epochs: Vec<u64> =
            jobs.iter().map(|job| self.requests.epoch_of(job.window.budget.ost_index)).collect();
        let mut results: Vec<FailureResult<()>> = jobs.iter().map(|_| Ok(())).collect();
        let pieces: Vec<Piece> = jobs
            .iter()
            .enumerate()
            .filter(|(number, job)| {
                results[*number] = match (decided, self.layouts.instead_of_head(file, job)) {
                    (Ok(()), None) => return true,
                    (Ok(()), Some(layout)) => self.send_elsewhere(file, job, &layout),
                    (Err(status), _) => Err(Failure::logged(status)),
                };
                false
            })
            .flat_map(|(job, it)| it.window.spans.iter().map(move |(start, end)| Piece { job, start, end }))
            .collect();
        for some in pieces.chunks(self.rpcs_at_once(&jobs)) {
            for (piece, result) in some.iter().zip(self.send_pieces(file, &jobs, some)) {
                let known = &mut results[piece.job];
                if known.is_ok() {
                    *known = result;
                }
            }
        }
        let mut outcome = Ok(());
        for ((job, epoch), result) in jobs.into_iter().zip(epochs).zip(results) {
            outcome = outcome.and(self.after_send(file, job, epoch, result));
        }
        self.room_was_made();
        outcome
    }

    /// Returns how many requests one thread has in flight: `max_rpcs_in_flight` of the OSTs, the largest if
    /// they differ; the transport applies each OST's own.
    fn rpcs_at_once(&self, jobs: &[Job]) -> usize {
        let of = |job: &Job| self.requests.ost(job.window.budget.ost_index).ok()?.tunables();
        jobs.iter().filter_map(of).map(|tunables| tunables.max_rpcs_in_flight() as usize).max().unwrap_or(1)
    }

    fn send_pieces(&self, file: &FileState, jobs: &[Job], pieces: &[Piece]) -> Vec<FailureResult<()>> {
        if let Err(status) = fault::fail(Point::ClientWriteBack, Status::EIO) {
            return pieces.iter().map(|_| Err(status.into())).collect();
        }
        let charge = file.charge(false);
        let calls: FailureResult<Vec<IoCall<'_>>> =
            pieces.iter().map(|piece| self.call_of(file, &jobs[piece.job], piece, charge)).collect();
        let calls = match calls {
            Ok(calls) => calls,
            Err(failure) => {
                let status = self.requests.faults.log(failure.explain(|context| context.fid(file.fid)));
                return pieces.iter().map(|_| Err(Failure::logged(status))).collect();
            }
        };
        let bytes = pieces.iter().map(|piece| u64::from(piece.end - piece.start)).sum();
        let counters = &self.counters;
        let full = pieces.iter().filter(|piece| u64::from(piece.end - piece.start) == WINDOW_BYTES).count();
        counters.rpcs.fetch_add(pieces.len() as u64, Ordering::Relaxed);
        counters.full_rpcs.fetch_add(full as u64, Ordering::Relaxed);
        counters.sent_bytes.fetch_add(bytes, Ordering::Relaxed);
        counters.in_flight_bytes.fetch_add(bytes, Ordering::Relaxed);
        let replies = self.objects.run_calls(calls, bytes, None).into_iter().zip(pieces);
        let results = replies.map(|(reply, piece)| {
            let job = &jobs[piece.job];
            let ost_index = job.window.budget.ost_index;
            let written = |reply| self.requests.quotas.written(ost_index, charge.owners, reply);
            let result = match check(reply.and_then(written), piece) {
                Err(Status::ENOSPC) => self.requests.with_space(file.fid, || {
                    let IoCall { endpoint, request, bulk } = self.call_of(file, job, piece, charge)?;
                    Ok(check(endpoint.call(&request, bulk).and_then(written), piece)?)
                }),
                result => result.map_err(Failure::from),
            };
            result.explain(|context| {
                let offset = job.key.offset() + u64::from(piece.start);
                let about = self.requests.about_object(&job.window.stripe);
                about(context.action("write back").fid(file.fid).offset(offset))
            })
        });
        let results = results.collect();
        counters.in_flight_bytes.fetch_sub(bytes, Ordering::Relaxed);
        results
    }

    fn call_of<'a>(
        &'a self,
        file: &FileState,
        job: &'a Job,
        piece: &Piece,
        charge: Charge,
    ) -> FailureResult<IoCall<'a>> {
        let (start, len) = (piece.start as usize, (piece.end - piece.start) as usize);
        // SAFETY: spans end within the buffer and name bytes that were written; the table gave the window out
        // while no thread filled it, so no thread changes the bytes while the job exists.
        let data = unsafe { std::slice::from_raw_parts(job.window.buffer.start().add(start), len) };
        let offset = job.key.offset() + u64::from(piece.start);
        let stripe = &job.window.stripe;
        let layout = if stripe.written { None } else { file.lock().layout.clone() };
        let charge = layout.map_or(charge, |layout| placed(charge, (file.fid, &layout), stripe));
        Ok(IoCall {
            endpoint: self.requests.ost(job.window.budget.ost_index)?,
            request: OssRequest::Write {
                object: job.key.object,
                offset,
                sync: false,
                granted: true,
                lock: if job.window.alone { IoLock::Lease } else { IoLock::Held },
                incarnation: job.window.incarnation,
                written: job.window.stripe.written,
                charge,
            },
            bulk: Bulk::Send(data),
        })
    }

    /// Returns a window to the table after the try to send it. A failure is in the log and recorded with the
    /// file when this returns.
    fn after_send(
        &self,
        file: &FileState,
        job: Job,
        epoch: u64,
        result: FailureResult<()>,
    ) -> FailureResult<()> {
        let (ost_index, object, key) = (job.window.budget.ost_index, job.key.object, job.key);
        let stripe = job.window.stripe;
        let is_interrupted = result.as_ref().is_err_and(|failure| *failure == Status::EINTR);
        let result = match result {
            Err(failure) if !is_interrupted => {
                self.counters.failures.fetch_add(1, Ordering::Relaxed);
                Err(self.requests.faults.log_loss(file.fid, target_of(ost_index), failure))
            }
            result => result,
        };
        {
            // Before the window counts as sent, so that a caller that waits for it finds the object to be
            // synced.
            let mut inner = file.lock();
            inner.mark_dirty_object(ost_index, object, epoch);
            match &result {
                Ok(()) if stripe.object == object => inner.news.written.note(&stripe),
                Err(failure) if !is_interrupted => inner.record_error(failure.status()),
                _ => {}
            }
        }
        if is_interrupted {
            file.dirty.put_back(job);
            return result;
        }
        job.window.budget.give_back(true);
        // Before another thread takes a colder buffer.
        drop(job);
        file.dirty.sent(key);
        result
    }

    /// Writes to the objects, after older data of the same bytes, which must not arrive later.
    pub(crate) fn write_through<'t>(
        &self,
        file: &FileState,
        layout: &Layout,
        place: Placed<'_>,
        how: WriteHow,
        notes: &'t mut Notes,
    ) -> (FailureResult<usize>, &'t [Touched]) {
        let len = place.data.len() as u64;
        if let Err(failure) = self.settle(file, place.at, place.at + len) {
            return (Err(failure), &[]);
        }
        let begin = (len >= LARGE_BYTES && !how.sync).then(Instant::now);
        let written = self.objects.write_layout(file.fid, layout, place, how, notes);
        if let Some(begin) = begin {
            self.objects.write_pace.note(len, begin.elapsed());
        }
        written
    }
}

fn check(written: StatusResult<usize>, piece: &Piece) -> StatusResult<()> {
    match written? as u64 == u64::from(piece.end - piece.start) {
        true => Ok(()),
        false => Err(Status::EIO),
    }
}
