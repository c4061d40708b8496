//! A connected TCP socket: gathered sends, receives with a tick, and buffers.

use super::net::{Interest, Source, Stream, Timeouts};
use super::records::{Opener, Sealer};
use nacre_env::clock::Instant;
use nacre_env::interrupted;
use nacre_env::sync::Mutex;
use nacre_types::limits::SHORT_IO_BYTES;
use nacre_wire::frame::{
    BODY_LEN_OFFSET, BULK_LEN_OFFSET, Checksum, FrameError, FrameKind, HEADER_BYTES, Header,
};
use rustix::io::Errno;
use std::io::{self, ErrorKind, IoSlice, IoSliceMut};
use std::net::Shutdown;
use std::sync::OnceLock;
use std::time::Duration;

/// Longest time of a blocked system call, after which its thread checks deadlines and interrupts whose signal
/// it missed.
pub(crate) const TICK: Duration = Duration::from_millis(100);
/// How long a send waits for a peer that is about to take the data, before its thread counts as waiting.
const SEND_TIMEOUT: Duration = Duration::from_millis(5);
/// Send buffer towards a peer on this host, in bytes. Both ends run alternately on one CPU; the data in
/// flight between them should stay in its cache. Measured with `rpc_bench`, November 2026: 1 MiB requests
/// without checksums at 7.3 GB per second of CPU time against 4.5 with the kernel's own choice, which accepts
/// a whole request before the peer runs; 64 to 128 KiB do equally well. The kernel doubles it, and data that
/// is slightly larger than that takes 250 to 500 us longer, as the sender sleeps for the last piece (reads of
/// one file each over loopback, 16 to 64 KiB beyond): with 96 KiB that was 192 to 252 KiB, with 128 KiB it is
/// 256 KiB, with this 320 to 380 KiB, which is rarer; 1 MiB is as fast with all three.
const LOCAL_SEND_BUFFER: usize = 160 << 10;
/// Step in bytes by which the memory for a body grows as bytes arrive, whatever length was announced.
const BODY_STEP: usize = 64 << 10;
/// Largest body of the first frame of a connection, in bytes.
const CONNECT_BODY_MAX: usize = 4096;
/// Bytes of a header and a usual body: a receive may take that many beyond what is needed.
const INBOX_MIN: usize = 1024;

/// Why a receive or send failed.
#[derive(Debug)]
pub(crate) enum LinkError {
    /// A tick passed or a signal arrived, and no frame had begun: the caller may retry.
    Idle,
    /// The thread's request was interrupted before a byte of its frame was sent.
    Interrupted,
    /// The connection has ended, with the reason.
    Closed(Closed),
}

/// How a connection ended.
#[derive(Debug)]
pub(crate) enum Closed {
    /// The peer closed it between two frames.
    End,
    /// An error of the operating system, or a peer that stopped inside a frame.
    Io(io::Error),
    /// The bytes were not a valid frame.
    Frame(FrameError),
}

impl Closed {
    /// Returns true if the received bytes differ from the sent ones, on a connection that has carried valid
    /// frames before. A wrong field under a right checksum was sent like that.
    pub(crate) fn is_damage(&self) -> bool {
        matches!(self, Closed::Frame(error) if !matches!(error, FrameError::Field(_)))
    }
}

impl std::fmt::Display for Closed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Closed::End => f.write_str("closed by the peer"),
            Closed::Io(error) => error.fmt(f),
            Closed::Frame(error) => error.fmt(f),
        }
    }
}

impl From<FrameError> for LinkError {
    fn from(error: FrameError) -> LinkError {
        LinkError::Closed(Closed::Frame(error))
    }
}

fn closed(kind: ErrorKind, text: &'static str) -> LinkError {
    LinkError::Closed(Closed::Io(io::Error::new(kind, text)))
}

/// A connected socket. Sends and receives may run in parallel on different threads.
pub(crate) struct Socket {
    stream: Stream,
    /// Time without progress inside a frame after which a peer is given up.
    stall_max: Duration,
    /// Longest time of a blocked receive.
    tick: Duration,
    /// Seals sent data, on a connection with TLS. The lock is never contended: callers serialise their sends.
    sealer: OnceLock<Mutex<Sealer>>,
}

impl Socket {
    /// Takes a connected stream and sets its options.
    pub(crate) fn new(mut stream: Stream, stall_max: Duration, tick: Duration) -> io::Result<Socket> {
        stream.configure(Timeouts { receive: tick, send: SEND_TIMEOUT })?;
        Ok(Socket { stream, stall_max, tick, sealer: OnceLock::new() })
    }

    pub(super) fn source(&self) -> Source<'_> {
        self.stream.source()
    }

    /// Tunes the socket for a peer on the same CPU of this host: not for wide connections, whose ends run in
    /// parallel.
    pub(crate) fn set_local(&self) {
        if let Err(error) = self.stream.set_send_buffer(LOCAL_SEND_BUFFER) {
            log::debug!("send buffer stays as it is: {error}");
        }
    }

    /// Ends the connection: receives and sends of all threads return.
    pub(crate) fn shut_down(&self, how: Shutdown) {
        self.stream.shut_down(how);
    }

    /// Seals everything that is sent from here on; called once.
    pub(super) fn seal_with(&self, sealer: Sealer) {
        let is_first = self.sealer.set(Mutex::new(sealer)).is_ok();
        assert!(is_first, "a connection has one handshake");
    }

    /// Returns true if the peer is authenticated, and the data of the connection is protected against changes
    /// by third parties (and, where it is encrypted, against reading).
    pub(crate) fn is_secured(&self) -> bool {
        self.sealer.get().is_some()
    }

    /// Frees the memory for large data, unless a send is under way.
    pub(crate) fn rest(&self) {
        if let Some(mut sealer) = self.sealer.get().and_then(|sealer| sealer.try_lock()) {
            sealer.rest();
        }
    }

    /// Returns true if a frame of which nothing counts as sent may still be withdrawn.
    pub(crate) fn is_clear(&self) -> bool {
        self.sealer.get().is_none_or(|sealer| !sealer.lock().has_waiting())
    }

    /// Receives what has arrived, without waiting; `None`: nothing yet.
    pub(super) fn receive_arrived(&self, buffer: &mut [u8]) -> io::Result<Option<usize>> {
        loop {
            match self.stream.receive(buffer, false) {
                Ok(got) => return Ok(Some(got)),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(None),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Sends some of what follows the first `skip` bytes of a frame; the caller serialises sends. Returns how
    /// many bytes of the frame were sent: all of them, unless the peer does not take them in time. Sealed
    /// bytes count when the last of them was sent.
    fn send_some(&self, parts: &[&[u8]], skip: usize, waits: bool) -> io::Result<usize> {
        let Some(sealer) = self.sealer.get() else { return self.send_plain(parts, skip, waits) };
        let mut sealer = sealer.lock();
        if !sealer.has_waiting() {
            // Sealed data has to be sent, so a sender that does not wait checks for space first.
            if !waits && !self.poll_writable(Duration::ZERO) {
                return Err(ErrorKind::WouldBlock.into());
            }
            sealer.seal(parts, skip)?;
        }
        let sent = self.send_plain(&sealer.waiting(parts), 0, waits)?;
        Ok(sealer.note_sent(sent))
    }

    /// Makes one system call that sends what follows the first `skip` bytes of `parts`.
    fn send_plain(&self, parts: &[&[u8]], skip: usize, waits: bool) -> io::Result<usize> {
        // One frame has a header, a body and data; more parts are several frames.
        let (mut few, mut many) = ([IoSlice::new(&[]); 3], Vec::new());
        let pieces: &mut [IoSlice<'_>] = if parts.len() <= few.len() {
            &mut few
        } else {
            many.resize(parts.len(), IoSlice::new(&[]));
            &mut many
        };
        let mut count = 0;
        let mut skip = skip;
        for part in parts {
            let rest = part.get(skip.min(part.len())..).unwrap_or_default();
            skip -= skip.min(part.len());
            if !rest.is_empty()
                && let Some(slot) = pieces.get_mut(count)
            {
                *slot = IoSlice::new(rest);
                count += 1;
            }
        }
        self.stream.send(pieces.get(..count).unwrap_or_default(), waits)
    }

    /// Sends as much of a frame as the peer takes at once: without waiting, or with [`SEND_TIMEOUT`].
    ///
    /// # Errors
    /// `Closed`.
    pub(crate) fn try_send(&self, parts: &[&[u8]], patient: bool) -> Result<usize, LinkError> {
        loop {
            match self.send_some(parts, 0, patient) {
                Ok(sent) => return Ok(sent),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(0),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(LinkError::Closed(Closed::Io(error))),
            }
        }
    }

    /// Sends the rest of a frame of which `sent` bytes were sent, waiting as needed.
    ///
    /// # Errors
    /// `Interrupted` only if nothing of the frame was sent; otherwise the interrupt of a sender whose peer
    /// takes no data ends the connection, as does a stall.
    pub(crate) fn send_rest(&self, parts: &[&[u8]], mut sent: usize) -> Result<(), LinkError> {
        let total: usize = parts.iter().map(|part| part.len()).sum();
        let mut stalled = Duration::ZERO;
        while sent < total {
            match self.send_some(parts, sent, true) {
                Ok(more) => {
                    sent += more;
                    stalled = Duration::ZERO;
                }
                Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {
                    if error.kind() == ErrorKind::WouldBlock && !self.poll_writable(TICK) {
                        stalled += TICK;
                    }
                    if interrupted() && sent == 0 && self.is_clear() {
                        return Err(LinkError::Interrupted);
                    }
                    if stalled >= self.stall_max || (interrupted() && stalled > TICK) {
                        return Err(closed(ErrorKind::TimedOut, "the peer does not take data"));
                    }
                }
                Err(error) => return Err(LinkError::Closed(Closed::Io(error))),
            }
        }
        Ok(())
    }

    /// Sends a frame to a peer within `limit`. Returns whether all of it was sent; if not, the stream may
    /// have lost its framing.
    pub(crate) fn send_within(&self, parts: &[&[u8]], limit: Duration) -> bool {
        let total: usize = parts.iter().map(|part| part.len()).sum();
        let until = Instant::now() + limit;
        let mut sent = 0;
        while sent < total {
            match self.send_some(parts, sent, false) {
                Ok(more) => sent += more,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    let left = until.saturating_duration_since(Instant::now());
                    if left.is_zero() {
                        return false;
                    }
                    self.poll_writable(left);
                }
                Err(_) => return false,
            }
        }
        true
    }

    fn poll_writable(&self, limit: Duration) -> bool {
        self.stream.poll(Interest::Send, limit)
    }

    /// Receives available bytes, if it may wait for a tick, and not beyond the deadline.
    pub(super) fn receive_by(
        &self,
        deadline: Option<Instant>,
        buffer: &mut [u8],
        waits: bool,
    ) -> io::Result<usize> {
        self.wait_receivable(deadline, waits)?;
        self.stream.receive(buffer, waits)
    }

    /// Receives as `receive_by`, into several places in order.
    fn receive_pieces_by(
        &self,
        deadline: Option<Instant>,
        pieces: &mut [IoSliceMut<'_>],
    ) -> io::Result<usize> {
        self.wait_receivable(deadline, true)?;
        self.stream.receive_pieces(pieces)
    }

    fn wait_receivable(&self, deadline: Option<Instant>, waits: bool) -> io::Result<()> {
        // The caller's deadline ends a wait early, like a tick.
        let (Some(end), is_own) = (deadline.or_else(nacre_env::time_limit), deadline.is_some()) else {
            return Ok(());
        };
        let left = end.saturating_duration_since(Instant::now());
        if is_own && left.is_zero() {
            return Err(Errno::TIMEDOUT.into());
        }
        if waits && !self.stream.poll(Interest::Receive, left.min(self.tick)) {
            return Err(ErrorKind::WouldBlock.into());
        }
        Ok(())
    }
}

/// The receiving side of a socket: one thread at a time uses it. Keeps bytes that arrived early.
pub(crate) struct Inbox {
    buffer: Vec<u8>,
    start: usize,
    end: usize,
    /// Bytes that a receive for a header takes at most.
    reach: usize,
    /// Deadline of the frame that is being received.
    deadline: Option<Instant>,
    /// Opens received data, on a connection with TLS.
    opener: Option<Opener>,
}

impl Inbox {
    pub(crate) fn new() -> Inbox {
        let mut inbox = Inbox::for_connect();
        inbox.expect_short(SHORT_IO_BYTES);
        inbox
    }

    /// Creates an inbox for the first frame of an unknown peer: it takes no more memory than that needs.
    pub(super) fn for_connect() -> Inbox {
        let reach = HEADER_BYTES + CONNECT_BODY_MAX;
        Inbox { buffer: vec![0; reach], start: 0, end: 0, reach, deadline: None, opener: None }
    }

    /// Opens everything received from here on; called before the first frame.
    pub(super) fn open_with(&mut self, opener: Opener) {
        assert!(self.opener.is_none() && self.start == self.end, "nothing was received yet");
        self.opener = Some(opener);
    }

    /// Frees the memory for large data.
    pub(crate) fn rest(&mut self) {
        if let Some(opener) = &mut self.opener {
            opener.rest();
        }
    }

    /// Receives what has arrived of the first frame, without waiting: its header and body if it has arrived
    /// in full, as [`Inbox::peek`]. It has a body of at most [`CONNECT_BODY_MAX`] bytes and no data.
    ///
    /// # Errors
    /// `Closed`.
    pub(super) fn peek_first(&mut self, socket: &Socket) -> Result<Option<(Header, &[u8])>, LinkError> {
        loop {
            if let Some(bytes) = self.buffered().first_chunk::<HEADER_BYTES>() {
                let header = Header::from_bytes(bytes)?;
                if header.kind != FrameKind::Connect
                    || header.bulk_len != 0
                    || header.body_len as usize > CONNECT_BODY_MAX
                {
                    return Err(closed(ErrorKind::InvalidData, "it does not begin with a connect"));
                }
                let whole = HEADER_BYTES + header.body_len as usize;
                if let Some(body) = self.buffered().get(HEADER_BYTES..whole) {
                    header.check_body(body)?;
                    break;
                }
            }
            let room = self.buffer.get_mut(self.end..self.reach).unwrap_or_default();
            match Inbox::receive(&mut self.opener, socket, None, room, false, false) {
                Ok(0) if self.end > 0 => {
                    return Err(closed(ErrorKind::UnexpectedEof, "the connection ends in a frame"));
                }
                Ok(0) => return Err(LinkError::Closed(Closed::End)),
                Ok(got) => self.end += got,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(None),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(LinkError::Closed(Closed::Io(error))),
            }
        }
        Ok(self.peek())
    }

    /// Receives available bytes, as [`Socket::receive_by`]. `stays`: after an error, the next call has the
    /// same target, or there is none.
    fn receive(
        opener: &mut Option<Opener>,
        socket: &Socket,
        deadline: Option<Instant>,
        target: &mut [u8],
        waits: bool,
        stays: bool,
    ) -> io::Result<usize> {
        let Some(opener) = opener else { return socket.receive_by(deadline, target, waits) };
        loop {
            let taken = opener.take(target)?;
            if taken > 0 || target.is_empty() {
                return Ok(taken);
            }
            if stays && let Some(mut pieces) = opener.straight(target)? {
                let got = socket.receive_pieces_by(deadline, &mut pieces)?;
                drop(pieces);
                let opened = opener.note_straight(target, got)?;
                if got == 0 || opened > 0 {
                    return Ok(opened);
                }
                continue;
            }
            let got = socket.receive_by(deadline, opener.room(target.len())?, waits)?;
            if got == 0 {
                return Ok(0);
            }
            opener.note_received(got);
        }
    }

    /// Makes data of up to `bytes` arrive in the same system call as its header, at the price of a second
    /// copy; with 0, all data is received directly into its destination.
    pub(crate) fn expect_short(&mut self, bytes: usize) {
        self.reach = INBOX_MIN + bytes;
        if self.buffer.len() < self.reach {
            self.buffer.resize(self.reach, 0);
        }
    }

    /// Sets the deadline for everything received from here on, in however many pieces it arrives; `None` for
    /// no limit but that for a stalled peer.
    pub(crate) fn end_at(&mut self, deadline: Option<Instant>) {
        self.deadline = deadline;
    }

    fn buffered(&self) -> &[u8] {
        self.buffer.get(self.start..self.end).unwrap_or_default()
    }

    /// Returns true if the next frame has arrived in full, so that it needs no system call.
    pub(crate) fn has_whole_frame(&self) -> bool {
        let bytes = self.buffered();
        let number = |at: usize| {
            let field = bytes.get(at..).and_then(|rest| rest.first_chunk::<4>());
            field.map(|field| u32::from_le_bytes(*field) as usize)
        };
        match (number(BODY_LEN_OFFSET), number(BULK_LEN_OFFSET)) {
            (Some(body), Some(bulk)) => {
                bytes.len() >= HEADER_BYTES && bytes.len() - HEADER_BYTES >= body.saturating_add(bulk)
            }
            _ => false,
        }
    }

    /// Returns header and body of the next frame without consuming it, if it has arrived in full and has no
    /// data.
    pub(crate) fn peek(&self) -> Option<(Header, &[u8])> {
        let (header, rest) = self.buffered().split_first_chunk::<HEADER_BYTES>()?;
        let header = Header::from_bytes(header).ok().filter(|header| header.bulk_len == 0)?;
        Some((header, rest.get(..header.body_len as usize)?))
    }

    /// Consumes the frame that [`Inbox::peek`] returned.
    pub(crate) fn take_peeked(&mut self, header: &Header) {
        self.consume(HEADER_BYTES + header.body_len as usize);
    }

    fn consume(&mut self, len: usize) {
        self.start += len;
        if self.start >= self.end {
            self.start = 0;
            self.end = 0;
        }
    }

    /// Receives the header of the next frame. `wait` says whether to wait for its first byte.
    ///
    /// # Errors
    /// `Idle` if none has begun to arrive; `Closed`.
    pub(crate) fn header(&mut self, socket: &Socket, wait: bool) -> Result<Header, LinkError> {
        let mut stalled = Duration::ZERO;
        loop {
            if let Some(bytes) = self.buffered().first_chunk::<HEADER_BYTES>() {
                let header = Header::from_bytes(bytes)?;
                self.consume(HEADER_BYTES);
                return Ok(header);
            }
            if self.start > 0 {
                self.buffer.copy_within(self.start..self.end, 0);
                self.end -= self.start;
                self.start = 0;
            }
            let begun = self.end > 0;
            // Less than a header is in the buffer, so there is space.
            let room = self.buffer.get_mut(self.end..self.reach).unwrap_or_default();
            match Inbox::receive(&mut self.opener, socket, self.deadline, room, wait || begun, false) {
                Ok(0) if begun => {
                    return Err(closed(ErrorKind::UnexpectedEof, "the connection ends in a frame"));
                }
                Ok(0) => return Err(LinkError::Closed(Closed::End)),
                Ok(got) => self.end += got,
                Err(error) => on_receive_error(error, begun, &mut stalled, socket)?,
            }
        }
    }

    /// Fills `target` with the next bytes of the frame, adding them to `sum`.
    fn fill(
        &mut self,
        socket: &Socket,
        target: &mut [u8],
        mut sum: Option<&mut Checksum>,
    ) -> Result<(), LinkError> {
        let early = self.buffered().len().min(target.len());
        let (head, mut rest) = target.split_at_mut(early);
        head.copy_from_slice(self.buffered().get(..early).unwrap_or_default());
        self.consume(early);
        if let Some(sum) = &mut sum {
            sum.update(head);
        }
        let mut stalled = Duration::ZERO;
        while !rest.is_empty() {
            match Inbox::receive(&mut self.opener, socket, self.deadline, rest, true, true) {
                Ok(0) => return Err(closed(ErrorKind::UnexpectedEof, "the connection ends in a frame")),
                Ok(got) => {
                    stalled = Duration::ZERO;
                    let (new, later) = rest.split_at_mut(got);
                    // The piece that has just arrived is still in the cache.
                    if let Some(sum) = &mut sum {
                        sum.update(new);
                    }
                    rest = later;
                }
                Err(error) => on_receive_error(error, true, &mut stalled, socket)?,
            }
        }
        Ok(())
    }

    /// Receives the body that follows `header` into `body` (replacing its content) and verifies it.
    ///
    /// # Errors
    /// `Closed`, also for a damaged body.
    pub(crate) fn body(
        &mut self,
        socket: &Socket,
        header: &Header,
        body: &mut Vec<u8>,
    ) -> Result<(), LinkError> {
        body.clear();
        let len = header.body_len as usize;
        while body.len() < len {
            let start = body.len();
            body.resize(len.min(start + BODY_STEP), 0);
            self.fill(socket, body.get_mut(start..).unwrap_or_default(), None)?;
        }
        header.check_body(body)?;
        Ok(())
    }

    /// Receives bulk data that fills `target`; returns whether its checksum is right.
    ///
    /// # Errors
    /// `Closed`.
    pub(crate) fn bulk(
        &mut self,
        socket: &Socket,
        header: &Header,
        target: &mut [u8],
    ) -> Result<bool, LinkError> {
        let Some(kind) = header.checksum() else {
            self.fill(socket, target, None)?;
            return Ok(true);
        };
        let mut sum = Checksum::new(kind);
        self.fill(socket, target, Some(&mut sum))?;
        Ok(header.bulk_matches(sum.finish()))
    }

    /// Receives and discards bulk data.
    ///
    /// # Errors
    /// `Closed`.
    pub(crate) fn skip_bulk(&mut self, socket: &Socket, header: &Header) -> Result<(), LinkError> {
        let mut left = header.bulk_len as usize;
        let mut waste = [0u8; 4096];
        while left > 0 {
            let piece = left.min(waste.len());
            self.fill(socket, waste.get_mut(..piece).unwrap_or_default(), None)?;
            left -= piece;
        }
        Ok(())
    }
}

/// Evaluates a failed receive: `Ok` to continue waiting.
fn on_receive_error(
    error: io::Error,
    begun: bool,
    stalled: &mut Duration,
    socket: &Socket,
) -> Result<(), LinkError> {
    match error.kind() {
        ErrorKind::WouldBlock | ErrorKind::Interrupted if !begun => Err(LinkError::Idle),
        ErrorKind::Interrupted => Ok(()),
        ErrorKind::WouldBlock => {
            *stalled += socket.tick;
            // An interrupted caller does not wait for a peer that has stopped inside a frame.
            if *stalled >= socket.stall_max || (interrupted() && *stalled > socket.tick) {
                return Err(closed(ErrorKind::TimedOut, "the peer stopped in a frame"));
            }
            Ok(())
        }
        _ => Err(LinkError::Closed(Closed::Io(error))),
    }
}
