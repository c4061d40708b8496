//! Monitoring of OSTs: a thread for each pings it regularly, as timeouts of requests would detect a failure
//! too late.
//!
//! A server whose process has ended refuses connections, which the next ping detects. A server that is
//! stopped or cut off is unresponsive; a busy one may be so for a moment, so its limit is longer.

use super::ost::Ost;
use crate::error::MdsError;
use nacre_env::clock::Instant;
use nacre_rpc::{LinkState, OssEndpoint};
use std::sync::Arc;
use std::time::Duration;

/// Interval of pings, and time for an answer until the connection to the server is checked.
const INTERVAL: Duration = Duration::from_secs(1);
/// How long a server may be unresponsive on an open connection.
const SILENT_MAX: Duration = Duration::from_secs(5);

/// Starts the thread; it ends soon after the OST is stopped.
pub fn start(ost: &Arc<Ost>) -> Result<(), MdsError> {
    // Only an endpoint on the network can fail.
    if ost.endpoint().import().is_none() {
        return Ok(());
    }
    let ost = ost.clone();
    nacre_env::thread::Builder::new()
        .name(format!("watch-ost{:04x}", ost.index))
        .spawn(move || run(&ost))
        .map(|_| ())
        .map_err(MdsError::Thread)
}

fn run(ost: &Ost) {
    let mut heard = Instant::now();
    while ost.wait_unless_stopped(INTERVAL) {
        let endpoint = ost.endpoint();
        // A deactivated OST gets no pings.
        if !endpoint.is_active() || ost.ping(INTERVAL).is_ok() {
            heard = Instant::now();
            ost.note_away(false);
        } else if !is_connected(&*endpoint) || heard.elapsed() >= SILENT_MAX {
            ost.note_away(true);
        }
    }
}

fn is_connected(endpoint: &dyn OssEndpoint) -> bool {
    endpoint.import().is_none_or(|import| import.state == LinkState::Full)
}
