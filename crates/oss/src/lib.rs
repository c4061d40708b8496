//! The object server: one OST behind [`nacre_rpc::OssService`].
//!
//! [`ObjectServer`] checks what comes from the network, runs it on an [`ObjectStore`](nacre_store::object::ObjectStore)
//! on the caller's thread, and counts. Requests are idempotent, so a resend runs again. What it keeps of clients are the
//! space that they were granted ([`grants`]), their locks on objects ([`locks`], [`nacre_dlm`]), and on disk who has
//! locks ([`clients`]).
//!
//! Makes no permission decisions: a capability proves that a metadata server has made one ([`capabilities`]). Where no keys are, a client
//! that knows an object's FID got it from an MDT.

mod arguments;
mod capabilities;
mod clients;
mod grants;
mod locks;
mod reads;
mod room;
mod seldom;
mod service;
mod stats;
mod tenants;
mod trim;
mod versions;

pub use room::STATFS_AGE_MAX;
pub use service::{AHEAD_MAX, DESTROY_MAX, ObjectServer, OssConfig, PRECREATE_MAX, StopError};
pub use stats::{Operation, PeerStats, SERVICES};
