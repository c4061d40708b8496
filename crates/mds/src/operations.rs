//! Operations over several MDTs.
//!
//! `docs/design/dne.md` has the protocol and what may fail. The [`Coordinator`] serves the MDT that a client asks, the [`Participant`] the
//! others; the [`Resolver`] does what is left after failures and in the background. What is known of operations is in [`state`].

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
pub(crate) use tree::TreeLock;
