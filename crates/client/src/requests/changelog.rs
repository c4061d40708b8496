//! Requests of administrators about changelogs.

use crate::client::Client;
use nacre_types::{Cred, Fid, Status, StatusResult};
use nacre_wire::changelog::{ChangelogReply, ChangelogRequest};
use nacre_wire::mds::{MdsReply, MdsRequest};
use std::time::Duration;

/// Longest wait for an MDT: the caller serves other requests after this one.
const WAIT: Duration = Duration::from_secs(5);

impl Client {
    /// Sends a request about the changelog of an MDT, as root.
    ///
    /// # Errors
    /// `ENODEV` if there is no such MDT; `EAGAIN` if it is unreachable; those of the MDT.
    pub fn changelog(&self, mdt: u16, request: &ChangelogRequest) -> StatusResult<ChangelogReply> {
        if usize::from(mdt) >= self.requests.mdts.len() {
            return Err(Status::ENODEV);
        }
        let place = Fid::new(Fid::first_sequence_of_mdt(mdt), 1, 0);
        let request = MdsRequest::Changelog(request.clone());
        match self.requests.call_within(&Cred::system(), place, &request, WAIT)? {
            MdsReply::Changelog(reply) => Ok(reply),
            _ => Err(Status::EPROTO),
        }
    }
}
