//! Background defragmentation: moving data that is in many pieces.
//!
//! Objects are examined in parts of [`PART_MAPS`] maps, in the order of the index. A part that is worth it
//! ([`choice`]) is read, its checksums compared, written to one free extent, and one transaction of the index
//! records its place: the order of any other write, so that a crash leaves either place, with the same data.
//! The object is locked for the transaction alone; if the part changed meanwhile, the copy is discarded.
//! Size, time and version of the object stay.
//!
//! Free space: see [`super::allocator::Allocator::take_whole`]. A part for which no extent is long enough is
//! moved in halves, or stays.

mod choice;

use super::allocator::Extent;
use super::change::Edits;
use super::device::{AlignedBuffer, BLOCK, WriteOp};
use super::objects::{MAPS, Object, Objects, parse_map_key};
use super::stop::Stop;
use crate::meta::TransNo;
use crate::object::{ObjectError, Result};
use choice::Weight;
use nacre_env::clock::Instant;
use nacre_env::sync::Mutex;
use nacre_ondisk::block::{BlockMapRecord, MAP_BLOCKS, Place};
use nacre_types::{Fid, Status, Timestamp};
use std::ops::{Bound, ControlFlow, Range};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

/// Maps of a part: 4 MiB, moved in one transaction.
const PART_MAPS: u64 = 16;
/// Maps examined between two checks of the clock.
const MAPS_AT_ONCE: usize = 256;
/// Bytes that examining a map counts for the rate: a target of 16 TiB is examined in half an hour at the
/// default rate.
const LOOK_BYTES: u64 = 256;
/// Interval at which a wait for an idle moment is repeated.
const POLL: Duration = Duration::from_millis(100);
/// Interval at which an idle defragmenter looks for work.
const IDLE: Duration = Duration::from_millis(500);
/// Least time between two passes, if no setting changes.
const PASS_EVERY: Duration = Duration::from_secs(30);

/// Settings of the background defragmenter; may be changed at any time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DefragSettings {
    /// The defragmenter runs.
    pub is_on: bool,
    /// Maximum bytes per second that are moved: each is read once and written once. 0 for none.
    pub bytes_per_second: u64,
    /// Least percentage, up to 100, of the transfers of 1 MiB for reading a part that are due to
    /// fragmentation, for the part to be moved.
    pub threshold_percent: u8,
    /// Seconds since its last change for which an object is left alone.
    pub rest_seconds: u64,
    /// Milliseconds without use of the store before anything is moved; 0 moves at any time.
    pub idle_ms: u64,
}

impl DefragSettings {
    /// Defaults of a target.
    pub const USUAL: DefragSettings = DefragSettings {
        is_on: true,
        bytes_per_second: 8 << 20,
        threshold_percent: 25,
        rest_seconds: 60,
        idle_ms: 500,
    };
}

impl Default for DefragSettings {
    /// Switched off.
    fn default() -> Self {
        DefragSettings { is_on: false, ..DefragSettings::USUAL }
    }
}

/// Counters of moved data; sums since the store was opened.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct DefragStats {
    /// Passes over all objects.
    pub passes: u64,
    /// Objects of which a part was moved, each once per pass.
    pub objects: u64,
    /// Parts of up to 4 MiB that were moved.
    pub parts: u64,
    /// Bytes of these parts.
    pub bytes: u64,
    /// Pieces of the moved parts before.
    pub extents_before: u64,
    /// Pieces of the moved parts afterwards.
    pub extents_after: u64,
    /// Parts that changed while they were moved, and stayed.
    pub disturbed: u64,
    /// Parts that stayed because no free extent was long enough.
    pub no_room: u64,
    /// Parts that could not be read or written.
    pub failed: u64,
    /// Times that moving paused because the store was in use.
    pub pauses: u64,
}

/// See the [module documentation](self).
pub(super) struct Defrag {
    settings: Mutex<DefragSettings>,
    /// Incremented with each change of the settings.
    changes: AtomicU64,
    stats: Mutex<DefragStats>,
    /// The store was used since the last check.
    was_used: AtomicBool,
}

impl Defrag {
    pub(super) fn new(settings: DefragSettings) -> Defrag {
        Defrag {
            settings: Mutex::new(settings),
            changes: AtomicU64::new(0),
            stats: Mutex::default(),
            was_used: AtomicBool::new(false),
        }
    }

    /// Notes a use of the store.
    pub(super) fn note_use(&self) {
        // Usually it is set, and a cache line that is only read costs nothing.
        if !self.was_used.load(Ordering::Relaxed) {
            self.was_used.store(true, Ordering::Relaxed);
        }
    }

    /// Returns the settings.
    pub(super) fn settings(&self) -> DefragSettings {
        *self.settings.lock()
    }

    /// Changes the settings. A new pass over all objects begins.
    pub(super) fn set_settings(&self, settings: DefragSettings) {
        *self.settings.lock() = settings;
        self.changes.fetch_add(1, Ordering::Release);
    }

    /// Returns the counters.
    pub(super) fn stats(&self) -> DefragStats {
        *self.stats.lock()
    }

    /// Makes one pass over all objects and moves the parts that `settings` select, in this thread, without a
    /// rate or pauses. Returns the number of bytes moved.
    ///
    /// # Errors
    /// If the index cannot be read, or the store fails.
    pub(super) fn defragment(&self, objects: &Objects, settings: &DefragSettings) -> Result<u64> {
        let mut pass = Pass::default();
        let mut buffer = new_buffer();
        loop {
            let (parts, _) = next_parts(objects, &mut pass, settings.threshold_percent)?;
            for part in &parts {
                self.tidy(objects, part, settings, &mut pass, &mut buffer)?;
            }
            if pass.from.is_none() {
                self.stats.lock().passes += 1;
                return Ok(pass.moved);
            }
        }
    }

    /// Body of the thread that defragments by the settings of the store.
    pub(super) fn run(&self, objects: &Objects, stop: &Stop) {
        let mut seen = None;
        let mut next = Instant::now();
        loop {
            let settings = self.settings();
            let changes = self.changes.load(Ordering::Acquire);
            let is_due = seen.is_none_or(|(settings, transno)| {
                settings != changes || Instant::now() >= next && objects.index().last_transno() != transno
            });
            if !settings.is_on || settings.bytes_per_second == 0 || !is_due {
                if stop.wait(IDLE) {
                    return;
                }
                continue;
            }
            seen = Some((changes, objects.index().last_transno()));
            match self.run_pass(objects, stop, &settings, changes) {
                Ok(true) => {}
                Ok(false) => return,
                // The store is being closed, or its index is full.
                Err(ObjectError::Closed) => {}
                Err(error) if error.status() == Status::ENOSPC => {}
                Err(error) => {
                    log::error!("{}: moving objects group_commit: {error}", objects.volume().dir().display())
                }
            }
            next = Instant::now() + PASS_EVERY;
        }
    }

    /// Makes a pass at the configured rate, until the settings change; false if the thread must stop.
    fn run_pass(
        &self,
        objects: &Objects,
        stop: &Stop,
        settings: &DefragSettings,
        changes: u64,
    ) -> Result<bool> {
        let mut pass = Pass::default();
        let mut buffer = new_buffer();
        let mut quiet_since = Instant::now();
        let pace =
            |bytes: u64| stop.wait(Duration::from_secs_f64(bytes as f64 / settings.bytes_per_second as f64));
        loop {
            let (parts, looks) = next_parts(objects, &mut pass, settings.threshold_percent)?;
            if pace(looks * LOOK_BYTES) {
                return Ok(false);
            }
            for part in &parts {
                if self.await_quiet(stop, settings.idle_ms, &mut quiet_since) {
                    return Ok(false);
                }
                if self.changes.load(Ordering::Acquire) != changes {
                    return Ok(true);
                }
                let bytes = self.tidy(objects, part, settings, &mut pass, &mut buffer)?;
                if pace(bytes) {
                    return Ok(false);
                }
            }
            if pass.from.is_none() {
                self.stats.lock().passes += 1;
                return Ok(true);
            }
        }
    }

    /// Waits until the store was unused for a while; true if the thread must stop.
    fn await_quiet(&self, stop: &Stop, idle_ms: u64, quiet_since: &mut Instant) -> bool {
        let idle = Duration::from_millis(idle_ms);
        let mut is_paused = false;
        loop {
            if self.was_used.swap(false, Ordering::Relaxed) {
                *quiet_since = Instant::now();
            }
            let left = idle.saturating_sub(quiet_since.elapsed());
            if left.is_zero() || !self.settings().is_on {
                return false;
            }
            if !std::mem::replace(&mut is_paused, true) {
                self.stats.lock().pauses += 1;
            }
            if stop.wait(left.min(POLL)) {
                return true;
            }
        }
    }

    /// Moves a part, in halves if no extent is long enough for the whole, and counts. Returns the number of
    /// bytes moved.
    fn tidy(
        &self,
        objects: &Objects,
        part: &Part,
        settings: &DefragSettings,
        pass: &mut Pass,
        buffer: &mut AlignedBuffer,
    ) -> Result<u64> {
        let outcome = match move_part(objects, part, settings, buffer) {
            // The store cannot continue; any other error concerns this object alone.
            Err(error @ (ObjectError::Closed | ObjectError::NoSpace | ObjectError::Index(_))) => {
                return Err(error);
            }
            Err(error) => {
                self.stats.lock().failed += 1;
                log::error!(
                    "{}: object {} cannot be moved: {error}",
                    objects.volume().dir().display(),
                    part.fid
                );
                return Ok(0);
            }
            Ok(outcome) => outcome,
        };
        let len = part.maps.end - part.maps.start;
        if outcome == Outcome::NoRoom && len > 1 {
            let middle = part.maps.start + len / 2;
            let mut bytes = 0;
            for maps in [part.maps.start..middle, middle..part.maps.end] {
                bytes += self.tidy(objects, &Part { fid: part.fid, maps }, settings, pass, buffer)?;
            }
            return Ok(bytes);
        }
        let mut stats = self.stats.lock();
        match outcome {
            Outcome::Left => {}
            Outcome::Disturbed => stats.disturbed += 1,
            Outcome::NoRoom => stats.no_room += 1,
            Outcome::Moved(moved) => {
                stats.objects += u64::from(pass.last_moved.replace(part.fid) != Some(part.fid));
                stats.parts += 1;
                stats.bytes += moved.bytes;
                stats.extents_before += moved.before;
                stats.extents_after += moved.after;
                pass.moved += moved.bytes;
                return Ok(moved.bytes);
            }
        }
        Ok(0)
    }
}

/// A part of an object: its maps.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Part {
    fid: Fid,
    maps: Range<u64>,
}

/// Result for a part.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Outcome {
    /// The part is not fragmented, changed a moment ago, or does not exist any more.
    Left,
    Disturbed,
    NoRoom,
    Moved(Moved),
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Moved {
    bytes: u64,
    before: u64,
    after: u64,
}

/// State of a part when its move was planned.
struct Plan {
    /// Blocks of the part that have a place.
    places: Vec<(u64, Place)>,
    weight: Weight,
    /// Block of the device after the object's data that precedes the part.
    after: Option<u64>,
    /// The generation at that time: blocks freed from then on belong to it or a later one.
    generation: u64,
    transno: TransNo,
}

/// Progress of a pass.
#[derive(Default)]
struct Pass {
    /// Key after which the pass continues; `None` at the beginning.
    from: Option<Vec<u8>>,
    last_moved: Option<Fid>,
    moved: u64,
}

/// Returns the next parts that the index shows to be worth moving, and the number of maps examined. The end
/// of the pass leaves no `from`.
fn next_parts(objects: &Objects, pass: &mut Pass, threshold_percent: u8) -> Result<(Vec<Part>, u64)> {
    let mut parts = Vec::new();
    let mut present: Option<(Part, Weight)> = None;
    let mut last: Option<Vec<u8>> = None;
    let mut looks = 0;
    let mut is_end = true;
    let mut take = |present: Option<(Part, Weight)>| {
        parts.extend(present.filter(|(_, weight)| weight.is_worth(threshold_percent)).map(|(part, _)| part));
    };
    let from = pass.from.take();
    let from = from.as_deref().map_or(Bound::Unbounded, Bound::Excluded);
    objects.index().scan(MAPS, &[], from, &mut |key, value| {
        // Damage is reported by reads.
        let Some(((fid, number), map)) = parse_map_key(key).zip(BlockMapRecord::decode(value).ok()) else {
            return ControlFlow::Continue(());
        };
        let maps = number / PART_MAPS * PART_MAPS..(number / PART_MAPS + 1) * PART_MAPS;
        let part = Part { fid, maps };
        if present.as_ref().is_none_or(|(present, _)| *present != part) {
            if looks >= MAPS_AT_ONCE {
                is_end = false;
                return ControlFlow::Break(());
            }
            take(present.replace((part, Weight::default())));
        }
        if let Some((_, weight)) = &mut present {
            for (block, place) in (number * MAP_BLOCKS as u64..).zip(map.places) {
                weight.push(block, place);
            }
        }
        looks += 1;
        last = Some(key.to_vec());
        ControlFlow::Continue(())
    })?;
    take(present);
    pass.from = last.filter(|_| !is_end);
    Ok((parts, looks as u64))
}

fn move_part(
    objects: &Objects,
    part: &Part,
    settings: &DefragSettings,
    buffer: &mut AlignedBuffer,
) -> Result<Outcome> {
    let _changing = objects.volume().change()?;
    let Some(object) = objects.object(part.fid, false)? else { return Ok(Outcome::Left) };
    let (plan, target) = {
        // As for any read: the blocks of an object are not reused while it is locked.
        let state = object.state.read();
        let is_resting = state.head.as_ref().is_some_and(|head| rests(head.mtime, settings.rest_seconds));
        if !is_resting {
            return Ok(Outcome::Left);
        }
        let plan = plan_move(objects, &object, part, state.transno)?;
        if !plan.weight.is_worth(settings.threshold_percent) {
            return Ok(Outcome::Left);
        }
        let Some(target) = objects.volume().space().take_whole(plan.weight.blocks, plan.after) else {
            return Ok(Outcome::NoRoom);
        };
        let read = read_part(objects, &object, &plan, buffer);
        read.inspect_err(|_| objects.volume().space().give_back(&[target]))?;
        (plan, target)
    };
    let moved = put_part(objects, &object, &plan, target, buffer);
    match &moved {
        Ok(Outcome::Moved(_)) => {}
        _ => objects.volume().space().give_back(&[target]),
    }
    moved
}

/// Plans the move of a part of an object, whose state is locked.
fn plan_move(objects: &Objects, object: &Object, part: &Part, transno: TransNo) -> Result<Plan> {
    let mut plan = Plan {
        places: Vec::new(),
        weight: Weight::default(),
        after: None,
        generation: objects.volume().generation(),
        transno,
    };
    visit_places(objects, object, part.maps.clone(), &mut |block, place| {
        plan.weight.push(block, place);
        plan.places.push((block, place));
    })?;
    let first = part.maps.start * MAP_BLOCKS as u64;
    if first > 0 {
        let places = objects.map(object, part.maps.start - 1)?.places;
        plan.after = places[MAP_BLOCKS - 1].block().map(|block| block + 1);
    }
    Ok(plan)
}

/// Visits the blocks of some maps that have a place.
fn visit_places(
    objects: &Objects,
    object: &Object,
    maps: Range<u64>,
    visit: &mut dyn FnMut(u64, Place),
) -> Result<()> {
    for number in objects.map_numbers(object.fid, maps.start, maps.end)? {
        let places = objects.map(object, number)?.places;
        for (block, place) in (number * MAP_BLOCKS as u64..).zip(places) {
            if place != Place::Hole {
                visit(block, place);
            }
        }
    }
    Ok(())
}

/// Reads the blocks of a plan into `buffer`, one after the other, and compares checksums.
fn read_part(objects: &Objects, object: &Object, plan: &Plan, buffer: &mut AlignedBuffer) -> Result<()> {
    let mut rest = &mut buffer[..plan.places.len() * BLOCK as usize];
    let mut blocks = plan.places.as_slice();
    while let Some((first, _)) = blocks.first() {
        let run = (*first..).zip(blocks).take_while(|(block, (at, _))| block == at).count();
        let (now, later) = rest.split_at_mut(run * BLOCK as usize);
        objects.read_blocks(object, *first, now)?;
        (rest, blocks) = (later, &blocks[run..]);
    }
    Ok(())
}

/// Writes the data to its new place and commits that place, if the part has not changed meanwhile.
fn put_part(
    objects: &Objects,
    object: &Object,
    plan: &Plan,
    target: Extent,
    buffer: &[u8],
) -> Result<Outcome> {
    let mut edits = Edits::default();
    let mut ops: Vec<WriteOp<'_>> = Vec::new();
    let mut run = 0..0;
    for (index, (block, place)) in plan.places.iter().enumerate() {
        let at = target.start + index as u64;
        let Place::Data(_, crc) = *place else {
            edits.put(*block, Place::Reserved(at));
            continue;
        };
        edits.put(*block, Place::Data(at, crc));
        if run.end != index {
            push_op(&mut ops, target, &run, buffer);
            run = index..index;
        }
        run.end = index + 1;
    }
    push_op(&mut ops, target, &run, buffer);
    objects.volume().medium().write(object.fid, &ops)?;
    let mut locked = objects.lock(object);
    let Some(head) = locked.state().head.clone() else { return Ok(Outcome::Disturbed) };
    if !is_as_planned(objects, object, plan, locked.state().transno)? {
        return Ok(Outcome::Disturbed);
    }
    let edits = edits.keeping_time(head.mtime);
    locked.commit(Some(head), &edits)?;
    let after = moved_extents(&plan.places, target);
    Ok(Outcome::Moved(Moved { bytes: target.len * BLOCK, before: plan.weight.extents, after }))
}

/// Whether the part still has the data of the plan. The object is locked.
fn is_as_planned(objects: &Objects, object: &Object, plan: &Plan, transno: TransNo) -> Result<bool> {
    // Blocks freed since then are not reused before their generation is durable: until then a block at the
    // same place has the same data. Later only the object's last change proves it.
    if objects.volume().completed() >= plan.generation && transno != plan.transno {
        return Ok(false);
    }
    if transno == plan.transno {
        return Ok(true);
    }
    let (Some((first, _)), Some((last, _))) = (plan.places.first(), plan.places.last()) else {
        return Ok(true);
    };
    let maps = first / MAP_BLOCKS as u64..last / MAP_BLOCKS as u64 + 1;
    let mut expected = plan.places.iter();
    let mut is_same = true;
    visit_places(objects, object, maps, &mut |block, place| {
        is_same &= expected.next() == Some(&(block, place));
    })?;
    Ok(is_same && expected.next().is_none())
}

fn new_buffer() -> AlignedBuffer {
    AlignedBuffer::zeroed(PART_MAPS as usize * MAP_BLOCKS * BLOCK as usize)
}

/// Whether the last change is at least `seconds` old. One in the future counts as old.
fn rests(mtime: Timestamp, seconds: u64) -> bool {
    let now = Timestamp::from(nacre_env::clock::wall());
    seconds == 0 || mtime > now || now.sec.saturating_sub(mtime.sec) as u64 >= seconds
}

/// Adds the write of the blocks `run` of a plan, if there are any.
fn push_op<'a>(ops: &mut Vec<WriteOp<'a>>, target: Extent, run: &Range<usize>, buffer: &'a [u8]) {
    if !run.is_empty() {
        let data = &buffer[run.start * BLOCK as usize..run.end * BLOCK as usize];
        ops.push(WriteOp { offset: (target.start + run.start as u64) * BLOCK, data });
    }
}

/// Returns the number of pieces of the blocks placed one after the other from `target` on.
fn moved_extents(places: &[(u64, Place)], target: Extent) -> u64 {
    let mut weight = Weight::default();
    for ((block, _), at) in places.iter().zip(target.start..) {
        weight.push(*block, Place::Reserved(at));
    }
    weight.extents
}
