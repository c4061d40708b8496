//! The network under connections: sockets of the kernel, or memory in a simulation.
//!
//! The transport reaches its peers through this module only. The dispatch between both costs a comparison for
//! each system call.

mod simulated;

pub use simulated::{SimulatedNetwork, Way};

use super::socket::TICK;
use nacre_env::clock::Instant;
use nacre_types::{Status, StatusResult};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, epoll};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvFlags, SendAncillaryBuffer, SendFlags, SocketFlags, SocketType, sockopt,
};
use std::io::{self, IoSlice, IoSliceMut, Read};
use std::net::{IpAddr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

/// Idle time before the kernel probes the peer's host.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(30);
/// Time between two keepalive probes.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(10);
/// Unanswered probes before the connection is dead.
const KEEPALIVE_COUNT: u32 = 3;
/// Longest time that sent data may stay unacknowledged, in milliseconds.
const USER_TIMEOUT_MS: u32 = 30_000;
/// Connections that the kernel queues until they are accepted. Beyond them it ignores a peer, which retries
/// after a second.
const BACKLOG: i32 = 4096;
/// Events that one poll returns at most; the others are left for other threads.
pub(super) const EVENTS: usize = 4;
/// Name of the event that ends a poll.
pub(super) const END: u64 = 0;

/// Network in which connections are set up.
#[derive(Clone, Debug, Default)]
pub enum Network {
    /// The kernel's network.
    #[default]
    Host,
    /// Memory, for threads of a simulation.
    Simulated(Arc<SimulatedNetwork>),
}

impl Network {
    /// Listens on an address; port 0 picks a free one.
    pub(super) fn listen(&self, addr: SocketAddr) -> io::Result<Listener> {
        Ok(match self {
            // The standard library sets SO_REUSEADDR, so a restarted server need not wait for old connections
            // to time out.
            Network::Host => Listener::Host(TcpListener::bind(addr)?),
            Network::Simulated(network) => Listener::Simulated(network.listen(addr)?),
        })
    }

    /// Connects; the deadline or an error of `may_wait` ends the attempt.
    pub(super) fn connect(
        &self,
        addr: SocketAddr,
        deadline: Instant,
        may_wait: &dyn Fn() -> StatusResult<()>,
    ) -> StatusResult<Stream> {
        let go_on = || {
            may_wait()?;
            if Instant::now() >= deadline { Err(Status::ETIMEDOUT) } else { Ok(()) }
        };
        match self {
            Network::Host => connect_host(addr, &go_on).map(Stream::Host),
            Network::Simulated(network) => network.connect(addr, &go_on).map(Stream::Simulated),
        }
    }

    pub(super) fn poll(&self) -> io::Result<Poll> {
        Ok(match self {
            Network::Host => {
                let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
                let end = rustix::event::eventfd(0, EventfdFlags::CLOEXEC)?;
                epoll::add(&epoll, &end, epoll::EventData::new_u64(END), epoll::EventFlags::IN)?;
                Poll::Host { epoll, end }
            }
            Network::Simulated(network) => Poll::Simulated(network.poll()),
        })
    }
}

fn connect_host(addr: SocketAddr, go_on: &dyn Fn() -> StatusResult<()>) -> StatusResult<TcpStream> {
    let failed = |error: io::Error| Status::from_io(&error);
    let family = if addr.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(family, SocketType::STREAM, flags, None);
    let stream = TcpStream::from(socket.map_err(|errno| failed(errno.into()))?);
    match rustix::net::connect(&stream, &addr) {
        Ok(()) => return Ok(stream),
        Err(Errno::INPROGRESS | Errno::INTR) => {}
        Err(errno) => return Err(failed(errno.into())),
    }
    while !poll_fd(stream.as_fd(), PollFlags::OUT, TICK) {
        go_on()?;
    }
    match stream.take_error().map_err(failed)? {
        None => Ok(stream),
        Some(error) => Err(failed(error)),
    }
}

fn poll_fd(fd: BorrowedFd<'_>, events: PollFlags, limit: Duration) -> bool {
    rustix::event::poll(&mut [PollFd::from_borrowed_fd(fd, events)], Some(&timespec(limit)))
        .is_ok_and(|ready| ready > 0)
}

fn timespec(limit: Duration) -> Timespec {
    Timespec::try_from(limit).unwrap_or(Timespec { tv_sec: i64::MAX, tv_nsec: 0 })
}

/// Timeouts of the calls of a connection.
#[derive(Clone, Copy, Debug)]
pub(super) struct Timeouts {
    pub(super) receive: Duration,
    pub(super) send: Duration,
}

/// Readiness that a thread waits for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Interest {
    Receive,
    Send,
}

/// One end of a connection.
pub(super) enum Stream {
    Host(TcpStream),
    Simulated(simulated::Stream),
}

impl Stream {
    /// Sets the options that the transport relies on.
    pub(super) fn configure(&mut self, timeouts: Timeouts) -> io::Result<()> {
        match self {
            Stream::Host(stream) => {
                stream.set_nonblocking(false)?;
                stream.set_nodelay(true)?;
                stream.set_read_timeout(Some(timeouts.receive))?;
                stream.set_write_timeout(Some(timeouts.send))?;
                sockopt::set_socket_keepalive(&*stream, true)?;
                sockopt::set_tcp_keepidle(&*stream, KEEPALIVE_IDLE)?;
                sockopt::set_tcp_keepintvl(&*stream, KEEPALIVE_INTERVAL)?;
                sockopt::set_tcp_keepcnt(&*stream, KEEPALIVE_COUNT)?;
                sockopt::set_tcp_user_timeout(&*stream, USER_TIMEOUT_MS)?;
            }
            Stream::Simulated(stream) => stream.timeouts = Some(timeouts),
        }
        Ok(())
    }

    /// Sets the size in bytes of the buffer for unacknowledged data.
    pub(super) fn set_send_buffer(&self, bytes: usize) -> io::Result<()> {
        match self {
            Stream::Host(stream) => Ok(sockopt::set_socket_send_buffer_size(stream, bytes)?),
            Stream::Simulated(_) => Ok(()),
        }
    }

    pub(super) fn shut_down(&self, how: Shutdown) {
        match self {
            // Fails only if the connection has ended already.
            Stream::Host(stream) => drop(stream.shutdown(how)),
            Stream::Simulated(stream) => stream.shut_down(how),
        }
    }

    /// Sends some of these pieces.
    ///
    /// # Errors
    /// `WouldBlock` if the peer takes nothing; with `waits`, only after the send timeout.
    #[inline]
    pub(super) fn send(&self, pieces: &[IoSlice<'_>], waits: bool) -> io::Result<usize> {
        match self {
            Stream::Host(stream) => {
                let flags =
                    if waits { SendFlags::NOSIGNAL } else { SendFlags::NOSIGNAL | SendFlags::DONTWAIT };
                Ok(rustix::net::sendmsg(stream, pieces, &mut SendAncillaryBuffer::default(), flags)?)
            }
            Stream::Simulated(stream) => stream.send(pieces, waits),
        }
    }

    /// Receives available bytes, 0 at the end of the connection.
    ///
    /// # Errors
    /// `WouldBlock` if nothing is available; with `waits`, only after the receive timeout.
    #[inline]
    pub(super) fn receive(&self, buffer: &mut [u8], waits: bool) -> io::Result<usize> {
        match self {
            Stream::Host(stream) => {
                let flags = if waits { RecvFlags::empty() } else { RecvFlags::DONTWAIT };
                Ok(rustix::net::recv(stream, buffer, flags)?.1)
            }
            Stream::Simulated(stream) => stream.receive(&mut [IoSliceMut::new(buffer)], waits),
        }
    }

    /// Receives as `receive`, into several places in order.
    pub(super) fn receive_pieces(&self, pieces: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        match self {
            Stream::Host(stream) => (&*stream).read_vectored(pieces),
            Stream::Simulated(stream) => stream.receive(pieces, true),
        }
    }

    /// Returns the first byte without consuming it; `None` at the end of the connection.
    ///
    /// # Errors
    /// `WouldBlock` if it has not arrived.
    pub(super) fn peek(&self) -> io::Result<Option<u8>> {
        let mut first = [0];
        let got = match self {
            Stream::Host(stream) => {
                rustix::net::recv(stream, &mut first, RecvFlags::DONTWAIT | RecvFlags::PEEK)?.1
            }
            Stream::Simulated(stream) => stream.peek(&mut first)?,
        };
        Ok(first.first().copied().filter(|_| got > 0))
    }

    /// Waits until the connection is ready or has failed; returns whether it is.
    pub(super) fn poll(&self, interest: Interest, limit: Duration) -> bool {
        match self {
            Stream::Host(stream) => {
                let events = if interest == Interest::Send { PollFlags::OUT } else { PollFlags::IN };
                poll_fd(stream.as_fd(), events, limit)
            }
            Stream::Simulated(stream) => stream.wait(interest, limit),
        }
    }

    /// Returns the address of this end.
    pub(super) fn own_ip(&self) -> io::Result<IpAddr> {
        match self {
            Stream::Host(stream) => Ok(stream.local_addr()?.ip()),
            Stream::Simulated(stream) => Ok(stream.own_ip()),
        }
    }

    pub(super) fn source(&self) -> Source<'_> {
        match self {
            Stream::Host(stream) => Source::Host(stream.as_fd()),
            Stream::Simulated(stream) => Source::Simulated(stream.source()),
        }
    }
}

/// A listening socket.
pub(super) enum Listener {
    Host(TcpListener),
    Simulated(simulated::Listener),
}

impl Listener {
    /// Makes accepts non-blocking and the queue long.
    pub(super) fn prepare(&self) -> io::Result<()> {
        match self {
            Listener::Host(listener) => {
                listener.set_nonblocking(true)?;
                // A second call sets the length of the queue.
                Ok(rustix::net::listen(listener, BACKLOG)?)
            }
            Listener::Simulated(_) => Ok(()),
        }
    }

    /// Returns the next connection and the address of its peer.
    ///
    /// # Errors
    /// `WouldBlock` if there is none.
    pub(super) fn accept(&self) -> io::Result<(Stream, SocketAddr)> {
        match self {
            Listener::Host(listener) => listener.accept().map(|(stream, peer)| (Stream::Host(stream), peer)),
            Listener::Simulated(listener) => {
                listener.accept().map(|(stream, peer)| (Stream::Simulated(stream), peer))
            }
        }
    }

    pub(super) fn own_addr(&self) -> io::Result<SocketAddr> {
        match self {
            Listener::Host(listener) => listener.local_addr(),
            Listener::Simulated(listener) => Ok(listener.addr()),
        }
    }

    /// Stops listening.
    pub(super) fn close(&self) {
        match self {
            // Fails only if the listener is closed already.
            Listener::Host(listener) => drop(rustix::net::shutdown(listener, rustix::net::Shutdown::Both)),
            Listener::Simulated(listener) => listener.close(),
        }
    }

    pub(super) fn source(&self) -> Source<'_> {
        match self {
            Listener::Host(listener) => Source::Host(listener.as_fd()),
            Listener::Simulated(listener) => Source::Simulated(listener.source()),
        }
    }
}

/// A source that a poll can watch.
#[derive(Clone, Copy)]
pub(super) enum Source<'a> {
    Host(BorrowedFd<'a>),
    Simulated(simulated::Source),
}

/// Watches many sources for something to receive, each for one event at a time.
pub(super) enum Poll {
    Host { epoll: OwnedFd, end: OwnedFd },
    Simulated(simulated::Poll),
}

impl Poll {
    /// Watches a new source under a name of its own.
    pub(super) fn add(&self, source: Source<'_>, name: u64) -> io::Result<()> {
        match (self, source) {
            (Poll::Host { epoll, .. }, Source::Host(fd)) => {
                Ok(epoll::add(epoll, fd, epoll::EventData::new_u64(name), once())?)
            }
            _ => self.again(source, name),
        }
    }

    /// Rearms a source after its event.
    pub(super) fn again(&self, source: Source<'_>, name: u64) -> io::Result<()> {
        match (self, source) {
            (Poll::Host { epoll, .. }, Source::Host(fd)) => {
                Ok(epoll::modify(epoll, fd, epoll::EventData::new_u64(name), once())?)
            }
            (Poll::Simulated(poll), Source::Simulated(source)) => {
                poll.watch(source, name);
                Ok(())
            }
            _ => Err(io::ErrorKind::InvalidInput.into()),
        }
    }

    /// Stops watching a source that was not rearmed.
    pub(super) fn remove(&self, source: Source<'_>) {
        if let (Poll::Host { epoll, .. }, Source::Host(fd)) = (self, source) {
            // Fails only for a source that is not watched.
            let _ = epoll::delete(epoll, fd);
        }
    }

    /// Ends all waits, current and later ones, with an event named [`END`].
    pub(super) fn end(&self) {
        match self {
            // Fails only if the counter is full, which ends the waits as well.
            Poll::Host { end, .. } => drop(rustix::io::write(end, &1_u64.to_ne_bytes())),
            Poll::Simulated(poll) => poll.end(),
        }
    }

    /// Waits for events, for `limit` at most; stores their names in `names` and returns their number.
    pub(super) fn wait(&self, names: &mut [u64; EVENTS], limit: Option<Duration>) -> usize {
        match self {
            Poll::Host { epoll, .. } => {
                let none =
                    epoll::Event { flags: epoll::EventFlags::empty(), data: epoll::EventData::new_u64(0) };
                let mut events = [none; EVENTS];
                let limit = limit.map(timespec);
                let got = epoll::wait(epoll, &mut events[..], limit.as_ref()).unwrap_or(0);
                names.iter_mut().zip(&events).for_each(|(name, event)| *name = event.data.u64());
                got
            }
            Poll::Simulated(poll) => poll.wait(names, limit),
        }
    }
}

/// Returns the flags for one event (EPOLLONESHOT) at the next data to receive.
fn once() -> epoll::EventFlags {
    epoll::EventFlags::IN | epoll::EventFlags::RDHUP | epoll::EventFlags::ONESHOT
}
