//! Messages between clients and servers.
//!
//! Each service has a request and a reply enum of borrowed or owned plain data. Inside one process they are
//! passed as they are; between processes [`frame`] and the codecs encode them in a specified form
//! (`docs/protocol/`), never a serializer's default. Bulk data (file contents) is not part of the enums: it
//! travels separately, so that it can be received directly into its destination.

#![cfg_attr(not(test), deny(clippy::unwrap_used, clippy::indexing_slicing))]

pub mod capabilities;
pub mod changelog;
pub mod codec;
mod common;
pub mod connect;
pub mod dir;
pub mod dir_use;
mod effects;
mod file_lock;
pub mod frame;
mod lease;
pub mod lock;
pub mod mds;
mod messages;
pub mod mgs;
pub mod oss;
pub mod peer;
pub mod quota;
pub mod replay;
mod roles;
mod statfs;
#[doc(hidden)]
pub mod untrusted;

pub use codec::{Decode, DecodeError, Encode, Reader};
pub use mds::{MdsReply, MdsRequest};
pub use mgs::{MgsReply, MgsRequest};
pub use oss::{OssReply, OssRequest};
