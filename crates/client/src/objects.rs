//! Requests to the objects of a file: to one directly, to several at once.

pub(crate) mod idle;
pub(crate) mod kept;
pub(crate) mod logged;
pub(crate) mod parallel;
pub(crate) mod transfer;

use crate::file::Glimpse;
use crate::file::written::{Written, check_there};
use crate::lease::Lease;
use crate::objects::idle::{IdleCpus, Pace};
use crate::requests::Requests;
use crate::tasks::Tasks;
use crate::tunables::Tunables;
use nacre_layout::{Layout, StripeObject, object_sizes};
use nacre_types::{Explain, FailureResult, Fid, Status, StatusResult};
use nacre_wire::lock::IoLock;
use nacre_wire::oss::{Charge, ObjectAttr, OssReply, OssRequest};
use std::sync::Arc;

/// A write of this size shows how fast servers are: the request itself is a small part of it.
pub(crate) const LARGE_BYTES: u64 = 512 << 10;

/// Requests to objects of files, by ranges of a layout.
pub struct Objects {
    requests: Arc<Requests>,
    lease: Arc<Lease>,
    tunables: Arc<Tunables>,
    tasks: Arc<Tasks>,
    /// Moving average of how long large reads take.
    read_pace: Pace,
    /// Moving average of how long large writes take.
    pub(crate) write_pace: Pace,
    pub(crate) idle: IdleCpus,
}

impl Objects {
    pub(crate) fn new(
        requests: Arc<Requests>,
        lease: Arc<Lease>,
        tunables: Arc<Tunables>,
        tasks: Arc<Tasks>,
    ) -> Arc<Objects> {
        Arc::new(Objects {
            requests,
            lease,
            tunables,
            tasks,
            read_pace: Pace::default(),
            write_pace: Pace::default(),
            idle: IdleCpus::default(),
        })
    }

    /// Returns size, space and time according to the objects, and whether other clients write to them
    /// (glimpse).
    ///
    /// The second value: objects that exist but are not recorded in the layout as written, while no other
    /// client writes.
    ///
    /// # Errors
    /// [`Status::OBJECT_LOST`]; the error of an OST.
    pub(crate) fn glimpse(&self, layout: &Layout) -> FailureResult<(Glimpse, Written)> {
        let glimpse = !self.lease.exclusive();
        let mut objects = layout.objects();
        let (first, more) = (objects.next(), objects.next().is_some());
        let Some(first) = first else { return Ok(<(Glimpse, Written)>::default()) };
        let (mut sum, mut written) = <(Glimpse, Written)>::default();
        // Otherwise another client may be about to write the object.
        let mut note = |stripe: &StripeObject, attr: &ObjectAttr| {
            if !glimpse && attr.mtime.is_some() {
                written.note(stripe);
            }
            check_there(stripe, attr).explain(self.requests.about_object(stripe))
        };
        if !more {
            let attr = object_attr(self.requests.on_object(
                "get the size",
                first.ost_index,
                &OssRequest::GetAttr { object: first.object, glimpse },
            )?)?;
            note(first, &attr)?;
            sum.add(&attr);
            sum.size = layout.file_size(&[attr.size]);
            return Ok((sum, written));
        }
        let requests = || {
            layout
                .objects()
                .map(|stripe| (stripe.ost_index, OssRequest::GetAttr { object: stripe.object, glimpse }))
        };
        let mut sizes = Vec::new();
        for (stripe, reply) in layout.objects().zip(self.requests.on_objects("get the size", requests)?) {
            let attr = object_attr(reply)?;
            note(stripe, &attr)?;
            sum.add(&attr);
            sizes.push(attr.size);
        }
        sum.size = layout.file_size(&sizes);
        Ok((sum, written))
    }

    /// Does the same for some of the objects, as if the others were empty; lost ones count as empty too.
    pub(crate) fn glimpse_some(
        &self,
        layout: &Layout,
        wanted: impl Fn(&StripeObject) -> bool,
    ) -> FailureResult<Glimpse> {
        let glimpse = !self.lease.exclusive();
        let requests = || {
            layout
                .objects()
                .filter(|stripe| wanted(stripe))
                .map(|stripe| (stripe.ost_index, OssRequest::GetAttr { object: stripe.object, glimpse }))
        };
        let mut replies = self.requests.on_objects("get the size", requests)?.into_iter();
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

    /// Sets the sizes of objects to their parts of a file of `size` bytes.
    pub(crate) fn cut_objects(
        &self,
        file: Fid,
        layout: &Layout,
        size: u64,
        lock: IoLock,
        charge: Charge,
    ) -> FailureResult<()> {
        let requests = || {
            object_sizes(layout, size).map(|(stripe, size)| {
                // If no data is to remain, none can be lost.
                let written = stripe.written && size > 0;
                let charge = placed(charge, (file, layout), &stripe);
                (
                    stripe.ost_index,
                    OssRequest::Truncate { object: stripe.object, size, lock, written, charge },
                )
            })
        };
        self.requests.on_objects("cut", requests).map(drop)
    }
}

/// Returns a charge with the place of an object that is not known to be written.
pub(crate) fn placed(charge: Charge, (file, layout): (Fid, &Layout), stripe: &StripeObject) -> Charge {
    let place = if stripe.written { None } else { layout.place_of(file, &stripe.object) };
    Charge { place, ..charge }
}

/// Returns the attributes in a reply.
///
/// # Errors
/// `EPROTO` if the OST answered with something else.
pub(crate) fn object_attr(reply: OssReply) -> StatusResult<ObjectAttr> {
    match reply {
        OssReply::Attr(attr) => Ok(attr),
        _ => Err(Status::EPROTO),
    }
}
