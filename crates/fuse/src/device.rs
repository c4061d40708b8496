//! The descriptor of `/dev/fuse`: one per connection, plus clones.

use std::fs::{File, OpenOptions};
use std::io::{self, IoSlice};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::os::unix::fs::OpenOptionsExt;

use rustix::fs::OFlags;
use rustix::io::Errno;
use rustix::ioctl::{Opcode, Setter};

use crate::abi::{OutHeader, Wire, ioctl};
use crate::error::Error;

/// An open `/dev/fuse` of an existing or future connection.
#[derive(Debug)]
pub(crate) struct Device {
    file: File,
}

impl Device {
    pub fn open() -> Result<Device, Error> {
        let opened = OpenOptions::new()
            .read(true)
            .write(true)
            .custom_flags(OFlags::CLOEXEC.bits() as i32)
            .open("/dev/fuse");
        opened.map(|file| Device { file }).map_err(|error| match Errno::from_io_error(&error) {
            Some(Errno::NOENT | Errno::NODEV | Errno::NXIO) => Error::NoDevice,
            Some(Errno::ACCESS | Errno::PERM) => Error::DeviceDenied(error),
            _ => Error::System { action: "opening /dev/fuse", source: error },
        })
    }

    pub fn from_fd(fd: OwnedFd) -> Device {
        Device { file: File::from(fd) }
    }

    pub fn fd(&self) -> RawFd {
        self.file.as_raw_fd()
    }

    /// Returns another descriptor of the same connection with a request table of its own, so that threads do
    /// not contend for a lock. If the kernel refuses, returns a duplicate of this one.
    pub fn clone_device(&self) -> io::Result<Device> {
        if let Ok(clone) = Device::open() {
            // SAFETY: the ioctl reads one u32.
            let source = unsafe { Setter::<{ ioctl::CLONE as Opcode }, u32>::new(self.fd() as u32) };
            // SAFETY: as above.
            if unsafe { rustix::ioctl::ioctl(&clone.file, source) }.is_ok() {
                return Ok(clone);
            }
        }
        Ok(Device::from_fd(rustix::io::fcntl_dupfd_cloexec(&self.file, 0)?))
    }

    /// Waits for a request and reads it into `buffer`; returns its length.
    pub fn read(&self, buffer: &mut [u8]) -> io::Result<usize> {
        Ok(rustix::io::read(&self.file, buffer)?)
    }

    /// Sends a reply or notification: `error` (or code), number, and parts of the body.
    pub fn send(&self, error: i32, unique: u64, body: &[&[u8]]) -> io::Result<()> {
        const PARTS_MAX: usize = 4;
        assert!(body.len() < PARTS_MAX, "a message has at most three parts behind the header");
        let length = size_of::<OutHeader>() + body.iter().map(|part| part.len()).sum::<usize>();
        let header = OutHeader { len: length as u32, error, unique };
        let mut parts = [IoSlice::new(&[]); PARTS_MAX];
        let mut count = 0;
        for bytes in
            std::iter::once(header.as_bytes()).chain(body.iter().copied()).filter(|part| !part.is_empty())
        {
            parts[count] = IoSlice::new(bytes);
            count += 1;
        }
        rustix::io::writev(&self.file, &parts[..count])?;
        Ok(())
    }
}
