//! The lock server of a target: the shell that metadata and object servers put around
//! [`nacre_lock::server::LockServer`], which decides and does nothing else.
//!
//! [`LockService`] keeps the engine under one mutex and performs what it asks for after letting go: completions, blocking
//! callbacks and glimpses go to the clients' exports, each client's in the order in which the engine made them; threads of
//! the target itself that wait for a lock ([`LockService::lock_local`]) are woken; clients that are late are evicted by
//! the [`Timer`] thread, which tells the target by its [`LockOwner`]. After a restart the service waits for clients of the
//! last run to bring back what they held ([`Expected`]).
//!
//! Messages and rules: `docs/design/locks.md`. Knows nothing of objects and inodes: sizes are asked from the owner.

mod exports;
mod local;
mod recovery;
mod requests;
mod service;
mod timer;

pub use local::LocalLock;
pub use nacre_lock::server::{ServerConfig, ServerStats};
pub use recovery::{Expected, RecoveryReport};
pub use service::{LockOwner, LockService};
pub use timer::Timer;
