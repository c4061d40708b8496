//! Inventory of metadata stores in memory.

use super::contents::{faults_of, layout_of};
use super::{Kind, Problem};
use crate::error::MdsError;
use crate::shards::{named_in, shards_of};
use crate::tables::{
    CHANGE_USERS, CHANGES, CHANGES_HEAD_KEY, DATA, DESTROYS, DIRENTS, INODES, LINKS, META, META_KEY, ORPHANS,
    OST_MARKS, OWNER_CHANGES, OrphanKind, PREPARED, QUOTA_GRACES_KEY, QUOTA_LIMITS, TRANSACTIONS, XATTRS,
    change_index, decode_op_key, split_destroy_key, split_dirent_key, split_link_key, split_xattr_key,
};
use crate::transactions::state::{decode_prepared, decode_transaction};
use nacre_layout::StripeObject;
use nacre_ondisk::quota::split_limit_key;
use nacre_ondisk::{
    ChangeRecord, ChangeUserRecord, ChangesHeadRecord, DataRecord, DirentRecord, GraceRecord, InodeRecord,
    LimitRecord, LinkRecord, MdtRecord, OstMarkRecord, OwnerRecord, XattrRecord,
};
use nacre_store::{MetaStore, Table};
use nacre_types::name::name_hash;
use nacre_types::{AttrFlags, Fid, FileKind};
use nacre_wire::peer::Update;
use std::collections::{HashMap, HashSet};
use std::ops::{Bound, ControlFlow};

/// Records between two calls of `progress`.
const STEP: u64 = 10_000;

/// Adds one record (key and value) to an inventory.
type Taker<'a> = &'a mut dyn FnMut(&mut Inventory, &[u8], &[u8]);

/// A name as a directory stores it.
pub struct Dirent {
    pub parent: Fid,
    pub name: Vec<u8>,
    /// Inode of the name, with its kind; `None` if the record is damaged.
    pub to: Option<(Fid, FileKind)>,
    pub hash_is_right: bool,
    /// Position in its directory.
    pub position: u64,
}

/// An inode with what other records have about it.
pub struct Inode {
    pub record: InodeRecord,
    /// Names in directories that refer to it.
    pub names: Vec<(Fid, Vec<u8>)>,
    /// Names beyond the first, from the links table.
    pub extra_links: Vec<(Fid, Vec<u8>)>,
    /// Number of entries, if it is a directory.
    pub entries: u64,
    /// Number of directories among the entries.
    pub subdirs: u32,
}

impl Inode {
    pub fn new(record: InodeRecord) -> Inode {
        Inode { record, names: Vec::new(), extra_links: Vec::new(), entries: 0, subdirs: 0 }
    }
}

/// An object with data on an MDT, in records of its metadata store, which no layout names.
pub struct UnusedData {
    /// MDT whose store has the records.
    pub mdt: u16,
    pub object: Fid,
    pub size: u64,
    /// Keys of its records.
    pub keys: Vec<Vec<u8>>,
}

/// All records of the stores read.
#[derive(Default)]
pub struct Inventory {
    pub inodes: HashMap<Fid, Inode>,
    /// Inodes with damaged records.
    pub damaged: HashSet<Fid>,
    pub dirents: Vec<Dirent>,
    pub names: u64,
    pub objects: u64,
    pub destroys: u64,
    pub orphans: HashMap<Fid, OrphanKind>,
    /// Names in the links table.
    pub links: Vec<(Fid, Fid, Vec<u8>)>,
    /// Inodes with extended attributes, and the flags that these imply.
    pub xattrs: HashMap<Fid, AttrFlags>,
    /// By MDT and OST: largest object id in use.
    pub marks: HashMap<(u16, u16), OstMarkRecord>,
    /// The same as far as layouts show it.
    pub used_ids: HashMap<(u16, u16), OstMarkRecord>,
    /// Seeds of the hash of names by MDT.
    pub seeds: HashMap<u16, u64>,
    pub problems: Vec<Problem>,
    /// Records that repair removes: MDT, table, key.
    pub bad: Vec<(u16, Table, Vec<u8>)>,
    /// Changelogs whose heads repair rebuilds: MDT, first and last index, largest number of a user.
    pub changelogs: HashMap<u16, (u64, u64, u32)>,
    /// Objects on MDTs that layouts name, or whose files prepared transactions may bring.
    pub data_used: HashSet<Fid>,
    /// Objects that layouts on these MDTs name, or that wait to be destroyed.
    pub objects_used: HashSet<(u16, Fid)>,
    pub data_unused: Vec<UnusedData>,
    /// New owners and places of objects that their OSTs may not know yet.
    pub owner_changes: HashMap<(u16, Fid), OwnerRecord>,
    /// Indexes of the MDTs that were read.
    covered: HashSet<u16>,
    /// True if data on these MDTs may be of files that a transaction brings whose record cannot be decoded.
    pub is_data_unsure: bool,
    /// True if a store has lost records, so that inodes may be missing whose names are not.
    pub is_partial: bool,
    /// Index of the MDT that is read.
    mdt_index: u16,
    read: u64,
}

impl Inventory {
    /// Reads the stores of MDTs of one file system.
    pub fn read(stores: &[(&MetaStore, u16)], progress: &mut dyn FnMut(u64)) -> Result<Inventory, MdsError> {
        let mut all = Inventory::default();
        for (store, index) in stores {
            all.add(store, *index, progress)?;
        }
        // Data of files that other MDTs name was read before their layouts.
        let unused = |data: &UnusedData| !all.data_used.contains(&data.object);
        let mut left = std::mem::take(&mut all.data_unused);
        left.retain(unused);
        all.data_unused = left;
        all.connect();
        Ok(all)
    }

    fn add(
        &mut self,
        store: &MetaStore,
        mdt_index: u16,
        progress: &mut dyn FnMut(u64),
    ) -> Result<(), MdsError> {
        let all = self;
        all.covered.insert(mdt_index);
        all.mdt_index = mdt_index;
        let seed = store.get(META, META_KEY, |value| value.and_then(|v| MdtRecord::decode(v).ok()))?;
        let seed = seed.map_or(0, |record| record.hash_seed);
        all.seeds.insert(mdt_index, seed);
        all.each(store, OST_MARKS, progress, &mut |all, key, value| all.take_mark(key, value))?;
        all.each(store, INODES, progress, &mut |all, key, value| all.take_inode(key, value))?;
        all.each(store, DIRENTS, progress, &mut |all, key, value| all.take_dirent(seed, key, value))?;
        all.each(store, LINKS, progress, &mut |all, key, value| all.take_link(key, value))?;
        all.each(store, XATTRS, progress, &mut |all, key, value| all.take_xattr(key, value))?;
        all.each(store, ORPHANS, progress, &mut |all, key, value| all.take_orphan(key, value))?;
        all.each(store, PREPARED, progress, &mut |all, key, value| all.take_prepared(key, value))?;
        all.each(store, TRANSACTIONS, progress, &mut |all, key, value| all.take_transaction(key, value))?;
        all.each(store, DATA, progress, &mut |all, key, value| all.take_data(key, value))?;
        all.each(store, DESTROYS, progress, &mut |all, key, _| all.take_destroy(key))?;
        all.check_changes(store, progress)?;
        all.check_quotas(store, progress)?;
        all.is_partial |= store.is_partial();
        progress(all.read);
        Ok(())
    }

    fn each(
        &mut self,
        store: &MetaStore,
        table: Table,
        progress: &mut dyn FnMut(u64),
        take: Taker<'_>,
    ) -> Result<(), MdsError> {
        store.scan(table, &[], Bound::Unbounded, &mut |key, value| {
            take(self, key, value);
            self.read += 1;
            if self.read.is_multiple_of(STEP) {
                progress(self.read);
            }
            ControlFlow::Continue(())
        })?;
        Ok(())
    }

    fn found(&mut self, kind: Kind, fid: Fid, text: String) {
        let mdt = if fid.is_zero() { self.mdt_index } else { fid.mdt_index() };
        self.problems.push(Problem { fid, mdt, kind, text, repairable: true });
    }

    /// Reports a record, which repair removes.
    fn bad(&mut self, table: Table, key: &[u8], kind: Kind, fid: Fid, text: String) {
        self.found(kind, fid, text);
        self.bad.push((self.mdt_index, table, key.to_vec()));
    }

    /// Checks the changelog: its head, its users, and each record.
    fn check_changes(&mut self, store: &MetaStore, progress: &mut dyn FnMut(u64)) -> Result<(), MdsError> {
        let head = store.get(META, CHANGES_HEAD_KEY, |value| value.map(ChangesHeadRecord::decode))?;
        let mut known: Option<(u64, u64, u32)> = None;
        let head = match head {
            Some(Err(error)) => {
                let text = format!("the head of the changelog is damaged: {error}");
                self.found(Kind::Changelog, Fid::ZERO, text);
                known = Some((u64::MAX, 0, 0));
                None
            }
            head => head.and_then(Result::ok),
        };
        self.each(store, CHANGE_USERS, progress, &mut |all, key, value| {
            let id = <[u8; 4]>::try_from(key).map(u32::from_be_bytes).unwrap_or_default();
            let text = match ChangeUserRecord::decode(value) {
                Err(error) => format!("changelog user cl{id} has a damaged record: {error}"),
                Ok(_) if head.is_some_and(|head| id == 0 || id > head.last_user) => {
                    format!("changelog user cl{id} was never registered")
                }
                Ok(_) => {
                    known = known.map(|(first, last, user)| (first, last, user.max(id)));
                    return;
                }
            };
            all.bad(CHANGE_USERS, key, Kind::Changelog, Fid::ZERO, text);
        })?;
        self.each(store, CHANGES, progress, &mut |all, key, value| {
            let index = change_index(key).unwrap_or_default();
            let damage = ChangeRecord::decode(value).err();
            if let Some(error) = &damage {
                let text = format!("changelog record {index} is damaged: {error}");
                all.found(Kind::Changelog, Fid::ZERO, text);
            }
            let is_outside = head.is_some_and(|head| !(head.first..head.limit).contains(&index));
            if is_outside {
                let text = format!("changelog record {index} is outside the range of the changelog's head");
                all.found(Kind::Changelog, Fid::ZERO, text);
            }
            match damage.is_some() || is_outside {
                true => all.bad.push((all.mdt_index, CHANGES, key.to_vec())),
                false => known = known.map(|(first, last, user)| (first.min(index), last.max(index), user)),
            }
        })?;
        self.changelogs.extend(known.map(|known| (self.mdt_index, known)));
        Ok(())
    }

    /// Checks the records of quotas.
    fn check_quotas(&mut self, store: &MetaStore, progress: &mut dyn FnMut(u64)) -> Result<(), MdsError> {
        if let Some(Err(error)) = store.get(META, QUOTA_GRACES_KEY, |value| value.map(GraceRecord::decode))? {
            let text = format!("the grace times of quotas are damaged: {error}");
            self.bad(META, QUOTA_GRACES_KEY, Kind::Quota, Fid::ZERO, text);
        }
        self.each(store, QUOTA_LIMITS, progress, &mut |all, key, value| {
            let text = match (split_limit_key(key), LimitRecord::decode(value)) {
                (_, Err(error)) => format!("a limit of a quota is damaged: {error}"),
                (None, _) => "a limit of a quota has an impossible key".to_owned(),
                _ => return,
            };
            all.bad(QUOTA_LIMITS, key, Kind::Quota, Fid::ZERO, text);
        })?;
        self.each(store, OWNER_CHANGES, progress, &mut |all, key, value| {
            let object = split_destroy_key(key).map(|(_, object)| object);
            match (split_destroy_key(key), OwnerRecord::decode(value)) {
                (Some(name), Ok(record)) => drop(all.owner_changes.insert(name, record)),
                _ => {
                    let text = "the record of its new owners is damaged".to_owned();
                    all.found(Kind::Quota, object.unwrap_or(Fid::ZERO), text);
                    all.bad.push((all.mdt_index, OWNER_CHANGES, key.to_vec()));
                }
            }
        })
    }

    /// Reports a record of an inode of another MDT, which no server reads here. It is left out of all comparisons, so
    /// that no repair takes it for the record of that MDT.
    fn is_foreign(&mut self, fid: Fid) -> bool {
        let is_foreign = fid.mdt_index() != self.mdt_index;
        if is_foreign {
            let text =
                format!("a record of it is in the store of MDT{:04x}, which is not its MDT", self.mdt_index);
            let (mdt, kind) = (self.mdt_index, Kind::DamagedRecord);
            self.problems.push(Problem { fid, mdt, kind, text, repairable: false });
        }
        is_foreign
    }

    fn take_inode(&mut self, key: &[u8], value: &[u8]) {
        let Ok(fid) = <[u8; 16]>::try_from(key).map(|key| Fid::from_key(&key)) else {
            let text = "an inode has an impossible key".to_owned();
            return self.bad(INODES, key, Kind::DamagedRecord, Fid::ZERO, text);
        };
        if self.is_foreign(fid) {
            return;
        }
        match InodeRecord::decode(fid, value) {
            Ok(record) => {
                for (kind, text) in faults_of(&record) {
                    self.found(kind, fid, text);
                }
                self.take_objects(fid, &record);
                self.inodes.insert(fid, Inode::new(record));
            }
            Err(error) => {
                self.damaged.insert(fid);
                self.found(Kind::DamagedInode, fid, format!("its record is damaged: {error}"));
            }
        }
    }

    fn take_objects(&mut self, fid: Fid, record: &InodeRecord) {
        let Some(layout) = layout_of(record) else { return };
        for object in layout.objects() {
            self.objects += 1;
            self.objects_used.insert((object.ost_index, object.object));
            match object.is_on_mdt() {
                true => drop(self.data_used.insert(object.object)),
                false => self.check_mark(fid, object),
            }
        }
    }

    fn check_mark(&mut self, fid: Fid, object: &StripeObject) {
        let (ost_index, StripeObject { object, .. }) = (object.ost_index, object);
        let key = (object.mdt_index(), ost_index);
        let (sequence, last_used) = (object.seq, object.oid);
        let used = self.used_ids.entry(key).or_insert(OstMarkRecord { sequence, last_used });
        if used.sequence == sequence {
            used.last_used = used.last_used.max(last_used);
        }
        // The marks of another MDT may not have been read yet.
        if object.mdt_index() != self.mdt_index {
            return;
        }
        // An object of another sequence is none of the OST, which the comparison with OSTs reports.
        let mark = self.marks.get(&key);
        if mark.is_none_or(|mark| mark.sequence == object.seq && object.oid > mark.last_used) {
            let text = format!("object {object} on OST{ost_index:04x} is beyond the mark of those in use");
            self.found(Kind::ObjectMark, fid, text);
        }
    }

    fn take_dirent(&mut self, seed: u64, key: &[u8], value: &[u8]) {
        self.names += 1;
        let Some((parent, hash, name)) = split_dirent_key(key) else {
            let text = "a name has an impossible key".to_owned();
            return self.bad(DIRENTS, key, Kind::DamagedRecord, Fid::ZERO, text);
        };
        if self.is_foreign(parent) {
            return;
        }
        let record = DirentRecord::decode(value);
        if let Err(error) = &record {
            let shown = String::from_utf8_lossy(name);
            let text = format!("the record of name '{shown}' in it is damaged: {error}");
            self.found(Kind::DamagedName, parent, text);
        }
        self.dirents.push(Dirent {
            parent,
            name: name.to_vec(),
            to: record.ok().map(|record| (record.fid, record.kind)),
            hash_is_right: name_hash(seed, name) == hash,
            position: hash,
        });
    }

    fn take_link(&mut self, key: &[u8], value: &[u8]) {
        let Some((fid, parent, name)) = split_link_key(key) else {
            let text = "a link has an impossible key".to_owned();
            return self.bad(LINKS, key, Kind::DamagedRecord, Fid::ZERO, text);
        };
        if self.is_foreign(fid) {
            return;
        }
        match LinkRecord::decode(value) {
            Ok(_) => self.links.push((fid, parent, name.to_vec())),
            Err(error) => {
                let text = format!("a link of it is damaged: {error}");
                self.bad(LINKS, key, Kind::DamagedRecord, fid, text);
            }
        }
    }

    fn take_xattr(&mut self, key: &[u8], value: &[u8]) {
        let Some((fid, name)) = split_xattr_key(key) else {
            let text = "an extended attribute has an impossible key".to_owned();
            return self.bad(XATTRS, key, Kind::DamagedRecord, Fid::ZERO, text);
        };
        if self.is_foreign(fid) {
            return;
        }
        if let Err(error) = XattrRecord::decode(value) {
            let text = format!("an extended attribute of it is damaged: {error}");
            return self.bad(XATTRS, key, Kind::DamagedRecord, fid, text);
        }
        *self.xattrs.entry(fid).or_default() |= match name {
            crate::tables::ACL_DEFAULT => AttrFlags::HAS_DEFAULT_ACL,
            crate::tables::CAPABILITY => AttrFlags::HAS_XATTRS | AttrFlags::HAS_CAPABILITY,
            _ => AttrFlags::HAS_XATTRS,
        };
    }

    fn take_data(&mut self, key: &[u8], value: &[u8]) {
        let Some(object) = key.first_chunk::<16>().map(Fid::from_key) else {
            let text = "data has an impossible key".to_owned();
            return self.bad(DATA, key, Kind::DamagedRecord, Fid::ZERO, text);
        };
        if self.data_used.contains(&object) {
            return;
        }
        let mdt = self.mdt_index;
        match self.data_unused.last_mut().filter(|last| (last.mdt, last.object) == (mdt, object)) {
            Some(last) => last.keys.push(key.to_vec()),
            None => {
                let head = DataRecord::decode(value).ok().filter(|_| key.len() == 16);
                let size = head.map_or(0, |head| head.size);
                self.data_unused.push(UnusedData { mdt, object, size, keys: vec![key.to_vec()] });
            }
        }
    }

    /// Data arrives before its file, whose FID is locked until the file arrives.
    fn take_prepared(&mut self, key: &[u8], value: &[u8]) {
        match decode_op_key(key).and_then(|_| decode_prepared(value)) {
            Some((fids, _)) => self.data_used.extend(fids),
            None => {
                self.is_data_unsure = true;
                let text = "the record of a prepared transaction is damaged".to_owned();
                self.bad(PREPARED, key, Kind::Transaction, Fid::ZERO, text);
            }
        }
    }

    /// Inodes that a committed transaction brings here need no check: the transaction stays prepared until
    /// they have arrived.
    fn take_transaction(&mut self, key: &[u8], value: &[u8]) {
        let decoded = decode_op_key(key).and_then(|_| decode_transaction(value));
        let Some(transaction) = decoded else {
            let text = "the record of a distributed transaction is damaged".to_owned();
            return self.bad(TRANSACTIONS, key, Kind::Transaction, Fid::ZERO, text);
        };
        for update in transaction.parts.iter().flat_map(|part| &part.updates) {
            if let Update::InodeIn { fid, record, .. } | Update::NewInode { fid, record, .. } = update
                && let Ok(record) = InodeRecord::decode(*fid, &record.0)
                && let Some(layout) = layout_of(&record)
            {
                let names = layout.objects().map(|object| (object.ost_index, object.object));
                self.objects_used.extend(names);
            }
        }
    }

    fn take_orphan(&mut self, key: &[u8], value: &[u8]) {
        let fid = <[u8; 16]>::try_from(key).map(|key| Fid::from_key(&key)).unwrap_or(Fid::ZERO);
        match OrphanKind::decode(value) {
            Some(_) if self.is_foreign(fid) => {}
            Some(kind) => drop(self.orphans.insert(fid, kind)),
            None => {
                let text = "its entry on the list of inodes without names is damaged".to_owned();
                self.bad(ORPHANS, key, Kind::DamagedRecord, fid, text);
            }
        }
    }

    fn take_destroy(&mut self, key: &[u8]) {
        self.destroys += 1;
        match split_destroy_key(key) {
            Some(object) => drop(self.objects_used.insert(object)),
            None => {
                let text = "an entry of the log of objects to destroy is damaged".to_owned();
                self.bad(DESTROYS, key, Kind::DamagedRecord, Fid::ZERO, text);
            }
        }
    }

    fn take_mark(&mut self, key: &[u8], value: &[u8]) {
        let index = <[u8; 2]>::try_from(key).map(u16::from_be_bytes);
        match (index, OstMarkRecord::decode(value)) {
            (Ok(index), Ok(mark)) => drop(self.marks.insert((self.mdt_index, index), mark)),
            _ => {
                let text = "a mark of object ids in use is damaged".to_owned();
                self.bad(OST_MARKS, key, Kind::ObjectMark, Fid::ZERO, text);
            }
        }
    }

    /// Returns true if the MDT of an inode was read, so that an inode not found does not exist.
    pub fn covers(&self, fid: &Fid) -> bool {
        self.covered.contains(&fid.mdt_index())
    }

    /// Returns true if only MDTs that were not read know all names of an inode.
    pub fn has_names_elsewhere(&self, inode: &Inode) -> bool {
        let extra = inode.extra_links.iter().map(|(parent, _)| parent);
        extra.chain([&inode.record.parent]).any(|parent| !parent.is_zero() && !self.covers_names_of(parent))
    }

    /// Returns true if all MDTs that may have names of a directory were read.
    fn covers_names_of(&self, directory: &Fid) -> bool {
        let record = self.inodes.get(directory).map(|inode| &inode.record);
        let layout = record.and_then(|record| shards_of(record).ok().flatten());
        self.covers(directory)
            && layout.is_none_or(|layout| layout.shards.iter().all(|shard| self.covers(shard)))
    }

    /// Connects inodes with their names, which requires that everything was read. May be repeated after changes.
    pub fn connect(&mut self) {
        for inode in self.inodes.values_mut() {
            (inode.entries, inode.subdirs) = (0, 0);
            inode.names.clear();
            inode.extra_links.clear();
        }
        for name in &self.dirents {
            let mut parent = name.parent;
            if let Some(directory) = self.inodes.get_mut(&name.parent) {
                directory.entries += 1;
                let is_dir = matches!(name.to, Some((_, FileKind::Directory)));
                directory.subdirs += u32::from(is_dir);
                parent = named_in(&directory.record);
            }
            if let Some(inode) = name.to.and_then(|(fid, _)| self.inodes.get_mut(&fid)) {
                inode.names.push((parent, name.name.clone()));
            }
        }
        for (fid, parent, name) in &self.links {
            if let Some(inode) = self.inodes.get_mut(fid) {
                inode.extra_links.push((*parent, name.clone()));
            }
        }
    }
}
