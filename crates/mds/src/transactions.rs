//! Distributed transactions: transactions over several MDTs, by two-phase commit.
//!
//! `docs/design/dne.md` has the protocol and its failures. The [`Coordinator`] runs on the MDT that the
//! client asked, the [`Participant`] on the others; the [`Resolver`] completes transactions after failures
//! and in the background. [`state`] has the state of transactions.

mod coordinate;
mod elsewhere;
mod participate;
mod resolve;
pub(crate) mod state;
mod tree;

pub(crate) use coordinate::{Coordinator, Gathered};
pub(crate) use elsewhere::ShardLists;
pub(crate) use participate::Participant;
pub(crate) use resolve::Resolver;
pub use state::TransactionReport;
pub(crate) use tree::TreeLock;
