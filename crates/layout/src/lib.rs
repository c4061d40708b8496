//! Striping: which object holds which byte of a file.
//!
//! [`Layout`] is what the MDT stores and clients follow; [`stripe`] and [`ranges`] are the arithmetic;
//! [`spec`] is the requested striping before objects exist, and [`request`] the same for several components;
//! [`user`] is Lustre's binary form of all of them (`lov_user_md`, `lov_comp_md`), which is also the form on
//! disk. Everything is pure.
//!
//! A layout is a list of components. Plain (RAID-0) files have exactly one that covers the whole file;
//! composite layouts have several, each for a part of the file, which get their objects with the first write
//! there. Some of them [grow] as far as their OSTs have free space. [`written`] records which objects must
//! exist.
//!
//! [`dir_layout`] is the same for directories whose names are spread over MDTs, [`dir_hash`] has the hash
//! functions, and [`dir_default`] the layout that new directories get. [`rebuilt`] is for damaged files.

pub mod dir_default;
pub mod dir_hash;
pub mod dir_layout;
pub mod grow;
pub mod layout;
pub mod pool;
pub mod ranges;
pub mod rebuilt;
pub mod request;
pub mod spec;
pub mod stripe;
#[doc(hidden)]
pub mod untrusted;
pub mod user;
pub mod written;

pub use dir_default::{DirDefault, Inherit, InheritRoundRobin};
pub use dir_hash::DirHash;
pub use dir_layout::{DirChange, DirError, DirFlags, DirLayout, UserDir};
pub use grow::{Grown, Space};
pub use layout::{Component, ComponentFlags, Extent, Layout, LayoutForm, Pattern, StripeObject};
pub use pool::{PoolName, PoolNameError};
pub use ranges::{ObjectRange, object_ranges, object_sizes};
pub use request::{ComponentSpec, LayoutRequest};
pub use spec::{LayoutSpec, SpecError};
pub use stripe::{Chunk, chunks};
