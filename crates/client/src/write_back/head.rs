//! Data that is held back for a head, see [`crate::layouts::head`].

use crate::file::FileState;
use crate::file::head::Head;
use crate::file::ranges::Use;
use crate::objects::transfer::{Notes, Placed, WriteHow};
use crate::write_back::WriteBack;
use crate::write_back::table::Job;
use nacre_layout::Layout;
use nacre_types::{Explain, FailureResult, Status};
use nacre_wire::lock::IoLock;
use nacre_wire::mds::HEAD_DATA_MAX;
use std::sync::atomic::Ordering;

impl WriteBack {
    /// Ends the holding of a head: the caller is about to need objects up to `end`. If a head is held, its
    /// data is sent to its place. To be called without a byte range.
    ///
    /// # Errors
    /// `EINTR`; the error of the MDT, or of an OST that the data goes to instead.
    pub(crate) fn close_head(&self, file: &FileState, end: u64) -> FailureResult<()> {
        {
            let mut inner = file.lock();
            match inner.head {
                Head::Settled | Head::LeftOut(_) => return Ok(()),
                Head::Open(_) => {
                    inner.head = Head::Settled;
                    return Ok(());
                }
                Head::Held | Head::Deciding => {}
            }
        }
        let (_range, ()) = file.take_range_ungated(Use::Exclusive, |_| (0, HEAD_DATA_MAX, ()))?;
        self.layouts.decide_head(file, end)?;
        if matches!(file.lock().head, Head::LeftOut(_)) {
            self.settle(file, 0, u64::MAX)?;
        }
        Ok(())
    }

    /// Sends a window that was held back for a head, which was left out, to the objects allocated instead.
    pub(crate) fn send_elsewhere(&self, file: &FileState, job: &Job, layout: &Layout) -> FailureResult<()> {
        let counters = &self.counters;
        for (start, end) in job.window.spans.iter() {
            // SAFETY: spans end within the buffer and name bytes that were written; the table gave the window
            // out while no thread filled it, so no thread changes the bytes while the job exists.
            let bytes = unsafe {
                std::slice::from_raw_parts(
                    job.window.buffer.start().add(start as usize),
                    (end - start) as usize,
                )
            };
            let mut notes = Notes::default();
            let place = Placed { at: job.key.offset() + u64::from(start), data: bytes };
            let how = WriteHow { sync: false, lock: IoLock::Lease, charge: file.charge(false) };
            let (written, touched) = self.objects.write_layout(file.fid, layout, place, how, &mut notes);
            let mut inner = file.lock();
            for (stripe, epoch) in touched {
                inner.mark_dirty(stripe, *epoch);
                if written.as_ref().is_ok_and(|written| *written == bytes.len()) {
                    inner.news.written.note(stripe);
                }
            }
            drop(inner);
            counters.rpcs.fetch_add(1, Ordering::Relaxed);
            counters.sent_bytes.fetch_add(bytes.len() as u64, Ordering::Relaxed);
            if written? < bytes.len() {
                return Err(Status::EIO).explain(|context| {
                    context
                        .action("write back")
                        .fid(file.fid)
                        .offset(place.at)
                        .cause("only a part was written")
                });
            }
        }
        Ok(())
    }
}
