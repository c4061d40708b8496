//! Hard links, and finding the names of an inode.

use crate::mds::Mds;
use crate::plan::{self, Linking};
use crate::service::Caller;
use crate::shards::is_former;
use crate::tables::{ORPHANS, OrphanKind};
use nacre_types::name::check_name;
use nacre_types::{AttrFlags, Fid, Status, StatusResult};
use nacre_wire::mds::{MdsAnswer, MdsReply};

/// Directories between a file and the root at most; deeper ones have no path that a program could use.
const DEPTH_MAX: usize = 2048;

impl Mds {
    pub(crate) fn link(
        &self,
        caller: &Caller<'_>,
        fid: &Fid,
        parent: &Fid,
        name: &[u8],
    ) -> StatusResult<MdsAnswer> {
        check_name(name)?;
        let names = [(*parent, name)];
        let ground = self.ground_apart(caller, &names, &[*fid])?;
        let (record, home) = (ground.inode(fid)?, ground.home(0)?);
        let linking = Linking { record: &record, home: &home, name, is_taken: ground.lead(0).is_some() };
        let now = self.now();
        let plan = plan::link(caller.cred(), &linking, now)?;
        if record.attr.flags.contains(AttrFlags::ORPHAN) {
            // Its own MDT knows whether it never had a name.
            self.check_local(fid)?;
            if self.orphan_kind(fid)? != Some(OrphanKind::Unnamed) {
                return Err(Status::ENOENT);
            }
        }
        if self.space.is_full() {
            return Err(Status::ENOSPC);
        }
        self.perform(caller, ground, plan, &[&record, &home], now)
    }

    pub(super) fn orphan_kind(&self, fid: &Fid) -> StatusResult<Option<OrphanKind>> {
        self.store
            .get(ORPHANS, &fid.to_key(), |value| value.and_then(OrphanKind::decode))
            .map_err(|error| self.store_failed(&error))
    }

    pub(crate) fn fid_to_link(&self, fid: &Fid, index: u32) -> StatusResult<MdsAnswer> {
        let (parent, name) = self.link_of(fid, index)?;
        Ok(self.answer(MdsReply::Link { parent, name }))
    }

    pub(crate) fn link_of(&self, fid: &Fid, index: u32) -> StatusResult<(Fid, Vec<u8>)> {
        let record = self.inode(fid)?;
        let link = match index {
            // The root and orphans have none.
            0 if record.name.is_empty() => None,
            0 => Some((record.parent, record.name.clone())),
            _ => self.extra_link(fid, index - 1)?,
        };
        link.ok_or(Status::ENODATA)
    }

    /// A path up to the root that the caller sees. Directories may be moved meanwhile: it tells what was found on the way.
    pub(crate) fn fid_to_path(&self, caller: &Caller<'_>, fid: &Fid, index: u32) -> StatusResult<MdsAnswer> {
        let root = self.top_of(caller.standing)?;
        let mut names: Vec<Vec<u8>> = Vec::new();
        let (mut top, mut index) = (*fid, index);
        // Another MDT goes on where a directory lies there.
        while top != root && top != Fid::ROOT && (names.is_empty() || top.mdt_index() == self.index) {
            if names.len() == DEPTH_MAX {
                return Err(Status::ENAMETOOLONG);
            }
            let record = self.inode(&top)?;
            if is_former(&record) {
                // The one in its place has its name.
                top = record.parent;
                if top.mdt_index() != self.index {
                    break;
                }
                continue;
            }
            let (parent, name) = self.link_of(&top, index)?;
            names.push(name);
            (top, index) = (parent, 0);
        }
        names.reverse();
        Ok(self.answer(MdsReply::Path { top, path: names.join(&b'/') }))
    }
}
