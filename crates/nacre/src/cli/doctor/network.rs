//! The network between this host and the servers: reachability, round trips, packet sizes and losses.

use super::{Finding, Machine, Subject, median};
use crate::control::{ClockStatus, ProcessStatus};
use crate::listen;
use nacre_env::clock::Instant;
use nacre_types::Nid;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::os::fd::AsRawFd;
use std::time::Duration;

const AREA: &str = "network";
/// Timeout of a connection attempt.
const CONNECT_LIMIT: Duration = Duration::from_secs(2);
/// Connections whose median time counts as the round trip.
const CONNECTS: usize = 5;
/// Servers that are tried, at most.
const SERVERS_MAX: usize = 64;
/// Round trip above which small requests are dominated by the network.
const ROUND_TRIP_SLOW: Duration = Duration::from_millis(1);
/// Share of resent TCP segments above which a network loses packets.
const LOSS_PERCENT: f64 = 0.5;
/// Sent segments below which that share says nothing.
const SEGMENTS_MIN: u64 = 100_000;
/// Difference of clocks from which on times of files of several hosts look wrong, in microseconds.
const CLOCK_OFF_US: u64 = 100_000;
/// Difference from which on programs that compare times (make, backups) go wrong.
const CLOCK_FAR_US: u64 = 1_000_000;
/// Targets of a server that are named.
const TARGETS_SHOWN: usize = 4;
/// Packet size of an ordinary Ethernet.
const MTU_ORDINARY: u64 = 1500;

/// Examines the way to the servers of a file system.
pub fn examine(machine: &Machine, subject: &Subject) -> Vec<Finding> {
    let mut findings = clocks(&subject.overview.processes);
    let servers = servers(subject);
    if servers.is_empty() {
        return findings;
    }
    let mut interfaces = BTreeSet::new();
    for address in servers.iter().take(SERVERS_MAX) {
        findings.push(server(machine, *address, &mut interfaces));
    }
    findings.extend(interfaces.iter().filter_map(|name| interface(machine, name)));
    findings.extend(losses(machine));
    findings
}

/// Compares the clocks of servers with that of this host, as the mounts here have measured them.
pub(super) fn clocks(processes: &[ProcessStatus]) -> Vec<Finding> {
    let mut hosts: BTreeMap<String, (Vec<&str>, &ClockStatus)> = BTreeMap::new();
    for clock in processes.iter().flat_map(|process| &process.clocks) {
        let host = match clock.nid.parse() {
            Ok(Nid::Tcp(address)) => address.ip().to_string(),
            _ => clock.nid.clone(),
        };
        let (targets, best) = hosts.entry(host).or_insert_with(|| (Vec::new(), clock));
        targets.push(&clock.target);
        if clock.within_us < best.within_us {
            *best = clock;
        }
    }
    hosts.iter().map(|(host, (targets, clock))| clock_of(host, targets, clock)).collect()
}

fn clock_of(host: &str, targets: &[&str], clock: &ClockStatus) -> Finding {
    let (ahead_us, ms) = (clock.ahead_us.unsigned_abs(), |us: u64| us as f64 / 1e3);
    let side = if clock.ahead_us < 0 { "behind" } else { "ahead of" };
    let text = format!(
        "the clock of {host} ({}) is {:.1} ms {side} that of this host, give or take {:.1} ms",
        shown(targets),
        ms(ahead_us),
        ms(clock.within_us)
    );
    let certain_us = ahead_us.saturating_sub(clock.within_us);
    let remedy = "on that host and here: systemctl enable --now systemd-timesyncd, or chrony; 'chronyc makestep' \
                  sets a clock at once";
    match certain_us {
        CLOCK_FAR_US.. => Finding::warning("clock", text).remedy(remedy),
        CLOCK_OFF_US.. => Finding::note("clock", text).remedy(remedy),
        _ => Finding::ok("clock", text),
    }
}

/// Returns the first targets of a server, and how many more there are.
fn shown(targets: &[&str]) -> String {
    let more = targets.len().saturating_sub(TARGETS_SHOWN);
    let first = targets[..targets.len() - more].join(", ");
    if more > 0 { format!("{first} and {more} more") } else { first }
}

/// Returns the addresses of servers on this and other hosts.
fn servers(subject: &Subject) -> BTreeSet<SocketAddr> {
    let overview = &subject.overview;
    let here = overview.processes.iter().flat_map(|process| &process.targets).flat_map(|target| &target.nids);
    let elsewhere = overview.elsewhere.iter().flat_map(|target| &target.nids);
    let nids = here.chain(elsewhere).filter_map(|nid| nid.parse().ok());
    nids.filter_map(|nid| match nid {
        Nid::Tcp(address) => Some(address),
        Nid::Lo => None,
    })
    .collect()
}

fn server(machine: &Machine, address: SocketAddr, interfaces: &mut BTreeSet<String>) -> Finding {
    match round_trip(address) {
        Err(error) => Finding::error(AREA, format!("{address} does not accept connections: {error}"))
            .remedy("'nacre status' on that host; a firewall may be in the way"),
        Ok((took, connection)) => {
            let own = connection.local_addr().ok().map(|own| own.ip());
            let name = own.filter(|own| !own.is_loopback()).and_then(interface_of);
            let link_mtu =
                name.as_ref().and_then(|name| machine.number(&format!("/sys/class/net/{name}/mtu")));
            interfaces.extend(name);
            let text = format!("{address} accepts connections after {:.3} ms", took.as_secs_f64() * 1e3);
            match (path_mtu(&connection), link_mtu) {
                (Some(path), Some(link)) if path < link => Finding::warning(
                    AREA,
                    format!(
                        "{text}; packets to it are limited to {path} bytes, the interface could send {link}"
                    ),
                )
                .remedy("set the same MTU on all hosts and switches in between"),
                _ if took > ROUND_TRIP_SLOW => {
                    Finding::note(AREA, format!("{text}: small requests wait for the network"))
                }
                _ => Finding::ok(AREA, text),
            }
        }
    }
}

/// Returns the median time to connect, and the last connection.
fn round_trip(address: SocketAddr) -> io::Result<(Duration, TcpStream)> {
    let mut times = Vec::with_capacity(CONNECTS);
    let mut last = None;
    for _ in 0..CONNECTS {
        let start = Instant::now();
        last = Some(TcpStream::connect_timeout(&address, CONNECT_LIMIT)?);
        times.push(start.elapsed());
    }
    last.map(|last| (median(times), last)).ok_or_else(|| io::ErrorKind::NotConnected.into())
}

/// Returns the largest packet on the way of a connection, as the kernel has discovered it.
fn path_mtu(connection: &TcpStream) -> Option<u64> {
    if !connection.peer_addr().ok()?.is_ipv4() {
        return None;
    }
    let (mut mtu, mut len): (libc::c_int, _) = (0, size_of::<libc::c_int>() as libc::socklen_t);
    // SAFETY: both pointers are valid for the call, and `len` is the size of `mtu`.
    let outcome = unsafe {
        libc::getsockopt(
            connection.as_raw_fd(),
            libc::IPPROTO_IP,
            libc::IP_MTU,
            (&raw mut mtu).cast(),
            &raw mut len,
        )
    };
    if outcome == 0 { u64::try_from(mtu).ok() } else { None }
}

/// Returns the interface that has an address.
fn interface_of(address: IpAddr) -> Option<String> {
    let all = listen::interfaces().ok()?;
    all.into_iter().find_map(|(name, own)| (own == address).then_some(name))
}

/// Examines an interface: packet size, speed, drops.
fn interface(machine: &Machine, name: &str) -> Option<Finding> {
    let read = |leaf: &str| machine.number(&format!("/sys/class/net/{name}/{leaf}"));
    let (mtu, speed) = (read("mtu")?, read("speed").unwrap_or(0));
    let errors = read("statistics/rx_errors").unwrap_or(0) + read("statistics/tx_errors").unwrap_or(0);
    let packets = read("statistics/rx_packets").unwrap_or(0);
    let text = match speed {
        0 => format!("interface {name}: MTU {mtu}"),
        speed => format!("interface {name}: {speed} Mbit/s, MTU {mtu}"),
    };
    Some(if errors > packets / 10_000 && errors > 100 {
        Finding::warning(AREA, format!("{text}, {errors} errors in {packets} packets"))
            .remedy(format!("look at the cable and the switch: ip -s -s link show {name}"))
    } else if mtu <= MTU_ORDINARY && speed >= 10_000 {
        Finding::note(AREA, format!("{text}: large packets would save CPU"))
            .remedy(format!("where all hosts and switches allow it: ip link set {name} mtu 9000"))
    } else {
        Finding::ok(AREA, text)
    })
}

/// Examines how many TCP segments of this host had to be sent again.
fn losses(machine: &Machine) -> Option<Finding> {
    let text = machine.read("/proc/net/snmp")?;
    let mut lines = text.lines().filter_map(|line| line.strip_prefix("Tcp: "));
    let (names, values) = (lines.next()?, lines.next()?);
    let value = |name: &str| {
        let place = names.split(' ').position(|word| word == name)?;
        values.split(' ').nth(place)?.parse::<u64>().ok()
    };
    let (sent, again) = (value("OutSegs")?, value("RetransSegs")?);
    let percent = again as f64 * 100.0 / sent.max(1) as f64;
    let text = format!("{percent:.2} % of the TCP segments of this host were sent again since its start");
    Some(match sent > SEGMENTS_MIN && percent > LOSS_PERCENT {
        true => Finding::warning(AREA, text)
            .remedy("the network loses packets: look for drops with ip -s link and ethtool -S"),
        false => Finding::ok(AREA, text),
    })
}
