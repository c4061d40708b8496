//! Requests to the objects of a file: one directly, several at once.

use crate::client::Client;
use nacre_layout::{Layout, object_ranges, object_sizes};
use nacre_rpc::{IoCall, OssEndpoint, run_all};
use nacre_types::{Fid, Status, StatusResult, Timestamp};
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
    pub(crate) fn glimpse(&self, layout: &Layout) -> StatusResult<Glimpse> {
        let glimpse = !self.is_alone();
        let mut objects = layout.objects();
        let (first, more) = (objects.next(), objects.next().is_some());
        let Some(first) = first else { return Ok(Glimpse::default()) };
        let mut sum = Glimpse::default();
        if !more {
            let attr = object_attr(
                self.on_object(first.ost_index, &OssRequest::GetAttr { object: first.object, glimpse })?,
            )?;
            sum.add(&attr);
            sum.size = layout.file_size(&[attr.size]);
            return Ok(sum);
        }
        let requests = layout
            .objects()
            .map(|stripe| (stripe.ost_index, OssRequest::GetAttr { object: stripe.object, glimpse }));
        let mut sizes = Vec::new();
        for reply in self.on_objects(requests)? {
            let attr = object_attr(reply)?;
            sum.add(&attr);
            sizes.push(attr.size);
        }
        sum.size = layout.file_size(&sizes);
        Ok(sum)
    }

    /// Sets the sizes of objects to what a file of `size` bytes has there.
    pub(crate) fn cut_objects(&self, layout: &Layout, size: u64, lock: IoLock) -> StatusResult<()> {
        let requests = object_sizes(layout, size).map(|(stripe, size)| {
            (stripe.ost_index, OssRequest::Truncate { object: stripe.object, size, lock })
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
