//! Changes of attributes that are computed from other records: Lustre's layouts, and attributes that programs
//! copy along with a file.

use super::Attributes;
use crate::layouts::is_foreign_directory;
use crate::layouts::system::System;
use crate::plan;
use crate::suspend::Caller;
use crate::tx::now;
use nacre_layout::{LayoutRequest, user};
use nacre_types::{Fid, Status, StatusResult};
use nacre_wire::mds::{MdsAnswer, XattrFlags};

impl Attributes {
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
            // An empty value removes the layout, as in Lustre.
            System::Lov | System::TrustedLov if value.is_empty() => {
                self.remove_system_xattr(caller, fid, system)
            }
            System::Lov | System::TrustedLov => self.set_layout_xattr(caller, fid, value, flags),
            System::Lmv | System::TrustedLmv => self.set_directory_layout(caller, fid, value, flags),
            System::Dmv => self.set_dir_default(caller, fid, value),
            // Programs that copy attributes also set it on files that are not directories.
            System::TrustedDmv => match self.set_dir_default(caller, fid, value) {
                Err(Status::ENOTDIR) => self.lookups.get_attr(fid),
                result => result,
            },
            System::LovAdd => self.layout_changes.add_components(
                caller,
                fid,
                user::decode_added(value).map_err(impossible)?,
            ),
            System::LovDel => self.layout_changes.delete_components(
                caller,
                fid,
                user::decode_selector(value).map_err(impossible)?,
            ),
            // Flags can only be changed where there are mirrors.
            System::LovSetFlags | System::LovUnknown => Err(Status::EINVAL),
            System::Lma | System::Link | System::Internal => self.lookups.get_attr(fid),
        }
    }

    fn set_directory_layout(
        &self,
        caller: &Caller<'_>,
        fid: &Fid,
        value: &[u8],
        flags: XattrFlags,
    ) -> StatusResult<MdsAnswer> {
        let held = self.core.performer.lock_alone(caller, fid)?;
        let record = self.leaves.records.inode(fid)?;
        let is_new = flags.contains(XattrFlags::CREATE);
        let amendment = plan::set_foreign_directory(caller.cred(), &record, value, is_new, now())?;
        self.amend_or_answer(caller, held, &record, amendment)
    }

    /// Sets a layout from an attribute value. A value with objects was copied from another file, maybe of
    /// another file system: only its shape counts. Programs that copy attributes must not fail because they
    /// wrote the data first: with [`XattrFlags::CREATE`] a file that has objects gives `EEXIST`, otherwise it
    /// stays as it is.
    fn set_layout_xattr(
        &self,
        caller: &Caller<'_>,
        fid: &Fid,
        value: &[u8],
        flags: XattrFlags,
    ) -> StatusResult<MdsAnswer> {
        if user::is_foreign(value) {
            let foreign = user::decode_foreign(value).map_err(|_| Status::EINVAL)?;
            return match self.layout_changes.set_foreign(caller, fid, &foreign) {
                Err(Status::EALREADY) if flags.contains(XattrFlags::CREATE) => Err(Status::EEXIST),
                Err(Status::EALREADY) => self.lookups.get_attr(fid),
                result => result,
            };
        }
        let requested = user::decode_request(value).map_err(|error| match error {
            user::UserMdError::Short => Status::ERANGE,
            _ => Status::EINVAL,
        })?;
        match self.layout_changes.set_layout(caller, fid, &requested) {
            Err(Status::EALREADY) if flags.contains(XattrFlags::CREATE) => Err(Status::EEXIST),
            Err(Status::EALREADY) => self.lookups.get_attr(fid),
            result => result,
        }
    }

    /// Removes the default of a directory. Other system attributes stay without an error, since programs that
    /// make a copy's attributes equal to the original's do not know them.
    pub(super) fn remove_system_xattr(
        &self,
        caller: &Caller<'_>,
        fid: &Fid,
        system: System,
    ) -> StatusResult<MdsAnswer> {
        match system {
            System::Lov | System::TrustedLov => {
                // The first removal may have changed the record under the attribute's other name.
                let record = self.leaves.records.inode(fid)?;
                if record.body.is_empty() || !record.attr.is_dir() || is_foreign_directory(&record) {
                    return self.lookups.get_attr(fid);
                }
                self.layout_changes.set_layout(caller, fid, &LayoutRequest::default())
            }
            System::Dmv | System::TrustedDmv => {
                match self.leaves.records.inode(fid)?.default_lmv.is_empty() {
                    true => self.lookups.get_attr(fid),
                    false => self.set_dir_default(caller, fid, &[]),
                }
            }
            System::Lma | System::Link | System::Internal | System::Lmv | System::TrustedLmv => {
                self.lookups.get_attr(fid)
            }
            System::LovAdd | System::LovDel | System::LovSetFlags | System::LovUnknown => {
                Err(Status::ENODATA)
            }
        }
    }
}
