//! The object server: one OST behind [`nacre_rpc::OssService`].
//!
//! [`ObjectServer`] validates requests from the network, runs them on an
//! [`ObjectStore`](nacre_store::object::ObjectStore) on the caller's thread, and counts them. Requests are
//! idempotent, so a resend runs again. State of clients: the space granted to them ([`grants`]), their locks
//! on objects ([`locks`], [`nacre_dlm`]), and on disk the list of clients with locks or kept changes ([`clients`]).
//! What is durable of their changes is in [`changes`], the replay of lost ones in [`replay`].
//!
//! The server makes no permission decisions: a capability proves that a metadata server has made one
//! ([`capabilities`]). Without keys, a client that knows an object's FID got it from an MDT.

mod arguments;
mod capabilities;
mod changes;
mod clients;
mod describe;
mod destroyed;
mod examine;
mod grants;
mod locks;
mod outcome;
mod quota;
mod reads;
mod replay;
mod room;
mod scrub;
mod seldom;
mod service;
mod stats;
mod stop;
mod tenants;
mod trim;
mod versions;

pub use room::STATFS_AGE_MAX;
pub use scrub::{DataScrub, DataScrubStatus};
pub use service::{AHEAD_MAX, DESTROY_MAX, Lead, ObjectServer, OssConfig, PRECREATE_MAX};
pub use stats::{Operation, PeerStats, SERVICES};
pub use stop::StopError;
