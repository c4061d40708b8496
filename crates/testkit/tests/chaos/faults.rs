//! What happens to servers, mounts, network and disks during a run.

use super::SMALL_OST;
use super::deck::Deck;
use fastrand::Rng;
use nacre_testkit::{Cluster, PowerDisk, Stopped, program, text, wait};
use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::Ordering;
use std::time::{Duration, SystemTime};

/// The cluster, and what is needed to disturb it.
pub struct Disturber {
    /// Ports of servers by their roles.
    ports: BTreeMap<String, u16>,
    disks: BTreeMap<&'static str, PowerDisk>,
    random: Rng,
    /// Descriptions of all faults so far.
    pub history: Vec<String>,
}

/// Takes this test into a network of its own, in which it can drop packets.
///
/// # Panics
///
/// If the kernel creates no network namespace.
pub fn enter_network() {
    // SAFETY: only the network of this thread and of what it starts changes.
    let entered = unsafe { rustix::thread::unshare_unsafe(rustix::thread::UnshareFlags::NEWNET) };
    entered.expect("a network namespace");
    program::shell::<&Path>(Path::new("/"), "ip link set lo up && nft add table ip chaos", []).success();
}

fn nft(script: &str) {
    let mut command = Command::new("nft");
    command.arg(script);
    program::run_command(command, program::LIMIT).success();
}

/// Packets to a server, from it, or both, are dropped until this is dropped.
struct Partition;

impl Partition {
    fn begin(port: u16, to: bool, from: bool) -> Partition {
        nft("add chain ip chaos out { type filter hook output priority 0; }");
        if to {
            nft(&format!("add rule ip chaos out tcp dport {port} drop"));
        }
        if from {
            nft(&format!("add rule ip chaos out tcp sport {port} drop"));
        }
        Partition
    }
}

impl Drop for Partition {
    fn drop(&mut self) {
        nft("delete chain ip chaos out");
    }
}

/// Lets a fault last: its duration is what is tested. It ends with the run.
fn last(duration: Duration, deck: &Deck) {
    wait::within(duration, || deck.is_over().then_some(()));
}

impl Disturber {
    /// `disks`: servers whose targets are on disks that can lose power; [`SMALL_OST`] is one, whose disk can also fail.
    pub fn new(cluster: &mut Cluster, disks: &[&'static str], seed: u64) -> Disturber {
        let disks = disks.iter().map(|role| (*role, PowerDisk::under(cluster, role))).collect();
        let status = cluster.nacre(&["status", text(cluster.data())]).success().stdout;
        let port_of = |line: &str| {
            let role = line.split_whitespace().next()?;
            let address =
                line.split_whitespace().find(|word| word.starts_with("127.") && word.ends_with("@tcp"))?;
            let port = address.trim_end_matches("@tcp").rsplit(':').next()?.parse().ok()?;
            Some((role.to_owned(), port))
        };
        let servers = cluster.servers();
        let ports: BTreeMap<String, u16> =
            status.lines().filter_map(port_of).filter(|(role, _)| servers.contains(role)).collect();
        assert_eq!(ports.len(), servers.len(), "{status}");
        Disturber { ports, disks, random: Rng::with_seed(seed), history: Vec::new() }
    }

    fn server(&mut self, cluster: &Cluster) -> String {
        let servers = cluster.servers();
        servers[self.random.usize(..servers.len())].clone()
    }

    fn duration(&mut self, max_ms: u64) -> Duration {
        Duration::from_millis(self.random.u64(..max_ms))
    }

    /// Disturbs the cluster once, and ends the disturbance.
    pub fn disturb(&mut self, cluster: &mut Cluster, deck: &Deck) {
        match self.random.u8(..11) {
            0..3 => {
                let (role, lasts) = (self.server(cluster), self.duration(1500));
                self.note(format!("{role} killed for {lasts:?}"));
                cluster.kill(&role);
                last(lasts, deck);
                cluster.start_all();
            }
            3 => {
                let roles = [self.server(cluster), self.server(cluster)];
                let lasts = self.duration(1500);
                self.note(format!("{roles:?} killed for {lasts:?}"));
                cluster.kill(&roles[0]);
                if roles[0] != roles[1] {
                    cluster.kill(&roles[1]);
                }
                last(lasts, deck);
                cluster.start_all();
            }
            4..6 => {
                let all = cluster.processes();
                let (role, pid) = all[self.random.usize(..all.len())].clone();
                let lasts = self.duration(4000);
                self.note(format!("{role} stopped for {lasts:?}"));
                let stopped = Stopped::begin(cluster, pid);
                last(lasts, deck);
                drop(stopped);
            }
            6..8 => {
                let (role, lasts) = (self.server(cluster), self.duration(5000));
                let (to, from) = [(true, true), (true, false), (false, true)][self.random.usize(..3)];
                self.note(format!("{role} unreachable for {lasts:?}, packets to it {to}, from it {from}"));
                let partition = Partition::begin(self.ports[&role], to, from);
                last(lasts, deck);
                drop(partition);
            }
            8 => {
                let lasts = self.duration(4000);
                self.note(format!("the disk of {SMALL_OST} fails for {lasts:?}"));
                // What the OST has not made durable before is lost, and what it has answered meanwhile.
                let may_lose = || deck.cuts.fetch_add(1, Ordering::SeqCst);
                may_lose();
                deck.disk_changes.fetch_add(1, Ordering::SeqCst);
                self.disks[SMALL_OST].fail(cluster, || {
                    last(lasts, deck);
                    may_lose();
                });
                deck.disk_changes.fetch_add(1, Ordering::SeqCst);
            }
            _ => {
                let names: Vec<&'static str> = self.disks.keys().copied().collect();
                let role = names[self.random.usize(..names.len())];
                self.note(format!("{role} without power"));
                deck.cuts.fetch_add(1, Ordering::SeqCst);
                self.disks.get_mut(role).expect("listed").cut(cluster);
            }
        }
    }

    fn note(&mut self, what: String) {
        let time =
            SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs() % 86_400;
        let what = format!("{:02}:{:02}:{:02} {what}", time / 3600, time / 60 % 60, time % 60);
        println!("{what}");
        self.history.push(what);
    }
}
