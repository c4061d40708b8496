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
pub(crate) mod progress;
mod step;
mod turns;

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
use std::collections::BTreeSet;
use std::ops::{Bound, ControlFlow};
use std::sync::{Arc, Weak};
use std::time::Duration;

/// Time between two looks at changes that wait for others.
const TICK: Duration = Duration::from_millis(250);

/// See the [module documentation](self).
pub(crate) struct Moves {
    leaves: Arc<Leaves>,
    core: Arc<Core>,
    /// Sequence of FIDs for shards, and the number of the last one.
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

impl Moves {
    pub fn new(leaves: &Arc<Leaves>, core: &Arc<Core>) -> Moves {
        Moves { leaves: leaves.clone(), core: core.clone(), fids: Mutex::default(), thread: Mutex::default() }
    }

    /// Lets names move from now on.
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

    /// Waits for the end of the thread; false if it has panicked.
    pub fn join(&self) -> bool {
        self.thread.lock().take().is_none_or(|thread| thread.join().is_ok())
    }

    /// Finds out how far names have moved that a request was refused for; false if it would be refused again.
    ///
    /// # Errors
    /// What other MDTs answer.
    pub fn learn_moved(&self, request: &MdsRequest<'_>) -> StatusResult<bool> {
        let (mut has_learned, mut asked) = (false, BTreeSet::new());
        for (home, name) in names_of(request) {
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

    /// Version of the list that an old shard of any MDT is in, and how far it has moved its names.
    fn moved_anywhere(&self, fid: &Fid) -> StatusResult<(u32, u64)> {
        let reply = match fid.mdt_index() == self.leaves.index {
            true => self.moved_of(fid)?,
            false => self.leaves.operations.ask(fid.mdt_index(), PeerRequest::Moved { fid: *fid })?,
        };
        match reply {
            PeerReply::Moved { version, upto } => Ok((version, upto)),
            _ => Err(Status::EPROTO),
        }
    }

    /// The same of this MDT, as it is decided and durable.
    pub fn moved_of(&self, fid: &Fid) -> StatusResult<PeerReply> {
        self.leaves.locks.await_decision(&Want::Still(*fid))?;
        let shard = place_of(&*self.leaves.records.with_names(fid)?)?.ok_or(Status::WRONG_SHARD)?;
        Ok(PeerReply::Moved { version: shard.version, upto: shard.moved() })
    }

    /// Does a step of every change that is under way here. Failures are tried again.
    pub fn move_once(&self) -> Pace {
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
