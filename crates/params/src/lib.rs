//! Lustre's parameters: a tree of named values that can be read and set while a process runs.
//!
//! A name consists of components, separated by dots: `osc.nacre-OST0000-osc-5f1c0d2e.max_dirty_mb` is the
//! subsystem, the instance, and the parameter. The node of a process registers each parameter in a [`Tree`],
//! with functions that read and set it; `lctl` finds them by [`Pattern`]s. Values are text; [`value`] parses
//! numbers as Lustre's users write them. This crate does not know the meaning of any parameter.

mod entries;
pub mod jobs;
pub mod known;
pub mod pattern;
mod rule;
pub mod stats;
pub mod tree;
#[doc(hidden)]
pub mod untrusted;
pub mod value;

pub use entries::{Entries, Field, Form};
pub use jobs::JobStats;
pub use pattern::Pattern;
pub use rule::{LOG_WORDS, is_job_format};
pub use stats::{Event, EventStats, TIME_ROWS, thread_number};
pub use tree::{Access, Family, Found, Kind, Tree};
