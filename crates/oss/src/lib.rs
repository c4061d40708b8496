//! The object server: one OST behind [`nacre_rpc::OssService`].
//!
//! [`ObjectServer`] checks what comes from the network, runs it on an [`ObjectStore`](nacre_store::object::ObjectStore)
//! on the caller's thread, and counts. It holds no lock over a write to the store and keeps no state of clients but what space
//! they were granted ([`grants`]): requests are idempotent, so a resend runs again.
//!
//! Does not decide who may do what: a client that knows an object's FID got it from an MDT.

mod arguments;
mod grants;
mod service;
mod stats;

pub use service::{AHEAD_MAX, DESTROY_MAX, ObjectServer, PRECREATE_MAX, STATFS_AGE_MAX, StopError};
pub use stats::Operation;
