//! What a program says of data that it will or will not read.

use crate::client::Client;
use nacre_layout::object_ranges;
use nacre_types::{Fid, Status, StatusResult};
use nacre_wire::oss::{Advice, OssRequest};

impl Client {
    /// Tells the OSTs of a file what will become of `[start, end)`. What lies behind the end of the file is left out.
    ///
    /// # Errors
    /// `EINVAL` for an empty range and for what is no regular file; what an OST answers.
    pub fn advise(&self, fid: Fid, advice: Advice, start: u64, end: u64) -> StatusResult<()> {
        let attr = self.getattr(fid)?;
        if start >= end || !attr.is_regular() {
            return Err(Status::EINVAL);
        }
        let pin = self.pin(fid);
        let used = self.use_layout(&pin.file)?;
        let Some(layout) = used.layout() else { return Ok(()) };
        // What is on an MDT is small, and in its memory as its store decides.
        let ranges =
            object_ranges(layout, start, end.min(attr.size)).filter(|range| !range.stripe.is_on_mdt());
        let requests = ranges.map(|range| {
            let (object, offset, len) = (range.stripe.object, range.start, range.end - range.start);
            (range.stripe.ost_index, OssRequest::Advise { object, offset, len, advice })
        });
        self.on_objects(requests).map(drop)
    }
}
