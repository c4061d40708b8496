//! Moves of names between the shards of a directory, while it gets more or fewer shards. `docs/design/dne.md`
//! has the protocol.
//!
//! A change begins with a distributed transaction that gives the directory its new list ([`begin`]). Then the
//! MDT of each old shard moves the names there in steps, in the order of their positions ([`step`]); the
//! shard stores its progress. When all shards have finished, the MDT of the directory ends the change with
//! another transaction. A table records unfinished changes, so that they continue after a restart.
//!
//! A new shard does not know the progress of the old ones. It asks them on a request for a name that may have
//! moved to it, and caches the answer, which stays valid until the change ends.

mod begin;
mod files;
mod inode;
pub(crate) mod progress;
mod step;
mod throttle;

use crate::core::Core;
use crate::leaves::Leaves;
use crate::locks::Want;
use crate::moving::progress::{Bell, Pace};
use crate::shards::{named_in, place_of, shards_of};
use crate::tables::MOVES;
use nacre_env::clock::Instant;
use nacre_env::sync::Mutex;
use nacre_env::thread::JoinHandle;
use nacre_layout::dir_layout::Home;
use nacre_types::{Fid, Status, StatusResult};
use nacre_wire::mds::MdsRequest;
use nacre_wire::peer::{PeerReply, PeerRequest};
use smallvec::{SmallVec, smallvec};
use std::collections::BTreeSet;
use std::ops::{Bound, ControlFlow};
use std::sync::{Arc, Weak};
use std::time::Duration;

/// Interval of checks of changes that wait for other MDTs.
const TICK: Duration = Duration::from_millis(250);

/// See the [module documentation](self).
pub(crate) struct Moves {
    leaves: Arc<Leaves>,
    core: Arc<Core>,
    /// Sequence of FIDs for shards, and the last object id used in it.
    fids: Mutex<(u64, u32)>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

/// Body of the thread that moves names.
fn move_names(moves: &Weak<Moves>, bell: &Bell) {
    loop {
        let Some(moves) = moves.upgrade() else { return };
        let start = Instant::now();
        let pace = moves.move_once();
        drop(moves);
        let goes_on = match pace {
            // Requests that wait for a shard get as much time with it as the steps.
            Pace::Busy => bell.rest(start.elapsed().min(TICK)),
            Pace::Waiting => bell.wait(Some(TICK)),
            // Changes that begin together with the first one are processed together.
            Pace::Idle => bell.wait(None) && bell.rest(TICK),
        };
        if !goes_on {
            return;
        }
    }
}

/// Returns the names in a request, with the directories or shards to look them up in.
pub(crate) fn names_in<'a>(request: &MdsRequest<'a>) -> SmallVec<[(Fid, &'a [u8]); 2]> {
    match *request {
        MdsRequest::Lookup { parent, name }
        | MdsRequest::Create { parent, name, .. }
        | MdsRequest::Link { parent, name, .. }
        | MdsRequest::Unlink { parent, name, .. }
        | MdsRequest::Intent { fid: parent, name: Some(name), .. } => smallvec![(parent, name)],
        MdsRequest::Rename { from_parent, from_name, to_parent, to_name, .. } => {
            smallvec![(from_parent, from_name), (to_parent, to_name)]
        }
        MdsRequest::LookupMany { parent, names, .. } => {
            names.split(|&byte| byte == 0).map(|name| (parent, name)).collect()
        }
        _ => SmallVec::new(),
    }
}

impl Moves {
    pub fn new(leaves: &Arc<Leaves>, core: &Arc<Core>) -> Moves {
        Moves { leaves: leaves.clone(), core: core.clone(), fids: Mutex::default(), thread: Mutex::default() }
    }

    /// Starts the thread that moves names.
    ///
    /// # Errors
    /// If the thread cannot be started.
    pub fn start(self: &Arc<Self>) -> std::io::Result<()> {
        let mut thread = self.thread.lock();
        if thread.is_none() {
            let (weak, bell) = (Arc::downgrade(self), self.leaves.moving.bell());
            let body = move || move_names(&weak, &bell);
            *thread = Some(nacre_env::thread::Builder::new().name("mds-move".into()).spawn(body)?);
        }
        Ok(())
    }

    /// Waits for the end of the thread; returns false if it has panicked.
    pub fn join(&self) -> bool {
        self.thread.lock().take().is_none_or(|thread| thread.join().is_ok())
    }

    /// Asks for the progress of the moves for which a request was refused; returns false if it would be
    /// refused again.
    ///
    /// # Errors
    /// Those of other MDTs.
    pub fn learn_moved(&self, request: &MdsRequest<'_>) -> StatusResult<bool> {
        let (mut has_learned, mut asked) = (false, BTreeSet::new());
        for (home, name) in names_in(request) {
            let Some(record) = self.core.coordinator.record_anywhere(&home)? else { return Ok(false) };
            let Ok(Some(shard)) = place_of(&record) else { continue };
            let position = self.leaves.records.hash(name);
            let Home::IfMoved { from } = shard.home(name, position) else { continue };
            let (master, of_version) = (named_in(&record), shard.version);
            if self.leaves.moving.has_moved(&master, of_version, from, position)
                || !asked.insert((master, from))
            {
                continue;
            }
            let list = self
                .core
                .coordinator
                .record_anywhere(&master)?
                .map(|master| shards_of(&master))
                .transpose()?
                .flatten();
            let old = list.filter(|list| list.version == of_version);
            let Some(old) = old.and_then(|list| list.shards.get(from as usize).copied()) else {
                return Ok(false);
            };
            let (version, upto) = self.moved_anywhere(&old)?;
            if version != of_version {
                return Ok(false);
            }
            self.leaves.moving.note_moved(master, version, from, upto);
            has_learned = true;
        }
        Ok(has_learned)
    }

    /// Returns the version of the list of an old shard on any MDT, and the position up to which it has moved
    /// its names.
    fn moved_anywhere(&self, fid: &Fid) -> StatusResult<(u32, u64)> {
        let reply = match fid.mdt_index() == self.leaves.index {
            true => self.moved_of(fid)?,
            false => self.leaves.transactions.ask(fid.mdt_index(), PeerRequest::Moved { fid: *fid })?,
        };
        match reply {
            PeerReply::Moved { version, upto } => Ok((version, upto)),
            _ => Err(Status::EPROTO),
        }
    }

    /// Returns the same for a shard of this MDT, as decided and durable.
    pub fn moved_of(&self, fid: &Fid) -> StatusResult<PeerReply> {
        self.leaves.locks.await_decision(&Want::Still(*fid))?;
        let shard = place_of(&*self.leaves.records.with_names(fid)?)?.ok_or(Status::WRONG_SHARD)?;
        Ok(PeerReply::Moved { version: shard.version, upto: shard.moved() })
    }

    /// Does one step of every change under way here. Failed steps are retried.
    pub fn move_once(&self) -> Pace {
        // Names that clients or other MDTs have yet to replay belong where they were.
        let replays = &self.leaves.replays;
        let are_pending = !replays.are_over() && replays.are_pending(self.leaves.mdlocks.is_recovering());
        if are_pending || !self.leaves.transactions.has_all_parts() {
            return Pace::Waiting;
        }
        self.split_grown();
        let mut changing = Vec::new();
        let scanned = self.leaves.store.scan(MOVES, &[], Bound::Unbounded, &mut |key, _| {
            changing.extend(<[u8; 16]>::try_from(key).map(|key| Fid::from_key(&key)));
            ControlFlow::Continue(())
        });
        if let Err(error) = scanned {
            self.leaves.records.store_failed(&error);
            return Pace::Waiting;
        }
        let mut pace = Pace::Idle;
        for fid in changing {
            if self.leaves.signal.is_stopping() {
                return Pace::Idle;
            }
            pace = pace.max(match self.move_on(&fid) {
                Ok(true) => Pace::Busy,
                Ok(false) => Pace::Waiting,
                Err(status) => {
                    log::debug!("MDT{:04x}: names of {fid} do not move on: {status}", self.leaves.index);
                    Pace::Waiting
                }
            });
        }
        pace
    }
}
