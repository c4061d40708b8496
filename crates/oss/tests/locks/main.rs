//! Locks of an object target with several clients: locks held by clients, locks taken for requests,
//! callbacks, evictions.

mod restart;
mod sharing;
mod simulated;
mod support;
