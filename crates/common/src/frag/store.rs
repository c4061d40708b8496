//! Objects and free space of a store that has a device for itself: its map has all locations.

use std::path::Path;

use nacre_store::object::{BlockStore, BlockStoreOptions, ObjectStore};
use nacre_types::Fid;

use super::{Error, Extents, FileFigures, FreeFigures, Report, Subject, Unit};
use crate::extents::Extent;

/// An open store.
struct Objects<'a>(&'a dyn ObjectStore);

fn unknown() -> Error {
    Error::Usage("this store leaves it to a file system where its objects lie".to_owned())
}

impl Extents for Objects<'_> {
    fn files(&self, visit: &mut dyn FnMut(&str, &[Extent])) -> Result<(), Error> {
        let known = self.0.abilities().extents.ok_or_else(unknown)?;
        let mut objects: Vec<Fid> = Vec::new();
        self.0.for_each_object(&mut |object| objects.push(object))?;
        for object in objects {
            let found = known.extents(object)?.ok_or_else(unknown)?;
            let extent = |extent: &nacre_store::object::ObjectExtent| Extent {
                logical: extent.logical,
                physical: extent.physical,
                length: extent.len,
            };
            visit(&object.to_string(), &found.iter().map(extent).collect::<Vec<_>>());
        }
        Ok(())
    }

    fn free(&self) -> Result<Vec<Extent>, Error> {
        let pieces = self.0.abilities().device_store.ok_or_else(unknown)?.free_pieces();
        let extent = |piece: &std::ops::Range<u64>| Extent {
            logical: piece.start,
            physical: piece.start,
            length: piece.end - piece.start,
        };
        Ok(pieces.iter().map(extent).collect())
    }
}

/// Measures an open store that has a device for itself.
///
/// # Errors
///
/// If the store leaves allocation to a file system, or its index cannot be read.
pub fn shape_of(store: &dyn ObjectStore, unit: Unit) -> Result<(FileFigures, FreeFigures), Error> {
    let objects = Objects(store);
    let mut files = FileFigures::default();
    objects.files(&mut |name, extents| files.add(name, extents, unit))?;
    Ok((files, FreeFigures::of(&objects.free()?, unit)))
}

/// Returns the report of an open store that has a device for itself, in the directory `path`.
///
/// # Errors
///
/// If the store leaves allocation to a file system, or its index cannot be read.
pub fn report_of(store: &dyn ObjectStore, name: &str, path: &Path, unit: Unit) -> Result<Report, Error> {
    let (files, free) = shape_of(store, unit)?;
    Ok(Report {
        name: name.to_owned(),
        path: path.to_owned(),
        file_system: "store on a device".to_owned(),
        kind: "object".to_owned(),
        unit: unit.bytes,
        files: Some(files),
        files_unknown: None,
        free: Some(free),
        free_unknown: None,
    })
}

/// Measures a store that no process uses: opens it as its target would.
pub(super) fn look(subject: &Subject, unit: Unit) -> Result<Report, Error> {
    let store = BlockStore::open(&subject.path, BlockStoreOptions::default())?;
    let report = report_of(&store, &subject.name, &subject.path, unit)?;
    store.close()?;
    Ok(report)
}

#[cfg(test)]
mod tests {
    use super::*;
    use nacre_store::object::Ids;
    use nacre_store::object::block::DefragSettings;

    const EAGER: DefragSettings =
        DefragSettings { threshold_percent: 0, rest_seconds: 0, ..DefragSettings::USUAL };

    #[test]
    fn objects_in_pieces_and_free_space_are_seen_in_a_store_that_nobody_uses() {
        let scratch = tempfile::tempdir().expect("a directory");
        let dir = scratch.path().join("ost0000");
        let options = BlockStoreOptions { create: true, size: 256 << 20, ..BlockStoreOptions::default() };
        let store = BlockStore::open(&dir, options).expect("made");
        store.reserve(2, 10).expect("reserved");
        let objects = [Fid::new(2, 1, 0), Fid::new(2, 2, 0)];
        for at in (0..256u64).rev() {
            for object in objects {
                store.write(object, at * 4096, &[at as u8; 4096]).expect("written");
            }
        }
        store.close().expect("closed");
        drop(store);
        let unit = Unit::parse("1M").expect("a unit");
        let subject = Subject { name: "OST0000".to_owned(), path: dir.clone(), kind: "object" };
        let report = super::super::look(&subject, unit).expect("looked");
        let files = report.files.expect("known");
        assert_eq!((files.files, files.bytes, files.transfers_least), (2, 2 << 20, 2));
        assert!(files.extents > 400 && files.fragmentation > 0.99, "{files:?}");
        let free = report.free.expect("known");
        assert!(free.bytes > 200 << 20 && free.extents < 10, "{free:?}");

        let store = BlockStore::open(&dir, BlockStoreOptions::default()).expect("opened again");
        let refused = super::super::look(&subject, unit).expect_err("in use");
        assert!(refused.to_string().contains("in use"), "{refused}");
        store.defragment(&EAGER).expect("moved");
        store.sync_all().expect("synced");
        let (files, after) = shape_of(&store, unit).expect("known");
        assert_eq!((files.extents, files.fragmentation), (2, 0.0));
        assert_eq!(after.bytes, free.bytes);
        let report = report_of(&store, "OST0000", &dir, unit).expect("known");
        let text = super::super::text(&report);
        assert!(text.contains("2 objects with 2.0 MiB in 2 extents"), "{text}");
        let json = serde_json::to_string(&report).expect("written");
        let again: Report = serde_json::from_str(&json).expect("read");
        assert_eq!(again.files, report.files);
    }
}
