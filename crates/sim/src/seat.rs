//! Places of clients: a host, and the mount that it has at present.

use crate::cluster::Cluster;
use crate::history::{History, Incident};
use crate::host::{Host, Process};
use crate::mount::Mount;
use crate::operation::Operation;
use crate::program::Program;
use crate::target::Map;
use nacre_client::Client;
use nacre_env::sync::Mutex;
use nacre_rpc::tcp::SimulatedNetwork;
use nacre_types::{ClientUuid, StatusResult};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Pause before another attempt to mount, as a user makes it.
const AGAIN: Duration = Duration::from_secs(1);

/// See the [module documentation](self).
pub(crate) struct Seat {
    number: usize,
    host: Arc<Host>,
    map: Map,
    /// `None` while it is being mounted, and from the end of the run on.
    mount: Mutex<Option<Mount>>,
    /// The client is to die before its next call.
    is_to_die: AtomicBool,
}

impl Seat {
    /// Mounts at the place of client `number`.
    ///
    /// # Errors
    /// Those of the metadata servers.
    pub(crate) fn take(cluster: &Cluster, number: usize) -> StatusResult<Arc<Seat>> {
        let mount = Mutex::new(Some(cluster.mount(number)?));
        let (host, map) = (cluster.clients[number].clone(), cluster.map.clone());
        Ok(Arc::new(Seat { number, host, map, mount, is_to_die: AtomicBool::new(false) }))
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
        self.mount.lock().as_ref().filter(|mount| mount.is_dead()).map(|mount| mount.uuid)
    }

    /// Has the client die before its next call.
    pub(crate) fn doom(&self) {
        self.is_to_die.store(true, Ordering::Relaxed);
    }

    /// Unmounts for the last time.
    pub(crate) fn leave(&self) {
        let mount = self.mount.lock().take();
        mount.into_iter().for_each(Mount::stop);
    }

    /// Carries out the operations of a program.
    pub(crate) fn run(&self, operations: &[Operation], history: &Arc<History>) {
        let Some(client) = self.client() else { return };
        let mut program = Program::new(self.number, client, history.clone());
        for operation in operations {
            if self.is_to_die.load(Ordering::Relaxed) {
                history.note(Incident::Death(self.number));
                return self.die(&self.map.network);
            }
            match operation {
                Operation::Remount => program = self.mount_again(program, history),
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

    fn die(&self, network: &SimulatedNetwork) {
        self.mount.lock().iter().for_each(|mount| mount.die(network));
    }

    /// Unmounts once all files are closed, and mounts again, as soon as the servers let it.
    fn mount_again(&self, mut program: Program, history: &Arc<History>) -> Program {
        self.act(|| program.end());
        let writes = program.writes;
        drop(program);
        self.leave();
        loop {
            match Mount::start(&self.host, &self.map) {
                Ok(mount) => {
                    let client = mount.client.clone();
                    *self.mount.lock() = Some(mount);
                    let mut program = Program::new(self.number, client, history.clone());
                    program.writes = writes;
                    return program;
                }
                // The run reports programs that wait too long.
                Err(status) => {
                    log::info!("client {} cannot mount: {status}", self.number);
                    nacre_env::thread::sleep(AGAIN);
                }
            }
        }
    }
}
