//! Inodes that the kernel knows, by node id.

mod removed;

use crate::file::FileState;
use crate::validity::Validity;
use nacre_env::clock::Instant;
use nacre_env::sync::Mutex;
use nacre_types::{Attr, AttrFlags, Fid, SizeSource, Status, StatusResult, Timestamp, perm};
use nacre_wire::mds::DataUpdate;
use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::Arc;
use std::time::Duration;

/// An open that lasts as long as one operation, so that the operation shares its byte ranges with real opens.
pub(crate) struct Pin<'a> {
    nodes: &'a NodeTable,
    pub file: Arc<FileState>,
}

impl Drop for Pin<'_> {
    fn drop(&mut self) {
        self.nodes.detach(self.file.node);
    }
}

/// Hashes numbers that this process assigned, so that no program can choose colliding ones.
#[derive(Default)]
pub struct IdHasher(u64);

impl Hasher for IdHasher {
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.write_u64(u64::from(byte));
        }
    }
    fn write_u64(&mut self, number: u64) {
        // Fibonacci hashing; the fold brings the well-mixed high half to where the table takes its index
        // from.
        let product = (self.0 ^ number).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.0 = product ^ (product >> 32);
    }
}

/// A map keyed by ids that this process assigned.
pub type IdMap<V> = HashMap<u64, V, BuildHasherDefault<IdHasher>>;

const SHARDS: usize = 64;
/// Time after which a reply has certainly reached the kernel.
const ARRIVED: Duration = Duration::from_secs(2);
/// Read permission for owner, group and others.
const READ_ALL: u32 = 0o444;

/// Returns the node id of a FID: its inode number. FIDs are never used again, so neither are node ids.
///
/// # Errors
/// `EOVERFLOW` for a FID whose number could be that of another one (sequences beyond 2^40, versions).
pub fn node_of(fid: Fid) -> StatusResult<u64> {
    let id = fid.inode_number();
    if fid_of(id) == Some(fid) { Ok(id) } else { Err(Status::EOVERFLOW) }
}

/// Returns the FID of a node id; `None` for a number that no FID has.
pub fn fid_of(node: u64) -> Option<Fid> {
    if node == 1 {
        return Some(Fid::ROOT);
    }
    let (seq, oid) = (node >> 24, node & 0xff_ffff);
    (seq != 0 && oid != 0).then(|| Fid::new(seq, oid as u32, 0))
}

/// Parts of the last attributes that save requests.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Hints {
    /// Flags of further data of the inode, such as xattrs and ACLs.
    pub flags: AttrFlags,
    /// True if everybody may search this directory.
    pub public: bool,
    /// True if everybody may list this directory.
    pub listable: bool,
    /// Proof that the hints are still true.
    pub validity: Validity,
}

impl Hints {
    /// Extracts the hints from `attr`.
    pub fn of(attr: &Attr, validity: Validity) -> Hints {
        let public = attr.is_dir() && perm::searchable_by_all(attr);
        let listable =
            attr.is_dir() && attr.mode & READ_ALL == READ_ALL && !attr.flags.contains(AttrFlags::HAS_ACL);
        Hints { flags: attr.flags, public, listable, validity }
    }
}

/// What this client has reported to the MDT about the data of a file and the MDT may not have applied yet:
/// closes are sent without waiting for the reply.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Told {
    /// Size and space (in units of 512 bytes), if they were reported.
    size_blocks: Option<(u64, u64)>,
    /// Time of the last write, if it was reported.
    mtime: Option<Timestamp>,
    /// Time of the last read, if it was reported.
    atime: Option<Timestamp>,
    /// The exclusive lease under which it was reported, 0 for none: only while that lease is in force has no
    /// other client changed the values since.
    lease: u64,
}

impl Told {
    /// Overlays attributes that may be older with the values that the MDT will apply.
    fn show(&self, attr: &mut Attr, with_size: bool) {
        if let Some(atime) = self.atime {
            attr.atime = attr.atime.max(atime);
        }
        if attr.size_source == SizeSource::Exact {
            // The attributes already reflect the close.
            return;
        }
        if let Some(mtime) = self.mtime {
            attr.mtime = mtime;
            attr.ctime = attr.ctime.max(mtime);
        }
        if let (Some((size, blocks)), true) = (self.size_blocks, with_size) {
            (attr.size, attr.blocks, attr.size_source) = (size, blocks, SizeSource::Exact);
        }
    }

    /// True if the attributes reflect the report.
    fn is_known_by(&self, attr: &Attr) -> bool {
        attr.size_source == SizeSource::Exact && self.atime.is_none_or(|atime| attr.atime >= atime)
    }
}

#[derive(Default)]
struct Node {
    /// Lookup references that the kernel has not released.
    lookups: u64,
    hints: Option<Hints>,
    /// Last attributes of an inode whose last name this client removed.
    removed: Option<Box<Attr>>,
    /// Values reported with the last closes, until attributes of the MDT reflect them: an unlink or a getattr
    /// may overtake a close.
    told: Option<Box<Told>>,
    /// Number of opens that hold `file`.
    opens: u32,
    /// Levels between a directory and the root, plus one; 0 if that is not known.
    depth: u16,
    file: Option<Arc<FileState>>,
}

/// The table. Each node is 64 bytes in addition to its slot; open files have a [`FileState`] more.
pub(crate) struct NodeTable {
    shards: [Mutex<IdMap<Node>>; SHARDS],
}

impl NodeTable {
    pub fn new() -> NodeTable {
        NodeTable { shards: std::array::from_fn(|_| Mutex::new(IdMap::default())) }
    }

    fn shard(&self, node: u64) -> &Mutex<IdMap<Node>> {
        // Object ids count up, sequences are in the high bits: the low ones spread well.
        &self.shards[node as usize % SHARDS]
    }

    /// Records that the kernel gets `lookups` more references to the inode of `attr`.
    pub fn remember(&self, node: u64, attr: &Attr, validity: Validity, lookups: u64) {
        let mut shard = self.shard(node).lock();
        let entry = shard.entry(node).or_default();
        entry.lookups += lookups;
        entry.hints = Some(Hints::of(attr, validity));
    }

    /// Records new attributes of an inode; returns the previous hints.
    pub fn note(&self, node: u64, attr: &Attr, validity: Validity) -> Option<Hints> {
        let mut shard = self.shard(node).lock();
        // The kernel knows the root without a lookup.
        let entry = if node == 1 { shard.entry(node).or_default() } else { shard.get_mut(&node)? };
        if let Some(removed) = &mut entry.removed {
            let (size, blocks) = (removed.size, removed.blocks);
            **removed = kept(attr);
            if attr.size_source == SizeSource::Objects {
                (removed.size, removed.blocks) = (size, blocks);
            }
        }
        if entry.told.as_deref().is_some_and(|told| told.is_known_by(attr)) {
            entry.told = None;
        }
        entry.hints.replace(Hints::of(attr, validity))
    }

    /// Records attributes that an operation returned, also in the state of the file if it is open.
    pub fn learn(&self, attr: &Attr, lease: u64) {
        let node = attr.fid.inode_number();
        self.note(node, attr, lease.into());
        if let Some(file) = self.file(node) {
            file.lock().learn(attr, lease, false);
        }
    }

    /// Holds the state of a file while an operation uses it.
    pub fn pin(&self, fid: Fid) -> Pin<'_> {
        let node = fid.inode_number();
        Pin { nodes: self, file: self.attach(node, || FileState::new(fid, node)) }
    }

    /// Holds the state of a file if it is open: an open after the last close gets the same state until then.
    pub fn pin_open(&self, node: u64) -> Option<Pin<'_>> {
        let mut shard = self.shard(node).lock();
        let entry = shard.get_mut(&node)?;
        let file = entry.file.clone()?;
        entry.opens += 1;
        Some(Pin { nodes: self, file })
    }

    /// Calls `drop` for an inode in the kernel. False if a reply with the inode is on its way to the kernel,
    /// so that the caller has to try again.
    pub fn reaches_kernel(&self, node: u64, since: Instant, drop: impl FnOnce(u64) -> bool) -> bool {
        drop(node) || !self.is_known(node) || since.elapsed() > ARRIVED
    }

    /// Records that this client removed the last name of an inode that the kernel still knows; no later
    /// attributes than `attr` can be had.
    pub fn note_removed(&self, node: u64, attr: &Attr) {
        if let Some(entry) = self.shard(node).lock().get_mut(&node)
            && entry.lookups > 0
        {
            let mut attr = *attr;
            if let Some(told) = entry.told.take() {
                told.show(&mut attr, true);
            }
            entry.removed = Some(Box::new(kept(&attr)));
        }
    }

    /// Records the update that a close is about to report to the MDT, under the exclusive lease with this
    /// number (0: none).
    pub fn note_told(&self, node: u64, update: &DataUpdate, lease: u64) {
        let mut shard = self.shard(node).lock();
        let Some(entry) = shard.get_mut(&node) else { return };
        let DataUpdate { size_blocks, mtime, atime, order: _, size_stamp: _ } = *update;
        let new = Told { size_blocks, mtime, atime, lease };
        if let Some(removed) = &mut entry.removed {
            let mut attr = Attr { size_source: SizeSource::Objects, ..**removed };
            new.show(&mut attr, true);
            **removed = kept(&attr);
            return;
        }
        if size_blocks.is_none() && mtime.is_none() && atime.is_none() {
            return;
        }
        let old = entry.told.as_deref().filter(|old| old.lease == lease).copied();
        // The close of a reader leaves the other values as they are; one of a writer that does not know the
        // size makes the previous size outdated.
        let is_word_of_reader = size_blocks.is_none() && mtime.is_none();
        let size_blocks = size_blocks.or(old.filter(|_| is_word_of_reader).and_then(|old| old.size_blocks));
        let mtime = mtime.or(old.and_then(|old| old.mtime));
        let atime = atime.max(old.and_then(|old| old.atime));
        entry.told = Some(Box::new(Told { size_blocks, mtime, atime, lease }));
    }

    /// True if the MDT may not have applied the last close yet.
    pub fn is_being_told(&self, node: u64) -> bool {
        self.shard(node).lock().get(&node).is_some_and(|entry| entry.told.is_some())
    }

    /// Overlays attributes from the MDT with values reported under a lease that is still in force, with or
    /// without the size. True if a modification time was among them.
    pub fn show_told(&self, attr: &mut Attr, lease: u64, with_size: bool) -> bool {
        let node = attr.fid.inode_number();
        let told = self.shard(node).lock().get(&node).and_then(|entry| entry.told.as_deref().copied());
        let Some(told) = told.filter(|told| told.lease != 0 && told.lease == lease) else { return false };
        told.show(attr, with_size);
        told.mtime.is_some()
    }

    /// Forgets the reported values: the MDT has them, or newer ones.
    pub fn forget_told(&self, node: u64) {
        if let Some(entry) = self.shard(node).lock().get_mut(&node) {
            entry.told = None;
        }
    }

    /// Returns attributes of an inode that this client removed, as long as the kernel knows it.
    pub fn removed(&self, node: u64) -> Option<Attr> {
        self.shard(node).lock().get(&node)?.removed.as_deref().copied()
    }

    /// Records whether everybody may search a directory, learned without its attributes.
    pub fn note_public(&self, node: u64, public: bool, validity: Validity) {
        if let Some(Node { hints: Some(hints), .. }) = self.shard(node).lock().get_mut(&node)
            && hints.validity == validity
        {
            hints.public = public;
        }
    }

    /// Records that the inode got a layout, which this client requested without its attributes.
    pub fn note_layout(&self, node: u64) {
        if let Some(Node { hints: Some(hints), .. }) = self.shard(node).lock().get_mut(&node) {
            hints.flags |= AttrFlags::HAS_LAYOUT;
        }
    }

    /// Returns the levels between a directory and the root, if they are known; a depth that no default layout
    /// reaches is capped.
    pub fn depth(&self, node: u64) -> Option<u32> {
        if node == 1 {
            return Some(0);
        }
        let depth = self.shard(node).lock().get(&node)?.depth;
        depth.checked_sub(1).map(u32::from)
    }

    /// Records the levels between a directory that the kernel knows and the root.
    pub fn note_depth(&self, node: u64, depth: u32) {
        if let Some(entry) = self.shard(node).lock().get_mut(&node) {
            entry.depth = u16::try_from(depth).unwrap_or(u16::MAX - 1).min(u16::MAX - 1) + 1;
        }
    }

    /// Returns the hints of the inode, if there are any.
    pub fn hints(&self, node: u64) -> Option<Hints> {
        self.shard(node).lock().get(&node)?.hints
    }

    /// True if the kernel knows the inode, or is about to.
    pub fn is_known(&self, node: u64) -> bool {
        node == 1 || self.shard(node).lock().get(&node).is_some_and(|entry| entry.lookups > 0)
    }

    /// Subtracts `lookups` references that the kernel releases.
    pub fn forget(&self, node: u64, lookups: u64) {
        let mut shard = self.shard(node).lock();
        let Some(entry) = shard.get_mut(&node) else { return };
        entry.lookups = entry.lookups.saturating_sub(lookups);
        if entry.lookups == 0 && entry.file.is_none() {
            shard.remove(&node);
            // A tree walk leaves huge tables behind; their memory is freed once they are nearly empty.
            if shard.capacity() > 1024 && shard.len() < shard.capacity() / 8 {
                shard.shrink_to(256);
            }
        }
    }

    /// Returns the state of a file, if it is open.
    pub fn file(&self, node: u64) -> Option<Arc<FileState>> {
        self.shard(node).lock().get(&node)?.file.clone()
    }

    /// Counts an open of the file and returns its state, which the first open creates with `new`.
    pub fn attach(&self, node: u64, new: impl FnOnce() -> FileState) -> Arc<FileState> {
        let mut shard = self.shard(node).lock();
        let entry = shard.entry(node).or_default();
        entry.opens += 1;
        entry.file.get_or_insert_with(|| Arc::new(new())).clone()
    }

    /// Ends an open counted by [`NodeTable::attach`].
    pub fn detach(&self, node: u64) {
        let mut shard = self.shard(node).lock();
        let Some(entry) = shard.get_mut(&node) else { return };
        entry.opens = entry.opens.saturating_sub(1);
        if entry.opens == 0 {
            entry.file = None;
            if entry.lookups == 0 {
                shard.remove(&node);
            }
        }
    }

    /// Visits the ids of all inodes that the kernel knows, one shard at a time.
    pub fn for_each_known(&self, mut visit: impl FnMut(u64)) {
        for shard in &self.shards {
            let known: Vec<u64> =
                shard.lock().iter().filter(|(_, node)| node.lookups > 0).map(|(&id, _)| id).collect();
            known.into_iter().for_each(&mut visit);
        }
        visit(1);
    }

    /// Returns the states of all open files.
    pub fn open_files(&self) -> Vec<Arc<FileState>> {
        let mut files = Vec::new();
        for shard in &self.shards {
            files.extend(shard.lock().values().filter_map(|node| node.file.clone()));
        }
        files
    }

    /// Returns how many inodes are in the table, without the root.
    pub fn len(&self) -> usize {
        let others = |shard: &Mutex<IdMap<Node>>| shard.lock().keys().filter(|id| **id != 1).count();
        self.shards.iter().map(others).sum()
    }
}

/// Returns the attributes to keep of an inode that lost its last name: no server knows more, so the size
/// counts as exact.
pub(crate) fn kept(attr: &Attr) -> Attr {
    Attr { nlink: 0, size_source: SizeSource::Exact, ..*attr }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unlink_that_overtakes_the_close_keeps_the_size() {
        let table = NodeTable::new();
        let attr =
            Attr { fid: Fid::new(0x2_0000_0400, 7, 0), size_source: SizeSource::Objects, ..Attr::default() };
        let node = node_of(attr.fid).expect("an ordinary FID");
        table.remember(node, &attr, Validity::None, 1);
        let told = |size| DataUpdate { size_blocks: Some((size, 8)), ..DataUpdate::default() };
        table.note_told(node, &told(4), 0);
        table.note_removed(node, &attr);
        assert!(table.removed(node).is_some_and(|attr| (attr.size, attr.blocks) == (4, 8)));
        // In the other order, values known for certain win.
        table.note_told(node, &told(5), 0);
        assert!(table.removed(node).is_some_and(|attr| attr.size == 5));
        let exact = Attr { size: 6, size_source: SizeSource::Exact, ..attr };
        table.note(node, &exact, Validity::None);
        assert!(table.removed(node).is_some_and(|attr| attr.size == 6));
    }

    #[test]
    fn node_ids_turn_back_into_fids() {
        for fid in [Fid::ROOT, Fid::new(0x2_0000_0400, 1, 0), Fid::new(0x2_0000_0400 + (5 << 30), 0x20000, 0)]
        {
            assert_eq!(fid_of(node_of(fid).expect("an ordinary FID")), Some(fid));
        }
        assert_eq!(node_of(Fid::new(0x2_0000_0400, 1, 9)), Err(Status::EOVERFLOW));
        assert_eq!(node_of(Fid::new(1 << 41, 1, 0)), Err(Status::EOVERFLOW));
        assert_eq!(fid_of(0), None);
    }

    #[test]
    fn a_node_lives_as_long_as_the_kernel_counts_lookups() {
        let table = NodeTable::new();
        let attr = Attr { fid: Fid::new(0x2_0000_0400, 7, 0), ..Attr::default() };
        let node = node_of(attr.fid).expect("an ordinary FID");
        table.remember(node, &attr, Validity::None, 1);
        table.remember(node, &attr, Validity::None, 2);
        table.forget(node, 2);
        assert!(table.hints(node).is_some());
        table.note_removed(node, &attr);
        assert!(table.removed(node).is_some_and(|attr| attr.nlink == 0));
        table.forget(node, 1);
        assert_eq!((table.hints(node), table.removed(node)), (None, None));
        table.note_removed(node, &attr);
        assert_eq!(table.len(), 0);
        table.forget(node, 1);
    }
}
