//! The metadata server: one MDT's names, attributes, layouts, open handles and locks.
//!
//! Owns one metadata store and a dialogue with each OST. [`Mds`] implements [`nacre_rpc::MdsService`]; any thread may
//! call it. An operation locks the inodes it changes (`locks`), reads records (`cache` over the store), checks
//! permissions, builds one batch (`tx`), commits it and answers. Reads take no locks: each record is read whole, and a
//! name whose inode is gone was removed meanwhile, so it is looked up again.
//!
//! | module | what |
//! |---|---|
//! | `ops/*` | one file per group of requests |
//! | `plan/*` | the rules of the name space, as pure functions |
//! | `ground` | locks and records for a plan, on one MDT or several, and how it is carried out |
//! | `tables` | which key holds what; formats in `docs/formats/mdt.md` |
//! | `locks`, `turn` | inodes and names that operations have for themselves, and waiting for them |
//! | `commit` | what a request changes, its answer, and who hears of it |
//! | `names` | first links, extra links, losing the last name |
//! | `hash` | positions of names |
//! | `shards` | directories whose names lie in shards |
//! | `moving/*` | names that move between shards |
//! | `operations/*` | operations over several MDTs |
//! | `opens` | open handles and who writes |
//! | `capabilities` | what lets clients at the objects of files |
//! | `data` | data of files on this MDT, and how large it may be |
//! | `flocks` | file locks that programs take |
//! | `clients` | connect, leases, eviction, recovery after a restart |
//! | `filesets` | clients that see a subtree |
//! | `tenants`, `users` | effective credentials of clients, and requests that they may not send |
//! | `departed` | what is left to do for clients that are gone |
//! | `osts/*` | choosing OSTs, object ids, destruction of objects |
//! | [`check`] | offline check and repair |
//! | [`simulated`] | service times for measurements |
//!
//! Invariants: every change of an inode happens under its lock; a batch that failed to commit leaves no trace in memory;
//! nothing is sent to an OST for a transaction that is not durable yet, except that ids are reserved.
//!
//! Several MDTs: names hold FIDs of any MDT and no format assumes that parent and child are neighbours. `docs/design/dne.md`.

mod cache;
mod capabilities;
pub mod check;
mod clients;
mod commit;
mod config;
mod data;
mod departed;
mod error;
mod filesets;
mod flocks;
mod ground;
mod hash;
mod locks;
mod mdlocks;
mod mds;
mod moving;
mod names;
mod opens;
mod operations;
mod ops;
mod osts;
mod plan;
mod service;
mod shards;
pub mod simulated;
mod space;
mod stats;
mod tables;
mod tenants;
mod turn;
mod tx;
mod unowned;
mod users;

pub use config::{AppendLayout, DOM_STRIPE_BYTES, MdsConfig, first_layout};
pub use data::{DataWatch, data_reserve};
pub use error::MdsError;
pub use mds::{Mds, Osts};
pub use moving::MovingLimits;
pub use osts::{OstSet, Pools, Qos, Reserved};
pub use stats::{MdsStats, SERVICES};

#[cfg(test)]
mod tests;
