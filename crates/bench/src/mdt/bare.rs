//! The upper bounds: the engine's accesses to its store without the engine, and the same on hash maps.

use std::collections::HashMap;
use std::ops::{Bound, ControlFlow};
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use nacre_ondisk::{DirentRecord, InodeRecord};
use nacre_store::{Batch, MetaError, MetaStore, MetaStoreOptions, Table};
use nacre_types::fid::FID_BYTES;
use nacre_types::{Attr, Fid, FileKind};

use super::engine::{NAME_LEN, name_of};
use super::{Phase, Subject};
use crate::error::Error;

const INODES: Table = Table(2);
const DIRENTS: Table = Table(3);
const KEY_LEN: usize = FID_BYTES + 8 + NAME_LEN;

fn failed(error: MetaError) -> Error {
    Error::Server { what: "the metadata store".to_owned(), reason: error.to_string() }
}

/// Builds the key of directory, position and name in the engine's format.
fn dirent_key(directory: &Fid, thread: usize, number: u32) -> [u8; KEY_LEN] {
    let mut key = [0; KEY_LEN];
    key[..FID_BYTES].copy_from_slice(&directory.to_key());
    // The engine's positions are hashes, which spread over the directory.
    let hash = (u64::from(number) + 1 + ((thread as u64) << 40)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    key[FID_BYTES..FID_BYTES + 8].copy_from_slice(&hash.to_be_bytes());
    key[FID_BYTES + 8..].copy_from_slice(&name_of(thread, number));
    key
}

fn directory_of(thread: usize, shared: bool) -> Fid {
    Fid::new(0x2_0000_0401, if shared { 1 } else { thread as u32 + 1 }, 0)
}

fn fid_of(thread: usize, number: u32) -> Fid {
    Fid::new(0x2_0000_0402 + thread as u64, number + 1, 0)
}

/// Records of the same lengths as the engine's.
struct Values {
    file: Vec<u8>,
    directory: Vec<u8>,
    dirent: Vec<u8>,
}

impl Values {
    fn new() -> Values {
        let encoded = |kind: FileKind, name: &[u8]| {
            let attr = Attr { mode: kind.mode_bits() | 0o755, nlink: 1, ..Attr::default() };
            let mut bytes = Vec::new();
            InodeRecord { attr, name: name.to_vec(), ..InodeRecord::default() }.encode(&mut bytes);
            bytes
        };
        Values {
            file: encoded(FileKind::Regular, &name_of(0, 0)),
            directory: encoded(FileKind::Directory, b"d0"),
            dirent: DirentRecord { fid: Fid::ROOT, kind: FileKind::Regular }.encode().to_vec(),
        }
    }
}

/// A metadata store with the engine's accesses.
pub(super) struct Bare {
    store: MetaStore,
    values: Values,
    /// Number of files of each thread.
    files: u32,
    shared: bool,
    /// Serialises changes of one directory by two threads, as the service does.
    order: Mutex<()>,
}

impl Bare {
    /// Creates a store in `dir`; with `shared` all threads work in one directory.
    pub(super) fn make(dir: &Path, files: u32, shared: bool) -> Result<Bare, Error> {
        let options = MetaStoreOptions { create: true, ..MetaStoreOptions::default() };
        let store = MetaStore::open(dir, options).map_err(failed)?;
        Ok(Bare { store, values: Values::new(), files, shared, order: Mutex::default() })
    }

    pub(super) fn close(self) -> Result<(), Error> {
        self.store.close().map_err(failed)
    }

    fn apply(&self, batch: &Batch) -> Result<(), Error> {
        let _order = self.shared.then(|| self.order.lock());
        self.store.commit(batch).map(drop).map_err(failed)
    }

    /// Writes a name, an inode and the directory's inode in one batch.
    fn create(&self, thread: usize) -> Result<u64, Error> {
        let directory = directory_of(thread, self.shared);
        let mut batch = Batch::new();
        for number in 0..self.files {
            batch.clear();
            batch.put(DIRENTS, &dirent_key(&directory, thread, number), &self.values.dirent);
            batch.put(INODES, &directory.to_key(), &self.values.directory);
            batch.put(INODES, &fid_of(thread, number).to_key(), &self.values.file);
            self.apply(&batch)?;
        }
        Ok(u64::from(self.files))
    }

    /// Reads an inode, and with `by_name` its name first.
    fn stat(&self, thread: usize, by_name: bool) -> Result<u64, Error> {
        let directory = directory_of(thread, self.shared);
        for number in 0..self.files {
            if by_name {
                self.expect(DIRENTS, &dirent_key(&directory, thread, number))?;
            }
            self.expect(INODES, &fid_of(thread, number).to_key())?;
        }
        Ok(u64::from(self.files))
    }

    fn expect(&self, table: Table, key: &[u8]) -> Result<(), Error> {
        match self.store.get(table, key, |value| value.map(<[u8]>::len)).map_err(failed)? {
            Some(len) if len > 0 => Ok(()),
            _ => Err(Error::Worker("an entry is missing".to_owned())),
        }
    }

    /// Reads all names of a directory, each with its inode.
    fn read_dir(&self, thread: usize) -> Result<u64, Error> {
        let directory = directory_of(thread, self.shared);
        let (mut numbers, mut count) = (Vec::new(), 0);
        let mut visit = |key: &[u8], _: &[u8]| {
            let name = &key[FID_BYTES + 8..];
            let number = name[7..].iter().fold(0, |sum, digit| sum * 10 + u32::from(digit - b'0'));
            numbers.push((usize::from(name[5] - b'a'), number));
            ControlFlow::Continue(())
        };
        self.store.scan(DIRENTS, &directory.to_key(), Bound::Unbounded, &mut visit).map_err(failed)?;
        for (thread, number) in numbers {
            self.expect(INODES, &fid_of(thread, number).to_key())?;
            count += 1;
        }
        Ok(count)
    }

    fn unlink(&self, thread: usize) -> Result<u64, Error> {
        let directory = directory_of(thread, self.shared);
        let mut batch = Batch::new();
        for number in 0..self.files {
            batch.clear();
            batch.set_releasing(true);
            batch.delete(DIRENTS, &dirent_key(&directory, thread, number));
            batch.put(INODES, &directory.to_key(), &self.values.directory);
            batch.delete(INODES, &fid_of(thread, number).to_key());
            self.apply(&batch)?;
        }
        Ok(u64::from(self.files))
    }
}

/// The phases as reads of the store: a stat by name is two reads, by FID one.
impl Subject for Bare {
    fn act(&self, phase: Phase, thread: usize) -> Result<u64, Error> {
        match phase {
            Phase::Create => self.create(thread),
            Phase::Stat => self.stat(thread, true),
            Phase::GetAttr => self.stat(thread, false),
            Phase::ReadDir => self.read_dir(thread),
            Phase::Unlink => self.unlink(thread),
        }
    }

    fn commit(&self) -> Result<(), Error> {
        self.store.sync(self.store.last_transno()).map_err(failed)
    }
}

/// Names and inodes in the standard library's hash maps: the bound that memory alone sets.
pub(super) struct HashMaps {
    maps: Mutex<Maps>,
    values: Values,
    files: u32,
}

#[derive(Default)]
struct Maps {
    names: HashMap<[u8; KEY_LEN], Vec<u8>>,
    inodes: HashMap<[u8; FID_BYTES], Vec<u8>>,
}

impl HashMaps {
    pub(super) fn new(files: u32) -> HashMaps {
        HashMaps { maps: Mutex::default(), values: Values::new(), files }
    }

    fn each(&self, act: impl Fn(&mut Maps, [u8; KEY_LEN], [u8; FID_BYTES])) -> u64 {
        let directory = directory_of(0, true);
        for number in 0..self.files {
            let maps = &mut *self.maps.lock().unwrap_or_else(PoisonError::into_inner);
            act(maps, dirent_key(&directory, 0, number), fid_of(0, number).to_key());
        }
        u64::from(self.files)
    }
}

impl Subject for HashMaps {
    fn act(&self, phase: Phase, _: usize) -> Result<u64, Error> {
        let directory = directory_of(0, true).to_key();
        let stat = |by_name: bool| {
            self.each(|maps, name, inode| {
                let name = if by_name { maps.names.get(&name).map(Vec::len) } else { None };
                std::hint::black_box((name, maps.inodes.get(&inode).map(Vec::len)));
            })
        };
        Ok(match phase {
            Phase::Create => self.each(|maps, name, inode| {
                maps.names.insert(name, self.values.dirent.clone());
                maps.inodes.insert(directory, self.values.directory.clone());
                maps.inodes.insert(inode, self.values.file.clone());
            }),
            Phase::Stat => stat(true),
            Phase::GetAttr => stat(false),
            // Unordered.
            Phase::ReadDir => {
                let maps = self.maps.lock().unwrap_or_else(PoisonError::into_inner);
                maps.names.iter().map(|entry| std::hint::black_box(entry.1.len()).min(1) as u64).sum()
            }
            Phase::Unlink => self.each(|maps, name, inode| {
                maps.names.remove(&name);
                maps.inodes.insert(directory, self.values.directory.clone());
                maps.inodes.remove(&inode);
            }),
        })
    }
}
