//! Opening of received records.
//!
//! Records are received into a buffer, opened in place and copied out. Long data is received directly into
//! its destination: both sides know how long data is cut into records, so one scattered receive can put the
//! data of each record next to that of the previous one and the headers and trailers elsewhere. If a record
//! turns out to differ from the plan, the received bytes are moved to the buffer. Readers see data only after
//! its verification.

use super::{
    ALERT, Cipher, DATA, HANDSHAKE, HEADER, KEY_UPDATE, MARKED, MARKED_MAX, MARKED_RECORDS_MAX,
    NEW_SESSION_TICKET, SEALED, SEALED_MAX, Shared, TAG, Way, damaged, failed, forged,
};
use rustls::{AlertDescription, Error};
use std::io::{self, ErrorKind, IoSliceMut};

/// Smallest buffer for a receive, in bytes: every encrypted record fits.
const RECEIVE_MIN: usize = HEADER + SEALED_MAX;
/// Length in bytes below which data goes through the buffer.
const STRAIGHT_MIN: usize = 24 << 10;
/// Largest data of one plan, in bytes: it fits a cache until it is verified.
const STRAIGHT_MAX: usize = 256 << 10;

/// Plan for records whose data is received directly into its destination. In the order of the stream: a
/// header, data and trailer for each record; then the bytes after them, into the buffer.
struct Straight {
    /// Bytes of data of the first record.
    first: usize,
    /// Largest data of a record, and so that of all others but the last.
    max: usize,
    records: usize,
    /// Bytes of data of all records; then the length of the destination.
    end: usize,
    place: usize,
    /// Headers and trailers: a header, then for each record its trailer and the next header.
    between: Vec<u8>,
    trailer: usize,
    /// Bytes of the stream that have arrived.
    have: usize,
    /// Records that were opened.
    opened: usize,
}

impl Straight {
    /// Returns offset and length of a record's data in the destination.
    fn data(&self, record: usize) -> (usize, usize) {
        if record == 0 {
            return (0, self.first);
        }
        let start = self.first + (record - 1) * self.max;
        (start, self.max.min(self.end - start))
    }

    fn gap(&self) -> usize {
        self.trailer + HEADER
    }

    /// Returns the position in the stream after the trailer of a record.
    fn after(&self, record: usize) -> usize {
        let (start, len) = self.data(record);
        HEADER + start + len + record * self.gap() + self.trailer
    }

    fn header(&self, record: usize) -> &[u8] {
        let start = record * self.gap();
        self.between.get(start..start + HEADER).unwrap_or_default()
    }

    fn trailer(&self, record: usize) -> &[u8] {
        let start = HEADER + record * self.gap();
        self.between.get(start..start + self.trailer).unwrap_or_default()
    }

    /// Returns the places for the stream from `skip` on.
    fn stream<'a>(
        &'a mut self,
        mut skip: usize,
        mut place: &'a mut [u8],
        behind: &'a mut [u8],
    ) -> Vec<IoSliceMut<'a>> {
        let lens: Vec<usize> = (0..self.records).map(|record| self.data(record).1).collect();
        let gap = self.gap();
        let mut pieces = Vec::with_capacity(2 * lens.len() + 2);
        let mut push = |piece: &'a mut [u8]| {
            let passed = skip.min(piece.len());
            skip -= passed;
            let (_, rest) = piece.split_at_mut(passed);
            if !rest.is_empty() {
                pieces.push(IoSliceMut::new(rest));
            }
        };
        let (head, mut between) = self.between.split_at_mut(HEADER);
        push(head);
        for len in lens {
            let (data, later) = place.split_at_mut(len);
            place = later;
            push(data);
            let (this, later) = between.split_at_mut(gap);
            between = later;
            push(this);
        }
        push(behind);
        pieces
    }
}

/// Opens received records. One thread at a time uses it.
pub(in crate::tcp) struct Opener {
    session: Shared,
    way: Way,
    number: u64,
    /// Cipher for tickets and alerts, which are encrypted in either case, until the first record with a MAC.
    first: Option<(Cipher, u64)>,
    buffer: Vec<u8>,
    /// Range of plain bytes of the last record that were not taken yet.
    plain: (usize, usize),
    /// Start of the sealed bytes.
    next: usize,
    /// End of the sealed bytes.
    end: usize,
    straight: Option<Straight>,
}

impl Opener {
    pub(super) fn new(session: Shared, way: Way, cipher: Cipher, number: u64) -> Opener {
        let (number, first) = match way {
            Way::Cipher(_) => (number, None),
            Way::Mac(_) => (0, Some((cipher, number))),
        };
        let (buffer, plain) = (Vec::new(), (0, 0));
        Opener { session, way, number, first, buffer, plain, next: 0, end: 0, straight: None }
    }

    /// Stores the bytes that followed the handshake.
    pub(in crate::tcp) fn preset(&mut self, bytes: &[u8]) {
        assert_eq!(self.end, 0, "nothing was received yet");
        self.put_first(bytes);
    }

    /// Fills the empty buffer with these bytes.
    fn put_first(&mut self, bytes: &[u8]) {
        (self.next, self.end, self.plain) = (0, bytes.len(), (0, 0));
        self.grow(bytes.len());
        let (head, _) = self.buffer.split_at_mut(bytes.len());
        head.copy_from_slice(bytes);
    }

    fn grow(&mut self, len: usize) {
        if self.buffer.len() < len.max(RECEIVE_MIN) {
            self.buffer.resize(len.max(RECEIVE_MIN), 0);
        }
    }

    /// Moves available plain bytes to `target`. Returns 0 if a whole record has to be received first.
    pub(in crate::tcp) fn take(&mut self, target: &mut [u8]) -> io::Result<usize> {
        let mut taken = 0;
        while taken < target.len() && self.straight.is_none() {
            let (start, end) = self.plain;
            if start == end {
                if !self.open_next()? {
                    break;
                }
                continue;
            }
            let count = (end - start).min(target.len() - taken);
            let (from, to) = (self.buffer.get(start..start + count), target.get_mut(taken..taken + count));
            if let (Some(from), Some(to)) = (from, to) {
                to.copy_from_slice(from);
            }
            self.plain.0 += count;
            taken += count;
        }
        Ok(taken)
    }

    /// Returns the place for the next receive; `wanted` plain bytes are still needed.
    pub(in crate::tcp) fn room(&mut self, wanted: usize) -> io::Result<&mut [u8]> {
        debug_assert_eq!(self.plain.0, self.plain.1, "plain bytes are taken first");
        if self.next > 0 {
            self.buffer.copy_within(self.next..self.end, 0);
            self.end -= self.next;
            (self.next, self.plain) = (0, (0, 0));
        }
        let whole = self.next_record()?.map_or(0, |(_, body)| HEADER + body);
        self.grow(whole);
        let most = match self.way {
            Way::Cipher(_) => self.buffer.len(),
            // Long data after it has to be received directly into its destination.
            Way::Mac(_) => whole.max(self.end + wanted + HEADER + TAG).min(self.buffer.len()),
        };
        Ok(self.buffer.get_mut(self.end..most).unwrap_or_default())
    }

    /// Notes the number of received bytes.
    pub(in crate::tcp) fn note_received(&mut self, bytes: usize) {
        self.end += bytes;
        assert!(self.end <= self.buffer.len());
    }

    /// Frees the memory for large data, if it is empty.
    pub(in crate::tcp) fn rest(&mut self) {
        if self.next == self.end && self.plain.0 == self.plain.1 && self.straight.is_none() {
            (self.next, self.end, self.plain) = (0, 0, (0, 0));
            self.buffer = Vec::new();
        }
    }

    /// Returns the places to receive data for `target` directly, if possible; then the same `target` has to
    /// be passed until a record was opened.
    pub(in crate::tcp) fn straight<'a>(
        &'a mut self,
        target: &'a mut [u8],
    ) -> io::Result<Option<Vec<IoSliceMut<'a>>>> {
        if self.straight.is_none() && !self.plan(target)? {
            return Ok(None);
        }
        let Some(plan) = self.straight.as_mut().filter(|plan| plan.place == target.len()) else {
            return Err(damaged("data is asked for in another way than before"));
        };
        let behind = match self.way {
            Way::Cipher(_) => &mut self.buffer[..],
            Way::Mac(_) => self.buffer.get_mut(..1024).unwrap_or_default(),
        };
        Ok(Some(plan.stream(plan.have, target, behind)))
    }

    /// Plans the records that fill at least a part of `target`.
    fn plan(&mut self, target: &mut [u8]) -> io::Result<bool> {
        // A cipher needs a byte after the data of a record.
        let spare = match self.way {
            Way::Cipher(_) => 1,
            Way::Mac(_) => 0,
        };
        let place = target.len();
        if place < STRAIGHT_MIN || (self.first.is_some() && self.number == 0) {
            return Ok(false);
        }
        let (max, trailer) = (self.way.data_max(), self.way.trailer());
        let first = match self.next_record()? {
            // Messages of the handshake protocol are short.
            Some((_, body)) if body < STRAIGHT_MIN / 4 => return Ok(false),
            Some((_, body)) => body - trailer,
            None => max.min(place),
        };
        let (mut records, mut end) = (0, 0);
        while end < place.min(STRAIGHT_MAX) {
            let len = if records == 0 { first } else { max.min(place - end) };
            if end + len + spare > place {
                break;
            }
            (records, end) = (records + 1, end + len);
        }
        if end < STRAIGHT_MIN / 2 {
            return Ok(false);
        }
        let between = vec![0; HEADER + records * (trailer + HEADER)];
        let mut plan = Straight { first, max, records, end, place, between, trailer, have: 0, opened: 0 };
        // Bytes that have already arrived.
        let mut here = self.buffer.get(self.next..self.end).unwrap_or_default();
        plan.have = here.len();
        for mut piece in plan.stream(0, target, &mut []) {
            let (now, later) = here.split_at(piece.len().min(here.len()));
            let (to, _) = piece.split_at_mut(now.len());
            to.copy_from_slice(now);
            here = later;
        }
        if !here.is_empty() {
            // A whole record has arrived, which is opened in the buffer.
            return Ok(false);
        }
        (self.next, self.end, self.plain) = (0, 0, (0, 0));
        self.grow(0);
        self.straight = Some(plan);
        Ok(true)
    }

    /// Notes the number of bytes received into the places of [`Opener::straight`]. Returns the number of
    /// plain bytes at the start of `target` once the plan is complete or the stream deviates from it, 0
    /// before.
    pub(in crate::tcp) fn note_straight(&mut self, target: &mut [u8], bytes: usize) -> io::Result<usize> {
        let Some(mut plan) = self.straight.take() else { return Ok(0) };
        plan.have += bytes;
        while plan.opened < plan.records {
            let record = plan.opened;
            let (start, len) = plan.data(record);
            let begins = plan.after(record) - plan.trailer - len - HEADER;
            if plan.have < begins + HEADER {
                break;
            }
            if plan.header(record) != self.way.header(len) {
                return self.leave(plan, begins, target, start);
            }
            if plan.have < plan.after(record) {
                break;
            }
            self.open_straight(plan.trailer(record), target, start, len)?;
            plan.opened += 1;
        }
        if plan.opened < plan.records {
            self.straight = Some(plan);
            return Ok(0);
        }
        let (from, end) = (plan.after(plan.records - 1), plan.end);
        self.leave(plan, from, target, end)
    }

    /// Ends the plan and moves the bytes of the stream from there on into the buffer.
    fn leave(
        &mut self,
        mut plan: Straight,
        from: usize,
        target: &mut [u8],
        plain: usize,
    ) -> io::Result<usize> {
        let mut left = plan.have - from;
        let mut rest = Vec::with_capacity(left);
        let mut behind = std::mem::take(&mut self.buffer);
        for piece in plan.stream(from, target, &mut behind) {
            let count = left.min(piece.len());
            rest.extend_from_slice(piece.get(..count).unwrap_or_default());
            left -= count;
        }
        self.buffer = behind;
        self.put_first(&rest);
        Ok(plain)
    }

    fn open_straight(
        &mut self,
        trailer: &[u8],
        target: &mut [u8],
        start: usize,
        len: usize,
    ) -> io::Result<()> {
        match &self.way {
            Way::Cipher(cipher) => {
                let header = self.way.header(len);
                let (typ, tag) = trailer.split_at(trailer.len().min(1));
                let content = target.get_mut(start..=start + len).unwrap_or_default();
                let (Some(last), [typ]) = (content.last_mut(), typ) else {
                    return Err(damaged("a record is cut"));
                };
                // The byte after the data belongs to the next record; it is saved and restored.
                let lent = std::mem::replace(last, *typ);
                cipher.open(self.number, header, tag, content)?;
                let typ = content.last_mut().map(|last| std::mem::replace(last, lent));
                if typ != Some(DATA) {
                    return Err(damaged("a record is of a kind that has no place here"));
                }
            }
            Way::Mac(mac) => {
                let data = target.get(start..start + len).unwrap_or_default();
                mac.verify(self.number, data, trailer).map_err(forged)?;
            }
        }
        self.count()
    }

    fn count(&mut self) -> io::Result<()> {
        self.number += 1;
        if self.number < MARKED_RECORDS_MAX { Ok(()) } else { Err(damaged("the key of the MAC is used up")) }
    }

    /// Returns the type of the next record and its length after the header; `None` if the header has not
    /// arrived.
    fn next_record(&self) -> io::Result<Option<(u8, usize)>> {
        let here = self.buffer.get(self.next..self.end).unwrap_or_default();
        let Some(&[typ, a, b, c, d]) = here.first_chunk::<HEADER>() else { return Ok(None) };
        let sealed = usize::from(u16::from_be_bytes([c, d]));
        let marked = u32::from_le_bytes([a, b, c, d]) as usize;
        let is_sealed = typ == SEALED && (matches!(self.way, Way::Cipher(_)) || self.number == 0);
        match (typ, &self.way) {
            _ if is_sealed && (TAG + 1..=SEALED_MAX).contains(&sealed) => Ok(Some((typ, sealed))),
            (MARKED, Way::Mac(_)) if (1..=MARKED_MAX).contains(&marked) => Ok(Some((typ, marked + TAG))),
            _ => Err(damaged("a record is of a kind or length that has no place here")),
        }
    }

    /// Opens the next record; returns false if it has not arrived in full.
    fn open_next(&mut self) -> io::Result<bool> {
        let Some((typ, body)) = self.next_record()? else { return Ok(false) };
        let start = self.next + HEADER;
        let header = self.buffer.get(self.next..start).and_then(|header| header.first_chunk().copied());
        let (Some(header), true) = (header, self.end >= start + body) else { return Ok(false) };
        self.next = start + body;
        let (content, tag) =
            self.buffer.get_mut(start..start + body).unwrap_or_default().split_at_mut(body - TAG);
        match (&self.way, &mut self.first) {
            (Way::Mac(mac), _) if typ == MARKED => {
                mac.verify(self.number, content, tag).map_err(forged)?;
                self.first = None;
                self.plain = (start, start + body - TAG);
                return self.count().map(|()| true);
            }
            (Way::Cipher(cipher), _) => {
                cipher.open(self.number, header, tag, content)?;
                self.number += 1;
            }
            (Way::Mac(_), Some((cipher, number))) => {
                cipher.open(*number, header, tag, content)?;
                *number += 1;
            }
            (Way::Mac(_), None) => return Err(damaged("a record is of a kind that has no place here")),
        }
        // Zeros may follow the type of the content (padding).
        let last = content.iter().rposition(|byte| *byte != 0).ok_or_else(|| damaged("a record is empty"))?;
        match content.get(last) {
            Some(&DATA) if matches!(self.way, Way::Cipher(_)) => self.plain = (start, start + last),
            Some(&HANDSHAKE) => self.on_handshake(start, last)?,
            Some(&ALERT) => return Err(alert(content.get(..last).unwrap_or_default())),
            _ => return Err(damaged("a record is of a kind that has no place here")),
        }
        Ok(true)
    }

    fn on_handshake(&mut self, start: usize, len: usize) -> io::Result<()> {
        let message = self.buffer.get(start..start + len).unwrap_or_default();
        let mut rest = message;
        while let Some((&[typ, a, b, c], body)) = rest.split_first_chunk::<4>() {
            let len = u32::from_be_bytes([0, a, b, c]) as usize;
            let (this, later) = body.split_at_checked(len).ok_or_else(|| damaged("a message is cut"))?;
            match typ {
                // A ticket that cannot be used costs the next connection a full handshake.
                NEW_SESSION_TICKET => {
                    if let Err(error) = self.session.lock().ticket(this) {
                        log::debug!("ticket not kept: {error}");
                    }
                }
                KEY_UPDATE if later.is_empty() && matches!(self.way, Way::Cipher(_)) => {
                    let (number, secret) = self.session.lock().update_received().map_err(failed)?;
                    self.way = Way::Cipher(Box::new(Cipher::new(&secret)?));
                    self.number = number;
                }
                _ => return Err(damaged("a message has no place here")),
            }
            rest = later;
        }
        if rest.is_empty() { Ok(()) } else { Err(damaged("a message is cut")) }
    }
}

/// Returns the reason that the peer sends before it closes.
fn alert(body: &[u8]) -> io::Error {
    match body {
        [_, 0] => io::Error::new(ErrorKind::ConnectionAborted, "the peer has closed the connection"),
        [_, description] => failed(Error::AlertReceived(AlertDescription::from(*description))),
        _ => damaged("an alert is cut"),
    }
}
