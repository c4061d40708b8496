//! What a mount tells about itself and its targets.

use crate::caller::Caller;
use crate::client::Client;
use crate::ops::patience::ask_all;
use nacre_layout::dir_hash::DirHash;
use nacre_types::limits::TARGET_INDEX_MAX;
use nacre_types::{Fid, Status, StatusResult, TargetId, TargetKind};
use nacre_wire::mds::{MdsReply, MdsRequest, Statfs};
use nacre_wire::mgs::PoolConfig;
use nacre_wire::oss::{Bulk, OssReply, OssRequest};
use std::sync::atomic::Ordering;

/// Parts of a path that lie on different MDTs one after the other, at most.
const MDTS_ON_A_PATH_MAX: usize = 2048;

/// Which file system is mounted, and which mount this is.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MountInfo {
    /// Name of the file system.
    pub fsname: String,
    /// Identity of the mount in hexadecimal, as in names like `lov.nacre-clilov-<instance>`.
    pub instance: String,
}

/// A target and its space, if it answered.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TargetState {
    /// Which target.
    pub target: TargetId,
    /// Its space, or why it is not known.
    pub statfs: StatusResult<Statfs>,
}

impl Client {
    /// Which file system is mounted, and which mount this is.
    pub fn mount_info(&self) -> MountInfo {
        let instance = self.config.instance.0.iter().take(8).map(|byte| format!("{byte:02x}")).collect();
        MountInfo { fsname: self.config.fsname.clone(), instance }
    }

    /// All targets that the client knows: MDTs, then OSTs, by index.
    pub fn targets(&self) -> Vec<TargetId> {
        let mdts = (0..self.mdts.len()).map(|index| TargetId::mdt(index as u16));
        let osts = self.osts.iter().map(|(index, _)| index).filter(|index| *index < TARGET_INDEX_MAX);
        mdts.chain(osts.map(TargetId::ost)).collect()
    }

    /// Uses these pools from now on, which only tell people what there is: files are placed by MDTs.
    pub fn set_pools(&self, pools: &[PoolConfig]) {
        *self.pools.write() = pools.to_vec();
    }

    /// Spreads names of directories over MDTs in this way from now on where nobody says how.
    pub fn set_default_hash(&self, hash: DirHash) {
        self.default_hash.store(hash.number(), Ordering::Relaxed);
    }

    pub(crate) fn default_hash(&self) -> DirHash {
        DirHash::from_number(self.default_hash.load(Ordering::Relaxed)).unwrap_or_default()
    }

    /// OST pools of the file system, in the order of names.
    pub fn pools(&self) -> Vec<PoolConfig> {
        self.pools.read().clone()
    }

    /// Space of one target, if it answers soon.
    ///
    /// # Errors
    /// `ENODEV` if there is no such target; `ETIMEDOUT` if it does not answer; what it answers.
    pub fn target_statfs(&self, target: TargetId) -> StatusResult<Statfs> {
        let state = self.statfs_of(&[target]).pop();
        state.map_or(Err(Status::ENODEV), |state| state.statfs)
    }

    /// Space of every target that answers soon.
    pub fn all_statfs(&self) -> Vec<TargetState> {
        self.statfs_of(&self.targets())
    }

    /// Targets of this process are asked by this thread, others all at once by threads of their own.
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

    /// Space of the file system: bytes of all OSTs, inodes of all MDTs. Targets that do not answer soon count as
    /// absent, as with Lustre's `lazystatfs`.
    ///
    /// # Errors
    /// What the first target says, if none answers.
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
        match self.call_system(fid, &MdsRequest::Statfs)?.reply {
            MdsReply::Statfs(statfs) => Ok(statfs),
            _ => Err(Status::EPROTO),
        }
    }

    /// One of the paths of an inode, relative to the root of the file system: the one through link number `link`.
    ///
    /// # Errors
    /// `EPERM` without the right to read and search everything, as paths may lead through private directories;
    /// `ENODATA` past the last link; `ENOENT` if it is gone; `ENAMETOOLONG`.
    pub fn fid_to_path(&self, caller: &Caller, fid: Fid, link: u32) -> StatusResult<Vec<u8>> {
        if !self.may_search_all(caller) {
            return Err(Status::EPERM);
        }
        self.path_of(Some(caller), fid, link)
    }

    /// The same, without a caller for the client itself.
    pub(crate) fn path_of(&self, caller: Option<&Caller>, fid: Fid, link: u32) -> StatusResult<Vec<u8>> {
        let (mut fid, mut index, mut path) = (fid, link, Vec::new());
        for _ in 0..MDTS_ON_A_PATH_MAX {
            if fid == self.root() {
                return Ok(path);
            }
            let request = MdsRequest::FidToPath { fid, index };
            let answer = match caller {
                Some(caller) => self.call(caller, fid, &request)?,
                None => self.call_system(fid, &request)?,
            };
            let MdsReply::Path { top, path: mut part } = answer.reply else {
                return Err(Status::EPROTO);
            };
            // A directory that another one takes the place of has no name.
            if !part.is_empty() && !path.is_empty() {
                part.push(b'/');
            }
            part.append(&mut path);
            (fid, index, path) = (top, 0, part);
        }
        Err(Status::ENAMETOOLONG)
    }
}

fn ost_statfs(reply: OssReply) -> StatusResult<Statfs> {
    match reply {
        OssReply::Statfs(statfs) => Ok(statfs),
        _ => Err(Status::EPROTO),
    }
}
