//! Inodes and space below a directory: the sums of all MDTs.
//!
//! Each MDT sums up its inodes below the directories that it is asked for, as far as it knows the way down: it has the
//! inodes of the directories on it. With several MDTs each also returns the directories that it finds, and the client
//! asks the others for what they have below these. So every MDT is asked for every directory once.

use crate::caller::Caller;
use crate::client::Client;
use nacre_types::{DirCounts, Fid, Status, StatusResult};
use nacre_wire::dir_use::{DIR_USE_MAX, DirUseReply, DirUseRequest};
use nacre_wire::mds::{MdsReply, MdsRequest};
use std::collections::VecDeque;
use std::time::Duration;

/// Longest wait for a reply: a program waits for the sums.
const WAIT: Duration = Duration::from_secs(10);
/// Rights that the caller needs: to read and search the directory.
const NEEDED: u8 = 5;

/// Sums over everything below a directory.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct DirUseTotal {
    /// The sums.
    pub counts: DirCounts,
    /// False while an MDT counts its inodes: the sums may be too small.
    pub is_complete: bool,
}

/// Directories that an MDT is still to be asked for.
#[derive(Default)]
struct Pending {
    dirs: VecDeque<Fid>,
    /// Zero, or the subdirectory of the first one after which it continues.
    after: Fid,
}

impl Pending {
    /// Returns the next request, if there is one.
    fn request(&self, lists: bool) -> Option<DirUseRequest> {
        let dirs: Vec<Fid> = self.dirs.iter().take(DIR_USE_MAX).copied().collect();
        (!dirs.is_empty()).then_some(DirUseRequest { dirs, after: self.after, lists })
    }

    /// Removes the directories that a reply has finished. Those that it has found come next.
    ///
    /// # Errors
    /// `EPROTO` if the reply would not come to an end.
    fn finish(&mut self, asked: usize, reply: &DirUseReply) -> StatusResult<()> {
        let DirUseReply { dirs, done, after, .. } = reply;
        let done = *done as usize;
        let has_progress = done > 0 || *after > self.after;
        if !has_progress || done > asked + dirs.len() {
            return Err(Status::EPROTO);
        }
        let found = dirs.iter().skip(done.saturating_sub(asked)).copied();
        let rest: Vec<Fid> = self.dirs.drain(..asked).skip(done).chain(found).collect();
        rest.into_iter().rev().for_each(|dir| self.dirs.push_front(dir));
        self.after = if self.dirs.is_empty() { Fid::ZERO } else { *after };
        Ok(())
    }
}

/// Sums up over all MDTs; `ask` sends a request to one of them.
fn sum_up(
    mdts: usize,
    top: Fid,
    mut ask: impl FnMut(usize, DirUseRequest) -> StatusResult<DirUseReply>,
) -> StatusResult<DirUseTotal> {
    let mut total = DirUseTotal { is_complete: true, ..DirUseTotal::default() };
    let begin = || Pending { dirs: VecDeque::from([top]), after: Fid::ZERO };
    let mut pending: Vec<Pending> = (0..mdts).map(|_| begin()).collect();
    loop {
        let mut is_done = true;
        for mdt in 0..mdts {
            let Some(request) = pending.get(mdt).and_then(|pending| pending.request(mdts > 1)) else {
                continue;
            };
            is_done = false;
            let asked = request.dirs.len();
            let reply = ask(mdt, request)?;
            total.counts.add(&reply.counts);
            total.is_complete &= reply.is_complete;
            for (other, pending) in pending.iter_mut().enumerate() {
                match other == mdt {
                    true => pending.finish(asked, &reply)?,
                    false => pending.dirs.extend(&reply.dirs),
                }
            }
        }
        if is_done {
            return Ok(total);
        }
    }
}

impl Client {
    /// Returns the sums over everything below a directory. Sizes of files that are open for writing follow the next
    /// report of their client.
    ///
    /// # Errors
    /// `ENOTDIR`; `EACCES` for callers that may not read and search the directory; `EOPNOTSUPP` if an MDT does not
    /// count; `EAGAIN` if an MDT is unreachable.
    pub fn dir_use(&self, caller: &Caller, fid: Fid) -> StatusResult<DirUseTotal> {
        let mdts = self.requests.mdts.len();
        let cred = caller.full_cred();
        let send =
            |place: Fid, request: &MdsRequest<'_>| self.requests.call_within(&cred, place, request, WAIT);
        match send(fid, &MdsRequest::Access { fid, mask: NEEDED })? {
            MdsReply::Attr(attr) if attr.is_dir() => {}
            MdsReply::Attr(_) => return Err(Status::ENOTDIR),
            _ => return Err(Status::EPROTO),
        }
        sum_up(mdts, fid, |mdt, request| {
            let place = Fid::new(Fid::first_sequence_of_mdt(mdt as u16), 1, 0);
            match send(place, &MdsRequest::DirUse(request))? {
                MdsReply::DirUse(reply) => Ok(reply),
                _ => Err(Status::EPROTO),
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    fn fid(oid: u32) -> Fid {
        Fid::new(0x2_0000_0401, oid, 0)
    }

    /// MDTs with a tree of `count` directories, each the parent of two and on any MDT; each directory has a file on
    /// each MDT. A reply has at most `found_max` directories.
    fn totals(mdts: usize, count: u32, found_max: usize) -> (DirUseTotal, usize) {
        let mdt_of = |oid: u32| (oid as usize * 7 / 3) % mdts;
        let subdirs_of = |dir: Fid| [2 * dir.oid, 2 * dir.oid + 1].into_iter().filter(|oid| *oid <= count);
        let (mut asked, mut seen) = (0, BTreeMap::new());
        let total = sum_up(mdts, fid(1), |mdt, request| {
            asked += 1;
            assert_eq!(request.lists, mdts > 1);
            let (mut queue, mut done, mut after) = (request.dirs.clone(), 0, request.after);
            let found_max = if request.lists { found_max } else { usize::MAX };
            let mut counts = DirCounts::default();
            'all: while let Some(dir) = queue.get(done).copied() {
                let is_full = |queue: &Vec<Fid>| queue.len() - request.dirs.len() >= found_max;
                let own: Vec<u32> = subdirs_of(dir).filter(|oid| mdt_of(*oid) == mdt).collect();
                if after == Fid::ZERO {
                    if is_full(&queue) && !own.is_empty() {
                        break;
                    }
                    assert_eq!(seen.insert((mdt, dir), ()), None, "{dir} is summed up twice");
                    counts.files += 1;
                    counts.directories += own.len() as u64;
                }
                let begun = after;
                for subdir in own.into_iter().map(fid).filter(|subdir| *subdir > begun) {
                    if is_full(&queue) {
                        break 'all;
                    }
                    queue.push(subdir);
                    after = subdir;
                }
                (done, after) = (done + 1, Fid::ZERO);
            }
            let dirs = if request.lists { queue.split_off(request.dirs.len()) } else { Vec::new() };
            let done = if request.lists { done as u32 } else { request.dirs.len() as u32 };
            Ok(DirUseReply { counts, is_complete: mdt != 2, dirs, done, after })
        });
        (total.expect("sums"), asked)
    }

    #[test]
    fn every_mdt_is_asked_for_every_directory_once() {
        for (mdts, count, found_max) in [(1, 500, 9), (2, 500, 1), (3, 500, 7), (3, 20_000, 4096), (4, 1, 4)]
        {
            let (DirUseTotal { counts, is_complete }, asked) = totals(mdts, count, found_max);
            let expected = (u64::from(count) * mdts as u64, u64::from(count) - 1);
            assert_eq!((counts.files, counts.directories), expected, "{mdts} {count} {found_max}");
            assert_eq!(is_complete, mdts < 3);
            assert!(mdts > 1 || asked == 1, "one MDT answers at once");
        }
    }

    #[test]
    fn a_reply_without_progress_ends_the_sums() {
        let stuck = |_, _: DirUseRequest| {
            let counts = DirCounts::default();
            Ok(DirUseReply { counts, is_complete: true, dirs: Vec::new(), done: 0, after: Fid::ZERO })
        };
        assert_eq!(sum_up(2, fid(1), stuck), Err(Status::EPROTO));
        let too_much = |_, _: DirUseRequest| {
            let counts = DirCounts::default();
            Ok(DirUseReply { counts, is_complete: true, dirs: Vec::new(), done: 2, after: Fid::ZERO })
        };
        assert_eq!(sum_up(2, fid(1), too_much), Err(Status::EPROTO));
    }
}
