//! The history of a run: calls of clients with their answers, in the order of their beginnings and ends.

use crate::operation::Region;
use nacre_client::LockMode;
use nacre_env::clock::Instant;
use nacre_env::sync::Mutex;
use nacre_types::{Fid, Status};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

/// End of calls without an answer: after all others.
const NEVER: Duration = Duration::from_secs(1 << 30);

/// A call of a client.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Call {
    Lookup {
        parent: Fid,
        name: Vec<u8>,
    },
    /// Creates a regular file, or opens an existing one unless `exclusive`.
    Open {
        parent: Fid,
        name: Vec<u8>,
        exclusive: bool,
    },
    /// Opens a file by its FID.
    OpenFid {
        fid: Fid,
        truncate: bool,
    },
    Close {
        fid: Fid,
        handle: u64,
    },
    Write {
        fid: Fid,
        offset: u64,
        len: u32,
        byte: u8,
        sync: bool,
    },
    Append {
        fid: Fid,
        len: u32,
        byte: u8,
    },
    Read {
        fid: Fid,
        offset: u64,
        len: u32,
    },
    Truncate {
        fid: Fid,
        size: u64,
    },
    Stat {
        fid: Fid,
    },
    Mkdir {
        parent: Fid,
        name: Vec<u8>,
        striped: bool,
    },
    Unlink {
        parent: Fid,
        name: Vec<u8>,
        directory: bool,
    },
    Link {
        fid: Fid,
        parent: Fid,
        name: Vec<u8>,
    },
    Rename {
        from: (Fid, Vec<u8>),
        to: (Fid, Vec<u8>),
    },
    List {
        fid: Fid,
    },
    SetXattr {
        fid: Fid,
        name: u8,
        value: u8,
    },
    GetXattr {
        fid: Fid,
        name: u8,
    },
    Fsync {
        fid: Fid,
    },
    FsyncDir {
        fid: Fid,
    },
    Lock {
        fid: Fid,
        handle: u64,
        region: Region,
        mode: LockMode,
    },
    /// Moves the data of a file to other objects.
    Relocate {
        fid: Fid,
    },
    /// Begins to move the names of a directory to other shards.
    Restripe {
        fid: Fid,
    },
    /// Moves what a name leads to to another MDT, or begins to.
    Migrate {
        parent: Fid,
        name: Vec<u8>,
    },
}

impl Call {
    /// Returns false if other programs see nothing of the call.
    fn changes_something(&self) -> bool {
        !matches!(
            self,
            Call::Lookup { .. }
                | Call::OpenFid { truncate: false, .. }
                | Call::Read { .. }
                | Call::Stat { .. }
                | Call::List { .. }
                | Call::GetXattr { .. }
                | Call::Fsync { .. }
                | Call::FsyncDir { .. }
                | Call::Relocate { .. }
                | Call::Migrate { .. }
        )
    }

    /// Returns true if the call is about an inode by its FID.
    pub(crate) fn is_by_fid(&self) -> bool {
        !matches!(
            self,
            Call::Lookup { .. }
                | Call::Open { .. }
                | Call::Mkdir { .. }
                | Call::Unlink { .. }
                | Call::Rename { .. }
                | Call::Migrate { .. }
        )
    }
}

/// The answer to a call that succeeded.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Reply {
    Done,
    /// The inode, and whether it is a directory.
    Found {
        fid: Fid,
        directory: bool,
    },
    Absent,
    Opened {
        fid: Fid,
        created: bool,
    },
    Written(u32),
    Bytes(Vec<u8>),
    Attributes {
        directory: bool,
        size: u64,
        nlink: u32,
    },
    /// Names, with inode numbers.
    Names(BTreeMap<Vec<u8>, u64>),
    Xattr(u8),
}

/// A call and its answer.
#[derive(Clone, Debug)]
pub(crate) struct Event {
    pub(crate) worker: usize,
    pub(crate) call: Call,
    pub(crate) result: Result<Reply, Status>,
    /// Inode that a call made although it failed, unless that was lost.
    pub(crate) made: Option<Fid>,
    /// The client died before the answer: the call takes effect at any time from its beginning on, or never.
    pub(crate) is_unanswered: bool,
    /// Positions of its beginning and end among those of all calls.
    pub(crate) began: u64,
    pub(crate) ended: u64,
    /// Simulated times of both.
    pub(crate) times: [Duration; 2],
}

/// Something that happened to a server, which changes what is allowed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Incident {
    /// A host became unreachable for so long that it may be evicted (`begins`), or is reachable again.
    Eviction { begins: bool },
    /// The client of this program died with what it held back.
    Death(usize),
    /// The process of this MDT was killed.
    MdtKill(u16),
    /// The process of this OST was killed.
    OstKill(u16),
    /// The host of this MDT lost power.
    MdtPower(u16),
    /// The host of this OST lost power.
    OstPower(u16),
}

/// An incident with its position among the calls and its time.
pub(crate) type Timed = (u64, Duration, Incident);

#[derive(Default)]
struct State {
    events: Vec<Event>,
    incidents: Vec<Timed>,
    positions: u64,
    /// Programs whose clients have died.
    dead: BTreeSet<usize>,
}

/// The history of a run, which all programs extend.
pub(crate) struct History {
    start: Instant,
    state: Mutex<State>,
}

impl History {
    pub(crate) fn new() -> Arc<History> {
        Arc::new(History { start: Instant::now(), state: Mutex::default() })
    }

    fn position(&self) -> u64 {
        let mut state = self.state.lock();
        state.positions += 1;
        state.positions
    }

    /// Returns true if the client of this program has died.
    pub(crate) fn is_dead(&self, worker: usize) -> bool {
        self.state.lock().dead.contains(&worker)
    }

    /// Runs a call and records it. A dead client makes none.
    pub(crate) fn record(
        &self,
        worker: usize,
        call: Call,
        run: impl FnOnce() -> Result<Reply, Status>,
    ) -> Result<Reply, Status> {
        if self.is_dead(worker) {
            return Err(Status::ESHUTDOWN);
        }
        let (began, time) = (self.position(), self.start.elapsed());
        let result = run();
        let is_unanswered = self.is_dead(worker);
        if is_unanswered && !call.changes_something() {
            return result;
        }
        let (ended, end) = match is_unanswered {
            true => (u64::MAX, NEVER),
            false => (self.position(), self.start.elapsed()),
        };
        let times = [time, end];
        let event =
            Event { worker, call, result: result.clone(), made: None, is_unanswered, began, ended, times };
        self.state.lock().events.push(event);
        result
    }

    /// Records an incident.
    pub(crate) fn note(&self, incident: Incident) {
        let (position, time) = (self.position(), self.start.elapsed());
        let mut state = self.state.lock();
        if let Incident::Death(worker) = incident {
            state.dead.insert(worker);
        }
        state.incidents.push((position, time, incident));
    }

    /// Returns all calls, by program and in the order of each, and the incidents.
    pub(crate) fn take(&self) -> (Vec<Vec<Event>>, Vec<Timed>) {
        let mut state = self.state.lock();
        let mut programs: Vec<Vec<Event>> = Vec::new();
        for event in std::mem::take(&mut state.events) {
            if programs.len() <= event.worker {
                programs.resize(event.worker + 1, Vec::new());
            }
            programs[event.worker].push(event);
        }
        programs.iter_mut().for_each(|events| events.sort_by_key(|event| event.began));
        (programs, std::mem::take(&mut state.incidents))
    }
}
