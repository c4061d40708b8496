//! The channel against the kernel: real mounts over both transports.

mod blocking;
mod data;
mod life;
mod names;
mod notify;
mod support;
mod unprivileged;
