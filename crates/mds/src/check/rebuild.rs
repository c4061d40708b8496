//! Inodes rebuilt from what names, links, shards and objects know of them.

use super::collect::{Inode, Inventory};
use super::contents::{faults_of, give_layout};
use super::{Kind, is_rooted};
use crate::new_shards::new_shard;
use crate::shards::{is_shard, shards_of};
use nacre_layout::rebuilt::with_head;
use nacre_layout::{DirLayout, Layout, StripeObject};
use nacre_ondisk::{InodeRecord, OstMarkRecord};
use nacre_types::limits::TARGET_INDEX_MAX;
use nacre_types::{Attr, AttrFlags, Fid, FileKind, ObjectPlace, Owners, Timestamp};
use std::collections::{BTreeMap, HashMap, HashSet};

/// An object on an OST, or with data of an MDT that keeps it in a store of its own.
#[derive(Clone, Copy, Debug, Default)]
pub struct FoundObject {
    /// Index of the OST, or of the data part of the MDT.
    pub ost_index: u16,
    /// The object.
    pub object: Fid,
    /// Size in bytes.
    pub size: u64,
    /// Space in units of 512 bytes.
    pub blocks: u64,
    /// Time of the last change.
    pub mtime: Option<Timestamp>,
    /// Owners as the OST knows them.
    pub owners: Option<Owners>,
    /// Place in its file as the OST knows it.
    pub place: Option<ObjectPlace>,
}

/// Visits all objects; returns false if some could not be read.
pub type Visit<'a> = dyn Fn(&mut dyn FnMut(FoundObject)) -> bool + 'a;

/// What is known of an inode whose record is missing or damaged.
#[derive(Default)]
struct Evidence {
    /// Kind according to names.
    kind: Option<FileKind>,
    /// It has names in it.
    has_names: bool,
    /// Directory of which it is a shard, and its place in the list.
    master: Option<(Fid, u32)>,
    /// Shards that refer to it.
    shards: Vec<Fid>,
    /// Objects that refer to it.
    objects: Vec<FoundObject>,
    /// Data on the MDT: object and size.
    data: Option<(Fid, u64)>,
}

/// An inode, and what becomes known of it.
type Note = (Fid, Box<dyn FnOnce(&mut Evidence)>);

/// Rebuilds inodes in an inventory.
pub(super) struct Rebuild<'a> {
    pub inventory: &'a mut Inventory,
    /// Next unassigned sequences of the MDTs.
    pub next_sequences: &'a mut BTreeMap<u16, u64>,
    pub now: Timestamp,
    evidence: BTreeMap<Fid, Evidence>,
    /// By MDT and OST: largest object id that exists, or that a layout names.
    largest: HashMap<(u16, u16), OstMarkRecord>,
    /// All objects were visited.
    is_complete: bool,
}

/// Result of a rebuild.
#[derive(Default)]
pub(super) struct Rebuilt {
    /// Inodes with new records.
    pub changed: Vec<Fid>,
    /// Inodes whose damaged records nothing can replace.
    pub removed: Vec<Fid>,
    /// Inodes that stay as they are, since objects of theirs may exist that could not be read.
    pub kept: Vec<Fid>,
}

impl<'a> Rebuild<'a> {
    pub fn new(
        inventory: &'a mut Inventory,
        next_sequences: &'a mut BTreeMap<u16, u64>,
        now: Timestamp,
    ) -> Rebuild<'a> {
        let largest = inventory.marks.clone();
        Rebuild { inventory, next_sequences, now, evidence: BTreeMap::new(), largest, is_complete: true }
    }

    /// Rebuilds all inodes of which something is known.
    pub fn run(mut self, visit: &Visit<'_>) -> Rebuilt {
        self.gather();
        self.gather_objects(visit);
        let mut rebuilt = Rebuilt::default();
        let damaged: Vec<Fid> = self.inventory.damaged.iter().copied().collect();
        for fid in &damaged {
            self.evidence.entry(*fid).or_default();
        }
        if self.lacks(&Fid::ROOT) {
            self.evidence.entry(Fid::ROOT).or_default().has_names = true;
        }
        // Directories before their shards, which get their rights.
        let mut evidence: Vec<(Fid, Evidence)> = std::mem::take(&mut self.evidence).into_iter().collect();
        evidence.sort_by_key(|(fid, evidence)| (evidence.master.is_some(), *fid));
        for (fid, evidence) in evidence {
            match self.record_of(fid, &evidence) {
                Some(record) => {
                    self.inventory
                        .objects_used
                        .extend(evidence.objects.iter().map(|object| (object.ost_index, object.object)));
                    self.inventory.inodes.insert(fid, Inode::new(record));
                    self.inventory.damaged.remove(&fid);
                    rebuilt.changed.push(fid);
                }
                None if !evidence.objects.is_empty() || evidence.data.is_some() => rebuilt.kept.push(fid),
                None if damaged.contains(&fid) && self.is_complete => {
                    self.inventory.damaged.remove(&fid);
                    rebuilt.removed.push(fid);
                }
                None => {}
            }
        }
        if !self.is_complete {
            let inodes = self.inventory.inodes.keys().copied();
            rebuilt.kept.extend(inodes.filter(|fid| self.lacks_layout(fid)));
        }
        rebuilt
    }

    /// True for an inode that has no readable record, and would have it here.
    fn lacks(&self, fid: &Fid) -> bool {
        self.inventory.covers(fid) && !fid.is_zero() && !self.inventory.inodes.contains_key(fid)
    }

    /// True for an inode whose layout is damaged.
    fn lacks_layout(&self, fid: &Fid) -> bool {
        let inode = self.inventory.inodes.get(fid);
        inode.is_some_and(|inode| faults_of(&inode.record).iter().any(|(kind, _)| *kind == Kind::Layout))
    }

    /// Collects what names and shards know.
    fn gather(&mut self) {
        let mut found: Vec<Note> = Vec::new();
        for name in &self.inventory.dirents {
            if let Some((fid, kind)) = name.to.filter(|(fid, _)| self.lacks(fid)) {
                found.push((fid, Box::new(move |evidence| evidence.kind = Some(kind))));
            }
            // A name that leads nowhere does not make a directory.
            let leads = name.to.is_some_and(|(fid, _)| self.inventory.inodes.contains_key(&fid));
            if leads && self.lacks(&name.parent) {
                found.push((name.parent, Box::new(|evidence| evidence.has_names = true)));
            }
        }
        for (fid, inode) in &self.inventory.inodes {
            let record = &inode.record;
            if is_shard(record) && self.lacks(&record.parent) {
                let shard = *fid;
                found.push((record.parent, Box::new(move |evidence| evidence.shards.push(shard))));
            }
            let Ok(Some(layout)) = shards_of(record) else { continue };
            if layout.former == *fid {
                continue;
            }
            for (place, shard) in layout.shards.iter().enumerate().filter(|(_, shard)| self.lacks(shard)) {
                let master = Some((*fid, place as u32));
                found.push((*shard, Box::new(move |evidence| evidence.master = master)));
            }
        }
        for (fid, add) in found {
            add(self.evidence.entry(fid).or_default());
        }
        let unused = self.inventory.data_unused.iter().filter(|_| !self.inventory.is_data_unsure);
        let unused: Vec<(Fid, u64)> = unused.map(|data| (data.object, data.size)).collect();
        for (object, size) in unused {
            let file = Fid { ver: 0, ..object };
            if self.lacks(&file) || self.lacks_layout(&file) {
                self.evidence.entry(file).or_default().data = Some((object, size));
            }
        }
    }

    /// Collects what objects know. Objects above the marks are of transactions that were lost: the next start destroys
    /// them.
    fn gather_objects(&mut self, visit: &Visit<'_>) {
        let (inventory, largest, evidence) = (&*self.inventory, &mut self.largest, &mut self.evidence);
        let lacks = |fid: &Fid| inventory.covers(fid) && !inventory.inodes.contains_key(fid);
        let damaged_layouts: HashSet<Fid> = inventory
            .problems
            .iter()
            .filter(|problem| problem.kind == Kind::Layout)
            .map(|problem| problem.fid)
            .collect();
        self.is_complete = visit(&mut |mut found| {
            if let Some(change) = inventory.owner_changes.get(&(found.ost_index, found.object)) {
                found.owners = Some(change.owners);
                found.place = change.place.or(found.place);
            }
            let FoundObject { ost_index, object, place, .. } = found;
            if inventory.objects_used.contains(&(ost_index, object)) {
                return;
            }
            if ost_index >= TARGET_INDEX_MAX {
                let file = Fid { ver: 0, ..object };
                // A power loss leaves data of files that were created a moment before: only files that something else
                // knows of are rebuilt.
                let is_known = evidence.contains_key(&file) || inventory.damaged.contains(&file);
                if is_known && !inventory.data_used.contains(&object) {
                    evidence.entry(file).or_default().data = Some((object, found.size));
                }
                return;
            }
            let key = (object.mdt_index(), ost_index);
            let mark = inventory.marks.get(&key);
            let known =
                largest.entry(key).or_insert(OstMarkRecord { sequence: object.seq, last_used: object.oid });
            if known.sequence == object.seq {
                known.last_used = known.last_used.max(object.oid);
            }
            if mark.is_some_and(|mark| mark.sequence == object.seq && object.oid > mark.last_used) {
                return;
            }
            if let Some(place) = place.filter(|it| lacks(&it.file) || damaged_layouts.contains(&it.file)) {
                evidence.entry(place.file).or_default().objects.push(found);
            }
        });
    }

    /// Builds the record of an inode; `None` if too little is known.
    fn record_of(&mut self, fid: Fid, evidence: &Evidence) -> Option<InodeRecord> {
        if let Some((master, place)) = evidence.master {
            let master = &self.inventory.inodes.get(&master)?.record;
            let layout = shards_of(master).ok().flatten()?;
            return Some(new_shard(master, &fid, layout.encode_shard(place)));
        }
        if let Some(inode) = self.inventory.inodes.get(&fid) {
            // Only the layout is damaged.
            let mut record = inode.record.clone();
            let (layout, size) = self.layout_of(fid, evidence)?;
            give_layout(&mut record, Some((&layout, size)));
            return Some(record);
        }
        if !evidence.shards.is_empty() {
            return self.master_record(fid, &evidence.shards);
        }
        let is_damaged = self.inventory.damaged.contains(&fid);
        let kind = match evidence {
            Evidence { has_names: true, .. } => FileKind::Directory,
            Evidence { objects, data, .. } if !objects.is_empty() || data.is_some() => FileKind::Regular,
            // Nothing but its record knows the target of a symbolic link or the number of a device.
            Evidence { kind: Some(FileKind::Regular), .. } if !self.is_complete => return None,
            Evidence { kind: Some(kind), .. } if is_damaged && is_simple(*kind) => *kind,
            _ => return None,
        };
        let mut record = InodeRecord { attr: self.attr_of(fid, kind, evidence), ..InodeRecord::default() };
        if kind == FileKind::Regular && (!evidence.objects.is_empty() || evidence.data.is_some()) {
            let (layout, size) = self.layout_of(fid, evidence)?;
            give_layout(&mut record, Some((&layout, size)));
            record.attr.blocks = evidence.objects.iter().map(|object| object.blocks).sum();
            record.data_generation = evidence.data.map_or(0, |(object, _)| object.ver);
        }
        Some(record)
    }

    fn attr_of(&self, fid: Fid, kind: FileKind, evidence: &Evidence) -> Attr {
        let owners = evidence.objects.iter().find_map(|object| object.owners).unwrap_or_default();
        let mtime = evidence.objects.iter().filter_map(|object| object.mtime).max().unwrap_or(self.now);
        let rights = match kind {
            FileKind::Directory if fid == Fid::ROOT => 0o755,
            FileKind::Directory => 0o700,
            _ => 0o600,
        };
        let Owners { uid, gid, projid } = owners;
        Attr {
            fid,
            mode: kind.mode_bits() | rights,
            uid,
            gid,
            projid,
            nlink: if kind == FileKind::Directory { 2 } else { 1 },
            atime: mtime,
            mtime,
            ctime: self.now,
            btime: mtime,
            flags: self.inventory.xattrs.get(&fid).copied().unwrap_or_default(),
            ..Attr::default()
        }
    }

    /// Builds the record of a striped directory from its shards, which have its owner and rights.
    fn master_record(&mut self, fid: Fid, shards: &[Fid]) -> Option<InodeRecord> {
        let layout = rebuilt_list(self.inventory, self.next_sequences, fid, shards)?;
        let shard = &self.inventory.inodes.get(shards.first()?)?.record;
        let mut record = InodeRecord { lmv: layout.encode(), ..shard.clone() };
        (record.attr.fid, record.attr.size, record.attr.nlink) = (fid, 0, 2);
        record.attr.flags |=
            AttrFlags::STRIPED | self.inventory.xattrs.get(&fid).copied().unwrap_or_default();
        (record.parent, record.name) = (Fid::ZERO, Vec::new());
        Some(record)
    }

    /// Rebuilds the layout of a file, and the size that follows from its objects. `None` if objects are missing that
    /// may exist.
    fn layout_of(&mut self, fid: Fid, evidence: &Evidence) -> Option<(Layout, u64)> {
        let placed = |found: &FoundObject| {
            let stripe = StripeObject::new(found.ost_index, found.object);
            found.place.map(|place| (stripe, place))
        };
        let placed: Vec<(StripeObject, ObjectPlace)> = evidence.objects.iter().filter_map(placed).collect();
        let (is_complete, largest) = (self.is_complete, &mut self.largest);
        let mut missing = |known: &[u16]| {
            let osts = || largest.keys().filter(|(mdt, _)| *mdt == fid.mdt_index()).map(|(_, ost)| *ost);
            let ost = osts().filter(|ost| !known.contains(ost)).min().or_else(|| osts().min());
            let ost = ost.filter(|_| is_complete)?;
            let mark = largest.get_mut(&(fid.mdt_index(), ost))?;
            mark.last_used = mark.last_used.checked_add(1)?;
            Some(StripeObject::new(ost, Fid::new(mark.sequence, mark.last_used, 0)))
        };
        let (layout, _) = Layout::rebuilt(&placed, &mut missing);
        let layout = match evidence.data {
            Some((object, size)) => {
                self.inventory.data_used.insert(object);
                Some(with_head(layout, object, size))
            }
            None => layout,
        }?;
        let size_of = |stripe: &StripeObject| match evidence.data {
            Some((object, size)) if stripe.object == object => size,
            _ => {
                let found = evidence.objects.iter().find(|found| found.object == stripe.object);
                found.map_or(0, |found| found.size)
            }
        };
        let sizes: Vec<u64> = layout.objects().map(size_of).collect();
        for stripe in layout.objects().filter(|stripe| !stripe.is_on_mdt()) {
            let key = (stripe.object.mdt_index(), stripe.ost_index);
            let (sequence, last_used) = (stripe.object.seq, stripe.object.oid);
            let used = self.inventory.used_ids.entry(key).or_insert(OstMarkRecord { sequence, last_used });
            used.last_used = used.last_used.max(last_used);
        }
        let size = layout.file_size(&sizes);
        Some((layout, size))
    }
}

/// True for kinds of which a record says nothing that programs would miss in another one.
fn is_simple(kind: FileKind) -> bool {
    matches!(kind, FileKind::Regular | FileKind::Directory | FileKind::Fifo | FileKind::Socket)
}

/// Rebuilds the list of the shards of a directory; shards that are lost get new FIDs.
pub(super) fn rebuilt_list(
    inventory: &Inventory,
    next_sequences: &mut BTreeMap<u16, u64>,
    master: Fid,
    shards: &[Fid],
) -> Option<DirLayout> {
    let record = |fid: &Fid| Some((*fid, &inventory.inodes.get(fid)?.record.lmv[..]));
    let known: Vec<(Fid, &[u8])> = shards.iter().filter_map(record).collect();
    let next = next_sequences.get_mut(&master.mdt_index())?;
    let mut missing = || {
        *next += 1;
        Fid::new(*next - 1, 1, 0)
    };
    let layout = DirLayout::rebuilt(master.mdt_index(), &known, &mut missing)?;
    // Too damaged shards may give a list that cannot be stored.
    DirLayout::decode(&layout.encode()).ok().filter(|_| !is_rooted(&master) || master == Fid::ROOT)
}
