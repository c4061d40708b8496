//! Locks of programs on files.

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
    /// Which kind of lock; locks of different kinds never conflict.
    pub family: LockFamily,
    /// Holder, or caller that asks for it.
    pub owner: LockOwner,
    /// What is held or wanted.
    pub mode: LockMode,
    /// First byte.
    pub start: u64,
    /// Last byte, inclusive as in `fcntl`; `u64::MAX` for "to the end".
    pub last: u64,
    /// Process that asked, shown by `F_GETLK`.
    pub pid: u32,
}

/// A lock on a file, and whose it is on all mounts of a host.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ProcessLock {
    /// The lock.
    pub lock: FileLock,
    /// The process that asked: one number through all mounts of its host, 0 if it is not known.
    pub process: u64,
}

/// Locks of one [`crate::mds::MdsRequest::ReplayFileLocks`]: 40 KiB.
pub const REPLAYED_LOCKS_MAX: usize = 1024;

/// What a file lock allows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum LockMode {
    /// Shared.
    Read = 0,
    /// Exclusive.
    Write = 1,
    /// No lock: releases.
    Unlock = 2,
}
