//! `lov_comp_md_v1`: a table of components, followed by a `lov_user_md` for each.
//!
//! ```text
//!  0 magic u32    4 size of all u32    8 generation u32    12 flags u16    14 components u16
//! 16 mirrors - 1 u16, then zeros
//! 32 for each component 48 bytes:
//!      0 id u32     4 flags u32       8 start u64, end u64 (all ones: the file has no end)
//!     24 offset u32, 28 size u32 of its lov_user_md    32 generation u32    36 time and link, parity: zero
//! ```
//!
//! An extension, into which the component before it grows, has the flag `extension`, no stripes, and in the
//! field of the stripe size its step in KiB.

use super::raw::Raw;
use super::{
    OFFSET_ANY, UserMdError, header, plain_len, put_component, put_spec, read_component, read_spec, spec_len,
};
use crate::layout::{Component, ComponentFlags, Extent, Layout, LayoutForm, Pattern};
use crate::request::{ComponentSpec, LayoutRequest, begin_again};
use crate::spec::LayoutSpec;
use nacre_types::Fid;
use nacre_types::limits::{STRIPE_SIZE_MIN, XATTR_VALUE_MAX};
use std::collections::HashSet;

/// Magic of a composite layout (`LOV_USER_MAGIC_COMP_V1`).
pub const MAGIC_COMPOSITE: u32 = 0x0BD6_0BD0;
/// Bytes of the header, which precedes the table.
pub const HEADER: usize = 32;
/// Bytes of a component's entry in the table.
pub const ENTRY: usize = 48;

/// Bits of the layout's flags with the state of its mirrors.
const FLAGS_MIRROR_STATE: u16 = 0xf;
/// Ids of components in files without mirrors are below this; the bits above number the mirror.
const ID_END: u32 = 1 << 16;
/// The bit of an id in a selector that makes the flags select instead.
const ID_IS_NONE: u32 = 1 << 31;
/// "Not instantiated" in a selector: the flag `init` and the flag that negates.
const FLAG_NOT_INIT: u32 = 0x8000_0010;

struct Entry<'a> {
    id: u32,
    flags: ComponentFlags,
    extent: Extent,
    layout: Raw<'a>,
}

/// Reads the generation and the components, and checks each field of the table.
fn entries(raw: Raw<'_>) -> Result<(u32, Vec<Entry<'_>>), UserMdError> {
    let size = raw.u32(4)? as usize;
    if size > raw.bytes.len() {
        return Err(UserMdError::Short);
    }
    if size != raw.bytes.len() || size > XATTR_VALUE_MAX {
        return Err(UserMdError::Field("size"));
    }
    if raw.u16(12)? & FLAGS_MIRROR_STATE != 0 || raw.u16(16)? != 0 {
        return Err(UserMdError::Field("mirror count"));
    }
    let count = usize::from(raw.u16(14)?);
    let mut reached = HEADER + ENTRY * count;
    if count == 0 {
        return Err(UserMdError::Field("entry count"));
    }
    if reached > size {
        return Err(UserMdError::Short);
    }
    let mut found = Vec::with_capacity(count);
    for place in 0..count {
        let entry = raw.part(HEADER + ENTRY * place, HEADER + ENTRY * (place + 1))?;
        let (offset, len) = (entry.u32(24)? as usize, entry.u32(28)? as usize);
        // Entries are in order and disjoint, so that no byte belongs to two of them.
        if offset < reached {
            return Err(UserMdError::Field("component offset"));
        }
        reached = offset.checked_add(len).ok_or(UserMdError::Field("component size"))?;
        let layout = raw.part(offset, reached)?;
        let flags = entry.u32(4)?;
        let id = entry.u32(0)?;
        if id >= ID_END {
            return Err(UserMdError::Field("component id"));
        }
        let extent = Extent { start: entry.u64(8)?, end: entry.u64(16)? };
        if extent.end != Extent::EOF && !extent.end.is_multiple_of(u64::from(STRIPE_SIZE_MIN)) {
            return Err(UserMdError::Field("component end"));
        }
        let flags = ComponentFlags::from_bits(flags).ok_or(UserMdError::Flags(flags))?;
        found.push(Entry { id, flags, extent, layout });
    }
    Ok((raw.u32(8)?, found))
}

pub(super) fn has_objects(raw: Raw<'_>) -> bool {
    let instantiated = |entry: &Entry<'_>| entry.flags.contains(ComponentFlags::INIT);
    entries(raw).is_ok_and(|(_, entries)| entries.iter().any(instantiated))
}

pub(super) fn read_request(raw: Raw<'_>) -> Result<LayoutRequest, UserMdError> {
    let requested = LayoutRequest::Composite(read_components(raw)?);
    requested.check().map_err(|_| UserMdError::Field("component extent or stripe size"))?;
    Ok(requested)
}

pub(super) fn read_components(raw: Raw<'_>) -> Result<Vec<ComponentSpec>, UserMdError> {
    if raw.u32(0)? != MAGIC_COMPOSITE {
        return Err(UserMdError::Magic(raw.u32(0)?));
    }
    let (_, entries) = entries(raw)?;
    let mut components = Vec::with_capacity(entries.len());
    for entry in entries {
        let spec = match entry.flags.contains(ComponentFlags::INIT) {
            // A layout with objects was copied from a file.
            true => super::read_spec_of_objects(entry.layout)?,
            false if !header(entry.layout)?.has_objects() => read_spec(entry.layout)?,
            false => return Err(UserMdError::Field("component size")),
        };
        let flags = entry.flags & ComponentFlags::REQUESTABLE;
        // Of an extension only the step counts.
        let spec = match flags.contains(ComponentFlags::EXTENSION) {
            true => LayoutSpec { stripe_size: spec.stripe_size, ..LayoutSpec::default() },
            false => spec,
        };
        components.push(ComponentSpec { extent: entry.extent, flags, spec });
    }
    // The components of a file may have grown.
    begin_again(&mut components);
    Ok(components)
}

/// Which components of a file to delete (`lustre.lov.del`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Selector {
    /// The component with this id.
    Id(u32),
    /// All components without objects.
    WithoutObjects,
}

/// Reads a selector: a table with one component, of which only id and flags count.
///
/// # Errors
/// If the bytes are not such a table, or select by anything else.
pub fn decode_selector(bytes: &[u8]) -> Result<Selector, UserMdError> {
    let raw = Raw::new(bytes)?;
    if raw.u32(0)? != MAGIC_COMPOSITE || raw.u16(14)? != 1 {
        return Err(UserMdError::Field("entry count"));
    }
    let entry = raw.part(HEADER, HEADER + ENTRY)?;
    match (entry.u32(0)?, entry.u32(4)?) {
        (0, FLAG_NOT_INIT) => Ok(Selector::WithoutObjects),
        (id, FLAG_NOT_INIT) if id & ID_IS_NONE != 0 => Ok(Selector::WithoutObjects),
        (0, flags) => Err(UserMdError::Flags(flags)),
        (id, _) if id < ID_END => Ok(Selector::Id(id)),
        _ => Err(UserMdError::Field("component id")),
    }
}

/// Encodes a selector.
pub fn encode_selector(selector: Selector) -> Vec<u8> {
    let (id, flags) = match selector {
        Selector::Id(id) => (id, 0),
        Selector::WithoutObjects => (0, FLAG_NOT_INIT),
    };
    let mut out = table(0, &[(id, ComponentFlags::default(), Extent { start: 0, end: 0 }, 0)]);
    out[HEADER + 4..HEADER + 8].copy_from_slice(&flags.to_le_bytes());
    out
}

pub(super) fn read_layout(raw: Raw<'_>) -> Result<Layout, UserMdError> {
    let (generation, entries) = entries(raw)?;
    let mut components: Vec<Component> = Vec::with_capacity(entries.len());
    let mut ids = HashSet::with_capacity(entries.len());
    for entry in entries {
        // Ids need not be in order: a component that continues a full one is younger than those behind it.
        if entry.id == 0 || !ids.insert(entry.id) {
            return Err(UserMdError::Field("component id"));
        }
        let component = match entry.flags.contains(ComponentFlags::INIT) {
            true => read_component(entry.layout)?,
            false => without_objects(entry.layout, entry.flags.contains(ComponentFlags::EXTENSION))?,
        };
        components.push(Component { id: entry.id, flags: entry.flags, extent: entry.extent, ..component });
    }
    let layout = Layout { form: LayoutForm::Composite, generation, components };
    if !layout.is_sound() {
        return Err(UserMdError::Field("component extent"));
    }
    Ok(layout)
}

/// Reads a component that waits for its first write, with its resolved striping.
fn without_objects(raw: Raw<'_>, is_extension: bool) -> Result<Component, UserMdError> {
    let header = header(raw)?;
    let spec = read_spec(raw)?;
    if header.has_objects() {
        return Err(UserMdError::Field("component size"));
    }
    let spec = match spec.pattern {
        Pattern::Mdt => LayoutSpec { stripe_size: Some(header.stripe_size), stripe_count: Some(0), ..spec },
        Pattern::Raid0 | Pattern::Overstriped if is_extension => {
            LayoutSpec { stripe_count: spec.stripe_count.or(Some(0)), ..spec }
        }
        Pattern::Raid0 | Pattern::Overstriped => spec,
    };
    Ok(Component {
        id: 0,
        extent: Extent::WHOLE,
        flags: ComponentFlags::default(),
        pattern: spec.pattern,
        stripe_size: spec.stripe_size.ok_or(UserMdError::Field("stripe size"))?,
        stripe_count: spec.stripe_count.ok_or(UserMdError::Field("stripe count"))?,
        first_ost: spec.first_ost,
        pool: spec.pool,
        osts: spec.osts,
        generation: 0,
        objects: Vec::new(),
    })
}

/// Writes the header and the table for components with these ids, flags, extents and sizes in bytes.
fn table(generation: u32, components: &[(u32, ComponentFlags, Extent, usize)]) -> Vec<u8> {
    let size = super::composite_len(components.iter().map(|(.., len)| *len));
    let mut out = Vec::with_capacity(size);
    out.extend_from_slice(&MAGIC_COMPOSITE.to_le_bytes());
    out.extend_from_slice(&(size as u32).to_le_bytes());
    out.extend_from_slice(&generation.to_le_bytes());
    out.extend_from_slice(&0u16.to_le_bytes());
    out.extend_from_slice(&(components.len() as u16).to_le_bytes());
    out.resize(HEADER, 0);
    let mut offset = HEADER + ENTRY * components.len();
    for (id, flags, extent, len) in components {
        let end = out.len() + ENTRY;
        out.extend_from_slice(&id.to_le_bytes());
        out.extend_from_slice(&flags.bits().to_le_bytes());
        out.extend_from_slice(&extent.start.to_le_bytes());
        out.extend_from_slice(&extent.end.to_le_bytes());
        out.extend_from_slice(&(offset as u32).to_le_bytes());
        out.extend_from_slice(&(*len as u32).to_le_bytes());
        out.resize(end, 0);
        offset += len;
    }
    out
}

pub(super) fn encode_request(fid: &Fid, components: &[ComponentSpec]) -> Vec<u8> {
    let row = |c: &ComponentSpec| (0, c.flags, c.extent, spec_len(&c.spec));
    let mut out = table(0, &components.iter().map(row).collect::<Vec<_>>());
    for ComponentSpec { extent, spec, .. } in components {
        match spec.pattern {
            // The stripe size shows the component's size, as in the layout of a file.
            Pattern::Mdt => {
                put_spec(&mut out, fid, &LayoutSpec { stripe_size: Some(extent.end as u32), ..spec.clone() })
            }
            Pattern::Raid0 | Pattern::Overstriped => put_spec(&mut out, fid, spec),
        }
    }
    out
}

pub(super) fn encode_layout(fid: &Fid, layout: &Layout) -> Vec<u8> {
    let len = |c: &Component| match c.pattern {
        Pattern::Mdt => plain_len(false, 0),
        _ if c.is_instantiated() => plain_len(c.pool.is_some(), c.objects.len()),
        _ => spec_len(&spec_of(c)),
    };
    let row = |c: &Component| (c.id, c.flags, c.extent, len(c));
    let mut out = table(layout.generation, &layout.components.iter().map(row).collect::<Vec<_>>());
    for component in &layout.components {
        match component.is_instantiated() {
            true => put_component(&mut out, fid, component, component.generation),
            false => put_spec(&mut out, fid, &spec_of(component)),
        }
    }
    out
}

/// Returns the requested striping of a component without objects.
pub(super) fn spec_of(component: &Component) -> LayoutSpec {
    LayoutSpec {
        stripe_size: Some(component.stripe_size),
        stripe_count: Some(component.stripe_count),
        first_ost: component.first_ost.filter(|index| *index != OFFSET_ANY),
        pool: component.pool,
        pattern: component.pattern,
        osts: component.osts.clone(),
    }
}

#[cfg(test)]
mod tests;
