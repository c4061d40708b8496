//! The lobby: half-open connections, from accept to admission.
//!
//! A few threads handle all of them with one epoll and without ever waiting for a peer: a connection gets a
//! thread when its first frame has arrived, its certificate is verified and its connect is admitted. So slow
//! peers and peers that send nothing cost a descriptor and a little memory each, and [`Limits`] bounds their
//! number.

use super::Shared;
use super::admission::{Admitted, Peer, judge};
use super::limits::{Arrival, Limits};
use crate::config::ServerConfig;
use crate::tcp::net::{END, EVENTS, Listener, Poll, Source, Stream};
use crate::tcp::socket::{Closed, Inbox, LinkError, Socket, TICK};
use crate::tcp::tls::{FIRST_BYTE, Handshake};
use nacre_env::clock::Instant;
use nacre_env::sync::Mutex;
use nacre_types::Security;
use nacre_types::{Identity, TargetId};
use nacre_wire::frame::{FrameKind, Header};
use rustls::server::UnbufferedServerConnection;
use std::collections::BTreeMap;
use std::io::{self, ErrorKind};
use std::net::{Shutdown, SocketAddr};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

/// Threads for half-open connections at most: they verify certificates, and leave half of the CPUs to known
/// clients.
const THREADS_MAX: usize = 4;
/// Connections that are accepted before other events are handled.
const ACCEPTS: usize = 64;
/// Pause after a failed accept, so that the loop does not spin.
const ACCEPT_RETRY: Duration = Duration::from_millis(100);
/// Interval at which a thread that serves a connection wakes up. A shorter one has no use while no frame has
/// begun, as the end of the socket wakes the thread; threads of idle connections that woke up ten times a
/// second took 7 % of a CPU on 8 MDTs with 32 mounts.
const READ_TICK: Duration = Duration::from_secs(5);
/// First name of connections in the poll; below are the end and the listeners.
const FIRST_ID: u64 = 1 << 32;

/// Returns the number of threads for half-open connections.
pub(super) fn threads() -> usize {
    nacre_env::thread::available_parallelism().map_or(1, usize::from).div_ceil(2).min(THREADS_MAX)
}

/// Progress of a connection.
enum Stage {
    /// Nothing received.
    Silent(Stream),
    /// In the handshake of TLS.
    Proving(Box<(Socket, Handshake<UnbufferedServerConnection>)>),
    /// Receiving its first frame.
    Connecting(Box<(Socket, Inbox)>, Peer),
}

struct HalfOpen {
    stage: Stage,
    peer: SocketAddr,
    deadline: Instant,
}

/// Result of handling a connection.
enum Outcome {
    /// It needs more bytes; whether it has made progress.
    Waits(HalfOpen, bool),
    Admitted(Box<(Socket, Inbox)>, Admitted),
    /// It ended; the reason, unless that says nothing about the peer.
    Ended(Option<String>),
    /// Refused after a valid connect, with the reason.
    Refused(Option<Arc<Identity>>, TargetId, String),
}

struct Room {
    limits: Limits,
    /// In order of arrival, and so of their deadlines. Connections that a thread is handling are not here.
    waiting: BTreeMap<u64, HalfOpen>,
    next: u64,
}

/// The half-open connections of a server, and its listeners.
pub(super) struct Lobby {
    poll: Poll,
    listeners: Vec<Listener>,
    room: Mutex<Room>,
}

impl Lobby {
    pub(super) fn new(listeners: Vec<Listener>, config: &ServerConfig) -> io::Result<Lobby> {
        let limits = Limits::new(config.half_open_max, config.half_open_per_host_max, config.connections_max);
        let room = Room { limits, waiting: BTreeMap::new(), next: FIRST_ID };
        let lobby = Lobby { poll: config.network.poll()?, listeners, room: Mutex::new(room) };
        for (listener, name) in lobby.listeners.iter().zip(END + 1..) {
            listener.prepare()?;
            lobby.poll.add(listener.source(), name)?;
        }
        Ok(lobby)
    }

    /// Waits for events, until the first deadline at most.
    fn wait(&self, names: &mut [u64; EVENTS]) -> usize {
        let first = self.room.lock().waiting.first_key_value().map(|(_, first)| first.deadline);
        let left =
            first.map(|first| first.saturating_duration_since(Instant::now()) + Duration::from_millis(1));
        self.poll.wait(names, left)
    }

    /// Stops accepting, and ends the threads.
    pub(super) fn close(&self) {
        self.poll.end();
        self.listeners.iter().for_each(Listener::close);
        let waiting = std::mem::take(&mut self.room.lock().waiting);
        drop(waiting);
    }

    pub(super) fn half_open(&self) -> usize {
        self.room.lock().limits.half_open()
    }

    /// Counts a connection of this peer that is served from now on.
    pub(super) fn connected(&self, peer: SocketAddr) {
        self.room.lock().limits.connected(peer.ip(), Instant::now());
    }

    /// Counts the end of a served connection.
    pub(super) fn disconnected(&self, peer: SocketAddr) {
        self.room.lock().limits.disconnected(peer.ip(), Instant::now());
    }
}

/// Runs one of the threads.
pub(super) fn run(shared: &Arc<Shared>) {
    let lobby = &shared.lobby;
    let mut names = [END; EVENTS];
    while !shared.is_stopping() {
        let count = lobby.wait(&mut names);
        end_late(shared);
        for &name in names.iter().take(count) {
            match name {
                END => break,
                name if name < FIRST_ID => {
                    if let Some(listener) =
                        usize::try_from(name - 1).ok().and_then(|at| lobby.listeners.get(at))
                    {
                        accept(shared, listener);
                        let _ = lobby.poll.again(listener.source(), name);
                    }
                }
                id => look_at(shared, id),
            }
        }
    }
    // Connections that arrived during the stop.
    lobby.close();
}

fn accept(shared: &Arc<Shared>, listener: &Listener) {
    for _ in 0..ACCEPTS {
        match listener.accept() {
            _ if shared.is_stopping() => return,
            Ok((stream, peer)) => arrive(shared, stream, peer),
            Err(error) if error.kind() == ErrorKind::WouldBlock => return,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => {
                // Most likely out of descriptors: half-open connections hold some.
                let gone = {
                    let mut room = shared.lobby.room.lock();
                    room.limits.make_room().map(|id| room.waiting.remove(&id))
                };
                if gone.is_none() {
                    log::warn!("accepting a connection failed: {error}");
                    nacre_env::thread::sleep(ACCEPT_RETRY);
                    return;
                }
            }
        }
    }
}

fn arrive(shared: &Arc<Shared>, stream: Stream, peer: SocketAddr) {
    // An IPv6 socket shows IPv4 peers with mapped addresses, which are used nowhere else.
    let peer = SocketAddr::new(peer.ip().to_canonical(), peer.port());
    let own = stream.own_ip().map(|own| own.to_canonical());
    let is_own = peer.ip().is_loopback() || own.is_ok_and(|own| own == peer.ip());
    let now = Instant::now();
    let mut room = shared.lobby.room.lock();
    let id = room.next;
    room.next += 1;
    let gone = match room.limits.arrive(peer.ip(), id, now, is_own) {
        Arrival::Taken(gone) => gone,
        Arrival::TooManyFailures => {
            drop(room);
            shared.refused(
                peer,
                None,
                None,
                "its host has failed too often, and has to wait for some seconds",
            );
            return;
        }
    };
    let gone: Vec<HalfOpen> = gone.iter().filter_map(|id| room.waiting.remove(id)).collect();
    let deadline = now + shared.config.handshake_max;
    match shared.lobby.poll.add(stream.source(), id) {
        Ok(()) => {
            room.waiting.insert(id, HalfOpen { stage: Stage::Silent(stream), peer, deadline });
        }
        Err(_) => drop(room.limits.leave(id)),
    }
    drop(room);
    for half_open in gone {
        shared.refused(half_open.peer, None, None, "it has not identified itself, and others wait");
    }
}

/// Ends connections past their deadline.
fn end_late(shared: &Shared) {
    let now = Instant::now();
    loop {
        let late = {
            let mut room = shared.lobby.room.lock();
            let first = room.waiting.first_entry().filter(|first| first.get().deadline <= now);
            let Some((id, half_open)) = first.map(|first| first.remove_entry()) else { return };
            room.limits.leave(id);
            room.limits.failed(half_open.peer.ip(), now);
            half_open
        };
        let what = match late.stage {
            Stage::Proving(_) => "prove its identity in time",
            Stage::Silent(_) | Stage::Connecting(..) => "say in time what it is",
        };
        shared.refused(late.peer, None, None, &format!("it did not {what}"));
    }
}

/// Handles received bytes of a connection.
fn look_at(shared: &Arc<Shared>, id: u64) {
    let Some(half_open) = shared.lobby.room.lock().waiting.remove(&id) else { return };
    let peer = half_open.peer;
    // A bug that a stranger's bytes trigger must not end this thread, which others need.
    let outcome = catch_unwind(AssertUnwindSafe(|| half_open.go_on(shared)));
    let fault = |_| Outcome::Ended(Some("of a fault in this program".to_owned()));
    let outcome = outcome.unwrap_or_else(fault);
    let mut room = shared.lobby.room.lock();
    match outcome {
        Outcome::Waits(half_open, got_further) => {
            if !room.limits.has(id) || shared.is_stopping() {
                // It was evicted meanwhile.
                drop(room);
                return;
            }
            if got_further {
                room.limits.progress(id);
            }
            match shared.lobby.poll.again(half_open.source(), id) {
                Ok(()) => {
                    room.waiting.insert(id, half_open);
                }
                Err(_) => drop(room.limits.leave(id)),
            }
        }
        Outcome::Admitted(link, admitted) => {
            room.limits.leave(id);
            drop(room);
            shared.lobby.poll.remove(link.0.source());
            let (socket, inbox) = *link;
            shared.serve(peer, socket, inbox, admitted);
        }
        Outcome::Ended(reason) => {
            room.limits.leave(id);
            if reason.is_some() {
                room.limits.failed(peer.ip(), Instant::now());
            }
            drop(room);
            match reason {
                Some(reason) => shared.refused(peer, None, None, &reason),
                None => log::debug!("connection from {peer} ended before it said anything"),
            }
        }
        Outcome::Refused(identity, target, reason) => {
            room.limits.leave(id);
            room.limits.failed(peer.ip(), Instant::now());
            drop(room);
            shared.refused(peer, identity.as_deref(), Some(target), &reason);
        }
    }
}

impl HalfOpen {
    fn source(&self) -> Source<'_> {
        match &self.stage {
            Stage::Silent(stream) => stream.source(),
            Stage::Proving(link) => link.0.source(),
            Stage::Connecting(link, _) => link.0.source(),
        }
    }

    /// Continues as far as the received bytes allow.
    fn go_on(self, shared: &Shared) -> Outcome {
        let HalfOpen { mut stage, peer, deadline } = self;
        let mut got_further = false;
        loop {
            let next = match stage {
                Stage::Silent(stream) => begin(shared, stream),
                Stage::Proving(link) => prove(link),
                Stage::Connecting(link, who) => {
                    return connect(shared, link, who, peer, deadline, got_further);
                }
            };
            match next {
                Next::Further(further) => (stage, got_further) = (further, true),
                Next::Same(same) => {
                    return Outcome::Waits(HalfOpen { stage: same, peer, deadline }, got_further);
                }
                Next::Ended(reason) => return Outcome::Ended(reason),
            }
        }
    }
}

/// Stage after this one.
enum Next {
    Further(Stage),
    Same(Stage),
    Ended(Option<String>),
}

/// Distinguishes TLS by the first byte.
fn begin(shared: &Shared, stream: Stream) -> Next {
    let first = match stream.peek() {
        Ok(Some(first)) => first,
        Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {
            return Next::Same(Stage::Silent(stream));
        }
        Ok(None) | Err(_) => return Next::Ended(None),
    };
    let stall_max = shared.config.stall_max;
    let own = stream.own_ip();
    let protection = own.map_or(Security::Encrypt, |own| shared.config.protection_at(own));
    let socket = match Socket::new(stream, stall_max, READ_TICK.min(stall_max / 4).max(TICK)) {
        Ok(socket) => socket,
        Err(error) => return Next::Ended(Some(error.to_string())),
    };
    let who = match &shared.config.tls {
        Some(tls) if first == FIRST_BYTE => {
            return match Handshake::of_server(tls, protection) {
                Ok(handshake) => Next::Further(Stage::Proving(Box::new((socket, handshake)))),
                Err(error) => Next::Ended(Some(error.to_string())),
            };
        }
        Some(_) if protection != Security::Open => Peer::Plain,
        _ => Peer::Open,
    };
    Next::Further(Stage::Connecting(Box::new((socket, Inbox::for_connect())), who))
}

/// Runs the handshake of TLS.
fn prove(mut link: Box<(Socket, Handshake<UnbufferedServerConnection>)>) -> Next {
    let mut piece = [0; 4096];
    loop {
        let (socket, handshake) = &mut *link;
        match socket.receive_arrived(&mut piece) {
            Ok(Some(0)) => return Next::Ended(Some("closed by the peer".to_owned())),
            Ok(Some(got)) => {
                if let Err(error) = handshake.take_in(piece.get(..got).unwrap_or_default()) {
                    return Next::Ended(Some(error.to_string()));
                }
            }
            Ok(None) => return Next::Same(Stage::Proving(link)),
            Err(error) => return Next::Ended(Some(error.to_string())),
        }
        let is_finished = handshake.advance();
        // A send buffer holds everything that a server sends in a handshake.
        let is_sent = socket.send_within(&[&handshake.to_send], Duration::ZERO);
        handshake.to_send.clear();
        match is_finished {
            Ok(_) if !is_sent => return Next::Ended(Some("it does not take the handshake".to_owned())),
            Ok(false) => {}
            Ok(true) => break,
            Err(error) => return Next::Ended(Some(error.to_string())),
        }
    }
    let (socket, handshake) = *link;
    match handshake.secured() {
        Ok(secured) => {
            socket.seal_with(secured.sealer);
            let mut inbox = Inbox::for_connect();
            inbox.open_with(secured.opener);
            let who = secured.peer.map_or(Peer::Unknown, Peer::Known);
            Next::Further(Stage::Connecting(Box::new((socket, inbox)), who))
        }
        Err(error) => Next::Ended(Some(error.to_string())),
    }
}

/// Receives the first frame, and answers it if that is a refusal.
fn connect(
    shared: &Shared,
    mut link: Box<(Socket, Inbox)>,
    who: Peer,
    peer: SocketAddr,
    deadline: Instant,
    got_further: bool,
) -> Outcome {
    let (socket, inbox) = &mut *link;
    let identity = match &who {
        Peer::Known(identity) => Some(identity.clone()),
        _ => None,
    };
    let (header, judged) = match inbox.peek_first(socket) {
        Ok(Some((header, body))) => (header, judge(shared, &header, body, who)),
        Ok(None) => {
            return Outcome::Waits(
                HalfOpen { stage: Stage::Connecting(link, who), peer, deadline },
                got_further,
            );
        }
        Err(LinkError::Closed(Closed::End)) if matches!(who, Peer::Open | Peer::Plain) => {
            return Outcome::Ended(None);
        }
        Err(LinkError::Closed(why)) => return Outcome::Ended(Some(why.to_string())),
        Err(LinkError::Idle | LinkError::Interrupted) => return Outcome::Ended(None),
    };
    match judged {
        Ok(admitted) => {
            inbox.take_peeked(&header);
            inbox.expect_short(nacre_types::limits::SHORT_IO_BYTES);
            Outcome::Admitted(link, admitted)
        }
        Err(refused) => {
            let mut reply = Header::new(FrameKind::Connected, header.target, header.xid);
            reply.status = refused.status;
            if reply.set_body(&refused.body).is_ok() {
                let bytes = reply.to_bytes();
                socket.send_within(&[&bytes, &refused.body, &[]], Duration::ZERO);
            }
            socket.shut_down(Shutdown::Write);
            Outcome::Refused(identity, header.target, refused.reason)
        }
    }
}
