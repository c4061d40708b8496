//! State of a process for `nacre debug`: operations and waits of its threads, and holders of its locks.
//!
//! The process that is asked describes itself ([`state`](crate::node)); the command joins the answers of all
//! processes of a file system ([`chain`]).

pub mod chain;
pub mod record;
mod words;

pub use words::{operation_words, wait_words};

use nacre_env::activity::{Cause, Operation, Origin, Spent, Stage};
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// A question about the state of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Question {
    /// Threads, locks and clients. Answer: `debug`.
    State,
    /// Operations that took long. Answer: `slow`.
    Slow,
    /// Recent events. Answer: `events`.
    Events,
    /// Saves recent events in the run directory. Answer: `saved`.
    Save,
    /// Removes recent events and the log of slow operations. Answer: `done`.
    Clear,
}

/// State of a process.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct DebugState {
    /// Name of the process.
    pub name: String,
    /// Process id.
    pub pid: u32,
    /// Name of the file system.
    pub fsname: String,
    /// Identity of the process at servers.
    pub client: String,
    /// Targets that it serves.
    pub targets: Vec<String>,
    /// Directory of its mount.
    pub mount_point: Option<PathBuf>,
    /// Its threads.
    pub threads: Vec<ThreadShot>,
    /// Its lock servers.
    pub lock_servers: Vec<LockServerShot>,
    /// Its MDTs.
    pub mdts: Vec<MdtShot>,
    /// Its connections to targets in other processes.
    pub imports: Vec<ImportShot>,
    /// Lock servers that did not answer in time.
    #[serde(default)]
    pub silent: Vec<String>,
}

/// A connection to a target.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ImportShot {
    /// The target.
    pub target: String,
    /// State of the connection, as `import` shows it.
    pub state: String,
    /// Address in use, or the first known one.
    pub nid: String,
    /// Requests in flight.
    pub in_flight: u64,
    /// Requests that were resent.
    pub resent: u64,
}

/// A thread.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ThreadShot {
    /// Name.
    pub name: String,
    /// The kernel's id.
    pub tid: i32,
    /// State, as in `/proc/PID/stat`.
    pub state: char,
    /// Operations, the outermost first.
    pub operations: Vec<OperationShot>,
    /// What it waits for.
    pub wait: Option<WaitShot>,
    /// Operation of another thread that it works for, 0 for none.
    pub serves: u64,
}

/// A running operation, or one that has ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct OperationShot {
    /// Number in its process.
    pub id: u64,
    /// Name.
    pub name: String,
    /// Target that serves it; none for a mount.
    pub target: Option<String>,
    /// Inode or object.
    pub fid: Option<String>,
    /// Lock that it is about, 0 for none.
    pub lock: u64,
    /// Client that sent it.
    pub client: Option<String>,
    /// Address of the client.
    pub nid: Option<String>,
    /// Id of the request, 0 for none.
    pub xid: u64,
    /// Calling program.
    pub pid: Option<u32>,
    /// User of the calling program.
    pub uid: Option<u32>,
    /// Time since its start, or its duration.
    pub age_ms: u64,
    /// Time spent in each stage.
    pub stages: Vec<(String, u64)>,
}

impl OperationShot {
    /// Returns the description of an operation.
    pub fn new(id: u64, operation: &Operation, age: std::time::Duration, spent: &Spent) -> OperationShot {
        let (client, nid, xid, pid, uid) = match operation.origin {
            Origin::Client { client, nid, xid } => {
                (Some(client.to_string()), Some(nid.to_string()), xid, None, None)
            }
            Origin::Program { pid, uid } => (None, None, 0, Some(pid), Some(uid)),
            Origin::Own => (None, None, 0, None, None),
        };
        let stages = Stage::ALL.into_iter().zip(spent).filter(|(_, ns)| **ns >= 1_000_000);
        OperationShot {
            id,
            name: operation.name.to_lowercase(),
            target: operation.target.map(|target| target.to_string()),
            fid: operation.fid.map(|fid| fid.to_string()),
            lock: operation.lock,
            client,
            nid,
            xid,
            pid,
            uid,
            age_ms: millis(age),
            stages: stages.map(|(stage, ns)| (stage.name().to_owned(), ns / 1_000_000)).collect(),
        }
    }
}

/// An operation that took long.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SlowShot {
    /// Milliseconds from 1970 to its end.
    pub at_ms: u64,
    /// The operation; its age is its duration.
    pub operation: OperationShot,
    /// Result.
    pub result: String,
}

/// A wait.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WaitShot {
    /// Cause of the wait.
    pub cause: CauseShot,
    /// Duration until now.
    pub age_ms: u64,
}

/// Cause of a wait, see [`Cause`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "for", rename_all = "snake_case")]
#[allow(missing_docs)]
pub enum CauseShot {
    Reply { target: String, client: String, xid: u64 },
    Connection { target: String },
    Slot { target: String },
    Lock { target: String, resource: String, handle: u64 },
    OwnLock { server: u64, handle: u64 },
    Turn { fid: String, holder: u64, ticket: u64 },
    Latch { holder: u64 },
    FileLock { fid: String, client: String, pid: u32 },
    Lease,
    Recovery,
    Transaction { coordinator: String, number: u64 },
    Place { place: String },
}

impl From<Cause> for CauseShot {
    fn from(cause: Cause) -> CauseShot {
        match cause {
            Cause::Reply { target, client, xid } => {
                CauseShot::Reply { target: target.to_string(), client: client.to_string(), xid }
            }
            Cause::Connection { target } => CauseShot::Connection { target: target.to_string() },
            Cause::Slot { target } => CauseShot::Slot { target: target.to_string() },
            Cause::Lock { target, resource, handle } => CauseShot::Lock {
                target: target.to_string(),
                resource: nacre_lock::ResourceId(resource).to_string(),
                handle,
            },
            Cause::OwnLock { server, handle } => CauseShot::OwnLock { server, handle },
            Cause::Turn { fid, holder, ticket } => {
                CauseShot::Turn { fid: fid.to_string(), holder: holder.0, ticket }
            }
            Cause::Latch { holder } => CauseShot::Latch { holder: holder.0 },
            Cause::FileLock { fid, client, pid } => {
                CauseShot::FileLock { fid: fid.to_string(), client: client.to_string(), pid }
            }
            Cause::Lease => CauseShot::Lease,
            Cause::Recovery => CauseShot::Recovery,
            Cause::Transaction { coordinator, number } => CauseShot::Transaction {
                coordinator: nacre_types::TargetId::mdt(coordinator).to_string(),
                number,
            },
            Cause::Place(place) => CauseShot::Place { place: format!("{}:{}", place.file(), place.line()) },
        }
    }
}

/// A lock server.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LockServerShot {
    /// Its number in the process.
    pub server: u64,
    /// Target.
    pub target: String,
    /// Locks and requests.
    pub locks: u64,
    /// Resources.
    pub resources: u64,
    /// Requests that wait.
    pub waits: Vec<LockWaitShot>,
    /// Locks of the target itself, and the operations that hold them.
    pub holders: Vec<(u64, u64)>,
    /// Clients.
    pub clients: Vec<ClientShot>,
    /// Clients of the last run that are awaited.
    pub awaited: Vec<String>,
}

/// A request for a lock that waits.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LockWaitShot {
    /// Client; empty for the target itself.
    pub client: String,
    /// Handle.
    pub handle: u64,
    /// Resource.
    pub resource: String,
    /// Mode and part.
    pub need: String,
    /// What is in its way.
    pub blockers: Vec<BlockerShot>,
}

/// A lock in the way of a request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BlockerShot {
    /// Client; empty for the target itself.
    pub client: String,
    /// Handle.
    pub handle: u64,
    /// Mode and part.
    pub need: String,
    /// False for an earlier request that waits itself.
    pub is_granted: bool,
    /// Time since the blocking callback.
    pub called_for_ms: Option<u64>,
    /// Time until its client is evicted.
    pub evicted_in_ms: Option<u64>,
}

/// A client of a target.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClientShot {
    /// Identity.
    pub client: String,
    /// Address.
    pub nid: String,
    /// Process id, if it runs on the same host.
    pub pid: Option<u32>,
    /// It is an MDT.
    pub is_server: bool,
}

/// State of an MDT.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MdtShot {
    /// Target.
    pub target: String,
    /// Clients that hold the lease exclusive, or have not released it.
    pub lease_holders: Vec<String>,
    /// Clients and MDTs that are connected.
    pub clients: Vec<ClientShot>,
    /// Undecided transactions over several MDTs.
    pub transactions: Vec<TransactionShot>,
    /// Committed transactions that are not durable on all MDTs.
    pub unsettled: u64,
}

/// A transaction over several MDTs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TransactionShot {
    /// The MDT that decides it.
    pub coordinator: String,
    /// Its number there.
    pub number: u64,
    /// It waits for the decision of another MDT.
    pub is_prepared: bool,
    /// Ticket of its entries, 0 for none.
    pub ticket: u64,
    /// Time since it was prepared.
    pub age_ms: u64,
}

/// Returns a duration in milliseconds.
pub fn millis(time: std::time::Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}
