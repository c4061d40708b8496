//! Tests of the file store as a whole.

use super::*;
use crate::object::{ObjectStore, conformance};

fn open_with(dir: &Path, direct: bool) -> FileStore {
    FileStore::open(dir, FileStoreOptions { direct, ..FileStoreOptions::create() }).unwrap()
}

#[test]
fn buffered_store_conforms() {
    let dir = tempfile::tempdir().unwrap();
    conformance::run(dir.path(), &|dir| Box::new(open_with(dir, false)));
}

#[test]
fn direct_store_conforms() {
    let dir = tempfile::tempdir().unwrap();
    conformance::run(dir.path(), &|dir| Box::new(open_with(dir, true)));
}
