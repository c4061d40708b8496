//! Rate limit of log messages that any request may cause: at most one per interval, with the count of those
//! left out.

use nacre_env::clock::Instant;
use nacre_env::sync::Mutex;
use nacre_types::Status;
use std::time::Duration;

/// Time between two messages.
const EVERY: Duration = Duration::from_secs(5);

/// See the [module documentation](self).
#[derive(Default)]
pub(crate) struct Seldom {
    /// When the last message was logged, and how many were left out since.
    state: Mutex<(Option<Instant>, u64)>,
}

impl Seldom {
    /// Whether a message is to be logged now, and how many were left out before it.
    pub(crate) fn pass(&self) -> Option<u64> {
        let mut state = self.state.lock();
        if state.0.is_some_and(|when| when.elapsed() < EVERY) {
            state.1 += 1;
            return None;
        }
        state.0 = Some(Instant::now());
        Some(std::mem::take(&mut state.1))
    }
}

/// Returns whether a failure is due to the request or a full disk, and not to a broken one.
pub(crate) fn is_expected(status: Status) -> bool {
    matches!(
        status,
        Status::ENOSPC
            | Status::EDQUOT
            | Status::EFBIG
            | Status::ENXIO
            | Status::EINVAL
            | Status::EINTR
            | Status::EOPNOTSUPP
            | Status::ESHUTDOWN
            | Status::EVICTED
    )
}
