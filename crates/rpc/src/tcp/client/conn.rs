//! One connection to a target.
//!
//! Callers send their requests themselves. One of the waiting callers is the reader: it delivers the replies
//! of the others and wakes them, until its own reply has arrived; then another waiter becomes the reader.

mod flight;

pub(crate) use flight::InFlight;

use super::ends::{self, Load};
use super::peer::Peer;
use super::posts::Flights;
use super::waiter::{Outcome, Place, Reply, Waiter};
use crate::shape::{Fabric, Loss};
use crate::tcp::handshake::Greeting;
use crate::tcp::scratch::Scratch;
use crate::tcp::socket::{Closed, Inbox, LinkError, Socket, TICK};
use nacre_env::activity::{Cause, waiting};
use nacre_env::clock::Instant;
use nacre_env::fault::{self, Point};
use nacre_env::sync::{Condvar, Mutex, MutexGuard};
use nacre_session::Life;
use nacre_types::limits::SHORT_IO_BYTES;
use nacre_types::{ClientUuid, Nid, TargetId, Xid};
use nacre_wire::connect::Features;
use nacre_wire::frame::{ChecksumType, FrameKind, HEADER_BYTES, Header};
use std::io::{self, ErrorKind};
use std::net::Shutdown;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

/// Recipient of the reply to a request in flight.
enum Interest {
    /// Caller that waits or will wait.
    Waiter(Arc<Waiter>),
    /// None: a posted request, kept for a resend.
    Posted,
    /// None any more: the caller has abandoned it.
    Abandoned,
}

struct Entry {
    xid: u64,
    interest: Interest,
    /// The waiter sleeps, or is about to.
    parked: bool,
    /// Bulk data is being received into the waiter's buffer.
    receiving: bool,
}

#[derive(Default)]
struct Table {
    entries: Vec<Entry>,
    /// A thread has the reader's role.
    reading: bool,
    closed: bool,
    /// A thread waits for a free entry.
    crowded: bool,
}

impl Table {
    fn find(&mut self, xid: u64) -> Option<&mut Entry> {
        self.entries.iter_mut().find(|entry| entry.xid == xid)
    }

    fn take(&mut self, xid: u64) -> Option<Entry> {
        let index = self.entries.iter().position(|entry| entry.xid == xid)?;
        Some(self.entries.swap_remove(index))
    }
}

/// Why a request did not get a reply on this connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum NoReply {
    /// The connection has ended; the request may have run.
    Lost,
    /// The caller was interrupted and the request is abandoned; it may have run.
    Interrupted,
    /// The caller was interrupted before the request was sent.
    NotSent,
}

/// A connection after its handshake.
pub(crate) struct Conn {
    pub(crate) target: TargetId,
    /// Identity of the client.
    client: ClientUuid,
    pub(crate) nid: Nid,
    /// Endpoint and slot of the connection.
    pub(crate) place: ends::Place,
    /// Life of the client at the server that the connection belongs to.
    pub(crate) life: Life,
    /// Number of that life, counted by the client.
    pub(crate) incarnation: u64,
    load: Arc<Load>,
    fabric: Option<Arc<Fabric>>,
    /// The simulated fabric has lost a request and carries nothing any more.
    mute: AtomicBool,
    /// Features that both sides have.
    features: Features,
    /// Length in bytes up to which data is expected in the same receive as its header.
    short_bytes: AtomicUsize,
    socket: Socket,
    flights: Arc<Flights>,
    in_flight_max: usize,
    ping_interval: Duration,
    dead_after: Duration,
    interrupt_grace: Duration,
    sending: Mutex<()>,
    inbox: Mutex<Inbox>,
    table: Mutex<Table>,
    room: Condvar,
    closed: AtomicBool,
    /// The loss of the connection needs no (further) report.
    loss_known: AtomicBool,
    opened: Instant,
    /// Milliseconds from `opened` to the last message of the peer, or to the first request that it has not
    /// answered.
    quiet_since_ms: AtomicU64,
    pinged_ms: AtomicU64,
}

impl Conn {
    /// Creates a connection of `peer` from a finished handshake.
    pub(crate) fn new(
        peer: &Peer,
        greeting: Greeting,
        incarnation: u64,
        place: ends::Place,
        load: Arc<Load>,
        fabric: Option<Arc<Fabric>>,
    ) -> Conn {
        let life = greeting.life();
        let Greeting { nid, connected, socket, inbox, .. } = greeting;
        let config = &peer.config;
        // With other endpoints to use, an unresponsive one is given up after one missed ping.
        let timeouts = if peer.active_ends() > 1 { config.ping_interval * 2 } else { config.dead_after };
        Conn {
            target: peer.target,
            client: peer.client(),
            nid,
            place,
            life,
            incarnation,
            load,
            fabric,
            mute: AtomicBool::new(false),
            features: Features::from_bits_truncate(connected.features),
            short_bytes: AtomicUsize::new(SHORT_IO_BYTES),
            socket,
            flights: peer.flights.clone(),
            in_flight_max: connected.in_flight_max.min(config.in_flight_max).max(1) as usize,
            ping_interval: config.ping_interval,
            dead_after: config.dead_after.min(timeouts),
            interrupt_grace: config.interrupt_grace,
            sending: Mutex::new(()),
            inbox: Mutex::new(inbox),
            table: Mutex::default(),
            room: Condvar::new(),
            closed: AtomicBool::new(false),
            loss_known: AtomicBool::new(false),
            opened: Instant::now(),
            quiet_since_ms: AtomicU64::new(0),
            pinged_ms: AtomicU64::new(0),
        }
    }

    /// Returns the checksum to use for `wanted`: another type if the server does not support it.
    pub(crate) fn checksum(&self, wanted: Option<ChecksumType>) -> Option<ChecksumType> {
        let wanted = wanted?;
        let known = |kind: &ChecksumType| self.features.contains(Features::of_checksum(*kind));
        Some(wanted).filter(known).or_else(|| ChecksumType::ALL.into_iter().find(known))
    }

    /// Returns true if the server accepts requests with a job id.
    pub(crate) fn knows_jobs(&self) -> bool {
        self.features.contains(Features::JOB_ID)
    }

    /// Sets the length in bytes up to which the data of the next answers is expected with their headers.
    pub(crate) fn expect_short(&self, bytes: usize) {
        if self.short_bytes.load(Ordering::Relaxed) != bytes {
            self.short_bytes.store(bytes, Ordering::Relaxed);
        }
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    /// Returns true for the first caller after a loss, unless this side ended the connection.
    pub(crate) fn take_loss(&self) -> bool {
        !self.loss_known.swap(true, Ordering::AcqRel)
    }

    /// Returns true if nothing was received for `limit`.
    pub(crate) fn is_quiet_for(&self, limit: Duration) -> bool {
        let quiet_ms = self.now_ms().saturating_sub(self.quiet_since_ms.load(Ordering::Relaxed));
        Duration::from_millis(quiet_ms) >= limit
    }

    fn now_ms(&self) -> u64 {
        self.opened.elapsed().as_millis() as u64
    }

    /// Ends the connection and wakes all its waiters; `why` is `None` if this side has no more use for it.
    /// Returns whether it was open.
    pub(crate) fn close(&self, why: Option<&Closed>) -> bool {
        let entries = {
            let mut table = self.table.lock();
            if table.closed {
                return false;
            }
            table.closed = true;
            self.closed.store(true, Ordering::Release);
            self.loss_known.fetch_or(why.is_none(), Ordering::AcqRel);
            // An entry whose data is being received is finished by the reader, which sees the end of the
            // socket.
            let (receiving, others) =
                std::mem::take(&mut table.entries).into_iter().partition(|e| e.receiving);
            table.entries = receiving;
            others
        };
        self.socket.shut_down(Shutdown::Both);
        self.room.notify_all();
        if let Some(why) = why {
            if why.is_damage() {
                self.flights.damaged.fetch_add(1, Ordering::Relaxed);
                log::warn!(peer:% = self.nid; "connection to {} at {} closed: {why}", self.target, self.nid);
            }
            log::debug!("connection to {} at {} ended: {why}", self.target, self.nid);
            self.flights.trouble.note(self.nid, format_args!("connection lost: {why}"));
        }
        for entry in entries {
            self.lose(entry);
        }
        true
    }

    fn lose(&self, entry: Entry) {
        match entry.interest {
            Interest::Waiter(waiter) => {
                self.release(&waiter);
                waiter.finish(Outcome::Lost, entry.parked);
            }
            Interest::Posted => self.flights.post_lost(entry.xid),
            Interest::Abandoned => self.flights.finish(entry.xid),
        }
    }

    /// Stops counting a request as in flight, at once or when its simulated answer is due.
    fn release(&self, waiter: &Waiter) {
        if !waiter.take_release() {
            return;
        }
        match waiter.due {
            Some(at) if at > Instant::now() => {
                self.flights.release_at(at, self.load.clone(), waiter.data_len);
            }
            _ => self.flights.release(&self.load, waiter.data_len),
        }
    }

    /// Returns the names of the features that both sides have.
    pub(crate) fn feature_names(&self) -> Vec<&'static str> {
        let names = [
            (Features::BULK_CHECKSUM, "bulk_checksum"),
            (Features::BULK_ADLER, "bulk_adler"),
            (Features::JOB_ID, "job_id"),
        ];
        names.iter().filter(|(feature, _)| self.features.contains(*feature)).map(|(_, name)| *name).collect()
    }

    /// Ends the connection if it was idle for `limit`.
    pub(crate) fn close_if_idle(&self, limit: Duration) {
        if self.is_quiet_for(limit) && self.table.lock().entries.is_empty() {
            self.close(None);
        }
    }

    /// Adds a request to the table, and waits for a free entry unless it is urgent.
    fn register(&self, xid: u64, interest: Interest, is_urgent: bool) -> Result<(), NoReply> {
        let mut table = self.table.lock();
        loop {
            if table.closed {
                return Err(NoReply::Lost);
            }
            if is_urgent || table.entries.len() < self.in_flight_max {
                break;
            }
            if nacre_env::interrupted() {
                return Err(NoReply::NotSent);
            }
            if table.reading {
                table.crowded = true;
                waiting(Cause::Slot { target: self.target }, || self.room.wait_for(&mut table, TICK));
            } else {
                table.reading = true;
                drop(table);
                self.read(|| true);
                table = self.table.lock();
            }
        }
        if table.entries.is_empty() {
            self.quiet_since_ms.store(self.now_ms(), Ordering::Relaxed);
        }
        table.entries.push(Entry { xid, interest, parked: false, receiving: false });
        Ok(())
    }

    fn transmit(&self, header: &Header, body: &[u8], bulk: &[u8]) -> Result<(), NoReply> {
        if self.mute.load(Ordering::Relaxed) {
            return Ok(());
        }
        fault::delay(Point::ClientSendDelay);
        if fault::is_hit(Point::ClientSend) {
            self.close(Some(&Closed::End));
            return Err(NoReply::Lost);
        }
        self.load.requests.fetch_add(1, Ordering::Relaxed);
        self.load.sent_bytes.fetch_add((HEADER_BYTES + body.len() + bulk.len()) as u64, Ordering::Relaxed);
        let bytes = header.to_bytes();
        let sent = {
            let _guard = self.sending.lock();
            self.socket.send_rest(&[&bytes, body, bulk], 0)
        };
        match sent {
            Ok(()) => Ok(()),
            Err(LinkError::Interrupted | LinkError::Idle) => Err(NoReply::NotSent),
            Err(LinkError::Closed(why)) => {
                self.close(Some(&why));
                Err(NoReply::Lost)
            }
        }
    }

    /// Sends a request.
    ///
    /// # Safety
    /// `place` stays valid until the returned value has been waited for or dropped, and one of both happens:
    /// it is not leaked.
    pub(crate) unsafe fn submit(
        self: &Arc<Self>,
        header: &Header,
        body: &[u8],
        bulk: &[u8],
        place: Place,
        is_urgent: bool,
    ) -> Result<InFlight, NoReply> {
        let data_len = bulk.len().max(place.len());
        let due = self.simulate(body.len() + bulk.len(), place.len());
        let waiter = Waiter::new(header.xid.0, place, data_len as u64, due);
        self.load.in_flight.fetch_add(1, Ordering::Relaxed);
        self.load.queued_bytes.fetch_add(data_len as u64, Ordering::Relaxed);
        if let Err(why) = self.register(header.xid.0, Interest::Waiter(waiter.clone()), is_urgent) {
            self.release(&waiter);
            return Err(why);
        }
        let flight = InFlight { conn: self.clone(), waiter, settled: false };
        match self.transmit(header, body, bulk) {
            // The waiter reports the loss, like any later one.
            Ok(()) | Err(NoReply::Lost | NoReply::Interrupted) => Ok(flight),
            Err(NoReply::NotSent) => {
                flight.withdraw();
                Err(NoReply::NotSent)
            }
        }
    }

    /// Applies the simulated fabric, if there is one, to a request with these numbers of bytes sent and
    /// answered, and returns when the answer is due.
    fn simulate(&self, sent: usize, answered: usize) -> Option<Instant> {
        let fabric = self.fabric.as_ref()?;
        match fabric.loses_next() {
            Some(Loss::Cut) => {
                let error = io::Error::new(ErrorKind::ConnectionReset, "lost by the simulated fabric");
                self.close(Some(&Closed::Io(error)));
            }
            Some(Loss::Silence) => self.mute.store(true, Ordering::Relaxed),
            None => {}
        }
        fabric.spend(sent);
        let frame = |bytes: usize| HEADER_BYTES + bytes;
        Some(fabric.schedule(Instant::now(), frame(sent), frame(answered)))
    }

    /// Sends a request that no caller waits for.
    pub(crate) fn post(&self, header: &Header, body: &[u8]) {
        let xid = header.xid.0;
        let sent =
            self.register(xid, Interest::Posted, false).and_then(|()| self.transmit(header, body, &[]));
        if sent.is_err() {
            self.table.lock().take(xid);
            self.flights.post_lost(xid);
        }
    }

    /// Notifies the server that the answer is not needed any more.
    fn cancel(&self, xid: u64) {
        let header = Header::new(FrameKind::Cancel, self.target, Xid(xid));
        self.send_small(&header);
    }

    /// Sends a frame without a body, unless another thread is sending or the socket is full.
    fn send_small(&self, header: &Header) {
        if self.mute.load(Ordering::Relaxed) {
            return;
        }
        let Some(_guard) = self.sending.try_lock() else { return };
        let bytes = header.to_bytes();
        let parts = [&bytes[..], &[], &[]];
        let result = match self.socket.try_send(&parts, false) {
            Ok(0) if self.socket.is_clear() => Ok(()),
            Ok(sent) => self.socket.send_rest(&parts, sent),
            Err(error) => Err(error),
        };
        if let Err(LinkError::Closed(why)) = result {
            self.close(Some(&why));
        }
    }

    /// Reads until `done` returns true, asked after each frame and each idle tick. The caller has the
    /// reader's role, which passes to a sleeping waiter at the end.
    fn read(&self, mut done: impl FnMut() -> bool) {
        let mut inbox = self.inbox.lock();
        loop {
            match self.receive_one(&mut inbox, true) {
                Ok(()) => {}
                Err(LinkError::Idle | LinkError::Interrupted) => self.check_alive(),
                Err(LinkError::Closed(why)) => {
                    self.close(Some(&why));
                    break;
                }
            }
            if done() || self.is_closed() {
                break;
            }
        }
        // Frames that have already arrived are delivered at once: otherwise the next reader would have to be
        // woken for them.
        while !self.is_closed() && inbox.has_whole_frame() {
            if let Err(LinkError::Closed(why)) = self.receive_one(&mut inbox, false) {
                self.close(Some(&why));
            }
        }
        drop(inbox);
        let mut table = self.table.lock();
        table.reading = false;
        hand_on(table);
    }

    /// Reads what has arrived without waiting, if there is no reader: answers to posted requests, the end of
    /// the stream.
    pub(crate) fn sweep(&self) {
        {
            let mut table = self.table.lock();
            if table.closed || table.reading {
                return;
            }
            table.reading = true;
        }
        let mut inbox = self.inbox.lock();
        loop {
            match self.receive_one(&mut inbox, false) {
                Ok(()) => {}
                Err(LinkError::Idle | LinkError::Interrupted) => break,
                Err(LinkError::Closed(why)) => {
                    self.close(Some(&why));
                    break;
                }
            }
        }
        drop(inbox);
        let mut table = self.table.lock();
        table.reading = false;
        if !table.entries.is_empty() {
            drop(table);
            self.check_alive();
            table = self.table.lock();
        }
        hand_on(table);
    }

    /// Waits for one frame and receives it, if there are waiters and no reader. Returns whether it did.
    pub(crate) fn read_once(&self) -> bool {
        {
            let mut table = self.table.lock();
            if table.closed || table.reading || table.entries.is_empty() {
                return false;
            }
            table.reading = true;
        }
        self.read(|| true);
        true
    }

    /// Pings a peer that owes an answer and is unresponsive; ends the connection after `dead_after`.
    fn check_alive(&self) {
        let now = self.now_ms();
        let silent = Duration::from_millis(now.saturating_sub(self.quiet_since_ms.load(Ordering::Relaxed)));
        if silent >= self.dead_after {
            let error = io::Error::new(ErrorKind::TimedOut, "the server does not answer");
            self.close(Some(&Closed::Io(error)));
        } else if silent >= self.ping_interval {
            let pinged = self.pinged_ms.load(Ordering::Relaxed);
            if pinged == 0 || Duration::from_millis(now.saturating_sub(pinged)) >= self.ping_interval {
                self.pinged_ms.store(now, Ordering::Relaxed);
                self.send_small(&Header::new(FrameKind::Ping, self.target, Xid(0)));
            }
        }
    }

    fn receive_one(&self, inbox: &mut Inbox, wait: bool) -> Result<(), LinkError> {
        inbox.expect_short(self.short_bytes.load(Ordering::Relaxed));
        let header = inbox.header(&self.socket, wait)?;
        let len = HEADER_BYTES as u64 + u64::from(header.body_len) + u64::from(header.bulk_len);
        self.load.received_bytes.fetch_add(len, Ordering::Relaxed);
        self.quiet_since_ms.store(self.now_ms(), Ordering::Relaxed);
        let waiter = {
            let mut table = self.table.lock();
            match table.find(header.xid.0) {
                Some(entry) if header.kind == FrameKind::Reply => match &entry.interest {
                    Interest::Waiter(waiter) => {
                        entry.receiving = header.bulk_len > 0;
                        Some(waiter.clone())
                    }
                    Interest::Posted | Interest::Abandoned => None,
                },
                _ => None,
            }
        };
        let received = self.receive_rest(inbox, &header, waiter.as_deref());
        if header.kind != FrameKind::Reply {
            return received.map(|_| ());
        }
        let entry = self.table.lock().take(header.xid.0);
        match (received, entry) {
            (Ok((body, bulk_intact)), Some(entry)) => {
                self.deliver(entry, Reply { header, body, bulk_intact })
            }
            // The request was withdrawn before it was sent, and has no entry.
            (Ok(_), None) => {}
            (Err(error), entry) => {
                if let Some(entry) = entry {
                    self.lose(entry);
                }
                return Err(error);
            }
        }
        self.make_room();
        Ok(())
    }

    /// Receives body and bulk data; returns whether the bulk data is complete and undamaged.
    fn receive_rest(
        &self,
        inbox: &mut Inbox,
        header: &Header,
        waiter: Option<&Waiter>,
    ) -> Result<(Scratch, bool), LinkError> {
        let mut body = Scratch::new();
        inbox.body(&self.socket, header, &mut body)?;
        if header.bulk_len == 0 {
            return Ok((body, true));
        }
        // SAFETY: the waiter's entry was marked as receiving under the table's lock. Only the reader, this
        // thread, takes marked entries out of the table; so the owner waits in `abandon` or before it until
        // the receive ends.
        let target = waiter.and_then(|waiter| unsafe { waiter.place.slice(header.bulk_len as usize) });
        let intact = match target {
            Some(buffer) => inbox.bulk(&self.socket, header, buffer)?,
            None => {
                inbox.skip_bulk(&self.socket, header)?;
                false
            }
        };
        Ok((body, intact))
    }

    fn deliver(&self, entry: Entry, reply: Reply) {
        match entry.interest {
            Interest::Waiter(waiter) => {
                self.release(&waiter);
                waiter.finish(Outcome::Reply(reply), entry.parked);
            }
            Interest::Posted => self.flights.post_answered(entry.xid, reply.header.status),
            Interest::Abandoned => self.flights.finish(entry.xid),
        }
    }

    fn make_room(&self) {
        let crowded = std::mem::take(&mut self.table.lock().crowded);
        if crowded {
            self.room.notify_all();
        }
    }

    /// Abandons a request on behalf of its owner. After this no thread touches its buffer. Returns the reply
    /// if it has just arrived. The entry of a request that was sent stays until its reply arrives.
    fn abandon(&self, waiter: &Waiter, sent: bool) -> Result<Reply, NoReply> {
        let mut table = self.table.lock();
        let free = !table.reading;
        match table.find(waiter.xid) {
            Some(entry) if !entry.receiving => {
                entry.interest = Interest::Abandoned;
                self.release(waiter);
                if !sent {
                    table.take(waiter.xid);
                }
                if free {
                    // This waiter may have been promoted, and does not read.
                    hand_on(table);
                }
                return Err(NoReply::Interrupted);
            }
            Some(entry) => {
                // The reader receives data into this thread's buffer at this moment. The peer may take its
                // time; this thread cannot wait.
                entry.parked = true;
                drop(table);
                self.socket.shut_down(Shutdown::Both);
            }
            None => drop(table),
        }
        while !waiter.is_done() {
            waiter.sleep(TICK);
        }
        match waiter.take_outcome() {
            Some(Outcome::Reply(reply)) => Ok(reply),
            _ => Err(NoReply::Interrupted),
        }
    }
}

/// Promotes one sleeping waiter to reader, if there is none.
fn hand_on(table: MutexGuard<'_, Table>) {
    if table.reading {
        return;
    }
    let next = table.entries.iter().find_map(|entry| match &entry.interest {
        Interest::Waiter(waiter) if entry.parked => Some(waiter.clone()),
        _ => None,
    });
    drop(table);
    if let Some(waiter) = next {
        waiter.promote();
    }
}

impl Conn {
    /// Becomes the reader; if there is one, notes that the waiter sleeps.
    fn take_reading(&self, xid: u64) -> bool {
        let mut table = self.table.lock();
        if !table.reading {
            table.reading = true;
            return true;
        }
        if let Some(entry) = table.find(xid) {
            entry.parked = true;
        }
        false
    }
}
