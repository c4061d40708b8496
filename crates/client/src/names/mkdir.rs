//! Creates of directories on requested MDTs, or where the default of the parent places them. See
//! `docs/design/dne.md`.

use crate::caller::Caller;
use crate::inodes::Found;
use crate::inodes::root::soon;
use crate::names::{Created, Names};
use crate::placement::Plan;
use nacre_layout::dir_layout::DirLayout;
use nacre_layout::{DirDefault, DirFlags, DirHash};
use nacre_types::{Failure, FailureResult, Fid, Status, StatusResult};
use nacre_wire::mds::{MdsRequest, NewFile};
use std::sync::Arc;

/// A directory that is to be created: where, and for which caller.
pub(crate) struct Making<'a> {
    caller: &'a Caller,
    parent: Fid,
    name: &'a [u8],
    what: &'a Created<'a>,
    /// True if the request names MDTs, which needs the right to choose them.
    is_chosen: bool,
}

impl Names {
    /// Creates a directory as requested. Counts as one lookup.
    ///
    /// # Errors
    /// As [`Names::create`]; `EPERM` without the right to choose MDTs; `EINVAL` if there is no such MDT.
    pub fn make_directory(
        &self,
        caller: &Caller,
        (parent, name): (Fid, &[u8]),
        what: &Created<'_>,
        requested: &DirDefault,
    ) -> StatusResult<Found> {
        self.requests.faults.edge("make directory", || {
            self.placement.check_mdts(requested)?;
            let making = Making { caller, parent, name, what, is_chosen: self.requests.mdts.len() > 1 };
            self.make_by(&making, requested)
        })
    }

    /// Spreads the names of a directory over the requested number of MDTs. It returns when that has begun.
    ///
    /// # Errors
    /// `EPERM` without the right to choose MDTs, and where it is turned off; `EINVAL` if there is no such
    /// MDT, or more shards than they may have; `EBUSY` while its names move; `EALREADY` if they are placed
    /// like that; `EAGAIN` if all other MDTs are unreachable or take no new inodes.
    pub fn restripe(&self, caller: &Caller, fid: Fid, requested: &DirDefault) -> StatusResult<()> {
        self.requests.faults.edge("restripe", || {
            self.placement.check_mdts(requested)?;
            let count = self.placement.shard_count(requested);
            let named = u16::try_from(requested.index).ok();
            let first = requested.mdts.first().copied().or(named).unwrap_or(fid.mdt_index());
            let mdts = match &requested.mdts[..] {
                _ if count <= 1 => Vec::new(),
                [] => self.placement.spread_from(first, count, requested)?,
                listed => listed.iter().copied().cycle().take(count).collect(),
            };
            let count = i32::try_from(mdts.len().max(1)).map_err(|_| Status::EINVAL)?;
            let index = first.into();
            let requested = DirDefault { count, index, mdts, ..requested.clone() }.encode();
            self.requests.call(caller, fid, &MdsRequest::Restripe { fid, requested: &requested })?;
            self.shards.learn_shards(fid).map(drop)
        })
    }

    /// Creates a directory where the default of its parent places it.
    pub(crate) fn make_directory_by_default(
        &self,
        caller: &Caller,
        (parent, name): (Fid, &[u8]),
        what: &Created<'_>,
    ) -> FailureResult<Found> {
        let making = Making { caller, parent, name, what, is_chosen: false };
        match self.placement.default_for(parent)? {
            Some(default) if default.places() => self.make_by(&making, &default),
            _ => self.create_on(caller, (parent, name), what, None).map_err(Failure::logged),
        }
    }

    fn make_by(&self, making: &Making<'_>, requested: &DirDefault) -> FailureResult<Found> {
        let mut full = 0;
        loop {
            let plan = self.placement.plan((making.parent, making.name), making.is_chosen, requested)?;
            let result = match plan.mdts[..] {
                [mdt] => self.make_on_one(making, requested, mdt),
                _ => self.make_striped(making, &plan),
            };
            match result {
                // Each leaves one MDT less to choose from.
                Err(failure)
                    if failure == Status::ENOSPC
                        && full < self.requests.mdts.len()
                        && plan.is_balanced
                        && !self.placement.has_room_now(plan.mdts[0])? =>
                {
                    full += 1;
                }
                // One of them has died since it answered a ping. If it has to be that one, the create waits for it, as
                // any other operation there.
                Err(failure) if failure == Status::ETIMEDOUT => {
                    self.requests.signs.note_silent(&plan.mdts);
                }
                result => return result,
            }
        }
    }

    fn make_on_one(&self, making: &Making<'_>, requested: &DirDefault, mdt: u16) -> FailureResult<Found> {
        let at = (making.parent, making.name);
        if !making.is_chosen {
            return self.create_on(making.caller, at, making.what, Some(mdt)).map_err(Failure::logged);
        }
        // Directories in the new one stay on its MDT, whatever the root's default specifies.
        let (count, index) = match requested.places() && matches!(requested.count, 0 | 1) {
            true => (requested.count, mdt.into()),
            false => (0, -1),
        };
        let default = DirDefault { count, index, mdts: Vec::new(), ..requested.clone() }.encode();
        let what = Created { new: NewFile::ChosenDirectory { default: &default }, ..*making.what };
        self.create_on(making.caller, at, &what, Some(mdt)).map_err(Failure::logged)
    }

    fn make_striped(&self, making: &Making<'_>, plan: &Plan) -> FailureResult<Found> {
        let striping = Striping {
            hash: plan.hash.map_or(0, |hash| hash.number().into()),
            mdts: &plan.mdts,
            is_fixed: plan.is_fixed,
            is_chosen: making.is_chosen,
        };
        let Created { mode, umask, .. } = *making.what;
        self.create_striped(making.caller, (making.parent, making.name), (mode, umask), &striping)
    }

    /// Creates a directory whose names are in shards. Counts as one lookup.
    ///
    /// # Errors
    /// As [`Names::create_on`]; `EINVAL` for an unknown hash or MDT, no MDT, or too many shards on one.
    pub(crate) fn create_striped(
        &self,
        caller: &Caller,
        (parent, name): (Fid, &[u8]),
        (mode, umask): (u32, u32),
        striping: &Striping<'_>,
    ) -> FailureResult<Found> {
        for mdt in striping.mdts {
            if !self.requests.has_mdt(*mdt)? {
                return Err(Status::EINVAL.into());
            }
        }
        let first = *striping.mdts.first().ok_or(Status::EINVAL)?;
        let shards = striping
            .mdts
            .iter()
            .map(|mdt| soon(|| self.requests.fresh_fid(*mdt)))
            .collect::<FailureResult<Vec<Fid>>>()?;
        let hash = match striping.hash {
            0 => self.shards.default_hash(),
            number => u16::try_from(number).ok().and_then(DirHash::from_number).ok_or(Status::EINVAL)?,
        };
        let mut layout = DirLayout::new(hash, first, shards);
        layout.flags.set(DirFlags::FIXED, striping.is_fixed);
        let mut mdts = striping.mdts.to_vec();
        mdts.sort_unstable();
        layout.flags.set(DirFlags::OVERSTRIPED, mdts.windows(2).any(|pair| pair[0] == pair[1]));
        let lmv = layout.encode();
        let new = NewFile::Striped { lmv: &lmv, chosen: striping.is_chosen };
        let what = Created { new, mode, umask };
        let found = self.create_on(caller, (parent, name), &what, Some(first)).map_err(Failure::logged)?;
        self.shards.lists.set(found.attr.fid, Some(Arc::new(layout)));
        Ok(found)
    }
}

/// Specification of a new directory with shards.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Striping<'a> {
    /// How names are spread, by Lustre's number; 0 for the default.
    pub hash: u32,
    /// MDT of each shard; the first also has the directory itself.
    pub mdts: &'a [u16],
    /// True if the directory is never split automatically.
    pub is_fixed: bool,
    /// True if the request has chosen the MDTs, which needs the right to.
    pub is_chosen: bool,
}
