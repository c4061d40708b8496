//! The working set of an operation on names: all records that it reads and changes, locked, on this MDT alone or
//! on several; and the execution of a plan there.
//!
//! On one MDT that takes latches and one transaction; on several, `Prepare` at each and two-phase commit
//! (`docs/design/dne.md`). Transactions do not depend on the difference.

use super::Performer;
use crate::changelog::events;
use crate::locks::{Locked, Want};
use crate::plan::Plan;
use crate::shards::{is_striped, shards_of};
use crate::suspend::Caller;
use crate::transactions::Gathered;
use nacre_ondisk::{DirentRecord, InodeRecord};
use nacre_types::{Fid, Owners, Status, StatusResult, Timestamp};
use nacre_wire::mds::MdsAnswer;
use std::sync::Arc;

/// Maximum number of names in an operation.
pub(crate) const NAMES_MAX: usize = 2;

/// How often names may change during an operation before it fails.
const ATTEMPTS: usize = 100;

/// A name in a directory or shard, as in requests.
pub(crate) type At<'n> = (Fid, &'n [u8]);

/// See the [module documentation](self). Without [`Performer::perform`] nothing changes.
pub(crate) struct WorkingSet<'m, 'n> {
    performer: &'m Performer,
    names: &'n [At<'n>],
    held: Held<'m>,
}

enum Held<'m> {
    /// All records are on this MDT.
    Here {
        leads: [Option<DirentRecord>; NAMES_MAX],
        /// Inode of the last name, if it was read.
        last: Option<Arc<InodeRecord>>,
        _locked: Locked<'m>,
    },
    Several(Gathered<'m>),
}

impl WorkingSet<'_, '_> {
    /// Returns the entry of name number `index`.
    pub fn entry(&self, index: usize) -> Option<DirentRecord> {
        match &self.held {
            Held::Here { leads, .. } => leads[index],
            Held::Several(gathered) => {
                let (parent, name) = &self.names[index];
                gathered.name(parent, name)
            }
        }
    }

    /// Returns the inode that name number `index` refers to; `None` without such a name.
    ///
    /// # Errors
    /// `ENOENT` if the inode does not exist.
    pub fn target_of(&self, index: usize) -> StatusResult<Option<Arc<InodeRecord>>> {
        if let Held::Here { last: Some(last), .. } = &self.held
            && index + 1 == self.names.len()
        {
            return Ok(Some(last.clone()));
        }
        self.entry(index).map(|lead| self.inode(&lead.fid)).transpose()
    }

    /// Returns a requested inode, or the inode of a name.
    ///
    /// # Errors
    /// `ENOENT` if it does not exist.
    pub fn inode(&self, fid: &Fid) -> StatusResult<Arc<InodeRecord>> {
        match &self.held {
            Held::Here { .. } => self.performer.leaves.records.inode(fid),
            Held::Several(gathered) => gathered.inode(fid),
        }
    }

    /// Returns the directory or shard in which name number `index` is, or would be, stored.
    ///
    /// # Errors
    /// `ENOTDIR`; `WRONG_SHARD` if the name belongs to another one.
    pub fn home(&self, index: usize) -> StatusResult<Arc<InodeRecord>> {
        let (parent, name) = &self.names[index];
        match &self.held {
            Held::Here { .. } => self.performer.leaves.records.home_of(parent, name),
            Held::Several(gathered) => gathered.home(parent, name),
        }
    }

    /// Returns the shards of the directory that the last name refers to.
    ///
    /// # Errors
    /// `ENOENT` if one is missing; `EUCLEAN` for a damaged list.
    pub fn shards_of(&self, removed: Option<&InodeRecord>) -> StatusResult<Vec<Arc<InodeRecord>>> {
        let Some(layout) = removed.map(shards_of).transpose()?.flatten() else { return Ok(Vec::new()) };
        layout.inodes().iter().map(|fid| self.inode(fid)).collect()
    }
}

impl Performer {
    /// Locks and reads names, their inodes, and `fids`; and the shards of the last name's directory, which is
    /// to be removed.
    ///
    /// # Errors
    /// Those of other MDTs; `ENODEV` if no MDT has the index of a FID; `EINTR`, `ESHUTDOWN`; `EAGAIN` if the
    /// names keep changing.
    pub fn lock_and_read<'m, 'n>(
        &'m self,
        caller: &Caller<'_>,
        names: &'n [At<'n>],
        fids: &[Fid],
    ) -> StatusResult<WorkingSet<'m, 'n>> {
        let held = match self.lock_local(caller, names, fids)? {
            Some(held) => held,
            None => Held::Several(self.gather_with_entries(caller, names, fids)?),
        };
        Ok(WorkingSet { performer: self, names, held })
    }

    /// Locks and reads inodes, and names without their inodes.
    ///
    /// # Errors
    /// As [`Performer::lock_and_read`].
    pub fn lock_named<'m, 'n>(
        &'m self,
        caller: &Caller<'_>,
        names: &'n [At<'n>],
        fids: &[Fid],
    ) -> StatusResult<WorkingSet<'m, 'n>> {
        if self.lies_here(names, fids) {
            let wants = fids.iter().map(|fid| Want::Whole(*fid)).chain(names.iter().map(name_of));
            let locked = caller.suspended.lock(&self.leaves.locks, wants)?;
            let leads = self.entries_of(names)?;
            return Ok(WorkingSet {
                performer: self,
                names,
                held: Held::Here { leads, last: None, _locked: locked },
            });
        }
        caller.suspended.give_up();
        let gathered = self.coordinator.gather(fids, names)?;
        Ok(WorkingSet { performer: self, names, held: Held::Several(gathered) })
    }

    /// Locks and reads a name, and inodes that are to be created with it, of which some are on other MDTs.
    ///
    /// # Errors
    /// As [`Performer::lock_and_read`]; `ETIMEDOUT` if one of these MDTs does not answer soon and the caller has not
    /// chosen it, so that the client can take another one.
    pub fn lock_new<'m, 'n>(
        &'m self,
        caller: &Caller<'_>,
        names: &'n [At<'n>],
        fids: &[Fid],
        is_chosen: bool,
    ) -> StatusResult<WorkingSet<'m, 'n>> {
        caller.suspended.give_up();
        let gathered = match is_chosen {
            true => self.coordinator.gather(fids, names)?,
            false => self.coordinator.gather_soon(fids, names)?,
        };
        Ok(WorkingSet { performer: self, names, held: Held::Several(gathered) })
    }

    fn lies_here(&self, names: &[At<'_>], fids: &[Fid]) -> bool {
        names.iter().map(|(parent, _)| parent).chain(fids).all(|fid| fid.mdt_index() == self.leaves.index)
    }

    fn entries_of(&self, names: &[At<'_>]) -> StatusResult<[Option<DirentRecord>; NAMES_MAX]> {
        let mut leads = [None; NAMES_MAX];
        for (lead, (parent, name)) in leads.iter_mut().zip(names) {
            *lead = self.leaves.records.find_name(parent, self.leaves.records.hash(name), name)?;
        }
        Ok(leads)
    }

    /// Locks and reads records on this MDT; `None` if some are on others.
    fn lock_local(
        &self,
        caller: &Caller<'_>,
        names: &[At<'_>],
        fids: &[Fid],
    ) -> StatusResult<Option<Held<'_>>> {
        if !self.lies_here(names, fids) {
            return Ok(None);
        }
        let mut known = [None; NAMES_MAX];
        loop {
            let wants = names.iter().map(name_of).chain(fids.iter().map(|fid| Want::Whole(*fid)));
            let mut locked =
                caller.suspended.lock(&self.leaves.locks, wants.chain(known.into_iter().flatten()))?;
            let leads = self.entries_of(names)?;
            if leads.iter().flatten().any(|lead| lead.fid.mdt_index() != self.leaves.index) {
                return Ok(None);
            }
            let wanted = leads.map(|lead| lead.map(|lead| Want::Whole(lead.fid)));
            if !wanted.iter().flatten().all(|want| locked.add(want)) {
                known = wanted;
                continue;
            }
            let removed = leads.iter().take(names.len()).next_back().copied().flatten();
            let last = match removed {
                Some(removed) => self.leaves.records.find_inode(&removed.fid)?,
                None => None,
            };
            if last.as_ref().is_some_and(|last| is_striped(last)) {
                return Ok(None);
            }
            return Ok(Some(Held::Here { leads, last, _locked: locked }));
        }
    }

    fn gather_with_entries(
        &self,
        caller: &Caller<'_>,
        names: &[At<'_>],
        fids: &[Fid],
    ) -> StatusResult<Gathered<'_>> {
        caller.suspended.give_up();
        let mut wanted = fids.to_vec();
        // The inodes of names on this MDT can be read without requests; if they change before they are
        // locked, the check below finds that.
        for (parent, name) in names.iter().filter(|(parent, _)| parent.mdt_index() == self.leaves.index) {
            wanted.extend(
                self.leaves
                    .records
                    .find_name(parent, self.leaves.records.hash(name), name)?
                    .map(|found| found.fid),
            );
        }
        if let Some(removed) = wanted.last().copied()
            && removed.mdt_index() == self.leaves.index
            && let Some(record) = self.leaves.records.find_inode(&removed)?
        {
            wanted.extend(shards_of(&record)?.into_iter().flat_map(|layout| layout.inodes()));
        }
        for _ in 0..ATTEMPTS {
            let gathered = self.coordinator.gather(&wanted, names)?;
            let leads = names.iter().filter_map(|(parent, name)| gathered.name(parent, name));
            let mut leads: Vec<Fid> = fids.iter().copied().chain(leads.map(|lead| lead.fid)).collect();
            let removed = names.last().and_then(|(parent, name)| gathered.name(parent, name));
            if let Some(Ok(removed)) = removed.map(|removed| gathered.inode(&removed.fid)) {
                leads.extend(shards_of(&removed)?.into_iter().flat_map(|layout| layout.inodes()));
            }
            if leads.iter().all(|fid| gathered.has(fid)) {
                return Ok(gathered);
            }
            drop(gathered);
            wanted = leads;
        }
        Err(Status::EAGAIN)
    }

    /// Carries out a plan. `known` are records that it changes, as they were read.
    ///
    /// # Errors
    /// If the plan is not committed.
    pub fn perform(
        &self,
        caller: &Caller<'_>,
        working_set: WorkingSet<'_, '_>,
        mut plan: Plan<'_>,
        known: &[&Arc<InodeRecord>],
        now: Timestamp,
    ) -> StatusResult<MdsAnswer> {
        let changelog = &self.leaves.changelog;
        let change = if changelog.wanted().is_empty() { None } else { events::of_plan(&plan) };
        match working_set.held {
            Held::Here { _locked, .. } => {
                let mut tx = self.leaves.records.begin();
                if let Some(change) = &change {
                    changelog.note(caller, &mut tx, change);
                }
                self.staging.stage_plan(&mut tx, &mut plan, known, now)?;
                self.commits.finish(caller, tx, plan.reply)
            }
            Held::Several(gathered) => {
                for new in &plan.inodes {
                    self.leaves.quotas.admit_new(caller, Owners::from(&new.record.attr))?;
                }
                let mut updates = plan.updates();
                updates.extend(change.and_then(|change| changelog.update(Some(caller), &change)));
                self.coordinator.execute(caller, gathered, updates, now, plan.reply)
            }
        }
    }
}

fn name_of<'n>((parent, name): &At<'n>) -> Want<'n> {
    Want::Name(*parent, name)
}
