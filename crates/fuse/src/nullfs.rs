//! A file system in memory that does as little as possible.
//!
//! It is the ceiling for other file systems on this channel, and the subject of the channel's own tests:
//! names and attributes are stored, data is not. Writes set the size and discard the data; reads return the
//! contents of the transport's buffer (as if just received there) or a constant pattern. It checks no
//! permissions and has no hard links, renames or extended attributes.
//!
//! The root has a directory `many` with generated entries.

mod tree;

use std::cell::Cell;
use std::sync::Arc;
use std::time::Duration;

use crate::abi::{self, Attr, OpenFlags, StatFs};
use crate::{DirEntry, Entry, Handler, Opened, Operation, Read, ReadDir, Reply, Request, SetAttr};
use nacre_types::attr::{FileKind, S_IFMT};
use rustix::fs::OFlags;
use rustix::io::Errno;
use tree::{Kind, MANY_BASE, MANY_NODE, Tree};

/// Work that a benchmark adds to every request before its answer, e.g. one call over the network.
pub type RequestHook = Arc<dyn Fn(&Request<'_>) + Send + Sync>;

/// Options of [`NullFs`].
#[derive(Clone)]
pub struct NullOptions {
    /// Time for which the kernel may use attributes.
    pub attr_timeout: Duration,
    /// Time for which the kernel may use names.
    pub entry_timeout: Duration,
    /// Negative entries are cached for the entry timeout, too.
    pub negative_entries: bool,
    /// Reads and writes bypass the page cache.
    pub direct_io: bool,
    /// Cached data survives an open.
    pub keep_cache: bool,
    /// Byte that reads copy into the buffer; `None`: the buffer is returned unchanged.
    pub fill: Option<u8>,
    /// Initial files in the root: name and size in bytes.
    pub files: Vec<(String, u64)>,
    /// Initial directories in the root.
    pub directories: Vec<String>,
    /// Number of entries of the directory `many`.
    pub many: u64,
    /// Function to call for every request except forgets.
    pub hook: Option<RequestHook>,
}

impl Default for NullOptions {
    fn default() -> NullOptions {
        NullOptions {
            attr_timeout: Duration::from_secs(3600),
            entry_timeout: Duration::from_secs(3600),
            negative_entries: false,
            direct_io: true,
            keep_cache: true,
            fill: None,
            files: Vec::new(),
            directories: Vec::new(),
            many: 100_000,
            hook: None,
        }
    }
}

/// The null file system; see the module.
pub struct NullFs {
    options: NullOptions,
    tree: Tree,
}

impl NullFs {
    /// Creates a file system with the contents of the options.
    pub fn new(options: NullOptions) -> NullFs {
        let tree = Tree::new(options.many);
        for name in &options.directories {
            let _ = tree.add(abi::ROOT_ID, name.as_bytes(), FileKind::Directory.mode_bits() | 0o777, 0, 0);
        }
        for (name, size) in &options.files {
            if let Ok(attr) =
                tree.add(abi::ROOT_ID, name.as_bytes(), FileKind::Regular.mode_bits() | 0o666, 0, 0)
            {
                tree.change(attr.ino, |node| node.size = *size);
            }
        }
        NullFs { options, tree }
    }

    /// Returns the number of inodes in memory (without those of `many`).
    pub fn node_count(&self) -> usize {
        self.tree.len()
    }

    fn entry(&self, attr: Attr) -> Entry {
        Entry {
            node_id: attr.ino,
            generation: 0,
            entry_timeout: self.options.entry_timeout,
            attr_timeout: self.options.attr_timeout,
            attr,
        }
    }

    fn opened(&self) -> Opened {
        let mut flags = OpenFlags::PARALLEL_DIRECT_WRITES | OpenFlags::NOFLUSH;
        flags.set(OpenFlags::DIRECT_IO, self.options.direct_io);
        flags.set(OpenFlags::KEEP_CACHE, self.options.keep_cache);
        Opened { fh: 0, flags, backing_id: 0 }
    }

    fn lookup(&self, parent: u64, name: &[u8], reply: &mut Reply<'_>) {
        match self.tree.lookup(parent, name) {
            Ok(attr) => reply.entry(&self.entry(attr)),
            Err(Errno::NOENT) if self.options.negative_entries => {
                reply.entry(&self.entry(Attr::default()));
            }
            Err(errno) => reply.error(errno.raw_os_error()),
        }
    }

    fn make(&self, request: &Request<'_>, name: &[u8], mode: u32) -> Result<Entry, Errno> {
        self.tree.add(request.node_id, name, mode, request.uid, request.gid).map(|attr| {
            self.tree.remember(attr.ino);
            self.entry(attr)
        })
    }

    fn set_attr(&self, node: u64, change: &SetAttr, reply: &mut Reply<'_>) {
        let attr = self.tree.change(node, |node| {
            if let Some(mode) = change.mode {
                node.mode = (node.mode & S_IFMT) | (mode & !S_IFMT);
            }
            node.uid = change.uid.unwrap_or(node.uid);
            node.gid = change.gid.unwrap_or(node.gid);
            node.size = change.size.unwrap_or(node.size);
            if let Some(crate::SetTime::At { seconds, .. }) = change.mtime {
                node.mtime = seconds as u64;
            }
        });
        match attr {
            Some(attr) => reply.attr(&attr, self.options.attr_timeout),
            None => reply.error(Errno::NOENT.raw_os_error()),
        }
    }

    fn read(&self, node: u64, offset: u64, size: u32, reply: &mut Reply<'_>) {
        let Some(attr) = self.tree.attr(node) else { return reply.error(Errno::NOENT.raw_os_error()) };
        let length = attr.size.saturating_sub(offset).min(u64::from(size)) as usize;
        let buffer = reply.read_buffer(length);
        match self.options.fill {
            Some(byte) => buffer.fill(byte),
            None => touch(buffer),
        }
        let length = buffer.len();
        reply.read_done(length);
    }

    fn write(&self, node: u64, end: u64, length: usize, reply: &mut Reply<'_>) {
        match self.tree.change(node, |node| node.size = node.size.max(end)) {
            Some(_) => reply.written(length as u32),
            None => reply.error(Errno::NOENT.raw_os_error()),
        }
    }

    fn list(&self, node: u64, offset: u64, size: u32, plus: bool, reply: &mut Reply<'_>) {
        let mut buffer = reply.directory(size);
        let listed = self.tree.list(node, offset, |name, next_offset, attr| {
            let entry = DirEntry { ino: attr.ino, next_offset, kind: attr.mode >> 12, name };
            if !plus {
                return buffer.push(&entry);
            }
            let full = buffer.push_plus(&self.entry(*attr), &entry);
            if !full {
                self.tree.remember(attr.ino);
            }
            full
        });
        if let Err(errno) = listed {
            reply.error(errno.raw_os_error());
        }
    }

    fn namespace(&self, request: &Request<'_>, reply: &mut Reply<'_>) {
        let node = request.node_id;
        let unit = |outcome: Result<(), Errno>, reply: &mut Reply<'_>| match outcome {
            Ok(()) => reply.ok(),
            Err(errno) => reply.error(errno.raw_os_error()),
        };
        match request.op {
            Operation::Lookup { name } => self.lookup(node, name, reply),
            Operation::MkNod { name, mode, umask, .. } => match self.make(request, name, mode & !umask) {
                Ok(entry) => reply.entry(&entry),
                Err(errno) => reply.error(errno.raw_os_error()),
            },
            Operation::MkDir { name, mode, umask } => {
                match self.make(request, name, FileKind::Directory.mode_bits() | (mode & !umask & 0o7777)) {
                    Ok(entry) => reply.entry(&entry),
                    Err(errno) => reply.error(errno.raw_os_error()),
                }
            }
            Operation::Create { name, mode, umask, .. } => match self.make(request, name, mode & !umask) {
                Ok(entry) => reply.created(&entry, &self.opened()),
                Err(errno) => reply.error(errno.raw_os_error()),
            },
            Operation::Unlink { name } => unit(self.tree.remove(node, name, Kind::File), reply),
            Operation::RmDir { name } => unit(self.tree.remove(node, name, Kind::Directory), reply),
            _ => reply.error(Errno::NOSYS.raw_os_error()),
        }
    }
}

impl Handler for NullFs {
    fn handle(&self, request: &Request<'_>, reply: &mut Reply<'_>) {
        let node = request.node_id;
        match request.op {
            Operation::Forget { nlookup } => {
                self.tree.forget(node, nlookup);
                return reply.none();
            }
            Operation::BatchForget { forgets } => {
                for (node, nlookup) in forgets.iter() {
                    self.tree.forget(node, nlookup);
                }
                return reply.none();
            }
            _ => {}
        }
        if let Some(hook) = &self.options.hook {
            hook(request);
        }
        match request.op {
            Operation::GetAttr { .. } => match self.tree.attr(node) {
                Some(attr) => reply.attr(&attr, self.options.attr_timeout),
                None => reply.error(Errno::NOENT.raw_os_error()),
            },
            Operation::SetAttr(change) => self.set_attr(node, &change, reply),
            Operation::Open { flags, .. } => {
                if flags & OFlags::TRUNC.bits() != 0 {
                    self.tree.change(node, |node| node.size = 0);
                }
                reply.opened(&self.opened());
            }
            Operation::OpenDir { .. } => reply.opened(&Opened::default()),
            Operation::Read(Read { offset, size, .. }) => self.read(node, offset, size, reply),
            Operation::Write(write) => {
                self.write(
                    node,
                    write.offset.saturating_add(write.data.len() as u64),
                    write.data.len(),
                    reply,
                );
            }
            Operation::ReadDir(ReadDir { offset, size, .. }) => self.list(node, offset, size, false, reply),
            Operation::ReadDirPlus(ReadDir { offset, size, .. }) => {
                self.list(node, offset, size, true, reply)
            }
            Operation::Release { .. } | Operation::ReleaseDir { .. } => reply.ok(),
            Operation::Fsync { .. } | Operation::FsyncDir { .. } => reply.ok(),
            Operation::StatFs => reply.statfs(&StatFs {
                blocks: 1 << 30,
                bfree: 1 << 29,
                bavail: 1 << 29,
                files: MANY_BASE,
                ffree: MANY_BASE - self.tree.len() as u64,
                bsize: 1 << 20,
                namelen: 255,
                frsize: 4096,
                ..StatFs::default()
            }),
            _ => self.namespace(request, reply),
        }
    }
}

/// Touches the pages of a buffer once, as if data had been received into them: the kernel takes pages that
/// were never written by a slower path, which would make reads look worse than those of a real file system.
fn touch(buffer: &mut [u8]) {
    const PAGE: usize = 4096;
    thread_local! { static TOUCHED: Cell<(usize, usize)> = const { Cell::new((0, 0)) }; }
    let (address, length) = (buffer.as_ptr() as usize, buffer.len());
    let (known_address, known_length) = TOUCHED.get();
    if address == known_address && length <= known_length {
        return;
    }
    for byte in buffer.iter_mut().step_by(PAGE) {
        *byte = 0x5a;
    }
    TOUCHED.set((address, length));
}

/// Node id of the directory `many`, for benchmarks that address it directly.
pub const MANY: u64 = MANY_NODE;
