//! The operations, one file per group.

mod attr;
mod create;
mod data;
mod dir_default;
mod layout;
mod layout_edit;
mod link;
pub(crate) mod lookup;
mod misc;
mod open_close;
pub(crate) mod readdir;
pub(crate) mod relayout;
mod rename;
mod setattr;
mod silent;
mod striped;
mod unlink;
mod xattr;
mod xattr_acl;
mod xattr_system;

pub(crate) use dir_default::{inherited_default, put_default};
pub(crate) use striped::new_shard;
