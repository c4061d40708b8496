//! State of clients that a server keeps over a restart (Lustre's `last_rcvd` and `reply_data`).

use crate::codec::{DecodeError, Reader};
use nacre_types::{Fid, OpenHandle, ProcessIdentity, Timestamp, Xid};

/// Format version of both records.
pub const SERVER_VERSION: u8 = 1;

/// A connected client. The key is its UUID; the record is removed when the client disconnects or is evicted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ClientRecord {
    /// Time of its first connect.
    pub connected: Timestamp,
    /// Boot count of the server at that time.
    pub boot_count: u64,
    /// Process of the client, if it ran on the server's host.
    pub process: Option<ProcessIdentity>,
}

impl ClientRecord {
    /// Encodes the record.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = vec![SERVER_VERSION, u8::from(self.process.is_some()), 0, 0];
        out.extend_from_slice(&self.connected.nsec.to_le_bytes());
        out.extend_from_slice(&self.connected.sec.to_le_bytes());
        out.extend_from_slice(&self.boot_count.to_le_bytes());
        if let Some(process) = &self.process {
            out.extend_from_slice(&process.machine);
            out.extend_from_slice(&process.boot);
            out.extend_from_slice(&process.namespaces.to_le_bytes());
            out.extend_from_slice(&process.started.to_le_bytes());
            out.extend_from_slice(&process.pid.to_le_bytes());
        }
        out
    }

    /// Reads a record.
    ///
    /// # Errors
    /// If the bytes are not a record of this version.
    pub fn decode(bytes: &[u8]) -> Result<ClientRecord, DecodeError> {
        let mut reader = Reader::new(bytes, SERVER_VERSION)?;
        let has_process = match reader.u8()? {
            0 => false,
            1 => true,
            _ => return Err(DecodeError::Field("process")),
        };
        reader.reserved::<2>()?;
        let nsec = reader.u32()?;
        let sec = reader.i64()?;
        let boot_count = reader.u64()?;
        let process = match has_process {
            false => None,
            true => Some(ProcessIdentity {
                machine: reader.array()?,
                boot: reader.array()?,
                namespaces: reader.u64()?,
                started: reader.u64()?,
                pid: reader.u32()?,
            }),
        };
        reader.end()?;
        if nsec > 999_999_999 {
            return Err(DecodeError::Field("nanoseconds"));
        }
        Ok(ClientRecord { connected: Timestamp::new(sec, nsec), boot_count, process })
    }
}

/// An open handle that a request created. It is open again when a client resends the request after a restart:
/// the client cannot re-open a handle that it does not know of.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OpenedRecord {
    /// The file.
    pub fid: Fid,
    /// The handle.
    pub handle: OpenHandle,
    /// Open flags as in the protocol.
    pub flags: u32,
}

/// Reply slot: the reply to the last modifying request in one slot of a client. The key is UUID and tag.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ReplyRecord<'a> {
    /// Xid of the request.
    pub xid: Xid,
    /// Handle that the request opened, if any.
    pub opened: Option<OpenedRecord>,
    /// The encoded reply (`docs/protocol`), with transno 0: it is not known before the commit.
    pub answer: &'a [u8],
}

impl<'a> ReplyRecord<'a> {
    /// Appends the encoded record to `out`.
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&[SERVER_VERSION, u8::from(self.opened.is_some()), 0, 0]);
        out.extend_from_slice(&self.xid.0.to_le_bytes());
        if let Some(opened) = &self.opened {
            out.extend_from_slice(&opened.fid.to_le_bytes());
            out.extend_from_slice(&opened.handle.0.to_le_bytes());
            out.extend_from_slice(&opened.flags.to_le_bytes());
        }
        out.extend_from_slice(self.answer);
    }

    /// Reads a record.
    ///
    /// # Errors
    /// If the bytes are not a record of this version.
    pub fn decode(bytes: &'a [u8]) -> Result<ReplyRecord<'a>, DecodeError> {
        let mut reader = Reader::new(bytes, SERVER_VERSION)?;
        let has_opened = reader.u8()?;
        reader.reserved::<2>()?;
        let xid = Xid(reader.u64()?);
        let opened = match has_opened {
            0 => None,
            1 => Some(OpenedRecord {
                fid: reader.fid()?,
                handle: OpenHandle(reader.u64()?),
                flags: reader.u32()?,
            }),
            _ => return Err(DecodeError::Field("opened")),
        };
        Ok(ReplyRecord { xid, opened, answer: reader.remainder() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_those_of_version_1() {
        let client = ClientRecord { connected: Timestamp::new(5, 6), boot_count: 7, process: None };
        let bytes = [1, 0, 0, 0, 6, 0, 0, 0, 5, 0, 0, 0, 0, 0, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0];
        assert_eq!(client.encode(), bytes);
        assert_eq!(ClientRecord::decode(&bytes), Ok(client));
        let process = ProcessIdentity { machine: [1; 16], boot: [2; 16], namespaces: 3, pid: 4, started: 5 };
        let client = ClientRecord { process: Some(process), ..client };
        let mut known = bytes.to_vec();
        known[1] = 1;
        known.extend([[1u8; 16], [2; 16]].concat());
        known.extend([3, 0, 0, 0, 0, 0, 0, 0, 5, 0, 0, 0, 0, 0, 0, 0, 4, 0, 0, 0]);
        assert_eq!(client.encode(), known);
        assert_eq!(ClientRecord::decode(&known), Ok(client));
        let reply = ReplyRecord { xid: Xid(8), opened: None, answer: b"abc" };
        let mut out = Vec::new();
        reply.encode(&mut out);
        assert_eq!(out, [1, 0, 0, 0, 8, 0, 0, 0, 0, 0, 0, 0, b'a', b'b', b'c']);
        assert_eq!(ReplyRecord::decode(&out), Ok(reply));
        let opened = OpenedRecord { fid: Fid::new(1, 2, 0), handle: OpenHandle(3), flags: 4 };
        let reply = ReplyRecord { xid: Xid(8), opened: Some(opened), answer: b"a" };
        out.clear();
        reply.encode(&mut out);
        let expected: Vec<u8> = [
            &[1u8, 1, 0, 0, 8, 0, 0, 0, 0, 0, 0, 0][..],
            &[1, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0],
            &[3, 0, 0, 0, 0, 0, 0, 0, 4, 0, 0, 0, b'a'],
        ]
        .concat();
        assert_eq!(out, expected);
        assert_eq!(ReplyRecord::decode(&out), Ok(reply));
    }
}
