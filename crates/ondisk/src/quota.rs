//! Quotas: owners of objects, uses of the last run, limits. Byte tables: `docs/formats/quota.md`.

use crate::codec::{DecodeError, Reader};
use nacre_types::{ObjectPlace, Owners, QuotaId, QuotaKind, QuotaLimits, QuotaResource};

/// Format version of all records of this module.
pub const QUOTA_VERSION: u8 = 1;
/// Format version of owner records with the place of the object.
pub const OWNER_VERSION_PLACED: u8 = 2;
/// Bytes of an encoded [`OwnerRecord`] without the place of the object.
pub const OWNER_LEN: usize = 24;
/// Bytes of the place.
const PLACE_LEN: usize = 44;
/// Bytes of an encoded [`UseRecord`].
pub const USE_LEN: usize = 24;
/// Bytes of an encoded [`LimitRecord`].
pub const LIMIT_LEN: usize = 56;
/// Bytes of an encoded [`GraceRecord`].
pub const GRACE_LEN: usize = 56;
/// Bytes of the key of a [`UseRecord`].
pub const USE_KEY_LEN: usize = 6;
/// Longest name of a pool in bytes.
const POOL_MAX: usize = 15;

const IS_ACTIVE: u8 = 1;
const HAS_SLICE: u8 = 1;
const IS_DEFAULT: u8 = 1;

/// Owners of an object on an OST, and the space that is counted for them. Key: the FID in key form.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OwnerRecord {
    /// Owners of the file.
    pub owners: Owners,
    /// Bytes that are counted.
    pub counted: u64,
    /// True if the object is in use, so that `counted` may be out of date.
    pub is_active: bool,
    /// File and place in its layout; `None` if the writer did not report it.
    pub place: Option<ObjectPlace>,
}

impl OwnerRecord {
    /// Encodes the record.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = vec![0; OWNER_LEN];
        out[0] = if self.place.is_some() { OWNER_VERSION_PLACED } else { QUOTA_VERSION };
        out[1] = if self.is_active { IS_ACTIVE } else { 0 };
        out[4..8].copy_from_slice(&self.owners.uid.to_le_bytes());
        out[8..12].copy_from_slice(&self.owners.gid.to_le_bytes());
        out[12..16].copy_from_slice(&self.owners.projid.to_le_bytes());
        out[16..24].copy_from_slice(&self.counted.to_le_bytes());
        if let Some(place) = &self.place {
            out.reserve(PLACE_LEN);
            out.extend_from_slice(&place.file.to_le_bytes());
            out.extend_from_slice(&place.start.to_le_bytes());
            out.extend_from_slice(&place.end.to_le_bytes());
            out.extend_from_slice(&place.component.to_le_bytes());
            out.extend_from_slice(&place.stripe_size.to_le_bytes());
            out.extend_from_slice(&place.stripe_count.to_le_bytes());
            out.extend_from_slice(&place.stripe.to_le_bytes());
        }
        out
    }

    /// Decodes a record.
    ///
    /// # Errors
    /// If the bytes are not a record of this version.
    pub fn decode(bytes: &[u8]) -> Result<OwnerRecord, DecodeError> {
        let is_placed = bytes.first() == Some(&OWNER_VERSION_PLACED);
        let mut reader = Reader::new(bytes, if is_placed { OWNER_VERSION_PLACED } else { QUOTA_VERSION })?;
        let is_active = match reader.u8()? {
            0 => false,
            IS_ACTIVE => true,
            _ => return Err(DecodeError::Field("state of an object")),
        };
        reader.reserved::<2>()?;
        let owners = Owners { uid: reader.u32()?, gid: reader.u32()?, projid: reader.u32()? };
        let counted = reader.u64()?;
        let place = if is_placed { Some(decode_place(&mut reader)?) } else { None };
        reader.end()?;
        Ok(OwnerRecord { owners, counted, is_active, place })
    }
}

fn decode_place(reader: &mut Reader<'_>) -> Result<ObjectPlace, DecodeError> {
    let file = reader.fid()?;
    let (start, end) = (reader.u64()?, reader.u64()?);
    let (component, stripe_size) = (reader.u32()?, reader.u32()?);
    let (stripe_count, stripe) = (reader.u16()?, reader.u16()?);
    if stripe >= stripe_count || start >= end || stripe_size == 0 {
        return Err(DecodeError::Field("place in a file"));
    }
    Ok(ObjectPlace { file, component, start, end, stripe_size, stripe_count, stripe })
}

/// Use of a resource by an id at a target, as of the last run. Key: [`use_key`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct UseRecord {
    /// Use: bytes, or inodes.
    pub used: u64,
    /// Slice of the target; `None` if the master has sent none.
    pub slice: Option<u64>,
}

/// Returns the key of a [`UseRecord`].
pub fn use_key(resource: QuotaResource, id: QuotaId) -> [u8; USE_KEY_LEN] {
    let [a, b, c, d] = id.id.to_be_bytes();
    [resource as u8, id.kind as u8, a, b, c, d]
}

/// Decodes the key of a [`UseRecord`]; `None` if it is damaged.
pub fn split_use_key(key: &[u8]) -> Option<(QuotaResource, QuotaId)> {
    let [resource, kind, id @ ..] = <&[u8; USE_KEY_LEN]>::try_from(key).ok()?;
    let resource = *QuotaResource::ALL.get(usize::from(*resource))?;
    Some((resource, QuotaId { kind: QuotaKind::from_number((*kind).into())?, id: u32::from_be_bytes(*id) }))
}

impl UseRecord {
    /// Encodes the record.
    pub fn encode(&self) -> [u8; USE_LEN] {
        let mut out = [0; USE_LEN];
        out[0] = QUOTA_VERSION;
        out[1] = if self.slice.is_some() { HAS_SLICE } else { 0 };
        out[8..16].copy_from_slice(&self.used.to_le_bytes());
        out[16..24].copy_from_slice(&self.slice.unwrap_or(0).to_le_bytes());
        out
    }

    /// Decodes a record.
    ///
    /// # Errors
    /// If the bytes are not a record of this version.
    pub fn decode(bytes: &[u8]) -> Result<UseRecord, DecodeError> {
        let mut reader = Reader::new(bytes, QUOTA_VERSION)?;
        let has_slice = match reader.u8()? {
            0 => false,
            HAS_SLICE => true,
            _ => return Err(DecodeError::Field("slice")),
        };
        reader.reserved::<6>()?;
        let (used, slice) = (reader.u64()?, reader.u64()?);
        reader.end()?;
        if !has_slice && slice != 0 {
            return Err(DecodeError::Field("slice"));
        }
        Ok(UseRecord { used, slice: has_slice.then_some(slice) })
    }
}

/// Limits of an id, or the defaults of a kind. Key: [`limit_key`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LimitRecord {
    /// Limits by resource.
    pub limits: [QuotaLimits; 2],
    /// Ends of the grace times in seconds since the epoch, by resource; 0 where none runs.
    pub grace_ends_s: [u64; 2],
    /// True if the defaults apply, and the record only has the ends of grace times.
    pub is_default: bool,
}

/// Returns the key of a [`LimitRecord`]. `id`: `None` for the defaults; `pool`: empty for the whole file system.
pub fn limit_key(pool: &str, kind: QuotaKind, id: Option<u32>) -> Vec<u8> {
    let mut key = vec![kind as u8, u8::from(id.is_some())];
    key.extend_from_slice(&id.unwrap_or(0).to_be_bytes());
    key.extend_from_slice(pool.as_bytes());
    key
}

/// Decodes the key of a [`LimitRecord`]: pool, kind, id; `None` if it is damaged.
pub fn split_limit_key(key: &[u8]) -> Option<(&str, QuotaKind, Option<u32>)> {
    let ([kind, has_id, id @ ..], pool) = key.split_first_chunk::<6>()?;
    let pool = std::str::from_utf8(pool).ok().filter(|pool| pool.len() <= POOL_MAX)?;
    let id = match (has_id, u32::from_be_bytes(*id)) {
        (1, id) => Some(id),
        (0, 0) => None,
        _ => return None,
    };
    Some((pool, QuotaKind::from_number((*kind).into())?, id))
}

impl LimitRecord {
    /// Encodes the record.
    pub fn encode(&self) -> [u8; LIMIT_LEN] {
        let mut out = [0; LIMIT_LEN];
        out[0] = QUOTA_VERSION;
        out[1] = if self.is_default { IS_DEFAULT } else { 0 };
        let [space, inodes] = self.limits;
        let [space_ends_s, inodes_end_s] = self.grace_ends_s;
        let longs = [space.soft, space.hard, space_ends_s, inodes.soft, inodes.hard, inodes_end_s];
        for (slot, long) in out[8..].chunks_exact_mut(8).zip(longs) {
            slot.copy_from_slice(&long.to_le_bytes());
        }
        out
    }

    /// Decodes a record.
    ///
    /// # Errors
    /// If the bytes are not a record of this version.
    pub fn decode(bytes: &[u8]) -> Result<LimitRecord, DecodeError> {
        let mut reader = Reader::new(bytes, QUOTA_VERSION)?;
        let is_default = match reader.u8()? {
            0 => false,
            IS_DEFAULT => true,
            _ => return Err(DecodeError::Field("origin of the limits")),
        };
        reader.reserved::<6>()?;
        let mut limits = [QuotaLimits::default(); 2];
        let mut grace_ends_s = [0; 2];
        for (limits, ends_s) in limits.iter_mut().zip(&mut grace_ends_s) {
            *limits = QuotaLimits { soft: reader.u64()?, hard: reader.u64()? };
            *ends_s = reader.u64()?;
        }
        reader.end()?;
        Ok(LimitRecord { limits, grace_ends_s, is_default })
    }
}

/// Grace times in seconds, by kind and resource; 0 where none was set.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct GraceRecord(pub [[u64; 2]; 3]);

impl GraceRecord {
    /// Encodes the record.
    pub fn encode(&self) -> [u8; GRACE_LEN] {
        let mut out = [0; GRACE_LEN];
        out[0] = QUOTA_VERSION;
        for (slot, grace) in out[8..].chunks_exact_mut(8).zip(self.0.iter().flatten()) {
            slot.copy_from_slice(&grace.to_le_bytes());
        }
        out
    }

    /// Decodes a record.
    ///
    /// # Errors
    /// If the bytes are not a record of this version.
    pub fn decode(bytes: &[u8]) -> Result<GraceRecord, DecodeError> {
        let mut reader = Reader::new(bytes, QUOTA_VERSION)?;
        reader.reserved::<7>()?;
        let mut record = GraceRecord::default();
        for grace in record.0.iter_mut().flatten() {
            *grace = reader.u64()?;
        }
        reader.end()?;
        Ok(record)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    fn limits() -> LimitRecord {
        LimitRecord {
            limits: [QuotaLimits { soft: 1, hard: 2 }, QuotaLimits { soft: 4, hard: 5 }],
            grace_ends_s: [3, 6],
            is_default: true,
        }
    }

    #[test]
    fn golden_bytes() {
        let owners = Owners { uid: 0x0102_0304, gid: 0x0506_0708, projid: 0x090a_0b0c };
        let owner = OwnerRecord { owners, counted: 0x1122_3344_5566_7788, is_active: true, place: None };
        assert_eq!(hex(&owner.encode()), "0101000004030201080706050c0b0a098877665544332211");
        assert_eq!(OwnerRecord::decode(&owner.encode()), Ok(owner));
        let place = ObjectPlace {
            file: nacre_types::Fid::new(0x2_0000_0401, 7, 0),
            component: 2,
            start: 0x10,
            end: u64::MAX,
            stripe_size: 0x1_0000,
            stripe_count: 4,
            stripe: 3,
        };
        let owner = OwnerRecord { place: Some(place), ..owner };
        let placed = "01040000020000000700000000000000".to_owned()
            + "1000000000000000ffffffffffffffff0200000000000100"
            + "04000300";
        assert_eq!(
            hex(&owner.encode()),
            "0201000004030201080706050c0b0a098877665544332211".to_owned() + &placed
        );
        assert_eq!(OwnerRecord::decode(&owner.encode()), Ok(owner));
        let used = UseRecord { used: 0x0102, slice: Some(0x0304) };
        assert_eq!(hex(&used.encode()), "010100000000000002010000000000000403000000000000");
        assert_eq!(UseRecord::decode(&used.encode()), Ok(used));
        let longs: String = (1..=6).map(|long| format!("{long:02x}00000000000000")).collect();
        assert_eq!(hex(&limits().encode()), format!("0101000000000000{longs}"));
        assert_eq!(LimitRecord::decode(&limits().encode()), Ok(limits()));
        let graces = GraceRecord([[1, 2], [3, 4], [5, 6]]);
        assert_eq!(hex(&graces.encode()), format!("0100000000000000{longs}"));
        assert_eq!(GraceRecord::decode(&graces.encode()), Ok(graces));
    }

    #[test]
    fn a_use_without_a_slice_has_no_value_of_one() {
        let mut bytes = UseRecord { used: 1, slice: None }.encode();
        assert!(UseRecord::decode(&bytes).is_ok());
        bytes[16] = 1;
        assert_eq!(UseRecord::decode(&bytes), Err(DecodeError::Field("slice")));
    }

    #[test]
    fn golden_keys() {
        let id = QuotaId { kind: QuotaKind::Project, id: 0x0102_0304 };
        assert_eq!(hex(&use_key(QuotaResource::Inodes, id)), "010201020304");
        assert_eq!(split_use_key(&[1, 2, 1, 2, 3, 4]), Some((QuotaResource::Inodes, id)));
        assert_eq!(hex(&limit_key("ab", QuotaKind::Group, Some(7))), "0101000000076162");
        assert_eq!(hex(&limit_key("", QuotaKind::User, None)), "000000000000");
        assert_eq!(split_limit_key(&[1, 1, 0, 0, 0, 7, b'a']), Some(("a", QuotaKind::Group, Some(7))));
        assert_eq!(split_limit_key(&[0; 6]), Some(("", QuotaKind::User, None)));
        assert_eq!(split_limit_key(&[0, 0, 0, 0, 0, 1]), None, "a default has no id");
        assert_eq!((split_use_key(&[2, 0, 0, 0, 0, 0]), split_use_key(&[0; 5])), (None, None));
    }
}
