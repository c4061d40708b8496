//! Offline check of a metadata target: do names, inodes and logs agree?
//!
//! Reads every table and compares them. Problems found: names without inodes, inodes without names, wrong
//! link counts and entry counts, directories that no path reaches, records that cannot be decoded, objects
//! beyond the mark of used ids, and leftovers of removed inodes. Repair fixes problems with exactly one right
//! answer and loses nothing: counts, first links, leftovers, marks, and orphans that are not on the list; an
//! inode that lost its names becomes an entry of `lost+found` in the root, named by its FID. Names without
//! inodes are removed. Damaged records are only reported.

mod collect;
mod objects;
mod paths;
mod repair;
mod transactions;

pub use objects::{ObjectName, ObjectReferences, object_references};
pub use paths::paths_of;

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
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Directory in the root for inodes without names.
const LOST_AND_FOUND: &[u8] = b"lost+found";
/// Depth of the tree beyond which a path to the root counts as a cycle.
const DEPTH_MAX: usize = 1 << 20;

/// A problem that the check found.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Problem {
    /// FID of the inode concerned; [`Fid::ZERO`] if the key has none.
    pub fid: Fid,
    /// Description of the problem, a sentence for an administrator.
    pub text: String,
    /// True if a repair can fix it (and has, if requested).
    pub repairable: bool,
}

/// Result of a check.
#[derive(Clone, Default, Debug)]
pub struct CheckReport {
    /// Number of inodes read.
    pub inodes: u64,
    /// Number of directories among the inodes.
    pub directories: u64,
    /// Number of names read.
    pub names: u64,
    /// Number of objects of files.
    pub objects: u64,
    /// Number of orphans: inodes without names that wait for their last close.
    pub orphans: u64,
    /// Number of objects that wait to be destroyed.
    pub destroys: u64,
    /// True if the MDT was stopped cleanly.
    pub clean: bool,
    /// All problems, in no particular order.
    pub problems: Vec<Problem>,
    /// Number of problems of the store beyond the limit of the list.
    pub untold: u64,
    /// Number of problems that were repaired.
    pub repaired: u64,
}

impl CheckReport {
    /// Returns the number of all problems.
    pub fn problem_count(&self) -> u64 {
        self.problems.len() as u64 + self.untold
    }

    /// Returns true if a problem was not repaired.
    pub fn is_damaged(&self) -> bool {
        self.problem_count() > self.repaired
    }
}

/// Checks the MDT in `dir`, which must not be running, and repairs it if requested. `progress` is called from
/// time to time with the number of records read. Without repair nothing on disk changes.
///
/// # Durability
/// Repairs are durable on return.
///
/// # Errors
/// If the store cannot be opened or read.
pub fn check_dir(
    dir: &Path,
    config: &MdsConfig,
    repair: bool,
    progress: &mut dyn FnMut(u64),
) -> Result<CheckReport, MdsError> {
    let (mut report, store_problems) = look(dir, config, progress)?;
    let found = report.problems.len() as u64 + store_problems.problem_count;
    if repair && found > 0 {
        MetaStore::repair(&store_path(dir), &config.store)?;
        // Changes of a store that has lost entries could only increase the damage.
        if store_problems.keeps_entries() {
            let store = Arc::new(MetaStore::open(&store_path(dir), config.store.clone())?);
            let record = read_record(&store, dir)?;
            repair::repair(&store, &record, &mut report, progress)?;
            store.close()?;
        }
        let (left, store_left) = look(dir, config, progress)?;
        report.repaired = found.saturating_sub(left.problems.len() as u64 + store_left.problem_count);
    }
    let problem = |text: String| Problem { fid: Fid::ZERO, text, repairable: false };
    report.problems.extend(store_problems.problems.iter().map(|found| problem(found.to_string())));
    report.untold = store_problems.problem_count - store_problems.problems.len() as u64;
    Ok(report)
}

/// Reads an MDT without changes: its records, and the store below them.
fn look(
    dir: &Path,
    config: &MdsConfig,
    progress: &mut dyn FnMut(u64),
) -> Result<(CheckReport, VerifyReport), MdsError> {
    let store = Arc::new(MetaStore::open(&store_path(dir), looking(config))?);
    let store_problems = store.verify(progress)?;
    let record = read_record(&store, dir)?;
    let mut report = check(&store, record.index, progress)?;
    report.clean = record.clean;
    // Data in a store of its own is checked there.
    if !record.data_apart {
        let data =
            DataPart::in_records(store.clone(), dir, &record, config)?.store.verify(false, progress)?;
        let problem = |text: String| Problem { fid: Fid::ZERO, text, repairable: false };
        report.problems.extend(data.problems.iter().map(|found| problem(found.to_string())));
    }
    Ok((report, store_problems))
}

/// Returns the settings of a store that is only read.
fn looking(config: &MdsConfig) -> MetaStoreOptions {
    MetaStoreOptions { create: false, read_only: true, ..config.store.clone() }
}

/// Checks what spans several MDTs of one file system, given by directory and index, none of which must be
/// running: names of inodes on other MDTs, and distributed transactions that some participants have committed
/// and others have not. Reports unfinished transactions alone, if there are any.
///
/// # Errors
/// If a store cannot be opened or read.
pub fn check_dirs(
    dirs: &[(PathBuf, u16)],
    config: &MdsConfig,
    progress: &mut dyn FnMut(u64),
) -> Result<Vec<Problem>, MdsError> {
    let open =
        |(dir, index): &(PathBuf, u16)| Ok((MetaStore::open(&store_path(dir), looking(config))?, *index));
    let stores = dirs.iter().map(open).collect::<Result<Vec<_>, MdsError>>()?;
    let stores: Vec<(&MetaStore, u16)> = stores.iter().map(|(store, index)| (store, *index)).collect();
    let unfinished = transactions::unfinished(&stores)?;
    let problems = match unfinished.is_empty() {
        true => check_all(&stores, progress)?.problems,
        false => unfinished,
    };
    stores.iter().try_for_each(|(store, _)| store.close())?;
    Ok(problems)
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

/// Checks the store of MDT `mdt_index`. Nothing else may change it meanwhile.
///
/// # Errors
/// If the store cannot be read.
pub fn check(
    store: &MetaStore,
    mdt_index: u16,
    progress: &mut dyn FnMut(u64),
) -> Result<CheckReport, MdsError> {
    check_all(&[(store, mdt_index)], progress)
}

/// Checks several MDTs of one file system together, including names of inodes on other MDTs.
///
/// # Errors
/// As [`check`].
pub fn check_all(
    stores: &[(&MetaStore, u16)],
    progress: &mut dyn FnMut(u64),
) -> Result<CheckReport, MdsError> {
    let mut inventory = Inventory::default();
    for (store, mdt_index) in stores {
        inventory.add(store, *mdt_index, progress)?;
    }
    inventory.connect();
    let mut report = CheckReport {
        inodes: inventory.inodes.len() as u64,
        directories: inventory.inodes.values().filter(|i| i.record.attr.is_dir()).count() as u64,
        names: inventory.names,
        objects: inventory.objects,
        orphans: inventory.orphans.len() as u64,
        destroys: inventory.destroys,
        problems: inventory.problems.clone(),
        ..CheckReport::default()
    };
    let mut checker = Checker { inventory: &inventory, problems: Vec::new() };
    checker.check_names();
    checker.check_inodes();
    checker.check_tree();
    checker.check_leftovers();
    report.problems.append(&mut checker.problems);
    // The same damage gives the same report.
    report.problems.sort_by(|a, b| (a.fid, &a.text).cmp(&(b.fid, &b.text)));
    Ok(report)
}

struct Checker<'a> {
    inventory: &'a Inventory,
    problems: Vec<Problem>,
}

impl Checker<'_> {
    fn report(&mut self, fid: Fid, repairable: bool, text: String) {
        self.problems.push(Problem { fid, text, repairable });
    }

    /// Checks that every name is in a directory and names an inode of its kind.
    fn check_names(&mut self) {
        let inventory = self.inventory;
        for name in &inventory.dirents {
            let shown = String::from_utf8_lossy(&name.name);
            match inventory.inodes.get(&name.parent) {
                None => {
                    let text =
                        format!("name '{shown}' lies in directory {}, which does not exist", name.parent);
                    self.report(name.fid, true, text);
                    continue;
                }
                Some(parent) if !parent.record.attr.is_dir() => {
                    let text = format!("name '{shown}' lies in {}, which is no directory", name.parent);
                    self.report(name.fid, true, text);
                    continue;
                }
                Some(parent) if !may_have(&parent.record, &name.name, name.position) => {
                    let text = format!("name '{shown}' in {} belongs into another shard", name.parent);
                    self.report(name.fid, false, text);
                }
                Some(_) => {}
            }
            if !name.hash_is_right {
                let text = format!("name '{shown}' in {} cannot be found: its hash is wrong", name.parent);
                self.report(name.fid, false, text);
            }
            match inventory.inodes.get(&name.fid) {
                None if inventory.covers(&name.fid) => {
                    let text =
                        format!("name '{shown}' in {} names an inode that does not exist", name.parent);
                    self.report(name.fid, true, text);
                }
                Some(inode) if inode.record.attr.kind() != name.kind => {
                    let kind = inode.record.attr.kind();
                    let text =
                        format!("name '{shown}' in {} says {:?}, not {kind:?}", name.parent, name.kind);
                    self.report(name.fid, true, text);
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
            if *fid == Fid::ROOT {
                if names != 0 {
                    self.report(*fid, false, "the root directory has a name".to_owned());
                }
            } else if is_shard(record) {
                self.check_shard(fid, record, names);
            } else if is_former(record) {
                self.check_former(fid, record, names);
            } else if names == 0 {
                self.check_nameless(fid, record, listed.copied());
                continue;
            } else if listed.is_some() || attr.flags.contains(AttrFlags::ORPHAN) {
                self.report(*fid, true, "is on the list of inodes without names but has one".to_owned());
            }
            let expected = if attr.is_dir() { 2 + inode.subdirs } else { names };
            if attr.nlink != expected {
                let text = format!("has {} links, should have {expected}", attr.nlink);
                self.report(*fid, true, text);
            }
            if attr.is_dir() && names > 1 {
                self.report(*fid, false, format!("is a directory with {names} names"));
            }
            if attr.is_dir() && record.entries() != inode.entries {
                let text = format!("says {} entries, has {}", record.entries(), inode.entries);
                self.report(*fid, true, text);
            }
            self.check_shards(fid, record);
            self.check_links(fid, inode);
        }
    }

    /// Checks that a shard has no name, is in the list of its directory, and has its owner and rights.
    fn check_shard(&mut self, fid: &Fid, record: &InodeRecord, names: u32) {
        if names != 0 {
            self.report(*fid, false, "is a shard of a directory and has a name".to_owned());
        }
        let master = self.inventory.inodes.get(&record.parent).map(|inode| &inode.record);
        let lists = |master: &&InodeRecord| {
            shards_of(master).ok().flatten().is_some_and(|layout| layout.shards.contains(fid))
        };
        let Some(master) = master.filter(lists) else {
            let text = format!("is no shard of {}, as it says", record.parent);
            return self.report(*fid, false, text);
        };
        let of = |record: &InodeRecord| {
            let attr = &record.attr;
            (attr.mode, attr.uid, attr.gid, attr.projid, record.acl.clone(), record.body.clone())
        };
        if of(master) != of(record) {
            let text =
                format!("has not the owner, rights and default of {}, of which it is a shard", record.parent);
            self.report(*fid, false, text);
        }
    }

    /// Checks that a directory being replaced by another one has no name, and the same list as that one.
    fn check_former(&mut self, fid: &Fid, record: &InodeRecord, names: u32) {
        if names != 0 {
            self.report(*fid, false, "gives its place to another directory and has a name".to_owned());
        }
        let master = self.inventory.inodes.get(&record.parent).map(|inode| &inode.record);
        let list = |record: &InodeRecord| shards_of(record).ok().flatten();
        if master.and_then(list) != list(record) {
            let text = format!("is not replaced by {}, as it says", record.parent);
            self.report(*fid, false, text);
        }
    }

    /// Checks that the shards of a directory exist and refer to it.
    fn check_shards(&mut self, fid: &Fid, record: &InodeRecord) {
        let layout = match shards_of(record) {
            Ok(None) => return,
            Ok(Some(layout)) if layout.former == *fid => return,
            Ok(Some(layout)) => layout,
            Err(_) => return self.report(*fid, false, "its list of shards is damaged".to_owned()),
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
                self.report(*fid, false, format!("has lost its shard {shard}"));
            }
        }
    }

    fn check_nameless(&mut self, fid: &Fid, record: &InodeRecord, listed: Option<OrphanKind>) {
        let attr = &record.attr;
        let orphan = attr.flags.contains(AttrFlags::ORPHAN) && attr.nlink == 0 && !attr.is_dir();
        match (orphan, listed) {
            (true, Some(_)) => {}
            (true, None) => {
                self.report(*fid, true, "has no name and is not on the list of those".to_owned());
            }
            (false, _) => self.report(*fid, true, format!("has lost its name ({:?})", attr.kind())),
        }
    }

    /// Checks that the first name and the extra names are exactly those in directories.
    fn check_links(&mut self, fid: &Fid, inode: &collect::Inode) {
        if *fid == Fid::ROOT || is_shard(&inode.record) || is_former(&inode.record) {
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
            self.report(*fid, true, format!("does not know its names: they are {names}, it says {known}"));
        }
    }

    /// Checks that every directory is reachable from the root.
    fn check_tree(&mut self) {
        let inventory = self.inventory;
        let mut reached: HashMap<Fid, ()> = HashMap::from([(Fid::ROOT, ())]);
        let directories = inventory.inodes.iter().filter(|(_, inode)| inode.record.attr.is_dir());
        for (fid, _) in directories {
            let (mut path, mut at) = (Vec::new(), *fid);
            let complete = loop {
                if reached.contains_key(&at) {
                    break true;
                }
                path.push(at);
                match inventory.inodes.get(&at).and_then(|inode| inode.names.first()) {
                    Some((parent, _)) if path.len() < DEPTH_MAX && !path.contains(parent) => at = *parent,
                    Some((parent, _)) if reached.contains_key(parent) => break true,
                    // Another check reports directories without names.
                    None => break true,
                    Some(_) => break false,
                }
            };
            if complete {
                reached.extend(path.into_iter().map(|fid| (fid, ())));
            } else {
                self.report(*fid, false, "is a directory inside itself; no path reaches it".to_owned());
            }
        }
    }

    /// Reports records of inodes that do not exist.
    fn check_leftovers(&mut self) {
        for (fid, what) in &self.inventory.leftovers {
            self.report(*fid, true, format!("does not exist but has {what}"));
        }
        for fid in self.inventory.orphans.keys() {
            if !self.inventory.inodes.contains_key(fid) {
                self.report(
                    *fid,
                    true,
                    "is on the list of inodes without names but does not exist".to_owned(),
                );
            }
        }
        if self.inventory.covers(&Fid::ROOT) && !self.inventory.inodes.contains_key(&Fid::ROOT) {
            self.report(Fid::ROOT, false, "the root directory is missing".to_owned());
        }
        let root = self.inventory.inodes.get(&Fid::ROOT);
        if root.is_some_and(|root| !root.record.attr.is_dir()) {
            self.report(Fid::ROOT, false, "the root is no directory".to_owned());
        }
    }
}

#[cfg(test)]
mod tests;
