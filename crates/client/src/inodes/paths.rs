//! Paths and names of inodes that are known by their FID.

use crate::caller::Caller;
use crate::inodes::Inodes;
use nacre_types::{FailureResult, Fid, Status, StatusResult};
use nacre_wire::mds::{MdsReply, MdsRequest};

/// Parts of a path on different MDTs, at most.
const MDTS_ON_A_PATH_MAX: usize = 2048;

impl Inodes {
    /// Returns one of the names of an inode and the directory that it is in: link number `link` from 0.
    ///
    /// # Errors
    /// `EPERM` without the right to read and search everything, as it may be in a private directory;
    /// `ENODATA` past the last link; `ENOENT` if the inode is removed.
    pub fn parent_of(&self, caller: &Caller, fid: Fid, link: u32) -> StatusResult<(Fid, Vec<u8>)> {
        self.requests.faults.edge("parent of", || {
            if !caller.may_search_all() {
                return Err(Status::EPERM.into());
            }
            match self.requests.call(caller, fid, &MdsRequest::FidToLink { fid, index: link })?.reply {
                MdsReply::Link { parent, name } => Ok((parent, name)),
                _ => Err(Status::EPROTO.into()),
            }
        })
    }

    /// Returns one of the paths of an inode, relative to the root of the file system: the one through link
    /// number `link`.
    ///
    /// # Errors
    /// `EPERM` without the right to read and search everything, as paths may lead through private
    /// directories; `ENODATA` past the last link; `ENOENT` if the inode is removed; `ENAMETOOLONG`.
    pub fn fid_to_path(&self, caller: &Caller, fid: Fid, link: u32) -> StatusResult<Vec<u8>> {
        self.requests.faults.edge("fid to path", || {
            if !caller.may_search_all() {
                return Err(Status::EPERM.into());
            }
            self.path_of(Some(caller), fid, link)
        })
    }

    /// Does the same; without a caller for the client itself.
    pub(crate) fn path_of(&self, caller: Option<&Caller>, fid: Fid, link: u32) -> FailureResult<Vec<u8>> {
        let (mut fid, mut index, mut path) = (fid, link, Vec::new());
        for _ in 0..MDTS_ON_A_PATH_MAX {
            if fid == self.root.fid() {
                return Ok(path);
            }
            let request = MdsRequest::FidToPath { fid, index };
            let answer = match caller {
                Some(caller) => self.requests.call(caller, fid, &request)?,
                None => self.requests.call_system(fid, &request)?,
            };
            let MdsReply::Path { top, path: mut part } = answer.reply else {
                return Err(Status::EPROTO.into());
            };
            // A directory that a migration replaces by another one has no name of its own.
            if !part.is_empty() && !path.is_empty() {
                part.push(b'/');
            }
            part.append(&mut path);
            (fid, index, path) = (top, 0, part);
        }
        Err(Status::ENAMETOOLONG.into())
    }
}
