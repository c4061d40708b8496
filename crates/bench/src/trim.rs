//! Tells a device which of its blocks a local file system does not use (FITRIM).

use std::fs::File;
use std::os::fd::AsRawFd;
use std::path::Path;

use crate::error::Error;

const FITRIM: libc::c_ulong = 0xc018_5879;

/// `struct fstrim_range` of linux/fs.h.
#[repr(C)]
struct Range {
    start: u64,
    length: u64,
    shortest: u64,
}

/// Discards all free space of the file system of `directory`, and says how many bytes that were.
///
/// # Errors
///
/// Where the file system or its device cannot, and for anybody but root.
pub(crate) fn trim(directory: &Path) -> Result<u64, Error> {
    let file = File::open(directory).map_err(Error::io("open", directory))?;
    let mut range = Range { start: 0, length: u64::MAX, shortest: 0 };
    // SAFETY: the request reads and writes one such structure, which lives across the call.
    if unsafe { libc::ioctl(file.as_raw_fd(), FITRIM, &raw mut range) } != 0 {
        return Err(Error::io("trim the file system of", directory)(std::io::Error::last_os_error()));
    }
    Ok(range.length)
}
