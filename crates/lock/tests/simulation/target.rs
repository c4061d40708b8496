//! The server: the engine, the sizes of objects, and its stored clients.

use crate::network::{Connection, Event, Message, Request, percent};
use crate::world::{World, number_of, peer_of};
use nacre_lock::server::{Effect, LockServer, ServerConfig};
use nacre_lock::{
    Enqueue, EnqueueFlags, InodeBits, LockHandle, Lvb, Mode, Need, Outcome, Peer, Policy, ResourceId,
};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

pub struct Target {
    pub engine: LockServer,
    pub instance: u64,
    /// On disk: clients and their generations.
    pub known: BTreeMap<usize, u64>,
    /// On disk: sizes of objects.
    pub objects: BTreeMap<ResourceId, u64>,
    generations: u64,
    attempts: BTreeMap<usize, (u64, Message)>,
    /// Clients of the last run that have not replayed all their locks.
    pub expected: BTreeSet<usize>,
    pub evictions: u64,
    /// Locks of the target itself, for operations on behalf of clients.
    pub operations: BTreeMap<LockHandle, Operation>,
}

/// An operation of the service, which needs a lock.
pub struct Operation {
    pub resource: ResourceId,
    pub need: Need,
    pub on_behalf_of: usize,
    pub granted: bool,
}

impl Target {
    pub fn new() -> Target {
        Target {
            engine: LockServer::new(Target::config(), false),
            instance: 1,
            known: BTreeMap::new(),
            objects: BTreeMap::new(),
            generations: 0,
            attempts: BTreeMap::new(),
            expected: BTreeSet::new(),
            evictions: 0,
            operations: BTreeMap::new(),
        }
    }

    pub fn config() -> ServerConfig {
        ServerConfig {
            callback_timeout: Duration::from_secs(8),
            callback_retry: Duration::from_millis(500),
            ..ServerConfig::default()
        }
    }

    /// A write of a client arrives; false if it is refused.
    pub fn write(&mut self, client: usize, generation: u64, resource: &ResourceId, size: u64) -> bool {
        if !self.engine.is_current(peer_of(client, generation)) {
            return false;
        }
        let known = self.objects.entry(*resource).or_default();
        *known = size.max(*known);
        self.engine.update_lvb(resource, |lvb| lvb.size_bytes = lvb.size_bytes.max(size));
        true
    }

    fn lvb(&self, resource: &ResourceId, policy: &Policy) -> Option<Lvb> {
        let size_bytes = self.objects.get(resource).copied().unwrap_or_default();
        matches!(policy, Policy::Extent(_)).then_some(Lvb { size_bytes, ..Lvb::default() })
    }
}

impl World {
    pub fn on_request(&mut self, from: usize, generation: u64, request: Request) {
        let peer = peer_of(from, generation);
        if let Request::Connect { attempt, holding } = request {
            return self.on_connect(from, attempt, holding);
        }
        if !self.server.engine.is_current(peer) {
            return self.send_to_client(from, generation, Message::Stale);
        }
        let (now, mut effects) = (self.now(), Vec::new());
        let server = &mut self.server;
        match request {
            Request::Connect { .. } => {}
            Request::Enqueue(request) => {
                let lvb = server.lvb(&request.resource, &request.need.policy);
                let outcome = server.engine.on_enqueue(now, peer, &request, lvb, &mut effects);
                self.send_to_client(from, generation, Message::Outcome(request.handle, outcome));
            }
            Request::Cancel(handle) => server.engine.on_cancel(now, peer, &[handle], &mut effects),
            Request::Busy(handle) => server.engine.on_activity(now, peer, handle),
            Request::Convert { handle, mode, policy } => {
                // A convert that overtakes the grant's repetition may find a waiting request: then it belongs
                // to an earlier state of the lock.
                let _ = server.engine.on_convert(now, peer, handle, mode, &policy, &mut effects);
            }
            Request::GlimpseAnswer { glimpse, handle, answer } => {
                server.engine.on_glimpse_answer(now, peer, glimpse, handle, answer, &mut effects);
            }
            Request::Replay { handle, resource, need } => {
                let lvb = server.lvb(&resource, &need.policy);
                let outcome = server.engine.on_replay(peer, handle, &resource, &need, lvb);
                self.send_to_client(from, generation, Message::ReplayOutcome(handle, outcome));
            }
            Request::ReplayDone => {
                self.send_to_client(from, generation, Message::ReplayDoneHeard);
                self.server.expected.remove(&from);
                if self.server.expected.is_empty() {
                    self.server.engine.end_recovery(now, &mut effects);
                }
            }
        }
        self.send_all(effects);
    }

    fn on_connect(&mut self, from: usize, attempt: u64, holding: u64) {
        if let Some((known, answer)) = self.server.attempts.get(&from)
            && *known >= attempt
        {
            if *known == attempt {
                let answer = answer.clone();
                self.send_to_client(from, 0, answer);
            }
            return;
        }
        let (now, mut effects) = (self.now(), Vec::new());
        let server = &mut self.server;
        // A client that does not know of its last connect may still believe in locks from before its
        // eviction.
        let before = server.known.get(&from).copied().filter(|generation| *generation == holding);
        let alive = before.is_some() && server.engine.is_current(peer_of(from, holding));
        let returning = before.is_some() && server.expected.contains(&from);
        let connection = match (alive, returning) {
            (true, _) => Connection::Same,
            (false, true) => Connection::Restarted,
            (false, false) => Connection::Fresh,
        };
        if connection == Connection::Fresh {
            server.evictions += 1;
            if server.expected.remove(&from) && server.expected.is_empty() {
                server.engine.end_recovery(now, &mut effects);
            }
        }
        if !alive {
            server.generations += 1;
            server.known.insert(from, server.generations);
            server.engine.on_connect(now, peer_of(from, server.generations), &mut effects);
        }
        let generation = server.known[&from];
        let answer = Message::Connected { attempt, connection, generation };
        server.attempts.insert(from, (attempt, answer.clone()));
        self.send_to_client(from, 0, answer);
        self.send_all(effects);
    }

    pub fn send_all(&mut self, effects: Vec<Effect>) {
        let outcome = |handle: LockHandle, outcome| Message::Outcome(handle, outcome);
        for effect in effects {
            let (peer, message): (Peer, Message) = match effect {
                Effect::Completion { peer, handle, .. } if peer.is_local() => {
                    if let Some(operation) = self.server.operations.get_mut(&handle) {
                        operation.granted = true;
                    }
                    continue;
                }
                Effect::Completion { peer, handle, grant } => {
                    (peer, outcome(handle, Outcome::Granted(grant)))
                }
                Effect::Callback { peer, handle, wanted, .. } => (peer, Message::Callback(handle, wanted)),
                Effect::Glimpse { peer, handle, glimpse, .. } => (peer, Message::Glimpse(handle, glimpse)),
                Effect::Glimpsed { peer, handle, lvb } => (peer, outcome(handle, Outcome::Glimpsed(lvb))),
                Effect::Evict { peer } => {
                    self.server.evictions += 1;
                    self.server.known.remove(&number_of(peer));
                    continue;
                }
            };
            self.send_to_client(number_of(peer), peer.generation, message);
        }
    }

    pub fn restart_server(&mut self) {
        let server = &mut self.server;
        server.instance += 1;
        server.attempts.clear();
        server.operations.clear();
        server.expected = server.known.keys().copied().collect();
        server.engine = LockServer::new(Target::config(), true);
        let instance = server.instance;
        self.later(6_000, Event::EndRecovery { instance });
    }

    /// Gives up clients that have not reconnected, or have not replayed all their locks.
    pub fn end_recovery(&mut self, instance: u64) {
        if self.server.instance != instance || !self.server.engine.is_recovering() {
            return;
        }
        let (now, mut effects) = (self.now(), Vec::new());
        for client in std::mem::take(&mut self.server.expected) {
            self.server.evictions += 1;
            if let Some(generation) = self.server.known.remove(&client) {
                let peer = peer_of(client, generation);
                self.server.engine.on_disconnect(now, peer.client, &mut effects);
            }
        }
        self.server.engine.end_recovery(now, &mut effects);
        self.send_all(effects);
    }

    /// Operations that have their locks end; a new one may start.
    pub fn operate(&mut self) {
        let (now, mut effects) = (self.now(), Vec::new());
        let server = &mut self.server;
        let (ended, others) =
            std::mem::take(&mut server.operations).into_iter().partition(|(_, op)| op.granted);
        server.operations = others;
        let ended: BTreeMap<LockHandle, Operation> = ended;
        for handle in ended.into_keys() {
            server.engine.on_cancel(now, Peer::LOCAL, &[handle], &mut effects);
        }
        if self.working && !server.engine.is_recovering() && percent(&mut self.chance, 20) {
            let resource = ResourceId([9, 1 + self.chance.u64(..2), 0, 0]);
            let bits = InodeBits::from_bits(1 + self.chance.u64(..0x7f) as u8).expect("seven bits");
            let on_behalf_of = self.chance.usize(..self.clients.len());
            let (need, handle) = (Need::bits(Mode::Pw, bits), server.engine.local_handle());
            let (optional, flags) = (InodeBits::NONE, EnqueueFlags::default());
            let request = Enqueue { handle, resource, need, optional, flags };
            let client = Some(peer_of(on_behalf_of, 0).client);
            let outcome = server.engine.on_local_enqueue(now, &request, client, None, &mut effects);
            let granted = matches!(outcome, Outcome::Granted(_));
            server.operations.insert(handle, Operation { resource, need, on_behalf_of, granted });
        }
        self.send_all(effects);
    }
}
