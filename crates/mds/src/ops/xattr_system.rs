//! Attributes that are made from other records: Lustre's layout, FID and link attributes. Source: reference 3.6.

use crate::locks::Want;
use crate::mds::Mds;
use crate::service::Caller;
use nacre_layout::{LayoutForm, Wish, user};
use nacre_ondisk::InodeRecord;
use nacre_types::{AttrFlags, Fid, Status, StatusResult};
use nacre_wire::mds::{MdsAnswer, MdsReply, XattrFlags};

/// Layout of a file or default layout of a directory.
pub(super) const LUSTRE_LOV: &[u8] = b"lustre.lov";
/// Components to be added to a file.
pub(super) const LOV_ADD: &[u8] = b"lustre.lov.add";
/// Components to be taken from a file.
pub(super) const LOV_DEL: &[u8] = b"lustre.lov.del";
/// Flags of components to be changed.
pub(super) const LOV_SET_FLAGS: &[u8] = b"lustre.lov.set.flags";
/// The same as [`LUSTRE_LOV`] for administrators.
pub(super) const TRUSTED_LOV: &[u8] = b"trusted.lov";
/// FID of the inode (`lustre_mdt_attrs`).
pub(super) const LMA: &[u8] = b"trusted.lma";
/// Names of the inode.
pub(super) const TRUSTED_LINK: &[u8] = b"trusted.link";
/// What changes of components begin with.
pub(super) const LOV_CHANGE: &[u8] = b"lustre.lov.";

/// First word of `trusted.link`.
const LINK_MAGIC: u32 = 0x11EA_F1DF;
/// Bytes before the first link: magic, count, length (u64), time of overflow, padding.
const LINK_HEADER: usize = 24;
/// Longest `trusted.link` that is made; further names are left out, as Lustre does.
const LINK_LEN_MAX: usize = 4096;

/// Which of them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum System {
    /// `lustre.lov`.
    Lov,
    /// `trusted.lov`.
    TrustedLov,
    /// `lustre.lov.add`.
    LovAdd,
    /// `lustre.lov.del`.
    LovDel,
    /// `lustre.lov.set.flags`.
    LovSetFlags,
    /// `trusted.lma`.
    Lma,
    /// `trusted.link`.
    Link,
    /// `lustre.lmv`: layout of a directory, of which there are only foreign ones.
    Lmv,
    /// `trusted.lmv`.
    TrustedLmv,
    /// `lustre.dmv`: where directories that are made in a directory go.
    Dmv,
    /// `trusted.dmv`.
    TrustedDmv,
    /// A change of components that does not exist.
    LovUnknown,
    /// Lustre's own, of which we have no counterpart: setting them is ignored, as restoring a backup does it.
    Internal,
}

impl System {
    /// Only administrators may see or set it.
    pub(super) fn is_trusted(self) -> bool {
        !matches!(
            self,
            System::Lov
                | System::Lmv
                | System::Dmv
                | System::LovAdd
                | System::LovDel
                | System::LovSetFlags
                | System::LovUnknown
        )
    }
}

impl Mds {
    pub(super) fn system_xattr(&self, record: &InodeRecord, system: System) -> StatusResult<Option<Vec<u8>>> {
        let attr = &record.attr;
        match system {
            System::Lov | System::TrustedLov => {
                let of_directory = attr.is_dir() && !is_foreign_directory(record);
                let has = (attr.is_regular() || of_directory) && !record.body.is_empty();
                // Where nothing was set for the root, it shows what the file system does.
                let shows_default = !has && system == System::Lov && attr.fid == Fid::ROOT;
                let default = shows_default.then(|| self.default_layout()).filter(|spec| !spec.is_empty());
                if let Some(spec) = default {
                    return Ok(Some(user::encode_spec(&attr.fid, &spec)));
                }
                // A file that was never written shows the components that it will have, with their ids.
                if attr.is_regular()
                    && !attr.flags.contains(AttrFlags::HAS_OBJECTS)
                    && let Some(layout) = self.layout_of(record)?.filter(|l| l.form == LayoutForm::Composite)
                {
                    return Ok(Some(user::encode_layout(&attr.fid, &layout)));
                }
                Ok(has.then(|| match attr.flags.contains(AttrFlags::HAS_OBJECTS) {
                    true => user::for_programs(&attr.fid, &record.body),
                    false => record.body.clone(),
                }))
            }
            System::Lma => {
                // No compat or incompat flags.
                let mut value = vec![0u8; 8];
                value.extend_from_slice(&attr.fid.to_le_bytes());
                Ok(Some(value))
            }
            System::Lmv | System::TrustedLmv => Ok(match is_foreign_directory(record) {
                true => Some(record.body.clone()),
                false => Some(record.lmv.clone()).filter(|lmv| !lmv.is_empty()),
            }),
            System::Dmv | System::TrustedDmv => {
                Ok(Some(record.default_lmv.clone()).filter(|value| !value.is_empty()))
            }
            System::Link => has_links(record).then(|| self.link_xattr(record)).transpose(),
            System::Internal | System::LovAdd | System::LovDel | System::LovSetFlags | System::LovUnknown => {
                Ok(None)
            }
        }
    }

    fn link_xattr(&self, record: &InodeRecord) -> StatusResult<Vec<u8>> {
        let mut links = Vec::new();
        let mut count = 0u32;
        let mut add = |parent: &Fid, name: &[u8]| {
            let len = 2 + 16 + name.len();
            if LINK_HEADER + links.len() + len > LINK_LEN_MAX {
                return false;
            }
            links.extend_from_slice(&(len as u16).to_be_bytes());
            links.extend_from_slice(&parent.to_key());
            links.extend_from_slice(name);
            count += 1;
            true
        };
        add(&record.parent, &record.name);
        for index in 0..record.attr.nlink.saturating_sub(1) {
            let Some((parent, name)) = self.extra_link(&record.attr.fid, index)? else { break };
            if record.attr.is_dir() || !add(&parent, &name) {
                break;
            }
        }
        let mut value = Vec::with_capacity(LINK_HEADER + links.len());
        value.extend_from_slice(&LINK_MAGIC.to_le_bytes());
        value.extend_from_slice(&count.to_le_bytes());
        value.extend_from_slice(&((LINK_HEADER + links.len()) as u64).to_le_bytes());
        value.extend_from_slice(&[0; 8]);
        value.extend_from_slice(&links);
        Ok(value)
    }

    pub(super) fn set_system_xattr(
        &self,
        caller: &Caller<'_>,
        fid: &Fid,
        system: System,
        value: &[u8],
        flags: XattrFlags,
    ) -> StatusResult<MdsAnswer> {
        let impossible = |_| Status::EINVAL;
        match system {
            // An empty value removes, as with Lustre.
            System::Lov | System::TrustedLov if value.is_empty() => {
                self.remove_system_xattr(caller, fid, system)
            }
            System::Lov | System::TrustedLov => self.set_layout_xattr(caller, fid, value, flags),
            System::Lmv | System::TrustedLmv => self.set_directory_layout(caller, fid, value, flags),
            System::Dmv => self.set_dir_default(caller, fid, value),
            // Copies of attributes bring it along also for what is no directory.
            System::TrustedDmv => match self.set_dir_default(caller, fid, value) {
                Err(Status::ENOTDIR) => self.get_attr(fid),
                result => result,
            },
            System::LovAdd => {
                self.add_components(caller, fid, user::decode_added(value).map_err(impossible)?)
            }
            System::LovDel => {
                self.delete_components(caller, fid, user::decode_selector(value).map_err(impossible)?)
            }
            // Flags can only be changed where there are mirrors to choose from.
            System::LovSetFlags | System::LovUnknown => Err(Status::EINVAL),
            System::Lma | System::Link | System::Internal => self.get_attr(fid),
        }
    }

    /// Makes an empty directory a foreign one, which stays one and gets no entries. Layouts over MDTs, which backups bring along, are ignored.
    fn set_directory_layout(
        &self,
        caller: &Caller<'_>,
        fid: &Fid,
        value: &[u8],
        flags: XattrFlags,
    ) -> StatusResult<MdsAnswer> {
        let _locked = self.locks.lock(&[Want::Whole(*fid)])?;
        let record = self.inode(fid)?;
        self.may_set_layout(caller, &record)?;
        if !user::is_foreign_directory(value) {
            return Ok(self.answer(MdsReply::Attr(self.told(&record)?)));
        }
        user::decode_foreign_directory(value).map_err(|_| Status::EINVAL)?;
        if !record.attr.is_dir() {
            return Err(Status::ENOTDIR);
        }
        if is_foreign_directory(&record) {
            return match flags.contains(XattrFlags::CREATE) {
                true => Err(Status::EEXIST),
                false => Ok(self.answer(MdsReply::Attr(record.shown()))),
            };
        }
        // What lies in shards cannot be seen from here.
        if record.entries() != 0 || !record.lmv.is_empty() {
            return Err(Status::ENOTEMPTY);
        }
        if *fid == Fid::ROOT {
            return Err(Status::EBUSY);
        }
        let mut changed = InodeRecord::clone(&record);
        changed.attr.ctime = self.now();
        changed.body = value.to_vec();
        changed.attr.flags |= AttrFlags::HAS_LAYOUT;
        let mut tx = self.begin();
        let record = tx.put_inode(changed);
        self.finish(caller, tx, MdsReply::Attr(record.shown()))
    }

    /// A value with objects was copied from another file, maybe of another file system: only its shape counts. Programs that copy attributes must not fail because data has come first: with [`XattrFlags::CREATE`] a file
    /// that has objects gives `EEXIST`, otherwise it stays as it is.
    fn set_layout_xattr(
        &self,
        caller: &Caller<'_>,
        fid: &Fid,
        value: &[u8],
        flags: XattrFlags,
    ) -> StatusResult<MdsAnswer> {
        if user::is_foreign(value) {
            let foreign = user::decode_foreign(value).map_err(|_| Status::EINVAL)?;
            return match self.set_foreign(caller, fid, &foreign) {
                Err(Status::EALREADY) if flags.contains(XattrFlags::CREATE) => Err(Status::EEXIST),
                Err(Status::EALREADY) => self.get_attr(fid),
                result => result,
            };
        }
        let wish = user::decode_wish(value).map_err(|error| match error {
            user::UserMdError::Short => Status::ERANGE,
            _ => Status::EINVAL,
        })?;
        match self.set_layout(caller, fid, &wish) {
            Err(Status::EALREADY) if flags.contains(XattrFlags::CREATE) => Err(Status::EEXIST),
            Err(Status::EALREADY) => self.get_attr(fid),
            result => result,
        }
    }

    /// Removes what can be: the default of a directory. All else stays, and programs that make a copy's attributes those of
    /// the original need not know it.
    pub(super) fn remove_system_xattr(
        &self,
        caller: &Caller<'_>,
        fid: &Fid,
        system: System,
    ) -> StatusResult<MdsAnswer> {
        match system {
            System::Lov | System::TrustedLov => {
                // One may have been removed under its other name just before.
                let record = self.inode(fid)?;
                if record.body.is_empty() || !record.attr.is_dir() || is_foreign_directory(&record) {
                    return self.get_attr(fid);
                }
                self.set_layout(caller, fid, &Wish::default())
            }
            System::Dmv | System::TrustedDmv => match self.inode(fid)?.default_lmv.is_empty() {
                true => self.get_attr(fid),
                false => self.set_dir_default(caller, fid, &[]),
            },
            System::Lma | System::Link | System::Internal | System::Lmv | System::TrustedLmv => {
                self.get_attr(fid)
            }
            System::LovAdd | System::LovDel | System::LovSetFlags | System::LovUnknown => {
                Err(Status::ENODATA)
            }
        }
    }
}

/// True for a directory whose entries another store has.
pub(super) fn is_foreign_directory(record: &InodeRecord) -> bool {
    record.attr.is_dir() && user::is_foreign_directory(&record.body)
}

/// True if the names of an inode are told: it has one, and is not the root.
fn has_links(record: &InodeRecord) -> bool {
    !record.attr.flags.contains(AttrFlags::ORPHAN) && !record.name.is_empty()
}
