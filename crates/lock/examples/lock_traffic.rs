//! Lock traffic of processes that write interleaved records into one file:
//! `cargo run --release -p nacre-lock --example lock_traffic`.
//!
//! Client i of n writes records i, i + n, i + 2n ... One client acts per step, round robin, and a message
//! takes `delay` steps, so that requests meet each other at the server as they do on a network. Counted per
//! record: lock requests, callbacks, and writes under the server's own lock because of contention.

use nacre_env::clock::Instant;
use nacre_lock::client::{Acquire, ClientConfig, Effect as Todo, LockClient};
use nacre_lock::server::{Effect, LockServer, ServerConfig};
use nacre_lock::{
    Enqueue, EnqueueFlags, Extent, InodeBits, LockHandle, Mode, Need, Outcome, Peer, ResourceId, Wanted,
};
use nacre_types::ClientUuid;
use std::collections::VecDeque;
use std::time::Duration;

const RECORDS: u64 = 512;
const OBJECT: ResourceId = ResourceId([1, 1, 0, 0]);

enum Message {
    Enqueue(usize, Enqueue),
    Cancel(usize, LockHandle),
    Outcome(usize, LockHandle, Outcome),
    Callback(usize, LockHandle, Wanted),
}

struct Writer {
    engine: LockClient,
    next: u64,
    waiting: Option<LockHandle>,
}

struct World {
    server: LockServer,
    writers: Vec<Writer>,
    /// Messages by the step in which they arrive.
    wire: VecDeque<(u64, Message)>,
    turn: u64,
    delay: u64,
    begin: Instant,
    lockless: u64,
}

fn peer(writer: usize) -> Peer {
    Peer { client: ClientUuid([writer as u8 + 1; 16]), generation: 1 }
}

impl World {
    fn new(writers: usize, delay: u64) -> World {
        let (begin, mut effects) = (Instant::now(), Vec::new());
        let mut server = LockServer::new(ServerConfig::default(), false);
        let writers = (0..writers)
            .map(|writer| {
                server.on_connect(begin, peer(writer), &mut effects);
                let mut engine = LockClient::new(ClientConfig::default());
                engine.on_connected(begin, &mut Vec::new());
                Writer { engine, next: writer as u64, waiting: None }
            })
            .collect();
        World { server, writers, wire: VecDeque::new(), turn: 0, delay, begin, lockless: 0 }
    }

    /// A step takes 100 us.
    fn now(&self) -> Instant {
        self.begin + Duration::from_micros(100 * self.turn)
    }

    fn send(&mut self, message: Message) {
        self.wire.push_back((self.turn + self.delay, message));
    }

    fn arrive(&mut self, message: Message) {
        let (now, mut effects, mut todo) = (self.now(), Vec::new(), Vec::new());
        match message {
            Message::Enqueue(from, request) => {
                let outcome = self.server.on_enqueue(now, peer(from), &request, None, &mut effects);
                self.send(Message::Outcome(from, request.handle, outcome));
            }
            Message::Cancel(from, handle) => self.server.on_cancel(now, peer(from), &[handle], &mut effects),
            Message::Outcome(to, handle, outcome) => {
                self.writers[to].engine.on_outcome(now, handle, &outcome, &mut todo);
                self.perform(to, todo);
            }
            Message::Callback(to, handle, wanted) => {
                self.writers[to].engine.on_callback(handle, &wanted, &mut todo);
                self.perform(to, todo);
            }
        }
        self.perform_server(effects);
    }

    fn perform_server(&mut self, effects: Vec<Effect>) {
        for effect in effects {
            match effect {
                Effect::Completion { peer, handle, grant } if !peer.is_local() => {
                    let to = usize::from(peer.client.0[0]) - 1;
                    self.send(Message::Outcome(to, handle, Outcome::Granted(grant)));
                }
                Effect::Completion { handle, .. } => {
                    let (now, mut effects) = (self.now(), Vec::new());
                    self.server.on_cancel(now, Peer::LOCAL, &[handle], &mut effects);
                    self.perform_server(effects);
                }
                Effect::Callback { peer, handle, wanted, .. } => {
                    let to = usize::from(peer.client.0[0]) - 1;
                    self.send(Message::Callback(to, handle, wanted));
                }
                other => panic!("not expected here: {other:?}"),
            }
        }
    }

    fn perform(&mut self, writer: usize, todo: Vec<Todo>) {
        for effect in todo {
            match effect {
                Todo::SendEnqueue(request) => self.send(Message::Enqueue(writer, request)),
                Todo::SendCancel(handle) => self.send(Message::Cancel(writer, handle)),
                Todo::Flush { handle, .. } => {
                    let (now, mut more) = (self.now(), Vec::new());
                    self.writers[writer].engine.on_flushed(now, handle, &mut more);
                    self.perform(writer, more);
                }
                Todo::Ready { handle } => self.wrote(writer, handle),
                Todo::Failed { .. } => self.writers[writer].waiting = None,
                _ => {}
            }
        }
    }

    fn wrote(&mut self, writer: usize, handle: LockHandle) {
        let (now, mut todo, step) = (self.now(), Vec::new(), self.writers.len() as u64);
        let this = &mut self.writers[writer];
        (this.next, this.waiting) = (this.next + step, None);
        this.engine.release(now, handle, &mut todo);
        self.perform(writer, todo);
    }

    fn step(&mut self, writer: usize, record_bytes: u64, flags: EnqueueFlags) {
        let (now, mut todo, step) = (self.now(), Vec::new(), self.writers.len() as u64);
        let this = &mut self.writers[writer];
        if this.waiting.is_some() || this.next >= RECORDS {
            return;
        }
        let start = this.next * record_bytes;
        // Clients request whole pages.
        let extent = Extent { start, last: start + record_bytes - 1 }.aligned_to_pages();
        let need = Need::extent(Mode::Pw, extent);
        match this.engine.acquire(now, &OBJECT, &need, InodeBits::NONE, flags, &mut todo) {
            Acquire::Held(handle) => self.wrote(writer, handle),
            Acquire::Pending(handle) => this.waiting = Some(handle),
            Acquire::Contended => {
                this.next += step;
                self.lockless += 1;
                let handle = self.server.local_handle();
                let (resource, optional) = (OBJECT, InodeBits::NONE);
                let request = Enqueue { handle, resource, need, optional, flags: EnqueueFlags::default() };
                let mut effects = Vec::new();
                let outcome = self.server.on_local_enqueue(now, &request, None, None, &mut effects);
                if matches!(outcome, Outcome::Granted(_)) {
                    self.server.on_cancel(now, Peer::LOCAL, &[handle], &mut effects);
                }
                self.perform_server(effects);
            }
        }
        self.perform(writer, todo);
    }

    fn run(&mut self, record_bytes: u64, flags: EnqueueFlags) {
        while self.writers.iter().any(|writer| writer.next < RECORDS) {
            self.turn += 1;
            while self.wire.front().is_some_and(|(turn, _)| *turn <= self.turn)
                && let Some((_, message)) = self.wire.pop_front()
            {
                self.arrive(message);
            }
            for writer in 0..self.writers.len() {
                self.step(writer, record_bytes, flags);
            }
        }
    }
}

fn main() {
    println!(
        "{:>8} {:>7} {:>14} {:>9} {:>9} {:>9} {:>6}",
        "record", "clients", "flags", "enqueues", "callbacks", "lockless", "turns"
    );
    let flags = |no_expansion, deny_on_contention| EnqueueFlags {
        no_expansion,
        deny_on_contention,
        ..EnqueueFlags::default()
    };
    let kinds = [
        ("grow", flags(false, false)),
        ("no expansion", flags(true, false)),
        ("may be denied", flags(false, true)),
    ];
    for record_bytes in [47_008, 65_536, 1 << 20] {
        for writers in [2, 4] {
            for (name, flags) in kinds {
                let mut world = World::new(writers, 3);
                world.run(record_bytes, flags);
                let enqueued: u64 = world.writers.iter().map(|writer| writer.engine.stats().enqueued).sum();
                let per = |count: u64| count as f64 / RECORDS as f64;
                let (callbacks, lockless) = (world.server.stats().callbacks, world.lockless);
                println!(
                    "{record_bytes:>8} {writers:>7} {name:>14} {:>9.2} {:>9.2} {:>9.2} {:>6.1}",
                    per(enqueued),
                    per(callbacks),
                    per(lockless),
                    per(world.turn)
                );
            }
        }
    }
}
