//! Time, the network, and the order of events.

use crate::network::{Chance, Event, Message, Request, percent};
use crate::node::{Node, Thread};
use crate::target::Target;
use nacre_env::clock::Instant;
use nacre_lock::{EnqueueFlags, Extent, InodeBits, Mode, Need, Peer, ResourceId};
use nacre_types::ClientUuid;
use std::collections::BTreeMap;
use std::time::Duration;

/// Last page of the range of an object that clients lock.
pub const LAST_PAGE: u64 = 16;
const TICK_MS: u64 = 100;

/// A client's identity is its number; 0 is the target itself.
pub fn peer_of(client: usize, generation: u64) -> Peer {
    Peer { client: ClientUuid([client as u8 + 1; 16]), generation }
}

/// The inverse of [`peer_of`].
pub fn number_of(peer: Peer) -> usize {
    usize::from(peer.client.0[0]) - 1
}

pub struct World {
    pub chance: Chance,
    pub clients: Vec<Node>,
    pub server: Target,
    /// True while messages are lost and repeated, clients stop, and the server restarts.
    pub faults: bool,
    /// True while threads start new work.
    pub working: bool,
    /// Hash of all events, to compare runs.
    pub trace: u64,
    begin: Instant,
    time_ms: u64,
    count: u64,
    events: BTreeMap<(u64, u64), Event>,
}

impl World {
    pub fn new(seed: u64, clients: usize, threads: usize) -> World {
        let mut world = World {
            chance: Chance::with_seed(seed),
            clients: (0..clients).map(|_| Node::new(threads)).collect(),
            server: Target::new(),
            faults: true,
            working: true,
            trace: 0,
            begin: Instant::now(),
            time_ms: 0,
            count: 0,
            events: BTreeMap::new(),
        };
        for client in 0..clients {
            world.connect(client);
            for thread in 0..threads {
                world.later(1, Event::Thread { client, thread });
            }
        }
        world.later(TICK_MS, Event::Tick);
        world
    }

    pub fn now(&self) -> Instant {
        self.begin + Duration::from_millis(self.time_ms)
    }

    pub fn later(&mut self, delay_ms: u64, event: Event) {
        self.count += 1;
        self.events.insert((self.time_ms + delay_ms, self.count), event);
    }

    pub fn send_to_server(&mut self, from: usize, request: Request) {
        let generation = self.clients[from].generation;
        self.send(Event::ToServer { from, generation, request });
    }

    pub fn send_to_client(&mut self, to: usize, generation: u64, message: Message) {
        self.send(Event::ToClient { to, generation, message });
    }

    /// Each message has its own delay, so messages overtake each other.
    fn send(&mut self, event: Event) {
        let copies = match (self.faults, self.chance.u64(..100)) {
            (true, 0..5) => 0,
            (true, 5..10) => 2,
            _ => 1,
        };
        for _ in 0..copies {
            let slow = percent(&mut self.chance, 3);
            let delay = 1 + self.chance.u64(..if slow { 3_000 } else { 60 });
            self.later(delay, event.clone());
        }
    }

    /// True if the server still has the locks that the client believes that it holds.
    pub fn is_live(&self, client: usize) -> bool {
        let generation = self.clients[client].generation;
        let expected = self.server.expected.contains(&client);
        self.server.engine.is_current(peer_of(client, generation))
            || expected && self.server.known.get(&client) == Some(&generation)
    }

    /// Advances the time and checks the invariants after every event.
    pub fn run(&mut self, time_ms: u64) {
        let end = self.time_ms + time_ms;
        while let Some(entry) = self.events.first_entry()
            && entry.key().0 <= end
        {
            let ((time_ms, _), event) = entry.remove_entry();
            self.time_ms = time_ms;
            self.trace = self.trace.rotate_left(5) ^ time_ms.wrapping_mul(31) ^ self.chance.get_seed();
            self.step(event);
            self.check_safety();
        }
        self.time_ms = end;
    }

    fn step(&mut self, event: Event) {
        let target = match &event {
            Event::ToClient { to, .. } => Some(*to),
            Event::Flushed { client, .. } | Event::Thread { client, .. } => Some(*client),
            _ => None,
        };
        if target.is_some_and(|client| self.clients[client].stopped) {
            return self.later(50, event);
        }
        match event {
            Event::ToServer { from, generation, request } => self.on_request(from, generation, request),
            Event::ToClient { to, generation, message } => self.on_message(to, generation, message),
            Event::Flushed { client, effect } => self.on_flushed(client, &effect),
            Event::Thread { client, thread } => self.on_thread(client, thread),
            Event::Tick => self.tick(),
            Event::StopClient(client) => {
                self.clients[client].stopped = true;
                let time = 1_000 + self.chance.u64(..14_000);
                self.later(time, Event::ResumeClient(client));
            }
            Event::ResumeClient(client) => self.clients[client].stopped = false,
            Event::RestartServer => self.restart_server(),
            Event::EndRecovery { instance } => self.end_recovery(instance),
        }
    }

    fn tick(&mut self) {
        let (now, mut effects) = (self.now(), Vec::new());
        self.server.engine.on_tick(now, &mut effects);
        self.send_all(effects);
        self.operate();
        for client in 0..self.clients.len() {
            if self.clients[client].stopped {
                continue;
            }
            self.with_client(client, |engine, now, effects| engine.on_tick(now, effects));
            if !self.clients[client].connected && percent(&mut self.chance, 30) {
                self.connect(client);
            }
            if !self.clients[client].replay_done {
                self.send_to_server(client, Request::ReplayDone);
            }
        }
        if self.faults {
            let client = self.chance.usize(..self.clients.len());
            match self.chance.u64(..1000) {
                0..8 if !self.clients[client].stopped => self.later(1, Event::StopClient(client)),
                10..14 => self.later(1, Event::RestartServer),
                20..40 => self.lost(client),
                _ => {}
            }
        }
        self.later(TICK_MS, Event::Tick);
    }

    /// Ends all faults: all clients run, no message is lost, and no thread starts new work. Waiting requests
    /// must be served.
    pub fn heal(&mut self) {
        self.faults = false;
        for client in &mut self.clients {
            client.stopped = false;
        }
        self.run(20_000);
        self.working = false;
        self.run(60_000);
        for (number, client) in self.clients.iter().enumerate() {
            assert!(client.connected, "client {number} has no connection");
            let waiting = client.threads.iter().find(|thread| **thread != Thread::Idle);
            assert_eq!(waiting, None, "client {number} still waits");
        }
    }

    /// Every client can have every lock, and releases it again.
    pub fn visit_all_and_leave_nothing(&mut self) {
        let whole = Need::extent(Mode::Ex, Extent::WHOLE);
        let all = Need::bits(Mode::Ex, InodeBits::ALL);
        for client in 0..self.clients.len() {
            for number in 1..=2 {
                for (resource, need) in
                    [(ResourceId([1, number, 0, 0]), whole), (ResourceId([9, number, 0, 0]), all)]
                {
                    self.start(client, 0, resource, need, EnqueueFlags::default());
                    self.run(10_000);
                    assert_eq!(
                        self.clients[client].threads[0],
                        Thread::Idle,
                        "client {client} on {resource}"
                    );
                }
            }
        }
        for client in 0..self.clients.len() {
            self.with_client(client, |engine, _, effects| engine.drop_unused(effects));
        }
        self.run(40_000);
        assert_eq!((self.server.engine.locks(), self.server.engine.resources()), (0, 0));
        for client in &self.clients {
            assert_eq!(client.engine.locks(), 0);
        }
    }
}
