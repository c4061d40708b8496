//! A directory of any file system. All files of a run are in a subdirectory of its own, with a file that
//! identifies the run.

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::{Ground, Owner, Timed, check, not_empty, stamp};
use crate::buffer::{Buffer, O_DIRECT};
use crate::error::Error;
use crate::paf::ageing::Files;
use crate::paf::computed;
use crate::{machine, pattern, stop};
use nacre_common::extents::{self, Extent};
use nacre_common::frag::{self, FileFigures, FreeFigures, Unit};
use nacre_common::place;
use nacre_store::object::block::device::model::DiskSpec;
use rustix::fs::Advice;
use rustix::io::Errno;

/// Name of the run's directory in the target.
const OWN: &str = "nacre-paf";
/// Name of the file in it with the run's id and the directory of its results.
const OWNER: &str = "owner";
/// Name of the measured file in it.
const MEASURED: &str = "measured";
/// Number of files per directory.
const SPREAD: u64 = 1000;
/// Time without growth after which the free space counts as final.
const STANDS_STILL: Duration = Duration::from_millis(2500);
/// Growth in bytes that does not count: other programs may use the file system, too.
const GROWN: u64 = 1 << 20;
/// Timeout of the wait for free space.
const FREED_WITHIN: Duration = Duration::from_secs(30);
/// Interval of polling it.
const LOOK_AGAIN: Duration = Duration::from_millis(50);
/// Size of one write in bytes while populating.
const CHUNK: usize = 1 << 20;

pub(in crate::paf) struct DirectoryGround {
    target: PathBuf,
    own: PathBuf,
    /// Directories of the objects of its files, for a NacreFS mount.
    below: Vec<PathBuf>,
    /// The disk whose time is computed in place of the real one.
    disk: Option<DiskSpec>,
}

impl DirectoryGround {
    pub(super) fn open(
        target: &Path,
        owner: &Owner,
        below: Vec<PathBuf>,
        disk: Option<DiskSpec>,
    ) -> Result<DirectoryGround, Error> {
        let own = target.join(OWN);
        let mut is_there = false;
        for entry in fs::read_dir(target).map_err(Error::io("read", target))? {
            let name = entry.map_err(Error::io("read", target))?.file_name();
            match name.to_str() {
                // Every new ext4 has this directory.
                Some("lost+found") => {}
                Some(OWN) => is_there = true,
                _ => return Err(not_empty(target, &format!("there is '{}'", name.display()))),
            }
        }
        if is_there {
            check_owner(target, &own, owner)?;
        } else {
            make_own(&own, owner)?;
        }
        let ground = DirectoryGround { target: target.to_owned(), own, below, disk };
        if disk.is_some()
            && let Err(error) = ground.extents(&ground.own.join(OWNER))
        {
            ground.leave()?;
            return Err(error);
        }
        Ok(ground)
    }

    /// Returns the extents of a file.
    fn extents(&self, path: &Path) -> Result<Vec<Extent>, Error> {
        let file = File::open(path).map_err(Error::io("open", path))?;
        extents::of_file(&file).map_err(|error| match Errno::from_io_error(&error) {
            Some(Errno::OPNOTSUPP | Errno::NOTTY) => Error::Usage(format!(
                "the file system of {} does not report extents of files: a disk cannot be simulated there, name another --target",
                self.target.display()
            )),
            _ => Error::io("look for the extents of", path)(error),
        })
    }

    /// Returns the time that counts for a transfer of the measured file: that of the disk, if one is
    /// simulated.
    fn counted(&self, timed: Timed, bytes: u64, xfer: usize) -> Result<Timed, Error> {
        let Some(disk) = self.disk else { return Ok(timed) };
        let path = self.measured();
        let found = rustix::fs::statvfs(&self.target).map_err(Error::io("statvfs", &self.target))?;
        let disk_bytes = found.f_blocks.saturating_mul(found.f_frsize);
        let label = path.display().to_string();
        let seconds = computed::seconds(disk, disk_bytes, &self.extents(&path)?, bytes, xfer as u64, &label)?;
        Ok(Timed { seconds, ..timed })
    }

    fn path(&self, number: u64) -> PathBuf {
        self.own.join(format!("d{:05}", number / SPREAD)).join(format!("f{number}"))
    }

    fn measured(&self) -> PathBuf {
        self.own.join(MEASURED)
    }

    /// Opens the file with O_DIRECT, or without it where the file system lacks it.
    fn open_measured(&self, options: &mut OpenOptions) -> Result<(File, bool), Error> {
        let path = self.measured();
        match options.clone().custom_flags(O_DIRECT).open(&path) {
            Ok(file) => Ok((file, true)),
            Err(error) if Errno::from_io_error(&error) == Some(Errno::INVAL) => {
                Ok((options.open(&path).map_err(Error::io("open", &path))?, false))
            }
            Err(error) => Err(Error::io("open", &path)(error)),
        }
    }
}

fn make_own(own: &Path, owner: &Owner) -> Result<(), Error> {
    fs::create_dir(own).map_err(Error::io("create directory", own))?;
    let path = own.join(OWNER);
    let mut file = File::create_new(&path).map_err(Error::io("create", &path))?;
    let text = format!("{}\n{}\n", owner.id, owner.output);
    file.write_all(text.as_bytes()).and_then(|()| file.sync_all()).map_err(Error::io("write", &path))
}

fn check_owner(target: &Path, own: &Path, owner: &Owner) -> Result<(), Error> {
    let text = fs::read_to_string(own.join(OWNER)).unwrap_or_default();
    let mut lines = text.lines();
    match (lines.next(), lines.next()) {
        (Some(id), _) if id == owner.id => Ok(()),
        (Some(_), Some(output)) => {
            let what =
                format!("files of another run exist: continue it with --output {output}, or remove {OWN}");
            Err(not_empty(target, &what))
        }
        // A run that ended before it wrote its owner file has created nothing else.
        _ if fs::read_dir(own).is_ok_and(|entries| entries.flatten().all(|e| e.file_name() == OWNER)) => {
            let _ = fs::remove_file(own.join(OWNER));
            fs::remove_dir(own).map_err(Error::io("remove", own))?;
            make_own(own, owner)
        }
        _ => Err(not_empty(target, &format!("there is '{OWN}', and it is no run's"))),
    }
}

impl Ground for DirectoryGround {
    fn label(&self) -> String {
        let kind = place::file_system(&self.target).unwrap_or_else(|_| "unknown".to_owned());
        match self.disk {
            None => format!("{} ({kind})", self.target.display()),
            Some(disk) => format!("{} ({kind}, computed {disk})", self.target.display()),
        }
    }

    fn is_computed(&self) -> bool {
        self.disk.is_some()
    }

    fn room(&self) -> Result<u64, Error> {
        let found = rustix::fs::statvfs(&self.target).map_err(Error::io("statvfs", &self.target))?;
        Ok(found.f_bavail.saturating_mul(found.f_frsize))
    }

    fn files(&self) -> Result<Files, Error> {
        let mut files = Files::new();
        for entry in fs::read_dir(&self.own).map_err(Error::io("read", &self.own))? {
            let entry = entry.map_err(Error::io("read", &self.own))?;
            let name = entry.file_name();
            let path = entry.path();
            match name.to_str() {
                Some(OWNER | MEASURED) => continue,
                Some(name) if name.len() == 6 && name.starts_with('d') && path.is_dir() => {}
                _ => return Err(foreign(&path)),
            }
            for entry in fs::read_dir(&path).map_err(Error::io("read", &path))? {
                let entry = entry.map_err(Error::io("read", &path))?;
                let path = entry.path();
                let found = entry.metadata().map_err(Error::io("look at", &path))?;
                let number = entry.file_name().to_str().and_then(|name| name.strip_prefix('f')?.parse().ok());
                match number {
                    Some(number) if found.is_file() && self.path(number) == path => {
                        files.insert(number, found.len());
                    }
                    _ => return Err(foreign(&path)),
                }
            }
        }
        Ok(files)
    }

    fn write(&self, number: u64, bytes: u64, seed: u64) -> Result<(), Error> {
        let path = self.path(number);
        let directory = path.parent().unwrap_or(&self.own);
        match fs::create_dir(directory) {
            Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => {
                return Err(Error::io("create directory", directory)(error));
            }
            _ => {}
        }
        let file = File::create_new(&path).map_err(Error::io("create", &path))?;
        let mut chunk = vec![0; CHUNK.min(bytes as usize)];
        pattern::fill(&mut chunk, seed, number, 0);
        for offset in stop::transfers(bytes, chunk.len()) {
            let offset = offset?;
            let length = (bytes - offset).min(chunk.len() as u64) as usize;
            file.write_all_at(&chunk[..length], offset).map_err(Error::io("write", &path))?;
        }
        Ok(())
    }

    fn remove(&self, numbers: &[u64]) -> Result<(), Error> {
        for &number in numbers {
            let path = self.path(number);
            fs::remove_file(&path).map_err(Error::io("remove", &path))?;
        }
        Ok(())
    }

    fn settle(&self) -> Result<(), Error> {
        let directory = File::open(&self.own).map_err(Error::io("open", &self.own))?;
        rustix::fs::syncfs(&directory).map_err(Error::io("syncfs", &self.own))
    }

    /// Network file systems free space asynchronously at their servers. NacreFS reports it up to a second
    /// late.
    fn await_room(&self) -> Result<(), Error> {
        let kind = place::file_system(&self.target).map_err(Error::io("look at", &self.target))?;
        if !["fuse", "nfs", "lustre", "ceph", "cifs"].iter().any(|remote| kind.starts_with(remote)) {
            return Ok(());
        }
        let deadline = Instant::now() + FREED_WITHIN;
        let (mut room, mut since) = (self.room()?, Instant::now());
        while since.elapsed() < STANDS_STILL && Instant::now() < deadline && !stop::asked() {
            std::thread::sleep(LOOK_AGAIN);
            let now = self.room()?;
            if now > room + GROWN {
                (room, since) = (now, Instant::now());
            }
        }
        Ok(())
    }

    fn measure_write(&self, bytes: u64, buffer: &mut Buffer) -> Result<Timed, Error> {
        let path = self.measured();
        let start = Instant::now();
        let (mut file, mut direct) =
            self.open_measured(OpenOptions::new().write(true).create(true).truncate(true))?;
        let block = buffer.slice();
        for offset in stop::transfers(bytes, block.len()) {
            let offset = offset?;
            stamp(block, offset);
            match file.write_all_at(block, offset) {
                // The open accepted O_DIRECT, but the first write does not.
                Err(error) if direct && offset == 0 && Errno::from_io_error(&error) == Some(Errno::INVAL) => {
                    direct = false;
                    file = OpenOptions::new().write(true).open(&path).map_err(Error::io("open", &path))?;
                    file.write_all_at(block, offset).map_err(Error::io("write", &path))?;
                }
                result => result.map_err(Error::io("write", &path))?,
            }
        }
        file.sync_all().map_err(Error::io("fsync", &path))?;
        drop(file);
        self.counted(Timed { seconds: start.elapsed().as_secs_f64(), direct }, bytes, block.len())
    }

    fn measure_read(&self, bytes: u64, buffer: &mut Buffer) -> Result<Timed, Error> {
        let path = self.measured();
        let start = Instant::now();
        let (mut file, mut direct) = self.open_measured(OpenOptions::new().read(true))?;
        if !direct {
            forget(&file);
        }
        let block = buffer.slice();
        for offset in stop::transfers(bytes, block.len()) {
            let offset = offset?;
            match file.read_exact_at(block, offset) {
                Err(error) if direct && offset == 0 && Errno::from_io_error(&error) == Some(Errno::INVAL) => {
                    direct = false;
                    file = File::open(&path).map_err(Error::io("open", &path))?;
                    forget(&file);
                    file.read_exact_at(block, offset).map_err(Error::io("read", &path))?;
                }
                result => result.map_err(Error::io("read", &path))?,
            }
            check(block, offset, &path.display().to_string())?;
        }
        self.counted(Timed { seconds: start.elapsed().as_secs_f64(), direct }, bytes, block.len())
    }

    fn remove_measured(&self) -> Result<(), Error> {
        machine::remove_file(&self.measured())
    }

    fn shape(&self, unit: Unit) -> (Option<FileFigures>, Option<FreeFigures>) {
        match self.below.as_slice() {
            [] => (frag::files_of(&[&self.own], OWNER, unit), frag::free_of(&[&self.target], unit)),
            below => {
                let below: Vec<&Path> = below.iter().map(PathBuf::as_path).collect();
                (frag::files_of(&below, "", unit), frag::free_of(&below, unit))
            }
        }
    }

    fn leave(&self) -> Result<(), Error> {
        for entry in fs::read_dir(&self.own).map_err(Error::io("read", &self.own))? {
            let path = entry.map_err(Error::io("read", &self.own))?.path();
            if path.is_dir() {
                fs::remove_dir(&path).map_err(Error::io("remove", &path))?;
            }
        }
        let owner = self.own.join(OWNER);
        fs::remove_file(&owner).map_err(Error::io("remove", &owner))?;
        fs::remove_dir(&self.own).map_err(Error::io("remove", &self.own))
    }
}

fn foreign(path: &Path) -> Error {
    Error::Usage(format!("{} was not created by this run: remove it; nothing was changed", path.display()))
}

/// Drops clean pages of a file from the page cache. Only advice: where it has no effect, the read shows it.
fn forget(file: &File) {
    let _ = rustix::fs::fadvise(file, 0, None, Advice::DontNeed);
}
