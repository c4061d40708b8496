//! Lock engines: decide which client may cache what, which requests wait, and which locks have to be given
//! up. Pure: events and the time go in, effects come out. Nothing here sends a message, reads a clock or
//! blocks.
//!
//! - [`lease`]: one lease per metadata target that states whether a client is the only one. While it is, the
//!   lease stands for all locks of the target.
//! - [`server`]: Lustre's LDLM of one target, for several clients: resources, modes, extents and inode bits,
//!   lock growth, callbacks, glimpses, contention, deadlines, recovery.
//! - [`client`]: one client's cache of its locks at one target.
//! - [`flock`]: file locks of programs (`fcntl`, `flock`).
//!
//! `docs/design/locks.md` shows the callers of each engine and the messages between them.

mod bits;
mod extent;
mod hash;
mod holdings;
mod mode;
mod resource;
mod slab;
mod tree;

pub mod client;
pub mod flock;
pub mod lease;
pub mod server;

pub use bits::InodeBits;
pub use extent::{Extent, LOCK_PAGE_BYTES};
pub use lease::{Effect, Grant, LeaseEngine, SILENT_GRACE};
pub use mode::{MODES, Mode, ModeSet};
pub use resource::{
    Enqueue, EnqueueFlags, LockGrant, LockHandle, Lvb, Need, Outcome, Peer, Policy, Refusal, ResourceId,
    Wanted,
};
