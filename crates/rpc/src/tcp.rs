//! Frames over TCP.
//!
//! A server's connection is served by a few threads of which one reads (leader and followers): it reads a request, runs
//! it and sends the reply itself, and gives the reading to another thread only when the request is about to wait. A
//! client's caller sends its request itself and then reads; who finds somebody reading sleeps until its answer was put
//! where it belongs. So a request costs two system calls on each side and no hand-over between threads.
//!
//! What is sent is specified in `docs/protocol/`.

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
