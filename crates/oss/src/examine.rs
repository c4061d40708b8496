//! What a target knows of its objects, for metadata servers that check layouts and look for orphan objects.

use crate::arguments::{check_objects, check_sequence};
use crate::locks::Target;
use crate::outcome::{Outcome, Refusal};
use crate::quota::Quota;
use crate::service::{DESTROY_MAX, attr};
use nacre_store::object::{ObjectError, objects_after};
use nacre_types::{Fid, Status};
use nacre_wire::oss::{KnownObject, OssReply};

/// Returns what is known of objects, without waiting for clients that write them.
pub(crate) fn examine(target: &Target, quota: &Quota, objects: &[Fid]) -> Outcome {
    check_objects(objects, target.index)?;
    let known = objects.iter().map(|object| {
        let after = attr(target.store.attr(*object)?);
        let owned = quota.accounts().map(|accounts| accounts.owned(*object)).transpose()?.flatten();
        let (owners, place) = owned.map_or((None, None), |owned| (Some(owned.owners), owned.place));
        Ok(KnownObject { object: *object, attr: after, owners, place })
    });
    Ok((OssReply::Known(known.collect::<Result<_, Refusal>>()?), 0))
}

/// Lists objects of a sequence that exist.
pub(crate) fn list(target: &Target, quota: &Quota, after: Fid, count: u32) -> Outcome {
    check_sequence(after.seq, target.index)?;
    let index = target.store.abilities().index.ok_or(Status::EOPNOTSUPP)?;
    let mut found =
        objects_after(index, after, (count as usize).min(DESTROY_MAX)).map_err(ObjectError::from)?;
    found.retain(|object| object.seq == after.seq);
    examine(target, quota, &found)
}
