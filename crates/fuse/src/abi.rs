//! The FUSE protocol: numbers and structures that cross `/dev/fuse`, up to version 7.45.
//!
//! The byte order is the machine's, and the layout that of C on 64 bit; sizes are checked at compile time.
//! Bytes from the kernel become structures only through [`Wire::read_from`], which checks the length.

mod flags;
pub mod opcode;
mod structs;

pub use flags::*;
pub use structs::*;

/// Major version of the protocol, the same for all kernels.
pub const KERNEL_VERSION: u32 = 7;
/// Newest minor version of these definitions.
pub const KERNEL_MINOR_VERSION: u32 = 45;
/// Oldest minor version that is accepted (Linux 5.15 has 7.34).
pub const KERNEL_MINOR_VERSION_MIN: u32 = 31;
/// Node id of the root directory.
pub const ROOT_ID: u64 = 1;

/// Plain data that may be copied from and to bytes.
///
/// # Safety
///
/// Only for `repr(C)` types without padding for which every bit pattern is valid.
pub unsafe trait Wire: Copy {
    /// Returns the structure at the start of `bytes`, or `None` if they are too short.
    fn read_from(bytes: &[u8]) -> Option<Self> {
        if bytes.len() < size_of::<Self>() {
            return None;
        }
        // SAFETY: the length was checked, the read needs no alignment, any bit pattern is valid (contract).
        Some(unsafe { std::ptr::read_unaligned(bytes.as_ptr().cast::<Self>()) })
    }

    /// Returns the bytes of the structure.
    fn as_bytes(&self) -> &[u8] {
        // SAFETY: no padding (trait contract), so every byte is initialised; lifetime is that of `self`.
        unsafe { std::slice::from_raw_parts(std::ptr::from_ref(self).cast::<u8>(), size_of::<Self>()) }
    }
}

/// Codes of notifications: messages that the daemon sends unasked.
pub mod notify_code {
    /// Wakes a poller.
    pub const POLL: i32 = 1;
    /// Drops cached attributes and data.
    pub const INVAL_INODE: i32 = 2;
    /// Drops a cached name.
    pub const INVAL_ENTRY: i32 = 3;
    /// Puts data into the page cache.
    pub const STORE: i32 = 4;
    /// Requests data of the page cache, which arrives as a NOTIFY_REPLY request.
    pub const RETRIEVE: i32 = 5;
    /// Reports the removal of a name, so that watchers are notified.
    pub const DELETE: i32 = 6;
    /// Requests a resend of all requests that were read but not answered (7.40).
    pub const RESEND: i32 = 7;
    /// Expires all cached names, which are looked up again before use (7.44).
    pub const INC_EPOCH: i32 = 8;
    /// Drops unused inodes from the cache (7.45).
    pub const PRUNE: i32 = 9;
}

/// ioctl numbers of `/dev/fuse`.
pub mod ioctl {
    /// Attaches a newly opened device to the connection of another one.
    pub const CLONE: u64 = 0x8004_e500;
    /// Registers a file for passthrough; argument [`super::BackingMap`].
    pub const BACKING_OPEN: u64 = 0x4010_e501;
    /// Drops a registered file; argument is the id.
    pub const BACKING_CLOSE: u64 = 0x4004_e502;
}

/// Commands and sizes of FUSE over io_uring.
pub mod uring {
    /// Passes a buffer to the kernel, which fills it with the first request.
    pub const CMD_REGISTER: u32 = 1;
    /// Answers a request and fetches the next one.
    pub const CMD_COMMIT_AND_FETCH: u32 = 2;
    /// Bytes for the request or reply header.
    pub const IN_OUT_HEADER_SIZE: usize = 128;
    /// Bytes for the first argument.
    pub const OP_IN_SIZE: usize = 128;
}
