//! Data of a small file on an MDT that goes with the close: one request and one transaction for data, size
//! and times.
//!
//! Only while this client is the only one, and if the file's only object is there. The MDT may refuse (it was
//! restarted and does not know the handle, or another client is connecting); then the data is written like
//! any other and the close follows.

use crate::file::{KnownSize, OpenFile};
use crate::opens::Opens;
use crate::validity::Validity;
use crate::write_back::table::Job;
use nacre_types::{FailureResult, Status};
use nacre_wire::mds::{CLOSING_DATA_MAX, ClosingData, DataUpdate, MdsReply, MdsRequest};
use std::sync::atomic::Ordering;

/// Data that was taken out of its table to go with a close.
pub(crate) struct Closing {
    job: Job,
    size: KnownSize,
}

impl Opens {
    /// Takes the data that the close of the last open for writing can carry, for [`Opens::close_with`].
    pub(crate) fn data_for_close(&self, open: &OpenFile) -> Option<Closing> {
        let file = &*open.file;
        let lease = self.lease.number();
        if !open.writable() || file.dirty.is_clean() || lease == 0 {
            return None;
        }
        let (stripe, size) = {
            let inner = file.lock();
            let is_ours =
                inner.size.is_of(self.lease.number()) && inner.layout_validity == Validity::Lease(lease);
            let layout = inner.layout.as_ref().filter(|_| is_ours && inner.users.writers == 1)?;
            let stripe = *layout.object_on_mdt().filter(|_| layout.objects().count() == 1)?;
            // The MDT counts space itself.
            let blocks = inner.known_blocks().unwrap_or(0);
            (
                stripe,
                KnownSize {
                    size: inner.size.bytes,
                    blocks,
                    changes: Some(inner.changes()?),
                    stamp: inner.size_stamp,
                },
            )
        };
        let job = file.dirty.take_sole(stripe.object, CLOSING_DATA_MAX as u32)?;
        let closing = Closing { job, size };
        let window = &closing.job.window;
        let is_of_now =
            self.requests.ost(stripe.ost_index).is_ok_and(|ost| ost.incarnation() == window.incarnation);
        if window.alone && is_of_now {
            return Some(closing);
        }
        file.dirty.put_back(closing.job);
        None
    }

    /// Closes with the data. False if the MDT did not take it: then it is dirty again.
    pub(crate) fn close_with(&self, open: &OpenFile, closing: Closing) -> bool {
        let file = &*open.file;
        let Closing { job, size } = closing;
        let Some((start, end)) = job.window.spans.iter().next() else {
            file.dirty.put_back(job);
            return false;
        };
        let _turn = file.tell();
        let update = file.lock().update_to_tell(Some(size));
        // SAFETY: spans end within the buffer and name bytes that were written; the table gave the window out
        // while no thread filled it, so no thread changes the bytes while the job exists.
        let bytes = unsafe {
            std::slice::from_raw_parts(job.window.buffer.start().add(start as usize), (end - start) as usize)
        };
        let data = ClosingData { object: job.key.object, offset: u64::from(start), bytes };
        let epoch = self.requests.epoch_of(job.window.budget.ost_index);
        let request = MdsRequest::CloseWrite { fid: file.fid, handle: open.handle, update, data };
        let recoveries = self.requests.recoveries(file.fid);
        let answer = self.requests.call_system(file.fid, &request);
        let told: FailureResult<_> = answer.and_then(|answer| match answer.reply {
            MdsReply::Attr(attr) => Ok((attr, answer.transno, answer.lease)),
            _ => Err(Status::EPROTO.into()),
        });
        let (attr, transno, lease) = match told {
            Ok(told) => told,
            Err(status) => {
                log::debug!("data of {} does not go with its close: {status}", file.fid);
                file.dirty.put_back(job);
                return false;
            }
        };
        // If the reply was from before a restart, a recovery has opened the file again since.
        self.let_go(file.fid, open.handle, recoveries);
        // Replies to earlier requests may still be on their way, and the inode may have been removed.
        let known = DataUpdate { size_blocks: Some((attr.size, attr.blocks)), ..update };
        self.nodes.note_told(file.node, &known, self.lease.number());
        {
            let mut inner = file.lock();
            inner.learn(&attr, lease, false);
            inner.transno = inner.transno.max(transno);
            inner.mark_dirty_object(job.window.budget.ost_index, job.key.object, epoch);
            inner.was_told(&update, size.changes);
        }
        self.layouts.head_came_with_close(file);
        let counters = &self.write_back.counters;
        counters.rpcs.fetch_add(1, Ordering::Relaxed);
        counters.sent_bytes.fetch_add(u64::from(end - start), Ordering::Relaxed);
        self.write_back.sent_with_close(file, job);
        true
    }
}
