//! The translation between kernel requests and the client.
//!
//! # What the kernel may cache
//!
//! Everything that the client can revoke: all of it while its lease is exclusive, because then no other
//! client makes changes, and otherwise what a lock covers. Two exceptions: names in a directory that not
//! all users may search are looked up each time, because the kernel walks cached names without a permission
//! check; and kernels without a way to expire all names (before 7.44) cache them for a second, and not at all
//! while there are other clients. See [`open_mode`] for file data.
//!
//! # Limits
//!
//! `sync(2)` and `syncfs(2)` end in the kernel: it forwards them only for other kinds of FUSE mounts. `fsync`
//! works.

use nacre_env::clock::Instant;
use std::sync::Arc;

use nacre_client::{Caller, Client, Created, JobSource, LockOwner};
use nacre_env::{JobGuard, activity};
use nacre_types::{Fid, Status, StatusResult};

use crate::abi::StatFs;
use crate::config::SessionConfig;
use crate::handler::{Handler, InitConfig};
use crate::notify::Notifier;
use crate::reply::Reply;
use crate::request::{InitRequest, Ioctl, Operation, Read, Request};
use data::{Files, Opening};
use ioctl::Asked;
use names::{Named, Names};

mod attr;
mod caches;
mod data;
pub mod extents;
pub mod ioctl;
mod lock;
mod lustre;
mod names;
pub mod open_mode;
mod retries;
pub mod stats;

pub use open_mode::CacheMode;

/// Read-ahead of the kernel for its page cache, in bytes. One request of the largest size where each crosses
/// to another process (0.7 of the throughput with 128 KiB); half of it where it does not, so that the pages
/// are still in the CPU's cache when they are copied (0.85 of the throughput with 1 MiB). Decision 0008.
const REMOTE_READ_AHEAD_BYTES: u32 = 1 << 20;
const LOCAL_READ_AHEAD_BYTES: u32 = 512 << 10;
/// Longest name in bytes.
const NAME_MAX: u32 = nacre_types::limits::NAME_MAX as u32;

/// Scope of file locks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum LockScope {
    /// The kernel's, for this mount alone (`localflock`).
    #[default]
    Local,
    /// The MDT's, for all mounts (`flock`). Every close costs a round trip to this daemon, and one to the MDT
    /// for files on which a program of this mount has requested an `fcntl` lock.
    Cluster,
}

/// Options of the translation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct FrontOptions {
    /// Rule for the use of the page cache.
    pub cache: CacheMode,
    /// Scope of file locks.
    pub locks: LockScope,
    /// The kernel checks permissions and ACLs too. The only way to check those of FIFOs, sockets and device
    /// nodes, which the kernel opens without a request; costs a request for each create and unlink.
    pub kernel_checks: bool,
    /// Mounted directory; `None`: the root of the file system.
    pub root: Option<Fid>,
}

/// Answers the kernel's requests with a [`Client`].
pub struct Front {
    client: Arc<Client>,
    names: Names,
    files: Files,
    /// The kernel checks permissions, too.
    kernel_checks: bool,
    stats: stats::FrontStats,
}

impl Front {
    /// Creates a handler for [`crate::Session::mount`] with the options that [`Front::configure`] sets.
    pub fn new(client: Arc<Client>, options: FrontOptions) -> Front {
        Front {
            names: Names::new(client.clone(), options.root),
            files: Files::new(client.clone(), options.cache, options.locks),
            client,
            kernel_checks: options.kernel_checks,
            stats: stats::FrontStats::new(),
        }
    }

    /// Sets the protocol options that this handler relies on.
    pub fn configure(&self, config: &mut SessionConfig) {
        let protocol = &mut config.protocol;
        protocol.posix_locks = self.files.closes_are_told();
        protocol.flock_locks = self.files.closes_are_told();
        protocol.export_support = true;
        // With attributes only while programs ask for them: names alone are ten times cheaper.
        protocol.readdirplus = true;
        protocol.readdirplus_auto = true;
        protocol.cache_symlinks = true;
        protocol.writeback_cache = false;
        protocol.max_readahead =
            if self.client.requests.is_embedded() { LOCAL_READ_AHEAD_BYTES } else { REMOTE_READ_AHEAD_BYTES };
        protocol.auto_inval_data = false;
        protocol.no_open = false;
        protocol.kernel_acls = self.kernel_checks;
        config.mount.default_permissions = self.kernel_checks;
    }

    /// Returns the client.
    pub fn client(&self) -> &Arc<Client> {
        &self.client
    }

    /// Returns the statistics of requests.
    pub fn stats(&self) -> &stats::FrontStats {
        &self.stats
    }

    /// Dispatches a request by its kind.
    fn dispatch(&self, caller: &Caller, request: &Request<'_>, reply: &mut Reply<'_>) -> StatusResult<()> {
        let Front { client, names, files, .. } = self;
        let fid = || names.fid(request.node_id);
        let at = |name| Ok(Named { parent: fid()?, name });
        let make = |name, what, reply| names.create(caller, at(name)?, &what, reply);
        let create = |name, what, how, reply| files.create(names, caller, at(name)?, &what, how, reply);
        match request.op {
            Operation::Read(read) => files.read(&read, reply),
            Operation::Write(write) => files.write(caller, &write, reply),
            Operation::Open { flags, kill_suid_gid } => {
                files.open(caller, fid()?, Opening::new(flags, kill_suid_gid), reply)
            }
            Operation::Release { fh, .. } => files.release(caller, fh, reply),
            Operation::Flush { fh, lock_owner } => files.flush(caller, fh, LockOwner(lock_owner), reply),
            Operation::Fsync { fh, .. } => done(client.data.fsync(fh), reply),
            Operation::FAllocate { fh, offset, length, mode } => {
                done(client.data.fallocate(caller, fh, data::to_fallocate(mode)?, offset, length), reply)
            }
            Operation::LSeek { fh, offset, whence } => files.lseek(fh, offset, whence, reply),
            Operation::CopyFileRange(copy) => files.copy_file_range(caller, &copy, reply),
            Operation::GetLk { owner, lock, flock, .. } => {
                files.getlk(caller, fid()?, lock::to_lock(&lock, owner, flock)?, reply)
            }
            Operation::SetLk { fh, owner, lock, flock, wait } => {
                files.setlk(caller, fh, lock::to_lock(&lock, owner, flock)?, wait, reply)
            }
            Operation::Create { name, flags, mode, umask, kill_suid_gid } => {
                create(name, names::node(mode, umask), Opening::new(flags, kill_suid_gid), reply)
            }
            Operation::TmpFile { flags, mode, umask } => {
                create(b"", names::unnamed(mode, umask), Opening::new(flags, false), reply)
            }
            Operation::Lookup { name } => names.lookup(caller, at(name)?, reply),
            Operation::MkDir { name, mode, umask } => make(name, names::directory(mode, umask), reply),
            Operation::MkNod { name, mode, rdev, umask } => {
                make(name, Created::node(mode, rdev, umask)?, reply)
            }
            Operation::Symlink { name, target } => make(name, names::symlink(target), reply),
            Operation::Link { node_id, new_name } => names.link(caller, node_id, at(new_name)?, reply),
            Operation::Unlink { name } => done(client.names.unlink(caller, fid()?, name, false), reply),
            Operation::RmDir { name } => done(client.names.unlink(caller, fid()?, name, true), reply),
            Operation::Rename { name, new_parent, new_name, flags } => {
                let to = Named { parent: names.fid(new_parent)?, name: new_name };
                names.rename(caller, at(name)?, to, flags, reply)
            }
            Operation::OpenDir { .. } => names.opendir(caller, fid()?, reply),
            Operation::ReadDir(part) => names.readdir(caller, &part, false, reply),
            Operation::ReadDirPlus(part) => names.readdir(caller, &part, true, reply),
            Operation::ReleaseDir { fh, .. } => names.releasedir(fh, reply),
            Operation::FsyncDir { fh, .. } => done(client.listings.fsyncdir(fh), reply),
            Operation::GetAttr { .. } => names.getattr(fid()?, reply),
            Operation::Statx { .. } => names.statx(fid()?, reply),
            Operation::SetAttr(change) => names.setattr(caller, fid()?, &change, reply),
            Operation::Access { mask } => names.access(caller, fid()?, mask, reply),
            Operation::ReadLink => names.readlink(fid()?, reply),
            Operation::GetXattr { name, size } => names.getxattr(caller, fid()?, name, size, reply),
            Operation::ListXattr { size } => names.listxattr(caller, fid()?, size, reply),
            Operation::SetXattr(set) => names.setxattr(caller, fid()?, &set, reply),
            Operation::RemoveXattr { name } => names.removexattr(caller, fid()?, name, reply),
            Operation::Ioctl(call) => self.ioctl(caller, fid()?, &call, reply),
            Operation::Forget { nlookup } => self.forget([(request.node_id, nlookup)], reply),
            Operation::BatchForget { forgets } => self.forget(forgets.iter(), reply),
            Operation::StatFs => self.statfs(reply),
            Operation::SyncFs => done(client.data.sync_all(), reply),
            Operation::NotifyReply { .. } => unanswered(reply),
            Operation::Destroy => done(Ok(()), reply),
            Operation::Init(_) | Operation::Interrupt { .. } => unsupported(),
            Operation::Bmap { .. } | Operation::Poll { .. } => unsupported(),
        }
    }

    fn ioctl(&self, caller: &Caller, fid: Fid, call: &Ioctl<'_>, reply: &mut Reply<'_>) -> StatusResult<()> {
        let Front { client, names, files, .. } = self;
        let closes_are_told = files.closes_are_told();
        ioctl::answer(&Asked { client, names, caller, call, fid, closes_are_told }, reply)
    }

    /// Drops references to inodes that the kernel has forgotten.
    fn forget(
        &self,
        forgets: impl IntoIterator<Item = (u64, u64)>,
        reply: &mut Reply<'_>,
    ) -> StatusResult<()> {
        forgets.into_iter().for_each(|(node, lookups)| self.client.inodes.forget(node, lookups));
        unanswered(reply)
    }

    /// Assigns this thread to the job of the calling program, if jobs are named.
    fn enter_job(&self, caller: &Caller, request: &Request<'_>) -> Option<JobGuard> {
        if !self.client.jobs.is_enabled() {
            return None;
        }
        let (handle, source) = match request.op {
            Operation::Read(Read { fh, .. }) => (Some(fh), JobSource::MayFault),
            // An exiting program has no environment any more when its files are closed.
            Operation::Flush { fh, .. } => (Some(fh), JobSource::MayFault),
            Operation::Write(write) if write.from_cache => (Some(write.fh), JobSource::Kernel),
            Operation::Write(write) => (Some(write.fh), JobSource::MayFault),
            // The kernel sends it asynchronously.
            Operation::Release { fh, .. } => (Some(fh), JobSource::Kernel),
            Operation::Fsync { fh, .. } | Operation::FAllocate { fh, .. } | Operation::LSeek { fh, .. } => {
                (Some(fh), JobSource::Call)
            }
            Operation::Forget { .. } | Operation::BatchForget { .. } => return None,
            _ => (None, JobSource::Call),
        };
        self.client.opens.enter_job(caller, handle, source)
    }

    /// Describes a request for reports of what waits.
    fn operation(&self, request: &Request<'_>) -> activity::Operation {
        activity::Operation {
            target: None,
            name: crate::abi::opcode::name(request.opcode),
            fid: self.names.fid(request.node_id).ok(),
            lock: 0,
            origin: activity::Origin::Program { pid: request.pid, uid: request.uid },
        }
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

impl Handler for Front {
    fn attached(&self, notifier: &Notifier) {
        self.names.attached(notifier);
    }

    fn init(&self, kernel: &InitRequest, _: &mut InitConfig) {
        self.names.set_minor(kernel.minor);
    }

    fn handle(&self, request: &Request<'_>, reply: &mut Reply<'_>) {
        let start = Instant::now();
        let caller = &Caller { uid: request.uid, gid: request.gid, pid: request.pid };
        let running = activity::begin(self.operation(request));
        let _job = self.enter_job(caller, request);
        let outcome =
            self.names.retries.follow(caller, request, |request| self.dispatch(caller, request, reply));
        running.ended(&outcome);
        self.names.retries.ended(request, &outcome);
        match outcome {
            Ok(()) => self.stats.count(request, reply, start),
            Err(status) => reply.error(status.errno()),
        }
    }
}

/// Answers with the outcome of an operation without a result.
fn done(outcome: StatusResult<()>, reply: &mut Reply<'_>) -> StatusResult<()> {
    outcome?;
    reply.ok();
    Ok(())
}

/// Marks a request that the kernel expects no answer to.
fn unanswered(reply: &mut Reply<'_>) -> StatusResult<()> {
    reply.none();
    Ok(())
}

/// Refuses a request; the kernel then never sends one of this kind again.
fn unsupported() -> StatusResult<()> {
    Err(Status::ENOSYS)
}

/// Translates the status for a removed inode: on `ESTALE` the kernel looks the name up once more, where
/// `ENOENT` would be final.
fn gone(status: Status) -> Status {
    if status == Status::ENOENT { Status::ESTALE } else { status }
}
