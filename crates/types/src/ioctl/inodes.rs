//! Lists of the inodes of a target, and their migration to another one.

use super::{Payload, READ_WRITE, fid_at, number, u16_at};
use crate::Fid;
use crate::fid::FID_BYTES;

/// Selection of a [`FilesOn`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FilesWanted {
    /// Files with objects on this OST.
    Objects(u16),
    /// Directories on this MDT, and those that have a shard on it.
    Directories(u16),
    /// All other inodes on the MDT `mdt` whose first name is on the MDT `named_on`.
    Files {
        /// MDT of the inode.
        mdt: u16,
        /// MDT of its first name.
        named_on: u16,
    },
}

/// Lists files that have objects on an OST, or inodes of an MDT that have names, in the order of their FIDs.
/// Needs `CAP_SYS_ADMIN`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FilesOn {
    /// Selected inodes.
    pub wanted: FilesWanted,
    /// FID after which the list starts.
    pub after: Fid,
    /// Output: at most [`FILES_MAX`] FIDs.
    pub fids: Vec<Fid>,
    /// Output: FID to continue after; zero at the end.
    pub next: Fid,
}

/// Moves inodes of one MDT to another one together, as `lfs migrate -m` moves one: files, and other inodes
/// without names in them.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MigrateFiles {
    /// Index of the new MDT.
    pub mdt: u16,
    /// Inodes to move, up to [`MIGRATED_MAX`].
    pub fids: Vec<Fid>,
    /// Output: result for each inode, 0 or an errno.
    pub outcomes: Vec<u16>,
}

/// Inodes in one [`MigrateFiles`].
pub const MIGRATED_MAX: usize = 32;

/// Files in one [`FilesOn`].
pub const FILES_MAX: usize = 512;

impl Payload for FilesOn {
    const COMMAND: u32 = number(READ_WRITE, 33, Self::SIZE);
    const SIZE: usize = 8 + (2 + FILES_MAX) * FID_BYTES;

    fn to_bytes(&self) -> Vec<u8> {
        let fids = &self.fids[..self.fids.len().min(FILES_MAX)];
        let (kind, target, named_on) = match self.wanted {
            FilesWanted::Objects(ost) => (0, ost, 0),
            FilesWanted::Directories(mdt) => (1, mdt, 0),
            FilesWanted::Files { mdt, named_on } => (2, mdt, named_on),
        };
        let numbers: [u16; 4] = [kind, target, named_on, fids.len() as u16];
        let mut out: Vec<u8> = numbers.iter().flat_map(|number| number.to_le_bytes()).collect();
        out.extend_from_slice(&self.after.to_le_bytes());
        out.extend_from_slice(&self.next.to_le_bytes());
        out.extend(fids.iter().flat_map(Fid::to_le_bytes));
        out.resize(Self::SIZE, 0);
        out
    }

    fn from_bytes(bytes: &[u8]) -> Option<FilesOn> {
        let (target, named_on) = (u16_at(bytes, 2)?, u16_at(bytes, 4)?);
        let (fids, _) = bytes.get(40..Self::SIZE)?.as_chunks::<FID_BYTES>();
        Some(FilesOn {
            wanted: match u16_at(bytes, 0)? {
                0 => FilesWanted::Objects(target),
                1 => FilesWanted::Directories(target),
                2 => FilesWanted::Files { mdt: target, named_on },
                _ => return None,
            },
            after: fid_at(bytes, 8)?,
            next: fid_at(bytes, 24)?,
            fids: fids.get(..usize::from(u16_at(bytes, 6)?))?.iter().map(Fid::from_le_bytes).collect(),
        })
    }
}

/// Offset of the FIDs in a [`MigrateFiles`].
const MIGRATE_FIDS: usize = 8;

impl Payload for MigrateFiles {
    const COMMAND: u32 = number(READ_WRITE, 37, Self::SIZE);
    const SIZE: usize = MIGRATE_FIDS + MIGRATED_MAX * (FID_BYTES + 2);

    fn to_bytes(&self) -> Vec<u8> {
        let fids = &self.fids[..self.fids.len().min(MIGRATED_MAX)];
        let outcomes = &self.outcomes[..self.outcomes.len().min(MIGRATED_MAX)];
        let numbers = [self.mdt, fids.len() as u16, outcomes.len() as u16, 0];
        let mut out: Vec<u8> = numbers.iter().flat_map(|number| number.to_le_bytes()).collect();
        out.extend(fids.iter().flat_map(Fid::to_le_bytes));
        out.resize(MIGRATE_FIDS + MIGRATED_MAX * FID_BYTES, 0);
        out.extend(outcomes.iter().flat_map(|outcome| outcome.to_le_bytes()));
        out.resize(Self::SIZE, 0);
        out
    }

    fn from_bytes(bytes: &[u8]) -> Option<MigrateFiles> {
        let (fids, outcomes) = bytes.get(MIGRATE_FIDS..Self::SIZE)?.split_at(MIGRATED_MAX * FID_BYTES);
        let (fids, _) = fids.as_chunks::<FID_BYTES>();
        let (outcomes, _) = outcomes.as_chunks::<2>();
        Some(MigrateFiles {
            mdt: u16_at(bytes, 0)?,
            fids: fids.get(..usize::from(u16_at(bytes, 2)?))?.iter().map(Fid::from_le_bytes).collect(),
            outcomes: outcomes
                .get(..usize::from(u16_at(bytes, 4)?))?
                .iter()
                .map(|outcome| u16::from_le_bytes(*outcome))
                .collect(),
        })
    }
}
