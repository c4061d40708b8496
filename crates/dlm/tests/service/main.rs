//! The lock service with simulated clients: messages, waits, evictions.

mod local;
mod messages;
mod recovery;
mod support;
