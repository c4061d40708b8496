//! Directory listings, written directly into the reply.

use super::{Entry, Reply, State, entry_out};
use crate::abi::{Dirent, EntryOut, Wire};

/// An entry of a directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DirEntry<'a> {
    /// Inode number that users see.
    pub ino: u64,
    /// Position after this entry: the offset with which the listing continues. Must not be 0.
    pub next_offset: u64,
    /// DT_REG, DT_DIR and so on (`mode >> 12`).
    pub kind: u32,
    /// Name, not empty, without NUL and `/`.
    pub name: &'a [u8],
}

/// Collects the names of one reply to READDIR or READDIRPLUS; created by [`Reply::directory`].
pub struct DirBuffer<'r, 'a> {
    reply: &'r mut Reply<'a>,
    used: usize,
    limit: usize,
}

impl<'r, 'a> DirBuffer<'r, 'a> {
    pub(super) fn new(reply: &'r mut Reply<'a>, size: u32) -> DirBuffer<'r, 'a> {
        let limit = reply.bulk.len().min(size as usize);
        reply.state = State::Bulk(0);
        DirBuffer { reply, used: 0, limit }
    }

    /// READDIR: adds a name; `true` if it did not fit: stop, the kernel continues at the last `next_offset`.
    pub fn push(&mut self, entry: &DirEntry<'_>) -> bool {
        self.append(&[], entry)
    }

    /// READDIRPLUS: adds a name with its inode; `true` if it did not fit. Counts as a lookup of the inode,
    /// unless the node id is 0 (then the kernel gets the name only) or the name is "." or "..".
    pub fn push_plus(&mut self, node: &Entry, entry: &DirEntry<'_>) -> bool {
        self.append(entry_out(node).as_bytes(), entry)
    }

    /// READDIRPLUS without attributes for this name: the kernel looks it up on use.
    pub fn push_name_only(&mut self, entry: &DirEntry<'_>) -> bool {
        self.append(EntryOut::default().as_bytes(), entry)
    }

    /// Returns true if the buffer has no entries.
    pub fn is_empty(&self) -> bool {
        self.used == 0
    }

    fn append(&mut self, plus: &[u8], entry: &DirEntry<'_>) -> bool {
        let head = plus.len() + size_of::<Dirent>();
        let length = (head + entry.name.len()).next_multiple_of(8);
        if self.limit - self.used < length {
            return true;
        }
        let Some(slot) = self.reply.bulk.get_mut(self.used..self.used + length) else { return true };
        let dirent = Dirent {
            ino: entry.ino,
            off: entry.next_offset,
            namelen: entry.name.len() as u32,
            typ: entry.kind,
        };
        slot[..plus.len()].copy_from_slice(plus);
        slot[plus.len()..head].copy_from_slice(dirent.as_bytes());
        slot[head..head + entry.name.len()].copy_from_slice(entry.name);
        slot[head + entry.name.len()..].fill(0);
        self.used += length;
        self.reply.state = State::Bulk(self.used);
        false
    }
}
