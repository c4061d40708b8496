//! Causes of waits, and the stages that their time counts in.

use crate::activity::OperationId;
use nacre_types::{ClientUuid, Fid, TargetId, TargetKind};
use std::panic::Location;

/// Cause of a wait.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Cause {
    /// The reply of a server.
    Reply {
        /// Target of the server.
        target: TargetId,
        /// Identity under which the request was sent.
        client: ClientUuid,
        /// Id of the request.
        xid: u64,
    },
    /// A connection to a server.
    Connection {
        /// Target of the server.
        target: TargetId,
    },
    /// A free slot for a request to a server.
    Slot {
        /// Target of the server.
        target: TargetId,
    },
    /// A lock that a client has requested from a lock server.
    Lock {
        /// Target of the lock server.
        target: TargetId,
        /// Words of the name of the resource.
        resource: [u64; 4],
        /// Handle of the lock.
        handle: u64,
    },
    /// A lock that a target takes at its own lock server.
    OwnLock {
        /// Number of the lock server in this process.
        server: u64,
        /// Handle of the lock.
        handle: u64,
    },
    /// An inode or a name that another operation of the MDT keeps.
    Turn {
        /// Inode, or directory of the name.
        fid: Fid,
        /// Operation that keeps it.
        holder: OperationId,
        /// Ticket of that operation.
        ticket: u64,
    },
    /// A latch of the MDT's lock table.
    Latch {
        /// Operation that holds it.
        holder: OperationId,
    },
    /// A lock on a file (`flock`, `fcntl`) that another program holds.
    FileLock {
        /// The file.
        fid: Fid,
        /// Mount of the program.
        client: ClientUuid,
        /// Process id of the program there.
        pid: u32,
    },
    /// The lease of an MDT, which other clients release.
    Lease,
    /// The end of the recovery window: clients of the last run are awaited.
    Recovery,
    /// A transaction over several MDTs.
    Transaction {
        /// Index of its coordinator.
        coordinator: u16,
        /// Its number there.
        number: u64,
    },
    /// Anything else, by its place in the source.
    Place(&'static Location<'static>),
}

/// Number of stages.
pub const STAGES: usize = 10;

/// Stage of an operation that waiting time counts in.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(usize)]
pub enum Stage {
    /// Replies of MDTs and of the MGS.
    Mdt,
    /// Replies of OSTs.
    Ost,
    /// Connections, and free slots of them.
    Connection,
    /// Locks of clients.
    Lock,
    /// Inodes and names that other operations of an MDT use.
    Inode,
    /// Locks of programs on files.
    FileLock,
    /// Transactions over several MDTs.
    Transaction,
    /// Recovery windows.
    Recovery,
    /// Disks.
    Disk,
    /// Anything else.
    Other,
}

impl Stage {
    /// All stages, in the order of their numbers.
    pub const ALL: [Stage; STAGES] = [
        Stage::Mdt,
        Stage::Ost,
        Stage::Connection,
        Stage::Lock,
        Stage::Inode,
        Stage::FileLock,
        Stage::Transaction,
        Stage::Recovery,
        Stage::Disk,
        Stage::Other,
    ];

    /// Returns the name of the stage.
    pub const fn name(self) -> &'static str {
        match self {
            Stage::Mdt => "mdt",
            Stage::Ost => "ost",
            Stage::Connection => "connection",
            Stage::Lock => "lock",
            Stage::Inode => "inode",
            Stage::FileLock => "file_lock",
            Stage::Transaction => "transaction",
            Stage::Recovery => "recovery",
            Stage::Disk => "disk",
            Stage::Other => "other",
        }
    }
}

impl Cause {
    /// Returns the stage that the wait counts in.
    pub fn stage(&self) -> Stage {
        match self {
            Cause::Reply { target, .. } if target.kind == TargetKind::Ost => Stage::Ost,
            Cause::Reply { .. } => Stage::Mdt,
            Cause::Connection { .. } | Cause::Slot { .. } => Stage::Connection,
            Cause::Lock { .. } | Cause::OwnLock { .. } | Cause::Lease => Stage::Lock,
            Cause::Turn { .. } | Cause::Latch { .. } => Stage::Inode,
            Cause::FileLock { .. } => Stage::FileLock,
            Cause::Recovery => Stage::Recovery,
            Cause::Transaction { .. } => Stage::Transaction,
            Cause::Place(place) if place.file().contains("crates/store/") => Stage::Disk,
            Cause::Place(place) if place.file().contains("mds/src/transactions/") => Stage::Transaction,
            Cause::Place(place) if place.file().contains("mds/src/osts") => Stage::Ost,
            Cause::Place(_) => Stage::Other,
        }
    }
}
