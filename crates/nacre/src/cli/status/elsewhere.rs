//! Targets that other hosts serve, according to the management server, and whether they accept connections.

use crate::cli::target::mgs_of;
use crate::instance::Instance;
use crate::node::configuration_at;
use nacre_types::{Nid, TargetId};
use serde::Serialize;
use std::net::TcpStream;
use std::time::Duration;

/// Timeout of a connection attempt.
const CONNECT_LIMIT: Duration = Duration::from_secs(1);
/// Parallel connection attempts.
const TRIED_AT_ONCE: usize = 64;

/// A target that is served from another directory.
#[derive(Debug, Serialize)]
pub struct Elsewhere {
    /// `MDT0000`, `OST0000`.
    pub target: String,
    /// NIDs of the target.
    pub nids: Vec<String>,
    /// One of its addresses accepts connections.
    pub answers: bool,
}

/// Returns the targets on other hosts of the file system to which the directory belongs; none if the
/// management server does not answer.
pub fn of(instance: &Instance) -> Vec<Elsewhere> {
    let own = instance.targets();
    let config = mgs_of(instance)
        .and_then(|mgs| configuration_at(&mgs, &instance.superblock.fsname, Some(&instance.dir)));
    let Ok(config) = config else { return Vec::new() };
    let others = config.targets.into_iter().filter(|known| !own.contains(&known.target));
    let others: Vec<(TargetId, Vec<Nid>)> = others.map(|known| (known.target, known.nids)).collect();
    let mut all = Vec::with_capacity(others.len());
    for some in others.chunks(TRIED_AT_ONCE) {
        let answers: Vec<bool> = nacre_env::thread::scope(|scope| {
            let tries: Vec<_> =
                some.iter().map(|(_, nids)| scope.spawn(|| takes_connections(nids))).collect();
            tries.into_iter().map(|one| one.join().unwrap_or(false)).collect()
        });
        all.extend(some.iter().zip(answers).map(|((target, nids), answers)| Elsewhere {
            target: target.to_string(),
            nids: nids.iter().map(Nid::to_string).collect(),
            answers,
        }));
    }
    all
}

fn takes_connections(nids: &[Nid]) -> bool {
    nids.iter().any(|nid| match nid {
        Nid::Tcp(address) => TcpStream::connect_timeout(address, CONNECT_LIMIT).is_ok(),
        Nid::Lo => false,
    })
}
