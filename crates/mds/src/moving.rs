//! Names that move between the shards of a directory, while it gets more or fewer of them. `docs/design/dne.md` has the protocol.
//!
//! A change begins with one operation that gives the directory its new list ([`begin`]). Then the MDT of each old shard moves the names
//! there in steps, in the order of their positions ([`step`]); the shard stores how far it is. When all have come to the end, the MDT
//! of the directory ends the change with one operation. What changes is noted in a table, so that it goes on after a restart.
//!
//! A new shard does not know how far the old ones are. It asks them when somebody asks for a name that may have come to it, and keeps
//! the answer, which stays true until the change ends.

mod begin;
mod files;
mod inode;
mod step;
mod turns;

pub(crate) use inode::{ShardLists, holds_names};

use crate::locks::Want;
use crate::mds::Mds;
use crate::shards::{named_in, place_of, shards_of};
use crate::tables::MOVES;
use nacre_env::clock::Instant;
use nacre_env::sync::{Condvar, Mutex};
use nacre_env::thread::JoinHandle;
use nacre_layout::dir_layout::Home;
use nacre_ondisk::InodeRecord;
use nacre_types::{Fid, Status, StatusResult};
use nacre_wire::mds::MdsRequest;
use nacre_wire::peer::{PeerReply, PeerRequest};
use std::collections::{BTreeSet, HashMap};
use std::ops::{Bound, ControlFlow};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

/// Time between two looks at changes that wait for others.
const TICK: Duration = Duration::from_millis(250);
/// Names that a step moves. Guess: others wait for the shard for as long as a step takes: two messages for each target, one sync, and
/// about 2 us for each name.
const STEP_NAMES: usize = 256;
/// Directories of which it is kept how far names have moved; then all is forgotten.
const KNOWN_MAX: usize = 256;
/// Names above [`MovingLimits::split_count`] after which a directory that was not split is looked at again. Guess: a look costs less than
/// one of so many creates.
const LOOK_EVERY: u64 = 64;

/// When directories change by themselves, and whether they may be changed. The numbers are Lustre's (reference 4.17), which does nothing
/// unless it is told to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MovingLimits {
    /// Directories may get more or fewer shards (`mdt.*.enable_dir_restripe`).
    pub may_restripe: bool,
    /// Those that grow get more by themselves (`mdt.*.enable_dir_auto_split`).
    pub splits: bool,
    /// Names in one shard from which on (`mdt.*.dir_split_count`).
    pub split_count: u64,
    /// Shards more each time (`mdt.*.dir_split_delta`).
    pub split_delta: u64,
}

impl Default for MovingLimits {
    fn default() -> MovingLimits {
        MovingLimits { may_restripe: true, splits: true, split_count: 50_000, split_delta: 4 }
    }
}

/// How far old shards of one directory have moved their names, by place in the list with a version.
#[derive(Default)]
struct Known {
    version: u32,
    upto: HashMap<u32, u64>,
}

/// How a look at all changes has ended.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Pace {
    /// Nothing changes.
    Idle,
    /// Others have something to do first.
    Waiting,
    /// There is more to do at once.
    Busy,
}

/// Where the thread that moves names waits.
#[derive(Default)]
struct Bell {
    state: Mutex<Rung>,
    changed: Condvar,
}

#[derive(Default)]
struct Rung {
    /// There is something to look at.
    due: bool,
    /// The thread is to end.
    ended: bool,
}

impl Bell {
    fn ring(&self) {
        self.state.lock().due = true;
        self.changed.notify_all();
    }

    /// Waits until there is something to look at, or for `limit`; false if it is time to end.
    fn wait(&self, limit: Option<Duration>) -> bool {
        let deadline = limit.map(|limit| Instant::now() + limit);
        let mut state = self.state.lock();
        while !state.due && !state.ended {
            match deadline {
                None => self.changed.wait(&mut state),
                Some(deadline) if self.changed.wait_until(&mut state, deadline).timed_out() => break,
                Some(_) => {}
            }
        }
        state.due = false;
        !state.ended
    }

    /// Rests for `time`; false if it is time to end.
    fn rest(&self, time: Duration) -> bool {
        let deadline = Instant::now() + time;
        let mut state = self.state.lock();
        while !state.ended && !self.changed.wait_until(&mut state, deadline).timed_out() {}
        !state.ended
    }
}

/// What an MDT knows of names that move.
#[derive(Default)]
pub(crate) struct Moving {
    known: Mutex<HashMap<Fid, Known>>,
    /// Directories that should get more shards.
    grown: Mutex<BTreeSet<Fid>>,
    /// Sequence of FIDs for shards, and the number of the last one.
    fids: Mutex<(u64, u32)>,
    /// Names in one shard from which on it is split; `u64::MAX` if it never is.
    split_count: AtomicU64,
    limits: Mutex<MovingLimits>,
    /// Names that a step moves.
    step_names: AtomicUsize,
    bell: Arc<Bell>,
    turns: turns::Turns,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Moving {
    pub fn new() -> Moving {
        let moving = Moving { step_names: AtomicUsize::new(STEP_NAMES), ..Moving::default() };
        moving.change_limits(|limits| *limits = MovingLimits::default());
        moving
    }

    /// Moves so many names in a step.
    #[cfg(test)]
    pub fn step_by(&self, names: usize) {
        self.step_names.store(names, Ordering::Relaxed);
    }

    fn change_limits(&self, change: impl FnOnce(&mut MovingLimits)) {
        let mut limits = self.limits.lock();
        change(&mut limits);
        let count = if limits.splits { limits.split_count } else { u64::MAX };
        self.split_count.store(count, Ordering::Relaxed);
    }

    /// True if the old shard in a place of the list of a version is known to have moved its names up to behind a position.
    pub fn has_moved(&self, master: &Fid, (version, place): (u32, u32), position: u64) -> bool {
        let known = self.known.lock();
        let known = known.get(master).filter(|known| known.version == version);
        known.and_then(|known| known.upto.get(&place)).is_some_and(|upto| position < *upto)
    }

    fn note_moved(&self, master: Fid, (version, place): (u32, u32), upto: u64) {
        let mut all = self.known.lock();
        if all.len() >= KNOWN_MAX && !all.contains_key(&master) {
            all.clear();
        }
        let known = all.entry(master).or_default();
        if known.version != version {
            *known = Known { version, ..Known::default() };
        }
        let known = known.upto.entry(place).or_default();
        *known = upto.max(*known);
    }

    /// A directory or shard was changed.
    pub fn note_size(&self, record: &InodeRecord) {
        let count = self.split_count.load(Ordering::Relaxed);
        let names = record.entries();
        if names >= count && (names - count).is_multiple_of(LOOK_EVERY) {
            self.note_grown(named_in(record));
        }
    }

    fn note_grown(&self, fid: Fid) {
        self.grown.lock().insert(fid);
        self.bell.ring();
    }

    /// Names have to move, or a change is to be ended.
    pub fn note_change(&self) {
        self.bell.ring();
    }

    /// Before a name is made in a directory or shard, with nothing locked: waits if names come to it faster than they move out of it.
    pub fn await_turn(&self, parent: &Fid) {
        self.turns.wait(parent);
    }

    /// Ends the thread.
    pub fn stop(&self) {
        self.bell.state.lock().ended = true;
        self.bell.changed.notify_all();
    }

    /// Waits for the end of the thread; false if it has panicked.
    pub fn join(&self) -> bool {
        self.thread.lock().take().is_none_or(|thread| thread.join().is_ok())
    }
}

/// Body of the thread that moves names.
fn move_names(mds: &Weak<Mds>, bell: &Bell) {
    loop {
        let Some(mds) = mds.upgrade() else { return };
        let start = Instant::now();
        let pace = mds.move_once();
        drop(mds);
        let goes_on = match pace {
            // Requests that wait for a shard get as much time with it as the steps.
            Pace::Busy => bell.rest(start.elapsed().min(TICK)),
            Pace::Waiting => bell.wait(Some(TICK)),
            // What comes together with the first one is looked at together.
            Pace::Idle => bell.wait(None) && bell.rest(TICK),
        };
        if !goes_on {
            return;
        }
    }
}

/// The names that a request is about, with the directories or shards that they are looked for in.
fn names_of<'a>(request: &MdsRequest<'a>) -> Vec<(Fid, &'a [u8])> {
    match *request {
        MdsRequest::Lookup { parent, name }
        | MdsRequest::Create { parent, name, .. }
        | MdsRequest::Link { parent, name, .. }
        | MdsRequest::Unlink { parent, name, .. }
        | MdsRequest::Intent { fid: parent, name: Some(name), .. } => vec![(parent, name)],
        MdsRequest::Rename { from_parent, from_name, to_parent, to_name, .. } => {
            vec![(from_parent, from_name), (to_parent, to_name)]
        }
        MdsRequest::LookupMany { parent, names, .. } => {
            names.split(|&byte| byte == 0).map(|name| (parent, name)).collect()
        }
        _ => Vec::new(),
    }
}

impl Mds {
    /// When directories change by themselves, and whether they may be changed.
    pub fn moving_limits(&self) -> MovingLimits {
        *self.moving.limits.lock()
    }

    /// Changes it.
    pub fn change_moving_limits(&self, change: impl FnOnce(&mut MovingLimits)) {
        self.moving.change_limits(change);
    }

    /// Lets names move from now on.
    ///
    /// # Errors
    /// If the thread cannot be started.
    pub(crate) fn start_moving(self: &Arc<Self>) -> std::io::Result<()> {
        let mut thread = self.moving.thread.lock();
        if thread.is_none() {
            let (weak, bell) = (Arc::downgrade(self), self.moving.bell.clone());
            let body = move || move_names(&weak, &bell);
            *thread = Some(nacre_env::thread::Builder::new().name("mds-move".into()).spawn(body)?);
        }
        Ok(())
    }

    /// Finds out how far names have moved that a request was refused for; false if it would be refused again.
    ///
    /// # Errors
    /// What other MDTs answer.
    pub(crate) fn learn_moved(&self, request: &MdsRequest<'_>) -> StatusResult<bool> {
        let (mut has_learned, mut asked) = (false, BTreeSet::new());
        for (home, name) in names_of(request) {
            let Some(record) = self.record_anywhere(&home)? else { return Ok(false) };
            let Ok(Some(shard)) = place_of(&record) else { continue };
            let position = self.hash(name);
            let Home::IfMoved { from } = shard.home(name, position) else { continue };
            let (master, of_version) = (named_in(&record), shard.version);
            if self.moving.has_moved(&master, (of_version, from), position) || !asked.insert((master, from)) {
                continue;
            }
            let list = self.record_anywhere(&master)?.map(|master| shards_of(&master)).transpose()?.flatten();
            let old = list.filter(|list| list.version == of_version);
            let Some(old) = old.and_then(|list| list.shards.get(from as usize).copied()) else {
                return Ok(false);
            };
            let (version, upto) = self.moved_anywhere(&old)?;
            if version != of_version {
                return Ok(false);
            }
            self.moving.note_moved(master, (version, from), upto);
            has_learned = true;
        }
        Ok(has_learned)
    }

    /// An inode of any MDT.
    pub(crate) fn record_anywhere(&self, fid: &Fid) -> StatusResult<Option<InodeRecord>> {
        match fid.mdt_index() == self.index {
            true => Ok(self.find_inode(fid)?.map(|record| InodeRecord::clone(&record))),
            false => self.inode_elsewhere(fid),
        }
    }

    /// Version of the list that an old shard of any MDT is in, and how far it has moved its names.
    fn moved_anywhere(&self, fid: &Fid) -> StatusResult<(u32, u64)> {
        let reply = match fid.mdt_index() == self.index {
            true => self.moved_of(fid)?,
            false => self.operations.ask(fid.mdt_index(), PeerRequest::Moved { fid: *fid })?,
        };
        match reply {
            PeerReply::Moved { version, upto } => Ok((version, upto)),
            _ => Err(Status::EPROTO),
        }
    }

    /// The same of this MDT, as it is decided and durable.
    pub(crate) fn moved_of(&self, fid: &Fid) -> StatusResult<PeerReply> {
        self.await_decision(&Want::Still(*fid))?;
        let shard = place_of(&*self.with_names(fid)?)?.ok_or(Status::WRONG_SHARD)?;
        Ok(PeerReply::Moved { version: shard.version, upto: shard.moved() })
    }

    /// A directory should get more shards.
    pub(crate) fn note_grown(&self, fid: &Fid) {
        self.moving.note_grown(*fid);
    }

    /// Does a step of every change that is under way here. Failures are tried again.
    pub(crate) fn move_once(&self) -> Pace {
        self.split_grown();
        let mut changing = Vec::new();
        let scanned = self.store.scan(MOVES, &[], Bound::Unbounded, &mut |key, _| {
            changing.extend(<[u8; 16]>::try_from(key).map(|key| Fid::from_key(&key)));
            ControlFlow::Continue(())
        });
        if let Err(error) = scanned {
            self.store_failed(&error);
            return Pace::Waiting;
        }
        let mut pace = Pace::Idle;
        for fid in changing {
            if self.stopping.load(Ordering::Acquire) {
                return Pace::Idle;
            }
            pace = pace.max(match self.move_on(&fid) {
                Ok(true) => Pace::Busy,
                Ok(false) => Pace::Waiting,
                Err(status) => {
                    log::debug!("MDT{:04x}: names of {fid} do not move on: {status}", self.index);
                    Pace::Waiting
                }
            });
        }
        pace
    }
}
