//! Protecting what is sent.

use super::{
    Cipher, DATA, HANDSHAKE, HEADER, KEY_UPDATE, MARKED_MAX, MARKED_RECORDS_MAX, PLAIN_MAX, RECORDS_MAX,
    SEALED_TRAILER, Shared, Way, damaged, failed, forged,
};
use std::io;
use std::ops::Range;

/// Most bytes that are encrypted before they are sent: what a send buffer takes, and a cache holds.
const SEAL_AHEAD: usize = 64 << 10;
/// The same of what is authenticated.
const MARK_AHEAD: usize = 2 * MARKED_MAX;
/// Shorter parts of a frame share a record, at the price of copying them; longer ones are sent from their place.
const APART_MIN: usize = 8 << 10;
/// A record of short parts takes no more of them when it is so long.
const TOGETHER_MAX: usize = 32 << 10;

/// A stretch of what is to be sent.
enum Piece {
    /// Of the sealer's own bytes.
    Own(Range<usize>),
    /// Of the frame's data, its parts one behind the other.
    Data(Range<usize>),
}

impl Piece {
    fn len(&self) -> usize {
        let (Piece::Own(range) | Piece::Data(range)) = self;
        range.len()
    }
}

/// What is left of the parts of a frame.
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

    /// Up to so many bytes, of one part.
    fn next(&mut self, max: usize) -> &'a [u8] {
        let Some(part) = self.parts.first().and_then(|part| part.get(self.skip..)) else { return &[] };
        let taken = part.get(..max.min(part.len())).unwrap_or_default();
        *self = Rest::new(self.parts, self.skip + taken.len());
        taken
    }
}

/// Protects what is sent. One thread at a time uses it.
pub(in crate::tcp) struct Sealer {
    session: Shared,
    way: Way,
    number: u64,
    /// Headers, tags, and all data that is not sent from its place.
    own: Vec<u8>,
    waiting: Vec<Piece>,
    /// Bytes of what waits that are out.
    sent: usize,
    /// Plain bytes that are in it.
    plain: usize,
}

impl Sealer {
    pub(super) fn new(session: Shared, way: Way, number: u64) -> Sealer {
        let number = if matches!(way, Way::Mac(_)) { 0 } else { number };
        Sealer { session, way, number, own: Vec::new(), waiting: Vec::new(), sent: 0, plain: 0 }
    }

    /// True if something was sealed that is not sent: it has to be before anything else.
    pub(in crate::tcp) fn has_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Gives back the memory of large data, if nothing is to be sent.
    pub(in crate::tcp) fn rest(&mut self) {
        if !self.has_waiting() {
            self.own = Vec::new();
        }
    }

    /// Seals what follows the first `skip` bytes of `parts`, as much as is sent in one go.
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

    /// The header of a record with so much data.
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

    /// Tells the peer that a new secret follows, and takes it.
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

    /// Tags, for data that is sent as it is: long parts from their place.
    fn authenticate(&mut self, mut rest: Rest<'_>, mut at: usize) -> io::Result<()> {
        let end = at + self.plain;
        let mut from = 0;
        // Where the data of a record of short parts begins.
        let mut together = None;
        while at < end {
            let data = rest.next(MARKED_MAX.min(end - at));
            if data.len() < APART_MIN {
                let start = *together.get_or_insert_with(|| self.own.len() + HEADER);
                self.own.resize(self.own.len().max(start), 0);
                self.own.extend_from_slice(data);
                if self.own.len() - start >= TOGETHER_MAX {
                    self.end_together(together.take())?;
                }
            } else {
                self.end_together(together.take())?;
                self.begin(data.len());
                self.waiting.push(Piece::Own(from..self.own.len()));
                from = self.own.len();
                self.waiting.push(Piece::Data(at..at + data.len()));
                let tag = self.tag(data)?;
                self.own.extend_from_slice(&tag);
            }
            at += data.len();
        }
        self.end_together(together)?;
        self.waiting.push(Piece::Own(from..self.own.len()));
        Ok(())
    }

    fn end_together(&mut self, start: Option<usize>) -> io::Result<()> {
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

    /// What is to be sent next, of a frame with these parts.
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

    /// So many bytes of it were sent. The number of plain bytes that are out with the last of them; 0 before.
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
