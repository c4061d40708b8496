//! Places of clients: a host, and the mount that it has at present.

use crate::cluster::Cluster;
use crate::history::{History, Incident};
use crate::host::{Host, Process};
use crate::mount::Mount;
use crate::operation::Operation;
use crate::program::Program;
use crate::target::Map;
use nacre_client::Client;
use nacre_env::InterruptTarget;
use nacre_env::sync::Mutex;
use nacre_types::{ClientUuid, StatusResult};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Pause before another attempt to mount, as a user makes it.
const AGAIN: Duration = Duration::from_secs(1);
/// Number of the request that the thread of a program serves: all of its calls.
const PROGRAM: u64 = 1;

/// See the [module documentation](self).
pub(crate) struct Seat {
    number: usize,
    host: Arc<Host>,
    map: Map,
    /// `None` while it is being mounted, and from the end of the run on.
    mount: Mutex<Option<Mount>>,
    /// The client is to die as soon as it is mounted.
    is_to_die: AtomicBool,
    /// Identity of the client that has died.
    dead: Mutex<Option<ClientUuid>>,
    /// The thread of the program: its calls end with the process.
    caller: Mutex<Option<Arc<InterruptTarget>>>,
}

impl Seat {
    /// Mounts at the place of client `number`.
    ///
    /// # Errors
    /// Those of the metadata servers.
    pub(crate) fn take(cluster: &Cluster, number: usize) -> StatusResult<Arc<Seat>> {
        let mount = Mutex::new(Some(cluster.mount(number)?));
        let (host, map) = (cluster.clients[number].clone(), cluster.map.clone());
        Ok(Arc::new(Seat {
            number,
            host,
            map,
            mount,
            is_to_die: AtomicBool::new(false),
            dead: Mutex::default(),
            caller: Mutex::default(),
        }))
    }

    /// Returns the process of the mount.
    pub(crate) fn process(&self) -> Option<Process> {
        self.mount.lock().as_ref().map(|mount| mount.process)
    }

    /// Returns the mount's client.
    pub(crate) fn client(&self) -> Option<Arc<Client>> {
        self.mount.lock().as_ref().map(|mount| mount.client.clone())
    }

    /// Returns the identity of a client that has died.
    pub(crate) fn dead(&self) -> Option<ClientUuid> {
        *self.dead.lock()
    }

    /// Ends the process of the client at once, also within a call, and returns what is left of it; `None` while it is
    /// being mounted: then it dies before its next call.
    pub(crate) fn die(&self, history: &History) -> Option<Mount> {
        let Some(mount) = self.mount.lock().take() else {
            self.is_to_die.store(true, Ordering::Relaxed);
            return None;
        };
        history.note(Incident::Death(self.number));
        mount.die(&self.map.network);
        *self.dead.lock() = Some(mount.uuid);
        if let Some(caller) = &*self.caller.lock() {
            caller.raise(PROGRAM);
        }
        Some(mount)
    }

    /// Unmounts for the last time.
    pub(crate) fn leave(&self) {
        let mount = self.mount.lock().take();
        mount.into_iter().for_each(Mount::stop);
    }

    /// Carries out the operations of a program.
    pub(crate) fn run(&self, operations: &[Operation], history: &Arc<History>) {
        let Some(client) = self.client() else { return };
        let caller = InterruptTarget::install();
        caller.target().begin(PROGRAM);
        *self.caller.lock() = Some(caller.target().clone());
        let mut program = Program::new(self.number, client, history.clone());
        for operation in operations {
            if self.is_to_die.load(Ordering::Relaxed) {
                self.die(history).into_iter().for_each(Mount::stop);
            }
            if history.is_dead(self.number) {
                return;
            }
            match operation {
                Operation::Remount => match self.mount_again(program, history) {
                    Some(again) => program = again,
                    None => return,
                },
                operation => self.act(|| program.run(operation)),
            }
        }
        self.act(|| program.end());
    }

    /// Runs `work` in the process of the mount.
    fn act<R>(&self, work: impl FnOnce() -> R) -> R {
        match self.process() {
            Some(process) => process.run(work),
            None => work(),
        }
    }

    /// Unmounts once all files are closed, and mounts again, as soon as the servers let it. `None` if the client dies
    /// before.
    fn mount_again(&self, mut program: Program, history: &Arc<History>) -> Option<Program> {
        self.act(|| program.end());
        let writes = program.writes;
        drop(program);
        self.leave();
        while !history.is_dead(self.number) {
            match Mount::start(&self.host, &self.map) {
                Ok(mount) => {
                    let client = mount.client.clone();
                    *self.mount.lock() = Some(mount);
                    let mut program = Program::new(self.number, client, history.clone());
                    program.writes = writes;
                    return Some(program);
                }
                // The run reports programs that wait too long.
                Err(status) => {
                    log::info!("client {} cannot mount: {status}", self.number);
                    nacre_env::thread::sleep(AGAIN);
                }
            }
        }
        None
    }
}
