//! The client: what a mount does, without any notion of how programs reach it.
//!
//! The parts of a [`Client`] have one method per file system operation. Each runs on the caller's thread from end to end, takes a
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
//! - Data may be held back only under the exclusive lease or a lock (`write_back`); a request to objects settles it first.
//! - I/O on one file is atomic by byte range (`file::ranges`); disjoint ranges run in parallel.
//! - No lock is held over a request to a server, except the byte ranges of a file.
//!
//! # Map
//!
//! Each part owns its state and uses only parts above it in this list.
//!
//! | part | what it owns |
//! | --- | --- |
//! | `node`, `handles`, `file` | inodes that the kernel knows, open files: plain state |
//! | `lease`, `locks` | what may be cached; who caches under locks is called through `locks::Holder` |
//! | `requests` | servers: MDTs, OSTs, those that join or are silent, capabilities, what may still be lost; every request |
//! | `faults` | the edge: failures leave as a status and, for faults, one line in the log |
//! | `layouts`, `objects`, `shards` | layouts of files, bytes to and from their objects, shards of directories |
//! | `write_back` | data that is held back |
//! | `data_locks` | locks of operations and groups on data, and giving up what is cached under them |
//! | `sizes`, `read_ahead` | sizes and attributes that are known better here; data fetched ahead |
//! | `inodes` | attributes, names and paths asked for; the root |
//! | `data` | reads, writes, cuts, copies, syncs |
//! | `placement`, `pages`, `statahead`, `listings` | places of new directories; directories read, ahead and merged |
//! | `names`, `opens` | names and attributes changed; files opened, closed, locked and leased |
//! | `client` | making and ending them, and giving the lease back |

mod base;
mod caller;
mod client;
mod config;
mod data;
mod data_locks;
mod faults;
mod file;
mod flocks;
mod handles;
mod inodes;
mod jobs;
mod kernel;
mod layouts;
mod lease;
mod listings;
mod locks;
mod names;
pub mod node;
mod objects;
mod open_dir;
mod opens;
mod pages;
mod placement;
mod read_ahead;
mod requests;
mod shards;
mod sizes;
mod statahead;
mod tasks;
mod tunables;
mod warrant;
mod write_back;

pub use caller::Caller;
pub use client::Client;
pub use config::{ClientConfig, MountInfo};
pub use data::read::Reader;
pub use data::replace::{SwapConditions, VersionFlush};
pub use data_locks::cover::LockedAhead;
pub use file::options::WriteOptions;
pub use inodes::{Absent, Found, Keep, Root};
pub use jobs::{DEFAULT_FORMAT, JobFormat, JobSource, JobVar, Jobs};
pub use kernel::KernelCaches;
pub use lease::Lease;
pub use locks::{LockCounts, Locks};
pub use names::Created;
pub use opens::OpenedFile;
pub use pages::ListedEntry;
pub use placement::place::DirQos;
pub use read_ahead::stats::{AheadStats, Counter};
pub use requests::joining::Newcomers;
pub use requests::statfs::TargetState;
pub use tunables::{ParallelIo, Tunables};
pub use write_back::tunables::{OstWriteBack, WriteBackStats, WriteBackTunables};

// The words of requests that a front door speaks, so that it need not know how they travel.
pub use nacre_wire::mds::{
    FileLock, InodeKind, LeaseKind, LockFamily, LockMode, LockOwner, NewFile, OpenFlags, RenameFlags, Statfs,
    XattrFlags,
};
pub use nacre_wire::oss::{Advice, FallocateKind, SeekKind};
