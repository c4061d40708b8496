//! Creation of inodes and their first names, with the rules of open(2), mkdir(2), mknod(2), symlink(2), and
//! those of acl(5) for inheritance.

use super::{Change, NewInode, Place, Plan};
use crate::new_shards::new_shard;
use crate::placement::{inherited_default, put_default};
use crate::shards::named_in;
use nacre_layout::DirDefault;
use nacre_layout::dir_layout::DirLayout;
use nacre_ondisk::InodeRecord;
use nacre_types::acl::Acl;
use nacre_types::attr::S_ISGID;
use nacre_types::perm::Verdict;
use nacre_types::{
    Attr, AttrFlags, Caps, Cred, Fid, FileKind, SizeSource, Status, StatusResult, Timestamp, perm,
};
use nacre_wire::mds::MdsReply;
use smallvec::{SmallVec, smallvec};
use std::sync::Arc;

const S_IXGRP: u32 = 0o010;

/// An inode to create, from the request, checked as far as that needs no record.
#[derive(Debug)]
pub(crate) struct Creation<'a> {
    pub fid: Fid,
    pub kind: FileKind,
    /// Permission bits, without the file type.
    pub mode: u32,
    pub umask: u32,
    pub rdev: u32,
    /// Target of a symlink.
    pub target: &'a [u8],
    /// Shards of a striped directory.
    pub shards: Option<DirLayout>,
    /// Default for directories in a directory whose MDT the caller has chosen.
    pub default: Option<DirDefault>,
}

/// Inherited defaults of a directory that its record does not have.
#[derive(Debug, Default)]
pub(crate) struct Handed {
    /// The directory's default ACL.
    pub acl: Option<Acl>,
    /// True if new inodes in the directory inherit its default layout.
    pub layout: bool,
}

/// Builds the inode to create in `home`, without a name.
///
/// # Errors
/// `NEED_CREDENTIALS`; `EUCLEAN` if a default of the directory is damaged.
pub(crate) fn inode(
    cred: &Cred,
    home: &InodeRecord,
    wanted: &Creation<'_>,
    handed: &Handed,
    now: Timestamp,
) -> StatusResult<NewInode> {
    let mut record = with_owner(cred, home, wanted, now)?;
    let kind = wanted.kind;
    if matches!(kind, FileKind::Directory | FileKind::Regular) && handed.layout {
        record.body = home.body.clone();
        record.attr.flags |= AttrFlags::HAS_LAYOUT;
    }
    if kind == FileKind::Symlink {
        return Ok(NewInode::new(record, Vec::new()));
    }
    if kind == FileKind::Directory {
        match &wanted.default {
            Some(said) => put_default(&mut record, Some(said.clone()).filter(|said| !said.is_removal())),
            None => inherited_default(home)?.into_iter().for_each(|left| put_default(&mut record, left)),
        }
    }
    let Some(default) = &handed.acl else {
        record.attr.mode &= !wanted.umask;
        return Ok(NewInode::new(record, Vec::new()));
    };
    let (access, bits) = default.inherit(record.attr.mode);
    record.attr.mode = (record.attr.mode & !0o777) | bits;
    if !access.is_minimal() {
        record.acl = access.to_xattr();
        record.attr.flags |= AttrFlags::HAS_ACL;
    }
    if kind != FileKind::Directory {
        return Ok(NewInode::new(record, Vec::new()));
    }
    record.attr.flags |= AttrFlags::HAS_DEFAULT_ACL;
    Ok(NewInode::new(record, default.to_xattr()))
}

fn with_owner(
    cred: &Cred,
    home: &InodeRecord,
    wanted: &Creation<'_>,
    now: Timestamp,
) -> StatusResult<InodeRecord> {
    let mut mode = wanted.mode;
    let mut gid = cred.gid;
    let is_dir = wanted.kind == FileKind::Directory;
    if home.attr.mode & S_ISGID != 0 {
        gid = home.attr.gid;
        if is_dir {
            mode |= S_ISGID;
        } else if mode & (S_ISGID | S_IXGRP) == S_ISGID | S_IXGRP && !may_keep_sgid(cred, gid)? {
            mode &= !S_ISGID;
        }
    }
    let inherits_project = home.attr.flags.contains(AttrFlags::PROJECT_INHERIT);
    let mut flags = AttrFlags::empty();
    flags.set(AttrFlags::PROJECT_INHERIT, inherits_project && is_dir);
    let attr = Attr {
        fid: wanted.fid,
        mode: wanted.kind.mode_bits() | mode,
        uid: cred.uid,
        gid,
        nlink: if is_dir { 2 } else { 1 },
        rdev: wanted.rdev,
        size: wanted.target.len() as u64,
        atime: now,
        mtime: now,
        ctime: now,
        btime: now,
        projid: if inherits_project { home.attr.projid } else { 0 },
        flags,
        ..Attr::default()
    };
    Ok(InodeRecord { attr, body: wanted.target.to_vec(), ..InodeRecord::default() })
}

/// Returns true if the caller may give a file the set-group-id bit for `gid`.
///
/// # Errors
/// `NEED_CREDENTIALS`.
pub(crate) fn may_keep_sgid(cred: &Cred, gid: u32) -> StatusResult<bool> {
    let verdict = match perm::in_group(cred, gid) {
        Verdict::Denied => perm::capable(cred, Caps::FSETID),
        verdict => verdict,
    };
    match verdict {
        Verdict::Granted => Ok(true),
        Verdict::Denied => Ok(false),
        Verdict::NeedFull => Err(Status::NEED_CREDENTIALS),
    }
}

/// Plans the first name of `new` in `home`, and the shards of a striped directory. The caller has checked the
/// right to write there, that the name is free and that there is free space.
pub(crate) fn make<'a>(
    home: &InodeRecord,
    name: &'a [u8],
    mut new: NewInode,
    shards: Option<&DirLayout>,
    now: Timestamp,
) -> Plan<'a> {
    let place = Place { parent: named_in(home), name };
    let record = Arc::make_mut(&mut new.record);
    record.parent = place.parent;
    record.name = name.to_vec();
    let attr = &record.attr;
    let (fid, kind, subdirs) = (attr.fid, attr.kind(), u32::from(attr.is_dir()));
    let home_fid = home.attr.fid;
    let mut changes = SmallVec::new();
    changes.push(Change::PutName { home: home_fid, name, fid, kind });
    changes.push(Change::Directory { fid: home_fid, entries: 1, subdirs: subdirs.into() });
    let mut inodes = SmallVec::new();
    if let Some(layout) = shards {
        record.attr.flags |= AttrFlags::STRIPED;
        record.lmv = layout.encode();
        for (place, fid) in layout.shards.iter().enumerate() {
            let record = new_shard(record, fid, layout.encode_shard(place as u32));
            inodes.push(NewInode::new(record, new.default_acl.clone()));
        }
    }
    // Nothing was written yet, so the size is exact.
    let mut attr = new.record.shown();
    if attr.is_regular() {
        attr.size_source = SizeSource::Exact;
    }
    let mut parent = home.shown();
    (parent.mtime, parent.ctime, parent.nlink) = (now, now, parent.nlink + subdirs);
    inodes.push(new);
    let reply = MdsReply::Created { attr, created: true, layout: None, parent };
    Plan { changes, inodes, reply }
}

/// Plans `new` without a name; it only inherits from `directory`.
pub(crate) fn make_unnamed<'a>(directory: &InodeRecord, mut new: NewInode) -> Plan<'a> {
    let record = Arc::make_mut(&mut new.record);
    record.attr.nlink = 0;
    record.attr.flags |= AttrFlags::ORPHAN;
    let attr = Attr { size_source: SizeSource::Exact, ..new.record.shown() };
    let reply = MdsReply::Created { attr, created: true, layout: None, parent: directory.shown() };
    Plan { changes: SmallVec::new(), inodes: smallvec![new], reply }
}
