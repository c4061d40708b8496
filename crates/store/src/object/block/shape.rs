//! Changes of an object's shape: size, holes, reserved space, destruction.

use super::change::{Edits, Locked};
use super::device::{AlignedBuffer, BLOCK};
use super::objects::{Object, Objects};
use super::space::Share;
use super::write::Images;
use crate::object::{Fallocate, ObjectAttr, ObjectError, Result, Seek, SetMtime};
use nacre_ondisk::block::{BlockHeadRecord, Inline, MAP_BLOCKS, Place};
use nacre_types::{Fid, Timestamp};
use std::ops::Range;

const BLOCK_LEN: usize = BLOCK as usize;
/// Maximum maps that one transaction changes.
const MAPS_AT_ONCE: usize = 1024;
/// Bytes of data of a map.
const MAP_BYTES: u64 = MAP_BLOCKS as u64 * BLOCK;
/// Maximum bytes that one transaction reserves.
const ALLOCATE_STEP: u64 = 64 << 20;
/// Units of [`ObjectAttr::blocks`] in a block.
const UNITS: u64 = BLOCK / 512;

/// Returns the attributes that callers receive for an object.
pub(super) fn attr_of(head: Option<&BlockHeadRecord>) -> ObjectAttr {
    let Some(head) = head else { return ObjectAttr::default() };
    let in_record = matches!(&head.inline, Inline::All(bytes) if !bytes.is_empty());
    let blocks = head.blocks + u64::from(in_record);
    ObjectAttr { size: head.size, blocks: blocks * UNITS, mtime: Some(head.mtime) }
}

impl Locked<'_> {
    /// Sets the size.
    pub(super) fn set_size(&mut self, size: u64) -> Result<()> {
        let mut head = self.head();
        if let Inline::All(bytes) = &mut head.inline {
            bytes.truncate(usize::try_from(size).unwrap_or(usize::MAX));
        }
        if head.blocks == 0 || size >= head.size {
            head.size = size;
            let edits = Edits::releasing();
            return self.commit(Some(head), &edits);
        }
        // From the end, so that a crash leaves a validly truncated object at any point.
        let boundary = size / MAP_BYTES;
        let mut numbers =
            self.objects().map_numbers(self.object().fid, size.div_ceil(MAP_BYTES), u64::MAX)?;
        while numbers.len() > MAPS_AT_ONCE {
            let some = numbers.split_off(numbers.len() - MAPS_AT_ONCE);
            let mut edits = Edits::releasing();
            head.size = head.size.min(some[0] * MAP_BYTES);
            some.into_iter().for_each(|number| edits.remove_map(number));
            self.commit(Some(head.clone()), &edits)?;
            head = self.head();
        }
        let mut edits = Edits::releasing();
        numbers.into_iter().for_each(|number| edits.remove_map(number));
        let mut tail = AlignedBuffer::zeroed(BLOCK_LEN);
        let mut images = Images::default();
        if !size.is_multiple_of(MAP_BYTES) {
            let places = self.map(boundary)?.places;
            let first = boundary * MAP_BLOCKS as u64;
            for (block, place) in (first..).zip(places) {
                if block * BLOCK >= size && place != Place::Hole {
                    edits.put(block, Place::Hole);
                }
            }
            let is_data = matches!(places[(size / BLOCK) as usize % MAP_BLOCKS], Place::Data(..));
            if is_data && self.cut_block(size, &mut tail)? {
                images.push(size / BLOCK, &tail);
            }
        }
        head.size = size;
        self.put_images(head, images, edits, Share::Freeing)
    }

    /// Reads the block in which an object will end and zeroes the bytes after that end; false if they are
    /// zeros already.
    pub(super) fn cut_block(&self, size: u64, block: &mut [u8]) -> Result<bool> {
        let keep = (size % BLOCK) as usize;
        if keep == 0 {
            return Ok(false);
        }
        self.objects().read_blocks(self.object(), size / BLOCK, block)?;
        let is_cut = block[keep..].iter().any(|byte| *byte != 0);
        block[keep..].fill(0);
        Ok(is_cut)
    }

    /// Zeroes a range, and frees the whole blocks that it covers.
    fn punch(&mut self, range: Range<u64>, keep_size: bool) -> Result<()> {
        let mut head = self.head();
        let new_size = if keep_size { head.size } else { head.size.max(range.end) };
        if let Inline::All(bytes) = &mut head.inline {
            let clip = |at: u64| usize::try_from(at).unwrap_or(usize::MAX).min(bytes.len());
            let (start, end) = (clip(range.start), clip(range.end));
            bytes[start..end].fill(0);
            head.size = new_size;
            let edits = Edits::releasing();
            return self.commit(Some(head), &edits);
        }
        let whole = range.start.div_ceil(BLOCK)..range.end / BLOCK;
        let maps = whole.start / MAP_BLOCKS as u64..whole.end.div_ceil(MAP_BLOCKS as u64);
        let numbers = self.objects().map_numbers(self.object().fid, maps.start, maps.end.max(maps.start))?;
        for some in numbers.chunks(MAPS_AT_ONCE) {
            let mut edits = Edits::releasing();
            for &number in some {
                let places = self.map(number)?.places;
                for (block, place) in (number * MAP_BLOCKS as u64..).zip(places) {
                    if whole.contains(&block) && place != Place::Hole {
                        edits.put(block, Place::Hole);
                    }
                }
            }
            self.commit(Some(head.clone()), &edits)?;
            head = self.head();
        }
        let mut edges = AlignedBuffer::zeroed(2 * BLOCK_LEN);
        let (front, tail) = edges.split_at_mut(BLOCK_LEN);
        let mut images = Images::default();
        let first = range.start / BLOCK;
        let last = (range.end - 1) / BLOCK;
        if !whole.contains(&first) && self.zero_part(first, &range, front)? {
            images.push(first, front);
        }
        if last != first && !whole.contains(&last) && self.zero_part(last, &range, tail)? {
            images.push(last, tail);
        }
        head.size = new_size;
        let edits = Edits::releasing();
        self.put_images(head, images, edits, Share::Freeing)
    }

    /// Reads a block and zeroes its part in a range; false if that changes nothing.
    fn zero_part(&self, block: u64, range: &Range<u64>, buffer: &mut [u8]) -> Result<bool> {
        if !matches!(self.place(block)?, Place::Data(..)) {
            return Ok(false);
        }
        self.objects().read_blocks(self.object(), block, buffer)?;
        let from = range.start.saturating_sub(block * BLOCK) as usize;
        let to = (range.end - block * BLOCK).min(BLOCK) as usize;
        let changes = buffer[from..to].iter().any(|byte| *byte != 0);
        buffer[from..to].fill(0);
        Ok(changes)
    }

    /// Allocates blocks for the holes of a range.
    fn set_aside(&mut self, range: Range<u64>, keep_size: bool) -> Result<()> {
        let mut head = self.head();
        let mut moved = AlignedBuffer::zeroed(BLOCK_LEN);
        let mut images = Images::default();
        if let Inline::All(bytes) = std::mem::take(&mut head.inline) {
            if !bytes.is_empty() {
                moved[..bytes.len()].copy_from_slice(&bytes);
                images.push(0, &moved);
                self.put_images(head, images, Edits::default(), Share::Usual)?;
                head = self.head();
            }
        } else {
            head = self.head();
        }
        let mut holes = Vec::new();
        let (first, end) = (range.start / BLOCK, range.end.div_ceil(BLOCK));
        for number in first / MAP_BLOCKS as u64..end.div_ceil(MAP_BLOCKS as u64) {
            let map = self.map(number)?;
            let blocks = (number * MAP_BLOCKS as u64..).zip(map.places);
            let is_hole =
                |(block, place): &(u64, Place)| *place == Place::Hole && (first..end).contains(block);
            holes.extend(blocks.filter(is_hole).map(|(block, _)| block));
        }
        if !keep_size {
            head.size = head.size.max(range.end);
        }
        let (volume, object) = (self.volume(), self.object());
        let extents =
            volume.take_blocks(object.fid, &object.stream, first, holes.len() as u64, Share::Usual)?;
        let mut edits = Edits::default();
        let taken = extents.iter().flat_map(|extent| extent.start..extent.end());
        holes.into_iter().zip(taken).for_each(|(block, at)| edits.put(block, Place::Reserved(at)));
        let committed = self.commit(Some(head), &edits);
        committed.inspect_err(|_| volume.space().give_back(&extents))
    }
}

impl Objects {
    /// Changes the space of a range.
    pub(super) fn shape(&self, object: &Object, how: Fallocate, range: Range<u64>) -> Result<ObjectAttr> {
        let mut locked = self.lock(object);
        match how {
            Fallocate::Punch if locked.state().head.is_none() => return Ok(ObjectAttr::default()),
            Fallocate::Punch => locked.punch(range, true)?,
            Fallocate::Zero { keep_size } => locked.punch(range, keep_size)?,
            Fallocate::Allocate { keep_size } => {
                let mut at = range.start;
                while at < range.end {
                    let end = range.end.min((at / ALLOCATE_STEP + 1) * ALLOCATE_STEP);
                    locked.set_aside(at..end, keep_size)?;
                    at = end;
                }
            }
        }
        Ok(attr_of(locked.state().head.as_ref()))
    }

    /// Destroys an object; false if it did not exist. Not durable yet.
    pub(super) fn end(&self, fid: Fid) -> Result<bool> {
        let Some(object) = self.object(fid, false)? else { return Ok(false) };
        let mut locked = self.lock(&object);
        let Some(mut head) = locked.state().head.clone() else { return Ok(false) };
        let mut numbers = match head.inline {
            Inline::All(_) => Vec::new(),
            Inline::Nothing | Inline::Kept(..) => self.map_numbers(fid, 0, u64::MAX)?,
        };
        while numbers.len() > MAPS_AT_ONCE {
            let some = numbers.split_off(numbers.len() - MAPS_AT_ONCE);
            let mut edits = Edits::releasing();
            head.size = head.size.min(some[0] * MAP_BYTES);
            some.into_iter().for_each(|number| edits.remove_map(number));
            locked.commit(Some(head.clone()), &edits)?;
            head = locked.head();
        }
        let mut edits = Edits::releasing();
        numbers.into_iter().for_each(|number| edits.remove_map(number));
        locked.commit(None, &edits)?;
        *object.stream.lock() = Default::default();
        self.volume().space().close_window(fid);
        Ok(true)
    }

    /// Returns the offset of the next data or hole of an object at or after `offset`.
    pub(super) fn look_for(&self, object: &Object, offset: u64, what: Seek) -> Result<u64> {
        let state = object.state.read();
        let head = state.head.as_ref().filter(|head| offset < head.size).ok_or(ObjectError::NoData)?;
        if let Inline::All(bytes) = &head.inline {
            let is_data = offset < bytes.len() as u64;
            return match what {
                Seek::Data => is_data.then_some(offset).ok_or(ObjectError::NoData),
                Seek::Hole => Ok(if is_data { bytes.len() as u64 } else { offset }),
            };
        }
        let from = offset / BLOCK;
        let mut next = from;
        for number in self.map_numbers(object.fid, from / MAP_BLOCKS as u64, u64::MAX)? {
            let places = self.map(object, number)?.places;
            for (block, place) in
                (number * MAP_BLOCKS as u64..).zip(places).filter(|(block, _)| *block >= from)
            {
                if block * BLOCK >= head.size {
                    break;
                }
                let is_data = matches!(place, Place::Data(..));
                match what {
                    Seek::Data if is_data => return Ok(offset.max(block * BLOCK)),
                    // Missing maps are holes.
                    Seek::Hole if !is_data || block != next => return Ok(offset.max(next * BLOCK)),
                    Seek::Hole => next = block + 1,
                    Seek::Data => {}
                }
            }
        }
        match what {
            Seek::Data => Err(ObjectError::NoData),
            Seek::Hole => Ok(offset.max(next * BLOCK).min(head.size)),
        }
    }
}

impl SetMtime for Objects {
    fn set_mtime(&self, object: Fid, mtime: Timestamp) -> Result<()> {
        let _changing = self.volume().change()?;
        let Some(object) = self.object(object, false)? else { return Ok(()) };
        let mut locked = self.lock(&object);
        match locked.state().head.clone() {
            Some(head) => locked.commit(Some(head), &Edits::only_mtime(mtime)),
            None => Ok(()),
        }
    }
}
