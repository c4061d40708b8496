//! Frames: the header in front of every message on a connection. Byte table: `docs/protocol/frames.md`.
//!
//! A frame is a header of [`HEADER_BYTES`], a body, and bulk data (file contents), each with its own CRC-32C.

mod checksum;

use crate::codec::{Decode, DecodeError, Reader, wire_code};
pub use checksum::{Checksum, ChecksumType, crc32c};

use bitflags::bitflags;
use nacre_types::limits::{BULK_MAX, DATA_INDEX_MAX};
use nacre_types::{JobId, Status, TargetId, TargetKind, Xid};

/// Bytes of a header.
pub const HEADER_BYTES: usize = 64;
/// First bytes of every frame: "NCRE" read as a little-endian number.
pub const MAGIC: u32 = u32::from_le_bytes(*b"NCRE");
/// Version of the header's form.
pub const HEADER_VERSION: u16 = 1;
/// Largest body in bytes. The largest message is a configuration of every possible target with long NID
/// lists.
pub const BODY_MAX: usize = 16 << 20;
/// Tag of requests that need no reply slot.
pub const TAG_NONE: u16 = u16::MAX;
/// Offset of the body's length in a header, for receivers that size their buffers before they decode.
pub const BODY_LEN_OFFSET: usize = 20;
/// Offset of the bulk data's length in a header.
pub const BULK_LEN_OFFSET: usize = 28;
/// Bytes of a job id at the end of a body: the name, then zeros.
pub const JOB_ID_BYTES: usize = 32;
/// Offset of the header's checksum.
const CRC_OFFSET: usize = 16;

/// Type of a frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum FrameKind {
    /// First frame of a client, body [`crate::connect::Connect`].
    Connect = 1,
    /// Answer to a connect, body [`crate::connect::Connected`], or with a status [`crate::connect::Refusal`]
    /// or nothing.
    Connected = 2,
    /// A request of a client.
    Request = 3,
    /// The answer to the request with the same xid.
    Reply = 4,
    /// From the server on a control connection: the lease has changed, body [`crate::mds::LeaseGrant`].
    Callback = 5,
    /// Asks whether the peer is alive. From the client.
    Ping = 6,
    /// Answer to a ping.
    Pong = 7,
    /// From the client: no caller waits for the reply to the request with this xid; end its waiting. It is
    /// still answered.
    Cancel = 8,
    /// From the client: it disconnects; release what it holds. Answered by a reply.
    Disconnect = 9,
}

wire_code!(FrameKind {
    1 = Connect,
    2 = Connected,
    3 = Request,
    4 = Reply,
    5 = Callback,
    6 = Ping,
    7 = Pong,
    8 = Cancel,
    9 = Disconnect,
});

bitflags! {
    /// Properties of a frame.
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
    pub struct FrameFlags: u16 {
        /// The request may have arrived before: look for a stored reply.
        const RESENT = 1;
        /// The bulk data carries a CRC-32C; in a read request: the reply's data has to.
        const BULK_CRC = 2;
        /// In a reply: the bulk data of the request was damaged in transit and nothing was done; resend it.
        const BULK_DAMAGED = 4;
        /// The bulk data carries an Adler-32; in a read request: the reply's data has to. Not with
        /// `BULK_CRC`.
        const BULK_ADLER = 8;
        /// In a request: its data, or that of its reply, is short enough to be received together with the
        /// header (short I/O).
        const SHORT_IO = 16;
        /// In a request: its body ends with its job id ([`JOB_ID_BYTES`]).
        const JOB_ID = 32;
    }
}

/// The fields of a header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Header {
    /// Type of the frame.
    pub kind: FrameKind,
    /// Target that the connection serves.
    pub target: TargetId,
    /// Reply slot of a modifying request, or [`TAG_NONE`].
    pub tag: u16,
    /// Result in replies; `OK` in requests.
    pub status: Status,
    /// Properties of the frame.
    pub flags: FrameFlags,
    /// Length of the body in bytes.
    pub body_len: u32,
    /// CRC-32C of the body.
    pub body_crc: u32,
    /// Length of the bulk data after the body in bytes.
    pub bulk_len: u32,
    /// Checksum of the bulk data, if the flags name one ([`Header::checksum`]).
    pub bulk_crc: u32,
    /// Request id, unique per client and target; replies carry that of their request. In a pong: the last transaction
    /// that an MDT has made durable, 0 if it is not reported.
    pub xid: Xid,
    /// In requests: all requests of this client to this target below this xid have their reply or need none. In a
    /// pong: the server's clock in microseconds since 1970, 0 if it does not report it.
    pub acked: Xid,
}

impl Header {
    /// Creates a header without body, bulk data, tag and flags.
    pub fn new(kind: FrameKind, target: TargetId, xid: Xid) -> Header {
        Header {
            kind,
            target,
            tag: TAG_NONE,
            status: Status::OK,
            flags: FrameFlags::empty(),
            body_len: 0,
            body_crc: 0,
            bulk_len: 0,
            bulk_crc: 0,
            xid,
            acked: Xid(0),
        }
    }

    /// Sets length and checksum of the body.
    ///
    /// # Errors
    /// `E2BIG` beyond [`BODY_MAX`].
    pub fn set_body(&mut self, body: &[u8]) -> Result<(), Status> {
        if body.len() > BODY_MAX {
            return Err(Status::E2BIG);
        }
        self.body_len = body.len() as u32;
        self.body_crc = crc32c(body);
        Ok(())
    }

    /// Sets length and, optionally, checksum of the bulk data.
    ///
    /// # Errors
    /// `E2BIG` beyond [`BULK_MAX`].
    pub fn set_bulk(&mut self, bulk: &[u8], checksum: Option<ChecksumType>) -> Result<(), Status> {
        if bulk.len() > BULK_MAX {
            return Err(Status::E2BIG);
        }
        self.bulk_len = bulk.len() as u32;
        self.set_checksum(checksum);
        self.bulk_crc = match checksum {
            Some(kind) if !bulk.is_empty() => {
                let mut sum = Checksum::new(kind);
                sum.update(bulk);
                sum.finish()
            }
            _ => 0,
        };
        Ok(())
    }

    /// Sets the checksum that the bulk data, or the reply's, carries.
    pub fn set_checksum(&mut self, checksum: Option<ChecksumType>) {
        self.flags.set(FrameFlags::BULK_CRC, checksum == Some(ChecksumType::Crc32c));
        self.flags.set(FrameFlags::BULK_ADLER, checksum == Some(ChecksumType::Adler));
    }

    /// Returns the checksum that the flags name.
    pub fn checksum(&self) -> Option<ChecksumType> {
        if self.flags.contains(FrameFlags::BULK_CRC) {
            Some(ChecksumType::Crc32c)
        } else if self.flags.contains(FrameFlags::BULK_ADLER) {
            Some(ChecksumType::Adler)
        } else {
            None
        }
    }

    /// Returns the header's bytes.
    pub fn to_bytes(&self) -> [u8; HEADER_BYTES] {
        let mut bytes = [0u8; HEADER_BYTES];
        let mut at = 0;
        let mut put = |field: &[u8]| {
            if let Some(place) = bytes.get_mut(at..at + field.len()) {
                place.copy_from_slice(field);
            }
            at += field.len();
        };
        put(&MAGIC.to_le_bytes());
        put(&HEADER_VERSION.to_le_bytes());
        put(&[self.kind as u8, target_kind_code(self.target.kind)]);
        put(&self.target.index.to_le_bytes());
        put(&self.tag.to_le_bytes());
        put(&self.status.0.to_le_bytes());
        put(&self.flags.bits().to_le_bytes());
        put(&[0; 4]);
        for number in [self.body_len, self.body_crc, self.bulk_len, self.bulk_crc] {
            put(&number.to_le_bytes());
        }
        put(&[0; 4]);
        put(&self.xid.0.to_le_bytes());
        put(&self.acked.0.to_le_bytes());
        put(&[0; 8]);
        let crc = crc32c(&bytes);
        if let Some(place) = bytes.get_mut(CRC_OFFSET..CRC_OFFSET + 4) {
            place.copy_from_slice(&crc.to_le_bytes());
        }
        bytes
    }

    /// Reads a header.
    ///
    /// # Errors
    /// [`FrameError`]; after any of them the stream cannot be trusted and has to be closed.
    pub fn from_bytes(bytes: &[u8; HEADER_BYTES]) -> Result<Header, FrameError> {
        let mut reader = Reader::new(bytes);
        let magic = u32::decode(&mut reader)?;
        if magic != MAGIC {
            return Err(FrameError::Magic { found: magic });
        }
        let version = u16::decode(&mut reader)?;
        if version != HEADER_VERSION {
            return Err(FrameError::Version { found: version });
        }
        let mut unsigned = *bytes;
        if let Some(place) = unsigned.get_mut(CRC_OFFSET..CRC_OFFSET + 4) {
            place.fill(0);
        }
        let expected = crc32c(&unsigned);
        let kind = FrameKind::decode(&mut reader);
        let target_kind = TargetKind::decode(&mut reader);
        let index = u16::decode(&mut reader)?;
        let tag = u16::decode(&mut reader)?;
        let status = Status(u16::decode(&mut reader)?);
        let flags = u16::decode(&mut reader)?;
        let found = u32::decode(&mut reader)?;
        if found != expected {
            return Err(FrameError::HeaderChecksum { expected, found });
        }
        let header = Header {
            kind: kind?,
            target: TargetId { kind: target_kind?, index },
            tag,
            status,
            flags: FrameFlags::from_bits(flags)
                .ok_or(DecodeError::Unknown { what: "frame flags", value: u64::from(flags) })?,
            body_len: Decode::decode(&mut reader)?,
            body_crc: Decode::decode(&mut reader)?,
            bulk_len: Decode::decode(&mut reader)?,
            bulk_crc: Decode::decode(&mut reader)?,
            xid: {
                reader.reserved::<4>("header")?;
                Decode::decode(&mut reader)?
            },
            acked: Decode::decode(&mut reader)?,
        };
        reader.reserved::<8>("header")?;
        header.check_limits()?;
        Ok(header)
    }

    fn check_limits(&self) -> Result<(), DecodeError> {
        let too_long =
            |what, len: u32, max: usize| DecodeError::TooLong { what, len: len.into(), max: max as u64 };
        if self.target.index == DATA_INDEX_MAX {
            return Err(DecodeError::Invalid { what: "target index" });
        }
        if self.flags.contains(FrameFlags::BULK_CRC | FrameFlags::BULK_ADLER) {
            return Err(DecodeError::Invalid { what: "frame flags: two checksums" });
        }
        if self.body_len as usize > BODY_MAX {
            return Err(too_long("body", self.body_len, BODY_MAX));
        }
        if self.bulk_len as usize > BULK_MAX {
            return Err(too_long("bulk data", self.bulk_len, BULK_MAX));
        }
        Ok(())
    }

    /// Checks the body that came with this header.
    ///
    /// # Errors
    /// [`FrameError::BodyChecksum`].
    pub fn check_body(&self, body: &[u8]) -> Result<(), FrameError> {
        let expected = self.body_crc;
        let found = crc32c(body);
        if found == expected { Ok(()) } else { Err(FrameError::BodyChecksum { expected, found }) }
    }

    /// True if the checksum of received bulk data matches, or none was sent.
    pub fn bulk_matches(&self, sum: u32) -> bool {
        self.checksum().is_none() || sum == self.bulk_crc
    }
}

/// Appends a job id to the body of a request, which then has [`FrameFlags::JOB_ID`].
pub fn push_job(job: &JobId, body: &mut Vec<u8>) {
    let mut bytes = [0; JOB_ID_BYTES];
    bytes.iter_mut().zip(job.as_bytes()).for_each(|(place, byte)| *place = *byte);
    body.extend_from_slice(&bytes);
}

/// Splits the body of a request with [`FrameFlags::JOB_ID`] into the request and the job at its end. Bytes
/// that a name cannot have are dropped; a job with an empty name is none.
///
/// # Errors
/// If the body is too short.
pub fn split_job(body: &[u8]) -> Result<(&[u8], Option<JobId>), DecodeError> {
    let at = body.len().checked_sub(JOB_ID_BYTES);
    let (body, job) =
        at.and_then(|at| body.split_at_checked(at)).ok_or(DecodeError::Invalid { what: "job id" })?;
    Ok((body, JobId::new(job)))
}

fn target_kind_code(kind: TargetKind) -> u8 {
    match kind {
        TargetKind::Mgt => 0,
        TargetKind::Mdt => 1,
        TargetKind::Ost => 2,
    }
}

/// Reason why a stream of frames cannot be read any further.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum FrameError {
    /// The peer does not speak this protocol.
    #[error("not a frame: it starts with {found:#010x} instead of {MAGIC:#010x}")]
    Magic {
        /// First four bytes of the frame.
        found: u32,
    },
    /// The header has another form.
    #[error("frame header version {found}, this program knows {HEADER_VERSION}")]
    Version {
        /// Version in the header.
        found: u16,
    },
    /// The header was damaged.
    #[error("frame header damaged: checksum {found:#010x}, expected {expected:#010x}")]
    HeaderChecksum {
        /// Checksum computed over the header.
        expected: u32,
        /// Checksum in the header.
        found: u32,
    },
    /// The body was damaged.
    #[error("message damaged: checksum {found:#010x}, expected {expected:#010x}")]
    BodyChecksum {
        /// Checksum in the header.
        expected: u32,
        /// Checksum computed over the body.
        found: u32,
    },
    /// A field has an invalid value.
    #[error("frame header: {0}")]
    Field(#[from] DecodeError),
}

#[cfg(test)]
mod tests;
