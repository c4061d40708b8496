//! Comparing index, device and free space.

use super::device::{AlignedBuffer, BLOCK, BlockDevice, ReadOp};
use super::read::block_crc;
use super::recover::parse_map_key;
use super::{Core, MAPS, OBJECTS};
use crate::object::{ObjectError, ObjectProblem, ObjectVerifyReport, Result, visit_keys};
use nacre_ondisk::DecodeError;
use nacre_ondisk::block::{BlockHeadRecord, BlockMapRecord, Inline, MAP_BLOCKS, Place};
use nacre_types::Fid;
use std::collections::HashMap;
use std::ops::{Bound, ControlFlow};
use std::sync::atomic::Ordering;

/// Records between two calls of `progress`.
const PROGRESS_EVERY: u64 = 256;

/// A block whose data is not what was written.
pub(super) struct MapProblem {
    pub(super) offset: u64,
    pub(super) at_device: u64,
    /// It could not even be read.
    pub(super) is_unreadable: bool,
}

/// A walk over the store.
struct Check<'a> {
    core: &'a Core,
    repair: bool,
    progress: &'a mut dyn FnMut(u64),
    done: u64,
    report: ObjectVerifyReport,
    /// Blocks by the heads of objects that have any.
    said: HashMap<Fid, u64>,
    /// Blocks found.
    found: HashMap<Fid, u64>,
    /// A bit per block of the device that has an owner.
    owned: Vec<u64>,
    used: u64,
    /// Largest id seen per sequence.
    largest: HashMap<u64, u32>,
}

impl Core {
    /// Visits every object, in the order of their FIDs.
    ///
    /// # Errors
    /// If the index cannot be read.
    pub(super) fn visit_objects(&self, visit: &mut dyn FnMut(Fid)) -> Result<()> {
        visit_keys(&self.index, OBJECTS, visit)
    }

    /// Reads the data of a map and compares checksums. Returns how many bytes those were.
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
                _ => None,
            })
            .collect();
        let read = |ops: &mut [ReadOp<'_>]| nacre_env::blocking(|| self.device.read(ops));
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

    /// Implements [`crate::object::ObjectStore::verify`]. All data is read. Free space is counted if nothing changes
    /// meanwhile.
    pub(super) fn check(&self, repair: bool, progress: &mut dyn FnMut(u64)) -> Result<ObjectVerifyReport> {
        let before = (self.index.last_transno(), self.changing.load(Ordering::Acquire));
        let mut check = Check {
            core: self,
            repair,
            report: ObjectVerifyReport { index: self.index.verify(progress)?, ..Default::default() },
            progress,
            done: 0,
            said: HashMap::new(),
            found: HashMap::new(),
            owned: vec![0; (self.device.size() / BLOCK).div_ceil(64) as usize],
            used: 0,
            largest: HashMap::new(),
        };
        check.heads()?;
        check.maps()?;
        let is_quiet = |check: &Check<'_>| {
            before == (check.core.index.last_transno(), check.core.changing.load(Ordering::Acquire))
                && before.1 == 0
        };
        if is_quiet(&check) {
            check.counts();
            let (total, free, ..) = self.space.counts();
            let blocks = total as i64 - free as i64 - check.used as i64;
            if blocks != 0 && is_quiet(&check) {
                check.report.add(ObjectProblem::Leaked { blocks }, false);
            }
        }
        check.sequences()?;
        for path in &self.directory.damaged {
            // Opening the store writes it anew.
            check.report.add(ObjectProblem::Copy { path: path.clone() }, repair);
        }
        if let Some(own) = &self.directory.label {
            for (place, what) in super::label::damaged(&*self.device, own, repair)? {
                check.report.add(ObjectProblem::Label { place, what }, repair);
            }
        }
        for path in self.directory.strays(&self.dir)? {
            check.report.add(ObjectProblem::Stray { path }, false);
        }
        Ok(check.report)
    }
}

impl Check<'_> {
    fn tick(&mut self) {
        self.done += 1;
        if self.done.is_multiple_of(PROGRESS_EVERY) {
            (self.progress)(self.done);
        }
    }

    fn bad_record(&mut self, key: &[u8], error: DecodeError) {
        self.report.add(ObjectProblem::Record { key: key.to_vec(), error }, false);
    }

    fn heads(&mut self) -> Result<()> {
        let core = self.core;
        core.index.scan(OBJECTS, &[], Bound::Unbounded, &mut |key, value| {
            self.report.objects += 1;
            self.tick();
            let head = BlockHeadRecord::decode(value);
            match (<&[u8; 16]>::try_from(key), head) {
                (Ok(key), Ok(head)) => self.head(Fid::from_key(key), &head),
                (Err(_), _) => self.bad_record(key, DecodeError::Field("key")),
                (_, Err(error)) => self.bad_record(key, error),
            }
            ControlFlow::Continue(())
        })?;
        Ok(())
    }

    fn head(&mut self, object: Fid, head: &BlockHeadRecord) {
        let largest = self.largest.entry(object.seq).or_default();
        *largest = (*largest).max(object.oid);
        self.report.bytes += head.size;
        self.report.blocks += head.blocks * (BLOCK / 512);
        if !matches!(head.inline, Inline::All(_)) {
            self.said.insert(object, head.blocks);
        }
    }

    fn maps(&mut self) -> Result<()> {
        let mut from = None;
        loop {
            let (maps, after) = self.core.some_maps(from.as_ref())?;
            for (fid, number) in maps {
                self.tick();
                self.map(fid, number)?;
            }
            from = after;
            if from.is_none() {
                return Ok(());
            }
        }
    }

    fn map(&mut self, object: Fid, number: u64) -> Result<()> {
        let key = super::objects::map_key(object, number);
        let record = self.core.index.get(MAPS, &key, |value| value.map(BlockMapRecord::decode))?;
        let map = match record {
            None => return Ok(()),
            Some(Ok(map)) => map,
            Some(Err(error)) => {
                self.bad_record(&key, error);
                return Ok(());
            }
        };
        debug_assert_eq!(parse_map_key(&key), Some((object, number)));
        for block in map.places.iter().filter_map(|place| place.block()) {
            let (word, bit) = ((block / 64) as usize, 1 << (block % 64));
            let is_own = self.owned.get(word).is_some_and(|owned| owned & bit == 0);
            if !is_own {
                let problem = ObjectProblem::NotItsOwn { object, at_device: block * BLOCK };
                self.report.add(problem, false);
                continue;
            }
            self.owned[word] |= bit;
            self.used += 1;
            *self.found.entry(object).or_default() += 1;
        }
        self.report.files += 1;
        if !self.said.contains_key(&object) && self.core.object(object, false)?.is_none() {
            self.report.add(ObjectProblem::NoHead { object }, false);
        }
        match self.core.check_map(object, number) {
            Ok((_, problems)) => {
                for MapProblem { offset, at_device, is_unreadable } in problems {
                    let problem = match is_unreadable {
                        true => ObjectProblem::Unreadable { object, offset, at_device },
                        false => ObjectProblem::Data { object, offset, at_device },
                    };
                    self.report.add(problem, false);
                }
                Ok(())
            }
            Err(ObjectError::Damaged { .. }) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Do the heads say how many blocks there are?
    fn counts(&mut self) {
        for (&object, &said) in &self.said {
            let found = self.found.get(&object).copied().unwrap_or(0);
            if said != found {
                let problem = ObjectProblem::Space { object, said: said * BLOCK, found: found * BLOCK };
                self.report.add(problem, false);
            }
        }
    }

    fn sequences(&mut self) -> Result<()> {
        let core = self.core;
        let largest = std::mem::take(&mut self.largest);
        let largest = if core.gives_ids { largest } else { HashMap::new() };
        core.sequences.verify(&core.index, largest, self.repair, &mut self.report)
    }
}
