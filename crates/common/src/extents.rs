//! Where files and free space of a local file system lie on its device.

use nacre_store::object::fiemap;
use rustix::ioctl::{Opcode, Updater, ioctl};
use std::fs::File;
use std::io;
use std::os::fd::AsFd;

/// A piece of a file, or of free space.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Extent {
    /// Offset in the file, in bytes; of free space, that on the device.
    pub logical: u64,
    /// Offset on the device in bytes.
    pub physical: u64,
    /// Bytes.
    pub length: u64,
}

// The kernel's headers linux/fiemap.h and linux/fsmap.h.
const FS_IOC_GETFSMAP: Opcode = 0xc0c0_583b;
/// Data of these has no place of its own on the device: unknown, not allocated yet, or inside of metadata.
const FIEMAP_EXTENT_NOWHERE: u32 = 0x2 | 0x4 | 0x200;
const FMR_OF_SPECIAL_OWNER: u32 = 0x10;
const FMR_OWN_FREE: u64 = 1;
/// Extents that are asked for at once.
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

/// Where the data of `file` lies, in the order of its offsets; pieces that follow on each other in the file and on the device
/// are one. Data that is not on the device yet is written out first.
///
/// # Errors
///
/// `EOPNOTSUPP` or `ENOTTY` where the file system does not tell.
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

/// Free extents of the file system of `file`, in the order of the device. Those that touch are one.
///
/// # Errors
///
/// `EOPNOTSUPP` or `ENOTTY` where the file system does not tell (ext4 and xfs do), `EPERM` where only root is told.
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
        // SAFETY: the request takes a header and as many records behind it as the header says, which is what `FsmapHead` is.
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
        // The kernel goes on behind the record that it finds here.
        head.keys[0] = last;
        head.entries = 0;
    }
}

/// Adds a piece, to the one before it if it follows on that in both respects.
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
