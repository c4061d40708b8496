//! The whole path in one process: kernel, translation, client and real servers, with one or more mounts.
//!
//! Needs root and `/dev/fuse`; without them every test reports that and passes.

mod caching;
mod files;
mod gone;
mod ioctls;
mod locks;
mod permissions;
mod support;
