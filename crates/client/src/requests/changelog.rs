//! Requests of administrators about changelogs.

use crate::client::Client;
use nacre_env::clock::Instant;
use nacre_types::{Fid, Status, StatusResult};
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
        if !self.requests.is_connected(mdt) {
            return Err(Status::EAGAIN);
        }
        let place = Fid::new(Fid::first_sequence_of_mdt(mdt), 1, 0);
        let ask = || self.requests.call_system(place, &MdsRequest::Changelog(request.clone()));
        // An unreachable MDT or a refusal is an expected result here, and no fault.
        match nacre_env::until(Instant::now() + WAIT, ask) {
            Ok(answer) => match answer.reply {
                MdsReply::Changelog(reply) => Ok(reply),
                _ => Err(Status::EPROTO),
            },
            Err(failure) if failure == Status::EINTR => Err(Status::EAGAIN),
            Err(failure) => Err(failure.status()),
        }
    }
}
