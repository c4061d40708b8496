//! Lustre's binary form of layouts: `lov_user_md_v1` and `_v3`, also our on-disk form. Source: reference 3.6.
//!
//! One form serves four purposes: the layout of a file on disk, the default of a directory on disk, the value of the
//! `lustre.lov` and `trusted.lov` attributes, and the wishes that `lfs` sends. Version 3 is version 1 with a pool.
//!
//! ```text
//!  0 magic u32     4 pattern u32 (1 = raid0)    8 oid u64 and sequence u64 of the file
//! 24 stripe size   28 stripe count u16          30 layout generation (read) or first OST (wish), u16
//! 32 pool, 16 bytes (version 3 only)            then 24 bytes per object: FID 16, generation u32, OST index u32
//! ```
//!
//! Everything is little-endian. In wishes 0 means "the default", a count of 0xffff all OSTs, an offset of 0xffff any OST.

use crate::layout::{
    Component, ComponentFlags, Extent, Layout, LayoutForm, PoolName, STRIPE_COUNT_ALL, StripeObject,
};
use crate::spec::LayoutSpec;
use nacre_types::Fid;
use nacre_types::limits::{STRIPE_COUNT_MAX, STRIPE_SIZE_MIN, TARGET_INDEX_MAX};

/// Magic of version 1: no pool.
pub const MAGIC_V1: u32 = 0x0BD1_0BD0;
/// Magic of version 3: with a pool.
pub const MAGIC_V3: u32 = 0x0BD3_0BD0;
/// Striping over objects, the only pattern so far.
pub const PATTERN_RAID0: u32 = 1;
/// "Any OST" in a wish.
pub const OFFSET_ANY: u16 = u16::MAX;

const HEADER_V1: usize = 32;
const HEADER_V3: usize = 48;
const OBJECT: usize = 24;

/// Why bytes are not a layout or a wish. Programs see `EINVAL`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum UserMdError {
    /// Fewer bytes than the header or the number of objects needs.
    #[error("the layout is cut short")]
    Short,
    /// Not `lov_user_md_v1` or `_v3`.
    #[error("layout magic {0:#x} is not supported")]
    Magic(u32),
    /// Neither raid0 nor the default.
    #[error("layout pattern {0:#x} is not supported")]
    Pattern(u32),
    /// A field has a value that it cannot have.
    #[error("layout field {0} has an impossible value")]
    Field(&'static str),
}

struct Header<'a> {
    stripe_size: u32,
    stripe_count: u16,
    offset: u16,
    pool: Option<PoolName>,
    objects: &'a [u8],
}

fn u16_at(bytes: &[u8], at: usize) -> Result<u16, UserMdError> {
    bytes.get(at..).and_then(|b| b.first_chunk()).map(|b| u16::from_le_bytes(*b)).ok_or(UserMdError::Short)
}

fn u32_at(bytes: &[u8], at: usize) -> Result<u32, UserMdError> {
    bytes.get(at..).and_then(|b| b.first_chunk()).map(|b| u32::from_le_bytes(*b)).ok_or(UserMdError::Short)
}

fn header(bytes: &[u8]) -> Result<Header<'_>, UserMdError> {
    let (len, pool) = match u32_at(bytes, 0)? {
        MAGIC_V1 => (HEADER_V1, None),
        MAGIC_V3 => {
            let field = bytes.get(HEADER_V1..HEADER_V3).ok_or(UserMdError::Short)?;
            let end = field.iter().position(|&b| b == 0).ok_or(UserMdError::Field("pool"))?;
            let name = &field[..end];
            let pool = match name.is_empty() {
                true => None,
                false => Some(PoolName::new(name).ok_or(UserMdError::Field("pool"))?),
            };
            (HEADER_V3, pool)
        }
        other => return Err(UserMdError::Magic(other)),
    };
    let objects = bytes.get(len..).ok_or(UserMdError::Short)?;
    match u32_at(bytes, 4)? {
        0 | PATTERN_RAID0 => {}
        other => return Err(UserMdError::Pattern(other)),
    }
    Ok(Header {
        stripe_size: u32_at(bytes, 24)?,
        stripe_count: u16_at(bytes, 28)?,
        offset: u16_at(bytes, 30)?,
        pool,
        objects,
    })
}

fn put_header(fid: &Fid, stripe_size: u32, count: u16, offset: u16, pool: Option<PoolName>) -> Vec<u8> {
    let mut out = Vec::with_capacity(HEADER_V3);
    out.extend_from_slice(&if pool.is_some() { MAGIC_V3 } else { MAGIC_V1 }.to_le_bytes());
    out.extend_from_slice(&PATTERN_RAID0.to_le_bytes());
    out.extend_from_slice(&u64::from(fid.oid).to_le_bytes());
    out.extend_from_slice(&fid.seq.to_le_bytes());
    out.extend_from_slice(&stripe_size.to_le_bytes());
    out.extend_from_slice(&count.to_le_bytes());
    out.extend_from_slice(&offset.to_le_bytes());
    if let Some(pool) = pool {
        let mut field = [0u8; HEADER_V3 - HEADER_V1];
        field[..pool.as_str().len()].copy_from_slice(pool.as_str().as_bytes());
        out.extend_from_slice(&field);
    }
    out
}

/// Reads a wish: what `lfs setstripe` sends, or a directory's stored default. Objects in it are ignored.
///
/// # Errors
/// If the bytes are not such a structure, or a wish breaks a rule of [`LayoutSpec::check`].
pub fn decode_spec(bytes: &[u8]) -> Result<LayoutSpec, UserMdError> {
    let header = header(bytes)?;
    let spec = LayoutSpec {
        stripe_size: (header.stripe_size != 0).then_some(header.stripe_size),
        stripe_count: (header.stripe_count != 0).then_some(header.stripe_count),
        first_ost: (header.offset != OFFSET_ANY).then_some(header.offset),
        pool: header.pool,
    };
    spec.check().map_err(|_| UserMdError::Field("stripe size, count or offset"))?;
    Ok(spec)
}

/// True if the bytes are a layout with objects, which says where data is, not what somebody wishes.
pub fn has_objects(bytes: &[u8]) -> bool {
    header(bytes).is_ok_and(|header| !header.objects.is_empty())
}

/// The bytes of a wish for `fid` (a directory, or a file that has no objects yet).
pub fn encode_spec(fid: &Fid, spec: &LayoutSpec) -> Vec<u8> {
    put_header(
        fid,
        spec.stripe_size.unwrap_or(0),
        spec.stripe_count.unwrap_or(0),
        spec.first_ost.unwrap_or(OFFSET_ANY),
        spec.pool,
    )
}

/// Reads the layout of a file. A structure without objects is a layout that is not instantiated.
///
/// # Errors
/// If the bytes are not such a structure, or the layout could not exist.
pub fn decode_layout(bytes: &[u8]) -> Result<Layout, UserMdError> {
    let header = header(bytes)?;
    if header.objects.is_empty() {
        return Ok(decode_spec(bytes)?.to_layout());
    }
    if header.stripe_size == 0 || !header.stripe_size.is_multiple_of(STRIPE_SIZE_MIN) {
        return Err(UserMdError::Field("stripe size"));
    }
    if header.stripe_count == 0 || header.stripe_count > STRIPE_COUNT_MAX {
        return Err(UserMdError::Field("stripe count"));
    }
    let (chunks, []) = header.objects.as_chunks::<OBJECT>() else { return Err(UserMdError::Short) };
    if chunks.len() != usize::from(header.stripe_count) {
        return Err(UserMdError::Short);
    }
    let mut objects = Vec::with_capacity(chunks.len());
    for chunk in chunks {
        let (fid, rest) = chunk.split_first_chunk::<16>().ok_or(UserMdError::Short)?;
        let index = u32_at(rest, 4)?;
        let ost_index = u16::try_from(index).ok().filter(|index| *index < TARGET_INDEX_MAX);
        objects.push(StripeObject {
            object: Fid::from_le_bytes(fid),
            ost_index: ost_index.ok_or(UserMdError::Field("OST index"))?,
        });
    }
    Ok(Layout {
        form: LayoutForm::Plain,
        generation: u32::from(header.offset),
        components: vec![Component {
            id: 0,
            extent: Extent::WHOLE,
            flags: ComponentFlags { instantiated: true },
            stripe_size: header.stripe_size,
            stripe_count: header.stripe_count,
            first_ost: objects.first().map(|o| o.ost_index),
            pool: header.pool,
            generation: header.offset,
            objects,
        }],
    })
}

/// The bytes of the layout of file `fid`.
///
/// # Panics
/// If the layout is not plain: composite layouts have another form.
pub fn encode_layout(fid: &Fid, layout: &Layout) -> Vec<u8> {
    assert!(layout.form == LayoutForm::Plain, "only plain layouts have this form");
    let component = layout.components.first().expect("a layout has at least one component");
    let (count, offset) = match component.flags.instantiated {
        true => (component.objects.len() as u16, layout.generation as u16),
        false => (component.stripe_count, component.first_ost.unwrap_or(OFFSET_ANY)),
    };
    let mut out = put_header(fid, component.stripe_size, count, offset, component.pool);
    out.reserve(OBJECT * component.objects.len());
    for object in &component.objects {
        out.extend_from_slice(&object.object.to_le_bytes());
        out.extend_from_slice(&0u32.to_le_bytes());
        out.extend_from_slice(&u32::from(object.ost_index).to_le_bytes());
    }
    out
}

/// The wishes that an uninstantiated layout stands for, or those that would make an instantiated one again.
pub fn spec_of(layout: &Layout) -> LayoutSpec {
    let Some(component) = layout.components.first() else { return LayoutSpec::default() };
    LayoutSpec {
        stripe_size: Some(component.stripe_size),
        stripe_count: Some(component.stripe_count).filter(|count| *count != 0),
        first_ost: component.first_ost,
        pool: component.pool,
    }
}

/// True if a wish asks for all OSTs.
pub fn wants_all(spec: &LayoutSpec) -> bool {
    spec.stripe_count == Some(STRIPE_COUNT_ALL)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const FILE: Fid = Fid::new(0x2_0000_0401, 3, 0);

    fn instantiated(count: u16, pool: Option<&[u8]>) -> Layout {
        let mut layout = LayoutSpec { stripe_count: Some(count), ..LayoutSpec::default() }.to_layout();
        layout.generation = 2;
        let component = &mut layout.components[0];
        component.generation = 2;
        component.first_ost = Some(1);
        component.pool = pool.and_then(PoolName::new);
        component.flags.instantiated = true;
        component.objects =
            (1..=count).map(|i| StripeObject { ost_index: i, object: Fid::ost_object(i, 70) }).collect();
        layout
    }

    #[test]
    fn the_bytes_are_lustres() {
        let bytes = encode_layout(&FILE, &instantiated(1, None));
        let expected: Vec<u8> = [
            &[0xd0, 0x0b, 0xd1, 0x0b, 1, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0, 1, 4, 0, 0, 2, 0, 0, 0][..],
            &[0, 0, 0x40, 0, 1, 0, 2, 0],
            &[0, 0, 1, 0, 1, 0, 0, 0, 70, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0],
        ]
        .concat();
        assert_eq!(bytes, expected);
        assert_eq!(decode_layout(&bytes), Ok(instantiated(1, None)));
        let pooled = encode_layout(&FILE, &instantiated(2, Some(b"flash")));
        assert_eq!(pooled.len(), 48 + 2 * 24);
        assert_eq!(&pooled[..4], &MAGIC_V3.to_le_bytes());
        assert_eq!(decode_layout(&pooled), Ok(instantiated(2, Some(b"flash"))));
    }

    #[test]
    fn wishes_use_the_defaults_of_lfs() {
        let nothing = encode_spec(&FILE, &LayoutSpec::default());
        assert_eq!(decode_spec(&nothing), Ok(LayoutSpec::default()));
        assert_eq!(&nothing[24..32], &[0, 0, 0, 0, 0, 0, 0xff, 0xff]);
        let all = LayoutSpec { stripe_count: Some(STRIPE_COUNT_ALL), first_ost: Some(3), ..nothing_asked() };
        assert_eq!(decode_spec(&encode_spec(&FILE, &all)), Ok(all));
        assert!(wants_all(&all));
    }

    fn nothing_asked() -> LayoutSpec {
        LayoutSpec::default()
    }

    #[test]
    fn wishes_that_break_rules_are_refused() {
        let spec = LayoutSpec { stripe_size: Some(65536), ..LayoutSpec::default() };
        let good = encode_spec(&FILE, &spec);
        let with = |at: usize, value: &[u8]| {
            let mut bytes = good.clone();
            bytes[at..at + value.len()].copy_from_slice(value);
            decode_spec(&bytes)
        };
        assert!(with(24, &100_000u32.to_le_bytes()).is_err());
        assert!(with(28, &2001u16.to_le_bytes()).is_err());
        assert!(with(30, &0xffe0u16.to_le_bytes()).is_err());
        assert_eq!(with(0, &[0]), Err(UserMdError::Magic(0x0BD1_0B00)));
        assert_eq!(with(4, &[0, 1]), Err(UserMdError::Pattern(0x100)));
        assert_eq!(decode_spec(&good[..31]), Err(UserMdError::Short));
    }

    proptest! {
        #[test]
        fn damaged_layouts_never_panic(
            place in 0usize..100, value in 0u8..=255, cut in 0usize..100, pool in 0u8..2,
        ) {
            let pool = (pool == 1).then_some(&b"fast"[..]);
            let mut bytes = encode_layout(&FILE, &instantiated(2, pool));
            if let Some(byte) = bytes.get_mut(place) {
                *byte = value;
            }
            bytes.truncate(cut);
            let _ = decode_spec(&bytes);
            if let Ok(layout) = decode_layout(&bytes) {
                let again = encode_layout(&FILE, &layout);
                prop_assert_eq!(decode_layout(&again), Ok(layout));
            }
        }
    }
}
