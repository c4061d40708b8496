//! Openings that succeed and those that are refused.

use super::*;
use nacre_ondisk::object::ObjectDirectoryError;
use std::os::unix::fs::PermissionsExt;

fn refused(dir: &Path, options: FileStoreOptions) -> ObjectError {
    FileStore::open(dir, options).err().expect("refused")
}

#[test]
fn the_second_opener_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    assert!(matches!(refused(dir.path(), FileStoreOptions::default()), ObjectError::InUse { .. }));
    drop(store);
    FileStore::open(dir.path(), FileStoreOptions::default()).unwrap();
}

#[test]
fn nothing_is_made_without_being_asked_and_nothing_foreign_is_touched() {
    let dir = tempfile::tempdir().unwrap();
    let missing = dir.path().join("missing");
    assert!(matches!(refused(&missing, FileStoreOptions::default()), ObjectError::Missing { .. }));
    assert!(matches!(refused(dir.path(), FileStoreOptions::default()), ObjectError::Missing { .. }));
    std::fs::write(dir.path().join("thesis.txt"), "years of work").unwrap();
    assert!(matches!(refused(dir.path(), FileStoreOptions::create()), ObjectError::Foreign { .. }));
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
}

#[test]
fn an_unfinished_making_is_finished_but_never_over_data() {
    let dir = tempfile::tempdir().unwrap();
    // Files are created in advance only after the creation of the store.
    let open = |dir: &Path| {
        FileStore::open(dir, FileStoreOptions { spare_files: 0, ..FileStoreOptions::create() }).unwrap()
    };
    let unfinish = || {
        ["superblock", "superblock.copy"]
            .map(|name| std::fs::remove_file(dir.path().join(name)).expect("there"))
    };
    drop(open(dir.path()));
    unfinish();
    drop(open(dir.path()));
    let store = open(dir.path());
    store.write(fid(1), 0, b"data").unwrap();
    drop(store);
    unfinish();
    assert!(matches!(refused(dir.path(), FileStoreOptions::create()), ObjectError::Foreign { .. }));
}

#[test]
fn other_formats_targets_and_indexes_are_refused_in_a_sentence() {
    let dir = tempfile::tempdir().unwrap();
    let labelled = |label: &str| FileStoreOptions { label: label.to_owned(), ..FileStoreOptions::create() };
    drop(FileStore::open(dir.path(), labelled("nacre-OST0001")).unwrap());
    let error = refused(dir.path(), labelled("nacre-OST0002")).to_string();
    assert!(error.ends_with("belongs to target nacre-OST0001, not to nacre-OST0002"), "{error}");
    drop(FileStore::open(dir.path(), labelled("")).unwrap());
    assert!(matches!(refused(dir.path(), labelled("two words")), ObjectError::Index(_)));

    let other = tempfile::tempdir().unwrap();
    drop(open(other.path()));
    std::fs::rename(dir.path().join("index"), dir.path().join("index.kept")).unwrap();
    std::fs::rename(other.path().join("index"), dir.path().join("index")).unwrap();
    assert!(matches!(refused(dir.path(), labelled("")), ObjectError::OtherIndex { .. }));

    let header = dir.path().join("superblock");
    let mut bytes = std::fs::read(&header).unwrap();
    bytes[8] = 7;
    std::fs::write(&header, &bytes).unwrap();
    match refused(dir.path(), labelled("")) {
        ObjectError::Header { source: ObjectDirectoryError::Version { found: 7 }, .. } => {}
        other => panic!("{other}"),
    }
}

#[test]
fn only_the_owner_may_look_at_objects() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path().join("ost");
    let store = open(&dir);
    store.write(fid(1), 0, b"secret").unwrap();
    let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o7777;
    assert_eq!(
        (mode(&dir), mode(&dir.join("objects")), mode(&dir.join("objects/00"))),
        (0o700, 0o700, 0o700)
    );
    let slot = store.find(fid(1)).unwrap().unwrap().slot;
    assert_eq!(mode(&store.slots.path(slot)), 0o600);
}
