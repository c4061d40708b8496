//! Operations, one module per group.

pub(crate) mod abi;
pub(crate) mod absent;
pub(crate) mod attr;
pub mod dir;
pub(crate) mod dot_lustre;
pub mod info;
pub(crate) mod intent;
pub(crate) mod lock;
pub(crate) mod migrate;
pub(crate) mod mkdir;
pub mod namespace;
pub mod open;
pub(crate) mod page_locks;
pub(crate) mod patience;
pub mod relayout;
pub(crate) mod removed;
pub(crate) mod root;
pub(crate) mod statahead;
pub(crate) mod striped;
pub(crate) mod xattr;
