//! Directory of a file system: its files, formatting, and recognition of foreign directories.
//!
//! ```text
//! DIR/superblock   identity: name, UUID, format, number of targets
//! DIR/mgs/         configuration
//! DIR/mdt0000/     metadata
//! DIR/ost0000/ ..  objects
//! DIR/start        options of the last start ([`crate::start`])
//! DIR/run/         of running processes: pid files, control sockets, logs, ports
//! DIR/targets      targets on this host, if the superblock does not count them ([`members`])
//! ```
//!
//! While formatting there is a file `formatting` and no superblock; after a crash the next attempt recognises
//! the marker and removes what the interrupted one left. No other file is ever removed.

mod members;

pub use members::{Adding, is_joining, joined, next_target, note_joining};

use crate::failure::{Failure, Result};
use nacre_env::twice;
use nacre_ondisk::superblock::{FORMAT_VERSION, FORMAT_VERSION_LISTED, Superblock, SuperblockError};
use nacre_store::object::block::is_block_store;
use nacre_types::{TargetId, TargetKind, Timestamp};
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// File whose presence marks a directory as a file system.
pub const SUPERBLOCK: &str = "superblock";
/// Subdirectory of an MDT with the store for data of files, if it has one in addition to its metadata store.
pub const MDT_DATA: &str = "data";
/// File with the options of the last start ([`crate::start`]).
pub const START: &str = "start";
const FORMATTING: &str = "formatting";
const FORMATTING_TEXT: &str = "NacreFS is being formatted here\n";

/// A formatted directory.
#[derive(Clone, Debug)]
pub struct Instance {
    /// Absolute path.
    pub dir: PathBuf,
    /// Contents of the superblock.
    pub superblock: Superblock,
    /// Targets of this directory, unless the superblock counts them.
    listed: Option<Vec<TargetId>>,
}

/// Options of formatting.
#[derive(Clone, Debug)]
pub struct FormatOptions {
    /// Name of the file system.
    pub fsname: String,
    /// Number of metadata targets.
    pub mdt_count: u16,
    /// Number of object targets.
    pub ost_count: u16,
    /// Identity of the existing file system and the one target of it that the directory is for; `None` for a
    /// new file system.
    pub joins: Option<Joins>,
}

impl FormatOptions {
    /// Returns the targets to create, unless the directory joins a file system.
    pub fn targets(&self) -> Vec<TargetId> {
        counted(self.mdt_count, self.ost_count)
    }
}

/// Returns the MGT, `mdts` MDTs and `osts` OSTs.
fn counted(mdts: u16, osts: u16) -> Vec<TargetId> {
    let mdts = (0..mdts).map(TargetId::mdt);
    std::iter::once(TargetId::mgt()).chain(mdts).chain((0..osts).map(TargetId::ost)).collect()
}

/// State of a directory before it was formatted.
#[derive(Debug)]
pub struct Formatting {
    dir: PathBuf,
    was_there: bool,
}

impl Formatting {
    /// Records the state of a directory that is to be formatted.
    ///
    /// # Errors
    /// If the current directory no longer exists.
    pub fn of(dir: &Path) -> Result<Formatting> {
        let dir = absolute(dir)?;
        Ok(Formatting { was_there: dir.exists(), dir })
    }

    /// Removes a file system in which nothing was stored, and its directory if formatting created it.
    ///
    /// # Errors
    /// If it cannot be removed; what is left is an unfinished formatting.
    pub fn undo(&self, instance: &Instance) -> Result<()> {
        write_durably(&instance.dir, FORMATTING, FORMATTING_TEXT.as_bytes())?;
        // The copy goes first: alone it would be taken for the superblock.
        let copy = twice::copy_path(&instance.dir, SUPERBLOCK);
        for path in [copy, instance.dir.join(SUPERBLOCK), instance.dir.join(START)] {
            if_there(fs::remove_file(&path))
                .map_err(Failure::because(format!("remove {}", path.display())))?;
        }
        self.undo_unfinished()
    }

    /// Removes what a failed formatting left.
    fn undo_unfinished(&self) -> Result<()> {
        remove_unfinished(&self.dir)?;
        let fail = || Failure::because(format!("remove unfinished {}", self.dir.display()));
        fs::remove_file(self.dir.join(FORMATTING)).map_err(fail())?;
        if self.was_there { Ok(()) } else { fs::remove_dir(&self.dir).map_err(fail()) }
    }
}

/// See [`FormatOptions::joins`].
#[derive(Clone, Copy, Debug)]
pub struct Joins {
    /// UUID of the file system.
    pub fs_uuid: [u8; 16],
    /// The target to create.
    pub target: TargetId,
}

impl Instance {
    /// Opens a formatted directory; `None` if it is missing, empty, or an unfinished formatting.
    ///
    /// # Errors
    /// If the directory holds other files or another format, or belongs to another user.
    pub fn open(dir: &Path) -> Result<Option<Instance>> {
        let dir = absolute(dir)?;
        let superblock = match read_superblock(&dir) {
            Ok(Some(found)) => found.value,
            Ok(None) => return check_unformatted(&dir).map(|()| None),
            Err(Unusable::System(error)) => match error.kind() {
                io::ErrorKind::NotADirectory => {
                    return Err(Failure::new(format!("{} is not a directory: name one", dir.display())));
                }
                io::ErrorKind::PermissionDenied => return Err(other_user(&dir)),
                _ => return Err(Failure::because(format!("read {}/{SUPERBLOCK}", dir.display()))(error)),
            },
            Err(Unusable::Format(SuperblockError::Foreign)) => {
                return Err(Failure::new(format!(
                    "{} holds something else that has a file named '{SUPERBLOCK}': choose an empty directory",
                    dir.display()
                )));
            }
            Err(Unusable::Format(error)) => {
                return Err(Failure::new(format!("{} cannot be used: {error}", dir.display())));
            }
        };
        let owner = fs::metadata(&dir).map_err(Failure::because(format!("look at {}", dir.display())))?.uid();
        let me = rustix::process::geteuid().as_raw();
        if me != 0 && owner != me {
            return Err(other_user(&dir));
        }
        let listed = match superblock.version {
            FORMAT_VERSION_LISTED => Some(members::read(&dir)?),
            _ => None,
        };
        Ok(Some(Instance { dir, superblock, listed }))
    }

    /// Like [`Instance::open`], for commands that need an existing file system.
    ///
    /// # Errors
    /// As [`Instance::open`], and if there is no file system.
    pub fn open_existing(dir: &Path) -> Result<Instance> {
        Instance::open(dir)?.ok_or_else(|| {
            Failure::new(format!(
                "there is no NacreFS file system in {}: make one with 'nacre up {} --mount MOUNT_POINT'",
                dir.display(),
                dir.display()
            ))
        })
    }

    /// Creates a file system in `dir`. `make_target` fills the directory of each target; `progress` gets
    /// lines of text.
    ///
    /// # Durability
    /// Durable on return: the superblock is written last.
    ///
    /// # Errors
    /// If the directory is not empty, or a file cannot be created; the directory is then as before.
    pub fn format(
        dir: &Path,
        options: &FormatOptions,
        make_target: impl Fn(&Instance, TargetId) -> Result<()>,
        progress: impl FnMut(&str),
    ) -> Result<Instance> {
        let before = Formatting::of(dir)?;
        make_dir(&before.dir, 0o711)?;
        check_unformatted(&before.dir)?;
        remove_unfinished(&before.dir)?;
        write_durably(&before.dir, FORMATTING, FORMATTING_TEXT.as_bytes())?;
        Instance::fill(before.dir.clone(), options, make_target, progress).inspect_err(|_| {
            if let Err(failure) = before.undo_unfinished() {
                log::warn!("{failure}");
            }
        })
    }

    /// Fills a directory that is marked as being formatted.
    fn fill(
        dir: PathBuf,
        options: &FormatOptions,
        make_target: impl Fn(&Instance, TargetId) -> Result<()>,
        mut progress: impl FnMut(&str),
    ) -> Result<Instance> {
        let superblock = Superblock {
            version: if options.joins.is_some() { FORMAT_VERSION_LISTED } else { FORMAT_VERSION },
            fs_uuid: options.joins.map_or_else(random_uuid, |joins| Ok(joins.fs_uuid))?,
            created: Timestamp::from(nacre_env::clock::wall()),
            mdt_count: options.mdt_count,
            ost_count: options.ost_count,
            fsname: options.fsname.clone(),
        };
        let listed = options.joins.map(|joins| vec![joins.target]);
        let instance = Instance { dir: dir.clone(), superblock, listed };
        for target in instance.targets() {
            progress(&format!("formatting {target}"));
            make_dir(&instance.target_dir(target), 0o700)?;
            make_target(&instance, target)?;
        }
        if let Some(joins) = &options.joins {
            members::note_joining(&instance, joins.target, &[])?;
            members::write(&dir, &[joins.target])?;
        }
        make_dir(&instance.run_dir(), 0o700)?;
        sync_dir(&dir)?;
        write_superblock(&dir, &instance.superblock)?;
        let marker = dir.join(FORMATTING);
        fs::remove_file(&marker).map_err(Failure::because(format!("remove {}", marker.display())))?;
        sync_dir(&dir)?;
        Ok(instance)
    }

    /// Returns the copies of the superblock that are damaged.
    pub fn damaged_copies(&self) -> Vec<PathBuf> {
        read_superblock(&self.dir).ok().flatten().map_or_else(Vec::new, |found| found.damaged)
    }

    /// Makes the two copies of the superblock identical, if they differ.
    ///
    /// # Errors
    /// If a file cannot be written.
    pub fn restore_copies(&self) -> io::Result<()> {
        match read_superblock(&self.dir) {
            Ok(Some(found)) => twice::restore(&self.dir, SUPERBLOCK, &found),
            _ => Ok(()),
        }
    }

    /// Returns all targets of this directory: the MGT first, targets that were added last.
    pub fn targets(&self) -> Vec<TargetId> {
        if let Some(listed) = &self.listed {
            return listed.clone();
        }
        counted(self.superblock.mdt_count, self.superblock.ost_count)
    }

    /// Returns true if the management server is in another directory or on another host.
    pub fn is_outlying(&self) -> bool {
        !self.targets().contains(&TargetId::mgt())
    }

    /// Returns the directory of a target.
    pub fn target_dir(&self, target: TargetId) -> PathBuf {
        self.dir.join(target_name(target))
    }

    /// Returns the directory of a target's object store: that of the target; for an MDT that of its store for
    /// data of files, if it has one.
    pub fn objects_dir(&self, target: TargetId) -> PathBuf {
        let dir = self.target_dir(target);
        if target.kind == TargetKind::Mdt { dir.join(MDT_DATA) } else { dir }
    }

    /// Returns the targets with objects: OSTs, and MDTs that keep data of files on a device.
    ///
    /// # Errors
    /// If there are none.
    pub fn object_targets(&self) -> Result<Vec<TargetId>> {
        let has_objects = |target: &TargetId| match target.kind {
            TargetKind::Ost => true,
            TargetKind::Mdt => is_block_store(&self.objects_dir(*target)),
            TargetKind::Mgt => false,
        };
        let found: Vec<TargetId> = self.targets().into_iter().filter(has_objects).collect();
        match found.is_empty() {
            true => Err(Failure::new(format!("{} has no object targets", self.dir.display()))),
            false => Ok(found),
        }
    }

    /// Returns the directory for files of running processes.
    pub fn run_dir(&self) -> PathBuf {
        self.dir.join("run")
    }
}

/// Reasons why a superblock cannot be used.
enum Unusable {
    System(io::Error),
    Format(SuperblockError),
}

fn read_superblock(dir: &Path) -> std::result::Result<Option<twice::Found<Superblock>>, Unusable> {
    let format = twice::Format {
        decode: |bytes, _| Superblock::decode(bytes).map_err(Unusable::Format),
        unreadable: |error, _| Unusable::System(error),
        is_final: |error| match error {
            Unusable::System(error) => error.kind() == io::ErrorKind::PermissionDenied,
            Unusable::Format(error) => {
                !matches!(error, SuperblockError::Foreign | SuperblockError::Damaged(_))
            }
        },
    };
    twice::read(dir, SUPERBLOCK, &format)
}

fn write_superblock(dir: &Path, superblock: &Superblock) -> Result<()> {
    let bytes = superblock.encode();
    write_durably(dir, SUPERBLOCK, &bytes)?;
    let fail = || Failure::because(format!("write the copy of {}/{SUPERBLOCK}", dir.display()));
    twice::write_copy(dir, SUPERBLOCK, &bytes).map_err(fail())
}

/// Returns the name of a target's directory and process: `mgs`, `mdt0000`, `ost001f`.
pub fn target_name(target: TargetId) -> String {
    match target.kind {
        TargetKind::Mgt => "mgs".to_owned(),
        _ => target.to_string().to_lowercase(),
    }
}

fn other_user(dir: &Path) -> Failure {
    Failure::new(format!("{} belongs to another user: run this as that user or as root", dir.display()))
}

/// Turns the error of a missing file into `None`.
pub fn if_there<T>(outcome: io::Result<T>) -> io::Result<Option<T>> {
    match outcome {
        Ok(value) => Ok(Some(value)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// Resolves all symbolic links of a path.
///
/// # Errors
/// If the path does not exist or cannot be read.
pub fn canonical(path: &Path) -> Result<PathBuf> {
    absolute(path)?.canonicalize().map_err(Failure::because(format!("look at {}", path.display())))
}

/// Makes a path absolute without following symbolic links.
///
/// # Errors
/// If the current directory no longer exists.
pub fn absolute(path: &Path) -> Result<PathBuf> {
    std::path::absolute(path).map_err(Failure::because(format!("find where {} is", path.display())))
}

/// Refuses to format a directory without superblock unless it is missing, empty, or an unfinished formatting.
fn check_unformatted(dir: &Path) -> Result<()> {
    let mut entries = match fs::read_dir(dir) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) if error.kind() == io::ErrorKind::NotADirectory => {
            return Err(Failure::new(format!("{} is not a directory: name one", dir.display())));
        }
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => return Err(other_user(dir)),
        Err(error) => return Err(Failure::because(format!("read {}", dir.display()))(error)),
    };
    // A host that joins has enrolled its key before; a new ext4 file system has its own directory for lost files.
    let is_expected = |entry: &io::Result<fs::DirEntry>| {
        entry
            .as_ref()
            .is_ok_and(|entry| ["keys", "lost+found"].map(Some).contains(&entry.file_name().to_str()))
    };
    if entries.all(|entry| is_expected(&entry)) || is_unfinished(dir) {
        return Ok(());
    }
    Err(Failure::new(format!(
        "{} is not empty and holds no NacreFS file system: choose an empty or new directory",
        dir.display()
    )))
}

fn is_unfinished(dir: &Path) -> bool {
    fs::read(dir.join(FORMATTING)).is_ok_and(|text| text == FORMATTING_TEXT.as_bytes())
}

/// Removes what an interrupted formatting left: only names that formatting creates.
fn remove_unfinished(dir: &Path) -> Result<()> {
    if !is_unfinished(dir) {
        return Ok(());
    }
    let fail = |path: &Path| Failure::because(format!("remove unfinished {}", path.display()));
    let entries = fs::read_dir(dir).map_err(Failure::because(format!("read {}", dir.display())))?;
    for entry in entries {
        let entry = entry.map_err(Failure::because(format!("read {}", dir.display())))?;
        let name = entry.file_name();
        let name = name.to_string_lossy();
        let target = name.to_uppercase().parse::<TargetId>().is_ok_and(|target| target_name(target) == name);
        let path = entry.path();
        if target || ["mgs", "run", "keys"].contains(&&*name) {
            fs::remove_dir_all(&path).map_err(fail(&path))?;
        } else if ["superblock.new", "superblock.copy.new", "targets", "targets.new", "start.new"]
            .contains(&&*name)
        {
            fs::remove_file(&path).map_err(fail(&path))?;
        }
    }
    Ok(())
}

/// Creates a directory and its missing parents; an existing one keeps its mode.
///
/// # Errors
/// If it cannot be created.
pub fn make_dir(path: &Path, mode: u32) -> Result<()> {
    let fail = || Failure::because(format!("make directory {}", path.display()));
    if path.is_dir() {
        return Ok(());
    }
    if let Some(parent) = path.parent().filter(|parent| !parent.as_os_str().is_empty()) {
        fs::create_dir_all(parent).map_err(fail())?;
    }
    DirBuilder::new().mode(mode).create(path).map_err(fail())?;
    // mkdir applies the umask to the mode; the protection from other users must not depend on the umask.
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).map_err(fail())
}

/// Replaces a file atomically: writes a temporary name, syncs it, renames it, and syncs the directory.
///
/// # Errors
/// If any step fails; the old file is then unchanged.
pub fn write_durably(dir: &Path, name: &str, bytes: &[u8]) -> Result<()> {
    let path = dir.join(name);
    let fresh = dir.join(format!("{name}.new"));
    let fail = || Failure::because(format!("write {}", path.display()));
    let file = create_private(&fresh, bytes).map_err(fail())?;
    file.sync_all().map_err(fail())?;
    fs::rename(&fresh, &path).map_err(fail())?;
    sync_dir(dir)
}

/// Writes a small file that only its owner may read, whatever the umask. It is not synced.
///
/// # Errors
/// If it cannot be created or written.
pub fn write_private(path: &Path, bytes: &[u8]) -> Result<()> {
    create_private(path, bytes).map(drop).map_err(Failure::because(format!("write {}", path.display())))
}

fn create_private(path: &Path, bytes: &[u8]) -> io::Result<File> {
    let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(path)?;
    file.write_all(bytes)?;
    Ok(file)
}

fn sync_dir(dir: &Path) -> Result<()> {
    File::open(dir)
        .and_then(|file| file.sync_all())
        .map_err(Failure::because(format!("make {} durable", dir.display())))
}

/// Returns random bytes of the system, fit for secrets.
///
/// # Errors
/// If the system has no random numbers.
pub fn random<const N: usize>() -> Result<[u8; N]> {
    let mut bytes = [0; N];
    let mut filled = 0;
    while filled < N {
        filled += rustix::rand::getrandom(&mut bytes[filled..], rustix::rand::GetRandomFlags::empty())
            .map_err(Failure::because("draw random numbers"))?;
    }
    Ok(bytes)
}

/// Returns 16 random bytes, marked as a version 4 UUID.
///
/// # Errors
/// If the system has no random numbers.
pub fn random_uuid() -> Result<[u8; 16]> {
    let mut uuid: [u8; 16] = random()?;
    uuid[6] = uuid[6] & 0x0f | 0x40;
    uuid[8] = uuid[8] & 0x3f | 0x80;
    Ok(uuid)
}

#[cfg(test)]
mod tests {
    use super::*;

    const OPTIONS: FormatOptions =
        FormatOptions { fsname: String::new(), mdt_count: 1, ost_count: 2, joins: None };

    fn options() -> FormatOptions {
        FormatOptions { fsname: "nacre".to_owned(), ..OPTIONS }
    }

    fn format(dir: &Path) -> Result<Instance> {
        Instance::format(dir, &options(), |_, _| Ok(()), |_| ())
    }

    #[test]
    fn files_are_private_whatever_was_there_before() {
        let scratch = tempfile::tempdir().expect("a directory");
        write_durably(scratch.path(), "file", b"text").expect("written");
        write_private(&scratch.path().join("other"), b"text").expect("written");
        for name in ["file", "other"] {
            let mode = fs::metadata(scratch.path().join(name)).expect("made").permissions().mode();
            assert_eq!(mode & 0o777, 0o600, "{name}");
        }
    }

    #[test]
    fn a_new_directory_is_formatted_and_opened_again() {
        let scratch = tempfile::tempdir().expect("a directory");
        let dir = scratch.path().join("deep/fs");
        assert!(Instance::open(&dir).expect("nothing there").is_none());
        let made = format(&dir).expect("format");
        let opened = Instance::open_existing(&dir).expect("open");
        assert_eq!(opened.superblock, made.superblock);
        assert!(opened.target_dir(TargetId::ost(1)).is_dir());
        let mode = fs::metadata(opened.run_dir()).expect("run directory").permissions().mode();
        assert_eq!(mode & 0o777, 0o700);
        assert!(!dir.join(FORMATTING).exists());
    }

    #[test]
    fn what_is_not_ours_is_left_alone() {
        let scratch = tempfile::tempdir().expect("a directory");
        fs::write(scratch.path().join("thesis.tex"), "text").expect("write");
        let failure = format(scratch.path()).expect_err("not empty");
        assert!(failure.message.contains("not empty"), "{failure}");
        fs::write(scratch.path().join(SUPERBLOCK), "text").expect("write");
        let failure = Instance::open(scratch.path()).expect_err("not ours");
        assert!(failure.message.contains("something else"), "{failure}");
        let failure = Instance::open(&scratch.path().join("thesis.tex")).expect_err("a file");
        assert!(failure.message.contains("not a directory"), "{failure}");
        assert_eq!(fs::read(scratch.path().join("thesis.tex")).expect("still there"), b"text");
    }

    #[test]
    fn an_interrupted_formatting_is_done_again() {
        let scratch = tempfile::tempdir().expect("a directory");
        let dir = scratch.path();
        fs::write(dir.join(FORMATTING), FORMATTING_TEXT).expect("write");
        for name in ["mgs", "ost0007"] {
            fs::create_dir(dir.join(name)).expect("made");
        }
        fs::write(dir.join("mine.txt"), "x").expect("write");
        format(dir).expect("format again");
        assert!(dir.join("mine.txt").exists(), "only what formatting makes is removed");
        assert!(!dir.join("ost0007").exists());
    }

    #[test]
    fn a_formatting_that_fails_or_is_undone_leaves_nothing() {
        let scratch = tempfile::tempdir().expect("a directory");
        let fill = |_: &Instance, target| {
            if target == TargetId::ost(0) { Err(Failure::new("full")) } else { Ok(()) }
        };
        let new = scratch.path().join("new");
        for dir in [&new, scratch.path()] {
            let failure = Instance::format(dir, &options(), fill, |_| ()).expect_err("full");
            assert_eq!(failure.message, "full");
        }
        let is_empty = || fs::read_dir(scratch.path()).expect("kept").next().is_none();
        assert!(is_empty());
        let before = Formatting::of(&new).expect("fine");
        let instance = format(&new).expect("format");
        fs::write(instance.run_dir().join("mgs.log"), "x").expect("write");
        before.undo(&instance).expect("undone");
        assert!(is_empty());
    }

    #[test]
    fn the_root_of_a_new_disk_is_formatted() {
        let scratch = tempfile::tempdir().expect("a directory");
        fs::create_dir(scratch.path().join("lost+found")).expect("made");
        format(scratch.path()).expect("format");
        assert!(scratch.path().join("lost+found").exists());
    }

    #[test]
    fn other_formats_are_named() {
        let scratch = tempfile::tempdir().expect("a directory");
        let instance = format(&scratch.path().join("fs")).expect("format");
        let newer = Superblock { version: 9, ..instance.superblock.clone() };
        fs::write(instance.dir.join(SUPERBLOCK), newer.encode()).expect("write");
        let failure = Instance::open(&instance.dir).expect_err("too new");
        assert!(failure.message.contains("newer"), "{failure}");
    }

    #[test]
    fn uuids_differ_and_are_marked() {
        let (a, b) = (random_uuid().expect("random"), random_uuid().expect("random"));
        assert_ne!(a, b);
        assert_eq!((a[6] >> 4, a[8] >> 6), (4, 2));
    }
}
