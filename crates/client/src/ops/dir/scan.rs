//! Directories read by programs that look at every entry.

use crate::caller::Caller;
use crate::client::Client;
use nacre_types::ioctl::ScanWanted;
use nacre_types::{Attr, Fid, SizeSource, Status, StatusResult};
use nacre_wire::mds::{DirEntry, DirPage, MdsReply, MdsRequest};

impl Client {
    /// The entries of a directory behind position `cookie` with their attributes, and with what is `wanted` beside them: at
    /// most `max_bytes` of them. Nothing of it is kept.
    ///
    /// # Errors
    /// `EACCES` without permission to search; `E2BIG` if names of equal hash do not fit; what the MDT answers; `EINTR`.
    pub fn scan(
        &self,
        caller: &Caller,
        fid: Fid,
        cookie: u64,
        max_bytes: usize,
        wanted: ScanWanted,
    ) -> StatusResult<DirPage> {
        let layouts = wanted.contains(ScanWanted::LAYOUTS);
        let request = MdsRequest::Scan { fid, cookie, max_bytes: max_bytes as u32, layouts };
        let answer = self.call(caller, fid, &request)?;
        let MdsReply::Directory(mut page) = answer.reply else { return Err(Status::EPROTO) };
        if wanted.contains(ScanWanted::SIZES) {
            page = self.with_sizes(page, answer.lease);
        }
        if page.bytes.len() > max_bytes { Err(Status::E2BIG) } else { Ok(page) }
    }

    /// Attributes as the MDT has them: size, space and times of data may be out of date.
    ///
    /// # Errors
    /// What the MDT answers.
    pub fn mdt_attr(&self, fid: Fid) -> StatusResult<Attr> {
        self.call_system(fid, &MdsRequest::GetAttr { fid })?.attr()
    }

    /// Puts in what this client knows better than the MDT.
    fn with_sizes(&self, page: DirPage, lease: u64) -> DirPage {
        let unsure = |attr: &Attr| {
            attr.is_regular()
                && (attr.size_source == SizeSource::Objects
                    || self.nodes.file(attr.fid.inode_number()).is_some())
        };
        if !page.entries().filter_map(|entry| entry.attr).any(|attr| unsure(&attr)) {
            return page;
        }
        let mut changed = DirPage { bytes: Vec::with_capacity(page.bytes.len()), ..page };
        for entry in page.entries() {
            let attr = entry.attr.map(|attr| self.sure_attr(attr, lease).unwrap_or(attr));
            // The same length as before, so it fits.
            changed.push(&DirEntry { attr, ..entry }, u32::MAX);
        }
        changed
    }
}
