//! Limits before authentication: half-open connections in total and per host, and failed handshakes per host.
//!
//! A new connection evicts the oldest: a host that floods a server evicts its own. In total, connections of
//! hosts with clients are evicted last, and those that have sent something valid after those that have not.
//! Pure: times are arguments.

use nacre_env::clock::Instant;
use std::collections::{BTreeSet, HashMap};
use std::net::{IpAddr, Ipv6Addr};
use std::time::Duration;

/// Failed attempts of a host that are accepted in a burst.
const FAILURES_MAX: f64 = 16.0;
/// Failed attempts of a host per second that are accepted in the long run.
const FAILURES_PER_S: f64 = 2.0;
/// Time after its last connection for which a host counts as a host with clients.
const KNOWN_FOR: Duration = Duration::from_secs(600);
/// Hosts that are remembered beyond those with connections.
const HOSTS_SPARE: usize = 4096;

/// Unit of the limits: an address, or with IPv6 the network of a link, in which a host takes as many
/// addresses as it likes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct Host(IpAddr);

impl Host {
    fn of(address: IpAddr) -> Host {
        match address.to_canonical() {
            IpAddr::V6(address) => Host(Ipv6Addr::from(u128::from(address) >> 64 << 64).into()),
            address => Host(address),
        }
    }
}

/// A half-open connection, in the order of eviction: first those that have sent nothing, and of these the
/// oldest.
type Place = (Rank, u64);

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct Rank {
    is_known: bool,
    has_progressed: bool,
}

#[derive(Debug)]
struct State {
    half_open: BTreeSet<Place>,
    connected: usize,
    /// End of the last connection.
    left: Option<Instant>,
    /// Failed attempts, less those that have expired.
    failures: f64,
    counted: Instant,
}

impl State {
    fn failures(&self, now: Instant) -> f64 {
        let forgiven = now.saturating_duration_since(self.counted).as_secs_f64() * FAILURES_PER_S;
        (self.failures - forgiven).max(0.0)
    }

    fn is_known(&self, now: Instant) -> bool {
        self.connected > 0 || self.left.is_some_and(|left| now.saturating_duration_since(left) < KNOWN_FOR)
    }

    fn is_empty(&self) -> bool {
        self.connected == 0 && self.half_open.is_empty()
    }
}

/// Decision about a new connection.
#[derive(PartialEq, Eq, Debug)]
pub(super) enum Arrival {
    /// Accepted; the connections to evict for it.
    Taken(Vec<u64>),
    /// Refused: its host has failed too often.
    TooManyFailures,
}

/// Counts connections by their host.
#[derive(Debug)]
pub(super) struct Limits {
    total_max: usize,
    host_max: usize,
    hosts_max: usize,
    hosts: HashMap<Host, State>,
    half_open: HashMap<u64, (Host, Rank)>,
    places: BTreeSet<Place>,
}

impl Limits {
    pub(super) fn new(total_max: usize, host_max: usize, connections_max: usize) -> Limits {
        Limits {
            total_max: total_max.max(1),
            host_max: host_max.max(1),
            hosts_max: total_max + connections_max + HOSTS_SPARE,
            hosts: HashMap::new(),
            half_open: HashMap::new(),
            places: BTreeSet::new(),
        }
    }

    fn host(&mut self, host: Host, now: Instant) -> &mut State {
        if self.hosts.len() >= self.hosts_max && !self.hosts.contains_key(&host) {
            self.hosts.retain(|_, state| !state.is_empty() || state.is_known(now));
            if self.hosts.len() >= self.hosts_max {
                self.hosts.retain(|_, state| !state.is_empty());
            }
        }
        self.hosts.entry(host).or_insert_with(|| State {
            half_open: BTreeSet::new(),
            connected: 0,
            left: None,
            failures: 0.0,
            counted: now,
        })
    }

    /// Registers a new connection. `is_own`: from the server's own host, whose users must not lock each other
    /// out; failed attempts do not count there.
    pub(super) fn arrive(&mut self, address: IpAddr, id: u64, now: Instant, is_own: bool) -> Arrival {
        let (host, host_max) = (Host::of(address), self.host_max);
        let state = self.host(host, now);
        let (is_known, has_failed) = (state.is_known(now), state.failures(now) >= FAILURES_MAX);
        if has_failed && !is_own && !is_known {
            return Arrival::TooManyFailures;
        }
        let rank = Rank { is_known: is_known && !has_failed, has_progressed: false };
        let of_host = state.half_open.first().filter(|_| state.half_open.len() >= host_max).copied();
        state.half_open.insert((rank, id));
        let mut gone = Vec::new();
        if let Some((_, oldest)) = of_host {
            self.leave(oldest);
            gone.push(oldest);
        }
        if self.places.len() >= self.total_max
            && let Some(&(_, first)) = self.places.first()
        {
            self.leave(first);
            gone.push(first);
        }
        self.half_open.insert(id, (host, rank));
        self.places.insert((rank, id));
        Arrival::Taken(gone)
    }

    /// Evicts the half-open connection to close when the process runs out of descriptors.
    pub(super) fn make_room(&mut self) -> Option<u64> {
        let (_, first) = *self.places.first()?;
        self.leave(first);
        Some(first)
    }

    /// Notes that a connection has sent something valid.
    pub(super) fn progress(&mut self, id: u64) {
        let Some((host, rank)) = self.half_open.get_mut(&id) else { return };
        let (old, host) = (*rank, *host);
        rank.has_progressed = true;
        let new = *rank;
        self.places.remove(&(old, id));
        self.places.insert((new, id));
        if let Some(state) = self.hosts.get_mut(&host) {
            state.half_open.remove(&(old, id));
            state.half_open.insert((new, id));
        }
    }

    /// Removes a connection from the half-open ones. Returns false if it was evicted before.
    pub(super) fn leave(&mut self, id: u64) -> bool {
        let Some((host, rank)) = self.half_open.remove(&id) else { return false };
        self.places.remove(&(rank, id));
        if let Some(state) = self.hosts.get_mut(&host) {
            state.half_open.remove(&(rank, id));
        }
        true
    }

    /// Returns true if the connection is still half-open.
    pub(super) fn has(&self, id: u64) -> bool {
        self.half_open.contains_key(&id)
    }

    pub(super) fn half_open(&self) -> usize {
        self.half_open.len()
    }

    /// Counts a failed attempt.
    pub(super) fn failed(&mut self, address: IpAddr, now: Instant) {
        let state = self.host(Host::of(address), now);
        (state.failures, state.counted) = ((state.failures(now) + 1.0).min(2.0 * FAILURES_MAX), now);
    }

    /// Counts a connection that is served from now on.
    pub(super) fn connected(&mut self, address: IpAddr, now: Instant) {
        self.host(Host::of(address), now).connected += 1;
    }

    /// Counts the end of a served connection.
    pub(super) fn disconnected(&mut self, address: IpAddr, now: Instant) {
        if let Some(state) = self.hosts.get_mut(&Host::of(address)) {
            state.connected = state.connected.saturating_sub(1);
            state.left = Some(now);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv4Addr;

    fn host(number: u32) -> IpAddr {
        Ipv4Addr::from(0x0a00_0000 + number).into()
    }

    fn limits() -> Limits {
        Limits::new(100, 10, 50)
    }

    #[test]
    fn a_host_that_floods_pushes_out_its_own_connections_alone() {
        let (mut limits, now) = (limits(), Instant::now());
        assert_eq!(limits.arrive(host(1), 1, now, false), Arrival::Taken(vec![]));
        limits.arrive(host(2), 2, now, false);
        limits.progress(2);
        for id in 3..12 {
            assert_eq!(limits.arrive(host(2), id, now, false), Arrival::Taken(vec![]));
        }
        for id in 12..1000 {
            assert_eq!(
                limits.arrive(host(2), id, now, false),
                Arrival::Taken(vec![id - 9]),
                "silent ones first"
            );
        }
        assert!(limits.has(1) && limits.has(2));
        assert_eq!(limits.half_open(), 11);
    }

    #[test]
    fn in_a_flood_from_everywhere_hosts_with_clients_and_those_that_speak_stay() {
        let (mut limits, now) = (limits(), Instant::now());
        limits.connected(host(1), now);
        limits.arrive(host(1), 1, now, false);
        limits.arrive(host(2), 2, now, false);
        limits.progress(2);
        for id in 3..20_000 {
            limits.arrive(host(id as u32), id, now, false);
            assert!(limits.half_open() <= 100);
        }
        assert!(limits.has(1) && limits.has(2) && !limits.has(3));
        assert!(limits.hosts.len() <= limits.hosts_max);
        assert!(limits.leave(1) && !limits.leave(3));
        assert!((3..20_000).filter_map(|_| limits.make_room()).count() == 99 && limits.half_open() == 0);
    }

    #[test]
    fn a_host_that_fails_again_and_again_waits_unless_it_has_clients() {
        let (mut limits, now) = (limits(), Instant::now());
        limits.connected(host(2), now);
        for _ in 0..1000 {
            (1..4).for_each(|number| limits.failed(host(number), now));
        }
        assert_eq!(limits.arrive(host(1), 1, now, false), Arrival::TooManyFailures);
        assert_eq!(limits.arrive(host(2), 2, now, false), Arrival::Taken(vec![]), "it has clients");
        assert_eq!(limits.arrive(host(3), 3, now, true), Arrival::Taken(vec![]), "it is the server's own");
        assert_eq!(limits.arrive(host(9), 4, now, false), Arrival::Taken(vec![]), "it has not failed");
        let soon = now + Duration::from_secs(10);
        assert_eq!(limits.arrive(host(1), 5, soon, false), Arrival::Taken(vec![]), "it waited");
        limits.disconnected(host(2), now);
        assert_eq!(limits.arrive(host(2), 6, now + KNOWN_FOR / 2, false), Arrival::Taken(vec![]));
    }

    #[test]
    fn addresses_of_one_ipv6_network_are_one_host() {
        let (mut limits, now) = (limits(), Instant::now());
        let address = |low: u128| IpAddr::V6(Ipv6Addr::from((0x2001_0db8 << 96) + low));
        for id in 0..50 {
            limits.arrive(address(u128::from(id)), id, now, false);
        }
        assert_eq!(limits.half_open(), 10);
        limits.arrive(address(1 << 64), 50, now, false);
        assert_eq!(limits.half_open(), 11);
    }

    #[test]
    fn hosts_that_are_gone_are_forgotten_when_there_are_many() {
        let (mut limits, now) = (limits(), Instant::now());
        for number in 0..50_000 {
            limits.failed(host(number), now);
            assert!(limits.hosts.len() <= limits.hosts_max);
        }
    }
}
