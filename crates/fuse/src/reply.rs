//! Replies: built in the transport's own memory, so that an answer neither allocates nor copies twice.

use std::time::Duration;

use crate::abi::*;
use rustix::io::Errno;

mod directory;

pub use directory::{DirBuffer, DirEntry};

/// Bytes for the structures of a reply (the largest one is STATX's, 288 bytes).
pub(crate) const SMALL_SIZE: usize = 512;

/// The reply of a handler. The last method called takes effect; without a call, the reply is EIO.
pub struct Reply<'a> {
    opcode: u32,
    small: &'a mut [u8; SMALL_SIZE],
    bulk: &'a mut [u8],
    state: State,
}

/// Reply that the transport has to send.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum State {
    /// No method called yet.
    Unanswered,
    /// Error to return.
    Error(Errno),
    /// Reply of this number of bytes in the small area.
    Small(usize),
    /// Reply of this number of bytes in the bulk area.
    Bulk(usize),
    /// No reply (FORGET and the like).
    None,
}

/// A name that was found or created, with its inode.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Entry {
    /// Node id of the inode; 0: the name does not exist, and the kernel may cache that.
    pub node_id: u64,
    /// Generation: a pair of node id and generation must never be reused for another inode.
    pub generation: u64,
    /// Time for which the kernel may use the name without a lookup.
    pub entry_timeout: Duration,
    /// Time for which the kernel may use the attributes without a request.
    pub attr_timeout: Duration,
    /// Attributes of the inode.
    pub attr: Attr,
}

/// An open file or directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Opened {
    /// Handle that every request on this open file carries.
    pub fh: u64,
    /// Options for the kernel.
    pub flags: OpenFlags,
    /// Id of a registered backing file, with [`OpenFlags::PASSTHROUGH`]; else 0.
    pub backing_id: i32,
}

impl<'a> Reply<'a> {
    pub(crate) fn new(opcode: u32, small: &'a mut [u8; SMALL_SIZE], bulk: &'a mut [u8]) -> Reply<'a> {
        Reply { opcode, small, bulk, state: State::Unanswered }
    }

    pub(crate) fn state(&self) -> State {
        self.state
    }

    /// Replies with the error `errno` (positive, such as `libc::ENOENT`). Numbers that the kernel would
    /// reject become EIO.
    pub fn error(&mut self, errno: i32) {
        // The kernel rejects replies from 512 (ERESTARTSYS) up, and the caller would wait for ever.
        self.state =
            State::Error(if (1..512).contains(&errno) { Errno::from_raw_os_error(errno) } else { Errno::IO });
    }

    /// Replies with success, without data.
    pub fn ok(&mut self) {
        self.state = State::Small(0);
    }

    /// Sends no reply: only for FORGET, BATCH_FORGET and NOTIFY_REPLY.
    pub fn none(&mut self) {
        self.state = State::None;
    }

    /// Replies to LOOKUP, MKNOD, MKDIR, SYMLINK and LINK. Counts as one lookup unless the node id is 0.
    pub fn entry(&mut self, entry: &Entry) {
        self.structs(&[entry_out(entry).as_bytes()]);
    }

    /// Replies to CREATE and TMPFILE. Counts as one lookup.
    pub fn created(&mut self, entry: &Entry, opened: &Opened) {
        self.structs(&[entry_out(entry).as_bytes(), open_out(opened).as_bytes()]);
    }

    /// Replies to OPEN and OPENDIR.
    pub fn opened(&mut self, opened: &Opened) {
        self.structs(&[open_out(opened).as_bytes()]);
    }

    /// Replies to GETATTR and SETATTR; the kernel may use the attributes for `timeout` without a request.
    pub fn attr(&mut self, attr: &Attr, timeout: Duration) {
        let (attr_valid, attr_valid_nsec) = seconds(timeout);
        self.structs(&[AttrOut { attr_valid, attr_valid_nsec, dummy: 0, attr: *attr }.as_bytes()]);
    }

    /// Replies to STATX.
    pub fn statx(&mut self, stat: &Statx, timeout: Duration) {
        let (attr_valid, attr_valid_nsec) = seconds(timeout);
        self.structs(&[
            StatxOut { attr_valid, attr_valid_nsec, flags: 0, spare: [0; 2], stat: *stat }.as_bytes()
        ]);
    }

    /// Replies to WRITE: number of bytes written. Fewer than sent is a short write for the caller.
    pub fn written(&mut self, bytes: u32) {
        self.structs(&[WriteOut { size: bytes, padding: 0 }.as_bytes()]);
    }

    /// Replies to COPY_FILE_RANGE: number of bytes copied; capped at what the request's form can express.
    pub fn copied(&mut self, bytes: u64) {
        if self.opcode == opcode::COPY_FILE_RANGE_64 {
            self.structs(&[CopyFileRangeOut { bytes_copied: bytes }.as_bytes()]);
        } else {
            self.written(u32::try_from(bytes).unwrap_or(!0xfff));
        }
    }

    /// Replies to STATFS.
    pub fn statfs(&mut self, statfs: &StatFs) {
        self.structs(&[statfs.as_bytes()]);
    }

    /// Replies to GETXATTR and LISTXATTR with size 0: length of the value.
    pub fn xattr_size(&mut self, bytes: u32) {
        self.structs(&[GetXattrOut { size: bytes, padding: 0 }.as_bytes()]);
    }

    /// Replies to GETLK: the conflicting lock, or one of type F_UNLCK.
    pub fn lock(&mut self, lock: &FileLock) {
        self.structs(&[lock.as_bytes()]);
    }

    /// Replies to LSEEK.
    pub fn lseek(&mut self, offset: u64) {
        self.structs(&[LseekOut { offset }.as_bytes()]);
    }

    /// IOCTL: the result of ioctl(2), and the data for the caller (no more than `out_size` of the request, or
    /// the kernel returns EIO). A negative result is an error, but `error` is the usual way.
    pub fn ioctl(&mut self, result: i32, data: &[u8]) {
        let out = IoctlOut { result, ..IoctlOut::default() };
        let length = size_of::<IoctlOut>() + data.len();
        match self.bulk.get_mut(..length) {
            Some(bulk) => {
                let (head, tail) = bulk.split_at_mut(size_of::<IoctlOut>());
                head.copy_from_slice(out.as_bytes());
                tail.copy_from_slice(data);
                self.state = State::Bulk(length);
            }
            None => self.error(Errno::IO.raw_os_error()),
        }
    }

    /// Copies these bytes into the reply to READ, READLINK, GETXATTR or LISTXATTR. ERANGE if they do not fit.
    pub fn bytes(&mut self, bytes: &[u8]) {
        match self.bulk.get_mut(..bytes.len()) {
            Some(bulk) => {
                bulk.copy_from_slice(bytes);
                self.state = State::Bulk(bytes.len());
            }
            None => self.error(Errno::RANGE.raw_os_error()),
        }
    }

    /// READ (and other requests with data in the reply): returns the memory from which the kernel copies the
    /// data, page-aligned, `len` bytes or the whole area if that is less. Fill its start, then call
    /// [`Reply::read_done`]. It holds bytes of earlier requests, so never report more than was filled.
    pub fn read_buffer(&mut self, len: usize) -> &mut [u8] {
        let len = len.min(self.bulk.len());
        &mut self.bulk[..len]
    }

    /// Replies with the first `bytes` of [`Reply::read_buffer`].
    pub fn read_done(&mut self, bytes: usize) {
        if bytes <= self.bulk.len() {
            self.state = State::Bulk(bytes);
        } else {
            self.error(Errno::IO.raw_os_error());
        }
    }

    /// READDIR: returns a buffer of `size` bytes (the request's) for names. The pushed names are the answer;
    /// an empty buffer means the end of the directory.
    pub fn directory(&mut self, size: u32) -> DirBuffer<'_, 'a> {
        DirBuffer::new(self, size)
    }

    fn structs(&mut self, parts: &[&[u8]]) {
        let mut length = 0;
        for part in parts {
            self.small[length..length + part.len()].copy_from_slice(part);
            length += part.len();
        }
        self.state = State::Small(length);
    }
}

/// Returns the protocol's form of a timeout. Very long ones are capped: the kernel adds them to the current
/// time.
fn seconds(timeout: Duration) -> (u64, u32) {
    const LONGEST: u64 = u32::MAX as u64;
    if timeout.as_secs() >= LONGEST { (LONGEST, 0) } else { (timeout.as_secs(), timeout.subsec_nanos()) }
}

pub(crate) fn entry_out(entry: &Entry) -> EntryOut {
    let (entry_valid, entry_valid_nsec) = seconds(entry.entry_timeout);
    let (attr_valid, attr_valid_nsec) = seconds(entry.attr_timeout);
    EntryOut {
        nodeid: entry.node_id,
        generation: entry.generation,
        entry_valid,
        attr_valid,
        entry_valid_nsec,
        attr_valid_nsec,
        attr: entry.attr,
    }
}

fn open_out(opened: &Opened) -> OpenOut {
    OpenOut { fh: opened.fh, open_flags: opened.flags.bits(), backing_id: opened.backing_id }
}

#[cfg(test)]
mod tests;
