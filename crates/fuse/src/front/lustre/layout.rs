//! Layouts of files and default layouts of directories: set and shown.

use nacre_client::XattrFlags;
use nacre_types::lustre::{self, name_in};
use nacre_types::{Attr, Status, StatusResult};

use super::Memory;
use crate::front::ioctl::Asked;

const LOV: &[u8] = b"lustre.lov";
const MAGIC_V1: u32 = 0x0BD1_0BD0;
const MAGIC_V3: u32 = 0x0BD3_0BD0;
const MAGIC_SPECIFIC: u32 = 0x0BD5_0BD0;
const MAGIC_COMPOSITE: u32 = 0x0BD6_0BD0;
pub(super) const MAGIC_FOREIGN: u32 = 0x0BD7_0BD0;
/// Bytes of a header before the objects.
const LEN_V1: usize = 32;
const LEN_V3: usize = 48;
/// Bytes of an object's entry.
const OBJECT_LEN: usize = 24;
/// Bytes of the header of a composite layout, and of each component's entry after it.
const COMPOSITE_HEADER: usize = 32;
const COMPOSITE_ENTRY: usize = 48;
/// Bytes of the header of a foreign layout.
const FOREIGN_HEADER: usize = 16;
/// Flag of a component that has objects.
const INIT: u32 = 0x10;
/// Largest layout in bytes.
const LAYOUT_MAX: usize = nacre_types::limits::XATTR_VALUE_MAX;
/// Longest name with its NUL, in bytes.
const NAME_ROOM: usize = nacre_types::limits::NAME_MAX + 1;

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}

fn u16_at(bytes: &[u8], at: usize) -> Option<usize> {
    Some(usize::from(u16::from_le_bytes(*bytes.get(at..)?.first_chunk()?)))
}

/// Returns the length of a layout specification from its first 32 bytes (or 16 of a foreign layout).
///
/// # Errors
/// `EINVAL` for an invalid or oversized layout.
fn length_of_request(head: &[u8]) -> StatusResult<usize> {
    let length = match u32_at(head, 0) {
        Some(MAGIC_V1) => Some(LEN_V1),
        Some(MAGIC_V3) => Some(LEN_V3),
        Some(MAGIC_SPECIFIC) => u16_at(head, 28).map(|count| LEN_V3 + OBJECT_LEN * count),
        Some(MAGIC_COMPOSITE) => u32_at(head, 4).map(|size| size as usize),
        Some(MAGIC_FOREIGN) => u32_at(head, 4).map(|value| (value as usize).saturating_add(FOREIGN_HEADER)),
        _ => None,
    };
    length.filter(|length| *length <= LAYOUT_MAX).ok_or(Status::EINVAL)
}

/// Returns the part of a layout for a program whose buffer holds a plain one, as its magic and number of
/// objects say. Of a composite layout that is the last component with objects, or for an empty file the last
/// one.
fn as_plain<'a>(layout: &'a [u8], room: &[u8], is_empty: bool) -> Option<&'a [u8]> {
    let header = match u32_at(room, 0)? {
        MAGIC_V1 => LEN_V1,
        MAGIC_V3 => LEN_V3,
        _ => return Some(layout),
    };
    let room = header + OBJECT_LEN * u16_at(room, 28)?;
    let part = match u32_at(layout, 0)? {
        MAGIC_COMPOSITE => {
            let entry = |place| COMPOSITE_HEADER + COMPOSITE_ENTRY * place;
            let has_objects =
                |place: &usize| u32_at(layout, entry(*place) + 4).is_some_and(|flags| flags & INIT != 0);
            let count = u16_at(layout, 14)?;
            let place = match is_empty {
                true => count.checked_sub(1)?,
                false => (0..count).take_while(has_objects).last().unwrap_or(0),
            };
            let (start, len) = (u32_at(layout, entry(place) + 24)?, u32_at(layout, entry(place) + 28)?);
            layout.get(start as usize..)?.get(..len as usize)?
        }
        _ => layout,
    };
    Some(&part[..part.len().min(room)])
}

fn layout_of(asked: &Asked<'_>, attr: &Attr) -> StatusResult<Vec<u8>> {
    asked.client.inodes.layout_bytes(asked.caller, attr.fid, attr.is_dir())
}

/// Sets a layout; for a file, returns the resulting layout in its place.
pub(super) fn set_stripe(asked: &Asked<'_>) -> StatusResult<i32> {
    let memory = asked.memory()?;
    let address = memory.argument();
    let mut requested = memory.read_vec(address, FOREIGN_HEADER)?;
    if u32_at(&requested, 0) != Some(MAGIC_FOREIGN) {
        requested = memory.read_vec(address, LEN_V1)?;
    }
    let requested = memory.read_vec(address, length_of_request(&requested)?)?;
    let attr = asked.client.inodes.getattr(asked.fid)?;
    let flags = if attr.is_dir() { XattrFlags::empty() } else { XattrFlags::CREATE };
    asked.client.names.setxattr(asked.caller, asked.fid, LOV, &requested, flags)?;
    if attr.is_regular() && u32_at(&requested, 0) != Some(MAGIC_FOREIGN) {
        let layout = layout_of(asked, &attr)?;
        memory.write(address, &layout[..layout.len().min(requested.len())])?;
    }
    Ok(0)
}

/// Returns the layout of a file, or the default layout of a directory: that of the root if it has none.
fn effective_layout(asked: &Asked<'_>, attr: &Attr) -> StatusResult<Vec<u8>> {
    match attr.is_dir() {
        true => asked.client.inodes.getxattr(asked.caller, attr.fid, LOV),
        false => layout_of(asked, attr),
    }
}

/// Returns the layout of the open file, or the default of the directory.
pub(super) fn get_stripe(asked: &Asked<'_>) -> StatusResult<i32> {
    let memory = asked.memory()?;
    let attr = asked.client.inodes.getattr(asked.fid)?;
    let layout = match effective_layout(asked, &attr) {
        Err(Status::ENODATA) if attr.is_regular() => {
            asked.client.data.give_objects(asked.call.fh)?;
            layout_of(asked, &attr)?
        }
        result => result?,
    };
    let room = memory.read_vec(memory.argument(), LEN_V1)?;
    let shown = match attr.is_regular() {
        true => as_plain(&layout, &room, attr.size == 0).ok_or(Status::EIO)?,
        false => &layout,
    };
    memory.write(memory.argument(), shown)?;
    Ok(0)
}

/// Returns the layout, or attributes and layout, of a name in the directory or of the directory itself.
pub(super) fn file_info(asked: &Asked<'_>) -> StatusResult<i32> {
    let memory = asked.memory()?;
    let address = memory.argument();
    let command = asked.call.cmd;
    let is_named = !matches!(command, lustre::MDC_GETINFO_V1 | lustre::MDC_GETINFO_V2);
    let attr = match is_named {
        false => asked.client.inodes.getattr(asked.fid)?,
        true => {
            let text = memory.read_text(address, NAME_ROOM)?;
            attr_of_name(asked, name_in(&text).ok_or(Status::EINVAL)?)?
        }
    };
    let layout = match attr.is_regular() || attr.is_dir() {
        true if is_named => layout_of(asked, &attr),
        true => effective_layout(asked, &attr),
        false => Err(Status::ENODATA),
    };
    let layout = match layout {
        // The attributes are valid with or without a layout.
        Err(Status::ENODATA) if command != lustre::MDC_GETFILESTRIPE => Vec::new(),
        layout => layout?,
    };
    let answer = match command {
        lustre::MDC_GETFILESTRIPE => layout,
        lustre::MDC_GETFILEINFO_V1 | lustre::MDC_GETINFO_V1 => lustre::mds_data_v1(&attr, &layout),
        _ => lustre::mds_data_v2(&attr, &layout),
    };
    write_all(&memory, address, &answer)
}

/// Returns the attributes behind a name, for a caller with search permission on the directory.
pub(super) fn attr_of_name(asked: &Asked<'_>, name: &[u8]) -> StatusResult<Attr> {
    if name == b"." {
        return asked.client.inodes.getattr(asked.fid);
    }
    let found = asked.client.names.lookup(asked.caller, asked.fid, name)?;
    let found = found.map_err(|_| Status::ENOENT)?;
    asked.client.inodes.forget(found.node, 1);
    asked.client.inodes.getattr(found.attr.fid)
}

/// Writes an answer. Programs have a buffer for the largest layout, or get its beginning, as from the kernel.
fn write_all(memory: &Memory, address: u64, answer: &[u8]) -> StatusResult<i32> {
    match memory.write(address, answer) {
        Err(Status::EFAULT) => Err(Status::EOVERFLOW),
        result => result.map(|()| 0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn head(magic: u32, second: u32, count: u16) -> Vec<u8> {
        let mut bytes = vec![0; LEN_V1];
        bytes[..4].copy_from_slice(&magic.to_le_bytes());
        bytes[4..8].copy_from_slice(&second.to_le_bytes());
        bytes[28..30].copy_from_slice(&count.to_le_bytes());
        bytes
    }

    #[test]
    fn wishes_have_the_length_that_they_say_up_to_the_largest_layout() {
        assert_eq!(length_of_request(&head(MAGIC_V1, 1, 0xffff)), Ok(32));
        assert_eq!(length_of_request(&head(MAGIC_V3, 1, 3)), Ok(48));
        assert_eq!(length_of_request(&head(MAGIC_SPECIFIC, 1, 3)), Ok(48 + 72));
        assert_eq!(length_of_request(&head(MAGIC_SPECIFIC, 1, 0xffff)), Err(Status::EINVAL));
        assert_eq!(length_of_request(&head(MAGIC_COMPOSITE, 272, 0)), Ok(272));
        assert_eq!(length_of_request(&head(MAGIC_COMPOSITE, 65537, 0)), Err(Status::EINVAL));
        assert_eq!(length_of_request(&head(MAGIC_FOREIGN, 11, 0)[..16]), Ok(27));
        assert_eq!(length_of_request(&head(MAGIC_FOREIGN, u32::MAX, 0)), Err(Status::EINVAL));
        assert_eq!(length_of_request(&head(0, 0, 0)), Err(Status::EINVAL));
        assert_eq!(length_of_request(b""), Err(Status::EINVAL));
    }

    #[test]
    fn programs_with_room_for_a_plain_layout_get_no_more_than_fits() {
        let mut plain = head(MAGIC_V1, 1, 2);
        plain.resize(LEN_V1 + 2 * OBJECT_LEN, 7);
        assert_eq!(as_plain(&plain, &head(0, 0, 0), false).map(<[u8]>::len), Some(80), "no magic: all of it");
        assert_eq!(as_plain(&plain, &head(MAGIC_V1, 0, 0), false).map(<[u8]>::len), Some(32));
        assert_eq!(as_plain(&plain, &head(MAGIC_V1, 0, 1), false).map(<[u8]>::len), Some(56));
        assert_eq!(as_plain(&plain, &head(MAGIC_V3, 0, 2000), false).map(<[u8]>::len), Some(80));
        // Two components, the first with objects.
        let mut both = head(MAGIC_COMPOSITE, 0, 0);
        both[14] = 2;
        both.resize(COMPOSITE_HEADER + 2 * COMPOSITE_ENTRY, 0);
        for (place, flags, start, len) in [(0, 0x10u8, 128u8, 80u8), (1, 0, 208, 32)] {
            let entry = COMPOSITE_HEADER + COMPOSITE_ENTRY * place;
            (both[entry + 4], both[entry + 24], both[entry + 28]) = (flags, start, len);
        }
        both.extend_from_slice(&plain);
        both.extend_from_slice(&head(MAGIC_V1, 1, 9));
        let room = head(MAGIC_V1, 0, 2000);
        assert_eq!(as_plain(&both, &room, false), Some(&plain[..]));
        assert_eq!(as_plain(&both, &room, true), Some(&both[208..]));
        assert_eq!(as_plain(&both[..200], &room, true), None);
        both[14] = 0;
        assert_eq!(as_plain(&both, &room, true), None);
    }
}
