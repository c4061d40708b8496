//! Repairs: one pass over the inventory of all MDTs, which is written back at its end.

use super::collect::{Inode, Inventory};
use super::contents::correct;
use super::rebuild::{Rebuild, Visit, rebuilt_list};
use super::{Targets, changing, is_rooted, mirrored};
use crate::error::MdsError;
use crate::new_shards::new_shard;
use crate::records::{read_record, store_path};
use crate::shards::{is_former, is_shard, shards_of};
use crate::tables::{
    CHANGES_HEAD_KEY, DATA, INODES, LINKS, META, META_KEY, ORPHANS, OST_MARKS, OrphanKind, PREPARED, XATTRS,
    link_key, xattr_key,
};
use crate::tx::Tx;
use nacre_ondisk::{ChangesHeadRecord, InodeRecord, LinkRecord, MdtRecord};
use nacre_store::MetaStore;
use nacre_types::{Attr, AttrFlags, Fid, FileKind, Timestamp};
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::ops::{Bound, ControlFlow};

/// Largest number of changes in one transaction.
const BATCH_MAX: usize = 1000;

/// One MDT under repair.
struct Part {
    store: MetaStore,
    record: MdtRecord,
    tx: Tx,
}

/// See the [module documentation](self).
pub(super) struct Repair<'a> {
    parts: BTreeMap<u16, Part>,
    /// Changes of MDTs that are not repaired here.
    elsewhere: Tx,
    pub inventory: Inventory,
    next_sequences: BTreeMap<u16, u64>,
    /// Inodes to be written.
    changed: BTreeSet<Fid>,
    /// Inodes to be removed.
    removed: BTreeSet<Fid>,
    now: Timestamp,
    targets: &'a Targets<'a>,
}

/// Runs one pass of repairs.
pub(super) fn repair(
    targets: &Targets<'_>,
    objects: &Visit<'_>,
    progress: &mut dyn FnMut(u64),
) -> Result<(), MdsError> {
    let mut parts = BTreeMap::new();
    for (dir, index) in targets.dirs {
        let store = MetaStore::open(&store_path(dir), changing(targets.config))?;
        // The next start counts inodes again.
        let record = MdtRecord { inodes: None, ..read_record(&store, dir)? };
        let tx = Tx::new(store.last_transno().0 + 1);
        parts.insert(*index, Part { store, record, tx });
    }
    let stores: Vec<(&MetaStore, u16)> = parts.iter().map(|(index, part)| (&part.store, *index)).collect();
    // Prepared transactions are decided by a start.
    if !super::transactions::unfinished(&stores)?.is_empty() {
        return Ok(());
    }
    let inventory = Inventory::read(&stores, progress)?;
    let next_sequences = parts.iter().map(|(index, part)| (*index, part.record.next_sequence)).collect();
    let now = Timestamp::from(nacre_env::clock::wall());
    let (changed, removed) = Default::default();
    let elsewhere = Tx::new(0);
    let mut repair = Repair { parts, elsewhere, inventory, next_sequences, changed, removed, now, targets };
    repair.bad_records()?;
    let rebuild = Rebuild::new(&mut repair.inventory, &mut repair.next_sequences, now);
    let rebuilt = rebuild.run(objects);
    repair.changed.extend(rebuilt.changed);
    repair.removed.extend(rebuilt.removed);
    repair.root()?;
    repair.names()?;
    repair.inodes(&rebuilt.kept.iter().copied().collect())?;
    repair.leftovers()?;
    repair.marks();
    repair.changelogs();
    repair.finish()
}

impl Repair<'_> {
    /// Returns the transaction of the MDT of an inode; one that is never committed for an MDT that is not here.
    pub fn tx_of(&mut self, fid: &Fid) -> &mut Tx {
        self.tx_on(fid.mdt_index())
    }

    fn tx_on(&mut self, mdt: u16) -> &mut Tx {
        self.parts.get_mut(&mdt).map_or(&mut self.elsewhere, |part| &mut part.tx)
    }

    /// Returns the seed of the hash of names in a directory.
    pub fn seed_of(&self, directory: &Fid) -> u64 {
        self.inventory.seeds.get(&directory.mdt_index()).copied().unwrap_or_default()
    }

    pub fn commit_if_full(&mut self) -> Result<(), MdsError> {
        for part in self.parts.values_mut() {
            if part.tx.batch().len() >= BATCH_MAX {
                part.store.commit(part.tx.batch())?;
                part.tx = Tx::new(part.store.last_transno().0 + 1);
            }
        }
        Ok(())
    }

    /// Removes records that cannot be decoded. Marks stay where other MDTs may have files with objects beyond them, and
    /// prepared transactions where other MDTs may have decided them.
    fn bad_records(&mut self) -> Result<(), MdsError> {
        self.inventory.is_data_unsure &= !self.targets.are_all;
        for (mdt, table, key) in std::mem::take(&mut self.inventory.bad) {
            if (table != OST_MARKS && table != PREPARED) || self.targets.are_all {
                self.tx_on(mdt).batch().delete(table, &key);
            }
            self.commit_if_full()?;
        }
        Ok(())
    }

    /// A root that is no directory becomes one.
    fn root(&mut self) -> Result<(), MdsError> {
        if let Some(root) = self.inventory.inodes.get_mut(&Fid::ROOT)
            && !root.record.attr.is_dir()
        {
            let mode = FileKind::Directory.mode_bits() | 0o755;
            let attr = Attr { mode, size: 0, nlink: 2, flags: AttrFlags::empty(), ..root.record.attr };
            root.record = InodeRecord { attr, parent: Fid::ROOT, ..InodeRecord::default() };
            self.changed.insert(Fid::ROOT);
        }
        Ok(())
    }

    fn inodes(&mut self, kept: &HashSet<Fid>) -> Result<(), MdsError> {
        let mut lost = Vec::new();
        let mut fids: Vec<Fid> = self.inventory.inodes.keys().copied().collect();
        fids.sort_unstable();
        for fid in fids {
            let Some(inode) = self.inventory.inodes.get(&fid) else { continue };
            let mut record = inode.record.clone();
            if !kept.contains(&fid) {
                correct(&mut record, None);
            }
            self.correct_shards(&fid, &mut record);
            let inode = &self.inventory.inodes[&fid];
            if self.inventory.has_names_elsewhere(inode) || is_shard(&record) || is_former(&record) {
                correct_counts(inode, &mut record);
            } else if is_rooted(&fid) || !inode.names.is_empty() {
                self.correct_named(&fid, &mut record);
            } else if record.attr.flags.contains(AttrFlags::ORPHAN) && !record.attr.is_dir() {
                // The next start destroys the inode, as no client has it open.
                record.attr.nlink = 0;
                if !self.inventory.orphans.contains_key(&fid) {
                    self.tx_of(&fid).batch().put(ORPHANS, &fid.to_key(), &OrphanKind::Unlinked.encode());
                }
            } else if is_worthless(inode, &record) {
                self.inventory.inodes.remove(&fid);
                self.removed.insert(fid);
                continue;
            } else {
                lost.push(fid);
            }
            self.replace(fid, record);
            self.commit_if_full()?;
        }
        lost.into_iter().try_for_each(|fid| self.rescue(fid))
    }

    /// Replaces the record of an inode.
    fn replace(&mut self, fid: Fid, record: InodeRecord) {
        if let Some(inode) = self.inventory.inodes.get_mut(&fid)
            && inode.record != record
        {
            inode.record = record;
            self.changed.insert(fid);
        }
    }

    /// Corrects what connects a directory with its shards.
    fn correct_shards(&mut self, fid: &Fid, record: &mut InodeRecord) {
        if shards_of(record).is_err() {
            let is_own = |(_, inode): &(&Fid, &Inode)| is_shard(&inode.record) && inode.record.parent == *fid;
            let mut own: Vec<Fid> =
                self.inventory.inodes.iter().filter(is_own).map(|(fid, _)| *fid).collect();
            own.sort_unstable();
            match rebuilt_list(&self.inventory, &mut self.next_sequences, *fid, &own) {
                Some(list) => record.lmv = list.encode(),
                None => make_plain(record),
            }
            return;
        }
        if is_shard(record) && self.inventory.covers(&record.parent) {
            match self.inventory.master_of(fid, record) {
                Some(master) if mirrored(master) != mirrored(record) => {
                    let (size, nlink) = (record.attr.size, record.attr.nlink);
                    *record = new_shard(master, fid, std::mem::take(&mut record.lmv));
                    (record.attr.size, record.attr.nlink) = (size, nlink);
                }
                Some(_) => {}
                None => make_plain(record),
            }
        } else if is_former(record)
            && self.inventory.covers(&record.parent)
            && !self.inventory.is_replaced(record)
        {
            make_plain(record);
        }
    }

    /// Corrects counts and links of an inode with names.
    fn correct_named(&mut self, fid: &Fid, record: &mut InodeRecord) {
        let Some(inode) = self.inventory.inodes.get(fid) else { return };
        let (names, extra) = (inode.names.clone(), inode.extra_links.clone());
        correct_counts(inode, record);
        if !record.attr.is_dir() {
            record.attr.nlink = names.len() as u32;
        }
        record.attr.flags -= AttrFlags::ORPHAN;
        if self.inventory.orphans.remove(fid).is_some() {
            self.tx_of(fid).batch().delete(ORPHANS, &fid.to_key());
        }
        if *fid == Fid::ROOT {
            (record.parent, record.name) = (Fid::ROOT, Vec::new());
            return;
        }
        if is_rooted(fid) {
            (record.parent, record.name) = (Fid::ROOT, lost_and_found_path(fid.mdt_index()));
            return;
        }
        let first = (record.parent, record.name.clone());
        let first = if names.contains(&first) { first } else { names[0].clone() };
        for (parent, name) in &extra {
            if !names.contains(&(*parent, name.clone())) || (*parent, name) == (first.0, &first.1) {
                self.tx_of(fid).batch().delete(LINKS, link_key(fid, parent, name).as_slice());
            }
        }
        for name in names.iter().filter(|name| **name != first && !extra.contains(name)) {
            let key = link_key(fid, &name.0, &name.1);
            self.tx_of(fid).batch().put(LINKS, key.as_slice(), &LinkRecord::encode());
        }
        (record.parent, record.name) = first;
    }

    /// Links an inode without names into `lost+found` of its MDT.
    fn rescue(&mut self, fid: Fid) -> Result<(), MdsError> {
        let directory = Fid::lost_and_found(fid.mdt_index());
        let now = self.now;
        let place = self.inventory.inodes.entry(directory).or_insert_with(|| {
            let mode = FileKind::Directory.mode_bits() | 0o700;
            let times = Attr { atime: now, mtime: now, ctime: now, btime: now, ..Attr::default() };
            let attr = Attr { fid: directory, mode, nlink: 2, ..times };
            let name = lost_and_found_path(directory.mdt_index());
            Inode::new(InodeRecord { attr, parent: Fid::ROOT, name, ..InodeRecord::default() })
        });
        place.record.attr.size += 1;
        place.entries += 1;
        let Some(inode) = self.inventory.inodes.get_mut(&fid) else { return Ok(()) };
        let name = fid.to_string().into_bytes();
        let (entries, subdirs, extra) =
            (inode.entries, inode.subdirs, std::mem::take(&mut inode.extra_links));
        let record = &mut inode.record;
        let kind = record.attr.kind();
        record.attr.flags -= AttrFlags::ORPHAN;
        record.attr.nlink = 1;
        if record.attr.is_dir() {
            (record.attr.nlink, record.attr.size) = (2 + subdirs, entries);
        }
        (record.parent, record.name) = (directory, name.clone());
        if let Some(place) = self.inventory.inodes.get_mut(&directory).filter(|_| kind == FileKind::Directory)
        {
            place.record.attr.nlink += 1;
            place.subdirs += 1;
        }
        for (parent, name) in &extra {
            self.tx_of(&fid).batch().delete(LINKS, link_key(&fid, parent, name).as_slice());
        }
        if self.inventory.orphans.remove(&fid).is_some() {
            self.tx_of(&fid).batch().delete(ORPHANS, &fid.to_key());
        }
        let hash = nacre_types::name::name_hash(self.seed_of(&directory), &name);
        self.tx_of(&directory).put_dirent(&directory, hash, &name, fid, kind);
        self.changed.extend([fid, directory]);
        self.commit_if_full()
    }

    /// Removes records of inodes that do not exist, and data that belongs to no file.
    fn leftovers(&mut self) -> Result<(), MdsError> {
        let gone = |inventory: &Inventory, fid: &Fid| {
            !inventory.inodes.contains_key(fid) && !inventory.damaged.contains(fid)
        };
        for (fid, parent, name) in std::mem::take(&mut self.inventory.links) {
            if gone(&self.inventory, &fid) {
                self.tx_of(&fid).batch().delete(LINKS, link_key(&fid, &parent, &name).as_slice());
                self.commit_if_full()?;
            }
        }
        let without: HashSet<Fid> =
            self.inventory.xattrs.keys().filter(|fid| gone(&self.inventory, fid)).copied().collect();
        for fid in without {
            for name in self.xattr_names(&fid)? {
                self.tx_of(&fid).batch().delete(XATTRS, xattr_key(&fid, &name).as_slice());
                self.commit_if_full()?;
            }
        }
        let listed: Vec<Fid> =
            self.inventory.orphans.keys().filter(|fid| gone(&self.inventory, fid)).copied().collect();
        for fid in listed {
            self.tx_of(&fid).batch().delete(ORPHANS, &fid.to_key());
        }
        // While inodes are damaged that nothing could replace, data may be theirs.
        if self.inventory.damaged.is_empty() && !self.inventory.is_data_unsure {
            let mut unused = std::mem::take(&mut self.inventory.data_unused);
            unused.retain(|data| !self.inventory.data_used.contains(&data.object));
            for data in unused {
                for key in &data.keys {
                    self.tx_on(data.mdt).batch().delete(DATA, key);
                    self.commit_if_full()?;
                }
            }
        }
        Ok(())
    }

    fn xattr_names(&self, fid: &Fid) -> Result<Vec<Vec<u8>>, MdsError> {
        let mut names = Vec::new();
        if let Some(part) = self.parts.get(&fid.mdt_index()) {
            let prefix = fid.to_key();
            part.store.scan(XATTRS, &prefix, Bound::Unbounded, &mut |key, _| {
                names.push(key[prefix.len()..].to_vec());
                ControlFlow::Continue(())
            })?;
        }
        Ok(names)
    }

    /// Raises marks to the ids in use, so that no id is allocated twice.
    fn marks(&mut self) {
        let mut used = std::mem::take(&mut self.inventory.used_ids);
        used.retain(|(mdt, _), _| self.parts.contains_key(mdt));
        for ((mdt, ost), mark) in used {
            let stored = self.inventory.marks.get(&(mdt, ost));
            if stored.is_none_or(|it| it.sequence == mark.sequence && it.last_used < mark.last_used) {
                self.tx_on(mdt).batch().put(OST_MARKS, &ost.to_be_bytes(), &mark.encode());
            }
        }
    }

    /// Rebuilds damaged heads of changelogs from the records.
    fn changelogs(&mut self) {
        for (mdt, (first, last, last_user)) in std::mem::take(&mut self.inventory.changelogs) {
            let (first, limit) = if first > last { (1, 1) } else { (first, last + 1) };
            let head = ChangesHeadRecord { last_user, first, limit };
            self.tx_on(mdt).batch().put(META, CHANGES_HEAD_KEY, &head.encode());
        }
    }

    fn finish(mut self) -> Result<(), MdsError> {
        for fid in std::mem::take(&mut self.removed) {
            self.tx_of(&fid).batch().delete(INODES, &fid.to_key());
            self.commit_if_full()?;
        }
        for fid in std::mem::take(&mut self.changed) {
            if let Some(inode) = self.inventory.inodes.remove(&fid) {
                self.tx_of(&fid).put_inode(inode.record);
                self.commit_if_full()?;
            }
        }
        for (index, part) in &mut self.parts {
            let next_sequence = self.next_sequences.get(index).copied().unwrap_or(part.record.next_sequence);
            part.record.next_sequence = next_sequence;
            part.tx.batch().put(META, META_KEY, &part.record.encode());
            part.store.commit(part.tx.batch())?;
            part.store.sync(part.store.last_transno())?;
            part.store.close()?;
        }
        Ok(())
    }
}

/// Path of the `lost+found` of an MDT below the root: clients show it there.
fn lost_and_found_path(mdt: u16) -> Vec<u8> {
    format!(".lustre/lost+found/MDT{mdt:04x}").into_bytes()
}

/// A directory that was a shard or had shards, and has neither any more.
fn make_plain(record: &mut InodeRecord) {
    record.lmv.clear();
    record.attr.flags -= AttrFlags::STRIPED;
    (record.parent, record.name) = (Fid::ZERO, Vec::new());
}

/// True for a nameless directory without entries that was a shard: nothing is lost with it.
fn is_worthless(inode: &Inode, record: &InodeRecord) -> bool {
    let was_part = is_shard(&inode.record) || is_former(&inode.record);
    record.attr.is_dir() && was_part && inode.entries == 0
}

/// Sets the counts of a directory to those of its names.
fn correct_counts(inode: &Inode, record: &mut InodeRecord) {
    if record.attr.is_dir() {
        record.attr.nlink = 2 + inode.subdirs;
        record.attr.size = inode.entries;
    }
}
