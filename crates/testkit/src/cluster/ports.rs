//! TCP ports that no other file system under test uses, and that the kernel does not assign to other
//! programs.
//!
//! A port that was free a moment ago may be in use when a server that was just started, or killed and
//! restarted, listens on it: tests run in parallel, and each file system needs six ports. So each file system
//! has a block of ports for its lifetime.

use std::fs::File;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};

use rustix::fs::{FlockOperation, flock};
use rustix::net::sockopt::set_socket_reuseaddr;
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, socket_with};

use super::slot;

/// Below the ephemeral ports of Linux (from 32768 on), above the ports of common services.
const FIRST: u16 = 24_000;
/// Number of blocks.
const COUNT: usize = 250;
/// Ports per block.
pub(super) const LENGTH: u16 = 32;

/// A block of 32 ports, reserved until dropped.
#[derive(Debug)]
pub struct Ports {
    first: u16,
    _lock: File,
}

impl Ports {
    /// Reserves a free block.
    ///
    /// # Panics
    ///
    /// If there is none.
    pub fn take() -> Ports {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        let directory = slot::directory();
        // Not the block that was released last: a client that is about to end may still connect to its
        // servers there.
        let start = std::process::id() as usize + NEXT.fetch_add(1, Ordering::Relaxed);
        let mut blocks = (0..COUNT).map(|step| (start + step) % COUNT);
        let taken = blocks.find_map(|block| {
            let first = FIRST + u16::try_from(block).expect("few blocks") * LENGTH;
            let lock = File::create(directory.join(format!("ports-{first}"))).expect("the directory is ours");
            flock(&lock, FlockOperation::NonBlockingLockExclusive).ok()?;
            is_free(first..first + LENGTH).then_some(Ports { first, _lock: lock })
        });
        taken.expect("tests use few of the blocks of ports at a time")
    }

    /// Returns the first port.
    pub fn first(&self) -> u16 {
        self.first
    }
}

/// Returns whether no program listens on any of the ports. The sockets of the check do not listen themselves:
/// processes that other tests are just forking have copies of them, which would keep the port in use.
fn is_free(mut ports: Range<u16>) -> bool {
    ports.all(|port| {
        let socket = socket_with(AddressFamily::INET, SocketType::STREAM, SocketFlags::CLOEXEC, None);
        let socket = socket.expect("sockets can be made");
        set_socket_reuseaddr(&socket, true).expect("every socket has this option");
        bind(&socket, &SocketAddrV4::new(Ipv4Addr::LOCALHOST, port)).is_ok()
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    #[test]
    fn blocks_differ_as_long_as_they_are_held() {
        let held: Vec<Ports> = (0..COUNT / 10).map(|_| Ports::take()).collect();
        let mut firsts: Vec<u16> = held.iter().map(|ports| ports.first).collect();
        firsts.sort_unstable();
        firsts.dedup();
        assert_eq!(firsts.len(), held.len());
        let ports = firsts[0]..firsts[0] + LENGTH;
        let in_use = TcpListener::bind((Ipv4Addr::LOCALHOST, firsts[0] + 3)).expect("it is ours");
        assert!(!is_free(ports.clone()));
        drop(in_use);
    }
}
