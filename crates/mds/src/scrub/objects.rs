//! Looks at objects: those that layouts name, and those that no layout names.

use super::look::{File, OFFLINE};
use super::{Done, STEP, Scrub};
use crate::check::Kind;
use crate::check::contents::{faults_of, layout_of};
use crate::locks::Want;
use crate::osts::object_sequence;
use crate::tables::{DESTROYS, OST_MARKS, OWNER_CHANGES, destroy_key};
use nacre_layout::{Layout, StripeObject};
use nacre_ondisk::{InodeRecord, OstMarkRecord};
use nacre_store::Table;
use nacre_types::{Fid, Owners, Status, StatusResult};
use nacre_wire::oss::{KnownObject, OssReply, OssRequest};
use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

/// Time in which OSTs learn of new owners of objects.
const SETTLED: Duration = Duration::from_secs(2);

impl Scrub {
    /// Looks at the objects of some files, with one request to each OST.
    pub(super) fn examine_objects(&self, files: &[File], repair: bool) -> StatusResult<()> {
        let mut by_ost: BTreeMap<u16, Vec<Fid>> = BTreeMap::new();
        for stripe in files.iter().flat_map(|file| file.layout.objects()).filter(|it| !it.is_on_mdt()) {
            by_ost.entry(stripe.ost_index).or_default().push(stripe.object);
        }
        let mut known: HashMap<(u16, Fid), KnownObject> = HashMap::new();
        for (ost, objects) in by_ost {
            match self.ask(ost, OssRequest::Examine { objects }) {
                Ok(found) => known.extend(found.into_iter().map(|it| ((ost, it.object), it))),
                Err(status) => self.skip(status),
            }
        }
        for file in files {
            let is_suspicious = file.layout.objects().any(|stripe| {
                let known = known.get(&(stripe.ost_index, stripe.object));
                known.is_some_and(|known| self.fault(&file.record, &file.layout, stripe, known).is_some())
            });
            if is_suspicious {
                self.confirm_objects(file.fid, repair)?;
            }
        }
        Ok(())
    }

    fn ask(&self, ost: u16, request: OssRequest) -> StatusResult<Vec<KnownObject>> {
        match self.within(|| self.leaves.osts.call(ost, &request))? {
            OssReply::Known(found) => Ok(found),
            _ => Err(Status::EPROTO),
        }
    }

    /// Returns what is wrong with an object of a file, as its OST knows it.
    fn fault(
        &self,
        record: &InodeRecord,
        layout: &Layout,
        stripe: &StripeObject,
        known: &KnownObject,
    ) -> Option<(Kind, String)> {
        let (fid, object, ost) = (record.attr.fid, stripe.object, stripe.ost_index);
        if known.attr.mtime.is_none() {
            let text = format!(
                "its object {object} on OST{ost:04x}, which was written to, is missing: data is lost"
            );
            return stripe.written.then_some((Kind::LostObject, text));
        }
        // The OST is about to learn of a change.
        if self.has(OWNER_CHANGES, ost, &object) {
            return None;
        }
        if known.owners.is_some_and(|owners| owners != Owners::from(&record.attr)) {
            let text = format!("its object {object} on OST{ost:04x} is counted for other owners");
            return Some((Kind::ObjectOwner, text));
        }
        let right = layout.place_of(fid, &object)?;
        let is_elsewhere = known.place.is_some_and(|it| (it.file, it.stripe) != (right.file, right.stripe));
        let text = || format!("its object {object} on OST{ost:04x} is recorded as another file's");
        is_elsewhere.then(|| (Kind::ObjectPlace, text()))
    }

    fn has(&self, table: Table, ost: u16, object: &Fid) -> bool {
        self.leaves.store.get(table, destroy_key(ost, object).as_slice(), |it| it.is_some()).unwrap_or(true)
    }

    /// Looks again at the objects of a file under its lock, when what has changed before has reached the OSTs.
    fn confirm_objects(&self, fid: Fid, repair: bool) -> StatusResult<()> {
        let Some(Ok(before)) = self.stored(&fid)? else { return Ok(()) };
        if self.leaves.signal.wait(SETTLED) {
            return Ok(());
        }
        let _locked = self.leaves.locks.lock(&[Want::Whole(fid)])?;
        let Some(Ok(record)) = self.stored(&fid)? else { return Ok(()) };
        let Some(layout) = layout_of(&record).filter(|_| record.attr.version == before.attr.version) else {
            return Ok(());
        };
        for stripe in layout.objects().filter(|stripe| !stripe.is_on_mdt()) {
            // Before the question: the log loses the entry once the OST has answered.
            let is_to_learn = self.has(OWNER_CHANGES, stripe.ost_index, &stripe.object);
            let known = match self.ask(stripe.ost_index, OssRequest::Examine { objects: vec![stripe.object] })
            {
                Ok(known) => known,
                Err(status) => {
                    self.skip(status);
                    continue;
                }
            };
            let fault = known.first().and_then(|known| self.fault(&record, &layout, stripe, known));
            let Some((kind, text)) = fault.filter(|(kind, _)| !is_to_learn || *kind == Kind::LostObject)
            else {
                continue;
            };
            let is_repaired = repair && kind != Kind::LostObject;
            if is_repaired {
                let mut tx = self.leaves.records.begin();
                tx.log_owners(fid, &layout, Owners::from(&record.attr));
                self.core.commits.commit(&mut tx)?;
            }
            self.report(kind, fid, text, is_repaired);
        }
        Ok(())
    }

    /// Looks at the next objects on an OST that this MDT has allocated.
    pub(super) fn step_objects(&self, cursor: &[u8], repair: bool) -> StatusResult<Done> {
        let (ost, after) = match cursor.split_first_chunk::<2>() {
            Some((ost, after)) => (u16::from_be_bytes(*ost), after.first_chunk::<16>().map(Fid::from_key)),
            None => (0, None),
        };
        let Some(ost) = self.leaves.osts.indexes().into_iter().filter(|it| *it >= ost).min() else {
            return Ok(Done { count: 0, next: None });
        };
        let sequence = object_sequence(self.leaves.index, ost);
        let after = after.filter(|after| after.seq == sequence).unwrap_or(Fid::new(sequence, 0, u32::MAX));
        let key = |ost: u16, after: &[u8]| [&ost.to_be_bytes()[..], after].concat();
        let next_ost = ost.checked_add(1).map(|next| key(next, &[]));
        let found = match self.ask(ost, OssRequest::ListObjects { after, count: STEP as u32 }) {
            Ok(found) => found,
            Err(status) => {
                self.skip(status);
                return Ok(Done { count: 1, next: next_ost });
            }
        };
        for known in &found {
            self.examine_object(ost, known, repair)?;
        }
        let next = match found.last().filter(|_| found.len() == STEP) {
            Some(last) => Some(key(ost, &last.object.to_key())),
            None => next_ost,
        };
        Ok(Done { count: found.len() as u64, next })
    }

    /// Looks at an object: does its file name it?
    fn examine_object(&self, ost: u16, known: &KnownObject, repair: bool) -> StatusResult<()> {
        // Objects above the mark belong to a transaction under way.
        let mark = self.leaves.store.get(OST_MARKS, &ost.to_be_bytes(), |value| {
            value.and_then(|value| OstMarkRecord::decode(value).ok())
        });
        let mark = mark.map_err(|error| self.leaves.records.store_failed(&error))?;
        let is_new = mark.is_none_or(|it| it.sequence == known.object.seq && known.object.oid > it.last_used);
        // Without a place, only the comparison of all objects with all files decides.
        let Some(file) = known.place.map(|place| place.file).filter(|_| !is_new) else { return Ok(()) };
        let is_here = file.mdt_index() == self.leaves.index;
        let named = match self.is_named_by(&file, ost, &known.object) {
            Ok(named) => named,
            Err(status) => {
                self.skip(status);
                return Ok(());
            }
        };
        if named {
            return Ok(());
        }
        let _locked = if is_here { Some(self.leaves.locks.lock(&[Want::Whole(file)])?) } else { None };
        // The place may have been out of date, and the object may be on its way.
        let again = self.ask(ost, OssRequest::Examine { objects: vec![known.object] })?;
        let is_same = again.first().is_some_and(|it| it.place == known.place && it.attr.mtime.is_some());
        let is_known = self.has(DESTROYS, ost, &known.object) || self.has(OWNER_CHANGES, ost, &known.object);
        if !is_same || is_known || self.is_named_by(&file, ost, &known.object)? {
            return Ok(());
        }
        let exists = self.within(|| self.core.coordinator.record_anywhere(&file))?.is_some();
        let (object, size) = (known.object, known.attr.size);
        let state = if exists { "does not name it" } else { "does not exist" };
        let text = format!("is an object of {size} bytes on OST{ost:04x} of file {file}, which {state}");
        // Of a file that is gone, a repair of the stopped file system makes a file in lost+found.
        let is_repairable = exists && is_here;
        if is_repairable && repair {
            let mut tx = self.leaves.records.begin();
            tx.log_destroy(ost, object);
            self.core.commits.commit(&mut tx)?;
        }
        let advice = if is_repairable { "" } else { OFFLINE };
        self.report(Kind::OrphanObject, object, format!("{text}{advice}"), is_repairable && repair);
        Ok(())
    }

    fn is_named_by(&self, file: &Fid, ost: u16, object: &Fid) -> StatusResult<bool> {
        let record = match file.mdt_index() == self.leaves.index {
            true => match self.stored(file)? {
                // The walk reports the damaged record, which may name it.
                Some(Err(_)) => return Ok(true),
                Some(Ok(record)) => Some(record),
                None => None,
            },
            false => self.within(|| self.core.coordinator.inode_elsewhere(file))?,
        };
        let Some(record) = record else { return Ok(false) };
        // A layout that cannot be decoded may name it.
        let is_unknown = faults_of(&record).iter().any(|(kind, _)| *kind == Kind::Layout);
        let names = |layout: Layout| layout.objects().any(|it| (it.ost_index, it.object) == (ost, *object));
        Ok(is_unknown || layout_of(&record).is_some_and(names))
    }
}
