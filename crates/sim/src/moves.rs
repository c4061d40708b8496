//! Moves of data to new objects, as `lfs migrate` makes them, of names to other shards, and of inodes to
//! other MDTs.

use crate::mount::root;
use nacre_client::{Client, Created, NewFile, OpenFlags, SwapConditions, VersionFlush, XattrFlags};
use nacre_layout::user::encode_spec;
use nacre_layout::{DirDefault, LayoutSpec};
use nacre_types::{Fid, SetAttr, SetAttrValid, Status, StatusResult};

/// Smallest stripe size in bytes.
const STRIPE_BYTES: u32 = 64 << 10;
/// Bytes of the longest copy by one request.
const PIECE_BYTES: u64 = 1 << 20;

/// Copies the data of an open file into a volatile file with this number of stripes, and exchanges the objects of the
/// two unless the data has changed meanwhile.
///
/// # Errors
/// `EAGAIN` if it has; those of all steps.
pub(crate) fn relocate(client: &Client, fid: Fid, handle: u64, stripes: u8) -> StatusResult<()> {
    let version = client.data.data_version(handle, VersionFlush::Dirty)?;
    let size = client.data.size_of(handle)?;
    let name = format!(".\x0c\x13\x14\x12:VOLATILE:{:04X}:{handle:X}:beside={fid}", fid.mdt_index());
    let what = Created { new: NewFile::Node { rdev: 0 }, mode: 0o100_600, umask: 0 };
    let flags = (OpenFlags::READ | OpenFlags::WRITE, false);
    let (found, opened) =
        client.opens.create_open(&root(), Fid::ROOT, name.as_bytes(), &what, flags, true)?;
    let target = found.attr.fid;
    client.inodes.forget(found.node, 1);
    let moved = (|| {
        let spec = LayoutSpec {
            stripe_count: Some(stripes.into()),
            stripe_size: Some(STRIPE_BYTES),
            ..LayoutSpec::default()
        };
        let layout = encode_spec(&target, &spec);
        client.names.setxattr(&root(), target, b"lustre.lov", &layout, XattrFlags::empty())?;
        let mut at = 0;
        while at < size {
            match client.data.copy_to(&root(), handle, target, (at, PIECE_BYTES.min(size - at)))? {
                0 => return Err(Status::EAGAIN),
                copied => at += copied,
            }
        }
        let set = SetAttr { valid: SetAttrValid::SIZE, size, ..SetAttr::default() };
        client.names.setattr(&root(), target, set)?;
        client.data.fsync(opened.handle)?;
        let conditions = SwapConditions { versions: (Some(version), None), keep_times: true, lease: None };
        client.data.swap_layouts(&root(), fid, target, &conditions)
    })();
    let closed = client.data.flush(opened.handle);
    let released = client.opens.release(opened.handle);
    moved.and(closed).and(released)
}

/// Spreads the names of a directory over this number of MDTs.
///
/// # Errors
/// Those of [`nacre_client::Client::names`].
pub(crate) fn restripe(client: &Client, fid: Fid, shards: u8) -> StatusResult<()> {
    let requested = DirDefault { count: shards.into(), ..DirDefault::default() };
    client.names.restripe(&root(), fid, &requested)
}

/// Moves what a name leads to to another MDT; a directory gets this number of shards.
///
/// # Errors
/// Those of [`nacre_client::Client::names`].
pub(crate) fn migrate(client: &Client, name: (Fid, &[u8]), mdt: u8, shards: u8) -> StatusResult<()> {
    let requested = DirDefault { index: mdt.into(), count: shards.into(), ..DirDefault::default() };
    client.names.migrate(&root(), name, &requested)
}
