//! Protection of sent data.

use super::{
    Cipher, DATA, HANDSHAKE, HEADER, KEY_UPDATE, MARKED_MAX, MARKED_RECORDS_MAX, PLAIN_MAX, RECORDS_MAX,
    SEALED_TRAILER, Shared, Way, damaged, failed, forged,
};
use std::io;
use std::ops::Range;

/// Largest data that is encrypted ahead of a send, in bytes: it fits a send buffer and a cache.
const SEAL_AHEAD: usize = 64 << 10;
/// Largest data that is authenticated ahead of a send, in bytes.
const MARK_AHEAD: usize = 2 * MARKED_MAX;
/// Length in bytes below which parts of a frame share a record, at the price of a copy; longer ones are sent
/// in place.
const APART_MIN: usize = 8 << 10;
/// Length in bytes at which a record of short parts takes no further ones.
const TOGETHER_MAX: usize = 32 << 10;

/// A range of the bytes to send.
enum Piece {
    /// Of the sealer's own bytes.
    Own(Range<usize>),
    /// Of the frame's data, its parts one after the other.
    Data(Range<usize>),
}

impl Piece {
    fn len(&self) -> usize {
        let (Piece::Own(range) | Piece::Data(range)) = self;
        range.len()
    }
}

/// Remaining parts of a frame.
struct Rest<'a> {
    parts: &'a [&'a [u8]],
    skip: usize,
}

impl<'a> Rest<'a> {
    fn new(parts: &'a [&'a [u8]], mut skip: usize) -> Rest<'a> {
        let mut rest = parts;
        while let Some((first, later)) = rest.split_first().filter(|(first, _)| first.len() <= skip) {
            skip -= first.len();
            rest = later;
        }
        Rest { parts: rest, skip }
    }

    /// Returns up to `max` bytes of one part.
    fn next(&mut self, max: usize) -> &'a [u8] {
        let Some(part) = self.parts.first().and_then(|part| part.get(self.skip..)) else { return &[] };
        let taken = part.get(..max.min(part.len())).unwrap_or_default();
        *self = Rest::new(self.parts, self.skip + taken.len());
        taken
    }
}

/// Protects sent data. One thread at a time uses it.
pub(in crate::tcp) struct Sealer {
    session: Shared,
    way: Way,
    number: u64,
    /// Headers, tags, and all data that is not sent in place.
    own: Vec<u8>,
    waiting: Vec<Piece>,
    /// Bytes of the waiting data that were sent.
    sent: usize,
    /// Plain bytes in the waiting data.
    plain: usize,
}

impl Sealer {
    pub(super) fn new(session: Shared, way: Way, number: u64) -> Sealer {
        let number = if matches!(way, Way::Mac(_)) { 0 } else { number };
        Sealer { session, way, number, own: Vec::new(), waiting: Vec::new(), sent: 0, plain: 0 }
    }

    /// Returns true if sealed data was not sent yet: it has to be sent before anything else.
    pub(in crate::tcp) fn has_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Frees the memory for large data, if nothing waits to be sent.
    pub(in crate::tcp) fn rest(&mut self) {
        if !self.has_waiting() {
            self.own = Vec::new();
        }
    }

    /// Seals what follows the first `skip` bytes of `parts`, as much as one send takes.
    pub(in crate::tcp) fn seal(&mut self, parts: &[&[u8]], skip: usize) -> io::Result<()> {
        assert!(!self.has_waiting(), "records leave in the order of their numbers");
        self.own.clear();
        let left = parts.iter().map(|part| part.len()).sum::<usize>() - skip;
        let rest = Rest::new(parts, skip);
        match self.way {
            Way::Cipher(_) => {
                self.plain = left.min(SEAL_AHEAD);
                self.encrypt(rest)?;
                self.waiting.push(Piece::Own(0..self.own.len()));
            }
            Way::Mac(_) => {
                self.plain = left.min(MARK_AHEAD);
                self.authenticate(rest, skip)?;
            }
        }
        Ok(())
    }

    fn encrypt(&mut self, mut rest: Rest<'_>) -> io::Result<()> {
        let mut left = self.plain;
        self.own.reserve(left + (left / PLAIN_MAX + 2) * (HEADER + SEALED_TRAILER));
        while left > 0 {
            if self.number >= RECORDS_MAX {
                self.renew()?;
            }
            let len = left.min(PLAIN_MAX);
            let start = self.begin(len);
            let mut missing = len;
            while missing > 0 {
                let data = rest.next(missing);
                self.own.extend_from_slice(data);
                missing -= data.len();
            }
            self.end_sealed(start, DATA)?;
            left -= len;
        }
        Ok(())
    }

    /// Starts a record with `len` bytes of data by its header.
    fn begin(&mut self, len: usize) -> usize {
        self.own.extend_from_slice(&self.way.header(len));
        self.own.len()
    }

    fn end_sealed(&mut self, start: usize, typ: u8) -> io::Result<()> {
        let Way::Cipher(cipher) = &self.way else { return Err(damaged("there is no cipher")) };
        self.own.push(typ);
        let header = self.way.header(self.own.len() - start - 1);
        let content = self.own.get_mut(start..).unwrap_or_default();
        let tag = cipher.seal(self.number, header, content)?;
        self.number += 1;
        self.own.extend_from_slice(tag.as_ref());
        Ok(())
    }

    /// Adds a key update for the peer, and changes to the new secret.
    fn renew(&mut self) -> io::Result<()> {
        let message = [KEY_UPDATE, 0, 0, 1, 0];
        let start = self.begin(message.len());
        self.own.extend_from_slice(&message);
        self.end_sealed(start, HANDSHAKE)?;
        let (number, secret) = self.session.lock().update_sent().map_err(failed)?;
        self.way = Way::Cipher(Box::new(Cipher::new(&secret)?));
        self.number = number;
        Ok(())
    }

    /// Adds tags to data that is sent as plain text: long parts in place.
    fn authenticate(&mut self, mut rest: Rest<'_>, mut at: usize) -> io::Result<()> {
        let end = at + self.plain;
        let mut from = 0;
        // Start of the data of a record of short parts.
        let mut batch_start = None;
        while at < end {
            let data = rest.next(MARKED_MAX.min(end - at));
            if data.len() < APART_MIN {
                let start = *batch_start.get_or_insert_with(|| self.own.len() + HEADER);
                self.own.resize(self.own.len().max(start), 0);
                self.own.extend_from_slice(data);
                if self.own.len() - start >= TOGETHER_MAX {
                    self.seal_batch(batch_start.take())?;
                }
            } else {
                self.seal_batch(batch_start.take())?;
                self.begin(data.len());
                self.waiting.push(Piece::Own(from..self.own.len()));
                from = self.own.len();
                self.waiting.push(Piece::Data(at..at + data.len()));
                let tag = self.tag(data)?;
                self.own.extend_from_slice(&tag);
            }
            at += data.len();
        }
        self.seal_batch(batch_start)?;
        self.waiting.push(Piece::Own(from..self.own.len()));
        Ok(())
    }

    fn seal_batch(&mut self, start: Option<usize>) -> io::Result<()> {
        let Some(start) = start else { return Ok(()) };
        let header = self.way.header(self.own.len() - start);
        if let Some(place) = self.own.get_mut(start - HEADER..start) {
            place.copy_from_slice(&header);
        }
        let Way::Mac(mac) = &self.way else { return Err(damaged("there is no MAC")) };
        let tag = mac.tag(self.number, self.own.get(start..).unwrap_or_default()).map_err(forged)?;
        self.count()?;
        self.own.extend_from_slice(&tag);
        Ok(())
    }

    fn tag(&mut self, data: &[u8]) -> io::Result<[u8; super::TAG]> {
        let Way::Mac(mac) = &self.way else { return Err(damaged("there is no MAC")) };
        let tag = mac.tag(self.number, data).map_err(forged)?;
        self.count()?;
        Ok(tag)
    }

    fn count(&mut self) -> io::Result<()> {
        self.number += 1;
        if self.number < MARKED_RECORDS_MAX { Ok(()) } else { Err(damaged("the key of the MAC is used up")) }
    }

    /// Returns the pieces to send next, of a frame with these parts.
    pub(in crate::tcp) fn waiting<'a>(&'a self, parts: &'a [&'a [u8]]) -> Vec<&'a [u8]> {
        let mut skip = self.sent;
        let mut next = Vec::with_capacity(self.waiting.len());
        for piece in &self.waiting {
            let bytes = match piece {
                Piece::Own(range) => self.own.get(range.clone()).unwrap_or_default(),
                Piece::Data(range) => Rest::new(parts, range.start).next(range.len()),
            };
            next.push(bytes.get(skip.min(bytes.len())..).unwrap_or_default());
            skip -= skip.min(bytes.len());
        }
        next
    }

    /// Notes the number of sent bytes. Returns the number of plain bytes of the frame once the last waiting
    /// byte was sent; 0 before.
    pub(in crate::tcp) fn note_sent(&mut self, bytes: usize) -> usize {
        self.sent += bytes;
        if self.sent < self.waiting.iter().map(Piece::len).sum() {
            return 0;
        }
        self.waiting.clear();
        self.sent = 0;
        std::mem::take(&mut self.plain)
    }
}
