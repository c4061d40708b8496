//! Changes of attributes (`setattr`).

use super::Attributes;
use crate::opens::WriteSession;
use crate::plan::{self, Amended, may_be_of_a_write};
use crate::suspend::Caller;
use crate::tx::now;
use nacre_types::{Fid, SetAttr, SetAttrValid, StatusResult};
use nacre_wire::mds::{MdsAnswer, MdsReply};

impl Attributes {
    pub fn set_attr(&self, caller: &Caller<'_>, fid: &Fid, set: &SetAttr) -> StatusResult<MdsAnswer> {
        let held = self.core.performer.lock_alike(caller, fid)?;
        let record = self.core.layouts.settled(&self.leaves.records.inode(fid)?)?;
        let grows = set.valid.contains(SetAttrValid::SIZE) && set.size > 0 && record.attr.is_regular();
        let is_writer = |session: WriteSession| session.shared || session.client == caller.client;
        let amended = Amended {
            record: &record,
            shards: &held.shards_of(&record)?,
            end: if grows { self.core.layouts.end_of_file(&record)? } else { 0 },
            is_writer: may_be_of_a_write(set) && self.leaves.opens.session(fid).is_some_and(is_writer),
        };
        let Some(amendment) = plan::set_attr(caller.cred(), &amended, set, now())? else {
            return Ok(self.core.commits.answer(MdsReply::Attr(record.shown())));
        };
        let answer = self.core.performer.amend(caller, held, self.leaves.records.begin(), amendment)?;
        if set.valid.contains(SetAttrValid::SIZE) {
            self.leaves.opens.break_leases(fid);
            self.leaves.opens.note_unsure(fid);
        }
        Ok(answer)
    }
}
