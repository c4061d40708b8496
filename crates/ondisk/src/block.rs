//! Records of an object target on a block device: identity of the device, and the map from objects to its
//! blocks.
//!
//! Byte tables and the invariants between them: `docs/formats/block.md`.

use crate::codec::{DecodeError, Reader};
use crate::head::{self, Form, Head, HeadError};
use nacre_types::Timestamp;

/// Format version of [`BlockHeadRecord`], [`BlockMapRecord`] and [`BlockStoreRecord`].
pub const BLOCK_VERSION: u8 = 1;
/// Blocks that one [`BlockMapRecord`] maps: 256 KiB.
pub const MAP_BLOCKS: usize = 64;
/// Most bytes of an object that are stored in its [`BlockHeadRecord`].
pub const INLINE_MAX: usize = 4096;

/// Attributes of an object. Key: the FID in key form.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct BlockHeadRecord {
    /// Size of the object in bytes.
    pub size: u64,
    /// Blocks allocated on the device.
    pub blocks: u64,
    /// Last change of data.
    pub mtime: Timestamp,
    /// Data of the object that is stored in the record itself.
    pub inline: Inline,
}

/// Data of an object in its record.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub enum Inline {
    /// No data in the record; it is on the device.
    #[default]
    Nothing,
    /// All data: the object has no blocks. Bytes from the end of these up to the size are zeros.
    All(Vec<u8>),
    /// Former inline data of an object that got blocks in this generation. It is the content of block 0 if
    /// the generation is not durable and the block is not on the medium.
    Kept(u64, Vec<u8>),
}

impl Inline {
    /// Returns the bytes, current or not.
    fn bytes(&self) -> &[u8] {
        match self {
            Inline::Nothing => &[],
            Inline::All(bytes) | Inline::Kept(_, bytes) => bytes,
        }
    }
}

const HEAD_LEN: usize = 40;
const FLAG_INLINE: u8 = 1;
const FLAG_KEPT: u8 = 2;

impl BlockHeadRecord {
    /// Encodes the record into `out`, which is cleared first.
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.clear();
        let (flags, generation) = match &self.inline {
            Inline::Nothing => (0, 0),
            Inline::All(_) => (FLAG_INLINE, 0),
            Inline::Kept(generation, _) => (FLAG_KEPT, *generation),
        };
        out.extend_from_slice(&[BLOCK_VERSION, flags, 0, 0]);
        out.extend_from_slice(&self.mtime.nsec.to_le_bytes());
        out.extend_from_slice(&self.mtime.sec.to_le_bytes());
        out.extend_from_slice(&self.size.to_le_bytes());
        out.extend_from_slice(&self.blocks.to_le_bytes());
        out.extend_from_slice(&generation.to_le_bytes());
        debug_assert_eq!(out.len(), HEAD_LEN);
        out.extend_from_slice(self.inline.bytes());
    }

    /// Reads a record.
    ///
    /// # Errors
    /// If the bytes are not a record of this version.
    pub fn decode(bytes: &[u8]) -> Result<BlockHeadRecord, DecodeError> {
        let mut reader = Reader::new(bytes, BLOCK_VERSION)?;
        let flags = reader.u8()?;
        reader.reserved::<2>()?;
        let nsec = reader.u32()?;
        if nsec >= 1_000_000_000 {
            return Err(DecodeError::Field("nanoseconds"));
        }
        let mtime = Timestamp::new(reader.i64()?, nsec);
        let (size, blocks) = (reader.u64()?, reader.u64()?);
        let generation = reader.u64()?;
        let rest = reader.remainder();
        if rest.len() > INLINE_MAX || rest.len() as u64 > size || (generation != 0) != (flags == FLAG_KEPT) {
            return Err(DecodeError::Field("inline bytes"));
        }
        let inline = match flags {
            0 if rest.is_empty() => Inline::Nothing,
            FLAG_INLINE if blocks == 0 => Inline::All(rest.to_vec()),
            FLAG_KEPT => Inline::Kept(generation, rest.to_vec()),
            _ => return Err(DecodeError::Field("flags")),
        };
        Ok(BlockHeadRecord { size, blocks, mtime, inline })
    }
}

/// Location of a block of an object.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Place {
    /// Not allocated; the data is zeros.
    #[default]
    Hole,
    /// Allocated at this block of the device but not written; the data is zeros.
    Reserved(u64),
    /// Stored at this block of the device, with this CRC-32C.
    Data(u64, u32),
}

impl Place {
    /// Returns the block of the device, if one is allocated.
    pub fn block(self) -> Option<u64> {
        match self {
            Place::Hole => None,
            Place::Reserved(block) | Place::Data(block, _) => Some(block),
        }
    }

    fn kind(self) -> u8 {
        match self {
            Place::Hole => 0,
            Place::Reserved(_) => 1,
            Place::Data(..) => 2,
        }
    }

    /// Returns whether `next` continues a run: the same kind, at the next block of the device.
    fn goes_on(self, next: Place) -> bool {
        self.kind() == next.kind() && next.block() == self.block().map(|block| block + 1)
    }
}

/// Location of a block before the generation that changed it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Before {
    /// Generation that changed the block.
    pub generation: u64,
    /// Index of the block in its map.
    pub index: u8,
    /// Location before the change.
    pub place: Place,
}

/// Locations of [`MAP_BLOCKS`] blocks of an object. Key: the FID in key form, then the number of the map, 8
/// bytes, big-endian.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct BlockMapRecord {
    /// Current location of each block.
    pub places: [Place; MAP_BLOCKS],
    /// Former locations of blocks that changed in generations that may not be durable, ordered by generation,
    /// then index.
    pub before: Vec<Before>,
}

impl Default for BlockMapRecord {
    fn default() -> Self {
        BlockMapRecord { places: [Place::Hole; MAP_BLOCKS], before: Vec::new() }
    }
}

const MAP_HEADER_LEN: usize = 8;

impl BlockMapRecord {
    /// Encodes the record into `out`, which is cleared first.
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.clear();
        out.extend_from_slice(&[BLOCK_VERSION, 0, 0, 0, 0, 0, 0, 0]);
        let mut runs = 0u16;
        let mut at = 0;
        while at < MAP_BLOCKS {
            let len = run_len(self.places[at..].iter().copied());
            if self.places[at] != Place::Hole {
                put_run(out, at as u8, &self.places[at..at + len]);
                runs += 1;
            }
            at += len;
        }
        let mut olds = 0u16;
        let mut rest = self.before.as_slice();
        while let Some(first) = rest.first() {
            let is_next = |(i, before): &(usize, &Before)| {
                before.generation == first.generation
                    && usize::from(before.index) == usize::from(first.index) + i
            };
            let same = rest.iter().enumerate().take_while(is_next).map(|(_, before)| before.place);
            let len = run_len(same);
            let (run, after) = rest.split_at(len);
            out.extend_from_slice(&first.generation.to_le_bytes());
            let places: Vec<Place> = run.iter().map(|before| before.place).collect();
            put_run(out, first.index, &places);
            olds += 1;
            rest = after;
        }
        out[4..6].copy_from_slice(&runs.to_le_bytes());
        out[6..8].copy_from_slice(&olds.to_le_bytes());
        debug_assert!(out.len() >= MAP_HEADER_LEN);
    }

    /// Reads a record.
    ///
    /// # Errors
    /// If the bytes are not a record of this version.
    pub fn decode(bytes: &[u8]) -> Result<BlockMapRecord, DecodeError> {
        let mut reader = Reader::new(bytes, BLOCK_VERSION)?;
        reader.reserved::<3>()?;
        let (runs, olds) = (reader.u16()?, reader.u16()?);
        let mut map = BlockMapRecord::default();
        let mut next = 0;
        for _ in 0..runs {
            let (index, len) = take_run(&mut reader, &mut |index, place| map.places[index] = place)?;
            if index < next {
                return Err(DecodeError::Field("runs that overlap"));
            }
            next = index + len;
        }
        for _ in 0..olds {
            let generation = reader.u64()?;
            take_run(&mut reader, &mut |index, place| {
                map.before.push(Before { generation, index: index as u8, place });
            })?;
        }
        let order = |before: &Before| (before.generation, before.index);
        if !map.before.is_sorted_by(|a, b| order(a) < order(b)) {
            return Err(DecodeError::Field("order of earlier places"));
        }
        reader.end()?;
        Ok(map)
    }

    /// Returns whether no block has a current or former location.
    pub fn is_empty(&self) -> bool {
        self.before.is_empty() && self.places.iter().all(|place| *place == Place::Hole)
    }
}

/// Returns the number of leading places that form one run.
fn run_len(places: impl Iterator<Item = Place>) -> usize {
    let mut last = None;
    places
        .take_while(|place| {
            let goes_on = last.is_none_or(|last: Place| {
                last.goes_on(*place) || (last == Place::Hole && *place == Place::Hole)
            });
            last = Some(*place);
            goes_on
        })
        .count()
}

fn put_run(out: &mut Vec<u8>, index: u8, places: &[Place]) {
    out.extend_from_slice(&[index, places.len() as u8, places[0].kind(), 0]);
    out.extend_from_slice(&places[0].block().unwrap_or(0).to_le_bytes());
    for place in places {
        if let Place::Data(_, crc) = place {
            out.extend_from_slice(&crc.to_le_bytes());
        }
    }
}

/// Reads a run and returns its first index and its length.
fn take_run(
    reader: &mut Reader<'_>,
    each: &mut dyn FnMut(usize, Place),
) -> Result<(usize, usize), DecodeError> {
    let (index, len) = (usize::from(reader.u8()?), usize::from(reader.u8()?));
    let kind = reader.u8()?;
    reader.reserved::<1>()?;
    let start = reader.u64()?;
    if len == 0 || index + len > MAP_BLOCKS {
        return Err(DecodeError::Field("run"));
    }
    if start > u64::MAX / 8192 || (start == 0) != (kind == 0) {
        return Err(DecodeError::Field("block"));
    }
    for at in 0..len {
        let block = start + at as u64;
        let place = match kind {
            0 => Place::Hole,
            1 => Place::Reserved(block),
            2 => Place::Data(block, reader.u32()?),
            _ => return Err(DecodeError::Field("kind of a run")),
        };
        each(index + at, place);
    }
    Ok((index, len))
}

/// State of the index as a whole; one per store.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BlockStoreRecord {
    /// Identity of the device to which the index belongs.
    pub uuid: [u8; 16],
    /// The last run was shut down in order.
    pub clean: bool,
    /// Last durable generation: all data of it and of earlier ones is on the medium.
    pub generation: u64,
}

/// Bytes of an encoded [`BlockStoreRecord`].
pub const BLOCK_STORE_LEN: usize = 32;

impl BlockStoreRecord {
    /// Encodes the record.
    pub fn encode(&self) -> [u8; BLOCK_STORE_LEN] {
        let mut out = [0u8; BLOCK_STORE_LEN];
        out[0] = BLOCK_VERSION;
        out[1] = u8::from(self.clean);
        out[8..24].copy_from_slice(&self.uuid);
        out[24..].copy_from_slice(&self.generation.to_le_bytes());
        out
    }

    /// Reads a record.
    ///
    /// # Errors
    /// If the bytes are not a record of this version.
    pub fn decode(bytes: &[u8]) -> Result<BlockStoreRecord, DecodeError> {
        let mut reader = Reader::new(bytes, BLOCK_VERSION)?;
        let clean = match reader.u8()? {
            0 => false,
            1 => true,
            _ => return Err(DecodeError::Field("clean")),
        };
        reader.reserved::<6>()?;
        let record = BlockStoreRecord { clean, uuid: reader.array()?, generation: reader.u64()? };
        reader.end()?;
        Ok(record)
    }
}

/// First bytes of a [`BlockLabel`].
pub const BLOCK_LABEL_MAGIC: [u8; 8] = *b"NACREBLK";
/// Format version of devices that this program writes, and the only one that it reads.
pub const BLOCK_LABEL_VERSION: u32 = 1;
/// Bytes of an encoded [`BlockLabel`]: one sector, so that it cannot be torn.
pub const BLOCK_LABEL_LEN: usize = 512;
const LABEL: Form<BLOCK_LABEL_LEN> =
    Form { magic: BLOCK_LABEL_MAGIC, version: BLOCK_LABEL_VERSION, label_at: 64 };

/// Identity of a device. Stored in its first sector, in the first sector of its last block, and as the file
/// `superblock` in the target's directory.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct BlockLabel {
    /// Random identity, stored in the index too.
    pub uuid: [u8; 16],
    /// Time of formatting.
    pub created: Timestamp,
    /// Size of the device in bytes when it was formatted.
    pub size: u64,
    /// Bytes per block.
    pub block_size: u32,
    /// Name of the target, such as `nacre-OST0001`: printable ASCII, empty if none was given.
    pub label: String,
}

/// Why bytes are not a usable label.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum BlockLabelError {
    /// Wrong magic: the device belongs to something else.
    #[error("it does not begin like a device of an object store")]
    Foreign,
    /// The magic is right, the rest is damaged.
    #[error("its label is damaged: {0}")]
    Damaged(&'static str),
    /// Unknown format version.
    #[error(
        "its format {found} is not the one that this program reads ({BLOCK_LABEL_VERSION}): use the nacre that wrote it"
    )]
    Version {
        /// Version found.
        found: u32,
    },
}

impl From<HeadError> for BlockLabelError {
    fn from(error: HeadError) -> BlockLabelError {
        match error {
            HeadError::Foreign => BlockLabelError::Foreign,
            HeadError::Damaged(what) => BlockLabelError::Damaged(what),
            HeadError::Version { found } => BlockLabelError::Version { found },
        }
    }
}

impl BlockLabel {
    /// Encodes the label. A name longer than its field is truncated.
    pub fn encode(&self) -> [u8; BLOCK_LABEL_LEN] {
        LABEL.encode((&self.uuid, self.created, &self.label), |out| {
            out[44..48].copy_from_slice(&self.block_size.to_le_bytes());
            out[48..56].copy_from_slice(&self.size.to_le_bytes());
        })
    }

    /// Decodes a label.
    ///
    /// # Errors
    /// The version is checked before the checksum, so that an unknown format is reported as such.
    pub fn decode(bytes: &[u8]) -> Result<BlockLabel, BlockLabelError> {
        let (Head { uuid, created, label }, bytes) = LABEL.decode(bytes)?;
        let block_size = u32::from_le_bytes(head::field(bytes, 44));
        let size = u64::from_le_bytes(head::field(bytes, 48));
        let label = BlockLabel { uuid, created, size, block_size, label };
        match label.encode() == *bytes {
            true => Ok(label),
            false => Err(BlockLabelError::Damaged("reserved bytes are not zero")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|b| format!("{b:02x}")).collect()
    }

    fn label() -> BlockLabel {
        BlockLabel {
            uuid: *b"0123456789abcdef",
            created: Timestamp::new(1_700_000_000, 5),
            size: 1 << 30,
            block_size: 4096,
            label: "nacre-OST0001".to_owned(),
        }
    }

    #[test]
    fn golden_bytes() {
        let mut out = Vec::new();
        let mtime = Timestamp::new(0x0102, 0x0304);
        let head = BlockHeadRecord { size: 5, blocks: 0, mtime, inline: Inline::All(b"abc".to_vec()) };
        head.encode(&mut out);
        assert_eq!(
            hex(&out),
            "01010000040300000201000000000000050000000000000000000000000000000000000000000000616263"
        );
        assert_eq!(BlockHeadRecord::decode(&out), Ok(head));
        let mut map = BlockMapRecord::default();
        map.places[1] = Place::Data(0x1000, 0xaabb_ccdd);
        map.places[2] = Place::Data(0x1001, 0x1122_3344);
        map.places[63] = Place::Reserved(7);
        map.before = vec![
            Before { generation: 9, index: 1, place: Place::Hole },
            Before { generation: 9, index: 2, place: Place::Hole },
            Before { generation: 10, index: 2, place: Place::Data(5, 6) },
        ];
        map.encode(&mut out);
        assert_eq!(
            hex(&out),
            concat!(
                "0100000002000200",
                "010202000010000000000000ddccbbaa44332211",
                "3f0101000700000000000000",
                "0900000000000000",
                "010200000000000000000000",
                "0a00000000000000",
                "020102000500000000000000",
                "06000000"
            )
        );
        assert_eq!(BlockMapRecord::decode(&out), Ok(map));
        let store = BlockStoreRecord { uuid: *b"0123456789abcdef", clean: true, generation: 0x0102 };
        assert_eq!(hex(&store.encode()), "0101000000000000303132333435363738396162636465660201000000000000");
        assert_eq!(BlockStoreRecord::decode(&store.encode()), Ok(store));
        let bytes = label().encode();
        assert_eq!(
            hex(&bytes[..80]),
            concat!(
                "4e41435245424c4b01000000000200003031323334353637383961626364656600f15365000000000500000000100000",
                "000000400000000000000000000000006e616372652d4f535430303031000000"
            )
        );
        assert_eq!(BlockLabel::decode(&bytes), Ok(label()));
    }

    #[test]
    fn every_flipped_bit_and_every_length_of_a_label_is_noticed() {
        let good = label().encode();
        for bit in 0..BLOCK_LABEL_LEN * 8 {
            let mut bad = good;
            bad[bit / 8] ^= 1 << (bit % 8);
            assert!(BlockLabel::decode(&bad).is_err(), "bit {bit}");
        }
        for len in 0..BLOCK_LABEL_LEN {
            assert!(BlockLabel::decode(&good[..len]).is_err(), "length {len}");
        }
        let mut other = good;
        other[8] = 2;
        assert_eq!(BlockLabel::decode(&other), Err(BlockLabelError::Version { found: 2 }));
    }

    fn place() -> impl Strategy<Value = Place> {
        prop_oneof![
            Just(Place::Hole),
            (1u64..6).prop_map(Place::Reserved),
            (1u64..6, any::<u32>()).prop_map(|(block, crc)| Place::Data(block, crc)),
            (1u64..1 << 50, any::<u32>()).prop_map(|(block, crc)| Place::Data(block, crc)),
        ]
    }

    proptest! {
        #[test]
        fn maps_survive_a_round_trip(
            places in proptest::collection::vec(place(), MAP_BLOCKS),
            before in proptest::collection::btree_map((0u64..4, 0u8..64), place(), 0..80),
        ) {
            let places = places.try_into().expect("as many as wanted");
            let before = before
                .into_iter()
                .map(|((generation, index), place)| Before { generation, index, place })
                .collect();
            let map = BlockMapRecord { places, before };
            let mut out = Vec::new();
            map.encode(&mut out);
            prop_assert_eq!(BlockMapRecord::decode(&out), Ok(map));
            for len in 0..out.len() {
                prop_assert!(BlockMapRecord::decode(&out[..len]).is_err());
            }
        }
    }
}
