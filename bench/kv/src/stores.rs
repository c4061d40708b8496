//! The stores compared, behind one small trait.

use std::ops::{Bound, ControlFlow};
use std::path::Path;

use nacre_store::{Batch, MetaStore, MetaStoreOptions, Table};

/// Table of directory entries: directory FID and name.
pub const DIRENT: u8 = 1;
/// Table of inodes: FID.
pub const INODE: u8 = 2;

/// One put of a batch: table, key, value.
pub type Put<'a> = (u8, &'a [u8], &'a [u8]);

/// What the workload asks of a store.
pub trait Store: Send + Sync {
    /// Applies the puts as one transaction that other threads see on return.
    fn commit(&self, scratch: &mut Batch, puts: &[Put<'_>]);
    /// Calls `f` with the value; returns whether there was one.
    fn get(&self, table: u8, key: &[u8], f: &mut dyn FnMut(&[u8])) -> bool;
    /// Calls `f` with all entries under the prefix, in order.
    fn scan(&self, table: u8, prefix: &[u8], f: &mut dyn FnMut(&[u8], &[u8]));
    /// Everything committed before is durable on return.
    fn sync(&self);
    /// Tells the store's own counters, if it has any, on the error output.
    fn print_stats(&self) {}
    /// Orderly end.
    fn close(self: Box<Self>);
}

/// Opens or makes the store called `name` in `dir`.
pub fn open(name: &str, dir: &Path) -> Box<dyn Store> {
    match name {
        "nacre" => Box::new(Nacre(
            MetaStore::open(dir, MetaStoreOptions { create: true, commit_interval_ms: 0, ..nacre_options() })
                .expect("open"),
        )),
        "fjall" => Box::new(Fjall::open(dir)),
        "rocksdb" => Box::new(Rocks::open(dir)),
        "lmdb-nosync" => Box::new(crate::lmdb::Lmdb::open(dir, false)),
        "lmdb-group" => Box::new(crate::lmdb::Lmdb::open(dir, true)),
        other => panic!("unknown store {other}: nacre, fjall, rocksdb, lmdb-nosync, lmdb-group"),
    }
}

fn nacre_options() -> MetaStoreOptions {
    let mut options = MetaStoreOptions::default();
    let megabytes =
        |name| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok()).map(|n| n << 20);
    if let Some(bytes) = megabytes("OVERLAY_MIB") {
        options.overlay_bytes = bytes;
    }
    if let Some(bytes) = megabytes("SEGMENT_MIB") {
        options.wal_segment_bytes = bytes;
    }
    options
}

struct Nacre(MetaStore);

impl Store for Nacre {
    fn commit(&self, scratch: &mut Batch, puts: &[Put<'_>]) {
        scratch.clear();
        for &(table, key, value) in puts {
            scratch.put(Table(table), key, value);
        }
        self.0.commit(scratch).expect("commit");
    }

    fn get(&self, table: u8, key: &[u8], f: &mut dyn FnMut(&[u8])) -> bool {
        self.0.get(Table(table), key, |value| value.map(f).is_some()).expect("get")
    }

    fn scan(&self, table: u8, prefix: &[u8], f: &mut dyn FnMut(&[u8], &[u8])) {
        let mut visit = |key: &[u8], value: &[u8]| {
            f(key, value);
            ControlFlow::Continue(())
        };
        self.0.scan(Table(table), prefix, Bound::Unbounded, &mut visit).expect("scan");
    }

    fn sync(&self) {
        self.0.sync(self.0.last_transno()).expect("sync");
    }

    fn print_stats(&self) {
        eprintln!("{:?}", self.0.stats());
    }

    fn close(self: Box<Self>) {
        self.0.close().expect("close");
    }
}

struct Fjall {
    database: fjall::Database,
    tables: [fjall::Keyspace; 2],
}

impl Fjall {
    fn open(dir: &Path) -> Self {
        let database = fjall::Database::builder(dir).cache_size(512 << 20).open().expect("open");
        let keyspace =
            |name| database.keyspace(name, fjall::KeyspaceCreateOptions::default).expect("keyspace");
        let tables = [keyspace("dirent"), keyspace("inode")];
        Fjall { database, tables }
    }
}

impl Store for Fjall {
    fn commit(&self, _: &mut Batch, puts: &[Put<'_>]) {
        let mut batch = self.database.batch();
        for &(table, key, value) in puts {
            batch.insert(&self.tables[usize::from(table) - 1], key, value);
        }
        batch.commit().expect("commit");
    }

    fn get(&self, table: u8, key: &[u8], f: &mut dyn FnMut(&[u8])) -> bool {
        self.tables[usize::from(table) - 1].get(key).expect("get").map(|value| f(&value)).is_some()
    }

    fn scan(&self, table: u8, prefix: &[u8], f: &mut dyn FnMut(&[u8], &[u8])) {
        for entry in self.tables[usize::from(table) - 1].prefix(prefix) {
            let (key, value) = entry.into_inner().expect("scan");
            f(&key, &value);
        }
    }

    fn sync(&self) {
        self.database.persist(fjall::PersistMode::SyncAll).expect("sync");
    }

    fn close(self: Box<Self>) {}
}

struct Rocks(rocksdb::DB);

fn with_table(table: u8, key: &[u8]) -> ([u8; 64], usize) {
    let mut bytes = [0; 64];
    bytes[0] = table;
    bytes[1..=key.len()].copy_from_slice(key);
    (bytes, key.len() + 1)
}

impl Rocks {
    fn open(dir: &Path) -> Self {
        let mut options = rocksdb::Options::default();
        options.create_if_missing(true);
        options.increase_parallelism(2);
        options.set_write_buffer_size(64 << 20);
        options.set_max_write_buffer_number(4);
        let mut table = rocksdb::BlockBasedOptions::default();
        table.set_block_cache(&rocksdb::Cache::new_lru_cache(512 << 20));
        table.set_bloom_filter(10.0, false);
        options.set_block_based_table_factory(&table);
        Rocks(rocksdb::DB::open(&options, dir).expect("open"))
    }
}

impl Store for Rocks {
    fn commit(&self, _: &mut Batch, puts: &[Put<'_>]) {
        let mut batch = rocksdb::WriteBatch::default();
        for &(table, key, value) in puts {
            let (bytes, len) = with_table(table, key);
            batch.put(&bytes[..len], value);
        }
        self.0.write(batch).expect("commit");
    }

    fn get(&self, table: u8, key: &[u8], f: &mut dyn FnMut(&[u8])) -> bool {
        let (bytes, len) = with_table(table, key);
        self.0.get_pinned(&bytes[..len]).expect("get").map(|value| f(&value)).is_some()
    }

    fn scan(&self, table: u8, prefix: &[u8], f: &mut dyn FnMut(&[u8], &[u8])) {
        let (bytes, len) = with_table(table, prefix);
        let mut cursor = self.0.raw_iterator();
        cursor.seek(&bytes[..len]);
        while let Some((key, value)) = cursor.item().filter(|(key, _)| key.starts_with(&bytes[..len])) {
            f(&key[1..], value);
            cursor.next();
        }
    }

    fn sync(&self) {
        self.0.flush_wal(true).expect("sync");
    }

    fn close(self: Box<Self>) {
        self.0.flush().expect("flush");
    }
}
