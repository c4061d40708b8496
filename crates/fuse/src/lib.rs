//! The FUSE kernel channel: mounts, and carries requests between the kernel and a [`Handler`], over
//! `/dev/fuse` or over io_uring.
//!
//! # Overview
//!
//! ```no_run
//! use std::sync::Arc;
//! use nacre_fuse::{Handler, Operation, Reply, Request, Session, SessionConfig};
//!
//! struct Empty;
//! impl Handler for Empty {
//!     fn handle(&self, request: &Request<'_>, reply: &mut Reply<'_>) {
//!         match request.op {
//!             Operation::Lookup { .. } => reply.error(libc::ENOENT),
//!             Operation::Forget { .. } | Operation::BatchForget { .. } => reply.none(),
//!             _ => reply.error(libc::ENOSYS),
//!         }
//!     }
//! }
//! let session = Session::mount(SessionConfig::new("/mnt"), Arc::new(Empty))?;
//! session.join()?;
//! # Ok::<(), nacre_fuse::Error>(())
//! ```
//!
//! - [`Session`] mounts, negotiates, starts the threads; [`SessionConfig`] has every option.
//! - [`Handler`] answers a [`Request`] (its [`Operation`] has the arguments, borrowed) through a [`Reply`],
//!   which writes into the transport's buffer. Reads fill [`Reply::read_buffer`], from which the kernel
//!   copies; data of writes is page-aligned. Neither allocates.
//! - Handlers are plain synchronous code. A wait is wrapped in [`nacre_env::blocking`], then another thread
//!   takes over; an interrupted request notices by [`nacre_env::interrupted`].
//! - [`Notifier`] invalidates the kernel's caches; its documentation says from where it may be called.
//! - [`nullfs::NullFs`] is a file system in memory that does as little as possible: the ceiling for
//!   benchmarks.
//!
//! # Map
//!
//! `abi` protocol numbers and structures; `request` bytes to [`Request`]; `reply` [`Reply`] to bytes;
//! `device` the descriptor; `mount` mount, unmount, stale mounts; `session` life of a mount; `transport` the
//! threads that wait for requests, `transport/dev` and `transport/uring`.

pub mod abi;
mod config;
mod device;
mod error;
pub mod front;
mod handler;
mod mount;
mod notify;
pub mod nullfs;
mod reply;
mod request;
mod session;
mod transport;
#[doc(hidden)]
pub mod untrusted;

pub use config::{MountOptions, ProtocolOptions, SessionConfig, ThreadOptions, Transport, TransportChoice};
pub use error::Error;
pub use handler::{Handler, InitConfig};
pub use mount::Unmount;
pub use notify::Notifier;
pub use reply::{DirBuffer, DirEntry, Entry, Opened, Reply};
pub use request::{
    CopyFileRange, ForgetList, InitRequest, Ioctl, Operation, Read, ReadDir, Request, SetAttr, SetTime,
    SetXattr, Write,
};
pub use session::Session;
