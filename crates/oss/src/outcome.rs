//! Results of requests.

use nacre_store::object::ObjectError;
use nacre_types::Status;
use nacre_wire::oss::OssReply;

/// Reply, and the amount for the counters.
pub(crate) type Outcome = Result<(OssReply, u64), Refusal>;

/// Why a request failed.
pub(crate) enum Refusal {
    /// The request is invalid or not permitted.
    Argument(Status),
    /// The store failed.
    Store(ObjectError),
}

impl From<Status> for Refusal {
    fn from(status: Status) -> Refusal {
        Refusal::Argument(status)
    }
}

impl From<ObjectError> for Refusal {
    fn from(error: ObjectError) -> Refusal {
        Refusal::Store(error)
    }
}
