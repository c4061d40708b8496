//! Statistics of a mount and its targets.

use crate::requests::Requests;
use crate::requests::fan_out::ask_all;
use nacre_types::limits::TARGET_INDEX_MAX;
use nacre_types::{Fid, Status, StatusResult, TargetId, TargetKind};
use nacre_wire::mds::{MdsReply, MdsRequest, Statfs};
use nacre_wire::mgs::PoolConfig;
use nacre_wire::oss::{Bulk, OssReply, OssRequest};

/// A target and its space, if it responded.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TargetState {
    /// The target that was asked.
    pub target: TargetId,
    /// Its space, or why that is not known.
    pub statfs: StatusResult<Statfs>,
}

impl Requests {
    /// Returns all targets that the client knows: MDTs, then OSTs, by index.
    pub fn targets(&self) -> Vec<TargetId> {
        let mdts = (0..self.mdts.len()).map(|index| TargetId::mdt(index as u16));
        let osts = self.osts.iter().map(|(index, _)| index).filter(|index| *index < TARGET_INDEX_MAX);
        mdts.chain(osts.map(TargetId::ost)).collect()
    }

    /// Sets the pools, which are only shown to users: MDTs place files.
    pub fn set_pools(&self, pools: &[PoolConfig]) {
        *self.pools.write() = pools.to_vec();
    }

    /// Returns the OST pools of the file system, in the order of names.
    pub fn pools(&self) -> Vec<PoolConfig> {
        self.pools.read().clone()
    }

    /// Returns the space of one target, if it responds soon.
    ///
    /// # Errors
    /// `ENODEV` if there is no such target; `ETIMEDOUT` if it does not respond; the error of the target.
    pub fn target_statfs(&self, target: TargetId) -> StatusResult<Statfs> {
        let state = self.statfs_of(&[target]).pop();
        state.map_or(Err(Status::ENODEV), |state| state.statfs)
    }

    /// Returns the space of every target that responds soon.
    pub fn all_statfs(&self) -> Vec<TargetState> {
        self.statfs_of(&self.targets())
    }

    /// Asks targets of this process on this thread, others all at once on threads of their own.
    pub(crate) fn statfs_of(&self, targets: &[TargetId]) -> Vec<TargetState> {
        let near = |target: &TargetId| match target.kind {
            TargetKind::Mdt => {
                self.mdts.get(usize::from(target.index)).is_none_or(|mdt| mdt.endpoint.is_local())
            }
            _ => self.osts.get(target.index).is_none_or(|ost| ost.is_local()),
        };
        let remote: Vec<TargetId> = targets.iter().copied().filter(|target| !near(target)).collect();
        let mut answers = match remote.is_empty() {
            true => Vec::new(),
            false => ask_all(&remote, |target| self.ask_statfs(*target)),
        }
        .into_iter();
        let mut answer = |target: &TargetId| match near(target) {
            true => self.ask_statfs(*target),
            false => answers.next().unwrap_or(Err(Status::ENODEV)),
        };
        targets.iter().map(|target| TargetState { target: *target, statfs: answer(target) }).collect()
    }

    fn ask_statfs(&self, target: TargetId) -> StatusResult<Statfs> {
        match target.kind {
            TargetKind::Mdt if usize::from(target.index) < self.mdts.len() => self.mdt_statfs(target.index),
            TargetKind::Ost => {
                let endpoint = self.osts.get(target.index).ok_or(Status::ENODEV)?;
                if !endpoint.is_active() {
                    return Err(Status::ENODATA);
                }
                ost_statfs(endpoint.call(&OssRequest::Statfs, Bulk::None)?)
            }
            _ => Err(Status::ENODEV),
        }
    }

    /// Returns the space of the file system: bytes of all OSTs, inodes of all MDTs. Targets that do not
    /// respond soon are left out, as with Lustre's `lazystatfs`.
    ///
    /// # Errors
    /// The error of the first target, if none responds.
    pub fn statfs(&self) -> StatusResult<Statfs> {
        let states = self.all_statfs();
        let block_size = 4096;
        let mut sum = Statfs { block_size, ..Statfs::default() };
        let mut answered = false;
        for state in &states {
            let Ok(one) = state.statfs else { continue };
            answered = true;
            if state.target.kind == TargetKind::Mdt {
                sum.files += one.files;
                sum.files_free += one.files_free;
                continue;
            }
            let scale = |blocks: u64| {
                (u128::from(blocks) * u128::from(one.block_size) / u128::from(block_size)) as u64
            };
            sum.blocks += scale(one.blocks);
            sum.blocks_free += scale(one.blocks_free);
            sum.blocks_available += scale(one.blocks_available);
            sum.state |= one.state;
        }
        match states.first() {
            Some(TargetState { statfs: Err(status), .. }) if !answered => Err(*status),
            _ => Ok(sum),
        }
    }

    fn mdt_statfs(&self, index: u16) -> StatusResult<Statfs> {
        let fid = Fid::new(Fid::first_sequence_of_mdt(index), 1, 0);
        // An unreachable target is an expected result here, and no fault.
        match self.call_system(fid, &MdsRequest::Statfs).map_err(|failure| failure.status())?.reply {
            MdsReply::Statfs(statfs) => Ok(statfs),
            _ => Err(Status::EPROTO),
        }
    }
}

fn ost_statfs(reply: OssReply) -> StatusResult<Statfs> {
    match reply {
        OssReply::Statfs(statfs) => Ok(statfs),
        _ => Err(Status::EPROTO),
    }
}
