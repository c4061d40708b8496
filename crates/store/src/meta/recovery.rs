//! Creating a store, and opening one: identification, check, and replay of the log over the base.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64};

use super::base::{BASE_NAME, Base, Lmdb, is_no_space};
use super::checkpoint::Checkpointer;
use super::engine::Engine;
use super::error::{MetaError, Result};
use super::log::{Log, Recovered, SEGMENTS};
use super::map::Map;
use super::options::MetaStoreOptions;
use super::overlay::{Overlay, SHARDS};
use super::pages::{DATA_NAME, Pages};
use super::report::VerifyProblem;
use super::reserve::{RESERVE_NAME, Reserve};
use super::segment::{Loaded, Segment, segment_path};
use super::superblock::{SUPERBLOCK_NAME, Superblock};
use super::wal::{Records, SEGMENT_HEADER_LEN, SegmentHeader};
use crate::exclusive::Exclusive;
use nacre_env::twice;

const LOCK_NAME: &str = "lock";
const SUPERBLOCK_NEW_NAME: &str = "superblock.new";
/// Directory in which a repair rebuilds the base.
const BASE_NEW_NAME: &str = "base.new";

fn io_error(action: &'static str, path: &Path) -> impl Fn(io::Error) -> MetaError {
    move |source| {
        if is_no_space(&source) {
            return MetaError::NoSpace;
        }
        MetaError::Io { action, path: path.to_owned(), source }
    }
}

/// Opens or creates the store. The returned file holds the lock that keeps other processes out.
pub(crate) fn open(dir: &Path, options: MetaStoreOptions) -> Result<(Engine, Option<Exclusive>)> {
    options.check()?;
    if options.read_only {
        return look(dir, options);
    }
    let is_there = || has_superblock(dir);
    if !is_there() {
        if !options.create {
            return Err(MetaError::Missing { dir: dir.to_owned() });
        }
        check_only_ours(dir)?;
        fs::create_dir_all(dir).map_err(io_error("create", dir))?;
        fs::set_permissions(dir, fs::Permissions::from_mode(0o700))
            .map_err(io_error("set the mode of", dir))?;
    }
    let lock = take_lock(dir)?;
    if !is_there() {
        create(dir, &options)?;
    }
    let superblock = read_superblock(dir)?;
    let options = options.with_segment(superblock.value.wal_segment_bytes);
    let engine = recover(dir, options, &superblock.value)?;
    // At this point it is known to belong to the store.
    if let Err(error) = twice::restore(dir, SUPERBLOCK_NAME, &superblock) {
        log::warn!("cannot write the copy of the superblock in {}: {error}", dir.display());
    }
    Ok((engine, Some(lock)))
}

fn has_superblock(dir: &Path) -> bool {
    dir.join(SUPERBLOCK_NAME).exists() || twice::copy_path(dir, SUPERBLOCK_NAME).exists()
}

fn read_superblock(dir: &Path) -> Result<twice::Found<Superblock>> {
    let format = twice::Format {
        decode: Superblock::decode,
        unreadable: |error, path| io_error("read", path)(error),
        is_final: |error| matches!(error, MetaError::TooNew { .. } | MetaError::TooOld { .. }),
    };
    let found = twice::read(dir, SUPERBLOCK_NAME, &format)?;
    found.ok_or_else(|| MetaError::Missing { dir: dir.to_owned() })
}

/// Opens a store without changing anything on disk: transactions of the log that the base lacks stay in
/// memory. Continues after damage that leaves other data readable; a check reports it.
fn look(dir: &Path, options: MetaStoreOptions) -> Result<(Engine, Option<Exclusive>)> {
    let lock_path = dir.join(LOCK_NAME);
    let lock = match File::open(&lock_path) {
        Ok(file) => {
            let lock =
                Exclusive::share(file.into()).map_err(|errno| io_error("lock", &lock_path)(errno.into()))?;
            Some(lock.ok_or_else(|| MetaError::InUse { dir: dir.to_owned() })?)
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        Err(error) => return Err(io_error("open", &lock_path)(error)),
    };
    let superblock = read_superblock(dir)?;
    let mut damage: Vec<VerifyProblem> =
        superblock.damaged.iter().map(|path| VerifyProblem::Copy { path: path.clone() }).collect();
    let superblock = superblock.value;
    let options = options.with_segment(superblock.wal_segment_bytes);
    let base = Pages::open(&dir.join(BASE_NAME))?;
    let base_transno = base.read_state(&superblock.uuid)?;
    let len = segment_len(superblock.wal_segment_bytes)?;
    let paths: [PathBuf; SEGMENTS] = std::array::from_fn(|slot| segment_path(dir, slot));
    let mut read = |path: &PathBuf| match load(path, len) {
        Ok(Some(loaded)) => loaded,
        Ok(None) => {
            damage
                .push(VerifyProblem::File(format!("{} has not the length of a log segment", path.display())));
            Loaded::default()
        }
        Err(error) => {
            damage.push(VerifyProblem::File(error.to_string()));
            Loaded::default()
        }
    };
    let [first, second] = [read(&paths[0]), read(&paths[1])];
    let (bytes, data_ends) = ([&first.bytes[..], &second.bytes], [first.data_end, second.data_end]);
    let known = damage.len();
    let mut note = |error: MetaError| {
        damage.push(VerifyProblem::File(error.to_string()));
        Ok(())
    };
    let (recovered, maps) =
        replay_noting(&bytes, data_ends, &paths, &superblock.uuid, base_transno, &mut note)?;
    // A segment that could not be read has no header either.
    let is_silent = |slot: usize| bytes[slot].is_empty();
    let missing = (0..SEGMENTS).filter(|slot| is_silent(*slot)).count();
    damage.truncate(damage.len() - missing.min(damage.len() - known));
    let engine = Engine {
        overlay: Overlay::new(),
        log: Log::silent(len, &recovered),
        base: Base::Pages(Box::new(base)),
        reserve: Reserve::open(dir, 0, 0),
        checkpointer: Checkpointer::default(),
        uuid: superblock.uuid,
        commit_interval_ms: AtomicU64::new(options.commit_interval_ms),
        options,
        is_closed: AtomicBool::new(false),
        stalls: AtomicU64::new(0),
        replayed: recovered.replayed,
        damage,
    };
    engine.overlay.set_frozen(maps);
    Ok((engine, lock))
}

/// Rebuilds the base from its entries, if no damage goes beyond the pages that locate others. [`look`] must
/// be able to open the store, and no other process may use it.
///
/// # Durability
/// Durable on return; a crash leaves the old base or the new one.
pub(crate) fn rebuild_base(dir: &Path, options: &MetaStoreOptions) -> Result<()> {
    let _lock = take_lock(dir)?;
    let superblock = read_superblock(dir)?.value;
    let (base, fresh) = (dir.join(BASE_NAME), dir.join(BASE_NEW_NAME));
    if fresh.exists() {
        fs::remove_dir_all(&fresh).map_err(io_error("remove", &fresh))?;
    }
    let pages = Pages::open(&base)?;
    let transno = pages.read_state(&superblock.uuid)?;
    Lmdb::copy(&fresh, options.map_bytes, &superblock.uuid, transno, &pages)?;
    sync_dir(&fresh)?;
    let (from, to) = (fresh.join(DATA_NAME), base.join(DATA_NAME));
    fs::rename(&from, &to).map_err(io_error("rename", &from))?;
    sync_dir(&base)?;
    fs::remove_dir_all(&fresh).map_err(io_error("remove", &fresh))?;
    sync_dir(dir)
}

/// Reads a log segment; `None` if it has another length.
fn load(path: &Path, len: usize) -> Result<Option<Loaded>> {
    let file = File::open(path).map_err(io_error("open", path))?;
    if file.metadata().map_err(io_error("stat", path))?.len() != len as u64 {
        return Ok(None);
    }
    Loaded::read(&file, len).map(Some).map_err(io_error("read", path))
}

/// Refuses a directory with files other than the remains of an unfinished creation.
fn check_only_ours(dir: &Path) -> Result<()> {
    let entries = match fs::read_dir(dir) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(io_error("list", dir)(error)),
    };
    for entry in entries {
        let entry = entry.map_err(io_error("list", dir))?;
        let name = entry.file_name();
        let known = [LOCK_NAME, SUPERBLOCK_NEW_NAME, BASE_NAME, RESERVE_NAME, "wal.0", "wal.1"];
        if !known.iter().any(|known| name == *known) {
            return Err(MetaError::Foreign { path: entry.path() });
        }
    }
    Ok(())
}

fn take_lock(dir: &Path) -> Result<Exclusive> {
    let path = dir.join(LOCK_NAME);
    let file = OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(&path);
    let file = file.map_err(io_error("open", &path))?;
    let lock = Exclusive::take(file.into()).map_err(|errno| io_error("lock", &path)(errno.into()))?;
    lock.ok_or_else(|| MetaError::InUse { dir: dir.to_owned() })
}

/// Creates all files, the superblock last: a directory without it is an unfinished creation, restarted next
/// time.
fn create(dir: &Path, options: &MetaStoreOptions) -> Result<()> {
    let base = dir.join(BASE_NAME);
    if base.exists() {
        fs::remove_dir_all(&base).map_err(io_error("remove", &base))?;
    }
    let mut uuid = [0; 16];
    let random = Path::new("/dev/urandom");
    File::open(random).and_then(|mut file| file.read_exact(&mut uuid)).map_err(io_error("read", random))?;
    let wal_segment_bytes = options.segment_that_fits(available_bytes(dir)?);
    for slot in 0..SEGMENTS {
        let header = SegmentHeader { uuid, sequence: slot as u64, base_transno: 0, durable_transno: 0 };
        let len = segment_len(wal_segment_bytes)?;
        let path = segment_path(dir, slot);
        Segment::create(&path, len, &header.encode()).map_err(io_error("write", &path))?;
    }
    Lmdb::create(&base, options.map_bytes, &uuid)?;
    let superblock = Superblock { uuid, wal_segment_bytes };
    let (new, path) = (dir.join(SUPERBLOCK_NEW_NAME), dir.join(SUPERBLOCK_NAME));
    let mut file = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(&new)
        .map_err(io_error("create", &new))?;
    file.write_all(&superblock.encode()).and_then(|()| file.sync_all()).map_err(io_error("write", &new))?;
    sync_dir(&base)?;
    sync_dir(dir)?;
    fs::rename(&new, &path).map_err(io_error("rename", &new))?;
    sync_dir(dir)?;
    twice::write_copy(dir, SUPERBLOCK_NAME, &superblock.encode()).map_err(io_error("write", &path))?;
    if let Some(parent) = dir.parent().filter(|parent| !parent.as_os_str().is_empty()) {
        sync_dir(parent)?;
    }
    Ok(())
}

fn available_bytes(dir: &Path) -> Result<u64> {
    let stat =
        rustix::fs::statvfs(dir).map_err(|errno| io_error("ask for the space of", dir)(errno.into()))?;
    Ok(stat.f_bavail.saturating_mul(stat.f_frsize))
}

fn sync_dir(dir: &Path) -> Result<()> {
    File::open(dir).and_then(|file| file.sync_all()).map_err(io_error("sync", dir))
}

fn segment_len(bytes: u64) -> Result<usize> {
    usize::try_from(bytes).map_err(|_| MetaError::Option {
        option: "wal_segment_bytes",
        requirement: "within the address space",
    })
}

/// Maps the log, replays it over the base and brings the base up to date.
fn recover(dir: &Path, options: MetaStoreOptions, superblock: &Superblock) -> Result<Engine> {
    let len = segment_len(superblock.wal_segment_bytes)?;
    let paths: [PathBuf; SEGMENTS] = std::array::from_fn(|slot| segment_path(dir, slot));
    let open = |slot: usize| Segment::open(&paths[slot], len, options.wal_mapped);
    let segments = [open(0)?, open(1)?];
    let (base, base_transno) = Lmdb::open(&dir.join(BASE_NAME), options.map_bytes, &superblock.uuid)?;
    let (recovered, maps) = {
        let [first, second] = [segments[0].load()?, segments[1].load()?];
        let data_ends = [first.data_end, second.data_end];
        let bytes = [&first.bytes[..], &second.bytes];
        replay_noting(&bytes, data_ends, &paths, &superblock.uuid, base_transno, &mut Err)?
    };
    let free_inside = base.sizes()?.free_bytes;
    let log = Log::new(segments, superblock.uuid, &recovered);
    let reserve = Reserve::open(dir, options.reserve_for(log.part()), free_inside);
    let engine = Engine {
        overlay: Overlay::new(),
        log,
        base: Base::Open(base),
        reserve,
        checkpointer: Checkpointer::default(),
        uuid: superblock.uuid,
        commit_interval_ms: AtomicU64::new(options.commit_interval_ms),
        options,
        is_closed: AtomicBool::new(false),
        stalls: AtomicU64::new(0),
        replayed: recovered.replayed,
        damage: Vec::new(),
    };
    if recovered.is_pending {
        engine.overlay.set_frozen(maps);
        engine.set_pending(recovered.last_transno);
        // A full disk does not prevent opening: reads work, and space can be freed.
        engine.attempt_pending();
        engine.log.latch().check()?;
    } else {
        engine.log.activate()?;
    }
    Ok(engine)
}

/// Collects the transactions in the segments beyond `base_transno`.
///
/// # Errors
/// [`MetaError::Corrupt`] if durable transactions are missing. Those that were not durable are dropped
/// without an error.
pub(crate) fn replay(
    segments: &[&[u8]; SEGMENTS],
    paths: &[PathBuf; SEGMENTS],
    uuid: &[u8; 16],
    base_transno: u64,
) -> Result<(Recovered, Vec<Map>)> {
    replay_noting(segments, segments.map(<[u8]>::len), paths, uuid, base_transno, &mut Err)
}

/// Replays as [`replay`] does, but continues with the valid records if `note` accepts the error. No record begins behind
/// `data_ends`.
fn replay_noting(
    segments: &[&[u8]; SEGMENTS],
    data_ends: [usize; SEGMENTS],
    paths: &[PathBuf; SEGMENTS],
    uuid: &[u8; 16],
    base_transno: u64,
    note: &mut dyn FnMut(MetaError) -> Result<()>,
) -> Result<(Recovered, Vec<Map>)> {
    let mut maps: Vec<Map> = (0..SHARDS).map(|_| Map::default()).collect();
    let mut damaged = |what, slot: usize, offset: usize| {
        note(MetaError::Corrupt { what, path: paths[slot].clone(), offset: offset as u64 })
    };
    let mut headers = Vec::new();
    for (slot, bytes) in segments.iter().enumerate() {
        match SegmentHeader::decode(bytes) {
            Some(header) if header.uuid == *uuid => headers.push((slot, header)),
            Some(_) => damaged("log segment of another store", slot, 0)?,
            None => damaged("log segment header", slot, 0)?,
        }
    }
    headers.sort_by_key(|(_, header)| header.sequence);
    let mut recovered = Recovered {
        ends: [SEGMENT_HEADER_LEN; SEGMENTS],
        last_transno: base_transno,
        durable_transno: base_transno,
        ..Recovered::default()
    };
    for (i, &(slot, header)) in headers.iter().enumerate() {
        recovered.sequences[slot] = header.sequence;
        if headers.get(i + 1).is_some_and(|(_, next)| next.base_transno <= base_transno) {
            continue;
        }
        if header.base_transno > recovered.last_transno {
            if header.durable_transno > recovered.last_transno {
                damaged("log records missing before this segment", slot, 0)?;
            }
            // A power cut lost the end of the older segment, so the records that followed were never durable.
            continue;
        }
        let mut records = Records::new(segments[slot], &header);
        for record in records.by_ref().filter(|record| record.transno > base_transno) {
            for op in super::batch::Ops::new(record.body) {
                maps[usize::from(op.shard())].apply(op.full_key, op.value);
            }
            recovered.last_transno = record.transno;
            recovered.replayed += 1;
        }
        recovered.ends[slot] = records.offset;
        if records.proves_loss_after(recovered.last_transno, data_ends[slot]) {
            damaged("log record", slot, records.offset)?;
        }
    }
    recovered.is_pending = recovered.replayed > 0;
    Ok((recovered, maps))
}
