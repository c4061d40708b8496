//! Writing: data first, into free blocks, then the maps.

use super::allocator::Extent;
use super::change::{Edits, Locked};
use super::device::{AlignedBuffer, BLOCK, WriteOp};
use super::medium::block_crc;
use super::objects::{Object, Objects};
use super::space::Share;
use crate::object::{ObjectError, Result};
use nacre_ondisk::block::{BlockHeadRecord, INLINE_MAX, Inline, MAP_BLOCKS, Place};
use nacre_types::{Fid, Status};

const BLOCK_LEN: usize = BLOCK as usize;
/// Maximum bytes that one transaction writes.
const STEP: u64 = 4 << 20;

/// Returns the blocks of extents one after the other.
fn blocks_of(extents: &[Extent]) -> impl Iterator<Item = u64> + '_ {
    extents.iter().flat_map(|extent| extent.start..extent.end())
}

/// Blocks to write: number in the object, and bytes.
#[derive(Default)]
pub(super) struct Images<'a>(Vec<(u64, &'a [u8])>);

impl<'a> Images<'a> {
    pub(super) fn push(&mut self, block: u64, bytes: &'a [u8]) {
        debug_assert_eq!(bytes.len(), BLOCK_LEN);
        self.0.push((block, bytes));
    }
}

impl Objects {
    /// Writes all of `data`, or as much as there is space for.
    pub(super) fn write_all(&self, fid: Fid, offset: u64, data: &[u8], share: Share) -> Result<usize> {
        let object =
            self.object(fid, true)?.ok_or(ObjectError::IndexDamaged { what: "no object was made" })?;
        let mut done = 0;
        while done < data.len() {
            let at = offset + done as u64;
            let len = (data.len() - done).min((STEP - at % STEP) as usize);
            match self.write_step(&object, at, &data[done..done + len], share) {
                Ok(()) => done += len,
                Err(error) if done > 0 && error.status() == Status::ENOSPC => break,
                Err(error) => return Err(error),
            }
        }
        Ok(done)
    }

    /// Refuses to reserve a range if only the reserve is left.
    pub(super) fn admit_range(&self, fid: Fid, offset: u64, len: u64) -> Result<()> {
        let blocks = (offset + len).div_ceil(BLOCK) - offset / BLOCK;
        match self.volume().space().admit(blocks, Share::Usual) {
            Err(ObjectError::NoSpace) => match self.object(fid, false)? {
                Some(object) if self.is_rewrite(&object, offset / BLOCK, blocks)? => Ok(()),
                _ => Err(ObjectError::NoSpace),
            },
            other => other,
        }
    }

    fn write_step(&self, object: &Object, offset: u64, data: &[u8], share: Share) -> Result<()> {
        if offset + data.len() as u64 <= INLINE_MAX as u64
            && self.write_inline(object, offset, data, share)?
        {
            return Ok(());
        }
        let is_whole = offset.is_multiple_of(BLOCK) && data.len().is_multiple_of(BLOCK_LEN);
        if is_whole && self.can_write_ahead(object, offset, data.len() as u64)? {
            return self.write_ahead(object, offset, data, share);
        }
        self.lock(object).write(offset, data, share)
    }

    /// Writes into the record of an object without blocks; false if it has blocks.
    fn write_inline(&self, object: &Object, offset: u64, data: &[u8], share: Share) -> Result<bool> {
        let mut locked = self.lock(object);
        let mut head = locked.head();
        let Inline::All(bytes) = &mut head.inline else { return Ok(false) };
        // The write needs no blocks, but a full store must refuse it.
        if bytes.is_empty() {
            self.volume().space().admit(1, share)?;
        }
        let (start, end) = (offset as usize, offset as usize + data.len());
        if bytes.len() < end {
            bytes.resize(end, 0);
        }
        bytes[start..end].copy_from_slice(data);
        head.size = head.size.max(end as u64);
        locked.commit(Some(head), &Edits::default())?;
        Ok(true)
    }

    /// Whether whole blocks can be written to new places on the device before the object is locked. Not if
    /// its inline bytes must move to the device too, or space was reserved for the blocks.
    fn can_write_ahead(&self, object: &Object, offset: u64, len: u64) -> Result<bool> {
        let state = object.state.read();
        let Some(head) = &state.head else { return Ok(true) };
        if matches!(&head.inline, Inline::All(bytes) if !bytes.is_empty() && offset >= BLOCK) {
            return Ok(false);
        }
        if head.blocks == 0 {
            return Ok(true);
        }
        let (first, end) = (offset / BLOCK, (offset + len) / BLOCK);
        for number in first / MAP_BLOCKS as u64..end.div_ceil(MAP_BLOCKS as u64) {
            let map = self.map(object, number)?;
            if map.places.iter().any(|place| matches!(place, Place::Reserved(_))) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Whether all blocks of a range are on the device already, so that rewriting them frees as much as it
    /// takes.
    fn is_rewrite(&self, object: &Object, first: u64, blocks: u64) -> Result<bool> {
        let state = object.state.read();
        if state.head.as_ref().is_none_or(|head| head.blocks < blocks) {
            return Ok(false);
        }
        for block in first..first + blocks {
            if self.place(object, block)? == Place::Hole {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn take_for_write(&self, object: &Object, first: u64, blocks: u64, share: Share) -> Result<Vec<Extent>> {
        match self.volume().take_blocks(object.fid, &object.stream, first, blocks, share) {
            Err(ObjectError::NoSpace)
                if share == Share::Usual && self.is_rewrite(object, first, blocks)? =>
            {
                self.volume().take_blocks(object.fid, &object.stream, first, blocks, Share::Promised)
            }
            other => other,
        }
    }

    /// Writes whole blocks to the device, and locks the object only to record their places.
    fn write_ahead(&self, object: &Object, offset: u64, data: &[u8], share: Share) -> Result<()> {
        let first = offset / BLOCK;
        let blocks = (data.len() / BLOCK_LEN) as u64;
        let extents = self.take_for_write(object, first, blocks, share)?;
        let mut rest = data;
        let mut ops = Vec::with_capacity(extents.len());
        for extent in &extents {
            let (now, later) = rest.split_at((extent.len * BLOCK) as usize);
            ops.push(WriteOp { offset: extent.start * BLOCK, data: now });
            rest = later;
        }
        assert!(rest.is_empty(), "each block that is written has a place");
        let mut edits = Edits::default();
        for ((at, block), bytes) in (first..).zip(blocks_of(&extents)).zip(data.chunks(BLOCK_LEN)) {
            edits.put(at, Place::Data(block, block_crc(bytes)));
        }
        self.volume()
            .medium()
            .write(object.fid, &ops)
            .inspect_err(|_| self.volume().space().give_back(&extents))?;
        let mut locked = self.lock(object);
        let mut head = locked.head();
        if matches!(&head.inline, Inline::All(bytes) if !bytes.is_empty() && offset >= BLOCK) {
            // The object was recreated meanwhile.
            self.volume().space().give_back(&extents);
            return locked.write(offset, data, share);
        }
        if matches!(head.inline, Inline::All(_)) {
            head.inline = Inline::Nothing;
        }
        head.size = head.size.max(offset + data.len() as u64);
        let committed = locked.commit(Some(head), &edits);
        committed.inspect_err(|_| self.volume().space().give_back(&extents))
    }
}

impl Locked<'_> {
    /// Writes any bytes of a locked object. Partially changed blocks are read first.
    fn write(&mut self, offset: u64, data: &[u8], share: Share) -> Result<()> {
        let end = offset + data.len() as u64;
        let (first, last) = (offset / BLOCK, (end - 1) / BLOCK);
        let mut head = self.head();
        let inline = match std::mem::take(&mut head.inline) {
            Inline::All(bytes) => Some(bytes),
            kept => {
                head.inline = kept;
                None
            }
        };
        // The inline bytes, the first and the last block.
        let mut edges = AlignedBuffer::zeroed(3 * BLOCK_LEN);
        let (moved, ends) = edges.split_at_mut(BLOCK_LEN);
        let (front, tail) = ends.split_at_mut(BLOCK_LEN);
        let has_front = !offset.is_multiple_of(BLOCK);
        let has_tail = !end.is_multiple_of(BLOCK) && (last > first || !has_front);
        for (block, buffer) in
            [(first, has_front.then_some(&mut *front)), (last, has_tail.then_some(&mut *tail))]
        {
            let Some(buffer) = buffer else { continue };
            match &inline {
                Some(bytes) if block == 0 => buffer[..bytes.len()].copy_from_slice(bytes),
                Some(_) => {}
                None => self.objects().read_blocks(self.object(), block, buffer)?,
            }
            let from = offset.max(block * BLOCK);
            let to = end.min((block + 1) * BLOCK);
            buffer[(from - block * BLOCK) as usize..(to - block * BLOCK) as usize]
                .copy_from_slice(&data[(from - offset) as usize..(to - offset) as usize]);
        }
        let mut images = Images::default();
        if let Some(bytes) = inline.as_ref().filter(|bytes| !bytes.is_empty() && first > 0) {
            moved[..bytes.len()].copy_from_slice(bytes);
            images.push(0, moved);
        }
        for block in first..=last {
            match block {
                _ if block == first && has_front => images.push(block, front),
                _ if block == last && has_tail => images.push(block, tail),
                _ => {
                    let at = (block * BLOCK - offset) as usize;
                    images.push(block, &data[at..at + BLOCK_LEN]);
                }
            }
        }
        head.size = head.size.max(end);
        self.put_images(head, images, Edits::default(), share)
    }

    /// Writes blocks of a locked object to the device and commits them with `edits`, whose blocks precede
    /// them.
    pub(super) fn put_images(
        &mut self,
        head: BlockHeadRecord,
        images: Images<'_>,
        mut edits: Edits,
        share: Share,
    ) -> Result<()> {
        let mut reserved = Vec::with_capacity(images.0.len());
        for (block, _) in &images.0 {
            reserved.push(match self.place(*block)? {
                Place::Reserved(at) => Some(at),
                Place::Hole | Place::Data(..) => None,
            });
        }
        let wanted = reserved.iter().filter(|place| place.is_none()).count() as u64;
        let share = match share {
            Share::Usual if self.all_there(&images)? => Share::Promised,
            share => share,
        };
        let first = images.0.first().map_or(0, |(block, _)| *block);
        let (volume, object) = (self.volume(), self.object());
        let extents = volume.take_blocks(object.fid, &object.stream, first, wanted, share)?;
        let mut fresh = blocks_of(&extents);
        let mut ops: Vec<WriteOp<'_>> = Vec::with_capacity(images.0.len());
        for ((block, bytes), reserved) in images.0.iter().zip(reserved) {
            let Some(at) = reserved.or_else(|| fresh.next()) else {
                volume.space().give_back(&extents);
                return Err(ObjectError::NoSpace);
            };
            edits.put(*block, Place::Data(at, block_crc(bytes)));
            ops.push(WriteOp { offset: at * BLOCK, data: bytes });
        }
        let written = volume.medium().write(object.fid, &ops);
        let committed = written.and_then(|()| self.commit(Some(head), &edits));
        committed.inspect_err(|_| volume.space().give_back(&extents))
    }

    fn all_there(&self, images: &Images<'_>) -> Result<bool> {
        for (block, _) in &images.0 {
            if self.place(*block)? == Place::Hole {
                return Ok(false);
            }
        }
        Ok(true)
    }
}
