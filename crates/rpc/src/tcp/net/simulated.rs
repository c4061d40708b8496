//! A network in memory, for threads of a simulation: bytes arrive after a delay of its clock, and a test can
//! break connections or partition one direction.

use super::{END, EVENTS, Interest, Timeouts};
use crate::tcp::socket::TICK;
use nacre_env::clock::Instant;
use nacre_env::sync::{Condvar, Mutex};
use nacre_types::{Status, StatusResult};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt;
use std::io::{self, ErrorKind, IoSlice, IoSliceMut};
use std::net::{IpAddr, Shutdown, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

/// Bytes in transit in one direction of a connection at most.
const WINDOW: usize = 256 << 10;
/// First of the ephemeral ports of clients, and of those that port 0 becomes.
const FIRST_PORT: u16 = 1024;

/// A direction of the connections to a server.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Way {
    /// From clients to the server.
    ToServer,
    /// From the server to clients.
    ToClient,
}

/// The network of one simulation.
pub struct SimulatedNetwork {
    state: Mutex<State>,
    /// Signalled when bytes arrive or may be sent.
    changed: Condvar,
}

struct State {
    delay: Duration,
    /// Connections that are not accepted yet: their number, the client's address, and when they arrive.
    listeners: BTreeMap<SocketAddr, VecDeque<(u64, SocketAddr, Instant)>>,
    links: BTreeMap<u64, Link>,
    cut: BTreeSet<(SocketAddr, Way)>,
    polls: BTreeMap<u64, Watched>,
    next: u64,
    next_port: u16,
}

/// A connection.
struct Link {
    server: SocketAddr,
    to_server: Pipe,
    to_client: Pipe,
    is_broken: bool,
    /// Ends that still exist.
    ends: u8,
}

/// One direction of a connection.
#[derive(Default)]
struct Pipe {
    chunks: VecDeque<(Instant, VecDeque<u8>)>,
    /// The sender has closed its side.
    is_ended: bool,
    /// The receiver has closed its side.
    is_closed: bool,
    /// The receiver's end was dropped.
    is_dropped: bool,
}

#[derive(Default)]
struct Watched {
    sources: BTreeMap<u64, Source>,
    has_ended: bool,
}

/// A source that a poll watches.
#[derive(Clone, Copy)]
pub(in crate::tcp) enum Source {
    Stream(u64, Way),
    Listener(SocketAddr),
}

impl Pipe {
    fn on_the_way(&self) -> usize {
        self.chunks.iter().map(|(_, bytes)| bytes.len()).sum()
    }

    /// Takes bytes that have arrived, or peeks at them.
    fn take(&mut self, pieces: &mut [IoSliceMut<'_>], now: Instant, keeps: bool) -> usize {
        let mut taken = 0;
        for piece in pieces {
            let mut room = &mut **piece;
            while !room.is_empty() {
                let Some((_, bytes)) = self.chunks.front_mut().filter(|(at, _)| *at <= now) else {
                    return taken;
                };
                let count = room.len().min(bytes.len());
                let (filled, rest) = room.split_at_mut(count);
                filled.iter_mut().zip(bytes.iter()).for_each(|(slot, byte)| *slot = *byte);
                taken += count;
                room = rest;
                if keeps {
                    return taken;
                }
                bytes.drain(..count);
                if bytes.is_empty() {
                    self.chunks.pop_front();
                }
            }
        }
        taken
    }
}

impl Link {
    fn pipe(&self, way: Way) -> &Pipe {
        match way {
            Way::ToServer => &self.to_server,
            Way::ToClient => &self.to_client,
        }
    }

    fn pipe_mut(&mut self, way: Way) -> &mut Pipe {
        match way {
            Way::ToServer => &mut self.to_server,
            Way::ToClient => &mut self.to_client,
        }
    }
}

impl State {
    /// Returns true if something can be received from this source, if only the end.
    fn is_ready(&self, source: Source, now: Instant) -> bool {
        match source {
            Source::Listener(addr) => self
                .listeners
                .get(&addr)
                .is_none_or(|queue| queue.front().is_some_and(|first| first.2 <= now)),
            Source::Stream(id, way) => self.links.get(&id).is_none_or(|link| {
                let pipe = link.pipe(way);
                let has_come = pipe.chunks.front().is_some_and(|(at, _)| *at <= now);
                let ends = pipe.chunks.is_empty() && pipe.is_ended;
                link.is_broken || pipe.is_closed || !self.is_cut(link, way) && (has_come || ends)
            }),
        }
    }

    fn is_cut(&self, link: &Link, way: Way) -> bool {
        self.cut.contains(&(link.server, way))
    }

    /// Returns when the next bytes arrive.
    fn next_arrival(&self, now: Instant) -> Option<Instant> {
        let pipes = self.links.values().flat_map(|link| [&link.to_server, &link.to_client]);
        let chunks = pipes.filter_map(|pipe| pipe.chunks.front().map(|(at, _)| *at));
        let calls = self.listeners.values().filter_map(|queue| queue.front().map(|first| first.2));
        chunks.chain(calls).filter(|at| *at > now).min()
    }

    fn free_port(&mut self) -> u16 {
        self.next_port = self.next_port.checked_add(1).unwrap_or(FIRST_PORT);
        self.next_port
    }
}

impl SimulatedNetwork {
    /// Creates a network whose bytes arrive after `delay`.
    pub fn new(delay: Duration) -> Arc<SimulatedNetwork> {
        Arc::new(SimulatedNetwork {
            state: Mutex::new(State {
                delay,
                listeners: BTreeMap::new(),
                links: BTreeMap::new(),
                cut: BTreeSet::new(),
                polls: BTreeMap::new(),
                next: 0,
                next_port: FIRST_PORT,
            }),
            changed: Condvar::new(),
        })
    }

    /// Breaks all connections to a server: bytes in transit are lost. Returns their number.
    pub fn break_connections(&self, server: SocketAddr) -> usize {
        self.change(|state| {
            let links = state.links.values_mut().filter(|link| link.server == server && !link.is_broken);
            links.map(|link| link.is_broken = true).count()
        })
    }

    /// Partitions a direction: bytes sent this way arrive only after [`SimulatedNetwork::join`].
    pub fn cut(&self, server: SocketAddr, way: Way) {
        self.change(|state| state.cut.insert((server, way)));
    }

    /// Ends a partition.
    pub fn join(&self, server: SocketAddr, way: Way) {
        self.change(|state| state.cut.remove(&(server, way)));
    }

    fn change<R>(&self, change: impl FnOnce(&mut State) -> R) -> R {
        let result = change(&mut self.state.lock());
        self.changed.notify_all();
        result
    }

    /// Retries until `attempt` returns a result, or `until` has passed.
    fn wait<R>(
        &self,
        until: Option<Instant>,
        mut attempt: impl FnMut(&mut State, Instant) -> Option<R>,
    ) -> Option<R> {
        let mut state = self.state.lock();
        loop {
            let now = Instant::now();
            if let Some(result) = attempt(&mut state, now) {
                drop(state);
                self.changed.notify_all();
                return Some(result);
            }
            if until.is_some_and(|until| until <= now) {
                return None;
            }
            match state.next_arrival(now).into_iter().chain(until).min() {
                Some(at) => drop(self.changed.wait_until(&mut state, at)),
                None => self.changed.wait(&mut state),
            }
        }
    }

    pub(super) fn listen(self: &Arc<Self>, addr: SocketAddr) -> io::Result<Listener> {
        let mut state = self.state.lock();
        let port = if addr.port() == 0 { state.free_port() } else { addr.port() };
        let addr = SocketAddr::new(addr.ip(), port);
        if state.listeners.contains_key(&addr) {
            return Err(ErrorKind::AddrInUse.into());
        }
        state.listeners.insert(addr, VecDeque::new());
        Ok(Listener { network: self.clone(), addr })
    }

    pub(super) fn connect(
        self: &Arc<Self>,
        server: SocketAddr,
        go_on: &dyn Fn() -> StatusResult<()>,
    ) -> StatusResult<Stream> {
        loop {
            let until = Instant::now() + TICK;
            let connected = self.wait(Some(until), |state, now| {
                // A connect needs both directions.
                if [Way::ToServer, Way::ToClient].iter().any(|way| state.cut.contains(&(server, *way))) {
                    return None;
                }
                let (id, arrives) = (state.next, now + state.delay);
                let caller = SocketAddr::new(server.ip(), state.free_port());
                let Some(queue) = state.listeners.get_mut(&server) else { return Some(None) };
                queue.push_back((id, caller, arrives));
                state.next += 1;
                let (to_server, to_client) = (Pipe::default(), Pipe::default());
                state.links.insert(id, Link { server, to_server, to_client, is_broken: false, ends: 2 });
                Some(Some(id))
            });
            match connected {
                Some(Some(id)) => {
                    let (network, own) = (self.clone(), server.ip());
                    return Ok(Stream { network, id, own, way: Way::ToServer, timeouts: None });
                }
                Some(None) => return Err(Status::ECONNREFUSED),
                None => go_on()?,
            }
        }
    }

    pub(super) fn poll(self: &Arc<Self>) -> Poll {
        let id = self.change(|state| {
            state.next += 1;
            state.polls.insert(state.next, Watched::default());
            state.next
        });
        Poll { network: self.clone(), id }
    }
}

impl fmt::Debug for SimulatedNetwork {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("simulated network")
    }
}

/// One end of a connection.
pub(in crate::tcp) struct Stream {
    network: Arc<SimulatedNetwork>,
    id: u64,
    own: IpAddr,
    /// Direction in which it sends.
    way: Way,
    /// Timeouts of calls; without them calls do not wait.
    pub(super) timeouts: Option<Timeouts>,
}

impl Stream {
    /// Returns the direction in which it receives.
    fn back(&self) -> Way {
        if self.way == Way::ToServer { Way::ToClient } else { Way::ToServer }
    }

    pub(super) fn source(&self) -> Source {
        Source::Stream(self.id, self.back())
    }

    pub(super) fn own_ip(&self) -> IpAddr {
        self.own
    }

    pub(super) fn shut_down(&self, how: Shutdown) {
        self.network.change(|state| {
            let Some(link) = state.links.get_mut(&self.id) else { return };
            link.pipe_mut(self.way).is_ended |= how != Shutdown::Read;
            link.pipe_mut(self.back()).is_closed |= how != Shutdown::Write;
        });
    }

    fn until(&self, waits: bool, limit: impl Fn(&Timeouts) -> Duration) -> Instant {
        let timeouts = self.timeouts.as_ref().filter(|_| waits);
        Instant::now() + timeouts.map_or(Duration::ZERO, limit)
    }

    pub(super) fn send(&self, pieces: &[IoSlice<'_>], waits: bool) -> io::Result<usize> {
        let until = self.until(waits, |timeouts| timeouts.send);
        let sent = self.network.wait(Some(until), |state, now| {
            let arrives = now + state.delay;
            let Some(link) = state.links.get_mut(&self.id) else { return Some(Err(ErrorKind::BrokenPipe)) };
            if link.is_broken {
                return Some(Err(ErrorKind::ConnectionReset));
            }
            let pipe = link.pipe_mut(self.way);
            if pipe.is_ended || pipe.is_dropped {
                return Some(Err(ErrorKind::BrokenPipe));
            }
            let room = WINDOW.saturating_sub(pipe.on_the_way());
            let bytes: VecDeque<u8> =
                pieces.iter().flat_map(|piece| piece.iter().copied()).take(room).collect();
            let count = bytes.len();
            if count == 0 && pieces.iter().any(|piece| !piece.is_empty()) {
                return None;
            }
            pipe.chunks.push_back((arrives, bytes));
            Some(Ok(count))
        });
        sent.unwrap_or(Err(ErrorKind::WouldBlock)).map_err(io::Error::from)
    }

    pub(super) fn receive(&self, pieces: &mut [IoSliceMut<'_>], waits: bool) -> io::Result<usize> {
        self.take(pieces, self.until(waits, |timeouts| timeouts.receive), false)
    }

    pub(super) fn peek(&self, first: &mut [u8]) -> io::Result<usize> {
        self.take(&mut [IoSliceMut::new(first)], Instant::now(), true)
    }

    fn take(&self, pieces: &mut [IoSliceMut<'_>], until: Instant, keeps: bool) -> io::Result<usize> {
        let taken = self.network.wait(Some(until), |state, now| {
            if !state.is_ready(self.source(), now) {
                return None;
            }
            let link = state.links.get_mut(&self.id)?;
            if link.is_broken {
                return Some(Err(ErrorKind::ConnectionReset));
            }
            let pipe = link.pipe_mut(self.back());
            Some(Ok(if pipe.is_closed { 0 } else { pipe.take(pieces, now, keeps) }))
        });
        taken.unwrap_or(Err(ErrorKind::WouldBlock)).map_err(io::Error::from)
    }

    /// Waits until something can be sent or received; returns whether it can.
    pub(super) fn wait(&self, interest: Interest, limit: Duration) -> bool {
        let can = |state: &mut State, now| match interest {
            Interest::Receive => state.is_ready(self.source(), now),
            Interest::Send => state.links.get(&self.id).is_none_or(|link| {
                let pipe = link.pipe(self.way);
                link.is_broken || pipe.is_ended || pipe.is_dropped || pipe.on_the_way() < WINDOW
            }),
        };
        let until = Instant::now() + limit;
        self.network.wait(Some(until), |state, now| can(state, now).then_some(())).is_some()
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        self.network.change(|state| {
            let Some(link) = state.links.get_mut(&self.id) else { return };
            link.pipe_mut(self.way).is_ended = true;
            let back = link.pipe_mut(self.back());
            (back.is_closed, back.is_dropped) = (true, true);
            link.ends -= 1;
            if link.ends == 0 {
                state.links.remove(&self.id);
            }
        });
    }
}

/// A listening address.
pub(in crate::tcp) struct Listener {
    network: Arc<SimulatedNetwork>,
    addr: SocketAddr,
}

impl Listener {
    pub(super) fn addr(&self) -> SocketAddr {
        self.addr
    }

    pub(super) fn source(&self) -> Source {
        Source::Listener(self.addr)
    }

    pub(super) fn accept(&self) -> io::Result<(Stream, SocketAddr)> {
        let now = Instant::now();
        let mut state = self.network.state.lock();
        let queue = state.listeners.get_mut(&self.addr).ok_or(ErrorKind::InvalidInput)?;
        if queue.front().is_none_or(|(_, _, at)| *at > now) {
            return Err(ErrorKind::WouldBlock.into());
        }
        let (id, caller, _) = queue.pop_front().ok_or(ErrorKind::WouldBlock)?;
        let (network, own) = (self.network.clone(), self.addr.ip());
        Ok((Stream { network, id, own, way: Way::ToClient, timeouts: None }, caller))
    }

    /// Stops listening and breaks the connections that were not accepted.
    pub(super) fn close(&self) {
        self.network.change(|state| {
            for (id, _, _) in state.listeners.remove(&self.addr).into_iter().flatten() {
                if let Some(link) = state.links.get_mut(&id) {
                    (link.is_broken, link.ends) = (true, link.ends - 1);
                }
            }
        });
    }
}

/// Watches sources of this network.
pub(in crate::tcp) struct Poll {
    network: Arc<SimulatedNetwork>,
    id: u64,
}

impl Poll {
    pub(super) fn watch(&self, source: Source, name: u64) {
        self.network.change(|state| {
            state.polls.entry(self.id).or_default().sources.insert(name, source);
        });
    }

    pub(super) fn end(&self) {
        self.network.change(|state| state.polls.entry(self.id).or_default().has_ended = true);
    }

    pub(super) fn wait(&self, names: &mut [u64; EVENTS], limit: Option<Duration>) -> usize {
        let until = limit.map(|limit| Instant::now() + limit);
        let found = self.network.wait(until, |state, now| {
            let watched = state.polls.get(&self.id)?;
            let ready = watched.sources.iter().filter(|(_, source)| state.is_ready(**source, now));
            let mut ready: Vec<u64> = ready.map(|(name, _)| *name).take(EVENTS).collect();
            if watched.has_ended {
                ready.insert(0, END);
                ready.truncate(EVENTS);
            }
            let watched = state.polls.get_mut(&self.id)?;
            watched.sources.retain(|name, _| !ready.contains(name));
            (!ready.is_empty()).then_some(ready)
        });
        let found = found.unwrap_or_default();
        names.iter_mut().zip(&found).for_each(|(slot, name)| *slot = *name);
        found.len()
    }
}

impl Drop for Poll {
    fn drop(&mut self) {
        self.network.change(|state| state.polls.remove(&self.id));
    }
}
