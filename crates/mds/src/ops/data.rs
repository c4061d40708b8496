//! Size and times of data, told while a file stays open or after objects were cut.

use super::open_close::Word;
use crate::mds::Mds;
use crate::service::Caller;
use nacre_ondisk::InodeRecord;
use nacre_types::{AttrFlags, Fid, SizeSource, Status, StatusResult};
use nacre_wire::mds::{DataUpdate, MdsAnswer, MdsReply};

impl Mds {
    pub(crate) fn update_data(
        &self,
        caller: &Caller<'_>,
        fid: &Fid,
        update: &DataUpdate,
        exact: bool,
    ) -> StatusResult<MdsAnswer> {
        let _locked = self.locks.lock(&[*fid]);
        let record = self.inode(fid)?;
        if !record.attr.is_regular() {
            return Err(Status::EINVAL);
        }
        let session = self.opens.session(fid);
        let word = Word::of(session, &caller.client, update);
        let mut update = *update;
        if exact && session.is_none() && record.attr.size_source == SizeSource::Exact {
            // What was found out by asking the objects is older than a writer's last word.
            update.size_blocks = None;
        }
        let mut changed = InodeRecord::clone(&record);
        word.apply(&mut changed.attr, &update);
        if changed.attr.flags.contains(AttrFlags::HAS_OBJECTS) {
            // While somebody writes, the truth stays in the objects whatever is said about it.
            if session.is_none() && update.size_blocks.is_some() {
                changed.attr.size_source = SizeSource::Exact;
            }
            if word != Word::Shared && update.size_blocks.is_some() {
                self.opens.note_report(fid, update.order);
            }
        }
        if changed == *record {
            return Ok(self.answer(MdsReply::Attr(record.shown())));
        }
        let mut tx = self.begin();
        let record = tx.put_inode(changed);
        self.finish(caller, tx, MdsReply::Attr(record.shown()))
    }
}
