//! No two clients hold locks that exclude each other.

use crate::cluster::Cluster;

/// Checks the locks of all running targets.
///
/// # Errors
/// A pair of locks.
pub(crate) fn check(cluster: &Cluster) -> Result<(), String> {
    for target in &cluster.targets {
        let of_objects = target.oss().map(|oss| oss.locks().conflicts()).unwrap_or_default();
        let of_inodes = target.mds().map(|mds| mds.mdlocks.conflicts()).unwrap_or_default();
        if let Some(conflict) = of_objects.first().or(of_inodes.first()) {
            return Err(format!("{} has granted locks that exclude each other: {conflict}", target.id));
        }
    }
    Ok(())
}
