//! Directories.

use nacre_client::Found;
use nacre_types::{Status, StatusResult};

use super::{Front, caller, gone};
use crate::reply::{DirEntry, Opened, Reply};
use crate::request::{Operation, Request};

impl Front {
    pub(super) fn dir_operation(&self, request: &Request<'_>, reply: &mut Reply<'_>) -> StatusResult<()> {
        match request.op {
            Operation::OpenDir { .. } => {
                let fid = self.fid(request.node_id)?;
                let fh = self.client.listings.opendir(&caller(request), fid).map_err(gone)?;
                reply.opened(&Opened { fh, ..Opened::default() });
            }
            Operation::ReadDir { fh, offset, size } => {
                self.client.listings.check_listing(&caller(request), fh)?;
                self.readdir(fh, offset, size, false, reply)?;
            }
            Operation::ReadDirPlus { fh, offset, size } => {
                self.client.listings.check_listing(&caller(request), fh)?;
                self.readdir(fh, offset, size, true, reply)?;
            }
            Operation::ReleaseDir { fh, .. } => {
                self.client.listings.releasedir(fh);
                reply.ok();
            }
            Operation::FsyncDir { fh, .. } => {
                self.client.listings.fsyncdir(fh)?;
                reply.ok();
            }
            _ => return Err(Status::ENOSYS),
        }
        Ok(())
    }

    fn readdir(
        &self,
        fh: u64,
        offset: u64,
        size: u32,
        plus: bool,
        reply: &mut Reply<'_>,
    ) -> StatusResult<()> {
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
