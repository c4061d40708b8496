//! Inventory of a metadata store in memory.

use super::Problem;
use crate::error::MdsError;
use crate::shards::{named_in, shards_of};
use crate::tables::{
    CHANGE_USERS, CHANGES, CHANGES_HEAD_KEY, DATA, DESTROYS, DIRENTS, INODES, LINKS, META, META_KEY, ORPHANS,
    OST_MARKS, OWNER_CHANGES, OrphanKind, PREPARED, QUOTA_GRACES_KEY, QUOTA_LIMITS, TRANSACTIONS, XATTRS,
    change_index, decode_op_key, split_destroy_key, split_dirent_key, split_link_key, split_xattr_key,
};
use crate::transactions::state::{decode_prepared, decode_record};
use nacre_layout::DirDefault;
use nacre_layout::user;
use nacre_ondisk::quota::split_limit_key;
use nacre_ondisk::{
    ChangeRecord, ChangeUserRecord, ChangesHeadRecord, DirentRecord, GraceRecord, InodeRecord, LimitRecord,
    LinkRecord, MdtRecord, OstMarkRecord, OwnerRecord, XattrRecord,
};
use nacre_store::{MetaStore, Table};
use nacre_types::acl::Acl;
use nacre_types::name::name_hash;
use nacre_types::{AttrFlags, Fid, FileKind, SizeSource};
use nacre_wire::peer::Transaction;
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
    pub fid: Fid,
    pub kind: FileKind,
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

/// All records of the stores read.
#[derive(Default)]
pub struct Inventory {
    pub inodes: HashMap<Fid, Inode>,
    pub dirents: Vec<Dirent>,
    pub names: u64,
    pub objects: u64,
    pub destroys: u64,
    pub orphans: HashMap<Fid, OrphanKind>,
    /// Records of inodes that do not exist, with their kinds.
    pub leftovers: Vec<(Fid, &'static str)>,
    /// Largest used id by OST index, where it is beyond the mark.
    pub marks: HashMap<u16, OstMarkRecord>,
    pub problems: Vec<Problem>,
    /// Objects on this MDT that layouts name, or whose files prepared transactions may bring here.
    pub data_used: HashSet<Fid>,
    /// Keys of the records of objects on this MDT that no layout names.
    pub data_unused: Vec<Vec<u8>>,
    /// True if a record that may name objects on this MDT cannot be decoded.
    data_unsure: bool,
    /// Indexes of the MDTs that were read.
    covered: HashSet<u16>,
    /// Index of the MDT that was read last.
    mdt_index: u16,
    read: u64,
}

impl Inventory {
    /// Reads the store of one MDT.
    pub fn read(
        store: &MetaStore,
        mdt_index: u16,
        progress: &mut dyn FnMut(u64),
    ) -> Result<Inventory, MdsError> {
        let mut all = Inventory::default();
        all.add(store, mdt_index, progress)?;
        all.connect();
        Ok(all)
    }

    /// Reads the store of another MDT of the same file system.
    pub fn add(
        &mut self,
        store: &MetaStore,
        mdt_index: u16,
        progress: &mut dyn FnMut(u64),
    ) -> Result<(), MdsError> {
        let all = self;
        all.covered.insert(mdt_index);
        all.mdt_index = mdt_index;
        // Marks belong to one MDT each.
        all.marks.clear();
        all.data_unsure = false;
        let seed = store.get(META, META_KEY, |value| value.and_then(|v| MdtRecord::decode(v).ok()))?;
        let seed = seed.map_or(0, |record| record.hash_seed);
        all.each(store, OST_MARKS, progress, &mut |all, key, value| all.take_mark(key, value))?;
        all.each(store, INODES, progress, &mut |all, key, value| all.take_inode(key, value))?;
        all.each(store, DIRENTS, progress, &mut |all, key, value| all.take_dirent(seed, key, value))?;
        all.each(store, LINKS, progress, &mut |all, key, value| all.take_link(key, value))?;
        all.each(store, XATTRS, progress, &mut |all, key, value| all.take_xattr(key, value))?;
        all.each(store, ORPHANS, progress, &mut |all, key, value| all.take_orphan(key, value))?;
        all.each(store, PREPARED, progress, &mut |all, key, value| all.take_prepared(key, value))?;
        all.each(store, TRANSACTIONS, progress, &mut |all, key, value| all.take_transaction(key, value))?;
        all.each(store, DATA, progress, &mut |all, key, _| all.take_data(key))?;
        all.each(store, DESTROYS, progress, &mut |all, key, _| all.take_destroy(key))?;
        all.check_changes(store, progress)?;
        all.check_quotas(store, progress)?;
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

    fn damaged(&mut self, fid: Fid, text: String) {
        self.problems.push(Problem { fid, text, repairable: false });
    }

    /// Checks the changelog: its head, its users, and each record.
    fn check_changes(&mut self, store: &MetaStore, progress: &mut dyn FnMut(u64)) -> Result<(), MdsError> {
        let head = store.get(META, CHANGES_HEAD_KEY, |value| value.map(ChangesHeadRecord::decode))?;
        let head = match head {
            Some(Err(error)) => {
                self.damaged(Fid::ZERO, format!("the head of the changelog is damaged: {error}"));
                None
            }
            head => head.and_then(Result::ok),
        };
        self.each(store, CHANGE_USERS, progress, &mut |all, key, value| {
            let id = <[u8; 4]>::try_from(key).map(u32::from_be_bytes).unwrap_or_default();
            match ChangeUserRecord::decode(value) {
                Err(error) => {
                    all.damaged(Fid::ZERO, format!("changelog user cl{id} has a damaged record: {error}"));
                }
                Ok(_) if head.is_some_and(|head| id == 0 || id > head.last_user) => {
                    all.damaged(Fid::ZERO, format!("changelog user cl{id} was never registered"));
                }
                Ok(_) => {}
            }
        })?;
        self.each(store, CHANGES, progress, &mut |all, key, value| {
            let index = change_index(key).unwrap_or_default();
            if let Err(error) = ChangeRecord::decode(value) {
                all.damaged(Fid::ZERO, format!("changelog record {index} is damaged: {error}"));
            }
            if head.is_some_and(|head| !(head.first..head.limit).contains(&index)) {
                let text = format!("changelog record {index} is outside the range of the changelog's head");
                all.damaged(Fid::ZERO, text);
            }
        })
    }

    /// Checks the records of quotas.
    fn check_quotas(&mut self, store: &MetaStore, progress: &mut dyn FnMut(u64)) -> Result<(), MdsError> {
        if let Some(Err(error)) = store.get(META, QUOTA_GRACES_KEY, |value| value.map(GraceRecord::decode))? {
            self.damaged(Fid::ZERO, format!("the grace times of quotas are damaged: {error}"));
        }
        self.each(store, QUOTA_LIMITS, progress, &mut |all, key, value| {
            if let (_, Err(error)) = (split_limit_key(key), LimitRecord::decode(value)) {
                all.damaged(Fid::ZERO, format!("a limit of a quota is damaged: {error}"));
            } else if split_limit_key(key).is_none() {
                all.damaged(Fid::ZERO, "a limit of a quota has an impossible key".to_owned());
            }
        })?;
        self.each(store, OWNER_CHANGES, progress, &mut |all, key, value| {
            let object = split_destroy_key(key).map(|(_, object)| object);
            match (object, OwnerRecord::decode(value)) {
                (Some(_), Ok(_)) => {}
                (object, _) => {
                    let text = "the record of its new owners is damaged".to_owned();
                    all.damaged(object.unwrap_or(Fid::ZERO), text);
                }
            }
        })
    }

    fn take_inode(&mut self, key: &[u8], value: &[u8]) {
        let Ok(key) = <[u8; 16]>::try_from(key) else {
            self.data_unsure = true;
            return self.damaged(Fid::ZERO, "an inode has an impossible key".to_owned());
        };
        let fid = Fid::from_key(&key);
        match InodeRecord::decode(fid, value) {
            Ok(record) => {
                self.check_contents(&fid, &record);
                let inode =
                    Inode { record, names: Vec::new(), extra_links: Vec::new(), entries: 0, subdirs: 0 };
                self.inodes.insert(fid, inode);
            }
            Err(error) => {
                self.data_unsure = true;
                self.damaged(fid, format!("its record is damaged: {error}"));
            }
        }
    }

    fn check_contents(&mut self, fid: &Fid, record: &InodeRecord) {
        if !record.acl.is_empty() && !matches!(Acl::parse_xattr(&record.acl), Ok(Some(_))) {
            self.damaged(*fid, "its access ACL is damaged".to_owned());
        }
        let flags = record.attr.flags;
        if record.attr.kind() == FileKind::Symlink {
            return;
        }
        if !record.default_lmv.is_empty() && DirDefault::decode(&record.default_lmv).is_err() {
            self.damaged(*fid, "its default for new directories is damaged".to_owned());
        }
        if record.body.is_empty() == flags.contains(AttrFlags::HAS_LAYOUT) {
            return self.damaged(*fid, "its flags and its layout contradict each other".to_owned());
        }
        if !flags.contains(AttrFlags::HAS_OBJECTS) {
            let foreign = match record.attr.is_dir() {
                true => user::decode_foreign_directory(&record.body).is_ok(),
                false => record.attr.is_regular() && user::decode_foreign(&record.body).is_ok(),
            };
            if !record.body.is_empty() && !foreign && user::decode_request(&record.body).is_err() {
                self.damaged(*fid, "its striping request is damaged".to_owned());
            }
            // A file without a layout may have been created for a write that never happened.
            let may_be_unsure = record.attr.is_regular() && record.body.is_empty();
            if record.attr.size_source == SizeSource::Objects && !may_be_unsure {
                self.damaged(*fid, "its size is said to be in objects, but it has none".to_owned());
            }
            return;
        }
        match user::decode_layout(&record.body) {
            Ok(layout) => {
                for object in layout.objects() {
                    self.objects += 1;
                    if object.is_on_mdt() {
                        self.data_used.insert(object.object);
                        continue;
                    }
                    self.check_mark(fid, object.ost_index, &object.object);
                }
            }
            Err(error) => {
                self.data_unsure = true;
                self.damaged(*fid, format!("its layout is damaged: {error}"));
            }
        }
    }

    fn check_mark(&mut self, fid: &Fid, ost_index: u16, object: &Fid) {
        // A file that has moved here has objects that its first MDT allocated.
        if object.mdt_index() != self.mdt_index {
            return;
        }
        let mark = self.marks.get(&ost_index);
        let used = mark.is_some_and(|mark| mark.sequence == object.seq && object.oid <= mark.last_used);
        if used {
            return;
        }
        let text = format!("object {object} on OST{ost_index:04x} is beyond the mark of those in use");
        self.problems.push(Problem { fid: *fid, text, repairable: true });
    }

    fn take_dirent(&mut self, seed: u64, key: &[u8], value: &[u8]) {
        self.names += 1;
        let Some((parent, hash, name)) = split_dirent_key(key) else {
            return self.damaged(Fid::ZERO, "a name has an impossible key".to_owned());
        };
        match DirentRecord::decode(value) {
            Ok(record) => {
                self.dirents.push(Dirent {
                    parent,
                    name: name.to_vec(),
                    fid: record.fid,
                    kind: record.kind,
                    hash_is_right: name_hash(seed, name) == hash,
                    position: hash,
                });
            }
            Err(error) => {
                let name = String::from_utf8_lossy(name).into_owned();
                self.damaged(parent, format!("the record of name '{name}' in it is damaged: {error}"));
            }
        }
    }

    fn take_link(&mut self, key: &[u8], value: &[u8]) {
        let Some((fid, parent, name)) = split_link_key(key) else {
            return self.damaged(Fid::ZERO, "a link has an impossible key".to_owned());
        };
        if let Err(error) = LinkRecord::decode(value) {
            self.damaged(fid, format!("a link of it is damaged: {error}"));
        }
        match self.inodes.get_mut(&fid) {
            Some(inode) => inode.extra_links.push((parent, name.to_vec())),
            None => self.leftovers.push((fid, "a link")),
        }
    }

    fn take_xattr(&mut self, key: &[u8], value: &[u8]) {
        let Some((fid, _)) = split_xattr_key(key) else {
            return self.damaged(Fid::ZERO, "an extended attribute has an impossible key".to_owned());
        };
        if let Err(error) = XattrRecord::decode(value) {
            self.damaged(fid, format!("an extended attribute of it is damaged: {error}"));
        }
        if !self.inodes.contains_key(&fid) {
            self.leftovers.push((fid, "an extended attribute"));
        }
    }

    fn take_data(&mut self, key: &[u8]) {
        let Some(object) = key.first_chunk::<16>().map(Fid::from_key) else {
            return self.damaged(Fid::ZERO, "data has an impossible key".to_owned());
        };
        if !self.data_used.contains(&object) {
            if key.len() == 16 {
                let text = match self.data_unsure {
                    true => "is an object with data that no record names which can be read: it stays",
                    false => "is an object with data that belongs to no file",
                };
                let repairable = !self.data_unsure;
                self.problems.push(Problem { fid: object, text: text.to_owned(), repairable });
            }
            if !self.data_unsure {
                self.data_unused.push(key.to_vec());
            }
        }
    }

    /// Data arrives before its file, whose FID is locked until the file arrives.
    fn take_prepared(&mut self, key: &[u8], value: &[u8]) {
        match decode_op_key(key).and_then(|_| decode_prepared(value)) {
            Some((fids, _)) => self.data_used.extend(fids),
            None => {
                self.data_unsure = true;
                self.damaged(Fid::ZERO, "the record of a prepared transaction is damaged".to_owned());
            }
        }
    }

    /// Inodes that a committed transaction brings here need no check: the transaction stays prepared until
    /// they have arrived.
    fn take_transaction(&mut self, key: &[u8], value: &[u8]) {
        if decode_op_key(key).and_then(|_| decode_record::<Transaction>(value)).is_none() {
            self.damaged(Fid::ZERO, "the record of a distributed transaction is damaged".to_owned());
        }
    }

    fn take_orphan(&mut self, key: &[u8], value: &[u8]) {
        let fid = <[u8; 16]>::try_from(key).map(|key| Fid::from_key(&key)).unwrap_or(Fid::ZERO);
        match OrphanKind::decode(value) {
            Some(kind) => {
                self.orphans.insert(fid, kind);
            }
            None => self.damaged(fid, "its entry on the list of inodes without names is damaged".to_owned()),
        }
    }

    fn take_destroy(&mut self, key: &[u8]) {
        self.destroys += 1;
        if split_destroy_key(key).is_none() {
            self.damaged(Fid::ZERO, "an entry of the log of objects to destroy is damaged".to_owned());
        }
    }

    fn take_mark(&mut self, key: &[u8], value: &[u8]) {
        let index = <[u8; 2]>::try_from(key).map(u16::from_be_bytes);
        match (index, OstMarkRecord::decode(value)) {
            (Ok(index), Ok(mark)) => {
                self.marks.insert(index, mark);
            }
            _ => self.damaged(Fid::ZERO, "a mark of object ids in use is damaged".to_owned()),
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

    /// Connects inodes with their names, which requires that everything was read.
    pub fn connect(&mut self) {
        for name in &self.dirents {
            let mut parent = name.parent;
            if let Some(directory) = self.inodes.get_mut(&name.parent) {
                directory.entries += 1;
                directory.subdirs += u32::from(name.kind == FileKind::Directory);
                parent = named_in(&directory.record);
            }
            if let Some(inode) = self.inodes.get_mut(&name.fid) {
                inode.names.push((parent, name.name.clone()));
            }
        }
    }
}
