//! Striping: which object holds which byte of a file.
//!
//! [`Layout`] is what the MDT stores and clients follow; [`stripe`] is the arithmetic of one component; [`spec`] is what
//! a user asks for before objects exist; [`user`] is Lustre's binary form of both (`lov_user_md`), which is also our
//! on-disk form. Everything is pure.
//!
//! A layout is a list of components from the start, although plain (RAID-0) files have exactly one that covers the whole
//! file: composite layouts add components, not another type.

pub mod layout;
pub mod spec;
pub mod stripe;
pub mod user;

pub use layout::{Component, ComponentFlags, Extent, Layout, LayoutForm, PoolName, StripeObject};
pub use spec::{LayoutSpec, SpecError};
pub use stripe::{Chunk, chunks};
