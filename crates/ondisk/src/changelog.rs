//! The changelog of an MDT: its records, its users, and its head.

use crate::codec::{DecodeError, Reader};
use nacre_types::changelog::is_change_user_name;
use nacre_types::job::JOB_ID_MAX;
use nacre_types::limits::{NAME_MAX, XATTR_NAME_MAX};
use nacre_types::{ChangeKind, ChangeMask, Fid, JobId, Nid, Timestamp};
use std::net::{IpAddr, SocketAddr};

/// Format version of [`ChangeRecord`].
pub const CHANGE_VERSION: u8 = 1;
/// Format version of [`ChangeUserRecord`].
pub const CHANGE_USER_VERSION: u8 = 1;
/// Format version of [`ChangesHeadRecord`].
pub const CHANGES_HEAD_VERSION: u8 = 1;
/// Longest encoded record in bytes: two names, the name of an attribute, a job.
pub const CHANGE_LEN_MAX: usize =
    40 + (17 + NAME_MAX) + (33 + NAME_MAX) + (28 + JOB_ID_MAX) + 1 + (1 + XATTR_NAME_MAX);

/// Offset of the time in an encoded record.
const TIME_AT: usize = 8;
/// Offset of the bytes before it.
const BEFORE_AT: usize = 16;

const HAS_NAME: u8 = 1;
const HAS_SOURCE: u8 = 2;
const HAS_ORIGIN: u8 = 4;
const HAS_OPEN: u8 = 8;
const HAS_XATTR: u8 = 16;

/// A name of an inode in a record.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ChangedName<'a> {
    /// Directory of the name.
    pub parent: Fid,
    /// Bytes of the name.
    pub name: &'a [u8],
}

/// Where a moved name or inode was before.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ChangeSource<'a> {
    /// The moved inode; for a migration, its FID before.
    pub fid: Fid,
    /// Its name before.
    pub at: ChangedName<'a>,
}

/// The program that made a change.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ChangeOrigin {
    /// User.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Address of its client.
    pub nid: Nid,
    /// Its job, if its client names jobs.
    pub job: Option<JobId>,
}

/// A change, as the changelog records it. Key: its index.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ChangeRecord<'a> {
    /// Type of the change.
    pub kind: ChangeKind,
    /// Flags that depend on the type, the lower 12 bits of Lustre's `cr_flags`.
    pub flags: u16,
    /// Time of the commit; not before that of any record with a smaller index.
    pub time: Timestamp,
    /// Bytes of all records of this changelog before it, purged ones included.
    pub before: u64,
    /// The changed inode; for a rename, the one that lost its name to it, or zero.
    pub target: Fid,
    /// The name that was created or removed.
    pub at: Option<ChangedName<'a>>,
    /// Where it was before.
    pub source: Option<ChangeSource<'a>>,
    /// The program; `None` for changes of the server itself.
    pub origin: Option<ChangeOrigin>,
    /// Access mode of an open: bits 1 read, 2 write, 4 execute.
    pub open: Option<u8>,
    /// Name of the extended attribute.
    pub xattr: Option<&'a [u8]>,
}

impl<'a> ChangeRecord<'a> {
    /// Creates a record without optional parts.
    pub fn new(kind: ChangeKind, target: Fid) -> ChangeRecord<'a> {
        ChangeRecord {
            kind,
            target,
            flags: 0,
            time: Timestamp::default(),
            before: 0,
            at: None,
            source: None,
            origin: None,
            open: None,
            xattr: None,
        }
    }

    /// Appends the encoded record to `out`. Names are cut at their maximum, which requests cannot exceed.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let part = |is_there: bool, bit: u8| if is_there { bit } else { 0 };
        let parts = part(self.at.is_some(), HAS_NAME)
            | part(self.source.is_some(), HAS_SOURCE)
            | part(self.origin.is_some(), HAS_ORIGIN)
            | part(self.open.is_some(), HAS_OPEN)
            | part(self.xattr.is_some(), HAS_XATTR);
        out.extend_from_slice(&[CHANGE_VERSION, self.kind as u8, parts, 0]);
        out.extend_from_slice(&self.flags.to_le_bytes());
        out.extend_from_slice(&[0, 0]);
        out.extend_from_slice(&packed(self.time).to_le_bytes());
        out.extend_from_slice(&self.before.to_le_bytes());
        out.extend_from_slice(&self.target.to_le_bytes());
        if let Some(at) = &self.at {
            put_name(out, at);
        }
        if let Some(source) = &self.source {
            out.extend_from_slice(&source.fid.to_le_bytes());
            put_name(out, &source.at);
        }
        if let Some(origin) = &self.origin {
            out.extend_from_slice(&origin.uid.to_le_bytes());
            out.extend_from_slice(&origin.gid.to_le_bytes());
            put_nid(out, &origin.nid);
            put_short(out, origin.job.as_ref().map_or(&[], JobId::as_bytes));
        }
        out.extend(self.open);
        if let Some(xattr) = self.xattr {
            put_short(out, xattr);
        }
    }

    /// Sets the time and the bytes before it in an encoded record.
    pub fn stamp(bytes: &mut [u8], time: Timestamp, before: u64) {
        if let Some(place) = bytes.get_mut(TIME_AT..BEFORE_AT + 8) {
            place[..8].copy_from_slice(&packed(time).to_le_bytes());
            place[8..].copy_from_slice(&before.to_le_bytes());
        }
    }

    /// Reads a record.
    ///
    /// # Errors
    /// If the bytes are not a record of this version.
    pub fn decode(bytes: &'a [u8]) -> Result<ChangeRecord<'a>, DecodeError> {
        let mut reader = Reader::new(bytes, CHANGE_VERSION)?;
        let kind = ChangeKind::from_number(reader.u8()?).ok_or(DecodeError::Field("type"))?;
        let parts = reader.u8()?;
        if parts & !(HAS_NAME | HAS_SOURCE | HAS_ORIGIN | HAS_OPEN | HAS_XATTR) != 0 {
            return Err(DecodeError::Field("parts"));
        }
        reader.reserved::<1>()?;
        let flags = reader.u16()?;
        reader.reserved::<2>()?;
        let time = unpacked(reader.u64()?)?;
        let before = reader.u64()?;
        let target = reader.fid()?;
        let at = (parts & HAS_NAME != 0).then(|| name(&mut reader)).transpose()?;
        let source = (parts & HAS_SOURCE != 0)
            .then(|| Ok(ChangeSource { fid: reader.fid()?, at: name(&mut reader)? }))
            .transpose()?;
        let origin = (parts & HAS_ORIGIN != 0).then(|| origin(&mut reader)).transpose()?;
        let open = (parts & HAS_OPEN != 0).then(|| reader.u8()).transpose()?;
        let xattr = (parts & HAS_XATTR != 0).then(|| short(&mut reader)).transpose()?;
        reader.end()?;
        Ok(ChangeRecord { kind, flags, time, before, target, at, source, origin, open, xattr })
    }
}

/// Packs a time as Lustre's records have it: seconds in the upper 34 bits, nanoseconds below. Earlier times than
/// 1970 become 1970.
fn packed(time: Timestamp) -> u64 {
    u64::try_from(time.sec).unwrap_or(0) << 30 | u64::from(time.nsec)
}

fn unpacked(time: u64) -> Result<Timestamp, DecodeError> {
    let nsec = (time & ((1 << 30) - 1)) as u32;
    if nsec > 999_999_999 {
        return Err(DecodeError::Field("nanoseconds"));
    }
    Ok(Timestamp::new((time >> 30) as i64, nsec))
}

fn put_short(out: &mut Vec<u8>, bytes: &[u8]) {
    let bytes = &bytes[..bytes.len().min(255)];
    out.push(bytes.len() as u8);
    out.extend_from_slice(bytes);
}

fn put_name(out: &mut Vec<u8>, at: &ChangedName<'_>) {
    out.extend_from_slice(&at.parent.to_le_bytes());
    put_short(out, at.name);
}

fn put_nid(out: &mut Vec<u8>, nid: &Nid) {
    match nid {
        Nid::Lo => out.push(0),
        Nid::Tcp(address) => {
            match address.ip() {
                IpAddr::V4(ip) => {
                    out.push(4);
                    out.extend_from_slice(&ip.octets());
                }
                IpAddr::V6(ip) => {
                    out.push(6);
                    out.extend_from_slice(&ip.octets());
                }
            }
            out.extend_from_slice(&address.port().to_le_bytes());
        }
    }
}

fn short<'a>(reader: &mut Reader<'a>) -> Result<&'a [u8], DecodeError> {
    let len = reader.u8()?;
    reader.bytes(usize::from(len))
}

fn name<'a>(reader: &mut Reader<'a>) -> Result<ChangedName<'a>, DecodeError> {
    Ok(ChangedName { parent: reader.fid()?, name: short(reader)? })
}

fn origin(reader: &mut Reader<'_>) -> Result<ChangeOrigin, DecodeError> {
    let (uid, gid) = (reader.u32()?, reader.u32()?);
    let ip = match reader.u8()? {
        0 => None,
        4 => Some(IpAddr::from(reader.array::<4>()?)),
        6 => Some(IpAddr::from(reader.array::<16>()?)),
        _ => return Err(DecodeError::Field("kind of address")),
    };
    let nid = match ip {
        None => Nid::Lo,
        Some(ip) => Nid::Tcp(SocketAddr::new(ip, reader.u16()?)),
    };
    let text = short(reader)?;
    let job = JobId::new(text);
    if job.as_ref().map_or(&[][..], JobId::as_bytes) != text {
        return Err(DecodeError::Field("job"));
    }
    Ok(ChangeOrigin { uid, gid, nid, job })
}

/// A user of the changelog. Key: its number (u32).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ChangeUserRecord {
    /// Name; may be empty.
    pub name: String,
    /// Types that the user wants; empty for those of the MDT.
    pub mask: ChangeMask,
    /// Index up to which it needs no records.
    pub cleared: u64,
    /// Time of its registration or last clear, in seconds since 1970.
    pub active_s: u64,
}

impl ChangeUserRecord {
    /// Encodes the record.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = vec![CHANGE_USER_VERSION, 0, 0, 0];
        out.extend_from_slice(&self.mask.bits().to_le_bytes());
        out.extend_from_slice(&self.cleared.to_le_bytes());
        out.extend_from_slice(&self.active_s.to_le_bytes());
        out.extend_from_slice(self.name.as_bytes());
        out
    }

    /// Reads a record.
    ///
    /// # Errors
    /// If the bytes are not a record of this version.
    pub fn decode(bytes: &[u8]) -> Result<ChangeUserRecord, DecodeError> {
        let mut reader = Reader::new(bytes, CHANGE_USER_VERSION)?;
        reader.reserved::<3>()?;
        let bits = reader.u32()?;
        let mask = ChangeMask::from_bits(bits);
        if mask.bits() != bits {
            return Err(DecodeError::Field("mask"));
        }
        let (cleared, active_s) = (reader.u64()?, reader.u64()?);
        let name = std::str::from_utf8(reader.remainder()).map_err(|_| DecodeError::Field("name"))?;
        if !name.is_empty() && !is_change_user_name(name) {
            return Err(DecodeError::Field("name"));
        }
        Ok(ChangeUserRecord { name: name.to_owned(), mask, cleared, active_s })
    }
}

/// Head of the changelog.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ChangesHeadRecord {
    /// Largest number that a user has had.
    pub last_user: u32,
    /// Smallest index that is not purged.
    pub first: u64,
    /// Index that no record has reached.
    pub limit: u64,
}

impl ChangesHeadRecord {
    /// Bytes of the encoded record.
    pub const LEN: usize = 24;

    /// Encodes the record.
    pub fn encode(&self) -> [u8; ChangesHeadRecord::LEN] {
        let mut out = [0; ChangesHeadRecord::LEN];
        out[0] = CHANGES_HEAD_VERSION;
        out[4..8].copy_from_slice(&self.last_user.to_le_bytes());
        out[8..16].copy_from_slice(&self.first.to_le_bytes());
        out[16..].copy_from_slice(&self.limit.to_le_bytes());
        out
    }

    /// Reads a record.
    ///
    /// # Errors
    /// If the bytes are not a record of this version.
    pub fn decode(bytes: &[u8]) -> Result<ChangesHeadRecord, DecodeError> {
        let mut reader = Reader::new(bytes, CHANGES_HEAD_VERSION)?;
        reader.reserved::<3>()?;
        let record =
            ChangesHeadRecord { last_user: reader.u32()?, first: reader.u64()?, limit: reader.u64()? };
        reader.end()?;
        if record.first == 0 || record.first > record.limit {
            return Err(DecodeError::Field("first index"));
        }
        Ok(record)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rename() -> ChangeRecord<'static> {
        let name = |oid, name| ChangedName { parent: Fid::new(2, oid, 0), name };
        ChangeRecord {
            flags: 1,
            time: Timestamp::new(3, 5),
            before: 0x0102,
            at: Some(name(1, b"new")),
            source: Some(ChangeSource { fid: Fid::new(7, 8, 0), at: name(2, b"old") }),
            origin: Some(ChangeOrigin {
                uid: 1000,
                gid: 100,
                nid: "10.0.0.1:7988@tcp".parse().expect("a NID"),
                job: JobId::new(b"dd.0"),
            }),
            ..ChangeRecord::new(ChangeKind::Rename, Fid::new(9, 10, 0))
        }
    }

    fn encoded(record: &ChangeRecord<'_>) -> Vec<u8> {
        let mut out = Vec::new();
        record.encode(&mut out);
        out
    }

    #[test]
    fn bytes_are_those_of_the_format() {
        let fid = |seq: u8, oid: u8| [seq, 0, 0, 0, 0, 0, 0, 0, oid, 0, 0, 0, 0, 0, 0, 0];
        let bytes = [
            &[1, 8, 7, 0, 1, 0, 0, 0, 5, 0, 0, 0xc0, 0, 0, 0, 0, 2, 1, 0, 0, 0, 0, 0, 0][..],
            &fid(9, 10),
            &fid(2, 1),
            b"\x03new",
            &fid(7, 8),
            &fid(2, 2),
            b"\x03old",
            &[0xe8, 3, 0, 0, 100, 0, 0, 0, 4, 10, 0, 0, 1, 0x34, 0x1f],
            b"\x04dd.0",
        ]
        .concat();
        assert_eq!(
            encoded(&rename()),
            bytes,
            "the format of changelog records has changed: bump its version"
        );
        assert_eq!(ChangeRecord::decode(&bytes), Ok(rename()));
        let mut stamped = bytes;
        ChangeRecord::stamp(&mut stamped, Timestamp::new(4, 6), 7);
        assert_eq!(
            ChangeRecord::decode(&stamped),
            Ok(ChangeRecord { time: Timestamp::new(4, 6), before: 7, ..rename() })
        );
        let plain = ChangeRecord {
            open: Some(3),
            xattr: Some(b"user.a"),
            ..ChangeRecord::new(ChangeKind::SetXattr, Fid::new(9, 10, 0))
        };
        let bytes = encoded(&plain);
        assert_eq!(&bytes[..3], [1, 15, 24]);
        assert_eq!(&bytes[40..], b"\x03\x06user.a");
        assert_eq!(ChangeRecord::decode(&bytes), Ok(plain));
    }

    #[test]
    fn users_and_head_have_the_bytes_of_the_format() {
        let mask = ChangeMask::LEAST.with(ChangeKind::Unlink);
        let user = ChangeUserRecord { name: "audit".to_owned(), mask, cleared: 5, active_s: 6 };
        let bytes = b"\x01\0\0\0\x41\0\0\0\x05\0\0\0\0\0\0\0\x06\0\0\0\0\0\0\0audit";
        assert_eq!(user.encode(), bytes);
        assert_eq!(ChangeUserRecord::decode(bytes), Ok(user));
        let head = ChangesHeadRecord { last_user: 2, first: 3, limit: 4 };
        let bytes = [1, 0, 0, 0, 2, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0, 4, 0, 0, 0, 0, 0, 0, 0];
        assert_eq!(head.encode(), bytes);
        assert_eq!(ChangesHeadRecord::decode(&bytes), Ok(head));
        assert!(ChangesHeadRecord::decode(&ChangesHeadRecord { first: 5, ..head }.encode()).is_err());
    }

    #[test]
    fn the_longest_record_is_as_long_as_said() {
        let long = [b'x'; 255];
        let at = ChangedName { parent: Fid::ROOT, name: &long };
        let record = ChangeRecord {
            at: Some(at),
            source: Some(ChangeSource { fid: Fid::ROOT, at }),
            origin: Some(ChangeOrigin {
                uid: 0,
                gid: 0,
                nid: "[2001:db8::1]:1@tcp".parse().expect("a NID"),
                job: JobId::new(&long),
            }),
            open: Some(7),
            xattr: Some(&long),
            ..rename()
        };
        assert_eq!(encoded(&record).len(), CHANGE_LEN_MAX);
    }
}
