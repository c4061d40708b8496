//! Reading: from the device straight into the caller's memory, and never unchecked.

use super::Core;
use super::device::{AlignedBuffer, BLOCK, BlockDevice, ReadOp};
use super::objects::{Object, State};
use crate::object::{ObjectError, ReadRequest, Result, transfers};
use nacre_ondisk::block::{Inline, MAP_BLOCKS, Place};
use nacre_types::Fid;
use std::cell::RefCell;
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

const BLOCK_LEN: usize = BLOCK as usize;

/// CRC-32C of a block.
pub(super) fn block_crc(block: &[u8]) -> u32 {
    crc_fast::crc32_iscsi(block)
}

/// What one operation reads: a run of blocks.
struct Expected {
    object: Fid,
    /// The first block of the run in the object.
    first: u64,
    /// The first block of the run on the device.
    at_device: u64,
    /// Where their checksums are in the plan.
    crcs: Range<usize>,
}

/// Reads that are under way together.
#[derive(Default)]
struct Plan<'a> {
    /// Those that the device has not been asked for.
    ops: VecDeque<ReadOp<'a>>,
    /// Of each operation, also of those that it was asked for.
    expected: Vec<Expected>,
    /// Checksums of all blocks. Copies, so that a map is looked at once for a read: those of large objects are not in the caches of the CPU.
    crcs: Vec<u32>,
}

impl<'a> Plan<'a> {
    /// Plans to read blocks of one map, of which these are the places, from block `block` of the object on.
    fn push(&mut self, object: Fid, mut block: u64, mut places: &[Place], mut buffer: &'a mut [u8]) {
        while !places.is_empty() {
            let run = run_of(places);
            let (now, rest) = buffer.split_at_mut(run * BLOCK_LEN);
            match places[0] {
                Place::Data(at_device, _) => {
                    let from = self.crcs.len();
                    self.crcs.extend(places[..run].iter().map(|place| match place {
                        Place::Data(_, crc) => *crc,
                        Place::Hole | Place::Reserved(_) => unreachable!("a run is of one kind"),
                    }));
                    self.expected.push(Expected { object, first: block, at_device, crcs: from..from + run });
                    self.ops.push_back(ReadOp { offset: at_device * BLOCK, buffer: now });
                }
                Place::Hole | Place::Reserved(_) => now.fill(0),
            }
            (places, buffer) = (&places[run..], rest);
            block += run as u64;
        }
        assert!(buffer.is_empty(), "each block that is read has a place");
    }

    /// Object, offset and place of the first block in `bytes` that is not what was written. They are those of an operation from `at` on.
    fn find_damage(&self, op: usize, at: usize, bytes: &[u8]) -> Option<(Fid, u64, u64)> {
        let Expected { object, first, at_device, crcs } = &self.expected[op];
        let skipped = at / BLOCK_LEN;
        let crcs = &self.crcs[crcs.start + skipped..crcs.end];
        assert!(bytes.len().div_ceil(BLOCK_LEN) <= crcs.len(), "each block that was read has a checksum");
        let bad = bytes.chunks(BLOCK_LEN).zip(crcs).position(|(bytes, crc)| block_crc(bytes) != *crc)?;
        let bad = (skipped + bad) as u64;
        Some((*object, (first + bad) * BLOCK, (at_device + bad) * BLOCK))
    }
}

impl Core {
    /// Fills `buffer` with whole blocks of an object from its block `first`; holes are zeros. The state is locked.
    pub(super) fn read_blocks(&self, object: &Object, first: u64, buffer: &mut [u8]) -> Result<()> {
        let mut plan = Plan::default();
        self.plan_blocks(object, first, buffer, &mut plan)?;
        self.carry_out(plan, &mut |_| Ok(false))
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

    /// Reads what is planned, and what `more` plans while that is under way, until it says that there is no more. Checksums are compared
    /// as parts arrive.
    fn carry_out<'a>(
        &self,
        plan: Plan<'a>,
        more: &mut dyn FnMut(&mut Plan<'a>) -> Result<bool>,
    ) -> Result<()> {
        let mut goes_on = true;
        let mut failed = None;
        let mut take = |plan: &mut Plan<'a>, is_over: bool| {
            while !is_over && goes_on && plan.ops.is_empty() {
                goes_on = more(plan).unwrap_or_else(|error| {
                    failed = Some(error);
                    false
                });
            }
            plan.ops.pop_front().filter(|_| !is_over)
        };
        let mut plan = plan;
        let mut first = take(&mut plan, false);
        let mut damage = None;
        if first.is_some() {
            let plan = RefCell::new(&mut plan);
            let damage = RefCell::new(&mut damage);
            let mut next =
                || first.take().or_else(|| take(&mut plan.borrow_mut(), damage.borrow().is_some()));
            let mut done = |op: usize, at: usize, bytes: &[u8]| {
                debug_assert!(at.is_multiple_of(BLOCK_LEN) && bytes.len().is_multiple_of(BLOCK_LEN));
                let found = plan.borrow().find_damage(op, at, bytes);
                if let Some(found) = found {
                    damage.borrow_mut().get_or_insert(found);
                }
            };
            let read = self.device.read_each(&mut next, &mut done);
            let expected = &plan.borrow().expected;
            transfers::note_reads(expected.iter().map(range_of));
            if let Err(source) = read {
                let Expected { object, first, .. } = expected[0];
                log::error!(
                    "{}: object {object} cannot be read near offset {}: {source}",
                    self.dir.display(),
                    first * BLOCK
                );
                return Err(ObjectError::Io { action: "read from the device", object, source });
            }
        }
        match damage {
            Some((object, offset, at_device)) => Err(self.report_damage(object, offset, at_device)),
            None => failed.map_or(Ok(()), Err),
        }
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
    pub(super) fn read_at(&self, object: &Arc<Object>, offset: u64, buffer: &mut [u8]) -> Result<usize> {
        let state = object.state.read();
        if self.ahead.concerns(offset, buffer.len()) {
            return self.read_stream(object, &state, offset, buffer);
        }
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
            self.carry_out(plan, &mut |_| Ok(false))?;
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
                request.read = self.read_at(&object, request.offset, request.buffer)?;
                request.pieces = transfers::noted().reads;
            }
        }
        // Each object is locked once, in one order, so that two of these calls do not wait for each other.
        let mut order: Vec<&Arc<Object>> = objects.iter().collect();
        order.sort_unstable_by_key(|object| Arc::as_ptr(object));
        order.dedup_by_key(|object| Arc::as_ptr(object));
        let locked: Vec<_> = order.iter().map(|object| (Arc::as_ptr(object), object.state.read())).collect();
        let mut rest = simple.into_iter().zip(&objects);
        self.carry_out(Plan::default(), &mut |plan| {
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
                let planned = plan.expected.len();
                self.plan_blocks(object, *offset / BLOCK, buffer, plan)?;
                *pieces = transfers::pieces(plan.expected[planned..].iter().map(range_of));
            } else {
                transfers::begin();
                *read = self.read_locked(object, state, *offset, buffer)?;
                *pieces = transfers::noted().reads;
            }
            Ok(true)
        })
    }
}

/// Where on the device an operation reads.
fn range_of(expected: &Expected) -> (u64, usize) {
    (expected.at_device * BLOCK, expected.crcs.len() * BLOCK_LEN)
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
