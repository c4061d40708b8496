//! Inodes that this client has removed while the kernel still holds them: directories that are open or are a
//! working directory, files of which an `O_PATH` descriptor is left.
//!
//! The MDT keeps such an inode only for regular files that are open; for the others it has nothing left, and
//! no other client could reach them. So the client answers from the attributes it knew when it removed them,
//! until the kernel forgets them. A removed directory stays empty, so there are only attributes to
//! keep.
//!
//! An inode that another client removed is not known here: programs get `ESTALE`.

use crate::caller::Caller;
use crate::file::now;
use crate::node::NodeTable;
use nacre_types::attr::{S_IFMT, S_ISUID};
use nacre_types::{
    Attr, Cred, Failure, FailureResult, Fid, SetAttr, SetAttrValid, Status, StatusResult, Timestamp, perm,
};

impl NodeTable {
    /// Returns attributes of an inode that this client removed, if the MDT's error `failure` says that it is
    /// removed.
    ///
    /// # Errors
    /// `failure` if the inode is not one of those.
    pub fn removed_or(&self, fid: Fid, failure: Failure) -> FailureResult<Attr> {
        let is_gone = matches!(failure.status(), Status::ENOENT | Status::ESTALE);
        let attr = if is_gone { self.removed(fid.inode_number()) } else { None };
        attr.ok_or(failure)
    }

    /// Changes attributes of a removed inode, which exist only here.
    ///
    /// # Errors
    /// `failure` if the inode is not known or the change needs its data; `EPERM`, `EACCES`.
    pub fn set_removed(
        &self,
        caller: &Caller,
        fid: Fid,
        set: &SetAttr,
        failure: Failure,
    ) -> FailureResult<Attr> {
        if set.valid.contains(SetAttrValid::SIZE) {
            return Err(failure);
        }
        let mut attr = self.removed_or(fid, failure)?;
        check_change(&attr, &caller.full_cred(), set)?;
        change(&mut attr, set, now());
        self.note_removed(fid.inode_number(), &attr);
        Ok(attr)
    }

    /// Checks rights to a removed inode.
    ///
    /// # Errors
    /// `failure` if the inode is not known; `EACCES`.
    pub fn access_removed(
        &self,
        caller: &Caller,
        fid: Fid,
        mask: u8,
        failure: Failure,
    ) -> FailureResult<Attr> {
        let attr = self.removed_or(fid, failure)?;
        perm::access(&attr, None, &caller.full_cred(), mask).or(Status::EACCES)?;
        Ok(attr)
    }
}

fn check_change(attr: &Attr, cred: &Cred, set: &SetAttr) -> StatusResult<()> {
    let valid = set.valid;
    if valid.contains(SetAttrValid::UID) && !(cred.uid == attr.uid && set.uid == attr.uid) {
        perm::capable(cred, nacre_types::Caps::CHOWN).or(Status::EPERM)?;
    }
    if valid.contains(SetAttrValid::GID) {
        perm::may_change_group(cred, attr, set.gid).or(Status::EPERM)?;
    }
    // An empty change would also drop set-id bits and capabilities, which were removed with the inode.
    let free = SetAttrValid::UID | SetAttrValid::GID | SetAttrValid::CTIME | SetAttrValid::KILL_PRIV;
    let others = SetAttrValid::all() - free;
    if valid.intersects(others) {
        perm::owner_or_capable(attr, cred).or(Status::EPERM)?;
    }
    Ok(())
}

fn change(attr: &mut Attr, set: &SetAttr, now: Timestamp) {
    let valid = set.valid;
    if valid.contains(SetAttrValid::UID) {
        attr.uid = set.uid;
    }
    if valid.contains(SetAttrValid::GID) {
        attr.gid = set.gid;
    }
    if valid.intersects(SetAttrValid::UID | SetAttrValid::GID) && !attr.is_dir() {
        attr.mode &= !S_ISUID;
    }
    if valid.contains(SetAttrValid::MODE) {
        attr.mode = (attr.mode & S_IFMT) | (set.mode & 0o7777);
    }
    if valid.contains(SetAttrValid::ATIME) {
        attr.atime = set.atime;
    } else if valid.contains(SetAttrValid::ATIME_NOW) {
        attr.atime = now;
    }
    if valid.contains(SetAttrValid::MTIME) {
        attr.mtime = set.mtime;
    } else if valid.contains(SetAttrValid::MTIME_NOW) {
        attr.mtime = now;
    }
    attr.ctime = now;
}
