//! Requests about quotas, to their master.

use crate::caller::Caller;
use crate::client::Client;
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
        let request = MdsRequest::Quota(request.clone());
        match self.requests.call_within(&caller.full_cred(), place, &request, WAIT)? {
            MdsReply::Quota(reply) => Ok(reply),
            _ => Err(Status::EPROTO),
        }
    }
}
