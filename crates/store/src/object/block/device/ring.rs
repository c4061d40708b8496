//! One `io_uring` that runs batches of one thread at a time.
//!
//! The device's descriptor is registered. Small writes, and transfers whose memory is not aligned, go through
//! slots of registered memory. Aligned reads go straight to the caller's memory, such as that of a reply:
//! pinning a page costs as much as copying it (November 2026: ratios of CPU time for reads of 4 KiB, with the
//! copy to without it: 32 at a time 0.98, 1.03, 1.01; one at a time 1.06, 1.10, 1.01).

use super::AlignedBuffer;
use io_uring::{IoUring, opcode, squeue, types};
use std::io;
use std::os::fd::RawFd;

/// Maximum transfers in flight.
pub(super) const DEPTH: usize = 32;
/// Bytes of a slot of registered memory.
const SLOT: usize = 16 << 10;
/// Largest piece of a write: a multiple of a block that fits the kernel's length.
const PIECE_MAX: usize = 64 << 20;
/// Largest piece of a read: parts that have arrived are checked while the rest is under way.
const READ_PIECE_MAX: usize = 256 << 10;
/// Pieces that are queued before a submission, while there is space for more.
const BURST: usize = 8;

/// Direction of the transfers of a batch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Way {
    Read,
    Write,
}

/// A transfer under way: the rest of one operation, or of a part of it.
#[derive(Clone, Copy)]
struct Piece {
    /// Number of the operation, and offset in it.
    op: usize,
    at: usize,
    offset: u64,
    /// The caller's memory.
    memory: *mut u8,
    len: usize,
    /// Slot that replaces the memory.
    slot: Option<u16>,
    done: usize,
}

/// One operation from the ring's point of view.
#[derive(Clone, Copy)]
pub(super) struct Transfer {
    /// Its number, and the bytes of it that are under way already.
    pub(super) op: usize,
    pub(super) at: usize,
    pub(super) offset: u64,
    pub(super) memory: *mut u8,
    pub(super) len: usize,
}

/// Cost of a batch.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct Cost {
    /// Short transfers.
    pub(super) short: u64,
    /// System calls for the ring.
    pub(super) enters: u64,
    /// Reads, or parts of them, that were copied out of a slot.
    pub(super) copied_reads: u64,
}

/// See the [module documentation](self).
pub(super) struct Ring {
    // Before the memory, so that the ring is closed before the memory is freed.
    ring: IoUring,
    slab: AlignedBuffer,
    is_registered: bool,
    align: usize,
    pieces: Vec<Piece>,
    free_pieces: Vec<u16>,
    free_slots: Vec<u16>,
    /// Completed pieces that were not processed yet.
    arrived: Vec<Piece>,
    cost: Cost,
}

// SAFETY: the pointers in `pieces` are used only inside `run`, whose caller keeps the memory alive.
unsafe impl Send for Ring {}

impl Ring {
    /// Creates a ring for a descriptor that outlives it; direct transfers need memory aligned to `align`.
    pub(super) fn new(fd: RawFd, align: usize) -> io::Result<Ring> {
        let ring = IoUring::builder().setup_coop_taskrun().build(DEPTH as u32)?;
        ring.submitter().register_files(&[fd])?;
        let slab = AlignedBuffer::zeroed(DEPTH * SLOT);
        let vector = libc::iovec { iov_base: slab.address().cast(), iov_len: slab.len() };
        // SAFETY: the memory belongs to the slab, which is dropped after the ring. Registration fails where
        // locked memory is limited; the slots then work as plain memory.
        let is_registered = unsafe { ring.submitter().register_buffers(&[vector]) }.is_ok();
        let none =
            Piece { op: 0, at: 0, offset: 0, memory: std::ptr::null_mut(), len: 0, slot: None, done: 0 };
        Ok(Ring {
            ring,
            slab,
            is_registered,
            align,
            pieces: vec![none; DEPTH],
            free_pieces: (0..DEPTH as u16).rev().collect(),
            free_slots: (0..DEPTH as u16).rev().collect(),
            arrived: Vec::with_capacity(DEPTH),
            cost: Cost::default(),
        })
    }

    /// Does all transfers from `next`, and passes the parts of each that have arrived to `done`: its number,
    /// offset in it, and bytes. Returns the cost, and only when the kernel has released all memory.
    ///
    /// # Safety
    /// Each transfer's memory is valid for its length until the call returns, for writing if `way` is a read,
    /// and no other thread uses it.
    pub(super) unsafe fn run(
        &mut self,
        way: Way,
        next: &mut dyn FnMut() -> Option<Transfer>,
        done: &mut dyn FnMut(usize, usize, &[u8]),
    ) -> io::Result<Cost> {
        self.cost = Cost::default();
        let mut current = next();
        let (mut in_flight, mut failed) = (0usize, None);
        loop {
            while failed.is_none() && in_flight < DEPTH {
                let Some(transfer) = current.as_mut() else { break };
                let number = self.take_piece(way, transfer);
                self.push(way, number);
                in_flight += 1;
                if transfer.len > 0 {
                    continue;
                }
                if in_flight.is_multiple_of(BURST) {
                    self.submit();
                }
                current = next();
            }
            if !self.arrived.is_empty() {
                // Completed parts are checked while the device works on their successors.
                self.submit();
                for piece in self.arrived.drain(..) {
                    // SAFETY: the caller's memory holds `len` bytes, and the kernel is done with them.
                    let bytes = unsafe { std::slice::from_raw_parts(piece.memory, piece.len) };
                    done(piece.op, piece.at, bytes);
                }
            }
            if in_flight == 0 {
                return failed.map_or(Ok(self.cost), Err);
            }
            self.wait();
            while let Some((number, result)) = self.completed() {
                match self.advance(way, number, result) {
                    Ok(true) => self.arrived.push(self.pieces[usize::from(number)]),
                    // An error elsewhere ends the batch, but not before the transfers under way.
                    Ok(false) if failed.is_none() => {
                        self.cost.short += u64::from(result >= 0);
                        self.push(way, number);
                        continue;
                    }
                    Ok(false) => {}
                    Err(error) => failed = failed.or(Some(error)),
                }
                self.give_back(number);
                in_flight -= 1;
            }
        }
    }

    /// Submits the queued transfers.
    fn submit(&mut self) {
        if !self.ring.submission().is_empty() {
            // An error recurs at the wait for the transfer.
            let _ = self.ring.submit();
            self.cost.enters += 1;
        }
    }

    /// Waits for a completion. A transfer is under way, so errors can only mean "retry".
    fn wait(&mut self) {
        if self.ring.submission().is_empty() && !self.ring.completion().is_empty() {
            return;
        }
        loop {
            self.cost.enters += 1;
            match self.ring.submit_and_wait(1) {
                Ok(_) => return,
                // The memory under way must not be returned, so waiting is the only option.
                Err(_) if !self.ring.completion().is_empty() => return,
                Err(_) => nacre_env::thread::yield_now(),
            }
        }
    }

    /// Returns number and result of a completed piece.
    fn completed(&mut self) -> Option<(u16, i32)> {
        self.ring.completion().next().map(|entry| (entry.user_data() as u16, entry.result()))
    }

    /// Splits the next piece off a transfer.
    fn take_piece(&mut self, way: Way, transfer: &mut Transfer) -> u16 {
        let number = self.free_pieces.pop().expect("as many pieces as may be in flight");
        let is_aligned = (transfer.memory as usize).is_multiple_of(self.align);
        let is_small_write = way == Way::Write && transfer.len <= SLOT;
        let through_slot = !is_aligned || (self.is_registered && is_small_write);
        let max = if way == Way::Read { READ_PIECE_MAX } else { PIECE_MAX };
        let len = transfer.len.min(if through_slot { SLOT } else { max });
        let slot = through_slot.then(|| self.free_slots.pop().expect("a slot for each piece"));
        let Transfer { op, at, offset, memory, .. } = *transfer;
        self.pieces[usize::from(number)] = Piece { op, at, offset, memory, len, slot, done: 0 };
        transfer.at += len;
        transfer.offset += len as u64;
        transfer.memory = transfer.memory.wrapping_add(len);
        transfer.len -= len;
        number
    }

    fn give_back(&mut self, number: u16) {
        let piece = self.pieces[usize::from(number)];
        self.free_slots.extend(piece.slot);
        self.free_pieces.push(number);
    }

    fn slot_address(&self, slot: u16) -> *mut u8 {
        self.slab.address().wrapping_add(usize::from(slot) * SLOT)
    }

    /// Queues the rest of a piece.
    fn push(&mut self, way: Way, number: u16) {
        let piece = self.pieces[usize::from(number)];
        let target = piece.slot.map_or(piece.memory, |slot| self.slot_address(slot));
        if let (Some(_), Way::Write, 0) = (piece.slot, way, piece.done) {
            // SAFETY: the caller's memory holds `len` bytes, they fit into the slot, and they are different
            // memory.
            unsafe { std::ptr::copy_nonoverlapping(piece.memory, target, piece.len) };
        }
        let memory = target.wrapping_add(piece.done);
        let (len, offset) = ((piece.len - piece.done) as u32, piece.offset + piece.done as u64);
        let fd = types::Fixed(0);
        let entry: squeue::Entry = match (way, piece.slot.is_some() && self.is_registered) {
            (Way::Read, true) => opcode::ReadFixed::new(fd, memory, len, 0).offset(offset).build(),
            (Way::Read, false) => opcode::Read::new(fd, memory, len).offset(offset).build(),
            (Way::Write, true) => opcode::WriteFixed::new(fd, memory, len, 0).offset(offset).build(),
            (Way::Write, false) => opcode::Write::new(fd, memory, len).offset(offset).build(),
        };
        let entry = entry.user_data(u64::from(number));
        // SAFETY: the memory stays valid until the completion, which `run` waits for.
        let pushed = unsafe { self.ring.submission().push(&entry) };
        pushed.expect("the queue has room for all that may be in flight");
    }

    /// Processes a completion; false if a rest of the piece remains.
    fn advance(&mut self, way: Way, number: u16, result: i32) -> io::Result<bool> {
        let piece = &mut self.pieces[usize::from(number)];
        if result < 0 {
            let again = matches!(-result, libc::EINTR | libc::EAGAIN);
            return if again { Ok(false) } else { Err(io::Error::from_raw_os_error(-result)) };
        }
        if result == 0 {
            let kind = if way == Way::Read { io::ErrorKind::UnexpectedEof } else { io::ErrorKind::WriteZero };
            return Err(kind.into());
        }
        piece.done += result as usize;
        if piece.done < piece.len {
            return Ok(false);
        }
        let piece = *piece;
        if let (Some(slot), Way::Read) = (piece.slot, way) {
            // SAFETY: the slot holds `len` bytes, they fit into the caller's memory, and they are different
            // memory.
            unsafe { std::ptr::copy_nonoverlapping(self.slot_address(slot), piece.memory, piece.len) };
            self.cost.copied_reads += 1;
        }
        Ok(true)
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        // The kernel tears down a ring asynchronously; others can open the device as soon as it is released.
        let _ = self.ring.submitter().unregister_files();
    }
}
