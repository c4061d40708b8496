//! Conditions with deadlines.

use std::time::{Duration, Instant};

/// Timeout, on a busy machine, for a condition that should hold at once.
pub const SOON: Duration = Duration::from_secs(60);

/// Waits until a process has ended; it may be a zombie whose parent has not asked for its code.
#[track_caller]
pub fn until_ended(limit: Duration, pid: u32) {
    until(limit, "a process has ended", || {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        (stat.is_empty() || stat.contains(") Z ")).then_some(())
    });
}

/// Interval between checks of a condition.
const PERIOD: Duration = Duration::from_millis(2);

/// Polls `condition` until it returns a value.
///
/// # Panics
///
/// When `limit` has passed; the message contains `what`.
#[track_caller]
pub fn until<T>(limit: Duration, what: &str, condition: impl FnMut() -> Option<T>) -> T {
    match within(limit, condition) {
        Some(value) => value,
        None => panic!("waited {limit:?} in vain until {what}"),
    }
}

/// Polls `condition` until it returns a value; `None` when `limit` has passed.
pub fn within<T>(limit: Duration, mut condition: impl FnMut() -> Option<T>) -> Option<T> {
    let deadline = Instant::now() + limit;
    loop {
        if let Some(value) = condition() {
            return Some(value);
        }
        if Instant::now() >= deadline {
            return None;
        }
        std::thread::sleep(PERIOD);
    }
}

/// Runs `work` on a thread and panics if it takes longer than `limit`, as a test that hangs reports nothing.
///
/// # Panics
///
/// When `limit` has passed, or if `work` panics.
#[track_caller]
pub fn deadline<T: Send + 'static>(
    limit: Duration,
    what: &str,
    work: impl FnOnce() -> T + Send + 'static,
) -> T {
    let thread = std::thread::spawn(work);
    let over = within(limit, || thread.is_finished().then_some(()));
    assert!(over.is_some(), "{what} was not over after {limit:?}");
    match thread.join() {
        Ok(value) => value,
        Err(panic) => std::panic::resume_unwind(panic),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_condition_is_looked_at_until_it_holds() {
        let mut looks = 0;
        let value = until(SOON, "third look", || {
            looks += 1;
            (looks == 3).then_some(looks)
        });
        assert_eq!(value, 3);
        assert_eq!(within(Duration::from_millis(5), || None::<()>), None);
    }

    #[test]
    #[should_panic(expected = "waited 1ms in vain until pigs fly")]
    fn a_condition_that_never_holds_is_named() {
        until(Duration::from_millis(1), "pigs fly", || None::<()>);
    }

    #[test]
    #[should_panic(expected = "inner")]
    fn work_that_panics_passes_its_panic_on() {
        deadline(SOON, "work", || panic!("inner"));
    }
}
