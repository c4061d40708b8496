//! LMDB alone, in the two ways it can be used without a log of one's own.

use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::ThreadId;

use heed::types::Bytes;
use heed::{CommitOrAbort, Database, Env, EnvFlags, EnvOpenOptions, RwTxn, WithTls};
use nacre_store::Batch;

use crate::stores::{Put, Store};

/// `group` off: a transaction per batch without sync, and `mdb_env_sync` for durability (a power cut may leave nothing usable).
/// `group` on: batches gather in one open transaction; after a `sync` call the thread that began it commits it durably with
/// its next batch. Until then readers do not see them, so this is a bound for comparison, not a usable design.
pub struct Lmdb {
    // Dropped before the environment that it borrows from.
    open_txn: Mutex<Option<Group>>,
    tables: [Database<'static, Bytes, Bytes>; 2],
    env: &'static Env<WithTls>,
    group: bool,
    wants_commit: AtomicBool,
}

struct Group(RwTxn<'static>, ThreadId);

// SAFETY: only beginning and ending a write transaction is tied to a thread (by the owner of a robust mutex), and `commit`
// below ends it on the thread that began it; the puts in between are kept apart by the mutex around it.
unsafe impl Send for Group {}

impl Lmdb {
    pub fn open(dir: &Path, group: bool) -> Self {
        let mut options = EnvOpenOptions::new();
        options.map_size(64 << 30).max_dbs(2).max_readers(1000);
        if !group {
            // SAFETY: a measurement may lose its data.
            unsafe { options.flags(EnvFlags::NO_SYNC) };
        }
        // SAFETY: nobody else uses the directory.
        let env: &'static Env<WithTls> = Box::leak(Box::new(unsafe { options.open(dir) }.expect("open")));
        let txn = env.write_txn().expect("begin");
        let tables = env
            .create_databases_and_commit(txn, |opener, txn| -> Result<_, heed::Error> {
                let dirent: Database<'_, Bytes, Bytes> = opener.create_database(txn, Some("dirent"))?;
                let inode: Database<'_, Bytes, Bytes> = opener.create_database(txn, Some("inode"))?;
                Ok(CommitOrAbort::<_, ()>::Commit((dirent, inode)))
            })
            .expect("databases")
            .commit()
            .expect("the closure commits");
        Lmdb {
            open_txn: Mutex::new(None),
            tables: [tables.0, tables.1],
            env,
            group,
            wants_commit: AtomicBool::new(false),
        }
    }

    fn table(&self, table: u8) -> Database<'static, Bytes, Bytes> {
        self.tables[usize::from(table) - 1]
    }
}

impl Store for Lmdb {
    fn commit(&self, _: &mut Batch, puts: &[Put<'_>]) {
        if !self.group {
            let mut txn = self.env.write_txn().expect("begin");
            for &(table, key, value) in puts {
                self.table(table).put(&mut txn, key, value).expect("put");
            }
            txn.commit().expect("commit");
            return;
        }
        let mut open = self.open_txn.lock().expect("no panic");
        let me = std::thread::current().id();
        if open.as_ref().is_some_and(|group| group.1 == me)
            && self.wants_commit.swap(false, Ordering::Relaxed)
        {
            open.take().expect("just seen").0.commit().expect("commit");
        }
        let group = open.get_or_insert_with(|| Group(self.env.write_txn().expect("begin"), me));
        for &(table, key, value) in puts {
            self.table(table).put(&mut group.0, key, value).expect("put");
        }
    }

    fn get(&self, table: u8, key: &[u8], f: &mut dyn FnMut(&[u8])) -> bool {
        // Not nested: with a transaction of the thread open (in a scan), LMDB refuses a second.
        let txn = self.env.read_txn().expect("begin");
        self.table(table).get(&txn, key).expect("get").map(f).is_some()
    }

    fn scan(&self, table: u8, prefix: &[u8], f: &mut dyn FnMut(&[u8], &[u8])) {
        // The copy frees the thread's reader slot for the gets of `f`; it costs about 3 % of the whole.
        let mut entries = Vec::new();
        {
            let txn = self.env.read_txn().expect("begin");
            for entry in self.table(table).prefix_iter(&txn, prefix).expect("scan") {
                let (key, value) = entry.expect("scan");
                entries.push((key.to_vec(), value.to_vec()));
            }
        }
        for (key, value) in &entries {
            f(key, value);
        }
    }

    fn sync(&self) {
        if self.group {
            self.wants_commit.store(true, Ordering::Relaxed);
        } else {
            self.env.force_sync().expect("sync");
        }
    }

    fn close(self: Box<Self>) {
        self.sync();
    }
}
