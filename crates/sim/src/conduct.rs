//! Faults, carried out on a running cluster.

use crate::cluster::Cluster;
use crate::disk::Objects;
use crate::fault::{self, Fault, Node, Timed};
use crate::history::{History, Incident};
use crate::host::Process;
use crate::invariants;
use crate::seat::Seat;
use fastrand::Rng;
use nacre_env::clock::Instant;
use nacre_env::sim;
use nacre_env::thread::JoinHandle;
use nacre_store::object::file::memory::Limits;
use nacre_store::object::simulated::Medium;
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

/// Longest pause, for processes whose disk is being copied.
const LONG: Duration = Duration::from_secs(10_000);
/// Interval at which locks are looked at.
const LOOK: Duration = Duration::from_millis(20);
/// Pages of 4 KiB that an OST has left when it becomes full.
const PAGES_LEFT: u64 = 3;
/// Bandwidth of a slow disk in bytes per second.
const BANDWIDTH: u64 = 4 << 20;

/// Carries faults out, one after the other, on the thread that calls it.
pub(crate) struct Conductor<'a> {
    cluster: &'a mut Cluster,
    seats: Vec<Arc<Seat>>,
    history: Arc<History>,
    random: Rng,
    /// Threads that stop what is left of killed processes.
    undertakers: Vec<JoinHandle<()>>,
    /// The first violated invariant.
    problem: Option<String>,
    /// OSTs with failing disks, and whether they did not start because of that.
    failing: BTreeMap<u8, bool>,
}

impl<'a> Conductor<'a> {
    pub(crate) fn new(
        cluster: &'a mut Cluster,
        seats: Vec<Arc<Seat>>,
        history: Arc<History>,
        seed: u64,
    ) -> Conductor<'a> {
        let random = Rng::with_seed(seed ^ 0x5eed);
        Conductor {
            cluster,
            seats,
            history,
            random,
            undertakers: Vec::new(),
            problem: None,
            failing: BTreeMap::new(),
        }
    }

    /// Begins and ends all faults in time.
    pub(crate) fn conduct(&mut self, faults: &[Timed]) {
        let start = Instant::now();
        let begins = faults.iter().enumerate().map(|(number, timed)| (timed.at, number, true));
        let ends = faults.iter().enumerate().map(|(number, timed)| (timed.at + timed.lasts, number, false));
        let mut actions: Vec<_> = begins.chain(ends).collect();
        actions.sort_unstable_by_key(|(at, number, begins)| (*at, *number, !*begins));
        for (at, number, begins) in actions {
            self.pass(at.saturating_sub(start.elapsed()));
            if fault::evicts(&faults[number]) {
                self.history.note(Incident::Eviction { begins });
            }
            if begins {
                self.begin(faults[number].fault, faults[number].lasts);
            } else {
                self.end(faults[number].fault);
            }
        }
    }

    /// Waits, and looks at the locks of all targets meanwhile.
    pub(crate) fn pass(&mut self, time: Duration) {
        let until = Instant::now() + time;
        loop {
            if self.problem.is_none() {
                self.problem = invariants::locks::check(self.cluster).err();
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            nacre_env::thread::sleep(left.min(LOOK));
        }
    }

    /// Returns the first violated invariant so far.
    pub(crate) fn problem(&self) -> Option<&String> {
        self.problem.as_ref()
    }

    /// Waits until nothing is left of killed processes.
    ///
    /// # Errors
    /// A violated invariant.
    pub(crate) fn finish(self) -> Result<(), String> {
        for undertaker in self.undertakers {
            // A panic was reported when it happened.
            let _ = undertaker.join();
        }
        self.problem.map_or(Ok(()), Err)
    }

    fn ip(&self, node: Node) -> IpAddr {
        match node {
            Node::Client(number) => self.cluster.clients[usize::from(number)].ip(),
            server => self.cluster.targets[self.cluster.index_of(server)].host.ip(),
        }
    }

    fn process(&self, node: Node) -> Option<Process> {
        match node {
            Node::Client(number) => self.seats.get(usize::from(number))?.process(),
            server => {
                let target = &self.cluster.targets[self.cluster.index_of(server)];
                target.running.as_ref().map(|running| running.process)
            }
        }
    }

    fn begin(&mut self, fault: Fault, lasts: Duration) {
        let network = self.cluster.network().clone();
        match fault {
            Fault::Break(node) => {
                let target = &self.cluster.targets[self.cluster.index_of(node)];
                network.break_connections(target.host.addr());
            }
            Fault::Partition { from, to, both } => {
                let (from, to) = (self.ip(from), self.ip(to));
                network.sever(Some(from), Some(to));
                if both {
                    network.sever(Some(to), Some(from));
                }
            }
            Fault::Isolate(node) => {
                let ip = self.ip(node);
                network.sever(Some(ip), None);
                network.sever(None, Some(ip));
            }
            Fault::Kill(node) => self.stop_server(node, false),
            Fault::Power(node) => self.stop_server(node, true),
            Fault::Pause(node) => {
                if let Some(process) = self.process(node) {
                    sim::pause_process(process.number, lasts);
                }
            }
            Fault::Die(client) => {
                let mount = self.seats.get(usize::from(client)).and_then(|seat| seat.die(&self.history));
                mount.into_iter().for_each(|mount| self.bury(move || mount.stop()));
            }
            Fault::Clock(node, seconds) => {
                if let Some(process) = self.process(node) {
                    sim::shift_wall(process.number, seconds.into());
                }
            }
            Fault::Full(ost) => {
                self.limit(ost, |used| Limits { pages_max: Some(used + PAGES_LEFT), fails: false })
            }
            Fault::IoErrors(ost) => {
                self.failing.entry(ost).or_insert(false);
                self.limit(ost, |_| Limits { pages_max: None, fails: true });
            }
            Fault::Slow(ost, ms) => {
                let seek = Duration::from_millis(ms.into());
                self.set_medium(ost, Some(Medium { seek, bandwidth: BANDWIDTH }));
            }
        }
    }

    fn end(&mut self, fault: Fault) {
        let network = self.cluster.network().clone();
        match fault {
            Fault::Partition { from, to, both } => {
                let (from, to) = (self.ip(from), self.ip(to));
                network.rejoin(Some(from), Some(to));
                if both {
                    network.rejoin(Some(to), Some(from));
                }
            }
            Fault::Isolate(node) => {
                let ip = self.ip(node);
                network.rejoin(Some(ip), None);
                network.rejoin(None, Some(ip));
            }
            Fault::Kill(node) | Fault::Power(node) => self.start_server(node),
            Fault::Full(ost) => self.limit(ost, |_| Limits::default()),
            Fault::IoErrors(ost) => {
                self.limit(ost, |_| Limits::default());
                if self.failing.remove(&ost) == Some(true) {
                    self.start_server(Node::Ost(ost));
                }
            }
            Fault::Slow(ost, _) => self.set_medium(ost, None),
            Fault::Break(_) | Fault::Pause(_) | Fault::Die(_) | Fault::Clock(..) => {}
        }
    }

    fn limit(&self, ost: u8, limits: impl Fn(u64) -> Limits) {
        let target = &self.cluster.targets[self.cluster.index_of(Node::Ost(ost))];
        if let Objects::Files(files) = &target.disk.objects {
            files.limit(limits(files.used_pages()));
        }
    }

    fn set_medium(&self, ost: u8, medium: Option<Medium>) {
        let target = &self.cluster.targets[self.cluster.index_of(Node::Ost(ost))];
        if let Some(simulation) = target.oss().and_then(|oss| oss.store().abilities().simulation) {
            simulation.set_medium(medium);
        }
    }

    /// Ends the process of a server; with `power` its host loses what was not synced.
    fn stop_server(&mut self, node: Node, power: bool) {
        let dir = self.cluster.fresh_dir();
        let index = self.cluster.index_of(node);
        let network = self.cluster.network().clone();
        let target = &mut self.cluster.targets[index];
        // Another fault may have stopped it already.
        let Some(running) = target.running.take() else { return };
        let process = running.process;
        // No thread of it may run while its disk is copied.
        sim::pause_process(process.number, LONG);
        network.end_process(&process.identity);
        sim::end_process(process.number);
        let disk = if power {
            let incident = match node {
                Node::Mdt(number) => Incident::MdtPower(number.into()),
                Node::Ost(number) | Node::Client(number) => Incident::OstPower(number.into()),
            };
            self.history.note(incident);
            target.host.reboot();
            target.disk.after_power_cut(dir, &mut |count| self.random.usize(..count))
        } else {
            self.history.note(match node {
                Node::Mdt(number) => Incident::MdtKill(number.into()),
                Node::Ost(number) | Node::Client(number) => Incident::OstKill(number.into()),
            });
            target.disk.after_kill(dir)
        };
        target.disk = disk.expect("the disk can be copied");
        sim::pause_process(process.number, Duration::ZERO);
        // What it could not close does not matter: nothing reads its disk again.
        self.bury(move || drop(running.stop()));
    }

    /// Ends the threads of a killed process.
    fn bury(&mut self, stop: impl FnOnce() + Send + 'static) {
        let undertaker = nacre_env::thread::Builder::new().name("undertaker".into()).spawn(stop);
        self.undertakers.push(undertaker.expect("a thread starts"));
    }

    fn start_server(&mut self, node: Node) {
        let index = self.cluster.index_of(node);
        let Cluster { map, targets, .. } = &mut *self.cluster;
        if targets[index].running.is_none()
            && let Err(problem) = targets[index].start(map)
        {
            let failing = if let Node::Ost(ost) = node { self.failing.get_mut(&ost) } else { None };
            match failing {
                Some(waits) => *waits = true,
                None => drop(self.problem.get_or_insert(problem)),
            }
        }
    }
}
