//! Extended attributes: name spaces, who may touch them, and those that are stored as they are. Source: xattr(7).

use super::Attributes;
use super::acl::ACL_ACCESS;
use super::setattr::CAPABILITY;
use crate::layouts::system::{
    LMA, LOV_ADD, LOV_CHANGE, LOV_DEL, LOV_SET_FLAGS, LUSTRE_LOV, System, TRUSTED_LINK, TRUSTED_LOV,
};
use crate::locks::Want;
use crate::plan::check_access;
use crate::shards::is_former;
use crate::tables::{ACL_DEFAULT, XATTRS, split_xattr_key, xattr_key};
use crate::turn::Caller;
use crate::tx::now;
use nacre_ondisk::{InodeRecord, XattrRecord};
use nacre_types::attr::S_ISVTX;
use nacre_types::limits::{XATTR_NAME_MAX, XATTR_VALUE_MAX};
use nacre_types::perm::Verdict;
use nacre_types::{AttrFlags, Caps, Fid, Status, StatusResult, perm};
use nacre_wire::mds::{MdsAnswer, MdsReply, XattrFlags};
use std::ops::{Bound, ControlFlow};

/// Longest list of names, the kernel's limit.
const LIST_MAX: usize = 65536;

/// What a name means.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Class {
    /// Free for all on files and directories.
    User,
    /// Only for administrators.
    Trusted,
    /// Readable by all, written by administrators.
    Security,
    /// `security.capability`.
    Capability,
    /// An ACL.
    Acl {
        /// The default ACL of a directory.
        default: bool,
    },
    /// Made from other records.
    System(System),
    /// Nothing we know.
    Unknown,
}

fn class_of(name: &[u8]) -> Class {
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
        // Pools that a file is to stay in, for programs that move files between pools.
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

fn longer_than(name: &[u8], prefix: &[u8]) -> bool {
    name.len() > prefix.len() && name.starts_with(prefix)
}

fn check_name(name: &[u8]) -> StatusResult<()> {
    if name.is_empty() || name.len() > XATTR_NAME_MAX {
        return Err(Status::ERANGE);
    }
    if name.contains(&0) { Err(Status::EINVAL) } else { Ok(()) }
}

impl Attributes {
    pub fn get_xattr(&self, caller: &Caller<'_>, fid: &Fid, name: &[u8]) -> StatusResult<MdsAnswer> {
        check_name(name)?;
        let record = self.records.inode(fid)?;
        let class = class_of(name);
        self.check_read(caller, &record, class)?;
        let value = match class {
            Class::Unknown => return Err(Status::EOPNOTSUPP),
            Class::Acl { default: false } => Some(record.acl.clone()).filter(|acl| !acl.is_empty()),
            Class::System(system) => self.layouts.system_xattr(&record, system)?,
            _ => self.records.stored_xattr(fid, name)?,
        };
        Ok(self.commits.answer(MdsReply::Bytes(value.ok_or(Status::ENODATA)?)))
    }

    fn check_read(&self, caller: &Caller<'_>, record: &InodeRecord, class: Class) -> StatusResult<()> {
        match class {
            Class::Trusted => perm::capable(caller.cred(), Caps::SYS_ADMIN).or(Status::ENODATA),
            Class::System(system) if system.is_trusted() => {
                perm::capable(caller.cred(), Caps::SYS_ADMIN).or(Status::ENODATA)
            }
            Class::User if !record.attr.is_regular() && !record.attr.is_dir() => Err(Status::ENODATA),
            Class::User => check_access(record, caller.cred(), perm::READ),
            _ => Ok(()),
        }
    }

    fn check_write(&self, caller: &Caller<'_>, record: &InodeRecord, class: Class) -> StatusResult<()> {
        let cred = caller.cred();
        match class {
            Class::Trusted | Class::Security => perm::capable(cred, Caps::SYS_ADMIN).or(Status::EPERM),
            Class::Capability => perm::capable(cred, Caps::SETFCAP).or(Status::EPERM),
            Class::User => {
                if !record.attr.is_regular() && !record.attr.is_dir() {
                    return Err(Status::EPERM);
                }
                if record.attr.is_dir() && record.attr.mode & S_ISVTX != 0 {
                    perm::owner_or_capable(&record.attr, cred).or(Status::EPERM)?;
                }
                check_access(record, cred, perm::WRITE)
            }
            Class::System(system) if system.is_trusted() => {
                perm::capable(cred, Caps::SYS_ADMIN).or(Status::EPERM)
            }
            Class::System(_) | Class::Acl { .. } => Ok(()),
            Class::Unknown => Err(Status::EOPNOTSUPP),
        }
    }

    pub fn set_xattr(
        &self,
        caller: &Caller<'_>,
        fid: &Fid,
        name: &[u8],
        value: &[u8],
        flags: XattrFlags,
    ) -> StatusResult<MdsAnswer> {
        check_name(name)?;
        if value.len() > XATTR_VALUE_MAX {
            return Err(Status::E2BIG);
        }
        let class = class_of(name);
        if self.space.is_full() {
            return Err(Status::ENOSPC);
        }
        if let Class::System(system) = class {
            self.check_write(caller, &*self.records.inode(fid)?, class)?;
            return self.set_system_xattr(caller, fid, system, value, flags);
        }
        if let Class::Acl { default } = class {
            return self.set_acl(caller, fid, default, Some(value), flags);
        }
        let _locked = self.locks.lock(&[Want::Whole(*fid)])?;
        let record = self.records.inode(fid)?;
        if is_former(&record) {
            return Err(Status::ESTALE);
        }
        self.check_write(caller, &record, class)?;
        let old = self.records.stored_xattr(fid, name)?;
        if flags.contains(XattrFlags::CREATE) && old.is_some() {
            return Err(Status::EEXIST);
        }
        if flags.contains(XattrFlags::REPLACE) && old.is_none() {
            return Err(Status::ENODATA);
        }
        if old.is_none() && self.stored_names(fid)?.len() + name.len() + 1 > LIST_MAX {
            return Err(Status::ENOSPC);
        }
        let mut changed = InodeRecord::clone(&record);
        changed.attr.ctime = now();
        changed.attr.flags |= match class {
            Class::Capability => AttrFlags::HAS_CAPABILITY,
            _ => AttrFlags::HAS_XATTRS,
        };
        let mut tx = self.records.begin();
        let (scratch, batch) = tx.scratch();
        XattrRecord { value }.encode(scratch);
        batch.put(XATTRS, xattr_key(fid, name).as_slice(), scratch);
        let record = tx.put_inode(changed);
        self.commits.finish(caller, tx, MdsReply::Attr(record.shown()))
    }

    pub fn remove_xattr(&self, caller: &Caller<'_>, fid: &Fid, name: &[u8]) -> StatusResult<MdsAnswer> {
        check_name(name)?;
        let class = class_of(name);
        if let Class::System(system) = class {
            self.check_write(caller, &*self.records.inode(fid)?, class)?;
            return self.remove_system_xattr(caller, fid, system);
        }
        if let Class::Acl { default } = class {
            return self.set_acl(caller, fid, default, None, XattrFlags::empty());
        }
        let _locked = self.locks.lock(&[Want::Whole(*fid)])?;
        let record = self.records.inode(fid)?;
        self.check_write(caller, &record, class)?;
        self.records.stored_xattr(fid, name)?.ok_or(Status::ENODATA)?;
        let mut changed = InodeRecord::clone(&record);
        changed.attr.ctime = now();
        if class == Class::Capability {
            changed.attr.flags -= AttrFlags::HAS_CAPABILITY;
        } else if !self.has_plain_xattr_beside(fid, name)? {
            changed.attr.flags -= AttrFlags::HAS_XATTRS;
        }
        let mut tx = self.records.begin();
        tx.batch().delete(XATTRS, xattr_key(fid, name).as_slice());
        tx.batch().set_releasing(true);
        let record = tx.put_inode(changed);
        self.commits.finish(caller, tx, MdsReply::Attr(record.shown()))
    }

    fn each_stored_name(&self, fid: &Fid, f: &mut dyn FnMut(&[u8])) -> StatusResult<()> {
        self.store
            .scan(XATTRS, &fid.to_key(), Bound::Unbounded, &mut |key, _| {
                if let Some((_, name)) = split_xattr_key(key) {
                    f(name);
                }
                ControlFlow::Continue(())
            })
            .map_err(|error| self.records.store_failed(&error))
    }

    /// True if there is an attribute other than `name` that is neither an ACL nor a capability.
    fn has_plain_xattr_beside(&self, fid: &Fid, name: &[u8]) -> StatusResult<bool> {
        let mut found = false;
        self.each_stored_name(fid, &mut |other| {
            found |= other != name && other != ACL_DEFAULT && other != CAPABILITY;
        })?;
        Ok(found)
    }

    /// Names of stored attributes, each ended by NUL.
    fn stored_names(&self, fid: &Fid) -> StatusResult<Vec<u8>> {
        let mut names = Vec::new();
        self.each_stored_name(fid, &mut |name| {
            names.extend_from_slice(name);
            names.push(0);
        })?;
        Ok(names)
    }

    pub fn list_xattr(&self, caller: &Caller<'_>, fid: &Fid) -> StatusResult<MdsAnswer> {
        let record = self.records.inode(fid)?;
        let flags = record.attr.flags;
        let mut list = Vec::new();
        let mut add = |name: &[u8]| {
            list.extend_from_slice(name);
            list.push(0);
        };
        if flags.contains(AttrFlags::HAS_ACL) {
            add(ACL_ACCESS);
        }
        // Those that every inode has (`trusted.lma` and so on) are had by name alone: programs that copy or compare attributes
        // would take them for part of the file.
        if flags.contains(AttrFlags::HAS_LAYOUT) {
            add(LUSTRE_LOV);
        }
        let stored = AttrFlags::HAS_XATTRS | AttrFlags::HAS_DEFAULT_ACL | AttrFlags::HAS_CAPABILITY;
        if flags.intersects(stored) {
            let names = self.stored_names(fid)?;
            for name in names.split(|&b| b == 0).filter(|name| !name.is_empty()) {
                if class_of(name) == Class::Trusted {
                    match perm::capable(caller.cred(), Caps::SYS_ADMIN) {
                        Verdict::Granted => {}
                        Verdict::Denied => continue,
                        Verdict::NeedFull => return Err(Status::NEED_CREDENTIALS),
                    }
                }
                add(name);
            }
        }
        Ok(self.commits.answer(MdsReply::Bytes(list)))
    }
}
