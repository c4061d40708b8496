//! The stop of a service.

use nacre_store::object::ObjectError;

/// Why a service was not stopped in order.
#[derive(Debug)]
pub enum StopError {
    /// Number of requests in progress at the deadline. Nothing was closed.
    InProgress(u64),
    /// The store failed to make everything durable.
    Store(ObjectError),
}

impl std::fmt::Display for StopError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            StopError::InProgress(count) => write!(f, "{count} requests are still in progress"),
            StopError::Store(error) => write!(f, "close the object store: {error}"),
        }
    }
}

impl std::error::Error for StopError {}
