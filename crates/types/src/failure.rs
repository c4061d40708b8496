//! A status with its context for the log.
//!
//! Results that programs expect (`ENOENT`, `EACCES`, `EAGAIN`) carry no context and cost nothing. Those that
//! an administrator has to understand ([`Status::is_fault`]) carry the file, the target, the offset in the
//! file and the cause, from the place of detection to the edge of the service or of the client, which logs
//! them once and returns only the status.

use std::fmt;

use crate::{Fid, Status, TargetId};

/// Shorthand for results whose error is a [`Failure`].
pub type FailureResult<T> = Result<T, Failure>;

/// The error of a step: a status, and for faults their context.
pub struct Failure {
    status: Status,
    /// True if the log has it already.
    is_logged: bool,
    context: Option<Box<Context>>,
}

/// Context of a fault. The first value of each field stays: the step closest to the fault knows it best.
#[derive(Default, Clone, PartialEq, Eq, Debug)]
pub struct Context {
    action: Option<&'static str>,
    fid: Option<Fid>,
    target: Option<TargetId>,
    offset: Option<u64>,
    cause: Option<String>,
}

impl Context {
    /// Sets the attempted action, a phrase such as "read" or "get the layout".
    pub fn action(&mut self, action: &'static str) -> &mut Context {
        self.action.get_or_insert(action);
        self
    }

    /// Sets the file, directory or object concerned.
    pub fn fid(&mut self, fid: Fid) -> &mut Context {
        self.fid.get_or_insert(fid);
        self
    }

    /// Sets the target that failed, or that the request went to.
    pub fn target(&mut self, target: TargetId) -> &mut Context {
        self.target.get_or_insert(target);
        self
    }

    /// Sets the offset in the file or object, in bytes.
    pub fn offset(&mut self, offset: u64) -> &mut Context {
        self.offset.get_or_insert(offset);
        self
    }

    /// Sets the reason, such as an error of a store or of the system. It must contain no secret.
    pub fn cause(&mut self, cause: impl fmt::Display) -> &mut Context {
        self.cause.get_or_insert_with(|| cause.to_string());
        self
    }
}

impl Failure {
    /// Returns the status for a peer or a program.
    pub const fn status(&self) -> Status {
        self.status
    }

    /// Creates a failure that is logged already: the caller only has to answer with the status.
    pub const fn logged(status: Status) -> Failure {
        Failure { status, is_logged: true, context: None }
    }

    /// True if it belongs in the log, and is not logged yet.
    pub const fn is_unlogged_fault(&self) -> bool {
        self.status.is_fault() && !self.is_logged
    }

    /// Returns the target that failed, or that the request went to, if known.
    pub fn target(&self) -> Option<TargetId> {
        self.context.as_ref()?.target
    }

    /// Adds context to a fault; any other result stays as it is.
    pub fn explain(mut self, describe: impl FnOnce(&mut Context) -> &mut Context) -> Failure {
        if self.status.is_fault() && !self.is_logged {
            describe(self.context.get_or_insert_default());
        }
        self
    }
}

/// Adds context to the error of a result.
pub trait Explain<T> {
    /// Adds context; `describe` runs for faults only.
    ///
    /// # Errors
    /// The error of the result, with context.
    fn explain(self, describe: impl FnOnce(&mut Context) -> &mut Context) -> FailureResult<T>;
}

impl<T, E: Into<Failure>> Explain<T> for Result<T, E> {
    fn explain(self, describe: impl FnOnce(&mut Context) -> &mut Context) -> FailureResult<T> {
        self.map_err(|error| error.into().explain(describe))
    }
}

impl From<Status> for Failure {
    fn from(status: Status) -> Failure {
        Failure { status, is_logged: false, context: None }
    }
}

impl PartialEq<Status> for Failure {
    fn eq(&self, status: &Status) -> bool {
        self.status == *status
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(context) = &self.context else { return self.status.fmt(f) };
        let Context { action, fid, target, offset, cause } = &**context;
        f.write_str(action.unwrap_or("request"))?;
        fid.iter().try_for_each(|fid| write!(f, " of {fid}"))?;
        offset.iter().try_for_each(|offset| write!(f, " at byte {offset}"))?;
        target.iter().try_for_each(|target| write!(f, " on {target}"))?;
        write!(f, ": {}", self.status)?;
        cause.iter().try_for_each(|cause| write!(f, ": {cause}"))
    }
}

impl fmt::Debug for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl std::error::Error for Failure {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fault_names_what_it_is_about_and_the_closest_step_wins() {
        let read: FailureResult<()> = Err(Status::EIO)
            .explain(|context| {
                context.action("read").offset(4096).target(TargetId::ost(3)).cause("checksum differs")
            })
            .explain(|context| context.fid(Fid::new(0x2_0000_0401, 1, 0)).offset(0).target(TargetId::ost(4)));
        let failure = read.expect_err("as made");
        assert_eq!(failure, Status::EIO);
        assert_eq!(
            failure.to_string(),
            "read of [0x200000401:0x1:0x0] at byte 4096 on OST0003: input/output error (EIO): checksum differs"
        );
    }

    #[test]
    fn an_expected_result_carries_nothing() {
        let failure = Failure::from(Status::ENOENT).explain(|_| unreachable!("it is no fault"));
        assert_eq!((failure.status(), failure.to_string()), (Status::ENOENT, Status::ENOENT.to_string()));
        let logged = Failure::logged(Status::EIO).explain(|_| unreachable!("the log has it"));
        assert!(!logged.is_unlogged_fault() && Failure::from(Status::EIO).is_unlogged_fault());
    }
}
