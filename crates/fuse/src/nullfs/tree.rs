//! The names and inodes of the null file system.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use nacre_env::sync::Mutex;
use nacre_types::attr::{FileKind, S_IFMT};
use rustix::io::Errno;

use crate::abi::{Attr, ROOT_ID};

/// Node id of the directory with generated entries.
pub(super) const MANY_NODE: u64 = 2;
/// First node id of the entries of that directory.
pub(super) const MANY_BASE: u64 = 1 << 32;

/// Number of locks over inodes; an inode belongs to the lock of its number modulo this.
const SHARDS: usize = 64;
/// Time of all inodes; the value does not matter.
const TIME: u64 = 1_700_000_000;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    File,
    Directory,
}

pub(super) struct Node {
    pub mode: u32,
    pub uid: u32,
    pub gid: u32,
    pub size: u64,
    pub mtime: u64,
    linked: bool,
    lookups: u64,
    children: Option<Box<Children>>,
}

#[derive(Default)]
struct Children {
    by_name: HashMap<Arc<[u8]>, (u64, u64)>,
    /// Position in listings (never reused) to name and inode.
    by_position: BTreeMap<u64, (Arc<[u8]>, u64)>,
    position: u64,
}

impl Node {
    fn new(mode: u32, uid: u32, gid: u32) -> Node {
        let children = (mode & S_IFMT == FileKind::Directory.mode_bits()).then(Box::default);
        Node { mode, uid, gid, size: 0, mtime: TIME, linked: true, lookups: 0, children }
    }

    fn attr(&self, ino: u64) -> Attr {
        Attr {
            ino,
            size: self.size,
            blocks: self.size.div_ceil(512),
            atime: self.mtime,
            mtime: self.mtime,
            ctime: self.mtime,
            mode: self.mode,
            nlink: if self.children.is_some() { 2 } else { 1 },
            uid: self.uid,
            gid: self.gid,
            blksize: 1 << 20,
            ..Attr::default()
        }
    }
}

pub(super) struct Tree {
    shards: Vec<Mutex<HashMap<u64, Node>>>,
    next: AtomicU64,
    count: AtomicUsize,
    many: u64,
}

impl Tree {
    pub fn new(many: u64) -> Tree {
        let shards = (0..SHARDS).map(|_| Mutex::default()).collect();
        let tree = Tree { shards, next: AtomicU64::new(16), count: AtomicUsize::new(0), many };
        tree.put(ROOT_ID, Node::new(FileKind::Directory.mode_bits() | 0o777, 0, 0));
        tree.put(MANY_NODE, Node::new(FileKind::Directory.mode_bits() | 0o555, 0, 0));
        tree.link(ROOT_ID, b"many", MANY_NODE);
        tree
    }

    pub fn len(&self) -> usize {
        self.count.load(Ordering::Relaxed)
    }

    fn shard(&self, node: u64) -> &Mutex<HashMap<u64, Node>> {
        &self.shards[(node % SHARDS as u64) as usize]
    }

    fn put(&self, number: u64, node: Node) {
        self.shard(number).lock().insert(number, node);
        self.count.fetch_add(1, Ordering::Relaxed);
    }

    /// Adds a name; `false` if it exists or the parent is no directory.
    fn link(&self, parent: u64, name: &[u8], child: u64) -> bool {
        let mut shard = self.shard(parent).lock();
        let Some(children) = shard.get_mut(&parent).and_then(|node| node.children.as_mut()) else {
            return false;
        };
        if children.by_name.contains_key(name) {
            return false;
        }
        children.position += 1;
        let (position, name) = (children.position, Arc::<[u8]>::from(name));
        children.by_position.insert(position, (name.clone(), child));
        children.by_name.insert(name, (child, position));
        true
    }

    fn many_attr(number: u64) -> Attr {
        Node { size: 4096, ..Node::new(FileKind::Regular.mode_bits() | 0o444, 0, 0) }.attr(number)
    }

    pub fn attr(&self, number: u64) -> Option<Attr> {
        if number >= MANY_BASE {
            return Some(Tree::many_attr(number));
        }
        self.shard(number).lock().get(&number).map(|node| node.attr(number))
    }

    pub fn change(&self, number: u64, change: impl FnOnce(&mut Node)) -> Option<Attr> {
        let mut shard = self.shard(number).lock();
        let node = shard.get_mut(&number)?;
        change(node);
        Some(node.attr(number))
    }

    /// Counts a lookup of the inode.
    pub fn remember(&self, number: u64) {
        self.change(number, |node| node.lookups += 1);
    }

    pub fn lookup(&self, parent: u64, name: &[u8]) -> Result<Attr, Errno> {
        if parent == MANY_NODE {
            let index = std::str::from_utf8(name).ok().and_then(|name| name.strip_prefix('f')?.parse().ok());
            let index: u64 = index.filter(|index| *index < self.many).ok_or(Errno::NOENT)?;
            return Ok(Tree::many_attr(MANY_BASE + index));
        }
        let child = {
            let shard = self.shard(parent).lock();
            let node = shard.get(&parent).ok_or(Errno::NOENT)?;
            node.children.as_ref().ok_or(Errno::NOTDIR)?.by_name.get(name).ok_or(Errno::NOENT)?.0
        };
        self.change(child, |node| node.lookups += 1).ok_or(Errno::NOENT)
    }

    pub fn add(&self, parent: u64, name: &[u8], mode: u32, uid: u32, gid: u32) -> Result<Attr, Errno> {
        if parent == MANY_NODE {
            return Err(Errno::ACCESS);
        }
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let node = Node::new(mode, uid, gid);
        let attr = node.attr(number);
        self.put(number, node);
        if self.link(parent, name, number) {
            return Ok(attr);
        }
        self.drop_node(number);
        Err(Errno::EXIST)
    }

    pub fn remove(&self, parent: u64, name: &[u8], kind: Kind) -> Result<(), Errno> {
        if parent == MANY_NODE {
            return Err(Errno::ACCESS);
        }
        let child = self.lookup(parent, name)?;
        self.forget(child.ino, 1);
        let is_directory = child.mode & S_IFMT == FileKind::Directory.mode_bits();
        match kind {
            Kind::File if is_directory => return Err(Errno::ISDIR),
            Kind::Directory if !is_directory => return Err(Errno::NOTDIR),
            Kind::Directory if child.ino == MANY_NODE || !self.is_empty(child.ino) => {
                return Err(Errno::NOTEMPTY);
            }
            _ => {}
        }
        {
            let mut shard = self.shard(parent).lock();
            let children =
                shard.get_mut(&parent).and_then(|node| node.children.as_mut()).ok_or(Errno::NOENT)?;
            let (_, position) = children.by_name.remove(name).ok_or(Errno::NOENT)?;
            children.by_position.remove(&position);
        }
        self.change(child.ino, |node| node.linked = false);
        self.forget(child.ino, 0);
        Ok(())
    }

    fn is_empty(&self, number: u64) -> bool {
        let shard = self.shard(number).lock();
        let children = shard.get(&number).and_then(|node| node.children.as_ref());
        children.is_none_or(|children| children.by_name.is_empty())
    }

    /// Undoes lookups; removes an inode without names and lookups.
    pub fn forget(&self, number: u64, lookups: u64) {
        if number >= MANY_BASE {
            return;
        }
        let mut shard = self.shard(number).lock();
        if let Some(node) = shard.get_mut(&number) {
            node.lookups = node.lookups.saturating_sub(lookups);
            if node.lookups == 0 && !node.linked {
                shard.remove(&number);
                self.count.fetch_sub(1, Ordering::Relaxed);
            }
        }
    }

    fn drop_node(&self, number: u64) {
        if self.shard(number).lock().remove(&number).is_some() {
            self.count.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Lists names after position `offset`, until `each` returns that it has enough.
    pub fn list(
        &self,
        number: u64,
        offset: u64,
        mut each: impl FnMut(&[u8], u64, &Attr) -> bool,
    ) -> Result<(), Errno> {
        if number == MANY_NODE {
            let mut attr = Tree::many_attr(MANY_BASE);
            for index in offset..self.many {
                attr.ino = MANY_BASE + index;
                if each(&many_name(index), index + 1, &attr) {
                    break;
                }
            }
            return Ok(());
        }
        /// Names copied per lock: about as many as fit into one reply.
        const BATCH: usize = 512;
        let mut offset = offset;
        loop {
            let batch: Vec<(u64, Arc<[u8]>, u64)> = {
                let shard = self.shard(number).lock();
                let node = shard.get(&number).ok_or(Errno::NOENT)?;
                let children = node.children.as_ref().ok_or(Errno::NOTDIR)?;
                let rest = children.by_position.range(offset + 1..).take(BATCH);
                rest.map(|(position, (name, child))| (*position, name.clone(), *child)).collect()
            };
            for (position, name, child) in &batch {
                let Some(attr) = self.attr(*child) else { continue };
                if each(name, *position, &attr) {
                    return Ok(());
                }
            }
            match batch.last() {
                Some((position, ..)) if batch.len() == BATCH => offset = *position,
                _ => return Ok(()),
            }
        }
    }
}

/// Returns the name: `f` and six digits.
fn many_name(index: u64) -> [u8; 7] {
    let mut name = *b"f000000";
    let mut rest = index;
    for digit in name[1..].iter_mut().rev() {
        *digit = b'0' + (rest % 10) as u8;
        rest /= 10;
    }
    name
}
