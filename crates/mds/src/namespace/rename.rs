//! Renames, with the rules of rename(2) and POSIX.1-2017 rename().

use super::NameSpace;
use crate::perform::At;
use crate::plan::{self, Cycles, Move};
use crate::shards::named_in;
use crate::suspend::Caller;
use crate::tx::now;
use nacre_ondisk::InodeRecord;
use nacre_types::limits::NAME_MAX;
use nacre_types::{Fid, FileKind, Status, StatusResult};
use nacre_wire::mds::{MdsAnswer, MdsReply, RenameFlags};
use smallvec::SmallVec;

/// Depth of the tree beyond which a path to the root counts as damage.
const DEPTH_MAX: usize = 1 << 20;

impl NameSpace {
    pub fn rename(
        &self,
        caller: &Caller<'_>,
        from: At<'_>,
        to: At<'_>,
        flags: RenameFlags,
    ) -> StatusResult<MdsAnswer> {
        if flags == RenameFlags::NOREPLACE | RenameFlags::EXCHANGE {
            return Err(Status::EINVAL);
        }
        check_movable(from.1, Status::EBUSY)?;
        let taken = if flags.contains(RenameFlags::NOREPLACE) { Status::EEXIST } else { Status::EBUSY };
        check_movable(to.1, taken)?;
        let names = [from, to];
        let mut still = None;
        loop {
            let working_set = self.core.performer.lock_and_read(caller, &names, &[])?;
            let (from_home, to_home) = (working_set.home(0)?, working_set.home(1)?);
            let mut leads = [working_set.entry(0), working_set.entry(1)].into_iter().flatten();
            // The tree above the two directories must not change during the check for a cycle.
            let changes_tree = named_in(&from_home) != named_in(&to_home)
                && leads.any(|lead| lead.kind == FileKind::Directory);
            if changes_tree && still.is_none() {
                drop(working_set);
                // The lock of the tree comes before names: its holder may wait for one of these.
                caller.suspended.give_up();
                still = Some(self.core.tree.still()?);
                continue;
            }
            let (source, target) = (working_set.target_of(0)?, working_set.target_of(1)?);
            let shards = working_set.shards_of(target.as_deref())?;
            let m = Move {
                from_home: &from_home,
                from_name: from.1,
                to_home: &to_home,
                to_name: to.1,
                source: source.as_deref(),
                target: target.as_deref(),
                shards: &shards,
                flags,
            };
            let now = now();
            let Some(plan) = plan::rename(caller.cred(), &m, self.cycles(&m)?, now)? else {
                return Ok(self.core.commits.answer(MdsReply::Removed { fid: Fid::ZERO, attr: None }));
            };
            let known = [Some(&from_home), Some(&to_home), source.as_ref(), target.as_ref()];
            let known: SmallVec<[_; 4]> = known.into_iter().flatten().collect();
            return self.core.performer.perform(caller, working_set, plan, &known, now);
        }
    }

    /// Returns whether the rename would place a directory inside itself.
    fn cycles(&self, m: &Move<'_>) -> StatusResult<Cycles> {
        let is_inside = |inner: &InodeRecord, outer: Option<&InodeRecord>| match outer {
            Some(outer) if outer.attr.is_dir() => self.is_inside(&named_in(inner), &outer.attr.fid),
            _ => Ok(false),
        };
        Ok(Cycles {
            target_in_source: is_inside(m.to_home, m.source)?,
            source_in_target: is_inside(m.from_home, m.target)?,
        })
    }

    /// Returns true if directory `inner` is `outer` or is below it.
    fn is_inside(&self, inner: &Fid, outer: &Fid) -> StatusResult<bool> {
        let mut fid = *inner;
        for _ in 0..DEPTH_MAX {
            if fid == *outer {
                return Ok(true);
            }
            if fid == Fid::ROOT {
                return Ok(false);
            }
            fid = self.core.coordinator.parent_of(&fid)?;
        }
        log::error!("the directories above {inner} form a circle: run a check");
        Err(Status::EUCLEAN)
    }
}

fn check_movable(name: &[u8], dots: Status) -> StatusResult<()> {
    match name {
        b"" => Err(Status::ENOENT),
        b"." | b".." => Err(dots),
        name if name.len() > NAME_MAX => Err(Status::ENAMETOOLONG),
        name if name.iter().any(|&b| b == b'/' || b == 0) => Err(Status::EINVAL),
        _ => Ok(()),
    }
}
