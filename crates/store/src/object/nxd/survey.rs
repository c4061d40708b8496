//! Survey of a log and its damage, without changing anything.

use super::log::{read_superblock, superblock_copies};
use super::pair::problem;
use super::walk::{End, Found, on_device, walk};
use super::{CacheProblem, Result};
use crate::object::block::device::{BLOCK, BlockDevice};
use nacre_ondisk::nxd::{NxdEntry, NxdError, NxdSuperblock};
use nacre_types::Fid;
use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;

/// Number of damaged places, and of objects after them, that are kept by name.
const NAMED_MAX: usize = 100;

/// A range of bytes of an object.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ObjectRange {
    /// Object that the bytes belong to.
    pub object: Fid,
    /// Offsets of the first byte and after the last.
    pub range: Range<u64>,
}

impl fmt::Display for ObjectRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Range { start, end } = self.range;
        match end {
            u64::MAX => write!(f, "object {} from {start} on", self.object),
            end => write!(f, "object {} {start}..{end}", self.object),
        }
    }
}

impl From<&NxdEntry> for ObjectRange {
    fn from(entry: &NxdEntry) -> ObjectRange {
        match *entry {
            NxdEntry::Data { object, offset, len, .. } => {
                ObjectRange { object, range: offset..offset + u64::from(len) }
            }
            NxdEntry::Forget { object, offset, end } => ObjectRange { object, range: offset..end },
        }
    }
}

/// A damaged place of a log.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum LogDamage {
    /// A copy of the superblock cannot be read. Opening rewrites it.
    Superblock {
        /// Offset on the device, in bytes.
        at_device: u64,
        /// Reason.
        error: NxdError,
    },
    /// Bytes of an object in a durable batch. Reading them returns an error unless newer ones cover them.
    Data {
        /// Offset of the batch on the device, in bytes.
        at_device: u64,
        /// Range of the bytes in the object.
        bytes: ObjectRange,
    },
    /// Durable batches that cannot be read at all: they may have contained forget entries, so bytes before
    /// them cannot be distinguished from replaced ones.
    Batches {
        /// Offset of the first batch on the device, in bytes.
        at_device: u64,
        /// Number of blocks up to the next readable one.
        blocks: u64,
        /// Probable content of the first batch.
        seems: Vec<ObjectRange>,
    },
}

fn list(ranges: &[ObjectRange]) -> String {
    let texts: Vec<String> = ranges.iter().take(10).map(ToString::to_string).collect();
    let more = if ranges.len() > 10 { format!(" and {} more", ranges.len() - 10) } else { String::new() };
    texts.join(", ") + &more
}

impl fmt::Display for LogDamage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LogDamage::Superblock { at_device, error } => {
                write!(f, "the copy of the superblock at {at_device} of the cache: {error}")
            }
            LogDamage::Data { at_device, bytes } => {
                write!(f, "the batch at {at_device} of the cache: the data of {bytes} is damaged")
            }
            LogDamage::Batches { at_device, blocks, seems } => {
                write!(
                    f,
                    "the log of the cache is damaged: {blocks} blocks from {at_device} on were durable and cannot be read"
                )?;
                match seems.as_slice() {
                    [] => Ok(()),
                    seems => write!(f, "; they seem to hold {}", list(seems)),
                }
            }
        }
    }
}

/// Content of a log.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LogSurvey {
    /// Superblock in force.
    pub superblock: NxdSuperblock,
    /// Position after the last batch.
    pub end: u64,
    /// Position up to which the log is known to have been durable.
    pub durable: u64,
    /// Readable batches.
    pub batches: u64,
    /// Entries of these batches.
    pub entries: u64,
    /// Batches after the end: a power cut lost one before them, or an earlier run wrote them.
    pub behind: u64,
    /// First damaged places.
    pub damage: Vec<LogDamage>,
    /// Number of damaged places.
    pub damage_count: u64,
    /// Number of [`LogDamage::Data`] among them: a store that opens finds those that still matter itself.
    pub damaged_data: u64,
    /// Blocks of such batches.
    pub lost_blocks: u64,
    /// Objects with data in batches after the first unreadable one, with the bytes that the log has for each.
    pub hidden: BTreeMap<Fid, u64>,
}

impl LogSurvey {
    pub(super) fn new(superblock: NxdSuperblock) -> LogSurvey {
        LogSurvey {
            superblock,
            end: superblock.tail,
            durable: superblock.durable,
            batches: 0,
            entries: 0,
            behind: 0,
            damage: Vec::new(),
            damage_count: 0,
            damaged_data: 0,
            lost_blocks: 0,
            hidden: BTreeMap::new(),
        }
    }

    /// Surveys the log on a device.
    ///
    /// # Errors
    /// Those of the device; [`CacheProblem::Superblock`] if it is no cache.
    pub fn of(device: &dyn BlockDevice) -> Result<LogSurvey> {
        let name = device.info().name;
        let failed = |error| problem(&name, CacheProblem::Io(error));
        let superblock = read_superblock(device).map_err(failed)?;
        let superblock = superblock.map_err(|error| problem(&name, CacheProblem::Superblock(error)))?;
        if superblock.size != device.size() {
            let (found, expected) = (device.size(), superblock.size);
            return Err(problem(&name, CacheProblem::Size { found, expected }));
        }
        let mut survey = LogSurvey::new(superblock);
        let copies = superblock_copies(device).map_err(failed)?;
        for (at_device, copy) in [0, superblock.size - BLOCK].into_iter().zip(copies) {
            if let Err(error) = copy {
                survey.add(LogDamage::Superblock { at_device, error });
            }
        }
        let end = walk(device, &superblock, &mut |found| survey.note(&found)).map_err(failed)?;
        survey.finish(&end);
        Ok(survey)
    }

    /// Whether a store with this log is refused: replaced bytes could reappear.
    pub fn is_refused(&self) -> bool {
        self.lost_blocks > 0
    }

    pub(super) fn finish(&mut self, end: &End) {
        (self.end, self.durable, self.behind) = (end.position, end.durable, end.behind);
    }

    fn add(&mut self, damage: LogDamage) {
        self.damage_count += 1;
        self.damaged_data += u64::from(matches!(damage, LogDamage::Data { .. }));
        if self.damage.len() < NAMED_MAX {
            self.damage.push(damage);
        }
    }

    fn at_device(&self, position: u64) -> u64 {
        on_device(self.superblock.size / BLOCK - 2, position * BLOCK, 0)[0].0
    }

    pub(super) fn note(&mut self, found: &Found<'_>) {
        match found {
            Found::Batch { batch, damaged } => {
                self.batches += 1;
                self.entries += batch.entries.len() as u64;
                for number in *damaged {
                    let bytes = (&batch.entries[*number]).into();
                    self.add(LogDamage::Data { at_device: self.at_device(batch.position), bytes });
                }
                if self.is_refused() {
                    batch.entries.iter().for_each(|entry| self.hide(entry));
                }
            }
            Found::Gap { range, entries } => {
                self.lost_blocks += range.end - range.start;
                self.add(LogDamage::Batches {
                    at_device: self.at_device(range.start),
                    blocks: range.end - range.start,
                    seems: entries.iter().map(Into::into).collect(),
                });
            }
        }
    }

    fn hide(&mut self, entry: &NxdEntry) {
        if let NxdEntry::Data { object, len, .. } = *entry
            && (self.hidden.len() < NAMED_MAX || self.hidden.contains_key(&object))
        {
            *self.hidden.entry(object).or_default() += u64::from(len);
        }
    }

    /// Describes the objects after unreadable batches; `None` if there are none.
    pub fn hidden_text(&self) -> Option<String> {
        let names: Vec<String> =
            self.hidden.iter().map(|(object, bytes)| format!("object {object} ({bytes} bytes)")).collect();
        (!names.is_empty()).then(|| format!("behind it the log has data of {}", names.join(", ")))
    }
}
