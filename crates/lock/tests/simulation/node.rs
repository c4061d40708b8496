//! A client: the engine, threads that need locks, dirty data.

use crate::network::{Chance, Connection, Event, Message, Request, percent};
use crate::world::{LAST_PAGE, World};
use nacre_lock::client::{Acquire, ClientConfig, Effect, LockClient};
use nacre_lock::{EnqueueFlags, Extent, InodeBits, LockHandle, Lvb, Mode, Need, Policy, Refusal, ResourceId};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// State of a thread.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Thread {
    Idle,
    /// Waits for a lock, or for a glimpse whose size is not below the given bytes unless a client is evicted
    /// meanwhile.
    Waiting {
        handle: LockHandle,
        resource: ResourceId,
        need: Need,
        floor: Option<(u64, u64)>,
    },
    Using(LockHandle),
}

pub struct Node {
    pub engine: LockClient,
    pub generation: u64,
    pub connected: bool,
    pub attempt: u64,
    pub stopped: bool,
    pub replay_done: bool,
    pub threads: Vec<Thread>,
    /// Locks that the client believes that it holds.
    pub believed: BTreeMap<LockHandle, ResourceId>,
    /// Sizes that it has written and not sent yet.
    pub dirty: BTreeMap<ResourceId, u64>,
    pub evictions: u64,
}

impl Node {
    pub fn new(threads: usize) -> Node {
        let config = ClientConfig {
            lru_size: 6,
            lru_max_age: Duration::from_secs(40),
            resend_after: Duration::from_secs(1),
            downgrade: true,
            keep_parts: true,
        };
        Node {
            engine: LockClient::new(config),
            generation: 0,
            connected: false,
            attempt: 0,
            stopped: false,
            replay_done: true,
            threads: vec![Thread::Idle; threads],
            believed: BTreeMap::new(),
            dirty: BTreeMap::new(),
            evictions: 0,
        }
    }
}

/// Returns a random need, and its resource.
pub fn random_need(chance: &mut Chance) -> (ResourceId, Need) {
    let mode = [Mode::Ex, Mode::Pw, Mode::Pw, Mode::Pr, Mode::Pr, Mode::Pr, Mode::Cw, Mode::Cr]
        [chance.u64(..8) as usize];
    if percent(chance, 40) {
        let inode = ResourceId([9, 1 + chance.u64(..2), 0, 0]);
        let bits = InodeBits::from_bits(1 + chance.u64(..0x7f) as u8).expect("seven bits");
        return (inode, Need::bits(mode, bits));
    }
    let object = ResourceId([1, 1 + chance.u64(..2), 0, 0]);
    if percent(chance, 5) {
        return (object, Need::group(1 + chance.u64(..2)));
    }
    let first = chance.u64(..LAST_PAGE);
    let last = if percent(chance, 20) { Extent::EOF } else { (first + 1 + chance.u64(..4)) * 4096 - 1 };
    (object, Need::extent(mode, Extent { start: first * 4096, last }))
}

impl World {
    /// Calls a client's engine, and performs the effects.
    pub fn with_client(
        &mut self,
        client: usize,
        call: impl FnOnce(&mut LockClient, nacre_env::clock::Instant, &mut Vec<Effect>),
    ) {
        let (now, mut effects) = (self.now(), Vec::new());
        call(&mut self.clients[client].engine, now, &mut effects);
        for effect in effects {
            self.perform(client, effect);
        }
    }

    fn perform(&mut self, client: usize, effect: Effect) {
        match effect {
            Effect::SendEnqueue(request) => self.send_to_server(client, Request::Enqueue(request)),
            Effect::SendCancel(handle) => {
                self.clients[client].believed.remove(&handle);
                self.send_to_server(client, Request::Cancel(handle));
            }
            Effect::SendConvert { handle, mode, policy } => {
                self.send_to_server(client, Request::Convert { handle, mode, policy });
            }
            Effect::SendBusy(handle) => self.send_to_server(client, Request::Busy(handle)),
            Effect::SendReplay { handle, resource, need } => {
                self.send_to_server(client, Request::Replay { handle, resource, need });
            }
            Effect::SendReplayDone => self.clients[client].replay_done = false,
            Effect::Ready { handle } => self.wake(client, handle, None),
            Effect::Glimpsed { handle, lvb } => self.wake(client, handle, Some(lvb)),
            Effect::Failed { handle, refusal } => {
                let expected = matches!(
                    refusal,
                    Refusal::Stale | Refusal::WouldBlock | Refusal::Contended { .. } | Refusal::TooMany
                );
                assert!(expected, "client {client}, {handle:?}: {refusal:?}");
                self.end_wait(client, handle);
            }
            Effect::Flush { .. } => {
                let time = 1 + self.chance.u64(..300);
                self.later(time, Event::Flushed { client, effect });
            }
            Effect::Discard { handle, resource, .. } => {
                self.clients[client].believed.remove(&handle);
                self.clients[client].dirty.remove(&resource);
            }
            Effect::Reconnect => self.lost(client),
        }
    }

    pub fn on_flushed(&mut self, client: usize, effect: &Effect) {
        let Effect::Flush { handle, resource, .. } = effect else { return };
        if self.clients[client].engine.held(*handle).is_none() {
            return;
        }
        let generation = self.clients[client].generation;
        if let Some(size) = self.clients[client].dirty.get(resource).copied() {
            // The write is a request of its own that is answered before the cancel is sent.
            if !self.server.write(client, generation, resource, size) {
                self.later(500, Event::Flushed { client, effect: *effect });
                return self.lost(client);
            }
            self.clients[client].dirty.remove(resource);
        }
        self.with_client(client, |engine, now, effects| engine.on_flushed(now, *handle, effects));
        if self.clients[client].engine.held(*handle).is_none() {
            self.clients[client].believed.remove(handle);
        }
    }

    pub fn on_message(&mut self, client: usize, generation: u64, message: Message) {
        let node = &mut self.clients[client];
        if let Message::Connected { attempt, connection, generation } = message {
            if node.connected || attempt != node.attempt {
                return;
            }
            let known = node.generation != 0;
            if connection == Connection::Fresh && known {
                node.evictions += 1;
                self.with_client(client, |engine, _, effects| engine.on_evicted(effects));
            }
            let node = &mut self.clients[client];
            (node.generation, node.connected) = (generation, true);
            return self.with_client(client, |engine, now, effects| match connection {
                Connection::Restarted => engine.on_restarted(now, effects),
                _ => engine.on_connected(now, effects),
            });
        }
        if generation != node.generation || !node.connected {
            return;
        }
        match message {
            Message::Connected { .. } => {}
            Message::Stale => self.lost(client),
            Message::ReplayDoneHeard => node.replay_done = true,
            Message::Outcome(handle, outcome) => {
                self.with_client(client, |engine, now, effects| {
                    engine.on_outcome(now, handle, &outcome, effects);
                });
            }
            Message::ReplayOutcome(handle, outcome) => {
                self.with_client(client, |engine, now, effects| {
                    engine.on_replay_outcome(now, handle, &outcome, effects);
                });
            }
            Message::Callback(handle, wanted) => {
                self.with_client(client, |engine, _, effects| engine.on_callback(handle, &wanted, effects));
            }
            Message::Glimpse(handle, glimpse) => {
                let resource = node.engine.resource_of(handle);
                let size = |resource| node.dirty.get(&resource).copied().unwrap_or_default();
                let answer = resource.map(|resource| Lvb { size_bytes: size(resource), ..Lvb::default() });
                self.send_to_server(client, Request::GlimpseAnswer { glimpse, handle, answer });
            }
        }
    }

    /// The connection is unusable: connects again.
    pub fn lost(&mut self, client: usize) {
        let node = &mut self.clients[client];
        if std::mem::take(&mut node.connected) {
            node.attempt += 1;
            node.replay_done = true;
            self.with_client(client, |engine, _, _| engine.on_disconnected());
            self.connect(client);
        }
    }

    pub fn connect(&mut self, client: usize) {
        let Node { attempt, generation: holding, .. } = self.clients[client];
        self.send_to_server(client, Request::Connect { attempt, holding });
    }

    fn wake(&mut self, client: usize, handle: LockHandle, glimpsed: Option<Lvb>) {
        for thread in 0..self.clients[client].threads.len() {
            let Thread::Waiting { handle: waited, resource, need, floor } =
                self.clients[client].threads[thread]
            else {
                continue;
            };
            if waited != handle {
                continue;
            }
            if let (Some(lvb), Some((size, evictions))) = (glimpsed, floor)
                && evictions == self.server.evictions
            {
                assert!(lvb.size_bytes >= size, "glimpsed {} of {size} bytes", lvb.size_bytes);
            }
            match glimpsed {
                Some(_) => self.clients[client].threads[thread] = Thread::Idle,
                None => self.use_lock(client, thread, handle, resource, &need),
            }
        }
    }

    fn end_wait(&mut self, client: usize, handle: LockHandle) {
        for thread in &mut self.clients[client].threads {
            if matches!(thread, Thread::Waiting { handle: waited, .. } if *waited == handle) {
                *thread = Thread::Idle;
            }
        }
    }

    fn use_lock(
        &mut self,
        client: usize,
        thread: usize,
        handle: LockHandle,
        resource: ResourceId,
        need: &Need,
    ) {
        let node = &mut self.clients[client];
        node.threads[thread] = Thread::Using(handle);
        node.believed.insert(handle, resource);
        let held = node.engine.held(handle).expect("it is ready");
        assert!(held.serves(need), "{held:?} for {need:?}");
        if let Policy::Extent(extent) = need.policy
            && need.mode.writes()
        {
            let last = extent.last.min(extent.start + 4 * 4096);
            let size = extent.start + 1 + self.chance.u64(..last - extent.start + 1);
            let dirty = node.dirty.entry(resource).or_default();
            *dirty = size.max(*dirty);
        }
        let time = 1 + self.chance.u64(..400);
        self.later(time, Event::Thread { client, thread });
    }

    pub fn on_thread(&mut self, client: usize, thread: usize) {
        match self.clients[client].threads[thread] {
            Thread::Using(handle) => {
                self.clients[client].threads[thread] = Thread::Idle;
                self.with_client(client, |engine, now, effects| engine.release(now, handle, effects));
            }
            // The wait is interrupted.
            Thread::Waiting { handle, .. } if percent(&mut self.chance, 10) && self.faults => {
                self.clients[client].threads[thread] = Thread::Idle;
                self.with_client(client, |engine, now, effects| engine.release(now, handle, effects));
            }
            Thread::Idle if self.working => {
                if percent(&mut self.chance, 10) {
                    self.cancel_early(client);
                }
                let (resource, need) = random_need(&mut self.chance);
                let glimpse = matches!(need.policy, Policy::Extent(_))
                    && need.mode == Mode::Pr
                    && percent(&mut self.chance, 30);
                let flags = EnqueueFlags {
                    glimpse,
                    no_wait: !glimpse && percent(&mut self.chance, 5),
                    no_expansion: percent(&mut self.chance, 10),
                    deny_on_contention: percent(&mut self.chance, 5),
                };
                let need = if glimpse { Need::extent(Mode::Pr, Extent::WHOLE) } else { need };
                self.start(client, thread, resource, need, flags);
            }
            _ => {}
        }
        if self.working {
            let time = 1 + self.chance.u64(..300);
            self.later(time, Event::Thread { client, thread });
        }
    }

    /// An operation is about to be sent: cancels of locks that it would revoke travel with it.
    fn cancel_early(&mut self, client: usize) {
        let (resource, need) = random_need(&mut self.chance);
        for cancel in self.clients[client].engine.early_cancels(&resource, &need, 4) {
            self.clients[client].believed.remove(&cancel.handle);
            self.send_to_server(client, Request::Cancel(cancel.handle));
        }
    }

    /// A thread requests a lock.
    pub fn start(
        &mut self,
        client: usize,
        thread: usize,
        resource: ResourceId,
        need: Need,
        flags: EnqueueFlags,
    ) {
        let floor = flags.glimpse.then(|| (self.known_size(&resource), self.server.evictions));
        let mut acquired = Acquire::Contended;
        self.with_client(client, |engine, now, effects| {
            acquired = engine.acquire(now, &resource, &need, InodeBits::NONE, flags, effects);
        });
        match acquired {
            Acquire::Held(handle) => self.use_lock(client, thread, handle, resource, &need),
            Acquire::Pending(handle) => {
                self.clients[client].threads[thread] = Thread::Waiting { handle, resource, need, floor };
            }
            Acquire::Contended => {}
        }
    }

    /// Lower bound for a size that is asked for now: the size of the object, and what live clients have
    /// written.
    fn known_size(&self, resource: &ResourceId) -> u64 {
        let live = (0..self.clients.len()).filter(|client| self.is_live(*client));
        let dirty = live.filter_map(|client| self.clients[client].dirty.get(resource).copied());
        dirty.chain(self.server.objects.get(resource).copied()).max().unwrap_or_default()
    }

    /// Checks that no two live clients believe that they hold conflicting locks, and no client conflicts with
    /// the server's lock for another client's operation.
    pub fn check_safety(&self) {
        let live: Vec<usize> = (0..self.clients.len()).filter(|client| self.is_live(*client)).collect();
        let mut held: Vec<(usize, ResourceId, Need)> = Vec::new();
        for client in live {
            let node = &self.clients[client];
            let believed: BTreeSet<_> = node.believed.iter().collect();
            for (handle, resource) in believed {
                if let Some(need) = node.engine.held(*handle) {
                    held.push((client, *resource, need));
                }
            }
        }
        for operation in self.server.operations.values().filter(|operation| operation.granted) {
            for (client, resource, need) in &held {
                let fight = *client != operation.on_behalf_of
                    && *resource == operation.resource
                    && need.conflicts_with(&operation.need);
                assert!(!fight, "client {client} has {need:?} on {resource} beside {:?}", operation.need);
            }
        }
        for (place, (client, resource, need)) in held.iter().enumerate() {
            for (other, second, wanted) in &held[place + 1..] {
                let fight = client != other && resource == second && need.conflicts_with(wanted);
                assert!(!fight, "clients {client} and {other} on {resource}: {need:?} and {wanted:?}");
            }
        }
    }
}
