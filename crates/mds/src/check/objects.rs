//! What an MDT says of objects, to be compared with what OSTs have.

use crate::config::MdsConfig;
use crate::error::MdsError;
use crate::mds::store_path;
use crate::tables::{DESTROYS, INODES, OST_MARKS, split_destroy_key};
use nacre_layout::user;
use nacre_ondisk::{InodeRecord, OstMarkRecord};
use nacre_store::MetaStore;
use nacre_types::{AttrFlags, Fid, FileKind};
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
    /// Objects that a second file names too: the object and that file.
    pub shared: Vec<(ObjectName, Fid)>,
    /// Objects that wait to be destroyed.
    pub destroying: HashSet<ObjectName>,
    /// By index of OST and MDT: sequence of the MDT's objects, and the largest id that it ever gave to a file. What lies above is
    /// destroyed when the MDT starts.
    pub marks: HashMap<(u16, u16), (u64, u32)>,
}

/// Reads the references of the MDT in `dir`, which must not be running. Damaged records are left out: [`super::check_dir`] tells
/// of them.
///
/// # Errors
/// If the store cannot be opened or read.
pub fn object_references(dir: &Path, config: &MdsConfig) -> Result<ObjectReferences, MdsError> {
    let store = MetaStore::open(&store_path(dir), config.store.clone())?;
    let mut found = ObjectReferences::default();
    store.scan(INODES, &[], Bound::Unbounded, &mut |key, value| {
        if let Ok(key) = <[u8; 16]>::try_from(key) {
            found.take_inode(Fid::from_key(&key), value);
        }
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
    store.close()?;
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
        self.shared.extend(other.shared);
        self.destroying.extend(other.destroying);
        self.marks.extend(other.marks);
    }

    fn take_inode(&mut self, fid: Fid, value: &[u8]) {
        let Ok(record) = InodeRecord::decode(fid, value) else { return };
        let has_objects = record.attr.flags.contains(AttrFlags::HAS_OBJECTS);
        if record.attr.kind() != FileKind::Regular || !has_objects {
            return;
        }
        let Ok(layout) = user::decode_layout(&record.body) else { return };
        for object in layout.objects() {
            let name = (object.ost_index, object.object);
            if let Some(first) = self.used.insert(name, fid) {
                self.shared.push((name, first));
            }
        }
    }
}
