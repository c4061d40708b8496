//! Names: lookup, create, rename, remove; and how long the kernel may cache them.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use nacre_client::node::fid_of;
use nacre_client::{Caller, Client, Created, Found, KernelCaches, NewFile, RenameFlags};
use nacre_types::{Fid, FileKind, Status, StatusResult, perm};

use super::attr::{attr_timeout, to_wire};
use super::caches::{Caches, ROOT_NODE};
use super::retries::Retries;
use super::{done, gone};
use crate::abi::Attr;
use crate::notify::Notifier;
use crate::reply::{DirEntry, Entry, Opened, Reply};
use crate::request::ReadDir;

/// Protocol version from which on all cached names can be expired.
const MINOR_WITH_EPOCH: u32 = 44;
/// Time for which names are cached on older kernels.
const NAMES_WITHOUT_EPOCH: Duration = Duration::from_secs(1);

/// Names and attributes of a mount, some of which the kernel caches.
pub(super) struct Names {
    pub(super) client: Arc<Client>,
    /// Mounted directory; `None`: the root of the file system.
    root: Option<Fid>,
    caches: OnceLock<Arc<Caches>>,
    /// Time for which names may be cached, if they may.
    timeout: OnceLock<Duration>,
    pub(super) retries: Retries,
}

impl Names {
    pub(super) fn new(client: Arc<Client>, root: Option<Fid>) -> Names {
        let retries = Retries::new(client.clone());
        Names { client, root, caches: OnceLock::new(), timeout: OnceLock::new(), retries }
    }

    /// Connects the kernel's caches.
    pub(super) fn attached(&self, notifier: &Notifier) {
        let caches = Arc::new(Caches::new(notifier.clone(), self.root));
        if self.caches.set(caches.clone()).is_ok() {
            self.client.lease.set_kernel_caches(caches);
        }
    }

    /// Sets the kernel's protocol version.
    pub(super) fn set_minor(&self, minor: u32) {
        let timeout = if minor >= MINOR_WITH_EPOCH { Duration::MAX } else { NAMES_WITHOUT_EPOCH };
        let _ = self.timeout.set(timeout);
    }

    /// Returns the inode of a node id.
    pub(super) fn fid(&self, node: u64) -> StatusResult<Fid> {
        match self.root {
            Some(root) if node == ROOT_NODE => Ok(root),
            _ => fid_of(node).ok_or(Status::ESTALE),
        }
    }

    /// Returns one of the paths of an inode, relative to the mounted directory: see `Inodes::fid_to_path`.
    pub(super) fn path_of(&self, caller: &Caller, fid: Fid, link: u32) -> StatusResult<Vec<u8>> {
        let path = self.client.inodes.fid_to_path(caller, fid, link)?;
        let Some(root) = self.root else { return Ok(path) };
        let root = self.client.inodes.fid_to_path(caller, root, 0)?;
        // The servers already restrict paths to the mounted directory.
        if root.is_empty() {
            return Ok(path);
        }
        match path.strip_prefix(&*root) {
            Some([]) => Ok(Vec::new()),
            Some([b'/', below @ ..]) => Ok(below.to_vec()),
            // It is elsewhere in the file system.
            _ => Err(Status::EXDEV),
        }
    }

    /// Returns how long the kernel may use a name (or its absence) that may be cached.
    fn timeout(&self, keep: bool) -> Duration {
        let timeout = self.timeout.get().copied().filter(|_| keep).unwrap_or(Duration::ZERO);
        // A second is too long while there are other clients.
        if timeout == Duration::MAX || self.client.lease.exclusive() { timeout } else { Duration::ZERO }
    }

    /// Expires all cached names: a directory was closed to users who could search it, or names have a new
    /// meaning.
    pub(super) fn expire(&self) {
        if let Some(caches) = self.caches.get() {
            caches.expire_names();
        }
    }

    /// Answers a change, and expires names if `expires` is set.
    pub(super) fn changed(&self, expires: bool, reply: &mut Reply<'_>) -> StatusResult<()> {
        if expires {
            self.expire();
        }
        done(Ok(()), reply)
    }

    /// Returns the protocol's form of a found or created name.
    pub(super) fn entry(&self, found: &Found) -> Entry {
        Entry {
            node_id: if self.root == Some(found.attr.fid) { ROOT_NODE } else { found.node },
            // FIDs are never reused, so neither are node ids.
            generation: 0,
            entry_timeout: self.timeout(found.public && found.keep.name),
            attr_timeout: attr_timeout(found.keep.attr),
            attr: to_wire(&found.attr),
        }
    }

    pub(super) fn lookup(&self, caller: &Caller, at: Named<'_>, reply: &mut Reply<'_>) -> StatusResult<()> {
        // Sent for a file handle: the inode need not be a directory.
        if at.name == b"." {
            reply.entry(&self.entry(&self.client.inodes.lookup_self(at.parent)?));
            return Ok(());
        }
        match self.retries.lookup(caller, &at)? {
            Ok(found) => reply.entry(&self.entry(&found)),
            Err(absent) => {
                let timeout = self.timeout(absent.public && absent.keep);
                if timeout.is_zero() {
                    return Err(Status::ENOENT);
                }
                reply.entry(&absent_for(timeout));
            }
        }
        Ok(())
    }

    pub(super) fn create(
        &self,
        caller: &Caller,
        at: Named<'_>,
        what: &Created<'_>,
        reply: &mut Reply<'_>,
    ) -> StatusResult<()> {
        reply.entry(&self.entry(&self.client.names.create(caller, at.parent, at.name, what)?));
        Ok(())
    }

    pub(super) fn link(
        &self,
        caller: &Caller,
        node: u64,
        at: Named<'_>,
        reply: &mut Reply<'_>,
    ) -> StatusResult<()> {
        let linked = self.fid(node)?;
        self.check_protected(caller, linked)?;
        let found = self.client.names.link(caller, linked, at.parent, at.name).map_err(gone)?;
        reply.entry(&self.entry(&found));
        Ok(())
    }

    /// Checks `fs.protected_hardlinks`: a user without read and write permission may create links only to
    /// files of their own. Elsewhere the kernel checks this; for a FUSE file it does not know the
    /// permissions. It refuses links to other kinds of files itself.
    fn check_protected(&self, caller: &Caller, fid: Fid) -> StatusResult<()> {
        if caller.uid == 0 || !hard_links_are_protected() {
            return Ok(());
        }
        let attr = self.client.inodes.getattr(fid)?;
        if attr.uid == caller.uid || !attr.is_regular() {
            return Ok(());
        }
        match self.client.inodes.access(caller, fid, perm::READ | perm::WRITE) {
            Err(Status::EACCES) => Err(Status::EPERM),
            verdict => verdict,
        }
    }

    pub(super) fn rename(
        &self,
        caller: &Caller,
        from: Named<'_>,
        to: Named<'_>,
        flags: u32,
        reply: &mut Reply<'_>,
    ) -> StatusResult<()> {
        let (from, to) = ((from.parent, from.name), (to.parent, to.name));
        let is_known = self.client.names.rename(caller, from, to, rename_flags(flags)?)?;
        self.changed(!is_known, reply)
    }

    pub(super) fn readlink(&self, fid: Fid, reply: &mut Reply<'_>) -> StatusResult<()> {
        reply.bytes(&self.client.inodes.readlink(fid)?);
        Ok(())
    }

    pub(super) fn opendir(&self, caller: &Caller, fid: Fid, reply: &mut Reply<'_>) -> StatusResult<()> {
        let fh = self.client.listings.opendir(caller, fid).map_err(gone)?;
        reply.opened(&Opened { fh, ..Opened::default() });
        Ok(())
    }

    pub(super) fn releasedir(&self, fh: u64, reply: &mut Reply<'_>) -> StatusResult<()> {
        self.client.listings.releasedir(fh);
        done(Ok(()), reply)
    }

    pub(super) fn readdir(
        &self,
        caller: &Caller,
        from: &ReadDir,
        plus: bool,
        reply: &mut Reply<'_>,
    ) -> StatusResult<()> {
        let &ReadDir { fh, offset, size } = from;
        self.client.listings.check_listing(caller, fh)?;
        let mut buffer = reply.directory(size);
        let listed = self.client.listings.readdir(fh, offset, size, plus, &mut |listed| {
            let entry = DirEntry {
                ino: listed.node,
                next_offset: listed.next,
                kind: listed.kind as u32,
                name: listed.name,
            };
            let full = match (&listed.attr, plus) {
                (Some(attr), true) => {
                    let (node, attr, public, keep) = (listed.node, *attr, listed.public, listed.keep);
                    buffer.push_plus(&self.entry(&Found { node, attr, public, keep }), &entry)
                }
                (None, true) => buffer.push_name_only(&entry),
                (_, false) => buffer.push(&entry),
            };
            !full
        });
        // The kernel would take `ENOENT` for the end of an empty directory.
        listed.map_err(gone)
    }
}

/// A name in a directory.
pub(super) struct Named<'a> {
    pub(super) parent: Fid,
    pub(super) name: &'a [u8],
}

/// Returns a negative entry.
fn absent_for(timeout: Duration) -> Entry {
    Entry {
        node_id: 0,
        generation: 0,
        entry_timeout: timeout,
        attr_timeout: Duration::ZERO,
        attr: Attr::default(),
    }
}

/// Returns the description of a new regular file.
pub(super) fn node(mode: u32, umask: u32) -> Created<'static> {
    Created { new: NewFile::Node { rdev: 0 }, mode: regular(mode), umask }
}

/// Returns the description of a new regular file without a name.
pub(super) fn unnamed(mode: u32, umask: u32) -> Created<'static> {
    Created { new: NewFile::Unnamed, mode: regular(mode), umask }
}

pub(super) fn directory(mode: u32, umask: u32) -> Created<'static> {
    Created { new: NewFile::Directory, mode: FileKind::Directory.mode_bits() | mode & 0o7777, umask }
}

pub(super) fn symlink(target: &[u8]) -> Created<'_> {
    Created { new: NewFile::Symlink { target }, mode: FileKind::Symlink.mode_bits() | 0o777, umask: 0 }
}

/// Returns the host's setting, which administrators may change at any time.
fn hard_links_are_protected() -> bool {
    std::fs::read("/proc/sys/fs/protected_hardlinks").is_ok_and(|text| text.first() == Some(&b'1'))
}

fn regular(mode: u32) -> u32 {
    FileKind::Regular.mode_bits() | mode & 0o7777
}

/// Converts flags of a rename.
///
/// # Errors
/// `EINVAL` for unsupported flags (whiteouts).
fn rename_flags(flags: u32) -> StatusResult<RenameFlags> {
    use rustix::fs::RenameFlags as Kernel;
    let mut known = RenameFlags::empty();
    let asked = Kernel::from_bits_retain(flags);
    known.set(RenameFlags::NOREPLACE, asked.contains(Kernel::NOREPLACE));
    known.set(RenameFlags::EXCHANGE, asked.contains(Kernel::EXCHANGE));
    let rest = asked - (Kernel::NOREPLACE | Kernel::EXCHANGE);
    if rest.is_empty() { Ok(known) } else { Err(Status::EINVAL) }
}
