//! Messages on their way, and a source of chance.

use nacre_lock::client;
use nacre_lock::server::GlimpseId;
use nacre_lock::{Enqueue, LockHandle, Lvb, Mode, Need, Outcome, Policy, ResourceId, Wanted};

/// Every choice of a run comes from one seed.
pub use fastrand::Rng as Chance;

/// True in so many of a hundred cases.
pub fn percent(chance: &mut Chance, percent: u64) -> bool {
    chance.u64(..100) < percent
}

/// What clients send.
#[derive(Clone, Debug)]
pub enum Request {
    /// Numbered, so that an old one is not taken for a new one. Says under which generation the client holds
    /// what it holds.
    Connect {
        attempt: u64,
        holding: u64,
    },
    Enqueue(Enqueue),
    Cancel(LockHandle),
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

/// What a client is told about its connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Connection {
    /// The server still has the client's locks.
    Same,
    /// The server has restarted and expects the client's locks.
    Restarted,
    /// The server knows nothing of the client.
    Fresh,
}

/// What the server sends.
#[derive(Clone, Debug)]
pub enum Message {
    Connected {
        attempt: u64,
        connection: Connection,
        generation: u64,
    },
    /// What was sent under this generation was refused.
    Stale,
    Outcome(LockHandle, Outcome),
    ReplayOutcome(LockHandle, Outcome),
    ReplayDoneHeard,
    Callback(LockHandle, Wanted),
    Glimpse(LockHandle, GlimpseId),
}

/// Something that will happen.
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
    /// The client has written out what it was asked to.
    Flushed {
        client: usize,
        effect: client::Effect,
    },
    /// A thread goes on: lets go of its lock or begins something new.
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
