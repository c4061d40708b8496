//! Whether an OST answers: a thread for each asks now and then, as requests that hang say so too late.
//!
//! A server whose process has ended refuses connections, which is known with the next question. One that is stopped or cut off is silent;
//! a busy one may be for a moment, so it has longer.

use super::ost::Ost;
use crate::error::MdsError;
use nacre_env::clock::Instant;
use nacre_rpc::{LinkState, OssEndpoint};
use std::sync::Arc;
use std::time::Duration;

/// Time between two questions, and for an answer until the way to the server is looked at.
const INTERVAL: Duration = Duration::from_secs(1);
/// How long a server may be silent on a connection that is there.
const SILENT_MAX: Duration = Duration::from_secs(5);

/// Starts the thread; it ends soon after the OST is stopped.
pub fn start(ost: &Arc<Ost>) -> Result<(), MdsError> {
    // Only a way over a network can fail.
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
        // One that is out of use is asked nothing.
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
