//! Reading: from the device directly into the caller's memory, with checksums always compared.

use super::device::{AlignedBuffer, BLOCK, BlockDevice, ReadOp};
use super::medium::{Plan, block_crc};
use super::objects::{Object, Objects, State};
use crate::object::{Extents, ObjectExtent, ReadRequest, Result, transfers};
use nacre_ondisk::block::{Inline, MAP_BLOCKS, Place};
use nacre_types::Fid;
use std::sync::Arc;

const BLOCK_LEN: usize = BLOCK as usize;

/// A block that does not match its checksum.
pub(super) struct MapProblem {
    pub(super) offset: u64,
    pub(super) at_device: u64,
    /// The block could not be read at all.
    pub(super) is_unreadable: bool,
}

impl Objects {
    /// Fills `buffer` with whole blocks of an object from its block `first`; holes are zeros. The caller has
    /// locked the state.
    pub(super) fn read_blocks(&self, object: &Object, first: u64, buffer: &mut [u8]) -> Result<()> {
        let mut plan = Plan::default();
        self.plan_blocks(object, first, buffer, &mut plan)?;
        self.volume().medium().read(plan, &mut |_| Ok(false))
    }

    /// Plans the read of whole blocks.
    fn plan_blocks<'a>(
        &self,
        object: &Object,
        first: u64,
        mut buffer: &'a mut [u8],
        plan: &mut Plan<'a>,
    ) -> Result<()> {
        let mut block = first;
        while !buffer.is_empty() {
            let index = (block % MAP_BLOCKS as u64) as usize;
            let blocks = (MAP_BLOCKS - index).min(buffer.len() / BLOCK_LEN);
            let (now, rest) = buffer.split_at_mut(blocks * BLOCK_LEN);
            self.with_map(object, block / MAP_BLOCKS as u64, |map| {
                plan.push(object.fid, block, &map.places[index..index + blocks], now);
            })?;
            buffer = rest;
            block += blocks as u64;
        }
        Ok(())
    }

    /// Reads into `buffer` from `offset` of an object, whose state is locked in either mode; returns the
    /// number of bytes.
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
        // Whole blocks directly, the two at the edges through the store's own memory.
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
            self.volume().medium().read(plan, &mut |_| Ok(false))?;
        }
        front.copy_from_slice(&edges[skip.min(edges.len())..][..lead]);
        let tail_at = if front.is_empty() { 0 } else { BLOCK_LEN };
        tail.copy_from_slice(&edges[tail_at.min(edges.len())..][..tail.len()]);
        Ok(len)
    }

    /// Does many reads as one batch of the device, so that one thread keeps it busy. `read_at` does those
    /// that are not of whole blocks.
    ///
    /// # Errors
    /// That of the first read that failed; the content of the other buffers is undefined then.
    pub(super) fn read_many(
        &self,
        requests: &mut [ReadRequest<'_>],
        read_at: impl Fn(&Arc<Object>, u64, &mut [u8]) -> Result<usize>,
    ) -> Result<()> {
        let mut objects: Vec<Arc<Object>> = Vec::with_capacity(requests.len());
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
                transfers::begin();
                request.read = read_at(&object, request.offset, request.buffer)?;
                request.pieces = transfers::noted().reads;
            }
        }
        // Each object is locked once, in a fixed order, so that two of these calls do not deadlock.
        let mut order: Vec<&Arc<Object>> = objects.iter().collect();
        order.sort_unstable_by_key(|object| Arc::as_ptr(object));
        order.dedup_by_key(|object| Arc::as_ptr(object));
        let locked: Vec<_> = order.iter().map(|object| (Arc::as_ptr(object), object.state.read())).collect();
        let mut rest = simple.into_iter().zip(&objects);
        self.volume().medium().read(Plan::default(), &mut |plan| {
            let Some((ReadRequest { offset, buffer, read, pieces, .. }, object)) = rest.next() else {
                return Ok(false);
            };
            let at = locked.binary_search_by_key(&Arc::as_ptr(object), |(address, _)| *address);
            let state = &locked[at.expect("every object was locked")].1;
            let whole = state.head.as_ref().filter(|head| {
                let end = offset.checked_add(buffer.len() as u64);
                !matches!(head.inline, Inline::All(_)) && end.is_some_and(|end| end <= head.size)
            });
            if whole.is_some() {
                *read = buffer.len();
                let planned = plan.len();
                self.plan_blocks(object, *offset / BLOCK, buffer, plan)?;
                *pieces = plan.pieces_from(planned);
            } else {
                transfers::begin();
                *read = self.read_locked(object, state, *offset, buffer)?;
                *pieces = transfers::noted().reads;
            }
            Ok(true)
        })
    }

    /// Reads the data of a map and compares checksums. Returns the number of bytes read.
    pub(super) fn check_map(&self, fid: Fid, number: u64) -> Result<(u64, Vec<MapProblem>)> {
        let Some(object) = self.object(fid, false)? else { return Ok((0, Vec::new())) };
        let _state = object.state.read();
        let map = self.map(&object, number)?;
        let mut buffer = AlignedBuffer::zeroed(MAP_BLOCKS * BLOCK as usize);
        let blocks: Vec<(u64, u64, u32)> = map
            .places
            .iter()
            .enumerate()
            .filter_map(|(index, place)| match place {
                Place::Data(block, crc) => Some((index as u64, *block, *crc)),
                Place::Hole | Place::Reserved(_) => None,
            })
            .collect();
        let read = |ops: &mut [ReadOp<'_>]| nacre_env::blocking(|| self.volume().medium().device().read(ops));
        let chunks = buffer.chunks_mut(BLOCK as usize);
        let mut ops: Vec<ReadOp<'_>> = blocks
            .iter()
            .zip(chunks)
            .map(|((_, block, _), buffer)| ReadOp { offset: block * BLOCK, buffer })
            .collect();
        let all = read(&mut ops).is_ok();
        let mut problems = Vec::new();
        for (op, (index, block, crc)) in ops.iter_mut().zip(&blocks) {
            let is_readable = all || read(std::slice::from_mut(op)).is_ok();
            if !is_readable || block_crc(op.buffer) != *crc {
                problems.push(MapProblem {
                    offset: (number * MAP_BLOCKS as u64 + index) * BLOCK,
                    at_device: block * BLOCK,
                    is_unreadable: !is_readable,
                });
            }
        }
        Ok((blocks.len() as u64 * BLOCK, problems))
    }
}

impl Extents for Objects {
    fn extents(&self, object: Fid) -> Result<Option<Vec<ObjectExtent>>> {
        let Some(object) = self.object(object, false)? else { return Ok(Some(Vec::new())) };
        let _state = object.state.read();
        let mut extents: Vec<ObjectExtent> = Vec::new();
        for number in self.map_numbers(object.fid, 0, u64::MAX)? {
            let places = self.map(&object, number)?.places;
            for (block, place) in (number * MAP_BLOCKS as u64..).zip(places) {
                let (Place::Data(at, _) | Place::Reserved(at)) = place else { continue };
                let (logical, physical) = (block * BLOCK, at * BLOCK);
                match extents.last_mut() {
                    Some(last)
                        if last.logical + last.len == logical && last.physical + last.len == physical =>
                    {
                        last.len += BLOCK;
                    }
                    _ => extents.push(ObjectExtent { logical, physical, len: BLOCK }),
                }
            }
        }
        Ok(Some(extents))
    }
}
