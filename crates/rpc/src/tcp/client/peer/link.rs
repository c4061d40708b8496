//! Connections of a target: selection, connect, loss, reconnect.

use super::{Counters, Peer, Purpose, count};
use crate::import::{ImportInfo, LinkState};
use crate::stats::{Direction, RpcStats};
use crate::tcp::client::body::Body;
use crate::tcp::client::conn::Conn;
use crate::tcp::client::endpoints::round_trip;
use crate::tcp::client::ends::{End, Place, Way};
use crate::tcp::handshake::{self, Greeting};
use crate::tcp::socket::TICK;
use nacre_env::activity::{Cause, blocking_for};
use nacre_env::clock::Instant;
use nacre_env::sync::MutexGuard;
use nacre_session::{Import, ImportState, Recovery};
use nacre_types::{Explain, FailureResult, KeyId, Status, StatusResult, TargetKind};
use nacre_wire::Encode;
use nacre_wire::connect::Features;
use nacre_wire::oss::OssRequest;
use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

thread_local! {
    /// While this thread restores handles at a peer, its requests take this connection and do not wait for
    /// recovery.
    static RECOVERING: RefCell<Option<(usize, Arc<Conn>)>> = const { RefCell::new(None) };
}

impl Peer {
    pub(super) fn close_all(&self) {
        for conn in self.ends.iter().flat_map(End::take_conns) {
            conn.close(None);
        }
    }

    /// Polls idle connections for answers to posted requests and for losses; resends what was lost.
    pub(crate) fn sweep(self: &Arc<Self>) {
        self.sweep_connections();
        if self.flights.post_count() == 0 {
            return;
        }
        if let Ok(conn) = self.conn(None) {
            self.send_posts(&conn);
        }
    }

    /// Finds connections that have ended.
    pub(crate) fn sweep_connections(&self) {
        for conn in self.ends.iter().flat_map(End::conns) {
            conn.sweep();
            if conn.is_closed() {
                self.report_loss(&conn);
            }
        }
    }

    /// Closes connections that were idle for `idle_timeout`.
    pub(crate) fn close_idle(&self) {
        let Some(limit) = self.tunables.idle_timeout() else { return };
        for conn in self.ends.iter().flat_map(End::conns) {
            conn.close_if_idle(limit);
        }
    }

    /// Pings the server every `show_interval`, so that it does not evict an idle client. Called at intervals.
    pub(crate) fn show(self: &Arc<Self>) {
        if self.has_control.load(Ordering::Relaxed) || self.is_leaving() || self.instance() == 0 {
            return;
        }
        let mut shown = self.shown.lock();
        let interval = self.config.show_interval;
        let mut open = self.ends.iter().flat_map(End::conns).filter(|conn| !conn.is_closed());
        if open.any(|conn| !conn.is_quiet_for(interval / 2)) {
            return;
        }
        if shown.elapsed() < interval / 2 {
            return;
        }
        // A failed ping is repeated only after the same interval: a caller that needs the server connects
        // itself.
        *shown = Instant::now();
        drop(shown);
        let (peer, aside) = (self.clone(), self.aside());
        let started = self.threads.spawn(format!("show-{}", self.target), move || {
            let _aside = aside;
            if let Err(status) = round_trip(&peer, Body::plain(&OssRequest::Ping.to_bytes())) {
                log::debug!("{} was not shown that this client is there: {status}", peer.name());
            }
        });
        if let Err(error) = started {
            log::debug!("no thread to ask for {}: {error}", self.name());
        }
    }

    /// Sends posted requests that are on no connection.
    pub(crate) fn send_posts(&self, conn: &Conn) {
        for post in self.flights.take_unsent() {
            let mut header = self.header(&post.ticket, post.resent);
            let body = post.body().for_conn(conn, &mut header);
            if header.set_body(body).is_ok() {
                conn.post(&header, body);
            }
        }
    }

    /// Waits until the server has answered every request posted so far.
    ///
    /// # Errors
    /// `EINTR`, `ESHUTDOWN`.
    pub(crate) fn wait_for_posts(self: &Arc<Self>) -> StatusResult<()> {
        let Some(last) = self.flights.last_post() else { return Ok(()) };
        nacre_env::blocking(|| {
            loop {
                self.sweep();
                if !self.flights.has_post_until(last) {
                    return Ok(());
                }
                if self.is_stopping() {
                    return Err(Status::ESHUTDOWN);
                }
                if nacre_env::interrupted() {
                    return Err(Status::EINTR);
                }
                // There may be no other thread that receives the answers.
                if !self.ends.iter().flat_map(End::conns).any(|conn| conn.read_once()) {
                    self.flights.rest_for_posts(last);
                }
            }
        })
    }

    /// Returns the connection of this thread's CPU, opened on demand. `deadline` limits the wait for an
    /// unreachable server.
    ///
    /// # Errors
    /// `EINTR`, `ETIMEDOUT`, `ESHUTDOWN`; on a first connect the server's refusal.
    pub(crate) fn conn(self: &Arc<Self>, deadline: Option<Instant>) -> StatusResult<Arc<Conn>> {
        self.conn_for(0, Way::Near, deadline)
    }

    /// Returns the connection for a request with this number of bytes of data.
    pub(super) fn conn_for(
        self: &Arc<Self>,
        data_len: usize,
        way: Way,
        deadline: Option<Instant>,
    ) -> StatusResult<Arc<Conn>> {
        if let Some(conn) = self.recovering_here() {
            return if conn.is_closed() { Err(Status::ENOTCONN) } else { Ok(conn) };
        }
        self.leave_revoked();
        let place = self.choose(data_len, way);
        match self.end(place).and_then(|end| end.open_conn(place.slot)) {
            Some(conn) => Ok(conn),
            None => blocking_for(self.connecting(), || self.open(place, deadline)),
        }
    }

    /// Returns the cause of waits for a connection.
    fn connecting(&self) -> Cause {
        Cause::Connection { target: self.target }
    }

    /// Ends the connections to a server whose key was revoked meanwhile.
    fn leave_revoked(&self) {
        let Some(tls) = &self.config.tls else { return };
        let version = tls.revoked().version();
        if self.revoked_version.load(Ordering::Relaxed) == version {
            return;
        }
        self.revoked_version.store(version, Ordering::Relaxed);
        if self.is_server_revoked() {
            log::error!("{}: the key of its server was revoked", self.name());
            self.close_all();
        }
    }

    /// Returns true if the server's key was revoked meanwhile.
    pub(crate) fn is_server_revoked(&self) -> bool {
        let key = self.server_key.load(Ordering::Relaxed);
        key != 0 && self.config.tls.as_ref().is_some_and(|tls| tls.revoked().has(KeyId(key)))
    }

    /// Returns the connection by which this thread recovers, if it does.
    fn recovering_here(self: &Arc<Self>) -> Option<Arc<Conn>> {
        let me = Arc::as_ptr(self) as usize;
        RECOVERING
            .with(|slot| slot.borrow().as_ref().filter(|(peer, _)| *peer == me).map(|(_, conn)| conn.clone()))
    }

    /// Returns true inside the hook of [`Peer::set_recovery_hook`].
    pub(crate) fn is_recovering_here(self: &Arc<Self>) -> bool {
        self.recovering_here().is_some()
    }

    fn end(&self, place: Place) -> Option<&End> {
        self.ends.get(place.end)
    }

    /// Returns the number of endpoints in use: requests without data need only one per NID.
    pub(crate) fn active_ends(&self) -> usize {
        let lanes = if self.target.kind == TargetKind::Ost { self.tunables.conns_per_peer() } else { 1 };
        (self.nid_count * lanes).min(self.ends.len())
    }

    /// Returns true if the server is on this host and no simulated network lies between: then both ends share
    /// CPUs.
    pub(crate) fn is_near(&self) -> bool {
        self.shares_host.load(Ordering::Relaxed) && self.config.shape.is_none()
    }

    /// Returns endpoint and slot for a request. Small ones stay on this CPU's connection at the first NID
    /// that works; large ones go to the endpoint with the least load, over a network by connections of their
    /// own.
    fn choose(self: &Arc<Self>, data_len: usize, way: Way) -> Place {
        let cpu = nacre_env::current_cpu();
        let place = |end: usize, way: Way| Place {
            end,
            slot: self.ends.get(end).map_or(0, |chosen| chosen.slot_of(way, cpu)),
        };
        let active = self.active_ends();
        if active == 1 {
            return place(0, way);
        }
        let primary = self.primary(|end| place(end, Way::Near));
        if data_len <= self.tunables.short_io_bytes() {
            return place(primary, way);
        }
        let near = self.is_near();
        let mut best: Option<((u64, u64), Place)> = None;
        for (index, end) in self.ends.iter().enumerate().take(active) {
            // Over a network the CPU of the caller does not matter: one connection, which small requests do
            // not use.
            let candidate =
                if near { place(index, way) } else { Place { end: index, slot: end.slot_apart() } };
            if (index != primary && !self.is_usable(end, candidate)) || end.is_down() {
                continue;
            }
            let business = end.business();
            if best.is_none_or(|(least, _)| business < least) {
                best = Some((business, candidate));
            }
        }
        best.map_or_else(|| place(primary, way), |(_, place)| place)
    }

    /// Returns the first NID that works; the first if none does.
    fn primary(self: &Arc<Self>, place: impl Fn(usize) -> Place) -> usize {
        let works = |&index: &usize| {
            self.ends.get(index).is_some_and(|end| {
                if end.is_down() && end.may_retry() {
                    self.connect_aside(place(index));
                }
                !end.is_down()
            })
        };
        (0..self.nid_count).find(works).unwrap_or(0)
    }

    /// Returns true if an endpoint has a connection there; otherwise starts a connect in the background.
    fn is_usable(self: &Arc<Self>, end: &End, place: Place) -> bool {
        if !end.is_down() && end.has_open(place.slot) {
            return true;
        }
        if !end.is_down() || end.may_retry() {
            self.connect_aside(place);
        }
        false
    }

    /// Connects an endpoint in the background: no request waits for an endpoint that may not answer.
    fn connect_aside(self: &Arc<Self>, place: Place) {
        let Some(end) = self.end(place) else { return };
        if self.is_leaving() || self.instance() == 0 || end.connecting.swap(true, Ordering::AcqRel) {
            return;
        }
        let (peer, aside) = (self.clone(), self.aside());
        let started = self.threads.spawn(format!("conn-{}", self.target), move || {
            let _aside = aside;
            let Some(end) = peer.end(place) else { return };
            if let Err(status) = peer.join(end, place) {
                end.fail(place.slot);
                log::debug!("endpoint of {} at {} left out: {status}", peer.name(), end.nid);
            }
            end.connecting.store(false, Ordering::Release);
        });
        if started.is_err() {
            end.connecting.store(false, Ordering::Release);
        }
    }

    /// Adds a connection to the existing ones. If the server has restarted or the client's life has changed,
    /// the next caller that uses the connections notices and recovers, not this thread.
    fn join(&self, end: &End, place: Place) -> StatusResult<()> {
        let greeting =
            self.greet_end(end, Purpose::Requests { place }, None).map_err(|failure| failure.status())?;
        // The thread that restores the client holds this lock when recovery begins, and closes all
        // connections then.
        let link = self.link.lock();
        if !link.serves(greeting.life()) {
            return Err(Status::ENOTCONN);
        }
        let conn = self.adopt(greeting, link.incarnation(), place);
        end.put(place.slot, conn.clone());
        end.revive();
        drop(link);
        if self.is_stopping() {
            conn.close(None);
        }
        Ok(())
    }

    fn adopt(&self, greeting: Greeting, incarnation: u64, place: Place) -> Arc<Conn> {
        let load = self.end(place).map(|end| end.load(place.slot)).unwrap_or_default();
        load.connects.fetch_add(1, Ordering::Relaxed);
        count(&self.counters.connects);
        self.flights.trouble.end();
        let fabric = self.end(place).and_then(|end| end.fabric.clone());
        Arc::new(Conn::new(self, greeting, incarnation, place, load, fabric))
    }

    /// Checks for anything that ends a wait for the server. While the client disconnects, only the goodbye
    /// may wait, which has a deadline.
    fn may_wait(&self, deadline: Option<Instant>) -> StatusResult<()> {
        if self.is_stopping() || (deadline.is_none() && self.is_leaving()) {
            Err(Status::ESHUTDOWN)
        } else if nacre_env::interrupted() {
            Err(Status::EINTR)
        } else if !self.tunables.is_active() && deadline.is_none() {
            Err(Status::EIO)
        } else if deadline.is_some_and(|at| Instant::now() >= at) {
            Err(Status::ETIMEDOUT)
        } else {
            Ok(())
        }
    }

    /// Returns the connection in this place, or if its endpoint is down, the one in the same slot at another
    /// NID.
    fn open_conn(&self, place: Place) -> Option<Arc<Conn>> {
        let wanted = self.end(place)?;
        if self.nid_count == 1 || !wanted.is_down() {
            return wanted.open_conn(place.slot);
        }
        let nids = self.ends.iter().take(self.nid_count);
        nids.filter(|end| !end.is_down()).find_map(|end| end.open_conn(place.slot))
    }

    /// Opens a connection; one thread at a time tries, the others wait for its result.
    fn open(self: &Arc<Self>, place: Place, deadline: Option<Instant>) -> StatusResult<Arc<Conn>> {
        // Further endpoints are connected in the background; a waiting caller connects one of the first
        // endpoints of the NIDs.
        let place = Place { end: place.end % self.nid_count, ..place };
        let began = Instant::now();
        let mut link = self.link.lock();
        loop {
            self.may_wait(deadline)?;
            if let Some(conn) = self.open_conn(place) {
                return Ok(conn);
            }
            if !link.on_connecting() {
                self.link_changed.wait_for(&mut link, TICK);
                continue;
            }
            let first = link.instance() == 0;
            let result = nacre_env::sync::unlocked(&mut link, || self.attempt(place, deadline));
            let error = match result {
                Ok(conn) => {
                    if link.take_restored() {
                        log::info!("connection to {} at {} was restored", self.name(), conn.nid);
                    }
                    self.link_changed.notify_all();
                    drop(link);
                    self.send_posts(&conn);
                    return Ok(conn);
                }
                Err(error) => error,
            };
            if matches!(error, Status::EINTR | Status::ESHUTDOWN)
                || is_refusal(error)
                || (first && matches!(error, Status::WRONG_FSNAME | Status::BAD_VERSION))
                || (first && error == Status::ECONNREFUSED && self.gives_up_refused(began))
            {
                link.on_abandoned();
                self.link_changed.notify_all();
                return Err(error);
            }
            if !self.tunables.is_active() {
                // Callers do not wait for a deactivated target.
                link.on_abandoned();
                self.link_changed.notify_all();
                return Err(Status::EIO);
            }
            let (pause, report) = link.on_failed();
            if report {
                log::warn!("{} cannot be reached ({error}); operations using it will wait", self.name());
            }
            self.link_changed.notify_all();
            self.pause(&mut link, pause, deadline)?;
        }
    }

    fn gives_up_refused(&self, began: Instant) -> bool {
        self.config.refused_deadline.is_some_and(|limit| began.elapsed() >= limit)
    }

    fn pause(
        &self,
        link: &mut MutexGuard<'_, Import>,
        pause: Duration,
        deadline: Option<Instant>,
    ) -> StatusResult<()> {
        let end = Instant::now() + pause;
        loop {
            self.may_wait(deadline)?;
            let left = end.saturating_duration_since(Instant::now());
            // Another thread connects, or has reached the target for another CPU.
            if left.is_zero() || link.is_busy() || link.state() == ImportState::Full {
                return Ok(());
            }
            self.link_changed.wait_for(link, left.min(TICK));
        }
    }

    /// Waits for `pause`; an interrupt ends the wait with `EINTR`.
    pub(crate) fn rest(&self, pause: Duration) -> StatusResult<()> {
        self.rest_until(pause, None)
    }

    /// Waits as [`Peer::rest`], and fails with `ETIMEDOUT` at the deadline.
    pub(crate) fn rest_until(&self, pause: Duration, deadline: Option<Instant>) -> StatusResult<()> {
        let end = Instant::now() + pause;
        blocking_for(self.connecting(), || {
            let mut link = self.link.lock();
            loop {
                self.may_wait(deadline)?;
                let left = end.saturating_duration_since(Instant::now());
                if left.is_zero() {
                    return Ok(());
                }
                // A stop notifies this thread at once; interrupts are polled.
                self.link_changed.wait_for(&mut link, left.min(TICK));
            }
        })
    }

    /// Tries every NID once, the wanted one first, and restores the state that the server has lost.
    fn attempt(self: &Arc<Self>, wanted: Place, deadline: Option<Instant>) -> StatusResult<Arc<Conn>> {
        let slot = wanted.slot;
        let (index, greeting) =
            self.greet_any(wanted.end, |end| Purpose::Requests { place: Place { end, slot } }, deadline)?;
        let connected = &greeting.connected;
        self.durability.store(handshake::durability_epoch(&connected.boot_id), Ordering::Release);
        self.shares_host.store(greeting.is_local, Ordering::Relaxed);
        if connected.lease.is_some() {
            *self.lease.lock() = connected.lease;
        }
        let (known, lease) = (connected.known, connected.lease);
        let lost_answers = Features::from_bits_truncate(connected.features).contains(Features::LOST_ANSWERS);
        let place = Place { end: index, slot };
        let (recovery, incarnation) = {
            let mut link = self.link.lock();
            let recovery = link.on_connected(greeting.life(), known, lost_answers).ok_or(Status::ENOTCONN)?;
            self.incarnation.store(link.incarnation(), Ordering::Release);
            self.answers_from.store(link.answers_from(), Ordering::Release);
            (recovery, link.incarnation())
        };
        *self.shown.lock() = Instant::now();
        let conn = self.adopt(greeting, incarnation, place);
        if recovery != Recovery::None {
            count(&self.counters.recoveries);
            self.close_all();
            if let Some(hook) = self.recovery_hook.get() {
                let _guard = RecoveryGuard::enter(Arc::as_ptr(self) as usize, conn.clone());
                if let Err(status) = hook(recovery, lease) {
                    conn.close(None);
                    return Err(status);
                }
            }
            if conn.is_closed() {
                // Regardless of the hook's result: not all handles can be open again.
                return Err(Status::ENOTCONN);
            }
            self.link.lock().on_recovered();
        }
        if let Some(end) = self.end(place) {
            end.put(slot, conn.clone());
            end.revive();
        }
        if self.is_stopping() {
            conn.close(None);
            return Err(Status::ESHUTDOWN);
        }
        Ok(conn)
    }

    /// Connects for callbacks.
    pub(crate) fn greet_control(&self) -> StatusResult<Greeting> {
        self.greet_any(0, |_| Purpose::Control, None).map(|(_, greeting)| greeting)
    }

    /// Connects to the first NID that answers; those that failed lately come last. `ECONNREFUSED` only if all
    /// refuse.
    fn greet_any(
        &self,
        first: usize,
        purpose: impl Fn(usize) -> Purpose,
        deadline: Option<Instant>,
    ) -> StatusResult<(usize, Greeting)> {
        let mut last = Status::ECONNREFUSED;
        let mut order: Vec<(usize, &End)> = self.ends.iter().enumerate().take(self.nid_count).collect();
        order.sort_by_key(|(index, end)| (end.is_down(), *index != first));
        for (index, end) in order {
            self.may_wait(deadline)?;
            match self.greet_end(end, purpose(index), deadline) {
                Ok(greeting) => return Ok((index, greeting)),
                Err(failure) => match failure.status() {
                    status @ (Status::EINTR | Status::ESHUTDOWN) => return Err(status),
                    status => {
                        self.flights.trouble.note(end.nid, &failure);
                        end.fail(0);
                        if status != Status::ECONNREFUSED {
                            last = status;
                        }
                    }
                },
            }
        }
        Err(last)
    }

    /// Connects one endpoint.
    fn greet_end(&self, end: &End, purpose: Purpose, deadline: Option<Instant>) -> FailureResult<Greeting> {
        let (cpu, control, wide) = match purpose {
            Purpose::Control => (u32::MAX, true, false),
            Purpose::Requests { place } => {
                ((place.slot % end.cpus()) as u32, false, place.slot >= end.cpus())
            }
        };
        let instance = self.link.lock().instance();
        let asked = handshake::Asked {
            target: self.target,
            nid: end.nid,
            client: self.identity.client,
            fsname: &self.identity.fsname,
            cpu,
            instance,
            control,
            wide,
            is_server: self.identity.is_server,
        };
        let greeting = handshake::connect(&asked, &self.config, &|| self.may_wait(deadline))
            .explain(|context| context.action("connect").target(self.target))?;
        self.server_key.store(greeting.server_key.map_or(0, |key| key.0), Ordering::Relaxed);
        Ok(greeting)
    }

    /// Handles the loss of a connection.
    pub(crate) fn report_loss(&self, conn: &Conn) {
        if self.is_stopping() || !conn.take_loss() {
            return;
        }
        if let Some(end) = self.end(conn.place)
            && self.active_ends() > 1
        {
            end.fail(conn.place.slot);
            if self
                .ends
                .iter()
                .filter(|end| !end.is_down())
                .flat_map(End::conns)
                .any(|conn| !conn.is_closed())
            {
                log::info!("endpoint of {} at {} failed: others are used", self.name(), conn.nid);
                return;
            }
        }
        if self.link.lock().on_lost() {
            log::warn!(
                "connection to {} at {} was lost; operations using it will wait until it is restored",
                self.name(),
                conn.nid
            );
        }
    }

    /// Notes that this connection delivered an answer.
    pub(super) fn note_answer(&self, conn: &Conn) {
        if let Some(end) = self.end(conn.place) {
            end.answered();
        }
    }

    /// Returns the state of the import.
    pub(crate) fn import(&self, stats: Option<&RpcStats>) -> ImportInfo {
        let link = self.link.lock().state();
        let endpoints: Vec<_> = self.ends.iter().take(self.active_ends()).map(End::stats).collect();
        let open = || self.ends.iter().flat_map(End::conns).find(|conn| !conn.is_closed());
        let state = match link {
            _ if self.is_stopping() => LinkState::Disconnected,
            ImportState::New => LinkState::New,
            // A further connection, in addition to open ones.
            ImportState::Connecting if open().is_some() => LinkState::Full,
            ImportState::Connecting => LinkState::Connecting,
            ImportState::Recovering | ImportState::Evicted => LinkState::Recover,
            ImportState::Disconnected => LinkState::Disconnected,
            ImportState::Full if open().is_some() => LinkState::Full,
            ImportState::Full => LinkState::Idle,
        };
        let read = |counters: &Counters| {
            let get = |counter: &std::sync::atomic::AtomicU64| counter.load(Ordering::Relaxed);
            (get(&counters.connects), get(&counters.recoveries), get(&counters.resends))
        };
        let (connects, generation, timeouts) = read(&self.counters);
        let side = |direction| stats.map(|stats| stats.averages(direction)).unwrap_or_default();
        ImportInfo {
            target: self.name(),
            state,
            connect_flags: open().map(|conn| conn.feature_names()).unwrap_or_default(),
            nids: self.nids.clone(),
            current: open().map(|conn| conn.nid),
            endpoints,
            connects,
            generation,
            in_flight: self.flights.count() as u64,
            timeouts,
            damaged: self.flights.damaged.load(Ordering::Relaxed),
            last_replay: 0,
            peer_committed: self.committed.load(Ordering::Relaxed),
            averages: [side(Direction::Read), side(Direction::Write)],
            clock: *self.clock.lock(),
        }
    }
}

/// Exempts this thread's requests from waiting for a peer in recovery.
struct RecoveryGuard {
    previous: Option<(usize, Arc<Conn>)>,
}

impl RecoveryGuard {
    fn enter(peer: usize, conn: Arc<Conn>) -> RecoveryGuard {
        RecoveryGuard { previous: RECOVERING.with(|slot| slot.borrow_mut().replace((peer, conn))) }
    }
}

impl Drop for RecoveryGuard {
    fn drop(&mut self) {
        let previous = self.previous.take();
        RECOVERING.with(|slot| *slot.borrow_mut() = previous);
    }
}

/// Returns true if the server has identified the client and refuses it: a retry changes nothing.
pub(crate) fn is_refusal(status: Status) -> bool {
    matches!(
        status,
        Status::EPERM
            | Status::EACCES
            | Status::ENOKEY
            | Status::EKEYEXPIRED
            | Status::EKEYREVOKED
            | Status::EKEYREJECTED
    )
}
