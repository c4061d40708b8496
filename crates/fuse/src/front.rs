//! From kernel requests to the client and back; nothing else.
//!
//! # What the kernel may cache
//!
//! What the client says that it will call back: everything while its lease is exclusive, because then nobody else changes
//! anything, and what came with a lock otherwise. Two exceptions: names in a directory that not everybody may search are
//! looked up each time, because the kernel walks cached names without asking for permission; and kernels that cannot be told
//! to look all names up again (before 7.44) keep them for a second, and not at all beside other clients. See [`open_mode`] for
//! file data.
//!
//! # Not possible here
//!
//! `sync(2)` and `syncfs(2)` end in the kernel: it passes them on for other kinds of FUSE mounts only. `fsync` works.

use nacre_env::clock::Instant;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use nacre_client::node::fid_of;
use nacre_client::{Caller, Client, Created, JobSource, KernelCaches};
use nacre_env::JobGuard;
use nacre_types::{Fid, Status, StatusResult};

use crate::abi::StatFs;
use crate::config::SessionConfig;
use crate::handler::{Handler, InitConfig};
use crate::notify::Notifier;
use crate::reply::Reply;
use crate::request::{InitRequest, Operation, Request};

mod attr;
mod data;
mod dir;
pub mod extents;
pub mod ioctl;
mod lock;
mod lustre;
mod names;
pub mod open_mode;
pub mod stats;
mod xattr;

pub use open_mode::CacheMode;

/// Protocol version from which on all cached names can be made to be looked up again.
const MINOR_WITH_EPOCH: u32 = 44;
/// For how long names are cached on kernels before that.
const NAMES_WITHOUT_EPOCH: Duration = Duration::from_secs(1);
/// How far the kernel fetches ahead of readers of its page cache. One request of the largest size where each crosses to
/// another process (0.7 of the throughput with 128 KiB); half of it where it does not, so that the pages are still in the
/// CPU's cache when they are copied (0.85 of the throughput with 1 MiB). Decision 0008.
const REMOTE_READ_AHEAD_BYTES: u32 = 1 << 20;
const LOCAL_READ_AHEAD_BYTES: u32 = 512 << 10;
/// Node id by which the kernel knows the root of a mount.
const ROOT_NODE: u64 = 1;
/// Longest name in bytes.
const NAME_MAX: u32 = nacre_types::limits::NAME_MAX as u32;

/// Who decides about file locks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum LockScope {
    /// The kernel, for this mount alone (`localflock`).
    #[default]
    Local,
    /// The MDT, for all mounts (`flock`). Every close costs a round trip to this daemon, and one to the MDT for files on
    /// which somebody here has asked for an `fcntl` lock.
    Cluster,
}

/// Options of the translation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct FrontOptions {
    /// Which files go through the page cache.
    pub cache: CacheMode,
    /// Who decides about file locks.
    pub locks: LockScope,
    /// The kernel checks permissions and ACLs too. The only way to have those of FIFOs, sockets and device nodes
    /// checked, which it opens without asking; costs a request for each create and unlink.
    pub kernel_checks: bool,
    /// The directory that is mounted; `None`: the root of the file system.
    pub root: Option<Fid>,
}

/// Answers the kernel's requests with a [`Client`].
pub struct Front {
    client: Arc<Client>,
    options: FrontOptions,
    stats: stats::FrontStats,
    notifier: OnceLock<Notifier>,
    /// For how long names may be cached if nothing speaks against it.
    name_timeout: OnceLock<Duration>,
}

impl Front {
    /// A handler for [`crate::Session::mount`] with the options that [`Front::configure`] sets.
    pub fn new(client: Arc<Client>, options: FrontOptions) -> Front {
        Front {
            client,
            options,
            stats: stats::FrontStats::new(),
            notifier: OnceLock::new(),
            name_timeout: OnceLock::new(),
        }
    }

    /// Sets the protocol options that this handler relies on.
    pub fn configure(&self, config: &mut SessionConfig) {
        let protocol = &mut config.protocol;
        protocol.posix_locks = self.options.locks == LockScope::Cluster;
        protocol.flock_locks = self.options.locks == LockScope::Cluster;
        protocol.export_support = true;
        // With attributes only while somebody asks for them: names alone are ten times cheaper.
        protocol.readdirplus = true;
        protocol.readdirplus_auto = true;
        protocol.cache_symlinks = true;
        protocol.writeback_cache = false;
        protocol.max_readahead =
            if self.client.requests.is_embedded() { LOCAL_READ_AHEAD_BYTES } else { REMOTE_READ_AHEAD_BYTES };
        protocol.auto_inval_data = false;
        protocol.no_open = false;
        protocol.kernel_acls = self.options.kernel_checks;
        config.mount.default_permissions = self.options.kernel_checks;
    }

    /// The client behind it.
    pub fn client(&self) -> &Arc<Client> {
        &self.client
    }

    /// What was asked so far.
    pub fn stats(&self) -> &stats::FrontStats {
        &self.stats
    }

    fn fid(&self, node: u64) -> StatusResult<Fid> {
        match self.options.root {
            Some(root) if node == ROOT_NODE => Ok(root),
            _ => fid_of(node).ok_or(Status::ESTALE),
        }
    }

    /// One of the paths of an inode, from the mounted directory on: see `Inodes::fid_to_path`.
    fn path_of(&self, caller: &Caller, fid: Fid, link: u32) -> StatusResult<Vec<u8>> {
        let path = self.client.inodes.fid_to_path(caller, fid, link)?;
        let Some(root) = self.options.root else { return Ok(path) };
        let root = self.client.inodes.fid_to_path(caller, root, 0)?;
        // The servers show no more than what is mounted.
        if root.is_empty() {
            return Ok(path);
        }
        match path.strip_prefix(&*root) {
            Some([]) => Ok(Vec::new()),
            Some([b'/', below @ ..]) => Ok(below.to_vec()),
            // It lies elsewhere in the file system.
            _ => Err(Status::EXDEV),
        }
    }

    /// For how long the kernel may use a name (or its absence) that may be kept.
    fn entry_timeout(&self, keep: bool) -> Duration {
        let timeout = self.name_timeout.get().copied().filter(|_| keep).unwrap_or(Duration::ZERO);
        // A second is too long while there are others.
        if timeout == Duration::MAX || self.client.lease.exclusive() { timeout } else { Duration::ZERO }
    }

    /// A directory was closed to some who could search it: names in it must not be walked any more without asking.
    fn expire_names(&self) {
        if let Some(notifier) = self.notifier.get() {
            notify_expired(notifier);
        }
    }

    /// Every request of the protocol.
    fn dispatch(&self, request: &Request<'_>, reply: &mut Reply<'_>) -> StatusResult<()> {
        match request.op {
            Operation::Read { fh, offset, size, flags, lock_owner } => {
                self.read(fh, offset, size, flags as i32, lock_owner.is_some(), reply)
            }
            Operation::Write(write) => self.write(request, &write, reply),
            Operation::Open { flags, kill_suid_gid } => self.open(request, flags, kill_suid_gid, reply),
            Operation::Release { fh, .. } => self.release(request, fh, reply),
            Operation::Flush { fh, lock_owner } => self.flush(request, fh, lock_owner, reply),
            Operation::Fsync { fh, .. } => done(self.client.data.fsync(fh), reply),
            Operation::FAllocate { fh, offset, length, mode } => {
                let kind = data::to_fallocate(mode)?;
                done(self.client.data.fallocate(&caller(request), fh, kind, offset, length), reply)
            }
            Operation::LSeek { fh, offset, whence } => self.lseek(fh, offset, whence as i32, reply),
            Operation::CopyFileRange(copy) => self.copy_file_range(request, &copy, reply),
            Operation::GetAttr { .. } => self.getattr(request, reply),
            Operation::Statx { .. } => self.statx(request, reply),
            Operation::SetAttr(change) => self.setattr(request, &change, reply),
            Operation::Access { mask } => self.access(request, mask, reply),
            Operation::OpenDir { .. } => self.opendir(request, reply),
            Operation::ReadDir { fh, offset, size } => self.readdir(request, fh, offset, size, false, reply),
            Operation::ReadDirPlus { fh, offset, size } => {
                self.readdir(request, fh, offset, size, true, reply)
            }
            Operation::ReleaseDir { fh, .. } => self.releasedir(fh, reply),
            Operation::FsyncDir { fh, .. } => done(self.client.listings.fsyncdir(fh), reply),
            Operation::GetXattr { name, size } => self.getxattr(request, name, size, reply),
            Operation::ListXattr { size } => self.listxattr(request, size, reply),
            Operation::SetXattr { name, value, flags, kill_sgid } => {
                self.setxattr(request, name, value, flags, kill_sgid, reply)
            }
            Operation::RemoveXattr { name } => self.removexattr(request, name, reply),
            Operation::GetLk { owner, lock, flock, .. } => self.getlk(request, owner, &lock, flock, reply),
            Operation::SetLk { fh, owner, lock, flock, wait } => {
                self.setlk(request, fh, lock::to_lock(&lock, owner, flock)?, wait, reply)
            }
            Operation::Lookup { name } => self.lookup(request, name, reply),
            Operation::Create { name, flags, mode, umask, kill_suid_gid } => {
                self.create_open(request, name, &names::node(mode, umask), flags, kill_suid_gid, reply)
            }
            Operation::TmpFile { flags, mode, umask } => self.tmpfile(request, flags, mode, umask, reply),
            Operation::MkDir { name, mode, umask } => {
                self.create(request, name, &names::directory(mode, umask), reply)
            }
            Operation::MkNod { name, mode, rdev, umask } => {
                self.create(request, name, &Created::node(mode, rdev, umask)?, reply)
            }
            Operation::Symlink { name, target } => self.create(request, name, &names::symlink(target), reply),
            Operation::Link { node_id, new_name } => self.link(request, node_id, new_name, reply),
            Operation::Unlink { name } => self.unlink(request, name, false, reply),
            Operation::RmDir { name } => self.unlink(request, name, true, reply),
            Operation::Rename { name, new_parent, new_name, flags } => {
                self.rename(request, name, new_parent, new_name, flags, reply)
            }
            Operation::ReadLink => self.readlink(request, reply),
            Operation::Ioctl(call) => self.ioctl(request, &call, reply),
            Operation::Forget { nlookup } => self.forget([(request.node_id, nlookup)], reply),
            Operation::BatchForget { forgets } => self.forget(forgets.iter(), reply),
            Operation::StatFs => self.statfs(reply),
            Operation::SyncFs => done(self.client.data.sync_all(), reply),
            Operation::NotifyReply { .. } => unanswered(reply),
            Operation::Destroy => done(Ok(()), reply),
            Operation::Init(_)
            | Operation::Interrupt { .. }
            | Operation::Bmap { .. }
            | Operation::Poll { .. } => unsupported(),
        }
    }

    /// The kernel has dropped references to inodes.
    fn forget(
        &self,
        forgets: impl IntoIterator<Item = (u64, u64)>,
        reply: &mut Reply<'_>,
    ) -> StatusResult<()> {
        forgets.into_iter().for_each(|(node, lookups)| self.client.inodes.forget(node, lookups));
        unanswered(reply)
    }

    /// Has this thread work for the job of the program that asks, if jobs are named.
    fn enter_job(&self, request: &Request<'_>) -> Option<JobGuard> {
        if !self.client.jobs.is_enabled() {
            return None;
        }
        let (handle, source) = match request.op {
            Operation::Read { fh, .. } => (Some(fh), JobSource::MayFault),
            // A program that ends has no environment any more when its files are closed.
            Operation::Flush { fh, .. } => (Some(fh), JobSource::MayFault),
            Operation::Write(write) if write.from_cache => (Some(write.fh), JobSource::Kernel),
            Operation::Write(write) => (Some(write.fh), JobSource::MayFault),
            // The kernel does it when it gets round to it.
            Operation::Release { fh, .. } => (Some(fh), JobSource::Kernel),
            Operation::Fsync { fh, .. } | Operation::FAllocate { fh, .. } | Operation::LSeek { fh, .. } => {
                (Some(fh), JobSource::Call)
            }
            Operation::Forget { .. } | Operation::BatchForget { .. } => return None,
            _ => (None, JobSource::Call),
        };
        self.client.opens.enter_job(&caller(request), handle, source)
    }

    fn statfs(&self, reply: &mut Reply<'_>) -> StatusResult<()> {
        let space = self.client.requests.statfs()?;
        reply.statfs(&StatFs {
            blocks: space.blocks,
            bfree: space.blocks_free,
            bavail: space.blocks_available,
            files: space.files,
            ffree: space.files_free,
            bsize: space.block_size,
            frsize: space.block_size,
            namelen: NAME_MAX,
            ..StatFs::default()
        });
        Ok(())
    }
}

fn caller(request: &Request<'_>) -> Caller {
    Caller { uid: request.uid, gid: request.gid, pid: request.pid }
}

fn notify_expired(notifier: &Notifier) {
    match notifier.inc_epoch() {
        Ok(()) => {}
        // Older kernels: names time out by themselves, see `NAMES_WITHOUT_EPOCH`.
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {}
        // The mount has gone, and all its names with it.
        Err(error) if error.raw_os_error() == Some(libc::ENOTCONN) => {}
        Err(error) => log::warn!("the kernel did not let go of cached names: {error}"),
    }
}

/// The kernel's caches, as the client sees them.
struct Caches {
    notifier: Notifier,
    /// Node id of the directory that the kernel knows as the root.
    root: u64,
}

impl KernelCaches for Caches {
    fn expire_names(&self) {
        notify_expired(&self.notifier);
    }

    fn drop_inode(&self, node: u64) -> bool {
        self.invalidate(node, 0, 0)
    }

    fn drop_attributes(&self, node: u64) -> bool {
        // A negative offset leaves the pages, which requests in flight may have locked.
        self.invalidate(node, -1, 0)
    }

    fn drop_data(&self, node: u64, offset: u64, len: u64) {
        let signed = |value: u64| i64::try_from(value).unwrap_or(i64::MAX);
        // A page may be waiting for a read that another thread has to answer.
        nacre_env::blocking(|| self.invalidate(node, signed(offset), signed(len)));
    }
}

impl Caches {
    /// False if the kernel does not know the inode: it has forgotten it, or is about to learn of it.
    fn invalidate(&self, node: u64, offset: i64, len: i64) -> bool {
        let node = if node == self.root { ROOT_NODE } else { node };
        match self.notifier.inval_inode(node, offset, len) {
            Ok(()) => true,
            Err(error) if error.raw_os_error() == Some(libc::ENOENT) => false,
            // The mount has gone.
            Err(error) => {
                log::debug!("node {node} could not be invalidated: {error}");
                true
            }
        }
    }
}

impl Handler for Front {
    fn attached(&self, notifier: &Notifier) {
        if self.notifier.set(notifier.clone()).is_ok() {
            let root = self.options.root.map_or(ROOT_NODE, |root| root.inode_number());
            self.client.lease.set_kernel_caches(Arc::new(Caches { notifier: notifier.clone(), root }));
        }
    }

    fn init(&self, kernel: &InitRequest, _: &mut InitConfig) {
        let timeout = if kernel.minor >= MINOR_WITH_EPOCH { Duration::MAX } else { NAMES_WITHOUT_EPOCH };
        let _ = self.name_timeout.set(timeout);
    }

    fn handle(&self, request: &Request<'_>, reply: &mut Reply<'_>) {
        let start = Instant::now();
        let _job = self.enter_job(request);
        match self.dispatch(request, reply) {
            Ok(()) => self.stats.count(request, reply, start),
            Err(status) => reply.error(status.errno()),
        }
    }
}

/// Answers with the outcome of what gives nothing back.
fn done(outcome: StatusResult<()>, reply: &mut Reply<'_>) -> StatusResult<()> {
    outcome?;
    reply.ok();
    Ok(())
}

/// The kernel expects no answer.
fn unanswered(reply: &mut Reply<'_>) -> StatusResult<()> {
    reply.none();
    Ok(())
}

/// A request that is not served; the kernel then does without it for ever.
fn unsupported() -> StatusResult<()> {
    Err(Status::ENOSYS)
}

/// The inode that a request is about is gone: the kernel then looks its name up once more, where "no such file" would be
/// final.
fn gone(status: Status) -> Status {
    if status == Status::ENOENT { Status::ESTALE } else { status }
}
