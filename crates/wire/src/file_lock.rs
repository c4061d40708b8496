//! File locks of programs.

/// Owner of a byte-range lock at its client.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct LockOwner(pub u64);

/// Kinds of file locks.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum LockFamily {
    /// Byte ranges (`fcntl`).
    Range = 0,
    /// The whole file (`flock`).
    File = 1,
}

/// A lock on a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FileLock {
    /// Kind of the lock; locks of different kinds never conflict.
    pub family: LockFamily,
    /// Holder, or caller that asks for it.
    pub owner: LockOwner,
    /// Mode that is held or requested.
    pub mode: LockMode,
    /// Offset of the first byte.
    pub start: u64,
    /// Offset of the last byte, inclusive as in `fcntl`; `u64::MAX` for "to the end".
    pub last: u64,
    /// Process that asked, shown by `F_GETLK`.
    pub pid: u32,
}

/// A lock on a file, with its owner's number on all mounts of a host.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ProcessLock {
    /// Lock on the file.
    pub lock: FileLock,
    /// Process that asked: one number on all mounts of its host, 0 if it is not known.
    pub process: u64,
}

/// Locks of one [`crate::mds::MdsRequest::ReplayFileLocks`]: 40 KiB.
pub const REPLAYED_LOCKS_MAX: usize = 1024;

/// Mode of a file lock.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum LockMode {
    /// Shared lock.
    Read = 0,
    /// Exclusive lock.
    Write = 1,
    /// No lock: releases the range.
    Unlock = 2,
}
