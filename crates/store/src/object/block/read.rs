//! Reading: from the device straight into the caller's memory, and never unchecked.

use super::Core;
use super::device::{AlignedBuffer, BLOCK, BlockDevice, ReadOp};
use super::objects::{Object, State};
use crate::object::{ObjectError, Result, transfers};
use nacre_ondisk::block::{Inline, MAP_BLOCKS, Place};
use nacre_types::Fid;
use std::sync::Arc;
use std::sync::atomic::Ordering;

const BLOCK_LEN: usize = BLOCK as usize;

/// CRC-32C of a block.
pub(super) fn block_crc(block: &[u8]) -> u32 {
    crc_fast::crc32_iscsi(block)
}

/// A read of [`Core::read_many`].
#[derive(Debug)]
pub struct ReadRequest<'a> {
    /// The object.
    pub object: Fid,
    /// Where in it.
    pub offset: u64,
    /// What to fill.
    pub buffer: &'a mut [u8],
    /// How many bytes there were, when it is done.
    pub read: usize,
}

/// Reads that are under way together.
#[derive(Default)]
struct Plan<'a> {
    ops: Vec<ReadOp<'a>>,
    /// Of each operation: object, its first block, and what is expected of each block.
    expected: Vec<(Fid, u64, Vec<Place>)>,
}

impl Core {
    /// Fills `buffer` with whole blocks of an object from its block `first`; holes are zeros. The state is locked.
    pub(super) fn read_blocks(&self, object: &Object, first: u64, buffer: &mut [u8]) -> Result<()> {
        let mut plan = Plan::default();
        self.plan_blocks(object, first, buffer, &mut plan)?;
        self.carry_out(&mut plan)
    }

    /// Plans to read whole blocks.
    fn plan_blocks<'a>(
        &self,
        object: &Object,
        first: u64,
        mut buffer: &'a mut [u8],
        plan: &mut Plan<'a>,
    ) -> Result<()> {
        let mut block = first;
        let mut map = (u64::MAX, Arc::default());
        while !buffer.is_empty() {
            let number = block / MAP_BLOCKS as u64;
            if map.0 != number {
                map = (number, self.map(object, number)?);
            }
            let index = (block % MAP_BLOCKS as u64) as usize;
            let places = &map.1.places[index..MAP_BLOCKS.min(index + buffer.len() / BLOCK_LEN)];
            let run = run_of(places);
            let (now, rest) = buffer.split_at_mut(run * BLOCK_LEN);
            match places[0] {
                Place::Data(start, _) => {
                    plan.expected.push((object.fid, block, places[..run].to_vec()));
                    plan.ops.push(ReadOp { offset: start * BLOCK, buffer: now });
                }
                Place::Hole | Place::Reserved(_) => now.fill(0),
            }
            buffer = rest;
            block += run as u64;
        }
        Ok(())
    }

    /// Reads what was planned and compares checksums.
    fn carry_out(&self, plan: &mut Plan<'_>) -> Result<()> {
        if plan.ops.is_empty() {
            return Ok(());
        }
        transfers::note_reads(plan.ops.iter().map(|op| (op.offset, op.buffer.len())));
        let read = nacre_env::blocking(|| self.device.read(&mut plan.ops));
        if let Err(source) = read {
            let (object, first, _) = plan.expected[0];
            log::error!(
                "{}: object {object} cannot be read near offset {}: {source}",
                self.dir.display(),
                first * BLOCK
            );
            return Err(ObjectError::Io { action: "read from the device", object, source });
        }
        for (op, (object, first, places)) in plan.ops.iter().zip(&plan.expected) {
            for (at, (block, place)) in op.buffer.chunks(BLOCK_LEN).zip(places).enumerate() {
                let Place::Data(at_device, crc) = *place else { continue };
                if block_crc(block) != crc {
                    return Err(self.report_damage(*object, (first + at as u64) * BLOCK, at_device * BLOCK));
                }
            }
        }
        Ok(())
    }

    fn report_damage(&self, object: Fid, offset: u64, at_device: u64) -> ObjectError {
        self.counters.checksum_errors.fetch_add(1, Ordering::Relaxed);
        log::error!(
            "{}: data of object {object} at offset {offset} is damaged: the checksum of the block at {at_device} of {} \
             does not match",
            self.dir.display(),
            self.device_name
        );
        ObjectError::Checksum { object, offset, at_device }
    }

    /// Reads into `buffer` from `offset`; how much there was.
    pub(super) fn read_at(&self, object: &Object, offset: u64, buffer: &mut [u8]) -> Result<usize> {
        let state = object.state.read();
        self.read_locked(object, &state, offset, buffer)
    }

    pub(super) fn read_locked(
        &self,
        object: &Object,
        state: &State,
        offset: u64,
        buffer: &mut [u8],
    ) -> Result<usize> {
        let Some(head) = &state.head else { return Ok(0) };
        let len = head.size.saturating_sub(offset).min(buffer.len() as u64) as usize;
        let buffer = &mut buffer[..len];
        if buffer.is_empty() {
            return Ok(0);
        }
        if let Inline::All(bytes) = &head.inline {
            let there = bytes.get(usize::try_from(offset).unwrap_or(usize::MAX)..).unwrap_or(&[]);
            let there = &there[..there.len().min(len)];
            buffer[..there.len()].copy_from_slice(there);
            buffer[there.len()..].fill(0);
            return Ok(len);
        }
        // Whole blocks straight, the two at the edges through memory of our own.
        let skip = (offset % BLOCK) as usize;
        let lead = if skip == 0 { 0 } else { (BLOCK_LEN - skip).min(len) };
        let (front, rest) = buffer.split_at_mut(lead);
        let (middle, tail) = rest.split_at_mut(rest.len() / BLOCK_LEN * BLOCK_LEN);
        let first = offset / BLOCK;
        let second = (offset + lead as u64) / BLOCK;
        let last = second + (middle.len() / BLOCK_LEN) as u64;
        let has_edges = !front.is_empty() || !tail.is_empty();
        let mut edges = AlignedBuffer::zeroed(if has_edges { 2 * BLOCK_LEN } else { 0 });
        {
            let (edge_front, edge_tail) = edges.split_at_mut(if front.is_empty() { 0 } else { BLOCK_LEN });
            let edge_tail = if tail.is_empty() { &mut [][..] } else { &mut edge_tail[..BLOCK_LEN] };
            let mut plan = Plan::default();
            self.plan_blocks(object, first, edge_front, &mut plan)?;
            self.plan_blocks(object, second, middle, &mut plan)?;
            self.plan_blocks(object, last, edge_tail, &mut plan)?;
            self.carry_out(&mut plan)?;
        }
        front.copy_from_slice(&edges[skip.min(edges.len())..][..lead]);
        let tail_at = if front.is_empty() { 0 } else { BLOCK_LEN };
        tail.copy_from_slice(&edges[tail_at.min(edges.len())..][..tail.len()]);
        Ok(len)
    }

    /// Does many reads as one batch of the device, so that one thread keeps it busy.
    ///
    /// # Errors
    /// Of the first that failed; nothing is known of the others then.
    pub fn read_many(&self, requests: &mut [ReadRequest<'_>]) -> Result<()> {
        self.defrag.note_use();
        let mut objects: Vec<Arc<Object>> = Vec::new();
        let mut simple: Vec<&mut ReadRequest<'_>> = Vec::with_capacity(requests.len());
        for request in requests {
            let is_block =
                request.offset.is_multiple_of(BLOCK) && request.buffer.len().is_multiple_of(BLOCK_LEN);
            let Some(object) = self.object(request.object, false)? else {
                request.read = 0;
                continue;
            };
            if is_block {
                objects.push(object);
                simple.push(request);
            } else {
                request.read = self.read_at(&object, request.offset, request.buffer)?;
            }
        }
        // Each object is locked once, in one order, so that two of these calls do not wait for each other.
        let mut order: Vec<&Arc<Object>> = objects.iter().collect();
        order.sort_unstable_by_key(|object| Arc::as_ptr(object));
        order.dedup_by_key(|object| Arc::as_ptr(object));
        let locked: Vec<_> = order.iter().map(|object| (Arc::as_ptr(object), object.state.read())).collect();
        let mut plan = Plan::default();
        for (request, object) in simple.into_iter().zip(&objects) {
            let at = locked.binary_search_by_key(&Arc::as_ptr(object), |(address, _)| *address);
            let state = &locked[at.expect("every object was locked")].1;
            let whole = state.head.as_ref().filter(|head| {
                let end = request.offset.checked_add(request.buffer.len() as u64);
                !matches!(head.inline, Inline::All(_)) && end.is_some_and(|end| end <= head.size)
            });
            if whole.is_some() {
                request.read = request.buffer.len();
                self.plan_blocks(object, request.offset / BLOCK, request.buffer, &mut plan)?;
            } else {
                request.read = self.read_locked(object, state, request.offset, request.buffer)?;
            }
        }
        self.carry_out(&mut plan)
    }
}

/// Blocks at the beginning that are read, or are zeros, together.
fn run_of(places: &[Place]) -> usize {
    let is_data = |place: &Place| matches!(place, Place::Data(..));
    let goes_on = |pair: &[Place]| match (pair[0], pair[1]) {
        (Place::Data(one, _), Place::Data(two, _)) => two == one + 1,
        (one, two) => !is_data(&one) && !is_data(&two),
    };
    1 + places.windows(2).take_while(|pair| goes_on(pair)).count()
}
