//! Large transfers in two halves.
//!
//! A transfer of 1 MiB costs each side several passes over the data: the socket, the checksum, the file. On one
//! connection they run one after the other, on the CPU of one thread at each end. Two halves on two connections run at the
//! same time. On a host of 2 CPUs with client and server on both this is worth about a third of the time; below
//! [`SPLIT_MIN`] the second wake-up costs more than it saves.

use nacre_types::{Status, StatusResult};
use nacre_wire::oss::{Bulk, OssReply, OssRequest};

/// Smallest transfer that is split, in bytes. Its halves are still as large as what a server moves around its page cache.
const SPLIT_MIN: usize = 1 << 20;
/// Halves begin at multiples of this in the object, so that the server can move both around its page cache.
const ALIGN: u64 = 64 << 10;

/// Two requests that together do what one was to do.
pub(super) struct Halves<'a> {
    pub(super) first: OssRequest,
    pub(super) first_bulk: Bulk<'a>,
    pub(super) second: OssRequest,
    pub(super) second_bulk: Bulk<'a>,
}

/// Length of the first half of `len` bytes at `offset`; `None` if they are not worth it.
fn middle(offset: u64, len: usize) -> Option<usize> {
    if len < SPLIT_MIN {
        return None;
    }
    let middle = offset.checked_add(len as u64 / 2)? / ALIGN * ALIGN;
    usize::try_from(middle.checked_sub(offset)?).ok().filter(|&first| first > 0 && first < len)
}

impl<'a> Halves<'a> {
    /// Splits a large read or write; gives the buffer back for anything else. Writes that must be durable stay whole: two
    /// would be two flushes of a disk.
    pub(super) fn of(request: &OssRequest, bulk: Bulk<'a>) -> Result<Halves<'a>, Bulk<'a>> {
        match (request, bulk) {
            (&OssRequest::Write { object, offset, sync: false }, Bulk::Send(data)) => {
                let Some(at) = middle(offset, data.len()) else { return Err(Bulk::Send(data)) };
                let (head, tail) = data.split_at(at);
                Ok(Halves {
                    first: OssRequest::Write { object, offset, sync: false },
                    first_bulk: Bulk::Send(head),
                    second: OssRequest::Write { object, offset: offset + at as u64, sync: false },
                    second_bulk: Bulk::Send(tail),
                })
            }
            (&OssRequest::Read { object, offset, len, ahead }, Bulk::Receive(buffer)) => {
                let Some(at) = middle(offset, len as usize) else { return Err(Bulk::Receive(buffer)) };
                let (head, tail) = buffer.split_at_mut(at);
                Ok(Halves {
                    first: OssRequest::Read { object, offset, len: at as u32, ahead: 0 },
                    first_bulk: Bulk::Receive(head),
                    second: OssRequest::Read {
                        object,
                        offset: offset + at as u64,
                        len: len - at as u32,
                        // What comes next comes after this half.
                        ahead,
                    },
                    second_bulk: Bulk::Receive(tail),
                })
            }
            (_, bulk) => Err(bulk),
        }
    }
}

/// The answer to a write whose first half had `len` bytes: what arrived without a gap.
pub(super) fn join_writes(
    len: usize,
    first: StatusResult<OssReply>,
    second: StatusResult<OssReply>,
) -> StatusResult<OssReply> {
    let OssReply::Written(head) = first? else { return Err(Status::EPROTO) };
    if (head as usize) < len {
        return Ok(OssReply::Written(head));
    }
    match second {
        Ok(OssReply::Written(tail)) => Ok(OssReply::Written(head.saturating_add(tail))),
        Ok(_) => Err(Status::EPROTO),
        // The caller goes on from there and meets the reason again.
        Err(_) => Ok(OssReply::Written(head)),
    }
}

/// The answer to a read whose first half went to `head`. If the object ended in it and yet the second half found data, it
/// has grown meanwhile, and what lies between is a hole.
pub(super) fn join_reads(
    head: &mut [u8],
    first: StatusResult<OssReply>,
    second: StatusResult<OssReply>,
) -> StatusResult<OssReply> {
    let (OssReply::Read(got), OssReply::Read(tail)) = (first?, second?) else { return Err(Status::EPROTO) };
    if tail == 0 {
        return Ok(OssReply::Read(got));
    }
    let gap = head.get_mut(got as usize..).ok_or(Status::EPROTO)?;
    gap.fill(0);
    u32::try_from(head.len()).map(|len| OssReply::Read(len.saturating_add(tail))).map_err(|_| Status::EPROTO)
}

#[cfg(test)]
mod tests {
    use super::*;
    use nacre_types::Fid;

    fn write(offset: u64) -> OssRequest {
        OssRequest::Write { object: Fid::ost_object(0, 1), offset, sync: false }
    }

    #[test]
    fn halves_cover_the_range_once_and_begin_on_a_boundary() {
        for offset in [0, 1, 4096, 65535, 1 << 20, (1 << 40) + 77] {
            for len in [SPLIT_MIN, SPLIT_MIN + 1, 1 << 20, (4 << 20) - 3] {
                let data = vec![0u8; len];
                let Ok(halves) = Halves::of(&write(offset), Bulk::Send(&data)) else {
                    panic!("{offset} {len}")
                };
                let (Bulk::Send(head), Bulk::Send(tail)) = (halves.first_bulk, halves.second_bulk) else {
                    panic!("data stays data")
                };
                assert_eq!(head.len() + tail.len(), len);
                assert_eq!(halves.first, write(offset));
                assert_eq!(halves.second, write(offset + head.len() as u64));
                assert_eq!((offset + head.len() as u64) % ALIGN, 0);
            }
        }
    }

    #[test]
    fn small_and_durable_transfers_stay_whole() {
        let data = vec![0u8; 1 << 20];
        assert!(Halves::of(&write(0), Bulk::Send(&data[..SPLIT_MIN - 1])).is_err());
        let durable = OssRequest::Write { object: Fid::ost_object(0, 1), offset: 0, sync: true };
        assert!(Halves::of(&durable, Bulk::Send(&data)).is_err());
        // Close to the largest offset nothing overflows.
        assert!(Halves::of(&write(u64::MAX), Bulk::Send(&data)).is_err());
    }

    #[test]
    fn a_write_counts_up_to_its_first_gap() {
        let written = |bytes| Ok(OssReply::Written(bytes));
        assert_eq!(join_writes(10, written(10), written(7)), written(17));
        assert_eq!(join_writes(10, written(4), written(10)), written(4));
        assert_eq!(join_writes(10, written(10), Err(Status::ENOSPC)), written(10));
        assert_eq!(join_writes(10, Err(Status::ENOSPC), written(10)), Err(Status::ENOSPC));
    }

    #[test]
    fn a_read_ends_where_the_object_does_and_fills_holes() {
        let read = |bytes| Ok(OssReply::Read(bytes));
        let mut head = [7u8; 4];
        assert_eq!(join_reads(&mut head, read(4), read(3)), read(7));
        assert_eq!(join_reads(&mut head, read(2), read(0)), read(2));
        assert_eq!(head, [7; 4]);
        assert_eq!(join_reads(&mut head, read(2), read(1)), read(5));
        assert_eq!(head, [7, 7, 0, 0]);
        assert_eq!(join_reads(&mut head, read(4), Err(Status::EIO)), Err(Status::EIO));
        assert_eq!(join_reads(&mut head, read(9), read(1)), Err(Status::EPROTO));
    }
}
