//! The edge of the client: a failure leaves as a status and, if it is a fault, with one line in the log.

use nacre_env::LogLimit;
use nacre_env::sync::Mutex;
use nacre_types::{Failure, FailureResult, Fid, Status, StatusResult, TargetId};
use std::collections::BTreeMap;

/// Limits on the lines about each target: with an unreachable target every request fails.
#[derive(Default)]
pub(crate) struct Faults(Mutex<BTreeMap<Option<TargetId>, LogLimit>>);

impl Faults {
    /// Runs an operation of the public interface; `action` is a phrase such as "read".
    pub fn edge<R>(
        &self,
        action: &'static str,
        operation: impl FnOnce() -> FailureResult<R>,
    ) -> StatusResult<R> {
        operation().map_err(|failure| self.log(failure.explain(|context| context.action(action))))
    }

    /// Runs an operation on one file in the same way.
    pub fn edge_on<R>(
        &self,
        action: &'static str,
        fid: Fid,
        operation: impl FnOnce() -> FailureResult<R>,
    ) -> StatusResult<R> {
        self.edge(action, || operation().map_err(|failure| failure.explain(|context| context.fid(fid))))
    }

    /// Logs a fault unless that was done; returns the status to answer with.
    pub fn log(&self, failure: Failure) -> Status {
        if failure.is_unlogged_fault()
            && let Some(left_out) = self.may_log(failure.target())
        {
            match left_out {
                0 => log::error!("{failure}"),
                left_out => log::error!("{failure} ({left_out} failures before not shown)"),
            }
        }
        failure.status()
    }

    /// Logs why data is lost that programs count as written. Here even a status that programs expect of a
    /// write, such as `ENOSPC`, is logged.
    pub fn log_loss(&self, fid: Fid, target: TargetId, failure: Failure) -> Failure {
        let status = failure.status();
        if !status.is_fault() && self.may_log(Some(target)).is_some() {
            log::error!("write back of {fid} on {target}: {status}");
        }
        Failure::logged(self.log(failure))
    }

    /// Returns how many lines about a target were suppressed before this one; `None` if this one is to be
    /// suppressed too.
    fn may_log(&self, target: Option<TargetId>) -> Option<u64> {
        self.0.lock().entry(target).or_default().admit()
    }
}
