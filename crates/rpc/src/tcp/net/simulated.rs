//! A network in memory, for threads of a simulation: bytes arrive after a delay of its clock, and a test can
//! break connections, partition directions, and end processes.

use super::{END, EVENTS, Interest, Timeouts};
use crate::tcp::socket::TICK;
use nacre_env::clock::Instant;
use nacre_env::sync::{Condvar, Mutex};
use nacre_types::{ProcessIdentity, Status, StatusResult};
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
}

/// What a thread waits for: each has a condition of its own, so that bytes wake their receiver alone.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Topic {
    Link(u64),
    Poll(u64),
    /// Whatever lets a connect succeed.
    Connect,
}

/// Result of an attempt: success, or when it may succeed without a change of the state.
type Attempt<R> = std::result::Result<R, Option<Instant>>;

struct State {
    delay: Duration,
    /// Generator of further delays, and the longest of them.
    jitter: (fastrand::Rng, Duration),
    listeners: BTreeMap<SocketAddr, Listening>,
    links: BTreeMap<u64, Link>,
    cut: BTreeSet<(SocketAddr, Way)>,
    /// Hosts that do not reach others: from, to; `None` for all.
    severed: BTreeSet<(Option<IpAddr>, Option<IpAddr>)>,
    /// Addresses of hosts, by machine.
    hosts: BTreeMap<[u8; 16], IpAddr>,
    /// Processes that have ended: their threads may still run, and reach nothing.
    ended: Vec<ProcessIdentity>,
    polls: BTreeMap<u64, Watched>,
    conditions: BTreeMap<Topic, Arc<Condvar>>,
    next: u64,
    next_port: u16,
}

/// A listening address.
struct Listening {
    /// Number of the listener.
    id: u64,
    process: ProcessIdentity,
    /// Connections that are not accepted yet: their number, the client's address, and when they arrive.
    queue: VecDeque<(u64, SocketAddr, Instant)>,
}

/// A connection.
struct Link {
    server: SocketAddr,
    client: IpAddr,
    processes: [ProcessIdentity; 2],
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
    Listener(SocketAddr, u64),
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
            Source::Listener(addr, id) => self
                .listening(addr, id)
                .is_none_or(|listening| listening.queue.front().is_some_and(|first| first.2 <= now)),
            Source::Stream(id, way) => self.links.get(&id).is_none_or(|link| {
                let pipe = link.pipe(way);
                let has_come = pipe.chunks.front().is_some_and(|(at, _)| *at <= now);
                let ends = pipe.chunks.is_empty() && pipe.is_ended;
                link.is_broken || pipe.is_closed || !self.is_cut(link, way) && (has_come || ends)
            }),
        }
    }

    fn listening(&self, addr: SocketAddr, id: u64) -> Option<&Listening> {
        self.listeners.get(&addr).filter(|listening| listening.id == id)
    }

    fn is_cut(&self, link: &Link, way: Way) -> bool {
        self.cut.contains(&(link.server, way)) || self.is_severed(link.client, link.server.ip(), way)
    }

    fn is_severed(&self, client: IpAddr, server: IpAddr, way: Way) -> bool {
        let (from, to) = if way == Way::ToServer { (client, server) } else { (server, client) };
        let pairs = [(Some(from), Some(to)), (Some(from), None), (None, Some(to))];
        pairs.iter().any(|pair| self.severed.contains(pair))
    }

    /// Returns the delay of the next bytes.
    fn delay(&mut self) -> Duration {
        let (random, most) = &mut self.jitter;
        if most.is_zero() { self.delay } else { self.delay + most.mul_f64(random.f64()) }
    }

    /// Returns when this source becomes ready by the clock alone.
    fn arrival(&self, source: Source) -> Option<Instant> {
        match source {
            Source::Listener(addr, id) => self.listening(addr, id)?.queue.front().map(|first| first.2),
            Source::Stream(id, way) => {
                let link = self.links.get(&id)?;
                let first = link.pipe(way).chunks.front().map(|(at, _)| *at);
                first.filter(|_| !self.is_cut(link, way))
            }
        }
    }

    /// Returns the conditions of the threads that wait for a source.
    fn watchers(&self, watches: impl Fn(Source) -> bool) -> Vec<Arc<Condvar>> {
        let polls =
            self.polls.iter().filter(|(_, watched)| watched.sources.values().any(|own| watches(*own)));
        polls.filter_map(|(id, _)| self.conditions.get(&Topic::Poll(*id)).cloned()).collect()
    }

    /// Returns the conditions of the threads that wait for anything of a connection.
    fn of_link(&self, id: u64) -> Vec<Arc<Condvar>> {
        let mut all = self.watchers(|source| matches!(source, Source::Stream(other, _) if other == id));
        all.extend(self.conditions.get(&Topic::Link(id)).cloned());
        all
    }

    /// Drops one end of a connection, and the connection with the last one.
    fn drop_end(&mut self, id: u64) {
        let Some(link) = self.links.get_mut(&id) else { return };
        link.ends -= 1;
        if link.ends == 0 {
            self.links.remove(&id);
            self.conditions.remove(&Topic::Link(id));
        }
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
                jitter: (fastrand::Rng::with_seed(0), Duration::ZERO),
                severed: BTreeSet::new(),
                hosts: BTreeMap::new(),
                ended: Vec::new(),
                listeners: BTreeMap::new(),
                links: BTreeMap::new(),
                cut: BTreeSet::new(),
                polls: BTreeMap::new(),
                conditions: BTreeMap::new(),
                next: 0,
                next_port: FIRST_PORT,
            }),
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

    /// Adds a further delay to all bytes, up to `most`, as a generator with this seed determines.
    pub fn jitter(&self, seed: u64, most: Duration) {
        self.change(|state| state.jitter = (fastrand::Rng::with_seed(seed), most));
    }

    /// Sets the address from which the processes of a machine connect.
    pub fn place(&self, machine: [u8; 16], address: IpAddr) {
        self.change(|state| state.hosts.insert(machine, address));
    }

    /// Partitions hosts: bytes from the first to the second, `None` for all, arrive only after
    /// [`SimulatedNetwork::rejoin`].
    pub fn sever(&self, from: Option<IpAddr>, to: Option<IpAddr>) {
        self.change(|state| state.severed.insert((from, to)));
    }

    /// Ends such a partition.
    pub fn rejoin(&self, from: Option<IpAddr>, to: Option<IpAddr>) {
        self.change(|state| state.severed.remove(&(from, to)));
    }

    /// Ends a process: its connections break, its listening addresses close, and if its threads still run,
    /// they reach nothing.
    pub fn end_process(&self, process: &ProcessIdentity) {
        self.change(|state| {
            state.ended.push(*process);
            let ended = state.listeners.extract_if(.., |_, listening| listening.process == *process);
            let unaccepted: Vec<u64> =
                ended.flat_map(|(_, listening)| listening.queue).map(|(id, _, _)| id).collect();
            for id in unaccepted {
                state.drop_end(id);
            }
            let links = state.links.values_mut().filter(|link| link.processes.contains(process));
            links.for_each(|link| link.is_broken = true);
        });
    }

    /// Returns the number of connections that exist.
    pub fn connections(&self) -> usize {
        self.state.lock().links.len()
    }

    /// Changes what may concern any thread.
    fn change<R>(&self, change: impl FnOnce(&mut State) -> R) -> R {
        let (result, conditions) = {
            let mut state = self.state.lock();
            let result = change(&mut state);
            (result, state.conditions.values().cloned().collect::<Vec<_>>())
        };
        conditions.iter().for_each(|condition| condition.notify_all());
        result
    }

    /// Changes a connection.
    fn change_link<R>(&self, id: u64, change: impl FnOnce(&mut State) -> R) -> R {
        let (result, conditions) = {
            let mut state = self.state.lock();
            let result = change(&mut state);
            (result, state.of_link(id))
        };
        conditions.iter().for_each(|condition| condition.notify_all());
        result
    }

    /// Retries until `attempt` succeeds, or `until` has passed. `wakes` selects the conditions to notify of a
    /// success.
    fn wait<R>(
        &self,
        topic: Topic,
        until: Option<Instant>,
        wakes: impl Fn(&State, &R) -> Vec<Arc<Condvar>>,
        mut attempt: impl FnMut(&mut State, Instant) -> Attempt<R>,
    ) -> Option<R> {
        let mut state = self.state.lock();
        loop {
            let now = Instant::now();
            let next = match attempt(&mut state, now) {
                Ok(result) => {
                    let conditions = wakes(&state, &result);
                    drop(state);
                    conditions.iter().for_each(|condition| condition.notify_all());
                    return Some(result);
                }
                Err(next) => next.filter(|at| *at > now),
            };
            if until.is_some_and(|until| until <= now) {
                return None;
            }
            let condition = state.conditions.entry(topic).or_default().clone();
            match next.into_iter().chain(until).min() {
                Some(at) => drop(condition.wait_until(&mut state, at)),
                None => condition.wait(&mut state),
            }
        }
    }

    pub(super) fn listen(self: &Arc<Self>, addr: SocketAddr) -> io::Result<Listener> {
        let mut state = self.state.lock();
        let port = if addr.port() == 0 { state.free_port() } else { addr.port() };
        let addr = SocketAddr::new(addr.ip(), port);
        let process = nacre_env::own_process();
        if state.listeners.contains_key(&addr) || state.ended.contains(&process) {
            return Err(ErrorKind::AddrInUse.into());
        }
        state.next += 1;
        let id = state.next;
        state.listeners.insert(addr, Listening { id, process, queue: VecDeque::new() });
        Ok(Listener { network: self.clone(), addr, id })
    }

    pub(super) fn connect(
        self: &Arc<Self>,
        server: SocketAddr,
        go_on: &dyn Fn() -> StatusResult<()>,
    ) -> StatusResult<Stream> {
        let process = nacre_env::own_process();
        loop {
            let until = Instant::now() + TICK;
            let wakes = |state: &State, connected: &Option<(u64, IpAddr)>| match connected {
                Some(_) => {
                    state.watchers(|source| matches!(source, Source::Listener(addr, _) if addr == server))
                }
                None => Vec::new(),
            };
            let connected = self.wait(Topic::Connect, Some(until), wakes, |state, now| {
                if state.ended.contains(&process) {
                    return Ok(None);
                }
                let client = state.hosts.get(&process.machine).copied().unwrap_or(server.ip());
                let is_cut = |way: &Way| {
                    state.cut.contains(&(server, *way)) || state.is_severed(client, server.ip(), *way)
                };
                // A connect needs both directions.
                if [Way::ToServer, Way::ToClient].iter().any(is_cut) {
                    return Err(None);
                }
                let (id, arrives) = (state.next + 1, now + state.delay());
                let caller = SocketAddr::new(client, state.free_port());
                let Some(listening) = state.listeners.get_mut(&server) else { return Ok(None) };
                listening.queue.push_back((id, caller, arrives));
                state.next = id;
                let (to_server, to_client) = (Pipe::default(), Pipe::default());
                let processes = [process, listening.process];
                let link =
                    Link { server, client, processes, to_server, to_client, is_broken: false, ends: 2 };
                state.links.insert(id, link);
                Ok(Some((id, client)))
            });
            match connected {
                Some(Some((id, own))) => {
                    let network = self.clone();
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
        self.network.change_link(self.id, |state| {
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
        let wakes = |state: &State, _: &_| state.of_link(self.id);
        let sent = self.network.wait(Topic::Link(self.id), Some(until), wakes, |state, now| {
            let arrives = now + state.delay();
            let Some(link) = state.links.get_mut(&self.id) else { return Ok(Err(ErrorKind::BrokenPipe)) };
            if link.is_broken {
                return Ok(Err(ErrorKind::ConnectionReset));
            }
            let pipe = link.pipe_mut(self.way);
            if pipe.is_ended || pipe.is_dropped {
                return Ok(Err(ErrorKind::BrokenPipe));
            }
            let room = WINDOW.saturating_sub(pipe.on_the_way());
            let bytes: VecDeque<u8> =
                pieces.iter().flat_map(|piece| piece.iter().copied()).take(room).collect();
            let count = bytes.len();
            if count == 0 && pieces.iter().any(|piece| !piece.is_empty()) {
                return Err(None);
            }
            pipe.chunks.push_back((arrives, bytes));
            Ok(Ok(count))
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
        let wakes = |state: &State, _: &_| if keeps { Vec::new() } else { state.of_link(self.id) };
        let taken = self.network.wait(Topic::Link(self.id), Some(until), wakes, |state, now| {
            if !state.is_ready(self.source(), now) {
                return Err(state.arrival(self.source()));
            }
            let link = state.links.get_mut(&self.id).ok_or(None)?;
            if link.is_broken {
                return Ok(Err(ErrorKind::ConnectionReset));
            }
            let pipe = link.pipe_mut(self.back());
            Ok(Ok(if pipe.is_closed { 0 } else { pipe.take(pieces, now, keeps) }))
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
        let attempt = |state: &mut State, now| match can(state, now) {
            true => Ok(()),
            false => Err(state.arrival(self.source())),
        };
        self.network.wait(Topic::Link(self.id), Some(until), |_, ()| Vec::new(), attempt).is_some()
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        self.network.change_link(self.id, |state| {
            let Some(link) = state.links.get_mut(&self.id) else { return };
            link.pipe_mut(self.way).is_ended = true;
            let back = link.pipe_mut(self.back());
            (back.is_closed, back.is_dropped) = (true, true);
            state.drop_end(self.id);
        });
    }
}

/// A listening address.
pub(in crate::tcp) struct Listener {
    network: Arc<SimulatedNetwork>,
    addr: SocketAddr,
    id: u64,
}

impl Listener {
    pub(super) fn addr(&self) -> SocketAddr {
        self.addr
    }

    pub(super) fn source(&self) -> Source {
        Source::Listener(self.addr, self.id)
    }

    pub(super) fn accept(&self) -> io::Result<(Stream, SocketAddr)> {
        let now = Instant::now();
        let mut state = self.network.state.lock();
        let listening = state.listeners.get_mut(&self.addr).filter(|listening| listening.id == self.id);
        let queue = &mut listening.ok_or(ErrorKind::InvalidInput)?.queue;
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
            if state.listening(self.addr, self.id).is_none() {
                return;
            }
            let ended = state.listeners.remove(&self.addr);
            for (id, _, _) in ended.into_iter().flat_map(|listening| listening.queue) {
                state.links.entry(id).and_modify(|link| link.is_broken = true);
                state.drop_end(id);
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
        let condition = {
            let mut state = self.network.state.lock();
            state.polls.entry(self.id).or_default().sources.insert(name, source);
            state.conditions.get(&Topic::Poll(self.id)).cloned()
        };
        condition.iter().for_each(|condition| condition.notify_all());
    }

    pub(super) fn end(&self) {
        self.network.change(|state| state.polls.entry(self.id).or_default().has_ended = true);
    }

    pub(super) fn wait(&self, names: &mut [u64; EVENTS], limit: Option<Duration>) -> usize {
        let until = limit.map(|limit| Instant::now() + limit);
        let topic = Topic::Poll(self.id);
        let found = self.network.wait(
            topic,
            until,
            |_, _| Vec::new(),
            |state, now| {
                let watched = state.polls.get(&self.id).ok_or(None)?;
                let ready = watched.sources.iter().filter(|(_, source)| state.is_ready(**source, now));
                let mut ready: Vec<u64> = ready.map(|(name, _)| *name).take(EVENTS).collect();
                if watched.has_ended {
                    ready.insert(0, END);
                    ready.truncate(EVENTS);
                }
                if ready.is_empty() {
                    return Err(watched.sources.values().filter_map(|source| state.arrival(*source)).min());
                }
                let watched = state.polls.get_mut(&self.id).ok_or(None)?;
                watched.sources.retain(|name, _| !ready.contains(name));
                Ok(ready)
            },
        );
        let found = found.unwrap_or_default();
        names.iter_mut().zip(&found).for_each(|(slot, name)| *slot = *name);
        found.len()
    }
}

impl Drop for Poll {
    fn drop(&mut self) {
        self.network.change(|state| {
            state.polls.remove(&self.id);
            state.conditions.remove(&Topic::Poll(self.id));
        });
    }
}
