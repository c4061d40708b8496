//! Sessions between a client and a target: they track requests in flight and run each at most once.
//!
//! Pure: no I/O, no clock, no thread. Time comes in and goes out as [`std::time::Duration`]; the rpc crate
//! does the waiting. The client half is [`client::Requests`] (xids and tags) and [`import::Import`] (state of
//! the connection to a target); the server half is [`server::ReplyCache`], one per client and target.
//!
//! Invariants, each with a property test:
//! - a modifying request runs at most once, however messages are resent, duplicated or reordered;
//! - a tag stands for one request at a time, and a stored reply lives until its client has received it or
//!   reuses the tag;
//! - everything is bounded by [`TAGS_MAX`].

pub mod client;
pub mod import;
pub mod server;

pub use client::{Requests, Ticket};
pub use import::{Backoff, Import, ImportState, Life, Recovery};
pub use server::{Begin, ReplyCache};

/// Reply slots that one target keeps for one client: its modifying requests in flight. Lustre's number.
pub const TAGS_MAX: u16 = 512;
