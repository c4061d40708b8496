//! Consistency of the objects on OSTs and the layouts of files.
//!
//! An orphan object (no layout names it, it does not wait to be destroyed, and its id is below the mark of
//! the ids that the MDT has given out) holds space that no file can reach: repair destroys it. Objects of a file that
//! does not exist are none at this point: the repair of names has rebuilt the file from them.
//!
//! An object that a layout names and the OST does not have is in order if it was never written to, since objects are
//! created by their first write. If the layout says that it was written to, its data is lost: the file is listed, and
//! repair leaves it alone, since reads of it must stay an error until its owner, who alone knows of other
//! copies of the data, removes or empties the file. The same holds for an MDT that keeps data of files in a
//! store of its own; no ids are reserved there.
//!
//! Of two files with one object the OST knows the right one; the other one gets a copy. An object with an id that its
//! OST has never allocated has no data, and a new one takes its place.
//!
//! While a distributed transaction is not finished, objects of the file that it moves may be named by no
//! inode. They stay, as the MDTs finish it at their start. Nothing is changed if a record that may name objects cannot
//! be read.
//!
//! The OST counts the space of an object for the owners in its own record, which also has the place of the object in
//! its file. If they are not those of the file, or there is no record, repair writes one.
//!
//! A file that has moved to another MDT keeps its objects. So an object that no layout of this directory
//! names may belong to a file on an MDT elsewhere: where there are such MDTs, orphans are not judged.

use super::{TargetReport, report_of};
use crate::failure::{Failure, Result};
use crate::instance::Instance;
use crate::node;
use nacre_layout::StripeObject;
use nacre_mds::check::{
    Kind, ObjectName, ObjectReferences, Relayout, object_references, object_sequence, replace_objects,
};
use nacre_ondisk::OwnerRecord;
use nacre_store::Batch;
use nacre_store::object::block::is_block_store;
use nacre_store::object::{OWNERS, ObjectError, ObjectStore, Seek};
use nacre_types::{Fid, ObjectPlace, Owners, TargetId, TargetKind};
use nacre_wire::mgs::TargetConfig;
use std::collections::{BTreeMap, HashSet};

/// Most problems of one kind to list for one OST.
const SHOWN_MAX: usize = 100;
/// Objects that one call destroys.
const DESTROYED_AT_ONCE: usize = 1000;
/// Bytes that are copied at a time.
const COPIED_AT_ONCE: usize = 1 << 20;

/// Compares all targets of an instance and adds the problems to their reports.
pub fn compare(instance: &Instance, repair: bool, reports: &mut [TargetReport]) -> Result<()> {
    let mut known = ObjectReferences::default();
    for target in instance.targets().into_iter().filter(|target| target.kind == TargetKind::Mdt) {
        let config = nacre_mds::MdsConfig { index: target.index, ..nacre_mds::MdsConfig::default() };
        // The check of the MDT reports the unreadable record, which may name any object.
        match object_references(&instance.target_dir(target), &config) {
            Ok(found) => known.merge(found),
            Err(_) => known.is_partial = true,
        }
    }
    let all_mdts = has_all_mdts(instance);
    let mut lost = Vec::new();
    for ((ost, object), file) in &known.shared {
        if let Some(report) = report_of(reports, TargetId::mdt(file.mdt_index())) {
            let text = format!("{file}: its object {object} on OST{ost:04x} is also another file's");
            report.add(Kind::SharedObject, Some(*file), text);
        }
    }
    let mut replaced: Vec<Relayout> = Vec::new();
    for target in instance.targets() {
        let has_objects = match target.kind {
            TargetKind::Ost => true,
            TargetKind::Mdt => is_block_store(&instance.objects_dir(target)),
            TargetKind::Mgt => false,
        };
        if !has_objects {
            continue;
        }
        let Some(report) = report_of(reports, target).filter(|report| !report.is_closed) else { continue };
        let failed = || Failure::because(format!("compare the objects of {target}"));
        let store = node::look_at_objects(instance, target).map_err(failed())?;
        let mut found = match compare_ost(&*store, target, &known, all_mdts, report) {
            Ok(compared) => compared,
            Err(error) => {
                let text = format!("its objects cannot be compared with files: {error}");
                report.add(Kind::Store, None, text);
                continue;
            }
        };
        drop(store);
        let of_target = std::mem::take(&mut found.lost);
        lost.extend(of_target.into_iter().map(|(object, file)| Lost { target, object, file }));
        let may_repair = repair && !known.is_partial && !report.has_lost_records;
        if may_repair && !found.is_empty() {
            let store = node::open_objects(instance, target)?;
            report.repaired += found.repair(&*store, target.index, &known, &mut replaced).map_err(failed())?;
            store.close().map_err(Failure::because(format!("close {target}")))?;
        }
    }
    change_layouts(instance, &replaced, &known, reports)?;
    name_lost(instance, lost, reports)
}

/// Replaces objects in the layouts of files, and counts the problems that this repairs.
fn change_layouts(
    instance: &Instance,
    replaced: &[Relayout],
    known: &ObjectReferences,
    reports: &mut [TargetReport],
) -> Result<()> {
    let mut by_mdt: BTreeMap<u16, Vec<Relayout>> = BTreeMap::new();
    for change in replaced {
        by_mdt.entry(change.file.mdt_index()).or_default().push(*change);
    }
    for (mdt, changes) in by_mdt {
        let target = TargetId::mdt(mdt);
        let config = nacre_mds::MdsConfig { index: mdt, ..nacre_mds::MdsConfig::default() };
        replace_objects(&instance.target_dir(target), &config, &changes)
            .map_err(Failure::because(format!("change layouts on {target}")))?;
        for change in changes {
            let shared = known.shared.iter().find(|(name, _)| *name == change.old);
            let reporter =
                shared.map_or(TargetId::ost(change.old.0), |(_, file)| TargetId::mdt(file.mdt_index()));
            if let Some(report) = report_of(reports, reporter) {
                report.repaired += 1;
            }
        }
    }
    Ok(())
}

/// An object that is missing although it was written to.
struct Lost {
    target: TargetId,
    object: Fid,
    file: Fid,
}

/// Lists each file that has lost data, without a limit: there is no other list of them.
fn name_lost(instance: &Instance, lost: Vec<Lost>, reports: &mut [TargetReport]) -> Result<()> {
    if lost.is_empty() {
        return Ok(());
    }
    let mdts = instance.targets().into_iter().filter(|target| target.kind == TargetKind::Mdt);
    let mdts: Vec<_> = mdts.map(|target| (instance.target_dir(target), target.index)).collect();
    let files = lost.iter().map(|lost| lost.file).collect();
    let paths = nacre_mds::check::paths_of(&mdts, &nacre_mds::MdsConfig::default(), &files)
        .map_err(Failure::because("look for the names of files"))?;
    for Lost { target, object, file } in lost {
        let Some(report) = report_of(reports, target) else { continue };
        let name = paths.get(&file).map_or_else(String::new, |path| format!(" ({path})"));
        let text = format!(
            "{file}{name}: its object {object} on {target}, which was written to, is missing: data is lost"
        );
        report.add(Kind::LostObject, Some(file), text);
    }
    Ok(())
}

/// Returns whether all MDTs of the file system are in this directory, according to its management server.
pub(super) fn has_all_mdts(instance: &Instance) -> bool {
    let here = instance.targets();
    let config = nacre_mgs::service::load(&instance.target_dir(TargetId::mgt()));
    let is_mdt = |target: &&TargetConfig| target.target.kind == TargetKind::Mdt;
    config.is_ok_and(|config| config.targets.iter().filter(is_mdt).all(|mdt| here.contains(&mdt.target)))
}

impl TargetReport {
    /// Adds a problem of which there may be very many.
    fn add_one_of_many(&mut self, kind: Kind, fid: Fid, text: String) {
        match self.problems.len() < SHOWN_MAX {
            true => self.add(kind, Some(fid), text),
            false => self.problem_count += 1,
        }
    }
}

/// Comparison of the objects of a target with the files that name them.
#[derive(Default)]
struct Compared {
    /// Orphan objects.
    unused: Vec<Fid>,
    /// Objects that were written to and are missing, each with its file.
    lost: Vec<(Fid, Fid)>,
    /// Objects whose records have not the owners and places of their files, with these.
    misowned: Vec<(Fid, Owners, Option<ObjectPlace>)>,
    /// Objects of two files, each with the file that gets a copy.
    shared: Vec<(Fid, Fid)>,
    /// Objects that are none of this OST, with their files.
    foreign: Vec<(Fid, Fid)>,
    /// Sequences of which more ids were given out than the OST knows, with the largest, and the number of problems.
    beyond: BTreeMap<u64, (u32, u64)>,
}

impl Compared {
    fn is_empty(&self) -> bool {
        self.unused.is_empty()
            && self.misowned.is_empty()
            && self.shared.is_empty()
            && self.foreign.is_empty()
            && self.beyond.is_empty()
    }

    /// Repairs what was found; returns the number of problems repaired. What layouts have to name instead is appended to
    /// `replaced`, and counts when they do.
    fn repair(
        &self,
        store: &dyn ObjectStore,
        index: u16,
        known: &ObjectReferences,
        replaced: &mut Vec<Relayout>,
    ) -> nacre_store::object::Result<u64> {
        let mut repaired = destroy(store, &self.unused)?;
        for (sequence, (largest, count)) in &self.beyond {
            let ids = store.abilities().ids_of(*sequence)?;
            let last = ids.last_reserved(*sequence)?;
            ids.reserve(*sequence, largest.saturating_sub(last))?;
            repaired += count;
        }
        let mut owned = self.misowned.clone();
        let copied = self.shared.iter().map(|found| (found, true));
        for ((object, file), is_copy) in copied.chain(self.foreign.iter().map(|found| (found, false))) {
            let sequence = object_sequence(file.mdt_index(), index);
            let oid = store.abilities().ids_of(sequence)?.reserve(sequence, 1)?.start;
            let new = Fid::new(sequence, oid, 0);
            if is_copy {
                copy(store, *object, new)?;
            }
            let written = is_copy && store.exists(new)?;
            let (old, stripe) = ((index, *object), StripeObject { written, ..StripeObject::new(index, new) });
            replaced.push(Relayout { file: *file, old, new: stripe });
            if let Some(owners) = known.owners.get(file).filter(|_| is_copy) {
                // The file of the place is set by the next write, or the next repair.
                owned.push((new, *owners, None));
            }
        }
        let misowned = set_owners(store, &owned)?;
        Ok(repaired + misowned - (owned.len() - self.misowned.len()) as u64)
    }
}

/// Copies the data of an object, durably.
fn copy(store: &dyn ObjectStore, from: Fid, to: Fid) -> nacre_store::object::Result<()> {
    let size = store.attr(from)?.size;
    let mut buffer = vec![0; COPIED_AT_ONCE];
    let mut at = 0;
    while at < size {
        match store.seek(from, at, Seek::Data) {
            Ok(data) => at = data,
            Err(ObjectError::NoData) => break,
            Err(error) => return Err(error),
        }
        let read = store.read(from, at, &mut buffer, 0)?;
        if read == 0 || store.write(to, at, &buffer[..read])? != read {
            return Err(ObjectError::NoSpace);
        }
        at += read as u64;
    }
    if size > 0 {
        store.truncate(to, size)?;
    }
    store.sync(to)
}

/// Adds the problems of one target to its report, except lost objects.
fn compare_ost(
    store: &dyn ObjectStore,
    target: TargetId,
    known: &ObjectReferences,
    all_mdts: bool,
    report: &mut TargetReport,
) -> nacre_store::object::Result<Compared> {
    let index = match target.kind {
        TargetKind::Mdt => TargetId::mdt_data(target.index).map_or(target.index, |data| data.index),
        _ => target.index,
    };
    let mut found = Compared::default();
    let mut there: HashSet<Fid> = HashSet::new();
    store.for_each_object(&mut |object| {
        let name = (index, object);
        let mark = known.marks.get(&(index, object.mdt_index()));
        let may_be_new = target.kind == TargetKind::Ost
            && mark.is_none_or(|(seq, last)| object.seq == *seq && object.oid > *last);
        if !known.knows(&name) && !may_be_new {
            found.unused.push(object);
        }
        if known.written.contains(&name) {
            there.insert(object);
        }
        if target.kind == TargetKind::Ost {
            found.misowned.extend(misowned_by(store, known, &name, report));
        }
    })?;
    if target.kind == TargetKind::Ost && !all_mdts && !found.unused.is_empty() {
        report.checked += &format!(", {} named by no MDT that is here", found.unused.len());
        found.unused.clear();
    }
    for object in &found.unused {
        let attr = store.attr(*object)?;
        let (size, space) = (attr.size, attr.blocks * 512);
        let finding = match known.is_partial {
            true => "is named by no record that can be read: it stays",
            false => "belongs to no file",
        };
        let text = format!("object {object} of {size} bytes ({space} on disk) {finding}");
        report.add_one_of_many(Kind::OrphanObject, *object, text);
    }
    if target.kind == TargetKind::Ost {
        compare_layouts(store, index, known, all_mdts, &there, report, &mut found)?;
    }
    Ok(found)
}

/// Compares what layouts name with the objects `there`.
fn compare_layouts(
    store: &dyn ObjectStore,
    index: u16,
    known: &ObjectReferences,
    all_mdts: bool,
    there: &HashSet<Fid>,
    report: &mut TargetReport,
    found: &mut Compared,
) -> nacre_store::object::Result<()> {
    for ((_, object), first) in known.shared.iter().filter(|((ost, _), _)| *ost == index) {
        let Some(last) = known.used.get(&(index, *object)) else { continue };
        let owner = place_on(store, *object).map(|place| place.file);
        found.shared.push((*object, if owner == Some(*first) { *last } else { *first }));
    }
    for ((ost, object), file) in known.used.iter().filter(|((ost, _), _)| *ost == index) {
        // Ids that an MDT on another host has given out are known only there.
        let own =
            known.marks.get(&(*ost, object.mdt_index())).map_or(!all_mdts, |(seq, _)| object.seq == *seq);
        // A visit does not list objects that only the cache has.
        let is_lost =
            known.written.contains(&(*ost, *object)) && !there.contains(object) && !store.exists(*object)?;
        if is_lost {
            found.lost.push((*object, *file));
        } else if !own {
            let text = format!("{file}: its object {object} is none of this OST");
            report.add_one_of_many(Kind::ForeignObject, *file, text);
            found.foreign.push((*object, *file));
        } else if object.oid > store.abilities().ids_of(object.seq)?.last_reserved(object.seq)? {
            let text = format!(
                "{file}: its object {object} was given out after the state that this OST is in: it was restored from an older copy"
            );
            report.add_one_of_many(Kind::ForeignObject, *file, text);
            let (largest, count) = found.beyond.entry(object.seq).or_default();
            (*largest, *count) = ((*largest).max(object.oid), *count + 1);
        }
    }
    found.lost.sort_unstable();
    found.foreign.sort_unstable();
    Ok(())
}

/// Returns the place of an object in its file as the OST knows it.
fn place_on(store: &dyn ObjectStore, object: Fid) -> Option<ObjectPlace> {
    let read = store.abilities().index?.get(OWNERS, &object.to_key(), |value| value.map(OwnerRecord::decode));
    read.ok()??.ok()?.place
}

/// Returns the owners of an object's file and its place there, if the OST has others, and reports that.
fn misowned_by(
    store: &dyn ObjectStore,
    known: &ObjectReferences,
    name: &ObjectName,
    report: &mut TargetReport,
) -> Option<(Fid, Owners, Option<ObjectPlace>)> {
    let (_, object) = name;
    let file = known.used.get(name).filter(|_| !known.owned_later.contains(name))?;
    let owners = *known.owners.get(file)?;
    let place = known.places.get(name).copied();
    let is_shared = || known.shared.iter().any(|(shared, _)| shared == name);
    let found =
        store.abilities().index?.get(OWNERS, &object.to_key(), |value| value.map(OwnerRecord::decode));
    let (kind, text) = match found {
        Ok(Some(Ok(record))) if record.owners != owners && !is_shared() => {
            let Owners { uid, gid, projid } = record.owners;
            let text = format!(
                "{file}: its object {object} is counted for user {uid}, group {gid}, project {projid}"
            );
            (Kind::ObjectOwner, text)
        }
        // Components grow, so that other fields may be older than the layout.
        Ok(Some(Ok(OwnerRecord { place: Some(is), .. })))
            if place.is_some_and(|right| (right.file, right.stripe) != (is.file, is.stripe))
                && !is_shared() =>
        {
            let text =
                format!("{file}: its object {object} is recorded as stripe {} of {}", is.stripe, is.file);
            (Kind::ObjectPlace, text)
        }
        Ok(Some(Ok(_))) => return None,
        Ok(Some(Err(error))) => {
            (Kind::ObjectOwner, format!("{file}: the owners of its object {object} are damaged: {error}"))
        }
        // An object that was only given a size takes no space, for which somebody would have to pay.
        Ok(None) if store.attr(*object).is_ok_and(|attr| attr.blocks == 0) => return None,
        Ok(None) => (Kind::ObjectOwner, format!("{file}: its object {object} is counted for nobody")),
        // The check of the OST reports it.
        Err(_) => return None,
    };
    report.add_one_of_many(kind, *file, text);
    Some((*object, owners, place))
}

/// Writes records of the owners and places of objects; returns their number.
fn set_owners(
    store: &dyn ObjectStore,
    objects: &[(Fid, Owners, Option<ObjectPlace>)],
) -> nacre_store::object::Result<u64> {
    let Some(index) = store.abilities().index.filter(|_| !objects.is_empty()) else { return Ok(0) };
    for (object, owners, place) in objects {
        let counted = store.attr(*object)?.blocks * 512;
        let record = OwnerRecord { owners: *owners, counted, is_active: false, place: *place };
        let mut batch = Batch::new();
        batch.set_releasing(true);
        batch.put(OWNERS, &object.to_key(), &record.encode());
        index.commit(&batch)?;
    }
    index.sync(index.last_transno())?;
    Ok(objects.len() as u64)
}

/// Destroys objects; returns their number.
fn destroy(store: &dyn ObjectStore, unused: &[Fid]) -> nacre_store::object::Result<u64> {
    for some in unused.chunks(DESTROYED_AT_ONCE) {
        store.destroy(some)?;
    }
    Ok(unused.len() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use nacre_store::object::{FileStore, FileStoreOptions, Ids};

    #[test]
    fn objects_that_nobody_knows_are_found_and_destroyed_and_no_others() {
        let scratch = tempfile::tempdir().expect("a directory");
        let options = FileStoreOptions { reserve_bytes: Some(0), ..FileStoreOptions::create() };
        let store = FileStore::open(scratch.path(), options).expect("opens");
        let object = |oid| Fid::ost_object(3, oid);
        let sequence = object(1).seq;
        store.reserve(sequence, 8).expect("reserved");
        for oid in 1..=6 {
            store.write(object(oid), 0, &[7; 5000]).expect("written");
        }
        let file = Fid::new(0x2_0000_0401, 1, 0);
        let mut known = ObjectReferences::default();
        known.marks.insert((3, 0), (sequence, 5));
        known.used.insert((3, object(1)), file);
        known.used.insert((3, object(5)), file);
        known.destroying.insert((3, object(2)));
        let check = |known: &ObjectReferences, repair| {
            let mut report = TargetReport::default();
            let found = compare_ost(&store, TargetId::ost(3), known, true, &mut report).expect("readable");
            let unused = found.unused;
            if repair {
                report.repaired = destroy(&store, &unused).expect("destroyed");
            }
            report
        };
        let mut report = TargetReport::default();
        let unused =
            compare_ost(&store, TargetId::ost(3), &known, false, &mut report).expect("readable").unused;
        assert_eq!((report.problem_count, unused.len()), (0, 0), "files may be on MDTs elsewhere");
        assert_eq!(report.checked, ", 2 named by no MDT that is here");
        let report = check(&known, true);
        assert_eq!((report.problem_count, report.repaired), (2, 2), "{:?}", report.problems);
        assert!(report.problems[0].text.contains("of 5000 bytes"), "{:?}", report.problems);
        let report = check(&known, false);
        assert_eq!(report.problem_count, 0, "{:?}", report.problems);
        // Objects of an unknown MDT, and of an MDT that knows them.
        let of_other = Fid::new(Fid::first_sequence_of_mdt(7), 1, 0);
        store.reserve(of_other.seq, 8).expect("reserved");
        store.write(of_other, 0, b"data").expect("written");
        assert_eq!(check(&known, true).problem_count, 0);
        let marks = [((3, 7), (of_other.seq, 1))].into();
        let used = [((3, of_other), Fid::new(of_other.seq + 1, 1, 0))].into();
        known.merge(ObjectReferences { marks, used, ..ObjectReferences::default() });
        assert_eq!(check(&known, true).problem_count, 0);
        for (oid, there) in [(1, true), (2, true), (3, false), (4, false), (5, true), (6, true)] {
            assert_eq!(store.attr(object(oid)).expect("readable").mtime.is_some(), there, "{oid}");
        }
        known.used.insert((3, object(99)), file);
        known.used.insert((3, Fid::ost_object(4, 1)), file);
        let report = check(&known, true);
        assert_eq!((report.problem_count, report.repaired), (2, 0), "{:?}", report.problems);
        let lost = |known: &ObjectReferences| {
            let mut report = TargetReport::default();
            compare_ost(&store, TargetId::ost(3), known, true, &mut report).expect("readable").lost
        };
        for oid in [1, 2, 3, 5] {
            known.used.insert((3, object(oid)), file);
        }
        assert_eq!(lost(&known), [], "nobody is known to have written to what is not there");
        known.written.extend([1, 3].map(|oid| (3, object(oid))));
        assert_eq!(lost(&known), [(object(3), file)]);
    }

    #[test]
    fn an_object_that_is_counted_for_others_than_its_files_owners_gets_the_right_ones() {
        let scratch = tempfile::tempdir().expect("a directory");
        let options = FileStoreOptions { reserve_bytes: Some(0), ..FileStoreOptions::create() };
        let store = FileStore::open(scratch.path(), options).expect("opens");
        let object = |oid| Fid::ost_object(3, oid);
        store.reserve(object(1).seq, 8).expect("reserved");
        let file = Fid::new(0x2_0000_0401, 1, 0);
        let mut known = ObjectReferences::default();
        known.marks.insert((3, 0), (object(1).seq, 5));
        let (mine, theirs) = (Owners { uid: 7, gid: 8, projid: 9 }, Owners { uid: 1, ..Owners::default() });
        known.owners.insert(file, mine);
        for oid in 1..=4 {
            store.write(object(oid), 0, &[7; 5000]).expect("written");
            known.used.insert((3, object(oid)), file);
        }
        set_owners(&store, &[(object(1), mine, None), (object(2), theirs, None), (object(4), theirs, None)])
            .expect("set");
        // The OST learns it later.
        known.owned_later.insert((3, object(4)));
        store.truncate(object(5), 1 << 20).expect("sized");
        known.used.insert((3, object(5)), file);
        let look = || {
            let mut report = TargetReport::default();
            let found = compare_ost(&store, TargetId::ost(3), &known, true, &mut report).expect("readable");
            (found.misowned, report.problems)
        };
        let (misowned, problems) = look();
        assert_eq!(misowned, [(object(2), mine, None), (object(3), mine, None)], "{problems:?}");
        assert!(problems[0].text.contains("counted for user 1, group 0, project 0"), "{problems:?}");
        assert!(problems[1].text.contains("counted for nobody"), "{problems:?}");
        assert_eq!(set_owners(&store, &misowned).expect("set"), 2);
        assert_eq!(look().0, []);
        let record = store.abilities().index.expect("an index").get(OWNERS, &object(3).to_key(), |value| {
            OwnerRecord::decode(value.expect("stored")).expect("decodes")
        });
        assert_eq!(
            record.expect("read"),
            OwnerRecord { owners: mine, counted: 8192, is_active: false, place: None }
        );
    }

    /// Data that has reached an MDT before its file: no inode names it.
    #[test]
    fn objects_of_files_that_are_to_come_stay_and_all_do_while_records_cannot_be_read() {
        let scratch = tempfile::tempdir().expect("a directory");
        let options = FileStoreOptions { reserve_bytes: Some(0), ..FileStoreOptions::create() };
        let store = FileStore::open(scratch.path(), options).expect("opens");
        let target = TargetId::mdt(2);
        let object = |oid| Fid::new(Fid::first_sequence_of_mdt(2), oid, 0);
        store.reserve(object(1).seq, 8).expect("reserved");
        for oid in 1..=2 {
            store.write(object(oid), 0, b"data").expect("written");
        }
        let is_there = |oid| store.attr(object(oid)).expect("readable").mtime.is_some();
        let check = |known: &ObjectReferences| {
            let mut report = TargetReport::default();
            let unused = compare_ost(&store, target, known, true, &mut report).expect("readable").unused;
            let destroyed = if known.is_partial { 0 } else { destroy(&store, &unused).expect("destroyed") };
            (report.problem_count, destroyed)
        };
        let index = TargetId::mdt_data(2).expect("it has data").index;
        let awaited =
            ObjectReferences { awaited: [(index, object(1))].into(), ..ObjectReferences::default() };
        let mut known = ObjectReferences { is_partial: true, ..ObjectReferences::default() };
        known.merge(awaited.clone());
        assert_eq!(check(&known), (1, 0), "it may belong to what cannot be read");
        assert!(is_there(1) && is_there(2));
        assert_eq!(check(&awaited), (1, 1));
        assert!(is_there(1) && !is_there(2));
    }
}
