//! Closes that may not have reached the MDT yet.

use crate::file::{FileInner, OpenFile};
use crate::node::NodeTable;
use crate::requests::Requests;
use nacre_env::clock::Instant;
use nacre_types::{Fid, StatusResult};
use std::sync::atomic::Ordering;
use std::time::Duration;

/// What is known of opens of which a descriptor was closed.
pub(crate) enum Closes<'a> {
    /// The kernel reports each close. This open, which stays, does not count.
    Told(Option<&'a OpenFile>),
    /// The kernel reports no closes: all opens but one may be closed.
    Untold,
}

/// Waits until the MDT has applied the reports of closes of an inode: times that are set afterwards are
/// newer.
///
/// # Errors
/// `EINTR`, `ESHUTDOWN`.
pub(crate) fn wait_for_closes(requests: &Requests, nodes: &NodeTable, fid: Fid) -> StatusResult<()> {
    if nodes.is_being_told(fid.inode_number()) {
        requests.mdt(fid)?.endpoint.wait_for_posts()?;
        nodes.forget_told(fid.inode_number());
    }
    Ok(())
}

/// Waits until opens of the file whose descriptors are closed are released, and the MDT has the close; false
/// if there are none. The kernel reports the end of an open file only after close(2) has returned.
pub(crate) fn await_closes(
    requests: &Requests,
    nodes: &NodeTable,
    fid: Fid,
    closes: &Closes<'_>,
    timeout: Duration,
) -> StatusResult<bool> {
    let Some(file) = nodes.file(fid.inode_number()) else { return Ok(false) };
    let is_over = |inner: &FileInner| match closes {
        // A child process of the program has closed its copy of the program's own descriptor.
        Closes::Told(own) => {
            let own = own.is_some_and(|own| own.closing.load(Ordering::Relaxed));
            inner.users.closing <= u32::from(own)
        }
        Closes::Untold => inner.users.opens <= 1,
    };
    if is_over(&file.lock()) {
        return Ok(false);
    }
    // Another descriptor of the same open file may still exist, so the wait is bounded.
    let deadline = Instant::now() + timeout;
    file.wait_for(|inner| (is_over(inner) || Instant::now() >= deadline).then_some(()))?;
    requests.mdt(fid)?.endpoint.wait_for_posts()?;
    Ok(true)
}
