//! What a target knows of its objects, for metadata servers that check layouts and look for orphan objects.

use nacre_quota::ObjectAccounts;
use nacre_store::object::{ObjectStore, objects_after};
use nacre_types::{Fid, Status, StatusResult};
use nacre_wire::oss::{KnownObject, ObjectAttr};

/// Returns what is known of objects, without waiting for clients that write them.
pub(crate) fn examine(
    store: &dyn ObjectStore,
    accounts: Option<&ObjectAccounts>,
    objects: &[Fid],
) -> StatusResult<Vec<KnownObject>> {
    let known = |object: &Fid| {
        let found = store.attr(*object).map_err(|error| error.status())?;
        let attr = ObjectAttr { size: found.size, blocks: found.blocks, mtime: found.mtime };
        let owned = accounts.map(|accounts| accounts.owned(*object)).transpose()?.flatten();
        let (owners, place) = owned.map_or((None, None), |owned| (Some(owned.owners), owned.place));
        Ok(KnownObject { object: *object, attr, owners, place })
    };
    objects.iter().map(known).collect()
}

/// Returns up to `count` objects of a sequence after one.
pub(crate) fn list(store: &dyn ObjectStore, after: Fid, count: usize) -> StatusResult<Vec<Fid>> {
    let index = store.abilities().index.ok_or(Status::EOPNOTSUPP)?;
    let mut found = objects_after(index, after, count).map_err(|error| error.status())?;
    found.retain(|object| object.seq == after.seq);
    Ok(found)
}
