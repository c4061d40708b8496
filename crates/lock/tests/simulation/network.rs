//! Messages in flight, and the source of randomness.

use nacre_lock::client;
use nacre_lock::server::GlimpseId;
use nacre_lock::{Enqueue, LockHandle, Lvb, Mode, Need, Outcome, Policy, ResourceId, Wanted};

/// Source of every choice of a run, from one seed.
pub use fastrand::Rng as Chance;

/// True with a probability of `percent` in a hundred.
pub fn percent(chance: &mut Chance, percent: u64) -> bool {
    chance.u64(..100) < percent
}

/// Messages of clients.
#[derive(Clone, Debug)]
pub enum Request {
    /// Numbered, so that an old connect is not taken for a new one. Carries the generation under which the
    /// client holds its locks.
    Connect {
        attempt: u64,
        holding: u64,
    },
    Enqueue(Enqueue),
    Cancel(LockHandle),
    Busy(LockHandle),
    Convert {
        handle: LockHandle,
        mode: Mode,
        policy: Policy,
    },
    GlimpseAnswer {
        glimpse: GlimpseId,
        handle: LockHandle,
        answer: Option<Lvb>,
    },
    Replay {
        handle: LockHandle,
        resource: ResourceId,
        need: Need,
    },
    ReplayDone,
}

/// State of the connection, as a client learns it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Connection {
    /// The server still has the client's locks.
    Same,
    /// The server has restarted and expects the client's locks.
    Restarted,
    /// The server does not know the client.
    Fresh,
}

/// Messages of the server.
#[derive(Clone, Debug)]
pub enum Message {
    Connected {
        attempt: u64,
        connection: Connection,
        generation: u64,
    },
    /// A message under this generation was refused.
    Stale,
    Outcome(LockHandle, Outcome),
    ReplayOutcome(LockHandle, Outcome),
    ReplayDoneHeard,
    Callback(LockHandle, Wanted),
    Glimpse(LockHandle, GlimpseId),
}

/// A scheduled event.
#[derive(Clone, Debug)]
pub enum Event {
    ToServer {
        from: usize,
        generation: u64,
        request: Request,
    },
    ToClient {
        to: usize,
        generation: u64,
        message: Message,
    },
    /// The client has completed a flush.
    Flushed {
        client: usize,
        effect: client::Effect,
    },
    /// A thread continues: releases its lock or starts something new.
    Thread {
        client: usize,
        thread: usize,
    },
    Tick,
    StopClient(usize),
    ResumeClient(usize),
    RestartServer,
    EndRecovery {
        instance: u64,
    },
}
