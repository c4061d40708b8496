//! Quotas: what targets have counted, and how much each may let an id use.
//!
//! A target counts use by user, group and project in a [`Book`], and admits more up to a slice of the limit.
//! [`ObjectAccounts`] does the counting for a store of objects. The quota master, which is MDT0000, has the limits
//! and the uses of all targets in a [`Ledger`], and divides what is left among the targets that need it. Master and
//! targets exchange both in rounds.
//!
//! Invariants of the ledger: the slices in force for an id never add up to more than its limit, or than what is
//! used already; a slice shrinks at its target before another one grows by it. So a limit is exceeded only by data
//! that a target has to accept: that of clients which held it back under a grant.
//!
//! No I/O: callers carry the messages and store the records.

mod book;
mod ledger;
mod objects;
mod upkeep;

pub use book::{Account, Admission, Book, Payers, Saved};
pub use ledger::{Key, Ledger, Limit, Rounds, Target};
pub use objects::{Counted, ObjectAccounts, ObjectRecord, Objects, Owned};
pub use upkeep::Upkeep;
