//! POSIX access control lists: the kernel's xattr form, checks, inheritance and the relation to mode bits.
//!
//! The xattr form is version 2 of `linux/posix_acl_xattr.h`: a version of 4 bytes, then 8 bytes per entry.

use crate::limits::ACL_ENTRIES_MAX;
use crate::nodemap::IdKind;
use crate::status::Status;

/// Version number at the start of the xattr form.
const XATTR_VERSION: u32 = 2;
/// Id stored in entries that carry none.
const NO_ID: u32 = u32::MAX;

/// Class of users that an entry applies to. Numbers are the kernel's, and their order is the order of
/// entries.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
#[repr(u16)]
pub enum AclTag {
    /// The owner of the file.
    UserObj = 0x01,
    /// A user named by the entry's id.
    User = 0x02,
    /// The owning group of the file.
    GroupObj = 0x04,
    /// A group named by the entry's id.
    Group = 0x08,
    /// Upper bound for all but owner and other.
    Mask = 0x10,
    /// All other users.
    Other = 0x20,
}

impl AclTag {
    fn from_raw(raw: u16) -> Option<AclTag> {
        Some(match raw {
            0x01 => AclTag::UserObj,
            0x02 => AclTag::User,
            0x04 => AclTag::GroupObj,
            0x08 => AclTag::Group,
            0x10 => AclTag::Mask,
            0x20 => AclTag::Other,
            _ => return None,
        })
    }

    fn has_id(self) -> bool {
        matches!(self, AclTag::User | AclTag::Group)
    }
}

/// One entry of an ACL.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AclEntry {
    /// Class of users that the entry applies to.
    pub tag: AclTag,
    /// Rights of the class, in the low three bits.
    pub perm: u8,
    /// User or group id of a named entry, otherwise ignored.
    pub id: u32,
}

/// A valid ACL: one owner, one group, one other entry, a mask if there are named entries, all in order.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Acl {
    entries: Vec<AclEntry>,
}

impl Acl {
    /// Builds an ACL from entries.
    ///
    /// # Errors
    /// `EINVAL` if a mandatory entry is missing or duplicated, entries are out of order, or a mask is
    /// missing.
    pub fn from_entries(entries: Vec<AclEntry>) -> Result<Acl, Status> {
        let count = |tag| entries.iter().filter(|e| e.tag == tag).count();
        let named = entries.iter().any(|e| e.tag.has_id());
        let in_order = entries.windows(2).all(|p| p[0].tag <= p[1].tag);
        let masks = count(AclTag::Mask);
        if entries.len() > ACL_ENTRIES_MAX
            || count(AclTag::UserObj) != 1
            || count(AclTag::GroupObj) != 1
            || count(AclTag::Other) != 1
            || masks > 1
            || (named && masks == 0)
            || !in_order
            || entries.iter().any(|e| e.perm > 7 || (e.tag.has_id() && e.id == NO_ID))
        {
            return Err(Status::EINVAL);
        }
        Ok(Acl { entries })
    }

    /// Parses the value of `system.posix_acl_access` or `system.posix_acl_default`. An empty list gives
    /// `None`: "remove".
    ///
    /// # Errors
    /// `EINVAL` for malformed bytes, `EOPNOTSUPP` for another version.
    pub fn parse_xattr(value: &[u8]) -> Result<Option<Acl>, Status> {
        let Some((version, body)) = value.split_first_chunk::<4>() else { return Err(Status::EINVAL) };
        if u32::from_le_bytes(*version) != XATTR_VERSION {
            return Err(Status::EOPNOTSUPP);
        }
        if body.is_empty() {
            return Ok(None);
        }
        let (chunks, []) = body.as_chunks::<8>() else { return Err(Status::EINVAL) };
        let mut entries = Vec::with_capacity(chunks.len().min(ACL_ENTRIES_MAX + 1));
        for [a, b, c, d, e, f, g, h] in chunks.iter().take(ACL_ENTRIES_MAX + 1) {
            let tag = AclTag::from_raw(u16::from_le_bytes([*a, *b])).ok_or(Status::EINVAL)?;
            let perm = u16::from_le_bytes([*c, *d]);
            let id = if tag.has_id() { u32::from_le_bytes([*e, *f, *g, *h]) } else { 0 };
            entries.push(AclEntry { tag, perm: u8::try_from(perm).map_err(|_| Status::EINVAL)?, id });
        }
        Acl::from_entries(entries).map(Some)
    }

    /// Returns the ACL with the ids of users and groups translated by `map`.
    ///
    /// # Errors
    /// Those of `map`.
    pub fn with_ids(mut self, map: impl Fn(IdKind, u32) -> Result<u32, Status>) -> Result<Acl, Status> {
        for entry in &mut self.entries {
            match entry.tag {
                AclTag::User => entry.id = map(IdKind::Uid, entry.id)?,
                AclTag::Group => entry.id = map(IdKind::Gid, entry.id)?,
                AclTag::UserObj | AclTag::GroupObj | AclTag::Mask | AclTag::Other => {}
            }
        }
        Ok(self)
    }

    /// Returns the kernel's xattr form.
    pub fn to_xattr(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(4 + 8 * self.entries.len());
        out.extend_from_slice(&XATTR_VERSION.to_le_bytes());
        for entry in &self.entries {
            out.extend_from_slice(&(entry.tag as u16).to_le_bytes());
            out.extend_from_slice(&u16::from(entry.perm).to_le_bytes());
            out.extend_from_slice(&if entry.tag.has_id() { entry.id } else { NO_ID }.to_le_bytes());
        }
        out
    }

    fn find(&self, tag: AclTag) -> Option<u8> {
        self.entries.iter().find(|e| e.tag == tag).map(|e| e.perm)
    }

    /// Returns the rights of the entry for user `uid`, unmasked.
    pub fn named_user(&self, uid: u32) -> Option<u8> {
        self.entries.iter().find(|e| e.tag == AclTag::User && e.id == uid).map(|e| e.perm)
    }

    /// Iterates over all group entries as (group, rights), unmasked; the owning group is `owning_gid`.
    pub fn groups(&self, owning_gid: u32) -> impl Iterator<Item = (u32, u8)> + '_ {
        self.entries.iter().filter_map(move |e| match e.tag {
            AclTag::GroupObj => Some((owning_gid, e.perm)),
            AclTag::Group => Some((e.id, e.perm)),
            _ => None,
        })
    }

    /// Returns the mask, or all rights if there is none.
    pub fn mask(&self) -> u8 {
        self.find(AclTag::Mask).unwrap_or(7)
    }

    /// Returns the rights of all other users.
    pub fn other(&self) -> u8 {
        self.find(AclTag::Other).unwrap_or(0)
    }

    /// Returns the nine permission bits that represent this ACL in `mode`: the group class is the mask if
    /// there is one.
    pub fn mode_bits(&self) -> u32 {
        let owner = self.find(AclTag::UserObj).unwrap_or(0);
        let group = self.find(AclTag::Mask).or_else(|| self.find(AclTag::GroupObj)).unwrap_or(0);
        (u32::from(owner) << 6) | (u32::from(group) << 3) | u32::from(self.other())
    }

    /// True if mode bits can express the whole ACL.
    pub fn is_minimal(&self) -> bool {
        self.entries.len() == 3
    }

    /// Returns the ACL after `chmod`: owner, group class and other follow the new bits.
    pub fn with_mode(&self, mode: u32) -> Acl {
        let mut entries = self.entries.clone();
        let has_mask = entries.iter().any(|e| e.tag == AclTag::Mask);
        for entry in &mut entries {
            match entry.tag {
                AclTag::UserObj => entry.perm = ((mode >> 6) & 7) as u8,
                AclTag::Mask => entry.perm = ((mode >> 3) & 7) as u8,
                AclTag::GroupObj if !has_mask => entry.perm = ((mode >> 3) & 7) as u8,
                AclTag::Other => entry.perm = (mode & 7) as u8,
                _ => {}
            }
        }
        Acl { entries }
    }

    /// Returns what a new file inherits from its directory's default ACL: the access ACL limited by the mode
    /// of the create (umask does not apply), and the resulting permission bits.
    pub fn inherit(&self, create_mode: u32) -> (Acl, u32) {
        let mut entries = self.entries.clone();
        let has_mask = entries.iter().any(|e| e.tag == AclTag::Mask);
        for entry in &mut entries {
            match entry.tag {
                AclTag::UserObj => entry.perm &= ((create_mode >> 6) & 7) as u8,
                AclTag::Mask => entry.perm &= ((create_mode >> 3) & 7) as u8,
                AclTag::GroupObj if !has_mask => entry.perm &= ((create_mode >> 3) & 7) as u8,
                AclTag::Other => entry.perm &= (create_mode & 7) as u8,
                _ => {}
            }
        }
        let acl = Acl { entries };
        let bits = acl.mode_bits();
        (acl, bits)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Acl {
        Acl::from_entries(vec![
            AclEntry { tag: AclTag::UserObj, perm: 7, id: 0 },
            AclEntry { tag: AclTag::User, perm: 6, id: 1000 },
            AclEntry { tag: AclTag::GroupObj, perm: 5, id: 0 },
            AclEntry { tag: AclTag::Mask, perm: 7, id: 0 },
            AclEntry { tag: AclTag::Other, perm: 4, id: 0 },
        ])
        .expect("valid")
    }

    #[test]
    fn the_xattr_form_round_trips_and_has_the_kernels_bytes() {
        let bytes = sample().to_xattr();
        assert_eq!(&bytes[..12], &[2, 0, 0, 0, 1, 0, 7, 0, 0xff, 0xff, 0xff, 0xff]);
        assert_eq!(Acl::parse_xattr(&bytes), Ok(Some(sample())));
        assert_eq!(Acl::parse_xattr(&[2, 0, 0, 0]), Ok(None));
        assert_eq!(Acl::parse_xattr(&[1, 0, 0, 0]), Err(Status::EOPNOTSUPP));
        assert_eq!(Acl::parse_xattr(&bytes[..bytes.len() - 1]), Err(Status::EINVAL));
    }

    #[test]
    fn named_entries_need_a_mask() {
        let mut entries = sample().entries;
        entries.retain(|e| e.tag != AclTag::Mask);
        assert_eq!(Acl::from_entries(entries), Err(Status::EINVAL));
    }

    #[test]
    fn chmod_sets_the_mask_and_inheritance_intersects_with_the_create_mode() {
        assert_eq!(sample().with_mode(0o640).mode_bits(), 0o640);
        assert_eq!(sample().with_mode(0o640).named_user(1000), Some(6));
        let (acl, bits) = sample().inherit(0o666);
        assert_eq!(bits, 0o664);
        assert_eq!(acl.mask(), 6);
    }

    proptest::proptest! {
        #[test]
        fn parsing_never_panics(bytes in proptest::collection::vec(0u8..=255, 0..200)) {
            let _ = Acl::parse_xattr(&bytes);
        }
    }
}
