//! The client side.

pub(crate) mod body;
pub(super) mod conn;
mod control;
mod endpoints;
pub(super) mod ends;
mod gate;
mod idle;
mod oss;
pub(super) mod peer;
pub(super) mod posts;
mod split;
mod trouble;
mod waiter;

pub use endpoints::{TcpMds, TcpMgs};
pub use oss::TcpOss;
pub use peer::{ClientIdentity, ClientStats, MdsEvents};
