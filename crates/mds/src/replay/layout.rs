//! Objects of layouts that were lost: their ids are above the mark of the store, and their data is on the OSTs.

use crate::capabilities::Capabilities;
use crate::core::Core;
use crate::layouts::object_on_mdt;
use crate::leaves::Leaves;
use crate::locks::Want;
use crate::suspend::Caller;
use nacre_layout::{Layout, StripeObject, user};
use nacre_ondisk::InodeRecord;
use nacre_types::{AttrFlags, Fid, SizeSource, Status, StatusResult};
use nacre_wire::mds::{FileCapabilities, MdsAnswer, MdsReply};

/// A layout with objects that a client got for a write.
pub(super) struct LostLayout<'a> {
    pub fid: &'a Fid,
    pub layout: &'a Layout,
    /// Proof that the client got these objects.
    pub proof: Option<&'a FileCapabilities>,
}

/// Gives a file the objects that it had.
///
/// # Errors
/// `ESTALE` if the file has other objects meanwhile, or an object may belong to another file; `EACCES` without the
/// proof that the client got them.
pub(super) fn restore(
    leaves: &Leaves,
    core: &Core,
    capabilities: &Capabilities,
    caller: &Caller<'_>,
    lost: &LostLayout<'_>,
    reply: MdsReply,
) -> StatusResult<MdsAnswer> {
    let LostLayout { fid, layout, proof } = lost;
    let _locked = leaves.locks.lock(&[Want::Whole(**fid)])?;
    let record = leaves.records.inode(fid)?;
    if !record.attr.is_regular() {
        return Err(Status::ESTALE);
    }
    let known = core.layouts.layout_of(&record)?;
    let known: Vec<&StripeObject> = known.iter().flat_map(Layout::objects).collect();
    let is_known = |object: &StripeObject| {
        known.iter().any(|known| (known.ost_index, known.object) == (object.ost_index, object.object))
    };
    let kept = layout.objects().filter(|object| is_known(object)).count();
    if kept != known.len() {
        return Err(Status::ESTALE);
    }
    let new: Vec<(u16, Fid)> = layout
        .objects()
        .filter(|object| !object.is_on_mdt() && !is_known(object))
        .map(|object| (object.ost_index, object.object))
        .collect();
    let own = object_on_mdt(&record);
    if layout.objects().any(|object| object.is_on_mdt() && object.object != own) {
        return Err(Status::ESTALE);
    }
    capabilities.check_proof(caller.export, *proof, new.iter().map(|(_, object)| *object))?;
    let marks = leaves.osts.claim(&new)?;
    let mut changed = InodeRecord::clone(&record);
    changed.body = user::encode_layout(fid, layout);
    changed.attr.flags |= AttrFlags::HAS_LAYOUT | AttrFlags::HAS_OBJECTS;
    changed.attr.size_source = SizeSource::Objects;
    let mut tx = leaves.records.begin();
    marks.put(tx.batch());
    tx.put_inode(changed);
    core.commits.finish(caller, tx, reply)
}
