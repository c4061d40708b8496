//! Bytes of files: from ranges to objects.

mod advise;
pub mod ahead;
mod cached;
pub(crate) mod dirty;
pub(crate) mod head;
pub(crate) mod layout;
pub(crate) mod objects;
pub(crate) mod opened;
pub mod parallel;
pub mod ranges;
pub(crate) mod read;
pub(crate) mod silent;
pub(crate) mod size;
pub(crate) mod space;
pub(crate) mod sync;
pub(crate) mod write;
pub(crate) mod written;
