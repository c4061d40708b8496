//! The client: what a mount does, without any notion of how programs reach it.
//!
//! [`Client`] has one method per file system operation. Each runs on the caller's thread from end to end, takes a
//! [`Caller`] and ends in calls of the metadata and object endpoints of `nacre_rpc`. The FUSE translation is one user,
//! a library would be another.
//!
//! # Invariants
//!
//! - A node id is the inode number of its FID, so ids can be turned into FIDs without a table ([`node`]); the table
//!   only holds what the kernel has looked up.
//! - Everything that may be cached hangs on the [`Lease`]: while it is exclusive nobody else can change anything, so
//!   sizes of open files are this client's and the kernel may keep names and attributes. When it becomes shared, the
//!   client drops what is cached, tells sizes to the MDT, and answers.
//! - While it is shared, names, attributes and data are cached under locks ([`locks`](Locks)).
//! - Data may be held back only under the exclusive lease or a lock ([`io::dirty`](io)); a request to objects settles it first.
//! - I/O on one file is atomic by byte range ([`io::ranges`]); disjoint ranges run in parallel.
//! - No lock is held over a request to a server, except the byte ranges of a file.
//!
//! # Map
//!
//! `client` construction and calls; `caller` credentials; `node` inodes that the kernel knows; `file` open files; `flocks` locks of programs;
//! `lease`; `locks` on data; `jobs` names of jobs; `targets` MDTs and OSTs; `joining` MDTs that are new; `tunables` parameters; `tasks` threads of its own; `io` bytes of files; `ops` everything else, one module per group of operations.

mod caller;
mod capabilities;
mod client;
mod config;
mod file;
mod flocks;
mod handles;
pub mod io;
mod jobs;
mod joining;
mod lease;
mod locks;
pub mod node;
mod ops;
mod place;
mod targets;
mod tasks;
mod tunables;
mod unsynced;

pub use caller::Caller;
pub use client::Client;
pub use config::ClientConfig;
pub use io::ahead::stats::{AheadStats, Counter};
pub use io::dirty::tunables::{OstWriteBack, WriteBackStats, WriteBackTunables};
pub use io::parallel::ParallelIo;
pub use io::write::WriteOptions;
pub use jobs::{DEFAULT_FORMAT, JobFormat, JobSource, JobVar, Jobs};
pub use joining::Newcomers;
pub use lease::{KernelCaches, Lease};
pub use locks::cover::LockedAhead;
pub use locks::{LockCounts, Locks};
pub use ops::dir::ListedEntry;
pub use ops::info::{MountInfo, TargetState};
pub use ops::namespace::{Absent, Created, Found, Keep};
pub use ops::open::OpenedFile;
pub use ops::relayout::{SwapConditions, VersionFlush};
pub use place::DirQos;
pub use tunables::Tunables;

// The words of requests that a front door speaks, so that it need not know how they travel.
pub use nacre_wire::mds::{
    FileLock, InodeKind, LeaseKind, LockFamily, LockMode, LockOwner, NewFile, OpenFlags, RenameFlags, Statfs,
    XattrFlags,
};
pub use nacre_wire::oss::{Advice, FallocateKind, SeekKind};
