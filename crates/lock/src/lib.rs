//! Lock engines: decide who may cache what, who waits, and who has to give up what. Pure: events and the time go in,
//! effects come out. Nothing here sends a message, reads a clock or waits.
//!
//! - [`lease`]: one lease per metadata target that says whether a client is the only one. While it is, the lease stands
//!   for every lock of the target.
//! - [`server`]: Lustre's LDLM of one target, for when there are several clients: resources, modes, extents and inode
//!   bits, growth, callbacks, glimpses, contention, deadlines, recovery.
//! - [`client`]: the cache of one client's locks at one target.
//! - [`flock`]: the locks that programs take on files.
//!
//! Who calls what, and what travels between them, is in `docs/design/locks.md`.

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
pub use lease::{Effect, Grant, LeaseEngine};
pub use mode::{MODES, Mode, ModeSet};
pub use resource::{
    Enqueue, EnqueueFlags, LockGrant, LockHandle, Lvb, Need, Outcome, Peer, Policy, Refusal, ResourceId,
    Wanted,
};
