//! File identifiers: 128 bits that name every file, directory and object for the life of the file system.
//! Sequences, reserved ranges, IDIF and the encodings are Lustre's.

use std::fmt;
use std::str::FromStr;

/// A file identifier, printed `[0xSEQ:0xOID:0xVER]`.
///
/// The sequence determines the server of the object; a FID is never used twice.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Fid {
    /// Sequence: allocated in ranges to servers, and one at a time to clients.
    pub seq: u64,
    /// Object id inside the sequence, from 1.
    pub oid: u32,
    /// Version; 0 in all FIDs that are used.
    pub ver: u32,
}

/// Size of an encoded FID in bytes.
pub const FID_BYTES: usize = 16;
/// First sequence of ordinary metadata FIDs (Lustre: `FID_SEQ_NORMAL`).
pub const SEQ_NORMAL: u64 = 0x2_0000_0400;
/// Sequences per MDT before the next MDT's range starts (2^30, Lustre's super-sequence width).
pub const SEQ_PER_TARGET: u64 = 1 << 30;
/// Object ids that a client may use in one sequence (Lustre: 128 Ki).
pub const OIDS_PER_SEQUENCE: u32 = 0x20000;
/// First sequence of OST objects that MDT0 allocates (Lustre: IDIF, the OST index in bits 16..32).
pub const SEQ_IDIF: u64 = 0x1_0000_0000;

impl Fid {
    /// The root directory of every file system (Lustre: `[0x200000007:0x1:0x0]`).
    pub const ROOT: Fid = Fid::new(0x2_0000_0007, 1, 0);
    /// The null FID. Never stored as a name's target.
    pub const ZERO: Fid = Fid::new(0, 0, 0);

    /// Creates a FID from its three parts.
    pub const fn new(seq: u64, oid: u32, ver: u32) -> Fid {
        Fid { seq, oid, ver }
    }

    /// Returns the FID of object `oid` that MDT0 allocates on OST `ost_index`.
    pub const fn ost_object(ost_index: u16, oid: u32) -> Fid {
        Fid::new(SEQ_IDIF | ((ost_index as u64) << 16), oid, 0)
    }

    /// True for the null FID.
    pub const fn is_zero(&self) -> bool {
        self.seq == 0 && self.oid == 0 && self.ver == 0
    }

    /// True if the sequence belongs to OST objects of MDT0 (IDIF).
    pub const fn is_idif(&self) -> bool {
        self.seq >= SEQ_IDIF && self.seq < SEQ_IDIF + (1 << 32)
    }

    /// Returns the index of the MDT whose range contains this FID's sequence; reserved sequences (the root)
    /// belong to MDT0.
    pub const fn mdt_index(&self) -> u16 {
        if self.seq < SEQ_NORMAL {
            return 0;
        }
        let index = (self.seq - SEQ_NORMAL) / SEQ_PER_TARGET;
        if index > u16::MAX as u64 { u16::MAX } else { index as u16 }
    }

    /// Returns the first client sequence of MDT `mdt_index`.
    pub const fn first_sequence_of_mdt(mdt_index: u16) -> u64 {
        SEQ_NORMAL + mdt_index as u64 * SEQ_PER_TARGET
    }

    /// Returns the directory of an MDT for inodes without names, `.lustre/lost+found/MDTxxxx`: in a sequence that the
    /// MDT assigns neither to clients nor to objects.
    pub const fn lost_and_found(mdt_index: u16) -> Fid {
        let first = Fid::first_sequence_of_mdt(mdt_index);
        Fid::new(if mdt_index == 0 { first } else { first + 0xffff }, 1, 0)
    }

    /// Returns big-endian bytes, so that byte order is FID order in sorted stores.
    pub fn to_key(&self) -> [u8; FID_BYTES] {
        let mut key = [0u8; FID_BYTES];
        key[..8].copy_from_slice(&self.seq.to_be_bytes());
        key[8..12].copy_from_slice(&self.oid.to_be_bytes());
        key[12..].copy_from_slice(&self.ver.to_be_bytes());
        key
    }

    /// Reads the bytes of [`Fid::to_key`].
    pub fn from_key(key: &[u8; FID_BYTES]) -> Fid {
        let [a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p] = *key;
        Fid::new(
            u64::from_be_bytes([a, b, c, d, e, f, g, h]),
            u32::from_be_bytes([i, j, k, l]),
            u32::from_be_bytes([m, n, o, p]),
        )
    }

    /// Returns little-endian bytes as in Lustre's `lu_fid` (wire, disk and user interface).
    pub fn to_le_bytes(&self) -> [u8; FID_BYTES] {
        let mut bytes = [0u8; FID_BYTES];
        bytes[..8].copy_from_slice(&self.seq.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.oid.to_le_bytes());
        bytes[12..].copy_from_slice(&self.ver.to_le_bytes());
        bytes
    }

    /// Reads the bytes of [`Fid::to_le_bytes`].
    pub fn from_le_bytes(bytes: &[u8; FID_BYTES]) -> Fid {
        let [a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p] = *bytes;
        Fid::new(
            u64::from_le_bytes([a, b, c, d, e, f, g, h]),
            u32::from_le_bytes([i, j, k, l]),
            u32::from_le_bytes([m, n, o, p]),
        )
    }

    /// Returns the inode number shown to programs: the sequence and the object id folded into 64 bits.
    ///
    /// Distinct for the first 2^40 sequences; the root is 1 as on other file systems.
    pub const fn inode_number(&self) -> u64 {
        if self.seq == Fid::ROOT.seq && self.oid == Fid::ROOT.oid {
            return 1;
        }
        // 24 bits are enough for a client's object ids (17 bits); the rest is for the sequence.
        (self.seq << 24) ^ (self.seq >> 40) ^ (self.oid as u64)
    }
}

impl fmt::Display for Fid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "[{:#x}:{:#x}:{:#x}]", self.seq, self.oid, self.ver)
    }
}

impl fmt::Debug for Fid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The text is not a FID.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("'{text}' is not a FID: write it as [0xSEQ:0xOID:0xVER]")]
pub struct ParseFidError {
    text: String,
}

impl FromStr for Fid {
    type Err = ParseFidError;

    /// Accepts `[0xSEQ:0xOID:0xVER]` with or without brackets, hexadecimal or decimal parts.
    fn from_str(text: &str) -> Result<Fid, ParseFidError> {
        let fail = || ParseFidError { text: text.to_owned() };
        let inner = text.strip_prefix('[').and_then(|t| t.strip_suffix(']')).unwrap_or(text);
        let number = |part: &str| match part.strip_prefix("0x") {
            Some(hex) => u64::from_str_radix(hex, 16).ok(),
            None => part.parse().ok(),
        };
        let mut parts = inner.split(':').map(number);
        let (Some(Some(seq)), Some(Some(oid)), Some(Some(ver)), None) =
            (parts.next(), parts.next(), parts.next(), parts.next())
        else {
            return Err(fail());
        };
        Ok(Fid::new(seq, u32::try_from(oid).map_err(|_| fail())?, u32::try_from(ver).map_err(|_| fail())?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prints_and_parses_as_lustre_does() {
        let fid = Fid::new(0x200000403, 0x11f, 0);
        assert_eq!(fid.to_string(), "[0x200000403:0x11f:0x0]");
        assert_eq!("[0x200000403:0x11f:0x0]".parse(), Ok(fid));
        assert_eq!("0x200000403:0x11f:0x0".parse(), Ok(fid));
        for bad in ["", "[0x1:0x2]", "[0x1:0x2:0x3:0x4]", "[0x1:0x1ffffffff:0x0]", "[x:y:z]"] {
            assert!(bad.parse::<Fid>().is_err(), "{bad}");
        }
    }

    #[test]
    fn ost_objects_carry_the_ost_index_in_the_sequence() {
        assert_eq!(Fid::ost_object(1, 2).to_string(), "[0x100010000:0x2:0x0]");
        assert!(Fid::ost_object(0xffdf, 9).is_idif());
        assert!(!Fid::ROOT.is_idif());
    }

    #[test]
    fn keys_sort_like_fids_and_round_trip() {
        let fids = [Fid::new(1, 2, 3), Fid::new(1, 3, 0), Fid::new(2, 0, 0), Fid::ROOT];
        for pair in fids.windows(2) {
            assert!(pair[0].to_key() < pair[1].to_key());
        }
        for fid in fids {
            assert_eq!(Fid::from_key(&fid.to_key()), fid);
            assert_eq!(Fid::from_le_bytes(&fid.to_le_bytes()), fid);
        }
    }

    #[test]
    fn the_sequence_tells_the_mdt() {
        assert_eq!(Fid::ROOT.mdt_index(), 0);
        for index in [0u16, 1, 7, 300] {
            let seq = Fid::first_sequence_of_mdt(index);
            assert_eq!(Fid::new(seq, 1, 0).mdt_index(), index);
            assert_eq!(Fid::new(seq + SEQ_PER_TARGET - 1, 1, 0).mdt_index(), index);
        }
    }
}
