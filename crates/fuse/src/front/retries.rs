//! Second lookups of names that lead to other files all the time.
//!
//! The kernel looks a name up and then sends a request about the file that it found. If another mount has replaced the
//! name meanwhile and that file is gone, the kernel looks the name up once more, and gives up if that file is gone as
//! well. No local file system fails there: the name exists throughout. So the file of the second lookup is held open at
//! its MDT, like one that a program has open, until the request that follows. A directory cannot be held; a request about
//! a name in one that was moved between MDTs, and so became another inode, is carried out in the inode that has the
//! directory's name by then.
//!
//! Callers in foreign PID namespaces have no numbers and do without.

use nacre_client::node::fid_of;
use nacre_client::{Absent, Caller, Client, Found, Held};
use nacre_env::clock::Instant;
use nacre_env::sync::Mutex;
use nacre_types::{Fid, Status, StatusResult};
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use super::names::Named;
use crate::request::{Operation, Request};

/// Lookups of a name whose file is gone before it can be held, or whose directory before it can be used.
const LOOKUPS_MAX: usize = 100;
/// Directories of a path whose names are remembered; that is deeper than paths usually are.
const DIRECTORIES_MAX: usize = 64;
/// Time after which a thread that sent no request any more has ended.
const FORGOTTEN: Duration = Duration::from_secs(10);
/// Threads at most; others do without.
const THREADS_MAX: usize = 1024;

/// A thread of a program whose last request was about a file that is gone.
struct Retry {
    since: Instant,
    /// File of the last lookup.
    held: Option<Held>,
    /// Directories of the second walk.
    directories: Vec<Directory>,
}

/// A directory that was looked up.
#[derive(Clone)]
struct Directory {
    fid: Fid,
    parent: Fid,
    name: Vec<u8>,
}

impl Retry {
    fn new() -> Retry {
        Retry { since: Instant::now(), held: None, directories: Vec::new() }
    }
}

/// See the [module documentation](self).
pub(super) struct Retries {
    client: Arc<Client>,
    /// By the kernel's number of the thread.
    threads: Mutex<HashMap<u32, Retry>>,
    /// Length of `threads`: nearly always 0.
    count: AtomicUsize,
}

impl Retries {
    pub(super) fn new(client: Arc<Client>) -> Retries {
        Retries { client, threads: Mutex::default(), count: AtomicUsize::new(0) }
    }

    /// Looks a name up. For a thread that looks it up once more, a regular file is held.
    pub(super) fn lookup(&self, caller: &Caller, at: &Named<'_>) -> StatusResult<Result<Found, Absent>> {
        let find = || self.client.names.lookup(caller, at.parent, at.name);
        let is_again =
            self.count.load(Ordering::Relaxed) > 0 && self.threads.lock().contains_key(&caller.pid);
        let mut found = find()?;
        if let Ok(directory) = &found
            && is_again
            && directory.attr.is_dir()
        {
            self.note_directory(caller.pid, directory.attr.fid, at);
        }
        for _ in 0..LOOKUPS_MAX {
            let file = match &found {
                Ok(file) if is_again && file.attr.is_regular() => file,
                _ => break,
            };
            match self.client.opens.hold(caller, file.attr.fid) {
                Err(Status::ENOENT | Status::ESTALE) => {
                    self.client.inodes.forget(file.node, 1);
                    found = find()?;
                }
                // The request that follows meets the same failure, and reports it.
                Err(_) => break,
                Ok(held) => {
                    self.keep(caller.pid, held);
                    break;
                }
            }
        }
        Ok(found)
    }

    fn note_directory(&self, thread: u32, fid: Fid, at: &Named<'_>) {
        let mut threads = self.threads.lock();
        if let Some(retry) = threads.get_mut(&thread)
            && retry.directories.len() < DIRECTORIES_MAX
        {
            retry.directories.push(Directory { fid, parent: at.parent, name: at.name.to_vec() });
        }
    }

    /// Carries a request out with `run`. After the second lookup of a directory, one about a name in it follows the
    /// directory for as long as it moves.
    pub(super) fn follow(
        &self,
        caller: &Caller,
        request: &Request<'_>,
        mut run: impl FnMut(&Request<'_>) -> StatusResult<()>,
    ) -> StatusResult<()> {
        let mut outcome = run(request);
        if outcome != Err(Status::ESTALE) || self.count.load(Ordering::Relaxed) == 0 {
            return outcome;
        }
        let directories = self.threads.lock().get(&caller.pid).map(|retry| retry.directories.clone());
        let mut directories = directories.unwrap_or_default();
        let mut request = *request;
        for _ in 0..LOOKUPS_MAX {
            let Some(moved) = self.in_place_of(caller, &request, &mut directories) else { break };
            request = moved;
            outcome = run(&request);
            if outcome != Err(Status::ESTALE) {
                break;
            }
        }
        outcome
    }

    /// Returns the request about names in the inodes that have the names of its directories now; `None` if these are
    /// the same ones.
    fn in_place_of<'a>(
        &self,
        caller: &Caller,
        request: &Request<'a>,
        directories: &mut [Directory],
    ) -> Option<Request<'a>> {
        let mut moved = *request;
        let mut now = |node: u64| self.now(caller, fid_of(node)?, directories).map(|fid| fid.inode_number());
        match &mut moved.op {
            Operation::Rename { new_parent, .. } => {
                let (from, to) = (now(moved.node_id), now(*new_parent));
                (moved.node_id, *new_parent) = (from.unwrap_or(moved.node_id), to.unwrap_or(*new_parent));
                from.or(to).map(|_| moved)
            }
            Operation::Create { .. }
            | Operation::Lookup { .. }
            | Operation::Link { .. }
            | Operation::MkDir { .. }
            | Operation::MkNod { .. }
            | Operation::RmDir { .. }
            | Operation::Symlink { .. }
            | Operation::Unlink { .. } => {
                moved.node_id = now(moved.node_id)?;
                Some(moved)
            }
            _ => None,
        }
    }

    /// Returns the inode that has the name of this directory now, if it is another one.
    fn now(&self, caller: &Caller, fid: Fid, directories: &mut [Directory]) -> Option<Fid> {
        let place = directories.iter().rposition(|directory| directory.fid == fid)?;
        let (above, rest) = directories.split_at_mut(place);
        let directory = rest.first_mut()?;
        if let Some(parent) = self.now(caller, directory.parent, above) {
            directory.parent = parent;
        }
        let found = self.client.names.lookup(caller, directory.parent, &directory.name).ok()?.ok()?;
        self.client.inodes.forget(found.node, 1);
        directory.fid = found.attr.fid;
        (found.attr.is_dir() && directory.fid != fid).then_some(directory.fid)
    }

    fn keep(&self, thread: u32, held: Held) {
        let before = match self.threads.lock().get_mut(&thread) {
            Some(retry) => retry.held.replace(held),
            None => Some(held),
        };
        self.end_all(before);
    }

    /// Notes the outcome of a request: after a lookup that succeeds, the one about the file follows.
    pub(super) fn ended(&self, request: &Request<'_>, outcome: &StatusResult<()>) {
        let is_stale = *outcome == Err(Status::ESTALE);
        if !is_stale && self.count.load(Ordering::Relaxed) == 0 {
            return;
        }
        let is_lookup = matches!(request.op, Operation::Lookup { .. });
        let mut ended = Vec::new();
        {
            let mut threads = self.threads.lock();
            if !is_lookup {
                ended.extend(threads.remove(&request.pid));
            }
            if is_stale && request.pid != 0 && threads.len() < THREADS_MAX {
                threads.entry(request.pid).or_insert_with(Retry::new);
            }
            ended.extend(
                threads.extract_if(|_, retry| retry.since.elapsed() > FORGOTTEN).map(|(_, retry)| retry),
            );
            self.count.store(threads.len(), Ordering::Relaxed);
        }
        self.end_all(ended.into_iter().filter_map(|retry| retry.held));
    }

    fn end_all(&self, held: impl IntoIterator<Item = Held>) {
        held.into_iter().for_each(|held| self.client.opens.end_hold(held));
    }
}
