//! Extents of a file by FIEMAP: where space is allocated, written or not.

use std::io;
use std::ops::Range;
use std::os::fd::{AsRawFd, BorrowedFd};

/// Extents per request.
const EXTENTS: usize = 64;
/// `FS_IOC_FIEMAP` (`linux/fs.h`, `linux/fiemap.h`).
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
struct Fiemap {
    start: u64,
    length: u64,
    flags: u32,
    mapped_extents: u32,
    extent_count: u32,
    reserved: u32,
    extents: [FiemapExtent; EXTENTS],
}

/// Writes out data that is not on the device yet before the request: `FIEMAP_FLAG_SYNC`.
pub const SYNC: u32 = 1;

/// A range of a file in one extent of the device. In bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Piece {
    /// Offset in the file.
    pub offset: u64,
    /// Length of the piece.
    pub length: u64,
    /// Offset on the device; unknown while data waits for write-out.
    pub place: u64,
    /// Flags of the extent: `FIEMAP_EXTENT_*`.
    pub flags: u32,
}

/// Visits the allocated extents of `range` in order, until `visit` returns false. `flags` are 0 or [`SYNC`].
///
/// # Errors
/// `EOPNOTSUPP` or `ENOTTY` where the file system has no FIEMAP.
pub fn each(
    fd: BorrowedFd<'_>,
    range: Range<u64>,
    flags: u32,
    visit: &mut dyn FnMut(Piece) -> bool,
) -> io::Result<()> {
    let (mut from, end) = (range.start, range.end);
    while from < end {
        let mut map = Fiemap {
            start: from,
            length: end - from,
            flags,
            mapped_extents: 0,
            extent_count: EXTENTS as u32,
            reserved: 0,
            extents: [FiemapExtent::default(); EXTENTS],
        };
        // SAFETY: `map` is laid out as the kernel's struct with room for `extent_count` extents, and outlives
        // the call.
        if unsafe { libc::ioctl(fd.as_raw_fd(), FS_IOC_FIEMAP as _, &raw mut map) } != 0 {
            return Err(io::Error::last_os_error());
        }
        let before = from;
        for extent in &map.extents[..EXTENTS.min(map.mapped_extents as usize)] {
            let (offset, length) = (extent.logical, extent.length);
            let piece = Piece { offset, length, place: extent.physical, flags: extent.flags };
            if !visit(piece) || extent.flags & EXTENT_LAST != 0 {
                return Ok(());
            }
            from = from.max(offset.saturating_add(length));
        }
        // No more extents; or no progress, which would be a bug of the kernel and an endless loop.
        if from == before {
            return Ok(());
        }
    }
    Ok(())
}

/// Whether the range is allocated. Unlike for `lseek`, space that was allocated and not yet written counts
/// too. False if the file system cannot report it.
pub(super) fn cover(fd: BorrowedFd<'_>, offset: u64, end: u64) -> bool {
    let mut covered = offset;
    let told = each(fd, offset..end, 0, &mut |piece| {
        if piece.offset <= covered {
            covered = covered.max(piece.offset.saturating_add(piece.length));
        }
        piece.offset <= covered && covered < end
    });
    told.is_ok() && covered >= end
}

/// Whether anything is allocated at or after `offset`; `None` if the file system cannot report it.
pub(super) fn has_more(fd: BorrowedFd<'_>, offset: u64) -> Option<bool> {
    let mut found = false;
    let told = each(fd, offset..u64::MAX, 0, &mut |piece| {
        found |= piece.offset.saturating_add(piece.length) > offset;
        !found
    });
    told.is_ok().then_some(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_structures_have_the_sizes_that_the_request_names() {
        assert_eq!(std::mem::size_of::<FiemapExtent>(), 56);
        assert_eq!(std::mem::size_of::<Fiemap>(), 32 + 56 * EXTENTS);
    }

    #[test]
    fn a_file_of_more_pieces_than_are_asked_for_at_once_is_told_as_a_whole() {
        let file = tempfile::tempfile().expect("a file");
        let pieces = EXTENTS as u64 * 2 + 3;
        for piece in 0..pieces {
            std::os::unix::fs::FileExt::write_all_at(&file, &[1; 4096], piece * 65536).expect("written");
        }
        let mut found = Vec::new();
        let told = each(std::os::fd::AsFd::as_fd(&file), 0..u64::MAX, SYNC, &mut |piece| {
            found.push(piece.offset);
            true
        });
        if told.is_err() {
            // For example one in memory.
            eprintln!("this file system does not tell where files lie");
            return;
        }
        assert_eq!(found, (0..pieces).map(|piece| piece * 65536).collect::<Vec<_>>());
    }
}
