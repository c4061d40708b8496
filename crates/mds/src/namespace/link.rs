//! Hard links, and lookup of an inode's names.

use super::NameSpace;
use crate::plan;
use crate::plan::Linking;
use crate::suspend::Caller;
use crate::tables::OrphanKind;
use crate::tx::now;
use nacre_types::name::check_name;
use nacre_types::{AttrFlags, Fid, Status, StatusResult};
use nacre_wire::mds::MdsAnswer;

impl NameSpace {
    pub fn link(&self, caller: &Caller<'_>, fid: &Fid, parent: &Fid, name: &[u8]) -> StatusResult<MdsAnswer> {
        check_name(name)?;
        let names = [(*parent, name)];
        let working_set = self.core.performer.lock_named(caller, &names, &[*fid])?;
        let (record, home) = (working_set.inode(fid)?, working_set.home(0)?);
        let linking =
            Linking { record: &record, home: &home, name, is_taken: working_set.entry(0).is_some() };
        let now = now();
        let plan = plan::link(caller.cred(), &linking, now)?;
        if record.attr.flags.contains(AttrFlags::ORPHAN) {
            // Its own MDT knows whether it never had a name.
            self.leaves.records.check_local(fid)?;
            if self.leaves.records.orphan_kind(fid)? != Some(OrphanKind::Unnamed) {
                return Err(Status::ENOENT);
            }
        }
        if self.leaves.space.is_full() {
            return Err(Status::ENOSPC);
        }
        self.core.performer.perform(caller, working_set, plan, &[&record, &home], now)
    }
}
