//! Clients without a mount, and a target without objects.

use nacre_dlm::{Expected, LockOwner, LockService, Timer};
use nacre_env::clock::Instant;
use nacre_env::sync::{Condvar, Mutex};
use nacre_lock::server::ServerConfig;
use nacre_lock::{
    Enqueue, EnqueueFlags, Extent, InodeBits, LockGrant, LockHandle, Lvb, Mode, Need, Outcome, ResourceId,
};
use nacre_rpc::{ClientCallbacks, Export};
use nacre_types::{ClientUuid, Nid, StatusResult};
use nacre_wire::lock::{LockMessage, LockRequest};
use nacre_wire::mds::LeaseGrant;
use std::sync::{Arc, Weak};
use std::time::Duration;

pub const FILE: ResourceId = ResourceId([5, 1, 0, 0]);
/// Deadline far above what any of these tests takes.
const TIMEOUT: Duration = Duration::from_secs(30);

/// Waits for a condition that another thread is about to establish.
#[track_caller]
pub fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + TIMEOUT;
    while !condition() {
        assert!(Instant::now() < deadline, "{what}");
        nacre_env::thread::yield_now();
    }
}

pub fn pages(first: u64, count: u64) -> Extent {
    Extent { start: first * 4096, last: (first + count) * 4096 - 1 }
}

pub fn write(extent: Extent) -> Need {
    Need::extent(Mode::Pw, extent)
}

pub fn read(extent: Extent) -> Need {
    Need::extent(Mode::Pr, extent)
}

/// Timeouts that are never reached, for tests that are not about them.
pub fn patient() -> ServerConfig {
    let long = Duration::from_secs(600);
    ServerConfig { callback_timeout: long, callback_retry: long, ..ServerConfig::default() }
}

type Reaction = Box<dyn Fn(&Client, &LockMessage) + Send + Sync>;

#[derive(Default)]
struct Inbox {
    messages: Mutex<Vec<LockMessage>>,
    arrived: Condvar,
    reaction: Mutex<Option<(Weak<Client>, Reaction)>>,
    silent_for: Mutex<Duration>,
}

impl ClientCallbacks for Inbox {
    fn lease_changed(&self, _: LeaseGrant) {}

    fn lock_message(&self, message: LockMessage) {
        self.messages.lock().push(message);
        self.arrived.notify_all();
        let reaction = self.reaction.lock();
        if let Some((client, reaction)) = &*reaction
            && let Some(client) = client.upgrade()
        {
            reaction(&client, &message);
        }
    }

    fn silent_for(&self) -> Duration {
        *self.silent_for.lock()
    }
}

pub struct Client {
    pub target: Arc<Target>,
    pub export: Arc<Export>,
    inbox: Arc<Inbox>,
}

impl Client {
    pub fn request(&self, request: LockRequest) -> StatusResult<Option<Outcome>> {
        self.target.service.handle(&*self.target.owner, &self.export, &request)
    }

    pub fn flagged(&self, handle: u64, need: Need, flags: EnqueueFlags) -> StatusResult<Outcome> {
        let request =
            Enqueue { handle: LockHandle(handle), resource: FILE, need, optional: InodeBits::NONE, flags };
        let outcome = self.request(LockRequest::Enqueue { request, cancels: Vec::new() })?;
        Ok(outcome.expect("enqueues have outcomes"))
    }

    pub fn enqueue(&self, handle: u64, need: Need) -> StatusResult<Outcome> {
        self.flagged(handle, need, EnqueueFlags::default())
    }

    #[track_caller]
    pub fn lock(&self, handle: u64, need: Need) -> LockGrant {
        match self.enqueue(handle, need) {
            Ok(Outcome::Granted(grant)) => grant,
            other => panic!("not granted: {other:?}"),
        }
    }

    pub fn cancel(&self, handle: u64) {
        let done = self.request(LockRequest::Cancel { handles: vec![LockHandle(handle)] });
        assert_eq!(done, Ok(None));
    }

    /// Waits for the next message and takes it.
    #[track_caller]
    pub fn next(&self) -> LockMessage {
        let deadline = Instant::now() + TIMEOUT;
        let mut messages = self.inbox.messages.lock();
        while messages.is_empty() {
            let late = self.inbox.arrived.wait_until(&mut messages, deadline).timed_out();
            assert!(!late, "no message came");
        }
        messages.remove(0)
    }

    #[track_caller]
    pub fn next_is_blocking(&self, handle: u64) {
        let message = self.next();
        assert!(
            matches!(message, LockMessage::Blocking { handle: LockHandle(called), .. } if called == handle)
        );
    }

    #[track_caller]
    pub fn next_is_completion(&self, handle: u64) -> Outcome {
        match self.next() {
            LockMessage::Completion { handle: LockHandle(granted), outcome } if granted == handle => outcome,
            other => panic!("not a completion of {handle}: {other:?}"),
        }
    }

    /// Simulates that the client has sent nothing for this long.
    pub fn was_silent_for(&self, time: Duration) {
        *self.inbox.silent_for.lock() = time;
    }

    /// Number of messages received and not taken.
    pub fn pending(&self) -> usize {
        self.inbox.messages.lock().len()
    }

    /// From now on the client runs `reaction` on every message, on the thread that delivers it.
    pub fn react(self: &Arc<Client>, reaction: impl Fn(&Client, &LockMessage) + Send + Sync + 'static) {
        *self.inbox.reaction.lock() = Some((Arc::downgrade(self), Box::new(reaction)));
    }

    /// Lets the client give up every lock that is revoked.
    pub fn obey(self: &Arc<Client>) {
        self.react(|client, message| {
            if let LockMessage::Blocking { handle, .. } = message {
                client.cancel(handle.0);
            }
        });
    }
}

/// State of the target: the size of its only file, and the clients whose eviction was reported to it.
#[derive(Default)]
pub struct Owner {
    pub size: Mutex<u64>,
    pub evicted: Mutex<Vec<ClientUuid>>,
    pub given_up: Mutex<Vec<ClientUuid>>,
    pub noted: Mutex<Vec<ClientUuid>>,
}

impl LockOwner for Owner {
    fn lvb(&self, _: &ResourceId) -> StatusResult<Option<Lvb>> {
        Ok(Some(Lvb { size_bytes: *self.size.lock(), ..Lvb::default() }))
    }

    fn on_first_lock(&self, export: &Export) -> StatusResult<()> {
        self.noted.lock().push(export.client);
        Ok(())
    }

    fn on_evicted(&self, export: &Arc<Export>) {
        assert!(export.has_ended());
        self.evicted.lock().push(export.client);
    }

    fn on_given_up(&self, client: &ClientUuid) {
        self.given_up.lock().push(*client);
    }
}

pub struct Target {
    pub service: Arc<LockService>,
    pub owner: Arc<Owner>,
    timer: Mutex<Option<Timer>>,
}

impl Target {
    pub fn new(config: ServerConfig) -> Arc<Target> {
        Target::expecting(config, Expected::new(), Duration::ZERO)
    }

    pub fn expecting(config: ServerConfig, expected: Expected, window: Duration) -> Arc<Target> {
        let service = Arc::new(LockService::new("OST0000", config, expected, window));
        let owner = Arc::new(Owner::default());
        let weak: Weak<Owner> = Arc::downgrade(&owner);
        let timer = Mutex::new(Some(Timer::start(service.clone(), weak).expect("a thread")));
        Arc::new(Target { service, owner, timer })
    }

    pub fn client(self: &Arc<Target>, number: u8) -> Arc<Client> {
        let inbox = Arc::new(Inbox::default());
        let export = Arc::new(Export::new(ClientUuid([number; 16]), Nid::Lo, None, inbox.clone()));
        self.service.connect(&export).expect("it is not stopping");
        Arc::new(Client { target: self.clone(), export, inbox })
    }

    /// Stops the timer thread, and with it all waits.
    pub fn stop(&self) {
        self.timer.lock().take();
    }
}
