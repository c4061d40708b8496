//! Transfers between buffers and the objects of a layout.

use crate::objects::idle::Pace;
use crate::objects::{LARGE_BYTES, Objects, placed};
use nacre_env::clock::Instant;
use nacre_layout::{Chunk, Layout, StripeObject, chunks};
use nacre_rpc::{IoCall, OssEndpoint};
use nacre_types::{Context, Explain, Failure, FailureResult, Fid, Status, StatusResult};
use nacre_wire::lock::IoLock;
use nacre_wire::oss::{Bulk, Charge, OssReply, OssRequest};

/// An object that was written, with its OST's epoch before that.
pub(crate) type Touched = (StripeObject, u64);

/// How bytes are read from objects.
#[derive(Clone, Copy)]
pub(crate) struct ReadHow {
    /// Bytes behind the read that OSTs are asked to have ready.
    pub ahead: u32,
    /// Lock that excludes other clients.
    pub lock: IoLock,
}

/// How bytes are written to objects.
#[derive(Clone, Copy)]
pub(crate) struct WriteHow {
    /// True if the data is to be durable when the OST replies.
    pub sync: bool,
    /// Lock that excludes other clients.
    pub lock: IoLock,
    /// Payer of the space.
    pub charge: Charge,
}

/// Bytes and their place in a file or an object.
#[derive(Clone, Copy)]
pub(crate) struct Placed<'a> {
    /// Offset in the file or object, in bytes.
    pub at: u64,
    pub data: &'a [u8],
}

/// A part of a buffer, and the file offset of its first byte.
pub(crate) type Part<'a> = (u64, &'a mut [u8]);

/// Where [`Objects::write_layout`] records what it wrote: usually one object, which then costs no allocation.
#[derive(Default)]
pub(crate) struct Notes {
    one: [Touched; 1],
    many: Vec<Touched>,
}

impl Objects {
    /// Fills `buffer` with the bytes of the file from `offset` on; bytes without an object are zero.
    pub(crate) fn read_layout(
        &self,
        layout: &Layout,
        offset: u64,
        buffer: &mut [u8],
        how: ReadHow,
    ) -> FailureResult<()> {
        let mut parts = chunks(layout, offset, buffer.len() as u64);
        let (first, second) = (parts.next(), parts.next());
        match (first, second) {
            (None, _) => buffer.fill(0),
            (Some(chunk), None) if let Some(pieces) = self.divided(&chunk, &self.read_pace) => {
                self.read_chunks(layout, &mut [(offset, buffer)], &[pieces], how, None)?;
            }
            (Some(chunk), None) => {
                let (mine, rest) = buffer.split_at_mut(chunk.len as usize);
                rest.fill(0);
                let begin = (chunk.len >= LARGE_BYTES).then(Instant::now);
                self.read_chunk(&chunk, mine, how)?;
                if let Some(begin) = begin {
                    self.read_pace.note(chunk.len, begin.elapsed());
                }
            }
            // There is a second chunk.
            _ => {
                let pieces = chunks(layout, offset, buffer.len() as u64).collect();
                self.read_chunks(layout, &mut [(offset, buffer)], &[pieces], how, Some(&self.read_pace))?;
            }
        }
        Ok(())
    }

    fn read_chunk(&self, chunk: &Chunk, buffer: &mut [u8], how: ReadHow) -> FailureResult<()> {
        let Some(stripe) = chunk.object else {
            buffer.fill(0);
            return Ok(());
        };
        let request = read_request(chunk, &stripe, how);
        let reply = self.requests.ost(stripe.ost_index)?.call(&request, Bulk::Receive(buffer));
        reply
            .and_then(|reply| fill_short(reply, buffer))
            .explain(|context| self.about_piece(context.action("read"), chunk))
    }

    /// Fills buffers with the bytes of the file from their offsets on, all requests in flight at once.
    pub(crate) fn read_parts(
        &self,
        layout: &Layout,
        parts: &mut [Part<'_>],
        how: ReadHow,
    ) -> FailureResult<()> {
        let pieces: Vec<Vec<Chunk>> =
            parts.iter().map(|(at, buffer)| chunks(layout, *at, buffer.len() as u64).collect()).collect();
        self.read_chunks(layout, parts, &pieces, how, None)
    }

    /// Does the same with the chunks of each part.
    fn read_chunks(
        &self,
        layout: &Layout,
        parts: &mut [Part<'_>],
        pieces: &[Vec<Chunk>],
        how: ReadHow,
        pace: Option<&Pace>,
    ) -> FailureResult<()> {
        // The hint is for the file; each object has its share of the bytes that follow.
        let how = ReadHow { ahead: how.ahead / (layout.objects().count().max(1) as u32), ..how };
        let mut calls = Vec::with_capacity(pieces.iter().map(Vec::len).sum());
        for ((_, buffer), chunks) in parts.iter_mut().zip(pieces) {
            let mut rest = &mut **buffer;
            for chunk in chunks {
                let (mine, after) = rest.split_at_mut(chunk.len as usize);
                rest = after;
                match chunk.object {
                    Some(stripe) => calls.push(IoCall {
                        endpoint: self.requests.ost(stripe.ost_index)?,
                        request: read_request(chunk, &stripe, how),
                        bulk: Bulk::Receive(mine),
                    }),
                    None => mine.fill(0),
                }
            }
            rest.fill(0);
        }
        let bytes = pieces.iter().flatten().map(|chunk| chunk.len).sum();
        let mut replies = self.run_calls(calls, bytes, pace).into_iter();
        for ((_, buffer), chunks) in parts.iter_mut().zip(pieces) {
            let mut rest = &mut **buffer;
            for chunk in chunks {
                let (mine, after) = rest.split_at_mut(chunk.len as usize);
                rest = after;
                if chunk.object.is_some() {
                    let reply = replies.next().unwrap_or(Err(Status::EPROTO));
                    reply
                        .and_then(|reply| fill_short(reply, mine))
                        .explain(|context| self.about_piece(context.action("read"), chunk))?;
                }
            }
        }
        Ok(())
    }

    /// Writes `data` at an offset; returns the bytes that arrived without a gap, and the objects that were
    /// written.
    pub(crate) fn write_layout<'t>(
        &self,
        fid: Fid,
        layout: &Layout,
        Placed { at: offset, data }: Placed<'_>,
        how: WriteHow,
        notes: &'t mut Notes,
    ) -> (FailureResult<usize>, &'t [Touched]) {
        let Notes { one, many } = notes;
        let mut parts = chunks(layout, offset, data.len() as u64);
        match (parts.next(), parts.next()) {
            (Some(chunk), None) => {
                let Some(stripe) = chunk.object else { return (Err(no_object(&chunk)), &[]) };
                one[0] = (stripe, self.requests.epoch_of(stripe.ost_index));
                // Durable writes stay whole: several would mean several flushes of a disk.
                let pieces = if how.sync { None } else { self.divided(&chunk, &self.write_pace) };
                let outcome = self.requests.with_space(fid, || match &pieces {
                    Some(pieces) => self.write_chunks((fid, layout), pieces, data, how),
                    None => self.write_chunk((fid, layout), &chunk, data, how),
                });
                (outcome, one)
            }
            (first, second) => {
                let parts: Vec<Chunk> = first.into_iter().chain(second).chain(parts).collect();
                for stripe in parts.iter().filter_map(|chunk| chunk.object) {
                    if !many.iter().any(|known: &Touched| known.0.object == stripe.object) {
                        many.push((stripe, self.requests.epoch_of(stripe.ost_index)));
                    }
                }
                (self.requests.with_space(fid, || self.write_chunks((fid, layout), &parts, data, how)), many)
            }
        }
    }

    fn write_request(
        &self,
        of: (Fid, &Layout),
        chunk: &Chunk,
        WriteHow { sync, lock, charge }: WriteHow,
    ) -> FailureResult<(&dyn OssEndpoint, OssRequest)> {
        let stripe = chunk.object.ok_or_else(|| no_object(chunk))?;
        let endpoint = self.requests.ost(stripe.ost_index)?;
        let request = OssRequest::Write {
            object: stripe.object,
            offset: chunk.object_offset,
            sync,
            granted: false,
            lock,
            incarnation: endpoint.incarnation(),
            written: stripe.written,
            charge: placed(charge, of, &stripe),
        };
        Ok((endpoint, request))
    }

    fn write_chunk(
        &self,
        of: (Fid, &Layout),
        chunk: &Chunk,
        data: &[u8],
        how: WriteHow,
    ) -> FailureResult<usize> {
        let (endpoint, request) = self.write_request(of, chunk, how)?;
        let data = &data[..chunk.len as usize];
        let reply = endpoint.call(&request, Bulk::Send(data));
        self.written(chunk, how, reply).explain(|context| self.about_piece(context.action("write"), chunk))
    }

    fn write_chunks(
        &self,
        of: (Fid, &Layout),
        parts: &[Chunk],
        data: &[u8],
        how: WriteHow,
    ) -> FailureResult<usize> {
        let mut calls = Vec::with_capacity(parts.len());
        let mut rest = data;
        for chunk in parts {
            let (mine, after) = rest.split_at(chunk.len as usize);
            rest = after;
            let (endpoint, request) = self.write_request(of, chunk, how)?;
            calls.push(IoCall { endpoint, request, bulk: Bulk::Send(mine) });
        }
        let mut total = 0;
        for (reply, chunk) in
            self.run_calls(calls, data.len() as u64, Some(&self.write_pace)).into_iter().zip(parts)
        {
            match self.written(chunk, how, reply) {
                Ok(bytes) if bytes as u64 == chunk.len => total += bytes,
                Ok(bytes) => return Ok(total + bytes),
                Err(status) if total == 0 => {
                    return Err(status).explain(|context| self.about_piece(context.action("write"), chunk));
                }
                Err(_) => break,
            }
        }
        Ok(total)
    }

    /// Returns how much of a piece an OST has written.
    fn written(&self, chunk: &Chunk, how: WriteHow, reply: StatusResult<OssReply>) -> StatusResult<usize> {
        let ost_index = chunk.object.map_or(0, |stripe| stripe.ost_index);
        self.requests.quotas.written(ost_index, how.charge.owners, reply?)
    }

    /// Adds the context of a failed transfer of a piece of a file.
    fn about_piece<'c>(&self, context: &'c mut Context, chunk: &Chunk) -> &'c mut Context {
        let Some(stripe) = chunk.object else { return context };
        self.requests.about_object(&stripe)(context.offset(chunk.file_offset))
    }
}

/// Returns the failure of a write to a range without an object.
fn no_object(chunk: &Chunk) -> Failure {
    Failure::from(Status::EIO).explain(|context| {
        context.action("write").offset(chunk.file_offset).cause("the layout has no object there")
    })
}

fn read_request(chunk: &Chunk, stripe: &StripeObject, how: ReadHow) -> OssRequest {
    let StripeObject { object, written, .. } = *stripe;
    let ReadHow { ahead, lock } = how;
    OssRequest::Read { object, offset: chunk.object_offset, len: chunk.len as u32, ahead, lock, written }
}

/// Zeroes the rest of the buffer if the object ends inside of the file: the rest of its part is a hole.
fn fill_short(reply: OssReply, buffer: &mut [u8]) -> StatusResult<()> {
    match reply {
        OssReply::Read(bytes) if bytes as usize <= buffer.len() => {
            buffer[bytes as usize..].fill(0);
            Ok(())
        }
        _ => Err(Status::EPROTO),
    }
}
