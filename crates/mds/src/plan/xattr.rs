//! Extended attributes: name spaces, access rights, ACLs, and defaults for directories in a directory, with
//! the rules of xattr(7) and acl(5).

use super::{Amendment, XattrChange, check_access, may_keep_sgid};
use crate::layouts::system::{
    LMA, LOV_ADD, LOV_CHANGE, LOV_DEL, LOV_SET_FLAGS, LUSTRE_LOV, System, TRUSTED_LINK, TRUSTED_LOV,
};
use crate::placement::put_default;
use crate::tables::{ACL_DEFAULT, CAPABILITY};
use nacre_layout::DirDefault;
use nacre_ondisk::InodeRecord;
use nacre_types::acl::Acl;
use nacre_types::attr::{S_ISGID, S_ISVTX};
use nacre_types::{AttrFlags, Caps, Cred, FileKind, Status, StatusResult, Timestamp, perm};
use nacre_wire::mds::XattrFlags;
use std::borrow::Cow;
use std::sync::Arc;

/// Name of the attribute that shows the access ACL.
pub(crate) const ACL_ACCESS: &[u8] = b"system.posix_acl_access";

/// Class of an attribute's name, which determines its rules.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Class {
    /// `user.*`: for all users, on files and directories.
    User,
    /// `trusted.*`: only for administrators.
    Trusted,
    /// `security.*`: readable by all users, written by administrators.
    Security,
    /// `security.capability`.
    Capability,
    /// An ACL.
    Acl {
        /// True for the default ACL of a directory.
        default: bool,
    },
    /// Computed from other records.
    System(System),
    /// An unknown name.
    Unknown,
}

impl Class {
    pub fn of(name: &[u8]) -> Class {
        match name {
            ACL_ACCESS => Class::Acl { default: false },
            ACL_DEFAULT => Class::Acl { default: true },
            LUSTRE_LOV => Class::System(System::Lov),
            TRUSTED_LOV => Class::System(System::TrustedLov),
            LOV_ADD => Class::System(System::LovAdd),
            LOV_DEL => Class::System(System::LovDel),
            LOV_SET_FLAGS => Class::System(System::LovSetFlags),
            b"lustre.lmv" => Class::System(System::Lmv),
            b"trusted.lmv" => Class::System(System::TrustedLmv),
            b"lustre.dmv" => Class::System(System::Dmv),
            b"trusted.dmv" => Class::System(System::TrustedDmv),
            LMA => Class::System(System::Lma),
            TRUSTED_LINK => Class::System(System::Link),
            CAPABILITY => Class::Capability,
            // Pools in which a file is to stay, for programs that move files between pools.
            b"lustre.pin" => Class::User,
            _ if longer_than(name, b"user.") => Class::User,
            b"trusted.fid" | b"trusted.som" | b"trusted.version" | b"trusted.hsm" => {
                Class::System(System::Internal)
            }
            _ if longer_than(name, LOV_CHANGE) => Class::System(System::LovUnknown),
            _ if longer_than(name, b"trusted.") => Class::Trusted,
            _ if longer_than(name, b"security.") => Class::Security,
            _ => Class::Unknown,
        }
    }

    fn is_administrators(self) -> bool {
        matches!(self, Class::Trusted) || matches!(self, Class::System(system) if system.is_trusted())
    }
}

fn longer_than(name: &[u8], prefix: &[u8]) -> bool {
    name.len() > prefix.len() && name.starts_with(prefix)
}

/// Checks that the caller may read an attribute of this class.
///
/// # Errors
/// `ENODATA`, `EACCES`.
pub(crate) fn check_xattr_read(cred: &Cred, record: &InodeRecord, class: Class) -> StatusResult<()> {
    match class {
        class if class.is_administrators() => perm::capable(cred, Caps::SYS_ADMIN).or(Status::ENODATA),
        Class::User if !record.attr.is_regular() && !record.attr.is_dir() => Err(Status::ENODATA),
        Class::User => check_access(record, cred, perm::READ),
        _ => Ok(()),
    }
}

/// Checks that the caller may change an attribute of this class; for ACLs and computed attributes that is
/// checked with the value.
///
/// # Errors
/// `EPERM`, `EACCES`; `EOPNOTSUPP` for an unknown name.
pub(crate) fn check_xattr_write(cred: &Cred, record: &InodeRecord, class: Class) -> StatusResult<()> {
    let attr = &record.attr;
    match class {
        Class::User if !attr.is_regular() && !attr.is_dir() => Err(Status::EPERM),
        Class::User => {
            if attr.is_dir() && attr.mode & S_ISVTX != 0 {
                perm::owner_or_capable(attr, cred).or(Status::EPERM)?;
            }
            check_access(record, cred, perm::WRITE)
        }
        Class::Capability => perm::capable(cred, Caps::SETFCAP).or(Status::EPERM),
        Class::Unknown => Err(Status::EOPNOTSUPP),
        class if class == Class::Security || class.is_administrators() => {
            perm::capable(cred, Caps::SYS_ADMIN).or(Status::EPERM)
        }
        _ => Ok(()),
    }
}

/// An attribute that is stored unchanged, and its inode.
#[derive(Clone, Copy)]
pub(crate) struct Plain<'a> {
    pub record: &'a InodeRecord,
    pub name: &'a [u8],
    /// True if the inode has it.
    pub exists: bool,
}

/// Plans the change of an attribute.
///
/// # Errors
/// As [`check_xattr_write`]; `EEXIST`, `ENODATA` as required by `flags`.
pub(crate) fn set_xattr<'a>(
    cred: &Cred,
    plain: &Plain<'a>,
    value: &'a [u8],
    flags: XattrFlags,
    now: Timestamp,
) -> StatusResult<Amendment<'a>> {
    let class = Class::of(plain.name);
    check_xattr_write(cred, plain.record, class)?;
    check_flags(flags, plain.exists)?;
    let mut amendment = Amendment::begun(plain.record, &[], now);
    amendment.record.attr.flags |= match class {
        Class::Capability => AttrFlags::HAS_CAPABILITY,
        _ => AttrFlags::HAS_XATTRS,
    };
    amendment.xattrs.push(XattrChange { name: plain.name, value: Some(Cow::Borrowed(value)) });
    Ok(amendment)
}

/// Plans the removal of an attribute. `has_others`: another attribute is stored that is neither an ACL nor a
/// capability.
///
/// # Errors
/// As [`check_xattr_write`]; `ENODATA` if there is none.
pub(crate) fn remove_xattr<'a>(
    cred: &Cred,
    plain: &Plain<'a>,
    has_others: bool,
    now: Timestamp,
) -> StatusResult<Amendment<'a>> {
    let class = Class::of(plain.name);
    check_xattr_write(cred, plain.record, class)?;
    check_flags(XattrFlags::REPLACE, plain.exists)?;
    let mut amendment = Amendment::begun(plain.record, &[], now);
    if class == Class::Capability {
        amendment.record.attr.flags -= AttrFlags::HAS_CAPABILITY;
    } else if !has_others {
        amendment.record.attr.flags -= AttrFlags::HAS_XATTRS;
    }
    amendment.xattrs.push(XattrChange { name: plain.name, value: None });
    amendment.is_releasing = true;
    Ok(amendment)
}

fn check_flags(flags: XattrFlags, exists: bool) -> StatusResult<()> {
    match exists {
        true if flags.contains(XattrFlags::CREATE) => Err(Status::EEXIST),
        false if flags.contains(XattrFlags::REPLACE) => Err(Status::ENODATA),
        _ => Ok(()),
    }
}

/// An ACL that an inode gets, in the kernel's form, or without a value loses.
#[derive(Clone, Copy)]
pub(crate) struct AclChange<'a> {
    /// True for the default ACL of a directory.
    pub is_default: bool,
    pub value: Option<&'a [u8]>,
    pub flags: XattrFlags,
}

/// Plans the change or removal of an ACL; `None` if nothing changes.
///
/// # Errors
/// `EOPNOTSUPP` for a symlink, `EACCES` for a default ACL of an inode that is not a directory, `EPERM`,
/// `EINVAL`; `EEXIST`, `ENODATA` as required by the flags.
pub(crate) fn set_acl<'a>(
    cred: &Cred,
    record: &InodeRecord,
    shards: &[Arc<InodeRecord>],
    change: AclChange<'_>,
    now: Timestamp,
) -> StatusResult<Option<Amendment<'a>>> {
    let attr = &record.attr;
    if attr.kind() == FileKind::Symlink {
        return Err(Status::EOPNOTSUPP);
    }
    let acl = change.value.map(Acl::parse_xattr).transpose()?.flatten();
    if change.is_default && !attr.is_dir() {
        return if acl.is_some() { Err(Status::EACCES) } else { Ok(None) };
    }
    perm::owner_or_capable(attr, cred).or(Status::EPERM)?;
    let flag = if change.is_default { AttrFlags::HAS_DEFAULT_ACL } else { AttrFlags::HAS_ACL };
    let exists = attr.flags.contains(flag);
    check_flags(change.flags, exists)?;
    if change.value.is_none() && !exists {
        return Ok(None);
    }
    let mut amendment = Amendment::begun(record, shards, now);
    if change.is_default {
        amendment.record.attr.flags.set(flag, acl.is_some());
        let value = acl.map(|acl| Cow::Owned(acl.to_xattr()));
        amendment.xattrs.push(XattrChange { name: ACL_DEFAULT, value });
    } else {
        apply_access_acl(cred, &mut amendment.record, acl, change.flags)?;
    }
    Ok(Some(amendment))
}

fn apply_access_acl(
    cred: &Cred,
    record: &mut InodeRecord,
    acl: Option<Acl>,
    flags: XattrFlags,
) -> StatusResult<()> {
    record.acl.clear();
    record.attr.flags -= AttrFlags::HAS_ACL;
    let Some(acl) = acl else { return Ok(()) };
    record.attr.mode = (record.attr.mode & !0o777) | acl.mode_bits();
    if record.attr.mode & S_ISGID != 0
        && (flags.contains(XattrFlags::KILL_SGID) || !may_keep_sgid(cred, record.attr.gid)?)
    {
        record.attr.mode &= !S_ISGID;
    }
    // An ACL that the mode can express is not stored.
    if !acl.is_minimal() {
        record.acl = acl.to_xattr();
        record.attr.flags |= AttrFlags::HAS_ACL;
    }
    Ok(())
}

/// Plans the default for directories created in a directory, which an empty value or Lustre's encoding of a
/// removal removes; `None` if nothing changes.
///
/// # Errors
/// `ENOTDIR`, `EPERM`, `EINVAL`.
pub(crate) fn set_dir_default<'a>(
    cred: &Cred,
    record: &InodeRecord,
    shards: &[Arc<InodeRecord>],
    value: &[u8],
    now: Timestamp,
) -> StatusResult<Option<Amendment<'a>>> {
    if !record.attr.is_dir() {
        return Err(Status::ENOTDIR);
    }
    perm::owner_or_capable(&record.attr, cred).or(Status::EPERM)?;
    let default = match value {
        [] => None,
        value => Some(DirDefault::decode(value).map_err(|_| Status::EINVAL)?),
    };
    let mut amendment = Amendment::begun(record, shards, now);
    put_default(&mut amendment.record, default.filter(|default| !default.is_removal()));
    Ok(Some(amendment).filter(|amendment| amendment.record.default_lmv != record.default_lmv))
}
