//! The `block` back end: a raw device, or one large file, with an allocator of its own.

pub mod device;
