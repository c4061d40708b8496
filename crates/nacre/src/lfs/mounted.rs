//! Access of `lfs` to a mount: extended attributes and native ioctls. The only module here that makes system
//! calls.

use super::view::LayoutView;
use nacre_layout::dir_default::MAGIC_DEFAULT;
use nacre_layout::dir_layout::USER_HEADER;
use nacre_layout::request::fitting_stripe_size;
use nacre_layout::{DirDefault, LayoutSpec, user};
use nacre_types::ioctl::{
    Advise, DirUse, FidToPath, FilesOn, FilesWanted, LIST_MAX, MakeDirectory, MigrateFiles, MountInfo,
    POOLS_MAX, PathToFid, Payload, PoolList, PoolMembers, RemoveFid, ScanDirectory, ScanWanted, SizeOnMdt,
    TargetList, TargetStatfs,
};
use nacre_types::limits::STRIPE_SIZE_DEFAULT;
use nacre_types::lustre::{self, ProjectCall, QuotaCall};
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
/// Attribute that appends components to a file.
pub const LAYOUT_ADD: &str = "lustre.lov.add";
/// Attribute that deletes components from a file, by a selector.
pub const LAYOUT_DELETE: &str = "lustre.lov.del";
/// Largest value of an extended attribute, in bytes.
const XATTR_MAX: usize = 65536;
/// Most hard links of one inode that `fid2path` shows.
const LINKS_MAX: u32 = 65536;
/// Parallel requests for the space of targets.
const ASKED_AT_ONCE: usize = 32;

/// A target of a mounted file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TargetRow {
    /// Kind and index of the target.
    pub target: TargetId,
    /// The target is in use.
    pub active: bool,
    /// Space, if it was requested and the target answered.
    pub space: Option<TargetSpace>,
    /// Errno of the request for its space, 0 for none.
    pub errno: i32,
}

/// Space of a target.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TargetSpace {
    /// Unit of the block counts in bytes.
    pub block_size: u32,
    /// Total number of blocks.
    pub blocks: u64,
    /// Number of free blocks.
    pub blocks_free: u64,
    /// Number of free blocks for ordinary users.
    pub blocks_available: u64,
    /// Total number of inodes or objects.
    pub files: u64,
    /// Number of free inodes or objects.
    pub files_free: u64,
    /// State bits, `OS_STATFS_*`.
    pub state: u32,
}

/// An open directory of a mounted NacreFS, for requests to the mount.
pub struct Mounted {
    path: PathBuf,
    directory: OwnedFd,
    info: MountInfo,
    /// The root's default layout, once it was read.
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

    /// Returns the path of the opened directory.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the name of the file system.
    pub fn fsname(&self) -> String {
        self.info.fsname.clone()
    }

    /// Returns the short number of the mount, as in `lov.FS-clilov-INSTANCE`.
    pub fn instance(&self) -> String {
        self.info.instance.clone()
    }

    /// Returns the UUID of the client.
    pub fn client_uuid(&self) -> String {
        self.info.instance.clone()
    }

    /// Returns all targets, without their space.
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

    /// Returns the OSTs, without their space.
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

    /// Creates a directory in the opened one, with a requested placement on MDTs.
    ///
    /// # Errors
    /// Those of mkdir(2) and ioctl(2).
    pub fn make_directory(&self, requested: &MakeDirectory) -> io::Result<()> {
        ask_raw(self.directory.as_fd(), requested).map(drop)
    }

    /// Returns the names of the OST pools, in order.
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

    /// Returns the indexes of the OSTs of a pool, in the order in which they were added; `None` if there is
    /// no such pool.
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

    /// Returns all targets, with the space of those that answer.
    ///
    /// # Errors
    /// Those of ioctl(2), other than a target's own.
    pub fn targets_with_space(&self) -> io::Result<Vec<TargetRow>> {
        let mut rows = self.targets()?;
        // An unreachable target takes a second or two: the requests run in parallel.
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

    /// Returns the space of a target.
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

    /// Returns the paths of an inode relative to the mount point: one for each hard link, or only that of
    /// link `only`.
    ///
    /// # Errors
    /// `ENOENT` if there is no such inode, `EPERM` for users who may not search all directories.
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
            // The root has only itself as a link.
            if paths.last().is_some_and(|path| path.as_os_str().is_empty()) {
                break;
            }
        }
        if paths.is_empty() { Err(io::Error::from(Errno::NOENT)) } else { Ok(paths) }
    }

    /// Sends a request about quotas and returns the reply.
    ///
    /// # Errors
    /// `EPERM` for what the user may not see or change; `EOPNOTSUPP` if the servers have no quotas; those of ioctl(2).
    pub fn quota(&self, call: &QuotaCall) -> io::Result<QuotaCall> {
        ask_raw(self.directory.as_fd(), call)
    }

    /// Returns a page of files or inodes after `after`, and the position to continue from. Files with objects
    /// on an OST are those of the MDT of `after`, then of the next one: the pages cover all MDTs, one after
    /// the other.
    ///
    /// # Errors
    /// `EPERM` for users other than administrators; `ETIMEDOUT` if an MDT does not answer; those of ioctl(2).
    pub fn files_on(&self, wanted: FilesWanted, after: Fid) -> io::Result<(Vec<Fid>, Option<Fid>)> {
        let ask = FilesOn { wanted, after, fids: Vec::new(), next: Fid::ZERO };
        let found = ask_raw(self.directory.as_fd(), &ask)?;
        Ok((found.fids, (!found.next.is_zero()).then_some(found.next)))
    }

    /// Moves inodes without entries of their own (all but directories), up to
    /// [`nacre_types::ioctl::MIGRATED_MAX`] of one MDT, to another MDT; returns the result of each.
    ///
    /// # Errors
    /// For all of them: `EPERM`, `EINVAL`, `ETIMEDOUT`; those of ioctl(2).
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

    /// Returns the mount point of the file system.
    ///
    /// # Errors
    /// Those of reading the mount table.
    pub fn root(&self) -> io::Result<PathBuf> {
        let mount = crate::mounts::find_mount(&self.path)?;
        Ok(mount.map_or_else(|| self.path.clone(), |mount| mount.mount_point))
    }

    /// Returns the root's default layout, which directories without their own inherit; `None` if it has none.
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

    /// Returns the default layout that a directory without its own inherits: that of the root, else the file
    /// system's.
    ///
    /// # Errors
    /// Those of getxattr(2).
    pub fn default_layout(&self) -> io::Result<Vec<u8>> {
        let own = self.root_layout()?;
        Ok(own.unwrap_or_else(|| user::encode_spec(&Fid::ZERO, &LayoutSpec::default())))
    }

    /// Replaces unset fields of a default layout, whose stripe size must divide `ends`, by the file system's
    /// values.
    ///
    /// # Errors
    /// Those of getxattr(2) on the root.
    pub fn resolve(&self, view: &mut LayoutView, ends: &[u64]) -> io::Result<()> {
        let root = user::decode_request(&self.default_layout()?).unwrap_or_default().inherited();
        if view.stripe_count == 0 && !view.is_on_mdt() {
            view.stripe_count = root.stripe_count.unwrap_or(1);
        }
        if view.stripe_size == 0 {
            view.stripe_size = fitting_stripe_size(root.stripe_size.unwrap_or(STRIPE_SIZE_DEFAULT), ends);
        }
        Ok(())
    }
}

/// Returns the FID of a file or directory.
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
    // An inode that cannot be opened (a symbolic link, a device, a file without read permission) is
    // identified by its inode number.
    drop(Mounted::open(directory_of(path))?);
    nacre_client::node::fid_of(metadata.ino()).ok_or(io::Error::from(Errno::NODATA))
}

/// Returns the directory that contains the last component of a path.
pub fn directory_of(path: &Path) -> &Path {
    path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Returns the layout of a file or a directory's own default; `None` if there is none.
///
/// # Errors
/// `ENOTTY` if it is not on NacreFS.
pub fn layout_of(path: &Path) -> io::Result<Option<Vec<u8>>> {
    let Some(layout) = shown_layout(path)? else { return Ok(None) };
    let is_own = !path.is_dir() || lists_layout(path)?;
    Ok(is_own.then_some(layout))
}

/// Returns the layout of a file, or of the default that files in a directory inherit.
fn shown_layout(path: &Path) -> io::Result<Option<Vec<u8>>> {
    let mut buffer = vec![0u8; XATTR_MAX];
    taken(rustix::fs::getxattr(path, LAYOUT, &mut buffer[..]), buffer).map_err(not_lustre)
}

/// Returns true if a directory has a default layout of its own: an inherited one is readable, but not in its
/// list of attributes.
fn lists_layout(path: &Path) -> io::Result<bool> {
    let mut names = vec![0u8; XATTR_MAX];
    let len = rustix::fs::listxattr(path, &mut names[..])?;
    Ok(names[..len].split(|&byte| byte == 0).any(|name| name == LAYOUT.as_bytes()))
}

/// Like [`layout_of`], without following a symbolic link in the last component.
///
/// # Errors
/// Those of lgetxattr(2).
pub fn layout_of_link(path: &[u8]) -> io::Result<Option<Vec<u8>>> {
    let mut buffer = vec![0u8; XATTR_MAX];
    taken(rustix::fs::lgetxattr(path, LAYOUT, &mut buffer[..]), buffer).map_err(not_lustre)
}

/// Returns the value that a call has stored in a buffer; `None` if the attribute does not exist.
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

/// Gives advice about a range of a file.
///
/// # Errors
/// Those of open(2); `EOPNOTSUPP` for advice that has no effect; `ENOTTY` if the file is not on NacreFS.
pub fn advise(path: &Path, advice: &Advise) -> io::Result<()> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
    let file = rustix::fs::open(path, flags, Mode::empty())?;
    nacre_fuse::front::ioctl::call(file.as_fd(), &mut advice.clone())
}

/// Returns the size of a file as its MDT has it.
///
/// # Errors
/// Those of open(2); `ENOTTY` if it is not on NacreFS.
pub fn size_on_mdt(path: &Path) -> io::Result<SizeOnMdt> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
    let file = rustix::fs::open(path, flags, Mode::empty())?;
    ask(file.as_fd(), &SizeOnMdt::default())
}

/// Returns the inodes and the space below a directory.
///
/// # Errors
/// Those of open(2); `ENOTTY` if it is not on NacreFS; those of the operation.
pub fn dir_use(path: &Path) -> io::Result<DirUse> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    ask_file(&rustix::fs::open(path, flags, Mode::empty())?, &DirUse::default())
}

/// Returns a page of an open directory.
///
/// # Errors
/// `ENOTTY` if it is not on NacreFS; errors of the mount.
pub fn scan(directory: BorrowedFd<'_>, cookie: u64, wanted: ScanWanted) -> io::Result<ScanDirectory> {
    ask(directory, &ScanDirectory { cookie, wanted, ..ScanDirectory::default() })
}

/// Project of a file or directory.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Project {
    /// Number of the project, 0 for none.
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
    // SAFETY: the ioctl writes 28 bytes, the size of the array.
    Ok(unsafe { ioctl(file, Getter::<FS_IOC_FSGETXATTR, Fsxattr>::new()) }?)
}

/// Returns true for inodes that can be opened without a side effect: files and directories.
fn can_be_opened(path: &Path) -> io::Result<bool> {
    let kind = std::fs::symlink_metadata(path)?.file_type();
    Ok(kind.is_file() || kind.is_dir())
}

/// Reads or sets the project of a name through its directory.
fn by_name(path: &Path, kind: u32, project: Project) -> io::Result<ProjectCall> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let directory = rustix::fs::open(directory_of(path), flags, Mode::empty())?;
    let name = path.file_name().ok_or(io::Error::from(Errno::INVAL))?.as_bytes().to_vec();
    let xflags = if project.inherited { XFLAG_PROJECT_INHERIT } else { 0 };
    ask(directory.as_fd(), &ProjectCall { kind, id: project.id, xflags, name })
}

/// Returns the project of a file, directory, or any other inode with a name.
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

/// Returns the project of an open file or directory.
///
/// # Errors
/// Those of ioctl(2).
pub fn project_of_open(file: &OwnedFd) -> io::Result<Project> {
    let attributes = fsxattr(file)?;
    let inherited = attributes[FSX_FLAGS] & XFLAG_PROJECT_INHERIT != 0;
    Ok(Project { id: attributes[FSX_PROJECT], inherited })
}

/// Changes the project that [`project_of`] returns.
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
    // SAFETY: the ioctl reads 28 bytes, the size of the array.
    Ok(unsafe { ioctl(file, Setter::<FS_IOC_FSSETXATTR, Fsxattr>::new(attributes)) }?)
}

/// Sets the default layout of a directory.
///
/// # Errors
/// Those of setxattr(2); `ENOTTY` if it is not on NacreFS.
pub fn set_layout(path: &Path, value: &[u8]) -> io::Result<()> {
    rustix::fs::setxattr(path, LAYOUT, value, XattrFlags::empty()).map_err(not_lustre)
}

/// Turns an empty directory into a foreign one.
///
/// # Errors
/// Those of setxattr(2).
pub fn set_directory_layout(path: &Path, value: &[u8]) -> io::Result<()> {
    rustix::fs::setxattr(path, DIRECTORY_LAYOUT, value, XattrFlags::CREATE).map_err(io::Error::from)
}

/// Returns the layout of a directory in Lustre's form; there is one only if it is striped over several MDTs,
/// or foreign.
///
/// # Errors
/// Those of getxattr(2).
pub fn directory_layout(path: &Path) -> io::Result<Option<Vec<u8>>> {
    attribute(path, DIRECTORY_LAYOUT)
}

/// Sets the default of new directories in a directory; an empty value removes it. An error carries whether
/// the directory could be opened.
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

/// Returns the stored default of new directories in a directory.
///
/// # Errors
/// Those of getxattr(2); `EPROTO` for a malformed value.
pub fn dir_default_stored(path: &Path) -> io::Result<Option<DirDefault>> {
    attribute(path, DIRECTORY_DEFAULT)?.as_deref().map(dir_default_in).transpose()
}

/// Returns the effective default of new directories in a directory: its own, otherwise the inheritable part
/// of the root's.
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
    // SAFETY: the command number encodes that the kernel reads and writes 48 bytes, the size of the array.
    match unsafe { ioctl(&directory, Updater::<{ lustre::LMV_GETSTRIPE }, _>::new(&mut bytes)) } {
        Ok(()) => dir_default_in(&bytes).map(Some),
        Err(Errno::NODATA) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

fn dir_default_in(bytes: &[u8]) -> io::Result<DirDefault> {
    DirDefault::decode(bytes).map_err(|_| io::Error::from(Errno::PROTO))
}

/// Returns the layout of a file in Lustre's form, if one is stored.
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

/// Changes components of a file; `name` selects the operation.
///
/// # Errors
/// Those of setxattr(2).
pub fn edit_layout(path: &Path, name: &str, value: &[u8]) -> io::Result<()> {
    rustix::fs::setxattr(path, name, value, XattrFlags::empty()).map_err(io::Error::from)
}

/// Removes the default layout of a directory; succeeds if it has none.
///
/// # Errors
/// Those of removexattr(2).
pub fn remove_layout(path: &Path) -> io::Result<()> {
    match rustix::fs::removexattr(path, LAYOUT) {
        Ok(()) | Err(Errno::NODATA) => Ok(()),
        Err(error) => Err(not_lustre(error)),
    }
}

/// Creates a file if it does not exist, and sets its layout.
///
/// # Errors
/// `EALREADY` or `EEXIST` if the file has objects; those of open(2) and setxattr(2).
pub fn create_with_layout(path: &Path, mode: u32, value: &[u8]) -> io::Result<()> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::NOCTTY | OFlags::CLOEXEC;
    let file = rustix::fs::open(path, flags, Mode::from_raw_mode(mode))?;
    // Without `CREATE`, the call would silently leave a file with objects unchanged.
    rustix::fs::fsetxattr(&file, LAYOUT, value, XattrFlags::CREATE).map_err(not_lustre)
}

/// Maps the errno of other file systems, which do not know the attribute name space `lustre`.
fn not_lustre(error: rustix::io::Errno) -> io::Error {
    match error {
        Errno::OPNOTSUPP => io::Error::from(Errno::NOTTY),
        error => error.into(),
    }
}

/// Sends a request and returns the answer, which replaces it.
fn ask<T: Payload>(file: BorrowedFd<'_>, question: &T) -> io::Result<T> {
    ask_raw(file, question).map_err(|error| match Errno::from_io_error(&error) {
        // Some file systems have other errnos for an unknown ioctl.
        Some(Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP) => io::Error::from(Errno::NOTTY),
        _ => error,
    })
}

/// Sends a request about an open file, with the errors of the operation.
///
/// # Errors
/// `ENOTTY` if it is not on NacreFS; those of the operation.
pub fn ask_file<T: Payload>(file: &OwnedFd, question: &T) -> io::Result<T> {
    ask_raw(file.as_fd(), question)
}

fn ask_raw<T: Payload>(file: BorrowedFd<'_>, question: &T) -> io::Result<T> {
    let mut bytes = question.to_bytes();
    bytes.resize(T::SIZE, 0);
    // SAFETY: the command number encodes T::SIZE, which is how many bytes the kernel reads and writes at
    // most, and the buffer has that many; the descriptor is open for the length of the call.
    let result = unsafe { libc::ioctl(file.as_raw_fd(), T::COMMAND as _, bytes.as_mut_ptr()) };
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    T::from_bytes(&bytes).ok_or_else(|| io::Error::from(Errno::PROTO))
}
