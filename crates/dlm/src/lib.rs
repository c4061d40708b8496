//! The lock server of a target: the shell that metadata and object servers put around
//! [`nacre_lock::server::LockServer`], which only decides.
//!
//! [`LockService`] keeps the engine under one mutex and performs its effects after releasing it: completions,
//! blocking callbacks and glimpses go to the clients' exports, each client's in the order in which the engine
//! produced them; threads of the target itself that wait for a lock ([`LockService::lock_local`]) are woken;
//! clients that miss a deadline are evicted by the [`Timer`] thread, which notifies the target through its
//! [`LockOwner`]. After a restart the service waits for clients of the last run to replay their locks
//! ([`Expected`]).
//!
//! Messages and rules: `docs/design/locks.md`. The crate has no notion of objects and inodes: it
//! asks the owner for sizes.

mod exports;
mod heads;
mod local;
mod recovery;
mod report;
mod requests;
mod service;
mod timer;

pub use heads::{Heads, Ticket};
pub use local::LocalLock;
pub use nacre_lock::server::{ServerConfig, ServerStats};
pub use recovery::{Expected, RecoveryReport};
pub use report::LockReport;
pub use service::{LockOwner, LockService, is_silent};
pub use timer::Timer;
