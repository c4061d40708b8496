//! Repairs without loss of data.

use super::collect::{Inode, Inventory};
use super::{CheckReport, LOST_AND_FOUND, check};
use crate::error::MdsError;
use crate::shards::{is_former, is_shard};
use crate::tables::{
    DATA, DIRENTS, LINKS, META, META_KEY, ORPHANS, OST_MARKS, OrphanKind, XATTRS, dirent_key, link_key,
    split_link_key, split_xattr_key,
};
use crate::tx::Tx;
use nacre_layout::user;
use nacre_ondisk::{InodeRecord, LinkRecord, MdtRecord, OstMarkRecord};
use nacre_store::MetaStore;
use nacre_types::name::name_hash;
use nacre_types::{Attr, AttrFlags, Fid, FileKind, Timestamp};
use std::collections::HashMap;
use std::ops::{Bound, ControlFlow};

/// Largest number of changes in one transaction.
const BATCH_MAX: usize = 1000;

struct Repair<'a> {
    store: &'a MetaStore,
    tx: Tx,
    mdt: MdtRecord,
    /// Changed records in their new state.
    changed: HashMap<Fid, InodeRecord>,
}

/// Repairs all repairable problems, then checks again: `report.problems` keeps all problems found, `repaired`
/// counts those that the second check does not find.
pub fn repair(
    store: &MetaStore,
    mdt: &MdtRecord,
    report: &mut CheckReport,
    progress: &mut dyn FnMut(u64),
) -> Result<(), MdsError> {
    let inventory = Inventory::read(store, mdt.index, progress)?;
    let tx = Tx::new(store.last_transno().0 + 1);
    // The next start counts inodes again.
    let mdt = MdtRecord { inodes: None, ..*mdt };
    let mut repair = Repair { store, tx, mdt, changed: HashMap::new() };
    let inventory = repair.names(inventory)?;
    repair.inodes(&inventory)?;
    repair.leftovers(&inventory)?;
    repair.marks(&inventory)?;
    repair.finish()?;
    let transno = store.last_transno();
    store.sync(transno)?;
    let after = check(store, mdt.index, progress)?;
    report.repaired = (report.problems.len() as u64).saturating_sub(after.problems.len() as u64);
    Ok(())
}

impl Repair<'_> {
    fn commit_if_full(&mut self) -> Result<(), MdsError> {
        if self.tx.batch().len() >= BATCH_MAX { self.commit() } else { Ok(()) }
    }

    fn commit(&mut self) -> Result<(), MdsError> {
        self.store.commit(self.tx.batch())?;
        self.tx = Tx::new(self.store.last_transno().0 + 1);
        Ok(())
    }

    fn hash(&self, name: &[u8]) -> u64 {
        name_hash(self.mdt.hash_seed, name)
    }

    /// Removes names without inode or directory and corrects kinds; returns the inventory without the removed
    /// names.
    fn names(&mut self, mut inventory: Inventory) -> Result<Inventory, MdsError> {
        let dirents = std::mem::take(&mut inventory.dirents);
        for name in dirents {
            let in_directory = inventory.inodes.get(&name.parent).is_some_and(|p| p.record.attr.is_dir());
            let local = inventory.covers(&name.fid);
            let kind = inventory.inodes.get(&name.fid).map(|inode| inode.record.attr.kind());
            if !in_directory || (kind.is_none() && local) {
                let key = dirent_key(&name.parent, self.hash(&name.name), &name.name);
                self.tx.batch().delete(DIRENTS, key.as_slice());
                if let Some(parent) = inventory.inodes.get_mut(&name.parent) {
                    parent.entries -= 1;
                    parent.subdirs -= u32::from(name.kind == FileKind::Directory);
                }
                if let Some(inode) = inventory.inodes.get_mut(&name.fid) {
                    inode.names.retain(|(parent, other)| *parent != name.parent || *other != name.name);
                }
            } else if let Some(kind) = kind.filter(|kind| *kind != name.kind) {
                let hash = self.hash(&name.name);
                self.tx.put_dirent(&name.parent, hash, &name.name, name.fid, kind);
                if let Some(parent) = inventory.inodes.get_mut(&name.parent) {
                    parent.subdirs += u32::from(kind == FileKind::Directory);
                    parent.subdirs -= u32::from(name.kind == FileKind::Directory);
                }
            }
            self.commit_if_full()?;
        }
        Ok(inventory)
    }

    fn inodes(&mut self, inventory: &Inventory) -> Result<(), MdsError> {
        let mut lost = Vec::new();
        for (fid, inode) in &inventory.inodes {
            let mut record = inode.record.clone();
            if inventory.has_names_elsewhere(inode) || is_shard(&record) || is_former(&record) {
                correct_counts(inode, &mut record);
            } else if *fid == Fid::ROOT || !inode.names.is_empty() {
                self.correct_named(inventory, fid, inode, &mut record);
            } else if record.attr.flags.contains(AttrFlags::ORPHAN) && !record.attr.is_dir() {
                // The next start destroys the inode, as no client has it open.
                record.attr.nlink = 0;
                if !inventory.orphans.contains_key(fid) {
                    self.tx.batch().put(ORPHANS, &fid.to_key(), &OrphanKind::Unlinked.encode());
                }
            } else {
                lost.push(*fid);
                continue;
            }
            if record != inode.record {
                self.changed.insert(*fid, record);
            }
            self.commit_if_full()?;
        }
        if !lost.is_empty() && inventory.covers(&Fid::ROOT) {
            self.rescue(inventory, &lost)?;
        }
        Ok(())
    }

    /// Corrects counts and links of an inode with names.
    fn correct_named(&mut self, inventory: &Inventory, fid: &Fid, inode: &Inode, record: &mut InodeRecord) {
        correct_counts(inode, record);
        if !record.attr.is_dir() {
            record.attr.nlink = inode.names.len() as u32;
        }
        if *fid == Fid::ROOT {
            return;
        }
        record.attr.flags -= AttrFlags::ORPHAN;
        if inventory.orphans.contains_key(fid) {
            self.tx.batch().delete(ORPHANS, &fid.to_key());
        }
        let first = (record.parent, record.name.clone());
        let first = if inode.names.contains(&first) { first } else { inode.names[0].clone() };
        for (parent, name) in &inode.extra_links {
            if !inode.names.contains(&(*parent, name.clone())) || (*parent, name) == (first.0, &first.1) {
                self.tx.batch().delete(LINKS, link_key(fid, parent, name).as_slice());
            }
        }
        for name in inode.names.iter().filter(|name| **name != first) {
            if !inode.extra_links.contains(name) {
                let key = link_key(fid, &name.0, &name.1);
                self.tx.batch().put(LINKS, key.as_slice(), &LinkRecord::encode());
            }
        }
        (record.parent, record.name) = first;
    }

    /// Links inodes without names into `lost+found`.
    fn rescue(&mut self, inventory: &Inventory, lost: &[Fid]) -> Result<(), MdsError> {
        let Some(root) = inventory.inodes.get(&Fid::ROOT) else { return Ok(()) };
        let existing = inventory
            .inodes
            .iter()
            .find(|(_, inode)| inode.names.iter().any(|(p, n)| *p == Fid::ROOT && n == LOST_AND_FOUND));
        let mut place = match existing {
            Some((fid, inode)) if inode.record.attr.is_dir() => {
                self.changed.remove(fid).unwrap_or_else(|| inode.record.clone())
            }
            // Another file has the name: the rescue is left to an administrator.
            Some(_) => return Ok(()),
            None => self.make_lost_and_found(root)?,
        };
        let directory = place.attr.fid;
        for fid in lost {
            let Some(inode) = inventory.inodes.get(fid) else { continue };
            let name = fid.to_string().into_bytes();
            let mut record = inode.record.clone();
            record.attr.flags -= AttrFlags::ORPHAN;
            record.attr.nlink = if record.attr.is_dir() { 2 + inode.subdirs } else { 1 };
            if record.attr.is_dir() {
                record.attr.size = inode.entries;
                place.attr.nlink += 1;
            }
            place.attr.size += 1;
            for (parent, name) in &inode.extra_links {
                self.tx.batch().delete(LINKS, link_key(fid, parent, name).as_slice());
            }
            if inventory.orphans.contains_key(fid) {
                self.tx.batch().delete(ORPHANS, &fid.to_key());
            }
            let hash = self.hash(&name);
            self.tx.put_dirent(&directory, hash, &name, *fid, record.attr.kind());
            record.parent = directory;
            record.name = name;
            self.changed.insert(*fid, record);
            self.commit_if_full()?;
        }
        self.changed.insert(directory, place);
        Ok(())
    }

    fn make_lost_and_found(&mut self, root: &Inode) -> Result<InodeRecord, MdsError> {
        let now = Timestamp::from(nacre_env::clock::wall());
        let fid = Fid::new(self.mdt.next_sequence, 1, 0);
        self.mdt.next_sequence += 1;
        let attr = Attr {
            fid,
            mode: FileKind::Directory.mode_bits() | 0o700,
            nlink: 2,
            atime: now,
            mtime: now,
            ctime: now,
            btime: now,
            ..Attr::default()
        };
        let hash = self.hash(LOST_AND_FOUND);
        self.tx.put_dirent(&Fid::ROOT, hash, LOST_AND_FOUND, fid, FileKind::Directory);
        let mut root = self.changed.remove(&Fid::ROOT).unwrap_or_else(|| root.record.clone());
        root.attr.nlink += 1;
        root.attr.size += 1;
        self.changed.insert(Fid::ROOT, root);
        Ok(InodeRecord { attr, parent: Fid::ROOT, name: LOST_AND_FOUND.to_vec(), ..InodeRecord::default() })
    }

    /// Removes records of inodes that do not exist.
    fn leftovers(&mut self, inventory: &Inventory) -> Result<(), MdsError> {
        let mut keys = Vec::new();
        let gone = |fid: &Fid| !inventory.inodes.contains_key(fid);
        self.store.scan(LINKS, &[], Bound::Unbounded, &mut |key, _| {
            if split_link_key(key).is_some_and(|(fid, _, _)| gone(&fid)) {
                keys.push((LINKS, key.to_vec()));
            }
            ControlFlow::Continue(())
        })?;
        self.store.scan(XATTRS, &[], Bound::Unbounded, &mut |key, _| {
            if split_xattr_key(key).is_some_and(|(fid, _)| gone(&fid)) {
                keys.push((XATTRS, key.to_vec()));
            }
            ControlFlow::Continue(())
        })?;
        keys.extend(
            inventory.orphans.keys().filter(|fid| gone(fid)).map(|fid| (ORPHANS, fid.to_key().to_vec())),
        );
        keys.extend(inventory.data_unused.iter().map(|key| (DATA, key.clone())));
        for (table, key) in keys {
            self.tx.batch().delete(table, &key);
            self.commit_if_full()?;
        }
        Ok(())
    }

    /// Raises marks to the ids in use, so that no id is allocated twice.
    fn marks(&mut self, inventory: &Inventory) -> Result<(), MdsError> {
        let mut used: HashMap<u16, OstMarkRecord> = HashMap::new();
        for inode in inventory.inodes.values() {
            if !inode.record.attr.flags.contains(AttrFlags::HAS_OBJECTS) {
                continue;
            }
            let Ok(layout) = user::decode_layout(&inode.record.body) else { continue };
            // Objects of files that came from another MDT are covered by that MDT's marks.
            let is_own = |fid: &Fid| fid.mdt_index() == self.mdt.index;
            for object in layout.objects().filter(|found| !found.is_on_mdt() && is_own(&found.object)) {
                let (sequence, last_used) = (object.object.seq, object.object.oid);
                let mark = used.entry(object.ost_index).or_insert(OstMarkRecord { sequence, last_used });
                mark.last_used = mark.last_used.max(last_used);
            }
        }
        for (index, mark) in used {
            let stored = inventory.marks.get(&index);
            if stored.is_none_or(|s| s.sequence == mark.sequence && s.last_used < mark.last_used) {
                self.tx.batch().put(OST_MARKS, &index.to_be_bytes(), &mark.encode());
            }
        }
        Ok(())
    }

    fn finish(mut self) -> Result<(), MdsError> {
        self.tx.batch().put(META, META_KEY, &self.mdt.encode());
        for (_, record) in std::mem::take(&mut self.changed) {
            self.tx.put_inode(record);
            self.commit_if_full()?;
        }
        self.commit()
    }
}

/// Sets the counts of a directory to those of its names.
fn correct_counts(inode: &Inode, record: &mut InodeRecord) {
    if record.attr.is_dir() {
        record.attr.nlink = 2 + inode.subdirs;
        record.attr.size = inode.entries;
    }
}
