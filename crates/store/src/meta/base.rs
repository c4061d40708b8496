//! The base: an LMDB environment that holds everything the log and the overlay do not.
//!
//! Written only by checkpoints, each one durable transaction that also records the newest transno it
//! contains. Each value carries a checksum over key and value. Reads borrow a read transaction that threads
//! keep between calls and every checkpoint ends, so no reader pins old pages for longer than one call.

use rustix::io::Errno;
use std::cell::Cell;
use std::fs;
use std::io;
use std::ops::Bound;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};

use heed::types::Bytes;
use heed::{CommitOrAbort, Database, Env, EnvOpenOptions, MdbError, RoTxn, RwTxn, WithoutTls};
use nacre_env::sync::Mutex;

use super::error::{MetaError, Result};
use super::map::Change;
use super::pages::{DATA_NAME, Pages};
use super::report::{VerifyProblem, VerifyReport};
use super::wal::{FORMAT_VERSION, crc32c};

/// Directory of the environment inside the store's directory.
pub(crate) const BASE_NAME: &str = "base";
/// Bytes of the checksum before each value.
const CHECKSUM_LEN: usize = 4;
pub(super) const STATE_KEY: &[u8] = b"state";
const STATE_LEN: usize = 32;
/// Kept read transactions; threads beyond this many share or open their own.
const POOL_SLOTS: usize = 64;
/// Reader slots in the lock file: pooled readers, and transient readers of scans and nested reads.
const READERS_MAX: u32 = 1022;

/// LMDB writes at most 64 pages, or one large value, per call; with this much space left, a full disk did not
/// cut a write short.
const SHORT_WRITE_MAX: u64 = 4 << 20;

/// Bytes per transaction when a base is rebuilt.
const COPY_BYTES: usize = 64 << 20;

type Reader = RoTxn<'static, WithoutTls>;
type Bytewise = Database<'static, Bytes, Bytes>;

/// A kept reader, on cache lines of its own.
#[derive(Default)]
#[repr(align(128))]
struct PoolSlot(Mutex<Option<Reader>>);

/// The store of all entries that are older than the log.
pub(crate) enum Base {
    /// Open for reads and checkpoints, through LMDB.
    Open(Lmdb),
    /// Read-only, without LMDB.
    Pages(Box<Pages>),
}

impl Base {
    /// Reads one entry.
    pub(crate) fn get<R>(&self, key: &[u8], f: impl FnOnce(Option<&[u8]>) -> R) -> Result<R> {
        match self {
            Base::Open(lmdb) => lmdb.get(key, f),
            Base::Pages(pages) => pages.get(key, f),
        }
    }

    /// Calls `f` with the entries from `from` on that begin with `prefix`, until it returns false. A
    /// read-only base skips entries that are damaged or stored on damaged pages.
    pub(crate) fn scan(
        &self,
        prefix: &[u8],
        from: Bound<&[u8]>,
        f: &mut dyn FnMut(&[u8], &[u8]) -> bool,
    ) -> Result<()> {
        match self {
            Base::Open(lmdb) => lmdb.scan(prefix, from, f),
            Base::Pages(pages) => {
                pages.scan(prefix, from, f);
                Ok(())
            }
        }
    }

    /// As [`Lmdb::write`].
    pub(crate) fn write<'a>(
        &self,
        entries: &mut dyn Iterator<Item = Change<'a>>,
        state: Option<(&[u8; 16], u64)>,
    ) -> Result<()> {
        match self {
            Base::Open(lmdb) => lmdb.write(entries, state),
            Base::Pages(_) => Err(MetaError::ReadOnly),
        }
    }

    /// As [`Lmdb::retire_readers`].
    pub(crate) fn retire_readers(&self) {
        if let Base::Open(lmdb) = self {
            lmdb.retire_readers();
        }
    }

    /// Returns the number of entries, the bytes of the file in use, and how many of these are in free pages.
    pub(crate) fn sizes(&self) -> Result<BaseSizes> {
        match self {
            Base::Open(lmdb) => lmdb.sizes(),
            Base::Pages(pages) => Ok(pages.sizes()),
        }
    }

    /// Reads every entry and compares its checksum; in a read-only base, every page.
    pub(crate) fn verify(&self, report: &mut VerifyReport, progress: &mut dyn FnMut(u64)) -> Result<()> {
        match self {
            Base::Open(lmdb) => lmdb.verify(report, progress),
            Base::Pages(pages) => {
                pages.verify(report, progress);
                Ok(())
            }
        }
    }
}

/// An open LMDB environment.
pub(crate) struct Lmdb {
    // Kept readers must be dropped before the environment that they belong to.
    pool: Box<[PoolSlot]>,
    data: Bytewise,
    state: Bytewise,
    env: Env<WithoutTls>,
    path: PathBuf,
}

/// Size of the base.
#[derive(Clone, Copy, Default)]
pub(crate) struct BaseSizes {
    pub(crate) entries: u64,
    pub(crate) file_bytes: u64,
    pub(crate) free_bytes: u64,
}

thread_local! {
    static POOL_INDEX: Cell<Option<usize>> = const { Cell::new(None) };
}

fn pool_index() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    POOL_INDEX.with(|cell| {
        cell.get().unwrap_or_else(|| {
            let index = NEXT.fetch_add(1, Ordering::Relaxed) % POOL_SLOTS;
            cell.set(Some(index));
            index
        })
    })
}

fn failed(action: &'static str) -> impl Fn(heed::Error) -> MetaError {
    move |source| match &source {
        heed::Error::Mdb(MdbError::MapFull) => MetaError::NoSpace,
        heed::Error::Io(error) if is_no_space(error) => MetaError::NoSpace,
        _ => MetaError::Base { action, source },
    }
}

/// Whether a system call failed because the disk or the quota is full.
pub(crate) fn is_no_space(error: &io::Error) -> bool {
    matches!(Errno::from_io_error(error), Some(Errno::NOSPC | Errno::DQUOT))
}

fn checksum(key: &[u8], value: &[u8]) -> u32 {
    // The rotation keeps an entry whose key equals its value from having checksum 0.
    crc32c(key).rotate_left(1) ^ crc32c(value)
}

/// Returns the value behind a checksum that matches.
pub(super) fn open_value<'a>(key: &[u8], stored: &'a [u8]) -> Option<&'a [u8]> {
    let (sum, value) = stored.split_first_chunk::<CHECKSUM_LEN>()?;
    (u32::from_le_bytes(*sum) == checksum(key, value)).then_some(value)
}

/// Returns the transaction of a state record.
///
/// # Errors
/// A description of the damage.
pub(super) fn decode_state(stored: &[u8], uuid: &[u8; 16]) -> std::result::Result<u64, &'static str> {
    let bytes: [u8; STATE_LEN] = stored.try_into().map_err(|_| "state record")?;
    let transno = u64::from_le_bytes(std::array::from_fn(|i| bytes[8 + i]));
    if bytes[16..] != uuid[..] {
        return Err("the base belongs to another store");
    }
    if bytes != encode_state(uuid, transno) {
        return Err("state record");
    }
    Ok(transno)
}

fn encode_state(uuid: &[u8; 16], transno: u64) -> [u8; STATE_LEN] {
    let mut bytes = [0; STATE_LEN];
    bytes[..4].copy_from_slice(&FORMAT_VERSION.to_le_bytes());
    bytes[8..16].copy_from_slice(&transno.to_le_bytes());
    bytes[16..].copy_from_slice(uuid);
    let crc = crc32c(&bytes);
    bytes[4..8].copy_from_slice(&crc.to_le_bytes());
    bytes
}

impl Lmdb {
    /// Creates an empty base in `dir` (which must not exist) and opens it.
    pub(crate) fn create(dir: &Path, map_bytes: u64, uuid: &[u8; 16]) -> Result<()> {
        let io = |action| move |source| MetaError::Io { action, path: dir.to_owned(), source };
        fs::create_dir(dir).map_err(io("create"))?;
        fs::set_permissions(dir, fs::Permissions::from_mode(0o700)).map_err(io("set the mode of"))?;
        let base = Self::open_env(dir, map_bytes)?;
        base.write(&mut std::iter::empty(), Some((uuid, 0)))
    }

    /// Creates a base in `dir` (which must not exist) with the entries of another one, as of transaction
    /// `transno`.
    pub(crate) fn copy(
        dir: &Path,
        map_bytes: u64,
        uuid: &[u8; 16],
        transno: u64,
        from: &Pages,
    ) -> Result<()> {
        Lmdb::create(dir, map_bytes, uuid)?;
        let base = Lmdb::open_env(dir, map_bytes)?;
        let mut txn = base.env.write_txn().map_err(failed("begin"))?;
        let (mut result, mut bytes) = (Ok(()), 0);
        from.scan(&[], Bound::Unbounded, &mut |key, value| {
            let stored = [&checksum(key, value).to_le_bytes(), value].concat();
            result = base.data.put(&mut txn, key, &stored);
            bytes += stored.len();
            if bytes >= COPY_BYTES && result.is_ok() {
                bytes = 0;
                let begun = base.env.write_txn();
                let full = begun.map(|fresh| std::mem::replace(&mut txn, fresh));
                result = full.and_then(RwTxn::commit);
            }
            result.is_ok()
        });
        result.map_err(failed("write"))?;
        base.state.put(&mut txn, STATE_KEY, &encode_state(uuid, transno)).map_err(failed("write"))?;
        txn.commit().map_err(|error| base.commit_failed(error))
    }

    /// Opens the base in `dir` and returns it with the newest transno it contains.
    pub(crate) fn open(dir: &Path, map_bytes: u64, uuid: &[u8; 16]) -> Result<(Self, u64)> {
        if !dir.join(DATA_NAME).exists() {
            return Err(MetaError::Corrupt { what: "missing base", path: dir.to_owned(), offset: 0 });
        }
        // LMDB trusts the free list, and would write over pages that are in use.
        let pages = Pages::open(dir)?;
        if let Some((page, what)) = pages.free_list_damage() {
            let offset = pages.offset_of(page);
            return Err(MetaError::FreePages { what, path: dir.join(DATA_NAME), offset });
        }
        drop(pages);
        let base = Self::open_env(dir, map_bytes)?;
        let transno = base.read_state(uuid)?;
        Ok((base, transno))
    }

    fn open_env(dir: &Path, map_bytes: u64) -> Result<Self> {
        let mut options = EnvOpenOptions::new().read_txn_without_tls();
        let map_bytes = usize::try_from(map_bytes).map_err(|_| MetaError::Option {
            option: "map_bytes",
            requirement: "within the address space",
        })?;
        options.map_size(map_bytes).max_dbs(2).max_readers(READERS_MAX);
        // SAFETY: the store's lock file keeps other processes away, and nothing else touches the files of the
        // base.
        let env = unsafe { options.open(dir) }.map_err(failed("open"))?;
        let txn = env.write_txn().map_err(failed("begin"))?;
        let opened =
            env.create_databases_and_commit(txn, |opener, txn| -> std::result::Result<_, heed::Error> {
                let data: Database<'_, Bytes, Bytes> = opener.create_database(txn, Some("data"))?;
                let state: Database<'_, Bytes, Bytes> = opener.create_database(txn, Some("state"))?;
                Ok(CommitOrAbort::<_, ()>::Commit((data, state)))
            });
        let CommitOrAbort::Commit((data, state)) = opened.map_err(failed("open"))? else {
            unreachable!("the closure never aborts")
        };
        let pool = (0..POOL_SLOTS).map(|_| PoolSlot::default()).collect();
        Ok(Lmdb { pool, data, state, env, path: dir.to_owned() })
    }

    fn read_state(&self, uuid: &[u8; 16]) -> Result<u64> {
        let damaged = |what| MetaError::Corrupt { what, path: self.path.clone(), offset: 0 };
        let txn = self.env.read_txn().map_err(failed("read"))?;
        let stored = self.state.get(&txn, STATE_KEY).map_err(failed("read"))?;
        decode_state(stored.ok_or_else(|| damaged("missing state record"))?, uuid).map_err(damaged)
    }

    fn damaged(&self) -> MetaError {
        MetaError::Corrupt { what: "checksum of an entry", path: self.path.join(DATA_NAME), offset: 0 }
    }

    fn get_in<R>(&self, txn: &Reader, key: &[u8], f: impl FnOnce(Option<&[u8]>) -> R) -> Result<R> {
        match self.data.get(txn, key).map_err(failed("read"))? {
            None => Ok(f(None)),
            Some(stored) => Ok(f(Some(open_value(key, stored).ok_or_else(|| self.damaged())?))),
        }
    }

    fn reader(&self) -> Result<Reader> {
        self.env.clone().static_read_txn().map_err(failed("begin"))
    }

    /// Reads one entry under a reader kept from earlier calls of this thread.
    pub(crate) fn get<R>(&self, key: &[u8], f: impl FnOnce(Option<&[u8]>) -> R) -> Result<R> {
        // A slot in use means a nested call, or more threads than slots.
        let Some(mut slot) = self.pool[pool_index()].0.try_lock() else {
            return self.get_in(&self.reader()?, key, f);
        };
        let txn = match &mut *slot {
            Some(txn) => txn,
            empty => empty.insert(self.reader()?),
        };
        self.get_in(txn, key, f)
    }

    /// Calls `f` with the entries from `from` on that begin with `prefix`, until it returns false.
    pub(crate) fn scan(
        &self,
        prefix: &[u8],
        from: Bound<&[u8]>,
        f: &mut dyn FnMut(&[u8], &[u8]) -> bool,
    ) -> Result<()> {
        let txn = self.env.read_txn().map_err(failed("begin"))?;
        let range = (from, Bound::Unbounded);
        for entry in self.data.range(&txn, &range).map_err(failed("read"))? {
            let (key, stored) = entry.map_err(failed("read"))?;
            if !key.starts_with(prefix) {
                break;
            }
            let value = open_value(key, stored).ok_or_else(|| self.damaged())?;
            if !f(key, value) {
                break;
            }
        }
        Ok(())
    }

    /// Writes entries (in key order for speed) and, if given, the new state, in one durable transaction.
    pub(crate) fn write<'a>(
        &self,
        entries: &mut dyn Iterator<Item = Change<'a>>,
        state: Option<(&[u8; 16], u64)>,
    ) -> Result<()> {
        let mut txn: RwTxn<'_> = self.env.write_txn().map_err(failed("begin"))?;
        let mut bytes = Vec::new();
        for (key, value) in entries {
            bytes.clear();
            key.append_to(&mut bytes);
            let key = &bytes[..];
            match value {
                Some(value) => {
                    let sum = checksum(key, value).to_le_bytes();
                    let fill = |space: &mut heed::ReservedSpace<'_>| {
                        io::Write::write_all(space, &sum)?;
                        io::Write::write_all(space, value)
                    };
                    let len = CHECKSUM_LEN + value.len();
                    self.data.put_reserved(&mut txn, key, len, fill).map_err(failed("write"))?;
                }
                None => {
                    self.data.delete(&mut txn, key).map_err(failed("delete"))?;
                }
            }
        }
        if let Some((uuid, transno)) = state {
            self.state.put(&mut txn, STATE_KEY, &encode_state(uuid, transno)).map_err(failed("write"))?;
        }
        txn.commit().map_err(|error| self.commit_failed(error))
    }

    /// LMDB reports a short write as an I/O error, and a disk that fills up in the middle of a write cuts it
    /// short.
    fn commit_failed(&self, error: heed::Error) -> MetaError {
        let is_io = matches!(&error, heed::Error::Io(io) if Errno::from_io_error(io) == Some(Errno::IO));
        let free = rustix::fs::statvfs(&self.path).map(|fs| fs.f_bavail.saturating_mul(fs.f_frsize));
        if is_io && free.is_ok_and(|free| free < SHORT_WRITE_MAX) {
            return MetaError::NoSpace;
        }
        failed("commit")(error)
    }

    /// Ends the kept readers, so that reads see the newest checkpoint and no old page stays pinned.
    pub(crate) fn retire_readers(&self) {
        for slot in &self.pool {
            *slot.0.lock() = None;
        }
    }

    /// Returns the number of entries, the bytes of the file in use, and how many of these are in free pages.
    pub(crate) fn sizes(&self) -> Result<BaseSizes> {
        let txn = self.env.read_txn().map_err(failed("begin"))?;
        let page = rustix::param::page_size() as u64;
        let file_bytes = (self.env.info().last_page_number as u64 + 1) * page;
        let mut used_pages = 0;
        let mut entries = 0;
        for database in [&self.state, &self.data] {
            let stat = database.stat(&txn).map_err(failed("read"))?;
            used_pages += (stat.branch_pages + stat.leaf_pages + stat.overflow_pages) as u64;
            entries = stat.entries as u64;
        }
        Ok(BaseSizes { entries, file_bytes, free_bytes: file_bytes.saturating_sub(used_pages * page) })
    }

    /// Reads every entry and compares its checksum.
    pub(crate) fn verify(&self, report: &mut VerifyReport, progress: &mut dyn FnMut(u64)) -> Result<()> {
        let txn = self.env.read_txn().map_err(failed("begin"))?;
        for entry in self.data.iter(&txn).map_err(failed("read"))? {
            let (key, stored) = entry.map_err(failed("read"))?;
            note_entry(report, progress, key, stored);
        }
        progress(report.entries);
        Ok(())
    }
}

/// Counts an entry and compares its checksum.
pub(crate) fn note_entry(
    report: &mut VerifyReport,
    progress: &mut dyn FnMut(u64),
    key: &[u8],
    stored: &[u8],
) {
    let table = key.first().copied().unwrap_or_default();
    report.note(table, key.len() + stored.len());
    if open_value(key, stored).is_none() {
        report.add(VerifyProblem::Entry { table, key: key.get(1..).unwrap_or_default().to_vec() });
    }
    if report.entries.is_multiple_of(1 << 14) {
        progress(report.entries);
    }
}
