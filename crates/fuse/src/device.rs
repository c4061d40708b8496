//! The descriptor of `/dev/fuse`: one per connection, plus clones.

use std::ffi::c_void;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::fs::OpenOptionsExt;

use crate::abi::{OutHeader, Wire, ioctl};
use crate::error::Error;

/// An open `/dev/fuse` that belongs (or will belong) to a connection.
#[derive(Debug)]
pub(crate) struct Device {
    file: File,
}

impl Device {
    pub fn open() -> Result<Device, Error> {
        let opened =
            OpenOptions::new().read(true).write(true).custom_flags(libc::O_CLOEXEC).open("/dev/fuse");
        opened.map(|file| Device { file }).map_err(|error| match error.raw_os_error() {
            Some(libc::ENOENT | libc::ENODEV | libc::ENXIO) => Error::NoDevice,
            Some(libc::EACCES | libc::EPERM) => Error::DeviceDenied(error),
            _ => Error::System { action: "opening /dev/fuse", source: error },
        })
    }

    pub fn from_fd(fd: OwnedFd) -> Device {
        Device { file: File::from(fd) }
    }

    pub fn fd(&self) -> RawFd {
        self.file.as_raw_fd()
    }

    /// Another descriptor of the same connection with a request table of its own, so that threads do not share a lock.
    /// Where that is refused, the same descriptor once more.
    pub fn clone_device(&self) -> io::Result<Device> {
        if let Ok(clone) = Device::open() {
            let source = self.fd() as u32;
            // SAFETY: the ioctl reads one u32 from the address, which is valid.
            let result = unsafe { libc::ioctl(clone.fd(), ioctl::CLONE as libc::Ioctl, &raw const source) };
            if result == 0 {
                return Ok(clone);
            }
        }
        // SAFETY: F_DUPFD_CLOEXEC on a descriptor that we own returns a new one, or -1.
        let fd = unsafe { libc::fcntl(self.fd(), libc::F_DUPFD_CLOEXEC, 0) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: `fd` is new and nobody else owns it.
        Ok(Device::from_fd(unsafe { OwnedFd::from_raw_fd(fd) }))
    }

    /// Waits for a request and reads it into `buffer`; the length that was read.
    pub fn read(&self, buffer: &mut [u8]) -> io::Result<usize> {
        // SAFETY: `buffer` is valid for writes of its length.
        let n = unsafe { libc::read(self.fd(), buffer.as_mut_ptr().cast::<c_void>(), buffer.len()) };
        usize::try_from(n).map_err(|_| io::Error::last_os_error())
    }

    /// Sends a reply or notification: `error` (or code), number, and parts of the body.
    pub fn send(&self, error: i32, unique: u64, body: &[&[u8]]) -> io::Result<()> {
        const PARTS_MAX: usize = 4;
        assert!(body.len() < PARTS_MAX, "a message has at most three parts behind the header");
        let length = size_of::<OutHeader>() + body.iter().map(|part| part.len()).sum::<usize>();
        let header = OutHeader { len: length as u32, error, unique };
        let mut parts = [libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 }; PARTS_MAX];
        let mut count = 0;
        for bytes in
            std::iter::once(header.as_bytes()).chain(body.iter().copied()).filter(|part| !part.is_empty())
        {
            parts[count] = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
            count += 1;
        }
        // SAFETY: the first `count` entries point to slices that live until the end of this function; writev only reads
        // from them.
        let n = unsafe { libc::writev(self.fd(), parts.as_ptr(), count as libc::c_int) };
        if n < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }
}
