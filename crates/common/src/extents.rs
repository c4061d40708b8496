//! Locations of files and free space of a local file system on its device.

use nacre_store::object::fiemap;
use rustix::ioctl::{Opcode, Updater, ioctl};
use std::fs::File;
use std::io;
use std::os::fd::AsFd;

/// An extent of a file, or of free space.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Extent {
    /// Offset in the file in bytes; for free space, the offset on the device.
    pub logical: u64,
    /// Offset on the device in bytes.
    pub physical: u64,
    /// Length in bytes.
    pub length: u64,
}

// The kernel's headers linux/fiemap.h and linux/fsmap.h.
const FS_IOC_GETFSMAP: Opcode = 0xc0c0_583b;
/// Flags of extents without a location on the device: unknown, delayed allocation, or inline in metadata.
const FIEMAP_EXTENT_NOWHERE: u32 = 0x2 | 0x4 | 0x200;
const FMR_OF_SPECIAL_OWNER: u32 = 0x10;
const FMR_OWN_FREE: u64 = 1;
/// Extents per ioctl.
const BATCH: usize = 512;

#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Fsmap {
    device: u32,
    flags: u32,
    physical: u64,
    owner: u64,
    offset: u64,
    length: u64,
    reserved: [u64; 3],
}

#[repr(C)]
struct FsmapHead {
    iflags: u32,
    oflags: u32,
    count: u32,
    entries: u32,
    reserved: [u64; 6],
    keys: [Fsmap; 2],
    records: [Fsmap; BATCH],
}

/// Returns the extents of `file` in the order of its offsets; extents that are contiguous in the file and on
/// the device are merged. Data that is not on the device yet is written out first.
///
/// # Errors
///
/// `EOPNOTSUPP` or `ENOTTY` if the file system does not report extents.
pub fn of_file(file: &File) -> io::Result<Vec<Extent>> {
    let mut all: Vec<Extent> = Vec::new();
    fiemap::each(file.as_fd(), 0..u64::MAX, fiemap::SYNC, &mut |piece| {
        if piece.flags & FIEMAP_EXTENT_NOWHERE == 0 {
            let (logical, physical, length) = (piece.offset, piece.place, piece.length);
            push(&mut all, Extent { logical, physical, length });
        }
        true
    })?;
    Ok(all)
}

/// Returns the free extents of the file system of `file` in the order of the device; contiguous ones are
/// merged.
///
/// # Errors
///
/// `EOPNOTSUPP` or `ENOTTY` if the file system does not report free space (ext4 and xfs do), `EPERM` where it
/// reports it to root only.
pub fn free(file: &File) -> io::Result<Vec<Extent>> {
    let last = Fsmap {
        device: u32::MAX,
        flags: u32::MAX,
        physical: u64::MAX,
        owner: u64::MAX,
        offset: u64::MAX,
        ..Fsmap::default()
    };
    let mut head = Box::new(FsmapHead {
        iflags: 0,
        oflags: 0,
        count: BATCH as u32,
        entries: 0,
        reserved: [0; 6],
        keys: [Fsmap::default(), last],
        records: [Fsmap::default(); BATCH],
    });
    let mut all = Vec::new();
    loop {
        // SAFETY: the request takes a header followed by as many records as the header announces, which is
        // the layout of `FsmapHead`.
        unsafe { ioctl(file, Updater::<FS_IOC_GETFSMAP, FsmapHead>::new(&mut *head)) }?;
        let found = &head.records[..(head.entries as usize).min(BATCH)];
        let is_free =
            |record: &&Fsmap| record.flags & FMR_OF_SPECIAL_OWNER != 0 && record.owner == FMR_OWN_FREE;
        for record in found.iter().filter(is_free) {
            let (physical, length) = (record.physical, record.length);
            push(&mut all, Extent { logical: physical, physical, length });
        }
        let Some(last) = found.last().copied() else { return Ok(all) };
        if found.len() < BATCH {
            return Ok(all);
        }
        // The kernel continues after the record that it finds here.
        head.keys[0] = last;
        head.entries = 0;
    }
}

/// Appends an extent, or merges it into the last one if it continues that one in the file and on the device.
fn push(all: &mut Vec<Extent>, extent: Extent) {
    if extent.length == 0 {
        return;
    }
    match all.last_mut() {
        Some(last)
            if last.logical + last.length == extent.logical
                && last.physical + last.length == extent.physical =>
        {
            last.length += extent.length;
        }
        _ => all.push(extent),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_structures_have_the_sizes_that_the_requests_name() {
        assert_eq!(std::mem::size_of::<Fsmap>(), 64);
        assert_eq!(std::mem::size_of::<FsmapHead>(), 192 + 64 * BATCH);
    }

    #[test]
    fn pieces_that_follow_on_each_other_are_one() {
        let mut all = Vec::new();
        let piece = |logical, physical, length| Extent { logical, physical, length };
        for extent in
            [piece(0, 100, 4), piece(4, 104, 4), piece(8, 200, 4), piece(20, 204, 4), piece(24, 0, 0)]
        {
            push(&mut all, extent);
        }
        assert_eq!(all, [piece(0, 100, 8), piece(8, 200, 4), piece(20, 204, 4)]);
    }
}
