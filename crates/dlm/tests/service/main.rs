//! The lock service with clients that are not there: what they are told, who waits, who is evicted.

mod local;
mod messages;
mod recovery;
mod support;
