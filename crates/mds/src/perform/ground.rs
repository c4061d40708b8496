//! What an operation on names stands on: everything that it reads and changes, locked, on this MDT alone or on several. And how a plan is
//! carried out there.
//!
//! On one MDT that takes latches and one transaction; on several, `Prepare` at each and two-phase commit
//! (`docs/design/dne.md`). Operations do not know which it was.

use super::Performer;
use crate::locks::{Locked, Want};
use crate::operations::Gathered;
use crate::plan::Plan;
use crate::shards::{is_striped, shards_of};
use crate::turn::Caller;
use nacre_ondisk::{DirentRecord, InodeRecord};
use nacre_types::{Fid, Status, StatusResult, Timestamp};
use nacre_wire::mds::MdsAnswer;
use std::sync::Arc;

/// Names that an operation is about at most.
pub(crate) const NAMES_MAX: usize = 2;

/// How often names may change under an operation before it gives up.
const ATTEMPTS: usize = 100;

/// A name in a directory or shard, as requests have it.
pub(crate) type At<'n> = (Fid, &'n [u8]);

/// See the [module documentation](self). Dropped without [`Performer::perform`], nothing happens.
pub(crate) struct Ground<'m, 'n> {
    performer: &'m Performer,
    names: &'n [At<'n>],
    held: Held<'m>,
}

enum Held<'m> {
    /// Everything lies here.
    Here {
        leads: [Option<DirentRecord>; NAMES_MAX],
        /// What the last name leads to, if that was read.
        last: Option<Arc<InodeRecord>>,
        _locked: Locked<'m>,
    },
    Several(Gathered<'m>),
}

impl Ground<'_, '_> {
    /// What name number `index` leads to.
    pub fn lead(&self, index: usize) -> Option<DirentRecord> {
        match &self.held {
            Held::Here { leads, .. } => leads[index],
            Held::Several(gathered) => {
                let (parent, name) = &self.names[index];
                gathered.name(parent, name)
            }
        }
    }

    /// The inode that name number `index` leads to; `None` without such a name.
    ///
    /// # Errors
    /// `ENOENT` if the name leads nowhere.
    pub fn led_to(&self, index: usize) -> StatusResult<Option<Arc<InodeRecord>>> {
        if let Held::Here { last: Some(last), .. } = &self.held
            && index + 1 == self.names.len()
        {
            return Ok(Some(last.clone()));
        }
        self.lead(index).map(|lead| self.inode(&lead.fid)).transpose()
    }

    /// An inode that was asked for, or that a name leads to.
    ///
    /// # Errors
    /// `ENOENT` if there is none.
    pub fn inode(&self, fid: &Fid) -> StatusResult<Arc<InodeRecord>> {
        match &self.held {
            Held::Here { .. } => self.performer.leaves.records.inode(fid),
            Held::Several(gathered) => gathered.inode(fid),
        }
    }

    /// The directory or shard that name number `index` is, or would be, stored with.
    ///
    /// # Errors
    /// `ENOTDIR`; `WRONG_SHARD` if it is with another one.
    pub fn home(&self, index: usize) -> StatusResult<Arc<InodeRecord>> {
        let (parent, name) = &self.names[index];
        match &self.held {
            Held::Here { .. } => self.performer.leaves.records.home_of(parent, name),
            Held::Several(gathered) => gathered.home(parent, name),
        }
    }

    /// The shards of what the last name leads to.
    ///
    /// # Errors
    /// `ENOENT` if one is missing; `EUCLEAN` for a list that is damaged.
    pub fn shards_of(&self, removed: Option<&InodeRecord>) -> StatusResult<Vec<Arc<InodeRecord>>> {
        let Some(layout) = removed.map(shards_of).transpose()?.flatten() else { return Ok(Vec::new()) };
        layout.inodes().iter().map(|fid| self.inode(fid)).collect()
    }
}

impl Performer {
    /// Locks and reads names, what they lead to, and `fids`; and the shards of what the last name leads to, which is to be removed.
    ///
    /// # Errors
    /// What another MDT answers; `ENODEV` if there is none with the index of a FID; `EINTR`, `ESHUTDOWN`; `EAGAIN` if the names change all
    /// the time.
    pub fn ground<'m, 'n>(
        &'m self,
        caller: &Caller<'_>,
        names: &'n [At<'n>],
        fids: &[Fid],
    ) -> StatusResult<Ground<'m, 'n>> {
        let held = match self.ground_here(caller, names, fids)? {
            Some(held) => held,
            None => Held::Several(self.gather_with_leads(caller, names, fids)?),
        };
        Ok(Ground { performer: self, names, held })
    }

    /// The same for inodes alone, and names whatever they lead to.
    ///
    /// # Errors
    /// As [`Performer::ground`].
    pub fn ground_apart<'m, 'n>(
        &'m self,
        caller: &Caller<'_>,
        names: &'n [At<'n>],
        fids: &[Fid],
    ) -> StatusResult<Ground<'m, 'n>> {
        if self.lies_here(names, fids) {
            let wants = fids.iter().map(|fid| Want::Whole(*fid)).chain(names.iter().map(name_of));
            let locked = caller.turn.lock(&self.leaves.locks, wants)?;
            let leads = self.leads_of(names)?;
            return Ok(Ground {
                performer: self,
                names,
                held: Held::Here { leads, last: None, _locked: locked },
            });
        }
        self.ground_on_several(caller, names, fids)
    }

    /// The same, of which something lies elsewhere.
    ///
    /// # Errors
    /// As [`Performer::ground`].
    pub fn ground_on_several<'m, 'n>(
        &'m self,
        caller: &Caller<'_>,
        names: &'n [At<'n>],
        fids: &[Fid],
    ) -> StatusResult<Ground<'m, 'n>> {
        caller.turn.give_up();
        Ok(Ground { performer: self, names, held: Held::Several(self.coordinator.gather(fids, names)?) })
    }

    fn lies_here(&self, names: &[At<'_>], fids: &[Fid]) -> bool {
        names.iter().map(|(parent, _)| parent).chain(fids).all(|fid| fid.mdt_index() == self.leaves.index)
    }

    fn leads_of(&self, names: &[At<'_>]) -> StatusResult<[Option<DirentRecord>; NAMES_MAX]> {
        let mut leads = [None; NAMES_MAX];
        for (lead, (parent, name)) in leads.iter_mut().zip(names) {
            *lead = self.leaves.records.find_name(parent, self.leaves.records.hash(name), name)?;
        }
        Ok(leads)
    }

    /// `None` if something lies elsewhere.
    fn ground_here(
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
                caller.turn.lock(&self.leaves.locks, wants.chain(known.into_iter().flatten()))?;
            let leads = self.leads_of(names)?;
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

    fn gather_with_leads(
        &self,
        caller: &Caller<'_>,
        names: &[At<'_>],
        fids: &[Fid],
    ) -> StatusResult<Gathered<'_>> {
        caller.turn.give_up();
        let mut wanted = fids.to_vec();
        // What the names here lead to can be told without asking anybody; if that is not so any more, it is found out below.
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

    /// Carries a plan out. `known` are records that it changes, as they were read.
    ///
    /// # Errors
    /// If it does not happen.
    pub fn perform(
        &self,
        caller: &Caller<'_>,
        ground: Ground<'_, '_>,
        plan: Plan<'_>,
        known: &[&Arc<InodeRecord>],
        now: Timestamp,
    ) -> StatusResult<MdsAnswer> {
        match ground.held {
            Held::Here { _locked, .. } => {
                let mut tx = self.leaves.records.begin();
                let reply = self.staging.stage_plan(&mut tx, plan, known, now)?;
                self.commits.finish(caller, tx, reply)
            }
            Held::Several(gathered) => {
                let updates = plan.updates();
                self.coordinator.execute(caller, gathered, updates, now, plan.reply)
            }
        }
    }
}

fn name_of<'n>((parent, name): &At<'n>) -> Want<'n> {
    Want::Name(*parent, name)
}
