//! Further names of an inode, with the rules of link(2), and linkat(2) with `AT_EMPTY_PATH`.

use super::Place;
use super::{Change, Plan, check_access, check_same_project};
use crate::shards::named_in;
use nacre_ondisk::InodeRecord;
use nacre_types::limits::LINK_MAX;
use nacre_types::{AttrFlags, Cred, Status, StatusResult, Timestamp, perm};
use nacre_wire::mds::MdsReply;
use smallvec::{SmallVec, smallvec};

/// A name to add to an inode.
#[derive(Clone, Copy)]
pub(crate) struct Linking<'a> {
    pub record: &'a InodeRecord,
    /// Directory or shard that is to store the name.
    pub home: &'a InodeRecord,
    pub name: &'a [u8],
    /// True if the name exists.
    pub is_taken: bool,
}

/// Plans a link. The MDT of an inode without names knows whether it may get one, and checks that before.
///
/// # Errors
/// `EACCES`, `EEXIST`, `EPERM` for a directory, `EXDEV` for another project, `EMLINK`.
pub(crate) fn link<'a>(cred: &Cred, linking: &Linking<'a>, now: Timestamp) -> StatusResult<Plan<'a>> {
    let Linking { record, home, name, is_taken } = *linking;
    check_access(home, cred, perm::EXEC)?;
    if is_taken {
        return Err(Status::EEXIST);
    }
    check_access(home, cred, perm::WRITE)?;
    if record.attr.is_dir() {
        return Err(Status::EPERM);
    }
    check_same_project(&home.attr, &record.attr)?;
    if record.attr.nlink >= LINK_MAX {
        return Err(Status::EMLINK);
    }
    let (fid, kind) = (record.attr.fid, record.attr.kind());
    let changes: SmallVec<_> = smallvec![
        Change::AddName { fid, at: Place { parent: named_in(home), name } },
        Change::PutName { home: home.attr.fid, name, fid, kind },
        Change::Directory { fid: home.attr.fid, entries: 1, subdirs: 0 },
    ];
    let mut attr = record.shown();
    attr.flags -= AttrFlags::ORPHAN;
    (attr.nlink, attr.ctime) = (attr.nlink + 1, now);
    Ok(Plan { changes, inodes: SmallVec::new(), reply: MdsReply::Attr(attr) })
}
