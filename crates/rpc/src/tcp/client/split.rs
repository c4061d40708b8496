//! Large transfers in parallel parts.
//!
//! A transfer of 1 MiB costs each side several passes over the data: the socket, the checksum, the file. On
//! one connection they run one after the other, on the CPU of one thread at each end. Two halves on two
//! connections run in parallel. On a host of 2 CPUs with client and server this saves about a third of the
//! time; below [`HALVES_MIN`] the second wake-up costs more than it saves. Where the network is the
//! bottleneck, each endpoint adds its bandwidth, so there are as many parts as endpoints, down to
//! [`PART_MIN`].

use nacre_types::{Status, StatusResult};
use nacre_wire::lock::IoLock;
use nacre_wire::oss::{Bulk, OssReply, OssRequest};

/// Smallest transfer that is split in any case, in bytes. Its halves are large enough for direct I/O at the
/// server.
const HALVES_MIN: usize = 1 << 20;
/// Smallest part for the use of a further endpoint, in bytes. At 1 GB/s it takes 0.26 ms, as long as a round
/// trip.
const PART_MIN: usize = 256 << 10;
/// Alignment in the object of parts, in bytes, so that the server can use direct I/O for all of them.
const ALIGN: u64 = 64 << 10;

/// Input of the decision how to split a transfer.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ways {
    /// CPUs of this host.
    pub(super) cpus: usize,
    /// Endpoints that may be used.
    pub(super) endpoints: usize,
    /// Client and server share the host, and with it its CPUs.
    pub(super) near: bool,
    /// Longest part in bytes (`max_pages_per_rpc`).
    pub(super) rpc_bytes_max: usize,
}

impl Ways {
    fn part_count(&self, len: usize) -> usize {
        let halves = if len >= HALVES_MIN && self.cpus > 1 { 2 } else { 1 };
        let spread = if self.near { 1 } else { self.endpoints.min(len / PART_MIN) };
        halves.max(spread).max(len.div_ceil(self.rpc_bytes_max.max(1)))
    }

    /// Returns the lengths of the parts of a transfer; empty if it stays whole.
    fn parts(&self, offset: u64, len: usize) -> Vec<usize> {
        let count = self.part_count(len);
        if count <= 1 || offset.checked_add(len as u64).is_none() {
            return Vec::new();
        }
        let target = len.div_ceil(count).next_multiple_of(ALIGN as usize).min(self.rpc_bytes_max);
        let mut parts = Vec::with_capacity(count + 1);
        let mut done = 0;
        while done < len {
            let left = len - done;
            if (parts.len() + 1 >= count || left <= target) && left <= self.rpc_bytes_max {
                parts.push(left);
                break;
            }
            let start = offset + done as u64;
            let end = (start + target as u64) / ALIGN * ALIGN;
            // A part smaller than the alignment cannot be aligned.
            let part = usize::try_from(end.saturating_sub(start)).unwrap_or(0);
            let part = if part == 0 { target } else { part };
            parts.push(part);
            done += part;
        }
        parts
    }
}

/// Returns the requests that together replace one, and the lengths of their data; none if it stays whole.
/// Writes that must be durable stay whole: several would be several flushes of a disk.
pub(super) fn cut(request: &OssRequest, bulk: &Bulk<'_>, ways: &Ways) -> (Vec<OssRequest>, Vec<usize>) {
    let (offset, len) = match (request, bulk) {
        // The parts of a replayed change would have one number.
        (OssRequest::Write { lock: IoLock::Replay(_), .. }, _) => return (Vec::new(), Vec::new()),
        (OssRequest::Write { offset, sync: false, .. }, Bulk::Send(data)) => (*offset, data.len()),
        (OssRequest::Read { offset, len, .. }, Bulk::Receive(_)) => (*offset, *len as usize),
        _ => return (Vec::new(), Vec::new()),
    };
    let parts = ways.parts(offset, len);
    let mut start = offset;
    let requests = parts
        .iter()
        .map(|&part| {
            let at = start;
            start += part as u64;
            let is_last = start == offset + len as u64;
            match *request {
                OssRequest::Read { object, ahead, lock, written, .. } => {
                    // The read-ahead hint refers to what follows the last part.
                    let ahead = if is_last { ahead } else { 0 };
                    OssRequest::Read { object, offset: at, len: part as u32, ahead, lock, written }
                }
                OssRequest::Write { object, sync, granted, lock, incarnation, written, charge, .. } => {
                    OssRequest::Write {
                        object,
                        offset: at,
                        sync,
                        granted,
                        lock,
                        incarnation,
                        written,
                        charge,
                    }
                }
                _ => request.clone(),
            }
        })
        .collect();
    (requests, parts)
}

/// Returns the answer to a write in parts of these lengths: the bytes written up to the first gap. A change in a log has
/// the transaction of its last part.
pub(super) fn join_writes(parts: &[usize], results: Vec<StatusResult<OssReply>>) -> StatusResult<OssReply> {
    let (mut total, mut is_near_quota, mut logged) = (0u32, false, None);
    for (index, (part, result)) in parts.iter().zip(results).enumerate() {
        let reply = match result {
            Ok(OssReply::Logged { transno, last_committed, reply }) => {
                logged = logged.max(Some((transno, last_committed)));
                OssReply::from(reply)
            }
            Ok(reply) => reply,
            Err(status) if index == 0 => return Err(status),
            // The caller continues from there and meets the error again.
            Err(_) => break,
        };
        let OssReply::Written { bytes, is_near_quota: is_near } = reply else { return Err(Status::EPROTO) };
        total = total.saturating_add(bytes);
        is_near_quota |= is_near;
        if (bytes as usize) < *part {
            break;
        }
    }
    let reply = OssReply::Written { bytes: total, is_near_quota };
    Ok(match logged {
        Some((transno, last_committed)) => reply.logged(transno, last_committed),
        None => reply,
    })
}

/// Returns the answer to a read in parts of these lengths. If the object ended in one part and yet a later
/// part found data, the object has grown meanwhile, and the bytes in between are a hole.
pub(super) fn join_reads(
    mut buffer: &mut [u8],
    parts: &[usize],
    results: Vec<StatusResult<OssReply>>,
) -> StatusResult<OssReply> {
    let mut lens = Vec::with_capacity(parts.len());
    for result in results {
        let OssReply::Read(len) = result? else { return Err(Status::EPROTO) };
        lens.push(len as usize);
    }
    let Some(last) = lens.iter().rposition(|&len| len > 0) else { return Ok(OssReply::Read(0)) };
    let mut total = 0;
    for (&part, &len) in parts.iter().zip(&lens).take(last) {
        let (head, tail) = buffer.split_at_mut_checked(part).ok_or(Status::EPROTO)?;
        head.get_mut(len..).ok_or(Status::EPROTO)?.fill(0);
        buffer = tail;
        total += part;
    }
    let end = lens.get(last).copied().unwrap_or(0);
    u32::try_from(total + end).map(OssReply::Read).map_err(|_| Status::EPROTO)
}

#[cfg(test)]
mod tests {
    use super::*;
    use nacre_types::{Fid, TransNo};
    use nacre_wire::oss::Charge;
    use proptest::prelude::*;

    const ONE: Ways = Ways { cpus: 2, endpoints: 1, near: true, rpc_bytes_max: 1 << 20 };

    fn write(offset: u64) -> OssRequest {
        OssRequest::plain_write(Fid::ost_object(0, 1), offset)
    }

    proptest! {
        #[test]
        fn parts_cover_the_range_once_begin_on_boundaries_and_are_no_longer_than_allowed(
            offset in prop_oneof![Just(0u64), 0u64..1 << 22, Just((1u64 << 40) + 77)],
            len in 1usize..(4 << 20) + 1,
            endpoints in 1usize..17,
            near in any::<bool>(),
            pages in prop_oneof![16usize..300, Just(256), Just(16_384)],
        ) {
            let ways = Ways { cpus: 2, endpoints, near, rpc_bytes_max: pages * 4096 };
            let data = vec![0u8; len];
            let (requests, parts) = cut(&write(offset), &Bulk::Send(&data), &ways);
            prop_assert_eq!(requests.len(), parts.len());
            if parts.is_empty() {
                prop_assert!(len <= ways.rpc_bytes_max && len < HALVES_MIN);
                return Ok(());
            }
            prop_assert!(parts.iter().all(|&part| part > 0 && part <= ways.rpc_bytes_max));
            prop_assert_eq!(parts.iter().sum::<usize>(), len);
            let mut at = offset;
            for (index, (request, part)) in requests.iter().zip(&parts).enumerate() {
                prop_assert_eq!(request, &write(at));
                prop_assert!(index == 0 || pages % 16 != 0 || at % ALIGN == 0);
                at += *part as u64;
            }
        }
    }

    #[test]
    fn endpoints_of_a_network_get_a_part_each_and_a_shared_host_two() {
        let lens = |ways: Ways, len: usize| ways.parts(0, len);
        assert_eq!(lens(ONE, 1 << 20), [512 << 10; 2]);
        let many = Ways { endpoints: 4, ..ONE };
        assert_eq!(lens(many, 1 << 20), [512 << 10; 2], "CPUs are what is short on one host");
        let far = Ways { near: false, ..many };
        assert_eq!(lens(far, 1 << 20), [256 << 10; 4]);
        assert_eq!(lens(far, 512 << 10), [256 << 10; 2]);
        assert_eq!(lens(far, 256 << 10), [0; 0]);
        assert_eq!(lens(far, 4 << 20), [1 << 20; 4]);
        assert_eq!(lens(Ways { rpc_bytes_max: 256 << 10, ..ONE }, 1 << 20), [256 << 10; 4]);
        assert_eq!(lens(Ways { cpus: 1, ..ONE }, 1 << 20), [0; 0]);
    }

    #[test]
    fn small_and_durable_transfers_stay_whole() {
        let data = vec![0u8; 1 << 20];
        let whole = |request: &OssRequest, data: &[u8]| cut(request, &Bulk::Send(data), &ONE).1.is_empty();
        assert!(whole(&write(0), &data[..HALVES_MIN - 1]));
        let durable = OssRequest::Write {
            object: Fid::ost_object(0, 1),
            offset: 0,
            sync: true,
            granted: false,
            lock: IoLock::Lease,
            incarnation: 0,
            written: false,
            charge: Charge::ROOT,
        };
        assert!(whole(&durable, &data));
        // Close to the largest offset, nothing overflows.
        assert!(whole(&write(u64::MAX), &data));
    }

    #[test]
    fn only_the_last_part_of_a_read_tells_what_comes_next() {
        let read = OssRequest::Read {
            object: Fid::ost_object(0, 1),
            offset: 0,
            len: 1 << 20,
            ahead: 7,
            lock: IoLock::Lease,
            written: true,
        };
        let (requests, _) = cut(&read, &Bulk::Receive(&mut [0; 1 << 20]), &ONE);
        let ahead: Vec<u32> = requests
            .iter()
            .map(|request| match request {
                OssRequest::Read { ahead, written: true, .. } => *ahead,
                _ => panic!("a read stays a read, of what is known to be there"),
            })
            .collect();
        assert_eq!(ahead, [0, 7]);
    }

    #[test]
    fn a_write_counts_up_to_its_first_gap() {
        let logged = |bytes, transno| Ok(OssReply::written(bytes).logged(TransNo(transno), TransNo(1)));
        assert_eq!(join_writes(&[10, 10], vec![logged(10, 8), logged(10, 7)]), logged(20, 8));
        let written = |bytes| Ok(OssReply::written(bytes));
        let join = |results: [StatusResult<OssReply>; 3]| join_writes(&[10, 10, 10], results.into());
        assert_eq!(join([written(10), written(10), written(7)]), written(27));
        assert_eq!(join([written(4), written(10), written(10)]), written(4));
        assert_eq!(join([written(10), Err(Status::ENOSPC), written(10)]), written(10));
        assert_eq!(join([Err(Status::ENOSPC), written(10), written(10)]), Err(Status::ENOSPC));
    }

    #[test]
    fn a_read_ends_where_the_object_does_and_fills_holes() {
        let read = |bytes| Ok(OssReply::Read(bytes));
        let mut buffer = [7u8; 12];
        let mut join = |results: [StatusResult<OssReply>; 3]| {
            let result = join_reads(&mut buffer, &[4, 4, 4], results.into());
            (result, buffer)
        };
        assert_eq!(join([read(4), read(4), read(3)]), (read(11), [7; 12]));
        assert_eq!(join([read(2), read(0), read(0)]), (read(2), [7; 12]));
        assert_eq!(join([read(0), read(0), read(0)]), (read(0), [7; 12]));
        assert_eq!(join([read(2), read(0), read(1)]), (read(9), [7, 7, 0, 0, 0, 0, 0, 0, 7, 7, 7, 7]));
        assert_eq!(join([read(4), Err(Status::EIO), read(4)]).0, Err(Status::EIO));
        assert_eq!(join([read(9), read(1), read(0)]).0, Err(Status::EPROTO));
    }
}
