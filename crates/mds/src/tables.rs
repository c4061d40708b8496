//! Tables of the metadata store with their keys. `docs/formats/mdt.md` has the bytes.
//!
//! A key begins with the FID that it belongs to, big-endian, so that records of an inode are adjacent and a
//! store can keep them in one shard.

use nacre_store::{MetaError, MetaStore, Table};
use nacre_types::fid::FID_BYTES;
use nacre_types::limits::NAME_MAX;
use nacre_types::{ClientUuid, Fid};
use nacre_wire::peer::TransactionId;
use std::ops::{Bound, ControlFlow};

/// Name of the attribute with a directory's default ACL.
pub(crate) const ACL_DEFAULT: &[u8] = b"system.posix_acl_default";
/// Name of the attribute with file capabilities.
pub(crate) const CAPABILITY: &[u8] = b"security.capability";

/// The MDT record, under [`META_KEY`], earlier runs, under [`RUNS_KEY`], the head of the changelog, under
/// [`CHANGES_HEAD_KEY`], grace times, under
/// [`QUOTA_GRACES_KEY`], and the position of the check in use, under [`SCRUB_KEY`].
pub const META: Table = Table(1);
/// FID -> inode record.
pub const INODES: Table = Table(2);
/// Directory FID, name hash (u64), name -> dirent record.
pub const DIRENTS: Table = Table(3);
/// FID, attribute name -> xattr record.
pub const XATTRS: Table = Table(4);
/// FID, directory FID, name -> link record: names beyond the first.
pub const LINKS: Table = Table(5);
/// FID -> why an inode without names is kept, see [`OrphanKind`].
pub const ORPHANS: Table = Table(6);
/// OST index (u16), object FID -> only a version: objects to be destroyed.
pub const DESTROYS: Table = Table(7);
/// Client UUID -> client record.
pub const CLIENTS: Table = Table(8);
/// Client UUID, tag (u16) -> reply record.
pub const REPLIES: Table = Table(9);
/// OST index (u16) -> OST mark record.
pub const OST_MARKS: Table = Table(10);

/// Object FID -> head of its data; followed by a number (u32), bytes: data of files on this MDT
/// ([`nacre_store::object::RecordStore`]).
pub const DATA: Table = Table(11);

/// Transaction -> inodes that it locks here until its coordinator decides.
pub const PREPARED: Table = Table(12);
/// Transaction -> all of it: committed here, and not durable on all participants.
pub const TRANSACTIONS: Table = Table(13);

/// Coordinator (u16) -> the first of its transactions that may not be durable on all participants.
pub const FINISHED: Table = Table(14);

/// FID of a shard that names have still to move out of, or of a directory whose shards change -> only a
/// version.
pub const MOVES: Table = Table(15);

/// Index ([`change_key`]) -> changelog record.
pub const CHANGES: Table = Table(16);
/// Number of a changelog user (u32) -> the user.
pub const CHANGE_USERS: Table = Table(17);

/// Pool, kind and id ([`nacre_ondisk::quota::limit_key`]) -> limits of a quota; on MDT0000.
pub const QUOTA_LIMITS: Table = Table(18);
/// Resource and id ([`nacre_ondisk::quota::use_key`]) -> use of the last run.
pub const QUOTA_USES: Table = Table(19);
/// OST index (u16), object FID -> owner record: objects whose owners have changed.
pub const OWNER_CHANGES: Table = Table(20);

/// Client UUID -> transno (u64, little-endian) of its newest lost change that has been replayed.
pub const REPLAYED: Table = Table(21);

/// Key of earlier runs in [`META`].
pub const RUNS_KEY: &[u8] = b"runs";
/// Key of the MDT record in [`META`].
pub const META_KEY: &[u8] = b"mdt";
/// Key of the head of the changelog in [`META`].
pub const CHANGES_HEAD_KEY: &[u8] = b"changelog";
/// Key of the position of the check in use in [`META`].
pub const SCRUB_KEY: &[u8] = b"scrub";
/// Key of the grace times of quotas in [`META`].
pub const QUOTA_GRACES_KEY: &[u8] = b"quota";
/// Value of records whose key has all information.
pub const PRESENT: [u8; 1] = [1];

/// Why an inode without names exists.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum OrphanKind {
    /// Its last name was removed while it was open; it may not get a name again.
    Unlinked = 0,
    /// It was created without a name (`O_TMPFILE`) and may be linked.
    Unnamed = 1,
}

impl OrphanKind {
    /// Encodes the record.
    pub fn encode(self) -> [u8; 2] {
        [1, self as u8]
    }

    /// Decodes a record; `None` if it is damaged.
    pub fn decode(bytes: &[u8]) -> Option<OrphanKind> {
        match bytes {
            [1, 0] => Some(OrphanKind::Unlinked),
            [1, 1] => Some(OrphanKind::Unnamed),
            _ => None,
        }
    }
}

/// Bytes of the longest key, that of a link.
const KEY_MAX: usize = 2 * FID_BYTES + NAME_MAX + 1;
/// Bytes of the longest key that is built on the stack: that of a name of 72 bytes. Longer ones are rare, and
/// zeroing memory for them costs time.
const SHORT_LEN: usize = 96;

/// A key, built without an allocation unless it is long.
pub struct Key {
    short: [u8; SHORT_LEN],
    len: usize,
    /// The whole key, if it is longer.
    long: Vec<u8>,
}

impl Key {
    fn new() -> Key {
        Key { short: [0; SHORT_LEN], len: 0, long: Vec::new() }
    }

    /// Appends bytes; excess bytes are cut, but callers check names before.
    fn push(mut self, part: &[u8]) -> Key {
        let part = &part[..part.len().min(KEY_MAX - self.len)];
        let end = self.len + part.len();
        match self.short.get_mut(self.len..end) {
            Some(room) if self.long.is_empty() => room.copy_from_slice(part),
            _ => {
                if self.long.is_empty() {
                    self.long.extend_from_slice(&self.short[..self.len]);
                }
                self.long.extend_from_slice(part);
            }
        }
        self.len = end;
        self
    }

    /// Returns the key.
    pub fn as_slice(&self) -> &[u8] {
        if self.long.is_empty() { &self.short[..self.len] } else { &self.long }
    }
}

/// Builds the key of a name.
pub fn dirent_key(directory: &Fid, hash: u64, name: &[u8]) -> Key {
    Key::new().push(&directory.to_key()).push(&hash.to_be_bytes()).push(name)
}

/// Splits a dirent key: directory, hash, name.
pub fn split_dirent_key(key: &[u8]) -> Option<(Fid, u64, &[u8])> {
    let (fid, rest) = key.split_first_chunk::<FID_BYTES>()?;
    let (hash, name) = rest.split_first_chunk::<8>()?;
    Some((Fid::from_key(fid), u64::from_be_bytes(*hash), name))
}

/// Builds the key of an extended attribute.
pub fn xattr_key(fid: &Fid, name: &[u8]) -> Key {
    Key::new().push(&fid.to_key()).push(name)
}

/// Splits an xattr key: inode, attribute name.
pub fn split_xattr_key(key: &[u8]) -> Option<(Fid, &[u8])> {
    let (fid, name) = key.split_first_chunk::<FID_BYTES>()?;
    Some((Fid::from_key(fid), name))
}

/// Builds the key of a name beyond an inode's first.
pub fn link_key(fid: &Fid, parent: &Fid, name: &[u8]) -> Key {
    Key::new().push(&fid.to_key()).push(&parent.to_key()).push(name)
}

/// Splits a link key: inode, directory, name.
pub fn split_link_key(key: &[u8]) -> Option<(Fid, Fid, &[u8])> {
    let (fid, rest) = key.split_first_chunk::<FID_BYTES>()?;
    let (parent, name) = rest.split_first_chunk::<FID_BYTES>()?;
    Some((Fid::from_key(fid), Fid::from_key(parent), name))
}

/// Builds the key of an object to be destroyed.
pub fn destroy_key(ost_index: u16, object: &Fid) -> Key {
    Key::new().push(&ost_index.to_be_bytes()).push(&object.to_key())
}

/// Splits a destroy key: OST index, object.
pub fn split_destroy_key(key: &[u8]) -> Option<(u16, Fid)> {
    let (index, rest) = key.split_first_chunk::<2>()?;
    let (fid, []) = rest.split_first_chunk::<FID_BYTES>()? else { return None };
    Some((u16::from_be_bytes(*index), Fid::from_key(fid)))
}

/// Builds the key of a distributed transaction.
pub fn op_key(op: &TransactionId) -> Key {
    Key::new().push(&op.mdt.to_be_bytes()).push(&op.boot.to_be_bytes()).push(&op.number.to_be_bytes())
}

/// Decodes the key of a distributed transaction.
pub fn decode_op_key(key: &[u8]) -> Option<TransactionId> {
    let (mdt, rest) = key.split_first_chunk::<2>()?;
    let (boot, rest) = rest.split_first_chunk::<8>()?;
    let (number, []) = rest.split_first_chunk::<8>()? else { return None };
    Some(TransactionId {
        mdt: u16::from_be_bytes(*mdt),
        boot: u64::from_be_bytes(*boot),
        number: u64::from_be_bytes(*number),
    })
}

/// Builds the key of a changelog record. It has the form of a FID, of which the store keeps a run together: records
/// are written at the ends of a few maps, which stay in the CPU's caches.
pub fn change_key(index: u64) -> [u8; FID_BYTES] {
    Fid::new(index >> 32, index as u32, 0).to_key()
}

/// Decodes the key of a changelog record.
pub fn change_index(key: &[u8]) -> Option<u64> {
    let fid = Fid::from_key(key.first_chunk::<FID_BYTES>()?);
    let index = fid.seq << 32 | u64::from(fid.oid);
    (change_key(index) == key).then_some(index)
}

/// Builds the key of a stored reply.
pub fn reply_key(client: &ClientUuid, tag: u16) -> Key {
    Key::new().push(&client.0).push(&tag.to_be_bytes())
}

/// Returns all keys of a table whose keys have 16 bytes.
///
/// # Errors
/// Those of the store.
pub(crate) fn keys_of(store: &MetaStore, table: Table) -> Result<Vec<[u8; 16]>, MetaError> {
    let mut keys = Vec::new();
    store.scan(table, &[], Bound::Unbounded, &mut |key, _| {
        keys.extend(<[u8; 16]>::try_from(key).ok());
        ControlFlow::Continue(())
    })?;
    Ok(keys)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_come_apart_as_they_were_put_together() {
        let (a, b) = (Fid::new(7, 8, 0), Fid::ROOT);
        let long = [b'x'; NAME_MAX];
        assert_eq!(split_dirent_key(dirent_key(&a, 9, &long).as_slice()), Some((a, 9, &long[..])));
        assert_eq!(split_link_key(link_key(&a, &b, &long).as_slice()), Some((a, b, &long[..])));
        assert_eq!(split_xattr_key(xattr_key(&a, b"user.x").as_slice()), Some((a, &b"user.x"[..])));
        assert_eq!(split_destroy_key(destroy_key(3, &a).as_slice()), Some((3, a)));
        let op = TransactionId { mdt: 3, boot: 4, number: 5 };
        assert_eq!(decode_op_key(op_key(&op).as_slice()), Some(op));
        let index = 0x1_0000_0002;
        assert_eq!(change_index(&change_key(index)), Some(index));
        assert!(change_key(index - 3) < change_key(index), "in the order of indexes");
        assert_eq!((change_index(&[0; 8]), change_index(&[1; 16])), (None, None));
        assert_eq!(split_destroy_key(b"short"), None);
        assert_eq!(split_link_key(&[0; 20]), None);
    }
}
