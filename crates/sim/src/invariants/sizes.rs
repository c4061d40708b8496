//! The size that an MDT has stored as exact is that of the data.

use nacre_client::Client;
use nacre_types::{Fid, SizeSource, StatusResult};

/// Compares the size that the MDT of a file has stored with the one of its objects. The file is closed.
///
/// # Errors
/// Both sizes, if they differ.
pub(crate) fn check(client: &Client, fid: Fid) -> Result<(), String> {
    let sizes = || -> StatusResult<_> { Ok((client.inodes.mdt_attr(fid)?, client.inodes.getattr(fid)?)) };
    match sizes() {
        Ok((stored, attr)) if stored.size_source == SizeSource::Exact && stored.size != attr.size => {
            Err(format!("{fid}: its MDT has stored {} bytes, its data has {}", stored.size, attr.size))
        }
        // Failures are in the history of the audit.
        _ => Ok(()),
    }
}
