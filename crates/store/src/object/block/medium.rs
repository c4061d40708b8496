//! The device below a store: all data read from it is compared with checksums.

use super::device::model::SimulatedDevice;
use super::device::{BLOCK, BlockDevice, ReadOp, WriteOp};
use crate::object::{ObjectError, Result, transfers};
use nacre_ondisk::block::Place;
use nacre_types::Fid;
use std::cell::RefCell;
use std::collections::VecDeque;
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

const BLOCK_LEN: usize = BLOCK as usize;

/// Returns the CRC-32C of a block.
pub(super) fn block_crc(block: &[u8]) -> u32 {
    crc_fast::crc32_iscsi(block)
}

/// The read of one operation: a run of blocks.
struct Expected {
    object: Fid,
    /// First block of the run in the object.
    first: u64,
    /// First block of the run on the device.
    at_device: u64,
    /// Their checksums in the plan.
    crcs: Range<usize>,
}

/// A batch of reads.
#[derive(Default)]
pub(super) struct Plan<'a> {
    /// Operations not submitted to the device yet.
    ops: VecDeque<ReadOp<'a>>,
    /// Runs of all operations, including submitted ones.
    expected: Vec<Expected>,
    /// Checksums of all blocks. Copies, so that each map is accessed once per read: maps of large objects are
    /// not in the caches of the CPU.
    crcs: Vec<u32>,
}

impl<'a> Plan<'a> {
    /// Plans to read blocks of one map, given their places, from block `block` of the object on.
    pub(super) fn push(
        &mut self,
        object: Fid,
        mut block: u64,
        mut places: &[Place],
        mut buffer: &'a mut [u8],
    ) {
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

    /// Returns object, offset and place of the first block in `bytes` that does not match its checksum. The
    /// bytes are those of an operation from `at` on.
    fn find_damage(&self, op: usize, at: usize, bytes: &[u8]) -> Option<(Fid, u64, u64)> {
        let Expected { object, first, at_device, crcs } = &self.expected[op];
        let skipped = at / BLOCK_LEN;
        let crcs = &self.crcs[crcs.start + skipped..crcs.end];
        assert!(bytes.len().div_ceil(BLOCK_LEN) <= crcs.len(), "each block that was read has a checksum");
        let bad = bytes.chunks(BLOCK_LEN).zip(crcs).position(|(bytes, crc)| block_crc(bytes) != *crc)?;
        let bad = (skipped + bad) as u64;
        Some((*object, (first + bad) * BLOCK, (at_device + bad) * BLOCK))
    }

    /// Returns the number of operations planned so far.
    pub(super) fn len(&self) -> usize {
        self.expected.len()
    }

    /// Returns the number of transfers of the operations from `from` on.
    pub(super) fn pieces_from(&self, from: usize) -> u32 {
        transfers::pieces(self.expected[from..].iter().map(range_of))
    }
}

/// See the [module documentation](self).
pub(super) struct Medium {
    /// Directory of the store, for messages.
    dir: PathBuf,
    device: Arc<SimulatedDevice>,
    name: String,
    /// Data was written to the device since the beginning of the last flush.
    is_dirty: AtomicBool,
    checksum_errors: AtomicU64,
}

impl Medium {
    /// Creates the medium; data on the device may not be durable yet.
    pub(super) fn new(dir: &Path, device: Arc<SimulatedDevice>) -> Medium {
        Medium {
            dir: dir.to_owned(),
            name: device.info().name,
            device,
            is_dirty: AtomicBool::new(true),
            checksum_errors: AtomicU64::new(0),
        }
    }

    pub(super) fn dir(&self) -> &Path {
        &self.dir
    }

    pub(super) fn device(&self) -> &SimulatedDevice {
        &self.device
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// Returns the number of blocks that did not match their checksum.
    pub(super) fn checksum_errors(&self) -> u64 {
        self.checksum_errors.load(Ordering::Relaxed)
    }

    pub(super) fn note_damage(&self, blocks: u64) {
        self.checksum_errors.fetch_add(blocks, Ordering::Relaxed);
    }

    /// Whether data was written to the device that no flush has begun to make durable.
    pub(super) fn is_dirty(&self) -> bool {
        self.is_dirty.load(Ordering::Acquire)
    }

    /// Begins a flush; returns whether there is anything to flush. [`Medium::flush`] does it.
    pub(super) fn begin_flush(&self) -> bool {
        self.is_dirty.swap(false, Ordering::AcqRel)
    }

    /// Makes the writes before [`Medium::begin_flush`] durable.
    pub(super) fn flush(&self) -> Result<()> {
        self.device.flush().map_err(|source| {
            self.is_dirty.store(true, Ordering::Release);
            log::error!("{}: the device {} could not be flushed: {source}", self.dir.display(), self.name);
            ObjectError::Io { action: "flush the device", object: Fid::ZERO, source }
        })
    }

    /// Writes to blocks that were allocated for an object and that no record refers to yet.
    pub(super) fn write(&self, object: Fid, ops: &[WriteOp<'_>]) -> Result<()> {
        debug_assert!(
            ops.iter().all(|op| op.offset.is_multiple_of(BLOCK) && op.data.len().is_multiple_of(BLOCK_LEN))
        );
        transfers::note_writes(ops.iter().map(|op| (op.offset, op.data.len())));
        let written = self.device.write(ops);
        // Before the change is committed, so that the flush of its generation covers it.
        if !self.is_dirty() {
            self.is_dirty.store(true, Ordering::Release);
        }
        written.map_err(|source| match source.kind() {
            // The device is a sparse file, and its file system is full.
            io::ErrorKind::StorageFull => ObjectError::NoSpace,
            _ => ObjectError::Io { action: "write to the device", object, source },
        })
    }

    /// Reads the planned operations, and those that `more` plans meanwhile, until it has no more. Checksums
    /// are compared as parts arrive.
    pub(super) fn read<'a>(
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
        self.note_damage(1);
        log::error!(
            "{}: data of object {object} at offset {offset} is damaged: the checksum of the block at {at_device} of {} \
             does not match",
            self.dir.display(),
            self.name
        );
        ObjectError::Checksum { object, offset, at_device }
    }
}

/// Returns the range of an operation on the device: offset and length in bytes.
fn range_of(expected: &Expected) -> (u64, usize) {
    (expected.at_device * BLOCK, expected.crcs.len() * BLOCK_LEN)
}

/// Returns the number of blocks at the beginning that can be read, or zeroed, together.
fn run_of(places: &[Place]) -> usize {
    let is_data = |place: &Place| matches!(place, Place::Data(..));
    let goes_on = |pair: &[Place]| match (pair[0], pair[1]) {
        (Place::Data(one, _), Place::Data(two, _)) => two == one + 1,
        (one, two) => !is_data(&one) && !is_data(&two),
    };
    1 + places.windows(2).take_while(|pair| goes_on(pair)).count()
}
