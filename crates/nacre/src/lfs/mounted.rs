//! What `lfs` asks a mount: extended attributes and native ioctls. The only module here that makes system calls.

use super::view::LayoutView;
use nacre_layout::dir_default::MAGIC_DEFAULT;
use nacre_layout::dir_layout::USER_HEADER;
use nacre_layout::wish::fitting_stripe_size;
use nacre_layout::{DirDefault, LayoutSpec, user};
use nacre_types::ioctl::{
    Advise, FidToPath, FilesOn, FilesWanted, LIST_MAX, MakeDirectory, MigrateFiles, MountInfo, POOLS_MAX,
    PathToFid, Payload, PoolList, PoolMembers, RemoveFid, ScanDirectory, ScanWanted, SizeOnMdt, TargetList,
    TargetStatfs,
};
use nacre_types::limits::STRIPE_SIZE_DEFAULT;
use nacre_types::lustre::{self, ProjectCall};
use nacre_types::{Fid, TargetId, TargetKind};
use rustix::fs::{Mode, OFlags, XattrFlags};
use rustix::io::Errno;
use rustix::ioctl::{Getter, Setter, Updater, ioctl};
use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

const LAYOUT: &str = "lustre.lov";
const DIRECTORY_LAYOUT: &str = "lustre.lmv";
const DIRECTORY_DEFAULT: &str = "lustre.dmv";
/// Takes components to append to a file.
pub const LAYOUT_ADD: &str = "lustre.lov.add";
/// Takes a selector of components to delete from a file.
pub const LAYOUT_DELETE: &str = "lustre.lov.del";
/// Largest value of an extended attribute.
const XATTR_MAX: usize = 65536;
/// Hard links of one inode that `fid2path` shows at most.
const LINKS_MAX: u32 = 65536;
/// Targets whose space is asked for at the same time.
const ASKED_AT_ONCE: usize = 32;

/// A target of a mounted file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TargetRow {
    /// Which.
    pub target: TargetId,
    /// In use.
    pub active: bool,
    /// Its space if it was asked for and answered.
    pub space: Option<TargetSpace>,
    /// Why it did not answer: an error number, 0 if nothing is wrong.
    pub errno: i32,
}

/// Space of a target.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TargetSpace {
    /// Unit of the block counts in bytes.
    pub block_size: u32,
    /// Blocks in all.
    pub blocks: u64,
    /// Free blocks.
    pub blocks_free: u64,
    /// Free blocks for ordinary users.
    pub blocks_available: u64,
    /// Inodes or objects in all.
    pub files: u64,
    /// Free ones.
    pub files_free: u64,
    /// State bits, `OS_STATFS_*`.
    pub state: u32,
}

/// A directory of a mounted NacreFS, open for questions.
pub struct Mounted {
    path: PathBuf,
    directory: OwnedFd,
    info: MountInfo,
    /// The root's default layout, once it was asked for.
    default: OnceLock<Option<Vec<u8>>>,
}

impl Mounted {
    /// Opens a directory.
    ///
    /// # Errors
    /// `ENOTTY` if it is not on NacreFS.
    pub fn open(path: &Path) -> io::Result<Mounted> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let directory = rustix::fs::open(path, flags, Mode::empty())?;
        let info = ask(directory.as_fd(), &MountInfo::default())?;
        Ok(Mounted { path: path.to_path_buf(), directory, info, default: OnceLock::new() })
    }

    /// The directory that was opened.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Name of the file system.
    pub fn fsname(&self) -> String {
        self.info.fsname.clone()
    }

    /// Short number of the mount, as in `lov.FS-clilov-INSTANCE`.
    pub fn instance(&self) -> String {
        self.info.instance.clone()
    }

    /// Identity of the client.
    pub fn client_uuid(&self) -> String {
        self.info.instance.clone()
    }

    /// All targets, without their space.
    ///
    /// # Errors
    /// Those of ioctl(2).
    pub fn targets(&self) -> io::Result<Vec<TargetRow>> {
        let mut rows = Vec::new();
        for kind in [TargetKind::Mdt, TargetKind::Ost] {
            let mut from = 0u16;
            loop {
                let list = ask(
                    self.directory.as_fd(),
                    &TargetList { kind, from, indexes: Vec::new(), inactive: Vec::new() },
                )?;
                rows.extend(list.indexes.iter().map(|&index| TargetRow {
                    target: TargetId { kind, index },
                    active: !list.inactive.contains(&index),
                    space: None,
                    errno: 0,
                }));
                match list.indexes.last().and_then(|last| last.checked_add(1)) {
                    Some(next) if list.indexes.len() == nacre_types::ioctl::LIST_MAX => from = next,
                    _ => break,
                }
            }
        }
        Ok(rows)
    }

    /// The OSTs, without their space.
    ///
    /// # Errors
    /// Those of ioctl(2).
    pub fn osts(&self) -> io::Result<Vec<TargetRow>> {
        Ok(self.targets()?.into_iter().filter(|row| row.target.kind == TargetKind::Ost).collect())
    }

    /// Removes all names of a file.
    ///
    /// # Errors
    /// Those of ioctl(2).
    pub fn remove_fid(&self, fid: Fid) -> io::Result<()> {
        ask(self.directory.as_fd(), &RemoveFid { fid }).map(drop)
    }

    /// Makes a directory in the one that this was opened at, with wishes about MDTs.
    ///
    /// # Errors
    /// Those of mkdir(2) and ioctl(2).
    pub fn make_directory(&self, wish: &MakeDirectory) -> io::Result<()> {
        ask_raw(self.directory.as_fd(), wish).map(drop)
    }

    /// Names of the OST pools, in order.
    ///
    /// # Errors
    /// Those of ioctl(2).
    pub fn pools(&self) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        loop {
            let from = u32::try_from(names.len()).unwrap_or(u32::MAX);
            let some = ask(self.directory.as_fd(), &PoolList { from, names: Vec::new() })?.names;
            let is_last = some.len() < POOLS_MAX;
            names.extend(some);
            if is_last {
                return Ok(names);
            }
        }
    }

    /// Indexes of the OSTs of a pool, in the order in which they were added; `None` if there is no such pool.
    ///
    /// # Errors
    /// Those of ioctl(2).
    pub fn pool_members(&self, pool: &str) -> io::Result<Option<Vec<u16>>> {
        let mut all = Vec::new();
        loop {
            let from = u32::try_from(all.len()).unwrap_or(u32::MAX);
            let question = PoolMembers { pool: pool.to_owned(), from, indexes: Vec::new() };
            let some = match ask(self.directory.as_fd(), &question) {
                Ok(answer) => answer.indexes,
                Err(error) if Errno::from_io_error(&error) == Some(Errno::NOENT) => return Ok(None),
                Err(error) => return Err(error),
            };
            let is_last = some.len() < LIST_MAX;
            all.extend(some);
            if is_last {
                return Ok(Some(all));
            }
        }
    }

    /// All targets with the space of those that answer.
    ///
    /// # Errors
    /// Those of ioctl(2), other than a target's own.
    pub fn targets_with_space(&self) -> io::Result<Vec<TargetRow>> {
        let mut rows = self.targets()?;
        // One that does not answer takes a second or two: all are asked at the same time.
        for some in rows.chunks_mut(ASKED_AT_ONCE) {
            nacre_env::thread::scope(|scope| {
                for row in some {
                    scope.spawn(|| match self.space_of(row.target) {
                        Ok(space) => row.space = Some(space),
                        Err(error) => row.errno = crate::lfs::errno_of(&error).raw_os_error(),
                    });
                }
            });
        }
        Ok(rows)
    }

    /// Space of a target.
    ///
    /// # Errors
    /// `ETIMEDOUT` if it does not answer; those of ioctl(2).
    pub fn space_of(&self, target: TargetId) -> io::Result<TargetSpace> {
        let found = ask(self.directory.as_fd(), &TargetStatfs::question(target))?;
        let [blocks, blocks_free, blocks_available] = found.blocks;
        let [files, files_free] = found.files;
        let (block_size, state) = (found.block_size, found.state);
        Ok(TargetSpace { block_size, blocks, blocks_free, blocks_available, files, files_free, state })
    }

    /// Paths of an inode relative to the mount point: one for each hard link, or only that of link `only`.
    ///
    /// # Errors
    /// `ENOENT` if there is no such inode, `EPERM` for users who may not search everything.
    pub fn paths_of(&self, fid: &Fid, only: Option<u32>) -> io::Result<Vec<PathBuf>> {
        let mut paths = Vec::new();
        for link in only.unwrap_or(0)..only.map_or(LINKS_MAX, |link| link.saturating_add(1)) {
            match ask(self.directory.as_fd(), &FidToPath { fid: *fid, link, path: Vec::new() }) {
                Ok(found) => paths.push(PathBuf::from(OsString::from_vec(found.path))),
                // Not below the directory that is mounted.
                Err(error) if Errno::from_io_error(&error) == Some(Errno::XDEV) && only.is_none() => continue,
                Err(error) if Errno::from_io_error(&error) == Some(Errno::NODATA) => break,
                Err(error) if Errno::from_io_error(&error) == Some(Errno::XDEV) => break,
                Err(error) => return Err(error),
            }
            // The root has no link but itself.
            if paths.last().is_some_and(|path| path.as_os_str().is_empty()) {
                break;
            }
        }
        if paths.is_empty() { Err(io::Error::from(Errno::NOENT)) } else { Ok(paths) }
    }

    /// A page of files or inodes, after `after`; and from where to go on. Files with objects on an OST are those of the MDT that `after` is
    /// of, and then of the next one, so that all MDTs are asked in turn.
    ///
    /// # Errors
    /// `EPERM` for others than administrators; `ETIMEDOUT` if an MDT does not answer; those of ioctl(2).
    pub fn files_on(&self, wanted: FilesWanted, after: Fid) -> io::Result<(Vec<Fid>, Option<Fid>)> {
        let ask = FilesOn { wanted, after, fids: Vec::new(), next: Fid::ZERO };
        let found = ask_raw(self.directory.as_fd(), &ask)?;
        Ok((found.fids, (!found.next.is_zero()).then_some(found.next)))
    }

    /// Moves inodes that hold no names, up to [`nacre_types::ioctl::MIGRATED_MAX`] of one MDT, to another MDT; gives the outcome of each.
    ///
    /// # Errors
    /// Of all of them: `EPERM`, `EINVAL`, `ETIMEDOUT`; those of ioctl(2).
    pub fn migrate_files(&self, fids: &[Fid], mdt: u16) -> io::Result<Vec<io::Result<()>>> {
        let ask = MigrateFiles { mdt, fids: fids.to_vec(), outcomes: Vec::new() };
        let outcomes = ask_raw(self.directory.as_fd(), &ask)?.outcomes;
        let of_errno = |errno: u16| match errno {
            0 => Ok(()),
            errno => Err(io::Error::from_raw_os_error(errno.into())),
        };
        match outcomes.len() == fids.len() {
            true => Ok(outcomes.into_iter().map(of_errno).collect()),
            false => Err(io::Error::from(Errno::PROTO)),
        }
    }

    /// Where the file system is mounted.
    ///
    /// # Errors
    /// Those of reading the mount table.
    pub fn root(&self) -> io::Result<PathBuf> {
        let mount = crate::mounts::find_mount(&self.path)?;
        Ok(mount.map_or_else(|| self.path.clone(), |mount| mount.mount_point))
    }

    /// The root's default layout, which directories without their own have; `None` if it has none.
    ///
    /// # Errors
    /// Those of getxattr(2).
    pub fn root_layout(&self) -> io::Result<Option<Vec<u8>>> {
        if let Some(known) = self.default.get() {
            return Ok(known.clone());
        }
        let bytes = shown_layout(&self.root()?)?;
        Ok(self.default.get_or_init(|| bytes).clone())
    }

    /// The default layout that a directory without its own has: that of the root, else the file system's.
    ///
    /// # Errors
    /// Those of getxattr(2).
    pub fn default_layout(&self) -> io::Result<Vec<u8>> {
        let own = self.root_layout()?;
        Ok(own.unwrap_or_else(|| user::encode_spec(&Fid::ZERO, &LayoutSpec::default())))
    }

    /// Puts the file system's values where a default layout, whose stripe size is to divide `ends`, says "the default".
    ///
    /// # Errors
    /// Those of getxattr(2) on the root.
    pub fn resolve(&self, view: &mut LayoutView, ends: &[u64]) -> io::Result<()> {
        let root = user::decode_wish(&self.default_layout()?).unwrap_or_default().inherited();
        if view.stripe_count == 0 && !view.is_on_mdt() {
            view.stripe_count = root.stripe_count.unwrap_or(1);
        }
        if view.stripe_size == 0 {
            view.stripe_size = fitting_stripe_size(root.stripe_size.unwrap_or(STRIPE_SIZE_DEFAULT), ends);
        }
        Ok(())
    }
}

/// FID of a file or directory.
///
/// # Errors
/// `ENOTTY` if it is not on NacreFS.
pub fn fid_of(path: &Path, follow: bool) -> io::Result<Fid> {
    let metadata = if follow { path.metadata()? } else { path.symlink_metadata()? };
    if metadata.is_file() || metadata.is_dir() {
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
        if let Ok(file) = rustix::fs::open(path, flags, Mode::empty()) {
            return Ok(ask(file.as_fd(), &PathToFid::default())?.fid);
        }
    }
    // What cannot be opened (a symbolic link, a device, a file without read permission) is known by its inode number.
    drop(Mounted::open(directory_of(path))?);
    nacre_client::node::fid_of(metadata.ino()).ok_or(io::Error::from(Errno::NODATA))
}

/// The directory that a path's last part is in.
pub fn directory_of(path: &Path) -> &Path {
    path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// The bytes of a file's layout or a directory's own default; `None` if there is none.
///
/// # Errors
/// `ENOTTY` if it is not on NacreFS.
pub fn layout_of(path: &Path) -> io::Result<Option<Vec<u8>>> {
    let Some(layout) = shown_layout(path)? else { return Ok(None) };
    let is_own = !path.is_dir() || lists_layout(path)?;
    Ok(is_own.then_some(layout))
}

/// The bytes of a file's layout, or those of the default that files in a directory get.
fn shown_layout(path: &Path) -> io::Result<Option<Vec<u8>>> {
    let mut buffer = vec![0u8; XATTR_MAX];
    taken(rustix::fs::getxattr(path, LAYOUT, &mut buffer[..]), buffer).map_err(not_lustre)
}

/// True if a directory has a default layout of its own: one that it only shows is not in its list of attributes.
fn lists_layout(path: &Path) -> io::Result<bool> {
    let mut names = vec![0u8; XATTR_MAX];
    let len = rustix::fs::listxattr(path, &mut names[..])?;
    Ok(names[..len].split(|&byte| byte == 0).any(|name| name == LAYOUT.as_bytes()))
}

/// The same for a path whose last part may be a symbolic link, which is asked itself.
///
/// # Errors
/// Those of lgetxattr(2).
pub fn layout_of_link(path: &[u8]) -> io::Result<Option<Vec<u8>>> {
    let mut buffer = vec![0u8; XATTR_MAX];
    taken(rustix::fs::lgetxattr(path, LAYOUT, &mut buffer[..]), buffer).map_err(not_lustre)
}

/// The value that a call has put into a buffer; `None` if the attribute does not exist.
fn taken(result: rustix::io::Result<usize>, mut buffer: Vec<u8>) -> rustix::io::Result<Option<Vec<u8>>> {
    match result {
        Ok(len) => {
            buffer.truncate(len);
            Ok(Some(buffer))
        }
        Err(Errno::NODATA) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Says what will become of a range of a file.
///
/// # Errors
/// Those of open(2); `EOPNOTSUPP` for advice that has no effect; `ENOTTY` if the file is not on NacreFS.
pub fn advise(path: &Path, advice: &Advise) -> io::Result<()> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
    let file = rustix::fs::open(path, flags, Mode::empty())?;
    nacre_fuse::front::ioctl::call(file.as_fd(), &mut advice.clone())
}

/// Size of a file as its MDT has it.
///
/// # Errors
/// Those of open(2); `ENOTTY` if it is not on NacreFS.
pub fn size_on_mdt(path: &Path) -> io::Result<SizeOnMdt> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
    let file = rustix::fs::open(path, flags, Mode::empty())?;
    ask(file.as_fd(), &SizeOnMdt::default())
}

/// A page of an open directory.
///
/// # Errors
/// `ENOTTY` if it is not on NacreFS; what the mount answers.
pub fn scan(directory: BorrowedFd<'_>, cookie: u64, wanted: ScanWanted) -> io::Result<ScanDirectory> {
    ask(directory, &ScanDirectory { cookie, wanted, ..ScanDirectory::default() })
}

/// The project of a file or directory.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Project {
    /// Its number, 0 for none.
    pub id: u32,
    /// New entries inherit it.
    pub inherited: bool,
}

/// `struct fsxattr` of Linux: 28 bytes, flags at 0 and project at 12.
type Fsxattr = [u32; 7];
const FSX_FLAGS: usize = 0;
const FSX_PROJECT: usize = 3;
const FS_IOC_FSGETXATTR: u32 = 0x801c_581f;
const FS_IOC_FSSETXATTR: u32 = 0x401c_5820;
const XFLAG_PROJECT_INHERIT: u32 = 0x200;

fn open_for_attributes(path: &Path) -> io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::NOFOLLOW;
    Ok(rustix::fs::open(path, flags, Mode::empty())?)
}

fn fsxattr(file: &OwnedFd) -> io::Result<Fsxattr> {
    // SAFETY: the ioctl writes 28 bytes, which the array has.
    Ok(unsafe { ioctl(file, Getter::<FS_IOC_FSGETXATTR, Fsxattr>::new()) }?)
}

/// True for what can be opened without an effect of its own: files and directories.
fn can_be_opened(path: &Path) -> io::Result<bool> {
    let kind = std::fs::symlink_metadata(path)?.file_type();
    Ok(kind.is_file() || kind.is_dir())
}

/// Asks for the project of a name, or sets it, through its directory.
fn by_name(path: &Path, kind: u32, project: Project) -> io::Result<ProjectCall> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let directory = rustix::fs::open(directory_of(path), flags, Mode::empty())?;
    let name = path.file_name().ok_or(io::Error::from(Errno::INVAL))?.as_bytes().to_vec();
    let xflags = if project.inherited { XFLAG_PROJECT_INHERIT } else { 0 };
    ask(directory.as_fd(), &ProjectCall { kind, id: project.id, xflags, name })
}

/// The project of a file, directory, or whatever else has a name.
///
/// # Errors
/// Those of open(2) and ioctl(2).
pub fn project_of(path: &Path) -> io::Result<Project> {
    if !can_be_opened(path)? {
        let call = by_name(path, ProjectCall::GET, Project { id: 0, inherited: false })?;
        return Ok(Project { id: call.id, inherited: call.xflags & XFLAG_PROJECT_INHERIT != 0 });
    }
    project_of_open(&open_for_attributes(path)?)
}

/// The project of an open file or directory.
///
/// # Errors
/// Those of ioctl(2).
pub fn project_of_open(file: &OwnedFd) -> io::Result<Project> {
    let attributes = fsxattr(file)?;
    let inherited = attributes[FSX_FLAGS] & XFLAG_PROJECT_INHERIT != 0;
    Ok(Project { id: attributes[FSX_PROJECT], inherited })
}

/// Changes the project of what [`project_of`] shows.
///
/// # Errors
/// Those of open(2) and ioctl(2).
pub fn set_project(path: &Path, project: Project) -> io::Result<()> {
    if !can_be_opened(path)? {
        return by_name(path, ProjectCall::SET, project).map(drop);
    }
    set_project_of_open(&open_for_attributes(path)?, project)
}

/// Changes the project of an open file or directory.
///
/// # Errors
/// Those of ioctl(2).
pub fn set_project_of_open(file: &OwnedFd, project: Project) -> io::Result<()> {
    let mut attributes = fsxattr(file)?;
    attributes[FSX_PROJECT] = project.id;
    attributes[FSX_FLAGS] &= !XFLAG_PROJECT_INHERIT;
    if project.inherited {
        attributes[FSX_FLAGS] |= XFLAG_PROJECT_INHERIT;
    }
    // SAFETY: the ioctl reads 28 bytes, which the array has.
    Ok(unsafe { ioctl(file, Setter::<FS_IOC_FSSETXATTR, Fsxattr>::new(attributes)) }?)
}

/// Sets the default layout of a directory.
///
/// # Errors
/// Those of setxattr(2); `ENOTTY` if it is not on NacreFS.
pub fn set_layout(path: &Path, value: &[u8]) -> io::Result<()> {
    rustix::fs::setxattr(path, LAYOUT, value, XattrFlags::empty()).map_err(not_lustre)
}

/// Makes an empty directory a foreign one.
///
/// # Errors
/// Those of setxattr(2).
pub fn set_directory_layout(path: &Path, value: &[u8]) -> io::Result<()> {
    rustix::fs::setxattr(path, DIRECTORY_LAYOUT, value, XattrFlags::CREATE).map_err(io::Error::from)
}

/// The layout of a directory in Lustre's form; there is one only if its names lie on several MDTs, or if it is foreign.
///
/// # Errors
/// Those of getxattr(2).
pub fn directory_layout(path: &Path) -> io::Result<Option<Vec<u8>>> {
    attribute(path, DIRECTORY_LAYOUT)
}

/// Says what new directories in a directory get; an empty value: nothing in particular. An error comes with whether the directory could be
/// opened.
///
/// # Errors
/// Those of open(2) and setxattr(2).
pub fn set_dir_default(path: &Path, value: &[u8]) -> Result<(), (bool, io::Error)> {
    let directory =
        rustix::fs::open(path, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty());
    let directory = directory.map_err(|error| (false, error.into()))?;
    rustix::fs::fsetxattr(&directory, DIRECTORY_DEFAULT, value, XattrFlags::empty())
        .map_err(|error| (true, error.into()))
}

/// What is stored with a directory about new directories in it.
///
/// # Errors
/// Those of getxattr(2); `EPROTO` for what makes no sense.
pub fn dir_default_stored(path: &Path) -> io::Result<Option<DirDefault>> {
    attribute(path, DIRECTORY_DEFAULT)?.as_deref().map(dir_default_in).transpose()
}

/// What new directories in a directory get: what is stored with it, otherwise what is left of what is stored with the root.
///
/// # Errors
/// Those of open(2) and ioctl(2).
pub fn dir_default(path: &Path) -> io::Result<Option<DirDefault>> {
    if let Some(default) = dir_default_stored(path)? {
        return Ok(Some(default));
    }
    let directory =
        rustix::fs::open(path, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
    let mut bytes = [0u8; USER_HEADER];
    bytes[..4].copy_from_slice(&MAGIC_DEFAULT.to_le_bytes());
    // SAFETY: the number encodes that the kernel reads and writes 48 bytes, which the array has.
    match unsafe { ioctl(&directory, Updater::<{ lustre::LMV_GETSTRIPE }, _>::new(&mut bytes)) } {
        Ok(()) => dir_default_in(&bytes).map(Some),
        Err(Errno::NODATA) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

fn dir_default_in(bytes: &[u8]) -> io::Result<DirDefault> {
    DirDefault::decode(bytes).map_err(|_| io::Error::from(Errno::PROTO))
}

/// The layout of a file in Lustre's form, if one is stored.
///
/// # Errors
/// Those of getxattr(2).
pub fn layout_bytes(path: &Path) -> io::Result<Option<Vec<u8>>> {
    attribute(path, LAYOUT)
}

fn attribute(path: &Path, name: &str) -> io::Result<Option<Vec<u8>>> {
    let mut buffer = vec![0; XATTR_MAX];
    taken(rustix::fs::lgetxattr(path, name, &mut buffer[..]), buffer).map_err(io::Error::from)
}

/// Changes components of a file: `name` says how.
///
/// # Errors
/// Those of setxattr(2).
pub fn edit_layout(path: &Path, name: &str, value: &[u8]) -> io::Result<()> {
    rustix::fs::setxattr(path, name, value, XattrFlags::empty()).map_err(io::Error::from)
}

/// Removes the default layout of a directory; one that has none is as wanted.
///
/// # Errors
/// Those of removexattr(2).
pub fn remove_layout(path: &Path) -> io::Result<()> {
    match rustix::fs::removexattr(path, LAYOUT) {
        Ok(()) | Err(Errno::NODATA) => Ok(()),
        Err(error) => Err(not_lustre(error)),
    }
}

/// Makes a file if there is none, and sets its layout.
///
/// # Errors
/// `EALREADY` or `EEXIST` if the file has objects; those of open(2) and setxattr(2).
pub fn create_with_layout(path: &Path, mode: u32, value: &[u8]) -> io::Result<()> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::NOCTTY | OFlags::CLOEXEC;
    let file = rustix::fs::open(path, flags, Mode::from_raw_mode(mode))?;
    // Without `CREATE`, a file that has objects would stay as it is, and nobody would be told.
    rustix::fs::fsetxattr(&file, LAYOUT, value, XattrFlags::CREATE).map_err(not_lustre)
}

/// Other file systems do not know the name space `lustre`.
fn not_lustre(error: rustix::io::Errno) -> io::Error {
    match error {
        Errno::OPNOTSUPP => io::Error::from(Errno::NOTTY),
        error => error.into(),
    }
}

/// Sends a question and reads the answer in its place.
fn ask<T: Payload>(file: BorrowedFd<'_>, question: &T) -> io::Result<T> {
    ask_raw(file, question).map_err(|error| match Errno::from_io_error(&error) {
        // Some file systems have other words for "no such ioctl".
        Some(Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP) => io::Error::from(Errno::NOTTY),
        _ => error,
    })
}

/// The same about an open file, with the errors of the operation.
///
/// # Errors
/// `ENOTTY` if it is not on NacreFS; those of the operation.
pub fn ask_file<T: Payload>(file: &OwnedFd, question: &T) -> io::Result<T> {
    ask_raw(file.as_fd(), question)
}

fn ask_raw<T: Payload>(file: BorrowedFd<'_>, question: &T) -> io::Result<T> {
    let mut bytes = question.to_bytes();
    bytes.resize(T::SIZE, 0);
    // SAFETY: the command number encodes T::SIZE, which is how many bytes the kernel reads and writes at most, and the
    // buffer has that many; the descriptor is open for the length of the call.
    let result = unsafe { libc::ioctl(file.as_raw_fd(), T::COMMAND as _, bytes.as_mut_ptr()) };
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    T::from_bytes(&bytes).ok_or_else(|| io::Error::from(Errno::PROTO))
}
