//! The job that this thread works for.
//!
//! Code that receives a request from a program sets its job; calls to servers carry the name. It is
//! thread-local, like [`crate::interrupted`], so that the layers in between need not pass it on; code that
//! moves work to another thread sets the job there.

use nacre_types::job::JobId;
use std::cell::Cell;

thread_local! {
    static CURRENT: Cell<Option<JobId>> = const { Cell::new(None) };
}

/// Returns the job that this thread works for; `None` if none is set.
pub fn current_job() -> Option<JobId> {
    // A thread that is shutting down has no job.
    CURRENT.try_with(Cell::get).ok().flatten()
}

/// Sets the job of this thread, or none, until the guard is dropped.
pub fn enter_job(job: Option<JobId>) -> JobGuard {
    JobGuard { before: CURRENT.try_with(|current| current.replace(job)).ok().flatten() }
}

/// See [`enter_job`].
#[must_use = "the job is left when the guard is dropped"]
pub struct JobGuard {
    before: Option<JobId>,
}

impl Drop for JobGuard {
    fn drop(&mut self) {
        let _ = CURRENT.try_with(|current| current.set(self.before));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jobs_nest_and_are_of_the_thread() {
        let (outer, inner) = (JobId::new(b"outer"), JobId::new(b"inner"));
        assert_eq!(current_job(), None);
        {
            let _outer = enter_job(outer);
            {
                let _inner = enter_job(inner);
                assert_eq!(current_job(), inner);
                assert_eq!(crate::thread::spawn(current_job).join().expect("ends"), None);
            }
            assert_eq!(current_job(), outer);
        }
        assert_eq!(current_job(), None);
    }
}
