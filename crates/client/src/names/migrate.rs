//! Inodes that move to another MDT, and so get another FID.
//!
//! The client that requests the move chooses the FID, as for a create. What this client and the kernel cache
//! under the old FID is dropped here: with other clients, locks on it are revoked as well.

use crate::caller::Caller;
use crate::names::Names;
use crate::requests::fan_out::ask_all;
use nacre_layout::DirDefault;
use nacre_layout::dir_hash::DirHash;
use nacre_layout::dir_layout::{DirFlags, DirLayout};
use nacre_types::{Attr, Failure, FailureResult, Fid, Status, StatusResult};
use nacre_wire::mds::{InodeKind, MdsReply, MdsRequest};

impl Names {
    /// Moves the inode that a name leads to to the first MDT of a specification; for a directory, its names
    /// to the MDTs of it. A file goes to the MDT of its name, if there are several. It returns when the inode
    /// has moved; for a directory, when its names begin to move.
    ///
    /// # Errors
    /// `EALREADY` if it is placed like that; `EPERM` without the right to choose MDTs, or for a caller that
    /// does not own it; `EINVAL` if there is no such MDT; `EBUSY` for the root, for a file that is open, and
    /// for a directory whose names move; `EMLINK` for a file with too many names; `EAGAIN` if a directory is
    /// to be spread and all other MDTs are unreachable or take no new inodes.
    pub fn migrate(
        &self,
        caller: &Caller,
        (parent, name): (Fid, &[u8]),
        requested: &DirDefault,
    ) -> StatusResult<()> {
        self.requests.faults.edge("migrate", || {
            self.placement.check_mdts(requested)?;
            let found =
                self.lookup(caller, parent, name).map_err(Failure::logged)?.map_err(|_| Status::ENOENT)?;
            let outcome = match found.attr.is_dir() {
                true => self.migrate_directory(caller, &found.attr, requested),
                false => {
                    let is_one = requested.mdts.len() <= 1 && (0..=1).contains(&requested.count);
                    let mdt = Some(first_of(requested)?).filter(|_| is_one);
                    let mdt = mdt.unwrap_or_else(|| self.shards.home(parent, name).mdt_index());
                    self.migrate_file(caller, &found.attr, mdt)
                }
            };
            self.inodes.forget(found.node, 1);
            outcome
        })
    }

    fn migrate_directory(&self, caller: &Caller, attr: &Attr, requested: &DirDefault) -> FailureResult<()> {
        let (fid, first) = (attr.fid, first_of(requested)?);
        let mdts = self.mdts_of(requested, first)?;
        let list = self.shards.learn_shards(fid)?;
        if list.as_ref().is_some_and(|list| list.change().is_some()) {
            return Err(Status::EBUSY.into());
        }
        let is_hash = |list: &DirLayout| requested.hash.is_none_or(|hash| hash.number() == list.hash);
        let lies_so = match &list {
            None => mdts.is_empty(),
            Some(list) => list.shards.iter().map(Fid::mdt_index).eq(mdts.iter().copied()) && is_hash(list),
        };
        if lies_so && fid.mdt_index() == first {
            return Err(Status::EALREADY.into());
        }
        let to = self.requests.fresh_fid(first)?;
        let lmv = match &mdts[..] {
            [] => Vec::new(),
            mdts => {
                let shards = mdts
                    .iter()
                    .map(|mdt| self.requests.fresh_fid(*mdt))
                    .collect::<FailureResult<Vec<Fid>>>()?;
                let old = list.as_ref().and_then(|list| DirHash::from_number(list.hash));
                let mut next = DirLayout::new(
                    requested.hash.or(old).unwrap_or_else(|| self.shards.default_hash()),
                    first,
                    shards,
                );
                let fixed = list.as_ref().is_some_and(|list| list.flags.contains(DirFlags::FIXED));
                next.flags.set(DirFlags::FIXED, fixed && !requested.flags.contains(DirFlags::FIXED));
                let mut sorted = mdts.to_vec();
                sorted.sort_unstable();
                next.flags.set(DirFlags::OVERSTRIPED, sorted.windows(2).any(|pair| pair[0] == pair[1]));
                next.encode()
            }
        };
        self.requests.call(caller, fid, &MdsRequest::Migrate { fid, to, lmv: &lmv })?;
        self.shards.forget_absences(fid);
        self.shards.lists.forget(fid);
        self.forget_inodes(std::iter::once(fid));
        Ok(())
    }

    /// Returns the MDTs of the shards that a directory is to have; none if it is to have no shards.
    fn mdts_of(&self, requested: &DirDefault, first: u16) -> FailureResult<Vec<u16>> {
        let count = self.placement.shard_count(requested);
        Ok(match &requested.mdts[..] {
            _ if count <= 1 => Vec::new(),
            [] | [_] => self.placement.spread_from(first, count, requested)?,
            listed => listed.iter().copied().cycle().take(count).collect(),
        })
    }

    fn migrate_file(&self, caller: &Caller, attr: &Attr, mdt: u16) -> FailureResult<()> {
        let outcome = self.migrate_files(caller, &[attr.fid], mdt).map_err(Failure::logged)?.pop();
        Ok(outcome.unwrap_or(Err(Status::EPROTO))?)
    }

    /// Moves inodes of one MDT, except directories, to another one; returns the outcome of each.
    ///
    /// # Errors
    /// Of all of them: `EPERM`; `EINVAL` if there is no such MDT, or if they are on several. Of each: those
    /// of [`Names::migrate`], and `EISDIR` for a directory.
    pub fn migrate_files(
        &self,
        caller: &Caller,
        fids: &[Fid],
        mdt: u16,
    ) -> StatusResult<Vec<StatusResult<()>>> {
        self.requests.faults.edge("migrate files", || {
            let Some(first) = fids.first() else { return Ok(Vec::new()) };
            let is_alike = |fid: &Fid| fid.mdt_index() == first.mdt_index();
            if !self.requests.has_mdt(mdt)?
                || !self.requests.has_mdt(first.mdt_index())?
                || !fids.iter().all(is_alike)
            {
                return Err(Status::EINVAL.into());
            }
            if first.mdt_index() == mdt {
                return Ok(vec![Err(Status::EALREADY); fids.len()]);
            }
            // Files that this mount has open, or still writes back, stay: the request leaves them out.
            let is_in_use = |fid: &Fid| self.nodes.file(fid.inode_number()).is_some();
            let with_target = |fid: &Fid| Ok((*fid, self.requests.fresh_fid(mdt)?));
            let free = fids.iter().filter(|fid| !is_in_use(fid));
            let moves = free.map(with_target).collect::<FailureResult<Vec<(Fid, Fid)>>>()?;
            let mut moved = Vec::new();
            if !moves.is_empty() {
                // After this, the MDT has processed all closes of this client; the data has arrived before.
                self.requests.mdt(*first)?.endpoint.wait_for_posts()?;
                let request = MdsRequest::MigrateFiles { moves: moves.clone() };
                let MdsReply::Outcomes(outcomes) = self.requests.call(caller, *first, &request)?.reply else {
                    return Err(Status::EPROTO.into());
                };
                moved = moves.iter().zip(outcomes).map(|((fid, _), failure)| (*fid, failure)).collect();
            }
            self.forget_inodes(moved.iter().filter(|(_, failure)| failure.is_none()).map(|(fid, _)| *fid));
            let mut moved = moved.into_iter().peekable();
            let outcome = |fid: &Fid| match moved.next_if(|(asked, _)| asked == fid) {
                Some((_, failure)) => failure.map_or(Ok(()), Err),
                None => Err(Status::EBUSY),
            };
            Ok(fids.iter().map(outcome).collect())
        })
    }

    /// Drops cached information about inodes that have other FIDs.
    fn forget_inodes(&self, fids: impl Iterator<Item = Fid>) {
        let Some(kernel) = self.lease.kernel() else { return };
        let mut fids = fids.peekable();
        if fids.peek().is_some() {
            kernel.expire_names();
        }
        for fid in fids {
            kernel.drop_attributes(fid.inode_number());
        }
    }

    /// Returns inodes of an MDT behind `after`, in the order of FIDs, that have names; and the FID to
    /// continue behind.
    ///
    /// # Errors
    /// `EPERM` for a caller that is no administrator; `EINVAL` if there is no such MDT.
    pub fn inodes_on(
        &self,
        caller: &Caller,
        (mdt, kind): (u16, InodeKind),
        after: Fid,
        count_max: u32,
    ) -> StatusResult<(Vec<Fid>, Option<Fid>)> {
        self.requests.faults.edge("list inodes", || {
            if !self.requests.has_mdt(mdt)? {
                return Err(Status::EINVAL.into());
            }
            let place = Fid::new(Fid::first_sequence_of_mdt(mdt), 1, 0);
            match self.requests.call(caller, place, &MdsRequest::Inodes { after, count_max, kind })?.reply {
                MdsReply::Files { fids, next } => Ok((fids, next)),
                _ => Err(Status::EPROTO.into()),
            }
        })
    }

    /// Returns a page of the files that have objects on an OST, behind `after`; and the FID to continue
    /// behind. A FID names its MDT, so pages of one MDT after the other cover the file system.
    ///
    /// # Errors
    /// `EPERM` for a caller that is no administrator; `ETIMEDOUT` if the MDT does not respond soon; the error
    /// of the MDT.
    pub fn files_on(
        &self,
        caller: &Caller,
        ost_index: u16,
        after: Fid,
        count_max: u32,
    ) -> StatusResult<(Vec<Fid>, Option<Fid>)> {
        self.requests.faults.edge("list files", || {
            let mdt = after.mdt_index();
            let place = Fid::new(Fid::first_sequence_of_mdt(mdt), 1, 0);
            if !self.requests.has_mdt(mdt)? {
                return Err(Status::EINVAL.into());
            }
            let request = MdsRequest::FilesOn { ost_index, after, count_max };
            let answer = ask_all(&[place], |place| {
                let answer = self.requests.call(caller, *place, &request);
                answer.map_err(|failure| self.requests.faults.log(failure))
            })
            .pop();
            let MdsReply::Files { fids, next } =
                answer.unwrap_or(Err(Status::EPROTO)).map_err(Failure::logged)?.reply
            else {
                return Err(Status::EPROTO.into());
            };
            let next = match next {
                None if self.requests.has_mdt(mdt + 1)? => {
                    Some(Fid::new(Fid::first_sequence_of_mdt(mdt + 1), 0, 0))
                }
                next => next,
            };
            Ok((fids, next))
        })
    }
}

/// Returns the MDT of the directory itself.
fn first_of(requested: &DirDefault) -> StatusResult<u16> {
    let named = u16::try_from(requested.index).ok();
    requested.mdts.first().copied().or(named).ok_or(Status::EINVAL)
}
