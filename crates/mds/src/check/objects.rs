//! What an MDT says of objects, to be compared with what OSTs have.

use crate::config::MdsConfig;
use crate::error::MdsError;
use crate::operations::state::{decode_prepared, decode_record};
use crate::records::store_path;
use crate::tables::{DESTROYS, INODES, OPERATIONS, OST_MARKS, PREPARED, split_destroy_key};
use nacre_layout::{StripeObject, user};
use nacre_ondisk::{InodeRecord, OstMarkRecord};
use nacre_store::MetaStore;
use nacre_types::{AttrFlags, Fid, FileKind};
use nacre_wire::peer::{Operation, Update};
use std::collections::{HashMap, HashSet};
use std::ops::{Bound, ControlFlow};
use std::path::Path;

/// An object: index of its OST, and its FID.
pub type ObjectName = (u16, Fid);

/// Every object that an MDT knows, and what for.
#[derive(Clone, Default, Debug)]
pub struct ObjectReferences {
    /// The file of each object that a layout names, files without names included.
    pub used: HashMap<ObjectName, Fid>,
    /// Those among them that data was written to, as the layout says: they have to be there.
    pub written: HashSet<ObjectName>,
    /// Objects that a second file names too: the object and that file.
    pub shared: Vec<(ObjectName, Fid)>,
    /// Objects that wait to be destroyed.
    pub destroying: HashSet<ObjectName>,
    /// Objects of files that are to come from another MDT, which no inode may name yet: data that has come here for an operation that is
    /// prepared, and what a committed one says of the files that it brings. The MDTs that start finish both.
    pub awaited: HashSet<ObjectName>,
    /// A record that may name objects cannot be read, so what seems to belong to no file may belong to one.
    pub is_partial: bool,
    /// By index of OST and MDT: sequence of the MDT's objects, and the largest id that it ever gave to a file. What lies above is
    /// destroyed when the MDT starts.
    pub marks: HashMap<(u16, u16), (u64, u32)>,
}

/// Reads the references of the MDT in `dir`, which must not be running. Of damaged records [`super::check_dir`] tells; here they only
/// make what is found partial.
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
    store.scan(OPERATIONS, &[], Bound::Unbounded, &mut |_, value| {
        let taken = decode_record::<Operation>(value).and_then(|operation| found.take_operation(&operation));
        found.is_partial |= taken.is_none();
        ControlFlow::Continue(())
    })?;
    store.scan(DESTROYS, &[], Bound::Unbounded, &mut |key, _| {
        found.destroying.extend(split_destroy_key(key));
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
    /// Adds what another MDT of the same file system says.
    pub fn merge(&mut self, other: ObjectReferences) {
        for (name, file) in other.used {
            if let Some(first) = self.used.insert(name, file) {
                self.shared.push((name, first));
            }
        }
        self.written.extend(other.written);
        self.shared.extend(other.shared);
        self.destroying.extend(other.destroying);
        self.awaited.extend(other.awaited);
        self.is_partial |= other.is_partial;
        self.marks.extend(other.marks);
    }

    /// Is an object one of a file, of one that is to come, or one that waits to be destroyed?
    pub fn knows(&self, name: &ObjectName) -> bool {
        self.used.contains_key(name) || self.destroying.contains(name) || self.awaited.contains(name)
    }

    /// `None` if the record cannot be read.
    fn take_inode(&mut self, fid: Fid, value: &[u8]) -> Option<()> {
        for stripe in objects_of(fid, value)? {
            let name = name_of(&stripe);
            if let Some(first) = self.used.insert(name, fid) {
                self.shared.push((name, first));
            }
            if stripe.written {
                self.written.insert(name);
            }
        }
        Some(())
    }

    /// `None` if a record in it cannot be read.
    fn take_operation(&mut self, operation: &Operation) -> Option<()> {
        for update in operation.parts.iter().flat_map(|part| &part.updates) {
            if let Update::InodeIn { fid, record, .. } | Update::NewInode { fid, record, .. } = update {
                self.awaited.extend(objects_of(*fid, &record.0)?.iter().map(name_of));
            }
        }
        Some(())
    }
}

fn name_of(object: &StripeObject) -> ObjectName {
    (object.ost_index, object.object)
}

/// The objects that the record of an inode names; `None` if it cannot be read.
fn objects_of(fid: Fid, value: &[u8]) -> Option<Vec<StripeObject>> {
    let record = InodeRecord::decode(fid, value).ok()?;
    let has_objects = record.attr.flags.contains(AttrFlags::HAS_OBJECTS);
    if record.attr.kind() != FileKind::Regular || !has_objects {
        return Some(Vec::new());
    }
    let layout = user::decode_layout(&record.body).ok()?;
    Some(layout.objects().copied().collect())
}
