//! Opening: reads all maps to determine the free blocks and, after a crash, the data that reached the medium.

use super::allocator::Extent;
use super::change::Edits;
use super::device::{AlignedBuffer, BLOCK, BlockDevice, ReadOp};
use super::medium::block_crc;
use super::objects::{MAPS, Objects, map_key, parse_map_key};
use super::space::Share;
use super::write::Images;
use crate::meta::{Batch, MetaStore};
use crate::object::sequences::OBJECTS;
use crate::object::{ObjectError, Result};
use nacre_ondisk::block::{Before, BlockHeadRecord, BlockMapRecord, Inline, MAP_BLOCKS, Place};
use nacre_types::Fid;
use std::collections::BTreeMap;
use std::ops::{Bound, ControlFlow};

/// Maps that are written back in one transaction.
const AT_ONCE: usize = 256;

/// Result of reading all maps.
#[derive(Default)]
pub(super) struct Scan {
    /// Blocks that objects own, ascending.
    pub(super) used: Vec<Extent>,
    /// Repaired maps of blocks that did not reach the medium.
    repaired: BTreeMap<(Fid, u64), (BlockMapRecord, i64)>,
    /// Newest generation of any change.
    pub(super) newest: u64,
    /// Blocks that were reverted.
    pub(super) blocks: u64,
}

/// Reads all maps, and the blocks that changed after generation `completed`, whose checksums it compares.
pub(super) fn scan(
    index: &MetaStore,
    device: &dyn BlockDevice,
    completed: u64,
    was_clean: bool,
) -> Result<Scan> {
    let mut scan = Scan { newest: completed, ..Scan::default() };
    let mut owners: Vec<(Extent, Fid)> = Vec::new();
    let mut failed = None;
    index.scan(MAPS, &[], Bound::Unbounded, &mut |key, value| {
        let found = parse_map_key(key).zip(BlockMapRecord::decode(value).ok());
        let Some(((fid, number), mut map)) = found else {
            failed = Some(ObjectError::IndexDamaged { what: "a map of an object cannot be read" });
            return ControlFlow::Break(());
        };
        scan.newest = scan.newest.max(map.before.last().map_or(0, |before| before.generation));
        let is_old = map.before.last().is_none_or(|before| before.generation <= completed);
        if !was_clean && !is_old {
            let (blocks, more) = go_back(&mut map, device, completed);
            if blocks > 0 {
                scan.blocks += blocks;
                scan.repaired.insert((fid, number), (map.clone(), more));
            }
        }
        add_used(&map, fid, &mut owners);
        ControlFlow::Continue(())
    })?;
    if let Some(error) = failed {
        return Err(error);
    }
    owners.sort_unstable_by_key(|(extent, _)| extent.start);
    let end = device.size() / BLOCK - 1;
    for (extent, fid) in owners {
        let is_free = scan.used.last().is_none_or(|last| last.end() <= extent.start);
        if !is_free || extent.end() > end {
            log::error!("object {fid}: the block at {} of the device is not its own", extent.start * BLOCK);
            return Err(ObjectError::Damaged { object: fid, what: "it has blocks that are not its own" });
        }
        match scan.used.last_mut() {
            Some(last) if last.end() == extent.start => last.len += extent.len,
            _ => scan.used.push(extent),
        }
    }
    Ok(scan)
}

fn add_used(map: &BlockMapRecord, fid: Fid, owners: &mut Vec<(Extent, Fid)>) {
    for block in map.places.iter().filter_map(|place| place.block()) {
        match owners.last_mut() {
            Some((last, owner)) if *owner == fid && last.end() == block => last.len += 1,
            _ => owners.push((Extent { start: block, len: 1 }, fid)),
        }
    }
}

/// Reverts blocks of a map that changed after generation `completed` and are not on the medium to their place
/// at that time. Returns their number, and the growth of the map in blocks.
fn go_back(map: &mut BlockMapRecord, device: &dyn BlockDevice, completed: u64) -> (u64, i64) {
    let (mut count, mut more) = (0, 0);
    let mut buffer = AlignedBuffer::zeroed(BLOCK as usize);
    for index in 0..MAP_BLOCKS {
        let is_new = |before: &&Before| before.generation > completed && usize::from(before.index) == index;
        // The oldest of the newer entries records the block's place in the last durable generation.
        let Some(before) = map.before.iter().find(is_new).copied() else { continue };
        let Place::Data(block, crc) = map.places[index] else { continue };
        let read = device.read(&mut [ReadOp { offset: block * BLOCK, buffer: &mut buffer }]);
        if read.is_ok() && block_crc(&buffer) == crc {
            continue;
        }
        map.places[index] = before.place;
        map.before.retain(|other| usize::from(other.index) != index);
        more += i64::from(before.place.block().is_some()) - 1;
        count += 1;
    }
    (count, more)
}

/// Commits the result of [`scan`], makes it durable, and restores the ends of objects.
pub(super) fn recover(objects: &Objects, scan: Scan) -> Result<()> {
    let repaired: Vec<_> = scan.repaired.into_iter().collect();
    let mut touched: Vec<Fid> = Vec::new();
    for some in repaired.chunks(AT_ONCE) {
        let mut batch = Batch::new();
        batch.set_releasing(true);
        let mut bytes = Vec::new();
        let mut more: BTreeMap<Fid, i64> = BTreeMap::new();
        for ((fid, number), (map, blocks)) in some {
            map.encode(&mut bytes);
            batch.put(MAPS, &map_key(*fid, *number), &bytes);
            *more.entry(*fid).or_default() += blocks;
        }
        for (fid, blocks) in more {
            let head =
                objects.index().get(OBJECTS, &fid.to_key(), |value| value.map(BlockHeadRecord::decode))?;
            if let Some(Ok(mut head)) = head {
                head.blocks = head.blocks.saturating_add_signed(blocks);
                head.encode(&mut bytes);
                batch.put(OBJECTS, &fid.to_key(), &bytes);
            }
            touched.push(fid);
        }
        objects.index().commit(&batch)?;
    }
    touched.dedup();
    for fid in touched {
        restore_ends(objects, fid)?;
    }
    if scan.blocks > 0 {
        log::info!(
            "{}: {} blocks that a power cut kept from the device are as they were before",
            objects.volume().dir().display(),
            scan.blocks
        );
    }
    Ok(())
}

/// Restores the end of an object with reverted blocks: its first block may have been in its record then, and
/// its last may have been longer.
fn restore_ends(objects: &Objects, fid: Fid) -> Result<()> {
    let Some(object) = objects.object(fid, false)? else { return Ok(()) };
    let mut locked = objects.lock(&object);
    let Some(head) = locked.state().head.clone() else { return Ok(()) };
    let mut images = Images::default();
    let mut first = AlignedBuffer::zeroed(BLOCK as usize);
    let mut tail = AlignedBuffer::zeroed(BLOCK as usize);
    let map = locked.map(0)?;
    if let Inline::Kept(generation, bytes) = &head.inline
        && *generation > objects.volume().completed()
        && map.places[0] == Place::Hole
        && !map.before.iter().any(|before| before.index == 0)
        && !bytes.is_empty()
    {
        first[..bytes.len()].copy_from_slice(bytes);
        images.push(0, &first);
    }
    let last = head.size / BLOCK;
    let is_data = matches!(locked.place(last)?, Place::Data(..));
    if is_data && locked.cut_block(head.size, &mut tail)? {
        images.push(last, &tail);
    }
    locked.put_images(head, images, Edits::default(), Share::Freeing)
}
