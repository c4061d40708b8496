//! `lfs migrate -m`: moves inodes to other MDTs.
//!
//! A directory moves before its entries, so that new files are created on the right MDT; its entries move
//! once its names have moved. Each move is atomic, and the MDT of an inode shows whether it has moved. So
//! repeating the command moves the inodes that an interrupted run has left, or that were in use.

use super::{NAME, tell, wrong};
use crate::lfs::getopt::Parsed;
use crate::lfs::mounted::{self, Mounted};
use crate::lfs::number::parse_signed;
use crate::lfs::{Failure, Outcome, errno_of, error_text};
use crate::ost_list;
use nacre_env::clock::Instant;
use nacre_layout::dir_hash::DirHash;
use nacre_layout::dir_layout::DirFlags;
use nacre_layout::{DirLayout, user};
use nacre_types::ioctl::MakeDirectory;
use nacre_types::{Fid, TargetKind};
use rustix::io::Errno;
use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Options that go with `-m`.
const WITH: [char; 9] = ['m', 'c', 'C', 'H', 'd', 'Z', 'v', 'F', '0'];
/// Hashes that distribute names over MDTs.
const HASHES: [&str; 4] = ["all_char", "fnv_1a_64", "crush", "crush2"];
/// Longest time to retry a file that counts as open: its close may still be on the way to the MDT.
const CLOSED_WITHIN: Duration = Duration::from_secs(1);
/// Poll interval.
const LOOK_AGAIN: Duration = Duration::from_millis(10);

/// Requested placement of directories and their entries.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MigrateRequest {
    /// MDTs; the directory itself goes to the first.
    pub mdts: Vec<u16>,
    /// Number of shards; 0 for the number of MDTs in the list.
    pub count: i32,
    /// Hash as Lustre numbers it, with flags; 0 keeps it.
    pub hash: u32,
    /// Entries of directories stay.
    pub only_directories: bool,
    /// Paths are printed.
    pub is_verbose: bool,
}

/// Parses the options; `None` if data of files is to be moved.
pub fn of_options(parsed: &Parsed) -> Result<Option<MigrateRequest>, Failure> {
    let Some(list) = parsed.value('m') else {
        return match [('H', "-H"), ('d', "-d"), ('Z', "--clear-fixed")]
            .iter()
            .find(|(key, _)| parsed.has(*key))
        {
            Some((_, name)) => Err(wrong(&format!("{name} must be specified with -m"))),
            None => Ok(None),
        };
    };
    if parsed.options.iter().any(|(key, _)| !WITH.contains(key)) {
        return Err(wrong("cannot specify -m with layout options of files"));
    }
    let mdts = ost_list::listed(list, 10).ok_or_else(|| wrong(&format!("invalid MDT index '{list}'")))?;
    let count = |key: char| {
        let Some(text) = parsed.value(key) else { return Ok(None) };
        let count = parse_signed(text).filter(|count| (-5..=2000).contains(count));
        count.map(Some).ok_or_else(|| wrong(&format!("invalid stripe count '{text}'")))
    };
    let (plain, over) = (count('c')?, count('C')?);
    let known = |text: &str| HASHES.iter().any(|hash| text.split(',').next() == Some(*hash));
    if let Some(hash) = parsed.value('H').filter(|hash| !known(hash)) {
        return Err(wrong(&format!("bad directory hash type '{hash}'")));
    }
    let hash = parsed.value('H').and_then(|text| DirHash::from_name(text.split(',').next()?));
    let mut flags = DirFlags::empty();
    flags.set(DirFlags::OVERSTRIPED, over.is_some());
    // For an existing directory, this clears the flag.
    flags.set(DirFlags::FIXED, parsed.has('Z'));
    let count = over.or(plain).unwrap_or(0) as i32;
    if mdts.len() > 1 && count > 0 && mdts.len() as i32 != count {
        let given = mdts.len();
        return Err(wrong(&format!("stripe count {count} doesn't match the number of MDTs: {given}")));
    }
    let (only_directories, is_verbose) = (parsed.has('d'), parsed.has('v'));
    let hash = hash.map_or(0, |hash| hash.number().into()) | flags.bits();
    Ok(Some(MigrateRequest { mdts, count, hash, only_directories, is_verbose }))
}

/// Moves a path, and everything below it. Each failure is reported; the first one's code is returned.
pub fn migrate(requested: &MigrateRequest, path: &Path) -> Outcome {
    let found = fs::symlink_metadata(path).map_err(|error| failed(path, &error))?;
    if found.is_dir() && mounted::fid_of(path, false).map_err(|error| failed(path, &error))? == Fid::ROOT {
        return Err(failed(path, &io::Error::from(Errno::BUSY)));
    }
    let mount = Mounted::open(mounted::directory_of(path)).map_err(|error| failed(path, &error))?;
    let targets = mount.targets().map_err(|error| failed(path, &error))?;
    let exists = |index: &u16| {
        targets.iter().any(|row| row.target.kind == TargetKind::Mdt && row.target.index == *index)
    };
    if !requested.mdts.iter().all(exists) {
        return Err(failed(path, &io::Error::from(Errno::NODEV)));
    }
    let mut walk = Walk { requested, device: found.dev(), first: None };
    walk.visit(path, true);
    walk.first.map_or(Ok(()), Err)
}

fn failed(path: &Path, error: &io::Error) -> Failure {
    let errno = errno_of(error);
    let (text, number) = (error_text(errno), errno.raw_os_error());
    Failure::new(errno, format!("{NAME}: {} migrate failed: {text} (-{number})", path.display()))
}

struct Walk<'a> {
    requested: &'a MigrateRequest,
    /// Device of the file system; inodes on others are skipped.
    device: u64,
    first: Option<Failure>,
}

impl Walk<'_> {
    fn note(&mut self, path: &Path, error: &io::Error) {
        let failure = failed(path, error);
        failure.report();
        self.first.get_or_insert(Failure { message: String::new(), usage: None, ..failure });
    }

    /// Moves one inode, and then its entries.
    fn visit(&mut self, path: &Path, is_first: bool) {
        match migrate_one(self.requested, path) {
            Ok(true) => tell(self.requested.is_verbose, path),
            Ok(false) => {}
            // An entry that was removed meanwhile need not move.
            Err(error) if Errno::from_io_error(&error) == Some(Errno::NOENT) && !is_first => return,
            Err(error) => return self.note(path, &error),
        }
        let is_directory = path.symlink_metadata().is_ok_and(|found| found.is_dir());
        if !is_directory || self.requested.only_directories {
            return;
        }
        match self.entries(path) {
            Ok((files, directories)) => {
                files.iter().chain(&directories).for_each(|path| self.visit(path, false));
            }
            Err(error) => self.note(path, &error),
        }
    }

    /// Returns the entries of a directory: directories, and all others.
    fn entries(&self, directory: &Path) -> io::Result<(Vec<PathBuf>, Vec<PathBuf>)> {
        let (mut files, mut directories) = (Vec::new(), Vec::new());
        for entry in fs::read_dir(directory)? {
            let entry = entry?;
            let path = entry.path();
            match entry.file_type()?.is_dir() {
                true if path.symlink_metadata().is_ok_and(|found| found.dev() != self.device) => {}
                true => directories.push(path),
                false => files.push(path),
            }
        }
        Ok((files, directories))
    }
}

/// Moves one directory with its names, or one file; returns false if it is in the requested place already.
///
/// # Errors
/// Those of the request; `EBUSY` for a file that stays open.
pub fn migrate_one(requested: &MigrateRequest, path: &Path) -> io::Result<bool> {
    let is_directory = path.symlink_metadata()?.is_dir();
    let (parent, name) = place_of(path)?;
    let parent = Mounted::open(&parent)?;
    let count = if requested.count == 0 { requested.mdts.len() as i32 } else { requested.count };
    let ask = MakeDirectory {
        name: name.as_bytes().to_vec(),
        count,
        hash: requested.hash,
        migrates: true,
        mdts: requested.mdts.clone(),
        ..MakeDirectory::default()
    };
    let began = Instant::now();
    if is_directory {
        // Waits for names that another command, or an interrupted run of this one, is still moving.
        await_names(path)?;
    }
    loop {
        match parent.make_directory(&ask) {
            Ok(()) if is_directory => {
                await_names(path)?;
                // The directory has moved; the request makes the mount drop its cached names of the old
                // directory.
                let _ = parent.make_directory(&ask);
                return Ok(true);
            }
            Ok(()) => return Ok(true),
            Err(error) => match Errno::from_io_error(&error) {
                Some(Errno::ALREADY) => return Ok(false),
                Some(Errno::BUSY | Errno::AGAIN) if began.elapsed() < CLOSED_WITHIN => {
                    nacre_env::thread::sleep(LOOK_AGAIN);
                }
                _ => return Err(error),
            },
        }
    }
}

/// Splits a path into its directory and its name in it.
fn place_of(path: &Path) -> io::Result<(PathBuf, OsString)> {
    match path.file_name() {
        Some(name) => Ok((mounted::directory_of(path).to_owned(), name.to_owned())),
        None => {
            let whole = fs::canonicalize(path)?;
            let name = whole.file_name().ok_or(io::Error::from(Errno::BUSY))?;
            Ok((mounted::directory_of(&whole).to_owned(), name.to_owned()))
        }
    }
}

/// Waits until no names of a directory are being moved.
fn await_names(path: &Path) -> io::Result<()> {
    loop {
        let stored = mounted::directory_layout(path)?.filter(|stored| !user::is_foreign_directory(stored));
        let list = stored.and_then(|stored| DirLayout::decode(&stored).ok());
        if list.is_none_or(|list| list.change().is_none()) {
            return Ok(());
        }
        nacre_env::thread::sleep(LOOK_AGAIN);
    }
}
