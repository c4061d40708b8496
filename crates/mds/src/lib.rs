//! The metadata server: one MDT's names, attributes, layouts, open handles and locks.
//!
//! Owns one metadata store and a dialogue with each OST. [`Mds`] implements [`nacre_rpc::MdsService`]; any
//! thread may call it. It builds the parts of the server and dispatches each request to the part that serves
//! it (`service`). Each part has private fields, which determine what it may use: the `leaves`, which depend
//! on no other part, the `core`, which depends on them, the parts below it, and never the server.
//!
//! An operation locks the inodes it changes (`locks`), reads records (`records`: the store behind a cache),
//! checks permissions, builds one batch (`tx`), commits it and answers. Reads take no locks: each record is
//! read whole, and a name whose inode was removed in the meantime is looked up again.
//!
//! | module | what |
//! |---|---|
//! | `mds`, `service` | opening and stopping; the requests, one by one |
//! | `leaves`, `core` | the parts without dependencies on others; those that depend on them and are shared |
//! | `namespace/*` | create, link, unlink, rename |
//! | `perform/*` | locks and records for a plan, on one MDT or several, and how it is carried out |
//! | `plan/*` | the rules of names, attributes and extended attributes, as pure functions |
//! | `lookups/*` | names, listings, attributes, paths |
//! | `attributes/*` | changes of attributes, ACLs and extended attributes |
//! | `open_files/*`, `opens` | opens, closes, sizes; open handles and writers |
//! | `layouts/*` | layouts, sizes and defaults in records |
//! | `layout_changes/*` | changes of layouts; objects for files |
//! | `records`, `cache` | inodes and names in the store, and in memory |
//! | `tables` | which key holds what; formats in `docs/formats/mdt.md` |
//! | `staging/*` | writes of plans and updates; first links, extra links, removal of the last name |
//! | `commit` | commits of requests with their answers, and callbacks to clients |
//! | `locks`, `suspend` | exclusive access to inodes and names, and waiting for it |
//! | `mdlocks` | locks that clients cache under, and their revocation |
//! | `shards`, `new_shards` | striped directories |
//! | `moving/*` | names and inodes that move to other shards and MDTs |
//! | `transactions/*` | distributed transactions |
//! | `placement` | placement of directories |
//! | `capabilities` | capabilities for objects of files |
//! | `changelog/*` | records of changes for registered users |
//! | `counting` | counts that follow commits, and their start from all records |
//! | `quota/*` | use by owner on this MDT; the quota master |
//! | `dir_use/*` | inodes and space below directories |
//! | `data`, `unowned` | data of files on this MDT, and how large it may be |
//! | `flocks` | file locks that programs take |
//! | `sessions`, `clients`, `recovery` | connect, leases, eviction, recovery after a restart |
//! | `filesets` | clients that see a subtree |
//! | `tenants`, `users` | effective credentials of clients, and requests that they may not send |
//! | `sharing` | changes that are durable before other clients learn of them |
//! | `departed` | deferred work of evictions |
//! | `osts/*` | choosing OSTs, object ids, destruction of objects |
//! | `stats`, `faults` | counters; lines of the log about requests that fail |
//! | `space` | free space of the MDT, and the number of inodes |
//! | [`check`] | offline check and repair |
//! | `scrub/*` | check in use |
//! | [`simulated`] | service times for measurements |
//!
//! Invariants: every change of an inode happens under its lock; a batch that failed to commit leaves no trace
//! in memory; nothing is sent to an OST for a transaction that is not durable yet, except that ids are
//! reserved.
//!
//! Several MDTs: names refer to FIDs of any MDT, and no format assumes that parent and child are on the same
//! one. See `docs/design/dne.md`.

mod attributes;
mod cache;
mod capabilities;
mod changelog;
pub mod check;
mod clients;
mod commit;
mod config;
mod core;
mod counting;
mod data;
mod departed;
mod dir_use;
mod error;
mod faults;
mod filesets;
mod flocks;
mod layout_changes;
mod layouts;
mod leaves;
mod locks;
mod lookups;
mod mdlocks;
mod mds;
mod moving;
mod namespace;
mod new_shards;
mod open_files;
mod opens;
mod osts;
mod perform;
mod placement;
mod plan;
mod quota;
mod records;
mod recovery;
mod replaced;
mod replay;
mod report;
mod scrub;
mod service;
mod sessions;
mod shards;
mod sharing;
mod signal;
pub mod simulated;
mod space;
mod staging;
mod stats;
mod suspend;
mod tables;
mod tenants;
mod transactions;
mod tx;
mod undurable;
mod unowned;
mod users;

pub use changelog::Changelog;
pub use changelog::settings::Settings as ChangelogSettings;
pub use config::{AppendLayout, DOM_STRIPE_BYTES, MdsConfig, SCRUB_RATE, first_layout};
pub use data::{DataWatch, data_reserve};
pub use error::MdsError;
pub use mds::Mds;
pub use moving::progress::MovingLimits;
pub use osts::{OstSet, Osts, Pools, Qos, Reserved};
pub use report::MdsReport;
pub use scrub::{Finding, Order, Phase, Scrub, ScrubStatus};
pub use stats::{MdsStats, SERVICES};
pub use transactions::TransactionReport;

#[cfg(test)]
mod tests;
