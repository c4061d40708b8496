//! The null file system of `nacre bench fuse-null` on the `fuser` crate, for comparison with NacreFS's own
//! FUSE channel.
//!
//! `fuser_null DIRECTORY` mounts, prints `mounted`, and serves until standard input ends. It keeps names and
//! sizes and drops data, like the null file system on NacreFS's channel, with one thread per CPU and
//! FOPEN_DIRECT_IO.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::io::Read;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, UNIX_EPOCH};

use fuser::{
    Config, Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation, INodeNo, InitFlags,
    KernelConfig, LockOwner, MountOption, OpenFlags, ReplyAttr, ReplyCreate, ReplyData, ReplyEmpty,
    ReplyEntry, ReplyOpen, ReplyWrite, ReplyXattr, Request, SessionACL, WriteFlags,
};

const TIMEOUT: Duration = Duration::from_secs(3600);
const READ_MAX: usize = 1 << 20;

#[derive(Clone, Copy)]
struct Node {
    directory: bool,
    size: u64,
}

/// Directory number and name, mapped to the file's number.
type Names = HashMap<(u64, Vec<u8>), u64>;

/// Names in shards, by directory number modulo their count, so that two workers seldom contend.
struct NullFs {
    names: Vec<Mutex<Names>>,
    nodes: Vec<Mutex<HashMap<u64, Node>>>,
    next: AtomicU64,
    data: Vec<u8>,
}

impl NullFs {
    fn new() -> NullFs {
        let shards = 16;
        let file_system = NullFs {
            names: (0..shards).map(|_| Mutex::default()).collect(),
            nodes: (0..shards).map(|_| Mutex::default()).collect(),
            next: AtomicU64::new(2),
            data: vec![0x5a; READ_MAX],
        };
        file_system.insert(1, Node { directory: true, size: 0 });
        file_system
    }

    fn insert(&self, number: u64, node: Node) {
        let shard = &self.nodes[number as usize % self.nodes.len()];
        shard.lock().expect("no holder panics").insert(number, node);
    }

    fn with_node<T>(&self, number: INodeNo, act: impl FnOnce(&mut Node) -> T) -> Option<T> {
        let shard = &self.nodes[number.0 as usize % self.nodes.len()];
        shard.lock().expect("no holder panics").get_mut(&number.0).map(act)
    }

    fn add(&self, parent: INodeNo, name: &OsStr, directory: bool) -> FileAttr {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let node = Node { directory, size: 0 };
        self.insert(number, node);
        let key = (parent.0, name.as_encoded_bytes().to_vec());
        self.names(parent).lock().expect("no holder panics").insert(key, number);
        attr(INodeNo(number), node)
    }

    fn remove(&self, parent: INodeNo, name: &OsStr) -> Result<(), Errno> {
        let key = (parent.0, name.as_encoded_bytes().to_vec());
        let removed = self.names(parent).lock().expect("no holder panics").remove(&key);
        let number = removed.ok_or(Errno::ENOENT)?;
        let shard = &self.nodes[number as usize % self.nodes.len()];
        shard.lock().expect("no holder panics").remove(&number);
        Ok(())
    }

    fn names(&self, parent: INodeNo) -> &Mutex<Names> {
        &self.names[parent.0 as usize % self.names.len()]
    }
}

fn attr(number: INodeNo, node: Node) -> FileAttr {
    let kind = if node.directory { FileType::Directory } else { FileType::RegularFile };
    FileAttr {
        ino: number,
        size: node.size,
        blocks: node.size.div_ceil(512),
        atime: UNIX_EPOCH,
        mtime: UNIX_EPOCH,
        ctime: UNIX_EPOCH,
        crtime: UNIX_EPOCH,
        kind,
        perm: 0o777,
        nlink: 1,
        uid: 0,
        gid: 0,
        rdev: 0,
        blksize: 4096,
        flags: 0,
    }
}

impl Filesystem for NullFs {
    fn init(&mut self, _request: &Request, config: &mut KernelConfig) -> std::io::Result<()> {
        // A kernel with a lower maximum keeps its own.
        let _ = config.set_max_write(READ_MAX as u32);
        let _ = config.set_max_background(64);
        let _ = config.add_capabilities(InitFlags::FUSE_PARALLEL_DIROPS | InitFlags::FUSE_ASYNC_DIO);
        Ok(())
    }

    fn lookup(&self, _request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let key = (parent.0, name.as_encoded_bytes().to_vec());
        let number = self.names(parent).lock().expect("no holder panics").get(&key).copied();
        let found =
            number.and_then(|number| self.with_node(INodeNo(number), |node| attr(INodeNo(number), *node)));
        match found {
            Some(attr) => reply.entry_with_ttls(&TIMEOUT, &TIMEOUT, &attr, Generation(0)),
            None => reply.error(Errno::ENOENT),
        }
    }

    fn getattr(&self, _request: &Request, number: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        match self.with_node(number, |node| attr(number, *node)) {
            Some(attr) => reply.attr(&TIMEOUT, &attr),
            None => reply.error(Errno::ENOENT),
        }
    }

    fn open(&self, _request: &Request, _number: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        reply.opened(FileHandle(0), FopenFlags::FOPEN_DIRECT_IO);
    }

    fn create(
        &self,
        _request: &Request,
        parent: INodeNo,
        name: &OsStr,
        _mode: u32,
        _umask: u32,
        _flags: i32,
        reply: ReplyCreate,
    ) {
        let attr = self.add(parent, name, false);
        reply.created(&TIMEOUT, &attr, Generation(0), FileHandle(0), FopenFlags::FOPEN_DIRECT_IO);
    }

    fn mkdir(&self, _: &Request, parent: INodeNo, name: &OsStr, _mode: u32, _umask: u32, reply: ReplyEntry) {
        reply.entry_with_ttls(&TIMEOUT, &TIMEOUT, &self.add(parent, name, true), Generation(0));
    }

    fn unlink(&self, _request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        match self.remove(parent, name) {
            Ok(()) => reply.ok(),
            Err(errno) => reply.error(errno),
        }
    }

    fn rmdir(&self, _request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        match self.remove(parent, name) {
            Ok(()) => reply.ok(),
            Err(errno) => reply.error(errno),
        }
    }

    fn readdir(
        &self,
        _request: &Request,
        directory: INodeNo,
        _handle: FileHandle,
        offset: u64,
        mut reply: fuser::ReplyDirectory,
    ) {
        let names = self.names(directory).lock().expect("no holder panics");
        let entries = names.iter().filter(|((parent, _), _)| *parent == directory.0);
        for (index, ((_, name), number)) in entries.enumerate().skip(offset as usize) {
            // SAFETY: these are the bytes of an OsStr that the kernel sent, whole.
            let name = unsafe { OsStr::from_encoded_bytes_unchecked(name) };
            if reply.add(INodeNo(*number), index as u64 + 1, FileType::RegularFile, name) {
                break;
            }
        }
        reply.ok();
    }

    fn read(
        &self,
        _request: &Request,
        number: INodeNo,
        _handle: FileHandle,
        offset: u64,
        size: u32,
        _flags: OpenFlags,
        _owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let file_size = self.with_node(number, |node| node.size).unwrap_or(0);
        let length = file_size.saturating_sub(offset).min(u64::from(size)) as usize;
        reply.data(&self.data[..length.min(READ_MAX)]);
    }

    fn write(
        &self,
        _request: &Request,
        number: INodeNo,
        _handle: FileHandle,
        offset: u64,
        data: &[u8],
        _write_flags: WriteFlags,
        _flags: OpenFlags,
        _owner: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        self.with_node(number, |node| node.size = node.size.max(offset + data.len() as u64));
        reply.written(data.len() as u32);
    }

    fn fsync(&self, _: &Request, _number: INodeNo, _: FileHandle, _datasync: bool, reply: ReplyEmpty) {
        reply.ok();
    }

    fn flush(&self, _: &Request, _number: INodeNo, _: FileHandle, _: LockOwner, reply: ReplyEmpty) {
        reply.error(Errno::ENOSYS);
    }

    fn getxattr(&self, _: &Request, _number: INodeNo, _name: &OsStr, _size: u32, reply: ReplyXattr) {
        reply.error(Errno::ENOSYS);
    }
}

fn main() {
    let Some(directory) = std::env::args_os().nth(1) else {
        eprintln!("usage: fuser_null DIRECTORY");
        std::process::exit(2);
    };
    let mut config = Config::default();
    config.n_threads = std::thread::available_parallelism().ok().map(|count| count.get());
    config.clone_fd = true;
    config.mount_options = vec![MountOption::FSName("fuser-null".to_owned())];
    config.acl = SessionACL::All;
    match fuser::spawn_mount(NullFs::new(), &directory, &config) {
        Ok(session) => {
            println!("mounted");
            // Standard input ends with the parent process, or when the parent closes it.
            let _ = std::io::stdin().read_to_end(&mut Vec::new());
            drop(session);
        }
        Err(error) => {
            eprintln!("fuser_null: {error}");
            std::process::exit(1);
        }
    }
}
