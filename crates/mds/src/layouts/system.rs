//! Attributes that are computed from other records: Lustre's layout, FID and link attributes.

use super::{Layouts, is_foreign_directory};
use nacre_layout::{LayoutForm, user};
use nacre_ondisk::InodeRecord;
use nacre_types::{AttrFlags, Fid, StatusResult};

/// Layout of a file or default layout of a directory.
pub(crate) const LUSTRE_LOV: &[u8] = b"lustre.lov";
/// Components to add to a file.
pub(crate) const LOV_ADD: &[u8] = b"lustre.lov.add";
/// Components to delete from a file.
pub(crate) const LOV_DEL: &[u8] = b"lustre.lov.del";
/// Flags of components to change.
pub(crate) const LOV_SET_FLAGS: &[u8] = b"lustre.lov.set.flags";
/// The same as [`LUSTRE_LOV`] for administrators.
pub(crate) const TRUSTED_LOV: &[u8] = b"trusted.lov";
/// FID of the inode (`lustre_mdt_attrs`).
pub(crate) const LMA: &[u8] = b"trusted.lma";
/// Names of the inode.
pub(crate) const TRUSTED_LINK: &[u8] = b"trusted.link";
/// Prefix of the attributes that change components.
pub(crate) const LOV_CHANGE: &[u8] = b"lustre.lov.";

/// Magic of `trusted.link`.
const LINK_MAGIC: u32 = 0x11EA_F1DF;
/// Bytes of the header of `trusted.link`: magic, count, length (u64), time of overflow, padding.
const LINK_HEADER: usize = 24;
/// Longest `trusted.link` in bytes; further names are left out, as in Lustre.
const LINK_LEN_MAX: usize = 4096;

/// The system attributes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum System {
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
    /// `lustre.lmv`: layout of a directory, only for foreign ones.
    Lmv,
    /// `trusted.lmv`.
    TrustedLmv,
    /// `lustre.dmv`: default layout for directories created in a directory.
    Dmv,
    /// `trusted.dmv`.
    TrustedDmv,
    /// A change of components that is not supported.
    LovUnknown,
    /// Lustre's internal attributes without a counterpart here: setting them is ignored, as restoring a
    /// backup does it.
    Internal,
}

impl System {
    /// Returns true if it is a file's layout, or changes it.
    pub(crate) fn is_layout(self) -> bool {
        use System::{Lov, LovAdd, LovDel, LovSetFlags, TrustedLov};
        matches!(self, Lov | TrustedLov | LovAdd | LovDel | LovSetFlags)
    }

    /// Returns true if only administrators may see or set it.
    pub(crate) fn is_trusted(self) -> bool {
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

impl Layouts {
    pub(crate) fn system_xattr(&self, record: &InodeRecord, system: System) -> StatusResult<Option<Vec<u8>>> {
        let attr = &record.attr;
        match system {
            System::Lov | System::TrustedLov => {
                let of_directory = attr.is_dir() && !is_foreign_directory(record);
                let has = (attr.is_regular() || of_directory) && !record.body.is_empty();
                // The root without a default shows that of the file system.
                let shows_default = !has && system == System::Lov && attr.fid == Fid::ROOT;
                let default = shows_default.then(|| self.default_layout()).filter(|spec| !spec.is_empty());
                if let Some(spec) = default {
                    return Ok(Some(user::encode_spec(&attr.fid, &spec)));
                }
                // A file that was never written shows its future components, with their ids.
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
                // The compat and incompat flags are empty.
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
            let Some((parent, name)) = self.leaves.records.extra_link(&record.attr.fid, index)? else {
                break;
            };
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
}

/// Returns true if `trusted.link` shows the names of an inode: it has a name, and is not the root.
fn has_links(record: &InodeRecord) -> bool {
    !record.attr.flags.contains(AttrFlags::ORPHAN) && !record.name.is_empty()
}
