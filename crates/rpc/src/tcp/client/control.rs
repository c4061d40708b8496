//! The control connection of a client: it receives callbacks and sends pings.

use super::peer::{Peer, is_refusal};
use crate::api::ClientCallbacks;
use crate::import::{ClockOffset, wall_us};
use crate::tcp::socket::{Inbox, LinkError, Socket, TICK};
use nacre_env::clock::Instant;
use nacre_env::sync::{Condvar, Mutex};
use nacre_env::thread::{JoinHandle, current};
use nacre_types::Xid;
use nacre_wire::Decode;
use nacre_wire::frame::{FrameKind, Header};
use nacre_wire::lock::ServerMessage;
use std::io;
use std::net::Shutdown;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Pause after the loss of the control connection while the target is reachable.
const RETRY: Duration = Duration::from_millis(100);
/// Pause after a refusal: it lasts until the client has another key, or an administrator changes the
/// configuration.
const RETRY_REFUSED: Duration = Duration::from_secs(5);

/// The thread of the control connection. Stops when dropped.
pub(crate) struct Control {
    peer: Arc<Peer>,
    socket: Arc<Mutex<Option<Arc<Socket>>>>,
    thread: Option<JoinHandle<()>>,
    ready: Arc<Ready>,
    ended: Arc<Ready>,
}

/// Set once: when the connection is set up, or when it has ended permanently.
#[derive(Default)]
struct Ready {
    is_ready: AtomicBool,
    waiting: Mutex<()>,
    came: Condvar,
}

impl Ready {
    /// Waits until it is set, as long as `go_on` returns true.
    fn wait(&self, until: Instant, go_on: impl Fn() -> bool) -> bool {
        let mut waiting = self.waiting.lock();
        while !self.is_ready.load(Ordering::Acquire) && Instant::now() < until && go_on() {
            self.came.wait_for(&mut waiting, TICK.min(until.saturating_duration_since(Instant::now())));
        }
        self.is_ready.load(Ordering::Acquire)
    }

    fn set(&self) {
        if !self.is_ready.swap(true, Ordering::AcqRel) {
            let _waiting = self.waiting.lock();
            self.came.notify_all();
        }
    }
}

impl Control {
    pub(crate) fn start(peer: &Arc<Peer>, events: Arc<dyn ClientCallbacks>) -> io::Result<Control> {
        let socket: Arc<Mutex<Option<Arc<Socket>>>> = Arc::default();
        let ready: Arc<Ready> = Arc::default();
        let ended: Arc<Ready> = Arc::default();
        let holder = Holder { peer: peer.clone(), place: socket.clone(), ready: ready.clone() };
        let thread_ended = ended.clone();
        let thread =
            nacre_env::thread::Builder::new().name(format!("ctl-{}", peer.target)).spawn(move || {
                holder.run(events.as_ref());
                thread_ended.set();
            })?;
        peer.note_control();
        Ok(Control { peer: peer.clone(), socket, thread: Some(thread), ready, ended })
    }

    /// Waits until the server has a way for callbacks to this client, for the first time: not in a recovery,
    /// which is earlier.
    pub(crate) fn wait_ready(&self, limit: Duration) {
        if self.ready.is_ready.load(Ordering::Acquire) || self.peer.is_recovering_here() {
            return;
        }
        let until = Instant::now() + limit;
        nacre_env::blocking(|| {
            self.ready.wait(until, || !nacre_env::interrupted() && !self.peer.is_stopping());
        });
    }

    /// Ends the connection of a client that is disconnecting ([`Peer::begin_leaving`]). Returns true if the
    /// connection has ended permanently in time.
    pub(crate) fn retire(&self, until: Instant) -> bool {
        if let Some(socket) = self.socket.lock().as_ref() {
            socket.shut_down(Shutdown::Both);
        }
        nacre_env::blocking(|| self.ended.wait(until, || true))
    }

    /// Ends all connections to the target.
    pub(crate) fn stop(&self) {
        self.peer.stop();
        if let Some(socket) = self.socket.lock().as_ref() {
            socket.shut_down(Shutdown::Both);
        }
    }
}

impl Drop for Control {
    fn drop(&mut self) {
        self.stop();
        // The receiver of callbacks may hold the last reference to the endpoint; then this is the control
        // thread itself, which ends without a join.
        if let Some(thread) = self.thread.take().filter(|thread| thread.thread().id() != current().id()) {
            // A panic of the thread was reported when it happened.
            let _ = thread.join();
        }
    }
}

/// State of the thread.
struct Holder {
    peer: Arc<Peer>,
    place: Arc<Mutex<Option<Arc<Socket>>>>,
    ready: Arc<Ready>,
}

impl Holder {
    fn run(&self, events: &dyn ClientCallbacks) {
        let peer = &self.peer;
        let mut refused = None;
        while !peer.is_leaving() {
            // A data connection first: it reconnects, restores handles and reports losses, even without a
            // caller.
            peer.sweep_connections();
            let greeting = peer.conn(None).and_then(|_| peer.greet_control());
            match greeting {
                Ok(greeting) if !peer.confirm(greeting.life()) => continue,
                Ok(greeting) => {
                    refused = None;
                    let socket = Arc::new(greeting.socket);
                    *self.place.lock() = Some(socket.clone());
                    self.ready.set();
                    // A stop or goodbye from before the socket was stored is noticed by `listen`, which asks
                    // first.
                    listen(peer, events, &socket, greeting.inbox);
                    *self.place.lock() = None;
                    if !peer.is_leaving() {
                        events.callbacks_lost();
                    }
                }
                Err(status) if is_refusal(status) => {
                    if refused.replace(status) != Some(status) {
                        log::error!("{} does not serve this client any more: {status}", peer.name());
                    }
                }
                Err(status) => log::debug!("control connection to {}: {status}", peer.name()),
            }
            if !peer.is_leaving() {
                // `ESHUTDOWN` ends the loop above.
                let _ = peer.rest(if refused.is_some() { RETRY_REFUSED } else { RETRY });
            }
        }
    }
}

/// Serves one control connection until it ends.
fn listen(peer: &Arc<Peer>, events: &dyn ClientCallbacks, socket: &Socket, mut inbox: Inbox) {
    let mut heard = Instant::now();
    let mut pinged = Instant::now();
    // Pings without an answer: the time of the last one says nothing about the answer to another.
    let mut unanswered = 0u32;
    let mut body = Vec::new();
    while !peer.is_leaving() {
        match inbox.header(socket, true) {
            Ok(header) => {
                heard = Instant::now();
                if inbox.body(socket, &header, &mut body).is_err()
                    || inbox.skip_bulk(socket, &header).is_err()
                {
                    break;
                }
                if header.kind == FrameKind::Pong {
                    peer.note_committed(header.xid.0);
                    unanswered = unanswered.saturating_sub(1);
                    if unanswered == 0 {
                        peer.note_clock(ClockOffset::of(header.acked.0, wall_us(), pinged.elapsed()));
                    }
                }
                if header.kind == FrameKind::Callback {
                    match ServerMessage::from_bytes(&body) {
                        Ok(ServerMessage::Lease(grant)) => events.lease_changed(grant),
                        Ok(ServerMessage::Lock(message)) => events.lock_message(message),
                        Err(error) => log::warn!("callback of {} not understood: {error}", peer.name()),
                    }
                }
            }
            Err(LinkError::Idle | LinkError::Interrupted) => {}
            Err(LinkError::Closed(why)) => {
                log::debug!("control connection to {} ended: {why}", peer.name());
                break;
            }
        }
        if peer.is_server_revoked() {
            log::error!("{}: the key of its server was revoked", peer.name());
            break;
        }
        if heard.elapsed() >= peer.config.dead_after {
            log::warn!("{} does not answer: connecting again", peer.name());
            peer.drop_connections();
            break;
        }
        if pinged.elapsed() >= peer.config.ping_interval {
            pinged = Instant::now();
            unanswered = unanswered.saturating_add(1);
            let bytes = Header::new(FrameKind::Ping, peer.target, Xid(0)).to_bytes();
            if socket.send_rest(&[&bytes, &[], &[]], 0).is_err() {
                break;
            }
            peer.sweep();
        }
    }
    socket.shut_down(Shutdown::Both);
}
