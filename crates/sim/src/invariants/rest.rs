//! Once clients have left, targets keep nothing of them: no locks, grants, open files and connections.

use crate::cluster::Cluster;
use nacre_env::clock::Instant;
use std::time::Duration;

/// Time for a target to notice that clients have left whose disconnect was lost: as a metadata target waits for
/// clients without contact, and more.
const NOTICED: Duration = Duration::from_secs(100);
const POLL: Duration = Duration::from_millis(500);

/// Waits until all targets are at rest.
///
/// # Errors
/// What a target keeps.
pub(crate) fn await_rest(cluster: &Cluster) -> Result<(), String> {
    let until = Instant::now() + NOTICED;
    loop {
        let left = left(cluster);
        if left.is_empty() || Instant::now() > until {
            let kept = || format!("{NOTICED:?} after all clients have left: {}", left.join(", "));
            return if left.is_empty() { Ok(()) } else { Err(kept()) };
        }
        nacre_env::thread::sleep(POLL);
    }
}

fn left(cluster: &Cluster) -> Vec<String> {
    let mut left = Vec::new();
    for target in &cluster.targets {
        if let Some(oss) = target.oss() {
            let (locks, bytes) = (oss.locks().lock_count(), oss.granted_bytes());
            if (locks, bytes) != (0, 0) {
                left.push(format!(
                    "{} has {locks} locks on objects and has granted {bytes} bytes",
                    target.id
                ));
            }
        }
        if let Some(mds) = target.mds() {
            let locks = mds.mdlocks.lock_count();
            let open: usize = cluster.clients.iter().map(|host| mds.open_files(&host.uuid(0)).len()).sum();
            if (locks, open) != (0, 0) {
                left.push(format!("{} has {locks} locks on inodes and {open} open files", target.id));
            }
        }
    }
    left
}
