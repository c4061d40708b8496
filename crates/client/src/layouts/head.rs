//! A first component on the MDT (head) that the file has only if its first data is small.
//!
//! For a file without a requested layout the MDT stores none at creation. If the default layout of the whole
//! file system begins on an MDT, the first data decides: data that a program writes into a file it has just
//! created is held back as long as it ends at [`HEAD_DATA_MAX`] or before, as if the head existed
//! ([`Head::Held`]). The data goes with the close, which gives the file its head in the same transaction. An
//! operation that needs more requests objects from the MDT, as for any file: for a part of the file within
//! that bound the head is created, for more it is left out, and the data that was held back goes to the
//! objects allocated instead.
//!
//! # Invariants
//!
//! - Nothing is sent to the object on the MDT before the MDT has confirmed that the file has it
//!   ([`Layouts::decide_head`]).
//! - While a head is held, a thread requests objects only by deciding the head, so no other thread's request
//!   leaves it out unnoticed: a thread that is about to request objects announces it first
//!   ([`WriteBack::close_head`](crate::write_back::WriteBack::close_head)), and from then on no head is held.
//! - After a head was left out, its bytes are held exclusively until the data that was held back is on the
//!   new objects.

use crate::file::head::Head;
use crate::file::{FileInner, FileState};
use crate::layouts::Layouts;
use crate::validity::Validity;
use crate::write_back::table::Job;
use nacre_layout::Layout;
use nacre_types::{FailureResult, Fid, Status};
use nacre_wire::mds::{HEAD_DATA_MAX, MdsReply, MdsRequest};
use std::sync::Arc;

/// What a write does with the head of its file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum HeadUse {
    /// Nothing: the layout decides.
    None,
    /// The data is held back for the head.
    Hold,
    /// The MDT has to decide about the head first.
    Decide,
}

impl Layouts {
    /// Records that this client created the file under this lease.
    pub(crate) fn note_made(&self, inner: &mut FileInner, lease: u64) {
        let is_open = inner.layout.as_ref().is_some_and(|layout| layout.has_open_head());
        if lease != 0 && inner.layout_validity == Validity::Lease(lease) && is_open {
            inner.head = Head::Open(lease);
        }
    }

    /// Returns what a write that ends at `end` does with the head; `may_hold`: the data may be held back.
    pub(crate) fn use_head(&self, inner: &mut FileInner, fid: Fid, end: u64, may_hold: bool) -> HeadUse {
        let is_ours = inner.layout_validity == Validity::Lease(self.lease.number());
        let fits = may_hold && end <= HEAD_DATA_MAX && is_ours;
        match inner.head {
            Head::Settled | Head::LeftOut(_) => HeadUse::None,
            Head::Held if fits => HeadUse::Hold,
            Head::Held | Head::Deciding => HeadUse::Decide,
            Head::Open(lease) => {
                inner.head = Head::Settled;
                let is_true = lease == self.lease.number();
                let open = inner.layout.as_ref().filter(|layout| layout.has_open_head());
                let Some(open) = open.filter(|_| is_true && fits && !inner.layout_pending) else {
                    return HeadUse::None;
                };
                let mut layout = Layout::clone(open);
                layout.place_on_mdt(fid);
                inner.layout = Some(Arc::new(layout));
                inner.head = Head::Held;
                HeadUse::Hold
            }
        }
    }

    /// Makes the MDT decide whether a file has the head that is held: it has not if data up to `end` is too
    /// much for a head.
    ///
    /// # Errors
    /// `EINTR`; the error of the MDT.
    pub(crate) fn decide_head(&self, file: &FileState, end: u64) -> FailureResult<()> {
        let is_mine = file.wait_for(|inner| match inner.head {
            Head::Held => {
                inner.head = Head::Deciding;
                Some(true)
            }
            Head::Deciding => None,
            _ => Some(false),
        })?;
        if !is_mine {
            return Ok(());
        }
        let lease = self.lease.number();
        let asked = self.ask_for_head(file.fid, end.max(1));
        let mut inner = file.lock();
        let outcome = asked.map(|(layout, transno)| {
            inner.transno = inner.transno.max(transno);
            if inner.layout_validity != Validity::Lease(lease) || lease != self.lease.number() {
                // The next operation requests the resulting layout.
                inner.layout_validity = Validity::None;
            }
            inner.layout = Some(layout.clone());
            self.relayouts.note(file.fid);
            let has_head = layout.object_on_mdt().is_some_and(|stripe| stripe.object == file.fid);
            inner.head = if has_head { Head::Settled } else { Head::LeftOut(layout) };
        });
        if outcome.is_err() {
            inner.head = Head::Held;
        }
        if inner.ranges.waiters > 0 {
            file.changed.notify_all();
        }
        drop(inner);
        self.nodes.note_layout(file.node);
        outcome
    }

    fn ask_for_head(&self, fid: Fid, end: u64) -> FailureResult<(Arc<Layout>, nacre_types::TransNo)> {
        let request = MdsRequest::LayoutIntent { fid, start: 0, end };
        let answer = self.requests.with_space(fid, || self.requests.call_system(fid, &request))?;
        match answer.reply {
            MdsReply::Layout(Some(layout)) => Ok((layout, answer.transno)),
            _ => Err(Status::EPROTO.into()),
        }
    }

    /// Does the same for a file that may be open here, whose layout is about to be read or changed by name.
    ///
    /// # Errors
    /// As for [`Layouts::decide_head`].
    pub(crate) fn decide_head_of(&self, fid: Fid) -> FailureResult<()> {
        match self.nodes.file(fid.inode_number()) {
            Some(file) => self.decide_head(&file, 0),
            None => Ok(()),
        }
    }

    /// True if data is held back whose close will give an open file its layout.
    pub(crate) fn holds_head(&self, fid: Fid) -> bool {
        let file = self.nodes.file(fid.inode_number());
        file.is_some_and(|file| matches!(file.lock().head, Head::Held | Head::Deciding))
    }

    /// Records that the close has taken the data along: the file has its head.
    pub(crate) fn head_came_with_close(&self, file: &FileState) {
        let mut inner = file.lock();
        if matches!(inner.head, Head::Held) {
            inner.head = Head::Settled;
        }
        drop(inner);
        self.relayouts.note(file.fid);
        self.nodes.note_layout(file.node);
    }

    /// Returns the layout that a window goes to instead of the object that it was held back for.
    pub(crate) fn instead_of_head(&self, file: &FileState, job: &Job) -> Option<Arc<Layout>> {
        match &file.lock().head {
            Head::LeftOut(layout) if job.key.object == file.fid => Some(layout.clone()),
            _ => None,
        }
    }
}
