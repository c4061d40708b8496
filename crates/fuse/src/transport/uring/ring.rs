//! An io_uring with one FUSE entry.

use std::io;
use std::sync::Arc;

use io_uring::{IoUring, cqueue, opcode, squeue, types};

use crate::abi::{InHeader, OutHeader, UringCmdReq, UringEntInOut, Wire, uring};
use crate::device::Device;
use crate::transport::buffer::PageBuffer;
use rustix::io::Errno;
use rustix::param::page_size;

type Uring = IoUring<squeue::Entry128, cqueue::Entry>;

/// Offsets in the header area: request or reply header, first argument, numbers of this entry.
const OP_IN: usize = uring::IN_OUT_HEADER_SIZE;
const ENTRY: usize = OP_IN + uring::OP_IN_SIZE;
const HEADER_SIZE: usize = ENTRY + size_of::<UringEntInOut>();

/// Bytes of the command area of a 128-byte submission.
const COMMAND_SIZE: usize = 80;
/// Offsets of the buffer's address and length in a submission.
const SQE_ADDRESS: usize = 16;
const SQE_LENGTH: usize = 24;

/// A ring, its entry's memory, and the entry's state: either the kernel has it, or it holds a request.
pub(super) struct Ring {
    // Closed before the memory is freed: the kernel may still fill an entry that it has.
    ring: Uring,
    memory: PageBuffer,
    page: usize,
    queue: u16,
    commit_id: u64,
    _device: Arc<Device>,
}

fn new_uring() -> io::Result<Uring> {
    // Only the waiting thread needs completions: no interrupts for it on other threads.
    IoUring::builder().setup_single_issuer().setup_defer_taskrun().build(2)
}

impl Ring {
    /// Checks whether a ring of the required kind can be created.
    pub fn probe() -> io::Result<()> {
        new_uring().map(drop)
    }

    /// Creates a ring and registers its entry with `queue`. Must run on the thread that will use it.
    pub fn register(device: Arc<Device>, queue: u16, payload_max: usize) -> io::Result<Ring> {
        let page = page_size();
        let memory = PageBuffer::new(page + payload_max)?;
        let ring = new_uring()?;
        ring.submitter().register_files(&[device.fd()])?;
        let mut ring = Ring { ring, memory, page, queue, commit_id: 0, _device: device };
        ring.submit_registration(payload_max)?;
        Ok(ring)
    }

    fn submit_registration(&mut self, payload_max: usize) -> io::Result<()> {
        let header = self.memory.address();
        let parts = [
            libc::iovec { iov_base: header.cast(), iov_len: HEADER_SIZE },
            libc::iovec { iov_base: header.wrapping_add(self.page).cast(), iov_len: payload_max },
        ];
        self.push(uring::CMD_REGISTER, Some(&parts))?;
        // The kernel reads `parts` only during this call.
        self.ring.submit()?;
        self.take_completion().map(|_request_came_at_once| ())
    }

    /// Waits until the entry holds a request.
    ///
    /// # Errors
    ///
    /// EINTR: a signal arrived. Anything else: the entry is lost; ENOTCONN and the like mean that the
    /// connection has ended.
    pub fn wait(&mut self) -> io::Result<()> {
        if self.commit_id != 0 {
            return Ok(());
        }
        loop {
            if self.take_completion()? {
                return Ok(());
            }
            self.ring.submit_and_wait(1)?;
        }
    }

    /// Returns true if the kernel has filled the entry with a request.
    fn take_completion(&mut self) -> io::Result<bool> {
        let Some(done) = self.ring.completion().next() else { return Ok(false) };
        if done.result() != 0 {
            return Err(io::Error::from_raw_os_error(-done.result()));
        }
        self.commit_id = self.entry().commit_id;
        Ok(true)
    }

    /// Returns header and payload length of the request in the entry.
    pub fn request(&mut self) -> (InHeader, usize) {
        let payload_length = self.entry().payload_sz as usize;
        let header = InHeader::read_from(self.memory.bytes()).unwrap_or_default();
        (header, payload_length)
    }

    /// Returns the first argument (with spare space after it) and the payload.
    pub fn buffers(&mut self) -> (&[u8], &mut [u8]) {
        let (head, payload) = self.memory.bytes().split_at_mut(self.page);
        (&head[OP_IN..ENTRY], payload)
    }

    /// Answers the request and returns the entry to the kernel with the next [`Ring::wait`]. `small` is
    /// copied to the payload; without it the payload's first `length` bytes already are the answer.
    pub fn answer(&mut self, unique: u64, error: i32, small: Option<&[u8]>, length: usize) -> io::Result<()> {
        let page = self.page;
        let memory = self.memory.bytes();
        if let Some(small) = small {
            memory[page..page + small.len()].copy_from_slice(small);
        }
        let out = OutHeader { len: (size_of::<OutHeader>() + length) as u32, error, unique };
        memory[..size_of::<OutHeader>()].copy_from_slice(out.as_bytes());
        let entry =
            UringEntInOut { commit_id: self.commit_id, payload_sz: length as u32, ..Default::default() };
        memory[ENTRY..HEADER_SIZE].copy_from_slice(entry.as_bytes());
        self.push(uring::CMD_COMMIT_AND_FETCH, None)?;
        self.commit_id = 0;
        Ok(())
    }

    fn entry(&mut self) -> UringEntInOut {
        UringEntInOut::read_from(&self.memory.bytes()[ENTRY..]).unwrap_or_default()
    }

    fn push(&mut self, command: u32, parts: Option<&[libc::iovec; 2]>) -> io::Result<()> {
        let request = UringCmdReq { commit_id: self.commit_id, qid: self.queue, ..Default::default() };
        let mut area = [0u8; COMMAND_SIZE];
        area[..size_of::<UringCmdReq>()].copy_from_slice(request.as_bytes());
        let mut entry = opcode::UringCmd80::new(types::Fixed(0), command).cmd(area).build();
        if let Some(parts) = parts {
            // The crate has no way to set address and length of this kind of submission.
            const { assert!(size_of::<squeue::Entry128>() == 128) };
            let bytes = (&raw mut entry).cast::<u8>();
            // SAFETY: a submission is 128 bytes of plain data (asserted), so both fields are inside of it.
            unsafe {
                bytes.add(SQE_ADDRESS).cast::<u64>().write_unaligned(parts.as_ptr() as u64);
                bytes.add(SQE_LENGTH).cast::<u32>().write_unaligned(parts.len() as u32);
            }
        }
        // SAFETY: `self` owns the memory that the command refers to, which outlives the ring; `parts`
        // outlives the submission, see `submit_registration`.
        let pushed = unsafe { self.ring.submission().push(&entry) };
        pushed.map_err(|_| io::Error::from(Errno::BUSY))
    }
}
