//! Check and repair of metadata targets that do not run: do names, inodes and logs agree?
//!
//! Reads every table of all MDTs in a directory and compares them. [`Kind`] lists the problems. Repair keeps all that is
//! sound: it corrects counts, links and lists; rebuilds inodes whose records are damaged from names, links, shards and
//! objects ([`rebuild`]); and gives what has lost its names to `.lustre/lost+found`, named by FID. Records that nothing
//! can restore are removed.

mod collect;
pub(crate) mod contents;
mod kind;
mod names;
mod objects;
mod paths;
mod rebuild;
mod repair;
mod transactions;

pub use crate::osts::object_sequence;
pub use kind::Kind;
pub use objects::{ObjectName, ObjectReferences, Relayout, object_references, replace_objects};
pub use paths::paths_of;
pub use rebuild::{FoundObject, Visit};

use crate::config::MdsConfig;
use crate::data::DataPart;
use crate::error::MdsError;
use crate::records::{read_record, store_path};
use crate::shards::{is_former, is_shard, may_have, shards_of};
use crate::tables::OrphanKind;
use collect::Inventory;
use nacre_ondisk::InodeRecord;
use nacre_store::meta::VerifyReport;
use nacre_store::{MetaStore, MetaStoreOptions};
use nacre_types::{AttrFlags, Fid};
use nacre_wire::peer::TransactionId;
use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Most passes of a repair: one may uncover problems that the damage hid.
const PASSES_MAX: usize = 4;
/// Depth of the tree beyond which a path to the root counts as a cycle.
const DEPTH_MAX: usize = 1 << 20;

/// A problem that the check found.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Problem {
    /// FID of the inode concerned; [`Fid::ZERO`] if the key has none.
    pub fid: Fid,
    /// Index of the MDT concerned.
    pub mdt: u16,
    /// What is wrong.
    pub kind: Kind,
    /// Description of the problem, a sentence for an administrator.
    pub text: String,
    /// True if a repair can fix it (and has, if requested).
    pub repairable: bool,
}

/// Result of a check of one MDT.
#[derive(Clone, Default, Debug)]
pub struct CheckReport {
    /// Index of the MDT.
    pub mdt: u16,
    /// Number of inodes read.
    pub inodes: u64,
    /// Number of names read.
    pub names: u64,
    /// All problems, in the order of FIDs.
    pub problems: Vec<Problem>,
    /// Number of problems that were repaired.
    pub repaired: u64,
}

impl CheckReport {
    /// Returns true if a problem was not repaired.
    pub fn is_damaged(&self) -> bool {
        self.problems.len() as u64 > self.repaired
    }
}

/// MDTs to check, none of which may be running.
#[derive(Clone, Copy)]
pub struct Targets<'a> {
    /// Directories and indexes of the MDTs.
    pub dirs: &'a [(PathBuf, u16)],
    /// Settings of the stores.
    pub config: &'a MdsConfig,
    /// True if these are all MDTs of the file system.
    pub are_all: bool,
}

/// Result of a check of the store below an MDT's records.
#[derive(Clone, Default, Debug)]
pub struct StoreReport {
    /// Descriptions of problems, the first ones if there are very many.
    pub problems: Vec<Problem>,
    /// Number of all problems.
    pub problem_count: u64,
    /// Number of problems that were repaired.
    pub repaired: u64,
    /// True if records are lost that the repair could not restore.
    pub has_lost_records: bool,
}

/// Checks the store of the MDT in `dir`, which must not be running, with the data of files in its records, and repairs
/// it if requested: what can be read of a store that has lost records becomes a new one, and the damaged one stays next
/// to it. `progress` is called from time to time with the number of records read. Without repair nothing on disk
/// changes.
///
/// # Durability
/// Repairs are durable on return.
///
/// # Errors
/// If the store cannot be opened or read.
pub fn check_store(
    dir: &Path,
    config: &MdsConfig,
    repair: bool,
    progress: &mut dyn FnMut(u64),
) -> Result<StoreReport, MdsError> {
    let mut report = look(dir, config, progress)?;
    if repair && report.problem_count > 0 {
        let path = store_path(dir);
        MetaStore::repair(&path, &config.store)?;
        if report.has_lost_records {
            MetaStore::salvage(&path, &config.store)?;
        }
        let left = look(dir, config, progress)?;
        report.repaired = report.problem_count.saturating_sub(left.problem_count);
    }
    Ok(report)
}

/// Reads the store of an MDT without changes.
fn look(dir: &Path, config: &MdsConfig, progress: &mut dyn FnMut(u64)) -> Result<StoreReport, MdsError> {
    let store = Arc::new(MetaStore::open(&store_path(dir), looking(config))?);
    let found: VerifyReport = store.verify(progress)?;
    let record = read_record(&store, dir)?;
    let problem = |kind, text| Problem { fid: Fid::ZERO, mdt: record.index, kind, text, repairable: false };
    let mut report = StoreReport {
        problems: found.problems.iter().map(|found| problem(Kind::Store, found.to_string())).collect(),
        problem_count: found.problem_count,
        has_lost_records: !found.keeps_entries(),
        repaired: 0,
    };
    // Data in a store of its own is checked there.
    if !record.data_apart {
        let data =
            DataPart::in_records(store.clone(), dir, &record, config)?.store.verify(false, progress)?;
        report.problem_count += data.problem_count;
        report.problems.extend(data.problems.iter().map(|found| problem(Kind::Data, found.to_string())));
    }
    Ok(report)
}

/// Checks names, inodes and logs of MDTs, and repairs them if requested; returns a report for each. `objects` visits
/// the objects on OSTs: a repair rebuilds files from them.
///
/// # Durability
/// Repairs are durable on return.
///
/// # Errors
/// If a store cannot be opened or read.
pub fn check_targets(
    targets: &Targets<'_>,
    repair: bool,
    objects: &Visit<'_>,
    progress: &mut dyn FnMut(u64),
) -> Result<Vec<CheckReport>, MdsError> {
    let mut reports = look_at(targets, progress)?;
    let count =
        |reports: &[CheckReport]| -> usize { reports.iter().map(|report| report.problems.len()).sum() };
    if !repair || count(&reports) == 0 {
        return Ok(reports);
    }
    let mut left = count(&reports);
    for _ in 0..PASSES_MAX {
        let unfinished = {
            let stores = open_all(targets)?;
            let stores: Vec<(&MetaStore, u16)> =
                stores.iter().map(|(store, index)| (store, *index)).collect();
            transactions::unfinished(&stores)?
        };
        transactions::finish(targets, &unfinished)?;
        repair::repair(targets, objects, progress)?;
        let after = look_at(targets, progress)?;
        for (report, after) in reports.iter_mut().zip(&after) {
            report.repaired = (report.problems.len() as u64).saturating_sub(after.problems.len() as u64);
        }
        let still = count(&after);
        if still == 0 || still >= left && left != count(&reports) {
            break;
        }
        left = still;
    }
    Ok(reports)
}

/// Checks one MDT, which must not be running, and the store below it; repairs both if requested, without knowledge of
/// objects.
///
/// # Errors
/// As [`check_store`] and [`check_targets`].
pub fn check_dir(
    dir: &Path,
    config: &MdsConfig,
    repair: bool,
    progress: &mut dyn FnMut(u64),
) -> Result<CheckReport, MdsError> {
    let store = check_store(dir, config, repair, progress)?;
    let dirs = [(dir.to_owned(), config.index)];
    let targets = Targets { dirs: &dirs, config, are_all: false };
    let mut report = check_targets(&targets, repair, &|_| false, progress)?.pop().unwrap_or_default();
    report.problems.extend(store.problems);
    report.repaired += store.repaired;
    Ok(report)
}

/// Opens the stores of MDTs without changing them.
fn open_all(targets: &Targets<'_>) -> Result<Vec<(MetaStore, u16)>, MdsError> {
    let open = |(dir, index): &(PathBuf, u16)| {
        Ok((MetaStore::open(&store_path(dir), looking(targets.config))?, *index))
    };
    targets.dirs.iter().map(open).collect()
}

fn look_at(targets: &Targets<'_>, progress: &mut dyn FnMut(u64)) -> Result<Vec<CheckReport>, MdsError> {
    let stores = open_all(targets)?;
    let stores: Vec<(&MetaStore, u16)> = stores.iter().map(|(store, index)| (store, *index)).collect();
    let unfinished = transactions::unfinished(&stores)?;
    match unfinished.is_empty() {
        true => check_all(&stores, progress),
        // What they change would look like damage.
        false => {
            let mut reports: Vec<CheckReport> =
                stores.iter().map(|(_, mdt)| CheckReport { mdt: *mdt, ..CheckReport::default() }).collect();
            divide(unfinished.iter().map(transactions::problem_of).collect(), &mut reports);
            Ok(reports)
        }
    }
}

/// Returns the settings of a store that is only read.
fn looking(config: &MdsConfig) -> MetaStoreOptions {
    MetaStoreOptions { create: false, read_only: true, ..config.store.clone() }
}

/// Returns the settings of a store that is repaired.
fn changing(config: &MdsConfig) -> MetaStoreOptions {
    MetaStoreOptions { create: false, ..config.store.clone() }
}

/// Adds each problem to the report of its MDT.
fn divide(problems: Vec<Problem>, reports: &mut [CheckReport]) {
    for problem in problems {
        let place = reports.iter().position(|report| report.mdt == problem.mdt).unwrap_or(0);
        reports[place].problems.push(problem);
    }
    for report in reports {
        // The same damage gives the same report.
        report.problems.sort_by(|a, b| (a.fid, &a.text).cmp(&(b.fid, &b.text)));
        report.problems.dedup();
    }
}

/// A transaction that is prepared on an MDT and will never be decided.
pub struct Abandoned {
    /// Index of the MDT.
    pub mdt: u16,
    /// Description, a sentence for an administrator.
    pub text: String,
    /// True if a repair has removed it.
    pub is_removed: bool,
}

/// Finds transactions that are prepared on MDTs, given by directory and index, none of which must be running,
/// and will never be decided. `all` are the indexes of all MDTs of the file system, if they are known.
/// Removes the transactions if requested, except from damaged stores.
///
/// # Durability
/// Removals are durable on return.
///
/// # Errors
/// If a store cannot be opened or read.
pub fn abandoned_transactions(
    dirs: &[(PathBuf, u16)],
    all: Option<&[u16]>,
    config: &MdsConfig,
    repair: bool,
) -> Result<Vec<Abandoned>, MdsError> {
    let open =
        |(dir, index): &(PathBuf, u16)| Ok((MetaStore::open(&store_path(dir), looking(config))?, *index));
    let stores = dirs.iter().map(open).collect::<Result<Vec<_>, MdsError>>()?;
    let looked_at: Vec<(&MetaStore, u16)> = stores.iter().map(|(store, index)| (store, *index)).collect();
    let found = transactions::abandoned(&looked_at, all)?;
    let mut removed = Vec::new();
    if repair {
        for (store, index) in &stores {
            if found.iter().any(|(mdt, _)| mdt == index) && store.verify(&mut |_| ())?.problem_count == 0 {
                removed.push(*index);
            }
        }
    }
    // An open store excludes other processes from changing it.
    drop(stores);
    for (dir, index) in dirs.iter().filter(|(_, index)| removed.contains(index)) {
        let ops: Vec<TransactionId> =
            found.iter().filter(|(mdt, _)| mdt == index).map(|(_, op)| *op).collect();
        let options = MetaStoreOptions { create: false, ..config.store.clone() };
        let store = MetaStore::open(&store_path(dir), options)?;
        transactions::forget(&store, &ops)?;
        store.close()?;
    }
    let told = |(mdt, op): (u16, TransactionId)| Abandoned {
        mdt,
        text: format!(
            "distributed transaction {op} is prepared and has no coordinator: MDT{:04x} does not exist or has no record of it",
            op.mdt
        ),
        is_removed: removed.contains(&mdt),
    };
    Ok(found.into_iter().map(told).collect())
}

/// Checks the stores of MDTs of one file system, by index. Nothing else may change them meanwhile.
///
/// # Errors
/// If a store cannot be read.
pub fn check_all(
    stores: &[(&MetaStore, u16)],
    progress: &mut dyn FnMut(u64),
) -> Result<Vec<CheckReport>, MdsError> {
    let inventory = Inventory::read(stores, progress)?;
    let report = |mdt: u16| CheckReport {
        mdt,
        inodes: inventory.inodes.keys().filter(|fid| fid.mdt_index() == mdt).count() as u64,
        names: inventory.dirents.iter().filter(|name| name.parent.mdt_index() == mdt).count() as u64,
        ..CheckReport::default()
    };
    let mut reports: Vec<CheckReport> = stores.iter().map(|(_, mdt)| report(*mdt)).collect();
    let mut checker = Checker { inventory: &inventory, problems: inventory.problems.clone() };
    checker.check_names();
    checker.check_inodes();
    checker.check_loops();
    checker.check_leftovers();
    divide(checker.problems, &mut reports);
    Ok(reports)
}

struct Checker<'a> {
    inventory: &'a Inventory,
    problems: Vec<Problem>,
}

impl Checker<'_> {
    fn report(&mut self, kind: Kind, fid: Fid, text: String) {
        self.problems.push(Problem { fid, mdt: fid.mdt_index(), kind, text, repairable: true });
    }

    /// Checks that every name is in a directory and names an inode of its kind.
    fn check_names(&mut self) {
        let inventory = self.inventory;
        for name in &inventory.dirents {
            let shown = String::from_utf8_lossy(&name.name);
            let Some((fid, kind)) = name.to else { continue };
            match inventory.inodes.get(&name.parent) {
                // Rebuilt with its names.
                None if inventory.damaged.contains(&name.parent) => {}
                None => {
                    let text =
                        format!("name '{shown}' lies in directory {}, which does not exist", name.parent);
                    self.report(Kind::DanglingName, fid, text);
                    continue;
                }
                Some(parent) if !parent.record.attr.is_dir() => {
                    let text = format!("name '{shown}' lies in {}, which is no directory", name.parent);
                    self.report(Kind::DanglingName, fid, text);
                    continue;
                }
                Some(parent) if !may_have(&parent.record, &name.name, name.position) => {
                    let text = format!("name '{shown}' in {} belongs into another shard", name.parent);
                    self.report(Kind::MisplacedName, fid, text);
                }
                Some(_) => {}
            }
            if !name.hash_is_right {
                let text = format!("name '{shown}' in {} cannot be found: its hash is wrong", name.parent);
                self.report(Kind::MisplacedName, fid, text);
            }
            match inventory.inodes.get(&fid) {
                None if inventory.damaged.contains(&fid) => {}
                None if inventory.covers(&fid) => {
                    let text =
                        format!("name '{shown}' in {} names an inode that does not exist", name.parent);
                    self.report(Kind::DanglingName, fid, text);
                }
                Some(inode) if inode.record.attr.kind() != kind => {
                    let right = inode.record.attr.kind();
                    let text = format!("name '{shown}' in {} says {kind:?}, not {right:?}", name.parent);
                    self.report(Kind::WrongKind, fid, text);
                }
                _ => {}
            }
        }
    }

    /// Checks the links and counts of every inode.
    fn check_inodes(&mut self) {
        let inventory = self.inventory;
        for (fid, inode) in &inventory.inodes {
            let record = &inode.record;
            let attr = &record.attr;
            let listed = inventory.orphans.get(fid);
            if inventory.has_names_elsewhere(inode) {
                continue;
            }
            let names = inode.names.len() as u32;
            if is_rooted(fid) {
                if names != 0 {
                    self.report(Kind::ExtraName, *fid, "the root directory has a name".to_owned());
                }
            } else if is_shard(record) {
                self.check_shard(fid, record, names);
            } else if is_former(record) {
                self.check_former(fid, record, names);
            } else if names == 0 {
                self.check_nameless(fid, record, listed.copied());
                continue;
            } else if listed.is_some() || attr.flags.contains(AttrFlags::ORPHAN) {
                let text = "is on the list of inodes without names but has one".to_owned();
                self.report(Kind::OrphanList, *fid, text);
            }
            let expected = if attr.is_dir() { 2 + inode.subdirs } else { names };
            if attr.nlink != expected {
                let text = format!("has {} links, should have {expected}", attr.nlink);
                self.report(Kind::LinkCount, *fid, text);
            }
            if attr.is_dir() && names > 1 {
                self.report(Kind::ExtraName, *fid, format!("is a directory with {names} names"));
            }
            if attr.is_dir() && record.entries() != inode.entries {
                let text = format!("says {} entries, has {}", record.entries(), inode.entries);
                self.report(Kind::EntryCount, *fid, text);
            }
            self.check_shards(fid, record);
            self.check_links(fid, inode);
        }
    }

    /// Checks that a shard has no name, is in the list of its directory, and has its owner and rights.
    fn check_shard(&mut self, fid: &Fid, record: &InodeRecord, names: u32) {
        if names != 0 {
            self.report(Kind::ExtraName, *fid, "is a shard of a directory and has a name".to_owned());
        }
        // Rebuilt from its shards.
        if self.inventory.damaged.contains(&record.parent) {
            return;
        }
        let Some(master) = self.inventory.master_of(fid, record) else {
            let text = format!("is no shard of {}, as it says", record.parent);
            return self.report(Kind::Shard, *fid, text);
        };
        if mirrored(master) != mirrored(record) {
            let text =
                format!("has not the owner, rights and default of {}, of which it is a shard", record.parent);
            self.report(Kind::Shard, *fid, text);
        }
    }

    /// Checks that a directory being replaced by another one has no name, and the same list as that one.
    fn check_former(&mut self, fid: &Fid, record: &InodeRecord, names: u32) {
        if names != 0 {
            let text = "gives its place to another directory and has a name".to_owned();
            self.report(Kind::ExtraName, *fid, text);
        }
        if !self.inventory.is_replaced(record) {
            let text = format!("is not replaced by {}, as it says", record.parent);
            self.report(Kind::Shard, *fid, text);
        }
    }

    /// Checks that the shards of a directory exist and refer to it.
    fn check_shards(&mut self, fid: &Fid, record: &InodeRecord) {
        let layout = match shards_of(record) {
            Ok(None) => return,
            Ok(Some(layout)) if layout.former == *fid => return,
            Ok(Some(layout)) => layout,
            Err(_) => {
                return self.report(Kind::ShardList, *fid, "its list of shards is damaged".to_owned());
            }
        };
        for shard in layout.shards.iter().filter(|shard| *shard != fid) {
            let found = self.inventory.inodes.get(shard).map(|inode| &inode.record);
            // Old shards still refer to the directory that this one replaces.
            let is_ours = found.is_some_and(|found| {
                let knows =
                    found.parent == *fid || (found.parent == layout.former && !found.parent.is_zero());
                (is_shard(found) && knows) || (*shard == layout.former && is_former(found))
            });
            if !is_ours && self.inventory.covers(shard) {
                self.report(Kind::ShardList, *fid, format!("has lost its shard {shard}"));
            }
        }
    }

    fn check_nameless(&mut self, fid: &Fid, record: &InodeRecord, listed: Option<OrphanKind>) {
        let attr = &record.attr;
        let orphan = attr.flags.contains(AttrFlags::ORPHAN) && attr.nlink == 0 && !attr.is_dir();
        match (orphan, listed) {
            (true, Some(_)) => {}
            (true, None) => {
                let text = "has no name and is not on the list of those".to_owned();
                self.report(Kind::OrphanList, *fid, text);
            }
            (false, _) => {
                self.report(Kind::LostInode, *fid, format!("has lost its name ({:?})", attr.kind()));
            }
        }
    }

    /// Checks that the first name and the extra names are exactly those in directories.
    fn check_links(&mut self, fid: &Fid, inode: &collect::Inode) {
        if is_rooted(fid) || is_shard(&inode.record) || is_former(&inode.record) {
            return;
        }
        let mut known = inode.extra_links.clone();
        known.push((inode.record.parent, inode.record.name.clone()));
        known.sort();
        let mut names = inode.names.clone();
        names.sort();
        if known != names {
            let list = |names: &[(Fid, Vec<u8>)]| {
                let text =
                    |(parent, name): &(Fid, Vec<u8>)| format!("{parent}/{}", String::from_utf8_lossy(name));
                names.iter().map(text).collect::<Vec<_>>().join(" ")
            };
            let (names, known) = (list(&names), list(&known));
            let text = format!("does not know its names: they are {names}, it says {known}");
            self.report(Kind::Links, *fid, text);
        }
    }

    /// Checks that every directory is reachable from the root.
    fn check_loops(&mut self) {
        for fid in self.inventory.loops() {
            let text = "is a directory inside itself; no path reaches it".to_owned();
            self.report(Kind::Loop, fid, text);
        }
    }

    /// Reports records of inodes that do not exist.
    fn check_leftovers(&mut self) {
        let inventory = self.inventory;
        let gone = |fid: &Fid| !inventory.inodes.contains_key(fid) && !inventory.damaged.contains(fid);
        let links: HashSet<Fid> = inventory.links.iter().map(|(fid, _, _)| *fid).collect();
        let links = links.iter().map(|fid| (fid, "a link"));
        let xattrs = inventory.xattrs.keys().map(|fid| (fid, "an extended attribute"));
        for (fid, what) in links.chain(xattrs).filter(|(fid, _)| gone(fid)) {
            self.report(Kind::Leftover, *fid, format!("does not exist but has {what}"));
        }
        for fid in inventory.orphans.keys().filter(|fid| gone(fid)) {
            let text = "is on the list of inodes without names but does not exist".to_owned();
            self.report(Kind::OrphanList, *fid, text);
        }
        for data in &inventory.data_unused {
            let text = format!("is an object with {} bytes of data that belongs to no file", data.size);
            self.report(Kind::UnusedData, data.object, text);
        }
        if inventory.covers(&Fid::ROOT) && gone(&Fid::ROOT) {
            self.report(Kind::Root, Fid::ROOT, "the root directory is missing".to_owned());
        }
        let root = inventory.inodes.get(&Fid::ROOT);
        if root.is_some_and(|root| !root.record.attr.is_dir()) {
            self.report(Kind::Root, Fid::ROOT, "the root is no directory".to_owned());
        }
    }
}

/// True for directories that begin paths: the root, and `lost+found` of an MDT.
pub(crate) fn is_rooted(fid: &Fid) -> bool {
    *fid == Fid::ROOT || *fid == Fid::lost_and_found(fid.mdt_index())
}

/// Returns what a shard has in common with its directory.
fn mirrored(record: &InodeRecord) -> impl PartialEq {
    let attr = &record.attr;
    (attr.mode, attr.uid, attr.gid, attr.projid, record.acl.clone(), record.body.clone())
}

impl Inventory {
    /// Returns the directory that lists a shard.
    fn master_of(&self, fid: &Fid, shard: &InodeRecord) -> Option<&InodeRecord> {
        let master = &self.inodes.get(&shard.parent)?.record;
        let lists = match shards_of(master) {
            Ok(layout) => layout.is_some_and(|layout| layout.shards.contains(fid)),
            // A damaged list is rebuilt from the shards.
            Err(_) => true,
        };
        lists.then_some(master)
    }

    /// Returns true if a directory that gives its place to another one has the same list as that one.
    fn is_replaced(&self, former: &InodeRecord) -> bool {
        let list = |record: &InodeRecord| shards_of(record).ok().flatten();
        self.inodes.get(&former.parent).and_then(|inode| list(&inode.record)) == list(former)
    }

    /// Returns one directory of each cycle of directories, and those below them, which no path reaches.
    fn loops(&self) -> Vec<Fid> {
        let mut reached: HashSet<Fid> = HashSet::from([Fid::ROOT]);
        let mut cut_off = Vec::new();
        for (fid, _) in self.inodes.iter().filter(|(_, inode)| inode.record.attr.is_dir()) {
            let (mut path, mut seen, mut at) = (Vec::new(), HashSet::new(), *fid);
            let complete = loop {
                if reached.contains(&at) || is_rooted(&at) {
                    break true;
                }
                path.push(at);
                seen.insert(at);
                match self.inodes.get(&at).and_then(|inode| inode.names.first()) {
                    Some((parent, _)) if path.len() < DEPTH_MAX && !seen.contains(parent) => at = *parent,
                    // Another check reports directories without names.
                    None => break true,
                    Some(_) => break false,
                }
            };
            match complete {
                true => reached.extend(path),
                false => cut_off.push(*fid),
            }
        }
        cut_off.sort_unstable();
        cut_off
    }
}

#[cfg(test)]
mod tests;
