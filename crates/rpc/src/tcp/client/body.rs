//! The body of a request with the job that it may end with.

use super::conn::Conn;
use crate::tcp::scratch::Scratch;
use nacre_wire::frame::{FrameFlags, Header, JOB_ID_BYTES, push_job};

/// An encoded request, and the job that this thread worked for when it was made.
pub(crate) struct Encoded {
    bytes: Scratch,
    has_job: bool,
}

impl Encoded {
    /// What `encode` writes, with room for about so many bytes.
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

/// What is sent behind the header.
#[derive(Clone, Copy)]
pub(crate) struct Body<'a> {
    pub(crate) bytes: &'a [u8],
    /// A job id is at the end.
    pub(crate) has_job: bool,
}

impl<'a> Body<'a> {
    /// One without job.
    pub(crate) fn plain(bytes: &'a [u8]) -> Body<'a> {
        Body { bytes, has_job: false }
    }

    /// The bytes for this connection: without the job if the server knows of none. Sets the header's flag.
    pub(crate) fn for_conn(self, conn: &Conn, header: &mut Header) -> &'a [u8] {
        if !self.has_job {
            return self.bytes;
        }
        if conn.knows_jobs() {
            header.flags.insert(FrameFlags::JOB_ID);
            return self.bytes;
        }
        // Put there by `Encoded`.
        self.bytes.len().checked_sub(JOB_ID_BYTES).and_then(|len| self.bytes.get(..len)).unwrap_or(self.bytes)
    }
}
