//! Directories.

use nacre_client::Found;
use nacre_types::StatusResult;

use super::{Front, caller, done, gone};
use crate::reply::{DirEntry, Opened, Reply};
use crate::request::Request;

impl Front {
    pub(super) fn opendir(&self, request: &Request<'_>, reply: &mut Reply<'_>) -> StatusResult<()> {
        let fid = self.fid(request.node_id)?;
        let fh = self.client.listings.opendir(&caller(request), fid).map_err(gone)?;
        reply.opened(&Opened { fh, ..Opened::default() });
        Ok(())
    }

    pub(super) fn releasedir(&self, fh: u64, reply: &mut Reply<'_>) -> StatusResult<()> {
        self.client.listings.releasedir(fh);
        done(Ok(()), reply)
    }

    pub(super) fn readdir(
        &self,
        request: &Request<'_>,
        fh: u64,
        offset: u64,
        size: u32,
        plus: bool,
        reply: &mut Reply<'_>,
    ) -> StatusResult<()> {
        self.client.listings.check_listing(&caller(request), fh)?;
        let mut buffer = reply.directory(size);
        let listed = self.client.listings.readdir(fh, offset, size, plus, &mut |listed| {
            let entry = DirEntry {
                ino: listed.node,
                next_offset: listed.next,
                kind: listed.kind as u32,
                name: listed.name,
            };
            let full = match (&listed.attr, plus) {
                (Some(attr), true) => {
                    let (node, attr, public, keep) = (listed.node, *attr, listed.public, listed.keep);
                    buffer.push_plus(&self.entry(&Found { node, attr, public, keep }), &entry)
                }
                (None, true) => buffer.push_name_only(&entry),
                (_, false) => buffer.push(&entry),
            };
            !full
        });
        // "No such file" would be taken for the end of an empty directory.
        listed.map_err(gone)
    }
}
