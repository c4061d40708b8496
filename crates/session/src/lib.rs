//! Sessions between a client and a target: which requests are under way, and that each runs at most once.
//!
//! Pure: no I/O, no clock, no thread. Time comes in and goes out as [`std::time::Duration`]; whoever performs the waiting
//! is in the rpc crate. The client half is [`client::Requests`] (xids and tags) and [`import::Import`] (state of the
//! connection to a target); the server half is [`server::ReplyCache`], one per client and target.
//!
//! Invariants, each with a property test:
//! - a modifying request runs at most once, whatever is resent, doubled or reordered;
//! - a tag stands for one request at a time, and a stored reply lives until its client has seen it or reuses the tag;
//! - everything is bounded by [`TAGS_MAX`].

pub mod client;
pub mod import;
pub mod server;

pub use client::{Requests, Ticket};
pub use import::{Backoff, Import, ImportState, Life, Recovery};
pub use server::{Begin, ReplyCache};

/// Modifying requests of one client that one target keeps replies for (Lustre reference 5.1: 512 tags).
pub const TAGS_MAX: u16 = 512;
