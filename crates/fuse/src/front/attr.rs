//! Attributes, permissions and extended attributes.

use std::time::Duration;

use nacre_client::{Caller, XattrFlags};
use nacre_types::{Fid, SetAttr, SetAttrValid, Status, StatusResult, Timestamp};

use super::names::Names;
use super::{done, gone};
use crate::abi::{Attr, Statx, SxTime};
use crate::reply::Reply;
use crate::request::{self, SetTime, SetXattr};

/// Preferred I/O size shown to programs, in bytes. Programs that copy use it as their buffer size; a much
/// larger one would cost memory in programs that open many files with buffers of this size.
const PREFERRED_IO_BYTES: u32 = 256 << 10;
/// Fields for statx: everything of stat(2), and the creation time.
const STATX_FIELDS: u32 = 0x7ff | 0x800;
/// SELinux's label. Where SELinux runs, the kernel answers without a request. Where it does not, there is no
/// label, and "not supported" lets `ls -l` ask once instead of once per file; Lustre's clients answer the
/// same.
const SELINUX: &[u8] = b"security.selinux";

/// Returns the protocol's form of attributes.
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
    // Only chown(-1, -1) sets nothing. On Linux it counts as a change of owner that keeps both ids.
    if set.valid.is_empty() {
        set.valid |= SetAttrValid::CTIME | SetAttrValid::KILL_PRIV;
    }
    // For a change of size only; on a change of owner the MDT decides about set-id bits.
    if change.kill_suid_gid {
        set.valid |= SetAttrValid::KILL_PRIV;
    }
    set
}

/// Returns how long the kernel may use attributes.
pub(super) fn attr_timeout(keep: bool) -> Duration {
    if keep { Duration::MAX } else { Duration::ZERO }
}

impl Names {
    pub(super) fn getattr(&self, fid: Fid, reply: &mut Reply<'_>) -> StatusResult<()> {
        let (attr, keep) = self.client.inodes.stat(fid).map_err(gone)?;
        reply.attr(&to_wire(&attr), attr_timeout(keep));
        Ok(())
    }

    pub(super) fn statx(&self, fid: Fid, reply: &mut Reply<'_>) -> StatusResult<()> {
        let (attr, keep) = self.client.inodes.stat(fid).map_err(gone)?;
        reply.statx(&to_statx(&attr), attr_timeout(keep));
        Ok(())
    }

    pub(super) fn setattr(
        &self,
        caller: &Caller,
        fid: Fid,
        change: &request::SetAttr,
        reply: &mut Reply<'_>,
    ) -> StatusResult<()> {
        let mut set = to_set(change);
        if change.fh.is_some_and(|handle| self.client.opens.is_writable(handle)) {
            set.valid |= SetAttrValid::OPEN_FOR_WRITE;
        }
        let changed = self.client.names.setattr_through(caller, fid, change.fh, set);
        let (attr, closed) = changed.map_err(gone)?;
        if closed {
            self.expire();
        }
        reply.attr(&to_wire(&attr), attr_timeout(self.client.lease.exclusive()));
        Ok(())
    }

    pub(super) fn access(
        &self,
        caller: &Caller,
        fid: Fid,
        mask: u32,
        reply: &mut Reply<'_>,
    ) -> StatusResult<()> {
        let mask = (mask & 7) as u8;
        let verdict = if mask == 0 { Ok(()) } else { self.client.inodes.access(caller, fid, mask) };
        done(verdict.map_err(gone), reply)
    }

    pub(super) fn getxattr(
        &self,
        caller: &Caller,
        fid: Fid,
        name: &[u8],
        size: u32,
        reply: &mut Reply<'_>,
    ) -> StatusResult<()> {
        check_name(name)?;
        answer(&self.client.inodes.getxattr(caller, fid, name).map_err(gone)?, size, reply)
    }

    pub(super) fn listxattr(
        &self,
        caller: &Caller,
        fid: Fid,
        size: u32,
        reply: &mut Reply<'_>,
    ) -> StatusResult<()> {
        answer(&self.client.inodes.listxattr(caller, fid).map_err(gone)?, size, reply)
    }

    pub(super) fn setxattr(
        &self,
        caller: &Caller,
        fid: Fid,
        set: &SetXattr<'_>,
        reply: &mut Reply<'_>,
    ) -> StatusResult<()> {
        check_name(set.name)?;
        let asked = rustix::fs::XattrFlags::from_bits_retain(set.flags);
        let mut requested = XattrFlags::empty();
        requested.set(XattrFlags::CREATE, asked.contains(rustix::fs::XattrFlags::CREATE));
        requested.set(XattrFlags::REPLACE, asked.contains(rustix::fs::XattrFlags::REPLACE));
        requested.set(XattrFlags::KILL_SGID, set.kill_sgid);
        let closed = self.client.names.setxattr(caller, fid, set.name, set.value, requested).map_err(gone)?;
        self.changed(closed, reply)
    }

    pub(super) fn removexattr(
        &self,
        caller: &Caller,
        fid: Fid,
        name: &[u8],
        reply: &mut Reply<'_>,
    ) -> StatusResult<()> {
        check_name(name)?;
        let closed = self.client.names.removexattr(caller, fid, name).map_err(gone)?;
        self.changed(closed, reply)
    }
}

fn check_name(name: &[u8]) -> StatusResult<()> {
    if name == SELINUX { Err(Status::EOPNOTSUPP) } else { Ok(()) }
}

fn answer(value: &[u8], size: u32, reply: &mut Reply<'_>) -> StatusResult<()> {
    match size {
        0 => reply.xattr_size(value.len() as u32),
        _ if value.len() > size as usize => return Err(Status::ERANGE),
        _ => reply.bytes(value),
    }
    Ok(())
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
