//! Requests to the objects of a file: one directly, several at once.

use crate::client::Client;
use crate::file::FileState;
use crate::io::written::{Written, check_there};
use nacre_layout::{Layout, StripeObject, object_ranges, object_sizes};
use nacre_rpc::{IoCall, OssEndpoint, run_all};
use nacre_types::{Fid, Status, StatusResult, TargetId, Timestamp};
use nacre_wire::lock::IoLock;
use nacre_wire::oss::{Bulk, ObjectAttr, OssReply, OssRequest};

/// What the objects of a file say about it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Glimpse {
    pub size: u64,
    /// In units of 512 bytes.
    pub blocks: u64,
    /// Last change of data, if there was one.
    pub mtime: Option<Timestamp>,
}

impl Client {
    pub(crate) fn ost(&self, index: u16) -> StatusResult<&dyn OssEndpoint> {
        // An OST that the configuration does not name yet: as if its server could not be reached.
        self.osts.get(index).ok_or(Status::EIO)
    }

    /// Runs requests without data on several objects and gives their replies in order, or the first failure once all
    /// have ended.
    pub(crate) fn on_objects(
        &self,
        requests: impl Iterator<Item = (u16, OssRequest)>,
    ) -> StatusResult<Vec<OssReply>> {
        let mut calls = Vec::new();
        for (ost_index, request) in requests {
            calls.push(IoCall { endpoint: self.ost(ost_index)?, request, bulk: Bulk::None });
        }
        run_all(calls).into_iter().collect()
    }

    /// Asks one object; spares the lists of [`Client::on_objects`].
    pub(crate) fn on_object(&self, ost_index: u16, request: &OssRequest) -> StatusResult<OssReply> {
        self.ost(ost_index)?.call(request, Bulk::None)
    }

    /// Size, space and time as the objects have them, and other clients that write to them.
    ///
    /// The second value: objects that exist without a mark in the layout, while no other client writes.
    ///
    /// # Errors
    /// [`Status::OBJECT_LOST`]; what an OST answers.
    pub(crate) fn glimpse(&self, layout: &Layout) -> StatusResult<(Glimpse, Written)> {
        let glimpse = !self.is_alone();
        let mut objects = layout.objects();
        let (first, more) = (objects.next(), objects.next().is_some());
        let Some(first) = first else { return Ok(<(Glimpse, Written)>::default()) };
        let (mut sum, mut written) = <(Glimpse, Written)>::default();
        // Otherwise it may be what another client is about to write.
        let mut note = |stripe: &StripeObject, attr: &ObjectAttr| {
            if !glimpse && attr.mtime.is_some() {
                written.note(stripe);
            }
            check_there(stripe, attr)
        };
        if !more {
            let attr = object_attr(
                self.on_object(first.ost_index, &OssRequest::GetAttr { object: first.object, glimpse })?,
            )?;
            note(first, &attr)?;
            sum.add(&attr);
            sum.size = layout.file_size(&[attr.size]);
            return Ok((sum, written));
        }
        let requests = layout
            .objects()
            .map(|stripe| (stripe.ost_index, OssRequest::GetAttr { object: stripe.object, glimpse }));
        let mut sizes = Vec::new();
        for (stripe, reply) in layout.objects().zip(self.on_objects(requests)?) {
            let attr = object_attr(reply)?;
            note(stripe, &attr)?;
            sum.add(&attr);
            sizes.push(attr.size);
        }
        sum.size = layout.file_size(&sizes);
        Ok((sum, written))
    }

    /// The same of some of the objects, as if the others were empty; lost ones are.
    pub(crate) fn glimpse_some(
        &self,
        layout: &Layout,
        wanted: impl Fn(&StripeObject) -> bool,
    ) -> StatusResult<Glimpse> {
        let glimpse = !self.is_alone();
        let requests = layout
            .objects()
            .filter(|stripe| wanted(stripe))
            .map(|stripe| (stripe.ost_index, OssRequest::GetAttr { object: stripe.object, glimpse }));
        let mut replies = self.on_objects(requests)?.into_iter();
        let (mut sum, mut sizes) = (Glimpse::default(), Vec::new());
        for stripe in layout.objects() {
            let attr = match wanted(stripe) {
                true => object_attr(replies.next().ok_or(Status::EPROTO)?)?,
                false => ObjectAttr::default(),
            };
            sum.add(&attr);
            sizes.push(attr.size);
        }
        sum.size = layout.file_size(&sizes);
        Ok(sum)
    }

    /// True for an OST that an operator has taken out of use.
    pub(crate) fn is_out_of_use(&self, ost_index: u16) -> bool {
        self.osts.get(ost_index).is_some_and(|endpoint| !endpoint.is_active())
    }

    /// Says once which OSTs are out of use that a part of a file is on.
    pub(crate) fn tell_of_inactive(&self, file: &FileState, layout: &Layout, (start, end): (u64, u64)) {
        let mut all: Vec<u16> = touched(layout, start, end).map(|(ost_index, _)| ost_index).collect();
        all.retain(|ost_index| self.is_out_of_use(*ost_index));
        all.sort_unstable();
        all.dedup();
        if all.is_empty() || std::mem::replace(&mut file.lock().told_of_inactive, true) {
            return;
        }
        for ost_index in all {
            log::error!("{}: a part of it is on {}, which is out of use", file.fid, TargetId::ost(ost_index));
        }
    }

    /// What an operation on a part of a file came to; if it failed for an OST that is out of use, says so.
    pub(crate) fn explained<R>(
        &self,
        file: &FileState,
        range: (u64, u64),
        outcome: StatusResult<R>,
    ) -> StatusResult<R> {
        if let Err(Status::OBJECT_LOST) = outcome
            && !std::mem::replace(&mut file.lock().told_of_lost, true)
        {
            log::error!(
                "{}: data is lost, as an object of the file is not on its OST any more: the log of the OST names the object, and \
                 'nacre check' the file",
                file.fid
            );
        }
        if let Err(Status::EIO) = outcome {
            let layout = file.lock().layout.clone();
            layout.iter().for_each(|layout| self.tell_of_inactive(file, layout, range));
        }
        outcome
    }

    /// Sets the sizes of objects to what a file of `size` bytes has there.
    pub(crate) fn cut_objects(&self, layout: &Layout, size: u64, lock: IoLock) -> StatusResult<()> {
        let requests = object_sizes(layout, size).map(|(stripe, size)| {
            // Nothing is lost where nothing is to be left.
            let written = stripe.written && size > 0;
            (stripe.ost_index, OssRequest::Truncate { object: stripe.object, size, lock, written })
        });
        self.on_objects(requests).map(drop)
    }

    /// Epoch of an OST, to be taken before writing there.
    pub(crate) fn epoch_of(&self, ost_index: u16) -> u64 {
        self.osts.get(ost_index).map_or(0, |endpoint| endpoint.durability_epoch())
    }
}

impl Glimpse {
    fn add(&mut self, attr: &ObjectAttr) {
        self.blocks += attr.blocks;
        self.mtime = self.mtime.max(attr.mtime);
    }
}

/// # Errors
/// `EPROTO` if the OST answered something else than attributes.
pub(crate) fn object_attr(reply: OssReply) -> StatusResult<ObjectAttr> {
    match reply {
        OssReply::Attr(attr) => Ok(attr),
        _ => Err(Status::EPROTO),
    }
}

/// Objects that hold data of the file `[start, end)`, without their ranges.
pub(crate) fn touched(layout: &Layout, start: u64, end: u64) -> impl Iterator<Item = (u16, Fid)> + '_ {
    object_ranges(layout, start, end).map(|range| (range.stripe.ost_index, range.stripe.object))
}
