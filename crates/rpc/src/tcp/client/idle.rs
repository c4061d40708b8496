//! A thread of the process that closes idle connections (`idle_timeout`), and pings servers at intervals so
//! that they do not evict the client.

use super::peer::Peer;
use nacre_env::sync::Mutex;
use std::sync::{Arc, Weak};
use std::time::Duration;

/// Time between two scans.
const INTERVAL: Duration = Duration::from_secs(1);

struct Watched {
    peers: Vec<Weak<Peer>>,
    /// The thread runs; it ends when there is nothing to watch.
    is_running: bool,
}

static WATCHED: Mutex<Watched> = Mutex::new(Watched { peers: Vec::new(), is_running: false });

/// Closes idle connections of `peer` and keeps its server from evicting the client, as long as `peer` lives.
pub(crate) fn watch(peer: &Arc<Peer>) {
    // The thread belongs to the process, and would end with the simulation that happens to start it.
    if nacre_env::sim::is_here() {
        return;
    }
    let mut watched = WATCHED.lock();
    watched.peers.push(Arc::downgrade(peer));
    if watched.is_running {
        return;
    }
    match nacre_env::thread::Builder::new().name("rpc-idle".to_owned()).spawn(run) {
        Ok(_) => watched.is_running = true,
        Err(error) => log::warn!("idle connections stay open: {error}"),
    }
}

fn run() {
    loop {
        nacre_env::thread::sleep(INTERVAL);
        let peers: Vec<Arc<Peer>> = {
            let mut watched = WATCHED.lock();
            watched.peers.retain(|peer| peer.strong_count() > 0);
            if watched.peers.is_empty() {
                watched.is_running = false;
                return;
            }
            watched.peers.iter().filter_map(Weak::upgrade).collect()
        };
        for peer in peers {
            peer.close_idle();
            peer.show();
        }
    }
}
