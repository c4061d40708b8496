//! The label of a device, and the checks before a device is overwritten.

use super::device::{AlignedBuffer, BLOCK, BlockDevice, ReadOp, WriteOp};
use crate::object::{ObjectError, Result};
use nacre_ondisk::block::{BLOCK_LABEL_LEN, BlockLabel, BlockLabelError};
use std::io;

/// Smallest device in bytes.
pub(super) const SIZE_MIN: u64 = 1 << 20;
/// Bytes at both ends of a device that must be zeros before it is used: all known signatures are there.
const LOOK: u64 = 1 << 20;

/// Reason why a device cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum DeviceProblem {
    /// The operating system returned an error.
    #[error("{0}")]
    Io(#[source] io::Error),
    /// It has the signature of another system's data.
    #[error("it holds {0}; nothing was overwritten")]
    Signature(&'static str),
    /// It has no valid label of a store.
    #[error("{0}")]
    Label(#[source] BlockLabelError),
    /// It belongs to another target.
    #[error("it belongs to target {found}, not to {wanted}")]
    OtherTarget {
        /// Label found.
        found: String,
        /// Label asked for.
        wanted: String,
    },
    /// It belongs to another directory.
    #[error("it and the target's directory belong to different stores")]
    OtherStore,
    /// It is shorter than its label says.
    #[error("it has {found} bytes, but had {expected} when it was made")]
    Truncated {
        /// Size found, in bytes.
        found: u64,
        /// Size in the label, in bytes.
        expected: u64,
    },
    /// It is too small for a store.
    #[error("it has {0} bytes, less than {SIZE_MIN}")]
    TooSmall(u64),
}

/// Wraps a problem with the name of the device.
pub(super) fn refused(device: &dyn BlockDevice, problem: DeviceProblem) -> ObjectError {
    ObjectError::Device { device: device.info().name, problem }
}

fn read_at(device: &dyn BlockDevice, offset: u64, len: u64) -> Result<AlignedBuffer> {
    let mut buffer = AlignedBuffer::zeroed(len as usize);
    device
        .read(&mut [ReadOp { offset, buffer: &mut buffer }])
        .map_err(|error| refused(device, DeviceProblem::Io(error)))?;
    Ok(buffer)
}

/// Returns the name of the format whose signature this is. `end` are the last bytes of the device.
fn signature(start: &[u8], end: &[u8]) -> Option<&'static str> {
    let has = |at: usize, magic: &[u8]| start.get(at..at + magic.len()) == Some(magic);
    let known: &[(usize, &[u8], &str)] = &[
        (0, b"NACREBLK", "an object store"),
        (0, b"NACRENXD", "a cache of small writes"),
        (0, b"XFSB", "an XFS file system"),
        (0x438, &[0x53, 0xef], "an ext2, ext3 or ext4 file system"),
        (0x10040, b"_BHRfS_M", "a btrfs file system"),
        (0x200, b"LABELONE", "an LVM physical volume"),
        (0xff6, b"SWAPSPACE2", "swap space"),
        (0xff6, b"SWAP-SPACE", "swap space"),
        (0, b"LUKS\xba\xbe", "an encrypted volume"),
        (0x200, b"EFI PART", "a partition table"),
        (0x1fe, &[0x55, 0xaa], "a partition table or boot sector"),
    ];
    if let Some((_, _, name)) = known.iter().find(|(at, magic, _)| has(*at, magic)) {
        return Some(name);
    }
    let is_zero = |bytes: &[u8]| bytes.iter().all(|byte| *byte == 0);
    if is_zero(start) && is_zero(end) { None } else { Some("data of an unknown kind") }
}

fn last_block(size: u64) -> u64 {
    size / BLOCK - 1
}

/// Returns a description of the data on a device that is to be overwritten; `None` if there is none.
pub(in crate::object) fn found_on(device: &dyn BlockDevice) -> Result<Option<&'static str>> {
    let look = LOOK.min(device.size());
    Ok(signature(&read_at(device, 0, look)?, &read_at(device, device.size() - look, look)?))
}

/// Clears the bytes that [`found_on`] examines: the device is then free for another use. Durable on return.
pub(in crate::object) fn wipe(device: &dyn BlockDevice) -> io::Result<()> {
    let look = LOOK.min(device.size());
    let zeros = AlignedBuffer::zeroed(look as usize);
    device.write(&[WriteOp { offset: 0, data: &zeros }])?;
    device.write(&[WriteOp { offset: device.size() - look, data: &zeros }])?;
    device.flush()
}

/// Formats a device. It is left alone if it holds anything, unless `force` is on.
pub(super) fn format(device: &dyn BlockDevice, label: &BlockLabel, force: bool) -> Result<()> {
    let size = device.size();
    if size < SIZE_MIN {
        return Err(refused(device, DeviceProblem::TooSmall(size)));
    }
    let look = LOOK.min(size);
    let (start, end) = (read_at(device, 0, look)?, read_at(device, size - look, look)?);
    if let (Some(found), false) = (signature(&start, &end), force) {
        return Err(refused(device, DeviceProblem::Signature(found)));
    }
    // Foreign signatures are erased, so that no other system takes the device for its own.
    let zeros = AlignedBuffer::zeroed(look as usize);
    let mut block = AlignedBuffer::zeroed(BLOCK as usize);
    block[..BLOCK_LABEL_LEN].copy_from_slice(&label.encode());
    let write = |offset, data: &[u8]| device.write(&[WriteOp { offset, data }]);
    let work = || -> io::Result<()> {
        if start.iter().any(|byte| *byte != 0) {
            write(0, &zeros)?;
        }
        if end.iter().any(|byte| *byte != 0) {
            write(size - look, &zeros)?;
        }
        write(last_block(size) * BLOCK, &block)?;
        device.flush()?;
        write(0, &block)?;
        device.flush()
    };
    work().map_err(|error| refused(device, DeviceProblem::Io(error)))
}

/// Writes a label to its place at the beginning (`at_end`: its copy, at the size that it records). Durable on
/// return.
fn write(device: &dyn BlockDevice, label: &BlockLabel, at_end: bool) -> Result<()> {
    let mut block = AlignedBuffer::zeroed(BLOCK as usize);
    block[..BLOCK_LABEL_LEN].copy_from_slice(&label.encode());
    let offset = if at_end { last_block(label.size) * BLOCK } else { 0 };
    let written = device.write(&[WriteOp { offset, data: &block }]).and_then(|()| device.flush());
    written.map_err(|error| refused(device, DeviceProblem::Io(error)))
}

/// Extends the label of a store on a device that may have grown: writes a further copy at the new end, then
/// `keep` makes the directory record it, then it replaces `found`, which is the one at the beginning.
/// Whichever steps were done before a crash, the directory records a size whose end holds a copy, and the
/// next opening does the rest. A damaged copy at the end is rewritten.
pub(super) fn grow(
    device: &dyn BlockDevice,
    own: &BlockLabel,
    found: &BlockLabel,
    keep: impl FnOnce(&BlockLabel) -> Result<()>,
) -> Result<()> {
    check_size(device, own)?;
    let size = device.size() / BLOCK * BLOCK;
    let label = BlockLabel { size, ..own.clone() };
    if size > own.size {
        write(device, &label, true)?;
        keep(&label)?;
        log::info!("{}: it has grown from {} to {size} bytes", device.info().name, own.size);
    } else if !is_of(device, own, last_block(size))? {
        // As on a file that was shorter for a while.
        log::warn!("{}: the copy of its label in the last block is rewritten", device.info().name);
        write(device, &label, true)?;
    }
    if found.size != size { write(device, &label, false) } else { Ok(()) }
}

fn is_of(device: &dyn BlockDevice, own: &BlockLabel, block: u64) -> Result<bool> {
    let label = BlockLabel::decode(&read_at(device, block * BLOCK, BLOCK)?[..BLOCK_LABEL_LEN]);
    Ok(label.is_ok_and(|label| label.uuid == own.uuid))
}

/// Refuses a device that is shorter than its label says.
pub(super) fn check_size(device: &dyn BlockDevice, own: &BlockLabel) -> Result<()> {
    let size = device.size() / BLOCK * BLOCK;
    match size < own.size {
        true => Err(refused(device, DeviceProblem::Truncated { found: size, expected: own.size })),
        false => Ok(()),
    }
}

/// Returns the labels of a device that differ from the directory's, each with its place and the damage, and
/// rewrites them if `repair` is on.
pub(super) fn damaged(
    device: &dyn BlockDevice,
    own: &BlockLabel,
    repair: bool,
) -> Result<Vec<(&'static str, String)>> {
    let mut found = Vec::new();
    for (place, block, at_end) in [("first", 0, false), ("last", last_block(own.size), true)] {
        let what = match read_at(device, block * BLOCK, BLOCK) {
            Err(error) => error.to_string(),
            Ok(bytes) => match BlockLabel::decode(&bytes[..BLOCK_LABEL_LEN]) {
                Ok(label) if label.uuid == own.uuid => continue,
                Ok(_) => "is that of another store".to_owned(),
                Err(error) => format!("cannot be used: {error}"),
            },
        };
        if repair {
            write(device, own, at_end)?;
        }
        found.push((place, what));
    }
    Ok(found)
}

/// Reads the label of a device; a damaged one is taken from its copy at the end, and repaired if `repair` is
/// on.
pub(super) fn read(device: &dyn BlockDevice, wanted_size: Option<u64>, repair: bool) -> Result<BlockLabel> {
    let size = device.size();
    let decode = |block: u64| -> Result<std::result::Result<BlockLabel, BlockLabelError>> {
        Ok(BlockLabel::decode(&read_at(device, block * BLOCK, BLOCK)?[..BLOCK_LABEL_LEN]))
    };
    let truncated = |expected| refused(device, DeviceProblem::Truncated { found: size, expected });
    if size < SIZE_MIN {
        return Err(wanted_size.map_or(refused(device, DeviceProblem::TooSmall(size)), truncated));
    }
    match decode(0)? {
        Ok(label) if size < label.size => Err(truncated(label.size)),
        Ok(label) => Ok(label),
        Err(error @ BlockLabelError::Version { .. }) => Err(refused(device, DeviceProblem::Label(error))),
        Err(error) => {
            // The size recorded by the directory locates the copy.
            let size = wanted_size.unwrap_or(size);
            if size > device.size() {
                return Err(truncated(size));
            }
            let Ok(label) = decode(last_block(size))? else {
                return Err(refused(device, DeviceProblem::Label(error)));
            };
            if label.size != size {
                return Err(refused(device, DeviceProblem::Label(error)));
            }
            log::error!("{}: {error}; its copy at the end is used", device.info().name);
            if repair {
                write(device, &label, false)?;
            }
            Ok(label)
        }
    }
}
