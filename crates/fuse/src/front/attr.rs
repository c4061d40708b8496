//! Attributes and permissions.

use std::time::Duration;

use nacre_client::Found;
use nacre_types::{SetAttr, SetAttrValid, StatusResult, Timestamp};

use super::{Front, caller, gone};
use crate::abi::{self, Attr, Statx, SxTime};
use crate::reply::Reply;
use crate::request::{self, Request, SetTime};

/// Preferred I/O size shown to programs, in bytes. Programs that copy use it as their buffer size; much larger ones would
/// cost those memory that open many files with buffers of this size.
const PREFERRED_IO_BYTES: u32 = 256 << 10;
/// statx: everything of stat(2), and the creation time.
const STATX_FIELDS: u32 = 0x7ff | 0x800;

/// The protocol's form of attributes.
pub(super) fn to_wire(attr: &nacre_types::Attr) -> Attr {
    Attr {
        ino: attr.fid.inode_number(),
        size: attr.size,
        blocks: attr.blocks,
        atime: attr.atime.sec as u64,
        mtime: attr.mtime.sec as u64,
        ctime: attr.ctime.sec as u64,
        atimensec: attr.atime.nsec,
        mtimensec: attr.mtime.nsec,
        ctimensec: attr.ctime.nsec,
        mode: attr.mode,
        nlink: attr.nlink,
        uid: attr.uid,
        gid: attr.gid,
        rdev: attr.rdev,
        blksize: PREFERRED_IO_BYTES,
        flags: 0,
    }
}

fn to_statx(attr: &nacre_types::Attr) -> Statx {
    let time = |time: Timestamp| SxTime { tv_sec: time.sec, tv_nsec: time.nsec, reserved: 0 };
    Statx {
        mask: STATX_FIELDS,
        blksize: PREFERRED_IO_BYTES,
        nlink: attr.nlink,
        uid: attr.uid,
        gid: attr.gid,
        mode: attr.mode as u16,
        ino: attr.fid.inode_number(),
        size: attr.size,
        blocks: attr.blocks,
        atime: time(attr.atime),
        btime: time(attr.btime),
        ctime: time(attr.ctime),
        mtime: time(attr.mtime),
        rdev_major: attr.rdev >> 8 & 0xfff,
        rdev_minor: attr.rdev & 0xff | attr.rdev >> 12 & 0xf_ff00,
        ..Statx::default()
    }
}

fn set_time(set: &mut SetAttr, time: Option<SetTime>, at: SetAttrValid, now: SetAttrValid) -> Timestamp {
    match time {
        None => Timestamp::default(),
        Some(SetTime::Now) => {
            set.valid |= now;
            Timestamp::default()
        }
        Some(SetTime::At { seconds, nanoseconds }) => {
            set.valid |= at;
            Timestamp::new(seconds, nanoseconds)
        }
    }
}

fn to_set(change: &request::SetAttr) -> SetAttr {
    let mut set = SetAttr::default();
    for (value, field, flag) in [
        (change.mode, &mut set.mode, SetAttrValid::MODE),
        (change.uid, &mut set.uid, SetAttrValid::UID),
        (change.gid, &mut set.gid, SetAttrValid::GID),
    ] {
        if let Some(value) = value {
            *field = value;
            set.valid |= flag;
        }
    }
    if let Some(size) = change.size {
        set.size = size;
        set.valid |= SetAttrValid::SIZE;
    }
    set.atime = set_time(&mut set, change.atime, SetAttrValid::ATIME, SetAttrValid::ATIME_NOW);
    set.mtime = set_time(&mut set, change.mtime, SetAttrValid::MTIME, SetAttrValid::MTIME_NOW);
    set.ctime = set_time(&mut set, change.ctime, SetAttrValid::CTIME, SetAttrValid::CTIME);
    // Only chown(-1, -1) sets nothing. On Linux it counts as a change of owner that lets both be.
    if set.valid.is_empty() {
        set.valid |= SetAttrValid::CTIME | SetAttrValid::KILL_PRIV;
    }
    // For a change of size only; a change of owner is the MDT's own to draw conclusions from.
    if change.kill_suid_gid {
        set.valid |= SetAttrValid::KILL_PRIV;
    }
    set
}

/// For how long the kernel may use attributes.
fn attr_timeout(keep: bool) -> Duration {
    if keep { Duration::MAX } else { Duration::ZERO }
}

impl Front {
    pub(super) fn getattr(&self, request: &Request<'_>, reply: &mut Reply<'_>) -> StatusResult<()> {
        let (attr, keep) = self.client.inodes.stat(self.fid(request.node_id)?).map_err(gone)?;
        reply.attr(&to_wire(&attr), attr_timeout(keep));
        Ok(())
    }

    pub(super) fn statx(&self, request: &Request<'_>, reply: &mut Reply<'_>) -> StatusResult<()> {
        let (attr, keep) = self.client.inodes.stat(self.fid(request.node_id)?).map_err(gone)?;
        reply.statx(&to_statx(&attr), attr_timeout(keep));
        Ok(())
    }

    pub(super) fn setattr(
        &self,
        request: &Request<'_>,
        change: &request::SetAttr,
        reply: &mut Reply<'_>,
    ) -> StatusResult<()> {
        let (fid, caller) = (self.fid(request.node_id)?, caller(request));
        let mut set = to_set(change);
        if let Some(handle) = change.fh
            && self.client.opens.is_writable(handle)
        {
            set.valid |= SetAttrValid::OPEN_FOR_WRITE;
        }
        let changed = self.client.names.setattr_through(&caller, fid, change.fh, set);
        let (attr, closed) = changed.map_err(gone)?;
        if closed {
            self.expire_names();
        }
        reply.attr(&to_wire(&attr), attr_timeout(self.client.lease.exclusive()));
        Ok(())
    }

    pub(super) fn access(&self, request: &Request<'_>, mask: u32, reply: &mut Reply<'_>) -> StatusResult<()> {
        let (fid, mask) = (self.fid(request.node_id)?, (mask & 7) as u8);
        if mask != 0 {
            self.client.inodes.access(&caller(request), fid, mask).map_err(gone)?;
        }
        reply.ok();
        Ok(())
    }

    /// The protocol's form of a name that was found or made.
    pub(super) fn entry(&self, found: &Found) -> crate::reply::Entry {
        crate::reply::Entry {
            node_id: if self.options.root == Some(found.attr.fid) { super::ROOT_NODE } else { found.node },
            // FIDs are never used again, so neither are node ids.
            generation: 0,
            entry_timeout: self.entry_timeout(found.public && found.keep.name),
            attr_timeout: attr_timeout(found.keep.attr),
            attr: to_wire(&found.attr),
        }
    }

    /// A name that does not exist, to be remembered as such.
    pub(super) fn absent(&self, timeout: Duration) -> crate::reply::Entry {
        crate::reply::Entry {
            node_id: 0,
            generation: 0,
            entry_timeout: timeout,
            attr_timeout: Duration::ZERO,
            attr: abi::Attr::default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_the_kernel_sets_is_changed() {
        let change = request::SetAttr {
            mode: Some(0o600),
            mtime: Some(SetTime::At { seconds: -5, nanoseconds: 7 }),
            atime: Some(SetTime::Now),
            ..request::SetAttr::default()
        };
        let set = to_set(&change);
        assert_eq!(set.valid, SetAttrValid::MODE | SetAttrValid::MTIME | SetAttrValid::ATIME_NOW);
        assert_eq!((set.mode, set.mtime), (0o600, Timestamp::new(-5, 7)));
        let cut = request::SetAttr { size: Some(5), kill_suid_gid: true, ..request::SetAttr::default() };
        assert_eq!(to_set(&cut).valid, SetAttrValid::SIZE | SetAttrValid::KILL_PRIV);
    }

    #[test]
    fn device_numbers_are_taken_apart_as_the_kernel_put_them_together() {
        // makedev(259, 70000) in the kernel's 32-bit form.
        let (major, minor) = (259u32, 70000u32);
        let rdev = minor & 0xff | major << 8 | (minor & !0xff) << 12;
        let stat = to_statx(&nacre_types::Attr { rdev, ..nacre_types::Attr::default() });
        assert_eq!((stat.rdev_major, stat.rdev_minor), (major, minor));
    }
}
