//! A file system in one process: targets and clients on hosts of their own, over a simulated network.

use crate::disk::{Backend, Disk};
use crate::fault::Node;
use crate::host::Host;
use crate::mount::Mount;
use crate::planted::Bug;
use crate::target::{Map, NewTarget, Target};
use nacre_mds::MdsConfig;
use nacre_rpc::OssService;
use nacre_rpc::tcp::SimulatedNetwork;
use nacre_types::{ClientUuid, TargetId};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// Delay of all messages.
pub(crate) const DELAY: Duration = Duration::from_micros(100);
/// Numbers of the first hosts of MDTs, OSTs and clients.
const MDT_HOSTS: u8 = 1;
const OST_HOSTS: u8 = 50;
const CLIENT_HOSTS: u8 = 100;

/// Numbers of hosts of a file system.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Shape {
    /// Number of MDTs.
    pub mdts: u8,
    /// Number of OSTs; every second one has the back end `block`.
    pub osts: u8,
    /// Number of clients.
    pub clients: u8,
}

fn network_of(targets: &[Target], clients: &[Arc<Host>]) -> Arc<SimulatedNetwork> {
    let network = SimulatedNetwork::new(DELAY);
    for host in targets.iter().map(|target| &target.host).chain(clients.iter().map(|host| &**host)) {
        network.place(host.machine(), host.ip());
    }
    network
}

/// A running file system.
pub struct Cluster {
    pub(crate) map: Map,
    pub(crate) targets: Vec<Target>,
    pub(crate) clients: Vec<Arc<Host>>,
    scratch: PathBuf,
    /// Directories of disks that were made so far.
    disks: u32,
}

impl Cluster {
    /// Formats and starts a file system below `scratch`, with a planted bug if one is given.
    pub fn start(shape: Shape, bug: Option<Bug>, scratch: &Path) -> Cluster {
        let backend = |ost: u16| if ost.is_multiple_of(2) { Backend::File } else { Backend::Block };
        let mut cluster = Cluster::new(shape, backend, bug, scratch);
        cluster.format(&NewTarget::default());
        cluster.start_targets().expect("a new target starts");
        cluster
    }

    /// Creates hosts with empty disks; `backend` chooses that of each OST.
    pub(crate) fn new(
        shape: Shape,
        backend: impl Fn(u16) -> Backend,
        bug: Option<Bug>,
        scratch: &Path,
    ) -> Cluster {
        let mdts =
            (0..shape.mdts).map(|number| (TargetId::mdt(number.into()), Host::new(MDT_HOSTS + number)));
        let osts =
            (0..shape.osts).map(|number| (TargetId::ost(number.into()), Host::new(OST_HOSTS + number)));
        let mut targets: Vec<Target> = Vec::new();
        for (id, host) in mdts.chain(osts) {
            let backend = match id.kind {
                nacre_types::TargetKind::Mdt => Backend::Records,
                _ => backend(id.index),
            };
            let disk = Disk::new(scratch.join(id.to_string()), backend);
            targets.push(Target { id, backend, host, disk, running: None });
        }
        let client = |number| Arc::new(Host::new(CLIENT_HOSTS + number));
        let clients: Vec<Arc<Host>> = (0..shape.clients).map(client).collect();
        let nids = |kind| targets.iter().filter(move |target| target.id.kind == kind).map(|t| t.host.nid());
        let (mdts, osts) =
            (nids(nacre_types::TargetKind::Mdt).collect(), nids(nacre_types::TargetKind::Ost).collect());
        let recovery_window = MdsConfig::default().recovery_window;
        let (network, aliases) = (network_of(&targets, &clients), Arc::default());
        let map = Map { network, mdts, osts, bug, aliases, recovery_window };
        Cluster { map, targets, clients, scratch: scratch.to_owned(), disks: 0 }
    }

    /// Creates all targets on their empty disks.
    pub(crate) fn format(&mut self, new: &NewTarget) {
        for target in &mut self.targets {
            target.format(new);
        }
    }

    /// Starts all targets.
    ///
    /// # Errors
    /// The first target that does not start.
    pub(crate) fn start_targets(&mut self) -> Result<(), String> {
        // OSTs first: MDTs reserve objects on them.
        self.targets.iter_mut().rev().try_for_each(|target| target.start(&self.map))
    }

    /// Returns a file system on the same hosts after power cuts of all of them, which left these disks. No
    /// target has started. The previous clients do not return.
    pub(crate) fn after_power_cut(&self, disks: Vec<Disk>) -> Cluster {
        let recovery_window = Duration::from_secs(1);
        let (mdts, osts, bug) = (self.map.mdts.clone(), self.map.osts.clone(), self.map.bug);
        let reboot = |(target, disk): (&Target, Disk)| {
            let Target { id, backend, ref host, .. } = *target;
            Target { id, backend, host: host.rebooted(), disk, running: None }
        };
        let targets: Vec<Target> = self.targets.iter().zip(disks).map(reboot).collect();
        let clients: Vec<Arc<Host>> = self.clients.iter().map(|host| Arc::new(host.rebooted())).collect();
        let (network, aliases) = (network_of(&targets, &clients), Arc::default());
        let map = Map { network, mdts, osts, bug, aliases, recovery_window };
        Cluster { map, targets, clients, scratch: self.scratch.clone(), disks: 0 }
    }

    /// Starts client `number`.
    ///
    /// # Errors
    /// Those of the metadata servers.
    pub fn mount(&self, number: usize) -> nacre_types::StatusResult<Mount> {
        Mount::start(&self.clients[number], &self.map)
    }

    /// Removes a client that has died from object targets, which do that after an hour unless others want what it held.
    pub(crate) fn reap(&self, client: &ClientUuid) {
        for oss in self.targets.iter().filter_map(Target::oss) {
            let exports = oss.locks().exports();
            exports
                .iter()
                .filter(|export| export.client == *client)
                .for_each(|export| oss.disconnect(export));
        }
    }

    /// Stops everything in order.
    ///
    /// # Errors
    /// The targets that could not be closed.
    pub fn stop(&mut self) -> Result<(), String> {
        let running = self.targets.iter_mut().filter_map(|target| target.running.take());
        let failed: Vec<String> = running.filter_map(|running| running.stop().err()).collect();
        if failed.is_empty() { Ok(()) } else { Err(failed.join("; ")) }
    }

    /// Returns the position of a server among the targets.
    pub(crate) fn index_of(&self, node: Node) -> usize {
        match node {
            Node::Mdt(number) => usize::from(number),
            Node::Ost(number) => self.map.mdts.len() + usize::from(number),
            Node::Client(_) => unreachable!("clients are no targets"),
        }
    }

    /// Returns a directory for another disk.
    pub(crate) fn fresh_dir(&mut self) -> PathBuf {
        self.disks += 1;
        self.scratch.join(format!("disk{}", self.disks))
    }

    /// Returns the network.
    pub fn network(&self) -> &Arc<SimulatedNetwork> {
        &self.map.network
    }
}
