//! The client: what a mount does, independent of how programs reach it.
//!
//! The parts of a [`Client`] have one method per file system operation. Each runs on the caller's thread from
//! end to end, takes a [`Caller`] and calls the metadata and object endpoints of `nacre_rpc`. The FUSE
//! translation is one user, a library would be another.
//!
//! # Invariants
//!
//! - A node id is the inode number of its FID, so ids can be turned into FIDs without a table ([`node`]); the
//!   table only holds what the kernel has looked up.
//! - Everything that may be cached depends on the [`Lease`]: while it is exclusive no other client can change
//!   anything, so sizes of open files are this client's and the kernel may keep names and attributes. When it
//!   becomes shared, the client drops its caches, reports sizes to the MDT, and acknowledges the revocation.
//! - While it is shared, names, attributes and data are cached under locks ([`locks`](Locks)).
//! - Data may be held back only under the exclusive lease or a lock (`write_back`); a request to objects
//!   flushes it first.
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
//! | `lease`, `locks` | the right to cache; parts that cache under locks are called through `locks::Holder` |
//! | `requests` | servers (MDTs, OSTs, joining and unresponsive ones), capabilities, losses; every request |
//! | `faults` | the edge: failures leave as a status and, for faults, one line in the log |
//! | `layouts`, `objects`, `shards` | layouts of files, I/O on their objects, shards of directories |
//! | `write_back` | data that is held back |
//! | `data_locks` | locks of operations and groups on data; dropping of what is cached under them |
//! | `sizes`, `read_ahead` | sizes and attributes newer than the MDT's; data fetched ahead |
//! | `inodes` | lookups of attributes, names and paths; the root |
//! | `data` | reads, writes, truncation, copies, syncs |
//! | `placement`, `pages`, `statahead`, `listings` | places of new directories; listings, statahead |
//! | `names`, `opens` | changes of names and attributes; files opened, closed, locked and leased |
//! | `client`, `remote` | construction and shutdown of all parts, release of the lease; recovery after an MDT was down |

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
mod quotas;
mod read_ahead;
mod remote;
mod requests;
mod shards;
mod sizes;
mod statahead;
mod tasks;
mod tunables;
mod validity;
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
pub use opens::{Held, OpenedFile};
pub use pages::ListedEntry;
pub use placement::place::DirQos;
pub use read_ahead::stats::{AheadStats, Counter};
pub use remote::RemoteEvents;
pub use requests::dir_use::DirUseTotal;
pub use requests::joining::Newcomers;
pub use requests::statfs::TargetState;
pub use tunables::{ParallelIo, Tunables};
pub use write_back::tunables::{OstWriteBack, WriteBackStats, WriteBackTunables};

// Types of requests that a front door passes in, so that it need not depend on the wire format.
pub use nacre_wire::mds::{
    FileLock, InodeKind, LeaseKind, LockFamily, LockMode, LockOwner, NewFile, OpenFlags, RenameFlags, Statfs,
    XattrFlags,
};
pub use nacre_wire::oss::{Advice, FallocateKind, SeekKind};
pub use nacre_wire::quota::{QuotaChange, QuotaReply, QuotaRequest, QuotaResourceState, QuotaState};
