//! Extended attributes, ACLs and defaults of directories, with the rules of xattr(7).

use super::Attributes;
use crate::layouts::system::LUSTRE_LOV;
use crate::perform::Held;
use crate::plan::{
    self, ACL_ACCESS, AclChange, Amendment, Class, Plain, check_xattr_read, check_xattr_write,
};
use crate::shards::is_former;
use crate::suspend::Caller;
use crate::tables::{ACL_DEFAULT, CAPABILITY, XATTRS, split_xattr_key};
use crate::tx::now;
use nacre_ondisk::{ChangeRecord, InodeRecord};
use nacre_types::limits::{XATTR_NAME_MAX, XATTR_VALUE_MAX};
use nacre_types::perm::Verdict;
use nacre_types::{AttrFlags, Caps, ChangeKind, Fid, Status, StatusResult, perm};
use nacre_wire::mds::{MdsAnswer, MdsReply, XattrFlags};
use std::ops::{Bound, ControlFlow};
use std::sync::Arc;

/// Longest list of names in bytes, the kernel's limit.
const LIST_MAX: usize = 65536;

fn check_name(name: &[u8]) -> StatusResult<()> {
    if name.is_empty() || name.len() > XATTR_NAME_MAX {
        return Err(Status::ERANGE);
    }
    if name.contains(&0) { Err(Status::EINVAL) } else { Ok(()) }
}

impl Attributes {
    pub fn get_xattr(&self, caller: &Caller<'_>, fid: &Fid, name: &[u8]) -> StatusResult<MdsAnswer> {
        check_name(name)?;
        let record = self.leaves.records.inode(fid)?;
        let class = Class::of(name);
        check_xattr_read(caller.cred(), &record, class)?;
        let value = match class {
            Class::Unknown => return Err(Status::EOPNOTSUPP),
            Class::Acl { default: false } => Some(record.acl.clone()).filter(|acl| !acl.is_empty()),
            Class::System(system) => self.core.layouts.system_xattr(&record, system)?,
            _ => self.leaves.records.stored_xattr(fid, name)?,
        };
        let reply = MdsReply::Bytes(value.ok_or(Status::ENODATA)?);
        if !self.leaves.changelog.wanted().contains(ChangeKind::GetXattr) {
            return Ok(self.core.commits.answer(reply));
        }
        let read = ChangeRecord { xattr: Some(name), ..ChangeRecord::new(ChangeKind::GetXattr, *fid) };
        let mut tx = self.leaves.records.begin();
        self.leaves.changelog.note(caller, &mut tx, &read);
        self.core.commits.finish(caller, tx, reply)
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
        let class = Class::of(name);
        if self.leaves.space.is_full() {
            return Err(Status::ENOSPC);
        }
        if let Class::System(system) = class {
            check_xattr_write(caller.cred(), &*self.leaves.records.inode(fid)?, class)?;
            return self.set_system_xattr(caller, fid, system, value, flags);
        }
        if let Class::Acl { default } = class {
            return self.set_acl(caller, fid, AclChange { is_default: default, value: Some(value), flags });
        }
        let held = self.core.performer.lock_alone(caller, fid)?;
        let record = self.leaves.records.inode(fid)?;
        if is_former(&record) {
            return Err(Status::ESTALE);
        }
        let exists = self.leaves.records.stored_xattr(fid, name)?.is_some();
        let plain = Plain { record: &record, name, exists };
        let amendment = plan::set_xattr(caller.cred(), &plain, value, flags, now())?;
        if !exists && self.stored_names(fid)?.len() + name.len() + 1 > LIST_MAX {
            return Err(Status::ENOSPC);
        }
        self.core.performer.amend(caller, held, self.leaves.records.begin(), amendment)
    }

    pub fn remove_xattr(&self, caller: &Caller<'_>, fid: &Fid, name: &[u8]) -> StatusResult<MdsAnswer> {
        check_name(name)?;
        let class = Class::of(name);
        if let Class::System(system) = class {
            check_xattr_write(caller.cred(), &*self.leaves.records.inode(fid)?, class)?;
            return self.remove_system_xattr(caller, fid, system);
        }
        if let Class::Acl { default } = class {
            let flags = XattrFlags::empty();
            return self.set_acl(caller, fid, AclChange { is_default: default, value: None, flags });
        }
        let held = self.core.performer.lock_alone(caller, fid)?;
        let record = self.leaves.records.inode(fid)?;
        let exists = self.leaves.records.stored_xattr(fid, name)?.is_some();
        let plain = Plain { record: &record, name, exists };
        let has_others = exists && self.has_plain_xattr_beside(fid, name)?;
        let amendment = plan::remove_xattr(caller.cred(), &plain, has_others, now())?;
        self.core.performer.amend(caller, held, self.leaves.records.begin(), amendment)
    }

    /// Sets or removes an ACL.
    fn set_acl(&self, caller: &Caller<'_>, fid: &Fid, change: AclChange<'_>) -> StatusResult<MdsAnswer> {
        let held = self.core.performer.lock_alike(caller, fid)?;
        let record = self.leaves.records.inode(fid)?;
        let shards = held.shards_of(&record)?;
        let amendment = plan::set_acl(caller.cred(), &record, &shards, change, now())?;
        self.amend_or_answer(caller, held, &record, amendment)
    }

    /// Sets the default layout for directories created in a directory, or removes it if the value is empty or
    /// Lustre's encoding of a removal. The default is stored with the directory, inherited level by level,
    /// and applied by clients; see `docs/design/dne.md`.
    ///
    /// # Errors
    /// `EPERM` without the right to choose MDTs, and for callers that do not own the directory; `ENOTDIR`;
    /// `EINVAL`.
    pub(super) fn set_dir_default(
        &self,
        caller: &Caller<'_>,
        fid: &Fid,
        value: &[u8],
    ) -> StatusResult<MdsAnswer> {
        self.core.placement.may_choose_mdts(caller)?;
        let held = self.core.performer.lock_alike(caller, fid)?;
        let record = self.leaves.records.inode(fid)?;
        let shards = held.shards_of(&record)?;
        let amendment = plan::set_dir_default(caller.cred(), &record, &shards, value, now())?;
        self.amend_or_answer(caller, held, &record, amendment)
    }

    pub(super) fn amend_or_answer(
        &self,
        caller: &Caller<'_>,
        held: Held<'_>,
        record: &Arc<InodeRecord>,
        amendment: Option<Amendment<'_>>,
    ) -> StatusResult<MdsAnswer> {
        match amendment {
            Some(amendment) => {
                self.core.performer.amend(caller, held, self.leaves.records.begin(), amendment)
            }
            None => Ok(self.core.commits.answer(MdsReply::Attr(self.core.layouts.told(record)?))),
        }
    }

    fn each_stored_name(&self, fid: &Fid, f: &mut dyn FnMut(&[u8])) -> StatusResult<()> {
        self.leaves
            .store
            .scan(XATTRS, &fid.to_key(), Bound::Unbounded, &mut |key, _| {
                if let Some((_, name)) = split_xattr_key(key) {
                    f(name);
                }
                ControlFlow::Continue(())
            })
            .map_err(|error| self.leaves.records.store_failed(&error))
    }

    /// Returns true if there is an attribute other than `name` that is neither an ACL nor a capability.
    fn has_plain_xattr_beside(&self, fid: &Fid, name: &[u8]) -> StatusResult<bool> {
        let mut found = false;
        self.each_stored_name(fid, &mut |other| {
            found |= other != name && other != ACL_DEFAULT && other != CAPABILITY;
        })?;
        Ok(found)
    }

    /// Returns the names of stored attributes, each terminated by NUL.
    fn stored_names(&self, fid: &Fid) -> StatusResult<Vec<u8>> {
        let mut names = Vec::new();
        self.each_stored_name(fid, &mut |name| {
            names.extend_from_slice(name);
            names.push(0);
        })?;
        Ok(names)
    }

    pub fn list_xattr(&self, caller: &Caller<'_>, fid: &Fid) -> StatusResult<MdsAnswer> {
        let record = self.leaves.records.inode(fid)?;
        let flags = record.attr.flags;
        let mut list = Vec::new();
        let mut add = |name: &[u8]| {
            list.extend_from_slice(name);
            list.push(0);
        };
        if flags.contains(AttrFlags::HAS_ACL) {
            add(ACL_ACCESS);
        }
        // Attributes that every inode has (`trusted.lma` and so on) are readable but not listed: programs
        // that copy or compare attributes would take them for part of the file.
        if flags.contains(AttrFlags::HAS_LAYOUT) {
            add(LUSTRE_LOV);
        }
        let stored = AttrFlags::HAS_XATTRS | AttrFlags::HAS_DEFAULT_ACL | AttrFlags::HAS_CAPABILITY;
        if flags.intersects(stored) {
            let names = self.stored_names(fid)?;
            for name in names.split(|&b| b == 0).filter(|name| !name.is_empty()) {
                if Class::of(name) == Class::Trusted {
                    match perm::capable(caller.cred(), Caps::SYS_ADMIN) {
                        Verdict::Granted => {}
                        Verdict::Denied => continue,
                        Verdict::NeedFull => return Err(Status::NEED_CREDENTIALS),
                    }
                }
                add(name);
            }
        }
        Ok(self.core.commits.answer(MdsReply::Bytes(list)))
    }
}
