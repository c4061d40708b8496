//! Requests about quotas, to their master.

use crate::caller::Caller;
use crate::client::Client;
use nacre_env::clock::Instant;
use nacre_types::{Fid, Status, StatusResult};
use nacre_wire::mds::{MdsReply, MdsRequest};
use nacre_wire::quota::{QuotaReply, QuotaRequest};
use std::time::Duration;

/// Longest wait for the master: a program waits for the reply.
const WAIT: Duration = Duration::from_secs(10);

impl Client {
    /// Sends a request to the quota master, MDT0000, with the rights of a caller: the master decides by its groups and
    /// capabilities.
    ///
    /// # Errors
    /// `EAGAIN` if the MDT is unreachable; those of the master.
    pub fn quota(&self, caller: &Caller, request: &QuotaRequest) -> StatusResult<QuotaReply> {
        let place = Fid::new(Fid::first_sequence_of_mdt(0), 1, 0);
        if !self.requests.is_connected(place.mdt_index()) {
            return Err(Status::EAGAIN);
        }
        let request = MdsRequest::Quota(request.clone());
        let ask = || self.requests.call_as(&caller.full_cred(), place, &request);
        // A refusal is an expected result here, and no fault.
        match nacre_env::until(Instant::now() + WAIT, ask) {
            Ok(answer) => match answer.reply {
                MdsReply::Quota(reply) => Ok(reply),
                _ => Err(Status::EPROTO),
            },
            Err(failure) if failure == Status::EINTR => Err(Status::EAGAIN),
            Err(failure) => Err(failure.status()),
        }
    }
}
