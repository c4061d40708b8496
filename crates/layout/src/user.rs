//! Lustre's binary form of layouts: `lov_user_md_v1`, `_v3` and `lov_comp_md_v1`, also the form on disk.
//!
//! One form serves four purposes: the layout of a file on disk, the default of a directory on disk, the value
//! of the `lustre.lov` and `trusted.lov` attributes, and the specifications that `lfs` sends. Version 3 is
//! version 1 with a pool; [`composite`] puts several of them behind a table of components.
//!
//! ```text
//!  0 magic u32     4 pattern u32                8 oid u64 and sequence u64 of the file
//! 24 stripe size   28 stripe count u16          30 layout generation (read) or first OST (request), u16
//! 32 pool, 16 bytes (version 3 only)            then 24 bytes per object: FID, generation u32, OST index u32
//! ```
//!
//! The generation of an OST is 0; on disk it is 1 of an object that was written to
//! ([`StripeObject::written`]).
//!
//! The pattern is 1 for stripes over objects, 0x100 for data on the MDT. Data on the MDT has a count of 0 and
//! no objects: the FID of the file in the header is that of the object, so that a layout swap moves the data
//! to the other file.
//!
//! Encoding is little-endian; decoding accepts either byte order, which the magic determines. In
//! specifications 0 means "the default", a count of 0xffff all OSTs, an offset of 0xffff any OST.

pub mod composite;
mod foreign;
mod raw;

use crate::layout::{Component, ComponentFlags, Extent, Layout, LayoutForm, Pattern, StripeObject};
use crate::pool::PoolName;
use crate::request::{ComponentSpec, LayoutRequest};
use crate::spec::LayoutSpec;
use nacre_types::Fid;
use nacre_types::limits::{STRIPE_COUNT_MAX, STRIPE_SIZE_MIN, TARGET_INDEX_MAX};
use raw::Raw;

pub use foreign::{
    FOREIGN_TYPES, Foreign, MAGIC_FOREIGN, MAGIC_FOREIGN_DIRECTORY, decode_foreign, decode_foreign_directory,
    encode_foreign, encode_foreign_directory, is_foreign, is_foreign_directory,
};

pub use composite::{MAGIC_COMPOSITE, Selector, decode_selector, encode_selector};

/// Magic of version 1: no pool.
pub const MAGIC_V1: u32 = 0x0BD1_0BD0;
/// Magic of version 3: with a pool.
pub const MAGIC_V3: u32 = 0x0BD3_0BD0;
/// Magic of a specification of exact OSTs: as version 3, with object entries of which only the OST counts.
pub const MAGIC_SPECIFIC: u32 = 0x0BD5_0BD0;
/// "Any OST" in a specification.
pub const OFFSET_ANY: u16 = u16::MAX;
/// Bytes of an object's entry.
pub const OBJECT_LEN: usize = 24;
/// Bit of the generation of an object's OST, on disk only: [`StripeObject::written`].
const OBJECT_WRITTEN: u32 = 1;

const HEADER_V1: usize = 32;
const HEADER_V3: usize = 48;

/// Why bytes are not a layout or a specification. Programs get `EINVAL`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum UserMdError {
    /// There are fewer bytes than the header or the number of objects needs.
    #[error("the layout is cut short")]
    Short,
    /// The magic is not that of `lov_user_md_v1`, `_v3` or `lov_comp_md_v1`.
    #[error("layout magic {0:#x} is not supported")]
    Magic(u32),
    /// The pattern is not raid0, mdt or the default.
    #[error("layout pattern {0:#x} is not supported")]
    Pattern(u32),
    /// The flags have kinds of components that are not supported.
    #[error("component flags {0:#x} are not supported")]
    Flags(u32),
    /// A field has an invalid value.
    #[error("layout field {0} has an impossible value")]
    Field(&'static str),
}

/// Returns the bytes of a plain layout with this many objects.
pub const fn plain_len(has_pool: bool, objects: usize) -> usize {
    (if has_pool { HEADER_V3 } else { HEADER_V1 }) + OBJECT_LEN * objects
}

/// Returns the bytes of a specification of one striping.
fn spec_len(spec: &LayoutSpec) -> usize {
    plain_len(spec.pool.is_some() || !spec.osts.is_empty(), spec.osts.len())
}

/// Returns the bytes of a composite layout whose components have these sizes in bytes.
pub fn composite_len(components: impl Iterator<Item = usize>) -> usize {
    components.fold(composite::HEADER, |sum, len| sum + composite::ENTRY + len)
}

struct Header<'a> {
    /// True if the object entries are requested OSTs, not objects.
    is_specific: bool,
    pattern: Pattern,
    /// FID of the file that the layout belongs or belonged to.
    file: Fid,
    stripe_size: u32,
    stripe_count: u16,
    offset: u16,
    pool: Option<PoolName>,
    objects: Raw<'a>,
}

impl Header<'_> {
    fn has_objects(&self) -> bool {
        !self.is_specific && !self.objects.bytes.is_empty()
    }
}

/// Returns the number by which a file's layout names it: its object id, with the version above it, which only
/// objects on an MDT have.
const fn number_of(fid: &Fid) -> u64 {
    fid.oid as u64 | (fid.ver as u64) << 32
}

const fn file_of(sequence: u64, number: u64) -> Fid {
    Fid::new(sequence, number as u32, (number >> 32) as u32)
}

fn header(raw: Raw<'_>) -> Result<Header<'_>, UserMdError> {
    let (len, pool) = match raw.u32(0)? {
        MAGIC_V1 => (HEADER_V1, None),
        MAGIC_V3 | MAGIC_SPECIFIC => {
            let field = raw.part(HEADER_V1, HEADER_V3)?.bytes;
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
    let objects = raw.part(len, raw.bytes.len())?;
    let pattern = raw.u32(4)?;
    Ok(Header {
        is_specific: raw.u32(0)? == MAGIC_SPECIFIC,
        pattern: Pattern::from_bits(pattern).ok_or(UserMdError::Pattern(pattern))?,
        file: file_of(raw.u64(16)?, raw.u64(8)?),
        stripe_size: raw.u32(24)?,
        stripe_count: raw.u16(28)?,
        offset: raw.u16(30)?,
        pool,
        objects,
    })
}

fn put_header(
    out: &mut Vec<u8>,
    fid: &Fid,
    (pattern, stripe_size): (Pattern, u32),
    (count, offset): (u16, u16),
    pool: Option<PoolName>,
) {
    put_header_of(
        out,
        if pool.is_some() { MAGIC_V3 } else { MAGIC_V1 },
        fid,
        (pattern, stripe_size),
        (count, offset),
        pool,
    );
}

fn put_header_of(
    out: &mut Vec<u8>,
    magic: u32,
    fid: &Fid,
    (pattern, stripe_size): (Pattern, u32),
    (count, offset): (u16, u16),
    pool: Option<PoolName>,
) {
    out.extend_from_slice(&magic.to_le_bytes());
    out.extend_from_slice(&pattern.bits().to_le_bytes());
    out.extend_from_slice(&number_of(fid).to_le_bytes());
    out.extend_from_slice(&fid.seq.to_le_bytes());
    out.extend_from_slice(&stripe_size.to_le_bytes());
    out.extend_from_slice(&count.to_le_bytes());
    out.extend_from_slice(&offset.to_le_bytes());
    if magic != MAGIC_V1 {
        let mut field = [0u8; HEADER_V3 - HEADER_V1];
        let name = pool.as_ref().map_or("", PoolName::as_str);
        field[..name.len()].copy_from_slice(name.as_bytes());
        out.extend_from_slice(&field);
    }
}

/// Reads the specification of one striping: what `lfs setstripe` sends, or a directory's stored default.
/// Objects in it are ignored.
///
/// # Errors
/// If the bytes are not such a structure, or it breaks a rule of [`LayoutSpec::check`].
pub fn decode_spec(bytes: &[u8]) -> Result<LayoutSpec, UserMdError> {
    read_spec(Raw::new(bytes)?)
}

fn read_spec(raw: Raw<'_>) -> Result<LayoutSpec, UserMdError> {
    let header = header(raw)?;
    if header.pattern == Pattern::Mdt {
        return spec_on_mdt(&header);
    }
    let spec = LayoutSpec {
        stripe_size: (header.stripe_size != 0).then_some(header.stripe_size),
        stripe_count: (header.stripe_count != 0).then_some(header.stripe_count),
        first_ost: (header.offset != OFFSET_ANY).then_some(header.offset),
        pool: header.pool,
        pattern: header.pattern,
        osts: requested_osts(&header)?,
    };
    spec.check().map_err(|_| UserMdError::Field("stripe size, count or offset"))?;
    Ok(spec)
}

/// Reads the OSTs that a specification requests.
fn requested_osts(header: &Header<'_>) -> Result<Vec<u16>, UserMdError> {
    if !header.is_specific {
        return Ok(Vec::new());
    }
    let count = usize::from(header.stripe_count);
    if count == 0 || count > usize::from(STRIPE_COUNT_MAX) {
        return Err(UserMdError::Field("stripe count"));
    }
    if header.objects.bytes.len() != count * OBJECT_LEN {
        return Err(UserMdError::Short);
    }
    let index = |at: usize| {
        let index = u16::try_from(header.objects.u32(at * OBJECT_LEN + 20)?).ok();
        index.filter(|index| *index < TARGET_INDEX_MAX).ok_or(UserMdError::Field("OST index"))
    };
    (0..count).map(index).collect()
}

/// Reads a specification of either form. Of a layout with objects, which was copied from another file, only
/// the shape counts: objects, ids and states are ignored, and its generation takes the field of a
/// specification's first OST.
///
/// # Errors
/// If the bytes are not such a structure, or the specification breaks a rule of [`LayoutRequest::check`].
pub fn decode_request(bytes: &[u8]) -> Result<LayoutRequest, UserMdError> {
    let raw = Raw::new(bytes)?;
    if raw.u32(0)? == MAGIC_COMPOSITE {
        return composite::read_request(raw);
    }
    let has_objects = header(raw)?.has_objects();
    let spec = match (read_spec(raw), has_objects) {
        // A generation may exceed the largest OST index.
        (_, true) => read_spec_of_objects(raw)?,
        (spec, false) => spec?,
    };
    if spec.pattern == Pattern::Mdt {
        return Err(UserMdError::Field("pattern: only components are on an MDT"));
    }
    Ok(LayoutRequest::Plain(spec))
}

/// Reads the specification of a component on an MDT, whose size field only repeats its end.
fn spec_on_mdt(header: &Header<'_>) -> Result<LayoutSpec, UserMdError> {
    match header.stripe_count == 0 && header.pool.is_none() && header.objects.bytes.is_empty() {
        true => Ok(LayoutSpec::ON_MDT),
        false => Err(UserMdError::Field("stripe count, pool or objects on an MDT")),
    }
}

fn read_spec_of_objects(raw: Raw<'_>) -> Result<LayoutSpec, UserMdError> {
    let header = header(raw)?;
    if header.pattern == Pattern::Mdt {
        return spec_on_mdt(&header);
    }
    let spec = LayoutSpec {
        stripe_size: (header.stripe_size != 0).then_some(header.stripe_size),
        stripe_count: (header.stripe_count != 0).then_some(header.stripe_count),
        first_ost: None,
        pool: header.pool,
        pattern: header.pattern,
        osts: Vec::new(),
    };
    spec.check().map_err(|_| UserMdError::Field("stripe size or count"))?;
    Ok(spec)
}

/// Returns true if the bytes are a layout with objects, which describes where data is, not a specification.
pub fn has_objects(bytes: &[u8]) -> bool {
    let Ok(raw) = Raw::new(bytes) else { return false };
    match raw.u32(0) {
        Ok(MAGIC_COMPOSITE) => composite::has_objects(raw),
        _ => header(raw).is_ok_and(|header| header.has_objects()),
    }
}

/// Reads components to add to those of a file, in order but not from 0 (`lustre.lov.add`). The caller checks
/// the result as a [`LayoutRequest`].
///
/// # Errors
/// If the bytes are not a composite layout without objects.
pub fn decode_added(bytes: &[u8]) -> Result<Vec<ComponentSpec>, UserMdError> {
    composite::read_components(Raw::new(bytes)?)
}

/// Encodes components to add to a file.
pub fn encode_added(components: &[ComponentSpec]) -> Vec<u8> {
    composite::encode_request(&Fid::ZERO, components)
}

/// Encodes the specification of one striping of `fid` (a directory, or a file without objects).
pub fn encode_spec(fid: &Fid, spec: &LayoutSpec) -> Vec<u8> {
    let mut out = Vec::with_capacity(HEADER_V3);
    put_spec(&mut out, fid, spec);
    out
}

fn put_spec(out: &mut Vec<u8>, fid: &Fid, spec: &LayoutSpec) {
    let shape = (spec.pattern, spec.stripe_size.unwrap_or(0));
    let Some(first) = spec.osts.first() else {
        let place = (spec.stripe_count.unwrap_or(0), spec.first_ost.unwrap_or(OFFSET_ANY));
        return put_header(out, fid, shape, place, spec.pool);
    };
    let place = (spec.osts.len() as u16, spec.first_ost.unwrap_or(*first));
    put_header_of(out, MAGIC_SPECIFIC, fid, shape, place, spec.pool);
    for index in &spec.osts {
        out.extend_from_slice(&[0; OBJECT_LEN - 4]);
        out.extend_from_slice(&u32::from(*index).to_le_bytes());
    }
}

/// Encodes a specification of either form.
pub fn encode_request(fid: &Fid, requested: &LayoutRequest) -> Vec<u8> {
    match requested {
        LayoutRequest::Plain(spec) => encode_spec(fid, spec),
        LayoutRequest::Composite(components) => composite::encode_request(fid, components),
    }
}

/// Reads the layout of a file. A structure without objects is a layout that is not instantiated.
///
/// # Errors
/// If the bytes are not such a structure, or the layout could not exist.
pub fn decode_layout(bytes: &[u8]) -> Result<Layout, UserMdError> {
    let raw = Raw::new(bytes)?;
    if raw.u32(0)? == MAGIC_COMPOSITE {
        return composite::read_layout(raw);
    }
    let first = header(raw)?;
    if first.pattern == Pattern::Mdt {
        return Err(UserMdError::Pattern(first.pattern.bits()));
    }
    if !first.has_objects() {
        return Ok(read_spec(raw)?.to_layout());
    }
    let component = read_component(raw)?;
    Ok(Layout {
        form: LayoutForm::Plain,
        generation: u32::from(component.generation),
        components: vec![component],
    })
}

/// Reads a component with objects that covers the whole file.
fn read_component(raw: Raw<'_>) -> Result<Component, UserMdError> {
    let header = header(raw)?;
    if header.stripe_size == 0 || !header.stripe_size.is_multiple_of(STRIPE_SIZE_MIN) {
        return Err(UserMdError::Field("stripe size"));
    }
    if header.pattern == Pattern::Mdt {
        return component_on_mdt(&header);
    }
    if header.stripe_count == 0 || header.stripe_count > STRIPE_COUNT_MAX || header.is_specific {
        return Err(UserMdError::Field("stripe count"));
    }
    let count = usize::from(header.stripe_count);
    if header.objects.bytes.len() != count * OBJECT_LEN {
        return Err(UserMdError::Short);
    }
    let mut objects = Vec::with_capacity(count);
    for at in (0..count).map(|index| index * OBJECT_LEN) {
        let index = header.objects.u32(at + 20)?;
        let ost_index = u16::try_from(index).ok().filter(|index| *index < TARGET_INDEX_MAX);
        objects.push(StripeObject {
            object: header.objects.fid(at)?,
            ost_index: ost_index.ok_or(UserMdError::Field("OST index"))?,
            // The other bits are unused: Lustre has a generation there, which is 0.
            written: header.objects.u32(at + 16)? & OBJECT_WRITTEN != 0,
        });
    }
    Ok(Component {
        id: 0,
        extent: Extent::WHOLE,
        flags: ComponentFlags::INIT,
        pattern: header.pattern,
        stripe_size: header.stripe_size,
        stripe_count: header.stripe_count,
        first_ost: objects.first().map(|o| o.ost_index),
        pool: header.pool,
        osts: Vec::new(),
        generation: header.offset,
        objects,
    })
}

/// Reads a component whose object is on an MDT.
fn component_on_mdt(header: &Header<'_>) -> Result<Component, UserMdError> {
    spec_on_mdt(header)?;
    if header.file.seq == 0 || header.file.oid == 0 {
        return Err(UserMdError::Field("file id"));
    }
    Ok(Component {
        id: 0,
        extent: Extent::WHOLE,
        flags: ComponentFlags::INIT,
        pattern: Pattern::Mdt,
        stripe_size: header.stripe_size,
        stripe_count: 0,
        first_ost: None,
        pool: None,
        osts: Vec::new(),
        generation: header.offset,
        objects: vec![StripeObject::on_mdt(header.file)],
    })
}

/// Returns a stored layout as programs get it, without the marks for internal use. Other bytes stay as they
/// are.
pub fn for_programs(fid: &Fid, stored: &[u8]) -> Vec<u8> {
    let Ok(mut layout) = decode_layout(stored) else { return stored.to_vec() };
    if layout.forget_written() { encode_layout(fid, &layout) } else { stored.to_vec() }
}

/// Encodes the layout of file `fid`.
pub fn encode_layout(fid: &Fid, layout: &Layout) -> Vec<u8> {
    match (layout.form, layout.components.as_slice()) {
        (LayoutForm::Plain, [component]) => {
            let mut out = Vec::with_capacity(plain_len(component.pool.is_some(), component.objects.len()));
            match component.is_instantiated() {
                true => put_component(&mut out, fid, component, layout.generation as u16),
                false => put_spec(&mut out, fid, &composite::spec_of(component)),
            }
            out
        }
        _ => composite::encode_layout(fid, layout),
    }
}

/// Encodes a component with objects.
fn put_component(out: &mut Vec<u8>, fid: &Fid, component: &Component, generation: u16) {
    let shape = (component.pattern, component.stripe_size);
    if component.pattern == Pattern::Mdt {
        let object = component.objects.first().map_or(fid, |object| &object.object);
        return put_header(out, object, shape, (0, generation), None);
    }
    put_header(out, fid, shape, (component.objects.len() as u16, generation), component.pool);
    for object in &component.objects {
        out.extend_from_slice(&object.object.to_le_bytes());
        let flags = if object.written { OBJECT_WRITTEN } else { 0 };
        out.extend_from_slice(&flags.to_le_bytes());
        out.extend_from_slice(&u32::from(object.ost_index).to_le_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::STRIPE_COUNT_ALL;

    const FILE: Fid = Fid::new(0x2_0000_0401, 3, 0);

    fn instantiated(count: u16, pool: Option<&[u8]>) -> Layout {
        let mut layout = LayoutSpec { stripe_count: Some(count), ..LayoutSpec::default() }.to_layout();
        layout.generation = 2;
        let component = &mut layout.components[0];
        component.generation = 2;
        component.first_ost = Some(1);
        component.pool = pool.and_then(PoolName::new);
        component.flags = ComponentFlags::INIT;
        component.objects = (1..=count).map(|i| StripeObject::new(i, Fid::ost_object(i, 70))).collect();
        layout
    }

    #[test]
    fn wishes_for_exact_osts_have_a_form_of_their_own() {
        let spec = LayoutSpec { osts: vec![3, 1], stripe_count: Some(2), ..LayoutSpec::default() };
        let bytes = encode_spec(&FILE, &spec);
        assert_eq!(
            (bytes.len(), &bytes[..4], &bytes[28..32]),
            (48 + 48, &[0xd0, 0x0b, 0xd5, 0x0b][..], &[2, 0, 3, 0][..])
        );
        assert_eq!((bytes[48 + 20], bytes[48 + 24 + 20], has_objects(&bytes)), (3, 1, false));
        let read = LayoutSpec { first_ost: Some(3), ..spec };
        assert_eq!(decode_request(&bytes), Ok(LayoutRequest::Plain(read.clone())));
        let layout = decode_layout(&bytes).expect("a request");
        assert_eq!((layout.components[0].osts.as_slice(), layout.has_objects()), (&[3, 1][..], false));
        for len in 48..bytes.len() {
            assert!(decode_request(&bytes[..len]).is_err(), "cut to {len}");
        }
        let twice = LayoutSpec { osts: vec![1, 1], ..read.clone() };
        assert!(decode_request(&encode_spec(&FILE, &twice)).is_err(), "an OST twice needs overstriping");
        let over = LayoutSpec { osts: vec![3, 3], pattern: Pattern::Overstriped, ..read };
        assert_eq!(decode_request(&encode_spec(&FILE, &over)), Ok(LayoutRequest::Plain(over)));
        let multiple =
            LayoutSpec { stripe_count: Some(0xfffe), pattern: Pattern::Overstriped, ..LayoutSpec::default() };
        let bytes = encode_spec(&FILE, &multiple);
        assert_eq!(decode_request(&bytes), Ok(LayoutRequest::Plain(multiple.clone())));
        let plain = LayoutSpec { pattern: Pattern::Raid0, ..multiple };
        assert!(decode_request(&encode_spec(&FILE, &plain)).is_err(), "multiples need overstriping");
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
        assert_eq!(with(4, &[0, 4]), Err(UserMdError::Pattern(0x400)));
        assert_eq!(decode_spec(&good[..31]), Err(UserMdError::Short));
    }

    #[test]
    fn a_copied_layout_is_a_wish_for_its_shape() {
        let mut layout = instantiated(2, Some(b"flash"));
        layout.generation = 0xfff0;
        let bytes = encode_layout(&FILE, &layout);
        assert!(has_objects(&bytes));
        let spec = LayoutSpec {
            stripe_size: Some(4 << 20),
            stripe_count: Some(2),
            first_ost: None,
            pool: PoolName::new(b"flash"),
            pattern: Pattern::Raid0,
            osts: Vec::new(),
        };
        assert_eq!(decode_request(&bytes), Ok(LayoutRequest::Plain(spec)));
    }

    #[test]
    fn a_plain_file_cannot_be_on_an_mdt() {
        let bytes = encode_spec(&FILE, &LayoutSpec::ON_MDT);
        assert_eq!(decode_spec(&bytes), Ok(LayoutSpec::ON_MDT), "as a component");
        assert!(matches!(decode_request(&bytes), Err(UserMdError::Field(_))));
    }
}
