//! Asynchronous reads, by a ring with memory of its own.
//!
//! Completions are posted whichever thread began the read; the rings of [`super::ring`] post them only when
//! the submitting thread enters the kernel again, which may take long. The memory is registered, and in large
//! pages where the kernel has some. That makes up for the copy:
//! `docs/measurements/2026-11-23-ost-devices.md`.

use super::AlignedBuffer;
use super::direct::Counters;
use super::{FETCH_BYTES, FETCH_PARTS, Fetch, check_range};
use io_uring::{IoUring, opcode, squeue, types};
use rustix::io::Errno;
use std::io;
use std::os::fd::RawFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Largest piece of one request: in small pages more of them than a request of some virtual disks takes
/// (254).
const PIECE_MAX: usize = 512 << 10;
/// Maximum pieces of a part.
const PIECES_MAX: usize = 32;

/// The unfinished rest of a piece.
#[derive(Clone, Copy)]
struct Piece {
    offset: u64,
    /// Offset in the memory.
    at: usize,
    len: usize,
}

#[derive(Default)]
struct Part {
    len: usize,
    pieces: Vec<Piece>,
    in_flight: usize,
    error: Option<io::Error>,
}

/// See the [module documentation](self). Dropping it waits for reads under way.
pub(super) struct RingFetch {
    // Before the memory, so that the ring is closed before the memory is freed.
    ring: IoUring,
    memory: AlignedBuffer,
    is_registered: bool,
    parts: [Part; FETCH_PARTS],
    size: u64,
    counters: Arc<Counters>,
}

impl RingFetch {
    /// Creates the memory and its ring for a device of `size` bytes.
    pub(super) fn new(fd: RawFd, size: u64, counters: Arc<Counters>) -> io::Result<RingFetch> {
        let ring = IoUring::new((FETCH_PARTS * PIECES_MAX) as u32)?;
        ring.submitter().register_files(&[fd])?;
        let memory = AlignedBuffer::large(FETCH_PARTS * FETCH_BYTES);
        let vector = libc::iovec { iov_base: memory.address().cast(), iov_len: memory.len() };
        // SAFETY: the memory is dropped after the ring. Registration fails where locked memory is limited;
        // the memory then works unregistered.
        let is_registered = unsafe { ring.submitter().register_buffers(&[vector]) }.is_ok();
        Ok(RingFetch { ring, memory, is_registered, parts: Default::default(), size, counters })
    }

    fn push(&mut self, part: usize, number: usize) {
        let Piece { offset, at, len } = self.parts[part].pieces[number];
        let memory = self.memory.address().wrapping_add(at);
        let fd = types::Fixed(0);
        let entry: squeue::Entry = match self.is_registered {
            true => opcode::ReadFixed::new(fd, memory, len as u32, 0).offset(offset).build(),
            false => opcode::Read::new(fd, memory, len as u32).offset(offset).build(),
        };
        let entry = entry.user_data((part * PIECES_MAX + number) as u64);
        // SAFETY: the memory belongs to the ring and outlives it; a part with reads in flight is not
        // accessed.
        let pushed = unsafe { self.ring.submission().push(&entry) };
        pushed.expect("the queue has room for all pieces of all parts");
    }

    /// Processes the completions that have arrived.
    fn take_in(&mut self) {
        loop {
            let Some(entry) = self.ring.completion().next() else { return };
            let number = entry.user_data() as usize;
            let (part, number) = (number / PIECES_MAX, number % PIECES_MAX);
            let state = &mut self.parts[part];
            let piece = &mut state.pieces[number];
            match entry.result() {
                result if matches!(-result, libc::EINTR | libc::EAGAIN) => {}
                0 => state.error = Some(io::ErrorKind::UnexpectedEof.into()),
                result if result < 0 => state.error = Some(io::Error::from_raw_os_error(-result)),
                result => {
                    let read = (result as usize).min(piece.len);
                    *piece = Piece {
                        offset: piece.offset + read as u64,
                        at: piece.at + read,
                        len: piece.len - read,
                    };
                }
            }
            if piece.len > 0 && state.error.is_none() {
                self.push(part, number);
            } else {
                state.in_flight -= 1;
            }
        }
    }

    fn wait(&mut self, part: usize) {
        self.take_in();
        while self.parts[part].in_flight > 0 {
            // A read is under way, so an error can only mean "retry".
            if self.ring.submit_and_wait(1).is_err() {
                nacre_env::thread::yield_now();
            }
            self.take_in();
        }
    }

    fn cut(&self, part: usize, ranges: &[(u64, usize)]) -> io::Result<Vec<Piece>> {
        let mut pieces = Vec::with_capacity(ranges.len() + 1);
        let mut at = part * FETCH_BYTES;
        for &(mut offset, mut len) in ranges {
            check_range(self.size, offset, len)?;
            while len > 0 {
                let piece = Piece { offset, at, len: len.min(PIECE_MAX) };
                pieces.push(piece);
                (offset, at, len) = (offset + piece.len as u64, at + piece.len, len - piece.len);
            }
        }
        if at > (part + 1) * FETCH_BYTES || pieces.len() > PIECES_MAX {
            return Err(io::Error::from(Errno::INVAL));
        }
        Ok(pieces)
    }
}

impl Fetch for RingFetch {
    fn begin(&mut self, part: usize, ranges: &[(u64, usize)]) {
        self.wait(part);
        let pieces = match self.cut(part, ranges) {
            Ok(pieces) => pieces,
            Err(error) => {
                self.parts[part] = Part { error: Some(error), ..Part::default() };
                return;
            }
        };
        let len = pieces.iter().map(|piece| piece.len).sum();
        self.counters.reads.fetch_add(ranges.len() as u64, Ordering::Relaxed);
        self.counters.read_bytes.fetch_add(len as u64, Ordering::Relaxed);
        let in_flight = pieces.len();
        self.parts[part] = Part { len, pieces, in_flight, error: None };
        (0..in_flight).for_each(|number| self.push(part, number));
        // An error recurs at the wait for the read.
        let _ = self.ring.submit();
    }

    fn is_there(&mut self, part: usize) -> bool {
        self.take_in();
        self.parts[part].in_flight == 0
    }

    fn finish(&mut self, part: usize) -> io::Result<&[u8]> {
        self.wait(part);
        if let Some(error) = self.parts[part].error.take() {
            self.parts[part].len = 0;
            return Err(error);
        }
        let start = self.memory.address().wrapping_add(part * FETCH_BYTES);
        // SAFETY: the part has this many bytes of the memory, initialised on allocation, and no read of it is
        // under way. Not through a slice of the whole memory: the kernel may be writing into other parts.
        Ok(unsafe { std::slice::from_raw_parts(start, self.parts[part].len) })
    }
}

impl Drop for RingFetch {
    fn drop(&mut self) {
        (0..FETCH_PARTS).for_each(|part| self.wait(part));
        // As in a ring of batches: others can open the device as soon as it is released.
        let _ = self.ring.submitter().unregister_files();
    }
}
