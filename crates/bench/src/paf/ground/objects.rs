//! An object store, opened without its server. The objects of a run have a sequence that no file system uses.

use nacre_env::clock::Instant;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::Duration;

use nacre_ondisk::object::{OBJECT_DIRECTORY_LEN, ObjectDirectoryHeader};
use nacre_store::object::block::is_block_store;
use nacre_store::object::{
    BlockStore, BlockStoreOptions, CachePolicy, FileStore, FileStoreOptions, ObjectError, ObjectExtent,
    ObjectStore, PolicyCell,
};
use nacre_types::Fid;

use super::{Ground, Timed, check, not_empty, stamp};
use crate::buffer::Buffer;
use crate::error::Error;
use crate::paf::ageing::Files;
use crate::paf::computed;
use crate::{medium, pattern, stop};
use nacre_common::extents::Extent;
use nacre_common::frag::{self, FileFigures, FreeFigures, Unit};
use nacre_store::object::block::device::model::DiskSpec;
use nacre_store::object::simulated::{AnyMedium, Simulated};

/// Sequence of the objects: that of Lustre's echo client, which is reserved for tests of targets.
const SEQUENCE: u64 = 2;
/// FID of the measured object; file N is the object N + 1.
const MEASURED: Fid = Fid::new(SEQUENCE, 1, 0);
/// Size of one write in bytes while populating.
const CHUNK: usize = 1 << 20;
/// Ids per reservation.
const RESERVED: u32 = 10_000;
/// Timeout of the wait for the space of destroyed objects.
const FREED_WITHIN: Duration = Duration::from_secs(30);
/// Interval of checking for an interruption during that wait.
const LOOK: Duration = Duration::from_millis(100);
/// Objects per destroy call.
const DESTROYED: usize = 1000;

/// Returns whether a directory is that of an object store.
pub(super) fn is_store(directory: &Path) -> Result<bool, Error> {
    if is_block_store(directory) {
        return Ok(true);
    }
    let path = directory.join("superblock");
    let mut bytes = Vec::new();
    match File::open(&path) {
        Ok(file) => file
            .take(OBJECT_DIRECTORY_LEN as u64 + 1)
            .read_to_end(&mut bytes)
            .map_err(Error::io("read", &path))?,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(false),
        Err(error) => return Err(Error::io("open", &path)(error)),
    };
    Ok(ObjectDirectoryHeader::decode(&bytes).is_ok())
}

/// Opens the store as its target leaves it when it stops: background work of a store on a device is off.
fn open_store(dir: &Path) -> Result<Box<dyn ObjectStore>, ObjectError> {
    let store: Box<dyn ObjectStore> = match is_block_store(dir) {
        true => Box::new(BlockStore::open(dir, BlockStoreOptions::default())?),
        false => Box::new(FileStore::open(dir, FileStoreOptions::default())?),
    };
    Ok(Box::new(Simulated::new(store)))
}

pub(in crate::paf) struct ObjectGround {
    dir: PathBuf,
    store: Box<dyn ObjectStore>,
    /// The store's own policy for the page cache, if it uses it.
    usual: Option<CachePolicy>,
    /// Medium that is simulated below the store during measurements.
    medium: Option<AnyMedium>,
    /// The disk whose time is computed in place of the real one: for a store of files, which cannot be made
    /// to wait for it.
    computed: Option<DiskSpec>,
    /// Serialises reservations.
    reserving: Mutex<()>,
}

impl ObjectGround {
    pub(super) fn open(dir: &Path, medium: Option<AnyMedium>) -> Result<ObjectGround, Error> {
        let store = open_store(dir).map_err(|error| match error {
            ObjectError::InUse { dir } => Error::Usage(format!(
                "the object store {} is in use: stop its target first, with 'nacre down'",
                dir.display()
            )),
            error => error.into(),
        })?;
        let usual = store.abilities().page_cache.map(PolicyCell::get);
        let is_on_device = store.abilities().device_store.is_some();
        let computed = medium.filter(|_| !is_on_device).and_then(computed::disk_of);
        let medium = medium.filter(|_| computed.is_none());
        let (dir_owned, reserving) = (dir.to_owned(), Mutex::default());
        let ground = ObjectGround { dir: dir_owned, store, usual, medium, computed, reserving };
        // Fails before anything is written.
        ground.files()?;
        if let Some(medium) = medium {
            medium::set(medium, &*ground.store, dir)?;
        }
        ground.simulate(false)?;
        Ok(ground)
    }

    fn object(number: u64) -> Result<Fid, Error> {
        let oid = u32::try_from(number + 1).map_err(|_| ObjectError::SequenceFull(SEQUENCE))?;
        Ok(Fid::new(SEQUENCE, oid, 0))
    }

    /// Reserves ids up to that of an object: objects above are in use by no file.
    fn reserve(&self, object: Fid) -> Result<(), Error> {
        let _turn = self.reserving.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let ids = self.store.abilities().ids_of(SEQUENCE)?;
        while ids.last_reserved(SEQUENCE)? < object.oid {
            ids.reserve(SEQUENCE, RESERVED)?;
        }
        Ok(())
    }

    fn is_there(&self, object: Fid) -> Result<Option<u64>, Error> {
        let attr = self.store.attr(object)?;
        Ok(attr.mtime.map(|_| attr.size))
    }

    fn write_whole(&self, object: Fid, offset: u64, data: &[u8]) -> Result<(), Error> {
        match self.store.write(object, offset, data)? {
            written if written == data.len() => Ok(()),
            _ => Err(ObjectError::NoSpace.into()),
        }
    }

    /// Switches the simulation at the start and end of a measurement: media take time only during one. A
    /// medium whose state depends on earlier writes is always on.
    fn simulate(&self, is_measured: bool) -> Result<(), Error> {
        match self.medium {
            None => Ok(()),
            Some(medium) if medium.remembers() => Ok(()),
            Some(medium) if is_measured => medium::set(medium, &*self.store, &self.dir),
            Some(_) => medium::set(AnyMedium::Nothing, &*self.store, &self.dir),
        }
    }

    /// Returns the time that counts for a transfer of the measured object.
    fn counted(&self, timed: Timed, bytes: u64, xfer: usize) -> Result<Timed, Error> {
        let Some(disk) = self.computed else { return Ok(timed) };
        let extents = self.store.abilities().extents;
        let found = extents.map_or(Ok(None), |known| known.extents(MEASURED))?.ok_or_else(|| {
            Error::Usage(format!(
                "the file system of {} does not report extents of objects: a disk cannot be simulated there, name another --target",
                self.dir.display()
            ))
        })?;
        let extent = |extent: &ObjectExtent| {
            let ObjectExtent { logical, physical, len } = *extent;
            Extent { logical, physical, length: len }
        };
        let extents: Vec<Extent> = found.iter().map(extent).collect();
        let label = format!("object {MEASURED} in {}", self.dir.display());
        let disk_bytes = self.store.space()?.total;
        let seconds = computed::seconds(disk, disk_bytes, &extents, bytes, xfer as u64, &label)?;
        Ok(Timed { seconds, ..timed })
    }

    /// Runs `work` with every transfer bypassing the page cache where possible, and on the simulated medium.
    fn measured<T>(&self, work: impl FnOnce() -> Result<T, Error>) -> Result<T, Error> {
        self.simulate(true)?;
        let cache = self.store.abilities().page_cache.zip(self.usual);
        if let Some((cache, usual)) = cache {
            cache.set(CachePolicy { read: false, write: false, ..usual });
        }
        let result = work();
        if let Some((cache, usual)) = cache {
            cache.set(usual);
        }
        self.simulate(false)?;
        result
    }
}

impl Ground for ObjectGround {
    fn label(&self) -> String {
        let dir = self.dir.display();
        match (self.medium, self.computed) {
            (Some(medium), _) => format!("{dir} (object store, simulated {medium})"),
            (None, Some(disk)) => format!("{dir} (object store, computed {disk})"),
            (None, None) => format!("{dir} (object store)"),
        }
    }

    fn is_computed(&self) -> bool {
        self.computed.is_some()
    }

    fn room(&self) -> Result<u64, Error> {
        Ok(self.store.space()?.available)
    }

    fn files(&self) -> Result<Files, Error> {
        let mut files = Files::new();
        let mut known = u64::from(self.is_there(MEASURED)?.is_some());
        for oid in 2..=self.store.abilities().ids_of(SEQUENCE)?.last_reserved(SEQUENCE)? {
            if let Some(bytes) = self.is_there(Fid::new(SEQUENCE, oid, 0))? {
                files.insert(u64::from(oid) - 1, bytes);
                known += 1;
            }
        }
        match self.store.stats().objects.saturating_sub(known) {
            0 => Ok(files),
            others => Err(not_empty(&self.dir, &format!("it holds {others} objects of a file system"))),
        }
    }

    fn write(&self, number: u64, bytes: u64, seed: u64) -> Result<(), Error> {
        let object = ObjectGround::object(number)?;
        self.reserve(object)?;
        let mut chunk = Buffer::new(CHUNK.min(bytes as usize));
        let chunk = chunk.slice();
        pattern::fill(chunk, seed, number, 0);
        for offset in stop::transfers(bytes, chunk.len()) {
            let offset = offset?;
            let length = (bytes - offset).min(chunk.len() as u64) as usize;
            self.write_whole(object, offset, &chunk[..length])?;
        }
        Ok(())
    }

    fn remove(&self, numbers: &[u64]) -> Result<(), Error> {
        for some in numbers.chunks(DESTROYED) {
            let objects = some.iter().map(|number| ObjectGround::object(*number));
            self.store.destroy(&objects.collect::<Result<Vec<Fid>, Error>>()?)?;
        }
        Ok(())
    }

    fn settle(&self) -> Result<(), Error> {
        Ok(self.store.sync_all()?)
    }

    fn await_room(&self) -> Result<(), Error> {
        let deadline = Instant::now() + FREED_WITHIN;
        while !stop::asked() && Instant::now() < deadline {
            let end = deadline.min(Instant::now() + LOOK);
            if self.store.abilities().releaser.is_none_or(|releaser| releaser.drain_until(end)) {
                break;
            }
        }
        Ok(())
    }

    fn measure_write(&self, bytes: u64, buffer: &mut Buffer) -> Result<Timed, Error> {
        self.reserve(MEASURED)?;
        self.measured(|| {
            let before = self.store.stats().writes_direct;
            let start = Instant::now();
            let block = buffer.slice();
            for offset in stop::transfers(bytes, block.len()) {
                let offset = offset?;
                stamp(block, offset);
                self.write_whole(MEASURED, offset, block)?;
            }
            self.store.sync(MEASURED)?;
            let seconds = start.elapsed().as_secs_f64();
            let transfers = bytes / block.len() as u64;
            let direct = self.store.stats().writes_direct - before >= transfers;
            self.counted(Timed { seconds, direct }, bytes, block.len())
        })
    }

    fn measure_read(&self, bytes: u64, buffer: &mut Buffer) -> Result<Timed, Error> {
        self.measured(|| {
            let before = self.store.stats().reads_direct;
            let start = Instant::now();
            let block = buffer.slice();
            let label = format!("object {MEASURED} in {}", self.dir.display());
            for offset in stop::transfers(bytes, block.len()) {
                let offset = offset?;
                block[..8].fill(0);
                self.store.read(MEASURED, offset, block, 0)?;
                check(block, offset, &label)?;
            }
            let seconds = start.elapsed().as_secs_f64();
            let transfers = bytes / block.len() as u64;
            let direct = self.store.stats().reads_direct - before >= transfers;
            self.counted(Timed { seconds, direct }, bytes, block.len())
        })
    }

    fn remove_measured(&self) -> Result<(), Error> {
        self.store.destroy(&[MEASURED])?;
        Ok(())
    }

    fn shape(&self, unit: Unit) -> (Option<FileFigures>, Option<FreeFigures>) {
        if self.store.abilities().device_store.is_some() {
            return frag::shape_of(&*self.store, unit).ok().unzip();
        }
        (frag::files_of(&[&self.dir.join("objects")], "", unit), frag::free_of(&[&self.dir], unit))
    }

    fn leave(&self) -> Result<(), Error> {
        Ok(self.store.close()?)
    }
}

impl Drop for ObjectGround {
    fn drop(&mut self) {
        // A run that has ended well has closed it already; for an interrupted one the objects are kept.
        if let Err(error) = self.store.close()
            && !matches!(error, ObjectError::Closed)
        {
            eprintln!("paf: close {}: {error}", self.dir.display());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(medium: &str) -> Option<AnyMedium> {
        medium::parse(medium).ok()
    }

    #[test]
    fn only_what_is_measured_takes_the_time_of_a_simulated_disk_and_flash_is_there_all_the_time() {
        for (spec, while_populated) in
            [("disk:seek=20ms:turn=8333us", "off"), ("flash:program=20ms:channels=1", "flash")]
        {
            let scratch = tempfile::tempdir().expect("a directory");
            let options = BlockStoreOptions { create: true, size: 64 << 20, ..BlockStoreOptions::default() };
            BlockStore::open(scratch.path(), options).and_then(|store| store.close()).expect("made");
            let ground = ObjectGround::open(scratch.path(), parse(spec)).expect("opened");
            ground.write(1, 1 << 20, 7).expect("populated");
            let now = AnyMedium::of(&*ground.store).to_string();
            assert!(now.starts_with(while_populated), "{spec}: {now}");
            let mut buffer = Buffer::new(64 << 10);
            let took = ground.measure_write(256 << 10, &mut buffer).expect("written").seconds;
            assert!(took >= 0.02, "{spec}: {took}");
            ground.measure_read(256 << 10, &mut buffer).expect("what was written");
            assert!(ground.label().contains("simulated"), "{}", ground.label());
        }
    }

    #[test]
    fn of_a_store_of_files_the_time_of_a_disk_is_worked_out_and_flash_is_refused() {
        let scratch = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).expect("a directory on a disk");
        FileStore::open(scratch.path(), FileStoreOptions::create()).and_then(|s| s.close()).expect("made");
        let refused = ObjectGround::open(scratch.path(), parse("flash")).err().expect("refused").to_string();
        assert!(refused.contains("keeps a file for each object"), "{refused}");
        ObjectGround::open(scratch.path(), parse("seek=1ms:bandwidth=1G")).expect("any store has that");
        let slow = "disk:seek=8ms:turn=8ms:bandwidth=1M";
        let ground = ObjectGround::open(scratch.path(), parse(slow)).expect("opened");
        assert!(ground.is_computed() && ground.label().contains("computed disk"), "{}", ground.label());
        let mut buffer = Buffer::new(1 << 20);
        let start = Instant::now();
        let (bytes, least) = (60 << 20, 60.0);
        let took = ground.measure_write(bytes, &mut buffer).expect("written").seconds;
        assert!(took >= least && took > start.elapsed().as_secs_f64(), "{took}");
        assert!(ground.measure_read(bytes, &mut buffer).expect("what was written").seconds >= least);
    }

    #[test]
    fn what_is_worked_out_is_about_what_a_simulated_disk_takes() {
        let scratch = tempfile::tempdir().expect("a directory");
        let options = BlockStoreOptions { create: true, size: 128 << 20, ..BlockStoreOptions::default() };
        BlockStore::open(scratch.path(), options).and_then(|store| store.close()).expect("made");
        let medium = parse("disk:seek=8ms:bandwidth=40M").expect("a disk");
        let mut ground = ObjectGround::open(scratch.path(), Some(medium)).expect("opened");
        for number in 1..60 {
            ground.write(number, 1 << 20, 7).expect("populated");
        }
        ground.remove(&(1..60).step_by(2).collect::<Vec<u64>>()).expect("removed");
        ground.settle().expect("settled");
        let mut buffer = Buffer::new(1 << 20);
        ground.measure_write(16 << 20, &mut buffer).expect("written");
        let waited = ground.measure_read(16 << 20, &mut buffer).expect("read").seconds;
        ground.computed = computed::disk_of(medium);
        let timed = Timed { seconds: waited, direct: true };
        let computed = ground.counted(timed, 16 << 20, 1 << 20).expect("known").seconds;
        assert!((0.7..1.05).contains(&(computed / waited)), "computed {computed} s, waited {waited} s");
    }
}
