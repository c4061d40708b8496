//! An MDT's references to objects, for the comparison with the objects on OSTs.

use crate::config::MdsConfig;
use crate::error::MdsError;
use crate::records::store_path;
use crate::tables::{DESTROYS, INODES, OST_MARKS, OWNER_CHANGES, PREPARED, TRANSACTIONS, split_destroy_key};
use crate::transactions::state::{decode_prepared, decode_transaction};
use crate::tx::Tx;
use nacre_layout::{Layout, StripeObject, user};
use nacre_ondisk::{InodeRecord, OstMarkRecord};
use nacre_store::MetaStore;
use nacre_types::{AttrFlags, Fid, FileKind, ObjectPlace, Owners};
use nacre_wire::peer::{Transaction, Update};
use std::collections::{HashMap, HashSet};
use std::ops::{Bound, ControlFlow};
use std::path::Path;

/// An object: index of its OST, and its FID.
pub type ObjectName = (u16, Fid);

/// All objects that MDTs refer to, by kind of reference.
#[derive(Clone, Default, Debug)]
pub struct ObjectReferences {
    /// File of each object that a layout names, including files without names.
    pub used: HashMap<ObjectName, Fid>,
    /// Places in their files of objects that layouts name.
    pub places: HashMap<ObjectName, ObjectPlace>,
    /// Owners of each file with objects.
    pub owners: HashMap<Fid, Owners>,
    /// Objects whose OSTs may not know their owners yet.
    pub owned_later: HashSet<ObjectName>,
    /// Objects to which data was written according to the layout: OSTs must have them.
    pub written: HashSet<ObjectName>,
    /// Objects that a second file names too, with that file.
    pub shared: Vec<(ObjectName, Fid)>,
    /// Objects that wait to be destroyed.
    pub destroying: HashSet<ObjectName>,
    /// Objects of files that are to arrive from another MDT, which no inode may name yet: data that arrived
    /// for a prepared transaction, and objects of files that a committed transaction brings. Recovery of the
    /// MDTs finishes both.
    pub awaited: HashSet<ObjectName>,
    /// True if a record that may name objects cannot be decoded, so that an apparent orphan may belong to a
    /// file.
    pub is_partial: bool,
    /// By index of OST and MDT: sequence of the MDT's objects, and the largest id that it ever allocated to a
    /// file. The MDT destroys objects with larger ids when it starts.
    pub marks: HashMap<(u16, u16), (u64, u32)>,
}

/// Reads the references of the MDT in `dir`, which must not be running. Damaged records only make the result
/// partial; [`super::check_dir`] reports them.
///
/// # Errors
/// If the store cannot be opened or read.
pub fn object_references(dir: &Path, config: &MdsConfig) -> Result<ObjectReferences, MdsError> {
    let store = MetaStore::open(&store_path(dir), super::looking(config))?;
    let mut found = ObjectReferences::default();
    store.scan(INODES, &[], Bound::Unbounded, &mut |key, value| {
        let taken =
            <[u8; 16]>::try_from(key).ok().and_then(|key| found.take_inode(Fid::from_key(&key), value));
        found.is_partial |= taken.is_none();
        ControlFlow::Continue(())
    })?;
    store.scan(PREPARED, &[], Bound::Unbounded, &mut |_, value| {
        match decode_prepared(value) {
            Some((fids, _)) => {
                found.awaited.extend(fids.into_iter().map(|fid| name_of(&StripeObject::on_mdt(fid))))
            }
            None => found.is_partial = true,
        }
        ControlFlow::Continue(())
    })?;
    store.scan(TRANSACTIONS, &[], Bound::Unbounded, &mut |_, value| {
        let taken = decode_transaction(value).and_then(|transaction| found.take_transaction(&transaction));
        found.is_partial |= taken.is_none();
        ControlFlow::Continue(())
    })?;
    store.scan(DESTROYS, &[], Bound::Unbounded, &mut |key, _| {
        found.destroying.extend(split_destroy_key(key));
        ControlFlow::Continue(())
    })?;
    store.scan(OWNER_CHANGES, &[], Bound::Unbounded, &mut |key, _| {
        found.owned_later.extend(split_destroy_key(key));
        ControlFlow::Continue(())
    })?;
    store.scan(OST_MARKS, &[], Bound::Unbounded, &mut |key, value| {
        let index = <[u8; 2]>::try_from(key).map(u16::from_be_bytes);
        if let (Ok(index), Ok(mark)) = (index, OstMarkRecord::decode(value)) {
            found.marks.insert((index, config.index), (mark.sequence, mark.last_used));
        }
        ControlFlow::Continue(())
    })?;
    found.is_partial |= store.is_partial();
    Ok(found)
}

impl ObjectReferences {
    /// Adds the references of another MDT of the same file system.
    pub fn merge(&mut self, other: ObjectReferences) {
        for (name, file) in other.used {
            if let Some(first) = self.used.insert(name, file) {
                self.shared.push((name, first));
            }
        }
        self.places.extend(other.places);
        self.owners.extend(other.owners);
        self.owned_later.extend(other.owned_later);
        self.written.extend(other.written);
        self.shared.extend(other.shared);
        self.destroying.extend(other.destroying);
        self.awaited.extend(other.awaited);
        self.is_partial |= other.is_partial;
        self.marks.extend(other.marks);
    }

    /// Returns true if an object belongs to a file, to a file that is to arrive, or waits to be destroyed.
    pub fn knows(&self, name: &ObjectName) -> bool {
        self.used.contains_key(name) || self.destroying.contains(name) || self.awaited.contains(name)
    }

    /// Adds the objects of an inode; `None` if the record cannot be decoded.
    fn take_inode(&mut self, fid: Fid, value: &[u8]) -> Option<()> {
        let layout = layout_in(fid, value)?;
        if let Some((record, _)) = &layout {
            self.owners.insert(fid, Owners::from(&record.attr));
        }
        for stripe in layout.iter().flat_map(|(_, layout)| layout.objects()) {
            let name = name_of(stripe);
            let place = layout.as_ref().and_then(|(_, layout)| layout.place_of(fid, &stripe.object));
            self.places.extend(place.map(|place| (name, place)));
            if let Some(first) = self.used.insert(name, fid) {
                self.shared.push((name, first));
            }
            if stripe.written {
                self.written.insert(name);
            }
        }
        Some(())
    }

    /// Adds the objects of inodes in a transaction; `None` if one of its records cannot be decoded.
    fn take_transaction(&mut self, transaction: &Transaction) -> Option<()> {
        for update in transaction.parts.iter().flat_map(|part| &part.updates) {
            if let Update::InodeIn { fid, record, .. } | Update::NewInode { fid, record, .. } = update {
                let layout = layout_in(*fid, &record.0)?;
                self.awaited.extend(layout.iter().flat_map(|(_, layout)| layout.objects()).map(name_of));
            }
        }
        Some(())
    }
}

/// A replacement of an object in the layout of a file.
#[derive(Clone, Copy, Debug)]
pub struct Relayout {
    /// File with the object.
    pub file: Fid,
    /// The object, by its OST.
    pub old: ObjectName,
    /// Object that takes its place.
    pub new: StripeObject,
}

/// Replaces objects in layouts of files of the MDT in `dir`, which must not be running; raises its marks of object ids
/// in use.
///
/// # Durability
/// Durable on return.
///
/// # Errors
/// If the store cannot be opened or changed.
pub fn replace_objects(dir: &Path, config: &MdsConfig, changes: &[Relayout]) -> Result<(), MdsError> {
    let store = MetaStore::open(&store_path(dir), super::changing(config))?;
    for Relayout { file, old, new } in changes {
        let record = store.get(INODES, &file.to_key(), |value| InodeRecord::decode(*file, value?).ok())?;
        let Some(mut record) = record else { continue };
        let Ok(mut layout) = user::decode_layout(&record.body) else { continue };
        let objects = layout.components.iter_mut().flat_map(|component| &mut component.objects);
        objects.filter(|it| (it.ost_index, it.object) == *old).for_each(|it| *it = *new);
        layout.generation = layout.generation.wrapping_add(1);
        record.body = user::encode_layout(file, &layout);
        let mut tx = Tx::new(store.last_transno().0 + 1);
        tx.put_inode(record);
        let key = new.ost_index.to_be_bytes();
        let mark = store.get(OST_MARKS, &key, |value| value.and_then(|it| OstMarkRecord::decode(it).ok()))?;
        let (sequence, last_used) = (new.object.seq, new.object.oid);
        if mark.is_none_or(|mark| mark.sequence == sequence && mark.last_used < last_used) {
            tx.batch().put(OST_MARKS, &key, &OstMarkRecord { sequence, last_used }.encode());
        }
        store.commit(tx.batch())?;
    }
    store.sync(store.last_transno())?;
    Ok(store.close()?)
}

fn name_of(object: &StripeObject) -> ObjectName {
    (object.ost_index, object.object)
}

/// Returns the record of a file with objects, and its layout; the outer `None` if they cannot be decoded.
#[expect(clippy::option_option, reason = "a file without objects is no failure")]
fn layout_in(fid: Fid, value: &[u8]) -> Option<Option<(InodeRecord, Layout)>> {
    let record = InodeRecord::decode(fid, value).ok()?;
    let has_objects = record.attr.flags.contains(AttrFlags::HAS_OBJECTS);
    if record.attr.kind() != FileKind::Regular || !has_objects {
        return Some(None);
    }
    let layout = user::decode_layout(&record.body).ok()?;
    Some(Some((record, layout)))
}
