//! Inodes of other MDTs.

use super::Coordinator;
use crate::shards::shards_of;
use nacre_layout::dir_layout::DirLayout;
use nacre_ondisk::InodeRecord;
use nacre_types::{Fid, Status, StatusResult};
use nacre_wire::peer::{Found, PeerReply, PeerRequest};
use std::collections::HashMap;
use std::collections::hash_map::Entry;

/// Lists of shards by directory; `None` for a directory that is not striped.
pub(crate) type ShardLists = HashMap<Fid, Option<DirLayout>>;

impl Coordinator {
    /// Returns an inode of any MDT.
    pub fn record_anywhere(&self, fid: &Fid) -> StatusResult<Option<InodeRecord>> {
        match fid.mdt_index() == self.leaves.index {
            true => Ok(self.leaves.records.find_inode(fid)?.map(|record| InodeRecord::clone(&record))),
            false => self.inode_elsewhere(fid),
        }
    }

    /// Reads an inode of another MDT; returns `None` if it does not exist.
    ///
    /// # Errors
    /// Those of that MDT; `EPROTO`.
    pub fn inode_elsewhere(&self, fid: &Fid) -> StatusResult<Option<InodeRecord>> {
        match self.leaves.transactions.ask(fid.mdt_index(), PeerRequest::Record { fid: *fid })? {
            PeerReply::Record(Found { record, .. }) => {
                let record = record.map(|bytes| InodeRecord::decode(*fid, &bytes.0)).transpose();
                record.map_err(|_| Status::EPROTO)
            }
            _ => Err(Status::EPROTO),
        }
    }

    /// Returns the parent of a directory on any MDT.
    ///
    /// # Errors
    /// As [`crate::records::Records::directory`]; those of another MDT.
    pub fn parent_of(&self, fid: &Fid) -> StatusResult<Fid> {
        if fid.mdt_index() == self.leaves.index {
            return Ok(self.leaves.records.directory(fid)?.parent);
        }
        self.inode_elsewhere(fid)?.map(|record| record.parent).ok_or(Status::ENOENT)
    }

    /// Returns the directory or shards where a name may be stored: while names move, one of two shards.
    pub fn homes_of(&self, parent: &Fid, name: &[u8], lists: &mut ShardLists) -> StatusResult<Vec<Fid>> {
        let list = match lists.entry(*parent) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(unknown) => {
                let directory = self.record_anywhere(parent)?.ok_or(Status::EAGAIN)?;
                unknown.insert(shards_of(&directory)?)
            }
        };
        Ok(match list {
            None => vec![*parent],
            Some(list) => {
                let places = list.old_shard_of(name).into_iter().chain(list.shard_of(name));
                places.map(|place| list.shards[place]).collect()
            }
        })
    }
}
