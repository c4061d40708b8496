//! What FIEMAP says of a file: where space is allocated, written or not.

use std::os::fd::{AsRawFd, BorrowedFd};

/// Extents asked for at once.
const EXTENTS: usize = 32;
/// `FS_IOC_FIEMAP`. Source: linux/fs.h, linux/fiemap.h.
const FS_IOC_FIEMAP: libc::c_ulong = 0xc020_660b;
/// `FIEMAP_EXTENT_LAST`.
const EXTENT_LAST: u32 = 1;

#[repr(C)]
#[derive(Clone, Copy, Default)]
struct FiemapExtent {
    logical: u64,
    physical: u64,
    length: u64,
    reserved: [u64; 2],
    flags: u32,
    reserved2: [u32; 3],
}

#[repr(C)]
#[derive(Default)]
struct Fiemap {
    start: u64,
    length: u64,
    flags: u32,
    mapped_extents: u32,
    extent_count: u32,
    reserved: u32,
    extents: [FiemapExtent; EXTENTS],
}

/// A piece of a file that is allocated in one piece of the device. In bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Piece {
    pub(super) offset: u64,
    pub(super) length: u64,
    /// Where it lies on the device; not known while data waits to be written.
    pub(super) place: u64,
}

/// Visits what is allocated in `[from, end)` in its order, until `visit` says false. False if the file system cannot tell.
pub(super) fn each(
    fd: BorrowedFd<'_>,
    mut from: u64,
    end: u64,
    visit: &mut dyn FnMut(Piece) -> bool,
) -> bool {
    while from < end {
        let mut map =
            Fiemap { start: from, length: end - from, extent_count: EXTENTS as u32, ..Default::default() };
        // SAFETY: `map` is laid out as the kernel's struct with room for `extent_count` extents, and outlives the call.
        let result = unsafe { libc::ioctl(fd.as_raw_fd(), FS_IOC_FIEMAP as _, &mut map) };
        if result != 0 {
            return false;
        }
        let found = &map.extents[..EXTENTS.min(map.mapped_extents as usize)];
        for extent in found {
            let piece = Piece { offset: extent.logical, length: extent.length, place: extent.physical };
            if !visit(piece) || extent.flags & EXTENT_LAST != 0 {
                return true;
            }
            from = from.max(extent.logical.saturating_add(extent.length));
        }
        if found.is_empty() {
            return true;
        }
    }
    true
}

/// Like `lseek`, but space that was allocated and not yet written counts too. False if the file system cannot tell.
pub(super) fn cover(fd: BorrowedFd<'_>, offset: u64, end: u64) -> bool {
    let mut covered = offset;
    let can_tell = each(fd, offset, end, &mut |piece| {
        if piece.offset <= covered {
            covered = covered.max(piece.offset.saturating_add(piece.length));
        }
        piece.offset <= covered && covered < end
    });
    can_tell && covered >= end
}

/// Whether anything is allocated at or behind `offset`; `None` if the file system cannot tell.
pub(super) fn has_more(fd: BorrowedFd<'_>, offset: u64) -> Option<bool> {
    let mut found = false;
    let can_tell = each(fd, offset, u64::MAX, &mut |piece| {
        found |= piece.offset.saturating_add(piece.length) > offset;
        !found
    });
    can_tell.then_some(found)
}
