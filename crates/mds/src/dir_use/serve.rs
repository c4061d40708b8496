//! Requests about inodes and space below directories.

use crate::core::Core;
use crate::leaves::Leaves;
use crate::plan::check_access;
use crate::suspend::Caller;
use nacre_types::{Cred, Fid, Status, StatusResult};
use nacre_wire::dir_use::{DIR_USE_MAX, DirUseReply, DirUseRequest};
use nacre_wire::mds::{MdsAnswer, MdsReply};
use std::collections::HashMap;
use std::sync::Arc;

/// Rights that a caller needs: to read and search the directory.
const NEEDED: u8 = 5;
/// Maximum depth of a directory; paths cannot have more components.
const DEPTH_MAX: usize = 4096;

/// Serves the counts of directories.
pub(crate) struct DirSums {
    leaves: Arc<Leaves>,
    core: Arc<Core>,
}

impl DirSums {
    pub fn new(leaves: &Arc<Leaves>, core: &Arc<Core>) -> DirSums {
        DirSums { leaves: leaves.clone(), core: core.clone() }
    }

    /// Returns the sums below directories. Trusted clients have checked the rights of the caller.
    ///
    /// # Errors
    /// `EOPNOTSUPP` if directories are not counted; `EACCES`, `EINTR`, `EINVAL`.
    pub fn serve(&self, caller: &Caller<'_>, request: &DirUseRequest) -> StatusResult<MdsAnswer> {
        let DirUseRequest { dirs, after, lists } = request;
        if dirs.len() > DIR_USE_MAX {
            return Err(Status::EINVAL);
        }
        if caller.is_bounded() {
            let mut known = HashMap::new();
            for dir in dirs {
                if !self.may_know(caller.cred(), dir, &mut known)? {
                    return Err(Status::EACCES);
                }
            }
        }
        // The count may complete while the sums are read.
        let is_complete = self.leaves.dir_use.is_complete();
        let found_max = if *lists { DIR_USE_MAX } else { usize::MAX };
        let below = self.leaves.dir_use.below(dirs, after, found_max)?;
        let reply = DirUseReply {
            counts: below.counts,
            is_complete,
            // Without a list, everything is done.
            done: if *lists { below.done as u32 } else { dirs.len() as u32 },
            dirs: if *lists { below.found } else { Vec::new() },
            after: below.after,
        };
        Ok(self.core.commits.answer(MdsReply::DirUse(reply)))
    }

    /// Returns true if the caller may read and search a directory, or one above it: then it may know the sums of that
    /// one. Verdicts are added to `known`.
    fn may_know(&self, cred: &Cred, dir: &Fid, known: &mut HashMap<Fid, bool>) -> StatusResult<bool> {
        let (mut at, mut passed) = (*dir, Vec::new());
        let may = loop {
            if let Some(may) = known.get(&at) {
                break *may;
            }
            if passed.len() == DEPTH_MAX {
                break false;
            }
            passed.push(at);
            let Some(record) = self.core.coordinator.record_anywhere(&at)? else { break false };
            match check_access(&record, cred, NEEDED) {
                Ok(()) => break true,
                Err(Status::EACCES) if at != Fid::ROOT && !record.parent.is_zero() => at = record.parent,
                Err(Status::EACCES) => break false,
                Err(status) => return Err(status),
            }
        };
        known.extend(passed.into_iter().map(|fid| (fid, may)));
        Ok(may)
    }
}
