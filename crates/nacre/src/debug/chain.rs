//! Chains of causes across the processes of a file system: what a request waits for, what that waits for, and so
//! on to the end.

use super::{
    BlockerShot, CauseShot, ClientShot, DebugState, LockServerShot, OperationShot, ThreadShot,
    operation_words, wait_words,
};
use serde::{Deserialize, Serialize};

/// Longest chain.
const LINKS_MAX: usize = 32;

/// A process of the file system, as far as it is known.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Process {
    /// Name, with the directory of its mount.
    pub name: String,
    /// Process id, if it runs.
    pub pid: Option<u32>,
    /// Targets that it serves.
    pub targets: Vec<String>,
    /// Its answer; none if it does not run or does not answer.
    #[serde(skip)]
    pub state: Option<DebugState>,
    /// Why there is no answer.
    pub trouble: Option<String>,
}

/// A link of a chain.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Link {
    /// Process, with its id.
    pub process: String,
    /// Id of the process, if it is known.
    pub pid: Option<u32>,
    /// The operation, lock or program, or the reason why the chain ends.
    pub what: String,
    /// What it waits for.
    pub waits_for: Option<String>,
    /// Duration of the wait.
    pub waits_ms: u64,
}

/// A request that waits, and why.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stuck {
    /// Time since its start.
    pub age_ms: u64,
    /// The operation; none for a wait of a thread of its own.
    pub operation: Option<OperationShot>,
    /// From the request to the end of what it waits for.
    pub chain: Vec<Link>,
}

/// Returns the requests that are older than `least_ms`, the oldest first, each with its chain. Requests that are
/// links of the chains of others are left out unless `all`.
pub fn stuck(processes: &[Process], least_ms: u64, all: bool) -> Vec<Stuck> {
    let world = World { processes };
    let mut found: Vec<(Stuck, Vec<Place>)> = Vec::new();
    for (number, process) in processes.iter().enumerate() {
        let Some(state) = &process.state else { continue };
        for (index, thread) in state.threads.iter().enumerate() {
            let age_ms = match (thread.operations.first(), &thread.wait) {
                (Some(operation), _) => operation.age_ms,
                (None, Some(wait)) if is_of_interest(&wait.cause) && thread.serves == 0 => wait.age_ms,
                _ => continue,
            };
            if age_ms < least_ms {
                continue;
            }
            let mut walk = Walk::default();
            world.follow(&mut walk, Place(number, index));
            let operation = thread.operations.first().cloned();
            found.push((Stuck { age_ms, operation, chain: walk.links }, walk.seen));
        }
    }
    found.sort_by_key(|(stuck, _)| std::cmp::Reverse(stuck.age_ms));
    let is_inner = |place: &Place| found.iter().any(|(_, seen)| seen.len() > 1 && seen[1..].contains(place));
    let inner: Vec<bool> = found.iter().map(|(_, seen)| seen.first().is_some_and(is_inner)).collect();
    let shown = found.into_iter().zip(inner);
    shown.filter(|(_, is_inner)| all || !is_inner).map(|((stuck, _), _)| stuck).collect()
}

/// Returns false for waits in which threads spend their idle time.
fn is_of_interest(cause: &CauseShot) -> bool {
    !matches!(cause, CauseShot::Place { .. })
        && !matches!(cause, CauseShot::Reply { target, .. } if target == "MGT")
}

/// A thread: number of its process, and its number there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Place(usize, usize);

#[derive(Default)]
struct Walk {
    links: Vec<Link>,
    seen: Vec<Place>,
}

struct World<'a> {
    processes: &'a [Process],
}

impl World<'_> {
    fn link(&self, process: usize, what: String) -> Link {
        let Process { name, pid, .. } = &self.processes[process];
        let process = match pid {
            Some(pid) => format!("{name} (pid {pid})"),
            None => name.clone(),
        };
        Link { process, pid: *pid, what, waits_for: None, waits_ms: 0 }
    }

    fn state(&self, process: usize) -> Option<&DebugState> {
        self.processes[process].state.as_ref()
    }

    fn thread(&self, Place(process, thread): Place) -> Option<&ThreadShot> {
        self.state(process)?.threads.get(thread)
    }

    /// Adds a thread, and what it waits for.
    fn follow(&self, walk: &mut Walk, place: Place) {
        let Some(thread) = self.thread(place) else { return };
        if walk.seen.contains(&place) {
            let link = self.link(place.0, format!("thread {} again: a deadlock", thread.name));
            walk.links.push(link);
            return;
        }
        if walk.links.len() >= LINKS_MAX {
            return;
        }
        walk.seen.push(place);
        let what = match thread.operations.last() {
            Some(operation) => operation_words(operation),
            None => format!("thread {}", thread.name),
        };
        let mut link = self.link(place.0, what);
        let Some(wait) = &thread.wait else {
            link.waits_for = match thread.state {
                'D' => Some("a device".to_owned()),
                _ => None,
            };
            walk.links.push(link);
            return;
        };
        (link.waits_for, link.waits_ms) = (Some(wait_words(&wait.cause)), wait.age_ms);
        walk.links.push(link);
        self.follow_cause(walk, place, &wait.cause);
    }

    fn follow_cause(&self, walk: &mut Walk, place: Place, cause: &CauseShot) {
        let process = place.0;
        match cause {
            CauseShot::Reply { target, client, xid } => self.follow_reply(walk, target, client, *xid),
            CauseShot::Connection { target } => self.follow_server(walk, target),
            CauseShot::Slot { target } => self.follow_slot(walk, process, target),
            CauseShot::Lock { target, handle, .. } => self.follow_lock(walk, process, target, *handle),
            CauseShot::OwnLock { server, handle } => {
                let is_it = |known: &&LockServerShot| known.server == *server;
                let found = self.state(process).and_then(|state| state.lock_servers.iter().find(is_it));
                self.follow_queue(walk, process, found, "", *handle);
            }
            CauseShot::Turn { holder, ticket, .. } => self.follow_turn(walk, process, *holder, *ticket),
            CauseShot::Latch { holder } => self.follow_operation(walk, process, *holder),
            CauseShot::FileLock { client, pid, .. } => self.follow_program(walk, client, *pid),
            CauseShot::Lease => {
                let holders = self.state(process).into_iter().flat_map(|state| &state.mdts);
                let holder = holders.flat_map(|mdt| &mdt.lease_holders).next();
                if let Some(holder) = holder {
                    self.follow_client(walk, holder, "holds the lease of the MDT", 0);
                }
            }
            CauseShot::Recovery => self.follow_recovery(walk, process),
            CauseShot::Transaction { coordinator, .. } => self.follow_server(walk, coordinator),
            CauseShot::Place { .. } => self.follow_helpers(walk, place),
        }
    }

    /// Returns the process that serves a target, whose data part has a number of its own.
    fn server_of(&self, target: &str) -> Option<usize> {
        let serves = |process: &Process| {
            let locks = process.state.iter().flat_map(|state| &state.lock_servers);
            process.targets.iter().any(|known| known == target)
                || locks.into_iter().any(|known| known.target == target)
        };
        self.processes.iter().position(serves)
    }

    /// Adds the process of a target if it does not answer; returns its number if it does.
    fn answering(&self, walk: &mut Walk, target: &str) -> Option<usize> {
        let Some(server) = self.server_of(target) else {
            walk.links.push(Link {
                process: target.to_owned(),
                pid: None,
                what: "its process is on another host, or does not run: see 'nacre status'".to_owned(),
                waits_for: None,
                waits_ms: 0,
            });
            return None;
        };
        self.add_trouble(walk, server, "").then_some(server)
    }

    /// Adds a process that does not answer, with the reason; returns true if it answers.
    fn add_trouble(&self, walk: &mut Walk, process: usize, role: &str) -> bool {
        let Some(trouble) = &self.processes[process].trouble else { return true };
        let what = if role.is_empty() { trouble.clone() } else { format!("{role}; {trouble}") };
        walk.links.push(self.link(process, what));
        false
    }

    fn follow_server(&self, walk: &mut Walk, target: &str) {
        if let Some(server) = self.answering(walk, target) {
            walk.links.push(self.link(server, format!("serves {target}, and answers")));
        }
    }

    fn follow_reply(&self, walk: &mut Walk, target: &str, client: &str, xid: u64) {
        let Some(server) = self.answering(walk, target) else { return };
        let is_it =
            |operation: &OperationShot| operation.xid == xid && operation.client.as_deref() == Some(client);
        match self.find(server, |thread| thread.operations.iter().any(is_it)) {
            Some(place) => self.follow(walk, place),
            None => {
                let what =
                    format!("{target} does not execute the request: it is on its way, or its reply is");
                walk.links.push(self.link(server, what));
            }
        }
    }

    fn follow_slot(&self, walk: &mut Walk, process: usize, target: &str) {
        let is_it = |thread: &ThreadShot| matches!(&thread.wait, Some(wait) if matches!(&wait.cause, CauseShot::Reply { target: of, .. } if of == target));
        if let Some(place) = self.find(process, is_it) {
            self.follow(walk, place);
        }
    }

    fn find(&self, process: usize, is_it: impl Fn(&ThreadShot) -> bool) -> Option<Place> {
        let threads = &self.state(process)?.threads;
        threads.iter().position(is_it).map(|thread| Place(process, thread))
    }

    fn follow_operation(&self, walk: &mut Walk, process: usize, id: u64) {
        let is_it = |thread: &ThreadShot| thread.operations.iter().any(|operation| operation.id == id);
        match self.find(process, is_it).filter(|_| id != 0) {
            Some(place) => self.follow(walk, place),
            None => walk.links.push(self.link(process, "the operation has ended meanwhile".to_owned())),
        }
    }

    /// Follows the operation, or the transaction, that keeps an inode.
    fn follow_turn(&self, walk: &mut Walk, process: usize, holder: u64, ticket: u64) {
        let is_it = |thread: &ThreadShot| thread.operations.iter().any(|operation| operation.id == holder);
        if let Some(place) = self.find(process, is_it).filter(|_| holder != 0) {
            return self.follow(walk, place);
        }
        let transactions = self.state(process).into_iter().flat_map(|state| &state.mdts);
        let kept = transactions.flat_map(|mdt| &mdt.transactions).find(|one| one.ticket == ticket);
        match kept {
            Some(kept) => {
                let mut link =
                    self.link(process, format!("transaction {} of {}", kept.number, kept.coordinator));
                link.waits_for = Some(format!("the decision of {}", kept.coordinator));
                link.waits_ms = kept.age_ms;
                walk.links.push(link);
                self.follow_server(walk, &kept.coordinator);
            }
            None => walk.links.push(self.link(process, "the operation has ended meanwhile".to_owned())),
        }
    }

    fn follow_lock(&self, walk: &mut Walk, process: usize, target: &str, handle: u64) {
        let Some(server) = self.answering(walk, target) else { return };
        let client = self.state(process).map_or("", |state| state.client.as_str());
        let is_it = |known: &&LockServerShot| known.target == target;
        let found = self.state(server).and_then(|state| state.lock_servers.iter().find(is_it));
        self.follow_queue(walk, server, found, client, handle);
    }

    /// Follows what is in the way of a request in the queue of a lock server.
    fn follow_queue(
        &self,
        walk: &mut Walk,
        process: usize,
        server: Option<&LockServerShot>,
        client: &str,
        handle: u64,
    ) {
        let Some(server) = server else { return };
        let waiting = server.waits.iter().find(|wait| wait.client == client && wait.handle == handle);
        let Some(wait) = waiting else {
            let what = "the lock server has no such request waiting: it was granted meanwhile";
            walk.links.push(self.link(process, what.to_owned()));
            return;
        };
        // Of several holders, one that does not answer is the reason.
        let is_silent = |blocker: &&BlockerShot| {
            self.process_of(&blocker.client).is_some_and(|holder| self.processes[holder].trouble.is_some())
        };
        let blockers = &wait.blockers;
        let Some(blocker) = blockers.iter().find(is_silent).or(blockers.first()) else { return };
        if blocker.client.is_empty() {
            let holder = server.holders.iter().find(|(lock, _)| *lock == blocker.handle);
            return self.follow_operation(walk, process, holder.map_or(0, |(_, holder)| *holder));
        }
        if !blocker.is_granted {
            return self.follow_queue(walk, process, Some(server), &blocker.client, blocker.handle);
        }
        let mut role = format!("holds lock {:#x} ({}) on {}", blocker.handle, blocker.need, wait.resource);
        if let Some(ms) = blocker.called_for_ms {
            role.push_str(&format!(", called {} ago", time(ms)));
        }
        if let Some(ms) = blocker.evicted_in_ms {
            role.push_str(&format!(", evicted in {}", time(ms)));
        }
        self.follow_client(walk, &blocker.client, &role, blocker.handle);
    }

    /// Returns how a server knows a client.
    fn client_shot(&self, client: &str) -> Option<&ClientShot> {
        let states = self.processes.iter().filter_map(|process| process.state.as_ref());
        let locks = states.clone().flat_map(|state| &state.lock_servers).flat_map(|server| &server.clients);
        let mdts = states.flat_map(|state| &state.mdts).flat_map(|mdt| &mdt.clients);
        let mut known = locks.chain(mdts).filter(|shot| shot.client == client);
        let first = known.next();
        known.find(|shot| shot.pid.is_some()).or(first)
    }

    /// Returns the process of a client.
    fn process_of(&self, client: &str) -> Option<usize> {
        let is_its = |process: &Process| process.state.as_ref().is_some_and(|state| state.client == client);
        let by_pid = || {
            let pid = self.client_shot(client)?.pid?;
            self.processes.iter().position(|process| process.pid == Some(pid))
        };
        self.processes.iter().position(is_its).or_else(by_pid)
    }

    /// Follows the client that holds something.
    fn follow_client(&self, walk: &mut Walk, client: &str, role: &str, lock: u64) {
        let Some(process) = self.process_of(client) else {
            let (nid, pid) =
                self.client_shot(client).map_or(("?", None), |shot| (shot.nid.as_str(), shot.pid));
            walk.links.push(Link {
                process: format!("client {client} at {nid}"),
                pid,
                what: format!("{role}; it is not a process of this host"),
                waits_for: None,
                waits_ms: 0,
            });
            return;
        };
        if !self.add_trouble(walk, process, role) {
            return;
        }
        walk.links.push(self.link(process, role.to_owned()));
        let is_it = |thread: &ThreadShot| lock != 0 && thread.operations.iter().any(|one| one.lock == lock);
        if let Some(place) = self.find(process, is_it) {
            self.follow(walk, place);
        }
    }

    fn follow_program(&self, walk: &mut Walk, client: &str, pid: u32) {
        let what = format!("its program {pid} holds the file lock");
        match self.process_of(client) {
            Some(process) => {
                let mut link = self.link(process, what);
                link.what.push_str(&program_words(pid));
                walk.links.push(link);
            }
            None => self.follow_client(walk, client, &what, 0),
        }
    }

    fn follow_recovery(&self, walk: &mut Walk, process: usize) {
        let servers = self.state(process).into_iter().flat_map(|state| &state.lock_servers);
        let mut awaited: Vec<&str> =
            servers.flat_map(|server| server.awaited.iter().map(String::as_str)).collect();
        awaited.sort_unstable();
        awaited.dedup();
        for client in awaited {
            self.follow_client(walk, client, "is awaited", 0);
        }
    }

    /// Follows a thread that works for this one.
    fn follow_helpers(&self, walk: &mut Walk, place: Place) {
        let Some(thread) = self.thread(place) else { return };
        let ids: Vec<u64> = thread.operations.iter().map(|operation| operation.id).collect();
        let helps = |thread: &ThreadShot| ids.contains(&thread.serves) && thread.wait.is_some();
        if let Some(place) = self.find(place.0, helps) {
            self.follow(walk, place);
        }
    }
}

/// Describes the state of a program of this host, if there is one.
fn program_words(pid: u32) -> String {
    let name = std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    match name.trim() {
        "" => String::new(),
        name if i32::try_from(pid).is_ok_and(crate::process::is_stopped) => {
            format!(" ({name}, stopped by a signal)")
        }
        name => format!(" ({name})"),
    }
}

/// Returns a duration in words.
pub fn time(ms: u64) -> String {
    format!("{}.{} s", ms / 1000, ms % 1000 / 100)
}

#[cfg(test)]
mod tests;
