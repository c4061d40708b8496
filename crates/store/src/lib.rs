//! Local stores below the services: [`MetaStore`] for metadata and small indexes, object stores for file
//! data.
//!
//! A store knows no network, clients or namespace rules; it keeps bytes under keys and defines exactly when
//! they are durable. Formats: `docs/formats/metadata-store.md`.

mod aligned;
mod exclusive;
mod group_commit;
pub mod meta;
pub mod object;

pub use meta::{Batch, MetaError, MetaStore, MetaStoreOptions, Table, TransNo};
