//! Inspection of a store that is not in use, without changing it.
//!
//! The device is opened for reading. Opening the index would change it, as its log is replayed; so the
//! inspector opens a copy of it, in a directory that the caller provides and removes.

use super::allocator::Allocator;
use super::device::shadow::ShadowDevice;
use super::device::{AlignedBuffer, BLOCK, BlockDevice, ReadOp};
use super::directory::{self, Directory};
use super::medium::block_crc;
use super::objects::{MAPS, parse_map_key};
use super::{BlockStoreOptions, DeviceProblem, label, read_state, recover};
use crate::meta::{MetaStore, MetaStoreOptions};
use crate::object::sequences::{OBJECTS, SEQUENCES};
use crate::object::{FreeExtents, ObjectError, Result, visit_keys};
use nacre_ondisk::block::{
    BLOCK_LABEL_LEN, BlockHeadRecord, BlockLabel, BlockMapRecord, BlockStoreRecord, MAP_BLOCKS, Place,
};
use nacre_types::Fid;
use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::ops::{Bound, ControlFlow};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// A store under inspection, locked against other openers.
pub struct Inspector {
    dir: PathBuf,
    directory: Directory,
    label: BlockLabel,
    device: ShadowDevice,
    index: MetaStore,
    state: BlockStoreRecord,
}

/// Content of a label's place on the device.
pub type LabelFound = std::result::Result<BlockLabel, String>;

/// Properties of a store as a whole.
#[derive(Debug)]
pub struct StoreInspection {
    /// The label in the directory.
    pub label: BlockLabel,
    /// Path of the device.
    pub device: PathBuf,
    /// Size of the device in bytes.
    pub device_bytes: u64,
    /// The labels in its first block, and in the last one of the size at its creation.
    pub labels: [LabelFound; 2],
    /// All data of this generation and earlier ones is durable.
    pub generation: u64,
    /// The last run stopped in order.
    pub is_clean: bool,
    /// Objects.
    pub objects: u64,
    /// Objects whose bytes are in their record.
    pub inline: u64,
    /// Maps, each of 256 KiB.
    pub maps: u64,
    /// Sequences in the index.
    pub sequences: u64,
    /// Bytes of blocks that objects own.
    pub used_bytes: u64,
    /// Bytes of all blocks that can hold data.
    pub total_bytes: u64,
    /// Free space.
    pub free: FreeExtents,
    /// Blocks that opening the store will revert: a power cut kept their data from the device.
    pub blocks_to_recover: u64,
    /// One sentence for each kind of damage.
    pub damage: Vec<String>,
}

/// A piece of an object on the device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PieceInspection {
    /// Offset in the object, in bytes.
    pub logical: u64,
    /// Offset on the device, in bytes.
    pub physical: u64,
    /// Length in bytes.
    pub len: u64,
    /// CRC-32C of each block; empty for reserved space.
    pub checksums: Vec<u32>,
    /// Offsets in the object of blocks that cannot be read (true) or do not match their checksum.
    pub damaged: Vec<(u64, bool)>,
}

/// Properties of an object.
#[derive(Debug)]
pub struct ObjectInspection {
    /// Head record.
    pub head: BlockHeadRecord,
    /// Pieces of its data, in the order of the object.
    pub pieces: Vec<PieceInspection>,
    /// One sentence for each kind of damage.
    pub damage: Vec<String>,
}

impl Inspector {
    /// Opens the store in `dir` for inspection; `scratch` is an empty directory with space for its index.
    ///
    /// # Errors
    /// As [`super::BlockStore::open`], if there is no store or it is in use.
    pub fn open(dir: &Path, scratch: &Path) -> Result<Inspector> {
        let directory = Directory::open(dir, &BlockStoreOptions::default())?;
        let label = directory.label.clone().ok_or_else(|| ObjectError::Missing { dir: dir.to_owned() })?;
        let device = open_device(&dir.join(&directory.device))?;
        copy_index(&dir.join(directory::INDEX), scratch)?;
        let index_options =
            MetaStoreOptions { create: false, commit_interval_ms: 0, ..super::default_index(label.size) };
        let index = MetaStore::open(scratch, index_options)?;
        let state = read_state(&index, dir, label.uuid)?;
        Ok(Inspector { dir: dir.to_owned(), directory, label, device, index, state })
    }

    /// Inspects the store as a whole. Data is read only where a power cut may have kept it from the device.
    ///
    /// # Errors
    /// If the index cannot be read at all.
    pub fn store(&self) -> Result<StoreInspection> {
        let mut damage = Vec::new();
        let size = self.label.size;
        let labels = [0, size / BLOCK * BLOCK - BLOCK].map(|offset| self.label_at(offset));
        for (which, found) in ["first", "last"].iter().zip(&labels) {
            match found {
                Ok(found) if found.uuid == self.label.uuid => {}
                Ok(found) => damage.push(format!(
                    "the {which} block of the device is the label of another store, {}",
                    found.label
                )),
                Err(error) => damage.push(format!("the label in the {which} block of the device: {error}")),
            }
        }
        if self.device.size() < size {
            damage.push(format!(
                "the device has {} bytes, but had {size} when the store was made",
                self.device.size()
            ));
        }
        let (mut objects, mut inline, mut sequences) = (0, 0, 0);
        let mut said: BTreeMap<Fid, u64> = BTreeMap::new();
        self.index.scan(OBJECTS, &[], Bound::Unbounded, &mut |key, value| {
            objects += 1;
            match (<&[u8; 16]>::try_from(key), BlockHeadRecord::decode(value)) {
                (Ok(key), Ok(head)) => {
                    inline += u64::from(head.blocks == 0 && head.size > 0);
                    said.insert(Fid::from_key(key), head.blocks);
                }
                _ => damage.push(format!("the record of an object cannot be read: key {key:02x?}")),
            }
            ControlFlow::Continue(())
        })?;
        self.index.scan(SEQUENCES, &[], Bound::Unbounded, &mut |_, _| {
            sequences += 1;
            ControlFlow::Continue(())
        })?;
        let maps = self.compare_maps(&said, &mut damage)?;
        let scan = recover::scan(&self.index, &self.device, self.state.generation, self.state.clean);
        let scan = scan.unwrap_or_else(|error| {
            damage.push(error.to_string());
            recover::Scan::default()
        });
        let allocator = Allocator::new(1, size / BLOCK - 1, &scan.used);
        Ok(StoreInspection {
            label: self.label.clone(),
            device: self.dir.join(&self.directory.device),
            device_bytes: self.device.size(),
            labels,
            generation: self.state.generation,
            is_clean: self.state.clean,
            objects,
            inline,
            maps,
            sequences,
            used_bytes: scan.used.iter().map(|extent| extent.len).sum::<u64>() * BLOCK,
            total_bytes: allocator.blocks() * BLOCK,
            free: allocator.report(),
            blocks_to_recover: scan.blocks,
            damage,
        })
    }

    fn label_at(&self, offset: u64) -> LabelFound {
        let mut block = AlignedBuffer::zeroed(BLOCK as usize);
        let read = self.device.read(&mut [ReadOp { offset, buffer: &mut block }]);
        read.map_err(|error| format!("it cannot be read: {error}"))?;
        BlockLabel::decode(&block[..BLOCK_LABEL_LEN]).map_err(|error| error.to_string())
    }

    /// Checks that maps belong to heads, and that heads count their blocks right. Returns the number of maps.
    fn compare_maps(&self, said: &BTreeMap<Fid, u64>, damage: &mut Vec<String>) -> Result<u64> {
        let (mut maps, mut found) = (0, BTreeMap::<Fid, u64>::new());
        self.index.scan(MAPS, &[], Bound::Unbounded, &mut |key, value| {
            maps += 1;
            match parse_map_key(key).zip(BlockMapRecord::decode(value).ok()) {
                Some(((fid, _), map)) => {
                    let blocks = map.places.iter().filter(|place| place.block().is_some()).count() as u64;
                    *found.entry(fid).or_default() += blocks;
                }
                None => damage.push(format!("a map of an object cannot be read: key {key:02x?}")),
            }
            ControlFlow::Continue(())
        })?;
        for (fid, blocks) in &found {
            match said.get(fid) {
                None => damage.push(format!("object {fid}: maps without its record")),
                Some(said) if said != blocks => {
                    damage
                        .push(format!("object {fid}: its maps have {blocks} blocks, its record says {said}"));
                }
                Some(_) => {}
            }
        }
        for (fid, said) in said.iter().filter(|(fid, blocks)| **blocks > 0 && !found.contains_key(fid)) {
            damage.push(format!("object {fid}: it has no maps, its record says {said} blocks"));
        }
        Ok(maps)
    }

    /// Visits every object, in the order of their FIDs.
    ///
    /// # Errors
    /// If the index cannot be read.
    pub fn for_each_object(&self, visit: &mut dyn FnMut(Fid)) -> Result<()> {
        visit_keys(&self.index, OBJECTS, visit)
    }

    /// Inspects an object; `None` if it does not exist. All its data is read and compared with its checksums.
    ///
    /// # Errors
    /// If the index cannot be read at all.
    pub fn object(&self, fid: Fid) -> Result<Option<ObjectInspection>> {
        let head = self.index.get(OBJECTS, &fid.to_key(), |value| value.map(BlockHeadRecord::decode))?;
        let head = match head {
            None => return Ok(None),
            Some(head) => {
                head.map_err(|_| ObjectError::Damaged { object: fid, what: "its record cannot be read" })?
            }
        };
        let mut places: Vec<(u64, Place)> = Vec::new();
        let mut damage = Vec::new();
        self.index.scan(MAPS, &fid.to_key(), Bound::Unbounded, &mut |key, value| {
            match parse_map_key(key).zip(BlockMapRecord::decode(value).ok()) {
                Some(((_, number), map)) => {
                    let blocks = (number * MAP_BLOCKS as u64..).zip(map.places);
                    places.extend(blocks.filter(|(_, place)| *place != Place::Hole));
                }
                None => damage.push(format!("a map cannot be read: key {key:02x?}")),
            }
            ControlFlow::Continue(())
        })?;
        let mut pieces: Vec<PieceInspection> = Vec::new();
        let mut buffer = AlignedBuffer::zeroed(BLOCK as usize);
        for (block, place) in places {
            self.add_block(block, place, &mut pieces, &mut buffer, &mut damage);
        }
        Ok(Some(ObjectInspection { head, pieces, damage }))
    }

    fn add_block(
        &self,
        block: u64,
        place: Place,
        pieces: &mut Vec<PieceInspection>,
        buffer: &mut AlignedBuffer,
        damage: &mut Vec<String>,
    ) {
        let Some(at) = place.block() else { return };
        let (logical, physical) = (block * BLOCK, at * BLOCK);
        let crc = match place {
            Place::Data(_, crc) => Some(crc),
            _ => None,
        };
        let goes_on = |last: &PieceInspection| {
            last.logical + last.len == logical
                && last.physical + last.len == physical
                && last.checksums.is_empty() == crc.is_none()
        };
        if !pieces.last().is_some_and(goes_on) {
            pieces.push(PieceInspection {
                logical,
                physical,
                len: 0,
                checksums: Vec::new(),
                damaged: Vec::new(),
            });
        }
        let Some(last) = pieces.last_mut() else { return };
        last.len += BLOCK;
        let Some(crc) = crc else { return };
        last.checksums.push(crc);
        let read = self.device.read(&mut [ReadOp { offset: physical, buffer }]);
        if read.is_err() || block_crc(buffer) != crc {
            last.damaged.push((logical, read.is_err()));
            damage.push(match read {
                Err(error) => format!(
                    "data at offset {logical} cannot be read (block at {physical} of the device): {error}"
                ),
                Ok(()) => format!("data at offset {logical} is damaged (block at {physical} of the device)"),
            });
        }
    }
}

/// Copies the files of an index to an empty directory, holes left out.
fn copy_index(from: &Path, to: &Path) -> Result<()> {
    let failed = |path: &Path| {
        let path = path.to_owned();
        move |source| ObjectError::Path { action: "copy the index for looking at it", path, source }
    };
    for entry in std::fs::read_dir(from).map_err(failed(from))? {
        let entry = entry.map_err(failed(from))?;
        let (path, target) = (entry.path(), to.join(entry.file_name()));
        if entry.file_type().map_err(failed(&path))?.is_dir() {
            std::fs::create_dir(&target).map_err(failed(&target))?;
            copy_index(&path, &target)?;
        } else {
            copy_sparse(&path, &target).map_err(failed(&path))?;
        }
    }
    Ok(())
}

fn copy_sparse(from: &Path, to: &Path) -> io::Result<()> {
    use rustix::fs::{SeekFrom, seek};
    let (source, target) = (File::open(from)?, File::create(to)?);
    let size = source.metadata()?.len();
    target.set_len(size)?;
    let mut buffer = vec![0; 1 << 20];
    let mut at = 0;
    while at < size {
        let start = match seek(&source, SeekFrom::Data(at)) {
            Ok(start) => start,
            Err(rustix::io::Errno::NXIO) => break,
            Err(error) => return Err(error.into()),
        };
        let end = seek(&source, SeekFrom::Hole(start))?;
        at = start;
        while at < end {
            let len = usize::try_from(end - at).unwrap_or(usize::MAX).min(buffer.len());
            source.read_exact_at(&mut buffer[..len], at)?;
            target.write_all_at(&buffer[..len], at)?;
            at += len as u64;
        }
    }
    Ok(())
}

fn open_device(path: &Path) -> Result<ShadowDevice> {
    let failed = |problem| ObjectError::Device { device: path.display().to_string(), problem };
    let device = ShadowDevice::open(path).map_err(|error| failed(DeviceProblem::Io(error)))?;
    let size = device.size();
    if size < label::SIZE_MIN { Err(failed(DeviceProblem::TooSmall(size))) } else { Ok(device) }
}
