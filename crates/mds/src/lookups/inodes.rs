//! Inodes by FID: pages of all of them, and the paths to one.

use super::Lookups;
use crate::shards::holds_names;
use crate::shards::{is_former, is_shard};
use crate::suspend::Caller;
use crate::tables::INODES;
use crate::transactions::ShardLists;
use nacre_layout::user;
use nacre_ondisk::InodeRecord;
use nacre_types::perm::{self, Verdict};
use nacre_types::{AttrFlags, Caps, Fid, Status, StatusResult};
use nacre_wire::mds::{InodeKind, MdsAnswer, MdsReply};
use std::ops::{Bound, ControlFlow};

/// Maximum number of inodes that one request reads, to limit its time.
const SCANNED_MAX: usize = 4096;
/// Maximum number of directories between a file and the root; deeper ones have no path that a program could
/// use.
const DEPTH_MAX: usize = 2048;

impl Lookups {
    /// Returns a page of the files that have objects on an OST.
    pub fn files_on(
        &self,
        caller: &Caller<'_>,
        ost_index: u16,
        after: &Fid,
        count_max: u32,
    ) -> StatusResult<MdsAnswer> {
        let has_object = |fid: &Fid, record: &[u8]| has_object_on(fid, record, ost_index).then_some(*fid);
        self.page_of_inodes(caller, after, count_max, has_object)
    }

    /// Returns a page of the inodes that have names, here or on other MDTs.
    pub fn inodes(
        &self,
        caller: &Caller<'_>,
        after: &Fid,
        count_max: u32,
        kind: InodeKind,
    ) -> StatusResult<MdsAnswer> {
        let mut leads = Vec::new();
        let wanted = |fid: &Fid, record: &[u8]| {
            let record = InodeRecord::decode(*fid, record).ok()?;
            match kind {
                InodeKind::Directories if is_shard(&record) => Some(record.parent),
                InodeKind::Directories => {
                    Some(*fid).filter(|_| holds_names(&record) && !record.name.is_empty())
                }
                InodeKind::NamedOn(_) if is_shard(&record) || holds_names(&record) => None,
                InodeKind::NamedOn(_) if record.name.is_empty() => None,
                InodeKind::NamedOn(_) => {
                    leads.push((record.parent, record.name));
                    Some(*fid)
                }
            }
        };
        let mut answer = self.page_of_inodes(caller, after, count_max, wanted)?;
        if let (InodeKind::NamedOn(mdt), MdsReply::Files { fids, .. }) = (kind, &mut answer.reply) {
            let mut lists = ShardLists::new();
            let mut is_there = |parent: &Fid, name: &[u8]| {
                let homes = self.core.coordinator.homes_of(parent, name, &mut lists);
                // While names move, a name may be in either of two places: the next call finds it.
                homes.is_ok_and(|homes| homes.iter().all(|home| home.mdt_index() == mdt))
            };
            let mut leads = leads.iter();
            fids.retain(|_| leads.next().is_some_and(|(parent, name)| is_there(parent, name)));
        }
        Ok(answer)
    }

    fn page_of_inodes(
        &self,
        caller: &Caller<'_>,
        after: &Fid,
        count_max: u32,
        mut wanted: impl FnMut(&Fid, &[u8]) -> Option<Fid>,
    ) -> StatusResult<MdsAnswer> {
        match perm::capable(caller.cred(), Caps::SYS_ADMIN) {
            Verdict::Granted => {}
            Verdict::Denied => return Err(Status::EPERM),
            Verdict::NeedFull => return Err(Status::NEED_CREDENTIALS),
        }
        let count_max = (count_max as usize).clamp(1, SCANNED_MAX);
        let (mut fids, mut next, mut scanned) = (Vec::new(), None, 0);
        let key = after.to_key();
        self.leaves
            .store
            .scan(INODES, &[], Bound::Excluded(&key[..]), &mut |key, value| {
                let Ok(key) = <[u8; 16]>::try_from(key) else { return ControlFlow::Continue(()) };
                let fid = Fid::from_key(&key);
                fids.extend(wanted(&fid, value));
                scanned += 1;
                if fids.len() < count_max && scanned < SCANNED_MAX {
                    return ControlFlow::Continue(());
                }
                next = Some(fid);
                ControlFlow::Break(())
            })
            .map_err(|error| self.leaves.records.store_failed(&error))?;
        Ok(self.core.commits.answer(MdsReply::Files { fids, next }))
    }

    pub fn fid_to_link(&self, fid: &Fid, index: u32) -> StatusResult<MdsAnswer> {
        let (parent, name) = self.leaves.records.link_of(fid, index)?;
        Ok(self.core.commits.answer(MdsReply::Link { parent, name }))
    }

    /// Returns a path up to `root`, which the caller sees as the root. Directories may move meanwhile: the
    /// path has the names that were found.
    pub fn fid_to_path(&self, fid: &Fid, index: u32, root: Fid) -> StatusResult<MdsAnswer> {
        let mut names: Vec<Vec<u8>> = Vec::new();
        let (mut top, mut index) = (*fid, index);
        // Another MDT continues where a directory is stored there.
        while top != root && top != Fid::ROOT && (names.is_empty() || top.mdt_index() == self.leaves.index) {
            if names.len() == DEPTH_MAX {
                return Err(Status::ENAMETOOLONG);
            }
            let record = self.leaves.records.inode(&top)?;
            if is_former(&record) {
                // The directory that replaces it has its name.
                top = record.parent;
                if top.mdt_index() != self.leaves.index {
                    break;
                }
                continue;
            }
            let (parent, name) = self.leaves.records.link_of(&top, index)?;
            names.push(name);
            (top, index) = (parent, 0);
        }
        names.reverse();
        Ok(self.core.commits.answer(MdsReply::Path { top, path: names.join(&b'/') }))
    }
}

/// Returns true if the record of an inode is that of a file with an object on the OST; false if it cannot be
/// decoded.
fn has_object_on(fid: &Fid, record: &[u8], ost_index: u16) -> bool {
    let Ok(record) = InodeRecord::decode(*fid, record) else { return false };
    record.attr.is_regular()
        && record.attr.flags.contains(AttrFlags::HAS_OBJECTS)
        && user::decode_layout(&record.body)
            .is_ok_and(|layout| layout.objects().any(|object| object.ost_index == ost_index))
}
