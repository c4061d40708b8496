//! The shards of a striped directory, in Lustre's binary forms. Source: reference 3.6 and 4.17.
//!
//! `lmv_mds_md_v1` is what a directory stores (`trusted.lmv`); [`to_user`] makes what programs are shown (`lmv_user_md`).
//!
//! ```text
//!  0 magic u32      4 shards u32     8 MDT of the master u32 (in a shard: its place in the list)
//! 12 hash u16       14 flags u16    16 version u32    20 migrate offset u32    24 migrate hash u32
//! 28 zeros          40 pool, zeros  56 FIDs of the shards, 16 bytes each; a shard stores none
//! ```
//!
//! While names move, the list has two layouts. A migration has the new shards before the migrate offset and the old ones from there on;
//! a split adds shards behind those that were there, a merge takes the last ones away: the offset is the smaller count.

use crate::dir_hash::DirHash;
use nacre_types::Fid;
use nacre_types::fid::FID_BYTES;
use nacre_types::limits::TARGET_INDEX_MAX;

/// Magic of the list in a directory.
pub const MAGIC_DIRECTORY: u32 = 0x0CD2_0CD0;
/// Magic of the list in a shard; in wishes, MDTs are named.
pub const MAGIC_SHARD: u32 = 0x0CD4_0CD0;
/// Shards of a directory at most.
pub const SHARDS_MAX: usize = 2000;
/// Bytes before the first row of `lmv_user_md`.
pub const USER_HEADER: usize = 48;
/// Bytes of a row: FID, four zeros, MDT.
pub const USER_ROW: usize = 24;

const HEADER: usize = 56;
const HASH_MASK: u32 = 0xffff;

/// Why bytes are not the shards of a directory. Programs see `EINVAL`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum DirError {
    /// Not as many bytes as the header or the number of rows needs.
    #[error("the directory's layout has {0} bytes")]
    Length(usize),
    /// Another kind of layout.
    #[error("directory layout magic {0:#x} is not supported")]
    Magic(u32),
    /// A field has a value that it cannot have.
    #[error("field {0} of the directory's layout has an impossible value")]
    Field(&'static str),
}

bitflags::bitflags! {
    /// What is noted beside the number of the hash, with Lustre's bits (`LMV_HASH_FLAG_*`).
    #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
    pub struct DirFlags: u32 {
        /// More than one shard on an MDT.
        const OVERSTRIPED = 0x0100_0000;
        /// Not to be split by itself.
        const FIXED = 0x0200_0000;
        /// With `MIGRATION`: names move out of the last shards.
        const MERGE = 0x0400_0000;
        /// With `MIGRATION`: names move into added shards.
        const SPLIT = 0x0800_0000;
        /// The list was lost once and made again from the shards.
        const LOST_LMV = 0x1000_0000;
        /// The hash is not known: names are looked for everywhere.
        const BAD_TYPE = 0x2000_0000;
        /// Names move.
        const MIGRATION = 0x8000_0000;
    }
}

impl DirFlags {
    /// Those that say that names move.
    pub const CHANGE: DirFlags = DirFlags::MIGRATION.union(DirFlags::SPLIT).union(DirFlags::MERGE);
}

/// How names move.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DirChange {
    /// From the shards behind the offset to those before it.
    Migration,
    /// From the shards before the offset to all.
    Split,
    /// From all to those before the offset.
    Merge,
}

/// Over which shards a directory's names are spread, and how.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DirLayout {
    /// Number of the hash; see [`DirHash`].
    pub hash: u16,
    /// What is noted beside it.
    pub flags: DirFlags,
    /// Grows with each change.
    pub version: u32,
    /// MDT of the directory itself.
    pub master_mdt: u16,
    /// While names move, where the list is cut; otherwise 0.
    pub migrate_offset: u32,
    /// While names move, the hash before (of a merge: after) the change; otherwise 0.
    pub migrate_hash: u32,
    /// The shards, from 1 to [`SHARDS_MAX`], all different.
    pub shards: Vec<Fid>,
}

impl DirLayout {
    /// Names spread over these shards, and nothing moves.
    pub fn new(hash: DirHash, master_mdt: u16, shards: Vec<Fid>) -> DirLayout {
        DirLayout {
            hash: hash.number(),
            flags: DirFlags::empty(),
            version: 0,
            master_mdt,
            migrate_offset: 0,
            migrate_hash: 0,
            shards,
        }
    }

    fn spread(&self) -> Spread {
        Spread {
            hash: self.hash,
            flags: self.flags,
            migrate_offset: self.migrate_offset,
            migrate_hash: self.migrate_hash,
            count: self.shards.len() as u32,
        }
    }

    /// How names move, if they do.
    pub fn change(&self) -> Option<DirChange> {
        self.spread().change()
    }

    /// Which of the shards has the name; while names move, will have it. `None`: the hash is not known, so any.
    pub fn shard_of(&self, name: &[u8]) -> Option<usize> {
        self.spread().shard_of(name)
    }

    /// The shard that the name moves from, if that is another one: what is not found in the first is to be looked for there.
    pub fn old_shard_of(&self, name: &[u8]) -> Option<usize> {
        self.spread().old_shard_of(name)
    }

    /// What the directory stores.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = self.encode_as(MAGIC_DIRECTORY, self.master_mdt.into());
        self.shards.iter().for_each(|fid| out.extend_from_slice(&fid.to_le_bytes()));
        out
    }

    /// What the shard in this place of the list stores.
    pub fn encode_shard(&self, place: u32) -> Vec<u8> {
        self.encode_as(MAGIC_SHARD, place)
    }

    fn encode_as(&self, magic: u32, third: u32) -> Vec<u8> {
        let hash = u32::from(self.hash) | self.flags.bits();
        let count = self.shards.len() as u32;
        let mut out = Vec::with_capacity(HEADER + FID_BYTES * self.shards.len());
        for field in [magic, count, third, hash, self.version, self.migrate_offset, self.migrate_hash] {
            out.extend_from_slice(&field.to_le_bytes());
        }
        out.resize(HEADER, 0);
        out
    }

    /// What a directory has stored.
    ///
    /// # Errors
    /// If these are not the bytes of such a list.
    pub fn decode(bytes: &[u8]) -> Result<DirLayout, DirError> {
        let (header, rows) = split_header(bytes, MAGIC_DIRECTORY)?;
        let count = count_of(header)?;
        if rows.len() != FID_BYTES * count {
            return Err(DirError::Length(bytes.len()));
        }
        let master_mdt = u16::try_from(u32_at(header, 8)).ok().filter(|index| *index < TARGET_INDEX_MAX);
        let master_mdt = master_mdt.ok_or(DirError::Field("master"))?;
        let (Spread { hash, flags, migrate_offset, migrate_hash, count: _ }, version) = Spread::read(header)?;
        let shards = fids(rows)?;
        Ok(DirLayout { hash, flags, version, master_mdt, migrate_offset, migrate_hash, shards })
    }
}

/// All of a layout that says where a name lies.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Spread {
    hash: u16,
    flags: DirFlags,
    migrate_offset: u32,
    migrate_hash: u32,
    count: u32,
}

impl Spread {
    fn change(&self) -> Option<DirChange> {
        change_of(self.flags).ok().flatten()
    }

    fn shard_of(&self, name: &[u8]) -> Option<usize> {
        match self.change() {
            None | Some(DirChange::Split) => place(self.hash.into(), name, self.count),
            Some(DirChange::Merge) => place(self.migrate_hash, name, self.migrate_offset),
            Some(DirChange::Migration) => place(self.hash.into(), name, self.migrate_offset),
        }
    }

    fn old_shard_of(&self, name: &[u8]) -> Option<usize> {
        let old = match self.change()? {
            DirChange::Split => place(self.migrate_hash, name, self.migrate_offset),
            DirChange::Merge => place(self.hash.into(), name, self.count),
            DirChange::Migration => {
                let count = self.count.saturating_sub(self.migrate_offset);
                place(self.migrate_hash, name, count).map(|index| index + self.migrate_offset as usize)
            }
        };
        old.filter(|old| self.shard_of(name) != Some(*old))
    }

    fn check(&self) -> Result<(), DirError> {
        let is_changing = change_of(self.flags)?.is_some();
        let can_cut = (1..self.count).contains(&self.migrate_offset);
        if is_changing != can_cut || (!is_changing && self.migrate_offset != 0) {
            return Err(DirError::Field("migrate offset"));
        }
        if !is_changing && self.migrate_hash != 0 {
            return Err(DirError::Field("migrate hash"));
        }
        // 0 is what is left of a list that was lost.
        if self.hash == 0 && !self.flags.contains(DirFlags::BAD_TYPE) {
            return Err(DirError::Field("hash"));
        }
        Ok(())
    }

    /// What a header says, and its version.
    fn read(header: &[u8; HEADER]) -> Result<(Spread, u32), DirError> {
        let field = |index: usize| u32_at(header, 4 * index);
        if header[28..].iter().any(|byte| *byte != 0) {
            return Err(DirError::Field("padding"));
        }
        let count = count_of(header)? as u32;
        let flags = DirFlags::from_bits(field(3) & !HASH_MASK).ok_or(DirError::Field("flags"))?;
        let hash = (field(3) & HASH_MASK) as u16;
        let spread = Spread { hash, flags, migrate_offset: field(5), migrate_hash: field(6), count };
        spread.check()?;
        Ok((spread, field(4)))
    }
}

/// What a shard has stored of the list that it is in.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DirShard {
    /// Its place in the list.
    pub place: u32,
    spread: Spread,
}

impl DirShard {
    /// What a shard has stored.
    ///
    /// # Errors
    /// If these are not the bytes of such a place.
    pub fn decode(bytes: &[u8]) -> Result<DirShard, DirError> {
        let (header, rest) = split_header(bytes, MAGIC_SHARD)?;
        if !rest.is_empty() {
            return Err(DirError::Length(bytes.len()));
        }
        let (spread, _) = Spread::read(header)?;
        let place = u32_at(header, 8);
        match place < spread.count {
            true => Ok(DirShard { place, spread }),
            false => Err(DirError::Field("place")),
        }
    }

    /// True if a name may lie in this shard.
    pub fn may_have(&self, name: &[u8]) -> bool {
        let is_here = |place: Option<usize>| place.is_none_or(|place| place == self.place as usize);
        is_here(self.spread.shard_of(name))
            || self.spread.old_shard_of(name).is_some_and(|place| place == self.place as usize)
    }
}

fn split_header(bytes: &[u8], magic: u32) -> Result<(&[u8; HEADER], &[u8]), DirError> {
    let (header, rest) = bytes.split_first_chunk().ok_or(DirError::Length(bytes.len()))?;
    match u32_at(header, 0) {
        found if found == magic => Ok((header, rest)),
        other => Err(DirError::Magic(other)),
    }
}

fn count_of(header: &[u8; HEADER]) -> Result<usize, DirError> {
    let count = u32_at(header, 4) as usize;
    if count == 0 || count > SHARDS_MAX { Err(DirError::Field("count")) } else { Ok(count) }
}

fn change_of(flags: DirFlags) -> Result<Option<DirChange>, DirError> {
    let change = flags & DirFlags::CHANGE;
    if change.is_empty() {
        Ok(None)
    } else if change == DirFlags::MIGRATION {
        Ok(Some(DirChange::Migration))
    } else if change == DirFlags::MIGRATION | DirFlags::SPLIT {
        Ok(Some(DirChange::Split))
    } else if change == DirFlags::MIGRATION | DirFlags::MERGE {
        Ok(Some(DirChange::Merge))
    } else {
        Err(DirError::Field("flags"))
    }
}

/// Where a name lies among `count` shards; with one, whatever the hash is.
fn place(hash: u32, name: &[u8], count: u32) -> Option<usize> {
    if count <= 1 {
        return Some(0);
    }
    DirHash::from_number((hash & HASH_MASK) as u16).map(|hash| hash.shard(name, count) as usize)
}

fn fids(bytes: &[u8]) -> Result<Vec<Fid>, DirError> {
    let all: Vec<Fid> = bytes.as_chunks().0.iter().map(Fid::from_le_bytes).collect();
    let mut sorted = all.clone();
    sorted.sort_unstable();
    match sorted.first().is_none_or(Fid::is_zero) || sorted.windows(2).any(|pair| pair[0] == pair[1]) {
        true => Err(DirError::Field("shards")),
        false => Ok(all),
    }
}

pub(crate) fn u32_at(bytes: &[u8], at: usize) -> u32 {
    let mut field = [0; 4];
    field.copy_from_slice(&bytes[at..at + 4]);
    u32::from_le_bytes(field)
}

/// A directory as programs are shown it (`lmv_user_md`): its layout, or of one that is whole just where it is.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct UserDir {
    /// MDT of the directory.
    pub mdt: u16,
    /// Number of the hash, and flags.
    pub hash: u32,
    /// Shards and their MDTs.
    pub shards: Vec<(Fid, u32)>,
}

impl From<&DirLayout> for UserDir {
    fn from(layout: &DirLayout) -> UserDir {
        UserDir {
            mdt: layout.master_mdt,
            hash: u32::from(layout.hash) | layout.flags.bits(),
            shards: layout.shards.iter().map(|fid| (*fid, fid.mdt_index().into())).collect(),
        }
    }
}

impl UserDir {
    /// The bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(USER_HEADER + USER_ROW * self.shards.len());
        for field in [MAGIC_DIRECTORY, self.shards.len() as u32, self.mdt.into(), self.hash] {
            out.extend_from_slice(&field.to_le_bytes());
        }
        out.resize(USER_HEADER, 0);
        for (fid, mdt) in &self.shards {
            out.extend_from_slice(&fid.to_le_bytes());
            out.extend_from_slice(&[0; 4]);
            out.extend_from_slice(&mdt.to_le_bytes());
        }
        out
    }

    /// The directory in these bytes, of which there may be more than needed.
    pub fn decode(bytes: &[u8]) -> Result<UserDir, DirError> {
        let header: &[u8; USER_HEADER] = bytes.first_chunk().ok_or(DirError::Length(bytes.len()))?;
        let field = |index: usize| u32_at(header, 4 * index);
        if field(0) != MAGIC_DIRECTORY {
            return Err(DirError::Magic(field(0)));
        }
        let count = field(1) as usize;
        if count > SHARDS_MAX {
            return Err(DirError::Field("count"));
        }
        let mdt = u16::try_from(field(2)).ok().filter(|index| *index < TARGET_INDEX_MAX);
        let rows =
            bytes.get(USER_HEADER..USER_HEADER + USER_ROW * count).ok_or(DirError::Length(bytes.len()))?;
        let row = |row: &[u8; USER_ROW]| match row.first_chunk() {
            Some(fid) => (Fid::from_le_bytes(fid), u32_at(row, FID_BYTES + 4)),
            None => (Fid::ZERO, 0),
        };
        Ok(UserDir {
            mdt: mdt.ok_or(DirError::Field("index"))?,
            hash: field(3),
            shards: rows.as_chunks().0.iter().map(row).collect(),
        })
    }

    /// Name of the hash as Lustre shows it.
    pub fn hash_text(&self) -> String {
        hash_text(self.hash)
    }
}

/// Name of a hash with the flags behind it, as Lustre shows them: `crush,migrating`; `none` without.
pub fn hash_text(hash: u32) -> String {
    let number = (hash & HASH_MASK) as u16;
    let mut text = match DirHash::from_number(number) {
        Some(hash) => hash.name().to_owned(),
        None if number == 0 => "none".to_owned(),
        None => format!("{number:#x}"),
    };
    let names = [
        (DirFlags::OVERSTRIPED, ",overstriped"),
        (DirFlags::MIGRATION, ",migrating"),
        (DirFlags::BAD_TYPE, ",bad_type"),
        (DirFlags::LOST_LMV, ",lost_lmv"),
        (DirFlags::FIXED, ",fixed"),
    ];
    for (flag, name) in names {
        if hash & flag.bits() != 0 {
            text.push_str(name);
        }
    }
    let unknown = hash & !HASH_MASK & !DirFlags::all().bits();
    if unknown != 0 {
        text.push_str(&format!(",unknown_{unknown:04x}"));
    }
    text
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Calls `check` with the samples after random changes of their bytes and lengths.
    pub(crate) fn mutate(samples: &[Vec<u8>], check: impl Fn(&[u8])) {
        let mut seed = 1u64;
        let mut random = move || {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (seed >> 33) as usize
        };
        for _ in 0..50_000 {
            let mut bytes = samples[random() % samples.len()].clone();
            for _ in 0..1 + random() % 3 {
                let at = random() % bytes.len();
                match random() % 4 {
                    0 => bytes[at] = random() as u8,
                    1 => bytes[at] ^= 1 << (random() % 8),
                    2 => bytes.truncate(at.max(1)),
                    _ => bytes.push(random() as u8),
                }
            }
            check(&bytes);
        }
    }

    fn shards(count: u32) -> Vec<Fid> {
        (0..count).map(|index| Fid::new(Fid::first_sequence_of_mdt(index as u16), 3 + index, 0)).collect()
    }

    fn two() -> DirLayout {
        DirLayout::new(DirHash::Crush, 0, shards(2))
    }

    fn changing(flags: DirFlags, offset: u32, old: DirHash, count: u32) -> DirLayout {
        DirLayout {
            flags: DirFlags::MIGRATION | flags,
            version: 7,
            migrate_offset: offset,
            migrate_hash: old.number().into(),
            ..DirLayout::new(DirHash::Crush, 1, shards(count))
        }
    }

    fn samples() -> Vec<DirLayout> {
        let odd = DirLayout { hash: 0, flags: DirFlags::BAD_TYPE | DirFlags::LOST_LMV, ..two() };
        vec![
            two(),
            DirLayout::new(DirHash::Fnv1a64, 3, shards(1)),
            DirLayout { hash: 77, flags: DirFlags::FIXED | DirFlags::OVERSTRIPED, ..two() },
            odd,
            changing(DirFlags::empty(), 1, DirHash::Fnv1a64, 4),
            changing(DirFlags::SPLIT, 2, DirHash::Fnv1a64, 4),
            changing(DirFlags::MERGE, 3, DirHash::Crush2, 4),
        ]
    }

    #[test]
    fn golden_directory_and_shard() {
        let mut expected = vec![0; 88];
        expected[..4].copy_from_slice(&[0xd0, 0x0c, 0xd2, 0x0c]);
        expected[4] = 2;
        expected[12] = 3;
        expected[56..64].copy_from_slice(&[0, 4, 0, 0, 2, 0, 0, 0]);
        expected[64] = 3;
        expected[72..80].copy_from_slice(&[0, 4, 0, 0x40, 2, 0, 0, 0]);
        expected[80] = 4;
        assert_eq!(two().encode(), expected);
        expected[..4].copy_from_slice(&[0xd0, 0x0c, 0xd4, 0x0c]);
        expected[8] = 1;
        assert_eq!(two().encode_shard(1), expected[..56]);
        let moving = changing(DirFlags::SPLIT, 2, DirHash::Fnv1a64, 4).encode();
        assert_eq!(&moving[8..28], &[1, 0, 0, 0, 3, 0, 0, 0x88, 7, 0, 0, 0, 2, 0, 0, 0, 2, 0, 0, 0]);
    }

    #[test]
    fn what_is_stored_is_read_back() {
        for layout in samples() {
            assert_eq!(DirLayout::decode(&layout.encode()).as_ref(), Ok(&layout));
            let shard = DirShard::decode(&layout.encode_shard(0)).expect("a shard");
            assert_eq!(shard, DirShard { place: 0, spread: layout.spread() });
        }
        let largest = DirLayout::new(DirHash::Crush2, 0, shards(2000));
        assert_eq!(DirLayout::decode(&largest.encode()), Ok(largest));
    }

    #[test]
    fn impossible_layouts_are_refused() {
        let with = |at: usize, value: u8| {
            let mut bytes = two().encode();
            bytes[at] = value;
            DirLayout::decode(&bytes)
        };
        let field = |name| Err(DirError::Field(name));
        assert_eq!(with(0, 1), Err(DirError::Magic(0x0cd2_0c01)));
        assert_eq!(with(2, 0xd4), Err(DirError::Magic(MAGIC_SHARD)));
        assert_eq!([with(4, 0), with(6, 1)], [(); 2].map(|()| field("count")));
        assert_eq!([with(4, 1), with(4, 3)], [(); 2].map(|()| Err(DirError::Length(88))));
        assert_eq!([with(9, 0xff), with(10, 1)].map(|result| result.is_ok()), [true, false]);
        assert_eq!(with(12, 0), field("hash"));
        assert_eq!(
            [with(14, 1), with(15, 0x40), with(15, 8), with(15, 0x8c)],
            [(); 4].map(|()| field("flags"))
        );
        // A change without a place to cut, and such a place without a change.
        assert_eq!([with(15, 0x80), with(20, 1)], [(); 2].map(|()| field("migrate offset")));
        assert_eq!(with(24, 1), field("migrate hash"));
        assert_eq!([with(28, 1), with(55, 1)], [(); 2].map(|()| field("padding")));
        let same = DirLayout { shards: vec![shards(1)[0]; 2], ..two() };
        let none = DirLayout { shards: vec![Fid::ZERO, shards(1)[0]], ..two() };
        assert_eq!(
            [same, none].map(|layout| DirLayout::decode(&layout.encode())),
            [(); 2].map(|()| field("shards"))
        );
        assert_eq!(DirShard::decode(&two().encode_shard(2)), Err(DirError::Field("place")));
        assert_eq!(DirShard::decode(&two().encode()), Err(DirError::Magic(MAGIC_DIRECTORY)));
        assert_eq!(DirLayout::decode(&[]), Err(DirError::Length(0)));
    }

    #[test]
    fn random_changes_of_bytes_give_an_error_or_a_layout_that_encodes_and_finds_names() {
        let bytes: Vec<_> =
            samples().iter().flat_map(|layout| [layout.encode(), layout.encode_shard(0)]).collect();
        mutate(&bytes, |bytes| {
            let whole = DirLayout::decode(bytes);
            if let Ok(layout) = &whole {
                assert_eq!(DirLayout::decode(&layout.encode()).as_ref(), Ok(layout));
            }
            let shard = DirShard::decode(bytes).map(|shard| shard.spread);
            for spread in [whole.map(|layout| layout.spread()), shard].into_iter().flatten() {
                let places = [spread.shard_of(b"name"), spread.old_shard_of(b"name")];
                assert!(
                    places.into_iter().flatten().all(|place| place < spread.count as usize),
                    "{spread:?}"
                );
            }
        });
    }

    const NAMES: [&[u8]; 6] = [b"a", b"b", b"foo", b"bar", b"notes.txt", b"data.bin"];

    #[test]
    fn names_lie_where_the_hash_says() {
        for name in NAMES {
            for hash in DirHash::ALL {
                let layout = DirLayout::new(hash, 0, shards(5));
                assert_eq!(layout.shard_of(name), Some(hash.shard(name, 5) as usize));
                assert_eq!(layout.old_shard_of(name), None);
            }
        }
        let odd = DirLayout { hash: 9, ..two() };
        assert_eq!((odd.shard_of(b"a"), odd.old_shard_of(b"a")), (None, None));
        assert_eq!(DirLayout { shards: shards(1), ..odd }.shard_of(b"a"), Some(0), "there is only one");
    }

    #[test]
    fn names_that_move_are_looked_for_in_the_new_place_and_then_in_the_old_one() {
        for name in NAMES {
            let of = |hash: DirHash, count| hash.shard(name, count) as usize;
            let check = |layout: DirLayout, new: usize, old: usize| {
                assert_eq!(layout.shard_of(name), Some(new), "{layout:?}");
                assert_eq!(layout.old_shard_of(name), Some(old).filter(|old| *old != new), "{layout:?}");
            };
            let (old, new) = (DirHash::Fnv1a64, DirHash::Crush);
            check(changing(DirFlags::SPLIT, 2, old, 5), of(new, 5), of(old, 2));
            check(changing(DirFlags::MERGE, 2, old, 5), of(old, 2), of(new, 5));
            check(changing(DirFlags::empty(), 2, old, 5), of(new, 2), 2 + of(old, 3));
            check(changing(DirFlags::empty(), 1, old, 2), 0, 1);
        }
    }

    #[test]
    fn each_name_may_lie_in_one_shard_and_while_names_move_in_two() {
        for layout in samples() {
            let bytes: Vec<_> =
                (0..layout.shards.len() as u32).map(|place| layout.encode_shard(place)).collect();
            let shards = bytes.iter().map(|bytes| DirShard::decode(bytes).expect("a shard"));
            let shards: Vec<DirShard> = shards.collect();
            for name in NAMES {
                let having =
                    shards.iter().filter(|shard| shard.may_have(name)).map(|shard| shard.place as usize);
                let mut expected: Vec<usize> =
                    layout.shard_of(name).into_iter().chain(layout.old_shard_of(name)).collect();
                if layout.shard_of(name).is_none() {
                    expected = (0..layout.shards.len()).collect();
                }
                expected.sort_unstable();
                assert_eq!(having.collect::<Vec<_>>(), expected, "{layout:?}");
            }
        }
    }

    #[test]
    fn what_programs_see_is_read_back_and_bounded() {
        let seen = UserDir::from(&two());
        let bytes = seen.encode();
        assert_eq!((bytes.len(), &bytes[..4]), (48 + 2 * 24, &[0xd0, 0x0c, 0xd2, 0x0c][..]));
        assert_eq!((bytes[48 + 8], bytes[48 + 20], bytes[72 + 8], bytes[72 + 20]), (3, 0, 4, 1));
        assert_eq!(UserDir::decode(&bytes), Ok(seen.clone()));
        assert_eq!(UserDir::decode(&[&bytes[..], &[1, 2, 3]].concat()), Ok(seen), "more room than needed");
        assert_eq!(UserDir::decode(&bytes[..90]), Err(DirError::Length(90)));
        let whole = UserDir { mdt: 3, hash: 0, shards: Vec::new() };
        assert_eq!(UserDir::decode(&whole.encode()), Ok(whole));
        mutate(&[bytes], |bytes| {
            if let Ok(seen) = UserDir::decode(bytes) {
                assert_eq!(UserDir::decode(&seen.encode()), Ok(seen));
            }
        });
    }

    #[test]
    fn hashes_are_named_as_lustre_names_them() {
        let texts = [0, 3, 7, 0x8000_0002, 0x3300_0004, 0x0041_0001].map(hash_text);
        let expected = [
            "none",
            "crush",
            "0x7",
            "fnv_1a_64,migrating",
            "crush2,overstriped,bad_type,lost_lmv,fixed",
            "all_char,unknown_410000",
        ];
        assert_eq!(texts, expected);
    }
}
