//! Frames over TCP.
//!
//! A few threads serve a connection of a server, and one of them reads (leader and followers): it reads a
//! request, runs it and sends the reply itself, and hands the reading over to another thread only when the
//! request is about to wait. A client's caller sends its request itself and then reads; if another thread is
//! already reading, the caller sleeps until that thread has delivered its answer. So a request costs two
//! system calls on each side and no hand-over between threads.
//!
//! `docs/protocol/` specifies the frames.

mod buffer;
mod client;
mod handshake;
mod host;
mod mac;
mod net;
mod records;
mod scratch;
mod server;
mod socket;
mod threads;
mod tls;
pub mod untrusted;

pub use client::{ClientIdentity, ClientStats, MdsEvents, TcpMds, TcpMgs, TcpOss};
pub use handshake::ping;
pub use net::{Network, SimulatedNetwork, Way};
pub use server::{Server, Targets};
pub(crate) use socket::TICK;
