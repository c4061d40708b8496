//! The management server: the one place that knows which targets a file system has, where they are served, and which
//! parameters all nodes share.
//!
//! Owns one directory with one file, `config`. Every change is durable before anybody sees it, and the configuration
//! has one version that grows with every change, so that a client which has version N asks for "newer than N" and
//! waits.
//!
//! - [`state`]: the rules, as plain functions on [`nacre_wire::mgs::FsConfig`];
//! - [`params`]: the parameters that exist, with their ranges;
//! - [`nodemaps`]: the rules for these;
//! - [`record`]: the file's text form;
//! - [`enrolment`]: the authority of the file system, and the keys that it issues;
//! - [`service`]: the thin part that locks, stores and wakes who waits.

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
