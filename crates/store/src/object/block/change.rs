//! Changes of an object, each as one transaction of the index.

use super::allocator::Extent;
use super::objects::{MAPS, Object, Objects, State, map_key};
use super::volume::Volume;
use crate::meta::Batch;
use crate::object::sequences::OBJECTS;
use crate::object::{ObjectError, Result};
use nacre_env::sync::RwLockWriteGuard;
use nacre_ondisk::block::{Before, BlockHeadRecord, BlockMapRecord, Inline, MAP_BLOCKS, Place};
use nacre_types::Timestamp;
use std::cell::Cell;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Memory for a transaction. Without it the allocator would provide and free some KiB several times for each
/// small object.
#[derive(Default)]
struct Scratch {
    batch: Batch,
    bytes: Vec<u8>,
}

/// Bytes of a batch that a thread keeps: those of a small object, or of the maps of an average write.
const SCRATCH_MAX: usize = 64 << 10;

thread_local! {
    static SCRATCH: Cell<Scratch> = Cell::default();
}

impl Scratch {
    fn within_bounds(self) -> Scratch {
        if self.batch.capacity() > SCRATCH_MAX { Scratch::default() } else { self }
    }
}

/// Changes of an object's maps.
#[derive(Default)]
pub(super) struct Edits {
    /// New places, by map and index in it.
    places: BTreeMap<u64, Vec<(u8, Place)>>,
    /// Maps that are removed, with all their blocks.
    removed: Vec<u64>,
    /// The change frees space, so a full index must accept it.
    is_releasing: bool,
    /// Time of the change, if it is not the current time.
    mtime: Option<Timestamp>,
}

impl Edits {
    /// Creates edits for a change that frees space.
    pub(super) fn releasing() -> Edits {
        Edits { is_releasing: true, ..Edits::default() }
    }

    /// Creates edits that change only the time.
    pub(super) fn only_mtime(mtime: Timestamp) -> Edits {
        Edits { mtime: Some(mtime), ..Edits::default() }
    }

    /// Keeps the time of the object: its data stays the same.
    pub(super) fn keeping_time(self, mtime: Timestamp) -> Edits {
        Edits { mtime: Some(mtime), ..self }
    }

    /// Sets the place of block `block` of the object. Call in ascending order.
    pub(super) fn put(&mut self, block: u64, place: Place) {
        let (map, index) = (block / MAP_BLOCKS as u64, (block % MAP_BLOCKS as u64) as u8);
        self.places.entry(map).or_default().push((index, place));
    }

    /// Removes a whole map.
    pub(super) fn remove_map(&mut self, number: u64) {
        self.places.remove(&number);
        self.removed.push(number);
    }

    fn touches_blocks(&self) -> bool {
        !self.places.is_empty() || !self.removed.is_empty()
    }
}

/// Freed blocks, as extents.
#[derive(Default)]
struct Freed(Vec<Extent>);

impl Freed {
    fn push(&mut self, block: u64) {
        match self.0.last_mut() {
            Some(last) if last.end() == block => last.len += 1,
            _ => self.0.push(Extent { start: block, len: 1 }),
        }
    }
}

/// Creates a head for an object that does not exist.
pub(super) fn new_head() -> BlockHeadRecord {
    BlockHeadRecord { inline: Inline::All(Vec::new()), ..BlockHeadRecord::default() }
}

/// Returns the time of a change; never the same twice, because it is the version of the data.
fn change_time(before: Option<&BlockHeadRecord>) -> Timestamp {
    let now = Timestamp::from(nacre_env::clock::wall());
    before.map_or(now, |before| now.max(before.mtime.next()))
}

/// Puts new places into a map and records the places that the blocks had before this generation. Returns the
/// growth in blocks.
fn edit_map(
    map: &mut BlockMapRecord,
    edits: &[(u8, Place)],
    generation: u64,
    completed: u64,
    freed: &mut Freed,
) -> i64 {
    map.before.retain(|before| before.generation > completed);
    let mut more = 0;
    for &(index, place) in edits {
        let old = std::mem::replace(&mut map.places[usize::from(index)], place);
        more += i64::from(place.block().is_some()) - i64::from(old.block().is_some());
        if let Some(block) = old.block().filter(|block| place.block() != Some(*block)) {
            freed.push(block);
        }
        let key = |before: &Before| (before.generation, before.index);
        if let Err(at) = map.before.binary_search_by_key(&(generation, index), key) {
            map.before.insert(at, Before { generation, index, place: old });
        }
    }
    more
}

/// An object that is locked against all other readers and writers.
pub(super) struct Locked<'a> {
    objects: &'a Objects,
    object: &'a Object,
    state: RwLockWriteGuard<'a, State>,
}

impl<'a> Locked<'a> {
    pub(super) fn new(
        objects: &'a Objects,
        object: &'a Object,
        state: RwLockWriteGuard<'a, State>,
    ) -> Locked<'a> {
        Locked { objects, object, state }
    }

    pub(super) fn objects(&self) -> &'a Objects {
        self.objects
    }

    pub(super) fn volume(&self) -> &'a Volume {
        self.objects.volume()
    }

    pub(super) fn object(&self) -> &'a Object {
        self.object
    }

    pub(super) fn state(&self) -> &State {
        &self.state
    }

    /// Returns its head; that of an empty object if it does not exist.
    pub(super) fn head(&self) -> BlockHeadRecord {
        self.state.head.clone().unwrap_or_else(new_head)
    }

    pub(super) fn map(&self, number: u64) -> Result<Arc<BlockMapRecord>> {
        self.objects.map(self.object, number)
    }

    /// Returns the place of block `block` of the object.
    pub(super) fn place(&self, block: u64) -> Result<Place> {
        self.objects.place(self.object, block)
    }

    /// Commits `head` (`None`: no object) and `edits` as the new state of the object, in one transaction.
    /// Sets its time and its count of blocks.
    ///
    /// # Errors
    /// Nothing is changed then.
    pub(super) fn commit(&mut self, head: Option<BlockHeadRecord>, edits: &Edits) -> Result<()> {
        let (objects, object) = (self.objects, self.object);
        let before = self.state.head.as_ref();
        let (was, is) = (before.is_some(), head.is_some());
        // The object is locked: a thread that removes its file destroys it after that.
        if !was && is && !objects.may_be_made(object.fid)? {
            return Err(ObjectError::Gone(object.fid));
        }
        let mut changed: Vec<(u64, BlockMapRecord)> = Vec::with_capacity(edits.places.len());
        for number in edits.places.keys() {
            changed.push((*number, BlockMapRecord::clone(&*objects.map(object, *number)?)));
        }
        let mut removed = Vec::with_capacity(edits.removed.len());
        for number in &edits.removed {
            removed.push(objects.map(object, *number)?);
        }
        let Scratch { mut batch, mut bytes } = SCRATCH.take();
        batch.clear();
        batch.set_releasing(edits.is_releasing);
        let mut freed = Freed::default();
        let mut blocks = before.map_or(0, |head| head.blocks) as i64;
        let present = objects.volume().present();
        let (generation, completed) = (present.generation, present.completed);
        for (number, map) in &mut changed {
            blocks += edit_map(map, &edits.places[number], generation, completed, &mut freed);
            map.encode(&mut bytes);
            batch.put(MAPS, &map_key(object.fid, *number), &bytes);
        }
        for (number, map) in edits.removed.iter().zip(&removed) {
            for block in map.places.iter().filter_map(|place| place.block()) {
                freed.push(block);
                blocks -= 1;
            }
            batch.delete(MAPS, &map_key(object.fid, *number));
        }
        let head = head.map(|head| {
            let head = finish_head(head, before, blocks, generation, completed);
            BlockHeadRecord { mtime: edits.mtime.unwrap_or(head.mtime), ..head }
        });
        match &head {
            Some(head) => {
                head.encode(&mut bytes);
                batch.put(OBJECTS, &object.fid.to_key(), &bytes);
            }
            None => batch.delete(OBJECTS, &object.fid.to_key()),
        }
        let committed = objects.volume().commit(present, &batch, freed.0);
        SCRATCH.set(Scratch { batch, bytes }.within_bounds());
        (self.state.head, self.state.transno) = (head, committed?);
        if edits.touches_blocks() {
            self.state.generation = generation;
        }
        changed
            .into_iter()
            .for_each(|(number, map)| objects.remember_map(object, number, Some(Arc::new(map))));
        edits.removed.iter().for_each(|number| objects.remember_map(object, *number, None));
        objects.note_change(was, is);
        Ok(())
    }
}

/// Completes the head as recorded: time of the change, count of blocks, and the remaining inline bytes.
fn finish_head(
    mut head: BlockHeadRecord,
    before: Option<&BlockHeadRecord>,
    blocks: i64,
    generation: u64,
    completed: u64,
) -> BlockHeadRecord {
    debug_assert!(blocks >= 0, "an object has each block that it loses");
    head.blocks = blocks as u64;
    head.mtime = change_time(before);
    let was_inline = before.and_then(|before| match &before.inline {
        Inline::All(bytes) => Some(bytes),
        _ => None,
    });
    match (&mut head.inline, was_inline) {
        // The bytes move to the device: the record keeps them until they are durable there.
        (inline @ Inline::Nothing, Some(bytes)) if !bytes.is_empty() => {
            let len = bytes.len().min(usize::try_from(head.size).unwrap_or(usize::MAX));
            *inline = Inline::Kept(generation, bytes[..len].to_vec());
        }
        (inline @ Inline::Kept(..), _) => {
            let Inline::Kept(kept_in, bytes) = inline else { return head };
            bytes.truncate(usize::try_from(head.size).unwrap_or(usize::MAX));
            if *kept_in <= completed {
                *inline = Inline::Nothing;
            }
        }
        (Inline::All(_) | Inline::Nothing, _) => {}
    }
    head
}
