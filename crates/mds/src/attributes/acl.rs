//! ACLs as extended attributes. Source: acl(5).

use super::Attributes;
use crate::plan::may_keep_sgid;
use crate::tables::ACL_DEFAULT;
use crate::tables::{XATTRS, xattr_key};
use crate::turn::Caller;
use crate::tx::now;
use nacre_ondisk::{InodeRecord, XattrRecord};
use nacre_types::acl::Acl;
use nacre_types::attr::S_ISGID;
use nacre_types::{AttrFlags, Fid, FileKind, Status, StatusResult, perm};
use nacre_wire::mds::{MdsAnswer, MdsReply, XattrFlags};

/// Name of the attribute that shows the access ACL.
pub(super) const ACL_ACCESS: &[u8] = b"system.posix_acl_access";

impl Attributes {
    /// Sets or removes an ACL.
    pub(super) fn set_acl(
        &self,
        caller: &Caller<'_>,
        fid: &Fid,
        default: bool,
        value: Option<&[u8]>,
        flags: XattrFlags,
    ) -> StatusResult<MdsAnswer> {
        let held = self.distributed.lock_alike(caller, fid)?;
        let record = self.records.inode(fid)?;
        let attr = &record.attr;
        if attr.kind() == FileKind::Symlink {
            return Err(Status::EOPNOTSUPP);
        }
        let acl = value.map(Acl::parse_xattr).transpose()?.flatten();
        if default && !attr.is_dir() {
            return if acl.is_some() {
                Err(Status::EACCES)
            } else {
                Ok(self.commits.answer(MdsReply::Attr(record.shown())))
            };
        }
        perm::owner_or_capable(attr, caller.cred()).or(Status::EPERM)?;
        let exists =
            attr.flags.contains(if default { AttrFlags::HAS_DEFAULT_ACL } else { AttrFlags::HAS_ACL });
        if flags.contains(XattrFlags::CREATE) && exists {
            return Err(Status::EEXIST);
        }
        if flags.contains(XattrFlags::REPLACE) && !exists {
            return Err(Status::ENODATA);
        }
        if value.is_none() && !exists {
            return Ok(self.commits.answer(MdsReply::Attr(self.layouts.told(&record)?)));
        }
        let mut changed = InodeRecord::clone(&record);
        held.take_latest_times(&mut changed)?;
        changed.attr.ctime = now();
        let mut tx = self.records.begin();
        if default {
            let key = xattr_key(&attr.fid, ACL_DEFAULT);
            match acl {
                Some(acl) => {
                    let value = acl.to_xattr();
                    let (scratch, batch) = tx.scratch();
                    XattrRecord { value: &value }.encode(scratch);
                    batch.put(XATTRS, key.as_slice(), scratch);
                    tx.default_acl = Some(Some(value));
                    changed.attr.flags |= AttrFlags::HAS_DEFAULT_ACL;
                }
                None => {
                    tx.batch().delete(XATTRS, key.as_slice());
                    tx.default_acl = Some(None);
                    changed.attr.flags -= AttrFlags::HAS_DEFAULT_ACL;
                }
            }
        } else {
            apply_access_acl(caller, &mut changed, acl, flags)?;
        }
        let record = tx.put_inode(changed);
        self.distributed.finish_held(caller, held, tx, MdsReply::Attr(record.shown()))
    }
}

fn apply_access_acl(
    caller: &Caller<'_>,
    record: &mut InodeRecord,
    acl: Option<Acl>,
    flags: XattrFlags,
) -> StatusResult<()> {
    record.acl.clear();
    record.attr.flags -= AttrFlags::HAS_ACL;
    let Some(acl) = acl else { return Ok(()) };
    record.attr.mode = (record.attr.mode & !0o777) | acl.mode_bits();
    if record.attr.mode & S_ISGID != 0
        && (flags.contains(XattrFlags::KILL_SGID) || !may_keep_sgid(caller.cred(), record.attr.gid)?)
    {
        record.attr.mode &= !S_ISGID;
    }
    // An ACL that the mode can say is not stored.
    if !acl.is_minimal() {
        record.acl = acl.to_xattr();
        record.attr.flags |= AttrFlags::HAS_ACL;
    }
    Ok(())
}
