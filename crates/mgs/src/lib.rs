//! The management server: the authoritative list of the targets of a file system, their addresses, and the
//! parameters that all nodes share.
//!
//! It owns a directory with one file, `config`. A change is durable before it is visible. The configuration
//! has one version, which grows with every change: a client with version N requests "newer than N" and waits.
//!
//! - [`state`]: the rules, as plain functions on [`nacre_wire::mgs::FsConfig`];
//! - [`params`]: the shared parameters, with their ranges;
//! - [`nodemaps`]: the rules for nodemaps;
//! - [`record`]: the file's text form;
//! - [`enrolment`]: the authority of the file system, and the keys that it issues;
//! - [`service`]: the thin part that locks, stores and wakes waiting requests.

pub mod enrolment;
pub mod error;
pub mod nodemaps;
pub mod params;
pub mod record;
pub mod service;
pub mod state;

pub use enrolment::Enrolment;
pub use error::Error;
pub use service::Mgs;
