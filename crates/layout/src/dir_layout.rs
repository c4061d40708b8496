//! The shards of a striped directory, in Lustre's binary forms.
//!
//! `lmv_mds_md_v1` is what a directory stores (`trusted.lmv`); [`to_user`] converts it to the form that
//! programs get (`lmv_user_md`).
//!
//! ```text
//!  0 magic u32      4 shards u32     8 MDT of the master u32 (in a shard: its place in the list)
//! 12 hash u16       14 flags u16    16 version u32    20 migrate offset u32    24 migrate hash u32
//! 28 zeros          32 moved u64 (zero for programs)    40 FID of the former directory (Lustre: a pool)
//! 56 FIDs of the shards, 16 bytes each; a shard stores none
//! ```
//!
//! While names move, the list has two layouts. A migration has the new shards before the migrate offset and
//! the old ones from there on; a split adds shards behind the existing ones, a merge removes the last ones:
//! the offset is the smaller count. Each old shard stores its progress: names with positions before `moved`
//! are in their new shards. A directory itself may be one of its shards while it becomes striped, or
//! unstriped again.
//!
//! A directory that moves to another MDT is replaced by another inode; until all names have moved, the list
//! names the former inode, which has the same list.

use crate::dir_hash::DirHash;
use nacre_types::Fid;
use nacre_types::fid::FID_BYTES;
use nacre_types::limits::TARGET_INDEX_MAX;
use std::ops::Range;

/// Magic of the list in a directory.
pub const MAGIC_DIRECTORY: u32 = 0x0CD2_0CD0;
/// Magic of the list in a shard; in specifications, of a list of MDTs.
pub const MAGIC_SHARD: u32 = 0x0CD4_0CD0;
/// Largest number of shards of a directory.
pub const SHARDS_MAX: usize = 2000;
/// Bytes of the header of `lmv_user_md`, which precedes the rows.
pub const USER_HEADER: usize = 48;
/// Bytes of a row: FID, four zeros, MDT index.
pub const USER_ROW: usize = 24;

const HEADER: usize = 56;
/// Position of an old shard whose names have all moved.
pub const MOVED_ALL: u64 = u64::MAX;
/// Offset of the position up to which names have moved.
const MOVED: usize = 32;
/// Offset of the FID of the directory that this one replaces.
const FORMER: usize = 40;
const HASH_MASK: u32 = 0xffff;

/// Why bytes are not the shards of a directory. Programs get `EINVAL`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum DirError {
    /// The length does not match the header or the number of rows.
    #[error("the directory's layout has {0} bytes")]
    Length(usize),
    /// The magic is that of another kind of layout.
    #[error("directory layout magic {0:#x} is not supported")]
    Magic(u32),
    /// A field has an invalid value.
    #[error("field {0} of the directory's layout has an impossible value")]
    Field(&'static str),
}

bitflags::bitflags! {
    /// Flags stored with the number of the hash, with Lustre's bits (`LMV_HASH_FLAG_*`).
    #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
    pub struct DirFlags: u32 {
        /// Several shards share an MDT.
        const OVERSTRIPED = 0x0100_0000;
        /// Excluded from automatic splits.
        const FIXED = 0x0200_0000;
        /// With `MIGRATION`, a merge: names move out of the last shards.
        const MERGE = 0x0400_0000;
        /// With `MIGRATION`, a split: names move into added shards.
        const SPLIT = 0x0800_0000;
        /// The list was lost and rebuilt from the shards.
        const LOST_LMV = 0x1000_0000;
        /// The hash is unknown: a lookup asks all shards.
        const BAD_TYPE = 0x2000_0000;
        /// Names are moving between shards.
        const MIGRATION = 0x8000_0000;
    }
}

impl DirFlags {
    /// The flags of a change that moves names.
    pub const CHANGE: DirFlags = DirFlags::MIGRATION.union(DirFlags::SPLIT).union(DirFlags::MERGE);
}

/// The change for which names move.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DirChange {
    /// Names move from the shards behind the offset to those before it.
    Migration,
    /// Names move from the shards before the offset to all.
    Split,
    /// Names move from all shards to those before the offset.
    Merge,
}

/// The layout of a directory: its shards, and the hash that distributes names over them.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DirLayout {
    /// Number of the hash; see [`DirHash`].
    pub hash: u16,
    /// Flags stored with the hash.
    pub flags: DirFlags,
    /// Version of the list, raised with each change.
    pub version: u32,
    /// Index of the MDT with the master inode.
    pub master_mdt: u16,
    /// While names move, the place in the list that separates old from new shards; otherwise 0.
    pub migrate_offset: u32,
    /// While names move, the hash before (in a merge: after) the change; otherwise 0.
    pub migrate_hash: u32,
    /// While names move from a directory that this one replaces: the FID of that directory, by which inodes
    /// still refer to it. Otherwise zero.
    pub former: Fid,
    /// FIDs of the shards, from 1 to [`SHARDS_MAX`], all different.
    pub shards: Vec<Fid>,
}

/// The location of a name, as far as a shard knows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Home {
    /// In this shard.
    Here,
    /// In another shard.
    Elsewhere,
    /// In this shard if the old shard at this place of the list has moved its names up to the name's
    /// position, otherwise in the old shard.
    IfMoved {
        /// Place of the old shard in the list.
        from: u32,
    },
}

impl DirLayout {
    /// Builds a layout over these shards without a change under way.
    pub fn new(hash: DirHash, master_mdt: u16, shards: Vec<Fid>) -> DirLayout {
        DirLayout {
            hash: hash.number(),
            flags: DirFlags::empty(),
            version: 0,
            master_mdt,
            migrate_offset: 0,
            migrate_hash: 0,
            former: Fid::ZERO,
            shards,
        }
    }

    fn spread(&self) -> Spread {
        Spread {
            moved: 0,
            hash: self.hash,
            flags: self.flags,
            migrate_offset: self.migrate_offset,
            migrate_hash: self.migrate_hash,
            count: self.shards.len() as u32,
        }
    }

    /// Returns the change under way, if there is one.
    pub fn change(&self) -> Option<DirChange> {
        self.spread().change()
    }

    /// Returns the place of the shard that has the name or, while names move, will have it. `None`: the hash
    /// is unknown, so it may be any.
    pub fn shard_of(&self, name: &[u8]) -> Option<usize> {
        self.spread().shard_of(name)
    }

    /// Returns the shard that the name moves from, if it differs: a lookup that misses in the first shard
    /// continues there.
    pub fn old_shard_of(&self, name: &[u8]) -> Option<usize> {
        self.spread().old_shard_of(name)
    }

    /// Returns the places in the list that names move from; empty if nothing moves.
    pub fn old_places(&self) -> Range<u32> {
        self.spread().old_places()
    }

    /// Returns the list after all names have moved, and the shards that leave it. Without a change under way,
    /// the list stays as it is.
    pub fn settled(&self) -> (DirLayout, Vec<Fid>) {
        let offset = self.migrate_offset as usize;
        let (kept, hash) = match self.change() {
            None => return (self.clone(), Vec::new()),
            Some(DirChange::Split) => (self.shards.len(), u32::from(self.hash)),
            Some(DirChange::Merge) => (offset, self.migrate_hash),
            Some(DirChange::Migration) => (offset, u32::from(self.hash)),
        };
        let (kept, left) = self.shards.split_at(kept.min(self.shards.len()));
        let settled = DirLayout {
            hash: (hash & HASH_MASK) as u16,
            flags: overstriped(self.flags - DirFlags::CHANGE, kept),
            version: self.version.wrapping_add(1),
            master_mdt: self.master_mdt,
            migrate_offset: 0,
            migrate_hash: 0,
            former: Fid::ZERO,
            shards: kept.to_vec(),
        };
        (settled, left.to_vec())
    }

    /// Returns the list while names move into shards added behind these. `None` if a change is under way, or
    /// none are added.
    pub fn growing(&self, hash: DirHash, added: &[Fid]) -> Option<DirLayout> {
        let shards = [&self.shards[..], added].concat();
        self.changing(DirFlags::SPLIT, self.shards.len(), (hash.number(), self.hash), shards)
    }

    /// Returns the list while names move out of all but the first `count` shards. `None` if a change is under
    /// way, or no shard would be removed.
    pub fn shrinking(&self, hash: DirHash, count: usize) -> Option<DirLayout> {
        self.changing(DirFlags::MERGE, count, (self.hash, hash.number()), self.shards.clone())
    }

    /// Returns the list while names move from these shards to others. `None` if a change is under way.
    pub fn moving_to(&self, hash: DirHash, new: &[Fid]) -> Option<DirLayout> {
        let shards = [new, &self.shards[..]].concat();
        self.changing(DirFlags::empty(), new.len(), (hash.number(), self.hash), shards)
    }

    /// Returns the list of another directory that replaces this one, `former`, while names move there. `None`
    /// if a change is under way.
    pub fn replaced_by(&self, former: Fid, next: &DirLayout) -> Option<DirLayout> {
        let hash = DirHash::from_number(next.hash)?;
        let list = self.moving_to(hash, &next.shards)?;
        let kept = DirFlags::CHANGE | DirFlags::OVERSTRIPED;
        let flags = (list.flags & kept) | (next.flags - kept);
        Some(DirLayout { flags, master_mdt: next.master_mdt, former, ..list })
    }

    /// Returns all inodes that belong to a directory with this list, except itself: its shards, of which it
    /// may be one, and the former directory.
    pub fn inodes(&self) -> Vec<Fid> {
        let former = [self.former].into_iter().filter(|fid| !fid.is_zero() && !self.shards.contains(fid));
        self.shards.iter().copied().chain(former).collect()
    }

    fn changing(
        &self,
        kind: DirFlags,
        offset: usize,
        (hash, migrate_hash): (u16, u16),
        shards: Vec<Fid>,
    ) -> Option<DirLayout> {
        let possible = self.change().is_none() && (1..shards.len()).contains(&offset);
        possible.then(|| DirLayout {
            hash,
            // Flags of the final list.
            flags: overstriped(self.flags, if kind == DirFlags::SPLIT { &shards } else { &shards[..offset] })
                | DirFlags::MIGRATION
                | kind,
            version: self.version.wrapping_add(1),
            master_mdt: self.master_mdt,
            migrate_offset: offset as u32,
            migrate_hash: migrate_hash.into(),
            former: Fid::ZERO,
            shards,
        })
    }

    /// Rebuilds the list of a directory on MDT `master_mdt` from its shards and their records; `missing` returns FIDs
    /// for places of shards that are lost. `None` if no record can be decoded.
    pub fn rebuilt(
        master_mdt: u16,
        shards: &[(Fid, &[u8])],
        missing: &mut dyn FnMut() -> Fid,
    ) -> Option<DirLayout> {
        let known = |(fid, bytes): &(Fid, &[u8])| Some((*fid, DirShard::decode(fid, bytes).ok()?));
        let known: Vec<(Fid, DirShard)> = shards.iter().filter_map(known).collect();
        let DirShard { version, spread, .. } =
            known.iter().map(|(_, shard)| *shard).max_by_key(|it| it.version)?;
        let mut places: Vec<Option<Fid>> = vec![None; spread.count as usize];
        for (fid, shard) in known.iter().filter(|(_, shard)| shard.version == version) {
            places[shard.place as usize].get_or_insert(*fid);
        }
        Some(DirLayout {
            hash: spread.hash,
            flags: spread.flags | DirFlags::LOST_LMV,
            version,
            master_mdt,
            migrate_offset: spread.migrate_offset,
            migrate_hash: spread.migrate_hash,
            former: Fid::ZERO,
            shards: places.into_iter().map(|place| place.unwrap_or_else(&mut *missing)).collect(),
        })
    }

    /// Encodes the list as the directory stores it.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = self.encode_as(MAGIC_DIRECTORY, self.master_mdt.into());
        out[FORMER..HEADER].copy_from_slice(&self.former.to_le_bytes());
        self.shards.iter().for_each(|fid| out.extend_from_slice(&fid.to_le_bytes()));
        out
    }

    /// Encodes the record of the shard at this place of the list, before any name has moved.
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

    /// Decodes the list as a directory stores it.
    ///
    /// # Errors
    /// If the bytes are not such a list.
    pub fn decode(bytes: &[u8]) -> Result<DirLayout, DirError> {
        let (header, rows) = split_header(bytes, MAGIC_DIRECTORY)?;
        let count = count_of(header)?;
        if rows.len() != FID_BYTES * count {
            return Err(DirError::Length(bytes.len()));
        }
        let master_mdt = u16::try_from(u32_at(header, 8)).ok().filter(|index| *index < TARGET_INDEX_MAX);
        let master_mdt = master_mdt.ok_or(DirError::Field("master"))?;
        let (Spread { hash, flags, migrate_offset, migrate_hash, count: _, .. }, version) =
            Spread::read(header)?;
        let shards = fids(rows)?;
        let former = former_in(header);
        Ok(DirLayout { hash, flags, version, master_mdt, migrate_offset, migrate_hash, former, shards })
    }
}

/// The fields of a layout that determine where a name is stored.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Spread {
    hash: u16,
    flags: DirFlags,
    migrate_offset: u32,
    migrate_hash: u32,
    count: u32,
    /// Position in this shard before which names have moved.
    moved: u64,
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

    fn old_places(&self) -> Range<u32> {
        match self.change() {
            None => 0..0,
            Some(DirChange::Split) => 0..self.migrate_offset,
            Some(DirChange::Merge) => 0..self.count,
            Some(DirChange::Migration) => self.migrate_offset..self.count,
        }
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
        if !is_changing && self.moved != 0 {
            return Err(DirError::Field("moved"));
        }
        // 0 remains of a list that was lost.
        if self.hash == 0 && !self.flags.contains(DirFlags::BAD_TYPE) {
            return Err(DirError::Field("hash"));
        }
        Ok(())
    }

    /// Reads the fields of a header, and its version.
    fn read(header: &[u8; HEADER]) -> Result<(Spread, u32), DirError> {
        let field = |index: usize| u32_at(header, 4 * index);
        if header[28..MOVED].iter().any(|byte| *byte != 0) {
            return Err(DirError::Field("padding"));
        }
        let has_former = header[FORMER..].iter().any(|byte| *byte != 0);
        let is_change = field(3) & DirFlags::CHANGE.bits() == DirFlags::MIGRATION.bits();
        if has_former && !(is_change && field(0) == MAGIC_DIRECTORY) {
            return Err(DirError::Field("former"));
        }
        let count = count_of(header)? as u32;
        let flags = DirFlags::from_bits(field(3) & !HASH_MASK).ok_or(DirError::Field("flags"))?;
        let hash = (field(3) & HASH_MASK) as u16;
        let moved = u64::from(field(8)) | u64::from(field(9)) << 32;
        let spread = Spread { hash, flags, migrate_offset: field(5), migrate_hash: field(6), count, moved };
        spread.check()?;
        Ok((spread, field(4)))
    }
}

/// A shard's record of the list that it belongs to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DirShard {
    /// Place of the shard in the list.
    pub place: u32,
    /// Version of the list.
    pub version: u32,
    spread: Spread,
}

impl DirShard {
    /// Decodes the record of a shard, or of a directory that is one of its own shards.
    ///
    /// # Errors
    /// If the bytes are not such a record.
    pub fn decode(fid: &Fid, bytes: &[u8]) -> Result<DirShard, DirError> {
        if let Ok((header, rows)) = split_header(bytes, MAGIC_DIRECTORY) {
            let (spread, version) = Spread::read(header)?;
            let place = fids(rows)?.iter().position(|shard| shard == fid);
            let place = place.ok_or(DirError::Field("place"))? as u32;
            return Ok(DirShard { place, version, spread });
        }
        let (header, rest) = split_header(bytes, MAGIC_SHARD)?;
        if !rest.is_empty() {
            return Err(DirError::Length(bytes.len()));
        }
        let (spread, version) = Spread::read(header)?;
        let place = u32_at(header, 8);
        match place < spread.count {
            true => Ok(DirShard { place, version, spread }),
            false => Err(DirError::Field("place")),
        }
    }

    /// Returns the location of a name with this position.
    pub fn home(&self, name: &[u8], position: u64) -> Home {
        let is_here = |place: usize| place == self.place as usize;
        match (self.spread.shard_of(name), self.spread.old_shard_of(name)) {
            (None, _) => Home::Here,
            (Some(new), None) if is_here(new) => Home::Here,
            (_, Some(old)) if is_here(old) && position >= self.spread.moved => Home::Here,
            (Some(new), Some(old)) if is_here(new) => Home::IfMoved { from: old as u32 },
            _ => Home::Elsewhere,
        }
    }

    /// While names move: returns the place that a name moves to from here, if it does.
    pub fn leaves_for(&self, name: &[u8]) -> Option<u32> {
        let old = self.spread.old_shard_of(name)?;
        let new = self.spread.shard_of(name).filter(|_| old == self.place as usize)?;
        Some(new as u32)
    }

    /// Returns the position in this shard before which names have moved.
    pub fn moved(&self) -> u64 {
        self.spread.moved
    }

    /// Returns true if names have still to move out of this shard.
    pub fn is_moving(&self) -> bool {
        self.spread.moved != MOVED_ALL && self.spread.old_places().contains(&self.place)
    }
}

/// Returns the record of a shard, or of a directory that is one of its own shards, with another position up
/// to which names have moved.
///
/// # Errors
/// If the bytes are not such a record.
pub fn with_moved(bytes: &[u8], moved: u64) -> Result<Vec<u8>, DirError> {
    let mut bytes = bytes.to_vec();
    let len = bytes.len();
    let field = bytes.get_mut(MOVED..MOVED + 8).ok_or(DirError::Length(len))?;
    field.copy_from_slice(&moved.to_le_bytes());
    Ok(bytes)
}

fn former_in(header: &[u8; HEADER]) -> Fid {
    header.last_chunk().map_or(Fid::ZERO, Fid::from_le_bytes)
}

/// Returns `flags` with `OVERSTRIPED` set as these shards require.
fn overstriped(mut flags: DirFlags, shards: &[Fid]) -> DirFlags {
    let mut mdts: Vec<u16> = shards.iter().map(Fid::mdt_index).collect();
    mdts.sort_unstable();
    flags.set(DirFlags::OVERSTRIPED, mdts.windows(2).any(|pair| pair[0] == pair[1]));
    flags
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

/// Returns the place of a name among `count` shards; with one, regardless of the hash.
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

/// A directory as programs get it (`lmv_user_md`): its layout, or only its MDT if it is not striped.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct UserDir {
    /// Index of the MDT with the directory.
    pub mdt: u16,
    /// Number of the hash, and flags.
    pub hash: u32,
    /// FIDs of the shards and indexes of their MDTs.
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
    /// Encodes the structure.
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

    /// Decodes the structure; bytes behind it are ignored.
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

    /// Returns the name of the hash as Lustre shows it.
    pub fn hash_text(&self) -> String {
        hash_text(self.hash)
    }
}

/// Returns the name of a hash followed by its flags, as Lustre shows them: `crush,migrating`; `none` if the
/// hash is 0.
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
mod tests;
