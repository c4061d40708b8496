//! The ioctl about quotas: `if_quotactl`.

use super::{OBD_UUID_LEN, put, u32_at, u64_at};
use crate::ioctl::{self, Payload};
use crate::limits::POOL_NAME_MAX;
use crate::quota::GRACE_MAX_S;

/// Reads and changes limits, use and grace times: [`QuotaCall`]. Commands on pools also read the name of the pool,
/// [`QUOTA_POOL_BYTES`] in the memory of the caller after the structure.
pub const QUOTACTL: u32 = 0xc0b0_66a2;
/// Bytes of `if_quotactl` without the name of a pool.
pub const QUOTA_BYTES: usize = 176;
/// Bytes of the name of a pool, which ends with NUL.
pub const QUOTA_POOL_BYTES: usize = 16;

/// Offsets of parts of the structure.
const GRACE: usize = 24;
const BLOCK: usize = 48;
const UUID: usize = 136;

/// Grace times in a [`QuotaCall`] (`obd_dqinfo`).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct QuotaTimes {
    /// For space, in seconds.
    pub space_s: u64,
    /// For inodes, in seconds.
    pub inodes_s: u64,
    /// Times that are set: the constants of this type. Without any, those that are not 0.
    pub valid: u32,
}

impl QuotaTimes {
    /// The time for space: programs use the flag of information or that of a quota.
    pub const SPACE: u32 = 1 | QuotaNumbers::SPACE_TIME;
    /// The time for inodes, likewise.
    pub const INODES: u32 = 2 | QuotaNumbers::INODES_TIME;
}

/// Limits and use in a [`QuotaCall`] (`obd_dqblk`).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct QuotaNumbers {
    /// Hard limit of space in KiB, 0 for none.
    pub space_hard_kib: u64,
    /// Soft limit of space in KiB, 0 for none.
    pub space_soft_kib: u64,
    /// Used space in bytes.
    pub space_used: u64,
    /// Hard limit of inodes, 0 for none.
    pub inodes_hard: u64,
    /// Soft limit of inodes, 0 for none.
    pub inodes_soft: u64,
    /// Used inodes.
    pub inodes_used: u64,
    /// End of the grace time for space in seconds since the epoch, 0 if it is not running; with
    /// [`QuotaNumbers::DEFAULT`].
    pub space_time: u64,
    /// The same for inodes.
    pub inodes_time: u64,
    /// Numbers that are valid: the constants of this type. Without [`QuotaNumbers::SPACE`] the use of space is
    /// incomplete, without [`QuotaNumbers::INODES`] that of inodes.
    pub valid: u32,
}

impl QuotaNumbers {
    /// Limits of space (`QIF_BLIMITS`).
    pub const SPACE_LIMITS: u32 = 1;
    /// Used space (`QIF_SPACE`).
    pub const SPACE: u32 = 2;
    /// Limits of inodes (`QIF_ILIMITS`).
    pub const INODES_LIMITS: u32 = 4;
    /// Used inodes (`QIF_INODES`).
    pub const INODES: u32 = 8;
    /// End of the grace time for space (`QIF_BTIME`).
    pub const SPACE_TIME: u32 = 16;
    /// End of the grace time for inodes (`QIF_ITIME`).
    pub const INODES_TIME: u32 = 32;
    /// Flag in the upper 16 bits of a time: the limits are the defaults.
    pub const DEFAULT: u64 = 1 << 48;
    /// Bits of a time without flags.
    pub const TIME_MASK: u64 = GRACE_MAX_S;

    fn write_to(&self, out: &mut [u8]) {
        let numbers = [
            self.space_hard_kib,
            self.space_soft_kib,
            self.space_used,
            self.inodes_hard,
            self.inodes_soft,
            self.inodes_used,
            self.space_time,
            self.inodes_time,
        ];
        for (place, number) in numbers.iter().enumerate() {
            put(out, BLOCK + 8 * place, &number.to_le_bytes());
        }
        put(out, BLOCK + 64, &self.valid.to_le_bytes());
    }

    fn from_call(bytes: &[u8]) -> Option<QuotaNumbers> {
        let number = |place: usize| u64_at(bytes, BLOCK + 8 * place);
        Some(QuotaNumbers {
            space_hard_kib: number(0)?,
            space_soft_kib: number(1)?,
            space_used: number(2)?,
            inodes_hard: number(3)?,
            inodes_soft: number(4)?,
            inodes_used: number(5)?,
            space_time: number(6)?,
            inodes_time: number(7)?,
            valid: u32_at(bytes, BLOCK + 64)?,
        })
    }
}

/// `if_quotactl`. As a native ioctl the same structure includes the name of the pool, so that the mount need not
/// read the memory of the caller.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct QuotaCall {
    /// Command: the constants of this type.
    pub command: u32,
    /// Kind of the id: the number of a [`crate::QuotaKind`].
    pub kind: u32,
    /// User, group or project id.
    pub id: u32,
    /// What is asked: [`QuotaCall::OF_ALL`] and the constants after it.
    pub place: u32,
    /// Index of the target, if one is asked.
    pub index: u32,
    /// Grace times.
    pub times: QuotaTimes,
    /// Limits and use.
    pub numbers: QuotaNumbers,
    /// UUID of the target, less than [`OBD_UUID_LEN`] bytes; in replies that of the target that was asked.
    pub uuid: Vec<u8>,
    /// Name of the pool, less than [`QUOTA_POOL_BYTES`] bytes.
    pub pool: Vec<u8>,
}

impl QuotaCall {
    /// Returns the grace times.
    pub const GET_INFO: u32 = 0x80_0005;
    /// Sets the grace times.
    pub const SET_INFO: u32 = 0x80_0006;
    /// Returns limits and use.
    pub const GET_QUOTA: u32 = 0x80_0007;
    /// Sets limits.
    pub const SET_QUOTA: u32 = 0x80_0008;
    /// Returns the limits of ids without their own.
    pub const GET_DEFAULT: u32 = 0x80_000d;
    /// With id 0 and limits, sets the limits of ids without their own; else makes these apply to the id.
    pub const SET_DEFAULT: u32 = 0x80_000e;
    /// [`QuotaCall::GET_QUOTA`] in a pool.
    pub const GET_QUOTA_POOL: u32 = 0x80_000f;
    /// [`QuotaCall::SET_QUOTA`] in a pool.
    pub const SET_QUOTA_POOL: u32 = 0x80_0010;
    /// [`QuotaCall::GET_INFO`] of a pool.
    pub const GET_INFO_POOL: u32 = 0x80_0011;
    /// [`QuotaCall::SET_INFO`] of a pool.
    pub const SET_INFO_POOL: u32 = 0x80_0012;
    /// [`QuotaCall::GET_DEFAULT`] in a pool.
    pub const GET_DEFAULT_POOL: u32 = 0x80_0013;
    /// [`QuotaCall::SET_DEFAULT`] in a pool.
    pub const SET_DEFAULT_POOL: u32 = 0x80_0014;
    /// Removes the limits and the record of an id.
    pub const DELETE: u32 = 0x80_0015;
    /// Distributes the limits of an id to the targets again.
    pub const RESET: u32 = 0x80_0016;
    /// Returns the grace times of one target.
    pub const GET_INFO_TARGET: u32 = 0x80_0102;
    /// Returns use and share of an id at one target.
    pub const GET_QUOTA_TARGET: u32 = 0x80_0103;
    /// Returns limits and use of the smallest id from the given one on that has either, with its number; in a pool if
    /// one is named. Not one of Lustre's commands, whose lists are written to buffers of the caller: a number that
    /// Lustre does not use.
    pub const NEXT: u32 = 0x80_4e01;

    /// The whole file system is asked.
    pub const OF_ALL: u32 = 0;
    /// The MDT with the index is asked.
    pub const OF_MDT: u32 = 1;
    /// The OST with the index is asked.
    pub const OF_OST: u32 = 2;
    /// The target with the UUID is asked.
    pub const OF_UUID: u32 = 3;

    /// Returns the bytes of `if_quotactl`, without the name of the pool.
    pub fn to_lustre(&self) -> [u8; QUOTA_BYTES] {
        let mut out = [0; QUOTA_BYTES];
        for (at, word) in [
            (0, self.command),
            (4, self.kind),
            (8, self.id),
            (16, self.place),
            (20, self.index),
            (GRACE + 20, self.times.valid),
        ] {
            put(&mut out, at, &word.to_le_bytes());
        }
        put(&mut out, GRACE, &self.times.space_s.to_le_bytes());
        put(&mut out, GRACE + 8, &self.times.inodes_s.to_le_bytes());
        self.numbers.write_to(&mut out);
        put(&mut out, UUID, &self.uuid[..self.uuid.len().min(OBD_UUID_LEN - 1)]);
        out
    }

    /// Reads `if_quotactl`, with an empty name of the pool; `None` if the bytes are too few.
    pub fn from_lustre(bytes: &[u8]) -> Option<QuotaCall> {
        Some(QuotaCall {
            command: u32_at(bytes, 0)?,
            kind: u32_at(bytes, 4)?,
            id: u32_at(bytes, 8)?,
            place: u32_at(bytes, 16)?,
            index: u32_at(bytes, 20)?,
            times: QuotaTimes {
                space_s: u64_at(bytes, GRACE)?,
                inodes_s: u64_at(bytes, GRACE + 8)?,
                valid: u32_at(bytes, GRACE + 20)?,
            },
            numbers: QuotaNumbers::from_call(bytes)?,
            uuid: text_in(bytes.get(UUID..QUOTA_BYTES)?, OBD_UUID_LEN - 1),
            pool: Vec::new(),
        })
    }

    /// Sets the pool from the bytes after the structure: the name ends with the first NUL.
    pub fn set_pool(&mut self, bytes: &[u8]) {
        self.pool = text_in(bytes, POOL_NAME_MAX);
    }

    /// Returns true for the commands that read the name of a pool after the structure.
    pub fn has_pool(&self) -> bool {
        (Self::GET_QUOTA_POOL..=Self::SET_DEFAULT_POOL).contains(&self.command)
    }
}

/// Returns the bytes before the first NUL, at most `length`.
fn text_in(bytes: &[u8], length: usize) -> Vec<u8> {
    bytes.iter().copied().take(length).take_while(|&byte| byte != 0).collect()
}

impl Payload for QuotaCall {
    const COMMAND: u32 = ioctl::number(ioctl::READ_WRITE, 38, Self::SIZE);
    const SIZE: usize = QUOTA_BYTES + QUOTA_POOL_BYTES;

    fn to_bytes(&self) -> Vec<u8> {
        let mut out = self.to_lustre().to_vec();
        out.extend_from_slice(&self.pool[..self.pool.len().min(POOL_NAME_MAX)]);
        out.resize(Self::SIZE, 0);
        out
    }

    fn from_bytes(bytes: &[u8]) -> Option<QuotaCall> {
        let pool = bytes.get(QUOTA_BYTES..Self::SIZE)?;
        let mut call = QuotaCall::from_lustre(bytes)?;
        call.set_pool(pool);
        Some(call)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call() -> QuotaCall {
        QuotaCall {
            command: QuotaCall::SET_QUOTA_POOL,
            kind: 2,
            id: 77,
            place: QuotaCall::OF_OST,
            index: 5,
            times: QuotaTimes { space_s: 0x11, inodes_s: 0x12, valid: 0x13 },
            numbers: QuotaNumbers {
                space_hard_kib: 0x21,
                space_soft_kib: 0x22,
                space_used: 0x23,
                inodes_hard: 0x24,
                inodes_soft: 0x25,
                inodes_used: 0x26,
                space_time: QuotaNumbers::DEFAULT | 0x27,
                inodes_time: u64::MAX,
                valid: 0x29,
            },
            uuid: b"nacre-OST0005_UUID".to_vec(),
            pool: b"flash".to_vec(),
        }
    }

    #[test]
    fn numbers_are_at_lustres_offsets() {
        let bytes = call().to_lustre();
        let words = [(0, 0x80_0010), (4, 2), (8, 77), (12, 0), (16, 2), (20, 5), (44, 0x13), (112, 0x29)];
        for (at, word) in words {
            assert_eq!(u32_at(&bytes, at), Some(word), "{at}");
        }
        let numbers = [(24, 0x11), (32, 0x12), (48, 0x21), (56, 0x22), (64, 0x23), (72, 0x24), (80, 0x25)];
        for (at, number) in numbers {
            assert_eq!(u64_at(&bytes, at), Some(number), "{at}");
        }
        assert_eq!((u64_at(&bytes, 88), u64_at(&bytes, 96)), (Some(0x26), Some(0x0001_0000_0000_0027)));
        assert_eq!(u64_at(&bytes, 104), Some(u64::MAX));
        assert_eq!(&bytes[120..136], &[0; 16], "the type of the target is not given");
        assert_eq!(&bytes[136..155], b"nacre-OST0005_UUID\0");
        assert_eq!((QUOTACTL >> 16) & 0x3fff, QUOTA_BYTES as u32);
    }

    #[test]
    fn calls_come_back_as_they_were() {
        let bytes = call().to_bytes();
        assert_eq!((bytes.len(), (QuotaCall::COMMAND >> 16) & 0x3fff), (192, 192));
        assert_eq!(QuotaCall::from_bytes(&bytes), Some(call()));
        assert_eq!(QuotaCall::from_lustre(&bytes), Some(QuotaCall { pool: Vec::new(), ..call() }));
        assert_eq!(QuotaCall::from_bytes(&bytes[..191]), None);
        assert_eq!(QuotaCall::from_lustre(&bytes[..175]), None);
        let long = QuotaCall { uuid: vec![b'u'; 50], pool: vec![b'p'; 50], ..call() };
        let read = QuotaCall::from_bytes(&long.to_bytes()).expect("cut");
        assert_eq!((read.uuid.len(), read.pool.len()), (39, 15));
    }

    proptest::proptest! {
        #[test]
        fn reading_never_panics(bytes in proptest::collection::vec(0u8..=255, 0..400)) {
            let read = QuotaCall::from_bytes(&bytes);
            assert_eq!(read.is_some(), bytes.len() >= QuotaCall::SIZE);
            assert_eq!(QuotaCall::from_lustre(&bytes).is_some(), bytes.len() >= QUOTA_BYTES);
            if let Some(read) = read {
                assert_eq!(QuotaCall::from_bytes(&read.to_bytes()), Some(read));
            }
        }
    }
}
