//! Conditions with deadlines.

use std::time::{Duration, Instant};

/// How long a condition that should be met in an instant may take on a busy machine.
pub const SOON: Duration = Duration::from_secs(60);

/// Time between two looks at a condition.
const PERIOD: Duration = Duration::from_millis(2);

/// Looks at `condition` until it gives a value.
///
/// # Panics
///
/// When `limit` is over; `what` is in the message.
#[track_caller]
pub fn until<T>(limit: Duration, what: &str, condition: impl FnMut() -> Option<T>) -> T {
    match within(limit, condition) {
        Some(value) => value,
        None => panic!("waited {limit:?} in vain until {what}"),
    }
}

/// Looks at `condition` until it gives a value; `None` when `limit` is over.
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

/// Runs `work` on a thread and panics when it is not over after `limit`; nothing may hang, and a test that hangs says
/// nothing.
///
/// # Panics
///
/// When `limit` is over, and when `work` panics.
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
