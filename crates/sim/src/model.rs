//! The model: what POSIX and `docs/SEMANTICS.md` allow as an answer to a call, and what a call changes.
//!
//! A state keeps, for each name and each file, its values since the last one that is durable. A power cut makes
//! all of them possible, until an answer shows which one is left.

mod apply;
pub(crate) mod content;
mod locks;
mod names;

use crate::cluster::DELAY;
use crate::history::{Event, Incident, Reply};
use content::Content;
use locks::Locks;
use nacre_types::{Fid, Status};
use std::collections::{BTreeMap, BTreeSet};
use std::hash::{Hash, Hasher};
use std::sync::Arc;
use std::time::Duration;

/// Time after which an acknowledged change of names and attributes is durable: the interval at which an MDT
/// syncs its log is a second, and a sync of a busy log takes as long as its flush.
const DURABLE_AFTER: Duration = Duration::from_millis(2500);

/// Time within which a client that is reachable again learns of its eviction: the interval of pings, twice.
const NOTICED: Duration = Duration::from_secs(2);

/// What a plan of faults allows.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Rules {
    /// Hosts of MDTs lose power while clients are away that would replay the loss: changes of the last second may be
    /// lost, and `fsync` and `close` report `EIO`.
    pub(crate) mdt_power: bool,
    /// Hosts of OSTs lose power while clients are away, or disks fail or are full, that would replay the loss or take
    /// it: data that was not synced may be lost.
    pub(crate) ost_power: bool,
    /// Clients can be unreachable for so long that servers evict them.
    pub(crate) evictions: bool,
    /// Servers can be unreachable for longer than requests between MDTs wait.
    pub(crate) downtime: bool,
    /// OSTs can be unreachable for longer than an MDT waits for new objects.
    pub(crate) starves: bool,
    /// OSTs can be full.
    pub(crate) full: bool,
    /// Disks of OSTs fail.
    pub(crate) io_errors: bool,
}

/// Whether a failed call can have taken effect.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Excuse {
    /// The failure is not allowed.
    None,
    /// It is, and the call changed nothing.
    NoEffect,
    /// It is, and what the call writes may have been written in part.
    Partial,
}

impl Rules {
    fn loses_data(&self) -> bool {
        self.ost_power || self.mdt_power || self.evictions || self.io_errors
    }

    /// Returns true if objects may be left without a file: clients may write to objects of files that an MDT has
    /// lost with its power.
    pub(crate) fn orphans_objects(&self) -> bool {
        self.mdt_power
    }

    /// Returns whether faults excuse a failure that the state of the file system does not.
    pub(crate) fn excuse(&self, event: &Event, status: Status) -> Excuse {
        use crate::history::Call;
        let is_of_data = matches!(
            event.call,
            Call::Read { .. }
                | Call::Write { .. }
                | Call::Append { .. }
                | Call::Fsync { .. }
                | Call::Close { .. }
                | Call::Truncate { .. }
                | Call::OpenFid { .. }
                | Call::Stat { .. }
                | Call::FsyncDir { .. }
                | Call::Relocate { .. }
        );
        match status {
            // The MDT has dropped the client, and its locks.
            Status::EIO if matches!(event.call, Call::Lock { .. }) && (self.evictions || self.mdt_power) => {
                Excuse::Partial
            }
            Status::EIO if is_of_data && (self.loses_data() || self.starves) => Excuse::Partial,
            // A request of an MDT to another one that is down has a deadline.
            Status::ETIMEDOUT if self.downtime => Excuse::NoEffect,
            // The handle of an evicted client was closed, and the file had no name left.
            Status::ENOENT if self.evictions && (is_of_data || matches!(event.call, Call::Lock { .. })) => {
                Excuse::Partial
            }
            // The file was removed, or moved to another MDT, after that MDT had its new size.
            Status::ESTALE if matches!(event.call, Call::Truncate { .. }) => Excuse::Partial,
            Status::ESTALE if self.evictions || self.mdt_power => Excuse::Partial,
            Status::ENOSPC if self.full && is_of_data => Excuse::Partial,
            _ => Excuse::None,
        }
    }
}

/// A value of a name, with the time when it was set and the client that did.
#[derive(Clone, Debug, Hash)]
pub(crate) struct Value {
    pub(crate) fid: Option<Fid>,
    time: Duration,
    worker: usize,
    /// Its program has made it durable.
    is_synced: bool,
}

/// A name: its values since the last durable one.
#[derive(Clone, Debug, Default, Hash)]
pub(crate) struct Entry {
    values: Vec<Value>,
    /// A power cut left one of the values.
    is_open: bool,
}

/// Opens of a file by each program whose client lives.
#[derive(Clone, Debug, Default, Hash)]
struct Opens {
    counts: BTreeMap<usize, u32>,
}

#[derive(Clone, Debug, Hash)]
pub(crate) struct Inode {
    pub(crate) directory: bool,
    pub(crate) striped: bool,
    pub(crate) nlink: u32,
    pub(crate) entries: BTreeMap<Vec<u8>, Entry>,
    pub(crate) parent: Fid,
    pub(crate) content: Content,
    pub(crate) xattrs: BTreeMap<u8, u8>,
    pub(crate) locks: Locks,
    opens: Opens,
    /// Time of its last change, apart from its data and names in it.
    pub(crate) changed: Duration,
    /// Links and attributes are not known since a power cut.
    pub(crate) is_unsure: bool,
    /// Names in it may move between shards, which are counted one after the other.
    pub(crate) is_spreading: bool,
    /// Names in it may have been lost, so that the count of its directories is not known.
    pub(crate) is_recounted: bool,
}

/// A state of the file system.
#[derive(Clone, Debug)]
pub(crate) struct Model {
    pub(crate) inodes: BTreeMap<Fid, Arc<Inode>>,
    pub(crate) rules: Rules,
    /// Inodes that may move to another MDT: calls by their FID may fail, and are repeated with lookups.
    moved: Arc<BTreeSet<Fid>>,
    /// Time of the first power cut of an MDT, or change that failed and may have been executed: from then on only what
    /// was durable by then is checked.
    cut: Option<Duration>,
    /// Time of the last end of an OST: clients write again what it may have lost.
    rewritten: Option<Duration>,
    /// Hosts have been unreachable for so long that servers drop clients, at some time.
    is_evicting: bool,
    /// Number of hosts that are, and time when the last one was reachable again.
    unreachable: (u32, Option<Duration>),
    /// An MDT was started again: it has lost the answers to clients that it had evicted before.
    is_mdt_restarted: bool,
}

/// Result of a check: the state after the call, or why the answer is wrong.
pub(crate) type Verdict = Result<(), String>;

fn wrong(expected: impl std::fmt::Debug) -> Verdict {
    Err(format!("{expected:?} expected"))
}

/// Checks that a call failed with one of these.
fn fails(event: &Event, allowed: &[Status]) -> Verdict {
    match &event.result {
        Err(status) if allowed.contains(status) => Ok(()),
        _ => wrong(allowed),
    }
}

fn is_done(event: &Event) -> Verdict {
    if event.result == Ok(Reply::Done) { Ok(()) } else { wrong(Reply::Done) }
}

impl Hash for Model {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.inodes.hash(state);
    }
}

impl Opens {
    fn add(&mut self, worker: usize) {
        *self.counts.entry(worker).or_default() += 1;
    }

    fn remove(&mut self, worker: usize) {
        if let Some(count) = self.counts.get_mut(&worker) {
            *count = count.saturating_sub(1);
        }
        self.counts.retain(|_, count| *count > 0);
    }

    /// Removes those of a client that has died: its MDT closes them when it evicts the client.
    fn end(&mut self, worker: usize) {
        self.counts.remove(&worker);
    }
}

impl Inode {
    fn new(directory: bool, parent: Fid, changed: Duration) -> Inode {
        Inode {
            directory,
            striped: false,
            nlink: if directory { 2 } else { 1 },
            entries: BTreeMap::new(),
            parent,
            content: Content::default(),
            xattrs: BTreeMap::new(),
            locks: Locks::default(),
            opens: Opens::default(),
            changed,
            is_unsure: false,
            is_spreading: false,
            is_recounted: false,
        }
    }

    /// Returns true if no name leads to it: calls by FID may fail.
    fn is_removed(&self) -> bool {
        self.nlink == 0 || self.is_unsure
    }
}

impl Model {
    pub(crate) fn new(rules: Rules, moved: BTreeSet<Fid>) -> Model {
        let root = Inode::new(true, Fid::ROOT, Duration::ZERO);
        let inodes = BTreeMap::from([(Fid::ROOT, Arc::new(root))]);
        Model {
            inodes,
            rules,
            moved: Arc::new(moved),
            cut: None,
            rewritten: None,
            is_evicting: false,
            unreachable: (0, None),
            is_mdt_restarted: false,
        }
    }

    pub(crate) fn inode(&self, fid: Fid) -> Option<&Inode> {
        self.inodes.get(&fid).map(|inode| &**inode)
    }

    fn inode_mut(&mut self, fid: Fid) -> Option<&mut Inode> {
        self.inodes.get_mut(&fid).map(Arc::make_mut)
    }

    /// Applies an incident at `time`.
    pub(crate) fn incident(&mut self, incident: Incident, time: Duration) {
        let (hosts, reachable) = &mut self.unreachable;
        match incident {
            Incident::OstKill(_) | Incident::OstPower(_) => self.rewritten = Some(time),
            Incident::MdtKill(_) | Incident::MdtPower(_) => self.is_mdt_restarted = true,
            Incident::Eviction { begins: true } => (self.is_evicting, *hosts) = (true, *hosts + 1),
            Incident::Eviction { begins: false } => (*hosts, *reachable) = (*hosts - 1, Some(time)),
            Incident::Death(worker) => self.change_all(|_, inode| inode.opens.end(worker)),
        }
        match incident {
            // Nothing is lost.
            Incident::MdtKill(_) | Incident::OstKill(_) => {}
            // Clients replay what is lost.
            Incident::OstPower(_) if !self.rules.ost_power => {}
            Incident::MdtPower(_) if !self.rules.mdt_power => {}
            Incident::OstPower(_) => self.change_all(|_, inode| inode.content.lose_all()),
            Incident::Eviction { .. } | Incident::Death(_) => {
                self.change_all(|_, inode| {
                    inode.content.lose_all();
                    inode.locks.lose();
                });
            }
            Incident::MdtPower(_) => {
                self.cut.get_or_insert(time);
                self.change_all(|fid, inode| {
                    inode.content.lose_all();
                    inode.content.loosen();
                    inode.locks.lose();
                    inode.is_unsure |= inode.changed + DURABLE_AFTER > time && fid != Fid::ROOT;
                    inode.entries.values_mut().for_each(|entry| entry.lose(time));
                    inode.is_recounted |= inode.entries.values().any(|entry| entry.is_open);
                });
            }
        }
    }

    /// Returns true if a client may have answered from its cache, because it has not learned of its eviction yet.
    fn may_be_outdated(&self, event: &Event) -> bool {
        let (hosts, reachable) = self.unreachable;
        let is_cut_off = hosts > 0 || reachable.is_some_and(|since| event.times[0] < since + NOTICED);
        // A request takes longer.
        is_cut_off && event.times[1] - event.times[0] < DELAY
    }

    /// Accepts a wrong answer after a power cut of an MDT, unless it is about a name or data that was durable by
    /// then and that no call has changed since.
    fn accept_after_cut(&mut self, event: &Event, wrong: Verdict) -> Verdict {
        use crate::history::Call;
        let Some(cut) = self.cut.filter(|_| wrong.is_err()) else { return wrong };
        match &event.call {
            Call::Lookup { parent, name } => {
                let parent = self.inode(*parent).filter(|parent| !parent.is_unsure && parent.nlink > 0);
                let entry = parent.and_then(|parent| parent.entries.get(name));
                if entry.is_some_and(|entry| entry.is_durable(cut)) { wrong } else { Ok(()) }
            }
            Call::Read { fid, .. } => match self.inode(*fid) {
                Some(inode) if !inode.is_removed() && inode.content.is_sure() => wrong,
                _ => Ok(()),
            },
            Call::Write { fid, .. } | Call::Append { fid, .. } | Call::Truncate { fid, .. } => {
                self.doubt_data(*fid);
                Ok(())
            }
            Call::OpenFid { fid, .. } => {
                self.doubt_data(*fid);
                Ok(())
            }
            _ => {
                self.doubt_names_of(event);
                Ok(())
            }
        }
    }

    /// Makes the values of names that a call changes unknown; false if it changes none.
    fn doubt_names_of(&mut self, event: &Event) -> bool {
        use crate::history::Call;
        match &event.call {
            Call::Unlink { parent, name, .. }
            | Call::Link { parent, name, .. }
            | Call::Open { parent, name, .. }
            | Call::Mkdir { parent, name, .. } => self.doubt_name(*parent, name),
            Call::Rename { from, to } => {
                self.doubt_name(from.0, &from.1);
                self.doubt_name(to.0, &to.1);
            }
            _ => return false,
        }
        true
    }

    fn doubt_name(&mut self, parent: Fid, name: &[u8]) {
        if let Some(parent) = self.inode_mut(parent) {
            parent.entries.entry(name.to_vec()).or_default().doubt();
        }
    }

    fn doubt_data(&mut self, fid: Fid) {
        if let Some(inode) = self.inode_mut(fid) {
            inode.content.doubt();
        }
    }

    fn change_all(&mut self, change: impl Fn(Fid, &mut Inode)) {
        for (fid, inode) in &mut self.inodes {
            change(*fid, Arc::make_mut(inode));
        }
    }
}
