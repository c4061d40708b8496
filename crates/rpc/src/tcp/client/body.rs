//! The body of a request, with an optional job id at its end.

use super::conn::Conn;
use crate::tcp::scratch::Scratch;
use nacre_wire::frame::{FrameFlags, Header, JOB_ID_BYTES, push_job};

/// An encoded request, and the job of this thread at the time of encoding.
pub(crate) struct Encoded {
    bytes: Scratch,
    has_job: bool,
}

impl Encoded {
    /// Encodes a request with `encode`, into a buffer of about `room` bytes.
    pub(crate) fn new(room: usize, encode: impl FnOnce(&mut Vec<u8>)) -> Encoded {
        let mut bytes = Scratch::new();
        bytes.reserve(room);
        encode(&mut bytes);
        let job = nacre_env::current_job();
        if let Some(job) = &job {
            push_job(job, &mut bytes);
        }
        Encoded { bytes, has_job: job.is_some() }
    }

    pub(crate) fn as_body(&self) -> Body<'_> {
        Body { bytes: &self.bytes, has_job: self.has_job }
    }
}

/// The bytes after the header.
#[derive(Clone, Copy)]
pub(crate) struct Body<'a> {
    pub(crate) bytes: &'a [u8],
    /// The body ends with a job id.
    pub(crate) has_job: bool,
}

impl<'a> Body<'a> {
    /// Creates a body without a job id.
    pub(crate) fn plain(bytes: &'a [u8]) -> Body<'a> {
        Body { bytes, has_job: false }
    }

    /// Returns the bytes for this connection, without the job id if the server does not support it. Sets the
    /// header's flag.
    pub(crate) fn for_conn(self, conn: &Conn, header: &mut Header) -> &'a [u8] {
        if !self.has_job {
            return self.bytes;
        }
        if conn.knows_jobs() {
            header.flags.insert(FrameFlags::JOB_ID);
            return self.bytes;
        }
        // `Encoded` has put the job id there.
        self.bytes.len().checked_sub(JOB_ID_BYTES).and_then(|len| self.bytes.get(..len)).unwrap_or(self.bytes)
    }
}
