//! Lock engines of the servers: decide who may cache what. Pure: events and the time go in, effects come out.
//!
//! [`lease`] is the whole of it so far: one lease per metadata target that says whether a client is the only one. It is
//! the place where Lustre's LDLM comes (locks per resource with modes, inode bits and extents); the shape is the same:
//! enqueue, grant, call back, release, evict. Nothing here sends a message, reads a clock or waits.

pub mod lease;

pub use lease::{Effect, Grant, LeaseEngine};
