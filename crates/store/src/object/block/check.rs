//! Comparison of index, device and free space.

use super::device::{BLOCK, BlockDevice};
use super::directory::Directory;
use super::objects::{MAPS, Objects, map_key, parse_map_key};
use super::read::MapProblem;
use crate::object::sequences::{OBJECTS, Sequences};
use crate::object::{ObjectError, ObjectProblem, ObjectVerifyReport, Result};
use nacre_ondisk::DecodeError;
use nacre_ondisk::block::{BlockHeadRecord, BlockMapRecord, Inline};
use nacre_types::Fid;
use std::collections::HashMap;
use std::ops::{Bound, ControlFlow};

/// Records between two calls of `progress`.
const PROGRESS_EVERY: u64 = 256;

/// State of a check of the store.
struct Check<'a> {
    objects: &'a Objects,
    progress: &'a mut dyn FnMut(u64),
    done: u64,
    report: ObjectVerifyReport,
    /// Blocks that heads record, for objects that have any.
    said: HashMap<Fid, u64>,
    /// Blocks found, by object.
    found: HashMap<Fid, u64>,
    /// Bitmap of the blocks of the device that have an owner.
    owned: Vec<u64>,
    used: u64,
    /// Largest id found per sequence.
    largest: HashMap<u64, u32>,
}

/// Implements [`crate::object::ObjectStore::verify`]. All data is read. Free space is counted only if nothing
/// changes during the check.
pub(super) fn check(
    objects: &Objects,
    directory: &Directory,
    sequences: Option<&Sequences>,
    repair: bool,
    progress: &mut dyn FnMut(u64),
) -> Result<ObjectVerifyReport> {
    let (volume, index) = (objects.volume(), objects.index());
    let device = volume.medium().device();
    let quiet = || (index.last_transno(), volume.changing());
    let before = quiet();
    let mut check = Check {
        objects,
        report: ObjectVerifyReport { index: index.verify(progress)?, ..Default::default() },
        progress,
        done: 0,
        said: HashMap::new(),
        found: HashMap::new(),
        owned: vec![0; (device.size() / BLOCK).div_ceil(64) as usize],
        used: 0,
        largest: HashMap::new(),
    };
    check.heads()?;
    check.maps()?;
    let is_quiet = || before == quiet() && before.1 == 0;
    if is_quiet() {
        check.counts();
        let (total, free, ..) = volume.space().counts();
        let blocks = total as i64 - free as i64 - check.used as i64;
        if blocks != 0 && is_quiet() {
            check.report.add(ObjectProblem::Leaked { blocks }, false);
        }
    }
    if let Some(sequences) = sequences {
        let largest = std::mem::take(&mut check.largest);
        sequences.verify(index, largest, repair, &mut check.report)?;
    }
    for path in &directory.damaged {
        // Opening the store rewrites it.
        check.report.add(ObjectProblem::Copy { path: path.clone() }, repair);
    }
    if let Some(own) = &directory.label {
        for (place, what) in super::label::damaged(device, own, repair)? {
            check.report.add(ObjectProblem::Label { place, what }, repair);
        }
    }
    for path in directory.strays(volume.dir())? {
        check.report.add(ObjectProblem::Stray { path }, false);
    }
    Ok(check.report)
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
        let objects = self.objects;
        objects.index().scan(OBJECTS, &[], Bound::Unbounded, &mut |key, value| {
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
            let (maps, after) = self.objects.some_maps(from.as_ref())?;
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
        let key = map_key(object, number);
        let record = self.objects.index().get(MAPS, &key, |value| value.map(BlockMapRecord::decode))?;
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
        if !self.said.contains_key(&object) && self.objects.object(object, false)?.is_none() {
            self.report.add(ObjectProblem::NoHead { object }, false);
        }
        match self.objects.check_map(object, number) {
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

    /// Compares the block counts of the heads with the blocks found.
    fn counts(&mut self) {
        for (&object, &said) in &self.said {
            let found = self.found.get(&object).copied().unwrap_or(0);
            if said != found {
                let problem = ObjectProblem::Space { object, said: said * BLOCK, found: found * BLOCK };
                self.report.add(problem, false);
            }
        }
    }
}
