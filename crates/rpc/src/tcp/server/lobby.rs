//! The lobby: half-open connections, from accept to admission.
//!
//! A few threads look after all of them, by one epoll and without ever waiting for a peer: a connection costs a thread when its first
//! frame is there, its certificate was verified and the request to connect is admitted. So peers that say nothing, or say it slowly,
//! cost a descriptor and a little memory each, of which [`Limits`] says how many there may be.

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

/// Most threads that look after half-open connections: they verify certificates, and leave half of the CPUs to clients that are known.
const THREADS_MAX: usize = 4;
/// Connections that are accepted before anything else is looked at.
const ACCEPTS: usize = 64;
/// Pause after a failed accept, so that the loop does not spin.
const ACCEPT_RETRY: Duration = Duration::from_millis(100);
/// A thread that serves a connection looks up so often. Nothing needs that while no frame has begun, as the end of the socket wakes
/// it; threads of idle connections that looked up ten times a second took 7 % of a CPU on 8 MDTs with 32 mounts.
const READ_TICK: Duration = Duration::from_secs(5);
/// Names of what the poll watches: the end, listeners behind it, connections from here on.
const FIRST_ID: u64 = 1 << 32;

/// Threads of a server that look after half-open connections.
pub(super) fn threads() -> usize {
    nacre_env::thread::available_parallelism().map_or(1, usize::from).div_ceil(2).min(THREADS_MAX)
}

/// How far a connection is.
enum Stage {
    /// It has said nothing.
    Silent(Stream),
    /// A handshake of TLS is under way.
    Proving(Box<(Socket, Handshake<UnbufferedServerConnection>)>),
    /// Its first frame is on the way.
    Connecting(Box<(Socket, Inbox)>, Peer),
}

struct HalfOpen {
    stage: Stage,
    peer: SocketAddr,
    deadline: Instant,
}

/// What looking at a connection led to.
enum Outcome {
    /// It goes on when more has come; whether it got further.
    Waits(HalfOpen, bool),
    Admitted(Box<(Socket, Inbox)>, Admitted),
    /// It ended; what for, unless that says nothing about the peer.
    Ended(Option<String>),
    /// The same of one that said what it wants.
    Refused(Option<Arc<Identity>>, TargetId, String),
}

struct Room {
    limits: Limits,
    /// In the order in which they came, and so in that of their deadlines. Those that a thread is looking at are not here.
    waiting: BTreeMap<u64, HalfOpen>,
    next: u64,
}

/// The half-open connections of a server, and what it listens on.
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

    /// Nothing more is accepted, and the threads end.
    pub(super) fn close(&self) {
        self.poll.end();
        self.listeners.iter().for_each(Listener::close);
        let waiting = std::mem::take(&mut self.room.lock().waiting);
        drop(waiting);
    }

    pub(super) fn half_open(&self) -> usize {
        self.room.lock().limits.half_open()
    }

    /// A connection of this peer is served now.
    pub(super) fn connected(&self, peer: SocketAddr) {
        self.room.lock().limits.connected(peer.ip(), Instant::now());
    }

    /// And is no more.
    pub(super) fn disconnected(&self, peer: SocketAddr) {
        self.room.lock().limits.disconnected(peer.ip(), Instant::now());
    }
}

/// What each of the threads does.
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
    // Connections that arrived while the server stopped.
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
                // Out of descriptors, most likely: those that have said nothing have some.
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
    // A socket of IPv6 shows peers of IPv4 by addresses that nobody else writes.
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
        shared.refused(half_open.peer, None, None, "it has not said who it is, and others wait");
    }
}

/// Ends those whose time is over.
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
            Stage::Proving(_) => "prove in time who it is",
            Stage::Silent(_) | Stage::Connecting(..) => "say in time what it is",
        };
        shared.refused(late.peer, None, None, &format!("it did not {what}"));
    }
}

/// Something has come on a connection.
fn look_at(shared: &Arc<Shared>, id: u64) {
    let Some(half_open) = shared.lobby.room.lock().waiting.remove(&id) else { return };
    let peer = half_open.peer;
    // A fault that bytes of a stranger uncover must not cost this thread, which others need.
    let outcome = catch_unwind(AssertUnwindSafe(|| half_open.go_on(shared)));
    let fault = |_| Outcome::Ended(Some("of a fault in this program".to_owned()));
    let outcome = outcome.unwrap_or_else(fault);
    let mut room = shared.lobby.room.lock();
    match outcome {
        Outcome::Waits(half_open, got_further) => {
            if !room.limits.has(id) || shared.is_stopping() {
                // It had to make room meanwhile.
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

    /// Goes on as far as what has come allows.
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

/// Where a stage leads.
enum Next {
    Further(Stage),
    Same(Stage),
    Ended(Option<String>),
}

/// The first byte says whether TLS is spoken.
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

/// The handshake of TLS.
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
        // A send buffer takes all that a server says in a handshake.
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

/// The first frame, and the answer if that is a refusal.
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
