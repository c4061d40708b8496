//! State of a client's import of a target, for `import` files.

use crate::stats::Averages;
use nacre_types::Nid;
use std::fmt::{Display, Formatter, Result};
use std::time::{Duration, UNIX_EPOCH};

/// State of an endpoint of a target.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum EndpointState {
    /// Not used yet, or closed because idle.
    Idle,
    /// Connected.
    Up,
    /// Left out after a failure; retried later.
    Down,
}

impl EndpointState {
    /// Returns the name for reports.
    pub const fn name(self) -> &'static str {
        match self {
            EndpointState::Idle => "IDLE",
            EndpointState::Up => "UP",
            EndpointState::Down => "DOWN",
        }
    }
}

/// Counters of one endpoint: one of the `conns_per_peer` of one NID of a target.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct EndpointStats {
    /// Address of the server.
    pub nid: Nid,
    /// Number of the endpoint among those of its NID, from 0.
    pub lane: usize,
    /// State at the time of the report.
    pub state: EndpointState,
    /// Number of connections that were set up.
    pub connects: u64,
    /// Number of requests sent.
    pub requests: u64,
    /// Requests without an answer on this endpoint, and failed connects.
    pub failures: u64,
    /// Bytes sent to the server, headers included.
    pub sent_bytes: u64,
    /// Bytes received from the server.
    pub received_bytes: u64,
    /// Requests in flight.
    pub in_flight: u64,
    /// Bytes of data of the requests in flight.
    pub queued_bytes: u64,
}

/// State of a client's import, in Lustre's words.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LinkState {
    /// Never connected.
    New,
    /// Connected.
    Full,
    /// No connection, and no request needs one.
    Idle,
    /// Connecting, or waiting for the next attempt.
    Connecting,
    /// The target is unreachable or was given up.
    Disconnected,
    /// The server dropped the client or restarted; the client restores its handles.
    Recover,
}

impl LinkState {
    /// Returns the name for `import` and `state` files.
    pub const fn name(self) -> &'static str {
        match self {
            LinkState::New => "NEW",
            LinkState::Full => "FULL",
            LinkState::Idle => "IDLE",
            LinkState::Connecting => "CONNECTING",
            LinkState::Disconnected => "DISCONN",
            LinkState::Recover => "RECOVER",
        }
    }
}

/// Difference between the clock of a server and that of this host, as of the last ping of a control connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ClockOffset {
    /// Microseconds that the server's clock is ahead; negative if it is behind.
    pub ahead_us: i64,
    /// Largest error of it in microseconds: half the time of the ping.
    pub within_us: u64,
}

impl ClockOffset {
    /// Returns the offset for a ping that took `took` and was answered at `server_us`, if the answer arrived at
    /// `received_us`; both in microseconds since 1970, by the clocks of server and client. `None` for a server
    /// that does not report its clock.
    pub(crate) fn of(server_us: u64, received_us: u64, took: Duration) -> Option<ClockOffset> {
        let within_us = took.as_micros() as u64 / 2;
        let here_us = received_us.saturating_sub(within_us);
        (server_us != 0).then(|| ClockOffset { ahead_us: server_us.wrapping_sub(here_us) as i64, within_us })
    }
}

/// Returns the time of this host's clock in microseconds since 1970.
pub(crate) fn wall_us() -> u64 {
    let since = nacre_env::clock::wall().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| since.as_micros() as u64)
}

/// A target as its client sees it. Its [`Display`] is the text of an `import` file, without the final
/// newline.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ImportInfo {
    /// Name of the target, `FSNAME-OST0000`.
    pub target: String,
    /// State of the import.
    pub state: LinkState,
    /// Features that both sides have.
    pub connect_flags: Vec<&'static str>,
    /// Addresses of the server, as configured.
    pub nids: Vec<Nid>,
    /// Address that small requests go to, if connected.
    pub current: Option<Nid>,
    /// Endpoints of the target.
    pub endpoints: Vec<EndpointStats>,
    /// Number of connections that were set up.
    pub connects: u64,
    /// Number of recoveries: the server had restarted or dropped the client.
    pub generation: u64,
    /// Requests in flight.
    pub in_flight: u64,
    /// Requests resent because their connection was lost or unresponsive.
    pub timeouts: u64,
    /// Frames to or from the target whose checksum was wrong; their contents were sent again.
    pub damaged: u64,
    /// Last replayed transaction, 0 if not known.
    pub last_replay: u64,
    /// Last transaction that the server has made durable, 0 if not known.
    pub peer_committed: u64,
    /// Averages of reads and of writes.
    pub averages: [Averages; 2],
    /// Difference of the server's clock, where the server has answered a ping. Not part of the text.
    pub clock: Option<ClockOffset>,
}

impl ImportInfo {
    /// Returns the import of a target in this process, whose connection cannot fail.
    pub fn local(target: String) -> ImportInfo {
        ImportInfo {
            target,
            state: LinkState::Full,
            connect_flags: Vec::new(),
            nids: vec![Nid::Lo],
            current: Some(Nid::Lo),
            endpoints: Vec::new(),
            connects: 1,
            generation: 0,
            in_flight: 0,
            timeouts: 0,
            damaged: 0,
            last_replay: 0,
            peer_committed: 0,
            averages: Default::default(),
            clock: None,
        }
    }
}

impl Display for ImportInfo {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        let nids: Vec<String> = self.nids.iter().map(|nid| format!("\"{nid}\"")).collect();
        let current = self.current.map_or_else(|| "<none>".to_owned(), |nid| format!("\"{nid}\""));
        let rpcs: u64 = self.averages.iter().map(|side| side.rpcs).sum();
        let time_us: u64 = self.averages.iter().map(|side| side.time_us).sum();
        writeln!(f, "import:")?;
        writeln!(f, "    name: {}", self.target)?;
        writeln!(f, "    target: {}_UUID", self.target)?;
        writeln!(f, "    state: {}", self.state.name())?;
        writeln!(f, "    connect_flags: [ {} ]", self.connect_flags.join(", "))?;
        writeln!(f, "    connection:")?;
        writeln!(f, "       failover_nids: [ {} ]", nids.join(", "))?;
        writeln!(f, "       current_connection: {current}")?;
        writeln!(f, "       connection_attempts: {}", self.connects)?;
        writeln!(f, "       generation: {}", self.generation)?;
        writeln!(f, "    endpoints:")?;
        for end in &self.endpoints {
            writeln!(
                f,
                "       - {{ nid: \"{}\", lane: {}, state: {}, connects: {}, requests: {}, failures: {}, \
                 sent_bytes: {}, received_bytes: {}, inflight: {}, queued_bytes: {} }}",
                end.nid,
                end.lane,
                end.state.name(),
                end.connects,
                end.requests,
                end.failures,
                end.sent_bytes,
                end.received_bytes,
                end.in_flight,
                end.queued_bytes
            )?;
        }
        writeln!(f, "    rpcs:")?;
        writeln!(f, "       inflight: {}", self.in_flight)?;
        writeln!(f, "       timeouts: {}", self.timeouts)?;
        writeln!(f, "       checksum_errors: {}", self.damaged)?;
        writeln!(f, "       avg_waittime: {} usec", time_us.checked_div(rpcs).unwrap_or(0))?;
        writeln!(f, "    transactions:")?;
        writeln!(f, "       last_replay: {}", self.last_replay)?;
        write!(f, "       peer_committed: {}", self.peer_committed)?;
        for (name, side) in ["read", "write"].iter().zip(&self.averages).filter(|(_, side)| side.rpcs > 0) {
            write!(f, "\n    {name}_data_averages:")?;
            write!(f, "\n       bytes_per_rpc: {}", side.bytes / side.rpcs)?;
            write!(f, "\n       usec_per_rpc: {}", side.time_us / side.rpcs)?;
            // Bytes per microsecond are megabytes per second.
            let hundredths = u128::from(side.bytes) * 100 / u128::from(side.time_us.max(1));
            write!(f, "\n       MB_per_sec: {}.{:02}", hundredths / 100, hundredths % 100)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_import_is_told_in_lustres_form() {
        let nid = Nid::Tcp("127.0.0.1:7988".parse().unwrap());
        let end = EndpointStats {
            nid,
            lane: 0,
            state: EndpointState::Up,
            connects: 1,
            requests: 2,
            failures: 0,
            sent_bytes: 200,
            received_bytes: 300,
            in_flight: 0,
            queued_bytes: 0,
        };
        let info = ImportInfo {
            target: "nacre-OST0000".to_owned(),
            state: LinkState::Full,
            connect_flags: vec!["bulk_checksum", "adler"],
            nids: vec![nid],
            current: Some(nid),
            endpoints: vec![end],
            connects: 1,
            generation: 0,
            in_flight: 3,
            timeouts: 4,
            damaged: 5,
            last_replay: 0,
            peer_committed: 12,
            averages: [Averages { rpcs: 2, bytes: 2 << 20, time_us: 1000 }, Averages::default()],
            clock: None,
        };
        let text = format!(
            "import:
    name: nacre-OST0000
    target: nacre-OST0000_UUID
    state: FULL
    connect_flags: [ bulk_checksum, adler ]
    connection:
       failover_nids: [ \"{nid}\" ]
       current_connection: \"{nid}\"
       connection_attempts: 1
       generation: 0
    endpoints:
       - {{ nid: \"{nid}\", lane: 0, state: UP, connects: 1, requests: 2, failures: 0, sent_bytes: 200, received_bytes: 300, inflight: 0, queued_bytes: 0 }}
    rpcs:
       inflight: 3
       timeouts: 4
       checksum_errors: 5
       avg_waittime: 500 usec
    transactions:
       last_replay: 0
       peer_committed: 12
    read_data_averages:
       bytes_per_rpc: 1048576
       usec_per_rpc: 500
       MB_per_sec: 2097.15"
        );
        assert_eq!(info.to_string(), text);
    }

    #[test]
    fn a_clock_is_ahead_by_what_the_answer_says_beyond_half_the_ping() {
        let took = Duration::from_micros(200);
        let offset = |server_us| ClockOffset::of(server_us, 5_000_100, took).map(|offset| offset.ahead_us);
        assert_eq!(offset(5_000_000), Some(0));
        assert_eq!(offset(7_000_000), Some(2_000_000));
        assert_eq!(offset(4_000_000), Some(-1_000_000));
        assert_eq!(offset(0), None, "a server of an older version");
        assert_eq!(ClockOffset::of(1, 1, took).map(|offset| offset.within_us), Some(100));
    }
}
