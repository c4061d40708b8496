//! Hosts and processes of a simulation.

use nacre_env::sim::{self, ProcessNumber};
use nacre_types::{ClientUuid, Nid, ProcessIdentity};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicU32, Ordering};

/// Port on which servers listen.
const PORT: u16 = 988;

/// A host: one address, and processes one after the other.
#[derive(Debug)]
pub struct Host {
    number: u8,
    boots: AtomicU32,
    processes: AtomicU32,
}

/// A process of a host.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Process {
    pub(crate) number: ProcessNumber,
    pub(crate) identity: ProcessIdentity,
}

impl Process {
    /// Runs `work` as a part of this process.
    pub(crate) fn run<R>(&self, work: impl FnOnce() -> R) -> R {
        sim::act_as(self.number, work)
    }
}

impl Host {
    /// Creates host `number` of a simulation.
    pub fn new(number: u8) -> Host {
        Host { number, boots: AtomicU32::new(1), processes: AtomicU32::new(0) }
    }

    /// Returns its address.
    pub fn ip(&self) -> IpAddr {
        IpAddr::V4(Ipv4Addr::new(10, 0, 0, self.number))
    }

    /// Returns the address of its server.
    pub fn addr(&self) -> SocketAddr {
        SocketAddr::new(self.ip(), PORT)
    }

    /// Returns the NID of its server.
    pub fn nid(&self) -> Nid {
        Nid::Tcp(self.addr())
    }

    /// Returns the identity of the machine.
    pub fn machine(&self) -> [u8; 16] {
        [self.number; 16]
    }

    /// Starts it again after a power cut.
    pub fn reboot(&self) {
        self.boots.fetch_add(1, Ordering::Relaxed);
    }

    /// Returns the host after another power cut, without processes.
    pub(crate) fn rebooted(&self) -> Host {
        let (boots, processes) = (self.boots.load(Ordering::Relaxed), self.processes.load(Ordering::Relaxed));
        Host { number: self.number, boots: AtomicU32::new(boots + 1), processes: AtomicU32::new(processes) }
    }

    /// Starts a process.
    pub(crate) fn start_process(&self) -> Process {
        let started = self.processes.fetch_add(1, Ordering::Relaxed) + 1;
        let mut boot = [self.number; 16];
        boot[12..].copy_from_slice(&self.boots.load(Ordering::Relaxed).to_le_bytes());
        let identity = ProcessIdentity {
            machine: self.machine(),
            boot,
            namespaces: 1,
            pid: 1000 + started,
            started: started.into(),
        };
        let number = sim::add_process(identity).expect("hosts exist in simulations");
        Process { number, identity }
    }

    /// Returns a client identity for the `purpose`th connection of the host's newest process.
    pub(crate) fn uuid(&self, purpose: u16) -> ClientUuid {
        let mut uuid = [self.number; 16];
        uuid[8..12].copy_from_slice(&self.processes.load(Ordering::Relaxed).to_le_bytes());
        uuid[12..14].copy_from_slice(&purpose.to_le_bytes());
        ClientUuid(uuid)
    }
}
