//! Records of changes, from plans and requests, as pure functions. Types and flags are Lustre's.

use crate::plan::{Change, Class, Place, Plan};
use nacre_ondisk::ChangeRecord;
use nacre_ondisk::changelog::{ChangeSource, ChangedName};
use nacre_types::{ChangeKind, ChangeMask, Fid, FileKind, SetAttrValid};
use nacre_wire::mds::{MdsReply, MdsRequest, OpenFlags};

/// Flag of a removed name: it was the last one, and the inode is removed (`CLF_UNLINK_LAST`, `CLF_RENAME_LAST`).
const LAST: u16 = 1;
/// Flag of a rename: the two names were exchanged; the target has the old name afterwards. Not in Lustre.
const EXCHANGED: u16 = 4;

/// Bits of `la_valid`, which records about attributes have as their flags.
const LA: [(SetAttrValid, u16); 8] = [
    (SetAttrValid::ATIME, 1),
    (SetAttrValid::ATIME_NOW, 1),
    (SetAttrValid::MTIME, 2),
    (SetAttrValid::MTIME_NOW, 2),
    (SetAttrValid::SIZE, 8),
    (SetAttrValid::MODE, 0x10),
    (SetAttrValid::UID, 0x20),
    (SetAttrValid::GID, 0x40),
];
/// The change time, which every change sets.
const LA_CTIME: u16 = 4;
const LA_MTIME: u16 = 2;
const LA_ATIME: u16 = 1;
const LA_SIZE: u16 = 8;

fn at<'a>(place: Place<'a>) -> ChangedName<'a> {
    ChangedName { parent: place.parent, name: place.name }
}

/// Returns the record of a plan: of its name that was created, removed or moved. `None` for an inode without a
/// name.
pub(crate) fn of_plan<'a>(plan: &Plan<'a>) -> Option<ChangeRecord<'a>> {
    let moves = || {
        plan.changes.iter().filter_map(|change| match *change {
            Change::MoveName { fid, from, to } => Some((fid, from, to)),
            _ => None,
        })
    };
    let dropped = plan.changes.iter().find_map(|change| match *change {
        Change::DropName { fid, at, .. } => Some((fid, at)),
        _ => None,
    });
    let last = match &plan.reply {
        MdsReply::Removed { attr: Some(attr), .. } if attr.nlink == 0 => LAST,
        _ => 0,
    };
    if let Some((fid, from, to)) = moves().next() {
        let exchanged = moves().nth(1).map(|(other, _, _)| (other, EXCHANGED));
        let (target, flags) =
            exchanged.or(dropped.map(|(target, _)| (target, last))).unwrap_or((Fid::ZERO, 0));
        let source = Some(ChangeSource { fid, at: at(from) });
        return Some(ChangeRecord {
            flags,
            source,
            at: Some(at(to)),
            ..ChangeRecord::new(ChangeKind::Rename, target)
        });
    }
    if let Some((fid, place)) = dropped {
        let is_dir = matches!(&plan.reply, MdsReply::Removed { attr: Some(attr), .. } if attr.is_dir());
        let kind = if is_dir { ChangeKind::Rmdir } else { ChangeKind::Unlink };
        return Some(ChangeRecord { flags: last, at: Some(at(place)), ..ChangeRecord::new(kind, fid) });
    }
    plan.changes.iter().find_map(|change| match *change {
        Change::AddName { fid, at: place } => {
            Some(ChangeRecord { at: Some(at(place)), ..ChangeRecord::new(ChangeKind::HardLink, fid) })
        }
        Change::PutName { name, fid, kind, .. } => {
            let parent = plan.inodes.iter().find(|new| new.record.attr.fid == fid)?.record.parent;
            let at = Some(ChangedName { parent, name });
            Some(ChangeRecord { at, ..ChangeRecord::new(created(kind), fid) })
        }
        _ => None,
    })
}

fn created(kind: FileKind) -> ChangeKind {
    match kind {
        FileKind::Regular => ChangeKind::Create,
        FileKind::Directory => ChangeKind::Mkdir,
        FileKind::Symlink => ChangeKind::SoftLink,
        FileKind::Fifo | FileKind::Socket | FileKind::BlockDevice | FileKind::CharDevice => ChangeKind::Mknod,
    }
}

/// Returns the record of a request that changed attributes, extended attributes or the layout of an inode. Of the
/// types that describe it, the first that is wanted.
pub(crate) fn of_request<'a>(request: &MdsRequest<'a>, wanted: ChangeMask) -> Option<ChangeRecord<'a>> {
    match request {
        MdsRequest::SetAttr { fid, set } => {
            let bits = LA.iter().filter(|(valid, _)| set.valid.contains(*valid));
            of_attributes(*fid, bits.fold(LA_CTIME, |bits, (_, bit)| bits | bit), set.valid, wanted)
        }
        MdsRequest::SetXattr { fid, name, .. } | MdsRequest::RemoveXattr { fid, name } => {
            let is_layout = matches!(Class::of(name), Class::System(system) if system.is_layout());
            let record = ChangeRecord { xattr: Some(*name), ..ChangeRecord::new(ChangeKind::SetXattr, *fid) };
            Some(if is_layout { ChangeRecord { kind: ChangeKind::Layout, ..record } } else { record })
        }
        MdsRequest::SetLayout { fid, .. } => Some(ChangeRecord::new(ChangeKind::Layout, *fid)),
        _ => None,
    }
}

fn of_attributes<'a>(
    fid: Fid,
    bits: u16,
    valid: SetAttrValid,
    wanted: ChangeMask,
) -> Option<ChangeRecord<'a>> {
    let project = SetAttrValid::PROJID
        | SetAttrValid::PROJECT_INHERIT
        | SetAttrValid::NO_PROJECT_INHERIT
        | SetAttrValid::KILL_PRIV;
    let others = bits & !(LA_SIZE | LA_CTIME | LA_MTIME | LA_ATIME) != 0 || valid.intersects(project);
    let kinds = [
        (bits & LA_SIZE != 0, ChangeKind::Truncate),
        (others, ChangeKind::SetAttr),
        (bits & LA_MTIME != 0, ChangeKind::Mtime),
        (true, ChangeKind::Ctime),
        (bits & LA_ATIME != 0, ChangeKind::Atime),
    ];
    let (_, kind) = kinds.into_iter().find(|(is_it, kind)| *is_it && wanted.contains(*kind))?;
    Some(ChangeRecord { flags: bits, ..ChangeRecord::new(kind, fid) })
}

/// Returns the record of an open.
pub(crate) fn of_open<'a>(fid: Fid, flags: OpenFlags) -> ChangeRecord<'a> {
    let access = (flags & (OpenFlags::READ | OpenFlags::WRITE | OpenFlags::EXEC)).bits() as u8;
    ChangeRecord { open: Some(access), flags: u16::from(access), ..ChangeRecord::new(ChangeKind::Open, fid) }
}

/// Returns the record of a truncation by an open.
pub(crate) fn of_truncation<'a>(fid: Fid) -> ChangeRecord<'a> {
    let flags = LA_SIZE | LA_MTIME | LA_CTIME;
    ChangeRecord { flags, ..ChangeRecord::new(ChangeKind::Truncate, fid) }
}

/// Returns the record of a close.
pub(crate) fn of_close<'a>(fid: Fid, flags: OpenFlags) -> ChangeRecord<'a> {
    let access = (flags & (OpenFlags::READ | OpenFlags::WRITE | OpenFlags::EXEC)).bits() as u16;
    ChangeRecord { flags: access, ..ChangeRecord::new(ChangeKind::Close, fid) }
}

/// Returns the record of a new access time.
pub(crate) fn of_access<'a>(fid: Fid) -> ChangeRecord<'a> {
    ChangeRecord { flags: LA_ATIME, ..ChangeRecord::new(ChangeKind::Atime, fid) }
}

/// Returns the record of an inode that gets another FID, and with that another MDT.
pub(crate) fn of_migration<'a>(from: Fid, to: Fid, parent: Fid, name: &'a [u8]) -> ChangeRecord<'a> {
    let at = ChangedName { parent, name };
    let source = Some(ChangeSource { fid: from, at });
    ChangeRecord { at: Some(at), source, ..ChangeRecord::new(ChangeKind::Migrate, to) }
}
